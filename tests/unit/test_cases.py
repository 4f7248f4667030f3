"""Cases and claims without a GPU: discovery, references, readers, records, verdicts and pictures."""

from __future__ import annotations

import json
import shlex
import struct
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_docs import script
from typer.testing import CliRunner

from dsl_kernels import cli
from dsl_kernels.errors import ArtifactError, ToolchainError, UnknownNameError
from dsl_kernels.problems.base import Comparison
from dsl_kernels_lab import cases
from dsl_kernels_lab.cases import (
    _counters,
    _gather,
    base,
    claims,
    dense_sparse,
    gather_occupancy,
    gqa_regions,
    reduction,
    transfers,
    triton_attention,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "cases"
draw_cases = script("draw_cases")


@pytest.fixture(scope="module")
def records():
    return claims.records_in(FOLDER)


def command(*arguments: str):
    return CliRunner().invoke(cli.app, list(arguments))


# Discovery


def test_every_module_is_a_case_of_its_name():
    assert {"gather_occupancy", "reduction", "transfers", "triton_attention", "dense_sparse"} <= set(
        cases.names()
    )
    for name in cases.names():
        case = cases.get(name)
        assert case.name == name and case.question.endswith("?") and case.source in claims.SOURCES


def test_an_unknown_case_and_an_unknown_launch_list_the_near_ones():
    with pytest.raises(UnknownNameError, match="reduction"):
        cases.get("reducton")
    with pytest.raises(UnknownNameError, match="v1_4Mi"):
        cases.get("reduction").launch("v1_4M")
    with pytest.raises(UnknownNameError, match="no kernel to profile"):
        cases.get("transfers").launch("x")


@pytest.mark.parametrize("name", cases.names())
def test_expectations_name_launches_and_counters_that_are_read(name):
    case = cases.get(name)
    for expectation in case.expected:
        assert expectation.launch in case.launches and expectation.relation in ("<", ">=", "in")
        assert expectation.metric == "dominant_stall" or expectation.metric in _counters.metrics()
        assert (expectation.relation == "in") == isinstance(expectation.wanted, tuple)


# Check before time


def comparison(error: float) -> Comparison:
    result = Comparison()
    result.require("error", error, 1.0)
    return result


def test_a_wrong_result_is_not_timed():
    to, timed = base.CaseRows(), []
    row = to.row("wrong", lambda: timed.append(1) or {"us": 1.0}, partial(comparison, 2.0))
    assert not timed and row["ok"] is False and "exceeds" in row["failures"][0] and "us" not in row


def test_the_check_comes_before_the_time_and_its_figures_are_kept():
    order = []
    row = base.CaseRows().row(
        "right", lambda: order.append("time") or {"us": 1.0}, lambda: order.append("check") or comparison(0.5)
    )
    assert order == ["check", "time"] and row == {
        "name": "right",
        "ok": True,
        "checks": {"error": 0.5},
        "us": 1.0,
    }


def test_what_leaves_work_out_is_timed_and_stays_marked_as_wrong():
    row = base.CaseRows().row("less", lambda: {"us": 1.0}, partial(comparison, 2.0), measurement_only=True)
    assert row["us"] == 1.0 and row["ok"] is False and row["failures"]


def test_a_result_that_is_off_by_nan_leaves_a_record_that_can_be_written(tmp_path):
    to = base.CaseRows()
    to.row("less", lambda: {"us": 1.0}, partial(comparison, float("nan")), measurement_only=True)
    to.row("more", lambda: {"us": 1.0}, partial(comparison, float("inf")), measurement_only=True)
    base.write({"schema": base.SCHEMA, "rows": to.rows}, tmp_path / "x.json")
    rows = base.read(tmp_path / "x.json")["rows"]
    assert [(row["ok"], row["checks"]) for row in rows] == [(False, {"error": None})] * 2


def test_a_row_that_raises_is_kept_and_the_next_one_is_measured():
    to = base.CaseRows()
    to.row("bad", lambda: {"us": 1 / 0}, kind="a")
    to.row("good", lambda: {"us": 2.0}, kind="a")
    assert "ZeroDivisionError" in to.rows[0]["error"]
    assert [row["name"] for row in base.rows_of({"rows": to.rows}, "a")] == ["good"]


def test_no_row_starts_after_the_time_of_a_case_is_over():
    row = base.CaseRows(budget=0.0).row("late", lambda: {"us": 1.0})
    assert "time of the case" in row["error"] and "us" not in row


def test_a_record_is_read_back_and_another_schema_is_refused(tmp_path):
    record = {"schema": base.SCHEMA, "case": "x", "rows": [{"us": 1.0}]}
    base.write(record, tmp_path / "x.json")
    assert base.read(tmp_path / "x.json") == record
    base.write({**record, "schema": 99}, tmp_path / "x.json")
    with pytest.raises(ArtifactError, match="schema 99"):
        base.read(tmp_path / "x.json")
    with pytest.raises(ArtifactError, match="measure it again"):
        base.read(tmp_path / "none.json")


# References and readers


def test_word_sums_wrap_like_unsigned_words():
    cache = torch.full((2, 576), -1, dtype=torch.int16)
    cache[1] = torch.arange(576, dtype=torch.int16)
    words = struct.unpack("<288I", cache[1].numpy().tobytes())
    got = _gather.word_sums(cache, torch.tensor([0, 1, 0], dtype=torch.int32)).tolist()
    assert [value % 2**32 for value in got] == [288 * 0xFFFFFFFF % 2**32, sum(words) % 2**32] + [
        288 * 0xFFFFFFFF % 2**32
    ]


@pytest.mark.parametrize("order", gather_occupancy.ORDERS)
def test_selected_rows_are_distinct_and_in_their_order(order):
    ids = gather_occupancy.select(2, 2, 4096, order, torch.Generator().manual_seed(0))
    assert ids.shape == (2, 2048) and ids.max() < 2 * 4096
    for row in ids:
        assert len(row.unique()) == 2048
        rising = bool((row.diff() > 0).all())
        within = row.diff()[(row // 64).diff() == 0]
        assert rising == (order == "page")
        assert order == "random" or bool((within > 0).all())
    other = gather_occupancy.select(2, 2, 4096, "random", torch.Generator().manual_seed(0))
    assert order == "random" or [set(r.tolist()) for r in ids] == [set(r.tolist()) for r in other]


def test_settings_fit_an_sm_and_reach_the_same_bytes_with_few_and_many_warps():
    settings = _gather.settings()
    assert all(one.blocks_per_sm * one.warps_per_block == one.warps for one in settings)
    assert all(one.shared * one.blocks_per_sm <= 227 << 10 for one in settings)
    names = {(one.engine, one.warps, one.depth) for one in settings}
    assert {("bulk", 8, 8), ("bulk", 32, 2), ("loads", 8, 1), ("loads", 32, 1), ("loads", 8, 4)} <= names
    few, many = (_gather.Setting("bulk", w, d) for w, d in ((8, 8), (32, 2)))
    assert few.in_flight == many.in_flight


def test_the_attention_reference_is_causal_attention():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 3, 40, 16, generator=generator).half() for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=True
    )
    got = triton_attention.reference(q, k, v, [0, 2])
    assert torch.allclose(got, expected[:, [0, 2]])
    assert triton_attention.compare(expected.half(), got, [0, 2]).ok
    assert not triton_attention.compare(expected.half() * 1.01, got, [0, 2]).ok


def test_a_reduction_that_is_off_by_one_fails_its_check():
    total = torch.zeros(1)
    assert reduction.checked(lambda: total.add_(5.0), total, 5.0).ok
    assert not reduction.checked(lambda: total.add_(6.0), total, 5.0).ok


def test_a_trace_is_reduced_to_copies_kernels_and_the_calls_around_them():
    def event(cat, name, ts, dur, **args):
        return {"cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}

    trace = [
        event("user_annotation", "turn 0", 0, 100),
        event("user_annotation", "turn 1", 100, 100),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 110, 30, bytes=64),
        event("kernel", "add", 150, 5),
        event("cuda_runtime", "cudaMemcpyAsync", 10, 80),
        event("cuda_runtime", "cudaGetDevice", 10, 1),
        event("cpu_op", "aten::copy_", 10, 1),
        {"ph": "M", "name": "process_name"},
    ]
    events = transfers.read_trace(trace)
    assert [(e["what"], e["turn"]) for e in events] == [("host call", 0), ("copy", 1), ("kernel", 1)]
    assert events[1]["bytes"] == 64


def line(*cells: object) -> str:
    return ",".join(f'"{cell}"' for cell in cells)


REPORT = "\n".join(
    [
        "==PROF== Connected",
        line(
            "ID",
            "Kernel Name",
            "gpu__time_duration.sum",
            "dram__bytes_read.sum",
            "launch__registers_per_thread",
        ),
        line("", "", "ns", "byte", "register/thread"),
        line(0, "case_marker()", "900", "0", "16"),
        line(1, "reduce_v1(const float *)", "1,234,500", "16,777,216", "12"),
        line(2, "case_marker()", "900", "0", "16"),
        line(3, "small", "10", "1", "8"),
        line(4, "void flash_fwd_kernel<Traits<128>>(Params)", "2000", "n/a", "184"),
        line(5, "case_marker()", "900", "0", "16"),
    ]
)


def test_a_report_is_split_by_its_markers_and_the_longest_kernel_counts():
    launches = dict(_counters.by_launch(REPORT, ["first", "second", "third"]))
    assert list(launches) == ["first", "second"]
    assert launches["first"]["metrics"]["gpu__time_duration.sum"] == 1234500.0
    assert launches["first"]["kernel"] == "reduce_v1"
    assert launches["second"]["kernel"].endswith("flash_fwd_kernel")
    assert launches["second"]["metrics"] == {
        "gpu__time_duration.sum": 2000.0,
        "launch__registers_per_thread": 184.0,
    }
    assert dict(_counters.by_launch("==ERROR== no", ["first"])) == {}


def test_without_ncu_and_without_counters_a_record_says_so(monkeypatch, tmp_path):
    case = cases.get("reduction")
    record = {"counters": {}, "notes": [], "expected": []}
    monkeypatch.setattr(_counters.shutil, "which", lambda name: None)
    monkeypatch.setattr(_counters.glob, "glob", lambda pattern: [])
    _counters.add(record, case)
    assert "Nsight Compute" in record["notes"][0]
    assert len(record["expected"]) == len(case.expected) and {e["holds"] for e in record["expected"]} == {
        None
    }
    refusing = tmp_path / "ncu"
    refusing.write_text(
        '#!/bin/sh\nwhile [ "$1" != --log-file ]; do shift; done\n'
        'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission" > "$2"\n'
    )
    refusing.chmod(0o755)
    monkeypatch.setattr(_counters, "ncu", lambda: str(refusing))
    with pytest.raises(ToolchainError, match="ERR_NVGPUCTRPERM"):
        _counters.collect(case)


def test_counters_take_only_what_the_case_left(monkeypatch):
    case = cases.get("reduction")
    record = {"counters": {}, "notes": [], "expected": []}
    monkeypatch.setattr(_counters, "collect", lambda *_, **__: pytest.fail("asked for with no time left"))
    _counters.add(record, case, timeout=_counters.LEAST_SECONDS - 1)
    assert "--full" in record["notes"][0]
    assert base.budget_of(None, False) == 60 < base.budget_of(None, True) and base.budget_of(5, True) == 5


def test_a_case_measures_fewer_sizes_unless_all_are_asked_for(monkeypatch):
    seen = []
    monkeypatch.setattr(dense_sparse, "measure_point", lambda to, t, length: seen.append((t, length)))
    monkeypatch.setattr("torch.empty", lambda *_, **__: [])
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr(base.CaseRows, "row", lambda *_, **__: {})
    for full, count in ((False, 4), (True, 15)):
        seen.clear()
        dense_sparse.measure_all(base.CaseRows(full=full))
        assert len(set(seen)) == len(seen) == count and {(1, 131072), (1, 4096)} <= set(seen)
    seen.clear()
    dense_sparse.measure_all(base.CaseRows(budget=-1))
    assert not seen


def test_stall_shares_add_up_and_the_dominant_one_is_a_wait():
    def metric(reason: str) -> str:
        return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"

    metrics = {metric("selected"): 5.0, metric("long_scoreboard"): 3.0, metric("wait"): 2.0, "other": 9.0}
    assert base.stall_shares(metrics) == {"selected": 0.5, "long_scoreboard": 0.3, "wait": 0.2}
    assert base.dominant_stall(metrics) == "long_scoreboard" and base.dominant_stall({}) is None


def test_expectations_are_judged_on_what_was_read():
    case = cases.get("reduction")
    verdict = base.judged(
        case, {"v1_4Mi": {"metrics": {reduction.DRAM: 0.5}}, "v4_64Mi": {"metrics": {reduction.DRAM: 9.0}}}
    )
    by = {(e["launch"], e["metric"]): e["holds"] for e in verdict}
    assert by["v1_4Mi", reduction.DRAM] is True and by["v4_64Mi", reduction.DRAM] is False
    assert by["v4_64Mi", "dominant_stall"] is None


def test_tiles_and_their_products_are_counted():
    knobs = {"groups": 2, "tile": 128, "dim": 128, "cluster": 1}
    dims = {"b": 4, "sq": 4096, "skv": 4096, "heads": 64, "ctas": 132}
    assert gqa_regions.floor(knobs) == 4 * 512
    # 32 blocks of 128 rows for each of 256 heads, 32 tiles each.
    assert gqa_regions.tiles(knobs, dims) == 32 * 256 * 32 / 132
    assert (
        gqa_regions.tiles({**knobs, "groups": 1, "cluster": 2}, {**dims, "ctas": 66}) == 64 * 256 * 32 / 132
    )


@pytest.mark.parametrize(
    ("softmax", "without", "pacing"), [(1500, 2100, "products"), (2200, 2100, "softmax")]
)
def test_the_part_that_takes_most_alone_paces_a_loop(softmax, without, pacing):
    loop = {"start": 10, "wait k": 200, "multiply qk": 300, "release k": 100, "online_softmax": softmax - 10}
    loop["all"] = sum(loop.values())
    counted = {"128x128": {"attend": loop}, "128x128 no softmax": {"attend": {"all": without}}}
    assert gqa_regions.own_work(counted["128x128"]) == softmax
    assert gqa_regions.notes(counted) == [gqa_regions.pace(counted, "128x128")]
    assert f"is paced by the {pacing}: {softmax + 600} cycles" in gqa_regions.pace(counted, "128x128")


def test_products_of_a_timeline_follow_each_other_and_take_what_they_must():
    lines = [
        {
            "name": "a",
            "spans": [["multiply qk", 0.0, 0.1], ["multiply pv", 0.1, 0.2], ["release k", 0.2, 0.9]],
        },
        {"name": "b", "spans": [["wait k", 0.0, 2.0], ["multiply qk", 2.0, 2.5]]},
    ]
    row = gqa_regions.busy({"name": "128x128", "lines": lines, "cycles_per_ns": 0.512})
    assert [(name, round(begin, 6), round(end, 6)) for name, begin, end in row.spans] == [
        ("product qk", 0.0, 1.0),
        ("product pv", 1.0, 2.0),
        ("product qk", 2.0, 3.0),
    ]


def test_what_follows_from_the_recorded_cycles_of_attention_is_what_is_recorded(records):
    record = records["gqa_regions"]
    counted = gqa_regions.spent_of(record)
    assert counted.keys() == gqa_regions.SCHEDULES.keys()
    kept = [row for row in record["rows"] if row["kind"] in ("region", "product")]
    assert kept == gqa_regions.derived(counted)
    assert record["notes"] == gqa_regions.notes(counted)
    assert {row["source"] for row in kept} == {"measured", "derived"}
    for roles in counted.values():
        for spent in roles.values():
            regions = sum(ticks for region, ticks in spent.items() if region != "all")
            assert regions == pytest.approx(spent["all"], rel=0.01)


# Claims


def test_there_are_claims_of_every_source_with_commands_that_exist():
    assert len(claims.CLAIMS) >= 30 and {one.source for one in claims.CLAIMS} == set(claims.SOURCES)
    assert len({one.name for one in claims.CLAIMS}) == len(claims.CLAIMS)
    for one in claims.CLAIMS:
        words = shlex.split(one.command.removeprefix("python -m dsl_kernels "))
        assert one.statement.endswith(".")
        if words[:2] == ["case", "run"]:
            assert words[2:] == [one.case] and one.case in cases.names()
        else:
            assert words == ["case", "claims", "--only", one.name]


def leaves(figures, path=()):
    """Paths to the numbers, strings and booleans of figures."""
    if isinstance(figures, (dict, list, tuple)):
        items = figures.items() if isinstance(figures, dict) else enumerate(figures)
        return [leaf for key, value in items for leaf in leaves(value, (*path, key))]
    return [path]


def changed(figures, paths, change):
    """A copy of the figures with a change at some paths."""

    def walk(held, path):
        if isinstance(held, dict):
            return {key: walk(value, (*path, key)) for key, value in held.items()}
        if isinstance(held, (list, tuple)):
            return type(held)(walk(value, (*path, i)) for i, value in enumerate(held))
        return change(held) if path in paths else held

    return walk(figures, ())


# A string that is in the record of another kernel or comparison.
OTHER_WORD = "differs, flash_fwd"
FACTORS = (0.0, *(1.005**power for power in range(-9, 10)), *(1.04**power for power in range(-120, 121)))


def times_by(factor):
    def change(value):
        if isinstance(value, bool):
            return not value
        if isinstance(value, str):
            return OTHER_WORD
        return type(value)(value * factor if value else factor)

    return change


def verdicts(one, figures):
    """The verdicts after changes of the figures: of one, of all with the same name, and of all at once."""
    paths = leaves(figures)
    changes = [*({path} for path in paths), *({p for p in paths if p[0] == name} for name in figures)]
    seen = set()
    for some in [*changes, set(paths)]:
        for factor in FACTORS:
            try:
                seen.add(one.verdict(changed(figures, some, times_by(factor)))[0])
            except (ZeroDivisionError, ValueError):
                continue
    return seen


@pytest.mark.parametrize("one", claims.CLAIMS, ids=lambda c: c.name)
def test_a_verdict_follows_from_figures_that_may_change_it(one, records):
    verdict = claims.judged(one, records)["verdict"]
    try:
        figures = one.figures(records)
    except LookupError:
        assert verdict == claims.UNTESTED
        return
    if figures:
        assert verdict != claims.ARGUED
        assert verdicts(one, figures) - {verdict, claims.UNTESTED}
    else:
        assert verdict in (claims.ARGUED, claims.UNTESTED)


@pytest.mark.parametrize("one", [c for c in claims.CLAIMS if c.case], ids=lambda c: c.name)
def test_a_claim_about_a_case_is_open_without_its_record(one):
    assert claims.judged(one, {})["verdict"] == claims.UNTESTED


@pytest.mark.parametrize(
    ("figures", "holds", "verdict"),
    [
        ({"us": 1.0}, True, claims.HOLDS),
        ({"us": 1.0}, False, claims.FAILS),
        ({"us": 1.0}, None, claims.UNTESTED),
        ({"us": 1.0}, {"small": True, "large": False}, claims.PARTLY),
        ({"us": 1.0}, {"small": False, "large": False}, claims.FAILS),
        ({}, False, claims.ARGUED),
        ({}, None, claims.UNTESTED),
    ],
)
def test_a_verdict_without_figures_is_an_argument(figures, holds, verdict):
    one = claims.Claim("x", "000", "It holds.", "", lambda _: figures, lambda **_: (holds, "words"))
    assert one.verdict(figures) == (verdict, "words")


@pytest.mark.parametrize("one", [c for c in claims.CLAIMS if not c.case], ids=lambda c: c.name)
def test_what_can_be_counted_is_counted_here_and_agrees_with_the_record(one):
    verdict = claims.judged(one, {})
    recorded = {row["claim"]: row for row in json.loads((FOLDER / "claims.json").read_text())}
    assert (
        verdict["verdict"] == recorded[one.name]["verdict"]
        and verdict["measured"] == recorded[one.name]["measured"]
    )


def test_the_recorded_claims_follow_from_the_records(records):
    recorded = json.loads((FOLDER / "claims.json").read_text())
    assert [row["claim"] for row in recorded] == [one.name for one in claims.CLAIMS]
    for row in recorded:
        assert row["verdict"] in claims.VERDICTS and row["measured"]
        if row["verdict"] != claims.UNTESTED:
            assert row["on"]
    for row in recorded:
        assert row == claims.judged(claims.by_name(row["claim"]), records), "run scripts/draw_cases.py"


def test_most_claims_were_decided(records):
    recorded = json.loads((FOLDER / "claims.json").read_text())
    assert sum(row["verdict"] != claims.UNTESTED for row in recorded) >= 30


def test_256_bins_are_wrong_in_every_row_and_the_reference_is_not():
    assert claims.wrong_rows("normal", count=4, length=8192, k=512) == 4
    assert claims.wrong_rows("steps", count=4, length=8192, k=512) == 0


def test_a_claim_without_a_record_is_not_testable():
    verdict = claims.judged(claims.by_name("speedup"), {})
    assert verdict["verdict"] == claims.UNTESTED and "dense_sparse" in verdict["measured"]
    with pytest.raises(UnknownNameError, match="speedup"):
        claims.by_name("spedup")


# Records, pages, pictures


def test_every_case_has_a_record_a_page_and_its_picture(records):
    index = (ROOT / "docs" / "cases" / "README.md").read_text()
    for name in cases.names():
        page = (FOLDER / f"{name}.md").read_text()
        assert "![" in page and f"({name}.png)" in page and (FOLDER / f"{name}.png").is_file()
        assert f"python -m dsl_kernels case run {name}" in page and cases.get(name).question in page
        assert f"({name}.md)" in index
        where = records[name]["environment"]
        assert where["gpu"] and where["date"] and where["command"].endswith(name)
        assert records[name]["seconds"] <= 75


@pytest.mark.parametrize("name", cases.names())
def test_no_recorded_result_is_wrong_unless_it_is_said_to_be(name, records):
    wrong = [row["name"] for row in records[name]["rows"] if row.get("ok") is False and "a_us" not in row]
    assert wrong == []
    if name == "gqa_regions":
        checked = {row["name"]: row["ok"] for row in records[name]["rows"] if row["kind"] == "schedule"}
        assert checked == {key: not schedule.wrong for key, schedule in gqa_regions.SCHEDULES.items()}


@pytest.mark.parametrize("name", cases.names())
def test_recorded_counters_are_as_expected(name, records):
    judged = json.loads(json.dumps(base.judged(cases.get(name), records[name]["counters"])))
    assert records[name]["expected"] == judged, "run scripts/draw_cases.py"
    assert [e for e in judged if e["holds"] is not True] == []


def test_pictures_are_drawn_again_from_the_records(tmp_path):
    drawn = {path.name: path for path in draw_cases.draw(FOLDER, tmp_path)}
    assert {f"{name}.png" for name in cases.names()} <= set(drawn)
    for name, path in drawn.items():
        got, kept = path.read_bytes(), (FOLDER / name).read_bytes()
        assert got[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", got[16:24]) == struct.unpack(
            ">II", kept[16:24]
        )
        assert len(got) > 8000


def test_a_region_has_one_colour_in_both_panels(records):
    drawn = cases.get("gqa_regions").draw(records["gqa_regions"])
    named = {
        (text.get_text(), patch.get_facecolor())
        for axis in drawn.axes
        for text, patch in zip(axis.get_legend().texts, axis.get_legend().get_patches(), strict=True)
    }
    assert len(named) == len(dict(named)) == len({colour for _, colour in named}) > 8
    (left, right) = drawn.axes
    painted = {bar.get_facecolor() for bar in right.patches}
    assert painted <= {colour for _, colour in named}
    assert {tuple(colour) for bars in left.collections for colour in bars.get_facecolors()} <= {
        colour for _, colour in named
    }


@pytest.mark.parametrize("name", cases.names())
def test_an_empty_record_is_drawn_without_an_error(name):
    empty = {"rows": [], "counters": {}, "environment": {}}
    assert cases.get(name).draw(empty).axes


# Commands


def test_commands_list_cases_and_claims():
    listed = command("case", "list", "--json")
    assert {row["case"] for row in json.loads(listed.stdout)} == set(cases.names())
    one = json.loads(command("case", "claims", "--only", "bins-exact", "--json").stdout)
    assert [row["verdict"] for row in one] == ["fails"]
    assert command("case", "claims", "--only", "nothing").exit_code == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_running_a_case_without_a_gpu_says_why_not():
    for more in ([], ["--launch", "v1_4Mi"]):
        done = command("case", "run", "reduction", *more)
        assert done.exit_code == 2 and "GPU" in done.stderr
    assert command("case", "run", "reduction", "--launch", "none").exit_code == 2


def test_the_time_of_a_case_holds_for_all_of_the_command(monkeypatch):
    from dsl_kernels_lab.cases import _counters
    from dsl_kernels_lab.cli import case as commands

    clock, given = [100.0], {}

    def run(case, budget, full):
        given["rows"] = budget
        clock[0] += 40.0
        return {"rows": [], "counters": {}, "expected": [], "notes": [], "environment": {}, "seconds": 12.0}

    def read(case):
        clock[0] += 5.0
        return case

    monkeypatch.setattr(commands, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(cases, "get", lambda name, get=cases.get: read(get(name)))
    monkeypatch.setattr(base, "run", run)
    monkeypatch.setattr(_counters, "add", lambda found, case, timeout: given.update(counters=timeout))
    done = command("case", "run", "reduction", "--json")
    assert done.exit_code == 0, done.output
    # Five seconds passed before the first row could start, and forty with the rows.
    assert given == {"rows": 55.0, "counters": 15.0}
