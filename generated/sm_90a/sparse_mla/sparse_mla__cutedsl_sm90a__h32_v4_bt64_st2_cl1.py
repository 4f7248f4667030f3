"""sparse_mla__cutedsl_sm90a__h32_v4_bt64_st2_cl1

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: heads=32, kv=v4, tile=64, stages=2, cluster=1.

  gather         unpack         attend
  warps 12..15   warps 4..11    warps 0..3
  |==== raw ====>|              |   raw_s raw_pe_s scale_s, ring of 3; cp_async -> threads
  |              |===== kv ====>|   ckv_s, ring of 2; threads -> wgmma

roles
  attend     threads 0..127, 224 registers  queries, both products, softmax, merge, output
  unpack     threads 128..383, 104 registers  staged tokens to bf16 rows
  gather     threads 384..511, 80 registers  selected tokens as they are
buffers
  q_s        32x512 bfloat16, shared, 128-byte swizzle
  ckv_s      2 stages of 64x512 bfloat16, shared, 128-byte swizzle
  p_s        64x32 bfloat16, shared, 64-byte swizzle
  red_s      32x4 float32, shared
  raw_s      3 stages of 32x128 int32, shared, 128-byte swizzle
  raw_pe_s   3 stages of 32x64 bfloat16, shared, 128-byte swizzle
  scale_s    3 stages of 32x2 int32, shared
  last_s     1 int32, shared
  scores     64x32 float32, registers of attend
  acc        512x32 float32, registers of attend
  sums       128x8 float32, registers of attend
  top        128x8 float32, registers of attend
  peak       128x8 float32, registers of attend
pipelines
  raw: gather (cp_async) ==[raw_s raw_pe_s scale_s: 3-slot ring]==> unpack (threads)
    full  x128: gather hardware arrives per thread
      unpack: wait full
    empty x256: gather wait empty
      unpack: arrive empty
  kv: unpack (threads) ==[ckv_s: 2-slot ring]==> attend (wgmma)
    full  x256: unpack fence.proxy.async, arrive full
      attend: wait full
    empty x128: unpack wait empty
      attend: wgmma wait, arrive empty
  named barrier attend: attend
totals: 512 threads, 230740 of 232448 bytes of shared memory, grid (t, splits)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from dsl_kernels.device.cutedsl import grid, scalars, warps, wgmma
from dsl_kernels.runtime.artifact import Launch, Operand

HEADS = 32  # query heads
TILE = 64  # tokens per tile
STAGES = 2  # gathered tiles in flight
STAGED_HALVES = 3
DIMS = 512
ATTEND_BARRIER = 1
ATTEND_THREADS = 128
OWN_COLUMNS = 8
LOG2_E = 1.4426950408889634
OWN_SCORES = 16
OWN_OUTPUTS = 128
LATENT_DIM = 512
ROPE_DIM = 64

QK_NOPE = wgmma.Product("bfloat16", TILE, HEADS, DIMS, "k", "k")
PV = wgmma.Product("bfloat16", DIMS, HEADS, TILE, "mn", "mn")

LAUNCH = Launch(
    operands=(
        Operand(
            "q_rows", "tensor", "bfloat16", ("t", "32", "512"),
            strides=("q_rows_stride_t", "q_rows_stride_h", "1")
        ),
        Operand("kv_pages", "tensor", "uint8", ("pages", "page_bytes"), strides=("kv_pages_stride", "1")),
        Operand("indices", "tensor", "int32", ("t", "topk"), strides=("indices_stride", "1")),
        Operand("topk_length", "tensor", "int32", ("t",)),
        Operand(
            "extra_kv_pages", "tensor", "uint8", ("extra_pages", "extra_page_bytes"),
            strides=("extra_kv_pages_stride", "1")
        ),
        Operand(
            "extra_indices", "tensor", "int32", ("t", "extra_topk"), strides=("extra_indices_stride", "1")
        ),
        Operand("extra_topk_length", "tensor", "int32", ("t",)),
        Operand("attn_sink", "tensor", "float32", ("32",)),
        Operand(
            "out", "tensor", "bfloat16", ("t", "32", "512"), strides=("out_stride_t", "out_stride_h", "1"),
            written=True
        ),
        Operand("lse", "tensor", "float32", ("t", "32"), strides=("lse_stride", "1"), written=True),
        Operand("o_partial", "tensor", "float32", ("t", "splits", "32", "512"), written=True),
        Operand("lse_partial", "tensor", "float32", ("t", "splits", "32"), written=True),
        Operand("arrivals", "tensor", "int32", ("counters",), written=True),
        Operand("sm_scale", "scalar", "float32"),
        Operand("lse_scale", "scalar", "float32"),
        Operand("empty_lse", "scalar", "float32"),
        Operand("has_lengths", "scalar", "int32"),
        Operand("cached", "scalar", "int32"),
        Operand("page_inverse", "scalar", "int32"),
        Operand("page_shift", "scalar", "int32"),
        Operand("page_size", "scalar", "int32"),
        Operand("has_extra_lengths", "scalar", "int32"),
        Operand("extra_cached", "scalar", "int32"),
        Operand("extra_page_inverse", "scalar", "int32"),
        Operand("extra_page_shift", "scalar", "int32"),
        Operand("extra_page_size", "scalar", "int32"),
        Operand("all_resident", "scalar", "int32"),
    ),
    grid=("t", "splits", "1"),
    block=512,
    cluster=(1, 1, 1),
    resident="all_resident",
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, HEADS * DIMS], 1024]
    ckv_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, STAGES * TILE * DIMS], 1024]
    p_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE * HEADS], 1024]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, HEADS * 4], 128]
    raw_s: cute.struct.Align[
        cute.struct.MemRange[Int32, STAGED_HALVES * (TILE // 2) * (LATENT_DIM // 4)], 1024
    ]
    raw_pe_s: cute.struct.Align[
        cute.struct.MemRange[cutlass.BFloat16, STAGED_HALVES * (TILE // 2) * ROPE_DIM], 1024
    ]
    scale_s: cute.struct.Align[cute.struct.MemRange[Int32, STAGED_HALVES * (TILE // 2) * 2], 128]
    last_s: cute.struct.Align[cute.struct.MemRange[Int32, 1], 128]
    raw_full: cute.struct.MemRange[Int64, STAGED_HALVES]
    raw_empty: cute.struct.MemRange[Int64, STAGED_HALVES]
    kv_full: cute.struct.MemRange[Int64, STAGES]
    kv_empty: cute.struct.MemRange[Int64, STAGES]


@cute.jit
def read_ids(indices, indices_stride_0, row, tile, end, lane):
    """Read ids `lane` and `lane` + 32 of a tile of a query; -1 replaces the ids from number `end` on."""
    ids = indices + Int64(row) * indices_stride_0
    first = tile * 64 + lane
    low = warps.load_or(ids + first, first < end, -1)
    high = warps.load_or(ids + (first + 32), first + 32 < end, -1)
    return low, high


@cute.jit
def load_queries(target, q, q_stride_0, q_stride_1, row, thread):
    """Copy part `part` of a block of heads of one query: `columns` columns of `q`, `rope_columns` of
    `q_rope`.
    """
    held = cute.make_rmem_tensor(64, cutlass.Uint32)
    # All reads come before the first write: a compiler moves no read past a write.
    for i in cutlass.range_constexpr(16):
        item = i * 128 + thread
        of_head = q + Int64(row) * q_stride_0 + Int64(item // (DIMS // 8)) * q_stride_1
        warps.load_vector(held, i * 4, 4, of_head + item % (DIMS // 8) * 8, item < HEADS * (DIMS // 8))
    for i in cutlass.range_constexpr(16):
        item = i * 128 + thread
        if item < HEADS * (DIMS // 8):
            warps.store_vector(
                held, i * 4,
                warps.piece(
                    target, 8, item // (DIMS // 8), item % (DIMS // 8) * 8, (HEADS, DIMS), 128
                ).iterator
            )


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
def mask_scores(scores, low, high, sm_scale, thread):
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf.

    `low` has a bit for each of the first 32 tokens, `high` for each of the next 32.
    """
    own = cutlass.select_(thread < 64, low, high) >> (thread // 32 % 2 * 16 + thread % 32 // 4)
    scale = sm_scale * LOG2_E
    valid_0 = own & 1 != 0
    for group in cutlass.range_constexpr(OWN_SCORES // 4):
        scores[group * 4] = cutlass.select_(valid_0, scores[group * 4] * scale, -Float32.inf)
        scores[group * 4 + 1] = cutlass.select_(valid_0, scores[group * 4 + 1] * scale, -Float32.inf)
    valid_1 = own >> 8 & 1 != 0
    for group in cutlass.range_constexpr(OWN_SCORES // 4):
        scores[group * 4 + 2] = cutlass.select_(valid_1, scores[group * 4 + 2] * scale, -Float32.inf)
        scores[group * 4 + 1 + 2] = cutlass.select_(valid_1, scores[group * 4 + 1 + 2] * scale, -Float32.inf)


@cute.jit
def leave_maxima(red, scores, thread):
    """Leave the maximum of each head over the 16 tokens of each warp for the other warps."""
    risen = cute.make_rmem_tensor(OWN_SCORES // 2, Float32)
    for group in cutlass.range_constexpr(OWN_SCORES // 4):
        own = cute.arch.fmax(scores[group * 4], scores[group * 4 + 2])
        over_4 = cute.arch.fmax(own, warps.exchange(own, 4))
        over_8 = cute.arch.fmax(over_4, warps.exchange(over_4, 8))
        over_16 = cute.arch.fmax(over_8, warps.exchange(over_8, 16))
        risen[group * 2] = over_16
        own = cute.arch.fmax(scores[group * 4 + 1], scores[group * 4 + 1 + 2])
        over_4 = cute.arch.fmax(own, warps.exchange(own, 4))
        over_8 = cute.arch.fmax(over_4, warps.exchange(over_4, 8))
        over_16 = cute.arch.fmax(over_8, warps.exchange(over_8, 16))
        risen[group * 2 + 1] = over_16
    if thread % 32 < 4:
        for column in cutlass.range_constexpr(OWN_SCORES // 2):
            red[(column // 2 * 8 + thread % 4 * 2 + column % 2) * 4 + thread // 32] = risen[column]


@cute.jit
def join_maxima(top, red, thread):
    """Compute the maxima of the heads over the four warps."""
    four = cute.make_rmem_tensor(4, Float32)
    for column in cutlass.range_constexpr(OWN_COLUMNS):
        cute.autovec_copy(
            warps.piece(red, 4, column // 2 * 8 + thread % 4 * 2 + column % 2, 0, (HEADS, 4), 0), four
        )
        top[column] = cute.arch.fmax(cute.arch.fmax(four[0], four[1]), cute.arch.fmax(four[2], four[3]))


@cute.jit
def online_softmax(scores, sums, acc, peak, top):
    """Replace S by P = exp2(S - maximum), and rescale the running sums and O to the new maximum.

    The sums stay private to each thread until the end: one addition per element, and threads exchange
    nothing. A rescale only if a maximum has risen much would need a branch around O, and that costs
    more than it saves (docs/performance.md).
    """
    for group in cutlass.range_constexpr(OWN_SCORES // 4):
        risen = cute.arch.fmax(top[group * 2], peak[group * 2])
        decay = warps.exp2(peak[group * 2] - risen)
        peak[group * 2] = risen
        scores[group * 4] = warps.exp2(scores[group * 4] - risen)
        scores[group * 4 + 2] = warps.exp2(scores[group * 4 + 2] - risen)
        sums[group * 2] = sums[group * 2] * decay + (scores[group * 4] + scores[group * 4 + 2])
        for block in cutlass.range_constexpr(OWN_OUTPUTS // OWN_SCORES):
            acc[block * OWN_SCORES + group * 4] = acc[block * OWN_SCORES + group * 4] * decay
            acc[block * OWN_SCORES + group * 4 + 2] = acc[block * OWN_SCORES + group * 4 + 2] * decay
        risen = cute.arch.fmax(top[group * 2 + 1], peak[group * 2 + 1])
        decay = warps.exp2(peak[group * 2 + 1] - risen)
        peak[group * 2 + 1] = risen
        scores[group * 4 + 1] = warps.exp2(scores[group * 4 + 1] - risen)
        scores[group * 4 + 1 + 2] = warps.exp2(scores[group * 4 + 1 + 2] - risen)
        sums[group * 2 + 1] = sums[group * 2 + 1] * decay + (
            scores[group * 4 + 1] + scores[group * 4 + 1 + 2]
        )
        for block in cutlass.range_constexpr(OWN_OUTPUTS // OWN_SCORES):
            acc[block * OWN_SCORES + (group * 4 + 1)] = acc[block * OWN_SCORES + (group * 4 + 1)] * decay
            acc[
                block * OWN_SCORES + (group * 4 + 1) + 2
            ] = acc[block * OWN_SCORES + (group * 4 + 1) + 2] * decay


@cute.jit
def store_weights(target, scores, thread):
    """Write P as bf16 in the layout that its product reads. If there are eight heads, they are the rows."""
    for pair in cutlass.range_constexpr(OWN_SCORES // 8):
        warps.store_matrices(
            warps.piece(
                target, 8, thread // 32 * 16 + thread % 32 % 16, pair * 16 + thread % 32 // 16 * 8,
                (TILE, HEADS), 64
            ).iterator,
            scores, pair * 8, 4
        )


@cute.jit
def leave_sums(red, sums, thread):
    """Leave the sum of each head over the tokens of each warp for the other warps."""
    whole = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    for column in cutlass.range_constexpr(OWN_COLUMNS):
        own = sums[column]
        over_4 = own + warps.exchange(own, 4)
        over_8 = over_4 + warps.exchange(over_4, 8)
        over_16 = over_8 + warps.exchange(over_8, 16)
        whole[column] = over_16
    if thread % 32 < 4:
        for column in cutlass.range_constexpr(OWN_COLUMNS):
            red[(column // 2 * 8 + thread % 4 * 2 + column % 2) * 4 + thread // 32] = whole[column]


@cute.jit
def join_sums(top, red, thread):
    """Compute the sums of the heads over the four warps."""
    four = cute.make_rmem_tensor(4, Float32)
    for column in cutlass.range_constexpr(OWN_COLUMNS):
        cute.autovec_copy(
            warps.piece(red, 4, column // 2 * 8 + thread % 4 * 2 + column % 2, 0, (HEADS, 4), 0), four
        )
        top[column] = four[0] + four[1] + (four[2] + four[3])


@cute.jit
def normalise(acc, top, peak):
    """Divide O by the sums, and replace the sums by the base-2 lse. An empty column gives 0 and -inf."""
    for group in cutlass.range_constexpr(OWN_COLUMNS // 2):
        inverse = cutlass.select_(top[group * 2] > 0.0, warps.rcp_approx(top[group * 2]), 0.0)
        top[group * 2] = cutlass.select_(
            top[group * 2] > 0.0, warps.log2(top[group * 2]) + peak[group * 2], -Float32.inf
        )
        for block in cutlass.range_constexpr(OWN_OUTPUTS // (OWN_COLUMNS * 2)):
            acc[block * (OWN_COLUMNS * 2) + group * 4] = acc[block * (OWN_COLUMNS * 2) + group * 4] * inverse
            acc[
                block * (OWN_COLUMNS * 2) + group * 4 + 2
            ] = acc[block * (OWN_COLUMNS * 2) + group * 4 + 2] * inverse
        inverse = cutlass.select_(top[group * 2 + 1] > 0.0, warps.rcp_approx(top[group * 2 + 1]), 0.0)
        top[group * 2 + 1] = cutlass.select_(
            top[group * 2 + 1] > 0.0, warps.log2(top[group * 2 + 1]) + peak[group * 2 + 1], -Float32.inf
        )
        for block in cutlass.range_constexpr(OWN_OUTPUTS // (OWN_COLUMNS * 2)):
            acc[
                block * (OWN_COLUMNS * 2) + (group * 4 + 1)
            ] = acc[block * (OWN_COLUMNS * 2) + (group * 4 + 1)] * inverse
            acc[
                block * (OWN_COLUMNS * 2) + (group * 4 + 1) + 2
            ] = acc[block * (OWN_COLUMNS * 2) + (group * 4 + 1) + 2] * inverse


@cute.jit
def write_outputs(
    acc, top, attn_sink, out, out_stride_0, out_stride_1, lse, lse_stride_0, row, lse_scale, empty_lse,
    thread
):
    """Write the result of a row that one CTA holds whole."""
    for group in cutlass.range_constexpr(OWN_COLUMNS // 2):
        head = group * 2 // 2 * 8 + thread % 4 * 2 + group * 2 % 2
        to = out + Int64(row) * out_stride_0 + Int64(head) * out_stride_1
        kept = cutlass.select_(
            top[group * 2] > -Float32.inf,
            warps.rcp_approx(warps.exp2(attn_sink[head] * LOG2_E - top[group * 2]) + 1.0), 0.0
        )
        for block in cutlass.range_constexpr(OWN_OUTPUTS // (OWN_COLUMNS * 2)):
            to[
                block * 64 + (thread // 32 * 16 + thread % 32 // 4)
            ] = (acc[block * (OWN_COLUMNS * 2) + group * 4] * kept).to(cutlass.BFloat16)
            to[
                block * 64 + (thread // 32 * 16 + thread % 32 // 4) + 8
            ] = (acc[block * (OWN_COLUMNS * 2) + group * 4 + 2] * kept).to(cutlass.BFloat16)
        if thread < 4:
            of_row = lse + Int64(row) * lse_stride_0
            of_row[head] = cutlass.select_(
                top[group * 2] > -Float32.inf, top[group * 2] * lse_scale, empty_lse
            )
        head = (group * 2 + 1) // 2 * 8 + thread % 4 * 2 + (group * 2 + 1) % 2
        to = out + Int64(row) * out_stride_0 + Int64(head) * out_stride_1
        kept = cutlass.select_(
            top[group * 2 + 1] > -Float32.inf,
            warps.rcp_approx(warps.exp2(attn_sink[head] * LOG2_E - top[group * 2 + 1]) + 1.0), 0.0
        )
        for block in cutlass.range_constexpr(OWN_OUTPUTS // (OWN_COLUMNS * 2)):
            to[
                block * 64 + (thread // 32 * 16 + thread % 32 // 4)
            ] = (acc[block * (OWN_COLUMNS * 2) + (group * 4 + 1)] * kept).to(cutlass.BFloat16)
            to[
                block * 64 + (thread // 32 * 16 + thread % 32 // 4) + 8
            ] = (acc[block * (OWN_COLUMNS * 2) + (group * 4 + 1) + 2] * kept).to(cutlass.BFloat16)
        if thread < 4:
            of_row = lse + Int64(row) * lse_stride_0
            of_row[head] = cutlass.select_(
                top[group * 2 + 1] > -Float32.inf, top[group * 2 + 1] * lse_scale, empty_lse
            )


@cute.jit
def leave_part(acc, lses, row, split, o_partial, lse_partial, splits, thread):
    """Write a split's normalised part of O, in the order of threads, and its lses, for `merge_parts`."""
    four = cute.make_rmem_tensor(4, Float32)
    room = o_partial + Int64((row * splits + split) * HEADS) * LATENT_DIM + thread * 4
    for u in cutlass.range_constexpr(OWN_OUTPUTS // 4):
        four[0] = acc[u * 4]
        four[1] = acc[u * 4 + 1]
        four[2] = acc[u * 4 + 2]
        four[3] = acc[u * 4 + 3]
        cute.autovec_copy(four, warps.group(room, 4, u * 128))
    if thread < 4:
        of_split = lse_partial + Int64(row * splits + split) * HEADS
        for column in cutlass.range_constexpr(OWN_COLUMNS):
            of_split[column // 2 * 8 + thread % 4 * 2 + column % 2] = lses[column]


@cute.jit
def merge_parts(
    row, parts, share, shares, out, out_stride_0, out_stride_1, lse, lse_stride_0, o_partial, lse_partial,
    attn_sink, splits, lse_scale, empty_lse, thread
):
    """Join share `share` of `shares` of the dims from all parts, scale each head for its sink, and store
    it.

    It joins `few` pieces at a time. Whoever has the first piece also stores the lse. A row without ids
    gives 0 and `empty_lse`.
    """
    sinks = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    end = (share + 1) * (LATENT_DIM // 64) // shares
    for column in cutlass.range_constexpr(OWN_COLUMNS):
        sinks[column] = attn_sink[column // 2 * 8 + thread % 4 * 2 + column % 2]
    for piece in cutlass.range(share * (LATENT_DIM // 64) // shares, end, 1, unroll=1):
        top = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
        total = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
        kept = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
        merged = cute.make_rmem_tensor(2 * OWN_COLUMNS, Float32)
        four = cute.make_rmem_tensor(4, Float32)
        weights = cute.make_rmem_tensor(64 // (2 * OWN_COLUMNS) * OWN_COLUMNS, Float32)
        for column in cutlass.range_constexpr(OWN_COLUMNS):
            top[column] = Float32(-Float32.inf)
            total[column] = Float32(0.0)
        for i in cutlass.range_constexpr(2 * OWN_COLUMNS):
            merged[i] = Float32(0.0)
        for first in cutlass.range(0, parts, 64 // (2 * OWN_COLUMNS), unroll=1):
            for p in cutlass.range_constexpr(64 // (2 * OWN_COLUMNS)):
                lses = lse_partial + Int64(row * splits + cutlass.min(first + p, parts - 1)) * HEADS
                for column in cutlass.range_constexpr(OWN_COLUMNS):
                    weights[p * OWN_COLUMNS + column] = cutlass.select_(
                        first + p < parts, lses[column // 2 * 8 + thread % 4 * 2 + column % 2], -Float32.inf
                    )
            for column in cutlass.range_constexpr(OWN_COLUMNS):
                peak = Float32(top[column])
                for at in cutlass.range_constexpr(column, 64 // (2 * OWN_COLUMNS) * OWN_COLUMNS, OWN_COLUMNS):
                    peak = cute.arch.fmax(peak, weights[at])
                # The weight of an empty part is 0, even if all parts are empty.
                base = cutlass.select_(peak > -Float32.inf, peak, 0.0)
                kept[column] = warps.exp2(top[column] - base)
                top[column] = peak
                total[column] = total[column] * kept[column]
                for at in cutlass.range_constexpr(column, 64 // (2 * OWN_COLUMNS) * OWN_COLUMNS, OWN_COLUMNS):
                    weights[at] = warps.exp2(weights[at] - base)
                    total[column] = total[column] + weights[at]
            for i in cutlass.range_constexpr(2 * OWN_COLUMNS):
                merged[i] = merged[i] * kept[i % (2 * OWN_COLUMNS) // 4 * 2 + i % (2 * OWN_COLUMNS) % 2]
            for p in cutlass.range_constexpr(64 // (2 * OWN_COLUMNS)):
                for u in cutlass.range_constexpr(2 * OWN_COLUMNS // 4):
                    room = o_partial + Int64(
                        (row * splits + cutlass.min(first + p, parts - 1)) * HEADS
                    ) * LATENT_DIM + thread * 4
                    cute.autovec_copy(
                        warps.group(
                            room, 4,
                            (
                                cutlass.min(
                                    piece + u // (2 * OWN_COLUMNS // 4), end - 1
                                ) * (2 * OWN_COLUMNS // 4) + u % (2 * OWN_COLUMNS // 4)
                            ) * 128
                        ),
                        four
                    )
                    for e in cutlass.range_constexpr(4):
                        merged[u * 4 + e] = merged[u * 4 + e] + four[e] * weights[
                            p * OWN_COLUMNS + (
                                (u * 4 + e) % (2 * OWN_COLUMNS) // 4 * 2 + (u * 4 + e) % (2 * OWN_COLUMNS) % 2
                            )
                        ]
        for column in cutlass.range_constexpr(OWN_COLUMNS):
            joined = cutlass.select_(
                total[column] > 0.0, warps.log2(total[column]) + top[column], -Float32.inf
            )
            total[column] = cutlass.select_(
                total[column] > 0.0, warps.rcp_approx(total[column]), 0.0
            ) * cutlass.select_(
                joined > -Float32.inf, warps.rcp_approx(warps.exp2(sinks[column] * LOG2_E - joined) + 1.0),
                0.0
            )
            if (piece == 0) & (thread < 4):
                of_row = lse + Int64(row) * lse_stride_0
                of_row[column // 2 * 8 + thread % 4 * 2 + column % 2] = cutlass.select_(
                    joined > -Float32.inf, joined * lse_scale, empty_lse
                )
        for v in cutlass.range_constexpr(1):
            if piece + v < end:
                for i in cutlass.range_constexpr(2 * OWN_COLUMNS):
                    to = out + Int64(row) * out_stride_0 + Int64(
                        (i // 4 * 2 + i % 2) // 2 * 8 + thread % 4 * 2 + (i // 4 * 2 + i % 2) % 2
                    ) * out_stride_1 + (
                        (piece + v) * 64 + (thread // 32 * 16 + thread % 32 // 4) + i % 4 // 2 * 8
                    )
                    to[0] = (merged[v * (2 * OWN_COLUMNS) + i] * total[i // 4 * 2 + i % 2]).to(
                        cutlass.BFloat16
                    )


@cute.jit
def unpack_v4_tokens_half_0(ckv, raw, raw_pe, scales, thread):
    """Write staged tokens as bf16 rows as `unpack_tokens` does.

    448 dims have a UE8M0 scale for each 64 dims, and 64 dims are bf16.
    """
    piece = thread & 3 | thread >> 1 & 4
    own = (thread >> 4 & 12) * 2 + (thread >> 4 & 3 ^ (thread >> 2 & 1) * 5)
    row = own
    words = cute.make_rmem_tensor(16, Int32)
    exponents = cute.make_rmem_tensor(2, Int32)
    beside = cute.make_rmem_tensor(8, cutlass.BFloat16)
    cute.autovec_copy(warps.piece(scales, 2, own, 0, (TILE // 2, 2), 0), exponents)
    # All reads come before the first write: a compiler moves no read past a write.
    for panel in cutlass.range_constexpr(4):
        cute.autovec_copy(
            warps.piece(raw, 4, own, panel * 32 + piece * 4, (TILE // 2, LATENT_DIM // 4), 128),
            warps.few(words, panel * 4, 4)
        )
    cute.autovec_copy(warps.piece(raw_pe, 8, own, piece * 8, (TILE // 2, ROPE_DIM), 128), beside)
    exponent_0 = exponents[0].to(Int32) >> (piece >> 2) * 8 & 255
    factor_0 = cutlass.select_(exponent_0 == 255, 2143289344, cutlass.max(exponent_0 << 23, 4194304))
    warps.store_fp8(
        warps.piece(ckv, 8, row, piece * 16, (TILE, DIMS), 128).iterator,
        warps.piece(ckv, 8, row, piece * 16 + 8, (TILE, DIMS), 128).iterator, words, 0, factor_0
    )
    exponent_1 = exponents[0].to(Int32) >> (2 + (piece >> 2)) * 8 & 255
    factor_1 = cutlass.select_(exponent_1 == 255, 2143289344, cutlass.max(exponent_1 << 23, 4194304))
    warps.store_fp8(
        warps.piece(ckv, 8, row, 128 + piece * 16, (TILE, DIMS), 128).iterator,
        warps.piece(ckv, 8, row, 128 + piece * 16 + 8, (TILE, DIMS), 128).iterator, words, 4, factor_1
    )
    exponent_2 = exponents[1].to(Int32) >> (piece >> 2) * 8 & 255
    factor_2 = cutlass.select_(exponent_2 == 255, 2143289344, cutlass.max(exponent_2 << 23, 4194304))
    warps.store_fp8(
        warps.piece(ckv, 8, row, 256 + piece * 16, (TILE, DIMS), 128).iterator,
        warps.piece(ckv, 8, row, 256 + piece * 16 + 8, (TILE, DIMS), 128).iterator, words, 8, factor_2
    )
    if piece < 4:
        exponent_3 = exponents[1].to(Int32) >> (2 + (piece >> 2)) * 8 & 255
        factor_3 = cutlass.select_(exponent_3 == 255, 2143289344, cutlass.max(exponent_3 << 23, 4194304))
        warps.store_fp8(
            warps.piece(ckv, 8, row, 384 + piece * 16, (TILE, DIMS), 128).iterator,
            warps.piece(ckv, 8, row, 384 + piece * 16 + 8, (TILE, DIMS), 128).iterator, words, 12, factor_3
        )
    cute.autovec_copy(beside, warps.piece(ckv, 8, row, 448 + piece * 8, (TILE, DIMS), 128))


@cute.jit
def unpack_v4_tokens_half_1(ckv, raw, raw_pe, scales, thread):
    """Write staged tokens as bf16 rows as `unpack_tokens` does.

    448 dims have a UE8M0 scale for each 64 dims, and 64 dims are bf16.
    """
    piece = thread & 3 | thread >> 1 & 4
    own = (thread >> 4 & 12) * 2 + (thread >> 4 & 3 ^ (thread >> 2 & 1) * 5)
    row = 32 + own
    words = cute.make_rmem_tensor(16, Int32)
    exponents = cute.make_rmem_tensor(2, Int32)
    beside = cute.make_rmem_tensor(8, cutlass.BFloat16)
    cute.autovec_copy(warps.piece(scales, 2, own, 0, (TILE // 2, 2), 0), exponents)
    # All reads come before the first write: a compiler moves no read past a write.
    for panel in cutlass.range_constexpr(4):
        cute.autovec_copy(
            warps.piece(raw, 4, own, panel * 32 + piece * 4, (TILE // 2, LATENT_DIM // 4), 128),
            warps.few(words, panel * 4, 4)
        )
    cute.autovec_copy(warps.piece(raw_pe, 8, own, piece * 8, (TILE // 2, ROPE_DIM), 128), beside)
    exponent_0 = exponents[0].to(Int32) >> (piece >> 2) * 8 & 255
    factor_0 = cutlass.select_(exponent_0 == 255, 2143289344, cutlass.max(exponent_0 << 23, 4194304))
    warps.store_fp8(
        warps.piece(ckv, 8, row, piece * 16, (TILE, DIMS), 128).iterator,
        warps.piece(ckv, 8, row, piece * 16 + 8, (TILE, DIMS), 128).iterator, words, 0, factor_0
    )
    exponent_1 = exponents[0].to(Int32) >> (2 + (piece >> 2)) * 8 & 255
    factor_1 = cutlass.select_(exponent_1 == 255, 2143289344, cutlass.max(exponent_1 << 23, 4194304))
    warps.store_fp8(
        warps.piece(ckv, 8, row, 128 + piece * 16, (TILE, DIMS), 128).iterator,
        warps.piece(ckv, 8, row, 128 + piece * 16 + 8, (TILE, DIMS), 128).iterator, words, 4, factor_1
    )
    exponent_2 = exponents[1].to(Int32) >> (piece >> 2) * 8 & 255
    factor_2 = cutlass.select_(exponent_2 == 255, 2143289344, cutlass.max(exponent_2 << 23, 4194304))
    warps.store_fp8(
        warps.piece(ckv, 8, row, 256 + piece * 16, (TILE, DIMS), 128).iterator,
        warps.piece(ckv, 8, row, 256 + piece * 16 + 8, (TILE, DIMS), 128).iterator, words, 8, factor_2
    )
    if piece < 4:
        exponent_3 = exponents[1].to(Int32) >> (2 + (piece >> 2)) * 8 & 255
        factor_3 = cutlass.select_(exponent_3 == 255, 2143289344, cutlass.max(exponent_3 << 23, 4194304))
        warps.store_fp8(
            warps.piece(ckv, 8, row, 384 + piece * 16, (TILE, DIMS), 128).iterator,
            warps.piece(ckv, 8, row, 384 + piece * 16 + 8, (TILE, DIMS), 128).iterator, words, 12, factor_3
        )
    cute.autovec_copy(beside, warps.piece(ckv, 8, row, 448 + piece * 8, (TILE, DIMS), 128))


@cute.jit
def copy_v4_tokens(
    raw, raw_pe, scales, kv_pages, kv_pages_stride_0, ids, cached, page_inverse, page_shift, page_size,
    thread
):
    """Start the copies of half a tile's 584-byte tokens as they are, with eight threads per token.

    A token becomes zeros if its id names no row.
    """
    for r in cutlass.range_constexpr(2):
        row = r * 16 + (thread >> 3)
        token = warps.shuffle(ids, row)
        inside = (token >= 0) & (token < cached)
        chosen = Int32(cutlass.select_(inside, token, 0))
        page = warps.mul_hi(
            chosen.to(cutlass.Uint32) << 2, page_inverse.to(cutlass.Uint32)
        ).to(Int32) >> page_shift
        slot = chosen - page * page_size
        values = kv_pages + Int64(page) * kv_pages_stride_0 + (slot * 576 + (thread & 7) * 16)
        for panel in cutlass.range_constexpr(3):
            warps.copy16(
                warps.piece(
                    raw, 4, row, panel * 32 + (thread & 7) * 4, (TILE // 2, LATENT_DIM // 4), 128
                ).iterator,
                values + panel * 128, inside
            )
        warps.copy16(
            warps.piece(raw, 4, row, 96 + (thread & 7) * 4, (TILE // 2, LATENT_DIM // 4), 128).iterator,
            values + 384, inside & (thread & 7 < 4)
        )
        warps.copy16(
            warps.piece(raw_pe, 8, row, (thread & 7) * 8, (TILE // 2, ROPE_DIM), 128).iterator, values + 448,
            inside
        )
        if thread & 7 == 0:
            of_token = kv_pages + Int64(page) * kv_pages_stride_0 + (page_size * 576 + slot * 8)
            warps.copy8(warps.piece(scales, 2, row, 0, (TILE // 2, 2), 0).iterator, of_token, inside)


@cute.jit
def attend(
    q_rows: cute.Pointer, indices: cute.Pointer, extra_indices: cute.Pointer, attn_sink: cute.Pointer,
    out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer,
    arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32, empty_lse: Float32, cached: Int32,
    extra_cached: Int32, all_resident: Int32, q_rows_stride_t: Int32, q_rows_stride_h: Int32,
    indices_stride: Int32, extra_indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32,
    lse_stride: Int32, splits: Int32, q_s: cute.Pointer, ckv_s: cute.Pointer, p_s: cute.Pointer,
    red_s: cute.Pointer, last_s: cute.Pointer, kv_full: cute.Pointer, kv_empty: cute.Pointer, bx: Int32,
    split: Int32, extra_end: Int32, end: Int32, turns: Int32, it: Int32, low: Int32, high: Int32,
    in_low: Int32, in_high: Int32, live: Boolean, known: Int32, of_extra: Boolean, thread: Int32, lane: Int32
):
    """Queries, both products, softmax, merge, output."""
    qk_nope_a = QK_NOPE.operand_a(ckv_s, TILE, DIMS, STAGES, 128)
    qk_nope_b = QK_NOPE.operand_b(q_s, HEADS, DIMS, 1, 128)
    pv_a = PV.operand_a(ckv_s, TILE, DIMS, STAGES, 128)
    pv_b = PV.operand_b(p_s, TILE, HEADS, 1, 64)
    scores = QK_NOPE.accumulators()
    acc = PV.accumulators()
    sums = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    top = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    peak = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    worker = thread
    load_queries(q_s, q_rows, q_rows_stride_t, q_rows_stride_h, bx, worker)
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
    acc.fill(0.0)
    sums.fill(0.0)
    peak.fill(-Float32.inf)
    for turn in cutlass.range(turns, unroll=1):
        in_low, in_high, live = vote(low, high, known)
        of_extra = split + (turn + 1) * splits >= scalars.ceildiv(end, TILE)
        known = cached
        if of_extra:
            known = extra_cached
            low, high = read_ids(
                extra_indices, extra_indices_stride, bx,
                split + (turn + 1) * splits - scalars.ceildiv(end, TILE), extra_end, lane
            )
        else:
            low, high = read_ids(indices, indices_stride, bx, split + (turn + 1) * splits, end, lane)
        if live:
            cute.arch.mbarrier_wait(kv_full + it % STAGES, (it // STAGES) & 1)
            # S^T = K Q^T
            warpgroup.fence()
            QK_NOPE.multiply(
                qk_nope_a[None, None, None, it % STAGES, 0, 0], qk_nope_b[None, None, None, 0, 0, 0], scores,
                False
            )
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            mask_scores(scores, in_low, in_high, sm_scale, worker)
            leave_maxima(red_s, scores, worker)
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
            join_maxima(top, red_s, worker)
            online_softmax(scores, sums, acc, peak, top)
            store_weights(p_s, scores, worker)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
            # O^T += K^T P^T
            warpgroup.fence()
            PV.multiply(pv_a[None, None, None, it % STAGES, 0, 0], pv_b[None, None, None, 0, 0, 0], acc, True)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            cute.arch.mbarrier_arrive(kv_empty + it % STAGES)
            it = it + 1
    leave_sums(red_s, sums, worker)
    cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
    join_sums(top, red_s, worker)
    normalise(acc, top, peak)
    if splits == 1:
        write_outputs(
            acc, top, attn_sink, out, out_stride_t, out_stride_h, lse, lse_stride, bx, lse_scale, empty_lse,
            worker
        )
    else:
        leave_part(acc, top, bx, split, o_partial, lse_partial, splits, worker)
        merges = Boolean(True)
        share = Int32(split)
        shares = Int32(splits)
        if all_resident != 0:
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
            grid.count_in(arrivals + bx, worker)
            grid.await_count(arrivals + bx, splits, worker)
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
        else:
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
            grid.take_ticket(last_s, arrivals + bx, splits, worker)
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
            merges = last_s.load() == splits - 1
            share = Int32(0)
            shares = Int32(1)
        if merges:
            merge_parts(
                bx, splits, share, shares, out, out_stride_t, out_stride_h, lse, lse_stride, o_partial,
                lse_partial, attn_sink, splits, lse_scale, empty_lse, worker
            )
        if all_resident != 0:
            grid.count_out(arrivals + bx, splits, worker)


@cute.jit
def unpack(
    indices: cute.Pointer, extra_indices: cute.Pointer, cached: Int32, extra_cached: Int32,
    indices_stride: Int32, extra_indices_stride: Int32, splits: Int32, ckv_s: cute.Pointer,
    raw_s: cute.Pointer, raw_pe_s: cute.Pointer, scale_s: cute.Pointer, raw_full: cute.Pointer,
    raw_empty: cute.Pointer, kv_full: cute.Pointer, kv_empty: cute.Pointer, bx: Int32, split: Int32,
    extra_end: Int32, end: Int32, turns: Int32, it: Int32, low: Int32, high: Int32, in_low: Int32,
    in_high: Int32, live: Boolean, known: Int32, of_extra: Boolean, thread: Int32, lane: Int32
):
    """Staged tokens to bf16 rows."""
    worker = thread - 128
    for turn in cutlass.range(turns, unroll=1):
        in_low, in_high, live = vote(low, high, known)
        of_extra = split + (turn + 1) * splits >= scalars.ceildiv(end, TILE)
        known = cached
        if of_extra:
            known = extra_cached
            low, high = read_ids(
                extra_indices, extra_indices_stride, bx,
                split + (turn + 1) * splits - scalars.ceildiv(end, TILE), extra_end, lane
            )
        else:
            low, high = read_ids(indices, indices_stride, bx, split + (turn + 1) * splits, end, lane)
        if live:
            cute.arch.mbarrier_wait(kv_empty + it % STAGES, ((it // STAGES) & 1) ^ 1)
            cute.arch.mbarrier_wait(raw_full + it * 2 % STAGED_HALVES, (it * 2 // STAGED_HALVES) & 1)
            unpack_v4_tokens_half_0(
                ckv_s + it % STAGES * (TILE * DIMS),
                raw_s + it * 2 % STAGED_HALVES * (TILE // 2 * (LATENT_DIM // 4)),
                raw_pe_s + it * 2 % STAGED_HALVES * (TILE // 2 * ROPE_DIM),
                scale_s + it * 2 % STAGED_HALVES * (TILE // 2 * 2), worker
            )
            cute.arch.mbarrier_arrive(raw_empty + it * 2 % STAGED_HALVES)
            cute.arch.mbarrier_wait(
                raw_full + (it * 2 + 1) % STAGED_HALVES, ((it * 2 + 1) // STAGED_HALVES) & 1
            )
            unpack_v4_tokens_half_1(
                ckv_s + it % STAGES * (TILE * DIMS),
                raw_s + (it * 2 + 1) % STAGED_HALVES * (TILE // 2 * (LATENT_DIM // 4)),
                raw_pe_s + (it * 2 + 1) % STAGED_HALVES * (TILE // 2 * ROPE_DIM),
                scale_s + (it * 2 + 1) % STAGED_HALVES * (TILE // 2 * 2), worker
            )
            cute.arch.mbarrier_arrive(raw_empty + (it * 2 + 1) % STAGED_HALVES)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.mbarrier_arrive(kv_full + it % STAGES)
            it = it + 1


@cute.jit
def gather(
    kv_pages: cute.Pointer, indices: cute.Pointer, extra_kv_pages: cute.Pointer, extra_indices: cute.Pointer,
    cached: Int32, page_inverse: Int32, page_shift: Int32, page_size: Int32, extra_cached: Int32,
    extra_page_inverse: Int32, extra_page_shift: Int32, extra_page_size: Int32, kv_pages_stride: Int32,
    indices_stride: Int32, extra_kv_pages_stride: Int32, extra_indices_stride: Int32, splits: Int32,
    raw_s: cute.Pointer, raw_pe_s: cute.Pointer, scale_s: cute.Pointer, raw_full: cute.Pointer,
    raw_empty: cute.Pointer, bx: Int32, split: Int32, extra_end: Int32, end: Int32, turns: Int32, it: Int32,
    low: Int32, high: Int32, in_low: Int32, in_high: Int32, live: Boolean, known: Int32, of_extra: Boolean,
    thread: Int32, lane: Int32
):
    """Selected tokens as they are."""
    worker = thread % 128
    for turn in cutlass.range(turns, unroll=1):
        in_low, in_high, live = vote(low, high, known)
        now_low = Int32(low)
        now_high = Int32(high)
        now_extra = of_extra
        of_extra = split + (turn + 1) * splits >= scalars.ceildiv(end, TILE)
        known = cached
        if of_extra:
            known = extra_cached
            low, high = read_ids(
                extra_indices, extra_indices_stride, bx,
                split + (turn + 1) * splits - scalars.ceildiv(end, TILE), extra_end, lane
            )
        else:
            low, high = read_ids(indices, indices_stride, bx, split + (turn + 1) * splits, end, lane)
        if live:
            now_cached = Int32(cached)
            now_inverse = Int32(page_inverse)
            now_shift = Int32(page_shift)
            now_size = Int32(page_size)
            if now_extra:
                now_cached = extra_cached
                now_inverse = extra_page_inverse
                now_shift = extra_page_shift
                now_size = extra_page_size
            cute.arch.mbarrier_wait(raw_empty + it * 2 % STAGED_HALVES, ((it * 2 // STAGED_HALVES) & 1) ^ 1)
            if now_extra:
                copy_v4_tokens(
                    raw_s + it * 2 % STAGED_HALVES * (TILE // 2 * (LATENT_DIM // 4)),
                    raw_pe_s + it * 2 % STAGED_HALVES * (TILE // 2 * ROPE_DIM),
                    scale_s + it * 2 % STAGED_HALVES * (TILE // 2 * 2), extra_kv_pages, extra_kv_pages_stride,
                    now_low, now_cached, now_inverse, now_shift, now_size, worker
                )
            else:
                copy_v4_tokens(
                    raw_s + it * 2 % STAGED_HALVES * (TILE // 2 * (LATENT_DIM // 4)),
                    raw_pe_s + it * 2 % STAGED_HALVES * (TILE // 2 * ROPE_DIM),
                    scale_s + it * 2 % STAGED_HALVES * (TILE // 2 * 2), kv_pages, kv_pages_stride, now_low,
                    now_cached, now_inverse, now_shift, now_size, worker
                )
            cute.arch.cp_async_mbarrier_arrive_noinc(raw_full + it * 2 % STAGED_HALVES)
            cute.arch.mbarrier_wait(
                raw_empty + (it * 2 + 1) % STAGED_HALVES, (((it * 2 + 1) // STAGED_HALVES) & 1) ^ 1
            )
            if now_extra:
                copy_v4_tokens(
                    raw_s + (it * 2 + 1) % STAGED_HALVES * (TILE // 2 * (LATENT_DIM // 4)),
                    raw_pe_s + (it * 2 + 1) % STAGED_HALVES * (TILE // 2 * ROPE_DIM),
                    scale_s + (it * 2 + 1) % STAGED_HALVES * (TILE // 2 * 2), extra_kv_pages,
                    extra_kv_pages_stride, now_high, now_cached, now_inverse, now_shift, now_size, worker
                )
            else:
                copy_v4_tokens(
                    raw_s + (it * 2 + 1) % STAGED_HALVES * (TILE // 2 * (LATENT_DIM // 4)),
                    raw_pe_s + (it * 2 + 1) % STAGED_HALVES * (TILE // 2 * ROPE_DIM),
                    scale_s + (it * 2 + 1) % STAGED_HALVES * (TILE // 2 * 2), kv_pages, kv_pages_stride,
                    now_high, now_cached, now_inverse, now_shift, now_size, worker
                )
            cute.arch.cp_async_mbarrier_arrive_noinc(raw_full + (it * 2 + 1) % STAGED_HALVES)
            it = it + 1


@cute.kernel
def sparse_mla__cutedsl_sm90a__h32_v4_bt64_st2_cl1(
    q_rows: cute.Pointer, kv_pages: cute.Pointer, indices: cute.Pointer, topk_length: cute.Pointer,
    extra_kv_pages: cute.Pointer, extra_indices: cute.Pointer, extra_topk_length: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32,
    empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_size: Int32, has_extra_lengths: Int32, extra_cached: Int32, extra_page_inverse: Int32,
    extra_page_shift: Int32, extra_page_size: Int32, all_resident: Int32, t: Int32, q_rows_stride_t: Int32,
    q_rows_stride_h: Int32, pages: Int32, page_bytes: Int32, kv_pages_stride: Int32, topk: Int32,
    indices_stride: Int32, extra_pages: Int32, extra_page_bytes: Int32, extra_kv_pages_stride: Int32,
    extra_topk: Int32, extra_indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32,
    lse_stride: Int32, splits: Int32, counters: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    ckv_s = shared.ckv_s.data_ptr()
    p_s = shared.p_s.data_ptr()
    red_s = shared.red_s.data_ptr()
    raw_s = shared.raw_s.data_ptr()
    raw_pe_s = shared.raw_pe_s.data_ptr()
    scale_s = shared.scale_s.data_ptr()
    last_s = shared.last_s.data_ptr()
    raw_full = shared.raw_full.data_ptr()
    raw_empty = shared.raw_empty.data_ptr()
    kv_full = shared.kv_full.data_ptr()
    kv_empty = shared.kv_empty.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    bx, split, _ = cute.arch.block_idx()
    extra_end = Int32(extra_topk)
    end = Int32(topk)
    turns = Int32(0)
    turns = (scalars.ceildiv(end, TILE) + scalars.ceildiv(extra_end, TILE) - split + splits - 1) // splits
    it = Int32(0)
    low = Int32(0)
    high = Int32(0)
    in_low = Int32(0)
    in_high = Int32(0)
    live = Boolean(False)
    known = Int32(0)
    of_extra = Boolean(False)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(STAGED_HALVES):
                cute.arch.mbarrier_init(raw_full + i, 128)
            for i in cutlass.range_constexpr(STAGED_HALVES):
                cute.arch.mbarrier_init(raw_empty + i, 256)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(kv_full + i, 256)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(kv_empty + i, 128)
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    if has_extra_lengths != 0:
        extra_end = cutlass.max(cutlass.min(extra_topk_length[bx], extra_topk), 0)
        turns = (scalars.ceildiv(end, TILE) + scalars.ceildiv(extra_end, TILE) - split + splits - 1) // splits
    if has_lengths != 0:
        end = cutlass.max(cutlass.min(topk_length[bx], topk), 0)
        turns = (scalars.ceildiv(end, TILE) + scalars.ceildiv(extra_end, TILE) - split + splits - 1) // splits
    of_extra = split >= scalars.ceildiv(end, TILE)
    known = cached
    if of_extra:
        known = extra_cached
        low, high = read_ids(
            extra_indices, extra_indices_stride, bx, split - scalars.ceildiv(end, TILE), extra_end, lane
        )
    else:
        low, high = read_ids(indices, indices_stride, bx, split, end, lane)
    if warp < 4:
        cute.arch.setmaxregister_increase(224)
        attend(
            q_rows, indices, extra_indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale,
            lse_scale, empty_lse, cached, extra_cached, all_resident, q_rows_stride_t, q_rows_stride_h,
            indices_stride, extra_indices_stride, out_stride_t, out_stride_h, lse_stride, splits, q_s, ckv_s,
            p_s, red_s, last_s, kv_full, kv_empty, bx, split, extra_end, end, turns, it, low, high, in_low,
            in_high, live, known, of_extra, thread, lane
        )
    elif warp < 12:
        cute.arch.setmaxregister_decrease(104)
        unpack(
            indices, extra_indices, cached, extra_cached, indices_stride, extra_indices_stride, splits, ckv_s,
            raw_s, raw_pe_s, scale_s, raw_full, raw_empty, kv_full, kv_empty, bx, split, extra_end, end,
            turns, it, low, high, in_low, in_high, live, known, of_extra, thread, lane
        )
    else:
        cute.arch.setmaxregister_decrease(80)
        gather(
            kv_pages, indices, extra_kv_pages, extra_indices, cached, page_inverse, page_shift, page_size,
            extra_cached, extra_page_inverse, extra_page_shift, extra_page_size, kv_pages_stride,
            indices_stride, extra_kv_pages_stride, extra_indices_stride, splits, raw_s, raw_pe_s, scale_s,
            raw_full, raw_empty, bx, split, extra_end, end, turns, it, low, high, in_low, in_high, live,
            known, of_extra, thread, lane
        )


@cute.jit
def program(
    q_rows: cute.Pointer, kv_pages: cute.Pointer, indices: cute.Pointer, topk_length: cute.Pointer,
    extra_kv_pages: cute.Pointer, extra_indices: cute.Pointer, extra_topk_length: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32,
    empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_size: Int32, has_extra_lengths: Int32, extra_cached: Int32, extra_page_inverse: Int32,
    extra_page_shift: Int32, extra_page_size: Int32, all_resident: Int32, t: Int32, q_rows_stride_t: Int32,
    q_rows_stride_h: Int32, pages: Int32, page_bytes: Int32, kv_pages_stride: Int32, topk: Int32,
    indices_stride: Int32, extra_pages: Int32, extra_page_bytes: Int32, extra_kv_pages_stride: Int32,
    extra_topk: Int32, extra_indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32,
    lse_stride: Int32, splits: Int32, counters: Int32
):
    kernel = sparse_mla__cutedsl_sm90a__h32_v4_bt64_st2_cl1(
        q_rows, kv_pages, indices, topk_length, extra_kv_pages, extra_indices, extra_topk_length, attn_sink,
        out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale, empty_lse, has_lengths, cached,
        page_inverse, page_shift, page_size, has_extra_lengths, extra_cached, extra_page_inverse,
        extra_page_shift, extra_page_size, all_resident, t, q_rows_stride_t, q_rows_stride_h, pages,
        page_bytes, kv_pages_stride, topk, indices_stride, extra_pages, extra_page_bytes,
        extra_kv_pages_stride, extra_topk, extra_indices_stride, out_stride_t, out_stride_h, lse_stride,
        splits, counters
    )
    kernel.launch(grid=(1, 1, 1), block=(512, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1)
