"""A diagnosis as a plan: what to change in which order, what each change could give at most, alone and after the others."""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import SCHEMA, Diagnosis, Finding


@dataclass(frozen=True)
class Phase:
    """One change.

    Attributes:
        alone_us: the least time where this is mended and nothing else; None where nothing that was read limits the gain.
        us: the same after this phase and all before it; no phase goes below the floor.
        dram: share of the DRAM's rate at that time, for the same bytes.
        per_second: units of work a second at that time.
        ratio: that time over the baseline's.
    """

    finding: Finding
    alone_us: float | None
    us: float
    dram: float | None = None
    per_second: float | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class Roadmap:
    """Phases in the order to go through them; times are bounds, no promises.

    Attributes:
        us: the time that was measured; `now` is the kernel as it is.
        floor_us: what the busiest unit alone takes.
        unit: what work is counted in, "" where it is not.
        limits: findings that say a unit is at its limit: only less work makes the kernel faster there.
    """

    kernel: str
    us: float
    floor_us: float | None
    unit: str
    now: Phase
    phases: tuple[Phase, ...]
    limits: tuple[Finding, ...] = ()
    missing: tuple[str, ...] = field(default=())
    schema: int = SCHEMA


def roadmap(
    diagnosis: Diagnosis, work: tuple[str, float] | None = None, baseline_us: float | None = None
) -> Roadmap | None:
    """The phases that follow from a diagnosis; None where the launch's time was not read.

    Args:
        work: name and number of the units that a launch gives, such as ("trajectories", 64).
        baseline_us: time of what the kernel is held against.
    """
    found = diagnosis.fingerprint
    if not found.us:
        return None
    start, floor, dram = found.us, diagnosis.ceiling_us or 0.0, found.sol.get("dram")

    def phase(finding: Finding, alone: float | None, us: float) -> Phase:
        return Phase(
            finding,
            alone,
            us,
            min(1.0, dram * start / us) if dram is not None else None,
            work[1] / us * 1e6 if work else None,
            us / baseline_us if baseline_us else None,
        )

    us, phases = start, []
    for finding in diagnosis.findings:
        if finding.healthy:
            continue
        alone = None if finding.bound is None else max(floor, start / finding.bound)
        us = us if finding.bound is None else max(floor, us / finding.bound)
        phases.append(phase(finding, alone, us))
    now = phase(Finding("now", "as it was measured", (), ""), start, start)
    return Roadmap(
        found.label or found.kernel,
        start,
        diagnosis.ceiling_us,
        work[0] if work else "",
        now,
        tuple(phases),
        tuple(finding for finding in diagnosis.findings if finding.healthy),
        diagnosis.missing,
    )
