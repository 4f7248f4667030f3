"""How variants of merging outputs rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...problems.layouts import LATENT_DIM
from ...tile.lang import Counts, Policy, Schedule, bucket_of


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """Out and lse of a CTA's heads: from every rank in, and once out."""
    part = k.warps * (2 * LATENT_DIM + 4)
    return Counts(loaded=dims["ranks"] * part, stored=part)


POLICY = Policy(bucket=bucket_of("ranks", "rows", "heads"), counts=counts)
