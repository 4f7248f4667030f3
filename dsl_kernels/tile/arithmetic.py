"""Arithmetic of a kernel's dtypes in torch, with 32-bit results brought back into their range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._torch import torch


def signed(words: Any) -> Any:
    """The same 32 bits read as an int32."""
    if isinstance(words, torch.Tensor):
        return words.int().long()
    return ((words + (1 << 31)) & 0xFFFFFFFF) - (1 << 31)


def unsigned(words: Any) -> Any:
    """The same 32 bits read as a uint32."""
    return words & 0xFFFFFFFF


def number(value: Any) -> torch.Tensor:
    """A number as a tensor; fractions are float32, whatever the process's default dtype is."""
    return torch.as_tensor(value, dtype=torch.float32 if isinstance(value, float) else None)


def _rounded(value: Any) -> torch.Tensor:
    return number(value).to(torch.bfloat16).float()


# For each dtype whose results may leave its range, the function that brings them back.
IN_RANGE: dict[str, Callable[[Any], Any]] = {"int32": signed, "uint32": unsigned, "bfloat16": _rounded}
FLOATS = ("float32", "bfloat16", "float16")


def stored(dtype: torch.dtype, value: torch.Tensor) -> torch.Tensor:
    """Numbers as memory of `dtype` holds them."""
    return (signed(value) if dtype is torch.int32 else value).to(dtype)


def _either(a: Any, b: Any, pick: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Any:
    return pick(number(a), number(b))


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which the interpreter computes with numbers of `dtype`."""
    return torch.float32 if dtype.is_floating_point else torch.int64


def is_wide(dtype: torch.dtype) -> bool:
    """Whether `wide` leaves the dtype as it is (True for bool, too)."""
    return dtype in (torch.bool, torch.float32, torch.int64)


# Operators that need more than Python's own on numbers or tensors.
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "min": lambda a, b: _either(a, b, torch.minimum),
    "max": lambda a, b: _either(a, b, torch.maximum),
    # Neither operand is negative. A zero divisor comes from threads that do not use the result.
    "//": lambda a, b: a // (b if isinstance(b, int) else b.clamp(min=1)),
    "%": lambda a, b: a % (b if isinstance(b, int) else b.clamp(min=1)),
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}
