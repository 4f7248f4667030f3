"""A page for the first error of each launch of a checked program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..explain import explain
from ..explain_page import html
from ..report import Report
from .session import LaunchRecord


def writer(folder: Path) -> Callable[[LaunchRecord, Callable[..., Report]], None]:
    """A function that a session calls for a launch with an error; it writes the launch's page."""

    def write(record: LaunchRecord, run: Callable[..., Report]) -> None:
        first = record.first()
        if first is None:
            return
        finding, report = first
        explanation = explain(run, report, record.kernel.ptx, record.kernel.entry)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"launch_{record.number}_{finding.code}.html"
        path.write_text(html(explanation, str(record)), encoding="utf-8")
        path.with_suffix(".txt").write_text(f"{record}\n{explanation}\n", encoding="utf-8")
        record.page = str(path)

    return write
