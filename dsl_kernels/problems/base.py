"""A problem: operands with symbolic shapes, sizes and bytes; its oracle: workloads, reference, tolerances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..arguments import checked, require_known, shown
from ..dtypes import DTYPES
from ..errors import DeclarationError, InvalidArgumentError

if TYPE_CHECKING:
    import torch

# With values outside of an operand's range, a kernel may read or write out of bounds.
UNDEFINED = "undefined"


def axis_strides(name: str, axes: str) -> tuple[str | int, ...]:
    """Strides of an operand for `OperandSpec.strides`: a runtime dim for each axis, by its letter.

    The last axis is dense: its stride is 1.
    """
    return (*(f"{name}_stride_{axis}" for axis in axes), 1)


@dataclass(frozen=True)
class Values:
    """A rule of an operand's values, and what the kernels do with values that break it.

    Executors off the GPU refuse values for which kernels are undefined. `DSL_KERNELS_CHECK_VALUES` refuses
    every value that breaks a rule.

    Attributes:
        allowed: the rule in words.
        wrong: (operands, dims) -> a bool mask of the operand's shape, True where a value breaks the rule.
        otherwise: `UNDEFINED`, or how every executor reads such a value.
    """

    allowed: str
    wrong: Callable[[Mapping[str, Any], Mapping[str, int]], torch.Tensor]
    otherwise: str = UNDEFINED


@checked
@dataclass(frozen=True)
class OperandSpec:
    """One argument of a problem's kernels, which list their arguments in call order.

    Attributes:
        name: its name in kernels.
        shape: its extents. A string is a runtime dim, or a static dim that the variant's knobs fix. () is a
            scalar.
        dtype: its dtype, by a name of `dsl_kernels.dtypes`.
        kind: "in", "out", "scalar", or "workspace" for a kernel's own operand that the caller allocates.
        row_stride: the runtime dim that holds the stride of axis 0 in elements; None means contiguous.
        strides: for a tensor with any strides, the runtime dim or the number that is each axis' stride in
            elements, as `axis_strides` names them; () means that `row_stride` says it.
        zeroed: a workspace that is zero on entry and that the kernel leaves zero, or an output that kernels
            add to.
        doc: what it means.
        align: the address and the row stride are multiples of so many bytes, the widest access of any
            variant. Vector loads, bulk copies and tensor maps need 16; operands read one element at a time
            need 4.
        default: the value that fills an input which the caller leaves out; None if the input is required. An
            output with a default is optional work: if the caller leaves it out, memory of its `sizes` filled
            with this value takes its place, and a scalar tells the kernel to write nothing there.
        argument: its name in the torch op, if that is another one.
        sizes: for an operand that the caller leaves out, extents that no other operand gives, as expressions
            over the other dims.
        limits: the least and the greatest value of a caller's scalar, whole numbers for an integer;
            (-inf, inf) means finite. Every call checks them.
        requires: expressions over the dims that must hold.
        values: rules of its values.
        of_nothing: for an output, the value of its elements if an input has no elements, or the scalar
            operand that gives the value: no kernel runs on an input without an address. None if such inputs
            are refused, or if the output then has no elements either.
        may_be_empty: for an input, whether a kernel runs although it has no elements.
        longest: for an integer input, its elements if every row is as long as the call allows: a number or a
            dim.
        peers: for an input that every rank of a group has, the operand [ranks] int64 with the distance in
            bytes from this rank's input to each rank's, 0 for its own. Kernels read the ranks' memory through
            it.
    """

    name: str
    shape: tuple[str | int, ...]
    dtype: str
    kind: str = "in"
    row_stride: str | None = None
    zeroed: bool = False
    doc: str = ""
    align: int = 16
    default: float | None = None
    argument: str = ""
    sizes: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[float, float] | None = None
    requires: tuple[str, ...] = ()
    values: tuple[Values, ...] = ()
    strides: tuple[str | int, ...] = ()
    of_nothing: float | str | None = None
    may_be_empty: bool = False
    longest: str = "0"
    peers: str = ""

    def __post_init__(self) -> None:
        if self.peers and (self.kind != "in" or not self.shape):
            raise DeclarationError(
                f"operand {self.name}",
                expected="an input tensor, as kernels only read peers' memory",
                got=f"kind {self.kind} and shape {self.shape} with peers",
                fix="leave out `peers`, or declare it an input",
            )
        if self.limits is None:
            return
        low, high = self.limits
        whole = "float" in self.torch_name or all(isinstance(limit, int) for limit in self.limits)
        if self.kind != "scalar" or not low <= high or not whole:
            raise DeclarationError(
                f"limits of operand {self.name}",
                expected="a scalar's least value and then its greatest, whole numbers for an integer",
                got=f"({low}, {high}) of {self.kind} {self.name}, {self.dtype}",
                fix="correct the limits; for a tensor, state which values it may have with `values`",
            )

    @property
    def layout(self) -> tuple[str | int, ...] | None:
        """The stride of each axis in elements, a dim or a number; None if the operand is contiguous."""
        return self.strides or ((self.row_stride, 1) if self.row_stride else None)

    @property
    def optional(self) -> bool:
        """Whether a caller may leave the operand out: an output, or an input with a default."""
        return self.kind == "out" or self.default is not None

    @property
    def label(self) -> str:
        """The operand's name for callers."""
        return self.argument or self.name

    @property
    def torch_name(self) -> str:
        """Torch's name of the dtype."""
        return DTYPES[self.dtype].torch_name

    @property
    def torch_dtype(self) -> torch.dtype:
        """Torch's dtype; imports torch."""
        return DTYPES[self.dtype].torch


@dataclass
class Comparison:
    """The outcome of comparing outputs with the reference: figures by name, their limits, and failures."""

    figures: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failures

    def require(self, name: str, figure: float, limit: float) -> None:
        """Record a figure that must not exceed its limit; NaN fails."""
        self.figures[name], self.limits[name] = figure, limit
        if not figure <= limit:
            self.failures.append(f"{name} = {figure:.3g} exceeds {limit:.3g}")

    def demand(self, name: str, holds: bool, detail: str = "") -> None:
        """Record a condition that must hold."""
        self.figures[name] = 0.0 if holds else 1.0
        self.limits[name] = 0.0
        if not holds:
            self.failures.append(f"{name} violated{': ' + detail if detail else ''}")


GRIDS = ("core", "serving", "contest", "smoke", "wide")
"""Measuring grids."""
# Queries, sequences or rows of the wide grid: powers of two, and numbers between them.
WIDE = (1, 2, 3, 8, 16, 24, 37, 48, 64, 96, 128, 200, 512)
# The most scores of a point of the wide grid: 256 MiB of float32.
WIDE_SCORES = 1 << 26
# Sequences and their lengths on each, for operations over rows of scores.
ROW_GRIDS = {
    "core": ((1, 16, 64), (4096, 32768, 131072)),
    "serving": ((1, 4, 16, 64, 128), (4096, 32768, 131072)),
    "contest": ((1, 8, 31), (1024, 2880, 5824)),
    "smoke": ((1, 16), (4096,)),
    "wide": (WIDE, (4096, 8192, 32768, 131072, 524288, 1 << 20)),
}


@dataclass(frozen=True)
class PointName:
    """A size that has another name in points of measuring grids than in operands.

    Attributes:
        name: its name in a point.
        dim: the runtime dim: the point's value times `each`, rounded up.
        each: how much of the dim one of the point's value makes.
    """

    name: str
    dim: str
    each: Fraction | int = 1

    def of_point(self, value: int) -> int:
        """The runtime dim for a point's value."""
        return math.ceil(value * self.each)


@dataclass(frozen=True)
class Problem:
    """One operation as callers see it, independent of any kernel. The laboratory adds its `Oracle`.

    Attributes:
        op: the operation's name.
        doc: what it computes.
        forms: operands in call order, by form.
        bytes: (form, dims) -> the least bytes that must move through device memory.
        points: grid -> the forms and sizes that `bench` times on a measuring grid.
        names: by form, the sizes that points name otherwise than operands do; of two for one name the finer
            one first.
    """

    op: str
    doc: str
    forms: Mapping[str, tuple[OperandSpec, ...]]
    bytes: Callable[[str, Mapping[str, int]], float]
    points: Callable[[str], Iterable[tuple[str, dict[str, Any]]]]
    names: Mapping[str, tuple[PointName, ...]] = field(default_factory=dict)

    def grid(self, grid: str) -> list[tuple[str, dict[str, Any]]]:
        """Forms and sizes of a measuring grid."""
        return [(form, dict(params)) for form, params in self.points(grid)]

    def dims(self, form: str) -> list[str]:
        """The runtime dims of a form: extents, strides and int32 scalars of its operands."""
        specs = self.operands(form)
        names = [extent for spec in specs for extent in spec.shape]
        names += [stride for spec in specs for stride in spec.layout or ()]
        names += [spec.name for spec in specs if spec.kind == "scalar" and spec.dtype == "int32"]
        return list(dict.fromkeys(name for name in names if isinstance(name, str)))

    def point_sizes(self, form: str) -> dict[str, Any]:
        """The sizes that a form's points may have, each with the value of the first point that has it."""
        self.operands(form)
        sizes: dict[str, Any] = {}
        for grid in GRIDS:
            for name, params in self.grid(grid):
                sizes |= {k: v for k, v in params.items() if k not in sizes} if name == form else {}
        return sizes

    def form_of(self, given: Iterable[str]) -> str:
        """The form of sizes that name none: the first form that knows all of them, else the first form."""
        names = set(given)
        return next(
            (form for form in self.forms if names <= self._known(form).keys()), next(iter(self.forms))
        )

    def dims_of(self, form: str, given: Mapping[str, Any]) -> dict[str, int]:
        """Sizes, named as in operands or in points, as runtime dims; parameters of the inputs are left out.

        Raises:
            UnknownNameError: neither has such a name; the error lists near misses.
            InvalidArgumentError: a value of another kind, or two names that give one size two values.
        """
        self._check(form, given)
        dims = set(self.dims(form))
        sizes = {name: value for name, value in given.items() if name in dims}
        for alias in self.names.get(form, ()):
            if alias.name in given:
                sizes.setdefault(alias.dim, alias.of_point(given[alias.name]))
        return sizes

    def _known(self, form: str) -> dict[str, Any]:
        """Every name of a size of a form, with an example of its value."""
        aliases = [name for alias in self.names.get(form, ()) for name in (alias.name, alias.dim)]
        said = {name: value for name, value in self.point_sizes(form).items() if isinstance(value, int | str)}
        return {**dict.fromkeys([*self.dims(form), *aliases], 1), **said}

    def _check(self, form: str, given: Mapping[str, Any]) -> None:
        known = self._known(form)
        for name, value in given.items():
            require_known(f"size of {self.op} {form}", name, known, "size")
            if isinstance(value, str) != isinstance(known[name], str):
                raise InvalidArgumentError(
                    f"size {name} of {self.op} {form}",
                    expected="name=word" if isinstance(known[name], str) else "name=integer",
                    got=shown(value),
                    fix=f"for example {name}={known[name]}",
                )
        for alias in self.names.get(form, ()):
            if (
                alias.name in given
                and given.get(alias.dim, wanted := alias.of_point(given[alias.name])) != wanted
            ):
                raise InvalidArgumentError(
                    f"sizes of {self.op} {form}",
                    expected=f"{alias.dim}={wanted}, as {alias.name}={given[alias.name]}",
                    got=f"{alias.dim}={given[alias.dim]}",
                    fix="give one of the two",
                )

    def operands(self, form: str) -> tuple[OperandSpec, ...]:
        """The operands of a form, in call order.

        Raises:
            UnknownNameError: the problem has no such form.
        """
        require_known(f"form of {self.op}", form, self.forms, "form")
        return self.forms[form]
