"""The choices for a grid of calls, and their launches, compared with a record: only measurements may change
them.

`python tests/unit/test_selections.py` records them again, after a change that is meant to choose otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import test_registry as calls

from dsl_kernels import measured, registry

RECORD = Path(__file__).parent / "data" / "selections.json"
# GPUs by architecture; "" is the architecture's reference GPU without its tables.
GPUS = {"sm_90a": ("", "NVIDIA H200", "NVIDIA H100 80GB HBM3"), "sm_100a": ("", "NVIDIA B200")}


def of_entry(entry: dict[str, Any]) -> registry.Call:
    """A call with the sizes of a tuned point."""
    sizes, form = entry["bucket"], entry["form"]
    if entry["op"] == "sparse_mla":
        return calls.mla(sizes["t"], sizes["heads"], sizes["topk"], form)
    if entry["op"] == "topk_selector":
        return calls.topk(sizes["rows"], sizes["max_len"], sizes["k"], form)
    if entry["op"] == "lightning_indexer" and form == "decode":
        return calls.decode(sizes["b"], sizes["next_n"], sizes["max_len"] // 64, sizes["heads"])
    if form == "decode_blocks":
        return calls.decode_blocks(
            sizes["b"], sizes["next_n"], sizes["max_len"], sizes["index_heads"], sizes["index_dim"]
        )
    if entry["op"] == "lightning_indexer":
        return calls.prefill(sizes["s"], sizes["skv"], sizes["heads"])
    if entry["op"] == "compress_rows":
        return calls.compress(**sizes)
    return calls.gqa(form=form, **sizes) if entry["op"] == "gqa_forward" else calls.resample(**sizes)


def grid() -> Iterator[registry.Call]:
    found = [of_entry(entry) for entry in measured.tuned_table("NVIDIA H200")][::4]
    found += calls.GRID[::7]
    found += [
        calls.mla(t, h, k, f)
        for t, h, k, f in product((2, 24, 72, 200, 1024), (16, 64, 128), (1024, 2048), ("bf16", "fp8"))
    ]
    found += [
        replace(call, dims={**call.dims, "splits": splits})
        for call, splits in product((calls.mla(4, 16), calls.mla(4, 128, form="fp8")), (2, 4, 8))
    ]
    for call in found:
        for arch in GPUS if call.arch == "sm_90a" else (call.arch,):
            yield from (replace(call, arch=arch, gpu=gpu) for gpu in GPUS[arch])


def named(call: registry.Call) -> str:
    dims = ",".join(f"{name}={value}" for name, value in call.dims.items() if not name.endswith("stride"))
    return f"{call.op} {call.form} {call.arch} {call.gpu or 'reference'} {dims}"


def chosen(call: registry.Call) -> list[Any]:
    found = registry.explain(call)
    if found.selection is None:
        return [type(found.error).__name__, {}]
    return [found.selection.variant.id, found.selection.launch]


@pytest.fixture(scope="module")
def record() -> dict[str, list[Any]]:
    content: dict[str, list[Any]] = json.loads(RECORD.read_text())
    return content


def test_calls_are_served_as_recorded(record) -> None:
    registry.clear()
    found = {named(call): chosen(call) for call in grid()}
    assert found.keys() == record.keys() and len(found) > 500
    assert not {name: (record[name], now) for name, now in found.items() if now != record[name]}


if __name__ == "__main__":
    lines = (f"{json.dumps(named(call))}: {json.dumps(chosen(call))}" for call in grid())
    RECORD.write_text("{\n" + ",\n".join(dict.fromkeys(lines)) + "\n}\n")
