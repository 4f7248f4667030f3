"""A seeded sample of damage and kills: nothing wrong is loaded, and every writer recovers."""

from __future__ import annotations

import pytest

from . import storage


@pytest.mark.parametrize(
    ("fuzz", "count"),
    [(storage.fuzz_cache_corruption, 300), (storage.fuzz_bundle_corruption, 300), (storage.fuzz_kills, 18)],
)
def test_damage_and_kills_end_in_the_right_answer_or_a_typed_error(fuzz, count):
    counts = fuzz(count, seed=8)
    assert counts.defects == 0, "\n".join(counts.examples)
    assert counts.runs > counts.typed > 0, "some load, and some are refused"
