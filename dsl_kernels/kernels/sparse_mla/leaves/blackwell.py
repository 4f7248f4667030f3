"""Leaves of sparse MLA on tcgen05, by their text: tokens on M, heads on N, accumulators in tensor memory.

A key tile has 64 tokens. A thread reads the same scores that it would have in a Hopper accumulator of that
shape, so Hopper's leaves with heads on N serve here too. O^T is four accumulators of 128 latent dims, one
after another in the columns, and a thread has one dim of each. Heads are padded to the least number that a
product takes. The padding has zero queries and is not written. Exponents are base 2: logits carry log2(e).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ....device.torch import warps
from ....device.torch.fragment import load_columns, store_columns
from ....device.torch.fragment import read_accumulator as read_accumulator
from ....device.torch.scalars import anew
from ....problems.layouts import LATENT_DIM, ROPE_DIM, V4_ROW_BYTES, V4_SCALE_BYTES, V41_SCALE_BYTES
from ....tile.counting import moves
from ....tile.frontend import inline, named, recorded, rolled, unrolled
from ....tile.kinds import (
    BFloat16,
    Boolean,
    Float32,
    Global,
    Int32,
    LeafRecorder,
    Registers,
    Sets,
    Shared,
    Tensor,
    Uint8,
    Uint32,
    Writes,
)
from ....tile.leaf_text import WARP, by_text
from ....tile.text import ceildiv, maximum, minimum, select
from .gather import SCALE_WORD, SCALES_AT, THREADS, TOKEN_WORDS, cache_row, heads_of_block, is_head
from .gather_pages import PANELS, Pages, PlacedPages, place_of, store_piece, turn_scales, ue8m0
from .softmax import (
    FOUR,
    base2_lse,
    column_head,
    inverse_sum,
    join_maxima,
    join_parts,
    join_sums,
    kept_beside,
    said_lse,
    sink_of,
)

UNIT = 128
"""Latent dims of an accumulator."""
AT_ONCE = 8
"""Partial results of heads that are in flight together."""


@moves(loaded=lambda head_block, columns: head_block * columns * 2)
@by_text
def copy_block(
    m: LeafRecorder, target: Shared[BFloat16], q: Global[BFloat16], row: Int32, head0: Int32,
    head_block: int, columns: int, heads: Int32 | None, at_once: int | None,
) -> None:  # fmt: skip
    """Start the copies of a block of heads of one query. The target's padding becomes zero."""
    # With `at_once`, the addresses of so many copies are computed together, and anew for each query.
    # Addresses of all copies, held from query to query, would take registers that 64 heads need.
    pieces = columns // 8
    count = target.shape[0] * pieces // THREADS
    thread = m.thread if at_once is None else anew(m.thread)
    for i in unrolled(count) if at_once is None else rolled(count, at_once=at_once):
        item = i * THREADS + thread
        to = inline(target.group_at(item // pieces, item % pieces * 8, 8))
        of_head = q.row("of_head", (row, head0 + item // pieces))
        some = inline(item < heads_of_block(head_block, head0, heads) * pieces)
        m.do(warps.copy16(to, of_head.at(item % pieces * 8), some))


@by_text
def spread_ids(m: LeafRecorder, rows: Registers[Int32], low: Int32, high: Int32) -> None:
    """Give all ids of a tile to all lanes."""
    for i in range(rows.size):
        rows[i] = warps.shuffle(low if i < WARP else high, i % WARP)


UNIT_WORDS = 8
"""Words of a lane for a unit of a token. Four lanes hold a token, and each of them has all of its scales."""


@moves(loaded=lambda low: 2 * WARP * 128 if low >= 0 else 0)
@by_text
def load_words(
    m: LeafRecorder, words: Registers[Uint32], at: Int32, kv_cache: Global[Uint8], first: Int32, low: Int32,
    high: Int32, n: Int32,
) -> None:  # fmt: skip
    """Read 16 bytes of each of a lane's two tokens, and again 16 bytes, 64 bytes after these."""
    own = kv_cache.part("own", first + m.thread % 4 * 16)
    for half, ids in enumerate((low, high)):
        place, inside = cache_row(m, ids, m.thread // 4, n)
        token = own.row("token", place)
        for piece in range(2):
            to = inline(half * TOKEN_WORDS + (at + piece * 4))
            m.do(warps.load_vector(words, to, 4, token.at(piece * 64), inside))


@moves(loaded=lambda low: 2 * WARP * 16 if low >= 0 else 0)
@by_text
def load_scales(
    m: LeafRecorder, scales: Registers[Uint32], kv_cache: Global[Uint8], low: Int32, high: Int32, n: Int32,
) -> None:  # fmt: skip
    """Read the scales of a lane's two tokens, the same in all lanes of a token."""
    for half, ids in enumerate((low, high)):
        place, inside = cache_row(m, ids, m.thread // 4, n)
        token = kv_cache.row("token", place, first=SCALES_AT)
        m.do(warps.load_vector(scales, half * 4, 4, token.at(0), inside))


@by_text
def take_scales(m: LeafRecorder, words: Registers[Uint32], scales: Registers[Uint32]) -> None:
    """Move the scales that have arrived into the last words of each token."""
    each, count = words.size // 2, scales.size // 2
    for half in range(2):
        for i in range(count):
            words[(half + 1) * each - count + i] = scales[half * count + i]


@by_text
def write_unit(m: LeafRecorder, target: Shared[BFloat16], words: Registers[Uint32], unit: Int32) -> None:
    """Write a unit as bf16, each value rounded once from e4m3 times its scale.

    The unit after the last one has the rope columns, which are written as they are.
    """
    lane, rope = m.thread % 4, target.shape[1] == ROPE_DIM
    for half in range(2):
        row, own = half * WARP + m.thread // 4, half * TOKEN_WORDS
        for piece in range(2):
            at = inline(own + (unit * UNIT_WORDS + piece * 4))
            if rope:
                m.do(warps.store_vector(words, at, target.group_at(row, piece * 32 + lane * 8, 8)))
            else:
                halves = (target.group_at(row, piece * 64 + lane * 16 + e, 8) for e in (0, 8))
                m.do(warps.store_fp8(*halves, words, at, words[own + (SCALE_WORD + unit)]))


V4_WORDS, V41_WORDS = Pages.words(LATENT_DIM, 1), PlacedPages.words(LATENT_DIM, 1)
"""Words of a lane for a token of DeepSeek-V4, and of V4.1: values, V4's rope dims, and all scales."""


@recorded
def _load_unit(m, words, unit, kv_pages, low, high, pages):
    """Read a unit of a lane's two tokens."""
    for half, ids in enumerate((low, high)):
        page, slot, inside = place_of(m, pages, ids, m.thread // 4, f"_{half}")
        own = half * pages.words(LATENT_DIM, 1) + unit * UNIT_WORDS
        values = pages.values(kv_pages, page, slot, unit * UNIT, m.thread % 4 * 16)
        # V4's last unit is three pieces of 64 bytes: half a unit of fp8 values, then the rope dims.
        for piece in range(3 if unit == 3 and pages.plain else 2):
            m.do(warps.load_vector(words, own + piece * 4, 4, values.at(piece * 64), inside))


@recorded
def _load_scales(m, scales, kv_pages, low, high, pages):
    """Read the scales of a lane's two tokens."""
    count = PANELS // pages.scaled
    for half, ids in enumerate((low, high)):
        page, slot, inside = place_of(m, pages, ids, m.thread // 4, f"_{half}")
        of_token = pages.scales(kv_pages, page, slot)
        m.do(warps.load_vector(scales, half * count, count, of_token.at(0), inside))


@moves(loaded=lambda low, unit: 2 * WARP * (V4_ROW_BYTES - 3 * 128 if unit == 3 else 128) if low >= 0 else 0)
@by_text
def load_v4_unit(
    m: LeafRecorder, words: Registers[Uint32], unit: int, kv_pages: Global[Uint8], low: Int32, high: Int32,
    pages: Pages,
) -> None:  # fmt: skip
    """Read a unit of a lane's two 584-byte tokens. The last unit includes the rope dims."""
    _load_unit(m, words, unit, kv_pages, low, high, pages)


@moves(loaded=lambda low, unit: 2 * WARP * UNIT if low >= 0 else 0)
@by_text
def load_v41_unit(
    m: LeafRecorder, words: Registers[Uint32], unit: int, kv_pages: Global[Uint8], low: Int32, high: Int32,
    pages: PlacedPages,
) -> None:  # fmt: skip
    """Read a unit of a lane's two tokens of DeepSeek-V4.1."""
    _load_unit(m, words, unit, kv_pages, low, high, pages)


@moves(loaded=lambda low: 2 * WARP * V4_SCALE_BYTES if low >= 0 else 0)
@by_text
def load_v4_scales(
    m: LeafRecorder, scales: Registers[Uint32], kv_pages: Global[Uint8], low: Int32, high: Int32, pages: Pages
) -> None:
    """Read the scales of a lane's two 584-byte tokens, the same in all lanes of a token."""
    _load_scales(m, scales, kv_pages, low, high, pages)


@moves(loaded=lambda low: 2 * WARP * V41_SCALE_BYTES if low >= 0 else 0)
@by_text
def load_v41_scales(
    m: LeafRecorder, scales: Registers[Uint32], kv_pages: Global[Uint8], low: Int32, high: Int32,
    pages: PlacedPages,
) -> None:  # fmt: skip
    """Read the scales of a lane's two tokens of DeepSeek-V4.1, the same in all lanes of a token."""
    _load_scales(m, scales, kv_pages, low, high, pages)


@by_text
def write_v4_unit(m: LeafRecorder, target: Shared[BFloat16], words: Registers[Uint32], unit: int) -> None:
    """Write a unit as bf16, each value rounded once from e4m3 times its scale.

    The second half of the last unit is written as it is.
    """
    lane = m.thread % 4
    for half in range(2):
        row, first = half * WARP + m.thread // 4, half * V4_WORDS
        own = first + unit * UNIT_WORDS
        for piece in range(1 if unit == 3 else 2):
            group = unit * 2 + piece
            word = words[first + (V4_WORDS - 2) + group // 4]
            factor = ue8m0(m, word, group % 4, f"{half}_{piece}")
            store_piece(m, target, row, piece * 64, words, own + piece * 4, factor, lane)
        if unit == 3:
            for piece in range(2):
                place = inline(target.group_at(row, 64 + piece * 32 + lane * 8, 8))
                m.do(warps.store_vector(words, own + 4 + piece * 4, place))


@by_text
def write_v41_unit(m: LeafRecorder, target: Shared[BFloat16], words: Registers[Uint32], unit: int) -> None:
    """Write a unit as bf16, each value rounded once from e4m3 times the scale of its 32 dims."""
    for half in range(2):
        row, first = half * WARP + m.thread // 4, half * V41_WORDS
        scales = first + 4 * UNIT_WORDS + unit
        turn_scales(m, words, scales, 1, m.thread % 4)
        for piece in range(2):
            factor = ue8m0(m, words[scales], piece * 2, f"{half}_{piece}")
            at = first + unit * UNIT_WORDS + piece * 4
            store_piece(m, target, row, piece * 64, words, at, factor, m.thread % 4)


@by_text
def take_maxima(
    m: LeafRecorder, grown: Sets[Boolean], top: Registers[Float32], peak: Registers[Float32],
    red: Shared[Float32], rise: int,
) -> None:  # fmt: skip
    """Compute the maxima of the heads over the four warps.

    `grown` tells whether one rose more than `rise` powers of two above its reference. It is the same in every
    warp.
    """
    join_maxima(m, top, red)
    above: Boolean = False
    for column in unrolled(top.size):
        above |= top[column] > peak[column] + float(rise)
    grown = warps.any_lane(above)


@by_text
def raise_reference(
    m: LeafRecorder, peak: Registers[Float32], top: Registers[Float32], sums: Registers[Float32],
    stat_s: Shared[Float32],
) -> None:  # fmt: skip
    """Raise the reference to the maximum: rescale the running sums, and leave each head's factor for O."""
    for column in unrolled(peak.size):
        highest = maximum(top[column], peak[column])
        factor = warps.exp2(peak[column] - highest)
        sums[column] = sums[column] * factor
        peak[column] = highest
        if m.thread < 4:
            stat_s[column_head(column, m.thread)] = factor


@by_text
def weigh_tokens(
    m: LeafRecorder, scores: Registers[Float32], sums: Registers[Float32], peak: Registers[Float32],
) -> None:  # fmt: skip
    """Replace S by P = exp2(S - reference), and add P to this thread's running sums."""
    for i in unrolled(scores.size):
        column = inline(i // 4 * 2 + i % 2)
        scores[i] = warps.exp2(scores[i] - peak[column])
        sums[column] = sums[column] + scores[i]


@moves(stored=lambda head_block: head_block * 4)
@by_text
def finish_columns(
    m: LeafRecorder, red: Shared[Float32], lses: Writes[Global[Float32]], row: Int32, head0: Int32,
    split: Int32 | None, top: Registers[Float32], peak: Registers[Float32], stat_s: Shared[Float32],
    attn_sink: Global[Float32], padded: int | Int32, head_block: int, splits: Int32, lse_scale: Float32,
    empty_lse: Float32, heads: Int32 | None,
) -> None:  # fmt: skip
    """Write the lse of each head, and compute the factor that normalises its O^T, from sums and reference.

    If the row is not split, the factor includes the sink.
    """
    if split is None:
        of_heads = lses.row("of_heads", row, first=head0)
    else:
        of_heads = lses.row("of_heads", (row, split), (splits, padded), head0)
    join_sums(m, top, red)
    if m.thread < 4:
        for column in unrolled(peak.size):
            head = column_head(column, m.thread)
            lse2 = base2_lse(top[column], peak[column])
            if head < head_block:
                sink = inline(sink_of(attn_sink, head0 + head, heads) if split is None else 0.0)
                kept = inline(kept_beside(lse2, sink) if split is None else 1.0)
                stat_s[head] = inverse_sum(top[column]) * kept
                if is_head(head0 + head, heads):
                    of_heads[head] = lse2 if split is not None else said_lse(lse2, lse_scale, empty_lse)


def _parts(held, heads):
    """In how many parts a thread holds `heads` heads of an accumulator, one part after another."""
    return ceildiv(heads, held.size)


@recorded
def _load_factors(m, held, stat_s, heads, step):
    """For a step through the parts of the four accumulators: its first head, and the factors of its heads."""
    parts = _parts(held, heads)
    first = step % parts * held.size if parts > 1 else 0
    factors = m.local("factors", min(heads, held.size), "float32")
    for quad in unrolled(factors.size // 4):
        stat_s.read(factors.group(quad * 4, 4), first // 4 + quad)
    return first, factors


@by_text
def rescale_output(
    m: LeafRecorder, acc: Tensor[Float32], held: Registers[Float32], stat_s: Shared[Float32], padded: int,
) -> None:  # fmt: skip
    """Multiply O^T by each head's factor."""
    for step in rolled(LATENT_DIM // UNIT * _parts(held, padded)):
        _, factors = _load_factors(m, held, stat_s, padded, step)
        m.do(load_columns(held, acc, step * held.size, m.thread))
        for i in unrolled(held.size):
            held[i] = held[i] * factors[i]
        m.do(store_columns(held, acc, step * held.size, m.thread))


@moves(stored=lambda split, head_block: head_block * LATENT_DIM * (2 if split is None else 4))
@by_text
def write_output(
    m: LeafRecorder, to: Writes[Global[Any]], acc: Tensor[Float32], row: Int32, head0: Int32,
    split: Int32 | None, some: Boolean, held: Registers[Float32], stat_s: Shared[Float32],
    padded: int | Int32, head_block: int, splits: Int32, heads: Int32 | None,
) -> None:  # fmt: skip
    """Write O^T times each head's factor, into the row or into a split's part of the row.

    Without `some` live tile it writes zeros.
    """
    parts = _parts(held, head_block)
    for step in rolled(LATENT_DIM // UNIT * parts):
        first, factors = _load_factors(m, held, stat_s, head_block, step)
        if some:
            m.do(load_columns(held, acc, step * held.size, m.thread))
        d = step // parts * UNIT + m.thread
        left = None if heads is None else named("left", heads - head0 - first)
        for i in unrolled(factors.size):
            head = head0 + first + i
            if split is None:
                of_head = to.row("of_head", (row, head))
            else:
                of_head = to.row("of_head", (row, split, head), (splits, padded, LATENT_DIM))
            value = inline((factors[i] * select(some, held[i], 0.0)).to(to.dtype))
            if is_head(i, left):
                of_head[d] = value


@moves(stored=lambda head_block, shares: -(-head_block // shares) * (LATENT_DIM * 2 + 4))
@by_text
def merge_heads(
    m: LeafRecorder, row: Int32, head0: Int32, share: Int32, shares: Int32, o_partial: Global[Float32],
    lse_partial: Global[Float32], attn_sink: Global[Float32], out: Writes[Global[BFloat16]],
    lse: Writes[Global[Float32]], padded: int | Int32, head_block: int, together: int, splits: Int32,
    lse_scale: Float32, empty_lse: Float32, heads: Int32 | None, parts: Int32 | None,
) -> None:  # fmt: skip
    """Write the weighted sum of the splits for a share of the heads, with four dims per thread.

    Heads are joined `together` at a time. A row without ids gives 0 and `empty_lse`.
    """
    # A row may have fewer parts than there is room for.
    left = inline(splits if parts is None else parts)
    own = (heads_of_block(head_block, head0, heads) - share + shares - 1) // shares

    def head_of(turn, column):
        return head0 + share + minimum(turn + column, own - 1) * shares

    def read(turn, four, part, u):
        place = (row, part, head_of(turn, u))
        o_partial.row("partial", place, (splits, padded, LATENT_DIM)).read(four, m.thread)

    for turn in range(0, own, together):
        top, total, merged = join_parts(
            m, together, together * FOUR, AT_ONCE // together, left,
            lambda part: lse_partial.row("lses", (row, part), (splits, padded)),
            partial(head_of, turn), partial(read, turn), lambda i: i // FOUR,
        )  # fmt: skip
        for column in unrolled(together):
            if turn + column < own:
                head = head_of(turn, column)
                joined = base2_lse(total[column], top[column])
                scale = inverse_sum(total[column]) * kept_beside(joined, attn_sink[head])
                to = out.row("to", (row, head), first=m.thread * FOUR)
                for v in (0, 2):
                    pair = (merged[column * FOUR + v + i] * scale for i in range(2))
                    m.do(warps.store_pair(to.at(v), *pair))
                if m.thread == 0:
                    lse.row("of_row", row)[head] = said_lse(joined, lse_scale, empty_lse)
