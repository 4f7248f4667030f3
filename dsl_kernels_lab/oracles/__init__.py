"""Oracles of operations, found by name in `oracles/<op>.py`: what decides whether outputs are right."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dsl_kernels._discover import discover, module_names
from dsl_kernels.arguments import checked, require_known
from dsl_kernels.problems.base import Comparison, Problem

if TYPE_CHECKING:
    import torch


@checked
@dataclass(frozen=True)
class Workload:
    """A named instance of a problem: a form, its sizes, and parameters of its random inputs.

    Attributes:
        name: unique in its problem.
        tier: "tiny" for the emulator and the interpreter, "edge" for hard cases at small sizes, or "real" for
            sizes of production.
        form: a form of the problem.
        params: sizes and parameters of the inputs, by name.
        doc: what it tests.
    """

    name: str
    tier: str
    form: str
    params: Mapping[str, Any]
    doc: str = ""


@dataclass(frozen=True, kw_only=True)
class Oracle(Problem):
    """A problem with what decides whether outputs are right: drawn inputs, a reference and tolerances.

    Attributes:
        workloads: named instances.
        make: (workload, generator) -> the "in" operands and scalars.
        reference: (form, inputs) -> the expected outputs, floating-point ones in float64.
        compare: (form, inputs, outputs, expected) -> the `Comparison` with this problem's tolerances.
        flops: (form, dims) -> floating-point operations, by the dtype of the unit that runs them.
        units: (form, dims) -> the name of what a call produces, and its amount; throughput is this a second.
        forms_share_workloads: (form, other form) -> whether the sizes of a workload mean the same in both, so
            that either can draw it; by default they do not.
    """

    workloads: tuple[Workload, ...]
    make: Callable[[Workload, torch.Generator], dict[str, Any]]
    reference: Callable[[str, Mapping[str, Any]], dict[str, torch.Tensor]]
    compare: Callable[[str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], Comparison]
    flops: Callable[[str, Mapping[str, int]], dict[str, float]]
    units: Callable[[str, Mapping[str, int]], tuple[str, int]] | None = None
    forms_share_workloads: Callable[[str, str], bool] = lambda form, other: False

    def workload(self, name: str) -> Workload:
        """A workload by its name.

        Raises:
            UnknownNameError: the problem has no such workload.
        """
        named = {workload.name: workload for workload in self.workloads}
        require_known(f"workload of {self.op}", name, named, "workload")
        return named[name]

    def point_of(self, form: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes, named as in operands or in points, as those of a point.

        Raises:
            UnknownNameError: no point of the form has such a name; the error lists near misses.
            InvalidArgumentError: a value of another kind, or two names that give one size two values.
        """
        self._check(form, given)
        sizes = self.point_sizes(form)
        aliases = {alias.dim: alias for alias in reversed(self.names.get(form, ()))}
        point = {name: value for name, value in given.items() if name in sizes}
        for alias in self.names.get(form, ()):
            if alias.dim in given and alias.dim not in sizes:
                point.setdefault(alias.name, math.ceil(Fraction(given[alias.dim]) / alias.each))
        for name in given:
            require_known(f"size of a point of {self.op} {form}", name, [*sizes, *aliases], "size")
        self._check(form, {**given, **point})
        return point


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
