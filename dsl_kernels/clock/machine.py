"""One SM as a discrete-event machine: units that serve one request after the other, and tasks that wait for times.

Time is in clocks of the SM. A task is a generator of what it waits for: a number is a time, a `Signal` something whose
time another task will set. Tasks go on in the order of their times, so requests come to a unit in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import NamedTuple

SCHEDULERS = 4
"""Warp schedulers of an SM; warp w issues at scheduler w % 4."""

# A task holds its schedulers for at most so many issue slots in a row, then others have their turn.
QUANTUM = 64


class Cause(NamedTuple):
    """What something waits for: which task began it, when, and the unit that does it."""

    task: Task
    since: float
    unit: str


class Span(NamedTuple):
    """A part of the time of a task.

    Attributes:
        unit: what the task was held by: a unit, its own issue, or what it waited for.
        region: where in its text it was, as probes name it.
        cause: what ended a wait for another task.
    """

    begin: float
    end: float
    unit: str
    region: str
    cause: Cause | None = None


@dataclass
class Unit:
    """A unit of the SM that serves requests in the order in which they come.

    Attributes:
        free: when it has served all that has come.
        busy: clocks that it has served.
        served: begin and end of each request, if that is kept.
    """

    name: str
    free: float = 0.0
    busy: float = 0.0
    served: list[tuple[float, float]] | None = None

    def serve(self, now: float, clocks: float) -> float:
        """When a request that comes now and takes so many clocks has been served."""
        begun = max(self.free, now)
        self.free = begun + clocks
        self.busy += clocks
        if self.served is not None and clocks:
            self.served.append((begun, self.free))
        return self.free


@dataclass
class Signal:
    """Something that happens at a time which is not known before another task comes to it.

    Attributes:
        what: what happens, for a report of a deadlock and of what a role waits for.
        at: when; None as long as nobody knows.
        came: of something that several have to arrive for, when those did that have, and what each waited for.
        cause: what it waited for.
    """

    what: str
    at: float | None = None
    waiting: list[Task] = field(default_factory=list)
    came: list[tuple[float, Cause]] = field(default_factory=list)
    cause: Cause | None = None


@dataclass(eq=False)
class Task:
    """One replica of a role of a CTA.

    Attributes:
        now: its time.
        waits: clocks that it has waited, by what for.
        unit: what holds it until the time that it gives next, and `region` where in its text it is.
        spans: its time, if that is kept.
        after: what it began after.
    """

    name: str
    steps: Generator[float | Signal, None, None]
    cta: int = 0
    now: float = 0.0
    unit: str = "issue"
    region: str = ""
    spans: list[Span] = field(default_factory=list)
    after: Cause | None = None
    waits: dict[str, float] = field(default_factory=dict)
    since: float = 0.0

    def waited(self, what: str, until: float) -> None:
        if until > self.since:
            self.waits[what] = self.waits.get(what, 0.0) + until - self.since


class Machine:
    """The units of an SM and the tasks that run there.

    Args:
        kept: whether tasks and units keep what they did when.
    """

    def __init__(self, kept: bool = False) -> None:
        self.kept = kept
        self.units: dict[str, Unit] = {}
        self.issue = [Unit(f"issue {i}") for i in range(SCHEDULERS)]
        self.now = 0.0
        self._ready: list[tuple[float, int, Task]] = []
        self._count = 0
        self._blocked: set[Task] = set()

    def unit(self, name: str) -> Unit:
        if name not in self.units:
            self.units[name] = Unit(name, served=[] if self.kept else None)
        return self.units[name]

    def add(self, task: Task, at: float) -> None:
        """Let a task begin at a time."""
        task.now = at
        self._push(task)

    def happens(self, signal: Signal, at: float, cause: Cause) -> None:
        """Something happens at a time; who waits for it goes on then."""
        signal.at, signal.cause = at, cause
        for task in signal.waiting:
            self._blocked.discard(task)
            self._resumes(task, signal, at)
            self._push(task)
        signal.waiting.clear()

    def arrive(self, signal: Signal, at: float, needed: int, cause: Cause) -> None:
        """One of `needed` arrivals, after all of which something happens."""
        signal.came.append((at, cause))
        if len(signal.came) >= needed and signal.at is None:
            self.happens(signal, *max(signal.came, key=lambda came: came[0]))

    def _resumes(self, task: Task, signal: Signal, at: float) -> None:
        """A task goes on at the time of what it waited for, or at its own if that was before."""
        task.now = max(task.since, at)
        task.waited(signal.what, task.now)
        if self.kept and task.now > task.since:
            task.spans.append(Span(task.since, task.now, signal.what, task.region, signal.cause))

    def run(self, enough: Callable[[], bool]) -> list[Task]:
        """Let all tasks run to their end, or until it is `enough`; those that wait for what never happens are returned."""
        while self._ready:
            if enough():
                return []
            self.now, _, task = heapq.heappop(self._ready)
            task.now = self.now
            wanted = next(task.steps, None)
            if wanted is None:
                continue
            if isinstance(wanted, Signal):
                task.since = task.now
                if wanted.at is None:
                    wanted.waiting.append(task)
                    self._blocked.add(task)
                    continue
                self._resumes(task, wanted, wanted.at)
            else:
                if self.kept and wanted > task.now:
                    task.spans.append(Span(task.now, wanted, task.unit, task.region))
                task.now, task.unit = max(task.now, wanted), "issue"
            self._push(task)
        return list(self._blocked)

    def _push(self, task: Task) -> None:
        self._count += 1
        heapq.heappush(self._ready, (task.now, self._count, task))
