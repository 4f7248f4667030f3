"""sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl1_hb64

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: heads=64, kv=bf16, tile=64, stages=2, cluster=1, block=64.

  gather             left               right
  warps 8..11        warps 0..3         warps 4..7
  |======= q =======>|                  |   q_s qpe_s; cp_async -> wgmma
  |================= q ================>|   q_s qpe_s; cp_async -> wgmma
  |=== near_left ===>|                  |   near_s_left; cp_async -> wgmma
  |==== far_left ===>|                  |   far_s_left rope_s_left; cp_async -> wgmma
  |============== far_left ============>|   far_s_left rope_s_left; cp_async -> wgmma
  |                  |===== p_left ====>|   peak_s_left; threads -> wgmma
  |============= near_right ===========>|   near_s_right; cp_async -> wgmma
  |=== far_right ===>|                  |   far_s_right rope_s_right; cp_async -> wgmma
  |============= far_right ============>|   far_s_right rope_s_right; cp_async -> wgmma
  |                  |<=== p_right =====|   peak_s_right; threads -> wgmma

roles
  left       threads 0..127, 208 registers  scores of the first tile of each pair, and that half of the dims
  right      threads 128..255, 208 registers  scores of the second tile of each pair, and that half of the dims
  gather     threads 256..383, 88 registers  selected rows, a pair of tiles at a time
buffers
  q_s        64x512 bfloat16, shared, 128-byte swizzle
  qpe_s      64x64 bfloat16, shared, 128-byte swizzle
  near_s_left 64x256 bfloat16, shared, 128-byte swizzle
  far_s_left 64x256 bfloat16, shared, 128-byte swizzle
  rope_s_left 64x64 bfloat16, shared, 128-byte swizzle
  out_s_left 64x32 bfloat16, shared, 64-byte swizzle
  scores_left 64x64 float32, registers of left
  weights_left 64x64 bfloat16, registers of left
  acc_left   64x256 float32, registers of left
  sums_left  128x2 float32, registers of left
  peak_left  64 float32, registers of left
  factor_left 64 float32, registers of left
  sinks_left 64 float32, registers of left
  near_s_right 64x256 bfloat16, shared, 128-byte swizzle
  far_s_right 64x256 bfloat16, shared, 128-byte swizzle
  rope_s_right 64x64 bfloat16, shared, 128-byte swizzle
  out_s_right 64x32 bfloat16, shared, 64-byte swizzle
  scores_right 64x64 float32, registers of right
  weights_right 64x64 bfloat16, registers of right
  acc_right  64x256 float32, registers of right
  sums_right 128x2 float32, registers of right
  peak_right 64 float32, registers of right
  factor_right 64 float32, registers of right
  sinks_right 64 float32, registers of right
  peak_s_left 64 float32, shared
  peak_s_right 64 float32, shared
  red_s      2x64 float32, shared
pipelines
  q: gather (cp_async) ==[q_s qpe_s: 1-slot ring]==> left (wgmma), right (wgmma)
    full  x128: gather hardware arrives per thread
      left: wait full, fence.proxy.async
      right: wait full, fence.proxy.async
    empty x8: gather wait empty
      left: wgmma wait, one lane a warp, arrive empty
      right: wgmma wait, one lane a warp, arrive empty
  near_left: gather (cp_async) ==[near_s_left: 1-slot ring]==> left (wgmma)
    full  x128: gather hardware arrives per thread
      left: wait full, fence.proxy.async
    empty x4: gather wait empty
      left: wgmma wait, one lane a warp, arrive empty
  far_left: gather (cp_async) ==[far_s_left rope_s_left: 1-slot ring]==> left (wgmma), right (wgmma)
    full  x128: gather hardware arrives per thread
      left: wait full, fence.proxy.async
      right: wait full, fence.proxy.async
    empty x8: gather wait empty
      left: wgmma wait, one lane a warp, arrive empty
      right: wgmma wait, one lane a warp, arrive empty
  p_left: left (threads) ==[peak_s_left: 1-slot ring]==> right (wgmma)
    full  x4: left fence.proxy.async, one lane a warp, arrive full
      right: wait full
    empty x4: left wait empty
      right: wgmma wait, one lane a warp, arrive empty
  near_right: gather (cp_async) ==[near_s_right: 1-slot ring]==> right (wgmma)
    full  x128: gather hardware arrives per thread
      right: wait full, fence.proxy.async
    empty x4: gather wait empty
      right: wgmma wait, one lane a warp, arrive empty
  far_right: gather (cp_async) ==[far_s_right rope_s_right: 1-slot ring]==> left (wgmma), right (wgmma)
    full  x128: gather hardware arrives per thread
      left: wait full, fence.proxy.async
      right: wait full, fence.proxy.async
    empty x8: gather wait empty
      left: wgmma wait, one lane a warp, arrive empty
      right: wgmma wait, one lane a warp, arrive empty
  p_right: right (threads) ==[peak_s_right: 1-slot ring]==> left (wgmma)
    full  x4: right fence.proxy.async, one lane a warp, arrive full
      left: wait full
    empty x4: right wait empty
      left: wgmma wait, one lane a warp, arrive empty
  named barrier attend: left, right
  named barrier left: left
  named barrier right: right
totals: 384 threads, 230512 of 232448 bytes of shared memory, grid (ctas)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from dsl_kernels.device.cutedsl import fragment, grid, scalars, warps, wgmma, wgmma_register
from dsl_kernels.runtime.artifact import Launch, Operand

HEADS = 64  # query heads
TILE = 64  # tokens per tile
BLOCK = 64  # heads of a CTA; 0: all, at most 32; 64: 64 heads on M instead of N
HALF_ROWS = 8
HALF = 256
LATENT_DIM = 512
ROPE_DIM = 64
LOG2_E = 1.4426950408889634
RESCALE_LOG2 = 8
LEFT_BARRIER = 2
LEFT_THREADS = 128
ATTEND_BARRIER = 1
RIGHT_THREADS = 128
HEADS_OF_SIDE = 64
RIGHT_BARRIER = 3

QK_NEAR_LEFT = wgmma.Product("bfloat16", BLOCK, TILE, HALF, "k", "k")
QK_FAR_LEFT = wgmma.Product("bfloat16", BLOCK, TILE, HALF, "k", "k")
QK_ROPE_LEFT = wgmma.Product("bfloat16", BLOCK, TILE, ROPE_DIM, "k", "k")
PV_LEFT = wgmma_register.Product("bfloat16", BLOCK, HALF, TILE, "k", "mn")
PV_OTHER_LEFT = wgmma.Product("bfloat16", BLOCK, HALF, TILE, "k", "mn")
QK_NEAR_RIGHT = wgmma.Product("bfloat16", BLOCK, TILE, HALF, "k", "k")
QK_FAR_RIGHT = wgmma.Product("bfloat16", BLOCK, TILE, HALF, "k", "k")
QK_ROPE_RIGHT = wgmma.Product("bfloat16", BLOCK, TILE, ROPE_DIM, "k", "k")
PV_RIGHT = wgmma_register.Product("bfloat16", BLOCK, HALF, TILE, "k", "mn")
PV_OTHER_RIGHT = wgmma.Product("bfloat16", BLOCK, HALF, TILE, "k", "mn")

LAUNCH = Launch(
    operands=(
        Operand(
            "q_nope", "tensor", "bfloat16", ("t", "64", "512"),
            strides=("q_nope_stride_t", "q_nope_stride_h", "1")
        ),
        Operand(
            "q_pe", "tensor", "bfloat16", ("t", "64", "64"), strides=("q_pe_stride_t", "q_pe_stride_h", "1")
        ),
        Operand("ckv", "tensor", "bfloat16", ("n", "512"), strides=("ckv_stride", "1")),
        Operand("kpe", "tensor", "bfloat16", ("n", "64"), strides=("kpe_stride", "1")),
        Operand("indices", "tensor", "int32", ("t", "topk"), strides=("indices_stride", "1")),
        Operand("topk_length", "tensor", "int32", ("t",)),
        Operand("attn_sink", "tensor", "float32", ("64",)),
        Operand(
            "out", "tensor", "bfloat16", ("t", "64", "512"), strides=("out_stride_t", "out_stride_h", "1"),
            written=True
        ),
        Operand("lse", "tensor", "float32", ("t", "64"), strides=("lse_stride", "1"), written=True),
        Operand("o_partial", "tensor", "float32", ("t", "splits", "64", "512"), written=True),
        Operand("lse_partial", "tensor", "float32", ("t", "splits", "64"), written=True),
        Operand("arrivals", "tensor", "int32", ("counters",), written=True),
        Operand("sm_scale", "scalar", "float32"),
        Operand("lse_scale", "scalar", "float32"),
        Operand("empty_lse", "scalar", "float32"),
        Operand("has_lengths", "scalar", "int32"),
        Operand("cached", "scalar", "int32"),
        Operand("page_inverse", "scalar", "int32"),
        Operand("page_shift", "scalar", "int32"),
        Operand("page_gap", "scalar", "int32"),
        Operand("ctas", "scalar", "int32"),
        Operand("share", "scalar", "int32"),
        Operand("reach", "scalar", "int32"),
        Operand("span", "scalar", "int32"),
        Operand("row_step", "scalar", "int32"),
    ),
    grid=("ctas", "1", "1"),
    block=384,
    cluster=(1, 1, 1),
    resident="splits - 1",
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, BLOCK * LATENT_DIM], 1024]
    qpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, BLOCK * ROPE_DIM], 1024]
    near_s_left: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE * HALF], 1024]
    far_s_left: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE * HALF], 1024]
    rope_s_left: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE * ROPE_DIM], 1024]
    out_s_left: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, BLOCK * 32], 1024]
    near_s_right: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE * HALF], 1024]
    far_s_right: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE * HALF], 1024]
    rope_s_right: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE * ROPE_DIM], 1024]
    out_s_right: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, BLOCK * 32], 1024]
    peak_s_left: cute.struct.Align[cute.struct.MemRange[Float32, BLOCK], 128]
    peak_s_right: cute.struct.Align[cute.struct.MemRange[Float32, BLOCK], 128]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, 2 * BLOCK], 128]
    q_full: cute.struct.MemRange[Int64, 1]
    q_empty: cute.struct.MemRange[Int64, 1]
    near_left_full: cute.struct.MemRange[Int64, 1]
    near_left_empty: cute.struct.MemRange[Int64, 1]
    far_left_full: cute.struct.MemRange[Int64, 1]
    far_left_empty: cute.struct.MemRange[Int64, 1]
    p_left_full: cute.struct.MemRange[Int64, 1]
    p_left_empty: cute.struct.MemRange[Int64, 1]
    near_right_full: cute.struct.MemRange[Int64, 1]
    near_right_empty: cute.struct.MemRange[Int64, 1]
    far_right_full: cute.struct.MemRange[Int64, 1]
    far_right_empty: cute.struct.MemRange[Int64, 1]
    p_right_full: cute.struct.MemRange[Int64, 1]
    p_right_empty: cute.struct.MemRange[Int64, 1]


@cute.jit
def read_ids(indices, indices_stride_0, row, tile, end, lane):
    """Read ids `lane` and `lane` + 32 of a tile of a query; -1 replaces the ids from number `end` on."""
    ids = indices + Int64(row) * indices_stride_0
    first = tile * 64 + lane
    low = warps.load_or(ids + first, first < end, -1)
    high = warps.load_or(ids + (first + 32), first + 32 < end, -1)
    return low, high


@cute.jit
def load_row_sinks(sinks, attn_sink, thread):
    """Read the sink logits of a thread's heads, long before they are needed."""
    mine = attn_sink + (thread // 32 * 16 + thread % 32 // 4)
    sinks[0] = mine[0]
    sinks[1] = mine[HALF_ROWS]


@cute.jit
def vote(low, high, cached):
    """The valid ids of a tile as two words of bits, and whether any id is valid.

    Every warp of every role gets the same result.
    """
    in_low = warps.ballot((low >= 0) & (low < cached))
    in_high = warps.ballot((high >= 0) & (high < cached))
    live = in_low | in_high != 0
    return in_low, in_high, live


@cute.jit
def mask_columns(scores, low, high, sm_scale, thread):
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf.

    `low` has a bit for each of the first 32 tokens, `high` for each of the next 32.
    """
    scale = sm_scale * LOG2_E
    for i in cutlass.range_constexpr(BLOCK * TILE // 128):
        scores[i] = scores[i] * scale
    if low & high != -1:
        bits = low >> thread % 4 * 2
        for i in cutlass.range_constexpr(16):
            scores[i] = cutlass.select_(bits >> (i // 4 * 8 + i % 2) & 1 != 0, scores[i], -Float32.inf)
        bits = high >> thread % 4 * 2
        for i in cutlass.range_constexpr(16):
            scores[16 + i] = cutlass.select_(
                bits >> (i // 4 * 8 + i % 2) & 1 != 0, scores[16 + i], -Float32.inf
            )


@cute.jit
def softmax_rows(scores, sums, peak, factor):
    """Replace S by P = exp2(S - maximum).

    The maxima of a warp rise if one of its scores exceeds the row's maximum by `rise`. `factor`
    rescales what is relative to the old maximum.
    """
    most_0 = fragment.row_most(scores, 0)
    most_1 = fragment.row_most(scores, 1)
    factor[0] = Float32(1.0)
    factor[1] = Float32(1.0)
    if warps.any_lane((most_0 > peak[0] + RESCALE_LOG2) | (most_1 > peak[1] + RESCALE_LOG2)):
        risen = cute.arch.fmax(peak[0], fragment.quad_most(most_0))
        factor[0] = cutlass.select_(peak[0] == risen, 1.0, warps.exp2(peak[0] - risen))
        peak[0] = risen
        sums[0] = sums[0] * factor[0]
        risen = cute.arch.fmax(peak[1], fragment.quad_most(most_1))
        factor[1] = cutlass.select_(peak[1] == risen, 1.0, warps.exp2(peak[1] - risen))
        peak[1] = risen
        sums[1] = sums[1] * factor[1]
    # The maximum is -inf if no token so far is valid.
    base = cutlass.select_(peak[0] == -Float32.inf, 0.0, peak[0])
    for j in cutlass.range_constexpr(BLOCK * TILE // 128 // 4):
        scores[j * 4] = warps.exp2(scores[j * 4] - base)
        scores[j * 4 + 1] = warps.exp2(scores[j * 4 + 1] - base)
    sums[0] = sums[0] + fragment.row_sum(scores, 0)
    # The maximum is -inf if no token so far is valid.
    base = cutlass.select_(peak[1] == -Float32.inf, 0.0, peak[1])
    for j in cutlass.range_constexpr(BLOCK * TILE // 128 // 4):
        scores[j * 4 + 2] = warps.exp2(scores[j * 4 + 2] - base)
        scores[j * 4 + 3] = warps.exp2(scores[j * 4 + 3] - base)
    sums[1] = sums[1] + fragment.row_sum(scores, 1)


@cute.jit
def share_peak(target, peak, thread):
    """Leave the maxima that P is relative to for the other side."""
    if thread % 4 == 0:
        mine = target + (thread // 32 * 16 + thread % 32 // 4)
        mine[0] = peak[0]
        mine[HALF_ROWS] = peak[1]


@cute.jit
def rescale_rows(acc, factor):
    """Each row times its factor, in place; left alone where the factors of a warp's rows are 1."""
    if warps.any_lane((factor[0] != 1.0) | (factor[1] != 1.0)):
        for j in cutlass.range_constexpr(BLOCK * HALF // 128 // 4):
            acc[j * 4] = acc[j * 4] * factor[0]
            acc[j * 4 + 1] = acc[j * 4 + 1] * factor[0]
        for j in cutlass.range_constexpr(BLOCK * HALF // 128 // 4):
            acc[j * 4 + 2] = acc[j * 4 + 2] * factor[1]
            acc[j * 4 + 3] = acc[j * 4 + 3] * factor[1]


@cute.jit
def follow_peak(peak, sums, acc, other, thread):
    """Raise the maxima to those of the other side's P, which are no lower."""
    theirs = other + (thread // 32 * 16 + thread % 32 // 4)
    if warps.any_lane((theirs[0] != peak[0]) | (theirs[HALF_ROWS] != peak[1])):
        factor = cutlass.select_(peak[0] == theirs[0], 1.0, warps.exp2(peak[0] - theirs[0]))
        peak[0] = theirs[0]
        sums[0] = sums[0] * factor
        for j in cutlass.range_constexpr(BLOCK * HALF // 128 // 4):
            acc[j * 4] = acc[j * 4] * factor
            acc[j * 4 + 1] = acc[j * 4 + 1] * factor
        factor = cutlass.select_(peak[1] == theirs[HALF_ROWS], 1.0, warps.exp2(peak[1] - theirs[HALF_ROWS]))
        peak[1] = theirs[HALF_ROWS]
        sums[1] = sums[1] * factor
        for j in cutlass.range_constexpr(BLOCK * HALF // 128 // 4):
            acc[j * 4 + 2] = acc[j * 4 + 2] * factor
            acc[j * 4 + 3] = acc[j * 4 + 3] * factor


@cute.jit
def share_sums_left(sums, red, thread):
    """Complete this side's sums and leave them for the other side."""
    sums[0] = fragment.quad_sum(sums[0])
    sums[1] = fragment.quad_sum(sums[1])
    own = red
    if thread % 4 == 0:
        mine = own + (thread // 32 * 16 + thread % 32 // 4)
        mine[0] = sums[0]
        mine[HALF_ROWS] = sums[1]


@cute.jit
def total_rows_left(sums, peak, factor, red, thread):
    """Set `factor` to 1 / sum of both sides, and replace the sums by the base-2 lse.

    An empty row gives 0 and -inf.
    """
    theirs = red + (thread // 32 * 16 + thread % 32 // 4 + HEADS_OF_SIDE)
    total = sums[0] + theirs[0]
    factor[0] = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0)
    sums[0] = cutlass.select_(total > 0.0, warps.log2(total) + peak[0], -Float32.inf)
    total = sums[1] + theirs[HALF_ROWS]
    factor[1] = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0)
    sums[1] = cutlass.select_(total > 0.0, warps.log2(total) + peak[1], -Float32.inf)


@cute.jit
def leave_part_left(acc, lses, row, split, o_partial, lse_partial, splits, thread):
    """Write a split's normalised part of O, in the order of threads, and its lses, for `merge_parts`."""
    four = cute.make_rmem_tensor(4, Float32)
    room = o_partial + Int64((row * splits + split) * HEADS) * LATENT_DIM + thread * 4
    for u in cutlass.range_constexpr(BLOCK * HALF // 128 // 4):
        four[0] = acc[u * 4]
        four[1] = acc[u * 4 + 1]
        four[2] = acc[u * 4 + 2]
        four[3] = acc[u * 4 + 3]
        cute.autovec_copy(four, warps.group(room, 4, u * 128))
    if thread % 4 == 0:
        of_split = lse_partial + Int64(row * splits + split) * HEADS
        for column in cutlass.range_constexpr(2):
            of_split[thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * column] = lses[column]


@cute.jit
def store_result_rows_left(
    out, out_stride_0, out_stride_1, lse, lse_stride_0, acc, factor, lses, sinks, row, scratch, lse_scale,
    empty_lse, thread, lane
):
    """Store this side's half of O as bf16, and the lse. O is scaled by `factor`, and each head for its
    sink.

    The rows pass through shared memory, `width` dims at a time, so the stores write whole sectors.
    """
    joined = cute.make_rmem_tensor(2, Float32)
    scale_0 = factor[0] * cutlass.select_(
        lses[0] > -Float32.inf, warps.rcp_approx(warps.exp2(sinks[0] * LOG2_E - lses[0]) + 1.0), 0.0
    )
    scale_1 = factor[1] * cutlass.select_(
        lses[1] > -Float32.inf, warps.rcp_approx(warps.exp2(sinks[1] * LOG2_E - lses[1]) + 1.0), 0.0
    )
    own = thread // 32 * 16
    lane = thread % 32
    eight = cute.make_rmem_tensor(8, Float32)
    held = cute.make_rmem_tensor(8, cutlass.BFloat16)
    for block in cutlass.range_constexpr(8):
        # A warp reads back only the rows that it wrote.
        warps.sync_warp()
        for pair in cutlass.range_constexpr(2):
            eight[0] = acc[(block * 2 + pair) * 8] * scale_0
            eight[1] = acc[(block * 2 + pair) * 8 + 1] * scale_0
            eight[2] = acc[(block * 2 + pair) * 8 + 2] * scale_1
            eight[3] = acc[(block * 2 + pair) * 8 + 3] * scale_1
            eight[4] = acc[(block * 2 + pair) * 8 + 4] * scale_0
            eight[5] = acc[(block * 2 + pair) * 8 + 5] * scale_0
            eight[6] = acc[(block * 2 + pair) * 8 + 6] * scale_1
            eight[7] = acc[(block * 2 + pair) * 8 + 7] * scale_1
            warps.store_matrices(
                warps.piece(
                    scratch, 8, own + lane % 16, pair * 16 + lane // 16 * 8, (BLOCK, 32), 64
                ).iterator,
                eight, 0, 4
            )
        warps.sync_warp()
        for i in cutlass.range_constexpr(2):
            head = own + i * 8 + lane // 4
            cute.autovec_copy(warps.piece(scratch, 8, head, lane % 4 * 8, (BLOCK, 32), 64), held)
            to = out + Int64(row) * out_stride_0 + Int64(head) * out_stride_1 + block * 32
            cute.autovec_copy(held, warps.group(to, 8, lane % 4))
    joined[0] = cutlass.select_(lses[0] > -Float32.inf, lses[0] * lse_scale, empty_lse)
    joined[1] = cutlass.select_(lses[1] > -Float32.inf, lses[1] * lse_scale, empty_lse)
    of_heads = lse + Int64(row) * lse_stride_0
    if thread % 4 == 0:
        mine = of_heads + (thread // 32 * 16 + thread % 32 // 4)
        mine[0] = joined[0]
        mine[HALF_ROWS] = joined[1]


@cute.jit
def merge_parts_side_0(
    row, parts, share, shares, out, out_stride_0, out_stride_1, lse, lse_stride_0, o_partial, lse_partial,
    attn_sink, splits, lse_scale, empty_lse, thread
):
    """Join share `share` of `shares` of the dims from all parts, scale each head for its sink, and store
    it.

    It joins `few` pieces at a time. Whoever has the first piece also stores the lse. A row without ids
    gives 0 and `empty_lse`.
    """
    sinks = cute.make_rmem_tensor(2, Float32)
    end = (share + 1) * 32 // shares
    for column in cutlass.range_constexpr(2):
        sinks[column] = attn_sink[thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * column]
    for piece in cutlass.range(share * 32 // shares, end, 4, unroll=1):
        top = cute.make_rmem_tensor(2, Float32)
        total = cute.make_rmem_tensor(2, Float32)
        kept = cute.make_rmem_tensor(2, Float32)
        merged = cute.make_rmem_tensor(16, Float32)
        four = cute.make_rmem_tensor(4, Float32)
        weights = cute.make_rmem_tensor(8, Float32)
        for column in cutlass.range_constexpr(2):
            top[column] = Float32(-Float32.inf)
            total[column] = Float32(0.0)
        for i in cutlass.range_constexpr(16):
            merged[i] = Float32(0.0)
        for first in cutlass.range(0, parts, 4, unroll=1):
            for p in cutlass.range_constexpr(4):
                lses = lse_partial + Int64(row * splits + cutlass.min(first + p, parts - 1)) * HEADS
                for column in cutlass.range_constexpr(2):
                    weights[p * 2 + column] = cutlass.select_(
                        first + p < parts, lses[thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * column],
                        -Float32.inf
                    )
            for column in cutlass.range_constexpr(2):
                peak = Float32(top[column])
                for at in cutlass.range_constexpr(column, 8, 2):
                    peak = cute.arch.fmax(peak, weights[at])
                # The weight of an empty part is 0, even if all parts are empty.
                base = cutlass.select_(peak > -Float32.inf, peak, 0.0)
                kept[column] = warps.exp2(top[column] - base)
                top[column] = peak
                total[column] = total[column] * kept[column]
                for at in cutlass.range_constexpr(column, 8, 2):
                    weights[at] = warps.exp2(weights[at] - base)
                    total[column] = total[column] + weights[at]
            for i in cutlass.range_constexpr(16):
                merged[i] = merged[i] * kept[i % 4 // 2]
            for p in cutlass.range_constexpr(4):
                for u in cutlass.range_constexpr(4):
                    room = o_partial + Int64(
                        (row * splits + cutlass.min(first + p, parts - 1)) * HEADS
                    ) * LATENT_DIM + thread * 4
                    cute.autovec_copy(
                        warps.group(room, 4, (cutlass.min(piece + u, end - 1) + u % 1) * 128), four
                    )
                    for e in cutlass.range_constexpr(4):
                        merged[u * 4 + e] = merged[u * 4 + e] + four[e] * weights[
                            p * 2 + (u * 4 + e) % 4 // 2
                        ]
        for column in cutlass.range_constexpr(2):
            joined = cutlass.select_(
                total[column] > 0.0, warps.log2(total[column]) + top[column], -Float32.inf
            )
            total[column] = cutlass.select_(
                total[column] > 0.0, warps.rcp_approx(total[column]), 0.0
            ) * cutlass.select_(
                joined > -Float32.inf, warps.rcp_approx(warps.exp2(sinks[column] * LOG2_E - joined) + 1.0),
                0.0
            )
            if (piece == 0) & (thread % 4 == 0):
                of_row = lse + Int64(row) * lse_stride_0
                of_row[thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * column] = cutlass.select_(
                    joined > -Float32.inf, joined * lse_scale, empty_lse
                )
        for v in cutlass.range_constexpr(4):
            if piece + v < end:
                for i in cutlass.range_constexpr(0, 4, 2):
                    to = out + Int64(row) * out_stride_0 + Int64(
                        thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * (i // 2)
                    ) * out_stride_1 + ((piece + v) * 8 + thread % 4 * 2 + i % 2)
                    warps.store_pair(
                        to, merged[v * 4 + i] * total[i // 2], merged[v * 4 + i + 1] * total[i // 2]
                    )


@cute.jit
def share_sums_right(sums, red, thread):
    """Complete this side's sums and leave them for the other side."""
    sums[0] = fragment.quad_sum(sums[0])
    sums[1] = fragment.quad_sum(sums[1])
    own = red + HEADS_OF_SIDE
    if thread % 4 == 0:
        mine = own + (thread // 32 * 16 + thread % 32 // 4)
        mine[0] = sums[0]
        mine[HALF_ROWS] = sums[1]


@cute.jit
def total_rows_right(sums, peak, factor, red, thread):
    """Set `factor` to 1 / sum of both sides, and replace the sums by the base-2 lse.

    An empty row gives 0 and -inf.
    """
    theirs = red + (thread // 32 * 16 + thread % 32 // 4)
    total = sums[0] + theirs[0]
    factor[0] = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0)
    sums[0] = cutlass.select_(total > 0.0, warps.log2(total) + peak[0], -Float32.inf)
    total = sums[1] + theirs[HALF_ROWS]
    factor[1] = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0)
    sums[1] = cutlass.select_(total > 0.0, warps.log2(total) + peak[1], -Float32.inf)


@cute.jit
def leave_part_right(acc, row, split, o_partial, splits, thread):
    """Write a split's normalised part of O, in the order of threads, and its lses, for `merge_parts`."""
    four = cute.make_rmem_tensor(4, Float32)
    room = o_partial + Int64((row * splits + split) * HEADS) * LATENT_DIM + (thread + 4096) * 4
    for u in cutlass.range_constexpr(BLOCK * HALF // 128 // 4):
        four[0] = acc[u * 4]
        four[1] = acc[u * 4 + 1]
        four[2] = acc[u * 4 + 2]
        four[3] = acc[u * 4 + 3]
        cute.autovec_copy(four, warps.group(room, 4, u * 128))


@cute.jit
def store_result_rows_right(
    out, out_stride_0, out_stride_1, acc, factor, lses, sinks, row, scratch, thread, lane
):
    """Store this side's half of O as bf16, and the lse. O is scaled by `factor`, and each head for its
    sink.

    The rows pass through shared memory, `width` dims at a time, so the stores write whole sectors.
    """
    joined = cute.make_rmem_tensor(2, Float32)
    scale_0 = factor[0] * cutlass.select_(
        lses[0] > -Float32.inf, warps.rcp_approx(warps.exp2(sinks[0] * LOG2_E - lses[0]) + 1.0), 0.0
    )
    scale_1 = factor[1] * cutlass.select_(
        lses[1] > -Float32.inf, warps.rcp_approx(warps.exp2(sinks[1] * LOG2_E - lses[1]) + 1.0), 0.0
    )
    own = thread // 32 * 16
    lane = thread % 32
    eight = cute.make_rmem_tensor(8, Float32)
    held = cute.make_rmem_tensor(8, cutlass.BFloat16)
    for block in cutlass.range_constexpr(8):
        # A warp reads back only the rows that it wrote.
        warps.sync_warp()
        for pair in cutlass.range_constexpr(2):
            eight[0] = acc[(block * 2 + pair) * 8] * scale_0
            eight[1] = acc[(block * 2 + pair) * 8 + 1] * scale_0
            eight[2] = acc[(block * 2 + pair) * 8 + 2] * scale_1
            eight[3] = acc[(block * 2 + pair) * 8 + 3] * scale_1
            eight[4] = acc[(block * 2 + pair) * 8 + 4] * scale_0
            eight[5] = acc[(block * 2 + pair) * 8 + 5] * scale_0
            eight[6] = acc[(block * 2 + pair) * 8 + 6] * scale_1
            eight[7] = acc[(block * 2 + pair) * 8 + 7] * scale_1
            warps.store_matrices(
                warps.piece(
                    scratch, 8, own + lane % 16, pair * 16 + lane // 16 * 8, (BLOCK, 32), 64
                ).iterator,
                eight, 0, 4
            )
        warps.sync_warp()
        for i in cutlass.range_constexpr(2):
            head = own + i * 8 + lane // 4
            cute.autovec_copy(warps.piece(scratch, 8, head, lane % 4 * 8, (BLOCK, 32), 64), held)
            to = out + Int64(row) * out_stride_0 + Int64(head) * out_stride_1 + (256 + block * 32)
            cute.autovec_copy(held, warps.group(to, 8, lane % 4))


@cute.jit
def merge_parts_side_1(
    row, parts, share, shares, out, out_stride_0, out_stride_1, o_partial, lse_partial, attn_sink, splits,
    thread
):
    """Join share `share` of `shares` of the dims from all parts, scale each head for its sink, and store
    it.

    It joins `few` pieces at a time. Whoever has the first piece also stores the lse. A row without ids
    gives 0 and `empty_lse`.
    """
    sinks = cute.make_rmem_tensor(2, Float32)
    end = (share + 1) * 32 // shares
    for column in cutlass.range_constexpr(2):
        sinks[column] = attn_sink[thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * column]
    for piece in cutlass.range(share * 32 // shares, end, 4, unroll=1):
        top = cute.make_rmem_tensor(2, Float32)
        total = cute.make_rmem_tensor(2, Float32)
        kept = cute.make_rmem_tensor(2, Float32)
        merged = cute.make_rmem_tensor(16, Float32)
        four = cute.make_rmem_tensor(4, Float32)
        weights = cute.make_rmem_tensor(8, Float32)
        for column in cutlass.range_constexpr(2):
            top[column] = Float32(-Float32.inf)
            total[column] = Float32(0.0)
        for i in cutlass.range_constexpr(16):
            merged[i] = Float32(0.0)
        for first in cutlass.range(0, parts, 4, unroll=1):
            for p in cutlass.range_constexpr(4):
                lses = lse_partial + Int64(row * splits + cutlass.min(first + p, parts - 1)) * HEADS
                for column in cutlass.range_constexpr(2):
                    weights[p * 2 + column] = cutlass.select_(
                        first + p < parts, lses[thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * column],
                        -Float32.inf
                    )
            for column in cutlass.range_constexpr(2):
                peak = Float32(top[column])
                for at in cutlass.range_constexpr(column, 8, 2):
                    peak = cute.arch.fmax(peak, weights[at])
                # The weight of an empty part is 0, even if all parts are empty.
                base = cutlass.select_(peak > -Float32.inf, peak, 0.0)
                kept[column] = warps.exp2(top[column] - base)
                top[column] = peak
                total[column] = total[column] * kept[column]
                for at in cutlass.range_constexpr(column, 8, 2):
                    weights[at] = warps.exp2(weights[at] - base)
                    total[column] = total[column] + weights[at]
            for i in cutlass.range_constexpr(16):
                merged[i] = merged[i] * kept[i % 4 // 2]
            for p in cutlass.range_constexpr(4):
                for u in cutlass.range_constexpr(4):
                    room = o_partial + Int64(
                        (row * splits + cutlass.min(first + p, parts - 1)) * HEADS
                    ) * LATENT_DIM + (thread + 4096) * 4
                    cute.autovec_copy(
                        warps.group(room, 4, (cutlass.min(piece + u, end - 1) + u % 1) * 128), four
                    )
                    for e in cutlass.range_constexpr(4):
                        merged[u * 4 + e] = merged[u * 4 + e] + four[e] * weights[
                            p * 2 + (u * 4 + e) % 4 // 2
                        ]
        for column in cutlass.range_constexpr(2):
            joined = cutlass.select_(
                total[column] > 0.0, warps.log2(total[column]) + top[column], -Float32.inf
            )
            total[column] = cutlass.select_(
                total[column] > 0.0, warps.rcp_approx(total[column]), 0.0
            ) * cutlass.select_(
                joined > -Float32.inf, warps.rcp_approx(warps.exp2(sinks[column] * LOG2_E - joined) + 1.0),
                0.0
            )
        for v in cutlass.range_constexpr(4):
            if piece + v < end:
                for i in cutlass.range_constexpr(0, 4, 2):
                    to = out + Int64(row) * out_stride_0 + Int64(
                        thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * (i // 2)
                    ) * out_stride_1 + ((32 + (piece + v)) * 8 + thread % 4 * 2 + i % 2)
                    warps.store_pair(
                        to, merged[v * 4 + i] * total[i // 2], merged[v * 4 + i + 1] * total[i // 2]
                    )


@cute.jit
def copy_query_rows_q_s(target, q, q_stride_0, q_stride_1, row, thread):
    """Start the copies of a block of 64 heads of one query."""
    for i in cutlass.range(HEADS_OF_SIDE * (LATENT_DIM // 8) // 128, unroll=8):
        of_head = q + Int64(row) * q_stride_0 + Int64(
            thread // (LATENT_DIM // 8) + i * (128 // (LATENT_DIM // 8))
        ) * q_stride_1
        warps.copy16(
            warps.piece(
                target, 8, thread // (LATENT_DIM // 8) + i * (128 // (LATENT_DIM // 8)),
                thread % (LATENT_DIM // 8) * 8, (BLOCK, LATENT_DIM), 128
            ).iterator,
            of_head + thread % (LATENT_DIM // 8) * 8, True
        )


@cute.jit
def copy_query_rows_qpe_s(target, q, q_stride_0, q_stride_1, row, thread):
    """Start the copies of a block of 64 heads of one query."""
    for i in cutlass.range(HEADS_OF_SIDE * (ROPE_DIM // 8) // 128, unroll=8):
        of_head = q + Int64(row) * q_stride_0 + Int64(
            thread // (ROPE_DIM // 8) + i * (128 // (ROPE_DIM // 8))
        ) * q_stride_1
        warps.copy16(
            warps.piece(
                target, 8, thread // (ROPE_DIM // 8) + i * (128 // (ROPE_DIM // 8)),
                thread % (ROPE_DIM // 8) * 8, (BLOCK, ROPE_DIM), 128
            ).iterator,
            of_head + thread % (ROPE_DIM // 8) * 8, True
        )


@cute.jit
def find_rows(low, high, cached, page_inverse, page_shift, page_gap):
    """The rows of the cache that a lane's two ids of a tile name.

    Without the branch ptxas moves the arithmetic across other code, and kernels of 16 heads were 2 to 3
    % slower.
    """
    low_row = low
    high_row = high
    if page_gap != 0:
        low_page = warps.mul_hi(
            low.to(cutlass.Uint32) << 2, page_inverse.to(cutlass.Uint32)
        ).to(Int32) >> page_shift
        low_row = cutlass.select_((low >= 0) & (low < cached), low + low_page * page_gap, -1)
        high_page = warps.mul_hi(
            high.to(cutlass.Uint32) << 2, page_inverse.to(cutlass.Uint32)
        ).to(Int32) >> page_shift
        high_row = cutlass.select_((high >= 0) & (high < cached), high + high_page * page_gap, -1)
    return low_row, high_row


@cute.jit
def copy_rows(target, cache, cache_stride_0, low, high, n, thread):
    """Start the copies of `columns` columns of a tile's rows, from `first` on; zeros if an id names no
    row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    row = thread // 8
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(HALF // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, HALF), 128).iterator, cache,
            cache_stride_0, thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 16
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(HALF // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, HALF), 128).iterator, cache,
            cache_stride_0, thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 32
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(HALF // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, HALF), 128).iterator, cache,
            cache_stride_0, thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 48
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(HALF // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, HALF), 128).iterator, cache,
            cache_stride_0, thread % 8 * 8, token, c * 64, n
        )


@cute.jit
def copy_rows_2(target, cache, cache_stride_0, low, high, n, thread):
    """Start the copies of `columns` columns of a tile's rows, from `first` on; zeros if an id names no
    row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    row = thread // 8
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(HALF // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, HALF), 128).iterator, cache,
            cache_stride_0, HALF + thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 16
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(HALF // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, HALF), 128).iterator, cache,
            cache_stride_0, HALF + thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 32
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(HALF // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, HALF), 128).iterator, cache,
            cache_stride_0, HALF + thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 48
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(HALF // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, HALF), 128).iterator, cache,
            cache_stride_0, HALF + thread % 8 * 8, token, c * 64, n
        )


@cute.jit
def copy_rows_3(target, cache, cache_stride_0, low, high, n, thread):
    """Start the copies of `columns` columns of a tile's rows, from `first` on; zeros if an id names no
    row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    row = thread // (ROPE_DIM // 8)
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(1):
        warps.copy_row16(
            warps.piece(
                target, 8, row, (c * (ROPE_DIM // 8) + thread % (ROPE_DIM // 8)) * 8, (TILE, ROPE_DIM), 128
            ).iterator,
            cache, cache_stride_0, thread % (ROPE_DIM // 8) * 8, token, c * (ROPE_DIM // 8 * 8), n
        )
    row = thread // (ROPE_DIM // 8) + 16
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(1):
        warps.copy_row16(
            warps.piece(
                target, 8, row, (c * (ROPE_DIM // 8) + thread % (ROPE_DIM // 8)) * 8, (TILE, ROPE_DIM), 128
            ).iterator,
            cache, cache_stride_0, thread % (ROPE_DIM // 8) * 8, token, c * (ROPE_DIM // 8 * 8), n
        )
    row = thread // (ROPE_DIM // 8) + 32
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(1):
        warps.copy_row16(
            warps.piece(
                target, 8, row, (c * (ROPE_DIM // 8) + thread % (ROPE_DIM // 8)) * 8, (TILE, ROPE_DIM), 128
            ).iterator,
            cache, cache_stride_0, thread % (ROPE_DIM // 8) * 8, token, c * (ROPE_DIM // 8 * 8), n
        )
    row = thread // (ROPE_DIM // 8) + 48
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(1):
        warps.copy_row16(
            warps.piece(
                target, 8, row, (c * (ROPE_DIM // 8) + thread % (ROPE_DIM // 8)) * 8, (TILE, ROPE_DIM), 128
            ).iterator,
            cache, cache_stride_0, thread % (ROPE_DIM // 8) * 8, token, c * (ROPE_DIM // 8 * 8), n
        )


@cute.jit
def left(
    indices: cute.Pointer, topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer,
    lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer,
    sm_scale: Float32, lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32,
    share: Int32, reach: Int32, span: Int32, row_step: Int32, t: Int32, topk: Int32, indices_stride: Int32,
    out_stride_t: Int32, out_stride_h: Int32, lse_stride: Int32, splits: Int32, q_s: cute.Pointer,
    qpe_s: cute.Pointer, near_s_left: cute.Pointer, far_s_left: cute.Pointer, rope_s_left: cute.Pointer,
    out_s_left: cute.Pointer, far_s_right: cute.Pointer, rope_s_right: cute.Pointer,
    peak_s_left: cute.Pointer, peak_s_right: cute.Pointer, red_s: cute.Pointer, q_full: cute.Pointer,
    q_empty: cute.Pointer, near_left_full: cute.Pointer, near_left_empty: cute.Pointer,
    far_left_full: cute.Pointer, far_left_empty: cute.Pointer, p_left_full: cute.Pointer,
    p_left_empty: cute.Pointer, far_right_full: cute.Pointer, far_right_empty: cute.Pointer,
    p_right_full: cute.Pointer, p_right_empty: cute.Pointer, cta: Int32, done: Int32, it: Int32,
    low_left: Int32, high_left: Int32, in_low_left: Int32, in_high_left: Int32, live_left: Boolean,
    low_right: Int32, high_right: Int32, in_low_right: Int32, in_high_right: Int32, live_right: Boolean,
    live: Boolean, thread: Int32, lane: Int32
):
    """Scores of the first tile of each pair, and that half of the dims."""
    qk_near_left_a = QK_NEAR_LEFT.operand_a(q_s, BLOCK, LATENT_DIM, 1, 128)
    qk_near_left_b = QK_NEAR_LEFT.operand_b(near_s_left, TILE, HALF, 1, 128)
    qk_far_left_a = QK_FAR_LEFT.operand_a(q_s, BLOCK, LATENT_DIM, 1, 128)
    qk_far_left_b = QK_FAR_LEFT.operand_b(far_s_left, TILE, HALF, 1, 128)
    qk_rope_left_a = QK_ROPE_LEFT.operand_a(qpe_s, BLOCK, ROPE_DIM, 1, 128)
    qk_rope_left_b = QK_ROPE_LEFT.operand_b(rope_s_left, TILE, ROPE_DIM, 1, 128)
    pv_left_b = PV_LEFT.operand_b(near_s_left, TILE, HALF, 1, 128)
    pv_other_left_a = PV_OTHER_LEFT.operand_a(rope_s_right, TILE, ROPE_DIM, 1, 128)
    pv_other_left_b = PV_OTHER_LEFT.operand_b(far_s_right, TILE, HALF, 1, 128)
    scores_left = QK_NEAR_LEFT.accumulators()
    weights_left = cute.make_rmem_tensor(32, cutlass.BFloat16)
    acc_left = PV_LEFT.accumulators()
    sums_left = cute.make_rmem_tensor(2, Float32)
    peak_left = cute.make_rmem_tensor(2, Float32)
    factor_left = cute.make_rmem_tensor(2, Float32)
    sinks_left = cute.make_rmem_tensor(2, Float32)
    worker = thread
    turn = Int32(0)
    unit = Int32(cta * share)
    end = cta * share + reach
    while unit < end:
        row = unit // span
        first = unit - row * span
        turns = cutlass.min(end - unit, (scalars.ceildiv(topk, TILE) + 1) // 2 - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * 2 * TILE, counted)
            low_left, high_left = read_ids(indices, indices_stride, row, first * 2, stop, lane)
            low_right, high_right = read_ids(indices, indices_stride, row, first * 2 + 1, stop, lane)
            load_row_sinks(sinks_left, attn_sink, worker)
            turn = Int32(0)
            acc_left.fill(0.0)
            sums_left.fill(0.0)
            peak_left.fill(-Float32.inf)
            live = Boolean(False)
            while (live == False) & (turn < turns):
                in_low_left, in_high_left, live_left = vote(low_left, high_left, cached)
                in_low_right, in_high_right, live_right = vote(low_right, high_right, cached)
                live = live_left | live_right
                turn = turn + 1
                low_left, high_left = read_ids(indices, indices_stride, row, (first + turn) * 2, stop, lane)
                low_right, high_right = read_ids(
                    indices, indices_stride, row, (first + turn) * 2 + 1, stop, lane
                )
            cute.arch.mbarrier_wait(q_full, done & 1)
            cute.arch.fence_proxy("async.shared", space="cta")
            while live:
                cute.arch.mbarrier_wait(near_left_full, it & 1)
                cute.arch.fence_proxy("async.shared", space="cta")
                # S = Q K^T
                warpgroup.fence()
                QK_NEAR_LEFT.multiply(
                    qk_near_left_a[None, None, None, 0, 0, 0], qk_near_left_b[None, None, None, 0, 0, 0],
                    scores_left, False
                )
                warpgroup.commit_group()
                cute.arch.mbarrier_wait(far_left_full, it & 1)
                cute.arch.fence_proxy("async.shared", space="cta")
                warpgroup.fence()
                QK_FAR_LEFT.multiply(
                    qk_far_left_a[None, None, None, 0, 0, 1], qk_far_left_b[None, None, None, 0, 0, 0],
                    scores_left, True
                )
                QK_ROPE_LEFT.multiply(
                    qk_rope_left_a[None, None, None, 0, 0, 0], qk_rope_left_b[None, None, None, 0, 0, 0],
                    scores_left, True
                )
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                mask_columns(scores_left, in_low_left, in_high_left, sm_scale, worker)
                softmax_rows(scores_left, sums_left, peak_left, factor_left)
                # `round_to` bfloat16 at this very place: no compiler moves it behind the fence before the
                # product.
                fragment.pack_to(weights_left, scores_left)
                cute.arch.mbarrier_wait(p_left_empty, (it & 1) ^ 1)
                share_peak(peak_s_left, peak_left, worker)
                # All warps have now read the tile's rope dims, which P overwrites.
                cute.arch.barrier(barrier_id=LEFT_BARRIER, number_of_threads=LEFT_THREADS)
                # A 16-bit fragment into rows `row` on of a shared tile of `rows` rows with the 128-byte
                # swizzle.
                fragment.stage_rows(rope_s_left, 0, BLOCK, weights_left, worker)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_left_full)
                rescale_rows(acc_left, factor_left)
                # O += P K, of its own tokens
                warpgroup.fence()
                PV_LEFT.multiply(weights_left, pv_left_b[None, None, None, 0, 0, 0], acc_left, True)
                warpgroup.commit_group()
                live = Boolean(False)
                while (live == False) & (turn < turns):
                    in_low_left, in_high_left, live_left = vote(low_left, high_left, cached)
                    in_low_right, in_high_right, live_right = vote(low_right, high_right, cached)
                    live = live_left | live_right
                    turn = turn + 1
                    low_left, high_left = read_ids(
                        indices, indices_stride, row, (first + turn) * 2, stop, lane
                    )
                    low_right, high_right = read_ids(
                        indices, indices_stride, row, (first + turn) * 2 + 1, stop, lane
                    )
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(near_left_empty)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(far_left_empty)
                cute.arch.mbarrier_wait(p_right_full, it & 1)
                cute.arch.mbarrier_wait(far_right_full, it & 1)
                cute.arch.fence_proxy("async.shared", space="cta")
                follow_peak(peak_left, sums_left, acc_left, peak_s_right, worker)
                # O += P K, of the other's tokens
                warpgroup.fence()
                PV_OTHER_LEFT.multiply(
                    pv_other_left_a[None, None, None, 0, 0, 0], pv_other_left_b[None, None, None, 0, 0, 0],
                    acc_left, True
                )
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_right_empty)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(far_right_empty)
                it = it + 1
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(q_empty)
            share_sums_left(sums_left, red_s, worker)
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
            total_rows_left(sums_left, peak_left, factor_left, red_s, worker)
            from_cta = row * span // share
            parts = (row * span + (scalars.ceildiv(topk, TILE) + 1) // 2 - 1) // share - from_cta + 1
            if parts > 1:
                rescale_rows(acc_left, factor_left)
                leave_part_left(
                    acc_left, sums_left, row, cta - from_cta, o_partial, lse_partial, splits, worker
                )
                cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
                grid.count_in(arrivals + row + cta % 1, worker)
            else:
                store_result_rows_left(
                    out, out_stride_t, out_stride_h, lse, lse_stride, acc_left, factor_left, sums_left,
                    sinks_left, row, out_s_left, lse_scale, empty_lse, worker, lane
                )
            # Both sides have now read what the other side left for them.
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
            done = done + 1
        unit = (row + row_step) * span
    if splits > 1:
        unit = cta * share
        while unit < end:
            row = unit // span
            from_cta = row * span // share
            parts = (row * span + (scalars.ceildiv(topk, TILE) + 1) // 2 - 1) // share - from_cta + 1
            if (row < t) & (unit - row * span < (scalars.ceildiv(topk, TILE) + 1) // 2) & (parts > 1):
                grid.await_count(arrivals + row + cta % 1, parts, worker)
                cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
                merge_parts_side_0(
                    row, parts, cta - from_cta, parts, out, out_stride_t, out_stride_h, lse, lse_stride,
                    o_partial, lse_partial, attn_sink, splits, lse_scale, empty_lse, worker
                )
                grid.count_out(arrivals + row + cta % 1, parts, worker)
            unit = row * span + span


@cute.jit
def right(
    indices: cute.Pointer, topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, sm_scale: Float32, has_lengths: Int32, cached: Int32,
    share: Int32, reach: Int32, span: Int32, row_step: Int32, t: Int32, topk: Int32, indices_stride: Int32,
    out_stride_t: Int32, out_stride_h: Int32, splits: Int32, q_s: cute.Pointer, qpe_s: cute.Pointer,
    far_s_left: cute.Pointer, rope_s_left: cute.Pointer, near_s_right: cute.Pointer,
    far_s_right: cute.Pointer, rope_s_right: cute.Pointer, out_s_right: cute.Pointer,
    peak_s_left: cute.Pointer, peak_s_right: cute.Pointer, red_s: cute.Pointer, q_full: cute.Pointer,
    q_empty: cute.Pointer, far_left_full: cute.Pointer, far_left_empty: cute.Pointer,
    p_left_full: cute.Pointer, p_left_empty: cute.Pointer, near_right_full: cute.Pointer,
    near_right_empty: cute.Pointer, far_right_full: cute.Pointer, far_right_empty: cute.Pointer,
    p_right_full: cute.Pointer, p_right_empty: cute.Pointer, cta: Int32, done: Int32, it: Int32,
    low_left: Int32, high_left: Int32, in_low_left: Int32, in_high_left: Int32, live_left: Boolean,
    low_right: Int32, high_right: Int32, in_low_right: Int32, in_high_right: Int32, live_right: Boolean,
    live: Boolean, thread: Int32, lane: Int32
):
    """Scores of the second tile of each pair, and that half of the dims."""
    qk_near_right_a = QK_NEAR_RIGHT.operand_a(q_s, BLOCK, LATENT_DIM, 1, 128)
    qk_near_right_b = QK_NEAR_RIGHT.operand_b(near_s_right, TILE, HALF, 1, 128)
    qk_far_right_a = QK_FAR_RIGHT.operand_a(q_s, BLOCK, LATENT_DIM, 1, 128)
    qk_far_right_b = QK_FAR_RIGHT.operand_b(far_s_right, TILE, HALF, 1, 128)
    qk_rope_right_a = QK_ROPE_RIGHT.operand_a(qpe_s, BLOCK, ROPE_DIM, 1, 128)
    qk_rope_right_b = QK_ROPE_RIGHT.operand_b(rope_s_right, TILE, ROPE_DIM, 1, 128)
    pv_right_b = PV_RIGHT.operand_b(near_s_right, TILE, HALF, 1, 128)
    pv_other_right_a = PV_OTHER_RIGHT.operand_a(rope_s_left, TILE, ROPE_DIM, 1, 128)
    pv_other_right_b = PV_OTHER_RIGHT.operand_b(far_s_left, TILE, HALF, 1, 128)
    scores_right = QK_NEAR_RIGHT.accumulators()
    weights_right = cute.make_rmem_tensor(32, cutlass.BFloat16)
    acc_right = PV_RIGHT.accumulators()
    sums_right = cute.make_rmem_tensor(2, Float32)
    peak_right = cute.make_rmem_tensor(2, Float32)
    factor_right = cute.make_rmem_tensor(2, Float32)
    sinks_right = cute.make_rmem_tensor(2, Float32)
    worker = thread % 128
    turn = Int32(0)
    unit = Int32(cta * share)
    end = cta * share + reach
    while unit < end:
        row = unit // span
        first = unit - row * span
        turns = cutlass.min(end - unit, (scalars.ceildiv(topk, TILE) + 1) // 2 - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * 2 * TILE, counted)
            low_left, high_left = read_ids(indices, indices_stride, row, first * 2, stop, lane)
            low_right, high_right = read_ids(indices, indices_stride, row, first * 2 + 1, stop, lane)
            load_row_sinks(sinks_right, attn_sink, worker)
            turn = Int32(0)
            acc_right.fill(0.0)
            sums_right.fill(0.0)
            peak_right.fill(-Float32.inf)
            live = Boolean(False)
            while (live == False) & (turn < turns):
                in_low_left, in_high_left, live_left = vote(low_left, high_left, cached)
                in_low_right, in_high_right, live_right = vote(low_right, high_right, cached)
                live = live_left | live_right
                turn = turn + 1
                low_left, high_left = read_ids(indices, indices_stride, row, (first + turn) * 2, stop, lane)
                low_right, high_right = read_ids(
                    indices, indices_stride, row, (first + turn) * 2 + 1, stop, lane
                )
            cute.arch.mbarrier_wait(q_full, done & 1)
            cute.arch.fence_proxy("async.shared", space="cta")
            while live:
                cute.arch.mbarrier_wait(near_right_full, it & 1)
                cute.arch.fence_proxy("async.shared", space="cta")
                # S = Q K^T
                warpgroup.fence()
                QK_NEAR_RIGHT.multiply(
                    qk_near_right_a[None, None, None, 0, 0, 1], qk_near_right_b[None, None, None, 0, 0, 0],
                    scores_right, False
                )
                warpgroup.commit_group()
                cute.arch.mbarrier_wait(far_right_full, it & 1)
                cute.arch.fence_proxy("async.shared", space="cta")
                warpgroup.fence()
                QK_FAR_RIGHT.multiply(
                    qk_far_right_a[None, None, None, 0, 0, 0], qk_far_right_b[None, None, None, 0, 0, 0],
                    scores_right, True
                )
                QK_ROPE_RIGHT.multiply(
                    qk_rope_right_a[None, None, None, 0, 0, 0], qk_rope_right_b[None, None, None, 0, 0, 0],
                    scores_right, True
                )
                warpgroup.commit_group()
                cute.arch.mbarrier_wait(p_left_full, it & 1)
                cute.arch.mbarrier_wait(far_left_full, it & 1)
                cute.arch.fence_proxy("async.shared", space="cta")
                follow_peak(peak_right, sums_right, acc_right, peak_s_left, worker)
                # O += P K, of the other's tokens
                warpgroup.fence()
                PV_OTHER_RIGHT.multiply(
                    pv_other_right_a[None, None, None, 0, 0, 0], pv_other_right_b[None, None, None, 0, 0, 0],
                    acc_right, True
                )
                warpgroup.commit_group()
                warpgroup.wait_group(1)
                mask_columns(scores_right, in_low_right, in_high_right, sm_scale, worker)
                softmax_rows(scores_right, sums_right, peak_right, factor_right)
                # `round_to` bfloat16 at this very place: no compiler moves it behind the fence before the
                # product.
                fragment.pack_to(weights_right, scores_right)
                cute.arch.mbarrier_wait(p_right_empty, (it & 1) ^ 1)
                share_peak(peak_s_right, peak_right, worker)
                # All warps have now read the tile's rope dims, which P overwrites.
                cute.arch.barrier(barrier_id=RIGHT_BARRIER, number_of_threads=RIGHT_THREADS)
                # A 16-bit fragment into rows `row` on of a shared tile of `rows` rows with the 128-byte
                # swizzle.
                fragment.stage_rows(rope_s_right, 0, BLOCK, weights_right, worker)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_right_full)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_left_empty)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(far_left_empty)
                rescale_rows(acc_right, factor_right)
                # O += P K, of its own tokens
                warpgroup.fence()
                PV_RIGHT.multiply(weights_right, pv_right_b[None, None, None, 0, 0, 0], acc_right, True)
                warpgroup.commit_group()
                live = Boolean(False)
                while (live == False) & (turn < turns):
                    in_low_left, in_high_left, live_left = vote(low_left, high_left, cached)
                    in_low_right, in_high_right, live_right = vote(low_right, high_right, cached)
                    live = live_left | live_right
                    turn = turn + 1
                    low_left, high_left = read_ids(
                        indices, indices_stride, row, (first + turn) * 2, stop, lane
                    )
                    low_right, high_right = read_ids(
                        indices, indices_stride, row, (first + turn) * 2 + 1, stop, lane
                    )
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(near_right_empty)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(far_right_empty)
                it = it + 1
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(q_empty)
            share_sums_right(sums_right, red_s, worker)
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
            total_rows_right(sums_right, peak_right, factor_right, red_s, worker)
            from_cta = row * span // share
            parts = (row * span + (scalars.ceildiv(topk, TILE) + 1) // 2 - 1) // share - from_cta + 1
            if parts > 1:
                rescale_rows(acc_right, factor_right)
                leave_part_right(acc_right, row, cta - from_cta, o_partial, splits, worker)
                cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
            else:
                store_result_rows_right(
                    out, out_stride_t, out_stride_h, acc_right, factor_right, sums_right, sinks_right, row,
                    out_s_right, worker, lane
                )
            # Both sides have now read what the other side left for them.
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
            done = done + 1
        unit = (row + row_step) * span
    if splits > 1:
        unit = cta * share
        while unit < end:
            row = unit // span
            from_cta = row * span // share
            parts = (row * span + (scalars.ceildiv(topk, TILE) + 1) // 2 - 1) // share - from_cta + 1
            if (row < t) & (unit - row * span < (scalars.ceildiv(topk, TILE) + 1) // 2) & (parts > 1):
                cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
                merge_parts_side_1(
                    row, parts, cta - from_cta, parts, out, out_stride_t, out_stride_h, o_partial,
                    lse_partial, attn_sink, splits, worker
                )
            unit = row * span + span


@cute.jit
def gather(
    q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, has_lengths: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_gap: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32, t: Int32,
    q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32, q_pe_stride_h: Int32, n: Int32,
    ckv_stride: Int32, kpe_stride: Int32, topk: Int32, indices_stride: Int32, q_s: cute.Pointer,
    qpe_s: cute.Pointer, near_s_left: cute.Pointer, far_s_left: cute.Pointer, rope_s_left: cute.Pointer,
    near_s_right: cute.Pointer, far_s_right: cute.Pointer, rope_s_right: cute.Pointer, q_full: cute.Pointer,
    q_empty: cute.Pointer, near_left_full: cute.Pointer, near_left_empty: cute.Pointer,
    far_left_full: cute.Pointer, far_left_empty: cute.Pointer, near_right_full: cute.Pointer,
    near_right_empty: cute.Pointer, far_right_full: cute.Pointer, far_right_empty: cute.Pointer, cta: Int32,
    done: Int32, it: Int32, low_left: Int32, high_left: Int32, in_low_left: Int32, in_high_left: Int32,
    live_left: Boolean, low_right: Int32, high_right: Int32, in_low_right: Int32, in_high_right: Int32,
    live_right: Boolean, live: Boolean, thread: Int32, lane: Int32
):
    """Selected rows, a pair of tiles at a time."""
    worker = thread % 128
    unit = Int32(cta * share)
    end = cta * share + reach
    while unit < end:
        row = unit // span
        first = unit - row * span
        turns = cutlass.min(end - unit, (scalars.ceildiv(topk, TILE) + 1) // 2 - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * 2 * TILE, counted)
            low_left, high_left = read_ids(indices, indices_stride, row, first * 2, stop, lane)
            low_right, high_right = read_ids(indices, indices_stride, row, first * 2 + 1, stop, lane)
            if done == 0:
                cute.arch.mbarrier_wait(q_empty, (done & 1) ^ 1)
                copy_query_rows_q_s(q_s, q_nope, q_nope_stride_t, q_nope_stride_h, row, worker)
                copy_query_rows_qpe_s(qpe_s, q_pe, q_pe_stride_t, q_pe_stride_h, row, worker)
                cute.arch.cp_async_mbarrier_arrive_noinc(q_full)
            for turn in cutlass.range(turns, unroll=1):
                in_low_left, in_high_left, live_left = vote(low_left, high_left, cached)
                in_low_right, in_high_right, live_right = vote(low_right, high_right, cached)
                live = live_left | live_right
                now_low_left, now_high_left = find_rows(
                    low_left, high_left, cached, page_inverse, page_shift, page_gap
                )
                now_low_right, now_high_right = find_rows(
                    low_right, high_right, cached, page_inverse, page_shift, page_gap
                )
                low_left, high_left = read_ids(
                    indices, indices_stride, row, (first + (turn + 1)) * 2, stop, lane
                )
                low_right, high_right = read_ids(
                    indices, indices_stride, row, (first + (turn + 1)) * 2 + 1, stop, lane
                )
                if live:
                    cute.arch.mbarrier_wait(near_left_empty, (it & 1) ^ 1)
                    copy_rows(near_s_left, ckv, ckv_stride, now_low_left, now_high_left, n, worker)
                    cute.arch.cp_async_mbarrier_arrive_noinc(near_left_full)
                    cute.arch.mbarrier_wait(far_left_empty, (it & 1) ^ 1)
                    copy_rows_2(far_s_left, ckv, ckv_stride, now_low_left, now_high_left, n, worker)
                    copy_rows_3(rope_s_left, kpe, kpe_stride, now_low_left, now_high_left, n, worker)
                    cute.arch.cp_async_mbarrier_arrive_noinc(far_left_full)
                    cute.arch.mbarrier_wait(near_right_empty, (it & 1) ^ 1)
                    copy_rows_2(near_s_right, ckv, ckv_stride, now_low_right, now_high_right, n, worker)
                    cute.arch.cp_async_mbarrier_arrive_noinc(near_right_full)
                    cute.arch.mbarrier_wait(far_right_empty, (it & 1) ^ 1)
                    copy_rows(far_s_right, ckv, ckv_stride, now_low_right, now_high_right, n, worker)
                    copy_rows_3(rope_s_right, kpe, kpe_stride, now_low_right, now_high_right, n, worker)
                    cute.arch.cp_async_mbarrier_arrive_noinc(far_right_full)
                    it = it + 1
                if (done > 0) & (turn == 0):
                    cute.arch.mbarrier_wait(q_empty, (done & 1) ^ 1)
                    copy_query_rows_q_s(q_s, q_nope, q_nope_stride_t, q_nope_stride_h, row, worker)
                    copy_query_rows_qpe_s(qpe_s, q_pe, q_pe_stride_t, q_pe_stride_h, row, worker)
                    cute.arch.cp_async_mbarrier_arrive_noinc(q_full)
            done = done + 1
        unit = (row + row_step) * span


@cute.kernel
def sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl1_hb64(
    q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32,
    lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_gap: Int32, ctas: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32,
    t: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32, q_pe_stride_h: Int32,
    n: Int32, ckv_stride: Int32, kpe_stride: Int32, topk: Int32, indices_stride: Int32, out_stride_t: Int32,
    out_stride_h: Int32, lse_stride: Int32, splits: Int32, counters: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    qpe_s = shared.qpe_s.data_ptr()
    near_s_left = shared.near_s_left.data_ptr()
    far_s_left = shared.far_s_left.data_ptr()
    rope_s_left = shared.rope_s_left.data_ptr()
    out_s_left = shared.out_s_left.data_ptr()
    near_s_right = shared.near_s_right.data_ptr()
    far_s_right = shared.far_s_right.data_ptr()
    rope_s_right = shared.rope_s_right.data_ptr()
    out_s_right = shared.out_s_right.data_ptr()
    peak_s_left = shared.peak_s_left.data_ptr()
    peak_s_right = shared.peak_s_right.data_ptr()
    red_s = shared.red_s.data_ptr()
    q_full = shared.q_full.data_ptr()
    q_empty = shared.q_empty.data_ptr()
    near_left_full = shared.near_left_full.data_ptr()
    near_left_empty = shared.near_left_empty.data_ptr()
    far_left_full = shared.far_left_full.data_ptr()
    far_left_empty = shared.far_left_empty.data_ptr()
    p_left_full = shared.p_left_full.data_ptr()
    p_left_empty = shared.p_left_empty.data_ptr()
    near_right_full = shared.near_right_full.data_ptr()
    near_right_empty = shared.near_right_empty.data_ptr()
    far_right_full = shared.far_right_full.data_ptr()
    far_right_empty = shared.far_right_empty.data_ptr()
    p_right_full = shared.p_right_full.data_ptr()
    p_right_empty = shared.p_right_empty.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    cta, _, _ = cute.arch.block_idx()
    done = Int32(0)
    it = Int32(0)
    low_left = Int32(0)
    high_left = Int32(0)
    in_low_left = Int32(0)
    in_high_left = Int32(0)
    live_left = Boolean(False)
    low_right = Int32(0)
    high_right = Int32(0)
    in_low_right = Int32(0)
    in_high_right = Int32(0)
    live_right = Boolean(False)
    live = Boolean(False)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_full + i, 128)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_empty + i, 8)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(near_left_full + i, 128)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(near_left_empty + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(far_left_full + i, 128)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(far_left_empty + i, 8)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_left_full + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_left_empty + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(near_right_full + i, 128)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(near_right_empty + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(far_right_full + i, 128)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(far_right_empty + i, 8)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_right_full + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_right_empty + i, 4)
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    if warp < 4:
        cute.arch.setmaxregister_increase(208)
        left(
            indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale,
            empty_lse, has_lengths, cached, share, reach, span, row_step, t, topk, indices_stride,
            out_stride_t, out_stride_h, lse_stride, splits, q_s, qpe_s, near_s_left, far_s_left, rope_s_left,
            out_s_left, far_s_right, rope_s_right, peak_s_left, peak_s_right, red_s, q_full, q_empty,
            near_left_full, near_left_empty, far_left_full, far_left_empty, p_left_full, p_left_empty,
            far_right_full, far_right_empty, p_right_full, p_right_empty, cta, done, it, low_left, high_left,
            in_low_left, in_high_left, live_left, low_right, high_right, in_low_right, in_high_right,
            live_right, live, thread, lane
        )
    elif warp < 8:
        cute.arch.setmaxregister_increase(208)
        right(
            indices, topk_length, attn_sink, out, o_partial, lse_partial, sm_scale, has_lengths, cached,
            share, reach, span, row_step, t, topk, indices_stride, out_stride_t, out_stride_h, splits, q_s,
            qpe_s, far_s_left, rope_s_left, near_s_right, far_s_right, rope_s_right, out_s_right, peak_s_left,
            peak_s_right, red_s, q_full, q_empty, far_left_full, far_left_empty, p_left_full, p_left_empty,
            near_right_full, near_right_empty, far_right_full, far_right_empty, p_right_full, p_right_empty,
            cta, done, it, low_left, high_left, in_low_left, in_high_left, live_left, low_right, high_right,
            in_low_right, in_high_right, live_right, live, thread, lane
        )
    else:
        cute.arch.setmaxregister_decrease(88)
        gather(
            q_nope, q_pe, ckv, kpe, indices, topk_length, has_lengths, cached, page_inverse, page_shift,
            page_gap, share, reach, span, row_step, t, q_nope_stride_t, q_nope_stride_h, q_pe_stride_t,
            q_pe_stride_h, n, ckv_stride, kpe_stride, topk, indices_stride, q_s, qpe_s, near_s_left,
            far_s_left, rope_s_left, near_s_right, far_s_right, rope_s_right, q_full, q_empty, near_left_full,
            near_left_empty, far_left_full, far_left_empty, near_right_full, near_right_empty, far_right_full,
            far_right_empty, cta, done, it, low_left, high_left, in_low_left, in_high_left, live_left,
            low_right, high_right, in_low_right, in_high_right, live_right, live, thread, lane
        )


@cute.jit
def program(
    q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32,
    lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_gap: Int32, ctas: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32,
    t: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32, q_pe_stride_h: Int32,
    n: Int32, ckv_stride: Int32, kpe_stride: Int32, topk: Int32, indices_stride: Int32, out_stride_t: Int32,
    out_stride_h: Int32, lse_stride: Int32, splits: Int32, counters: Int32
):
    kernel = sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl1_hb64(
        q_nope, q_pe, ckv, kpe, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals,
        sm_scale, lse_scale, empty_lse, has_lengths, cached, page_inverse, page_shift, page_gap, ctas, share,
        reach, span, row_step, t, q_nope_stride_t, q_nope_stride_h, q_pe_stride_t, q_pe_stride_h, n,
        ckv_stride, kpe_stride, topk, indices_stride, out_stride_t, out_stride_h, lse_stride, splits,
        counters
    )
    kernel.launch(grid=(1, 1, 1), block=(384, 1, 1), cluster=(1, 1, 1))
