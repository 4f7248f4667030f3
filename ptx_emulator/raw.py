"""Launches as a driver sees them: parameters as bytes, memory at given addresses, descriptors in either."""

from __future__ import annotations

import bisect
import ctypes
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .arguments import TensorMap, as_array, map_image
from .checks import checked, shown
from .descriptors import ALIGN, SIZE, Descriptor, found
from .errors import LaunchError
from .isa.base import GENERIC_PARAM, GENERIC_SHARED
from .ptx import Entry

SCAN = 4 << 20  # regions of more bytes are not searched for descriptors
_WINDOWS = (GENERIC_SHARED, GENERIC_PARAM + 0x100_0000_0000)  # generic addresses of the other state spaces


@checked
@dataclass(frozen=True)
class Region:
    """Memory that a kernel may touch, at an address of the caller's choice.

    ``memory`` is a contiguous numpy array or torch CPU tensor, or a pair (host address, bytes) that the
    caller keeps alive. ``address`` is the address that the kernel sees. None means the host's own address, so
    that pointers of the host program stay valid.
    """

    memory: Any
    address: int | None = None
    name: str = ""
    writable: bool = True

    def row(self, index: int) -> tuple[int, int, int, int, str]:
        """Emulated base, bytes, host address, whether the kernel may write (0 or 1), and name."""
        name = self.name or f"region {index}"
        writable = self.writable
        if isinstance(self.memory, tuple):
            host, size = (int(n) for n in self.memory)
        else:
            array = as_array(self.memory, name)
            if array is None:
                raise LaunchError(
                    f"{name}: expected an array, a CPU tensor or (address, bytes), got {shown(self.memory)}"
                )
            host, size, writable = array.low, array.high - array.low, writable and array.writable
        return (host if self.address is None else self.address), size, host, int(writable), name


@checked
@dataclass(frozen=True)
class RawArguments:
    """Arguments of :func:`launch` as bytes, with the memory that their addresses point into.

    ``params`` is the whole parameter buffer, or the bytes of each parameter in order. ``tensor_maps`` puts a
    :class:`TensorMap` (over an array of ``memory``) or a :class:`Descriptor` at a byte offset of the buffer,
    for instance inside a structure. The emulator finds descriptors that ``Descriptor.encode`` wrote in the
    parameters and in regions up to 4 MiB, and descriptors in the hardware's bits in the parameters.
    """

    params: bytes | Sequence[bytes]
    memory: Sequence[Region] = ()
    tensor_maps: Mapping[int, Any] = field(default_factory=dict)


class RawPacked:
    """Parameters, regions and tensor maps of one launch, as :class:`Arguments` has them for tensors."""

    def __init__(self, entry: Entry, raw: RawArguments) -> None:
        rows = sorted(region.row(i) for i, region in enumerate(raw.memory))
        rows = [row for row in rows if row[1] > 0]
        for (base, size, _, _, name), (after, _, _, _, other) in itertools.pairwise(rows):
            if base + size > after:
                raise LaunchError(f"regions {name} and {other} overlap at {after:#x}")
        for base, size, _, _, name in rows:
            if base <= 0 or base + size >= 1 << 63 or (base < _WINDOWS[1] and base + size > _WINDOWS[0]):
                raise LaunchError(
                    f"region {name} at {base:#x} lies in no global memory: "
                    f"keep below {_WINDOWS[0]:#x} or above {_WINDOWS[1]:#x}"
                )
        self._bases = [row[0] for row in rows]
        self._rows = rows
        self.regions = [list(row[:4]) for row in rows]
        self.region_names = [row[4] for row in rows]
        self.blobs: list[Any] = [raw.memory]
        self.params = bytearray(self._buffer(entry, raw.params))
        self.map_rows: list[list[int]] = []
        given: dict[int, Descriptor] = {}
        for offset, tensor_map in raw.tensor_maps.items():
            if not 0 <= offset <= len(self.params) - SIZE or offset % ALIGN:
                raise LaunchError(
                    f"a tensor map at byte {offset}: "
                    f"expected a multiple of {ALIGN} that leaves {SIZE} of {len(self.params)} bytes"
                )
            self.map_rows.append(self._map(tensor_map, GENERIC_PARAM + offset, offset))
        for offset in range(0, len(self.params) - 63, ALIGN):
            if offset in raw.tensor_maps:
                continue
            data = bytes(self.params[offset : offset + SIZE])
            descriptor = Descriptor.decode(data) or Descriptor.from_hardware(data, self._mapped)
            if descriptor is not None:
                given[GENERIC_PARAM + offset] = descriptor
        for base, size, host, _, _ in rows:
            if size <= SCAN:
                given.update(found(ctypes.string_at(host, size), base))
        for at, descriptor in given.items():
            self.map_rows.append(descriptor.row(at, f"at {at:#x}"))
        for row in self.map_rows:  # the bytes that a kernel reads when it copies its parameter
            offset = row[0] - GENERIC_PARAM
            if 0 <= offset <= len(self.params) - SIZE:
                self.params[offset : offset + SIZE] = map_image(row)

    @staticmethod
    def _buffer(entry: Entry, params: bytes | Sequence[bytes]) -> bytes:
        size = max((p.offset + p.size for p in entry.params), default=0)
        if isinstance(params, bytes | bytearray):
            if len(params) > size:
                raise LaunchError(f"{len(params)} bytes of parameters, kernel {entry.name} takes {size}")
            return bytes(params).ljust(size, b"\0")
        if len(params) != len(entry.params):
            raise LaunchError(
                f"kernel {entry.name} has {len(entry.params)} parameters, "
                f"the bytes of {len(params)} were given"
            )
        out = bytearray(size)
        for p, data in zip(entry.params, params, strict=True):
            if len(data) > p.size:
                raise LaunchError(f"parameter {p.name}: {len(data)} bytes for .{p.type} of {p.size} bytes")
            out[p.offset : p.offset + len(data)] = data
        return bytes(out)

    def _mapped(self, address: int) -> bool:
        i = bisect.bisect_right(self._bases, address) - 1
        return i >= 0 and address < self._rows[i][0] + self._rows[i][1]

    def _map(self, tensor_map: Any, at: int, offset: int) -> list[int]:
        name = f"at byte {offset} of the parameters"
        if isinstance(tensor_map, Descriptor):
            return tensor_map.row(at, name)
        array = as_array(tensor_map.array, name) if isinstance(tensor_map, TensorMap) else None
        if array is None:
            raise LaunchError(
                f"tensor map {name}: expected a TensorMap over an array, or a Descriptor, "
                f"got {shown(tensor_map)}"
            )
        for base, size, host, _, _ in self._rows:
            if host <= array.address < host + size:
                return tensor_map.row(at, base + array.address - host, array, name)
        raise LaunchError(f"tensor map {name}: its array is in no region of the launch's memory")
