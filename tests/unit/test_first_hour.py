"""The first hour on a B200, without a GPU: its plan, its steps, and how it continues where it stopped."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from test_measure import POINTS, on_cpu  # noqa: F401

from dsl_kernels import measured, policies, variants
from dsl_kernels.arch import GPUS, gpu_row
from dsl_kernels.errors import InvalidArgumentError
from dsl_kernels_lab.timing import bench

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import b200_first_hour as script
import clock_acceptance
import clock_doubts

TWO = (
    "resample_trajectories__cutedsl_sm100a__global_n128_v1",
    "topk_selector__tilelang_sm100a__g1_t512_r8_c1",
)


@pytest.fixture(autouse=True)
def no_doubts(monkeypatch):
    """Skips the walks of a whole grid, which take half a minute."""
    monkeypatch.setattr(clock_doubts, "choices", lambda gpu, grids: iter(()))


def test_every_point_of_the_table_is_a_call_that_the_clock_can_be_held_to():
    for entry in measured.tuned_table("NVIDIA H200"):
        call = clock_acceptance.call_of(entry, "H200")
        assert policies.get(call.op).bucket(call.form, call.dims) == entry["bucket"], entry


def test_the_plan_is_an_hour_of_every_step(capsys):
    assert sum(step.limit for step in script.STEPS) <= script.HOUR
    assert all(step.patience <= step.limit for step in script.STEPS)
    for arch, gpu in (("sm_100a", "B200"), ("sm_90a", "H200")):
        assert script.main(["--plan", "--arch", arch]) == 0
        text = capsys.readouterr().out
        assert gpu in text and all(f". {step.name}" in text for step in script.STEPS)
        assert f"{len(variants.variants(arch=arch))} items" in text
        assert ("tensor_half" in text) == (arch == "sm_100a")


def test_rates_on_which_a_choice_hangs_come_first(monkeypatch):
    plain = list(script.unsure(GPUS["B200"]))
    assert plain[0].startswith("tensor") and "hand_over" in plain[4:]

    class Hangs:
        doubts = (type("Doubt", (), {"rate": "hand_over"}),)

    monkeypatch.setattr(clock_doubts, "choices", lambda gpu, grids: iter([Hangs]))
    rates = script.unsure(GPUS["B200"])
    assert next(iter(rates)) == "hand_over"
    names = ["unit_ffma_1warps", "tcgen05_ld_8warps", "hand_mbarrier", "tcgen05_bf16_m128_n16_two"]
    order = script.ordered(names, rates)
    assert order == ["hand_mbarrier", "tcgen05_bf16_m128_n16_two", "tcgen05_ld_8warps", "unit_ffma_1warps"]


def test_every_point_of_both_grids_is_timed_the_core_first():
    names = list(script.points())
    ops = [name.split()[0] for name in names[:5]]
    assert len(set(ops)) == 5 and len(names) == len(set(names)) > 100


def test_a_step_goes_on_where_it_stopped_and_notes_what_matched(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "chosen", lambda arch: [variants.get(name) for name in TWO])
    given = [str(tmp_path / "hour"), "--executor", "interpreter", "--only", "correct"]
    folder = script.Folder(tmp_path / "hour")
    folder.write("correct", {"items": {TWO[0]: {"ok": True}}, "missing": {}, "done": [TWO[0]]})
    assert script.main(given) == 0
    assert "2 of 2 right; 0 failed, 0 left" in capsys.readouterr().out
    results = folder.read("correct")
    assert results["items"][TWO[0]] == {"ok": True} and results["items"][TWO[1]]["workloads"] > 0
    assert list(json.loads((folder.path / "runs.json").read_text())["runs"]) == [TWO[1]]
    session = folder.read("session")
    assert (
        session["arch"] == "sm_100a"
        and session["environment"]["command"]
        and session["seconds"]["correct"] > 0
    )
    monkeypatch.setattr(script.clock_rates, "_run", lambda *_: pytest.fail("nothing is left"))
    assert script.main(given) == 0


def test_a_fault_is_kept_and_what_the_time_did_not_suffice_for_is_left(tmp_path, monkeypatch):
    folder, step = script.Folder(tmp_path), next(s for s in script.STEPS if s.name == "correct")
    monkeypatch.setattr(script, "chosen", lambda arch: [variants.get(name) for name in TWO])

    def measure(command, left, patience, seconds, note):
        found, missing = {TWO[0]: {"ok": False}}, {TWO[1]: script.UNTRIED + ": no time"}
        note([TWO[1]], found, {})
        return found, missing

    monkeypatch.setattr(script.clock_rates, "measure", measure)
    found = script.run(step, folder, gpu_row("sm_100a"), "interpreter", 0.0)
    assert found["left"] == 1 and not found["missing"] and folder.left("correct", TWO) == [TWO[1]]
    monkeypatch.setattr(script.clock_rates, "measure", lambda *_: ({}, {TWO[1]: "no answer in 150 s"}))
    found = script.run(step, folder, gpu_row("sm_100a"), "interpreter", 0.0)
    assert found["missing"] == {TWO[1]: "no answer in 150 s"} and folder.left("correct", TWO) == []
    assert "0 of 1 right; 1 failed, 0 left" in script.verdict("correct", found)


def test_an_item_that_fails_ends_its_process_with_its_error(tmp_path, capfd):
    status = script.main([script.WORKS, "tune", str(tmp_path), "interpreter", "no such point", "another"])
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert status == 1 and records == [{"failed": "no such point", "error": "KeyError: 'no such point'"}]


def test_the_table_leaves_out_what_was_wrong(on_cpu, tmp_path, monkeypatch, capfd):  # noqa: F811
    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    monkeypatch.setattr(bench, "require_gpu", lambda: "NVIDIA H200")
    point = POINTS[2]
    monkeypatch.setattr(script, "points", lambda: {"it": point})
    folder = script.Folder(tmp_path / "hour")
    takes = [v.id for v in variants.variants(point.op)]
    folder.write("correct", {"items": {takes[0]: {"ok": False}}, "missing": {takes[1]: "hung"}})
    script.tune(folder, "it", "interpreter")
    (record,) = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert record["left_out"] == sorted(takes[:2])
    (entry,) = json.loads((folder.path / "tuned" / "nvidia_h200.json").read_text())["entries"]
    assert entry["us"] and not entry["us"].keys() & set(takes[:2])
    assert len((folder.path / "records.jsonl").read_text().splitlines()) == 1


def test_another_card_than_expected_is_refused(capsys, tmp_path, monkeypatch):
    assert script.main([str(tmp_path / "hour")]) == 2
    assert "GPU" in capsys.readouterr().err
    assert script.main([]) == 2 and "OUT" in capsys.readouterr().err
    monkeypatch.setattr(bench, "require_gpu", lambda: "NVIDIA H200")
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("dsl_kernels.executors.gpu_at_hand", lambda index: GPUS["H200"])
    with pytest.raises(InvalidArgumentError, match="sm_90a, which NVIDIA H200 runs"):
        script.card("sm_100a", "cuda")
    assert script.card("sm_90a", "cuda") is GPUS["H200"]


def test_the_doubts_are_a_row_an_operation_and_one_a_call_that_hangs():
    from dsl_kernels.clock.interval import Doubt
    from dsl_kernels.registry import Call

    call = Call("sparse_mla", "bf16", "sm_100a", {"t": 4, "heads": 128, "topk": 2048}, "NVIDIA B200")
    doubt = Doubt("copy_latency", 20.0, 90.0, TWO[0], 1.07, "somebody", "^a$|^b$")
    text = clock_doubts.table(
        [
            clock_doubts.Choice(call, TWO[0], 1.0, 2.0, 4, []),
            clock_doubts.Choice(call, TWO[1], 1.0, 2.0, 2, [doubt]),
        ]
    )
    assert "| sparse_mla bf16 | 2 | 2 to 4 |" in text and "| 1 |" in text
    assert "`copy_latency` 20 → 90" in text and "1.07 times as fast; `^a$\\|^b$`" in text
    assert "1 of 2 choices hold" in text and "hang on `copy_latency`" in text


def test_the_pages_say_what_the_clock_asks_of_a_b200(tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    steps, text = (docs / "b200.md").read_text(), (docs / "clock.md").read_text()
    table = text.split(clock_doubts.MARKS[0])[1].split(clock_doubts.MARKS[1])[0]
    assert "choices hold" in table and "| sparse_mla bf16 |" in table
    assert all(f"| `{step.name}` | {step.limit / 60:.0f} min |" in steps for step in script.STEPS)
    (tmp_path / "page.md").write_text(text)
    clock_doubts.write(tmp_path / "page.md", "new\n")
    assert (
        "<!-- printed by benchmarks/clock_doubts.py -->\nnew\n<!-- end of what it printed -->"
        in (tmp_path / "page.md").read_text()
    )
