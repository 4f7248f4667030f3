"""What every op shares: operands in, a prepared launch out, with the host work done once a shape.

The first call of a shape validates it, selects a variant, loads it and sizes the workspace. Later calls look the
result up by the operands' shapes, strides, dtypes and alignment, and launch: no allocation once the workspace has
grown, no synchronisation, no device read, so a call can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from .. import env, executors, problems, registry
from ..arch import arch_for_capability, get_arch
from ..errors import ArgumentTypeError, InvalidArgumentError, LaunchError
from ..problems.base import Operand, bind_dims

DEFAULT_CPU_ARCH = "sm_90a"
# Shapes whose launches stay prepared; prompts of every length would otherwise add up for as long as the process lives.
PREPARED_LIMIT = 4096


@dataclass(frozen=True, eq=False, slots=True)
class _Scratch:
    """The workspace operands of one prepared launch; found by identity, which costs nothing to hash."""

    device: torch.device
    buffers: tuple[tuple[str, tuple[int, ...], torch.dtype, bool], ...]


class Workspace:
    """Scratch memory that ops share, grown on demand and kept.

    A launch captured in a CUDA graph keeps using the addresses it saw, so once a capture has used the workspace,
    buffers that are replaced by larger ones stay alive; before, they are given back. Launches that may overlap in time
    (two streams, two graphs) need a workspace each. Without one, ops keep their own per device and stream, and take
    what a capture needs from the graph's own pool.

    Args:
        transient: owned by one capture: its buffers may be allocated, and zeroed by every replay, inside the graph.
    """

    def __init__(self, *, transient: bool = False) -> None:
        self._transient = transient
        self._captured = False
        self._buffers: dict[tuple[str, torch.device], torch.Tensor] = {}
        self._retired: list[torch.Tensor] = []
        self._views: dict[_Scratch, dict[str, torch.Tensor]] = {}

    def get(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, zeroed: bool
    ) -> torch.Tensor:
        """A contiguous tensor of this shape; a zeroed one is zero unless a kernel was interrupted.

        Raises:
            LaunchError: the buffer would have to grow inside a capture, which would record its filling and not do it.
        """
        count = 1
        for extent in shape:
            count *= extent
        if not self._captured and capturing(device):
            self._captured = True
        held = self._buffers.get((name, device))
        if held is None or held.numel() < count or held.dtype != dtype:
            if not self._transient and capturing(device):
                raise LaunchError(
                    f"workspace buffer {name}",
                    expected=f"room for {count} elements before the capture began",
                    got="a first use of these sizes inside a CUDA graph capture",
                    fix="run once with this workspace and these sizes before capturing",
                )
            if held is not None and self._captured:
                self._retired.append(held)
            elif held is not None and held.is_cuda:
                # Its memory belongs to the stream that it was allocated on, and may still be in use on this one.
                held.record_stream(torch.cuda.current_stream(device))
            size = max(count, 1)
            held = (torch.zeros if zeroed else torch.empty)(size, dtype=dtype, device=device)
            self._buffers[(name, device)] = held
            self._views.clear()
        return held[:count].view(shape)

    def views(self, wanted: _Scratch) -> dict[str, torch.Tensor]:
        """Tensors for a launch's workspace operands, kept until a buffer has to grow."""
        if not self._captured and capturing(wanted.device):
            self._captured = True
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

    @property
    def bytes(self) -> int:
        """Memory held now."""
        held = [*self._buffers.values(), *self._retired]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


@dataclass(slots=True)
class _Prepared:
    launch: executors.Launcher
    dims: dict[str, int]
    workspace: _Scratch | None
    scalars: dict[str, int]
    selection: registry.Selection


_prepared: dict[tuple[Any, ...], _Prepared] = {}
_launchers: dict[tuple[str, str, int | None], executors.Launcher] = {}
_workspaces: dict[tuple[int | None, int], Workspace] = {}


def clear() -> None:
    """Forget prepared launches (after the generated set or a tuned table changed)."""
    _prepared.clear()
    _launchers.clear()
    registry.clear()


def capturing(device: torch.device) -> bool:
    """Whether work on `device` is being recorded into a CUDA graph instead of executed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def kept(
    held: dict[Any, torch.Tensor], key: Any, device: torch.device, make: Callable[[], torch.Tensor]
) -> torch.Tensor:
    """A constant operand, made once; inside a capture it is made for that graph alone, where its filling replays."""
    tensor = held.get(key)
    if tensor is None:
        tensor = make()
        if not capturing(device):
            held[key] = tensor
    return tensor


def _own_workspace(index: int | None, stream: int, device: torch.device) -> Workspace:
    """The ops' workspace of a stream; a capture on a stream without one gets a workspace of the graph's."""
    held = _workspaces.get((index, stream))
    if held is None:
        if capturing(device):
            return Workspace(transient=True)
        held = _workspaces[(index, stream)] = Workspace()
    return held


def own_workspace(device: torch.device) -> Workspace:
    """What the ops use without an explicit workspace: one per device and stream, or one of the graph being captured."""
    stream = torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0
    return _own_workspace(device.index, stream, device)


def require_tensors(names: str, *values: Any) -> None:
    """Every value is a tensor or None; `names` are theirs, separated by spaces.

    Raises:
        ArgumentTypeError: names the first that is not.
    """
    for position, value in enumerate(values):
        if not isinstance(value, torch.Tensor) and value is not None:
            raise ArgumentTypeError(
                names.split()[position],
                expected="a torch.Tensor",
                got=type(value).__name__,
                fix="convert it with torch.as_tensor",
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
    return [prepared.selection for prepared in _prepared.values()]


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
        operands: the caller's own dict: the workspace and the launch's scalars are added to it.
        static: dims that no tensor shape gives (k of an empty output, integer scalars that guards look at).
        executor: "cuda", "interpreter" or "emulator"; by default cuda for CUDA tensors, else an error.
        variant: id of the variant to use.
        arch: architecture whose variants run when the executor is not a GPU; sm_90a by default.
        launch: overrides of launch dims such as splits.

    Returns:
        What ran.
    """
    identity, device = _identity(op, form)(operands)
    watched = _environment()
    key = (
        identity, executor, variant, arch, watched, tuple(static.values()),
        None if launch is None else tuple(launch.items()),
    )  # fmt: skip
    prepared = _prepared.get(key)
    if prepared is None:
        prepared = _prepare(op, form, operands, static, executor, variant, arch, device, dict(launch or {}))
        if len(_prepared) >= PREPARED_LIMIT:
            _prepared.clear()
        _prepared[key] = prepared
    if watched[0] is not None and env.CHECK_VALUES.get():
        check_values(problems.get(op).operands(form), operands, prepared.dims)
    index = device.index
    stream = torch._C._cuda_getCurrentRawStream(index) if device.type == "cuda" else 0
    operands.update(prepared.scalars)
    if prepared.workspace is not None:
        scratch = workspace if workspace is not None else _own_workspace(index, stream, device)
        operands.update(scratch.views(prepared.workspace))
    prepared.launch(operands, prepared.dims, stream)
    return prepared.selection


_environment = env.watch(env.CHECK_VALUES, env.FORCE, env.EXECUTOR)


@lru_cache(maxsize=64)
def _identity(op: str, form: str) -> Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], torch.device]]:
    """A function, written out for the operands of a problem's form, of what a prepared launch depends on.

    That is every tensor's shape, dtype, device, strides (or that it is contiguous) and alignment to 16 bytes; beside
    it comes the device of the first. It runs at every call, where a loop over the declaration would take microseconds.
    """
    specs = [s for s in problems.get(op).operands(form) if s.kind in ("in", "out")]
    tensors = [f"t{i}" for i in range(len(specs))]
    lines = [f"    {t} = o[{spec.name!r}]" for t, spec in zip(tensors, specs, strict=True)]
    parts = [repr(op), repr(form)]
    for t, spec in zip(tensors, specs, strict=True):
        layout = "is_contiguous()" if spec.row_stride is None else "stride()"
        parts += [f"{t}.shape", f"{t}.dtype", f"{t}.get_device()", f"{t}.{layout}"]
    low = " | ".join(f"{t}.data_ptr()" for t in tensors)
    each = ", ".join(f"{t}.data_ptr() & 15" for t in tensors)
    lines.append(f"    low = ({low}) & 15")
    lines.append(f"    return ({', '.join(parts)}, low and ({each})), t0.device")
    scope: dict[str, Any] = {}
    exec("def identity(o):\n" + "\n".join(lines), scope)
    found: Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], torch.device]] = scope["identity"]
    return found


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
    buffers = tuple(
        (spec.name, _extents(spec, dims), spec.torch_dtype, spec.zeroed)
        for spec in specs
        if spec.kind == "workspace"
    )
    workspace = _Scratch(device, buffers) if buffers else None
    scalars = {
        spec.name: dims[spec.name]
        for spec in specs
        if spec.kind == "scalar" and spec.name in selection.launch
    }
    return _Prepared(launcher, dims, workspace, scalars, selection)


def _launcher(executor: str, selection: registry.Selection, device: torch.device) -> executors.Launcher:
    key = (selection.variant.id, executor, device.index)
    launcher = _launchers.get(key)
    if launcher is None:
        if capturing(device):
            raise LaunchError(
                selection.variant.id,
                expected="a variant that was loaded before the capture began",
                got="its first call inside a CUDA graph capture",
                fix="call the op once with these sizes before capturing, or use dsl_kernels.warmup",
            )
        launcher = executors.get(executor).prepare(selection.variant, device.index)
        _launchers[key] = launcher
    return launcher


def _extents(spec: Operand, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(extent if isinstance(extent, int) else dims[extent] for extent in spec.shape)


def check_values(specs: tuple[Operand, ...], operands: Mapping[str, Any], dims: Mapping[str, int]) -> None:
    """Read lengths, tables and ids back and compare them with the sizes they index; debugging only.

    Raises:
        InvalidArgumentError: a negative or too long length, a page or id out of range.
    """
    present = {spec.name for spec in specs}

    def between(name: str, low: int, high: int, what: str, values: torch.Tensor | None = None) -> None:
        tensor = operands[name] if values is None else values
        if tensor.numel() and (int(tensor.min()) < low or int(tensor.max()) > high):
            raise InvalidArgumentError(
                name, expected=f"{what} from {low} to {high}", got=f"{int(tensor.min())} to {int(tensor.max())}",
                fix="correct the values (DSL_KERNELS_CHECK_VALUES reports before the launch)",
            )  # fmt: skip

    if "seq_lens" in present:
        between("seq_lens", 0, min(dims["max_pages"] * 64, dims["stride"]), "lengths")
        used = -(-operands["seq_lens"].amax(dim=1) // 64)
        columns = torch.arange(dims["max_pages"], device=used.device)
        between(
            "block_table",
            0,
            dims["pages"] - 1,
            "page ids in use",
            operands["block_table"][columns < used[:, None]],
        )
    if "row_ends" in present:
        between("row_starts", 0, dims["stride"], "row starts")
        between("row_ends", 0, dims["stride"], "row ends")
    if "k_end" in present:
        between("k_start", 0, dims["skv"], "first keys")
        between("k_end", 0, dims["skv"], "key ends")
    if "indices" in present and "n" in dims:
        between("indices", -1, dims["n"] - 1, "token ids")
