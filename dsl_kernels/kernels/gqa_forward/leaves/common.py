"""Texts of the leaves of attention: causal and ragged masks, the online softmax and its epilogue.

On Hopper a thread has two rows of a tile, as a product leaves it. On Blackwell a thread has one of 128 rows,
as in tensor memory. Each thread sums the weights of its own columns. Exponents are base 2, and `scale` takes
scores to that base.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

from ....device.text.rows import FOUR, first_row, of_row, scale_row
from ....device.text.rows import rescale_rows as rescale_rows
from ....device.torch.fragment import quad_most, quad_sum, row_most, row_most_bits, row_sum, scale_pair
from ....device.torch.scalars import anew, bits_of
from ....device.torch.warps import any_lane, exp2, log2, rcp_approx, store_matrices
from ....tile.frontend import inline, named, recorded, unrolled
from ....tile.kinds import Float32, Global, Int32, LeafRecorder, Registers, Shared, Writes
from ....tile.lang import LN_2
from ....tile.leaf_text import WARP, by_text
from ....tile.text import maximum, minimum, select
from ..functions import keep_order

INF = math.inf


def _groups(scores, rows):
    """A loop over groups of a thread's registers.

    A group has four with two rows, and one with a single row.
    """
    return unrolled(scores.size // FOUR if rows == 2 else scores.size)


def _of_row(j, r, rows):
    """The number and the column of each register of a thread's row `r` in group `j`.

    Columns count from the thread's first column.
    """
    return [(i, j * 8 + e) for e, i in enumerate(of_row(j, r))] if rows == 2 else [(j, j)]


def _row(thread, r, rows):
    """The row of the tile that a thread's row `r` is."""
    return first_row(thread) + 8 * r if rows == 2 else thread


def _over(function, scores, r, rows):
    """A function of the registers of a thread's row `r`."""
    return function(scores, r) if rows == 2 else function(scores)


@by_text
def hide_keys(
    m: LeafRecorder, scores: Registers[Float32], row: Int32, key: Int32, skv: Int32, shift: Int32, rows: int,
) -> None:  # fmt: skip
    """Set scores to -inf where there is no such key, or the row does not see it.

    Rows begin with `row`, keys with `key`, and a thread has `rows` rows. A row sees the keys up to its own
    number plus `shift`.
    """
    first = key + m.thread % 4 * 2 if rows == 2 else key
    for r in range(rows):
        last = named(f"last_{r}", minimum(skv - 1, row + _row(m.thread, r, rows) + shift) - first)
        for j in _groups(scores, rows):
            for i, column in _of_row(j, r, rows):
                scores[i] = select(column > last, -INF, scores[i])


def _base(top, unseen):
    """The base that is taken from scores: the maximum, or 0 for a row that has seen no key."""
    return select(top == -INF, 0.0, top) if unseen else top


def _most(scores, r, rows):
    """The greatest score of a row."""
    found = _over(row_most, scores, r, rows)
    return quad_most(found) if rows == 2 else found


@recorded
def _weigh(m, scores, total, r, shift, scale):
    """Turn the scores of a row into weights, and add these to the thread's sum."""
    rows = total.size
    for j in unrolled(scores.size // (2 * rows)):
        first = inline(j * (2 * rows) + 2 * r)
        m.do(scale_pair(scores, first, scale, shift))
        for i in (first, first + 1):
            scores[i] = exp2(scores[i])
    total[r] = total[r] + _over(row_sum, scores, r, rows)


@by_text
def online_softmax(
    m: LeafRecorder, scores: Registers[Float32], top: Registers[Float32], total: Registers[Float32],
    factor: Registers[Float32], scale: Float32, unseen: bool,
) -> None:  # fmt: skip
    """Turn scores into weights, exp2(scale * (score - top)), with the running maximum and sum of each row.

    `factor` is the factor on earlier weights. `unseen` says that a row may see no key of this tile.
    """
    for r in range(top.size):
        risen = named(f"risen_{r}", maximum(top[r], _most(scores, r, top.size)))
        shift = named(f"shift_{r}", _base(risen, unseen) * scale)
        factor[r] = exp2(top[r] * scale - shift)
        total[r] = total[r] * factor[r]
        top[r] = risen
        _weigh(m, scores, total, r, shift, scale)


def _reaches(scores, limit, bits):
    """Whether a score of this thread reaches its row's limit. By bits, integers compare three at once.

    As integers, negative numbers compare the other way round. So a limit below zero is -0.0, the least
    integer.
    """
    reached, rows = [], limit.size
    for r in range(rows):
        if bits:
            reached.append(_over(row_most_bits, scores, r, rows) >= bits_of(limit[r]).to("int32"))
        else:
            reached += [_over(row_most, scores, r, rows) >= limit[r], limit[r] <= 0.0]
    return functools.reduce(operator.or_, reached)


@by_text
def online_softmax_lazily(
    m: LeafRecorder, scores: Registers[Float32], top: Registers[Float32], total: Registers[Float32],
    factor: Registers[Float32], limit: Registers[Float32], scale: Float32, rise: int, unseen: bool,
    bits: bool,
) -> None:  # fmt: skip
    """Like `online_softmax`, but `top` stays where no score of a warp exceeds it by `rise` powers of two.

    Factors are then 1, and weights reach 2^rise. `limit` is the score from which `top` rises. Where that
    score is negative, `limit` is -0.0, and `top` always rises.
    """
    for r in range(top.size):
        factor[r] = 1.0
    if any_lane(_reaches(scores, limit, bits)):
        for r in range(top.size):
            risen = named(f"risen_{r}", maximum(top[r], _most(scores, r, top.size)))
            factor[r] = exp2((top[r] - _base(risen, True)) * scale)
            total[r] = total[r] * factor[r]
            top[r] = risen
            above = named(f"above_{r}", risen + rise * rcp_approx(scale))
            limit[r] = select(above > 0.0, above, -0.0)
    for r in range(top.size):
        shift = named(f"shift_{r}", _base(top[r], unseen) * scale)
        _weigh(m, scores, total, r, shift, scale)


@by_text
def finish_weights(m: LeafRecorder) -> None:
    """Have the weights computed before the wait for a product that runs meanwhile."""
    m.do(keep_order())


@by_text
def divide_by_total(
    m: LeafRecorder, acc: Registers[Float32], top: Registers[Float32], total: Registers[Float32],
    scale: Float32,
) -> None:  # fmt: skip
    """Divide rows of the accumulator by their sums, and turn `top` into the natural logarithm of sum exp."""
    for r in range(2):
        whole = named(f"whole_{r}", quad_sum(total[r]))
        top[r] = (top[r] * scale + log2(whole)) * LN_2
        inverse = named(f"inverse_{r}", rcp_approx(whole))
        scale_row(m, acc, r, inverse)


@by_text
def store_lse(
    m: LeafRecorder, lse: Writes[Global[Float32]], values: Registers[Float32], batch: Int32, head: Int32,
    heads: Int32, row: Int32, sq: Int32,
) -> None:  # fmt: skip
    """Store one value per row to lse[batch, head, row ...], for the rows that exist."""
    count = values.size
    if count == 1 or m.thread % 4 == 0:
        for r in range(count):
            own = named(f"own_{r}", row + _row(m.thread, r, count))
            if own < sq:
                lse.row(f"of_head_{r}", (batch, head), (heads, sq))[own] = values[r]


@by_text
def stage_result(m: LeafRecorder, target: Shared[Any], row: Int32, acc: Registers[Float32]) -> None:
    """Stage the accumulator, rounded to 16 bits, in a shared tile from row `row` on."""
    thread = anew(m.thread)
    first, column = row + thread // WARP * 16 + thread % 16, thread % WARP // 16 * 8
    for pair in unrolled(acc.size // 8):
        place = inline(target.group_at(first, pair * 16 + column, 8))
        m.do(store_matrices(place, acc, pair * 8, 4))
