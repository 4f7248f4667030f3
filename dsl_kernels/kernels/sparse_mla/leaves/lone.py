"""Leaves of sparse MLA on Blackwell with 64 heads on M in one CTA, by their text.

`pair` has the leaves that are the same for a pair of CTAs.

A tile has 64 tokens. The first half of the lanes of tensor memory has the scores of the first 32 tokens, and
the other half has those of the last 32. So two threads have each head, with half of its tokens each. A thread
has 64 of each unit of 128 dims of O. Exponents are base 2: logits carry log2(e).
"""

from __future__ import annotations

import math
from typing import Any

from ....device.torch import fragment
from ....device.torch.fragment import load_columns, scale_pair
from ....problems.layouts import LATENT_DIM
from ....tile.counting import moves
from ....tile.frontend import named, rolled, unrolled
from ....tile.kinds import (
    BFloat16,
    Boolean,
    Float32,
    Global,
    Int32,
    LeafRecorder,
    Registers,
    Shared,
    Tensor,
    Writes,
)
from ....tile.lang import LOG2_E, Size
from ....tile.leaf_text import by_text
from ....tile.text import select
from .pair import HALF, OWN_DIMS, _take_panel, _take_part

UNIT_COLUMNS = Size(64, "UNIT_COLUMNS")
"""Columns of tensor memory of a unit of O. Each half of the lanes has half of the unit's dims."""


@moves(loaded=lambda panel, latent, rope: panel + latent + rope)
@by_text
def take_more_queries(
    m: LeafRecorder, panel: Registers[BFloat16], panel_1: Registers[BFloat16], latent: Registers[BFloat16],
    rope: Registers[BFloat16], q_nope: Global[BFloat16], q_pe: Global[BFloat16], row: Int32, head0: Int32,
    first: int,
) -> None:  # fmt: skip
    """Read the rest of the queries, from dim `first` on.

    A thread takes two panels of its head's dims, then its part of the other latent dims and of the rope dims
    of all heads.
    """
    _take_panel(m, panel, q_nope, row, head0, first)
    _take_panel(m, panel_1, q_nope, row, head0, first + panel.size)
    _take_part(m, latent, q_nope, row, head0, first + 2 * panel.size)
    _take_part(m, rope, q_pe, row, head0, 0)


@by_text
def mask_half(
    m: LeafRecorder, scores: Registers[Float32], low: Int32, high: Int32, sm_scale: Float32
) -> None:
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf."""
    scale = named("scale", sm_scale * LOG2_E)
    valid = named("valid", select(m.thread < HALF, low, high))
    for pair in unrolled(scores.size // 2):
        m.do(scale_pair(scores, pair * 2, scale, 0.0))
    for i in unrolled(scores.size):
        scores[i] = select(((valid >> i) & 1) != 0, scores[i], -math.inf)


@by_text
def store_half(m: LeafRecorder, target: Shared[BFloat16], weights: Registers[BFloat16]) -> None:
    """Store a thread's weights: those of half of its head's tokens."""
    for i in unrolled(weights.size // 8):
        target.write(weights.group(i * 8, 8), (m.thread % HALF, m.thread // HALF * weights.size + i * 8))


@moves(stored=lambda split: HALF * LATENT_DIM * (2 if split is None else 4))
@by_text
def write_units(
    m: LeafRecorder, to: Writes[Global[Any]], acc: Tensor[Float32], row: Int32, head0: Int32,
    split: Int32 | None, some: Boolean, held: Registers[Float32], rounded: Registers[BFloat16],
    factor: Registers[Float32], heads: int, splits: Int32,
) -> None:  # fmt: skip
    """Write the thread's dims of O times its head's factor, into the row or into a split's part of the row.

    Without `some` live tile it writes zeros.
    """
    own = m.thread // HALF * UNIT_COLUMNS
    if split is None:
        of_head = to.row("of_head", (row, head0 + m.thread % HALF), first=own)
    else:
        of_head = to.row("of_head", (row, split, head0 + m.thread % HALF), (splits, heads, LATENT_DIM), own)
    per_unit = UNIT_COLUMNS // held.size
    for step in rolled(OWN_DIMS // held.size):
        first = named("first", step // per_unit * (2 * UNIT_COLUMNS) + step % per_unit * held.size)
        if some:
            m.do(load_columns(held, acc, step * held.size, m.thread))
        for i in unrolled(held.size):
            held[i] = select(some, held[i] * factor[0], 0.0)
        if split is None:
            fragment.round_to(m, rounded, held)
            for i in unrolled(held.size // 8):
                of_head.write(rounded.group(i * 8, 8), first // 8 + i)
        else:
            for i in unrolled(held.size // 4):
                of_head.write(held.group(i * 4, 4), first // 4 + i)
