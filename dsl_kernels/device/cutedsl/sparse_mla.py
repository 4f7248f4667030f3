"""Leaf pieces of sparse attention on Hopper in CuTe DSL: row gathers, fp8 tokens, exchange of scores.

The CTAs of a slice group own equal parts of the row: each multiplies its own dims, and they add their partial scores
through distributed shared memory. Every CTA of the group then computes the same softmax and its own dims of O, so no
accumulator has to cross between them.
All exponents are base 2: logits carry log2(e), and an lse is the log2 of a sum.
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .warps import pack, start_copy16, write16, write_fp8

LOG2E = math.log2(math.e)
TILE = 64
CONSUMERS = 128
# The 656-byte token: 512 fp8 values, four scales, 64 bf16 rope values.
TOKEN_BYTES, SCALES_AT, ROPE_AT = 656, 512, 528


def piece(row, chunk, row_bytes, rows):
    """Byte offset of 16-byte piece `chunk` of a row in `k_major(rows, dims)`, with row_bytes = min(dims, 64) * 2."""
    pieces = row_bytes // 16
    within = chunk % pieces ^ (row * row_bytes >> 7) & (pieces - 1)
    return chunk // pieces * (rows * row_bytes) + row * row_bytes + within * 16


def read16(address):
    """Four words of read-only global memory."""
    return cute.arch.inline_ptx(
        "ld.global.nc.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}];",
        write_only_types=[Int32] * 4,
        read_only_args=[address],
    )


def write16_where(to, words, wanted):
    """`write16` by the threads that want it. No branch: the load of the words would move into it, behind the others."""
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.b32 p, {$r5}, 0; @p st.shared.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}}; }",
        read_only_args=[to, *words, Int32(wanted)],
    )


def valid(token, n):
    """Whether an id names a row of the cache; -1 is padding."""
    return (token >= 0) & (token < n)


def vote(low, high, n):
    """The valid tokens of a tile as two words of bits, and whether there is one; the same in every warp of every role."""
    in_low, in_high = cute.arch.vote_ballot_sync(valid(low, n)), cute.arch.vote_ballot_sync(valid(high, n))
    return in_low, in_high, (in_low | in_high) != 0


def copy_rows(target, cache, stride, first, columns: cutlass.Constexpr, low, high, n, thread):
    """Start the copies of columns `first` on of a tile's rows; zeros where an id names no row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    to, base, stride, row_bytes = target.toint(), cache.toint() + first * 2, Int64(stride) * 2, columns * 2
    panel = min(row_bytes, 128)
    per_row = panel // 16
    at_once = CONSUMERS // per_row
    for r in range(TILE // at_once):
        row = thread // per_row + r * at_once
        token = cute.arch.shuffle_sync(low, row % 32)
        if at_once > 32 or TILE // at_once == 1:
            upper = cute.arch.shuffle_sync(high, row % 32)
            token = Int32(cutlass.select_(row < 32, token, upper))
        elif r * at_once >= 32:
            token = cute.arch.shuffle_sync(high, row % 32)
        inside = valid(token, n)
        source = base + Int64(cutlass.select_(inside, token, Int32(0))) * stride
        for c in range(row_bytes // panel):
            chunk = c * per_row + thread % per_row
            start_copy16(to + piece(row, chunk, panel, TILE), source + Int64(chunk * 16), inside)


@cute.jit
def load_queries(
    target: cute.Pointer,
    q: cute.Pointer,
    row: Int32,
    head0: Int32,
    heads: cutlass.Constexpr,
    block: cutlass.Constexpr,
    width: cutlass.Constexpr,
    first: Int32,
    columns: cutlass.Constexpr,
    thread: Int32,
):
    """Columns `first` on of a block of heads of one query, whose rows are `width` long."""
    to, pieces = target.toint(), cutlass.const_expr(columns // 8)
    base = q.toint() + ((Int64(row) * heads + head0) * width + first) * 2
    total = cutlass.const_expr(block * pieces)
    rounds = cutlass.const_expr((total + CONSUMERS - 1) // CONSUMERS)
    indices = [thread + i * CONSUMERS for i in range(rounds)]
    if cutlass.const_expr(total % CONSUMERS != 0):
        indices[-1] = cutlass.min(indices[-1], total - 1)
    words = [read16(base + Int64(i // pieces) * (width * 2) + Int64(i % pieces * 16)) for i in indices]
    for i in cutlass.range_constexpr(rounds):
        at = to + piece(indices[i] // pieces, indices[i] % pieces, min(columns * 2, 128), block)
        if cutlass.const_expr((i + 1) * CONSUMERS <= total):
            write16(at, words[i])
        else:
            write16_where(at, words[i], thread + i * CONSUMERS < total)


def peer_address(address, rank):
    """Shared address `address` of the CTA `rank` of this cluster."""
    return cute.arch.inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Int32],
        read_only_args=[address, rank],
    )


def send4(to, bar, values):
    """Store four floats in another CTA's shared memory; the bytes count towards its barrier."""
    cute.arch.inline_ptx(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [{$r0}], {{$r2}, {$r3}, {$r4}, {$r5}}, [{$r1}];",
        read_only_args=[to, bar, *values],
    )


def send_scores(scores, slots, full, rank, slices: cutlass.Constexpr, thread):
    """Send this thread's partial scores to the same thread of every other CTA of the slice group.

    The slots of this use are [slices - 1, values / 4, 128 threads, 4 floats]: slot d - 1 receives from the CTA whose rank
    differs by XOR with d.
    """
    to, bar, count = slots.toint(), full.toint(), cute.size(scores)
    for d in range(1, slices):
        peer_to = peer_address(to + (d - 1) * count * CONSUMERS * 4 + thread * 16, rank ^ d)
        peer_bar = peer_address(bar, rank ^ d)
        for v in range(count // 4):
            send4(peer_to + v * CONSUMERS * 16, peer_bar, [scores[4 * v + e] for e in range(4)])


def add(a, b):
    return a + b


def store_weights(target, weights, heads, thread):
    """Write P as bf16, tokens by heads; eight heads lie along the rows."""
    to, warp, lane = target.toint(), thread // 32, thread % 32
    words = [pack(weights[2 * i], weights[2 * i + 1]) for i in range(heads // 4)]
    if heads == 8:
        at = to + piece(lane % 8, warp * 2 + lane // 8 % 2, 128, heads)
        cute.arch.inline_ptx(
            "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [{$r0}], {{$r1}, {$r2}};",
            read_only_args=[at, *words],
        )
    else:
        token = warp * 16 + lane % 16
        for pair in range(heads // 16):
            at = to + piece(token, pair * 2 + lane // 16, heads * 2, TILE)
            cute.arch.inline_ptx(
                "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
                read_only_args=[at, *words[4 * pair : 4 * pair + 4]],
            )


def store_sixteen(ckv_s, row, rows, panel, part, four, scale_bits):
    """The same, part `part` of a panel of a row."""
    places = [ckv_s + piece(row, panel * 8 + part * 2 + half, 128, rows) for half in range(2)]
    write_fp8(places, four, scale_bits)
