"""Functions for leaf texts: floats as sums of two e4m3 terms (dsl_kernels/device/torch/terms.py)."""

import cutlass.cute as cute
from cutlass import Float32, Int32


def store_terms(first, second, registers, at):
    one, other = cute.arch.inline_ptx(TERMS, write_only_types=[Int32, Int32], read_only_args=[
        Float32(registers[at + i]) for i in range(4)
    ])  # fmt: skip
    for place, word in ((first, one), (second, other)):
        cute.arch.inline_ptx("st.shared.b32 [{$r0}], {$r1};", read_only_args=[place.toint(), word])


# By way of fp16, whose 11 bits are more than two terms have. 0x4C00 is 16.
TERMS = (
    "{ .reg .b16 a, b, c, d; .reg .b32 low, high, of_low, of_high, finer; mov.b32 finer, 0x4C004C00;"
    " cvt.rn.f16x2.f32 low, {$r1}, {$r0}; cvt.rn.f16x2.f32 high, {$r3}, {$r2};"
    " cvt.rn.satfinite.e4m3x2.f16x2 a, low; cvt.rn.satfinite.e4m3x2.f16x2 b, high;"
    " cvt.rn.f16x2.e4m3x2 of_low, a; cvt.rn.f16x2.e4m3x2 of_high, b;"
    " sub.f16x2 low, low, of_low; sub.f16x2 high, high, of_high;"
    " mul.f16x2 low, low, finer; mul.f16x2 high, high, finer;"
    " cvt.rn.satfinite.e4m3x2.f16x2 c, low; cvt.rn.satfinite.e4m3x2.f16x2 d, high;"
    " mov.b32 {$w0}, {a, b}; mov.b32 {$w1}, {c, d}; }"
)
