"""Files of a profiler, read into `KernelReport`s."""

from __future__ import annotations

from pathlib import Path

from .model import KernelReport


def read(path: str | Path) -> list[KernelReport]:
    """The launches in a report: .ncu-rep (needs ncu-report), raw CSV, a text log of ncu, or our own JSON."""
    raise NotImplementedError
