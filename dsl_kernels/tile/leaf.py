"""Leaves: the pieces of maths that bodies call, each with its name, parameters and meaning."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ..errors import DeclarationError

if TYPE_CHECKING:
    from .recorder import Recorder

T = TypeVar("T")
AMBIENT = ("thread", "warp", "lane", "threads")
"""Parameters that no call passes: the text of a leaf gets them from its recorder, as `m.thread`."""


class Out:
    """Marks a scalar parameter that a leaf sets."""


class InOut:
    """Marks a scalar parameter that a leaf reads and sets."""


class Stored:
    """Marks an operand in global memory that a leaf writes."""


Sets = Annotated[T, Out]
Changes = Annotated[T, InOut]
Writes = Annotated[T, Stored]


class Kind(NamedTuple):
    """An argument's kind: "value" (the kernel's), "number" (Python's) or one of memory, and its dtype."""

    of: str
    dtype: str = ""

    def __str__(self) -> str:
        title = _KINDS.get(self.of, self.of)
        return f"{title} of {self.dtype}" if self.dtype else title

    def accepts(self, other: Kind) -> bool:
        """Whether a parameter of this kind takes an argument of kind `other`; any value may be a number."""
        if self.of != other.of and (self.of, other.of) != ("value", "number"):
            return False
        return other.of == "number" or not self.dtype or self.dtype == other.dtype


# Annotations for parameters that the meaning of a leaf in torch takes as tensors.
RegisterTile = Annotated[Any, Kind("register")]
SharedTile = Annotated[Any, Kind("shared")]
TensorTile = Annotated[Any, Kind("tensor")]
_KINDS = {
    "value": "a value",
    "number": "a number of Python",
    "register": "registers",
    "shared": "shared memory",
    "tensor": "tensor memory",
    "global": "an operand",
    "peers": "shared memory of the cluster",
    "sender": "a sender",
    "none": "None",
}


class Record:
    """Several arguments that travel as one: derive a dataclass whose fields are annotated as parameters are.

    A leaf that takes a record has each of its fields as a parameter.
    """


class Parameter(NamedTuple):
    """A leaf's parameter: its name, its mark (`Out`, `InOut`, `Stored`), the kinds it takes (empty: any)."""

    name: str
    mark: type | None = None
    takes: tuple[Kind, ...] = ()


@dataclass(frozen=True)
class Leaf:
    """One piece of leaf maths: its name, its parameters, and its meaning in torch or its text.

    The torch function takes every parameter that is not `Out`, and returns the new values of its `Out` and
    `InOut` parameters in order. Registers, shared memory and operands are passed to it as tensors, which it
    writes in place; the operands that it writes are marked `Writes`. A leaf declared by its `text`
    (`tile.leaf_text.by_text`) has no meaning in torch and no spelling in a DSL: the interpreter runs the
    text, and the printer prints it. `loaded`, `stored` and `longest` tell the cost model what the leaf moves
    and sets (`tile.counting`).
    """

    name: str
    parameters: tuple[Parameter, ...]
    torch: Callable[..., Any]
    doc: str
    text: Callable[..., None] | None = None
    loaded: Callable[..., float] | None = None
    stored: Callable[..., float] | None = None
    longest: Callable[..., tuple[Any, ...]] | None = None

    def __call__(self, m: Recorder, *arguments: Any, **named: Any) -> None:
        records = [name for name, value in named.items() if isinstance(value, Record)]
        fields = {name: value for record in records for name, value in vars(named.pop(record)).items()}
        m.call(self, tuple(_flat(arguments)), named | fields)

    @property
    def passed(self) -> tuple[Parameter, ...]:
        """The parameters that a call passes: all but the ambient ones."""
        return self.parameters[: -len(AMBIENT)] if self.text is not None else self.parameters

    def bound(self, arguments: Iterable[Any], named: Mapping[str, Any], by: str) -> tuple[Any, ...]:
        """The argument of each passed parameter, bound as Python does; `by` is the caller, for errors.

        Raises:
            DeclarationError: an argument is missing, unknown or given twice.
        """
        arguments, names = tuple(arguments), [parameter.name for parameter in self.passed]
        missing = [name for name in names[len(arguments) :] if name not in named]
        unknown = [name for name in named if name not in names]
        twice = [name for name in names[: len(arguments)] if name in named]
        wrong = ""
        if missing:
            wrong = f"nothing for {', '.join(missing)}"
        elif unknown:
            wrong = f"no parameter {unknown[0]}"
        elif twice:
            wrong = f"{twice[0]} twice"
        elif len(arguments) > len(names):
            wrong = f"{len(arguments)} arguments"
        if wrong:
            raise DeclarationError(
                f"leaf {self.name} in {by}",
                expected=f"one argument a parameter: {', '.join(names)}",
                got=wrong,
                fix="pass each in its place or by its name; "
                "thread, warp, lane and threads are the leaf's own: m.thread",
            )
        return (*arguments, *(named[name] for name in names[len(arguments) :]))

    @property
    def results(self) -> tuple[int, ...]:
        """Positions of the scalar parameters that are set."""
        return tuple(i for i, p in enumerate(self.parameters) if p.mark in (Out, InOut))

    @property
    def written(self) -> tuple[int, ...]:
        """Positions of the operands that are written into."""
        return tuple(i for i, p in enumerate(self.parameters) if p.mark is Stored)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Positions of the parameters that are read."""
        return tuple(i for i, p in enumerate(self.parameters) if p.mark is not Out)


def _flat(arguments: Iterable[Any]) -> Iterator[Any]:
    """Arguments with the fields of each record in its place."""
    for argument in arguments:
        yield from vars(argument).values() if isinstance(argument, Record) else (argument,)


def parameters_of(function: Callable[..., Any], numbers: str) -> tuple[Parameter, ...]:
    """The parameters that a function annotates; `int`, `float` and `bool` stand for the kind `numbers`."""
    return tuple(
        Parameter(name, _mark(hint), _kinds(hint, numbers))
        for title, hint in _annotated(function).items()
        for name, hint in (_annotated(hint) if _is_record(hint) else {title: hint}).items()
    )


def _annotated(callee: Any) -> dict[str, Any]:
    """The parameters of a function or of a record with their annotations, None where there is none."""
    hints = get_type_hints(callee, include_extras=True)
    return {name: hints.get(name) for name in inspect.signature(callee).parameters}


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Record)


def with_records(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a recorder and a leaf's parameters, which calls `function` with its records."""
    records = [
        (hint, len(_annotated(hint))) if _is_record(hint) else None
        for hint in [*_annotated(function).values()][1:]
    ]
    if not any(records):
        return function

    def call(m: Recorder, *flat: Any) -> Any:
        left = iter(flat)
        passed = (next(left) if of is None else of[0](*islice(left, of[1])) for of in records)
        return function(m, *passed)

    return call


def leaf(function: Callable[..., Any]) -> Leaf:
    """Declare a leaf by its meaning in torch, to which values of the kernel are passed as numbers."""
    parameters = parameters_of(function, "value")
    inputs = [i for i, p in enumerate(parameters) if p.mark is not Out]

    def meaning(*arguments: Any) -> Any:
        full: list[Any] = [None] * len(parameters)
        for position, argument in zip(inputs, arguments, strict=True):
            full[position] = argument
        return function(*full)

    return Leaf(function.__name__, parameters, meaning, inspect.cleandoc(function.__doc__ or ""))


def _mark(hint: Any) -> type | None:
    return next((x for x in getattr(hint, "__metadata__", ()) if x in (Out, InOut, Stored)), None)


def _kinds(hint: Any, numbers: str) -> tuple[Kind, ...]:
    """The kinds that an annotation names; empty if it allows any, as `Any` does."""
    if get_origin(hint) in (Union, types.UnionType):
        parts = [_kinds(part, numbers) for part in get_args(hint)]
        return tuple(kind for kinds in parts for kind in kinds) if all(parts) else ()
    if hint is types.NoneType:
        return (Kind("none"),)
    if isinstance(hint, type) and issubclass(hint, (int, float)):
        return (Kind(numbers),)
    for mark in getattr(hint, "__metadata__", ()):
        if isinstance(mark, Kind):
            return (mark,)
        if hasattr(mark, "dtype"):
            return (Kind("value", mark.dtype),)
    if hasattr(hint, "__metadata__"):
        return _kinds(hint.__origin__, numbers)
    of = getattr(get_origin(hint) or hint, "KIND", "")
    dtypes = (kind.dtype for part in get_args(hint) for kind in _kinds(part, numbers))
    return (Kind(of, *dtypes),) if of else ()
