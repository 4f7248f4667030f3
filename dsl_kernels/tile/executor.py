"""The meaning of each statement in torch: what one role of one CTA does in the interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..abi import TensorMap
from ..dtypes import DTYPES, e2m1_of
from ..errors import DeclarationError
from ..expr import evaluate as evaluate_extent
from . import text as t
from . import threads
from .cta import TORCH_DTYPES, Cta, Issued, Wait, poisoned, reader_key
from .lang import Pipeline, Role, Space
from .plan import words_of
from .transfers import KINDS, transfer_of

if TYPE_CHECKING:
    from .interpreter import Run


def factors(exponents: torch.Tensor) -> torch.Tensor:
    """A factor for each element of [128, 128], from exponents of blocks of 32 as tensor memory holds them."""
    exponents = exponents.reshape(128, 16)[:32].reshape(32, 4, 4).transpose(0, 1).reshape(128, 4)
    powers = torch.exp2(exponents.double() - 127).masked_fill(exponents == 255, torch.nan)
    return powers.repeat_interleave(32, 1)


def folded(result: torch.Tensor) -> torch.Tensor:
    """A result of 32, 64 or 128 rows spread over 128 lanes: parts of its columns one below the other."""
    rows, columns = result.shape
    parts = 128 // rows
    return result.reshape(rows, parts, columns // parts).transpose(0, 1).reshape(128, columns // parts)


def of_halves(result: torch.Tensor) -> torch.Tensor:
    """Of 64 rows that are there twice, the first half of the columns of one, the other half of the other."""
    first, last = result[:64].chunk(2, dim=1)[0], result[64:].chunk(2, dim=1)[1]
    return torch.cat([first, last])


class Executor:
    """One replica of a role of one CTA.

    The meaning of a statement is the method `do_<title>`, which returns a generator if it may have to wait.
    """

    def __init__(self, run: Run, cta: Cta, role: Role, replica: int) -> None:
        self._run, self.cta, self.schedule = run, cta, run.schedule
        self.role, self.block = role.name, cta.block
        self.key = reader_key(role, replica)
        self._registers: dict[str, torch.Tensor] = {}
        # Products read their operands, and stores their shared memory, only when their group is carried out:
        # as late as the waits of the body allow, so that a slot given back too early shows.
        self._in_flight: list[list[Issued]] = []
        self._stores: list[list[Callable[[], None]]] = []
        first_warp = run.schedule.first_thread(role.name) // 32 + replica * role.warps
        self._scope: dict[str, Any] = {
            **run.scalars,
            **run.dims,
            **dict(zip(run.schedule.axes, cta.block, strict=True)),
            "lane": None,
            "worker": None,
            # A value that differs from warp to warp is a tensor over the warps.
            "warp": first_warp + torch.arange(role.warps),
            "replica": replica,
            "role": role.name,
            t.READ: self._word,
        }

    @property
    def members(self) -> list[Cta]:
        """The CTAs of the group, in grid order."""
        return self._run.members(self.block)

    def readers(self, pipe: Pipeline) -> list[str]:
        """The keys under which a ring counts the replicas of its readers."""
        return self._run.readers(pipe)

    def until(self, what: str, ready: Callable[[], bool]) -> Wait:
        """A condition that this role waits for, to be yielded."""
        return Wait(what, ready)

    def run(self, text: t.Text) -> Generator[Any, None, None]:
        yield from self._execute(text.start)
        yield from self._execute(text.roles[self.role])
        yield from self.do_barriers_stand()
        yield from self._execute(text.end)
        if self._in_flight:
            self.fail(
                f"ends with {len(self._in_flight)} groups of products in flight",
                "await them, or commit the slot that they fill",
            )
        if self._stores:
            self.fail(f"ends with {len(self._stores)} groups of stores in flight", "await them")
        me = (self.role, self._scope["replica"])
        for name, turn in self.cta.turns.items():
            if turn.taken and turn.members[turn.whose] == me:
                self.fail(f"ends with the turn of {name}", "pass it on")

        if self._run.cluster_of(self.block).pending(self):
            self.fail(
                "ends without a wait for its last arrival at its cluster's barrier",
                "wait after every arrival",
            )

    def _execute(self, statements: Iterable[t.Statement]) -> Generator[Any, None, None]:
        for statement in statements:
            meaning = getattr(self, f"do_{statement.title()}", self._as_declared)
            waits = meaning(statement)
            if waits is not None:
                yield from waits

    def _as_declared(self, s: t.Statement) -> Generator[Any, None, None] | None:
        """Execute a statement that only sets names to values, or only meets, as its class declares."""
        sets, barrier = s.sets(), s.meets()
        if (barrier is None and not sets) or any(value is None for value in sets.values()):
            raise DeclarationError(
                f"{type(s).__name__} in the interpreter",
                expected="what the statement means",
                got="nothing",
                fix=f"write Executor.do_{s.title()} in dsl_kernels/tile/executor.py",
            )
        for name, value in sets.items():
            self._scope[name] = self._value(value)
        return None if barrier is None else self.meet(barrier)

    def _nothing(self, _: t.Statement) -> None:
        """No effect here: the interpreter's memory is coherent, and launches do not overlap."""

    do_comment = do_depend = do_launch_dependents = _nothing

    def do_region(self, region: t.Region) -> Generator[Any, None, None]:
        return self._execute(region.body)

    def do_await_products(self, products: t.AwaitProducts) -> None:
        self._land(products.pending)

    def do_await_stores(self, stores: t.AwaitStores) -> Generator[Any, None, None] | None:
        self._land_stores(stores.pending)
        return None if stores.name is None else self.meet(stores.name)

    def do_loop(self, loop: t.Loop) -> Generator[Any, None, None]:
        for index in range(self._value(loop.begin), self._value(loop.end), loop.step):
            self._scope[loop.index] = index
            yield from self._execute(loop.body)

    def do_repeat(self, repeat: t.Repeat) -> Generator[Any, None, None]:
        while bool(self._value(repeat.condition)):
            yield from self._execute(repeat.body)

    def do_if(self, branch: t.If) -> Generator[Any, None, None]:
        taken = bool(self._value(branch.condition))
        return self._execute(branch.body if taken else branch.orelse)

    def do_store(self, store: t.Store) -> Generator[Any, None, None]:
        yield from self.meet(store.name)
        self._stores.append([self._stored(box, view) for box, view in store.copies])

    def do_count_out(self, out: t.CountOut) -> None:
        if self._count(out) == 2 * self._value(out.total):
            self._run.operands[out.counter][self._value(out.index)] = 0

    def do_count_in(self, into: t.CountIn) -> Generator[Any, None, None]:
        yield from self.meet(into.name)
        self._count(into)

    def do_multiply(self, multiply: t.Multiply) -> None:
        self._in_flight.append([self._product(product) for product in multiply.products])
        if all(product.mma.unit == "mma.sync" for product in multiply.products):
            self._land(0)

    def do_copy_columns(self, copy: t.CopyColumns) -> None:
        target = self._view(copy.target)
        source = self._view(copy.source).view(target.dtype)
        use = copy.source.pipeline
        reads = frozenset([(use, self._value(copy.source.use))] if use is not None else [])

        def carry() -> None:
            # Of 32 rows, each quarter of the lanes gets a copy.
            target.copy_(source.repeat(target.shape[0] // source.shape[0], 1))

        self._in_flight.append([Issued(carry, reads)])

    def do_fill(self, fill: t.Fill) -> None:
        self._view(fill.target).fill_(fill.value)

    def do_cluster_arrive(self, _: t.ClusterArrive) -> None:
        if not self._run.cluster_of(self.block).arrive(self):
            self.fail("arrives at its cluster's barrier twice", "wait between two arrivals")

    def do_bulk(self, bulk: t.Bulk) -> None:
        use = self._value(bulk.slot.use)
        for cta in self.members if bulk.multicast else [self.cta]:
            target = self._view(bulk.target, cta)
            target.copy_(self._source(bulk.source, target))
            itemsize = DTYPES[self.schedule.buffer(bulk.target.buffer).dtype].bytes
            cta.rings[bulk.slot.pipeline.name].received[use] += target.numel() * itemsize

    def do_ask_next(self, ask: t.AskNext) -> None:
        """Take the next CTA that has not started."""
        next_one = self._run.pending.popleft() if self._run.pending else None
        words = [int(next_one is not None), next_one[0] if next_one else 0, 0, 0]
        self._view(ask.target).copy_(torch.tensor(words, dtype=torch.int32))
        self.cta.rings[ask.slot.pipeline.name].received[self._value(ask.slot.use)] += 16

    def do_read_next(self, read: t.ReadNext) -> None:
        any_left, number = (int(word) for word in self._view(read.source).reshape(-1)[:2])
        self._scope[read.name] = number if any_left else -1

    def do_take_ticket(self, ticket: t.TakeTicket) -> Generator[Any, None, None]:
        """Write how many CTAs came before into the buffer; the last one resets the counter."""
        yield from self.meet(ticket.name)
        total = self._value(ticket.total)
        if self.role == self.schedule.named_barriers[ticket.name][0]:
            counter, index = self._run.operands[ticket.counter], self._value(ticket.index)
            before = int(counter[index])
            counter[index] = 0 if before == total - 1 else before + 1
            self.cta.storage[ticket.buffer].fill_(before)
        yield from self.meet(ticket.name)
        self._scope[ticket.last] = int(self.cta.storage[ticket.buffer].view(-1)[0]) == total - 1

    def _count(self, statement: t.CountIn | t.CountOut) -> int:
        """The barrier's first role counts the CTA and gets the count; the others get 0."""
        if self.role != self.schedule.named_barriers[statement.name][0]:
            return 0
        counter, index = self._run.operands[statement.counter], self._value(statement.index)
        counter[index] += 1
        return int(counter[index])

    def do_await_count(self, statement: t.AwaitCount) -> Generator[Any, None, None]:
        counter, index = self._run.operands[statement.counter], self._value(statement.index)
        total = self._value(statement.total)
        yield Wait(f"{total} CTAs at {statement.counter}[{index}]", lambda: int(counter[index]) >= total)
        yield from self.meet(statement.name)

    def _value(self, value: Any) -> Any:
        return t.evaluate(value, self._scope)

    def _word(self, memory: t.View | t.Global, index: int) -> Any:
        words = self._argument(memory).reshape(-1)
        if not 0 <= index < len(words):
            title = memory.name if isinstance(memory, t.Global) else memory.buffer
            self.fail(f"reads {title} at {index}, of {len(words)} elements", "read a word that it has")
        return words[index].item()

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, t.View):
            return self._view(argument)
        if isinstance(argument, t.Global):
            return self._run.operands[argument.name]
        if isinstance(argument, t.Cluster):
            return [cta.storage[argument.buffer][0] for cta in self.members]
        return self._value(argument)

    def _memory(self, argument: Any) -> Any:
        """Memory passed to a leaf's text; of a sender the slots or words of all CTAs that it sends to."""
        if isinstance(argument, t.Sender):
            pipe = argument.slot.pipeline
            if not transfer_of(pipe).WORDS:
                return self._inboxes(argument)
            words = self._run.operands[pipe.through].view(-1).view(torch.float32)
            return words[words_of(self.schedule, pipe.through)[1][pipe.name] :]
        if isinstance(argument, t.Global) and argument.peers:
            return self._run.peered(argument.name, argument.peers)
        return self._argument(argument)

    def _inboxes(self, sender: t.Sender) -> threads.Inboxes:
        """The slot in each CTA of the group; bytes stored there count towards that CTA's barrier."""
        name, use, members = sender.slot.pipeline.name, self._value(sender.slot.use), self.members
        view = replace(sender.view, pipeline=None)

        def count(rank: int, size: int) -> None:
            members[rank].rings[name].received[use] += size

        return threads.Inboxes([self._view(view, cta) for cta in members], count)

    def meet(self, name: str) -> Generator[Any, None, None]:
        schedule = self.schedule
        members = schedule.named_barriers[name] if name else tuple(role.name for role in schedule.roles)
        total = sum(schedule.role(member).replicas for member in members)
        if name in schedule.apart:
            # A replica is one task here, which has nobody to meet.
            return
        state = self.cta.meetings[name]
        generation = state[1]
        state[0] += 1
        if state[0] == total:
            state[0], state[1] = 0, generation + 1
        yield Wait(f"barrier {name or 'of the CTA'}", lambda: state[1] > generation)

    def _stored(self, box: t.Box, view: t.View) -> Callable[[], None]:
        """An issued store: its target is fixed now, its source is read when it is carried out."""
        source, tensor_map = self._view(view), self._map(box.map)
        target = self._mapped(tensor_map, source.dtype)[self._inside(box, tensor_map)]

        def store() -> None:
            whole = source.reshape(tuple(reversed(tensor_map.box)))
            target.copy_(whole[tuple(slice(0, extent) for extent in target.shape)])

        return store

    def _land_stores(self, pending: int) -> None:
        """Carry out the oldest groups of stores until `pending` are left."""
        while len(self._stores) > pending:
            for store in self._stores.pop(0):
                store()

    def _map(self, name: str) -> TensorMap:
        return next(m for m in self.schedule.maps if m.name == name)

    def _mapped(self, tensor_map: TensorMap, dtype: torch.dtype) -> torch.Tensor:
        """The operand as its tensor map describes it, outermost dimension first."""
        extents = [evaluate_extent(extent, self._scope) for extent in reversed(tensor_map.global_dims)]
        strides = [
            evaluate_extent(s, self._scope) // dtype.itemsize for s in reversed(tensor_map.global_strides)
        ]
        operand = self._run.operands[tensor_map.operand].view(dtype)
        return operand.as_strided(extents, [*strides, 1])

    def _inside(self, box: t.Box, tensor_map: TensorMap) -> tuple[slice, ...]:
        """The part of the tensor that a box covers."""
        extents = [evaluate_extent(extent, self._scope) for extent in reversed(tensor_map.global_dims)]
        return tuple(
            slice(at, max(at, min(extent, at + size)))
            for at, extent, size in zip(
                map(self._value, box.at), extents, reversed(tensor_map.box), strict=True
            )
        )

    def do_take_turn(self, statement: t.TakeTurn) -> Generator[Any, None, None]:
        turn = self.cta.turns[statement.name]
        me = turn.members.index((self.role, self._scope["replica"]))
        yield Wait(f"its turn of {statement.name}", lambda: turn.whose == me and not turn.taken)
        turn.taken = True

    def do_pass_turn(self, statement: t.PassTurn) -> None:
        name = statement.name
        turn = self.cta.turns[name]
        if not turn.taken or turn.members[turn.whose] != (self.role, self._scope["replica"]):
            self.fail(f"passes a turn of {name} that it does not hold", "take the turn before")
        turn.whose, turn.taken = (turn.whose + 1) % len(turn.members), False

    def do_barriers_stand(self, _: t.BarriersStand | None = None) -> Generator[Any, None, None]:
        """Meet the cluster, before the first copy and before the end, if CTAs fill each other's slots."""
        if self.schedule.multicasts:
            self._run.cluster_of(self.block).arrive(self)
            yield from self.do_cluster_wait()

    def do_cluster_wait(self, _: t.ClusterWait | None = None) -> Generator[Any, None, None]:
        cluster = self._run.cluster_of(self.block)
        if not cluster.pending(self):
            self.fail("waits for its cluster without an arrival", "arrive once before each wait")
        phase = cluster.begin(self)
        yield Wait("the CTAs of its cluster to arrive", lambda: cluster.passed(phase))

    def do_call(self, call: t.Call) -> None:
        if call.leaf.text is not None:
            schedule = self.schedule
            count = schedule.role(self.role).warps * threads.WARP
            self._scope |= threads.run(
                call.leaf, call.arguments, schedule, count, self._scope, self._memory, self._run.texts
            )
            return
        results = call.leaf.torch(*(self._argument(call.arguments[i]) for i in call.leaf.inputs))
        positions = call.leaf.results
        if len(positions) == 1:
            results = (results,)
        for position, result in zip(positions, results or (), strict=True):
            self._scope[call.arguments[position].args[0]] = result

    def _view(self, view: t.View, cta: Cta | None = None) -> torch.Tensor:
        buffer = self.schedule.buffer(view.buffer)
        if buffer.space is Space.REGISTER:
            if buffer.name not in self._registers:
                self._registers[buffer.name] = poisoned(buffer)[0]
            whole = self._registers[buffer.name]
        else:
            use = self._value(view.use) if view.use is not None else 0
            stage = use % buffer.stages
            if view.pipeline is not None:
                self._hold(view.pipeline, use, buffer.name)
            whole = (cta or self.cta).storage[buffer.name][stage]
        if view.rows is not None:
            first = self._value(view.first)
            whole = whole[first : first + view.rows]
        if view.width is not None:
            column = self._value(view.column)
            whole = whole[:, column : column + view.width]
        return whole

    def _hold(self, pipeline: str, use: int, buffer: str) -> None:
        """Refuse an access by a producer outside acquire..commit, or by a reader outside wait..release."""
        ring = self.cta.rings[pipeline]
        producer = self.role == self.schedule.pipeline(pipeline).producer
        fills = producer and ring.committed <= use < ring.acquired
        # Use -1 means that there was none: the leaf knows that and does not access the slot.
        if use >= 0 and not fills and not ring.released[self.key] <= use < ring.waited[self.key]:
            self.fail(
                f"touches {buffer} of use {use} of {pipeline}, which it does not hold",
                "touch a slot between acquire and commit, or between wait and release",
            )

    def _source(self, source: t.Box | t.Span | t.Rows, target: torch.Tensor) -> torch.Tensor:
        if isinstance(source, t.Span):
            flat = threads.elements(self._run.operands[source.operand]).view(torch.uint8)
            words = flat.view(TORCH_DTYPES[source.dtype])
            pitches = source.strides or (source.pitch,)
            steps = zip(map(self._value, source.rows), map(self._value, pitches), strict=True)
            first = sum(row * pitch for row, pitch in steps) + source.column
            return words[first : first + source.count].view(target.shape)
        tensor_map = next(m for m in self.schedule.maps if m.name == source.map)
        rank = len(tensor_map.box)
        folded = rank > 2 or rank != target.dim()
        strided = folded or not self._run.operands[tensor_map.operand].is_contiguous()
        if strided and isinstance(source, t.Box):
            box = torch.zeros(tuple(reversed(tensor_map.box)), dtype=target.dtype, device=target.device)
            part = self._mapped(tensor_map, target.dtype)[self._inside(source, tensor_map)]
            box[tuple(slice(0, extent) for extent in part.shape)] = part
            return box.view(target.shape)
        extents = [evaluate_extent(extent, self._scope) for extent in reversed(tensor_map.global_dims)]
        flat = self._run.operands[tensor_map.operand].reshape(-1).view(torch.uint8).view(target.dtype)
        whole = flat.view(*extents)
        if isinstance(source, t.Rows):
            ids, column = self._view(source.rows)[0], self._value(source.column)
            inside = (ids >= 0) & (ids < extents[0])
            picked = whole[torch.where(inside, ids, 0).long(), column : column + target.shape[1]]
            return torch.where(inside[:, None], picked, 0)
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

    def _land(self, pending: int) -> None:
        """Carry out the oldest groups of products until `pending` are in flight."""
        while len(self._in_flight) > pending:
            for issued in self._in_flight.pop(0):
                issued.multiply()

    def _product(self, statement: t.Product) -> Issued:
        """An issued product: its operands' places are fixed now, and read when it is carried out."""
        mma = statement.mma
        # Each CTA of a pair has half of the rows of A, of B and of the result.
        pair = self.members if mma.cta_group == 2 else [self.cta]
        parts = [tuple(self._view(x, cta) for x in (statement.a, statement.b, statement.acc)) for cta in pair]
        left = [a if mma.a_major == "k" else a.T for a, _, _ in parts]
        right = [b.T if mma.b_major == "k" else b for _, b, _ in parts]
        halves = mma.cta_group == 2 and mma.m == 128
        # An A of 64 rows in tensor memory is there twice, once for each half of the columns.
        halves |= mma.ws and mma.m == 64 and mma.a_space is Space.TENSOR
        each = 64 if halves else left[0].shape[0]
        packed = DTYPES[mma.dtype].packed
        a_shape = (each * len(pair), left[0].shape[1] * packed)
        b_shape = (right[0].shape[0] * packed, right[0].shape[1] * len(pair))
        if a_shape != (mma.m, mma.k) or b_shape != (mma.k, mma.n):
            self.fail(
                f"multiplies {a_shape} by {b_shape} as {mma.name}",
                f"declare m={mma.m}, n={mma.n}, k={mma.k} as the body uses them",
            )
        accumulate = self._value(statement.accumulate)

        def multiply() -> None:
            if mma.scales is not None:
                (a, b, acc), (by_a, by_b) = parts[0], (factors(self.cta.storage[name]) for name in mma.scales)
                if packed > 1:
                    a, b = e2m1_of(a), e2m1_of(b)
                product = ((a.double() * by_a[: mma.m]) @ (b.double() * by_b[: mma.n]).T).float()
                acc.copy_(acc + product if accumulate else product)
                return
            # In float64 the sum depends neither on the process's matmul precision nor on the number of
            # threads.
            whole = torch.cat([b.double() for b in right], dim=1)
            for a, (_, _, acc) in zip(left, parts, strict=True):
                product = (a.double() @ whole).float()
                if mma.ws or halves:
                    product = of_halves(product) if len(product) == 128 and halves else folded(product)
                acc.copy_(acc + product if accumulate else product)

        operands = (view for view in (statement.a, statement.b) if view.pipeline is not None)
        return Issued(multiply, frozenset((str(view.pipeline), self._value(view.use)) for view in operands))

    def do_pipeline_op(self, op: t.PipelineOp) -> Generator[Any, None, None]:
        """Perform an operation of a pipeline; each side must take the uses in order."""
        pipe, use = op.slot.pipeline, self._value(op.slot.use)
        transfer = transfer_of(pipe)
        ring = self.cta.rings[pipe.name]
        producer = op.kind in ("acquire", "commit", "drain")
        allowed = [pipe.producer] if producer else [reader.role for reader in pipe.readers]
        if self.role not in allowed:
            self.fail(
                f"{'fills' if producer else 'reads'} pipeline {pipe.name}",
                f"let {' or '.join(allowed)} do it, or declare {self.role}",
            )
        if op.kind == "drain":
            yield from transfer.drained(self, use)
            return
        expected = {
            "acquire": ring.acquired,
            "commit": ring.committed,
            "wait": ring.waited[self.key],
            "release": ring.released[self.key],
        }[op.kind]
        if use != expected:
            self.fail(
                f"{op.kind}s use {use} of {pipe.name}, where use {expected} is next",
                "take the uses of a ring in order, each once",
            )
        begun = {
            "commit": ring.acquired if transfer.GIVEN_BACK else use + 1,
            "release": ring.waited[self.key],
        }
        if begun.get(op.kind, use + 1) <= use:
            self.fail(
                f"{op.kind}s use {use} of {pipe.name} before it has it",
                "acquire before the commit, and wait before the release",
            )
        by = KINDS[pipe.fill if producer else next(r.engine for r in pipe.readers if r.role == self.role)]
        if op.kind in ("commit", "release") and by.PRODUCTS:
            # A tcgen05 commit, or the wgmma wait before an arrival, covers all products issued before it.
            self._land(op.pending)
            if any((pipe.name, use) in issued.reads for group in self._in_flight for issued in group):
                self.fail(
                    f"releases use {use} of {pipe.name} under a product that reads it",
                    f"leave fewer than {op.pending} groups in flight at that release",
                )
        gives_back = [p for p in self.schedule.pipelines if p.returned_by == pipe.name]
        if op.kind == "acquire":
            if pipe.returned_by is not None and ring.returned <= use - pipe.stages:
                self.fail(
                    f"acquires use {use} of {pipe.name}, of which it knows {ring.returned} to be given back",
                    f"wait for the use of {pipe.returned_by} that gives the slot back before",
                )
            yield from transfer.acquired(self, use, None if op.bytes is None else self._value(op.bytes))
        elif op.kind == "wait":
            yield from transfer.waited(self, use, None if op.at is None else self._value(op.at), by)
            for other in gives_back:
                handed = [cta.rings[other.name].handed[use] for cta in transfer.filled_in(self)]
                self.cta.rings[other.name].returned = min(handed)
        elif op.kind == "release":
            for cta in transfer.counted_in(self, by):
                cta.rings[pipe.name].released[self.key] += 1
        else:
            transfer.committed(self, use)
            for other in gives_back:
                back = self.cta.rings[other.name]
                back.handed[use] = min(back.released[key] for key in self.readers(other))
            for cta in transfer.counted_in(self, by):
                cta.rings[pipe.name].committed += 1

    def words(self, pipe: Pipeline, cta: int) -> torch.Tensor:
        """The words that CTAs of the grid have sent to CTA `cta`, in the shape of the slot."""
        (buffer,) = pipe.buffers
        shape = self.schedule.buffer(buffer).shape
        total, first = words_of(self.schedule, pipe.through)
        words: torch.Tensor = self._run.operands[pipe.through].view(-1)[cta * total + first[pipe.name] :]
        return words[: math.prod(shape)].view(shape)

    def fail(self, got: str, fix: str) -> None:
        self._run.fail(self.role, self.block, got, fix)
