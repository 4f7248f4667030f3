"""``ctypes.CDLL("libcuda.so.1")`` while a program is checked: an object with the recorded driver calls.

Each call is a C function pointer that ctypes makes of a Python function, so that ctypes converts arguments as
usual (references, arrays, byte strings). Looking up a call that is not recorded raises
:class:`UnsupportedCall`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from ..errors import PtxEmulatorError
from .driver import (
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_FOUND,
    SUCCESS,
    VERSION,
    Driver,
    encode_im2col,
    encode_tiled,
)
from .errors import UnsupportedCall
from .hooks import Patches

_NAMES = ("libcuda.so", "libcuda.so.1", "nvcuda.dll")
_LETTERS: dict[str, Any] = {
    "p": ctypes.c_void_p, "i": ctypes.c_int, "u": ctypes.c_uint, "z": ctypes.c_size_t, "q": ctypes.c_uint64,
    "s": ctypes.c_char_p, "b": ctypes.c_ubyte, "h": ctypes.c_ushort,
}  # fmt: skip
# CUlaunchConfig: grid, block, bytes of shared memory, stream, address and number of the attributes.
_CONFIG = struct.Struct("<7I4xQQI")
_ATTRIBUTE_BYTES = 72


def _write(address: int | None, value: int, kind: Any = ctypes.c_void_p) -> int:
    if not address:
        return INVALID_VALUE
    kind.from_address(address).value = value
    return SUCCESS


class CApi:
    """The recorded calls: each has a prototype (letters of its parameters) and a method of the same name."""

    PROTOTYPES: ClassVar[dict[str, str]] = {
        "cuInit": "u", "cuDriverGetVersion": "p", "cuDeviceGet": "pi", "cuDeviceGetCount": "p",
        "cuDeviceGetName": "pii", "cuDeviceGetAttribute": "pii", "cuDeviceTotalMem": "pi",
        "cuDeviceComputeCapability": "ppi", "cuCtxCreate": "pui", "cuCtxDestroy": "p", "cuCtxGetCurrent": "p",
        "cuCtxSetCurrent": "p", "cuCtxPushCurrent": "p", "cuCtxPopCurrent": "p", "cuCtxSynchronize": "",
        "cuCtxGetDevice": "p", "cuDevicePrimaryCtxRetain": "pi", "cuDevicePrimaryCtxRelease": "i",
        "cuGetErrorName": "ip", "cuGetErrorString": "ip", "cuGetProcAddress": "spiqp", "cuModuleLoad": "ps",
        "cuModuleLoadData": "pp", "cuModuleLoadDataEx": "ppupp", "cuModuleUnload": "p",
        "cuModuleGetFunction": "pps", "cuLibraryLoadData": "ppppuppu", "cuLibraryUnload": "p",
        "cuLibraryGetKernel": "pps", "cuKernelGetFunction": "pp", "cuFuncSetAttribute": "pii",
        "cuFuncGetAttribute": "pip", "cuFuncSetCacheConfig": "pi", "cuKernelSetAttribute": "iipi",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor": "ppiz", "cuMemAlloc": "pz", "cuMemAllocAsync": "pzp",
        "cuMemAllocManaged": "pzu", "cuMemFree": "q", "cuMemFreeAsync": "qp", "cuMemAllocHost": "pz",
        "cuMemFreeHost": "p", "cuMemGetInfo": "pp", "cuMemcpyHtoD": "qpz", "cuMemcpyDtoH": "pqz",
        "cuMemcpyDtoD": "qqz", "cuMemcpy": "qqz", "cuMemcpyHtoDAsync": "qpzp", "cuMemcpyDtoHAsync": "pqzp",
        "cuMemcpyDtoDAsync": "qqzp", "cuMemcpyAsync": "qqzp", "cuMemsetD8": "qbz", "cuMemsetD16": "qhz",
        "cuMemsetD32": "quz", "cuMemsetD8Async": "qbzp", "cuMemsetD32Async": "quzp", "cuStreamCreate": "pu",
        "cuStreamCreateWithPriority": "pui", "cuStreamDestroy": "p", "cuStreamSynchronize": "p",
        "cuStreamQuery": "p", "cuStreamWaitEvent": "ppu", "cuStreamBeginCapture": "pi",
        "cuStreamEndCapture": "pp", "cuStreamIsCapturing": "pp", "cuEventCreate": "pu", "cuEventDestroy": "p",
        "cuEventRecord": "pp", "cuEventSynchronize": "p", "cuEventQuery": "p", "cuEventElapsedTime": "ppp",
        "cuGraphInstantiate": "ppq", "cuGraphInstantiateWithFlags": "ppq", "cuGraphLaunch": "pp",
        "cuGraphExecDestroy": "p", "cuGraphDestroy": "p", "cuTensorMapEncodeIm2col": "piupppppuupiiii",
        "cuTensorMapEncodeTiled": "piupppppiiii", "cuLaunchKernel": "puuuuuuuppp", "cuLaunchKernelEx": "pppp",
        "cuLaunchCooperativeKernel": "puuuuuuupp",
    }  # fmt: skip
    # Suffixes of the exported symbols.
    SUFFIXES = ("", "_v2", "_v3", "_v4", "_ptsz", "_ptds", "_v2_ptds", "_v2_ptsz")

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.session = driver.session
        self.errors: list[PtxEmulatorError] = []
        self._made: dict[str, Any] = {}
        self._texts: dict[int, Any] = {}
        self._next = itertools.count()

    def find(self, name: str) -> Any:
        """The function pointer of a call, or None for one that is not recorded."""
        for suffix in sorted(self.SUFFIXES, key=len, reverse=True):
            base = name.removesuffix(suffix) if suffix else name
            if base in self.PROTOTYPES and (base != name or not suffix):
                break
        else:
            return None
        if name not in self._made:
            prototype = ctypes.CFUNCTYPE(ctypes.c_int, *(_LETTERS[c] for c in self.PROTOTYPES[base]))
            self._made[name] = _Call(prototype(self._guarded(getattr(self, base))), self)
        return self._made[name]

    def _guarded(self, call: Callable[..., int]) -> Callable[..., int]:
        """Store exceptions, which cannot pass through C; `_Call` raises them back in Python."""

        def run(*args: Any) -> int:
            try:
                return call(*[0 if a is None else a for a in args])
            except PtxEmulatorError as error:
                self.errors.append(error)
                return 999

        return run

    # Device and context

    def cuInit(self, flags: int) -> int:
        return SUCCESS

    def cuDriverGetVersion(self, version: int) -> int:
        return _write(version, VERSION, ctypes.c_int)

    def cuDeviceGet(self, device: int, ordinal: int) -> int:
        return _write(device, 0, ctypes.c_int) if ordinal == 0 else 101

    def cuDeviceGetCount(self, count: int) -> int:
        return _write(count, 1, ctypes.c_int)

    def cuDeviceGetName(self, name: int, length: int, device: int) -> int:
        data = self.session.device.name.encode()[: max(length - 1, 0)] + b"\0"
        ctypes.memmove(name, data, min(len(data), length))
        return SUCCESS

    def cuDeviceGetAttribute(self, value: int, attribute: int, device: int) -> int:
        return _write(value, self.driver.attribute(attribute), ctypes.c_int)

    def cuDeviceTotalMem(self, size: int, device: int) -> int:
        return _write(size, self.session.device.memory_bytes, ctypes.c_size_t)

    def cuDeviceComputeCapability(self, major: int, minor: int, device: int) -> int:
        a, b = self.session.device.capability
        return _write(major, a, ctypes.c_int) or _write(minor, b, ctypes.c_int)

    def cuCtxCreate(self, context: int, flags: int, device: int) -> int:
        return _write(context, 1)

    def cuDevicePrimaryCtxRetain(self, context: int, device: int) -> int:
        return _write(context, 1)

    def cuCtxGetCurrent(self, context: int) -> int:
        return _write(context, 1)

    def cuCtxPopCurrent(self, context: int) -> int:
        return _write(context, 1) if context else SUCCESS

    def cuCtxGetDevice(self, device: int) -> int:
        return _write(device, 0, ctypes.c_int)

    def cuCtxSetCurrent(self, context: int) -> int:
        return SUCCESS

    cuCtxDestroy = cuCtxPushCurrent = cuDevicePrimaryCtxRelease = cuCtxSetCurrent

    def cuCtxSynchronize(self) -> int:
        return SUCCESS

    def cuGetErrorName(self, error: int, text: int) -> int:
        buffer = self._texts.setdefault(error, ctypes.create_string_buffer(f"CUDA error {error}".encode()))
        return _write(text, ctypes.addressof(buffer))

    cuGetErrorString = cuGetErrorName

    def cuGetProcAddress(self, symbol: bytes, address: int, version: int, flags: int, status: int) -> int:
        call = self.find(symbol.decode())
        if call is None:
            return NOT_FOUND
        return _write(address, call.address)

    # Modules and functions

    def cuModuleLoadData(self, module: int, image: int) -> int:
        return _write(module, self.driver.load(_image(image)))

    def cuModuleLoadDataEx(self, module: int, image: int, count: int, options: int, values: int) -> int:
        return self.cuModuleLoadData(module, image)

    def cuLibraryLoadData(self, module: int, image: int, *_: int) -> int:
        return self.cuModuleLoadData(module, image)

    def cuModuleLoad(self, module: int, path: bytes) -> int:
        try:
            with open(os.fsdecode(path), "rb") as file:
                image = file.read()
        except OSError:
            return 301
        return _write(module, self.driver.load(image))

    def cuModuleUnload(self, module: int) -> int:
        return SUCCESS if self.driver.modules.pop(module, None) is not None else INVALID_HANDLE

    cuLibraryUnload = cuModuleUnload

    def cuModuleGetFunction(self, function: int, module: int, name: bytes) -> int:
        handle = self.driver.function(module, name.decode())
        return NOT_FOUND if handle is None else _write(function, handle)

    cuLibraryGetKernel = cuModuleGetFunction

    def cuKernelGetFunction(self, function: int, kernel: int) -> int:
        return _write(function, kernel)

    def cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> int:
        if function not in self.driver.functions:
            return INVALID_HANDLE
        most = self.session.device.arch.smem_per_cta
        return INVALID_VALUE if attribute == 8 and not 0 <= value <= most else SUCCESS

    def cuKernelSetAttribute(self, attribute: int, value: int, kernel: int, device: int) -> int:
        return self.cuFuncSetAttribute(kernel, attribute, value)

    def cuFuncGetAttribute(self, value: int, attribute: int, function: int) -> int:
        return _write(value, 1024 if attribute == 0 else 0, ctypes.c_int)

    def cuFuncSetCacheConfig(self, function: int, config: int) -> int:
        return SUCCESS

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, count: int, *_: int) -> int:
        return _write(count, 1, ctypes.c_int)

    # Memory

    def cuMemAlloc(self, pointer: int, size: int) -> int:
        return INVALID_VALUE if not size else _write(pointer, self.session.memory.allocate(size))

    def cuMemAllocAsync(self, pointer: int, size: int, stream: int) -> int:
        return self.cuMemAlloc(pointer, size)

    def cuMemAllocManaged(self, pointer: int, size: int, flags: int) -> int:
        return self.cuMemAlloc(pointer, size)

    def cuMemAllocHost(self, pointer: int, size: int) -> int:
        return self.cuMemAlloc(pointer, size)

    def cuMemFree(self, pointer: int) -> int:
        return SUCCESS if not pointer or self.session.memory.free(pointer) else INVALID_VALUE

    def cuMemFreeAsync(self, pointer: int, stream: int) -> int:
        return self.cuMemFree(pointer)

    cuMemFreeHost = cuMemFree

    def cuMemGetInfo(self, free: int, total: int) -> int:
        size = self.session.device.memory_bytes
        return _write(free, size, ctypes.c_size_t) or _write(total, size, ctypes.c_size_t)

    def _device(self, address: int, size: int) -> bool:
        room = self.session.memory.size_from(address)
        return room is not None and room >= size

    def cuMemcpyHtoD(self, to: int, source: int, size: int, stream: int = 0) -> int:
        return self.driver.copy(to, source, size, stream) if self._device(to, size) else INVALID_VALUE

    def cuMemcpyDtoH(self, to: int, source: int, size: int, stream: int = 0) -> int:
        return self.driver.copy(to, source, size, stream) if self._device(source, size) else INVALID_VALUE

    def cuMemcpyDtoD(self, to: int, source: int, size: int, stream: int = 0) -> int:
        if not (self._device(to, size) and self._device(source, size)):
            return INVALID_VALUE
        return self.driver.copy(to, source, size, stream)

    def cuMemcpy(self, to: int, source: int, size: int, stream: int = 0) -> int:
        return self.driver.copy(to, source, size, stream)

    cuMemcpyHtoDAsync, cuMemcpyDtoHAsync, cuMemcpyDtoDAsync, cuMemcpyAsync = (
        cuMemcpyHtoD, cuMemcpyDtoH, cuMemcpyDtoD, cuMemcpy,
    )  # fmt: skip

    def cuMemsetD8(self, to: int, value: int, count: int, stream: int = 0) -> int:
        return self.driver.fill(to, struct.pack("<B", value), count, stream)

    def cuMemsetD16(self, to: int, value: int, count: int, stream: int = 0) -> int:
        return self.driver.fill(to, struct.pack("<H", value), count, stream)

    def cuMemsetD32(self, to: int, value: int, count: int, stream: int = 0) -> int:
        return self.driver.fill(to, struct.pack("<I", value), count, stream)

    cuMemsetD8Async, cuMemsetD32Async = cuMemsetD8, cuMemsetD32

    # Streams, events, graphs

    def cuStreamCreate(self, stream: int, *_: int) -> int:
        handle = self.driver.handle()
        self.driver.streams.add(handle)
        return _write(stream, handle)

    cuStreamCreateWithPriority = cuStreamCreate

    def cuStreamSynchronize(self, stream: int) -> int:
        if self.session.capturing(stream) is not None:
            return 900  # CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        return SUCCESS if stream in self.driver.streams else INVALID_HANDLE

    cuStreamQuery = cuStreamSynchronize

    def cuStreamDestroy(self, stream: int) -> int:
        if stream not in self.driver.streams:
            return INVALID_HANDLE
        self.driver.streams.discard(stream)
        return SUCCESS

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> int:
        return self.driver.wait(stream, event)

    def cuStreamBeginCapture(self, stream: int, mode: int) -> int:
        self.session.begin_capture(stream)
        return SUCCESS

    def cuStreamEndCapture(self, stream: int, graph: int) -> int:
        captured = self.session.end_capture(stream)
        if captured is None:
            return 901
        handle = self.driver.handle()
        self.driver.graphs[handle] = captured
        return _write(graph, handle)

    def cuStreamIsCapturing(self, stream: int, status: int) -> int:
        return _write(status, int(self.session.capturing(stream) is not None), ctypes.c_int)

    def cuEventCreate(self, event: int, flags: int) -> int:
        handle = self.driver.handle()
        self.driver.events[handle] = None
        return _write(event, handle)

    def cuEventRecord(self, event: int, stream: int) -> int:
        return self.driver.record(event, stream)

    def cuEventSynchronize(self, event: int) -> int:
        return SUCCESS if event in self.driver.events else INVALID_HANDLE

    cuEventQuery = cuEventSynchronize

    def cuEventDestroy(self, event: int) -> int:
        if event not in self.driver.events:
            return INVALID_HANDLE
        del self.driver.events[event]
        return SUCCESS

    def cuEventElapsedTime(self, milliseconds: int, start: int, end: int) -> int:
        self.session.note("times are not measured: every event says 1 ms")
        ctypes.c_float.from_address(milliseconds).value = 1.0
        return SUCCESS

    def cuGraphInstantiate(self, executable: int, graph: int, flags: int) -> int:
        return _write(executable, graph) if graph in self.driver.graphs else INVALID_VALUE

    cuGraphInstantiateWithFlags = cuGraphInstantiate

    def cuGraphLaunch(self, graph: int, stream: int) -> int:
        recorded = self.driver.graphs.get(graph)
        if recorded is None:
            return INVALID_VALUE
        self.session.enqueue(stream, recorded.run)
        return SUCCESS

    def cuGraphDestroy(self, graph: int) -> int:
        return SUCCESS

    cuGraphExecDestroy = cuGraphDestroy

    # Tensor maps and launches

    def cuTensorMapEncodeTiled(
        self, to: int, kind: int, rank: int, address: int, dims: int, strides: int, box: int, steps: int,
        interleave: int, swizzle: int, promotion: int, fill: int,
    ) -> int:  # fmt: skip
        return encode_tiled(
            to, kind, rank, address, dims, strides, box, steps, interleave, swizzle, promotion, fill
        )

    def cuTensorMapEncodeIm2col(self, *arguments: int) -> int:
        return encode_im2col(*arguments)

    def cuLaunchKernel(self, function: int, *rest: int) -> int:
        grid, block, (smem, stream, params, extra) = rest[:3], rest[3:6], rest[6:]
        return self.driver.launch(function, grid, block, smem, stream, params, extra, source="cuLaunchKernel")

    def cuLaunchCooperativeKernel(self, function: int, *rest: int) -> int:
        grid, block, (smem, stream, params) = rest[:3], rest[3:6], rest[6:]
        return self.driver.launch(
            function, grid, block, smem, stream, params, 0, [(2, (1, 0, 0))], "cuLaunchCooperativeKernel"
        )

    def cuLaunchKernelEx(self, config: int, function: int, params: int, extra: int) -> int:
        *sizes, smem, stream, attributes, count = _CONFIG.unpack(ctypes.string_at(config, _CONFIG.size))
        named = []
        for i in range(count):
            data = ctypes.string_at(attributes + i * _ATTRIBUTE_BYTES, 20)
            name, *value = struct.unpack("<I4x3I", data)
            named.append((name, value))
        return self.driver.launch(
            function, sizes[:3], sizes[3:6], smem, stream, params, extra, named, "cuLaunchKernelEx"
        )


def _image(address: int) -> bytes:
    head = ctypes.string_at(address, 4)
    return head if head.startswith((b"\x7fELF", b"\x50\xed\x55\xba")) else ctypes.string_at(address)


class _Call:
    """A function pointer; raises the exception that its Python function could not raise through C."""

    def __init__(self, pointer: Any, api: CApi) -> None:
        self._pointer, self._api = pointer, api
        self.argtypes: Any = None
        self.restype: Any = ctypes.c_int

    @property
    def address(self) -> int:
        return ctypes.cast(self._pointer, ctypes.c_void_p).value or 0

    def __call__(self, *args: Any) -> Any:
        if self.argtypes:
            args = tuple(kind.from_param(a) for kind, a in zip(self.argtypes, args, strict=False))
        wanted = self._pointer.argtypes
        result = self._pointer(*(_converted(a, kind) for a, kind in zip(args, wanted, strict=True)))
        if self._api.errors:
            raise self._api.errors.pop()
        return result if self.restype in (None, ctypes.c_int) else self.restype(result)


def _converted(value: Any, kind: Any) -> Any:
    """An argument in the prototype's type: ctypes itself refuses other integer types and references."""
    if isinstance(value, ctypes._SimpleCData):
        value = value.value
    elif hasattr(value, "_obj"):  # byref, or the result of from_param for one
        inner = value._obj
        value = inner if isinstance(inner, int) else ctypes.addressof(inner)
    elif isinstance(value, ctypes.Array | ctypes.Structure | ctypes.Union):
        value = ctypes.addressof(value)
    elif isinstance(value, ctypes._Pointer):
        value = ctypes.cast(value, ctypes.c_void_p).value
    if kind is ctypes.c_char_p and isinstance(value, str):
        return value.encode()
    if kind is ctypes.c_void_p and isinstance(value, bytes):
        return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value
    return value


@contextmanager
def install(driver: Driver) -> Iterator[None]:
    """Give ``ctypes.CDLL`` of the driver's library the recorded calls while the context is open."""
    patches, api = Patches(), CApi(driver)
    load, find = ctypes.CDLL.__init__, ctypes.util.find_library
    by_attribute, by_item = ctypes.CDLL.__getattr__, ctypes.CDLL.__getitem__

    def init(self: Any, name: Any, *args: Any, **kwargs: Any) -> None:
        if name is None or os.path.basename(os.fspath(name)) not in _NAMES:
            load(self, name, *args, **kwargs)
        else:
            self.__dict__.update(_name=str(name), _handle=0, _emulated=api)

    def attribute(self: Any, name: str) -> Any:
        return call(name) if "_emulated" in self.__dict__ else by_attribute(self, name)

    def item(self: Any, name: Any) -> Any:
        return call(name) if "_emulated" in self.__dict__ else by_item(self, name)

    def call(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        recorded = api.find(name)
        if recorded is None:
            raise UnsupportedCall(
                name,
                got="a look-up in libcuda",
                fix="use a recorded call in its place, or run the program on a GPU",
            )
        return recorded

    try:
        patches.set(ctypes.CDLL, "__init__", init)
        patches.set(ctypes.CDLL, "__getattr__", attribute)
        patches.set(ctypes.CDLL, "__getitem__", item)
        patches.set(
            ctypes.util, "find_library", lambda name: "libcuda.so.1" if name == "cuda" else find(name)
        )
        yield
    finally:
        patches.undo()
