"""Seeded bugs of PTX of merged outputs: a variant, a workload, splits (0: as planned), what is broken."""

from __future__ import annotations

from seeded_bugs import DISTANCE

CASES = (
    ("merge_outputs__tilelang_sm90a__w4_peers", "tiny", 0, (DISTANCE,)),
    ("merge_outputs__cutedsl_sm90a__w4_peers", "tiny", 0, (DISTANCE,)),
)  # fmt: skip
