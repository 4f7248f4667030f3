"""The dtypes of operands and tiles by name: their size, and their names in torch and in PTX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class DType:
    """One dtype.

    Attributes:
        name: the name in declarations; in capitals, the driver's name of a tensor map's element type.
        bytes: size of one element.
        torch_name: the name in torch, NumPy and TIR.
        ptx: the name in PTX.
    """

    name: str
    bytes: int
    torch_name: str
    ptx: str

    @property
    def torch(self) -> torch.dtype:
        """The dtype in torch."""
        import torch

        return getattr(torch, self.torch_name)


DTYPES = {
    name: DType(name, size, torch_name or name, ptx)
    for name, size, ptx, torch_name in (
        ("float64", 8, "f64", ""),
        ("float32", 4, "f32", ""),
        ("float16", 2, "f16", ""),
        ("bfloat16", 2, "bf16", ""),
        ("float8_e4m3", 1, "e4m3", "float8_e4m3fn"),
        ("float8_e5m2", 1, "e5m2", ""),
        ("int64", 8, "s64", ""),
        ("int32", 4, "s32", ""),
        ("int16", 2, "s16", ""),
        ("int8", 1, "s8", ""),
        ("uint64", 8, "u64", ""),
        ("uint32", 4, "u32", ""),
        ("uint16", 2, "u16", ""),
        ("uint8", 1, "u8", ""),
        ("bool", 1, "u8", ""),
    )
}

BY_TORCH_NAME = {dtype.torch_name: dtype for dtype in DTYPES.values()}
