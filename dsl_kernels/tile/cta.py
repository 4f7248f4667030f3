"""The interpreter's state of a CTA: poisoned storage, pipelines, turns, and the barrier of its cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..dtypes import DTYPES
from .lang import Buffer, Role, Schedule, Space
from .plan import turn_plans

# The device of every tile, whatever the caller's default device is.
DEVICE = "cpu"
# torch has no complete uint32 arithmetic: 32-bit keys live in 64-bit integers here.
TORCH_DTYPES = {name: dtype.torch for name, dtype in DTYPES.items()} | {"uint32": torch.int64}


@dataclass
class Wait:
    """What a suspended role waits for: a condition, and its description for a deadlock report."""

    what: str
    ready: Callable[[], bool]


@dataclass
class Ring:
    """Progress of one pipeline in one CTA: the number of uses that each side has gone through.

    Where another pipeline gives slots back (`returned_by`), `handed` maps each use of that pipeline to the
    number of slots released when it was committed, and `returned` is how many of those the producer has
    learnt of.
    """

    acquired: int = 0
    committed: int = 0
    waited: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    released: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    announced: dict[int, int] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    handed: dict[int, int] = field(default_factory=dict)
    returned: int = 0


@dataclass
class TurnState:
    """An ordered hand-over in one CTA: whose turn it is, and whether that member has taken it."""

    members: tuple[tuple[str, int], ...]
    whose: int = 0
    taken: bool = False


@dataclass(frozen=True)
class Issued:
    """A product in flight: what it will do, and the uses of pipelines that it reads."""

    multiply: Callable[[], None]
    reads: frozenset[tuple[str, int]]


class Cta:
    """Storage and pipeline state of one CTA."""

    def __init__(self, schedule: Schedule, block: tuple[int, ...]) -> None:
        self.block = block
        self.rings = {pipe.name: Ring() for pipe in schedule.pipelines}
        self.meetings: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.turns = {name: TurnState(plan.members) for name, plan in turn_plans(schedule).items()}
        self.storage: dict[str, torch.Tensor] = {}
        for buffer in schedule.buffers:
            if buffer.space is not Space.REGISTER:
                self.storage[buffer.name] = poisoned(buffer)
        for buffer in schedule.buffers:
            if buffer.space is Space.TENSOR and buffer.alias is not None:
                owner = self.storage[buffer.alias].view(TORCH_DTYPES[buffer.dtype])
                self.storage[buffer.name] = owner[..., : buffer.shape[-1]]

    def clear(self, buffer: str, use: int) -> None:
        """Poison the stage of a buffer that use `use` has, so that reading it shows."""
        stages = self.storage[buffer]
        poison(stages[use % len(stages)])

    def take(self, buffer: str, words: torch.Tensor) -> None:
        """Move words into a buffer of one stage and leave zeros in their place."""
        self.storage[buffer][0].view(torch.int32).copy_(words)
        words.zero_()


def poisoned(buffer: Buffer) -> torch.Tensor:
    """Fresh storage for all stages of a buffer; NaN (or an absurd integer) makes a stale read show."""
    shape = (buffer.stages, *buffer.shape)
    tensor = torch.empty(shape, dtype=TORCH_DTYPES[buffer.dtype], device=DEVICE)
    poison(tensor)
    return tensor


def poison(tensor: torch.Tensor) -> None:
    if tensor.dtype.is_floating_point:
        tensor.view(torch.uint8).fill_(0xFF)
    else:
        tensor.fill_(0x7F if tensor.element_size() == 1 else 0x7F7F7F7F)


class ClusterBarrier:
    """The hardware barrier of a cluster; a phase ends when every role of every CTA has arrived or ended."""

    def __init__(self, members: int) -> None:
        self.members = members
        self.phases: dict[object, int] = defaultdict(int)
        self.waits: dict[object, int] = defaultdict(int)

    def arrive(self, executor: object) -> bool:
        """Count a role's arrival; False if the role has not waited since its previous one."""
        self.phases[executor] += 1
        return self.phases[executor] == self.waits[executor] + 1

    def pending(self, executor: object) -> bool:
        """Whether a role has arrived and has not waited since."""
        return self.phases.get(executor, 0) > self.waits.get(executor, 0)

    def begin(self, executor: object) -> int:
        """Begin a wait; the phase that the role waits for."""
        self.waits[executor] += 1
        return self.waits[executor]

    def passed(self, phase: int) -> bool:
        return len(self.phases) == self.members and all(at >= phase for at in self.phases.values())


def reader_key(role: Role, replica: int) -> str:
    """The key under which a ring counts what one replica of a role has read."""
    return role.name if role.replicas == 1 else f"{role.name}[{replica}]"
