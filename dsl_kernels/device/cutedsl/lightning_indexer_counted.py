"""Leaf maths of a scoring that counts the first digits of its scores, for the selection behind it."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

from .lightning_indexer_sm90 import _key
from .topk_selector import BINS, add, half_digits, order_key

# Threads that score a tile of 64 keys.
THREADS = 128


def clear_counts(hist, thread):
    """Begin with zeros."""
    for i in range(BINS // THREADS):
        hist[i * THREADS + thread] = Int32(0)


@cute.jit
def count_logits(
    hist: cute.Pointer, logit: cute.Tensor, scale: cute.Tensor, length: cute.Tensor, key, thread
):
    """Count what store_logits writes of one query, by the first digit that selection looks at."""
    if (thread % 4 < 2) & (key + _key(thread, 1) < length[0]):
        _, score = order_key((logit[0] * scale[0]).bitcast(Uint32))
        add(hist + (half_digits(score, score) >> 21))


@cute.jit
def add_counts(counts: cute.Pointer, row, hist: cute.Pointer, thread):
    """Add the counts of this CTA to those of a row, and leave zeros."""
    to = counts + Int64(row) * BINS
    for i in cutlass.range_constexpr(BINS // THREADS):
        bin = i * THREADS + thread
        own = hist[bin]
        if own != 0:
            cute.arch.inline_ptx(
                "red.relaxed.gpu.global.add.s32 [{$r0}], {$r1};", read_only_args=[to + bin, own]
            )
            hist[bin] = Int32(0)
