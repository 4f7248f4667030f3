"""What a problem is: operands with symbolic shapes, a torch reference, workloads, tolerances, bytes and FLOPs."""

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

# What a kernel does with values outside an operand's range when nothing is said: it may read or write out of bounds.
UNDEFINED = "undefined"


def axis_strides(name: str, axes: str) -> tuple[str | int, ...]:
    """Names of the runtime dims that hold the strides of an operand's axes, each by its letter, but of the last, which is dense."""
    return (*(f"{name}_stride_{axis}" for axis in axes), 1)


@dataclass(frozen=True)
class Values:
    """Which values an operand may hold, and what the kernels make of others.

    Executors off the GPU refuse values whose meaning is undefined; `DSL_KERNELS_CHECK_VALUES` refuses all others too.

    Attributes:
        allowed: the rule in words.
        wrong: (operands, dims) -> a mask over the operand, True where the rule is broken.
        otherwise: UNDEFINED, or what every executor makes of such a value.
    """

    allowed: str
    wrong: Callable[[Mapping[str, Any], Mapping[str, int]], torch.Tensor]
    otherwise: str = UNDEFINED


@checked
@dataclass(frozen=True)
class OperandSpec:
    """What a problem says of one argument of its kernels; they stand in call order.

    Attributes:
        shape: extents; a string is a runtime dim, or a static one that the variant's knobs fix. () is a scalar.
        kind: "in", "out", "scalar", or of a kernel's own operands "workspace" (the caller allocates it).
        row_stride: name of the runtime dim that holds the stride of axis 0 in elements; None means contiguous.
        strides: of a tensor whose axes lie anyhow, the runtime dim (or number) that holds each axis' stride in elements, as
            `axis_strides` names them; () means as `row_stride` says.
        zeroed: a workspace that is zero on entry and that the kernel leaves zero, or an output that is added to.
        align: bytes that the address, and the row stride, are multiples of: the widest access of any variant. 16 is
            what vector loads, bulk copies and tensor maps need; operands that are read one element at a time need 4.
        default: the value that fills an input which the caller leaves out; None where it is required. An output with one is
            made for nobody: where the caller leaves it out, memory of that value, of its `sizes`, stands for it, and a
            scalar tells the kernel to write nothing there.
        argument: what the torch op calls it, where that is another name.
        sizes: extents of an operand that the caller leaves out and that no other operand gives, as expressions over
            the other dims.
        limits: least and greatest value of a scalar that the caller gives, whole numbers for an integer; (-inf, inf)
            takes what is finite. Every call is held to them.
        requires: expressions over the dims that must hold.
        values: rules of its values.
        of_nothing: of an output, the value of its elements where an input has none, or the scalar operand that gives it;
            a kernel would be handed an input without an address. None where such inputs are refused, or leave no element of
            the output either.
        may_be_empty: of an input, whether a kernel runs where it has no element, as others may have some.
        longest: of an integer input, what its elements are where every row is as long as the call allows: a number or a dim.
        peers: of an input that every rank of a group holds, the operand of [ranks] int64 that says how many bytes from this
            rank's each rank's lies: 0 for its own. Kernels read the ranks' memory through it.
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
                expected="a tensor that is only read, where other ranks hold one too",
                got=f"kind {self.kind} with peers",
                fix="leave out `peers`, or declare it an input",
            )
        if self.limits is None:
            return
        low, high = self.limits
        whole = "float" in self.torch_name or all(isinstance(limit, int) for limit in self.limits)
        if self.kind != "scalar" or not low <= high or not whole:
            raise DeclarationError(
                f"limits of operand {self.name}",
                expected="of a scalar, the least value and then the greatest, whole numbers for an integer",
                got=f"({low}, {high}) of {self.kind} {self.name}, {self.dtype}",
                fix="correct the limits, or state what values a tensor may hold by `values`",
            )

    @property
    def layout(self) -> tuple[str | int, ...] | None:
        """The stride of each axis, a runtime dim or a number; None where it is contiguous."""
        return self.strides or ((self.row_stride, 1) if self.row_stride else None)

    @property
    def optional(self) -> bool:
        """Whether a caller may leave it out: an output, or an input with a default."""
        return self.kind == "out" or self.default is not None

    @property
    def label(self) -> str:
        """The name that a caller knows it by."""
        return self.argument or self.name

    @property
    def torch_name(self) -> str:
        """torch's name of the dtype."""
        return DTYPES[self.dtype].torch_name

    @property
    def torch_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype].torch


@checked
@dataclass(frozen=True)
class Workload:
    """One concrete instance: a form of the problem, its sizes and how its random inputs are drawn.

    `tier` is "tiny" (emulator and interpreter), "edge" (every trap at small size) or "real" (hardware sizes).
    """

    name: str
    tier: str
    form: str
    params: Mapping[str, Any]
    doc: str = ""


@dataclass
class Comparison:
    """Outcome of checking outputs against the reference: figures by name, their limits, and what failed."""

    figures: dict[str, float] = field(default_factory=dict)
    limits: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
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
# Queries, sequences or rows of the wide grid: powers of two, and what lies between them.
WIDE = (1, 2, 3, 8, 16, 24, 37, 48, 64, 96, 128, 200, 512)
# Scores that a point of the wide grid holds at most: a quarter of a gigabyte of them.
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
    """A size that points of measuring grids call otherwise than the operands do.

    Attributes:
        name: what a point calls it.
        dim: the runtime dim that it gives: the name's value times `each`, rounded up.
    """

    name: str
    dim: str
    each: Fraction | int = 1

    def of_point(self, value: int) -> int:
        return math.ceil(value * self.each)

    def of_dim(self, value: int) -> int:
        return math.ceil(Fraction(value) / self.each)


@dataclass(frozen=True)
class Problem:
    """One operation, independent of any kernel.

    Attributes:
        op: standard name of the operation.
        forms: form name -> operands in ABI order.
        workloads: named instances.
        make: (workload, generator) -> the "in" operands and scalars.
        reference: (form, inputs) -> the expected outputs, in float64 where the output is floating point.
        compare: (form, inputs, outputs, expected) -> Comparison against the tolerances of this problem.
        bytes: (form, dims) -> the bytes that must move through device memory at least.
        flops: (form, dims) -> floating-point operations by dtype of the unit that runs them.
        units: (form, dims) -> what a call gives, by its name, and how much of it: rates are of that a second.
        forms_share_workloads: (form, another one) -> whether a workload of the one can be drawn in the other, as its sizes mean
            the same there; by default none can.
        points: name of a measuring grid -> the forms and sizes that `bench` times; by default the workloads of tier
            "real", on every grid.
        names: form -> the sizes that its points call otherwise than its operands do, of two for one name the finer first.
    """

    op: str
    doc: str
    forms: Mapping[str, tuple[OperandSpec, ...]]
    workloads: tuple[Workload, ...]
    make: Callable[[Workload, torch.Generator], dict[str, Any]]
    reference: Callable[[str, Mapping[str, Any]], dict[str, torch.Tensor]]
    compare: Callable[[str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], Comparison]
    bytes: Callable[[str, Mapping[str, int]], float]
    flops: Callable[[str, Mapping[str, int]], dict[str, float]]
    units: Callable[[str, Mapping[str, int]], tuple[str, int]] | None = None
    forms_share_workloads: Callable[[str, str], bool] = lambda form, other: False
    points: Callable[[str], Iterable[tuple[str, dict[str, Any]]]] | None = None
    names: Mapping[str, tuple[PointName, ...]] = field(default_factory=dict)

    def grid(self, grid: str) -> list[tuple[str, dict[str, Any]]]:
        """Forms and sizes of a measuring grid."""
        if self.points is not None:
            return list(self.points(grid))
        real = [workload for workload in self.workloads if workload.tier == "real"]
        return [(workload.form, dict(workload.params)) for workload in real or self.workloads]

    def dims(self, form: str) -> list[str]:
        """The runtime dims of a form: extents, strides and whole scalars of its operands."""
        specs = self.operands(form)
        found = [extent for spec in specs for extent in spec.shape]
        found += [stride for spec in specs for stride in spec.layout or ()]
        found += [spec.name for spec in specs if spec.kind == "scalar" and spec.dtype == "int32"]
        return list(dict.fromkeys(name for name in found if isinstance(name, str)))

    def point_sizes(self, form: str) -> dict[str, Any]:
        """What a point of a form may say, each with the value of the first grid's first point that says it."""
        self.operands(form)
        found: dict[str, Any] = {}
        for grid in GRIDS:
            for name, params in self.grid(grid):
                found |= {k: v for k, v in params.items() if k not in found} if name == form else {}
        return found

    def form_of(self, given: Iterable[str]) -> str:
        """The form that sizes without one are of: the first that knows them all, else the first."""
        names = set(given)
        return next(
            (form for form in self.forms if names <= self._known(form).keys()), next(iter(self.forms))
        )

    def dims_of(self, form: str, given: Mapping[str, Any]) -> dict[str, int]:
        """Sizes by either vocabulary as runtime dims; what says how inputs are drawn, and no size, is left out.

        Raises:
            UnknownNameError: a name of neither; lists the near misses.
            InvalidArgumentError: a value of another kind, or two names that say different things of one size.
        """
        self._check(form, given)
        dims = set(self.dims(form))
        found = {name: value for name, value in given.items() if name in dims}
        for alias in self.names.get(form, ()):
            if alias.name in given:
                found.setdefault(alias.dim, alias.of_point(given[alias.name]))
        return found

    def point_of(self, form: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Sizes by either vocabulary as those of a point.

        Raises:
            UnknownNameError: a name that no point of the form has; lists the near misses.
            InvalidArgumentError: a value of another kind, or two names that say different things of one size.
        """
        self._check(form, given)
        sizes = self.point_sizes(form)
        aliases = {alias.dim: alias for alias in reversed(self.names.get(form, ()))}
        found = {name: value for name, value in given.items() if name in sizes}
        for alias in self.names.get(form, ()):
            if alias.dim in given and alias.dim not in sizes:
                found.setdefault(alias.name, alias.of_dim(given[alias.dim]))
        for name in given:
            require_known(f"size of a point of {self.op} {form}", name, [*sizes, *aliases], "size")
        self._check(form, {**given, **found})
        return found

    def _known(self, form: str) -> dict[str, Any]:
        """Every name of a size of a form, with a value of its kind."""
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
                    expected=f"{alias.dim}={wanted} where {alias.name}={given[alias.name]}",
                    got=f"{alias.dim}={given[alias.dim]}",
                    fix="give one of the two",
                )

    def operands(self, form: str) -> tuple[OperandSpec, ...]:
        """The operands of a form, in ABI order.

        Raises:
            UnknownNameError: no such form.
        """
        require_known(f"form of {self.op}", form, self.forms, "form")
        return self.forms[form]

    def workload(self, name: str) -> Workload:
        """A workload by its name.

        Raises:
            UnknownNameError: no such workload.
        """
        named = {workload.name: workload for workload in self.workloads}
        require_known(f"workload of {self.op}", name, named, "workload")
        return named[name]
