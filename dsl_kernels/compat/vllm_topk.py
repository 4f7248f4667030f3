"""vLLM's top-k of the sparse indexer by `ops.topk_selector`: the ops of `torch.ops._C` (vLLM 0.33.0).

| vLLM | here |
| --- | --- |
| `top_k_per_row_prefill` | served: positions count from `rowStarts`, -1 after them |
| `top_k_per_row_decode` | served; for 1-D `seq_lens` with `next_n` > 1, torch computes each row's length |
| `persistent_topk`, `cooperative_topk` | the same selection, of any number of rows and columns |
| `stride0`, `stride1` | those of `logits`; others are refused |
| `workspace`, `max_seq_len` | not read |
| `k` | what `ops.topk_selector` takes, not only 512, 1024 and 2048 |
| order, ties | ascending positions, ties to the lower one, deterministic; vLLM's order is arbitrary |

`indices` and `output` are written in place, and may be slices of a wider buffer.
"""

from __future__ import annotations

import torch

from ..arguments import integer, named_as, require, require_axes, require_dense
from ..ops import topk_selector

__all__ = ["cooperative_topk", "persistent_topk", "top_k_per_row_decode", "top_k_per_row_prefill"]


def top_k_per_row_prefill(
    logits: torch.Tensor,
    rowStarts: torch.Tensor,
    rowEnds: torch.Tensor,
    indices: torch.Tensor,
    numRows: int,
    stride0: int,
    stride1: int,
    topK: int,
    *,
    executor: str | None = None,
) -> None:
    """The topK largest scores of columns rowStarts to rowEnds of each row.

    Args:
        logits: [rows, columns] float32.
        rowStarts, rowEnds: [rows] int32.
        indices: [rows, topK] int32, written: positions relative to rowStarts, then -1.
        numRows: how many rows to select from, at most those of logits.
        stride0, stride1: the strides of logits.
        topK: as in `ops.topk_selector`.
        executor: as in `ops.topk_selector`.

    Raises:
        InvalidArgumentError: strides that are not those of logits.
        As in `ops.topk_selector`.
    """
    rows = _require_rows(logits, numRows, stride0, stride1)
    with named_as(row_starts="rowStarts", row_ends="rowEnds", out="indices", k="topK"):
        topk_selector(
            logits[:rows],
            rowEnds[:rows],
            topK,
            row_starts=rowStarts[:rows],
            out=indices[:rows],
            executor=executor,
        )


def top_k_per_row_decode(
    logits: torch.Tensor,
    next_n: int,
    seq_lens: torch.Tensor,
    indices: torch.Tensor,
    numRows: int,
    stride0: int,
    stride1: int,
    topK: int,
    *,
    executor: str | None = None,
) -> None:
    """The topK largest scores of each row of a decode step.

    Args:
        logits: [rows, columns] float32, `next_n` rows per sequence.
        seq_lens: [b, next_n] int32, the columns of each row; or [b], those of the last row of each sequence,
            where each row before it has one less.
        indices: [rows, topK] int32, written: positions, then -1.
        next_n, numRows, stride0, stride1, topK, executor: as in `top_k_per_row_prefill`.

    Raises:
        As in `top_k_per_row_prefill`.
    """
    rows = _require_rows(logits, numRows, stride0, stride1)
    require_dense("seq_lens", seq_lens)
    next_n = integer("next_n", next_n, 1)
    if seq_lens.dim() == 1 and next_n > 1:
        before = torch.arange(1 - next_n, 1, dtype=seq_lens.dtype, device=seq_lens.device)
        seq_lens = seq_lens[:, None] + before
    _select(logits[:rows], seq_lens.reshape(-1)[:rows], indices[:rows], "seq_lens", "indices", topK, executor)


def persistent_topk(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    output: torch.Tensor,
    workspace: torch.Tensor | None,
    k: int,
    max_seq_len: int,
    *,
    executor: str | None = None,
) -> None:
    """The k largest of the first `lengths` scores of each row.

    Args:
        logits: [rows, columns] float32.
        lengths: [rows] or [b, next_n] int32, one for each row.
        output: [rows, k] int32, written: positions, then -1.
        workspace, max_seq_len: not read.
        k, executor: as in `ops.topk_selector`.

    Raises:
        As in `ops.topk_selector`.
    """
    require_dense("lengths", lengths)
    _select(logits, lengths.reshape(-1), output, "lengths", "output", k, executor, k_name="k")


cooperative_topk = persistent_topk


def _select(
    logits: torch.Tensor,
    ends: torch.Tensor,
    out: torch.Tensor,
    lengths_name: str,
    out_name: str,
    k: int,
    executor: str | None,
    k_name: str = "topK",
) -> None:
    with named_as(row_ends=lengths_name, out=out_name, k=k_name):
        topk_selector(logits, ends, k, out=out, executor=executor)


def _require_rows(logits: torch.Tensor, rows: int, stride0: int, stride1: int) -> int:
    """The number of rows to select from, once the strides are known to be those of the tensor."""
    require_axes("logits", logits, "[rows, columns]")
    for name, axis, given in (("stride0", 0, stride0), ("stride1", 1, stride1)):
        stride = logits.stride(axis)
        fits = given == stride or logits.shape[axis] < 2
        require(name, fits, f"{stride}, as logits has", str(given), f"pass logits.stride({axis})")
    return integer("numRows", rows, 0, logits.shape[0])
