"""Run the compiled CuTe DSL tutorial GEMMs under many schedules: right every time, and no error reported.

They are public programs known to work on hardware, so a fault reported here is the emulator's until proven otherwise.
Launch parameters and tensor maps are described here, from what the DSL's printed IR says about grid, cluster and boxes.
"""

# ruff: noqa: T201 - a command-line script prints
from __future__ import annotations

import argparse
import math
import struct
import sys
from collections import Counter
from pathlib import Path

import numpy as np

from dsl_kernels.emulator import TensorMap, launch, schedules

M, N, K = 512, 512, 256
SMEM = 231000


def divmod_parameter(d: int) -> bytes:
    """The by-value parameter of a division by a launch constant: divisor, multiplier, two shifts."""
    bits = math.ceil(math.log2(d)) if d > 1 else 0
    multiplier = ((1 << 32) * ((1 << bits) - d)) // d + 1
    return struct.pack("<IIBBH", d, multiplier & 0xFFFFFFFF, min(bits, 1), max(bits - 1, 0), 0)


def loads(a: np.ndarray, b: np.ndarray, rows_a: int, rows_b: int) -> list[TensorMap]:
    return [TensorMap(a, (64, rows_a), "128B"), TensorMap(b, (64, rows_b), "128B")]


def store(c: np.ndarray) -> TensorMap:
    return TensorMap(c, (32, 128), "64B")


#: label -> (file, grid, block, cluster, arguments)
PROGRAMS = {
    "one CTA": ("fp16_gemm_0", (4, 2), 128, 1, lambda a, b, c: [bytes(32), *loads(a, b, 128, 256), c]),
    "two CTAs": ("fp16_gemm_1", (4, 2), 128, (2, 1), lambda a, b, c: [bytes(64), *loads(a, b, 128, 128), c]),
    "warp-specialised": ("fp16_gemm_2", (4, 2), 192, (2, 1), lambda a, b, c: [bytes(64), *loads(a, b, 128, 128), store(c)]),
    "persistent": (
        "fp16_gemm_3", (2, 1, 4), 192, (2, 1),
        lambda a, b, c: [bytes(64), *loads(a, b, 128, 128), store(c), *[divmod_parameter(2)] * 4],
    ),
    "cluster launch control": ("fp16_gemm_3_1", (4, 2), 224, (2, 1), lambda a, b, c: [bytes(64), *loads(a, b, 128, 128), store(c)]),
    "preferred cluster": (
        "fp16_gemm_4", (4, 4), 224, (2, 4),
        lambda a, b, c: [bytes(64), *loads(a, b, 32, 128), *loads(a, b, 128, 128), store(c)],
    ),
    "fallback cluster": (
        "fp16_gemm_4", (4, 4), 224, (2, 1),
        lambda a, b, c: [bytes(64), *loads(a, b, 32, 128), *loads(a, b, 128, 128), store(c)],
    ),
    "overlapped": ("fp16_gemm_5", (4, 8), 224, (2, 2), lambda a, b, c: [bytes(64), *loads(a, b, 64, 32), store(c)]),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ptx", type=Path, help="folder that compile_cutedsl.py wrote")
    parser.add_argument("--schedules", type=int, default=20)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (n, K)).astype(np.float16) for n in (M, N))
    reference = a.astype(np.float32) @ b.astype(np.float32).T
    failures = 0
    for label, (file, grid, block, cluster, arguments) in PROGRAMS.items():
        ptx = (options.ptx / f"{file}.ptx").read_text()
        wrong, errors, warnings, seconds, instructions = 0, Counter[str](), set[str](), 0.0, 0
        for s in schedules(options.schedules, warps=block // 32):
            c = np.zeros((M, N), np.float16)
            report = launch(
                ptx,
                grid,
                block,
                arguments(a, b, c),
                cluster=cluster,
                dynamic_smem=SMEM,
                schedule=s,
                check="report",
            )
            errors.update(f.code for f in report.errors)
            warnings |= {f.code for f in report.findings if not f.error}
            wrong += not np.array_equal(c.astype(np.float32), reference)
            seconds += report.seconds
            instructions = report.instructions
        failures += bool(wrong or errors)
        print(f"{file:14s} {label:22s} {options.schedules} schedules: {wrong} wrong, errors {dict(errors) or 'none'}, "
              f"warnings {', '.join(sorted(warnings)) or 'none'}; {instructions} instructions, {seconds / options.schedules:.2f} s each")  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
