"""The command line: what each command prints and returns, its JSON, and its errors."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import dsl_kernels
from codegen.check import check
from codegen.emit import GENERATED, entry, relative_path
from codegen.sweep import Instance, combinations
from dsl_kernels import backends, env, measured, problems, programs, registry, tokens, variants
from dsl_kernels.arch import ARCHS
from dsl_kernels.cli import app, machine
from dsl_kernels.errors import CompileError, ToolchainError
from dsl_kernels.runtime import cache, pool
from dsl_kernels.runtime.artifact import Artifact, Operand, Param, Resources
from dsl_kernels_lab.timing import bench
from dsl_kernels_lab.verification import runs

TEXT = "# stands for a generated module\n"


@pytest.fixture(scope="session")
def declared(tmp_path_factory) -> Path:
    """A manifest of all declared variants, so that these tests do not depend on templates."""
    root = tmp_path_factory.mktemp("generated")
    records = []
    for op in programs.names():
        program = programs.get(op)
        for arch in ARCHS.values():
            for knobs in combinations(program, arch, 0):
                instance = Instance(program, "tilelang", arch, knobs, Path("none"))
                if check(program, knobs, arch):
                    continue
                path = root / relative_path(instance)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(TEXT)
                records.append(entry(instance, TEXT))
    (root / "manifest.json").write_text(json.dumps({"schema": variants.SCHEMA, "variants": records}))
    return root


@pytest.fixture(autouse=True)
def isolated(declared, tmp_path, monkeypatch):
    """The declared set, an empty cache, no recorded runs and no user settings."""
    for name in [name for name in os.environ if name.startswith("DSL_KERNELS_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("DSL_KERNELS_GENERATED_DIR", str(declared))
    monkeypatch.setenv("DSL_KERNELS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DSL_KERNELS_TUNED_DIR", str(tmp_path / "own"))
    monkeypatch.setattr(runs, "PATH", tmp_path / "runs.json")
    monkeypatch.setattr(measured, "TUNED", tmp_path / "tuned")
    registry.clear()
    yield
    registry.clear()


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


def data(*args: str, code: int = 0) -> Any:
    result = invoke(*args, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def refused(*args: str) -> str:
    """The output of a command that must end with a typed error."""
    result = invoke(*args)
    assert result.exit_code == 2, result.output
    assert "error[" in result.stderr and "fix:" in result.stderr and "Traceback" not in result.output
    return result.stderr


def some_variant(op: str, arch: str = "sm_90a") -> variants.Variant:
    return variants.variants(op, arch=arch)[0]


def compiled(variant: variants.Variant) -> Path:
    """An artifact in the cache, as a compilation would leave it."""
    key = cache.key_of(variant)
    folder = (
        cache.cache_root()
        / dsl_kernels.__version__
        / variant.arch
        / f"{variant.id}-{(key.digest or '0' * 8)[:8]}"
    )
    folder.mkdir(parents=True)
    for name in ("kernel.ptx", "kernel.cubin"):
        (folder / name).write_text(name)
    resources = Resources(117, 8, 4, 16, 3, 1024, 65536, 0)
    Artifact(
        variant.id,
        variant.backend,
        variant.arch,
        variant.id,
        (Operand("x", "tensor", "float32", ("n",)),),
        (Param("x", "pointer", "x"),),
        {"n": ("x", "shape", 0)},
        ("n", "1", "1"),
        (128, 1, 1),
        (1, 1, 1),
        65536,
        False,
        False,
        (),
        resources,
        {"HGMMA": 12, "FADD": 3},
        {"nvcc": "13.0.88"},
    ).seal(folder)
    cache.record_inputs(folder, variant, key)
    return folder


def test_env_lists_every_variable_with_its_value(monkeypatch):
    monkeypatch.setenv("DSL_KERNELS_JOBS", "3")
    rows = {row["name"]: row for row in data("env")["variables"]}
    assert set(rows) == {var.name for var in vars(env).values() if isinstance(var, env.EnvVar)}
    assert rows["DSL_KERNELS_JOBS"]["value"] == 3 and rows["DSL_KERNELS_JOBS"]["set"]
    assert not rows["DSL_KERNELS_FORCE"]["set"]
    assert "DSL_KERNELS_CACHE_DIR" in invoke("env").stdout


def test_a_bad_environment_variable_is_a_typed_error(monkeypatch):
    monkeypatch.setenv("DSL_KERNELS_JOBS", "many")
    assert "an integer >= 1" in refused("env")
    monkeypatch.setenv("DSL_KERNELS_LOG_LEVEL", "LOUD")
    assert "a level name" in refused("list")


def test_list_holds_the_manifest_and_filters_it():
    everything = data("list")["variants"]
    assert len(everything) == len(variants.variants())
    one = data("list", "--op", "topk_selector", "--arch", "sm_90a")["variants"]
    assert one and {(v["op"], v["arch"]) for v in one} == {("topk_selector", "sm_90a")}
    assert all(v["ran"] == "not run" and not v["cached"] and v["resources"] is None for v in one)
    assert one[0]["declared"]["threads"] == one[0]["knobs"]["threads"]
    table = invoke("list", "--op", "topk_selector").stdout
    assert (
        f"{len(variants.variants('topk_selector'))} variants, 0 compiled" in table and one[0]["id"] in table
    )


def test_list_shows_what_was_compiled_and_where_it_ran():
    variant = some_variant("sparse_mla")
    compiled(variant)
    runs.record(variant, "cuda", "NVIDIA H200", "2026-01-02", 9)
    runs.record(variant, "interpreter", "CPU", "2026-01-02", 9)
    row = next(v for v in data("list", "--op", "sparse_mla")["variants"] if v["id"] == variant.id)
    assert (
        row["cached"] and row["resources"]["registers"] == 117 and row["evidence"] == {"FADD": 3, "HGMMA": 12}
    )
    assert row["ran"] == "H200, interpreter"
    line = next(
        line for line in invoke("list", "--op", "sparse_mla").stdout.splitlines() if variant.id in line
    )
    assert "117" in line and " 12 " in line and "HGMMA:12" in line and "66560" in line


@pytest.mark.parametrize(
    ("recorded", "ran"),
    [
        ("value = 3\n", "changed since it ran"),
        ('"""What it is."""\n\n# Why.\n' + TEXT, "H200"),
    ],
)
def test_a_record_of_another_source_does_not_count(recorded, ran, tmp_path):
    variant, path = some_variant("sparse_mla"), tmp_path / "module.py"
    path.write_text(recorded)
    runs.record(replace(variant, sha256="0" * 64, path=path), "cuda", "NVIDIA H200", "2026-01-02", 9)
    assert data("show", variant.id)["ran"] == ran


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ('"""Module."""\n\n\ndef f(a, b):\n    """Function."""\n    return g(a, "b")  # why\n', True),
        ('def f(\n    a, b\n):\n    return g(\n        a,\n        "b"\n    )\n', True),
        ('def f(a, b):\n        return g(a, "b")\n', True),
        ('def f(a, b):\n    return g(a, "c")\n', False),
        ('def f(a, b):\n    return g(a, # "b")\n        b)\n', False),
        ('def f(a, b):\n    pass\nreturn g(a, "b")\n', False),
        ('def f(a, b):\n    x = (\n        "b"\n    )\n    return g(a, "b")\n', False),
    ],
)
def test_a_program_is_what_it_does_not_how_it_is_laid_out(other, same):
    plain = b'def f(a, b):\n    return g(a, "b")\n'
    assert (tokens.program(other.encode()) == tokens.program(plain)) is same


def test_an_f_string_is_one_token_under_every_python() -> None:
    """Python 3.12 and later tokenise its parts: here one f-string within another, over two lines."""
    lines = ['x = f"""a{\n', 'f\'{b!r}\'}c""" + y\n']
    parts = [
        ("NAME", "x", (1, 0), (1, 1)), ("OP", "=", (1, 2), (1, 3)), ("FSTRING_START", 'f"""', (1, 4), (1, 8)),
        ("FSTRING_MIDDLE", "a", (1, 8), (1, 9)), ("OP", "{", (1, 9), (1, 10)), ("NL", "\n", (1, 10), (1, 11)),
        ("FSTRING_START", "f'", (2, 0), (2, 2)), ("OP", "{", (2, 2), (2, 3)), ("NAME", "b", (2, 3), (2, 4)),
        ("OP", "!", (2, 4), (2, 5)), ("NAME", "r", (2, 5), (2, 6)), ("OP", "}", (2, 6), (2, 7)),
        ("FSTRING_END", "'", (2, 7), (2, 8)), ("OP", "}", (2, 8), (2, 9)),
        ("FSTRING_MIDDLE", "c", (2, 9), (2, 10)),
        ("FSTRING_END", '"""', (2, 10), (2, 13)), ("OP", "+", (2, 14), (2, 15)),
        ("NAME", "y", (2, 16), (2, 17)),
    ]  # fmt: skip
    whole = 'f"""a{\nf\'{b!r}\'}c"""'
    wanted = [("NAME", "x"), ("OP", "="), ("STRING", whole), ("OP", "+"), ("NAME", "y")]
    assert list(tokens.whole_strings(parts, lines)) == wanted
    assert f"STRING {whole}".encode() in tokens.program("".join(lines).encode())


def test_a_record_does_not_count_once_a_device_helper_has_changed(tmp_path, monkeypatch):
    variant, helper = some_variant("sparse_mla"), tmp_path / "leaf.py"
    helper.write_text("first = 1\n")
    monkeypatch.setattr(runs, "imported_helpers", lambda path, backend: [helper])
    runs.record(variant, "cuda", "NVIDIA H200", "2026-01-02", 9)
    assert data("show", variant.id)["ran"] == "H200"
    helper.write_text("second = 2\n")
    assert data("show", variant.id)["ran"] == "changed since it ran"


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (("list", "--op", "sparse_mlo"), "sparse_mla"),
        (("list", "--backend", "tilelong"), "tilelang"),
        (("list", "--arch", "sm_90"), "sm_90a"),
        (("show", "topk"), "topk_selector__tilelang"),
        (("show", "sparse_mla__tilelang_sm90a__h16_bf16_bt64_st99"), "sparse_mla__tilelang_sm90a__h16_bf16"),
        (("explain", "sparse_mlb"), "sparse_mla"),
        (("explain", "sparse_mla", "--form", "bf17"), "bf16"),
        (("run", "decoder", "--size", "demo"), "decode"),
        (("run", "decode", "--size", "dem"), "demo"),
        (("run", "decode", "--size", "demo", "--executor", "interpretr"), "interpreter"),
        (("verify", "--tier", "huge"), "tiny"),
        (("compile", "topk_selector__x"), "topk_selector__tilelang"),
    ],
)
def test_unknown_names_are_refused_with_near_misses(args, hint):
    assert hint in refused(*args)


def test_show_prints_source_schedule_and_summary():
    variant = some_variant("sparse_mla")
    assert invoke("show", variant.id, "--source").stdout == TEXT
    described = invoke("show", variant.id, "--describe").stdout
    assert "roles" in described and "kv: gather" in described and "totals:" in described
    summary = invoke("show", variant.id).stdout
    assert "not run" in summary and f"compile {variant.id}" in summary
    assert data("show", variant.id)["folder"] is None


def test_show_gives_the_emulators_counts_where_no_hardware_has_run():
    variant = some_variant("sparse_mla", "sm_100a")
    counted = {"workload": "tiny_h16", "instructions": 4321, "global_read": 777}
    runs.record(variant, "emulator", "CPU", "2026-01-02", 3, counted=counted)
    shown = invoke("show", variant.id).stdout
    assert (
        "no hardware has run it; the emulator counted in one launch of tiny_h16" in shown
        and "4321" in shown
        and "777" in shown
    )
    runs.record(variant, "cuda", "NVIDIA B200", "2026-01-03", 3)
    assert "the emulator counted" not in invoke("show", variant.id).stdout


def test_show_needs_an_artifact_for_compiled_files():
    variant = some_variant("sparse_mla")
    for option in ("--ptx", "--sass", "--resources"):
        assert f"compile {variant.id}" in refused("show", variant.id, option)
    folder = compiled(variant)
    assert invoke("show", variant.id, "--ptx").stdout.strip() == str(folder / "kernel.ptx")
    assert str(folder / "kernel.cubin") in invoke("show", variant.id, "--sass").stdout
    resources = invoke("show", variant.id, "--resources").stdout
    assert "117" in resources and "HGMMA" in resources and "13.0.88" in resources


TOPK = ("explain", "topk_selector", "--dim", "rows=4,stride=4096", "--dim", "k=2048", "--arch", "sm_90a")


def test_explain_ranks_refuses_and_labels_the_model():
    report = data(*TOPK)
    assert report["selection"]["rule"] == "cost model" and report["bucket"] == {
        "rows": 4,
        "max_len": 4096,
        "k": 2048,
    }
    here = [c for c in report["candidates"] if c["refusal"] is None]
    chosen = [c for c in report["candidates"] if c["chosen"]]
    assert len(chosen) == 1 and chosen[0]["model_us"] == min(c["model_us"] for c in here)
    assert all("built for sm_100a" in c["refusal"] for c in report["candidates"] if "sm100a" in c["variant"])
    text = invoke(*TOPK).stdout
    assert "a model, not a measurement" in text and f"selected: {chosen[0]['variant']}" in text


def test_explain_names_the_refusal_of_each_candidate():
    report = data("explain", "sparse_mla", "--dim", "t=4,heads=24,topk=2048", "--arch", "sm_90a")
    assert "__any_" in report["selection"]["variant"]
    assert all(c["refusal"] for c in report["candidates"] if "__any_" not in c["variant"])
    assert any(c["refusal"] == "heads = 24, built for 16" for c in report["candidates"])
    text = invoke("explain", "sparse_mla", "--dim", "t=4,heads=24,topk=2048", "--arch", "sm_90a").stdout
    assert "heads = 24, built for 8, 16, 32, 64 or 128" in text and len(text.splitlines()) < 36


def test_explain_says_which_tuned_entry_decided(tmp_path):
    slowest = data(*TOPK)["candidates"]
    other = max((c for c in slowest if c["refusal"] is None), key=lambda c: c["model_us"])["variant"]
    entry = {
        "op": "topk_selector",
        "form": "default",
        "bucket": {"rows": 4, "max_len": 4096, "k": 2048},
        "variant": other,
        "us": {other: 3.5},
    }
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "nvidia_h200.json").write_text(json.dumps({"schema": 1, "entries": [entry]}))
    report = data(*TOPK, "--gpu", "NVIDIA H200")
    assert (
        report["selection"] == {"variant": other, "rule": "tuned table", "launch": {}}
        and report["tuned"]["variant"] == other
    )
    assert next(c["tuned_us"] for c in report["candidates"] if c["variant"] == other) == 3.5
    assert "tuned entry" in invoke(*TOPK, "--gpu", "NVIDIA H200").stdout


def test_explain_says_whose_points_decided(monkeypatch):
    monkeypatch.setenv("DSL_KERNELS_GENERATED_DIR", str(GENERATED))
    monkeypatch.setattr(measured, "TUNED", Path(measured.__file__).parent / "tuned")
    message = "the points are the H200's (NVIDIA H200, 132 SMs), with scaled times"
    sibling = "NVIDIA GH200 480GB"
    report = data(*TOPK, "--gpu", sibling)
    assert report["table"] == {"gpu": "NVIDIA H200", "sms": 132, "own": False} and report["tuned"] is None
    assert report["selection"]["rule"] == "tuned table of the H200"
    assert all(c["tuned_us"] is None for c in report["candidates"]) and report["best_by_backend"] == {}
    assert message in invoke(*TOPK, "--gpu", sibling).stdout
    for name, device in (("H200", "NVIDIA H200"), ("H100", "NVIDIA H100 80GB HBM3")):
        assert data(*TOPK, "--gpu", name)["table"] == {"gpu": device, "sms": 132, "own": True}
        assert message not in invoke(*TOPK, "--gpu", name).stdout
    assert data(*TOPK[: TOPK.index("--arch")], "--gpu", "B200")["table"] is None


def test_explain_takes_a_gpu_that_is_not_here(monkeypatch):
    monkeypatch.setenv("DSL_KERNELS_GENERATED_DIR", str(GENERATED))
    decode = ("explain", "lightning_indexer", "--dim", "b=4,next_n=1,heads=64,max_pages=64,stride=4096")
    report = data(*decode, "--gpu", "H20")
    assert (report["gpu"], report["sms"], report["note"]) == ("NVIDIA H20", 78, None)
    resident = variants.get(report["selection"]["variant"]).knobs["resident"]
    assert report["selection"]["launch"] == {"ctas": 78 * resident}
    text = invoke(*decode, "--gpu", "H20").stdout
    assert (
        "for H20 with 78 SMs; its rates are published figures, not measured" in text and "note:" not in text
    )
    other = data(*decode, "--gpu", "NVIDIA GB200")
    assert (other["arch"], other["gpu"], other["sms"]) == ("sm_100a", "NVIDIA GB200", 148)
    assert other["note"] == "no row for NVIDIA GB200 on sm_100a: the rates of the B200"
    assert "note: no row for NVIDIA GB200" in invoke(*decode, "--gpu", "NVIDIA GB200").stdout
    # The GPU of this machine is used with the SMs that its driver reports.
    monkeypatch.setattr("dsl_kernels.cli._machine.gpus", lambda: [gpu("sm_90a")])
    here = data(*decode)
    assert (here["gpu"], here["sms"]) == ("NVIDIA GPU", 100) and "for 100 SMs" in here["note"]


def test_explain_says_which_dsl_won_and_by_how_much(tmp_path, monkeypatch):
    monkeypatch.setenv("DSL_KERNELS_GENERATED_DIR", str(GENERATED))
    open_ids = [c["variant"] for c in data(*TOPK)["candidates"] if c["refusal"] is None]
    one, two = (next(v for v in open_ids if f"__{dsl}_" in v) for dsl in ("cutedsl", "tilelang"))
    entry = {
        "op": "topk_selector", "form": "default", "bucket": {"rows": 4, "max_len": 4096, "k": 2048},
        "variant": one, "us": {one: 2.0, two: 3.0},
    }  # fmt: skip
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned" / "nvidia_h200.json").write_text(json.dumps({"schema": 1, "entries": [entry]}))
    assert data(*TOPK, "--gpu", "NVIDIA H200")["best_by_backend"] == {
        "cutedsl": {"variant": one, "us": 2.0, "times_the_fastest": 1.0},
        "tilelang": {"variant": two, "us": 3.0, "times_the_fastest": 1.5},
    }
    assert "1.50 times the fastest" in invoke(*TOPK, "--gpu", "NVIDIA H200").stdout


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (("--dim", "t=4"), "no heads, topk"),
        (("--dim", "t=four"), "name=integer"),
        (("--dim", "t"), "name=integer"),
        (("--dim", "t=4,heads=16,topk=2048,batch=3"), "batch"),
    ],
)
def test_explain_refuses_bad_sizes(dims, message):
    assert message in refused("explain", "sparse_mla", *dims)


def test_explain_refuses_a_forced_variant_that_does_not_fit():
    wrong = next(v for v in variants.variants("sparse_mla", arch="sm_90a") if v.knobs["heads"] == 8)
    assert "built for 8" in refused(
        "explain", "sparse_mla", "--dim", "t=4,heads=16,topk=2048", "--arch", "sm_90a", "--variant", wrong.id
    )


def test_run_decodes_the_demo_and_matches_the_reference():
    report = data("run", "decode", "--size", "demo", "--executor", "interpreter")
    assert report["ok"] and report["executor"] == "interpreter" and report["time"] is None
    assert [item["op"] for item in report["used"]] == ["lightning_indexer", "topk_selector", "sparse_mla"]
    assert set(report["checks"]) == {"lightning_indexer", "topk_selector", "sparse_mla", "chain"}
    assert 0 < report["checks"]["sparse_mla"]["figures"]["out relative error"] <= 3e-3
    assert report["size"]["ragged"] and report["size"]["batch"] == 3


def test_run_prefills_and_prints_tables():
    result = invoke("run", "prefill", "--size", "tiny", "--executor", "interpreter")
    assert result.exit_code == 0, result.output
    assert (
        "prefill step" in result.stdout
        and "matches the reference" in result.stdout
        and "as asked" in result.stdout
    )


def test_run_takes_sizes_one_by_one():
    report = data(
        "run",
        "decode",
        "-b",
        "2",
        "-l",
        "200",
        "--topk",
        "64",
        "--heads",
        "8",
        "--next-n",
        "2",
        "--executor",
        "interpreter",
    )
    assert report["ok"] and (report["size"]["batch"], report["size"]["next_n"], report["size"]["heads"]) == (
        2,
        2,
        8,
    )


def test_run_fails_when_the_output_is_wrong(monkeypatch):
    from dsl_kernels_lab import steps

    right = steps.StepInputs.run

    def wrong(self, **options):
        output = right(self, **options)
        output.out[0, 0] += 1
        return output

    monkeypatch.setattr(steps.StepInputs, "run", wrong)
    report = data("run", "decode", "--size", "tiny", "--executor", "interpreter", code=1)
    assert (
        not report["ok"]
        and not report["checks"]["sparse_mla"]["ok"]
        and report["checks"]["topk_selector"]["ok"]
    )
    result = invoke("run", "decode", "--size", "tiny", "--executor", "interpreter")
    assert "DIFFERS FROM THE REFERENCE" in result.stdout and "exceeds" in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "--size NAME"),
        (("-l", "300", "--topk", "4096"), "1 to 2048"),
        (("-l", "300", "--heads", "129"), "1 to 128"),
        (("-l", "300", "--kv", "fp4"), "joined"),
        (("-l", "6400", "--pages", "3"), "100 pages"),
        (("-l", "300", "--next-n", "9"), "1 to 8"),
        (("--workload", "nowhere.safetensors"), "no such file"),
    ],
)
def test_run_refuses_bad_sizes(args, message):
    assert message in refused("run", "decode", "--executor", "interpreter", *args)


def test_run_and_bench_refuse_a_gpu_that_is_not_there(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "a GPU for 'cuda'" in refused("run", "decode", "--size", "tiny", "--executor", "cuda")
    assert "an NVIDIA GPU" in refused("bench", "--grid", "smoke")
    assert "no GPU" in data("run", "decode", "--size", "tiny")["why"]
    assert "arch='sm_90a'" in refused("warmup")


def test_run_reads_a_workload_file(tmp_path):
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "step.safetensors"
    tensors = {
        "seq_lens": torch.tensor([130, 0], dtype=torch.int32),
        "block_table": torch.tensor([[4, 2, 9], [0, 0, 0]], dtype=torch.int32),
    }
    safetensors.save_file(tensors, str(path))
    report = data(
        "run",
        "decode",
        "--workload",
        str(path),
        "--topk",
        "64",
        "--heads",
        "8",
        "--index-heads",
        "32",
        "--executor",
        "interpreter",
    )
    assert report["ok"] and (report["size"]["batch"], report["size"]["context"], report["size"]["pages"]) == (
        2,
        130,
        10,
    )
    safetensors.save_file({**tensors, "block_tables": tensors["block_table"].clone()}, str(path))
    assert "block_table" in refused("run", "decode", "--workload", str(path), "--executor", "interpreter")
    safetensors.save_file({"seq_lens": tensors["seq_lens"]}, str(path))
    assert "no block_table" in refused("run", "decode", "--workload", str(path), "--executor", "interpreter")
    path.write_text("not a tensor file")
    assert "a safetensors file" in refused(
        "run", "decode", "--workload", str(path), "--executor", "interpreter"
    )


def test_a_finding_of_the_emulator_is_an_error_without_a_traceback(monkeypatch):
    from dsl_kernels_lab import steps
    from ptx_emulator.errors import EmulatorError

    def racing(self, **options):
        raise EmulatorError("[race] warp 2 stores what warp 1 stored")

    monkeypatch.setattr(steps.StepInputs, "run", racing)
    result = invoke("run", "decode", "--size", "tiny", "--executor", "interpreter")
    assert result.exit_code == 2 and "got:      [race] warp 2" in result.stderr and result.exception.code == 2


def test_verify_compares_and_records():
    variant = some_variant("sparse_mla")
    report = data(
        "verify", variant.id, "--tier", "tiny", "--executor", "interpreter", "--record", "--repeats", "2"
    )
    row = report["variants"][0]
    assert row["ok"] and row["workloads"] >= 1 and 0 < row["figure"] < 1
    assert data("show", variant.id)["ran"] == "interpreter"


def test_verify_fails_on_a_wrong_variant(monkeypatch):
    from dsl_kernels import executors

    class Wrong(executors.Interpreter):
        def prepare(self, variant, device=None):
            right = super().prepare(variant, device)

            def launch(operands, dims, stream=0):
                right(operands, dims, stream)
                operands["lse"] += 1

            return launch

    monkeypatch.setitem(executors.EXECUTORS, "interpreter", Wrong)
    variant = some_variant("sparse_mla")
    report = data("verify", variant.id, "--tier", "tiny", "--executor", "interpreter", "--record", code=1)
    assert any("lse absolute error" in failure for failure in report["variants"][0]["failures"])
    assert data("show", variant.id)["ran"] == "not run"


def test_verify_demands_the_same_bits_of_repeats(monkeypatch):
    from dsl_kernels import executors

    class Restless(executors.Interpreter):
        def prepare(self, variant, device=None):
            right, count = super().prepare(variant, device), iter(range(100))

            def launch(operands, dims, stream=0):
                right(operands, dims, stream)
                operands["lse"] *= 1 + 1e-7 * next(count)

            return launch

    monkeypatch.setitem(executors.EXECUTORS, "interpreter", Restless)
    args = ("verify", some_variant("sparse_mla").id, "--tier", "tiny", "--executor", "interpreter")
    assert data(*args)["ok"]
    report = data(*args, "--repeats", "3", code=1)
    assert any("same bits" in failure for failure in report["variants"][0]["failures"])


def test_compile_reports_hits_and_failures(monkeypatch):
    first, second = variants.variants("topk_selector", arch="sm_90a")[:2]
    compiled(first)
    monkeypatch.setenv("DSL_KERNELS_DISABLE_JIT", "1")
    rows = data("compile", first.id, second.id, code=1)["outcomes"]
    assert rows[0]["cached"] and rows[0]["resources"]["registers"] == 117 and rows[0]["error"] is None
    assert rows[1]["error"]["code"] == "MISSING_ARTIFACT"
    result = invoke("compile", first.id)
    assert (
        result.exit_code == 0
        and "1 variants: 0 compiled, 1 cached, 0 failed" in result.stdout
        and result.stderr == ""
    )
    assert "--all" in refused("compile")


def test_warmup_reports_each_variant(monkeypatch):
    for variant in variants.variants("topk_selector", arch="sm_100a"):
        compiled(variant)
    rows = data("warmup", "--op", "topk_selector", "--arch", "sm_100a")["warmed"]
    assert len(rows) == len(variants.variants("topk_selector", arch="sm_100a"))
    assert all(row["cached"] and not row["loaded"] and row["error"] is None for row in rows)


def test_cache_is_listed_and_cleared_only_when_confirmed():
    folder = compiled(some_variant("sparse_mla"))
    listed = data("cache", "ls")
    assert [Path(item["folder"]) for item in listed["entries"]] == [folder] and listed["bytes"] > 0
    assert "--yes" in refused("cache", "clear") and folder.is_dir()
    assert data("cache", "clear", "--yes") == {"deleted": 1, "bytes": listed["bytes"]}
    assert not folder.exists() and data("cache", "ls")["entries"] == []


def test_cache_prune_spares_the_present_set_and_can_be_tried_dry():
    present = compiled(some_variant("sparse_mla"))
    old = present.with_name(present.name[:-8] + "0" * 8)
    shutil.copytree(present, old)
    for folder in (present, old):
        for path in folder.iterdir():
            os.utime(path, (0, 0))
    tried = data("cache", "prune", "--dry-run")
    assert [Path(p["folder"]) for p in tried["pruned"]] == [old] and tried["entries"] == 2
    assert "would delete 1" in invoke("cache", "prune", "-n").stdout and old.is_dir()
    assert data("cache", "prune")["entries"] == 1 and present.is_dir() and not old.exists()
    assert data("cache", "prune", "--max-size", "0")["entries"] == 0


def test_doctor_tells_needed_from_optional(monkeypatch, tmp_path):
    rows = {row["check"]: row for row in data("doctor")["checks"]}
    assert rows["torch"]["status"] == "ok" and str(tmp_path / "cache") in rows["cache"]["found"]
    assert rows["compiled"]["found"].startswith("0 of")
    monkeypatch.setenv("DSL_KERNELS_DISABLE_JIT", "1")
    monkeypatch.setenv("DSL_KERNELS_DISABLE_JITT", "1")
    report = data("doctor", code=1)
    rows = {row["check"]: row for row in report["checks"]}
    assert not report["ok"] and rows["compiled"]["status"] == "broken"
    assert "DSL_KERNELS_DISABLE_JITT" in rows["environment"]["found"]


def gpu(arch: str | None) -> dict[str, Any]:
    return {"name": "NVIDIA GPU", "capability": "9.0", "sms": 100, "arch": arch}


@pytest.mark.parametrize(
    ("present", "bundled", "compiled_status"),
    [
        (["sm_90a"], "sm_90a", "ok"),
        (["sm_100a"], "sm_90a", "broken"),
        (["sm_90a", "sm_100a"], "sm_90a", "broken"),
        ([None], "sm_90a", "ok"),
        ([], "sm_90a", "ok"),
        (["sm_90a"], None, "broken"),
        ([], None, "broken"),
    ],
)
def test_doctor_counts_what_this_machine_needs(
    present, bundled, compiled_status, compile_by_writing, tmp_path, monkeypatch
):
    """As on a server: compiling is off and, in some cases, there is a bundle for one architecture."""
    monkeypatch.setattr("dsl_kernels.cli.machine.gpus", lambda: [gpu(arch) for arch in present])
    if bundled is not None:
        data("bundle", "write", str(tmp_path / "bundle"), "--arch", bundled)
        shutil.rmtree(tmp_path / "cache")
        monkeypatch.setenv("DSL_KERNELS_BUNDLE_DIR", str(tmp_path / "bundle"))
    monkeypatch.setenv("DSL_KERNELS_DISABLE_JIT", "1")
    rows = {row["check"]: row for row in json.loads(invoke("doctor", "--json").stdout)["checks"]}
    assert rows["compiled"]["status"] == compiled_status, rows["compiled"]
    archs = {arch for arch in present if arch} or {bundled}
    wanted = [v for v in variants.variants() if v.arch in archs or archs == {None}]
    count = sum(v.arch == bundled for v in wanted)
    named = " and ".join(sorted(archs)) if archs != {None} else "all architectures"
    assert rows["compiled"]["found"] == f"{count} of {len(wanted)} variants for {named}"
    fits = bundled is None or not {arch for arch in present if arch} or bundled in present
    assert bundled is None or (rows["bundle"]["status"] == "ok") is fits, rows["bundle"]
    needed = {name for name, row in rows.items() if row["status"] == "broken"} - {"torch and GPU"}
    expected = set() if compiled_status == "ok" else {"compiled"}
    assert needed == expected | ({f"GPU {i}" for i, arch in enumerate(present) if arch is None}) | (
        set() if fits else {"bundle"}
    )


def test_doctor_notes_a_gpu_without_a_row(monkeypatch):
    known = {"name": "NVIDIA H20", "capability": "9.0", "sms": 78, "arch": "sm_90a"}
    monkeypatch.setattr("dsl_kernels.cli.machine.gpus", lambda: [known, gpu("sm_90a"), gpu(None)])
    rows = {row["check"]: row for row in json.loads(invoke("doctor", "--json").stdout)["checks"]}
    assert [rows[f"GPU {i}"]["status"] for i in range(3)] == ["ok", "note", "broken"]
    assert rows["GPU 0"]["found"] == "NVIDIA H20, 9.0, 78 SMs, sm_90a"
    assert "no row for NVIDIA GPU on sm_90a: the rates of the H200, for 100 SMs" in rows["GPU 1"]["found"]


def test_doctor_says_whose_tuned_table_chooses(monkeypatch, tmp_path):
    checks = [
        {"name": name, "capability": "9.0", "sms": sms, "arch": arch}
        for name, sms,
        arch in (("NVIDIA H200", 132, "sm_90a"), ("NVIDIA H20", 78, "sm_90a"),
                 ("NVIDIA B200", 148, "sm_100a"))
    ]  # fmt: skip
    monkeypatch.setattr("dsl_kernels.cli.machine.gpus", lambda: checks)
    monkeypatch.setattr(measured, "TUNED", Path(measured.__file__).parent / "tuned")
    rows = {row["check"]: row for row in json.loads(invoke("doctor", "--json").stdout)["checks"]}
    # Forms for which no card has a table are not reported.
    tuned = {(entry["op"], entry["form"]) for entry in measured.tuned_table("NVIDIA H200")}
    every = {op: [*problems.get(op).forms] for op in problems.names()}
    split = [op for op in every if len({(op, form) in tuned for form in every[op]}) == 2]
    spelled = {op: [f"{op} {form}" for form in every[op]] if op in split else [op] for op in every}
    chosen = {
        name: tuple(name.split()) in tuned or (name, every[name.split()[0]][0]) in tuned
        for op in every
        for name in spelled[op]
    }
    own = ", ".join(name for name, there in chosen.items() if there)
    none = ", ".join(name for name, there in chosen.items() if not there)
    split = bool(none)
    whole = ", ".join(every)
    assert [(rows[f"tuned table {i}"]["status"], rows[f"tuned table {i}"]["found"]) for i in range(3)] == [
        ("note", f"its own for {own}; none for {none}") if split else ("ok", f"its own for {own}"),
        ("note", f"the H200's, with scaled times for {own}" + (f"; none for {none}" if split else "")),
        ("note", f"none for {whole}"),
    ]
    damaged = tmp_path / "tuned"
    damaged.mkdir()
    (damaged / "nvidia_h200.json").write_text("{")
    monkeypatch.setattr(measured, "TUNED", damaged)
    rows = {row["check"]: row for row in json.loads(invoke("doctor", "--json").stdout)["checks"]}
    # A broken table is reported for its own card, and for no other.
    assert [rows[f"tuned table {i}"]["status"] for i in range(3)] == ["broken", "note", "note"]


def test_a_backend_says_what_is_too_old_or_cannot_be_imported(monkeypatch):
    """Metadata alone does not make a DSL usable, and one that is too old cannot compile."""
    older = {"nvidia-cutlass-dsl": "4.7.1", "tilelang": "0.1.12"}
    monkeypatch.setattr(importlib.metadata, "version", older.__getitem__)
    for name in ("cutedsl", "tilelang"):
        with pytest.raises(
            ToolchainError, match=r"or newer; got (4\.7\.1|0\.1\.12)\. .*another DSL's variants"
        ):
            backends.get(name).versions()
    monkeypatch.undo()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "data" / "unimportable"))
    machine._unusable.cache_clear()
    reasons = machine._unusable(tuple(backends.names()))
    machine._unusable.cache_clear()
    assert set(reasons) == {"tilelang"} and "half an installation" in reasons["tilelang"]


def test_doctor_imports_no_dsl_from_the_current_folder(monkeypatch, tmp_path):
    (tmp_path / "dsl_kernels.py").write_text("raise SystemExit('a module of the current folder')\n")
    monkeypatch.chdir(tmp_path)
    machine._unusable.cache_clear()
    # A backend of no name: the package itself is found, and says so.
    assert "UnknownNameError" in machine._unusable(("none",))["none"]
    machine._unusable.cache_clear()


def test_doctor_asks_each_backend_what_it_lacks(monkeypatch):
    def missing(self):
        raise ToolchainError("some-dsl", expected="SomeDSL 1.0", got="not installed", fix="install some-dsl")

    name = backends.names()[0]
    monkeypatch.setattr(type(backends.get(name)), "versions", missing)
    rows = {row["check"]: row for row in json.loads(invoke("doctor", "--json").stdout)["checks"]}
    assert set(backends.names()) <= set(rows)
    assert rows[name] == {
        "check": name, "status": "note", "found": f"some-dsl: not installed (for compiling {name} variants)",
        "fix": "install some-dsl",
    }  # fmt: skip
    assert bench.environment()["versions"]["some-dsl"] is None


def test_doctor_says_that_a_cache_is_not_to_be_trusted(tmp_path):
    folder = compiled(some_variant("topk_selector"))
    folder.parent.chmod(0o777)
    report = data("doctor", code=1)
    row = next(row for row in report["checks"] if row["check"] == "cache")
    assert row["status"] == "broken" and "others may write" in row["found"] and "chmod" in row["fix"]
    folder.parent.chmod(0o755)
    # What TileLang makes by the umask in its own folder concerns nobody else.
    (other := cache.cache_root() / "tilelang" / "0.1.15").mkdir(parents=True, exist_ok=True)
    other.chmod(0o775)
    rows = json.loads(invoke("doctor", "--json").stdout)["checks"]
    assert next(row for row in rows if row["check"] == "cache")["status"] == "ok"


def test_doctor_finds_a_generated_set_that_was_edited(declared, tmp_path, monkeypatch):
    manifest = json.loads((declared / "manifest.json").read_text())
    record = manifest["variants"][0]
    assert record["sha256"] == hashlib.sha256(TEXT.encode()).hexdigest()
    record["sha256"] = "0" * 64
    for item in manifest["variants"]:
        path = tmp_path / "set" / item["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEXT)
    (tmp_path / "set" / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setenv("DSL_KERNELS_GENERATED_DIR", str(tmp_path / "set"))
    rows = {row["check"]: row for row in data("doctor", code=1)["checks"]}
    assert rows["generated set"]["status"] == "broken" and record["id"] in rows["generated set"]["found"]
    monkeypatch.setenv("DSL_KERNELS_GENERATED_DIR", str(tmp_path / "nothing"))
    result = invoke("doctor")
    assert result.exit_code == 1 and "make generate" in result.stdout


def test_the_process_exits_with_two_and_no_traceback(declared, tmp_path):
    settings = {
        **os.environ,
        "DSL_KERNELS_GENERATED_DIR": str(declared),
        "DSL_KERNELS_CACHE_DIR": str(tmp_path),
    }

    def process(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "dsl_kernels", *args],
            capture_output=True,
            text=True,
            check=False,
            env=settings,
        )

    bad = process("show", "nonsense")
    assert (
        bad.returncode == 2
        and bad.stdout == ""
        and "error[UNKNOWN_NAME]" in bad.stderr
        and "Traceback" not in bad.stderr
    )
    good = process("list", "--op", "topk_selector", "--json")
    assert (
        good.returncode == 0
        and good.stderr == ""
        and len(json.loads(good.stdout)["variants"]) == len(variants.variants("topk_selector"))
    )
    assert process("--version").stdout.strip() == dsl_kernels.__version__


def test_start_up_imports_neither_torch_nor_a_dsl():
    heavy = "{'torch', 'tilelang', 'cutlass', 'jinja2', 'numpy'}"
    code = f"import sys, dsl_kernels.cli; sys.exit(len({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ids_and_numbers_stay_whole_in_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = invoke("list", "--op", "sparse_mla").stdout.splitlines()
    for variant in variants.variants("sparse_mla", arch="sm_90a"):
        line = next(line for line in lines if f" {variant.id} " in line)
        assert f" {variant.declared['smem_bytes']} " in line


@pytest.fixture
def compile_by_writing(monkeypatch):
    """Compiles by leaving an artifact in the cache, and records what was compiled."""
    asked: list[str] = []

    def compile_all(modules, jobs=None):
        for module in modules:
            asked.append(module.id)
            yield pool.Outcome(module.id, 0.1, cached=False, folder=compiled(module))

    monkeypatch.setattr(pool, "compile_all", compile_all)
    return asked


def test_bundle_writes_what_the_filters_leave(compile_by_writing, tmp_path):
    target = tmp_path / "bundle"
    report = data(
        "bundle", "write", str(target), "--arch", "sm_90a", "--op", "sparse_mla", "--filter", "h16_bf16"
    )
    wanted = [v.id for v in variants.variants("sparse_mla", arch="sm_90a") if "h16_bf16" in v.id]
    assert compile_by_writing == wanted and report["variants"] == len(wanted) and report["arch"] == "sm_90a"
    assert report["toolchains"] == {"tilelang": {"nvcc": "13.0.88"}} and report["bundle"] == str(target)
    checked = data("bundle", "check", str(target))["checked"]
    assert sorted(row["variant"] for row in checked) == sorted(wanted) and not any(
        r["error"] for r in checked
    )
    assert (
        f"{len(wanted)} of {len(wanted)} variants are whole" in invoke("bundle", "check", str(target)).stdout
    )


def test_bundle_check_ends_with_status_1_on_damage(compile_by_writing, tmp_path):
    variant, target = some_variant("topk_selector"), tmp_path / "bundle"
    data("bundle", "write", str(target), variant.id)
    (target / "extra").write_text("")
    result = invoke("bundle", "check", str(target))
    assert result.exit_code == 1 and str(target / "extra") in result.stderr
    assert data("bundle", "check", str(target), code=1)["strays"]
    (target / "extra").unlink()
    (target / variant.id / "kernel.cubin").write_text("damaged")
    result = invoke("bundle", "check", str(target))
    assert result.exit_code == 1 and "BUNDLE_DAMAGED" in result.stderr
    assert "broken" in invoke_with_bundle(target, "doctor").stdout


def invoke_with_bundle(target: Path, *args: str) -> Any:
    return CliRunner().invoke(app, list(args), env={"DSL_KERNELS_BUNDLE_DIR": str(target)})


def test_listings_look_into_the_bundle_before_the_cache(compile_by_writing, tmp_path):
    variant, target = some_variant("topk_selector"), tmp_path / "bundle"
    data("bundle", "write", str(target), variant.id)
    shutil.rmtree(tmp_path / "cache")
    assert not data("show", variant.id)["cached"]
    assert json.loads(invoke_with_bundle(target, "show", variant.id, "--json").stdout)["resources"]
    shown = invoke_with_bundle(target, "show", variant.id, "--sass").stdout.strip()
    assert shown == str(target / variant.id / "kernel.cubin")
    assert "--ptx" in invoke_with_bundle(target, "show", variant.id, "--ptx").stderr


def test_bundle_holds_what_a_tuned_table_chooses(compile_by_writing, tmp_path, monkeypatch):
    winners = [some_variant("sparse_mla").id, some_variant("topk_selector").id]
    entries = [{"variant": winner} for winner in [*winners, winners[0]]]
    measured.TUNED.mkdir()
    (measured.TUNED / "nvidia_h200.json").write_text(
        json.dumps({"schema": measured.TUNED_SCHEMA, "entries": entries})
    )
    assert data("bundle", "write", str(tmp_path / "b"), "--tuned", "NVIDIA H200")["variants"] == 2
    assert sorted(compile_by_writing) == sorted(winners)
    assert "tuned table" in refused("bundle", "write", str(tmp_path / "c"), "--tuned", "NVIDIA H300")


def test_bundle_refuses_before_it_compiles(compile_by_writing, tmp_path, monkeypatch):
    monkeypatch.setattr("dsl_kernels.cli.bundle.gpus", lambda: [])
    assert "--arch" in refused("bundle", "write", str(tmp_path / "b"))
    assert "leave a variant" in refused(
        "bundle", "write", str(tmp_path / "b"), "--arch", "sm_90a", "--filter", "x9z"
    )
    (tmp_path / "notes").write_text("keep")
    assert "no bundle" in refused("bundle", "write", str(tmp_path), "--arch", "sm_90a", "--force")
    assert compile_by_writing == []


def test_bundle_is_not_written_when_a_variant_does_not_compile(tmp_path, monkeypatch):
    def compile_all(modules, jobs=None):
        for module in modules:
            error = CompileError(module.id, expected="a compile", got="none", fix="see the DSL's message")
            yield pool.Outcome(module.id, 0.1, cached=False, error=error)

    monkeypatch.setattr(pool, "compile_all", compile_all)
    assert "expected: a compile" in refused("bundle", "write", str(tmp_path / "b"), "--arch", "sm_90a")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("dim", ["t=--5", "t=²", "t", "=1", "t=1=2", "t=" + "9" * 5000])
def test_a_size_that_is_no_number_is_refused(dim):
    assert "name=integer" in refused("explain", "sparse_mla", "--dim", dim)


def test_a_cache_of_endless_size_is_refused():
    assert "--max-size" in refused("cache", "prune", "--max-size", "inf")
