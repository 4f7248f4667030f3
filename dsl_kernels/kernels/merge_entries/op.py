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
    """`merge_entries` of lists that lie in the memory of the ranks, where the kernel reads them.

    Every rank has written its list at the same place of its memory, and passed a barrier, before any rank calls this; none
    writes there again before all calls have ended.

    Args:
        rank_entries: [planes, rows, k] int32, this rank's, as `merge_entries` takes each rank's.
        peer_distances: [ranks] int64 on the GPU, how many bytes from this rank's memory each rank's lies, 0 for its own: with
            torch's symmetric memory `buffer_ptrs[r] - buffer_ptrs[rank]`. Multiples of 16; ranks * k is at most 16384.
        interleave, rank_stride, ordered_scores, ordered_ids: as `merge_entries`.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        `ordered_scores` and `ordered_ids` of all ranks, as `merge_entries`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device, or another number of planes. Distances
            are read on the device: others than these are an error off the GPU and with DSL_KERNELS_CHECK_VALUES, undefined without.
        NoVariantError: ranks * k is more than 16384, or other sizes that no generated variant accepts.
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
