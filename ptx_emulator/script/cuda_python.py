"""``cuda.bindings`` while a program is checked: recording functions replace its functions; its types stay.

A call of a function that is not recorded raises :class:`UnsupportedCall`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ..descriptors import SIZE, Descriptor
from .driver import INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, SUCCESS, VERSION, Driver
from .errors import UnsupportedCall
from .hooks import Patches

Answer = tuple[int, tuple[Any, ...]]


def _ok(*values: Any) -> Answer:
    return SUCCESS, values


def _status(code: int) -> Answer:
    return code, ()


def _address(value: Any) -> int:
    """The address in an integer or a handle of the bindings, or of an object's buffer."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    if hasattr(value, "__int__"):
        return int(value)
    if hasattr(value, "ctypes"):  # a numpy array
        return int(value.ctypes.data)
    if hasattr(value, "data_ptr"):
        return int(value.data_ptr())
    if hasattr(value, "getPtr"):
        return int(value.getPtr())
    return (
        ctypes.addressof((ctypes.c_char * 0).from_buffer(value))
        if isinstance(value, bytearray)
        else _bytes(value)
    )


def _bytes(value: Any) -> int:
    if isinstance(value, bytes):
        return ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value or 0
    raise UnsupportedCall(
        "a pointer argument of cuda.bindings",
        got=type(value).__name__,
        fix="pass an integer, an array or a handle",
    )


def _parameters(value: Any) -> tuple[int, Any]:
    """The address of an array of pointers to parameters, and the objects that keep it alive."""
    if value is None or (isinstance(value, int) and not value):
        return 0, None
    if not isinstance(value, tuple):
        return _address(value), value
    values, types = value
    kept: list[Any] = []
    pointers = (ctypes.c_void_p * max(len(values), 1))()
    for i, (item, kind) in enumerate(zip(values, types, strict=True)):
        if kind is None:
            pointers[i] = int(item.getPtr())
            kept.append(item)
        else:
            cell = kind(int(item) if kind not in (ctypes.c_float, ctypes.c_double) else float(item))
            pointers[i] = ctypes.addressof(cell)
            kept.append(cell)
    return ctypes.addressof(pointers), (pointers, kept)


class Bindings:
    """The recording functions of the driver's and the runtime's module; DRIVER and RUNTIME name them."""

    def __init__(self, driver: Driver, types: ModuleType) -> None:
        self.driver, self.session, self.types = driver, driver.session, types

    # Device and context

    def init(self, flags: int = 0) -> Answer:
        return _ok()

    def version(self) -> Answer:
        return _ok(VERSION)

    def count(self) -> Answer:
        return _ok(1)

    def attribute(self, attribute: Any, device: Any = 0) -> Answer:
        return _ok(self.driver.attribute(int(attribute)))

    def nothing(self, *_: Any, **__: Any) -> Answer:
        return _ok()

    def name(self, length: int, device: Any = 0) -> Answer:
        return _ok(self.session.device.name.encode()[: length - 1])

    def capability(self, device: Any = 0) -> Answer:
        return _ok(*self.session.device.capability)

    def memory_info(self) -> Answer:
        return _ok(self.session.device.memory_bytes, self.session.device.memory_bytes)

    def total_memory(self, device: Any = 0) -> Answer:
        return _ok(self.session.device.memory_bytes)

    def one(self, *_: Any, **__: Any) -> Answer:
        return _ok(1)

    def error_text(self, error: Any) -> Answer:
        return _ok(getattr(error, "name", f"CUDA error {int(error)}").encode())

    # Memory

    def allocate(self, size: int, *_: Any) -> Answer:
        return _ok(self.session.memory.allocate(int(size))) if int(size) > 0 else _status(INVALID_VALUE)

    def free(self, pointer: Any, *_: Any) -> Answer:
        address = _address(pointer)
        return _status(SUCCESS if not address or self.session.memory.free(address) else INVALID_VALUE)

    def copy(self, to: Any, source: Any, size: int, stream: Any = 0) -> Answer:
        return _status(self.driver.copy(_address(to), _address(source), int(size), _address(stream)))

    def runtime_copy(self, to: Any, source: Any, size: int, kind: Any, stream: Any = 0) -> Answer:
        return self.copy(to, source, size, stream)

    def fill(self, to: Any, value: int, count: int, stream: Any = 0, *, width: int = 1) -> Answer:
        pattern = (int(value) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        return _status(self.driver.fill(_address(to), pattern, int(count), _address(stream)))

    # Streams, events, graphs

    def stream(self, *_: Any) -> Answer:
        handle = self.driver.handle()
        self.driver.streams.add(handle)
        return _ok(handle)

    def event(self, *_: Any) -> Answer:
        handle = self.driver.handle()
        self.driver.events[handle] = None
        return _ok(handle)

    def record(self, event: Any, stream: Any = 0) -> Answer:
        return _status(self.driver.record(_address(event), _address(stream)))

    def wait(self, stream: Any, event: Any, flags: int = 0) -> Answer:
        return _status(self.driver.wait(_address(stream), _address(event)))

    def elapsed(self, start: Any, end: Any) -> Answer:
        self.session.note("times are not measured: every event says 1 ms")
        return _ok(1.0)

    def begin_capture(self, stream: Any, mode: Any = 0) -> Answer:
        self.session.begin_capture(_address(stream))
        return _ok()

    def end_capture(self, stream: Any) -> Answer:
        graph = self.session.end_capture(_address(stream))
        if graph is None:
            return _status(901)
        handle = self.driver.handle()
        self.driver.graphs[handle] = graph
        return _ok(handle)

    def instantiate(self, graph: Any, *_: Any) -> Answer:
        return _ok(_address(graph)) if _address(graph) in self.driver.graphs else _status(INVALID_VALUE)

    def launch_graph(self, graph: Any, stream: Any = 0) -> Answer:
        recorded = self.driver.graphs.get(_address(graph))
        if recorded is None:
            return _status(INVALID_VALUE)
        self.session.enqueue(_address(stream), recorded.run)
        return _ok()

    # Modules and launches

    def load(self, image: Any, *_: Any) -> Answer:
        data = image if isinstance(image, bytes | bytearray) else None
        if data is None and hasattr(image, "tobytes"):
            data = image.tobytes()
        if data is None:
            data = ctypes.string_at(_address(image))
        return _ok(self.driver.load(bytes(data)))

    def function(self, module: Any, name: bytes) -> Answer:
        handle = self.driver.function(_address(module), name.decode())
        return _status(NOT_FOUND) if handle is None else _ok(handle)

    def same(self, handle: Any) -> Answer:
        return _ok(_address(handle))

    def unload(self, module: Any) -> Answer:
        return _status(
            SUCCESS if self.driver.modules.pop(_address(module), None) is not None else INVALID_HANDLE
        )

    def encode(
        self, kind: Any, rank: int, address: Any, dims: Sequence[Any], strides: Sequence[Any],
        box: Sequence[Any], steps: Sequence[Any], interleave: Any, swizzle: Any, promotion: Any, fill: Any,
    ) -> Answer:  # fmt: skip
        """cuTensorMapEncodeTiled."""
        extents, pitches, boxes, jumps = (
            tuple(int(v) for v in values) for values in (dims, strides, box, steps)
        )
        descriptor = Descriptor(
            _address(address),
            int(kind),
            extents,
            pitches,
            boxes,
            jumps,
            int(swizzle),
            int(interleave),
            int(fill),
        )
        descriptor.row(0, f"of the call of cuTensorMapEncodeTiled over {_address(address):#x}")
        made = self.types.CUtensorMap()
        ctypes.memmove(int(made.getPtr()), descriptor.encode(), SIZE)
        return _ok(made)

    def encode_im2col(
        self, kind: Any, rank: int, address: Any, dims: Sequence[Any], strides: Sequence[Any],
        lower: Sequence[Any], upper: Sequence[Any], channels: Any, pixels: Any, steps: Sequence[Any],
        interleave: Any, swizzle: Any, promotion: Any, fill: Any,
    ) -> Answer:  # fmt: skip
        """cuTensorMapEncodeIm2col."""
        extents, pitches, jumps, low, high = (
            tuple(int(v) for v in values) for values in (dims, strides, steps, lower, upper)
        )
        descriptor = Descriptor(
            _address(address), int(kind), extents, pitches, (int(channels), int(pixels)), jumps, int(swizzle),
            int(interleave), int(fill), low, high,
        )  # fmt: skip
        descriptor.row(0, f"of the call of cuTensorMapEncodeIm2col over {_address(address):#x}")
        made = self.types.CUtensorMap()
        ctypes.memmove(int(made.getPtr()), descriptor.encode(), SIZE)
        return _ok(made)

    def launch(
        self, function: Any, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, smem: int, stream: Any,
        params: Any, extra: Any = 0,
    ) -> Answer:  # fmt: skip
        address, _keep = _parameters(params)
        return _status(
            self.driver.launch(
                _address(function), (gx, gy, gz), (bx, by, bz), int(smem), _address(stream), address,
                _address(extra), source="cuda.bindings",
            )
        )  # fmt: skip

    def launch_with(self, config: Any, function: Any, params: Any, extra: Any = 0) -> Answer:
        address, _keep = _parameters(params)
        attributes = []
        for item in list(config.attrs)[: config.numAttrs]:
            value = item.value
            by_name = {
                4: lambda v: (v.clusterDim.x, v.clusterDim.y, v.clusterDim.z),
                2: lambda v: (v.cooperative, 0, 0),
                6: lambda v: (v.programmaticStreamSerializationAllowed, 0, 0),
            }
            if int(item.id) in by_name:
                attributes.append((int(item.id), by_name[int(item.id)](value)))
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        block = (config.blockDimX, config.blockDimY, config.blockDimZ)
        return _status(
            self.driver.launch(
                _address(function), grid, block, int(config.sharedMemBytes), _address(config.hStream),
                address, _address(extra), attributes, "cuda.bindings",
            )
        )  # fmt: skip


#: function of cuda.bindings.driver -> (method of Bindings, type that wraps its value)
DRIVER: dict[str, tuple[str, str | None]] = {
    "cuInit": ("init", None), "cuDriverGetVersion": ("version", None), "cuDeviceGetCount": ("count", None),
    "cuDeviceGet": ("same", "CUdevice"), "cuDeviceGetAttribute": ("attribute", None),
    "cuDeviceGetName": ("name", None), "cuDeviceComputeCapability": ("capability", None),
    "cuDeviceTotalMem": ("total_memory", None), "cuCtxCreate": ("one", "CUcontext"),
    "cuCtxGetCurrent": ("one", "CUcontext"), "cuCtxSetCurrent": ("nothing", None),
    "cuCtxPushCurrent": ("nothing", None), "cuCtxPopCurrent": ("one", "CUcontext"),
    "cuCtxDestroy": ("nothing", None), "cuCtxSynchronize": ("nothing", None),
    "cuDevicePrimaryCtxRetain": ("one", "CUcontext"), "cuDevicePrimaryCtxRelease": ("nothing", None),
    "cuGetErrorName": ("error_text", None), "cuGetErrorString": ("error_text", None),
    "cuMemGetInfo": ("memory_info", None), "cuModuleLoadData": ("load", "CUmodule"),
    "cuModuleLoadDataEx": ("load", "CUmodule"), "cuModuleUnload": ("unload", None),
    "cuModuleGetFunction": ("function", "CUfunction"), "cuLibraryLoadData": ("load", "CUlibrary"),
    "cuLibraryUnload": ("unload", None), "cuLibraryGetKernel": ("function", "CUkernel"),
    "cuKernelGetFunction": ("same", "CUfunction"), "cuFuncSetAttribute": ("nothing", None),
    "cuKernelSetAttribute": ("nothing", None), "cuFuncSetCacheConfig": ("nothing", None),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": ("one", None), "cuMemAlloc": ("allocate", "CUdeviceptr"),
    "cuMemAllocAsync": ("allocate", "CUdeviceptr"), "cuMemAllocManaged": ("allocate", "CUdeviceptr"),
    "cuMemAllocHost": ("allocate", None), "cuMemFree": ("free", None), "cuMemFreeAsync": ("free", None),
    "cuMemFreeHost": ("free", None), "cuMemcpyHtoD": ("copy", None), "cuMemcpyDtoH": ("copy", None),
    "cuMemcpyDtoD": ("copy", None), "cuMemcpy": ("copy", None), "cuMemcpyHtoDAsync": ("copy", None),
    "cuMemcpyDtoHAsync": ("copy", None), "cuMemcpyDtoDAsync": ("copy", None), "cuMemcpyAsync": ("copy", None),
    "cuMemsetD8": ("fill", None), "cuMemsetD8Async": ("fill", None), "cuMemsetD16": ("fill:2", None),
    "cuMemsetD16Async": ("fill:2", None), "cuMemsetD32": ("fill:4", None),
    "cuMemsetD32Async": ("fill:4", None), "cuStreamCreate": ("stream", "CUstream"),
    "cuStreamCreateWithPriority": ("stream", "CUstream"), "cuStreamDestroy": ("nothing", None),
    "cuStreamSynchronize": ("nothing", None), "cuStreamQuery": ("nothing", None),
    "cuStreamWaitEvent": ("wait", None), "cuStreamBeginCapture": ("begin_capture", None),
    "cuStreamEndCapture": ("end_capture", "CUgraph"), "cuEventCreate": ("event", "CUevent"),
    "cuEventDestroy": ("nothing", None), "cuEventRecord": ("record", None),
    "cuEventSynchronize": ("nothing", None), "cuEventQuery": ("nothing", None),
    "cuEventElapsedTime": ("elapsed", None), "cuGraphInstantiate": ("instantiate", "CUgraphExec"),
    "cuGraphLaunch": ("launch_graph", None), "cuGraphDestroy": ("nothing", None),
    "cuGraphExecDestroy": ("nothing", None), "cuTensorMapEncodeIm2col": ("encode_im2col", None),
    "cuTensorMapEncodeTiled": ("encode", None), "cuLaunchKernel": ("launch", None),
    "cuLaunchKernelEx": ("launch_with", None),
}  # fmt: skip
#: the same for cuda.bindings.runtime
RUNTIME: dict[str, tuple[str, str | None]] = {
    "cudaGetDeviceCount": ("count", None), "cudaGetDevice": ("zero", None),
    "cudaSetDevice": ("nothing", None), "cudaDeviceGetAttribute": ("attribute", None),
    "cudaDeviceSynchronize": ("nothing", None), "cudaDriverGetVersion": ("version", None),
    "cudaRuntimeGetVersion": ("version", None), "cudaGetLastError": ("nothing", None),
    "cudaPeekAtLastError": ("nothing", None), "cudaGetErrorName": ("error_text", None),
    "cudaGetErrorString": ("error_text", None), "cudaMemGetInfo": ("memory_info", None),
    "cudaMalloc": ("allocate", None), "cudaMallocAsync": ("allocate", None),
    "cudaMallocManaged": ("allocate", None), "cudaMallocHost": ("allocate", None), "cudaFree": ("free", None),
    "cudaFreeAsync": ("free", None), "cudaFreeHost": ("free", None), "cudaMemcpy": ("runtime_copy", None),
    "cudaMemcpyAsync": ("runtime_copy", None), "cudaMemset": ("fill", None),
    "cudaMemsetAsync": ("fill", None), "cudaStreamCreate": ("stream", "cudaStream_t"),
    "cudaStreamCreateWithFlags": ("stream", "cudaStream_t"), "cudaStreamDestroy": ("nothing", None),
    "cudaStreamSynchronize": ("nothing", None), "cudaStreamQuery": ("nothing", None),
    "cudaStreamWaitEvent": ("wait", None), "cudaStreamBeginCapture": ("begin_capture", None),
    "cudaStreamEndCapture": ("end_capture", "cudaGraph_t"), "cudaEventCreate": ("event", "cudaEvent_t"),
    "cudaEventCreateWithFlags": ("event", "cudaEvent_t"), "cudaEventDestroy": ("nothing", None),
    "cudaEventRecord": ("record", None), "cudaEventSynchronize": ("nothing", None),
    "cudaEventElapsedTime": ("elapsed", None), "cudaGraphInstantiate": ("instantiate", "cudaGraphExec_t"),
    "cudaGraphLaunch": ("launch_graph", None), "cudaGraphDestroy": ("nothing", None),
    "cudaGraphExecDestroy": ("nothing", None),
}  # fmt: skip


def _function(bindings: Bindings, name: str, method: str, kind: str | None) -> Callable[..., Any]:
    status = bindings.types.CUresult if hasattr(bindings.types, "CUresult") else bindings.types.cudaError_t
    base, _, width = method.partition(":")
    wrap = getattr(bindings.types, kind) if kind else None

    def call(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if base == "zero":
            return status(SUCCESS), 0
        if width:
            kwargs["width"] = int(width)
        code, values = getattr(bindings, base)(*args, **kwargs)
        return status(code), *((wrap(v) for v in values) if wrap else values)

    call.__name__ = name
    return call


def _refused(name: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise UnsupportedCall(
            name,
            got="a call of it by cuda.bindings",
            fix="use a recorded call in its place, or run the program on a GPU",
        )

    call.__name__ = name
    return call


@contextmanager
def install(
    driver: Driver, module: ModuleType, table: dict[str, tuple[str, str | None]], prefix: str
) -> Iterator[None]:
    """Replace the functions of a module of cuda.bindings while the context is open."""
    patches, bindings = Patches(), Bindings(driver, module)
    try:
        for name in dir(module):
            if not name.startswith(prefix) or isinstance(getattr(module, name), type | int):
                continue
            if name in table:
                patches.set(module, name, _function(bindings, name, *table[name]))
            elif callable(getattr(module, name)):
                patches.set(module, name, _refused(name))
        yield
    finally:
        patches.undo()
