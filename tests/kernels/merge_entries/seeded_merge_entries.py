"""Seeded bugs of PTX of merged entries: a variant, a workload, splits (0: as planned), what is broken."""

from __future__ import annotations

from seeded_bugs import CLUSTER, DISTANCE, RANK

CASES = (
    ("merge_entries__tilelang_sm90a__n512_peers", "tiny", 0, (CLUSTER, DISTANCE)),
    ("merge_entries__tilelang_sm90a__n512_peers", "peers_many_entries", 0, (RANK,)),
    ("merge_entries__cutedsl_sm90a__n512_peers", "tiny", 0, (CLUSTER, DISTANCE)),
)  # fmt: skip
