"""For leaf texts: tiles with a row in four lanes, as a product of 64 rows leaves them (`tile/fragments.py`).

A thread has elements of two rows, HALF_ROWS apart. A group of four registers has two neighbouring elements of
each row.
"""

from __future__ import annotations

from ...tile.frontend import recorded, unrolled
from ...tile.kinds import Float32, LeafRecorder, Registers
from ...tile.lang import Size
from ...tile.leaf_text import by_text
from ..torch.warps import any_lane

HALF_ROWS = Size(8, "HALF_ROWS")
"""The distance of a thread's two rows."""
FOUR = 4
"""Registers of a group; the columns of the next group are eight further on."""


def first_row(thread):
    """The first of a thread's two rows."""
    return thread // 32 * 16 + thread % 32 // 4


def of_row(group, r):
    """The registers, by number, that a thread has of its row `r` in a group of four."""
    return [group * FOUR + (2 * r + e) for e in range(2)]


@recorded
def scale_row(m, acc, r, factor):
    """Multiply the elements that a thread has of its row `r` by a factor."""
    for j in unrolled(acc.size // FOUR):
        for i in of_row(j, r):
            acc[i] = acc[i] * factor


@by_text
def rescale_rows(m: LeafRecorder, acc: Registers[Float32], factor: Registers[Float32]) -> None:
    """Each row times its factor, in place; left alone where the factors of a warp's rows are 1."""
    if any_lane((factor[0] != 1.0) | (factor[1] != 1.0)):
        for r in range(2):
            scale_row(m, acc, r, factor[r])
