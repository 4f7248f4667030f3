"""Why a kernel is slow: read what a profiler saw, reduce it to a fingerprint, and say what to change and for how much.

`read` gives the launches of a report, `fingerprint` reduces one to comparable numbers, `diagnose` holds it against the
rules and the calibrated ceilings of the GPU, `diff` sets two beside each other. Nothing here needs a GPU or torch;
`collect` and `targets` run what has to be looked at.
"""

from __future__ import annotations

from ..timing.ceilings import Ceilings, read_ceilings
from .diff import diff, diff_regions
from .fingerprint import fingerprint
from .model import (
    Diagnosis,
    Diff,
    DiffRow,
    Evidence,
    Finding,
    Fingerprint,
    Issue,
    KernelReport,
    NcuRule,
    Occupancy,
    Regions,
    RegionTime,
    RoleTime,
    Spills,
    Stall,
    Ticks,
    Traffic,
    Workload,
    dump,
    load,
    plain,
    schema,
)
from .readers import read
from .render import markdown, text
from .roadmap import Phase, Roadmap, roadmap
from .rules import diagnose

__all__ = [
    "Ceilings", "Diagnosis", "Diff", "DiffRow", "Evidence", "Finding", "Fingerprint", "Issue", "KernelReport", "NcuRule", "Occupancy", "Phase",
    "RegionTime", "Regions", "Roadmap", "RoleTime", "Spills", "Stall", "Ticks", "Traffic", "Workload", "diagnose", "diff", "diff_regions", "dump", "fingerprint", "load", "markdown", "plain", "read", "read_ceilings", "roadmap",
    "schema", "text",
]  # fmt: skip
