"""Leaf maths of the indexer on tcgen05 where it differs from Hopper's: what a thread keeps of its queries and rows."""

import tilelang.language as T

from .lightning_indexer import window_begin, window_end


@T.macro
def read_query_lengths(length, seq_lens, seq, query, queries, next_n, skip_below, thread):
    """Lane i keeps the keys to score of query i; 0 past next_n and for a row that selection takes whole."""
    own = query + thread % 32
    length[0] = 0
    if own < next_n:
        found = seq_lens[seq, own]
        if found > skip_below:
            length[0] = found


@T.macro
def store_query(logits, logit, scale, length, seq, query, next_n, stride, key, thread):
    """Logits of one query and the keys from `key` on, times their scales: as many as the query has keys."""
    keys = T.shfl_sync(length[0], query)
    for r in T.Parallel(logit.shape[0]):
        if key + r < keys:
            logits[seq, query, key + r] = logit[r] * scale[r]


@T.macro
def read_windows(begin, size, k_start, k_end, row, queries, s, skv, skip_below, thread):
    """First keys and sizes of the windows of the rows from `row` on."""
    for j in T.unroll(queries):
        begin[j] = window_begin(k_start, row + j, s)
        size[j] = T.max(window_end(k_start, k_end, row + j, s, skv, skip_below) - begin[j], 0)


@T.macro
def store_row(logits, logit, scale, begin, size, j, row, stride, key, thread):
    """Logits of row `row`, number `j` of the group, and the keys from `key` on: those in its window."""
    for r in T.Parallel(logit.shape[0]):
        # One comparison: a key before the window is far behind it, too.
        if T.cast(key + r - begin[j], "uint32") < T.cast(size[j], "uint32"):
            logits[row, key + r] = logit[r] * scale[r]
