"""The search without a GPU: real sweeps and rendering, the interpreter for correctness, a fake clock."""

from __future__ import annotations

import json
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dsl_kernels import env, executors, measured, ops, registry, variants
from dsl_kernels.arch import gpu_row
from dsl_kernels.cli import app
from dsl_kernels.cli._output import sizes_of
from dsl_kernels.errors import (
    CompileError,
    InvalidArgumentError,
    LaunchError,
    ToolchainError,
    UnknownNameError,
)
from dsl_kernels.runtime import pool, store
from dsl_kernels_lab.cli.tune import seconds_of
from dsl_kernels_lab.timing import bench, grids, measure, search

GPU = "NVIDIA H200"
POINT = grids.Point("topk_selector", "default", {"rows": 2, "len": 300, "k": 64})
DIMS = "rows=2,len=300,k=64"


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A fake GPU whose times are those that `us` has for a variant, and a compiler that always succeeds."""
    monkeypatch.setenv("DSL_KERNELS_TUNED_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("DSL_KERNELS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DSL_KERNELS_EXECUTOR", "interpreter")
    monkeypatch.setattr(measured, "TUNED", tmp_path / "tuned")
    monkeypatch.setattr(measure, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(executors, "gpu_at_hand", lambda index: gpu_row("sm_90a", GPU))
    monkeypatch.setattr(bench, "require_gpu", lambda: GPU)
    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    monkeypatch.setattr(variants, "_lent", {})
    monkeypatch.setattr(search, "TIERS", ("tiny",))
    # The interpreter is slow; correctness has tests of its own.
    state = SimpleNamespace(timed=[], compiled=[], us={}, checked=[], broken=set())
    monkeypatch.setattr(search, "verify", lambda variant: state.checked.append(variant.id))
    monkeypatch.setattr(grids, "check_variant", lambda *args: None)

    def clock(calls, replays=bench.REPLAYS):
        name = calls[0].keywords["variant"]
        state.timed.append(name)
        us = state.us.get(name, 10.0)
        return bench.Timing(us, us, us, 1, replays)

    def compile_all(modules, jobs=None, timeout=None):
        for module in modules:
            state.compiled.append(module.id)
            error = CompileError(module.id, expected="a compile", got="none", fix="see it")
            failed = error if module.id in state.broken else None
            yield pool.Outcome(module.id, 0.1, cached=False, error=failed)

    monkeypatch.setattr(bench, "graph_time", clock)
    monkeypatch.setattr(pool, "compile_all", compile_all)
    monkeypatch.setattr(store, "outside_bundle", lambda chosen: list(chosen))
    monkeypatch.setattr(store, "lookup", lambda variant: tmp_path)
    clear()
    yield state
    clear()


def clear() -> None:
    ops.clear()
    search._rendered.cache_clear()
    measured._read.cache_clear()
    measured.warn_once.cache_clear()


def call() -> registry.Call:
    dims = {
        "rows": 2, "stride": 300, "b": 2, "max_pages": 5, "k": 64, "next_n": 1, "page_size": 64,
    }  # fmt: skip
    return registry.Call("topk_selector", "default", "sm_90a", dims, GPU)


def committed() -> list[str]:
    return [v.id for v in variants.variants("topk_selector") if registry.refusal(call(), v) is None]


def tune(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["tune", "topk_selector", "--json", *args])
    assert result.exit_code == code, result.output
    clear()
    return json.loads(result.stdout)


def test_the_sweep_holds_the_generated_set_and_more() -> None:
    names = {variant.id for variant in search.swept(call(), 2)}
    assert set(committed()) < names
    # A sweep does not yet know which schedules a DSL cannot spell.
    assert {variant.id for variant in search.swept(call(), 0)} >= set(committed())
    assert {variant.id for variant in search.candidates(call(), 0)} == set(committed())
    assert all("sm90a" in name for name in names)


def test_a_swept_winner_is_rendered_recorded_and_selected(machine) -> None:
    """From end to end: render, record the winner in the user's folder, and select it."""
    serve = search.candidates(call(), 1)
    swept = sorted({v.id for v in serve} - set(committed()))
    machine.us = {swept[0]: 2.0, committed()[0]: 5.0}
    report = tune("--dim", DIMS, "--level", "1", "--budget", "1h")
    [row] = report["points"]
    assert (row["variant"], row["us"]) == (swept[0], 2.0) and report["failed"] == []
    assert row["timed"] == row["candidates"] == len({*swept, *committed()})
    # Only variants that the generated set lacks are verified; the others were, when they were committed.
    assert set(machine.checked) == set(swept)
    selection = registry.select(call())
    assert selection.variant.id == swept[0] and selection.rule == "user's tuned table"
    module = selection.variant.path
    assert module.is_relative_to(env.tuned_root() / measured.MODULES) and swept[0] in module.read_text()
    table = json.loads((env.tuned_root() / "nvidia_h200.json").read_text())
    assert set(table["entries"][0]["us"]) == {swept[0], *committed()}


def test_committed_variants_come_first_and_are_timed_whatever_the_budget(machine, monkeypatch) -> None:
    monkeypatch.setattr(search.time, "monotonic", iter(range(0, 10**6, 60)).__next__)
    report = tune("--dim", DIMS, "--level", "1", "--budget", "1s")
    assert set(machine.timed) == set(committed()) and report["points"][0]["timed"] == len(committed())


def test_a_search_goes_on_where_it_stopped(machine) -> None:
    first = tune("--dim", DIMS, "--level", "0")
    machine.timed.clear()
    again = tune("--dim", DIMS, "--level", "0")
    # Only the finalists are timed again, as they are compared within one run.
    assert len(machine.timed) <= search.FINALISTS + 1
    assert again["points"][0]["us"] == first["points"][0]["us"]
    machine.timed.clear()
    tune("--dim", DIMS, "--level", "0", "--fresh")
    assert len(machine.timed) >= len(committed()) > search.FINALISTS + 1


def test_a_torn_journal_and_a_variant_that_never_came_back(machine) -> None:
    tune("--dim", DIMS, "--level", "0")
    path = search.journal_path(env.tuned_root(), GPU)
    lines = path.read_text().splitlines()
    hung = json.loads(lines[0])["variant"]
    kept = [line for line in lines if json.loads(line)["variant"] != hung]
    # The process ended after it had begun; the last line was cut short.
    path.write_text("\n".join([lines[0], *kept, '{"op": "topk_sel']))
    machine.timed.clear()
    report = tune("--dim", DIMS, "--level", "0")
    assert hung not in machine.timed and "did not come back" in report["failed"][0]
    assert all(json.loads(line) for line in path.read_text().splitlines() if not line.endswith("topk_sel"))


def test_an_interrupted_search_blames_no_variant(machine, monkeypatch) -> None:
    journal = search.Journal(search.journal_path(env.tuned_root(), GPU))
    running = search.Search(POINT, grids.prepare(POINT), journal, 0.0)

    def interrupted(calls, replays=0):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "graph_time", interrupted)
    with pytest.raises(KeyboardInterrupt):
        running.run(search.candidates(call(), 0))
    assert search.Journal(journal.path).rows == {}


def test_a_wrong_variant_is_never_recorded(machine, monkeypatch) -> None:
    """Outputs are compared with the reference before any time is taken."""
    wrong = committed()[0]
    right = grids.check_variant

    def check(point, fixture, variant=None, launch=None):
        if variant == wrong:
            raise search.WrongResultError(variant, expected="the reference", got="other", fix="report it")
        return right(point, fixture, variant, launch)

    monkeypatch.setattr(grids, "check_variant", check)
    machine.us[wrong] = 0.1
    report = tune("--dim", DIMS, "--level", "0")
    assert wrong not in machine.timed and report["points"][0]["variant"] != wrong
    assert wrong in report["failed"][0]
    table = json.loads((env.tuned_root() / "nvidia_h200.json").read_text())
    assert wrong not in table["entries"][0]["us"]
    # A wrong variant is not tried again.
    assert "WRONG_RESULT" not in str(tune("--dim", DIMS, "--level", "0")["points"])


def test_a_variant_that_does_not_compile_costs_itself_alone(machine) -> None:
    machine.broken = {committed()[0]}
    report = tune("--dim", DIMS, "--level", "0")
    assert committed()[0] in report["failed"][0] and report["points"][0]["timed"] == len(committed()) - 1


def test_points_of_earlier_runs_stay_in_the_table(machine) -> None:
    tune("--dim", DIMS, "--level", "0")
    report = tune("--dim", "rows=2/3,len=200,k=64", "--level", "0")
    assert len(report["points"]) == 2
    entries = json.loads((env.tuned_root() / "nvidia_h200.json").read_text())["entries"]
    assert sorted(e["bucket"]["rows"] for e in entries) == [2, 2, 3]


def test_a_damaged_table_is_replaced(machine, caplog) -> None:
    env.tuned_root().mkdir(parents=True)
    (env.tuned_root() / "nvidia_h200.json").write_text("{")
    with caplog.at_level(logging.WARNING, "dsl_kernels"):
        tune("--dim", DIMS, "--level", "0")
    assert "ignoring the tuned table" in caplog.text
    assert registry.select(call()).rule == "user's tuned table"


def test_next_are_the_models_best_and_neighbours_of_the_fastest(machine) -> None:
    known = {v.id: v for v in search.swept(call(), 1)}
    fastest = known[committed()[0]]
    waiting = [v for v in known.values() if v.id not in committed()]
    running = search.Search(POINT, grids.prepare(POINT), search.Journal(env.tuned_root() / "j"), 0.0, jobs=3)
    running.times = [search.Timed(fastest.id, {}, 1.0)]
    chosen = running._next(waiting, known)
    assert len(chosen) == 6 and waiting[0] in chosen
    assert any(search._knobs_apart(v, fastest) == 1 for v in chosen)
    assert [v.id for v in running._next([], known)] == []


def test_a_kernel_that_hangs_ends_the_process_and_says_what_to_do(monkeypatch, caplog) -> None:
    ended = threading.Event()
    codes: list[int] = []
    monkeypatch.setattr(search.os, "_exit", lambda code: codes.append(code) or ended.set())
    monkeypatch.setattr(search, "HUNG_SECONDS", 0.05)
    variant = variants.variants("topk_selector")[0]
    with caplog.at_level(logging.ERROR, "dsl_kernels_lab"), search._watched(variant):
        assert ended.wait(10)
    assert (
        codes == [search.HUNG_STATUS]
        and variant.id in caplog.text
        and "run the same command again" in caplog.text
    )
    with search._watched(variant):
        pass
    assert not [
        t for t in threading.enumerate() if isinstance(t, threading.Timer) and not t.finished.is_set()
    ]


def test_a_destroyed_context_ends_the_search(machine, monkeypatch) -> None:
    """After an illegal access everything fails, which must not be blamed on the next variants."""

    def gone() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(measure, "DEVICE", "cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", gone)
    with pytest.raises(LaunchError, match="run the same command again"):
        search._require_context(variants.variants("topk_selector")[0], RuntimeError("launch failed"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    search._require_context(variants.variants("topk_selector")[0], RuntimeError("launch failed"))


def test_without_the_generator_only_the_generated_set_can_be_searched(machine, monkeypatch) -> None:
    monkeypatch.setattr(bench, "checkout", lambda: None)
    with pytest.raises(ToolchainError, match="--level 0"):
        search.candidates(call(), 2)
    assert {v.id for v in search.candidates(call(), 0)} == set(committed())


def test_a_wrong_kernel_fails_its_check(machine, monkeypatch) -> None:
    """`verify` runs the small workloads: a launcher that does not write its outputs is caught."""
    monkeypatch.undo()
    monkeypatch.setenv("DSL_KERNELS_EXECUTOR", "interpreter")
    monkeypatch.setattr(measure, "DEVICE", "cpu")
    monkeypatch.setattr(search, "TIERS", ("tiny",))
    variant = next(v for v in variants.variants("topk_selector", arch="sm_90a") if "g1_t512" in v.id)
    search.verify(variant)
    lazy = SimpleNamespace(prepare=lambda *_: lambda operands, dims, stream=0: None)
    monkeypatch.setattr(search.executors, "get", lambda name: lazy)
    with pytest.raises(search.WrongResultError, match=variant.id):
        search.verify(variant)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("120s", 120), ("10m", 600), ("1h", 3600), ("0.5m", 30)]
)
def test_budgets(text, seconds) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5", "2 days", "1e3", "9" * 400])
def test_a_budget_that_is_no_time_is_refused(text) -> None:
    with pytest.raises(InvalidArgumentError, match="--budget"):
        seconds_of(text)


def test_sizes_name_points() -> None:
    assert sizes_of(["t=1/4,heads=16", "ids=holes"]) == {"t": [1, 4], "heads": [16], "ids": ["holes"]}
    for wrong in ("t", "t=", "=1", "t=1//2", "t=-1", "t=1.5"):
        with pytest.raises(InvalidArgumentError, match="name=integer"):
            sizes_of([wrong])
    points = search.named_points("sparse_mla", None, {"t": [1, 37], "heads": [16]})
    assert [point.params for point in points] == [{"t": t, "heads": 16, "pages": 4096} for t in (1, 37)]
    assert search.named_points("lightning_indexer", None, {"skv": [4096]})[0].form == "prefill"
    [by_dim] = search.named_points("topk_selector", None, {"rows": [2], "stride": [4096]})
    assert by_dim == search.named_points("topk_selector", None, {"rows": [2], "len": [4096]})[0]
    with pytest.raises(UnknownNameError, match="'rows'"):
        search.named_points("sparse_mla", "bf16", {"rows": [1]})


def test_tune_says_what_it_needs() -> None:
    for args, message in (
        ([], "--grid core"),
        (["--dim", "rows=1", "--grid", "core"], "both"),
        (["--grid", "core", "--point", "rows=12345"], "--point"),
        (["--grid", "core", "--budget", "soon"], "--budget"),
    ):
        result = CliRunner().invoke(app, ["tune", "topk_selector", *args])
        assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output
