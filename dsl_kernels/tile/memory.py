"""Memory that statements name: parts of buffers, operands, boxes of tensor maps, slots of pipelines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..dtypes import DTYPES
from ..errors import DeclarationError
from .expressions import Expr, Value, name
from .lang import Pipeline


class Memory:
    """Something that holds numbers; to compare it with a number is an error, as it would equal none."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, float, Expr)):
            raise DeclarationError(
                f"== or != on a {type(self).__name__}", expected="a number of the kernel",
                got="memory that holds numbers",
                fix="compare an element: array[i] in the text of a leaf, m.word(buffer, i) in a body",
            )  # fmt: skip
        return self is other

    __hash__ = object.__hash__

    def __getitem__(self, index: Any) -> Any:
        raise DeclarationError(
            f"an index of a {type(self).__name__} in a body",
            expected="a part by name, or a number by m.word", got="[...]",
            fix="say view.stage(use), view.part(first, rows) or view.columns(first, count); "
            "m.word(memory, i) is a number there",
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class View(Memory):
    """Part of one stage of a buffer: `rows` rows from `first` on, `width` columns from `column` on.

    `use` is the use of its ring that has the stage; None for a buffer of one stage. `rows` or `width` None:
    all.
    """

    buffer: str
    pipeline: str | None
    use: Value | None
    first: Value = 0
    rows: int | None = None
    column: Value = 0
    width: int | None = None

    def stage(self, use: Value) -> View:
        """The stage of use `use`, of a buffer that is in no pipeline."""
        return replace(self, use=use)

    def part(self, first: Value, rows: int) -> View:
        """`rows` rows from `first` on."""
        return replace(self, first=first, rows=rows)

    def columns(self, first: Value, count: int) -> View:
        """`count` columns from `first` on."""
        return replace(self, column=first, width=count)


@dataclass(frozen=True, eq=False)
class Global(Memory):
    """A whole operand in global memory.

    `strides` names the dims that are the strides of all axes but the last, for DSLs that pass addresses.
    `peers` names the operand with the distances at which other ranks hold theirs; empty where only this rank
    has it.
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
        """`count` elements of `row` from `column` on, by default to the end of the row of `pitch` elements.

        Rows are contiguous, unless the problem declares strides: then `row` is an index for each axis but the
        last. An operand of bytes (uint8) may be read as another `dtype`.
        """
        seen = dtype or self.dtype
        width = DTYPES[seen].bytes // DTYPES[self.dtype].bytes
        steps = tuple(name(stride) // width if width > 1 else name(stride) for stride in self.strides)
        return Span(self.name, seen, row, pitch, column, pitch - column if count is None else count, steps)


@dataclass(frozen=True, eq=False)
class Box:
    """The box of a tensor map at coordinates, outermost first; elements outside of the tensor are zero."""

    map: str
    at: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Span:
    """`count` elements from `column` on, in row `row` of an operand of `pitch` elements of `dtype` a row.

    `strides`, in elements of `dtype`, are those of all axes but the last; `row` then has an index for each of
    them.
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
        """The indices of all axes but the last."""
        return self.row if isinstance(self.row, tuple) else (self.row,)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a tensor map from `column` on, gathered by number; a row that does not exist is zero.

    `rows` are registers in which every lane has all row numbers.
    """

    map: str
    rows: View
    column: Value


@dataclass(frozen=True, eq=False)
class Cluster(Memory):
    """A shared buffer in every CTA of the group; leaves index it by rank."""

    buffer: str


@dataclass(frozen=True, eq=False)
class Sender(Memory):
    """The slot of a use in another CTA of the group, and the barrier that counts the bytes arriving there.

    For a pipeline between CTAs of the grid: the words of the first CTA, and how many words each CTA has.
    """

    view: View
    slot: Slot


@dataclass(frozen=True, eq=False)
class Slot(Memory):
    """The slot that a use of a pipeline has; the pipeline's buffers are its attributes: `slot.keys`."""

    pipeline: Pipeline
    use: Value
    role: str

    def __getattr__(self, buffer: str) -> View:
        if buffer.startswith("_") or buffer not in self.pipeline.buffers:
            raise AttributeError(f"pipeline {self.pipeline.name} has no buffer {buffer}")
        return View(buffer, self.pipeline.name, self.use)

    def plain(self) -> Slot:
        """The slot as statements keep it, without the methods of the pipeline's end that it came from."""
        return Slot(self.pipeline, self.use, self.role)

    def view(self) -> View:
        """The slot's buffer, in a pipeline of one buffer."""
        (buffer,) = self.pipeline.buffers
        return View(buffer, self.pipeline.name, self.use)

    def views(self) -> tuple[View, ...]:
        """The slot's buffers, in the order of the pipeline."""
        return tuple(View(buffer, self.pipeline.name, self.use) for buffer in self.pipeline.buffers)


PLACES = (View, Global, Cluster, Sender)
"""Kinds of memory that a leaf may be passed, or that may be fields of a statement printed by its fields."""


def title_of(argument: Any) -> str:
    """An argument of a leaf, by its name in the kernel."""
    if isinstance(argument, (View, Cluster)):
        return argument.buffer
    if isinstance(argument, Expr):
        return str(argument.args[0]) if argument.op == "name" else f"the result of {argument.op}"
    return argument.name if isinstance(argument, Global) else str(argument)
