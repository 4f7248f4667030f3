"""Leaves of row softmax, by their text: what one thread does with numbers, registers and memory.

Each thread of the role holds every 128th column; warps leave their results in `peaks` and `sums`, at the
warp's number.
"""

from __future__ import annotations

import math

from ...device.torch.floats import divide, max_of_lanes, sum_of_lanes
from ...device.torch.warps import exp2
from ...tile.counting import moves
from ...tile.frontend import unrolled
from ...tile.kinds import Float32, Global, Int32, LeafRecorder, Registers, Shared, Writes
from ...tile.leaf_text import WARP, by_text
from ...tile.text import maximum

WARPS = 4
THREADS = WARP * WARPS
LOG2E = math.log2(math.e)


@by_text
def read_row(m: LeafRecorder, held: Registers[Float32], row: Shared[Float32]) -> None:
    """Read a row from shared memory."""
    for i in unrolled(held.size):
        held[i] = row[i * THREADS + m.thread]


@by_text
def share_maximum(m: LeafRecorder, peaks: Shared[Float32], held: Registers[Float32]) -> None:
    """Publish the maximum of each warp's columns."""
    peak: Float32 = held[0]
    for i in unrolled(1, held.size):
        peak = maximum(peak, held[i])
    peak = max_of_lanes(peak)
    if m.thread % WARP == 0:
        peaks[m.thread // WARP] = peak


@by_text
def exponentials(
    m: LeafRecorder, held: Registers[Float32], sums: Shared[Float32], peaks: Shared[Float32]
) -> None:
    """Replace x by exp(x - the row's maximum), and publish the sum of each warp's columns."""
    peak = maximum(maximum(peaks[0], peaks[1]), maximum(peaks[2], peaks[3]))
    total: Float32 = 0.0
    for i in unrolled(held.size):
        held[i] = exp2((held[i] - peak) * LOG2E)
        total += held[i]
    total = sum_of_lanes(total)
    if m.thread % WARP == 0:
        sums[m.thread // WARP] = total


@moves(stored=lambda held: held)
@by_text
def write_row(
    m: LeafRecorder, y: Writes[Global[Float32]], row: Int32, held: Registers[Float32], sums: Shared[Float32]
) -> None:
    """Write the exponentials divided by the sum of the row."""
    line = y.row("line", row, held.size * THREADS)
    scale = divide(1.0, (sums[0] + sums[1]) + (sums[2] + sums[3]))
    for i in unrolled(held.size):
        line[i * THREADS + m.thread] = held[i] * scale
