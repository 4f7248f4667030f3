"""Torch op of the ids of a window."""

from __future__ import annotations

from typing import Any

import torch

from ...arguments import INT32_MAX, integer
from ...ops._base import run
from ...ops._library import torch_op
from ...ops.workspace import Workspace

MOST_WINDOW = 1 << 20


@torch_op("window_ids", "default")
def window_ids(
    seq_lens: torch.Tensor,
    window_table: torch.Tensor,
    window: int = 128,
    *,
    page_size: int = 64,
    out: torch.Tensor | None = None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """The cache slots of the last tokens that each query sees.

    `dsa.v4.decode` calls this op for the window of its layers.

    Args:
        seq_lens: [b, next_n] int32, the tokens that each query sees, with its own; 0 for padded rows. A
            length counts as at most max_pages * page_size, and a negative length as 0.
        window_table: [b, max_pages] int32, page ids by position, rows at any stride. Kernels do not read ids
            outside of a query's window.
        window: tokens at the end of a sequence, 1 to 2^20.
        page_size: tokens per page, at most 2^31 / max_pages.
        out: [b * next_n, window] int32 to write into, rows at any stride; must not overlap an input.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        [b * next_n, window] int32: window_table[sequence, p // page_size] * page_size + p % page_size of the
        last `window` positions p, in ascending order, then -1.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device, or a number out of
            range.
        NoVariantError: no generated variant accepts these sizes.
    """
    width = integer("window", window, 1, MOST_WINDOW)
    size = integer("page_size", page_size, 1, INT32_MAX)
    operands: dict[str, Any] = {
        "seq_lens": seq_lens,
        "window_table": window_table,
        "page_size": size,
        "indices": out,
    }
    run(
        "window_ids", "default", operands, executor, variant, arch, workspace,
        {"window": width, "page_size": size}
    )  # fmt: skip
    ids: torch.Tensor = operands["indices"]
    return ids
