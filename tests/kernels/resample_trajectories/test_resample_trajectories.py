"""Specific to resampling: targets are independent of one another, and rows at a target come out unchanged."""

from __future__ import annotations

import pytest
import torch

from dsl_kernels import ops, variants
from dsl_kernels.errors import ArgumentTypeError, InvalidArgumentError
from dsl_kernels_lab import oracles
from dsl_kernels_lab.oracles import Workload

CPU = {"executor": "interpreter"}
VARIANTS = [v.id for v in variants.variants("resample_trajectories", arch="sm_90a", backend="cutedsl")]


def drawn(**sizes: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    params = {"b": 2, "n": 90, "m": 150, "d": 16, "targets": "hostile", "rows": "specials", **sizes}
    workload = Workload("drawn", "tiny", "default", params)
    inputs = oracles.get("resample_trajectories").make(workload, torch.Generator().manual_seed(7))
    return inputs["data"], inputs["src_times"], inputs["tgt_times"]


def bits(rows: torch.Tensor) -> torch.Tensor:
    """The bits, with one pattern for every NaN."""
    return torch.where(rows.isnan(), torch.nan, rows).view(torch.int16)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_order_of_targets_does_not_matter_nor_who_finds_them(variant: str) -> None:
    data, src_times, tgt_times = drawn()
    rows = ops.resample_trajectories(data, src_times, tgt_times, **CPU)
    order = torch.randperm(tgt_times.shape[1], generator=torch.Generator().manual_seed(1))
    moved = tgt_times[:, order].contiguous()
    result = ops.resample_trajectories(data, src_times, moved, variant=variant, **CPU)
    assert torch.equal(bits(result), bits(rows[:, order]))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_time_of_the_trajectory_gets_its_row_whatever_lies_beside_it(variant: str) -> None:
    data, src_times, _ = drawn(rows="plain")
    data[:, ::2] = torch.tensor([torch.inf, torch.nan] * 8)
    result = ops.resample_trajectories(data, src_times, src_times, variant=variant, **CPU)
    assert torch.equal(result[:, 1::2].view(torch.int16), data[:, 1::2].view(torch.int16))
    far = torch.tensor([[-torch.inf, -1e30, 1e30, torch.inf]]).expand(2, 4).contiguous()
    result = ops.resample_trajectories(data, src_times, far, variant=variant, **CPU)
    ends = data[:, [0, 0, -1, -1]]
    assert torch.equal(bits(result), bits(ends))


def test_a_repeated_time_takes_its_last_row_and_at_the_end_the_row_before_it() -> None:
    data = torch.arange(5.0).bfloat16()[None, :, None].expand(1, 5, 8).contiguous()
    times = torch.tensor([[0.0, 1.0, 1.0, 2.0, 2.0]])
    result = ops.resample_trajectories(data, times, torch.tensor([[1.0, 2.0, 3.0, torch.nan]]), **CPU)
    assert result[0, :3, 0].tolist() == [2.0, 3.0, 3.0] and bool(result[0, 3].isnan().all())


def test_what_has_no_meaning_is_refused() -> None:
    data, src_times, tgt_times = drawn()
    for at, value in ((3, float("nan")), (0, float("-inf")), (5, 1e9)):
        wrong = src_times.clone()
        wrong[1, at] = value
        with pytest.raises(InvalidArgumentError, match=r"src_times: expected finite and ascending.*at \[1, "):
            ops.resample_trajectories(data, wrong, tgt_times, **CPU)
    with pytest.raises(InvalidArgumentError, match=r"got 0\.5 at \[0, 1\]"):
        ops.resample_trajectories(
            data[:1, :2].contiguous(), torch.tensor([[0.75, 0.5]]), tgt_times[:1], **CPU
        )
    with pytest.raises(InvalidArgumentError, match="less than the largest float32 apart"):
        ops.resample_trajectories(
            data[:1, :2].contiguous(), torch.tensor([[-3e38, 3e38]]), tgt_times[:1], **CPU
        )
    with pytest.raises(InvalidArgumentError, match="n >= 2; got n = 1"):
        ops.resample_trajectories(data[:, :1].contiguous(), src_times[:, :1].contiguous(), tgt_times, **CPU)
    for arguments in ((data.half(), src_times, tgt_times), (data, src_times.double(), tgt_times)):
        with pytest.raises(ArgumentTypeError, match="expected dtype"):
            ops.resample_trajectories(*arguments, **CPU)


@pytest.mark.parametrize(("n", "d", "knobs"), [(90, 5, "_v1"), (90, 24, "_v8"), (9000, 8, "window")])
def test_a_variant_is_found_for_every_width_and_length(n: int, d: int, knobs: str) -> None:
    ops.clear()
    ops.resample_trajectories(*drawn(n=n, d=d), **CPU)
    assert knobs in ops.selections()[-1].variant.id


@pytest.mark.parametrize("variant", [None, *VARIANTS])
@pytest.mark.parametrize("empty", ["b", "m", "d"])
def test_nothing_to_sample_gives_nothing(empty: str, variant: str | None) -> None:
    data, src_times, tgt_times = drawn(targets="sorted")
    if empty == "b":
        data, src_times, tgt_times = data[:0], src_times[:0], tgt_times[:0]
    elif empty == "d":
        data = data[:, :, :0].contiguous()
    else:
        tgt_times = tgt_times[:, :0].contiguous()
    result = ops.resample_trajectories(data, src_times, tgt_times, variant=variant, **CPU)
    assert result.shape == (*tgt_times.shape, data.shape[2])
