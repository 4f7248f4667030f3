"""Leaves by their text: what one thread does, said against a recorder once, and run for all threads of a role at once.

Such a leaf loops and branches for each thread by itself, and reads and writes registers, shared and global memory by
index. What a warp works out together, and what a DSL has an instruction for, is a `Function`: every DSL spells it under
its name, as it does a leaf. The interpreter runs such texts by `tile.threads`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ..dtypes import DTYPES
from ..errors import DeclarationError, DslKernelError
from . import places
from . import text as t
from .frontend import recorded
from .lang import Schedule, Space
from .text import Expr, Value

WARP = 32
ADDRESS = "address"
"""The dtype of a place in memory, for a Function."""


@dataclass(frozen=True, eq=False)
class Function:
    """What a DSL spells of the arithmetic of a leaf's text; `torch` means it for all threads.

    A `joint` one is worked out by the threads of a warp together, or touches memory: its meaning gets `Threads` first.
    """

    name: str
    dtype: str
    torch: Callable[..., Any]
    joint: bool = False

    def __call__(self, *arguments: Any) -> Expr:
        return Expr("apply", (self, *arguments), self.dtype)


@dataclass(eq=False)
class Array(t.Memory):
    """Memory as the text of a leaf names it: registers of the thread, shared or global memory, a line of a matrix.

    An index is a number, or in a matrix in shared memory a pair of row and column.

    `size` elements it has in a thread's registers, from `first` on of those that it is a group of. `shape` is that of a
    buffer outside of registers, whose rows `swizzle` exchanges within so many bytes; `staged` tells whether it is one of
    several stages, `strides` how far apart an operand's axes but the last are where rows need not follow one another. `line`
    says what this is the part of: which array, which row of it if that is a matrix, and from which element on. `peers` tells
    whether other ranks hold such an operand.
    """

    name: str
    dtype: str
    space: str
    size: int
    recorder: LeafRecorder = field(repr=False)
    line: tuple[Array, tuple[Value, ...], Value] | None = None
    wide: bool = True
    shape: tuple[int, ...] = ()
    swizzle: int = 0
    staged: bool = False
    first: Value = 0
    strides: tuple[Expr, ...] = ()
    peers: bool = False

    def __getitem__(self, index: Index) -> Expr:
        return Expr("element", (self, *_places(index)), self.dtype)

    def __iter__(self) -> Iterator[Expr]:
        """Its registers, or its elements, one after the other."""
        return (self[i] for i in range(self.size))

    def __setitem__(self, index: Index, value: Value) -> None:
        self.recorder.say(Put(self, _places(index), value))

    def at(self, index: Index) -> Expr:
        """The place of an element, for a Function."""
        return Expr("element", (self, *_places(index)), ADDRESS)

    def group_at(self, row: Value, column: Value, size: int) -> Expr:
        """The place, for a Function, where a group of `size` consecutive elements begins in a matrix in shared memory."""
        return Expr("group", (self, size, row, column), ADDRESS)

    def group(self, first: Value, size: int) -> Array:
        """`size` registers from number `first` on, for `read` and `write`."""
        return replace(self, size=size, first=self.first + first)

    def read(self, registers: Array, group: Index) -> None:
        """Load the group of that number into registers: of consecutive elements as many as these have, aligned to their size.

        In a matrix a pair says at which row and column a group begins.
        """
        self.recorder.say(Vector(registers, self, _places(group), False))

    def write(self, registers: Array, group: Index) -> None:
        """Store registers as the group of that number."""
        self.recorder.say(Vector(registers, self, _places(group), True))

    def row(
        self,
        title: str,
        row: Index,
        pitch: Value | tuple[Value, ...] | None = None,
        first: Value = 0,
        *,
        wide: bool = True,
    ) -> Array:
        """A row of a matrix in global memory from column `first` on; its rows are `pitch` elements long, or as far apart as the operand says.

        Of an operand with more dimensions `row` has an index for each but the last one, and `pitch` all extents but the
        first one. One that is not `wide` has less than 2**31 elements.
        """
        rows = _places(row)
        if pitch is None and len(rows) != len(self.strides):
            raise DeclarationError(
                f"a row of {self.name} in the text of a leaf", expected="a pitch, or an operand whose axes have strides, and an index for each but the last",
                got=f"{len(rows)} indices and {len(self.strides)} strides", fix="say how long rows are, or declare the operand's strides",
            )  # fmt: skip
        pitches = self.strides if pitch is None else _places(pitch)
        self.recorder.say(Line(title, self, rows, pitches, first, wide, strided=pitch is None))
        if self.line is not None and not self.line[1]:
            return replace(
                self, name=title, line=(self.line[0], rows, t.fold(self.line[2] + first, {})), wide=wide
            )
        return replace(self, name=title, line=(self, rows, first), wide=wide)

    def of_peer(self, title: str, distance: Expr) -> Array:
        """The same operand on another rank, so many bytes from this one's."""
        if not self.peers or self.line is not None:
            raise DeclarationError(
                f"{self.name}.of_peer in the text of a leaf", expected="a whole operand that other ranks hold too",
                got="a part of one" if self.line else "memory of this rank", fix="name the operand of distances as its `peers` in its OperandSpec",
            )  # fmt: skip
        elements = distance >> DTYPES[self.dtype].bytes.bit_length() - 1
        return self.part(title, elements)

    def part(self, title: str, first: Value) -> Array:
        """What lies from element `first` on."""
        self.recorder.say(Line(title, self, (), (), first))
        whole, rows, before = self.line or (self, (), 0)
        return replace(self, name=title, line=(whole, rows, t.fold(before + first, {})))


Index = Value | tuple[Value, ...]


def _places(index: Index) -> tuple[Value, ...]:
    return index if isinstance(index, tuple) else (index,)


@dataclass(frozen=True, eq=False)
class Put(t.Statement):
    """array[index] = value"""

    array: Array
    index: tuple[Value, ...]
    value: Value


@dataclass(frozen=True, eq=False)
class Vector(t.Statement):
    """The group of that number, or at that row and column, of consecutive elements: into registers, or out of them to `store`."""

    registers: Array
    array: Array
    group: tuple[Value, ...]
    store: bool


@dataclass(frozen=True, eq=False)
class Line(t.Statement):
    """A name for a row of a matrix or a part of an array, for DSLs that pass addresses.

    `pitches` are the extents of all axes but the first, or where it is `strided` the strides of all axes but the last.
    """

    name: t.Declares
    array: Array
    rows: tuple[Value, ...]
    pitches: tuple[Value, ...]
    first: Value
    wide: bool = True
    strided: bool = False


@dataclass(frozen=True, eq=False)
class Local(t.Statement):
    """Registers of the leaf itself."""

    array: Array


@dataclass(frozen=True, eq=False)
class Do(t.Statement):
    """A function for what it does."""

    value: Expr


class LeafRecorder(t.Recorder):
    """What the text of a leaf is said against; of a recorder it has loops, branches and variables."""

    def __init__(self) -> None:
        self._begin()
        self.role = None
        self.thread, self.lane, self.warp = t.name("thread"), t.name("lane"), t.name("warp")
        self._threads = 0

    @property
    def threads(self) -> int:
        return self._threads

    def called_by(self, threads: int) -> None:
        """Note how many threads call the leaf."""
        self._threads = threads

    def _kind(self, argument: Any) -> t.Kind:
        if isinstance(argument, Array):
            return t.Kind("peers" if argument.space == "cluster" else argument.space, argument.dtype)
        return super()._kind(argument)

    def say(self, statement: Any) -> None:
        """Write down a statement that only the text of a leaf has."""
        self._say(statement)

    def var(self, text: str, initial: Value = 0, dtype: str = "int32") -> Expr:
        """A scalar that `set` assigns, for each thread by itself."""
        self._say(t.Variable(text, dtype, initial))
        self.variables.add(text)
        return self._take_name(text, t.name(text, dtype))

    def let(self, text: str, value: Value) -> Any:
        """Name a value."""
        return super().let(text, value)

    def local(self, text: str, size: int, dtype: str = "int32") -> Array:
        """Registers of the leaf itself."""
        array = Array(text, dtype, Space.REGISTER.value, size, self)
        self.say(Local(array))
        return array

    def do(self, value: Expr) -> None:
        """Call a function for what it does."""
        self.say(Do(value))


@dataclass(frozen=True)
class Formal:
    """A parameter that the text of a leaf is passed: `memory`, or a `value`, which is a `variable` where it is set."""

    name: str
    kind: str
    dtype: str
    fresh: bool = False
    staged: bool = False
    strides: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeafText:
    """What a leaf does where it is called with such arguments; numbers among these stand in the text."""

    parameters: tuple[Formal | None, ...]
    statements: tuple[t.Statement, ...]


def by_text(function: Callable[..., None]) -> t.Leaf:
    """Declare a leaf by its text: a function over a LeafRecorder, then the leaf's parameters, annotated by their kinds.

    What every leaf has is the recorder's: `m.thread` (within the role, of `m.threads`), `m.lane`, `m.warp` (within the CTA). Memory comes as an Array, a number as itself, everything else as an expression by its name; assignments to `Sets` and
    `Changes` set what was passed.
    """
    parameters = (*t.parameters_of(function, "number")[1:], *map(t.Parameter, t.AMBIENT))
    doc = inspect.cleandoc(function.__doc__ or "")
    return t.Leaf(function.__name__, parameters, _by_threads, doc, recorded(function))


def _by_threads(*_: Any) -> Any:
    raise DeclarationError(
        "a leaf by its text",
        expected="a call within a kernel's text",
        got="a call of its meaning in torch",
        fix="run it by tile.threads.run",
    )


def text_of(leaf: t.Leaf, arguments: Iterable[Any], schedule: Schedule | None = None) -> LeafText:
    """The text of a leaf that is called with these arguments; views are of the schedule's buffers."""
    m = LeafRecorder()
    formals: list[Formal | None] = []
    passed: list[Any] = []
    for (title, mark, _), argument in zip(leaf.parameters, arguments, strict=True):
        if isinstance(argument, Expr):
            kind = "variable" if mark in (t.Out, t.InOut) else "value"
            if kind == "variable":
                m.variables.add(title)
            formals.append(Formal(title, kind, argument.dtype, mark is t.Out))
            passed.append(m._take_name(title, t.name(title, argument.dtype)))
        elif isinstance(argument, (*t.PLACES, Array)):
            array = memory_of(title, argument, schedule, m)
            strides = tuple(stride.args[0] for stride in array.strides)
            formals.append(Formal(title, "memory", array.dtype, staged=array.staged, strides=strides))
            passed.append(array)
        else:
            formals.append(None)
            passed.append(argument)
    if leaf.text is not None:
        m.called_by(passed[-1])
        try:
            leaf.text(m, *passed[: len(leaf.passed)])
        except DslKernelError as error:
            raise places.located(error, error.__traceback__) from error
        except t.FAILURES as error:
            raise t.refusal(f"the text of leaf {leaf.name}", error) from error
    return LeafText(tuple(formals), tuple(m.statements))


def memory_of(title: str, argument: Any, schedule: Schedule | None, m: LeafRecorder) -> Array:
    """What is passed as memory, as the text of the leaf names it."""
    if isinstance(argument, Array):
        return replace(argument, name=title, recorder=m, line=None, wide=True, strides=())
    if isinstance(argument, t.Global):
        strides = tuple(t.name(f"{title}_stride_{axis}") for axis in range(len(argument.strides)))
        return Array(title, argument.dtype, "global", 0, m, strides=strides, peers=bool(argument.peers))
    if isinstance(argument, t.Sender):
        return Array(title, "float32", "global", 0, m)
    if schedule is None:
        raise DeclarationError(
            f"buffer {argument.buffer} in the text of a leaf", expected="what the leaf is passed", got="a buffer of the kernel",
            fix="make it a parameter",
        )  # fmt: skip
    buffer = schedule.buffer(argument.buffer)
    if buffer.space is Space.REGISTER:
        share = 1 if buffer.private or buffer.role is None else schedule.role(buffer.role).warps * WARP
        each = buffer.per_thread or buffer.stage_elements // share
        return Array(title, buffer.dtype, buffer.space.value, each, m)
    cluster = isinstance(argument, t.Cluster)
    return Array(
        title, buffer.dtype, "cluster" if cluster else buffer.space.value, buffer.stage_elements, m, shape=buffer.shape,
        swizzle=buffer.swizzle, staged=not cluster and argument.use is not None,
    )  # fmt: skip
