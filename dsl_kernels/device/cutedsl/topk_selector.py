"""Leaf maths of the exact top-k selection: keys and digits, closing a round, ranking, ordered output.

Operands and buffers come as pointers, with a place in them where a leaf works on a part. What a warp works out
together, every lane calls. What each leaf means is in dsl_kernels/device/torch/topk_selector.py.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32

BINS = 2048
"""Bins of a histogram: eleven bits a digit."""


def ceildiv(count, size):
    """Both positive or zero; unsigned, which costs no sign fix-up."""
    return Int32((Uint32(count) + Uint32(size - 1)) // Uint32(size))


def less_score(key):
    """Less the score of a key, from zero: of a zero's key 0."""
    score = key.bitcast(Int32)
    score = score ^ (~(score >> 31) | Int32(-(1 << 31)))
    return Float32(0.0) - score.bitcast(Float32)


def bits_of(score):
    return score.bitcast(Uint32)


def shift_in_sign(word, bits, less):
    """A word moved up by a bit, which tells whether a score plus `less` is negative; of NaN it is not."""
    return cute.arch.inline_ptx(
        "{ .reg .f32 t; .reg .b32 u; add.rn.f32 t, {$r1}, {$r2}; mov.b32 u, t; shf.l.wrap.b32 {$w0}, u, {$r0}, 1; }",
        write_only_types=[Int32],
        read_only_args=[word, bits.bitcast(Float32), less],
    )


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
