"""A sample in place of the histogram: its threshold, and a pass that lists the keys that reach it."""

from __future__ import annotations

from ....tile.frontend import Int32, Uint32, inline, recorded
from ....tile.lang import Size
from ....tile.text import Expr, Recorder, maximum, minimum
from ..leaves import lists as leaf_list
from ..leaves import row as leaf_row
from ..leaves.row import BINS, INFINITE, LOWEST, WORD
from .rounds import Selection, close_round, counter, first_bin, sift

# The threshold takes so many keys of the sample beyond its share of k. With 28 keys and a sample of 1/16, the
# list falls short of k about as often as a four-sigma event occurs.
SPARE = Size(28, "SPARE")


@recorded
def list_row(m: Recorder, s: Selection) -> None:
    """List the keys that reach the threshold of a sample.

    The list is enough if it has at least k keys and did not overflow.
    """
    c, together = m.c, m.k.group > 1
    bottom: Uint32 = _threshold(m, s)
    first, last = _columns(m, s)
    leaf_list.list_row(
        m, s.keys, s.ahead, s.logits, row=m.block(0), stride=s.stride,
        entries=s.entries, counters=s.counters, bottom=bottom, origin=first, start=s.start,
        last=last, batches=s.batches, room=c.listed, owner=s.rank * c.cta_warps, cta_warps=c.cta_warps,
    )  # fmt: skip
    s.need = s.k
    if s.tied != 0:
        leaf_row.clear(m, s.equal, 0, c.reach // WORD)
    if together:
        _share_lists(m, s)
    else:
        m.meet()
        s.inside = counter(m, leaf_row.Counter.LISTED)
    s.unlisted = s.inside < s.need or s.inside > c.listed
    if s.tied != 0:
        _mark_ties(m, s, first, last)
    if s.unlisted:
        m.meet()
        s.rounds = 0
        leaf_row.clear(m, s.hist, 0, 2 * BINS)
        leaf_row.clear(m, s.counters, 0, 8)
        m.meet()
        if together:
            m.cluster_arrive()
    else:
        leaf_list.key_entries(m, s.entries, total=s.inside, counters=s.counters)
        m.meet()
        if s.tied == 0:
            m.comment("The range begins at the threshold: a search for the smallest key takes 0.9 us more.")
            s.end = counter(m, leaf_row.Counter.LARGEST, "uint32")
            s.span = s.end - bottom
        else:
            s.end = s.tied
            s.span = 0
            s.need -= s.inside
            sift(m, s, s.inside)
            s.inside = 0
            if together:
                m.meet()
                s.lower = counter(m, leaf_row.Counter.LOWER_ABOVE)


@recorded
def _columns(m: Recorder, s: Selection) -> tuple[Expr, Expr]:
    """The columns of the row that this CTA lists: the first column, and the one after the last."""
    if m.k.group == 1:
        return s.origin, s.last
    columns = inline(s.words * (WORD * m.c.cta_warps))
    first: Int32 = s.origin + s.rank * columns
    last: Int32 = minimum(s.last, first + columns)
    return first, last


@recorded
def _threshold(m: Recorder, s: Selection) -> Expr:
    """The smallest key to list, from a sample of the row. All CTAs of a row take the same sample."""
    c, sample, digits = m.c, s.few, s.few_digits
    sampled = m.k.threads * c.few
    leaf_row.load_sample(
        m, bits=sample, logits=s.logits, row=m.block(0), start=s.start, last=s.last, every=m.k.sample,
        cta_warps=c.cta_warps,
    )  # fmt: skip
    leaf_row.clear(m, s.above, 0, c.reach // WORD)
    own = inline(m.warp * (c.few * WORD))
    leaf_row.make_keys(m, sample, digits, own, 0, sampled)
    leaf_row.count_first(m, s.hist, digits, own, 0, sampled)
    share = inline(s.k // m.k.sample)
    s.need = share + share // 4 + SPARE
    close_round(m, s, first=True)
    s.rounds += 1
    while s.inside > c.between and s.span != 0:
        leaf_row.count_keys(m, s.hist, first_bin(s), sample, s.end, s.span)
        close_round(m, s)
        s.rounds += 1
    m.comment("Too many equal keys for the list: it gets the keys above, and the first equal keys are taken.")
    if s.inside > c.between and s.span == 0 and s.end < INFINITE:
        s.tied = s.end
        s.end += 1
    return minimum(maximum(s.end - s.span, LOWEST), INFINITE)


@recorded
def _share_lists(m: Recorder, s: Selection) -> None:
    """Give every CTA of the row the lists of all CTAs, if these fit.

    `inside` becomes the length of all lists.
    """
    m.comment("All CTAs have started, and then their lists are complete.")
    m.cluster_wait()
    m.cluster_arrive()
    m.cluster_wait()
    leaf_list.share_lists(
        m, s.inside, s.entries, peers=m.cluster("entries"), counts=m.cluster("counters"), room=m.c.listed,
        group=m.k.group, rank=s.rank, cta_warps=m.c.cta_warps,
    )  # fmt: skip
    m.cluster_arrive()
    m.cluster_wait()


@recorded
def _mark_ties(m: Recorder, s: Selection, first: Expr, last: Expr) -> None:
    """Mark keys that equal `tied`, from this CTA's `first` column on, until marked and listed keys are k.

    `tied` becomes 0 if the row's marked and listed keys are fewer than k, or if the list alone holds k keys.
    """
    found: Int32 = 0
    turn: Int32 = 0
    while turn < s.batches and s.inside + found < s.need:
        word = (turn * m.c.cta_warps + m.warp) * m.k.keep
        column = first + word * WORD
        leaf_row.load_words(m, s.keys, s.logits, m.block(0), column, s.stride)
        leaf_row.make_keys(m, s.keys, None, column, s.start, last)
        leaf_list.mark_equal(m, s.keys, s.equal, word, s.counters, s.tied)
        m.meet()
        found = counter(m, leaf_row.Counter.KEPT)
        m.meet()
        turn += 1
    if m.k.group > 1:
        m.cluster_arrive()
        m.cluster_wait()
        leaf_list.count_ties(m, found, s.within, counts=m.cluster("counters"), group=m.k.group, rank=s.rank)
        m.cluster_arrive()
        m.cluster_wait()
    s.unlisted = s.inside + found < s.need or s.inside > m.c.listed
    if s.unlisted or s.inside >= s.need:
        s.tied = 0
