"""Torch op of resampling trajectories by linear interpolation."""

from __future__ import annotations

from typing import Any

import torch

from ...ops._base import run
from ...ops._library import torch_op
from ...ops.workspace import Workspace


@torch_op("resample_trajectories", "default")
def resample_trajectories(
    data: torch.Tensor,
    src_times: torch.Tensor,
    tgt_times: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """Resample each trajectory at other times, by linear interpolation between the two rows around each time.

    Args:
        data: [b, n, d] bfloat16, n at least 2. Kernels read rows 16 bytes at a time if d is a multiple of 8.
        src_times: [b, n] float32, finite and ascending along a trajectory. Times may repeat: at a repeated
            time the last of its rows counts, or the row before the last where these rows end the trajectory.
            Kernels do not check the order: other orders give rows from anywhere in the trajectory.
        tgt_times: [b, m] float32, in any order; sorted times read neighbouring rows. A time before the first
            row or after the last, also an infinite time, takes that row. NaN gives a row of NaN.
        out: [b, m, d] bfloat16 to write into; must not overlap an input.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        [b, m, d] bfloat16: the weighted mean in float32, rounded once. A target at a time of the trajectory
        takes the row of that time bit for bit, whatever the neighbour holds.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device, or fewer than two rows.
        NoVariantError: no generated variant accepts these sizes.
    """
    operands: dict[str, Any] = {
        "data": data, "src_times": src_times, "tgt_times": tgt_times, "out": out,
    }  # fmt: skip
    run("resample_trajectories", "default", operands, executor, variant, arch, workspace)
    sampled: torch.Tensor = operands["out"]
    return sampled
