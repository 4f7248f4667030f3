"""What every op shares: operands in, a prepared launch out, with the host work done once a shape.

The first call of a shape validates it, selects a variant, loads it and sizes the workspace. Later calls look the
result up by the operands' shapes, strides, dtypes and alignment, and launch: no allocation but of outputs that the
caller leaves out, once the workspace has grown, no synchronisation, no device read, so a call can be captured in a
CUDA graph. Nothing here names an operand: what an operation takes is declared by its problem.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from .. import env, executors, problems, programs, registry
from ..arch import get_arch
from ..errors import DslKernelError, LaunchError, ResidencyError
from ..problems.base import OperandSpec
from ..problems.binding import Bound, bind, require_given
from ._dispatch import Unaddressed
from ._operands import identity, require_names
from .workspace import (
    PREPARED_LIMIT,
    Buffers,
    Workspace,
    capturing,
    filled,
    no_memory,
    own_workspace,
    require_workspace,
)

DEFAULT_CPU_ARCH = "sm_90a"


@dataclass(slots=True)
class _Prepared:
    """What the first call of a shape worked out.

    Attributes:
        bound: what the caller's operands say; `dims` has the launch's own beside theirs.
        sms: SMs that the launch was sized for.
        fixed: scalars of the launch, and constants for inputs, and for outputs of which nobody makes one, that the caller
            left out.
        outputs: templates of the outputs that the caller left out: memory of their shape without any of its own.
    """

    launch: executors.Launcher
    bound: Bound
    dims: dict[str, int]
    workspace: Buffers | None
    sms: int
    fixed: dict[str, Any]
    outputs: tuple[tuple[str, torch.Tensor], ...]
    selection: registry.Selection


_prepared: dict[tuple[Any, ...], _Prepared] = {}
# How many SMs to size a call's launch for, by its key and stream, where the stream has fewer than the GPU.
_fewer_sms: dict[tuple[Any, int], int] = {}
_launchers: dict[tuple[str, str, int | None], executors.Launcher] = {}
_loading: dict[tuple[str, str, int | None], threading.Lock] = {}
_constants: dict[tuple[Any, ...], torch.Tensor] = {}


def clear() -> None:
    """Forget prepared launches (after the generated set or a tuned table changed)."""
    _prepared.clear()
    _fewer_sms.clear()
    _launchers.clear()
    registry.clear()


def _constant(spec: OperandSpec, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """What stands for an input the caller left out, made once.

    Inside a capture it is made for that graph alone, where its filling replays. Outside it is complete before another
    stream can see it.
    """
    key = (spec.default, shape, spec.torch_dtype, device)
    held = _constants.get(key)
    if held is None:
        held = filled(spec.label, shape, spec.default, spec.torch_dtype, device)
        if capturing(device):
            return held
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        held = _constants.setdefault(key, held)
    return held


def selections() -> list[registry.Selection]:
    """What the prepared launches of this process run, in the order of their first call."""
    return [prepared.selection for prepared in list(_prepared.values())]


def preload(selection: registry.Selection, device: torch.device, executor: str = "cuda") -> None:
    """Compile or load a variant before its first call."""
    _launcher(executor, selection, device)


def run(
    op: str,
    form: str,
    operands: dict[str, Any],
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
    static: Mapping[str, int] | None = None,
    launch: Mapping[str, int] | None = None,
) -> registry.Selection:
    """Launch `op` on operands that hold every input, output and scalar of its declaration.

    Args:
        operands: the caller's own dict: outputs and optional inputs that are None, the workspace and the launch's
            scalars are filled in.
        static: dims that no operand gives (k of an output left out, integer scalars that guards look at).
        executor: "cuda", "interpreter" or "emulator"; by default cuda for CUDA tensors, else an error.
        variant: id of the variant to use.
        arch: architecture whose variants run when the executor is not a GPU; sm_90a by default.
        launch: overrides of launch dims such as splits.

    Returns:
        What ran.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an operand that does not fit, or an output that overlaps another.
    """
    if workspace is not None and workspace.__class__ is not Workspace:
        require_workspace(workspace)
    try:
        facts, device, places = identity(op, form)(operands)
        watched = _environment()
        key: tuple[Any, ...] = (
            facts, executor, variant, arch, watched, None if static is None else tuple(static.values()),
            None if launch is None else tuple(launch.items()),
        )  # fmt: skip
        known = _prepared.get(key)
    except DslKernelError:
        raise
    except Exception as error:
        require_given(problems.get(op).operands(form), operands)
        require_names(executor, variant, arch)
        raise _unread(op, error) from None
    on_gpu = device.type == "cuda"
    stream = torch._C._cuda_getCurrentRawStream(device.index) if on_gpu else 0
    sms = 0
    if _fewer_sms and (sms := _fewer_sms.get((key, stream), 0)):
        key = (*key, sms)
        known = _prepared.get(key)
    # A meta tensor gives the facts of one on the CPU; no executor takes it.
    if known is None or not (on_gpu or device.type == "cpu"):
        bound = bind(problems.get(op).operands(form), operands, static)
        prepared = _prepare(op, form, bound, executor, variant, arch, device, dict(launch or {}), sms)
    else:
        prepared = known
    for name, template in prepared.outputs:
        try:
            operands[name] = torch.empty_like(template, memory_format=torch.contiguous_format)
        except RuntimeError as error:
            raise no_memory(f"output {name}", template.shape, template.dtype, error) from None
    operands.update(prepared.fixed)
    every_value = watched[0] is not None and env.CHECK_VALUES.get()
    if not on_gpu or every_value or (places is not None and places not in prepared.bound.apart):
        prepared.bound.hold(operands, places, not on_gpu, every_value)
    if prepared.workspace is None:
        if known is None:
            _finish(key, prepared, operands, device)
        prepared.launch(operands, prepared.dims, stream)
        return prepared.selection
    scratch = workspace if workspace is not None else own_workspace(device, stream)
    with scratch._lock:
        operands.update((scratch._kept if workspace is None else scratch.views)(prepared.workspace))
        if known is None:
            _finish(key, prepared, operands, device)
        try:
            prepared.launch(operands, prepared.dims, stream)
        except ResidencyError:
            if launch or prepared.sms == 1:
                raise
            if len(_fewer_sms) >= PREPARED_LIMIT:
                _fewer_sms.clear()
            _fewer_sms[key[:-1] if sms else key, stream] = prepared.sms // 2
            # Their sizes would be taken for the caller's.
            operands.update(dict.fromkeys((*prepared.fixed, *(name for name, *_ in prepared.workspace.each))))
            return run(op, form, operands, executor, variant, arch, workspace, static)
        except BaseException:
            scratch.interrupted(prepared.workspace)
            raise
    return prepared.selection


_environment = env.watch(env.CHECK_VALUES, env.FORCE, env.EXECUTOR)


def _unread(op: str, error: Exception) -> Unaddressed:
    return Unaddressed(
        op,
        expected="tensors whose address, shape and strides can be read",
        got=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
        fix="pass plain torch tensors",
    )


def _prepare(
    op: str,
    form: str,
    bound: Bound,
    executor: str | None,
    variant: str | None,
    arch: str | None,
    device: torch.device,
    launch: dict[str, int],
    sms: int,
) -> _Prepared:
    require_names(executor, variant, arch)
    dims = {**bound.dims, **launch}
    name = executors.for_device(device.type, executor or env.EXECUTOR.get())
    if name == "cuda":
        call = registry.Call.on(executors.gpu_at_hand(device.index), op, form, dims)
    else:
        call = registry.Call(op, form, get_arch(arch or DEFAULT_CPU_ARCH).name, dims)
    if sms:
        call = replace(call, sms=sms)
    selection = registry.select(call, variant)
    dims = {**bound.dims, **selection.launch, **launch}
    program, knobs = programs.get(op), selection.variant.knobs
    own = program.own_operands(knobs)
    dims |= program.workspace_dims(knobs, get_arch(call.arch), dims)
    launcher = _without_kernel(bound) or _launcher(name, selection, device)
    buffers = tuple(
        (spec.name, _extents(spec, dims), spec.torch_dtype, spec.zeroed)
        for spec in own
        if spec.kind == "workspace"
    )
    outputs = tuple(
        (spec.name, filled(spec.label, (1,), None, spec.torch_dtype, device).expand(_extents(spec, dims)))
        for spec in bound.missing
        if spec.default is None
    )
    fixed: dict[str, Any] = {spec.name: dims[spec.name] for spec in own if spec.kind == "scalar"}
    fixed |= {s.name: _constant(s, _extents(s, dims), device) for s in bound.missing if s.default is not None}
    workspace = Buffers(device, buffers) if buffers else None
    return _Prepared(launcher, bound, dims, workspace, call.row.sms, fixed, outputs, selection)


def _without_kernel(bound: Bound) -> executors.Launcher | None:
    """What serves a call in which no element is written, or in which an input that is given has none to read."""
    unwanted = [spec for spec in bound.missing if spec.default is not None]
    outputs = [spec for spec in bound.specs if spec.kind == "out" and spec not in unwanted]
    if all(0 in _extents(spec, bound.dims) for spec in outputs):
        return executors.NOTHING
    values = {spec.name: spec.of_nothing for spec in outputs if spec.of_nothing is not None}
    return executors.fills(values) if bound.unread and len(values) == len(outputs) else None


def _finish(
    key: tuple[Any, ...], prepared: _Prepared, operands: Mapping[str, Any], device: torch.device
) -> None:
    """Let the executor look at the operands of a first call; then keep what was prepared, but for a capture's own."""
    prepared.launch.check(operands, prepared.dims)
    if capturing(device):
        return
    if len(_prepared) >= PREPARED_LIMIT:
        _prepared.clear()
    _prepared[key] = prepared


def _launcher(executor: str, selection: registry.Selection, device: torch.device) -> executors.Launcher:
    key = (selection.variant.id, executor, device.index)
    launcher = _launchers.get(key)
    if launcher is not None:
        return launcher
    if capturing(device):
        raise LaunchError(
            selection.variant.id,
            expected="a variant that was loaded before the capture began",
            got="its first call inside a CUDA graph capture",
            fix="call the op once with these sizes before capturing, or use dsl_kernels.warmup",
        )
    with _loading.setdefault(key, threading.Lock()):
        launcher = _launchers.get(key)
        if launcher is None:
            launcher = executors.get(executor).prepare(selection.variant, device.index)
            _launchers[key] = launcher
    return launcher


def _extents(spec: OperandSpec, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(extent if isinstance(extent, int) else dims[extent] for extent in spec.shape)
