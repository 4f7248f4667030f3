"""Texts of selection's leaves: a row's scores as keys, first digits of keys, and pages of the row's table.

A key is an unsigned word, and keys have the order of scores. Every lane of a warp calls a leaf with warp
operations.
"""

from __future__ import annotations

from ....device.torch import scalars, warps
from ....tile.frontend import inline, named, recorded, unrolled
from ....tile.kinds import (
    BFloat16,
    Float16,
    Float32,
    Global,
    Int32,
    Int64,
    LeafRecorder,
    Registers,
    Sets,
    Shared,
    Uint32,
    Writes,
)
from ....tile.lang import Size
from ....tile.leaf_text import by_text
from ....tile.text import maximum, minimum, select

WORD = Size(32, "WORD")
"""Columns of a bitmap word: one per lane."""

BINS = Size(2048, "BINS")
"""Bins of a histogram: eleven bits per digit."""

COARSE = Size(32, "COARSE")
"""Coarse bins of a round in a cluster: one per lane."""


class Counter:
    """Words of the buffer `counters`.

    LISTED counts the entries of the list, KEPT the entries set apart for ranking. LOWER_ABOVE and LOWER_EQUAL
    count
    entries of CTAs of lower rank: above the range, and in it. LARGEST is the largest key of the list, UPPER
    the largest undecided key, UNDER the complement of the smallest undecided key.
    """

    LISTED, KEPT, LOWER_ABOVE, LOWER_EQUAL, LARGEST, UPPER, UNDER = range(7)


class StateWord:
    """Words of the buffer `state`: the result of a round. Only a cluster writes LOWER and WITHIN.

    Options add the row's LINE of the page table, and the SHIFT from columns to positions.
    """

    END, SPAN, NEED, INSIDE, LOWER, WITHIN, LINE, SHIFT = range(8)


QUAD = Size(4, "QUAD")
"""Columns that a lane loads at once."""

LOWEST, INFINITE = 0x00800000, 0xFF800000
"""Keys of the smallest finite score and of infinity."""

MINUS_INFINITY, UINT32 = 0xFF800000, 0xFFFFFFFF
LAST_LANE = Size(31, "LAST_LANE")
SIGN = Size(-(1 << 31), "SIGN")
# The key of a zero.
ZERO = 1 << 31
# A selector of permute_bytes: it fills each half of a word with the sign of that half.
EACH_SIGN = 0xBB99
# First digits from fp16 split keys that are 2**18 apart. Distances split keys within CLOSE better.
CLOSE = Size(1 << 26, "CLOSE")

Scores = Global[Float32] | Global[BFloat16] | Global[Float16]
"""Rows of scores. For every dtype, the bit pattern of a score is that of the same number in fp32."""


@recorded
def _load(m, bits, j, scores, at, column, limit):
    """Load a score into register `j` where its column is below a limit, else 0.

    `_widen` makes it a bit pattern.
    """
    if scores.dtype == "float32":
        bits[j] = scalars.load_below(scores.at(at), column, limit)
    else:
        bits[j] = 0
        if column < limit:
            m.do(scalars.load_piece(bits, j, 1, scores.at(at)))


@recorded
def _widen(m, bits, scores):
    """Turn loaded scores of 16 bits into the bit patterns of the same numbers in fp32."""
    if scores.dtype == "bfloat16":
        for j in unrolled(bits.size):
            bits[j] = bits[j] << 16
    if scores.dtype == "float16":
        for j in unrolled(bits.size):
            bits[j] = scalars.bits_of(scalars.float_of_half(bits[j].to("int32")))


@by_text
def load_words(
    m: LeafRecorder, bits: Registers[Uint32], logits: Scores, row: Int32, column: Int32, limit: Int32,
) -> None:  # fmt: skip
    """Load the bit patterns of each warp's columns from `column` on.

    A column at or past `limit` gives 0, unread.
    """
    own = column + m.lane
    scores = logits.row("scores", row, first=own)
    left = limit - own
    for j in unrolled(bits.size):
        _load(m, bits, j, scores, WORD * j, WORD * j, left)
    _widen(m, bits, scores)


@by_text
def load_few(m: LeafRecorder, few: Sets[Uint32], logits: Scores, row: Int32, stride: Int32) -> None:
    """Load the bit patterns of 32 columns, one per lane, in four places of the row.

    The row's bounds do not count.
    """
    scores = logits.row("scores", row)
    column = (m.lane >> 3) * (stride >> 5 << 3) + (m.lane & 7)
    if logits.dtype == "float32":
        few = scalars.load_below(scores.at(column), column, stride)
    else:
        held = m.local("held", 1, "uint32")
        _load(m, held, 0, scores, column, column, stride)
        _widen(m, held, scores)
        few = held[0]


@by_text
def load_sample(
    m: LeafRecorder, bits: Registers[Uint32], logits: Scores, row: Int32, start: Int32,
    last: Int32, every: int, cta_warps: int,
) -> None:  # fmt: skip
    """Load the bit patterns of a sample: one word in `every`, with -inf where the row has no column.

    Word j of a warp is in run `j * cta_warps + warp` of `every` words. Its place in the run changes from run
    to run.
    """
    scores = logits.row("scores", row)

    def column_of(j):
        word = inline((m.warp + j * cta_warps) * every + ((m.warp + 5 * j) & (every - 1)))
        return ((start >> 5) + word) * WORD + m.lane

    for j in unrolled(bits.size):
        column = column_of(j)
        _load(m, bits, j, scores, column, column, last)
    m.comment("A loop of its own, so that all loads are in flight together.")
    _widen(m, bits, scores)
    for j in unrolled(bits.size):
        column = column_of(j)
        bits[j] = select(column >= start and column < last, bits[j], MINUS_INFINITY)


@by_text
def page_row(
    m: LeafRecorder, inverse: Sets[Uint32], line: Sets[Int32], row: Int32, next_n: Int32, page_size: Int32,
) -> None:  # fmt: skip
    """Set (2**32 - 1) // page_size and the row's line of the page table; zeros where there are no pages."""
    if page_size > 0:
        inverse = UINT32 // page_size.to("uint32")
        line = (row.to("uint32") // next_n.to("uint32")).to("int32")


@recorded
def _page_of(m, title: str, inverse, size, position):
    """Page and offset of a position.

    `inverse`, (2**32 - 1) // size, gives a page that is at most one too low.
    """
    at = named(f"{title}_position", position)
    or_less = named(f"{title}_or_less", warps.mul_hi(at.to("uint32"), inverse).to("int32"))
    rest = named(f"{title}_rest", at - or_less * size)
    page = named(title, select(rest >= size, or_less + 1, or_less))
    return page, select(rest >= size, rest - size, rest)


@by_text
def fetch_pages(
    m: LeafRecorder, first_page: Sets[Int32], entry: Sets[Int32], first: Int32, columns: Int32, start: Int32,
    last: Int32, block_table: Global[Int32], line: Int32, page_size: Int32, inverse: Uint32,
) -> None:  # fmt: skip
    """Fetch the page-table entries of columns [first, first + columns), one per thread from `first_page` on.

    `first_page` is -1 where there are more entries than threads.
    """
    if page_size > 0:
        begin, _ = _page_of(m, "begin", inverse, page_size, maximum(first - start, 0))
        first_page = begin
        end_position = inline(minimum(last, first + columns) - 1 - start)
        end, _ = _page_of(m, "end", inverse, page_size, maximum(end_position, 0))
        final = end - first_page
        if m.thread <= final:
            entry = block_table.row("table", line)[first_page + m.thread]
        if final >= m.threads:
            first_page = -1


@by_text
def keep_row(m: LeafRecorder, state: Shared[Int32], line: Int32, shift: Int32) -> None:
    """Store the row's page-table line and the shift from columns to positions, to free registers."""
    if m.thread == 0:
        state[StateWord.LINE] = line
        state[StateWord.SHIFT] = shift


@by_text
def keep_entry(m: LeafRecorder, pages: Shared[Int32], entry: Int32) -> None:
    """Share the threads' page-table entries with all threads."""
    pages[m.thread] = entry


@by_text
def take_all(
    m: LeafRecorder, indices: Writes[Global[Int32]], row: Int32, k: Int32, length: Int32, first: Int32,
    rank: Int32, group: int, block_table: Global[Int32], line: Int32, page_size: Int32, inverse: Uint32,
) -> None:  # fmt: skip
    """Write a row of at most `k` scores without reading them: every position from `first` on, then -1.

    The CTAs take slots in turn.
    """
    out, table = indices.row("out", row), block_table.row("table", line)
    for slot in range(rank * m.threads + m.thread, k, group * m.threads):
        id: Int32 = -1
        if slot < length:
            set_token(m, id, first + slot, table, page_size, inverse)
        out[slot] = id


@by_text
def copy_all(
    m: LeafRecorder, values: Writes[Scores], logits: Scores, row: Int32, k: Int32, start: Int32, last: Int32,
    rank: Int32, group: int,
) -> None:  # fmt: skip
    """Write the scores of a row of at most `k` scores, then -inf. The CTAs take slots in turn."""
    own: Int32 = scalars.anew(row)
    nothing: Uint32 = MINUS_INFINITY
    out, scores = values.row("out", own), logits.row("scores", own, first=start)
    for slot in range(rank * m.threads + m.thread, k, group * m.threads):
        score: Float32 = scalars.float_of(nothing)
        if slot < last - start:
            score = scores[slot].to("float32")
        out[slot] = score


@recorded
def set_token(m, id: Sets, position, table, size, inverse, pages=None, first_page=-1):
    """Set the id of a position: its place in the cache, or the position itself where `size` is 0.

    `pages` holds the page-table entries from `first_page` on, unless `first_page` is -1.
    """
    id = position
    if size > 0:
        page, offset = _page_of(m, "page", inverse, size, id)
        entry: Int32 = 0
        if first_page >= 0:
            entry = pages[page - first_page]
        else:
            entry = table[page]
        id = entry * size + offset


def canonical(bits):
    """The bit pattern of the same float, with 0 for -0.

    That of a NaN ranks above every number, as in torch.topk.
    """
    return scalars.bits_of(scalars.add_rn(scalars.float_of(bits), 0.0))


@recorded
def _half_digits(m, low, high):
    """First digits of two canonical bit patterns, one in each half of a word.

    A digit is the score rounded towards zero to fp16, with 0 for the largest. Bits 5 to 15 are the bin.
    """
    pair = scalars.halves(scalars.float_of(low), scalars.float_of(high))
    return pair ^ (~scalars.permute_bytes(pair, pair, EACH_SIGN) & 0x7FFF7FFF)


@recorded
def half_edge(m, title: str, bin):
    """Smallest key of a bin of the first round; bins count from the smallest score."""
    above = named(f"{title}_bin", bin - BINS // 2)
    sign = named(f"{title}_sign", (above >> 31).to("uint32"))
    return (scalars.bits_of(scalars.float_of_half(maximum(above, -above) << 5)) ^ sign) - sign + ZERO


@recorded
def key_of_bits(m, canonical_bits):
    """Key of a canonical fp32 bit pattern: unsigned order of keys = order of values; 0 is below every key."""
    same = canonical_bits.to("int32")
    return (same ^ ((same >> 31) | SIGN)).to("uint32")


@by_text
def make_keys(
    m: LeafRecorder, bits: Registers[Uint32], digits: Registers[Uint32] | None, column: Int32, lo: Int32,
    hi: Int32,
) -> None:  # fmt: skip
    """Turn loaded bit patterns into keys in place, and pair up the first digits of keys if `digits` is given.

    Columns outside [lo, hi) get key 0 and the last bin, which no score has.
    """
    for j in unrolled(bits.size // 2):
        low = canonical(bits[2 * j])
        high = canonical(bits[2 * j + 1])
        bits[2 * j] = key_of_bits(m, low)
        bits[2 * j + 1] = key_of_bits(m, high)
        if digits is not None:
            digits[j] = _half_digits(m, low, high)
    if column < lo or column + WORD * bits.size > hi:
        own = column + m.lane
        for j in unrolled(bits.size // 2):
            for half in range(2):
                at = inline(own + (2 * WORD * j + WORD * half))
                if at < lo or at >= hi:
                    bits[2 * j + half] = 0
                    if digits is not None:
                        digits[j] |= 0xFFFF << (16 * half)


@by_text
def stash_keys(
    m: LeafRecorder, bits: Registers[Uint32], stash: Shared[Int32], number: Int32, back: bool,
) -> None:  # fmt: skip
    """Keep a batch of keys in shared memory, or take it `back`."""
    words = stash.part("words", number * (bits.size * m.threads))
    for j in unrolled(bits.size):
        at = inline(j * m.threads + m.thread)
        if back:
            bits[j] = words[at].to("uint32")
        else:
            words[at] = bits[j].to("int32")


@by_text
def clear(m: LeafRecorder, words: Shared[Int32], first: Int32, count: int) -> None:
    """Zero `count` words of shared memory, with stores of 16 bytes."""
    begin, zero = words.part("begin", first), m.local("zero", QUAD)
    for j in range(QUAD):
        zero[j] = 0
    rounds, rest = divmod(count // QUAD, m.threads)
    if rounds:
        for i in unrolled(rounds):
            begin.write(zero, i * m.threads + m.thread)
    if rest and m.thread < rest:
        begin.write(zero, rounds * m.threads + m.thread)


@by_text
def count_first(
    m: LeafRecorder, hist: Shared[Int32], digits: Registers[Uint32], column: Int32, lo: Int32, hi: Int32,
) -> None:  # fmt: skip
    """Count the first digits of a batch that has columns of the row."""
    if column < hi and column + 2 * WORD * digits.size > lo:
        for j in unrolled(digits.size):
            m.do(warps.atomic_add(hist.at((digits[j] >> 5) & (BINS - 1)), 1))
            m.do(warps.atomic_add(hist.at(digits[j] >> 21), 1))


@by_text
def guess_digits(m: LeafRecorder, near: Sets[Uint32], grain: Sets[Uint32], few: Uint32) -> None:
    """Where 32 scores of a row are close together, set `near`, the key where first digits begin.

    Otherwise `near` is 0. The first digit is the distance below `near`, from bit `grain` on. `near` is as far
    above the largest of the 32 keys as that key is above the smallest, and one above it if all are equal.
    """
    key = key_of_bits(m, canonical(few))
    highest = warps.warp_most(key)
    spread = highest - ~warps.warp_most(~key)
    near = 0
    if spread < CLOSE:
        # The 32 keys are between `spread` and 2 * spread below `near`.
        near = highest + minimum(maximum(spread, 1), ~highest)
    grain = shift_of(2 * spread)


@by_text
def count_near(
    m: LeafRecorder, hist: Shared[Int32], bits: Registers[Uint32], near: Uint32, grain: Uint32, column: Int32,
    lo: Int32, hi: Int32,
) -> None:  # fmt: skip
    """Count the first digits, from `near` down, of a batch of keys that has columns of the row.

    Columns outside the row go to the last bin, as in make_keys.
    """
    if column < hi and column + WORD * bits.size > lo:
        for j in unrolled(bits.size):
            below = (near - minimum(near, bits[j])) >> grain
            bin = inline(select(bits[j] != 0, minimum(below, BINS - 2), BINS - 1))
            m.do(warps.atomic_add(hist.at(bin), 1))


def shift_of(span):
    """The number of bits below the next digit of an undecided range."""
    return maximum(32 - warps.clz(span) - 11, 0).to("uint32")


@recorded
def _count_key(m, bins, key, end, span, shift):
    """Count the next digit of a key if it is undecided."""
    below = end - key
    m.do(warps.count_where(bins.at(below >> shift), below <= span))


@by_text
def count_keys(
    m: LeafRecorder, hist: Shared[Int32], first: Int32, bits: Registers[Uint32], end: Uint32, span: Uint32,
) -> None:  # fmt: skip
    """Count the next digit of the undecided keys of a batch, in the bins from `first` on."""
    shift = shift_of(span)
    bins = hist.part("bins", first)
    for j in unrolled(bits.size):
        _count_key(m, bins, bits[j], end, span, shift)


@by_text
def count_listed(
    m: LeafRecorder, hist: Shared[Int32], first: Int32, entries: Shared[Int64], total: Int32, end: Uint32,
    span: Uint32,
) -> None:  # fmt: skip
    """Count the next digit of the undecided keys among the first `total` list entries."""
    shift = shift_of(span)
    bins = hist.part("bins", first)
    for i in range(m.thread, total, m.threads):
        _count_key(m, bins, key_of(entries[i]), end, span, shift)


def key_of(entry):
    return warps.pair_high(entry).to("uint32")
