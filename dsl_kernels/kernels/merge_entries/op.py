"""Torch ops that put the entries of ranks in the order of their positions."""

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
    """Put entries that ranks selected from their shards in the order of positions in the whole context.

    The ranks take runs of `interleave` positions in turn. `dsa.parallel` calls this op between its two
    selections.

    Args:
        rank_entries: [ranks, planes, rows, k] int32, for each rank and row by ascending token. Plane 0 holds
            the bits of the scores. The last plane holds numbers of tokens in the rank's shard, then -1 where
            a rank has fewer than k. With three planes, plane 1 holds ids of the tokens in the rank's cache.
        interleave: positions in a run, 1 to 2^24.
        rank_stride: with three planes, rank * rank_stride is added to the ids of a rank.
        ordered_scores: [rows, ranks * k] int32 to write the bits of the scores into.
        ordered_ids: [rows, ranks * k] int32 to write the ids into, with two planes the positions.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        `ordered_scores` and `ordered_ids`. Nothing is written past the entries that a row has.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device, or another number of
            planes.
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


@torch_op("merge_entries", "peers")
def merge_peer_entries(
    rank_entries: torch.Tensor,
    peer_distances: torch.Tensor,
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
    """`merge_entries` of lists in the memory of the ranks, where the kernel reads them.

    Before any rank calls this op, every rank has written its list at the same place of its memory and has
    passed a barrier. No rank writes there again before all calls have ended.

    Args:
        rank_entries: [planes, rows, k] int32, the list of this rank, as in `merge_entries`.
        peer_distances: [ranks] int64 on the GPU, the distance in bytes from this rank's memory to each rank's
            memory, 0 for this rank: with torch's symmetric memory `buffer_ptrs[r] - buffer_ptrs[rank]`.
            Multiples of 16; ranks * k is at most 16384.
        interleave, rank_stride, ordered_scores, ordered_ids: as for `merge_entries`.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        `ordered_scores` and `ordered_ids` of all ranks, as from `merge_entries`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device, or another number of
            planes. Kernels read distances on the device. Wrong distances are an error off the GPU and with
            DSL_KERNELS_CHECK_VALUES, and undefined otherwise.
        NoVariantError: ranks * k above 16384, or other sizes that no generated variant accepts.
    """
    operands: dict[str, Any] = {
        "rank_entries": rank_entries,
        "peer_distances": peer_distances,
        "interleave": integer("interleave", interleave, 1, MOST_INTERLEAVE),
        "rank_stride": integer("rank_stride", rank_stride, 0, INT32_MAX),
        "ordered_scores": ordered_scores,
        "ordered_ids": ordered_ids,
    }
    run("merge_entries", "peers", operands, executor, variant, arch, workspace)
    return operands["ordered_scores"], operands["ordered_ids"]
