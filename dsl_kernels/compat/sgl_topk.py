"""SGLang's top-k of the sparse indexer by `ops.topk_selector`: `sgl_kernel` of sglang-kernel 0.4.10.

| SGLang | here |
| --- | --- |
| `fast_topk_v2` | served: positions count from `row_starts`, -1 after them |
| `fast_topk_transform_fused`, one row per sequence | served within the kernel |
| the same, a page table expanded from one row | served within the kernel |
| the same, `row_starts` or several rows per sequence | served; torch reads `cu_seqlens_q` |
| `fast_topk_transform_ragged_fused` | served within the kernel |
| `deepseek_v4_topk_transform_512` | served within the kernel, with `raw_indices` |
| `sort_output` without `raw_indices` (by physical slot) | refused; entries are ordered by position |
| `topk` | what `ops.topk_selector` takes, not only 2048 |
| order, ties | ascending positions, ties to the lower one, deterministic; SGLang's order is arbitrary |
"""

from __future__ import annotations

import torch

from ..arguments import named_as, require, require_axes, require_dense
from ..ops import topk_selector

__all__ = [
    "deepseek_v4_topk_transform_512",
    "fast_topk_transform_fused",
    "fast_topk_transform_ragged_fused",
    "fast_topk_v2",
]


def fast_topk_v2(
    score: torch.Tensor,
    lengths: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
    *,
    executor: str | None = None,
) -> torch.Tensor:
    """The topk largest of `lengths` scores of each row, from `row_starts` on.

    Args:
        score: [b, columns] float32.
        lengths, row_starts: [b] int32; rows start at column 0 by default.
        topk, executor: as in `ops.topk_selector`.

    Returns:
        [b, topk] int32: positions relative to row_starts, then -1.

    Raises:
        As in `ops.topk_selector`.
    """
    require_dense("lengths", lengths)
    with named_as(logits="score", row_ends="lengths", k="topk"):
        ends = lengths if row_starts is None else row_starts + lengths
        return topk_selector(score, ends, topk, row_starts=row_starts, executor=executor)


def fast_topk_transform_fused(
    score: torch.Tensor,
    lengths: torch.Tensor,
    page_table_size_1: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
    *,
    executor: str | None = None,
) -> torch.Tensor:
    """As `fast_topk_v2`, with each position mapped through a page table with one token per page.

    Args:
        page_table_size_1: [sequences, columns] int32.
        cu_seqlens_q: [sequences + 1] int32; not read if every sequence has one row that starts at column 0.

    Returns:
        [b, topk] int32: entries of the page table, then -1.

    Raises:
        As in `ops.topk_selector`.
    """
    table = page_table_size_1
    require_dense("score", score)
    require_axes("page_table_size_1", table, "[sequences, columns]")
    require_dense("lengths", lengths)
    rows, next_n, sequences = score.shape[0], 1, None
    if table.shape[0] > 1 and table.stride(0) == 0:
        # The table was expanded from one row: all rows of scores belong to that sequence.
        table, next_n = table[:1], max(rows, 1)
    elif row_starts is not None or rows != table.shape[0]:
        require_dense("cu_seqlens_q", cu_seqlens_q)
        row = torch.arange(rows, dtype=cu_seqlens_q.dtype, device=score.device)
        sequences = torch.searchsorted(cu_seqlens_q, row, right=True, out_int32=True) - 1
    with named_as(
        logits="score",
        row_ends="lengths",
        k="topk",
        block_table="page_table_size_1",
        row_to_sequence="cu_seqlens_q",
    ):
        ends = lengths if row_starts is None else row_starts + lengths
        return topk_selector(
            score,
            ends,
            topk,
            row_starts=row_starts,
            block_table=table,
            page_size=1,
            next_n=next_n,
            row_to_sequence=sequences,
            executor=executor,
        )


def fast_topk_transform_ragged_fused(
    score: torch.Tensor,
    lengths: torch.Tensor,
    topk_indices_offset: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
    *,
    executor: str | None = None,
) -> torch.Tensor:
    """As `fast_topk_v2`, with each row's offset added to its positions.

    Args:
        topk_indices_offset: [b] int32.

    Returns:
        [b, topk] int32: positions plus offsets, then -1.

    Raises:
        As in `ops.topk_selector`.
    """
    require_dense("lengths", lengths)
    with named_as(logits="score", row_ends="lengths", k="topk", offsets="topk_indices_offset"):
        ends = lengths if row_starts is None else row_starts + lengths
        return topk_selector(
            score, ends, topk, row_starts=row_starts, offsets=topk_indices_offset, executor=executor
        )


def deepseek_v4_topk_transform_512(
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    page_indices: torch.Tensor,
    page_size: int,
    raw_indices: torch.Tensor | None = None,
    sort_output: bool = False,
    *,
    executor: str | None = None,
) -> None:
    """The largest scores of each row as slots of a paged cache, as many as `page_indices` has columns.

    Args:
        scores: [b, columns] float32.
        seq_lens: [b] int32.
        page_table: [b, pages] int32.
        page_indices: [b, topk] int32, written: slots in the order of their positions, then -1.
        page_size: tokens in a page.
        raw_indices: [b, topk] int32, written: the positions.
        sort_output: may only be True with `raw_indices`; entries are always ordered by position.
        executor: as in `ops.topk_selector`.

    Raises:
        InvalidArgumentError: `sort_output` without `raw_indices`.
        As in `ops.topk_selector`.
    """
    require(
        "sort_output",
        not sort_output or raw_indices is not None,
        "False without raw_indices",
        "True",
        "pass raw_indices, or take the slots in the order of their positions",
    )
    require_axes("page_indices", page_indices, "[b, topk]")
    k = page_indices.shape[1]
    with named_as(
        logits="scores",
        row_ends="seq_lens",
        block_table="page_table",
        out="page_indices",
        k="page_indices",
        positions="raw_indices",
    ):
        topk_selector(
            scores,
            seq_lens,
            k,
            block_table=page_table,
            page_size=page_size,
            out=page_indices,
            positions=raw_indices,
            executor=executor,
        )
