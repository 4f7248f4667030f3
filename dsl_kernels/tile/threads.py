"""Runs the texts of leaves in torch, for all threads of a role at once; the interpreter uses it.

A value is a number, if all threads have the same, or a tensor over the threads. A branch or loop masks the
threads that do not take part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .._torch import torch
from ..errors import DeclarationError, ScheduleError
from . import text as t
from .addresses import Peered, PeerPlace, Place, elements
from .arithmetic import FLOATS, is_wide, number, wide
from .fragments import elements_of_registers
from .lang import Schedule, Space
from .leaf_text import (
    ADDRESS,
    WARP,
    Array,
    Do,
    LeafRecorder,
    LeafText,
    Line,
    Local,
    Put,
    Vector,
    memory_of,
    text_of,
)
from .text import Expr, Value
from .worked_out import Meaning, Spelling


def _begin(name: str) -> str:
    """The key, in the scope of threads, of the element at which part of an array begins."""
    return f"begin of {name}"


@dataclass(frozen=True)
class Inboxes:
    """The same slot in every CTA of the group, and the function that counts bytes arriving at one of them."""

    memory: list[torch.Tensor]
    count: Callable[[int, int], None]

    @property
    def columns(self) -> int:
        """The stride of rows, in elements."""
        return int(self.memory[0].stride(0))

    def put(self, rank: int, index: torch.Tensor, values: torch.Tensor) -> None:
        """Store elements into the slot of a CTA."""
        memory = elements(self.memory[rank])
        memory[index] = values.to(memory.dtype)
        self.count(rank, values.numel() * memory.element_size())


class Texts:
    """Caches the texts of leaves, each recorded once for each call in a kernel."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Any, LeafText, Step]] = {}

    def of(
        self, leaf: t.Leaf, arguments: tuple[Any, ...], schedule: Schedule | None = None
    ) -> tuple[LeafText, Step]:
        """`text_of` the leaf, and its step; a call is identified by its tuple of arguments."""
        key = id(leaf), id(arguments)
        if key not in self._known:
            text = text_of(leaf, arguments, schedule)
            self._known[key] = (leaf, arguments), text, _block(text.statements)
        return self._known[key][1:]


Active = tuple[Any, bool, bool, Any]


class Threads:
    """All threads of a role in a call of a leaf.

    Attributes:
        scope: values by name.
        active: which threads execute the current statement.
        some, all: whether any thread does, and whether every thread does.
        taken: `active`, or None if every thread does.
        texts: the cache of leaf texts.
    """

    def __init__(self, count: int, scope: dict[str, Any], texts: Texts) -> None:
        self.count, self.scope, self.texts = count, scope, texts
        self.active = torch.ones(count, dtype=torch.bool)

    @property
    def active(self) -> torch.Tensor:
        return self._active

    @active.setter
    def active(self, active: torch.Tensor) -> None:
        self._active, taken = active, int(active.sum())
        self.some, self.all = taken > 0, taken == self.count
        self.taken = None if self.all else active

    def restrict(self, taken: torch.Tensor) -> Active:
        """Go on with only those active threads that are `taken`; `restore` takes the result."""
        before = self._active, self.some, self.all, self.taken
        self.active = self._active & taken
        return before

    def restore(self, before: Active) -> None:
        """Undo a `restrict`."""
        self._active, self.some, self.all, self.taken = before

    def spread(self, value: Any) -> torch.Tensor:
        """A value for each thread, from one for all, for each warp, or for each lane."""
        if isinstance(value, torch.Tensor) and value.shape == (self.count,) and is_wide(value.dtype):
            return value
        value = number(value)
        if value.numel() == self.count // WARP and value.dim():
            value = value.reshape(-1).repeat_interleave(WARP)
        elif value.numel() == WARP and value.dim():
            value = value.reshape(-1).repeat(self.count // WARP)
        value = value.reshape(-1) if value.dim() else value.expand(self.count)
        return value if is_wide(value.dtype) else value.to(wide(value.dtype))

    def by_warp(self, value: Any, inactive: int = 0) -> torch.Tensor:
        """A value for each thread, (warps, lanes); inactive threads have `inactive`."""
        return torch.where(self.active, self.spread(value), inactive).view(-1, WARP)

    def set(self, name: str, value: Any, masked: bool = True) -> None:
        """Set a name, if `masked` only in the active threads."""
        if masked and not self.all:
            value = torch.where(self.active, self.spread(value), self.spread(self.scope.get(name, 0)))
        self.scope[name] = value

    def masked(self, taken: Any, step: Step) -> None:
        """Run a step in those threads for which a condition holds."""
        if taken is True or taken is False:
            if taken:
                step(self)
            return
        before = self.restrict(self.spread(taken))
        step(self)
        self.restore(before)


# A text is compiled once to functions of the threads: meanings compute values, steps execute statements.
Step = Callable[["Threads"], None]


def _in_memory(value: Expr) -> Meaning:
    if value.op == "group":
        array, _, *index = value.args
        return _place(array, index)
    array, *index = value.args
    return _place(array, index) if value.dtype == ADDRESS else _element(array, index)


def _meaning(value: Any) -> Meaning:
    """The function that computes a value."""
    spelling = Spelling(_in_memory)
    return spelling.function(spelling.spell(value))


def _element(array: Array, index: Iterable[Value]) -> Meaning:
    if array.space == Space.REGISTER.value:
        register = _register(array, index)

        def read(at: Threads) -> torch.Tensor:
            registers = at.scope[array.name]
            return registers.select(1, register(at)).to(wide(registers.dtype), copy=True)

        return read
    place_of = _place(array, index)

    def load(at: Threads) -> torch.Tensor:
        place = place_of(at)
        element = place.memory[place.of(at.taken)]
        return element.to(wide(element.dtype))

    return load


def _register(array: Array, index: Iterable[Value]) -> Callable[[Threads], int]:
    """The function that gives the number of a register."""
    values = (array.first, *index)
    numbers = [value for value in values if not isinstance(value, Expr)]
    if len(numbers) == len(values):
        known = int(sum(numbers))
        return lambda at: known
    spelling = Spelling(_in_memory)
    added = spelling.function(" + ".join(map(spelling.spell, values)))

    def number_of(at: Threads) -> int:
        total = added(at)
        if type(total) is int:
            return total
        if isinstance(total, torch.Tensor):
            raise DeclarationError(
                f"registers {array.name} of a leaf",
                expected="an index that is known when the kernel is written",
                got="one that threads work out",
                fix="loop over the registers unrolled, or use shared memory",
            )
        return int(total)

    return number_of


def _place(array: Array, index: Iterable[Value]) -> Callable[[Threads], Place]:
    spelling, text = Spelling(_in_memory), "0"
    for extent, part in zip((1, *array.shape[1:]), index, strict=False):
        text = f"({text} * {int(extent)} + {spelling.spell(part)})" if text != "0" else spelling.spell(part)
    begin = "0" if array.line is None else f"at.scope[{_begin(array.name)!r}]"
    index_of = spelling.function(f"{begin} + {text}")

    def place(at: Threads) -> Place:
        memory = at.scope[array.name]
        if isinstance(memory, Peered):
            return PeerPlace(memory.memory, at.spread(index_of(at)), array.name, memory)
        flat = memory if isinstance(memory, list) else elements(memory)
        return Place(flat, at.spread(index_of(at)), array.name)

    return place


def _block(statements: Iterable[t.Statement]) -> Step:
    steps = [_step(s) for s in statements if not isinstance(s, t.Comment)]

    def run(at: Threads) -> None:
        if at.some:
            for step in steps:
                step(at)

    return run


def _step(s: Any) -> Step:
    if (read := _STEPS.get(type(s))) is None:
        raise DeclarationError(
            f"{type(s).__name__} in the text of a leaf",
            expected=f"one of {', '.join(kind.__name__ for kind in _STEPS)}",
            got="what a body says",
            fix="say it in the body, around the call of the leaf",
        )
    return read(s)


def _named(s: t.Let | t.Variable | t.Assign) -> Step:
    ((name, given),) = s.sets().items()
    value, masked = _meaning(given), isinstance(s, t.Assign)
    return lambda at: at.set(name, value(at), masked)


def _put(s: Put) -> Step:
    value_of = _meaning(s.value)
    if s.array.space == Space.REGISTER.value:
        register = _register(s.array, s.index)

        def write(at: Threads) -> None:
            value = at.spread(value_of(at))
            registers = at.scope[s.array.name].select(1, register(at))
            value = value.to(registers.dtype)
            registers.copy_(value if at.all else torch.where(at.active, value, registers))

        return write
    place_of = _place(s.array, s.index)

    def store(at: Threads) -> None:
        place, value = place_of(at), at.spread(value_of(at))
        value, index = value.to(place.memory.dtype), place.of(at.taken)
        if at.all:
            place.memory[index] = value
        else:
            place.memory[index[at.active]] = value[at.active]

    return store


def _if(s: t.If) -> Step:
    condition, body, orelse = _meaning(s.condition), _block(s.body), _block(s.orelse)

    def branch(at: Threads) -> None:
        taken = condition(at)
        at.masked(taken, body)
        if s.orelse:
            at.masked(not taken if isinstance(taken, bool) else ~at.spread(taken), orelse)

    return branch


def _loop(s: t.Loop) -> Step:
    begin_of, end_of, body = _meaning(s.begin), _meaning(s.end), _block(s.body)

    def loop(at: Threads) -> None:
        begin, end = begin_of(at), end_of(at)
        if not isinstance(begin, torch.Tensor) and not isinstance(end, torch.Tensor):
            for index in range(begin, end, s.step):
                at.scope[s.index] = index
                body(at)
            return
        each = at.spread(begin)
        before = at.restrict(each < end)
        while at.some:
            at.scope[s.index] = each
            body(at)
            each = each + s.step
            at.active = before[0] & (each < end)
        at.restore(before)

    return loop


def _repeat(s: t.Repeat) -> Step:
    condition, body = _meaning(s.condition), _block(s.body)

    def repeat(at: Threads) -> None:
        before = at.restrict(at.spread(condition(at)))
        while at.some:
            body(at)
            at.restrict(at.spread(condition(at)))
        at.restore(before)

    return repeat


def _vector(s: Vector) -> Step:
    (*rows, last), count = s.group, s.registers.size
    place_of = _place(s.array, (*rows, last if rows else Expr("*", (last, count))))
    register = _register(s.registers, (0,))

    def move(at: Threads) -> None:
        registers, place, first = at.scope[s.registers.name], place_of(at), register(at)
        places = place.of(at.taken, count)[:, None] + torch.arange(count)
        group = registers[:, first : first + count]
        if s.store:
            values = group.to(wide(group.dtype)).to(place.memory.dtype)
            taken = slice(None) if at.all else at.active
            place.memory[places[taken]] = values[taken]
        else:
            values = place.memory[places]
            values = values.to(wide(values.dtype)).to(registers.dtype)
            group.copy_(values if at.all else torch.where(at.active[:, None], values, group))

    return move


def _line(s: Line) -> Step:
    rows, pitches, first = [*map(_meaning, s.rows)], [*map(_meaning, s.pitches)], _meaning(s.first)
    # Shapes that were checked against the pitches; dims do not change within a launch.
    checked: set[torch.Size] = set()

    def name(at: Threads) -> None:
        whole, begin = at.scope[s.array.name], at.scope.get(_begin(s.array.name), 0)
        of_row = 0
        if rows and (s.strided or whole.dim() == len(rows) + 1):
            of_row = sum(row(at) * step for row, step in zip(rows, whole.stride(), strict=False))
            if not s.strided and whole.shape not in checked:
                checked.add(whole.shape)
                passed = [int(number(pitch(at)).reshape(-1)[0]) for pitch in pitches]
                if passed != list(whole.shape[1:]):
                    raise ScheduleError(
                        f"row {s.name} of {s.array.name} in the text of a leaf",
                        expected=f"the extents of {s.array.name} but the first, {list(whole.shape[1:])}",
                        got=str(passed),
                        fix="pass the operand's dims in their order",
                    )
        else:
            for row, pitch in zip(rows, pitches, strict=True):
                of_row = (of_row + row(at)) * pitch(at)
        at.scope[s.name] = whole
        at.scope[_begin(s.name)] = begin + of_row + first(at)

    return name


def _local(s: Local) -> Step:
    poison = number(math.nan if s.array.dtype in FLOATS else 0x7F7F7F7F)

    def declare(at: Threads) -> None:
        at.scope[s.array.name] = poison.repeat(at.count, s.array.size)

    return declare


def _call(s: t.Call) -> Step:
    """A leaf called by a leaf, in the active threads; one without a text must be called by all threads."""
    arguments = [_meaning(argument) for argument in s.arguments]

    def call(at: Threads) -> None:
        if s.leaf.text is None:
            if not at.all or s.leaf.results:
                raise DeclarationError(
                    f"leaf {s.leaf.name} in the text of a leaf",
                    expected="a call by all threads, which sets nothing",
                    got=f"{int(at.active.sum())} of {at.count} threads, results {len(s.leaf.results)}",
                    fix="branch on what all threads have alike, or declare the leaf by its text",
                )
            values = zip(s.arguments, (argument(at) for argument in arguments), strict=True)
            s.leaf.torch(*(value if isinstance(given, Array) else alike(value) for given, value in values))
            return
        text, step = at.texts.of(s.leaf, s.arguments)
        own = Threads(at.count, {}, at.texts)
        own.active = at.active
        for formal, argument in zip(text.parameters, arguments, strict=True):
            if formal is not None and not formal.fresh:
                own.scope[formal.name] = argument(at)
        step(own)
        for i in s.leaf.results:
            at.set(s.arguments[i].args[0], own.scope.get(s.leaf.parameters[i][0], 0))

    return call


def _do(s: Do) -> Step:
    value = _meaning(s.value)

    def do(at: Threads) -> None:
        value(at)

    return do


_STEPS: dict[type, Callable[[Any], Step]] = {
    t.Let: _named,
    t.Variable: _named,
    t.Assign: _named,
    t.If: _if,
    t.Loop: _loop,
    t.Repeat: _repeat,
    t.Call: _call,
    Put: _put,
    Vector: _vector,
    Line: _line,
    Local: _local,
    Do: _do,
}


def run(
    leaf: t.Leaf,
    arguments: Iterable[Any],
    schedule: Schedule,
    count: int,
    scope: Mapping[str, Any],
    memory: Callable[[Any], Any],
    texts: Texts | None = None,
) -> dict[str, Any]:
    """Run a leaf in the `count` threads of a role; the values that it sets, by the names of the variables.

    Args:
        scope: values of the role: one for all threads, one for each warp, or one for each lane.
        memory: gives the tensor of a view, an operand or a buffer of the cluster.
        texts: the cache of leaf texts, for calls that recur.
    """
    texts = texts or Texts()
    arguments = tuple(arguments)
    (text, step), threads = texts.of(leaf, arguments, schedule), Threads(count, {}, texts)
    of_thread, tiles = _OfThreads(threads, scope), []
    for formal, argument in zip(text.parameters, arguments, strict=True):
        if formal is None or formal.fresh:
            continue
        if formal.kind != "memory":
            threads.scope[formal.name] = t.evaluate(argument, of_thread)
            continue
        tile = threads.scope[formal.name] = memory(argument)
        if not isinstance(argument, t.View) or schedule.buffer(argument.buffer).space is not Space.REGISTER:
            continue
        array = memory_of(formal.name, argument, schedule, LeafRecorder())
        private = schedule.buffer(argument.buffer).private
        if private and tuple(tile.shape) != (count, array.size):
            raise DeclarationError(
                f"registers {argument.buffer} of leaf {leaf.name}",
                expected=f"shape ({count}, {array.size}): private registers of a leaf by its text, "
                "a row a thread",
                got=f"shape {tuple(tile.shape)}",
                fix="declare the buffer with that shape, private=True and per_thread the second of the two",
            )
        places = None if private else elements_of_registers(tuple(tile.shape), array.size, count)
        if places is not None:
            threads.scope[formal.name] = tile.view(-1)[places]
            tiles.append((formal.name, tile.view(-1), places))
    step(threads)
    for title, tile, places in tiles:
        _join(leaf.name, title, tile, places, threads.scope[title])
    values = {arguments[i].args[0]: threads.scope.get(leaf.parameters[i][0], 0) for i in leaf.results}
    return {key: alike(value) for key, value in values.items()}


class _OfThreads(dict[str, Any]):
    """The values of a role's names in its threads, computed when they are asked for."""

    def __init__(self, threads: Threads, scope: Mapping[str, Any]) -> None:
        self._threads, self._scope = threads, scope

    def __missing__(self, name: str) -> Any:
        if name in ("worker", "lane"):
            thread = torch.arange(self._threads.count)
            value: Any = thread if name == "worker" else thread % WARP
        else:
            value = self._scope[name]
            value = self._threads.spread(value) if isinstance(value, torch.Tensor) else value
        self[name] = value
        return value


def _join(leaf: str, title: str, tile: torch.Tensor, places: torch.Tensor, registers: torch.Tensor) -> None:
    """Write the threads' registers back to the tile whose elements they hold.

    Raises:
        ScheduleError: threads that hold the same element have different values of it.
    """
    tile[places] = registers
    written = tile[places]
    # Bits first, as NaN is not equal to itself; the slower comparison also accepts 0 beside -0.
    bits = (each.view(torch.uint8) for each in (written, registers.contiguous()))
    if not torch.equal(*bits) and not torch.allclose(written, registers, rtol=0, atol=0, equal_nan=True):
        raise ScheduleError(
            f"registers {title} of leaf {leaf}",
            expected="one value of each element, in all threads that hold it",
            got="several",
            fix="combine them across lanes, or declare registers of each thread by itself",
        )


def alike(value: Any) -> Any:
    """A value in the interpreter's most compact form: one for all threads, per warp, or per lane."""
    if not isinstance(value, torch.Tensor):
        return value
    flat = value.reshape(-1)
    if bool((flat == flat[0]).all()):
        return flat[0].item()
    warps = flat.view(-1, WARP)
    if bool((warps == warps[:, :1]).all()):
        return warps[:, 0].clone()
    # With as many warps as lanes, a value per warp and one per lane could not be told apart.
    return warps[0].clone() if len(warps) != WARP and bool((warps == warps[0]).all()) else flat
