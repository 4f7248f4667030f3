"""Torch op of putting ranks' entries in the order of their positions."""

from __future__ import annotations

from typing import Any

import torch

from ...arguments import INT32_MAX, integer
from ...ops._base import run
from ...ops._library import torch_op
from ...ops.workspace import Workspace
from .problem import MOST_INTERLEAVE


@torch_op("merge_entries", "default")
def merge_entries(
    rank_entries: torch.Tensor,
    *,
    interleave: int,
    rank_stride: int = 0,
    ordered_scores: torch.Tensor | None = None,
    ordered_ids: torch.Tensor | None = None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Entries that ranks selected of their shards, in the order of their positions in the whole context.

    Runs of `interleave` positions are dealt to the ranks in turn. `dsa.parallel` calls it between its two selections.

    Args:
        rank_entries: [ranks, planes, rows, k] int32, of each rank and row by ascending token. Plane 0 holds the bits of the
            scores; the last one numbers of tokens in the rank's shard, then -1 where a rank has fewer than k. With three
            planes, plane 1 holds ids of the tokens in the rank's cache.
        interleave: positions in a run, 1 to 2^24.
        rank_stride: with three planes, added to the ids of each rank once for every rank before it.
        ordered_scores: [rows, ranks * k] int32 to write the bits of the scores into.
        ordered_ids: [rows, ranks * k] int32 to write the ids into, with two planes the positions.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        `ordered_scores` and `ordered_ids`. Nothing is written past the entries that a row has.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device, or another number of planes.
        NoVariantError: no generated variant accepts these sizes.
    """
    operands: dict[str, Any] = {
        "rank_entries": rank_entries,
        "interleave": integer("interleave", interleave, 1, MOST_INTERLEAVE),
        "rank_stride": integer("rank_stride", rank_stride, 0, INT32_MAX),
        "ordered_scores": ordered_scores,
        "ordered_ids": ordered_ids,
    }
    run("merge_entries", "default", operands, executor, variant, arch, workspace)
    return operands["ordered_scores"], operands["ordered_ids"]
