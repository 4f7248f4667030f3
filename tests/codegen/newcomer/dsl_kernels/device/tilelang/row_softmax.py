"""Leaf maths of row softmax in TileLang. Shared stages come as the buffer and the slot in it."""

import tilelang.language as T

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
}

THREADS = 128


@T.macro
def read_row(held, row, slot, thread):
    """A row from shared memory."""
    for i in T.unroll(held.shape[0]):
        held[i] = row[slot, i * THREADS + thread]


@T.macro
def share_maximum(peaks, held, thread):
    """The maximum of each warp's columns."""
    peak = T.alloc_var("float32", init=held[0])
    for i in T.unroll(held.shape[0] - 1):
        peak = T.max(peak, held[i + 1])
    peak = T.warp_reduce_max(peak)
    if thread % 32 == 0:
        peaks[thread // 32] = peak


@T.macro
def exponentials(held, sums, peaks, thread):
    """exp(x - maximum of the row) in place of x, and the sum of each warp's columns."""
    peak = T.max(T.max(peaks[0], peaks[1]), T.max(peaks[2], peaks[3]))
    total = T.alloc_var("float32", init=0.0)
    for i in T.unroll(held.shape[0]):
        held[i] = T.exp(held[i] - peak)
        total = total + held[i]
    total = T.warp_reduce_sum(total)
    if thread % 32 == 0:
        sums[thread // 32] = total


@T.macro
def write_row(y, row, held, sums, thread):
    """The exponentials over the sum of the row."""
    scale = 1.0 / ((sums[0] + sums[1]) + (sums[2] + sums[3]))
    for i in T.unroll(held.shape[0]):
        y[row, i * THREADS + thread] = held[i] * scale
