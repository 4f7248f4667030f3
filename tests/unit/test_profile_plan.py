"""A diagnosis as a plan, and statistics of ids: on figures and tensors that can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from dsl_kernels import variants
from dsl_kernels.cli import app
from dsl_kernels.errors import ArgumentTypeError, ArtifactError, InvalidArgumentError, UnknownNameError
from dsl_kernels_lab import oracles, profile
from dsl_kernels_lab.profile import Diagnosis, Finding, Fingerprint
from dsl_kernels_lab.profile.data import describe_ids, read_ids
from dsl_kernels_lab.timing.grids import per_second

KEPT = Path(__file__).parent / "data" / "kernels_h200.json.xz"
RUNNER = CliRunner()


def finding(cause: str, bound: float | None, healthy: bool = False) -> Finding:
    return Finding(cause, cause, (), f"mend {cause}", bound, healthy)


def diagnosis(*findings: Finding, us: float | None = 100.0, floor: float | None = 20.0) -> Diagnosis:
    return Diagnosis(Fingerprint("k", "ncu", us=us, sol={"dram": 0.1}), findings, ceiling_us=floor)


def test_phases_add_up_and_stop_at_the_floor() -> None:
    roadmap = profile.roadmap(
        diagnosis(finding("a", 2.0), finding("b", None), finding("c", 4.0)), ("trajectories", 64), 50.0
    )
    assert roadmap is not None and roadmap.unit == "trajectories"
    assert [one.alone_us for one in roadmap.phases] == [50.0, None, 25.0]
    assert [one.us for one in roadmap.phases] == [50.0, 50.0, 20.0]
    assert [one.dram for one in roadmap.phases] == pytest.approx([0.2, 0.2, 0.5])
    assert [one.per_second for one in roadmap.phases] == pytest.approx([1.28e6, 1.28e6, 3.2e6])
    assert [one.ratio for one in roadmap.phases] == [1.0, 1.0, 0.4]


def test_a_unit_at_its_limit_is_no_phase() -> None:
    roadmap = profile.roadmap(diagnosis(finding("limit", 1.2, healthy=True)))
    assert roadmap is not None and roadmap.phases == () and [f.cause for f in roadmap.limits] == ["limit"]


def test_a_launch_without_its_time_has_no_plan() -> None:
    assert profile.roadmap(diagnosis(finding("a", 2.0), us=None)) is None


def test_a_plan_is_read_back_by_its_schema() -> None:
    roadmap = profile.roadmap(diagnosis(finding("a", 2.0)))
    assert profile.load(profile.Roadmap, json.loads(profile.dump(roadmap))) == roadmap


def test_the_command_plans_a_kept_launch() -> None:
    arguments = ["profile", "roadmap", str(KEPT), "--kernel", "t=64 heads=16 triton", "--op", "sparse_mla"]
    arguments += ["--dim", "t=64,heads=16,topk=2048", "--baseline", "39.6"]
    done = RUNNER.invoke(app, [*arguments, "--json"])
    report = json.loads(done.stdout)
    assert done.exit_code == 0 and report["unit"] == "queries" and report["floor_us"] < report["us"]
    assert report["now"]["us"] == report["us"] and report["now"]["ratio"] == pytest.approx(
        report["us"] / 39.6
    )
    causes = [one["finding"]["cause"] for one in report["phases"]]
    assert causes[0] == "gather_below_ceiling"
    times = [report["us"], *(one["us"] for one in report["phases"])]
    assert times == sorted(times, reverse=True) and times[-1] >= report["floor_us"]
    shown = RUNNER.invoke(app, arguments).stdout
    assert "more bytes in flight" in shown and "queries a second" in shown and "Floor" in shown


def test_ids_are_counted() -> None:
    ids = torch.tensor([[0, 1, 2, 64, -1], [1, 130, 129, 130, -1], [-1] * 5])
    statistics = describe_ids(ids, page=64, row_bytes=10)
    assert (statistics.rows, statistics.k, statistics.shortest, statistics.longest) == (3, 5, 0, 4)
    assert (
        statistics.valid == pytest.approx(8 / 15)
        and statistics.distinct == 6
        and statistics.reuse == pytest.approx(8 / 6)
    )
    assert statistics.repeated == pytest.approx(1 / 8)
    # 0 1 2 | 64, and 1 | 130 | 129 130: five runs; four of six steps ascend in the first two rows.
    assert statistics.run == pytest.approx(8 / 5) and statistics.ascending == pytest.approx(5 / 6)
    assert statistics.pages == 2.0 and statistics.page_tokens == pytest.approx(7 / 4)
    assert statistics.shared_next == pytest.approx(1 / 7)
    assert (statistics.unique_bytes, statistics.read_bytes) == (60, 80)


def test_ids_that_are_all_padding_ask_for_nothing() -> None:
    statistics = describe_ids(torch.full((2, 4), -1, dtype=torch.int32))
    assert (
        statistics.valid,
        statistics.distinct,
        statistics.reuse,
        statistics.pages,
        statistics.read_bytes,
    ) == (0.0, 0, 0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("ids", "error", "words"),
    [
        (torch.ones(2, 2), ArgumentTypeError, "integers"),
        ([[1]], ArgumentTypeError, "integers"),
        (torch.ones(3, dtype=torch.int32), InvalidArgumentError, "rows, k"),
        (torch.ones(0, 3, dtype=torch.int32), InvalidArgumentError, "an id at least"),
    ],
)
def test_what_are_no_ids_is_refused(ids: object, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        describe_ids(ids)


def test_ids_are_read_from_both_formats(tmp_path: Path) -> None:
    import numpy

    ids = torch.arange(12, dtype=torch.int32).view(3, 4)
    save_file({"scores": torch.ones(3, 4), "indices": ids}, tmp_path / "ids.safetensors")
    numpy.save(tmp_path / "ids.npy", ids.numpy())
    for path, name in (
        (tmp_path / "ids.safetensors", None),
        (tmp_path / "ids.safetensors", "indices"),
        (tmp_path / "ids.npy", None),
    ):
        assert torch.equal(read_ids(path, name), ids)
    with pytest.raises(UnknownNameError, match="indices"):
        read_ids(tmp_path / "ids.safetensors", "indexes")
    save_file({"a": ids, "b": ids.clone()}, tmp_path / "two.safetensors")
    with pytest.raises(InvalidArgumentError, match="a, b"):
        read_ids(tmp_path / "two.safetensors")
    for name, content in (("bad.safetensors", b"x"), ("bad.npy", b"x")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ArtifactError, match=name):
            read_ids(tmp_path / name)
    for name in ("none.safetensors", "none.npy"):
        with pytest.raises(ArtifactError, match=name):
            read_ids(tmp_path / name)


def test_the_command_says_what_ids_mean(tmp_path: Path) -> None:
    save_file({"indices": torch.arange(128).view(2, 64)}, tmp_path / "ids.safetensors")
    done = RUNNER.invoke(app, ["profile", "data", str(tmp_path / "ids.safetensors")])
    assert done.exit_code == 0 and "64.0 of 64 tokens" in done.stdout and "64.00 tokens" in done.stdout
    done = RUNNER.invoke(app, ["profile", "data", str(tmp_path / "ids.safetensors"), "--gpu", "H2000"])
    assert done.exit_code == 2


def test_what_a_call_gives_a_second() -> None:
    assert per_second("resample_trajectories", "default", {"b": 64}, 110.0) == {
        "trajectories": pytest.approx(581818.18)
    }
    dims = {"b": 4, "next_n": 2, "s": 9}
    assert per_second("lightning_indexer", "decode", dims, 1.0) == {"queries": 8e6}
    assert per_second("lightning_indexer", "prefill", dims, 1.0) == {"queries": 9e6}


COUNTED = [op for op in oracles.names() if oracles.get(op).units is not None]


@pytest.mark.parametrize("op", COUNTED)
def test_an_operation_says_what_it_gives(op: str) -> None:
    problem = oracles.get(op)
    for form in problem.forms:
        dims = dict.fromkeys(problem.dims(form), 3)
        name, count = problem.units(form, dims)
        assert name and count >= 3


def test_every_committed_operation_says_what_it_gives() -> None:
    assert {v.op for v in variants.variants()} <= set(COUNTED)
