"""Every committed variant's PTX, run under several interleavings, equals the reference without findings."""

from __future__ import annotations

import shutil

import kernel_folders
import pytest
import torch

from dsl_kernels import variants
from dsl_kernels.executors import Emulator
from dsl_kernels.problems.layouts import LATENT_DIM, V4_ROW_BYTES, V4_SCALE_BYTES, V41_TOKEN_BYTES
from dsl_kernels_lab import oracles
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial
from dsl_kernels_lab.verification.reach import attended_heads
from ptx_emulator import Interleaving

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.compile,
    pytest.mark.skipif(
        shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler"
    ),
]

INTERLEAVINGS = {
    "lockstep": Interleaving.lockstep(),
    "random": Interleaving.random(1),
    "adversarial": Interleaving.adversarial(2),
}
SIZES = kernel_folders.of_each("sizes")


def cases():
    """Every interleaving on a variant's first workload; on its other workloads, the interleavings in turn.

    The workloads are those of its folder that reach most paths at a small size; without them the tiny ones.
    """
    parameters = []
    for number, variant in enumerate(variants.variants()):
        tiny, edge = (trial.workloads(variant, tier) for tier in ("tiny", "edge"))
        begin = getattr(SIZES.get(variant.op), "EMULATED", ())
        small = [workload for workload in (*tiny, *edge) if workload.name.startswith(begin)] or tiny
        for place, workload in enumerate(small):
            chosen = (
                INTERLEAVINGS.items()
                if place == 0
                else [list(INTERLEAVINGS.items())[(number + place) % len(INTERLEAVINGS)]]
            )
            parameters += [
                pytest.param(variant, workload, interleaving, id=f"{variant.id}-{workload.name}-{name}")
                for name, interleaving in chosen
            ]
    return parameters


@pytest.mark.sample(100)
@pytest.mark.parametrize("variant,workload,interleaving", cases())
def test_emulated_ptx_matches_the_reference(variant, workload, interleaving) -> None:
    result = trial.run(
        variant, workload, Emulator(interleaving), example=trial.cached_example(variant.op, workload)
    )
    assert result.comparison.ok, result.comparison.failures


def test_an_emulator_runs_another_interleaving_with_the_launcher_that_it_has() -> None:
    variant = variants.variants("merge_outputs", arch="sm_100a")[0]
    (workload, *_), executor = trial.workloads(variant, "tiny"), Emulator()
    launcher = executor.prepare(variant)
    executor.interleaving = Interleaving.random(3)
    assert trial.run(variant, workload, executor).comparison.ok
    assert executor.prepare(variant) is launcher and executor.report.interleaving == Interleaving.random(3)


def whole_rows():
    """Attention variants with one CTA per row, which write the result of a single split without a merge."""
    parameters = []
    for variant in variants.variants("sparse_mla"):
        if variant.knobs["cluster"] > 1:
            continue
        workload = next(
            w for w in trial.workloads(variant, "tiny") if w.name.startswith(("tiny_h8", "tiny_h4"))
        )
        parameters.append(pytest.param(variant, workload, id=variant.id))
    return parameters


@pytest.mark.sample(36)
@pytest.mark.parametrize("variant,workload", whole_rows())
def test_attention_that_is_not_split_has_no_finding(variant, workload) -> None:
    result = trial.run(
        variant,
        workload,
        Emulator(Interleaving.random(3)),
        example=trial.cached_example(variant.op, workload),
        launch={"splits": 1},
    )
    assert result.comparison.ok, result.comparison.failures


def ways_to_gather():
    """One variant for each way in which attention reads its rows."""
    by_way = {}
    for variant in variants.variants("sparse_mla"):
        k = variant.knobs
        key = (
            variant.arch,
            variant.backend,
            k["kv"],
            *(k.get(name) for name in ("slices", "gather")),
            k.get("block") == 64,
        )
        by_way.setdefault(key, pytest.param(variant, id=variant.id))
    return list(by_way.values())


@pytest.mark.sample(14)
@pytest.mark.parametrize("variant", ways_to_gather())
def test_rows_that_no_id_names_may_hold_anything(variant) -> None:
    """A tile with padding reads no row in its place, not even row 0, which may never have been written."""
    kv = variant.knobs["kv"]
    sizes = {"t": 3, "heads": attended_heads(variant.knobs), "topk": 256, "n": 512, "ids": "holes"}
    workload = Workload("unnamed_rows", "edge", kv, sizes)
    inputs = trial.draw("sparse_mla", workload, 0)
    ids = inputs["indices"]
    ids[ids == 0] = ids[ids > 0][0]
    unnamed = torch.ones(512, dtype=torch.bool)
    unnamed[ids[(ids >= 0) & (ids < 512)].long()] = False
    for name in {"fp8": ("kv_cache",), "nope8": ("kv_cache",), "bf16": ("ckv", "kpe")}.get(kv, ()):
        rows = inputs[name].view(torch.uint8)
        rows[unnamed] = 0x7F
    if kv == "v4":
        # Drawn pages already contain NaN, except where token 0 is.
        page, scales = inputs["kv_pages"][0], inputs["page_size"] * V4_ROW_BYTES
        page[:V4_ROW_BYTES] = 0x7F
        page[scales : scales + V4_SCALE_BYTES] = 0xFF
    if kv == "v41":
        inputs["kv_pages"][0, :LATENT_DIM] = 0x7F
        inputs["kv_pages"][0, LATENT_DIM:V41_TOKEN_BYTES] = 0xFF
    expected = oracles.get("sparse_mla").reference(kv, inputs)
    result = trial.run(variant, workload, Emulator(), example=trial.Example(inputs, expected))
    assert result.comparison.ok, result.comparison.failures


@pytest.mark.parametrize(
    "variant",
    [
        pytest.param(v, id=v.id)
        for v in variants.variants("lightning_indexer")
        if v.knobs["mode"] == "prefill"
    ],
)
def test_a_ring_that_wraps_waits_for_every_scoring_group(variant) -> None:
    """One split with more key tiles than the ring has slots; a small workload gives each CTA only one."""
    k = variant.knobs
    tiles = 2 * k["stages"] + 1
    form, heads = ("prefill_mxfp4", "index_heads") if k["kind"].startswith("mxfp4") else ("prefill", "heads")
    dims = {"s": 5, "skv": tiles * k["tile"] - 5, heads: k["heads"], "windows": "ragged"}
    workload = trial.fitted(variant, Workload(f"{form}_wrap", "edge", form, dims))
    result = trial.run(variant, workload, Emulator(Interleaving.adversarial(2)), launch={"splits": 1})
    assert result.comparison.ok, result.comparison.failures


def test_the_command_reports_each_schedule_and_what_was_counted() -> None:
    import json

    from typer.testing import CliRunner

    from dsl_kernels.cli import app

    variant = next(v for v in variants.variants("sparse_mla", arch="sm_100a") if v.knobs["heads"] == 16)
    arguments = [
        "emulate",
        variant.id,
        "--interleavings",
        "2",
        "--seed",
        "4",
        "--workload",
        "ids_mixed",
        "--coverage",
        "--json",
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["ok"] and [run["interleaving"] for run in report["runs"]] == [
        "Interleaving('lockstep')",
        "Interleaving('random', seed=4)",
    ]
    assert all(
        run["instructions"] > 0 and run["counters"]["stats"]["global_read"] > 0 for run in report["runs"]
    )
    reached = report["coverage"]
    assert 0.5 * reached["instructions"] < reached["executed"] < reached["instructions"]
    assert any(b["phases"] for b in reached["barriers"])
    # Lines are numbered as in the module, which can be read.
    number = int(reached["one_way"][0]["line"].rpartition(":")[2])
    assert number <= len(variant.path.read_text().splitlines())
    # Concurrent runs do not affect one another.
    alone = json.loads(CliRunner().invoke(app, [*arguments, "--jobs", "1"]).stdout)
    for run in (*report["runs"], *alone["runs"]):
        run.pop("seconds")
    assert alone == report
    text = CliRunner().invoke(app, [*arguments[:-1], "--interleavings", "1"]).output
    assert "instructions executed" in text and "lines never executed" in text


def read_by_element():
    """One variant per architecture, DSL, operation and form, and its operands of 4-byte alignment."""
    by_form = {}
    for variant in variants.variants():
        workload = trial.workloads(variant, "tiny")[0]
        # What other ranks hold too lies as far from this rank's as the call says.
        specs = oracles.get(variant.op).operands(workload.form)
        names = [s.name for s in specs if s.align == 4 and not s.peers]
        if names:
            key = (variant.arch, variant.backend, variant.op, workload.form)
            by_form.setdefault(key, pytest.param(variant, workload, names, id=variant.id))
    return list(by_form.values())


@pytest.mark.sample(36)
@pytest.mark.parametrize("variant,workload,names", read_by_element())
def test_operands_read_by_element_may_begin_on_any_element(variant, workload, names) -> None:
    example = trial.cached_example(variant.op, workload)
    operands, dims = trial.allocate(variant, workload, example.inputs)
    for name in names:
        given = operands[name]
        extent = sum((size - 1) * step for size, step in zip(given.shape, given.stride(), strict=True)) + 1
        room = torch.empty(extent + 32, dtype=given.dtype)
        first = -room.data_ptr() % 16 // 4 + 1
        operands[name] = room.as_strided(given.shape, given.stride(), first).copy_(given)
    Emulator().prepare(variant)(operands, dims)
    outputs = trial.on_cpu(operands)
    comparison = oracles.get(variant.op).compare(workload.form, example.inputs, outputs, example.expected)
    assert comparison.ok, comparison.failures
