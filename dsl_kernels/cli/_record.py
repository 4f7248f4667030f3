"""`bench --record`: what it prints of a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from . import _output as out

if TYPE_CHECKING:
    from ..timing.recording import Outcome


def record(op: str | None, point: str, limit: float, output: Path | None, again: bool, as_json: bool) -> None:
    """Measure beside the peers into `results/<gpu>.json` of the checkout, or go on from what it holds.

    Raises:
        ExecutorUnavailableError: there is no GPU.
        InvalidArgumentError: the file is of another commit or kind of GPU.
    """
    from dataclasses import asdict

    from ..timing import bench, recording, results

    gpu = bench.require_gpu()
    root = bench.checkout() or Path()
    path = output if output is not None else results.path_of(gpu, root)
    chosen = recording.items(op, point)
    if not chosen:
        raise out.no_points("record", point)
    begun = time.monotonic()
    with out.progress(as_json) as bar:
        task = bar.add_task("record", total=None)

        def said(key: str) -> None:
            bar.update(task, description=key)
            if not out.error_console().is_terminal:
                # A log that ends with the process says where.
                out.error_console().print(
                    f"{time.monotonic() - begun:.0f} s {key}", markup=False, soft_wrap=True
                )

        found = recording.record(path, chosen, limit=limit, again=again, said=said)
    if as_json:
        out.print_json({**asdict(found.results), "left": found.left, "failed": list(found.failed)})
    else:
        _print(found)
    for text in found.failed:
        out.error_console().print(text, style="red", markup=False, soft_wrap=True)
    if found.failed:
        raise typer.Exit(1)


def _print(found: Outcome) -> None:
    rows = [
        (
            row.key, row.us, row.fastest.name if row.fastest else None, row.fastest.us if row.fastest else None,
            row.ratio, row.sustained_ratio, row.ceiling_us, (row.clocks or {}).get("sm_mhz"),
            (row.clocks or {}).get("watts"),
        )
        for row in found.results.rows
        if row.run == len(found.results.runs) - 1
    ]  # fmt: skip
    columns = ("point", "us", "fastest peer", "peer us", "ratio", "on end", "ceiling us", "MHz", "W")
    out.show(out.table(f"{found.results.gpu}, {found.results.commit}", columns, rows, right=columns[1:], fold=("point",)))  # fmt: skip
    for name, reason in found.results.absent.items():
        out.error_console().print(f"{name} is left out: {reason}", markup=False, soft_wrap=True)
    console = out.console()
    console.print(f"wrote {found.path}: {len(found.results.rows)} rows", markup=False, soft_wrap=True)
    if found.left:
        console.print(f"{found.left} are left: run it again to go on", markup=False)
