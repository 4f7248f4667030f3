"""Spells the values of a kernel's text in one DSL: expressions, elements, views, boxes and barriers."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from dsl_kernels.dtypes import DTYPES
from dsl_kernels.errors import DeclarationError, TemplateError
from dsl_kernels.tile import leaf_text
from dsl_kernels.tile import text as t
from dsl_kernels.tile.lang import Buffer, Constant, Pipeline, Schedule, Size, Space, spell
from dsl_kernels.tile.plan import words_of
from dsl_kernels.tile.transfers import transfer_of

from .facts import role_facts

# Python's precedence: a comparison binds less tightly than `|`, and must not chain.
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


class Values:
    """Values as the macros of a DSL's `_spelling.j2` write them.

    Attributes:
        sizes: the named numbers spelled so far, which the module must define.
    """

    def __init__(self, schedule: Schedule, spelling: Any, leaf_module: Any) -> None:
        self._schedule, self._spelling, self._leaf_module = schedule, spelling, leaf_module
        self._in_leaf = False
        self.sizes: dict[str, float] = {}

    def spelled(self, number: float, outer: float = 0) -> str:
        """A number as the module writes it; `outer` is the precedence of the surrounding expression."""
        if isinstance(number, (Size, Constant)):
            for name, value in number.names.items():
                if self.sizes.setdefault(name, value) != value:
                    raise DeclarationError(
                        f"size {name}", expected="one value in a kernel",
                        got=f"{self.sizes[name]} and {value}",
                        fix="give one of the two another name, or none",
                    )  # fmt: skip
        return spell(number, outer)

    def _spell(self, macro: str, **values: Any) -> Iterator[str]:
        template = getattr(self._spelling, macro, None)
        if template is None:
            raise TemplateError(
                "_spelling.j2", expected=f"a macro {macro}", got="none", fix=f"spell {macro} for this DSL"
            )
        yield from (line for line in str(template(SimpleNamespace(**values))).split("\n") if line.strip())

    def _phrase(self, macro: str, **values: Any) -> str:
        return "\n".join(self._spell(macro, **values)).strip()

    def value(self, value: t.Value, outer: float = 0) -> str:
        """An expression as source text; `outer` is the precedence of the surrounding expression."""
        return self._folded(t.fold(value, {}), outer)

    def _folded(self, value: t.Value, outer: float = 0) -> str:
        """An expression that is folded as far as it can be, as source text."""
        if isinstance(value, float) and math.isinf(value):
            return self._phrase("infinity", sign="-" if value < 0 else "")
        if isinstance(value, float) and math.isnan(value):
            return self._phrase("nan")
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
            # A DSL may have a function for it: one of the operation's own, else the one of `scalars`.
            return self._phrase(
                value.op,
                a=self._beside(a, b),
                b=self._beside(b, a),
                dtype=value.dtype,
                home=self._leaf_module,
            )
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
            tightness: float = _ATOM if _is_call(text) else 5
        else:
            tightness = _TIGHTNESS[value.op]
            left = tightness + (value.op in t.COMPARISONS)
            text = f"{self._beside(a, b, left)} {value.op} {self._beside(b, a, tightness + 1)}"
        return f"({text})" if tightness < outer else text

    def _beside(self, value: t.Value, other: t.Value, outer: float = 0) -> str:
        """An operand; a number takes the dtype of the other operand."""
        dtype = other.dtype if isinstance(other, t.Expr) else "int32"
        if self._in_leaf and dtype in ("uint32", "int64") and not isinstance(value, t.Expr):
            return self._phrase("constant", dtype=dtype, number=int(value), value=self.spelled(value))
        return self._folded(value, outer)

    def _of_threads(self, value: t.Expr, outer: float) -> str:
        """An operation that only the text of a leaf contains."""
        if value.op == "~":
            text = f"~{self._folded(value.args[0], _UNARY)}"
            return f"({text})" if outer > _UNARY else text
        if value.op == "to":
            return self._phrase("to", value=self._folded(value.args[0], _ATOM), dtype=value.dtype)
        if value.op == "select":
            condition, a, b = value.args
            return self._phrase(
                "select", condition=self._folded(condition), a=self._beside(a, b), b=self._beside(b, a)
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
        """The facts of an element that macros see: its index in the array, its row and column in the matrix
        that the array is a line of."""
        matrix, rows, first = array.line or (array, (), 0)
        *own, last = at
        if own and array.swizzle:
            raise DeclarationError(
                f"{array.name}[row, column] in the text of a leaf", expected="rows that are not swizzled",
                got=f"a swizzle of {array.swizzle} bytes",
                fix="read or write groups of elements",
            )  # fmt: skip
        index = plus(own[0] * array.shape[1], last) if own else last
        unsigned = isinstance(last, t.Expr) and last.dtype == "uint32"
        return {
            "name": array.name, "index": self.value(index, outer), "wide": array.wide, "matrix": matrix.name,
            "first": self.value(first, 4),
            "rows": [self.value(row) for row in (*rows, *own)], "column": self.value(last, outer),
            "unsigned": unsigned, "staged": array.staged,
        }  # fmt: skip

    def _schedule_role(self, name: str) -> SimpleNamespace:
        return role_facts(self._schedule, self._schedule.role(name))

    def _argument(self, argument: Any) -> str:
        if isinstance(argument, t.View):
            return self._view(argument)
        if isinstance(argument, t.Global):
            return self._phrase("operand", name=argument.name, strides=argument.strides)
        if isinstance(argument, t.Cluster):
            return argument.buffer
        if isinstance(argument, leaf_text.Array):
            strides = [self.value(stride) for stride in argument.strides]
            return self._phrase("array", name=argument.name, staged=argument.staged, strides=strides)
        if isinstance(argument, t.Sender):
            pipe = argument.slot.pipeline
            return self._words(pipe, 0) if transfer_of(pipe).WORDS else self._barrier(argument.slot, "full")
        return self.value(argument)

    def _facts(self, view: t.View) -> SimpleNamespace:
        """The facts of a view that macros see: its buffer, stage, rows and columns."""
        buffer = self._schedule.buffer(view.buffer)
        rows = view.rows or buffer.shape[0]
        first = view.first
        return SimpleNamespace(
            buffer=buffer, name=buffer.name, slot=self._stage(view, buffer),
            first=self.value(first), end=self.value(first + rows), whole=view.rows in (None, buffer.shape[0]),
            column=self.value(view.column, 4),
            column_end=self.value(plus(view.column, view.width)) if view.width else None,
            columns=self.spelled(buffer.shape[-1]), width=self.spelled(view.width or buffer.shape[-1]),
            place=self.value(self._place(view, buffer), 5),
            threads=self._schedule.role(buffer.role).warps * 32 if buffer.role else None,
        )  # fmt: skip

    def _place(self, view: t.View, buffer: Buffer) -> t.Value:
        """The element (in tensor memory: the column) at which a view begins, counted over all stages."""
        stage: t.Value = 0
        tensor = buffer.space is Space.TENSOR
        if view.use is not None and buffer.stages > 1:
            stage = t.Expr("%", (view.use, buffer.stages)) * (
                buffer.columns if tensor else buffer.stage_elements
            )
        if tensor:
            # A column of tensor memory holds 4 bytes, so two 16-bit elements unless the buffer is unpacked.
            packed = 4 // DTYPES[buffer.dtype].bytes if not buffer.unpacked else 1
            column = _divided(view.column, packed)
            return plus(plus(self._schedule.tensor_offset(buffer.name), stage), column)
        each = math.prod(buffer.shape[1:])
        if view.width is not None and buffer.swizzle:
            # A swizzled buffer is a sequence of panels whose rows are as wide as the swizzle.
            each = buffer.swizzle // DTYPES[buffer.dtype].bytes
            stage = plus(stage, view.column * buffer.shape[0])
        return plus(stage, view.first if each == 1 else view.first * each)

    def _stage(self, view: t.View, buffer: Buffer) -> str | None:
        if view.use is None:
            return None
        return self._ring(view.use, buffer.stages)

    def _ring(self, use: t.Value, stages: int) -> str:
        """Index of a use's ring slot, by a plain `%`, as uses are never negative."""
        return "0" if stages == 1 else f"{self.value(use, 5)} % {self.spelled(stages, 6)}"

    def _view(self, view: t.View) -> str:
        buffer = self._schedule.buffer(view.buffer)
        begins_inside = not all(isinstance(at, int) and at == 0 for at in (view.first, view.column))
        if begins_inside and not getattr(self._spelling, "views_of_parts", True):
            raise DeclarationError(
                f"part of {view.buffer}", expected="a whole slot, as this DSL passes buffers by name",
                got=f"a view from row {view.first} and column {view.column} on",
                fix="pass the slot, and where the part begins as an argument of its own",
            )  # fmt: skip
        return self._phrase("view", **vars(self._facts(view)), space=buffer.space.value)

    def _group_in(self, array: leaf_text.Array, at: Iterable[t.Value], size: int) -> dict[str, Any]:
        """The facts of a group of elements that macros see: its number, or its first row and column."""
        whole, rows, first = array.line or (array, (), 0)
        *own, last = at
        return {
            "size": self.spelled(size), "group": None if own else self.value(last), "name": array.name,
            "matrix": whole.name,
            "first": self.value(first), "rows": [self.value(row) for row in (*rows, *own)],
            "column": self.value(last, 4), "staged": array.staged,
            "shape": [self.spelled(extent) for extent in array.shape], "swizzle": array.swizzle,
        }  # fmt: skip

    def _box(self, box: t.Box) -> dict[str, Any]:
        """The facts of a box that macros see: its tensor map, coordinates and ranges, outermost first."""
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

    def _tile(self, view: t.View, rows: int, columns: int, major: str) -> SimpleNamespace:
        """The stage of a product's operand, and the index of the `rows` by `columns` tile at which its
        view begins.

        The columns of a K-major operand are its depth: its tiles follow one another along K.
        """
        buffer = self._schedule.buffer(view.buffer)
        tile = _divided(view.first, rows) if view.width is None else _divided(view.column, columns)
        stage = self._stage(view, buffer) or "0"
        flat: t.Value = tile
        if buffer.stages > 1 and view.use is not None:
            each = buffer.shape[0] // rows if view.width is None else buffer.shape[1] // columns
            at = t.Expr("%", (view.use, buffer.stages))
            flat = plus(at * each if each > 1 else at, tile)
        row, depth = (0, tile) if major == "k" and view.width is not None else (tile, 0)
        return SimpleNamespace(
            stage=stage, row=self.value(row, 4), depth=self.value(depth), flat=self.value(flat, 4)
        )

    def _words(self, pipe: Pipeline, cta: t.Value) -> str:
        """The address of the first word in the inbox of a CTA, to which other CTAs of the grid send."""
        total, first = words_of(self._schedule, pipe.through)
        place = plus(cta * total if isinstance(cta, t.Expr) else cta * int(total), first[pipe.name])
        return f"{pipe.through} + {self.value(place, 4)}" if not _is_zero(place) else pipe.through

    def _barrier(self, slot: t.Slot, side: str) -> str:
        return self._phrase(
            "barrier", name=f"{slot.pipeline.name}_{side}", slot=self._ring(slot.use, slot.pipeline.stages)
        )


@lru_cache(maxsize=4096)
def _is_call(text: str) -> bool:
    return isinstance(ast.parse(text, mode="eval").body, ast.Call)


def _dtypes(*values: t.Value) -> set[str]:
    return {value.dtype for value in values if isinstance(value, t.Expr)}


def plus(a: t.Value, b: t.Value) -> t.Value:
    """a + b, simplified when one of them is the literal 0."""
    if _is_zero(a):
        return b
    return a if _is_zero(b) else a + b


def _is_zero(value: t.Value) -> bool:
    return not isinstance(value, t.Expr) and value == 0


def _divided(value: t.Value, by: int) -> t.Value:
    """value / by, if that is exact for every value of the names in it.

    Raises:
        TemplateError: it may not be exact.
    """
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
        "a product's operand", expected=f"a first row that is a multiple of {by}", got=str(value),
        fix="multiply an index by the rows of a tile"
    )  # fmt: skip
