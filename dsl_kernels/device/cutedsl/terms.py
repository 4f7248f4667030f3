"""Functions for leaf texts: floats as sums of two e4m3 terms (dsl_kernels/device/torch/terms.py)."""

import cutlass.cute as cute
from cutlass import Float32, Int32


def store_terms(first, second, registers, at):
    values = [Float32(registers[at + i]) for i in range(4)]
    word = _codes(values)
    rest = [(x - term) * 16.0 for x, term in zip(values, _floats(word), strict=True)]
    for place, each in ((first, word), (second, _codes(rest))):
        cute.arch.inline_ptx("st.shared.b32 [{$r0}], {$r1};", read_only_args=[place.toint(), each])


def _codes(values):
    """Four floats as e4m3 in a word, saturated."""
    return cute.arch.inline_ptx(
        "{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, {$r1}, {$r0};"
        " cvt.rn.satfinite.e4m3x2.f32 high, {$r3}, {$r2}; mov.b32 {$w0}, {low, high}; }",
        write_only_types=[Int32],
        read_only_args=values,
    )


def _floats(word):
    """The four e4m3 values of a word."""
    return [
        x
        for halves in ("low, high", "high, low")
        for x in cute.arch.inline_ptx(
            f"{{ .reg .b16 low, high, a, b; .reg .b32 two; mov.b32 {{{halves}}}, {{$r0}};"
            " cvt.rn.f16x2.e4m3x2 two, low; mov.b32 {a, b}, two; cvt.f32.f16 {$w0}, a; cvt.f32.f16 {$w1}, b; }",
            write_only_types=[Float32, Float32],
            read_only_args=[word],
        )
    ]
