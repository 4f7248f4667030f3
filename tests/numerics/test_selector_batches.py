"""Rows of several times what a group of CTAs holds in registers, with most scores in one bin of the first digit.

Such rows go through every round more than once a batch: what is kept between passes must be what was kept.
"""

from __future__ import annotations

import pytest

from dsl_kernels import variants
from dsl_kernels.emulator import Schedule
from dsl_kernels.executors import Emulator
from dsl_kernels.problems.base import Workload
from dsl_kernels.variants import Variant
from dsl_kernels.verification import trial

pytestmark = [pytest.mark.emulator, pytest.mark.compile]

LONGEST = 100_000


def cases() -> list[tuple[Variant, int]]:
    found = []
    for variant in variants.variants("topk_selector", arch="sm_90a"):
        knobs = variant.knobs
        held = knobs["group"] * knobs["threads"] * knobs["keep"]
        found += [(variant, length) for length in (held + 77, 3 * held + 77) if length <= LONGEST]
    return found


@pytest.mark.parametrize("variant, length", cases(), ids=lambda value: getattr(value, "id", value))
def test_rows_of_several_batches_match_the_reference(variant: Variant, length: int) -> None:
    workload = Workload("batches", "edge", "default", {"lens": [length], "k": 2048, "scores": "tight"})
    result = trial.run(variant, workload, Emulator(Schedule.lockstep()))
    assert result.comparison.ok, result.comparison.failures
