"""Leaf maths of row softmax in CuTe DSL. Operands and shared stages come as pointers, registers as tensors."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

THREADS = 128


def across_lanes(value, combine):
    """Combine over the lanes of a warp."""
    for step in (16, 8, 4, 2, 1):
        value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=step))
    return value


def add(a, b):
    return a + b


@cute.jit
def read_row(held: cute.Tensor, row: cute.Pointer, thread: Int32):
    """A row from shared memory."""
    for i in cutlass.range_constexpr(cute.size(held)):
        held[i] = row[i * THREADS + thread]


@cute.jit
def share_maximum(peaks: cute.Pointer, held: cute.Tensor, thread: Int32):
    """The maximum of each warp's columns."""
    peak = held[0]
    for i in cutlass.range_constexpr(1, cute.size(held)):
        peak = cute.arch.fmax(peak, held[i])
    peak = across_lanes(peak, cute.arch.fmax)
    if thread % 32 == 0:
        peaks[thread // 32] = peak


@cute.jit
def exponentials(held: cute.Tensor, sums: cute.Pointer, peaks: cute.Pointer, thread: Int32):
    """exp(x - maximum of the row) in place of x, and the sum of each warp's columns."""
    peak = cute.arch.fmax(cute.arch.fmax(peaks[0], peaks[1]), cute.arch.fmax(peaks[2], peaks[3]))
    total = Float32(0.0)
    for i in cutlass.range_constexpr(cute.size(held)):
        held[i] = cute.math.exp(held[i] - peak)
        total += held[i]
    total = across_lanes(total, add)
    if thread % 32 == 0:
        sums[thread // 32] = total


@cute.jit
def write_row(y: cute.Pointer, row: Int32, held: cute.Tensor, sums: cute.Pointer, thread: Int32):
    """The exponentials over the sum of the row."""
    to = y + Int64(row) * (cute.size(held) * THREADS)
    scale = 1.0 / ((sums[0] + sums[1]) + (sums[2] + sums[3]))
    for i in cutlass.range_constexpr(cute.size(held)):
        to[i * THREADS + thread] = held[i] * scale
