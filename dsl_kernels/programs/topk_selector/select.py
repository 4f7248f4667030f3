"""The body of selection: what the threads of a CTA do with a row."""

from __future__ import annotations

from types import SimpleNamespace

from ...arch import ArchSpec
from ...device.text import topk_selector as leaf_list
from ...device.text import topk_selector_rounds as leaf_rounds
from ...device.text import topk_selector_row as leaf_row
from ...device.text.topk_selector_row import BINS, COARSE, INFINITE, LOWEST, WORD
from ...tile.frontend import Boolean, Int32, State, Uint32, inline, named, recorded
from ...tile.lang import START, Body, Size
from ...tile.text import Expr, Global, Recorder, Value, ceildiv, maximum, minimum
from .schedule import RANKED, Kernel

# If a row has at most DENSE scores per selected one, marks are placed a word at a time; otherwise one by one.
DENSE = Size(8, "DENSE")
# Above MANY listed keys the range is narrowed first: they are probably ties, not different keys of one bin.
MANY = Size(384, "MANY")
# Extra keys of the sample to take beyond its share of k. With 28 and a sample of 1/16, the list falls short
# of k about as often as a four-sigma event.
SPARE = Size(28, "SPARE")


class Selection(State, Kernel):
    """What the threads of a CTA know of their row.

    The undecided keys are those at most `span` below `end`. Keys above `end` are selected; of the undecided
    ones `need` are still to be selected.
    """

    rank: Value
    """Rank of this CTA among those of the row. A lone CTA need not read a register for it: it is 0."""
    owner: Expr
    """Number of this warp among those of the row's CTAs."""

    inverse: Uint32
    """(2**32 - 1) // page_size"""
    line: Int32
    """The row's line of the page table."""
    first_page: Int32
    """The page table's entry that thread 0 has fetched, or -1."""
    entry: Int32
    """The page table's entry that this thread has fetched."""

    start: Expr
    last: Expr
    """The row has the columns [start, last)."""
    number: Int32
    """With options: the position of its first column."""
    origin: Int32
    """Column of the first word of the bitmaps."""
    batches: Expr
    """Batches of keys that a warp has."""
    words: Expr
    """Words of the bitmaps that a warp has."""
    base: Expr
    hi: Expr
    """This warp has the columns [base, hi)."""

    end: Uint32
    span: Uint32
    need: Int32
    inside: Int32
    """Undecided keys."""
    lower: Int32
    """Keys above the range in CTAs of lower rank."""
    within: Int32
    """Undecided keys in CTAs of lower rank."""
    rest: Int32
    """With options: keys that are equal to the last selected one, in this CTA and those of higher rank."""
    rounds: Int32
    through: Int32
    """Of a round: keys in the bins of this thread and those of lower lanes."""

    glance: Uint32
    """In a cluster: one of the 32 scores that are looked at first."""
    near_key: Uint32
    """In a cluster: the key from which the first digits count down, or 0."""
    grain: Uint32
    """In a cluster: the lowest bit of the first digit, if `near_key` is not 0."""

    unlisted: Boolean
    """With a sample: whether the row has to go through the histogram."""
    tied: Uint32
    """With a sample: the key that is not listed because it is equal too often, or 0."""


@recorded
def _start(m: Recorder) -> Selection:
    """Where this warp is among those of the row.

    A row that the group's registers can hold is laid out by its stride, so that its loads wait for nothing.
    """
    s = Selection(m)
    s.rank = m.block(1) if m.k.group > 1 else 0
    s.owner = s.rank * m.c.cta_warps + m.warp
    return s


def _held(m: Recorder) -> int:
    """Columns that the registers of a row's CTAs hold."""
    return Size(m.k.group * m.k.threads * m.k.keep, "HELD")


def _bins(s: Selection, ahead: int = 0) -> Expr:
    """First bin of this round; of the next one with `ahead=1`, which has the other half of the histogram."""
    return ((s.rounds + ahead) & 1) * BINS


def _counter(m: Recorder, which: int, dtype: str = "int32") -> Expr:
    return m.word(Kernel(m).counters, which, dtype)


@recorded
def _select(m: Recorder, s: Selection) -> None:
    together = m.k.group > 1
    leaf_row.clear(m, s.hist, 0, 2 * BINS)
    leaf_row.clear(m, s.counters, 0, 8)
    if together:
        m.cluster_arrive(relaxed=True)
    s.inverse = 0
    s.line = 0
    leaf_row.page_row(m, s.inverse, s.line, m.block(0), s.next_n, s.page_size)
    m.depend(launch=False)
    column = inline(s.owner * m.c.batch)
    if together:
        s.glance = named("few", 0)
        leaf_row.load_few(m, s.glance, s.logits, m.block(0), s.stride)
        if s.stride <= _held(m):
            leaf_row.load_words(m, s.keys, s.logits, m.block(0), column, s.stride)
    else:
        # Bound the loads with `fits` rather than branch around them, so that they need not wait for the
        # branch. In a cluster this makes TileLang spill.
        fits: Int32 = 0
        if s.stride <= _held(m):
            fits = s.stride
        leaf_row.load_words(m, s.keys, s.logits, m.block(0), column, fits)
    s.start = maximum(m.word(s.row_starts, m.block(0)), 0)
    s.last = minimum(m.word(s.row_ends, m.block(0)), s.stride)
    if m.k.options:
        _number(m, s)
    m.launch_dependents()
    m.meet()
    if s.last - s.start <= s.k:
        _take_all(m, s)
        if together:
            m.cluster_wait()
    else:
        _select_some(m, s)


@recorded
def _number(m: Recorder, s: Selection) -> None:
    """With options: the row's line of the page table where a map says it, and the position of its first column."""
    if s.has_sequences != 0:
        s.line = m.word(s.row_to_sequence, m.block(0))
    s.number = s.start * s.absolute
    if s.has_offsets != 0:
        s.number += m.word(s.offsets, m.block(0))


@recorded
def _take_all(m: Recorder, s: Selection) -> None:
    """A row of at most `k` scores."""

    def take(out: Global, page_size: int | Value) -> None:
        leaf_row.take_all(
            m, out, row=m.block(0), k=s.k, length=s.last - s.start,
            first=s.number if m.k.options else s.start * s.absolute, rank=s.rank, group=m.k.group,
            block_table=s.block_table, line=s.line, page_size=page_size, inverse=s.inverse,
        )  # fmt: skip

    take(s.indices, s.page_size)
    if m.k.options:
        if s.has_positions != 0:
            take(s.positions, 0)
        if s.has_values != 0:
            leaf_row.copy_all(
                m, s.values, s.logits, row=m.block(0), k=s.k, start=s.start, last=s.last, rank=s.rank,
                group=m.k.group,
            )  # fmt: skip


@recorded
def _select_some(m: Recorder, s: Selection) -> None:
    """A row of more than k scores."""
    if m.k.options:
        leaf_row.keep_row(m, s.state, s.line, s.number - s.start)
    _share(m, s)
    s.end = 0
    s.span = 0
    s.need = s.k
    s.inside = 0
    s.lower = 0
    s.within = 0
    s.rounds = 0
    s.through = 0
    if m.k.group > 1:
        s.near_key = 0
        s.grain = 0
    if m.k.sample:
        s.unlisted = True
        s.tied = 0
        if s.stride > _held(m):
            _list_row(m, s)
    if not m.k.sample or s.unlisted:
        _count_row(m, s)
    _collect(m, s)


@recorded
def _share(m: Recorder, s: Selection) -> None:
    """Which columns of the row each warp has."""
    s.origin = 0
    run: Int32 = m.k.keep
    if s.stride > _held(m):
        s.origin = s.start >> 5 << 5
        run = ceildiv(s.last - s.origin, WORD * m.c.cta_warps * m.k.group)
    s.batches = ceildiv(run, m.k.keep)
    s.words = s.batches * m.k.keep
    if m.k.sample:
        m.comment("Runs of whole batches, so that a word of the bitmaps is one of the row.")
        run = s.words
    s.base = s.origin + s.owner * run * WORD
    s.hi = minimum(s.last, s.base + run * WORD)
    if not m.k.sample:
        m.comment(
            "The page-table entries that this CTA may need, one a thread, on their way while keys are counted."
        )
        s.first_page = 0
        s.entry = 0
        columns = inline(run * (WORD * m.c.cta_warps))
        leaf_row.fetch_pages(
            m, s.first_page, s.entry, first=s.origin + s.rank * columns, columns=columns,
            start=s.start, last=s.last, block_table=s.block_table, line=s.line, page_size=s.page_size,
            inverse=s.inverse,
        )  # fmt: skip


@recorded
def _count_row(m: Recorder, s: Selection) -> None:
    """Count digits of the row until the undecided keys fit the list; the last batch stays in registers."""
    c, together = m.c, m.k.group > 1
    close_round = _close_round_of_group if together else _close_round
    for step in range(s.batches):
        column = s.base + step * c.batch
        if step > 0 or s.stride > _held(m):
            leaf_row.load_words(m, s.keys, s.logits, m.block(0), column, s.hi)
        if together and step == 0:
            # Another round costs several barriers: a few scores decide how the first digits are counted.
            leaf_row.guess_digits(m, s.near_key, s.grain, s.glance)
        if not together or s.near_key == 0:
            leaf_row.make_keys(m, s.keys, s.digits, column, s.start, s.hi)
            leaf_row.count_first(m, s.hist, s.digits, column, s.start, s.hi)
        else:
            leaf_row.make_keys(m, s.keys, None, column, s.start, s.hi)
            leaf_row.count_near(m, s.hist, s.keys, s.near_key, s.grain, column, s.start, s.hi)
        if c.stashed and step < minimum(c.stashed, s.batches - 1):
            leaf_row.stash_keys(m, bits=s.keys, stash=s.stash, number=step, back=False)
    close_round(m, s, first=True)
    s.rounds += 1
    if not m.k.sample:
        m.comment("By now the entries have come.")
        if s.page_size > 0:
            leaf_row.keep_entry(m, s.pages, s.entry)

    m.comment("More digits over the row while the undecided keys are too many to list.")
    while s.inside > c.listed and s.span != 0:
        for step in range(s.batches):
            if s.batches > 1:
                _load_again(m, s, step)
            leaf_row.count_keys(m, s.hist, _bins(s), s.keys, s.end, s.span)
        close_round(m, s)
        s.rounds += 1


@recorded
def _load_again(m: Recorder, s: Selection, batch: Value) -> None:
    """The keys of a batch once more. The first batches may be in shared memory; the last one never is."""
    column = s.base + batch * m.c.batch
    if m.c.stashed and batch < minimum(m.c.stashed, s.batches - 1):
        leaf_row.stash_keys(m, bits=s.keys, stash=s.stash, number=batch, back=True)
    else:
        leaf_row.load_words(m, s.keys, s.logits, m.block(0), column, s.hi)
        leaf_row.make_keys(m, s.keys, None, column, s.start, s.hi)


@recorded
def _close_round(m: Recorder, s: Selection, first: bool = False) -> None:
    """Close a round within a CTA: keep the bin that holds the `need`-th largest undecided key."""
    bins = inline(0 if first else _bins(s))
    if not first:
        leaf_row.clear(m, s.hist, _bins(s, ahead=1), BINS)
    m.meet()
    leaf_rounds.sum_bins(m, s.mine, s.through, s.hist, first=bins, sums=s.sums)
    m.meet()
    leaf_rounds.pick_bin(m, s.state, s.mine, s.through, s.sums, s.need, s.end, s.span, half=first)
    m.meet()
    leaf_rounds.read_state(m, s.end, s.span, s.need, s.inside, s.state)


@recorded
def _close_round_of_group(m: Recorder, s: Selection, first: bool = False) -> None:
    """Close a round of a cluster: its CTAs send each other coarse counts, and read the fine counts of one coarse bin."""
    bins = inline(0 if first else _bins(s))
    sums = inline(0 if first else (s.rounds & 1) * (m.k.group * COARSE))
    m.meet()
    if first:
        m.comment("A peer's shared memory may be written only once the peer runs.")
        m.cluster_wait()
    leaf_rounds.send_sums(
        m, peers=m.cluster("coarse"), at=sums, hist=s.hist, first=bins, group=m.k.group, rank=m.block(1),
        cta_warps=m.c.cta_warps,
    )  # fmt: skip
    m.cluster_arrive()
    m.cluster_wait()
    if not first:
        m.comment("Now every peer has read the counts of the round before.")
        leaf_row.clear(m, s.hist, _bins(s, ahead=1), BINS)
    leaf_rounds.pick_bin_of_group(
        m, s.state, peers=m.cluster("hist"), bins=bins, coarse=s.coarse, at=sums, need=s.need,
        lower=s.lower, end=s.end, span=s.span, half=first, near=s.near_key if first else 0,
        grain=s.grain if first else 0, group=m.k.group, rank=m.block(1),
    )  # fmt: skip
    m.meet()
    leaf_rounds.read_state(m, s.end, s.span, s.need, s.inside, s.state)
    s.lower = m.word(s.state, leaf_row.StateWord.LOWER)
    s.within = m.word(s.state, leaf_row.StateWord.WITHIN)


@recorded
def _list_row(m: Recorder, s: Selection) -> None:
    """List the keys that reach a threshold from a sample; the list will do if it holds k keys and all of these."""
    c, sample, digits = m.c, s.few, s.few_digits
    sampled = m.k.threads * c.few
    leaf_row.load_sample(
        m, bits=sample, logits=s.logits, row=m.block(0), start=s.start, last=s.last, every=m.k.sample,
        cta_warps=m.c.cta_warps,
    )  # fmt: skip
    leaf_row.clear(m, s.above, 0, c.reach // WORD)
    own = inline(m.warp * (c.few * WORD))
    leaf_row.make_keys(m, sample, digits, own, 0, sampled)
    leaf_row.count_first(m, s.hist, digits, own, 0, sampled)
    share = inline(s.k // m.k.sample)
    s.need = share + share // 4 + SPARE
    _close_round(m, s, first=True)
    s.rounds += 1
    while s.inside > c.between and s.span != 0:
        leaf_row.count_keys(m, s.hist, _bins(s), sample, s.end, s.span)
        _close_round(m, s)
        s.rounds += 1
    m.comment("More equal keys than are listed: what lies above them is, and the first of them are taken.")
    if s.inside > c.between and s.span == 0 and s.end < INFINITE:
        s.tied = s.end
        s.end += 1
    bottom: Uint32 = minimum(maximum(s.end - s.span, LOWEST), INFINITE)
    leaf_list.list_row(
        m, s.keys, s.ahead, s.logits, row=m.block(0), stride=s.stride,
        entries=s.entries, counters=s.counters, bottom=bottom, origin=s.origin, start=s.start,
        last=s.last, batches=s.batches, room=c.listed, cta_warps=m.c.cta_warps,
    )  # fmt: skip
    s.need = s.k
    if s.tied != 0:
        leaf_row.clear(m, s.equal, 0, c.reach // WORD)
    m.meet()
    s.inside = _counter(m, leaf_row.Counter.LISTED)
    s.unlisted = s.inside < s.need or s.inside > c.listed
    if s.tied != 0:
        _mark_ties(m, s)
    if s.unlisted:
        m.meet()
        s.rounds = 0
        leaf_row.clear(m, s.hist, 0, 2 * BINS)
        leaf_row.clear(m, s.counters, 0, 8)
        m.meet()
    else:
        leaf_list.key_entries(m, s.entries, total=s.inside, counters=s.counters)
        m.meet()
        if s.tied == 0:
            m.comment("From the threshold on: to look for the smallest key as well takes 0.9 us.")
            s.end = _counter(m, leaf_row.Counter.LARGEST, "uint32")
            s.span = s.end - bottom
        else:
            s.end = s.tied
            s.span = 0
            s.need -= s.inside
            _sift(m, s, s.inside)
            s.inside = 0


@recorded
def _mark_ties(m: Recorder, s: Selection) -> None:
    """Mark keys that equal `tied`, from the row's first on, until the marked and the listed ones are k.

    `tied` becomes 0 if they are fewer than k, or if the list holds k keys by itself.
    """
    found: Int32 = 0
    turn: Int32 = 0
    while turn < s.batches and s.inside + found < s.need:
        word = (turn * m.c.cta_warps + m.warp) * m.k.keep
        column = s.origin + word * WORD
        leaf_row.load_words(m, s.keys, s.logits, m.block(0), column, s.stride)
        leaf_row.make_keys(m, s.keys, None, column, s.start, s.last)
        leaf_list.mark_equal(m, s.keys, s.equal, word, s.counters, s.tied)
        m.meet()
        found = _counter(m, leaf_row.Counter.KEPT)
        m.meet()
        turn += 1
    s.unlisted = s.inside + found < s.need or s.inside > m.c.listed
    if s.unlisted or s.inside >= s.need:
        s.tied = 0


@recorded
def _collect(m: Recorder, s: Selection) -> None:
    """Mark the keys above the range, list those in it, and write what is selected."""
    c = m.c
    m.comment("One pass marks what is above the range and lists what is in it; the last batch is still held.")
    listing = s.inside > 0 and s.inside <= c.listed
    if not m.k.sample or s.unlisted:
        for step in range(s.batches):
            batch = s.batches - 1 - step
            if step > 0:
                _load_again(m, s, batch)
            leaf_list.collect(
                m, bits=s.keys, above=s.above, equal=s.equal, word=(m.warp * s.batches + batch) * m.k.keep,
                counters=s.counters, entries=s.entries, first=s.within, end=s.end, span=s.span,
                listing=listing, owner=s.owner, offset=batch * c.batch,
            )  # fmt: skip
    m.meet()
    if m.k.group > 1:
        m.comment("The last use of a peer's memory: nothing after this barrier reads or writes one.")
        leaf_list.send_entries(
            m, peers=m.cluster("entries"), entries=s.entries, first=s.within, counters=s.counters,
            group=m.k.group, rank=m.block(1), cta_warps=m.c.cta_warps,
        )  # fmt: skip
        m.cluster_arrive()
        m.cluster_wait()
    # The warp's first word of the bitmaps; how many columns of `equal` to select; the first output slot.
    first = m.warp * s.words
    ties: Int32 = _ties_left(m, s, s.within)
    skip: Int32 = s.lower + _ties_of_lower(m, s, s.within)
    if m.k.options:
        s.rest = s.inside - s.within
    if listing:
        _rank_list(m, s)
        m.comment("Lower ranks select of the list as well, and take equal ones.")
        lower_equal = _counter(m, leaf_row.Counter.LOWER_EQUAL)
        ties = 0
        if s.inside > RANKED:
            ties = _ties_left(m, s, lower_equal)
            if m.k.options:
                s.rest = s.inside - lower_equal
        skip = s.lower + _counter(m, leaf_row.Counter.LOWER_ABOVE) + _ties_of_lower(m, s, lower_equal)
    before: Int32 = 0
    if ties > 0:
        leaf_list.count_marks(m, before, bitmap=s.equal, sums=s.sums, first=first, words=s.words)
        m.meet()
        _take_ties(m, s, before, ties, first)
        m.meet()
    leaf_list.count_marks(m, before, bitmap=s.above, sums=s.sums, first=first, words=s.words)
    m.meet()
    _write(m, s, before, skip, first)


def _ties_left(m: Recorder, s: Selection, within: Value) -> Expr:
    """How many equal keys are to be selected from this CTA on, in the order that ties have; lower ranks have `within` of them."""
    return maximum(s.need - (within * (1 - s.ties_higher) if m.k.options else within), 0)


@recorded
def _ties_of_lower(m: Recorder, s: Selection, within: Value) -> Expr:
    """How many of their `within` equal keys CTAs of lower rank select."""
    if not m.k.options:
        return minimum(within, s.need)
    taken: Int32 = minimum(within, s.need)
    if s.ties_higher != 0:
        taken = maximum(within - (s.inside - s.need), 0)
    return taken


@recorded
def _take_ties(m: Recorder, s: Selection, before: Expr, ties: Expr, first: Value) -> None:
    """Select of the columns marked as equal."""
    where = {"above": s.above, "equal": s.equal, "sums": s.sums, "first": first, "words": s.words}
    if m.k.options and s.ties_higher != 0:
        leaf_list.take_last_ties(m, before, take=ties, rest=s.rest, **where)
    else:
        leaf_list.take_ties(m, before, take=ties, **where)


@recorded
def _rank_list(m: Recorder, s: Selection) -> None:
    """Mark the selected keys of the list. If more than RANKED equal keys are left, mark these as equal."""
    ranked: Int32 = 0
    if s.inside > RANKED:
        total: Int32 = s.inside
        if not m.k.sample and s.inside > MANY:
            _bound(m, s, total)
        while s.inside > RANKED and s.span != 0:
            leaf_row.count_listed(
                m, s.hist, first=_bins(s), entries=s.entries, total=total, end=s.end, span=s.span,
            )  # fmt: skip
            _close_round(m, s)
            if s.inside > RANKED:
                _bound(m, s, total)
            s.rounds += 1
        if s.inside > RANKED:
            leaf_row.clear(m, s.equal, 0, m.c.reach // WORD)
            m.meet()
        _sift(m, s, total)
        ranked = m.c.listed
        m.meet()
    if s.inside <= RANKED:
        leaf_list.rank_entries(
            m, s.entries, first=ranked, count=s.inside, need=s.need, above=s.above,
            counters=s.counters, rank=s.rank, cta_warps=m.c.cta_warps, words=s.words,
            ties_higher=s.ties_higher if m.k.options else None,
        )  # fmt: skip
    m.meet()


@recorded
def _bound(m: Recorder, s: Selection, total: Expr) -> None:
    """Narrow the range to the undecided keys of the list: ties are then known to be ties."""
    leaf_rounds.bound_listed(m, s.entries, total, s.counters, s.end, s.span)
    m.meet()
    leaf_rounds.read_bounded(m, s.end, s.span, s.counters)


@recorded
def _sift(m: Recorder, s: Selection, total: Expr) -> None:
    """Mark the list's keys above the range; keep those in it apart to be ranked, or mark them as equal."""
    leaf_list.sift(
        m, s.entries, total, target=m.c.listed, above=s.above, equal=s.equal, counters=s.counters, end=s.end,
        span=s.span, inside=s.inside, ranked=RANKED, rank=s.rank, cta_warps=m.c.cta_warps, words=s.words,
    )  # fmt: skip


@recorded
def _write(m: Recorder, s: Selection, before: Expr, skip: Expr, first: Value) -> None:
    """Place the positions of the marked columns in ascending order over all warps, and write their ids."""
    # The histogram is not needed any more.
    placed = s.hist
    shift = inline(m.word(s.state, leaf_row.StateWord.SHIFT) if m.k.options else s.start * (s.absolute - 1))
    position = s.base + shift
    # Only a long row is sampled.
    dense = 0 if m.k.sample else s.last - s.start <= s.k * DENSE and s.words <= WORD
    leaf_list.place_marks(m, placed, before, s.sums, s.above, first, s.words, position, dense, m.k.keep)
    m.meet()
    first_page, pages = (-1, None) if m.k.sample else (s.first_page, s.pages)
    line = inline(m.word(s.state, leaf_row.StateWord.LINE) if m.k.options else s.line)
    leaf_list.write_ids(
        m, s.indices, row=m.block(0), k=s.k, skip=skip, sums=s.sums, placed=placed,
        block_table=s.block_table, line=line, page_size=s.page_size, inverse=s.inverse, pages=pages, first_page=first_page, group=m.k.group, cta_warps=m.c.cta_warps,
    )  # fmt: skip
    if m.k.options:
        if s.has_positions != 0:
            leaf_list.write_positions(
                m, s.positions, row=m.block(0), k=s.k, skip=skip, sums=s.sums, placed=placed, group=m.k.group,
                cta_warps=m.c.cta_warps,
            )  # fmt: skip
        if s.has_values != 0:
            leaf_list.write_values(
                m, s.values, s.logits, row=m.block(0), k=s.k, skip=skip, sums=s.sums, placed=placed,
                first=-shift, group=m.k.group, cta_warps=m.c.cta_warps,
            )  # fmt: skip


def bodies(knobs: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: _start, "select": _select}
