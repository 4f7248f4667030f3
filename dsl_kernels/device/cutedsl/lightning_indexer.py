"""Leaf maths of the FP8 lightning indexer: how key tiles are dealt to CTAs, and windows of rows.

Lengths, tables and windows come as pointers. What a warp works out together, every lane calls.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32


def ceildiv(count, size):
    """Both positive or zero; unsigned, which costs no sign fix-up."""
    return Int32((Uint32(count) + Uint32(size - 1)) // Uint32(size))


def share_begin(total, part, parts):
    """First unit of share `part` when `total` units are dealt to `parts` shares, sizes within one."""
    return part * Int32(Uint32(total) // parts) + cutlass.min(part, Int32(Uint32(total) % parts))


def share_size(total, part, parts):
    """Units in share `part`."""
    return Int32(Uint32(total) // parts) + Int32(part < Int32(Uint32(total) % parts))


@cute.jit
def keys_to_score(seq_lens: cute.Pointer, b, next_n, skip_below, seq):
    """Longest prefix of sequence `seq` that one of its queries has to score; 0 past the batch."""
    first = cutlass.min(seq, b - 1) * next_n
    need = Int32(0)
    for i in cutlass.range(next_n, unroll=1):
        length = seq_lens[first + i]
        need = cutlass.max(need, length if length > skip_below else 0)
    return need if seq < b else 0


@cute.jit
def warp_prefix_sum(value, lane):
    """Inclusive prefix sum over the lanes of a warp."""
    upto = value
    for d in cutlass.range_constexpr(5):
        other = cute.arch.shuffle_sync_up(upto, 1 << d)
        if lane >= (1 << d):
            upto = upto + other
    return upto


def divide(count, inverse):
    """count // size, where `inverse` is inverse_of(size): exact below 2**21, in four instructions."""
    return Int32((Float32(count) + 0.5) * inverse)


def inverse_of(size):
    """1 / size, to 23 bits."""
    return cute.arch.rcp_approx(Float32(size))


@cute.jit
def place_when_even(b, cta, ctas):
    """(seq, tile, step): when tiles are dealt evenly, a sequence has `step` CTAs, and this one starts at `tile`."""
    seq, tile, group = Int32(0), cta, Int32(ctas)
    if b > 1:
        group = cutlass.max(divide(ctas, inverse_of(b)), 1)
        seq = divide(cta, inverse_of(group))
        tile = cta - seq * group
    return seq, tile, group


@cute.jit
def find_share(
    seq,
    tile,
    need,
    step,
    seq_lens: cute.Pointer,
    b,
    next_n,
    skip_below,
    keys: cutlass.Constexpr,
    cta,
    ctas,
    lane,
):
    """Which key tiles this CTA scores: (seq, tile, need, turns, step).

    `turns` tiles from `tile` of sequence `seq` on, `step` apart, and `need` is keys_to_score of `seq`. Every warp works
    it out for itself, 32 sequences at a time, so nothing has to be planned on the host. Given are keys_to_score of the
    first 32 sequences, one a lane, and place_when_even. There are two ways to deal:

    - Evenly, where that leaves no CTA with more tiles than contiguous shares would: each sequence has as many CTAs,
      and they take its tiles in turn. A CTA knows its sequence and tiles before it knows a length.
    - Contiguous equal shares of the tiles of all sequences, end to end, for ragged lengths.
    """
    turns = Int32(0)
    if b == 1:
        need = cute.arch.shuffle_sync(need, 0)
        turns = share_size(ceildiv(need, keys), cta, ctas)
    else:
        total = ceildiv(need, keys)
        longest = total
        for c in cutlass.range(1, ceildiv(b, 32), unroll=1):
            tiles = ceildiv(keys_to_score(seq_lens, b, next_n, skip_below, c * 32 + lane), keys)
            total = total + tiles
            longest = cutlass.max(longest, tiles)
        total = cute.arch.warp_redux_sync(total, "add")
        longest = cute.arch.warp_redux_sync(longest, "max")
        if (b <= ctas) & (longest <= ceildiv(total, ctas) * step):
            if seq < 32:
                need = cute.arch.shuffle_sync(need, seq)
            else:
                need = keys_to_score(seq_lens, b, next_n, skip_below, seq)
            turns = divide(ceildiv(need, keys) - tile + step - 1, inverse_of(step))
        else:
            begin = share_begin(total, cta, ctas)
            turns = share_size(total, cta, ctas)
            step = Int32(1)
            before, c = Int32(0), Int32(0)
            searching = turns > 0
            while searching:
                if c > 0:
                    need = keys_to_score(seq_lens, b, next_n, skip_below, c * 32 + lane)
                tiles = ceildiv(need, keys)
                upto = before + warp_prefix_sum(tiles, lane)
                hit = cute.arch.vote_ballot_sync((upto > begin) & (upto - tiles <= begin))
                before = cute.arch.shuffle_sync(upto, 31)
                if hit != 0:
                    # The shares are in order, so one lane at most owns this one's first tile.
                    owner = 31 - Int32(cute.arch.clz(hit))
                    seq = c * 32 + owner
                    tile = begin - cute.arch.shuffle_sync(upto - tiles, owner)
                    need = cute.arch.shuffle_sync(need, owner)
                    searching = False
                c = c + 1
    return seq, tile, need, turns, step


def read_lengths(seq_lens, b, lane):
    """The lengths of the first 32 sequences, one a lane; the last one past the batch."""
    return seq_lens[cutlass.min(lane, b - 1)]


def lengths_to_score(length, b, skip_below, lane):
    """What the lanes' sequences have to score, from their lengths."""
    # ptxas moves a comparison of the length, and the wait for it, in front of the other loads; it moves no shuffle.
    length = cute.arch.shuffle_sync(length, lane)
    return Int32(cutlass.select_((lane < b) & (length > skip_below), length, Int32(0)))


def table_entries(block_table, max_pages, row, tile, step, pages, last, lane):
    """This lane's entry of a row of the block table, for 32 // pages tiles from `tile` on, `step` apart.

    Entries past `last` are not read; lanes that want one get that of `last`.
    """
    return block_table[
        row * max_pages + cutlass.min((tile + lane // pages * step) * pages + lane % pages, last)
    ]


def entry_of(entry, place):
    """The entry that lane `place` holds."""
    return cute.arch.shuffle_sync(entry, place)


@cute.jit
def next_tile(it, seq, tile, need, seq_lens: cute.Pointer, b, next_n, skip_below, keys: cutlass.Constexpr):
    """Before the `it`-th tile of a share: past the end of `seq`, move on to the next sequence with keys to score.

    Returns (fresh, seq, tile, need); `fresh` tells whether this tile is the share's first one of its sequence.
    """
    fresh = (it == 0) | (tile * keys >= need)
    while tile * keys >= need:
        seq = seq + 1
        tile = Int32(0)
        need = keys_to_score(seq_lens, b, next_n, skip_below, seq)
    return fresh, seq, tile, need


@cute.jit
def length_to_score(seq_lens: cute.Pointer, seq, query, next_n, skip_below):
    """Keys that one query has to score; 0 for a query past next_n and for a row that selection takes whole."""
    length = Int32(0)
    if query < next_n:
        length = seq_lens[seq * next_n + query]
        if length <= skip_below:
            length = Int32(0)
    return length


def window_begin(k_start, row, s):
    """First key of a row's window."""
    return cutlass.max(k_start[cutlass.min(row, s - 1)], 0)


@cute.jit
def window_end(k_start: cute.Pointer, k_end: cute.Pointer, row, s, skv, skip_below):
    """End of a row's window; 0 for a row past the last one and for a row that selection takes whole."""
    end = cutlass.min(k_end[cutlass.min(row, s - 1)], skv)
    if (row >= s) | (end - window_begin(k_start, row, s) <= skip_below):
        end = Int32(0)
    return end


@cute.jit
def find_tiles(
    k_start: cute.Pointer,
    k_end: cute.Pointer,
    row,
    rows: cutlass.Constexpr,
    s,
    skv,
    skip_below,
    keys: cutlass.Constexpr,
    split,
    splits,
):
    """First key tile and tile count of a split over the union of the windows of a block of rows."""
    # Every lane takes one row of the block.
    own = row + cute.arch.lane_idx() % rows
    begin, end = window_begin(k_start, own, s), window_end(k_start, k_end, own, s, skv, skip_below)
    live = end > begin
    low = cute.arch.warp_redux_sync(begin if live else Int32(0x7FFFFFFF), "min")
    high = cute.arch.warp_redux_sync(end if live else Int32(0), "max")
    first, turns = Int32(0), Int32(0)
    if high > 0:
        first = Int32(Uint32(low) // keys)
        turns = ceildiv(high, keys) - first
    return first + share_begin(turns, split, splits), share_size(turns, split, splits)
