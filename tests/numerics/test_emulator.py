"""Every committed variant's PTX, executed on the CPU under several schedules, equals the reference with no finding."""

from __future__ import annotations

import shutil

import pytest

from dsl_kernels import trial, variants
from dsl_kernels.emulator import Schedule
from dsl_kernels.executors import Emulator

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.compile,
    pytest.mark.skipif(
        shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler"
    ),
]

SCHEDULES = (Schedule.lockstep(), Schedule.random(1), Schedule.adversarial(2))
# The workloads that reach most of a variant's paths at a small size.
SMALL = (
    "decode_tiny",
    "decode_ragged",
    "decode_mtp3",
    "prefill_tiny",
    "prefill_ragged",
    "tiny_paged",
    "starts",
    "ids_mixed",
    "ids_holes",
)


def cases():
    found = []
    for variant in variants.variants():
        for workload in trial.workloads(variant, "tiny", "edge"):
            if workload.name.startswith(SMALL):
                found.append(pytest.param(variant, workload, id=f"{variant.id}-{workload.name}"))
    return found


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["lockstep", "random", "adversarial"])
@pytest.mark.parametrize("variant,workload", cases())
def test_emulated_ptx_matches_the_reference(variant, workload, schedule) -> None:
    result = trial.run(variant, workload, Emulator(schedule), case=trial.cached_case(variant.op, workload))
    assert result.comparison.ok, result.comparison.failures
