"""Prints the text of a kernel in one DSL: its statements in order, each spelled by the DSL's `_spelling.j2`.

Nothing here knows an operation or a DSL: DSLs differ in their macros only. Barriers, counts, parities, fences
and the election of the arriving thread come from the barrier plan.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from dsl_kernels.errors import DeclarationError, TemplateError
from dsl_kernels.tile import leaf_text
from dsl_kernels.tile import text as t
from dsl_kernels.tile.lang import Role, Schedule, Size, Space
from dsl_kernels.tile.plan import BarrierPlan, named_plans, turn_plans
from dsl_kernels.tile.transfers import Action, transfer_of

from .facts import mma_facts, names_in_python, role_facts
from .values import Values, plus

INDENT = "    "
DOC_WIDTH = 100
CLONE = "__CLONE"


class Printer(Values):
    """Prints one kernel's statements as lines.

    A statement is printed by the method `print_<title>`, or else by the macro of that title, which gets the
    statement's fields.

    Args:
        spelling: the macros of the DSL's `_spelling.j2`.
        leaf_module: name of a leaf -> the alias of the module that spells it; an error if none does.
        home: the same, but None if no module spells the leaf: then the leaf's own text is printed.
        own_registers: whether leaves name the registers of each thread, so that the DSL must not distribute
            tiles itself.
    """

    def __init__(
        self,
        schedule: Schedule,
        plan: BarrierPlan,
        spelling: Any,
        leaf_module: Any,
        home: Any = lambda name: None,
        own_registers: bool = False,
    ) -> None:
        super().__init__(schedule, spelling, leaf_module)
        self._plan, self._home, self._own_registers = plan, home, own_registers
        self._role: Role | None = None
        self._in_flight: list[t.View] = []
        self._turns = turn_plans(schedule) if schedule else {}
        self._explained: set[str] = set()
        # Functions printed from texts of leaves: (leaf, parameters, body) -> the function's name.
        self._functions: dict[tuple[str, ...], str] = {}
        # For each such function, the arguments of its calls, which `_endings` turns into distinct names.
        self._called: dict[str, list[dict[str, Any]]] = {}
        # Names that a call passes to a parameter of another name.
        self.renamed: set[str] = set()
        self.functions: list[str] = []

    def lines(self, statements: Iterable[t.Statement], role: Role | None = None) -> list[str]:
        """The statements of a role, or of the kernel's start or end."""
        self._role, self._in_flight, self._explained = role, [], set()
        self._copies = {len(stores) for s in t.walk(statements) if (stores := s.stores())}
        return [*self._opened_turns(), *self._block(statements)]

    def _opened_turns(self) -> Iterator[str]:
        """The last member of an ordered hand-over first passes the turn, so that the first may begin."""
        for name, plan in self._turns.items():
            role, replica = plan.members[-1]
            if self._role is None or self._role.name != role:
                continue
            several = self._role.replicas > 1
            opening = t.PassTurn(name, t.name("replica") if several else 0, opens=True)
            yield from self._block(
                [t.If(t.name("replica") == replica, [opening], [])] if several else [opening]
            )

    def _block(self, statements: Iterable[t.Statement]) -> Iterator[str]:
        listed = list(statements)
        for i, statement in enumerate(listed):
            if isinstance(statement, t.Variable) and self._set_by_next(statement.name, listed[i + 1 :]):
                continue
            yield from getattr(self, f"print_{statement.title()}", self._by_fields)(statement)

    def _by_fields(self, s: t.Statement) -> Iterator[str]:
        """Spell a statement by its fields, and by number and threads of the barrier at which it meets."""
        told = {field.name: self._field(getattr(s, field.name)) for field in fields(s)}
        if (barrier := s.meets()) is not None:
            told |= self._named(barrier, getattr(s, "replica", 0))
        yield from self._spell(s.title(), **told)

    def _field(self, value: Any) -> Any:
        """A field as a macro sees it: values and places are spelled, everything else is passed as it is."""
        if isinstance(value, (t.Expr, Size)):
            return self.value(value)
        return self._argument(value) if isinstance(value, t.PLACES) else value

    def _set_by_next(self, name: str, onwards: list[t.Statement]) -> bool:
        """Whether a call returns a variable's value before anything reads it, so that it needs no initial
        one.

        Only a DSL whose calls return results can omit that value.
        """
        if not getattr(self._spelling, "returns_results", False):
            return False
        while onwards and isinstance(onwards[0], t.Variable):
            if name in t.names_of(t.values(onwards[0])):
                return False
            onwards = onwards[1:]
        if not onwards or not isinstance(onwards[0], t.Call):
            return False
        call, this = onwards[0], {name}
        returned = [i for i in call.leaf.results if t.names_of([call.arguments[i]]) == this]
        named = [value for value in t.values(call) if t.names_of([value]) == this]
        return len(returned) == len(named) == 1 and returned[0] not in call.leaf.inputs

    def _inner(self, statements: Iterable[t.Statement]) -> Iterator[str]:
        lines = list(self._block(statements))
        if all(line.lstrip().startswith("#") for line in lines):
            lines.append("pass")
        return (INDENT + line for line in lines)

    def _repeated(self, body: list[t.Statement]) -> Iterator[str]:
        """The body of a loop. Products that its end leaves in flight may be in flight at its start."""
        if any(s.issues() for s in t.walk(body)):
            before, explained = self._in_flight, set(self._explained)
            list(self._inner(body))
            self._in_flight = before + [view for view in self._in_flight if view not in before]
            self._explained = explained
        yield from self._inner(body)

    def print_let(self, s: t.Let) -> Iterator[str]:
        yield f"{s.name} = {self.value(s.value)}"

    def print_variable(self, s: t.Variable) -> Iterator[str]:
        yield from self._spell("variable", name=s.name, dtype=s.dtype, value=self.value(s.initial))

    def print_assign(self, s: t.Assign) -> Iterator[str]:
        yield from self._spell(
            "assign",
            name=s.name,
            value=self.value(s.value),
            constant=not isinstance(s.value, t.Expr),
            dtype=s.dtype,
        )

    def print_comment(self, s: t.Comment) -> Iterator[str]:
        yield f"# {s.text}"

    def print_loop(self, s: t.Loop) -> Iterator[str]:
        yield from self._spell(
            "loop", index=s.index, begin=self.value(s.begin), end=self.value(s.end), step=s.step,
            by=self.spelled(s.step),
            unrolled=s.unrolled, from_zero=s.begin == 0 if not isinstance(s.begin, t.Expr) else False,
            leaf=self._in_leaf, at_once=s.at_once,
        )  # fmt: skip
        yield from self._repeated(s.body)

    def print_repeat(self, s: t.Repeat) -> Iterator[str]:
        yield f"while {self.value(s.condition)}:"
        yield from self._repeated(s.body)

    def print_if(self, s: t.If) -> Iterator[str]:
        yield f"if {self.value(s.condition)}:"
        yield from self._inner(s.body)
        if s.orelse:
            yield "else:"
            yield from self._inner(s.orelse)

    def print_region(self, s: t.Region) -> Iterator[str]:
        yield from self._block(s.body)

    def print_call(self, s: t.Call) -> Iterator[str]:
        if s.leaf.text is not None and self._home(s.leaf.name) is None:
            yield from self._call_text(s)
            return
        if s.leaf.doc and s.leaf.name not in self._explained:
            self._explained.add(s.leaf.name)
            yield "# " + " ".join(s.leaf.doc.split("\n\n")[0].split())
        self._pass((s.leaf.parameters[i].name, s.arguments[i]) for i in self._spelled(s))
        yield from self._spell(
            "call",
            module=self._leaf_module(s.leaf.name),
            name=s.leaf.name,
            all=[self._argument(s.arguments[i]) for i in self._spelled(s)],
            inputs=[self._argument(s.arguments[i]) for i in self._spelled(s) if i in s.leaf.inputs],
            results=[self._argument(s.arguments[i]) for i in s.leaf.results],
        )

    def _pass(self, arguments: Iterable[tuple[str, Any]]) -> None:
        """Record which names are passed to parameters of another name."""
        for parameter, value in arguments:
            if isinstance(value, t.Expr) and value.op == "name" and value.args[0] != parameter:
                self.renamed.add(value.args[0])

    def _spelled(self, s: t.Call) -> list[int]:
        """Which arguments a leaf spelled by a DSL takes: all but ambient ones that its text never reads."""
        unread: set[str] = set()
        if s.leaf.text is not None:
            text = leaf_text.text_of(s.leaf, s.arguments, self._schedule)
            read = set().union(*(t.names_of(t.values(inner)) for inner in t.walk(text.statements)))
            unread = set(t.AMBIENT) - read
        return [i for i, p in enumerate(s.leaf.parameters) if p.name not in unread]

    def _call_text(self, s: t.Call) -> Iterator[str]:
        text = leaf_text.text_of(s.leaf, s.arguments, self._schedule)
        name, parameters = self._function(s.leaf, text)
        told = {p.name: _told(a) for p, a in zip(s.leaf.parameters, s.arguments, strict=True)}
        self._called.setdefault(name, []).append(told)
        given = dict(zip(text.parameters, s.arguments, strict=True))
        passed = [(formal, self._argument(given[formal])) for formal in parameters]
        self._pass((formal.name, given[formal]) for formal in parameters)
        yield from self._spell(
            "call_text", name=name, all=[a for _, a in passed], inputs=[a for f, a in passed if not f.fresh],
            results=[self._argument(s.arguments[i]) for i in s.leaf.results],
        )  # fmt: skip

    def _function(self, leaf: t.Leaf, text: leaf_text.LeafText) -> tuple[str, list[leaf_text.Formal]]:
        """The function of a leaf's text: its name and the parameters it uses. Printed at its first call."""
        before, self._in_leaf, self._explained = (self._in_leaf, self._explained), True, set()
        body = list(self._block(text.statements))
        self._in_leaf, self._explained = before
        results = [f for f in (text.parameters[i] for i in leaf.results) if f]
        used = names_in_python("\n".join(body))
        parameters = [f for f in text.parameters if f and (f in results or f.name in used)]
        key = (leaf.name, *(f.name for f in parameters), *body)
        if key not in self._functions:
            others = sum(k[0] == leaf.name for k in self._functions)
            self._functions[key] = f"{leaf.name}{CLONE}{others + 1}"
            sure = {s.name for s in text.statements if isinstance(s, t.Assign)}
            facts = SimpleNamespace(
                name=self._functions[key], parameters=parameters, doc=_paragraphs(leaf.doc), body=body,
                unset=[f for f in parameters if f.fresh and f.name not in sure],
                results=[f.name for f in results],
            )  # fmt: skip
            self.functions.append(str(self._spelling.function(facts)).strip())
        return self._functions[key], parameters

    def clones(self) -> dict[str, str]:
        """Placeholder names of the functions printed from texts of leaves -> their final names.

        A leaf whose calls differ may give several functions: each is named for the argument that sets it
        apart.
        """
        renamed: dict[str, str] = {}
        leaves: dict[str, list[str]] = {}
        for name in self._functions.values():
            leaves.setdefault(name.split(CLONE)[0], []).append(name)
        for leaf, names in leaves.items():
            endings = _endings([self._called[name] for name in names])
            renamed |= {name: leaf + ending for name, ending in zip(names, endings, strict=True)}
        return renamed

    def print_put(self, s: leaf_text.Put) -> Iterator[str]:
        place = self._phrase("element", **self._place_in(s.array, s.index))
        constant = not isinstance(s.value, t.Expr)
        yield from self._spell(
            "put", place=place, value=self.value(s.value), constant=constant, dtype=s.array.dtype
        )

    def print_vector(self, s: leaf_text.Vector) -> Iterator[str]:
        registers = s.registers
        yield from self._spell(
            "vector", store=s.store, registers=registers.name, from_register=self.value(registers.first, 4),
            strided=bool((s.array.line or (s.array,))[0].strides), dtype=s.array.dtype,
            **self._group_in(s.array, s.group, registers.size),
        )  # fmt: skip

    def print_line(self, s: leaf_text.Line) -> Iterator[str]:
        steps = list(zip(s.rows, s.pitches, strict=s.strided))
        if s.rows and not s.strided:
            row: t.Value = s.rows[0]
            for index, pitch in zip(s.rows[1:], s.pitches, strict=False):
                row = plus(row * pitch, index)
            steps = [(row, s.pitches[-1])]
        spelled = [(self.value(row, 0 if s.wide else 5), self.value(pitch, 6)) for row, pitch in steps]
        yield from self._spell(
            "line", name=s.name, array=s.array.name, steps=spelled, first=self.value(s.first, 5), wide=s.wide
        )

    def print_local(self, s: leaf_text.Local) -> Iterator[str]:
        yield from self._spell(
            "local", name=s.array.name, size=self.spelled(s.array.size), dtype=s.array.dtype
        )

    def print_do(self, s: leaf_text.Do) -> Iterator[str]:
        yield self.value(s.value)

    def print_bulk(self, s: t.Bulk) -> Iterator[str]:
        target, barrier = self._facts(s.target), self._barrier(s.slot, "full")
        if isinstance(s.source, t.Box):
            pipe, ctas = s.slot.pipeline, self._schedule.cluster_ctas if s.multicast else 1
            yield from self._spell(
                "cluster_box" if pipe.multicast or pipe.pair else "copy_box", **self._box(s.source),
                target=target, barrier=barrier,
                evict_first=s.evict_first, ctas=ctas, pair=pipe.pair, folds=s.folds(self._schedule),
                full=f"{pipe.name}_full", full_slot=self._ring(s.slot.use, pipe.stages),
            )  # fmt: skip
        elif isinstance(s.source, t.Rows):
            tensor_map = next(m for m in self._schedule.maps if m.name == s.source.map)
            yield from self._spell(
                "copy_rows", map=tensor_map, rows=self._view(s.source.rows),
                column=self.value(s.source.column), target=target,
                full=f"{s.slot.pipeline.name}_full", barrier=barrier, pair=s.slot.pipeline.pair,
            )  # fmt: skip
        else:
            span = s.source
            steps = zip(span.rows, span.strides, strict=False)
            yield from self._spell(
                "copy_span",
                source=span,
                rows=[self.value(row) for row in span.rows],
                pitch=self.spelled(span.pitch),
                column=self.spelled(span.column),
                steps=[(self.value(row), self.value(stride, 6)) for row, stride in steps],
                count=self.spelled(span.count),
                end=self.spelled(span.column + span.count),
                target=target,
                barrier=barrier,
                evict_first=s.evict_first,
            )

    def print_ask_next(self, s: t.AskNext) -> Iterator[str]:
        yield from self._spell(
            "ask_next", target=self._facts(s.target), barrier=self._barrier(s.slot, "full")
        )

    def print_multiply(self, s: t.Multiply) -> Iterator[str]:
        """A group of products: opened, each product spelled, closed."""
        unit = s.products[0].mma.unit
        for p in s.products:
            if p.mma.doc:
                yield f"# {p.mma.doc}"
        accs = [self._facts(view) for view in {p.acc.buffer: p.acc for p in s.products}.values()]
        own = {"own_registers": unit == "wgmma" and self._own_registers}
        own["narrow"] = any(mma.a_space is Space.REGISTER for mma in self._schedule.mmas)
        operands = [self._facts(p.a) for p in s.products if p.mma.a_space is Space.REGISTER]
        for p in s.products:
            if own["own_registers"] and any(view.width is not None for view in (p.a, p.b)):
                raise TemplateError(
                    f"product {p.mma.name}",
                    expected="whole rows of its operands, where a DSL's threads hold tiles by themselves",
                    got="a view of some of their columns",
                    fix="make those columns a buffer, or spell them in this DSL's _spelling.j2",
                )  # fmt: skip
        yield from self._spell(f"open_{unit}", accs=accs, operands=operands, **own)
        for p in s.products:
            if unit == "wgmma":
                self._in_flight.append(p.acc)
            facts = {name: self._facts(view) for name, view in (("acc", p.acc), ("a", p.a), ("b", p.b))}
            mma = mma_facts(self._schedule, p.mma)
            mma.rows, mma.columns, mma.depth = self.spelled(mma.m), self.spelled(mma.n), self.spelled(mma.k)
            yield from self._spell(
                f"multiply_{unit}", mma=mma,
                scales=[self._facts(t.View(name, None, None)) for name in p.mma.scales or ()],
                accumulate=self.value(p.accumulate), **facts, **own,
                a_tile=self._tile(p.a, mma.rows_a, mma.columns_a, mma.a_major) if mma.a_shared else None,
                b_tile=self._tile(p.b, mma.rows_b, mma.columns_b, mma.b_major),
            )  # fmt: skip
        yield from self._spell(f"close_{unit}", accs=accs, operands=operands, **own)

    def print_copy_columns(self, s: t.CopyColumns) -> Iterator[str]:
        buffer = self._schedule.buffer(s.target.buffer)
        yield from self._spell(
            "copy_columns", target=self._facts(s.target), source=self._facts(s.source),
            depth=self.spelled(buffer.shape[1]), dtype=buffer.dtype,
        )  # fmt: skip

    def print_await_products(self, s: t.AwaitProducts) -> Iterator[str]:
        yield from self._products_done(s.pending)

    def _products_done(self, pending: int) -> Iterator[str]:
        done = self._in_flight if pending == 0 else self._in_flight[:-pending]
        accs = [self._facts(view) for view in {view.buffer: view for view in done}.values()]
        self._in_flight = self._in_flight[len(done) :]
        yield from self._spell("wait_products", pending=pending, accs=accs)

    def _named(self, name: str, replica: t.Value = 0) -> dict[str, Any]:
        """Number and thread count of a named barrier; number 0 is the barrier of all threads."""
        if not name:
            return {"id": 0, "number": "0", "threads": str(int(self._schedule.threads))}
        plan = named_plans(self._schedule)[name]
        number = Size(plan.number, f"{name.upper()}_BARRIER")
        return {
            "id": plan.number,
            "number": self.value(plus(replica, number)),
            "threads": self.spelled(plan.threads),
        }

    def print_publish(self, s: t.Publish | t.Store) -> Iterator[str]:
        yield from self._spell(Action.FENCE_PROXY.value)
        yield from self._spell("meet", **self._named(s.name, s.replica))

    def print_store(self, s: t.Store) -> Iterator[str]:
        yield from self.print_publish(s)
        yield from self._spell("first_warp", **self._first_warp(s.replica))
        for box, view in s.copies:
            copy = self._spell("store_box", **self._box(box), source=self._facts(view))
            yield from (INDENT + line for line in copy)
        yield from (INDENT + line for line in self._spell("close_stores"))

    def print_await_stores(self, s: t.AwaitStores) -> Iterator[str]:
        yield from self._spell("first_warp", **self._first_warp(s.replica))
        yield from (
            INDENT + line for line in self._spell("wait_stores", pending=s.pending, copies=self._stores_of(s))
        )
        if s.name is not None:
            yield from self._spell("meet", **self._named(s.name, s.replica))

    def _stores_of(self, s: t.AwaitStores) -> int:
        """How many stores the pending groups contain, for a DSL that commits each store on its own."""
        if s.pending and len(self._copies) != 1:
            raise DeclarationError(
                f"stores of {self._role.name if self._role else 'the start'}",
                expected="groups of as many copies each, where some are left pending",
                got=", ".join(map(str, sorted(self._copies))) or "none",
                fix="await all of them, or store as many boxes each time",
            )
        return s.pending * min(self._copies, default=0)

    def _first_warp(self, replica: t.Value) -> dict[str, Any]:
        """The one warp that issues the stores of this role or replica: a bulk group belongs to its thread."""
        first, threads = 0, 0
        if self._role is not None:
            facts = role_facts(self._schedule, self._role)
            first, threads = facts.first, facts.threads
        begin = plus(replica * threads if isinstance(replica, t.Expr) else 0, first)
        warp = plus(replica * (threads // 32) if isinstance(replica, t.Expr) else 0, first // 32)
        return {"warp": self.value(warp), "end": self.value(plus(begin, 32))}

    def print_take_ticket(self, s: t.TakeTicket) -> Iterator[str]:
        yield from self._spell(
            "take_ticket", last=s.last, buffer=s.buffer, total=self.value(s.total), **self._counted(s)
        )

    def print_count_in(self, s: t.CountIn) -> Iterator[str]:
        yield from self._spell("count_in", **self._counted(s))

    def print_await_count(self, s: t.AwaitCount) -> Iterator[str]:
        yield from self._spell("await_count", total=self.value(s.total), **self._counted(s))

    def print_count_out(self, s: t.CountOut) -> Iterator[str]:
        yield from self._spell("count_out", total=self.value(s.total), **self._counted(s))

    def _counted(self, s: t.TakeTicket | t.CountIn | t.AwaitCount | t.CountOut) -> dict[str, Any]:
        """The counter, its barrier, and whether it is this role's first thread that counts."""
        first = self._schedule.named_barriers[s.name][0]
        counts = self._role is not None and self._role.name == first
        return {
            "counter": s.counter,
            "index": self.value(s.index, 4),
            "counts": counts,
            **self._named(s.name),
        }

    def print_take_turn(self, s: t.TakeTurn) -> Iterator[str]:
        yield from self._turn("take_turn", s, 0)

    def print_pass_turn(self, s: t.PassTurn) -> Iterator[str]:
        yield from self._turn("pass_turn", s, 1)

    def _turn(self, macro: str, s: t.TakeTurn | t.PassTurn, ahead: int) -> Iterator[str]:
        plan = self._turns[s.name]
        place = plus(s.replica, plan.place(self._role.name if self._role else "") + ahead)
        number = plus(t.Expr("%", (place, len(plan.members))) if ahead else place, plan.first)
        yield from self._spell(macro, id=self.value(number), threads=plan.threads)

    def print_barriers_stand(self, s: t.BarriersStand) -> Iterator[str]:
        barriers = [
            SimpleNamespace(name=b.name, stages=self.spelled(b.stages), count=self.spelled(b.count))
            for b in self._plan.barriers
        ]
        yield from self._spell("barriers_stand", barriers=barriers, schedule=self._schedule)
        if self._schedule.multicasts:
            # No CTA may send before the other CTAs have initialised their barriers.
            yield from self._spell("meet_cluster")

    def print_tear_down(self, s: t.TearDown) -> Iterator[str]:
        yield "# Tensor memory goes back only when no role can touch it any more."
        yield from self._spell("tear_down", schedule=self._schedule)

    def print_pipeline_op(self, s: t.PipelineOp) -> Iterator[str]:
        pipe, kind = s.slot.pipeline, s.kind
        plan, role = self._plan.pipelines[pipe.name], s.slot.role
        if kind in ("acquire", "commit", "drain"):
            actions = {"acquire": plan.acquire, "commit": plan.commit, "drain": (Action.WAIT_EMPTY,)}[kind]
        else:
            actions = (plan.wait if kind == "wait" else plan.release)[role]
        # A DSL expects the bytes of a bulk fill either before its copies, or with the arrival after them.
        if transfer_of(pipe).ANNOUNCES and (self._spelling.announces_first or pipe.multicast or pipe.pair):
            actions = {"acquire": (*plan.acquire, *plan.commit), "commit": ()}.get(kind, actions)
        turn = s.slot.use if pipe.stages == 1 else None
        phase = (
            self.value(turn, 5)
            if turn is not None
            else f"({self.value(s.slot.use, 5)} // {self.spelled(pipe.stages, 6)})"
        )
        full_parity = "0" if pipe.rounds == "once" else f"{phase} & 1"
        values = {
            "full": self._barrier(s.slot, "full"), "empty": self._barrier(s.slot, "empty"),
            "full_parity": full_parity,
            "empty_parity": f"({phase} & 1) ^ 1", "elect": Action.ELECT in actions,
            "lone_warp": (self._role.active or self._role.warps) == 1 if self._role else True,
            "name": pipe.name, "slot": self._ring(s.slot.use, pipe.stages), "multicast": pipe.multicast,
            "ctas": self._schedule.cluster_ctas,
            "tx": self.value(s.bytes if s.bytes is not None else plan.full.tx_bytes if plan.full else 0),
        }  # fmt: skip
        if Action.WAIT_WORDS in actions and s.at is not None:
            buffer = self._schedule.buffer(pipe.buffers[0])
            values |= {
                "buffer": buffer.name, "words": self._words(pipe, s.at),
                "count": self.spelled(buffer.stage_elements),
                "role_threads": self.spelled(self._schedule.role(role).threads), **self._named(pipe.meets),
            }  # fmt: skip
        if Action.EXPECT_TX_WARP in actions and plan.full:
            # Each arrival announces an equal part, as a number: spelled by its sizes it would be longer than
            # a line.
            values["tx"] = self.value(int(plan.full.tx_bytes) // plan.full.count)
        for action in actions:
            if action is Action.WAIT_WGMMA:
                yield from self._products_done(s.pending)
            elif action is not Action.ELECT:
                yield from self._spell(action.value, **values)
        if not actions and kind != "commit":
            # A comment, because a reader of the kernel looks for the missing action.
            yield f"# {pipe.name}: " + (
                f"{pipe.returned_by} also gives its slot back"
                if pipe.returned_by
                else "filled once, so its slot is free"
            )


def _told(argument: Any) -> Any:
    """An argument as a key that tells calls apart: a Python number, a name, or `...` for a runtime value."""
    if isinstance(argument, t.Expr):
        return ...
    name = getattr(argument, "buffer", None) or getattr(argument, "name", None)
    return argument if name is None else str(name)


def _endings(functions: list[list[dict[str, Any]]]) -> list[str]:
    """The suffix of a leaf's name in each of its functions, given the arguments of each function's calls.

    The suffix comes from one parameter that differs between all of them: preferably a condition, then a name,
    then a number. If there is none, the functions are numbered.
    """
    if len(functions) == 1:
        return [""]
    candidates = []
    for parameter in functions[0][0]:
        passed = [{call.get(parameter) for call in calls} for calls in functions]
        every = set().union(*passed)
        if sum(map(len, passed)) > len(every):
            continue
        endings = [_ending(parameter, values, every) for values in passed]
        if len(set(endings)) == len(endings):
            kinds = {type(value) for value in every}
            rank = 0 if kinds & {bool, type(None)} else 1 if str in kinds else 2
            candidates.append((rank, endings))
    numbered = ["", *(f"_{i}" for i in range(2, len(functions) + 1))]
    return min(candidates, key=lambda pair: pair[0])[1] if candidates else numbered


def _ending(parameter: str, values: set[Any], every: set[Any]) -> str:
    value = next(iter(values))
    if len(values) > 1 or value is None or value is False:
        return ""
    if value is ...:
        return f"_{parameter}" if None in every else ""
    if value is True:
        return f"_{parameter}"
    return f"_{value.removeprefix(f'{parameter}_')}" if isinstance(value, str) else f"_{parameter}_{value}"


def _paragraphs(doc: str) -> list[str]:
    """A docstring wrapped to lines, its paragraphs separated by empty ones."""
    paragraphs = (textwrap.wrap(" ".join(part.split()), DOC_WIDTH) for part in doc.split("\n\n"))
    first, *others = paragraphs
    return [*first, *(line for part in others for line in ("", *part))]
