"""Leaves of sparse MLA over fp8 tokens as they are stored, by their text: products take e4m3 operands.

Queries and P are two e4m3 terms each, the second sixteen times finer, side by side on N. 128 latent dims are
a group, which has a scale per token. So the scores of a tile are a partial one for each group and term, in
the columns of a thread's heads, and P is as many sets of terms as there are groups.

A unit is a power of two, no smaller than the numbers that are split: of a head and group of a query, or of
the scales of a group's values so far. The numbers are multiplied by 256 / unit.
"""

from __future__ import annotations

from typing import Any

from ....device.torch.floats import max_of_lanes
from ....device.torch.fragment import load_columns, store_columns
from ....device.torch.scalars import bits_of, float_of, half_of
from ....device.torch.terms import FINER, store_terms
from ....device.torch.warps import any_lane, copy16, load_vector, store_vector, warp_most
from ....problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM
from ....tile.counting import moves
from ....tile.frontend import inline, named, recorded, rolled, unrolled
from ....tile.kinds import (
    BFloat16,
    Boolean,
    Float8,
    Float32,
    Global,
    Int32,
    LeafRecorder,
    Registers,
    Sets,
    Shared,
    Tensor,
    Uint8,
    Writes,
)
from ....tile.leaf_text import WARP, by_text
from ....tile.text import maximum
from .gather import ROPE_AT, SCALES_AT, THREADS, TILE, cache_row
from .softmax import column_head

GROUP = 128
GROUPS = LATENT_DIM // GROUP
LEAST = 2.0**-100
"""The least unit, so that its inverse is a number."""
LARGEST = 256.0
"""The greatest power of two that e4m3 holds."""
RISE = 2
"""By how many powers of two a maximum may exceed its reference. A weight is at most 2^RISE."""
LARGEST_WEIGHT = LARGEST / 2**RISE
"""What a weight of 1 becomes."""


def _unit(bits):
    """The least power of two that is no smaller than the magnitude of these bits; at least `LEAST`."""
    return maximum(float_of((bits + 0x7FFFFF) & 0x7F800000), LEAST)


def _inverse(unit):
    """1 / unit."""
    return float_of(0x7F000000 - bits_of(unit))


@moves(loaded=lambda head_block: head_block * (LATENT_DIM + 64) * 2)
@by_text
def split_queries(
    m: LeafRecorder, target: Shared[Float8], units: Shared[Float32], rope: Shared[BFloat16],
    q: Global[BFloat16], q_pe: Global[BFloat16], row: Int32, head0: Int32, head_block: int,
) -> None:  # fmt: skip
    """Write a block of heads of one query: two terms of the latent dims with their units, the rope dims.

    Eight lanes have a group of a head. The target's padding becomes zero.
    """
    heads = inline(target.shape[0] // 2)
    rounds = inline(heads * GROUPS * 8 // THREADS)
    lane, own = m.thread % 8, m.thread // 8
    words, values = m.local("words", rounds * 8, "uint32"), m.local("values", 16, "float32")
    beside = m.local("beside", 4, "uint32")
    m.comment("All reads come before the first write: a compiler moves no read past a write.")
    for i in unrolled(rounds):
        item = i * (THREADS // 8) + own
        of_head = q.row("of_head", (row, head0 + item // GROUPS), first=item % GROUPS * GROUP)
        for half in range(2):
            place = inline(of_head.at(lane * 16 + half * 8))
            m.do(load_vector(words, i * 8 + half * 4, 4, place, item // GROUPS < head_block))
    of_rope = q_pe.row("of_rope", (row, head0 + own))
    m.do(load_vector(beside, 0, 4, of_rope.at(lane * 8), own < head_block))
    m.do(store_vector(beside, 0, rope.group_at(own, lane * 8, 8)))
    for i in unrolled(rounds):
        item = i * (THREADS // 8) + own
        most: Float32 = 0.0
        for w in unrolled(8):
            for upper in range(2):
                values[2 * w + upper] = half_of(words[i * 8 + w], bool(upper))
        for v in unrolled(16):
            most = maximum(most, maximum(values[v], -values[v]))
        unit = named("unit", _unit(bits_of(max_of_lanes(most, 8))))
        factor = named("factor", _inverse(unit) * LARGEST)
        for v in unrolled(16):
            values[v] = values[v] * factor
        for quad in unrolled(4):
            column = inline(item % GROUPS * GROUP + lane * 16 + quad * 4)
            places = (target.group_at(part * heads + item // GROUPS, column, 4) for part in range(2))
            m.do(store_terms(*places, values, quad * 4))
        if lane == 0:
            units[item // GROUPS, item % GROUPS] = unit * (1 / LARGEST)


@moves(loaded=lambda low: TILE * FP8_TOKEN_BYTES if low >= 0 else 0)
@by_text
def copy_stored(
    m: LeafRecorder, kv: Shared[Float8], pe: Shared[BFloat16], scales: Shared[Float32],
    kv_cache: Global[Uint8], low: Int32, high: Int32, n: Int32,
) -> None:  # fmt: skip
    """Start the copies of a tile's tokens as they are stored, with eight threads per token.

    A token becomes zeros if its id names no row.
    """
    lane = inline(m.thread % 8)
    own = kv_cache.part("own", lane * 16)
    for r in range(TILE // 16):
        row = r * 16 + m.thread // 8
        place, inside = cache_row(m, low if r < 2 else high, row % WARP, n, f"_{r}")
        token = own.row(f"bytes_{r}", place)
        for group in range(GROUPS):
            to = inline(kv.group_at(row, group * GROUP + lane * 16, 16))
            m.do(copy16(to, token.at(group * GROUP), inside))
        m.do(copy16(pe.group_at(row, lane * 8, 8), token.at(ROPE_AT), inside))
        if lane == 0:
            m.do(copy16(scales.group_at(row, 0, 4), token.at(SCALES_AT), inside))


@by_text
def take_scales(
    m: LeafRecorder, scales: Registers[Float32], units: Registers[Float32], lift: Registers[Float32],
    of_tile: Shared[Float32],
) -> None:  # fmt: skip
    """Read the scales of the thread's two tokens, and raise the units to those of the whole tile.

    `lift` is by what the sums of each group must be multiplied: 1 if its unit did not rise.
    """
    row, two = m.thread // WARP * 16 + m.lane // 4, m.local("two", 2 * GROUPS, "float32")
    for half in range(2):
        of_tile.read(scales.group(half * GROUPS, GROUPS), (row + 8 * half, 0))
        of_tile.read(two.group(half * GROUPS, GROUPS), (half * WARP + m.lane, 0))
    for g in unrolled(GROUPS):
        most = maximum(maximum(two[g], -two[g]), maximum(two[GROUPS + g], -two[GROUPS + g]))
        unit = named("unit", maximum(_unit(warp_most(bits_of(most))), units[g]))
        lift[g] = units[g] * _inverse(unit)
        units[g] = unit


@by_text
def find_risen(m: LeafRecorder, risen: Sets[Boolean], lift: Registers[Float32]) -> None:
    """Whether the unit of a group rose."""
    below: Boolean = False
    for g in unrolled(GROUPS):
        below |= lift[g] < 1.0
    risen = any_lane(below)


@by_text
def join_partial_scores(
    m: LeafRecorder, scores: Registers[Float32], partial: Registers[Float32], scales: Registers[Float32],
    units: Shared[Float32],
) -> None:  # fmt: skip
    """Add the partial scores of both terms of each group, scaled, to those of the rope dims."""
    four, each = m.local("four", GROUPS, "float32"), scores.size
    for column in unrolled(each // 2):
        units.read(four, (column_head(column, m.thread), 0))
        for r in range(2):
            i = inline(column // 2 * 4 + column % 2 + 2 * r)
            for g in range(GROUPS):
                both = inline(partial[g * 2 * each + i] + partial[(g * 2 + 1) * each + i] * (1 / FINER))
                scores[i] = scores[i] + both * (four[g] * scales[r * GROUPS + g])


@by_text
def store_weights_in_terms(
    m: LeafRecorder, target: Shared[Float8], scores: Registers[Float32], scales: Registers[Float32],
    units: Registers[Float32],
) -> None:  # fmt: skip
    """Write P times the scales of each group's values as two terms. A thread's heads are side by side."""
    heads = inline(scores.size * 2)
    row, four = m.thread // WARP * 16 + m.lane // 4, m.local("four", 4, "float32")
    for g in unrolled(GROUPS):
        factor = named("factor", _inverse(units[g]) * LARGEST_WEIGHT)
        for r in range(2):
            own = named(f"own_{r}", scales[r * GROUPS + g] * factor)
            for v in range(4):
                four[v] = scores[v // 2 * 4 + 2 * r + v % 2] * own
            columns = (g * (2 * heads) + part * heads + m.thread % 4 * 4 for part in range(2))
            m.do(store_terms(*(target.group_at(row + 8 * r, c, 4) for c in columns), four, 0))


def _head(column):
    """The head of a column of O^T, as `store_weights_in_terms` lays them out."""
    return column % 4 // 2 * 8 + column // 4 * 2 + column % 2


@by_text
def leave_group_factors(
    m: LeafRecorder, stat_s: Shared[Float32], factors: Registers[Float32], by: float
) -> None:
    """Leave a factor of each group, times `by`, after those of the heads."""
    if m.thread == 0:
        for g in unrolled(GROUPS):
            stat_s[stat_s.size - GROUPS + g] = factors[g] * by


@recorded
def _load_factors(m, stat_s, heads):
    """The factor of each head."""
    factors = m.local("factors", heads, "float32")
    for quad in unrolled(heads // 4):
        stat_s.read(factors.group(quad * 4, 4), quad)
    return factors


@by_text
def rescale_terms(
    m: LeafRecorder, acc: Tensor[Float32], held: Registers[Float32], stat_s: Shared[Float32],
) -> None:  # fmt: skip
    """Multiply O^T of both terms by each head's factor and each group's."""
    heads = inline(held.size // 2)
    factors = _load_factors(m, stat_s, heads)
    for g in rolled(GROUPS):
        of_group = stat_s[heads + g]
        m.do(load_columns(held, acc, g * held.size, m.thread))
        for i in unrolled(heads):
            factor = named("factor", factors[_head(i)] * of_group)
            for part in range(2):
                held[part * heads + i] = held[part * heads + i] * factor
        m.do(store_columns(held, acc, g * held.size, m.thread))


@moves(stored=lambda split, head_block: head_block * LATENT_DIM * (2 if split is None else 4))
@by_text
def write_terms(
    m: LeafRecorder, to: Writes[Global[Any]], acc: Tensor[Float32], row: Int32, head0: Int32,
    split: Int32 | None, some: Boolean, held: Registers[Float32], stat_s: Shared[Float32],
    padded: int | Int32, head_block: int, splits: Int32,
) -> None:  # fmt: skip
    """Write O^T of both terms times each head's factor and each group's, into the row or a split's part.

    Without `some` live tile it writes zeros.
    """
    heads = inline(held.size // 2)
    factors = _load_factors(m, stat_s, heads)
    rows = []
    for i in range(heads):
        own = inline(head0 + _head(i))
        if split is None:
            rows.append(to.row(f"of_head_{i}", (row, own), first=m.thread))
        else:
            rows.append(to.row(f"of_head_{i}", (row, split, own), (splits, padded, LATENT_DIM), m.thread))
    for g in rolled(GROUPS):
        of_group = stat_s[heads + g]
        if some:
            m.do(load_columns(held, acc, g * held.size, m.thread))
        else:
            for i in unrolled(held.size):
                held[i] = 0.0
        for i in range(heads):
            both = inline(held[i] + held[heads + i] * (1 / FINER))
            value = inline((both * (factors[_head(i)] * of_group)).to(to.dtype))
            if _head(i) < head_block:
                rows[i][g * GROUP] = value
