"""Commands that execute: run (one real DSA step, checked and timed) and bench (every op over a grid)."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arch import get_arch
from ..arguments import require_known
from ..errors import DslKernelError, InvalidArgumentError
from . import _output as out
from . import _record
from ._machine import compile_missing, device_name, executor_of, tile_threads

if TYPE_CHECKING:
    from ..dsa.steps import StepInputs, StepSize
    from ..problems.base import Comparison
    from ..timing.grids import Point

app = typer.Typer()


@app.command()
def run(
    kind: Annotated[str, typer.Argument(help="decode or prefill.")],
    size: Annotated[
        str | None, typer.Option(help="A named size: demo, tiny, mtp, contest, serving, long.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", "-b", help="Sequences (decode).")] = None,
    rows: Annotated[int | None, typer.Option("--rows", "-s", help="Query rows (prefill).")] = None,
    context: Annotated[
        int | None, typer.Option("--context", "-l", help="Tokens per sequence, or keys of a prefill.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads: 1 to 128.")] = None,
    index_heads: Annotated[int | None, typer.Option(help="Indexer heads: 8, 16, 24, 32 or 64.")] = None,
    topk: Annotated[int | None, typer.Option(help="Tokens to select, 1 to 2048.")] = None,
    kv: Annotated[
        str | None,
        typer.Option(help="Cache: bf16 (two tensors), joined (one 576-wide row) or fp8 (656-byte tokens)."),
    ] = None,
    next_n: Annotated[int | None, typer.Option(help="Queries for each sequence, 1 to 8.")] = None,
    pages: Annotated[
        int | None, typer.Option(help="Pages of the cache; by default what the sequences need.")
    ] = None,
    ragged: Annotated[
        bool | None, typer.Option("--ragged/--full", help="Lengths that halve, with a padded row at the end.")
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(help="A safetensors file with tensors of the step.")
    ] = None,
    executor: Annotated[
        str | None, typer.Option(help="cuda, interpreter or emulator; by default cuda if there is a GPU.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture without a GPU; by default sm_90a.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare with the references.")] = True,
    sample: Annotated[int, typer.Option(min=1, help="Sequences or rows that the check compares.")] = 4,
    timing: Annotated[
        bool, typer.Option("--time/--no-time", help="On a GPU: time it under a CUDA graph.")
    ] = True,
    as_json: out.Json = False,
) -> None:
    """One real DSA step (score, select, attend) through the registry, checked, and timed on a GPU.

    Without a GPU the step runs in the interpreter, which executes the tile programs in torch on the CPU.
    """
    import torch

    from .. import executors, ops
    from ..dsa import steps
    from ..dsa.check import run_checked

    wanted = _size(
        kind,
        size,
        {
            "batch": batch,
            "rows": rows,
            "context": context,
            "heads": heads,
            "index_heads": index_heads,
            "topk": topk,
            "kv": kv,
            "next_n": next_n,
            "pages": pages,
            "ragged": ragged,
        },
        workload,
    )
    name, device, why = executor_of(executor)
    target = get_arch(arch).name if arch else None
    if device == "cuda" and target not in (
        None,
        executors.gpu_at_hand(torch.cuda.current_device()).arch.name,
    ):
        raise InvalidArgumentError(
            "--arch",
            expected="the GPU's own architecture, or none",
            got=repr(arch),
            fix="drop it, or pass --executor interpreter",
        )
    ops.clear()
    with torch.inference_mode(), tile_threads(device):
        inputs = (
            steps.load(workload, wanted, device=device, seed=seed)
            if workload
            else steps.draw(wanted, device=device, seed=seed)[0]
        )
        options = {"executor": None if name == "cuda" else name, "arch": target}
        begin = time.perf_counter()
        if check:
            _, comparisons = run_checked(inputs, sample=sample, **options)
        else:
            inputs.run(**options)
            comparisons = {}
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        used = steps.used()
        figures = _timed(inputs, wanted, seed, workload is not None) if timing and device == "cuda" else None
    ok = all(comparison.ok for comparison in comparisons.values())
    report = {
        "kind": kind,
        "size": vars(inputs.size()),
        "executor": name,
        "why": why,
        "device": device_name(device),
        "arch": used[0].variant.arch,
        "sampled": min(sample, _count(inputs)),
        "of": _count(inputs),
        "seconds": seconds,
        "used": [
            {"op": u.variant.op, "variant": u.variant.id, "rule": u.rule, "launch": u.launch} for u in used
        ],
        "checks": {
            op: {"ok": c.ok, "figures": c.figures, "limits": c.limits, "failures": c.failures}
            for op, c in comparisons.items()
        },
        "ok": ok if check else None,
        "time": figures,
    }
    if as_json:
        out.print_json(report)
    else:
        _print_report(report, inputs.size().describe(), comparisons)
    if not ok:
        raise typer.Exit(1)


def _count(inputs: StepInputs) -> int:
    """Sequences of a decode step, or rows of a prefill: what the check samples from."""
    return inputs.tensors["seq_lens" if inputs.kind == "decode" else "k_start"].shape[0]


def _size(kind: str, name: str | None, fields: dict[str, Any], workload: Path | None) -> StepSize:
    """The named size, or the defaults, with the given options on top."""
    from ..dsa import steps

    require_known("kind", kind, steps.KINDS, "kind of step")
    given = {field: value for field, value in fields.items() if value is not None}
    if name is None and "context" not in given and workload is None:
        raise InvalidArgumentError(
            f"sizes of the {kind} step",
            expected="--size NAME, or -l/--context with others, or --workload FILE",
            got="none",
            fix=f"for example `python -m dsl_kernels run {kind} --size demo`",
        )
    base = steps.named_size(kind, name) if name else steps.StepSize(kind=kind)
    if name and ({"batch", "context"} & set(given)) and "pages" not in given:
        base = replace(base, pages=0)
    return replace(base, **given).validate()


def _timed(inputs: StepInputs, size: StepSize, seed: int, from_file: bool) -> dict[str, Any]:
    """Times under a CUDA graph, over inputs that rotate past the L2 or over those of the workload file."""
    from ..timing import measure

    sets = [inputs] if from_file else measure.step_sets(size, seed)
    return measure.time_step(sets)


def _print_report(report: dict[str, Any], sizes: str, comparisons: dict[str, Comparison]) -> None:
    console = out.console()
    console.print(f"{report['kind']} step: {sizes}", style="bold", markup=False)
    console.print(f"executor {report['executor']} on {report['device']} ({report['why']})", markup=False)
    launches = [(u["op"], u["variant"], u["rule"], u["launch"]) for u in report["used"]]
    out.show(out.table("", ("op", "variant", "chosen by", "launch"), launches))
    if comparisons:
        rows = []
        for op, comparison in comparisons.items():
            for name, value in comparison.figures.items():
                limit = comparison.limits.get(name)
                held = "-" if limit is None else "ok" if value <= limit else "FAILED"
                rows.append((op, name, value, limit, held))
        unit = "sequences" if report["kind"] == "decode" else "rows"
        title = f"against the reference, {report['sampled']} of {report['of']} {unit}"
        out.show(
            out.table(title, ("op", "figure", "value", "limit", "holds"), rows, right=("value", "limit"))
        )
        for op, comparison in comparisons.items():
            for failure in comparison.failures:
                out.error_console().print(f"{op}: {failure}", style="bold red", markup=False, soft_wrap=True)
    if report["time"]:
        _print_times(console, report["time"])
    verdict = (
        ""
        if report["ok"] is None
        else "matches the reference, "
        if report["ok"]
        else "DIFFERS FROM THE REFERENCE, "
    )
    console.print(f"{verdict}{report['seconds']:.2f} s with first use", style="bold", markup=False)


def _print_times(console: Any, figures: dict[str, Any]) -> None:
    baseline, limits, parts = figures.get("baseline"), figures.get("ceilings", {}), figures.get("ops", {})
    rows: list[tuple[Any, ...]] = [("whole step", figures["step"]["us"], None, None, None)]
    against = {
        "lightning_indexer": ("read of its pages", limits.get("read")),
        "sparse_mla": ("gather of its rows", limits.get("gather")),
    }
    for op, us in parts.items():
        name, limit = against.get(op, (None, None))
        rows.append((op, us, name, limit, us / limit if limit else None))
    if "marginal" in figures:
        rows.append(("the step with attention minus without", figures["marginal"], None, None, None))
    if baseline:
        rows.append(("Triton sparse_mla", baseline["us"], "gather of its rows", limits.get("gather"), None))
    turns = figures["turns"]
    inputs = f"{turns} input sets rotated past the L2" if turns > 1 else "one input set"
    title = f"microseconds under a CUDA graph, {inputs}"
    out.show(
        out.table(
            title, ("what", "us", "ceiling", "ceiling us", "ratio"), rows, right=("us", "ceiling us", "ratio")
        )
    )
    for note in figures["notes"]:
        out.error_console().print(note, style="yellow", markup=False, soft_wrap=True)


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
    dim: out.Sizes = None,
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
    from .. import problems
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

    from .. import executors, registry
    from ..timing import grids

    # Points of a grid may have a form that only another architecture has.
    arch = executors.gpu_at_hand(torch.cuda.current_device()).arch.name
    points = [
        at
        for name in ([op] if op else _generated())
        for at in out.points_of(name, form, grid, point, dim or [])
        if dim or registry.has_form(at.op, at.form, arch)
    ]
    if not points:
        raise out.no_points(grid, point)
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
    summary = grids.regrets(records.rows) if regret else []
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
            out.error_console().print(text, style="red", markup=False, soft_wrap=True)
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
        out.console().print(f"wrote {written}", markup=False, soft_wrap=True)


def _generated() -> list[str]:
    """The operations that have variants."""
    from .. import variants

    return list(dict.fromkeys(variant.op for variant in variants.variants()))


def _compile_runnable(operations: set[str], bar: Any) -> list[str]:
    """Compile this GPU's variants of the operations, in worker processes; returns a line for each error."""
    import torch

    from .. import executors, variants

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

    console = out.console()
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
        console.print(f"wrote {path}", markup=False, soft_wrap=True)


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
                out.rate(record.get("per_second")),
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
