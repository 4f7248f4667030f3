"""Commands for cases: questions about GPU kernels, measured here or read from the records."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from dsl_kernels.cli import _output as out

app = typer.Typer()
case_app = typer.Typer(
    help="Cases: questions about GPU kernels with their kernels, checks, counters and pictures.",
    no_args_is_help=True,
)
app.add_typer(case_app, name="case")


@case_app.command("list")
def list_cases(as_json: out.Json = False) -> None:
    """Every case with its question."""
    from .. import cases

    listed = [cases.get(name) for name in cases.names()]
    rows = [
        {
            "case": case.name,
            "source": case.source,
            "question": case.question,
            "launches": " ".join(case.launches),
            "expectations": len(case.expected),
        }
        for case in listed
    ]
    if as_json:
        out.print_json(rows)
        return
    columns = ("case", "source", "question", "launches to profile")
    cells = [(r["case"], r["source"], r["question"], r["launches"]) for r in rows]
    out.show(out.table("", columns, cells, fold=("question", "launches to profile")))


@case_app.command("run")
def run_case(
    name: Annotated[str, typer.Argument(help="A case that `case list` names.")],
    record: Annotated[Path | None, typer.Option("--out", help="Write the record here (JSON).")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the record here (PNG).")] = None,
    counters: Annotated[
        bool, typer.Option("--counters/--no-counters", help="Ask Nsight Compute, where it is installed.")
    ] = True,
    full: Annotated[
        bool, typer.Option("--full", help="Every size, not only those that the question needs.")
    ] = False,
    budget: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="Seconds after which no further row starts, and the counters end: 60, with --full 600.",
        ),
    ] = None,
    launch: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="Only launch these kernels, once each, for a profiler to look at."
        ),
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Check and time a case on this GPU, and compare its counters with what was expected."""
    begin = time.monotonic()
    from .. import cases
    from ..cases import _counters, base
    from ..timing import bench

    case = cases.get(name)
    if launch is not None:
        for one in launch.split(","):
            case.launch(one)
        bench.require_gpu()
        _counters.launch(case, launch.split(","))
        return
    # The budget includes the imports and the GPU's start.
    end = begin + base.budget_of(budget, full)
    result = base.run(case, end - time.monotonic(), full)
    if counters:
        _counters.add(result, case, timeout=end - time.monotonic())
    if record is not None:
        base.write(result, record)
    if picture is not None:
        save(case.draw(result), picture)
    if as_json:
        out.print_json(result)
    else:
        _print_record(result)
    wrong = any(row.get("failures") and "us" not in row and "a_us" not in row for row in result["rows"])
    if wrong or any(item["holds"] is False for item in result["expected"]):
        raise typer.Exit(1)


def save(figure: Any, path: Path) -> None:
    """Write a matplotlib figure without the library's version, so that equal figures give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


@case_app.command("claims")
def show_claims(
    only: Annotated[str | None, typer.Option(metavar="NAME", help="Only this claim.")] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            help="Folder of records that `case run --out` wrote; docs/cases of a checkout by default."
        ),
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Claims about kernels, each with its verdict, what was measured, and the command that measures it."""
    from ..cases import claims
    from ..timing.bench import checkout

    root = checkout()
    folder = records if records is not None else root / "docs" / "cases" if root is not None else None
    rows = claims.table(claims.records_in(folder) if folder is not None else {}, only)
    if as_json:
        out.print_json(rows)
        return
    columns = ("claim", "source", "statement", "verdict", "measured", "command")
    cells = [[row[name] for name in columns] for row in rows]
    out.show(out.table("", columns, cells, fold=("statement", "measured", "command")))


HIDDEN = ("name", "kind", "checks", "ok", "failures", "error", "timeline", "kernels")


def _print_record(record: dict[str, Any]) -> None:
    rows = []
    for row in record["rows"]:
        verdict = "error" if "error" in row else {True: "ok", False: "WRONG", None: "-"}[row.get("ok")]
        facts = {
            key: value for key, value in row.items() if key not in HIDDEN and not isinstance(value, dict)
        }
        text = " ".join(f"{key}={out.cell(value)}" for key, value in facts.items())
        rows.append((row["name"], verdict, row.get("error") or text))
    out.show(out.table(record["question"], ("row", "check", "figures"), rows, fold=("figures",)))
    if record["expected"]:
        cells = [
            (e["launch"], e["metric"], f"{e['relation']} {e['wanted']}", e["got"], e["holds"], e["why"])
            for e in record["expected"]
        ]
        columns = ("launch", "metric", "expected", "read", "holds", "it means")
        out.show(out.table("Counters", columns, cells, fold=("it means",)))
    for note in record["notes"]:
        out.error_console().print(note, markup=False, highlight=False)
