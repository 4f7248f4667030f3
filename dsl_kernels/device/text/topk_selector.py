"""Leaves of the exact top-k selection by their text: what one thread does, for every DSL and for the interpreter.

A list entry is an int64: the key above, and below the complement of the position, so that larger entries go first. What a
warp works out together, every lane calls."""

from __future__ import annotations

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
"""Low bits of a list entry's position: the column within its warp's run. The owning warp stands above them."""

LISTED, KEPT, LOWER_ABOVE, LOWER_EQUAL, LARGEST, UPPER, LOWER = range(7)
"""Counters: entries listed, entries kept for ranking, entries of lower ranks that are selected or may be, largest key of
the list, largest and complement of the smallest undecided one."""

QUAD = Size(4, "QUAD")
"""Columns that a lane loads at once."""

LOWEST, INFINITE = 0x00800000, 0xFF800000
"""Keys of the smallest finite score and of infinity."""

MINUS_INFINITY, UINT32 = 0xFF800000, 0xFFFFFFFF
LAST_LANE = Size(31, "LAST_LANE")
SIGN = Size(-(1 << 31), "SIGN")
# The key of a zero.
ZERO = 1 << 31
# Of permute_bytes: both halves of a word, each filled with its sign.
EACH_SIGN = 0xBB99
# Keys so close to each other that digits of their distance split them better than those of fp16, which split 2**18 apart.
CLOSE = Size(1 << 26, "CLOSE")


@by_text
def load_words(m, bits, logits, row, stride, column, limit, lane):
    """Bit patterns of each warp's columns from `column` on; one at or past `limit` is not read and gives 0."""
    own = m.let("own", column + lane)
    scores, left = logits.row("scores", row, stride, own), m.let("left", limit - own)
    for j in m.loop("j", bits.size, unrolled=True):
        bits[j] = scalars.load_below(scores.at(WORD * j), WORD * j, left)


@by_text
def load_few(m, few: Sets, logits, row, stride, lane):
    """Bit pattern of one of 32 columns a lane, in four places of a row, whatever its bounds."""
    scores = logits.row("scores", row, stride)
    column = m.let("column", (lane >> 3) * (stride >> 5 << 3) + (lane & 7))
    m.set(few, scalars.load_below(scores.at(column), column, stride))


@by_text
def load_sample(m, bits, logits, row, stride, start, last, every, warp, cta_warps, lane):
    """Bit patterns of a sample of the row, one word in `every`, never the same one of these; -inf where the row has no column.

    Word j of a warp is of the `j * cta_warps + warp`-th run of `every` words.
    """
    scores = logits.row("scores", row, stride)

    def each():
        for j in m.loop("j", bits.size, unrolled=True):
            place = (warp + j * cta_warps) * every + ((warp + 5 * j) & (every - 1))
            yield j, m.let("column", ((start >> 5) + place) * WORD + lane)

    for j, column in each():
        bits[j] = scalars.load_below(scores.at(column), column, last)
    m.comment("Apart, so that all loads are on their way together.")
    for j, column in each():
        bits[j] = select((column >= start) & (column < last), bits[j], MINUS_INFINITY)


@by_text
def page_row(m, inverse: Sets, line: Sets, row, next_n, page_size):
    """(2**32 - 1) // page_size and the row's line of the page table; zeros where there are no pages."""
    with m.when(page_size > 0):
        m.set(inverse, UINT32 // page_size.to("uint32"))
        m.set(line, (row.to("uint32") // next_n.to("uint32")).to("int32"))


def _page_of(m, title: str, inverse, size, position):
    """Page and offset of a position; `inverse` is (2**32 - 1) // size, at most one page short."""
    at = m.let(f"{title}_position", position)
    page = m.let(f"{title}_or_less", warps.mul_hi(at.to("uint32"), inverse).to("int32"))
    offset = m.let(f"{title}_rest", at - page * size)
    return m.let(title, select(offset >= size, page + 1, page)), select(offset >= size, offset - size, offset)


@by_text
def fetch_pages(
    m, first_page: Sets, entry: Sets, first, columns, start, last, block_table, max_pages, line, page_size, inverse, thread, threads,
):  # fmt: skip
    """The page-table entries of the columns [first, first + columns), one a thread from `first_page` on.

    That is -1 where the threads do not hold them all.
    """
    with m.when(page_size > 0):
        begin, _ = _page_of(m, "begin", inverse, page_size, maximum(first - start, 0))
        m.set(first_page, begin)
        end = minimum(last, first + columns) - 1 - start
        final = m.let("final", _page_of(m, "end", inverse, page_size, maximum(end, 0))[0] - first_page)
        with m.when(thread <= final):
            m.set(entry, block_table.row("table", line, max_pages)[first_page + thread])
        with m.when(final >= threads):
            m.set(first_page, -1)


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
    for slot in m.loop("slot", k, begin=rank * threads + thread, step=group * threads):
        id = m.var("id", -1)
        with m.when(slot < length):
            _set_token(m, id, first + slot, table, page_size, inverse)
        out[slot] = id


def _set_token(m, id, position, table, size, inverse, pages=0, first_page=-1):
    """The id of a position: itself, or what the page table makes of it, whose entries `pages` has if `first_page` is one."""
    m.set(id, position)
    with m.when(size > 0):
        page, offset = _page_of(m, "page", inverse, size, id)
        entry = m.var("entry")
        if isinstance(first_page, int):
            m.set(entry, table[page])
        else:
            with m.when(first_page >= 0):
                m.set(entry, pages[page - first_page])
            with m.otherwise():
                m.set(entry, table[page])
        m.set(id, entry * size + offset)


def _canonical(bits):
    """The bit pattern of the same float, but of 0 for -0, and one above every number for each NaN, as torch.topk ranks them."""
    return scalars.bits_of(scalars.add_rn(scalars.float_of(bits), 0.0))


def _half_digits(m, low, high):
    """First digits of two canonical bit patterns, one in each half of a word: the score rounded towards zero to fp16, 0 the
    largest. Bits 5 to 15 are the bin."""
    pair = m.let("pair", scalars.halves(scalars.float_of(low), scalars.float_of(high)))
    return pair ^ (~scalars.permute_bytes(pair, pair, EACH_SIGN) & 0x7FFF7FFF)


def _half_edge(m, title, bin):
    """Smallest key of a bin of the first round, counted from the smallest score."""
    above = m.let(f"{title}_bin", bin - BINS // 2)
    sign = m.let(f"{title}_sign", (above >> 31).to("uint32"))
    return (scalars.bits_of(scalars.float_of_half(maximum(above, -above) << 5)) ^ sign) - sign + ZERO


def _key(m, canonical_bits):
    """Key of a canonical fp32 bit pattern: unsigned order of keys = order of values; 0 is below every key."""
    same = m.let("same", canonical_bits.to("int32"))
    return (same ^ ((same >> 31) | SIGN)).to("uint32")


@by_text
def make_keys(m, bits, digits, column, lo, hi, lane):
    """Turn loaded bit patterns into keys in place, and pair up their first digits where there is room for these.

    Columns outside [lo, hi) get key 0 and the last bin, which no score has.
    """
    for j in m.loop("j", bits.size // 2, unrolled=True):
        low, high = m.let("low", _canonical(bits[2 * j])), m.let("high", _canonical(bits[2 * j + 1]))
        bits[2 * j] = _key(m, low)
        bits[2 * j + 1] = _key(m, high)
        if digits:
            digits[j] = _half_digits(m, low, high)
    with m.when((column < lo) | (column + WORD * bits.size > hi)):
        own = m.let("own", column + lane)
        for j in m.loop("j", bits.size // 2, unrolled=True):
            for half in range(2):
                at = own + (2 * WORD * j + WORD * half)
                with m.when((at < lo) | (at >= hi)):
                    bits[2 * j + half] = 0
                    if digits:
                        digits[j] = digits[j] | 0xFFFF << 16 * half


@by_text
def stash_keys(m, bits, stash, number, back, thread, threads):
    """Keep a batch of keys in shared memory, or take it `back`."""
    words = stash.part("words", number * (bits.size * threads))
    for j in m.loop("j", bits.size, unrolled=True):
        at = j * threads + thread
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
    for i in m.loop("i", rounds, unrolled=True) if rounds else ():
        words.write(zero, i * threads + thread)
    if rest:
        with m.when(thread < rest):
            words.write(zero, rounds * threads + thread)


@by_text
def count_first(m, hist, digits, column, lo, hi):
    """Count the first digits of a batch that has columns of the row."""
    with m.when((column < hi) & (column + 2 * WORD * digits.size > lo)):
        for j in m.loop("j", digits.size, unrolled=True):
            m.do(warps.atomic_add(hist.at((digits[j] >> 5) & (BINS - 1)), 1))
            m.do(warps.atomic_add(hist.at(digits[j] >> 21), 1))


@by_text
def guess_digits(m, near: Sets, grain: Sets, few):
    """Where 32 scores of a row lie close together, the key from which first digits count down, by their bits from `grain` on.

    Otherwise `near` is 0. It lies as far above the largest of these as that above the smallest, and above it if they are equal.
    """
    key = m.let("key", _key(m, _canonical(few)))
    highest = m.let("highest", warps.warp_most(key))
    spread = m.let("spread", highest - ~warps.warp_most(~key))
    m.set(near, 0)
    with m.when(spread < CLOSE):
        m.set(near, highest + minimum(maximum(spread, 1), ~highest))
    m.set(grain, _shift_of(2 * spread))


@by_text
def count_near(m, hist, bits, near, grain, column, lo, hi):
    """Count the first digits, from `near` down, of a batch of keys that has columns of the row; the last bin as in make_keys."""
    with m.when((column < hi) & (column + WORD * bits.size > lo)):
        for j in m.loop("j", bits.size, unrolled=True):
            below = m.let("below", (near - minimum(near, bits[j])) >> grain)
            bin = select(bits[j] != 0, minimum(below, BINS - 2), BINS - 1)
            m.do(warps.atomic_add(hist.at(bin), 1))


def _shift_of(span):
    """Bits below the next digit of an undecided range."""
    return maximum(32 - warps.clz(span) - 11, 0).to("uint32")


def _count_key(m, bins, key, end, span, shift):
    """Count the next digit of a key if it is undecided."""
    below = m.let("below", end - key)
    m.do(warps.count_where(bins.at(below >> shift), below <= span))


@by_text
def count_keys(m, hist, first, bits, end, span):
    """Count the next digit of the undecided keys of a batch; the bins are those from `first` on."""
    shift, bins = m.let("shift", _shift_of(span)), hist.part("bins", first)
    for j in m.loop("j", bits.size, unrolled=True):
        _count_key(m, bins, bits[j], end, span, shift)


@by_text
def count_listed(m, hist, first, entries, total, end, span, thread, threads):
    """Count the next digit of the undecided ones of the first `total` list entries."""
    shift, bins = m.let("shift", _shift_of(span)), hist.part("bins", first)
    for i in m.loop("i", total, begin=thread, step=threads):
        _count_key(m, bins, _key_of(entries[i]), end, span, shift)


def _key_of(entry):
    return warps.pair_high(entry).to("uint32")


@by_text
def bound_listed(m, entries, total, counters, end, span, thread, threads, lane):
    """Note the largest and the smallest key of the undecided ones of the first `total` list entries."""
    largest, under = m.var("largest", 0, "uint32"), m.var("under", 0, "uint32")
    for i in m.loop("i", total, begin=thread, step=threads):
        key = m.let("key", _key_of(entries[i]))
        with m.when(end - key <= span):
            m.set(largest, maximum(largest, key))
            m.set(under, maximum(under, ~key))
    bounds = m.let("upper", warps.warp_most(largest)), m.let("lower", warps.warp_most(under))
    with m.when(lane == 0):
        for which, most in zip((UPPER, LOWER), bounds, strict=True):
            m.do(warps.raise_to(counters.at(which), most))


@by_text
def read_bounded(m, end: Changes, span: Changes, counters):
    """The range from the smallest to the largest undecided key, which are one where all of them are equal."""
    bottom = m.let("bottom", maximum(end - span, ~counters[LOWER].to("uint32")))
    m.set(end, minimum(end, counters[UPPER].to("uint32")))
    m.set(span, end - bottom)


def _lower_warps(m, sums, warp, lane):
    """What the warps before this one have left in `sums`, added up."""
    other = m.var("other")
    with m.when(lane < warp):
        m.set(other, sums[lane])
    return warps.warp_sum(other)


@by_text
def sum_bins(m, mine, through: Sets, hist, first, sums, thread, warp, lane):
    """Each thread takes its bins; `through` is its warp's sum up to and with them, and `sums` get the warps' totals."""
    hist.part("bins", first).read(mine, thread)
    m.set(through, warps.scan(sum(mine)))
    with m.when(lane == LAST_LANE):
        sums[warp] = through


@by_text
def pick_bin(m, state, mine, through, sums, need, end, span, half, thread, warp, lane):
    """The thread that has the `need`-th key from the top narrows the range to its bin, for all threads in `state`.

    `half`: the bins are those of the first digit.
    """
    own = m.let("own", sum(mine))
    left = m.let("left", need - (through - own + _lower_warps(m, sums, warp, lane)))
    with m.when((left > 0) & (left <= own)):
        digit, inside, before = _bin_of(m, thread * mine.size, list(mine), left)
        left = m.var("wanted", left - before)
        _write_state(m, state, *_narrow(m, digit, left, inside, end, span, half))


def _bin_of(m, first, counts, need):
    """Of bins from `first` on the one that has the `need`-th key: which it is, the keys in it and in those before it."""
    digit, inside, before = m.var("digit", first), m.var("inside", counts[0]), m.var("before")
    upto = counts[0]
    for i, count in enumerate(counts[1:], 1):
        if i > 1:
            upto = m.let(f"upto_{i}", upto + counts[i - 1])
        with m.when(upto < need):
            m.set(digit, first + i)
            m.set(inside, count)
            m.set(before, upto)
    return digit, inside, before


def _narrow(m, digit, need, inside, end, span, half, near=0, grain=0):
    """The undecided range after a round: its end, span, the keys still needed of it, those in it.

    Where all of it is needed, nothing stays undecided and every key above the new end is selected.
    """
    if half:
        top = m.var("top", UINT32, "uint32")
        with m.when(digit > 0):
            m.set(top, _half_edge(m, "upper", BINS - digit) - 1)
        width = m.var("width", top - _half_edge(m, "lower", BINS - 1 - digit), "uint32")
        if not isinstance(near, int):
            with m.when(near != 0):
                below = m.var("number", digit.to("uint32"), "uint32") << grain
                bottom = m.var("bottom", 1, "uint32")
                with m.when(digit < BINS - 2):
                    m.set(bottom, near - minimum(below + ((1 << grain) - 1), near - 1))
                m.set(top, UINT32)
                with m.when(digit > 0):
                    m.set(top, near - below)
                m.set(width, top - bottom)
    else:
        shift = m.let("shift", _shift_of(span))
        below = m.let("below", digit.to("uint32") << shift)
        top = m.var("top", end - below, "uint32")
        width = m.var("width", minimum(span - below, (1 << shift) - 1), "uint32")
    with m.when(need == inside):
        m.set(top, top - width - 1)
        for left in (width, need, inside):
            m.set(left, 0)
    return top, width, need, inside


def _write_state(m, state, end, span, need, inside):
    words = m.local("words", 4)
    words[0], words[1], words[2], words[3] = end.to("int32"), span.to("int32"), need, inside
    state.write(words, 0)


@by_text
def read_state(m, end: Sets, span: Sets, need: Sets, inside: Sets, state):
    """End, span, keys needed and keys inside of the undecided range, as the last round left them."""
    words = m.local("words", 4)
    state.read(words, 0)
    for i, variable in enumerate((end, span, need, inside)):
        m.set(variable, words[i].to(variable.dtype))


@by_text
def send_sums(m, peers, at, hist, first, group, rank, warp, cta_warps, lane):
    """Send every CTA of the group the sums of this one's coarse bins."""
    bins, pair = hist.part("bins", first), m.local("pair", 2)
    for i in m.loop("i", COARSE // cta_warps, unrolled=True):
        bin = i * cta_warps + warp
        bins.read(pair, bin * (BINS // COARSE // 2) + lane)
        total = m.let("total", warps.warp_sum(pair[0] + pair[1]))
        with m.when(lane < group):
            m.do(warps.store_peer(peers.at(at + (rank * COARSE + bin)), lane, total))


@by_text
def pick_bin_of_group(
    m, state, peers, bins, coarse, at, need, lower, end, span, half, near, grain, group, rank, warp, lane
):
    """One warp finds the coarse bin and then, in all CTAs' counts of it, the bin with the `need`-th key from the top.

    `state` also gets the keys above the range in CTAs of lower rank, and those in the range. `half` as in pick_bin, unless
    `near` is not 0: the first digits are then those of count_near.
    """
    with m.when(warp == 0):
        count, under = m.var("count"), m.var("under")
        for i in m.loop("i", group, unrolled=True):
            part = m.let("part", coarse[at + (i * COARSE + lane)])
            m.set(count, count + part)
            with m.when(i < rank):
                m.set(under, under + part)
        _, source, over = _find(m, "coarse_bin", count, need)
        left = m.let("left", need - warps.shuffle(over, source))
        less = m.var("less", lower + warps.warp_sum(select(lane < source, under, 0)))
        first_bin = m.let("first_bin", source * (BINS // COARSE) + 2 * lane)
        both, both_under = m.var("both", 0, "int64"), m.var("both_under", 0, "int64")
        for i in m.loop("i", group, unrolled=True):
            pair = m.let("pair", warps.load_peer_pair(peers.at(bins + first_bin), i))
            m.set(both, both + pair)
            with m.when(i < rank):
                m.set(both_under, both_under + pair)
        low, high = m.let("low", warps.pair_low(both)), m.let("high", warps.pair_high(both))
        low_under, high_under = warps.pair_low(both_under), m.let("high_under", warps.pair_high(both_under))
        hit, source, over = _find(m, "bin", low + high, left)
        m.set(less, less + warps.warp_sum(select(lane < source, low_under + high_under, 0)))
        with m.when(hit):
            left = m.var("wanted", left - over)
            digit, inside, before = _bin_of(m, first_bin, [low, high], left)
            within = m.var("within", low_under)
            with m.when(digit > first_bin):
                m.set(within, high_under)
                m.set(less, less + low_under)
            m.set(left, left - before)
            found = _narrow(m, digit, left, inside, end, span, half, near, grain)
            with m.when(inside == 0):
                m.set(less, less + within)
                m.set(within, 0)
            _write_state(m, state, *found)
            state[4] = less
            state[5] = within


def _find(m, title: str, count, need):
    """Of the lane that has the `need`-th key of the lanes' counts: whether it is this one, which it is; what lower lanes have."""
    through = m.let(f"through_{title}", warps.scan(count))
    over = m.let(f"over_{title}", through - count)
    hit = m.let(f"hit_{title}", (over < need) & (through >= need))
    return hit, m.let(title, LAST_LANE - warps.clz(warps.ballot(hit))), over


@by_text
def collect(m, bits, above, equal, word, counters, entries, first, end, span, listing, owner, offset, lane):
    """Mark a batch's keys above the range, in its words of the bitmap from `word` on; list those in it from entry `first`
    on, or mark these too. A warp takes its entries with one atomic."""
    _mark_words(m, above, word, bits, lambda key: key > end, lane)
    with m.when(listing):
        left = m.var("left")
        for j in m.loop("j", bits.size, unrolled=True):
            m.set(left, left | select(end - bits[j] <= span, 1 << j, 0))
        with m.when(warps.any_lane(left != 0)):
            slot = m.var("slot", warps.scan(warps.popc(left)))
            m.set(slot, slot + _take_room(m, counters, slot, lane))
            place = m.var("place", ~((owner << OFFSET_BITS) | (offset + lane)))
            entries = entries.part("listed", first)
            for j in m.loop("j", bits.size, unrolled=True):
                with m.when(end - bits[j] <= span):
                    m.set(slot, slot - 1)
                    entries[slot] = warps.make_pair(bits[j], place - WORD * j)
    with m.otherwise():
        _mark_words(m, equal, word, bits, lambda key: end - key <= span, lane)


def _take_room(m, counters, through, lane):
    """Where a warp's next entries of the list go, of which its lanes have `through` up to and with each."""
    room = m.var("room")
    with m.when(lane == LAST_LANE):
        m.set(room, warps.fetch_add(counters.at(LISTED), through))
    return warps.shuffle(room, LAST_LANE)


def _pick(registers, j, half=1):
    """Register `j`, a power of two of them: they have no address."""
    if len(registers) == 1:
        return registers[0]
    upper, pairs = (j & half) != 0, zip(registers[::2], registers[1::2], strict=True)
    return _pick([select(upper, high, low) for low, high in pairs], j, 2 * half)


def _each_bit(m, word):
    """The numbers of a word's bits, from the lowest on; nothing of it is left."""
    for _ in m.repeat(word != 0):
        lowest = m.let("lowest", word & -word)
        yield m.let("number", LAST_LANE - warps.clz(lowest))
        m.set(word, word ^ lowest)


def _mark_words(m, bitmap, word, bits, marked, lane):
    """A batch's words of a bitmap, from `word` on: a bit for each of the warp's keys that is `marked`."""
    words, bitmap = m.local("words", bits.size), bitmap.part("own_words", word)
    for j in m.loop("j", bits.size, unrolled=True):
        words[j] = warps.ballot(marked(bits[j]))
    with m.when(lane == 0):
        for j in m.loop("j", bits.size, unrolled=True):
            bitmap[j] = words[j]
    return words


@by_text
def send_entries(m, peers, entries, first, counters, group, rank, warp, cta_warps, lane):
    """Copy this CTA's part of the list to the same place in every peer; the warps share chunks and peers."""
    count = m.let("count", counters[LISTED])
    for i in m.loop("i", ceildiv(count, WORD) * group, begin=warp, step=cta_warps):
        at, to = m.let("at", i // group * WORD + lane), m.let("to", i % group)
        with m.when((at < count) & (to != rank)):
            m.do(warps.store_peer(peers.at(first + at), to, entries[first + at]))


def _mark(m, entry, bitmap, counters, which, rank, cta_warps, words):
    """Set a list entry's bit where this CTA owns it, and count it where a CTA of lower rank does."""
    place = m.let("place", ~warps.pair_low(entry))
    offset = m.let("offset", place & ((1 << OFFSET_BITS) - 1))
    warp = m.let("owner", (place >> OFFSET_BITS) - rank * cta_warps)
    with m.when(warp < 0):
        m.do(warps.atomic_add(counters.at(which), 1))
    with m.when((warp >= 0) & (warp < cta_warps)):
        m.do(warps.set_bits(bitmap.at(warp * words + (offset >> 5)), 1 << (offset & 31)))


@by_text
def sift(
    m, entries, total, target, above, equal, counters, end, span, inside, ranked, rank, cta_warps, words, thread, threads,
):  # fmt: skip
    """After the rounds over the list: mark entries above the range; keep those in it from `target` on where at most
    `ranked` are left to rank, else mark them as equal."""
    for i in m.loop("i", total, begin=thread, step=threads):
        entry = m.let("entry", entries[i])
        key = m.let("key", _key_of(entry))
        with m.when(key > end):
            _mark(m, entry, above, counters, LOWER_ABOVE, rank, cta_warps, words)
        with m.when((end - key <= span) & (inside > 0)):
            with m.when(inside > ranked):
                _mark(m, entry, equal, counters, LOWER_EQUAL, rank, cta_warps, words)
            with m.otherwise():
                slot = m.var("slot")
                m.set(slot, warps.fetch_add(counters.at(KEPT), 1))
                entries[target + slot] = entry


@by_text
def rank_entries(m, entries, first, count, need, above, counters, rank, cta_warps, words, warp, lane):
    """Mark the `need` largest of at most 64 entries: a warp an entry, two entries a lane to compare it with."""
    low, high = m.var("low", 0, "int64"), m.var("high", 0, "int64")
    with m.when(lane < count):
        m.set(low, entries[first + lane])
    with m.when(lane + WORD < count):
        m.set(high, entries[first + (lane + WORD)])
    for i in m.loop("i", count, begin=warp, step=cta_warps):
        entry = m.let("entry", entries[first + i])
        ahead = [warps.popc(warps.ballot(warps.unsigned_above(held, entry))) for held in (low, high)]
        with m.when((m.let("ahead", sum(ahead)) < need) & (lane == 0)):
            _mark(m, entry, above, counters, LOWER_ABOVE, rank, cta_warps, words)


@by_text
def count_marks(m, before: Sets, bitmap, sums, first, words, warp, lane):
    """Count each warp's marked columns in `sums`; those of lower lanes, which have consecutive words each, are `before`."""
    own = m.var("own")
    begin, end = _own_words(m, words, lane)
    for i in m.loop("i", end, begin=begin):
        m.set(own, own + warps.popc(bitmap[first + i]))
    through = m.let("through", warps.scan(own))
    with m.when(lane == LAST_LANE):
        sums[warp] = through
    m.set(before, through - own)


def _own_words(m, words, lane):
    """A lane's words among those of its warp, consecutive ones: [begin, end)."""
    each = m.let("each", ceildiv(words, WORD))
    begin = m.let("begin", lane * each)
    return begin, m.let("final", minimum(begin + each, words))


@by_text
def take_ties(m, before, above, equal, sums, take, first, words, warp, lane):
    """Select the first `take` columns marked as equal, in order of position."""
    begin, end = _own_words(m, words, lane)
    left = m.var("left", take - _lower_warps(m, sums, warp, lane) - before)
    for i in m.loop("i", end, begin=begin):
        word = m.var("word", equal[first + i])
        found = m.let("found", warps.popc(word))
        with m.when(left > 0):
            for _ in m.loop("bit", found, begin=left):
                m.set(word, word ^ (1 << (LAST_LANE - warps.clz(word))))
            above[first + i] = above[first + i] | word
        m.set(left, left - found)


@by_text
def place_marks(m, placed, before, sums, above, first, words, position, dense, keep, warp, lane):
    """Positions of each warp's marked columns, ascending, behind those of lower warps and lanes.

    Of `dense` bitmaps, in which a lane has a word at most, a word at a time; 0 says that there are none.
    """
    place = m.var("place", before + _lower_warps(m, sums, warp, lane))

    def by_lane():
        begin, end = _own_words(m, words, lane)
        for i in m.loop("i", end, begin=begin):
            word = m.var("word", above[first + i])
            for number in _each_bit(m, word):
                placed[place] = position + i * WORD + number
                m.set(place, place + 1)

    if isinstance(dense, int):
        by_lane()
        return
    with m.when(dense):
        below, marks = m.let("below", (1 << lane) - 1), m.local("marks", keep)
        for base in m.loop("base", words, step=keep):
            for j in m.loop("j", keep, unrolled=True):
                marks[j] = above[first + (base + j)]
            for j in m.loop("j", keep, unrolled=True):
                slot = m.let("slot", warps.shuffle(place, base + j) + warps.popc(marks[j] & below))
                with m.when(((marks[j] >> lane) & 1) != 0):
                    placed[slot] = position + (base + j) * WORD + lane
    with m.otherwise():
        by_lane()


@by_text
def write_ids(
    m, indices: Writes, row, k, skip, sums, placed, block_table, max_pages, line, page_size, inverse, pages, first_page, group,
    cta_warps, thread, threads, lane,
):  # fmt: skip
    """Write the ids of this CTA's positions, of which `sums` tells where it is not alone, from slot `skip` on.

    `pages` holds the entries of the page table from `first_page` on, unless that is -1.
    """
    out, table = indices.row("out", row, k, skip), block_table.row("table", line, max_pages)
    total = m.let("total", _lower_warps(m, sums, cta_warps, lane)) if group > 1 else k
    for slot in m.loop("slot", total, begin=thread, step=threads, at_once=4):
        id = m.var("id")
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
    listed, batch, columns = m.var("listed"), m.var("batch"), WORD * keys.size
    same = m.let("same", bottom.to("int32"))
    less = scalars.float_of((same ^ (~(same >> 31) & 0x7FFFFFFF)).to("uint32"))
    less = m.let("less", scalars.add_rn(less, 0.0))

    def begin(number):
        """The first column of a batch, and from where on it is read."""
        column = origin + (number * cta_warps + warp) * columns
        return column, minimum(column, stride - columns)

    def load(bits, place):
        scores, quad = logits.row("scores", row, stride, place), m.local("quad", QUAD, "float32")
        for j in m.loop("j", bits.size // QUAD, unrolled=True):
            scores.read(quad, WORD * j + lane)
            for i in range(QUAD):
                bits[QUAD * j + i] = scalars.bits_of(quad[i])

    def pick(bits, column, place):
        """List a batch, four columns a lane, 128 in a row of them."""
        at, first, left = m.let("at", place), m.let("first", maximum(start, column)), m.var("left")
        own = m.let("own", at + QUAD * lane)
        with m.when((at < first) | (at + columns > last)):
            for j in m.loop("j", bits.size, unrolled=True):
                with m.when((own + _step(j) < first) | (own + _step(j) >= last)):
                    bits[j] = MINUS_INFINITY
        m.comment("A bit a score: whether it is not negative less the score of `bottom`, which NaN is not.")
        for j in m.loop("j", bits.size, unrolled=True):
            above = scalars.add_rn(scalars.float_of(bits[bits.size - 1 - j]), less)
            m.set(left, scalars.funnel_left(scalars.bits_of(above), left, 1))
        m.set(left, ~left & ((1 << bits.size) - 1))
        through = m.let("through", warps.scan(warps.popc(left)))
        total = m.let("total", warps.shuffle(through, LAST_LANE))
        with m.when(total > 0):
            taken = m.let("taken", _take_room(m, counters, through, lane))
            m.set(listed, taken + total)
            with m.when(listed <= room):
                slot = m.var("slot", taken + through)
                for j in _each_bit(m, left):
                    key = m.var("key", _pick(list(bits), j), "uint32")
                    m.set(slot, slot - 1)
                    entries[slot] = warps.make_pair(key, ~(own - origin) - _step(j))

    load(keys, begin(0)[1])
    for _ in m.repeat((batch < batches) & (listed <= room)):
        for turn, (bits, other) in enumerate(((keys, ahead), (ahead, keys))):
            load(other, begin(batch + (turn + 1))[1])
            pick(bits, *begin(batch + turn))
        m.set(batch, batch + 2)


def _step(j):
    """How far behind a lane's first column the one in register `j` is."""
    return j + (j >> 2) * (QUAD * WORD - QUAD)


@by_text
def mark_equal(m, bits, equal, word, counters, tied, lane):
    """Mark a batch's keys that equal `tied`, from `word` of the bitmap on, and count them as kept."""
    words, total = _mark_words(m, equal, word, bits, lambda key: key == tied, lane), m.var("total")
    with m.when(lane == 0):
        for j in m.loop("j", bits.size, unrolled=True):
            m.set(total, total + warps.popc(words[j]))
        m.do(warps.atomic_add(counters.at(KEPT), total))


@by_text
def key_entries(m, entries, total, counters, thread, threads, lane):
    """Make the bit patterns of the first `total` list entries keys, and note the largest."""
    largest = m.var("largest", 0, "uint32")
    for i in m.loop("i", total, begin=thread, step=threads):
        entry = m.let("entry", entries[i])
        key = m.let("key", _key(m, _canonical(_key_of(entry))))
        entries[i] = warps.make_pair(key, warps.pair_low(entry))
        m.set(largest, maximum(largest, key))
    top = m.let("top", warps.warp_most(largest))
    with m.when(lane == 0):
        m.do(warps.raise_to(counters.at(LARGEST), top))
