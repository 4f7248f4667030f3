"""`emulate`: run a variant's PTX, or a program's launches, on the CPU under many interleavings."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsl_kernels.cli import _output as out
from dsl_kernels.errors import InvalidArgumentError

from . import _script

if TYPE_CHECKING:
    from dsl_kernels.variants import Variant
    from ptx_emulator import Coverage, Interleaving, Report

    from ..oracles import Workload

app = typer.Typer()


@app.command(cls=_script.ScriptCommand)
def emulate(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[VARIANT]", help="Variant id.")] = None,
    interleavings: Annotated[int, typer.Option(min=1, max=100_000, help="Interleavings to try.")] = 8,
    seed: Annotated[
        int, typer.Option(help="First seed; a failing interleaving prints the one that replays it.")
    ] = 0,
    workload: Annotated[
        str | None,
        typer.Option(
            help="Workload of the variant's problem; by default the tiny ones and some that wrap its rings."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Interleavings that run at once; by default one for each core.")
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(
            help="A program to check instead, with its own main; what follows its path is the program's own."
        ),
    ] = None,
    arch: Annotated[str, typer.Option(help="With --script: what the program is compiled for.")] = "sm_90a",
    sms: Annotated[int, typer.Option(min=1, max=1024, help="With --script: SMs that the program sees.")] = 4,
    explain: Annotated[
        Path | None, typer.Option(help="A folder for pages that explain what was found.")
    ] = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="Print what no run reached, by line of the module.")
    ] = False,
    as_json: out.Json = False,
) -> None:
    """Run a variant's PTX with the emulator's checks and compare with the reference; status 1 if any fails.

    With --script, run a program that uses CuTe DSL, TileLang, Triton or the driver's calls from Python and
    check every launch. This verifies kernels for NVIDIA GPUs before they run on one. It is not a platform to
    run them on, and nothing is translated.
    """
    if script is not None and name is None:
        _script.run(
            ctx,
            script,
            arch=arch,
            interleavings=interleavings,
            seed=seed,
            sms=sms,
            explain=explain,
            coverage=coverage,
            as_json=as_json,
        )
        return
    if name is None or script is not None:
        raise InvalidArgumentError(
            "emulate",
            expected="a variant or --script",
            got="neither" if name is None else "both",
            fix="give one",
        )
    from dsl_kernels.runtime import bundle, store
    from ptx_emulator import Coverage
    from ptx_emulator import interleavings as sequence

    from ..verification import reach, trial

    variant = out.variant(name)
    chosen = _workloads(variant, workload)
    store.fetch(variant, bundle.PTX)
    rows: list[dict[str, Any]] = []
    reached = Coverage()
    with out.progress(as_json) as bar:
        task = bar.add_task("emulate", total=len(chosen) * interleavings)
        runs = [
            (variant, item, launch, interleaving, trial.cached_example(variant.op, item))
            for item, launch in chosen
            for interleaving in sequence(interleavings, seed)
        ]
        # Threads suffice: the emulator's core runs without Python's lock.
        with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
            for row, covered in pool.map(lambda run: _attempt(*run), runs):
                bar.update(task, description=f"{row['workload']} {row['interleaving']}", advance=1)
                rows.append(row)
                reached = reached.merged(covered)
    failed = [row for row in rows if not row["ok"]]
    if as_json:
        for row in rows:
            row.pop("report", None)
        record = {"variant": variant.id, "runs": rows, "ok": not failed}
        out.print_json({**record, "coverage": reached.as_dict()} if coverage else record)
    else:
        out.show(
            out.table(
                f"{variant.id}: {len(rows)} runs",
                ("workload", "interleaving", "instructions", "seconds", "worst of limit", "result"),
                [
                    (
                        r["workload"],
                        r["interleaving"],
                        r["instructions"],
                        r["seconds"],
                        r["worst"],
                        "ok" if r["ok"] else "FAILED",
                    )
                    for r in rows
                ],
                right=("instructions", "seconds", "worst of limit"),
            )
        )
        _counters(rows)
        if explain is not None:
            _script.explain_variant(variant, chosen, failed, explain)
        if coverage:
            text = reached.describe(reach.source_text(variant, reached))
            typer.echo(f"What {len(rows)} runs reached together: {text}")
        for row in failed[:5]:
            out.say(f"{row['workload']} under {row['interleaving']}: {row['failure']}", "red", error=True)
    if failed:
        raise typer.Exit(1)


def _workloads(variant: Variant, name: str | None) -> list[tuple[Workload, dict[str, int]]]:
    """The workloads to run, each with the launch dims to fix."""
    from .. import oracles
    from ..verification import reach, trial

    if name is None:
        return reach.workloads(variant)
    wanted = oracles.get(variant.op).workload(name)
    accepted: list[tuple[Workload, dict[str, int]]] = [
        (item, {}) for item in trial.workloads(variant, wanted.tier) if item.name.startswith(name)
    ]
    if not accepted:
        raise InvalidArgumentError(
            "--workload",
            expected=f"one that {variant.id} accepts",
            got=repr(name),
            fix="leave it out for those of the emulator",
        )
    return accepted


def _attempt(
    variant: Variant, workload: Workload, launch: dict[str, int], interleaving: Interleaving, example: Any
) -> tuple[dict[str, Any], Coverage]:
    """One run and what it reached. Findings and wrong results are failures; the interleaving replays them."""
    from dsl_kernels.executors import Emulator
    from ptx_emulator import Coverage, EmulatorError

    from ..verification import trial

    executor = Emulator(interleaving)
    row: dict[str, Any] = {
        "workload": workload.name,
        "interleaving": str(interleaving),
        "instructions": None,
        "seconds": None,
        "worst": None,
        "launch": launch,
        "ok": False,
        "failure": "",
        "counters": {},
    }
    try:
        result = trial.run(variant, workload, executor, example=example, launch=launch)
    except EmulatorError as error:
        row["failure"], row["report"] = str(error), error.report
        return row, error.report.coverage if error.report is not None else Coverage()
    comparison, report = result.comparison, executor.report
    shares = [comparison.figures[key] / limit for key, limit in comparison.limits.items() if limit > 0]
    row.update(ok=comparison.ok, failure="; ".join(comparison.failures), worst=max(shares, default=None))
    if report is not None:
        row.update(instructions=report.instructions, seconds=report.seconds, counters=_counted(report))
    return row, report.coverage if report is not None else Coverage()


def _counted(report: Report) -> dict[str, Any]:
    return {"pipes": dict(report.pipes), "stats": dict(report.stats)}


def _counters(rows: list[dict[str, Any]]) -> None:
    """Print what the first run of each workload moved and executed."""
    seen: Counter[str] = Counter()
    cells = []
    for row in rows:
        if row["counters"] and not seen[row["workload"]]:
            seen[row["workload"]] += 1
            for group in ("pipes", "stats"):
                cells += [
                    (row["workload"], group, key, value)
                    for key, value in row["counters"][group].items()
                    if value
                ]
    if cells:
        out.show(
            out.table(
                "counted in the first run", ("workload", "of", "what", "count"), cells, right=("count",)
            )
        )
