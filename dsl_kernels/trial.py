"""Run one variant on one workload and compare it with the reference; tests, the CLI and benchmarks all do it here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from . import executors, problems, programs, registry
from .arch import get_arch
from .problems.base import Comparison, Operand, Workload, bind_dims
from .variants import Variant


@dataclass
class Trial:
    """Operands of a launch, as they were after it, and what the comparison found."""

    operands: dict[str, Any]
    dims: dict[str, int]
    expected: dict[str, torch.Tensor]
    comparison: Comparison


def call_of(variant: Variant, workload: Workload, inputs: Mapping[str, Any]) -> registry.Call:
    """The registry's view of a workload."""
    return registry.Call(variant.op, workload.form, variant.arch, _dims(variant.op, workload, inputs))


def accepts(variant: Variant, workload: Workload, inputs: Mapping[str, Any]) -> str | None:
    """Why a variant cannot run a workload; None where it can."""
    return registry.refusal(call_of(variant, workload, inputs), variant)


def draw(op: str, workload: Workload, seed: int, device: str = "cpu") -> dict[str, Any]:
    """Fresh random inputs of a workload."""
    inputs = problems.get(op).make(workload, torch.Generator().manual_seed(seed))
    return {
        name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()
    }


def allocate(
    variant: Variant, workload: Workload, inputs: Mapping[str, Any], launch: Mapping[str, int] | None = None
) -> tuple[dict[str, Any], dict[str, int]]:
    """Operands with poisoned outputs and workspaces, and the value of every dim."""
    program, arch = programs.get(variant.op), get_arch(variant.arch)
    dims = _dims(variant.op, workload, inputs)
    if program.launch is not None:
        dims.update(program.launch(SimpleNamespace(**variant.knobs), dims, arch))
    dims.update(launch or {})
    device = next(value.device for value in inputs.values() if isinstance(value, torch.Tensor))
    operands = dict(inputs)
    for spec in program.problem.operands(workload.form):
        if spec.kind == "scalar":
            operands.setdefault(spec.name, dims.get(spec.name))
        elif spec.kind != "in":
            operands[spec.name] = poison(spec, dims, device)
    return operands, dims


def poison(spec: Operand, dims: Mapping[str, int], device: torch.device) -> torch.Tensor:
    """A tensor that no correct kernel would produce: NaN, or -77; zero where the kernel demands it."""
    tensor = torch.empty(
        [e if isinstance(e, int) else dims[e] for e in spec.shape], dtype=spec.torch_dtype, device=device
    )
    if spec.zeroed:
        return tensor.zero_()
    return tensor.fill_(float("nan") if tensor.dtype.is_floating_point else -77)


def run(
    variant: Variant,
    workload: Workload,
    executor: executors.Executor,
    *,
    seed: int = 0,
    device: str = "cpu",
    launch: Mapping[str, int] | None = None,
) -> Trial:
    """Draw, launch and compare.

    Args:
        launch: overrides of launch dims, e.g. {"splits": 3}.
    """
    problem = problems.get(variant.op)
    inputs = draw(variant.op, workload, seed, device)
    operands, dims = allocate(variant, workload, inputs, launch)
    stream = torch.cuda.current_stream().cuda_stream if device.startswith("cuda") else 0
    executor.prepare(variant)(operands, dims, stream)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    expected = problem.reference(workload.form, on_cpu(inputs))
    comparison = problem.compare(workload.form, inputs, on_cpu(operands), expected)
    for spec in problem.operands(workload.form):
        if spec.zeroed:
            comparison.demand(f"{spec.name} is left zero", not bool(operands[spec.name].any()))
    return Trial(operands, dims, expected, comparison)


def on_cpu(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in values.items()}


def _dims(op: str, workload: Workload, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Dims of the inputs and of the outputs that a caller would allocate for them."""
    static = {name: value for name, value in inputs.items() if isinstance(value, int)}
    dims = bind_dims(problems.get(op).operands(workload.form), inputs, static)
    if op == "lightning_indexer":
        dims["stride"] = -(-dims["skv"] // 4) * 4 if workload.form == "prefill" else dims["max_pages"] * 64
    return dims
