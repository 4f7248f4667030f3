"""Leaves: pieces of leaf maths by their name, parameters and meaning in torch."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
"""What the text of a leaf asks its recorder for, `m.thread`, and no call passes."""


class Out:
    """Marks a scalar parameter that a leaf sets."""


class InOut:
    """Marks a scalar parameter that a leaf reads and sets."""


class Stored:
    """Marks an operand in global memory that a leaf writes into."""


Sets = Annotated[T, Out]
Changes = Annotated[T, InOut]
Writes = Annotated[T, Stored]


class Kind(NamedTuple):
    """What an argument is: "value" of the kernel, "number" of Python, or a kind of memory; and of which dtype, if that matters."""

    of: str
    dtype: str = ""

    def __str__(self) -> str:
        title = _KINDS.get(self.of, self.of)
        return f"{title} of {self.dtype}" if self.dtype else title

    def accepts(self, other: Kind) -> bool:
        """Whether an argument of that kind may stand for a parameter of this one; a number stands for any value."""
        if self.of != other.of and (self.of, other.of) != ("value", "number"):
            return False
        return other.of == "number" or not self.dtype or self.dtype == other.dtype


# What the meaning of a leaf in torch takes as a tensor.
RegisterTile = Annotated[Any, Kind("register")]
SharedTile = Annotated[Any, Kind("shared")]
TensorTile = Annotated[Any, Kind("tensor")]
GlobalTile = Annotated[Any, Kind("global")]
_KINDS = {
    "value": "a value", "number": "a number of Python", "register": "registers", "shared": "shared memory", "tensor": "tensor memory",
    "global": "an operand", "peers": "shared memory of the cluster", "sender": "a sender", "none": "None",
}  # fmt: skip


class Parameter(NamedTuple):
    """A parameter of a leaf: its name, its mark (`Out`, `InOut`, `Stored`), and the kinds that it takes; none: any."""

    name: str
    mark: type | None = None
    takes: tuple[Kind, ...] = ()


@dataclass(frozen=True)
class Leaf:
    """One piece of leaf maths: its name and parameters, and what it means in torch.

    The torch function takes every parameter that is not `Out` and returns the new values of its `Out` and `InOut`
    parameters in order. Registers and shared stages come to it as tensors, which it writes in place, and so do operands;
    those that it writes are marked `Writes`. A leaf that is declared by its `text` (`tile.leaf_text.by_text`) has neither a
    meaning in torch nor a spelling: the interpreter runs the text, and the printer prints it. For the cost model `loaded`,
    `stored` and `longest` say what it moves and what it sets (`tile.counting`).
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
        m.call(self, arguments, named)

    @property
    def passed(self) -> tuple[Parameter, ...]:
        """The parameters that a call passes: all but what is ambient."""
        return self.parameters[: -len(AMBIENT)] if self.text is not None else self.parameters

    def bound(self, arguments: Iterable[Any], named: Mapping[str, Any], by: str) -> tuple[Any, ...]:
        """An argument for each parameter that a call by `by` passes, bound as Python binds them.

        Raises:
            DeclarationError: one is missing, unknown or given twice.
        """
        arguments, names = tuple(arguments), [parameter.name for parameter in self.passed]
        missing = [name for name in names[len(arguments) :] if name not in named]
        unknown = [name for name in named if name not in names]
        twice = [name for name in names[: len(arguments)] if name in named]
        if missing or unknown or twice or len(arguments) > len(names):
            wrong = (
                f"nothing for {', '.join(missing)}" if missing else f"no parameter {unknown[0]}" if unknown
                else f"{twice[0]} twice" if twice else f"{len(arguments)} arguments"
            )  # fmt: skip
            raise DeclarationError(
                f"leaf {self.name} in {by}", expected=f"one argument a parameter: {', '.join(names)}", got=wrong,
                fix="pass each in its place or by its name; thread, warp, lane and threads are the leaf's own: m.thread",
            )  # fmt: skip
        return (*arguments, *(named[name] for name in names[len(arguments) :]))

    @property
    def results(self) -> tuple[int, ...]:
        """Positions of the parameters that are set."""
        return tuple(i for i, p in enumerate(self.parameters) if p.mark in (Out, InOut))

    @property
    def written(self) -> tuple[int, ...]:
        """Positions of the operands that are written into."""
        return tuple(i for i, p in enumerate(self.parameters) if p.mark is Stored)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Positions of the parameters that are read."""
        return tuple(i for i, p in enumerate(self.parameters) if p.mark is not Out)


def parameters_of(function: Callable[..., Any], numbers: str) -> tuple[Parameter, ...]:
    """The parameters as they are annotated; what `int`, `float` and `bool` take is of the kind `numbers`."""
    hints = get_type_hints(function, include_extras=True)
    return tuple(
        Parameter(name, _mark(hints.get(name)), _kinds(hints.get(name), numbers))
        for name in inspect.signature(function).parameters
    )


def leaf(function: Callable[..., Any]) -> Leaf:
    """Declare a leaf by its meaning in torch, where a value of the kernel is a number, too."""
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
    """The kinds that an annotation names; none where it says nothing of them, as `Any` does."""
    if get_origin(hint) in (Union, types.UnionType):
        found = [_kinds(part, numbers) for part in get_args(hint)]
        return tuple(kind for kinds in found for kind in kinds) if all(found) else ()
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
    return (
        (Kind(of, *(kind.dtype for part in get_args(hint) for kind in _kinds(part, numbers))),) if of else ()
    )
