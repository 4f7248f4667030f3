"""Root mean square normalisation of each row of a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...problems.base import OperandSpec, Problem

OPERANDS = (
    OperandSpec("x", ("rows", "dim"), "bfloat16"),
    OperandSpec("weight", ("dim",), "bfloat16"),
    OperandSpec("eps", (), "float32", "scalar"),
    OperandSpec("y", ("rows", "dim"), "bfloat16", "out"),
)


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Each element once."""
    return 4.0 * dims["rows"] * dims["dim"] + 2.0 * dims["dim"]


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a model."""
    yield "default", {"rows": 4096, "dim": 4096}


PROBLEM = Problem(
    op="rms_norm",
    doc=__doc__,
    forms={"default": OPERANDS},
    bytes=moved_bytes,
    points=points,
)
