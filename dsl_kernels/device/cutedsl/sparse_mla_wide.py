"""Leaf pieces of sparse attention with 64 heads a CTA on Hopper in CuTe DSL: heads on M, two warpgroups.

S is heads by tokens, each warpgroup with half of the tokens, and O is heads by dims, each with half of the dims. A row of
either lies in the four lanes of a quad, so that only the maximum of a head crosses between the warpgroups.
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from . import sparse_mla as leaf

HEADS = 64
HALF_TOKENS = leaf.TILE // 2
HALF_DIMS = 256
THREADS = 256


def across_quad(value, combine):
    """Combine over the four lanes that hold a row."""
    for step in (1, 2):
        value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=step))
    return value


def group_of(thread):
    """Which warpgroup a thread is of, and its number within it; addresses made of them leave a loop."""
    return thread // 128, thread % 128


def row_of(i):
    """Which of a thread's two rows accumulator element i lies in."""
    return i // 2 % 2


def mask_columns(scores, low, high, sm_scale, thread):
    """Scale the logits to base 2 and put -inf in the columns (tokens) without a valid id, given by the tile's two words of bits."""
    (group, thread), scale = group_of(thread), sm_scale * leaf.LOG2E
    bits = Int32(cutlass.select_(group == 0, low, high)) >> (thread % 4 * 2)
    for i in range(cute.size(scores)):
        inside = ((bits >> (i // 4 * 8 + i % 2)) & 1) != 0
        scores[i] = Float32(cutlass.select_(inside, scores[i] * scale, Float32(-math.inf)))


def _halves(red):
    """A value a head and warpgroup: [2, 64]."""
    return cute.make_tensor(red, cute.make_layout((2, HEADS), stride=(HEADS, 1)))


@cute.jit
def _share(rows: cute.Tensor, red: cute.Pointer, thread: Int32, maximum: cutlass.Constexpr):
    """Combine each row over its quad and leave it for the other warpgroup."""
    (group, thread), red = group_of(thread), _halves(red)
    for r in cutlass.range_constexpr(2):
        rows[r] = across_quad(rows[r], cute.arch.fmax if maximum else leaf.add)
    if thread % 4 == 0:
        for r in cutlass.range_constexpr(2):
            red[group, thread // 32 * 16 + thread % 32 // 4 + r * 8] = rows[r]


def share_maxima(rows, red, thread):
    """Leave the maxima of this warpgroup's half for the other."""
    _share(rows, red, thread, True)


def share_sums(rows, sums, red, thread):
    """Leave the sums of this warpgroup's half for the other."""
    for r in range(2):
        rows[r] = sums[r]
    _share(rows, red, thread, False)


def row_maxima(rows, scores):
    """Maxima of this thread's two heads over its own tokens."""
    for r in range(2):
        mine = [i for i in range(cute.size(scores)) if row_of(i) == r]
        top = scores[mine[0]]
        for i in mine[1:]:
            top = cute.arch.fmax(top, scores[i])
        rows[r] = top


def softmax_rows(scores, sums, acc, peak, rows, red, thread):
    """P = exp2(S - maximum) in place of S, with the maximum of both halves; rescale the sums and O to it."""
    (group, thread), red = group_of(thread), _halves(red)
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


def store_rows(target, weights, thread):
    """Write this half of P as bf16, heads by tokens."""
    (group, thread), to = group_of(thread), target.toint()
    warp, lane = thread // 32, thread % 32
    words = [leaf.pack(weights[2 * i], weights[2 * i + 1]) for i in range(cute.size(weights) // 2)]
    row = warp * 16 + lane % 16
    for pair in range(len(words) // 4):
        at = to + leaf.piece(row, group * 4 + pair * 2 + lane // 16, 128, HEADS)
        cute.arch.inline_ptx(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
            read_only_args=[at, *words[4 * pair : 4 * pair + 4]],
        )


def normalise_rows(acc, sums, peak, rows, red, thread):
    """O / sum in place, and the base-2 lse in place of the sums; an empty row gives 0 and -inf."""
    (group, thread), red = group_of(thread), _halves(red)
    for r in range(2):
        total = rows[r] + red[1 - group, thread // 32 * 16 + thread % 32 // 4 + r * 8]
        inverse = leaf.inverse_of(total)
        sums[r] = leaf.lse_of(total, peak[r])
        for i in range(cute.size(acc)):
            if row_of(i) == r:
                acc[i] = acc[i] * inverse


@cute.jit
def leave_rows(
    acc: cute.Tensor,
    lses: cute.Tensor,
    o_partial: cute.Pointer,
    lse_partial: cute.Pointer,
    row: Int32,
    splits: Int32,
    split: Int32,
    head0: Int32,
    heads: cutlass.Constexpr,
    thread: Int32,
):
    """Write this warpgroup's normalised half of O and its lses, for `merge_rows`."""
    group, thread = group_of(thread)
    heads_at = (Int64(row) * splits + split) * heads + head0
    room = heads_at * 512 + group * (HEADS * HALF_DIMS) + thread * 4
    for u in cutlass.range_constexpr(cute.size(acc) // 4):
        leaf.store_partial(o_partial, room + u * (4 * leaf.CONSUMERS), [acc[4 * u + e] for e in range(4)])
    if (thread % 4 == 0) & (group == 0):
        to = cute.make_tensor(
            lse_partial + (heads_at + thread // 32 * 16 + thread % 32 // 4), cute.make_layout(9)
        )
        to[0], to[8] = lses[0], lses[1]


@cute.jit
def merge_rows(
    acc: cute.Tensor,
    lses: cute.Tensor,
    o_partial: cute.Pointer,
    lse_partial: cute.Pointer,
    row: Int32,
    parts: Int32,
    head0: Int32,
    heads: cutlass.Constexpr,
    thread: Int32,
):
    """Replace this thread's rows of O and their lses by those of all splits."""
    group, thread = group_of(thread)
    heads_at = Int64(row) * parts * heads + head0
    room = heads_at * 512 + group * (HEADS * HALF_DIMS) + thread * 4
    o_step, lse_step = cutlass.const_expr(heads * 512), cutlass.const_expr(heads)
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
def store_result_rows(
    out: cute.Pointer,
    lse: cute.Pointer,
    acc: cute.Tensor,
    lses: cute.Tensor,
    sinks: cute.Tensor,
    row0: Int32,
    head0: Int32,
    heads: cutlass.Constexpr,
    scratch: cute.Pointer,
    lse_scale: Float32,
    thread: Int32,
):
    """Store this warpgroup's half of O as bf16, each head scaled by the share that tokens keep beside its sink; and the lse.

    The rows pass through shared memory, 32 KB a warpgroup from `scratch` on, so that whole rows go out at once.
    """
    group, thread = group_of(thread)
    first = Int64(row0) * heads + head0
    for r in cutlass.range_constexpr(2):
        kept = cute.arch.rcp_approx(1.0 + cute.arch.exp2(sinks[r] * leaf.LOG2E - lses[r]))
        sinks[r] = Float32(cutlass.select_(lses[r] > -math.inf, kept, Float32(0.0)))
    warp, lane = thread // 32, thread % 32
    mine = scratch.toint() + group * (HEADS * HALF_DIMS * 2)
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


def load_row_sinks(sinks, attn_sink, head0, thread):
    """The sink logits of a thread's two heads, read long before they are wanted."""
    _, thread = group_of(thread)
    pair = cute.make_tensor(attn_sink + (head0 + thread // 32 * 16 + thread % 32 // 4), cute.make_layout(9))
    sinks[0], sinks[1] = pair[0], pair[8]


@cute.jit
def load_query_rows(
    target: cute.Pointer,
    q: cute.Pointer,
    row: Int32,
    head0: Int32,
    heads: cutlass.Constexpr,
    columns: cutlass.Constexpr,
    thread: Int32,
):
    """Copy the rows of 64 heads of one query, by both warpgroups."""
    to, row_bytes = target.toint(), cutlass.const_expr(columns * 2)
    base = q.toint() + (Int64(row) * heads + head0) * row_bytes
    pieces = row_bytes // 16
    for batch in cutlass.range_constexpr(max(1, HEADS * pieces // (THREADS * 8))):
        indices = [thread + (batch * 8 + i) * THREADS for i in range(min(8, HEADS * pieces // THREADS))]
        words = [leaf.read16(base + Int64(i * 16)) for i in indices]
        for i, index in enumerate(indices):
            at = to + leaf.piece(index // pieces, index % pieces, min(row_bytes, 128), HEADS)
            leaf.write16(at, words[i])
