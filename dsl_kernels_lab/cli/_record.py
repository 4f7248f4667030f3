"""`bench --record`: measure, and print the recorded rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsl_kernels.cli import _output as out

from ._points import no_points

if TYPE_CHECKING:
    from ..timing.recording import Outcome


def record(op: str | None, point: str, limit: float, output: Path | None, again: bool, as_json: bool) -> None:
    """Measure beside the peers into `results/<gpu>.json` of the checkout, continuing what that file holds.

    Raises:
        ExecutorUnavailableError: there is no GPU.
        InvalidArgumentError: the file belongs to another commit or kind of GPU.
    """
    from dataclasses import asdict

    from ..timing import bench, recording, results

    gpu = bench.require_gpu()
    root = bench.checkout() or Path()
    path = output if output is not None else results.path_of(gpu, root)
    chosen = recording.items(op, point)
    if not chosen:
        raise no_points("record", point)
    begun = time.monotonic()
    with out.progress(as_json) as bar:
        task = bar.add_task("record", total=None)

        def show(key: str) -> None:
            bar.update(task, description=key)
            if not out.error_console().is_terminal:
                # If the process is killed, its log then says at which item.
                out.say(f"{time.monotonic() - begun:.0f} s {key}", error=True)

        outcome = recording.record(path, chosen, limit=limit, again=again, said=show)
    if as_json:
        out.print_json({**asdict(outcome.results), "left": outcome.left, "failed": list(outcome.failed)})
    else:
        _print(outcome)
    for text in outcome.failed:
        out.say(text, "red", error=True)
    if outcome.failed:
        raise typer.Exit(1)


def _print(outcome: Outcome) -> None:
    results = outcome.results
    rows = []
    for row in results.rows:
        if row.run != len(results.runs) - 1:
            continue
        fastest, clocks = row.fastest, row.clocks or {}
        rows.append(
            (
                row.key,
                row.us,
                fastest.name if fastest else None,
                fastest.us if fastest else None,
                row.ratio,
                row.sustained_ratio,
                row.ceiling_us,
                clocks.get("sm_mhz"),
                clocks.get("watts"),
            )
        )
    columns = ("point", "us", "fastest peer", "peer us", "ratio", "on end", "ceiling us", "MHz", "W")
    title = f"{results.gpu}, {results.commit}"
    out.show(out.table(title, columns, rows, right=columns[1:], fold=("point",)))
    for name, reason in results.absent.items():
        out.say(f"{name} is left out: {reason}", error=True)
    out.say(f"wrote {outcome.path}: {len(results.rows)} rows")
    if outcome.left:
        out.say(f"{outcome.left} are left: run it again to go on", wrap=True)
