"""Leaves of row softmax, by their text: what one thread does with numbers, registers and memory.

A thread of the role holds every 128th column; what its warp has worked out stands at the warp's number in `peaks` and `sums`.
"""

from __future__ import annotations

import math

from ...tile.frontend import Float32, unrolled
from ...tile.leaf_text import WARP, by_text
from ...tile.text import Writes, maximum
from ..torch.floats import divide, max_of_lanes, sum_of_lanes
from ..torch.warps import exp2

WARPS = 4
THREADS = WARP * WARPS
LOG2E = math.log2(math.e)


@by_text
def read_row(m, held, row, thread):
    """A row from shared memory."""
    for i in unrolled(held.size):
        held[i] = row[i * THREADS + thread]


@by_text
def share_maximum(m, peaks, held, thread):
    """The maximum of each warp's columns."""
    peak: Float32 = held[0]
    for i in unrolled(1, held.size):
        peak = maximum(peak, held[i])
    peak = max_of_lanes(peak)
    if thread % WARP == 0:
        peaks[thread // WARP] = peak


@by_text
def exponentials(m, held, sums, peaks, thread):
    """exp(x - maximum of the row) in place of x, and the sum of each warp's columns."""
    peak = maximum(maximum(peaks[0], peaks[1]), maximum(peaks[2], peaks[3]))
    total: Float32 = 0.0
    for i in unrolled(held.size):
        held[i] = exp2((held[i] - peak) * LOG2E)
        total += held[i]
    total = sum_of_lanes(total)
    if thread % WARP == 0:
        sums[thread // WARP] = total


@by_text
def write_row(m, y: Writes, row, held, sums, thread):
    """The exponentials over the sum of the row."""
    line = y.row("line", row, held.size * THREADS)
    scale = divide(1.0, (sums[0] + sums[1]) + (sums[2] + sums[3]))
    for i in unrolled(held.size):
        line[i * THREADS + thread] = held[i] * scale
