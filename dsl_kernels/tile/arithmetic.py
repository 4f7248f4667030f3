"""Numbers of a kernel's dtypes in torch: how leaves work them out, and bring them back into the range of 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._discover import later

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())


def signed(words: Any) -> Any:
    """The number that an int32 of the same bits is."""
    if isinstance(words, torch.Tensor):
        return words.int().long()
    return ((words + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def unsigned(words: Any) -> Any:
    """The number that a uint32 of the same bits is."""
    return words & 0xFFFFFFFF


def number(value: Any) -> torch.Tensor:
    """A number as a tensor, fractions in float32 whatever a process has for its default."""
    return torch.as_tensor(value, dtype=torch.float32 if isinstance(value, float) else None)


def _rounded(value: Any) -> torch.Tensor:
    return number(value).to(torch.bfloat16).float()


# What brings a result into the range of its dtype, where it may leave that.
IN_RANGE: dict[str, Callable[[Any], Any]] = {"int32": signed, "uint32": unsigned, "bfloat16": _rounded}
FLOATS = ("float32", "bfloat16", "float16")


def stored(dtype: torch.dtype, value: torch.Tensor) -> torch.Tensor:
    """Numbers as memory of a dtype holds them."""
    return (signed(value) if dtype is torch.int32 else value).to(dtype)


def _either(a: Any, b: Any, pick: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Any:
    return pick(number(a), number(b))


def wide(dtype: torch.dtype) -> torch.dtype:
    """What numbers are worked out in."""
    return torch.float32 if dtype.is_floating_point else torch.int64


def is_wide(dtype: torch.dtype) -> bool:
    """Whether numbers of a dtype are worked out as they are."""
    return dtype in (torch.bool, torch.float32, torch.int64)


# Where threads work out an operator otherwise than Python does for numbers.
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "min": lambda a, b: _either(a, b, torch.minimum),
    "max": lambda a, b: _either(a, b, torch.maximum),
    # Both positive or zero.
    "//": lambda a, b: a // (b if isinstance(b, int) else b.clamp(min=1)),
    "%": lambda a, b: a % (b if isinstance(b, int) else b.clamp(min=1)),
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}
