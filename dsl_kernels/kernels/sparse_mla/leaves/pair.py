"""Leaves of sparse MLA on Blackwell with 64 heads on M in a CTA, alone or in a pair of CTAs, by their text.

In a pair, a tile has 128 tokens in two sides, one for each CTA. The first half of the lanes of tensor memory
has the scores of the first side, and the other half has those of the second side. Alone, a tile has 64
tokens, and the halves of the lanes have 32 of them each. So two threads have each head, with half of its
scores and half of its dims each: consecutive dims in a pair, and alone 64 of each unit of 128. Exponents are
base 2: logits carry log2(e).
"""

from __future__ import annotations

import math
from typing import Any

from ....device.torch import fragment
from ....device.torch.fragment import load_columns, row_most, row_sum, scale_pair, store_columns
from ....device.torch.scalars import anew
from ....device.torch.warps import any_lane, exp2
from ....problems.layouts import LATENT_DIM
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
    Shared,
    Tensor,
    Writes,
)
from ....tile.lang import LOG2_E, Size
from ....tile.leaf_text import WARP, by_text
from ....tile.text import maximum, select
from .gather import THREADS
from .softmax import base2_lse, inverse_sum, kept_beside, said_lse

HALF = Size(64, "HALF")
"""Heads of a CTA, and tokens of a side."""
OWN_DIMS = Size(LATENT_DIM // 2, "OWN_DIMS")
"""Latent dims of a head that a thread has."""


@moves(loaded=lambda panel: panel // 2)
@by_text
def take_panel(
    m: LeafRecorder, panel: Registers[BFloat16], q: Global[BFloat16], row: Int32, head0: Int32, first: int,
) -> None:  # fmt: skip
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = named("head", head0 + m.thread % HALF)
    of_head = q.row("of_head", (row, head), first=first)
    for i in unrolled(panel.size // 8):
        of_head.read(panel.group(i * 8, 8), i)


@recorded
def _take_part(m, held, q, row, head0, first):
    """Read some dims of all of the CTA's heads. A thread fills `held` with pieces of eight dims."""
    pieces = held.size * THREADS // HALF // 8
    # Found for each query: kept for all of them, places take registers from the panels in flight.
    thread = named("own", anew(m.thread))
    for i in unrolled(held.size // 8):
        item = i * THREADS + thread
        of_head = q.row("of_head", (row, head0 + item // pieces), first=first)
        of_head.read(held.group(i * 8, 8), item % pieces)


@moves(loaded=lambda latent, rope: latent + rope)
@by_text
def take_last_queries(
    m: LeafRecorder, latent: Registers[BFloat16], rope: Registers[BFloat16], q_nope: Global[BFloat16],
    q_pe: Global[BFloat16], row: Int32, head0: Int32, first: int,
) -> None:  # fmt: skip
    """Read a thread's part of the latent dims from `first` on, and of the rope dims, of all heads."""
    _take_part(m, latent, q_nope, row, head0, first)
    _take_part(m, rope, q_pe, row, head0, 0)


@by_text
def leave_queries(
    m: LeafRecorder, target: Shared[BFloat16], latent: Registers[BFloat16], rope: Registers[BFloat16],
) -> None:  # fmt: skip
    """Store what `take_last_queries` read of all heads in shared memory: latent dims, then rope dims."""
    for first, held in ((0, latent), (latent.size * THREADS // HALF, rope)):
        pieces = held.size * THREADS // HALF // 8
        for i in unrolled(held.size // 8):
            item = i * THREADS + m.thread
            target.write(held.group(i * 8, 8), (item // pieces, first + item % pieces * 8))


@by_text
def mask_rows(
    m: LeafRecorder, scores: Registers[Float32], left_low: Int32, left_high: Int32, right_low: Int32,
    right_high: Int32, sm_scale: Float32,
) -> None:  # fmt: skip
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf."""
    scale = named("scale", sm_scale * LOG2_E)
    low = named("low", select(m.thread < HALF, left_low, right_low))
    high = named("high", select(m.thread < HALF, left_high, right_high))
    for pair in unrolled(scores.size // 2):
        m.do(scale_pair(scores, pair * 2, scale, 0.0))
    for i in unrolled(WARP):
        scores[i] = select(((low >> i) & 1) != 0, scores[i], -math.inf)
        scores[WARP + i] = select(((high >> i) & 1) != 0, scores[WARP + i], -math.inf)


@by_text
def leave_maximum(m: LeafRecorder, red: Shared[Float32], scores: Registers[Float32]) -> None:
    """Leave the maximum of the thread's side for the head's other thread."""
    red[m.thread] = row_most(scores)


@by_text
def take_maximum(
    m: LeafRecorder, peak: Registers[Float32], sums: Registers[Float32], factor: Registers[Float32],
    red: Shared[Float32], rise: int,
) -> None:  # fmt: skip
    """Raise the reference to the maximum of both sides, if a head of the warp rose enough.

    Enough is more than `rise` powers of two above the reference. Both threads of a head are in warps with the
    same heads, so both decide alike.
    """
    highest = named("highest", maximum(red[m.thread], red[m.thread ^ HALF]))
    factor[0] = 1.0
    if any_lane(highest > peak[0] + float(rise)):
        raised = named("raised", maximum(highest, peak[0]))
        factor[0] = exp2(peak[0] - raised)
        sums[0] = sums[0] * factor[0]
        peak[0] = raised


@by_text
def weigh_row(
    m: LeafRecorder, scores: Registers[Float32], sums: Registers[Float32], peak: Registers[Float32],
) -> None:  # fmt: skip
    """Replace S by P = exp2(S - reference), and add P to the running sum of the thread's side."""
    for pair in unrolled(scores.size // 2):
        m.do(scale_pair(scores, pair * 2, 1.0, peak[0]))
    for i in unrolled(scores.size):
        scores[i] = exp2(scores[i])
    sums[0] = sums[0] + row_sum(scores)


@by_text
def store_row(m: LeafRecorder, target: Shared[BFloat16], weights: Registers[BFloat16]) -> None:
    """Store a thread's weights: those of one side of its head."""
    for i in unrolled(weights.size // 8):
        target.write(weights.group(i * 8, 8), (m.thread % HALF, m.thread // HALF * HALF + i * 8))


@by_text
def rescale_row(
    m: LeafRecorder, acc: Tensor[Float32], held: Registers[Float32], factor: Registers[Float32]
) -> None:
    """Multiply the thread's dims of O by its head's factor. A warp whose factors are all 1 leaves O alone."""
    if any_lane(factor[0] != 1.0):
        for step in rolled(OWN_DIMS // held.size):
            m.do(load_columns(held, acc, step * held.size, m.thread))
            for pair in unrolled(held.size // 2):
                m.do(scale_pair(held, pair * 2, factor[0], 0.0))
            m.do(store_columns(held, acc, step * held.size, m.thread))


@by_text
def leave_sum(m: LeafRecorder, red: Shared[Float32], sums: Registers[Float32]) -> None:
    """Leave the sum of the thread's side for the head's other thread."""
    red[m.thread] = sums[0]


@moves(stored=lambda: HALF * 4)
@by_text
def finish_row(
    m: LeafRecorder, red: Shared[Float32], lses: Writes[Global[Float32]], row: Int32, head0: Int32,
    split: Int32 | None, sums: Registers[Float32], peak: Registers[Float32], factor: Registers[Float32],
    attn_sink: Global[Float32], heads: int, splits: Int32, lse_scale: Float32, empty_lse: Float32,
) -> None:  # fmt: skip
    """Write the head's lse, and compute the factor that normalises its O.

    If the row is not split, the factor includes the sink.
    """
    if split is None:
        of_heads = lses.row("of_heads", row, first=head0)
    else:
        of_heads = lses.row("of_heads", (row, split), (splits, heads), head0)
    total = named("total", sums[0] + red[m.thread ^ HALF])
    lse2 = named("lse2", base2_lse(total, peak[0]))
    kept = inline(kept_beside(lse2, attn_sink[head0 + m.thread % HALF]) if split is None else 1.0)
    factor[0] = inverse_sum(total) * kept
    if m.thread < HALF:
        of_heads[m.thread] = lse2 if split is not None else said_lse(lse2, lse_scale, empty_lse)


@recorded
def _write_dims(m, to, acc, row, head0, split, some, held, rounded, factor, heads, splits, own, places):
    """Write the thread's dims of O, from dim `own` on, times its head's factor.

    `places` gives for a step the numbers of its first group of 8 and of its first group of 4 of these dims.
    """
    if split is None:
        of_head = to.row("of_head", (row, head0 + m.thread % HALF), first=own)
    else:
        of_head = to.row("of_head", (row, split, head0 + m.thread % HALF), (splits, heads, LATENT_DIM), own)
    for step in rolled(OWN_DIMS // held.size):
        eights, fours = places(step)
        if some:
            m.do(load_columns(held, acc, step * held.size, m.thread))
        for i in unrolled(held.size):
            held[i] = select(some, held[i] * factor[0], 0.0)
        if split is None:
            fragment.round_to(m, rounded, held)
            for i in unrolled(held.size // 8):
                of_head.write(rounded.group(i * 8, 8), eights + i)
        else:
            for i in unrolled(held.size // 4):
                of_head.write(held.group(i * 4, 4), fours + i)


@moves(stored=lambda split: HALF * LATENT_DIM * (2 if split is None else 4))
@by_text
def write_row(
    m: LeafRecorder, to: Writes[Global[Any]], acc: Tensor[Float32], row: Int32, head0: Int32,
    split: Int32 | None, some: Boolean, held: Registers[Float32], rounded: Registers[BFloat16],
    factor: Registers[Float32], heads: int, splits: Int32,
) -> None:  # fmt: skip
    """Write the thread's dims of O times its head's factor, into the row or into a split's part of the row.

    Without `some` live tile it writes zeros.
    """
    own = m.thread // HALF * OWN_DIMS

    def places(step):
        return step * (held.size // 8), step * (held.size // 4)

    _write_dims(m, to, acc, row, head0, split, some, held, rounded, factor, heads, splits, own, places)


# 64 heads in one CTA.

UNIT_COLUMNS = Size(64, "UNIT_COLUMNS")
"""Columns of tensor memory of a unit of O. Each half of the lanes has half of the unit's dims."""


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
    per_unit = UNIT_COLUMNS // held.size

    def places(step):
        first = named("first", step // per_unit * (2 * UNIT_COLUMNS) + step % per_unit * held.size)
        return first // 8, first // 4

    _write_dims(m, to, acc, row, head0, split, some, held, rounded, factor, heads, splits, own, places)
