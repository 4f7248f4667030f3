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
from types import SimpleNamespace
from typing import Any

from .. import problems
from ..arch import ArchSpec
from ..device.text import topk_selector as leaf
from ..device.text.topk_selector import BINS, COARSE, INFINITE, LOWEST, WORD
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


def sizes(k: SimpleNamespace) -> dict[str, int]:
    """Numbers that follow from the knobs."""
    long = k.threads * k.keep == 16384 and k.resident == 1 and k.group <= 4
    listed, few = Size(11 * k.threads if k.sample else 2048, "LISTED"), Size(k.keep // 2, "FEW")
    return {
        # Batches of keys that stay in shared memory between the passes: where one CTA has an SM for a long share.
        "stashed": Size(2 if long and not k.sample else 0, "STASHED"),
        # Keys that a list holds: undecided ones of a histogram, or those that reach a sample's threshold.
        "listed": listed,
        # Keys of the sample that a thread has: half as many as it holds of a row, the registers of one of two batches.
        "few": few,
        # Keys of it that may lie between its threshold and the one that was asked for: a quarter of what is listed.
        "between": Size(listed // (4 * k.sample) if k.sample else 0, "BETWEEN"),
        "cta_warps": Size(k.threads // 32, "WARPS"),
        "batch": Size(WORD * k.keep, "BATCH"),
        # Columns that a CTA can mark in its bitmaps: those that its sample stands for; a cluster of 16 serves a million.
        "reach": Size(k.sample * k.threads * few if k.sample else 81920, "SPAN"),
    }


def min_ctas_per_sm_of(k: SimpleNamespace, arch: ArchSpec) -> int:
    """CTAs an SM has registers for. A thread with 8 keys does with 64, and where a CTA has a row with 40: a third CTA of
    512 threads then fills the waits of the others when thousands of rows are in line."""
    if k.keep > 8:
        return int(k.resident)
    return max(k.resident, arch.registers_per_sm // (k.threads * (40 if k.group == 1 else 64)))


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    c = SimpleNamespace(**sizes(k))
    stashed, words, few = c.stashed, c.reach // WORD, c.few

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
            shared("entries", c.listed + RANKED, "undecided keys of the row with their positions", "int64"),
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
            *((private("ahead", k.keep, "uint32", "the next batch of the row: four columns a lane, 128 a row of them"),
               private("few", few, "uint32", "keys of the sample"), private("few_digits", few // 2, "uint32", "their first digits"))
              if k.sample else ()),
        ),
        pipelines=(),
        mmas=(),
        grid=("rows", str(k.group)),
        axes=("row", "rank"),
        cluster=(1, k.group, 1),
        group=(1,) if k.group > 1 else (),
        constants=vars(c),
        ctas_per_sm=k.resident,
        min_ctas_per_sm=min_ctas_per_sm_of(k, arch),
    )  # fmt: skip


# The kernel's variables. Undecided are the keys at most SPAN below END: INSIDE of them there are, NEED are still to be selected;
# LOWER keys of CTAs of lower rank lie above the range, and WITHIN in it.
END, SPAN = name("end", "uint32"), name("span", "uint32")
NEED, INSIDE, LOWER, WITHIN, ROUNDS = map(name, ("need", "inside", "lower", "within", "rounds"))
THROUGH = name("through")
# A row's columns are those from FIRST on before LAST. A warp has BATCHES batches of them from BASE on, WORDS words, none of them past HI.
FIRST, LAST, BASE, BATCHES, WORDS, HI = map(name, ("start", "last", "base", "batches", "words", "hi"))
# Of a sampled row: the key that its list leaves out for being equal too often, or 0; whether the list will not do.
TIED, UNLISTED = name("tied", "uint32"), name("unlisted", "bool")
LINE, INVERSE = name("line"), name("inverse", "uint32")
# The key from which a cluster's first digits count down, or 0, and their lowest bit.
NEAR, GRAIN = name("near_key", "uint32"), name("grain", "uint32")


def _bins(ahead: int = 0) -> Expr:
    """First bin of this round, or of the one `ahead`, whose half of the histogram is free."""
    return ((ROUNDS + ahead) & 1) * BINS


def _rank(m: Recorder) -> Value:
    """This CTA's place among those of the row; a lone one need not read a register for it."""
    return m.block(1) if m.k.group > 1 else 0


def _start(m: Recorder) -> None:
    """Where this warp stands among those of the row. A row that the group's registers can hold is laid out by its
    stride, so that its loads wait for nothing."""
    m.let("owner", _rank(m) * m.c.cta_warps + m.warp)


def _held(m: Recorder) -> int:
    """Columns that the registers of a row's CTAs hold."""
    return Size(m.k.group * m.k.threads * m.k.keep, "HELD")


def _select(m: Recorder) -> None:
    together = m.k.group > 1
    leaf.clear(m, m.buffer("hist"), 0, 2 * BINS)
    leaf.clear(m, m.buffer("counters"), 0, 8)
    if together:
        m.cluster_arrive(relaxed=True)
    leaf.page_row(m, m.declare(INVERSE), m.declare(LINE))
    m.depend(launch=False)
    if together:
        leaf.load_few(m, m.var("few", 0, "uint32"))
        with m.when(m.dim("stride") <= _held(m)):
            leaf.load_words(m, m.buffer("keys"), name("owner") * m.c.batch, m.dim("stride"))
    else:
        # By their limit, as others' loads would wait for a branch; in a cluster TileLang spills them so.
        fits = m.var("fits")
        with m.when(m.dim("stride") <= _held(m)):
            m.set(fits, m.dim("stride"))
        leaf.load_words(m, m.buffer("keys"), name("owner") * m.c.batch, fits)
    m.let("start", maximum(m.word(m.operand("row_starts"), m.block(0)), 0))
    m.let("last", minimum(m.word(m.operand("row_ends"), m.block(0)), m.dim("stride")))
    m.launch_dependents()
    m.meet()
    with m.when(LAST - FIRST <= m.dim("k")):
        leaf.take_all(m, LAST - FIRST, FIRST * m.dim("absolute"), LINE, INVERSE, rank=_rank(m))
        if together:
            m.cluster_wait()
    with m.otherwise():
        _select_some(m)


def _share(m: Recorder) -> None:
    """Which columns of the row each warp has."""
    stride, origin, run = m.dim("stride"), m.var("origin"), m.var("run", m.k.keep)
    with m.when(stride > _held(m)):
        m.set(origin, FIRST >> 5 << 5)
        m.set(run, ceildiv(LAST - origin, WORD * m.c.cta_warps * m.k.group))
    m.let("batches", ceildiv(run, m.k.keep))
    m.let("words", BATCHES * m.k.keep)
    if m.k.sample:
        m.comment("Runs of whole batches, so that a word of the bitmaps is one of the row.")
        m.set(run, WORDS)
    m.let("base", origin + name("owner") * run * WORD)
    m.let("hi", minimum(LAST, BASE + run * WORD))
    if m.k.sample:
        return
    m.comment(
        "The page-table entries that this CTA may need, one a thread, on their way while keys are counted."
    )
    first_page, entry, own = m.var("first_page"), m.var("entry"), run * (WORD * m.c.cta_warps)
    leaf.fetch_pages(m, first_page, entry, origin + _rank(m) * own, own, FIRST, LAST, LINE, INVERSE)


def _load_again(m: Recorder, batch: Value) -> None:
    """The keys of a batch once more: from shared memory where it is one of the first (the last is never there)."""
    column = m.let("column", BASE + batch * m.c.batch)
    if m.c.stashed:
        with m.when(batch < minimum(m.c.stashed, BATCHES - 1)):
            leaf.stash_keys(m, m.buffer("keys"), batch, back=True)
    with m.otherwise() if m.c.stashed else nullcontext():
        leaf.load_words(m, m.buffer("keys"), column, HI)
        leaf.make_keys(m, m.buffer("keys"), column, FIRST, HI, digits=0)


def _settle(m: Recorder, first: bool = False) -> None:
    """Close a round within a CTA: keep the bin that holds the `need`-th largest undecided key."""
    bins = 0 if first else _bins()
    if not first:
        leaf.clear(m, m.buffer("hist"), _bins(1), BINS)
    m.meet()
    leaf.sum_bins(m, THROUGH, bins)
    m.meet()
    leaf.pick_bin(m, THROUGH, NEED, END, SPAN, first)
    m.meet()
    leaf.read_state(m, END, SPAN, NEED, INSIDE)


def _settle_group(m: Recorder, first: bool = False) -> None:
    """Close a round of a cluster: its CTAs send each other coarse counts, and read the fine counts of one coarse bin."""
    bins, sums = (0, 0) if first else (_bins(), (ROUNDS & 1) * (m.k.group * COARSE))
    m.meet()
    if first:
        m.comment("A peer's shared memory may be written only once the peer runs.")
        m.cluster_wait()
    leaf.send_sums(m, m.cluster("coarse"), sums, bins)
    m.cluster_arrive()
    m.cluster_wait()
    if not first:
        m.comment("Now every peer has read the counts of the round before.")
        leaf.clear(m, m.buffer("hist"), _bins(1), BINS)
    near, grain = (NEAR, GRAIN) if first else (0, 0)
    leaf.pick_bin_of_group(m, m.cluster("hist"), bins, sums, NEED, LOWER, END, SPAN, first, near, grain)
    m.meet()
    leaf.read_state(m, END, SPAN, NEED, INSIDE)
    m.set(LOWER, m.word(m.buffer("state"), 4))
    m.set(WITHIN, m.word(m.buffer("state"), 5))


def _undecided(m: Recorder, most: int) -> Iterator[None]:
    """Rounds until at most `most` keys are undecided, or all of them are equal."""
    for _ in m.repeat((INSIDE > most) & (SPAN != 0)):
        yield
        m.set(ROUNDS, ROUNDS + 1)


def _select_some(m: Recorder) -> None:
    """A row of more than k scores."""
    k = m.k
    _share(m)
    m.declare(END)
    m.declare(SPAN)
    m.declare(NEED, m.dim("k"))
    for variable in (INSIDE, LOWER, WITHIN, ROUNDS, THROUGH, *((NEAR, GRAIN) if k.group > 1 else ())):
        m.declare(variable)
    if k.sample:
        m.declare(UNLISTED, True)
        m.declare(TIED)
        with m.when(m.dim("stride") > _held(m)):
            _list_row(m)
    with _unlisted(m):
        _bound_row(m)
    _collect(m)


def _bound_row(m: Recorder) -> None:
    """Count digits of the row until few enough keys are undecided to be listed; the last batch stays in registers."""
    k, c, together = m.k, m.c, m.k.group > 1
    settle = _settle_group if together else _settle
    for step in m.loop("step", BATCHES):
        column = m.let("column", BASE + step * c.batch)
        with m.when((step > 0) | (m.dim("stride") > _held(m))):
            leaf.load_words(m, m.buffer("keys"), column, HI)
        if together:
            # Another round costs several barriers: a few scores of the row decide how its first digits are counted.
            with m.when(step == 0):
                leaf.guess_digits(m, NEAR, GRAIN, name("few", "uint32"))
        with m.when(NEAR == 0) if together else nullcontext():
            leaf.make_keys(m, m.buffer("keys"), column, FIRST, HI)
            leaf.count_first(m, column, FIRST, HI)
        if together:
            with m.otherwise():
                leaf.make_keys(m, m.buffer("keys"), column, FIRST, HI, digits=0)
                leaf.count_near(m, m.buffer("keys"), NEAR, GRAIN, column, FIRST, HI)
        if c.stashed:
            with m.when(step < minimum(c.stashed, BATCHES - 1)):
                leaf.stash_keys(m, m.buffer("keys"), step, back=False)
    settle(m, first=True)
    m.set(ROUNDS, ROUNDS + 1)
    if not k.sample:
        m.comment("By now the entries have come.")
        with m.when(m.dim("page_size") > 0):
            leaf.keep_entry(m, name("entry"))

    m.comment("More digits over the row while the undecided keys are too many to list.")
    for _ in _undecided(m, c.listed):
        for step in m.loop("step", BATCHES):
            with m.when(BATCHES > 1):
                _load_again(m, step)
            leaf.count_keys(m, _bins(), m.buffer("keys"), END, SPAN)
        settle(m)


def _unlisted(m: Recorder) -> AbstractContextManager[Any]:
    """Around what a row needs unless its keys that reach the sample's threshold are listed."""
    return m.when(UNLISTED) if m.k.sample else nullcontext()


def _list_row(m: Recorder) -> None:
    """List the keys that reach a threshold from a sample; the list will do if it holds k keys and all of these."""
    k, c = m.k, m.c
    few, digits = m.buffer("few"), m.buffer("few_digits")
    sampled, wanted = k.threads * c.few, m.dim("k") // k.sample
    leaf.load_sample(m, few, FIRST, LAST, k.sample)
    leaf.clear(m, m.buffer("above"), 0, c.reach // WORD)
    own = m.warp * (c.few * WORD)
    leaf.make_keys(m, few, own, 0, sampled, digits=digits)
    leaf.count_first(m, own, 0, sampled, digits=digits)
    m.set(NEED, wanted + wanted // 4 + SPARE)
    _settle(m, first=True)
    m.set(ROUNDS, ROUNDS + 1)
    for _ in _undecided(m, c.between):
        leaf.count_keys(m, _bins(), few, END, SPAN)
        _settle(m)
    m.comment("More equal keys than are listed: what lies above them is, and the first of them are taken.")
    with m.when((INSIDE > c.between) & (SPAN == 0) & (END < INFINITE)):
        m.set(TIED, END)
        m.set(END, END + 1)
    bottom = m.var("bottom", minimum(maximum(END - SPAN, LOWEST), INFINITE), "uint32")
    leaf.list_row(m, bottom, name("origin"), FIRST, LAST, BATCHES, room=c.listed)
    m.set(NEED, m.dim("k"))
    with m.when(TIED != 0):
        leaf.clear(m, m.buffer("equal"), 0, c.reach // WORD)
    m.meet()
    m.set(INSIDE, _counter(m, leaf.Counter.LISTED))
    m.set(UNLISTED, (INSIDE < NEED) | (INSIDE > c.listed))
    with m.when(TIED != 0):
        _mark_ties(m)
    with m.when(UNLISTED):
        m.meet()
        m.set(ROUNDS, 0)
        leaf.clear(m, m.buffer("hist"), 0, 2 * BINS)
        leaf.clear(m, m.buffer("counters"), 0, 8)
        m.meet()
    with m.otherwise():
        leaf.key_entries(m, INSIDE)
        m.meet()
        with m.when(TIED == 0):
            m.comment("From the threshold on: to look for the smallest key as well takes 0.9 us.")
            m.set(END, _counter(m, leaf.Counter.LARGEST, "uint32"))
            m.set(SPAN, END - bottom)
        with m.otherwise():
            m.set(END, TIED)
            m.set(SPAN, 0)
            m.set(NEED, NEED - INSIDE)
            leaf.sift(m, INSIDE, c.listed, END, SPAN, INSIDE, RANKED, WORDS, rank=_rank(m))
            m.set(INSIDE, 0)


def _mark_ties(m: Recorder) -> None:
    """Mark keys that equal TIED from the row's first on until those and the listed ones are k; TIED is 0 where they are
    not, or where the list holds k by itself."""
    c, keys, found, turn = m.c, m.buffer("keys"), m.var("found"), m.var("turn")
    for _ in m.repeat((turn < BATCHES) & (INSIDE + found < NEED)):
        word = m.let("word", (turn * c.cta_warps + m.warp) * m.k.keep)
        column = m.let("column", name("origin") + word * WORD)
        leaf.load_words(m, keys, column, m.dim("stride"))
        leaf.make_keys(m, keys, column, FIRST, LAST, digits=0)
        leaf.mark_equal(m, keys, word, TIED)
        m.meet()
        m.set(found, _counter(m, leaf.Counter.KEPT))
        m.meet()
        m.set(turn, turn + 1)
    m.set(UNLISTED, (INSIDE + found < NEED) | (INSIDE > c.listed))
    with m.when(UNLISTED | (INSIDE >= NEED)):
        m.set(TIED, 0)


def _collect(m: Recorder) -> None:
    """Mark what is above the range and list what is in it; the last batch is still in registers."""
    k, c, keys = m.k, m.c, m.buffer("keys")
    m.comment("One pass marks what is above the range and lists what is in it; the last batch is still held.")
    listing = m.let("listing", (INSIDE > 0) & (INSIDE <= c.listed))
    with _unlisted(m):
        for step in m.loop("step", BATCHES):
            batch = m.let("batch", BATCHES - 1 - step)
            with m.when(step > 0):
                _load_again(m, batch)
            word = (m.warp * BATCHES + batch) * k.keep
            leaf.collect(m, keys, word, WITHIN, END, SPAN, listing, name("owner"), batch * c.batch)
    m.meet()
    if k.group > 1:
        m.comment("The last use of a peer's memory: nothing after this barrier reads or writes one.")
        leaf.send_entries(m, m.cluster("entries"), WITHIN)
        m.cluster_arrive()
        m.cluster_wait()
    first = m.let("first", m.warp * WORDS)
    ties = m.var("ties", maximum(NEED - WITHIN, 0))
    skip = m.var("skip", LOWER + minimum(WITHIN, NEED))
    with m.when(listing):
        ranked = m.var("ranked", 0)
        with m.when(INSIDE > RANKED):
            total = m.var("total", INSIDE)
            if not k.sample:
                with m.when(INSIDE > MANY):
                    _bound(m, total)
            for _ in _undecided(m, RANKED):
                leaf.count_listed(m, _bins(), total, END, SPAN)
                _settle(m)
                with m.when(INSIDE > RANKED):
                    _bound(m, total)
            with m.when(INSIDE > RANKED):
                leaf.clear(m, m.buffer("equal"), 0, c.reach // WORD)
                m.meet()
            leaf.sift(m, total, c.listed, END, SPAN, INSIDE, RANKED, WORDS, rank=_rank(m))
            m.set(ranked, c.listed)
            m.meet()
        with m.when(INSIDE <= RANKED):
            leaf.rank_entries(m, ranked, INSIDE, NEED, WORDS, rank=_rank(m))
        m.meet()
        m.comment("Lower ranks select of the list as well, and take equal ones.")
        lower_equal = m.let("lower_equal", _counter(m, leaf.Counter.LOWER_EQUAL))
        m.set(ties, 0)
        with m.when(INSIDE > RANKED):
            m.set(ties, maximum(NEED - lower_equal, 0))
        m.set(skip, LOWER + _counter(m, leaf.Counter.LOWER_ABOVE) + minimum(lower_equal, NEED))
    before = m.var("before")
    with m.when(ties > 0):
        leaf.count_marks(m, before, m.buffer("equal"), first, WORDS)
        m.meet()
        leaf.take_ties(m, before, ties, first, WORDS)
        m.meet()
    leaf.count_marks(m, before, m.buffer("above"), first, WORDS)
    m.meet()
    _write(m, before, skip, first)


def _counter(m: Recorder, which: int, dtype: str = "int32") -> Expr:
    return m.word(m.buffer("counters"), which, dtype)


def _bound(m: Recorder, total: Expr) -> None:
    """Narrow the range to the undecided keys of the list: ties are then known to be ties."""
    leaf.bound_listed(m, total, END, SPAN)
    m.meet()
    leaf.read_bounded(m, END, SPAN)


def _write(m: Recorder, before: Expr, skip: Expr, first: Value) -> None:
    """The positions of each warp's marked columns, ascending, behind those of lower warps, and then the ids of all."""
    placed = m.buffer("hist")
    position = m.let("position", BASE + FIRST * (m.dim("absolute") - 1))
    # Only a long row is sampled.
    dense: Value = 0 if m.k.sample else m.let("dense", (LAST - FIRST <= m.dim("k") * DENSE) & (WORDS <= WORD))
    leaf.place_marks(m, placed, before, first, WORDS, position, dense)
    m.meet()
    first_page, pages = (-1, {"pages": 0}) if m.k.sample else (name("first_page"), {})
    leaf.write_ids(m, skip, placed, LINE, INVERSE, first_page, **pages)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: _start, "select": _select}


def _small_k(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return None if call["k"] <= MAX_K else f"k = {call['k']} exceeds {MAX_K}"


def _vector_rows(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    stride = call["stride"]
    return None if stride % 4 == 0 else f"stride = {stride} is no multiple of 4 (16-byte loads)"


def _span(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    """A CTA's bitmaps hold whole batches of every warp."""
    k, stride = SimpleNamespace(**knobs), call["stride"]
    batches, held = ceildiv(stride, k.group * k.threads * k.keep), sizes(k)["reach"]
    columns = batches * k.threads * k.keep
    return None if columns <= held else f"stride = {stride} gives a CTA {columns} columns; it marks {held}"


PROGRAM = TileProgram(
    op="topk_selector",
    problem=problems.get("topk_selector"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    guards=(Guard("k", _small_k), Guard("stride", _vector_rows), Guard("span", _span)),
)
