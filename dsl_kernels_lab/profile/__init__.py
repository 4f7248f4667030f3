"""Why a kernel is slow: read a profiler's report, reduce it to a fingerprint, and say what to change.

`read` returns the launches of a report, `fingerprint` reduces one to comparable numbers, `diagnose` applies
the rules and the GPU's calibrated ceilings to it, and `diff` compares two. None of these needs a GPU or
torch; `collect` and `targets` run the kernels to look at.
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
    "Ceilings", "Diagnosis", "Diff", "DiffRow", "Evidence", "Finding", "Fingerprint", "Issue", "KernelReport",
    "NcuRule", "Occupancy", "Phase", "RegionTime", "Regions", "Roadmap", "RoleTime", "Spills", "Stall",
    "Ticks", "Traffic", "Workload", "diagnose", "diff", "diff_regions", "dump", "fingerprint", "load",
    "markdown", "plain", "read", "read_ceilings", "roadmap", "schema", "text",
]  # fmt: skip
