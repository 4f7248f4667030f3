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
        packed: how many numbers an element holds.
        torch_name: the name in torch, NumPy and TIR.
        ptx: the name in PTX.
    """

    name: str
    bytes: int
    torch_name: str
    ptx: str
    packed: int = 1

    @property
    def torch(self) -> torch.dtype:
        """The dtype in torch."""
        import torch

        return getattr(torch, self.torch_name)


DTYPES = {
    name: DType(name, size, torch_name or name, ptx, 2 if name.endswith("x2") else 1)
    for name, size, ptx, torch_name in (
        ("float64", 8, "f64", ""),
        ("float32", 4, "f32", ""),
        ("float16", 2, "f16", ""),
        ("bfloat16", 2, "bf16", ""),
        ("float8_e4m3", 1, "e4m3", "float8_e4m3fn"),
        ("float8_e5m2", 1, "e5m2", ""),
        # Two numbers of 4 bits, the first one in the lower half of the byte. Torch can do little with its own
        # dtype of such pairs; callers hold bytes.
        ("float4_e2m1x2", 1, "e2m1x2", "uint8"),
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

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def e2m1_of(pairs: torch.Tensor) -> torch.Tensor:
    """The float32 numbers that bytes hold as pairs of e2m1, twice as many along the last axis."""
    import torch

    table = torch.tensor([*_E2M1, *(-value for value in _E2M1)], device=pairs.device)
    both = torch.stack([pairs & 15, pairs >> 4], dim=-1).flatten(-2)
    return table[both.int()]


def e2m1_pairs(values: torch.Tensor) -> torch.Tensor:
    """Floats, an even count along the last axis, as bytes: pairs of the nearest e2m1.

    Of two that are as near it is the one whose code is even. What is beyond 6 becomes 6, and so does NaN, of
    which e2m1 has none.
    """
    import torch

    steps = torch.tensor(_E2M1, dtype=torch.float32, device=values.device)
    size = values.float().abs().nan_to_num(nan=6.0).clamp(max=6.0)
    upper = torch.searchsorted(steps, size).clamp(max=7)
    lower = (upper - 1).clamp(min=0)
    above, below = steps[upper] - size, size - steps[lower]
    nearer = torch.where((above < below) | ((above == below) & (upper % 2 == 0)), upper, lower)
    codes = (nearer + 8 * torch.signbit(values.float()).long()).to(torch.uint8).unflatten(-1, (-1, 2))
    return codes[..., 0] | codes[..., 1] << 4
