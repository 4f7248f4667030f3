"""Leaf pieces of sparse attention with 64 heads a CTA on Hopper in CuTe DSL: heads on M, two warpgroups.

S is heads by tokens, each warpgroup with half of the tokens, and O is heads by dims, each with half of the dims. A row of
either lies in the four lanes of a quad, so that only the maximum of a head crosses between the warpgroups.
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from . import sparse_mla as leaf

HEADS = 64
HALF_TOKENS = leaf.TILE // 2
HALF_DIMS = 256
THREADS = 256


def products():
    """(S, O): 64 heads x 32 tokens and 64 heads x 256 dims, all operands in shared memory."""
    source, k, mn = warpgroup.OperandSource.SMEM, warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN
    op = warpgroup.MmaF16BF16Op
    return (
        cute.make_tiled_mma(op(BFloat16, Float32, (HEADS, HALF_TOKENS, 16), source, k, k)),
        cute.make_tiled_mma(op(BFloat16, Float32, (HEADS, HALF_DIMS, 16), source, k, mn)),
    )


def score_operands(mma, keys, queries, dims, stages, group, thread):
    """Fragments of the queries [64, dims] and of this warpgroup's half of the keys [32, dims, stages]."""
    part = mma.get_slice(thread)
    tile = leaf.view(keys, leaf.k_major(leaf.TILE, dims, stages))
    half = cute.local_tile(tile, (HALF_TOKENS, dims, stages), (group, 0, 0))
    a = mma.make_fragment_A(part.partition_A(leaf.view(queries, leaf.k_major(HEADS, dims))))
    return a, mma.make_fragment_B(part.partition_B(half))


def value_operands(mma, keys, weights, dims, stages, group, thread):
    """Fragments of P [64, 64] and of this warpgroup's half of the dims of the keys [256, 64, stages]."""
    part = mma.get_slice(thread)
    tile = leaf.view(keys, leaf.mn_major(dims, leaf.TILE, stages))
    half = cute.local_tile(tile, (HALF_DIMS, leaf.TILE, stages), (group, 0, 0))
    a = mma.make_fragment_A(part.partition_A(leaf.view(weights, leaf.k_major(HEADS, leaf.TILE))))
    return a, mma.make_fragment_B(part.partition_B(half))


def multiply(mma, acc, a, b, accumulate):
    """Issue acc (+)= a b over all K steps; the first step overwrites unless `accumulate`."""
    mma.set(warpgroup.Field.ACCUMULATE, accumulate)
    for step in range(cute.size(a, mode=[2])):
        cute.gemm(mma, acc, a[None, None, step], b[None, None, step], acc)
        mma.set(warpgroup.Field.ACCUMULATE, True)


def across_quad(value, combine):
    """Combine over the four lanes that hold a row."""
    for step in (1, 2):
        value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=step))
    return value


def row_of(i):
    """Which of a thread's two rows accumulator element i lies in."""
    return i // 2 % 2


def mask_scores(scores, low, high, scale, group, thread):
    """Scale the logits and put -inf in the columns (tokens) without a valid id, given by the tile's two words of bits."""
    bits = Int32(cutlass.select_(group == 0, low, high)) >> (thread % 4 * 2)
    for i in range(cute.size(scores)):
        inside = ((bits >> (i // 4 * 8 + i % 2)) & 1) != 0
        scores[i] = Float32(cutlass.select_(inside, scores[i] * scale, Float32(-math.inf)))


@cute.jit
def share_rows(rows: cute.Tensor, red: cute.Tensor, group: Int32, thread: Int32, maximum: cutlass.Constexpr):
    """Combine each row over its quad and leave it for the other warpgroup in red [2, 64]."""
    for r in cutlass.range_constexpr(2):
        rows[r] = across_quad(rows[r], cute.arch.fmax if maximum else leaf.add)
    if thread % 4 == 0:
        for r in cutlass.range_constexpr(2):
            red[group, thread // 32 * 16 + thread % 32 // 4 + r * 8] = rows[r]


def row_maxima(scores):
    rows = cute.make_rmem_tensor((2,), Float32)
    for r in range(2):
        mine = [i for i in range(cute.size(scores)) if row_of(i) == r]
        top = scores[mine[0]]
        for i in mine[1:]:
            top = cute.arch.fmax(top, scores[i])
        rows[r] = top
    return rows


def softmax(scores, sums, acc, peak, rows, red, group, thread):
    """P = exp2(S - maximum) in place of S, with the maximum of both halves; rescale the sums and O to it."""
    for r in range(2):
        other = red[1 - group, thread // 32 * 16 + thread % 32 // 4 + r * 8]
        risen = cute.arch.fmax(peak[r], cute.arch.fmax(rows[r], other))
        decay = cute.arch.exp2(peak[r] - risen)
        peak[r] = risen
        total = sums[r] * decay
        for i in range(cute.size(scores)):
            if row_of(i) == r:
                scores[i] = cute.arch.exp2(scores[i] - risen)
                total = total + scores[i]
        sums[r] = total
        for i in range(cute.size(acc)):
            if row_of(i) == r:
                acc[i] = acc[i] * decay


def store_weights(to, weights, group, thread):
    """Write this half of P as bf16 rows (heads) of `k_major(64, 64)` at shared address `to`."""
    warp, lane = thread // 32, thread % 32
    words = [leaf.pack(weights[2 * i], weights[2 * i + 1]) for i in range(cute.size(weights) // 2)]
    row = warp * 16 + lane % 16
    for pair in range(len(words) // 4):
        at = to + leaf.piece(row, group * 4 + pair * 2 + lane // 16, 128, HEADS)
        cute.arch.inline_ptx(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
            read_only_args=[at, *words[4 * pair : 4 * pair + 4]],
        )


def normalise(acc, sums, peak, rows, red, group, thread):
    """O / sum in place, and the base-2 lse in place of the sums; an empty row gives 0 and -inf."""
    for r in range(2):
        total = rows[r] + red[1 - group, thread // 32 * 16 + thread % 32 // 4 + r * 8]
        inverse = leaf.inverse_of(total)
        sums[r] = leaf.lse_of(total, peak[r])
        for i in range(cute.size(acc)):
            if row_of(i) == r:
                acc[i] = acc[i] * inverse


@cute.jit
def leave_part(
    acc: cute.Tensor,
    lses: cute.Tensor,
    o_partial: cute.Pointer,
    lse_partial: cute.Pointer,
    room: Int64,
    heads_at: Int64,
    group: Int32,
    thread: Int32,
):
    """Write this warpgroup's normalised half of O and its lses, for `merge_parts`."""
    for u in cutlass.range_constexpr(cute.size(acc) // 4):
        leaf.store_partial(o_partial, room + u * (4 * leaf.CONSUMERS), [acc[4 * u + e] for e in range(4)])
    if (thread % 4 == 0) & (group == 0):
        to = cute.make_tensor(
            lse_partial + (heads_at + thread // 32 * 16 + thread % 32 // 4), cute.make_layout(9)
        )
        to[0], to[8] = lses[0], lses[1]


@cute.jit
def merge_parts(
    acc: cute.Tensor,
    lses: cute.Tensor,
    o_partial: cute.Pointer,
    lse_partial: cute.Pointer,
    room: Int64,
    heads_at: Int64,
    o_step: cutlass.Constexpr,
    lse_step: cutlass.Constexpr,
    parts: Int32,
    thread: Int32,
):
    """Replace this thread's rows of O and their lses by those of all parts."""
    pairs = cute.make_tensor(
        lse_partial + (heads_at + thread // 32 * 16 + thread % 32 // 4), cute.make_layout(1 << 30)
    )
    top = Float32(-math.inf)
    top_below = Float32(-math.inf)
    for p in cutlass.range(parts, unroll=1):
        top = cute.arch.fmax(top, pairs[p * lse_step])
        top_below = cute.arch.fmax(top_below, pairs[p * lse_step + 8])
    total = Float32(0.0)
    total_below = Float32(0.0)
    acc.fill(0.0)
    for p in cutlass.range(parts, unroll=1):
        share = leaf.weight(pairs[p * lse_step], top)
        share_below = leaf.weight(pairs[p * lse_step + 8], top_below)
        total += share
        total_below += share_below
        for u in cutlass.range_constexpr(cute.size(acc) // 4):
            four = leaf.load_partial(o_partial, room + Int64(p) * o_step + u * (4 * leaf.CONSUMERS))
            for e in cutlass.range_constexpr(4):
                acc[4 * u + e] = acc[4 * u + e] + four[e] * (share if e < 2 else share_below)
    inverse = leaf.inverse_of(total)
    inverse_below = leaf.inverse_of(total_below)
    lses[0] = leaf.lse_of(total, top)
    lses[1] = leaf.lse_of(total_below, top_below)
    for u in cutlass.range_constexpr(cute.size(acc) // 4):
        for e in cutlass.range_constexpr(4):
            acc[4 * u + e] = acc[4 * u + e] * (inverse if e < 2 else inverse_below)


@cute.jit
def store_result(
    out: cute.Pointer,
    lse: cute.Pointer,
    acc: cute.Tensor,
    lses: cute.Tensor,
    sinks: cute.Tensor,
    first: Int64,
    scratch: Int32,
    group: Int32,
    lse_scale: Float32,
    thread: Int32,
):
    """Store this warpgroup's half of O as bf16, each head scaled by the share that tokens keep beside its sink; and the lse.

    The rows pass through shared memory, 32 KB a warpgroup from address `scratch` on, so that whole rows go out at once.
    """
    for r in cutlass.range_constexpr(2):
        kept = cute.arch.rcp_approx(1.0 + cute.arch.exp2(sinks[r] * leaf.LOG2E - lses[r]))
        sinks[r] = Float32(cutlass.select_(lses[r] > -math.inf, kept, Float32(0.0)))
    warp, lane = thread // 32, thread % 32
    mine = scratch + group * (HEADS * HALF_DIMS * 2)
    row = warp * 16 + lane % 16
    for pair in cutlass.range_constexpr(HALF_DIMS // 16):
        words = [
            leaf.pack(acc[8 * pair + 2 * i] * sinks[i % 2], acc[8 * pair + 2 * i + 1] * sinks[i % 2])
            for i in range(4)
        ]
        at = mine + row * (HALF_DIMS * 2) + ((pair * 2 + lane // 16) ^ (row % 8)) * 16
        cute.arch.inline_ptx(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
            read_only_args=[at, *words],
        )
    # A warp reads back only the rows that it wrote.
    cute.arch.sync_warp()
    for i in cutlass.range_constexpr(16):
        head = warp * 16 + i
        words = cute.arch.inline_ptx(
            "ld.shared.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
            write_only_types=[Int32] * 4,
            read_only_args=[mine + head * (HALF_DIMS * 2) + (lane ^ (head % 8)) * 16],
        )
        to = out.toint() + ((first + head) * 512 + group * HALF_DIMS + lane * 8) * 2
        cute.arch.inline_ptx(
            "st.global.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};", read_only_args=[to, *words]
        )
    if (thread % 4 == 0) & (group == 0):
        pair_of = cute.make_tensor(lse + (first + warp * 16 + lane // 4), cute.make_layout(9))
        pair_of[0], pair_of[8] = lses[0] * lse_scale, lses[1] * lse_scale


def load_sinks(sinks, attn_sink, thread):
    """The sink logits of a thread's two heads, read long before they are wanted."""
    pair = cute.make_tensor(attn_sink + (thread // 32 * 16 + thread % 32 // 4), cute.make_layout(9))
    sinks[0], sinks[1] = pair[0], pair[8]


@cute.jit
def load_queries(to: Int32, base: Int64, row_bytes: cutlass.Constexpr, thread: Int32):
    """Copy 64 dense query rows of `row_bytes` from `base` into `k_major(64, row_bytes / 2)` by both warpgroups."""
    pieces = row_bytes // 16
    for batch in cutlass.range_constexpr(max(1, HEADS * pieces // (THREADS * 8))):
        indices = [thread + (batch * 8 + i) * THREADS for i in range(min(8, HEADS * pieces // THREADS))]
        words = [leaf.read16(base + Int64(i * 16)) for i in indices]
        for i, index in enumerate(indices):
            at = to + leaf.piece(index // pieces, index % pieces, min(row_bytes, 128), HEADS)
            leaf.write16(at, words[i])


@cute.jit
def take_ticket(last_s: cute.Pointer, counter: cute.Pointer, total: Int32, barrier: Int32, thread: Int32):
    """True in the last of `total` arrivals, which sees what all of them wrote and resets the counter."""
    cute.arch.barrier(barrier_id=barrier, number_of_threads=THREADS)
    flag = cute.make_tensor(last_s, cute.make_layout(1))
    if thread == 0:
        before = cute.arch.atomic_add(counter, Int32(1), sem="acq_rel", scope="gpu")
        flag[0] = before
        if before == total - 1:
            cute.make_tensor(counter, cute.make_layout(1))[0] = Int32(0)
    cute.arch.barrier(barrier_id=barrier, number_of_threads=THREADS)
    return flag[0] == total - 1
