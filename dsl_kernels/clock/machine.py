"""One SM as a discrete-event simulation: units that serve requests in turn, and tasks that wait.

Time is in clocks of the SM. A task is a generator that yields what it waits for: a number is a time, a
`Signal` an event whose time another task will set. Tasks resume in the order of their times, so requests
reach a unit in order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import NamedTuple

SCHEDULERS = 4
"""Warp schedulers of an SM; warp w issues at scheduler w % 4."""

# The most issue slots that a task takes of its schedulers in a row.
QUANTUM = 64


class Cause(NamedTuple):
    """What an event depends on: the task that asked for it, since when, and the unit that serves it."""

    task: Task
    since: float
    unit: str


class Span(NamedTuple):
    """An interval of a task's time.

    Attributes:
        begin, end: clocks of the SM.
        unit: what held the task: a unit, its own issue, or the event that it waited for.
        region: the region of the kernel's text, as probes name it.
        cause: for a wait, what its event depended on.
    """

    begin: float
    end: float
    unit: str
    region: str
    cause: Cause | None = None


@dataclass
class Unit:
    """A unit of the SM that serves requests in the order of arrival.

    Attributes:
        free: the time when it has served every request so far.
        busy: clocks in which it served requests.
        served: begin and end of each request, if the machine keeps them.
    """

    name: str
    free: float = 0.0
    busy: float = 0.0
    served: list[tuple[float, float]] | None = None

    def serve(self, now: float, clocks: float) -> float:
        """Serve a request that comes `now` and takes `clocks`; gives the time when it is done."""
        begun = max(self.free, now)
        self.free = begun + clocks
        self.busy += clocks
        if self.served is not None and clocks:
            self.served.append((begun, self.free))
        return self.free


@dataclass
class Port(Unit):
    """The port of shared memory. Operands of products pass first; requests of warps have what these leave.

    Attributes:
        least: the rate of requests beside operands that take the whole port.
        products: begin, end and share of the port of each product to come.
    """

    least: float = 0.0
    products: list[tuple[float, float, float]] = field(default_factory=list)

    def reads(self, begin: float, end: float, clocks: float) -> None:
        """A product that runs from `begin` to `end` reads operands for `clocks`."""
        share = min(1.0, clocks / (end - begin))
        # Requests that came before had the port alone.
        if (late := self.free - begin) > 0:
            rate = max(self.least, 1.0 - share)
            self.free = begin + min(late / rate, late + (1.0 - rate) * (end - begin))
        self.busy += clocks
        self.products.append((begin, end, share))

    def requested(self, now: float, clocks: float, most: float = 1.0) -> float:
        """Serve a request, at most at a rate of `most` beside products; gives the time when it is done."""
        if not clocks:
            return now
        at, left, done = max(self.free, now), clocks, 0
        for begin, end, share in self.products:
            alone = min(left, max(0.0, begin - at))
            at, left = at + alone, left - alone
            if left <= 0 or at < begin:
                break
            rate = max(self.least, min(most, 1.0 - share))
            beside = min(left / rate, max(0.0, end - at))
            at, left = at + beside, left - beside * rate
            done += end <= at
        del self.products[:done]
        self.busy += clocks
        self.free = at + left
        if self.served is not None:
            self.served.append((max(now, self.free - clocks), self.free))
        return self.free


@dataclass
class Signal:
    """An event whose time another task sets.

    Attributes:
        what: its name in reports of deadlocks and of waits.
        at: its time; None until it is known.
        waiting: the tasks that wait for it.
        came: for an event that needs several arrivals: the time and the cause of each arrival so far.
        cause: what the event depended on.
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
        unit: what holds it until the time that it yields next.
        region: the region of its text where it is.
        spans: its time in intervals, if the machine keeps them.
        after: what its start depended on.
        waits: clocks that it waited, by event.
        since: when its present wait began.
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
    """The units of an SM and the tasks that run on it.

    Args:
        least: of the port of shared memory.
        kept: whether tasks and units record what they did and when.
    """

    def __init__(self, least: float, kept: bool = False) -> None:
        self.kept = kept
        self.port = Port("shared memory", served=[] if kept else None, least=least)
        self.units: dict[str, Unit] = {self.port.name: self.port}
        self.issue = [Unit(f"issue {i}") for i in range(SCHEDULERS)]
        self.now = 0.0
        self._ready: list[tuple[float, int, Task]] = []
        self._count = 0
        self._blocked: set[Task] = set()

    def unit(self, name: str) -> Unit:
        if name not in self.units:
            self.units[name] = Unit(name, served=[] if self.kept else None)
        return self.units[name]

    def multiply(self, now: float, clocks: float, operands: float) -> float:
        """Serve a product, whose operands take the port so many clocks; gives the time when it is done."""
        done = self.unit("tensor cores").serve(now, clocks)
        self.port.reads(done - clocks, done, operands)
        return done

    def add(self, task: Task, at: float) -> None:
        """Start a task at a time."""
        task.now = at
        self._push(task)

    def happens(self, signal: Signal, at: float, cause: Cause) -> None:
        """Set an event's time; the tasks that wait for it resume then."""
        signal.at, signal.cause = at, cause
        for task in signal.waiting:
            self._blocked.discard(task)
            self._resumes(task, signal, at)
            self._push(task)
        signal.waiting.clear()

    def arrive(self, signal: Signal, at: float, needed: int, cause: Cause) -> None:
        """Count one of `needed` arrivals; the event happens at the last of them."""
        signal.came.append((at, cause))
        if len(signal.came) >= needed and signal.at is None:
            self.happens(signal, *max(signal.came, key=lambda came: came[0]))

    def _resumes(self, task: Task, signal: Signal, at: float) -> None:
        """Resume a task at the event's time, or at its own time if the event came before."""
        task.now = max(task.since, at)
        task.waited(signal.what, task.now)
        if self.kept and task.now > task.since:
            task.spans.append(Span(task.since, task.now, signal.what, task.region, signal.cause))

    def run(self, enough: Callable[[], bool]) -> list[Task]:
        """Run all tasks to their ends, or until `enough()`; gives the tasks that wait for ever."""
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
