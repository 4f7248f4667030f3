"""Exact top-k as a tile program: a radix select over ordered 32-bit keys, one cluster of CTAs a row.

Each CTA histograms one digit of the keys that still match the decided prefix, in shared memory; the CTAs of a row
read each other's counts and agree on the digit that holds the k-th largest key. After at most three digits the key is
exact to its last bit, whatever the distribution; ties go to the lower position. As soon as few keys are undecided,
one pass lists them and marks the columns above them, and the remaining digits are counted over the list. Every CTA
then writes its own share in ascending position, at an offset that follows from the counts of lower ranks: no atomics
on the output, the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from .. import problems
from ..arch import ArchSpec
from ..tile.lang import Body, Buffer, Counts, Guard, Knob, Role, Schedule, Space, TileProgram
from ..tile.machine import DEVICE, Machine

MAX_K = 2048
TILE = 128
COARSE = 64
KEY_BITS = 32
# Widths of the three digits by the knob's value; the rest of the key is the third digit.
DIGITS = {12: (12, 12, 8), 11: (11, 11, 10)}
# The other way: the first digit is the leading bits of the score as fp16, the next ones split what one bin spans.
HALF = "half"
HALF_BITS = 11
HALF_COARSE = 32
# A row of up to so many scores for each one selected writes its bitmaps a word at a time, a longer one a mark at a time.
DENSE = 8
# The histogram buffer starts with the coarse sums of every round.
BINS = 3 * COARSE
# Undecided keys that go to the list of a CTA, and those that one CTA ranks without another round.
LISTED = 2048
RANKED = 64
# Columns that a CTA can mark in its bitmaps: a cluster of 16 serves rows of a million.
SPAN = 73728
HALF_SPAN = 81920

KNOBS = (
    Knob("group", "g", ((1, 2, 4, 8, 16),), "CTAs a row, one cluster"),
    Knob("threads", "t", ((1024, 512), (), (256,)), "threads a CTA"),
    Knob(
        "keep",
        "r",
        ((4, 8, 16), (32,)),
        "keys a thread keeps in registers; longer rows are read again in every pass",
    ),
    Knob(
        "digit",
        "d",
        ((11, 12, HALF),),
        "bits of the first two digits, or a first digit from the score as fp16",
    ),
    Knob("resident", "c", ((1, 2),), "CTAs an SM holds at once"),
)
# (group, threads, keep, digit, resident) of the committed set: short rows, a few long rows, many rows.
COMMITTED = {
    "tilelang": (
        (1, 1024, 4, 11, 1),
        (8, 1024, 4, 12, 1),
        (4, 1024, 8, 12, 1),
        (16, 1024, 8, 12, 1),
        (2, 1024, 16, 12, 1),
        (2, 1024, 8, 12, 2),
        (1, 1024, 8, 12, 2),
    ),
    "cutedsl": (
        (1, 512, 8, HALF, 1),
        (8, 512, 8, HALF, 1),
        (16, 512, 16, HALF, 1),
        (4, 1024, 16, HALF, 1),
        (2, 1024, 16, HALF, 1),
        (1, 512, 16, HALF, 2),
    ),
}


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return _half_digits(k) if k.digit == HALF else _key_digits(k)


def _stashed(k: SimpleNamespace) -> int:
    """Batches of keys that stay in shared memory between the passes: where one CTA has an SM for a long share."""
    return 2 if k.digit == HALF and k.threads * k.keep == 16384 and k.resident == 1 and k.group <= 4 else 0


def _half_digits(k: SimpleNamespace) -> Schedule:
    warps = k.threads // 32
    words = HALF_SPAN // 32
    shared = Space.SHARED
    stashed = _stashed(k)
    stash = Buffer(
        "stash",
        shared,
        (stashed * k.threads * k.keep,),
        "int32",
        doc="keys of a row's first batches, between the passes",
    )
    coarse = Buffer(
        "coarse", shared, (2 * k.group * HALF_COARSE,), "int32", doc="coarse sums of all CTAs, by round"
    )
    return Schedule(
        roles=(Role("select", warps, doc="every warp owns a run of words of 32 columns"),),
        buffers=(
            Buffer(
                "hist", shared, (2 << HALF_BITS,), "int32", doc="the bins of a round, of even and odd rounds"
            ),
            Buffer(
                "entries",
                shared,
                (LISTED + RANKED,),
                "int64",
                doc="undecided keys of the row with their positions",
            ),
            Buffer("above", shared, (words,), "int32", doc="a bit a column: above the threshold"),
            Buffer("equal", shared, (words,), "int32", doc="a bit a column: equal to the threshold"),
            *((coarse,) if k.group > 1 else ()),
            *((stash,) if stashed else ()),
            Buffer(
                "pages",
                shared,
                (k.threads,),
                "int32",
                doc="the first entries of this CTA's part of the page table",
            ),
            Buffer("sums", shared, (32,), "int32", doc="of each warp, within a scan"),
            Buffer("counts", shared, (32,), "int32", doc="selected columns of each warp"),
            Buffer("state", shared, (8,), "int32", doc="what a round found, for all threads"),
            Buffer("counters", shared, (8,), "int32"),
            Buffer("keys", Space.REGISTER, (k.threads, k.keep), "uint32", role="select"),
        ),
        pipelines=(),
        mmas=(),
        grid=("rows", str(k.group)),
        cluster=(1, k.group, 1),
        group=(1,) if k.group > 1 else (),
        constants={
            "listed": LISTED,
            "ranked": RANKED,
            "coarse": HALF_COARSE,
            "stashed": stashed,
            "dense": DENSE,
        },
        ctas_per_sm=k.resident,
    )


def _key_digits(k: SimpleNamespace) -> Schedule:
    digits = DIGITS[k.digit]
    warps = k.threads // 32
    shared = Space.SHARED
    return Schedule(
        roles=(Role("select", warps, doc="every warp owns a run of 128-column tiles"),),
        buffers=(
            Buffer(
                "hist",
                shared,
                (BINS + sum(1 << bits for bits in digits),),
                "int32",
                doc="64 coarse sums a digit, then the bins of each digit",
            ),
            Buffer("list_keys", shared, (LISTED,), "uint32", doc="undecided keys of this CTA, in any order"),
            Buffer("list_columns", shared, (LISTED,), "int32"),
            Buffer("above", shared, (SPAN // 8,), "uint8", doc="a bit a column: above the threshold"),
            Buffer("equal", shared, (SPAN // 8,), "uint8", doc="a bit a column: equal to the threshold"),
            Buffer("chosen", shared, (MAX_K,), "int32", doc="selected positions of this CTA, ascending"),
            Buffer("decided", shared, (5,), "int32", doc="what a round found, for all threads"),
            Buffer("listed", shared, (1,), "int32"),
            Buffer("warp_sums", shared, (warps,), "int32"),
            Buffer("keys", Space.REGISTER, (k.threads, k.keep), "uint32", role="select"),
        ),
        pipelines=(),
        mmas=(),
        grid=("rows", str(k.group)),
        cluster=(1, k.group, 1),
        group=(1,) if k.group > 1 else (),
        constants={"digits": digits, "coarse": COARSE, "bins": BINS, "rank": RANKED},
        ctas_per_sm=k.resident,
    )


def order_key(x: torch.Tensor) -> torch.Tensor:
    """Unsigned keys (as int64) in the order of the floats: -0 equals +0, NaN above +inf."""
    bits = (x + 0.0).view(torch.int32).long() & 0xFFFFFFFF
    key = torch.where(bits >= 1 << 31, bits ^ 0xFFFFFFFF, bits ^ (1 << 31))
    return torch.where(x.isnan(), 0xFFFFFFFF, key)


def _map(m: Machine, row: int, positions: torch.Tensor) -> torch.Tensor:
    page = m.dim("page_size")
    if page == 0:
        return positions
    table = m.operand("block_table")[row // max(1, m.dim("next_n"))]
    return table[positions // page].long() * page + positions % page


def _take_all(m: Machine, row: int, rank: int, length: int) -> None:
    """A row with at most k scores: slot j is position j; ranks share the slots in blocks of one per thread."""
    slots = m.arange(m.dim("k"))
    mine = (slots // m.k.threads) % m.k.group == rank
    out = m.operand("indices")[row]
    inside = slots < length
    ids = torch.where(inside, _map(m, row, torch.where(inside, slots, 0)) if length > 0 else slots, -1)
    m.store(out, torch.where(mine, ids, out.long()))


def _settle(m: Machine, counts: torch.Tensor, need: int, rank: int) -> tuple[int, int, int, int, int]:
    """The bin (from the top) that holds the need-th key, given counts [ranks, bins].

    Returns the bin, what it must still give, how many it holds, and the lower ranks' keys above and inside it.
    """
    total = counts.sum(dim=0)
    above = total.flip(0).cumsum(0).flip(0) - total
    bin_ = m.number(((above < need) & (need <= above + total)).long().argmax())
    return (
        bin_,
        need - m.number(above[bin_]),
        m.number(total[bin_], need + 1),
        m.number(counts[:rank, bin_ + 1 :].sum()),
        m.number(counts[:rank, bin_].sum()),
    )


def _select_key_digits(m: Machine) -> Generator[Any, None, None]:
    row, rank = m.block
    stride, k = m.dim("stride"), m.dim("k")
    start = max(0, m.read("row_starts", (row,), 0))
    end = min(stride, m.read("row_ends", (row,), "max_len"))
    length = end - start
    if length <= k:
        _take_all(m, row, rank, max(0, length))
        return
    warps = m.k.threads // 32
    origin = start // 32 * 32
    tiles = -(-(end - origin) // TILE)
    run = -(-tiles // (m.k.group * warps))
    first = min(stride, origin + rank * warps * run * TILE)
    last = min(stride, first + warps * run * TILE)
    scores = m.zeros(last - first)
    m.load(scores, m.operand("logits")[row, first:last])
    columns = m.arange(last - first) + first
    valid = (columns >= start) & (columns < end)
    keys = torch.where(valid, order_key(scores), 0)
    hist = m.buffer("hist")

    prefix, need, inside = 0, k, -1
    above_low, inside_low = 0, 0
    base, low = BINS, KEY_BITS
    for number, bits in enumerate(DIGITS[m.k.digit]):
        if need == inside:
            break
        low -= bits
        bins, fine = 1 << bits, (1 << bits) // COARSE
        match = valid & (keys >> (low + bits) == prefix)
        counts = m.histogram((keys >> low) & (bins - 1), match, bins)
        hist[base : base + bins] = counts
        hist[number * COARSE : (number + 1) * COARSE] = counts.view(COARSE, fine).sum(dim=1)
        yield from m.group_sync()
        sums = m.group_buffer("hist")[:, number * COARSE : (number + 1) * COARSE]
        c, need, _, low_above, _ = _settle(m, sums, need, rank)
        above_low += low_above
        counts = m.group_buffer("hist")[:, base + c * fine : base + (c + 1) * fine]
        f, need, inside, low_above, inside_low = _settle(m, counts, need, rank)
        above_low += low_above
        prefix = prefix << bits | (c * fine + f)
        base += bins
    above = valid & (keys >> low > prefix)
    equal = valid & (keys >> low == prefix)
    lower_ties = min(inside_low, need)
    taken = equal & (equal.cumsum(0) <= need - lower_ties)
    skip = above_low + lower_ties
    chosen = m.buffer("chosen")
    count = m.compact(chosen, 0, columns - start, above | taken)
    m.store(m.operand("indices")[row, skip : skip + count], _map(m, row, chosen[:count].long()))
    yield from m.group_sync()


def half_digit(x: torch.Tensor) -> torch.Tensor:
    """First digit of the floats, 0 the largest: the leading bits of the score rounded towards zero to fp16."""
    near = (x + 0.0).half()
    bits = near.view(torch.int16).long() & 0x7FFF
    bits = torch.where(near.float().abs() > x.abs(), bits - 1, bits)
    bits = torch.where(x.isnan(), 0x7FFF, bits)
    order = torch.where((x < 0) & ~x.isnan(), 0x7FFF - bits, bits + 0x8000)
    return (0xFFFF - order) >> (16 - HALF_BITS)


def half_edge(bin_: int) -> int:
    """Smallest key of a bin of the first round, counted from the smallest score."""
    middle = 1 << (HALF_BITS - 1)
    magnitude = torch.tensor(abs(bin_ - middle) << (16 - HALF_BITS), dtype=torch.int32, device=DEVICE)
    magnitude = magnitude.to(torch.int16)
    bits = int(magnitude.view(torch.float16).float().view(torch.int32))
    return (1 << 31) + (bits if bin_ >= middle else -bits)


def _select_half_digits(m: Machine) -> Generator[Any, None, None]:
    row, rank = m.block
    stride, k = m.dim("stride"), m.dim("k")
    start = max(0, m.read("row_starts", (row,), 0))
    end = min(stride, m.read("row_ends", (row,), "max_len"))
    if end - start <= k:
        _take_all(m, row, rank, max(0, end - start))
        return
    warps = m.k.threads // 32
    origin, run = 0, m.k.keep
    if stride > m.k.group * m.k.threads * m.k.keep:
        origin = start // 32 * 32
        run = -(-(end - origin) // (32 * m.k.group * warps))
    first = min(stride, origin + rank * warps * run * 32)
    last = min(stride, first + warps * run * 32)
    scores = m.zeros(last - first)
    m.load(scores, m.operand("logits")[row, first:last])
    columns = m.arange(last - first) + first
    valid = (columns >= start) & (columns < end)
    keys = torch.where(valid, order_key(scores), 0)
    bins = 1 << HALF_BITS
    digits, match = half_digit(scores), valid
    top, span = (1 << 32) - 1, (1 << 32) - 1
    need, above_low = k, 0
    # The fp16 image spans up to 31 bits of a key, so at most three more digits follow.
    for number in range(4):
        hist = m.buffer("hist")[number % 2 * bins : (number % 2 + 1) * bins]
        hist[:] = m.histogram(digits, match, bins)
        yield from m.group_sync()
        counts = m.group_buffer("hist")[:, number % 2 * bins : (number % 2 + 1) * bins]
        digit, need, inside, low_above, low_in = _settle(m, counts.flip(1), need, rank)
        digit, above_low = bins - 1 - digit, above_low + low_above
        if number == 0:
            begin = half_edge(bins - 1 - digit)
            top = half_edge(bins - digit) - 1 if digit else top
            span = top - begin
        else:
            shift = max(0, span.bit_length() - HALF_BITS)
            span = min(span - (digit << shift), (1 << shift) - 1)
            top -= digit << shift
        if m.taken(need == inside or span == 0):
            break
        shift = max(0, span.bit_length() - HALF_BITS)
        match = valid & (top - keys >= 0) & (top - keys <= span)
        digits = (top - keys).clamp(0, span) >> shift
    above = valid & (keys > top)
    equal = valid & (top - keys >= 0) & (top - keys <= span)
    lower_ties = min(low_in, need)
    taken = equal & (equal.cumsum(0) <= need - lower_ties)
    skip = above_low + lower_ties
    chosen = m.zeros(k, dtype=torch.int64)
    count = m.compact(chosen, 0, columns - start, above | taken)
    m.store(m.operand("indices")[row, skip : skip + count], _map(m, row, chosen[:count]))
    yield from m.group_sync()


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {"select": _select_half_digits if k.digit == HALF else _select_key_digits}


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """A pass over the CTA's share of the row for each digit and one that writes; the group's histograms every round."""
    bounds = 2 * 4
    end, selected = min(dims["stride"], dims["max_len"]), dims["k"]
    if end <= selected:
        return Counts(loaded=bounds, stored=4 * selected)
    if k.digit == HALF:
        # The fp16 image spans up to 31 bits of a key: three digits after the first.
        words, rounds, readings, room = k.keep, 4, 1, selected
        if dims["stride"] > k.group * k.threads * k.keep:
            words = -(-end // (k.group * k.threads))
        share = min(dims["stride"], words * k.threads)
    else:
        # The coarse sums and the bins of a digit are read one after the other.
        rounds, readings, room = len(DIGITS[k.digit]), 2, MAX_K
        tiles, warps = -(-end // TILE), k.threads // 32
        share = min(dims["stride"], -(-tiles // (k.group * warps)) * warps * TILE)
    histograms = rounds * readings * k.group * schedule.buffer("hist").bytes
    return Counts(
        loaded=bounds + 4 * share + histograms,
        stored=4 * min(share, room),
        group_syncs=rounds + 1,
        elements=(rounds + 1) * share,
    )


def _small_k(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return None if call["k"] <= MAX_K else f"k = {call['k']} exceeds {MAX_K}"


def _vector_rows(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return (
        None
        if call["stride"] % 4 == 0
        else f"a row stride of {call['stride']} floats is no multiple of 4 (16-byte loads)"
    )


def _span(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    """Rows start anywhere in a 32-column line, so they may touch one 128-column tile more than their length needs."""
    warps = knobs["group"] * knobs["threads"] // 32
    if knobs["digit"] == HALF:
        words = -(-call["stride"] // 32)
        batches = -(-words // (warps * knobs["keep"]))
        columns = batches * knobs["keep"] * knobs["threads"]
    else:
        columns = -(-(-(-call["stride"] // TILE) + 1) // warps) * (knobs["threads"] // 32) * TILE
    span = HALF_SPAN if knobs["digit"] == HALF else SPAN
    if columns <= span:
        return None
    return f"a row stride of {call['stride']} gives {columns} columns to a CTA; its bitmaps hold {span}"


def overhead(k: SimpleNamespace, dims: Mapping[str, int], arch: ArchSpec) -> float:
    """Microseconds of a wave beside its memory traffic: rounds, instructions on the keys, keys read again.

    The fixed parts and the instructions a key over the two passes are read off one H200.
    """
    half = k.digit == HALF
    share = -(-dims["max_len"] // k.group)
    rounds, instructions = (1.3, 14) if half else (3.0, 20)
    if k.group > 1:
        rounds = (2.2 if half else 5.5) + 0.1 * k.group
    issue = share * k.resident * instructions / 32 / 4 / 1755
    kept = k.threads * k.keep * (1 + _stashed(k))
    again = 0.0 if share <= kept else share * k.resident * 4 / (arch.l2_gbps * 1e3 / arch.sms)
    return rounds + issue + again + 0.02 * k.keep


def useful(k: SimpleNamespace, arch: ArchSpec, level: int, backend: str) -> bool:
    """At level 0 only the combinations that the tuned tables use."""
    if (k.digit == HALF) != (backend == "cutedsl"):
        return False
    return level > 0 or (k.group, k.threads, k.keep, k.digit, k.resident) in COMMITTED[backend]


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Rows, the longest row there can be, and k."""
    return {"rows": dims["rows"], "max_len": dims["stride"], "k": dims["k"]}


PROGRAM = TileProgram(
    op="topk_selector",
    problem=problems.get("topk_selector"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    bucket=bucket,
    counts=counts,
    guards=(Guard("k", _small_k), Guard("stride", _vector_rows), Guard("span", _span)),
    overhead=overhead,
    useful=useful,
)
