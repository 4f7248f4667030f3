"""Leaves of grouped-query attention on Blackwell, where the result stays in tensor memory, a row a lane."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..._discover import later
from ...tile.kinds import Float32, Int32
from ...tile.leaf import RegisterTile, SharedTile, TensorTile
from ...tile.text import leaf

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())


@leaf
def rescale_output(
    acc: TensorTile, columns: int, factor: RegisterTile, part: RegisterTile, thread: Int32,
) -> None:  # fmt: skip
    """Each row of the result times its factor, some columns at a time; left alone where a warp's factors are 1."""
    if (factor != 1).any():
        acc.mul_(factor[:, None])


@leaf
def finish_rows(top: RegisterTile, total: RegisterTile, scale: Float32, thread: Int32) -> None:
    """`top` becomes the natural logarithm of sum exp, `total` its own inverse."""
    top.copy_((top * scale + torch.log2(total)) * math.log(2))
    total.copy_(1 / total)


@leaf
def stage_output(
    target: SharedTile, acc: TensorTile, columns: int, inverse: RegisterTile,
    part: RegisterTile, rounded: RegisterTile, thread: Int32,
) -> None:  # fmt: skip
    """The result's rows times `inverse`, in 16 bits, into a shared tile with the 128-byte swizzle, some columns at a time."""
    target.copy_(acc * inverse[:, None])
