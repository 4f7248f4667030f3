"""The places that statements name: parts of buffers, operands, boxes of tensor maps, slots of pipelines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..dtypes import DTYPES
from ..errors import DeclarationError
from .expressions import Expr, Value, name
from .lang import Pipeline


class Memory:
    """What holds numbers and is none itself: compared with a number it would differ from every one."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, float, Expr)):
            raise DeclarationError(
                f"== or != on a {type(self).__name__}", expected="a number of the kernel", got="memory that holds numbers",
                fix="compare an element: array[i] in the text of a leaf, m.word(buffer, i) in a body",
            )  # fmt: skip
        return self is other

    __hash__ = object.__hash__

    def __getitem__(self, index: Any) -> Any:
        raise DeclarationError(
            f"an index of a {type(self).__name__} in a body", expected="a part by name, or a number by m.word", got="[...]",
            fix="say view.stage(use), view.part(first, rows) or view.columns(first, count); m.word(memory, i) is a number there",
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class View(Memory):
    """Part of a buffer: the stage that use `use` of its ring has (None: it has one), and `rows` of it from `first` on.

    Of a matrix `width` columns from `column` on; None are all.
    """

    buffer: str
    pipeline: str | None
    use: Value | None
    first: Value = 0
    rows: int | None = None
    column: Value = 0
    width: int | None = None

    def stage(self, use: Value) -> View:
        """The stage that use `use` has, of a buffer outside of pipelines."""
        return replace(self, use=use)

    def part(self, first: Value, rows: int) -> View:
        """`rows` rows from `first` on."""
        return replace(self, first=first, rows=rows)

    def columns(self, first: Value, count: int) -> View:
        """`count` columns from `first` on."""
        return replace(self, column=first, width=count)


@dataclass(frozen=True, eq=False)
class Global(Memory):
    """A global-memory operand, whole; `strides` name the dims that are the strides of all axes but the last, for DSLs that pass addresses.

    `peers` names the operand that says how far away other ranks hold theirs; empty where no rank but this one has it.
    """

    name: str
    strides: tuple[str, ...] = ()
    dtype: str = "int32"
    peers: str = ""

    def span(
        self,
        row: Value | tuple[Value, ...],
        pitch: int,
        column: int = 0,
        count: int | None = None,
        dtype: str = "",
    ) -> Span:
        """`count` elements from `column` of `row` on, of rows that are `pitch` elements long; by default to the end of the row.

        Rows follow one another, or lie as far apart as the problem says: `row` then has an index for each axis but the last.
        Bytes can be seen as elements of another `dtype`.
        """
        seen = dtype or self.dtype
        width = DTYPES[seen].bytes // DTYPES[self.dtype].bytes
        steps = tuple(name(stride) // width if width > 1 else name(stride) for stride in self.strides)
        return Span(self.name, seen, row, pitch, column, pitch - column if count is None else count, steps)


@dataclass(frozen=True, eq=False)
class Box:
    """The box of a tensor map at coordinates, outermost first; zeros where it leaves the tensor."""

    map: str
    at: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Span:
    """`count` elements of an operand seen as rows of `pitch` elements of type `dtype`, from `column` of `row` on.

    Where `strides` say how far apart the operand's axes are, in elements of that type, `row` has an index for each but the last.
    """

    operand: str
    dtype: str
    row: Value | tuple[Value, ...]
    pitch: int
    column: int
    count: int
    strides: tuple[Expr, ...] = ()

    @property
    def rows(self) -> tuple[Value, ...]:
        """An index for each axis but the last."""
        return self.row if isinstance(self.row, tuple) else (self.row,)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a tensor map by number, which every lane has in its registers `rows`, from `column` on; zeros where there is none."""

    map: str
    rows: View
    column: Value


@dataclass(frozen=True, eq=False)
class Cluster(Memory):
    """A shared buffer as every CTA of the group holds it: leaves read and write it by rank."""

    buffer: str


@dataclass(frozen=True, eq=False)
class Sender(Memory):
    """The slot that a use of a pipeline between CTAs has in another CTA of the group, and the barrier that counts what arrives there.

    Of one between CTAs of the grid the words of the first CTA, and how many each has.
    """

    view: View
    slot: Slot


@dataclass(frozen=True, eq=False)
class Slot(Memory):
    """One use of a pipeline as a role holds it; its buffers are attributes: `slot.keys`."""

    pipeline: Pipeline
    use: Value
    role: str

    def __getattr__(self, buffer: str) -> View:
        if buffer.startswith("_") or buffer not in self.pipeline.buffers:
            raise AttributeError(f"pipeline {self.pipeline.name} has no buffer {buffer}")
        return View(buffer, self.pipeline.name, self.use)

    def plain(self) -> Slot:
        """The slot as a statement keeps it, without the end of the pipeline that it came from."""
        return Slot(self.pipeline, self.use, self.role)

    def view(self) -> View:
        """The buffer of a pipeline that has one."""
        (buffer,) = self.pipeline.buffers
        return View(buffer, self.pipeline.name, self.use)


PLACES = (View, Global, Cluster, Sender)
"""What a leaf, or a statement that is printed by its fields, may be passed beside values."""


def title_of(argument: Any) -> str:
    """What a leaf is passed, by its name in the kernel."""
    if isinstance(argument, (View, Cluster)):
        return argument.buffer
    if isinstance(argument, Expr):
        return str(argument.args[0]) if argument.op == "name" else f"the result of {argument.op}"
    return argument.name if isinstance(argument, Global) else str(argument)
