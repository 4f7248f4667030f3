"""How variants of window ids rank. Each DSL has one variant."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...tile.lang import Counts, Policy, Schedule, bucket_of


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """The ids of a CTA, and per thread the length of the query and an entry of the table."""
    ids = min(k.threads, dims["window"])
    return Counts(loaded=8 * ids, stored=4 * ids)


POLICY = Policy(bucket=bucket_of("rows", "window"), counts=counts)
