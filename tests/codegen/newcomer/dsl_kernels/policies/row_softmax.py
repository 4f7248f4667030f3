"""How variants of the row softmax rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ..programs.row_softmax import ROWS
from ..tile.lang import Counts, Policy, Schedule


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """The sizes that decide which variant is best."""
    return {"rows": dims["rows"], "columns": dims["columns"]}


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """Each row in and out."""
    rows = min(dims["rows"], ROWS)
    return Counts(loaded=4 * rows * k.columns, stored=4 * rows * k.columns, uses=rows)


POLICY = Policy(bucket=bucket, counts=counts)
