"""The state of selection in a CTA, and the rounds that narrow the undecided keys."""

from __future__ import annotations

from ....tile.frontend import Boolean, Int32, State, Uint32, inline, recorded
from ....tile.lang import Size
from ....tile.text import Expr, Recorder, Value
from ..leaves import lists as leaf_list
from ..leaves import rounds as leaf_rounds
from ..leaves import row as leaf_row
from ..leaves.row import BINS, COARSE
from .schedule import RANKED, Kernel


class Selection(State, Kernel):
    """The state of selection: what the threads of a CTA know of their row.

    The undecided keys are the keys at most `span` below `end`. Keys above `end` are selected. Of the
    undecided keys, `need` are still to be selected.
    """

    rank: Value
    """Rank of this CTA among the CTAs of the row. A lone CTA has rank 0 and reads no register for it."""
    owner: Expr
    """Number of this warp among the warps of the row's CTAs."""

    inverse: Uint32
    """(2**32 - 1) // page_size"""
    line: Int32
    """The row's line of the page table."""
    first_page: Int32
    """Number of the page-table entry that thread 0 has fetched, or -1."""
    entry: Int32
    """The page-table entry that this thread has fetched."""

    start: Expr
    last: Expr
    """The row's columns are [start, last)."""
    number: Int32
    """With options: the position of the row's first column."""
    origin: Int32
    """Column of the first word of the bitmaps."""
    batches: Expr
    """Batches of keys per warp."""
    words: Expr
    """Words of the bitmaps per warp."""
    base: Expr
    hi: Expr
    """This warp's columns are [base, hi)."""

    end: Uint32
    span: Uint32
    need: Int32
    inside: Int32
    """The number of undecided keys."""
    lower: Int32
    """Keys above the range in CTAs of lower rank."""
    within: Int32
    """Undecided keys in CTAs of lower rank."""
    rest: Int32
    """With options: keys that equal the last selected key, in this CTA and the CTAs of higher rank."""
    rounds: Int32
    through: Int32
    """In a round: keys in the bins of this thread and of lower lanes."""

    glance: Uint32
    """In a cluster: this lane's score of the first glance at 32 scores."""
    near_key: Uint32
    """In a cluster: the key from which the first digits count down, or 0."""
    grain: Uint32
    """In a cluster: the lowest bit of the first digit, if `near_key` is not 0."""

    unlisted: Boolean
    """With a sample: whether the row has to go through the histogram."""
    tied: Uint32
    """With a sample: the key that is not listed because it is equal too often, or 0."""


def glances(m: Recorder) -> bool:
    """Whether a glance at 32 scores comes first: in a cluster without a sample, where rounds cost much."""
    return bool(m.k.group > 1 and not m.k.sample)


def columns_in_registers(m: Recorder) -> int:
    """Columns that the registers of a row's CTAs hold."""
    return Size(m.k.group * m.k.threads * m.k.keep, "HELD")


def first_bin(s: Selection, ahead: int = 0) -> Expr:
    """First bin of this round, or with `ahead=1` of the next, which uses the other half of the histogram."""
    return ((s.rounds + ahead) & 1) * BINS


def counter(m: Recorder, which: int, dtype: str = "int32") -> Expr:
    return m.word(Kernel(m).counters, which, dtype)


@recorded
def close_round(m: Recorder, s: Selection, first: bool = False) -> None:
    """Close a round within a CTA: narrow the range to the bin with the `need`-th largest undecided key."""
    bins = inline(0 if first else first_bin(s))
    if not first:
        leaf_row.clear(m, s.hist, first_bin(s, ahead=1), BINS)
    m.meet()
    leaf_rounds.sum_bins(m, s.mine, s.through, s.hist, first=bins, sums=s.sums)
    m.meet()
    leaf_rounds.pick_bin(m, s.state, s.mine, s.through, s.sums, s.need, s.end, s.span, half=first)
    m.meet()
    leaf_rounds.read_state(m, s.end, s.span, s.need, s.inside, s.state)


@recorded
def close_round_of_group(m: Recorder, s: Selection, first: bool = False) -> None:
    """Close a round of a cluster.

    The CTAs send each other coarse counts, and read each other's fine counts of one coarse bin.
    """
    bins = inline(0 if first else first_bin(s))
    sums = inline(0 if first else (s.rounds & 1) * (m.k.group * COARSE))
    m.meet()
    if first:
        m.comment("A CTA may write a peer's shared memory only after the peer has started.")
        m.cluster_wait()
    leaf_rounds.send_sums(
        m, peers=m.cluster("coarse"), at=sums, hist=s.hist, first=bins, group=m.k.group, rank=m.block(1),
        cta_warps=m.c.cta_warps,
    )  # fmt: skip
    m.cluster_arrive()
    m.cluster_wait()
    if not first:
        m.comment("Now every peer has read the counts of the previous round.")
        leaf_row.clear(m, s.hist, first_bin(s, ahead=1), BINS)
    leaf_rounds.pick_bin_of_group(
        m, s.state, peers=m.cluster("hist"), bins=bins, coarse=s.coarse, at=sums, need=s.need,
        lower=s.lower, end=s.end, span=s.span, half=first, near=s.near_key if first and glances(m) else 0,
        grain=s.grain if first and glances(m) else 0, group=m.k.group, rank=m.block(1),
    )  # fmt: skip
    m.meet()
    leaf_rounds.read_state(m, s.end, s.span, s.need, s.inside, s.state)
    s.lower = m.word(s.state, leaf_row.StateWord.LOWER)
    s.within = m.word(s.state, leaf_row.StateWord.WITHIN)


@recorded
def bound(m: Recorder, s: Selection, total: Expr) -> None:
    """Narrow the range to the undecided keys of the list.

    If these are all equal, the range is then one key.
    """
    leaf_rounds.bound_listed(m, s.entries, total, s.counters, s.end, s.span)
    m.meet()
    leaf_rounds.read_bounded(m, s.end, s.span, s.counters)


@recorded
def sift(m: Recorder, s: Selection, total: Expr) -> None:
    """Mark the list's keys above the range.

    Set keys in the range apart for ranking, or mark them as equal.
    """
    leaf_list.sift(
        m, s.entries, total, target=m.c.listed, above=s.above, equal=s.equal, counters=s.counters, end=s.end,
        span=s.span, inside=s.inside, ranked=RANKED, rank=s.rank, cta_warps=m.c.cta_warps, words=s.words,
    )  # fmt: skip
