"""Formats of 4, 6 and 8 bits, and 128-bit registers, against tables of all values of a format."""

import numpy as np
import pytest

from ptx_emulator import UnsupportedInstruction, launch

from .kernels import assembles, elementwise, simple

#: format -> bits of the exponent and of the fraction
FORMATS = {"e2m1": (2, 1), "e2m3": (2, 3), "e3m2": (3, 2), "e4m3": (4, 3), "e5m2": (5, 2)}


def table(fmt: str) -> np.ndarray:
    """The values of the codes without a sign, in order; codes that are not numbers are left out."""
    exponent, fraction = FORMATS[fmt]
    codes = np.arange(1 << (exponent + fraction))
    e, m = codes >> fraction, codes & ((1 << fraction) - 1)
    bias = (1 << (exponent - 1)) - 1
    value = np.where(
        e > 0, (1 + m / (1 << fraction)) * 2.0 ** (e - bias), m / (1 << fraction) * 2.0 ** (1 - bias)
    )
    return value[: {"e4m3": -1, "e5m2": -4}.get(fmt)]


def nearest(fmt: str, x: np.ndarray) -> np.ndarray:
    """Codes of numbers, rounded to nearest even, saturating."""
    values = table(fmt)
    distance = np.abs(np.minimum(np.abs(x.astype(np.float64)), values[-1])[:, None] - values)
    best = distance.min(1, keepdims=True)
    code = np.where(distance == best, np.arange(len(values)), 1 << 20)
    pick = np.where((code < 1 << 20).sum(1) > 1, np.where(code % 2 == 0, code, 1 << 20).min(1), code.min(1))
    return pick | np.signbit(x).astype(int) << sum(FORMATS[fmt])


def numbers(n: int = 512) -> np.ndarray:
    """Every rounding boundary of the small formats, its neighbours, and arbitrary numbers."""
    points = np.concatenate([table(f) for f in ("e2m1", "e2m3", "e3m2")])
    points = np.concatenate([points, (points[1:] + points[:-1]) / 2]).astype(np.float32)
    some = np.concatenate(
        [points, np.nextafter(points, 100, dtype=np.float32), np.nextafter(points, -100, dtype=np.float32)]
    )
    some = np.concatenate([some, -some, [np.inf, -np.inf, 1e30, 1e-30, 448.0, 0.0]]).astype(np.float32)
    rest = np.random.default_rng(5).normal(0, 4, max(n - len(some), 0)).astype(np.float32)
    return np.resize(np.concatenate([some, rest]), -(-len(some) // 512) * 512)


def run(body: str, *arrays: np.ndarray) -> np.ndarray:
    out = []
    text = (
        elementwise(body, len(arrays)).replace("sm_90a", "sm_100a").replace("{\n", "{\n.reg .b8 %b<4>;\n", 1)
    )
    for parts in zip(*(np.split(a, len(a) // 512) for a in arrays), strict=True):
        got = np.zeros(512, np.uint32)
        launch(text, 1, 512, [*(p.copy() for p in parts), got])
        out.append(got)
    return np.concatenate(out)


TO = {  # format -> conversion of two values, and the position of their codes
    "e2m1": (
        "cvt.rn.satfinite.e2m1x2.f32 %b1, %r10, %r11; mov.b16 %h1, {%b1, 0}; mov.b32 %r20, {%h1, 0};",
        4,
    ),
    "e2m3": ("cvt.rn.satfinite.e2m3x2.f32 %h1, %r10, %r11; mov.b32 %r20, {%h1, 0};", 8),
    "e3m2": ("cvt.rn.satfinite.e3m2x2.f32 %h1, %r10, %r11; mov.b32 %r20, {%h1, 0};", 8),
}


@pytest.mark.parametrize("fmt", TO)
def test_two_values_are_rounded_into_a_narrow_format(fmt):
    body, width = TO[fmt]
    x = numbers()
    y = np.roll(x, 7)
    got = run(body, x, y)
    assert (got == nearest(fmt, x) << width | nearest(fmt, y)).all()


@pytest.mark.parametrize("fmt", TO)
def test_no_number_becomes_the_largest_and_relu_drops_the_sign(fmt):
    body, width = TO[fmt]
    x = np.full(512, np.nan, np.float32)
    largest = len(table(fmt)) - 1
    assert (run(body, x, x) == largest << width | largest).all()
    x = numbers()
    assert (
        run(body.replace("satfinite", "satfinite.relu"), x, x) & ((1 << width) - 1)
        == nearest(fmt, np.where(x > 0, x, np.float32(0)))
    ).all()


@pytest.mark.parametrize("fmt", TO)
def test_a_narrow_format_is_widened(fmt):
    width = TO[fmt][1]
    codes = np.resize(np.arange(1 << (2 * width)), -(-(1 << (2 * width)) // 512) * 512).astype(np.uint32)
    if width == 8:
        codes &= 0x3F3F  # PTX: the two upper bits of each byte are zero
    load = "cvt.u16.u32 %h1, %r10; mov.b16 {%b1, %b2}, %h1;" if width == 4 else "cvt.u16.u32 %h1, %r10;"
    got = run(f"{load} cvt.rn.f16x2.{fmt}x2 %r20, {'%b1' if width == 4 else '%h1'};", codes).view(np.float16)
    bits = sum(FORMATS[fmt])
    for i in (0, 1):
        code = codes >> (width * i) & ((2 << bits) - 1)
        value = table(fmt)[code & ((1 << bits) - 1)] * np.where(code >> bits, -1, 1)
        assert (got[i::2] == value).all() and (np.signbit(got[i::2]) == (code >> bits)).all()


def test_powers_of_two():
    """ue8m0: exponents only, rounded up or truncated; 255 is not a number."""
    x = np.abs(numbers())
    x[:4] = [np.nan, np.inf, 2.0**-140, 2.0**127]
    up, cut = (
        run(f"cvt.{r}.satfinite.ue8m0x2.f32 %h1, %r10, %r10; mov.b32 %r20, {{%h1, 0}};", x) & 255
        for r in ("rp", "rz")
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.log2(x.astype(np.float64))
    for got, rounded in ((up, np.ceil(exponent)), (cut, np.floor(exponent))):
        expect = np.where(
            np.isnan(x), 255, np.clip(np.nan_to_num(rounded, neginf=-127, posinf=127), -127, 127) + 127
        )
        assert (got == expect).all()
    codes = np.resize(np.arange(256), 512).astype(np.uint32)
    back = run("cvt.u16.u32 %h1, %r10; cvt.rn.bf16x2.ue8m0x2 %r20, %h1;", codes) << 16
    with np.errstate(over="ignore"):
        expect = np.where(codes == 255, np.nan, 2.0 ** (codes.astype(np.float64) - 127)).astype(np.float32)
    np.testing.assert_array_equal(back.view(np.float32), expect)
    pair = x[4:516].view(np.uint32) >> 16
    got = run("cvt.rp.satfinite.ue8m0x2.bf16x2 %h1, %r10; mov.b32 %r20, {%h1, 0};", pair) & 255
    again = run("cvt.rp.satfinite.ue8m0x2.f32 %h1, %r10, %r10; mov.b32 %r20, {%h1, 0};", pair << 16) & 255
    assert (got == again).all()


@pytest.mark.parametrize("fmt", FORMATS)
def test_four_values_are_rounded_by_random_bits(fmt):
    """Zero bits truncate; all ones round up all that is inexact; half a unit rounds up half of the draws."""
    width = 4 if fmt == "e2m1" else 8
    into = "cvt.rs.satfinite.@x4.f32 %h1, {%r10, %r11, %r12, %r13}, %r14; mov.b32 %r20, {%h1, 0};"
    into = (
        into
        if width == 4
        else into.replace("%h1, {%r10", "%r20, {%r10").replace("mov.b32 %r20, {%h1, 0};", "")
    )
    x = np.clip(numbers(), -table(fmt)[-1], table(fmt)[-1]).astype(np.float32)
    x = np.resize(x[np.abs(x) > table(fmt)[1]], 512)
    v = [np.roll(x, 3 * i) for i in range(4)]
    values = table(fmt)
    for bits, exact in ((0, 0), (0xFFFFFFFF, 1)):
        got = run(into.replace("@", fmt), *v, np.full(512, bits, np.uint32))
        for i, y in enumerate(v):
            code = got >> (width * (3 - i)) & ((1 << width) - 1)
            below = np.searchsorted(values, np.abs(y), side="right") - 1
            # A value closer to the lower neighbour than 16 bits resolve is not rounded up.
            far = np.abs(y) - values[below] >= 2.0**-15 * np.abs(y)
            expect = below + exact * far | np.signbit(y).astype(int) << sum(FORMATS[fmt])
            assert (code == expect)[far | (exact == 0)].all()
    middle = np.full(512, (values[-1] + values[-2]) / 2, np.float32)
    draws = np.random.default_rng(3).integers(0, 1 << 32, 512, dtype=np.uint64).astype(np.uint32)
    got = run(into.replace("@", fmt), *[middle] * 4, draws)
    for i in range(4):
        upper = (got >> (width * i) & ((1 << width) - 1)) == len(values) - 1
        assert 180 < upper.sum() < 332


@pytest.mark.parametrize(
    "line",
    [
        "cvt.rn.e2m1x2.f32 %b1, %f1, %f2;",
        "cvt.rn.satfinite.e2m1x4.f32 %h1, {%f1, %f2, %f3, %f4};",
        "cvt.rs.satfinite.e2m3x2.f32 %h1, %f1, %f2, %r1;",
        "cvt.rn.satfinite.ue8m0x2.f32 %h1, %f1, %f2;",
        "cvt.rn.satfinite.e2m1x2.f16x2.scaled %b1, %r1;",
        "cvt.rn.satfinite.e2m1x2.s32 %b1, %r1;",
    ],
)
def test_other_conversions_are_refused(line):
    with pytest.raises(UnsupportedInstruction):
        launch(simple(".reg .b8 %b<4>;\n" + line, "", "sm_100a"), 1, 1)


WIDE = simple(
    """
.shared .align 16 .b8 buf[512];
.reg .b128 %q<4>;
mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 4; mov.u32 %r3, buf; add.u32 %r3, %r3, %r2; cvt.u64.u32 %d1, %r2;
ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1; ld.param.u64 %d3, [p1]; add.u64 %d3, %d3, %d1;
ld.global.b128 %q0, [%d2];
mov.b128 {%d4, %d5}, %q0;
mov.b128 %q1, {%d5, %d4};
mov.b128 %q2, %q1;
st.shared.b128 [%r3], %q2;
ld.shared.b128 %q3, [%r3];
st.global.b128 [%d3], %q3;
""",
    ".param .u64 p0, .param .u64 p1",
)


def test_registers_of_128_bits():
    x = np.random.default_rng(1).integers(0, 1 << 63, (32, 2)).astype(np.uint64)
    out = np.zeros_like(x)
    launch(WIDE, 1, 32, [x, out])
    assert (out == x[:, ::-1]).all()


def test_a_half_that_was_not_written_is_found():
    half = WIDE.replace("mov.b128 %q1, {%d5, %d4};", "mov.b128 %q1, {%d5, %d6};")
    with pytest.raises(Exception, match="uninit-memory"):
        launch(half, 1, 32, [np.zeros((32, 2), np.uint64), np.zeros((32, 2), np.uint64)])
    with pytest.raises(UnsupportedInstruction, match="128-bit"):
        launch(WIDE.replace("mov.b128 %q2, %q1;", "add.u64 %q2, %q1, 1;"), 1, 32, [None, None])
    with pytest.raises(Exception, match="misaligned"):
        launch(WIDE.replace("[%d2]", "[%d2+8]"), 1, 16, [np.zeros((32, 2), np.uint64)] * 2)


@pytest.mark.parametrize("text", [WIDE])
def test_ptxas_accepts(text, tmp_path):
    assembles(text, tmp_path)
