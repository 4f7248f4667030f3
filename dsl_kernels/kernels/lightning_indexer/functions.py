"""The arithmetic of the FP8 lightning indexer's leaves in torch, by name.

The threads of a role hold registers in layouts of their own; here these registers are whole tiles. A value
with a copy per lane is a tensor over the lanes.
"""

from __future__ import annotations

from typing import Any

from ..._torch import torch
from ...tile.kinds import Int32
from ...tile.leaf import RegisterTile, TensorTile
from ...tile.leaf_text import Function
from ...tile.text import leaf
from ...tile.threads import Place, Threads

WARP = 32


quotient = Function("quotient", "int32", lambda count, size: count // size)
"""The floor of count / size, for a count below 2**21."""

shuffle_length = Function("shuffle_length", "int32", lambda length, lane: length)
"""A lane's own value. It keeps its place in the program, because a compiler moves no shuffle."""

share_begin = Function(
    "share_begin", "int32", lambda total, part, parts: part * (total // parts) + _least(part, total % parts)
)
"""First unit of share `part`, of `parts` shares of `total` units whose sizes differ by at most one."""

share_size = Function(
    "share_size",
    "int32",
    lambda total, part, parts: total // parts + (torch.as_tensor(part) < total % parts).long(),
)
"""Units in share `part`."""


def _least(a: Any, b: Any) -> torch.Tensor:
    return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))


def _store_where(threads: Threads, place: Place, value: Any, wanted: Any) -> None:
    taken = threads.active & threads.spread(wanted)
    place.memory[place.of(taken)[taken]] = threads.spread(value)[taken]


store_where = Function("store_where", "float32", _store_where, joint=True)
"""Store a float32 where a condition holds, without a branch."""


@leaf
def read_scores(
    dots: RegisterTile, scores: TensorTile, first: int, heads: int, thread: Int32,
) -> None:  # fmt: skip
    """Accumulators of a product in tensor memory, from column `first` on."""
    dots.copy_(scores[:, first : first + dots.shape[1]])


@leaf
def weigh_one(
    logit: RegisterTile, dots: RegisterTile, query: int, weight: RegisterTile, fresh: bool,
) -> None:  # fmt: skip
    """logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.

    The sum is added to the logit, or replaces it where the logit is `fresh`.
    """
    heads = weight.shape[1]
    sums = (torch.relu(dots[:, query * heads : (query + 1) * heads]) * weight).sum(dim=1)
    logit[:, 0] = sums if fresh else logit[:, 0] + sums
