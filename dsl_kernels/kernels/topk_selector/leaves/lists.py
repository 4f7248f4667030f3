"""Texts of selection's leaves: the list of undecided keys, the bitmaps, and the selected positions.

A list entry is an int64. Its high half is the key, its low half the complement of the position, so larger
entries go first. Every lane of a warp calls a leaf with warp operations.
"""

from __future__ import annotations

from ....device.torch import scalars, warps
from ....tile.frontend import inline, recorded, rolled, unrolled
from ....tile.kinds import (
    Boolean,
    Float32,
    Global,
    Int32,
    Int64,
    LeafRecorder,
    Peers,
    Registers,
    Sets,
    Shared,
    Uint32,
    Writes,
)
from ....tile.lang import Size
from ....tile.leaf_text import by_text
from ....tile.text import ceildiv, maximum, minimum, select
from ..functions import past16
from .rounds import lower_warps
from .row import (
    LAST_LANE,
    MINUS_INFINITY,
    QUAD,
    WORD,
    Counter,
    Scores,
    canonical,
    key_of,
    key_of_bits,
    set_token,
)

OFFSET_BITS = Size(22, "OFFSET_BITS")
"""The low bits of a list entry's position: the column within a warp's run.

The bits above are the warp's number.
"""


@by_text
def collect(
    m: LeafRecorder, bits: Registers[Uint32], above: Shared[Int32], equal: Shared[Int32], word: Int32,
    counters: Shared[Int32], entries: Shared[Int64], first: Int32, end: Uint32, span: Uint32,
    listing: Boolean, owner: Int32, offset: Int32,
) -> None:  # fmt: skip
    """Mark a batch's keys above the range, in words of the bitmap from `word` on. List the keys in the range.

    The list begins with entry `first`. A warp takes its entries with one atomic. Without `listing`, keys in
    the range are marked in `equal`.
    """
    _mark_words(m, above, word, bits, lambda key: key > end)
    if listing:
        left: Int32 = 0
        for j in unrolled(bits.size):
            left |= select(end - bits[j] <= span, 1 << j, 0)
        if warps.any_lane(left != 0):
            slot: Int32 = warps.scan(warps.popc(left))
            slot += _take_room(m, counters, slot)
            place: Int32 = ~((owner << OFFSET_BITS) | (offset + m.lane))
            listed = entries.part("listed", first)
            for j in unrolled(bits.size):
                if end - bits[j] <= span:
                    slot -= 1
                    listed[slot] = warps.make_pair(bits[j], place - WORD * j)
    else:
        _mark_words(m, equal, word, bits, lambda key: end - key <= span)


@recorded
def _take_room(m, counters, through):
    """Take list entries for a warp, and return the first one.

    `through` counts entries of this and of lower lanes.
    """
    room: Int32 = 0
    if m.lane == LAST_LANE:
        room = warps.fetch_add(counters.at(Counter.LISTED), through)
    return warps.shuffle(room, LAST_LANE)


def _pick(registers, j, half=1):
    """Register `j`, found by selects because registers have no address. Their number is a power of two."""
    if len(registers) == 1:
        return registers[0]
    upper, pairs = (j & half) != 0, zip(registers[::2], registers[1::2], strict=True)
    return _pick([select(upper, high, low) for low, high in pairs], j, 2 * half)


@recorded
def _mark_words(m, bitmap, word, bits, marked):
    """Write a batch's words of a bitmap, from `word` on.

    The bit of each of the warp's keys is `marked(key)`.
    """
    words, own_words = m.local("words", bits.size), bitmap.part("own_words", word)
    for j in unrolled(bits.size):
        words[j] = warps.ballot(marked(bits[j]))
    if m.lane == 0:
        for j in unrolled(bits.size):
            own_words[j] = words[j]
    return words


@by_text
def send_entries(
    m: LeafRecorder, peers: Peers[Int64], entries: Shared[Int64], first: Int32, counters: Shared[Int32],
    group: int, rank: Int32, cta_warps: int,
) -> None:  # fmt: skip
    """Copy this CTA's part of the list to the same place in every peer. The warps share chunks and peers."""
    count = counters[Counter.LISTED]
    for i in range(m.warp, ceildiv(count, WORD) * group, cta_warps):
        at = i // group * WORD + m.lane
        to = i % group
        if at < count and to != rank:
            m.do(warps.store_peer(peers.at(first + at), to, entries[first + at]))


@recorded
def _counted_by(m, counts, group, half):
    """LISTED or KEPT (`half` chooses) of the CTA whose rank is this lane, and the sum up to that CTA."""
    held: Int32 = 0
    if m.lane < group:
        held = half(warps.load_peer_pair(counts.at(Counter.LISTED), m.lane))
    through = warps.scan(held)
    return held, through


@by_text
def count_ties(
    m: LeafRecorder, found: Sets[Int32], within: Sets[Int32], counts: Peers[Int32], group: int, rank: Int32,
) -> None:  # fmt: skip
    """Count the ties that the CTAs of a row have marked, and those that CTAs of lower rank have marked."""
    held, through = _counted_by(m, counts, group, warps.pair_high)
    found = warps.shuffle(through, group - 1)
    within = warps.shuffle(through - held, rank)


@by_text
def share_lists(
    m: LeafRecorder, total: Sets[Int32], entries: Shared[Int64], peers: Peers[Int64], counts: Peers[Int32],
    room: int, group: int, rank: Int32, cta_warps: int,
) -> None:  # fmt: skip
    """Append this CTA's list to every peer's list, if the `total` entries of all CTAs fit into `room`."""
    held, through = _counted_by(m, counts, group, warps.pair_low)
    total = warps.shuffle(through, group - 1)
    own = warps.shuffle(held, rank)
    before = warps.shuffle(through, rank) - own
    if total <= room:
        for i in range(m.warp, ceildiv(own, WORD) * group, cta_warps):
            at = i // group * WORD + m.lane
            to = i % group
            # A peer's own list comes first.
            first = before + select(to > rank, warps.shuffle(held, to), 0)
            if at < own and to != rank:
                m.do(warps.store_peer(peers.at(first + at), to, entries[at]))


@recorded
def _mark(m, entry, bitmap, counters, which, rank, cta_warps, words):
    """Set a list entry's bit if this CTA owns the entry.

    If a CTA of lower rank owns it, count it in counter `which`.
    """
    place = ~warps.pair_low(entry)
    offset = place & ((1 << OFFSET_BITS) - 1)
    owner = (place >> OFFSET_BITS) - rank * cta_warps
    if owner < 0:
        m.do(warps.atomic_add(counters.at(which), 1))
    if owner >= 0 and owner < cta_warps:
        m.do(warps.set_bits(bitmap.at(owner * words + (offset >> 5)), 1 << (offset & 31)))


@by_text
def sift(
    m: LeafRecorder, entries: Shared[Int64], total: Int32, target: int, above: Shared[Int32],
    equal: Shared[Int32], counters: Shared[Int32], end: Uint32, span: Uint32, inside: Int32, ranked: int,
    rank: Int32, cta_warps: int, words: Int32,
) -> None:  # fmt: skip
    """After the rounds over the list, mark entries above the range.

    If at most `ranked` entries are in the range, copy these to the list from `target` on. Otherwise mark them
    as equal.
    """
    for i in range(m.thread, total, m.threads):
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
def rank_entries(
    m: LeafRecorder, entries: Shared[Int64], first: Int32, count: Int32, need: Int32, above: Shared[Int32],
    counters: Shared[Int32], rank: Int32, cta_warps: int, words: Int32, ties_higher: Int32 | None,
) -> None:  # fmt: skip
    """Mark the `need` largest of at most 64 entries.

    A warp ranks an entry, and each lane compares it with two others.
    """
    low: Int64 = 0
    high: Int64 = 0

    def ordered(entry):
        """The entry in the order of ranks.

        Where `ties_higher` is 1, the higher position of equal keys goes first.
        """
        if ties_higher is None:
            return entry
        return warps.make_pair(key_of(entry), warps.pair_low(entry) ^ -ties_higher)

    if m.lane < count:
        low = ordered(entries[first + m.lane])
    if m.lane + WORD < count:
        high = ordered(entries[first + (m.lane + WORD)])
    for i in range(m.warp, count, cta_warps):
        entry = entries[first + i]
        own = inline(ordered(entry))
        ahead = sum(warps.popc(warps.ballot(warps.unsigned_above(other, own))) for other in (low, high))
        if ahead < need and m.lane == 0:
            _mark(m, entry, above, counters, Counter.LOWER_ABOVE, rank, cta_warps, words)


@by_text
def count_marks(
    m: LeafRecorder, before: Sets[Int32], bitmap: Shared[Int32], sums: Shared[Int32], first: Int32,
    words: Int32,
) -> None:  # fmt: skip
    """Count each warp's marked columns in `sums`. `before` counts those of lower lanes.

    A lane has consecutive words.
    """
    own: Int32 = 0
    begin, end = _own_words(m, words)
    for i in range(begin, end):
        own += warps.popc(bitmap[first + i])
    through = warps.scan(own)
    if m.lane == LAST_LANE:
        sums[m.warp] = through
    before = through - own


@recorded
def _own_words(m, words):
    """The consecutive words of a lane among the words of its warp: [begin, end)."""
    each = ceildiv(words, WORD)
    begin = m.lane * each
    final = minimum(begin + each, words)
    return begin, final


@by_text
def take_ties(
    m: LeafRecorder, before: Int32, above: Shared[Int32], equal: Shared[Int32], sums: Shared[Int32],
    take: Int32, first: Int32, words: Int32,
) -> None:  # fmt: skip
    """Select the first `take` columns marked as equal, in order of position."""
    begin, end = _own_words(m, words)
    left: Int32 = take - lower_warps(m, sums, m.warp) - before
    for i in range(begin, end):
        word: Int32 = equal[first + i]
        found = warps.popc(word)
        if left > 0:
            # Drop the highest bits of the word until it has no more bits than are left to take.
            for bit in range(left, found):
                word ^= 1 << (LAST_LANE - warps.clz(word))
            above[first + i] |= word
        left -= found


@by_text
def take_last_ties(
    m: LeafRecorder, before: Int32, above: Shared[Int32], equal: Shared[Int32], sums: Shared[Int32],
    take: Int32, rest: Int32, first: Int32, words: Int32,
) -> None:  # fmt: skip
    """Select the last `take` of the `rest` columns marked as equal in this CTA and higher ranks."""
    begin, end = _own_words(m, words)
    left: Int32 = rest - take - lower_warps(m, sums, m.warp) - before
    for i in range(begin, end):
        word: Int32 = equal[first + i]
        found = warps.popc(word)
        # Drop the lowest bits of the word while columns are left to skip.
        for _ in range(minimum(left, found)):
            word &= word - 1
        above[first + i] |= word
        left -= found


@by_text
def place_marks(
    m: LeafRecorder, placed: Shared[Int32], before: Int32, sums: Shared[Int32], above: Shared[Int32],
    first: Int32, words: Int32, position: Int32, dense: Boolean, keep: int,
) -> None:  # fmt: skip
    """Write the positions of each warp's marked columns, ascending, after those of lower warps and lanes.

    A warp goes through `dense` bitmaps, with at most one word per lane, a word at a time. `dense` is 0 where
    bitmaps never are dense.
    """
    place: Int32 = before + lower_warps(m, sums, m.warp)
    if dense:
        # All lanes read the same word, one bit per lane. Lane i holds the place of word i.
        below = (1 << m.lane) - 1
        marks = m.local("marks", keep)
        for base in rolled(0, words, keep):
            for j in unrolled(keep):
                marks[j] = above[first + (base + j)]
            for j in unrolled(keep):
                slot = warps.shuffle(place, base + j) + warps.popc(marks[j] & below)
                if ((marks[j] >> m.lane) & 1) != 0:
                    placed[slot] = position + (base + j) * WORD + m.lane
    else:
        # Every lane goes through its own words, bit by bit.
        begin, end = _own_words(m, words)
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
    m: LeafRecorder, indices: Writes[Global[Int32]], row: Int32, k: Int32, skip: Int32, sums: Shared[Int32],
    placed: Shared[Int32], block_table: Global[Int32], line: Int32, page_size: Int32, inverse: Uint32,
    pages: Shared[Int32] | None, first_page: Int32, group: int, cta_warps: int,
) -> None:  # fmt: skip
    """Write the ids of this CTA's positions from slot `skip` on.

    In a group, `sums` gives the number of positions; a lone CTA has `k`. `pages` holds the page-table entries
    from `first_page` on, unless `first_page` is -1.
    """
    out, table = indices.row("out", row, first=skip), block_table.row("table", line)
    total = lower_warps(m, sums, cta_warps) if group > 1 else k
    for slot in rolled(m.thread, total, m.threads, at_once=4):
        id: Int32 = 0
        set_token(m, id, placed[slot], table, page_size, inverse, pages, first_page)
        out[slot] = id


@by_text
def write_positions(
    m: LeafRecorder, positions: Writes[Global[Int32]], row: Int32, k: Int32, skip: Int32, sums: Shared[Int32],
    placed: Shared[Int32], group: int, cta_warps: int,
) -> None:  # fmt: skip
    """Write this CTA's positions, in the slots of `write_ids`."""
    out = positions.row("out", scalars.anew(row), first=skip)
    total = lower_warps(m, sums, cta_warps) if group > 1 else k
    for slot in range(m.thread, total, m.threads):
        out[slot] = placed[slot]


@by_text
def write_values(
    m: LeafRecorder, values: Writes[Scores], logits: Scores, row: Int32, k: Int32, skip: Int32,
    sums: Shared[Int32], placed: Shared[Int32], first: Int32, group: int, cta_warps: int,
) -> None:  # fmt: skip
    """Write the scores of this CTA's positions, in the slots of `write_ids`. Position 0 is column `first`."""
    own: Int32 = scalars.anew(row)
    out, scores = values.row("out", own, first=skip), logits.row("scores", own)
    total = lower_warps(m, sums, cta_warps) if group > 1 else k
    for slot in range(m.thread, total, m.threads):
        score: Float32 = scores[first + placed[slot]].to("float32")
        out[slot] = score


@recorded
def _bits_of(m, score, dtype):
    """The bit pattern of a score, as in `load_words`."""
    if dtype == "float32":
        return scalars.bits_of(score)
    widened: Float32 = score
    return scalars.bits_of(widened)


def _place(column, origin, owner):
    """The low half of a column's entry: the position from `origin` on, and `owner`, the CTA's first warp."""
    return ~(column - origin) - (owner << OFFSET_BITS)


@by_text
def list_row(
    m: LeafRecorder, keys: Registers[Uint32], ahead: Registers[Uint32], logits: Scores, row: Int32,
    stride: Int32, entries: Shared[Int64], counters: Shared[Int32], bottom: Uint32, origin: Int32,
    start: Int32, last: Int32, batches: Int32, room: int, owner: Int32, cta_warps: int,
) -> None:  # fmt: skip
    """List the bit patterns of scores that reach `bottom`. A warp stops when `room` is full.

    Positions count from `origin`, a multiple of WORD. A warp has two batches in turn: one is in flight while
    it lists the other. A batch that would end past the row is read from the row's last full batch. Batches
    begin on a multiple of 16 bytes, so warp 0 reads up to three columns before the first batch, and after the
    last one, on their own.
    """
    listed: Int32 = 0
    batch: Int32 = 0
    columns = WORD * keys.size
    same = bottom.to("int32")
    bottom_score = inline(scalars.float_of((same ^ (~(same >> 31) & 0x7FFFFFFF)).to("uint32")))
    less = scalars.add_rn(bottom_score, 0.0)
    ahead_of_all = -past16(logits.row("whole", row).at(0)) & (QUAD - 1)
    behind_all = (stride - ahead_of_all) & (QUAD - 1)
    begin: Int32 = origin + ahead_of_all
    last_read: Int32 = stride - behind_all - columns

    def columns_of(number):
        """The first column of a batch, and the column from which it is read."""
        column = inline(begin + (number * cta_warps + m.warp) * columns)
        return column, minimum(column, last_read)

    def below(bits):
        """A word whose highest bit says whether a score is less than that of `bottom`; NaN is not."""
        return scalars.bits_of(scalars.add_rn(scalars.float_of(bits), less))

    def load(bits, place):
        """Load the batch that is read from column `place` on: four columns per lane and load."""
        scores, quad = logits.row("scores", row, first=place), m.local("quad", QUAD, logits.dtype)
        for j in unrolled(bits.size // QUAD):
            scores.read(quad, WORD * j + m.lane)
            for i in range(QUAD):
                bits[QUAD * j + i] = _bits_of(m, quad[i], quad.dtype)

    def pick(bits, column, place):
        """List a batch whose first column is `column`, and which was read from `place` on."""
        nonlocal listed
        at = place
        first = maximum(start, column)
        left: Int32 = 0
        own = at + QUAD * m.lane
        if at < first or at + columns > last:
            for j in unrolled(bits.size):
                if own + _step(j) < first or own + _step(j) >= last:
                    bits[j] = MINUS_INFINITY
        m.comment("A bit per score: the sign of the score minus that of `bottom`; NaN has none.")
        for j in unrolled(bits.size):
            left = scalars.funnel_left(below(bits[bits.size - 1 - j]), left, 1)
        left = ~left & ((1 << bits.size) - 1)
        through = warps.scan(warps.popc(left))
        total = warps.shuffle(through, LAST_LANE)
        if total > 0:
            taken = _take_room(m, counters, through)
            listed = taken + total
            if listed <= room:
                slot: Int32 = taken + through
                while left != 0:
                    lowest = left & -left
                    number = LAST_LANE - warps.clz(lowest)
                    key: Uint32 = _pick(list(bits), number)
                    slot -= 1
                    entries[slot] = warps.make_pair(key, _place(own, origin, owner) - _step(number))
                    left ^= lowest

    def pick_edges():
        """List the columns before and after all batches, one per lane."""
        at = select(m.lane < QUAD, origin + m.lane, last_read + columns + (m.lane - QUAD))
        first_edge = select(m.lane < QUAD, start, maximum(start, begin))
        end = minimum(last, select(m.lane < QUAD, begin, stride))
        edge: Uint32 = MINUS_INFINITY
        if at >= first_edge and at < end:
            edge = _bits_of(m, logits.row("row_of_edges", row)[at], logits.dtype)
        wanted: Int32 = 1 - (below(edge) >> 31).to("int32")
        through = warps.scan(wanted)
        slot = _take_room(m, counters, through) + through
        if wanted != 0 and slot <= room:
            entries[slot - 1] = warps.make_pair(edge, _place(at, origin, owner))

    if m.warp == 0 and (ahead_of_all | behind_all) != 0:
        pick_edges()
    _, first_read = columns_of(0)
    load(keys, first_read)
    while batch < batches and listed <= room:
        for turn, (bits, other) in enumerate(((keys, ahead), (ahead, keys))):
            _, next_read = columns_of(batch + (turn + 1))
            load(other, next_read)
            pick(bits, *columns_of(batch + turn))
        batch += 2


def _step(j):
    """The distance from a lane's first column to the column of register `j`."""
    return j + (j >> 2) * (QUAD * WORD - QUAD)


@by_text
def mark_equal(
    m: LeafRecorder, bits: Registers[Uint32], equal: Shared[Int32], word: Int32, counters: Shared[Int32],
    tied: Uint32,
) -> None:  # fmt: skip
    """Mark a batch's keys that equal `tied`, from `word` of the bitmap on, and count them as kept."""
    words = _mark_words(m, equal, word, bits, lambda key: key == tied)
    total: Int32 = 0
    if m.lane == 0:
        for j in unrolled(bits.size):
            total += warps.popc(words[j])
        m.do(warps.atomic_add(counters.at(Counter.KEPT), total))


@by_text
def key_entries(
    m: LeafRecorder, entries: Shared[Int64], total: Int32, counters: Shared[Int32],
) -> None:  # fmt: skip
    """Turn the bit patterns of the first `total` list entries into keys, and note the largest key."""
    largest: Uint32 = 0
    for i in range(m.thread, total, m.threads):
        entry = entries[i]
        key = key_of_bits(m, canonical(key_of(entry)))
        entries[i] = warps.make_pair(key, warps.pair_low(entry))
        largest = maximum(largest, key)
    top = warps.warp_most(largest)
    if m.lane == 0:
        m.do(warps.raise_to(counters.at(Counter.LARGEST), top))
