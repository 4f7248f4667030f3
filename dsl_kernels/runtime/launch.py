"""Load a compiled variant and launch it through the CUDA driver, without a DSL or an allocation.

    kernel = load("path/of/the/artifact/folder")
    kernel.launch({"q": q, "out": out, "sm_scale": 0.1}, dims={"t": 4, "n": 8192}, stream=stream.cuda_stream)

A launch reads addresses and sizes on the host, packs them into a buffer that was laid out once, and calls
`cuLaunchKernelEx`. It neither allocates device memory nor synchronises, so a CUDA graph can capture it.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from itertools import count
from pathlib import Path
from typing import Any

from dsl_kernels.arguments import checked
from dsl_kernels.dtypes import DTYPES
from dsl_kernels.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    LaunchError,
    ResidencyError,
)
from dsl_kernels.expr import SCOPE, compile_expressions, names_in_all, tuple_text

from .artifact import SCALAR_FORMATS, Artifact, Operand, TensorMap, read
from .driver import Driver, get_driver
from .storage import read_file

# gridDimX/Y/Z, blockDimX/Y/Z, sharedMemBytes and hStream at the start of CUlaunchConfig.
_CONFIG_HEAD = struct.Struct("<7I4xQ")
# After that head: the offsets of the attributes' address and of their count.
_ATTRIBUTES_AT, _COUNT_AT = 40, 48
# Size of an attribute, and the offset of its value.
_ATTRIBUTE_BYTES, _VALUE_AT = 72, 8
_TENSOR_MAP_BYTES = 128
_TENSOR_MAP_LIMIT = 4096
_PORTABLE_CLUSTER = 8
_DEFAULT_DYNAMIC_SMEM = 48 * 1024


@checked
def load(folder: str | Path, *, verify: bool = True) -> LoadedKernel:
    """The kernel compiled into `folder`. `verify` compares the code with the recorded hashes."""
    folder = Path(folder)
    artifact = read(folder, verify=verify)
    return LoadedKernel(artifact, read_file(folder / "kernel.cubin"))


_apart = False


@contextmanager
def loaded_apart() -> Iterator[None]:
    """Kernels loaded inside this context launch without the cooperative and programmatic attributes.

    For profilers, which run one kernel at a time and may be unable to replay a launch with these attributes.
    Do not use it for anything else: a kernel whose CTAs wait for one another hangs if they do not all fit at
    once.
    """
    global _apart
    before, _apart = _apart, True
    try:
        yield
    finally:
        _apart = before


class LoadedKernel:
    """One compiled variant, ready to launch on any device of its architecture.

    Safe to use from several threads: the argument buffers are per thread.

    Attributes:
        alignment: bytes that an operand's address and row stride must be multiples of, by operand name, if
            its accesses are wider than an element. Operands of tensor maps always need 16.
    """

    def __init__(self, artifact: Artifact, cubin: bytes) -> None:
        if _apart:
            artifact = replace(artifact, cooperative=False, programmatic_launch=False, resident="")
        self.artifact = artifact
        self.name = artifact.variant
        self._cubin = cubin
        self._lock = threading.Lock()
        self._library: Any = None
        self._kernel: int = 0
        self._ready: set[int] = set()
        self._slots = threading.local()
        self._tensor_maps: dict[tuple[int, ...], tuple[int, Any]] = {}
        self._values = struct.Struct(
            "<" + "".join(_slot_format(p.kind) for p in artifact.params if p.kind != "tensormap")
        )
        self._fill, self._bind, self._derive = _binders(artifact, self._values)
        tensors = [o.name for o in artifact.operands if o.kind == "tensor"]
        self._anchor = tensors[0] if tensors else None
        self.alignment: Mapping[str, int] = {}

    def __repr__(self) -> str:
        return f"LoadedKernel({self.name})"

    def launch(
        self, operands: Mapping[str, Any], dims: Mapping[str, int] | None = None, stream: int = 0
    ) -> None:
        """Enqueue the kernel on `stream` (a CUstream address).

        Args:
            operands: Tensors and numbers by operand name. Only addresses are read; `check` compares the rest.
            dims: Every runtime dim by name; read from the operands' shapes and strides if omitted. `early` =
                0 makes a kernel with programmatic launch begin only after the kernel before it has ended.
            stream: Stream of the operands' device; 0 is the legacy default stream.

        A grid with a zero extent launches nothing.

        Raises:
            LaunchError: An operand or dim is missing or out of range, or the driver refused.
        """
        try:
            slot = getattr(self._slots, "slot", None) or self._new_slot(operands)
            sizes = self._derive(operands) if dims is None else dims
            maps = self._fill(operands, sizes, slot.arguments, slot.config_head, slot.early, stream)
        except (KeyError, AttributeError, TypeError) as error:
            raise self._explain(operands, dims, error) from None
        except struct.error as error:
            values, grid = self._bind(operands, sizes)
            raise self._out_of_range(values, grid, error) from None
        if maps is None:
            return
        if maps != slot.maps:
            slot.maps = None
            for index, key in zip(slot.map_indices, maps, strict=True):
                entry = self._tensor_maps.get(key) or self._encode(index, key)
                slot.pointers[index] = entry[0]
                slot.map_entries[index] = entry
            slot.maps = maps
        if slot.devices > 1:
            self._launch_on_its_device(operands, slot)
            return
        result = slot.call()[0]
        if result:
            raise self._refused(result, slot)

    __call__ = launch

    def check(self, operands: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> None:
        """Compare each operand's dtype, shape, strides, device and alignment with what the kernel expects.

        Too slow for every call; for tests, debugging and the first call of a shape.
        """
        known = {o.name for o in self.artifact.operands}
        if missing := sorted(known - set(operands)):
            raise self._missing("operand", missing, operands)
        dims = self._derive(operands) if dims is None else dims
        scope = {**dims, **{name: operands[name] for name in self.artifact.scalars}}
        if missing := sorted(set(self.artifact.dims) - set(scope)):
            raise self._missing("dim", missing, dims)
        device = None
        for spec in self.artifact.operands:
            value, label = operands[spec.name], f"{self.name}: operand {spec.name}"
            if spec.kind == "scalar":
                if not isinstance(value, (int, float)):
                    raise ArgumentTypeError(
                        label, expected=spec.dtype, got=type(value).__name__, fix="pass a Python number"
                    )
                continue
            # A DSL may report a dtype under our name or torch's.
            names = (spec.dtype, DTYPES[spec.dtype].torch_name) if spec.dtype in DTYPES else (spec.dtype,)
            if str(value.dtype).removeprefix("torch.") not in names:
                raise ArgumentTypeError(
                    label, expected=spec.dtype, got=str(value.dtype), fix="convert the tensor"
                )
            shape = _evaluate(spec.shape, scope)
            if tuple(value.shape) != shape:
                raise InvalidArgumentError(
                    label,
                    expected=f"shape {shape} = ({', '.join(spec.shape)})",
                    got=f"{tuple(value.shape)}",
                    fix="reshape or pass its dims",
                )
            strides = _evaluate(spec.strides, scope) if spec.strides else _contiguous(shape)
            if any(a != b for a, b, size in zip(value.stride(), strides, shape, strict=True) if size > 1):
                raise InvalidArgumentError(
                    label, expected=f"strides {strides}", got=f"{value.stride()}", fix="make it contiguous"
                )
            device = device or value.device
            if value.device != device:
                raise InvalidArgumentError(
                    label, expected=f"device {device}", got=str(value.device), fix="move it"
                )
            align = self._align(spec, value)
            if value.data_ptr() % align:
                raise InvalidArgumentError(
                    label,
                    expected=f"an address that is a multiple of {align} bytes",
                    got=hex(value.data_ptr()),
                    fix="pass a tensor that begins on such an address: .clone() makes one",
                )
            pitched = spec.strides and not _follow(spec.shape, spec.strides)
            outer = zip(strides[:-1], shape[:-1], strict=True) if pitched else ()
            steps = [step * value.element_size() for step, size in outer if size > 1]
            if any(step % align for step in steps):
                raise InvalidArgumentError(
                    label,
                    expected=f"rows that begin on multiples of {align} bytes",
                    got=f"strides of {', '.join(map(str, steps))} bytes",
                    fix=f"use a tensor whose rows begin on {align}-byte boundaries",
                )

    def _align(self, spec: Operand, value: Any) -> int:
        """The multiple in bytes that an operand's address must be."""
        mapped = any(m.operand == spec.name for m in self.artifact.tensor_maps)
        return max(self.alignment.get(spec.name, 1), 16 if mapped else 1, value.element_size())

    def prepare(self, device: int = 0) -> None:
        """Load the code onto `device` now, so that the first launch there does not pay for it."""
        driver = get_driver()
        context = driver.primary_context(device)
        with driver.current(context):
            self._ensure_loaded(device)
            driver.check(driver.api.cuKernelGetFunction(self._kernel_object), f"load {self.name}")

    def _new_slot(self, operands: Mapping[str, Any]) -> _Slot:
        driver = get_driver()
        device = self._device(operands) if driver.devices > 1 else driver.enter_any_context()
        with driver.current(driver.primary_context(device)):
            self._ensure_loaded(device)
        slot = _Slot(self.artifact, self._values.size, driver, self._kernel)
        self._slots.slot = slot
        return slot

    def _device(self, operands: Mapping[str, Any]) -> int:
        """The operands' device; without a tensor among them, the current one."""
        anchor = self._anchor
        return int(operands[anchor].get_device()) if anchor else get_driver().enter_any_context()

    def _ensure_loaded(self, device: int) -> None:
        """Load the library once, and set the kernel's attributes once per device."""
        if device in self._ready:
            return
        artifact, driver = self.artifact, get_driver()
        with self._lock:
            if device in self._ready:
                return
            driver.require_arch(device, artifact.arch, self.name)
            api = driver.api
            if self._library is None:
                loaded = api.cuLibraryLoadData(self._cubin, None, None, 0, None, None, 0)
                self._library = driver.check(loaded, f"load {self.name}")
                self._kernel_object = driver.check(
                    api.cuLibraryGetKernel(self._library, artifact.entry.encode()), artifact.entry
                )
                self._kernel = int(self._kernel_object)
            attribute = api.CUfunction_attribute
            wanted = {}
            if artifact.dynamic_smem > _DEFAULT_DYNAMIC_SMEM:
                wanted[attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = artifact.dynamic_smem
            if artifact.cluster[0] * artifact.cluster[1] * artifact.cluster[2] > _PORTABLE_CLUSTER:
                wanted[attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED] = 1
            for name, value in wanted.items():
                handle = driver.check(api.cuDeviceGet(device), "cuDeviceGet")
                driver.check(
                    api.cuKernelSetAttribute(name, value, self._kernel_object, handle),
                    f"{self.name}: {name.name}={value}",
                )
            self._ready.add(device)

    def _launch_on_its_device(self, operands: Mapping[str, Any], slot: _Slot) -> None:
        """With several devices, launch in the context of the operands' device, whichever is current."""
        driver, device = get_driver(), self._device(operands)
        with driver.current(driver.primary_context(device)):
            self._ensure_loaded(device)
            result = slot.call()[0]
        if result:
            raise self._refused(result, slot)

    def _encode(self, index: int, key: tuple[int, ...]) -> tuple[int, Any]:
        """Build and cache the tensor map of an address and sizes that were not seen before."""
        spec = next(m for m in self.artifact.tensor_maps if m.name == self.artifact.params[index].source)
        address, rank = key[1], len(spec.global_dims)
        encoded = _encode_tensor_map(spec, address, key[2 : 2 + rank], key[2 + rank :], self.name)
        storage = (ctypes.c_char * (_TENSOR_MAP_BYTES + 64))()
        aligned = (ctypes.addressof(storage) + 63) & ~63
        ctypes.memmove(aligned, int(encoded.getPtr()), _TENSOR_MAP_BYTES)
        with self._lock:
            if len(self._tensor_maps) >= _TENSOR_MAP_LIMIT:
                self._tensor_maps = {}
            entry = self._tensor_maps[key] = (aligned, storage)
        return entry

    def _explain(
        self, operands: Mapping[str, Any], dims: Mapping[str, int] | None, error: Exception
    ) -> LaunchError:
        known = [o.name for o in self.artifact.operands]
        if missing := [name for name in known if name not in operands]:
            return self._missing("operand", missing, operands)
        if dims is not None and (missing := sorted(set(self.artifact.dims) - set(dims))):
            return self._missing("dim", missing, dims)
        for spec in self.artifact.operands:
            if spec.kind == "tensor" and not hasattr(operands[spec.name], "data_ptr"):
                got = type(operands[spec.name]).__name__
                return LaunchError(
                    f"{self.name}: operand {spec.name}",
                    expected=f"a {spec.dtype} tensor",
                    got=got,
                    fix="pass a tensor",
                )
        return LaunchError(
            self.name,
            expected="operands and dims of the kernel",
            got=f"{type(error).__name__}: {error}",
            fix="see check()",
        )

    def _missing(self, what: str, missing: list[str], given: Mapping[str, Any]) -> LaunchError:
        return LaunchError(
            f"{self.name}: {what} {missing[0]}",
            expected=f"a value for {', '.join(missing)}",
            got=f"only {', '.join(given) or 'nothing'}",
            fix=f"pass every {what} of the artifact by name",
        )

    def _out_of_range(self, values: tuple[Any, ...], grid: tuple[int, ...], error: Exception) -> LaunchError:
        params = [p for p in self.artifact.params if p.kind != "tensormap"]
        for param, value in zip(params, values, strict=True):
            try:
                struct.pack(_slot_format(param.kind), value)
            except struct.error:
                return LaunchError(
                    f"{self.name}: {param.name}",
                    expected=f"a value that fits {param.kind}",
                    got=repr(value),
                    fix="pass a smaller problem",
                )
        return LaunchError(
            f"{self.name}: grid",
            expected="extents of 32 bits",
            got=f"{grid}: {error}",
            fix="pass a smaller problem",
        )

    def _refused(self, result: Any, slot: _Slot) -> LaunchError:
        a = self.artifact
        grid = _CONFIG_HEAD.unpack_from(slot.config_head)[:3]
        crowded = result.name == "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE"
        return (ResidencyError if crowded else LaunchError)(
            self.name,
            expected="the driver to accept the launch",
            got=f"{get_driver().describe(result)} for grid {grid}, block {a.block}, cluster {a.cluster}, "
            f"{a.dynamic_smem} B dynamic shared memory",
            fix="pass fewer splits: these CTAs wait for one another, "
            "so all must run at once on the stream's SMs"
            if crowded
            else "check grid limits (y and z: 65535), the stream's device, and earlier asynchronous errors",
        )


class _Slot:
    """One thread's launch configuration and argument buffer, laid out once."""

    def __init__(self, artifact: Artifact, size: int, driver: Driver, kernel: int) -> None:
        api = driver.api
        self.devices = driver.devices
        self.config = api.CUlaunchConfig()
        attributes = _attributes(artifact, api)
        self.config.attrs = attributes
        self.config.numAttrs = len(attributes)
        self.config_head = (ctypes.c_char * (_COUNT_AT + 4)).from_address(int(self.config.getPtr()))
        self.early = None
        for index, attribute in enumerate(attributes):
            if attribute.id == _early_kind(api):
                (first,) = struct.unpack_from("<Q", self.config_head, _ATTRIBUTES_AT)
                at = first + index * _ATTRIBUTE_BYTES + _VALUE_AT
                # The word that the driver reads to decide whether a launch may begin early.
                self.early = (ctypes.c_char * 4).from_address(at)
        self.arguments = ctypes.create_string_buffer(max(size, 8))
        self.pointers = (ctypes.c_void_p * max(len(artifact.params), 1))()
        self.parameters = ctypes.addressof(self.pointers)
        self.call: Callable[[], tuple[Any]] = partial(
            api.cuLaunchKernelEx, self.config, kernel, self.parameters, 0
        )
        self.map_indices = [i for i, p in enumerate(artifact.params) if p.kind == "tensormap"]
        # Keys of the tensor maps that `pointers` holds.
        self.maps: tuple[Any, ...] | None = ()
        # Keeps the tensor maps of the last launch alive when the shared cache drops them.
        self.map_entries: dict[int, tuple[int, Any]] = {}
        address = ctypes.addressof(self.arguments)
        for index, param in enumerate(artifact.params):
            if param.kind != "tensormap":
                self.pointers[index] = address
                address += 8


def _attributes(artifact: Artifact, api: Any) -> list[Any]:
    attributes = []

    def add(kind: Any, assign: Callable[[Any], None]) -> None:
        attribute = api.CUlaunchAttribute()
        attribute.id = kind
        value = api.CUlaunchAttributeValue()
        assign(value)
        attribute.value = value
        attributes.append(attribute)

    def cluster(value: Any) -> None:
        value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = artifact.cluster

    kinds = api.CUlaunchAttributeID
    if artifact.cluster != (1, 1, 1):
        add(kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, cluster)
    if artifact.programmatic_launch:
        add(_early_kind(api), lambda value: setattr(value, "programmaticStreamSerializationAllowed", 1))
    if artifact.cooperative:
        add(kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, lambda value: setattr(value, "cooperative", 1))
    return attributes


def _early_kind(api: Any) -> Any:
    return api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


def _attribute_count(artifact: Artifact) -> int:
    """The most attributes that a launch has."""
    return (artifact.cluster != (1, 1, 1)) + artifact.programmatic_launch + artifact.cooperative


def _binders(
    artifact: Artifact, values: struct.Struct
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., dict[str, int]]]:
    """Three functions generated for this kernel, so that a launch does not loop over the description.

    The first takes (operands, dims, arguments, config, early, stream), packs the parameter values and the
    head of the launch configuration, and returns one key for each tensor map, or None if the grid is empty.
    The second takes (operands, dims) and returns the values and the grid. The third reads the dims from the
    operands' shapes and strides. The artifact has checked all names and expressions.
    """
    for name in (*artifact.dims, *(o.name for o in artifact.operands)):
        if not name.isidentifier():
            raise LaunchError(
                artifact.variant,
                expected="identifiers as names",
                got=repr(name),
                fix="compile the variant again",
            )
    sources = [p.source for p in artifact.params if p.kind in SCALAR_FORMATS]
    sizes = [text for m in artifact.tensor_maps for text in (*m.global_dims, *m.global_strides)]
    resident = [artifact.resident] if artifact.cooperative and artifact.resident else []
    used = names_in_all((*sources, *sizes, *artifact.grid, *resident))
    maps = {m.name: m for m in artifact.tensor_maps}
    mapped = [(i, maps[p.source]) for i, p in enumerate(artifact.params) if p.kind == "tensormap"]

    # The generated code's own names begin with an underscore, so no dim or operand can shadow them.
    read = [
        f"    {name} = _o[{name!r}]" if name in artifact.scalars else f"    {name} = _d[{name!r}]"
        for name in sorted(used)
    ]
    packed = [
        f"_o[{p.source!r}].data_ptr()" if p.kind == "pointer" else p.source
        for p in artifact.params
        if p.kind != "tensormap"
    ]
    keys = [
        tuple_text([str(i), f"_o[{m.operand!r}].data_ptr()", *m.global_dims, *m.global_strides])
        for i, m in mapped
    ]
    fixed = ", ".join(map(str, (*artifact.block, artifact.dynamic_smem)))
    reads = {
        name: f"_o[{operand!r}]." + (f"shape[{axis}]" if what == "shape" else f"stride({axis})")
        for name, (operand, what, axis) in artifact.dims.items()
    }
    lines = [
        "def fill(_o, _d, _arguments, _config, _early, _stream):",
        *read,
        f"    _x, _y, _z = {tuple_text(artifact.grid)}",
        "    if not (_x and _y and _z):",
        "        return None",
        f"    _pack_config(_config, 0, _x, _y, _z, {fixed}, _stream)",
        # `_attributes` puts the cooperative attribute last, so a smaller count drops it.
        *(
            f"    _pack_word(_config, {_COUNT_AT}, {_attribute_count(artifact)} - (not ({text})))"
            for text in resident
        ),
        *(["    _pack_word(_early, 0, _d.get('early', 1))"] if artifact.programmatic_launch else []),
        f"    _pack_values(_arguments, 0, {', '.join(packed)})",
        f"    return {tuple_text(keys)}",
        "def bind(_o, _d):",
        *read,
        f"    return {tuple_text(packed)}, {tuple_text(artifact.grid)}",
        "def derive(_o):",
        "    return {" + ", ".join(f"{name!r}: {text}" for name, text in reads.items()) + "}",
    ]
    scope: dict[str, Any] = {
        **SCOPE,
        "_pack_values": values.pack_into,
        "_pack_config": _CONFIG_HEAD.pack_into,
        "_pack_word": struct.Struct("<I").pack_into,
    }
    exec("\n".join(lines), scope)
    return scope["fill"], scope["bind"], scope["derive"]


def _slot_format(kind: str) -> str:
    """Struct code of one parameter, padded to 8 bytes."""
    code = "Q" if kind == "pointer" else SCALAR_FORMATS[kind]
    return f"{code}{8 - struct.calcsize('<' + code)}x"


def _evaluate(expressions: tuple[str, ...], scope: Mapping[str, Any]) -> tuple[int, ...]:
    names = sorted(names_in_all(expressions))
    return compile_expressions(expressions, names)(*(scope[n] for n in names))


@lru_cache(maxsize=1024)
def _follow(shape: tuple[str, ...], strides: tuple[str, ...]) -> bool:
    """Whether the strides are those of a contiguous tensor for all dims, so that no call can choose a pitch.

    One tuple of distinct primes decides: other expressions do not agree on it by chance.
    """
    names = sorted(names_in_all((*shape, *strides)))
    primes = (n for n in count(1009) if all(n % d for d in range(2, 100)))
    scope = dict(zip(names, primes, strict=False))
    return _evaluate(strides, scope) == _contiguous(_evaluate(shape, scope))


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def _encode_tensor_map(
    spec: TensorMap, address: int, dims: tuple[int, ...], strides: tuple[int, ...], variant: str
) -> Any:
    driver = get_driver()
    api = driver.api
    u64, u32 = api.cuuint64_t, api.cuuint32_t
    result = api.cuTensorMapEncodeTiled(
        getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{spec.dtype}"),
        len(dims),
        address,
        [u64(d) for d in dims],
        # A one-dimensional map has no strides, but the driver refuses an empty array of them.
        [u64(s) for s in strides or (16,)],
        [u32(b) for b in spec.box],
        [u32(s) for s in spec.element_strides],
        getattr(api.CUtensorMapInterleave, f"CU_TENSOR_MAP_INTERLEAVE_{spec.interleave}"),
        getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{spec.swizzle}"),
        getattr(api.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{spec.l2_promotion}"),
        getattr(api.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{spec.oob_fill}"),
    )
    if result[0]:
        raise LaunchError(
            f"{variant}: tensor map of {spec.operand}",
            expected="a 16-byte aligned address, sizes of at least 1 and "
            "strides that are multiples of 16 bytes",
            got=f"{driver.describe(result[0])} for "
            f"address {address:#x}, dims {dims}, strides {strides} bytes",
            fix="pass a contiguous, aligned tensor that is not empty",
        )
    return result[1]
