"""sparse_mla__cutedsl_sm90a__any_fp8_bt64_st2_cl1_hb64

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: heads=any, kv=fp8, tile=64, stages=2, cluster=1, block=64.

  gather_left      gather_right     left             right
  warps 8..11      warps 12..15     warps 0..3       warps 4..7
  |=============== q ==============>|                |   q_s qpe_s; cp_async -> wgmma
  |======================= q =======================>|   q_s qpe_s; cp_async -> wgmma
  |============ kv_left ===========>|                |   ckv_s_left kpe_s_left, ring of 2; threads -> wgmma
  |==================== kv_left ====================>|   ckv_s_left kpe_s_left, ring of 2; threads -> wgmma
  |                |                |                |   p_left, within the role: p_s_left peak_s_left; threads -> wgmma
  |                |                |==== p_left ===>|   p_s_left peak_s_left; threads -> wgmma
  |                |=== kv_right ==>|                |   ckv_s_right kpe_s_right, ring of 2; threads -> wgmma
  |                |============ kv_right ==========>|   ckv_s_right kpe_s_right, ring of 2; threads -> wgmma
  |                |                |<== p_right ====|   p_s_right peak_s_right; threads -> wgmma
  |                |                |                |   p_right, within the role: p_s_right peak_s_right; threads -> wgmma

roles
  left       threads 0..127, 176 registers  scores of the first half of each tile, and that half of the dims
  right      threads 128..255, 176 registers  scores of the second half of each tile, and that half of the dims
  gather_left threads 256..383, 80 registers  selected rows into the rings
  gather_right threads 384..511, 80 registers  selected rows into the rings
buffers
  q_s        64x512 bfloat16, shared, 128-byte swizzle
  qpe_s      64x64 bfloat16, shared, 128-byte swizzle
  red_s      2x64 float32, shared
  ckv_s_left 2 stages of 32x512 bfloat16, shared, 128-byte swizzle
  kpe_s_left 2 stages of 32x64 bfloat16, shared, 128-byte swizzle
  p_s_left   64x32 bfloat16, shared, 64-byte swizzle
  peak_s_left 64 float32, shared
  scores_left 64x32 float32, registers of left
  acc_left   64x256 float32, registers of left
  sums_left  128x2 float32, registers of left
  peak_left  64 float32, registers of left
  factor_left 64 float32, registers of left
  sinks_left 64 float32, registers of left
  words_left 128x41 uint32, registers of gather_left
  ckv_s_right 2 stages of 32x512 bfloat16, shared, 128-byte swizzle
  kpe_s_right 2 stages of 32x64 bfloat16, shared, 128-byte swizzle
  p_s_right  64x32 bfloat16, shared, 64-byte swizzle
  peak_s_right 64 float32, shared
  scores_right 64x32 float32, registers of right
  acc_right  64x256 float32, registers of right
  sums_right 128x2 float32, registers of right
  peak_right 64 float32, registers of right
  factor_right 64 float32, registers of right
  sinks_right 64 float32, registers of right
  words_right 128x41 uint32, registers of gather_right
pipelines
  q: gather_left (cp_async) ==[q_s qpe_s: 1-slot ring]==> left (wgmma), right (wgmma)
    full  x128: gather_left hardware arrives per thread
      left: wait full, fence.proxy.async
      right: wait full, fence.proxy.async
    empty x8: gather_left wait empty
      left: wgmma wait, one lane a warp, arrive empty
      right: wgmma wait, one lane a warp, arrive empty
  kv_left: gather_left (threads) ==[ckv_s_left kpe_s_left: 2-slot ring]==> left (wgmma), right (wgmma)
    full  x128: gather_left fence.proxy.async, arrive full
      left: wait full
      right: wait full
    empty x8: gather_left wait empty
      left: wgmma wait, one lane a warp, arrive empty
      right: wgmma wait, one lane a warp, arrive empty
  p_left: left (threads) ==[p_s_left peak_s_left: 1-slot ring]==> left (wgmma), right (wgmma)
    full  x4: left fence.proxy.async, one lane a warp, arrive full
      left: wait full
      right: wait full
    empty x8: left wait empty
      left: wgmma wait, one lane a warp, arrive empty
      right: wgmma wait, one lane a warp, arrive empty
  kv_right: gather_right (threads) ==[ckv_s_right kpe_s_right: 2-slot ring]==> left (wgmma), right (wgmma)
    full  x128: gather_right fence.proxy.async, arrive full
      left: wait full
      right: wait full
    empty x8: gather_right wait empty
      left: wgmma wait, one lane a warp, arrive empty
      right: wgmma wait, one lane a warp, arrive empty
  p_right: right (threads) ==[p_s_right peak_s_right: 1-slot ring]==> left (wgmma), right (wgmma)
    full  x4: right fence.proxy.async, one lane a warp, arrive full
      left: wait full
      right: wait full
    empty x8: right wait empty
      left: wgmma wait, one lane a warp, arrive empty
      right: wgmma wait, one lane a warp, arrive empty
  named barrier attend: left, right
totals: 512 threads, 230512 of 232448 bytes of shared memory, grid (ctas * ceildiv(heads, 64))
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from dsl_kernels.device.cutedsl import fragment, grid, scalars, warps, wgmma
from dsl_kernels.runtime.artifact import Launch, Operand

TILE = 64  # tokens per tile
STAGES = 2  # gathered tiles in flight
BLOCK = 64  # heads of a CTA; 0: all, at most 32; 64: 64 heads on M instead of N
HALF = 256
LATENT_DIM = 512
ROPE_DIM = 64
LOG2_E = 1.4426950408889634
RESCALE_LOG2 = 8
HALF_ROWS = 8
ATTEND_BARRIER = 1
LEFT_THREADS = 128
RIGHT_THREADS = 128
HEADS_OF_SIDE = 64

QK_NOPE_LEFT = wgmma.Product("bfloat16", BLOCK, TILE // 2, LATENT_DIM, "k", "k")
QK_PE_LEFT = wgmma.Product("bfloat16", BLOCK, TILE // 2, ROPE_DIM, "k", "k")
PV_LEFT = wgmma.Product("bfloat16", BLOCK, HALF, TILE // 2, "k", "mn", 128)
PV_OTHER_LEFT = wgmma.Product("bfloat16", BLOCK, HALF, TILE // 2, "k", "mn", 128)
QK_NOPE_RIGHT = wgmma.Product("bfloat16", BLOCK, TILE // 2, LATENT_DIM, "k", "k")
QK_PE_RIGHT = wgmma.Product("bfloat16", BLOCK, TILE // 2, ROPE_DIM, "k", "k")
PV_RIGHT = wgmma.Product("bfloat16", BLOCK, HALF, TILE // 2, "k", "mn", 128)
PV_OTHER_RIGHT = wgmma.Product("bfloat16", BLOCK, HALF, TILE // 2, "k", "mn", 128)

LAUNCH = Launch(
    operands=(
        Operand(
            "q_nope", "tensor", "bfloat16", ("t", "heads", "512"),
            strides=("q_nope_stride_t", "q_nope_stride_h", "1")
        ),
        Operand(
            "q_pe", "tensor", "bfloat16", ("t", "heads", "64"),
            strides=("q_pe_stride_t", "q_pe_stride_h", "1")
        ),
        Operand("kv_cache", "tensor", "uint8", ("n", "656"), strides=("kv_cache_stride", "1")),
        Operand("indices", "tensor", "int32", ("t", "topk"), strides=("indices_stride", "1")),
        Operand("topk_length", "tensor", "int32", ("t",)),
        Operand("attn_sink", "tensor", "float32", ("heads",)),
        Operand(
            "out", "tensor", "bfloat16", ("t", "heads", "512"), strides=("out_stride_t", "out_stride_h", "1"),
            written=True
        ),
        Operand("lse", "tensor", "float32", ("t", "heads"), strides=("lse_stride", "1"), written=True),
        Operand("o_partial", "tensor", "float32", ("t", "splits", "padded_heads", "512"), written=True),
        Operand("lse_partial", "tensor", "float32", ("t", "splits", "padded_heads"), written=True),
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
    grid=("ctas * ceildiv(heads, 64)", "1", "1"),
    block=512,
    cluster=(1, 1, 1),
    resident="splits - 1",
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, BLOCK * LATENT_DIM], 1024]
    qpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, BLOCK * ROPE_DIM], 1024]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, 2 * BLOCK], 128]
    ckv_s_left: cute.struct.Align[
        cute.struct.MemRange[cutlass.BFloat16, STAGES * (TILE // 2) * LATENT_DIM], 1024
    ]
    kpe_s_left: cute.struct.Align[
        cute.struct.MemRange[cutlass.BFloat16, STAGES * (TILE // 2) * ROPE_DIM], 1024
    ]
    p_s_left: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, BLOCK * (TILE // 2)], 1024]
    peak_s_left: cute.struct.Align[cute.struct.MemRange[Float32, BLOCK], 128]
    ckv_s_right: cute.struct.Align[
        cute.struct.MemRange[cutlass.BFloat16, STAGES * (TILE // 2) * LATENT_DIM], 1024
    ]
    kpe_s_right: cute.struct.Align[
        cute.struct.MemRange[cutlass.BFloat16, STAGES * (TILE // 2) * ROPE_DIM], 1024
    ]
    p_s_right: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, BLOCK * (TILE // 2)], 1024]
    peak_s_right: cute.struct.Align[cute.struct.MemRange[Float32, BLOCK], 128]
    q_full: cute.struct.MemRange[Int64, 1]
    q_empty: cute.struct.MemRange[Int64, 1]
    kv_left_full: cute.struct.MemRange[Int64, STAGES]
    kv_left_empty: cute.struct.MemRange[Int64, STAGES]
    p_left_full: cute.struct.MemRange[Int64, 1]
    p_left_empty: cute.struct.MemRange[Int64, 1]
    kv_right_full: cute.struct.MemRange[Int64, STAGES]
    kv_right_empty: cute.struct.MemRange[Int64, STAGES]
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
    for i in cutlass.range_constexpr(BLOCK * (TILE // 2) // 128):
        scores[i] = scores[i] * scale
    if low & high != -1:
        bits = low >> thread % 4 * 2
        for i in cutlass.range_constexpr(16):
            scores[i] = cutlass.select_(bits >> (i // 4 * 8 + i % 2) & 1 != 0, scores[i], -Float32.inf)


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
    for j in cutlass.range_constexpr(BLOCK * (TILE // 2) // 128 // 4):
        scores[j * 4] = warps.exp2(scores[j * 4] - base)
        scores[j * 4 + 1] = warps.exp2(scores[j * 4 + 1] - base)
    sums[0] = sums[0] + fragment.row_sum(scores, 0)
    # The maximum is -inf if no token so far is valid.
    base = cutlass.select_(peak[1] == -Float32.inf, 0.0, peak[1])
    for j in cutlass.range_constexpr(BLOCK * (TILE // 2) // 128 // 4):
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
def store_weights(target, scores, thread):
    """Write P as bf16 in the layout that its product reads. If there are eight heads, they are the rows."""
    for pair in cutlass.range_constexpr(BLOCK * (TILE // 2) // 128 // 8):
        warps.store_matrices(
            warps.piece(
                target, 8, thread // 32 * 16 + thread % 32 % 16, pair * 16 + thread % 32 // 16 * 8,
                (BLOCK, TILE // 2), 64
            ).iterator,
            scores, pair * 8, 4
        )


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
def load_row_sinks(sinks, attn_sink, head0, heads, thread):
    """Read the sink logits of a thread's heads, long before they are needed."""
    sinks[0] = attn_sink[cutlass.min(head0 + (thread // 32 * 16 + thread % 32 // 4), heads - 1)]
    sinks[1] = attn_sink[cutlass.min(head0 + (thread // 32 * 16 + thread % 32 // 4) + HALF_ROWS, heads - 1)]


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
def leave_part_left(acc, lses, row, head0, split, o_partial, lse_partial, splits, padded, thread):
    """Write a split's normalised part of O, in the order of threads, and its lses, for `merge_parts`."""
    four = cute.make_rmem_tensor(4, Float32)
    room = o_partial + Int64((row * splits + split) * padded + head0) * LATENT_DIM + thread * 4
    for u in cutlass.range_constexpr(BLOCK * HALF // 128 // 4):
        four[0] = acc[u * 4]
        four[1] = acc[u * 4 + 1]
        four[2] = acc[u * 4 + 2]
        four[3] = acc[u * 4 + 3]
        cute.autovec_copy(four, warps.group(room, 4, u * 128))
    if thread % 4 == 0:
        of_split = lse_partial + Int64(row * splits + split) * padded + head0
        for column in cutlass.range_constexpr(2):
            of_split[thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * column] = lses[column]


@cute.jit
def store_result_rows_left(
    out, out_stride_0, out_stride_1, lse, lse_stride_0, acc, factor, lses, sinks, row, head0, scratch,
    lse_scale, empty_lse, heads, thread, lane
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
    for block in cutlass.range_constexpr(1):
        # A warp reads back only the rows that it wrote.
        warps.sync_warp()
        for pair in cutlass.range_constexpr(HALF // 8 // 2):
            eight[0] = acc[(block * (HALF // 8 // 2) + pair) * 8] * scale_0
            eight[1] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 1] * scale_0
            eight[2] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 2] * scale_1
            eight[3] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 3] * scale_1
            eight[4] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 4] * scale_0
            eight[5] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 5] * scale_0
            eight[6] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 6] * scale_1
            eight[7] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 7] * scale_1
            warps.store_matrices(
                warps.piece(
                    scratch, 8, own + lane % 16, pair * 16 + lane // 16 * 8, (BLOCK, LATENT_DIM), 128
                ).iterator,
                eight, 0, 4
            )
        warps.sync_warp()
        for i in cutlass.range_constexpr(HALF // 8 // 2):
            head = own + i + lane // (HALF // 8)
            cute.autovec_copy(
                warps.piece(scratch, 8, head, lane % (HALF // 8) * 8, (BLOCK, LATENT_DIM), 128), held
            )
            to = out + Int64(row) * out_stride_0 + Int64(head0 + head) * out_stride_1 + block * HALF
            if head0 + head < heads:
                cute.autovec_copy(held, warps.group(to, 8, lane % (HALF // 8)))
    joined[0] = cutlass.select_(lses[0] > -Float32.inf, lses[0] * lse_scale, empty_lse)
    joined[1] = cutlass.select_(lses[1] > -Float32.inf, lses[1] * lse_scale, empty_lse)
    of_heads = lse + Int64(row) * lse_stride_0 + head0
    if thread % 4 == 0:
        mine = of_heads + (thread // 32 * 16 + thread % 32 // 4)
        if thread // 32 * 16 + thread % 32 // 4 < heads - head0:
            mine[0] = joined[0]
        if thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS < heads - head0:
            mine[HALF_ROWS] = joined[1]


@cute.jit
def merge_parts_side_0(
    row, head0, parts, share, shares, out, out_stride_0, out_stride_1, lse, lse_stride_0, o_partial,
    lse_partial, attn_sink, splits, padded, lse_scale, empty_lse, heads, thread
):
    """Join share `share` of `shares` of the dims from all parts, scale each head for its sink, and store
    it.

    It joins `few` pieces at a time. Whoever has the first piece also stores the lse. A row without ids
    gives 0 and `empty_lse`.
    """
    sinks = cute.make_rmem_tensor(2, Float32)
    end = (share + 1) * 32 // shares
    for column in cutlass.range_constexpr(2):
        sinks[column] = attn_sink[
            cutlass.min(head0 + (thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * column), heads - 1)
        ]
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
                lses = lse_partial + Int64(row * splits + cutlass.min(first + p, parts - 1)) * padded + head0
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
                        (row * splits + cutlass.min(first + p, parts - 1)) * padded + head0
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
            if (piece == 0) & (thread % 4 == 0) & (
                head0 + (thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * column) < heads
            ):
                of_row = lse + Int64(row) * lse_stride_0
                of_row[head0 + (thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * column)] = cutlass.select_(
                    joined > -Float32.inf, joined * lse_scale, empty_lse
                )
        for v in cutlass.range_constexpr(4):
            if piece + v < end:
                for i in cutlass.range_constexpr(0, 4, 2):
                    to = out + Int64(row) * out_stride_0 + Int64(
                        head0 + (thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * (i // 2))
                    ) * out_stride_1 + ((piece + v) * 8 + thread % 4 * 2 + i % 2)
                    if head0 + (thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * (i // 2)) < heads:
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
def leave_part_right(acc, row, head0, split, o_partial, splits, padded, thread):
    """Write a split's normalised part of O, in the order of threads, and its lses, for `merge_parts`."""
    four = cute.make_rmem_tensor(4, Float32)
    room = o_partial + Int64((row * splits + split) * padded + head0) * LATENT_DIM + (thread + 4096) * 4
    for u in cutlass.range_constexpr(BLOCK * HALF // 128 // 4):
        four[0] = acc[u * 4]
        four[1] = acc[u * 4 + 1]
        four[2] = acc[u * 4 + 2]
        four[3] = acc[u * 4 + 3]
        cute.autovec_copy(four, warps.group(room, 4, u * 128))


@cute.jit
def store_result_rows_right(
    out, out_stride_0, out_stride_1, acc, factor, lses, sinks, row, head0, scratch, heads, thread, lane
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
    for block in cutlass.range_constexpr(1):
        # A warp reads back only the rows that it wrote.
        warps.sync_warp()
        for pair in cutlass.range_constexpr(HALF // 8 // 2):
            eight[0] = acc[(block * (HALF // 8 // 2) + pair) * 8] * scale_0
            eight[1] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 1] * scale_0
            eight[2] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 2] * scale_1
            eight[3] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 3] * scale_1
            eight[4] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 4] * scale_0
            eight[5] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 5] * scale_0
            eight[6] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 6] * scale_1
            eight[7] = acc[(block * (HALF // 8 // 2) + pair) * 8 + 7] * scale_1
            warps.store_matrices(
                warps.piece(
                    scratch, 8, own + lane % 16, pair * 16 + lane // 16 * 8, (BLOCK, LATENT_DIM), 128
                ).iterator,
                eight, 0, 4
            )
        warps.sync_warp()
        for i in cutlass.range_constexpr(HALF // 8 // 2):
            head = own + i + lane // (HALF // 8)
            cute.autovec_copy(
                warps.piece(scratch, 8, head, lane % (HALF // 8) * 8, (BLOCK, LATENT_DIM), 128), held
            )
            to = out + Int64(row) * out_stride_0 + Int64(head0 + head) * out_stride_1 + (256 + block * HALF)
            if head0 + head < heads:
                cute.autovec_copy(held, warps.group(to, 8, lane % (HALF // 8)))


@cute.jit
def merge_parts_side_1(
    row, head0, parts, share, shares, out, out_stride_0, out_stride_1, o_partial, lse_partial, attn_sink,
    splits, padded, heads, thread
):
    """Join share `share` of `shares` of the dims from all parts, scale each head for its sink, and store
    it.

    It joins `few` pieces at a time. Whoever has the first piece also stores the lse. A row without ids
    gives 0 and `empty_lse`.
    """
    sinks = cute.make_rmem_tensor(2, Float32)
    end = (share + 1) * 32 // shares
    for column in cutlass.range_constexpr(2):
        sinks[column] = attn_sink[
            cutlass.min(head0 + (thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * column), heads - 1)
        ]
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
                lses = lse_partial + Int64(row * splits + cutlass.min(first + p, parts - 1)) * padded + head0
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
                        (row * splits + cutlass.min(first + p, parts - 1)) * padded + head0
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
                        head0 + (thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * (i // 2))
                    ) * out_stride_1 + ((32 + (piece + v)) * 8 + thread % 4 * 2 + i % 2)
                    if head0 + (thread // 32 * 16 + thread % 32 // 4 + HALF_ROWS * (i // 2)) < heads:
                        warps.store_pair(
                            to, merged[v * 4 + i] * total[i // 2], merged[v * 4 + i + 1] * total[i // 2]
                        )


@cute.jit
def find_row(id, cached, page_inverse, page_shift, page_gap):
    """The row of the cache that an id names, if it names a token. `find_rows` says what the branch is for."""
    row = id
    if page_gap != 0:
        page = warps.mul_hi(
            id.to(cutlass.Uint32) << 2, page_inverse.to(cutlass.Uint32)
        ).to(Int32) >> page_shift
        row = cutlass.select_((id >= 0) & (id < cached), id + page * page_gap, -1)
    return row


@cute.jit
def copy_query_rows_q_s(target, q, q_stride_0, q_stride_1, row, head0, heads, thread):
    """Start the copies of a block of 64 heads of one query."""
    for i in cutlass.range(HEADS_OF_SIDE * (LATENT_DIM // 8) // 128, unroll=8):
        of_head = q + Int64(row) * q_stride_0 + Int64(
            head0 + (thread // (LATENT_DIM // 8) + i * (128 // (LATENT_DIM // 8)))
        ) * q_stride_1
        warps.copy16(
            warps.piece(
                target, 8, thread // (LATENT_DIM // 8) + i * (128 // (LATENT_DIM // 8)),
                thread % (LATENT_DIM // 8) * 8, (BLOCK, LATENT_DIM), 128
            ).iterator,
            of_head + thread % (LATENT_DIM // 8) * 8,
            head0 + (thread // (LATENT_DIM // 8) + i * (128 // (LATENT_DIM // 8))) < heads
        )


@cute.jit
def copy_query_rows_qpe_s(target, q, q_stride_0, q_stride_1, row, head0, heads, thread):
    """Start the copies of a block of 64 heads of one query."""
    for i in cutlass.range(HEADS_OF_SIDE * (ROPE_DIM // 8) // 128, unroll=8):
        of_head = q + Int64(row) * q_stride_0 + Int64(
            head0 + (thread // (ROPE_DIM // 8) + i * (128 // (ROPE_DIM // 8)))
        ) * q_stride_1
        warps.copy16(
            warps.piece(
                target, 8, thread // (ROPE_DIM // 8) + i * (128 // (ROPE_DIM // 8)),
                thread % (ROPE_DIM // 8) * 8, (BLOCK, ROPE_DIM), 128
            ).iterator,
            of_head + thread % (ROPE_DIM // 8) * 8,
            head0 + (thread // (ROPE_DIM // 8) + i * (128 // (ROPE_DIM // 8))) < heads
        )


@cute.jit
def load_half(words, kv_cache, kv_cache_stride_0, ids, n, thread):
    """Read this CTA's share of half a tile into registers."""
    row = thread >> 2
    token = warps.shuffle(ids, row)
    inside = (token >= 0) & (token < n)
    bytes = kv_cache + Int64(token) * kv_cache_stride_0 + (thread & 3) * 16
    rope = kv_cache + Int64(token) * kv_cache_stride_0 + (thread & 3) * 16
    warps.load_vector(words, 32, 4, rope + 528, inside)
    warps.sync_warp()
    warps.load_vector(words, 36, 4, rope + 592, inside)
    warps.sync_warp()
    warps.load_vector(words, 0, 4, bytes, inside)
    warps.sync_warp()
    warps.load_vector(words, 4, 4, bytes + 64, inside)
    warps.sync_warp()
    warps.load_vector(words, 8, 4, bytes + 128, inside)
    warps.sync_warp()
    warps.load_vector(words, 12, 4, bytes + 192, inside)
    warps.sync_warp()
    warps.load_vector(words, 16, 4, bytes + 256, inside)
    warps.sync_warp()
    warps.load_vector(words, 20, 4, bytes + 320, inside)
    warps.sync_warp()
    warps.load_vector(words, 24, 4, bytes + 384, inside)
    warps.sync_warp()
    warps.load_vector(words, 28, 4, bytes + 448, inside)
    warps.sync_warp()
    # After all uses of the previous scale, so this one can take its register.
    warps.load_vector(words, 40, 1, bytes + (512 + ((thread & 3 & 3) * 4 - (thread & 3) * 16)), inside)


@cute.jit
def renew_half(words, ckv, kpe, kv_cache, kv_cache_stride_0, ids, n, thread):
    """Write this CTA's share of the half tile as bf16 rows. As words become free, read the share of `ids`.

    Then send the written rows to the other CTA.
    """
    scale_0 = warps.shuffle(words[40], thread & 28)
    scale_1 = warps.shuffle(words[40], (thread & 28) + 1)
    scale_2 = warps.shuffle(words[40], (thread & 28) + 2)
    scale_3 = warps.shuffle(words[40], (thread & 28) + 3)
    row = thread >> 2
    token = warps.shuffle(ids, row)
    inside = (token >= 0) & (token < n)
    bytes = kv_cache + Int64(token) * kv_cache_stride_0 + (thread & 3) * 16
    rope = kv_cache + Int64(token) * kv_cache_stride_0 + (thread & 3) * 16
    warps.store_vector(
        words, 32, warps.piece(kpe, 8, row, (thread & 3) * 8, (TILE // 2, ROPE_DIM), 128).iterator
    )
    warps.load_vector(words, 32, 4, rope + 528, inside)
    warps.sync_warp()
    warps.store_vector(
        words, 36, warps.piece(kpe, 8, row, 32 + (thread & 3) * 8, (TILE // 2, ROPE_DIM), 128).iterator
    )
    warps.load_vector(words, 36, 4, rope + 592, inside)
    warps.sync_warp()
    warps.store_fp8(
        warps.piece(ckv, 8, row, (thread & 3) * 16, (TILE // 2, LATENT_DIM), 128).iterator,
        warps.piece(ckv, 8, row, (thread & 3) * 16 + 8, (TILE // 2, LATENT_DIM), 128).iterator, words, 0,
        scale_0
    )
    warps.load_vector(words, 0, 4, bytes, inside)
    warps.sync_warp()
    warps.store_fp8(
        warps.piece(ckv, 8, row, 64 + (thread & 3) * 16, (TILE // 2, LATENT_DIM), 128).iterator,
        warps.piece(ckv, 8, row, 64 + (thread & 3) * 16 + 8, (TILE // 2, LATENT_DIM), 128).iterator, words, 4,
        scale_0
    )
    warps.load_vector(words, 4, 4, bytes + 64, inside)
    warps.sync_warp()
    warps.store_fp8(
        warps.piece(ckv, 8, row, 128 + (thread & 3) * 16, (TILE // 2, LATENT_DIM), 128).iterator,
        warps.piece(ckv, 8, row, 128 + (thread & 3) * 16 + 8, (TILE // 2, LATENT_DIM), 128).iterator, words,
        8, scale_1
    )
    warps.load_vector(words, 8, 4, bytes + 128, inside)
    warps.sync_warp()
    warps.store_fp8(
        warps.piece(ckv, 8, row, 192 + (thread & 3) * 16, (TILE // 2, LATENT_DIM), 128).iterator,
        warps.piece(ckv, 8, row, 192 + (thread & 3) * 16 + 8, (TILE // 2, LATENT_DIM), 128).iterator, words,
        12, scale_1
    )
    warps.load_vector(words, 12, 4, bytes + 192, inside)
    warps.sync_warp()
    warps.store_fp8(
        warps.piece(ckv, 8, row, 256 + (thread & 3) * 16, (TILE // 2, LATENT_DIM), 128).iterator,
        warps.piece(ckv, 8, row, 256 + (thread & 3) * 16 + 8, (TILE // 2, LATENT_DIM), 128).iterator, words,
        16, scale_2
    )
    warps.load_vector(words, 16, 4, bytes + 256, inside)
    warps.sync_warp()
    warps.store_fp8(
        warps.piece(ckv, 8, row, 320 + (thread & 3) * 16, (TILE // 2, LATENT_DIM), 128).iterator,
        warps.piece(ckv, 8, row, 320 + (thread & 3) * 16 + 8, (TILE // 2, LATENT_DIM), 128).iterator, words,
        20, scale_2
    )
    warps.load_vector(words, 20, 4, bytes + 320, inside)
    warps.sync_warp()
    warps.store_fp8(
        warps.piece(ckv, 8, row, 384 + (thread & 3) * 16, (TILE // 2, LATENT_DIM), 128).iterator,
        warps.piece(ckv, 8, row, 384 + (thread & 3) * 16 + 8, (TILE // 2, LATENT_DIM), 128).iterator, words,
        24, scale_3
    )
    warps.load_vector(words, 24, 4, bytes + 384, inside)
    warps.sync_warp()
    warps.store_fp8(
        warps.piece(ckv, 8, row, 448 + (thread & 3) * 16, (TILE // 2, LATENT_DIM), 128).iterator,
        warps.piece(ckv, 8, row, 448 + (thread & 3) * 16 + 8, (TILE // 2, LATENT_DIM), 128).iterator, words,
        28, scale_3
    )
    warps.load_vector(words, 28, 4, bytes + 448, inside)
    warps.sync_warp()
    # After all uses of the previous scale, so this one can take its register.
    warps.load_vector(words, 40, 1, bytes + (512 + ((thread & 3 & 3) * 4 - (thread & 3) * 16)), inside)


@cute.jit
def fetch_half(kv_cache, kv_cache_stride_0, ids, n, thread):
    """Prefetch this CTA's share of the tokens of half a tile into the L2, a line at a time."""
    token = warps.shuffle(ids, thread // 4)
    inside = (token >= 0) & (token < n)
    of_token = kv_cache + Int64(token) * kv_cache_stride_0 + thread % 4 * 128
    warps.prefetch(of_token, inside & (thread % 4 * 128 < 656))
    warps.prefetch(of_token + 512, inside & (thread % 4 * 128 + 512 < 656))


@cute.jit
def left(
    indices: cute.Pointer, topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer,
    lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer,
    sm_scale: Float32, lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32,
    share: Int32, reach: Int32, span: Int32, row_step: Int32, t: Int32, heads: Int32, topk: Int32,
    indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32, lse_stride: Int32, splits: Int32,
    q_s: cute.Pointer, qpe_s: cute.Pointer, red_s: cute.Pointer, ckv_s_left: cute.Pointer,
    kpe_s_left: cute.Pointer, p_s_left: cute.Pointer, peak_s_left: cute.Pointer, ckv_s_right: cute.Pointer,
    p_s_right: cute.Pointer, peak_s_right: cute.Pointer, q_full: cute.Pointer, q_empty: cute.Pointer,
    kv_left_full: cute.Pointer, kv_left_empty: cute.Pointer, p_left_full: cute.Pointer,
    p_left_empty: cute.Pointer, kv_right_full: cute.Pointer, kv_right_empty: cute.Pointer,
    p_right_full: cute.Pointer, p_right_empty: cute.Pointer, cta: Int32, blocks: Int32, head0: Int32,
    done: Int32, it: Int32, low: Int32, high: Int32, in_low: Int32, in_high: Int32, live: Boolean,
    thread: Int32, lane: Int32
):
    """Scores of the first half of each tile, and that half of the dims."""
    qk_nope_left_a = QK_NOPE_LEFT.operand_a(q_s, BLOCK, LATENT_DIM, 1, 128)
    qk_nope_left_b = QK_NOPE_LEFT.operand_b(ckv_s_left, TILE // 2, LATENT_DIM, STAGES, 128)
    qk_pe_left_a = QK_PE_LEFT.operand_a(qpe_s, BLOCK, ROPE_DIM, 1, 128)
    qk_pe_left_b = QK_PE_LEFT.operand_b(kpe_s_left, TILE // 2, ROPE_DIM, STAGES, 128)
    pv_left_a = PV_LEFT.operand_a(p_s_left, BLOCK, TILE // 2, 1, 64)
    pv_left_b = PV_LEFT.operand_b(ckv_s_left, TILE // 2, LATENT_DIM, STAGES, 128)
    pv_other_left_a = PV_OTHER_LEFT.operand_a(p_s_right, BLOCK, TILE // 2, 1, 64)
    pv_other_left_b = PV_OTHER_LEFT.operand_b(ckv_s_right, TILE // 2, LATENT_DIM, STAGES, 128)
    scores_left = QK_NOPE_LEFT.accumulators()
    acc_left = PV_LEFT.accumulators()
    sums_left = cute.make_rmem_tensor(2, Float32)
    peak_left = cute.make_rmem_tensor(2, Float32)
    factor_left = cute.make_rmem_tensor(2, Float32)
    sinks_left = cute.make_rmem_tensor(2, Float32)
    worker = thread
    turn = Int32(0)
    blocks = scalars.ceildiv(heads, BLOCK)
    unit = Int32(cta // blocks * share)
    blocks = scalars.ceildiv(heads, BLOCK)
    end = cta // blocks * share + reach
    while unit < end:
        row = unit // span
        turn = unit - row * span
        turns = cutlass.min(end - row * span, scalars.ceildiv(topk, TILE))
        if (row < t) & (turn < turns):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min(turns * TILE, counted)
            low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
            acc_left.fill(0.0)
            sums_left.fill(0.0)
            peak_left.fill(-Float32.inf)
            live = Boolean(False)
            while (live == False) & (turn < turns):
                in_low, in_high, live = vote(low, high, cached)
                turn = turn + 1
                low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
            cute.arch.mbarrier_wait(q_full, done & 1)
            cute.arch.fence_proxy("async.shared", space="cta")
            begin = it
            if live:
                cute.arch.mbarrier_wait(kv_left_full + it % STAGES, (it // STAGES) & 1)
                # S = Q K^T
                warpgroup.fence()
                QK_NOPE_LEFT.multiply(
                    qk_nope_left_a[None, None, None, 0, 0, 0],
                    qk_nope_left_b[None, None, None, it % STAGES, 0, 0], scores_left, False
                )
                QK_PE_LEFT.multiply(
                    qk_pe_left_a[None, None, None, 0, 0, 0],
                    qk_pe_left_b[None, None, None, it % STAGES, 0, 0], scores_left, True
                )
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                mask_columns(scores_left, in_low, in_low, sm_scale, worker)
                softmax_rows(scores_left, sums_left, peak_left, factor_left)
                cute.arch.mbarrier_wait(p_left_empty, (it & 1) ^ 1)
                share_peak(peak_s_left, peak_left, worker)
                store_weights(p_s_left, scores_left, worker)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_left_full)
                rescale_rows(acc_left, factor_left)
                cute.arch.mbarrier_wait(p_left_full, it & 1)
                # O += P K, of its own tokens
                warpgroup.fence()
                PV_LEFT.multiply(
                    pv_left_a[None, None, None, 0, 0, 0], pv_left_b[None, None, None, it % STAGES, 0, 0],
                    acc_left, True
                )
                warpgroup.commit_group()
                live = Boolean(False)
                while (live == False) & (turn < turns):
                    in_low, in_high, live = vote(low, high, cached)
                    turn = turn + 1
                    low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_left_empty)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(kv_left_empty + it % STAGES)
                it = it + 1
            while live:
                cute.arch.mbarrier_wait(kv_left_full + it % STAGES, (it // STAGES) & 1)
                # S = Q K^T
                warpgroup.fence()
                QK_NOPE_LEFT.multiply(
                    qk_nope_left_a[None, None, None, 0, 0, 0],
                    qk_nope_left_b[None, None, None, it % STAGES, 0, 0], scores_left, False
                )
                QK_PE_LEFT.multiply(
                    qk_pe_left_a[None, None, None, 0, 0, 0],
                    qk_pe_left_b[None, None, None, it % STAGES, 0, 0], scores_left, True
                )
                warpgroup.commit_group()
                cute.arch.mbarrier_wait(kv_right_full + (it - 1) % STAGES, ((it - 1) // STAGES) & 1)
                cute.arch.mbarrier_wait(p_right_full, (it - 1) & 1)
                follow_peak(peak_left, sums_left, acc_left, peak_s_right, worker)
                # O += P K, of the other's tokens
                warpgroup.fence()
                PV_OTHER_LEFT.multiply(
                    pv_other_left_a[None, None, None, 0, 0, 0],
                    pv_other_left_b[None, None, None, (it - 1) % STAGES, 0, 0], acc_left, True
                )
                warpgroup.commit_group()
                warpgroup.wait_group(1)
                mask_columns(scores_left, in_low, in_low, sm_scale, worker)
                softmax_rows(scores_left, sums_left, peak_left, factor_left)
                cute.arch.mbarrier_wait(p_left_empty, (it & 1) ^ 1)
                share_peak(peak_s_left, peak_left, worker)
                store_weights(p_s_left, scores_left, worker)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_left_full)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_right_empty)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(kv_right_empty + (it - 1) % STAGES)
                rescale_rows(acc_left, factor_left)
                cute.arch.mbarrier_wait(p_left_full, it & 1)
                # O += P K, of its own tokens
                warpgroup.fence()
                PV_LEFT.multiply(
                    pv_left_a[None, None, None, 0, 0, 0], pv_left_b[None, None, None, it % STAGES, 0, 0],
                    acc_left, True
                )
                warpgroup.commit_group()
                live = Boolean(False)
                while (live == False) & (turn < turns):
                    in_low, in_high, live = vote(low, high, cached)
                    turn = turn + 1
                    low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_left_empty)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(kv_left_empty + it % STAGES)
                it = it + 1
            if it > begin:
                cute.arch.mbarrier_wait(kv_right_full + (it - 1) % STAGES, ((it - 1) // STAGES) & 1)
                cute.arch.mbarrier_wait(p_right_full, (it - 1) & 1)
                follow_peak(peak_left, sums_left, acc_left, peak_s_right, worker)
                # O += P K, of the other's tokens
                warpgroup.fence()
                PV_OTHER_LEFT.multiply(
                    pv_other_left_a[None, None, None, 0, 0, 0],
                    pv_other_left_b[None, None, None, (it - 1) % STAGES, 0, 0], acc_left, True
                )
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_right_empty)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(kv_right_empty + (it - 1) % STAGES)
            # Not earlier: ptxas would spill the sinks if they lived over the whole query.
            load_row_sinks(sinks_left, attn_sink, head0, heads, worker)
            share_sums_left(sums_left, red_s, worker)
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
            total_rows_left(sums_left, peak_left, factor_left, red_s, worker)
            blocks = scalars.ceildiv(heads, BLOCK)
            from_cta = row * span // share
            parts = (row * span + scalars.ceildiv(topk, TILE) - 1) // share - from_cta + 1
            if parts > 1:
                rescale_rows(acc_left, factor_left)
                leave_part_left(
                    acc_left, sums_left, row, head0, cta // blocks - from_cta, o_partial, lse_partial, splits,
                    scalars.ceildiv(heads, BLOCK) * BLOCK, worker
                )
                cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
                grid.count_in(arrivals + row * scalars.ceildiv(heads, BLOCK) + cta % blocks, worker)
            else:
                store_result_rows_left(
                    out, out_stride_t, out_stride_h, lse, lse_stride, acc_left, factor_left, sums_left,
                    sinks_left, row, head0, q_s, lse_scale, empty_lse, heads, worker, lane
                )
            # Both sides have now read what the other side left for them.
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(q_empty)
            done = done + 1
        unit = (row + row_step) * span
    if splits > 1:
        blocks = scalars.ceildiv(heads, BLOCK)
        unit = cta // blocks * share
        while unit < end:
            row = unit // span
            blocks = scalars.ceildiv(heads, BLOCK)
            from_cta = row * span // share
            parts = (row * span + scalars.ceildiv(topk, TILE) - 1) // share - from_cta + 1
            if (row < t) & (unit - row * span < scalars.ceildiv(topk, TILE)) & (parts > 1):
                grid.await_count(arrivals + row * scalars.ceildiv(heads, BLOCK) + cta % blocks, parts, worker)
                cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
                merge_parts_side_0(
                    row, head0, parts, cta // blocks - from_cta, parts, out, out_stride_t, out_stride_h, lse,
                    lse_stride, o_partial, lse_partial, attn_sink, splits,
                    scalars.ceildiv(heads, BLOCK) * BLOCK, lse_scale, empty_lse, heads, worker
                )
                grid.count_out(arrivals + row * scalars.ceildiv(heads, BLOCK) + cta % blocks, parts, worker)
            unit = row * span + span


@cute.jit
def right(
    indices: cute.Pointer, topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, sm_scale: Float32, has_lengths: Int32, cached: Int32,
    share: Int32, reach: Int32, span: Int32, row_step: Int32, t: Int32, heads: Int32, topk: Int32,
    indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32, splits: Int32, q_s: cute.Pointer,
    qpe_s: cute.Pointer, red_s: cute.Pointer, ckv_s_left: cute.Pointer, p_s_left: cute.Pointer,
    peak_s_left: cute.Pointer, ckv_s_right: cute.Pointer, kpe_s_right: cute.Pointer, p_s_right: cute.Pointer,
    peak_s_right: cute.Pointer, q_full: cute.Pointer, q_empty: cute.Pointer, kv_left_full: cute.Pointer,
    kv_left_empty: cute.Pointer, p_left_full: cute.Pointer, p_left_empty: cute.Pointer,
    kv_right_full: cute.Pointer, kv_right_empty: cute.Pointer, p_right_full: cute.Pointer,
    p_right_empty: cute.Pointer, cta: Int32, blocks: Int32, head0: Int32, done: Int32, it: Int32, low: Int32,
    high: Int32, in_low: Int32, in_high: Int32, live: Boolean, thread: Int32, lane: Int32
):
    """Scores of the second half of each tile, and that half of the dims."""
    qk_nope_right_a = QK_NOPE_RIGHT.operand_a(q_s, BLOCK, LATENT_DIM, 1, 128)
    qk_nope_right_b = QK_NOPE_RIGHT.operand_b(ckv_s_right, TILE // 2, LATENT_DIM, STAGES, 128)
    qk_pe_right_a = QK_PE_RIGHT.operand_a(qpe_s, BLOCK, ROPE_DIM, 1, 128)
    qk_pe_right_b = QK_PE_RIGHT.operand_b(kpe_s_right, TILE // 2, ROPE_DIM, STAGES, 128)
    pv_right_a = PV_RIGHT.operand_a(p_s_right, BLOCK, TILE // 2, 1, 64)
    pv_right_b = PV_RIGHT.operand_b(ckv_s_right, TILE // 2, LATENT_DIM, STAGES, 128)
    pv_other_right_a = PV_OTHER_RIGHT.operand_a(p_s_left, BLOCK, TILE // 2, 1, 64)
    pv_other_right_b = PV_OTHER_RIGHT.operand_b(ckv_s_left, TILE // 2, LATENT_DIM, STAGES, 128)
    scores_right = QK_NOPE_RIGHT.accumulators()
    acc_right = PV_RIGHT.accumulators()
    sums_right = cute.make_rmem_tensor(2, Float32)
    peak_right = cute.make_rmem_tensor(2, Float32)
    factor_right = cute.make_rmem_tensor(2, Float32)
    sinks_right = cute.make_rmem_tensor(2, Float32)
    worker = thread % 128
    turn = Int32(0)
    blocks = scalars.ceildiv(heads, BLOCK)
    unit = Int32(cta // blocks * share)
    blocks = scalars.ceildiv(heads, BLOCK)
    end = cta // blocks * share + reach
    while unit < end:
        row = unit // span
        turn = unit - row * span
        turns = cutlass.min(end - row * span, scalars.ceildiv(topk, TILE))
        if (row < t) & (turn < turns):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min(turns * TILE, counted)
            low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
            acc_right.fill(0.0)
            sums_right.fill(0.0)
            peak_right.fill(-Float32.inf)
            live = Boolean(False)
            while (live == False) & (turn < turns):
                in_low, in_high, live = vote(low, high, cached)
                turn = turn + 1
                low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
            cute.arch.mbarrier_wait(q_full, done & 1)
            cute.arch.fence_proxy("async.shared", space="cta")
            while live:
                cute.arch.mbarrier_wait(kv_right_full + it % STAGES, (it // STAGES) & 1)
                # S = Q K^T
                warpgroup.fence()
                QK_NOPE_RIGHT.multiply(
                    qk_nope_right_a[None, None, None, 0, 0, 0],
                    qk_nope_right_b[None, None, None, it % STAGES, 0, 0], scores_right, False
                )
                QK_PE_RIGHT.multiply(
                    qk_pe_right_a[None, None, None, 0, 0, 0],
                    qk_pe_right_b[None, None, None, it % STAGES, 0, 0], scores_right, True
                )
                warpgroup.commit_group()
                cute.arch.mbarrier_wait(kv_left_full + it % STAGES, (it // STAGES) & 1)
                cute.arch.mbarrier_wait(p_left_full, it & 1)
                follow_peak(peak_right, sums_right, acc_right, peak_s_left, worker)
                # O += P K, of the other's tokens
                warpgroup.fence()
                PV_OTHER_RIGHT.multiply(
                    pv_other_right_a[None, None, None, 0, 0, 0],
                    pv_other_right_b[None, None, None, it % STAGES, 1, 0], acc_right, True
                )
                warpgroup.commit_group()
                warpgroup.wait_group(1)
                mask_columns(scores_right, in_high, in_high, sm_scale, worker)
                softmax_rows(scores_right, sums_right, peak_right, factor_right)
                cute.arch.mbarrier_wait(p_right_empty, (it & 1) ^ 1)
                share_peak(peak_s_right, peak_right, worker)
                store_weights(p_s_right, scores_right, worker)
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
                    cute.arch.mbarrier_arrive(kv_left_empty + it % STAGES)
                rescale_rows(acc_right, factor_right)
                cute.arch.mbarrier_wait(p_right_full, it & 1)
                # O += P K, of its own tokens
                warpgroup.fence()
                PV_RIGHT.multiply(
                    pv_right_a[None, None, None, 0, 0, 0], pv_right_b[None, None, None, it % STAGES, 1, 0],
                    acc_right, True
                )
                warpgroup.commit_group()
                live = Boolean(False)
                while (live == False) & (turn < turns):
                    in_low, in_high, live = vote(low, high, cached)
                    turn = turn + 1
                    low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(p_right_empty)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(kv_right_empty + it % STAGES)
                it = it + 1
            # Not earlier: ptxas would spill the sinks if they lived over the whole query.
            load_row_sinks(sinks_right, attn_sink, head0, heads, worker)
            share_sums_right(sums_right, red_s, worker)
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
            total_rows_right(sums_right, peak_right, factor_right, red_s, worker)
            blocks = scalars.ceildiv(heads, BLOCK)
            from_cta = row * span // share
            parts = (row * span + scalars.ceildiv(topk, TILE) - 1) // share - from_cta + 1
            if parts > 1:
                rescale_rows(acc_right, factor_right)
                leave_part_right(
                    acc_right, row, head0, cta // blocks - from_cta, o_partial, splits,
                    scalars.ceildiv(heads, BLOCK) * BLOCK, worker
                )
                cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
            else:
                store_result_rows_right(
                    out, out_stride_t, out_stride_h, acc_right, factor_right, sums_right, sinks_right, row,
                    head0, q_s + HALF * BLOCK, heads, worker, lane
                )
            # Both sides have now read what the other side left for them.
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(q_empty)
            done = done + 1
        unit = (row + row_step) * span
    if splits > 1:
        blocks = scalars.ceildiv(heads, BLOCK)
        unit = cta // blocks * share
        while unit < end:
            row = unit // span
            blocks = scalars.ceildiv(heads, BLOCK)
            from_cta = row * span // share
            parts = (row * span + scalars.ceildiv(topk, TILE) - 1) // share - from_cta + 1
            if (row < t) & (unit - row * span < scalars.ceildiv(topk, TILE)) & (parts > 1):
                cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=LEFT_THREADS + RIGHT_THREADS)
                merge_parts_side_1(
                    row, head0, parts, cta // blocks - from_cta, parts, out, out_stride_t, out_stride_h,
                    o_partial, lse_partial, attn_sink, splits, scalars.ceildiv(heads, BLOCK) * BLOCK, heads,
                    worker
                )
            unit = row * span + span


@cute.jit
def gather_left(
    q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, has_lengths: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_gap: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32, t: Int32, heads: Int32,
    q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32, q_pe_stride_h: Int32, n: Int32,
    kv_cache_stride: Int32, topk: Int32, indices_stride: Int32, q_s: cute.Pointer, qpe_s: cute.Pointer,
    ckv_s_left: cute.Pointer, kpe_s_left: cute.Pointer, q_full: cute.Pointer, q_empty: cute.Pointer,
    kv_left_full: cute.Pointer, kv_left_empty: cute.Pointer, cta: Int32, blocks: Int32, head0: Int32,
    done: Int32, it: Int32, low: Int32, high: Int32, in_low: Int32, in_high: Int32, live: Boolean,
    thread: Int32, lane: Int32
):
    """Selected rows into the rings."""
    words_left = cute.make_rmem_tensor(41, cutlass.Uint32)
    worker = thread % 128
    turn = Int32(0)
    now = Int32(0)
    blocks = scalars.ceildiv(heads, BLOCK)
    unit = Int32(cta // blocks * share)
    blocks = scalars.ceildiv(heads, BLOCK)
    end = cta // blocks * share + reach
    while unit < end:
        row = unit // span
        turn = unit - row * span
        turns = cutlass.min(end - row * span, scalars.ceildiv(topk, TILE))
        if (row < t) & (turn < turns):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min(turns * TILE, counted)
            low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
            now = low
            live = Boolean(False)
            while (live == False) & (turn < turns):
                in_low, in_high, live = vote(low, high, cached)
                now = low
                turn = turn + 1
                low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
            now = find_row(now, cached, page_inverse, page_shift, page_gap)
            cute.arch.mbarrier_wait(q_empty, (done & 1) ^ 1)
            copy_query_rows_q_s(q_s, q_nope, q_nope_stride_t, q_nope_stride_h, row, head0, heads, worker)
            copy_query_rows_qpe_s(qpe_s, q_pe, q_pe_stride_t, q_pe_stride_h, row, head0, heads, worker)
            cute.arch.cp_async_mbarrier_arrive_noinc(q_full)
            load_half(words_left, kv_cache, kv_cache_stride, now, n, worker)
            while live:
                now = low
                live = Boolean(False)
                while (live == False) & (turn < turns):
                    in_low, in_high, live = vote(low, high, cached)
                    now = low
                    turn = turn + 1
                    low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
                now = find_row(now, cached, page_inverse, page_shift, page_gap)
                cute.arch.mbarrier_wait(kv_left_empty + it % STAGES, ((it // STAGES) & 1) ^ 1)
                renew_half(
                    words_left, ckv_s_left + it % STAGES * (TILE // 2 * LATENT_DIM),
                    kpe_s_left + it % STAGES * (TILE // 2 * ROPE_DIM), kv_cache, kv_cache_stride, now, n,
                    worker
                )
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.mbarrier_arrive(kv_left_full + it % STAGES)
                # By now the ids of the unit after the next one have arrived.
                fetch_half(kv_cache, kv_cache_stride, low, n, worker)
                it = it + 1
            done = done + 1
        unit = (row + row_step) * span


@cute.jit
def gather_right(
    kv_cache: cute.Pointer, indices: cute.Pointer, topk_length: cute.Pointer, has_lengths: Int32,
    cached: Int32, page_inverse: Int32, page_shift: Int32, page_gap: Int32, share: Int32, reach: Int32,
    span: Int32, row_step: Int32, t: Int32, heads: Int32, n: Int32, kv_cache_stride: Int32, topk: Int32,
    indices_stride: Int32, ckv_s_right: cute.Pointer, kpe_s_right: cute.Pointer, kv_right_full: cute.Pointer,
    kv_right_empty: cute.Pointer, cta: Int32, blocks: Int32, done: Int32, it: Int32, low: Int32, high: Int32,
    in_low: Int32, in_high: Int32, live: Boolean, thread: Int32, lane: Int32
):
    """Selected rows into the rings."""
    words_right = cute.make_rmem_tensor(41, cutlass.Uint32)
    worker = thread % 128
    turn = Int32(0)
    now = Int32(0)
    blocks = scalars.ceildiv(heads, BLOCK)
    unit = Int32(cta // blocks * share)
    blocks = scalars.ceildiv(heads, BLOCK)
    end = cta // blocks * share + reach
    while unit < end:
        row = unit // span
        turn = unit - row * span
        turns = cutlass.min(end - row * span, scalars.ceildiv(topk, TILE))
        if (row < t) & (turn < turns):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min(turns * TILE, counted)
            low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
            now = high
            live = Boolean(False)
            while (live == False) & (turn < turns):
                in_low, in_high, live = vote(low, high, cached)
                now = high
                turn = turn + 1
                low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
            now = find_row(now, cached, page_inverse, page_shift, page_gap)
            load_half(words_right, kv_cache, kv_cache_stride, now, n, worker)
            while live:
                now = high
                live = Boolean(False)
                while (live == False) & (turn < turns):
                    in_low, in_high, live = vote(low, high, cached)
                    now = high
                    turn = turn + 1
                    low, high = read_ids(indices, indices_stride, row, turn, stop, lane)
                now = find_row(now, cached, page_inverse, page_shift, page_gap)
                cute.arch.mbarrier_wait(kv_right_empty + it % STAGES, ((it // STAGES) & 1) ^ 1)
                renew_half(
                    words_right, ckv_s_right + it % STAGES * (TILE // 2 * LATENT_DIM),
                    kpe_s_right + it % STAGES * (TILE // 2 * ROPE_DIM), kv_cache, kv_cache_stride, now, n,
                    worker
                )
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.mbarrier_arrive(kv_right_full + it % STAGES)
                # By now the ids of the unit after the next one have arrived.
                fetch_half(kv_cache, kv_cache_stride, high, n, worker)
                it = it + 1
            done = done + 1
        unit = (row + row_step) * span


@cute.kernel
def sparse_mla__cutedsl_sm90a__any_fp8_bt64_st2_cl1_hb64(
    q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32,
    lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_gap: Int32, ctas: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32,
    t: Int32, heads: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32,
    q_pe_stride_h: Int32, n: Int32, kv_cache_stride: Int32, topk: Int32, indices_stride: Int32,
    out_stride_t: Int32, out_stride_h: Int32, lse_stride: Int32, splits: Int32, padded_heads: Int32,
    counters: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    qpe_s = shared.qpe_s.data_ptr()
    red_s = shared.red_s.data_ptr()
    ckv_s_left = shared.ckv_s_left.data_ptr()
    kpe_s_left = shared.kpe_s_left.data_ptr()
    p_s_left = shared.p_s_left.data_ptr()
    peak_s_left = shared.peak_s_left.data_ptr()
    ckv_s_right = shared.ckv_s_right.data_ptr()
    kpe_s_right = shared.kpe_s_right.data_ptr()
    p_s_right = shared.p_s_right.data_ptr()
    peak_s_right = shared.peak_s_right.data_ptr()
    q_full = shared.q_full.data_ptr()
    q_empty = shared.q_empty.data_ptr()
    kv_left_full = shared.kv_left_full.data_ptr()
    kv_left_empty = shared.kv_left_empty.data_ptr()
    p_left_full = shared.p_left_full.data_ptr()
    p_left_empty = shared.p_left_empty.data_ptr()
    kv_right_full = shared.kv_right_full.data_ptr()
    kv_right_empty = shared.kv_right_empty.data_ptr()
    p_right_full = shared.p_right_full.data_ptr()
    p_right_empty = shared.p_right_empty.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    cta, _, _ = cute.arch.block_idx()
    blocks = scalars.ceildiv(heads, BLOCK)
    head0 = cta % blocks * BLOCK
    done = Int32(0)
    it = Int32(0)
    low = Int32(0)
    high = Int32(0)
    in_low = Int32(0)
    in_high = Int32(0)
    live = Boolean(False)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_full + i, 128)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_empty + i, 8)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(kv_left_full + i, 128)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(kv_left_empty + i, 8)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_left_full + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_left_empty + i, 8)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(kv_right_full + i, 128)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(kv_right_empty + i, 8)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_right_full + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_right_empty + i, 8)
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    if warp < 4:
        cute.arch.setmaxregister_increase(176)
        left(
            indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale,
            empty_lse, has_lengths, cached, share, reach, span, row_step, t, heads, topk, indices_stride,
            out_stride_t, out_stride_h, lse_stride, splits, q_s, qpe_s, red_s, ckv_s_left, kpe_s_left,
            p_s_left, peak_s_left, ckv_s_right, p_s_right, peak_s_right, q_full, q_empty, kv_left_full,
            kv_left_empty, p_left_full, p_left_empty, kv_right_full, kv_right_empty, p_right_full,
            p_right_empty, cta, blocks, head0, done, it, low, high, in_low, in_high, live, thread, lane
        )
    elif warp < 8:
        cute.arch.setmaxregister_increase(176)
        right(
            indices, topk_length, attn_sink, out, o_partial, lse_partial, sm_scale, has_lengths, cached,
            share, reach, span, row_step, t, heads, topk, indices_stride, out_stride_t, out_stride_h, splits,
            q_s, qpe_s, red_s, ckv_s_left, p_s_left, peak_s_left, ckv_s_right, kpe_s_right, p_s_right,
            peak_s_right, q_full, q_empty, kv_left_full, kv_left_empty, p_left_full, p_left_empty,
            kv_right_full, kv_right_empty, p_right_full, p_right_empty, cta, blocks, head0, done, it, low,
            high, in_low, in_high, live, thread, lane
        )
    elif warp < 12:
        cute.arch.setmaxregister_decrease(80)
        gather_left(
            q_nope, q_pe, kv_cache, indices, topk_length, has_lengths, cached, page_inverse, page_shift,
            page_gap, share, reach, span, row_step, t, heads, q_nope_stride_t, q_nope_stride_h, q_pe_stride_t,
            q_pe_stride_h, n, kv_cache_stride, topk, indices_stride, q_s, qpe_s, ckv_s_left, kpe_s_left,
            q_full, q_empty, kv_left_full, kv_left_empty, cta, blocks, head0, done, it, low, high, in_low,
            in_high, live, thread, lane
        )
    else:
        cute.arch.setmaxregister_decrease(80)
        gather_right(
            kv_cache, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap, share,
            reach, span, row_step, t, heads, n, kv_cache_stride, topk, indices_stride, ckv_s_right,
            kpe_s_right, kv_right_full, kv_right_empty, cta, blocks, done, it, low, high, in_low, in_high,
            live, thread, lane
        )


@cute.jit
def program(
    q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32,
    lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_gap: Int32, ctas: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32,
    t: Int32, heads: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32,
    q_pe_stride_h: Int32, n: Int32, kv_cache_stride: Int32, topk: Int32, indices_stride: Int32,
    out_stride_t: Int32, out_stride_h: Int32, lse_stride: Int32, splits: Int32, padded_heads: Int32,
    counters: Int32
):
    kernel = sparse_mla__cutedsl_sm90a__any_fp8_bt64_st2_cl1_hb64(
        q_nope, q_pe, kv_cache, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals,
        sm_scale, lse_scale, empty_lse, has_lengths, cached, page_inverse, page_shift, page_gap, ctas, share,
        reach, span, row_step, t, heads, q_nope_stride_t, q_nope_stride_h, q_pe_stride_t, q_pe_stride_h, n,
        kv_cache_stride, topk, indices_stride, out_stride_t, out_stride_h, lse_stride, splits, padded_heads,
        counters
    )
    kernel.launch(grid=(1, 1, 1), block=(512, 1, 1), cluster=(1, 1, 1))
