"""How putting ranks' entries in order ranks; there is one variant a DSL for lists side by side, and one for the ranks' own."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...arch import ArchSpec
from ...tile.lang import Counts, Policy, Schedule


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """All sizes decide."""
    return {name: dims[name] for name in ("ranks", "rows", "k")}


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """A CTA's entries, and the lists of other ranks that it looks into; score and id of each entry.

    Of a cluster, which reads every list once, its CTA's share.
    """
    if k.lists == "peers":
        share = min(schedule.buffer("tokens").per_thread * k.threads, dims["ranks"] * dims["k"])
        return Counts(loaded=(4 * dims["planes"] + 8) * share, stored=8 * share, group_syncs=2)
    entries = min(k.threads, dims["ranks"] * dims["k"])
    lists = 4 * (dims["ranks"] - 1) * dims["k"]
    return Counts(loaded=4 * dims["planes"] * entries + lists, stored=8 * entries)


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    """512 threads for a cluster of CTAs; at level 0, 256 without one."""
    return k.threads == 512 if k.lists == "peers" else level > 0 or k.threads == 256


POLICY = Policy(bucket=bucket, counts=counts, useful=useful)
