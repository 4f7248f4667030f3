"""Scratch memory of the ops: workspaces, and zeroed counters for captured launches."""

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

# int32 elements that captures share, 16 MiB. Attention whose CTAs send parts to one another takes up to 5
# MiB.
SLAB = 1 << 22
# Shapes whose launches stay prepared, as prompts of every length would otherwise fill the memory.
PREPARED_LIMIT = 4096


@dataclass(frozen=True, eq=False, slots=True)
class Buffers:
    """The workspace operands of one prepared launch, compared by identity, as hashing them costs time.

    Attributes:
        device: where they are.
        each: of each operand the name, the shape, the dtype and whether it is zeroed.
    """

    device: torch.device
    each: tuple[tuple[str, tuple[int, ...], torch.dtype, bool], ...]


_handles = itertools.count(1)
_by_handle: weakref.WeakValueDictionary[int, Workspace] = weakref.WeakValueDictionary()


class Workspace:
    """Scratch memory that ops share; it grows on demand and stays allocated.

    Threads may share a workspace. A call locks it until its launch is enqueued, and a step of
    `dsl_kernels.dsa` until its last launch is. A launch on another stream than the previous one waits for
    that stream. Graphs that may overlap in time need a workspace each, as do a graph and work beside it: a
    replay waits for nothing.

    A captured launch uses the addresses of its capture. So keep the workspace for as long as the graph: the
    workspace frees its memory when it goes. After a capture has used the workspace, it keeps buffers that
    larger ones replace; before, it frees them. Without a workspace, ops have one per thread, device and
    stream; a capture then takes buffers from the graph's memory pool, and counters from memory that is set
    aside.

    Args:
        transient: the workspace belongs to one capture, and its buffers may be allocated inside the graph.
            Zeroed buffers come from memory outside the graph's pool, where a launch leaves zeros for the next
            one. If none is left, every replay zeroes the buffers.
    """

    def __init__(self, *, transient: bool = False) -> None:
        # Schemas of torch carry the handle in place of the object.
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
        """Lock out other threads for a `with` block, for launches that pass data on in one buffer."""
        return self._lock

    def get(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, zeroed: bool
    ) -> torch.Tensor:
        """A contiguous tensor of this shape; a zeroed one is zero unless a kernel was interrupted.

        Args:
            name: names the buffer; the same name on a device gives the same memory.
            shape: its extents.
            dtype: its dtype.
            device: where it is.
            zeroed: fill the buffer with zeros when it is allocated.

        Raises:
            LaunchError: the buffer would grow inside a capture, which would record its filling and not fill
                it.
            InvalidArgumentError: the device has too little memory.
        """
        count = math.prod(shape)
        with self._lock:
            self._enter(device)
            buffer = self._buffers.get((name, device))
            if buffer is None or buffer.numel() < count or buffer.dtype != dtype:
                buffer = self._grow(name, buffer, count, dtype, device, zeroed)
            return buffer[:count].view(shape)

    def _grow(
        self,
        name: str,
        buffer: torch.Tensor | None,
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
        if buffer is not None:
            self._release(buffer)
        self._buffers[(name, device)] = grown
        self._views.clear()
        return grown

    def _release(self, buffer: torch.Tensor) -> None:
        if self._captured:
            self._retired.append(buffer)
        elif buffer.is_cuda:
            # The allocator knows the buffer's own stream, but this stream may still use the buffer.
            buffer.record_stream(torch.cuda.current_stream(buffer.device))

    def _enter(self, device: torch.device) -> None:
        """Before a use: note a capture, or wait for the stream that used the buffers last."""
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
        for (_, place), buffer in self._buffers.items():
            if place == device:
                buffer.record_stream(here)

    def views(self, wanted: Buffers) -> dict[str, torch.Tensor]:
        """Tensors for a launch's workspace operands by name, kept until a buffer grows."""
        self._enter(wanted.device)
        return self._kept(wanted)

    def _kept(self, wanted: Buffers) -> dict[str, torch.Tensor]:
        views = self._views.get(wanted)
        if views is None:
            views = {
                name: self.get(name, shape, dtype, wanted.device, zeroed)
                for name, shape, dtype, zeroed in wanted.each
            }
            if len(self._views) >= PREPARED_LIMIT:
                self._views.clear()
            self._views[wanted] = views
        return views

    def interrupted(self, wanted: Buffers) -> None:
        """Drop the zeroed buffers of a launch that raised, as it may have left other values in them."""
        with self._lock:
            for name, _, _, zeroed in wanted.each:
                buffer = self._buffers.pop((name, wanted.device), None) if zeroed else None
                if buffer is not None:
                    self._release(buffer)
            self._views.clear()

    def beside(self, device: torch.device) -> torch.cuda.Stream:
        """A stream for work beside the current stream's; the caller synchronises the two streams."""
        with self._lock:
            stream = self._beside.get(device.index)
            if stream is None:
                stream = self._beside[device.index] = torch.cuda.Stream(device)
            return stream

    @property
    def bytes(self) -> int:
        """Bytes of memory that the workspace has allocated."""
        with self._lock:
            buffers = [*self._buffers.values(), *self._retired]
        return sum(tensor.numel() * tensor.element_size() for tensor in buffers)


class _Own(threading.local):
    """This thread's workspaces by device and stream, freed when the thread ends."""

    def __init__(self) -> None:
        self.workspaces: dict[tuple[int | None, int], Workspace] = {}


class _Zeros:
    """Zeros outside of every graph's memory pool, for the counters of captured launches.

    For memory of the pool, every replay would run a kernel that zeroes it before each launch. A share is
    never taken back from its capture and stream, as nothing tells when a graph is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: dict[int | None, list[torch.Tensor]] = {}
        self._left: dict[int | None, int] = {}
        self._shares: dict[tuple[int | None, int], tuple[int, dict[str, torch.Tensor]]] = {}

    def refill(self, device: torch.device) -> None:
        """Allocate zeros for later captures; to be called outside of a capture."""
        if self._left.get(device.index, 0) >= SLAB // 2 or device.type != "cuda":
            return
        with self._lock:
            if self._left.get(device.index, 0) >= SLAB // 2:  # by another thread meanwhile
                return
            fresh = filled("counters of captured launches", (SLAB,), 0, torch.int32, device)
            # Another stream may use it first.
            torch.cuda.current_stream(device).synchronize()
            self._slabs.setdefault(device.index, []).append(fresh)
            self._left[device.index] = SLAB

    def take(self, name: str, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor | None:
        """Zeros that all launches of the current capture and stream share; None if none are left."""
        if dtype != torch.int32 or device.type != "cuda":
            return None
        stream = stream_of(device)
        with self._lock:
            capture, shares = self._shares.get((device.index, stream), (-1, {}))
            if capture != (present := capture_id(stream)):
                shares = {}
                self._shares[device.index, stream] = present, shares
            counters = shares.get(name)
            if counters is not None and counters.numel() >= count:
                return counters
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
    """Whether work on the device's current stream is recorded into a CUDA graph instead of executed."""
    if device.type != "cuda":
        return False
    if device.index in (None, torch._C._cuda_getDevice()):
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def filled(
    name: str, shape: tuple[int, ...], value: float | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """New memory that outlives the call, in any mode of the caller; `value` None leaves it uninitialised."""
    try:
        with of_its_own():
            if value is None:
                return torch.empty(shape, dtype=dtype, device=device)
            return torch.full(shape, value, dtype=dtype, device=device)
    except (RuntimeError, OverflowError) as error:
        raise no_memory(name, shape, dtype, error) from None


def no_memory(name: str, shape: tuple[int, ...], dtype: torch.dtype, error: Exception) -> Exception:
    """The error to raise for an allocation that failed."""
    if isinstance(error, torch.OutOfMemoryError):
        # A caller that manages memory catches this error to make room.
        return error
    return InvalidArgumentError(
        name,
        expected=f"memory for {math.prod(shape)} elements of {dtype}",
        got=str(error).partition("\n")[0],
        fix="pass a smaller problem",
    )


def own_workspace(device: torch.device, stream: int | None = None) -> Workspace:
    """The workspace of ops that are given none: one per thread, device and stream, or a capture's own.

    A capture does not share a thread's workspace, as that ends with the thread, and the graph may live
    longer.
    """
    if capturing(device):
        return Workspace(transient=True)
    if stream is None:
        stream = stream_of(device)
    _zeros.refill(device)
    workspace = _own.workspaces.get((device.index, stream))
    if workspace is None:
        workspace = _own.workspaces[(device.index, stream)] = Workspace()
    return workspace


def stream_of(device: torch.device) -> int:
    """The handle of a device's current stream."""
    return torch._C._cuda_getCurrentRawStream(device.index) if device.type == "cuda" else 0


def require_workspace(workspace: Any) -> None:
    """Refuse what is neither None nor a `Workspace`.

    Raises:
        ArgumentTypeError: `workspace` is something else.
    """
    if workspace is not None and not isinstance(workspace, Workspace):
        raise ArgumentTypeError(
            "workspace",
            expected="a dsl_kernels.ops.Workspace or None",
            got=type(workspace).__name__,
            fix="pass Workspace(), or leave it out",
        )


def workspace_of(handle: int | None) -> Workspace | None:
    """The workspace that a traced graph names by its handle; None for None.

    Raises:
        InvalidArgumentError: the workspace is gone, or belongs to another process.
    """
    if handle is None:
        return None
    try:
        return _by_handle[handle]
    except KeyError:
        raise InvalidArgumentError(
            "workspace",
            expected="a Workspace of this process that is still held",
            got=f"handle {handle}, which belongs to no workspace",
            fix="keep the Workspace for as long as the graph that was traced with it, or trace again",
        ) from None
