"""Torch ops that merge the partial attention outputs of ranks."""

from __future__ import annotations

from typing import Any

import torch

from ...ops._base import run
from ...ops._library import torch_op
from ...ops.workspace import Workspace


@torch_op("merge_outputs", "default")
def merge_outputs(
    outs: torch.Tensor,
    lses: torch.Tensor,
    attn_sink: torch.Tensor | None = None,
    *,
    lse_scale: float = 1.0,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merge the attention of each rank over its own keys into attention over all keys.

    Sums are in float32 and in the order of ranks, so every rank gets the same bits.

    Args:
        outs: [ranks, rows, heads, 512] bfloat16, without a sink. The strides of ranks, rows and heads are
            multiples of 8.
        lses: [ranks, rows, heads] float32, in base 2, -inf where a rank has no key; ranks and rows at any
            stride.
        attn_sink: [heads] float32, natural-log logits that join the denominator of `out`, once. They may be
            infinite.
        lse_scale: factor of `lse`: 1 leaves `lse` in base 2, ln 2 gives base e.
        out: [rows, heads, 512] bfloat16 to write into; must not overlap an input.
        lse: [rows, heads] float32 to write into.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        `out`, rounded once, and `lse` without the sink. Where no rank has a key, `out` is 0 and `lse` is
        -inf.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device.
        NoVariantError: no generated variant accepts these sizes.
    """
    operands: dict[str, Any] = {
        "outs": outs, "lses": lses, "attn_sink": attn_sink, "lse_scale": lse_scale, "out": out, "lse": lse,
    }  # fmt: skip
    run("merge_outputs", "default", operands, executor, variant, arch, workspace)
    return operands["out"], operands["lse"]


@torch_op("merge_outputs", "peers")
def merge_peer_outputs(
    outs: torch.Tensor,
    lses: torch.Tensor,
    peer_distances: torch.Tensor,
    attn_sink: torch.Tensor | None = None,
    *,
    lse_scale: float = 1.0,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`merge_outputs` of parts in the memory of the ranks, where the kernel reads them.

    Before any rank calls this op, every rank has written its parts at the same place of its memory and has
    passed a barrier. No rank writes there again before all calls have ended. The bits are those of
    `merge_outputs`.

    Args:
        outs: [rows, heads, 512] bfloat16, the part of this rank, as in `merge_outputs`. The strides of the
            first two axes are multiples of 8, and the same on every rank.
        lses: [rows, heads] float32, of this rank; rows at any stride, the same on every rank.
        peer_distances: [ranks] int64 on the GPU, the distance in bytes from this rank's memory to each rank's
            memory, 0 for this rank: with torch's symmetric memory `buffer_ptrs[r] - buffer_ptrs[rank]`.
            Multiples of 16; at most 8 ranks.
        attn_sink, lse_scale, out, lse: as for `merge_outputs`.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        `out` and `lse` of all ranks, as from `merge_outputs`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device. Kernels read distances
            on the device. Wrong distances are an error off the GPU and with DSL_KERNELS_CHECK_VALUES, and
            undefined otherwise.
        NoVariantError: more than 8 ranks, or other sizes that no generated variant accepts.
    """
    operands: dict[str, Any] = {
        "outs": outs, "lses": lses, "peer_distances": peer_distances, "attn_sink": attn_sink,
        "lse_scale": lse_scale, "out": out, "lse": lse,
    }  # fmt: skip
    run("merge_outputs", "peers", operands, executor, variant, arch, workspace)
    return operands["out"], operands["lse"]
