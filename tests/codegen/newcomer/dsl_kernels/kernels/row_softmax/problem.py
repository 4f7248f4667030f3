"""Softmax of each row of a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...problems.base import OperandSpec, Problem

OPERANDS = (
    OperandSpec("x", ("rows", "columns"), "float32"),
    OperandSpec("y", ("rows", "columns"), "float32", "out"),
)


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Each element read once and written once."""
    return 8.0 * dims["rows"] * dims["columns"]


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a model."""
    yield "default", {"rows": 4096, "columns": 1024}


PROBLEM = Problem(
    op="row_softmax",
    doc=__doc__,
    forms={"default": OPERANDS},
    bytes=moved_bytes,
    points=points,
)
