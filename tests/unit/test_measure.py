"""Timing without a GPU: the clock and the ceilings are replaced, everything else runs for real on the CPU."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from codegen.check import check
from codegen.emit import entry, relative_path
from codegen.sweep import Instance, combinations
from dsl_kernels import executors, measured, ops, programs, registry, variants
from dsl_kernels._discover import module_names
from dsl_kernels.arch import GPUS, get_arch, gpu_row
from dsl_kernels.errors import (
    ExecutorUnavailableError,
    InvalidArgumentError,
    ToolchainError,
    UnknownNameError,
    WrongResultError,
)
from dsl_kernels.kernels.sparse_mla.forms import PAGED
from dsl_kernels_lab import oracles, steps
from dsl_kernels_lab.cli import bench as cli_bench
from dsl_kernels_lab.timing import bench, calibrate, grids, measure, report

GPU = "NVIDIA H200"


@functools.cache
def knobs_of(op: str, arch: str = "sm_90a") -> list[dict]:
    """The knobs of the committed set, by default on Hopper."""
    return list(combinations(programs.get(op), get_arch(arch), 0))


@functools.cache
def declared() -> list[tuple[str, dict]]:
    """The file and the manifest's record of each legal variant on Hopper."""
    arch, found = get_arch("sm_90a"), []
    for op in programs.names():
        program = programs.get(op)
        for knobs in knobs_of(op):
            if not check(program, knobs, arch):
                instance = Instance(program, "tilelang", arch, knobs, Path("none"))
                found.append((relative_path(instance), entry(instance, "")))
    return found


@pytest.fixture
def on_cpu(tmp_path, monkeypatch):
    """Calls run once through the interpreter; a call's "time" is its position in the order of timing."""
    records = [record for _, record in declared()]
    for file, _ in declared():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "manifest.json").write_text(json.dumps({"schema": variants.SCHEMA, "variants": records}))
    monkeypatch.setenv("DSL_KERNELS_GENERATED_DIR", str(tmp_path))
    monkeypatch.setenv("DSL_KERNELS_EXECUTOR", "interpreter")
    monkeypatch.setattr(measured, "TUNED", tmp_path / "tuned")
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
    # One method of fetching, timed once to choose it and once for the figure.
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
    # The step, its three parts, scoring with selection, and two methods of fetching for each ceiling.
    assert on_cpu.calls == [3, 3, 3, 3, 6, 3, 3, 3, 3]
    assert (
        figures["step"]["us"] == 1.0
        and figures["ceilings"]["gather"] == 7.0
        and figures["ceilings"]["read"] == 9.0
    )
    # The fifth time is of two ops per turn.
    assert figures["without_attention"] == 10.0 and figures["marginal"] == 1.0 - 10.0
    assert on_cpu.gathered == [(["ckv", "kpe"], 128)] * 6 + [(["pages"], 8)] * 6
    assert figures["baseline"] is None or "us" in figures["baseline"]


def test_a_prompt_is_timed_beside_its_two_kernels(on_cpu, monkeypatch):
    turns = []

    def paired(a, b, rounds):
        turns.append((len(a), len(b)))
        for call in (*a, *b):
            call()
        # Two calls of 3 us each against one of 4.
        return bench.Paired(4.0, 3.0, 0.75, 0.03, "differs", rounds)

    monkeypatch.setattr(bench, "paired", paired)
    size = steps.StepSize("prefill", rows=9, context=200, topk=64, heads=8, index_heads=32)
    figures = measure.time_prompt(steps.draw(size)[0])
    assert turns == [(1, 2)] and on_cpu.calls == [1, 1]
    assert (figures["scoring"], figures["selection"]) == (1.0, 2.0)
    assert (figures["together"], figures["apart"]) == (4.0, 6.0)
    assert figures["ratio"] == pytest.approx(4 / 6) and figures["noise"] == pytest.approx(0.03 / 1.5)
    with pytest.raises(InvalidArgumentError, match="a prefill step"):
        measure.time_prompt(steps.draw(steps.StepSize(context=64, topk=64, heads=8))[0])


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


@pytest.mark.parametrize("op", oracles.names())
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
        accepted = (
            all(guard.refuse(knobs, dims) is None for guard in program.guards)
            for arch in ("sm_90a", "sm_100a")
            for knobs in knobs_of(op, arch)
        )
        assert any(accepted), f"no variant of the committed set serves {point}"


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
    grids.Point("lightning_indexer", "decode_any",
                {"b": 2, "len": 192, "index_heads": 16, "index_dim": 64, "page_size": 32}),
    grids.Point("lightning_indexer", "decode_blocks",
                {"b": 2, "len": 192, "index_heads": 16, "index_dim": 64, "page_size": 32, "block_size": 8}),
    grids.Point("lightning_indexer", "prefill_any_bf16",
                {"s": 3, "skv": 130, "index_heads": 64, "index_dim": 32}),
    grids.Point("compress_rows", "default",
                {"rows": 3, "dim": 128, "ratio": 4, "width": 256, "page_size": 4, "sequence": "inside"}),
)  # fmt: skip
FEW = POINTS[2:5]
"""Three operations, the quickest to interpret."""
MAXIMA = grids.Point(
    "lightning_indexer",
    "decode_blocks",
    {"b": 3, "len": 72, "index_heads": 32, "index_dim": 32, "page_size": 64, "has_maxima": 1},
)


@pytest.mark.parametrize("point", (*POINTS, MAXIMA), ids=lambda point: f"{point.op}-{point.name}")
def test_a_case_gives_a_record_of_the_selected_variant(on_cpu, monkeypatch, point):
    monkeypatch.setattr(bench, "MAX_TURNS", 2)
    monkeypatch.setattr(bench, "turns", lambda touched: 2)
    fixture = grids.prepare(point)
    record = grids.time_point(point, fixture, baseline=False)
    selection = registry.select(grids.call_of(point, fixture))
    assert record["variant"] == selection.variant.id and record["us"] == 1.0
    assert record["gbps"] == pytest.approx(oracles.get(point.op).bytes(point.form, fixture.dims) / 1e3)
    assert [used.variant.id for used in steps.used()] == [selection.variant.id]
    if "ceiling_us" in record:
        assert record["ceiling_us"] == 3.0 and record["ratio"] == pytest.approx(1 / 3) and on_cpu.gathered
    assert ("ceiling_us" in record) == (
        not point.form.startswith("prefill") and point.op in module_names(grids.__path__)
    )
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
    selection = registry.select(call)
    assert (selection.variant.id, selection.rule) == (losing, "tuned table")
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


def bench_command(monkeypatch, *args, of=FEW):
    from typer.testing import CliRunner

    from dsl_kernels.cli import app

    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    monkeypatch.setattr(bench, "require_gpu", lambda: GPU)
    monkeypatch.setattr(grids, "points", lambda op, grid: [point for point in of if point.op == op])
    return CliRunner().invoke(app, ["bench", *args])


def test_the_bench_command_writes_records_and_the_tuned_table(on_cpu, monkeypatch, tmp_path):
    path = tmp_path / "rows.jsonl"
    result = bench_command(monkeypatch, "--tune", "--no-baseline", "--json", "--out", str(path))
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert len(report["records"]) == len(report["tuned"]) == len(FEW) == len(path.read_text().splitlines())
    assert {record["rule"] for record in report["records"]} == {"fastest of a sweep"}
    table = json.loads((tmp_path / "tuned" / "nvidia_h200.json").read_text())
    assert table["schema"] == measured.TUNED_SCHEMA and len(table["entries"]) == len(FEW)
    text = bench_command(monkeypatch, "topk_selector", "--no-baseline").stdout
    assert "topk_selector on NVIDIA H200" in text and "ceiling us" in text


def test_the_bench_command_survives_a_variant_that_cannot_be_loaded(on_cpu, monkeypatch):
    right = grids.prepare

    def broken(point, seed=0):
        if point.form == "fp8":
            raise ToolchainError("nvcc", expected="nvcc", got="none", fix="install it")
        return right(point, seed)

    monkeypatch.setattr(grids, "prepare", broken)
    result = bench_command(monkeypatch, "sparse_mla", "--no-baseline", "--json", of=POINTS)
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
    monkeypatch.setattr(
        bench, "paired", lambda a, b, rounds: bench.Paired(4.0, 3.0, 0.75, 0.0, "differs", rounds)
    )
    prompt = ["--queries", "", "--prompts", "9", "--contexts", "2100", "--heads", "8", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["decode_step.py", *prompt])
    assert module.main() == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 3 and table[2].endswith("| 6 | 4 | 0.667 | 0.000 | ok |")
    assert json.loads(out.read_text().splitlines()[-1])["rows"] == 9
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
    calls, out = measure.baseline_turns(given, 0.1, notes)
    assert len(calls) == 3 and out.shape == given[0]["q_nope"].shape
    del ran[:]
    calls[1]()
    assert ran == [("small", 2)]
    module.best_setting = None
    measure._settings.clear()
    assert measure.time_baseline(given, 0.1, notes) is None and "no Triton baseline" in notes[0]
    assert measure.baseline_turns(given, 0.1, notes) is None


def series(level: float, spread: float, count: int = 21) -> list[float]:
    return [level * (1 + spread * ((i * 7 % count) / count - 0.5)) for i in range(count)]


@pytest.mark.parametrize(
    ("b", "again", "verdict"),
    [
        (series(10.0, 0.01), series(10.0, 0.01), "within noise"),
        (series(10.5, 0.01), series(10.0, 0.01), "differs"),
        (series(9.5, 0.01), series(10.0, 0.01), "differs"),
        # Two captures of the same calls differ as much as the two that are compared.
        (series(10.5, 0.01), series(10.5, 0.01), "within noise"),
        (series(10.2, 0.2)[::-1], series(10.0, 0.2)[::-1], "within noise"),
    ],
)
def test_a_difference_counts_only_outside_the_noise(b, again, verdict):
    comparison = bench.compared(series(10.0, 0.01), b, again)
    assert comparison.verdict == verdict and comparison.rounds == 21
    assert comparison.to_dict()["ratio"] == pytest.approx(b[10] / 10.0, rel=0.12)


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
    comparison = bench.paired([print], [print], rounds=3)
    assert (comparison.a_us, comparison.b_us, comparison.ratio, comparison.verdict) == (
        10.0,
        15.0,
        1.5,
        "differs",
    )
    assert {tuple(order[i : i + 3]) for i in (0, 3, 6)} == {
        ("a first", "b", "a again"),
        ("b", "a again", "a first"),
        ("a again", "a first", "b"),
    }
    with pytest.raises(InvalidArgumentError, match="at least one call"):
        bench.paired([], [print])


def test_a_wrong_result_is_never_recorded(on_cpu, monkeypatch):
    """The check runs the variant: one that does not write its outputs is refused."""
    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    for point in POINTS:
        fixture = grids.prepare(point)
        assert grids.check_variant(point, fixture).ok
        right = fixture.calls
        fixture.calls = lambda variant, launch: [lambda: None]
        with pytest.raises(WrongResultError, match=point.op):
            grids.time_point(point, fixture, baseline=False)
        assert grids.time_point(point, fixture, baseline=False, check=False)["checked"] is False
        fixture.calls = right
    failed: list[str] = []
    point = POINTS[2]
    fixture = grids.prepare(point)
    selection = registry.select(grids.call_of(point, fixture)).variant.id
    every = fixture.calls
    fixture.calls = lambda variant, launch: [lambda: None] if variant == selection else every(variant, launch)
    entry = grids.tune_point(point, fixture, failed)
    assert selection not in entry["us"] and len(entry["us"]) > 1 and selection in failed[0]


def test_rows_of_a_prompt_and_of_dense_attention_are_checked_too(on_cpu, monkeypatch):
    """The forms that other cases omit: selection without a block table; inputs drawn for a workload."""
    from dsl_kernels_lab.timing.grids import topk_selector as grid

    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    monkeypatch.setattr(grid, "DECODE_ROWS", 2)
    dense = {"b": 1, "sq": 40, "skv": 40, "heads": 2, "kv_heads": 1, "dim": 128, "causal": 1}
    for point in (POINTS[2], grids.Point("gqa_forward", "bf16", dense)):
        fixture = grids.prepare(point)
        assert grids.check_variant(point, fixture).ok
        fixture.calls = lambda variant, launch: [lambda: None]
        with pytest.raises(WrongResultError):
            grids.check_variant(point, fixture)


def test_regret_compares_what_is_selected_with_the_fastest(on_cpu, monkeypatch):
    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    point = POINTS[2]
    fixture = grids.prepare(point)
    regret = grids.regret_point(point, fixture)
    chosen = registry.select(grids.call_of(point, fixture)).variant.id
    # A call's "time" is its position in the order of timing, so the first one timed is the fastest.
    names = [variant.id for variant in grids.runnable(point, fixture)]
    assert (regret["variant"], regret["us"]) == (chosen, names.index(chosen) + 1.0)
    assert regret["regret"]["best"] == names[0] and regret["regret"]["lost"] == names.index(chosen)
    assert regret["regret"]["variants"] == len(names)
    [summary] = report.regrets(
        [regret, {**regret, "point": "other", "regret": {**regret["regret"], "lost": 99.0}}]
    )
    assert (summary["points"], summary["worst"], summary["where"]) == (2, 99.0, "other")


def test_regret_of_a_choice_with_launch_dims_is_judged_by_their_time(on_cpu, monkeypatch):
    point = next(at for at in POINTS if at.op == "sparse_mla")
    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    fixture = grids.prepare(point)
    chosen = registry.select(grids.call_of(point, fixture))
    splits = chosen.launch["splits"]
    times = [({}, 5.0), ({"splits": splits}, 4.0), ({"splits": splits + 1}, 2.0)]
    monkeypatch.setattr(
        grids, "time_all", lambda *args: [grids.Timed(chosen.variant.id, launch, us) for launch, us in times]
    )
    regret = grids.regret_point(point, fixture)
    assert (regret["us"], regret["regret"]["lost"]) == (4.0, 1.0)


def test_the_regret_command_hides_this_cards_own_table(on_cpu, monkeypatch, tmp_path):
    """Tuned points are judged as on a card without a table, and are not recorded as results of this card."""

    def ranked(point, fixture, candidates, failed):
        return [grids.Timed(variant.id, {}, place + 1.0) for place, variant in enumerate(candidates)]

    monkeypatch.setattr(grids, "time_all", ranked)
    path = tmp_path / "rows.jsonl"
    args = ("topk_selector", "--regret", "--json", "--out", str(path))
    bench_command(monkeypatch, "topk_selector", "--tune", "--no-baseline")
    table = measured.TUNED / f"{measured.slug(GPU)}.json"
    before = table.read_bytes()
    assert json.loads(bench_command(monkeypatch, *args).stdout)["records"] == []
    hidden = json.loads(bench_command(monkeypatch, *args, "--sibling").stdout)
    assert hidden["records"] and not any(row["own"] for row in hidden["records"])
    assert all(row["rule"].startswith("cost model") for row in hidden["records"])
    # Under this name the table is a sibling's.
    table.rename(measured.TUNED / f"{measured.slug(GPUS['H100'].device)}.json")
    registry.clear()
    args = (*args[:-1], str(tmp_path / "other.jsonl"))
    plain = json.loads(bench_command(monkeypatch, *args).stdout)
    assert {row["rule"] for row in plain["records"]} == {"tuned table of the H100"}
    again = json.loads(bench_command(monkeypatch, *args, "--sibling").stdout)
    assert again["skipped"] == 0 and len(again["records"]) == len(plain["records"])
    assert not table.exists() and (measured.TUNED / "nvidia_h100_80gb_hbm3.json").read_bytes() == before
    refused = bench_command(monkeypatch, "topk_selector", "--sibling")
    assert refused.exit_code and "--regret" in refused.output


def test_the_regret_command_leaves_out_what_was_tuned(on_cpu, monkeypatch, tmp_path):
    everything = json.loads(bench_command(monkeypatch, "--regret", "--json").stdout)
    assert len(everything["records"]) == len(FEW) and {s["op"] for s in everything["regret"]} == {
        c.op for c in FEW
    }
    bench_command(monkeypatch, "topk_selector", "--tune", "--no-baseline")
    report = json.loads(bench_command(monkeypatch, "--regret", "--json").stdout)
    assert "topk_selector" not in {record["op"] for record in report["records"]}
    text = bench_command(monkeypatch, "sparse_mla", "--regret").stdout
    assert "mean %" in text and "worst at" in text


def test_points_of_the_record_file_are_skipped_and_a_limit_leaves_the_rest(on_cpu, monkeypatch, tmp_path):
    path = tmp_path / "rows.jsonl"
    args = ("--no-baseline", "--json", "--out", str(path))
    # Only in this module, as other threads of the process also read the time.
    monkeypatch.setattr(cli_bench, "time", SimpleNamespace(monotonic=iter(range(0, 10**6, 10)).__next__))
    first = json.loads(bench_command(monkeypatch, *args, "--limit", "15").stdout)
    assert len(first["records"]) == 1 and first["left_out"] == len(FEW) - 1
    # The process was killed while it wrote a line.
    path.write_text(path.read_text() + '{"op": "sparse')
    rest = json.loads(bench_command(monkeypatch, *args).stdout)
    assert rest["skipped"] == 1 and len(rest["records"]) == len(FEW) - 1 and rest["left_out"] == 0
    assert {row["point"] for row in bench.read_records(path)} == {point.name for point in FEW}
    nothing = json.loads(bench_command(monkeypatch, *args).stdout)
    assert nothing["skipped"] == len(FEW) and nothing["records"] == []
    # A different question about the same points, another commit, or --again.
    assert len(json.loads(bench_command(monkeypatch, *args, "--regret").stdout)["records"]) == len(FEW)
    assert len(json.loads(bench_command(monkeypatch, *args, "--again").stdout)["records"]) == len(FEW)
    monkeypatch.setattr(bench, "commit", lambda: "another")
    assert len(json.loads(bench_command(monkeypatch, *args).stdout)["records"]) == len(FEW)


def test_any_beginning_of_the_wide_grid_lies_all_over_it():
    points = [point for op in oracles.names() for point in grids.points(op, "wide")]
    order = grids.spread(points)
    assert sorted(map(repr, order)) == sorted(map(repr, points)) and len(points) > 500
    assert grids.spread(points) == order
    for count in (100, 300):
        begun = order[:count]
        for op in oracles.names():
            share = sum(point.op == op for point in points) / len(points)
            assert abs(sum(point.op == op for point in begun) / count - share) < 0.1
    assert {point.params["t"] for point in order[: len(order) // 3] if point.op == "sparse_mla"} >= {
        1,
        8,
        37,
        96,
        512,
    }


def test_the_wide_grid_holds_what_it_promises():
    mla, rows, scores = (
        grids.points(op, "wide") for op in ("sparse_mla", "topk_selector", "lightning_indexer")
    )
    sizes = {1, 2, 3, 8, 16, 24, 37, 48, 64, 96, 128, 200, 512}
    for form in ("bf16", "fp8"):
        sizes_of_form = {(c.params["t"], c.params["heads"]) for c in mla if c.form == form}
        assert {(t, heads) for t in sizes for heads in (8, 16, 32, 64, 128)} < sizes_of_form
        assert {(t, 128) for t in (1024, 2048, 4096, 8192)} < sizes_of_form
    assert {c.params["rows"] for c in rows} >= sizes and {c.params.get("scores") for c in rows} == {
        None,
        "tight",
        "ties",
    }
    lengths = {c.params["len"] for c in scores if c.form == "decode"}
    assert min(lengths) == 4096 and max(lengths) == 1 << 20
    assert {c.params.get("next_n", 1) for c in scores} == {*range(1, 9), 12, 16}
    assert {(c.params["s"], c.params["skv"]) for c in scores if c.form == "prefill"} >= {
        (s, n) for s in (1024, 8192) for n in (32768, 131072)
    }


def test_clocks_come_from_nvml_else_from_nvidia_smi_else_not_at_all(monkeypatch):
    assert bench.clocks() is None or set(bench.clocks()) == set(bench.CLOCKS)
    card = SimpleNamespace(uuid="1234")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    asked = []
    monkeypatch.setattr(bench, "_output", lambda *command: asked.append(command) or "1980, 3201, 512.25, 61")
    assert bench.clocks() == {"sm_mhz": 1980.0, "mem_mhz": 3201.0, "watts": 512.25, "celsius": 61.0}
    assert "GPU-1234" in asked[0]
    for answer in (None, "", "[N/A], 3201, 512, 61", "1, 2"):
        monkeypatch.setattr(bench, "_output", lambda *command, answer=answer: answer)
        assert bench.clocks() is None
    nvml = SimpleNamespace(
        NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0, nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-1234": "card"}[uuid],
        nvmlDeviceGetClockInfo=lambda gpu, kind: {1: 1755, 2: 3201}[kind],
        nvmlDeviceGetPowerUsage=lambda gpu: 698_500, nvmlDeviceGetTemperature=lambda gpu, kind: 66,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert bench.clocks() == {"sm_mhz": 1755.0, "mem_mhz": 3201.0, "watts": 698.5, "celsius": 66.0}
    card.uuid = "other"
    assert bench.clocks() is None


def test_a_long_call_is_timed_sustained_too(on_cpu, monkeypatch):
    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    asked = []
    monkeypatch.setattr(
        bench, "sustained", lambda calls: asked.append(len(calls)) or {"us": 400.0, "watts": 700.0}
    )
    fixture = grids.prepare(POINTS[2])
    assert grids.time_point(POINTS[2], fixture, baseline=False)["sustained"] is None
    monkeypatch.setattr(bench, "graph_time", lambda calls, replays=0: bench.Timing(350.0, 350.0, 350.0, 1, 1))
    record = grids.time_point(POINTS[2], fixture, baseline=False)
    assert record["sustained"] == {"us": 400.0, "watts": 700.0} and asked == [1]
    assert set(record["clocks"]) == {"before", "after"}


def test_a_sustained_run_fills_its_second(monkeypatch):
    """At 300 us per graph of two calls, 3334 replays fill the second; the clocks are read in its middle."""
    replays, order = [], []

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self, stream):
            order.append(len(replays))

        def synchronize(self):
            order.append("waited")

        def elapsed_time(self, end):
            return 1100.0

    class Stream:
        def synchronize(self):
            pass

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(bench, "_stream", lambda device: Stream())
    graph = SimpleNamespace(replay=lambda: replays.append(1))
    monkeypatch.setattr(bench, "_fitting_graph", lambda calls, stream: (graph, 2))
    monkeypatch.setattr(bench, "_replayed", lambda graph, stream, count: [300.0])
    monkeypatch.setattr(bench, "clocks", lambda: order.append("clocks") or {"watts": 690.0})
    sustained = bench.sustained([print, print])
    assert len(replays) == 3334 and order == [0, 1667, 3334, "waited", "clocks"]
    # Of two calls in each of 1667 replays; the first half of the replays lets the clocks settle.
    assert sustained == {"us": pytest.approx(1.1e6 / 3334), "seconds": 1.1, "watts": 690.0}


def test_attention_is_timed_within_a_step_on_demand(on_cpu, monkeypatch):
    from dsl_kernels_lab.timing.grids import sparse_mla as grid

    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    monkeypatch.setattr(grid, "STEP_CONTEXT", 200)
    plain = json.loads(bench_command(monkeypatch, "sparse_mla", "--no-baseline", "--json", of=POINTS).stdout)
    assert all("step" not in record for record in plain["records"])
    report = json.loads(
        bench_command(monkeypatch, "sparse_mla", "--no-baseline", "--json", "--step", of=POINTS).stdout
    )
    steps = {record["form"]: record["step"] for record in report["records"]}
    assert set(steps["bf16"]) == {"context", "step", "without_attention", "marginal"}
    assert steps["bf16"]["marginal"] == steps["bf16"]["step"] - steps["bf16"]["without_attention"]
    assert steps["fp8"] is None
    assert (
        "adds to a step us"
        in bench_command(monkeypatch, "sparse_mla", "--no-baseline", "--step", of=POINTS).stdout
    )


def test_bench_takes_only_the_points_that_match(on_cpu, monkeypatch):
    chosen = json.loads(
        bench_command(monkeypatch, "--no-baseline", "--json", "--point", "^fp8 .*heads=", of=POINTS).stdout
    )
    assert [row["form"] for row in chosen["records"]] == ["fp8"] * sum(
        point.form == "fp8" for point in POINTS
    )
    for text, expected in (("t=12345", "a form or sizes of the grid"), ("(", "a regular expression")):
        refused = bench_command(monkeypatch, "--point", text)
        assert refused.exit_code == 2 and expected in " ".join(refused.output.split())


def test_tuning_leaves_out_launches_that_a_variant_refuses(monkeypatch):
    """16 queries of 16 heads: by the rule 128 CTAs wait for one another, or half as many; 256 do not fit."""
    point = grids.Point("sparse_mla", "bf16", {"t": 16, "heads": 16, "pages": 64, "topk": 2048})
    dims = {"t": 16, "heads": 16, "topk": 2048, "n": 4096}
    call = registry.Call("sparse_mla", "bf16", "sm_90a", dims, gpu=GPU)
    monkeypatch.setattr(grids, "call_of", lambda point, fixture: call)
    monkeypatch.setattr(grids, "check_variant", lambda *given: None)
    monkeypatch.setattr(bench, "graph_time", lambda calls, replays: bench.Timing(1.0, 1.0, 1.0, 1, replays))
    variant = variants.get("sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st3_cl2_sl2")
    found = grids.time_variant(point, grids.Fixture(lambda variant, launch: [], dims, 0.0, {}), variant)
    assert [timed.launch for timed in found] == [{}, {"splits": 4}]


def test_what_reaches_the_power_limit_is_timed_with_settled_clocks(monkeypatch) -> None:
    """100 us of an H200's products at its peak: in 250 us they may slow the clock, in 400 us they do not."""
    dims = {"b": 1, "sq": 4096, "skv": 4096, "heads": 16, "kv_heads": 8, "dim": 128, "causal": 0}
    call = registry.Call("gqa_forward", "bf16", "sm_90a", dims, gpu=GPU)
    monkeypatch.setattr(grids, "call_of", lambda point, fixture: call)
    monkeypatch.setattr(grids, "check_variant", lambda *given: None)
    monkeypatch.setattr(bench, "sustained", lambda calls, seconds: {"us": 280.0})
    flops = {"bfloat16": call.row.tensor_tflops["bfloat16"] * 1e8}
    fixture = grids.Fixture(lambda variant, launch: [print], dims, 0.0, flops)
    variant = variants.get("gqa_forward__cutedsl_sm90a__bf16_d128_n80_st2_o0_c2_w3_z2")
    for us, wanted in ((250.0, 280.0), (400.0, 400.0)):
        timing = bench.Timing(us, us, us, 1, 15)
        monkeypatch.setattr(bench, "graph_time", lambda calls, replays, timing=timing: timing)
        (timed,) = grids.time_variant(grids.Point("gqa_forward", "bf16", dims), fixture, variant)
        assert timed.us == wanted


@pytest.mark.parametrize("form", oracles.get("sparse_mla").forms)
def test_every_form_of_attention_is_drawn_and_compared(form, monkeypatch):
    """The inputs of a point, without a GPU, and the reference on the operands that a check would compare."""
    monkeypatch.setattr(measure, "DEVICE", "cpu")
    monkeypatch.setattr(bench, "turns", lambda *_, **__: 1)
    params = {"t": 2, "heads": 4, "pages": 4, "topk": 64, **({"extra_topk": 64} if form in PAGED else {})}
    fixture = grids.prepare(grids.Point("sparse_mla", form, params))
    given = fixture.sample().given
    assert oracles.get("sparse_mla").reference(form, given)["out"].isfinite().all()
    assert fixture.bytes > 0
