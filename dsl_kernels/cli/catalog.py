"""Commands that look at variants without running them: list, show, explain."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import variants
from ..arch import GPUS, get_arch
from ..errors import DslKernelError, InvalidArgumentError, MissingArtifactError
from . import _laboratory as laboratory
from . import _output as out

if TYPE_CHECKING:
    from ..registry import Explanation
    from ..runtime.artifact import Artifact
    from ..tile.program import TileProgram

app = typer.Typer()

# Instruction families to show in listings: tensor cores, tensor memory, asynchronous copies.
TELLING = (
    "UTCHMMA",
    "UTCQMMA",
    "UTCOMMA",
    "LDTM",
    "HGMMA",
    "QGMMA",
    "HMMA",
    "QMMA",
    "UTMALDG",
    "UBLKCP",
    "LDGSTS",
    "ATOMS",
)


def _record(variant: variants.Variant) -> dict[str, Any]:
    """Everything that is known about a variant."""

    from ..runtime import artifact, store

    folder, problem = None, ""
    try:
        folder = store.lookup(variant)
    except DslKernelError as error:
        problem = f"{error.subject}: {error.got}"
    compiled: Artifact | None = artifact.read(folder, verify=False) if folder is not None else None
    runs = laboratory.offered("runs")
    ran = runs.of(variant) if runs else []
    return {
        "id": variant.id,
        "op": variant.op,
        "backend": variant.backend,
        "arch": variant.arch,
        "knobs": dict(variant.knobs),
        "declared": dict(variant.declared),
        "path": variant.path,
        "cached": folder is not None,
        "folder": folder,
        "problem": problem,
        "resources": vars(compiled.resources) if compiled else None,
        "evidence": dict(compiled.evidence) if compiled else None,
        "toolchain": dict(compiled.toolchain) if compiled else None,
        "ran": runs.summary(ran) if runs else None,
        "runs": [vars(run) for run in ran],
    }


def _telling(evidence: Mapping[str, int] | None) -> str:
    return " ".join(f"{name}:{evidence[name]}" for name in TELLING if name in evidence) if evidence else ""


@app.command("list")
def list_variants(
    op: out.Op = None, backend: out.Backend = None, arch: out.Arch = None, as_json: out.Json = False
) -> None:
    """The generated variants: knobs, resources as declared and as compiled, and where each has run."""
    records = [_record(v) for v in variants.variants(**out.narrowed(op, backend, arch))]
    if as_json:
        out.print_json({"variants": records})
        return
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(f"{record['op']}, {record['arch']}", []).append(record)
    columns = ("variant", "threads", "smem", "tmem", "regs", "spills", "instructions", "ran on", "cached")
    for title, rows in groups.items():
        out.show(
            out.table(
                title,
                columns,
                [_row(r) for r in rows],
                right=("threads", "smem", "tmem", "regs", "spills"),
                fold=("instructions", "ran on"),
            )
        )
    compiled = sum(record["cached"] for record in records)
    out.console().print(
        f"{len(records)} variants, {compiled} compiled; smem and tmem columns are declared until compiled"
    )
    for text in sorted({record["problem"] for record in records if record["problem"]}):
        out.say(f"not looked up: {text}", "yellow", error=True, wrap=True)


def _row(record: dict[str, Any]) -> list[Any]:
    declared, built = record["declared"], record["resources"]
    smem = built["static_smem"] + built["dynamic_smem"] if built else declared.get("smem_bytes")
    tmem = built["tmem_columns"] if built else declared.get("tmem_columns")
    spills = built["spill_stores"] + built["spill_loads"] if built else None
    registers = built["registers"] if built else None
    return [
        record["id"],
        declared.get("threads"),
        smem,
        tmem or None,
        registers,
        spills,
        _telling(record["evidence"]),
        record["ran"],
        record["cached"],
    ]


@app.command()
def show(
    variant: Annotated[str, typer.Argument(help="Variant id, as `list` prints it.")],
    source: Annotated[bool, typer.Option("--source", help="The generated module.")] = False,
    resources: Annotated[
        bool, typer.Option("--resources", help="Registers, spills, memory and instruction counts.")
    ] = False,
    describe: Annotated[
        bool, typer.Option("--describe", help="Roles, buffers, pipelines and barriers as declared.")
    ] = False,
    sass: Annotated[
        bool, typer.Option("--sass", help="Path of the compiled cubin, and the command that disassembles it.")
    ] = False,
    ptx: Annotated[bool, typer.Option("--ptx", help="Path of the PTX.")] = False,
    as_json: out.Json = False,
) -> None:
    """One variant: a summary, or its source, resources, schedule or compiled files."""
    chosen = out.variant(variant)
    record = _record(chosen)
    if as_json:
        record["source"] = chosen.source if source else None
        record["description"] = _description(chosen) if describe else None
        out.print_json(record)
        return
    console = out.console()
    if source:
        typer.echo(chosen.source, nl=False)
    if describe:
        typer.echo(_description(chosen))
    if resources:
        _print_resources(console, record)
    for wanted, name in ((ptx, "kernel.ptx"), (sass, "kernel.cubin")):
        if wanted:
            typer.echo(_compiled_file(record, name))
    if sass:
        out.say(f"disassemble it with `nvdisasm -c {_compiled_file(record, 'kernel.cubin')}`", error=True)
    if not (source or describe or resources or ptx or sass):
        _print_summary(console, record)


def _description(variant: variants.Variant) -> str:
    from .. import programs
    from ..tile.describe import describe

    arch = get_arch(variant.arch)
    return describe(programs.get(variant.op).schedule(variant.knobs, arch), arch)


def _compiled_file(record: dict[str, Any], name: str) -> Path:
    if record["folder"] is None:
        raise MissingArtifactError(
            record["id"],
            expected=f"a compiled {name}",
            got=record["problem"] or "not compiled",
            fix=f"run `python -m dsl_kernels compile {record['id']}`",
        )
    path = Path(record["folder"]) / name
    if not path.is_file():
        raise MissingArtifactError(
            record["id"],
            expected=f"a compiled {name}",
            got=f"none in the bundle {path.parent.parent}",
            fix="write the bundle with --ptx, or look without DSL_KERNELS_BUNDLE_DIR",
        )
    return path


def _print_summary(console: Any, record: dict[str, Any]) -> None:
    rows = [
        ("operation", record["op"]),
        ("backend", record["backend"]),
        ("architecture", record["arch"]),
        ("knobs", record["knobs"]),
        ("module", record["path"]),
        ("declared", record["declared"]),
        ("ran on", record["ran"]),
        (
            "compiled",
            record["folder"] or record["problem"] or f"no: `python -m dsl_kernels compile {record['id']}`",
        ),
    ]
    if record["resources"]:
        rows += [("resources", record["resources"]), ("instructions", _telling(record["evidence"]))]
    out.show(out.table(record["id"], ("", " "), rows, fold=(" ",)))
    for run in record["runs"]:
        note = "" if run["current"] else "; the module has changed since"
        console.print(
            f"matched the reference on {run['where']} ({run['executor']}), "
            f"{run['workloads']} workloads, {run['date']}{note}"
        )
    on_hardware = any(run["executor"] == "cuda" and run["current"] for run in record["runs"])
    counted = next((run["counted"] for run in record["runs"] if run["counted"] and run["current"]), None)
    if counted and not on_hardware:
        console.print(f"no hardware has run it; the emulator counted in one launch of {counted['workload']}:")
        cells = [(name, value) for name, value in counted.items() if name != "workload"]
        out.show(out.table("", ("what", "count"), cells, right=("count",)))


def _print_resources(console: Any, record: dict[str, Any]) -> None:
    out.show(out.table("declared", ("resource", "value"), record["declared"].items(), fold=("value",)))
    if record["resources"] is None:
        raise MissingArtifactError(
            record["id"],
            expected="a compiled variant",
            got=record["problem"] or "not compiled",
            fix=f"run `python -m dsl_kernels compile {record['id']}`",
        )
    out.show(out.table("compiled", ("resource", "value"), record["resources"].items(), right=("value",)))
    counts = sorted(record["evidence"].items(), key=lambda item: -item[1])
    out.show(out.table("SASS instructions", ("opcode", "count"), counts, right=("count",)))
    out.show(out.table("toolchain", ("tool", "version"), record["toolchain"].items()))


@app.command()
def explain(
    op: Annotated[str, typer.Argument(help="Operation.")],
    dim: out.Dims = None,
    form: Annotated[
        str | None, typer.Option(help="Form of the problem (decode, prefill, bf16, fp8, default).")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(help="Architecture; by default that of --gpu, of this machine's GPU, or sm_90a."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help=f"GPU whose tuned table, SMs and rates to use ({', '.join(GPUS)}, or a driver's name); "
            "'' for none."
        ),
    ] = None,
    backend: out.Backend = None,
    variant: Annotated[
        str | None, typer.Option(help="Ask for this variant, as the ops' argument does.")
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Which variant would serve a call, and why: candidates, refusals, predictions and the tuned entry."""
    from .. import env, problems, programs, registry

    problem = problems.get(op)
    out.narrowed(None, backend, arch)
    sizes = out.dims_of(dim or [])
    chosen_form = form or problem.form_of(sizes)
    given = problem.dims_of(chosen_form, sizes)
    program = programs.get(op)
    dims, assumed = complete_dims(program, chosen_form, given)
    name, gpu_name, sms = target_of(arch, gpu)
    call = registry.Call(op, chosen_form, name, dims, gpu_name, backend, sms)
    forced = variant or env.FORCE.get().get(op)
    explanation = registry.explain(call, forced, "--variant" if variant else "DSL_KERNELS_FORCE")
    if as_json:
        out.print_json(_as_json(explanation, assumed))
    else:
        _print_explanation(explanation, given, assumed)
    if explanation.error is not None:
        raise explanation.error


class _Asked(Mapping[str, Any]):
    """Sizes that record which names were looked up."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values, self.names = values, dict[str, None]()

    def __getitem__(self, name: str) -> Any:
        self.names[name] = None
        return self._values.get(name, 64)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def complete_dims(
    program: TileProgram, form: str, given: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """All runtime dims of a form: the given ones, and 1 for those that no guard or bucket reads.

    Raises:
        InvalidArgumentError: a dim that the decision needs is missing.
    """
    from .. import policies

    known = program.problem.dims(form)
    asked = _Asked({**given, "form": form})
    policies.get(program.op).bucket(form, asked)
    knobs = {knob.name: knob.values(0)[0] for knob in program.knobs}
    for guard in program.guards:
        guard.refuse(knobs, asked)
    needed = [name for name in known if name in asked.names]
    called = {alias.dim: f"{alias.dim} (or {alias.name})" for alias in program.problem.names.get(form, ())}
    if missing := [name for name in needed if name not in given]:
        raise InvalidArgumentError(
            f"sizes of {program.op} {form}",
            expected=", ".join(called.get(name, name) for name in needed),
            got=f"no {', '.join(missing)}",
            fix=" ".join(f"--dim {name}=..." for name in missing),
        )
    assumed = [name for name in known if name not in given]
    return {name: given.get(name, 1) for name in known}, assumed


def target_of(arch: str | None, gpu: str | None) -> tuple[str, str, int]:
    """Architecture, GPU name and SMs: as asked, or this machine's, or sm_90a without a tuned table."""
    if arch is None and gpu is None:
        from ._machine import gpus

        here = next((visible for visible in gpus()[:1] if visible["arch"]), None)
        return (here["arch"], here["name"], here["sms"]) if here else ("sm_90a", "", 0)
    asked = gpu or ""
    row = next((row for row in GPUS.values() if asked in (row.name, row.device)), None)
    like = row or next((row for row in GPUS.values() if row.name in asked), None)
    target = get_arch(arch).name if arch is not None else like.arch.name if like else "sm_90a"
    return target, row.device if row and row.arch.name == target else asked, 0


def _fingerprint(explanation: Explanation) -> dict[str, Any] | None:
    """The recorded profile of the tuned winner, if there is one."""
    recorded = laboratory.offered("fingerprints")
    if not explanation.tuned or not explanation.call.gpu or recorded is None:
        return None
    call = explanation.call
    seen = recorded.of(
        call.gpu, call.op, call.form, explanation.tuned["bucket"], explanation.tuned["variant"]
    )
    return dict(seen) if seen else None


def _clock(explanation: Explanation) -> dict[str, Any] | None:
    """The clock's intervals for a choice without measured points, and the rates that decide it."""
    from .. import clock
    from ..clock.interval import doubts, interval

    call = explanation.call
    taken = [candidate.variant for candidate in explanation.candidates if candidate.refusal is None]
    if not taken or explanation.tuned or explanation.near or call.op not in clock.walked():
        return None
    try:
        us = {variant.id: asdict(interval(call, variant)) for variant in taken}
        hangs = [asdict(doubt) for doubt in doubts(call, taken)]
    except DslKernelError as error:
        explanation.notes.append(f"the clock says nothing: {error}")
        return None
    return {"model": True, "ranks": explanation.model == "clock", "us": us, "hangs_on": hangs}


def _print_clock(walks: Mapping[str, Any]) -> None:
    order = sorted(walks["us"].items(), key=lambda item: (item[1]["us"], item[0]))
    rows = [(name, f"{us['us']:.1f}", f"{us['best']:.1f} to {us['worst']:.1f}") for name, us in order]
    title = "the clock's walks of this very call: a model, not a measurement"
    columns = ("variant", "model us", "between")
    out.show(out.table(title, columns, rows, right=columns[1:]))
    for doubt in walks["hangs_on"]:
        turned = f"{doubt['chosen']} is {doubt['faster']:.2f} times as fast"
        if not doubt["rate"]:
            text = (
                "The choice depends on several rates together: "
                f"with all of them at one end of their intervals, {turned}."
            )
        else:
            measure = "an item that benchmarks/clock_rates.py lacks"
            if doubt["item"]:
                measure = f"python benchmarks/clock_rates.py --only '{doubt['item']}'"
            text = (
                f"The choice depends on {doubt['rate']}, taken as {doubt['value']:g}: "
                f"at {doubt['end']:g}, {turned}. {doubt['source']}. To measure first: {measure}."
            )
        out.say(text)
    if not walks["hangs_on"]:
        out.say("The choice holds at both ends of the rates' intervals.")


def _as_json(explanation: Explanation, assumed: list[str]) -> dict[str, Any]:
    pick, whose = explanation.selection, explanation.table_of
    return {
        "op": explanation.call.op,
        "form": explanation.call.form,
        "arch": explanation.call.arch,
        "gpu": explanation.call.gpu,
        "sms": explanation.call.row.sms,
        "rates_from": explanation.call.row.rates_from,
        "note": explanation.call.row.note or None,
        "dims": dict(explanation.call.dims),
        "assumed": assumed,
        "bucket": explanation.bucket,
        "table": {"gpu": whose.device, "sms": whose.sms, "own": explanation.sibling is None}
        if whose
        else None,
        "tuned": dict(explanation.tuned) if explanation.tuned else None,
        "near": [{"bucket": n.entry["bucket"], "octaves": n.distance} for n in explanation.near],
        "notes": explanation.notes,
        "fingerprint": _fingerprint(explanation),
        "clock": _clock(explanation),
        "best_by_backend": {
            backend: {"variant": variant, "us": us, "times_the_fastest": times}
            for backend, (variant, us, times) in explanation.best_by_backend().items()
        },
        "candidates": [
            {
                "variant": c.variant.id,
                "refusal": c.refusal,
                "model_us": c.predicted_us,
                "bound": c.bound or None,
                "tuned_us": c.tuned_us,
                "estimated_us": c.estimated_us,
                "chosen": c.chosen,
            }
            for c in explanation.candidates
        ],
        "selection": {"variant": pick.variant.id, "rule": pick.rule, "launch": pick.launch} if pick else None,
        "error": str(explanation.error) if explanation.error else None,
    }


def _sizes(values: Mapping[str, int]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _print_explanation(explanation: Explanation, given: Mapping[str, int], assumed: list[str]) -> None:
    call, gpu = explanation.call, explanation.call.row
    out.say(
        f"{call.op} {call.form} on {call.arch}{f' ({call.gpu})' if call.gpu else ''}: {_sizes(given)}",
        "bold",
        wrap=True,
    )
    out.say(
        f"bucket {_sizes(explanation.bucket)}; sizes that decide nothing: {', '.join(assumed) or 'none'}",
        wrap=True,
    )
    order = sorted(
        (c for c in explanation.candidates if c.refusal is None),
        key=lambda c: (
            not c.chosen,
            c.tuned_us or math.inf,
            c.estimated_us or math.inf,
            math.inf if c.predicted_us is None else c.predicted_us,
            c.variant.id,
        ),
    )
    rows = [
        (
            "*" if c.chosen else " ",
            c.variant.id,
            c.predicted_us,
            c.bound,
            c.estimated_us if explanation.near else c.tuned_us,
        )
        for c in order
    ]
    if rows:
        names = (" ", "variant", "model us", "bound", "estimated us" if explanation.near else "tuned us")
        out.show(out.table("candidates", names, rows, right=("model us", names[4])))
    refused = [(len(group.variants), group.reason, group.variants[0]) for group in explanation.refusals()]
    if refused:
        out.show(
            out.table(
                "refused",
                ("variants", "refused because", "such as"),
                refused,
                right=("variants",),
                fold=("refused because",),
            )
        )
    out.say(
        f"model us: a model, not a measurement, for {gpu.name} with {gpu.sms} SMs; "
        f"its rates are {gpu.rates_from}"
    )
    if gpu.note:
        out.say(f"note: {gpu.note}", "yellow")
    if explanation.tuned:
        out.say(f"tuned entry: {explanation.tuned['variant']}", wrap=True)
        if seen := _fingerprint(explanation):
            out.say(f"  profiled: {laboratory.offered('fingerprints').line(seen)}")
        for backend, (variant, us, times) in explanation.best_by_backend().items():
            out.say(f"  best of {backend}: {us:.2f} us, {times:.2f} times the fastest: {variant}", wrap=True)
    elif explanation.near:
        out.say(
            "estimated us: the model, corrected by the nearest tuned points, which lie "
            + ", ".join(
                f"{n.distance:.2f} octaves off at {_sizes(n.entry['bucket'])}" for n in explanation.near
            )
        )
    elif call.gpu:
        out.say(f"no tuned point for {call.gpu} near these sizes", wrap=True)
    if (other := explanation.sibling) is not None:
        out.say(
            f"the points are the {other.name}'s ({other.device}, {other.sms} SMs), with scaled times: "
            f"the tables of {call.gpu} have none of {call.op} {call.form}",
            "yellow",
        )
    if walks := _clock(explanation):
        _print_clock(walks)
    for note in explanation.notes:
        out.say(note, "yellow", error=True)
    if (selection := explanation.selection) is not None:
        out.say(
            f"selected: {selection.variant.id} ({selection.rule}) {_sizes(selection.launch)}",
            "bold green",
            wrap=True,
        )
