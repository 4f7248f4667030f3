"""Walk a kernel's text with times: every role of the CTAs of one SM, without data.

Where data would decide, the assumptions are those of `tile.counting`: every row is as long as the call
allows, a condition on data holds, and a loop that data end runs once. Every CTA is taken for the launch's
first one. Where CTAs exchange messages, the other CTAs are taken to be as far as this one.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES
from ..tile import text as t
from ..tile.counting import bytes_of
from ..tile.expressions import Expr
from ..tile.lang import Engine, Mma, Pipeline, Role, Space
from .machine import QUANTUM, SCHEDULERS, Cause, Signal, Task
from .work import Register, Work, known, work_of

if TYPE_CHECKING:
    from .sm import Sm

Steps = Generator[float | Signal, None, None]

MOST_TURNS = 1 << 20
"""The most iterations of a loop; a loop that does not end is given up after them."""
OF_WAIT, OF_ARRIVAL = 8, 5
"""Instructions of a wait for a barrier that is complete (with its address and parity), and of an arrival
(with its election): SASS of the committed variants."""
ROWS_A_COPY, PANEL_BYTES = 4, 128
"""One copy of rows by number moves this many rows of a swizzled panel of this width."""
WRITTEN = 200.0
"""Clocks from the copy engine's last read of shared memory until a store is complete."""


@dataclass
class Ring:
    """One pipeline of one CTA: the events of each use, full and free again."""

    pipe: Pipeline
    producers: int
    readers: int
    full: dict[int, Signal] = field(default_factory=dict)
    free: dict[int, Signal] = field(default_factory=dict)

    def filled(self, use: int) -> Signal:
        return self.full.setdefault(use, Signal(f"wait {self.pipe.name}"))

    def freed(self, use: int) -> Signal:
        return self.free.setdefault(use, Signal(f"acquire {self.pipe.name}"))


class Cta:
    """One CTA: its rings, barriers and turns.

    Attributes:
        acquired: ring -> the times when its uses were acquired.
    """

    def __init__(self, sm: Sm, number: int) -> None:
        schedule = sm.kernel.schedule
        self.sm, self.number = sm, number
        self.rings = {
            pipe.name: Ring(
                pipe,
                schedule.role(pipe.producer).replicas,
                sum(schedule.role(reader.role).replicas for reader in pipe.readers),
            )
            for pipe in schedule.pipelines
        }
        self.acquired: dict[str, list[float]] = {}
        self._meetings: dict[str, Signal] = {}
        self._turns: dict[tuple[str, int], Signal] = {}
        self._left = sum(role.replicas for role in schedule.roles)

    def role_ended(self, task: Task) -> None:
        self._left -= 1
        if self._left == 0:
            self.sm.ended(task)

    def meet(self, name: str, total: int, task: Task) -> Signal:
        """A task arrives at a barrier of `total` tasks; gives the barrier's event."""
        signal = self._meetings.setdefault(name, Signal(f"meet {name or 'all'}"))
        cause = Cause(task, task.now, "barrier")
        self.sm.machine.arrive(signal, task.now + self.sm.rates.meet, total, cause)
        if signal.at is not None:
            del self._meetings[name]
        return signal

    def turn(self, name: str, number: int) -> Signal:
        """The event at which a turn begins; the first turn begins at once."""
        return self._turns.setdefault((name, number), Signal(f"turn {name}", None if number else 0.0))


class Walker:
    """One replica of a role of a CTA."""

    def __init__(self, cta: Cta, role: Role, replica: int) -> None:
        self.cta, self.role, self.replica = cta, role, replica
        self.sm, self.machine, self.rates = cta.sm, cta.sm.machine, cta.sm.rates
        self.schedule = cta.sm.kernel.schedule
        name = role.name if role.replicas == 1 else f"{role.name}[{replica}]"
        self.task = Task(name, self._run(), cta.number)
        first = self.schedule.first_thread(role.name) // 32 + replica * role.warps
        self.warps = role.active or role.warps
        self.schedulers = sorted({(first + i) % SCHEDULERS for i in range(min(self.warps, SCHEDULERS))})
        self.deep = -(-self.warps // SCHEDULERS)
        self.scope: dict[str, Any] = {
            **self.sm.dims, **dict(zip(self.schedule.axes, self.sm.block, strict=True)), "replica": replica,
        }  # fmt: skip
        # The times when this role's groups of products, its stores, its last cp.async and its last product
        # complete.
        self._groups: list[float] = []
        self._stores: list[float] = []
        self._copied, self._multiplied = 0.0, 0.0
        # Registers that loads in flight fill -> the time when they arrive.
        self._coming: dict[Register, float] = {}
        # Numbers that loads in flight give -> likewise.
        self._late: dict[str, float] = {}
        # The time when this role issued its last copy and its last product.
        self._asked_at = {"copies": 0.0, "tensor cores": 0.0}
        # (ring, use) -> the time when its bulk copies complete, and the last one's cause.
        self._bulks: dict[tuple[str, int], tuple[float, Cause]] = {}
        self._turns: dict[str, int] = {}
        self._relaxed = False

    def _run(self) -> Steps:
        text = self.sm.kernel.text
        for part in (text.start, text.roles[self.role.name], text.end):
            yield from self._go(part)
        if self._stores:
            yield self._until(self._stores[-1], "stores")
        self.cta.role_ended(self.task)

    def _go(self, statements: Iterable[t.Statement]) -> Steps:
        for s in statements:
            self.task.region = s.region() or self.task.region
            steps = _MEANING.get(type(s), Walker._other)(self, s)
            if steps is not None:
                yield from steps

    def _until(self, at: float, unit: str) -> float:
        """Name the unit that holds the role until a time; gives the time, to be yielded."""
        self.task.unit = unit
        return at

    def _cause(self, unit: str) -> Cause:
        """A request of this role to a unit, from now; for copies and products, from its last issue."""
        return Cause(self.task, self._asked_at.get(unit, self.task.now), unit)

    # ------------------------------------------------------------------ numbers

    def value(self, value: Any) -> Any:
        """The number that a value has, or None where data decide it."""
        if not isinstance(value, Expr):
            return value
        if value.op == "in_role":
            return value.args[0] == self.role.name
        if value.op == "word":
            return self._longest(value.args[0])
        return known(value, self.scope, self.value)

    def _longest(self, memory: Any) -> Any:
        """The value of an operand's elements in the longest call; None where the operand states none."""
        stated = self.sm.kernel.longest.get(memory.name, "") if isinstance(memory, t.Global) else ""
        return int(stated) if stated.isdigit() else self.sm.dims.get(stated)

    # ------------------------------------------------------------------ what is issued

    def issue(self, work: Work) -> Steps:
        """Issue the work of each warp of the role, one quantum after another."""
        slots = max(1.0, work.slots) * self.sm.spelled
        pieces = max(1, math.ceil(slots / QUANTUM))
        alone = work.dense * self.rates.dense_stall + max(0.0, slots - work.dense) * self.rates.stall
        # A warp issues in order: it begins its next exponential when the unit is free. Two instructions of a
        # weight, its product and its sum, pass meanwhile (`unit_weight_1warps` of benchmarks/clock_rates.py).
        lanes = 32 * SCHEDULERS
        alone += work.mufu * max(0.0, lanes / self.rates.mufu - 2 * self.rates.dense_stall)
        busy = slots / pieces * self.deep
        ready_after = max(busy, (max(slots, alone / self.deep) + work.chain) / pieces)
        mufu = work.mufu / pieces * lanes / self.rates.mufu * self.deep
        alu = work.alu / pieces * lanes / self.rates.alu * self.deep
        tensor = work.tensor / pieces / self.rates.tensor_columns * self.deep
        port = self.warps * 128 / self.rates.shared_bytes / pieces
        shared, lines = work.shared * port, work.lines * port
        for _ in range(pieces):
            now = self.task.now
            ends = {"issue": now}
            for scheduler in self.schedulers:
                begun = max(now, self.machine.issue[scheduler].free)
                self.machine.issue[scheduler].serve(now, busy)
                ends["issue"] = max(ends["issue"], begun + ready_after)
                for unit, clocks in (("alu", alu), ("mufu", mufu), ("tensor memory", tensor)):
                    if clocks:
                        served = self.machine.unit(f"{unit} {scheduler}").serve(begun, clocks)
                        ends[unit] = max(ends.get(unit, now), served)
            if shared or lines:
                passed = shared + self.rates.line_clocks * lines
                ends["load-store unit"] = self.machine.unit("load-store unit").serve(now, passed)
                # Copies to shared memory do not wait for operands.
                own = (
                    0.0 if work.copied else self.machine.port.requested(now, shared, self.rates.shared_beside)
                )
                ends["shared memory"] = max(own, self.machine.port.requested(now, lines))
            last = max(ends, key=ends.__getitem__)
            yield self._until(ends[last], last)

    def slots(self, count: float) -> Steps:
        """Issue a number of instructions."""
        return self.issue(Work(slots=count))

    def _memory(self, size: float, at: float) -> float:
        """The time when the SM's port to memory has transferred `size` bytes that were requested at `at`."""
        return self.machine.unit("memory").serve(at, size * self.sm.share.byte_clocks)

    # ------------------------------------------------------------------ plain statements

    def _other(self, s: t.Statement) -> Steps:
        """Any other statement: a few instructions, its barrier if it has one, and each of its blocks once."""
        if s.OF_MACHINE:
            yield from self.slots(4)
        if (name := s.meets()) is not None:
            yield from self._met(name)
        for name, value in s.sets().items():
            self.scope[name] = None if value is None else self.value(value)
        for block in s.blocks.values():
            yield from self._go(block)

    def _let(self, s: t.Let | t.Assign) -> None:
        self.scope[s.name] = self.value(s.value)

    def _variable(self, s: t.Variable) -> None:
        self.scope[s.name] = self.value(s.initial)

    def _loop(self, s: t.Loop) -> Steps:
        begin, end = self.value(s.begin), self.value(s.end)
        if begin is None or end is None:
            self.scope[s.index] = begin
            yield from self._go(s.body)
            return
        for index in range(int(begin), int(end), s.step):
            self.scope[s.index] = index
            yield from self._go(s.body)
            if not s.unrolled:
                yield from self.slots(3)

    def _repeat(self, s: t.Repeat) -> Steps:
        for _ in range(MOST_TURNS):
            condition = self.value(s.condition)
            if condition is not None and not condition:
                return
            before = dict(self.scope)
            yield from self._go(s.body)
            if condition is None or before == self.scope:
                return

    def _if(self, s: t.If) -> Steps:
        condition = self.value(s.condition)
        yield from self.slots(2)
        yield from self._go(s.body if condition is None or condition else s.orelse)

    def _fill(self, s: t.Fill) -> Steps:
        buffer = self.schedule.buffer(s.target.buffer)
        share = 1 if buffer.private or buffer.role is None else self.role.warps * 32
        return self.slots((buffer.per_thread or buffer.stage_elements // share) / 2)

    # ------------------------------------------------------------------ leaves

    def _call(self, s: t.Call) -> Steps:
        work, names = self._work(s)
        results = self._asked(s, s.leaf.longest)
        if results is None:
            results = [names.get(s.leaf.parameters[position].name) for position in s.leaf.results]
        loaded, stored = self._asked(s, s.leaf.loaded), self._asked(s, s.leaf.stored)
        for position, value in zip(s.leaf.results, results, strict=True):
            self.scope[s.arguments[position].args[0]] = value
        ready = max(map(self._ready, self._registers(s, work.reads)), default=0.0) if self._coming else 0.0
        if self._late:
            given = (a.args[0] for a in s.arguments if isinstance(a, Expr) and a.op == "name")
            ready = max(ready, max((self._late.get(name, 0.0) for name in given), default=0.0))
        if ready > self.task.now:
            yield self._until(ready, "memory")
        asked = self.task.now
        comes = self._memory(loaded, asked) + self.sm.share.latency if loaded else 0.0
        yield from self.issue(work)
        if work.copied:
            comes = comes or self.task.now + self.sm.share.latency
            self._copied = max(self._copied, comes + self.rates.copy_latency)
            self._asked_at["copies"] = asked
        elif work.comes and not work.fetches:
            comes = comes or self.task.now + self.rates.l2_latency
            self._coming |= dict.fromkeys(self._registers(s, work.comes), comes)
        elif comes:
            yield self._until(comes, "memory")
        elif work.fetches:
            # Loads of some warps pass while those of others are on their way.
            passed = self.rates.line_clocks * work.lines * self.warps * 128 / self.rates.shared_bytes
            rest = max(0.0, self.rates.l2_latency * work.fetches - passed)
            yield self._until(self.task.now + rest, "memory")
        if stored:
            self._memory(stored, self.task.now)
            taken = self.machine.unit("stores").serve(self.task.now, stored / self.rates.store_bytes)
            yield self._until(taken, "stores")
        if work.late:
            comes = self.task.now + self.sm.share.latency
            self._late |= {s.arguments[position].args[0]: comes for position in s.leaf.results}

    @staticmethod
    def _registers(s: t.Call, registers: Iterable[Register]) -> Iterator[Register]:
        """A leaf's registers, with the names of the caller's buffers instead of the leaf's parameters."""
        names = {
            parameter.name: argument.buffer
            for parameter, argument in zip(s.leaf.parameters, s.arguments, strict=False)
            if isinstance(argument, t.View)
        }
        return ((names.get(name, name), number) for name, number in registers)

    def _ready(self, register: Register) -> float:
        """The time when the last load into a register arrives."""
        name, number = register
        if number is None:
            return max((at for (each, _), at in self._coming.items() if each == name), default=0.0)
        return max(self._coming.get(register, 0.0), self._coming.get((name, None), 0.0))

    def _work(self, s: t.Call) -> tuple[Work, dict[str, Any]]:
        given = {
            i: self.value(argument) for i, argument in enumerate(s.arguments) if isinstance(argument, Expr)
        }
        key, works = (id(s), tuple(given.items())), self.sm.kernel.works
        if key not in works:
            longest = {
                s.leaf.parameters[i].name: self._longest(argument)
                for i, argument in enumerate(s.arguments)
                if isinstance(argument, t.Global)
            }
            works[key] = work_of(s, self.schedule, given, longest)
        return works[key]

    def _asked(self, s: t.Call, of: Callable[..., Any] | None) -> Any:
        """The result of a function of a leaf's parameters at a call; None where data decide one of them."""
        if of is None:
            return None
        names = {parameter.name: i for i, parameter in enumerate(s.leaf.parameters)}
        given = [self._given(s.arguments[names[name]]) for name in inspect.signature(of).parameters]
        return None if any(value is None for value in given) else of(*given)

    def _given(self, argument: Any) -> Any:
        if isinstance(argument, t.View):
            return bytes_of(self.schedule, argument)
        if isinstance(argument, t.Global):
            return self._longest(argument) or 0
        return self.value(argument)

    # ------------------------------------------------------------------ products

    def _multiply(self, s: t.Multiply) -> Steps:
        """Issue products; the tensor cores serve those of all roles in turn."""
        instructions, done = 0.0, self.task.now
        for product in s.products:
            count, clocks, shared = self._product(product.mma)
            instructions += count
            if product.mma.unit == "wgmma":
                done = self.machine.multiply(self.task.now, clocks, shared)
            else:
                # Measured of wgmma alone; operands of other products take half of the port's time.
                done = self.machine.unit("tensor cores").serve(self.task.now, clocks)
                self.machine.port.serve(self.task.now, shared / 2)
        self._multiplied = max(self._multiplied, done + self.rates.tensor_latency)
        self._asked_at["tensor cores"] = self.task.now
        self._groups.append(self._multiplied)
        each = self.rates.tensor_issue * instructions / max(1, self.role.warps // 4)
        # Most instructions that issue a tcgen05 product work on uniform registers, back to back.
        yield from self.issue(
            Work(slots=8 + each, dense=each if s.products[0].mma.unit == "tcgen05" else 0.0)
        )
        if s.products[0].mma.unit == "mma.sync":
            yield self._until(self._multiplied, "tensor cores")

    def _copy_columns(self, s: t.CopyColumns) -> Steps:
        """A copy to tensor memory occupies the tensor cores for as long as its read of shared memory."""
        taken = bytes_of(self.schedule, s.source)
        clocks = taken / self.rates.shared_bytes
        self.machine.port.serve(self.task.now, clocks)
        done = self.machine.unit("tensor cores").serve(self.task.now, clocks)
        self._multiplied = max(self._multiplied, done + self.rates.tensor_latency)
        self._groups.append(self._multiplied)
        # One instruction copies 32 bytes of each of 128 rows.
        each = self.rates.tensor_issue * max(1, taken // (128 * 32))
        yield from self.issue(Work(slots=8 + each, dense=each))

    def _product(self, mma: Mma) -> tuple[float, float, float]:
        """A product's instructions, its clocks of the tensor cores, and those of shared memory."""
        size = DTYPES[mma.dtype].bytes / DTYPES[mma.dtype].packed
        groups = max(1, mma.m // 64) if mma.unit == "wgmma" else 1
        count = groups * max(1, int(mma.k * size) // 32)
        rate = self.rates.tensor[mma.dtype]
        # Of a CTA pair, 64 rows per CTA (M = 128) use all lanes and the full rate: FlashMLA reports 1450
        # TFLOP/s.
        if mma.unit == "tcgen05" and mma.m == 64 and not mma.ws:
            rate *= self.rates.tensor_half
        rows = mma.m if mma.a_space is Space.SHARED else 0
        shared = (rows + groups * mma.n) * mma.k * size / self.rates.shared_bytes
        clocks = max(mma.flops / rate, shared, self.rates.tensor_least * count)
        return count, clocks / mma.cta_group, shared / mma.cta_group

    def _await_products(self, s: t.AwaitProducts) -> Steps:
        yield self._until(self._landed(s.pending), "tensor cores")

    def _landed(self, pending: int) -> float:
        """The time when all groups of products but the last `pending` are complete."""
        over = self._groups[: len(self._groups) - pending]
        self._groups = self._groups[len(over) :]
        return max(over, default=0.0)

    # ------------------------------------------------------------------ pipelines

    def _bulk(self, s: t.Bulk) -> Steps:
        copies = self._copies(s)
        yield from self.slots(self.rates.bulk_slots * self.sm.copy_slots(type(s.source).__name__) * copies)
        taken = self.machine.unit("copy engine").serve(self.task.now, self.rates.bulk_issue * copies)
        comes = (
            self._memory(bytes_of(self.schedule, s.target), taken)
            + self.sm.share.latency
            + self.rates.bulk_latency
        )
        key, cause = (s.slot.pipeline.name, self.value(s.slot.use)), Cause(self.task, self.task.now, "copies")
        if comes > self._bulks.get(key, (0.0, cause))[0]:
            self._bulks[key] = comes, cause

    def _copies(self, s: t.Bulk) -> float:
        """How many copies a statement makes: for rows by number, one per four rows of a 128-byte panel."""
        if not isinstance(s.source, t.Rows):
            return 1.0
        return max(1.0, bytes_of(self.schedule, s.target) / (ROWS_A_COPY * PANEL_BYTES))

    def _pipeline_op(self, s: t.PipelineOp) -> Steps:
        ring, use = self.cta.rings[s.slot.pipeline.name], self.value(s.slot.use)
        waits = s.kind in ("acquire", "wait", "drain")
        yield from self.issue(Work(OF_WAIT, chain=self.rates.passed) if waits else Work(OF_ARRIVAL))
        if use is None:
            return
        if s.kind in ("acquire", "drain") and use >= ring.pipe.stages:
            yield ring.freed(use - ring.pipe.stages)
        if s.kind == "drain":
            return
        if s.kind == "acquire":
            self.cta.acquired.setdefault(ring.pipe.name, []).append(self.task.now)
        elif s.kind == "commit":
            self._commit(ring, use)
        elif s.kind == "wait":
            signal = ring.filled(use)
            if ring.pipe.fill is Engine.GRID and signal.at is None:
                # The other CTAs have sent by the time that this one looks.
                self.machine.happens(signal, self.task.now + self.rates.grid, self._cause("grid"))
            yield signal
        else:
            yield from self._release(ring, use, s.pending)

    def _commit(self, ring: Ring, use: int) -> None:
        now, fill = self.task.now, ring.pipe.fill
        producers, cause = ring.producers, self._cause("hand-over")
        if fill is Engine.BULK:
            at, cause = self._bulks.pop((ring.pipe.name, use), (now, cause))
        elif fill is Engine.CP_ASYNC:
            at, cause = max(now, self._copied) + self.rates.hand_over, self._cause("copies")
        elif fill in (Engine.TCGEN05, Engine.WGMMA):
            at, cause = max(now, self._multiplied) + self.rates.hand_over, self._cause("tensor cores")
        elif fill in (Engine.PEERS, Engine.GRID):
            at, producers = now + (self.rates.message if fill is Engine.PEERS else self.rates.grid), 1
        else:
            at = now + self.rates.hand_over
        self.machine.arrive(ring.filled(use), at, producers, cause)

    def _release(self, ring: Ring, use: int, pending: int) -> Steps:
        engine = next(reader.engine for reader in ring.pipe.readers if reader.role == self.role.name)
        at, cause = self.task.now, self._cause("hand-over")
        if engine is Engine.WGMMA:
            yield self._until(self._landed(pending), "tensor cores")
            at, cause = self.task.now, self._cause("hand-over")
        elif engine is Engine.TCGEN05:
            at, cause = max(at, self._multiplied), self._cause("tensor cores")
        self.machine.arrive(ring.freed(use), at + self.rates.hand_over, ring.readers, cause)

    # ------------------------------------------------------------------ barriers

    def _met(self, name: str) -> Steps:
        members = self.schedule.named_barriers[name] if name else [role.name for role in self.schedule.roles]
        if name in self.schedule.apart:
            yield self._until(self.task.now + self.rates.meet, "barrier")
            return
        total = sum(self.schedule.role(member).replicas for member in members)
        yield self.cta.meet(name, total, self.task)

    def _stand(self, s: t.BarriersStand) -> Steps:
        yield from self.slots(40)
        yield from self._met("")
        if self.schedule.multicasts:
            yield self._until(self.task.now + self.rates.cluster, "barrier")

    def _store(self, s: t.Store) -> Steps:
        yield from self.slots(6)
        yield from self._met(s.name)
        size = sum(bytes_of(self.schedule, view) for _, view in s.copies)
        self._stores.append(self._memory(size, self.task.now) + WRITTEN)

    def _await_stores(self, s: t.AwaitStores) -> Steps:
        while len(self._stores) > s.pending:
            yield self._until(self._stores.pop(0), "stores")
        if s.name is not None:
            yield from self._met(s.name)

    def _cluster_wait(self, s: t.ClusterWait) -> Steps:
        yield from self.slots(2)
        taken = self.rates.cluster_relaxed if self._relaxed else self.rates.cluster
        yield self._until(self.task.now + taken, "barrier")

    def _cluster_arrive(self, s: t.ClusterArrive) -> None:
        self._relaxed = s.relaxed

    def _ticket(self, s: t.TakeTicket) -> Steps:
        yield from self._met(s.name)
        yield self._until(self.task.now + self.rates.grid, "grid")
        yield from self._met(s.name)
        self.scope[s.last] = True

    def _await_count(self, s: t.AwaitCount) -> Steps:
        yield self._until(self.task.now + self.rates.grid, "grid")
        yield from self._met(s.name)

    def _take_turn(self, s: t.TakeTurn) -> Steps:
        yield from self.slots(3)
        yield self.cta.turn(s.name, self._turn(s.name))
        self._turns[s.name] = self._turns.get(s.name, 0) + 1

    def _turn(self, name: str) -> int:
        """The number of this member's next turn, counted over all members."""
        roles = self.schedule.turn(name).roles
        members, place = (
            (self.role.replicas, self.replica)
            if len(roles) == 1
            else (len(roles), roles.index(self.role.name))
        )
        return self._turns.get(name, 0) * members + place

    def _pass_turn(self, s: t.PassTurn) -> Steps:
        yield from self.slots(2)
        if not s.opens and self._turns.get(s.name, 0):
            roles = self.schedule.turn(s.name).roles
            members = self.role.replicas if len(roles) == 1 else len(roles)
            turn = self.cta.turn(s.name, self._turn(s.name) - members + 1)
            self.machine.arrive(turn, self.task.now + self.rates.meet, 1, self._cause("turn"))


# How to walk each kind of statement; Walker._other walks the rest.
_MEANING: dict[type, Callable[[Walker, Any], Steps | None]] = {
    t.Let: Walker._let,
    t.Assign: Walker._let,
    t.Variable: Walker._variable,
    t.Loop: Walker._loop,
    t.Repeat: Walker._repeat,
    t.If: Walker._if,
    t.Call: Walker._call,
    t.PipelineOp: Walker._pipeline_op,
    t.Bulk: Walker._bulk,
    t.Fill: Walker._fill,
    t.Multiply: Walker._multiply,
    t.CopyColumns: Walker._copy_columns,
    t.AwaitProducts: Walker._await_products,
    t.BarriersStand: Walker._stand,
    t.Store: Walker._store,
    t.AwaitStores: Walker._await_stores,
    t.TakeTicket: Walker._ticket,
    t.AwaitCount: Walker._await_count,
    t.TakeTurn: Walker._take_turn,
    t.PassTurn: Walker._pass_turn,
    t.ClusterWait: Walker._cluster_wait,
    t.ClusterArrive: Walker._cluster_arrive,
}
