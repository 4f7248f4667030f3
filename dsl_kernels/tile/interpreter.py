"""Interprets the text of a kernel in torch: roles and CTAs are tasks that alternate at their waits.

An optional seed draws which task goes on.

Slots are poisoned when they are acquired, and the uses of a ring must come in order. If no task can go on,
the error says what each role waits for.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NoReturn

import torch

from ..arch import ArchSpec
from ..errors import ScheduleError
from ..peers import views
from . import threads
from .cta import DEVICE, ClusterBarrier, Cta, reader_key
from .executor import Executor
from .expressions import size_at
from .lang import Pipeline
from .program import TileProgram


class Run:
    """One launch: the operands, the grid and the state shared by CTAs."""

    def __init__(
        self,
        program: TileProgram,
        knobs: Mapping[str, Any],
        arch: ArchSpec,
        operands: Mapping[str, Any],
        dims: Mapping[str, int],
    ) -> None:
        self.program, self.arch = program, arch
        self.schedule = program.schedule(knobs, arch)
        self.name = program.op
        self.operands = {n: v for n, v in operands.items() if isinstance(v, torch.Tensor)}
        self.scalars = {n: v for n, v in operands.items() if not isinstance(v, torch.Tensor)}
        self.dims = {**dims, **{n: v for n, v in self.scalars.items() if isinstance(v, int)}}
        self.grid = tuple(size_at(extent, self.dims) for extent in self.schedule.grid)
        self.clusters: dict[tuple[int, ...], ClusterBarrier] = {}
        self.group_size = 1
        for axis in self.schedule.group:
            self.group_size *= self.grid[axis]
        self.text = program.text(knobs, arch)
        self.texts = self.text.memo.setdefault(threads.Texts, threads.Texts())
        # CTAs that have not started.
        self.pending: deque[tuple[int, ...]] = deque()
        self._peered: dict[str, threads.Peered] = {}
        self.admitted: dict[tuple[int, ...], dict[tuple[int, ...], Cta]] = defaultdict(dict)

    def peered(self, name: str, peers: str) -> threads.Peered:
        """An operand as every rank holds it."""
        if name not in self._peered:
            own, distances = self.operands[name], self.operands[peers]
            each = views(own, distances)
            self._peered[name] = threads.Peered(own, each, distances.tolist())
        return self._peered[name]

    def group_of(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """The coordinates that a CTA shares with its group, which identify it."""
        return tuple(x for axis, x in enumerate(block) if axis not in self.schedule.group)

    def members(self, block: tuple[int, ...]) -> list[Cta]:
        """The CTAs of a block's group in grid order."""
        group = self.admitted[self.group_of(block)]
        return [group[key] for key in sorted(group)]

    def cluster_of(self, block: tuple[int, ...]) -> ClusterBarrier:
        """The barrier of a CTA's cluster."""
        key = self.group_of(block)
        if key not in self.clusters:
            roles = sum(role.replicas for role in self.schedule.roles)
            self.clusters[key] = ClusterBarrier(self.group_size * roles)
        return self.clusters[key]

    def fail(self, role: str, block: tuple[int, ...], got: str, fix: str) -> NoReturn:
        """Raise the error for what a role did."""
        raise ScheduleError(
            f"{self.name}, role {role}, block {block}",
            expected="the declared use of its pipelines and buffers",
            got=f"it {got}",
            fix=fix,
        )

    def ended(self, cta: Cta) -> None:
        """Check, when every role of a CTA has ended, that each filled slot was read."""
        for pipe in self.schedule.pipelines:
            ring = cta.rings[pipe.name]
            for key in self.readers(pipe):
                if not ring.acquired <= ring.committed == ring.waited[key]:
                    self.fail(
                        pipe.producer,
                        cta.block,
                        f"filled {ring.committed} uses of {pipe.name}, "
                        f"of which {key} waited for {ring.waited[key]}",
                        "let both sides go through the same uses",
                    )

    def readers(self, pipe: Pipeline) -> list[str]:
        """The keys under which a ring counts the replicas of its readers."""
        roles = [self.schedule.role(reader.role) for reader in pipe.readers]
        return [reader_key(role, replica) for role in roles for replica in range(role.replicas)]

    def start(self, block: tuple[int, ...]) -> list[tuple[Executor, Iterator[Any]]]:
        """The tasks of one CTA."""
        cta = Cta(self.schedule, block)
        if self.schedule.group:
            self.admitted[self.group_of(block)][block] = cta
        executors = [
            Executor(self, cta, role, replica)
            for role in self.schedule.roles
            for replica in range(role.replicas)
        ]
        return [(executor, executor.run(self.text)) for executor in executors]


class Interpreter:
    """Executes a tile program on CPU tensors.

    Args:
        seed: None runs roles in declared order until they block; an integer picks the next runnable role or
            CTA at random, which must not change the result.
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
        # Keep out the caller's modes: autocast would convert a body's tensors, a workspace made in inference
        # mode could not be written outside of it, and a mode that intercepts every call, as a default
        # device's does, may move a body's tensors and triples the time.
        with torch._C.DisableTorchFunction(), torch.inference_mode(), torch.autocast(DEVICE, enabled=False):
            self._run(Run(program, knobs, arch, operands, dims))

    def _run(self, run: Run) -> None:
        rng = random.Random(self.seed) if self.seed is not None else None
        blocks = list(product(*(range(extent) for extent in run.grid)))
        if rng is not None:
            rng.shuffle(blocks)
        run.pending.extend(blocks)
        active: list[list[Any]] = []

        def admit() -> bool:
            if not run.pending:
                return False
            for machine, body in run.start(run.pending.popleft()):
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
                if all(other[0].cta is not task[0].cta for other in active):
                    run.ended(task[0].cta)

    @staticmethod
    def _deadlock(run: Run, active: list[list[Any]]) -> None:
        waits = "; ".join(
            f"{task[0].role} at block {task[0].block} waits for {task[2].what}" for task in active[:8]
        )
        raise ScheduleError(
            run.name,
            expected="every role to finish",
            got=f"a deadlock: {waits}",
            fix="commit and release each slot that a role acquires or waits for",
        )
