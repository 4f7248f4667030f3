"""Chains of known length between marks of probes: their results, and their ticks on the emulator's clock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ptx_emulator as emulator
from dsl_kernels.errors import ToolchainError
from dsl_kernels.runtime import toolkit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import probe_chains

pytestmark = [pytest.mark.compile, pytest.mark.emulator]


@pytest.fixture(scope="module")
def sums(tmp_path_factory) -> list[int]:
    """Ticks of the first warp by region, from a launch with right results."""
    try:
        nvcc = toolkit.nvcc()
    except ToolchainError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("chains")
    (folder / "chains.cu").write_text(probe_chains.SOURCE.text)
    command = [nvcc.path, "-ptx", *probe_chains.SOURCE.options("sm_90a"), "-o", "chains.ptx", "chains.cu"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    sums = np.zeros(128, np.int32)
    result = np.full((probe_chains.ACCUMULATORS + 1, 128), np.nan, np.float32)
    emulator.launch(
        (folder / "chains.ptx").read_text(),
        grid=1,
        block=128,
        args=[sums, result, 1.0, 1.0],
        entry="chains",
        dynamic_smem=probe_chains.SHARED,
    )
    assert (result[0] == probe_chains.EXPECTED[0]).all()
    assert (result[1:] == probe_chains.EXPECTED[1]).all()
    return sums[: len(probe_chains.regions())].tolist()


def test_a_region_holds_the_instructions_between_its_marks(sums: list[int]) -> None:
    ticks = dict(zip(probe_chains.regions(), sums, strict=True))
    assert ticks["empty"] > 0
    for count in probe_chains.FMAS:
        # The other warps execute in between.
        assert ticks[f"{count} multiply-adds"] >= 4 * count
    for few, many in zip(probe_chains.PRODUCTS, probe_chains.PRODUCTS[1:], strict=False):
        assert ticks[f"{many} products"] > ticks[f"{few} products"]


def test_what_is_off_by_more_than_the_limit_is_said_to_be() -> None:
    known = list(probe_chains.regions().values())
    right = [clocks + 30 for clocks in known]
    assert [row["holds"] for row in probe_chains.judged(right)] == [None, None, None, True, None, True, True]
    assert [row["net"] for row in probe_chains.judged(right)] == known
    wrong = [int(clocks * 1.03) for clocks in known]
    assert {row["holds"] for row in probe_chains.judged(wrong)} == {None, False}
