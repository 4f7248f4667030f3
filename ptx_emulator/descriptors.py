"""The 128-byte descriptor of a tensor copy: described, written and recognised.

The driver's encoding is opaque. This module understands two forms. :meth:`Descriptor.encode` stores the
arguments of ``cuTensorMapEncodeTiled`` or ``cuTensorMapEncodeIm2col`` as they are. The host code that CuTe
DSL generates writes the hardware's bits itself; the fields below were inferred from what it writes for known
tensors, and bytes that do not match them are taken for no descriptor. How the hardware's bits encode im2col
is not known.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .arguments import SWIZZLES, Array, TensorMap
from .checks import checked, shown
from .errors import LaunchError
from .im2col import Im2col

SIZE = 128  # bytes of a descriptor
ALIGN = 64  # where one may begin

#: The emulator's type by CUtensorMapDataType, without the 4- and 6-bit types that shared memory holds
#: unpacked.
DATA_TYPES = (
    "u8",
    "u16",
    "u32",
    "s32",
    "u64",
    "s64",
    "f16",
    "f32",
    "f64",
    "bf16",
    "f32",
    "tf32",
    "tf32",
    "e2m1",
)
_SWIZZLE_NAMES = tuple(SWIZZLES)
_FILLS = ("zero", "nan")

_NO_ARRAY = Array("", 0, 0, 0, (0, 0), (), (), 1, "u8", True, None)  # for a map that states all sizes itself

_TAG = b"EmuTMap1"
_FORM = struct.Struct("<8sQ5Q4Q5H5BBBBBBB6h")
# Number in the descriptor's bits -> CUtensorMapDataType, where the two differ.
_HARDWARE_TYPES = {8: 10, 9: 8, 10: 9, 11: 13, 12: 14}


@checked
@dataclass(frozen=True)
class Descriptor:
    """A tensor map as the driver's call describes it: over addresses, not over tensors.

    Sizes are innermost first. ``strides`` are in bytes and omit the innermost dimension. ``data_type``,
    ``swizzle``, ``interleave`` and ``fill`` are enumerators of cuda.h. Corners (``lower`` and ``upper``, one
    entry for every dimension between channels and images) make the map one of ``cuTensorMapEncodeIm2col``,
    whose ``box`` is (channels per pixel, pixels per column).
    """

    address: int
    data_type: int
    dims: Sequence[int]
    strides: Sequence[int]
    box: Sequence[int]
    element_strides: Sequence[int] = ()
    swizzle: int = 0
    interleave: int = 0
    fill: int = 0
    lower: Sequence[int] = ()
    upper: Sequence[int] = ()

    def encode(self) -> bytes:
        """128 bytes that the emulator recognises in a kernel's parameters and in its memory."""
        rank = len(self.dims)
        steps = self.element_strides or (1,) * rank

        def padded(values: Sequence[int], count: int) -> list[int]:
            return [*values, *[0] * (count - len(values))]

        try:
            body = _FORM.pack(
                _TAG, self.address, *padded(self.dims, 5), *padded(self.strides, 4), *padded(self.box, 5),
                *padded(steps, 5), rank, self.data_type, self.swizzle, self.interleave, self.fill,
                len(self.lower), *padded(self.lower, 3), *padded(self.upper, 3),
            )  # fmt: skip
        except struct.error as error:
            raise LaunchError(f"tensor map {shown(self)}: {error}") from None
        return body.ljust(SIZE, b"\0")

    @staticmethod
    def decode(data: bytes) -> Descriptor | None:
        """The descriptor that :meth:`encode` wrote, or None for other bytes."""
        if len(data) < SIZE or data[: len(_TAG)] != _TAG:
            return None
        v = _FORM.unpack(data[: _FORM.size])
        rank, data_type, swizzle, interleave, fill, corners = v[21:27]
        box = 2 if corners else rank
        return Descriptor(
            v[1], data_type, v[2 : 2 + rank], v[7 : 7 + rank - 1], v[11 : 11 + box], v[16 : 16 + rank],
            swizzle, interleave, fill, v[27 : 27 + corners], v[30 : 30 + corners],
        )  # fmt: skip

    @staticmethod
    def from_hardware(data: bytes, mapped: Callable[[int], bool]) -> Descriptor | None:
        """The descriptor in the hardware's bits; None where they describe no address that is ``mapped``."""
        if len(data) < 64 or data[: len(_TAG)] == _TAG:
            return None
        w = struct.unpack("<16I", data[:64])
        flags, address = w[2], w[0] | w[1] << 32
        rank = (flags >> 4 & 7) + 1
        if flags & 15 != 2 or rank > 5 or address % 16 or not mapped(address):
            return None
        kind = flags >> 7 & 15
        return Descriptor(
            address,
            _HARDWARE_TYPES.get(kind, kind),
            [n + 1 for n in w[8 : 8 + rank]],
            [(n | (w[7] >> 4 * i & 15) << 32) << 4 for i, n in enumerate(w[3 : 3 + rank - 1])],
            [data[55 + i] + 1 for i in range(rank)],
            [(w[13] >> 3 * i & 7) + 1 for i in range(rank)],
            flags >> 13 & 3,
            flags >> 11 & 3,
            flags >> 15 & 1,
        )

    def row(self, at: int, name: str) -> list[int]:
        """The core's row for a descriptor at the generic address ``at``.

        Raises:
            LaunchError: the driver or the hardware would refuse the map, or the emulator lacks its type or
                swizzle.
        """

        def bad(why: str) -> LaunchError:
            return LaunchError(f"tensor map {name}: {why}")

        if not 0 <= self.data_type < len(DATA_TYPES):
            raise bad(f"data type {self.data_type} is not one of those of 8 to 64 bits, nor of 4 bits packed")
        if not 0 <= self.swizzle < len(_SWIZZLE_NAMES):
            raise bad(f"swizzle {self.swizzle} is not one of {', '.join(_SWIZZLE_NAMES)}")
        if self.interleave:
            raise bad(f"interleave {self.interleave} is not supported, only none")
        if not 0 <= self.fill < len(_FILLS):
            raise bad(f"fill {self.fill} is neither 0 (zero) nor 1 (NaN)")
        if not self.address:
            raise bad("the address is null")
        if any(n < 1 for n in self.dims):
            raise bad(f"dimensions {shown(list(self.dims))} must be positive")
        steps = list(self.element_strides) or [1] * len(self.dims)
        if len(steps) != len(self.dims) or any(not 1 <= s <= 8 for s in steps):
            raise bad(f"element strides {shown(steps)} are outside 1 to 8")
        im2col = bool(self.lower or self.upper)
        if im2col and steps[-1] != 1:
            raise bad(f"element strides {shown(steps)}: an im2col map goes through the images one by one")
        described = TensorMap(
            None,
            list(self.box),
            _SWIZZLE_NAMES[self.swizzle],
            list(self.dims),
            list(self.strides),
            _FILLS[self.fill],
            DATA_TYPES[self.data_type],
            im2col=Im2col(list(self.lower), list(self.upper), steps[1:-1]) if im2col else None,
        )
        row = described.row(at, self.address, _NO_ARRAY, name)
        row[19 : 19 + len(steps)] = steps
        return row


def found(data: bytes, base: int) -> list[tuple[int, Descriptor]]:
    """The address and the content of every descriptor that :meth:`Descriptor.encode` wrote into ``data``."""
    out = []
    at = data.find(_TAG)
    while at >= 0:
        descriptor = Descriptor.decode(data[at : at + SIZE])
        if descriptor is not None and (base + at) % ALIGN == 0:
            out.append((base + at, descriptor))
        at = data.find(_TAG, at + 1)
    return out
