"""The report of a launch: its findings, counters and events."""

from __future__ import annotations

from dataclasses import dataclass, field

from .coverage import Coverage, Location
from .interleaving import Interleaving


@dataclass(frozen=True)
class Finding:
    """One failed check: its code, the warp, the place, and the earlier access it conflicts with, if any."""

    code: str
    message: str
    error: bool
    cta: int
    warp: int
    role: str | None
    where: Location | None
    other_warp: int = -1
    other: Location | None = None
    times: int = 1
    other_cta: int = -1

    def __str__(self) -> str:
        who = (
            f"warp {self.warp}{f' ({self.role})' if self.role else ''} of CTA {self.cta}"
            if self.warp >= 0
            else "the launch"
        )
        out = f"[{self.code}] {who}: {self.message}"
        if self.where:
            out += f"\n  at {self.where}"
        if self.other:
            by = f"warp {self.other_warp}" if self.other_warp >= 0 else "an asynchronous copy"
            out += f"\n  earlier access by {by} at {self.other}"
        if self.times > 1:
            out += f"\n  ({self.times} times)"
        return out


@dataclass(frozen=True)
class Event:
    """An instruction of a warp, or a part of an asynchronous operation that the warp had issued."""

    cta: int
    warp: int
    where: Location | None
    asynchronous: bool


@dataclass
class WarpCounters:
    """Counters of the warps with one index, summed over the CTAs."""

    instructions: int
    barrier_waits: int
    spins: int
    ops: dict[str, int]


@dataclass
class Report:
    """Outcome of a launch. ``ok`` means that no check failed under this one interleaving.

    ``findings`` holds every distinct error, and at most ``max_findings`` warnings; ``error_count`` and
    ``warning_count`` count them all. ``trace`` holds the last events in order, as many as
    ``launch(trace=...)`` keeps. ``coverage`` says what the launch reached and what it did not.
    """

    status: str
    interleaving: Interleaving
    instructions: int
    findings: list[Finding]
    warps: list[WarpCounters]
    pipes: dict[str, int]
    stats: dict[str, int]
    seconds: float
    error_count: int
    warning_count: int
    choices: list[tuple[int, int]] = field(default_factory=list)
    trace: list[Event] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def ok(self) -> bool:
        return self.status == "ok" and not self.error_count

    @property
    def errors(self) -> list[Finding]:
        return [f for f in self.findings if f.error]

    def __str__(self) -> str:
        lines = [
            f"{'ok' if self.ok else 'FAILED'} under {self.interleaving}: "
            f"{self.instructions} warp instructions in {self.seconds:.2f} s"
        ]
        lines += [str(f) for f in self.findings]
        if dropped := self.error_count + self.warning_count - len(self.findings):
            lines.append(f"({dropped} more warnings)")
        lines.append("pipes: " + ", ".join(f"{k} {v}" for k, v in self.pipes.items()))
        lines.append("memory: " + ", ".join(f"{k} {v}" for k, v in self.stats.items()))
        return "\n".join(lines)
