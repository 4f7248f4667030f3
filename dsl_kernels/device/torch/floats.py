"""Functions of float32 that leaf texts may call in any DSL: roots, quotients, and reductions over lanes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..._torch import torch
from ...tile.arithmetic import number
from ...tile.leaf_text import WARP, Function

if TYPE_CHECKING:
    from ...tile.threads import Threads


def _of_lanes(combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A butterfly: combine with the lane at half the previous distance, so that every DSL rounds alike."""

    def reduce(threads: Threads, value: Any, lanes: int = WARP) -> torch.Tensor:
        values = threads.by_warp(value)
        while lanes > 1:
            lanes //= 2
            values = combine(values, values[:, torch.arange(WARP) ^ lanes])
        return values.reshape(-1)

    return reduce


# In float64, as torch's float32 root is not correctly rounded on every machine.
sqrt = Function("sqrt", "float32", lambda x: number(x).double().sqrt().float())
"""The square root of x, rounded once."""

rsqrt = Function("rsqrt", "float32", lambda x: number(x).rsqrt())
"""1 / sqrt(x), approximately; inf for 0."""

divide = Function("divide", "float32", lambda a, b: number(a) / number(b))
"""a / b, rounded once; `rcp_approx` is faster."""

is_nan = Function("is_nan", "bool", lambda x: number(x).isnan())
"""Whether x is NaN; a compiler may take x != x to be false."""

sum_of_lanes = Function("sum_of_lanes", "float32", _of_lanes(lambda a, b: a + b), joint=True)
"""The sum over each group of `lanes` neighbouring lanes, a power of two; all of them get it.

Every lane of the warp takes part.
"""

max_of_lanes = Function("max_of_lanes", "float32", _of_lanes(lambda a, b: a.fmax(b)), joint=True)
"""The maximum over each group of `lanes` neighbouring lanes, a power of two; NaN if all of them are.

Every lane of the warp takes part.
"""
