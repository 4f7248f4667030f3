"""Oracles of operations, found by name in `oracles/<op>.py`: what decides whether outputs are right."""

from __future__ import annotations

from dsl_kernels._discover import discover, module_names
from dsl_kernels.problems.base import Oracle, Problem, Workload


def names() -> list[str]:
    """Every operation that has an oracle."""
    return module_names(__path__)


def get(op: str) -> Oracle:
    """The oracle of an operation.

    Raises:
        UnknownNameError: there is no `oracles/<op>.py`.
    """
    oracle: Oracle = discover(__name__, op, names, "operation", "ORACLE")
    return oracle


def real(problem: Problem, *names: str) -> list[Workload]:
    """The points of a problem whose grids are all the same, as workloads under these names."""
    return [
        Workload(name, "real", form, params)
        for name, (form, params) in zip(names, problem.grid("core"), strict=True)
    ]
