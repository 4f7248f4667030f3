"""Leaf pieces of sparse attention with 64 heads a CTA on Hopper in CuTe DSL: heads on M, a warpgroup a side.

A side scores half of a tile, heads by tokens, and has half of the dims of O. A row of either lies in the four lanes of a
quad, so that only the maximum of a head crosses between the warpgroups.
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from . import gqa_forward
from . import sparse_mla as leaf
from .fragment import across_quad, flat, row_of
from .gqa_forward import exp2, reduced

HEADS = 64
TOKENS = leaf.TILE // 2
HALF_DIMS = 256
THREADS = 128

rescale_rows = gqa_forward.rescale_rows


def fetch_half(kv_cache, ids, n, thread):
    """Have the L2 fetch the tokens of half a tile: four threads a token, every fourth of its lines each."""
    token, line = cute.arch.shuffle_sync(ids, thread // 4), thread % 4 * 128
    first = kv_cache.toint() + Int64(token) * leaf.TOKEN_BYTES
    for more in range(0, leaf.TOKEN_BYTES, 512):
        inside = leaf.valid(token, n) & (line + more < leaf.TOKEN_BYTES)
        cute.arch.inline_ptx(
            "{ .reg .pred p; setp.ne.b32 p, {$r1}, 0; @p prefetch.global.L2 [{$r0}]; }",
            read_only_args=[first + Int64(line + more), Int32(inside)],
        )


def renew_half(words: cute.Tensor, ckv, kpe, kv_cache, ids, n, thread):
    """Write the half tile in place 0 as bf16 rows and, as room is made, read the tokens of these ids: a quarter of one each thread."""
    row, quarter, token = thread // 4, thread % 4, cute.arch.shuffle_sync(ids, thread // 4)
    scales = [
        cute.arch.shuffle_sync(Int32(words[leaf.HALF_SCALES]), thread % 32 // 4 * 4 + group)
        for group in range(4)
    ]
    inside = leaf.valid(token, n)
    base = kv_cache.toint() + Int64(cutlass.select_(inside, token, Int32(0))) * leaf.TOKEN_BYTES

    def renew(at, first):
        """What lies behind the warp's barrier stays there: left alone, ptxas would put all of the loads behind the last arithmetic."""
        leaf.read_where(words, at, 4, base + Int64(first + quarter * 16), inside)
        cute.arch.sync_warp()

    for u in range(2):
        at = leaf.HALF_ROPE + u * 4
        to = kpe.toint() + leaf.piece(row, u * 4 + quarter, 128, TOKENS)
        leaf.write16(to, [Int32(words[at + w]) for w in range(4)])
        renew(at, leaf.ROPE_AT + u * 64)
    for panel in range(8):
        four = [Int32(words[panel * 4 + w]) for w in range(4)]
        leaf.store_sixteen(ckv.toint(), row, TOKENS, panel, quarter, four, scales[panel // 2])
        renew(panel * 4, panel * 64)
    # Behind all uses of the one before, so that it can take its register.
    leaf.read_where(words, leaf.HALF_SCALES, 1, base + Int64(leaf.SCALES_AT + quarter * 4), inside)


SHARE_ROPE, SHARE_SCALES = 16, 20
"""Where the words of rope and the scale begin among those of a thread's share of half a tile."""


def fetch_share(kv_cache, rank, ids, n, thread):
    """Have the L2 fetch half of the tokens of half a tile: eight threads a token, one of its lines each."""
    token, line = cute.arch.shuffle_sync(ids, rank * 16 + thread // 8), thread % 8 * 128
    first = kv_cache.toint() + Int64(token) * leaf.TOKEN_BYTES
    inside = leaf.valid(token, n) & (line < leaf.TOKEN_BYTES)
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.b32 p, {$r1}, 0; @p prefetch.global.L2 [{$r0}]; }",
        read_only_args=[first + Int64(line), Int32(inside)],
    )


def load_share(words: cute.Tensor, kv_cache, rank, ids, n, thread):
    """Read this CTA's half of the latent dims of half a tile, four threads a token, and rope of four tokens in eight, eight threads a token."""
    _read_share(words, kv_cache, rank, ids, n, thread)


def renew_share(
    words: cute.Tensor, ckv, kpe, to_ckv, full, to_kpe, same_full, kv_cache, rank, ids, n, thread
):  # fmt: skip
    """Write this CTA's share of the half tile as bf16 rows and, as room is made, read the share of these ids; then send what was written.

    Of each panel a warp has eight rows, 1 KB that lie together.
    """
    row, quarter, warp, lane = thread // 4, thread % 4, thread // 32, thread % 32
    scales = [cute.arch.shuffle_sync(Int32(words[SHARE_SCALES]), lane // 4 * 4 + group) for group in range(2)]
    own, own_rope = ckv.toint() + rank * (4 * TOKENS * 128), kpe.toint() + (warp * 8 + rank * 4) * 128
    mine, peer = own + warp * 1024, rank ^ 1
    bar, rope_there, there = (leaf.peer_address(at, peer) for at in (full.toint(), own_rope, mine))

    def write(at):
        four = [Int32(words[at + w]) for w in range(4)]
        if at < SHARE_ROPE:
            leaf.store_sixteen(own, row, TOKENS, at // 4, quarter, four, scales[at // 8])
        else:
            place = leaf.piece(warp * 8 + rank * 4 + lane // 8, lane % 8, 128, TOKENS)
            leaf.write16(kpe.toint() + place, four)

    def send():
        """What the warp's threads have written, by the copy engine."""
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            _send(rope_there, own_rope, 512, bar)
            for first in range(0, 4 * TOKENS * 128, TOKENS * 128):
                _send(there + first, mine + first, 1024, bar)

    _read_share(words, kv_cache, rank, ids, n, thread, write, send)


def _send(to, source, size, bar):
    """Copy shared memory to another CTA's; the bytes count towards its barrier."""
    cute.arch.inline_ptx(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [{$r0}], [{$r1}], {$r2}, [{$r3}];",
        read_only_args=[to, source, Int32(size), bar],
    )


def _read_share(words, kv_cache, rank, ids, n, thread, write=lambda at: None, send=lambda: None):
    """Read a share, 16 bytes at a time, each once `write` has made room for it; `send` once all are written."""

    def where(at):
        token = cute.arch.shuffle_sync(ids, at)
        inside = leaf.valid(token, n)
        return kv_cache.toint() + Int64(cutlass.select_(inside, token, Int32(0))) * leaf.TOKEN_BYTES, inside

    base, inside = where(thread // 4)
    rope, rope_inside = where(thread // 32 * 8 + rank * 4 + thread % 32 // 8)
    mine = base + Int64(rank * HALF_DIMS + thread % 4 * 16)
    parts = [(SHARE_ROPE, rope + Int64(leaf.ROPE_AT + thread % 8 * 16), rope_inside)]
    parts += [(panel * 4, mine + panel * 64, inside) for panel in range(4)]
    for at, source, wanted in parts:
        write(at)
        leaf.read_where(words, at, 4, source, wanted)
        # As in `renew_half`: what lies behind it stays there.
        cute.arch.sync_warp()
    send()
    # Behind all uses of the one before, so that it can take its register.
    scale = base + Int64(leaf.SCALES_AT + rank * 8 + thread % 2 * 4)
    leaf.read_where(words, SHARE_SCALES, 1, scale, inside)


@cute.jit
def mask_columns(scores: cute.Tensor, low: Int32, high: Int32, sm_scale: Float32, thread: Int32):
    """Scale the logits to base 2 and put -inf in the columns (tokens) without a valid id, given by two words of bits: of the first 32, and the next."""
    values, scale = flat(scores), sm_scale * leaf.LOG2E
    for i in cutlass.range_constexpr(cute.size(values)):
        values[i] = values[i] * scale
    if (low & high) != -1:
        for i in cutlass.range_constexpr(cute.size(values)):
            bits = (low if i // 4 * 8 < 32 else high) >> (thread % 4 * 2)
            inside = ((bits >> (i // 4 * 8 % 32 + i % 2)) & 1) != 0
            values[i] = Float32(cutlass.select_(inside, values[i], Float32(-math.inf)))


def pack_rows(weights, scores):
    """P in 16 bits, as the next product takes it."""
    values, words = flat(scores), cute.recast_tensor(flat(weights), Int32)
    # By an inline instruction: a conversion that the compiler knows it would move behind the fence before the product.
    for i in range(cute.size(words)):
        words[i] = leaf.pack(values[2 * i], values[2 * i + 1])


def store_rows(target, weights, thread):
    """Write P as bf16, heads by tokens."""
    values = flat(weights)
    words = [leaf.pack(values[2 * i], values[2 * i + 1]) for i in range(cute.size(values) // 2)]
    row = thread // 32 * 16 + thread % 16
    for pair in range(len(words) // 4):
        at = target.toint() + leaf.piece(row, pair * 2 + thread % 32 // 16, TOKENS * 2, HEADS)
        cute.arch.inline_ptx(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
            read_only_args=[at, *words[4 * pair : 4 * pair + 4]],
        )


def _shrinking(peak, risen):
    """What is summed up below one maximum times this is below a higher one; neither may have seen a token."""
    return Float32(cutlass.select_(peak == risen, Float32(1.0), exp2(peak - risen)))


@cute.jit
def softmax_rows(
    scores: cute.Tensor, sums: cute.Tensor, peak: cute.Tensor, factor: cute.Tensor, rise: cutlass.Constexpr, thread: Int32
):  # fmt: skip
    """P = exp2(S - maximum) in place of S. A maximum rises, by `factor`, when a score of its warp's rows exceeds one by `rise`."""
    values = flat(scores)
    most = cute.make_rmem_tensor(2, Float32)
    for r in cutlass.range_constexpr(2):
        most[r] = reduced([values[i] for i in range(cute.size(values)) if i // 2 % 2 == r], cute.arch.fmax)
    factor.fill(1.0)
    if cute.arch.vote_any_sync((most[0] > peak[0] + rise) | (most[1] > peak[1] + rise)):
        for r in cutlass.range_constexpr(2):
            risen = cute.arch.fmax(peak[r], across_quad(most[r], cute.arch.fmax))
            factor[r] = _shrinking(peak[r], risen)
            peak[r], sums[r] = risen, sums[r] * factor[r]
    for r in cutlass.range_constexpr(2):
        mine = [i for i in range(cute.size(values)) if i // 2 % 2 == r]
        # No token of this half may be valid, nor one before it.
        base = Float32(cutlass.select_(peak[r] == -Float32.inf, Float32(0.0), peak[r]))
        for i in mine:
            values[i] = exp2(values[i] - base)
        sums[r] = sums[r] + reduced([values[i] for i in mine], leaf.add)


def share_peak(target, peak, thread):
    """Leave the maxima for the other side."""
    _leave(target, peak, thread)


@cute.jit
def _leave(target: cute.Pointer, rows: cute.Tensor, thread: Int32):
    if thread % 4 == 0:
        pair = cute.make_tensor(target + row_of(thread), cute.make_layout(9))
        pair[0], pair[8] = rows[0], rows[1]


@cute.jit
def follow_peak(peak: cute.Tensor, sums: cute.Tensor, acc: cute.Tensor, other: cute.Pointer, thread: Int32):
    """Raise the maxima to those behind the other side's tile, which are no lower."""
    pair, output = cute.make_tensor(other + row_of(thread), cute.make_layout(9)), flat(acc)
    if cute.arch.vote_any_sync((pair[0] != peak[0]) | (pair[8] != peak[1])):
        for r in cutlass.range_constexpr(2):
            factor = _shrinking(peak[r], pair[8 * r])
            peak[r], sums[r] = pair[8 * r], sums[r] * factor
            for i in cutlass.range_constexpr(cute.size(output)):
                if cutlass.const_expr(i // 2 % 2 == r):
                    output[i] = output[i] * factor


def share_sums(sums, red, side, thread):
    """Complete this side's sums and leave them for the other."""
    for r in range(2):
        sums[r] = across_quad(sums[r], leaf.add)
    _leave(red + side * HEADS, sums, thread)


def total_rows(sums, peak, factor, red, side, thread):
    """`factor`: 1 / sum of both sides, and the base-2 lse in place of the sums; an empty row gives 0 and -inf."""
    pair = cute.make_tensor(red + ((1 - side) * HEADS + row_of(thread)), cute.make_layout(9))
    for r in range(2):
        total = sums[r] + pair[8 * r]
        factor[r] = leaf.inverse_of(total)
        sums[r] = leaf.lse_of(total, peak[r])


@cute.jit
def leave_rows(
    acc: cute.Tensor,
    factor: cute.Tensor,
    lses: cute.Tensor,
    o_partial: cute.Pointer,
    lse_partial: cute.Pointer,
    row: Int32,
    splits: Int32,
    split: Int32,
    head0: Int32,
    heads: cutlass.Constexpr,
    side: cutlass.Constexpr,
    thread: Int32,
):
    """Write this side's half of O times `factor` and its lses, for `merge_rows`."""
    heads_at = (Int64(row) * splits + split) * heads + head0
    room = heads_at * 512 + side * (HEADS * HALF_DIMS) + thread * 4
    for u in cutlass.range_constexpr(cute.size(acc) // 4):
        leaf.store_partial(
            o_partial, room + u * (4 * leaf.CONSUMERS), [acc[4 * u + e] * factor[e // 2] for e in range(4)]
        )
    if cutlass.const_expr(side == 0):
        _leave(lse_partial + heads_at, lses, thread)


@cute.jit
def merge_rows(
    acc: cute.Tensor,
    factor: cute.Tensor,
    lses: cute.Tensor,
    o_partial: cute.Pointer,
    lse_partial: cute.Pointer,
    row: Int32,
    splits: Int32,
    parts: Int32,
    head0: Int32,
    heads: cutlass.Constexpr,
    side: cutlass.Constexpr,
    thread: Int32,
):
    """Replace this thread's rows of half of O, as a sum that `factor` normalises, and their lses by those of the first `parts` splits."""
    heads_at = Int64(row) * splits * heads + head0
    room = heads_at * 512 + side * (HEADS * HALF_DIMS) + thread * 4
    o_step, lse_step = cutlass.const_expr(heads * 512), cutlass.const_expr(heads)
    pairs = cute.make_tensor(lse_partial + (heads_at + row_of(thread)), cute.make_layout(1 << 30))
    top = Float32(-math.inf)
    top_below = Float32(-math.inf)
    # Unrolled, so that the lses are on their way together.
    for p in cutlass.range(parts, unroll=4):
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
    factor[0], factor[1] = leaf.inverse_of(total), leaf.inverse_of(total_below)
    lses[0], lses[1] = leaf.lse_of(total, top), leaf.lse_of(total_below, top_below)


def _staged(row, piece, pieces):
    """Byte offset of a 16-byte piece of a row of so many, swizzled within the banks."""
    within = piece ^ (row % 8 if pieces >= 8 else row // (8 // pieces) % pieces)
    return row * (pieces * 16) + within * 16


@cute.jit
def store_result_rows(
    out: cute.Pointer,
    lse: cute.Pointer,
    acc: cute.Tensor,
    factor: cute.Tensor,
    lses: cute.Tensor,
    sinks: cute.Tensor,
    row0: Int32,
    head0: Int32,
    heads: cutlass.Constexpr,
    scratch: cute.Pointer,
    width: cutlass.Constexpr,
    lse_scale: Float32,
    side: cutlass.Constexpr,
    thread: Int32,
):
    """Store this side's half of O times `factor` as bf16, each head scaled by the share that tokens keep beside its sink; and the lse.

    The rows pass through shared memory, `width` dims of each at a time, so that whole sectors go out.
    """
    first = Int64(row0) * heads + head0
    for r in cutlass.range_constexpr(2):
        kept = cute.arch.rcp_approx(1.0 + cute.arch.exp2(sinks[r] * leaf.LOG2E - lses[r]))
        sinks[r] = factor[r] * Float32(cutlass.select_(lses[r] > -math.inf, kept, Float32(0.0)))
    warp, lane, mine = thread // 32, thread % 32, scratch.toint()
    pieces = cutlass.const_expr(width // 8)
    for block in cutlass.range_constexpr(HALF_DIMS // width):
        # A warp reads back only the rows that it wrote.
        if cutlass.const_expr(block > 0):
            cute.arch.sync_warp()
        for pair in cutlass.range_constexpr(pieces // 2):
            i = (block * (pieces // 2) + pair) * 8
            words = [
                leaf.pack(acc[i + 2 * e] * sinks[e % 2], acc[i + 2 * e + 1] * sinks[e % 2]) for e in range(4)
            ]
            at = mine + _staged(warp * 16 + lane % 16, pair * 2 + lane // 16, pieces)
            cute.arch.inline_ptx(
                "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
                read_only_args=[at, *words],
            )
        cute.arch.sync_warp()
        for i in cutlass.range_constexpr(pieces // 2):
            head = warp * 16 + i * (32 // pieces) + lane // pieces
            words = cute.arch.inline_ptx(
                "ld.shared.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
                write_only_types=[Int32] * 4,
                read_only_args=[mine + _staged(head, lane % pieces, pieces)],
            )
            dim = side * HALF_DIMS + block * width + lane % pieces * 8
            cute.arch.inline_ptx(
                "st.global.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
                read_only_args=[out.toint() + ((first + head) * 512 + dim) * 2, *words],
            )
    if cutlass.const_expr(side == 0):
        for r in cutlass.range_constexpr(2):
            lses[r] = lses[r] * lse_scale
        _leave(lse + first, lses, thread)


def load_row_sinks(sinks, attn_sink, head0, thread):
    """The sink logits of a thread's two heads, read long before they are wanted."""
    pair = cute.make_tensor(attn_sink + (head0 + row_of(thread)), cute.make_layout(9))
    sinks[0], sinks[1] = pair[0], pair[8]


def copy_query_rows(target, q, row, head0, heads, columns, thread):
    """Start the copies of the rows of 64 heads of one query."""
    pieces = columns // 8
    base = q.toint() + (Int64(row) * heads + head0) * (columns * 2)
    for first in range(0, HEADS * pieces, THREADS):
        i = first + thread
        at = leaf.piece(i // pieces, i % pieces, 128, HEADS)
        leaf.copy16(target.toint() + at, base + Int64(i * 16), Boolean(True))
