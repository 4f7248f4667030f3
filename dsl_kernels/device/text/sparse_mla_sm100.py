"""Leaves of sparse MLA on tcgen05 by their text: tokens on M, heads on N, accumulators in tensor memory.

A key tile is 64 tokens. Its accumulator of scores sits in lanes 0-15 of each warp's 32 lanes of tensor memory; read as
16x256b it gives thread t of warp w the tokens 16 w + t / 4 (+ 8) and the heads 2 (t % 4) + {0, 1} of every group of eight.
Threads address their own values, in that order:

    value 4 g + 2 half + e  ->  token 16 w + t / 4 + 8 half,  head 8 g + 2 (t % 4) + e
    column 2 g + e          ->  that head

Of O^T, four accumulators of 128 latent dims side by side, a thread has one dim of each. Exponents are base 2: logits carry
log2(e).
"""

from __future__ import annotations

import math

from ...problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM
from ...tile.leaf_text import WARP, by_text
from ...tile.text import Sets, Value, Writes, ceildiv, maximum, select
from ..torch.sparse_mla import THREADS, TILE
from ..torch.sparse_mla_sm100 import UNIT, load_columns, store_columns
from ..torch.warps import (
    any_lane,
    copy16,
    exp2,
    load_vector,
    shuffle,
    store_fp8,
    store_vector,
)
from .sparse_mla import (
    ROPE_AT,
    ROPE_WORD,
    SCALE_WORD,
    SCALES_AT,
    TOKEN_WORDS,
    _inverse,
    _lse,
    column_head,
    join_sums,
    kept_beside,
)

AT_ONCE = 8
"""Splits whose partials are on their way together."""


@by_text
def load_block(m, target, q, row, head0, heads, head_block, padded, columns, thread):
    """A block of heads of one query; the rows behind them, up to `padded`, become zero."""
    held, pieces = m.local("held", 8, "bfloat16"), columns // 8
    for i in m.loop("i", padded * pieces // THREADS, at_once=8):
        item = m.let("item", i * THREADS + thread)
        head, piece = m.let("head", item // pieces), m.let("piece", item % pieces)
        for v in m.loop("v", 8, unrolled=True):
            held[v] = 0.0
        with m.when(head < head_block):
            q.row("of_head", (row, head0 + head), (heads, columns)).read(held, piece)
        target.write(held, (head, piece * 8))


@by_text
def spread_ids(m, rows, low, high, in_low, in_high, thread):
    """The rows that a thread copies pieces of: every `64 / count`-th token's from its own on; -1 where an id names none."""
    step = TILE // rows.size
    for i in range(rows.size):
        ids, valid = (low, in_low) if i * step < WARP else (high, in_high)
        place = m.let("place", thread // (THREADS // step) + i * step % WARP)
        found = m.let("found", shuffle(ids, place))
        rows[i] = select(((valid >> place) & 1).differs(0), found, -1)


@by_text
def gather_columns(m, target, cache, first, columns, rows, thread):
    """Start the copies of columns `first` on of a tile's rows, 16 lanes a row; a row of -1 is not read and becomes zero."""
    piece = m.let("piece", thread % 16)
    with m.when(piece < columns // 8):
        for r in m.loop("r", rows.size, unrolled=True):
            source = cache.row("source", maximum(rows[r], 0), first=first + piece * 8)
            to = target.group_at(thread // 16 + r * (TILE // rows.size), piece * 8, 8)
            m.do(copy16(to, source.at(0), rows[r] >= 0))


# A token of 656 bytes lies in four lanes: 16 bytes of each 64 of its fp8 values, 32 of rope, and all of its scales.


def _load_words(m, words, at, kv_cache, rows, first, pieces):
    """Read 16 bytes of this thread's tokens, and again 64 further on; zeros for a row of -1."""
    for i in m.loop("i", rows.size, unrolled=True):
        token = kv_cache.row("token", maximum(rows[i], 0), FP8_TOKEN_BYTES, first)
        for piece in range(pieces):
            to = i * TOKEN_WORDS + (at + 4 * piece)
            m.do(load_vector(words, to, 4, token.at(64 * piece), rows[i] >= 0))


@by_text
def load_unit(m, words, unit, kv_cache, rows, thread):
    """Read the fp8 values of one unit of a tile's tokens into registers."""
    _load_words(m, words, 8 * unit, kv_cache, rows, unit * UNIT + thread % 4 * 16, 2)


@by_text
def load_rest(m, words, kv_cache, rows, thread):
    """Read the rope columns and the scales of a tile's tokens into registers."""
    _load_words(m, words, ROPE_WORD, kv_cache, rows, ROPE_AT + thread % 4 * 16, 2)
    _load_words(m, words, SCALE_WORD, kv_cache, rows, SCALES_AT, 1)


@by_text
def dequantise_unit(m, target, words, unit, thread):
    """Write a unit as bf16, rounded once from e4m3 times scale."""
    for i in m.loop("i", words.size // TOKEN_WORDS, unrolled=True):
        row, own = m.let("row", i * WARP + thread // 4), i * TOKEN_WORDS
        for piece in range(2):
            column = piece * 64 + thread % 4 * 16
            halves = (target.group_at(row, column + 8 * half, 8) for half in range(2))
            m.do(store_fp8(*halves, words, own + (8 * unit + 4 * piece), words[own + (SCALE_WORD + unit)]))


@by_text
def store_rope(m, target, words, thread):
    """Write the rope columns."""
    for i in m.loop("i", words.size // TOKEN_WORDS, unrolled=True):
        for piece in range(2):
            to = target.group_at(i * WARP + thread // 4, piece * 32 + thread % 4 * 8, 8)
            m.do(store_vector(words, i * TOKEN_WORDS + (ROPE_WORD + 4 * piece), to))


@by_text
def take_maxima(m, grown: Sets, top, peak, red, rise, thread):
    """The maxima of the heads over the four warps.

    `grown` tells whether one rose more than `rise` powers of two above its reference; alike in every warp.
    """
    above, four = m.var("above", False, "bool"), m.local("four", 4, "float32")
    for column in m.loop("column", top.size, unrolled=True):
        red.read(four, (column_head(column, thread), 0))
        top[column] = maximum(maximum(four[0], four[1]), maximum(four[2], four[3]))
        m.set(above, above | (top[column] > peak[column] + float(rise)))
    m.set(grown, any_lane(above))


@by_text
def raise_reference(m, peak, top, sums, stat_s, thread):
    """Move the reference up to the maximum: rescale the running sums, and leave each head's factor for O."""
    for column in m.loop("column", peak.size, unrolled=True):
        highest = m.let("highest", maximum(top[column], peak[column]))
        factor = m.let("factor", exp2(peak[column] - highest))
        sums[column] = sums[column] * factor
        peak[column] = highest
        with m.when(thread < 4):
            stat_s[column_head(column, thread)] = factor


@by_text
def weigh_tokens(m, scores, sums, peak):
    """P = exp2(S - reference) in place of S, and the running sums of this thread's own weights."""
    for i in m.loop("i", scores.size, unrolled=True):
        column = i // 4 * 2 + i % 2
        scores[i] = exp2(scores[i] - peak[column])
        sums[column] = sums[column] + scores[i]


@by_text
def store_tokens(m, target, scores, thread):
    """Write P as bf16, tokens by heads."""
    two = m.local("two", 2, "bfloat16")
    for pair in m.loop("pair", scores.size // 2, unrolled=True):
        for e in range(2):
            two[e] = scores[2 * pair + e].to("bfloat16")
        token = thread // WARP * 16 + thread % WARP // 4 + pair % 2 * 8
        target.write(two, (token, pair // 2 * 8 + thread % 4 * 2))


def _line(row, split, splits):
    """Where an operand has a row, or a split's part of it, and what that is an index of."""
    return ((row,), ()) if split is None else ((row, split), (splits,))


@by_text
def finish_columns(
    m, red, lses: Writes, row, head0, split, top, peak, stat_s, attn_sink, heads, head_block, splits, lse_scale, thread
):  # fmt: skip
    """From sums and reference: the lse of each head, and what normalises its O^T; beside the sink, where a row has no split."""
    line, pitch = _line(row, split, splits)
    of_heads = lses.row("of_heads", line, (*pitch, heads), head0)
    join_sums(m, top, red, thread)
    with m.when(thread < 4):
        for column in m.loop("column", peak.size, unrolled=True):
            head = m.let("head", column_head(column, thread))
            lse2 = m.let("lse2", _lse(top[column], peak[column]))
            with m.when(head < head_block):
                kept = kept_beside(lse2, attn_sink[head0 + head]) if split is None else 1.0
                stat_s[head] = _inverse(top[column]) * kept
                of_heads[head] = lse2 * (lse_scale if split is None else 1.0)


def _part(step, parts: Value) -> Value:
    """Of the `parts` that an accumulator falls into, the one that a step is for."""
    return step % parts if parts > 1 else 0


def _factors(m, stat_s, first: Value, count: int):
    """The factors of `count` heads from a multiple of four on."""
    factors = m.local("factors", count, "float32")
    for quad in m.loop("quad", count // 4, unrolled=True):
        stat_s.read(factors.group(quad * 4, 4), first // 4 + quad)
    return factors


@by_text
def rescale_output(m, acc, held, stat_s, padded, thread):
    """O^T times each head's factor, some columns of the four accumulators at a time."""
    parts = padded // held.size
    for step in m.loop("step", LATENT_DIM // UNIT * parts):
        factors = _factors(m, stat_s, _part(step, parts) * held.size, held.size)
        load_columns(m, held, acc, step * held.size, thread)
        for i in m.loop("i", held.size, unrolled=True):
            held[i] = held[i] * factors[i]
        store_columns(m, held, acc, step * held.size, thread)


@by_text
def write_output(
    m, to: Writes, acc, row, head0, split, some, held, stat_s, heads, head_block, splits, thread
):
    """O^T times each head's factor, as a row or as a split's part of it; zeros without `some` live tile."""
    parts, count = ceildiv(head_block, held.size), min(head_block, held.size)
    line, pitch = _line(row, split, splits)
    for step in m.loop("step", LATENT_DIM // UNIT * parts):
        first = m.let("first", _part(step, parts) * held.size)
        factors = _factors(m, stat_s, first, count)
        with m.when(some):
            load_columns(m, held, acc, step * held.size, thread)
        d = m.let("d", step // parts * UNIT + thread)
        for i in m.loop("i", count, unrolled=True):
            of_head = to.row("of_head", (*line, head0 + first + i), (*pitch, heads, LATENT_DIM))
            of_head[d] = (factors[i] * select(some, held[i], 0.0)).to(to.dtype)


@by_text
def merge_heads(
    m, row, head0, o_partial, lse_partial, attn_sink, out: Writes, lse: Writes, heads, head_block, splits, split, lse_scale, thread
):  # fmt: skip
    """The weighted sum of the splits for this one's share of the heads, four dims a thread; a row without ids gives 0 and -inf."""
    four, merged = m.local("four", 4, "float32"), m.local("merged", 4, "float32")
    rounded = m.local("rounded", 4, "bfloat16")
    for turn in m.loop("turn", (head_block - split + splits - 1) // splits):
        head = m.let("head", head0 + split + turn * splits)
        top, total = m.var("top", -math.inf, "float32"), m.var("total", 0.0, "float32")
        for other in m.loop("other", splits, at_once=AT_ONCE):
            lses = lse_partial.row("lses", (row, other), (splits, heads))
            m.set(top, maximum(top, lses[head]))
        base = m.let("base", select(top > -math.inf, top, 0.0))
        for v in range(4):
            merged[v] = 0.0
        for other in m.loop("other", splits, at_once=AT_ONCE):
            lses = lse_partial.row("lses", (row, other), (splits, heads))
            weight = m.let("weight", exp2(lses[head] - base))
            m.set(total, total + weight)
            o_partial.row("partial", (row, other, head), (splits, heads, LATENT_DIM)).read(four, thread)
            for v in range(4):
                merged[v] = merged[v] + weight * four[v]
        joined = m.let("joined", _lse(total, base))
        scale = m.let("scale", _inverse(total) * kept_beside(joined, attn_sink[head]))
        for v in range(4):
            rounded[v] = (merged[v] * scale).to("bfloat16")
        out.row("to", (row, head), (heads, LATENT_DIM)).write(rounded, thread)
        with m.when(thread.equals(0)):
            lse.row("of_row", row, heads)[head] = joined * lse_scale
