"""The choices for a grid of calls, and their launches, compared with a record: only measurements may change
them.

`python tests/unit/test_selections.py` records them again, after a change that is meant to choose otherwise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

# As a script, too.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import kernel_folders

from dsl_kernels import measured, registry

SIZES = {op: module for op, module in kernel_folders.of_each("sizes").items() if hasattr(module, "of_point")}
# GPUs by architecture; "" is the architecture's reference GPU without its tables.
GPUS = {"sm_90a": ("", "NVIDIA H200", "NVIDIA H100 80GB HBM3"), "sm_100a": ("", "NVIDIA B200")}


def record_of(op: str) -> Path:
    return kernel_folders.FOLDER / op / "selections.json"


def grid(op: str) -> Iterator[registry.Call]:
    """Calls with sizes of tuned points, and calls of the operation's folder, on each GPU."""
    sizes = SIZES[op]
    points = [entry for entry in measured.tuned_table("NVIDIA H200") if entry["op"] == op]
    calls = [sizes.of_point(entry["form"], entry["bucket"]) for entry in points[::4]]
    calls += getattr(sizes, "GRID", [])[::7] + getattr(sizes, "RECORDED", [])
    for call in calls:
        for arch in GPUS if call.arch == "sm_90a" else (call.arch,):
            yield from (replace(call, arch=arch, gpu=gpu) for gpu in GPUS[arch])


def named(call: registry.Call) -> str:
    dims = ",".join(f"{name}={value}" for name, value in call.dims.items() if not name.endswith("stride"))
    return f"{call.op} {call.form} {call.arch} {call.gpu or 'reference'} {dims}"


def chosen(call: registry.Call) -> list[Any]:
    explanation = registry.explain(call)
    if explanation.selection is None:
        return [type(explanation.error).__name__, {}]
    return [explanation.selection.variant.id, explanation.selection.launch]


@pytest.mark.parametrize("op", SIZES)
def test_calls_are_served_as_recorded(op: str) -> None:
    registry.clear()
    record = json.loads(record_of(op).read_text())
    now = {named(call): chosen(call) for call in grid(op)}
    assert now.keys() == record.keys() and now
    assert not {name: (record[name], choice) for name, choice in now.items() if choice != record[name]}


def test_every_operation_with_tuned_points_is_recorded() -> None:
    assert {entry["op"] for entry in measured.tuned_table("NVIDIA H200")} <= SIZES.keys()
    assert sum(len(json.loads(record_of(op).read_text())) for op in SIZES) > 500


if __name__ == "__main__":
    for op in SIZES:
        lines = (f"{json.dumps(named(call))}: {json.dumps(chosen(call))}" for call in grid(op))
        record_of(op).write_text("{\n" + ",\n".join(dict.fromkeys(lines)) + "\n}\n")
