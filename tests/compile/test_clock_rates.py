"""The micro-benchmarks of clock_rates compile; every figure has a meaning; a fault costs one item."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from dsl_kernels.arch import GPUS
from dsl_kernels.clock import rates as clock_rates
from dsl_kernels.errors import InvalidArgumentError, ToolchainError
from dsl_kernels.runtime import toolkit

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "clock_rates.py"
spec = importlib.util.spec_from_file_location("clock_rates", PATH)
rates = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rates)

# Stands for the program: `bad` fails, `dies` ends the process, `hangs` prints nothing; any other name is a
# figure.
PROGRAM = """
import json, os, sys, time
for name in sys.argv[1:]:
    if name == "bad":
        print(json.dumps({"failed": name, "error": "an illegal instruction"}))
        sys.exit(1)
    if name == "dies":
        os._exit(7)
    if name == "hangs":
        time.sleep(60)
    print(json.dumps({"name": name + "_mhz", "value": 2.5, "unit": "clk"}))
    print(json.dumps({"done": name}), flush=True)
"""


GPU_OF = {"sm_90a": "H100", "sm_100a": "B200"}


@pytest.fixture(scope="module", params=["sm_90a", pytest.param("sm_100a", marks=pytest.mark.slow)])
def built(request, tmp_path_factory) -> tuple[str, Path]:
    """An architecture, and the program compiled for it."""
    try:
        toolkit.nvcc()
        toolkit.host_compiler()
    except ToolchainError as error:
        pytest.skip(str(error))
    return request.param, rates.build(tmp_path_factory.mktemp("clock_rates"), request.param)


@pytest.mark.compile
def test_each_figure_is_documented_once(built) -> None:
    arch, program = built
    items = rates.items(program)
    parts = [
        name
        if re.match("load_|all_", name) is None
        else name + ("_gbs" if "_l2" in name or "_hbm" in name else "_watts")
        for name in items
    ]
    assert len(set(items)) == len(items)
    for name in parts:
        assert sum(re.fullmatch(pattern, name) is not None for pattern in rates.NAMES) == 1, name
    others = "wgmma" if arch == "sm_100a" else "tcgen05"
    for pattern in rates.NAMES:
        if pattern.startswith(others):
            continue
        assert any(re.match(re.sub(r"_\(.*|_mhz.*", "", pattern), name) for name in items), pattern
    assert rates.items(program, "hand_st") == ["hand_st_async"]
    with pytest.raises(InvalidArgumentError, match="nothing_such"):
        rates.items(program, "nothing_such")
    for title, rate in clock_rates.sources(GPUS[GPU_OF[arch]]).items():
        for item in rate.item.split("|^") if rate.item else ():
            assert rates.items(program, "^" + item.lstrip("^")), title


def test_a_fault_or_a_hang_costs_one_item(tmp_path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py")]
    results, missing = rates.measure(command, ["a", "bad", "b", "dies", "hangs", "c"], patience=2.0)
    assert results == {f"{name}_mhz": {"value": 2.5, "unit": "clk"} for name in "abc"}
    assert list(missing) == ["bad", "dies", "hangs"]
    assert missing["bad"] == "an illegal instruction"
    assert "status 7" in missing["dies"] and "no answer" in missing["hangs"]
    _, late = rates.measure(command, ["hangs", "a", "b"], limit=1.0)
    assert list(late) == ["hangs", "a", "b"] and "not measured" in late["b"]
    text = rates.table(results, missing)
    assert "b_mhz" in text and "an illegal instruction" in text
