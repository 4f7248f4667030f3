"""Functions of one thread that leaf texts may call in any DSL: bit patterns, conversions, conditional loads.

A uint32 is a 64-bit integer here. An int32 also stands for any word of 32 bits.
"""

from __future__ import annotations

from typing import Any

from ..._torch import torch
from ...tile.arithmetic import number, signed, unsigned
from ...tile.leaf_text import Function
from ...tile.threads import Place, Threads


def _one_nan(floats: torch.Tensor) -> torch.Tensor:
    """The same numbers, with every NaN replaced by the one that the hardware produces."""
    nan = torch.tensor(0x7FFFFFFF, dtype=torch.int32).view(torch.float32)
    return torch.where(floats.isnan(), nan, floats)


def _to_half(x: torch.Tensor) -> torch.Tensor:
    near = x.half()
    bits = near.view(torch.int16).long() & 0x7FFF
    bits = torch.where(near.float().abs() > x.abs(), bits - 1, bits) | (x.view(torch.int32) < 0).long() << 15
    return torch.where(x.isnan(), 0x7FFF, bits)


def _permute(a: Any, b: Any, selector: int) -> torch.Tensor:
    pair, result = torch.as_tensor(a) | torch.as_tensor(b) << 32, torch.zeros((), dtype=torch.int64)
    for i in range(4):
        chosen = selector >> 4 * i & 15
        byte = pair >> 8 * (chosen & 7) & 0xFF
        result = result | (torch.where(byte > 127, 0xFF, 0) if chosen & 8 else byte) << 8 * i
    return result


def _load_below(threads: Threads, place: Place, column: Any, limit: Any) -> torch.Tensor:
    inside = threads.spread(column < limit)
    words = place.memory.view(torch.int32)[place.of(threads.active & inside)].long()
    return torch.where(inside, unsigned(words), 0)


def _pair(low: Any, high: Any) -> torch.Tensor:
    near = torch.stack(torch.broadcast_tensors(number(low), number(high))).bfloat16()
    bits = torch.where(near.isnan(), 0x7FFF, near.view(torch.int16).long() & 0xFFFF)
    return bits[0] | bits[1] << 16


def _load_piece(threads: Threads, registers: torch.Tensor, first: int, count: int, place: Place) -> None:
    places = place.of(threads.active, count)[:, None] + torch.arange(count)
    halves = place.memory.view(torch.int16)[places].long() & 0xFFFF
    words = halves if count == 1 else halves[:, ::2] | halves[:, 1::2] << 16
    taken = registers[threads.active, first : first + words.shape[1]]
    registers[threads.active, first : first + words.shape[1]] = words[threads.active].to(taken.dtype)


def _store_piece(threads: Threads, registers: torch.Tensor, first: int, count: int, place: Place) -> None:
    places = place.of(threads.active, count)[:, None] + torch.arange(count)
    words = registers[:, first : first + (count + 1) // 2].long()
    halves = torch.stack([words, words >> 16], dim=-1).flatten(1)[:, :count].to(torch.int16)
    place.memory.view(torch.int16)[places[threads.active]] = halves[threads.active]


bits_of = Function("bits_of", "uint32", lambda x: unsigned(number(x).view(torch.int32).long()))
"""The bit pattern of a float."""

float_of = Function(
    "float_of", "float32", lambda bits: signed(torch.as_tensor(bits)).int().view(torch.float32)
)
"""The float of a bit pattern."""

add_rn = Function("add_rn", "float32", lambda a, b: _one_nan(number(a) + number(b)))
"""a + b, also where one is a literal zero: -0 + 0 is 0, and of any NaN comes the one that hardware makes."""

halves = Function("halves", "uint32", lambda low, high: _to_half(low) | _to_half(high) << 16)
"""Two floats rounded towards zero to fp16, in the halves of a word."""

float_of_half = Function(
    "float_of_half",
    "float32",
    lambda bits: _one_nan(number(bits).to(torch.int16).view(torch.float16).float()),
)
"""The float of an fp16 bit pattern, which is in an int32 without sign extension."""

pair_of = Function("pair_of", "uint32", _pair)
"""Two floats rounded to bf16, in the halves of a word."""


def half_of(word: Any, upper: bool) -> Any:
    """The float of the upper or lower half of a word, a bf16."""
    return float_of(word & 0xFFFF0000 if upper else word << 16)


anew = Function("anew", "int32", lambda x: x)
"""The same number, which a compiler computes here and not earlier."""

permute_bytes = Function("permute_bytes", "uint32", _permute)
"""Select four bytes of two words (`prmt`) by four bits of the selector each, from the lowest bits on.

The lower three of the four bits name one of the eight bytes; the highest replicates that byte's sign instead.
"""

funnel_left = Function(
    "funnel_left", "int32", lambda low, high, count: signed(high << count | unsigned(low) >> 32 - count)
)
"""The upper word of (high, low) shifted left by 1 to 31 bits (`shf.l`)."""

load_piece = Function("load_piece", "int32", _load_piece, joint=True)
"""Load 1 or 8 bf16, aligned to their size, into registers from `first` on; one alone into the lower half."""

store_piece = Function("store_piece", "int32", _store_piece, joint=True)
"""The reverse of `load_piece`."""

load_below = Function("load_below", "uint32", _load_below, joint=True)
"""The bit pattern at an address in global memory if `column < limit`; else 0, without an access."""
