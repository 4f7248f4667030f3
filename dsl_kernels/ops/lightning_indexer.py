"""Torch ops of the FP8 lightning indexer: paged decode and flat prefill scoring."""

from __future__ import annotations

from typing import Any

import torch

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
        q: [b, next_n, heads, 128] float8_e4m3fn, heads 32 or 64, next_n 1 to 8.
        k_cache: [pages, 64, 1, 132] bytes, block-planar (see `problems.layouts.pack_index_keys`).
        weights: [b, next_n, heads] float32, of any sign.
        seq_lens: [b, next_n] int32, keys that each query sees, 0 for padded rows; at most max_pages * 64 and at most
            the stride of `out`. Kernels do not look: a longer one reads past the table and writes past the row.
        block_table: [b, max_pages] int32, ids of pages of `k_cache`; entries past ceil(len / 64) are not followed.
            Kernels do not look: any other id reads memory that is not the cache's.
        out: [b, next_n, stride] float32 to write into, stride a multiple of 4 as selection takes it; by default
            max_pages * 64. Must not overlap an input.
        skip_below: rows with at most this many keys are not scored (selection takes all of them).
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        logits [b, next_n, stride] float32; columns at and beyond a row's length are not written.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device that does not fit.
        NoVariantError: no generated variant accepts these sizes.
    """
    operands: dict[str, Any] = {
        "q": q, "k_cache": pages_of(k_cache), "weights": weights, "seq_lens": seq_lens, "block_table": block_table,
        "logits": out, "skip_below": skip_below,
    }  # fmt: skip
    run("lightning_indexer", "decode", operands, executor, variant, arch, workspace)
    scores: torch.Tensor = operands["logits"]
    return scores


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
        q: [s, heads, 128] float8_e4m3fn.
        k, k_scales: [skv, 128] float8_e4m3fn and [skv] float32.
        weights: [s, heads] float32.
        k_start, k_end: [s] int32, half-open window of each row. Keys before 0 and past skv do not count, and a window
            that ends before it starts is empty.
        out: [s, stride] float32 with stride >= skv, a multiple of 4 as selection takes it; by default skv rounded up. Must not overlap an input.
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
