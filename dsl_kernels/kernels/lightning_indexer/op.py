"""Torch ops of the FP8 lightning indexer: paged decode and flat prefill scoring."""

from __future__ import annotations

from typing import Any

import torch

from ...arguments import INT32_MAX, integer, require_dense, shown
from ...errors import ArgumentTypeError, InvalidArgumentError
from ...ops._base import run
from ...ops._library import torch_op
from ...ops.workspace import Workspace
from ...problems.layouts import INDEX_DIM
from .problem import FEW_HEADS, GRAIN, PAGE, form_of, pages_of

# Heads that kernels for pages of 64, 128 dims and scores in fp32 are built for, and the most queries a sequence of these.
QUERIES_OF_HEADS = {64: 16, 32: 16, **dict.fromkeys(FEW_HEADS, 8)}


@torch_op("lightning_indexer", "decode_any")
def lightning_indexer(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    page_size: int = PAGE,
    out: torch.Tensor | None = None,
    skip_below: int = 0,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """Score every cached key of each sequence: scale * sum_h w_h * relu(q_h . k).

    Kernels of their own serve 8, 16, 24, 32 and 64 heads of 128 dims over pages of 64 that lie whole 128 bytes apart, with scores
    in float32 and next_n up to 8, of 32 and 64 heads up to 16; others serve what else is taken.

    Args:
        q: [b, next_n, heads, dim] float8_e4m3fn, 1 to 64 heads, dim a multiple of 16 up to 128, next_n 1 to 16; strides are any multiples of 16 elements.
        k_cache: [pages, page_size, 1, dim + 4] bytes, block-planar (see `problems.layouts.pack_index_keys`), pages at any stride of
            whole 16 bytes.
        weights: [b, next_n, heads] or [b * next_n, heads] float32, of any sign; strides are any multiples of 4 elements, and
            but for the kernels named above those of queries are alike throughout.
        seq_lens: [b, next_n] int32, rows at any stride, or with one query a sequence [b]; keys that each query sees, 0 for padded rows; at most max_pages * page_size and at most
            the stride of `out`. Kernels do not look: a longer one reads past the table and writes past the row.
        block_table: [b, max_pages] int32, rows at any stride, ids of pages of `k_cache`; entries past ceil(len / page_size) are not followed.
            Kernels do not look: any other id reads memory that is not the cache's.
        page_size: tokens a page, a multiple of 16.
        out: [b, next_n, stride] float32 or bfloat16 to write into, at any strides, by default float32 and a stride of
            max_pages * page_size. Must not overlap an input.
        skip_below: rows with at most this many keys are not scored (selection takes all of them).
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        logits [b, next_n, stride] of `out`'s dtype; columns at and beyond a row's length are not written.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device that does not fit.
        NoVariantError: no generated variant accepts these sizes.
    """
    if isinstance(seq_lens, torch.Tensor) and seq_lens.dim() == 1:
        require_dense("seq_lens", seq_lens)
        seq_lens = seq_lens.unsqueeze(1)
    if type(page_size) is not int or not 1 <= page_size <= INT32_MAX:
        page_size = integer("page_size", page_size, 1, INT32_MAX)
    kind, dim, step = _kind(q, out, 4), INDEX_DIM, INDEX_DIM
    static: dict[str, int] | None = None
    if kind == "plain" and (page_size != PAGE or _apart(k_cache)):
        kind = "any"
    if kind != "plain":
        static, dim, step, weights = {"page_size": page_size}, q.shape[-1], GRAIN, _by_query(weights, q)
    elif isinstance(weights, torch.Tensor) and weights.dim() == 2:
        weights = _by_sequence(weights, q)
    operands: dict[str, Any] = {
        "q": q, "k_cache": pages_of(k_cache, page_size, dim, step), "weights": weights, "seq_lens": seq_lens,
        "block_table": block_table, "logits": out, "skip_below": skip_below,
    }  # fmt: skip
    if static is not None:
        operands |= static
    run("lightning_indexer", form_of("decode", kind), operands, executor, variant, arch, workspace, static)
    scores: torch.Tensor = operands["logits"]
    return scores


def _kind(q: torch.Tensor, out: torch.Tensor | None, rank: int) -> str:
    """The kind of form that takes queries and scores of these sizes and dtypes; plain for what no form takes."""
    if not isinstance(q, torch.Tensor) or q.dim() != rank:
        return "plain"
    if isinstance(out, torch.Tensor) and out.dtype == torch.bfloat16:
        return "any_bf16"
    *_, heads, dim = q.shape
    most = QUERIES_OF_HEADS.get(heads, 0)
    return "plain" if dim == INDEX_DIM and most and (rank < 4 or q.shape[1] <= most) else "any"


def _apart(k_cache: torch.Tensor) -> bool:
    """Whether pages lie apart as kernels for pages of 64 do not take them."""
    return isinstance(k_cache, torch.Tensor) and k_cache.dim() == 4 and k_cache.stride(0) % INDEX_DIM != 0


def _by_query(weights: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Weights with a row a query."""
    if not isinstance(weights, torch.Tensor) or weights.dim() != 3:
        return weights
    if weights.shape[:2] == q.shape[:2]:
        try:
            return weights.view(-1, weights.shape[2])
        except RuntimeError:
            pass
    raise InvalidArgumentError(
        "weights",
        expected="[b, next_n, heads] with the queries of q, all of them as far apart",
        got=f"shape {tuple(weights.shape)}, strides {weights.stride()}, with q {tuple(q.shape)}",
        fix="pass weights whose first two axes can be seen as one: call .contiguous()",
    )


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


@torch_op("lightning_indexer", "prefill_any")
def lightning_indexer_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    k_scales: torch.Tensor,
    weights: torch.Tensor,
    k_start: torch.Tensor,
    k_end: torch.Tensor,
    *,
    compressed: bool = False,
    out: torch.Tensor | None = None,
    skip_below: int = 0,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """Score flat keys with a window of keys per query row.

    Args:
        q: [s, heads, dim] float8_e4m3fn, heads and dim as `lightning_indexer`; strides are any multiples of 16 elements.
        k, k_scales: [skv, dim] float8_e4m3fn, rows at any stride of whole 16 bytes, and [skv] float32.
        weights: [s, heads] float32, rows at any stride of whole 16 bytes.
        k_start, k_end: [s] int32, half-open window of each row. Keys before 0 and past skv do not count, and a window
            that ends before it starts is empty.
        compressed: a row's scores begin with its first key, k_start or key 0: column j is key k_start + j. Kernels do not
            look whether a window is wider than `out`: they write past the row.
        out: [s, stride] float32 or bfloat16 to write into, stride at least skv, or where `compressed` the widest window, and
            rows as far apart as you like; by default float32, and skv rounded up to a multiple of 4. Must not overlap an input.
        skip_below, executor, variant, arch, workspace: as `lightning_indexer`.

    Returns:
        logits [s, stride] of `out`'s dtype, column j for key j, or k_start + j; columns outside a row's window are not written.

    Raises:
        As `lightning_indexer`.
    """
    operands: dict[str, Any] = {
        "q": q, "k": k, "k_scales": k_scales, "weights": weights, "k_start": k_start, "k_end": k_end, "logits": out,
        "skip_below": skip_below,
    }  # fmt: skip
    if type(compressed) not in (bool, int) or compressed not in (0, 1):
        raise ArgumentTypeError(
            "compressed", expected="True or False", got=shown(compressed), fix="pass one of these"
        )
    kind = _kind(q, out, 3)
    static: dict[str, int] | None = None
    if compressed or kind != "plain":
        kind = "any" if kind == "plain" else kind
        static = {"compressed": int(compressed)}
        operands |= static
    run("lightning_indexer", form_of("prefill", kind), operands, executor, variant, arch, workspace, static)
    scores: torch.Tensor = operands["logits"]
    return scores
