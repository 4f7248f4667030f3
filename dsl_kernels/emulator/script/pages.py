"""A page for the first error of each launch of a checked program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..explain import explain
from ..explain_page import html
from ..report import Report
from .session import LaunchRecord


def writer(folder: Path) -> Callable[[LaunchRecord, Callable[..., Report]], None]:
    """What a session calls for a launch in which an error was found."""

    def write(record: LaunchRecord, run: Callable[..., Report]) -> None:
        found = record.first()
        if found is None:
            return
        explanation = explain(run, found[1], record.kernel.ptx, record.kernel.entry)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"launch_{record.number}_{found[0].code}.html"
        path.write_text(html(explanation, str(record)), encoding="utf-8")
        path.with_suffix(".txt").write_text(f"{record}\n{explanation}\n", encoding="utf-8")
        record.page = str(path)

    return write
