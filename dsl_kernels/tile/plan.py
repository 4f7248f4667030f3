"""The barrier plan: who arrives where, how often, with which fences, derived from a schedule's pipelines.

For each pipeline the producer goes acquire -> fill -> commit and each reader wait -> read -> release. The engines
on both sides decide the rest:

| fill     | full barrier                                                                      |
|----------|-----------------------------------------------------------------------------------|
| bulk     | one arrival that announces the bytes; the copy engine completes them               |
| peers    | one arrival that announces the bytes; the stores of the other CTAs complete them   |
| grid     | none: the reader looks at the words themselves, then its threads meet              |
| cp_async | one arrival a producer thread, made by the hardware when that thread's copies land |
| threads  | one arrival a thread or warp, after a proxy fence if an async engine reads         |
| tcgen05  | one arrival, by the commit of the MMAs that wrote the buffer                       |
| tmem     | one arrival a thread or warp, after tcgen05.wait::st and the before-fence          |

Where the CTAs of a cluster fill each other's slots (multicast), the empty barrier of each CTA counts the readers of all of
them, and every reader arrives at all of those barriers. Threads that write a share of each of those slots announce, as they
arrive, the bytes that the other CTAs send of theirs.

Where two CTAs share out products (pair), the full barrier of the first announces the bytes of both, commits arrive in both,
and readers of an accumulator arrive at the first CTA's empty barrier, which counts those of both.

A reader that is itself asynchronous lets a slot go only when its operation has finished: wgmma after its wait,
tcgen05 through a commit, never by an arrive that merely follows the issue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ..arguments import checked
from ..errors import DeclarationError
from .lang import ASYNC_PROXY, Engine, Pipeline, Reader, Role, Schedule, Size, Space


class Action(str, Enum):
    """One synchronisation action, in the order in which a role performs it."""

    WAIT_EMPTY = "wait_empty"
    EXPECT_TX = "arrive_expect_tx"
    NOINC_ARRIVE_FULL = "cp_async_arrive_noinc"
    ARRIVE_FULL = "arrive_full"
    COMMIT_FULL = "commit_full"
    WAIT_FULL = "wait_full"
    WAIT_WORDS = "wait_words"
    ARRIVE_EMPTY = "arrive_empty"
    COMMIT_EMPTY = "commit_empty"
    ARRIVE_EMPTY_CLUSTER = "arrive_empty_cluster"
    COMMIT_EMPTY_CLUSTER = "commit_empty_cluster"
    EXPECT_TX_WARP = "arrive_expect_tx_warp"
    EXPECT_TX_PAIR = "arrive_expect_tx_pair"
    COMMIT_FULL_PAIR = "commit_full_pair"
    COMMIT_EMPTY_PAIR = "commit_empty_pair"
    ARRIVE_EMPTY_PAIR = "arrive_empty_pair"
    FENCE_PROXY = "fence_proxy_async"
    FENCE_BEFORE = "tcgen05_fence_before"
    FENCE_AFTER = "tcgen05_fence_after"
    WAIT_TMEM_LOAD = "tmem_wait_load"
    WAIT_TMEM_STORE = "tmem_wait_store"
    WAIT_WGMMA = "wgmma_wait"
    ELECT = "one_lane_a_warp"


@dataclass(frozen=True)
class Barrier:
    """One mbarrier array: `stages` barriers of `count` arrivals; `tx_bytes` announced a phase (0: none)."""

    name: str
    stages: int
    count: int
    tx_bytes: int
    arrives: tuple[str, ...]


@dataclass(frozen=True)
class PipelinePlan:
    """Everything the two sides of one pipeline do, as ordered actions.

    The parities are for the i-th use of the ring: a full barrier is waited on with `(i // stages) & 1`, an empty one
    with the opposite, so that the first `stages` acquires pass on fresh barriers.
    """

    pipeline: Pipeline
    full: Barrier | None
    empty: Barrier | None
    acquire: tuple[Action, ...]
    commit: tuple[Action, ...]
    wait: dict[str, tuple[Action, ...]]
    release: dict[str, tuple[Action, ...]]

    def full_parity(self, use: int) -> int:
        return (use // self.pipeline.stages) & 1

    def empty_parity(self, use: int) -> int:
        return self.full_parity(use) ^ 1


@dataclass(frozen=True)
class BarrierPlan:
    """The plans of all pipelines of a schedule, by name."""

    pipelines: dict[str, PipelinePlan]

    @property
    def barriers(self) -> tuple[Barrier, ...]:
        found = []
        for plan in self.pipelines.values():
            found += [barrier for barrier in (plan.full, plan.empty) if barrier is not None]
        return tuple(found)

    @property
    def smem_bytes(self) -> int:
        """Shared memory of the barriers themselves."""
        return 8 * sum(barrier.stages for barrier in self.barriers)


@dataclass(frozen=True)
class TurnPlan:
    """The named barriers of an ordered hand-over.

    Member i waits at barrier `first` + i, where the member before it arrives when it passes the turn on: `threads` of
    both. The last member opens the hand-over with an arrival where the first one waits.
    """

    first: int
    members: tuple[tuple[str, int], ...]
    threads: int

    def place(self, role: str) -> int:
        """Which member the first replica of a role is."""
        return self.members.index((role, 0))


@dataclass(frozen=True)
class NamedPlan:
    """Number and threads of a named barrier; each replica of its role has its own, from `number` on, where they meet apart."""

    number: int
    threads: int
    width: int


def named_plans(schedule: Schedule) -> dict[str, NamedPlan]:
    """The plan of every declared named barrier."""
    plans: dict[str, NamedPlan] = {}
    number = 1
    for name, members in schedule.named_barriers.items():
        roles = [schedule.role(member) for member in members]
        width = roles[0].replicas if name in schedule.apart else 1
        plans[name] = NamedPlan(number, sum(role.threads for role in roles) // width, width)
        number += width
    return plans


def turn_plans(schedule: Schedule) -> dict[str, TurnPlan]:
    """The plan of every ordered hand-over; their barriers come behind the declared named ones."""
    plans: dict[str, TurnPlan] = {}
    number = 1 + sum(plan.width for plan in named_plans(schedule).values())
    for turn in schedule.turns:
        roles = [schedule.role(name) for name in turn.roles]
        members = tuple((role.name, replica) for role in roles for replica in range(role.replicas))
        plans[turn.name] = TurnPlan(number, members, 64 * roles[0].warps)
        number += len(members)
    return plans


def named_barriers(schedule: Schedule) -> int:
    """How many barriers of the CTA a schedule uses; number 0 is that of all threads."""
    named, turns = named_plans(schedule).values(), turn_plans(schedule).values()
    return 1 + sum(plan.width for plan in named) + sum(len(plan.members) for plan in turns)


def _arrivals(role: Role, per: str) -> int:
    """Arrivals of a phase: every replica of a role works on every slot, the warps that only lend registers on none."""
    warps = role.replicas * (role.active or role.warps)
    return {"thread": 32 * warps, "warp": warps, "role": role.replicas}[per]


def _tmem(schedule: Schedule, pipe: Pipeline) -> bool:
    return any(schedule.buffer(name).space is Space.TENSOR for name in pipe.buffers)


def _commit(schedule: Schedule, pipe: Pipeline) -> tuple[tuple[Action, ...], int]:
    producer = schedule.role(pipe.producer)
    async_reader = any(reader.engine in ASYNC_PROXY for reader in pipe.readers)
    if pipe.pair:
        return (Action.EXPECT_TX_PAIR if pipe.fill is Engine.BULK else Action.COMMIT_FULL_PAIR,), 1
    if pipe.fill in (Engine.BULK, Engine.PEERS):
        return (Action.EXPECT_TX,), 1
    if pipe.fill is Engine.GRID:
        return (), 0
    if pipe.fill is Engine.CP_ASYNC:
        return (Action.NOINC_ARRIVE_FULL,), _arrivals(producer, "thread")
    if pipe.fill is Engine.TCGEN05:
        return (Action.COMMIT_FULL,), 1
    actions: list[Action] = []
    # Whether this arrival also hands tensor memory back that the same threads have read and rescaled.
    returns = any(back.returned_by == pipe.name for back in schedule.pipelines)
    if pipe.fill is Engine.TMEM:
        actions += [Action.WAIT_TMEM_LOAD] * returns + [Action.WAIT_TMEM_STORE, Action.FENCE_BEFORE]
    elif pipe.fill is Engine.THREADS:
        # What threads share they have fenced to send it.
        if async_reader and not _tmem(schedule, pipe) and not pipe.multicast:
            actions.append(Action.FENCE_PROXY)
        if returns:
            actions += [Action.WAIT_TMEM_LOAD, Action.WAIT_TMEM_STORE, Action.FENCE_BEFORE]
    else:
        raise DeclarationError(
            f"pipeline {pipe.name}",
            expected="a fill engine that writes shared or tensor memory",
            got=pipe.fill.value,
            fix="wgmma accumulates in registers: hand its result over with fill=Engine.THREADS",
        )
    if pipe.fill_arrive == "warp":
        actions.append(Action.ELECT)
    arrival = Action.EXPECT_TX_WARP if pipe.multicast else Action.ARRIVE_FULL
    return (*actions, arrival), _arrivals(producer, pipe.fill_arrive)


def _wait(pipe: Pipeline, reader: Reader) -> tuple[Action, ...]:
    if pipe.fill is Engine.GRID:
        return (Action.WAIT_WORDS,)
    actions = [Action.WAIT_FULL]
    if pipe.fill is Engine.CP_ASYNC and reader.engine in ASYNC_PROXY:
        # cp.async writes through the generic proxy and its arrival is made by hardware, so the writer has no
        # point at which to fence; the reader fences after it has observed the barrier.
        actions.append(Action.FENCE_PROXY)
    if pipe.fill in (Engine.TCGEN05, Engine.TMEM) or reader.engine in (Engine.TCGEN05, Engine.TMEM):
        actions.append(Action.FENCE_AFTER)
    return tuple(actions)


def _release(pipe: Pipeline, reader: Reader) -> tuple[Action, ...]:
    if reader.engine is Engine.TCGEN05:
        if pipe.pair:
            return (Action.COMMIT_EMPTY_PAIR,)
        return (Action.COMMIT_EMPTY_CLUSTER if pipe.multicast else Action.COMMIT_EMPTY,)
    actions: list[Action] = []
    if reader.engine is Engine.WGMMA:
        actions.append(Action.WAIT_WGMMA)
    if reader.engine is Engine.TMEM:
        actions += [Action.WAIT_TMEM_LOAD, Action.FENCE_BEFORE]
    if reader.arrive == "warp":
        actions.append(Action.ELECT)
    if pipe.pair:
        return (*actions, Action.ARRIVE_EMPTY_PAIR)
    return (*actions, Action.ARRIVE_EMPTY_CLUSTER if pipe.multicast else Action.ARRIVE_EMPTY)


def _last_read(pipe: Pipeline, reader: Reader) -> tuple[Action, ...]:
    """Where nothing is given back: what was read has arrived all the same."""
    return (Action.WAIT_TMEM_LOAD,) if reader.engine is Engine.TMEM and pipe.rounds == "once" else ()


@checked
def barrier_plan(schedule: Schedule) -> BarrierPlan:
    """Derive the plan of every pipeline of `schedule`.

    Raises:
        DeclarationError: an engine that cannot fill or read the buffers it is declared on.
    """
    plans: dict[str, PipelinePlan] = {}
    for pipe in schedule.pipelines:
        commit, count = _commit(schedule, pipe)
        tx_bytes = 0
        if pipe.fill in (Engine.BULK, Engine.PEERS) or pipe.multicast:
            tx_bytes = sum(schedule.buffer(name).stage_bytes for name in pipe.buffers) * (
                2 if pipe.pair else 1
            )
        if pipe.multicast and pipe.fill is Engine.THREADS:
            tx_bytes -= tx_bytes // schedule.cluster_ctas
        full = Barrier(f"{pipe.name}_full", pipe.stages, count, tx_bytes, (pipe.producer,)) if count else None
        empty = None
        if pipe.rounds == "loop" and pipe.returned_by is None and pipe.fill is not Engine.PEERS:
            arrivals = sum(
                1 if reader.engine is Engine.TCGEN05 else _arrivals(schedule.role(reader.role), reader.arrive)
                for reader in pipe.readers
            ) * (
                schedule.cluster_ctas if pipe.multicast or (pipe.pair and pipe.fill is Engine.TCGEN05) else 1
            )
            empty = Barrier(
                f"{pipe.name}_empty", pipe.stages, arrivals, 0, tuple(r.role for r in pipe.readers)
            )
        acquire = (Action.WAIT_EMPTY,) if empty is not None else ()
        if empty is not None and (pipe.fill in (Engine.TCGEN05, Engine.TMEM)):
            # The slot was last read through tcgen05 by other threads: order their reads before our writes.
            acquire = (*acquire, Action.FENCE_AFTER)
        plans[pipe.name] = PipelinePlan(
            pipeline=pipe,
            full=full,
            empty=empty,
            acquire=acquire,
            commit=commit,
            wait={reader.role: _wait(pipe, reader) for reader in pipe.readers},
            release={
                reader.role: _release(pipe, reader) if empty is not None else _last_read(pipe, reader)
                for reader in pipe.readers
            },
        )
    return BarrierPlan(plans)


def words_of(schedule: Schedule, operand: str) -> tuple[Size | int, dict[str, Size | int]]:
    """How many words each CTA has in an operand that CTAs of the grid send through, and where those of each pipeline begin."""
    total: Size | int = 0
    first: dict[str, Size | int] = {}
    for pipe in schedule.pipelines:
        if pipe.through == operand:
            first[pipe.name] = total
            total = total + math.prod(schedule.buffer(pipe.buffers[0]).shape)
    return total, first
