"""Leaves: pieces of leaf maths by their name, parameters and meaning in torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from .recorder import Recorder


class Out:
    """Marks a scalar parameter that a leaf sets."""


class InOut:
    """Marks a scalar parameter that a leaf reads and sets."""


class Stored:
    """Marks an operand in global memory that a leaf writes into."""


Sets = Annotated[Any, Out]
Changes = Annotated[Any, InOut]
Writes = Annotated[Any, Stored]


@dataclass(frozen=True)
class Leaf:
    """One piece of leaf maths: its name and parameters, and what it means in torch.

    The torch function takes every parameter that is not `Out` and returns the new values of its `Out` and `InOut`
    parameters in order. Registers and shared stages come to it as tensors, which it writes in place, and so do operands;
    those that it writes are marked `Writes`. A leaf that is declared by its `text` (`tile.leaf_text.by_text`) has neither a
    meaning in torch nor a spelling: the interpreter runs the text, and the printer prints it.
    """

    name: str
    parameters: tuple[tuple[str, type | None], ...]
    torch: Callable[..., Any]
    doc: str
    text: Callable[..., None] | None = None

    def __call__(self, m: Recorder, *arguments: Any, **named: Any) -> None:
        m.call(self, arguments, named)

    @property
    def results(self) -> tuple[int, ...]:
        """Positions of the parameters that are set."""
        return tuple(i for i, (_, mark) in enumerate(self.parameters) if mark in (Out, InOut))

    @property
    def written(self) -> tuple[int, ...]:
        """Positions of the operands that are written into."""
        return tuple(i for i, (_, mark) in enumerate(self.parameters) if mark is Stored)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Positions of the parameters that are read."""
        return tuple(i for i, (_, mark) in enumerate(self.parameters) if mark is not Out)


def leaf(function: Callable[..., Any]) -> Leaf:
    """Declare a leaf by its meaning in torch."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[tuple[str, type | None]] = []
    for parameter in inspect.signature(function).parameters:
        hint = hints.get(parameter)
        marks = (
            [x for x in get_args(hint)[1:] if x in (Out, InOut, Stored)]
            if get_origin(hint) is Annotated
            else []
        )
        parameters.append((parameter, marks[0] if marks else None))
    inputs = [i for i, (_, mark) in enumerate(parameters) if mark is not Out]

    def meaning(*arguments: Any) -> Any:
        full: list[Any] = [None] * len(parameters)
        for position, argument in zip(inputs, arguments, strict=True):
            full[position] = argument
        return function(*full)

    return Leaf(function.__name__, tuple(parameters), meaning, inspect.cleandoc(function.__doc__ or ""))
