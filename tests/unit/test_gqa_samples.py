"""Regions of a main loop by samples of the program counter."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gqa_samples.py"
HEADER = ("Address", "Source", "# Samples", "Instructions Executed", "stall_barrier", "stall_long_sb")
# Source, samples, executions, of the samples those that wait at a barrier and those that wait for memory.
LOOP: tuple[tuple[Any, ...], ...] = (
    ("BAR.SYNC.DEFER_BLOCKING R4, 0x100", 1, 8, 0, 0),
    ("UMOV UR4, UR8", 10, 8, 7, 0),
    ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R4], R6", 5, 8, 0, 5),
    ("@!P0 BRA 0x100", 6, 8, 0, 6),
    ("HGMMA.64x80x16.F32 R8, gdesc[UR4], RZ, !UPT", 3, 8, 0, 0),
    ("UIADD3 UR4, UR4, 0x2, URZ", 4, 8, 0, 0),
    ("HGMMA.64x80x16.F32 R8, gdesc[UR4], R8", 2, 8, 0, 0),
    ("WARPGROUP.DEPBAR.LE gsb0, 0x0", 9, 8, 9, 0),
    ("FMNMX R1, R2, R3, !PT", 20, 8, 0, 2),
    ("@P1 BRA 0x900", 0, 0, 0, 0),
    ("MUFU.EX2 R1, R1", 30, 8, 0, 0),
)


@pytest.fixture(scope="module")
def samples() -> Any:
    spec = importlib.util.spec_from_file_location("gqa_samples", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(*kernels: Sequence[tuple[Any, ...]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_ALL)
    for number, rows in enumerate(kernels):
        writer.writerow(("Kernel Name", f"kernel_{number}"))
        writer.writerow(HEADER)
        for address, (source, *counts) in enumerate(rows):
            writer.writerow((hex(address * 16), f"      {source}", *counts))
    return out.getvalue()


def test_samples_of_a_loop_go_to_the_regions_of_its_landmarks(samples: Any) -> None:
    before = (
        ("LDC R1, c[0x0][0x28]", 2, 1, 0, 0),
        ("HGMMA.64x80x16.F32 R8, gdesc[UR4], RZ, !UPT", 4, 1, 0, 0),
    )
    after = (("EXIT", 50, 1, 50, 0),)
    prepared = (("MOV R1, R2", 9, 1, 0, 0),)
    kernel = samples.instructions(table(prepared, (*before, *LOOP, *after)))
    assert len(kernel) == len(before) + len(LOOP) + len(after)
    loop, turns = samples.main_loop(kernel)
    assert ([x["Source"].strip() for x in loop], turns) == ([row[0] for row in LOOP], 8)
    regions = samples.regions(loop)
    wanted = {"turn": 7, "tiles": 11, "products": 9, "issue": 9, "softmax": 1 + 3 + 20 + 30}
    assert regions == wanted
    assert sum(regions.values()) == sum(row[1] for row in LOOP)
    assert samples.keys_of_tile(loop) == 80
