"""Leaves of selection by their text: the list of undecided keys, the bitmaps, and the positions that come out.

A list entry is an int64: the key above, and below the complement of the position, so that larger entries go first. What a
warp works out together, every lane calls.
"""

from __future__ import annotations

from ...tile.frontend import Int32, Int64, Uint32, inline, recorded, rolled, unrolled
from ...tile.lang import Size
from ...tile.leaf_text import by_text
from ...tile.text import Sets, Writes, ceildiv, maximum, minimum, select
from ..torch import scalars, warps
from .topk_selector_rounds import lower_warps
from .topk_selector_row import (
    LAST_LANE,
    MINUS_INFINITY,
    QUAD,
    WORD,
    Counter,
    canonical,
    key_of,
    key_of_bits,
    set_token,
)

OFFSET_BITS = Size(22, "OFFSET_BITS")
"""Low bits of the position in a list entry: the column within a warp's run. The bits above name the warp."""


@by_text
def collect(m, bits, above, equal, word, counters, entries, first, end, span, listing, owner, offset, lane):
    """Mark a batch's keys above the range, in its words of the bitmap from `word` on; list those in it from entry `first`
    on, or mark these too. A warp takes its entries with one atomic."""
    _mark_words(m, above, word, bits, lambda key: key > end, lane)
    if listing:
        left: Int32 = 0
        for j in unrolled(bits.size):
            left |= select(end - bits[j] <= span, 1 << j, 0)
        if warps.any_lane(left != 0):
            slot: Int32 = warps.scan(warps.popc(left))
            slot += _take_room(m, counters, slot, lane)
            place: Int32 = ~((owner << OFFSET_BITS) | (offset + lane))
            listed = entries.part("listed", first)
            for j in unrolled(bits.size):
                if end - bits[j] <= span:
                    slot -= 1
                    listed[slot] = warps.make_pair(bits[j], place - WORD * j)
    else:
        _mark_words(m, equal, word, bits, lambda key: end - key <= span, lane)


@recorded
def _take_room(m, counters, through, lane):
    """The first of a warp's next entries of the list; `through` counts those of this and of lower lanes."""
    room: Int32 = 0
    if lane == LAST_LANE:
        room = warps.fetch_add(counters.at(Counter.LISTED), through)
    return warps.shuffle(room, LAST_LANE)


def _pick(registers, j, half=1):
    """Register `j` of a power of two of them, by selects: registers have no address."""
    if len(registers) == 1:
        return registers[0]
    upper, pairs = (j & half) != 0, zip(registers[::2], registers[1::2], strict=True)
    return _pick([select(upper, high, low) for low, high in pairs], j, 2 * half)


@recorded
def _mark_words(m, bitmap, word, bits, marked, lane):
    """Write a batch's words of a bitmap, from `word` on: a bit for each of the warp's keys: `marked(key)`."""
    words, own_words = m.local("words", bits.size), bitmap.part("own_words", word)
    for j in unrolled(bits.size):
        words[j] = warps.ballot(marked(bits[j]))
    if lane == 0:
        for j in unrolled(bits.size):
            own_words[j] = words[j]
    return words


@by_text
def send_entries(m, peers, entries, first, counters, group, rank, warp, cta_warps, lane):
    """Copy this CTA's part of the list to the same place in every peer; the warps share chunks and peers."""
    count = counters[Counter.LISTED]
    for i in range(warp, ceildiv(count, WORD) * group, cta_warps):
        at = i // group * WORD + lane
        to = i % group
        if at < count and to != rank:
            m.do(warps.store_peer(peers.at(first + at), to, entries[first + at]))


@recorded
def _mark(m, entry, bitmap, counters, which, rank, cta_warps, words):
    """Set a list entry's bit if this CTA owns it; count it in counter `which` if a CTA of lower rank does."""
    place = ~warps.pair_low(entry)
    offset = place & ((1 << OFFSET_BITS) - 1)
    owner = (place >> OFFSET_BITS) - rank * cta_warps
    if owner < 0:
        m.do(warps.atomic_add(counters.at(which), 1))
    if owner >= 0 and owner < cta_warps:
        m.do(warps.set_bits(bitmap.at(owner * words + (offset >> 5)), 1 << (offset & 31)))


@by_text
def sift(
    m, entries, total, target, above, equal, counters, end, span, inside, ranked, rank, cta_warps, words, thread, threads,
):  # fmt: skip
    """After the rounds over the list: mark entries above the range; keep those in it from `target` on where at most
    `ranked` are left to rank, else mark them as equal."""
    for i in range(thread, total, threads):
        entry = entries[i]
        key = key_of(entry)
        if key > end:
            _mark(m, entry, above, counters, Counter.LOWER_ABOVE, rank, cta_warps, words)
        if end - key <= span and inside > 0:
            if inside > ranked:
                _mark(m, entry, equal, counters, Counter.LOWER_EQUAL, rank, cta_warps, words)
            else:
                slot: Int32 = 0
                slot = warps.fetch_add(counters.at(Counter.KEPT), 1)
                entries[target + slot] = entry


@by_text
def rank_entries(m, entries, first, count, need, above, counters, rank, cta_warps, words, warp, lane):
    """Mark the `need` largest of at most 64 entries: a warp an entry, two entries a lane to compare it with."""
    low: Int64 = 0
    high: Int64 = 0
    if lane < count:
        low = entries[first + lane]
    if lane + WORD < count:
        high = entries[first + (lane + WORD)]
    for i in range(warp, count, cta_warps):
        entry = entries[first + i]
        ahead = sum(warps.popc(warps.ballot(warps.unsigned_above(other, entry))) for other in (low, high))
        if ahead < need and lane == 0:
            _mark(m, entry, above, counters, Counter.LOWER_ABOVE, rank, cta_warps, words)


@by_text
def count_marks(m, before: Sets, bitmap, sums, first, words, warp, lane):
    """Count each warp's marked columns in `sums`; those of lower lanes, which have consecutive words each, are `before`."""
    own: Int32 = 0
    begin, end = _own_words(m, words, lane)
    for i in range(begin, end):
        own += warps.popc(bitmap[first + i])
    through = warps.scan(own)
    if lane == LAST_LANE:
        sums[warp] = through
    before = through - own


@recorded
def _own_words(m, words, lane):
    """A lane's consecutive words among those of its warp: [begin, end)."""
    each = ceildiv(words, WORD)
    begin = lane * each
    final = minimum(begin + each, words)
    return begin, final


@by_text
def take_ties(m, before, above, equal, sums, take, first, words, warp, lane):
    """Select the first `take` columns marked as equal, in order of position."""
    begin, end = _own_words(m, words, lane)
    left: Int32 = take - lower_warps(m, sums, warp, lane) - before
    for i in range(begin, end):
        word: Int32 = equal[first + i]
        found = warps.popc(word)
        if left > 0:
            # Drop the highest bits of the word that are more than are left to take.
            for bit in range(left, found):
                word ^= 1 << (LAST_LANE - warps.clz(word))
            above[first + i] |= word
        left -= found


@by_text
def place_marks(m, placed, before, sums, above, first, words, position, dense, keep, warp, lane):
    """Positions of each warp's marked columns, ascending, behind those of lower warps and lanes.

    Of `dense` bitmaps, in which a lane has a word at most, a word at a time; 0 says that there are none.
    """
    place: Int32 = before + lower_warps(m, sums, warp, lane)
    if dense:
        # The warp looks at a word together, a bit a lane: word number i has its place in lane i.
        below = (1 << lane) - 1
        marks = m.local("marks", keep)
        for base in rolled(0, words, keep):
            for j in unrolled(keep):
                marks[j] = above[first + (base + j)]
            for j in unrolled(keep):
                slot = warps.shuffle(place, base + j) + warps.popc(marks[j] & below)
                if ((marks[j] >> lane) & 1) != 0:
                    placed[slot] = position + (base + j) * WORD + lane
    else:
        # Every lane goes through its own words, bit by bit.
        begin, end = _own_words(m, words, lane)
        for i in range(begin, end):
            word: Int32 = above[first + i]
            while word != 0:
                lowest = word & -word
                number = LAST_LANE - warps.clz(lowest)
                placed[place] = position + i * WORD + number
                place += 1
                word ^= lowest


@by_text
def write_ids(
    m, indices: Writes, row, k, skip, sums, placed, block_table, max_pages, line, page_size, inverse, pages, first_page, group,
    cta_warps, thread, threads, lane,
):  # fmt: skip
    """Write the ids of this CTA's positions, of which `sums` tells where it is not alone, from slot `skip` on.

    `pages` holds the entries of the page table from `first_page` on, unless that is -1.
    """
    out, table = indices.row("out", row, k, skip), block_table.row("table", line, max_pages)
    total = lower_warps(m, sums, cta_warps, lane) if group > 1 else k
    for slot in rolled(thread, total, threads, at_once=4):
        id: Int32 = 0
        set_token(m, id, placed[slot], table, page_size, inverse, pages, first_page)
        out[slot] = id


@by_text
def list_row(
    m, keys, ahead, logits, row, stride, entries, counters, bottom, origin, start, last, batches, room, warp, cta_warps, lane,
):  # fmt: skip
    """List the bit patterns of scores that reach that of `bottom`; a warp stops when there is no room for `room`.

    Positions count from `origin`. Two batches in turn, so that one is on its way while the other is looked at; one that
    would end past the row is its last one instead.
    """
    listed: Int32 = 0
    batch: Int32 = 0
    columns = WORD * keys.size
    same = bottom.to("int32")
    bottom_score = inline(scalars.float_of((same ^ (~(same >> 31) & 0x7FFFFFFF)).to("uint32")))
    less = scalars.add_rn(bottom_score, 0.0)

    def columns_of(number):
        """The first column of a batch, and from which column on it is read."""
        column = inline(origin + (number * cta_warps + warp) * columns)
        return column, minimum(column, stride - columns)

    def load(bits, place):
        """Load the batch that is read from column `place` on: four columns a lane, 128 in a row of them."""
        scores, quad = logits.row("scores", row, stride, place), m.local("quad", QUAD, "float32")
        for j in unrolled(bits.size // QUAD):
            scores.read(quad, WORD * j + lane)
            for i in range(QUAD):
                bits[QUAD * j + i] = scalars.bits_of(quad[i])

    def pick(bits, column, place):
        """List a batch whose first column is `column` and that was read from `place` on."""
        nonlocal listed
        at = place
        first = maximum(start, column)
        left: Int32 = 0
        own = at + QUAD * lane
        if at < first or at + columns > last:
            for j in unrolled(bits.size):
                if own + _step(j) < first or own + _step(j) >= last:
                    bits[j] = MINUS_INFINITY
        m.comment("A bit a score: whether it is not negative less the score of `bottom`, which NaN is not.")
        for j in unrolled(bits.size):
            above = inline(scalars.add_rn(scalars.float_of(bits[bits.size - 1 - j]), less))
            left = scalars.funnel_left(scalars.bits_of(above), left, 1)
        left = ~left & ((1 << bits.size) - 1)
        through = warps.scan(warps.popc(left))
        total = warps.shuffle(through, LAST_LANE)
        if total > 0:
            taken = _take_room(m, counters, through, lane)
            listed = taken + total
            if listed <= room:
                slot: Int32 = taken + through
                while left != 0:
                    lowest = left & -left
                    number = LAST_LANE - warps.clz(lowest)
                    key: Uint32 = _pick(list(bits), number)
                    slot -= 1
                    entries[slot] = warps.make_pair(key, ~(own - origin) - _step(number))
                    left ^= lowest

    _, first_read = columns_of(0)
    load(keys, first_read)
    while batch < batches and listed <= room:
        for turn, (bits, other) in enumerate(((keys, ahead), (ahead, keys))):
            _, next_read = columns_of(batch + (turn + 1))
            load(other, next_read)
            pick(bits, *columns_of(batch + turn))
        batch += 2


def _step(j):
    """How far after a lane's first column the column of register `j` is."""
    return j + (j >> 2) * (QUAD * WORD - QUAD)


@by_text
def mark_equal(m, bits, equal, word, counters, tied, lane):
    """Mark a batch's keys that equal `tied`, from `word` of the bitmap on, and count them as kept."""
    words = _mark_words(m, equal, word, bits, lambda key: key == tied, lane)
    total: Int32 = 0
    if lane == 0:
        for j in unrolled(bits.size):
            total += warps.popc(words[j])
        m.do(warps.atomic_add(counters.at(Counter.KEPT), total))


@by_text
def key_entries(m, entries, total, counters, thread, threads, lane):
    """Make the bit patterns of the first `total` list entries keys, and note the largest."""
    largest: Uint32 = 0
    for i in range(thread, total, threads):
        entry = entries[i]
        key = key_of_bits(m, canonical(key_of(entry)))
        entries[i] = warps.make_pair(key, warps.pair_low(entry))
        largest = maximum(largest, key)
    top = warps.warp_most(largest)
    if lane == 0:
        m.do(warps.raise_to(counters.at(Counter.LARGEST), top))
