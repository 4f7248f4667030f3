"""How variants of compressing rows rank. Each DSL has one variant per width of rows."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...tile.lang import Counts, Policy, Schedule, bucket_of
from .problem import WORDS


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """Per channel and token of a window a value, a score and a bias; then angles, and the row's bytes."""
    span = dims["ratio"] * dims["width"] // k.dim
    return Counts(loaded=span * (12 * k.dim + 4) + 4 * k.dim + 4 * 64, stored=4 * WORDS[k.dim])


POLICY = Policy(bucket=bucket_of("rows", "ratio", "width", "dim"), counts=counts)
