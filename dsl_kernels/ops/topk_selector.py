"""Torch op of exact top-k selection over ragged rows."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InvalidArgumentError
from ..problems.base import require_dense
from ..problems.topk_selector import OPERANDS
from ._base import INT32_MAX, Workspace, integer, require_workspace, run

MAX_K = 2048


def _launch(
    logits: torch.Tensor,
    row_starts: torch.Tensor | None,
    row_ends: torch.Tensor,
    block_table: torch.Tensor | None,
    next_n: int,
    page_size: int,
    k: int,
    indices: torch.Tensor | None,
    executor: str | None,
    variant: str | None,
    arch: str | None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    operands: dict[str, Any] = {
        "logits": logits, "row_starts": row_starts, "row_ends": row_ends, "block_table": block_table,
        "next_n": next_n, "page_size": page_size, "indices": indices,
    }  # fmt: skip
    static = {"next_n": next_n, "page_size": page_size, "k": k}
    if block_table is None:
        static |= {"b": 1, "max_pages": 1}
    run(
        "topk_selector",
        "default",
        operands,
        static=static,
        executor=executor,
        variant=variant,
        arch=arch,
        workspace=workspace,
    )
    found: torch.Tensor = operands["indices"]
    return found


@torch.library.custom_op("dsl_kernels::topk_selector", mutates_args=())
def _op(
    logits: torch.Tensor,
    row_starts: torch.Tensor | None,
    row_ends: torch.Tensor,
    block_table: torch.Tensor | None,
    next_n: int,
    page_size: int,
    k: int,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> torch.Tensor:
    return _launch(
        logits, row_starts, row_ends, block_table, next_n, page_size, k, None, executor, variant, arch
    )


@_op.register_fake
def _(
    logits, row_starts, row_ends, block_table, next_n, page_size, k, executor=None, variant=None, arch=None
):
    return logits.new_empty(logits.shape[0], k, dtype=torch.int32)


@torch.library.custom_op("dsl_kernels::topk_selector_out", mutates_args=("indices",))
def _out_op(
    logits: torch.Tensor,
    row_starts: torch.Tensor | None,
    row_ends: torch.Tensor,
    block_table: torch.Tensor | None,
    next_n: int,
    page_size: int,
    indices: torch.Tensor,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> None:
    k = indices.shape[1]
    _launch(logits, row_starts, row_ends, block_table, next_n, page_size, k, indices, executor, variant, arch)


@_out_op.register_fake
def _(
    logits,
    row_starts,
    row_ends,
    block_table,
    next_n,
    page_size,
    indices,
    executor=None,
    variant=None,
    arch=None,
):
    return None


def topk_selector(
    logits: torch.Tensor,
    row_ends: torch.Tensor,
    k: int = MAX_K,
    *,
    row_starts: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    page_size: int = 64,
    next_n: int = 1,
    out: torch.Tensor | None = None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """The k largest scores of each row, exactly, as ascending positions; ties go to the lower position.

    Args:
        logits: [rows, stride] float32, stride a multiple of 4; columns outside a row's range are never selected.
        row_ends: [rows] int32, one past the last valid column; 0 for padded rows. Columns before 0 and past the stride
            do not count, and a row that ends before it starts is empty.
        k: 1 to 2048.
        row_starts: [rows] int32, first valid column; zeros by default.
        block_table: [b, max_pages] int32: positions become ids block_table[row // next_n, pos // page] * page + pos % page.
            The table must reach as far as every row's columns; the entries within them are page ids, none negative.
            Kernels do not look: a short table is read past its end. Entries past a row's columns are not followed.
        page_size: tokens a page; used with block_table only.
        next_n: rows that share one row of the block table.
        out: [rows, k] int32 to write into; must not overlap an input.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        [rows, k] int32: min(k, length) entries, then -1. Positions count from row_starts.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride, device, or k out of range.
        NoVariantError: no generated variant accepts these sizes.
    """
    if type(k) is not int or not 1 <= k <= MAX_K:
        k = integer("k", k, 1, MAX_K)
    if type(next_n) is not int or not 1 <= next_n <= INT32_MAX:
        next_n = integer("next_n", next_n, 1, INT32_MAX)
    if type(page_size) is not int or not 1 <= page_size <= INT32_MAX:
        page_size = integer("page_size", page_size, 1, INT32_MAX)
    if workspace is not None:
        require_workspace(workspace)
    page = page_size if block_table is not None else 0
    if torch.compiler.is_compiling():
        if out is None:
            return torch.ops.dsl_kernels.topk_selector(
                logits, row_starts, row_ends, block_table, next_n, page, k, executor, variant, arch
            )
        _require_columns(out, k)
        torch.ops.dsl_kernels.topk_selector_out(
            logits, row_starts, row_ends, block_table, next_n, page, out, executor, variant, arch
        )
        return out
    return _launch(
        logits, row_starts, row_ends, block_table, next_n, page, k, out, executor, variant, arch, workspace
    )


def _require_columns(out: torch.Tensor, k: int) -> None:
    require_dense("out", out)
    if out.dim() != 2 or out.shape[1] != k:
        raise InvalidArgumentError(
            "out", expected=f"[rows, k = {k}]", got=str(tuple(out.shape)), fix="allocate it with k columns"
        )


__all__ = ["MAX_K", "OPERANDS", "topk_selector"]
