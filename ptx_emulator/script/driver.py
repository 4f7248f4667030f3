"""The driver's calls that a checked program makes from Python: what ``cuda.bindings`` and ctypes share.

Nothing here is a library. Python functions replace those of ``cuda.bindings`` or of
``ctypes.CDLL("libcuda.so.1")``, in this process and while the program is checked.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ..descriptors import SIZE, Descriptor
from ..errors import LaunchError
from ..launch import _parse
from .session import Graph, Kernel, Session, ptx_text

SUCCESS, INVALID_VALUE, INVALID_HANDLE, NOT_FOUND = 0, 1, 400, 500
VERSION = 13000

# Attributes of a launch (CUlaunchAttributeID) that are recorded; the others do not affect results.
CLUSTER, COOPERATIVE, DEPENDENT = 4, 2, 6
ATTRIBUTE_NAMES = {COOPERATIVE: "cooperative", DEPENDENT: "dependent"}

# CUdevice_attribute -> answer, for attributes that do not depend on the architecture.
_ATTRIBUTES = {
    1: 1024, 2: 1024, 3: 1024, 4: 64, 5: 2**31 - 1, 6: 65535, 7: 65535, 10: 32, 13: 1_000_000, 16: None,
    33: 0, 34: 0, 35: 0, 38: None, 39: 2048, 41: 1, 50: 0, 75: None, 76: None, 78: 1, 79: 1, 80: 1, 81: None,
    82: None, 83: 1, 95: 1, 97: None, 106: 32, 111: None, 115: 1, 120: 1, 121: 1, 143: 0, 144: 0,
}  # fmt: skip


def encode_tiled(
    to: int, kind: int, rank: int, address: int, dims: int, strides: int, box: int, steps: int,
    interleave: int, swizzle: int, promotion: int, fill: int,
) -> int:  # fmt: skip
    """``cuTensorMapEncodeTiled``; the arrays are given by their addresses.

    Raises:
        LaunchError: the driver would refuse the map.
    """
    if not 1 <= rank <= 5 or to % 64:
        return INVALID_VALUE

    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    descriptor = Descriptor(
        address, kind, _read(u64, dims, rank), _read(u64, strides, rank - 1), _read(u32, box, rank),
        _read(u32, steps, rank), swizzle, interleave, fill,
    )  # fmt: skip
    descriptor.row(0, f"of the call of cuTensorMapEncodeTiled over {address:#x}")
    ctypes.memmove(to, descriptor.encode(), SIZE)
    return SUCCESS


def encode_im2col(
    to: int, kind: int, rank: int, address: int, dims: int, strides: int, lower: int, upper: int,
    channels: int, pixels: int, steps: int, interleave: int, swizzle: int, promotion: int, fill: int,
) -> int:  # fmt: skip
    """``cuTensorMapEncodeIm2col``; the arrays are given by their addresses.

    Raises:
        LaunchError: the driver would refuse the map.
    """
    if not 3 <= rank <= 5 or to % 64:
        return INVALID_VALUE
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    corners = [_read(ctypes.c_int, at, rank - 2) for at in (lower, upper)]
    descriptor = Descriptor(
        address, kind, _read(u64, dims, rank), _read(u64, strides, rank - 1), (channels, pixels),
        _read(u32, steps, rank), swizzle, interleave, fill, *corners,
    )  # fmt: skip
    descriptor.row(0, f"of the call of cuTensorMapEncodeIm2col over {address:#x}")
    ctypes.memmove(to, descriptor.encode(), SIZE)
    return SUCCESS


def _read(kind: Any, at: int, count: int) -> list[int]:
    return list((kind * count).from_address(at)) if count else []


class Driver:
    """Modules, functions, memory, streams, events and graphs, by their handles."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._numbers = itertools.count(0x1000, 16)
        self.modules: dict[int, str] = {}
        self.functions: dict[int, Kernel] = {}
        self.events: dict[int, Graph | None] = {}
        self.graphs: dict[int, Graph] = {}
        self.streams: set[int] = {0, 1, 2}

    def handle(self) -> int:
        return next(self._numbers)

    def attribute(self, number: int) -> int:
        """The answer to cuDeviceGetAttribute."""
        d = self.session.device
        special = {
            8: d.static_smem, 12: d.arch.registers_per_sm, 16: d.sms, 38: d.l2_bytes, 75: d.capability[0],
            76: d.capability[1], 81: d.arch.smem_per_sm, 82: d.arch.registers_per_sm, 97: d.arch.smem_per_cta,
            111: d.reserved_smem,
        }  # fmt: skip
        if number in special:
            return special[number]
        answer = _ATTRIBUTES.get(number)
        if answer is None:
            self.session.note(f"device attribute {number} is answered with 0")
            return 0
        return answer

    # Modules

    def load(self, image: bytes) -> int:
        handle = self.handle()
        self.modules[handle] = ptx_text(image)
        return handle

    def function(self, module: int, name: str) -> int | None:
        """A handle of an entry; None where the module has no entry of that name."""
        ptx = self.modules.get(module)
        if ptx is None or name not in _parse(ptx).entries:
            return None
        handle = self.handle()
        self.functions[handle] = Kernel(ptx, name)
        return handle

    # Memory

    def copy(self, to: int, source: int, size: int, stream: int = 0) -> int:
        def move() -> None:
            ctypes.memmove(to, source, size)

        self.session.enqueue(stream, move)
        return SUCCESS

    def fill(self, to: int, pattern: bytes, count: int, stream: int = 0) -> int:
        room = self.session.memory.size_from(to)
        if room is None or room < len(pattern) * count:
            return INVALID_VALUE
        data = pattern * count

        def move() -> None:
            ctypes.memmove(to, data, len(data))

        self.session.enqueue(stream, move)
        return SUCCESS

    # Events and graphs

    def record(self, event: int, stream: int) -> int:
        if event not in self.events:
            return INVALID_HANDLE
        self.events[event] = self.session.capturing(stream)
        return SUCCESS

    def wait(self, stream: int, event: int) -> int:
        graph = self.events.get(event)
        if graph is not None:
            self.session.join_capture(stream, graph)
        return SUCCESS if event in self.events else INVALID_HANDLE

    # Launches

    def launch(
        self,
        function: int,
        grid: Sequence[int],
        block: Sequence[int],
        smem: int,
        stream: int,
        params: int,
        extra: int,
        attributes: Sequence[tuple[int, Sequence[int]]] = (),
        source: str = "driver",
    ) -> int:
        """Launch a kernel; ``params`` and ``extra`` are the addresses that cuLaunchKernel takes."""
        kernel = self.functions.get(function)
        if kernel is None:
            return INVALID_HANDLE
        cluster = next((value[:3] for name, value in attributes if name == CLUSTER), None)
        names = [ATTRIBUTE_NAMES[name] for name, value in attributes if name in ATTRIBUTE_NAMES and value[0]]
        self.session.launch(
            kernel, grid, block, _reader(params, extra), source=source, cluster=cluster, dynamic_smem=smem,
            stream=stream, attributes=names,
        )  # fmt: skip
        return SUCCESS


def _reader(params: int, extra: int) -> Callable[[Sequence[int]], list[bytes] | bytes]:
    """A function from the parameters' sizes to their bytes, read through cuLaunchKernel's last arguments."""

    def pointers(sizes: Sequence[int]) -> list[bytes] | bytes:
        if not sizes:
            return []
        if params:
            array = (ctypes.c_void_p * len(sizes)).from_address(params)
            for i, p in enumerate(array):
                if not p:
                    raise LaunchError(f"parameter {i} of the launch has a null address")
            return [ctypes.string_at(p, n) for p, n in zip(array, sizes, strict=True) if p]
        if extra:
            return _packed(extra)
        raise LaunchError(f"the kernel takes {len(sizes)} parameters, the launch gives none")

    return pointers


def _packed(extra: int) -> bytes:
    """The buffer that a list of CU_LAUNCH_PARAM_BUFFER_POINTER (1), _BUFFER_SIZE (2) and 0 (end) names."""
    buffer = length = 0
    for i in range(0, 8, 2):
        key, value = (ctypes.c_void_p * 2).from_address(extra + 8 * i)
        if not key:
            break
        if key == 1:
            buffer = value or 0
        elif key == 2:
            length = ctypes.c_size_t.from_address(value or 0).value
    return ctypes.string_at(buffer, length)
