"""What the text of a leaf may ask of any DSL for float32: roots, quotients, and what lanes make of their values together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..._discover import later
from ...tile.arithmetic import number
from ...tile.leaf_text import WARP, Function

if TYPE_CHECKING:
    import torch

    from ...tile.threads import Threads
else:
    torch = later("torch", globals())


def _of_lanes(combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Lanes combine theirs with those of the lane half as far as before, so that every DSL rounds a sum alike."""

    def work_out(threads: Threads, value: Any, lanes: int = WARP) -> torch.Tensor:
        found = threads.by_warp(value)
        while lanes > 1:
            lanes //= 2
            found = combine(found, found[:, torch.arange(WARP) ^ lanes])
        return found.reshape(-1)

    return work_out


# torch's root of a float32 is not the nearest one everywhere.
sqrt = Function("sqrt", "float32", lambda x: number(x).double().sqrt().float())
"""The square root of x, rounded once."""

rsqrt = Function("rsqrt", "float32", lambda x: number(x).rsqrt())
"""1 over the square root of x, approximately; inf of 0."""

divide = Function("divide", "float32", lambda a, b: number(a) / number(b))
"""a / b, rounded once; `rcp_approx` is faster."""

is_nan = Function("is_nan", "bool", lambda x: number(x).isnan())
"""Whether x is no number; a compiler may take x != x to be false."""

sum_of_lanes = Function("sum_of_lanes", "float32", _of_lanes(lambda a, b: a + b), joint=True)
"""The sum over each `lanes` neighbouring lanes, a power of two, the same in all of them; every lane of the warp takes part."""

max_of_lanes = Function("max_of_lanes", "float32", _of_lanes(lambda a, b: a.fmax(b)), joint=True)
"""The greatest over each `lanes` neighbouring lanes, a power of two; NaN if all are. Every lane of the warp takes part."""
