"""Tile programs, one module an operation, found by their file name."""

from __future__ import annotations

from .._discover import discover, module_names
from ..tile.lang import TileProgram


def names() -> list[str]:
    """Every operation that has a tile program."""
    return module_names(__path__)


def get(op: str) -> TileProgram:
    """The tile program of an operation.

    Raises:
        UnknownNameError: no module `programs/<op>.py`.
    """
    return discover(__name__, op, names, "tile program", "PROGRAM")
