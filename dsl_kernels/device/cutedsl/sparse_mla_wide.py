"""Leaf pieces of sparse attention with 64 heads a CTA on Hopper in CuTe DSL: heads on M, a warpgroup a side.

A side scores half of a tile, heads by tokens, and has half of the dims of O. A row of either lies in the four lanes of a
quad, so that only the maximum of a head crosses between the warpgroups.
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from . import gqa_forward, warps
from . import sparse_mla as leaf
from .fragment import across_quad, flat, row_of
from .gqa_forward import reduced

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
            warps.write16(kpe.toint() + place, four)

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
        warps.read_where(words, at, 4, source, wanted)
        # As in `renew_half`: what lies behind it stays there.
        cute.arch.sync_warp()
    send()
    # Behind all uses of the one before, so that it can take its register.
    scale = base + Int64(leaf.SCALES_AT + rank * 8 + thread % 2 * 4)
    warps.read_where(words, SHARE_SCALES, 1, scale, inside)


def pack_rows(weights, scores):
    """P in 16 bits, as the next product takes it."""
    values, words = flat(scores), cute.recast_tensor(flat(weights), Int32)
    # By an inline instruction: a conversion that the compiler knows it would move behind the fence before the product.
    for i in range(cute.size(words)):
        words[i] = warps.pack(values[2 * i], values[2 * i + 1])


def store_rows(target, weights, thread):
    """Write P as bf16, heads by tokens."""
    values = flat(weights)
    words = [warps.pack(values[2 * i], values[2 * i + 1]) for i in range(cute.size(values) // 2)]
    row = thread // 32 * 16 + thread % 16
    for pair in range(len(words) // 4):
        at = target.toint() + leaf.piece(row, pair * 2 + thread % 32 // 16, TOKENS * 2, HEADS)
        cute.arch.inline_ptx(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
            read_only_args=[at, *words[4 * pair : 4 * pair + 4]],
        )


def row_most(registers, r):
    return reduced(_of_row(registers, r), cute.arch.fmax)


def row_sum(registers, r):
    return reduced(_of_row(registers, r), leaf.add)


def _of_row(registers, r):
    values = flat(registers)
    return [values[i] for i in range(cute.size(values)) if i // 2 % 2 == r]


def quad_most(value):
    return across_quad(value, cute.arch.fmax)


def quad_sum(value):
    return across_quad(value, leaf.add)


@cute.jit
def _leave(target: cute.Pointer, rows: cute.Tensor, thread: Int32):
    if thread % 4 == 0:
        pair = cute.make_tensor(target + row_of(thread), cute.make_layout(9))
        pair[0], pair[8] = rows[0], rows[1]


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
                warps.pack(acc[i + 2 * e] * sinks[e % 2], acc[i + 2 * e + 1] * sinks[e % 2]) for e in range(4)
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


def copy_query_rows(target, q, row, head0, heads, columns, thread):
    """Start the copies of the rows of 64 heads of one query."""
    pieces = columns // 8
    base = q.toint() + (Int64(row) * heads + head0) * (columns * 2)
    for first in range(0, HEADS * pieces, THREADS):
        i = first + thread
        at = leaf.piece(i // pieces, i % pieces, 128, HEADS)
        warps.start_copy16(target.toint() + at, base + Int64(i * 16), Boolean(True))
