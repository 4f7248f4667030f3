"""Run compiled CuTe DSL tutorials and dense GEMMs under many interleavings: always right, and without errors.

These public programs are known to work on hardware, so an error reported here is the emulator's until proven
otherwise. Launch parameters and tensor maps are described here, after the grid, cluster and boxes in the
DSL's printed IR.
"""

# ruff: noqa: T201 - a command-line script prints
from __future__ import annotations

import argparse
import math
import re
import struct
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptx_emulator import Interleaving, Report, TensorMap, interleavings, launch

M, N, K = 512, 512, 256
SMEM = 231000
SCALE = 0.5


def divmod_parameter(d: int) -> bytes:
    """The by-value parameter of a division by a launch constant: divisor, multiplier, two shifts."""
    bits = math.ceil(math.log2(d)) if d > 1 else 0
    multiplier = ((1 << 32) * ((1 << bits) - d)) // d + 1
    return struct.pack("<IIBBH", d, multiplier & 0xFFFFFFFF, min(bits, 1), max(bits - 1, 0), 0)


def divisors(*numbers: int) -> list[bytes]:
    return [divmod_parameter(d) for d in numbers]


def loads(a: np.ndarray, b: np.ndarray, rows_a: int, rows_b: int) -> list[TensorMap]:
    span = 128 // a.itemsize  # elements per row of the 128-byte swizzle
    kind = "e4m3" if a.itemsize == 1 else None
    return [TensorMap(x, (span, rows), "128B", dtype=kind) for x, rows in ((a, rows_a), (b, rows_b))]


def store(c: np.ndarray) -> TensorMap:
    return TensorMap(c, (32, 64), "128B") if c.itemsize == 4 else TensorMap(c, (32, 128), "64B")


class Data:
    """Inputs as small integers, exact in every format, and the expected result."""

    def __init__(self, kind: str) -> None:
        rng = np.random.default_rng(0)
        x, y = (rng.integers(-2, 3, (n, K)).astype(np.float32) for n in (M, N))
        self.reference = x @ y.T
        self.q = y.astype(np.int8)
        if kind == "e4m3":
            codes = np.array([0xC0, 0xB8, 0x00, 0x38, 0x40], np.uint8)  # -2 to 2
            self.a, self.b = (codes[(z + 2).astype(int)] for z in (x, y))
        else:
            self.a, self.b = (z.astype(kind) for z in (x, y))
        self.c = np.zeros((M, N), np.float32 if kind == "float32" else np.float16)

    def ok(self) -> bool:
        return bool((self.c.astype(np.float32) == self.reference).all())


class Dequantised(Data):
    """B comes from a first kernel, which dequantises 8-bit integers with a scale."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.reference, self.b = self.reference * SCALE, np.zeros_like(self.b)


class Copy(Data):
    """A copy, or a transposition, of A with M by N elements."""

    transposed = False

    def __init__(self, kind: str) -> None:
        self.a = np.random.default_rng(1).integers(-1000, 1000, (M, N)).astype(kind)
        self.c = np.zeros((N, M) if self.transposed else (M, N), kind)
        self.reference = (self.a.T if self.transposed else self.a).astype(np.float32)


class Transposition(Copy):
    transposed = True


#: one launch: entry (or part of its name), grid, block, cluster, arguments
Launch = tuple[str | None, Any, int, Any, Callable[[Any], list[Any]]]


@dataclass
class Program:
    """A compiled example and how to launch it, after the grid, cluster and boxes in the DSL's printed IR."""

    label: str
    file: str
    launches: list[Launch]
    kind: str = "float16"
    data: type[Data] = Data


def gemm(label: str, file: str, grid: Any, block: int, cluster: Any, rows: tuple[int, int],
         more: list[bytes] | None = None,
         tma_store: bool = True, kind: str = "float16") -> Program:  # fmt: skip
    """A GEMM that loads boxes with these numbers of rows of A and B."""

    def arguments(d: Data) -> list[Any]:
        head = bytes(64 if cluster != 1 else 32)
        return [head, *loads(d.a, d.b, *rows), store(d.c) if tma_store else d.c, *(more or [])]

    return Program(label, file, [(None, grid, block, cluster, arguments)], kind)


def moves(
    label: str,
    file: str,
    grid: Any,
    block: int,
    box: tuple[int, int],
    more: list[bytes] | None = None,
    transposed: bool = True,
) -> Program:
    def arguments(d: Data) -> list[Any]:
        swizzle = "128B" if transposed else "none"
        return [TensorMap(d.a, box, swizzle), TensorMap(d.c, box, swizzle), *(more or [])]

    return Program(
        label, file, [(None, grid, block, 1, arguments)], data=Transposition if transposed else Copy
    )


def hopper(label: str, file: str, grid: Any, block: int, cluster: Any, rows: tuple[int, int],
           more: list[bytes] | None = None,
           kind: str = "float16") -> Program:  # fmt: skip
    """A GEMM for Hopper, with another order of parameters and smaller boxes for stores."""

    def arguments(d: Data) -> list[Any]:
        return [*loads(d.a, d.b, *rows), TensorMap(d.c, (32, 64), "64B"), bytes(1), *(more or [])]

    return Program(label, file, [(None, grid, block, cluster, arguments)], kind)


def preferred(d: Data) -> list[Any]:
    return [bytes(64), *loads(d.a, d.b, 32, 128), *loads(d.a, d.b, 128, 128), store(d.c)]


PROGRAMS = [
    gemm("one CTA", "fp16_gemm_0", (4, 2), 128, 1, (128, 256), tma_store=False),
    gemm("two CTAs", "fp16_gemm_1", (4, 2), 128, (2, 1), (128, 128), tma_store=False),
    gemm("warp-specialised", "fp16_gemm_2", (4, 2), 192, (2, 1), (128, 128)),
    gemm("persistent", "fp16_gemm_3", (2, 1, 4), 192, (2, 1), (128, 128), divisors(2, 2, 2, 2)),
    gemm("cluster launch control", "fp16_gemm_3_1", (4, 2), 224, (2, 1), (128, 128)),
    Program("preferred cluster", "fp16_gemm_4", [(None, (4, 4), 224, (2, 4), preferred)]),
    Program("fallback cluster", "fp16_gemm_4", [(None, (4, 4), 224, (2, 1), preferred)]),
    gemm("overlapped", "fp16_gemm_5", (4, 8), 224, (2, 2), (64, 32)),
    Program(
        "after a dequantisation", "fp16_gemm_6",
        [
            ("dequantize", N * K // 128 // 64, 64, 1, lambda d: [d.q, SCALE, d.b]),
            ("gemm_", (4, 2), 224, (2, 1), lambda d: [bytes(64), *loads(d.a, d.b, 128, 128), store(d.c)]),
        ],
        data=Dequantised,
    ),
    moves("copy", "tma_v0", (4, 4), 32, (128, 128), transposed=False),
    moves("transposition", "tma_v1", (4, 4), 192, (64, 128)),
    moves("persistent transposition", "tma_v2", (1, 1, 6), 160, (64, 128), divisors(4, 4, 4, 4)),
    gemm("dense, one CTA", "dense_1cta", (4, 4), 128, 1, (128, 128)),
    gemm("dense, plain stores", "dense_1cta_no_tma_store", (8, 4), 128, 1, (64, 128), tma_store=False),
    gemm("dense, two CTAs", "dense_2cta", (4, 4), 128, (2, 1), (128, 64)),
    gemm("dense, multicast", "dense_2cta_multicast", (4, 4), 128, (2, 2), (64, 64)),
    gemm("dense, tf32", "dense_2cta_tf32", (8, 4), 128, (2, 1), (64, 64), kind="float32"),
    gemm("dense, fp8", "dense_2cta_fp8", (4, 4), 128, (2, 1), (128, 64), kind="e4m3"),
    gemm("dense persistent, one CTA", "persistent_1cta", (1, 1, 6), 192, 1, (128, 128), divisors(4, 4, 4, 4)),
    gemm("dense persistent, two CTAs", "persistent_2cta", (2, 1, 3), 192, (2, 1), (128, 64),
         divisors(2, 4, 2, 4)),
    hopper("Hopper", "hopper_fp16", (4, 4), 128, 1, (128, 128)),
    hopper("Hopper, multicast", "hopper_multicast", (4, 4), 128, (2, 1), (128, 64)),
    hopper("Hopper, fp8", "hopper_fp8", (4, 4), 128, (1, 2), (64, 128), kind="e4m3"),
    hopper("Hopper, persistent", "hopper_persistent", (2, 1, 3), 256, (2, 1), (128, 64),
           divisors(2, 4, 2, 4)),
]  # fmt: skip


def run(program: Program, ptx: str, interleaving: Interleaving, lineage: Data) -> list[Report]:
    """All launches of a program, in sequence."""
    reports = []
    for part, grid, block, cluster, arguments in program.launches:
        names = re.findall(r"\.entry\s+([\w$]+)", ptx)
        entry = next(n for n in names if part is None or part in n)
        reports.append(launch(ptx, grid, block, arguments(lineage), entry=entry, cluster=cluster,
                              dynamic_smem=SMEM,
                              interleaving=interleaving, check="report"))  # fmt: skip
    return reports


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ptx", type=Path, help="folder that compile_cutedsl.py wrote")
    parser.add_argument("--interleavings", type=int, default=20)
    parser.add_argument("--only", default="", help="run the programs whose file contains this")
    parser.add_argument("--details", action="store_true", help="print the first findings")
    options = parser.parse_args()
    failures = 0
    for program in PROGRAMS:
        if options.only not in program.file:
            continue
        ptx = (options.ptx / f"{program.file}.ptx").read_text()
        wrong, errors, warnings, seconds, instructions = 0, Counter[str](), set[str](), 0.0, 0
        for s in interleavings(options.interleavings, warps=program.launches[-1][2] // 32):
            data = program.data(program.kind)
            reports = run(program, ptx, s, data)
            errors.update(f.code for r in reports for f in r.errors)
            warnings |= {f.code for r in reports for f in r.findings if not f.error}
            wrong += not data.ok()
            seconds += sum(r.seconds for r in reports)
            instructions = sum(r.instructions for r in reports)
            if options.details:
                for f in [f for r in reports for f in r.errors][:3]:
                    print(f"  {f}\n  under {s}")
        failures += bool(wrong or errors)
        print(
            f"{program.file:24s} {program.label:26s} {options.interleavings} interleavings: {wrong} wrong, "
            f"errors {dict(errors) or 'none'}, "
            f"warnings {', '.join(sorted(warnings)) or 'none'}; "
            f"{instructions} instructions, {seconds / options.interleavings:.2f} s each",
            flush=True,
        )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
