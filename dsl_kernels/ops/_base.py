"""What every op shares: operands in, a prepared launch out, with the host's work done once for a shape.

The first call of a shape validates the operands, selects and loads a variant, and sizes the workspace. Later
calls find the prepared launch by the operands' shapes, strides, dtypes and alignment, and launch it. Such a
call does not synchronise, reads nothing back and allocates only the outputs that the caller left out, so a
CUDA graph can capture it. Nothing here names an operand: the operation's problem declares its operands.
"""

from __future__ import annotations

import math
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
    """What the first call of a shape prepared for later ones.

    Attributes:
        bound: the facts of the caller's operands.
        dims: sizes by name: of the operands and of the launch.
        sms: the number of SMs that the launch was sized for.
        fixed: the launch's scalars, and constants for the inputs and unwanted outputs that the caller left
            out.
        outputs: templates of the outputs that the caller left out: one element, expanded to their shape.
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
# The number of SMs to size a call's launch for, by its key and stream, if the stream has fewer SMs than the
# GPU.
_fewer_sms: dict[tuple[Any, int], int] = {}
_launchers: dict[tuple[str, str, int | None], executors.Launcher] = {}
_loading: dict[tuple[str, str, int | None], threading.Lock] = {}
_constants: dict[tuple[Any, ...], list[torch.Tensor]] = {}


def clear() -> None:
    """Forget prepared launches; needed after the generated set or a tuned table changed."""
    _prepared.clear()
    _fewer_sms.clear()
    _launchers.clear()
    # Graphs may read those of a GPU.
    for key in [key for key in _constants if key[-1].type != "cuda"]:
        _constants.pop(key, None)
    registry.clear()


def _constant(spec: OperandSpec, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """A tensor in place of an input that the caller left out: the beginning of one that others share.

    That one grows to powers of two, and the smaller ones stay, as graphs hold their addresses. Inside a
    capture the tensor belongs to that graph, and the graph's replays fill it. Outside, this waits until the
    tensor is filled, as another stream may read it.
    """
    made, count = _constants.setdefault((spec.default, spec.torch_dtype, device), []), math.prod(shape)
    constant = made[-1] if made else None
    if constant is None or constant.numel() < count:
        if capturing(device):
            return filled(spec.label, shape, spec.default, spec.torch_dtype, device)
        room = 1 << max(count - 1, 0).bit_length()
        constant = filled(spec.label, (room,), spec.default, spec.torch_dtype, device)
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        made.append(constant)
    return constant[:count].view(shape)


def selections() -> list[registry.Selection]:
    """The selections of this process's prepared launches, in the order of their first calls."""
    return [prepared.selection for prepared in list(_prepared.values())]


def preload(selection: registry.Selection, device: torch.device, executor: str = "cuda") -> None:
    """Load a variant before its first call, and compile it if the cache lacks it.

    Args:
        selection: names the variant, from `registry.select`.
        device: where the variant will run.
        executor: "cuda", "interpreter" or "emulator".

    Raises:
        CompileError, ToolchainError: the variant cannot be compiled here.
        LaunchError: a CUDA graph is being captured on `device`.
    """
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
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
    """Launch `op` on a dict that has every input, output and scalar of its declaration.

    Args:
        op: the operation.
        form: a form of its operands.
        operands: changed in place: this fills in outputs and optional inputs that are None, the workspace and
            the launch's scalars.
        executor: "cuda", "interpreter" or "emulator"; CUDA tensors take "cuda" by default, CPU tensors need
            one.
        variant: the id of the variant to run; by default the registry selects one.
        arch: the architecture whose variants run if the executor is not "cuda"; "sm_90a" by default.
        workspace: scratch memory; by default one per thread, device and stream.
        static: dims that no operand has: `k` of an output left out, integer scalars that guards test.
        launch: launch dims, such as `splits`, in place of those that the policy gives.

    Returns:
        The selection that ran.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an operand does not fit, or an output overlaps another
            operand.
        LaunchError: the driver refused the launch, or a capture needs memory that was not there before it.
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
    except (DslKernelError, Warning):
        raise
    except Exception as error:
        require_given(problems.get(op).operands(form), operands)
        require_names(executor, variant, arch)
        raise _unread(op, error) from error
    on_gpu = device.type == "cuda"
    stream = torch._C._cuda_getCurrentRawStream(device.index) if on_gpu else 0
    sms = 0
    if _fewer_sms and (sms := _fewer_sms.get((key, stream), 0)):
        key = (*key, sms)
        known = _prepared.get(key)
    # A meta tensor has the same facts as a CPU tensor, but no executor takes it.
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
            # Else `bind` would read the sizes of these operands as the caller's.
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
    """A launcher for a call that writes no element, or whose input has no element to read; else None."""
    unwanted = [spec for spec in bound.missing if spec.default is not None]
    outputs = [spec for spec in bound.specs if spec.kind == "out" and spec not in unwanted]
    if all(0 in _extents(spec, bound.dims) for spec in outputs):
        return executors.NOTHING
    values = {spec.name: spec.of_nothing for spec in outputs if spec.of_nothing is not None}
    return executors.fills(values) if bound.unread and len(values) == len(outputs) else None


def _finish(
    key: tuple[Any, ...], prepared: _Prepared, operands: Mapping[str, Any], device: torch.device
) -> None:
    """Let the executor check the operands of a first call; keep the launch unless a graph is captured."""
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
