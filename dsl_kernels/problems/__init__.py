"""Problems, one module an operation, found by their file name."""

from __future__ import annotations

from .._discover import discover, module_names
from .base import Problem


def names() -> list[str]:
    """Every operation that has a problem module."""
    return [name for name in module_names(__path__) if name not in ("base", "binding", "layouts")]


def get(op: str) -> Problem:
    """The problem of an operation.

    Raises:
        UnknownNameError: no module `problems/<op>.py`.
    """
    return discover(__name__, op, names, "operation", "PROBLEM")
