"""The micro-benchmarks of products beside requests, in the emulator: who multiplies, and who asks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import ptx_emulator as emulator

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import clock_port

from .kernels import assembles

pytestmark = pytest.mark.emulator

PRODUCTS = (clock_port.Products(64), clock_port.Products(64, registers=True))


def told(ptx: str, threads: int, count: int) -> np.ndarray:
    words = np.zeros((threads, 4), np.int32)
    memory = np.zeros(clock_port.BUFFER, np.uint8)
    report = emulator.launch(
        ptx, 1, threads, [words, memory, count], dynamic_smem=clock_port.SHARED, check="report"
    )
    assert not report.findings
    return words


@pytest.mark.parametrize("groups", (1, 2))
def test_every_warpgroup_tells_the_clocks_of_its_chain(groups: int) -> None:
    words = told(clock_port.chains(PRODUCTS[0], groups), 128 * groups, 7)
    assert (words[:, 0] > 0).all()
    # The zeros of shared memory were multiplied.
    assert not words[:, 2].any()


@pytest.mark.parametrize("name", clock_port.REQUESTS)
@pytest.mark.parametrize("products", (None, *PRODUCTS))
def test_warps_ask_until_the_products_end(name: str, products: clock_port.Products | None) -> None:
    text = clock_port.beside(products, clock_port.REQUESTS[name], 4)
    words = told(text, 256, 1)
    assert (words[:128, 0] > 0).all() and not words[:128, 1].any()
    assert not words[128:, 0].any() and (words[128:, 1] > 0).all()
    # A turn asks `AT_ONCE` times.
    instruction = re.match(r"[a-z0-9.]+", clock_port.REQUESTS[name].instruction)
    assert instruction and text.count(f"{instruction[0]} ") == clock_port.AT_ONCE


@pytest.mark.compile
@pytest.mark.parametrize("n", (64, 128, 256))
def test_ptxas_takes_products_of_every_width(n: int, tmp_path: Path) -> None:
    for registers in (False, True):
        products = clock_port.Products(n, registers)
        assembles(clock_port.beside(products, clock_port.REQUESTS["load of eight rows"], 4), tmp_path)
