"""The command that searches for the fastest variant at the user's own shapes, on the user's own GPU: tune."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsl_kernels.cli import _output as out
from dsl_kernels.errors import DslKernelError, InvalidArgumentError, LaunchError

from . import _options as options
from ._points import no_points, points_of

if TYPE_CHECKING:
    from ..timing.search import Search

app = typer.Typer()

UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@app.command()
def tune(
    op: Annotated[str, typer.Argument(help="Operation.")],
    dim: options.Sizes = None,
    form: Annotated[
        str | None, typer.Option(help="Form of the problem (decode, prefill, bf16, fp8).")
    ] = None,
    grid: Annotated[str | None, typer.Option(help="Take the points of a measuring grid instead.")] = None,
    point: Annotated[
        str, typer.Option(help="Only points whose form and sizes match this regular expression.")
    ] = "",
    budget: Annotated[str, typer.Option(help="Time for the whole search: 90, 120s, 10m or 1h.")] = "120s",
    level: Annotated[
        int, typer.Option(min=0, max=2, help="Knobs to sweep; 0 tries the generated variants alone.")
    ] = 2,
    jobs: Annotated[int | None, typer.Option(min=1, help="Compile workers.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Time again what the journal holds.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    as_json: out.Json = False,
) -> None:
    """Search the swept knobs for the fastest variant at your shapes; the registry uses it from then on.

    Each variant is compared with the reference before it is timed. A journal keeps the times: run the command
    again, say with a larger budget, and it continues where it stopped.
    """
    from dsl_kernels import problems

    problems.get(op)
    seconds = seconds_of(budget)
    points = points_of(op, form, grid, point, dim or [])
    if not points:
        raise no_points(grid, point)
    from ..timing import bench, grids, search

    gpu = bench.require_gpu()
    root = search.user_folder()
    import torch

    begin = time.monotonic()
    journal = search.Journal(search.journal_path(root, gpu), fresh)
    rows: list[dict[str, Any]] = []
    won: dict[str, Any] = {}
    path, failed = None, []
    with out.progress(as_json) as bar, torch.inference_mode():
        task = bar.add_task("tune", total=None)
        for place, at in enumerate(points):
            left = max(0.0, seconds - (time.monotonic() - begin))
            deadline = time.monotonic() + left / (len(points) - place)
            bar.update(task, description=f"render {at.op} {at.name}", completed=0, total=None)
            try:
                searched = search.Search(at, grids.prepare(at, seed), journal, deadline, jobs, tuple(won))
                row, entry, winner = _search(searched, level, bar, task)
            except (DslKernelError, torch.OutOfMemoryError) as error:
                failed.append(f"{at.op} {at.name}: {error}")
                if isinstance(error, LaunchError):
                    break
                continue
            failed += searched.failed
            if winner is not None:
                won[winner.id] = winner
                rows.append(row)
                path = search.keep(gpu, [entry], won)
            del searched
            torch.cuda.empty_cache()
    if as_json:
        out.print_json({"gpu": gpu, "points": rows, "failed": failed, "table": path})
    else:
        _print(gpu, rows, failed, path)
    if not rows:
        raise typer.Exit(1)


def _search(point: Search, level: int, bar: Any, task: Any) -> tuple[dict[str, Any], Any, Any]:
    """The row of a point's search, its tuned entry and the winner; the last two may be None.

    They are None if nothing could be timed.
    """
    from dsl_kernels import registry

    from ..timing import grids, search

    def show(name: str) -> None:
        best = min((timed.us for timed in point.times), default=None)
        figure = "" if best is None else f", best {out.figure(best)} us"
        bar.update(task, completed=point.tried, description=f"time {name}{figure}")

    call = grids.call_of(point.point, point.fixture)
    known = search.candidates(call, level)
    bar.update(task, total=len(known))
    entry = point.run(known, show)
    if entry is None:
        return {}, None, None
    before = registry.select(call).variant.id
    us, old = entry["us"][entry["variant"]], entry["us"].get(before)
    row = {
        "op": point.point.op,
        "point": point.point.name,
        "variant": entry["variant"],
        "launch": entry["launch"],
        "us": us,
        "before": before,
        "before_us": old,
        "gain": old / us if old else None,
        "timed": len({timed.variant for timed in point.times}),
        "candidates": len(known),
    }
    return row, entry, next(variant for variant in known if variant.id == entry["variant"])


def seconds_of(text: str) -> float:
    """Seconds of a time such as 90, 120s, 10m or 1h.

    Raises:
        InvalidArgumentError: the text is not a time, or not between 0 and seven days.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip().lower())
    seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 0 < seconds <= 7 * 86400:
        raise InvalidArgumentError(
            "--budget",
            expected="a time such as 90, 120s, 10m or 1h",
            got=repr(text),
            fix="pass --budget 120s",
        )
    return seconds


def _print(gpu: str, rows: list[dict[str, Any]], failed: list[str], path: Any) -> None:
    cells = [
        (
            r["op"],
            r["point"],
            r["us"],
            r["before_us"],
            r["gain"],
            f"{r['timed']} of {r['candidates']}",
            r["variant"],
        )
        for r in rows
    ]
    columns = ("op", "point", "us", "before us", "times as fast", "timed", "variant")
    out.show(out.table(f"tuned on {gpu}", columns, cells, right=columns[2:6], fold=("point",)))
    for text in failed:
        out.say(text, "red", error=True)
    if path is not None:
        out.say(f"wrote {path}")
