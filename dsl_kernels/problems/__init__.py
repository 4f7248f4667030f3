"""Problems of operations, found by name in `kernels/<op>/problem.py`, and their parts."""

from __future__ import annotations

from .. import kernels
from .base import Problem


def names() -> list[str]:
    """Every operation that has a problem."""
    return kernels.names("problem")


def get(op: str) -> Problem:
    """The problem of an operation.

    Raises:
        UnknownNameError: there is no `kernels/<op>/problem.py`.
    """
    problem: Problem = kernels.get(op, "problem", "PROBLEM", "operation")
    return problem
