"""The barrier plan: who arrives where, how often and with which fences, derived from a schedule's pipelines.

The actions of a pipeline's two sides follow from how its slots are filled and read (`transfers.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..arguments import checked
from .actions import Action
from .lang import Pipeline, Schedule, Size
from .transfers import transfer_of


@dataclass(frozen=True)
class Barrier:
    """An array of `stages` mbarriers; each takes `count` arrivals and `tx_bytes` announced bytes a phase."""

    name: str
    stages: int
    count: int
    tx_bytes: int
    arrives: tuple[str, ...]


@dataclass(frozen=True)
class PipelinePlan:
    """All actions of the two sides of one pipeline, in order.

    Use i waits on its full barrier with parity `(i // stages) & 1`, and on its empty barrier with the
    opposite one, so that the first `stages` acquires pass on fresh barriers.
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
        both = (barrier for plan in self.pipelines.values() for barrier in (plan.full, plan.empty))
        return tuple(barrier for barrier in both if barrier is not None)

    @property
    def smem_bytes(self) -> int:
        """Shared memory that the barriers take, in bytes."""
        return 8 * sum(barrier.stages for barrier in self.barriers)


@dataclass(frozen=True)
class TurnPlan:
    """The named barriers of an ordered hand-over.

    Member i waits at barrier `first` + i, and the member before it arrives there to pass the turn on;
    `threads` counts the threads of both. At the start the last member arrives where the first one waits.
    """

    first: int
    members: tuple[tuple[str, int], ...]
    threads: int

    def place(self, role: str) -> int:
        """The number of the member that is the first replica of `role`."""
        return self.members.index((role, 0))


@dataclass(frozen=True)
class NamedPlan:
    """The number of a named barrier and the threads that meet there.

    `width` is above 1 where each replica of a role has a barrier of its own, from `number` on.
    """

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
    """The plan of every ordered hand-over; their barriers are numbered after the declared named ones."""
    plans: dict[str, TurnPlan] = {}
    number = 1 + sum(plan.width for plan in named_plans(schedule).values())
    for turn in schedule.turns:
        roles = [schedule.role(name) for name in turn.roles]
        members = tuple((role.name, replica) for role in roles for replica in range(role.replicas))
        plans[turn.name] = TurnPlan(number, members, 64 * roles[0].warps)
        number += len(members)
    return plans


def named_barriers(schedule: Schedule) -> int:
    """How many of a CTA's hardware barriers a schedule uses, with number 0, at which all threads meet."""
    named, turns = named_plans(schedule).values(), turn_plans(schedule).values()
    return 1 + sum(plan.width for plan in named) + sum(len(plan.members) for plan in turns)


@checked
def barrier_plan(schedule: Schedule) -> BarrierPlan:
    """Derive the plan of every pipeline of `schedule`.

    Raises:
        DeclarationError: an engine cannot fill or read the buffers that it is declared for.
    """
    plans: dict[str, PipelinePlan] = {}
    for pipe in schedule.pipelines:
        transfer = transfer_of(pipe)
        commit, count = transfer.commit(schedule)
        full = empty = None
        if count:
            announced = transfer.announced(schedule)
            full = Barrier(f"{pipe.name}_full", pipe.stages, count, announced, (pipe.producer,))
        if pipe.rounds == "loop" and pipe.returned_by is None and transfer.GIVEN_BACK:
            readers = tuple(reader.role for reader in pipe.readers)
            empty = Barrier(f"{pipe.name}_empty", pipe.stages, transfer.given_back(schedule), 0, readers)
        done = transfer.last_read if empty is None else transfer.release
        plans[pipe.name] = PipelinePlan(
            pipeline=pipe,
            full=full,
            empty=empty,
            acquire=() if empty is None else transfer.acquire(),
            commit=commit,
            wait={reader.role: transfer.wait(reader) for reader in pipe.readers},
            release={reader.role: done(reader) for reader in pipe.readers},
        )
    return BarrierPlan(plans)


def words_of(schedule: Schedule, operand: str) -> tuple[Size | int, dict[str, Size | int]]:
    """The 32-bit words that each CTA has in an operand through which CTAs of the grid send to each other.

    Returns the total, and the first word of each pipeline.
    """
    total: Size | int = 0
    first: dict[str, Size | int] = {}
    for pipe in schedule.pipelines:
        if pipe.through == operand:
            first[pipe.name] = total
            total = total + math.prod(schedule.buffer(pipe.buffers[0]).shape)
    return total, first
