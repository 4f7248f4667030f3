"""Tile programs of operations, found by name: `kernels/<op>/program`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import kernels
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    from .tile.program import TileProgram


def names() -> list[str]:
    """Every operation that has a tile program."""
    return kernels.names("program")


_lent: dict[str, TileProgram] = {}


def lend(program: TileProgram) -> None:
    """Let executors of this process find a program that is in no module; the last one of a name counts.

    Raises:
        InvalidArgumentError: an operation has that name.
    """
    if program.op in names():
        raise InvalidArgumentError(
            "program", expected="a name that no operation has", got=repr(program.op), fix="name it otherwise"
        )
    _lent[program.op] = program


def get(op: str) -> TileProgram:
    """The tile program of an operation, or one that was lent (`lend`).

    Raises:
        UnknownNameError: no `kernels/<op>/program`.
    """
    if isinstance(op, str) and op in _lent:
        return _lent[op]
    program: TileProgram = kernels.get(op, "program", "PROGRAM", "tile program")
    return program
