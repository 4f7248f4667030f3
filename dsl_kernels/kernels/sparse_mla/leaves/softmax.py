"""Leaves of the scores and the softmax of sparse MLA on Hopper, with heads on N or on M, by their text.

A thread's registers are its share of a tile as the products leave it (dsl_kernels/tile/fragments.py). Running
sums are private to each thread until the end. All exponents are base 2: logits carry log2(e), and an lse is
the log2 of a sum.
"""

from __future__ import annotations

import math
from operator import add

from ....device.text.rows import FOUR, HALF_ROWS, of_row, scale_row
from ....device.text.rows import first_row as first_head
from ....device.text.rows import rescale_rows as rescale_rows
from ....device.torch.fragment import quad_most, quad_sum, row_most, row_sum
from ....device.torch.warps import any_lane, exchange, exp2, log2, rcp_approx, send_fours, store_matrices
from ....tile.counting import moves
from ....tile.frontend import inline, named, recorded, unrolled
from ....tile.kinds import BFloat16, Float32, Int32, LeafRecorder, Registers, Sender, Shared
from ....tile.lang import LOG2_E
from ....tile.leaf_text import WARP, by_text
from ....tile.text import maximum, minimum, select
from .gather import HEADS, THREADS, is_head

INF = math.inf
WORD_REGISTERS = 16
"""Registers of a thread for its two heads and 32 tokens."""


def base2_lse(total, top):
    """The base-2 lse of a sum of weights relative to the maximum `top`; -inf if the sum is empty."""
    return select(total > 0.0, log2(total) + top, -INF)


def said_lse(lse2, scale, empty):
    """A base-2 lse as the caller wants it: in the base that `scale` gives, or `empty` without tokens."""
    return select(lse2 > -INF, lse2 * scale, empty)


def inverse_sum(total):
    """1 / sum; 0 if the sum is empty."""
    return select(total > 0.0, rcp_approx(total), 0.0)


def kept_beside(lse2, sink):
    """The share of the softmax that tokens keep beside a natural-log sink logit.

    It is 1 without a sink and 0 without tokens.
    """
    return select(lse2 > -INF, rcp_approx(exp2(sink * LOG2_E - lse2) + 1.0), 0.0)


@by_text
def send_scores(
    m: LeafRecorder, scores: Registers[Float32], slots: Shared[Float32], to_slots: Sender, rank: Int32,
    slices: int,
) -> None:  # fmt: skip
    """Send the partial scores to the same thread of each other CTA of the slice group.

    Slot d - 1 receives from rank XOR d.
    """
    for d in range(1, slices):
        own = inline(slots.at((d - 1) * scores.size * THREADS + m.thread * FOUR))
        m.do(send_fours(own, to_slots, rank ^ d, scores, FOUR * THREADS))


@by_text
def add_scores(m: LeafRecorder, scores: Registers[Float32], received: Shared[Float32], slices: int) -> None:
    """Add the scores of the other CTAs, pairs first: (0 + 1) + (2 + 3). All CTAs then round alike."""
    slots = received.part("slots", m.thread * FOUR)
    for v in unrolled(scores.size // FOUR):
        for e in range(FOUR):
            got = [slots[(d * (scores.size // FOUR) + v) * (FOUR * THREADS) + e] for d in range(slices - 1)]
            own = inline(scores[v * FOUR + e] + got[0])
            scores[v * FOUR + e] = own + (got[1] + got[2]) if slices == 4 else own


def sink_of(attn_sink, head, heads):
    """The sink logit of a head. If the query does not have the head, the last head's."""
    return attn_sink[head if heads is None else minimum(head, heads - 1)]


# Heads on N: the columns of S^T and of O^T are heads. A thread has two heads of each group of eight. The
# eight lanes of a warp whose numbers differ by multiples of four have the same heads.


def columns_of(group):
    """For each of the two columns of a thread's group of four registers: its number and its first register.

    A thread has two of 64 rows. The second row's register is two after the first row's.
    """
    return [(group * 2 + e, group * FOUR + e) for e in range(2)]


def column_head(column, thread):
    """The head of a thread's column."""
    return column // 2 * 8 + thread % 4 * 2 + column % 2


EVERY_FOURTH = (4, 8, 16)
"""Distances between the lanes of a warp that have the same columns."""


@recorded
def over_lanes(m, value, combine):
    """Combine each thread's value over the lanes of its warp with the same heads."""
    for distance in EVERY_FOURTH:
        value = named(f"over_{distance}", combine(value, exchange(value, distance)))
    return value


@by_text
def mask_scores(
    m: LeafRecorder, scores: Registers[Float32], low: Int32, high: Int32, sm_scale: Float32,
) -> None:  # fmt: skip
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf.

    `low` has a bit for each of the first 32 tokens, `high` for each of the next 32.
    """
    own = select(m.thread < 64, low, high) >> (m.thread // WARP % 2 * 16 + m.thread % WARP // 4)
    scale = sm_scale * LOG2_E
    for r in range(2):
        valid = named(f"valid_{r}", ((own >> (8 * r)) & 1) != 0)
        for group in unrolled(scores.size // FOUR):
            for _, i in columns_of(group):
                scores[i + 2 * r] = select(valid, scores[i + 2 * r] * scale, -INF)


@recorded
def _leave_columns(m, red, values):
    """Leave one value per column and warp for the other warps."""
    if m.thread % WARP < 4:
        for column in unrolled(values.size):
            red[column_head(column, m.thread), m.thread // WARP] = values[column]


@by_text
def leave_maxima(m: LeafRecorder, red: Shared[Float32], scores: Registers[Float32]) -> None:
    """Leave the maximum of each head over the 16 tokens of each warp for the other warps."""
    risen = m.local("risen", scores.size // 2, "float32")
    for group in unrolled(scores.size // FOUR):
        for column, i in columns_of(group):
            own = maximum(scores[i], scores[i + 2])
            risen[column] = over_lanes(m, own, maximum)
    _leave_columns(m, red, risen)


@recorded
def _join_warps(m, top, red, combine):
    """Combine what the four warps have left of each column."""
    four = m.local("four", FOUR, "float32")
    for column in unrolled(top.size):
        red.read(four, (column_head(column, m.thread), 0))
        top[column] = combine(combine(four[0], four[1]), combine(four[2], four[3]))


@by_text
def join_maxima(m: LeafRecorder, top: Registers[Float32], red: Shared[Float32]) -> None:
    """Compute the maxima of the heads over the four warps."""
    _join_warps(m, top, red, maximum)


@by_text
def online_softmax(
    m: LeafRecorder, scores: Registers[Float32], sums: Registers[Float32], acc: Registers[Float32],
    peak: Registers[Float32], top: Registers[Float32],
) -> None:  # fmt: skip
    """Replace S by P = exp2(S - maximum), and rescale the running sums and O to the new maximum.

    The sums stay private to each thread until the end: one addition per element, and threads exchange
    nothing. A rescale only if a maximum has risen much would need a branch around O, and that costs more than
    it saves (docs/performance.md).
    """
    for group in unrolled(scores.size // FOUR):
        for column, i in columns_of(group):
            risen = maximum(top[column], peak[column])
            decay = exp2(peak[column] - risen)
            peak[column] = risen
            for at in (i, i + 2):
                scores[at] = exp2(scores[at] - risen)
            sums[column] = sums[column] * decay + (scores[i] + scores[i + 2])
            _scale_column(m, acc, scores.size, i, decay)


@by_text
def leave_sums(m: LeafRecorder, red: Shared[Float32], sums: Registers[Float32]) -> None:
    """Leave the sum of each head over the tokens of each warp for the other warps."""
    whole = m.local("whole", sums.size, "float32")
    for column in unrolled(sums.size):
        own = sums[column]
        whole[column] = over_lanes(m, own, add)
    _leave_columns(m, red, whole)


@by_text
def join_sums(m: LeafRecorder, top: Registers[Float32], red: Shared[Float32]) -> None:
    """Compute the sums of the heads over the four warps."""
    _join_warps(m, top, red, add)


@recorded
def _scale_column(m, acc, each, register, factor):
    """Multiply a column of O by a factor. Each `each` registers of O have 64 rows."""
    for block in unrolled(acc.size // each):
        for at in (block * each + register, block * each + register + 2):
            acc[at] = acc[at] * factor


@moves(stored=lambda target: target)
@by_text
def store_weights(m: LeafRecorder, target: Shared[BFloat16], scores: Registers[Float32]) -> None:
    """Write P as bf16 in the layout that its product reads. If there are eight heads, they are the rows."""
    first, lane = m.thread // WARP * 16, m.thread % WARP
    if target.shape[0] == 8:
        place = inline(target.group_at(lane % 8, first + lane // 8 % 2 * 8, 8))
        m.do(store_matrices(place, scores, 0, 2, True))
    else:
        for pair in unrolled(scores.size // 8):
            place = inline(target.group_at(first + lane % 16, pair * 16 + lane // 16 * 8, 8))
            m.do(store_matrices(place, scores, pair * 8, 4))


@by_text
def normalise(
    m: LeafRecorder, acc: Registers[Float32], top: Registers[Float32], peak: Registers[Float32],
) -> None:  # fmt: skip
    """Divide O by the sums, and replace the sums by the base-2 lse. An empty column gives 0 and -inf."""
    each = top.size * 2
    for group in unrolled(each // FOUR):
        for column, i in columns_of(group):
            inverse = inverse_sum(top[column])
            top[column] = base2_lse(top[column], peak[column])
            _scale_column(m, acc, each, i, inverse)


# 64 heads on M: each of two warpgroups (sides) scores half of the tokens and has half of the dims of O. A
# thread has two heads, HALF_ROWS apart. The four lanes of a quad have the same heads.


@recorded
def leave_heads(m, place, rows, heads=None):
    """Leave one value per head, from one lane of each quad; for the first `heads` heads, None for all."""
    if m.thread % 4 == 0:
        mine = place.part("mine", first_head(m.thread))
        for r in range(2):
            if is_head(first_head(m.thread) + HALF_ROWS * r, heads):
                mine[HALF_ROWS * r] = rows[r]


@by_text
def mask_columns(
    m: LeafRecorder, scores: Registers[Float32], low: Int32, high: Int32, sm_scale: Float32,
) -> None:  # fmt: skip
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf.

    `low` has a bit for each of the first 32 tokens, `high` for each of the next 32.
    """
    scale = sm_scale * LOG2_E
    for i in unrolled(scores.size):
        scores[i] = scores[i] * scale
    if (low & high) != -1:
        for first, word in zip(range(0, scores.size, WORD_REGISTERS), (low, high), strict=False):
            bits = word >> m.thread % 4 * 2
            for i in unrolled(WORD_REGISTERS):
                valid = inline((bits >> (i // 4 * 8 + i % 2)) & 1)
                scores[first + i] = select(valid != 0, scores[first + i], -INF)


def _shrinking(peak, risen):
    """The factor from a sum relative to one maximum to a sum relative to a higher one; both may be -inf."""
    return select(peak == risen, 1.0, exp2(peak - risen))


@by_text
def softmax_rows(
    m: LeafRecorder, scores: Registers[Float32], sums: Registers[Float32], peak: Registers[Float32],
    factor: Registers[Float32], rise: int,
) -> None:  # fmt: skip
    """Replace S by P = exp2(S - maximum).

    The maxima of a warp rise if one of its scores exceeds the row's maximum by `rise`. `factor` rescales what
    is relative to the old maximum.
    """
    most = [named(f"most_{r}", row_most(scores, r)) for r in range(2)]
    for r in range(2):
        factor[r] = 1.0
    if any_lane((most[0] > peak[0] + rise) | (most[1] > peak[1] + rise)):
        for r in range(2):
            risen = maximum(peak[r], quad_most(most[r]))
            factor[r] = _shrinking(peak[r], risen)
            peak[r] = risen
            sums[r] = sums[r] * factor[r]
    for r in range(2):
        m.comment("The maximum is -inf if no token so far is valid.")
        base = select(peak[r] == -INF, 0.0, peak[r])
        for j in unrolled(scores.size // FOUR):
            for i in of_row(j, r):
                scores[i] = exp2(scores[i] - base)
        sums[r] = sums[r] + row_sum(scores, r)


@by_text
def share_peak(m: LeafRecorder, target: Shared[Float32], peak: Registers[Float32]) -> None:
    """Leave the maxima that P is relative to for the other side."""
    leave_heads(m, target, peak)


@by_text
def follow_peak(
    m: LeafRecorder, peak: Registers[Float32], sums: Registers[Float32], acc: Registers[Float32],
    other: Shared[Float32],
) -> None:  # fmt: skip
    """Raise the maxima to those of the other side's P, which are no lower."""
    theirs = other.part("theirs", first_head(m.thread))
    if any_lane((theirs[0] != peak[0]) | (theirs[HALF_ROWS] != peak[1])):
        for r in range(2):
            factor = _shrinking(peak[r], theirs[HALF_ROWS * r])
            peak[r] = theirs[HALF_ROWS * r]
            sums[r] = sums[r] * factor
            scale_row(m, acc, r, factor)


@by_text
def share_sums(m: LeafRecorder, sums: Registers[Float32], red: Shared[Float32], side: int) -> None:
    """Complete this side's sums and leave them for the other side."""
    for r in range(2):
        sums[r] = quad_sum(sums[r])
    leave_heads(m, red.part("own", side * HEADS), sums)


@by_text
def total_rows(
    m: LeafRecorder, sums: Registers[Float32], peak: Registers[Float32], factor: Registers[Float32],
    red: Shared[Float32], side: int,
) -> None:  # fmt: skip
    """Set `factor` to 1 / sum of both sides, and replace the sums by the base-2 lse.

    An empty row gives 0 and -inf.
    """
    theirs = red.part("theirs", first_head(m.thread) + (1 - side) * HEADS)
    for r in range(2):
        total = sums[r] + theirs[HALF_ROWS * r]
        factor[r] = inverse_sum(total)
        sums[r] = base2_lse(total, peak[r])


# The splits of a query are joined as the tiles of a row are, part by part.


@recorded
def join_parts(m, columns, values, at_once, parts, lses_of, head_of, read, column_of):
    """Sum a thread's `values` of `columns` heads over a query's parts, with weights by the parts' lses.

    Weights are relative to the largest lse so far, so no read waits for another, and those of `at_once` parts
    are in flight together. An empty part has lse -inf and weight 0.

    Args:
        lses_of: `lses_of(part)` are the lses of a part, and `head_of(column)` is a head's place among them.
        read: `read(four, part, u)` reads values 4u to 4u + 3 of a part.
        column_of: value i is of head `column_of(i)` of the thread's heads.

    Returns:
        For each head the largest lse and the sum of weights, and the weighted sums of the values.
    """
    top, total, kept = (m.local(title, columns, "float32") for title in ("top", "total", "kept"))
    merged, four = m.local("merged", values, "float32"), m.local("four", FOUR, "float32")
    weights = m.local("weights", at_once * columns, "float32")
    for column in unrolled(columns):
        top[column], total[column] = -INF, 0.0
    for i in unrolled(merged.size):
        merged[i] = 0.0
    for first in range(0, parts, at_once):
        for p in unrolled(at_once):
            lses = lses_of(minimum(first + p, parts - 1))
            for column in unrolled(columns):
                of_part = inline(lses[head_of(column)])
                weights[p * columns + column] = select(first + p < parts, of_part, -INF)
        for column in unrolled(columns):
            peak: Float32 = top[column]
            for at in unrolled(column, weights.size, columns):
                peak = maximum(peak, weights[at])
            m.comment("The weight of an empty part is 0, even if all parts are empty.")
            base = select(peak > -INF, peak, 0.0)
            kept[column] = exp2(top[column] - base)
            top[column], total[column] = peak, total[column] * kept[column]
            for at in unrolled(column, weights.size, columns):
                weights[at] = exp2(weights[at] - base)
                total[column] = total[column] + weights[at]
        for i in unrolled(merged.size):
            merged[i] = merged[i] * kept[column_of(i)]
        for p in unrolled(at_once):
            for u in unrolled(merged.size // FOUR):
                read(four, minimum(first + p, parts - 1), u)
                for e in unrolled(FOUR):
                    i = inline(u * FOUR + e)
                    merged[i] = merged[i] + four[e] * weights[p * columns + column_of(i)]
    return top, total, merged
