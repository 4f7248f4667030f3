"""Leaves of sparse MLA on Hopper by their text: what one thread does, for every DSL and for the interpreter.

Registers are a warpgroup's share of a tile as its products leave it (dsl_kernels/tile/fragments.py), but running sums are
each thread's own until they are completed. All exponents are base 2: logits carry log2(e), and an lse is the log2 of a
sum. What has no text is in dsl_kernels/device/torch/sparse_mla.py.
"""

from __future__ import annotations

import math

from ...tile.lang import Size
from ...tile.text import Sets, Writes, maximum, select
from ...tile.threads import WARP, by_text
from ..torch.sparse_mla import HALF_ROWS, HEADS, LOG2E, THREADS, TILE, quad_most, quad_sum, row_most, row_sum
from ..torch.warps import any_lane, exp2, log2, rcp_approx

INF = math.inf
LATENT_DIM = Size(512, "LATENT_DIM")
FOUR = 4
"""Floats of one access to memory."""
WORD_REGISTERS = 16
"""A thread's registers of its two heads and 32 tokens."""


def _lse(total, top):
    """log2 of a sum of weights below a maximum; -inf when it is empty."""
    return select(total > 0.0, log2(total) + top, -INF)


def _inverse(total):
    """1 / sum; 0 when it is empty."""
    return select(total > 0.0, rcp_approx(total), 0.0)


@by_text
def read_ids(m, low: Sets, high: Sets, indices, topk, row, turn, turns, split, splits, lane):
    """Ids `lane` and `lane` + 32 of the tile at `turn`; none past the last turn."""
    m.set(low, -1)
    m.set(high, -1)
    with m.when(turn < turns):
        ids = indices.row("ids", row, topk)
        first = m.let("first", (split + turn * splits) * TILE + lane)
        m.set(low, ids[first])
        m.set(high, ids[first + WARP])


# 64 heads on M: each of two warpgroups (sides) scores half of the tokens and has half of the dims of O. A thread has two
# heads, HALF_ROWS apart, each in the four lanes of a quad.


def _row(thread):
    """The first of a thread's two heads."""
    return thread // 32 * 16 + thread % 32 // 4


def _each(m, registers, r):
    """Numbers of a thread's registers of its head `r`."""
    for j in m.loop("j", registers.size // FOUR, unrolled=True):
        for e in range(2):
            yield j * FOUR + (2 * r + e)


def _leave(m, place, rows, thread):
    """Leave one value a head, by one lane of each quad."""
    with m.when((thread % 4).equals(0)):
        mine = place.part("mine", _row(thread))
        for r in range(2):
            mine[HALF_ROWS * r] = rows[r]


@by_text
def load_row_sinks(m, sinks, attn_sink, head0, thread):
    """The sink logits of the heads, read long before they are wanted."""
    mine = attn_sink.part("mine", head0 + _row(thread))
    for r in range(2):
        sinks[r] = mine[HALF_ROWS * r]


@by_text
def mask_columns(m, scores, low, high, sm_scale, thread):
    """Scale the logits to base 2 and put -inf where the token, of the first 32 or of the next, has no valid id."""
    scale = m.let("scale", sm_scale * LOG2E)
    for i in m.loop("i", scores.size, unrolled=True):
        scores[i] = scores[i] * scale
    with m.when((low & high).differs(-1)):
        for first, word in zip(range(0, scores.size, WORD_REGISTERS), (low, high), strict=False):
            bits = m.let("bits", word >> thread % 4 * 2)
            for i in m.loop("i", WORD_REGISTERS, unrolled=True):
                valid = (bits >> (i // 4 * 8 + i % 2)) & 1
                scores[first + i] = select(valid.differs(0), scores[first + i], -INF)


def _shrinking(peak, risen):
    """What is summed up below one maximum times this is below a higher one; neither may have seen a token."""
    return select(peak.equals(risen), 1.0, exp2(peak - risen))


@by_text
def softmax_rows(m, scores, sums, peak, factor, rise, thread):
    """P = exp2(S - maximum) in place of S. A maximum rises, by `factor`, when a score of its warp's rows exceeds one by `rise`."""
    most = [m.let(f"most_{r}", row_most(scores, r)) for r in range(2)]
    for r in range(2):
        factor[r] = 1.0
    with m.when(any_lane((most[0] > peak[0] + rise) | (most[1] > peak[1] + rise))):
        for r in range(2):
            risen = m.let("risen", maximum(peak[r], quad_most(most[r])))
            factor[r] = _shrinking(peak[r], risen)
            peak[r] = risen
            sums[r] = sums[r] * factor[r]
    for r in range(2):
        m.comment("No token of this half may be valid, nor one before it.")
        base = m.let("base", select(peak[r].equals(-INF), 0.0, peak[r]))
        for i in _each(m, scores, r):
            scores[i] = exp2(scores[i] - base)
        sums[r] = sums[r] + row_sum(scores, r)


@by_text
def share_peak(m, target, peak, thread):
    """Leave the maxima that P is below for the other side."""
    _leave(m, target, peak, thread)


@by_text
def follow_peak(m, peak, sums, acc, other, thread):
    """Raise the maxima to those that the other side's P is below, which are no lower."""
    theirs = other.part("theirs", _row(thread))
    with m.when(any_lane(theirs[0].differs(peak[0]) | theirs[HALF_ROWS].differs(peak[1]))):
        for r in range(2):
            factor = m.let("factor", _shrinking(peak[r], theirs[HALF_ROWS * r]))
            peak[r] = theirs[HALF_ROWS * r]
            sums[r] = sums[r] * factor
            for i in _each(m, acc, r):
                acc[i] = acc[i] * factor


@by_text
def share_sums(m, sums, red, side, thread):
    """Complete this side's sums and leave them for the other."""
    for r in range(2):
        sums[r] = quad_sum(sums[r])
    _leave(m, red.part("own", side * HEADS), sums, thread)


@by_text
def total_rows(m, sums, peak, factor, red, side, thread):
    """`factor`: 1 / sum of both sides, and the base-2 lse in place of the sums; an empty row gives 0 and -inf."""
    theirs = red.part("theirs", _row(thread) + (1 - side) * HEADS)
    for r in range(2):
        total = m.let("total", sums[r] + theirs[HALF_ROWS * r])
        factor[r] = _inverse(total)
        sums[r] = _lse(total, peak[r])


def _half(o_partial, place, acc, side, thread):
    """Where a thread leaves its fours of half of a split's O, THREADS of them apart."""
    return o_partial.row("room", place, LATENT_DIM, (thread + side * (acc.size // FOUR * THREADS)) * FOUR)


@by_text
def leave_rows(
    m,
    acc,
    factor,
    lses,
    o_partial: Writes,
    lse_partial: Writes,
    row,
    splits,
    split,
    head0,
    heads,
    side,
    thread,
):
    """Write half of O times `factor`, in the order of the threads, and its lses, for `merge_rows`."""
    place = m.let("place", (row * splits + split) * heads + head0)
    room, four = _half(o_partial, place, acc, side, thread), m.local("four", FOUR, "float32")
    for u in m.loop("u", acc.size // FOUR, unrolled=True):
        for e in range(FOUR):
            four[e] = acc[u * FOUR + e] * factor[e // 2]
        room.write(four, u * THREADS)
    if side == 0:
        _leave(m, lse_partial.part("lses_of_split", place), lses, thread)


@by_text
def merge_rows(m, acc, factor, lses, o_partial, lse_partial, row, splits, parts, head0, heads, side, thread):
    """Replace half of O, as a sum that `factor` normalises, and its lses by those of the first `parts` splits."""
    first = m.let("first", row * splits * heads + head0)
    found = lse_partial.part("found", first + _row(thread))
    top = [m.var(f"top_{r}", -INF, "float32") for r in range(2)]
    m.comment("Several at once, so that the lses are on their way together.")
    for p in m.loop("p", parts, at_once=4):
        for r in range(2):
            m.set(top[r], maximum(top[r], found[p * heads + HALF_ROWS * r]))
    total = [m.var(f"total_{r}", 0.0, "float32") for r in range(2)]
    for u in m.loop("u", acc.size // FOUR, unrolled=True):
        for e in range(FOUR):
            acc[u * FOUR + e] = 0.0
    four = m.local("four", FOUR, "float32")
    for p in m.loop("p", parts):
        share = []
        for r in range(2):
            lse = m.let(f"lse_{r}", found[p * heads + HALF_ROWS * r])
            share.append(m.let(f"share_{r}", select(lse > -INF, exp2(lse - top[r]), 0.0)))
            m.set(total[r], total[r] + share[r])
        room = _half(o_partial, first + p * heads, acc, side, thread)
        for u in m.loop("u", acc.size // FOUR, unrolled=True):
            room.read(four, u * THREADS)
            for e in range(FOUR):
                acc[u * FOUR + e] = acc[u * FOUR + e] + four[e] * share[e // 2]
    for r in range(2):
        factor[r] = _inverse(total[r])
        lses[r] = _lse(total[r], top[r])
