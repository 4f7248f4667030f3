"""Exact top-k as a tile program: a radix select over ordered 32-bit keys, one cluster of CTAs a row.

The undecided keys are always those at most `span` below `end`. A round counts the next digit of them in shared memory,
2048 bins with the largest key's first; the CTAs of a row read each other's counts and agree on the bin that holds the
k-th largest key. The first digit is the score rounded to fp16, which splits scores of ordinary size better than the
leading bits of the key; after at most three more digits the key is exact to its last bit, whatever the distribution.
In a cluster, where a round costs several barriers, 32 scores of the row are looked at first: if they lie close together,
the first digit is the distance from a key above them.
As soon as few keys are undecided, one pass over the row marks the columns above them in a bitmap and lists them for
all CTAs; the remaining digits are counted over the list, and the last few entries are ranked against each other. Ties
go to the lower position. Every CTA then writes its own share in ascending position, at an offset that follows from the
counts of lower ranks: no atomics on the output, the same bits in every run.

Where a CTA has a long row, `sample` spares it the histogram of the row. The key that a few more than k are expected to
reach is taken from the histogram of a sample, and the row is streamed once: what reaches that key is listed. When the
list holds at least k keys and did not overflow, the k largest keys of the row are in it, whatever the sample was like, and
the rounds over the list do the rest. When the sample's keys are equal, what lies above them is listed, and the first
columns that equal them are taken until there are k. Else the row goes through the histogram after all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from .. import problems
from ..arch import ArchSpec
from ..device.text import topk_selector as leaf
from ..device.torch.topk_selector import (
    BINS,
    COARSE,
    INFINITE,
    KEPT,
    LARGEST,
    LISTED,
    WORD,
)
from ..tile.lang import START, Body, Buffer, Guard, Knob, Role, Schedule, Size, Space
from ..tile.program import TileProgram
from ..tile.text import Expr, Recorder, Value, ceildiv, maximum, minimum, name

MAX_K = 2048
# A row of up to so many scores for each one selected places its marks a word at a time, a longer one a mark at a time.
DENSE = Size(8, "DENSE")
# Keys of a list that are ranked without another round.
RANKED = Size(64, "RANKED")
# Keys of a list that are first bounded: ties, more likely than a bin of different keys.
MANY = Size(384, "MANY")
# Of the sample, keys beyond k's share that are to reach the threshold: that fewer than k of the row do is then as rare as
# four standard deviations of what a sample of 1/16 finds.
SPARE = Size(28, "SPARE")

KNOBS = (
    Knob("group", "g", ((1, 2, 4, 8, 16),), "CTAs a row, one cluster"),
    Knob("threads", "t", ((1024, 512), (), (256,)), "threads a CTA"),
    Knob(
        "keep",
        "r",
        ((4, 8, 16), (32,)),
        "keys a thread keeps in registers; longer rows are read again in every pass",
    ),
    Knob("resident", "c", ((1, 2),), "CTAs an SM holds at once"),
    Knob("sample", "s", ((0, 16),), "words of 32 columns for each one sampled; 0: no sample", plain=0),
)


def stashed_batches(k: SimpleNamespace) -> int:
    """Batches of keys that stay in shared memory between the passes: where one CTA has an SM for a long share."""
    long = k.threads * k.keep == 16384 and k.resident == 1 and k.group <= 4
    return Size(2 if long and not k.sample else 0, "STASHED")


def _listed(k: SimpleNamespace) -> int:
    """Keys that a list holds: undecided ones of a histogram, or those that reach a sample's threshold."""
    return Size(11 * k.threads if k.sample else 2048, "LISTED")


def _between(k: SimpleNamespace) -> int:
    """Keys of the sample that may lie between its threshold and the one that was asked for: a quarter of what is listed."""
    return Size(_listed(k) // (4 * k.sample) if k.sample else 0, "BETWEEN")


def _few(k: SimpleNamespace) -> int:
    """Keys of the sample that a thread has: half as many as it holds of a row, the registers of one of two batches."""
    return Size(k.keep // 2, "FEW")


def _columns(k: SimpleNamespace) -> int:
    """Columns that a CTA can mark in its bitmaps: those that its sample stands for; a cluster of 16 serves a million."""
    return Size(k.sample * k.threads * _few(k) if k.sample else 81920, "SPAN")


def min_ctas_per_sm_of(k: SimpleNamespace, arch: ArchSpec) -> int:
    """CTAs an SM has registers for. A thread with 8 keys does with 64, and where a CTA has a row with 40: a third CTA of
    512 threads then fills the waits of the others when thousands of rows are in line."""
    if k.keep > 8:
        return int(k.resident)
    return max(k.resident, arch.registers_per_sm // (k.threads * (40 if k.group == 1 else 64)))


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    stashed, words, few = stashed_batches(k), _columns(k) // WORD, _few(k)

    def shared(buffer: str, count: int, doc: str, dtype: str = "int32") -> Buffer:
        return Buffer(buffer, Space.SHARED, (count,), dtype, doc=doc)

    def private(buffer: str, each: int, dtype: str, doc: str) -> Buffer:
        shape = (k.threads, each)
        return Buffer(
            buffer, Space.REGISTER, shape, dtype, role="select", private=True, per_thread=each, doc=doc
        )

    return Schedule(
        roles=(Role("select", k.threads // 32, doc="every warp owns a run of words of 32 columns"),),
        buffers=(
            shared("hist", 2 * BINS, "the bins of a round, of even and odd rounds"),
            shared("entries", _listed(k) + RANKED, "undecided keys of the row with their positions", "int64"),
            shared("above", words, "a bit a column: above the threshold"),
            shared("equal", words, "a bit a column: equal to the threshold"),
            *((shared("coarse", 2 * k.group * COARSE, "coarse sums of all CTAs, by round"),) if k.group > 1 else ()),
            *((shared("stash", stashed * k.threads * k.keep, "keys of a row's first batches, between passes"),) if stashed else ()),
            *(() if k.sample else (shared("pages", k.threads, "the first entries of this CTA's part of the page table"),)),
            shared("sums", 32, "of each warp, within a scan"),
            shared("state", 8, "what a round found, for all threads"),
            shared("counters", 8, "entries listed, entries kept, lower ranks' above and equal"),
            private("keys", k.keep, "uint32", "a batch of the row: a column a lane, a word of 32 a key"),
            private("digits", k.keep // 2, "uint32", "first digits of the batch, two a word"),
            private("mine", BINS // k.threads, "int32", "bins of a round"),
            *((private("ahead", k.keep, "uint32", "the next batch of the row: four columns a lane, 128 a row of them"),)
              if k.sample else ()),
            *((private("few", few, "uint32", "keys of the sample"), private("few_digits", few // 2, "uint32", "their first digits"))
              if k.sample else ()),
        ),
        pipelines=(),
        mmas=(),
        grid=("rows", str(k.group)),
        axes=("row", "rank"),
        cluster=(1, k.group, 1),
        group=(1,) if k.group > 1 else (),
        constants={"stashed": stashed, "listed": _listed(k), "few": few, "between": _between(k), "warps": Size(k.threads // 32, "WARPS"), "batch": Size(WORD * k.keep, "BATCH")},
        ctas_per_sm=k.resident,
        min_ctas_per_sm=min_ctas_per_sm_of(k, arch),
    )  # fmt: skip


@dataclass(frozen=True)
class _Range:
    """The undecided keys: those at most `span` below `end`. `inside` of them there are, `need` are still to be selected.

    `lower` keys of CTAs of lower rank lie above the range, and `within` in it. All are variables of the kernel.
    """

    end: Expr
    span: Expr
    need: Expr
    inside: Expr
    lower: Expr
    within: Expr
    rounds: Expr

    @property
    def bins(self) -> Expr:
        """First bin of this round; the other half of the histogram is then free."""
        return (self.rounds & 1) * BINS

    @property
    def spare(self) -> Expr:
        return ((self.rounds + 1) & 1) * BINS


def _rank(m: Recorder) -> Value:
    """This CTA's place among those of the row; a lone one need not read a register for it."""
    return m.block(1) if m.k.group > 1 else 0


def _start(m: Recorder) -> None:
    """Where this warp stands among those of the row. A row that the group's registers can hold is laid out by its
    stride, so that its loads wait for nothing."""
    m.let("owner", _rank(m) * m.c.warps + m.warp)


def _held(m: Recorder) -> int:
    """Columns that the registers of a row's CTAs hold."""
    return Size(m.k.group * m.k.threads * m.k.keep, "HELD")


def _select(m: Recorder) -> None:
    together = m.k.group > 1
    leaf.clear(m, m.buffer("hist"), 0, 2 * BINS)
    leaf.clear(m, m.buffer("counters"), 0, 8)
    if together:
        m.cluster_arrive(relaxed=True)
    inverse, line = m.var("inverse", 0, "uint32"), m.var("line")
    leaf.page_row(m, inverse, line)
    m.depend(launch=False)
    if together:
        leaf.load_few(m, m.var("few", 0, "uint32"))
    if together:
        with m.when(m.dim("stride") <= _held(m)):
            leaf.load_words(m, m.buffer("keys"), name("owner") * m.c.batch, m.dim("stride"))
    else:
        # By their limit, as others' loads would wait for a branch; in a cluster TileLang spills them so.
        fits = m.var("fits")
        with m.when(m.dim("stride") <= _held(m)):
            m.set(fits, m.dim("stride"))
        leaf.load_words(m, m.buffer("keys"), name("owner") * m.c.batch, fits)
    start, last = m.var("start"), m.var("last")
    leaf.read_bounds(m, start, last)
    m.launch_dependents()
    m.meet()
    with m.when(last - start <= m.dim("k")):
        leaf.take_all(m, last - start, start * m.dim("absolute"), line, inverse, rank=_rank(m))
        if together:
            m.cluster_wait()
    with m.otherwise():
        _select_some(m)


@dataclass(frozen=True)
class _Share:
    """The columns of each warp: `batches` batches from column `base` on, of which it reads those below `hi`."""

    base: Expr
    batches: Value
    hi: Expr

    @property
    def bounds(self) -> tuple[Expr, Expr]:
        """Of the row's columns, as none of a warp lies below its base."""
        return name("start"), self.hi


def _share(m: Recorder) -> _Share:
    start, last, stride = name("start"), name("last"), m.dim("stride")
    origin, run = m.var("origin"), m.var("run", m.k.keep)
    with m.when(stride > _held(m)):
        m.set(origin, start >> 5 << 5)
        m.set(run, ceildiv(last - origin, WORD * m.c.warps * m.k.group))
    batches = m.let("batches", ceildiv(run, m.k.keep))
    if m.k.sample:
        m.comment("Runs of whole batches, so that a word of the bitmaps is one of the row.")
        m.set(run, batches * m.k.keep)
    base = m.let("base", origin + name("owner") * run * WORD)
    hi = m.var("hi")
    leaf.bound_warp(m, hi, base, run, last)
    share = _Share(base, batches, hi)  # type: ignore[arg-type]
    if m.k.sample:
        return share
    m.comment(
        "The page-table entries that this CTA may need, one a thread, on their way while keys are counted."
    )
    first_page, entry = m.var("first_page"), m.var("entry")
    own = run * (WORD * m.c.warps)
    at, line, inverse = origin + _rank(m) * own, name("line"), name("inverse", "uint32")
    leaf.fetch_pages(m, first_page, entry, at, own, start, last, line, inverse)
    return share


def _load(m: Recorder, share: _Share, column: Value) -> None:
    leaf.load_words(m, m.buffer("keys"), column, share.hi)


def _load_again(m: Recorder, share: _Share, batch: Value) -> None:
    """The keys of a batch once more: from shared memory where it is one of the first (the last is never there)."""
    keys, column = m.buffer("keys"), m.let("column", share.base + batch * m.c.batch)

    def read() -> None:
        _load(m, share, column)
        leaf.make_keys(m, keys, column, *share.bounds, digits=0)

    if not m.c.stashed:
        read()
        return
    with m.when(batch < minimum(m.c.stashed, share.batches - 1)):
        leaf.take_keys(m, keys, m.buffer("stash"), batch * (m.k.keep * m.k.threads))
    with m.otherwise():
        read()


def _settle(m: Recorder, r: _Range, first: bool = False) -> None:
    """Close a round within a CTA: keep the bin that holds the `need`-th largest undecided key."""
    bins, through = 0 if first else r.bins, name("through")
    if not first:
        leaf.clear(m, m.buffer("hist"), r.spare, BINS)
    m.meet()
    leaf.sum_bins(m, through, bins)
    m.meet()
    leaf.pick_bin(m, through, r.need, r.end, r.span, first)
    m.meet()
    leaf.read_state(m, r.end, r.span, r.need, r.inside)


def _settle_group(m: Recorder, r: _Range, first: bool = False) -> None:
    """Close a round of a cluster: its CTAs send each other coarse counts, and read the fine counts of one coarse bin."""
    bins, sums = (0, 0) if first else (r.bins, (r.rounds & 1) * (m.k.group * COARSE))
    m.meet()
    if first:
        m.comment("A peer's shared memory may be written only once the peer runs.")
        m.cluster_wait()
    leaf.send_sums(m, m.cluster("coarse"), sums, bins)
    m.cluster_arrive()
    m.cluster_wait()
    if not first:
        m.comment("Now every peer has read the counts of the round before.")
        leaf.clear(m, m.buffer("hist"), r.spare, BINS)
    near, grain = (name("near_key", "uint32"), name("grain", "uint32")) if first else (0, 0)
    peers, digits = m.cluster("hist"), (first, near, grain)
    leaf.pick_bin_of_group(m, peers, bins, sums, r.need, r.lower, r.end, r.span, *digits)
    m.meet()
    leaf.read_state(m, r.end, r.span, r.need, r.inside)
    leaf.read_word(m, r.lower, m.buffer("state"), 4)
    leaf.read_word(m, r.within, m.buffer("state"), 5)


def _undecided(m: Recorder, r: _Range, most: int) -> Iterator[None]:
    """Rounds until at most `most` keys are undecided, or all of them are equal."""
    for _ in m.repeat((r.inside > most) & r.span.differs(0)):
        yield
        m.set(r.rounds, r.rounds + 1)


def _select_some(m: Recorder) -> None:
    """A row of more than k scores."""
    k = m.k
    share = _share(m)
    r = _Range(
        m.var("end", 0, "uint32"), m.var("span", 0, "uint32"), m.var("need", m.dim("k")), m.var("inside"), m.var("lower"),
        m.var("within"), m.var("rounds"),
    )  # fmt: skip
    m.var("through")
    if k.group > 1:
        m.var("near_key", 0, "uint32")
        m.var("grain", 0, "uint32")
    if k.sample:
        m.var("unlisted", True, "bool")
        m.var("tied", 0, "uint32")
        with m.when(m.dim("stride") > _held(m)):
            _list_row(m, share, r)
    with _unlisted(m):
        _bound_row(m, share, r)
    _collect(m, share, r)


def _bound_row(m: Recorder, share: _Share, r: _Range) -> None:
    """Count digits of the row until few enough keys are undecided to be listed; the last batch stays in registers."""
    k, c, together = m.k, m.c, m.k.group > 1
    settle = _settle_group if together else _settle
    near, grain = name("near_key", "uint32"), name("grain", "uint32")
    for step in m.loop("step", share.batches):
        column = m.let("column", share.base + step * c.batch)
        with m.when((step > 0) | (m.dim("stride") > _held(m))):
            _load(m, share, column)
        if together:
            # Another round costs several barriers: a few scores of the row decide how its first digits are counted.
            with m.when(step.equals(0)):
                leaf.guess_digits(m, near, grain, name("few", "uint32"))
        with m.when(near.equals(0)) if together else nullcontext():
            leaf.make_keys(m, m.buffer("keys"), column, *share.bounds)
            leaf.count_first(m, column, *share.bounds)
        if together:
            with m.otherwise():
                leaf.make_keys(m, m.buffer("keys"), column, *share.bounds, digits=0)
                leaf.count_near(m, m.buffer("keys"), near, grain, column, *share.bounds)
        if c.stashed:
            with m.when(step < minimum(c.stashed, share.batches - 1)):
                leaf.keep_keys(m, m.buffer("stash"), step * (k.keep * k.threads), m.buffer("keys"))
    settle(m, r, first=True)
    m.set(r.rounds, r.rounds + 1)
    if not k.sample:
        m.comment("By now the entries have come.")
        with m.when(m.dim("page_size") > 0):
            leaf.keep_entry(m, name("entry"))

    m.comment("More digits over the row while the undecided keys are too many to list.")
    for _ in _undecided(m, r, c.listed):
        for step in m.loop("step", share.batches):
            with m.when(share.batches > 1):
                _load_again(m, share, step)
            leaf.count_keys(m, r.bins, m.buffer("keys"), r.end, r.span)
        settle(m, r)


def _unlisted(m: Recorder) -> AbstractContextManager[Any]:
    """Around what a row needs unless its keys that reach the sample's threshold are listed."""
    return m.when(name("unlisted", "bool")) if m.k.sample else nullcontext()


def _list_row(m: Recorder, share: _Share, r: _Range) -> None:
    """List the keys that reach a threshold from a sample; the list will do if it holds k keys and all of these."""
    k, c, tied = m.k, m.c, name("tied", "uint32")
    few, digits = m.buffer("few"), m.buffer("few_digits")
    sampled, wanted = k.threads * c.few, m.dim("k") // k.sample
    leaf.load_sample(m, few, name("start"), name("last"), k.sample)
    leaf.clear_run(m, m.buffer("above"), m.warp * (share.batches * k.keep), share.batches * k.keep)
    own = m.warp * (c.few * WORD)
    leaf.make_keys(m, few, own, 0, sampled, digits=digits)
    leaf.count_first(m, own, 0, sampled, digits=digits)
    m.set(r.need, wanted + wanted // 4 + SPARE)
    _settle(m, r, first=True)
    m.set(r.rounds, r.rounds + 1)
    for _ in _undecided(m, r, c.between):
        leaf.count_keys(m, r.bins, few, r.end, r.span)
        _settle(m, r)
    m.comment("More equal keys than are listed: what lies above them is, and the first of them are taken.")
    with m.when((r.inside > c.between) & r.span.equals(0) & (r.end < INFINITE)):
        m.set(tied, r.end)
        m.set(r.end, r.end + 1)
    bottom = m.var("bottom", 0, "uint32")
    leaf.read_bottom(m, bottom, r.end, r.span)

    bounds = (name("origin"), name("start"), name("last"))
    leaf.list_row(m, bottom, *bounds, share.batches, room=c.listed)
    m.set(r.need, m.dim("k"))
    with m.when(tied.differs(0)):
        leaf.clear_run(m, m.buffer("equal"), m.warp * (share.batches * k.keep), share.batches * k.keep)
    m.meet()
    _counter(m, r.inside, LISTED)
    unlisted = name("unlisted", "bool")
    m.set(unlisted, (r.inside < r.need) | (r.inside > c.listed))
    with m.when(tied.differs(0)):
        _mark_ties(m, share, r, tied)
    with m.when(unlisted):
        m.meet()
        m.set(r.rounds, 0)
        leaf.clear(m, m.buffer("hist"), 0, 2 * BINS)
        leaf.clear(m, m.buffer("counters"), 0, 8)
        m.meet()
    with m.otherwise():
        leaf.key_entries(m, r.inside)
        m.meet()
        with m.when(tied.equals(0)):
            m.comment("From the threshold on: to look for the smallest key as well takes 0.9 us.")
            _counter(m, r.end, LARGEST)
            m.set(r.span, r.end - bottom)
        with m.otherwise():
            m.set(r.end, tied)
            m.set(r.span, 0)
            m.set(r.need, r.need - r.inside)
            leaf.mark_listed(m, r.inside)
            m.set(r.inside, 0)


def _mark_ties(m: Recorder, share: _Share, r: _Range, tied: Expr) -> None:
    """Mark keys that equal `tied` from the row's first on until those and the listed ones are k; `tied` is 0 where they are
    not, or where the list holds k by itself."""
    c, keys, unlisted = m.c, m.buffer("keys"), name("unlisted", "bool")
    with m.when(r.inside < r.need):
        found, turn = m.var("found"), m.var("turn")
        for _ in m.repeat((turn < share.batches) & (r.inside + found < r.need)):
            word = m.let("word", (turn * c.warps + m.warp) * m.k.keep)
            column = m.let("column", name("origin") + word * WORD)
            leaf.load_words(m, keys, column, m.dim("stride"))
            leaf.make_keys(m, keys, column, name("start"), name("last"), digits=0)
            leaf.mark_equal(m, keys, word, tied)
            m.meet()
            _counter(m, found, KEPT)
            m.meet()
            m.set(turn, turn + 1)
        m.set(unlisted, r.inside + found < r.need)
        with m.when(unlisted):
            m.set(tied, 0)
    with m.otherwise():
        m.set(tied, 0)


def _collect(m: Recorder, share: _Share, r: _Range) -> None:
    """Mark what is above the range and list what is in it; the last batch is still in registers."""
    k, c, keys = m.k, m.c, m.buffer("keys")
    rank, words = _rank(m), m.let("words", share.batches * k.keep)
    m.comment("One pass marks what is above the range and lists what is in it; the last batch is still held.")
    listing = m.let("listing", (r.inside > 0) & (r.inside <= c.listed))
    with _unlisted(m):
        for step in m.loop("step", share.batches):
            batch = m.let("batch", share.batches - 1 - step)
            with m.when(step > 0):
                _load_again(m, share, batch)
            word = (m.warp * share.batches + batch) * k.keep
            leaf.collect(m, keys, word, r.within, r.end, r.span, listing, name("owner"), batch * c.batch)
    m.meet()
    if k.group > 1:
        m.comment("The last use of a peer's memory: nothing after this barrier reads or writes one.")
        leaf.send_entries(m, m.cluster("entries"), r.within)
        m.cluster_arrive()
        m.cluster_wait()
    first = m.let("first", m.warp * words)
    ties = m.var("ties", maximum(r.need - r.within, 0))
    skip = m.var("skip", r.lower + minimum(r.within, r.need))
    with m.when(listing):
        ranked = m.var("ranked", 0)
        with m.when(r.inside > RANKED):
            total = m.var("total", r.inside)
            if not k.sample:
                with m.when(r.inside > MANY):
                    _bound(m, r, total)
            for _ in _undecided(m, r, RANKED):
                leaf.count_listed(m, r.bins, total, r.end, r.span)
                _settle(m, r)
                with m.when(r.inside > RANKED):
                    _bound(m, r, total)
            with m.when(r.inside > RANKED):
                leaf.clear_run(m, m.buffer("equal"), first, words)
                m.meet()
            leaf.sift(m, total, c.listed, r.end, r.span, r.inside, RANKED, words, rank=rank)
            m.set(ranked, c.listed)
            m.meet()
        with m.when(r.inside <= RANKED):
            leaf.rank_entries(m, ranked, r.inside, r.need, words, rank=rank)
        m.meet()
        leaf.read_marked(m, ties, skip, r.need, r.inside, r.lower, RANKED)
    before = m.var("before")
    with m.when(ties > 0):
        leaf.count_marks(m, before, m.buffer("equal"), first, words)
        m.meet()
        leaf.take_ties(m, before, ties, first, words)
        m.meet()
    leaf.count_marks(m, before, m.buffer("above"), first, words)
    m.meet()
    _write(m, share, before, skip, first, words)


def _bound(m: Recorder, r: _Range, total: Expr) -> None:
    """Narrow the range to the undecided keys of the list: ties are then known to be ties."""
    leaf.bound_listed(m, total, r.end, r.span)
    m.meet()
    leaf.read_bounded(m, r.end, r.span)


def _counter(m: Recorder, value: Expr, which: int) -> None:
    leaf.read_word(m, value, m.buffer("counters"), which)


def _write(m: Recorder, share: _Share, before: Expr, skip: Expr, first: Value, words: Value) -> None:
    """The positions of each warp's marked columns, ascending, behind those of lower warps, and then the ids of all."""
    placed, length = m.buffer("hist"), name("last") - name("start")
    position = m.let("position", share.base + name("start") * (m.dim("absolute") - 1))
    # Only a long row is sampled.
    dense: Value = 0 if m.k.sample else m.let("dense", (length <= m.dim("k") * DENSE) & (words <= WORD))
    leaf.place_marks(m, placed, before, first, words, position, dense)
    m.meet()
    pages: dict[str, Any] = {"first_page": name("first_page")}
    if m.k.sample:
        pages = {"pages": 0, "first_page": -1}
    leaf.write_ids(m, skip, placed, name("line"), name("inverse", "uint32"), **pages)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: _start, "select": _select}


def _small_k(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return None if call["k"] <= MAX_K else f"k = {call['k']} exceeds {MAX_K}"


def _vector_rows(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return (
        None
        if call["stride"] % 4 == 0
        else f"a row stride of {call['stride']} floats is no multiple of 4 (16-byte loads)"
    )


def _span(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    """A CTA's bitmaps hold whole batches of every warp."""
    warps, words = knobs["group"] * knobs["threads"] // 32, -(-call["stride"] // WORD)
    batches = -(-words // (warps * knobs["keep"]))
    columns = batches * knobs["keep"] * knobs["threads"]
    held = _columns(SimpleNamespace(**knobs))
    if columns <= held:
        return None
    return f"a row stride of {call['stride']} gives {columns} columns to a CTA; its bitmaps hold {held}"


PROGRAM = TileProgram(
    op="topk_selector",
    problem=problems.get("topk_selector"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    guards=(Guard("k", _small_k), Guard("stride", _vector_rows), Guard("span", _span)),
)
