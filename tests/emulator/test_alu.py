"""Integer, float and packed instructions against numpy and torch, bit for bit."""

from fractions import Fraction
from math import inf

import numpy as np
import pytest
import torch

from ptx_emulator import EmulatorError, launch

from .kernels import elementwise, simple

RNG = np.random.default_rng(42)
EDGE = np.array(
    [0, 1, 2, 3, 31, 32, 33, 63, 64, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF],
    np.uint32,
)


def words(n=128, seed=0):
    x = np.random.default_rng(seed).integers(0, 1 << 32, n, dtype=np.uint64).astype(np.uint32)
    x[: len(EDGE)] = EDGE
    np.random.default_rng(seed + 1).shuffle(x)
    return x


def run(body, *sources, width=32):
    out = np.zeros(len(sources[0]), np.uint64 if width == 64 else np.uint32)
    launch(elementwise(body, len(sources), width), 1, len(sources[0]), [*sources, out])
    return out


def signed(x):
    return x.view(np.int32).astype(np.int64)


def wide(x):
    return x.astype(np.uint64)


A, B, C = words(seed=1), words(seed=2), words(seed=3)
INTEGER = {
    "add.u32": ("add.u32 %r20, %r10, %r11;", lambda a, b: a + b),
    "sub.s32": ("sub.s32 %r20, %r10, %r11;", lambda a, b: a - b),
    "mul.lo.u32": ("mul.lo.u32 %r20, %r10, %r11;", lambda a, b: a * b),
    "mul.hi.u32":
        ("mul.hi.u32 %r20, %r10, %r11;", lambda a, b: ((wide(a) * wide(b)) >> 32).astype(np.uint32)),
    "mul.hi.s32":
        ("mul.hi.s32 %r20, %r10, %r11;", lambda a, b: ((signed(a) * signed(b)) >> 32).astype(np.uint32)),
    "min.s32":
        ("min.s32 %r20, %r10, %r11;",
         lambda a, b: np.minimum(a.view(np.int32), b.view(np.int32)).view(np.uint32)),
    "max.u32": ("max.u32 %r20, %r10, %r11;", np.maximum),
    "and": ("and.b32 %r20, %r10, %r11;", np.bitwise_and),
    "xor": ("xor.b32 %r20, %r10, %r11;", np.bitwise_xor),
    "not": ("not.b32 %r20, %r10;", lambda a, b: ~a),
    "neg": ("neg.s32 %r20, %r10;", lambda a, b: (-signed(a)).astype(np.uint32)),
    "abs": ("abs.s32 %r20, %r10;", lambda a, b: np.abs(signed(a)).astype(np.uint32)),
    "shl": ("and.b32 %r11, %r11, 63; shl.b32 %r20, %r10, %r11;",
            lambda a, b: np.where((b & 63) > 31, 0, wide(a) << (b & 31)).astype(np.uint32)),
    "shr.u32":
        ("and.b32 %r11, %r11, 63; shr.u32 %r20, %r10, %r11;",
         lambda a, b: np.where((b & 63) > 31, 0, a >> (b & 31)).astype(np.uint32)),
    "shr.s32":
        ("and.b32 %r11, %r11, 63; shr.s32 %r20, %r10, %r11;",
         lambda a, b: (signed(a) >> np.minimum(b & 63, 31)).astype(np.uint32)),
    "div.u32": ("or.b32 %r11, %r11, 1; div.u32 %r20, %r10, %r11;", lambda a, b: a // (b | 1)),
    "rem.u32": ("or.b32 %r11, %r11, 1; rem.u32 %r20, %r10, %r11;", lambda a, b: a % (b | 1)),
    "div.s32": ("or.b32 %r11, %r11, 1; div.s32 %r20, %r10, %r11;",
                lambda a, b: np.trunc(signed(a) / signed(b | 1)).astype(np.int64).astype(np.uint32)),
    "rem.s32":
        ("or.b32 %r11, %r11, 1; rem.s32 %r20, %r10, %r11;",
         lambda a, b: np.fmod(signed(a), signed(b | 1)).astype(np.uint32)),
    "popc": ("popc.b32 %r20, %r10;", lambda a, b: np.array([int(x).bit_count() for x in a], np.uint32)),
    "clz": ("clz.b32 %r20, %r10;", lambda a, b: np.array([32 - int(x).bit_length() for x in a], np.uint32)),
    "brev":
        ("brev.b32 %r20, %r10;", lambda a, b: np.array([int(f"{x:032b}"[::-1], 2) for x in a], np.uint32)),
    "bfind":
        ("bfind.u32 %r20, %r10;",
         lambda a, b: np.array([int(x).bit_length() - 1 & 0xFFFFFFFF for x in a], np.uint32)),
    "bfe.u32": ("bfe.u32 %r20, %r10, 5, 9;", lambda a, b: (a >> 5) & 511),
    "bfe.s32": ("bfe.s32 %r20, %r10, 20, 12;", lambda a, b: (signed(a) >> 20).astype(np.uint32)),
    "bfi":
        ("bfi.b32 %r20, %r10, %r11, 8, 12;", lambda a, b: (b & ~np.uint32(0xFFF00)) | ((a << 8) & 0xFFF00)),
    "prmt": ("prmt.b32 %r20, %r10, %r11, 0x5410;", lambda a, b: (a & 0xFFFF) | (b << 16)),
    "prmt-sign":
        ("prmt.b32 %r20, %r10, %r11, 0xbbbb;",
         lambda a, b: np.where(a >> 31, 0xFFFFFFFF, 0).astype(np.uint32)),
    "selp": ("setp.lt.s32 %p1, %r10, %r11; selp.b32 %r20, %r10, %r11, %p1;",
             lambda a, b: np.where(a.view(np.int32) < b.view(np.int32), a, b)),
    "setp.and":
        ("setp.gt.u32 %p1, %r10, 1000; setp.lt.and.u32 %p2, %r11, %r10, %p1; selp.b32 %r20, 1, 0, %p2;",
                 lambda a, b: ((a > 1000) & (b < a)).astype(np.uint32)),
    "min.relu":
        ("min.relu.s32 %r20, %r10, %r11;",
         lambda a, b: np.maximum(np.minimum(signed(a), signed(b)), 0).astype(np.uint32)),
    "max.relu.s16x2": ("max.relu.s16x2 %r20, %r10, %r11;",
                       lambda a, b: np.maximum(np.maximum(a.view(np.int16), b.view(np.int16)),
                           0).view(np.uint32)),
    "shf.l.wrap": ("shf.l.wrap.b32 %r20, %r10, %r11, 7;", lambda a, b: (b << 7) | (a >> 25)),
    "shf.r.clamp": ("shf.r.clamp.b32 %r20, %r10, %r11, 40;", lambda a, b: b),
    "sad":
        ("sad.u32 %r20, %r10, %r11, 5;",
         lambda a, b: (np.abs(a.astype(np.int64) - b.astype(np.int64)) + 5).astype(np.uint32)),
    "cvt.s32.s8":
        ("cvt.s32.s8 %r20, %r10;",
         lambda a, b: (a & 255).astype(np.uint8).view(np.int8).astype(np.int32).view(np.uint32)),
    "cvt.sat.u8.s32":
        ("cvt.sat.u8.s32 %r20, %r10;", lambda a, b: np.clip(signed(a), 0, 255).astype(np.uint32)),
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGER)
def test_integer(name):
    body, expect = INTEGER[name]
    assert (run(body, A, B) == expect(A.copy(), B.copy())).all()


@pytest.mark.parametrize("lut", [0x00, 0xFF, 0xE8, 0x96, 0x1B, 0xCA, 0x80])
def test_lop3(lut):
    out = run(f"lop3.b32 %r20, %r10, %r11, %r12, {lut};", A, B, C)
    expect = np.zeros_like(A)
    for k in range(8):
        if lut >> k & 1:
            expect |= (A if k & 4 else ~A) & (B if k & 2 else ~B) & (C if k & 1 else ~C)
    assert (out == expect).all()


def test_wide_and_64_bit():
    out = run("mul.wide.s32 %d5, %r10, %r11; shr.u64 %d6, %d5, 32; cvt.u32.u64 %r20, %d6;", A, B)
    assert (out == ((signed(A) * signed(B)) >> 32).astype(np.uint32)).all()
    x, y = (RNG.integers(0, 1 << 63, 64).astype(np.uint64) for _ in range(2))
    assert (run("mul.lo.u64 %d20, %d10, %d11;", x, y, width=64) == x * y).all()
    hi = np.array([int(a) * int(b) >> 64 for a, b in zip(x, y, strict=True)], np.uint64)
    assert (run("mul.hi.u64 %d20, %d10, %d11;", x, y, width=64) == hi).all()
    assert (run("mad.lo.s64 %d20, %d10, %d11, %d10;", x, y, width=64) == x * y + x).all()
    assert (run("shr.s64 %d20, %d10, 70;", x, y, width=64) == 0).all()


def test_carry_chains():
    x, y = (RNG.integers(0, 1 << 64, 64, dtype=np.uint64) for _ in range(2))
    split = "mov.b64 {%r10, %r11}, %d10; mov.b64 {%r12, %r13}, %d11; "
    join = " mov.b64 %d20, {%r14, %r15};"
    add = run(split + "add.cc.u32 %r14, %r10, %r12; addc.u32 %r15, %r11, %r13;" + join, x, y, width=64)
    sub = run(split + "sub.cc.u32 %r14, %r10, %r12; subc.u32 %r15, %r11, %r13;" + join, x, y, width=64)
    assert (add == x + y).all() and (sub == x - y).all()
    body = "mad.lo.cc.u32 %r14, %r10, %r12, %r11; madc.hi.u32 %r15, %r10, %r12, %r13;"
    low, high = (v & np.uint64(0xFFFFFFFF) for v in (x, y))
    expect = low * high + (x >> np.uint64(32)) + (y >> np.uint64(32) << np.uint64(32))
    assert (run(split + body + join, x, y, width=64) == expect).all()


def floats(seed, n=128):
    f = np.random.default_rng(seed).standard_normal(n).astype(np.float32) * 4
    special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-40,
        -1e-40,
        3e38,
        65504,
        65520,
        448,
        464,
        480,
        1e-8,
        0.5,
        1.5,
        2.5,
    ]
    f[: len(special)] = special
    return f


FA, FB, FC = floats(1), floats(2)[::-1].copy(), floats(3)
FLOAT = {
    "add": ("add.rn.f32 %r20, %r10, %r11;", lambda a, b, c: a + b),
    "sub": ("sub.f32 %r20, %r10, %r11;", lambda a, b, c: a - b),
    "mul": ("mul.f32 %r20, %r10, %r11;", lambda a, b, c: a * b),
    "div": ("div.rn.f32 %r20, %r10, %r11;", lambda a, b, c: a / b),
    "sqrt": ("sqrt.rn.f32 %r20, %r10;", lambda a, b, c: np.sqrt(a)),
    "neg": ("neg.f32 %r20, %r10;", lambda a, b, c: -a),
    "abs": ("abs.f32 %r20, %r10;", lambda a, b, c: np.abs(a)),
    "min": ("min.f32 %r20, %r10, %r11;", lambda a, b, c: np.fmin(a, b)),
    "max": ("max.f32 %r20, %r10, %r11;", lambda a, b, c: np.fmax(a, b)),
    "max.NaN": ("max.NaN.f32 %r20, %r10, %r11;", lambda a, b, c: np.maximum(a, b)),
    "max3": ("max.f32 %r20, %r10, %r11, %r12;", lambda a, b, c: np.fmax(np.fmax(a, b), c)),
    "fma":
        ("fma.rn.f32 %r20, %r10, %r11, %r12;",
         lambda a, b, c: (torch.addcmul(*[torch.from_numpy(x).double() for x in (c, a, b)])).float().numpy()),
    "ftz":
        ("mul.ftz.f32 %r20, %r10, 0f3F800000;",
         lambda a, b, c: np.where(np.abs(a) < 2**-126, np.copysign(0, a), a)),
    "sat":
        ("add.sat.f32 %r20, %r10, 0f00000000;", lambda a, b, c: np.where(np.isnan(a), 0, np.clip(a, 0, 1))),
    "ex2": ("ex2.approx.f32 %r20, %r10;", lambda a, b, c: np.exp2(a)),
    "rcp": ("rcp.rn.f32 %r20, %r10;", lambda a, b, c: 1 / a),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOAT)
def test_float(name):
    body, expect = FLOAT[name]
    with np.errstate(all="ignore"):
        got = run(body, FA.view(np.uint32), FB.view(np.uint32), FC.view(np.uint32)).view(np.float32)
        # Only ex2.approx is not specified to the bit.
        np.testing.assert_allclose(
            got, np.asarray(expect(FA, FB, FC), np.float32), rtol=2e-7 if name == "ex2" else 0, atol=0
        )


def test_directed_rounding():
    a, b = np.float32([1.0] * 32), np.float32([2.0**-30] * 32)
    up = run("add.rp.f32 %r20, %r10, %r11;", a.view(np.uint32), b.view(np.uint32)).view(np.float32)
    down = run("sub.rm.f32 %r20, %r10, %r11;", a.view(np.uint32), b.view(np.uint32)).view(np.float32)
    near = run("add.rn.f32 %r20, %r10, %r11;", a.view(np.uint32), b.view(np.uint32)).view(np.float32)
    assert (up == np.nextafter(np.float32(1), np.float32(2))).all()
    assert (down == np.nextafter(np.float32(1), np.float32(0))).all()
    assert (near == 1).all()


@pytest.mark.parametrize(("narrow", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_mixed_precision(narrow, dtype):
    """16-bit sources, converted to f32 exactly, and one f32 source; a single rounding."""

    def values(seed):
        x = torch.from_numpy(np.random.default_rng(seed).normal(size=128).astype(np.float32)).to(dtype)
        return x, x.view(torch.uint16).numpy().astype(np.uint32)

    (a, a_bits), (b, b_bits) = values(7), values(8)
    c = np.random.default_rng(9).normal(size=128).astype(np.float32)
    wide = torch.from_numpy(c).double()
    halves = "cvt.u16.u32 %h1, %r10; cvt.u16.u32 %h2, %r11;"
    for body, expect in [
        (f"add.rn.f32.{narrow} %r20, %h1, %r12;", a.double() + wide),
        (f"sub.rn.f32.{narrow} %r20, %h1, %r12;", a.double() - wide),
        (f"fma.rn.f32.{narrow} %r20, %h1, %h2, %r12;", a.double() * b.double() + wide),
        (f"fma.rn.sat.f32.{narrow} %r20, %h1, %h2, %r12;", (a.double() * b.double() + wide).clamp(0, 1)),
    ]:
        got = run(halves + body, a_bits, b_bits, c.view(np.uint32)).view(np.float32)
        np.testing.assert_array_equal(got, expect.float().numpy(), err_msg=body)
    up = run(f"{halves}add.rp.f32.{narrow} %r20, %h1, %r12;", a_bits, b_bits, c.view(np.uint32))
    assert (up.view(np.float32).astype(np.float64) >= (a.double() + wide).numpy()).all()


def test_packed_f32x2():
    a, b = floats(5, 128).view(np.uint64), floats(6, 128).view(np.uint64)
    got = run("fma.rn.f32x2 %d20, %d10, %d11, %d10;", a, b, width=64).view(np.float32)
    x, y = a.view(np.float32), b.view(np.float32)
    expect = torch.addcmul(*[torch.from_numpy(v.copy()).double() for v in (x, x, y)]).float().numpy()
    np.testing.assert_array_equal(got, expect)


@pytest.mark.parametrize(("ptx", "dtype"), [("f16", torch.float16), ("bf16", torch.bfloat16)])
def test_half_formats(ptx, dtype):
    got = run(f"cvt.rn.{ptx}.f32 %h1, %r10; mov.b32 %r20, {{%h1, %h1}};", FA.view(np.uint32))
    expect = torch.from_numpy(FA).to(dtype)
    back = torch.from_numpy((got & 0xFFFF).astype(np.uint16)).view(dtype)
    torch.testing.assert_close(back, expect, rtol=0, atol=0, equal_nan=True)
    got = run(f"cvt.rn.{ptx}x2.f32 %r20, %r10, %r11;", FA.view(np.uint32), FB.view(np.uint32))
    pair = torch.from_numpy(got.copy()).view(dtype).view(-1, 2)
    torch.testing.assert_close(pair[:, 0], torch.from_numpy(FB).to(dtype), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(pair[:, 1], torch.from_numpy(FA).to(dtype), rtol=0, atol=0, equal_nan=True)
    every = np.arange(1 << 16, dtype=np.uint32)
    out = np.zeros(1 << 16, np.uint32)
    body = f"cvt.u16.u32 %h1, %r10; cvt.f32.{ptx} %f1, %h1; mov.b32 %r20, %f1;"
    grid = elementwise(body, 1).replace(
        "mov.u32 %r0, %tid.x;", "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, 1024, %r0;"
    )
    launch(grid, 64, 1024, [every, out])
    expect = torch.from_numpy(every.astype(np.uint16)).view(dtype).float().numpy()
    np.testing.assert_array_equal(out.view(np.float32), expect)


@pytest.mark.parametrize(
    ("ptx", "dtype", "top"), [("e4m3", torch.float8_e4m3fn, 448.0), ("e5m2", torch.float8_e5m2, 57344.0)]
)
def test_eight_bit_formats(ptx, dtype, top):
    x = np.concatenate(
        [FA, np.linspace(-500, 500, 2048, dtype=np.float32), np.float32(2.0) ** np.linspace(-20, 18, 352)]
    ).astype(np.float32)
    x = np.resize(x, 2528)[:2496]
    for part in np.split(x, 3):
        got = (
            run(
                f"cvt.rn.satfinite.{ptx}x2.f32 %h1, %r10, %r10; mov.b32 %r20, {{%h1, %h1}};",
                part.view(np.uint32),
            )
            & 0xFF
        )
        expect = torch.from_numpy(
            np.where(np.isnan(part), part, np.clip(part, -top, top)).astype(np.float32)
        ).to(dtype)
        back = torch.from_numpy(got.astype(np.uint8)).view(dtype).float()
        torch.testing.assert_close(back, expect.float(), rtol=0, atol=0, equal_nan=True)
    every = np.arange(256, dtype=np.uint32)
    got = run(f"cvt.u16.u32 %h1, %r10; cvt.rn.f16x2.{ptx}x2 %r20, %h1;", every) & 0xFFFF
    expect = torch.from_numpy(every.astype(np.uint8)).view(dtype).half()
    torch.testing.assert_close(
        torch.from_numpy(got.astype(np.uint16)).view(torch.float16), expect, rtol=0, atol=0, equal_nan=True
    )


def test_float_to_integer():
    x = np.float32([0.5, 1.5, 2.5, -0.5, -1.5, 3e9, -3e9, np.nan, 1e20, 7.9, -7.9, 2147483520] * 3)[:32].view(
        np.uint32
    )
    f = x.view(np.float32).astype(np.float64)
    for mode, rnd in (("rni", np.round), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)):
        got = run(f"cvt.{mode}.s32.f32 %r20, %r10;", x).view(np.int32)
        expect = np.where(np.isnan(f), 0, np.clip(rnd(f), -(2.0**31), 2.0**31 - 1)).astype(np.int64)
        assert (got == expect).all(), mode
    assert (
        run("cvt.rzi.u32.f32 %r20, %r10;", x)
        == np.where(np.isnan(f), 0, np.clip(np.trunc(f), 0, 2.0**32 - 1)).astype(np.uint64)
    ).all()


def test_integer_to_float():
    got = run("cvt.rn.f32.s32 %r20, %r10;", A).view(np.float32)
    assert (got == A.view(np.int32).astype(np.float32)).all()
    toward_zero = run("cvt.rz.f32.u32 %r20, %r10;", A).view(np.float32)
    assert (toward_zero.astype(np.float64) <= A).all() and (
        np.abs(toward_zero.astype(np.float64) - A) < 256
    ).all()


def test_tf32_rounds_to_ten_bits():
    got = run("cvt.rna.tf32.f32 %r20, %r10;", FC[19:].view(np.uint32))
    u = FC[19:].view(np.uint32)
    assert (got == ((u + 0x1000) & 0xFFFFE000)).all()


def test_division_by_zero_is_reported_where_its_result_is_used():
    with pytest.raises(EmulatorError, match="uninit-register"):
        run("sub.u32 %r11, %r10, %r10; div.u32 %r20, %r10, %r11;", A[:32])
    unused = "sub.u32 %r11, %r10, %r10; div.u32 %r12, %r10, %r11; mov.u32 %r20, 5;"
    out = np.zeros(32, np.uint32)
    report = launch(elementwise(unused, 1), 1, 32, [A[:32], out])
    assert [f.code for f in report.findings] == ["division-by-zero"] and (out == 5).all()


def lanes(body):
    out = np.zeros(32, np.uint32)
    launch(elementwise(body, 1), 1, 32, [np.arange(32, dtype=np.uint32) * 3, out])
    return out


def test_shuffles():
    i = np.arange(32)
    assert (lanes("shfl.sync.bfly.b32 %r20, %r10, 5, 31, -1;") == (i ^ 5) * 3).all()
    assert (lanes("shfl.sync.idx.b32 %r20, %r10, 7, 31, -1;") == 21).all()
    assert (lanes("shfl.sync.up.b32 %r20, %r10, 4, 0, -1;") == np.where(i >= 4, i - 4, i) * 3).all()
    assert (
        lanes("shfl.sync.down.b32 %r20|%p1, %r10, 4, 31, -1; @!%p1 mov.u32 %r20, 99;")
        == np.where(i < 28, (i + 4) * 3, 99)
    ).all()
    assert (lanes("shfl.sync.bfly.b32 %r20, %r10, 1, 0x1c1f, -1;") == (i ^ 1) * 3).all()


def test_votes_match_and_redux():
    i = np.arange(32)
    assert (lanes("setp.lt.u32 %p1, %r10, 30; vote.sync.ballot.b32 %r20, %p1, -1;") == (1 << 10) - 1).all()
    assert (
        lanes("setp.lt.u32 %p1, %r10, 30; vote.sync.any.pred %p2, %p1, -1; selp.u32 %r20, 1, 0, %p2;") == 1
    ).all()
    assert (lanes("redux.sync.add.u32 %r20, %r10, -1;") == (i * 3).sum()).all()
    assert (lanes("redux.sync.max.s32 %r20, %r10, -1;") == 93).all()
    expect = [sum(1 << j for j in range(32) if (3 * j & 7) == (3 * k & 7)) for k in i]
    assert (lanes("and.b32 %r11, %r10, 7; match.any.sync.b32 %r20, %r11, -1;") == expect).all()
    assert (lanes("elect.sync _|%p1, -1; selp.u32 %r20, 1, 0, %p1;") == (i == 0)).all()


def test_lanes_reconverge_after_a_branch():
    body = (
        "and.b32 %r11, %r10, 1; setp.eq.u32 %p1, %r11, 0; @%p1 bra E; add.u32 %r10, %r10, 100; "
        "E: redux.sync.add.u32 %r20, %r10, -1;"
    )
    assert (lanes(body) == sum(3 * i + 100 * (3 * i & 1) for i in range(32))).all()


def test_switch():
    ptx = simple(
        "mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 3; mov.u32 %r4, 7;\nT: .branchtargets L0, L1, L2, "
        "L1;\nbrx.idx %r2, T;\n"
        "L0: mov.u32 %r4, 10; bra OUT; L1: mov.u32 %r4, 11; bra OUT; L2: mov.u32 %r4, 12;\nOUT:\n"
        "mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1; st.global.u32 [%d2], %r4;"
    )
    out = np.zeros(32, np.uint32)
    launch(ptx, 1, 32, [out])
    assert (out == np.tile([10, 11, 12, 11], 8)).all()


def test_shuffle_from_an_absent_lane_is_reported():
    with pytest.raises(EmulatorError, match="shuffle-source"):
        lanes(
            "mov.u32 %r20, 0; setp.lt.u32 %p1, %r10, 48; @%p1 shfl.sync.idx.b32 %r20, %r10, 31, 31, 0xffff;"
        )


def bf16(bits) -> Fraction | float:
    """The value of a bf16 number; infinite or NaN as a float."""
    x = float(np.array([int(bits) << 16], np.uint32).view(np.float32)[0])
    return Fraction(x) if np.isfinite(x) else x


def nearest_bf16(x: Fraction) -> Fraction | float:
    """The nearest bf16 number, ties to even."""
    if not x:
        return x
    exponent = abs(x.numerator).bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, -126) - 7)
    rounded = round(x / unit) * unit
    return rounded if abs(rounded) < 2**128 else inf if x > 0 else -inf


PAIRS = {
    "add": lambda a, b, c: a + b,
    "sub": lambda a, b, c: a - b,
    "mul": lambda a, b, c: a * b,
    "fma.rn": lambda a, b, c: a * b + c,
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_bf16_are_rounded_once(name):
    rng = np.random.default_rng(7)
    # Any finite numbers, and numbers of like exponents, whose sums fall between two results more often.
    exponents = np.concatenate([rng.integers(0, 255, (1500, 3, 2)), rng.integers(110, 135, (1500, 3, 2))])
    halves = (
        rng.integers(0, 2, exponents.shape) << 15 | exponents << 7 | rng.integers(0, 128, exponents.shape)
    )
    sources = [(halves[:, i, 0] | halves[:, i, 1] << 16).astype(np.uint32) for i in range(3)]
    operands = "%r10, %r11, %r12" if name == "fma.rn" else "%r10, %r11"
    for part in range(0, len(halves), 1000):
        given = [each[part : part + 1000] for each in sources]
        got = run(f"{name}.bf16x2 %r20, {operands};", *given)
        for i, word in enumerate(got):
            for half in range(2):
                exact = PAIRS[name](*(bf16(x) for x in halves[part + i, :, half]))
                assert bf16(word >> 16 * half & 0xFFFF) == nearest_bf16(exact), (part + i, half)


def test_a_pair_of_bf16_without_a_number_is_the_canonical_nan():
    infinite, opposite = np.array([0x7F807FC1], np.uint32), np.array([0xFF803F80], np.uint32)
    assert run("add.bf16x2 %r20, %r10, %r11;", infinite, opposite)[0] == 0x7FFF7FFF
