"""The variants of resampling that are committed, and how variants rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...arch import ArchSpec, GpuSpec
from ...tile.lang import Counts, Policy, Schedule, bucket_of
from . import leaves as leaf
from .program import resident_ctas

# (search, targets, vector) of the committed set: steps from the plain kernel on, then what the tables use.
COMMITTED = (
    ("global", 128, 1),
    ("staged", 128, 1),
    ("staged", 128, 8),
    ("staged", 512, 8),
    ("warp", 128, 8),
    ("window", 128, 8),
    ("window", 512, 8),
    ("window", 128, 1),
    ("merge", 128, 8),
)


def _times(k: SimpleNamespace, dims: Mapping[str, int]) -> int:
    """Times that the searches of a CTA read, where targets are sorted."""
    if k.search == "global":
        return min(k.targets, dims["m"]) * dims["n"].bit_length()
    return (
        min(dims["n"], dims["n"] * k.targets // max(dims["m"], 1) + 2)
        if k.search in ("window", "merge")
        else dims["n"]
    )


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """Per target its time, the times of its search, two rows in (or all rows of these times), one row out."""
    targets, row = min(k.targets, dims["m"]), 2 * dims["d"]
    rows = _times(k, dims) if k.search == "merge" else 2 * targets
    return Counts(loaded=4 * targets + 4 * _times(k, dims) + row * rows, stored=row * targets)


def overhead(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> float:
    """Microseconds of a wave beyond its bytes: waits for memory, and for the slowest thread of a CTA."""
    rounds, ctas = dims["n"].bit_length(), dims["b"] * -(-dims["m"] // k.targets)
    beside = min(resident_ctas(k, gpu.arch), -(-ctas // gpu.sms))
    staging = 4 * _times(k, dims) * beside / (gpu.l2_gbps * 1e3 / gpu.sms)
    searching = {
        "global": 0.25 * rounds,
        "staged": staging + 0.4,
        "warp": staging + 4.0,
        "window": staging + 1.8,
        "merge": staging + 2.4,
    }[k.search]
    turns = -(-dims["d"] // (leaf.PIECES * k.vector))
    return searching + 0.6 * turns + 0.0004 * k.targets


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    return level > 0 or (k.search, k.targets, k.vector) in COMMITTED


POLICY = Policy(bucket=bucket_of("b", "n", "m", "d"), counts=counts, overhead=overhead, useful=useful)
