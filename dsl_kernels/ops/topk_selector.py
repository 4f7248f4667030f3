"""Torch op of exact top-k selection over ragged rows."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import InvalidArgumentError
from ..problems.topk_selector import OPERANDS
from ._base import Workspace, kept, require_tensors, run

MAX_K = 2048
_NO_TABLE = (1, 1)


def _launch(
    logits: torch.Tensor,
    row_starts: torch.Tensor,
    row_ends: torch.Tensor,
    block_table: torch.Tensor,
    next_n: int,
    page_size: int,
    indices: torch.Tensor,
    executor: str | None,
    variant: str | None,
    arch: str | None,
    workspace: Workspace | None = None,
) -> None:
    operands: dict[str, Any] = {
        "logits": logits, "row_starts": row_starts, "row_ends": row_ends, "block_table": block_table,
        "next_n": next_n, "page_size": page_size, "indices": indices,
    }  # fmt: skip
    static = {"next_n": next_n, "page_size": page_size}
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


@torch.library.custom_op("dsl_kernels::topk_selector", mutates_args=())
def _op(
    logits: torch.Tensor,
    row_starts: torch.Tensor,
    row_ends: torch.Tensor,
    block_table: torch.Tensor,
    next_n: int,
    page_size: int,
    k: int,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> torch.Tensor:
    indices = logits.new_empty(logits.shape[0], k, dtype=torch.int32)
    _launch(logits, row_starts, row_ends, block_table, next_n, page_size, indices, executor, variant, arch)
    return indices


@_op.register_fake
def _(
    logits, row_starts, row_ends, block_table, next_n, page_size, k, executor=None, variant=None, arch=None
):
    return logits.new_empty(logits.shape[0], k, dtype=torch.int32)


@torch.library.custom_op("dsl_kernels::topk_selector_out", mutates_args=("indices",))
def _out_op(
    logits: torch.Tensor,
    row_starts: torch.Tensor,
    row_ends: torch.Tensor,
    block_table: torch.Tensor,
    next_n: int,
    page_size: int,
    indices: torch.Tensor,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> None:
    _launch(logits, row_starts, row_ends, block_table, next_n, page_size, indices, executor, variant, arch)


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


_constants: dict[tuple[tuple[int, ...], torch.device], torch.Tensor] = {}


def _zeros(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Zeros that stand for an operand the caller left out, kept: a launch must not fill memory of its own."""
    held = _constants.get((shape, device))
    if held is not None:
        return held
    return kept(
        _constants, (shape, device), device, lambda: torch.zeros(shape, dtype=torch.int32, device=device)
    )


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
        row_ends: [rows] int32, one past the last valid column; 0 for padded rows.
        k: 1 to 2048.
        row_starts: [rows] int32, first valid column; zeros by default.
        block_table: [b, max_pages] int32: positions become ids block_table[row // next_n, pos // page] * page + pos % page.
        page_size: tokens a page; used with block_table only.
        next_n: rows that share one row of the block table.
        out: [rows, k] int32 to write into.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        [rows, k] int32: min(k, length) entries, then -1. Positions count from row_starts.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride, device, or k out of range.
        NoVariantError: no generated variant accepts these sizes.
    """
    require_tensors(
        "logits row_ends row_starts block_table out", logits, row_ends, row_starts, block_table, out
    )
    if not 1 <= k <= MAX_K:
        raise InvalidArgumentError(
            "k", expected=f"1 to {MAX_K}", got=str(k), fix="select fewer, or merge selections"
        )
    if logits.dim() != 2:
        raise InvalidArgumentError(
            "logits",
            expected="2 dimensions [rows, stride]",
            got=f"shape {tuple(logits.shape)}",
            fix="reshape it with .view(rows, -1)",
        )
    if next_n < 1:
        raise InvalidArgumentError(
            "next_n", expected="at least 1", got=str(next_n), fix="pass the queries a sequence"
        )
    if block_table is not None:
        if page_size < 1:
            raise InvalidArgumentError(
                "page_size",
                expected="at least 1",
                got=str(page_size),
                fix="pass the page size of block_table",
            )
        if block_table.dim() != 2 or block_table.shape[0] * next_n < logits.shape[0]:
            raise InvalidArgumentError(
                "block_table", expected=f"[b, max_pages] with b * next_n >= {logits.shape[0]} rows",
                got=f"shape {tuple(block_table.shape)} with next_n = {next_n}", fix="pass one table row a sequence",
            )  # fmt: skip
    page = page_size if block_table is not None else 0
    if row_starts is None:
        row_starts = _zeros((logits.size(0),), logits.device)
    table = block_table if block_table is not None else _zeros(_NO_TABLE, logits.device)
    if torch.compiler.is_compiling():
        if out is None:
            return torch.ops.dsl_kernels.topk_selector(
                logits, row_starts, row_ends, table, next_n, page, k, executor, variant, arch
            )
        torch.ops.dsl_kernels.topk_selector_out(
            logits, row_starts, row_ends, table, next_n, page, out, executor, variant, arch
        )
        return out
    if out is None:
        out = logits.new_empty(logits.shape[0], k, dtype=torch.int32)
    elif out.dim() != 2 or out.shape[1] != k:
        raise InvalidArgumentError(
            "out", expected=f"[rows, k = {k}]", got=str(tuple(out.shape)), fix="allocate it with k columns"
        )
    _launch(logits, row_starts, row_ends, table, next_n, page, out, executor, variant, arch, workspace)
    return out


__all__ = ["MAX_K", "OPERANDS", "topk_selector"]
