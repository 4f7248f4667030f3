"""Leaf maths of the indexer on tcgen05 where it differs from Hopper's: every thread keeps the windows of its rows."""

import tilelang.language as T

from .lightning_indexer import window_begin, window_end


@T.macro
def read_windows(begin, size, k_start, k_end, row, queries, s, skv, skip_below, thread):
    """First keys and sizes of the windows of the rows from `row` on."""
    for j in T.unroll(queries):
        begin[j] = window_begin(k_start, row + j, s)
        size[j] = T.max(window_end(k_start, k_end, row + j, s, skv, skip_below) - begin[j], 0)
