"""Leaves of RMSNorm, by their text: what one thread does with numbers, registers and memory.

Each thread of the role holds every 128th column; warps leave their sums in `sums`, at the warp's number.
"""

from __future__ import annotations

from ...device.torch.floats import rsqrt, sum_of_lanes
from ...tile.counting import moves
from ...tile.frontend import unrolled
from ...tile.kinds import BFloat16, Float32, Global, Int32, LeafRecorder, Registers, Shared, Writes
from ...tile.leaf_text import WARP, by_text

WARPS = 4
THREADS = WARP * WARPS


@moves(loaded=lambda factors: factors / 2)
@by_text
def read_weight(m: LeafRecorder, factors: Registers[Float32], weight: Global[BFloat16]) -> None:
    """Read the weight of each column of the thread."""
    for i in unrolled(factors.size):
        factors[i] = weight[i * THREADS + m.thread]


@by_text
def read_row(m: LeafRecorder, held: Registers[Float32], row: Shared[BFloat16]) -> None:
    """Read a row from shared memory."""
    for i in unrolled(held.size):
        x: Float32 = row[i * THREADS + m.thread]
        held[i] = x


@by_text
def sum_squares(m: LeafRecorder, sums: Shared[Float32], held: Registers[Float32]) -> None:
    """Publish the sum of squares of each warp's columns."""
    total: Float32 = 0.0
    for i in unrolled(held.size):
        total += held[i] * held[i]
    total = sum_of_lanes(total)
    if m.lane == 0:
        sums[m.warp] = total


@moves(stored=lambda held: held / 2)
@by_text
def write_row(
    m: LeafRecorder,
    y: Writes[Global[BFloat16]],
    row: Int32,
    held: Registers[Float32],
    factors: Registers[Float32],
    sums: Shared[Float32],
    eps: Float32,
) -> None:
    """Write the row divided by the root of its mean square, times the weight."""
    line = y.row("line", row, held.size * THREADS)
    total = (sums[0] + sums[1]) + (sums[2] + sums[3])
    scale = rsqrt(total * (1 / (held.size * THREADS)) + eps)
    for i in unrolled(held.size):
        line[i * THREADS + m.thread] = held[i] * scale * factors[i]
