"""Functions of float32 for leaf texts: roots, quotients, and reductions over lanes.

What each means is in dsl_kernels/device/torch/floats.py.
"""

import cutlass.cute as cute
from cutlass import Float32


def _one(text, *arguments):
    return cute.arch.inline_ptx(
        text, write_only_types=[Float32], read_only_args=[Float32(x) for x in arguments]
    )


def sqrt(x):
    return _one("sqrt.rn.f32 {$w0}, {$r0};", x)


def rsqrt(x):
    return _one("rsqrt.approx.f32 {$w0}, {$r0};", x)


def divide(a, b):
    return _one("div.rn.f32 {$w0}, {$r0}, {$r1};", a, b)


def is_nan(x):
    return x != x


def sum_of_lanes(value, lanes=32):
    while lanes > 1:
        lanes //= 2
        value = value + cute.arch.shuffle_sync_bfly(value, lanes)
    return value


def max_of_lanes(value, lanes=32):
    while lanes > 1:
        lanes //= 2
        value = cute.arch.fmax(value, cute.arch.shuffle_sync_bfly(value, lanes))
    return value
