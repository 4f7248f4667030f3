"""Softmax of each row of a matrix: drawn inputs, the reference, tolerances and workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dsl_kernels.kernels.row_softmax.problem import PROBLEM
from dsl_kernels.problems.base import Comparison
from dsl_kernels_lab.oracles import Oracle, Workload


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


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Per element a comparison, a subtraction, an exponential, an addition and a product."""
    return {"float32": 5.0 * dims["rows"] * dims["columns"]}


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=(
        Workload("tiny", "tiny", "default", {"rows": 3, "columns": 1024}),
        Workload("part_of_a_cta", "edge", "default", {"rows": 9, "columns": 1024}),
        Workload("thousand", "real", "default", {"rows": 4096, "columns": 1024}),
    ),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
)
