"""Executes the text of a kernel in torch, one task a role and replica, between the waits of its pipelines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from typing import Any

import torch

from . import text as t
from .lang import Engine, Role, Space
from ..expr import evaluate as evaluate_extent
from .machine import TORCH_DTYPES, Wait, _Cta, _poison, _Run, poisoned


class Executor:
    """One role (one of its replicas) of one CTA."""

    def __init__(self, run: _Run, cta: _Cta, role: Role, replica: int) -> None:
        self._run, self._cta, self._spec = run, cta, role
        self.role, self.block = role.name, cta.block
        self._key = reader_key(role, replica)
        self._registers: dict[str, torch.Tensor] = {}
        self._scope: dict[str, Any] = {
            **run.scalars,
            **run.dims,
            **dict(zip(run.schedule.axes, cta.block, strict=True)),
            "lane": None,
            "worker": None,
            # A value that each warp has for itself is a tensor over the warps.
            "warp": run.schedule.first_thread(role.name) // 32 + replica * role.warps + torch.arange(role.warps),
            "replica": replica,
            "role": role.name,
        }

    def run(self, text: t.Text) -> Generator[Any, None, None]:
        yield from self._execute(text.start)
        yield from self._execute(text.roles[self.role])

    def _execute(self, statements: Iterable[t.Statement]) -> Generator[Any, None, None]:
        for statement in statements:
            if isinstance(statement, t.Loop):
                for index in range(
                    self._value(statement.begin), self._value(statement.end), statement.step
                ):
                    self._scope[statement.index] = index
                    yield from self._execute(statement.body)
            elif isinstance(statement, t.Repeat):
                while bool(self._value(statement.condition)):
                    yield from self._execute(statement.body)
            elif isinstance(statement, t.Meet):
                yield from self._meet(statement.name)
            elif isinstance(statement, t.ClusterWait):
                yield from self._cluster_wait()
            elif isinstance(statement, t.If):
                taken = bool(self._value(statement.condition))
                yield from self._execute(statement.body if taken else statement.orelse)
            elif isinstance(statement, t.Step):
                yield from self._step(statement)
            else:
                self._do(statement)

    def _do(self, statement: t.Statement) -> None:
        if isinstance(statement, (t.Let, t.Assign)):
            self._scope[statement.name] = self._value(statement.value)
        elif isinstance(statement, t.Variable):
            self._scope[statement.name] = self._value(statement.initial)
        elif isinstance(statement, t.Call):
            self._call(statement)
        elif isinstance(statement, t.Bulk):
            target = self._view(statement.target)
            target.copy_(self._source(statement.source, target))
        elif isinstance(statement, t.Multiply):
            for product in statement.products:
                self._multiply(product)
        elif isinstance(statement, t.Fill):
            self._view(statement.target).fill_(statement.value)
        elif isinstance(statement, t.ClusterArrive):
            self._run.cluster_of(self.block).arrive(self)
        elif isinstance(statement, t.TakeTicket):
            counter, index = self._run.operands[statement.counter], self._value(statement.index)
            counter[index] += 1
            last = int(counter[index]) == self._value(statement.total)
            if last:
                counter[index] = 0
            self._scope[statement.last] = last

    def _value(self, value: Any) -> Any:
        return t.evaluate(value, self._scope)

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, t.View):
            return self._view(argument)
        if isinstance(argument, t.Global):
            return self._run.operands[argument.name]
        if isinstance(argument, t.Cluster):
            return [cta.storage[argument.buffer][0] for cta in self._run.members(self.block)]
        if isinstance(argument, t.Sender):
            return self._sender(argument)
        return self._value(argument)

    def _sender(self, sender: t.Sender) -> Callable[[int, tuple[Any, ...], torch.Tensor], None]:
        """send(rank, place, values): store into that CTA's slot at `place`; the bytes count towards its barrier."""
        pipe = sender.slot.pipeline
        use = self._value(sender.slot.use)

        def send(rank: int, place: tuple[Any, ...], values: torch.Tensor) -> None:
            cta = self._run.members(self.block)[rank]
            stage = use % self._run.schedule.buffer(sender.view.buffer).stages
            cta.storage[sender.view.buffer][stage][place] = values
            cta.rings[pipe.name].received[use] += values.numel() * values.element_size()

        return send

    def _meet(self, name: str) -> Generator[Any, None, None]:
        schedule = self._run.schedule
        members = schedule.named_barriers[name] if name else tuple(role.name for role in schedule.roles)
        total = sum(schedule.role(member).replicas for member in members)
        state = self._cta.meetings[name]
        generation = state[1]
        state[0] += 1
        if state[0] == total:
            state[0], state[1] = 0, generation + 1
        yield Wait(f"barrier {name or 'of the CTA'}", lambda: state[1] > generation)

    def _cluster_wait(self) -> Generator[Any, None, None]:
        cluster = self._run.cluster_of(self.block)
        phase = cluster.phases[self]
        yield Wait("the CTAs of its cluster to arrive", lambda: cluster.passed(phase))

    def _call(self, call: t.Call) -> None:
        results = call.leaf.torch(*(self._argument(call.arguments[i]) for i in call.leaf.inputs))
        positions = call.leaf.results
        if len(positions) == 1:
            results = (results,)
        for position, result in zip(positions, results or (), strict=True):
            self._scope[call.arguments[position].args[0]] = result

    def _view(self, view: t.View) -> torch.Tensor:
        buffer = self._run.schedule.buffer(view.buffer)
        if buffer.space is Space.REGISTER:
            if buffer.name not in self._registers:
                self._registers[buffer.name] = poisoned(buffer)[0]
            whole = self._registers[buffer.name]
        else:
            stage = self._value(view.use) % buffer.stages if view.use is not None else 0
            whole = self._cta.storage[buffer.name][stage]
        if view.rows is None:
            return whole
        first = self._value(view.first)
        return whole[first : first + view.rows]

    def _source(self, source: t.Box | t.Span, target: torch.Tensor) -> torch.Tensor:
        if isinstance(source, t.Span):
            flat = self._run.operands[source.operand].reshape(-1).view(torch.uint8)
            words = flat.view(TORCH_DTYPES[source.dtype])
            first = self._value(source.row) * source.pitch + source.column
            return words[first : first + source.count].view(target.shape)
        tensor_map = next(m for m in self._run.schedule.maps if m.name == source.map)
        extents = [evaluate_extent(extent, self._scope) for extent in reversed(tensor_map.global_dims)]
        flat = self._run.operands[tensor_map.operand].reshape(-1).view(torch.uint8).view(target.dtype)
        whole = flat.view(*extents)
        box = torch.zeros(target.shape, dtype=target.dtype, device=target.device)
        origin = [self._value(at) for at in source.at]
        ends = [
            min(extent, at + size)
            for extent, at, size in zip(extents, origin, reversed(tensor_map.box), strict=True)
        ]
        part = whole[tuple(slice(at, max(at, end)) for at, end in zip(origin, ends, strict=True))]
        as_bytes, to = part.view(torch.uint8), box.view(torch.uint8)
        to[tuple(slice(0, extent) for extent in as_bytes.shape)] = as_bytes
        return box

    def _multiply(self, statement: t.Product) -> None:
        mma = statement.mma
        # In float64, where neither the process's matmul precision nor the number of threads shows in the rounded sum.
        a, b = self._view(statement.a).double(), self._view(statement.b).double()
        a = a if mma.a_major == "k" else a.T
        b = b.T if mma.b_major == "k" else b
        if a.shape != (mma.m, mma.k) or b.shape != (mma.k, mma.n):
            self._fail(
                f"multiplies {tuple(a.shape)} by {tuple(b.shape)} as {mma.name}",
                f"declare m={mma.m}, n={mma.n}, k={mma.k} as the body uses them",
            )
        acc = self._view(statement.acc)
        product = (a @ b).float()
        acc.copy_(acc + product if self._value(statement.accumulate) else product)

    def _step(self, step: t.Step) -> Generator[Any, None, None]:
        pipe, use = step.slot.pipeline, self._value(step.slot.use)
        ring = self._cta.rings[pipe.name]
        producer = step.kind in ("acquire", "commit")
        allowed = [pipe.producer] if producer else [reader.role for reader in pipe.readers]
        if self.role not in allowed:
            self._fail(
                f"{'fills' if producer else 'reads'} pipeline {pipe.name}",
                f"let {' or '.join(allowed)} do it, or declare {self.role}",
            )
        expected = {
            "acquire": ring.acquired,
            "commit": ring.committed,
            "wait": ring.waited[self._key],
            "release": ring.released[self._key],
        }[step.kind]
        if use != expected:
            self._fail(
                f"{step.kind}s use {use} of {pipe.name}, where use {expected} is next",
                "take the uses of a ring in order, each once",
            )
        if step.kind == "acquire":
            ring.acquired += 1
            if use - ring.committed >= pipe.stages:
                self._fail(
                    f"acquires use {use} of {pipe.name} with {use - ring.committed} uses uncommitted",
                    "commit a slot before acquiring past the ring",
                )
            readers = [
                reader_key(self._run.schedule.role(reader.role), replica)
                for reader in pipe.readers
                for replica in range(self._run.schedule.role(reader.role).replicas)
            ]
            yield Wait(
                f"a free slot of {pipe.name} (use {use})",
                lambda: all(ring.released[key] > use - pipe.stages for key in readers),
            )
            if not pipe.accumulates:
                for buffer in pipe.buffers:
                    _poison(self._cta.storage[buffer][use % self._run.schedule.buffer(buffer).stages])
        elif step.kind == "commit":
            ring.committed += 1
        elif step.kind == "wait" and pipe.fill is Engine.PEERS:
            ring.waited[self._key] += 1
            wanted = sum(self._run.schedule.buffer(name).stage_bytes for name in pipe.buffers)
            yield Wait(f"use {use} of {pipe.name} from the other CTAs", lambda: ring.received[use] >= wanted)
        elif step.kind == "wait":
            ring.waited[self._key] += 1
            yield Wait(f"slot {use} of {pipe.name} to be filled by {pipe.producer}", lambda: ring.committed > use)
        else:
            ring.released[self._key] += 1

    def _fail(self, got: str, fix: str) -> None:
        self._run.fail(self.role, self.block, got, fix)


class ClusterBarrier:
    """The hardware's barrier of one cluster: every role of every CTA arrives, or has ended."""

    def __init__(self, members: int) -> None:
        self.members = members
        self.phases: dict[Executor, int] = defaultdict(int)

    def arrive(self, executor: Executor) -> None:
        self.phases[executor] += 1

    def passed(self, phase: int) -> bool:
        return len(self.phases) == self.members and all(at >= phase for at in self.phases.values())


def reader_key(role: Role, replica: int) -> str:
    """How a ring counts what one replica of a role has read."""
    return role.name if role.replicas == 1 else f"{role.name}[{replica}]"
