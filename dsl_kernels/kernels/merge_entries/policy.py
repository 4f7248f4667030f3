"""How putting ranks' entries in order ranks; there is one variant a DSL."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...tile.lang import Counts, Policy, Schedule


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """All sizes decide."""
    return {name: dims[name] for name in ("ranks", "rows", "k")}


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """A CTA's entries, and the lists of other ranks that it looks into; score and id of each entry."""
    entries = min(k.threads, dims["ranks"] * dims["k"])
    lists = 4 * (dims["ranks"] - 1) * dims["k"]
    return Counts(loaded=4 * dims["planes"] * entries + lists, stored=8 * entries)


POLICY = Policy(bucket=bucket, counts=counts)
