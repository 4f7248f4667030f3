"""Torch ops of the FP8 lightning indexer: paged decode and flat prefill scoring."""

from __future__ import annotations

from typing import Any

import torch

from ..arguments import require_dense
from ..errors import InvalidArgumentError
from ..problems.lightning_indexer import pages_of
from ._base import run
from ._library import torch_op
from .workspace import Workspace


@torch_op("lightning_indexer", "decode")
def lightning_indexer(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    skip_below: int = 0,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """Score every cached key of each sequence: scale * sum_h w_h * relu(q_h . k).

    Args:
        q: [b, next_n, heads, 128] float8_e4m3fn, heads 8, 16, 24, 32 or 64, next_n 1 to 8, and to 16 with 32 or 64 heads; strides are any multiples of 16 elements.
        k_cache: [pages, 64, 1, 132] bytes, block-planar (see `problems.layouts.pack_index_keys`), pages at any stride of
            whole 128 bytes.
        weights: [b, next_n, heads] or [b * next_n, heads] float32, of any sign; strides are any multiples of 4 elements.
        seq_lens: [b, next_n] int32, rows at any stride, or with one query a sequence [b]; keys that each query sees, 0 for padded rows; at most max_pages * 64 and at most
            the stride of `out`. Kernels do not look: a longer one reads past the table and writes past the row.
        block_table: [b, max_pages] int32, rows at any stride, ids of pages of `k_cache`; entries past ceil(len / 64) are not followed.
            Kernels do not look: any other id reads memory that is not the cache's.
        out: [b, next_n, stride] float32 to write into, at any strides, stride by default max_pages * 64. Must not overlap
            an input.
        skip_below: rows with at most this many keys are not scored (selection takes all of them).
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        logits [b, next_n, stride] float32; columns at and beyond a row's length are not written.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device that does not fit.
        NoVariantError: no generated variant accepts these sizes.
    """
    if isinstance(seq_lens, torch.Tensor) and seq_lens.dim() == 1:
        require_dense("seq_lens", seq_lens)
        seq_lens = seq_lens.unsqueeze(1)
    if isinstance(weights, torch.Tensor) and weights.dim() == 2:
        weights = _by_sequence(weights, q)
    operands: dict[str, Any] = {
        "q": q, "k_cache": pages_of(k_cache), "weights": weights, "seq_lens": seq_lens, "block_table": block_table,
        "logits": out, "skip_below": skip_below,
    }  # fmt: skip
    run("lightning_indexer", "decode", operands, executor, variant, arch, workspace)
    scores: torch.Tensor = operands["logits"]
    return scores


def _by_sequence(weights: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Weights with a row a query, as those of each sequence."""
    require_dense("weights", weights)
    require_dense("q", q)
    rows = q.shape[:2] if q.dim() == 4 else (0, 0)
    if weights.shape[0] != rows[0] * rows[1]:
        raise InvalidArgumentError(
            "weights",
            expected="[b, next_n, heads], or [b * next_n, heads], with the queries of q",
            got=f"shape {tuple(weights.shape)} with q {tuple(q.shape)}",
            fix="make the operands agree",
        )
    return weights.unflatten(0, rows)


@torch_op("lightning_indexer", "prefill")
def lightning_indexer_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    k_scales: torch.Tensor,
    weights: torch.Tensor,
    k_start: torch.Tensor,
    k_end: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    skip_below: int = 0,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """Score flat keys with a window of keys per query row.

    Args:
        q: [s, heads, 128] float8_e4m3fn, heads as `lightning_indexer`; strides are any multiples of 16 elements.
        k, k_scales: [skv, 128] float8_e4m3fn, rows at any stride of whole 16 bytes, and [skv] float32.
        weights: [s, heads] float32, rows at any stride of whole 16 bytes.
        k_start, k_end: [s] int32, half-open window of each row. Keys before 0 and past skv do not count, and a window
            that ends before it starts is empty.
        out: [s, stride] float32 to write into, stride at least skv and rows as far apart as you like; by default skv rounded
            up to a multiple of 4. Must not overlap an input.
        skip_below, executor, variant, arch, workspace: as `lightning_indexer`.

    Returns:
        logits [s, stride] float32, column j for key j; columns outside a row's window are not written.

    Raises:
        As `lightning_indexer`.
    """
    operands: dict[str, Any] = {
        "q": q, "k": k, "k_scales": k_scales, "weights": weights, "k_start": k_start, "k_end": k_end, "logits": out,
        "skip_below": skip_below,
    }  # fmt: skip
    run("lightning_indexer", "prefill", operands, executor, variant, arch, workspace)
    scores: torch.Tensor = operands["logits"]
    return scores
