"""Leaf maths of the exact top-k selection, by name: what each leaf means for a CTA, in torch.

A score becomes a 32-bit key whose unsigned order is the order of the scores. What every warp has for itself is a
tensor over the warps, what every thread has one over the threads; registers are (threads, elements). Unsigned words
are 64-bit integers here.
"""

from __future__ import annotations

from typing import Any

import torch

from ...tile.text import Changes, Sets, Writes, leaf

WORD = 32
"""Columns of a bitmap word: one a lane."""

BINS = 2048
"""Bins of a histogram: eleven bits a digit."""

COARSE = 32
"""Coarse bins of a round in a cluster: one a lane."""

OFFSET_BITS = 22
"""Low bits of a list entry's position: the column within its warp's run. The owning warp stands above them."""

LISTED, KEPT, LOWER_ABOVE, LOWER_EQUAL, LARGEST = range(5)
"""Counters: entries listed, entries kept for ranking, entries of lower ranks that are selected or may be, largest key."""

QUAD = 4
"""Columns that a lane loads at once."""

LOWEST, INFINITE = 0x00800000, 0xFF800000
"""Keys of the smallest finite score and of infinity."""

MINUS_INFINITY = 0xFF800000
"""Its bit pattern."""

UINT32 = 0xFFFFFFFF
HALF_WORD = 0xFFFF


def _columns(column: Any, keep: int) -> torch.Tensor:
    """Columns of a batch, (threads, keep): each warp's words from `column` on, a column a lane."""
    lanes, words = torch.arange(WORD).view(1, -1, 1), torch.arange(keep).view(1, 1, -1)
    return (torch.as_tensor(column).view(-1, 1, 1) + words * WORD + lanes).view(-1, keep)


def _quads(column: Any, keep: int) -> torch.Tensor:
    """Columns of a batch, (threads, keep): each warp's from `column` on, four a lane, 128 in a row of them."""
    lanes, each = torch.arange(WORD).view(1, -1, 1), torch.arange(keep).view(1, 1, -1)
    columns = each // QUAD * (QUAD * WORD) + lanes * QUAD + each % QUAD
    return (torch.as_tensor(column).view(-1, 1, 1) + columns).view(-1, keep)


def _by_thread(value: Any) -> torch.Tensor:
    """A value of each warp, or of all, for each thread."""
    value = torch.as_tensor(value)
    return value.repeat_interleave(WORD).view(-1, 1) if value.dim() else value


def _signed(words: torch.Tensor) -> torch.Tensor:
    """The int32 of the same bits."""
    return ((words + (1 << 31) & UINT32) - (1 << 31)).to(torch.int32)


def _unsigned(words: torch.Tensor) -> torch.Tensor:
    return words.long() & UINT32


def _words(marks: torch.Tensor) -> torch.Tensor:
    """Bitmap words of a batch, (warps, keep), from a mark a column, (threads, keep)."""
    bits = marks.long().view(-1, WORD, marks.shape[1]) << torch.arange(WORD).view(1, -1, 1)
    return _signed(bits.sum(dim=1))


def _marks(words: torch.Tensor) -> torch.Tensor:
    """Marks of bitmap words, one more dimension of 32."""
    return words[..., None] >> torch.arange(WORD) & 1


def _run(first: Any, words: int) -> torch.Tensor:
    """Places of each warp's words in a bitmap."""
    return torch.as_tensor(first).view(-1, 1) + torch.arange(words)


def _below(keys: torch.Tensor, end: int) -> torch.Tensor:
    """How far each key lies below the end of a range; huge for one above it."""
    return end - keys & UINT32


def _shift(span: int) -> int:
    """Bits below the next digit of an undecided range."""
    return max(span.bit_length() - 11, 0)


def order_key(bits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys of fp32 bit patterns in unsigned order of the floats, and the floats: -0 equals +0, NaN above +inf."""
    floats = _signed(bits).view(torch.float32) + 0.0
    same = torch.where(floats.isnan(), 0x7FFFFFFF, floats.view(torch.int32)).long() & UINT32
    return torch.where(same >= 1 << 31, same ^ UINT32, same ^ (1 << 31)), floats


def _half_digits(floats: torch.Tensor) -> torch.Tensor:
    """First digits as 16 bits, 0 the largest: the score rounded towards zero to fp16; bits 5 to 15 are the bin."""
    near = floats.half()
    bits = near.view(torch.int16).long() & 0x7FFF
    bits = torch.where(near.float().abs() > floats.abs(), bits - 1, bits)
    bits = torch.where(floats.isnan(), 0x7FFF, bits)
    return torch.where((floats < 0) & ~floats.isnan(), bits | 0x8000, bits ^ 0x7FFF)


def _half_edge(bin: int) -> int:
    """Smallest key of a bin of the first round, counted from the smallest score."""
    middle = BINS // 2
    magnitude = torch.tensor(abs(bin - middle) << 5, dtype=torch.int32).to(torch.int16)
    bits = int(magnitude.view(torch.float16).float().view(torch.int32))
    return (1 << 31) + (bits if bin >= middle else -bits)


def _narrow(
    digit: int, need: int, inside: int, end: int, span: int, first: bool
) -> tuple[int, int, int, int]:
    """The undecided range after a round: its end, span, the keys still needed of it and the keys in it.

    Where all of it is needed, nothing stays undecided and every key above the new end is selected.
    """
    if first:
        bin = BINS - 1 - digit
        end = _half_edge(bin + 1) - 1 if digit else UINT32
        span = end - _half_edge(bin)
    else:
        below = digit << _shift(span)
        end, span = end - below, min(span - below, (1 << _shift(span)) - 1)
    return (end - span - 1 & UINT32, 0, 0, 0) if need == inside else (end, span, need, inside)


def _write_state(state: Any, end: int, span: int, need: int, inside: int) -> None:
    state[:4] = _signed(torch.tensor([end, span, need, inside]))


@leaf
def load_words(bits: Any, logits: Any, row: int, stride: int, column: Any, limit: Any, lane: Any) -> None:
    """Bit patterns of each warp's columns from `column` on; one at or past `limit` is not read and gives 0."""
    columns = _columns(column, bits.shape[1])
    inside = columns < _by_thread(limit)
    bits.zero_()
    bits[inside] = _unsigned(logits[row].view(torch.int32))[columns[inside]]


@leaf
def load_ahead(bits: Any, logits: Any, row: int, stride: int, column: Any, columns: int, lane: Any) -> None:
    """load_words of a row of at most `columns`; of a longer one nothing is read."""
    limit = torch.full((len(bits) // WORD,), stride if stride <= columns else 0)
    load_words.torch(bits, logits, row, stride, column, limit, lane)


@leaf
def load_sample(
    bits: Any,
    logits: Any,
    row: int,
    stride: int,
    start: int,
    last: int,
    every: int,
    warp: Any,
    warps: int,
    lane: Any,
) -> None:
    """Bit patterns of a sample of the row, one word in `every`, never the same one of these; -inf where the row has no column.

    Word j of a warp is of the `j * warps + warp`-th run of `every` words.
    """
    count = bits.shape[1]
    warp, words = torch.as_tensor(warp).view(-1, 1), torch.arange(count).view(1, -1)
    place = start // WORD + (words * warps + warp) * every + (warp + 5 * words) % every
    columns = (place.view(-1, 1, count) * WORD + torch.arange(WORD).view(1, -1, 1)).view(-1, count)
    inside = (columns >= start) & (columns < last)
    bits.fill_(MINUS_INFINITY)
    bits[inside] = _unsigned(logits[row].view(torch.int32))[columns[inside]]


@leaf
def load_quads(bits: Any, logits: Any, row: int, stride: int, column: Any, lane: Any) -> None:
    """Bit patterns of each warp's columns from `column` on, four a lane; a batch that would end past the row is its last
    one instead."""
    bits.copy_(_unsigned(logits[row].view(torch.int32))[_quads(_within(column, bits, stride), bits.shape[1])])


def _within(column: Any, bits: Any, stride: int) -> torch.Tensor:
    return torch.as_tensor(column).clamp(max=stride - WORD * bits.shape[1])


@leaf
def read_bottom(bottom: Sets, less: Sets, end: int, span: int) -> Any:
    """The threshold that a sample gives: the smallest key of a range, at least that of the smallest finite score.

    `less` is less its score: the sum with a score is negative below.
    """
    bottom = min(max(end - span, LOWEST), INFINITE)
    bits = torch.tensor(bottom ^ (1 << 31) if bottom >= 1 << 31 else bottom ^ UINT32)
    return bottom, float(0.0 - _signed(bits).view(torch.float32))


@leaf
def list_above(
    listed: Changes, bits: Any, entries: Any, counters: Any, less: float, column: Any, origin: int, start: int, last: int,
    stride: int, room: int, lane: Any,
) -> Any:  # fmt: skip
    """List a batch of load_quads, as bit patterns: what with `less` is not negative, while there is room for `room`.

    Positions count from `origin`. `listed` is then how many there are, as far as each warp knows.
    """
    columns = _quads(_within(column, bits, stride), bits.shape[1])
    reach = (columns >= start) & (columns >= _by_thread(column)) & (columns < last)
    reach &= ~(order_key(bits)[1] + torch.tensor(less, dtype=torch.float32) < 0)
    found, slot = bits[reach] << 32 | ~(columns - origin)[reach] & UINT32, int(counters[LISTED])
    counters[LISTED] += len(found)
    if slot + len(found) <= room:
        entries[slot : slot + len(found)] = found
    return slot + len(found)


@leaf
def read_listed(listed: Sets, counters: Any) -> Any:
    """Keys that were listed, or for which there was no room."""
    return int(counters[LISTED])


@leaf
def key_entries(entries: Any, total: int, counters: Any, thread: Any, threads: int, lane: Any) -> None:
    """Make the bit patterns of the first `total` list entries keys, and note the largest."""
    keys = order_key(entries[:total] >> 32 & UINT32)[0]
    entries[:total] = keys << 32 | entries[:total] & UINT32
    counters[LARGEST] = _signed(keys.max())


@leaf
def read_largest(end: Sets, span: Sets, counters: Any, bottom: int) -> Any:
    """The range from `bottom` to the largest key of the list."""
    largest = int(_unsigned(counters[LARGEST]))
    return largest, largest - bottom


@leaf
def read_bounds(start: Sets, last: Sets, row_starts: Any, row_ends: Any, row: int, stride: int) -> Any:
    """The columns of a row, [start, last)."""
    return max(0, int(row_starts[row])), min(stride, int(row_ends[row]))


@leaf
def clear(words: Any, first: int, count: int, thread: Any, threads: int) -> None:
    """Zero `count` words of shared memory."""
    words[first : first + count] = 0


@leaf
def clear_run(bitmap: Any, first: Any, words: int, lane: Any) -> None:
    """Zero the warps' words of a bitmap."""
    bitmap[_run(first, words)] = 0


@leaf
def page_row(inverse: Sets, line: Sets, row: int, next_n: int, page_size: int) -> Any:
    """(2**32 - 1) // page_size and the row's line of the page table; zeros where there are no pages."""
    return (UINT32 // page_size, row // next_n) if page_size else (0, 0)


@leaf
def take_all(
    indices: Writes, row: int, k: int, length: int, rank: int, group: int, block_table: Any, max_pages: int, line: int, page_size: int,
    inverse: int, thread: Any, threads: int,
) -> None:  # fmt: skip
    """A row of at most `k` scores: every position, then -1, without a look at the scores; the CTAs take slots in turn."""
    slots = torch.arange(k)
    slots = slots[slots // threads % group == rank]
    taken = slots[slots < length]
    ids = torch.full((len(slots),), -1)
    ids[: len(taken)] = _tokens(taken, block_table, line, page_size)
    indices[row, slots] = ids.to(torch.int32)


def _tokens(positions: torch.Tensor, block_table: Any, line: int, page_size: int) -> torch.Tensor:
    if page_size == 0:
        return positions
    return block_table[line, positions // page_size].long() * page_size + positions % page_size


@leaf
def share_row(origin: Changes, run: Changes, start: int, last: int, warps: int) -> Any:
    """Where the warps' runs of words begin, and how long each is, in a row that the registers do not hold."""
    return start // WORD * WORD, -(-(last - start // WORD * WORD) // (WORD * warps))


@leaf
def bound_warp(
    limit: Sets, lo: Sets, hi: Sets, base: Any, run: int, start: int, last: int, stride: int
) -> Any:
    """Where a warp's columns end, and those of the row among them, [lo, hi)."""
    limit = (base + run * WORD).clamp(max=stride)
    return limit, base.clamp(min=start), limit.clamp(max=last)


@leaf
def fetch_pages(
    first_page: Sets, near: Sets, entry: Sets, first: int, columns: int, start: int, last: int, block_table: Any, max_pages: int,
    line: int, page_size: int, inverse: int, thread: Any, threads: int,
) -> Any:  # fmt: skip
    """The page-table entries of the columns [first, first + columns), one a thread from `first_page` on.

    `near` tells whether the threads hold them all.
    """
    entries = torch.full((threads,), 0)
    if page_size == 0:
        return 0, False, entries
    begin = max(first - start, 0) // page_size
    final = max(min(last, first + columns) - 1 - start, 0) // page_size
    held = block_table[line, begin : min(final + 1, begin + threads)]
    entries[: len(held)] = held.long()
    return begin, final - begin < threads, entries


@leaf
def make_keys(bits: Any, digits: Any, column: Any, lo: Any, hi: Any, lane: Any) -> None:
    """Turn loaded bit patterns into keys in place, and pair up their first digits.

    Columns outside [lo, hi) get key 0 and the last bin, which no score has.
    """
    floats = order_key(bits)[1]
    columns = _columns(column, bits.shape[1])
    inside = (columns >= _by_thread(lo)) & (columns < _by_thread(hi))
    first = torch.where(inside, _half_digits(floats), HALF_WORD)
    digits.copy_(first[:, ::2] | first[:, 1::2] << 16)
    make_keys_again.torch(bits, column, lo, hi, lane)


@leaf
def make_keys_again(bits: Any, column: Any, lo: Any, hi: Any, lane: Any) -> None:
    """Turn loaded bit patterns into keys in place; columns outside [lo, hi) get key 0."""
    columns = _columns(column, bits.shape[1])
    inside = (columns >= _by_thread(lo)) & (columns < _by_thread(hi))
    bits.copy_(torch.where(inside, order_key(bits)[0], 0))


@leaf
def stash(words: Any, first: int, bits: Any, thread: Any, threads: int) -> None:
    """Keep a batch of keys in shared memory."""
    words[first : first + bits.numel()] = _signed(bits).T.reshape(-1)


@leaf
def unstash(bits: Any, words: Any, first: int, thread: Any, threads: int) -> None:
    """Take a batch of keys back."""
    bits.copy_(_unsigned(words[first : first + bits.numel()]).view(-1, threads).T)


@leaf
def count_first(hist: Any, digits: Any, column: Any, lo: Any, hi: Any) -> None:
    """Count the first digits of the batches that have columns of the row."""
    columns = 2 * digits.shape[1] * WORD
    taken = digits.view(len(column), -1)[(column < hi) & (column + columns > lo)]
    for bins in (taken >> 5 & (BINS - 1), taken >> 21):
        hist[:BINS] += torch.bincount(bins.flatten(), minlength=BINS).to(torch.int32)


@leaf
def count_keys(hist: Any, first: int, bits: Any, end: int, span: int) -> None:
    """Count the next digit of the undecided keys of a batch; the bins are those from `first` on."""
    below = _below(bits.flatten(), end)
    digits = below[below <= span] >> _shift(span)
    hist[first : first + BINS] += torch.bincount(digits, minlength=BINS).to(torch.int32)


@leaf
def count_listed(
    hist: Any, first: int, entries: Any, total: int, end: int, span: int, thread: Any, threads: int
) -> None:
    """Count the next digit of the undecided ones of the first `total` list entries."""
    count_keys.torch(hist, first, entries[:total] >> 32 & UINT32, end, span)


@leaf
def sum_bins(
    mine: Any, through: Sets, hist: Any, first: int, sums: Any, thread: Any, warp: Any, lane: Any
) -> Any:
    """Each thread takes its bins; `through` is its warp's sum up to and with them, and `sums` get the warps' totals."""
    mine.copy_(hist[first : first + BINS].view(mine.shape))
    return sum_taken.torch(mine, sums, warp, lane)


@leaf
def sum_taken(mine: Any, through: Sets, sums: Any, warp: Any, lane: Any) -> Any:
    """`through` is each thread's warp's sum up to and with its bins, and `sums` get the warps' totals."""
    through = mine.sum(dim=1).view(-1, WORD).cumsum(dim=1)
    sums[: len(through)] = through[:, -1].to(torch.int32)
    return through.view(-1)


@leaf
def fetch_counts(mine: Any, counts: Writes, row: int, thread: Any) -> None:
    """Each thread takes its bins of what scoring has counted of a row; the counts are zeros from then on."""
    mine.copy_(counts[row].view(mine.shape))
    counts[row] = 0


@leaf
def pick_bin(
    state: Any, mine: Any, through: Any, sums: Any, need: int, end: int, span: int, first: bool, thread: Any, warp: Any, lane: Any,
) -> None:  # fmt: skip
    """The thread that has the `need`-th key from the top narrows the range to its bin, for all threads in `state`."""
    warps = len(through) // WORD
    before = (sums[:warps].cumsum(dim=0) - sums[:warps]).repeat_interleave(WORD) + through - mine.sum(dim=1)
    left = need - before
    for owner in torch.nonzero((left > 0) & (left <= mine.sum(dim=1))).flatten().tolist():
        wanted, bin = int(left[owner]), 0
        while wanted > int(mine[owner, bin]):
            wanted -= int(mine[owner, bin])
            bin += 1
        digit = owner * mine.shape[1] + bin
        _write_state(state, *_narrow(digit, wanted, int(mine[owner, bin]), end, span, first))


@leaf
def read_state(end: Sets, span: Sets, need: Sets, inside: Sets, state: Any) -> Any:
    """End, span, keys needed and keys inside of the undecided range, as the last round left them."""
    return int(_unsigned(state[0])), int(_unsigned(state[1])), int(state[2]), int(state[3])


@leaf
def read_group_state(
    end: Sets, span: Sets, need: Sets, inside: Sets, lower: Sets, within: Sets, state: Any
) -> Any:
    """The undecided range as the last round left it, and what CTAs of lower rank have above it and in it."""
    return *read_state.torch(state), int(state[4]), int(state[5])


@leaf
def send_sums(
    coarse: Any, at: int, hist: Any, first: int, group: int, rank: int, warp: Any, warps: int, lane: Any
) -> None:
    """Send every CTA of the group the sums of this one's coarse bins."""
    for peer in coarse:
        peer[at + rank * COARSE :][:COARSE] = hist[first : first + BINS].view(COARSE, -1).sum(dim=1)


@leaf
def pick_bin_of_group(
    state: Any, hist: Any, bins: int, coarse: Any, at: int, need: int, lower: int, end: int, span: int, first: bool, group: int,
    rank: int, warp: Any, lane: Any,
) -> None:  # fmt: skip
    """One warp finds the coarse bin and then, in all CTAs' counts of it, the bin with the `need`-th key from the top.

    `state` also gets the keys above the range in CTAs of lower rank, and those in the range.
    """
    fine = BINS // COARSE
    parts = coarse[at : at + group * COARSE].view(group, COARSE)
    chosen, need, lower = _pick(parts, need, lower, rank)
    parts = torch.stack([part[bins + chosen * fine :][:fine] for part in hist])
    bin, need, lower = _pick(parts, need, lower, rank)
    inside, within = int(parts[:, bin].sum()), int(parts[:rank, bin].sum())
    end, span, need, inside = _narrow(chosen * fine + bin, need, inside, end, span, first)
    if inside == 0:
        lower, within = lower + within, 0
    _write_state(state, end, span, need, inside)
    state[4], state[5] = lower, within


def _pick(parts: torch.Tensor, need: int, lower: int, rank: int) -> tuple[int, int, int]:
    """The bin that has the `need`-th key of all parts, what it must still give, and what lower ranks have above it."""
    through = parts.sum(dim=0).cumsum(dim=0)
    bin = int((through >= need).long().argmax())
    return bin, need - (int(through[bin - 1]) if bin else 0), lower + int(parts[:rank, :bin].sum())


@leaf
def collect(
    count: Changes, bits: Any, above: Any, equal: Any, word: Any, counters: Any, entries: Any, first: int, end: int, span: int,
    listing: bool, owner: Any, offset: int, lane: Any,
) -> Any:  # fmt: skip
    """Mark a batch's keys above the range; list those in it from entry `first` on, or mark these too.

    `word` is the batch's place in the bitmaps. To `count` is added how many keys each lane marked as above.
    """
    keep = bits.shape[1]
    places, marked, undecided = _run(word, keep), _words(bits > end), _below(bits, end) <= span
    above[places] = marked
    if listing:
        place = _by_thread(owner) << OFFSET_BITS | _columns(torch.full((len(marked),), offset), keep)
        found = bits[undecided] << 32 | ~place[undecided] & UINT32
        slot = first + int(counters[LISTED])
        entries[slot : slot + len(found)] = found
        counters[LISTED] += len(found)
    else:
        equal[places] = _words(undecided)
    lanes = torch.zeros((len(marked), WORD), dtype=torch.int64)
    lanes[:, :keep] = _marks(marked).sum(dim=-1)
    return count + lanes


@leaf
def keep_count(counts: Any, count: Any, warp: Any, lane: Any) -> None:
    """The keys above the range of each warp, for all threads."""
    counts[: len(count)] = count.sum(dim=1).to(torch.int32)


@leaf
def keep_entry(pages: Any, entry: Any, thread: Any) -> None:
    """The threads' page-table entries, for all threads."""
    pages.copy_(entry)


@leaf
def send_entries(
    entries: Any, first: int, counters: Any, group: int, rank: int, warp: Any, warps: int, lane: Any
) -> None:
    """Copy this CTA's part of the list to the same place in every peer."""
    count = int(counters[LISTED])
    for peer in entries:
        peer[first : first + count] = entries[rank][first : first + count]


def _mark(
    entry: torch.Tensor, bitmap: Any, counts: Any, counters: Any, which: int, rank: int, warps: int, words: int,
) -> None:  # fmt: skip
    """Set list entries' bits where this CTA owns them, and count those that a CTA of lower rank does."""
    place = ~entry & UINT32
    warp, offset = (place >> OFFSET_BITS) - rank * warps, place & ((1 << OFFSET_BITS) - 1)
    counters[which] += int((warp < 0).sum())
    for w, column in zip(warp.tolist(), offset.tolist(), strict=True):
        if 0 <= w < warps:
            at = w * words + column // WORD
            bitmap[at] |= _signed(torch.tensor(1 << column % WORD))
            counts[w] += which == LOWER_ABOVE


@leaf
def sift(
    entries: Any, total: int, target: int, above: Any, equal: Any, counts: Any, counters: Any, end: int, span: int, inside: int,
    ranked: int, rank: int, warps: int, words: int, thread: Any, threads: int,
) -> None:  # fmt: skip
    """After the rounds over the list: mark entries above the range; keep those in it from `target` on where at most
    `ranked` are left to rank, else mark them as equal."""
    listed = entries[:total].clone()
    keys = listed >> 32 & UINT32
    _mark(listed[keys > end], above, counts, counters, LOWER_ABOVE, rank, warps, words)
    left = listed[_below(keys, end) <= span]
    if inside > ranked:
        _mark(left, equal, counts, counters, LOWER_EQUAL, rank, warps, words)
    elif inside > 0:
        entries[target : target + len(left)] = left
        counters[KEPT] += len(left)


@leaf
def rank_entries(
    entries: Any, first: int, count: int, need: int, above: Any, counts: Any, counters: Any, rank: int, warps: int, words: int,
    warp: Any, lane: Any,
) -> None:  # fmt: skip
    """Mark the `need` largest of at most 64 entries; of equal keys the lower position has the larger entry."""
    some = entries[first : first + count]
    # Unsigned order: the top bit of a key says that the score is positive.
    order = (some ^ (-1 << 63)).argsort(descending=True)
    _mark(some[order[:need]], above, counts, counters, LOWER_ABOVE, rank, warps, words)


@leaf
def read_marked(
    ties: Sets, skip: Sets, counters: Any, need: int, inside: int, lower: int, ranked: int
) -> Any:
    """Columns marked as equal that this CTA may still take, and columns that lower ranks select, after the list."""
    equal = int(counters[LOWER_EQUAL])
    return max(need - equal, 0) if inside > ranked else 0, lower + int(counters[LOWER_ABOVE]) + min(
        equal, need
    )


@leaf
def count_equal(equal: Any, sums: Any, first: Any, words: int, warp: Any, lane: Any) -> None:
    """Columns of each warp that are marked as equal."""
    found = _marks(equal[_run(first, words)]).sum(dim=(1, 2))
    sums[: len(found)] = found.to(torch.int32)


@leaf
def take_ties(
    above: Any, equal: Any, counts: Any, sums: Any, take: int, first: Any, words: int, warp: Any, lane: Any
) -> None:
    """Select the first `take` columns marked as equal, in order of position."""
    places = _run(first, words)
    marks = _marks(equal[places]).flatten(1)
    before = sums[: len(marks)].cumsum(dim=0) - sums[: len(marks)]
    taken = marks * (marks.cumsum(dim=1) + before.view(-1, 1) <= take)
    above[places] |= _signed((taken.view(*places.shape, WORD) << torch.arange(WORD)).sum(dim=-1))
    counts[: len(marks)] += taken.sum(dim=1).to(torch.int32)


@leaf
def first_slot(slot: Sets, counts: Any, skip: int, warp: Any, lane: Any) -> Any:
    """Slot of each warp's first column: behind lower ranks' and lower warps'."""
    mine = counts[warp].long()
    return skip + mine.cumsum(dim=0) - mine


def _emit(
    slot: Any, indices: Any, row: int, words: torch.Tensor, position: Any, block_table: Any, line: int, page_size: int, pages: Any,
    first_page: int, near: bool,
) -> Any:  # fmt: skip
    marks = _marks(words).flatten(1).bool()
    slots = (torch.as_tensor(slot).view(-1, 1) + marks.cumsum(dim=1) - 1)[marks]
    ids = (torch.as_tensor(position).view(-1, 1) + torch.arange(marks.shape[1]))[marks]
    if page_size and near:
        ids = pages[ids // page_size - first_page].long() * page_size + ids % page_size
    else:
        ids = _tokens(ids, block_table, line, page_size)
    indices[row, slots] = ids.to(torch.int32)
    return slot + marks.sum(dim=1)


@leaf
def emit_sparse(
    slot: Any, indices: Writes, row: int, k: int, above: Any, first: Any, words: int, position: Any, block_table: Any, max_pages: int,
    line: int, page_size: int, inverse: int, pages: Any, first_page: int, near: bool, lane: Any,
) -> None:  # fmt: skip
    """Write the ids of each warp's marked columns, ascending, from `slot` on: for bitmaps with few marks.

    With `near`, `pages` holds the entries of the page table from `first_page` on.
    """
    _emit(
        slot, indices, row, above[_run(first, words)], position, block_table, line, page_size, pages, first_page, near,
    )  # fmt: skip


@leaf
def emit(
    slot: Changes, indices: Writes, row: int, k: int, above: Any, word: Any, size: int, position: Any, block_table: Any, max_pages: int,
    line: int, page_size: int, inverse: int, pages: Any, first_page: int, near: bool, lane: Any,
) -> Any:  # fmt: skip
    """Write the ids of a batch's marked columns, ascending, from `slot` on; the slot moves behind them."""
    return _emit(
        slot,
        indices,
        row,
        above[_run(word, size)],
        position,
        block_table,
        line,
        page_size,
        pages,
        first_page,
        near,
    )


@leaf
def count_marks(slot: Sets, sums: Any, above: Any, first: Any, words: int, warp: Any, lane: Any) -> Any:
    """Count each warp's marked columns in `sums`; `slot` is those of lower lanes, which have consecutive words each."""
    each = -(-words // WORD)
    marks = torch.zeros((len(warp), each * WORD), dtype=torch.int64)
    marks[:, :words] = _marks(above[_run(first, words)]).sum(dim=-1)
    lanes = marks.view(-1, WORD, each).sum(dim=-1)
    sums[: len(lanes)] = lanes.sum(dim=1).to(torch.int32)
    return (lanes.cumsum(dim=1) - lanes).view(-1)


@leaf
def place_marks(
    placed: Any, slot: Any, sums: Any, above: Any, first: Any, words: int, position: Any, warp: Any, lane: Any
) -> None:
    """Positions of each warp's marked columns, ascending, behind those of lower warps and, by `slot`, of lower lanes."""
    marks = _marks(above[_run(first, words)]).flatten(1).bool()
    warps = sums[: len(marks)].long()
    slots = ((warps.cumsum(dim=0) - warps).view(-1, 1) + marks.cumsum(dim=1) - 1)[marks]
    placed[slots] = (torch.as_tensor(position).view(-1, 1) + torch.arange(marks.shape[1]))[marks].to(
        torch.int32
    )


@leaf
def write_ids(
    indices: Writes, row: int, k: int, placed: Any, block_table: Any, max_pages: int, line: int, page_size: int, inverse: int,
    thread: Any, threads: int,
) -> None:  # fmt: skip
    """Write the ids of `k` positions."""
    indices[row] = _tokens(placed[:k].long(), block_table, line, page_size).to(torch.int32)
