"""Functions that leaf texts may call in any DSL: floats as sums of two e4m3 terms, for products of 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._torch import torch
from ...tile.leaf_text import Function
from .warps import _put

if TYPE_CHECKING:
    from ...tile.threads import Place, Threads

FINER = 16
"""The second term is this many times what the first one leaves."""


def _store_terms(threads: Threads, first: Place, second: Place, registers: torch.Tensor, at: int) -> None:
    # By way of fp16, whose 11 bits are more than two terms have.
    values = registers[:, at : at + 4].half()
    for place in (first, second):
        term = values.clamp(-448, 448).to(torch.float8_e4m3fn)
        _put(threads, place, term)
        values = (values - term.half()) * FINER


store_terms = Function("store_terms", "int32", _store_terms, joint=True)
"""Store four registers from `at` on as two e4m3 terms each, at two addresses in shared memory.

The sum of the first and a sixteenth of the second is the number, to about 8 bits. Both are saturated.
"""
