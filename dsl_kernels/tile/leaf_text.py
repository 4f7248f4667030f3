"""Leaves declared by their text: what one thread does, recorded once.

Each thread loops and branches by itself, and indexes registers, shared and global memory. What a warp
computes together, and what is one instruction, is a `Function`, which every DSL spells under its name, as it
does a leaf. The interpreter runs these texts for all threads of a role at once (`tile.threads`).
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
"""The dtype of an address, as an argument of a `Function`."""


@dataclass(frozen=True, eq=False)
class Function:
    """A function that leaf texts call and each DSL spells; `torch` is its meaning, for all threads at once.

    The threads of a warp compute a `joint` one together, or it accesses memory: its meaning then takes the
    `Threads` as its first argument.
    """

    name: str
    dtype: str
    torch: Callable[..., Any]
    joint: bool = False

    def __call__(self, *arguments: Any) -> Expr:
        return Expr("apply", (self, *arguments), self.dtype)


@dataclass(eq=False)
class Array(t.Memory):
    """Memory in a leaf's text: registers of the thread, shared or global memory, or part of another array.

    An index is a number, or (row, column) in a matrix in shared memory.

    Attributes:
        size: elements; in registers, those of one thread.
        line: where this is part of another array: that array, the row of it if it is a matrix, the first
            element.
        wide: offsets are computed in 64 bits.
        shape: the shape of a buffer outside of registers.
        swizzle: the bytes of such a buffer within which the hardware permutes 16-byte pieces; 0: none.
        staged: the buffer is one of several stages.
        first: where this is a group of registers, the number of its first one.
        strides: of an operand whose rows need not be contiguous, the strides of all axes but the last.
        peers: other ranks hold such an operand too.
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
        """Its elements in order."""
        return (self[i] for i in range(self.size))

    def __setitem__(self, index: Index, value: Value) -> None:
        self.recorder.say(Put(self, _places(index), value))

    def at(self, index: Index) -> Expr:
        """The address of an element, for a `Function`."""
        return Expr("element", (self, *_places(index)), ADDRESS)

    def group_at(self, row: Value, column: Value, size: int) -> Expr:
        """The address, for a `Function`, of `size` consecutive elements of a matrix in shared memory."""
        return Expr("group", (self, size, row, column), ADDRESS)

    def group(self, first: Value, size: int) -> Array:
        """`size` registers from number `first` on."""
        return replace(self, size=size, first=self.first + first)

    def read(self, registers: Array, group: Index) -> None:
        """Load a group of consecutive elements, as many as there are registers, by one aligned vector access.

        `group` is the number of the group, or in a matrix the (row, column) where it begins.
        """
        self.recorder.say(Vector(registers, self, _places(group), False))

    def write(self, registers: Array, group: Index) -> None:
        """Store registers as a group of consecutive elements; `group` is as in `read`."""
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
        """A row of a matrix in global memory, from column `first` on, under the name `title`.

        Args:
            row: the row's number; of an operand with more axes the indices of all but the last.
            pitch: elements of a row; of an operand with more axes all extents but the first. None: the
                operand's strides apply.
            wide: False promises that the operand has less than 2**31 elements.
        """
        rows = _places(row)
        if pitch is None and len(rows) != len(self.strides):
            raise DeclarationError(
                f"a row of {self.name} in the text of a leaf",
                expected="a pitch, or an operand whose axes have strides, and an index for each but the last",
                got=f"{len(rows)} indices and {len(self.strides)} strides",
                fix="say how long rows are, or declare the operand's strides",
            )
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
                f"{self.name}.of_peer in the text of a leaf",
                expected="a whole operand that other ranks hold too",
                got="a part of one" if self.line else "memory of this rank",
                fix="name the operand of distances as its `peers` in its OperandSpec",
            )  # fmt: skip
        elements = distance >> DTYPES[self.dtype].bytes.bit_length() - 1
        return self.part(title, elements)

    def part(self, title: str, first: Value) -> Array:
        """The rest of the array, from element `first` on, under the name `title`."""
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
    """Load a group of consecutive elements into registers, or `store` registers there.

    `group` is the group's number, or the (row, column) where it begins.
    """

    registers: Array
    array: Array
    group: tuple[Value, ...]
    store: bool


@dataclass(frozen=True, eq=False)
class Line(t.Statement):
    """A name for a row of a matrix or for part of an array, for DSLs that pass addresses.

    `pitches` are the extents of all axes but the first or, if `strided`, the strides of all axes but the
    last.
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
    """Declares registers of the leaf itself."""

    array: Array


@dataclass(frozen=True, eq=False)
class Do(t.Statement):
    """Calls a `Function` for its effect."""

    value: Expr


class LeafRecorder(t.Recorder):
    """Records the text of a leaf: a `Recorder` with loops, branches and variables only."""

    def __init__(self) -> None:
        self._begin()
        self.role = None
        self.thread, self.lane, self.warp = t.name("thread"), t.name("lane"), t.name("warp")
        self._threads = 0

    @property
    def threads(self) -> int:
        return self._threads

    def called_by(self, threads: int) -> None:
        """Set how many threads call the leaf."""
        self._threads = threads

    def _kind(self, argument: Any) -> t.Kind:
        if isinstance(argument, Array):
            return t.Kind("peers" if argument.space == "cluster" else argument.space, argument.dtype)
        return super()._kind(argument)

    def say(self, statement: Any) -> None:
        """Record a statement that only leaf texts have."""
        self._say(statement)

    def var(self, text: str, initial: Value = 0, dtype: str = "int32") -> Expr:
        """A scalar variable of each thread, which `set` assigns."""
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
        """Call a `Function` for its effect."""
        self.say(Do(value))


@dataclass(frozen=True)
class Formal:
    """A parameter of a leaf's text.

    Attributes:
        kind: "memory", "value", or "variable" for a scalar that the leaf sets.
        fresh: a variable that the leaf does not read.
        staged, strides: as in `Array`.
    """

    name: str
    kind: str
    dtype: str
    fresh: bool = False
    staged: bool = False
    strides: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeafText:
    """The text of a leaf for one kind of call; a parameter is None if the text has a Python number for it."""

    parameters: tuple[Formal | None, ...]
    statements: tuple[t.Statement, ...]


def by_text(function: Callable[..., None]) -> t.Leaf:
    """Declare a leaf by its text: a function of a `LeafRecorder` and the leaf's annotated parameters.

    The recorder has `m.thread` (within the role, of `m.threads`), `m.lane` and `m.warp` (within the CTA).
    Memory is passed as an `Array`, a Python number as itself, a `Record` of these as one, anything else as an
    expression; to assign to a parameter marked `Sets` or `Changes` sets the caller's variable.
    """
    parameters = (*t.parameters_of(function, "number")[1:], *map(t.Parameter, t.AMBIENT))
    doc = inspect.cleandoc(function.__doc__ or "")
    return t.Leaf(function.__name__, parameters, _by_threads, doc, t.with_records(recorded(function)))


def _by_threads(*_: Any) -> Any:
    raise DeclarationError(
        "a leaf by its text",
        expected="a call within a kernel's text",
        got="a call of its meaning in torch",
        fix="run it by tile.threads.run",
    )


def text_of(leaf: t.Leaf, arguments: Iterable[Any], schedule: Schedule | None = None) -> LeafText:
    """Record the text of a leaf for a call with these arguments; views refer to the schedule's buffers."""
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
    """The array `title` of a leaf's text that stands for memory passed as `argument`."""
    if isinstance(argument, Array):
        return replace(argument, name=title, recorder=m, line=None, wide=True, strides=())
    if isinstance(argument, t.Global):
        strides = tuple(t.name(f"{title}_stride_{axis}") for axis in range(len(argument.strides)))
        return Array(title, argument.dtype, "global", 0, m, strides=strides, peers=bool(argument.peers))
    if isinstance(argument, t.Sender):
        return Array(title, "float32", "global", 0, m)
    if schedule is None:
        raise DeclarationError(
            f"buffer {argument.buffer} in the text of a leaf",
            expected="what the leaf is passed",
            got="a buffer of the kernel",
            fix="make it a parameter",
        )
    buffer = schedule.buffer(argument.buffer)
    if buffer.space is Space.REGISTER:
        share = 1 if buffer.private or buffer.role is None else schedule.role(buffer.role).warps * WARP
        each = buffer.per_thread or buffer.stage_elements // share
        return Array(title, buffer.dtype, buffer.space.value, each, m)
    cluster = isinstance(argument, t.Cluster)
    return Array(
        title,
        buffer.dtype,
        "cluster" if cluster else buffer.space.value,
        buffer.stage_elements,
        m,
        shape=buffer.shape,
        swizzle=buffer.swizzle,
        staged=not cluster and argument.use is not None,
    )
