"""Torch ops of the FP8 lightning indexer: paged decode and flat prefill scoring."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ArgumentTypeError, InvalidArgumentError
from ..problems.base import require_dense
from ..problems.lightning_indexer import INDEX_DIM, PAGE
from ._base import INT32_MAX, Workspace, integer, require_workspace, run

PAGE_BYTES = PAGE * (INDEX_DIM + 4)


def _pages(k_cache: torch.Tensor) -> torch.Tensor:
    """The cache as [pages, 8448] bytes, from [pages, 64, 1, 132] or [pages, 64, 132] or already flat."""
    try:
        shape = k_cache.shape
        if k_cache.element_size() == 1 and len(shape) > 1 and shape[1:].numel() == PAGE_BYTES:
            flat = k_cache if len(shape) == 2 else k_cache.view(shape[0], PAGE_BYTES)
            return flat if flat.dtype == torch.uint8 else flat.view(torch.uint8)
    except Exception:
        require_dense("k_cache", k_cache)
        raise InvalidArgumentError(
            "k_cache",
            expected="pages of contiguous bytes",
            got=f"shape {tuple(k_cache.shape)}, strides {k_cache.stride()}",
            fix="call .contiguous()",
        ) from None
    require_dense("k_cache", k_cache)
    if k_cache.element_size() != 1:
        raise ArgumentTypeError(
            "k_cache", expected="a dtype of one byte", got=str(k_cache.dtype), fix="view it as uint8"
        )
    raise InvalidArgumentError(
        "k_cache", expected=f"[pages, {PAGE}, 1, {INDEX_DIM + 4}] (pages of {PAGE} tokens)", got=str(tuple(shape)),
        fix="use the 64-token block-planar index cache",
    )  # fmt: skip


def _decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    logits: torch.Tensor | None,
    skip_below: int,
    executor: str | None,
    variant: str | None,
    arch: str | None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    operands: dict[str, Any] = {
        "q": q, "k_cache": _pages(k_cache), "weights": weights, "seq_lens": seq_lens, "block_table": block_table,
        "logits": logits, "skip_below": skip_below,
    }  # fmt: skip
    run(
        "lightning_indexer",
        "decode",
        operands,
        static={} if logits is not None else {"stride": _extent(block_table, 1) * PAGE},
        executor=executor,
        variant=variant,
        arch=arch,
        workspace=workspace,
    )
    found: torch.Tensor = operands["logits"]
    return found


def _extent(tensor: torch.Tensor, axis: int) -> int:
    """An extent that the size of a new output follows; 0 where there is none, which `run` refuses."""
    try:
        return tensor.shape[axis]
    except (AttributeError, IndexError, TypeError, RuntimeError):  # RuntimeError: nested tensors
        return 0


def _stride(block_table: torch.Tensor) -> int:
    return block_table.shape[1] * PAGE


@torch.library.custom_op("dsl_kernels::lightning_indexer", mutates_args=())
def _decode_op(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    skip_below: int,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> torch.Tensor:
    return _decode(q, k_cache, weights, seq_lens, block_table, None, skip_below, executor, variant, arch)


@_decode_op.register_fake
def _(q, k_cache, weights, seq_lens, block_table, skip_below, executor=None, variant=None, arch=None):
    return q.new_empty(q.shape[0], q.shape[1], _stride(block_table), dtype=torch.float32)


@torch.library.custom_op("dsl_kernels::lightning_indexer_out", mutates_args=("logits",))
def _decode_out_op(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    logits: torch.Tensor,
    skip_below: int,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> None:
    _decode(q, k_cache, weights, seq_lens, block_table, logits, skip_below, executor, variant, arch)


@_decode_out_op.register_fake
def _(q, k_cache, weights, seq_lens, block_table, logits, skip_below, executor=None, variant=None, arch=None):
    return None


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
        out: [b, next_n, stride] float32 to write into; by default stride = max_pages * 64. Must not overlap an input.
        skip_below: rows with at most this many keys are not scored (selection takes all of them).
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        logits [b, next_n, stride] float32; columns at and beyond a row's length are not written.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device that does not fit.
        NoVariantError: no generated variant accepts these sizes.
    """
    if type(skip_below) is not int or not 0 <= skip_below <= INT32_MAX:
        skip_below = integer("skip_below", skip_below, 0, INT32_MAX)
    if workspace is not None:
        require_workspace(workspace)
    if torch.compiler.is_compiling():
        if out is None:
            return torch.ops.dsl_kernels.lightning_indexer(
                q, k_cache, weights, seq_lens, block_table, skip_below, executor, variant, arch
            )
        torch.ops.dsl_kernels.lightning_indexer_out(
            q, k_cache, weights, seq_lens, block_table, out, skip_below, executor, variant, arch
        )
        return out
    return _decode(
        q, k_cache, weights, seq_lens, block_table, out, skip_below, executor, variant, arch, workspace
    )


def _prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    k_scales: torch.Tensor,
    weights: torch.Tensor,
    k_start: torch.Tensor,
    k_end: torch.Tensor,
    logits: torch.Tensor | None,
    skip_below: int,
    executor: str | None,
    variant: str | None,
    arch: str | None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    operands: dict[str, Any] = {
        "q": q, "k": k, "k_scales": k_scales, "weights": weights, "k_start": k_start, "k_end": k_end, "logits": logits,
        "skip_below": skip_below,
    }  # fmt: skip
    run(
        "lightning_indexer",
        "prefill",
        operands,
        static={} if logits is not None else {"stride": -(-_extent(k, 0) // 4) * 4},
        executor=executor,
        variant=variant,
        arch=arch,
        workspace=workspace,
    )
    found: torch.Tensor = operands["logits"]
    return found


def _columns(k: torch.Tensor) -> int:
    return -(-k.shape[0] // 4) * 4


@torch.library.custom_op("dsl_kernels::lightning_indexer_prefill", mutates_args=())
def _prefill_op(
    q: torch.Tensor,
    k: torch.Tensor,
    k_scales: torch.Tensor,
    weights: torch.Tensor,
    k_start: torch.Tensor,
    k_end: torch.Tensor,
    skip_below: int,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> torch.Tensor:
    return _prefill(q, k, k_scales, weights, k_start, k_end, None, skip_below, executor, variant, arch)


@_prefill_op.register_fake
def _(q, k, k_scales, weights, k_start, k_end, skip_below, executor=None, variant=None, arch=None):
    return q.new_empty(q.shape[0], _columns(k), dtype=torch.float32)


@torch.library.custom_op("dsl_kernels::lightning_indexer_prefill_out", mutates_args=("logits",))
def _prefill_out_op(
    q: torch.Tensor,
    k: torch.Tensor,
    k_scales: torch.Tensor,
    weights: torch.Tensor,
    k_start: torch.Tensor,
    k_end: torch.Tensor,
    logits: torch.Tensor,
    skip_below: int,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> None:
    _prefill(q, k, k_scales, weights, k_start, k_end, logits, skip_below, executor, variant, arch)


@_prefill_out_op.register_fake
def _(
    q, k, k_scales, weights, k_start, k_end, logits, skip_below, executor=None, variant=None, arch=None
):  # fmt: skip
    return None


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
        out: [s, stride] float32 with stride >= skv; by default stride is skv rounded up to 4. Must not overlap an input.

    Returns:
        logits [s, stride] float32, column j for key j; columns outside a row's window are not written.

    Raises:
        As `lightning_indexer`.
    """
    if type(skip_below) is not int or not 0 <= skip_below <= INT32_MAX:
        skip_below = integer("skip_below", skip_below, 0, INT32_MAX)
    if workspace is not None:
        require_workspace(workspace)
    if torch.compiler.is_compiling():
        if out is None:
            return torch.ops.dsl_kernels.lightning_indexer_prefill(
                q, k, k_scales, weights, k_start, k_end, skip_below, executor, variant, arch
            )
        torch.ops.dsl_kernels.lightning_indexer_prefill_out(
            q, k, k_scales, weights, k_start, k_end, out, skip_below, executor, variant, arch
        )
        return out
    return _prefill(
        q, k, k_scales, weights, k_start, k_end, out, skip_below, executor, variant, arch, workspace
    )
