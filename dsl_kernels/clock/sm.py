"""One SM with its share of a launch: its CTAs, its memory bandwidth, and the prediction from its walk."""

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
"""How many CTAs, one after another, are walked; each further one counts as long as the last of these."""
MOST_USES, WHOLE = 64, 400
"""How many uses of a CTA's busiest ring are walked; further uses come at the pace of the second half of
these. A CTA with at most `WHOLE` uses is walked to its end, so that its time includes its epilogue."""
QUERIES = 3
"""How many uses of a ring of one slot are walked where one such use covers many of the busiest ring's: a CTA
that processes several queries is then paced by whole queries, including the work between two of them."""
SUSTAINED = 200_000
"""Clocks after which the power limit determines a launch's clock."""
SPELLED = {"tilelang": 1.16}
"""Instructions of a DSL's kernel divided by those of CuTe DSL's from the same text: the median over the
committed pairs of sm_90a, without gqa_forward, whose TileLang kernels contain their loops more than once."""
COPIES = {"cutedsl": {"Span": 1.5, "Rows": 0.4}, "tilelang": {"Rows": 0.45}}
"""Issue cost of one bulk copy on Blackwell, relative to a tensor-map box (`Rates.bulk_slots`), by DSL and
kind of source: from stall fields of the SASS (`benchmarks/clock_instructions.py`)."""


@dataclass
class Kernel:
    """A variant's schedule and text, built once.

    Attributes:
        longest: operand -> the dim or number that its elements have in the longest call.
        dsl: the DSL that prints it.
        works: cache of the work of each leaf call.
    """

    schedule: Schedule
    text: t.Text
    longest: Mapping[str, str]
    dsl: str = "cutedsl"
    works: dict[Any, tuple[Work, dict[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Prediction:
    """The result of a walk: a model's figures.

    Attributes:
        us: microseconds of a launch.
        clocks: clocks of the SM.
        mhz: the clock that converts the one to the other.
        drawn: what the SM's units draw, as a share of what products alone draw at that clock.
        busy: unit -> the fraction of the time in which it served requests.
        waits: role of the first CTA -> event -> clocks that the role waited for it.
    """

    us: float
    clocks: float
    mhz: float
    drawn: float
    busy: Mapping[str, float]
    waits: Mapping[str, Mapping[str, float]]

    @property
    def bound(self) -> str:
        """The busiest unit, or "latency" where no unit is busy for most of the time."""
        name = max(self.busy, key=lambda unit: self.busy[unit])
        return name if self.busy[name] > 0.7 else "latency"


@dataclass(frozen=True)
class Share:
    """One SM's share of a launch, and of the memory bandwidth.

    Attributes:
        counts: what one CTA does.
        products: the least clocks of the tensor cores per CTA.
        wanted: how many CTAs the SM runs.
        at_once: how many of them it holds at once.
        active: the fraction of the GPU's SMs that have a CTA.
        fresh: the fraction of the bytes that come from HBM.
        byte_clocks: clocks per byte from HBM or the L2.
        latency: clocks until a load's first byte arrives.
    """

    counts: Counts
    products: float
    wanted: int
    at_once: int
    active: float
    fresh: float
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
        """The share of a launch with these dims, of which at least `least` bytes come from HBM."""
        ctas = math.prod(size_at(extent, dims) for extent in schedule.grid)
        resident = max(1, schedule.ctas_per_sm)
        sms = max(1, gpu.slots_in_clusters(schedule.cluster_ctas, resident) // resident)
        wanted = max(1, -(-ctas // sms))
        # `least` bytes of the traffic come from HBM, the others from the L2.
        traffic = ctas * (counts.loaded + counts.stored)
        fresh = min(1.0, least / traffic) if traffic else 0.0
        active = min(gpu.sms, ctas)
        byte_clocks = max(1 / rates.sm_bytes, active * fresh / rates.hbm_bytes, active / rates.l2_bytes)
        latency = rates.l2_latency if fresh < 0.2 else rates.hbm_latency
        products = sum(flops / rates.tensor[dtype] for dtype, flops in counts.flops.items())
        return cls(
            counts, products, wanted, min(resident, wanted), active / gpu.sms, fresh, byte_clocks, latency
        )

    @property
    def rounds(self) -> float:
        """How many times the SM fills with CTAs."""
        return self.wanted / self.at_once

    def time(self, rates: Rates, clocks: float, tensor: float, drawn: float) -> tuple[float, float]:
        """Microseconds of a launch, and the MHz that they assume.

        Args:
            rates: The GPU's rates.
            clocks: Clocks of the SM.
            tensor: The fraction of the clocks in which the tensor cores are busy.
            drawn: What the SM's units draw, as `Rates.drawn` has it.
        """
        mhz = rates.mhz(tensor, drawn * self.active, min(1.0, clocks / SUSTAINED))
        return rates.launch_us + rates.begin_us + clocks / mhz, mhz

    def drawn(self, rates: Rates, busy: Mapping[str, float]) -> float:
        """What the SM's units draw when they are busy for these fractions of the time."""
        moved = busy.get("memory", 0.0) / self.byte_clocks
        units = {**busy, "memory": moved, "hbm": moved * self.fresh}
        return sum(rates.drawn[unit] * units.get(unit, 0.0) for unit in rates.drawn)


class Sm:
    """The walk of one SM with its share of a launch.

    Args:
        kept: whether tasks and units record what they did and when, for `clock.path`.
    """

    def __init__(
        self, kernel: Kernel, rates: Rates, dims: Mapping[str, int], share: Share, kept: bool = False
    ) -> None:
        self.kernel, self.rates, self.dims, self.share = kernel, rates, dims, share
        self.machine = Machine(rates.shared_least, kept)
        self.uses = share.counts.uses
        self.spelled = SPELLED.get(kernel.dsl, 1.0)
        self.block = (share.counts.cta, *(0 for _ in kernel.schedule.grid[1:]))
        self.tasks: list[Task] = []
        self._first: Cta | None = None
        self._left = 0
        self._ends: list[float] = []
        # The ring with one use per query; "" if there is none, None as long as that is unknown.
        self._of_queries: str | None = None

    def copy_slots(self, kind: str) -> float:
        """Instructions of a bulk copy divided by `Rates.bulk_slots`; `kind` is a source of `tile.memory`."""
        if not self.kernel.schedule.tmem_columns():
            return 1.0
        return COPIES.get(self.kernel.dsl, {}).get(kind, 1.0) / self.spelled

    def walk(self) -> Prediction:
        """Run the CTAs, as many at once as the SM holds.

        Raises:
            ScheduleError: roles wait for something that never happens.
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
        drawn = self.share.drawn(self.rates, busy)
        us, mhz = self.share.time(self.rates, clocks, busy.get("tensor cores", 0.0), drawn)
        waits: dict[str, Mapping[str, float]] = {}
        for task in self.tasks:
            waits.setdefault(task.name, task.waits)
        return Prediction(us, clocks, mhz, drawn, busy, waits)

    @property
    def pace(self) -> tuple[str, float] | None:
        """The first CTA's busiest ring, and the clocks between two uses of it; None where it has one use."""
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
        """Clocks from the end of a CTA to the first instruction of its successor."""
        return self.rates.begin_us * self.rates.clock_mhz / 2

    def ended(self, last: Task) -> None:
        """The last task of a CTA has ended: start the next CTA."""
        self._ends.append(last.now)
        if self._left:
            self._left -= 1
            self._begin(last.now + self._between, Cause(last, last.now, "next CTA"))

    def _paced(self) -> bool:
        """Whether the first CTA has walked enough of its uses to extrapolate the others."""
        if self.uses <= WHOLE or self._first is None:
            return False
        acquired = self._first.acquired
        most = max(map(len, acquired.values()), default=0)
        if most < MOST_USES:
            return False
        if self._of_queries is None:
            self._of_queries = next(self._rings_of_queries(acquired), "")
        if self._of_queries and most > MOST_USES * QUERIES * 4:
            # Queries this long are paced by the uses of the busiest ring.
            self._of_queries = ""
        return not self._of_queries or len(acquired[self._of_queries]) >= QUERIES

    def _rings_of_queries(self, acquired: Mapping[str, list[float]]) -> Iterator[str]:
        """Rings with one use per query: one slot, few uses so far, filled by a reader of other rings."""
        pipelines = self.kernel.schedule.pipelines
        reading = {reader.role for pipe in pipelines for reader in pipe.readers}
        for pipe in pipelines:
            seldom = len(acquired.get(pipe.name, ())) in range(1, QUERIES)
            if seldom and (pipe.stages, pipe.rounds) == (1, "loop") and pipe.producer in reading:
                yield pipe.name

    def _clocks(self, walked: int) -> float:
        """Clocks of all CTAs, extrapolated from the first `walked` ones."""
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
