"""Texts of the FP8 lightning indexer's leaves: how CTAs share key tiles, and windows of rows.

Every warp finds its own tiles, for 32 sequences at a time, so the host plans nothing.
"""

from __future__ import annotations

from ....device.torch import scalars
from ....device.torch.warps import ballot, clz, scan, shuffle, warp_max, warp_sum
from ....tile.counting import longest
from ....tile.frontend import recorded, rolled, unrolled
from ....tile.kinds import (
    BFloat16,
    Boolean,
    Changes,
    Float32,
    Global,
    Int32,
    LeafRecorder,
    Registers,
    Sets,
    Uint32,
)
from ....tile.lang import Size
from ....tile.leaf_text import WARP, by_text
from ....tile.text import ceildiv, maximum, minimum, select
from ..functions import quotient, share_begin, share_size, shuffle_length

LAST_KEY = 2**31 - 1
# Keys per copy, where a page holds any multiple of so many tokens.
GRAIN = Size(16, "GRAIN")
# Keys per copy where a table names blocks, and keys per maximum.
BLOCK = Size(8, "BLOCK")
LOWEST, NOT_A_NUMBER = 0xFF800000, 0x7FC00000
# UE8M0: byte 255 is NaN, and byte 0 is 2^-127, which float32 holds as a subnormal number.
SPARE_BYTE, LEAST_POWER = 255, 0x00400000

Scores = Global[Float32] | Global[BFloat16]
"""Rows of scores."""


# What the leaves give where all sequences and windows are as long as they may be.


def _size(total, part, parts):
    return total // parts + (part < total % parts)


def _placed(b, cta, ctas):
    step = max(ctas // b, 1) if b > 1 else ctas
    return (cta // step, cta % step, step) if b > 1 else (0, cta, step)


def _share(seq, tile, need, step, b, keys, cta, ctas):
    of_sequence = -(-need // keys)
    total = of_sequence * b
    if b == 1:
        return seq, tile, need, _size(total, cta, ctas), step
    if b <= ctas and of_sequence <= -(-total // ctas) * step:
        return seq, tile, need, max(0, -(-(of_sequence - tile) // step)), step
    begin = cta * (total // ctas) + min(cta, total % ctas)
    return begin // max(1, of_sequence), begin % max(1, of_sequence), need, _size(total, cta, ctas), 1


def _tiles(k_end, skip_below, keys, split, splits):
    tiles = -(-k_end // keys) if k_end > skip_below else 0
    return split * (tiles // splits) + min(split, tiles % splits), _size(tiles, split, splits)


@longest(_placed)
@by_text
def place_when_even(
    m: LeafRecorder, seq: Sets[Int32], tile: Sets[Int32], step: Sets[Int32], b: Int32, cta: Int32,
    ctas: Int32,
) -> None:  # fmt: skip
    """Where a CTA starts in an even split: a sequence has `step` CTAs, and these take its tiles in turn."""
    tile = cta
    step = ctas
    if b > 1:
        step = maximum(quotient(ctas, b), 1)
        seq = quotient(cta, step)
        tile = cta - seq * step


@longest(lambda seq_lens: (seq_lens,))
@by_text
def read_lengths(m: LeafRecorder, length: Sets[Int32], seq_lens: Global[Int32], b: Int32) -> None:
    """Read the lengths of the first 32 sequences, one per lane. Lanes past the batch read the last length."""
    length = seq_lens.row("lengths", minimum(m.lane, b - 1), wide=False)[0]


@longest(lambda length, skip_below: (length if length > skip_below else 0,))
@by_text
def lengths_to_score(m: LeafRecorder, need: Sets[Int32], length: Int32, b: Int32, skip_below: Int32) -> None:
    """The number of keys to score of each lane's sequence, from its length."""
    known = shuffle_length(length, m.lane)
    need = select(m.lane < b and known > skip_below, known, 0)


@recorded
def _keys_to_score(m, seq_lens, b, next_n, skip_below, sequence):
    lengths = seq_lens.row("lengths", minimum(sequence, b - 1), wide=False)
    most_keys: Int32 = 0
    for i in rolled(next_n):
        length = lengths[i]
        most_keys = maximum(most_keys, select(length > skip_below, length, 0))
    return select(sequence < b, most_keys, 0)


@longest(lambda seq_lens, skip_below: (seq_lens if seq_lens > skip_below else 0,))
@by_text
def keys_to_score(
    m: LeafRecorder, need: Sets[Int32], seq_lens: Global[Int32], b: Int32, next_n: Int32, skip_below: Int32,
    sequence: Int32,
) -> None:  # fmt: skip
    """The longest prefix that a query of each lane's sequence has to score; 0 past the batch."""
    need = _keys_to_score(m, seq_lens, b, next_n, skip_below, sequence)


@longest(_share)
@by_text
def find_share(
    m: LeafRecorder, seq: Changes[Int32], tile: Changes[Int32], need: Changes[Int32], turns: Sets[Int32],
    step: Changes[Int32], seq_lens: Global[Int32], b: Int32, next_n: Int32, skip_below: Int32, keys: int,
    cta: Int32, ctas: Int32,
) -> None:  # fmt: skip
    """Which key tiles a CTA scores: `turns` tiles from `tile` of sequence `seq` on, `step` apart.

    The inputs are the results of place_when_even, and in each lane that of keys_to_score for one of the first
    32 sequences. `need` becomes that of `seq`. The split is even where it gives no CTA more tiles than
    contiguous equal shares of all tiles, end to end, would give. Otherwise the CTAs take such shares.
    """
    if b == 1:
        need = shuffle(need, 0)
        turns = share_size(ceildiv(need, keys), cta, ctas)
    else:
        total: Int32 = ceildiv(need, keys)
        longest: Int32 = total
        for c in range(1, ceildiv(b, WARP)):
            sequence = c * WARP + m.lane
            tiles = ceildiv(_keys_to_score(m, seq_lens, b, next_n, skip_below, sequence), keys)
            total += tiles
            longest = maximum(longest, tiles)
        total = warp_sum(total)
        longest = warp_max(longest)
        if b <= ctas and longest <= ceildiv(total, ctas) * step:
            if seq < WARP:
                need = shuffle(need, seq)
            else:
                need = _keys_to_score(m, seq_lens, b, next_n, skip_below, seq)
            turns = quotient(ceildiv(need, keys) - tile + step - 1, step)
        else:
            begin = share_begin(total, cta, ctas)
            turns = share_size(total, cta, ctas)
            step = 1
            before: Int32 = 0
            batch: Int32 = 0
            searching: Boolean = turns > 0
            while searching:
                if batch > 0:
                    sequence = batch * WARP + m.lane
                    need = _keys_to_score(m, seq_lens, b, next_n, skip_below, sequence)
                tiles = ceildiv(need, keys)
                upto = before + scan(tiles)
                hit = ballot(upto > begin and upto - tiles <= begin)
                before = shuffle(upto, WARP - 1)
                if hit != 0:
                    m.comment("Sequences are in order, so at most one lane has the first tile of this share.")
                    owner = 31 - clz(hit)
                    seq = batch * WARP + owner
                    tile = begin - shuffle(upto - tiles, owner)
                    need = shuffle(need, owner)
                    searching = False
                batch += 1


@longest(
    lambda it, seq, tile, need, keys: (
        (True, seq + 1, 0, need) if tile * keys >= need else (it == 0, seq, tile, need)
    )
)
@by_text
def next_tile(
    m: LeafRecorder, fresh: Sets[Boolean], it: Int32, seq: Changes[Int32], tile: Changes[Int32],
    need: Changes[Int32], seq_lens: Global[Int32], b: Int32, next_n: Int32, skip_below: Int32, keys: int,
) -> None:  # fmt: skip
    """Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to score.

    `fresh` says whether the tile is the first one of its sequence in this share.
    """
    fresh = it == 0 or tile * keys >= need
    while tile * keys >= need:
        seq += 1
        tile = 0
        need = _keys_to_score(m, seq_lens, b, next_n, skip_below, seq)


@by_text
def table_entries(
    m: LeafRecorder, entry: Sets[Int32], block_table: Global[Int32], row: Int32, first: Int32, step: Int32,
    pages: int, last: Int32,
) -> None:  # fmt: skip
    """Read a page-table entry of row `row` per lane, for 32 / pages tiles from `first` on, `step` apart.

    A lane whose entry is past `last` reads entry `last`.
    """
    line = block_table.row("line", row, wide=False)
    entry = line[minimum((first + m.lane // pages * step) * pages + m.lane % pages, last)]


@by_text
def grain_entries(
    m: LeafRecorder, entry: Sets[Int32], place: Sets[Int32], block_table: Global[Int32], row: Int32,
    first: Int32, step: Int32, grains: int, last: Int32, page_size: Int32,
) -> None:  # fmt: skip
    """Like `table_entries`, read an entry per lane for 16 keys, with the place of these keys in the page.

    The entries are for 32 / grains tiles from `first` on, `step` apart. A lane past group `last` of 16 keys
    reads the entry of that group.
    """
    line = block_table.row("line", row, wide=False)
    token: Int32 = minimum((first + m.lane // grains * step) * grains + m.lane % grains, last) * GRAIN
    page: Int32 = (token.to("uint32") // page_size.to("uint32")).to("int32")
    entry = line[page]
    place = token - page * page_size


@by_text
def block_entries(
    m: LeafRecorder, entry: Sets[Int32], place: Sets[Int32], block_table: Global[Int32], row: Int32,
    first: Int32, step: Int32, blocks: int, last: Int32, page_size: Int32, block_size: Int32, sharing: Int32,
) -> None:  # fmt: skip
    """Like `grain_entries`, but for 8 keys per lane and a line of the table that rows share.

    An entry names a block of `block_size` keys. Blocks, which may be whole pages, are numbered across pages.
    """
    line = block_table.row("line", (row.to("uint32") // sharing.to("uint32")).to("int32"), wide=False)
    unit: Uint32 = block_size.to("uint32")
    token: Uint32 = (minimum((first + m.lane // blocks * step) * blocks + m.lane % blocks, last) * BLOCK).to(
        "uint32"
    )
    at: Uint32 = token // unit
    named_unit: Uint32 = line[at.to("int32")].to("uint32")
    per_page: Uint32 = page_size.to("uint32") // unit
    page: Uint32 = named_unit // per_page
    entry = page.to("int32")
    place = ((named_unit - page * per_page) * unit + (token - at * unit)).to("int32")


@by_text
def decode_scales(m: LeafRecorder, scale: Registers[Float32], mx: Int32) -> None:
    """Where `mx` is 1, turn a scale of four equal UE8M0 bytes into their power of two."""
    if mx != 0:
        for i in unrolled(scale.size):
            power: Uint32 = scalars.bits_of(scale[i]) & SPARE_BYTE
            bits: Uint32 = power << 23
            if power == 0:
                bits = LEAST_POWER
            if power == SPARE_BYTE:
                bits = NOT_A_NUMBER
            scale[i] = scalars.float_of(bits)


@by_text
def entry_of(m: LeafRecorder, page: Sets[Int32], entry: Int32, place: Int32) -> None:
    """The entry that lane `place` holds."""
    page = shuffle(entry, place)


@recorded
def window_of(m, k_start, k_end, row, s, skv, skip_below):
    """[begin, end) of a row's keys; `end` is 0 for rows past the last one or that selection takes whole."""
    last_row = minimum(row, s - 1)
    first_key = maximum(k_start[last_row], 0)
    end_key = minimum(k_end[last_row], skv)
    end_to_score = select(row < s and end_key - first_key > skip_below, end_key, 0)
    return first_key, end_to_score


@longest(_tiles)
@by_text
def find_tiles(
    m: LeafRecorder, first: Sets[Int32], turns: Sets[Int32], k_start: Global[Int32], k_end: Global[Int32],
    row: Int32, rows: int, s: Int32, skv: Int32, skip_below: Int32, keys: int, split: Int32, splits: Int32,
) -> None:  # fmt: skip
    """The first key tile and the tile count of a split.

    Splits share the union of the windows of a block of rows. Each lane reads the window of one row.
    """
    begin, end = window_of(m, k_start, k_end, row + m.lane % rows, s, skv, skip_below)
    m.comment("The lowest key is found as a maximum, of the distances from LAST_KEY: a warp has no minimum.")
    low = LAST_KEY - warp_max(select(end > begin, LAST_KEY - begin, 0))
    high = warp_max(select(end > begin, end, 0))
    lowest: Int32 = 0
    tiles: Int32 = 0
    if high > 0:
        lowest = (low.to("uint32") // keys).to("int32")
        tiles = ceildiv(high, keys) - lowest
    first = lowest + share_begin(tiles, split, splits)
    turns = share_size(tiles, split, splits)
