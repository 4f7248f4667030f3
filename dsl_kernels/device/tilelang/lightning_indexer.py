"""Leaf maths of the FP8 lightning indexer: how key tiles are dealt to CTAs, windows of rows, the weighted head sum.

Tiles of registers are fragments, dealt to the threads of a role as TileLang infers from the product that fills them.
"""

import tilelang.language as T

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


def quotient(count, size):
    return T.truncdiv(count, size)


def shuffle_length(length, lane):
    return length


@T.macro
def needed(seq_lens, b, next_n, skip_below, seq):
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
    seq: T.Ref, tile: T.Ref, need: T.Ref, turns: T.Ref, step: T.Ref, seq_lens, b, next_n, skip_below, keys, cta, ctas, lane
):  # fmt: skip
    """Without the text's way of its own for one sequence: TileLang's division makes more of it than it spares."""
    tiles = T.alloc_var("int32", init=0)
    total = T.alloc_var("int32", init=0)
    longest = T.alloc_var("int32", init=0)
    begin = T.alloc_var("int32", init=0)
    upto = T.alloc_var("int32", init=0)
    before = T.alloc_var("int32", init=0)
    first = T.alloc_var("int32", init=0)
    first = need
    total = ceildiv(first, keys)
    longest = total
    for c in T.serial(1, T.ceildiv(b, 32)):
        tiles = ceildiv(needed(seq_lens, b, next_n, skip_below, c * 32 + lane), keys)
        total = total + tiles
        longest = T.max(longest, tiles)
    total = T.warp_reduce_sum(total)
    longest = T.warp_reduce_max(longest)
    if (b <= ctas) & (longest <= ceildiv(total, ctas) * step):
        need = needed(seq_lens, b, next_n, skip_below, seq)
        turns = T.truncdiv(T.max(ceildiv(need, keys) - tile + step - 1, 0), step)
    else:
        begin = share_begin(total, cta, ctas)
        turns = share_size(total, cta, ctas)
        step = 1
        if turns > 0:
            for c in T.serial(T.ceildiv(b, 32)):
                if c > 0:
                    first = needed(seq_lens, b, next_n, skip_below, c * 32 + lane)
                tiles = ceildiv(first, keys)
                upto = before + warp_prefix_sum(tiles, lane)
                hit = T.ballot_sync((upto > begin) & (upto - tiles <= begin))
                if hit != T.uint64(0):
                    owner = T.Cast("int32", T.__ffs(T.Cast("int32", hit))) - 1
                    seq = c * 32 + owner
                    tile = begin - T.shfl_sync(upto - tiles, owner)
                    need = T.shfl_sync(first, owner)
                    T.loop_break()
                before = T.shfl_sync(upto, 31)


@T.macro
def place_when_even(seq: T.Ref, tile: T.Ref, step: T.Ref, b, cta, ctas):
    """When tiles are dealt evenly, a sequence has `step` CTAs, and this one starts at `tile` of sequence `seq`."""
    step = T.max(T.truncdiv(ctas, b), 1)
    seq = T.truncdiv(cta, step)  # noqa: F841
    tile = T.truncmod(cta, step)  # noqa: F841


@T.macro
def keys_to_score(need: T.Ref, seq_lens, b, next_n, skip_below, seq):
    """Longest prefix that one query of a sequence has to score, for the sequence of each lane; 0 past the batch."""
    # Assigning a T.Ref parameter stores into the caller's variable.
    need = needed(seq_lens, b, next_n, skip_below, seq)  # noqa: F841


@T.macro
def next_tile(fresh: T.Ref, it, seq: T.Ref, tile: T.Ref, need: T.Ref, seq_lens, b, next_n, skip_below, keys):
    """Before the `it`-th tile of a share: past the end of `seq`, move on to the next sequence with keys to score.

    `fresh` tells whether this tile is the share's first one of its sequence.
    """
    fresh = (it == 0) | (tile * keys >= need)  # noqa: F841
    while tile * keys >= need:
        seq = seq + 1
        tile = 0
        need = needed(seq_lens, b, next_n, skip_below, seq)


def weighted_relu(score, weight):
    """One head's part of a logit; a key's scale is positive, so it may follow the sum over heads."""
    return T.max(score, 0.0) * weight


@T.macro
def read_weights(weight, head_weights, slot, first, queries, thread):
    """Weights of the heads of one product, from the `first` of its slot on."""
    count = queries * weight.shape[len(weight.shape) - 1]
    weights = T.reshape(weight, (count,))
    # T.copy would compare the place of each with the end of the slot, and select between it and zero.
    for i in T.Parallel(count):
        weights[i] = head_weights[slot, first + i]


@T.macro
def read_scales(scale, key_scales, slot, first, queries, thread):
    """Scales of the keys of one product, from key `first` of the tile on."""
    T.copy(key_scales[slot, first : first + scale.shape[0]], scale)


@T.macro
def weigh(logit, dots, weight, queries, thread):
    """logit[key, query] = sum_h weight[query, h] * max(dots[key, query, h], 0)."""
    keys, heads = logit.shape[0], weight.shape[1]
    scores = T.reshape(dots, (keys, queries, heads))
    partial = T.alloc_reducer((keys, queries), "float32", op="sum")
    T.reducer_init(partial)
    for r, j, h in T.Parallel(keys, queries, heads):
        T.reducer_update(partial[r, j], weighted_relu(scores[r, j, h], weight[j, h]))
    T.finalize_reducer(partial, logit)


@T.macro
def one_length(length, need):
    """The length of the only query of a sequence."""
    for j in T.Parallel(1):
        length[j] = need


@T.macro
def read_query_lengths(length, seq_lens, seq, query, queries, next_n, skip_below, thread):
    """Keys to score of the queries from `query` on; 0 past next_n and for a row that selection takes whole."""
    for j in T.Parallel(queries):
        length[j] = length_to_score(seq_lens, seq, query + j, next_n, skip_below)


@T.macro
def store_logits(logits, logit, scale, length, seq, query, queries, next_n, stride, key, thread):
    """Logits of the keys from `key` on, times their scales, of the queries from `query` on: as many as each has keys."""
    for r, j in T.Parallel(logit.shape[0], queries):
        if key + r < length[j]:
            logits[seq, query + j, key + r] = logit[r, j] * scale[r]


@T.macro
def read_windows(begin, size, k_start, k_end, row, queries, s, skv, skip_below, thread):
    """First keys and sizes of the windows of the rows from `row` on."""
    # Behind a shuffle, or the compiler shares the comparisons with `find_tiles` and keeps them across the setmaxnreg of
    # a role in uniform predicates, all seven of them; ptxas then loses the one that setmaxnreg writes.
    own = T.shfl_sync(row, 0)
    for j in T.Parallel(queries):
        begin[j] = window_begin(k_start, own + j, s)
        size[j] = T.max(window_end(k_start, k_end, own + j, s, skv, skip_below) - begin[j], 0)


@T.macro
def store_window(logits, logit, scale, begin, size, row, queries, stride, key, thread):
    """Logits of the keys from `key` on, times their scales, of the rows from `row` on: those in each row's window."""
    for r, j in T.Parallel(logit.shape[0], queries):
        if (key + r >= begin[j]) & (key + r - begin[j] < size[j]):
            logits[row + j, key + r] = logit[r, j] * scale[r]


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
