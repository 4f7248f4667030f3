"""Timing without a GPU: the clock and the ceilings are replaced, all around them runs for real on the CPU."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from codegen.check import check
from codegen.emit import entry, relative_path
from codegen.sweep import Instance, combinations
from dsl_kernels import executors, ops, problems, programs, registry, variants
from dsl_kernels._discover import module_names
from dsl_kernels.arch import get_arch, gpu_row
from dsl_kernels.dsa import steps
from dsl_kernels.errors import (
    ExecutorUnavailableError,
    InvalidArgumentError,
    ToolchainError,
    UnknownNameError,
)
from dsl_kernels.timing import bench, calibrate, grids, measure

GPU = "NVIDIA H200"


@pytest.fixture
def on_cpu(tmp_path, monkeypatch):
    """Calls run once through the interpreter; a call's "time" is its number in the order of timing."""
    records = []
    for op in programs.names():
        program, arch = programs.get(op), get_arch("sm_90a")
        for knobs in combinations(program, arch, 0):
            instance = Instance(program, "tilelang", arch, knobs, Path("none"))
            if not check(program, knobs, arch):
                records.append(entry(instance, ""))
                path = tmp_path / relative_path(instance)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("")
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": variants.SCHEMA, "variants": records}))
    monkeypatch.setenv("DSL_KERNELS_GENERATED_DIR", str(tmp_path))
    monkeypatch.setenv("DSL_KERNELS_EXECUTOR", "interpreter")
    monkeypatch.setattr(registry, "TUNED", tmp_path / "tuned")
    monkeypatch.setattr(measure, "DEVICE", "cpu")
    monkeypatch.setattr(measure, "CONTEST_PAGES", 8)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(executors, "gpu_at_hand", lambda index: gpu_row("sm_90a", GPU))
    timed = SimpleNamespace(calls=[], gathered=[])

    def clock(calls, replays=bench.REPLAYS):
        for call in calls:
            call()
        timed.calls.append(len(calls))
        us = float(len(timed.calls))
        return bench.Timing(us, us, us, len(calls), replays)

    monkeypatch.setattr(bench, "graph_time", clock)
    # One way to fetch, timed once to compare and once for the figure.
    monkeypatch.setattr(calibrate, "SETTINGS", calibrate.SETTINGS[:1])
    monkeypatch.setattr(
        calibrate,
        "gather",
        lambda cache, ids, setting: timed.gathered.append((sorted(cache), int((ids >= 0).sum()))),
    )
    monkeypatch.setattr(
        calibrate, "read", lambda buffer, setting: timed.gathered.append((["read"], buffer.numel()))
    )
    ops.clear()
    yield timed
    ops.clear()


def test_turns_pass_the_l2_and_stay_bounded():
    assert bench.turns(1) == bench.MAX_TURNS
    assert bench.turns(bench.ROTATION_BYTES) == 1 and bench.turns(bench.ROTATION_BYTES + 1) == 1
    assert bench.turns(bench.ROTATION_BYTES // 3) == 4
    assert bench.turns(2048 * 1152 * 16) * 2048 * 1152 * 16 >= bench.ROTATION_BYTES


def test_turns_of_a_step_follow_the_cache_that_is_read_least():
    size = steps.StepSize(batch=16, context=32768)
    assert measure.touched_bytes(size) == 16 * 2048 * 1152
    assert measure.touched_bytes(steps.StepSize(batch=16, context=4096)) == 16 * 4096 * 132.0


def test_a_step_is_timed_with_its_parts_and_ceilings(on_cpu):
    size = steps.StepSize(batch=2, context=200, topk=64, heads=8, index_heads=32)
    sets = steps.draw(measure.pool(size), sets=3)
    figures = measure.time_step(sets)
    assert figures["turns"] == 3 and set(figures["ops"]) == {
        "lightning_indexer",
        "topk_selector",
        "sparse_mla",
    }
    assert on_cpu.calls == [3] * 8
    assert (
        figures["step"]["us"] == 1.0
        and figures["ceilings"]["gather"] == 6.0
        and figures["ceilings"]["read"] == 8.0
    )
    assert on_cpu.gathered == [(["ckv", "kpe"], 128)] * 6 + [(["pages"], 8)] * 6
    assert figures["baseline"] is None or "us" in figures["baseline"]


def test_turns_of_a_rotation_use_other_pages_of_the_same_cache():
    first, second = steps.draw(steps.StepSize(batch=2, context=300, pages=64), sets=2)
    assert first.tensors["kv"] is second.tensors["kv"]
    assert not torch.equal(first.tensors["block_table"], second.tensors["block_table"])
    assert len(first.tensors["block_table"].unique()) == 10


def test_a_ceiling_is_the_fastest_way_to_fetch(monkeypatch):
    us = {("bulk_rows", 98304): 5.0, ("loads", 65536): 3.0, ("cp_async", 131072): 4.0}
    timed = []

    def clock(calls, replays=bench.REPLAYS):
        [setting] = calls
        timed.append(replays)
        us_of = us.get((setting.method, setting.in_flight), 9.0)
        return bench.Timing(us_of, us_of, us_of, 1, replays)

    monkeypatch.setattr(bench, "graph_time", clock)
    assert calibrate.fastest(lambda setting: [setting]) == (3.0, calibrate.Setting("loads", 65536))
    assert timed.count(bench.REPLAYS) == 2 and len(timed) == len(calibrate.SETTINGS) + 2


def test_a_ceiling_that_cannot_be_measured_becomes_a_note(on_cpu, monkeypatch):
    def missing(cache, ids, setting):
        raise ToolchainError("NVRTC", expected="a library", got="none", fix="install it")

    monkeypatch.setattr(calibrate, "gather", missing)
    figures = measure.time_step(steps.draw(steps.StepSize(batch=1, context=130, topk=64, heads=8, kv="fp8")))
    assert figures["ceilings"] == {"gather": None, "read": None}
    assert sum("NVRTC" in note for note in figures["notes"]) == 2
    assert any("bf16 caches only" in note for note in figures["notes"])


@pytest.mark.parametrize("op", problems.names())
@pytest.mark.parametrize("grid", grids.GRIDS)
def test_every_point_of_every_grid_is_a_call_some_variant_accepts(op, grid):
    for point in grids.points(op, grid):
        form = {"form": point.form, "kv": point.form}
        program = programs.get(op)
        dims = {
            "rows": 1,
            "stride": 4096,
            "k": 2048,
            "topk": 2048,
            "t": 1,
            "next_n": 1,
            "n": 64,
            "page_size": 0,
            **{name: value for name, value in point.params.items() if isinstance(value, int)},
            **form,
        }
        accepted = [
            knobs
            for knobs in combinations(program, get_arch("sm_90a"), 0)
            if all(guard.refuse(knobs, dims) is None for guard in program.guards)
        ]
        assert accepted, f"no variant of the committed set serves {point}"


def test_an_unknown_grid_lists_the_known():
    with pytest.raises(UnknownNameError, match="serving"):
        grids.points("sparse_mla", "servin")


POINTS = (
    grids.Point("lightning_indexer", "decode", {"b": 2, "len": 192, "heads": 64, "next_n": 2}),
    grids.Point("lightning_indexer", "prefill", {"s": 3, "skv": 130, "heads": 64}),
    grids.Point("topk_selector", "default", {"rows": 3, "len": 300, "k": 64, "scores": "ties"}),
    grids.Point("sparse_mla", "bf16", {"t": 2, "heads": 16, "pages": 8, "topk": 128}),
    grids.Point("resample_trajectories", "default", {"b": 2, "n": 50, "m": 9, "d": 8, "targets": "mixed"}),
    grids.Point("sparse_mla", "fp8", {"t": 2, "heads": 16, "pages": 8, "topk": 128, "ids": "holes"}),
)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.op}-{point.form}")
def test_a_point_gives_a_record_of_the_selected_variant(on_cpu, monkeypatch, point):
    monkeypatch.setattr(bench, "MAX_TURNS", 2)
    monkeypatch.setattr(bench, "turns", lambda touched: 2)
    fixture = grids.prepare(point)
    record = grids.time_point(point, fixture, baseline=False)
    selection = registry.select(grids.call_of(point, fixture))
    assert record["variant"] == selection.variant.id and record["us"] == 1.0
    assert record["gbps"] == pytest.approx(problems.get(point.op).bytes(point.form, fixture.dims) / 1e3)
    assert [used.variant.id for used in steps.used()] == [selection.variant.id]
    if "ceiling_us" in record:
        assert record["ceiling_us"] == 3.0 and record["ratio"] == pytest.approx(1 / 3) and on_cpu.gathered
    assert ("ceiling_us" in record) == (point.form != "prefill" and point.op in module_names(grids.__path__))
    json.dumps(record)


def test_tuning_times_every_variant_that_accepts_and_the_registry_obeys(on_cpu, monkeypatch):
    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    point = POINTS[2]
    fixture = grids.prepare(point)
    call = grids.call_of(point, fixture)
    accepted = {v.id for v in variants.variants(point.op) if registry.refusal(call, v) is None}
    entry = grids.tune_point(point, fixture)
    assert set(entry["us"]) == accepted and entry["us"][entry["variant"]] == min(entry["us"].values())
    losing = max(entry["us"], key=lambda name: entry["us"][name])
    path = grids.write_tuned(GPU, [{**entry, "variant": losing}], {"command": "test"})
    found = registry.select(call)
    assert (found.variant.id, found.rule) == (losing, "tuned table")
    grids.write_tuned(GPU, [entry], {"command": "again"})
    content = json.loads(path.read_text())
    assert len(content["entries"]) == 1 and content["metadata"] == {"command": "again"}
    assert registry.select(call).variant.id == entry["variant"]


def test_tuning_tries_splits_in_whole_clusters(on_cpu, monkeypatch):
    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    point = grids.Point("sparse_mla", "bf16", {"t": 1, "heads": 16, "pages": 8, "topk": 2048})
    launches = grids._grid("sparse_mla").launches
    assert launches(point, {"splits": 16}, {"cluster": 8}) == [{"splits": 8}, {"splits": 32}]
    assert launches(point, {"splits": 32}, {"cluster": 1}) == [{"splits": 16}]
    entry = grids.tune_point(POINTS[3], grids.prepare(POINTS[3]))
    assert entry["bucket"] == {"t": 2, "heads": 16, "topk": 128} and set(entry["launch"]) <= {"splits"}


def bench_command(monkeypatch, *args):
    from typer.testing import CliRunner

    from dsl_kernels.cli import app

    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    monkeypatch.setattr(bench, "require_gpu", lambda: GPU)
    monkeypatch.setattr(grids, "points", lambda op, grid: [point for point in POINTS if point.op == op])
    return CliRunner().invoke(app, ["bench", *args])


def test_the_bench_command_writes_records_and_the_tuned_table(on_cpu, monkeypatch, tmp_path):
    path = tmp_path / "rows.jsonl"
    result = bench_command(monkeypatch, "--tune", "--no-baseline", "--json", "--out", str(path))
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert len(report["records"]) == len(report["tuned"]) == len(POINTS) == len(path.read_text().splitlines())
    assert {record["rule"] for record in report["records"]} == {"fastest of a sweep"}
    table = json.loads((tmp_path / "tuned" / "nvidia_h200.json").read_text())
    assert table["schema"] == registry.TUNED_SCHEMA and len(table["entries"]) == len(POINTS)
    text = bench_command(monkeypatch, "topk_selector", "--no-baseline").stdout
    assert "topk_selector on NVIDIA H200" in text and "ceiling us" in text


def test_the_bench_command_survives_a_variant_that_cannot_be_loaded(on_cpu, monkeypatch):
    right = grids.prepare

    def broken(point, seed=0):
        if point.form == "fp8":
            raise ToolchainError("nvcc", expected="nvcc", got="none", fix="install it")
        return right(point, seed)

    monkeypatch.setattr(grids, "prepare", broken)
    result = bench_command(monkeypatch, "sparse_mla", "--no-baseline", "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1 and len(report["records"]) == 1 and "nvcc" in report["failed"][0]


def test_records_are_written_as_they_are_made(tmp_path):
    path = tmp_path / "out" / "records.jsonl"
    records = bench.Records(path)
    records.add({"op": "x", "us": 1.5})
    line = json.loads(path.read_text())
    assert line["us"] == 1.5 and {"torch", "commit", "command", "versions"} <= set(line["environment"])


def test_timing_refuses_nothing_to_time_and_no_gpu(monkeypatch):
    with pytest.raises(InvalidArgumentError):
        bench.graph_time([])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ExecutorUnavailableError):
        bench.require_gpu()


def test_the_recorded_command_names_no_folder_of_this_machine():
    root = Path(bench.__file__).resolve().parents[2]
    assert bench.command(
        [str(root / "dsl_kernels" / "__main__.py"), "bench", "--out", "/tmp/x/rows.jsonl"]
    ) == ("python -m dsl_kernels bench --out rows.jsonl")
    assert (
        bench.command([str(root / "benchmarks" / "decode_step.py"), "--queries", "1,4"])
        == "python benchmarks/decode_step.py --queries 1,4"
    )
    assert bench.command(["/opt/bin/dsl-kernels", "env"]) == "dsl-kernels env"


def test_the_decode_step_benchmark_prints_a_table(on_cpu, monkeypatch, capsys, tmp_path):
    import importlib.util
    import sys

    path = Path(bench.__file__).resolve().parents[2] / "benchmarks" / "decode_step.py"
    spec = importlib.util.spec_from_file_location("decode_step", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(bench, "require_gpu", lambda: GPU)
    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    out = tmp_path / "step.jsonl"
    monkeypatch.setattr(
        sys,
        "argv",
        ["decode_step.py", "--queries", "1,2", "--contexts", "200", "--heads", "8", "--out", str(out)],
    )
    assert module.main() == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 4 and table[2].startswith("| 1 | 200 | 1.00 |") and table[3].endswith("| ok |")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["t"] for row in rows] == [1, 2] and rows[0]["used"]["sparse_mla"].startswith("sparse_mla__")
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["decode_step.py"])
    assert module.main() == 2


def test_the_baseline_keeps_its_best_setting_for_the_same_sizes(on_cpu, monkeypatch):
    ran = []
    module = SimpleNamespace(
        workspace=lambda t, heads, device, splits: (t, splits),
        sparse_mla=lambda *args: ran.append(args[-2:]),
        best_setting=lambda run, time, t, heads, topk: (
            min(time(partial(run, "small", n)) for n in (1, 2)),
            "small",
            2,
        ),
    )
    monkeypatch.setattr(measure, "baseline_module", lambda: module)
    monkeypatch.setattr(measure, "_settings", {})
    inputs = steps.draw(steps.StepSize(batch=2, context=64, topk=64, heads=8), sets=3)
    given = [
        {
            **i.cache_rows(),
            "q_nope": i.tensors["q_nope"],
            "q_pe": i.tensors["q_pe"],
            "indices": torch.zeros(2, 64, dtype=torch.int32),
        }
        for i in inputs
    ]
    notes: list[str] = []
    assert measure.time_baseline(given, 0.1, notes) == {"us": 1 / 3, "setting": "small", "splits": 2}
    assert ran == [("small", 1)] * 3 + [("small", 2)] * 3
    assert measure.time_baseline(given, 0.1, notes) == {"us": 1.0, "setting": "small", "splits": 2}
    assert ran[6:] == [("small", 2)] * 3 and notes == []
    module.best_setting = None
    measure._settings.clear()
    assert measure.time_baseline(given, 0.1, notes) is None and "no Triton baseline" in notes[0]


def series(level: float, spread: float, count: int = 21) -> list[float]:
    return [level * (1 + spread * ((i * 7 % count) / count - 0.5)) for i in range(count)]


@pytest.mark.parametrize(
    ("b", "again", "verdict"),
    [
        (series(10.0, 0.01), series(10.0, 0.01), "within noise"),
        (series(10.5, 0.01), series(10.0, 0.01), "differs"),
        (series(9.5, 0.01), series(10.0, 0.01), "differs"),
        # Two captures of the same calls lie as far apart as the two that are compared.
        (series(10.5, 0.01), series(10.5, 0.01), "within noise"),
        (series(10.2, 0.2)[::-1], series(10.0, 0.2)[::-1], "within noise"),
    ],
)
def test_a_difference_counts_only_outside_the_noise(b, again, verdict):
    found = bench.compared(series(10.0, 0.01), b, again)
    assert found.verdict == verdict and found.rounds == 21
    assert found.to_dict()["ratio"] == pytest.approx(b[10] / 10.0, rel=0.12)


def test_pairs_are_timed_in_turns(monkeypatch):
    order = []

    def replayed(graph, stream, count):
        order.append(graph)
        return [{"a": 20.0, "b": 30.0}[graph[0]]]

    graphs = iter(["a first", "b", "a again"])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(bench, "_stream", lambda device: None)
    monkeypatch.setattr(bench, "_fitting_graph", lambda calls, stream: (next(graphs), 2))
    monkeypatch.setattr(bench, "_replayed", replayed)
    found = bench.paired([print], [print], rounds=3)
    assert (found.a_us, found.b_us, found.ratio, found.verdict) == (10.0, 15.0, 1.5, "differs")
    assert {tuple(order[i : i + 3]) for i in (0, 3, 6)} == {
        ("a first", "b", "a again"),
        ("b", "a again", "a first"),
        ("a again", "a first", "b"),
    }
    with pytest.raises(InvalidArgumentError, match="at least one call"):
        bench.paired([], [print])


def test_bench_takes_only_the_points_that_match(on_cpu, monkeypatch):
    chosen = json.loads(
        bench_command(monkeypatch, "--no-baseline", "--json", "--point", "^fp8 .*heads=").stdout
    )
    assert [row["form"] for row in chosen["records"]] == ["fp8"] * sum(
        point.form == "fp8" for point in POINTS
    )
    for text, expected in (("t=12345", "a form or sizes of the grid"), ("(", "a regular expression")):
        refused = bench_command(monkeypatch, "--point", text)
        assert refused.exit_code == 2 and expected in " ".join(refused.output.split())
