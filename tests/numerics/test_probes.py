"""Probes: absent at 0; otherwise the same bits, and every cycle of a warp in one region."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kernel_folders
import pytest
import sampling
import torch
from typer.testing import CliRunner

from codegen.emit import emit
from codegen.render import render
from codegen.sweep import instance_of, leaf_modules
from dsl_kernels import backends, ops, programs, registry, variants
from dsl_kernels.arch import ARCHS, ArchSpec, get_arch
from dsl_kernels.cli import app
from dsl_kernels.device.torch import probes as leaf
from dsl_kernels.errors import DeclarationError, ToolchainError
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels.runtime import pool, toolkit
from dsl_kernels.tile import probes
from dsl_kernels.tile import text as t
from dsl_kernels.tile.frontend import recorded
from dsl_kernels.tile.lang import START, Body
from dsl_kernels.variants import Variant
from dsl_kernels_lab import oracles, profile
from dsl_kernels_lab.profile import readings, regions, timeline
from dsl_kernels_lab.verification import trial

SIZES = kernel_folders.of_each("sizes")
# Only run with TEST_ALL=1.
SLOW = {(op, *key) for op, module in SIZES.items() for key in getattr(module, "SLOW", ())}
TRACED = {(op, *key) for op, module in SIZES.items() for key in getattr(module, "TRACED", ())}


def cheap(op: str, backend: str, arch: str) -> Variant | None:
    """The variant of a program, DSL and architecture that compiles fastest."""
    committed = variants.variants(op, backend, arch)
    begin = getattr(SIZES.get(op), "CHEAP", {}).get(arch, "")
    named = (v for v in committed if v.id.split("__")[2].startswith(begin))
    return next(named, committed[0] if committed else None)


def chosen(full: bool = True) -> list[Variant]:
    """A variant of each program, DSL and architecture, or only those that compile quickly."""
    every = product(programs.names(), backends.names(), ARCHS)
    return [v for key in every if (full or key not in SLOW) and (v := cheap(*key)) is not None]


def marks(statements: t.Statement) -> list[str]:
    """Names of the regions that end with a mark, in the order of the text."""
    return [
        s.arguments[3].spelled
        for s in t.walk(statements)
        if isinstance(s, t.Call) and s.leaf.name == "mark_region"
    ]


@pytest.mark.parametrize("variant", chosen(), ids=lambda variant: variant.id)
def test_nothing_shows_of_probes_that_are_off(variant: Variant) -> None:
    off = instance_of(variant)
    off.knobs["probe"] = 0
    assert off.id == variant.id
    assert render(off) == variant.source
    assert probes.WORKSPACE not in off.program.own_operands(off.knobs)


def emulated(test: Callable[..., None]) -> Callable[..., None]:
    compilers = shutil.which("c++") or shutil.which("g++")
    for mark in (
        pytest.mark.emulator,
        pytest.mark.compile,
        pytest.mark.skipif(not compilers, reason="needs a C++ compiler"),
    ):
        test = mark(test)
    return test


def same_bits(variant: Variant, mode: int, folder: Path) -> tuple[probes.Probed, torch.Tensor]:
    """Compare a variant with probes with the one without; returns what its probes wrote."""
    emit([instance_of(variant, mode)], folder)
    (probed,) = variants.in_folder(folder)
    workload = min(trial.workloads(variant, "tiny"), key=lambda w: str(w.params))
    example = trial.cached_example(variant.op, workload)
    plain, counted = (trial.run(v, workload, Emulator(), example=example) for v in (variant, probed))
    assert counted.comparison.ok, counted.comparison.failures
    program = programs.get(variant.op)
    for spec in program.problem.operands(workload.form):
        if spec.kind == "out":
            bits = [run.operands[spec.name].contiguous().view(torch.uint8) for run in (plain, counted)]
            assert torch.equal(*bits), spec.name
    return program.probes(probed.knobs, get_arch(variant.arch)), counted.operands["probe"]


@pytest.mark.sample(6)
@emulated
@pytest.mark.parametrize(
    ("variant", "mode"),
    [(v, mode) for v in chosen(sampling.ALL) for mode in (probes.SUMS,
        probes.COARSE) if mode == probes.SUMS or (v.op, v.backend, v.arch) in TRACED],
    ids=lambda value: getattr(value, "id", value),
)  # fmt: skip
def test_probes_change_no_bit_and_lose_no_cycle(variant: Variant, mode: int, tmp_path: Path) -> None:
    layout, workspace = same_bits(variant, mode, tmp_path)
    assert layout.text.leaves >= {"read_clock", "mark_region", "begin_sums", "end_sums"}
    for role in layout.regions:
        cycles = readings.read(layout, workspace, role)
        assert cycles.spent.sum(-1).eq(cycles.elapsed).all()
        assert cycles.elapsed.gt(0).all()
        assert cycles.spent[..., 0].gt(0).all()


@pytest.mark.compile
def test_sums_leave_the_products_of_a_group_in_flight_together(tmp_path: Path) -> None:
    """If accumulators leave few registers, ptxas would await each product, as it does under a trace."""
    variant = variants.get("sparse_mla__cutedsl_sm90a__h128_fp8_bt64_st2_cl1_hb64")
    folder = tmp_path / "generated"
    emit([instance_of(variant, probes.SUMS)], folder)
    (outcome,) = pool.compile_all(variants.in_folder(folder))
    assert outcome.error is None and outcome.folder is not None, outcome.error
    command = [str(toolkit.nvdisasm().path), "-c", "kernel.cubin"]
    sass = subprocess.run(command, cwd=outcome.folder, capture_output=True, text=True, check=True).stdout
    assert sass.count("WARPGROUP.DEPBAR") < sass.count("GMMA.64x")


@emulated
@pytest.mark.parametrize(
    "variant",
    [v for v in chosen() if sampling.ALL or (v.op, v.backend, v.arch) in TRACED],
    ids=lambda variant: variant.id,
)
def test_a_trace_changes_no_bit_and_has_no_gap(variant: Variant, tmp_path: Path) -> None:
    layout, workspace = same_bits(variant, probes.TRACE, tmp_path)
    for role in layout.regions:
        for warp in readings.trace(layout, workspace, role, [0]):
            assert not warp.full and warp.passages[0].region == probes.BEGIN
            ends = [passage.end for passage in warp.passages]
            assert [passage.begin for passage in warp.passages[1:]] == ends[:-1]
            assert all(passage.begin < passage.end for passage in warp.passages)


def test_every_region_ends_with_its_mark() -> None:
    variant = variants.get("sparse_mla__cutedsl_sm90a__h8_bf16_bt64_st2_cl2_sl2")
    program, knobs = programs.get(variant.op), {**variant.knobs, "probe": probes.SUMS}
    probe_texts = program.probes(knobs, get_arch(variant.arch))
    gather = [name.removeprefix("GATHER_") for name in marks(probe_texts.text.roles["gather"])]
    assert gather == [
        "START",
        "VOTE",
        "FIND_ROWS",
        "READ_IDS",
        "ACQUIRE_KV",
        "COPY_ROWS",
        "COMMIT_KV",
        "WAIT_CLUSTER",
    ]
    assert probe_texts.regions["gather"][4] == "acquire kv"


def test_coarse_probes_tell_waits_from_work() -> None:
    variant = variants.get("sparse_mla__cutedsl_sm90a__h8_bf16_bt64_st2_cl2_sl2")
    program = programs.get(variant.op)
    fine, coarse = (
        program.probes({**variant.knobs, "probe": mode}, get_arch(variant.arch))
        for mode in (probes.SUMS, probes.COARSE)
    )
    gather = [name.removeprefix("GATHER_") for name in marks(coarse.text.roles["gather"])]
    assert gather == ["START", "WORK", "ACQUIRE_KV", "WORK", "WAIT_CLUSTER"]
    for role, names in fine.regions.items():
        waits = {name for name in names if name.startswith(probes.WAITS)}
        assert set(coarse.regions[role]) == {*waits, probes.BEGIN, probes.WORK}
        assert len(marks(coarse.text.roles[role])) < len(marks(fine.text.roles[role]))


def test_a_body_names_a_region_and_neighbours_of_one_name_are_one() -> None:
    @t.leaf
    def first(x: object) -> None:
        """One."""

    @t.leaf
    def second(x: object) -> None:
        """Two."""

    @recorded
    def body(m: t.Recorder) -> None:
        first(m, 1)
        for _ in range(m.dim("n")):
            first(m, 1)
            twice = m.dim("n") * 2
            first(m, twice)
            with m.region("both"):
                first(m, 3)
                second(m, 3)
        second(m, 4)

    arch = get_arch("sm_90a")
    variant = cheap("resample_trajectories", "cutedsl", "sm_90a")
    assert variant is not None
    schedule = programs.get(variant.op).schedule(variant.knobs, arch)
    (role,) = schedule.roles
    m = t.Recorder(SimpleNamespace(), schedule, arch, role.name)
    body(m)
    probed = probes.probed(t.Text((), {role.name: tuple(m.statements)}), schedule, probes.SUMS)
    assert probed.regions == {role.name: ("start", "first", "both", "second")}
    names = [name.split("_")[-1] for name in marks(probed.text.roles[role.name])]
    assert names == ["START", "FIRST", "FIRST", "BOTH", "SECOND"]


def test_a_region_that_a_body_names_changes_nothing_else() -> None:
    variant = cheap("lightning_indexer", "cutedsl", "sm_90a")
    assert variant is not None
    program, arch = programs.get(variant.op), get_arch(variant.arch)

    def named(body: Body) -> Body:
        def whole(m: t.Recorder, *shared: Any) -> None:
            with m.region("all of it"):
                body(m, *shared)

        return whole

    def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
        held = program.bodies(k, arch)
        return {part: body if part == START else named(body) for part, body in held.items()}

    changed = dataclasses.replace(program, bodies=bodies)
    assert render(dataclasses.replace(instance_of(variant), program=changed)) == variant.source
    regions_of = changed.probes({**variant.knobs, "probe": probes.SUMS}, arch)
    assert set(regions_of.regions.values()) == {("start", "all of it")}


def test_the_interpreter_runs_a_probed_text() -> None:
    variant = cheap("resample_trajectories", "cutedsl", "sm_90a")
    assert variant is not None
    probed = Variant(
        "probed", variant.op, variant.backend, variant.arch, {**variant.knobs, "probe": 1}, variant.path
    )
    workload = trial.workloads(variant, "tiny")[0]
    assert trial.run(
        probed, workload, Interpreter(), example=trial.cached_example(variant.op, workload)
    ).comparison.ok


@emulated
def test_the_command_prints_regions_by_role(tmp_path: Path) -> None:
    variant = cheap("resample_trajectories", "cutedsl", "sm_90a")
    assert variant is not None
    argv = ["profile", "regions", variant.id, "--executor", "emulator", "--dim", "b=3", "--json"]
    done = CliRunner().invoke(app, argv)
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert (report["variant"], report["dims"]["b"]) == (variant.id, 3)
    assert "emulator" in report["clock"]
    (role,) = report["roles"]
    assert sum(region["share"] for region in role["regions"]) == pytest.approx(1, abs=0.01)
    assert role["lost"] == pytest.approx(0, abs=0.01)
    assert 0 < role["ticks"]["most"] <= report["cta"]["most"]
    assert {region["region"] for region in role["regions"]} >= {"start"}
    kept, other = tmp_path / "regions.json", tmp_path / "other.json"
    kept.write_text(done.stdout)
    beside = CliRunner().invoke(app, ["profile", "diff", str(kept), str(kept)])
    assert beside.exit_code == 0 and "sample: start" in beside.stdout
    for got in ("no file", "something else"):
        refused = CliRunner().invoke(app, ["profile", "diff", str(other), str(kept)])
        assert refused.exit_code == 2 and str(other) in refused.stderr and got in refused.stderr
        other.write_text("[]")


@emulated
@pytest.mark.parametrize("mode", [probes.SUMS, probes.TRACE, probes.COARSE])
def test_an_op_runs_a_variant_with_probes(mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variant = cheap("resample_trajectories", "cutedsl", "sm_90a")
    assert variant is not None
    emit([instance_of(variant, mode)], tmp_path)
    monkeypatch.setenv("DSL_KERNELS_GENERATED_DIR", str(tmp_path))
    (probed,) = variants.variants()
    workload = trial.workloads(variant, "tiny")[0]
    example = trial.cached_example(variant.op, workload)
    call = trial.call_of(probed, workload, example.inputs)
    assert "has probes" in (registry.refusal(call, probed) or "")
    workspace = ops.Workspace()
    operands = {spec.name: None for spec in oracles.get(variant.op).operands(workload.form)} | example.inputs
    ops.clear()
    try:
        ops._base.run(variant.op, workload.form, operands, "emulator", probed.id, workspace=workspace)
    finally:
        ops.clear()
    layout = programs.get(variant.op).probes(probed.knobs, get_arch(variant.arch))
    (role,) = layout.regions
    cycles = readings.read(layout, operands["probe"], role)
    assert cycles.elapsed.gt(0).all()
    assert (
        operands["probe"].numel()
        == layout.ctas(trial.dims_of(variant.op, workload, example.inputs)) * 4 * layout.words
    )
    assert workspace.bytes >= operands["probe"].numel() * 4


@emulated
def test_a_timeline_has_every_passage_in_order(tmp_path: Path) -> None:
    variant = cheap("lightning_indexer", "cutedsl", "sm_90a")
    assert variant is not None
    trace, picture = tmp_path / "trace.json", tmp_path / "trace.png"
    argv = ["profile", "timeline", variant.id, "--executor", "emulator", "--ctas", "2", "--out", str(trace)]
    drawn = ["--png", str(picture)] if importlib.util.find_spec("matplotlib") else []
    done = CliRunner().invoke(app, [*argv, *drawn])
    assert done.exit_code == 0, done.output
    assert not drawn or picture.read_bytes().startswith(b"\x89PNG")
    report = json.loads(trace.read_text())
    assert report["otherData"]["clock"].startswith("ticks of the emulator")
    events = report["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        "CTA 0 on SM 0",
        "CTA 1 on SM 1",
    }
    lines = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    names = {name for (cta, _), name in lines.items() if cta == 0}
    assert {"score, warp 0", "load, warp 4", timeline.TENSOR_CORE} <= names
    for place, name in lines.items():
        spans = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == place]
        ends = [e["ts"] + e["dur"] for e in spans]
        # One region begins where the one before it ends.
        apart = [b["ts"] - end for b, end in zip(spans[1:], ends, strict=False)]
        assert all(abs(x) < 1e-3 for x in apart) or name == timeline.TENSOR_CORE
        assert spans[0]["name"] == "start" or name == timeline.TENSOR_CORE
        assert all(e["dur"] >= 0 for e in spans)
    waits = {e["name"] for e in events if e.get("cat") == "wait"}
    assert {name.split()[0] for name in waits} >= {"wait", "acquire"}


def test_a_product_is_done_where_what_it_reads_is_released() -> None:
    variant = cheap("gqa_forward", "cutedsl", "sm_90a")
    assert variant is not None
    schedule = programs.get(variant.op).schedule(variant.knobs, get_arch(variant.arch))
    assert timeline._known_by(schedule, ["qk"]) == {"await products", "release q", "release k"}
    assert timeline._known_by(schedule, ["pv"]) == {"await products", "release v"}


@pytest.mark.parametrize("marks", [5, probes.RING, probes.RING + 3, 2 * probes.RING + 40])
def test_a_ring_keeps_the_last_marks(marks: int) -> None:
    variant = cheap("resample_trajectories", "cutedsl", "sm_90a")
    assert variant is not None
    program = programs.get(variant.op)
    layout = program.probes({**variant.knobs, "probe": probes.TRACE}, get_arch(variant.arch))
    warps, ring, kept = int(layout.schedule.threads) // 32, probes.HEADER + 77, min(marks, probes.RING)
    words = torch.full((1, warps, layout.words), probes.EMPTY, dtype=torch.int32)
    # The clock wraps within the trace, as do its low 26 bits.
    zero = (1 << 32) - 100
    ends = [zero + 10 * (i + 1) for i in range(marks)]
    for i, end in enumerate(ends):
        mark = (end * probes.REGIONS + i % 3) & 0xFFFFFFFF
        # Seven per place, consecutive; at the end of the ring they run past it.
        words[..., ring + i // 7 * 7 % probes.RING + i % 7] = mark - (mark >> 31 << 32)
    words[..., 0], words[..., 4], words[..., 5] = zero - (1 << 32), ring, ring + marks % probes.RING
    words[..., probes.HEADER - 1] = (ends[-1] + 20 + (1 << 31)) % (1 << 32) - (1 << 31)
    (role,) = layout.regions
    last = readings.trace(layout, words, role, [0])[0]
    assert last.full == (marks >= probes.RING)
    assert [p.end - p.begin for p in last.passages] == [10] * (kept - last.full)
    assert last.passages[-1] == readings.Passage(
        layout.regions[role][(marks - 1) % 3], 10 * (marks - 1), 10 * marks
    )


def test_shares_of_another_tracer_are_read_by_role(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import iket_shares

    variant = cheap("lightning_indexer", "cutedsl", "sm_90a")
    assert variant is not None
    layout = programs.get(variant.op).probes({**variant.knobs, "probe": 1}, get_arch(variant.arch))
    score, load = (readings.warps_of(layout, role)[0] for role in ("score", "load"))
    probed = SimpleNamespace(op=variant.op, knobs={**variant.knobs, "probe": 1}, arch=variant.arch)

    def marks(place: int, *ends: int) -> list[dict[str, int]]:
        return [
            {"markerNameIdx": 0, "timestamp": at, "payloadVal": i, "locIdx": place}
            for i, at in enumerate(ends)
        ]

    launch = {
        "markers": [*marks(0, 40, 100, 400), *marks(1, 60, 80)],
        "warpLifetimes": [{"locIdx": 0, "startTs": 0}, {"locIdx": 1, "startTs": 40}],
    }
    places = [{"warpId": score}, {"warpId": load}]
    shares = iket_shares.shares_by_iket(
        probed, {"launches": [{"markers": []}, launch], "locationTable": places}
    )
    first, second, third = layout.regions["score"][:3]
    assert shares["score"] == {first: 0.1, second: 0.15, third: 0.75}
    assert shares["load"] == dict.fromkeys(layout.regions["load"][:2], 0.5)


def test_two_launches_are_set_side_by_side(tmp_path: Path) -> None:
    def launch(name: str, ticks: int) -> profile.Regions:
        spent = profile.Ticks(ticks, ticks, ticks)
        rows = (profile.RegionTime("wait kv", spent, 0.5, "load"), profile.RegionTime(name, spent, 0.5))
        role = profile.RoleTime("attend", 4, spent, 0.0, 0.5, rows)
        return profile.Regions("v", "w", "cuda", "cycles", {"t": 1}, 1, spent, spent, (role,), "")

    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for path, found in zip(paths, (launch("first", 100), launch("second", 50)), strict=True):
        path.write_text(profile.dump(found))
    done = CliRunner().invoke(app, ["profile", "diff", *map(str, paths), "--json"])
    assert done.exit_code == 0, done.output
    rows = {row["figure"]: (row["a"], row["b"], row["ratio"]) for row in json.loads(done.stdout)["rows"]}
    assert rows["attend: wait kv"] == (100, 50, 0.5)
    assert rows["attend: first"] == (100, None, None)
    assert rows["attend: second"] == (None, 50, None)


def test_what_the_command_refuses() -> None:
    for argv, message in (
        (["topk_selector", "--executor", "interpreter"], "no clock"),
        (["topk_selector", "--executor", "emulator", "--dim", "nothing=1"], "UNKNOWN_NAME"),
        (["topk_selector", "--executor", "emulator", "--workload", "nothing"], "--workload"),
        (["nothing"], "variant"),
    ):
        done = CliRunner().invoke(app, ["profile", "regions", *argv])
        assert done.exit_code == 2
        assert message in done.stderr


def test_without_a_generator_the_error_says_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = cheap("resample_trajectories", "cutedsl", "sm_90a")
    assert variant is not None
    monkeypatch.setattr(regions, "checkout", lambda: None)
    with pytest.raises(ToolchainError, match="python -m codegen probe"):
        regions.probed(variant)


@pytest.mark.parametrize("dsl", backends.names())
def test_leaves_of_probes_have_names_of_their_own(dsl: str) -> None:
    mine = {name for name, value in vars(leaf).items() if isinstance(value, t.Leaf)}
    for op, arch in product(programs.names(), ARCHS.values()):
        for alias, _, names in leaf_modules(dsl, op, arch.tag.removesuffix("a"), True):
            assert names >= mine if alias == "probes" else not names & mine


def test_a_mode_that_there_is_not() -> None:
    variant = cheap("resample_trajectories", "cutedsl", "sm_90a")
    assert variant is not None
    with pytest.raises(DeclarationError, match="knob probe: expected 0, 1"):
        programs.get(variant.op).text({**variant.knobs, "probe": 4}, get_arch(variant.arch))
