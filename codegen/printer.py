"""Prints the text of a kernel in one DSL: the statements in their order, each as that DSL's `_spelling.j2` spells it.

Nothing here knows an operation, and nothing knows a DSL: what differs between two DSLs is in their macros. Barriers,
counts, parities, fences and the election of the thread that arrives come from the barrier plan.
"""

from __future__ import annotations

import ast
import math
import textwrap
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from dsl_kernels.dtypes import DTYPES
from dsl_kernels.errors import DeclarationError, TemplateError
from dsl_kernels.tile import leaf_text
from dsl_kernels.tile import text as t
from dsl_kernels.tile.lang import Buffer, Engine, Mma, Pipeline, Role, Schedule, Size, Space, spell
from dsl_kernels.tile.plan import Action, BarrierPlan, named_plans, turn_plans, words_of

INDENT = "    "
# As Python binds them: a comparison binds less tightly than `|`, and does not chain.
_TIGHTNESS: dict[str, float] = {
    "|": 2,
    "^": 2.5,
    "&": 3,
    "<<": 3.5,
    ">>": 3.5,
    "+": 4,
    "-": 4,
    "*": 5,
    "//": 5,
    "%": 5,
} | dict.fromkeys(t.COMPARISONS, 1)
_UNARY, _ATOM = 6, 9
DOC_WIDTH = 100


class Printer:
    """Lines of one kernel's text.

    Args:
        spelling: the macros of the DSL's `_spelling.j2`.
        leaf_module: name of a leaf -> the alias of the module that spells it.
        home: the same, or None where no module does: of a leaf that has a text then this is printed.
    """

    def __init__(
        self,
        schedule: Schedule,
        plan: BarrierPlan,
        spelling: Any,
        leaf_module: Any,
        home: Any = lambda name: None,
    ) -> None:
        self._schedule, self._plan, self._spelling, self._leaf_module = schedule, plan, spelling, leaf_module
        self._home = home
        self._role: Role | None = None
        self._in_flight: list[t.View] = []
        self._turns = turn_plans(schedule) if schedule else {}
        self._in_leaf = False
        self._explained: set[str] = set()
        # Named sizes that were spelled, for the module to define.
        self.sizes: dict[str, int] = {}
        # Leaves that were printed from their text: what is theirs -> the function's name; and all of these functions.
        self._functions: dict[tuple[str, ...], str] = {}
        self.functions: list[str] = []

    def lines(self, statements: Iterable[t.Statement], role: Role | None = None) -> list[str]:
        """The statements of a role, or of the kernel's start or end."""
        self._role, self._in_flight, self._explained = role, [], set()
        self._copies = {len(s.copies) for s in t.walk(statements) if isinstance(s, t.Store)}
        return [*self._opened_turns(), *self._block(statements)]

    def _opened_turns(self) -> Iterator[str]:
        """What the last member of an ordered hand-over does before anything else."""
        for name, plan in self._turns.items():
            role, replica = plan.members[-1]
            if self._role is None or self._role.name != role:
                continue
            several = self._role.replicas > 1
            opening = t.PassTurn(name, t.name("replica") if several else 0, opens=True)
            yield from self._block(
                [t.If(t.name("replica") == replica, [opening], [])] if several else [opening]
            )

    def spelled(self, number: float, outer: float = 0) -> str:
        """A number as the module writes it; `outer` is how tightly what stands around it binds."""
        if isinstance(number, Size):
            for name, value in number.names.items():
                if self.sizes.setdefault(name, value) != value:
                    raise DeclarationError(
                        f"size {name}", expected="one value in a kernel", got=f"{self.sizes[name]} and {value}",
                        fix="give one of the two another name, or none",
                    )  # fmt: skip
        return spell(number, outer)

    def _spell(self, macro: str, **values: Any) -> Iterator[str]:
        found = getattr(self._spelling, macro, None)
        if found is None:
            raise TemplateError(
                "_spelling.j2", expected=f"a macro {macro}", got="none", fix=f"spell {macro} for this DSL"
            )
        yield from (line for line in str(found(SimpleNamespace(**values))).split("\n") if line.strip())

    def _phrase(self, macro: str, **values: Any) -> str:
        return "\n".join(self._spell(macro, **values)).strip()

    def _block(self, statements: Iterable[t.Statement]) -> Iterator[str]:
        for statement in statements:
            yield from getattr(self, f"_{type(statement).__name__.lower()}")(statement)

    def _inner(self, statements: Iterable[t.Statement]) -> Iterator[str]:
        lines = list(self._block(statements)) or ["pass"]
        return (INDENT + line for line in lines)

    def _repeated(self, body: list[t.Statement]) -> Iterator[str]:
        """The body of a loop, at whose start the products may be in flight that its end leaves there."""
        if any(isinstance(s, t.Multiply) for s in t.walk(body)):
            before, explained = self._in_flight, set(self._explained)
            list(self._inner(body))
            self._in_flight = before + [view for view in self._in_flight if view not in before]
            self._explained = explained
        yield from self._inner(body)

    # Values

    def value(self, value: t.Value, outer: float = 0) -> str:
        """An expression as source text; `outer` is how tightly what stands around it binds."""
        value = t.fold(value, {})
        if isinstance(value, float) and math.isinf(value):
            return self._phrase("infinity", sign="-" if value < 0 else "")
        if not isinstance(value, t.Expr):
            return self.spelled(value, outer)
        if value.op == "name":
            return str(value.args[0])
        if value.op == "in_role":
            return self._phrase("in_role", role=self._schedule_role(value.args[0]))
        if value.op == "word":
            return self._word(value)
        if value.op in t.OF_THREADS:
            return self._of_threads(value, outer)
        a, b = value.args
        if value.op in ("min", "max", "ceildiv"):
            return self._phrase(value.op, a=self._beside(a, b), b=self._beside(b, a), dtype=value.dtype)
        if value.op in ("<", "<=", ">", ">=") and "uint32" in _dtypes(a, b):
            text = self._phrase("unsigned", op=value.op, a=self._beside(a, b, 2), b=self._beside(b, a, 2))
            return f"({text})" if outer > 1 else text
        if value.op in ("//", "%"):
            macro = "quotient" if value.op == "//" else "remainder"
            loose = {"dividend": self._beside(a, b), "divisor": self._beside(b, a)}
            coordinate = isinstance(a, t.Expr) and a.op == "name" and a.args[0] in self._schedule.axes
            text = self._phrase(
                macro, a=self._beside(a, b, 5), b=self._beside(b, a, 6), coordinate=coordinate, **loose
            )
            tightness: float = _ATOM if isinstance(ast.parse(text, mode="eval").body, ast.Call) else 5
        else:
            tightness = _TIGHTNESS[value.op]
            left = tightness + (value.op in t.COMPARISONS)
            text = f"{self._beside(a, b, left)} {value.op} {self._beside(b, a, tightness + 1)}"
        return f"({text})" if tightness < outer else text

    def _beside(self, value: t.Value, other: t.Value, outer: float = 0) -> str:
        """An operand; a number takes the dtype of the expression beside it."""
        dtype = other.dtype if isinstance(other, t.Expr) else "int32"
        if self._in_leaf and dtype in ("uint32", "int64") and not isinstance(value, t.Expr):
            return self._phrase("constant", dtype=dtype, number=int(value), value=self.spelled(value))
        return self.value(value, outer)

    def _of_threads(self, value: t.Expr, outer: float) -> str:
        """What only the text of a leaf has."""
        if value.op == "~":
            text = f"~{self.value(value.args[0], _UNARY)}"
            return f"({text})" if outer > _UNARY else text
        if value.op == "to":
            return self._phrase("to", value=self.value(value.args[0], _ATOM), dtype=value.dtype)
        if value.op == "select":
            condition, a, b = value.args
            return self._phrase(
                "select", condition=self.value(condition), a=self._beside(a, b), b=self._beside(b, a)
            )
        if value.op == "apply":
            function, *arguments = value.args
            listed = ", ".join(map(self._argument, arguments))
            return f"{self._leaf_module(function.name)}.{function.name}({listed})"
        if value.op == "group":
            array, size, *at = value.args
            return self._phrase("group_place", **self._group_in(array, at, size))
        array, *at = value.args
        place = value.dtype == leaf_text.ADDRESS
        return self._phrase("place" if place else "element", **self._place_in(array, at, 5 if place else 0))

    def _word(self, value: t.Expr) -> str:
        memory, index = value.args
        array = leaf_text.memory_of(self._argument(memory), memory, self._schedule, leaf_text.LeafRecorder())
        text = self._phrase("element", **self._place_in(array, (index,)))
        return text if array.dtype == value.dtype else self._phrase("to", value=text, dtype=value.dtype)

    def _place_in(self, array: leaf_text.Array, at: Iterable[t.Value], outer: float = 0) -> dict[str, Any]:
        """What macros see of an element: its index in what is named, and by row and column in what that is a part of."""
        matrix, rows, first = array.line or (array, (), 0)
        *own, last = at
        if own and array.swizzle:
            raise DeclarationError(
                f"{array.name}[row, column] in the text of a leaf", expected="rows that are not swizzled", got=f"a swizzle of {array.swizzle} bytes",
                fix="read or write groups of elements",
            )  # fmt: skip
        index = _sum(own[0] * array.shape[1], last) if own else last
        unsigned = isinstance(last, t.Expr) and last.dtype == "uint32"
        return {
            "name": array.name, "index": self.value(index, outer), "wide": array.wide, "matrix": matrix.name, "first": self.value(first, 4),
            "rows": [self.value(row) for row in (*rows, *own)], "column": self.value(last, outer), "unsigned": unsigned, "staged": array.staged,
        }  # fmt: skip

    def _schedule_role(self, name: str) -> SimpleNamespace:
        return role_facts(self._schedule, self._schedule.role(name))

    def _argument(self, argument: Any) -> str:
        if isinstance(argument, t.View):
            return self._view(argument)
        if isinstance(argument, t.Global):
            return self._phrase("operand", name=argument.name, pitch=argument.pitch)
        if isinstance(argument, t.Cluster):
            return argument.buffer
        if isinstance(argument, leaf_text.Array):
            return self._phrase(
                "array", name=argument.name, staged=argument.staged, pitched=argument.pitch is not None
            )
        if isinstance(argument, t.Sender):
            pipe = argument.slot.pipeline
            return self._words(pipe, 0) if pipe.fill is Engine.GRID else self._barrier(argument.slot, "full")
        return self.value(argument)

    def _facts(self, view: t.View) -> SimpleNamespace:
        """What macros see of a view: the buffer, the stage, the first row and how many rows."""
        buffer = self._schedule.buffer(view.buffer)
        rows = view.rows or buffer.shape[0]
        first = view.first
        return SimpleNamespace(
            buffer=buffer, name=buffer.name, slot=self._stage(view, buffer),
            first=self.value(first), end=self.value(first + rows), whole=view.rows in (None, buffer.shape[0]),
            column=self.value(view.column, 4), column_end=self.value(_sum(view.column, view.width)) if view.width else None,
            columns=self.spelled(buffer.shape[-1]), place=self.value(self._place(view, buffer), 5),
            threads=self._schedule.role(buffer.role).warps * 32 if buffer.role else None,
        )  # fmt: skip

    def _place(self, view: t.View, buffer: Buffer) -> t.Value:
        """Element of the buffer, over all stages, at which a view begins; of tensor memory the column."""
        stage: t.Value = 0
        tensor = buffer.space is Space.TENSOR
        if view.use is not None and buffer.stages > 1:
            stage = t.Expr("%", (view.use, buffer.stages)) * (
                buffer.columns if tensor else buffer.stage_elements
            )
        if tensor:
            return _sum(_sum(self._schedule.tensor_offset(buffer.name), stage), view.column)
        each = math.prod(buffer.shape[1:])
        if view.width is not None and buffer.swizzle:
            # Rows of a swizzled buffer are as wide as the swizzle, one such panel behind the other.
            each = buffer.swizzle // DTYPES[buffer.dtype].bytes
            stage = _sum(stage, view.column * buffer.shape[0])
        return _sum(stage, view.first if each == 1 else view.first * each)

    def _stage(self, view: t.View, buffer: Buffer) -> str | None:
        if view.use is None:
            return None
        return self._ring(view.use, buffer.stages)

    def _ring(self, use: t.Value, stages: int) -> str:
        """Index of the ring slot of a use; written plainly, as uses are never negative."""
        return "0" if stages == 1 else f"{self.value(use, 5)} % {self.spelled(stages, 6)}"

    def _view(self, view: t.View) -> str:
        buffer = self._schedule.buffer(view.buffer)
        return self._phrase("view", **vars(self._facts(view)), space=buffer.space.value)

    # Statements

    def _let(self, s: t.Let) -> Iterator[str]:
        yield f"{s.name} = {self.value(s.value)}"

    def _variable(self, s: t.Variable) -> Iterator[str]:
        yield from self._spell("variable", name=s.name, dtype=s.dtype, value=self.value(s.initial))

    def _assign(self, s: t.Assign) -> Iterator[str]:
        yield from self._spell(
            "assign",
            name=s.name,
            value=self.value(s.value),
            constant=not isinstance(s.value, t.Expr),
            dtype=s.dtype,
        )

    def _comment(self, s: t.Comment) -> Iterator[str]:
        yield f"# {s.text}"

    def _loop(self, s: t.Loop) -> Iterator[str]:
        yield from self._spell(
            "loop", index=s.index, begin=self.value(s.begin), end=self.value(s.end), step=s.step, by=self.spelled(s.step),
            unrolled=s.unrolled, from_zero=s.begin == 0 if not isinstance(s.begin, t.Expr) else False, leaf=self._in_leaf, at_once=s.at_once,
        )  # fmt: skip
        yield from self._repeated(s.body)

    def _repeat(self, s: t.Repeat) -> Iterator[str]:
        yield f"while {self.value(s.condition)}:"
        yield from self._repeated(s.body)

    def _if(self, s: t.If) -> Iterator[str]:
        yield f"if {self.value(s.condition)}:"
        yield from self._inner(s.body)
        if s.orelse:
            yield "else:"
            yield from self._inner(s.orelse)

    def _region(self, s: t.Region) -> Iterator[str]:
        yield from self._block(s.body)

    def _call(self, s: t.Call) -> Iterator[str]:
        if s.leaf.text is not None and self._home(s.leaf.name) is None:
            yield from self._call_text(s)
            return
        if s.leaf.doc and s.leaf.name not in self._explained:
            self._explained.add(s.leaf.name)
            yield "# " + " ".join(s.leaf.doc.split("\n\n")[0].split())
        yield from self._spell(
            "call",
            module=self._leaf_module(s.leaf.name),
            name=s.leaf.name,
            all=[self._argument(argument) for argument in s.arguments],
            inputs=[self._argument(s.arguments[i]) for i in s.leaf.inputs],
            results=[self._argument(s.arguments[i]) for i in s.leaf.results],
        )

    def _call_text(self, s: t.Call) -> Iterator[str]:
        text = leaf_text.text_of(s.leaf, s.arguments, self._schedule)
        passed = [(f, self._argument(a)) for f, a in zip(text.parameters, s.arguments, strict=True) if f]
        yield from self._spell(
            "call_text", name=self._function(s.leaf, text), all=[a for _, a in passed], inputs=[a for f, a in passed if not f.fresh],
            results=[self._argument(s.arguments[i]) for i in s.leaf.results],
        )  # fmt: skip

    def _function(self, leaf: t.Leaf, text: leaf_text.LeafText) -> str:
        """The name of the function that is this text, which is printed when it comes up first."""
        before, self._in_leaf, self._explained = (self._in_leaf, self._explained), True, set()
        body = list(self._block(text.statements))
        self._in_leaf, self._explained = before
        key = (leaf.name, *(f.name if f else "" for f in text.parameters), *body)
        if key not in self._functions:
            others = sum(k[0] == leaf.name for k in self._functions)
            self._functions[key] = leaf.name + (f"_{others + 1}" if others else "")
            parameters = [f for f in text.parameters if f]
            sure = {s.name for s in text.statements if isinstance(s, t.Assign)}
            facts = SimpleNamespace(
                name=self._functions[key], parameters=parameters, doc=_paragraphs(leaf.doc), body=body,
                unset=[f for f in parameters if f.fresh and f.name not in sure],
                results=[parameters[i].name for i in _where(text.parameters, leaf.results)],
            )  # fmt: skip
            self.functions.append(str(self._spelling.function(facts)).strip())
        return self._functions[key]

    def _put(self, s: leaf_text.Put) -> Iterator[str]:
        place = self._phrase("element", **self._place_in(s.array, s.index))
        constant = not isinstance(s.value, t.Expr)
        yield from self._spell(
            "put", place=place, value=self.value(s.value), constant=constant, dtype=s.array.dtype
        )

    def _vector(self, s: leaf_text.Vector) -> Iterator[str]:
        registers = s.registers
        yield from self._spell(
            "vector", store=s.store, registers=registers.name, from_register=self.value(registers.first, 4),
            **self._group_in(s.array, s.group, registers.size),
        )  # fmt: skip

    def _group_in(self, array: leaf_text.Array, at: Iterable[t.Value], size: int) -> dict[str, Any]:
        """What macros see of a group of elements: its number, or the row and column at which it begins."""
        whole, rows, first = array.line or (array, (), 0)
        *own, last = at
        return {
            "size": self.spelled(size), "group": None if own else self.value(last), "name": array.name, "matrix": whole.name,
            "first": self.value(first), "rows": [self.value(row) for row in (*rows, *own)], "column": self.value(last, 4), "staged": array.staged,
            "shape": [self.spelled(extent) for extent in array.shape], "swizzle": array.swizzle,
        }  # fmt: skip

    def _line(self, s: leaf_text.Line) -> Iterator[str]:
        row: t.Value = 0
        for i, index in enumerate(s.rows):
            row = _sum(row * s.pitches[i - 1], index) if i else index
        yield from self._spell(
            "line", name=s.name, array=s.array.name, row=self.value(row, 0 if s.wide else 5) if s.rows else None,
            pitch=self.value(s.pitches[-1], 6) if s.rows else "", first=self.value(s.first, 5), wide=s.wide,
        )  # fmt: skip

    def _local(self, s: leaf_text.Local) -> Iterator[str]:
        yield from self._spell(
            "local", name=s.array.name, size=self.spelled(s.array.size), dtype=s.array.dtype
        )

    def _do(self, s: leaf_text.Do) -> Iterator[str]:
        yield self.value(s.value)

    def _bulk(self, s: t.Bulk) -> Iterator[str]:
        target, barrier = self._facts(s.target), self._barrier(s.slot, "full")
        if isinstance(s.source, t.Box):
            pipe, ctas = s.slot.pipeline, self._schedule.cluster_ctas if s.multicast else 1
            yield from self._spell(
                "cluster_box" if pipe.multicast or pipe.pair else "copy_box", **self._box(s.source), target=target, barrier=barrier,
                evict_first=s.evict_first, ctas=ctas, pair=pipe.pair, full=f"{pipe.name}_full", full_slot=self._ring(s.slot.use, pipe.stages),
            )  # fmt: skip
        elif isinstance(s.source, t.Rows):
            tensor_map = next(m for m in self._schedule.maps if m.name == s.source.map)
            yield from self._spell(
                "copy_rows", map=tensor_map, rows=self._view(s.source.rows), column=self.value(s.source.column), target=target,
                full=f"{s.slot.pipeline.name}_full", barrier=barrier,
            )  # fmt: skip
        else:
            span = s.source
            yield from self._spell(
                "copy_span", source=span, row=self.value(span.row), pitch=self.spelled(span.pitch), column=self.spelled(span.column),
                count=self.spelled(span.count), end=self.spelled(span.column + span.count), target=target, barrier=barrier,
                evict_first=s.evict_first,
            )  # fmt: skip

    def _multiply(self, s: t.Multiply) -> Iterator[str]:
        """Products of one group: what opens it, one spelling each, what closes it."""
        unit = s.products[0].mma.unit
        for p in s.products:
            if p.mma.doc:
                yield f"# {p.mma.doc}"
        accs = [self._facts(view) for view in {p.acc.buffer: p.acc for p in s.products}.values()]
        own = {"own_registers": unit == "wgmma" and self._home("OWN_REGISTERS") is not None}
        for p in s.products:
            if own["own_registers"] and any(view.width is not None for view in (p.a, p.b)):
                raise TemplateError(
                    f"product {p.mma.name}", expected="whole rows of its operands, where a DSL's threads hold tiles by themselves",
                    got="a view of some of their columns", fix="make those columns a buffer, or spell them in this DSL's _spelling.j2",
                )  # fmt: skip
        yield from self._spell(f"open_{unit}", accs=accs, **own)
        for p in s.products:
            if unit == "wgmma":
                self._in_flight.append(p.acc)
            facts = {name: self._facts(view) for name, view in (("acc", p.acc), ("a", p.a), ("b", p.b))}
            mma = mma_facts(self._schedule, p.mma)
            mma.rows, mma.columns, mma.depth = self.spelled(mma.m), self.spelled(mma.n), self.spelled(mma.k)
            yield from self._spell(
                f"multiply_{unit}", mma=mma, accumulate=self.value(p.accumulate), **facts, **own,
                a_tile=self._tile(p.a, mma.rows_a, mma.columns_a, mma.a_major) if mma.a_shared else None,
                b_tile=self._tile(p.b, mma.rows_b, mma.columns_b, mma.b_major),
            )  # fmt: skip
        yield from self._spell(f"close_{unit}", accs=accs, **own)

    def _tile(self, view: t.View, rows: int, columns: int, major: str) -> SimpleNamespace:
        """The stage of a product's operand, and the number of the tile of `rows` by `columns` at which its view begins.

        Columns of a K-major operand are its depth: tiles lie behind one another along K.
        """
        buffer = self._schedule.buffer(view.buffer)
        tile = _divided(view.first, rows) if view.width is None else _divided(view.column, columns)
        stage = self._stage(view, buffer) or "0"
        flat: t.Value = tile
        if buffer.stages > 1 and view.use is not None:
            each = buffer.shape[0] // rows if view.width is None else buffer.shape[1] // columns
            at = t.Expr("%", (view.use, buffer.stages))
            flat = _sum(at * each if each > 1 else at, tile)
        row, depth = (0, tile) if major == "k" and view.width is not None else (tile, 0)
        return SimpleNamespace(
            stage=stage, row=self.value(row, 4), depth=self.value(depth), flat=self.value(flat, 4)
        )

    def _awaitproducts(self, s: t.AwaitProducts) -> Iterator[str]:
        yield from self._products_done(s.pending)

    def _products_done(self, pending: int) -> Iterator[str]:
        done = self._in_flight if pending == 0 else self._in_flight[:-pending]
        accs = [self._facts(view) for view in {view.buffer: view for view in done}.values()]
        self._in_flight = self._in_flight[len(done) :]
        yield from self._spell("wait_products", pending=pending, accs=accs)

    def _fill(self, s: t.Fill) -> Iterator[str]:
        yield from self._spell("fill", name=self._view(s.target), value=s.value)

    def _named(self, name: str, replica: t.Value = 0) -> dict[str, Any]:
        """Number and threads of a named barrier; 0 is that of all threads."""
        if not name:
            return {"id": 0, "number": "0", "threads": str(int(self._schedule.threads))}
        plan = named_plans(self._schedule)[name]
        number = Size(plan.number, f"{name.upper()}_BARRIER")
        return {
            "id": plan.number,
            "number": self.value(_sum(replica, number)),
            "threads": self.spelled(plan.threads),
        }

    def _meet(self, s: t.Meet | t.Publish | t.Store) -> Iterator[str]:
        yield from self._spell("meet", **self._named(s.name, s.replica))

    def _publish(self, s: t.Publish | t.Store) -> Iterator[str]:
        yield from self._spell(Action.FENCE_PROXY.value)
        yield from self._meet(s)

    def _store(self, s: t.Store) -> Iterator[str]:
        yield from self._publish(s)
        yield from self._spell("first_warp", **self._first_warp(s.replica))
        for box, view in s.copies:
            copy = self._spell("store_box", **self._box(box), source=self._facts(view))
            yield from (INDENT + line for line in copy)
        yield from (INDENT + line for line in self._spell("close_stores"))

    def _awaitstores(self, s: t.AwaitStores) -> Iterator[str]:
        yield from self._spell("first_warp", **self._first_warp(s.replica))
        yield from (
            INDENT + line for line in self._spell("wait_stores", pending=s.pending, copies=self._stores_of(s))
        )
        if s.name is not None:
            yield from self._spell("meet", **self._named(s.name, s.replica))

    def _stores_of(self, s: t.AwaitStores) -> int:
        """How many stores the pending groups hold, for a DSL that commits each by itself."""
        if s.pending and len(self._copies) != 1:
            raise DeclarationError(
                f"stores of {self._role.name if self._role else 'the start'}",
                expected="groups of as many copies each, where some are left pending",
                got=", ".join(map(str, sorted(self._copies))) or "none",
                fix="await all of them, or store as many boxes each time",
            )
        return s.pending * min(self._copies, default=0)

    def _first_warp(self, replica: t.Value) -> dict[str, Any]:
        """The warp of this role (of one replica) that issues its stores: the bulk groups are its own."""
        first, threads = 0, 0
        if self._role is not None:
            facts = role_facts(self._schedule, self._role)
            first, threads = facts.first, facts.threads
        begin = _sum(replica * threads if isinstance(replica, t.Expr) else 0, first)
        warp = _sum(replica * (threads // 32) if isinstance(replica, t.Expr) else 0, first // 32)
        return {"warp": self.value(warp), "end": self.value(_sum(begin, 32))}

    def _box(self, box: t.Box) -> dict[str, Any]:
        """What macros see of a box: its tensor map, its coordinates and its ranges, outermost first."""
        tensor_map = next(m for m in self._schedule.maps if m.name == box.map)
        extents = tuple(reversed(tensor_map.box))
        at = [self.value(place) for place in box.at]
        ranges = [
            f"{first} : {self.value(p + size)}" for first, p, size in zip(at, box.at, extents, strict=True)
        ]
        return {
            "map": tensor_map,
            "at": at,
            "ranges": ranges,
            "box": [self.spelled(size) for size in extents],
        }

    def _clusterarrive(self, s: t.ClusterArrive) -> Iterator[str]:
        yield from self._spell("cluster_arrive", relaxed=s.relaxed)

    def _clusterwait(self, s: t.ClusterWait) -> Iterator[str]:
        yield from self._spell("cluster_wait")

    def _taketicket(self, s: t.TakeTicket) -> Iterator[str]:
        yield from self._spell(
            "take_ticket", last=s.last, buffer=s.buffer, total=self.value(s.total), **self._counted(s)
        )

    def _countin(self, s: t.CountIn) -> Iterator[str]:
        yield from self._spell("count_in", **self._counted(s))

    def _awaitcount(self, s: t.AwaitCount) -> Iterator[str]:
        yield from self._spell("await_count", total=self.value(s.total), **self._counted(s))

    def _countout(self, s: t.CountOut) -> Iterator[str]:
        yield from self._spell("count_out", total=self.value(s.total), **self._counted(s))

    def _counted(self, s: t.TakeTicket | t.CountIn | t.AwaitCount | t.CountOut) -> dict[str, Any]:
        """The counter, and whether this role's first thread counts."""
        first = self._schedule.named_barriers[s.name][0]
        counts = self._role is not None and self._role.name == first
        return {
            "counter": s.counter,
            "index": self.value(s.index, 4),
            "counts": counts,
            **self._named(s.name),
        }

    def _taketurn(self, s: t.TakeTurn) -> Iterator[str]:
        yield from self._turn("take_turn", s, 0)

    def _passturn(self, s: t.PassTurn) -> Iterator[str]:
        yield from self._turn("pass_turn", s, 1)

    def _turn(self, macro: str, s: t.TakeTurn | t.PassTurn, ahead: int) -> Iterator[str]:
        plan = self._turns[s.name]
        place = _sum(s.replica, plan.place(self._role.name if self._role else "") + ahead)
        number = _sum(t.Expr("%", (place, len(plan.members))) if ahead else place, plan.first)
        yield from self._spell(macro, id=self.value(number), threads=plan.threads)

    def _depend(self, s: t.Depend) -> Iterator[str]:
        yield from self._spell("depend", launch=s.launch)

    def _launchdependents(self, s: t.LaunchDependents) -> Iterator[str]:
        yield from self._spell("launch_dependents")

    def _barriersstand(self, s: t.BarriersStand) -> Iterator[str]:
        barriers = [
            SimpleNamespace(name=b.name, stages=self.spelled(b.stages), count=self.spelled(b.count))
            for b in self._plan.barriers
        ]
        yield from self._spell("barriers_stand", barriers=barriers, schedule=self._schedule)
        if self._schedule.multicasts:
            # No CTA may send before the barriers of the others stand.
            yield from self._spell("meet_cluster")

    def _teardown(self, s: t.TearDown) -> Iterator[str]:
        yield "# Tensor memory goes back only when no role can touch it any more."
        yield from self._spell("tear_down", schedule=self._schedule)

    def _words(self, pipe: Pipeline, cta: t.Value) -> str:
        """Where the words begin that CTAs of the grid send to one of them."""
        total, first = words_of(self._schedule, pipe.through)
        place = _sum(cta * total if isinstance(cta, t.Expr) else cta * int(total), first[pipe.name])
        return f"{pipe.through} + {self.value(place, 4)}" if not _is_zero(place) else pipe.through

    def _barrier(self, slot: t.Slot, side: str) -> str:
        return self._phrase(
            "barrier", name=f"{slot.pipeline.name}_{side}", slot=self._ring(slot.use, slot.pipeline.stages)
        )

    def _pipelineop(self, s: t.PipelineOp) -> Iterator[str]:
        pipe, kind = s.slot.pipeline, s.kind
        plan, role = self._plan.pipelines[pipe.name], s.slot.role
        if kind in ("acquire", "commit"):
            actions = plan.acquire if kind == "acquire" else plan.commit
        else:
            actions = (plan.wait if kind == "wait" else plan.release)[role]
        if pipe.fill is Engine.BULK:
            # A DSL announces the bytes of a bulk fill before its copies, or arrives behind them.
            first = bool(self._spelling.announces_first) or pipe.multicast or pipe.pair
            expect = Action.EXPECT_TX_PAIR if pipe.pair else Action.EXPECT_TX
            announce = (expect,) if (kind == "acquire") == first else ()
            actions = tuple(a for a in actions if a is not expect)
            actions = actions + announce if kind in ("acquire", "commit") else actions
        turn = s.slot.use if pipe.stages == 1 else None
        phase = (
            self.value(turn, 5)
            if turn is not None
            else f"({self.value(s.slot.use, 5)} // {self.spelled(pipe.stages, 6)})"
        )
        full_parity = "0" if pipe.rounds == "once" else f"{phase} & 1"
        values = {
            "full": self._barrier(s.slot, "full"), "empty": self._barrier(s.slot, "empty"), "full_parity": full_parity,
            "empty_parity": f"({phase} & 1) ^ 1", "elect": Action.ELECT in actions,
            "lone_warp": (self._role.active or self._role.warps) == 1 if self._role else True,
            "name": pipe.name, "slot": self._ring(s.slot.use, pipe.stages), "multicast": pipe.multicast, "ctas": self._schedule.cluster_ctas,
            "tx": self.value(s.bytes if s.bytes is not None else plan.full.tx_bytes if plan.full else 0),
        }  # fmt: skip
        if Action.WAIT_WORDS in actions and s.at is not None:
            buffer = self._schedule.buffer(pipe.buffers[0])
            values |= {
                "buffer": buffer.name, "words": self._words(pipe, s.at), "count": self.spelled(buffer.stage_elements),
                "role_threads": self.spelled(self._schedule.role(role).threads), **self._named(pipe.meets),
            }  # fmt: skip
        if Action.EXPECT_TX_WARP in actions and plan.full:
            # Each arrival announces an equal part, as a number: spelled by its sizes it would be longer than a line.
            values["tx"] = self.value(int(plan.full.tx_bytes) // plan.full.count)
        for action in actions:
            if action is Action.WAIT_WGMMA:
                yield from self._products_done(s.pending)
            elif action is not Action.ELECT:
                yield from self._spell(action.value, **values)
        if not actions and kind != "commit":
            # The reader of the kernel looks for this action.
            yield f"# {pipe.name}: " + (
                f"{pipe.returned_by} also gives its slot back"
                if pipe.returned_by
                else "filled once, so its slot is free"
            )


def _paragraphs(doc: str) -> list[str]:
    """The lines of a docstring."""
    paragraphs = (textwrap.wrap(" ".join(part.split()), DOC_WIDTH) for part in doc.split("\n\n"))
    first, *others = paragraphs
    return [*first, *(line for part in others for line in ("", *part))]


def _dtypes(*values: t.Value) -> set[str]:
    return {value.dtype for value in values if isinstance(value, t.Expr)}


def _where(parameters: tuple[leaf_text.Formal | None, ...], positions: tuple[int, ...]) -> Iterator[int]:
    """Where the parameters at these positions are among those that are passed."""
    return (sum(f is not None for f in parameters[:i]) for i in positions)


def _sum(a: t.Value, b: t.Value) -> t.Value:
    """a + b, without zeros."""
    if _is_zero(a):
        return b
    return a if _is_zero(b) else a + b


def _is_zero(value: t.Value) -> bool:
    return not isinstance(value, t.Expr) and value == 0


def _divided(value: t.Value, by: int) -> t.Value:
    """value / by, where that is a whole number whatever the names in it are."""
    if not isinstance(value, t.Expr):
        if value % by == 0:
            return value // by
    elif value.op in ("+", "-"):
        left, right = (_divided(arg, by) for arg in value.args)
        return left + right if value.op == "+" else left - right
    elif value.op == "*":
        a, b = value.args
        if not isinstance(b, t.Expr) and b % by == 0:
            return a if b == by else a * (b // by)
    raise TemplateError(
        "a product's operand", expected=f"a first row that is a multiple of {by}", got=str(value), fix="multiply an index by the rows of a tile"
    )  # fmt: skip


# ptxas wants the accumulators of an instruction, its A and its addresses within what a thread has at launch, whatever
# setmaxnreg gives it later.
LAUNCH_REGISTERS, BESIDE_ACCUMULATORS = 65536, 32


def _issued_n(schedule: Schedule, n: int) -> int:
    """Columns of one wgmma, of those of a product."""
    while n // 2 + BESIDE_ACCUMULATORS > LAUNCH_REGISTERS // schedule.threads and n % 16 == 0:
        n //= 2
    return n


def mma_facts(schedule: Schedule, mma: Mma) -> SimpleNamespace:
    """What templates and macros see of a tensor-core operation: it, and what one warpgroup takes of it."""
    role = schedule.role(mma.role)
    groups = role.warps // 4 if mma.unit == "wgmma" else 1
    m, n = mma.m // groups, mma.n
    own_m, own_n = m // mma.cta_group, n // mma.cta_group
    first = int(schedule.first_thread(role.name)) // 32
    which = f"(warp - {first}) // 4" if first else "warp // 4"
    if role.replicas > 1:
        which += f" % {groups}"
    return SimpleNamespace(
        **{**vars(mma), "m": m, "n": n}, issued_n=_issued_n(schedule, n) if mma.unit == "wgmma" else n, whole=mma, groups=groups, which=which if groups > 1 else None,
        rows_a=own_m if mma.a_major == "k" else mma.k, rows_b=own_n if mma.b_major == "k" else mma.k,
        columns_a=mma.k if mma.a_major == "k" else own_m, columns_b=mma.k if mma.b_major == "k" else own_n,
        a_shared=mma.a_space is Space.SHARED,
        home=mma.unit + (f"_{mma.a_space.value}" if mma.a_space is not Space.SHARED else "_pair" if mma.cta_group == 2 else ""),
    )  # fmt: skip


def role_facts(schedule: Schedule, role: Role) -> SimpleNamespace:
    """What templates and macros see of a role: its threads and warps, and those that work."""
    # Where a role's threads lie is written in figures: a sum over all roles before it would say less.
    first, threads = int(schedule.first_thread(role.name)), int(role.threads)
    active = role.active or role.warps
    budget = role.registers or 0
    return SimpleNamespace(
        name=role.name, doc=role.doc, warps=int(role.warps), threads=threads // role.replicas, replicas=role.replicas, first=first,
        end=first + threads, first_warp=first // 32, end_warp=(first + threads) // 32, registers=role.registers,
        raises=budget * schedule.threads * schedule.ctas_per_sm > 65536, active=active, idle=active < role.warps,
    )  # fmt: skip
