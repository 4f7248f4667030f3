"""`predict`: what a call takes on a GPU and what it waits for, by the clock's walk of the text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arguments import require_known
from ..errors import NoVariantError
from . import _laboratory as laboratory
from . import _output as out
from .catalog import complete_dims, target_of

if TYPE_CHECKING:
    from ..calls import Call
    from ..clock import Prediction, Sm
    from ..clock.interval import Interval
    from ..clock.machine import Task
    from ..clock.path import Step

app = typer.Typer()

# Shares of a unit or of the time below this are not shown.
SHOWN = 0.01


@app.command()
def predict(
    op: Annotated[str, typer.Argument(help="Operation.")],
    dim: out.Dims = None,
    form: Annotated[
        str | None, typer.Option(help="Form of the problem (decode, prefill, bf16, fp8).")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture; by default that of --gpu.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU whose SMs and rates to use: H200, B200 ...")] = None,
    backend: out.Backend = None,
    variant: Annotated[str | None, typer.Option(help="Only this variant.")] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(help="Write the fastest one's warps and units over time: Chrome's trace as JSON."),
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Predict what a call takes on a GPU and what its roles wait for: a model of its text; needs no GPU."""
    from .. import clock, problems, programs, registry, variants
    from ..clock.interval import interval
    from ..clock.path import critical

    problem = problems.get(op)
    out.narrowed(None, backend, arch)
    require_known("op", op, clock.walked(), "operation that the clock walks")
    sizes = out.dims_of(dim or [])
    chosen = form or problem.form_of(sizes)
    dims, assumed = complete_dims(programs.get(op), chosen, problem.dims_of(chosen, sizes))
    # Dims that the call does not give are 1, except the length up to which rows are not scored.
    dims |= {name: 0 for name in assumed if name == "skip_below"}
    name, device, sms = target_of(arch, gpu)
    call = registry.Call(op, chosen, name, dims, device, backend, sms)
    known = [variants.get(variant)] if variant else variants.variants(op)
    refused = {v.id: registry.refusal(call, v, named=variant) for v in known}
    predicted = {v.id: clock.predict(call, v) for v in known if refused[v.id] is None}
    if not predicted:
        raise NoVariantError(
            f"a variant of {op} for {name}",
            expected="one that takes the call",
            got="none",
            fix="run `python -m dsl_kernels explain`",
        )
    ordered = sorted(predicted.items(), key=lambda item: (item[1].us, item[0]))
    between = {key: interval(call, variants.get(key)) for key, _ in ordered}
    first = clock.sm_of(call, variants.get(ordered[0][0]), kept=True)
    first.walk()
    path = critical(first)
    if timeline is not None:
        _write_timeline(timeline, ordered[0][0], first, call)
    if as_json:
        rows = [
            {
                "variant": key,
                "bound": value.bound,
                "interval": [between[key].best, between[key].worst],
                **asdict(value),
            }
            for key, value in ordered
        ]
        rows[0]["path"] = [{**step._asdict(), "share": share} for step, share in path.items()]
        rows[0]["pace"] = dict(zip(("ring", "clocks"), first.pace, strict=True)) if first.pace else None
        out.print_json(
            {"op": op, "form": chosen, "gpu": call.row.name, "model": True, "dims": dims, "variants": rows}
        )
        return
    _print(ordered, between)
    _print_path(path, first.pace)
    row = call.row
    out.say(f"A model, not a measurement, for {row.name} with {row.sms} SMs; its rates are {row.rates_from}.")


def _write_timeline(path: Path, variant: str, walked: Sm, call: Call) -> None:
    lines = laboratory.offered("timeline")
    if lines is None:
        raise laboratory.missing("--timeline")
    mhz = walked.rates.clock_mhz
    tasks = sorted(walked.tasks, key=lambda task: task.cta)
    rows = [lines.Row(task.cta, 0, task.name, _regions(task, mhz)) for task in tasks]
    for unit in walked.machine.units.values():
        served = tuple((unit.name, begin / mhz, end / mhz) for begin, end in unit.served or ())
        rows.append(lines.Row(0, 0, f"{unit.name} (unit)", served))
    sizes = " ".join(f"{name}={value}" for name, value in call.dims.items())
    workload = f"{call.op} {call.form} {sizes}"
    trace = lines.Timeline(variant, workload, f"a model's microseconds at {mhz:.0f} MHz", tuple(rows))
    path.write_text(json.dumps(lines.chrome(trace)))
    out.say(f"wrote {path}, in {trace.clock}", error=True)


def _regions(task: Task, mhz: float) -> tuple[tuple[str, float, float], ...]:
    """The regions that a task went through, in microseconds; adjacent spans of one region are joined."""
    regions: list[tuple[str, float, float]] = []
    for span in task.spans:
        name, begin, end = span.region or span.unit, span.begin / mhz, span.end / mhz
        if regions and regions[-1][0] == name and regions[-1][2] == begin:
            regions[-1] = (name, regions[-1][1], end)
        else:
            regions.append((name, begin, end))
    return tuple(regions)


def _print_path(path: Mapping[Step, float], pace: tuple[str, float] | None) -> None:
    rows = [(step.role, step.unit, f"{share:.0%}") for step, share in path.items() if share >= SHOWN]
    out.show(out.table("critical path", ("role", "held by", "of the time"), rows, right=("of the time",)))
    if pace is not None and rows:
        role, unit, share = rows[0]
        out.say(
            f"A use of ring {pace[0]} comes every {pace[1]:.0f} clocks, "
            f"paced by the {unit} of {role} ({share} of the path)."
        )


def _print(ordered: list[tuple[str, Prediction]], between: Mapping[str, Interval]) -> None:
    rows = []
    for name, p in ordered:
        limits = f"{between[name].best:.1f} to {between[name].worst:.1f}"
        rows.append((name, f"{p.us:.1f}", limits, f"{p.clocks:.0f}", f"{p.mhz:.0f}", p.bound))
    names = ("variant", "model us", "between", "clocks", "MHz", "bound")
    out.show(out.table("predicted", names, rows, right=names[1:5]))
    first, best = ordered[0]
    units = [(unit, f"{share:.0%}") for unit, share in _largest(best.busy, SHOWN)]
    out.show(out.table(f"units of an SM in {first}", ("unit", "busy"), units, right=("busy",)))
    waits: list[tuple[Any, ...]] = [
        (role, what, f"{clocks / best.clocks:.0%}")
        for role, waited in best.waits.items()
        for what, clocks in _largest(waited, SHOWN * best.clocks)
    ]
    out.show(
        out.table("waits of its roles", ("role", "waits for", "of the time"), waits, right=("of the time",))
    )


def _largest(values: Any, least: float) -> list[tuple[str, float]]:
    return sorted(((k, v) for k, v in values.items() if v >= least), key=lambda item: -item[1])
