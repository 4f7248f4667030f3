"""A launch reduced to numbers that compare."""

from __future__ import annotations

from .model import Fingerprint, KernelReport, Workload


def fingerprint(report: KernelReport, workload: Workload | None = None) -> Fingerprint:
    """Speeds of light, stalls, bytes, pipes and occupancy of a launch; `workload` says what it had to do."""
    raise NotImplementedError
