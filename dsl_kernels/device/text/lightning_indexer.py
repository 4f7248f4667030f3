"""Leaves of the FP8 lightning indexer by their text: how key tiles are dealt to CTAs, and windows of rows.

Every warp works out for itself which tiles it has, of 32 sequences at a time, so nothing has to be planned on the host.
"""

from __future__ import annotations

from ...tile.leaf_text import WARP, by_text
from ...tile.text import Changes, Sets, ceildiv, maximum, minimum, select
from ..torch.lightning_indexer import quotient, share_begin, share_size, shuffle_length
from ..torch.warps import ballot, clz, scan, shuffle, warp_max, warp_sum

LAST_KEY = 2**31 - 1


@by_text
def place_when_even(m, seq: Sets, tile: Sets, step: Sets, b, cta, ctas):
    """Where a CTA starts when tiles are dealt evenly: a sequence has `step` CTAs, and they take its tiles in turn."""
    m.set(tile, cta)
    m.set(step, ctas)
    with m.when(b > 1):
        m.set(step, maximum(quotient(ctas, b), 1))
        m.set(seq, quotient(cta, step))
        m.set(tile, cta - seq * step)


@by_text
def read_lengths(m, length: Sets, seq_lens, b, lane):
    """The lengths of the first 32 sequences, one a lane; the last one past the batch."""
    m.set(length, seq_lens.row("lengths", minimum(lane, b - 1), 1, wide=False)[0])


@by_text
def lengths_to_score(m, need: Sets, length, b, skip_below, lane):
    """What the lanes' sequences have to score, from their lengths."""
    known = m.let("known", shuffle_length(length, lane))
    m.set(need, select((lane < b) & (known > skip_below), known, 0))


def _keys_to_score(m, seq_lens, b, next_n, skip_below, sequence):
    lengths = seq_lens.row("lengths", minimum(sequence, b - 1), next_n, wide=False)
    longest = m.var("most_keys")
    for i in m.loop("i", next_n):
        length = m.let("length", lengths[i])
        m.set(longest, maximum(longest, select(length > skip_below, length, 0)))
    return select(sequence < b, longest, 0)


@by_text
def keys_to_score(m, need: Sets, seq_lens, b, next_n, skip_below, sequence):
    """Longest prefix that one query of a sequence has to score, for the sequence of each lane; 0 past the batch."""
    m.set(need, _keys_to_score(m, seq_lens, b, next_n, skip_below, sequence))


@by_text
def find_share(
    m, seq: Changes, tile: Changes, need: Changes, turns: Sets, step: Changes, seq_lens, b, next_n, skip_below, keys, cta, ctas, lane
):  # fmt: skip
    """Which key tiles a CTA scores: `turns` tiles from `tile` of sequence `seq` on, `step` apart.

    Given are place_when_even and keys_to_score of the first 32 sequences, one a lane; what comes back is that of `seq`.
    Dealt evenly where that leaves no CTA with more tiles than contiguous equal shares of all tiles, end to end, would;
    otherwise in such shares.
    """
    with m.when(b == 1):
        m.set(need, shuffle(need, 0))
        m.set(turns, share_size(ceildiv(need, keys), cta, ctas))
    with m.otherwise():
        total = m.var("total", ceildiv(need, keys))
        longest = m.var("longest", total)
        for c in m.loop("c", ceildiv(b, WARP), begin=1):
            more = _keys_to_score(m, seq_lens, b, next_n, skip_below, m.let("sequence", c * WARP + lane))
            tiles = m.let("tiles", ceildiv(more, keys))
            m.set(total, total + tiles)
            m.set(longest, maximum(longest, tiles))
        m.set(total, warp_sum(total))
        m.set(longest, warp_max(longest))
        with m.when((b <= ctas) & (longest <= ceildiv(total, ctas) * step)):
            with m.when(seq < WARP):
                m.set(need, shuffle(need, seq))
            with m.otherwise():
                m.set(need, _keys_to_score(m, seq_lens, b, next_n, skip_below, seq))
            m.set(turns, quotient(ceildiv(need, keys) - tile + step - 1, step))
        with m.otherwise():
            begin = m.let("begin", share_begin(total, cta, ctas))
            m.set(turns, share_size(total, cta, ctas))
            m.set(step, 1)
            before, c, searching = m.var("before"), m.var("batch"), m.var("searching", turns > 0, "bool")
            for _ in m.repeat(searching):
                with m.when(c > 0):
                    lane_sequence = m.let("sequence", c * WARP + lane)
                    m.set(need, _keys_to_score(m, seq_lens, b, next_n, skip_below, lane_sequence))
                tiles = m.let("tiles", ceildiv(need, keys))
                upto = m.let("upto", before + scan(tiles))
                hit = m.let("hit", ballot((upto > begin) & (upto - tiles <= begin)))
                m.set(before, shuffle(upto, WARP - 1))
                with m.when(hit != 0):
                    m.comment("The shares are in order, so one lane at most owns this one's first tile.")
                    owner = m.let("owner", 31 - clz(hit))
                    m.set(seq, c * WARP + owner)
                    m.set(tile, begin - shuffle(upto - tiles, owner))
                    m.set(need, shuffle(need, owner))
                    m.set(searching, False)
                m.set(c, c + 1)


@by_text
def next_tile(
    m, fresh: Sets, it, seq: Changes, tile: Changes, need: Changes, seq_lens, b, next_n, skip_below, keys
):
    """Before the `it`-th tile of a share: past the end of `seq`, move on to the next sequence with keys to score.

    `fresh` tells whether this tile is the share's first one of its sequence.
    """
    m.set(fresh, (it == 0) | (tile * keys >= need))
    for _ in m.repeat(tile * keys >= need):
        m.set(seq, seq + 1)
        m.set(tile, 0)
        m.set(need, _keys_to_score(m, seq_lens, b, next_n, skip_below, seq))


@by_text
def table_entries(m, entry: Sets, block_table, max_pages, row, first, step, pages, last, lane):
    """The lanes' entries of row `row` of the block table: those of 32 / pages tiles from `first` on, `step` apart.

    Entries past `last` are not read; lanes that want one get that of `last`.
    """
    place = (first + lane // pages * step) * pages + lane % pages
    m.set(entry, block_table.row("line", row, max_pages, wide=False)[minimum(place, last)])


@by_text
def entry_of(m, page: Sets, entry, place):
    """The entry that lane `place` holds."""
    m.set(page, shuffle(entry, place))


def window_of(m, k_start, k_end, row, s, skv, skip_below):
    """[begin, end) of a row's keys; `end` is 0 for a row past the last one and for a row that selection takes whole."""
    last = m.let("last_row", minimum(row, s - 1))
    begin = m.let("first_key", maximum(k_start[last], 0))
    end = m.let("end_key", minimum(k_end[last], skv))
    return begin, m.let("end_to_score", select((row < s) & (end - begin > skip_below), end, 0))


@by_text
def find_tiles(
    m, first: Sets, turns: Sets, k_start, k_end, row, rows, s, skv, skip_below, keys, split, splits, lane
):
    """First key tile and tile count of a split over the union of the windows of a block of rows; a lane looks at one row."""
    begin, end = window_of(m, k_start, k_end, row + lane % rows, s, skv, skip_below)
    m.comment("From the last key that there can be, as the greatest is what a warp finds.")
    low = m.let("low", LAST_KEY - warp_max(select(end > begin, LAST_KEY - begin, 0)))
    high = m.let("high", warp_max(select(end > begin, end, 0)))
    lowest, tiles = m.var("lowest"), m.var("tiles")
    with m.when(high > 0):
        m.set(lowest, (low.to("uint32") // keys).to("int32"))
        m.set(tiles, ceildiv(high, keys) - lowest)
    m.set(first, lowest + share_begin(tiles, split, splits))
    m.set(turns, share_size(tiles, split, splits))
