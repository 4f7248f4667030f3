"""Scratch memory of the ops: workspaces that grow and are kept, and the zeros that captured launches count with."""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import ArgumentTypeError, InvalidArgumentError, LaunchError
from ..runtime.driver import capture_id
from ._dispatch import of_its_own

# Words that captures share out, in elements: 16 MiB. Attention whose CTAs send one another parts takes up to 5 MiB of them.
SLAB = 1 << 22
# Shapes whose launches stay prepared; prompts of every length would otherwise add up for as long as the process lives.
PREPARED_LIMIT = 4096


@dataclass(frozen=True, eq=False, slots=True)
class Buffers:
    """The workspace operands of one prepared launch; found by identity, which costs nothing to hash.

    Attributes:
        each: name, shape, dtype and whether it is zeroed.
    """

    device: torch.device
    each: tuple[tuple[str, tuple[int, ...], torch.dtype, bool], ...]


_handles = itertools.count(1)
_by_handle: weakref.WeakValueDictionary[int, Workspace] = weakref.WeakValueDictionary()


class Workspace:
    """Scratch memory that ops share, grown on demand and kept.

    Threads may share one: a call holds it until its launch is enqueued, a step of `dsl_kernels.dsa` until the last of
    its launches is, and a launch on another stream than the one before waits for that stream. Graphs that may overlap
    in time need a workspace each, and so do a graph and other work beside it: a replay waits for nothing.

    A launch captured in a CUDA graph keeps using the addresses it saw: keep the workspace for as long as such a graph,
    as its memory goes back with it. Once a capture has used it, buffers that are replaced by larger ones stay alive;
    before, they are given back. Without a workspace, ops keep
    their own per thread, device and stream, and take what a capture needs from the graph's own pool, its counters from
    memory that is set aside.

    Args:
        transient: owned by one capture: its buffers may be allocated inside the graph. What has to be zero is taken
            from memory outside the graph's pool, where a launch leaves zeros for the next one; with none left, every
            replay zeroes it.
    """

    def __init__(self, *, transient: bool = False) -> None:
        # What a schema can carry in place of the object.
        self.handle = next(_handles)
        _by_handle[self.handle] = self
        self._transient = transient
        self._captured = False
        self._lock = threading.RLock()
        self._streams: dict[int | None, torch.cuda.Stream] = {}
        self._beside: dict[int | None, torch.cuda.Stream] = {}
        self._buffers: dict[tuple[str, torch.device], torch.Tensor] = {}
        self._retired: list[torch.Tensor] = []
        self._views: dict[Buffers, dict[str, torch.Tensor]] = {}

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
            filled(f"workspace buffer {name}", (max(count, 1),), 0.0 if zeroed else None, dtype, device)
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
        if last is not None and last.cuda_stream == stream_of(device):
            return
        here = self._streams[device.index] = torch.cuda.current_stream(device)
        if last is None:
            return
        here.wait_stream(last)
        for (_, place), held in self._buffers.items():
            if place == device:
                held.record_stream(here)

    def views(self, wanted: Buffers) -> dict[str, torch.Tensor]:
        """Tensors for a launch's workspace operands, kept until a buffer has to grow."""
        self._enter(wanted.device)
        return self._kept(wanted)

    def _kept(self, wanted: Buffers) -> dict[str, torch.Tensor]:
        held = self._views.get(wanted)
        if held is None:
            held = {
                name: self.get(name, shape, dtype, wanted.device, zeroed)
                for name, shape, dtype, zeroed in wanted.each
            }
            if len(self._views) >= PREPARED_LIMIT:
                self._views.clear()
            self._views[wanted] = held
        return held

    def interrupted(self, wanted: Buffers) -> None:
        """Drop the zeroed buffers of a launch that raised: it may have left them otherwise."""
        with self._lock:
            for name, _, _, zeroed in wanted.each:
                held = self._buffers.pop((name, wanted.device), None) if zeroed else None
                if held is not None:
                    self._release(held)
            self._views.clear()

    def beside(self, device: torch.device) -> torch.cuda.Stream:
        """A stream for work beside the present one's, which a holder lets wait for that and then waits for."""
        with self._lock:
            found = self._beside.get(device.index)
            if found is None:
                found = self._beside[device.index] = torch.cuda.Stream(device)
            return found

    @property
    def bytes(self) -> int:
        """Memory held now."""
        with self._lock:
            held = [*self._buffers.values(), *self._retired]
        return sum(tensor.numel() * tensor.element_size() for tensor in held)


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
            fresh = filled("counters of captured launches", (SLAB,), 0, torch.int32, device)
            # Another stream may use it first.
            torch.cuda.current_stream(device).synchronize()
            self._slabs.setdefault(device.index, []).append(fresh)
            self._left[device.index] = SLAB

    def take(self, name: str, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
        """Zeros of the present capture and stream, the same ones for each of its launches; None where none are left."""
        if dtype != torch.int32 or device.type != "cuda":
            return None
        stream = stream_of(device)
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


_own = _Own()
_zeros = _Zeros()


def capturing(device: torch.device) -> bool:
    """Whether work on `device` is being recorded into a CUDA graph instead of executed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def filled(
    name: str, shape: tuple[int, ...], value: float | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """New memory that outlives the call, whatever mode the caller is in."""
    try:
        with of_its_own():
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


def own_workspace(device: torch.device, stream: int | None = None) -> Workspace:
    """What the ops use without an explicit workspace: one per thread, device and stream, or one of the capture's.

    It is never one that a capture shares with other work: it ends with its thread, and a graph may live longer.
    """
    if capturing(device):
        return Workspace(transient=True)
    if stream is None:
        stream = stream_of(device)
    _zeros.refill(device)
    held = _own.workspaces.get((device.index, stream))
    if held is None:
        held = _own.workspaces[(device.index, stream)] = Workspace()
    return held


def stream_of(device: torch.device) -> int:
    """Address of the present stream of a device."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


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


def workspace_of(handle: int | None) -> Workspace | None:
    """The workspace that a traced graph names by its handle.

    Raises:
        InvalidArgumentError: it is gone, or belongs to another process.
    """
    if handle is None:
        return None
    try:
        return _by_handle[handle]
    except KeyError:
        raise InvalidArgumentError(
            "workspace",
            expected="a Workspace of this process that is still held",
            got=f"the handle {handle} of none",
            fix="keep the Workspace for as long as the graph that was traced with it, or trace again",
        ) from None
