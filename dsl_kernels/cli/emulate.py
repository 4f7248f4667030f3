"""The command that executes a variant's PTX on the CPU under many interleavings: emulate."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import _output as out

if TYPE_CHECKING:
    from ..emulator import Interleaving, Report
    from ..problems.base import Workload
    from ..variants import Variant

app = typer.Typer()


@app.command()
def emulate(
    name: Annotated[str, typer.Argument(metavar="VARIANT", help="Variant id.")],
    interleavings: Annotated[int, typer.Option(min=1, max=100_000, help="Interleavings to try.")] = 8,
    seed: Annotated[
        int, typer.Option(help="First seed; a failing interleaving prints the one that replays it.")
    ] = 0,
    workload: Annotated[
        str | None, typer.Option(help="Workload of the variant's problem; by default its tiny ones.")
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Execute a variant's PTX with the emulator's checks and compare with the reference; status 1 if any fails."""
    from ..emulator import interleavings as sequence
    from ..runtime import bundle, store
    from ..verification import trial

    variant = out.variant(name)
    chosen = _workloads(variant, workload)
    store.fetch(variant, bundle.PTX)
    rows: list[dict[str, Any]] = []
    with out.progress(as_json) as bar:
        task = bar.add_task("emulate", total=len(chosen) * interleavings)
        for item in chosen:
            example = trial.cached_example(variant.op, item)
            for interleaving in sequence(interleavings, seed):
                bar.update(task, description=f"{item.name} {interleaving}")
                rows.append(_attempt(variant, item, interleaving, example))
                bar.update(task, advance=1)
    failed = [row for row in rows if not row["ok"]]
    if as_json:
        out.print_json({"variant": variant.id, "runs": rows, "ok": not failed})
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
        for row in failed[:5]:
            out.error_console().print(
                f"{row['workload']} under {row['interleaving']}: {row['failure']}",
                style="red",
                markup=False,
                soft_wrap=True,
            )
    if failed:
        raise typer.Exit(1)


def _workloads(variant: Variant, name: str | None) -> list[Workload]:
    from .. import problems
    from ..errors import InvalidArgumentError
    from ..verification import trial

    if name is None:
        return trial.workloads(variant, "tiny")
    wanted = problems.get(variant.op).workload(name)
    found = [item for item in trial.workloads(variant, wanted.tier) if item.name.startswith(name)]
    if not found:
        raise InvalidArgumentError(
            "--workload",
            expected=f"one that {variant.id} accepts",
            got=repr(name),
            fix="leave it out for the tiny ones",
        )
    return found


def _attempt(
    variant: Variant, workload: Workload, interleaving: Interleaving, example: Any
) -> dict[str, Any]:
    """One run; findings and wrong results are both failures, and the interleaving in the row replays them."""
    from ..emulator import EmulatorError
    from ..executors import Emulator
    from ..verification import trial

    executor = Emulator(interleaving)
    row: dict[str, Any] = {
        "workload": workload.name, "interleaving": str(interleaving), "instructions": None, "seconds": None, "worst": None,
        "ok": False, "failure": "", "counters": {},
    }  # fmt: skip
    try:
        result = trial.run(variant, workload, executor, example=example)
    except EmulatorError as error:
        row["failure"] = str(error)
        return row
    comparison, report = result.comparison, executor.report
    shares = [comparison.figures[key] / limit for key, limit in comparison.limits.items() if limit > 0]
    row.update(ok=comparison.ok, failure="; ".join(comparison.failures), worst=max(shares, default=None))
    if report is not None:
        row.update(instructions=report.instructions, seconds=report.seconds, counters=_counted(report))
    return row


def _counted(report: Report) -> dict[str, Any]:
    return {"pipes": dict(report.pipes), "stats": dict(report.stats)}


def _counters(rows: list[dict[str, Any]]) -> None:
    """What the first run of each workload moved and executed."""
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
