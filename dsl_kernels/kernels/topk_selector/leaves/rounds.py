"""Texts of selection's leaves: a round of the radix select, by one CTA and by a cluster."""

from __future__ import annotations

from ....device.torch import warps
from ....tile.frontend import inline, named, recorded, unrolled
from ....tile.kinds import Changes, Int32, Int64, LeafRecorder, Peers, Registers, Sets, Shared, Uint32
from ....tile.leaf_text import by_text
from ....tile.text import maximum, minimum, select
from .row import BINS, COARSE, LAST_LANE, UINT32, Counter, StateWord, half_edge, key_of, shift_of


@by_text
def bound_listed(
    m: LeafRecorder, entries: Shared[Int64], total: Int32, counters: Shared[Int32], end: Uint32, span: Uint32,
) -> None:  # fmt: skip
    """Note the largest and the smallest undecided key of the first `total` list entries."""
    largest: Uint32 = 0
    under: Uint32 = 0
    for i in range(m.thread, total, m.threads):
        key = key_of(entries[i])
        if end - key <= span:
            largest = maximum(largest, key)
            under = maximum(under, ~key)
    upper = warps.warp_most(largest)
    lower = warps.warp_most(under)
    if m.lane == 0:
        m.do(warps.raise_to(counters.at(Counter.UPPER), upper))
        m.do(warps.raise_to(counters.at(Counter.UNDER), lower))


@by_text
def read_bounded(
    m: LeafRecorder, end: Changes[Uint32], span: Changes[Uint32], counters: Shared[Int32],
) -> None:  # fmt: skip
    """Narrow the range to the undecided keys, from the smallest to the largest.

    It is one key where all are equal.
    """
    bottom = maximum(end - span, ~counters[Counter.UNDER].to("uint32"))
    end = minimum(end, counters[Counter.UPPER].to("uint32"))
    span = end - bottom


@recorded
def lower_warps(m, sums, count):
    """The sum of the values that the first `count` warps have written to `sums`."""
    other: Int32 = 0
    if m.lane < count:
        other = sums[m.lane]
    return warps.warp_sum(other)


@by_text
def sum_bins(
    m: LeafRecorder, mine: Registers[Int32], through: Sets[Int32], hist: Shared[Int32], first: Int32,
    sums: Shared[Int32],
) -> None:  # fmt: skip
    """Each thread reads its bins.

    `through` is the warp's sum up to these bins, and `sums` gets each warp's total.
    """
    hist.part("bins", first).read(mine, m.thread)
    through = warps.scan(sum(mine))
    if m.lane == LAST_LANE:
        sums[m.warp] = through


@by_text
def pick_bin(
    m: LeafRecorder, state: Shared[Int32], mine: Registers[Int32], through: Int32, sums: Shared[Int32],
    need: Int32, end: Uint32, span: Uint32, half: bool,
) -> None:  # fmt: skip
    """The thread with the `need`-th key from the top writes the range of that key's bin to `state`.

    `half`: the bins are those of the first digit.
    """
    own = sum(mine)
    left = need - (through - own + lower_warps(m, sums, m.warp))
    if left > 0 and left <= own:
        digit, inside, before = _bin_of(m, m.thread * mine.size, list(mine), left)
        wanted: Int32 = left - before
        _write_state(m, state, *_narrow(m, digit, wanted, inside, end, span, half))


@recorded
def _bin_of(m, first, counts, need):
    """The bin with the `need`-th key, among bins from `first` on; the keys in it, and those before it."""
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

    `half`: the digit is the first one. It comes from the score rounded to fp16, or if `near` is not 0, from
    the distance to `near`, whose bit `grain` is the lowest bit of the digit.
    """
    top, width = _first_range(m, digit, near, grain) if half else _next_range(m, digit, end, span)
    _close_if_all_are_needed(m, top, width, need, inside)
    return top, width, need, inside


@recorded
def _first_range(m, digit, near, grain):
    """End and span of the keys with this first digit."""
    top: Uint32 = UINT32
    if digit > 0:
        top = half_edge(m, "upper", BINS - digit) - 1
    width: Uint32 = top - half_edge(m, "lower", BINS - 1 - digit)
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
    """End and span of the keys of a range with this digit."""
    shift = shift_of(span)
    below = digit.to("uint32") << shift
    top: Uint32 = end - below
    width: Uint32 = minimum(span - below, (1 << shift) - 1)
    return top, width


@recorded
def _close_if_all_are_needed(m, top: Changes, width: Changes, need: Changes, inside: Changes):
    """If all keys of the range are needed, end the range below them: all are selected, none is undecided."""
    if need == inside:
        top = top - width - 1
        width = 0
        need = 0
        inside = 0


@recorded
def _write_state(m, state, end, span, need, inside):
    """Write the result of a round."""
    words = m.local("words", 4)
    words[StateWord.END] = end.to("int32")
    words[StateWord.SPAN] = span.to("int32")
    words[StateWord.NEED] = need
    words[StateWord.INSIDE] = inside
    state.write(words, 0)


@by_text
def read_state(
    m: LeafRecorder, end: Sets[Uint32], span: Sets[Uint32], need: Sets[Int32], inside: Sets[Int32],
    state: Shared[Int32],
) -> None:  # fmt: skip
    """Read the undecided range of the last round: end, span, keys needed of it and keys in it."""
    words = m.local("words", 4)
    state.read(words, 0)
    end = words[StateWord.END].to("uint32")
    span = words[StateWord.SPAN].to("uint32")
    need = words[StateWord.NEED].to("int32")
    inside = words[StateWord.INSIDE].to("int32")


@by_text
def send_sums(
    m: LeafRecorder, peers: Peers[Int32], at: Int32, hist: Shared[Int32], first: Int32, group: int,
    rank: Int32, cta_warps: int,
) -> None:  # fmt: skip
    """Send the sums of this CTA's coarse bins to every CTA of the group."""
    bins, pair = hist.part("bins", first), m.local("pair", 2)
    for i in unrolled(COARSE // cta_warps):
        bin = inline(i * cta_warps + m.warp)
        bins.read(pair, bin * (BINS // COARSE // 2) + m.lane)
        total = warps.warp_sum(pair[0] + pair[1])
        if m.lane < group:
            m.do(warps.store_peer(peers.at(at + (rank * COARSE + bin)), m.lane, total))


@by_text
def pick_bin_of_group(
    m: LeafRecorder, state: Shared[Int32], peers: Peers[Int32], bins: Int32, coarse: Shared[Int32], at: Int32,
    need: Int32, lower: Int32, end: Uint32, span: Uint32, half: bool, near: Uint32, grain: Uint32, group: int,
    rank: Int32,
) -> None:  # fmt: skip
    """One warp finds the coarse bin with the `need`-th key, and in the counts of all CTAs that key's bin.

    `state` also gets the number of keys above the range, and in it, in CTAs of lower rank. `half` is as in
    pick_bin; if `near` is not 0, the first digits are those of count_near.
    """
    if m.warp == 0:
        count: Int32 = 0
        under: Int32 = 0
        for i in unrolled(group):
            part = coarse[at + (i * COARSE + m.lane)]
            count += part
            if i < rank:
                under += part
        _, source, over = _find(m, "coarse_bin", count, need)
        left = need - warps.shuffle(over, source)
        less: Int32 = lower + warps.warp_sum(select(m.lane < source, under, 0))
        first_bin = source * (BINS // COARSE) + 2 * m.lane
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
        less += warps.warp_sum(select(m.lane < source, low_under + high_under, 0))
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
    """Find the lane with the `need`-th key from the counts of lanes.

    Returns:
        Whether this lane has the key, the number of the lane that has it, and the keys of lanes below this
        one.
    """
    through = named(f"through_{title}", warps.scan(count))
    over = named(f"over_{title}", through - count)
    hit = named(f"hit_{title}", over < need and through >= need)
    found = named(title, LAST_LANE - warps.clz(warps.ballot(hit)))
    return hit, found, over
