"""How compressing rows ranks; there is one variant of each width a DSL."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...tile.lang import Counts, Policy, Schedule
from .problem import WORDS


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Rows, tokens that each stands for, and the channels of both decide."""
    return {name: dims[name] for name in ("rows", "ratio", "width", "dim")}


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """Of a window's tokens a value, a score and what is added to it for each channel; angles, and the row's bytes."""
    span = dims["ratio"] * dims["width"] // k.dim
    return Counts(loaded=span * (12 * k.dim + 4) + 4 * k.dim + 4 * 64, stored=4 * WORDS[k.dim])


POLICY = Policy(bucket=bucket, counts=counts)
