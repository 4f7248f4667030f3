"""Torch op of exact top-k selection over ragged rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...arguments import INT32_MAX, integer, require_dense, shown
from ...dtypes import DTYPES
from ...errors import ArgumentTypeError, InvalidArgumentError
from ...ops._base import run
from ...ops._library import torch_op
from ...ops.workspace import Workspace
from .problem import OPTIONS, SCORES

MAX_K = 4096
_FORM_OF: dict[Any, str] = {DTYPES[dtype].torch: form for form, dtype in SCORES.items()}


@torch_op("topk_selector", OPTIONS["default"])
def topk_selector(
    logits: torch.Tensor,
    row_ends: torch.Tensor,
    k: int = 2048,
    *,
    row_starts: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    page_size: int = 64,
    next_n: int = 1,
    row_to_sequence: torch.Tensor | None = None,
    absolute: bool = False,
    offsets: torch.Tensor | None = None,
    ties: str = "lower",
    out: torch.Tensor | None = None,
    values: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """The k largest scores of each row, exactly, as ascending positions.

    A call with `row_to_sequence`, `offsets`, `ties="higher"`, `values` or `positions` has variants of its
    own.

    Args:
        logits: [rows, stride] float32, bfloat16 or float16, rows at any stride. Columns outside a row's range
            are never selected.
        row_ends: [rows] int32, one past the last valid column; 0 for padded rows. Columns before 0 and past
            the stride do not count. A row that ends before it starts is empty.
        k: 1 to 4096.
        row_starts: [rows] int32, first valid column; zeros by default.
        block_table: [b, max_pages] int32, rows at any stride. Positions become ids
            block_table[row // next_n, pos // page] * page + pos % page. The table must cover the columns of
            every row, and entries for these columns are page ids, none negative. Kernels do not check this:
            they read past the end of a short table. They do not use entries past a row's columns.
        page_size: tokens per page; used with block_table only.
        next_n: rows that share one row of the block table.
        row_to_sequence: [rows] int32, the row of the block table that each row uses, in place of row //
            next_n.
        absolute: positions count from column 0, not from row_starts, as attention numbers keys. Without a
            block table only.
        offsets: [rows] int32, added to the positions of each row: for example the place of the first key of
            its sequence among the keys of all sequences. Without a block table only.
        ties: "lower" or "higher": the positions that go first where more scores are equal than are left to
            select.
        out: [rows, k] int32 to write into, rows at any stride; must not overlap an input.
        values: [rows, k] of the scores' dtype, rows at any stride. Kernels write the selected scores here,
            then -inf.
        positions: [rows, k] int32, rows at any stride. Kernels write the positions here that the block table
            maps to ids, then -1. With a block table only.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        [rows, k] int32: min(k, length) entries, then -1. Positions count from row_starts unless `absolute`.
        `values` and `positions` are in the same order.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride, device, k out of range, or
            arguments that a block table excludes or needs.
        NoVariantError: no generated variant accepts these sizes.
    """
    if type(k) is not int or not 1 <= k <= MAX_K:
        k = integer("k", k, 1, MAX_K)
    if type(next_n) is not int or not 1 <= next_n <= INT32_MAX:
        next_n = integer("next_n", next_n, 1, INT32_MAX)
    if type(page_size) is not int or not 1 <= page_size <= INT32_MAX:
        page_size = integer("page_size", page_size, 1, INT32_MAX)
    if absolute is not False:
        _require_absolute(absolute, block_table)
    page = page_size if block_table is not None else 0
    operands: dict[str, Any] = {
        "logits": logits, "row_starts": row_starts, "row_ends": row_ends, "block_table": block_table,
        "next_n": next_n, "page_size": page, "absolute": int(absolute), "indices": out,
    }  # fmt: skip
    static = {"next_n": next_n, "page_size": page, "k": k}
    form = _FORM_OF.get(getattr(logits, "dtype", None))
    if form is None:
        require_dense("logits", logits)
        raise ArgumentTypeError(
            "logits",
            expected="dtype " + ", ".join(map(str, _FORM_OF)),
            got=str(logits.dtype),
            fix="convert the scores",
        )
    if ties != "lower" or not (
        row_to_sequence is None and offsets is None and values is None and positions is None
    ):
        form = _with_options(form, operands, static, ties, row_to_sequence, offsets, values, positions)
    run("topk_selector", form, operands, executor, variant, arch, workspace, static)
    ids: torch.Tensor = operands["indices"]
    return ids


def _with_options(
    form: str, operands: dict[str, Any], static: dict[str, int], ties: object, row_to_sequence: object,
    offsets: object, values: object, positions: object,
) -> str:  # fmt: skip
    """Add the options of a call to its operands and sizes, and return the form with options."""
    given = {"row_to_sequence": row_to_sequence, "offsets": offsets, "values": values, "positions": positions}
    _require_ties(ties)
    _require_table(operands["block_table"], operands["next_n"], given)
    if row_to_sequence is not None:
        # With a map of rows, the table may have any number of rows.
        operands["next_n"] = static["next_n"] = INT32_MAX
    flags = {f"has_{name}": int(given[name] is not None) for name in ("offsets", "values", "positions")}
    flags |= {"has_sequences": int(row_to_sequence is not None), "ties_higher": int(ties == "higher")}
    operands |= given | flags
    static |= flags
    return OPTIONS[form]


def _require_table(table: object, next_n: int, given: Mapping[str, object]) -> None:
    """Raise where an option needs a block table, or excludes one."""
    for name in ("row_to_sequence", "positions"):
        if table is None and given[name] is not None:
            raise InvalidArgumentError(
                name,
                expected="a block_table as well",
                got="no block_table",
                fix=f"leave out {name}: the ids are positions",
            )
    if table is not None and given["offsets"] is not None:
        raise InvalidArgumentError(
            "offsets", expected="None with a block table, whose ids combine a page and a place in it",
            got="a tensor", fix="leave out one of the two",
        )  # fmt: skip
    if given["row_to_sequence"] is not None and next_n != 1:
        raise InvalidArgumentError(
            "next_n", expected="1 with row_to_sequence", got=str(next_n), fix="leave out one of the two"
        )


def _require_ties(ties: object) -> None:
    if not isinstance(ties, str) or ties not in ("lower", "higher"):
        raise InvalidArgumentError(
            "ties",
            expected="'lower' or 'higher'",
            got=repr(ties) if isinstance(ties, str) else type(ties).__name__,
            fix="say which positions go first",
        )


def _require_absolute(absolute: object, block_table: torch.Tensor | None) -> None:
    if type(absolute) not in (bool, int) or absolute not in (0, 1):
        raise ArgumentTypeError(
            "absolute", expected="True or False", got=shown(absolute), fix="pass one of these"
        )
    if absolute and block_table is not None:
        raise InvalidArgumentError(
            "absolute", expected="False with a block table, whose ids do not depend on where a row starts",
            got="True", fix="leave out one of the two",
        )  # fmt: skip
