"""Counts what the busiest CTA of a launch does from its kernel's text: products, uses, barriers and bytes.

The text of a variant is compiled once to a Python function of a call's sizes. The function contains only what
decides the counts: a loop whose iterations count alike becomes a multiplication, and no data is read. Where
data decide, every row is taken to be as long as the call allows: a leaf that sets what a body branches on
states its results for that case (`longest`), any other condition on data holds, and a loop that data end runs
once. A leaf states what it moves (`moves`).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..dtypes import DTYPES
from ..errors import DeclarationError
from ..expr import FUNCTIONS, names_in
from . import text as t
from .expressions import size_at
from .lang import Counts, Role, Schedule

if TYPE_CHECKING:
    from ..arch import ArchSpec
    from .program import TileProgram

# A loop of the counting function is cut off here; no call has so many tiles for one CTA.
MOST_TURNS = 1 << 20
# Names of values that differ between threads.
OF_THREAD = frozenset({"thread", "worker", "lane", "warp"})


def moves(
    loaded: Callable[..., float] | None = None, stored: Callable[..., float] | None = None
) -> Callable[[t.Leaf], t.Leaf]:
    """State how many bytes one call of a leaf moves between the CTA and memory outside of it.

    Args:
        loaded, stored: functions of some of the leaf's parameters, by name. A value is passed as its number,
            memory of the CTA as its size in bytes, and an operand as the value that its elements have in the
            longest call.
    """
    return lambda leaf: replace(leaf, loaded=loaded, stored=stored)


def longest(results: Callable[..., tuple[Any, ...]]) -> Callable[[t.Leaf], t.Leaf]:
    """State what a leaf sets if every row is as long as the call allows.

    Args:
        results: a function of some of the leaf's parameters, by name.
    """
    return lambda leaf: replace(leaf, longest=results)


Counted = Callable[[Mapping[str, int]], Counts]


def counts_of(program: TileProgram, knobs: Mapping[str, Any], arch: ArchSpec) -> Counted:
    """What the busiest CTA of a variant does, as a function of the sizes of a launch.

    Of the first and the last CTA that is the one with more uses of its busiest pipeline: where CTAs take
    items forwards and backwards in turn, the last ones get what is left over.
    """
    schedule = program.declare(SimpleNamespace(**knobs), arch)
    declared = program.declared_operands(knobs)
    operands = {spec.name: spec.longest for spec in declared}
    scalars = frozenset(spec.name for spec in program.problem.operands(program.form(knobs)) if not spec.shape)
    text = program.recorded(knobs, arch, schedule)
    parts: list[tuple[Callable[[Mapping[str, int]], dict[Any, float]], int]] = []
    differ = False
    for role in schedule.roles:
        statements = (*text.start, *text.roles[role.name], *text.end)
        for replica in range(role.replicas):
            reading = _Reading(schedule, role, replica, operands, scalars)
            function = reading.function(statements)
            differ = differ or schedule.axes[0] in reading.needed
            alike = "replica" not in reading.needed
            parts.append((function, role.replicas if alike else 1))
            if alike:
                break

    def of(dims: Mapping[str, int], cta: int) -> Counts:
        total: dict[tuple[str, str], float] = {}
        syncs = 0.0
        for function, replicas in parts:
            counted = function({**dims, _CTA: cta})
            syncs = max(syncs, counted.pop(_SYNCS, 0))
            for key, amount in counted.items():
                total[key] = total.get(key, 0) + amount * replicas
        flops = {key[1]: amount for key, amount in total.items() if key[0] == "flops" and amount}
        uses = max((amount for key, amount in total.items() if key[0] == "uses"), default=0)
        loaded, stored = total.get(_LOADED, 0), total.get(_STORED, 0)
        return Counts(loaded, stored, flops, max(1, uses), syncs, cta=cta)

    def counts(dims: Mapping[str, int]) -> Counts:
        first = of(dims, 0)
        if not differ:
            return first
        return max(first, of(dims, size_at(schedule.grid[0], dims) - 1), key=lambda each: each.uses)

    return counts


# The size that stands for a CTA's place along the first axis of the grid.
_CTA = "its place"
_LOADED, _STORED, _SYNCS = ("loaded", ""), ("stored", ""), ("syncs", "")


@dataclass
class _Reading:
    """Compiles the text of one replica of a role to Python.

    Attributes:
        operands: for each operand, the dim or number that its elements equal in the longest call.
        needed: names on which the counts depend.
        scalars: names of the problem's scalars.
        unknown: names whose value data or threads decide.
        assigned: names that the text sets.
        events: for each thing counted, the variable that counts it.
        scope: global names of the function.
        lines: its lines.
    """

    schedule: Schedule
    role: Role
    replica: int
    operands: Mapping[str, str]
    scalars: frozenset[str]
    needed: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=lambda: set(OF_THREAD))
    assigned: set[str] = field(default_factory=set)
    events: dict[tuple[str, str], str] = field(default_factory=dict)
    scope: dict[str, Any] = field(default_factory=lambda: {"least": min, "most": max, **FUNCTIONS})
    lines: list[str] = field(default_factory=list)

    def function(
        self, statements: tuple[t.Statement, ...]
    ) -> Callable[[Mapping[str, int]], dict[Any, float]]:
        self._learn(statements)
        self._write(statements, "1", 1)
        given = sorted(self.needed - self.assigned - self.unknown)
        head = [f"    v_{name} = {self._given(name)}" for name in given]
        head += [f"    {variable} = 0" for variable in self.events.values()]
        result = ", ".join(f"{key!r}: {variable}" for key, variable in self.events.items())
        exec("\n".join(["def counts(d):", *head, *self.lines, f"    return {{{result}}}"]), self.scope)
        function: Callable[[Mapping[str, int]], dict[Any, float]] = self.scope["counts"]
        return function

    def _given(self, name: str) -> str:
        if name in self.schedule.axes:
            return f"d[{_CTA!r}]" if name == self.schedule.axes[0] else "0"
        if name == "replica":
            return str(self.replica)
        # An integer scalar may select how a call is done without being one of its sizes: 0 then.
        return f"d.get({name!r}, 0)" if name in self.scalars else f"d[{name!r}]"

    # ------------------------------------------------------------------ what is needed

    def _learn(self, statements: Iterable[t.Statement]) -> None:
        """Find the names on which the counts depend, and those that only data or threads decide."""
        every = list(t.walk(statements))
        before = -1
        while before != len(self.unknown) + len(self.needed) + len(self.assigned):
            before = len(self.unknown) + len(self.needed) + len(self.assigned)
            for s in every:
                self._learn_names(s)
            self._need(statements)

    def _learn_names(self, s: t.Statement) -> None:
        told = isinstance(s, t.Call) and s.leaf.longest and self._passed(s, s.leaf.longest) is not None
        for name, value in s.sets().items():
            self.assigned.add(name)
            if not told and (value is None or self._code(value) is None):
                self.unknown.add(name)

    def _need(self, statements: Iterable[t.Statement]) -> bool:
        """Add the names that relevant statements need; whether any statement is relevant."""
        relevant = False
        for s in statements:
            within = [self._need(block) for block in s.blocks.values()]
            if any(within) if within else self._relevant(s):
                relevant = True
                self.needed |= self._names(s)
        return relevant

    def _relevant(self, s: t.Statement) -> bool:
        """Whether a statement without blocks is counted, or sets a name that is needed."""
        if not self.needed.isdisjoint(s.sets()):
            return True
        if isinstance(s, t.Call):
            return s.leaf.loaded is not None or s.leaf.stored is not None
        return bool(s.issues() or s.loads() or s.stores() or s.counts())

    def _names(self, s: t.Statement) -> set[str]:
        """The names that a relevant statement uses."""
        if isinstance(s, t.Call):
            sets = not self.needed.isdisjoint(s.sets())
            asked = [s.leaf.loaded, s.leaf.stored, *([s.leaf.longest] if sets else [])]
            return {name for of in asked if of is not None for name in t.names_of(self._arguments(s, of))}
        values: list[Any] = [*s.sets().values(), *(at for box, _ in s.stores() for at in box.at)]
        # Conditions and bounds decide whether, and how often, blocks run.
        values += vars(s).values() if s.blocks else ()
        return {name for value in values for name in t.names_of(_parts(value))}

    def _arguments(self, call: t.Call, of: Callable[..., Any]) -> list[Any]:
        """The arguments of a call that the function `of` takes, and the expressions within them."""
        names = [parameter.name for parameter in call.leaf.parameters]
        return [
            part
            for name in inspect.signature(of).parameters
            for part in _parts(call.arguments[names.index(name)])
        ]

    # ------------------------------------------------------------------ what is written

    def _code(self, value: Any) -> str | None:
        """Python source of a value; None if data or threads decide it."""
        if not isinstance(value, t.Expr):
            return repr(int(value)) if isinstance(value, int) and not isinstance(value, bool) else repr(value)
        if value.op == "name":
            return None if value.args[0] in self.unknown else f"v_{value.args[0]}"
        if value.op == "in_role":
            return repr(value.args[0] == self.role.name)
        if value.op == "word":
            memory = value.args[0]
            stated = isinstance(memory, t.Global) and self.operands.get(memory.name, "0") != "0"
            return self._argument(memory) if stated else None
        if (itself := t.without_anew(value)) is not value:
            return self._code(itself)
        if value.op not in t.EVALUATE:
            return None
        a, b = (self._code(arg) for arg in value.args)
        if value.op == "&" and value.dtype == "bool" and (a is None) != (b is None):
            # A condition on data is taken to hold.
            return a or b
        if a is None or b is None:
            return None
        if value.op in ("min", "max"):
            return f"{'least' if value.op == 'min' else 'most'}({a}, {b})"
        return f"(-(-{a} // {b}))" if value.op == "ceildiv" else f"({a} {value.op} {b})"

    def _write(self, statements: Iterable[t.Statement], times: str, depth: int) -> None:
        for s in statements:
            if isinstance(s, t.If):
                self._write_if(s, times, depth)
            elif isinstance(s, (t.Loop, t.Repeat)):
                if not self._any_relevant(s.body):
                    continue
                if isinstance(s, t.Loop):
                    self._write_loop(s, times, depth)
                else:
                    self._write_repeat(s, times, depth)
            elif s.blocks:
                for block in s.blocks.values():
                    self._write(block, times, depth)
            elif self._relevant(s):
                self._write_one(s, times, depth)

    def _say(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def _any_relevant(self, statements: Iterable[t.Statement]) -> bool:
        return any(self._relevant(s) for s in t.walk(statements) if not s.blocks)

    def _write_if(self, s: t.If, times: str, depth: int) -> None:
        condition = self._code(s.condition)
        if condition is None or condition == "True":
            self._write(s.body, times, depth)
            return
        first, second = self._any_relevant(s.body), self._any_relevant(s.orelse)
        if first:
            self._say(depth, f"if {condition}:")
            self._say(depth + 1, "pass")
            self._write(s.body, times, depth + 1)
        if second:
            self._say(depth, "else:" if first else f"if not {condition}:")
            self._write(s.orelse, times, depth + 1)

    def _write_loop(self, s: t.Loop, times: str, depth: int) -> None:
        begin, end = self._code(s.begin), self._code(s.end)
        if begin is None or end is None:
            self._say(depth, f"v_{s.index} = 0")
            self._write(s.body, times, depth)
        elif not self.needed.isdisjoint(_set_in([s])):
            self._say(depth, f"for v_{s.index} in range({begin}, {end}, {s.step}):")
            self._write(s.body, times, depth + 1)
        else:
            self._say(depth, f"n{depth} = -(({begin} - {end}) // {s.step})")
            self._say(depth, f"if n{depth} > 0:")
            self._say(depth + 1, f"m{depth} = {times} * n{depth}")
            self._write(s.body, f"m{depth}", depth + 1)

    def _write_repeat(self, s: t.Repeat, times: str, depth: int) -> None:
        condition = self._code(s.condition)
        if condition is None or not t.names_of(_parts(s.condition)) & _set_in(s.body):
            self._write(s.body, times, depth)
            return
        self._say(depth, f"for _ in range({MOST_TURNS}):")
        self._say(depth + 1, f"if not {condition}: break")
        self._write(s.body, times, depth + 1)

    def _write_one(self, s: t.Statement, times: str, depth: int) -> None:
        # A leaf's amounts depend on its arguments, so they are counted before its results are set.
        for key, amount in self._amounts(s):
            variable = self.events.setdefault(key, f"c{len(self.events)}")
            factor = "" if times == "1" else f"{times} * "
            self._say(depth, f"{variable} += {factor}{amount}")
        if isinstance(s, t.Call):
            self._write_results(s, depth)
            return
        for name, value in s.sets().items():
            if name not in self.unknown:
                self._say(depth, f"v_{name} = {self._code(value)}")

    def _write_results(self, s: t.Call, depth: int) -> None:
        names = [*s.sets()]
        if s.leaf.longest is None or not self.needed & set(names) - self.unknown:
            return
        targets = ", ".join(f"v_{name}" for name in names)
        self._say(depth, f"{targets}, = {self._called(s, s.leaf.longest)}")

    def _passed(self, call: t.Call, of: Callable[..., Any]) -> list[str] | None:
        """Python source of the arguments of a call that the function `of` takes; None if data decide one."""
        names, arguments = [parameter.name for parameter in call.leaf.parameters], []
        for name in inspect.signature(of).parameters:
            if name not in names:
                raise DeclarationError(
                    f"what leaf {call.leaf.name} is said to do",
                    expected=f"parameters of the leaf: {', '.join(names)}", got=name,
                    fix="name the function's parameters as the leaf's",
                )  # fmt: skip
            code = self._argument(call.arguments[names.index(name)])
            if code is None:
                return None
            arguments.append(code)
        return arguments

    def _argument(self, argument: Any) -> str | None:
        if isinstance(argument, t.View):
            return str(bytes_of(self.schedule, argument))
        if isinstance(argument, t.Global):
            stated = self.operands.get(argument.name, "0")
            return stated if stated.isdigit() else f"d[{stated!r}]"
        return self._code(argument)

    def _called(self, call: t.Call, of: Callable[..., Any]) -> str:
        name = f"f{len(self.scope)}"
        self.scope[name] = of
        return f"{name}({', '.join(self._passed(call, of) or [])})"

    # ------------------------------------------------------------------ what is counted

    def _amounts(self, s: t.Statement) -> list[tuple[tuple[str, str], str]]:
        """What a statement adds to, and Python source of how much."""
        if isinstance(s, t.Call):
            asked = ((_LOADED, s.leaf.loaded), (_STORED, s.leaf.stored))
            return [
                (key, self._called(s, of))
                for key, of in asked
                if of is not None and self._passed(s, of) is not None
            ]
        return [
            *((("flops", product.mma.dtype), str(product.mma.flops)) for product in s.issues()),
            *((_LOADED, str(bytes_of(self.schedule, target))) for _, target in s.loads()),
            *((_STORED, self._inside(box, view)) for box, view in s.stores()),
            *([(counted, "1")] if (counted := s.counts()) else []),
        ]

    def _inside(self, box: t.Box, view: t.View) -> str:
        """Python source of the bytes of a box inside its tensor; all of them where data decide its place."""
        tensor_map = next(m for m in self.schedule.maps if m.name == box.map)
        size = DTYPES[self.schedule.buffer(view.buffer).dtype].bytes
        parts = [str(size)]
        for at, extent, wide in zip(
            box.at, reversed(tensor_map.global_dims), reversed(tensor_map.box), strict=True
        ):
            place = self._code(at)
            inside = f"most(0, least({wide}, {_of_dims(extent)} - {place}))"
            parts.append(str(wide) if place is None else inside)
        return " * ".join(parts)


def bytes_of(schedule: Schedule, view: t.View) -> int:
    """Size in bytes of part of a buffer."""
    buffer = schedule.buffer(view.buffer)
    elements = buffer.stage_elements
    if view.rows is not None:
        elements = elements // buffer.shape[0] * view.rows
    if view.width is not None:
        elements = elements // buffer.shape[-1] * view.width
    return elements * DTYPES[buffer.dtype].bytes


def _of_dims(extent: str) -> str:
    """An expression over dims, as Python source over `d`, the dims of a call."""
    code = extent
    for name in names_in(extent):
        code = re.sub(rf"\b{name}\b", f"d[{name!r}]", code)
    return f"({code})"


def _parts(value: Any) -> list[Any]:
    """An expression and all expressions within it."""
    if not isinstance(value, t.Expr):
        return []
    return [value, *(part for arg in value.args for part in _parts(arg))]


def _set_in(statements: Iterable[t.Statement]) -> set[str]:
    """The names that statements set."""
    return {name for s in t.walk(statements) for name in s.sets()}
