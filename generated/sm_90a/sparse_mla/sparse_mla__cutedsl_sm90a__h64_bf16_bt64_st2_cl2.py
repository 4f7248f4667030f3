"""sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl2

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: heads=64, kv=bf16, tile=64, stages=2, cluster=2.

  gather       attend
  warps 4..7   warps 0..3
  |==== kv ===>|   ckv_s kpe_s, ring of 2; cp_async -> wgmma

roles
  attend     threads 0..127  queries, both products, softmax, merge, output
  gather     threads 128..255  selected rows into the ring
buffers
  q_s        32x512 bfloat16, shared, 128-byte swizzle
  qpe_s      32x64 bfloat16, shared, 128-byte swizzle
  ckv_s      2 stages of 64x512 bfloat16, shared, 128-byte swizzle
  kpe_s      2 stages of 64x64 bfloat16, shared, 128-byte swizzle
  p_s        64x32 bfloat16, shared, 64-byte swizzle
  red_s      32x4 float32, shared
  last_s     1 int32, shared
  scores     64x32 float32, registers of attend
  acc        512x32 float32, registers of attend
  sums       128x8 float32, registers of attend
  top        128x8 float32, registers of attend
  peak       128x8 float32, registers of attend
pipelines
  kv: gather (cp_async) ==[ckv_s kpe_s: 2-slot ring]==> attend (wgmma)
    full  x128: gather hardware arrives per thread
      attend: wait full, fence.proxy.async
    empty x128: gather wait empty
      attend: wgmma wait, arrive empty
  named barrier attend: attend
totals: 256 threads, 188964 of 232448 bytes of shared memory, grid (t * 2, 2, splits // 2)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from dsl_kernels.device.cutedsl import grid, scalars, warps, wgmma
from dsl_kernels.runtime.artifact import Launch, Operand

HEADS = 64  # query heads
TILE = 64  # tokens per tile
STAGES = 2  # gathered tiles in flight
CLUSTER = 2  # splits of a row that form a cluster and share out the merge
HEAD_BLOCK = 32
DIMS = 512
ROPE = 64
ATTEND_BARRIER = 1
ATTEND_THREADS = 128
OWN_COLUMNS = 8
LOG2_E = 1.4426950408889634
OWN_SCORES = 16
OWN_OUTPUTS = 128
LATENT_DIM = 512

QK_NOPE = wgmma.Product("bfloat16", TILE, HEAD_BLOCK, DIMS, "k", "k")
QK_PE = wgmma.Product("bfloat16", TILE, HEAD_BLOCK, ROPE, "k", "k")
PV = wgmma.Product("bfloat16", DIMS, HEAD_BLOCK, TILE, "mn", "mn")

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
    ),
    grid=("t * 2", "2", "splits // 2"),
    block=256,
    cluster=(1, 2, 1),
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, HEAD_BLOCK * DIMS], 1024]
    qpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, HEAD_BLOCK * ROPE], 1024]
    ckv_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, STAGES * TILE * DIMS], 1024]
    kpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, STAGES * TILE * ROPE], 1024]
    p_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE * HEAD_BLOCK], 1024]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, HEAD_BLOCK * 4], 128]
    last_s: cute.struct.Align[cute.struct.MemRange[Int32, 1], 128]
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
def load_queries(
    target, rope_target, q, q_stride_0, q_stride_1, q_rope, q_rope_stride_0, q_rope_stride_1, row, head0,
    thread
):
    """Copy part `part` of a block of heads of one query: `columns` columns of `q`, `rope_columns` of
    `q_rope`.
    """
    held = cute.make_rmem_tensor(72, cutlass.Uint32)
    # All reads come before the first write: a compiler moves no read past a write.
    for i in cutlass.range_constexpr(16):
        item = i * 128 + thread
        of_head = q + Int64(row) * q_stride_0 + Int64(head0 + item // (DIMS // 8)) * q_stride_1
        warps.load_vector(held, i * 4, 4, of_head + item % (DIMS // 8) * 8, item < HEAD_BLOCK * (DIMS // 8))
    for i in cutlass.range_constexpr(2):
        item = i * 128 + thread
        of_head = q_rope + Int64(row) * q_rope_stride_0 + Int64(head0 + item // (ROPE // 8)) * q_rope_stride_1
        warps.load_vector(
            held, (16 + i) * 4, 4, of_head + item % (ROPE // 8) * 8, item < HEAD_BLOCK * (ROPE // 8)
        )
    for i in cutlass.range_constexpr(16):
        item = i * 128 + thread
        if item < HEAD_BLOCK * (DIMS // 8):
            warps.store_vector(
                held, i * 4,
                warps.piece(
                    target, 8, item // (DIMS // 8), item % (DIMS // 8) * 8, (HEAD_BLOCK, DIMS), 128
                ).iterator
            )
    for i in cutlass.range_constexpr(2):
        item = i * 128 + thread
        if item < HEAD_BLOCK * (ROPE // 8):
            warps.store_vector(
                held, (16 + i) * 4,
                warps.piece(
                    rope_target, 8, item // (ROPE // 8), item % (ROPE // 8) * 8, (HEAD_BLOCK, ROPE), 128
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
            warps.piece(red, 4, column // 2 * 8 + thread % 4 * 2 + column % 2, 0, (HEAD_BLOCK, 4), 0), four
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
                (TILE, HEAD_BLOCK), 64
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
            warps.piece(red, 4, column // 2 * 8 + thread % 4 * 2 + column % 2, 0, (HEAD_BLOCK, 4), 0), four
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
def leave_part(acc, lses, row, head0, split, o_partial, lse_partial, splits, thread):
    """Write a split's normalised part of O, in the order of threads, and its lses, for `merge_parts`."""
    four = cute.make_rmem_tensor(4, Float32)
    room = o_partial + Int64((row * splits + split) * HEADS + head0) * LATENT_DIM + thread * 4
    for u in cutlass.range_constexpr(OWN_OUTPUTS // 4):
        four[0] = acc[u * 4]
        four[1] = acc[u * 4 + 1]
        four[2] = acc[u * 4 + 2]
        four[3] = acc[u * 4 + 3]
        cute.autovec_copy(four, warps.group(room, 4, u * 128))
    if thread < 4:
        of_split = lse_partial + Int64(row * splits + split) * HEADS + head0
        for column in cutlass.range_constexpr(OWN_COLUMNS):
            of_split[column // 2 * 8 + thread % 4 * 2 + column % 2] = lses[column]


@cute.jit
def merge_parts(
    row, head0, parts, share, out, out_stride_0, out_stride_1, lse, lse_stride_0, o_partial, lse_partial,
    attn_sink, splits, lse_scale, empty_lse, thread
):
    """Join share `share` of `shares` of the dims from all parts, scale each head for its sink, and store
    it.

    It joins `few` pieces at a time. Whoever has the first piece also stores the lse. A row without ids
    gives 0 and `empty_lse`.
    """
    sinks = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    end = (share + 1) * (LATENT_DIM // 64) // CLUSTER
    for column in cutlass.range_constexpr(OWN_COLUMNS):
        sinks[column] = attn_sink[head0 + (column // 2 * 8 + thread % 4 * 2 + column % 2)]
    for piece in cutlass.range(share * (LATENT_DIM // 64) // CLUSTER, end, 64 // HEAD_BLOCK, unroll=1):
        top = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
        total = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
        kept = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
        merged = cute.make_rmem_tensor(64 // HEAD_BLOCK * (2 * OWN_COLUMNS), Float32)
        four = cute.make_rmem_tensor(4, Float32)
        weights = cute.make_rmem_tensor(64 // (64 // HEAD_BLOCK * (2 * OWN_COLUMNS)) * OWN_COLUMNS, Float32)
        for column in cutlass.range_constexpr(OWN_COLUMNS):
            top[column] = Float32(-Float32.inf)
            total[column] = Float32(0.0)
        for i in cutlass.range_constexpr(64 // HEAD_BLOCK * (2 * OWN_COLUMNS)):
            merged[i] = Float32(0.0)
        for first in cutlass.range(0, parts, 64 // (64 // HEAD_BLOCK * (2 * OWN_COLUMNS)), unroll=1):
            for p in cutlass.range_constexpr(64 // (64 // HEAD_BLOCK * (2 * OWN_COLUMNS))):
                lses = lse_partial + Int64(row * splits + cutlass.min(first + p, parts - 1)) * HEADS + head0
                for column in cutlass.range_constexpr(OWN_COLUMNS):
                    weights[p * OWN_COLUMNS + column] = cutlass.select_(
                        first + p < parts, lses[column // 2 * 8 + thread % 4 * 2 + column % 2], -Float32.inf
                    )
            for column in cutlass.range_constexpr(OWN_COLUMNS):
                peak = Float32(top[column])
                for at in cutlass.range_constexpr(
                    column, 64 // (64 // HEAD_BLOCK * (2 * OWN_COLUMNS)) * OWN_COLUMNS, OWN_COLUMNS
                ):
                    peak = cute.arch.fmax(peak, weights[at])
                # The weight of an empty part is 0, even if all parts are empty.
                base = cutlass.select_(peak > -Float32.inf, peak, 0.0)
                kept[column] = warps.exp2(top[column] - base)
                top[column] = peak
                total[column] = total[column] * kept[column]
                for at in cutlass.range_constexpr(
                    column, 64 // (64 // HEAD_BLOCK * (2 * OWN_COLUMNS)) * OWN_COLUMNS, OWN_COLUMNS
                ):
                    weights[at] = warps.exp2(weights[at] - base)
                    total[column] = total[column] + weights[at]
            for i in cutlass.range_constexpr(64 // HEAD_BLOCK * (2 * OWN_COLUMNS)):
                merged[i] = merged[i] * kept[i % (2 * OWN_COLUMNS) // 4 * 2 + i % (2 * OWN_COLUMNS) % 2]
            for p in cutlass.range_constexpr(64 // (64 // HEAD_BLOCK * (2 * OWN_COLUMNS))):
                for u in cutlass.range_constexpr(64 // HEAD_BLOCK * (2 * OWN_COLUMNS) // 4):
                    room = o_partial + Int64(
                        (row * splits + cutlass.min(first + p, parts - 1)) * HEADS + head0
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
                of_row[head0 + (column // 2 * 8 + thread % 4 * 2 + column % 2)] = cutlass.select_(
                    joined > -Float32.inf, joined * lse_scale, empty_lse
                )
        for v in cutlass.range_constexpr(64 // HEAD_BLOCK):
            if piece + v < end:
                for i in cutlass.range_constexpr(2 * OWN_COLUMNS):
                    to = out + Int64(row) * out_stride_0 + Int64(
                        head0 + ((i // 4 * 2 + i % 2) // 2 * 8 + thread % 4 * 2 + (i // 4 * 2 + i % 2) % 2)
                    ) * out_stride_1 + (
                        (piece + v) * 64 + (thread // 32 * 16 + thread % 32 // 4) + i % 4 // 2 * 8
                    )
                    to[0] = (merged[v * (2 * OWN_COLUMNS) + i] * total[i // 4 * 2 + i % 2]).to(
                        cutlass.BFloat16
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
def copy_rows_ckv_s(target, cache, cache_stride_0, low, high, n, thread):
    """Start the copies of `columns` columns of a tile's rows, from `first` on; zeros if an id names no
    row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    row = thread // 8
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(DIMS // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, DIMS), 128).iterator, cache,
            cache_stride_0, thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 16
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(DIMS // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, DIMS), 128).iterator, cache,
            cache_stride_0, thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 32
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(DIMS // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, DIMS), 128).iterator, cache,
            cache_stride_0, thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 48
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(DIMS // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, DIMS), 128).iterator, cache,
            cache_stride_0, thread % 8 * 8, token, c * 64, n
        )


@cute.jit
def copy_rows_kpe_s(target, cache, cache_stride_0, low, high, n, thread):
    """Start the copies of `columns` columns of a tile's rows, from `first` on; zeros if an id names no
    row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    row = thread // (ROPE // 8)
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(1):
        warps.copy_row16(
            warps.piece(
                target, 8, row, (c * (ROPE // 8) + thread % (ROPE // 8)) * 8, (TILE, ROPE), 128
            ).iterator,
            cache, cache_stride_0, thread % (ROPE // 8) * 8, token, c * (ROPE // 8 * 8), n
        )
    row = thread // (ROPE // 8) + 16
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(1):
        warps.copy_row16(
            warps.piece(
                target, 8, row, (c * (ROPE // 8) + thread % (ROPE // 8)) * 8, (TILE, ROPE), 128
            ).iterator,
            cache, cache_stride_0, thread % (ROPE // 8) * 8, token, c * (ROPE // 8 * 8), n
        )
    row = thread // (ROPE // 8) + 32
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(1):
        warps.copy_row16(
            warps.piece(
                target, 8, row, (c * (ROPE // 8) + thread % (ROPE // 8)) * 8, (TILE, ROPE), 128
            ).iterator,
            cache, cache_stride_0, thread % (ROPE // 8) * 8, token, c * (ROPE // 8 * 8), n
        )
    row = thread // (ROPE // 8) + 48
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(1):
        warps.copy_row16(
            warps.piece(
                target, 8, row, (c * (ROPE // 8) + thread % (ROPE // 8)) * 8, (TILE, ROPE), 128
            ).iterator,
            cache, cache_stride_0, thread % (ROPE // 8) * 8, token, c * (ROPE // 8 * 8), n
        )


@cute.jit
def attend(
    q_nope: cute.Pointer, q_pe: cute.Pointer, indices: cute.Pointer, attn_sink: cute.Pointer,
    out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer,
    arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32, empty_lse: Float32, cached: Int32,
    q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32, q_pe_stride_h: Int32,
    indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32, lse_stride: Int32, splits: Int32,
    q_s: cute.Pointer, qpe_s: cute.Pointer, ckv_s: cute.Pointer, kpe_s: cute.Pointer, p_s: cute.Pointer,
    red_s: cute.Pointer, last_s: cute.Pointer, kv_full: cute.Pointer, kv_empty: cute.Pointer, bx: Int32,
    rank: Int32, row: Int32, head0: Int32, split: Int32, splits_of_row: Int32, end: Int32, turns: Int32,
    it: Int32, low: Int32, high: Int32, in_low: Int32, in_high: Int32, live: Boolean, thread: Int32,
    lane: Int32
):
    """Queries, both products, softmax, merge, output."""
    qk_nope_a = QK_NOPE.operand_a(ckv_s, TILE, DIMS, STAGES, 128)
    qk_nope_b = QK_NOPE.operand_b(q_s, HEAD_BLOCK, DIMS, 1, 128)
    qk_pe_a = QK_PE.operand_a(kpe_s, TILE, ROPE, STAGES, 128)
    qk_pe_b = QK_PE.operand_b(qpe_s, HEAD_BLOCK, ROPE, 1, 128)
    pv_a = PV.operand_a(ckv_s, TILE, DIMS, STAGES, 128)
    pv_b = PV.operand_b(p_s, TILE, HEAD_BLOCK, 1, 64)
    scores = QK_NOPE.accumulators()
    acc = PV.accumulators()
    sums = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    top = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    peak = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    worker = thread
    load_queries(
        q_s, qpe_s, q_nope, q_nope_stride_t, q_nope_stride_h, q_pe, q_pe_stride_t, q_pe_stride_h, row, head0,
        worker
    )
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
    acc.fill(0.0)
    sums.fill(0.0)
    peak.fill(-Float32.inf)
    for turn in cutlass.range(turns, unroll=1):
        in_low, in_high, live = vote(low, high, cached)
        low, high = read_ids(indices, indices_stride, row, split + (turn + 1) * splits_of_row, end, lane)
        if live:
            cute.arch.mbarrier_wait(kv_full + it % STAGES, (it // STAGES) & 1)
            cute.arch.fence_proxy("async.shared", space="cta")
            # S^T = K Q^T
            warpgroup.fence()
            QK_NOPE.multiply(
                qk_nope_a[None, None, None, it % STAGES, 0, 0], qk_nope_b[None, None, None, 0, 0, 0], scores,
                False
            )
            QK_PE.multiply(
                qk_pe_a[None, None, None, it % STAGES, 0, 0], qk_pe_b[None, None, None, 0, 0, 0], scores,
                True
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
    leave_part(acc, top, row, head0, split, o_partial, lse_partial, splits, worker)
    merges = Boolean(True)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if splits > CLUSTER:
        cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
        grid.take_ticket(last_s, arrivals + bx * CLUSTER + rank, splits // CLUSTER, worker)
        cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
        merges = last_s.load() == splits // CLUSTER - 1
    if merges:
        merge_parts(
            row, head0, splits, rank, out, out_stride_t, out_stride_h, lse, lse_stride, o_partial,
            lse_partial, attn_sink, splits, lse_scale, empty_lse, worker
        )


@cute.jit
def gather(
    ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_gap: Int32, n: Int32, ckv_stride: Int32, kpe_stride: Int32, indices_stride: Int32,
    ckv_s: cute.Pointer, kpe_s: cute.Pointer, kv_full: cute.Pointer, kv_empty: cute.Pointer, row: Int32,
    split: Int32, splits_of_row: Int32, end: Int32, turns: Int32, it: Int32, low: Int32, high: Int32,
    in_low: Int32, in_high: Int32, live: Boolean, thread: Int32, lane: Int32
):
    """Selected rows into the ring."""
    worker = thread % 128
    for turn in cutlass.range(turns, unroll=1):
        in_low, in_high, live = vote(low, high, cached)
        now_low, now_high = find_rows(low, high, cached, page_inverse, page_shift, page_gap)
        low, high = read_ids(indices, indices_stride, row, split + (turn + 1) * splits_of_row, end, lane)
        if live:
            cute.arch.mbarrier_wait(kv_empty + it % STAGES, ((it // STAGES) & 1) ^ 1)
            copy_rows_ckv_s(
                ckv_s + it % STAGES * (TILE * DIMS), ckv, ckv_stride, now_low, now_high, n, worker
            )
            copy_rows_kpe_s(
                kpe_s + it % STAGES * (TILE * ROPE), kpe, kpe_stride, now_low, now_high, n, worker
            )
            cute.arch.cp_async_mbarrier_arrive_noinc(kv_full + it % STAGES)
            it = it + 1
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.kernel
def sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl2(
    q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32,
    lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_gap: Int32, t: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32,
    q_pe_stride_t: Int32, q_pe_stride_h: Int32, n: Int32, ckv_stride: Int32, kpe_stride: Int32, topk: Int32,
    indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32, lse_stride: Int32, splits: Int32,
    counters: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    qpe_s = shared.qpe_s.data_ptr()
    ckv_s = shared.ckv_s.data_ptr()
    kpe_s = shared.kpe_s.data_ptr()
    p_s = shared.p_s.data_ptr()
    red_s = shared.red_s.data_ptr()
    last_s = shared.last_s.data_ptr()
    kv_full = shared.kv_full.data_ptr()
    kv_empty = shared.kv_empty.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    bx, rank, part = cute.arch.block_idx()
    row = bx // (HEADS // HEAD_BLOCK)
    head0 = bx % (HEADS // HEAD_BLOCK) * HEAD_BLOCK
    split = part * CLUSTER + rank
    splits_of_row = splits
    end = Int32(topk)
    turns = Int32(0)
    turns = (scalars.ceildiv(end, TILE) - split + splits_of_row - 1) // splits_of_row
    it = Int32(0)
    low = Int32(0)
    high = Int32(0)
    in_low = Int32(0)
    in_high = Int32(0)
    live = Boolean(False)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(kv_full + i, 128)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(kv_empty + i, 128)
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    if has_lengths != 0:
        end = cutlass.max(cutlass.min(topk_length[row], topk), 0)
        turns = (scalars.ceildiv(end, TILE) - split + splits_of_row - 1) // splits_of_row
    low, high = read_ids(indices, indices_stride, row, split, end, lane)
    if warp < 4:
        attend(
            q_nope, q_pe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale,
            empty_lse, cached, q_nope_stride_t, q_nope_stride_h, q_pe_stride_t, q_pe_stride_h, indices_stride,
            out_stride_t, out_stride_h, lse_stride, splits, q_s, qpe_s, ckv_s, kpe_s, p_s, red_s, last_s,
            kv_full, kv_empty, bx, rank, row, head0, split, splits_of_row, end, turns, it, low, high, in_low,
            in_high, live, thread, lane
        )
    else:
        gather(
            ckv, kpe, indices, cached, page_inverse, page_shift, page_gap, n, ckv_stride, kpe_stride,
            indices_stride, ckv_s, kpe_s, kv_full, kv_empty, row, split, splits_of_row, end, turns, it, low,
            high, in_low, in_high, live, thread, lane
        )


@cute.jit
def program(
    q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32,
    lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_gap: Int32, t: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32,
    q_pe_stride_t: Int32, q_pe_stride_h: Int32, n: Int32, ckv_stride: Int32, kpe_stride: Int32, topk: Int32,
    indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32, lse_stride: Int32, splits: Int32,
    counters: Int32
):
    kernel = sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl2(
        q_nope, q_pe, ckv, kpe, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals,
        sm_scale, lse_scale, empty_lse, has_lengths, cached, page_inverse, page_shift, page_gap, t,
        q_nope_stride_t, q_nope_stride_h, q_pe_stride_t, q_pe_stride_h, n, ckv_stride, kpe_stride, topk,
        indices_stride, out_stride_t, out_stride_h, lse_stride, splits, counters
    )
    kernel.launch(grid=(1, 1, 1), block=(256, 1, 1), cluster=(1, 2, 1))
