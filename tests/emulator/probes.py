"""Probes: small sm_90a kernels that run on a GPU and in the emulator, with outputs that agree bit for bit.

Every probe is a kernel with fixed inputs and no reference of its own: :mod:`tests.emulator.hardware` records
what it writes on a GPU, and the emulator must write the same. Probes of approximations or of a tensor core's
sums have a tolerance.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ptx_emulator import TensorMap

from .kernels import HEADER, bf16, desc_constant

HEAD = ".extern .shared .align 1024 .b8 dyn[];\n"
REGS = (
    ".reg .pred %p<16>;\n.reg .b16 %h<32>;\n.reg .b32 %r<96>;\n.reg .f32 %f<160>;\n.reg .b64 %d<48>;\n"
    ".reg .b32 %s<8>;\n.reg .b64 %t<8>;\n"
)


@dataclass
class Probe:
    """One launch. All arrays among ``args`` are compared after it; ``rows`` names the rows of a table."""

    name: str
    ptx: str
    args: list[Any]
    grid: Any = 1
    block: int = 32
    cluster: int = 1
    smem: int = 0
    rows: tuple[str, ...] = ()
    #: None: bit-equal. Otherwise the outputs are floats of dtype ``approximate``, which may differ by this
    #: part of the largest magnitude (``relative=False``) or of each value (``relative=True``).
    tolerance: float | None = None
    relative: bool = True
    approximate: Any = np.float32
    group: str = ""
    optional: bool = False  # the driver may refuse it (formats of later GPUs)

    def arrays(self) -> list[np.ndarray]:
        """The arrays that the launch may write, including those of tensor maps."""
        found = [a.array if isinstance(a, TensorMap) else a for a in self.args]
        return [a for a in found if isinstance(a, np.ndarray)]


def kernel(body: str, params: str, head: str = "") -> str:
    """A kernel named k for sm_90a, with enough registers declared."""
    wait.n = 0  # type: ignore[attr-defined]  # labels are numbered in every kernel anew
    return (
        f"{HEADER.format(target='sm_90a')}{head}\n.visible .entry k({params})\n{{\n{REGS}{body}\nret;\n}}\n"
    )


def pointers(n: int, more: str = "") -> str:
    """Parameters p0 to p(n-1) of type .u64, then others."""
    return ", ".join([*(f".param .u64 p{i}" for i in range(n)), *([more] if more else [])])


def wait(bar: str, parity: int | str = 0, scope: str = "") -> str:
    """Wait for a phase; a barrier that never completes traps instead of hanging the GPU."""
    wait.n += 1  # type: ignore[attr-defined]
    n = wait.n  # type: ignore[attr-defined]
    return f"""
mov.u32 %r90, 0;
W{n}: mbarrier.try_wait.parity{scope}.shared::cta.b64 %p15, [{bar}], {parity};
@%p15 bra D{n};
add.u32 %r90, %r90, 1; setp.lt.u32 %p14, %r90, 20000;
@%p14 bra W{n};
trap;
D{n}:
"""


wait.n = 0  # type: ignore[attr-defined]


def table(
    name: str,
    ops: dict[str, str],
    sources: Sequence[np.ndarray],
    width: int = 32,
    block: int = 128,
    **how: Any,
) -> Probe:
    """Every operation on every element: sources in %r10.. (32 bits) or %d10.., result in %r20 or %d20.

    The output has a row for every operation. Blocks of 32 threads make it a table of warp-wide operations.
    """
    n = len(sources[0])
    block = min(block, n)
    if n % block:
        raise ValueError(f"{name}: {n} elements are not a multiple of {block}")
    load, copy = "", ""
    for i, s in enumerate(sources):
        wide = s.dtype.itemsize == 8
        reg, bits = (f"%t{i}", 64) if wide else (f"%s{i}", 32)
        load += (
            f"ld.param.u64 %d1, [p{i}]; add.u64 %d1, %d1, {'%d3' if wide else '%d2'}; "
            f"ld.global.b{bits} {reg}, [%d1];\n"
        )
        copy += f"mov.b{bits} {'%d' if wide else '%r'}{10 + i}, {reg};"
    size = width // 8
    body = (
        f"mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, {block}, %r0;\n"
        f"mul.wide.u32 %d2, %r0, 4; mul.wide.u32 %d3, %r0, 8; {load}"
        f"ld.param.u64 %d4, [p{len(sources)}]; mul.wide.u32 %d5, %r0, {size}; add.u64 %d4, %d4, %d5;\n"
    )
    for j, op in enumerate(ops.values()):
        result = "%r20" if width == 32 else "%d20"
        body += f"{{ {copy} {op}\nst.global.b{width} [%d4+{j * n * size}], {result}; }}\n"
    out = np.zeros((len(ops), n), np.uint32 if width == 32 else np.uint64)
    return Probe(
        name,
        kernel(body, pointers(len(sources) + 1)),
        [*sources, out],
        n // block,
        block,
        rows=tuple(ops),
        **how,
    )


def rng(name: str) -> np.random.Generator:
    return np.random.default_rng(list(name.encode()))


EDGE = [0, 1, 2, 3, 31, 32, 33, 63, 64, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def words(seed: str, n: int = 1024) -> np.ndarray:
    g = rng(seed)
    x = g.integers(0, 1 << 32, n, dtype=np.uint64).astype(np.uint32)
    x >>= np.where(g.random(n) < 0.4, g.integers(0, 32, n), 0).astype(np.uint32)  # include small numbers
    x[: len(EDGE)] = EDGE
    return g.permutation(x)


def longs(seed: str, n: int = 1024) -> np.ndarray:
    return words(seed + "hi", n).astype(np.uint64) << np.uint64(32) | words(seed + "lo", n)


SPECIAL = [
    0.0, 1.0, np.inf, np.nan, 1e-40, 1.4e-45, 1.17549435e-38, 3e38, 65504, 65519, 65520, 448, 464, 480, 57344,
    61440, 61441, 1e-8, 5.96e-8, 2.98e-8, 0.5, 1.5, 2.5, 2.0**-9, 2.0**-10, 2.0**-16, 2.0**-17, 2147483520,
    4294967040,
]  # fmt: skip


def floats(seed: str, n: int = 1024, bits: float = 0.5) -> np.ndarray:
    """Bits of f32: special values of both signs, random bit patterns, and moderate numbers."""
    g = rng(seed)
    x = (g.standard_normal(n) * 2.0 ** g.integers(-12, 12, n)).astype(np.float32).view(np.uint32)
    pattern = g.integers(0, 1 << 32, n, dtype=np.uint64).astype(np.uint32)
    x = np.where(g.random(n) < bits, pattern, x)
    s = np.array(SPECIAL, np.float32).view(np.uint32)
    x[: len(s)], x[len(s) : 2 * len(s)] = s, s | 0x80000000
    x[2 * len(s) : 2 * len(s) + 3] = [0x7F800001, 0xFFC00123, 0x7FFFFFFF]  # NaNs with payloads
    return g.permutation(x)


def near(values: np.ndarray, seed: str, n: int) -> np.ndarray:
    """Bits of f32 at, between and next to the representable values of a small format."""
    v = np.unique(values[np.isfinite(values)].astype(np.float64))
    middle = (v[1:] + v[:-1]) / 2
    points = np.concatenate([v, middle]).astype(np.float32)
    x = np.concatenate(
        [points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
    )
    return rng(seed).permutation(x)[:n].astype(np.float32).view(np.uint32)


def decode_small(code: np.ndarray, ebits: int, mbits: int, inf: bool) -> np.ndarray:
    """Values of a small float format as float64."""
    code = code.astype(np.int64)
    sign, e, m = code >> (ebits + mbits) & 1, code >> mbits & ((1 << ebits) - 1), code & ((1 << mbits) - 1)
    bias = (1 << (ebits - 1)) - 1
    v = np.where(e == 0, m * 2.0 ** (1 - bias - mbits), (m + (1 << mbits)) * 2.0 ** (e - bias - mbits))
    top = e == (1 << ebits) - 1
    v = (
        np.where(top & (m == 0), np.inf, np.where(top, np.nan, v))
        if inf
        else np.where(top & (m == (1 << mbits) - 1), np.nan, v)
    )
    return np.where(sign == 1, -v, v)


FORMAT = {"e4m3": (4, 3, False), "e5m2": (5, 2, True), "f16": (5, 10, True), "bf16": (8, 7, True)}


def integer() -> Iterator[Probe]:
    ops: dict[str, str] = {}
    for t in ("u32", "s32"):
        for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            ops[f"{op}.{t}"] = f"{op}.{t} %r20, %r10, %r11;"
        ops[f"mad.lo.{t}"] = f"mad.lo.{t} %r20, %r10, %r11, %r12;"
        ops[f"mad.hi.{t}"] = f"mad.hi.{t} %r20, %r10, %r11, %r12;"
        ops[f"sad.{t}"] = f"sad.{t} %r20, %r10, %r11, %r12;"
        ops[f"div.{t}"] = f"or.b32 %r11, %r11, 1; div.{t} %r20, %r10, %r11;"
        ops[f"rem.{t}"] = f"or.b32 %r11, %r11, 1; rem.{t} %r20, %r10, %r11;"
        ops[f"bfe.{t}"] = f"bfe.{t} %r20, %r10, %r11, %r12;"
        ops[f"bfe.{t}.small"] = (
            f"and.b32 %r11, %r11, 63; and.b32 %r12, %r12, 63; bfe.{t} %r20, %r10, %r11, %r12;"
        )
        ops[f"bfind.{t}"] = f"bfind.{t} %r20, %r10;"
        ops[f"bfind.shiftamt.{t}"] = f"bfind.shiftamt.{t} %r20, %r10;"
        ops[f"shr.{t}"] = f"and.b32 %r11, %r11, 63; shr.{t} %r20, %r10, %r11;"
        for cmp in ("eq", "ne", "lt", "le", "gt", "ge"):
            ops[f"setp.{cmp}.{t}"] = f"setp.{cmp}.{t} %p1, %r10, %r11; selp.b32 %r20, 1, 0, %p1;"
        ops[f"set.lt.{t}"] = f"set.lt.u32.{t} %r20, %r10, %r11;"
        for u in ("u32", "s32"):
            ops[f"dp4a.{t}.{u}"] = f"dp4a.{t}.{u} %r20, %r10, %r11, %r12;"
        for w in ("16", "8"):
            ops[f"cvt.{t}.{t[0]}{w}"] = f"cvt.{t}.{t[0]}{w} %r20, %r10;"
            ops[f"cvt.sat.{t[0]}{w}.s32"] = f"cvt.sat.{t[0]}{w}.s32 %r20, %r10;"
            ops[f"cvt.sat.{t[0]}{w}.u32"] = f"cvt.sat.{t[0]}{w}.u32 %r20, %r10;"
    for op in ("and", "or", "xor"):
        ops[op] = f"{op}.b32 %r20, %r10, %r11;"
    for op in ("not.b32", "cnot.b32", "popc.b32", "clz.b32", "brev.b32", "neg.s32", "abs.s32"):
        ops[op] = f"{op} %r20, %r10;"
    ops["setp.and"] = (
        "setp.gt.u32 %p1, %r10, 1000; setp.lt.and.u32 %p2|%p3, %r11, %r10, %p1; selp.b32 %r20, 1, 0, %p2; "
        "@%p3 add.u32 %r20, %r20, 2;"
    )
    ops["shl"] = "and.b32 %r11, %r11, 63; shl.b32 %r20, %r10, %r11;"
    ops["bfi"] = "bfi.b32 %r20, %r10, %r11, %r12, %r13;"
    ops["bfi.small"] = "and.b32 %r12, %r12, 63; and.b32 %r13, %r13, 63; bfi.b32 %r20, %r10, %r11, %r12, %r13;"
    for d, m in itertools.product("lr", ("wrap", "clamp")):
        ops[f"shf.{d}.{m}"] = f"and.b32 %r12, %r12, 63; shf.{d}.{m}.b32 %r20, %r10, %r11, %r12;"
    ops["prmt"] = "prmt.b32 %r20, %r10, %r11, %r12;"
    for m in ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        ops[f"prmt.{m}"] = f"prmt.b32.{m} %r20, %r10, %r11, %r12;"
    for lut in (0x00, 0xFF, 0xE8, 0x96, 0x1B, 0xCA, 0x80, 0x3C, 0xF8):
        ops[f"lop3.{lut:02x}"] = f"lop3.b32 %r20, %r10, %r11, %r12, {lut};"
    for t in ("u16x2", "s16x2"):
        for op in ("add", "min", "max"):
            ops[f"{op}.{t}"] = f"{op}.{t} %r20, %r10, %r11;"
    for t in ("u16", "s16"):
        for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            ops[f"{op}.{t}"] = (
                f"cvt.u16.u32 %h1, %r10; cvt.u16.u32 %h2, %r11; {op}.{t} %h3, %h1, %h2; "
                f"cvt.u32.u16 %r20, %h3;"
            )
        ops[f"mul.wide.{t}"] = f"cvt.u16.u32 %h1, %r10; cvt.u16.u32 %h2, %r11; mul.wide.{t} %r20, %h1, %h2;"
    yield table("integer 32", ops, [words(f"i{k}") for k in range(4)])
    ops = {}
    for t in ("u64", "s64"):
        for op in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            ops[f"{op}.{t}"] = f"{op}.{t} %d20, %d10, %d11;"
        ops[f"mad.lo.{t}"] = f"mad.lo.{t} %d20, %d10, %d11, %d12;"
        ops[f"div.{t}"] = f"or.b64 %d11, %d11, 1; div.{t} %d20, %d10, %d11;"
        ops[f"rem.{t}"] = f"or.b64 %d11, %d11, 1; rem.{t} %d20, %d10, %d11;"
        ops[f"shr.{t}"] = f"cvt.u32.u64 %r11, %d11; and.b32 %r11, %r11, 127; shr.{t} %d20, %d10, %r11;"
        ops[f"bfe.{t}"] = (
            f"cvt.u32.u64 %r11, %d11; cvt.u32.u64 %r12, %d12; and.b32 %r11, %r11, 127; "
            f"and.b32 %r12, %r12, 127; bfe.{t} %d20, %d10, %r11, %r12;"
        )
        ops[f"bfind.{t}"] = f"bfind.{t} %r11, %d10; cvt.u64.u32 %d20, %r11;"
        ops[f"setp.lt.{t}"] = f"setp.lt.{t} %p1, %d10, %d11; selp.b64 %d20, 1, 0, %p1;"
        ops[f"mul.wide.{t[0]}32"] = (
            f"cvt.u32.u64 %r11, %d11; cvt.u32.u64 %r10, %d10; mul.wide.{t[0]}32 %d20, %r10, %r11;"
        )
        ops[f"mad.wide.{t[0]}32"] = (
            f"cvt.u32.u64 %r11, %d11; cvt.u32.u64 %r10, %d10; mad.wide.{t[0]}32 %d20, %r10, %r11, %d12;"
        )
        ops[f"cvt.{t}.{t[0]}32"] = f"cvt.u32.u64 %r11, %d11; cvt.{t}.{t[0]}32 %d20, %r11;"
        ops[f"cvt.sat.{t[0]}32.s64"] = f"cvt.sat.{t[0]}32.s64 %r11, %d11; cvt.u64.u32 %d20, %r11;"
    ops["shl.b64"] = "cvt.u32.u64 %r11, %d11; and.b32 %r11, %r11, 127; shl.b64 %d20, %d10, %r11;"
    for op in ("and", "or", "xor"):
        ops[op] = f"{op}.b64 %d20, %d10, %d11;"
    for op in ("not.b64", "brev.b64", "neg.s64", "abs.s64"):
        ops[op] = f"{op} %d20, %d10;"
    for op in ("popc.b64", "clz.b64"):
        ops[op] = f"{op} %r11, %d10; cvt.u64.u32 %d20, %r11;"
    ops["bfi.b64"] = (
        "cvt.u32.u64 %r11, %d11; cvt.u32.u64 %r12, %d12; and.b32 %r11, %r11, 127; and.b32 %r12, %r12, 127; "
        "bfi.b64 %d20, %d10, %d11, %r11, %r12;"
    )
    ops["add with carry"] = (
        "mov.b64 {%r10, %r11}, %d10; mov.b64 {%r12, %r13}, %d11; add.cc.u32 %r14, %r10, %r12; "
        "addc.cc.u32 %r15, %r11, %r13; addc.u32 %r16, %r10, 0; mov.b64 %d20, {%r14, %r15}; "
        "cvt.u64.u32 %d21, %r16; xor.b64 %d20, %d20, %d21;"
    )
    ops["subtract with borrow"] = (
        "mov.b64 {%r10, %r11}, %d10; mov.b64 {%r12, %r13}, %d11; sub.cc.s32 %r14, %r10, %r12; "
        "subc.cc.s32 %r15, %r11, %r13; subc.s32 %r16, %r10, 0; mov.b64 %d20, {%r14, %r15}; "
        "cvt.u64.u32 %d21, %r16; xor.b64 %d20, %d20, %d21;"
    )
    ops["multiply with carry"] = (
        "mov.b64 {%r10, %r11}, %d10; mov.b64 {%r12, %r13}, %d11; mad.lo.cc.u32 %r14, %r10, %r12, %r13; "
        "madc.hi.cc.u32 %r15, %r10, %r12, %r11; addc.u32 %r16, %r11, %r13; mov.b64 %d20, {%r14, %r15}; "
        "cvt.u64.u32 %d21, %r16; xor.b64 %d20, %d20, %d21;"
    )
    ops["multiply with carry, signed"] = (
        "mov.b64 {%r10, %r11}, %d10; mov.b64 {%r12, %r13}, %d11; mad.lo.cc.s32 %r14, %r10, %r12, %r13; "
        "madc.hi.s32 %r15, %r10, %r12, %r11; mov.b64 %d20, {%r14, %r15};"
    )
    ops["add with carry 64"] = (
        "add.cc.u64 %d20, %d10, %d11; addc.u64 %d21, %d12, %d10; xor.b64 %d20, %d20, %d21;"
    )
    ops["subtract with borrow 64"] = (
        "sub.cc.u64 %d20, %d10, %d11; subc.u64 %d21, %d12, %d10; xor.b64 %d20, %d20, %d21;"
    )
    ops["pack"] = "mov.b64 {%r11, %r12}, %d10; mov.b64 {%r13, _}, %d11; mov.b64 %d20, {%r12, %r13};"
    yield table("integer 64", ops, [longs(f"l{k}") for k in range(3)], 64)


def floating() -> Iterator[Probe]:
    ops: dict[str, str] = {}
    for r in ("rn", "rz", "rm", "rp"):
        for ftz in ("", ".ftz"):
            for op in ("add", "sub", "mul"):
                ops[f"{op}.{r}{ftz}"] = f"{op}.{r}{ftz}.f32 %r20, %r10, %r11;"
            ops[f"fma.{r}{ftz}"] = f"fma.{r}{ftz}.f32 %r20, %r10, %r11, %r12;"
        ops[f"div.{r}"] = f"div.{r}.f32 %r20, %r10, %r11;"
        ops[f"rcp.{r}"] = f"rcp.{r}.f32 %r20, %r10;"
        ops[f"sqrt.{r}"] = f"sqrt.{r}.f32 %r20, %r10;"
    for op in ("add", "mul"):
        ops[f"{op}.sat"] = f"{op}.sat.f32 %r20, %r10, %r11;"
    ops["fma.sat"] = "fma.rn.sat.f32 %r20, %r10, %r11, %r12;"
    for op in ("min", "max"):
        for m in ("", ".ftz", ".NaN", ".ftz.NaN"):
            ops[f"{op}{m}"] = f"{op}{m}.f32 %r20, %r10, %r11;"
    for op in ("neg", "abs", "neg.ftz", "abs.ftz"):
        ops[op] = f"{op}.f32 %r20, %r10;"
    ops["copysign"] = "copysign.f32 %r20, %r10, %r11;"
    for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        ops[f"testp.{test}"] = f"testp.{test}.f32 %p1, %r10; selp.b32 %r20, 1, 0, %p1;"
    for cmp in ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
        for ftz in ("", ".ftz"):
            ops[f"setp.{cmp}{ftz}"] = f"setp.{cmp}{ftz}.f32 %p1, %r10, %r11; selp.b32 %r20, 1, 0, %p1;"
    same = floats("f3")
    same[::3] = floats("f2")[::3]  # equal operands for comparisons
    yield table("float 32", ops, [floats("f1"), floats("f2"), same])
    yield table("float 32 equal operands",
                {k: v for k, v in ops.items() if k.startswith(("setp", "min", "max", "sub", "div.rn"))},
                [floats("f2"), same, floats("f1")])  # fmt: skip
    for t in ("f16x2", "bf16x2"):
        ops = {}
        for op in ("add", "sub", "mul"):
            ops[op] = f"{op}.rn.{t} %r20, %r10, %r11;"
            if t == "f16x2":
                ops[f"{op}.sat"] = f"{op}.rn.sat.{t} %r20, %r10, %r11;"
                ops[f"{op}.ftz"] = f"{op}.rn.ftz.{t} %r20, %r10, %r11;"
        ops["fma"] = f"fma.rn.{t} %r20, %r10, %r11, %r12;"
        ops["fma.relu"] = f"fma.rn.relu.{t} %r20, %r10, %r11, %r12;"
        for op, m in itertools.product(("min", "max"), ("", ".NaN")):
            ops[f"{op}{m}"] = f"{op}{m}.{t} %r20, %r10, %r11;"
        for op in ("neg", "abs"):
            ops[op] = f"{op}.{t} %r20, %r10;"
        s = t[:-2]
        for cmp in ("eq", "lt", "geu", "nan"):
            ops[f"setp.{cmp}"] = (
                f"mov.b32 {{%h1, _}}, %r10; mov.b32 {{%h2, _}}, %r11; setp.{cmp}.{s} %p1, %h1, %h2; "
                f"selp.b32 %r20, 1, 0, %p1;"
            )
        ops["fma.scalar"] = (
            f"mov.b32 {{%h1, _}}, %r10; mov.b32 {{%h2, _}}, %r11; mov.b32 {{%h3, _}}, %r12; "
            f"fma.rn.{s} %h4, %h1, %h2, %h3; mov.b32 %r20, {{%h4, %h4}};"
        )
        halves = []
        for k in range(3):
            x = words(f"{t}{k}", 2048)
            g = rng(f"{t}moderate{k}")
            z = g.standard_normal(4096).astype(np.float32)
            moderate = (z.astype(np.float16).view(np.uint16) if t == "f16x2" else bf16(z)).view(np.uint32)
            halves.append(np.where(g.random(2048) < 0.6, moderate, x).astype(np.uint32))
        yield table(f"float {t}", ops, halves)
    g = rng("f64")
    d = [(g.standard_normal(512) * 2.0 ** g.integers(-30, 30, 512)).view(np.uint64) for _ in range(3)]
    ops = {
        f"{op}.{r}": f"{op}.{r}.f64 %d20, %d10, %d11;"
        for op in ("add", "sub", "mul", "div")
        for r in ("rn", "rz", "rm", "rp")
    }
    ops |= {f"fma.{r}": f"fma.{r}.f64 %d20, %d10, %d11, %d12;" for r in ("rn", "rz", "rm", "rp")}
    ops |= {
        "min": "min.f64 %d20, %d10, %d11;",
        "max": "max.f64 %d20, %d10, %d11;",
        "neg": "neg.f64 %d20, %d10;",
    }
    ops |= {
        "setp": "setp.lt.f64 %p1, %d10, %d11; selp.b64 %d20, 1, 0, %p1;",
        "sqrt": "abs.f64 %d10, %d10; sqrt.rn.f64 %d20, %d10;",
    }
    yield table("float 64", ops, d, 64)
    ops = {op: f"{op}.approx.ftz.f32 %r20, %r10;" for op in ("ex2", "lg2", "rcp", "rsqrt", "sqrt")}
    ops["tanh"] = "tanh.approx.f32 %r20, %r10;"
    ops["div.full"] = "div.full.f32 %r20, %r10, %r11;"
    ops["div.approx"] = "div.approx.f32 %r20, %r10, %r11;"
    x = np.concatenate([rng("approx").uniform(0.01, 30, 1000), [0.5, 1, 2, 4, 1024, 0.25] * 4]).astype(
        np.float32
    )
    y = rng("approx2").uniform(0.5, 4, 1024).astype(np.float32)
    yield table("approximations", ops, [x.view(np.uint32), y.view(np.uint32)], tolerance=2.0**-10)
    ops = {op: f"{op}.approx.f32 %r20, %r10;" for op in ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos")}
    x = rng("angles").uniform(-3, 3, 1024).astype(np.float32)
    yield table(
        "approximations of small numbers", ops, [x.view(np.uint32)], tolerance=2.0**-10, relative=False
    )
    special = np.resize(
        np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, -1.0, 200, -200], np.float32), 32
    )
    ops = {
        f"{op}{z}": f"{op}.approx{z}.f32 %r20, %r10;"
        for op in ("ex2", "lg2", "rcp", "rsqrt", "sqrt")
        for z in ("", ".ftz")
    }
    yield table("approximations of special values", ops, [special.view(np.uint32)], tolerance=2.0**-10)


def conversions() -> Iterator[Probe]:
    every16 = np.arange(1 << 16, dtype=np.uint32)
    small = {f: decode_small(np.arange(1 << (1 + sum(FORMAT[f][:2]))), *FORMAT[f]) for f in FORMAT}
    near16 = [near(small[f], f"near{f}", 2048) for f in ("f16", "bf16")]
    near8 = [near(small[f], f"near{f}", 512) for f in ("e4m3", "e5m2")]
    source = np.concatenate([floats("cvt", 3072, 0.7), *near16, *near8, words("cvt", 64)])
    source = np.resize(source, len(source) // 128 * 128).astype(np.uint32)
    other = rng("cvt2").permutation(source)
    ops: dict[str, str] = {}
    for t in ("f16", "bf16"):
        for r in ("rn", "rz", *(("rm", "rp") if t == "f16" else ())):
            ops[f"{t}.{r}"] = f"cvt.{r}.{t}.f32 %h1, %r10; cvt.u32.u16 %r20, %h1;"
        for r, m in itertools.product(("rn", "rz"), ("", ".relu")):
            ops[f"{t}x2.{r}{m}"] = f"cvt.{r}{m}.{t}x2.f32 %r20, %r10, %r11;"
            ops[f"{t}.{r}{m}"] = f"cvt.{r}{m}.{t}.f32 %h1, %r10; cvt.u32.u16 %r20, %h1;"
        ops[f"{t}.rn.satfinite"] = f"cvt.rn.satfinite.{t}.f32 %h1, %r10; cvt.u32.u16 %r20, %h1;"
        ops[f"{t}x2.rn.relu.satfinite"] = f"cvt.rn.relu.satfinite.{t}x2.f32 %r20, %r10, %r11;"
    for t, m in itertools.product(("e4m3x2", "e5m2x2"), ("", ".relu")):
        ops[f"{t}{m}"] = f"cvt.rn.satfinite{m}.{t}.f32 %h1, %r10, %r11; cvt.u32.u16 %r20, %h1;"
    for r in ("rna", "rn", "rz"):
        ops[f"tf32.{r}"] = f"cvt.{r}.tf32.f32 %r20, %r10;"
        if r != "rna":
            ops[f"tf32.{r}.relu"] = f"cvt.{r}.relu.tf32.f32 %r20, %r10;"
    ops["tf32.rna.satfinite"] = "cvt.rna.satfinite.tf32.f32 %r20, %r10;"
    for r in ("rni", "rzi", "rmi", "rpi"):
        ops[f"f32.{r}"] = f"cvt.{r}.f32.f32 %r20, %r10;"
        ops[f"f32.{r}.ftz"] = f"cvt.{r}.ftz.f32.f32 %r20, %r10;"
        for t in ("u8", "s8", "u16", "s16", "u32", "s32"):
            ops[f"{t}.{r}"] = (
                f"cvt.{r}.{t}.f32 %r20, %r10;"
                if t[1:] in ("8", "32")
                else f"cvt.{r}.{t}.f32 %h1, %r10; cvt.u32.u16 %r20, %h1;"
            )
        for t in ("u64", "s64"):
            ops[f"{t}.{r}.low"] = f"cvt.{r}.{t}.f32 %d10, %r10; cvt.u32.u64 %r20, %d10;"
            ops[f"{t}.{r}.high"] = f"cvt.{r}.{t}.f32 %d10, %r10; mov.b64 {{_, %r20}}, %d10;"
    ops["s32.rzi.ftz"] = "cvt.rzi.ftz.s32.f32 %r20, %r10;"
    ops["s32.rmi.ftz"] = "cvt.rmi.ftz.s32.f32 %r20, %r10;"
    ops["sat"] = "cvt.sat.f32.f32 %r20, %r10;"
    ops["sat.ftz"] = "cvt.ftz.sat.f32.f32 %r20, %r10;"
    ops["f64.low"] = "cvt.f64.f32 %d10, %r10; cvt.u32.u64 %r20, %d10;"
    ops["f64.high"] = "cvt.f64.f32 %d10, %r10; mov.b64 {_, %r20}, %d10;"
    yield table("convert from f32", ops, [source, other])
    ops = {}
    for r in ("rn", "rz", "rm", "rp"):
        for t in ("u32", "s32"):
            ops[f"f32.{t}.{r}"] = f"cvt.{r}.f32.{t} %r20, %r10;"
            ops[f"f16.{t}.{r}"] = f"cvt.{r}.f16.{t} %h1, %r10; cvt.u32.u16 %r20, %h1;"
        for t in ("u64", "s64"):
            ops[f"f32.{t}.{r}"] = f"mov.b64 %d1, {{%r11, %r10}}; cvt.{r}.f32.{t} %r20, %d1;"
    for t in ("u16", "s16"):
        ops[f"f32.{t}"] = f"cvt.u16.u32 %h1, %r10; cvt.rn.f32.{t} %r20, %h1;"
        ops[f"f16.{t}"] = f"cvt.u16.u32 %h1, %r10; cvt.rn.f16.{t} %h2, %h1; cvt.u32.u16 %r20, %h2;"
    for t in ("u8", "s8"):
        ops[f"f32.{t}"] = f"cvt.rn.f32.{t} %r20, %r10;"
    ops["f64.s32"] = "cvt.rn.f64.s32 %d1, %r10; mov.b64 {%r20, %r21}, %d1; xor.b32 %r20, %r20, %r21;"
    yield table("convert from integers", ops, [words("ci", 2048), words("ci2", 2048)])
    ops = {t: f"cvt.u16.u32 %h1, %r10; cvt.f32.{t} %r20, %h1;" for t in ("f16", "bf16")}
    for r in ("rni", "rzi", "rmi", "rpi"):
        ops[f"f16.{r}"] = f"cvt.u16.u32 %h1, %r10; cvt.{r}.f16.f16 %h2, %h1; cvt.u32.u16 %r20, %h2;"
        ops[f"s32.f16.{r}"] = f"cvt.u16.u32 %h1, %r10; cvt.{r}.s32.f16 %r20, %h1;"
        ops[f"u16.f16.{r}"] = f"cvt.u16.u32 %h1, %r10; cvt.{r}.u16.f16 %h2, %h1; cvt.u32.u16 %r20, %h2;"
    for t in ("e4m3x2", "e5m2x2"):
        for m in ("", ".relu"):
            ops[f"f16x2.{t}{m}"] = f"cvt.u16.u32 %h1, %r10; cvt.rn{m}.f16x2.{t} %r20, %h1;"
            ops[f"{t}.f16x2{m}"] = (
                f"cvt.u16.u32 %h1, %r10; not.b16 %h2, %h1; mov.b32 %r11, {{%h1, %h2}}; "
                f"cvt.rn.satfinite{m}.{t}.f16x2 %h3, %r11; cvt.u32.u16 %r20, %h3;"
            )
    for op in ("neg", "abs"):
        for t in ("f16", "bf16"):
            ops[f"{op}.{t}"] = f"cvt.u16.u32 %h1, %r10; {op}.{t} %h2, %h1; cvt.u32.u16 %r20, %h2;"
    yield table("convert every 16-bit pattern", ops, [every16], block=1024)
    ops = {}
    for r in ("rn", "rz", "rm", "rp"):
        ops[f"f32.f64.{r}"] = f"cvt.{r}.f32.f64 %r20, %d10; cvt.u64.u32 %d20, %r20;"
    for r in ("rni", "rzi", "rmi", "rpi"):
        for t in ("u32", "s32"):
            ops[f"{t}.f64.{r}"] = f"cvt.{r}.{t}.f64 %r20, %d10; cvt.u64.u32 %d20, %r20;"
        for t in ("u64", "s64"):
            ops[f"{t}.f64.{r}"] = f"cvt.{r}.{t}.f64 %d20, %d10;"
        ops[f"f64.{r}"] = f"cvt.{r}.f64.f64 %d20, %d10;"
    g = rng("f64 cvt")
    x = g.standard_normal(1024) * 2.0 ** g.integers(-60, 70, 1024)
    x[:9] = [0, -0.0, 1e300, -1e300, 1e-310, 2.0**63, -(2.0**63), 2.0**32 - 0.5, 0.5]
    yield table("convert from f64", ops, [x.view(np.uint64)], 64)


def warps() -> Iterator[Probe]:
    ops: dict[str, str] = {}
    for mode, clamp in itertools.product(
        ("up", "down", "bfly", "idx"), (0, 31, 0x1C1F, 0x181F, 0x1800, 0x0F, 0x100F)
    ):
        ops[f"shfl.{mode}.{clamp:x}"] = (
            f"and.b32 %r11, %r11, 31; shfl.sync.{mode}.b32 %r20|%p1, %r10, %r11, {clamp}, -1; "
            f"@!%p1 not.b32 %r20, %r20;"
        )
    ops["shfl.random clamp"] = (
        "and.b32 %r11, %r11, 31; shfl.sync.idx.b32 %r20|%p1, %r10, %r11, %r12, -1; @!%p1 not.b32 %r20, %r20;"
    )
    ops["shfl.bits above 31"] = "shfl.sync.idx.b32 %r20, %r10, %r11, 31, -1;"
    for mode in ("all", "any", "uni"):
        for name, test in (
            ("random", "setp.lt.u32 %p1, %r10, %r11"),
            ("true", "setp.eq.u32 %p1, %r10, %r10"),
            ("false", "setp.ne.u32 %p1, %r10, %r10"),
        ):
            ops[f"vote.{mode}.{name}"] = (
                f"{test}; vote.sync.{mode}.pred %p2, %p1, -1; selp.u32 %r20, 1, 0, %p2;"
            )
    ops["ballot"] = "setp.lt.u32 %p1, %r10, %r11; vote.sync.ballot.b32 %r20, %p1, -1;"
    ops["match.any"] = "and.b32 %r10, %r10, 3; match.any.sync.b32 %r20, %r10, -1;"
    ops["match.any.b64"] = (
        "and.b32 %r10, %r10, 1; and.b32 %r11, %r11, 3; mov.b64 %d1, {%r10, %r11}; "
        "match.any.sync.b64 %r20, %d1, -1;"
    )
    ops["match.all"] = (
        "and.b32 %r10, %r10, 0; match.all.sync.b32 %r20|%p1, %r10, -1; @%p1 xor.b32 %r20, %r20, 5;"
    )
    ops["match.all.none"] = "match.all.sync.b32 %r20|%p1, %r10, -1; @%p1 xor.b32 %r20, %r20, 5;"
    for op in ("add", "min", "max"):
        for t in ("u32", "s32"):
            ops[f"redux.{op}.{t}"] = f"redux.sync.{op}.{t} %r20, %r10, -1;"
    for op in ("and", "or", "xor"):
        ops[f"redux.{op}"] = f"redux.sync.{op}.b32 %r20, %r10, -1;"
    ops["elect"] = "elect.sync %r20|%p1, -1; @%p1 add.u32 %r20, %r20, 100;"
    ops["activemask"] = "activemask.b32 %r20;"
    # Each half of the warp with its own mask.
    half = (
        "mov.u32 %r30, %laneid; setp.lt.u32 %p5, %r30, 12; @%p5 bra A; {} bra B; A: {} B: bar.warp.sync -1;"
    )
    for name, op in {
        "redux": "redux.sync.add.u32 %r20, %r10, {};",
        "shfl": "and.b32 %r11, %r11, 3; shfl.sync.bfly.b32 %r20, %r10, %r11, 31, {};",
        "ballot": "setp.lt.u32 %p1, %r10, %r11; vote.sync.ballot.b32 %r20, %p1, {};",
        "match": "and.b32 %r10, %r10, 3; match.any.sync.b32 %r20, %r10, {};",
        "elect": "elect.sync %r20|%p1, {}; @%p1 add.u32 %r20, %r20, 100;",
    }.items():
        ops[f"divergent {name}"] = half.format(op.format("0xfffff000"), op.format("0x00000fff"))
    ops["movmatrix"] = "movmatrix.sync.aligned.m8n8.trans.b16 %r20, %r10;"
    for reg in (
        "laneid",
        "lanemask_eq",
        "lanemask_lt",
        "lanemask_le",
        "lanemask_gt",
        "lanemask_ge",
        "tid.x",
        "ntid.x",
        "ctaid.x",
        "nctaid.x",
        "nctaid.z",
        "cluster_ctarank",
        "cluster_nctarank",
        "clusterid.x",
        "nclusterid.x",
        "cluster_ctaid.x",
        "cluster_nctaid.x",
        "is_explicit_cluster",
        "dynamic_smem_size",
    ):
        ops[f"%{reg}"] = (
            f"mov.u32 %r20, %{reg};"
            if reg != "is_explicit_cluster"
            else "mov.pred %p1, %is_explicit_cluster; selp.u32 %r20, 1, 0, %p1;"
        )
    yield table("warp", ops, [words("w0", 2048), words("w1", 2048), words("w2", 2048)], block=32)


def atomics() -> Iterator[Probe]:
    typed = {"u32": ("add", "min", "max", "inc", "dec", "exch.b32", "and.b32", "or.b32", "xor.b32",
                     "cas.b32"), "s32": ("add", "min", "max"),
             "f32": ("add",), "f16x2": ("add.noftz",), "bf16x2": ("add.noftz",)}  # fmt: skip
    for space in ("global", "shared"):
        n, block = 1024, 128
        ops = {}
        for t, names in typed.items():
            for name in names:
                form = name if "." in name and "noftz" not in name else f"{name}.{t}"
                third = ", %r12" if name.startswith("cas") else ""
                # Compare-and-swap succeeds in a third of the lanes.
                ops[form] = (
                    "rem.u32 %r30, %r10, 3; setp.eq.u32 %p1, %r30, 0; @%p1 mov.b32 %r11, %r10;"
                    * bool(third)
                    + f"st.{space}.b32 [#], %r10; atom.{space}.{form} %r20, [#], %r11{third}; "
                    f"ld.{space}.b32 %r21, [#];"
                )
                if (name in ("add", "min", "max", "inc", "dec") and t != "f32") or "noftz" in name:
                    ops[f"red {form}"] = (
                        f"st.{space}.b32 [#], %r10; red.{space}.{form} [#], %r11; ld.{space}.b32 %r20, [#]; "
                        f"mov.b32 %r21, 0;"
                    )
        # The returned value and the memory afterwards, one row each.
        rows, body, size = [], "", 2 * len(ops)
        for j, (label, op) in enumerate(ops.items()):
            rows += [label, f"{label} in memory"]
            place = "%d6" if space == "global" else "%r6"
            body += (
                "{ mov.b32 %r10, %s0; mov.b32 %r11, %s1; mov.b32 %r12, %s2; " + op.replace("#", place)
                + f"\nst.global.b32 [%d4+{8 * j * n}], %r20; st.global.b32 [%d4+{8 * j * n + 4 * n}], "
                  f"%r21; }}\n"
            )  # fmt: skip
        load = "".join(
            f"ld.param.u64 %d1, [p{i}]; add.u64 %d1, %d1, %d2; ld.global.b32 %s{i}, [%d1];\n"
            for i in range(3)
        )
        text = kernel(
            f"mov.u32 %r2, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, {block}, %r2; "
            f"mul.wide.u32 %d2, %r0, 4;\n{load}"
            f"ld.param.u64 %d4, [p4]; add.u64 %d4, %d4, %d2; ld.param.u64 %d6, [p3]; add.u64 %d6, %d6, %d2;\n"
            f"mov.u32 %r6, buf; shl.b32 %r2, %r2, 2; add.u32 %r6, %r6, %r2;\n{body}",
            pointers(5),
            f".shared .align 16 .b8 buf[{4 * block}];\n",
        )
        sources = [words("a0"), words("a1"), words("a2")]
        mixed = floats("a3", 1024, 0.4)
        sources[0][::2], sources[1][::2] = mixed[::2], floats("a4", 1024, 0.4)[::2]
        yield Probe(
            f"atomics {space}",
            text,
            [*sources, np.zeros(n, np.uint32), np.zeros((size, n), np.uint32)],
            n // block,
            block,
            rows=(),
        )
        ops = {}
        for form in (
            "add.u64",
            "min.u64",
            "max.u64",
            "min.s64",
            "max.s64",
            "exch.b64",
            "and.b64",
            "or.b64",
            "xor.b64",
            "cas.b64",
            "add.f64",
        ):
            third = ", %d12" if form.startswith("cas") else ""
            place = "%d30" if space == "global" else "%r30"
            base = (
                "ld.param.u64 %d30, [p3]; add.u64 %d30, %d30, %d3;" if space == "global"
                else "mov.u32 %r30, %tid.x; shl.b32 %r30, %r30, 3; mov.u32 %r31, buf; "
                     "add.u32 %r30, %r30, %r31;"
            )  # fmt: skip
            init = (
                "and.b64 %d10, %d10, 0xBFFFFFFFFFFFFFFF; and.b64 %d11, %d11, 0xBFFFFFFFFFFFFFFF;"
                if "f64" in form
                else ""
            )
            equal = (
                "and.b64 %d31, %d10, 1; setp.eq.u64 %p1, %d31, 0; @%p1 mov.b64 %d11, %d10;" if third else ""
            )
            ops[form] = (
                f"{init} {equal} {base} st.{space}.b64 [{place}], %d10; "
                f"atom.{space}.{form} %d20, [{place}], %d11{third};"
            )
            ops[f"{form} in memory"] = f"{base} ld.{space}.b64 %d20, [{place}];"
        p = table(f"atomics 64 {space}", ops, [longs("al0", 256), longs("al1", 256), longs("al2", 256)], 64)
        p.ptx = p.ptx.replace("p3])", "p3]").replace(".param .u64 p3)", ".param .u64 p3, .param .u64 p4)")
        # The scratch array is parameter p3, the output p4.
        p.ptx = p.ptx.replace("ld.param.u64 %d4, [p3]", "ld.param.u64 %d4, [p4]").replace(
            "address_size 64\n", f"address_size 64\n.shared .align 16 .b8 buf[{8 * 128}];\n", 1
        )
        p.args = [*p.args[:3], np.zeros(256, np.uint64), p.args[3]]
        yield p
    # Vectors, by special forms of red and atom.
    ops = {
        "red.v4.f32": "red.global.v4.f32.add [%d30], {%f1, %f2, %f3, %f4};",
        "red.v2.f32": "red.global.v2.f32.add [%d30], {%f1, %f2};",
        "atom.v2.f32": "atom.global.v2.f32.add {%f5, %f6}, [%d30], {%f1, %f2};",
        "red.v4.f16x2": "red.global.v4.f16x2.add.noftz [%d30], {%r11, %r11, %r10, %r10};",
        "red.v2.bf16x2": "red.global.v2.bf16x2.add.noftz [%d30], {%r11, %r10};",
        "red.v8.f16": "red.global.v8.f16.add.noftz [%d30], {%h1, %h2, %h1, %h2, %h1, %h2, %h1, %h2};",
    }
    body = (
        "mov.u32 %r0, %tid.x; mul.wide.u32 %d2, %r0, 4; ld.param.u64 %d1, [p0]; add.u64 %d1, %d1, %d2; "
        "ld.global.b32 %r10, [%d1]; ld.global.b32 %r11, [%d1+512];\n"
    )
    body += (
        "mov.b32 {%h1, %h2}, %r10; mov.b32 %f1, %r10; mov.b32 %f2, %r11; mov.b32 %f3, %r11; "
        "mov.b32 %f4, %r10; mul.wide.u32 %d3, %r0, 16; ld.param.u64 %d30, [p1]; add.u64 %d30, %d30, %d3;\n"
    )
    for op in ops.values():
        body += f"{op} add.u64 %d30, %d30, 2048;\n"
    g = rng("vec")
    values = g.standard_normal(256).astype(np.float32).view(np.uint32)
    values[1::2] = g.standard_normal(256).astype(np.float16).view(np.uint32)
    memory = np.stack(
        [
            g.standard_normal(512).astype(np.float32).view(np.uint32)
            if i < 3
            else g.standard_normal(1024).astype(np.float16).view(np.uint32)
            for i in range(6)
        ]
    )
    yield Probe("atomics vectors", kernel(body, pointers(2)), [values, memory], 1, 128, rows=tuple(ops))
    # Many lanes of many warps on the same addresses; the results do not depend on the order.
    text = kernel(
        "mov.u32 %r2, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, 256, %r2; "
        "mul.wide.u32 %d2, %r0, 4; ld.param.u64 %d1, [p0]; add.u64 %d1, %d1, %d2;\n"
        "ld.global.b32 %r10, [%d1]; and.b32 %r11, %r10, 15; mul.wide.u32 %d3, %r11, 4; "
        "ld.param.u64 %d4, [p1]; add.u64 %d4, %d4, %d3;\n"
        "red.global.add.u32 [%d4], %r10; red.global.max.s32 [%d4+64], %r10; "
        "red.global.xor.b32 [%d4+128], %r10; atom.global.inc.u32 %r12, [%d4+192], 37;\n",
        pointers(2),
    )
    yield Probe("atomics contended", text, [words("cont", 1024), np.zeros((4, 16), np.uint32)], 4, 256)


DUMP = """
shl.b32 %r70, %r1, 2;
DUMP: add.u32 %r71, %r2, %r70; ld.shared.u32 %r72, [%r71]; cvt.u64.u32 %d40, %r70; add.u64 %d41, %d39, %d40;
st.global.u32 [%d41], %r72; add.u32 %r70, %r70, {step}; setp.lt.u32 %p9, %r70, {size}; @%p9 bra DUMP;
"""


def dump(size: int, threads: int) -> str:
    """Write the shared memory at %r2 to the array at %d39."""
    return DUMP.format(size=size, step=4 * threads)


CLEAR = """
shl.b32 %r70, %r1, 2; mov.u32 %r72, {value};
CLEAR: add.u32 %r71, %r2, %r70; st.shared.u32 [%r71], %r72; add.u32 %r70, %r70, {step}; \
setp.lt.u32 %p9, %r70, {size}; @%p9 bra CLEAR;
"""


def clear(size: int, threads: int, value: int = 0x5A5A5A5A) -> str:
    return CLEAR.format(size=size, step=4 * threads, value=value)


def copies() -> Iterator[Probe]:
    begin = "mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; mul.wide.u32 %d2, %r1, 4;\n"
    for n, how in itertools.product((4, 8, 16), ("plain", "size", "ignore")):
        level = "cg" if n == 16 else "ca"
        extra = {"plain": "", "size": ", %r10", "ignore": ", %p1"}[how]
        text = kernel(
            begin + clear(128 * n, 128) + "bar.sync 0;\n"
            f"ld.param.u64 %d1, [p0]; add.u64 %d1, %d1, %d2; ld.global.b32 %r10, [%d1]; "
            f"setp.eq.u32 %p1, %r10, 0;\n"
            f"mul.wide.u32 %d3, %r1, {n}; ld.param.u64 %d4, [p1]; add.u64 %d4, %d4, %d3; "
            f"xor.b32 %r11, %r1, 5; mul.lo.u32 %r11, %r11, {n}; add.u32 %r11, %r2, %r11;\n"
            f"cp.async.{level}.shared.global [%r11], [%d4], {n}{extra};\ncp.async.commit_group; "
            f"cp.async.wait_group 0; bar.sync 0;\n"
            f"ld.param.u64 %d39, [p2];\n{dump(128 * n, 128)}",
            pointers(3),
            HEAD,
        )
        sizes = rng(f"cp{n}").integers(0, n + 1, 128).astype(np.uint32)
        yield Probe(
            f"cp.async {n} {how}",
            text,
            [sizes, words(f"cp{n}", 32 * n), np.zeros(32 * n, np.uint32)],
            1,
            128,
            smem=128 * n,
        )
    # Bulk copies in and out, of many sizes: CTA c copies 16 (1 + 5 c) bytes.
    size = 2048
    text = kernel(
        begin + clear(size, 128) + f"""
.shared .align 8 .b8 bar[8];
mov.u32 %r3, bar; setp.ne.u32 %p1, %r1, 0; mov.u32 %r4, %ctaid.x; mad.lo.u32 %r5, %r4, 80, 16;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
READY: fence.proxy.async.shared::cta; bar.sync 0;
@%p1 bra ISSUED;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], %r5;
ld.param.u64 %d5, [p0]; add.u64 %d5, %d5, 32;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d5], %r5, [%r3];
ISSUED:
{wait("%r3")}
mul.wide.u32 %d6, %r4, {size}; ld.param.u64 %d39, [p1]; add.u64 %d39, %d39, %d6;
{dump(size, 128)}
@%p1 bra DONE;
ld.param.u64 %d7, [p2]; add.u64 %d7, %d7, %d6;
cp.async.bulk.global.shared::cta.bulk_group [%d7], [%r2], %r5; cp.async.bulk.commit_group; \
cp.async.bulk.wait_group 0;
DONE:
""",
        pointers(3),
        HEAD,
    )  # fmt: skip
    yield Probe(
        "bulk copies",
        text,
        [words("bulk", 1024), np.zeros((24, 512), np.uint32), np.zeros((24, 512), np.uint32)],
        24,
        128,
        smem=size,
    )
    # CTAs that exit without waiting for their bulk store, while others reuse the shared memory at once.
    size = 16384
    text = kernel(
        f"""
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; mov.u32 %r4, %ctaid.x; setp.ne.u32 %p1, %r1, 0; shl.b32 %r5, %r1, 4; \
add.u32 %r5, %r2, %r5; mov.u32 %r6, 0;
FILL: st.shared.v4.b32 [%r5], {{%r4, %r4, %r4, %r4}}; add.u32 %r5, %r5, 2048; add.u32 %r6, %r6, 2048; \
setp.lt.u32 %p2, %r6, {size}; @%p2 bra FILL;
fence.proxy.async.shared::cta; bar.sync 0; @%p1 bra DONE;
mul.wide.u32 %d1, %r4, {size}; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1;
cp.async.bulk.global.shared::cta.bulk_group [%d2], [%r2], {size};
DONE:
""",
        pointers(1),
        HEAD,
    )
    yield Probe(
        "bulk stores of CTAs that end at once",
        text,
        [np.zeros((1024, size // 4), np.uint32)],
        1024,
        128,
        smem=200 * 1024,
    )
    # Bulk reductions into global memory.
    forms = [
        f"{op}.{t}"
        for op, t in [
            *itertools.product(("add", "min", "max", "inc", "dec"), ("u32",)),
            *itertools.product(("add", "min", "max"), ("s32",)),
            ("add", "u64"),
            ("min", "u64"),
            ("max", "s64"),
            ("and", "b32"),
            ("or", "b32"),
            ("xor", "b32"),
            ("and", "b64"),
            ("add", "f32"),
            ("add", "f64"),
            ("add.noftz", "f16"),
            ("min", "f16"),
            ("max", "f16"),
            ("add.noftz", "bf16"),
            ("min", "bf16"),
            ("max", "bf16"),
        ]
    ]
    body = (
        begin + """
ld.param.u64 %d1, [p0]; add.u64 %d1, %d1, %d2; ld.global.b32 %r10, [%d1]; add.u32 %r11, %r2, 0; \
shl.b32 %r12, %r1, 2; add.u32 %r11, %r2, %r12; st.shared.b32 [%r11], %r10;
fence.proxy.async.shared::cta; bar.sync 0; setp.ne.u32 %p1, %r1, 0; @%p1 bra DONE; ld.param.u64 %d5, [p1];
"""
        + "".join(
            f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{form} [%d5+{512 * i}], [%r2], 512;\n"
            for i, form in enumerate(forms)
        )
        + "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\nDONE:\n"
    )  # fmt: skip
    memory = np.stack(
        [
            half_words(f"red{i}")
            if "f16" in f
            else floats(f"red{i}", 128, 0.3)
            if f.endswith("f32")
            else doubles(f"red{i}")
            if "f64" in f
            else words(f"red{i}", 128)
            for i, f in enumerate(forms)
        ]
    )
    for kind, source in (
        ("words", words("red", 128)),
        ("floats", floats("redf", 128, 0.3)),
        ("halves", half_words("redh")),
        ("doubles", doubles("redd")),
    ):
        keep = [
            i
            for i, f in enumerate(forms)
            if kind
            == (
                "halves"
                if "f16" in f
                else "floats"
                if f.endswith("f32")
                else "doubles"
                if "f64" in f
                else "words"
            )
        ]
        p = Probe(
            f"bulk reductions {kind}",
            "",
            [source, memory[keep].copy()],
            1,
            128,
            smem=512,
            rows=tuple(forms[i] for i in keep),
        )
        lines = body.split("\n")
        only = [line for line in lines if not line.startswith("cp.reduce")]
        at = next(i for i, line in enumerate(only) if line.startswith("cp.async.bulk.commit"))
        only[at:at] = [
            f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{forms[k]} [%d5+{512 * i}], [%r2], 512;"
            for i, k in enumerate(keep)
        ]
        p.ptx = kernel("\n".join(only), pointers(2), HEAD)
        yield p


def half_words(seed: str, n: int = 128) -> np.ndarray:
    g = rng(seed)
    return (g.standard_normal(2 * n) * 2.0 ** g.integers(-2, 3, 2 * n)).astype(np.float16).view(np.uint32)


def doubles(seed: str, n: int = 128) -> np.ndarray:
    return rng(seed).standard_normal(n // 2).view(np.uint32)


LOAD = """
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; mov.u32 %r3, bar; mov.u32 %r4, %ctaid.x; mov.b64 %d1, tm; \
cvta.param.u64 %d1, %d1; setp.ne.u32 %p1, %r1, 0;
{clear}
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
READY: fence.proxy.async.shared::cta; bar.sync 0;
@%p1 bra ISSUED;
ld.param.u64 %d5, [p1]; mul.wide.u32 %d6, %r4, 20; add.u64 %d5, %d5, %d6;
{coords}
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {nbytes};
cp.async.bulk.tensor.{dims}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%d1, \
{{{names}}}], [%r3];
ISSUED:
{wait}
mul.wide.u32 %d6, %r4, {size}; ld.param.u64 %d39, [p2]; add.u64 %d39, %d39, %d6;
{dump}
"""


def footprint(tensor_map: TensorMap, itemsize: int) -> int:
    """Bytes of shared memory that a box takes, rows padded to the swizzle's span, in units of 512."""
    rows = int(np.prod(tensor_map.box[1:]))
    span = SPANS.get(tensor_map.swizzle, 128)
    return (max(tensor_map.box[0] * itemsize, span) * rows + 511) // 512 * 512


def tensor_load(
    name: str, tensor_map: TensorMap, coords: Sequence[Sequence[int]], itemsize: int, optional: bool = False
) -> Probe:
    """CTA c fills its shared memory with a pattern, loads the box at coords[c], and dumps the memory."""
    dims = len(tensor_map.box)
    nbytes = int(np.prod(tensor_map.box)) * itemsize
    size = footprint(tensor_map, itemsize)
    names = [f"%r{20 + i}" for i in range(dims)]
    text = kernel(
        ".shared .align 8 .b8 bar[8];\n" + LOAD.format(
            clear=clear(size, 128), dims=dims, nbytes=nbytes, size=size, names=", ".join(names),
            wait=wait("%r3"), dump=dump(size, 128),
            coords="".join(f"ld.global.b32 {r}, [%d5+{4 * i}];" for i, r in enumerate(names)),
        ),
        ".param .align 64 .b8 tm[128], .param .u64 p1, .param .u64 p2",
        HEAD,
    )  # fmt: skip
    at = np.zeros((len(coords), 5), np.int32)
    at[:, :dims] = coords
    return Probe(
        name,
        text,
        [tensor_map, at, np.zeros((len(coords), size), np.uint8)],
        len(coords),
        128,
        smem=size,
        optional=optional,
    )


#: Where the boxes of a group of tensor copies are. The innermost coordinate is a multiple of 16 bytes, and
#: stores do not begin before the tensor: anything else is an illegal instruction.
PLACES = ("inside and past the end", "before the start")


def corners(shape: Sequence[int], box: Sequence[int], itemsize: int, place: str) -> list[tuple[int, ...]]:
    """Coordinates of boxes; shape is outermost first, coordinates innermost first."""
    dims = tuple(reversed(shape))
    unit = 16 // itemsize
    inside = [max(0, (n - b) // 2) for n, b in zip(dims, box, strict=True)]
    inside[0] -= inside[0] % unit
    out = [tuple(inside)]
    for i, (n, b) in enumerate(zip(dims, box, strict=True)):
        steps = (0, n - b // 2 - 1, n - 1, n, n + 7) if place == PLACES[0] else (-1, -(b // 2), -b, -b - 3)
        for at in steps:
            out.append((*inside[:i], at // unit * unit if i == 0 else at, *inside[i + 1 :]))
    if place == PLACES[1]:
        out.append((-unit, *(-1 for _ in box[1:])))
    return out


SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128}
SHAPES = [
    ((200,), (64,)), ((23, 96), (16, 8)), ((5, 7, 48), (8, 4, 2)), ((3, 4, 5, 32), (8, 3, 2, 2)),
    ((2, 3, 3, 4, 32), (8, 2, 3, 2, 2)),
]  # fmt: skip
MAP_TYPES = {
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
    "s64": np.int64,
    "f16": np.uint16,
    "bf16": np.uint16,
    "f32": np.uint32,
    "tf32": np.uint32,
    "f64": np.uint64,
}


def bits_of(name: str, kind: str, shape: Sequence[int]) -> np.ndarray:
    """A tensor of a type with random bits."""
    dtype = np.dtype(MAP_TYPES[kind])
    raw = rng(name).integers(0, 256, (*shape, dtype.itemsize)).astype(np.uint8)
    return raw.view(dtype)[..., 0].copy()


def _tensor_loads(place: str) -> Iterator[Probe]:
    def at(shape: Sequence[int], box: Sequence[int], itemsize: int) -> list[tuple[int, ...]]:
        return corners(shape, box, itemsize, place)

    for shape, box in SHAPES:
        x = bits_of(f"tma{len(shape)}", "u16", shape)
        yield tensor_load(f"tensor load {len(shape)}d", TensorMap(x, box), at(shape, box, 2), 2)
    for kind in MAP_TYPES:
        dtype = np.dtype(MAP_TYPES[kind])
        inner = 64 // dtype.itemsize
        x = bits_of(f"tma {kind}", kind, (40, 2 * inner))
        where = at(x.shape, (inner, 8), dtype.itemsize)
        yield tensor_load(f"tensor load {kind}", TensorMap(x, (inner, 8), dtype=kind), where, dtype.itemsize)
        if kind in ("f16", "bf16", "f32", "tf32", "f64"):
            nan = TensorMap(x, (inner, 8), "64B", dtype=kind, fill="nan")
            yield tensor_load(f"tensor load {kind} nan fill", nan, where, dtype.itemsize)
    for swizzle, span in SPANS.items():
        for inner in (16, 32, 48, 64, 96, 128):
            if (span and inner > span) or inner % 16:
                continue
            for kind in ("u8", "u16", "u32"):
                size = np.dtype(MAP_TYPES[kind]).itemsize
                x = bits_of(f"swizzle {kind}", kind, (40, 256 // size))
                box = (inner // size, 24)
                m = TensorMap(x, box, swizzle, dtype=kind)
                yield tensor_load(
                    f"tensor load {kind} swizzle {swizzle} of {inner} bytes",
                    m,
                    at(x.shape, box, size),
                    size,
                )
        x = bits_of("swizzle 3d", "u16", (5, 12, 128))
        inner = (span or 128) // 2
        yield tensor_load(
            f"tensor load 3d swizzle {swizzle}",
            TensorMap(x, (inner, 6, 3), swizzle),
            at(x.shape, (inner, 6, 3), 2),
            2,
        )
    x = bits_of("ties", "u32", (16, 64)) & np.uint32(0xFFFFE000)
    x[:, 1::2] |= np.uint32(0x1000)
    x[0, :12] = [
        0x7F800000,
        0xFF800000,
        0x7FC00000,
        0x7F800001,
        0x7FFFFFFF,
        0xFFFFF000,
        0x7F7FFFFF,
        0x00001000,
        0x00000FFF,
        0x00001001,
        0x807FF000,
        0x3F803000,
    ]
    for kind in ("f32", "tf32"):
        yield tensor_load(
            f"tensor load of ties as {kind}", TensorMap(x, (16, 8), dtype=kind), at(x.shape, (16, 8), 4), 4
        )
    x = bits_of("far", "u16", (24, 96))
    axis = {PLACES[0]: (0, 1 << 20), PLACES[1]: (0, -(1 << 20))}[place]
    far = list(itertools.product(axis, repeat=2))
    yield tensor_load("tensor load far outside", TensorMap(x, (32, 8)), far, 2)
    x = bits_of("pitch", "u16", (24, 96))
    pitched = TensorMap(x, (32, 8), "64B", dims=(50, 20), strides=(192,))
    yield tensor_load("tensor load of a part of the rows", pitched, at((20, 50), (32, 8), 2), 2)
    shifted = TensorMap(x, (32, 8), dims=(40, 11), strides=(384,), offset=32)
    yield tensor_load("tensor load with an offset and every second row", shifted, at((11, 40), (32, 8), 2), 2)
    x = bits_of("atoms", "u16", (40, 128))
    yield tensor_load(
        "tensor load swizzle 128B with 32-byte atoms",
        TensorMap(x, (64, 24), "128B_atom_32B"),
        at(x.shape, (64, 24), 2),
        2,
        optional=True,
    )


STORE = """
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; mov.u32 %r4, %ctaid.x; mov.b64 %d1, tm; cvta.param.u64 %d1, %d1; \
setp.ne.u32 %p1, %r1, 0;
mul.wide.u32 %d6, %r4, {size}; ld.param.u64 %d39, [p2]; add.u64 %d39, %d39, %d6;
shl.b32 %r70, %r1, 2;
FILL: add.u32 %r71, %r2, %r70; cvt.u64.u32 %d40, %r70; add.u64 %d41, %d39, %d40; ld.global.u32 %r72, [%d41];
st.shared.u32 [%r71], %r72; add.u32 %r70, %r70, 512; setp.lt.u32 %p9, %r70, {size}; @%p9 bra FILL;
fence.proxy.async.shared::cta; bar.sync 0;
@%p1 bra DONE;
ld.param.u64 %d5, [p1]; mul.wide.u32 %d6, %r4, 20; add.u64 %d5, %d5, %d6;
{coords}
{op}.{dims}d.global.shared::cta{red}.tile.bulk_group [%d1, {{{names}}}], [%r2];
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
DONE:
"""


def tensor_store(
    name: str,
    tensor_map: TensorMap,
    coords: Sequence[Sequence[int]],
    source: np.ndarray,
    itemsize: int,
    red: str = "",
) -> Probe:
    """CTA c stores or reduces source[c], in its shared memory, to the box at coords[c]; no boxes overlap."""
    dims = len(tensor_map.box)
    size = footprint(tensor_map, itemsize)
    names = [f"%r{20 + i}" for i in range(dims)]
    text = kernel(
        STORE.format(
            dims=dims, size=size, names=", ".join(names), red=f".{red}" if red else "",
            op=f"cp{'.reduce' if red else ''}.async.bulk.tensor",
            coords="".join(f"ld.global.b32 {r}, [%d5+{4 * i}];" for i, r in enumerate(names)),
        ),
        ".param .align 64 .b8 tm[128], .param .u64 p1, .param .u64 p2",
        HEAD,
    )  # fmt: skip
    at = np.zeros((len(coords), 5), np.int32)
    at[:, :dims] = coords
    data = np.resize(np.ascontiguousarray(source).view(np.uint8).ravel(), (len(coords), size)).copy()
    return Probe(name, text, [tensor_map, at, data], len(coords), 128, smem=size)


def tiles(shape: Sequence[int], box: Sequence[int]) -> list[tuple[int, ...]]:
    """Adjacent boxes, up to past the end of the tensor."""
    dims = tuple(reversed(shape))
    axes = [range(0, n + (b if i == 0 else 0), b) for i, (n, b) in enumerate(zip(dims, box, strict=True))]
    return list(itertools.product(*axes))[:200]


def _tensor_stores() -> Iterator[Probe]:
    for shape, box in SHAPES:
        y = np.full(shape, 0x1111, np.uint16)
        yield tensor_store(
            f"tensor store {len(shape)}d",
            TensorMap(y, box),
            tiles(shape, box),
            words("store", 4096),
            2,
        )
    for swizzle, span in SPANS.items():
        for inner in sorted({32, span or 128}):
            y = np.full((40, 128), 0x1111, np.uint16)
            box = (inner // 2, 16)
            yield tensor_store(
                f"tensor store swizzle {swizzle} of {inner} bytes",
                TensorMap(y, box, swizzle),
                tiles(y.shape, box),
                words("store2", 4096),
                2,
            )
    reductions = [*(("u32", op) for op in ("add", "min", "max", "inc", "dec", "and", "or", "xor")),
                  *(("s32", op) for op in ("add", "min", "max")),
                  *(("u64", op) for op in ("add", "min", "max", "and", "or", "xor")), ("s64", "max"),
                  ("f32", "add"), *(("f16", op) for op in ("add", "min", "max")),
                  *(("bf16", op) for op in ("add", "min", "max"))]  # fmt: skip
    for kind, op in reductions:
        dtype = np.dtype(MAP_TYPES[kind])
        box = (64 // dtype.itemsize, 8)
        if kind == "f32":
            y, source = (floats(s, 1024, 0.3) for s in ("ty", "ts"))
            y = y.reshape(32, 32)
        elif kind in ("f16", "bf16"):
            y, source = (half_words(s, 1024).view(np.uint16) for s in ("ty", "ts"))
            y = y.reshape(32, 64)
        else:
            y, source = bits_of("ty", kind, (32, 128 // dtype.itemsize)), words("ts", 1024)
        yield tensor_store(
            f"tensor reduction {op} {kind}",
            TensorMap(y.copy(), box, "64B", dtype=kind),
            tiles(y.shape, box),
            source,
            dtype.itemsize,
            op,
        )


def tensor_copies() -> Iterator[Probe]:
    """Loads and stores, grouped by where boxes are: a GPU may refuse one group and answer the others."""
    for place, make in (
        (PLACES[0], _tensor_loads),
        (PLACES[0], lambda _: _tensor_stores()),
        (PLACES[1], _tensor_loads),
    ):
        for p in make(place):
            p.group = f"tensor copies {place}"
            p.name = f"{p.name}, {place}"
            yield p


def clusters() -> Iterator[Probe]:
    for n in (2, 4):
        size = 256 * n
        masks = {"all": (1 << n) - 1, "self and next": None}
        for which, mask in masks.items():
            # Every CTA multicasts 256 bytes to the CTAs of its mask, at 256 times its rank.
            the_mask = (
                f"mov.u16 %h1, {mask};"
                if mask
                else f"add.u32 %r8, %r4, 1; and.b32 %r8, %r8, {n - 1}; mov.u32 %r9, 1; "
                f"shl.b32 %r10, %r9, %r8; shl.b32 %r11, %r9, %r4; or.b32 %r10, %r10, %r11; "
                f"cvt.u16.u32 %h1, %r10;"
            )
            for kind in ("tensor", "bulk"):
                expect = size if mask else 512
                copy = (
                    "mov.u32 %r20, 0; shl.b32 %r21, %r4, 1;\n"
                    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                    ".multicast::cluster [%r6], [%d1, {%r20, %r21}], [%r3], %h1;"
                    if kind == "tensor"
                    else "ld.param.u64 %d5, [p2]; cvt.u64.u32 %d6, %r5; add.u64 %d5, %d5, %d6;\n"
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                    ".multicast::cluster [%r6], [%d5], 256, [%r3], %h1;"
                )
                text = kernel(
                    f"""
.shared .align 8 .b8 bar[8];
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; mov.u32 %r3, bar; mov.u32 %r4, %cluster_ctarank; mov.b64 %d1, tm; \
cvta.param.u64 %d1, %d1; setp.ne.u32 %p1, %r1, 0;
{clear(size, 32)}
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {expect};
READY: fence.proxy.async.shared::cta; bar.warp.sync -1;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
shl.b32 %r5, %r4, 8; add.u32 %r6, %r2, %r5; {the_mask}
@%p1 bra ISSUED;
{copy}
ISSUED:
{wait("%r3", scope=".acquire.cluster")}
mov.u32 %r7, %ctaid.x; mul.wide.u32 %d7, %r7, {size}; ld.param.u64 %d39, [p1]; add.u64 %d39, %d39, %d7;
{dump(size, 32)}
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
""",
                    ".param .align 64 .b8 tm[128], .param .u64 p1, .param .u64 p2",
                    HEAD,
                )  # fmt: skip
                x = bits_of(f"cast{n}", "u16", (2 * n, 64))
                yield Probe(
                    f"multicast {kind} in {n} to {which}",
                    text,
                    [TensorMap(x, (64, 2)), np.zeros((2 * n, size), np.uint8), x.copy()],
                    2 * n,
                    32,
                    n,
                    size,
                )
    # Distributed shared memory: every CTA writes to, reads from and adds to the next one's.
    n = 4
    text = kernel(
        f"""
.shared .align 8 .b8 bar[16];
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; mov.u32 %r3, bar; mov.u32 %r4, %cluster_ctarank; \
setp.ne.u32 %p1, %r1, 0;
{clear(2560, 32, 1000)}
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 33; mbarrier.init.shared::cta.b64 [%r3+8], 1; \
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 768;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3+8], 768;
READY: bar.warp.sync -1;
shl.b32 %r5, %r4, 16; or.b32 %r5, %r5, %r1; shl.b32 %r6, %r1, 2; add.u32 %r7, %r2, %r6; \
st.shared.b32 [%r7+2048], %r5; st.shared.b32 [%r7+2176], %r5;
fence.proxy.async.shared::cta;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
add.u32 %r8, %r4, 1; and.b32 %r8, %r8, {n - 1}; mapa.shared::cluster.u32 %r9, %r7, %r8; \
mapa.shared::cluster.u32 %r10, %r3, %r8;
add.u32 %r11, %r4, 3; and.b32 %r11, %r11, {n - 1}; mapa.shared::cluster.u32 %r12, %r7, %r11;
mul.lo.u32 %r13, %r5, 7;
st.shared::cluster.b32 [%r9], %r13;
atom.shared::cluster.add.u32 %r14, [%r9+128], %r13;
red.shared::cluster.max.u32 [%r9+256], %r13;
add.u32 %r15, %r9, %r6; add.u32 %r15, %r15, %r6; add.u32 %r15, %r15, %r6;
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r9+384], %r13, [%r10];
st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r15+512], {{%r13, %r5, %r1, %r4}}, [%r10];
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r9+1024], %r5, [%r10];
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r10];
mapa.shared::cluster.u32 %r16, %r2, %r8; add.u32 %r17, %r16, 1280; add.u32 %r18, %r2, 2048; \
add.u32 %r19, %r10, 8;
@%p1 bra COPIED;
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r17], [%r18], 128, [%r19];
add.u32 %r17, %r17, 128;
cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r17], [%r18], 128, \
[%r19]; add.u32 %r17, %r17, 128;
cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.max.s32 [%r17], [%r18], 128, \
[%r19]; add.u32 %r17, %r17, 128;
cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.xor.b32 [%r17], [%r18], 128, \
[%r19]; add.u32 %r17, %r17, 128;
cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.inc.u32 [%r17], [%r18], 128, \
[%r19]; add.u32 %r17, %r17, 128;
cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.min.u32 [%r17], [%r18], 128, \
[%r19];
COPIED:
{wait("%r3", scope=".acquire.cluster")}
add.u32 %r20, %r3, 8;
{wait("%r20", scope=".acquire.cluster")}
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
ld.shared::cluster.b32 %r21, [%r12+2048];
mapa.shared::cluster.u32 %r22, %r2, %r11; getctarank.shared::cluster.u32 %r23, %r22;
mov.u32 %r24, %ctaid.x; mul.wide.u32 %d7, %r24, 2560; ld.param.u64 %d39, [p0]; add.u64 %d39, %d39, %d7;
{dump(2560, 32)}
mul.wide.u32 %d8, %r24, 384; ld.param.u64 %d9, [p1]; add.u64 %d9, %d9, %d8; mul.wide.u32 %d10, %r1, 4; \
add.u64 %d9, %d9, %d10;
st.global.b32 [%d9], %r14; st.global.b32 [%d9+128], %r21; st.global.b32 [%d9+256], %r23;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
""",
        pointers(2),
        HEAD,
    )  # fmt: skip
    yield Probe(
        "distributed shared memory",
        text,
        [np.zeros((8, 640), np.uint32), np.zeros((8, 3, 32), np.uint32)],
        8,
        32,
        n,
        2560,
    )
    regs = (
        "ctaid.x",
        "cluster_ctarank",
        "cluster_nctarank",
        "clusterid.x",
        "nclusterid.x",
        "cluster_ctaid.x",
        "cluster_nctaid.x",
        "nctaid.x",
    )
    p = table(
        "cluster registers", {f"%{r}": f"mov.u32 %r20, %{r};" for r in regs}, [words("cr", 256)], block=32
    )
    p.cluster = 4
    yield p


def matrices() -> Iterator[Probe]:
    for count, trans in itertools.product((1, 2, 4), ("", ".trans")):
        v = ", ".join(f"%r{20 + i}" for i in range(count))
        out = "".join(f"st.global.b32 [%d5+{128 * i}], %r{20 + i};" for i in range(count))
        text = kernel(
            f"""
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; shl.b32 %r3, %r1, 4; add.u32 %r4, %r2, %r3; \
mul.wide.u32 %d2, %r1, 16; ld.param.u64 %d1, [p0]; add.u64 %d1, %d1, %d2;
ld.global.v4.b32 {{%r10, %r11, %r12, %r13}}, [%d1]; st.shared.v4.b32 [%r4], {{%r10, %r11, %r12, %r13}}; \
mov.u32 %r5, 0; mov.u32 %r9, 0;
st.shared.v4.b32 [%r4+512], {{%r5, %r5, %r5, %r5}};
bar.warp.sync -1;
xor.b32 %r6, %r3, 48; add.u32 %r6, %r2, %r6;
ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{v}}}, [%r6];
mul.wide.u32 %d4, %r1, 4; ld.param.u64 %d5, [p1]; add.u64 %d5, %d5, %d4; {out}
stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r4+512], {{{v}}};
bar.warp.sync -1;
ld.shared.v4.b32 {{%r10, %r11, %r12, %r13}}, [%r4+512]; ld.param.u64 %d6, [p2]; add.u64 %d6, %d6, %d2; \
st.global.v4.b32 [%d6], {{%r10, %r11, %r12, %r13}};
""",
            pointers(3),
            HEAD,
        )  # fmt: skip
        yield Probe(
            f"ldmatrix and stmatrix x{count}{trans}",
            text,
            [words("mat", 128), np.zeros((4, 32), np.uint32), np.zeros(128, np.uint32)],
            1,
            32,
            smem=1024,
        )


def encode(kind: str, x: np.ndarray) -> np.ndarray:
    """Codes of small integers (exactly representable), or of any floats in a 16- or 32-bit format."""
    match kind:
        case "bf16":
            return bf16(np.asarray(x, np.float32))
        case "f16":
            return np.asarray(x, np.float16).view(np.uint16)
        case "tf32":
            return np.asarray(x, np.float32).view(np.uint32)
        case "s8" | "u8":
            return np.asarray(x).astype(np.int64).astype(np.uint8)
    values = decode_small(np.arange(128), *FORMAT[kind])
    lookup = {float(v): i for i, v in enumerate(values) if np.isfinite(v)}
    flat = [lookup[abs(float(v))] | (0x80 if v < 0 else 0) for v in np.asarray(x).ravel()]
    return np.array(flat, np.uint8).reshape(np.shape(x))


SIZE = {"bf16": 2, "f16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}


def random_codes(kind: str, seed: str, shape: Sequence[int]) -> np.ndarray:
    """Random numbers of a format, of moderate size."""
    g = rng(seed)
    if kind in ("s8", "u8"):
        return g.integers(0, 256, shape).astype(np.uint8)
    if SIZE[kind] == 1:
        top = 0x50 if kind == "e4m3" else 0x44  # up to 8 and 4
        return (g.integers(0, top, shape) | g.integers(0, 2, shape) << 7).astype(np.uint8)
    return encode(kind, g.standard_normal(shape))


MMA = [
    *((k, a, a, "f32") for a,
      k in (("bf16", 16), ("bf16", 8), ("f16", 16), ("f16", 8), ("tf32", 8), ("tf32", 4))),
    *((32, a, b, "f32") for a, b in itertools.product(("e4m3", "e5m2"), repeat=2)),
    *((16, a, b, "f32") for a, b in itertools.product(("e4m3", "e5m2"), repeat=2)),
    *((k, a, b, "s32") for k in (32, 16) for a, b in itertools.product(("s8", "u8"), repeat=2)),
    (16, "f16", "f16", "f16"), (8, "f16", "f16", "f16"), (32, "e4m3", "e4m3", "f16"),
    (32, "e5m2", "e4m3", "f16"),
    (16, "e4m3", "e4m3", "f16"),
]  # fmt: skip


def mma_sync() -> Iterator[Probe]:
    for k, ta, tb, tc in MMA:
        size = SIZE[ta]
        na, nb = (4, 2) if k * size == 32 else (2, 1)
        nc = 2 if tc == "f16" else 4
        e = 4 // size
        lists = [
            ", ".join(f"%r{base + i}" for i in range(n))
            for base, n in ((10, na), (20, nb), (30, nc), (40, nc))
        ]
        load = "".join(
            f"mul.wide.u32 %d3, %r0, {128 * n}; ld.param.u64 %d4, [p{j}]; add.u64 %d4, %d4, %d3; "
            f"add.u64 %d4, %d4, %d2;"
            + "".join(f"ld.global.b32 %r{base + i}, [%d4+{128 * i}];" for i in range(n)) + "\n"
            for j, (base, n) in enumerate(((10, na), (20, nb), (30, nc)))
        )  # fmt: skip
        text = kernel(
            f"mov.u32 %r1, %tid.x; mov.u32 %r0, %ctaid.x; mul.wide.u32 %d2, %r1, 4;\n{load}"
            f"mma.sync.aligned.m16n8k{k}.row.col.{tc}.{ta}.{tb}.{tc} {{{lists[3]}}}, {{{lists[0]}}}, "
            f"{{{lists[1]}}}, {{{lists[2]}}};\n"
            f"mul.wide.u32 %d3, %r0, {128 * nc}; ld.param.u64 %d4, [p3]; add.u64 %d4, %d4, %d3; "
            f"add.u64 %d4, %d4, %d2;\n"
            + "".join(f"st.global.b32 [%d4+{128 * i}], %r{40 + i};" for i in range(nc)),
            pointers(4),
        )
        name = f"mma.sync m16n8k{k} {ta} {tb} {tc}"
        one, top = encode(ta, np.ones(1))[0], 8
        code = {1: np.uint8, 2: np.uint16, 4: np.uint32}[size]
        # A one-hot at every place of every register, of A and then of B; the other operand holds small
        # integers.
        for which, n_hot, n_other, kind in (("A", na, nb, tb), ("B", nb, na, ta)):
            count = n_hot * 32 * e
            hot = np.zeros((count, n_hot * 32 * e), code)
            hot[np.arange(count), np.arange(count)] = one
            other = encode(kind, rng(name + which).integers(0, top, (n_other * 32 * e,)))
            others = np.broadcast_to(
                np.ascontiguousarray(other).view(np.uint32).reshape(n_other, 32), (count, n_other, 32)
            ).copy()
            hots = np.ascontiguousarray(hot).view(np.uint32).reshape(count, n_hot, 32)
            c: Any = rng(name + "c").integers(0, 4, (count, nc, 32, 2 if tc == "f16" else 1))
            c = (
                c.astype(np.float16).view(np.uint32)
                if tc == "f16"
                else c.astype(np.int32 if tc == "s32" else np.float32).view(np.uint32)
            )[..., 0]
            pair = [hots, others] if which == "A" else [others, hots]
            yield Probe(
                f"{name}: one-hot {which}",
                text,
                [*pair, c.copy(), np.zeros((count, nc, 32), np.uint32)],
                count,
            )
        count = 64
        a, b = (
            np.ascontiguousarray(random_codes(t, name + s, (count, n * 32 * e)))
            .view(np.uint32)
            .reshape(count, n, 32)
            for t, s, n in ((ta, "a", na), (tb, "b", nb))
        )
        c = rng(name + "rc").standard_normal((count, nc, 32, 2 if tc == "f16" else 1)) * 3
        if tc == "s32":
            c = rng(name + "rc").integers(-(1 << 31), 1 << 31, (count, nc, 32, 1))
        c = (
            c.astype(np.float16).view(np.uint32)
            if tc == "f16"
            else c.astype(np.int32 if tc == "s32" else np.float32).view(np.uint32)
        )[..., 0]
        yield Probe(f"{name}: random", text, [a, b, c.copy(), np.zeros((count, nc, 32), np.uint32)], count)
        if tc != "s32":
            a, b, c = (
                words(name + s, count * n * 32).reshape(count, n, 32)
                for s, n in (("aa", na), ("ab", nb), ("ac", nc))
            )
            out = np.zeros((count, nc, 32), np.uint32)
            yield Probe(f"{name}: any bits", text, [a, b, c, out], count, group="products of any bits")


def canonical(x: np.ndarray, span: int, mn_major: int, size: int) -> tuple[np.ndarray, int, int]:
    """Bytes of a K-major (rows, k) or MN-major operand in canonical layout, with its LBO and SBO."""
    rows, k = x.shape
    per = 16 // size
    linear = np.zeros((rows, k), np.int64)
    r, c = np.arange(rows)[:, None], np.arange(k)[None, :]
    if span and not mn_major:
        sbo, lbo = 8 * span, 16
        linear = (r % 8) * span + (r // 8) * sbo + c * size
    elif span:
        elems = span // size
        sbo, lbo = 8 * span, k // 8 * 8 * span
        linear = (r % elems) * size + (r // elems) * lbo + (c % 8) * span + (c // 8) * sbo
    elif not mn_major:
        lbo = 128
        sbo = lbo * (k // per)
        linear = (r % 8) * 16 + (r // 8) * sbo + (c % per) * size + (c // per) * lbo
    else:
        sbo = 128
        lbo = sbo * (rows // per)
        linear = (r % per) * size + (r // per) * sbo + (c % 8) * 16 + (c // 8) * lbo
    mask = {0: 0, 32: 0x10, 64: 0x30, 128: 0x70}[span]
    addr = linear ^ ((linear >> 3) & mask)
    out = np.zeros((int(linear.max()) + size + 1023) // 1024 * 1024, np.uint8)
    raw = np.ascontiguousarray(x).view(np.uint8).reshape(rows, k, size)
    for i in range(size):
        out[addr + i] = raw[..., i]
    return out, lbo, sbo


LAYOUTS_90 = {0: 0, 128: 1, 64: 2, 32: 3}


@functools.cache
def wgmma_kernel(
    ta: str,
    tb: str,
    n: int,
    mn: tuple[int, ...],
    registers: bool,
    tc: str,
    signs: tuple[int, int],
    steps: int,
) -> str:
    """CTA c multiplies its images of A and B ``steps`` times into the same accumulators and dumps their
    registers.

    Parameters: images of A (or its registers), of B, output, constants of the two descriptors, bytes of the
        images.
    """
    k = 32 // SIZE[ta]
    nd = n // 2 if tc == "f32" else n // 4
    d = ", ".join(f"%q{i}" for i in range(nd))
    flags = "" if SIZE[ta] != 2 else f", {mn[1]}" if registers else f", {mn[0]}, {mn[1]}"
    a = "{%r50, %r51, %r52, %r53}" if registers else "%d10"

    def stage(p: int, reg: str, size: str, label: str) -> str:
        return f"""
ld.param.u64 %d20, [p{p}]; mul.wide.u32 %d21, %r0, {size}; add.u64 %d20, %d20, %d21; shl.b32 %r41, %r1, 2;
{label}: cvt.u64.u32 %d21, %r41; add.u64 %d22, %d20, %d21; ld.global.u32 %r42, [%d22]; \
add.u32 %r43, {reg}, %r41; st.shared.u32 [%r43], %r42;
add.u32 %r41, %r41, 512; setp.lt.u32 %p10, %r41, {size}; @%p10 bra {label};
"""

    load = (
        "ld.param.u64 %d20, [p0]; mul.wide.u32 %d21, %r0, 2048; add.u64 %d20, %d20, %d21; "
        "mul.wide.u32 %d21, %r1, 16; add.u64 %d20, %d20, %d21; "
        "ld.global.v4.b32 {%r50, %r51, %r52, %r53}, [%d20];\n"
        if registers
        else stage(0, "%r2", "%r5", "LA")
    )
    ops = "".join(
        f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{tc}.{ta}.{tb} {{{d}}}, {a}, %d11, "
        f"{'%p1' if i == 0 else '%p2'}, {signs[0]}, {signs[1]}{flags};\n"
        for i in range(steps)
    )
    store = "".join(f"st.global.b32 [%d30+{512 * i}], %q{i};\n" for i in range(nd))
    return kernel(
        f"""
.reg .b32 %q<{nd}>;
mov.u32 %r1, %tid.x; mov.u32 %r0, %ctaid.x; mov.u32 %r2, dyn; ld.param.u32 %r5, [na]; \
ld.param.u32 %r6, [nb]; add.u32 %r3, %r2, %r5;
{load}{stage(1, "%r3", "%r6", "LB")}
fence.proxy.async.shared::cta; bar.sync 0;
shr.u32 %r7, %r2, 4; cvt.u64.u32 %d10, %r7; ld.param.u64 %d12, [da]; add.u64 %d10, %d10, %d12;
shr.u32 %r8, %r3, 4; cvt.u64.u32 %d11, %r8; ld.param.u64 %d12, [db]; add.u64 %d11, %d11, %d12;
setp.ne.u32 %p1, %r1, %r1; setp.eq.u32 %p2, %r1, %r1;
wgmma.fence.sync.aligned;
{ops}wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
mul.wide.u32 %d31, %r0, {512 * nd}; mul.wide.u32 %d32, %r1, 4; ld.param.u64 %d30, [p2]; \
add.u64 %d30, %d30, %d31; add.u64 %d30, %d30, %d32;
{store}""",
        pointers(3, ".param .u64 da, .param .u64 db, .param .u32 na, .param .u32 nb"),
        HEAD,
    )  # fmt: skip


def fragments(a: np.ndarray, size: int) -> np.ndarray:
    """Registers of the A operand [64, k] of a warpgroup: [thread, 4]."""
    e = 4 // size
    t = np.arange(128)
    g, q = 16 * (t // 32) + t % 32 // 4, t % 4
    regs = [
        np.stack([a[g + 8 * (r & 1), e * q + i + 4 * e * (r >> 1)] for i in range(e)], -1) for r in range(4)
    ]
    return np.stack([np.ascontiguousarray(x).view(np.uint32)[:, 0] for x in regs], -1)


def wgmma_probe(
    name:
        str, ta: str, tb: str, a: np.ndarray, b: np.ndarray, span: int, mn: tuple[int, ...] = (0, 0),
        registers: bool = False,
    tc: str = "f32", signs: tuple[int, int] = (1, 1), steps: int = 1, **how: Any,
) -> Probe:  # fmt: skip
    """a [ctas, 64, k] and b [ctas, n, k] as codes."""
    n = b.shape[1]
    images_b = [canonical(x, span, mn[1], SIZE[tb]) for x in b]
    bb = np.stack([i[0] for i in images_b])
    db = desc_constant(images_b[0][2], LAYOUTS_90[span], images_b[0][1], sm100=False)
    if registers:
        aa, da, na = np.stack([fragments(x, SIZE[ta]) for x in a]), 0, 0
    else:
        images_a = [canonical(x, span, mn[0], SIZE[ta]) for x in a]
        aa, na = np.stack([i[0] for i in images_a]), len(images_a[0][0])
        da = desc_constant(images_a[0][2], LAYOUTS_90[span], images_a[0][1], sm100=False)
    nd = n // 2 if tc == "f32" else n // 4
    text = wgmma_kernel(ta, tb, n, mn, registers, tc, signs, steps)
    args = [
        aa,
        bb,
        np.zeros((len(a), nd, 128), np.uint32),
        da - (1 << 64 if da >> 63 else 0),
        db - (1 << 64 if db >> 63 else 0),
        na,
        bb.shape[1],
    ]
    return Probe(name, text, args, len(a), 128, smem=na + bb.shape[1], **how)


WGMMA = [
    *(("bf16", "bf16", mn) for mn in itertools.product((0, 1), repeat=2)),
    *(("f16", "f16", mn) for mn in itertools.product((0, 1), repeat=2)),
    ("tf32", "tf32", (0, 0)), *((a, b, (0, 0)) for a, b in itertools.product(("e4m3", "e5m2"), repeat=2)),
]  # fmt: skip


def reveal(n: int, k: int, ta: str, tb: str, seed: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of operands, one with a single one in every row: the product shows the other, digit by digit."""
    index_a, index_b = np.arange(64 * k).reshape(64, k), np.arange(n * k).reshape(n, k)
    digits_a, digits_b = (len(np.base_repr(x.max(), 8)) for x in (index_a, index_b))
    pairs_a, pairs_b = [], []
    for shift in range(0, k, n):
        one_hot = ((np.arange(n)[:, None] + shift) % k == np.arange(k)).astype(int)
        for digit in range(digits_a):
            pairs_a.append(index_a >> 3 * digit & 7)
            pairs_b.append(one_hot)
    one_hot = (np.arange(64)[:, None] % k == np.arange(k)).astype(int)
    for digit in range(digits_b):
        pairs_a.append(one_hot)
        pairs_b.append(index_b >> 3 * digit & 7)
    return encode(ta, np.stack(pairs_a)), encode(tb, np.stack(pairs_b))


def wgmma() -> Iterator[Probe]:
    for ta, tb, mn in WGMMA:
        k = 32 // SIZE[ta]
        for n, span in itertools.product((8, 64, 256), SPANS.values()):
            if mn[1] and span and n * SIZE[tb] < span:
                continue  # a swizzle row is wider than the operand
            a, b = reveal(n, k, ta, tb, "reveal")
            yield wgmma_probe(
                f"wgmma n{n} {ta}{' MN' if mn[0] else ''} {tb}{' MN' if mn[1] else ''} swizzle {span}: "
                f"one-hot",
                ta,
                tb,
                a,
                b,
                span,
                mn,
            )
        for n in (8, 64, 256):
            a, b = reveal(n, k, ta, tb, "reveal")
            if not mn[0]:
                span = 128 if not mn[1] or n * SIZE[tb] >= 128 else 0
                yield wgmma_probe(
                    f"wgmma n{n} {ta} in registers {tb}{' MN' if mn[1] else ''}: one-hot",
                    ta,
                    tb,
                    a,
                    b,
                    span,
                    mn,
                    True,
                )
            if ta != "bf16" and ta != "tf32":
                yield wgmma_probe(
                    f"wgmma n{n} {ta}{' MN' if mn[0] else ''} {tb}{' MN' if mn[1] else ''} f16 "
                    f"accumulators: one-hot",
                    ta,
                    tb,
                    a,
                    b,
                    0,
                    mn,
                    tc="f16",
                )
    for n in (16, 24, 32, 40, 48, 80, 96, 104, 128, 136, 160, 192, 208, 248):
        a, b = reveal(n, 16, "bf16", "bf16", "n")
        yield wgmma_probe(f"wgmma n{n} bf16: one-hot", "bf16", "bf16", a, b, 128)
    for ta, tb in (
        ("bf16", "bf16"),
        ("f16", "f16"),
        ("tf32", "tf32"),
        ("e4m3", "e4m3"),
        ("e5m2", "e5m2"),
        ("e4m3", "e5m2"),
    ):
        k = 32 // SIZE[ta]
        a, b = random_codes(ta, "wa", (8, 64, k)), random_codes(tb, "wb", (8, 64, k))
        for tc in ("f32", "f16"):
            if tc == "f16" and ta in ("bf16", "tf32"):
                continue
            for registers in (False, True):
                for steps in (1, 8):
                    name = (
                        f"wgmma {ta} {tb} {tc}{' A in registers' if registers else ''}, {steps} steps: random"
                    )
                    yield wgmma_probe(name, ta, tb, a, b, 128, registers=registers, tc=tc, steps=steps)
            raw = [rng(f"w{x}{ta}").integers(0, 256, (8, 64, 32)).astype(np.uint8) for x in "ab"]
            a2, b2 = (x.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[SIZE[ta]]) for x in raw)
            name = f"wgmma {ta} {tb} {tc}: any bits"
            yield wgmma_probe(name, ta, tb, a2, b2, 128, tc=tc, steps=2, group="products of any bits")
    a, b = (
        encode("bf16", rng("sa").integers(-8, 9, (2, 64, 16))),
        encode("bf16", rng("sb").integers(-8, 9, (2, 64, 16))),
    )
    for signs in ((1, -1), (-1, 1), (-1, -1)):
        yield wgmma_probe(
            f"wgmma bf16 signs {signs[0]} {signs[1]}", "bf16", "bf16", a, b, 128, signs=signs, steps=2
        )


#: Probes that cannot destroy the GPU's context come first.
GROUPS: tuple[Callable[[], Iterator[Probe]], ...] = (
    integer,
    floating,
    conversions,
    warps,
    atomics,
    matrices,
    mma_sync,
    wgmma,
    copies,
    clusters,
    tensor_copies,
)


def probes() -> list[Probe]:
    """All probes, in a fixed order with unique names."""
    out = []
    for group in GROUPS:
        for p in group():
            p.group = p.group or group.__name__
            out.append(p)
    names = [p.name for p in out]
    if len(set(names)) != len(names):
        raise ValueError("names of probes are not unique")
    return out
