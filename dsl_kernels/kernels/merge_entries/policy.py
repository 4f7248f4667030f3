"""How variants of merging entries rank.

Each DSL has one for gathered lists, and one for lists on the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...arch import ArchSpec
from ...tile.lang import Counts, Policy, Schedule, bucket_of


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """The entries of a CTA, and the lists of other ranks that it searches; score and id of each entry.

    A cluster reads every list once, and a CTA reads its share of these.
    """
    if k.lists == "peers":
        share = min(schedule.buffer("tokens").per_thread * k.threads, dims["ranks"] * dims["k"])
        return Counts(loaded=(4 * dims["planes"] + 8) * share, stored=8 * share, group_syncs=2)
    entries = min(k.threads, dims["ranks"] * dims["k"])
    lists = 4 * (dims["ranks"] - 1) * dims["k"]
    return Counts(loaded=4 * dims["planes"] * entries + lists, stored=8 * entries)


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    """512 threads where CTAs form a cluster; at level 0, 256 threads otherwise."""
    return k.threads == 512 if k.lists == "peers" else level > 0 or k.threads == 256


POLICY = Policy(bucket=bucket_of("ranks", "rows", "k"), counts=counts, useful=useful)
