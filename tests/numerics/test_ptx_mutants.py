"""Broken PTX: one slip in the PTX of a variant must be caught by the emulator (ptx_mutants.py)."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
import sampling
from ptx_mutants import VARIANTS, mutants, outcome, row

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.compile,
    pytest.mark.skipif(
        shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler"
    ),
]
# Mutants of a variant that a run tries; TEST_ALL=1 tries all.
SAMPLE = 3
DOCS = Path(__file__).parents[2] / "docs" / "emulator_evidence.md"


@pytest.mark.parametrize("name", VARIANTS)
def test_every_slip_in_the_text_is_caught(name: str) -> None:
    results = [outcome(name, m) for m in sampling.sample(mutants(name), SAMPLE, name)]
    left = [f"{o.mutant}:\n{o.how}" for o in results if o.by == "survives"]
    assert not left, "\n\n".join(left)
    if sampling.ALL:
        assert row(name, results) in DOCS.read_text(), f"put this row into {DOCS.name}: {row(name, results)}"


def test_there_are_26_classes_at_300_sites() -> None:
    counts = Counter(m.slip for name in VARIANTS for m in mutants(name))
    assert len(counts) >= 26 and counts.total() >= 300, counts
