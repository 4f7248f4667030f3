"""Cases of the scalar functions, and of those of float32, that the text of any leaf may call."""

from __future__ import annotations

import torch
from leaf_probes import Probe, case, straight

from dsl_kernels.device.torch.floats import divide, is_nan, max_of_lanes, rsqrt, sqrt, sum_of_lanes
from dsl_kernels.device.torch.scalars import (
    add_rn,
    bits_of,
    float_of,
    float_of_half,
    funnel_left,
    halves,
    load_below,
    pair_of,
    permute_bytes,
)
from dsl_kernels.device.torch.terms import store_terms
from dsl_kernels.tile.kinds import Float8, Float32, LeafRecorder, Registers, Shared
from dsl_kernels.tile.leaf_text import by_text
from dsl_kernels.tile.text import select

THREADS = 128
# Bit patterns: zeros, infinities, quiet and signalling NaN, the largest float, values that fp16 cannot or
# only just hold.
HARD = (
    0,
    1 << 31,
    0x7F800000,
    0xFF800000,
    0x7FC00000,
    0xFF800001,
    0x7F7FFFFF,
    0xC7800000,
    0x477FF000,
    0x337FFFFF,
    0xB8800001,
    1,
)


@by_text
def of_one_thread(m, bits, found, source, limit):
    """Each function, of two bit patterns of this thread."""
    low = float_of(bits[0])
    high = float_of(bits[1])
    found[0] = bits_of(add_rn(low, high))
    found[1] = bits_of(add_rn(low, 0.0))
    found[2] = halves(low, high)
    found[3] = bits_of(float_of_half((halves(low, low) & 0x7FFF).to("int32")))
    found[4] = permute_bytes(bits[0], bits[1], 0xBB99)
    found[5] = permute_bytes(bits[0], bits[1], 0x3715)
    found[6] = funnel_left(bits[0], bits[1].to("int32"), 5).to("uint32")
    found[7] = load_below(source.at(m.thread), m.thread, limit)
    found[8] = pair_of(low, high)
    found[9] = select(is_nan(high), bits[0], 0)


@case(of_one_thread)
def functions_of_one_thread(p: Probe) -> None:
    p.threads = THREADS
    patterns = p.integers(-(1 << 31), 1 << 31, THREADS, 2, dtype=torch.int64) & 0xFFFFFFFF
    hard = torch.tensor(HARD)
    patterns[: len(hard), 0] = hard
    patterns[len(hard) : 2 * len(hard), 1] = hard
    patterns[2 * len(hard) :: 2] = (
        p.normal(THREADS, 2).view(torch.int32).long()[2 * len(hard) :: 2] & 0xFFFFFFFF
    )
    kind = {"dtype": "uint32", "private": True}
    bits = p.registers("bits", (THREADS, 2), patterns, places=straight(THREADS, 2), out=False, **kind)
    found = p.registers("found", (THREADS, 10), None, places=straight(THREADS, 10), **kind)
    p.call(bits, found, p.operand("source", p.normal(100)), p.dim("limit", 100))


@by_text
def of_floats(m, given, exact, near):
    """Each function of two floats of this thread; correctly rounded results apart from approximate ones."""
    a = given[0]
    b = given[1]
    exact[0] = sqrt(a)
    exact[1] = divide(b, a)
    exact[2] = divide(1.0, b)
    exact[3] = sum_of_lanes(b)
    exact[4] = sum_of_lanes(b * b, 4)
    exact[5] = max_of_lanes(b)
    exact[6] = max_of_lanes(-a, 8)
    near[0] = rsqrt(a)


@case(of_floats)
def functions_of_floats(p: Probe) -> None:
    """Numbers from tiny to huge, of both signs except under a root."""
    p.threads, p.relative = THREADS, 2e-7
    values = p.normal(THREADS, 2) * 10.0 ** p.integers(-15, 16, THREADS, 2)
    # Sums that round differently in every order of the lanes.
    values[:, 0], values[64:, 1] = values[:, 0].abs(), p.normal(64)
    values[5, 0], values[7, 0], values[9, 0] = 1e-41, torch.inf, 0.0
    kind = {"dtype": "float32", "private": True}
    given = p.registers("given", (THREADS, 2), values, places=straight(THREADS, 2), out=False, **kind)
    exact, near = (
        p.registers(title, (THREADS, size), None, places=straight(THREADS, size), **kind)
        for title, size in (("exact", 7), ("near", 1))
    )
    p.exact = ("exact",)
    p.call(given, exact, near)


@by_text
def of_terms(
    m: LeafRecorder, first: Shared[Float8], second: Shared[Float8], values: Registers[Float32]
) -> None:
    """The terms of four floats of this thread."""
    m.do(store_terms(first.group_at(m.thread, 0, 4), second.group_at(m.thread, 0, 4), values, 0))


@case(of_terms)
def terms_of_floats(p: Probe) -> None:
    """Numbers of both signs from less than a term can say to more than one can."""
    p.threads = THREADS
    values = p.normal(THREADS, 4) * 2.0 ** p.integers(-20, 11, THREADS, 4)
    values[:4, 0] = torch.tensor([0.0, -0.0, 448.0, torch.inf])
    shared = {"dtype": "float8_e4m3", "out": True}
    p.call(
        p.shared("first", (THREADS, 4), **shared),
        p.shared("second", (THREADS, 4), **shared),
        p.registers("values", (THREADS, 4), values, places=straight(THREADS, 4), out=False, private=True),
    )
