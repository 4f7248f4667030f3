"""Timing on a GPU: the checks before it, sustained runs, a step's attention, and a search."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from dsl_kernels import measured, registry
from dsl_kernels.cli import app
from dsl_kernels.errors import WrongResultError
from dsl_kernels_lab.steps import StepSize
from dsl_kernels_lab.timing import bench, grids, measure

pytestmark = pytest.mark.sm90

POINTS = (
    grids.Point("lightning_indexer", "decode", {"b": 3, "len": 4096, "heads": 64, "next_n": 2}),
    grids.Point("lightning_indexer", "prefill", {"s": 130, "skv": 4096, "heads": 64}),
    grids.Point("topk_selector", "default", {"rows": 3, "len": 32768, "k": 2048, "scores": "ties"}),
    grids.Point("topk_selector", "default", {"rows": 600, "len": 4096, "k": 2048}),
    grids.Point("sparse_mla", "bf16", {"t": 3, "heads": 16, "pages": 512}),
    grids.Point("sparse_mla", "fp8", {"t": 3, "heads": 128, "pages": 512, "ids": "holes"}),
    grids.Point(
        "gqa_forward",
        "bf16",
        {"b": 1, "sq": 512, "skv": 512, "heads": 16, "kv_heads": 8, "dim": 128, "causal": 1},
    ),
    grids.Point("resample_trajectories", "default", {"b": 3, "n": 1024, "m": 1024, "d": 32}),
)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.op} {point.name}")
def test_a_point_is_checked_before_it_is_timed(point) -> None:
    with torch.inference_mode():
        fixture = grids.prepare(point)
        record = grids.time_point(point, fixture, baseline=False)
        assert record["checked"] and record["us"] > 0
        fixture.calls = lambda variant, launch: [lambda: None]
        with pytest.raises(WrongResultError):
            grids.check_variant(point, fixture)


def test_a_sustained_run_lasts_and_sees_the_clocks() -> None:
    with torch.inference_mode():
        calls = grids.prepare(POINTS[4]).calls(None, None)
        short, long = bench.graph_time(calls), bench.sustained(calls, seconds=0.3)
    assert 0.2 < long["seconds"] < 1.5 and 0.5 < long["us"] / short.us < 2
    assert bench.clocks() is None or long["sm_mhz"] > 100


def test_attention_adds_to_a_step_about_what_it_takes() -> None:
    with torch.inference_mode():
        marginal = measure.time_marginal(measure.step_sets(StepSize(batch=4, context=8192)))
    assert 0 < marginal["marginal"] < marginal["step"] and marginal["without_attention"] < marginal["step"]


def test_a_search_ends_in_the_users_table(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DSL_KERNELS_TUNED_DIR", str(tmp_path))
    args = ["tune", "topk_selector", "--dim", "rows=3,len=8192", "--level", "0", "--budget", "60s", "--json"]
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.output
    [row] = json.loads(result.stdout)["points"]
    gpu = torch.cuda.get_device_name()
    assert row["us"] > 0 and (tmp_path / f"{measured.slug(gpu)}.json").exists()
    assert [e["variant"] for e in measured.user_table(gpu).entries] == [row["variant"]]
    registry.clear()
