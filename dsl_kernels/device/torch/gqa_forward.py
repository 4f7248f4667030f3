"""Leaves of grouped-query attention: causal and ragged masks, online softmax and its epilogue on a tile of scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..._discover import later
from ...tile.kinds import Float32, Int32, Writes
from ...tile.leaf import GlobalTile, RegisterTile
from ...tile.text import leaf

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())

# Warps that share out the rows.
WARPS = 4


@leaf
def hide_keys(
    scores: RegisterTile, row: Int32, key: Int32, keys: Int32, shift: Int32, thread: Int32,
) -> None:  # fmt: skip
    """Scores of row `row` + i and key `key` + j: -inf where there is no such key, or the row does not see it.

    A row sees the keys up to its own number plus `shift`.
    """
    own = row + torch.arange(scores.shape[0])
    column = key + torch.arange(scores.shape[1])
    scores.masked_fill_(column[None, :] > torch.clamp(own + shift, max=keys - 1)[:, None], -math.inf)


@leaf
def online_softmax(
    scores: RegisterTile, top: RegisterTile, total: RegisterTile,
    factor: RegisterTile, scale: Float32, unseen: bool, thread: Int32,
) -> None:  # fmt: skip
    """Scores to weights, exp2(scale * (score - top)), with the running maximum and sum of each row.

    `factor` is what earlier weights shrink by. `unseen` says that a row may see no key of this tile. On a device the
    sum is each thread's own, of its columns.
    """
    risen = torch.maximum(top, scores.amax(dim=1))
    base = torch.where(risen == -math.inf, 0.0, risen) if unseen else risen
    factor.copy_(torch.exp2((top - base) * scale))
    scores.copy_(torch.exp2((scores - base[:, None]) * scale))
    total.mul_(factor).add_(scores.sum(dim=1))
    top.copy_(risen)


@leaf
def online_softmax_lazily(
    scores: RegisterTile, top: RegisterTile, total: RegisterTile,
    factor: RegisterTile, limit: RegisterTile, scale: Float32, rise: int, unseen: bool,
    bits: bool, thread: Int32,
) -> None:  # fmt: skip
    """As `online_softmax`, but `top` stays where no score of a warp's rows exceeds it by `rise` powers of two.

    Factors are 1 there, and weights reach 2^rise. `limit` is the score from which on `top` rises, and -0.0 where that is
    negative: then it always does. A device finds out by the scores' `bits` as integers, if so asked.
    """
    grown = (scores >= limit[:, None]).any(dim=1) | (limit <= 0)
    grown = grown.view(WARPS, -1).any(dim=1).repeat_interleave(len(grown) // WARPS)
    risen = torch.where(grown, torch.maximum(top, scores.amax(dim=1)), top)
    base = torch.where(risen == -math.inf, 0.0, risen)
    factor.copy_(torch.where(grown, torch.exp2((top - base) * scale), 1.0))
    above = risen + rise / scale
    limit.copy_(torch.where(grown, torch.where(above > 0, above, -0.0), limit))
    scores.copy_(torch.exp2((scores - base[:, None]) * scale))
    total.mul_(factor).add_(scores.sum(dim=1))
    top.copy_(risen)


@leaf
def rescale_rows(acc: RegisterTile, factor: RegisterTile, thread: Int32) -> None:
    """Each row times its factor, in place; left alone where the factors of a warp's rows are 1."""
    if (factor != 1).any():
        acc.mul_(factor[:, None])


@leaf
def divide_by_total(
    acc: RegisterTile, top: RegisterTile, total: RegisterTile, scale: Float32,
    thread: Int32,
) -> None:  # fmt: skip
    """The rows of the accumulator divided by their sums; `top` becomes the natural logarithm of sum exp."""
    acc.div_(total[:, None])
    top.copy_((top * scale + torch.log2(total)) * math.log(2))


@leaf
def store_lse(
    lse: Writes[GlobalTile], values: RegisterTile, batch: Int32, head: Int32, heads: Int32,
    row: Int32, rows: Int32, thread: Int32,
) -> None:  # fmt: skip
    """One value a row to lse[batch, head, row ...], as far as there are `rows`."""
    count = max(0, min(values.shape[0], rows - row))
    lse[batch, head, row : row + count] = values[:count]
