"""Softmax of each row of a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...problems.base import Comparison, OperandSpec, Problem, Workload

OPERANDS = (
    OperandSpec("x", ("rows", "columns"), "float32"),
    OperandSpec("y", ("rows", "columns"), "float32", "out"),
)


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    """Draw normal scores; one score of the first row leaves no weight for the others."""
    x = torch.randn(workload.params["rows"], workload.params["columns"], generator=generator)
    x[:1, 0] = 200.0
    return {"x": x}


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """exp(x) divided by its sum, in float64."""
    return {"y": inputs["x"].double().softmax(dim=1)}


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """The largest relative error (2-norm) of a row."""
    result = Comparison()
    errors = (outputs["y"].double() - expected["y"]).norm(dim=1) / expected["y"].norm(dim=1)
    result.require("y relative error", float(errors.max()), 1e-6)
    return result


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Each element read once and written once."""
    return 8.0 * dims["rows"] * dims["columns"]


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Per element a comparison, a subtraction, an exponential, an addition and a product."""
    return {"float32": 5.0 * dims["rows"] * dims["columns"]}


PROBLEM = Problem(
    op="row_softmax",
    doc=__doc__,
    forms={"default": OPERANDS},
    workloads=(
        Workload("tiny", "tiny", "default", {"rows": 3, "columns": 1024}),
        Workload("part_of_a_cta", "edge", "default", {"rows": 9, "columns": 1024}),
        Workload("thousand", "real", "default", {"rows": 4096, "columns": 1024}),
    ),
    make=make,
    reference=reference,
    compare=compare,
    bytes=moved_bytes,
    flops=flops,
)
