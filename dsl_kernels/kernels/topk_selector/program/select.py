"""The body of selection: the steps of a CTA on a row."""

from __future__ import annotations

from types import SimpleNamespace

from ....arch import ArchSpec
from ....tile.frontend import Int32, inline, named, recorded
from ....tile.lang import START, Body, Size
from ....tile.text import Expr, Global, Recorder, Value, ceildiv, maximum, minimum
from ..leaves import lists as leaf_list
from ..leaves import row as leaf_row
from ..leaves.row import BINS, WORD
from .rounds import (
    Selection,
    bound,
    close_round,
    close_round_of_group,
    columns_in_registers,
    counter,
    first_bin,
    glances,
    sift,
)
from .sample import list_row
from .schedule import RANKED

# With at most DENSE scores per selected score, warps place marks a word at a time; otherwise one by one.
DENSE = Size(8, "DENSE")
# With more than MANY listed keys the range is narrowed first: the keys are probably ties, not different keys
# of one bin.
MANY = Size(384, "MANY")


@recorded
def _start(m: Recorder) -> Selection:
    """Find the number of this warp among the warps of the row.

    The stride alone decides the layout of a row that the group's registers can hold, so its loads wait for
    nothing.
    """
    s = Selection(m)
    s.rank = m.block(1) if m.k.group > 1 else 0
    s.owner = s.rank * m.c.cta_warps + m.warp
    return s


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
    if glances(m):
        s.glance = named("few", 0)
        leaf_row.load_few(m, s.glance, s.logits, m.block(0), s.stride)
    if together:
        if s.stride <= columns_in_registers(m):
            leaf_row.load_words(m, s.keys, s.logits, m.block(0), column, s.stride)
    else:
        # `fits` bounds the loads in place of a branch around them, so that the loads do not wait for the
        # branch. In a cluster this makes TileLang spill.
        fits: Int32 = 0
        if s.stride <= columns_in_registers(m):
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
    """With options: set the row's page-table line from the map, and the position of its first column."""
    if s.has_sequences != 0:
        s.line = m.word(s.row_to_sequence, m.block(0))
    s.number = s.start * s.absolute
    if s.has_offsets != 0:
        s.number += m.word(s.offsets, m.block(0))


@recorded
def _take_all(m: Recorder, s: Selection) -> None:
    """Write a row of at most `k` scores."""

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
    """Select from a row of more than `k` scores."""
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
    if glances(m):
        s.near_key = 0
        s.grain = 0
    if m.k.sample:
        s.unlisted = True
        s.tied = 0
        if s.stride > columns_in_registers(m):
            list_row(m, s)
    if not m.k.sample or s.unlisted:
        _count_row(m, s)
    _collect(m, s)


@recorded
def _share(m: Recorder, s: Selection) -> None:
    """Set the columns of the row that each warp has."""
    s.origin = 0
    run: Int32 = m.k.keep
    if s.stride > columns_in_registers(m):
        s.origin = s.start >> 5 << 5
        run = ceildiv(s.last - s.origin, WORD * m.c.cta_warps * m.k.group)
    s.batches = ceildiv(run, m.k.keep)
    s.words = s.batches * m.k.keep
    if m.k.sample:
        m.comment("A run has whole batches, so that a word of the bitmaps is a word of the row.")
        run = s.words
    s.base = s.origin + s.owner * run * WORD
    s.hi = minimum(s.last, s.base + run * WORD)
    if not m.k.sample:
        m.comment("The page-table entries for this CTA, one per thread, are in flight while it counts keys.")
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
    """Count digits of the row until the undecided keys fit into the list.

    The last batch stays in registers.
    """
    c, together = m.c, m.k.group > 1
    close = close_round_of_group if together else close_round
    for step in range(s.batches):
        column = s.base + step * c.batch
        if step > 0 or s.stride > columns_in_registers(m):
            leaf_row.load_words(m, s.keys, s.logits, m.block(0), column, s.hi)
        if glances(m) and step == 0:
            # A round costs several barriers, so a few scores decide how the first digits are counted.
            leaf_row.guess_digits(m, s.near_key, s.grain, s.glance)
        if not glances(m) or s.near_key == 0:
            leaf_row.make_keys(m, s.keys, s.digits, column, s.start, s.hi)
            leaf_row.count_first(m, s.hist, s.digits, column, s.start, s.hi)
        else:
            leaf_row.make_keys(m, s.keys, None, column, s.start, s.hi)
            leaf_row.count_near(m, s.hist, s.keys, s.near_key, s.grain, column, s.start, s.hi)
        if c.stashed and step < minimum(c.stashed, s.batches - 1):
            leaf_row.stash_keys(m, bits=s.keys, stash=s.stash, number=step, back=False)
    close(m, s, first=True)
    s.rounds += 1
    if not m.k.sample:
        m.comment("By now the page-table entries have arrived.")
        if s.page_size > 0:
            leaf_row.keep_entry(m, s.pages, s.entry)

    m.comment("Count more digits over the row while the undecided keys are too many to list.")
    while s.inside > c.listed and s.span != 0:
        for step in range(s.batches):
            if s.batches > 1:
                _load_again(m, s, step)
            leaf_row.count_keys(m, s.hist, first_bin(s), s.keys, s.end, s.span)
        close(m, s)
        s.rounds += 1


@recorded
def _load_again(m: Recorder, s: Selection, batch: Value) -> None:
    """Get the keys of a batch again. The first batches may be in shared memory; the last one never is."""
    column = s.base + batch * m.c.batch
    if m.c.stashed and batch < minimum(m.c.stashed, s.batches - 1):
        leaf_row.stash_keys(m, bits=s.keys, stash=s.stash, number=batch, back=True)
    else:
        leaf_row.load_words(m, s.keys, s.logits, m.block(0), column, s.hi)
        leaf_row.make_keys(m, s.keys, None, column, s.start, s.hi)


@recorded
def _collect(m: Recorder, s: Selection) -> None:
    """Mark the keys above the range, list the keys in it, and write the selected ids."""
    c = m.c
    m.comment("One pass marks keys above the range and lists keys in it; registers hold the last batch.")
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
    if m.k.group > 1:  # noqa: SIM102 (the inner condition may be one of the kernel)
        if not m.k.sample or s.unlisted:
            m.comment("The last use of a peer's memory: no access to it follows this barrier.")
            leaf_list.send_entries(
                m, peers=m.cluster("entries"), entries=s.entries, first=s.within, counters=s.counters,
                group=m.k.group, rank=m.block(1), cta_warps=m.c.cta_warps,
            )  # fmt: skip
            m.cluster_arrive()
            m.cluster_wait()
    # `first`: the warp's first word of the bitmaps. `ties`: how many columns of `equal` to select. `skip`:
    # the first output slot.
    first = m.warp * s.words
    ties: Int32 = _ties_left(m, s, s.within)
    skip: Int32 = s.lower + _ties_of_lower(m, s, s.within)
    if m.k.options:
        s.rest = s.inside - s.within
    if listing:
        _rank_list(m, s)
        m.comment("Lower ranks also select keys of the list, and take equal keys.")
        lower_equal = counter(m, leaf_row.Counter.LOWER_EQUAL)
        ties = 0
        if s.inside > RANKED:
            ties = _ties_left(m, s, lower_equal)
            if m.k.options:
                s.rest = s.inside - lower_equal
        skip = s.lower + counter(m, leaf_row.Counter.LOWER_ABOVE) + _ties_of_lower(m, s, lower_equal)
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
    """How many equal keys this CTA and later ones select, in the order of ties.

    Lower ranks have `within` equal keys.
    """
    return maximum(s.need - (within * (1 - s.ties_higher) if m.k.options else within), 0)


@recorded
def _ties_of_lower(m: Recorder, s: Selection, within: Value) -> Expr:
    """How many of their `within` equal keys the CTAs of lower rank select."""
    if not m.k.options:
        return minimum(within, s.need)
    taken: Int32 = minimum(within, s.need)
    if s.ties_higher != 0:
        taken = maximum(within - (s.inside - s.need), 0)
    return taken


@recorded
def _take_ties(m: Recorder, s: Selection, before: Expr, ties: Expr, first: Value) -> None:
    """Select columns among those marked as equal."""
    where = {"above": s.above, "equal": s.equal, "sums": s.sums, "first": first, "words": s.words}
    if m.k.options and s.ties_higher != 0:
        leaf_list.take_last_ties(m, before, take=ties, rest=s.rest, **where)
    else:
        leaf_list.take_ties(m, before, take=ties, **where)


@recorded
def _rank_list(m: Recorder, s: Selection) -> None:
    """Mark the selected keys of the list. If more than RANKED equal keys are left, mark them as equal."""
    ranked: Int32 = 0
    if s.inside > RANKED:
        total: Int32 = s.inside
        if not m.k.sample and s.inside > MANY:
            bound(m, s, total)
        while s.inside > RANKED and s.span != 0:
            leaf_row.count_listed(
                m, s.hist, first=first_bin(s), entries=s.entries, total=total, end=s.end, span=s.span,
            )  # fmt: skip
            close_round(m, s)
            if s.inside > RANKED:
                bound(m, s, total)
            s.rounds += 1
        if s.inside > RANKED:
            leaf_row.clear(m, s.equal, 0, m.c.reach // WORD)
            m.meet()
        sift(m, s, total)
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
def _write(m: Recorder, s: Selection, before: Expr, skip: Expr, first: Value) -> None:
    """Place the positions of the marked columns in ascending order over all warps, and write their ids."""
    # The positions take the place of the histogram, which is done.
    placed = s.hist
    shift = inline(m.word(s.state, leaf_row.StateWord.SHIFT) if m.k.options else s.start * (s.absolute - 1))
    position = s.base + shift
    # Only long rows are sampled, and these are never dense.
    dense = 0 if m.k.sample else s.last - s.start <= s.k * DENSE and s.words <= WORD
    leaf_list.place_marks(m, placed, before, s.sums, s.above, first, s.words, position, dense, m.k.keep)
    m.meet()
    first_page, pages = (-1, None) if m.k.sample else (s.first_page, s.pages)
    line = inline(m.word(s.state, leaf_row.StateWord.LINE) if m.k.options else s.line)
    slots = {
        "row": m.block(0), "k": s.k, "skip": skip, "sums": s.sums, "placed": placed, "group": m.k.group,
        "cta_warps": m.c.cta_warps,
    }  # fmt: skip
    leaf_list.write_ids(
        m, s.indices, block_table=s.block_table, line=line, page_size=s.page_size, inverse=s.inverse,
        pages=pages, first_page=first_page, **slots,
    )  # fmt: skip
    if m.k.options:
        if s.has_positions != 0:
            leaf_list.write_positions(m, s.positions, **slots)
        if s.has_values != 0:
            leaf_list.write_values(m, s.values, s.logits, first=-shift, **slots)


def bodies(knobs: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: _start, "select": _select}
