"""The micro-benchmarks of tcgen05, in the emulator: their products and columns are right."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ptx_emulator as emulator
from dsl_kernels.errors import ToolchainError
from dsl_kernels.runtime import toolkit

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
pytestmark = [pytest.mark.compile, pytest.mark.emulator]

TURNS, PER_TURN, STEPS = 3, 16, 4
SHARED, A_AT = 200 << 10, 128 << 10
F16, F8F6F4 = range(2)
IN_SHARED, IN_TENSOR, BY_WS = range(3)
LOAD, STORE, ONE = range(3)


@pytest.fixture(scope="module")
def ptx(tmp_path_factory) -> str:
    try:
        nvcc = toolkit.nvcc()
    except ToolchainError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("clock")
    used = [
        f"products<Kind::{kind}, Form::{form}, {accumulators}, {lone}>(Span*, int, u32, u32, float*)"
        for kind in ("F16", "F8F6F4")
        for form, accumulators, lone in (
            ("SHARED", 1, "false"),
            ("SHARED", 2, "false"),
            ("SHARED", 1, "true"),
            ("TENSOR", 1, "false"),
            ("WS", 1, "false"),
        )
    ]
    used += [f"columns<Move::{move}>(Span*, int, u32*)" for move in ("LOAD", "STORE", "ONE")]
    text = "\n".join(['#include "clock_tcgen05.cuh"', *(f"template __global__ void {one};" for one in used)])
    (folder / "kernels.cu").write_text(text)
    command = [nvcc.path, "-ptx", "-std=c++17", "-arch=compute_100a", "-I", BENCHMARKS, "-o", "kernels.ptx"]
    subprocess.run([*command, "kernels.cu"], cwd=folder, check=True, capture_output=True)
    return (folder / "kernels.ptx").read_text()


def entry(ptx: str, pattern: str) -> str:
    """The mangled name of the kernel."""
    (name,) = set(re.findall(rf"\.entry (\w*{pattern}\w*)\(", ptx))
    return name


def launch(ptx: str, name: str, warps: int, *args, seed: int) -> None:
    spans = np.zeros(3 * warps, np.uint64)
    emulator.launch(
        ptx, grid=1, block=32 * warps, args=[spans, TURNS, *args], entry=name, dynamic_smem=SHARED,
        interleaving=emulator.Interleaving("random", seed), strict_fences=True,
    )  # fmt: skip
    assert spans[0] < spans[1]


def hashed(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def operands(fp8: bool) -> np.ndarray:
    """What `fill_operands` writes to shared memory in block 0: rows of 128 bytes, of bf16 or e4m3."""
    torch = pytest.importorskip("torch")
    h = hashed(np.arange((192 << 10) // (1 if fp8 else 2), dtype=np.uint32) * np.uint32(1 if fp8 else 2))
    drawn = sum((h >> np.uint32(shift) & np.uint32(255)).astype(np.float32) for shift in (0, 8, 16, 24))
    values = torch.from_numpy((drawn - np.float32(510)) / np.float32(148))
    rounded = values.to(torch.float8_e4m3fn if fp8 else torch.bfloat16).float().numpy()
    rows = rounded.reshape(-1, 8, 16 if fp8 else 8)
    # Undo the swizzle: piece `c` of row `r` is at piece `c ^ r % 8`.
    order = np.arange(8)[None, :] ^ (np.arange(len(rows)) % 8)[:, None]
    return np.take_along_axis(rows, order[:, :, None], 1).reshape(len(rows), STEPS, -1)


def shape_of(kind: int, m: int, n: int) -> int:
    dtype = int(kind == F16)
    return 1 << 4 | dtype << 7 | dtype << 10 | n // 8 << 17 | m // 16 << 24


@pytest.mark.parametrize("kind", [F16, F8F6F4])
@pytest.mark.parametrize(
    ("form", "accumulators", "lone", "m", "n"),
    [
        (IN_SHARED, 1, 0, 128, 16),
        (IN_SHARED, 1, 0, 64, 64),
        (IN_SHARED, 2, 0, 128, 240),
        (IN_TENSOR, 1, 0, 128, 64),
        (BY_WS, 1, 0, 32, 64),
        (BY_WS, 1, 0, 64, 64),
        (BY_WS, 1, 0, 128, 256),
        (IN_SHARED, 1, 1, 128, 64),
    ],
)
def test_products_are_the_sums_that_they_say(ptx, kind, form, accumulators, lone, m, n) -> None:
    name = entry(ptx, f"productsIL4Kind{kind}EL4Form{form}ELi{accumulators}ELb{lone}E")
    result = np.full(128, np.nan, np.float32)
    apart = 240 if accumulators == 2 else 0
    launch(ptx, name, 4, shape_of(kind, m, n), apart, result, seed=m + n)
    rows = operands(kind == F8F6F4)
    a, b = rows[A_AT // 128 :][:m], rows[0]
    each = np.einsum("rsk,sk->rs", a.astype(np.float64), b)
    times = TURNS if lone else 0
    expected = each[:, 0] * (1 + times) + each.sum(1) * (
        0 if lone else TURNS * PER_TURN // accumulators // STEPS
    )
    # 64 rows of a plain product are in the first 16 lanes of each warp, 32 rows of `.ws` in the first warp's.
    lanes = np.arange(m) if form == BY_WS or m == 128 else np.arange(m) % 16 + np.arange(m) // 16 * 32
    np.testing.assert_allclose(result[lanes], expected, rtol=1e-4, atol=1e-2)
    assert np.isfinite(result).all()


def test_a_turn_of_a_chain_issues_its_products_alone(ptx, tmp_path) -> None:
    """Nothing is spilled, and nothing stands between the products of a turn."""
    (tmp_path / "kernels.ptx").write_text(ptx)
    toolkit.ptx_to_cubin(tmp_path / "kernels.ptx", tmp_path / "kernels.cubin", "sm_100a", [])
    listing = subprocess.run(
        [toolkit.nvdisasm().path, "-c", tmp_path / "kernels.cubin"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert not re.findall(r"\b(?:STL|LDL)\b", listing)
    name = entry(ptx, f"productsIL4Kind{F16}EL4Form{IN_SHARED}ELi1ELb0E")
    text = listing.split(f".text.{name}:")[1].split(".text.")[0]
    opcodes = re.findall(r"/\*[0-9a-f]{4}\*/ +(?:@!?U?P\d+ +)?(\w+)", text)
    last = len(opcodes) - 1 - opcodes[::-1].index("UTCHMMA")
    assert opcodes[last - PER_TURN + 1 : last + 1] == ["UTCHMMA"] * PER_TURN


@pytest.mark.parametrize(("move", "warps"), [(LOAD, 4), (LOAD, 8), (STORE, 4), (ONE, 4)])
def test_columns_are_those_that_were_written(ptx, move, warps) -> None:
    sums = np.full(32 * warps, 77, np.uint32)
    launch(ptx, entry(ptx, f"columnsIL4Move{move}E"), warps, sums, seed=warps)
    thread = np.arange(32 * warps, dtype=np.uint32) % 128
    np.testing.assert_array_equal(sums, thread * {LOAD: 16 * TURNS, ONE: 16 * TURNS, STORE: 1}[move])
