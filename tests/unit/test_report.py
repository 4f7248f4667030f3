"""The page of records: its opening, its tables and pictures, and the sources of the peers' figures."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dsl_kernels import measured, problems
from dsl_kernels.cli import app
from dsl_kernels.errors import ArtifactError, InvalidArgumentError
from dsl_kernels_lab.timing import grids, report

GPU = "NVIDIA H200"


def record(op: str, form: str, us: float, **sizes) -> dict:
    return {
        "op": op, "form": form, **sizes, "point": "p", "variant": f"{op}__cutedsl_sm90a__x",
        "rule": "tuned table", "launch": {},
        "us": us, "gbps": 1000.0, "tflops": {"bfloat16": 10.0}, "ratio": 1.25, "ceiling_us": us / 1.25,
        "notes": [],
        "clocks": {"before": None, "after": {"sm_mhz": 1980.0, "watts": 300.0}}, "sustained": None,
        "checked": True,
        "environment": {"gpu": GPU, "date": "2026-12-01", "driver": "1", "torch": "2", "commit": "abc"},
    }  # fmt: skip


RECORDS = [
    record("sparse_mla", "bf16", 60.0, t=96, heads=64, pages=4096),
    record("sparse_mla", "bf16", 90.0, t=96, heads=64, pages=4096),
    record("sparse_mla", "fp8", 128.0, t=64, heads=128, pages=4096),
    record("topk_selector", "default", 40.0, rows=128, len=131072, k=2048),
    record("topk_selector", "default", 12.0, rows=16, len=131072, k=2048),
    record("topk_selector", "default", 7.0, rows=1, len=131072, k=2048),
    record("topk_selector", "default", 5.0, rows=1, len=32768, k=2048),
    record("topk_selector", "default", 4.0, rows=1, len=4096, k=2048, scores="ties"),
]


def write(path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_page_begins_with_where_a_peer_is_faster(tmp_path) -> None:
    text = report.page(RECORDS).markdown()
    first, rest = text.split("## sparse_mla bf16")
    rows = [line for line in first.splitlines() if line.startswith("| ")][2:]
    # The worst first. The faster of two records of a point counts, and 60 us beat FlashMLA's 71.2.
    assert [row.split(" | ")[4] for row in rows] == ["1.38", "1.27"]
    assert "2 of 6 points" in first and "t=96" not in first
    assert "2026-11-21" in rest and "same harness" in rest and "FlashMLA 9241ae3" in rest
    assert "MHz" in rest and "1980" in rest and "80.0" in rest


def test_a_point_of_other_data_is_not_set_beside_a_peer() -> None:
    peers = report.peers_of(GPU)
    assert peers.of(RECORDS[6]).us == 10.0
    for other in (
        {**RECORDS[6], "scores": "ties"}, {**RECORDS[6], "k": 512}, {**RECORDS[0], "ids": "holes"},
        {**RECORDS[0], "pages": 32768}, {**RECORDS[0], "topk": 512}, {**RECORDS[0], "form": "fp8"},
    ):  # fmt: skip
        assert peers.of(other) is None


def test_every_published_figure_stands_for_a_point_that_bench_can_time() -> None:
    peers = report.peers_of(GPU)
    assert len(peers.figures) == 71 and peers.source.startswith("one H200, 2026-11-21, same harness")
    for figure in peers.figures:
        problems.get(figure.op).operands(figure.form)
        known = {
            name for grid in grids.GRIDS for point in grids.points(figure.op, grid) for name in point.params
        }
        assert figure.sizes.keys() <= known and figure.us > 0
        assert any(figure.peer.startswith(name) for name in peers.versions)


def test_the_command_writes_one_page_with_its_pictures(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    files = [write(tmp_path / "a.jsonl", RECORDS[:3]), write(tmp_path / "b.jsonl", RECORDS[3:])]
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["bench", "--report", *files, "--out", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert (
        text.index("Where a peer is faster") < text.index("sparse_mla bf16")
        and "data:image/png;base64," in text
    )
    result = CliRunner().invoke(app, ["bench", "--report", *files, "--out", str(tmp_path / "page.md")])
    assert result.exit_code == 0 and (tmp_path / "page_1.png").read_bytes().startswith(b"\x89PNG")
    assert "![topk_selector default: us against rows](page_1.png)" in (tmp_path / "page.md").read_text()
    printed = CliRunner().invoke(app, ["bench", "--report", *files])
    assert printed.stdout.startswith("# Measured times") and "![" not in printed.stdout


def test_without_matplotlib_the_page_says_what_is_missing(monkeypatch) -> None:
    from dsl_kernels.errors import ToolchainError
    from dsl_kernels_lab.cases import _figures

    def missing(*args, **kwargs):
        raise ToolchainError("matplotlib", expected="it", got="none", fix="install it")

    monkeypatch.setattr(_figures, "panels", missing)
    text = report.page(RECORDS).markdown()
    assert "dsl-kernels-lab[profile]" in text and "| rows=16" in text


def test_steps_and_regrets_have_tables() -> None:
    place = {"environment": {"gpu": GPU}}
    step = {
        **place, "t": 4, "context": 32768,
        "time": {"step": {"us": 24.0}, "ops": {"sparse_mla": 9.0}, "marginal": 7.5,
                 "without_attention": 16.5},
    }  # fmt: skip
    lost = {**RECORDS[0], "regret": {"best": "x__y", "us": 50.0, "lost": 0.2, "launch": {}, "variants": 3}}
    text = report.page([step, lost]).markdown()
    assert "| 4 | 32768 | 24.0 | - | - | 9.00 | 7.50 |" in text
    assert "What selection loses where nothing was tuned" in text and "20.0" in text
    hidden = report.page([{**lost, "own": False}]).markdown()
    assert (
        "What selection loses without a table of this GPU's own" in hidden
        and "nothing was tuned" not in hidden
    )
    # A regret belongs to a sweep, and is no record of the point.
    assert "## sparse_mla bf16" not in text


def test_without_files_the_page_shows_the_tuned_tables() -> None:
    files = report.read([])
    assert {row["op"] for row in files} >= {"sparse_mla", "topk_selector"} and len(files) > 50
    peers = report.peers_of(GPU)
    timed_by_peers = {row["op"] for row in files if peers.of(row) is not None}
    assert timed_by_peers >= {"sparse_mla", "topk_selector", "lightning_indexer"}


def test_files_without_records_are_refused(tmp_path) -> None:
    with pytest.raises(InvalidArgumentError, match="no such file"):
        report.read([tmp_path / "none.jsonl"])
    (tmp_path / "text.jsonl").write_text('hello\n{"a": 1}\n[]\n')
    with pytest.raises(InvalidArgumentError, match="bench --out"):
        report.read([tmp_path / "text.jsonl"])
    with pytest.raises(InvalidArgumentError, match="page.html"):
        report.page(RECORDS).write(tmp_path / "page.pdf")


def test_damaged_peers_are_reported(tmp_path) -> None:
    assert report.peers_of("NVIDIA X") == report.Peers()
    (tmp_path / "nvidia_x_peers.json").write_text('{"schema": 1}')
    with pytest.raises(ArtifactError, match="peers"):
        report.peers_of("NVIDIA X", tmp_path)


def test_a_page_escapes_what_records_say() -> None:
    text = report.page([{**RECORDS[0], "variant": "a__<script>"}]).html()
    assert "<script>" not in text and "&lt;script&gt;" in text


def test_the_tables_of_a_gpu_are_told_apart(tmp_path) -> None:
    other = {**RECORDS[0], "environment": {"gpu": "NVIDIA B200"}}
    text = report.page([RECORDS[0], other]).markdown()
    assert text.count("Where a peer is faster") == 1 and "NVIDIA B200. 1 records" in text
    assert measured.slug(GPU) == "nvidia_h200"
