"""Leaves of the exact top-k selection by their text: what one thread does, for every DSL and for the interpreter.

A list entry is an int64: the key above, and below the complement of the position, so that larger entries go first. What a
warp works out together, every lane calls."""

from __future__ import annotations

from ...tile.frontend import Int32, Int64, Uint32, inline, named, recorded, rolled, unrolled
from ...tile.lang import Size
from ...tile.leaf_text import by_text
from ...tile.text import Changes, Sets, Writes, ceildiv, maximum, minimum, select
from ..torch import scalars, warps

WORD = Size(32, "WORD")
"""Columns of a bitmap word: one a lane."""

BINS = Size(2048, "BINS")
"""Bins of a histogram: eleven bits a digit."""

COARSE = Size(32, "COARSE")
"""Coarse bins of a round in a cluster: one a lane."""

OFFSET_BITS = Size(22, "OFFSET_BITS")
"""Low bits of the position in a list entry: the column within a warp's run. The bits above name the warp."""


class Counter:
    """Words of the buffer `counters`.

    LISTED and KEPT count the entries that are listed, and those that are kept for ranking. LOWER_ABOVE and
    LOWER_EQUAL count the entries of CTAs of lower rank that are above the range, and in it. LARGEST is the
    largest key of the list, UPPER its largest undecided key, UNDER the complement of its smallest one.
    """

    LISTED, KEPT, LOWER_ABOVE, LOWER_EQUAL, LARGEST, UPPER, UNDER = range(7)


class StateWord:
    """Words of the buffer `state`: what a round found. LOWER and WITHIN are written in a cluster only."""

    END, SPAN, NEED, INSIDE, LOWER, WITHIN = range(6)


QUAD = Size(4, "QUAD")
"""Columns that a lane loads at once."""

LOWEST, INFINITE = 0x00800000, 0xFF800000
"""Keys of the smallest finite score and of infinity."""

MINUS_INFINITY, UINT32 = 0xFF800000, 0xFFFFFFFF
LAST_LANE = Size(31, "LAST_LANE")
SIGN = Size(-(1 << 31), "SIGN")
# The key of a zero.
ZERO = 1 << 31
# A selector of permute_bytes: each half of a word is filled with its sign.
EACH_SIGN = 0xBB99
# First digits by fp16 split keys that are 2**18 apart. Keys within CLOSE are split better by their distance.
CLOSE = Size(1 << 26, "CLOSE")


@by_text
def load_words(m, bits, logits, row, stride, column, limit, lane):
    """Bit patterns of each warp's columns from `column` on; one at or past `limit` is not read and gives 0."""
    own = column + lane
    scores = logits.row("scores", row, stride, own)
    left = limit - own
    for j in unrolled(bits.size):
        bits[j] = scalars.load_below(scores.at(WORD * j), WORD * j, left)


@by_text
def load_few(m, few: Sets, logits, row, stride, lane):
    """Bit pattern of one of 32 columns a lane, in four places of a row, whatever its bounds."""
    scores = logits.row("scores", row, stride)
    column = (lane >> 3) * (stride >> 5 << 3) + (lane & 7)
    few = scalars.load_below(scores.at(column), column, stride)


@by_text
def load_sample(m, bits, logits, row, stride, start, last, every, warp, cta_warps, lane):
    """Bit patterns of a sample of the row, one word in `every`, never the same one of these; -inf where the row has no column.

    Word j of a warp is of the `j * cta_warps + warp`-th run of `every` words.
    """
    scores = logits.row("scores", row, stride)

    def column_of(j):
        word = inline((warp + j * cta_warps) * every + ((warp + 5 * j) & (every - 1)))
        return ((start >> 5) + word) * WORD + lane

    for j in unrolled(bits.size):
        column = column_of(j)
        bits[j] = scalars.load_below(scores.at(column), column, last)
    m.comment("Apart, so that all loads are on their way together.")
    for j in unrolled(bits.size):
        column = column_of(j)
        bits[j] = select(column >= start and column < last, bits[j], MINUS_INFINITY)


@by_text
def page_row(m, inverse: Sets, line: Sets, row, next_n, page_size):
    """(2**32 - 1) // page_size and the row's line of the page table; zeros where there are no pages."""
    if page_size > 0:
        inverse = UINT32 // page_size.to("uint32")
        line = (row.to("uint32") // next_n.to("uint32")).to("int32")


@recorded
def _page_of(m, title: str, inverse, size, position):
    """Page and offset of a position. By `inverse`, (2**32 - 1) // size, the page is at most one too low."""
    at = named(f"{title}_position", position)
    or_less = named(f"{title}_or_less", warps.mul_hi(at.to("uint32"), inverse).to("int32"))
    rest = named(f"{title}_rest", at - or_less * size)
    page = named(title, select(rest >= size, or_less + 1, or_less))
    return page, select(rest >= size, rest - size, rest)


@by_text
def fetch_pages(
    m, first_page: Sets, entry: Sets, first, columns, start, last, block_table, max_pages, line, page_size, inverse, thread, threads,
):  # fmt: skip
    """The page-table entries of the columns [first, first + columns), one a thread from `first_page` on.

    That is -1 where the threads do not hold them all.
    """
    if page_size > 0:
        begin, _ = _page_of(m, "begin", inverse, page_size, maximum(first - start, 0))
        first_page = begin
        end_position = inline(minimum(last, first + columns) - 1 - start)
        end, _ = _page_of(m, "end", inverse, page_size, maximum(end_position, 0))
        final = end - first_page
        if thread <= final:
            entry = block_table.row("table", line, max_pages)[first_page + thread]
        if final >= threads:
            first_page = -1


@by_text
def keep_entry(m, pages, entry, thread):
    """The threads' page-table entries, for all threads."""
    pages[thread] = entry


@by_text
def take_all(
    m, indices: Writes, row, k, length, first, rank, group, block_table, max_pages, line, page_size, inverse, thread, threads,
):  # fmt: skip
    """A row of at most `k` scores: every position from `first` on, then -1, without a look at the scores; the CTAs take slots
    in turn."""
    out, table = indices.row("out", row, k), block_table.row("table", line, max_pages)
    for slot in range(rank * threads + thread, k, group * threads):
        id: Int32 = -1
        if slot < length:
            _set_token(m, id, first + slot, table, page_size, inverse)
        out[slot] = id


@recorded
def _set_token(m, id: Sets, position, table, size, inverse, pages=0, first_page=-1):
    """Set the id of a position: the position itself, or without pages of size 0 its place in the cache.

    `pages` holds entries of the page table from `first_page` on, unless that is -1.
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


def _canonical(bits):
    """The same float's bit pattern, but 0 for -0; a NaN's is above every number, as torch.topk ranks it."""
    return scalars.bits_of(scalars.add_rn(scalars.float_of(bits), 0.0))


@recorded
def _half_digits(m, low, high):
    """First digits of two canonical bit patterns, one in each half of a word: the score rounded towards zero to fp16, 0 the
    largest. Bits 5 to 15 are the bin."""
    pair = scalars.halves(scalars.float_of(low), scalars.float_of(high))
    return pair ^ (~scalars.permute_bytes(pair, pair, EACH_SIGN) & 0x7FFF7FFF)


@recorded
def _half_edge(m, title: str, bin):
    """Smallest key of a bin of the first round, counted from the smallest score."""
    above = named(f"{title}_bin", bin - BINS // 2)
    sign = named(f"{title}_sign", (above >> 31).to("uint32"))
    return (scalars.bits_of(scalars.float_of_half(maximum(above, -above) << 5)) ^ sign) - sign + ZERO


@recorded
def _key(m, canonical_bits):
    """Key of a canonical fp32 bit pattern: unsigned order of keys = order of values; 0 is below every key."""
    same = canonical_bits.to("int32")
    return (same ^ ((same >> 31) | SIGN)).to("uint32")


@by_text
def make_keys(m, bits, digits, column, lo, hi, lane):
    """Turn loaded bit patterns into keys in place, and pair up their first digits where there is room for these.

    Columns outside [lo, hi) get key 0 and the last bin, which no score has.
    """
    for j in unrolled(bits.size // 2):
        low = _canonical(bits[2 * j])
        high = _canonical(bits[2 * j + 1])
        bits[2 * j] = _key(m, low)
        bits[2 * j + 1] = _key(m, high)
        if digits:
            digits[j] = _half_digits(m, low, high)
    if column < lo or column + WORD * bits.size > hi:
        own = column + lane
        for j in unrolled(bits.size // 2):
            for half in range(2):
                at = inline(own + (2 * WORD * j + WORD * half))
                if at < lo or at >= hi:
                    bits[2 * j + half] = 0
                    if digits:
                        digits[j] |= 0xFFFF << (16 * half)


@by_text
def stash_keys(m, bits, stash, number, back, thread, threads):
    """Keep a batch of keys in shared memory, or take it `back`."""
    words = stash.part("words", number * (bits.size * threads))
    for j in unrolled(bits.size):
        at = inline(j * threads + thread)
        if back:
            bits[j] = words[at].to("uint32")
        else:
            words[at] = bits[j].to("int32")


@by_text
def clear(m, words, first, count, thread, threads):
    """Zero `count` words of shared memory, 16 bytes a store."""
    words, zero = words.part("begin", first), m.local("zero", QUAD)
    for j in range(QUAD):
        zero[j] = 0
    rounds, rest = divmod(count // QUAD, threads)
    if rounds:
        for i in unrolled(rounds):
            words.write(zero, i * threads + thread)
    if rest and thread < rest:
        words.write(zero, rounds * threads + thread)


@by_text
def count_first(m, hist, digits, column, lo, hi):
    """Count the first digits of a batch that has columns of the row."""
    if column < hi and column + 2 * WORD * digits.size > lo:
        for j in unrolled(digits.size):
            m.do(warps.atomic_add(hist.at((digits[j] >> 5) & (BINS - 1)), 1))
            m.do(warps.atomic_add(hist.at(digits[j] >> 21), 1))


@by_text
def guess_digits(m, near: Sets, grain: Sets, few):
    """Where 32 scores of a row lie close together, the key from which first digits count down, by their bits from `grain` on.

    Otherwise `near` is 0. It lies as far above the largest of these as that above the smallest, and above it if they are equal.
    """
    key = _key(m, _canonical(few))
    highest = warps.warp_most(key)
    spread = highest - ~warps.warp_most(~key)
    near = 0
    if spread < CLOSE:
        # The 32 keys are between `spread` and 2 * spread below `near`.
        near = highest + minimum(maximum(spread, 1), ~highest)
    grain = _shift_of(2 * spread)


@by_text
def count_near(m, hist, bits, near, grain, column, lo, hi):
    """Count the first digits, from `near` down, of a batch of keys that has columns of the row; the last bin as in make_keys."""
    if column < hi and column + WORD * bits.size > lo:
        for j in unrolled(bits.size):
            below = (near - minimum(near, bits[j])) >> grain
            bin = inline(select(bits[j] != 0, minimum(below, BINS - 2), BINS - 1))
            m.do(warps.atomic_add(hist.at(bin), 1))


def _shift_of(span):
    """Bits below the next digit of an undecided range."""
    return maximum(32 - warps.clz(span) - 11, 0).to("uint32")


@recorded
def _count_key(m, bins, key, end, span, shift):
    """Count the next digit of a key if it is undecided."""
    below = end - key
    m.do(warps.count_where(bins.at(below >> shift), below <= span))


@by_text
def count_keys(m, hist, first, bits, end, span):
    """Count the next digit of the undecided keys of a batch; the bins are those from `first` on."""
    shift = _shift_of(span)
    bins = hist.part("bins", first)
    for j in unrolled(bits.size):
        _count_key(m, bins, bits[j], end, span, shift)


@by_text
def count_listed(m, hist, first, entries, total, end, span, thread, threads):
    """Count the next digit of the undecided ones of the first `total` list entries."""
    shift = _shift_of(span)
    bins = hist.part("bins", first)
    for i in range(thread, total, threads):
        _count_key(m, bins, _key_of(entries[i]), end, span, shift)


def _key_of(entry):
    return warps.pair_high(entry).to("uint32")


@by_text
def bound_listed(m, entries, total, counters, end, span, thread, threads, lane):
    """Note the largest and the smallest key of the undecided ones of the first `total` list entries."""
    largest: Uint32 = 0
    under: Uint32 = 0
    for i in range(thread, total, threads):
        key = _key_of(entries[i])
        if end - key <= span:
            largest = maximum(largest, key)
            under = maximum(under, ~key)
    upper = warps.warp_most(largest)
    lower = warps.warp_most(under)
    if lane == 0:
        m.do(warps.raise_to(counters.at(Counter.UPPER), upper))
        m.do(warps.raise_to(counters.at(Counter.UNDER), lower))


@by_text
def read_bounded(m, end: Changes, span: Changes, counters):
    """The range from the smallest to the largest undecided key, which are one where all of them are equal."""
    bottom = maximum(end - span, ~counters[Counter.UNDER].to("uint32"))
    end = minimum(end, counters[Counter.UPPER].to("uint32"))
    span = end - bottom


@recorded
def _lower_warps(m, sums, warp, lane):
    """The sum of what the warps before this one have written to `sums`."""
    other: Int32 = 0
    if lane < warp:
        other = sums[lane]
    return warps.warp_sum(other)


@by_text
def sum_bins(m, mine, through: Sets, hist, first, sums, thread, warp, lane):
    """Each thread takes its bins; `through` is its warp's sum up to and with them, and `sums` get the warps' totals."""
    hist.part("bins", first).read(mine, thread)
    through = warps.scan(sum(mine))
    if lane == LAST_LANE:
        sums[warp] = through


@by_text
def pick_bin(m, state, mine, through, sums, need, end, span, half, thread, warp, lane):
    """The thread that has the `need`-th key from the top narrows the range to its bin, for all threads in `state`.

    `half`: the bins are those of the first digit.
    """
    own = sum(mine)
    left = need - (through - own + _lower_warps(m, sums, warp, lane))
    if left > 0 and left <= own:
        digit, inside, before = _bin_of(m, thread * mine.size, list(mine), left)
        wanted: Int32 = left - before
        _write_state(m, state, *_narrow(m, digit, wanted, inside, end, span, half))


@recorded
def _bin_of(m, first, counts, need):
    """The bin with the `need`-th key, of bins from `first` on; the keys in it, and in the bins before it."""
    digit: Int32 = first
    inside: Int32 = counts[0]
    before: Int32 = 0
    upto = inline(counts[0])
    for i, count in enumerate(counts[1:], 1):
        if i > 1:
            upto = named(f"upto_{i}", upto + counts[i - 1])
        if upto < need:
            digit = first + i
            inside = count
            before = upto
    return digit, inside, before


@recorded
def _narrow(m, digit, need, inside, end, span, half, near=0, grain=0):
    """The undecided range after a round that found `digit`: end, span, keys still needed of it, keys in it.

    `half`: the digit is the first one: of the score rounded to fp16, or if `near` is not 0, of the distance
    from `near`, whose lowest bit in the digit is `grain`.
    """
    top, width = _first_range(m, digit, near, grain) if half else _next_range(m, digit, end, span)
    _close_if_all_are_needed(m, top, width, need, inside)
    return top, width, need, inside


@recorded
def _first_range(m, digit, near, grain):
    """End and span of the keys that have a first digit."""
    top: Uint32 = UINT32
    if digit > 0:
        top = _half_edge(m, "upper", BINS - digit) - 1
    width: Uint32 = top - _half_edge(m, "lower", BINS - 1 - digit)
    if near != 0:
        number: Uint32 = digit.to("uint32")
        below = inline(number << grain)
        bottom: Uint32 = 1
        if digit < BINS - 2:
            bottom = near - minimum(below + ((1 << grain) - 1), near - 1)
        top = UINT32
        if digit > 0:
            top = near - below
        width = top - bottom
    return top, width


@recorded
def _next_range(m, digit, end, span):
    """End and span of the keys of a range that have a digit."""
    shift = _shift_of(span)
    below = digit.to("uint32") << shift
    top: Uint32 = end - below
    width: Uint32 = minimum(span - below, (1 << shift) - 1)
    return top, width


@recorded
def _close_if_all_are_needed(m, top: Changes, width: Changes, need: Changes, inside: Changes):
    """If all keys of the range are needed, none stays undecided: every key above the new end is selected."""
    if need == inside:
        top = top - width - 1
        width = 0
        need = 0
        inside = 0


@recorded
def _write_state(m, state, end, span, need, inside):
    """Write what a round found."""
    words = m.local("words", 4)
    words[StateWord.END] = end.to("int32")
    words[StateWord.SPAN] = span.to("int32")
    words[StateWord.NEED] = need
    words[StateWord.INSIDE] = inside
    state.write(words, 0)


@by_text
def read_state(m, end: Sets, span: Sets, need: Sets, inside: Sets, state):
    """End, span, keys needed and keys inside of the undecided range, as the last round left them."""
    words = m.local("words", 4)
    state.read(words, 0)
    end = words[StateWord.END].to("uint32")
    span = words[StateWord.SPAN].to("uint32")
    need = words[StateWord.NEED].to("int32")
    inside = words[StateWord.INSIDE].to("int32")


@by_text
def send_sums(m, peers, at, hist, first, group, rank, warp, cta_warps, lane):
    """Send every CTA of the group the sums of this one's coarse bins."""
    bins, pair = hist.part("bins", first), m.local("pair", 2)
    for i in unrolled(COARSE // cta_warps):
        bin = inline(i * cta_warps + warp)
        bins.read(pair, bin * (BINS // COARSE // 2) + lane)
        total = warps.warp_sum(pair[0] + pair[1])
        if lane < group:
            m.do(warps.store_peer(peers.at(at + (rank * COARSE + bin)), lane, total))


@by_text
def pick_bin_of_group(
    m, state, peers, bins, coarse, at, need, lower, end, span, half, near, grain, group, rank, warp, lane
):
    """One warp finds the coarse bin and then, in all CTAs' counts of it, the bin with the `need`-th key from the top.

    `state` also gets the keys above the range in CTAs of lower rank, and those in the range. `half` as in pick_bin, unless
    `near` is not 0: the first digits are then those of count_near.
    """
    if warp == 0:
        count: Int32 = 0
        under: Int32 = 0
        for i in unrolled(group):
            part = coarse[at + (i * COARSE + lane)]
            count += part
            if i < rank:
                under += part
        _, source, over = _find(m, "coarse_bin", count, need)
        left = need - warps.shuffle(over, source)
        less: Int32 = lower + warps.warp_sum(select(lane < source, under, 0))
        first_bin = source * (BINS // COARSE) + 2 * lane
        both: Int64 = 0
        both_under: Int64 = 0
        for i in unrolled(group):
            pair = warps.load_peer_pair(peers.at(bins + first_bin), i)
            both += pair
            if i < rank:
                both_under += pair
        low = warps.pair_low(both)
        high = warps.pair_high(both)
        low_under = inline(warps.pair_low(both_under))
        high_under = warps.pair_high(both_under)
        hit, source, over = _find(m, "bin", low + high, left)
        less += warps.warp_sum(select(lane < source, low_under + high_under, 0))
        if hit:
            wanted: Int32 = left - over
            digit, inside, before = _bin_of(m, first_bin, [low, high], wanted)
            within: Int32 = low_under
            if digit > first_bin:
                within = high_under
                less += low_under
            wanted -= before
            found = _narrow(m, digit, wanted, inside, end, span, half, near, grain)
            if inside == 0:
                less += within
                within = 0
            _write_state(m, state, *found)
            state[StateWord.LOWER] = less
            state[StateWord.WITHIN] = within


@recorded
def _find(m, title: str, count, need):
    """Find the lane with the `need`-th key from the lanes' counts.

    Returns whether it is this lane, its number, and how many keys the lanes lower than this one have.
    """
    through = named(f"through_{title}", warps.scan(count))
    over = named(f"over_{title}", through - count)
    hit = named(f"hit_{title}", over < need and through >= need)
    found = named(title, LAST_LANE - warps.clz(warps.ballot(hit)))
    return hit, found, over


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
        key = _key_of(entry)
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
    left: Int32 = take - _lower_warps(m, sums, warp, lane) - before
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
    place: Int32 = before + _lower_warps(m, sums, warp, lane)
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
    total = _lower_warps(m, sums, cta_warps, lane) if group > 1 else k
    for slot in rolled(thread, total, threads, at_once=4):
        id: Int32 = 0
        _set_token(m, id, placed[slot], table, page_size, inverse, pages, first_page)
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
        key = _key(m, _canonical(_key_of(entry)))
        entries[i] = warps.make_pair(key, warps.pair_low(entry))
        largest = maximum(largest, key)
    top = warps.warp_most(largest)
    if lane == 0:
        m.do(warps.raise_to(counters.at(Counter.LARGEST), top))
