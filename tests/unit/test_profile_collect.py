"""The profiler's command, its errors, and what is known without it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsl_kernels import variants
from dsl_kernels.cli import app
from dsl_kernels.errors import DslKernelError, InvalidArgumentError, ToolchainError, UnknownNameError
from dsl_kernels_lab import oracles, profile
from dsl_kernels_lab.oracles.sparse_mla import DATASET_SM_SCALE
from dsl_kernels_lab.profile import collect, metrics, targets

COMMON = ["--dim", "t=64,heads=16", "--variant", "triton"]


def invoked(*words: str):
    return CliRunner().invoke(app, ["profile", *words], env={"COLUMNS": "200"})


def test_a_dry_run_prints_the_command_that_would_run() -> None:
    done = invoked("collect", "sparse_mla", *COMMON, "--dry-run", "--out", "kept")
    assert done.exit_code == 0, done.output
    words = shlex.split(done.stdout)
    assert words[0] == "ncu"
    assert words[words.index("--clock-control") + 1] == "none"
    assert words[words.index("--cache-control") + 1] == "all"
    assert words[words.index("--profile-from-start") + 1] == "off"
    assert words[words.index("--export") + 1] == "kept/sparse_mla_t64_heads16_triton.ncu-rep"
    assert words[words.index("--metrics") + 1].split(",") == list(metrics.counters("GH100"))
    assert words[words.index(sys.executable) :] == [
        sys.executable, "-m", "dsl_kernels", "profile", "target", "sparse_mla", "--apart",
        "--dim", "t=64", "--dim", "heads=16", "--variant", "triton",
    ]  # fmt: skip


def test_another_program_is_looked_at_from_its_first_kernel_on() -> None:
    done = invoked(
        "collect",
        "--program",
        "python worker.py 64 4096",
        "--kernel",
        "splitk",
        "--cache",
        "warm",
        "--dry-run",
    )
    words = shlex.split(done.stdout)
    assert words[words.index("--profile-from-start") + 1] == "on"
    assert words[words.index("--kernel-name") + 1] == "regex:splitk"
    assert words[words.index("--cache-control") + 1] == "none"
    assert words[-4:] == ["python", "worker.py", "64", "4096"]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("sparse_mla", "--program", "x"),
        ("sparse_mla", "--cache", "hot"),
        ("sparse_mla", "--chip", "GA100"),
    ],
)
def test_a_contradictory_request_is_refused(words: tuple[str, ...]) -> None:
    done = invoked("collect", *words, "--dry-run")
    assert done.exit_code == 2 and "INVALID_ARGUMENT" in done.stderr


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", 1, "NCU_COUNTERS"),
        ("==ERROR== Failed to initialize the profiler: LibraryNotLoaded", 1, "NCU_COUNTERS"),
        ("==WARNING== No kernels were profiled.", 0, "NCU_NO_KERNEL"),
        ("==ERROR== The application returned an error code (1).", 1, "NCU_FAILED"),
        ("killed", 137, "NCU_FAILED"),
    ],
)
def test_errors_of_the_profiler_are_typed(text: str, status: int, code: str) -> None:
    with pytest.raises(ToolchainError) as raised:
        collect.refuse(text, status)
    assert raised.value.code == code
    assert raised.value.fix


def test_a_run_that_went_well_is_no_error() -> None:
    collect.refuse("==PROF== Disconnected\n==PROF== Report: a.ncu-rep", 0)


def test_without_the_profiler_the_error_and_doctor_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect.shutil, "which", lambda name: None)
    monkeypatch.setattr(collect, "PLACES", ())
    with pytest.raises(ToolchainError) as raised:
        collect.find_ncu()
    assert raised.value.code == "NCU_MISSING"
    [row] = collect.doctor(gpu=True)
    assert row["check"] == "ncu" and row["status"] == "note" and "Nsight Compute" in row["fix"]


def test_doctor_says_whether_counters_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ncu = tmp_path / "ncu"
    ncu.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo 'Version 2025.3.1.0 (build 1)' && exit 0\necho '==ERROR== "
        "ERR_NVGPUCTRPERM'; exit 1\n"
    )
    ncu.chmod(0o755)
    monkeypatch.setattr(collect, "find_ncu", lambda: ncu)
    tools, counters = collect.doctor(gpu=True)
    assert tools["found"].startswith("2025.3.1.0")
    assert counters["status"] == "note" and "NCU_COUNTERS" in counters["found"]
    ncu.write_text("#!/bin/sh\necho '==PROF== Disconnected'\n")
    assert [row["status"] for row in collect.doctor(gpu=True)] == ["ok", "ok"]


def test_what_an_op_has_to_read_is_known_without_a_gpu() -> None:
    work = targets.workload("sparse_mla", {"t": 64})
    assert work.read_bytes == 64 * 2048 * 1152 and work.row_bytes == 1152
    assert work.unique_bytes < work.footprint_bytes == 4096 * 64 * 1152
    fp8 = targets.workload("sparse_mla", {}, variant="sparse_mla__cutedsl_sm90a__h16_fp8_bt64_st2_cl2_sl2")
    assert fp8.row_bytes == 656
    assert targets.workload("lightning_indexer", {"b": 1, "len": 4096}).read_bytes == 4096 * 132
    assert targets.workload("sdpa", {}).unique_bytes == 3 * 2 * 32 * 2048 * 128
    assert targets.workload("sparse_mla", {"n": 640}) == targets.workload("sparse_mla", {"pages": 10})
    with pytest.raises(UnknownNameError, match="size of sparse_mla"):
        targets.workload("sparse_mla", {"rows": 3})
    with pytest.raises(UnknownNameError):
        targets.workload("sparse", {})


@pytest.mark.parametrize("op", oracles.names())
def test_every_op_can_be_looked_at(op: str) -> None:
    for form in oracles.get(op).forms:
        work = targets.workload(op, {}, form=form)
        assert work.form == form and work.unique_bytes is not None and work.unique_bytes > 0
        size = next(name for name, value in work.dims.items() if value > 1)
        more = targets.workload(op, {size: 2 * work.dims[size]}, form=form)
        assert more.unique_bytes is not None and more.unique_bytes > work.unique_bytes


@pytest.fixture
def compiled():
    """A variant that the cache or a bundle contains."""
    from dsl_kernels import variants
    from dsl_kernels.runtime import store

    variant = next(v for v in variants.variants("topk_selector") if v.arch == "sm_90a")
    try:
        if store.lookup(variant) is None:
            pytest.skip("not compiled")
    except DslKernelError as error:
        pytest.skip(str(error))
    return variant


def test_a_compiled_variant_says_what_it_holds(compiled) -> None:
    report = collect.static(compiled)
    assert report.metrics[metrics.REGISTERS] > 16
    assert "stalls" in report.missing
    assert profile.fingerprint(report).occupancy.registers == report.metrics[metrics.REGISTERS]


@pytest.mark.emulator
def test_counts_of_the_emulator_join_what_is_static(compiled) -> None:
    done = invoked("static", compiled.id, "--emulate", "--json")
    report = json.loads(done.stdout)
    assert report["source"] == "emulator" and report["metrics"]["emulator__global_read"] > 0
    assert report["metrics"][metrics.INSTRUCTIONS] > 100 < report["metrics"]["emulator__global_sectors"]
    assert "time" in report["missing"] and report["metrics"][metrics.REGISTERS] > 16


def test_reading_prints_a_page_json_and_what_may_be_kept(tmp_path: Path) -> None:
    pytest.importorskip("pydantic")
    report = profile.KernelReport(
        "gather",
        "csv",
        "sm_90",
        metrics={
            metrics.SOL["dram"]: 91.0,
            metrics.DURATION: 5e4,
            metrics.STALL.format("long_scoreboard"): 8.0,
        },
    )
    path = tmp_path / "a.json"
    path.write_text(profile.dump([report]))
    page = invoked("read", str(path), "--markdown")
    assert page.exit_code == 0, page.output
    assert "`dram_bound`" in page.stdout and len(page.stdout.splitlines()) <= 60
    kept = tmp_path / "kept.json"
    as_json = invoked("read", str(path), "--json", "--extract", str(kept))
    [diagnosis] = json.loads(as_json.stdout)
    assert profile.load(profile.Diagnosis, diagnosis).top.cause == "dram_bound"
    assert profile.read(kept) == [report]
    beside = invoked("diff", str(path), str(kept))
    assert beside.exit_code == 0 and "dram of peak" in beside.stdout
    assert invoked("read", str(path), "--kernel", "nothing").exit_code == 2
    assert json.loads(invoked("schema", "fingerprint").stdout)["title"] == "Fingerprint"


def test_what_torch_does_in_place_of_an_op_is_the_op(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from dsl_kernels_lab.oracles import sparse_mla as oracle
    from dsl_kernels_lab.timing import grids, measure

    monkeypatch.setattr(measure, "DEVICE", "cpu")
    drawn = []
    prepare = grids.prepare
    monkeypatch.setattr(grids, "prepare", lambda point, seed: drawn.append(prepare(point, seed)) or drawn[-1])
    monkeypatch.setattr("dsl_kernels_lab.timing.bench.turns", lambda touched: 1)
    made = targets.target("sparse_mla", {"t": 2, "pages": 8, "topk": 128}, "torch")
    given = drawn[0].baseline[-1]
    inputs = {name: given[name] for name in ("q_nope", "q_pe", "ckv", "kpe", "indices")}
    inputs |= {
        "attn_sink": torch.full((16,), -torch.inf),
        "sm_scale": DATASET_SM_SCALE,
        "lse_scale": 1.0,
    }
    expected = oracle.reference("bf16", inputs)["out"]
    assert torch.allclose(made.call()[:, :, 0].float(), expected.float(), atol=2e-2)
    assert made.label == "sparse_mla t=2 pages=8 topk=128 torch" and made.workload.variant == "torch"
    values, _ = targets.target("topk_selector", {"rows": 3, "len": 300, "k": 7}, "torch").call()
    assert values.shape == (3, 7)
    assert targets.target("sdpa", {"n": 8, "heads": 2, "d": 16}).call().shape == (1, 2, 8, 16)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("resample_trajectories", "--variant", "torch"), "INVALID_ARGUMENT",
         "topk_selector and sparse_mla bf16"),
        (("sparse_mla", "--form", "fp8", "--variant", "torch"), "INVALID_ARGUMENT", "sparse_mla fp8"),
        (("topk_selector", "--variant", "triton"), "INVALID_ARGUMENT", "sparse_mla bf16"),
        (("sdpa", "--variant", "triton"), "INVALID_ARGUMENT", "triton"),
        (("sdpa", "--dim", "m=3"), "UNKNOWN_NAME", "'m'"),
        (("sparse_mla", "--variant", "flash"), "UNKNOWN_NAME", "flash"),
        (("topk_selector", "--variant", "sparse_mla"), "INVALID_ARGUMENT", "it computes sparse_mla"),
        (("sparse_mla", "--variant", "sparse_mla", "--dim", "heads=16"), "INVALID_ARGUMENT", "heads"),
        (("sparse_mla", "--form", "fp4"), "UNKNOWN_NAME", "fp4"),
        (("topk_selector", "--dim", "row=3"), "UNKNOWN_NAME", "rows"),
        (("topk_select",), "UNKNOWN_NAME", "topk_selector"),
    ],
)  # fmt: skip
def test_a_target_that_no_gpu_could_launch_is_refused(
    words: tuple[str, ...], code: str, message: str
) -> None:
    some = variants.variants(op="sparse_mla", arch="sm_90a")[0].id
    given = [some if pair == ("--variant", "sparse_mla") else pair[1] for pair in pairwise(("", *words))]
    done = invoked("collect", *given, "--dry-run")
    assert done.exit_code == 2 and code in done.stderr and message in " ".join(done.stderr.split()), (
        done.stderr
    )


@pytest.mark.parametrize("op", oracles.names())
def test_variants_are_accepted_at_the_usual_sizes_and_torch_where_it_is_known(op: str) -> None:
    accepted = []
    for variant in variants.variants(op=op, arch="sm_90a"):
        with suppress(InvalidArgumentError):
            targets.require_target(op, {}, variant.id)
            accepted.append(variant.id)
    assert accepted
    for impl, places in targets.OTHERS.items():
        for known, form in places:
            targets.require_target(known, {}, impl, form=form or None)


@pytest.mark.parametrize("command", ["collect", "read"])
def test_what_prints_a_diagnosis_has_the_same_output_options(command: str) -> None:
    text = invoked(command, "--help").stdout
    assert all(option in text for option in ("--markdown", "--extract", "--json"))


def test_a_profiler_out_of_time_ends_with_what_it_profiles(tmp_path):
    """The program keeps its end of a pipe open as long as any part of it is alive."""
    pipe = tmp_path / "alive"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(subprocess.TimeoutExpired):
        collect.complete(["sh", "-c", f"exec 3> {pipe}; sleep 1000 & wait"], timeout=3)
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)
