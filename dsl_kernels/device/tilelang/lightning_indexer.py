"""Leaf maths of the FP8 lightning indexer: how key tiles are dealt to CTAs, windows of rows, the weighted head sum.

A 64-token page of the cache holds 64 rows of 128 e4m3 and then 64 fp32 scales. Seen as rows of 128 bytes it has 66 of
them; seen as fp32 words its scales start at word 2048.
"""

import tilelang.language as T

PAGE_ROWS = 66
PAGE_WORDS = 2112
SCALE_WORD = 2048

ONE_ROW = 4
"""Row stride of a vector seen as a matrix of one row, for a tensor map: never used, but a multiple of 16 bytes."""

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_warp_specialized": True,
    # Unswitching moves the election of the copying lane over a loop, and warp shuffles in that loop with it.
    "tl.disable_loop_unswitching": True,
}


def ceildiv(count, size):
    """Both positive or zero; C division, which costs no sign fix-up."""
    return T.truncdiv(count + size - 1, size)


def share_begin(total, part, parts):
    """First unit of share `part` when `total` units are dealt to `parts` shares, sizes within one."""
    return part * T.truncdiv(total, parts) + T.min(part, T.truncmod(total, parts))


def share_size(total, part, parts):
    """Units in share `part`."""
    return T.truncdiv(total, parts) + T.if_then_else(part < T.truncmod(total, parts), 1, 0)


def weighted_relu(score, weight):
    """One head's part of a logit; a key's scale is positive, so it may follow the sum over heads."""
    return T.max(score, 0.0) * weight


@T.macro
def keys_to_score(seq_lens, b, next_n, skip_below, seq):
    """Longest prefix of sequence `seq` that one of its queries has to score; 0 past the batch."""
    need = T.alloc_var("int32", init=0)
    if seq < b:
        for i in T.unroll(next_n, unroll_factor=1):
            length = seq_lens[seq, i]
            if length > skip_below:
                need = T.max(need, length)
    return need


@T.macro
def warp_prefix_sum(value, lane):
    """Inclusive prefix sum over the lanes of a warp."""
    upto = T.alloc_var("int32", init=0)
    upto = value
    for d in T.unroll(5):
        other = T.shfl_up(upto, 1 << d)
        upto = upto + T.if_then_else(lane >= (1 << d), other, 0)
    return upto


@T.macro
def find_share(
    seq: T.Ref, tile: T.Ref, need: T.Ref, turns: T.Ref, seq_lens, b, next_n, skip_below, keys, cta, ctas
):
    """Where this CTA's share of the key tiles begins (`seq`, `tile`), and its size (`turns`).

    The tiles of all sequences, end to end, are dealt to the CTAs in contiguous equal shares. Every warp works it out
    for itself, 32 sequences at a time, so nothing has to be planned on the host. `need` is keys_to_score of `seq`.
    """
    lane = T.get_thread_binding() % 32
    total = T.alloc_var("int32", init=0)
    begin = T.alloc_var("int32", init=0)
    tiles = T.alloc_var("int32", init=0)
    upto = T.alloc_var("int32", init=0)
    before = T.alloc_var("int32", init=0)
    need_first = T.alloc_var("int32", init=0)
    need_first = keys_to_score(seq_lens, b, next_n, skip_below, lane)
    total = ceildiv(need_first, keys)
    for c in T.serial(1, T.ceildiv(b, 32)):
        need = keys_to_score(seq_lens, b, next_n, skip_below, c * 32 + lane)
        total = total + ceildiv(need, keys)
    total = T.warp_reduce_sum(total)
    begin = share_begin(total, cta, ctas)
    turns = share_size(total, cta, ctas)
    if turns > 0:
        need = need_first
        for c in T.serial(T.ceildiv(b, 32)):
            if c > 0:
                need = keys_to_score(seq_lens, b, next_n, skip_below, c * 32 + lane)
            tiles = ceildiv(need, keys)
            upto = before + warp_prefix_sum(tiles, lane)
            hit = T.ballot_sync((upto > begin) & (upto - tiles <= begin))
            if hit != T.uint64(0):
                owner = T.Cast("int32", T.__ffs(T.Cast("int32", hit))) - 1
                # Assigning a T.Ref parameter stores into the caller's variable.
                seq = c * 32 + owner  # noqa: F841
                tile = begin - T.shfl_sync(upto - tiles, owner)  # noqa: F841
                need = T.shfl_sync(need, owner)
                T.loop_break()
            before = T.shfl_sync(upto, 31)


@T.macro
def next_tile(fresh: T.Ref, it, seq: T.Ref, tile: T.Ref, need: T.Ref, seq_lens, b, next_n, skip_below, keys):
    """Before the `it`-th tile of a share: past the end of `seq`, move on to the next sequence with keys to score.

    `fresh` tells whether this tile is the share's first one of its sequence.
    """
    fresh = (it == 0) | (tile * keys >= need)  # noqa: F841
    while tile * keys >= need:
        seq = seq + 1
        tile = 0
        need = keys_to_score(seq_lens, b, next_n, skip_below, seq)


def length_to_score(seq_lens, seq, query, next_n, skip_below):
    """Keys that one query has to score; 0 for a query past next_n and for a row that selection takes whole."""
    length = seq_lens[seq, T.min(query, next_n - 1)]
    return T.if_then_else((query < next_n) & (length > skip_below), length, 0)


def window_begin(k_start, row, s):
    """First key of a row's window."""
    return T.max(k_start[T.min(row, s - 1)], 0)


def window_end(k_start, k_end, row, s, skv, skip_below):
    """End of a row's window; 0 for a row past the last one and for a row that selection takes whole."""
    end = T.min(k_end[T.min(row, s - 1)], skv)
    return T.if_then_else((row < s) & (end - window_begin(k_start, row, s) > skip_below), end, 0)


@T.macro
def find_tiles(
    first: T.Ref, turns: T.Ref, k_start, k_end, row, rows, s, skv, skip_below, keys, split, splits
):
    """First key tile (`first`) and tile count (`turns`) of a split over the union of the windows of a block of rows."""
    low = T.alloc_var("int32", init=2147483647)
    high = T.alloc_var("int32", init=0)
    for i in T.unroll(rows):
        begin = window_begin(k_start, row + i, s)
        end = window_end(k_start, k_end, row + i, s, skv, skip_below)
        if end > begin:
            low = T.min(low, begin)
            high = T.max(high, end)
    turns = 0
    if high > 0:
        first = T.truncdiv(low, keys)
        turns = ceildiv(high, keys) - first
    first = first + share_begin(turns, split, splits)
    turns = share_size(turns, split, splits)
