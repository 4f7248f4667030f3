"""Tile programs, one module or package an operation, found by its name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .._discover import discover, module_files, module_names

if TYPE_CHECKING:
    from ..tile.program import TileProgram


def names() -> list[str]:
    """Every operation that has a tile program."""
    return module_names(__path__)


def files(op: str) -> list[Path]:
    """The source files of an operation's tile program."""
    return module_files(__path__, op)


def get(op: str) -> TileProgram:
    """The tile program of an operation.

    Raises:
        UnknownNameError: no module `programs/<op>`.
    """
    return discover(__name__, op, names, "tile program", "PROGRAM")
