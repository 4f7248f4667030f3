"""Texts of Blackwell's leaves of attention: the result stays in tensor memory, one row per lane."""

from __future__ import annotations

from typing import Any

from ....device.torch import fragment
from ....device.torch.fragment import load_columns, scale_pair, store_columns
from ....device.torch.warps import any_lane, log2, rcp_approx
from ....tile.frontend import recorded, unrolled
from ....tile.kinds import Float32, LeafRecorder, Registers, Shared, Tensor
from ....tile.lang import LN_2
from ....tile.leaf_text import by_text


@recorded
def _load_times(m, part, acc, first, factor):
    """Load columns of this thread's row of the result from `first` on, times a factor."""
    m.do(load_columns(part, acc, first, m.thread))
    for pair in unrolled(part.size // 2):
        m.do(scale_pair(part, pair * 2, factor, 0.0))


@by_text
def rescale_output(
    m: LeafRecorder, acc: Tensor[Float32], columns: int, factor: Registers[Float32], part: Registers[Float32],
) -> None:  # fmt: skip
    """Multiply each row of the result by its factor, unless a warp's factors are all 1."""
    if any_lane(factor[0] != 1.0):
        for step in unrolled(columns // part.size):
            _load_times(m, part, acc, step * part.size, factor[0])
            m.do(store_columns(part, acc, step * part.size, m.thread))


@by_text
def finish_rows(m: LeafRecorder, top: Registers[Float32], total: Registers[Float32], scale: Float32) -> None:
    """Turn `top` into the natural logarithm of sum exp, and `total` into its inverse."""
    top[0] = (top[0] * scale + log2(total[0])) * LN_2
    total[0] = rcp_approx(total[0])


@by_text
def stage_output(
    m: LeafRecorder, target: Shared[Any], acc: Tensor[Float32], columns: int, inverse: Registers[Float32],
    part: Registers[Float32], rounded: Registers[Any],
) -> None:  # fmt: skip
    """Stage the rows of the result times `inverse`, rounded to 16 bits, in a shared tile."""
    for step in unrolled(columns // part.size):
        _load_times(m, part, acc, step * part.size, inverse[0])
        fragment.round_to(m, rounded, part)
        for i in unrolled(part.size // 8):
            target.write(rounded.group(i * 8, 8), (m.thread, step * part.size + i * 8))
