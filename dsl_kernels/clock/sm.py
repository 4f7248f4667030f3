"""One SM with its share of a launch: which CTAs it gets, how fast memory is for it, and what its walk says of the launch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..arch import GpuSpec
from ..errors import ScheduleError
from ..tile import text as t
from ..tile.expressions import size_at
from ..tile.lang import Counts, Schedule
from .machine import SCHEDULERS, Cause, Machine, Task
from .rates import Rates
from .walk import Cta, Walker
from .work import Work

MOST_CTAS = 3
"""CTAs of an SM that are walked one after the other; further ones take as long as the last of these."""
MOST_USES, WHOLE = 64, 160
"""Uses of a CTA's busiest ring that are walked; further ones come at the pace of the second half of these. A CTA of no more than
`WHOLE` is walked to its end: what it does after its last use is then in its time, and that of those after it."""
QUERIES = 3
"""Uses of a ring of one slot that are walked where the busiest ring has `MOST_USES` in fewer: of a CTA that goes on from one query
to the next, the pace is then that of whole queries, with what it does between two of them."""
SUSTAINED = 200_000
"""Clocks after which power limits what a launch does."""
SPELLED = {"tilelang": 1.16}
"""Instructions of a DSL's kernels to those of CuTe DSL's from the same text: the median over the committed pairs of sm_90a
but those of gqa_forward, whose TileLang kernels hold their loops more than once."""
COPIES = {"cutedsl": {"Span": 1.5, "Rows": 0.4}, "tilelang": {"Rows": 0.45}}
"""What one copy by the copy engine takes a warp on Blackwell, to a box (`Rates.bulk_slots`), by DSL and kind of source: stall
fields of the SASS (`benchmarks/clock_instructions.py`)."""


@dataclass
class Kernel:
    """A variant as it is walked: its schedule and text, read once.

    Attributes:
        longest: by operand, the dim or number that its elements have in the longest call.
        dsl: which DSL spells it.
    """

    schedule: Schedule
    text: t.Text
    longest: Mapping[str, str]
    dsl: str = "cutedsl"
    works: dict[Any, tuple[Work, dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """What a walk found: a model's figures.

    Attributes:
        us: the time of a launch.
        clocks: of the SM.
        mhz: the clock that they were turned into time with.
        busy: by unit, the share of the time in which it served.
        waits: by role of the first CTA, the clocks that it waited, by what for.
    """

    us: float
    clocks: float
    mhz: float
    busy: Mapping[str, float]
    waits: Mapping[str, Mapping[str, float]]

    @property
    def bound(self) -> str:
        """The unit that is busiest, or "latency" where none is busy for most of the time."""
        name = max(self.busy, key=lambda unit: self.busy[unit])
        return name if self.busy[name] > 0.7 else "latency"


@dataclass(frozen=True)
class Share:
    """What one SM gets of a launch, and of the GPU's memory.

    Attributes:
        counts: what a CTA does.
        products: clocks that the tensor cores take for a CTA at least.
        wanted: CTAs, of which it holds `at_once`.
        active: the share of the GPU's SMs that have a CTA.
        byte_clocks: clocks a byte from memory or the L2.
        latency: clocks until the first byte comes.
    """

    counts: Counts
    products: float
    wanted: int
    at_once: int
    active: float
    byte_clocks: float
    latency: float

    @classmethod
    def of(
        cls,
        schedule: Schedule,
        gpu: GpuSpec,
        rates: Rates,
        dims: Mapping[str, int],
        counts: Counts,
        least: float,
    ) -> Share:
        """The share of a launch of these sizes, of which `least` bytes come from memory at least."""
        ctas = math.prod(size_at(extent, dims) for extent in schedule.grid)
        held = max(1, schedule.ctas_per_sm)
        sms = max(1, gpu.slots_in_clusters(schedule.cluster_ctas, held) // held)
        wanted = max(1, -(-ctas // sms))
        # What the launch moves comes from memory once, and else from the L2.
        traffic = ctas * (counts.loaded + counts.stored)
        fresh = min(1.0, least / traffic) if traffic else 0.0
        active = min(gpu.sms, ctas)
        byte_clocks = max(1 / rates.sm_bytes, active * fresh / rates.hbm_bytes, active / rates.l2_bytes)
        latency = rates.l2_latency if fresh < 0.2 else rates.hbm_latency
        products = sum(flops / rates.tensor[dtype] for dtype, flops in counts.flops.items())
        return cls(counts, products, wanted, min(held, wanted), active / gpu.sms, byte_clocks, latency)

    @property
    def rounds(self) -> float:
        """Rounds of CTAs."""
        return self.wanted / self.at_once

    def time(self, rates: Rates, clocks: float, tensor: float) -> tuple[float, float]:
        """Microseconds of a launch, and the clock that they were worked out with.

        Args:
            clocks: of the SM.
            tensor: the share of them in which the tensor cores are busy.
        """
        mhz = rates.mhz(tensor * self.active * min(1.0, clocks / SUSTAINED))
        return rates.launch_us + rates.begin_us + clocks / mhz, mhz


class Sm:
    """One SM with its share of a launch, as it is walked.

    Args:
        kept: whether the walk keeps what its tasks and units did when, for `clock.path`.
    """

    def __init__(
        self, kernel: Kernel, rates: Rates, dims: Mapping[str, int], share: Share, kept: bool = False
    ) -> None:
        self.kernel, self.rates, self.dims, self.share = kernel, rates, dims, share
        self.machine = Machine(kept)
        self.uses = share.counts.uses
        self.spelled = SPELLED.get(kernel.dsl, 1.0)
        self.block = (0,) * len(kernel.schedule.grid)
        self.tasks: list[Task] = []
        self._first: Cta | None = None
        self._left = 0
        self._ends: list[float] = []
        # The ring whose uses are those of queries; None where it is not yet known whether there is one.
        self._of_queries: str | None = None

    def copy_slots(self, kind: str) -> float:
        """Instructions of a copy by the copy engine to `Rates.bulk_slots`; kinds are those of `tile.memory`."""
        if not self.kernel.schedule.tmem_columns():
            return 1.0
        return COPIES.get(self.kernel.dsl, {}).get(kind, 1.0) / self.spelled

    def walk(self) -> Prediction:
        """Let the CTAs run, as many at once as the SM holds.

        Raises:
            ScheduleError: roles wait for what never happens.
        """
        most = MOST_CTAS if self.uses <= MOST_USES else 1
        walked = min(self.share.wanted, most * self.share.at_once)
        self._left = walked - self.share.at_once
        for _ in range(self.share.at_once):
            self._begin(0.0)
        stuck = self.machine.run(self._paced)
        if stuck:
            raise ScheduleError(
                f"the clock's walk of {', '.join(role.name for role in self.kernel.schedule.roles)}",
                expected="roles that reach their ends",
                got=", ".join(f"{task.name} waits" for task in stuck[:6]),
                fix="commit and release what others wait for",
            )
        clocks = self._clocks(walked)
        span = max(1.0, self.machine.now)
        busy = {unit.name: unit.busy / span for unit in self.machine.units.values()}
        busy["issue"] = sum(unit.busy for unit in self.machine.issue) / SCHEDULERS / span
        us, mhz = self.share.time(self.rates, clocks, busy.get("tensor cores", 0.0))
        waits: dict[str, Mapping[str, float]] = {}
        for task in self.tasks:
            waits.setdefault(task.name, task.waits)
        return Prediction(us, clocks, mhz, busy, waits)

    @property
    def pace(self) -> tuple[str, float] | None:
        """The busiest ring of the first CTA, and clocks from one use of it to the next; None where it has a single use."""
        acquired = self._first.acquired if self._first is not None else {}
        ring = max(acquired, key=lambda name: len(acquired[name]), default="")
        times = acquired.get(ring, [])
        if self._of_queries:
            begin, end = acquired[self._of_queries][-2:]
            within = sum(begin <= at < end for at in times)
            return (ring, (end - begin) / max(1, within))
        half = min(len(times) // 2, len(times) - 2)
        return (ring, (times[-1] - times[half]) / (len(times) - 1 - half)) if len(times) > 1 else None

    def _begin(self, at: float, after: Cause | None = None) -> None:
        cta = Cta(self, len(self.tasks) // sum(role.replicas for role in self.kernel.schedule.roles))
        self._first = self._first or cta
        for role in self.kernel.schedule.roles:
            for replica in range(role.replicas):
                walker = Walker(cta, role, replica)
                walker.task.after = after
                self.tasks.append(walker.task)
                self.machine.add(walker.task, at)

    @property
    def _between(self) -> float:
        """Clocks from the end of a CTA to the first instruction of the one that takes its place."""
        return self.rates.begin_us * self.rates.clock_mhz / 2

    def ended(self, last: Task) -> None:
        """A CTA has ended with this task: the next one takes its place."""
        self._ends.append(last.now)
        if self._left:
            self._left -= 1
            self._begin(last.now + self._between, Cause(last, last.now, "next CTA"))

    def _paced(self) -> bool:
        """Whether the first CTA has gone through as many uses as are walked, of more."""
        if self.uses <= WHOLE or self._first is None:
            return False
        acquired = self._first.acquired
        most = max(map(len, acquired.values()), default=0)
        if most < MOST_USES:
            return False
        if self._of_queries is None:
            self._of_queries = next(self._rings_of_queries(acquired), "")
        if self._of_queries and most > MOST_USES * QUERIES * 4:
            # Queries that are as long as this are paced as their units are.
            self._of_queries = ""
        return not self._of_queries or len(acquired[self._of_queries]) >= QUERIES

    def _rings_of_queries(self, acquired: Mapping[str, list[float]]) -> Iterator[str]:
        """Rings of one slot that were seldom used, filled by a role that reads others: it has no time for them in between."""
        pipelines = self.kernel.schedule.pipelines
        reading = {reader.role for pipe in pipelines for reader in pipe.readers}
        for pipe in pipelines:
            seldom = len(acquired.get(pipe.name, ())) in range(1, QUERIES)
            if seldom and (pipe.stages, pipe.rounds) == (1, "loop") and pipe.producer in reading:
                yield pipe.name

    def _clocks(self, walked: int) -> float:
        """Clocks of all CTAs, of which the first ones were walked."""
        rounds, done = self.share.rounds, walked / self.share.at_once
        if self._paced() and self._first is not None:
            times = max(self._first.acquired.values(), key=len)
            _, pace = self.pace or ("", 0.0)
            return rounds * (times[-1] + (self.uses - len(times)) * pace)
        ends = sorted(self._ends)
        if done == 1:
            return ends[-1] + (rounds - 1) * (ends[-1] + self._between)
        if done > 1:
            return ends[-1] + (rounds - done) * (ends[-1] - ends[-1 - self.share.at_once])
        return ends[-1] * rounds / done
