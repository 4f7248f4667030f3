"""What every op shares: operands in, a prepared launch out, with the host work done once a shape.

The first call of a shape validates it, selects a variant, loads it and sizes the workspace. Later calls look the
result up by the operands' shapes, strides, dtypes and alignment, and launch: no allocation but of outputs that the
caller leaves out, once the workspace has grown, no synchronisation, no device read, so a call can be captured in a
CUDA graph. Nothing here names an operand: what an operation takes is declared by its problem.
"""

from __future__ import annotations

import math
import operator
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Real
from typing import Any

import torch

from .. import env, executors, problems, registry
from ..arch import arch_for_capability, get_arch
from ..errors import ArgumentTypeError, DslKernelError, InvalidArgumentError, LaunchError
from ..problems.base import Operand, bind_dims, check_values, require_dense
from ..runtime.launch import capture_id

INT32_MAX = 2**31 - 1
DEFAULT_CPU_ARCH = "sm_90a"
# Counters that captures share out, in elements: 4 MiB.
SLAB = 1 << 20
# Shapes whose launches stay prepared; prompts of every length would otherwise add up for as long as the process lives.
PREPARED_LIMIT = 4096


@dataclass(frozen=True, eq=False, slots=True)
class _Scratch:
    """The workspace operands of one prepared launch; found by identity, which costs nothing to hash."""

    device: torch.device
    buffers: tuple[tuple[str, tuple[int, ...], torch.dtype, bool], ...]


class Workspace:
    """Scratch memory that ops share, grown on demand and kept.

    Threads may share one: a call holds it until its launch is enqueued, a step of `dsl_kernels.dsa` until the last of
    its launches is, and a launch on another stream than the one before waits for that stream. Graphs that may overlap
    in time need a workspace each, and so do a graph and other work beside it: a replay waits for nothing.

    A launch captured in a CUDA graph keeps using the addresses it saw, so once a capture has used the workspace,
    buffers that are replaced by larger ones stay alive; before, they are given back. Without a workspace, ops keep
    their own per thread, device and stream, and take what a capture needs from the graph's own pool, its counters from
    memory that is set aside.

    Args:
        transient: owned by one capture: its buffers may be allocated inside the graph. What has to be zero is taken
            from memory outside the graph's pool, where a launch leaves zeros for the next one; with none left, every
            replay zeroes it.
    """

    def __init__(self, *, transient: bool = False) -> None:
        self._transient = transient
        self._captured = False
        self._lock = threading.RLock()
        self._streams: dict[int | None, torch.cuda.Stream] = {}
        self._buffers: dict[tuple[str, torch.device], torch.Tensor] = {}
        self._retired: list[torch.Tensor] = []
        self._views: dict[_Scratch, dict[str, torch.Tensor]] = {}

    def held(self) -> AbstractContextManager[Any]:
        """Keep other threads out for the length of a `with`: for launches that hand data on in one buffer."""
        return self._lock

    def get(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, zeroed: bool
    ) -> torch.Tensor:
        """A contiguous tensor of this shape; a zeroed one is zero unless a kernel was interrupted.

        Raises:
            LaunchError: the buffer would have to grow inside a capture, which would record its filling and not do it.
            InvalidArgumentError: there is no such amount of memory.
        """
        count = math.prod(shape)
        with self._lock:
            self._enter(device)
            held = self._buffers.get((name, device))
            if held is None or held.numel() < count or held.dtype != dtype:
                held = self._grow(name, held, count, dtype, device, zeroed)
            return held[:count].view(shape)

    def _grow(
        self,
        name: str,
        held: torch.Tensor | None,
        count: int,
        dtype: torch.dtype,
        device: torch.device,
        zeroed: bool,
    ) -> torch.Tensor:
        if not self._transient and capturing(device):
            raise LaunchError(
                f"workspace buffer {name}",
                expected=f"room for {count} elements before the capture began",
                got="a first use of these sizes inside a CUDA graph capture",
                fix="run once with this workspace and these sizes before capturing",
            )
        kept = _zeros.take(name, count, dtype, device) if zeroed and self._transient else None
        grown = (
            _filled(f"workspace buffer {name}", (max(count, 1),), 0.0 if zeroed else None, dtype, device)
            if kept is None
            else kept
        )
        if held is not None:
            self._release(held)
        self._buffers[(name, device)] = grown
        self._views.clear()
        return grown

    def _release(self, held: torch.Tensor) -> None:
        if self._captured:
            self._retired.append(held)
        elif held.is_cuda:
            # Its memory belongs to the stream that it was allocated on, and may still be in use on this one.
            held.record_stream(torch.cuda.current_stream(held.device))

    def _enter(self, device: torch.device) -> None:
        """Before a use: note a capture; else wait for the stream that used the buffers last, where it is another."""
        if capturing(device):
            self._captured = True
            return
        if device.type != "cuda":
            return
        last = self._streams.get(device.index)
        if last is not None and last.cuda_stream == _stream_of(device):
            return
        here = self._streams[device.index] = torch.cuda.current_stream(device)
        if last is None:
            return
        here.wait_stream(last)
        for (_, place), held in self._buffers.items():
            if place == device:
                held.record_stream(here)

    def views(self, wanted: _Scratch) -> dict[str, torch.Tensor]:
        """Tensors for a launch's workspace operands, kept until a buffer has to grow."""
        self._enter(wanted.device)
        return self._kept(wanted)

    def _kept(self, wanted: _Scratch) -> dict[str, torch.Tensor]:
        held = self._views.get(wanted)
        if held is None:
            held = {
                name: self.get(name, shape, dtype, wanted.device, zeroed)
                for name, shape, dtype, zeroed in wanted.buffers
            }
            if len(self._views) >= PREPARED_LIMIT:
                self._views.clear()
            self._views[wanted] = held
        return held

    def interrupted(self, wanted: _Scratch) -> None:
        """Drop the zeroed buffers of a launch that raised: it may have left them otherwise."""
        with self._lock:
            for name, _, _, zeroed in wanted.buffers:
                held = self._buffers.pop((name, wanted.device), None) if zeroed else None
                if held is not None:
                    self._release(held)
            self._views.clear()

    @property
    def bytes(self) -> int:
        """Memory held now."""
        with self._lock:
            held = [*self._buffers.values(), *self._retired]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


@dataclass(slots=True)
class _Prepared:
    """What the first call of a shape worked out.

    Attributes:
        fixed: scalars of the launch, and constants for inputs that the caller left out.
        outputs: templates of the outputs that the caller left out: memory of their shape without any of its own.
        apart: addresses of operands whose outputs overlap nothing.
    """

    launch: executors.Launcher
    dims: dict[str, int]
    workspace: _Scratch | None
    fixed: dict[str, Any]
    outputs: tuple[tuple[str, torch.Tensor], ...]
    selection: registry.Selection
    apart: set[tuple[int, ...]] = field(default_factory=set)


class _Own(threading.local):
    """This thread's workspaces by device and stream; they go when the thread ends."""

    def __init__(self) -> None:
        self.workspaces: dict[tuple[int | None, int], Workspace] = {}


class _Zeros:
    """Zeros outside every graph's pool, for the counters of captured launches.

    Memory of the pool would be zeroed by a kernel of its own before each launch of every replay. The share of a
    capture and stream stays its own: nothing tells when a graph is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: dict[int | None, list[torch.Tensor]] = {}
        self._left: dict[int | None, int] = {}
        self._shares: dict[tuple[int | None, int], tuple[int, dict[str, torch.Tensor]]] = {}

    def refill(self, device: torch.device) -> None:
        """Outside a capture: see to it that the next ones find some."""
        if self._left.get(device.index, 0) >= SLAB // 2 or device.type != "cuda":
            return
        with self._lock:
            fresh = _filled("counters of captured launches", (SLAB,), 0, torch.int32, device)
            # Another stream may use it first.
            torch.cuda.current_stream(device).synchronize()
            self._slabs.setdefault(device.index, []).append(fresh)
            self._left[device.index] = SLAB

    def take(self, name: str, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
        """Zeros of the present capture and stream, the same ones for each of its launches; None where none are left."""
        if dtype != torch.int32 or device.type != "cuda":
            return None
        stream = _stream_of(device)
        with self._lock:
            capture, shares = self._shares.get((device.index, stream), (-1, {}))
            if capture != (present := capture_id(stream)):
                shares = {}
                self._shares[device.index, stream] = present, shares
            held = shares.get(name)
            if held is not None and held.numel() >= count:
                return held
            # Whole sectors, so that no two captures' counters share one.
            rounded, left = -(-max(count, 1) // 8) * 8, self._left.get(device.index, 0)
            if rounded > left:
                return None
            first = SLAB - left
            self._left[device.index] = left - rounded
            shares[name] = self._slabs[device.index][-1][first : first + rounded]
            return shares[name]


_prepared: dict[tuple[Any, ...], _Prepared] = {}
_launchers: dict[tuple[str, str, int | None], executors.Launcher] = {}
_loading: dict[tuple[str, str, int | None], threading.Lock] = {}
_constants: dict[tuple[Any, ...], torch.Tensor] = {}
_warned: set[str] = set()
_own = _Own()
_zeros = _Zeros()


def clear() -> None:
    """Forget prepared launches (after the generated set or a tuned table changed)."""
    _prepared.clear()
    _launchers.clear()
    registry.clear()


def capturing(device: torch.device) -> bool:
    """Whether work on `device` is being recorded into a CUDA graph instead of executed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _filled(
    name: str, shape: tuple[int, ...], value: float | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """New memory that outlives the call, whatever mode the caller is in."""
    try:
        with torch.inference_mode(False):
            if value is None:
                return torch.empty(shape, dtype=dtype, device=device)
            return torch.full(shape, value, dtype=dtype, device=device)
    except (RuntimeError, OverflowError) as error:
        raise no_memory(name, shape, dtype, error) from None


def no_memory(name: str, shape: tuple[int, ...], dtype: torch.dtype, error: Exception) -> Exception:
    """What to raise for an allocation that failed."""
    if isinstance(error, torch.OutOfMemoryError):
        # What a caller that manages memory catches to make room.
        return error
    return InvalidArgumentError(
        name,
        expected=f"memory for {math.prod(shape)} elements of {dtype}",
        got=str(error).partition("\n")[0],
        fix="pass a smaller problem",
    )


def _constant(spec: Operand, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """What stands for an input the caller left out, made once.

    Inside a capture it is made for that graph alone, where its filling replays. Outside it is complete before another
    stream can see it.
    """
    key = (spec.default, shape, spec.torch_dtype, device)
    held = _constants.get(key)
    if held is None:
        held = _filled(spec.label, shape, spec.default, spec.torch_dtype, device)
        if capturing(device):
            return held
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()
        held = _constants.setdefault(key, held)
    return held


def own_workspace(device: torch.device) -> Workspace:
    """What the ops use without an explicit workspace: one per thread, device and stream, or one of the capture's.

    It is never one that a capture shares with other work: it ends with its thread, and a graph may live longer.
    """
    return _own_workspace(device, _stream_of(device))


def _own_workspace(device: torch.device, stream: int) -> Workspace:
    if capturing(device):
        return Workspace(transient=True)
    _zeros.refill(device)
    held = _own.workspaces.get((device.index, stream))
    if held is None:
        held = _own.workspaces[(device.index, stream)] = Workspace()
    return held


def _stream_of(device: torch.device) -> int:
    """Address of the present stream of a device."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """An integer argument as a Python int.

    Raises:
        ArgumentTypeError: not an integer.
        InvalidArgumentError: outside low to high.
    """
    if type(value) is not int:
        try:
            value = int(operator.index(value))
        except Exception:
            raise ArgumentTypeError(
                name, expected="an integer", got=f"{type(value).__name__}", fix="convert it with int()"
            ) from None
    if (low is not None and value < low) or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"{low} to {high}"
        # Python refuses to spell integers of thousands of digits.
        got = str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
        raise InvalidArgumentError(name, expected=limits, got=got, fix=f"pass {limits}")
    return int(value)


def finite(name: str, value: Any) -> float:
    """A real argument as a Python float.

    Raises:
        ArgumentTypeError: not a real number.
        InvalidArgumentError: infinite, or not a number.
    """
    if not isinstance(value, Real):
        raise ArgumentTypeError(
            name, expected="a number", got=type(value).__name__, fix="convert it with float()"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidArgumentError(name, expected="a finite number", got=str(number), fix="correct it")
    return number


def require_workspace(workspace: Any) -> None:
    """Refuse what is neither None nor a `Workspace`.

    Raises:
        ArgumentTypeError: it is something else.
    """
    if workspace is not None and not isinstance(workspace, Workspace):
        raise ArgumentTypeError(
            "workspace",
            expected="a dsl_kernels.ops.Workspace or None",
            got=type(workspace).__name__,
            fix="pass Workspace(), or leave it out",
        )


@lru_cache(maxsize=64)
def device_facts(index: int) -> tuple[str, str]:
    """(architecture, GPU name) of a CUDA device.

    Raises:
        UnsupportedArchError: nothing is generated for that GPU.
    """
    major, minor = torch.cuda.get_device_capability(index)
    return arch_for_capability(major, minor).name, torch.cuda.get_device_name(index)


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
    *,
    static: Mapping[str, int],
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
    launch: Mapping[str, int] | None = None,
) -> registry.Selection:
    """Launch `op` on operands that hold every input, output and scalar of its declaration.

    Args:
        operands: the caller's own dict: outputs and optional inputs that are None, the workspace and the launch's
            scalars are filled in.
        static: dims that no tensor shape gives (k of an output left out, integer scalars that guards look at).
        executor: "cuda", "interpreter" or "emulator"; by default cuda for CUDA tensors, else an error.
        variant: id of the variant to use.
        arch: architecture whose variants run when the executor is not a GPU; sm_90a by default.
        launch: overrides of launch dims such as splits.

    Returns:
        What ran.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an operand that does not fit, or an output that overlaps another.
    """
    try:
        identity, device, places = _identity(op, form)(operands)
        watched = _environment()
        key = (
            identity, executor, variant, arch, watched, tuple(static.values()),
            None if launch is None else tuple(launch.items()),
        )  # fmt: skip
        known = _prepared.get(key)
    except Exception as error:
        raise _refusal(op, form, operands, executor, variant, arch, error) from None
    on_gpu = device.type == "cuda"
    first = known is None or not (on_gpu or _on_cpu(operands))
    if known is None or first:
        prepared = _prepare(op, form, operands, static, executor, variant, arch, device, dict(launch or {}))
    else:
        prepared = known
    if places is not None and places not in prepared.apart:
        _require_apart(problems.get(op).operands(form), operands)
        if len(prepared.apart) >= PREPARED_LIMIT:
            prepared.apart.clear()
        prepared.apart.add(places)
    for name, template in prepared.outputs:
        try:
            operands[name] = torch.empty_like(template, memory_format=torch.contiguous_format)
        except RuntimeError as error:
            raise no_memory(f"output {name}", template.shape, template.dtype, error) from None
    operands.update(prepared.fixed)
    if not on_gpu or (watched[0] is not None and env.CHECK_VALUES.get()):
        specs, all_of_them = problems.get(op).operands(form), env.CHECK_VALUES.get()
        check_values(specs, operands, prepared.dims, only_undefined=not all_of_them)
    stream = torch._C._cuda_getCurrentRawStream(device.index) if on_gpu else 0
    if prepared.workspace is None:
        if first:
            _finish(key, prepared, operands, device)
        prepared.launch(operands, prepared.dims, stream)
        return prepared.selection
    scratch = workspace if workspace is not None else _own_workspace(device, stream)
    with scratch._lock:
        operands.update((scratch._kept if workspace is None else scratch.views)(prepared.workspace))
        if first:
            _finish(key, prepared, operands, device)
        try:
            prepared.launch(operands, prepared.dims, stream)
        except BaseException:
            scratch.interrupted(prepared.workspace)
            raise
    return prepared.selection


_environment = env.watch(env.CHECK_VALUES, env.FORCE, env.EXECUTOR)


@lru_cache(maxsize=64)
def _identity(
    op: str, form: str
) -> Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], torch.device, tuple[int, ...] | None]]:
    """A function, written out for the operands of a problem's form, of what a prepared launch depends on.

    That is every tensor's shape, dtype, device, strides (or that it is contiguous) and alignment to 16 bytes; beside
    it come the device of the first, and every address where the caller gave an output. It runs at every call, where a
    loop over the declaration would take microseconds.
    """
    specs = [s for s in problems.get(op).operands(form) if s.kind in ("in", "out")]
    lines, parts = [], [repr(op), repr(form)]
    for i, spec in enumerate(specs):
        layout = "is_contiguous()" if spec.layout is None else "stride()"
        facts = f"t{i}.shape, t{i}.dtype, t{i}.get_device(), t{i}.{layout}"
        lines.append(f"t{i} = o[{spec.name!r}]")
        if _optional(spec):
            lines += [f"if t{i} is None:", f"    p{i} = 0; f{i} = None", "else:"]
            lines.append(f"    p{i} = t{i}.data_ptr(); f{i} = ({facts})")
            parts.append(f"f{i}")
        else:
            lines.append(f"p{i} = t{i}.data_ptr()")
            parts.append(facts)
    each = ", ".join(f"p{i} & 15" for i in range(len(specs)))
    lines.append(f"low = ({' | '.join(f'p{i}' for i in range(len(specs)))}) & 15")
    given = " or ".join(f"p{i}" for i, spec in enumerate(specs) if spec.kind == "out")
    places = "".join(f"p{i}, " for i in range(len(specs)))
    learnt = [
        f"t{i}.requires_grad"
        for i, s in enumerate(specs)
        if s.kind == "in" and not _optional(s) and s.torch_dtype.is_floating_point
    ]
    lines += [f"if grad_enabled() and ({' or '.join(learnt)}):", f"    warn_once({op!r})"] if learnt else []
    lines.append(f"return ({', '.join(parts)}, low and ({each})), t0.device, ({places}) if {given} else None")
    scope: dict[str, Any] = {"grad_enabled": torch.is_grad_enabled, "warn_once": _warn_of_no_backward}
    exec("def identity(o):\n" + "\n".join(f"    {line}" for line in lines), scope)
    found: Callable[[Mapping[str, Any]], Any] = scope["identity"]
    return found


def _optional(spec: Operand) -> bool:
    return spec.kind == "out" or spec.default is not None


def _warn_of_no_backward(op: str) -> None:
    if op not in _warned:
        _warned.add(op)
        warnings.warn(
            f"dsl_kernels.{op}: an input requires a gradient, but there is no backward: the outputs have none. "
            "Call it under torch.no_grad() to say that none is wanted",
            stacklevel=5,
        )


def _on_cpu(operands: Mapping[str, Any]) -> bool:
    return all(value.is_cpu for value in operands.values() if isinstance(value, torch.Tensor))


def _refusal(
    op: str,
    form: str,
    operands: Mapping[str, Any],
    executor: Any,
    variant: Any,
    arch: Any,
    error: Exception,
) -> Exception:
    """The typed error for arguments that could not even be looked at."""
    if isinstance(error, DslKernelError):
        return error
    try:
        _require_operands(problems.get(op).operands(form), operands)
        _require_names(executor, variant, arch)
    except DslKernelError as found:
        return found
    return InvalidArgumentError(
        op,
        expected="tensors whose address, shape and strides can be read",
        got=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
        fix="pass plain torch tensors",
    )


def _require_operands(specs: tuple[Operand, ...], operands: Mapping[str, Any]) -> None:
    for spec in specs:
        value = operands.get(spec.name)
        if spec.kind in ("in", "out") and not (value is None and _optional(spec)):
            require_dense(spec.label, value)


def _require_names(executor: Any, variant: Any, arch: Any) -> None:
    for name, value in (("executor", executor), ("variant", variant), ("arch", arch)):
        if value is not None and not isinstance(value, str):
            raise ArgumentTypeError(
                name, expected="a name or None", got=type(value).__name__, fix="pass a string"
            )


def _require_apart(specs: tuple[Operand, ...], operands: Mapping[str, Any]) -> None:
    """Refuse outputs over other operands.

    Raises:
        InvalidArgumentError: an output lies where another operand does.
    """
    spans: list[tuple[Operand, int, int]] = []
    for spec in specs:
        tensor = operands.get(spec.name)
        if spec.kind not in ("in", "out") or tensor is None or not tensor.numel():
            continue
        last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        begin = tensor.data_ptr()
        spans.append((spec, begin, begin + (last + 1) * tensor.element_size()))
    for out, begin, end in spans:
        for other, first, last in spans:
            if out.kind == "out" and other is not out and begin < last and first < end:
                raise InvalidArgumentError(
                    out.label,
                    expected="memory of its own",
                    got=f"an overlap with {other.label}",
                    fix="pass another tensor, or leave it out",
                )


def _prepare(
    op: str,
    form: str,
    operands: Mapping[str, Any],
    static: Mapping[str, int],
    executor: str | None,
    variant: str | None,
    arch: str | None,
    device: torch.device,
    launch: dict[str, int],
) -> _Prepared:
    specs = problems.get(op).operands(form)
    _require_operands(specs, operands)
    _require_names(executor, variant, arch)
    dims = bind_dims(specs, operands, static)
    name = executors.for_device(device.type, executor or env.EXECUTOR.get())
    if name == "cuda":
        arch_name, gpu = device_facts(device.index)
    else:
        arch_name, gpu = get_arch(arch or DEFAULT_CPU_ARCH).name, ""
    call = registry.Call(op, form, arch_name, {**dims, **launch}, gpu)
    selection = registry.select(call, variant)
    dims = {**dims, **selection.launch, **launch}
    launcher = _launcher(name, selection, device)
    missing = [s for s in specs if s.kind in ("in", "out") and operands[s.name] is None]
    buffers = tuple(
        (spec.name, _extents(spec, dims), spec.torch_dtype, spec.zeroed)
        for spec in specs
        if spec.kind == "workspace"
    )
    outputs = tuple(
        (spec.name, _filled(spec.label, (1,), None, spec.torch_dtype, device).expand(_extents(spec, dims)))
        for spec in missing
        if spec.kind == "out"
    )
    fixed: dict[str, Any] = {
        spec.name: dims[spec.name]
        for spec in specs
        if spec.kind == "scalar" and spec.name in selection.launch
    }
    fixed |= {s.name: _constant(s, _extents(s, dims), device) for s in missing if s.kind == "in"}
    workspace = _Scratch(device, buffers) if buffers else None
    return _Prepared(launcher, dims, workspace, fixed, outputs, selection)


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


def _extents(spec: Operand, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(extent if isinstance(extent, int) else dims[extent] for extent in spec.shape)
