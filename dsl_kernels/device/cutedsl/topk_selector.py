"""Leaf maths of the exact top-k selection: keys and digits, closing a round, ranking, ordered output.

Operands and buffers come as pointers, with a place in them where a leaf works on a part. What a warp works out
together, every lane calls. What each leaf means is in dsl_kernels/device/torch/topk_selector.py.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, Uint64

from .warps import fetch_add, scan

BINS = 2048
"""Bins of a histogram: eleven bits a digit."""

LISTED, KEPT, LOWER_ABOVE, LOWER_EQUAL, LARGEST = 0, 1, 2, 3, 4
"""Counters: entries listed, entries kept for ranking, entries of lower ranks that are selected or may be, largest key."""

LOWEST, INFINITE = 0x00800000, 0xFF800000
"""Keys of the smallest finite score and of infinity."""

MINUS_INFINITY = 0xFF800000
"""Its bit pattern."""


def ceildiv(count, size):
    """Both positive or zero; unsigned, which costs no sign fix-up."""
    return Int32((Uint32(count) + Uint32(size - 1)) // Uint32(size))


@cute.jit
def load_quads(bits, logits, row, stride, column, lane):
    """Bit patterns of columns `column + 128 * i + 4 * lane` and the three behind; a batch that would end past the row is
    its last one instead."""
    address = (
        logits + row.to(Int64) * stride + (cutlass.min(column, stride - 32 * cute.size(bits)) + 4 * lane)
    )
    for j in cutlass.range_constexpr(0, cute.size(bits), 4):
        bits[j], bits[j + 1], bits[j + 2], bits[j + 3] = cute.arch.inline_ptx(
            f"ld.global.v4.b32 {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, [{{$r0}} + {128 * j}];",
            write_only_types=[Uint32] * 4,
            read_only_args=[address],
        )


def read_bottom(end, span):
    """The threshold that a sample gives: the smallest key of a range, at least that of the smallest finite score.

    Returns it, and less its score: the sum with a score is negative below. From zero, so that of zeros none is negative.
    """
    bottom = cutlass.min(cutlass.max(end - span, Uint32(LOWEST)), Uint32(INFINITE))
    score = bottom.bitcast(Int32)
    score = score ^ (~(score >> 31) | Int32(-(1 << 31)))
    return bottom, Float32(0.0) - score.bitcast(Float32)


def _score_below_bit(word, bits, less):
    """`word` moved up by a bit, which tells whether a score plus `less` is negative; of NaN it is not."""
    return cute.arch.inline_ptx(
        "{ .reg .f32 t; .reg .b32 u; add.rn.f32 t, {$r1}, {$r2}; mov.b32 u, t; shf.l.wrap.b32 {$w0}, u, {$r0}, 1; }",
        write_only_types=[Int32],
        read_only_args=[word, bits.bitcast(Float32), less],
    )


def _pick(bits, j, first, count):
    """Word `j`, of `count` from `first` on: registers have no address."""
    if count == 1:
        return bits[first]
    half = count // 2
    upper, lower = _pick(bits, j, first + half, half), _pick(bits, j, first, half)
    return Uint32(cutlass.select_((j & half) != 0, upper, lower))


@cute.jit
def list_above(
    listed, bits, entries, counters, less, column, origin, start, last, stride, room: cutlass.Constexpr, lane,
):  # fmt: skip
    """List a batch of load_quads, as bit patterns: what with `less` is not negative, while there is room for `room`.

    Positions count from `origin`. Returns how many there are, as far as this warp knows.
    """
    size = cutlass.const_expr(cute.size(bits))
    at = cutlass.min(column, stride - 32 * size)
    first = cutlass.max(start, column)
    if (at < first) | (at + 32 * size > last):
        own = at + 4 * lane
        for j in cutlass.range_constexpr(size):
            if (own + (j // 4 * 128 + j % 4) < first) | (own + (j // 4 * 128 + j % 4) >= last):
                bits[j] = Uint32(MINUS_INFINITY)
    left = Int32(0)
    for j in cutlass.range_constexpr(size):
        left = _score_below_bit(left, bits[size - 1 - j], less)
    left = ~left & ((1 << size) - 1)
    mine = cute.arch.popc(left)
    through = scan(mine)
    total = cute.arch.shuffle_sync(through, 31)
    if total > 0:
        slot = Int32(0)
        if lane == 0:
            slot = fetch_add(counters + LISTED, total)
        slot = cute.arch.shuffle_sync(slot, 0)
        listed = slot + total
        if listed <= room:
            slot += through - mine
            place = ~(at - origin + 4 * lane)
            while left != 0:
                j = cute.arch.inline_ptx(
                    "bfind.u32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[left]
                )
                left = left ^ (Int32(1) << j)
                # 128 columns on for every four words.
                own = (place - j - (j >> 2) * 124).bitcast(Uint32)
                entries[slot] = ((_pick(bits, j, 0, size).to(Uint64) << 32) | own.to(Uint64)).to(Int64)
                slot += 1
    return listed


def canonical(bits):
    """The addition turns -0.0 into +0.0 and every NaN into the largest key, as torch.topk ranks them."""
    return cute.arch.inline_ptx(
        "add.rn.f32 {$w0}, {$r0}, 0f00000000;",
        write_only_types=[Float32],
        read_only_args=[bits.bitcast(Float32)],
    ).bitcast(Uint32)


def half_digits(low, high):
    """First digits of two canonical bit patterns, one in each half of a word."""
    pair = cute.arch.inline_ptx(
        "cvt.rz.f16x2.f32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Uint32],
        read_only_args=[high.bitcast(Float32), low.bitcast(Float32)],
    )
    sign = cute.arch.prmt(pair, pair, Uint32(0xBB99))
    return pair ^ (~sign & Uint32(0x7FFF7FFF))


@cute.jit
def half_edge(bin):
    """Smallest key of a bin of the first round, counted from the smallest score."""
    magnitude = cutlass.max(bin - BINS // 2, BINS // 2 - bin) << 5
    bits = cute.arch.inline_ptx(
        "{ .reg .b16 h; cvt.u16.u32 h, {$r0}; cvt.f32.f16 {$w0}, h; }",
        write_only_types=[Float32],
        read_only_args=[magnitude],
    ).bitcast(Int32)
    if bin < BINS // 2:
        bits = -bits
    return (bits + Int32(-(1 << 31))).bitcast(Uint32)


def load_below(place, column, limit):
    """The bit pattern at a place where a column lies below a limit; 0 without a read elsewhere."""
    return cute.arch.inline_ptx(
        "{ .reg .pred p; setp.lt.s32 p, {$r1}, {$r2}; mov.b32 {$w0}, 0; @p ld.global.b32 {$w0}, [{$r0}]; }",
        write_only_types=[Uint32],
        read_only_args=[place, Int32(column), limit],
    )


def load_within(place, column, low, high):
    """The bit pattern at a place where a column lies in [low, high); that of -inf without a read elsewhere."""
    return cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ge.s32 p, {$r1}, {$r2}; setp.lt.and.s32 p, {$r1}, {$r3}, p; "
        "mov.b32 {$w0}, 0xFF800000; @p ld.global.b32 {$w0}, [{$r0}]; }",
        write_only_types=[Uint32],
        read_only_args=[place, column, low, high],
    )
