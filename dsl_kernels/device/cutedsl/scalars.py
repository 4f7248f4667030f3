"""Functions of one thread for leaf texts: bit patterns, conversions, conditional loads.

What each means is in dsl_kernels/device/torch/scalars.py; places come as pointers.
"""

import cutlass.cute as cute
from cutlass import Float32, Int32, Uint16, Uint32

from . import warps


def ceildiv(count, size):
    """The operands are not negative: an unsigned division needs no sign fix-up."""
    return Int32((Uint32(count) + Uint32(size - 1)) // Uint32(size))


def _one(result, text, *arguments):
    """The result of one or a few instructions on registers."""
    return cute.arch.inline_ptx(text, write_only_types=[result], read_only_args=list(arguments))


def bits_of(x):
    return x.bitcast(Uint32)


def float_of(bits):
    return bits.bitcast(Float32)


def add_rn(a, b):
    return _one(Float32, "add.rn.f32 {$w0}, {$r0}, {$r1};", a, Float32(b))


def halves(low, high):
    return _one(Uint32, "cvt.rz.f16x2.f32 {$w0}, {$r0}, {$r1};", high, low)


def float_of_half(bits):
    return _one(Float32, "{ .reg .b16 h; cvt.u16.u32 h, {$r0}; cvt.f32.f16 {$w0}, h; }", bits)


def permute_bytes(a, b, selector):
    return cute.arch.prmt(a, b, Uint32(selector))


def funnel_left(low, high, count):
    return _one(Int32, "shf.l.wrap.b32 {$w0}, {$r0}, {$r1}, {$r2};", low, high, Int32(count))


def anew(x):
    """Without an instruction, as this DSL's compiler does not compute the number earlier."""
    return x


def pair_of(low, high):
    return Uint32(warps.pack(low, high))


def _piece(place, count):
    """One 16-bit element at an address, or eight as words."""
    whole = cute.make_tensor(place.align(2 * count), cute.make_layout(count))
    return cute.recast_tensor(whole, Uint16 if count == 1 else Uint32)


def load_piece(registers, first, count, place):
    if count == 1:
        registers[first] = Uint32(_piece(place, count)[0])
    else:
        cute.autovec_copy(_piece(place, count), warps.few(registers, first, count // 2))


def store_piece(registers, first, count, place):
    if count == 1:
        _piece(place, count)[0] = Uint16(registers[first])
    else:
        cute.autovec_copy(warps.few(registers, first, count // 2), _piece(place, count))


def load_below(place, column, limit):
    return _one(
        Uint32,
        "{ .reg .pred p; setp.lt.s32 p, {$r1}, {$r2}; mov.b32 {$w0}, 0; @p ld.global.b32 {$w0}, [{$r0}]; }",
        place, Int32(column), limit,
    )  # fmt: skip
