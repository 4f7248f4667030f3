"""Seeded bugs of PTX of selection: a variant, a workload, splits (0: as planned), what is broken."""

from __future__ import annotations

from seeded_bugs import CLUSTER, MEET, RANK

CASES = (
    ("topk_selector__tilelang_sm90a__g8_t512_r8_c1", "starts", 0, (CLUSTER, RANK, MEET)),
    ("topk_selector__cutedsl_sm90a__g8_t512_r8_c1", "starts", 0, (CLUSTER, RANK, MEET)),
)  # fmt: skip
