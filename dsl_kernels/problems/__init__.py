"""Problems of operations, found by name (`kernels/<op>/problem.py`), and what they are made of."""

from __future__ import annotations

from .. import kernels
from .base import Problem


def names() -> list[str]:
    """Every operation that has a problem."""
    return kernels.names("problem")


def get(op: str) -> Problem:
    """The problem of an operation.

    Raises:
        UnknownNameError: no `kernels/<op>/problem.py`.
    """
    problem: Problem = kernels.get(op, "problem", "PROBLEM", "operation")
    return problem
