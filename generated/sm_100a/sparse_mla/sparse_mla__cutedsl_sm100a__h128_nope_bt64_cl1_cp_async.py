"""sparse_mla__cutedsl_sm100a__h128_nope_bt64_cl1_cp_async

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: heads=128, kv=nope, tile=64, cluster=1, gather=cp_async.

  producer     mma          softmax
  warps 4..7   warp 8       warps 0..3
  |            |<=== q =====|   q_s; cp_async -> tcgen05
  |==== kv ===>|            |   kv_s, ring of 9; cp_async -> tcgen05
  |            |==== s ====>|   s_t, ring of 2; tcgen05 -> tmem
  |            |<=== p =====|   p_s; threads -> tcgen05
  |            |==== o ====>|   o_t; tcgen05 -> tmem

roles
  softmax    threads 0..127  queries, online softmax, lazy rescale, epilogue, merge
  producer   threads 128..255  selected rows into the rings
  mma        threads 256..287  issues every tcgen05.mma and commit
buffers
  q_s        64x512 bfloat16, shared, 128-byte swizzle
  kv_s       9 stages of 64x128 bfloat16, shared, 128-byte swizzle
  p_s        64x64 bfloat16, shared, 128-byte swizzle
  red_s      2 stages of 64x4 float32, shared
  stat_s     64 float32, shared
  o_t        128x256 float32, tensor memory
  s_t        2 stages of 64x64 float32, tensor memory
  scores     128x32 float32, registers of softmax
  sums       128x16 float32, registers of softmax
  top        128x16 float32, registers of softmax
  peak       128x16 float32, registers of softmax
  held       128x16 float32, registers of softmax
pipelines
  q: softmax (cp_async) ==[q_s: 1-slot ring]==> mma (tcgen05)
    full  x128: softmax hardware arrives per thread
      mma: wait full, fence.proxy.async, fence after
    empty x1: softmax wait empty
      mma: commit -> empty
  kv: producer (cp_async) ==[kv_s: 9-slot ring]==> mma (tcgen05)
    full  x128: producer hardware arrives per thread
      mma: wait full, fence.proxy.async, fence after
    empty x1: producer wait empty
      mma: commit -> empty
  s: mma (tcgen05) ==[s_t: 2-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
    empty x128: mma wait empty, fence after
      softmax: wait::ld, fence before, arrive empty
  p: softmax (threads) ==[p_s: 1-slot ring]==> mma (tcgen05)
    full  x128: softmax fence.proxy.async, wait::ld, wait::st, fence before, arrive full
      mma: wait full, fence after
    empty x1: softmax wait empty
      mma: commit -> empty
  o: mma (tcgen05) ==[o_t: 1-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
  named barrier softmax: softmax
totals: 288 threads, 223704 of 232448 bytes of shared memory, 384 of 512 tensor-memory columns, grid (ctas * 2)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

from dsl_kernels.device.cutedsl import fragment_sm100, grid, scalars, tcgen05, warps
from dsl_kernels.runtime.artifact import Launch, Operand

HEADS = 128  # query heads
TILE = 64  # tokens per tile
HEAD_BLOCK = 64
UNIT_STAGES = 9
TILE_STAGES = 1
LATENT_DIM = 512
UNITS = 4
LOG2_E = 1.4426950408889634
SOFTMAX_BARRIER = 1
SOFTMAX_THREADS = 128
UNIT = 128

QK_NOPE = tcgen05.Product("bfloat16", TILE, HEAD_BLOCK, UNIT, "k", "k")
PV = tcgen05.Product("bfloat16", UNIT, HEAD_BLOCK, TILE, "mn", "mn")

LAUNCH = Launch(
    operands=(
        Operand(
            "q_rows", "tensor", "bfloat16", ("t", "128", "512"),
            strides=("q_rows_stride_t", "q_rows_stride_h", "1")
        ),
        Operand("ckv", "tensor", "bfloat16", ("n", "512"), strides=("ckv_stride", "1")),
        Operand("indices", "tensor", "int32", ("t", "topk"), strides=("indices_stride", "1")),
        Operand("topk_length", "tensor", "int32", ("t",)),
        Operand("attn_sink", "tensor", "float32", ("128",)),
        Operand(
            "out", "tensor", "bfloat16", ("t", "128", "512"), strides=("out_stride_t", "out_stride_h", "1"),
            written=True
        ),
        Operand("lse", "tensor", "float32", ("t", "128"), strides=("lse_stride", "1"), written=True),
        Operand("o_partial", "tensor", "float32", ("t", "splits", "128", "512"), written=True),
        Operand("lse_partial", "tensor", "float32", ("t", "splits", "128"), written=True),
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
    grid=("ctas * 2", "1", "1"),
    block=288,
    cluster=(1, 1, 1),
    resident="splits - 1",
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, HEAD_BLOCK * LATENT_DIM], 1024]
    kv_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, UNIT_STAGES * TILE * UNIT], 1024]
    p_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE * HEAD_BLOCK], 1024]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, 2 * HEAD_BLOCK * 4], 128]
    stat_s: cute.struct.Align[cute.struct.MemRange[Float32, HEAD_BLOCK], 128]
    q_full: cute.struct.MemRange[Int64, 1]
    q_empty: cute.struct.MemRange[Int64, 1]
    kv_full: cute.struct.MemRange[Int64, UNIT_STAGES]
    kv_empty: cute.struct.MemRange[Int64, UNIT_STAGES]
    s_full: cute.struct.MemRange[Int64, 2]
    s_empty: cute.struct.MemRange[Int64, 2]
    p_full: cute.struct.MemRange[Int64, TILE_STAGES]
    p_empty: cute.struct.MemRange[Int64, TILE_STAGES]
    o_full: cute.struct.MemRange[Int64, 1]
    tmem: Int32


@cute.jit
def read_ids(indices, indices_stride_0, row, tile, end, lane):
    """Read ids `lane` and `lane` + 32 of a tile of a query; -1 replaces the ids from number `end` on."""
    ids = indices + Int64(row) * indices_stride_0
    first = tile * 64 + lane
    low = warps.load_or(ids + first, first < end, -1)
    high = warps.load_or(ids + (first + 32), first + 32 < end, -1)
    return low, high


@cute.jit
def copy_block(target, q, q_stride_0, q_stride_1, row, head0, thread):
    """Start the copies of a block of heads of one query. The target's padding becomes zero."""
    thread = scalars.anew(thread)
    for i in cutlass.range(HEAD_BLOCK * (LATENT_DIM // 8) // 128, unroll=8):
        item = i * 128 + thread
        of_head = q + Int64(row) * q_stride_0 + Int64(head0 + item // (LATENT_DIM // 8)) * q_stride_1
        warps.copy16(
            warps.piece(
                target, 8, item // (LATENT_DIM // 8), item % (LATENT_DIM // 8) * 8, (HEAD_BLOCK, LATENT_DIM),
                128
            ).iterator,
            of_head + item % (LATENT_DIM // 8) * 8, item < HEAD_BLOCK * (LATENT_DIM // 8)
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
    for group in cutlass.range_constexpr(HEAD_BLOCK // 2 // 4):
        scores[group * 4] = cutlass.select_(valid_0, scores[group * 4] * scale, -Float32.inf)
        scores[group * 4 + 1] = cutlass.select_(valid_0, scores[group * 4 + 1] * scale, -Float32.inf)
    valid_1 = own >> 8 & 1 != 0
    for group in cutlass.range_constexpr(HEAD_BLOCK // 2 // 4):
        scores[group * 4 + 2] = cutlass.select_(valid_1, scores[group * 4 + 2] * scale, -Float32.inf)
        scores[group * 4 + 1 + 2] = cutlass.select_(valid_1, scores[group * 4 + 1 + 2] * scale, -Float32.inf)


@cute.jit
def leave_maxima(red, scores, thread):
    """Leave the maximum of each head over the 16 tokens of each warp for the other warps."""
    risen = cute.make_rmem_tensor(HEAD_BLOCK // 2 // 2, Float32)
    for group in cutlass.range_constexpr(HEAD_BLOCK // 2 // 4):
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
        for column in cutlass.range_constexpr(HEAD_BLOCK // 2 // 2):
            red[(column // 2 * 8 + thread % 4 * 2 + column % 2) * 4 + thread // 32] = risen[column]


@cute.jit
def join_maxima(top, red, thread):
    """Compute the maxima of the heads over the four warps."""
    four = cute.make_rmem_tensor(4, Float32)
    for column in cutlass.range_constexpr(HEAD_BLOCK // 4):
        cute.autovec_copy(
            warps.piece(red, 4, column // 2 * 8 + thread % 4 * 2 + column % 2, 0, (HEAD_BLOCK, 4), 0), four
        )
        top[column] = cute.arch.fmax(cute.arch.fmax(four[0], four[1]), cute.arch.fmax(four[2], four[3]))


@cute.jit
def take_maxima(top, peak, red, thread):
    """Compute the maxima of the heads over the four warps.

    `grown` tells whether one rose more than `rise` powers of two above its reference. It is the same in
    every warp.
    """
    join_maxima(top, red, thread)
    above = Boolean(False)
    for column in cutlass.range_constexpr(HEAD_BLOCK // 4):
        above = above | (top[column] > peak[column] + 8.0)
    grown = warps.any_lane(above)
    return grown


@cute.jit
def raise_reference(peak, top, sums, stat_s, thread):
    """Raise the reference to the maximum: rescale the running sums, and leave each head's factor for O."""
    for column in cutlass.range_constexpr(HEAD_BLOCK // 4):
        highest = cute.arch.fmax(top[column], peak[column])
        factor = warps.exp2(peak[column] - highest)
        sums[column] = sums[column] * factor
        peak[column] = highest
        if thread < 4:
            stat_s[column // 2 * 8 + thread % 4 * 2 + column % 2] = factor


@cute.jit
def rescale_output(acc, held, stat_s, thread):
    """Multiply O^T by each head's factor."""
    for step in cutlass.range(16, unroll=1):
        first = step % 4 * 16
        factors = cute.make_rmem_tensor(16, Float32)
        for quad in cutlass.range_constexpr(4):
            cute.autovec_copy(warps.group(stat_s, 4, first // 4 + quad), warps.few(factors, quad * 4, 4))
        fragment_sm100.load_columns(held, acc, step * 16, thread)
        for i in cutlass.range_constexpr(16):
            held[i] = held[i] * factors[i]
        fragment_sm100.store_columns(held, acc, step * 16, thread)


@cute.jit
def weigh_tokens(scores, sums, peak):
    """Replace S by P = exp2(S - reference), and add P to this thread's running sums."""
    for i in cutlass.range_constexpr(HEAD_BLOCK // 2):
        scores[i] = warps.exp2(scores[i] - peak[i // 4 * 2 + i % 2])
        sums[i // 4 * 2 + i % 2] = sums[i // 4 * 2 + i % 2] + scores[i]


@cute.jit
def store_weights(target, scores, thread):
    """Write P as bf16 in the layout that its product reads. If there are eight heads, they are the rows."""
    for pair in cutlass.range_constexpr(HEAD_BLOCK // 2 // 8):
        warps.store_matrices(
            warps.piece(
                target, 8, thread // 32 * 16 + thread % 32 % 16, pair * 16 + thread % 32 // 16 * 8,
                (TILE, HEAD_BLOCK), 128
            ).iterator,
            scores, pair * 8, 4
        )


@cute.jit
def leave_sums(red, sums, thread):
    """Leave the sum of each head over the tokens of each warp for the other warps."""
    whole = cute.make_rmem_tensor(HEAD_BLOCK // 4, Float32)
    for column in cutlass.range_constexpr(HEAD_BLOCK // 4):
        own = sums[column]
        over_4 = own + warps.exchange(own, 4)
        over_8 = over_4 + warps.exchange(over_4, 8)
        over_16 = over_8 + warps.exchange(over_8, 16)
        whole[column] = over_16
    if thread % 32 < 4:
        for column in cutlass.range_constexpr(HEAD_BLOCK // 4):
            red[(column // 2 * 8 + thread % 4 * 2 + column % 2) * 4 + thread // 32] = whole[column]


@cute.jit
def join_sums(top, red, thread):
    """Compute the sums of the heads over the four warps."""
    four = cute.make_rmem_tensor(4, Float32)
    for column in cutlass.range_constexpr(HEAD_BLOCK // 4):
        cute.autovec_copy(
            warps.piece(red, 4, column // 2 * 8 + thread % 4 * 2 + column % 2, 0, (HEAD_BLOCK, 4), 0), four
        )
        top[column] = four[0] + four[1] + (four[2] + four[3])


@cute.jit
def finish_columns_split(red, lses, row, head0, split, top, peak, stat_s, splits, thread):
    """Write the lse of each head, and compute the factor that normalises its O^T, from sums and reference.

    If the row is not split, the factor includes the sink.
    """
    of_heads = lses + Int64(row * splits + split) * HEADS + head0
    join_sums(top, red, thread)
    if thread < 4:
        for column in cutlass.range_constexpr(HEAD_BLOCK // 4):
            head = column // 2 * 8 + thread % 4 * 2 + column % 2
            lse2 = cutlass.select_(top[column] > 0.0, warps.log2(top[column]) + peak[column], -Float32.inf)
            if head < HEAD_BLOCK:
                stat_s[head] = cutlass.select_(top[column] > 0.0, warps.rcp_approx(top[column]), 0.0)
                of_heads[head] = lse2


@cute.jit
def write_output_split(to, acc, row, head0, split, some, held, stat_s, splits, thread):
    """Write O^T times each head's factor, into the row or into a split's part of the row.

    Without `some` live tile it writes zeros.
    """
    for step in cutlass.range(16, unroll=1):
        first = step % 4 * 16
        factors = cute.make_rmem_tensor(16, Float32)
        for quad in cutlass.range_constexpr(4):
            cute.autovec_copy(warps.group(stat_s, 4, first // 4 + quad), warps.few(factors, quad * 4, 4))
        if some:
            fragment_sm100.load_columns(held, acc, step * 16, thread)
        d = step // 4 * 128 + thread
        for i in cutlass.range_constexpr(16):
            head = head0 + first + i
            of_head = to + Int64((row * splits + split) * HEADS + head) * 512
            of_head[d] = (factors[i] * cutlass.select_(some, held[i], 0.0)).to(Float32)


@cute.jit
def finish_columns(
    red, lses, lses_stride_0, row, head0, top, peak, stat_s, attn_sink, lse_scale, empty_lse, thread
):
    """Write the lse of each head, and compute the factor that normalises its O^T, from sums and reference.

    If the row is not split, the factor includes the sink.
    """
    of_heads = lses + Int64(row) * lses_stride_0 + head0
    join_sums(top, red, thread)
    if thread < 4:
        for column in cutlass.range_constexpr(HEAD_BLOCK // 4):
            head = column // 2 * 8 + thread % 4 * 2 + column % 2
            lse2 = cutlass.select_(top[column] > 0.0, warps.log2(top[column]) + peak[column], -Float32.inf)
            if head < HEAD_BLOCK:
                stat_s[head] = cutlass.select_(
                    top[column] > 0.0, warps.rcp_approx(top[column]), 0.0
                ) * cutlass.select_(
                    lse2 > -Float32.inf,
                    warps.rcp_approx(warps.exp2(attn_sink[head0 + head] * LOG2_E - lse2) + 1.0), 0.0
                )
                of_heads[head] = cutlass.select_(lse2 > -Float32.inf, lse2 * lse_scale, empty_lse)


@cute.jit
def write_output(to, to_stride_0, to_stride_1, acc, row, head0, some, held, stat_s, thread):
    """Write O^T times each head's factor, into the row or into a split's part of the row.

    Without `some` live tile it writes zeros.
    """
    for step in cutlass.range(16, unroll=1):
        first = step % 4 * 16
        factors = cute.make_rmem_tensor(16, Float32)
        for quad in cutlass.range_constexpr(4):
            cute.autovec_copy(warps.group(stat_s, 4, first // 4 + quad), warps.few(factors, quad * 4, 4))
        if some:
            fragment_sm100.load_columns(held, acc, step * 16, thread)
        d = step // 4 * 128 + thread
        for i in cutlass.range_constexpr(16):
            head = head0 + first + i
            of_head = to + Int64(row) * to_stride_0 + Int64(head) * to_stride_1
            of_head[d] = (factors[i] * cutlass.select_(some, held[i], 0.0)).to(cutlass.BFloat16)


@cute.jit
def merge_heads(
    row, head0, share, shares, o_partial, lse_partial, attn_sink, out, out_stride_0, out_stride_1, lse,
    lse_stride_0, splits, lse_scale, empty_lse, parts, thread
):
    """Write the weighted sum of the splits for a share of the heads, with four dims per thread.

    Heads are joined `together` at a time. A row without ids gives 0 and `empty_lse`.
    """
    own = (HEAD_BLOCK - share + shares - 1) // shares
    for turn in cutlass.range(0, own, 4, unroll=1):
        top = cute.make_rmem_tensor(4, Float32)
        total = cute.make_rmem_tensor(4, Float32)
        kept = cute.make_rmem_tensor(4, Float32)
        merged = cute.make_rmem_tensor(16, Float32)
        four = cute.make_rmem_tensor(4, Float32)
        weights = cute.make_rmem_tensor(8, Float32)
        for column in cutlass.range_constexpr(4):
            top[column] = Float32(-Float32.inf)
            total[column] = Float32(0.0)
        for i in cutlass.range_constexpr(16):
            merged[i] = Float32(0.0)
        for first in cutlass.range(0, parts, 2, unroll=1):
            for p in cutlass.range_constexpr(2):
                lses = lse_partial + Int64(row * splits + cutlass.min(first + p, parts - 1)) * HEADS
                for column in cutlass.range_constexpr(4):
                    weights[p * 4 + column] = cutlass.select_(
                        first + p < parts, lses[head0 + share + cutlass.min(turn + column, own - 1) * shares],
                        -Float32.inf
                    )
            for column in cutlass.range_constexpr(4):
                peak = Float32(top[column])
                for at in cutlass.range_constexpr(column, 8, 4):
                    peak = cute.arch.fmax(peak, weights[at])
                # The weight of an empty part is 0, even if all parts are empty.
                base = cutlass.select_(peak > -Float32.inf, peak, 0.0)
                kept[column] = warps.exp2(top[column] - base)
                top[column] = peak
                total[column] = total[column] * kept[column]
                for at in cutlass.range_constexpr(column, 8, 4):
                    weights[at] = warps.exp2(weights[at] - base)
                    total[column] = total[column] + weights[at]
            for i in cutlass.range_constexpr(16):
                merged[i] = merged[i] * kept[i // 4]
            for p in cutlass.range_constexpr(2):
                for u in cutlass.range_constexpr(4):
                    partial = o_partial + Int64(
                        (row * splits + cutlass.min(first + p, parts - 1)) * HEADS + (
                            head0 + share + cutlass.min(turn + u, own - 1) * shares
                        )
                    ) * 512
                    cute.autovec_copy(warps.group(partial, 4, thread), four)
                    for e in cutlass.range_constexpr(4):
                        merged[u * 4 + e] = merged[u * 4 + e] + four[e] * weights[p * 4 + (u * 4 + e) // 4]
        for column in cutlass.range_constexpr(4):
            if turn + column < own:
                head = head0 + share + cutlass.min(turn + column, own - 1) * shares
                joined = cutlass.select_(
                    total[column] > 0.0, warps.log2(total[column]) + top[column], -Float32.inf
                )
                scale = cutlass.select_(
                    total[column] > 0.0, warps.rcp_approx(total[column]), 0.0
                ) * cutlass.select_(
                    joined > -Float32.inf,
                    warps.rcp_approx(warps.exp2(attn_sink[head] * LOG2_E - joined) + 1.0), 0.0
                )
                to = out + Int64(row) * out_stride_0 + Int64(head) * out_stride_1 + thread * 4
                warps.store_pair(to, merged[column * 4] * scale, merged[column * 4 + 1] * scale)
                warps.store_pair(to + 2, merged[column * 4 + 2] * scale, merged[column * 4 + 2 + 1] * scale)
                if thread == 0:
                    of_row = lse + Int64(row) * lse_stride_0
                    of_row[head] = cutlass.select_(joined > -Float32.inf, joined * lse_scale, empty_lse)


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
def copy_rows(target, cache, cache_stride_0, first, low, high, n, thread):
    """Start the copies of `columns` columns of a tile's rows, from `first` on; zeros if an id names no
    row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    row = thread // 8
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(UNIT // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, UNIT), 128).iterator, cache,
            cache_stride_0, first + thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 16
    token = warps.shuffle(low, row % 32)
    for c in cutlass.range_constexpr(UNIT // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, UNIT), 128).iterator, cache,
            cache_stride_0, first + thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 32
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(UNIT // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, UNIT), 128).iterator, cache,
            cache_stride_0, first + thread % 8 * 8, token, c * 64, n
        )
    row = thread // 8 + 48
    token = warps.shuffle(high, row % 32)
    for c in cutlass.range_constexpr(UNIT // 64):
        warps.copy_row16(
            warps.piece(target, 8, row, (c * 8 + thread % 8) * 8, (TILE, UNIT), 128).iterator, cache,
            cache_stride_0, first + thread % 8 * 8, token, c * 64, n
        )


@cute.jit
def softmax(
    q_rows: cute.Pointer, indices: cute.Pointer, topk_length: cute.Pointer, attn_sink: cute.Pointer,
    out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer,
    arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32, empty_lse: Float32, has_lengths: Int32,
    cached: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32, t: Int32, q_rows_stride_t: Int32,
    q_rows_stride_h: Int32, topk: Int32, indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32,
    lse_stride: Int32, splits: Int32, q_s: cute.Pointer, p_s: cute.Pointer, red_s: cute.Pointer,
    stat_s: cute.Pointer, tmem: cute.Pointer, q_full: cute.Pointer, q_empty: cute.Pointer,
    s_full: cute.Pointer, s_empty: cute.Pointer, p_full: cute.Pointer, p_empty: cute.Pointer,
    o_full: cute.Pointer, cta: Int32, head0: Int32, done: Int32, it: Int32, low: Int32, high: Int32,
    in_low: Int32, in_high: Int32, live: Boolean, thread: Int32, lane: Int32
):
    """Queries, online softmax, lazy rescale, epilogue, merge."""
    scores = cute.make_rmem_tensor(HEAD_BLOCK // 2, Float32)
    sums = cute.make_rmem_tensor(HEAD_BLOCK // 4, Float32)
    top = cute.make_rmem_tensor(HEAD_BLOCK // 4, Float32)
    peak = cute.make_rmem_tensor(HEAD_BLOCK // 4, Float32)
    held = cute.make_rmem_tensor(16, Float32)
    worker = thread
    unit = Int32(cta // (HEADS // HEAD_BLOCK) * share)
    end = cta // (HEADS // HEAD_BLOCK) * share + reach
    while unit < end:
        row = unit // span
        first = unit - row * span
        turns = cutlass.min(end - unit, scalars.ceildiv(topk, TILE) - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * TILE, counted)
            low, high = read_ids(indices, indices_stride, row, first, stop, lane)
            if done == 0:
                cute.arch.mbarrier_wait(q_empty, (0 & 1) ^ 1)
                copy_block(q_s, q_rows, q_rows_stride_t, q_rows_stride_h, row, head0, worker)
                cute.arch.cp_async_mbarrier_arrive_noinc(q_full)
            begin = Int32(it)
            sums.fill(0.0)
            peak.fill(-Float32.inf)
            grown = Boolean(False)
            for turn in cutlass.range(turns, unroll=1):
                in_low, in_high, live = vote(low, high, cached)
                low, high = read_ids(indices, indices_stride, row, first + (turn + 1), stop, lane)
                if live:
                    cute.arch.mbarrier_wait(s_full + it % 2, (it // 2) & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # What a thread has of an accumulator of 64 rows, as wgmma leaves it, from tensor memory;
                    # waited for at the release.
                    fragment_sm100.read_accumulator(
                        scores, tmem + (UNITS * HEAD_BLOCK + it % 2 * HEAD_BLOCK), worker
                    )
                    cute.arch.fence_view_async_tmem_load()
                    nvvm.tcgen05_fence("before_thread_sync")
                    cute.arch.mbarrier_arrive(s_empty + it % 2)
                    mask_scores(scores, in_low, in_high, sm_scale, worker)
                    leave_maxima(red_s + it % 2 * (HEAD_BLOCK * 4), scores, worker)
                    cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                    grown = take_maxima(top, peak, red_s + it % 2 * (HEAD_BLOCK * 4), worker)
                    if grown:
                        raise_reference(peak, top, sums, stat_s, worker)
                        cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                        if it > begin:
                            cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                            nvvm.tcgen05_fence("after_thread_sync")
                            rescale_output(tmem, held, stat_s, worker)
                            # o: p also gives its slot back
                    cute.arch.mbarrier_wait(p_empty, (it & 1) ^ 1)
                    weigh_tokens(scores, sums, peak)
                    store_weights(p_s, scores, worker)
                    # If O was not rescaled, wait for it here: a parity tells only adjacent phases apart.
                    if (it > begin) & (grown == False):
                        cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                        nvvm.tcgen05_fence("after_thread_sync")
                        # o: p also gives its slot back
                    cute.arch.fence_proxy("async.shared", space="cta")
                    cute.arch.fence_view_async_tmem_load()
                    cute.arch.fence_view_async_tmem_store()
                    nvvm.tcgen05_fence("before_thread_sync")
                    cute.arch.mbarrier_arrive(p_full)
                    it = it + 1
            if ((row + row_step) * span < end) & (row + row_step < t):
                cute.arch.mbarrier_wait(q_empty, ((done + 1) & 1) ^ 1)
                copy_block(q_s, q_rows, q_rows_stride_t, q_rows_stride_h, row + row_step, head0, worker)
                cute.arch.cp_async_mbarrier_arrive_noinc(q_full)
            leave_sums(red_s + it % 2 * (HEAD_BLOCK * 4), sums, worker)
            cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
            if it > begin:
                cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                nvvm.tcgen05_fence("after_thread_sync")
            from_cta = row * span // share
            parts = (row * span + scalars.ceildiv(topk, TILE) - 1) // share - from_cta + 1
            if parts > 1:
                finish_columns_split(
                    red_s + it % 2 * (HEAD_BLOCK * 4), lse_partial, row, head0,
                    scalars.anew(cta // (HEADS // HEAD_BLOCK) - from_cta), top, peak, stat_s, splits, worker
                )
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                write_output_split(
                    o_partial, tmem, row, head0, scalars.anew(cta // (HEADS // HEAD_BLOCK) - from_cta),
                    it > begin, held, stat_s, splits, worker
                )
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                grid.count_in(arrivals + row * (HEADS // HEAD_BLOCK) + cta % (HEADS // HEAD_BLOCK), worker)
            else:
                finish_columns(
                    red_s + it % 2 * (HEAD_BLOCK * 4), lse, lse_stride, row, head0, top, peak, stat_s,
                    attn_sink, lse_scale, empty_lse, worker
                )
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                write_output(
                    out, out_stride_t, out_stride_h, tmem, row, head0, it > begin, held, stat_s, worker
                )
            if it > begin:
                # o: p also gives its slot back
                pass
            done = done + 1
        unit = (row + row_step) * span
    if splits > 1:
        unit = cta // (HEADS // HEAD_BLOCK) * share
        while unit < end:
            row = unit // span
            from_cta = row * span // share
            parts = (row * span + scalars.ceildiv(topk, TILE) - 1) // share - from_cta + 1
            if (row < t) & (unit - row * span < scalars.ceildiv(topk, TILE)) & (parts > 1):
                grid.await_count(
                    arrivals + row * (HEADS // HEAD_BLOCK) + cta % (HEADS // HEAD_BLOCK), parts, worker
                )
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                merge_heads(
                    row, head0, cta // (HEADS // HEAD_BLOCK) - from_cta, parts, o_partial, lse_partial,
                    attn_sink, out, out_stride_t, out_stride_h, lse, lse_stride, splits, lse_scale, empty_lse,
                    parts, worker
                )
                grid.count_out(
                    arrivals + row * (HEADS // HEAD_BLOCK) + cta % (HEADS // HEAD_BLOCK), parts, worker
                )
            unit = row * span + span


@cute.jit
def producer(
    ckv: cute.Pointer, indices: cute.Pointer, topk_length: cute.Pointer, has_lengths: Int32, cached: Int32,
    page_inverse: Int32, page_shift: Int32, page_gap: Int32, share: Int32, reach: Int32, span: Int32,
    row_step: Int32, t: Int32, n: Int32, ckv_stride: Int32, topk: Int32, indices_stride: Int32,
    kv_s: cute.Pointer, kv_full: cute.Pointer, kv_empty: cute.Pointer, cta: Int32, done: Int32, it: Int32,
    low: Int32, high: Int32, in_low: Int32, in_high: Int32, live: Boolean, thread: Int32, lane: Int32
):
    """Selected rows into the rings."""
    worker = thread % 128
    unit = Int32(cta // (HEADS // HEAD_BLOCK) * share)
    end = cta // (HEADS // HEAD_BLOCK) * share + reach
    while unit < end:
        row = unit // span
        first = unit - row * span
        turns = cutlass.min(end - unit, scalars.ceildiv(topk, TILE) - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * TILE, counted)
            low, high = read_ids(indices, indices_stride, row, first, stop, lane)
            for turn in cutlass.range(turns, unroll=1):
                in_low, in_high, live = vote(low, high, cached)
                now_low, now_high = find_rows(low, high, cached, page_inverse, page_shift, page_gap)
                low, high = read_ids(indices, indices_stride, row, first + (turn + 1), stop, lane)
                if live:
                    for c in cutlass.range(UNITS, unroll=1):
                        cute.arch.mbarrier_wait(
                            kv_empty + (it * UNITS + c) % UNIT_STAGES,
                            (((it * UNITS + c) // UNIT_STAGES) & 1) ^ 1
                        )
                        copy_rows(
                            kv_s + (it * UNITS + c) % UNIT_STAGES * (TILE * UNIT), ckv, ckv_stride, c * UNIT,
                            now_low, now_high, n, worker
                        )
                        cute.arch.cp_async_mbarrier_arrive_noinc(kv_full + (it * UNITS + c) % UNIT_STAGES)
                    it = it + 1
            done = done + 1
        unit = (row + row_step) * span


@cute.jit
def mma(
    indices: cute.Pointer, topk_length: cute.Pointer, has_lengths: Int32, cached: Int32, share: Int32,
    reach: Int32, span: Int32, row_step: Int32, t: Int32, topk: Int32, indices_stride: Int32,
    q_s: cute.Pointer, kv_s: cute.Pointer, p_s: cute.Pointer, tmem: cute.Pointer, q_full: cute.Pointer,
    q_empty: cute.Pointer, kv_full: cute.Pointer, kv_empty: cute.Pointer, s_full: cute.Pointer,
    s_empty: cute.Pointer, p_full: cute.Pointer, p_empty: cute.Pointer, o_full: cute.Pointer, cta: Int32,
    done: Int32, it: Int32, low: Int32, high: Int32, in_low: Int32, in_high: Int32, live: Boolean,
    lane: Int32
):
    """Issues every tcgen05.mma and commit."""
    qk_nope_a = QK_NOPE.operand_a(kv_s, TILE, UNIT, UNIT_STAGES, 128)
    qk_nope_b = QK_NOPE.operand_b(q_s, HEAD_BLOCK, LATENT_DIM, 1, 128)
    pv_a = PV.operand_a(kv_s, TILE, UNIT, UNIT_STAGES, 128)
    pv_b = PV.operand_b(p_s, TILE, HEAD_BLOCK, TILE_STAGES, 128)
    unit = Int32(cta // (HEADS // HEAD_BLOCK) * share)
    end = cta // (HEADS // HEAD_BLOCK) * share + reach
    while unit < end:
        row = unit // span
        first = unit - row * span
        turns = cutlass.min(end - unit, scalars.ceildiv(topk, TILE) - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * TILE, counted)
            low, high = read_ids(indices, indices_stride, row, first, stop, lane)
            cute.arch.mbarrier_wait(q_full, done & 1)
            cute.arch.fence_proxy("async.shared", space="cta")
            nvvm.tcgen05_fence("after_thread_sync")
            begin = Int32(it)
            for turn in cutlass.range(turns + 1, unroll=1):
                in_low, in_high, live = vote(low, high, cached)
                low, high = read_ids(indices, indices_stride, row, first + (turn + 1), stop, lane)
                late = it > begin
                before = it - 1
                if live:
                    cute.arch.mbarrier_wait(s_empty + it % 2, ((it // 2) & 1) ^ 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    for c in cutlass.range(UNITS, unroll=1):
                        cute.arch.mbarrier_wait(
                            kv_full + (it * UNITS + c) % UNIT_STAGES, ((it * UNITS + c) // UNIT_STAGES) & 1
                        )
                        cute.arch.fence_proxy("async.shared", space="cta")
                        nvvm.tcgen05_fence("after_thread_sync")
                        # S^T += K Q^T, a unit of the dims
                        QK_NOPE.multiply(
                            qk_nope_a[None, None, None, (it * UNITS + c) % UNIT_STAGES],
                            qk_nope_b[None, None, None, c], tmem + (UNITS * HEAD_BLOCK + it % 2 * HEAD_BLOCK),
                            c > 0
                        )
                    with cute.arch.elect_one():
                        tcgen05.commit(s_full + it % 2)
                    it = it + 1
                if turn == turns:
                    with cute.arch.elect_one():
                        tcgen05.commit(q_empty)
                # A tile's values come after the next tile's scores, so softmax never idles.
                if late & (live | (turn == turns)):
                    cute.arch.mbarrier_wait(p_full, before & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # o: p also gives its slot back
                    for c in cutlass.range(UNITS, unroll=1):
                        # O^T += K^T P^T, a unit of the dims
                        PV.multiply(
                            pv_a[None, None, None, (before * UNITS + c) % UNIT_STAGES],
                            pv_b[None, None, None, 0], tmem + c * HEAD_BLOCK, before > begin
                        )
                        with cute.arch.elect_one():
                            tcgen05.commit(kv_empty + (before * UNITS + c) % UNIT_STAGES)
                    with cute.arch.elect_one():
                        tcgen05.commit(p_empty)
                    with cute.arch.elect_one():
                        tcgen05.commit(o_full)
            done = done + 1
        unit = (row + row_step) * span


@cute.kernel
def sparse_mla__cutedsl_sm100a__h128_nope_bt64_cl1_cp_async(
    q_rows: cute.Pointer, ckv: cute.Pointer, indices: cute.Pointer, topk_length: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32,
    empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_gap: Int32, ctas: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32, t: Int32,
    q_rows_stride_t: Int32, q_rows_stride_h: Int32, n: Int32, ckv_stride: Int32, topk: Int32,
    indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32, lse_stride: Int32, splits: Int32,
    counters: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    kv_s = shared.kv_s.data_ptr()
    p_s = shared.p_s.data_ptr()
    red_s = shared.red_s.data_ptr()
    stat_s = shared.stat_s.data_ptr()
    q_full = shared.q_full.data_ptr()
    q_empty = shared.q_empty.data_ptr()
    kv_full = shared.kv_full.data_ptr()
    kv_empty = shared.kv_empty.data_ptr()
    s_full = shared.s_full.data_ptr()
    s_empty = shared.s_empty.data_ptr()
    p_full = shared.p_full.data_ptr()
    p_empty = shared.p_empty.data_ptr()
    o_full = shared.o_full.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    cta, _, _ = cute.arch.block_idx()
    head0 = cta % (HEADS // HEAD_BLOCK) * HEAD_BLOCK
    done = Int32(0)
    it = Int32(0)
    low = Int32(0)
    high = Int32(0)
    in_low = Int32(0)
    in_high = Int32(0)
    live = Boolean(False)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_full + i, 128)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_empty + i, 1)
            for i in cutlass.range_constexpr(UNIT_STAGES):
                cute.arch.mbarrier_init(kv_full + i, 128)
            for i in cutlass.range_constexpr(UNIT_STAGES):
                cute.arch.mbarrier_init(kv_empty + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(s_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(s_empty + i, 128)
            for i in cutlass.range_constexpr(TILE_STAGES):
                cute.arch.mbarrier_init(p_full + i, 128)
            for i in cutlass.range_constexpr(TILE_STAGES):
                cute.arch.mbarrier_init(p_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(o_full + i, 1)
            cute.arch.mbarrier_init_fence()
    if warp == 1:
        cute.arch.alloc_tmem(512, shared.tmem)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, shared.tmem)
    if warp < 4:
        softmax(
            q_rows, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale,
            lse_scale, empty_lse, has_lengths, cached, share, reach, span, row_step, t, q_rows_stride_t,
            q_rows_stride_h, topk, indices_stride, out_stride_t, out_stride_h, lse_stride, splits, q_s, p_s,
            red_s, stat_s, tmem, q_full, q_empty, s_full, s_empty, p_full, p_empty, o_full, cta, head0, done,
            it, low, high, in_low, in_high, live, thread, lane
        )
    elif warp < 8:
        producer(
            ckv, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap, share, reach,
            span, row_step, t, n, ckv_stride, topk, indices_stride, kv_s, kv_full, kv_empty, cta, done, it,
            low, high, in_low, in_high, live, thread, lane
        )
    else:
        mma(
            indices, topk_length, has_lengths, cached, share, reach, span, row_step, t, topk, indices_stride,
            q_s, kv_s, p_s, tmem, q_full, q_empty, kv_full, kv_empty, s_full, s_empty, p_full, p_empty,
            o_full, cta, done, it, low, high, in_low, in_high, live, lane
        )
    # Tensor memory goes back only when no role can touch it any more.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if thread // 32 == 1:
        cute.arch.dealloc_tmem(tmem, 512)


@cute.jit
def program(
    q_rows: cute.Pointer, ckv: cute.Pointer, indices: cute.Pointer, topk_length: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32,
    empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_gap: Int32, ctas: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32, t: Int32,
    q_rows_stride_t: Int32, q_rows_stride_h: Int32, n: Int32, ckv_stride: Int32, topk: Int32,
    indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32, lse_stride: Int32, splits: Int32,
    counters: Int32
):
    kernel = sparse_mla__cutedsl_sm100a__h128_nope_bt64_cl1_cp_async(
        q_rows, ckv, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale,
        lse_scale, empty_lse, has_lengths, cached, page_inverse, page_shift, page_gap, ctas, share, reach,
        span, row_step, t, q_rows_stride_t, q_rows_stride_h, n, ckv_stride, topk, indices_stride,
        out_stride_t, out_stride_h, lse_stride, splits, counters
    )
    kernel.launch(grid=(1, 1, 1), block=(288, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1)
