"""The table of exactness: what it counts as wrong is wrong, and it runs without any engine installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("topk_exactness", ROOT / "benchmarks/topk_exactness.py")
script = importlib.util.module_from_spec(spec)
sys.modules["topk_exactness"] = script
spec.loader.exec_module(script)

SCORES = torch.tensor([[3.0, 1.0, 3.0, 3.0, -torch.inf, 0.0], [torch.nan, -0.0, 0.0, 5.0, 9.0, 9.0]])
LENGTHS, K = torch.tensor([6, 4]).int(), 3
RIGHT = [[0, 2, 3], [0, 1, 3]]


@pytest.mark.parametrize(
    ("ids", "wrong", "ascending", "descending", "lower"),
    [
        (RIGHT, 0, True, False, True),
        ([[3, 2, 0], [0, 3, 2]], 0, False, True, False),
        ([[0, 2, 2], RIGHT[1]], 1, True, False, True),
        ([[0, 2, 5], RIGHT[1]], 1, True, False, True),
        ([[0, 2, 6], RIGHT[1]], 1, True, False, True),
        ([[0, 2, -1], [0, 3, 4]], 2, True, True, True),
    ],
    ids=["right", "by score", "repeated", "not the largest", "outside", "too few, and behind the end"],
)
def test_a_row_is_judged_by_its_scores(ids, wrong, ascending, descending, lower) -> None:
    expected = script.largest(SCORES, LENGTHS, K)
    assert expected.tolist() == RIGHT
    verdict = script.judge(SCORES, LENGTHS, torch.tensor(ids).int(), expected)
    assert verdict == {
        "rows": 2,
        "wrong": wrong,
        "ascending": ascending,
        "descending": descending,
        "lower": lower,
    }


def test_short_rows_end_with_minus_one() -> None:
    lengths = torch.tensor([2, 0]).int()
    expected = script.largest(SCORES, lengths, K)
    assert expected.tolist() == [[0, 1, -1], [-1, -1, -1]]
    assert script.judge(SCORES, lengths, expected, expected)["wrong"] == 0
    assert script.judge(SCORES, lengths, torch.tensor([[0, 1, 2], [-1, -1, 0]]).int(), expected)["wrong"] == 2


def test_a_plateau_of_zeros_is_among_the_largest() -> None:
    scores = script.scores_of("plateau", 3, 4000, 64, torch.Generator().manual_seed(0))
    largest = scores.topk(64, dim=1).values
    assert ((largest > 0).any(dim=1) & (largest == 0).any(dim=1) & (scores >= 0).all(dim=1)).all()
    assert script.scores_of("huge", 1, 4000, 64, torch.Generator().manual_seed(0)).isfinite().all()


def test_the_table_of_what_is_here(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(script, "KINDS", ("ties", "specials"))
    monkeypatch.setattr(script, "apart", script.run)
    path = tmp_path / "found.json"
    script.main(
        ["--device", "cpu", "--rows", "4", "--columns", "900", "--k", "64", "--repeat", "2", "--out",
         str(path)]
    )  # fmt: skip
    printed = capsys.readouterr().out
    assert "| dsl_kernels | " in printed and "| 0 of 8 | ascending | the lower | 0, 0 |" in printed
    assert "flashinfer, deterministic is not here: " in printed or "| flashinfer, deterministic |" in printed
    results = {result["engine"]: result for result in json.loads(path.read_text())["results"]}
    assert set(results) == set(script.ENGINES)
    assert results["dsl_kernels"]["cases"]["specials"]["wrong"] == 0
    assert (
        results["reference"]["cases"]["ties"]["wrong"] == 0 and results["reference"]["cases"]["ties"]["lower"]
    )
    assert results["torch.topk, masked"]["cases"]["ties"]["wrong"] == 0


def present(monkeypatch, module: str, **names) -> None:
    """Make a module importable, and give every package a version."""
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))
    monkeypatch.setattr(script.importlib.metadata, "version", lambda package: f"{package} 1.2")


def test_the_example_of_tilelang_is_asked_as_it_is_written(monkeypatch) -> None:
    def tl_topk(scores, starts, ends, k):
        ids = script.largest(scores, ends, k)
        # The example allocates zeros, and counts positions from column 0 of the scores.
        return torch.where(ids < 0, 0, ids + starts[:, None])

    present(monkeypatch, "topk_selector", tl_topk=tl_topk)
    version, select = script.ENGINES["tilelang example"](None)
    lengths = torch.tensor([6, 2]).int()
    assert version == "tilelang 1.2" and select(SCORES, lengths, K).tolist() == [[0, 2, 3], [0, 1, -1]]
    monkeypatch.delattr(sys.modules["topk_selector"], "tl_topk")
    with pytest.raises(script.AbsentError, match="tl_topk"):
        script.ENGINES["tilelang example"](None)


def test_rows_of_a_prompt_are_asked_as_vllm_declares_it(monkeypatch) -> None:
    def op(scores, starts, ends, ids, rows, row_stride, column_stride, k) -> None:
        assert (rows, row_stride, column_stride, starts.tolist()) == (2, 6, 1, [0, 0])
        ids.copy_(script.largest(scores, ends, k))

    present(monkeypatch, "vllm._custom_ops")
    monkeypatch.setattr(torch.ops, "_C", SimpleNamespace(top_k_per_row_prefill=op))
    version, select = script.ENGINES["vllm top_k_per_row_prefill"](None)
    assert version == "vllm 1.2" and select(SCORES, LENGTHS, K).tolist() == RIGHT
    with pytest.raises(script.AbsentError, match="no persistent_topk"):
        script.ENGINES["vllm persistent_topk"](None)


def test_sizes_that_are_not_given_suit_the_device(monkeypatch) -> None:
    asked = {}

    def run(name, options):
        asked[options.device] = options.rows, options.columns, options.k, options.repeat
        return {"engine": name, "absent": "not asked"}

    monkeypatch.setattr(script, "apart", run)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    for device in ("cpu", "cuda"):
        script.main(["--device", device, "--engine", "dsl_kernels", "--repeat", "7"])
    assert asked == {"cpu": (6, 5000, 512, 7), "cuda": (16, 131072, 2048, 7)}


def test_an_engine_that_ends_its_process_is_named(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    script.main(["--device", "cpu", "--columns", "900", "--k", "64", "--engine", "dsl_kernels"])
    assert "dsl_kernels is not here: its process ended with status 1" in capsys.readouterr().out
