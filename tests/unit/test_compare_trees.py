"""Checkouts timed in turns, with trees whose kernels are numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "compare_trees.py"
GRIDS = """
from types import SimpleNamespace as S
alive = []
def points(op, grid):
    return [S(name=f"bf16 t={t}", t=t) for t in (1, 4, 8)]
def prepare(point):
    assert not any(alive), "the former point's inputs are still there"
    alive.append(True)
    return S(calls=lambda variant, launch: Calls(point.t * (launch or {}).get("splits", 1)))
class Calls:
    def __init__(self, t):
        self.t = t
    def __del__(self):
        alive.clear()
def check_variant(point, fixture, variant, launch=None):
    if point.t == 8 and SPEED > 1:
        alive.clear()
        raise ValueError("the results differ")
"""
BENCH = """
from types import SimpleNamespace as S
def graph_time(calls, replays):
    return S(us=10.0 * calls.t * SPEED)
"""


def _tree(folder: Path, speed: float) -> Path:
    package = folder / "dsl_kernels_lab" / "timing"
    package.mkdir(parents=True)
    for each in (package.parent, package):
        (each / "__init__.py").touch()
    for name, text in (("grids", GRIDS), ("bench", BENCH)):
        (package / f"{name}.py").write_text(f"SPEED = {speed}\n{text}")
    return folder


def test_trees_take_turns_and_a_wrong_result_is_not_timed(tmp_path: Path) -> None:
    before, after = _tree(tmp_path / "before", 1.0), _tree(tmp_path / "after", 1.5)
    out = tmp_path / "out.json"
    command = [sys.executable, SCRIPT, "sparse_mla", f"--tree=before={before}", f"--tree=after={after}"]
    done = subprocess.run(
        [*command, "--rounds", "3", "--launch", "splits=2", "--json", out], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "bf16 t=8: after: ValueError: the results differ" in done.stderr
    assert done.stdout.splitlines()[2:] == ["| bf16 t=1 | 20.00 | 1.500 |", "| bf16 t=4 | 80.00 | 1.500 |"]
    assert json.loads(out.read_text())["bf16 t=4"] == {"before": 80.0, "after": 120.0}
    only = subprocess.run([*command, "--point", "t=4$"], capture_output=True, text=True)
    assert only.returncode == 0 and len(only.stdout.splitlines()) == 3


def test_a_tree_must_be_a_checkout(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "sparse_mla", f"--tree=a={tmp_path}", f"--tree=b={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "expected NAME=CHECKOUT" in done.stderr
