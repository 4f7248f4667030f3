"""Every committed variant's PTX, executed on the CPU under several schedules, equals the reference with no finding."""

from __future__ import annotations

import shutil

import pytest

from dsl_kernels import problems, trial, variants
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
# The workload that exercises most of a variant's paths at the smallest size, by operation and form.
SMALL = {
    ("lightning_indexer", "decode"): ("decode_tiny", "decode_tiny_h32"),
    ("lightning_indexer", "prefill"): ("prefill_tiny", "prefill_h32"),
    ("topk_selector", "default"): ("tiny_paged",),
    ("sparse_mla", "bf16"): ("tiny_h8", "tiny_h16", "tiny_h32", "tiny_h64", "tiny_h128"),
    ("sparse_mla", "fp8"): ("tiny_fp8",),
}


def cases():
    found = []
    for variant in variants.variants():
        problem = problems.get(variant.op)
        for (op, _), names in SMALL.items():
            if op != variant.op:
                continue
            for name in names:
                workload = problem.workload(name)
                if trial.accepts(variant, workload, trial.draw(op, workload, 0)) is None:
                    found.append(pytest.param(variant, workload, id=f"{variant.id}-{name}"))
    return found


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["lockstep", "random", "adversarial"])
@pytest.mark.parametrize("variant,workload", cases())
def test_emulated_ptx_matches_the_reference(variant, workload, schedule) -> None:
    result = trial.run(variant, workload, Emulator(schedule), seed=9)
    assert result.comparison.ok, result.comparison.failures
