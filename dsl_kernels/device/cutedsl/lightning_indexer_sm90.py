"""Leaf maths of the indexer on wgmma: 64 keys a warpgroup on M, query heads on N, the head sum in registers.

A thread of a warpgroup holds two keys (rows r and r + 8 of its warp's 16, r = lane // 4) and a quarter of the heads of
each: the four lanes of a quad complete one another. A relu and a multiply-add a (key, head) pair bound the epilogue, so
everything else is kept short: the quad's sum ends with one logit a lane instead of the same logits in all four.

One query a product: even lanes get the first key's logit, odd lanes the second's. Two: lanes 2 and 3 have the second
query's. Four: every lane gets one query's, of both keys.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32

from .lightning_indexer import length_to_score, window_begin, window_end


def _key(thread, queries):
    """The first key of the tile whose logit `weigh` leaves in this thread; with four queries, 8 on is another."""
    lane = thread % 32
    within = lane // 4 if queries == 4 else lane // 4 + 8 * (lane % 2)
    return thread // 32 * 16 + within


def _query(thread, queries):
    """The query of a product whose logits `weigh` leaves in this thread."""
    if queries == 1:
        return 0
    return thread % 4 if queries == 4 else thread // 2 % 2


def read_weights(weight, head_weights, first, queries, thread):
    """Copy this thread's weights of one query after the other from shared memory, two at a time."""
    heads = cute.size(weight) * 4 // queries
    for query in range(queries):
        source = (head_weights + (first + query * heads) + 2 * (thread % 4)).align(8)
        mine = cute.make_layout((2, heads // 8), stride=(1, 8))
        own = cute.make_tensor(weight.iterator + query * (heads // 4), cute.make_layout((2, heads // 8)))
        cute.autovec_copy(cute.make_tensor(source, mine), own)


def read_scales(scale, key_scales, first, queries, thread):
    """Scales of this thread's keys of one product, from key `first` of the tile on."""
    source = key_scales + first + _key(thread, queries)
    for i in range(cute.size(scale)):
        scale[i] = (source + 8 * i).load()


def _head_sum(acc, weight, row, query, pairs):
    """This thread's part of sum_h w_h * relu(s_h) for its key `row` (0 or 1) and one query of the product."""
    total = Float32(0.0)
    for pair in range(pairs):
        for column in range(2):
            score = acc[(column, row, query * pairs + pair), 0, 0]
            total = total + cute.arch.fmax(score, 0.0) * weight[(query * pairs + pair) * 2 + column]
    return total


@cute.jit
def _exchange(first, second, thread, distance: cutlass.Constexpr):
    """Add two values over pairs of lanes: the lane whose bit `distance` is clear gets `first`'s sum."""
    upper = thread // distance % 2 == 1
    own = second if upper else first
    return own + cute.arch.shuffle_sync_bfly(first if upper else second, distance)


def weigh(logit, acc, weight, queries, thread):
    """The sums of a product's queries and this quad's two keys, dealt to its four lanes."""
    pairs = cute.size(weight) // (2 * queries)
    sums = [[_head_sum(acc, weight, row, query, pairs) for row in range(2)] for query in range(queries)]
    if queries == 1:
        own = _exchange(sums[0][0], sums[0][1], thread, 1)
        logit[0] = own + cute.arch.shuffle_sync_bfly(own, 2)
    elif queries == 2:
        logit[0] = _exchange(*(_exchange(first, second, thread, 1) for first, second in sums), thread, 2)
    else:
        for i, (a, b, c, d) in enumerate(zip(*sums, strict=True)):
            logit[i] = _exchange(_exchange(a, b, thread, 1), _exchange(c, d, thread, 1), thread, 2)


def one_length(length, need):
    """The length of the only query of a sequence."""
    length[0] = need


def read_query_lengths(length, seq_lens, seq, query, queries, next_n, skip_below, thread):
    """Keys to score of this thread's query of a product; 0 past next_n and for a row that selection takes whole."""
    length[0] = length_to_score(seq_lens, seq, query + _query(thread, queries), next_n, skip_below)


def _store_where(to, value, wanted):
    """Store a float32 where wanted. No branch: the address would be found in it, for each product anew."""
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.b32 p, {$r2}, 0; @p st.global.f32 [{$r0}], {$r1}; }",
        read_only_args=[to, value, Int32(wanted)],
    )


@cute.jit
def store_logits(
    logits: cute.Pointer,
    logit: cute.Tensor,
    scale: cute.Tensor,
    length: cute.Tensor,
    seq,
    query,
    queries: cutlass.Constexpr,
    next_n,
    stride,
    key,
    thread,
):
    """Store this thread's logits of a product: those of keys that its query has."""
    at = key + _key(thread, queries)
    row = seq * next_n + query + _query(thread, queries)
    stores = thread % 4 < 2 if cutlass.const_expr(queries == 1) else True
    for i in cutlass.range_constexpr(cute.size(logit)):
        to = logits + (Int64(row) * stride + at + 8 * i)
        _store_where(to, logit[i] * scale[i], stores & (at + 8 * i < length[0]))


def read_windows(begin, size, k_start, k_end, row, queries, s, skv, skip_below, thread):
    """First key and size of the window of this thread's row."""
    own = row + _query(thread, queries)
    begin[0] = window_begin(k_start, own, s)
    size[0] = cutlass.max(window_end(k_start, k_end, own, s, skv, skip_below) - begin[0], 0)


@cute.jit
def store_window(
    logits: cute.Pointer,
    logit: cute.Tensor,
    scale: cute.Tensor,
    begin: cute.Tensor,
    size: cute.Tensor,
    row,
    queries: cutlass.Constexpr,
    stride,
    key,
    thread,
):
    """Store this thread's logits of a product: those of keys in its row's window."""
    # What does not change from product to product comes first, so that it is found once.
    to = logits + (Int64(row + _query(thread, queries)) * stride + _key(thread, queries)) + key
    place = key - (begin[0] - _key(thread, queries))
    for i in cutlass.range_constexpr(cute.size(logit)):
        _store_where(to + 8 * i, logit[i] * scale[i], Uint32(place + 8 * i) < Uint32(size[0]))
