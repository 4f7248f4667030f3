"""Texts of the FP8 lightning indexer's leaves for wgmma.

64 keys per warpgroup are on M, query heads are on N, and the head sum is in registers.

A thread of a warpgroup holds two keys (rows r and r + 8 of its warp's 16, r = lane // 4) and a quarter of the
heads of each, so the four lanes of a quad hold all heads. A relu and a multiply-add per (key, head) pair
bound the epilogue, so
everything else is kept short: the quad's sum leaves one logit per lane instead of the same logits in all
four.

One query per product: even lanes get the logit of the first key, odd lanes that of the second key. Two
queries: lanes 2 and 3 have the logits of the second query. Four queries: every lane gets the logits of both
keys for one query.
"""

from __future__ import annotations

from ....device.torch import scalars
from ....device.torch.warps import exchange
from ....tile.counting import moves
from ....tile.frontend import inline, named, recorded, unrolled
from ....tile.kinds import Float32, Global, Int32, LeafRecorder, Registers, Shared, Uint32, Writes
from ....tile.leaf_text import WARP, by_text
from ....tile.text import maximum, select
from ..functions import store_where
from .walk import BLOCK, LOWEST, Scores, window_of

ROWS = 8
"""The distance between a thread's two keys."""


def _key(thread, each, warp_keys=16):
    """The first key of the tile whose logit `weigh` leaves in a thread.

    With four queries per product the thread has a second key, `ROWS` further.
    """
    lane = thread % WARP
    within = lane // 4 if each == 4 else lane // 4 + ROWS * (lane % 2)
    return thread // WARP * warp_keys + within


def _query(thread, each):
    """The query of a product whose logits `weigh` leaves in a thread."""
    if each == 1:
        return 0
    return thread % 4 if each == 4 else thread // 2 % 2


def _column(key, begin, compressed):
    """The column of a key in a row of scores. The row may begin with its first key."""
    return key if compressed is None else key - begin[0] * compressed


@by_text
def read_weights(
    m: LeafRecorder, weight: Registers[Float32], head_weights: Shared[Float32], first: Int32, each: int,
    heads: int, pitch: int,
) -> None:  # fmt: skip
    """Read this thread's weights, query by query and two at a time, from `first` of the slot on."""
    # The weights of the next query are `pitch` floats further.
    own = head_weights.part("own", first)
    for query in range(each):
        for pair in unrolled(heads // 8):
            place = inline(query * (pitch // 2) + pair * 4 + m.thread % 4)
            own.read(weight.group(query * (heads // 4) + pair * 2, 2), place)


@by_text
def read_scales(
    m: LeafRecorder, scale: Registers[Float32], key_scales: Shared[Float32], first: Int32, each: int,
    apart: int | None,
) -> None:  # fmt: skip
    """Read the scales of this thread's keys of one product, from key `first` of the tile on."""
    # A copy holds the 16 keys of a warp. The scales of two copies are `apart` floats apart.
    keys = 16 if apart is None else apart
    own = key_scales.part("own", first + _key(m.thread, each, keys))
    for i in range(scale.size):
        scale[i] = own[ROWS * i]


@by_text
def read_block_scales(
    m: LeafRecorder, scale: Registers[Float32], key_scales: Shared[Float32], apart: int,
) -> None:  # fmt: skip
    """Read the scale of this thread's key of a product of one query.

    Copies of 8 keys are `apart` floats apart.
    """
    key = _key(m.thread, 1)
    scale[0] = key_scales[key // BLOCK * apart + key % BLOCK]


@recorded
def _head_sum(m, acc, weight, row, query, pairs):
    """This thread's part of sum_h w_h * max(s_h, 0) for its key `row` (0 or 1) and a query of the product."""
    total: Float32 = named(f"total_{row}_{query}", 0.0)
    for pair in unrolled(pairs):
        for column in range(2):
            score = inline(maximum(acc[(query * pairs + pair) * 4 + (2 * row + column)], 0.0))
            total += score * weight[(query * pairs + pair) * 2 + column]
    return total


@by_text
def weigh(
    m: LeafRecorder, logit: Registers[Float32], acc: Registers[Float32], weight: Registers[Float32],
    each: int, heads: int,
) -> None:  # fmt: skip
    """logit = sum_h weight[query, h] * max(acc[key, query, h], 0), for a product's queries and a quad's keys.

    Each of the quad's four lanes keeps its share of the logits.
    """
    odd = m.thread % 2 == 1
    upper = m.thread // 2 % 2 == 1 if each > 1 else False

    def dealt(low, high, takes_high, distance):
        """The sums of two values over a pair of lanes. A lane that `takes_high` gets the second sum."""
        return select(takes_high, high, low) + exchange(select(takes_high, low, high), distance)

    sums = [[_head_sum(m, acc, weight, row, query, heads // 8) for query in range(each)] for row in range(2)]
    if each == 1:
        own = dealt(sums[0][0], sums[1][0], odd, 1)
        logit[0] = own + exchange(own, 2)
    elif each == 2:
        half_0 = dealt(sums[0][0], sums[1][0], odd, 1)
        half_1 = dealt(sums[0][1], sums[1][1], odd, 1)
        logit[0] = dealt(half_0, half_1, upper, 2)
    else:
        for row, (a, b, c, d) in enumerate(sums):
            low = named(f"low_{row}", dealt(a, b, odd, 1))
            high = named(f"high_{row}", dealt(c, d, odd, 1))
            logit[row] = dealt(low, high, upper, 2)


@by_text
def one_length(m: LeafRecorder, length: Registers[Int32], need: Int32) -> None:
    """Set the length to that of the sequence's only query."""
    length[0] = need


@by_text
def read_query_lengths(
    m: LeafRecorder, length: Registers[Int32], seq_lens: Global[Int32], seq: Int32, query: Int32, each: int,
    next_n: Int32, skip_below: Int32,
) -> None:  # fmt: skip
    """Read the keys to score of this thread's query: 0 past next_n and for a row that is taken whole."""
    own = query + _query(m.thread, each)
    found: Int32 = 0
    if own < next_n:
        found = seq_lens.row("lengths", seq, wide=False)[own]
        if found <= skip_below:
            found = 0
    length[0] = found


@recorded
def _store(m, to, at, value, wanted):
    """Store a score where a condition holds; a score in fp32 is stored without a branch."""
    if to.dtype == "float32":
        m.do(store_where(to.at(at), value, wanted))
    elif wanted:
        to[at] = value


@moves(stored=lambda logit, query, each, next_n: logit // 2 * min(each, next_n - query))
@by_text
def store_logits(
    m: LeafRecorder, logits: Writes[Scores], logit: Registers[Float32], scale: Registers[Float32],
    length: Registers[Int32], seq: Int32, query: Int32, each: int, next_n: Int32, key: Int32,
) -> None:  # fmt: skip
    """Store this thread's logits of a product, times the scales, for the keys that its query has."""
    at = key + _key(m.thread, each)
    for i in range(logit.size):
        to = logits.row("to", (seq, query + _query(m.thread, each)), first=at + ROWS * i)
        wanted = inline((each > 1 or m.thread % 4 < 2) and at + ROWS * i < length[0])
        _store(m, to, 0, logit[i] * scale[i], wanted)


@by_text
def store_maxima(
    m: LeafRecorder, maxima: Writes[Global[Float32]], logit: Registers[Float32], scale: Registers[Float32],
    length: Registers[Int32], row: Int32, key: Int32,
) -> None:  # fmt: skip
    """Store the greatest score of each 8 keys, from a product of one query.

    Only keys that the row has count, and NaN does not.
    """
    at = key + _key(m.thread, 1)
    nothing: Uint32 = LOWEST
    most: Float32 = scalars.float_of(nothing)
    if at < length[0]:
        most = logit[0] * scale[0]
    m.comment("The scores of a block are in every fourth lane, from lane 0 or lane 1 on.")
    for bits in (4, 8, 16):
        most = maximum(most, exchange(most, bits))
    if m.thread % WARP < 2 and at < length[0]:
        maxima.row("most_of_row", row)[at // BLOCK] = most


@by_text
def read_windows(
    m: LeafRecorder, begin: Registers[Int32], size: Registers[Int32], k_start: Global[Int32],
    k_end: Global[Int32], row: Int32, each: int, s: Int32, skv: Int32, skip_below: Int32,
) -> None:  # fmt: skip
    """Read the first key and the size of the window of this thread's row."""
    low, high = window_of(m, k_start, k_end, row + _query(m.thread, each), s, skv, skip_below)
    begin[0] = low
    size[0] = maximum(high - low, 0)


@moves(stored=lambda logit, each: logit // 2 * each)
@by_text
def store_window(
    m: LeafRecorder, logits: Writes[Scores], logit: Registers[Float32], scale: Registers[Float32],
    begin: Registers[Int32], size: Registers[Int32], row: Int32, each: int, key: Int32,
    compressed: Int32 | None,
) -> None:  # fmt: skip
    """Store this thread's logits of a product, times the scales, for the keys in its row's window."""
    m.comment(
        "The part of the address that is the same for all products comes first, so it is computed once."
    )
    to = logits.row(
        "to", row + _query(m.thread, each), first=_column(_key(m.thread, each), begin, compressed)
    ).part("there", key)
    place = key - (begin[0] - _key(m.thread, each))
    for i in range(logit.size):
        inside = inline((place + ROWS * i).to("uint32") < size[0].to("uint32"))
        _store(m, to, ROWS * i, logit[i] * scale[i], inside)
