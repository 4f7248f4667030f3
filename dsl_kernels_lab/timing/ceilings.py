"""Measured memory ceilings of a GPU: `records/<gpu>_ceilings.json`, written by `profile calibrate`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from dsl_kernels.errors import ArtifactError
from dsl_kernels.measured import slug

from .. import RECORDS

SCHEMA = 1
METHODS = ("bulk_rows", "bulk_pieces", "cp_async", "loads")


@dataclass(frozen=True)
class Point:
    """The fastest way found to fetch rows of `row_bytes` out of `footprint` bytes.

    `gbps` is its rate, `method` its method, `in_flight` its bytes in flight per SM. `by_method` keeps the
    best rate of every method, to show how close the others come.
    """

    row_bytes: int
    footprint: int
    order: str
    gbps: float
    method: str
    in_flight: int
    by_method: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ceilings:
    """Measured rates of one GPU: a sequential read from DRAM and from the L2, and fetched rows (`points`)."""

    gpu: str
    dram_gbps: float
    l2_gbps: float
    points: tuple[Point, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def gather_gbps(self, row_bytes: int, footprint: float, order: str = "random") -> float | None:
        """The rate of fetching such rows, interpolated logarithmically; None without points."""
        ordered = [p for p in self.points if p.order == order] or list(self.points)
        if not ordered:
            return None
        by_rows: dict[int, list[Point]] = {}
        for point in ordered:
            by_rows.setdefault(point.row_bytes, []).append(point)
        curve = {
            rows: _between({p.footprint: p.gbps for p in points}, footprint)
            for rows, points in by_rows.items()
        }
        return _between(curve, row_bytes)

    def to_json(self) -> str:
        """The text of the committed file."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=1, sort_keys=True) + "\n"


def _between(curve: Mapping[int, float], at: float) -> float:
    """The curve's value at `at`, linear in the logarithm of the argument and constant outside."""
    places = sorted(curve)
    at = min(max(at, places[0]), places[-1])
    for low, high in pairwise(places):
        if at <= high:
            part = math.log(at / low) / math.log(high / low)
            return curve[low] + part * (curve[high] - curve[low])
    return curve[places[-1]]


def path_of(gpu: str, folder: Path | None = None) -> Path:
    """The path of the ceilings of a GPU."""
    return (folder or RECORDS) / f"{slug(gpu)}_ceilings.json"


def read_ceilings(gpu: str, folder: Path | None = None) -> Ceilings | None:
    """The recorded ceilings of a GPU; None without a record.

    Raises:
        ArtifactError: the file is damaged or has another schema.
    """
    path = path_of(gpu, folder)
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        if content.pop("schema") != SCHEMA:
            raise ValueError("another schema")
        return Ceilings(**{**content, "points": tuple(Point(**point) for point in content["points"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            str(path),
            expected=f"ceilings of schema {SCHEMA}",
            got=f"{type(error).__name__}: {error}",
            fix="restore it, or record it again with `profile calibrate`",
        ) from None
