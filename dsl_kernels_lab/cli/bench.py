"""The command that times every operation over a grid: bench."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsl_kernels.cli import _output as out
from dsl_kernels.errors import DslKernelError, InvalidArgumentError

from . import _options as options
from . import _record
from ._machine import compile_missing
from ._points import no_points, points_of

if TYPE_CHECKING:
    from ..timing.grids import Point

app = typer.Typer()


@app.command()
def bench(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OP | RECORDS...]", help="Operation, all by default; the files of a --report."
        ),
    ] = None,
    grid: Annotated[
        str | None, typer.Option(help="core, serving (without --dim), contest, smoke or wide.")
    ] = None,
    dim: options.Sizes = None,
    form: Annotated[str | None, typer.Option(help="Only this form of the problem.")] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Time every variant and record the tuned table of this GPU.")
    ] = False,
    regret: Annotated[
        bool,
        typer.Option("--regret", help="At points not tuned: time every variant against the selected one."),
    ] = False,
    sibling: Annotated[
        bool,
        typer.Option(
            "--sibling", help="With --regret: select as on a card without a table, from a sibling's points."
        ),
    ] = False,
    to_record: Annotated[
        bool,
        typer.Option(
            "--record", help="Time the installed peers too, into results/<gpu>.json; again to go on."
        ),
    ] = False,
    report: Annotated[
        bool,
        typer.Option("--report", help="A page from records instead of timing; --out page.html or page.md."),
    ] = False,
    point: Annotated[
        str, typer.Option(help="Only points whose form and sizes match this regular expression.")
    ] = "",
    limit: Annotated[
        float | None,
        typer.Option(
            min=0, help="Begin no point after this many seconds; 0: no limit. The wide grid's is 300."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--out", help="Append JSON lines here; points already in it are skipped.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Time the --out file's points again.")] = False,
    step: Annotated[
        bool, typer.Option("--step", help="Attention: also time what it adds to a decode step.")
    ] = False,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Time the Triton attention too.")
    ] = True,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Compare some rows with the reference before timing.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    as_json: out.Json = False,
) -> None:
    """Time each op over a measuring grid on this GPU: microseconds, rates, and ratios to its ceilings."""
    if report:
        _report([Path(name) for name in what or []], output)
        return
    if to_record:
        _refuse_beside_record(what, grid, dim, form, tune, regret, step)
        _record.record(what[0] if what else None, point, limit or 0.0, output, again, as_json)
        return
    if sibling and not regret:
        raise InvalidArgumentError(
            "--sibling",
            expected="--regret beside it",
            got="none",
            fix="add --regret: it leaves this card's own tables out of the selection that is judged",
        )
    if len(what or []) > 1 or (tune and regret):
        raise InvalidArgumentError(
            "bench",
            expected="one operation, and --tune or --regret or neither",
            got=" ".join([*(what or []), *(["--tune --regret"] if tune and regret else [])]),
            fix="name one or none; files of records go with --report",
        )
    from dsl_kernels import problems

    from ..timing import bench as timing

    op = what[0] if what else None
    if op is not None:
        problems.get(op)
    elif dim:
        raise InvalidArgumentError(
            "--dim",
            expected="an operation whose sizes they are",
            got="none",
            fix="name it: `bench OP --dim ...`",
        )
    grid = grid or (None if dim else "serving")
    gpu = timing.require_gpu()
    import torch

    from dsl_kernels import executors

    from ..timing import grids
    from ..timing import report as pages

    # Points of a grid may have a form that only another architecture has.
    arch = executors.gpu_at_hand(torch.cuda.current_device()).arch.name
    points = [
        at
        for name in ([op] if op else _generated())
        for at in points_of(name, form, grid, point, dim or [])
        if dim or _has_form(at.op, at.form, arch)
    ]
    if not points:
        raise no_points(grid, point)
    place = {(at.op, at.name): order for order, at in enumerate(points)}
    recorded = timing.read_records(output) if output is not None and not again else []
    records = timing.Records(output)
    done = {grids.record_key(row, row.get("environment", {})) for row in recorded}
    mode = {"regret": True, "own": not sibling} if regret else {"rule": grids.SWEPT} if tune else {}
    left = [
        at
        for at in points
        if grids.record_key({**mode, "op": at.op, "point": at.name}, records.environment) not in done
    ]
    seconds = limit if limit is not None else grids.WIDE_SECONDS if grid == "wide" else 0.0
    asked = _Asked(tune, regret, not sibling, step, baseline, check, seed)
    # Of several points with the same sizes, the grid's first is recorded: grids list ordinary data first.
    first: dict[tuple[Any, ...], tuple[int, dict[str, Any]]] = {}
    failed: list[str] = []
    path, begun, begin = None, 0, time.monotonic()
    with out.progress(as_json) as bar, torch.inference_mode():
        if (tune or regret) and torch.cuda.is_available():
            failed += _compile_runnable({at.op for at in left}, bar)
        task = bar.add_task("bench", total=len(left))
        try:
            for at in grids.spread(left) if grid == "wide" else left:
                if seconds and time.monotonic() - begin >= seconds:
                    break
                begun += 1
                bar.update(task, description=f"{at.op} {at.label}")
                try:
                    record, entry = _time_point(at, asked, failed)
                    if record:
                        records.add(record)
                    if entry:
                        mine = (place[at.op, at.name], entry)
                        key = grids.bucket_of(entry)
                        first[key] = min(first.get(key, mine), mine, key=lambda item: item[0])
                except (DslKernelError, torch.OutOfMemoryError) as error:
                    failed.append(f"{at.op} {at.name}: {error}")
                torch.cuda.empty_cache()
                bar.update(task, advance=1)
        finally:
            # An interrupted run keeps what it has tuned so far.
            entries = [entry for _, entry in first.values()]
            path = grids.write_tuned(gpu, entries, records.environment) if entries else None
    summary = pages.regrets(records.rows) if regret else []
    counts = {"points": len(points), "skipped": len(points) - len(left), "left_out": len(left) - begun}
    if as_json:
        out.print_json(
            {
                "environment": records.environment,
                "records": records.rows,
                "tuned": entries,
                "regret": summary,
                "failed": failed,
                "table": path,
                **counts,
            }
        )
    else:
        _print_bench(gpu, records.rows, entries, path, summary)
        for text in failed:
            out.say(text, "red", error=True)
        if counts["skipped"]:
            out.console().print(f"{counts['skipped']} of {len(points)} points are in {output} already")
        if counts["left_out"]:
            out.console().print(
                f"{counts['left_out']} of {len(points)} points are left after {seconds:g} s: "
                "run again with the same --out, or pass --limit 0"
            )
    if failed:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Asked:
    """What `bench` is to find out about each point."""

    tune: bool
    regret: bool
    own: bool
    step: bool
    baseline: bool
    check: bool
    seed: int


def _refuse_beside_record(what: list[str] | None, *others: object) -> None:
    """Refuse options that would ask something else about the points of a record.

    Raises:
        InvalidArgumentError: more than one operation, or an option that --record does not take.
    """
    if len(what or []) > 1 or any(others):
        raise InvalidArgumentError(
            "--record",
            expected="at most one operation, --point, --limit, --out, --again and --json",
            got="more operations, or --grid, --dim, --form, --tune, --regret or --step",
            fix="leave them out: the rows of a record are always the same",
        )


def _report(files: list[Path], page: Path | None) -> None:
    """Write a page of records, or print it as Markdown without its pictures."""
    from ..timing import report

    made = report.page(report.read(files))
    if page is None:
        typer.echo(made.markdown())
        return
    for written in made.write(page):
        out.say(f"wrote {written}")


def _generated() -> list[str]:
    """The operations that have variants."""
    from dsl_kernels import variants

    return list(dict.fromkeys(variant.op for variant in variants.variants()))


def _compile_runnable(operations: set[str], bar: Any) -> list[str]:
    """Compile this GPU's variants of the operations, in worker processes; returns a line for each error."""
    import torch

    from dsl_kernels import executors, variants

    arch = executors.gpu_at_hand(torch.cuda.current_device()).arch.name
    chosen = [variant for variant in variants.variants(arch=arch) if variant.op in operations]
    return list(compile_missing(chosen, "cuda", bar).values())


def _time_point(
    at: Point, asked: _Asked, failed: list[str]
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The record of a point and its tuned entry when tuning; its tensors are freed on return."""
    from ..timing import grids

    fixture = grids.prepare(at, asked.seed)
    if asked.regret:
        seen = asked.own and grids.is_tuned(at, fixture)
        return None if seen else grids.regret_point(at, fixture, failed, own=asked.own), None
    entry = grids.tune_point(at, fixture, failed) if asked.tune else None
    record = grids.time_point(at, fixture, baseline=asked.baseline, tuned=entry, check=asked.check)
    if asked.step:
        del fixture
        record["step"] = grids.step_point(at, asked.seed)
    return record, entry


def _print_bench(
    gpu: str,
    records: list[dict[str, Any]],
    entries: list[dict[str, Any]],
    path: Path | None,
    regrets: list[dict[str, Any]],
) -> None:
    from ..timing import grids

    for name in dict.fromkeys(record["op"] for record in records):
        mine = [record for record in records if record["op"] == name]
        if regrets:
            _print_regret(name, gpu, mine)
        else:
            _print_records(name, gpu, mine)
    if regrets:
        losses = [(r["op"], r["points"], 100 * r["mean"], 100 * r["worst"], r["where"]) for r in regrets]
        columns = ("op", "points", "mean %", "worst %", "worst at")
        title = f"what selection loses against the fastest variant, {grids.JUDGED[records[0]['own']]}"
        out.show(out.table(title, columns, losses, right=columns[1:4], fold=("worst at",)))
    if path is not None:
        rows = [
            (e["op"], e["form"], e["bucket"], e["variant"], e["launch"], e["us"][e["variant"]])
            for e in entries
        ]
        out.show(
            out.table(
                f"tuned on {gpu}", ("op", "form", "sizes", "variant", "launch", "us"), rows, right=("us",)
            )
        )
        out.say(f"wrote {path}")


def _print_regret(op: str, gpu: str, records: list[dict[str, Any]]) -> None:
    rows = [
        (
            r["point"],
            r["us"],
            r["regret"]["us"],
            100 * r["regret"]["lost"],
            r["variant"],
            r["regret"]["best"],
            r["rule"],
        )
        for r in records
    ]
    columns = ("point", "us", "best us", "lost %", "selected", "best", "chosen by")
    out.show(out.table(f"{op} on {gpu}", columns, rows, right=columns[1:4], fold=("point",)))


def _print_records(op: str, gpu: str, records: list[dict[str, Any]]) -> None:
    from ..timing import grids

    rows = []
    for record in records:
        floating = [rate for dtype, rate in record["tflops"].items() if "float" in dtype]
        rows.append(
            (
                {"form": record["form"], **grids.sizes_of(record)},
                record["us"],
                record["gbps"],
                max(floating, default=None),
                options.rate(record.get("per_second")),
                record.get("ceiling_us"),
                record.get("ratio"),
                record.get("triton_us"),
                (record.get("step") or {}).get("marginal"),
                (record.get("sustained") or {}).get("us"),
                *_clocks(record),
                record["variant"],
            )
        )
    columns = ["sizes", "us", "GB/s", "TFLOP/s", "a second", "ceiling us", "ratio", "Triton us"]
    columns += ["adds to a step us", "sustained us", "MHz", "W", "variant"]
    # Show a column other than the first two only if some record fills it.
    shown = [
        at for at, name in enumerate(columns) if at in (0, 1) or any(row[at] is not None for row in rows)
    ]
    names = [columns[at] for at in shown]
    cells = [[row[at] for at in shown] for row in rows]
    out.show(out.table(f"{op} on {gpu}", names, cells, right=names[1:-1], fold=("sizes",)))


def _clocks(record: dict[str, Any]) -> tuple[float | None, float | None]:
    """SM clock and watts in the middle of a sustained run, or else just after the timing."""
    seen = record.get("sustained") or record["clocks"]["after"] or {}
    return seen.get("sm_mhz"), seen.get("watts")


def _has_form(op: str, form: str, arch: str) -> bool:
    """Whether an operation has a variant of a form on an architecture."""
    from dsl_kernels import programs, variants

    program = programs.get(op)
    return any(program.form(variant.knobs) == form for variant in variants.variants(op, arch=arch))
