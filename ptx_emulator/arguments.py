"""Launch arguments: tensors become checked regions of emulated memory, tensor maps become the core's rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from .checks import checked, is_plain_tensor, shown
from .errors import LaunchError
from .im2col import Im2col
from .isa.base import GENERIC_PARAM, TYPES
from .ptx import Entry, Param

ADDRESS_BASE = 0x10_0000_0000  # start of emulated global memory
_ALIGN = 512  # the alignment that a GPU allocator guarantees
_GAP = 1 << 20  # unmapped bytes between two allocations, so that an overrun hits no other argument
SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3, "128B_atom_32B": 4}
# Element types by their names in numpy and in torch.
_TYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2", "int64": "s64", "int32": "s32", "int16": "s16", "int8": "s8", "uint64": "u64",
    "uint32": "u32", "uint16": "u16", "uint8": "u8", "bool": "u8",
}  # fmt: skip
_MAP_TYPES = {*_TYPES.values(), "tf32", "b8", "b16", "b32", "b64", "e2m1"}


@dataclass(frozen=True)
class Array:
    """A tensor argument as bytes in host memory."""

    name: str
    address: int  # host address of the first element
    low: int  # first host byte that the kernel may touch
    high: int  # one past the last
    root: tuple[int, int]  # host bytes of the allocation that this is a view of
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    itemsize: int
    type: str
    writable: bool
    keep: Any


def as_array(x: Any, name: str) -> Array | None:
    """Describe a numpy array or a torch CPU tensor; None for anything else."""
    if isinstance(x, np.ndarray):
        if x.dtype.hasobject:
            raise LaunchError(f"argument {name} is an array of Python objects")
        root = x
        while isinstance(root.base, np.ndarray):
            root = root.base
        lo, hi = np.lib.array_utils.byte_bounds(x)
        rlo, rhi = np.lib.array_utils.byte_bounds(root)
        extent = (min(rlo, lo), max(rhi, hi))
        kind = _TYPES.get(x.dtype.name, f"b{8 * x.itemsize}")
        return Array(
            name, x.ctypes.data, lo, hi, extent, x.shape, x.strides, x.itemsize, kind, x.flags.writeable, x
        )
    if hasattr(x, "untyped_storage"):
        if not is_plain_tensor(x) or x.device.type != "cpu":
            raise LaunchError(
                f"argument {name} is {shown(x)} on {x.device}; the emulator takes dense CPU tensors"
            )
        st = x.untyped_storage()
        size = x.element_size()
        strides = tuple(s * size for s in x.stride())
        low = x.data_ptr()
        high = low + (
            sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)) + size if x.numel() else 0
        )
        extent = (st.data_ptr(), st.data_ptr() + st.nbytes())
        kind = _TYPES.get(str(x.dtype).removeprefix("torch."), f"b{8 * size}")
        return Array(name, low, low, high, extent, tuple(x.shape), strides, size, kind, True, x)
    return None


@checked
@dataclass(frozen=True)
class TensorMap:
    """A tensor map over a numpy array or torch CPU tensor: the arguments of ``cuTensorMapEncodeTiled``.

    ``box``, ``dims`` and ``strides`` are innermost first, as in CUDA; ``strides`` are in bytes and omit the
    innermost dimension. ``dims`` and ``strides`` default to the array's own. ``fill`` is "zero" or "nan". A
    ``dtype`` of "e2m1" packs two elements into a byte, in global and in shared memory; ``dims`` and ``box``
    count elements. ``im2col`` makes the map one of ``cuTensorMapEncodeIm2col``, and ``box`` is then (channels
    per pixel, pixels per column).
    """

    array: Any
    box: Sequence[int]
    swizzle: str = "none"
    dims: Sequence[int] | None = None
    strides: Sequence[int] | None = None
    fill: str = "zero"
    dtype: str | None = None
    offset: int = 0  # bytes from the array's start to the map's base
    im2col: Im2col | None = None

    def row(self, address: int, base: int, a: Array, name: str) -> list[int]:
        """The map's row for the core, after a check against the hardware's limits.

        Raises:
            LaunchError: the hardware would refuse the map.
        """
        kind = str(self.dtype or a.type)
        size = {"8": 1, "16": 2, "32": 4, "64": 8}.get(
            kind.lstrip("busf"), 1 if kind in ("e4m3", "e5m2", "e2m1") else 2
        )
        per = 2 if kind == "e2m1" else 1  # elements of `size` bytes
        if kind in ("tf32",):
            size = 4

        def bad(why: str) -> LaunchError:
            return LaunchError(f"tensor map {name}: {why}")

        try:
            dims = [index(n) for n in (reversed(a.shape) if self.dims is None else self.dims)]
            strides = [
                index(n) for n in ([*reversed(a.strides)][1:] if self.strides is None else self.strides)
            ]
            box = [index(n) for n in self.box]
            offset = index(self.offset)
        except TypeError as error:
            raise bad(f"sizes and strides are integers ({error})") from None
        if len(strides) == len(dims):  # the caller gave the innermost stride too
            strides = strides[1:]
        im2col = self.im2col is not None
        if not 1 <= len(dims) <= 5 or (len(box) != len(dims) and not im2col) or len(strides) != len(dims) - 1:
            raise bad(f"rank: {len(dims)} dimensions, {len(box)} box sizes, {len(strides)} strides")
        pixels, lower, upper, steps = self._im2col_fields(dims, box, kind, bad)
        if self.swizzle not in SWIZZLES:
            raise bad(f"swizzle {shown(self.swizzle)} is not one of {', '.join(SWIZZLES)}")
        if self.fill not in ("zero", "nan"):
            raise bad(f"fill {shown(self.fill)} is neither zero nor nan")
        if not im2col and any(not 1 <= b <= 256 for b in box):
            raise bad(f"box {shown(box)} is outside 1 to 256")
        if any(not 0 <= d <= 1 << 32 for d in dims):
            raise bad(f"dimensions {shown(dims)} are outside 0 to 2^32")
        if dims[0] % per:
            raise bad(f"{dims[0]} elements of 4 bits are no whole bytes")
        if box[0] * size % (16 * per):
            raise bad(f"the innermost box extent is {box[0] * size / per:g} bytes, not a multiple of 16")
        span = {"32B": 32, "64B": 64, "128B": 128, "128B_atom_32B": 128}.get(self.swizzle)
        if span and box[0] * size > span * per:
            raise bad(
                f"the innermost box extent is {box[0] * size // per} bytes, more than the swizzle span {span}"
            )
        if any(s % 16 or not 0 <= s < 1 << 40 for s in strides):
            raise bad(f"strides {shown(strides)} must be multiples of 16 below 2^40")
        if (base + offset) % 16 or not 0 <= base + offset < 1 << 62:
            raise bad(f"the base address, {shown(offset)} bytes into the array, is not a multiple of 16")
        if kind not in _MAP_TYPES:
            raise bad(f"element type {shown(kind)} is not one of {', '.join(sorted(_MAP_TYPES))}")

        def five(v: list[int], fill: int) -> list[int]:
            return [*v, *[fill] * (5 - len(v))]

        return [address, base + offset, len(dims), size, *five(dims, 1), *five([size, *strides], 0),
                *five(box[:1] if im2col else box, 1), 1, *steps, 1, SWIZZLES[self.swizzle],
                int(self.fill == "nan"), TYPES[kind], 0, pixels, *lower, *upper]  # fmt: skip

    def _im2col_fields(
        self, dims: list[int], box: list[int], kind: str, bad: Callable[[str], LaunchError]
    ) -> tuple[int, list[int], list[int], list[int]]:
        """Pixels per column (0: a tiled map); lower corner, upper corner and steps, each of length 3."""
        if self.im2col is None:
            return 0, [0] * 3, [0] * 3, [1] * 3
        if kind == "e2m1":
            raise bad("im2col maps of elements of 4 bits are not supported")
        return self.im2col.fields(dims, box, bad)


#: PTX type -> its number in the bits of a map
_IMAGE_TYPES = {
    "u8": 0,
    "u16": 1,
    "u32": 2,
    "s32": 3,
    "u64": 4,
    "s64": 5,
    "f16": 6,
    "f32": 7,
    "f64": 9,
    "bf16": 10,
    "e2m1": 11,
    "tf32": 15,
}


#: The lowest four bits of an im2col map's image. They are the emulator's own: the hardware's bits are not
#: known.
IM2COL_IMAGE = 15


def map_image(row: Sequence[int]) -> bytes:
    """The 128 bytes of a tensor map in the kernel's memory, as core/exec_map.cpp decodes them.

    The image of an im2col map says only that it is one. The core knows the rest by the map's address, so a
    kernel can use such a map only where it was passed, not from a copy.
    """
    base, rank = row[1:3]
    dims, strides, box, steps = (row[i : i + 5] for i in (4, 9, 14, 19))
    swizzle, fill, type_, interleave = row[24:28]
    atom = int(swizzle == SWIZZLES["128B_atom_32B"])
    pixels = row[28]
    flags = (
        (IM2COL_IMAGE if pixels else 2)
        | (rank - 1) << 4
        | _image_type(type_) << 7
        | interleave << 11
        | (swizzle - atom) << 13
        | fill << 15
    )
    upper = sum((s >> 36 & 15) << 4 * i for i, s in enumerate(strides[1:]))
    spans = sum((s - 1) << 3 * i for i, s in enumerate(steps))
    lows = ((s >> 4) & 0xFFFFFFFF for s in strides[1:])
    extents = (max(n, 1) - 1 for n in dims)
    return struct.pack("<QI4II5IHx5B68x", base, flags | 1 << 18 | atom << 31, *lows, upper, *extents, spans,
                       *(n - 1 for n in box))  # fmt: skip


def _image_type(type_: int) -> int:
    """A type's number in the image: the hardware's, but for tf32. Bit types and 8-bit floats go by size."""
    name = next(name for name, number in TYPES.items() if number == type_)
    if name in _IMAGE_TYPES:
        return _IMAGE_TYPES[name]
    return {"16": 1, "32": 2, "64": 4}.get(name.lstrip("bus"), 0)


@checked
@dataclass(frozen=True)
class Struct:
    """A by-value parameter: fields in order, naturally aligned; tensors (pointers), numpy scalars or bytes.

    A :class:`TensorMap` field is the descriptor itself: 128 bytes at a multiple of 64, like a ``CUtensorMap``
    member of a structure. ``bytes`` are not aligned, so they can serve as padding or as a nested structure.
    ``names`` names the fields in messages.
    """

    fields: Sequence[Any]
    names: Sequence[str] = ()


def _float(p: Param, value: float, name: str) -> bytes:
    try:
        return struct.pack("<f" if p.size == 4 else "<d", value)
    except OverflowError:
        raise LaunchError(f"argument {name}: {shown(value)} does not fit .{p.type}") from None


class Arguments:
    """Packed parameters, memory regions and tensor maps of one launch."""

    def __init__(
        self, entry: Entry, args: Sequence[Any], names: Sequence[str] | None, memory: Sequence[Any] = ()
    ) -> None:
        if len(args) != len(entry.params):
            listing = ", ".join(
                f".{p.type}{f'[{p.size}]' if p.is_array else ''} {p.name}" for p in entry.params
            )
            raise LaunchError(
                f"kernel {entry.name} has {len(entry.params)} parameters ({listing}), "
                f"{len(args)} arguments given"
            )
        self.names = [str(n) for n in names] if names else [p.name for p in entry.params]
        if len(self.names) != len(args):
            raise LaunchError(f"{len(self.names)} names for {len(args)} arguments")
        self.arrays: list[Array] = []
        for a, n in zip(args, self.names, strict=True):
            self._collect(a, n)
        self._distant = bool(memory)
        for i, further in enumerate(memory):
            if as_array(further, f"memory {i}") is None:
                raise LaunchError(
                    f"memory {i} is a {type(further).__name__}, neither a numpy array nor a torch tensor"
                )
            self._collect(further, f"memory {i}")
        self.regions: list[list[int]] = []  # emulated base, size, host, writable
        self.region_names: list[str] = []
        self.map_rows: list[list[int]] = []
        self.blobs: list[np.ndarray] = []  # descriptors that live in global memory
        self._place()
        size = max((p.offset + p.size for p in entry.params), default=0)
        self.params = bytearray(size)
        for p, a, n in zip(entry.params, args, self.names, strict=True):
            self._pack(p, a, n)

    def _collect(self, a: Any, name: str) -> None:
        if isinstance(a, TensorMap):
            self._collect(a.array, name)
        elif isinstance(a, Struct):
            for f in a.fields:
                self._collect(f, name)
        elif (arr := as_array(a, name)) is not None:
            self.arrays.append(arr)

    def _place(self) -> None:
        """Give every allocation an emulated address; views of one allocation keep their distance.

        Where the kernel goes from one to another by their distance, all of them do.
        """
        groups: list[tuple[int, int, list[Array]]] = []
        for a in sorted(self.arrays, key=lambda a: a.root):
            if groups and a.root[0] < groups[-1][1]:
                lo, hi, members = groups[-1]
                groups[-1] = (lo, max(hi, a.root[1]), [*members, a])
            else:
                groups.append((a.root[0], a.root[1], [a]))
        self.next = ADDRESS_BASE
        self.bases: list[tuple[int, int, int]] = []  # host low, host high, emulated base
        lowest = groups[0][0] // _ALIGN * _ALIGN if groups else 0
        for lo, hi, members in groups:
            if self._distant:
                self.next = ADDRESS_BASE + lo - lowest
            live = [m for m in members if m.high > m.low]
            self.bases.append((lo, max(hi, lo + 1), self.next))
            if live:
                low, high = min(m.low for m in live), max(m.high for m in live)
                self.regions.append(
                    [self.next + low - lo, high - low, low, int(all(m.writable for m in live))]
                )
                self.region_names.append("/".join(dict.fromkeys(m.name for m in live)))
            self.next = (self.next + hi - lo + _GAP + _ALIGN - 1) // _ALIGN * _ALIGN

    def _address(self, a: Array) -> int:
        for lo, hi, base in self.bases:
            if lo <= a.address < hi or (a.address == lo):
                return base + a.address - lo
        raise LaunchError(f"argument {a.name}: no region")

    def _map(self, t: TensorMap, name: str, address: int) -> bytes:
        """Record the map at an address, and give the bytes to put there."""
        a = as_array(t.array, name)
        if a is None:
            raise LaunchError(
                f"tensor map {name}: {type(t.array).__name__} is neither a numpy array nor a torch tensor"
            )
        self.map_rows.append(t.row(address, self._address(a), a, name))
        return map_image(self.map_rows[-1])

    def _value(self, a: Any, name: str) -> bytes:
        if a is None:
            return bytes(8)
        if isinstance(a, np.generic):
            return a.tobytes()
        if isinstance(a, TensorMap):
            blob = np.zeros(128, np.uint8)
            self.blobs.append(blob)
            self.next = (self.next + 127) // 128 * 128
            self.regions.append([self.next, 128, blob.ctypes.data, 0])
            self.region_names.append(name)
            blob[:] = np.frombuffer(self._map(a, name, self.next), np.uint8)
            address, self.next = self.next, self.next + _GAP
            return struct.pack("<Q", address)
        if (arr := as_array(a, name)) is not None:
            return struct.pack("<Q", self._address(arr))
        raise LaunchError(f"argument {name}: a {type(a).__name__} cannot be passed here")

    def _struct(self, p: Param, a: Struct, name: str) -> bytes:
        raw = b""
        for i, f in enumerate(a.fields):
            label = f"{name}.{a.names[i]}" if i < len(a.names) else name
            if isinstance(f, TensorMap):
                raw += bytes(-len(raw) % 64)
                self._map(f, label, GENERIC_PARAM + p.offset + len(raw))
                raw += bytes(128)
            elif isinstance(f, bytes | bytearray):
                raw += bytes(f)
            else:
                v = self._value(f, label)
                raw += bytes(-len(raw) % len(v)) + v
        return raw

    def _pack(self, p: Param, a: Any, name: str) -> None:
        if isinstance(a, TensorMap) and p.is_array:
            if p.size != 128:
                raise LaunchError(
                    f"argument {name}: a tensor map takes 128 bytes, the parameter has {p.size}"
                )
            self.params[p.offset : p.offset + 128] = self._map(a, name, GENERIC_PARAM + p.offset)
            return
        if isinstance(a, Struct):
            raw = self._struct(p, a, name)
        elif isinstance(a, bytes | bytearray):
            raw = bytes(a)
        elif isinstance(a, bool | int | np.integer) and not p.is_array:
            bits = 8 * p.size
            if not -(1 << (bits - 1)) <= int(a) < 1 << bits:
                raise LaunchError(f"argument {name}: {shown(a)} does not fit .{p.type}")
            if p.type in ("f32", "f64"):
                raw = _float(p, float(a), name)
            else:
                raw = (int(a) & ((1 << bits) - 1)).to_bytes(p.size, "little")
        elif isinstance(a, float | np.floating) and p.type in ("f32", "f64", "b32", "b64"):
            raw = _float(p, float(a), name)
        else:
            raw = self._value(a, name)
        if len(raw) > p.size or (not isinstance(a, bytes | bytearray | Struct) and len(raw) != p.size):
            raise LaunchError(f"argument {name}: {len(raw)} bytes for parameter .{p.type} of {p.size} bytes")
        self.params[p.offset : p.offset + len(raw)] = raw
