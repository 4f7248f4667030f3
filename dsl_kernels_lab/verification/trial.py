"""Run one variant on one workload and compare it with the reference; for tests, the CLI and benchmarks."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from dsl_kernels import executors, policies, programs, registry
from dsl_kernels.arch import get_arch, gpu_row
from dsl_kernels.arguments import checked, require_known, require_range, shown
from dsl_kernels.errors import ArgumentTypeError, InvalidArgumentError
from dsl_kernels.problems.base import Comparison, OperandSpec
from dsl_kernels.problems.binding import bind
from dsl_kernels.variants import Variant

from .. import oracles
from ..arguments import SEEDS, require_device, require_memory
from ..oracles import Workload


@dataclass
class Trial:
    """Operands after a launch, the reference's results, and the comparison."""

    operands: dict[str, Any]
    dims: dict[str, int]
    expected: dict[str, torch.Tensor]
    comparison: Comparison


@checked
def workloads(variant: Variant, *tiers: str, fit: bool = True) -> list[Workload]:
    """The workloads of a variant's op in these tiers, adapted to the form and the extents that its knobs fix.

    Thus each edge case is tried on every variant; with `fit` off, only on variants that take it unchanged. An
    adapted workload's name says what was changed. Workloads that become equal are listed once, and those that
    the variant cannot take are left out. The reference does not run.
    """
    distinct: dict[tuple[str, str], Workload] = {}
    for workload in oracles.get(variant.op).workloads:
        if workload.tier not in tiers:
            continue
        wanted = fitted(variant, workload) if fit else workload
        key = (wanted.form, repr(sorted(wanted.params.items())))
        if key not in distinct and _refusal(variant, wanted, _cached_dims(variant.op, wanted)) is None:
            distinct[key] = wanted
    return list(distinct.values())


@checked
def fitted(variant: Variant, workload: Workload) -> Workload:
    """A workload with the form and the extents that a variant's knobs fix; its name says what was changed."""
    program = programs.get(variant.op)
    params, form, name = dict(workload.params), workload.form, workload.name
    wanted = program.form(variant.knobs, form)
    if oracles.get(variant.op).forms_share_workloads(form, wanted):
        form = wanted
    # A parameter whose name begins with a form's name belongs to that form only.
    others = [name for name in program.problem.forms if name != form]
    params = {
        key: value for key, value in params.items() if not key.startswith(tuple(f"{o}_" for o in others))
    }
    extents = {extent for spec in program.problem.operands(form) for extent in spec.shape}
    for knob in program.knobs:
        fixed = variant.knobs.get(knob.name)
        # A knob whose value is a word fixes no extent.
        if knob.name in extents & params.keys() and isinstance(fixed, int) and fixed != params[knob.name]:
            params[knob.name] = fixed
            name += f"_{knob.spell(fixed)}"
    if form != workload.form:
        name += f"_{form}"
    return replace(workload, name=name, form=form, params=params)


_inputs: dict[tuple[str, str], dict[str, Any]] = {}
_dims: dict[tuple[str, str], dict[str, int]] = {}
_examples: dict[tuple[str, str], Example] = {}


def _cached_inputs(op: str, workload: Workload) -> dict[str, Any]:
    key = (op, workload.name)
    if key not in _inputs:
        _inputs[key] = draw(op, workload, seed=zlib.crc32(workload.name.encode()))
    return _inputs[key]


def _cached_dims(op: str, workload: Workload) -> dict[str, int]:
    """Dims of a draw, cached because hundreds of variants ask for them."""
    key = (op, workload.name)
    if key not in _dims:
        _dims[key] = dims_of(op, workload, _cached_inputs(op, workload))
    return _dims[key]


@checked
def cached_example(op: str, workload: Workload) -> Example:
    """One draw and one reference for all variants of an operation, cached for the life of the process."""
    key = (op, workload.name)
    if key not in _examples:
        _examples[key] = _expected(op, workload, _cached_inputs(op, workload))
    return _examples[key]


@checked
def call_of(variant: Variant, workload: Workload, inputs: Mapping[str, Any]) -> registry.Call:
    """The registry's view of a workload."""
    return registry.Call(variant.op, workload.form, variant.arch, dims_of(variant.op, workload, inputs))


@checked
def accepts(
    variant: Variant, workload: Workload, inputs: Mapping[str, Any], launch: Mapping[str, int] | None = None
) -> str | None:
    """Why a variant cannot run a workload (with these launch dims fixed); None if it can."""
    return _refusal(variant, workload, {**dims_of(variant.op, workload, inputs), **(launch or {})})


def _refusal(variant: Variant, workload: Workload, dims: Mapping[str, int]) -> str | None:
    call = registry.Call(variant.op, workload.form, variant.arch, dims)
    return registry.refusal(call, variant, named=variant.id)


@checked
@dataclass(frozen=True)
class Example:
    """Random inputs of a workload, on the CPU, and the results expected of every variant."""

    inputs: dict[str, Any]
    expected: dict[str, torch.Tensor]


@checked
def make_example(op: str, workload: Workload, seed: int) -> Example:
    """Draw the inputs of a workload and run the reference on them."""
    return _expected(op, workload, draw(op, workload, seed))


def _expected(op: str, workload: Workload, inputs: dict[str, Any]) -> Example:
    return Example(inputs, oracles.get(op).reference(workload.form, inputs))


@checked
def draw(op: str, workload: Workload, seed: int) -> dict[str, Any]:
    """Fresh random inputs of a workload, on the CPU."""
    require_range("seed", seed, *SEEDS)
    return oracles.get(op).make(workload, torch.Generator().manual_seed(int(seed)))


@checked
def to_device(values: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The values with their tensors on `device`; a strided view of rows keeps its strides."""
    require_device("device", device)
    return {
        name: _moved(value, device) if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def _moved(tensor: torch.Tensor, device: str) -> torch.Tensor:
    whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
    if device == "cpu" or (tensor.is_contiguous() and whole):
        return tensor.to(device)
    # .to() would pack the rows and drop what peers have around them: copy all, and take the same view of it.
    span = torch.as_strided(tensor, (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return torch.as_strided(span.to(device), tensor.shape, tensor.stride(), tensor.storage_offset())


@checked
def allocate(
    variant: Variant, workload: Workload, inputs: Mapping[str, Any], launch: Mapping[str, int] | None = None
) -> tuple[dict[str, Any], dict[str, int]]:
    """Operands, with poisoned outputs and workspaces unless the inputs have them, and all dims."""
    program, arch = programs.get(variant.op), get_arch(variant.arch)
    dims = dims_of(variant.op, workload, inputs)
    device = next(value.device for value in inputs.values() if isinstance(value, torch.Tensor))
    gpu = executors.gpu_at_hand(device.index) if device.type == "cuda" else gpu_row(arch.name)
    fixed = {**dims, **(launch or {})}
    computed = policies.get(variant.op).launch(SimpleNamespace(**variant.knobs), fixed, gpu).dims
    for name, value in (launch or {}).items():
        require_known("launch", name, computed, "launch dim")
        require_range(name, value, int(name not in ("all_resident", "early")), 2**31 - 1)
    dims.update({**computed, **(launch or {})})
    dims.update(program.workspace_dims(variant.knobs, arch, dims))
    operands = dict(inputs)
    for spec in (*program.problem.operands(workload.form), *program.own_operands(variant.knobs)):
        if spec.kind == "scalar":
            operands.setdefault(spec.name, dims.get(spec.name))
        elif spec.kind != "in":
            given = inputs.get(spec.name)
            operands[spec.name] = poison(spec, dims, device) if given is None else given.clone()
    return operands, dims


@checked
def poison(spec: OperandSpec, dims: Mapping[str, int], device: torch.device) -> torch.Tensor:
    """A tensor of values that no correct kernel produces: NaN or -77, or zeros if the kernel needs them."""
    if missing := [e for e in spec.shape if isinstance(e, str) and e not in dims]:
        raise InvalidArgumentError(
            "dims",
            expected=f"a size for each of {', '.join(map(str, spec.shape))}",
            got=f"no {missing[0]}",
            fix="add it",
        )
    shape = [e if isinstance(e, int) else dims[e] for e in spec.shape]
    for extent in shape:
        require_range(f"extent of {spec.name}", extent, 0, 2**40)
    place = require_device("device", device)
    require_memory(spec.name, math.prod(shape) * spec.torch_dtype.itemsize, place, "choose smaller sizes")
    tensor = torch.empty(shape, dtype=spec.torch_dtype, device=place)
    if spec.zeroed:
        return tensor.zero_()
    return tensor.fill_(float("nan") if tensor.dtype.is_floating_point else -77)


@checked
def run(
    variant: Variant,
    workload: Workload,
    executor: executors.Executor,
    *,
    seed: int = 0,
    device: str = "cpu",
    launch: Mapping[str, int] | None = None,
    example: Example | None = None,
) -> Trial:
    """Draw, launch and compare.

    Args:
        launch: overrides of launch dims, e.g. {"splits": 3}.
        example: inputs and expected results made earlier, to try several variants on one draw.
    """
    oracle = oracles.get(variant.op)
    example = example if example is not None else make_example(variant.op, workload, seed)
    inputs = to_device(example.inputs, device)
    operands, dims = allocate(variant, workload, inputs, launch)
    stream = torch.cuda.current_stream().cuda_stream if device.startswith("cuda") else 0
    executor.prepare(variant)(operands, dims, stream)
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    comparison = oracle.compare(workload.form, example.inputs, on_cpu(operands), example.expected)
    for spec in programs.get(variant.op).own_operands(variant.knobs):
        if spec.zeroed:
            comparison.demand(f"{spec.name} is left zero", not bool(operands[spec.name].any()))
    return Trial(operands, dims, example.expected, comparison)


@checked
def on_cpu(values: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors among the values on the CPU."""
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in values.items()}


@checked
def dims_of(op: str, workload: Workload, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Dims of the inputs, and of the outputs that a caller would allocate for them."""
    oracle = oracles.get(op)
    operands = oracle.operands(workload.form)
    for spec in operands:
        if spec.kind == "in" and spec.name not in inputs:
            raise InvalidArgumentError(
                "inputs",
                expected=f"every operand of {op} {workload.form}",
                got=f"no {spec.name}",
                fix="draw them with trial.draw",
            )
        if spec.kind == "scalar" and not isinstance(inputs.get(spec.name, 0), int | float):
            raise ArgumentTypeError(
                spec.name,
                expected="a number",
                got=shown(inputs[spec.name]),
                fix="convert it with int(...) or float(...)",
            )
    static = {name: value for name, value in inputs.items() if isinstance(value, int)}
    return bind(operands, inputs, static).dims
