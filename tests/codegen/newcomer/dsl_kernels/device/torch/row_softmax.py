"""Leaf maths of row softmax, by name: what each leaf means, in torch.

A thread of the role holds every 128th column; what its warp has worked out stands at the warp's number in `peaks` and `sums`.
"""

from __future__ import annotations

from typing import Any

from ...tile.text import Writes, leaf

WARPS = 4
THREADS = 32 * WARPS


def by_warp(values: Any) -> Any:
    """The columns of each warp: [warp, columns of the warp]."""
    return values.view(-1, WARPS, 32).transpose(0, 1).reshape(WARPS, -1)


@leaf
def read_row(held: Any, row: Any, thread: Any) -> None:
    """A row from shared memory."""
    held[:] = row


@leaf
def share_maximum(peaks: Any, held: Any, thread: Any) -> None:
    """The maximum of each warp's columns."""
    peaks[:] = by_warp(held).amax(dim=1)


@leaf
def exponentials(held: Any, sums: Any, peaks: Any, thread: Any) -> None:
    """exp(x - maximum of the row) in place of x, and the sum of each warp's columns."""
    held[:] = (held - peaks.amax()).exp()
    sums[:] = by_warp(held).sum(dim=1)


@leaf
def write_row(y: Writes, row: int, held: Any, sums: Any, thread: Any) -> None:
    """The exponentials over the sum of the row."""
    y[row] = held / sums.sum()
