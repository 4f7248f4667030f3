"""The machine a program's bodies run on, tile by tile: pipelines, data movement, tensor-core and group operations.

`Interpreter` (below) executes the bodies in torch on a CPU with the kernel's own tiling, stages, masks, splits and
merges, under a seeded schedule of roles and CTAs. A body is a generator: it yields where the hardware would wait.
Nothing here depends on a default device or dtype, on autocast or on the grad mode of the caller.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ..arch import ArchSpec
from ..errors import ScheduleError
from ..expr import evaluate
from .lang import Buffer, Pipeline, Schedule, Space, TileProgram

if TYPE_CHECKING:
    from .execute import ClusterBarrier

# The device of every tile; the caller's default device is not asked.
DEVICE = "cpu"
TORCH_DTYPES = {
    "float32": torch.float32,
    "int32": torch.int32,
    # torch has no complete uint32 arithmetic: 32-bit keys live in 64-bit integers here.
    "uint32": torch.int64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "uint8": torch.uint8,
    "int64": torch.int64,
}


@dataclass
class Wait:
    """What a suspended role waits for: a condition and the words for a deadlock report."""

    what: str
    ready: Callable[[], bool]


@dataclass
class Slot:
    """One stage of a pipeline as a role holds it; buffers are attributes: `slot.ckv`."""

    pipeline: Pipeline
    use: int
    views: dict[str, torch.Tensor]

    def __getattr__(self, name: str) -> torch.Tensor:
        try:
            return self.views[name]
        except KeyError:
            raise AttributeError(f"pipeline {self.pipeline.name} has no buffer {name}") from None


@dataclass
class _Ring:
    """Progress of one pipeline in one CTA: uses acquired, committed and released by each reader."""

    acquired: int = 0
    committed: int = 0
    waited: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    released: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    received: dict[int, int] = field(default_factory=lambda: defaultdict(int))


class _Cta:
    """Storage and pipeline state of one CTA."""

    def __init__(self, schedule: Schedule, block: tuple[int, ...]) -> None:
        self.block = block
        self.rings = {pipe.name: _Ring() for pipe in schedule.pipelines}
        self.meetings: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.storage: dict[str, torch.Tensor] = {}
        for buffer in schedule.buffers:
            if buffer.space is not Space.REGISTER:
                self.storage[buffer.name] = poisoned(buffer)


def poisoned(buffer: Buffer) -> torch.Tensor:
    """Fresh storage of a buffer, all stages, filled with NaN (or an absurd integer) so that stale reads show."""
    shape = (buffer.stages, *buffer.shape)
    tensor = torch.empty(shape, dtype=TORCH_DTYPES[buffer.dtype], device=DEVICE)
    _poison(tensor)
    return tensor


def _poison(tensor: torch.Tensor) -> None:
    if tensor.dtype.is_floating_point:
        tensor.view(torch.uint8).fill_(0xFF)
    else:
        tensor.fill_(0x7F if tensor.element_size() == 1 else 0x7F7F7F7F)


class Machine:
    """What a role's body sees.

    Attributes:
        k: the variant's knobs as a namespace.
        schedule: the schedule at these knobs.
        block: this CTA's grid coordinates.
        role: the role whose body runs.
    """

    def __init__(self, run: _Run, cta: _Cta, role: str) -> None:
        self._run, self._cta, self.role = run, cta, role
        self.k: SimpleNamespace = run.knobs
        self.schedule = run.schedule
        self.arch = run.arch
        self.block = cta.block

    def dim(self, name: str) -> int:
        """A runtime dimension or integer scalar of the call."""
        return int(self._run.dims[name])

    def scalar(self, name: str) -> float:
        """A floating-point scalar operand."""
        return float(self._run.scalars[name])

    def operand(self, name: str) -> torch.Tensor:
        """A global-memory operand, whole; index it and hand the view to `load`, `gather` or `store`."""
        return self._run.operands[name]

    def read(self, name: str, index: tuple[int, ...], typical: str | int) -> int:
        """One integer of a global operand that steers control flow; `typical`, or the dim it names, is what it may be."""
        return int(self.operand(name)[index])

    def loop(self, count: int) -> Iterator[int]:
        """A loop of `count` like iterations."""
        return iter(range(count))

    def taken(self, condition: bool | torch.Tensor) -> bool:
        """A data-dependent branch that is usually taken."""
        return bool(condition)

    def buffer(self, name: str) -> torch.Tensor:
        """Storage of an unstaged buffer."""
        return self._cta.storage[name][0]

    def zeros(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=DEVICE)

    def full(self, shape: tuple[int, ...], value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.full(shape, value, dtype=dtype, device=DEVICE)

    def arange(self, count: int) -> torch.Tensor:
        return torch.arange(count, dtype=torch.int64, device=DEVICE)

    def acquire(self, name: str) -> Generator[Any, None, Slot]:
        """Producer: wait until the next slot is free; returns the `Slot` (`slot = yield from m.acquire(...)`)."""
        pipe, ring = self.schedule.pipeline(name), self._cta.rings[name]
        self._owns(pipe, producer=True)
        use = ring.acquired
        ring.acquired += 1
        if use - ring.committed >= pipe.stages:
            self._fail(
                f"acquires slot {use} of {name} with {use - ring.committed} slots uncommitted",
                "commit a slot before acquiring past the ring",
            )
        readers = [reader.role for reader in pipe.readers]
        yield Wait(
            f"a free slot of {name} (use {use})",
            lambda: all(ring.released[r] > use - pipe.stages for r in readers),
        )
        views = self._views(pipe, use)
        if not pipe.accumulates:
            for view in views.values():
                _poison(view)
        return Slot(pipe, use, views)

    def commit(self, slot: Slot) -> None:
        """Producer: the slot's bytes are complete; readers may take it."""
        ring = self._cta.rings[slot.pipeline.name]
        if slot.use != ring.committed:
            self._fail(
                f"commits use {slot.use} of {slot.pipeline.name} after {ring.committed} commits",
                "commit slots in the order acquired, once",
            )
        ring.committed += 1

    def wait(self, name: str) -> Generator[Any, None, Slot]:
        """Reader: wait for the next full slot; returns the `Slot`."""
        pipe, ring = self.schedule.pipeline(name), self._cta.rings[name]
        self._owns(pipe, producer=False)
        use = ring.waited[self.role]
        ring.waited[self.role] += 1
        yield Wait(f"slot {use} of {name} to be filled by {pipe.producer}", lambda: ring.committed > use)
        return Slot(pipe, use, self._views(pipe, use))

    def release(self, slot: Slot) -> None:
        """Reader: done with the slot; the producer may overwrite it."""
        ring = self._cta.rings[slot.pipeline.name]
        if slot.use != ring.released[self.role]:
            self._fail(
                f"releases use {slot.use} of {slot.pipeline.name} after {ring.released[self.role]} releases",
                "release each slot once, in order",
            )
        ring.released[self.role] += 1

    def meet(self, name: str) -> Generator[Any, None, None]:
        """Named barrier among the roles declared for it."""
        members = self.schedule.named_barriers[name]
        state = self._cta.meetings[name]
        generation = state[1]
        state[0] += 1
        if state[0] == len(members):
            state[0], state[1] = 0, generation + 1
        yield Wait(f"named barrier {name}", lambda: state[1] > generation)

    def group_sync(self) -> Generator[Any, None, None]:
        """Barrier over all CTAs that share this CTA's coordinates outside the schedule's group axes."""
        key = self._run.group_of(self.block)
        state = self._run.groups[key]
        generation = state[1]
        state[0] += 1
        if state[0] == self._run.group_size:
            state[0], state[1] = 0, generation + 1
        yield Wait(f"group barrier of {key}", lambda: state[1] > generation)

    def group_buffer(self, name: str) -> torch.Tensor:
        """A buffer as every CTA of the group holds it, [CTAs, *shape]: legal between a group_sync and the next write."""
        ctas = self._run.members(self.block) if self.schedule.group else [self._cta]
        return torch.stack([cta.storage[name][0] for cta in ctas])

    def rank(self) -> int:
        """This CTA's number within its group, in grid order."""
        number = 0
        for axis in self.schedule.group:
            number = number * self._run.grid[axis] + self.block[axis]
        return number

    def exchange(
        self, name: str, parts: Mapping[int, torch.Tensor]
    ) -> Generator[Any, None, dict[int, torch.Tensor]]:
        """Send CTAs of the group, by rank, a tensor each through pipeline `name`; then wait for theirs to this one."""
        pipe, ring = self.schedule.pipeline(name), self._cta.rings[name]
        self._owns(pipe, producer=True)
        use, group = ring.acquired, self._run.group_of(self.block)
        ring.acquired += 1
        for rank, part in parts.items():
            self._run.mail[group, rank, name, use][self.rank()] = part.clone()
        box = self._run.mail[group, self.rank(), name, use]
        yield Wait(f"use {use} of {name} from ranks {sorted(parts)}", lambda: parts.keys() <= box.keys())
        return box

    def number(self, value: torch.Tensor, typical: int = 0) -> int:
        """A value computed by the kernel that steers it; `typical` is what it may be."""
        return int(value)

    def arrive_last(self, name: str, index: int, total: int) -> bool:
        """Count this CTA in at `name[index]`; True for the last of `total`, which also resets the counter."""
        counter = self.operand(name)
        counter[index] += 1
        last = int(counter[index]) == total
        if last:
            counter[index] = 0
        return last

    def load(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy a dense block of global memory into a buffer (a ragged edge: pass equal shorter views)."""
        target.copy_(source.to(target.dtype) if source.dtype != target.dtype else source)

    def gather(self, target: torch.Tensor, source: torch.Tensor, rows: torch.Tensor) -> None:
        """Copy rows of a global array into a buffer; a negative row is never read and leaves zeros."""
        valid = rows >= 0
        if bool((rows >= source.shape[0]).any()):
            self._fail(
                f"gathers row {int(rows.max())} of {source.shape[0]}", "pass row ids below the array's length"
            )
        picked = source[rows.clamp(min=0).long()]
        flat = valid.view(-1, *([1] * (picked.dim() - 1)))
        target.copy_(
            torch.where(flat, picked.view(torch.uint8) if picked.element_size() == 1 else picked, 0).view(
                target.dtype
            )
        )

    def store(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Write a tile to global memory, converted to its dtype."""
        target.copy_(source)

    def mma(
        self, name: str, a: torch.Tensor, b: torch.Tensor, acc: torch.Tensor | None = None
    ) -> torch.Tensor:
        """acc + a @ b in float32 for the declared operation `name`; a is [m, k] and b is [k, n]."""
        op = self.schedule.mma(name)
        if tuple(a.shape) != (op.m, op.k) or tuple(b.shape) != (op.k, op.n):
            self._fail(
                f"calls mma {name} with {tuple(a.shape)} x {tuple(b.shape)}",
                f"declare m={op.m}, n={op.n}, k={op.k} as the body uses them",
            )
        # In float64, where neither the process's matmul precision nor the number of threads shows in the rounded sum.
        out = (a.double() @ b.double()).float()
        return out if acc is None else acc + out

    def histogram(self, digits: torch.Tensor, valid: torch.Tensor, bins: int) -> torch.Tensor:
        """Counts of each digit among the valid elements."""
        return torch.bincount(digits[valid].long(), minlength=bins)[:bins]

    def compact(self, target: torch.Tensor, start: int, values: torch.Tensor, keep: torch.Tensor) -> int:
        """Write the kept values in order to target[start:], return how many."""
        kept = values[keep]
        target[start : start + kept.numel()] = kept.to(target.dtype)
        return int(kept.numel())

    def _views(self, pipe: Pipeline, use: int) -> dict[str, torch.Tensor]:
        stage = use % pipe.stages
        return {name: self._cta.storage[name][stage] for name in pipe.buffers}

    def _owns(self, pipe: Pipeline, producer: bool) -> None:
        allowed = [pipe.producer] if producer else [reader.role for reader in pipe.readers]
        if self.role not in allowed:
            self._fail(
                f"{'fills' if producer else 'reads'} pipeline {pipe.name}",
                f"let {' or '.join(allowed)} do it, or declare {self.role}",
            )

    def _fail(self, got: str, fix: str) -> None:
        self._run.fail(self.role, self.block, got, fix)


class _Run:
    """One launch: the operands, the grid and the state shared by CTAs."""

    machine: type[Machine] = Machine

    def __init__(
        self,
        program: TileProgram,
        knobs: Mapping[str, Any],
        arch: ArchSpec,
        operands: Mapping[str, Any],
        dims: Mapping[str, int],
    ) -> None:
        self.program, self.arch = program, arch
        self.knobs = SimpleNamespace(**knobs)
        self.schedule = program.schedule(knobs, arch)
        self.name = program.op
        self.operands = {n: v for n, v in operands.items() if isinstance(v, torch.Tensor)}
        self.scalars = {n: v for n, v in operands.items() if not isinstance(v, torch.Tensor)}
        self.dims = {**dims, **{n: v for n, v in self.scalars.items() if isinstance(v, int)}}
        self.grid = tuple(evaluate(extent, self.dims) for extent in self.schedule.grid)
        self.groups: dict[tuple[int, ...], list[int]] = defaultdict(lambda: [0, 0])
        self.mail: dict[tuple[Any, ...], dict[int, torch.Tensor]] = defaultdict(dict)
        self.clusters: dict[tuple[int, ...], ClusterBarrier] = {}
        self.group_size = 1
        for axis in self.schedule.group:
            self.group_size *= self.grid[axis]
        self.text = program.text(knobs, arch)
        self.bodies = program.bodies(self.knobs, arch)
        self.ctas: dict[tuple[int, ...], dict[tuple[int, ...], _Cta]] = defaultdict(dict)

    def group_of(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """The coordinates that a CTA shares with its group."""
        return tuple(x for axis, x in enumerate(block) if axis not in self.schedule.group)

    def members(self, block: tuple[int, ...]) -> list[_Cta]:
        """The CTAs of a block's group in grid order."""
        group = self.ctas[self.group_of(block)]
        return [group[key] for key in sorted(group)]

    def cluster_of(self, block: tuple[int, ...]) -> ClusterBarrier:
        """The barrier of a CTA's cluster."""
        key = self.group_of(block)
        if key not in self.clusters:
            from .execute import ClusterBarrier

            roles = sum(role.replicas for role in self.schedule.roles)
            self.clusters[key] = ClusterBarrier(self.group_size * roles)
        return self.clusters[key]

    def fail(self, role: str, block: tuple[int, ...], got: str, fix: str) -> NoReturn:
        """Refuse what a role did."""
        raise ScheduleError(
            f"{self.name}, role {role}, block {block}",
            expected="the declared use of its pipelines and buffers",
            got=f"it {got}",
            fix=fix,
        )

    def start(self, block: tuple[int, ...]) -> list[tuple[Any, Iterator[Any]]]:
        cta = _Cta(self.schedule, block)
        if self.schedule.group:
            self.ctas[self.group_of(block)][block] = cta
        if self.text is not None:
            from .execute import Executor

            executors = [
                Executor(self, cta, role, replica)
                for role in self.schedule.roles
                for replica in range(role.replicas)
            ]
            return [(executor, executor.run(self.text)) for executor in executors]
        tasks = []
        for role in self.schedule.roles:
            if role.name not in self.bodies:
                continue
            machine = self.machine(self, cta, role.name)
            tasks.append((machine, self.bodies[role.name](machine)))
        return tasks


class Interpreter:
    """Executes a tile program on CPU tensors.

    Args:
        seed: None runs roles in declared order until they block; an integer picks the next runnable role or CTA at
            random, which must not change the result.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    def launch(
        self,
        program: TileProgram,
        knobs: Mapping[str, Any],
        arch: ArchSpec,
        operands: Mapping[str, Any],
        dims: Mapping[str, int],
    ) -> None:
        """Run every CTA of the grid; outputs are written into their operands.

        Raises:
            ScheduleError: the roles deadlock, or a body misuses a pipeline.
        """
        # The caller's modes are for the caller's tensors: autocast would convert a body's, and workspace that was made
        # in inference mode could not be written outside it.
        with torch.device(DEVICE), torch.inference_mode(), torch.autocast(DEVICE, enabled=False):
            self._run(_Run(program, knobs, arch, operands, dims))

    def _run(self, run: _Run) -> None:
        rng = random.Random(self.seed) if self.seed is not None else None
        blocks = list(product(*(range(extent) for extent in run.grid)))
        if rng is not None:
            rng.shuffle(blocks)
        pending = iter(blocks)
        active: list[list[Any]] = []

        def admit() -> bool:
            block = next(pending, None)
            if block is None:
                return False
            for machine, body in run.start(block):
                active.append([machine, body, None])
            return True

        while True:
            if not active and not admit():
                return
            runnable = [task for task in active if task[2] is None or task[2].ready()]
            if not runnable:
                if not admit():
                    self._deadlock(run, active)
                continue
            task = rng.choice(runnable) if rng is not None else runnable[0]
            try:
                task[2] = next(task[1])
            except StopIteration:
                active.remove(task)

    @staticmethod
    def _deadlock(run: _Run, active: list[list[Any]]) -> None:
        waits = "; ".join(
            f"{task[0].role} at block {task[0].block} waits for {task[2].what}" for task in active[:8]
        )
        raise ScheduleError(
            run.name,
            expected="every role to finish",
            got=f"a deadlock: {waits}",
            fix="commit and release each slot that a role acquires or waits for",
        )
