"""Cases of the leaves of the exact top-k selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from leaf_probes import Probe, case, spread, straight

from dsl_kernels.kernels.topk_selector.leaves import lists, rounds, row

THREADS, WARPS, KEEP = 128, 4, 8
BATCH = 32 * KEEP
ALL = 0xFFFFFFFF
INF = float("inf")


def _bits_of(p: Probe, *shape: int) -> torch.Tensor:
    """Bit patterns of scores, including zeros, infinities and NaN, as 64-bit integers."""
    values = p.normal(*shape) * 10
    flat = values.view(-1)
    flat[::11], flat[1::13], flat[2::31], flat[3::37], flat[5::41] = 0.0, -0.0, INF, -INF, float("nan")
    return values.view(torch.int32).long() & ALL


def _keys(p: Probe, title: str, value: torch.Tensor | None, each: int = KEEP, **kind: Any) -> Any:
    return p.registers(
        title, (THREADS, each), value, dtype="uint32", places=straight(THREADS, each), private=True, **kind
    )


def _column(p: Probe) -> Callable[[Any], Any]:
    return lambda m: m.warp * BATCH


def _bounds(p: Probe) -> tuple[Any, Any]:
    """Columns of the row in each warp's batch: some, all, some, none."""
    lo, hi = torch.tensor([37, 256, 512, 768]), torch.tensor([256, 512, 700, 700])
    return p.var("lo", lo, each="warp"), p.var("hi", hi, each="warp")


# Dtypes of scores.
SCORES = (torch.float32, torch.bfloat16, torch.float16)


@case(row.load_words, dtype=SCORES)
def load_words(p: Probe, dtype: torch.dtype) -> None:
    p.threads = THREADS
    limit = p.var("limit", torch.tensor([256, 400, 768, 900]), each="warp")
    logits = spread(p, "logits", p.normal(2, 900).to(dtype), gap=7)
    p.call(_keys(p, "bits", None), logits, p.dim("row", 1), _column(p), limit)


@case(row.clear, count=(8, 640))
def clear(p: Probe, count: int) -> None:
    p.threads = THREADS
    words = p.shared("words", (1024,), p.integers(1, 99, 1024), dtype="int32", out=True)
    p.call(words, p.dim("first", 64), count)


def _bitmap(p: Probe, title: str, words: int, out: bool = False, density: int = 2) -> Any:
    value = p.integers(-(2**31), 2**31 - 1, WARPS * words)
    for _ in range(density - 2):
        value = value & p.integers(-(2**31), 2**31 - 1, WARPS * words)
    return p.shared(title, (WARPS * words,), value, dtype="int32", out=out)


def _first(words: int) -> Callable[[Any], Any]:
    return lambda m: m.warp * words


@case(row.page_row, page_size=(0, 48))
def page_row(p: Probe, page_size: int) -> None:
    p.call(
        p.var("inverse", None, dtype="uint32", out=True),
        p.var("line", None, out=True),
        p.dim("row", 7),
        p.dim("next_n", 3),
        p.dim("page_size", page_size),
    )


def _table(p: Probe, page_size: int, pages: int = 40) -> tuple[Any, ...]:
    """block_table, line, page_size, inverse."""
    return (
        spread(p, "block_table", p.integers(0, 5000, 3, pages), gap=3),
        p.dim("line", 2),
        p.dim("page_size", page_size),
        p.var("inverse", ALL // page_size if page_size else 0, dtype="uint32"),
    )


@case(row.take_all, page_size=(0, 48))
def take_all(p: Probe, page_size: int) -> None:
    p.threads = THREADS
    p.call(
        spread(p, "indices", torch.full((2, 600), -77, dtype=torch.int32), out=True, gap=5),
        p.dim("row", 1),
        p.dim("k", 600),
        p.dim("length", 411),
        p.dim("first", 0 if page_size else 70),
        p.dim("rank", 1),
        2,
        *_table(p, page_size),
    )


@case(row.fetch_pages, page_size=(0, 8, 48))
def fetch_pages(p: Probe, page_size: int) -> None:
    p.threads = THREADS
    p.call(
        p.var("first_page", None, out=True),
        p.var("entry", None, out=True, each="thread"),
        p.dim("first", 256),
        p.dim("columns", 1024),
        p.dim("start", 64),
        p.dim("last", 1500),
        *_table(p, page_size, pages=200),
    )


@case(row.make_keys, paired=(True, False))
def make_keys(p: Probe, paired: bool) -> None:
    p.threads = THREADS
    digits = _keys(p, "digits", None, KEEP // 2) if paired else None
    p.call(_keys(p, "bits", _bits_of(p, THREADS, KEEP)), digits, _column(p), *_bounds(p))


@case(row.stash_keys, back=(False, True))
def stash_keys(p: Probe, back: bool) -> None:
    p.threads = THREADS
    count = THREADS * KEEP
    stash = p.shared(
        "stash", (2 * count,), p.integers(-(2**31), 2**31 - 1, 2 * count), dtype="int32", out=not back
    )
    bits = _keys(p, "bits", None if back else _bits_of(p, THREADS, KEEP), out=back)
    p.call(bits, stash, p.dim("number", 1), back)


def _hist(p: Probe, out: bool = True, **kind: Any) -> Any:
    return p.shared("hist", (2 * row.BINS,), p.integers(0, 9, 2 * row.BINS), dtype="int32", out=out, **kind)


def _some_keys(p: Probe, *shape: int) -> torch.Tensor:
    """Keys close together: some above a range, some within it and some below."""
    return (1 << 31) + p.integers(0, 1 << 20, *shape, dtype=torch.int64)


END, SPAN = (1 << 31) + (3 << 18), (1 << 18) + 12345


def _range(p: Probe, end: int = END, span: int = SPAN, out: bool = False) -> tuple[Any, Any]:
    return p.var("end", end, dtype="uint32", out=out), p.var("span", span, dtype="uint32", out=out)


@case(row.count_first)
def count_first(p: Probe) -> None:
    p.threads = THREADS
    digits = p.integers(0, 1 << 32, THREADS, KEEP // 2, dtype=torch.int64)
    p.call(_hist(p), _keys(p, "digits", digits, KEEP // 2, out=False), _column(p), *_bounds(p))


@case(row.load_few, dtype=SCORES)
def load_few(p: Probe, dtype: torch.dtype) -> None:
    logits = spread(p, "logits", p.normal(2, 900).to(dtype), gap=7)
    p.call(
        p.var("few", None, dtype="uint32", out=True, each="thread"),
        logits,
        p.dim("row", 1),
        p.dim("stride", 900),
    )


@case(row.guess_digits, apart=(0.0, 1e-3, 1.0))
def guess_digits(p: Probe, apart: float) -> None:
    scores = 1.0 + apart * p.normal(32)
    few = p.var("few", scores.view(torch.int32).long() & ALL, dtype="uint32", each="lane")
    p.call(p.var("near", None, dtype="uint32", out=True), p.var("grain", None, dtype="uint32", out=True), few)


@case(row.count_near, near=(END, 1 << 19))
def count_near(p: Probe, near: int) -> None:
    p.threads = THREADS
    keys = _some_keys(p, THREADS, KEEP)
    keys[::5, 3] = 0
    top, grain = p.var("near", near, dtype="uint32"), p.var("grain", 4, dtype="uint32")
    p.call(_hist(p), _keys(p, "bits", keys, out=False), top, grain, _column(p), *_bounds(p))


@case(row.count_keys, span=(SPAN, 1000))
def count_keys(p: Probe, span: int) -> None:
    p.threads = THREADS
    keys = _keys(p, "bits", _some_keys(p, THREADS, KEEP), out=False)
    p.call(_hist(p), p.dim("first", row.BINS), keys, *_range(p, END, span))


def _entries(p: Probe, count: int, warps: int, words: int) -> torch.Tensor:
    """List entries, a key above the complement of a position, from the warps 0 to `warps`."""
    place = p.integers(0, warps, count) << lists.OFFSET_BITS | p.integers(0, 32 * words, count)
    place = torch.unique(place)[torch.randperm(len(torch.unique(place)), generator=p.generator)]
    keys = _some_keys(p, len(place)) // 1000 * 1000
    entries = torch.zeros(count, dtype=torch.int64)
    entries[: len(place)] = keys << 32 | ~place.long() & ALL
    return entries


@case(row.count_listed)
def count_listed(p: Probe) -> None:
    p.threads = THREADS
    entries = p.shared("entries", (512,), _entries(p, 512, 8, 20), dtype="int64")
    p.call(_hist(p), p.dim("first", 0), entries, p.dim("total", 300), *_range(p))


@case(rounds.bound_listed)
def bound_listed(p: Probe) -> None:
    p.threads = THREADS
    entries = p.shared("entries", (512,), _entries(p, 512, 8, 20), dtype="int64")
    p.call(entries, p.dim("total", 300), _counters(p, [300, 0, 0, 0]), *_range(p))


@case(rounds.read_bounded, lower=(END - 1000, END - 2 * SPAN))
def read_bounded(p: Probe, lower: int) -> None:
    bounds = [END - 10 - (1 << 32), ~lower & ALL]
    counters = torch.tensor([300, 0, 0, 0, 0, *bounds, 0], dtype=torch.int64).to(torch.int32)
    p.call(*_range(p, out=True), p.shared("counters", (8,), counters, dtype="int32"))


@case(lists.key_entries, total=(1, 300))
def key_entries(p: Probe, total: int) -> None:
    p.threads = THREADS
    drawn = _bits_of(p, 512) << 32 | p.integers(0, 1 << 31, 512, dtype=torch.int64)
    entries = p.shared("entries", (512,), drawn, dtype="int64", out=True)
    p.call(entries, p.dim("total", total), _counters(p, [total, 0, 0, 0]))


def _mine(p: Probe, threads: int, value: torch.Tensor | None, **kind: Any) -> Any:
    each = row.BINS // threads
    return p.registers(
        "mine", (threads, each), value, dtype="int32", places=straight(threads, each), private=True, **kind
    )


@case(rounds.sum_bins)
def sum_bins(p: Probe) -> None:
    p.threads = 512
    sums = p.shared("sums", (32,), p.integers(0, 9, 32), dtype="int32", out=True)
    through = p.var("through", None, out=True, each="thread")
    p.call(_mine(p, 512, None), through, _hist(p, False), p.dim("first", row.BINS), sums)  # fmt: skip


def _state(p: Probe, out: bool) -> Any:
    return p.shared("state", (8,), p.integers(-(2**31), 2**31 - 1, 8), dtype="int32", out=out)


@case(rounds.pick_bin, half=(True, False), need=(1, 4000))
def pick_bin(p: Probe, half: bool, need: int) -> None:
    p.threads = 512
    mine = p.integers(0, 6, 512, 4)
    # The key after 4000 keys is the last one of its bin, and the very first key has a bin of its own.
    mine[0, 0] = 1
    through = mine.sum(dim=1).view(-1, 32).cumsum(dim=1)
    sums = torch.zeros(32, dtype=torch.int32)
    sums[:16] = through[:, -1].int()
    p.call(
        _state(p, True),
        _mine(p, 512, mine, out=False),
        p.var("through", through.view(-1), each="thread"),
        p.shared("sums", (32,), sums, dtype="int32"),
        p.dim("need", need),
        *_range(p, END, (1 << 29) - 12345),
        half,
    )


def _results(p: Probe, *more: str) -> list[Any]:
    unsigned = [p.var(title, None, dtype="uint32", out=True) for title in ("end", "span")]
    return unsigned + [p.var(title, None, out=True) for title in ("need", "inside", *more)]


@case(rounds.read_state)
def read_state(p: Probe) -> None:
    p.call(*_results(p), _state(p, False))


@case(rounds.send_sums, group=(2, 4))
def send_sums(p: Probe, group: int) -> None:
    p.threads, p.cluster = THREADS, group
    hist = [p.integers(0, 9, 2 * row.BINS) for _ in range(group)]
    coarse = p.shared(
        "coarse",
        (2 * group * row.COARSE,),
        p.integers(0, 9, 2 * group * row.COARSE),
        dtype="int32",
        out=True,
        cluster=True,
    )
    held = p.shared("hist", (2 * row.BINS,), hist, dtype="int32")
    at, first = p.dim("at", group * row.COARSE), p.dim("first", row.BINS)
    p.call(coarse, at, held, first, group, p.rank, WARPS)


@case(rounds.pick_bin_of_group, half=(True, False), need=(1, 4000, 9001), near=(0, END, 1 << 13))
def pick_bin_of_group(p: Probe, half: bool, need: int, near: int) -> None:
    p.threads, p.cluster = 64, 4
    hist = torch.stack([p.integers(0, 6, 2 * row.BINS) for _ in range(4)])
    # One key at the top, in the second CTA.
    hist[:, row.BINS] = torch.tensor([0, 1, 0, 0])
    coarse = torch.zeros(256, dtype=torch.int32)
    coarse[128:] = hist[:, row.BINS :].view(4, row.COARSE, -1).sum(dim=2).flatten().int()
    p.call(
        _state(p, True),
        p.shared("hist", (2 * row.BINS,), list(hist), dtype="int32", cluster=True),
        p.dim("bins", row.BINS),
        p.shared("coarse", (256,), coarse, dtype="int32"),
        p.dim("at", 128),
        p.dim("need", need),
        p.dim("lower", 100),
        *_range(p, END, (1 << 29) - 12345),
        half,
        p.var("near", near, dtype="uint32"),
        p.var("grain", 3, dtype="uint32"),
        4,
        p.rank,
    )


def _counters(p: Probe, value: list[int], out: bool = True) -> Any:
    tensors = [
        torch.tensor([*x, 0, 0, 0, 0], dtype=torch.int32)
        for x in (value if isinstance(value[0], list) else [value])
    ]
    return p.shared("counters", (8,), tensors if len(tensors) > 1 else tensors[0], dtype="int32", out=out)


@case(lists.collect, listing=(True, False))
def collect(p: Probe, listing: bool) -> None:
    p.threads = THREADS
    words = 2 * KEEP
    p.call(
        _keys(p, "bits", _some_keys(p, THREADS, KEEP), out=False),
        _bitmap(p, "above", words, out=True),
        _bitmap(p, "equal", words, out=True),
        lambda m: (m.warp * 2 + 1) * KEEP,
        _counters(p, [3, 0, 0, 0]),
        p.shared("entries", (2048,), torch.zeros(2048, dtype=torch.int64), dtype="int64", out=True,
                 ordered=False),
        p.dim("first", 100),
        *_range(p),
        p.var("listing", listing, dtype="bool"),
        lambda m: m.warp + 8,
        p.dim("offset", 512),
    )  # fmt: skip


@case(row.keep_entry)
def keep_entry(p: Probe) -> None:
    p.threads = THREADS
    entry = p.var("entry", p.integers(0, 99, THREADS), each="thread")
    p.call(p.shared("pages", (THREADS,), dtype="int32", out=True), entry)


@case(lists.send_entries)
def send_entries(p: Probe) -> None:
    p.threads, p.cluster = THREADS, 2
    # Each CTA has its own part of the list, after the other's.
    held = [p.integers(0, 1 << 62, 256, dtype=torch.int64) for _ in range(2)]
    entries = p.shared("entries", (256,), held, dtype="int64", out=True, cluster=True)
    counters = _counters(p, [[70, 0, 0, 0], [101, 0, 0, 0]])
    own = lambda m: m.buffer("entries")  # noqa: E731
    p.call(entries, own, lambda m: m.block(1) * 70, counters, 2, p.rank, WARPS)


def _lists_of_four(p: Probe) -> tuple[Any, Any]:
    """The lists of four CTAs, one of them empty; their lengths, and how many ties each CTA has marked."""
    p.threads, p.cluster = THREADS, 4
    held = [p.integers(0, 1 << 62, 600, dtype=torch.int64) for _ in range(4)]
    entries = p.shared("entries", (600,), held, dtype="int64", out=True, cluster=True)
    counted = [torch.tensor([n, 7 * n + 1, 0, 0], dtype=torch.int32) for n in (70, 0, 201, 150)]
    return entries, p.shared("counters", (4,), counted, dtype="int32", cluster=True)


@case(lists.share_lists, room=(421, 420))
def share_lists(p: Probe, room: int) -> None:
    """Four lists with 421 entries in all: if there is less room, none is shared."""
    entries, counts = _lists_of_four(p)
    own = lambda m: m.buffer("entries")  # noqa: E731
    p.call(p.var("total", None, out=True), own, entries, counts, room, 4, p.rank, WARPS)


@case(lists.count_ties)
def count_ties(p: Probe) -> None:
    _, counts = _lists_of_four(p)
    p.call(p.var("found", None, out=True), p.var("within", None, out=True), counts, 4, p.rank)


@case(lists.sift, inside=(0, 50, 300))
def sift(p: Probe, inside: int) -> None:
    p.threads = THREADS
    words = 20
    listed = torch.zeros(1024, dtype=torch.int64)
    listed[:512] = _entries(p, 512, 12, words)
    p.call(
        p.shared("entries", (1024,), listed, dtype="int64", out=True, ordered=False),
        p.dim("total", 400),
        512,
        _bitmap(p, "above", words, out=True),
        _bitmap(p, "equal", words, out=True),
        _counters(p, [400, 0, 2, 3]),
        *_range(p),
        p.dim("inside", inside),
        64,
        p.dim("rank", 1),
        WARPS,
        p.dim("words", words),
    )


@case(lists.rank_entries, count=(20, 64), higher=(None, 0, 1))
def rank_entries(p: Probe, count: int, higher: int | None) -> None:
    p.threads = THREADS
    words = 20
    p.call(
        p.shared("entries", (512,), _entries(p, 512, 12, words), dtype="int64"),
        p.dim("first", 100),
        p.dim("count", count),
        p.dim("need", 17),
        _bitmap(p, "above", words, out=True),
        _counters(p, [400, 0, 2, 3]),
        p.dim("rank", 1),
        WARPS,
        p.dim("words", words),
        None if higher is None else p.dim("ties_higher", higher),
    )


@case(lists.count_marks, words=(16, 40))
def count_marks(p: Probe, words: int) -> None:
    p.threads = THREADS
    before = p.var("before", None, out=True, each="thread")
    sums = p.shared("sums", (32,), p.integers(0, 9, 32), dtype="int32", out=True)
    p.call(before, _bitmap(p, "bitmap", words), sums, _first(words), p.dim("words", words))


def _counted(p: Probe, title: str, words: int) -> tuple[Any, Any, Any]:
    """A bitmap, the marks before each lane, which has consecutive words, and the marks of each warp."""
    bitmap, each = p.integers(-(2**31), 2**31 - 1, WARPS * words), -(-words // 32)
    marks = torch.zeros(WARPS, 32 * each, dtype=torch.int64)
    marks[:, :words] = (bitmap[:, None] >> torch.arange(32) & 1).sum(dim=1).view(WARPS, words)
    lanes, sums = marks.view(WARPS, 32, each).sum(dim=2), torch.full((32,), 7, dtype=torch.int32)
    sums[:WARPS] = lanes.sum(dim=1).int()
    return (
        p.shared(title, (WARPS * words,), bitmap, dtype="int32"),
        p.var("before", (lanes.cumsum(dim=1) - lanes).flatten(), each="thread"),
        p.shared("sums", (32,), sums, dtype="int32"),
    )


@case(lists.take_ties, words=(20, 40), take=(30, 600))
def take_ties(p: Probe, words: int, take: int) -> None:
    p.threads = THREADS
    equal, before, sums = _counted(p, "equal", words)
    above = _bitmap(p, "above", words, out=True)
    p.call(before, above, equal, sums, p.dim("take", take), _first(words), p.dim("words", words))


@case(lists.take_last_ties, words=(20, 40), take=(30, 600))
def take_last_ties(p: Probe, words: int, take: int) -> None:
    p.threads = THREADS
    equal, before, sums = _counted(p, "equal", words)
    above = _bitmap(p, "above", words, out=True)
    p.call(
        before, above, equal, sums, p.dim("take", take), p.dim("rest", 700), _first(words),
        p.dim("words", words)
    )  # fmt: skip


def _pages(p: Probe, near: bool) -> tuple[Any, ...]:
    return (
        p.shared("pages", (THREADS,), p.integers(0, 5000, THREADS), dtype="int32"),
        p.dim("first_page", 2 if near else -1),
    )


def _ids_out(p: Probe, k: int) -> tuple[Any, ...]:
    indices = torch.full((2, k), -77, dtype=torch.int32)
    return spread(p, "indices", indices, out=True, gap=5), p.dim("row", 1), p.dim("k", k)


EVERY = 16


@case(row.load_sample, dtype=SCORES)
def load_sample(p: Probe, dtype: torch.dtype) -> None:
    p.threads = THREADS
    # The last words of the sample are past the row's columns.
    logits = spread(p, "logits", p.normal(2, 9004).to(dtype), gap=3)
    p.call(
        _keys(p, "bits", None), logits, p.dim("row", 1), p.dim("start", 700), p.dim("last", 8555), EVERY,
        WARPS,
    )  # fmt: skip


BOTTOMS = (0, 0x007FFFFF, 0x7FFFFFFF, 1 << 31, (1 << 31) + 12345, 0xFF800000, ALL - 5)


def _bits_key(score: float) -> int:
    """The key of a score."""
    bits = int(torch.tensor(score).view(torch.int32)) & ALL
    return bits ^ (1 << 31) if bits < 1 << 31 else bits ^ ALL


@case(lists.list_row, past=(0, 1, 2, 3), score=(0.0, -3.5, INF), room=(4000, 60))
def list_row(p: Probe, past: int, score: float, room: int) -> None:
    """The second row begins `past` elements after 16 bytes; the columns to list end within its last few."""
    p.threads = THREADS
    # What a warp has listed before it stops for lack of room is only predictable for a single batch.
    batches = 3 if room > 800 else 1
    # Some batches begin before the row's columns or end after them, the last ones past the row.
    stride = batches * BATCH * WARPS - 300 + past // 2
    scores = _bits_of(p, 2, stride)
    floats = (scores - (scores >> 31 << 32)).to(torch.int32).view(torch.float32)
    logits = spread(p, "logits", floats, gap=(past - stride) % 4)
    p.call(
        _keys(p, "keys", None, out=False),
        _keys(p, "ahead", None, out=False),
        logits,
        p.dim("row", 1),
        p.dim("stride", stride),
        p.shared("entries", (4096,), torch.zeros(4096, dtype=torch.int64), dtype="int64", out=room > 800,
                 ordered=False),
        _counters(p, [3, 0, 0, 0]),
        p.var("bottom", _bits_key(score), dtype="uint32"),
        p.dim("origin", 32),
        p.dim("start", 37 if past == 0 else 33),
        p.dim("last", stride - 70 if past == 0 else stride - 1),
        p.dim("batches", batches),
        room,
        p.dim("owner", 2 * WARPS),
        WARPS,
    )  # fmt: skip


@case(lists.mark_equal)
def mark_equal(p: Probe) -> None:
    p.threads = THREADS
    keys = (1 << 31) + p.integers(0, 3, THREADS, KEEP, dtype=torch.int64)
    tied = p.var("tied", (1 << 31) + 1, dtype="uint32")
    p.call(
        _keys(p, "bits", keys, out=False),
        _bitmap(p, "equal", 2 * KEEP, out=True),
        lambda m: (m.warp * 2 + 1) * KEEP,
        _counters(p, [3, 70, 0, 0]),
        tied,
    )


@case(lists.place_marks, words=(16, 40), dense=(True, False, 0))
def place_marks(p: Probe, words: int, dense: bool | int) -> None:
    p.threads = THREADS
    above, before, sums = _counted(p, "above", words)
    p.call(
        p.shared("placed", (4096,), torch.full((4096,), -77, dtype=torch.int32), dtype="int32", out=True),
        before,
        sums,
        above,
        _first(words),
        p.dim("words", words),
        lambda m: m.warp * (32 * words) + 5,
        # With more words than lanes, none is dense.
        p.var("dense", dense and words <= 32, dtype="bool") if isinstance(dense, bool) else 0,
        KEEP,
    )


@case(lists.write_ids, pages=("none", "far", "near"), group=(1, 4))
def write_ids(p: Probe, pages: str, group: int) -> None:
    p.threads = THREADS
    p.call(
        *_ids_out(p, 600),
        p.dim("skip", 17 if group > 1 else 0),
        p.shared("sums", (32,), p.integers(100, 140, 32), dtype="int32"),
        p.shared("placed", (1024,), p.integers(128, 90 * 64, 1024), dtype="int32"),
        *_table(p, 0 if pages == "none" else 64, pages=100),
        *_pages(p, pages == "near"),
        group,
        WARPS,
    )


def _chosen(p: Probe, group: int) -> tuple[Any, ...]:
    return (
        p.dim("skip", 17 if group > 1 else 0),
        p.shared("sums", (32,), p.integers(100, 140, 32), dtype="int32"),
        p.shared("placed", (1024,), p.integers(128, 700, 1024), dtype="int32"),
    )


@case(lists.write_positions, group=(1, 4))
def write_positions(p: Probe, group: int) -> None:
    p.threads = THREADS
    p.call(*_ids_out(p, 600), *_chosen(p, group), group, WARPS)


def _values_out(p: Probe, dtype: torch.dtype) -> tuple[Any, ...]:
    return (
        spread(p, "values", torch.full((2, 900), -77.0).to(dtype), out=True, gap=5),
        spread(p, "logits", p.normal(2, 900).to(dtype), gap=7),
        p.dim("row", 1),
        p.dim("k", 600),
    )


@case(lists.write_values, dtype=SCORES, group=(1, 4))
def write_values(p: Probe, dtype: torch.dtype, group: int) -> None:
    p.threads = THREADS
    p.call(*_values_out(p, dtype), *_chosen(p, group), p.dim("first", -100), group, WARPS)


@case(row.keep_row)
def keep_row(p: Probe) -> None:
    p.threads = THREADS
    state = p.shared("state", (8,), p.integers(0, 9, 8), dtype="int32", out=True)
    p.call(state, p.dim("line", 70), p.dim("shift", -41))


@case(row.copy_all, dtype=SCORES)
def copy_all(p: Probe, dtype: torch.dtype) -> None:
    p.threads = THREADS
    p.call(*_values_out(p, dtype), p.dim("start", 70), p.dim("last", 481), p.dim("rank", 1), 2)
