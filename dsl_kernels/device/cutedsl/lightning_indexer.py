"""Leaf maths of the FP8 lightning indexer: how key tiles are dealt to CTAs, windows of rows, tensor and bulk copies.

A 64-token page of the cache holds 64 rows of 128 e4m3 and then 64 fp32 scales. Seen as rows of 128 bytes it has 66 of
them; seen as bytes its scales start at byte 8192.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32
from cutlass.cute.nvgpu import cpasync

FP8 = cutlass.Float8E4M3FN

PAGE_ROWS = 66
PAGE_BYTES = 8448
SCALE_BYTE = 8192

MANY = 1 << 30
"""Extent of a tensor whose real extent the runtime knows: tensor maps are encoded there, loads are guarded here."""

EVICT_FIRST = 0x12F0000000000000
"""Cache policy of a bulk copy: the line leaves the L2 first."""


def vector(pointer):
    """The tensor at `pointer`, to be read by index."""
    return cute.make_tensor(pointer, cute.make_layout(MANY))


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
def keys_to_score(seq_lens: cute.Tensor, b, next_n, skip_below, seq):
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
def place_when_even(b, cta, ctas: cutlass.Constexpr):
    """(seq, tile, group): when tiles are dealt evenly, a sequence has `group` CTAs, and this one starts at `tile`."""
    seq, tile, group = Int32(0), cta, Int32(ctas)
    if b > 1:
        group = cutlass.max(divide(ctas, inverse_of(b)), 1)
        seq = divide(cta, inverse_of(group))
        tile = cta - seq * group
    return seq, tile, group


@cute.jit
def find_share(
    seq_lens: cute.Tensor,
    b,
    next_n,
    skip_below,
    keys: cutlass.Constexpr,
    cta,
    ctas: cutlass.Constexpr,
    need,
    place,
):
    """Which key tiles this CTA scores: (seq, tile, need, turns, step).

    `turns` tiles from `tile` of sequence `seq` on, `step` apart, and `need` is keys_to_score of `seq`. Every warp works
    it out for itself, 32 sequences at a time, so nothing has to be planned on the host. Given are keys_to_score of the
    first 32 sequences, one a lane, and place_when_even. There are two ways to deal:

    - Evenly, where that leaves no CTA with more tiles than contiguous shares would: each sequence has as many CTAs,
      and they take its tiles in turn. A CTA knows its sequence and tiles before it knows a length.
    - Contiguous equal shares of the tiles of all sequences, end to end, for ragged lengths.
    """
    lane = cute.arch.lane_idx()
    seq, tile, step = place
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


def table_entry(table, row, tile, step, pages, last, lane):
    """This lane's entry of a row of the block table, for 32 // pages tiles from `tile` on, `step` apart.

    Entries past `last` are not read; lanes that want one get that of `last`.
    """
    return table[row + cutlass.min((tile + lane // pages * step) * pages + lane % pages, last)]


def guess_entries(table, b, max_pages, pages, place, lane):
    """Two table_entry of this CTA's first tiles if they are dealt evenly, before the lengths are known.

    They lie in the table, but may be garbage past a sequence's length: nothing follows one before that is known.
    """
    seq, tile, step = place
    row, last = cutlass.min(seq, b - 1) * max_pages, max_pages - 1
    ahead = tile + 32 // pages * step
    return table_entry(table, row, tile, step, pages, last, lane), table_entry(
        table, row, ahead, step, pages, last, lane
    )


@cute.jit
def next_tile(it, seq, tile, need, seq_lens: cute.Tensor, b, next_n, skip_below, keys: cutlass.Constexpr):
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
def length_to_score(seq_lens: cute.Tensor, seq, query, next_n, skip_below):
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
def window_end(k_start: cute.Tensor, k_end: cute.Tensor, row, s, skv, skip_below):
    """End of a row's window; 0 for a row past the last one and for a row that selection takes whole."""
    end = cutlass.min(k_end[cutlass.min(row, s - 1)], skv)
    if (row >= s) | (end - window_begin(k_start, row, s) <= skip_below):
        end = Int32(0)
    return end


@cute.jit
def find_tiles(
    k_start: cute.Tensor,
    k_end: cute.Tensor,
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


def box_map(pointer, dtype, shape, box):
    """Tensor-copy atom and coordinates for boxes of a row-major tensor of nominal extents `shape`, outermost first."""
    source = cute.make_tensor(cute.recast_ptr(pointer, dtype=dtype), _row_major(shape))
    op = cpasync.CopyBulkTensorTileG2SOp()
    return cpasync.make_tiled_tma_atom(op, source, _box_layout(box, dtype), box)


def load_box(atom, coords, at, box, to, barrier, policy=None):
    """Copy the box at coordinates `at` (outermost first) to shared memory at `to`; completes on `barrier` by bytes.

    The atom elects a lane by itself: a whole warp calls this.
    """
    rank, layout = len(at), _box_layout(box, to.dtype)
    if to.dtype is FP8:
        slot = cute.make_tensor(cute.recast_ptr(to, layout.inner), layout.outer)
    else:
        slot = cute.make_tensor(to, layout)
    source = cute.local_tile(cute.domain_offset(at, coords), box, (0,) * rank)
    slot, source = cute.group_modes(slot, 0, rank), cute.group_modes(source, 0, rank)
    slot, source = cpasync.tma_partition(atom, 0, cute.make_layout(1), slot, source)
    cute.copy(atom, source, slot, tma_bar_ptr=barrier, cache_policy=policy)


def _box_layout(box, dtype):
    """Rows of 128 fp8 carry the 128-byte swizzle that the tensor cores read; floats lie as they are."""
    if dtype is FP8:
        return cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, _row_major(box))
    return _row_major(box)


def _row_major(shape):
    return cute.make_ordered_layout(shape, order=tuple(reversed(range(len(shape)))))


def bulk_floats(source, count, to, barrier):
    """Copy `count` floats, 16-byte aligned on both sides; one lane issues it."""
    atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Float32, num_bits_per_copy=32 * count)
    layout = cute.make_layout(count)
    cute.copy(atom, cute.make_tensor(source, layout), cute.make_tensor(to, layout), mbar_ptr=barrier)


def page_scales(k_cache, page):
    """The 64 scales of a page of the cache."""
    return cute.recast_ptr(k_cache + (Int64(page) * PAGE_BYTES + SCALE_BYTE), dtype=Float32)
