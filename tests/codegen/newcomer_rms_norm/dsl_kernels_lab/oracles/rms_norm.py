"""RMSNorm of each row of a matrix: drawn inputs, the reference, tolerances and workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dsl_kernels.kernels.rms_norm.problem import PROBLEM
from dsl_kernels.problems.base import Comparison
from dsl_kernels_lab.oracles import Oracle, Workload


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    """Draw normal rows; the first is so small that eps dominates."""
    rows, dim = workload.params["rows"], workload.params["dim"]
    x = torch.randn(rows, dim, generator=generator)
    x[:1] *= 1e-3
    return {
        "x": x.bfloat16(),
        "weight": torch.randn(dim, generator=generator).bfloat16(),
        "eps": 1e-5,
    }


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """x divided by the root of its mean square, times the weight, in float64."""
    x = inputs["x"].double()
    scale = (x.square().mean(dim=1, keepdim=True) + inputs["eps"]).rsqrt()
    return {"y": x * scale * inputs["weight"].double()}


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """One rounding to bf16, half a unit in the last place, plus the error of the approximate root."""
    result = Comparison()
    error = (outputs["y"].double() - expected["y"]).abs() / expected["y"].abs().clamp_min(1e-30)
    result.require("y relative error", float(error.max()) if error.numel() else 0.0, 2**-8)
    return result


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Per element a square, an addition and two products."""
    return {"float32": 4.0 * dims["rows"] * dims["dim"]}


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=(
        Workload("tiny", "tiny", "default", {"rows": 3, "dim": 1024}),
        Workload("part_of_a_cta", "edge", "default", {"rows": 9, "dim": 1024}),
        Workload("model", "real", "default", {"rows": 4096, "dim": 4096}),
    ),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
)
