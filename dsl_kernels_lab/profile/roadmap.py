"""A diagnosis as a plan: what to change in which order, and the most that each change could gain."""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import SCHEMA, Diagnosis, Finding


@dataclass(frozen=True)
class Phase:
    """One change.

    Attributes:
        alone_us: the least time if only this is fixed; None if nothing that was read limits the gain.
        us: the least time after this phase and all earlier ones; never below the floor.
        dram: share of the DRAM's rate at that time, for the same bytes.
        per_second: units of work per second at that time.
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
    """Phases in the order to do them; times are bounds, not promises.

    Attributes:
        us: the measured time; `now` is the kernel as it is.
        floor_us: the time that the busiest unit alone takes.
        unit: the unit of work, or "" if none is known.
        limits: findings of a unit at its limit, where only less work makes the kernel faster.
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
    """The phases that follow from a diagnosis; None if the launch's time was not read.

    Args:
        work: name and number of the units of work in a launch, such as ("trajectories", 64).
        baseline_us: time of what the kernel is compared with.
    """
    f = diagnosis.fingerprint
    if not f.us:
        return None
    start, floor, dram = f.us, diagnosis.ceiling_us or 0.0, f.sol.get("dram")

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
        f.label or f.kernel,
        start,
        diagnosis.ceiling_us,
        work[0] if work else "",
        now,
        tuple(phases),
        tuple(finding for finding in diagnosis.findings if finding.healthy),
        diagnosis.missing,
    )
