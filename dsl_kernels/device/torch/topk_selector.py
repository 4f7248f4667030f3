"""Leaf maths of the exact top-k selection, by name: what each leaf means for a CTA, in torch.

A score becomes a 32-bit key whose unsigned order is the order of the scores. What every warp has for itself is a
tensor over the warps, what every thread has one over the threads; registers are (threads, elements). Unsigned words
are 64-bit integers here.
"""

from __future__ import annotations

from typing import Any

import torch

from ...tile.lang import Size
from ...tile.leaf_text import Function
from ...tile.threads import Place, Threads, number

WORD = Size(32, "WORD")
"""Columns of a bitmap word: one a lane."""

BINS = Size(2048, "BINS")
"""Bins of a histogram: eleven bits a digit."""

COARSE = Size(32, "COARSE")
"""Coarse bins of a round in a cluster: one a lane."""

OFFSET_BITS = Size(22, "OFFSET_BITS")
"""Low bits of a list entry's position: the column within its warp's run. The owning warp stands above them."""

LISTED, KEPT, LOWER_ABOVE, LOWER_EQUAL, LARGEST, UPPER, LOWER = range(7)
"""Counters: entries listed, entries kept for ranking, entries of lower ranks that are selected or may be, largest key of
the list, largest and complement of the smallest undecided one."""

QUAD = Size(4, "QUAD")
"""Columns that a lane loads at once."""

LOWEST, INFINITE = 0x00800000, 0xFF800000
"""Keys of the smallest finite score and of infinity."""

MINUS_INFINITY = 0xFF800000
"""Its bit pattern."""

UINT32 = 0xFFFFFFFF


def _signed(words: torch.Tensor) -> torch.Tensor:
    """The int32 of the same bits."""
    return ((words + (1 << 31) & UINT32) - (1 << 31)).to(torch.int32)


def _unsigned(words: torch.Tensor) -> torch.Tensor:
    return words.long() & UINT32


def _float(bits: Any) -> torch.Tensor:
    """The float of the same bits, but 0 for -0."""
    return _signed(torch.as_tensor(bits)).view(torch.float32) + 0.0


def _canonical(bits: Any) -> torch.Tensor:
    same = _float(bits)
    return torch.where(same.isnan(), 0x7FFFFFFF, same.view(torch.int32)).long() & UINT32


canonical = Function("canonical", "uint32", _canonical)
"""The bit pattern of the same float, but of 0 for -0, and one above every number for each NaN."""


def _half_digit(same: torch.Tensor) -> torch.Tensor:
    floats = _float(same)
    near = floats.half()
    bits = near.view(torch.int16).long() & 0x7FFF
    bits = torch.where(near.float().abs() > floats.abs(), bits - 1, bits)
    bits = torch.where(floats.isnan(), 0x7FFF, bits)
    return torch.where((floats < 0) & ~floats.isnan(), bits | 0x8000, bits ^ 0x7FFF)


half_digits = Function("half_digits", "uint32", lambda low, high: _half_digit(low) | _half_digit(high) << 16)
"""First digits of two canonical bit patterns, one in each half of a word: the score rounded towards zero to fp16, 0 the
largest. Bits 5 to 15 are the bin."""


def _half_edge(bin: torch.Tensor) -> torch.Tensor:
    magnitude = ((bin - BINS // 2).abs() << 5).to(torch.int32).to(torch.int16)
    floats = magnitude.view(torch.float16).float()
    bits = torch.where(floats.isnan(), 0x7FFFFFFF, floats.view(torch.int32).long())
    return (1 << 31) + torch.where(bin >= BINS // 2, bits, -bits)


half_edge = Function("half_edge", "uint32", lambda bin: _half_edge(torch.as_tensor(bin)))
"""Smallest key of a bin of the first round, counted from the smallest score."""


def _load_below(threads: Threads, place: Place, column: Any, limit: Any) -> torch.Tensor:
    inside = threads.spread(column < limit)
    return torch.where(
        inside, _unsigned(place.memory.view(torch.int32)[place.of(threads.active & inside)]), 0
    )


load_below = Function("load_below", "uint32", _load_below, joint=True)
"""The bit pattern at a place where a column lies below a limit; 0 without a read elsewhere."""


def _score(key: Any) -> torch.Tensor:
    key = torch.as_tensor(key)
    return _float(torch.where(key >= 1 << 31, key ^ (1 << 31), key ^ UINT32))


less_score = Function("less_score", "float32", lambda key: 0.0 - _score(key))
"""Less the score of a key, from zero: of a zero's key 0."""

bits_of = Function("bits_of", "uint32", lambda score: _unsigned(number(score).view(torch.int32)))
"""The bit pattern of a float."""

shift_in_sign = Function(
    "shift_in_sign",
    "int32",
    lambda word, bits, less: _signed(torch.as_tensor(word) << 1 | (_float(bits) + less < 0).long()).long(),
)
"""A word moved up by a bit, which tells whether a score plus `less` is negative; of NaN it is not."""
