"""What a problem is: operands with symbolic shapes, a torch reference, workloads, tolerances, bytes and FLOPs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentTypeError, InvalidArgumentError, UnknownNameError, did_you_mean

if TYPE_CHECKING:
    import torch

TORCH_NAMES = {
    "float32": "float32", "int32": "int32", "bfloat16": "bfloat16", "float8_e4m3": "float8_e4m3fn", "uint8": "uint8",
}  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """One argument of the kernel ABI, in order.

    Attributes:
        shape: extents; a string is a runtime dim, or a static one that the variant's knobs fix. () is a scalar.
        kind: "in", "out", "workspace" (the caller allocates it) or "scalar".
        row_stride: name of the runtime dim that holds the stride of axis 0 in elements; None means contiguous.
        zeroed: a workspace that is zero on entry and that the kernel leaves zero.
    """

    name: str
    shape: tuple[str | int, ...]
    dtype: str
    kind: str = "in"
    row_stride: str | None = None
    zeroed: bool = False
    doc: str = ""

    @property
    def torch_name(self) -> str:
        """torch's name of the dtype."""
        return TORCH_NAMES[self.dtype]

    @property
    def torch_dtype(self) -> torch.dtype:
        import torch

        return getattr(torch, self.torch_name)


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
    """

    op: str
    doc: str
    forms: Mapping[str, tuple[Operand, ...]]
    workloads: tuple[Workload, ...]
    make: Callable[[Workload, torch.Generator], dict[str, Any]]
    reference: Callable[[str, Mapping[str, Any]], dict[str, torch.Tensor]]
    compare: Callable[[str, Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]], Comparison]
    bytes: Callable[[str, Mapping[str, int]], float]
    flops: Callable[[str, Mapping[str, int]], dict[str, float]]

    def operands(self, form: str) -> tuple[Operand, ...]:
        if form not in self.forms:
            raise UnknownNameError(
                f"form of {self.op}",
                expected="a known form",
                got=repr(form),
                fix=did_you_mean(form, list(self.forms)),
            )
        return self.forms[form]

    def workload(self, name: str) -> Workload:
        for workload in self.workloads:
            if workload.name == name:
                return workload
        names = [workload.name for workload in self.workloads]
        raise UnknownNameError(
            f"workload of {self.op}",
            expected="a known workload",
            got=repr(name),
            fix=did_you_mean(name, names),
        )


def bind_dims(
    operands: tuple[Operand, ...], values: Mapping[str, Any], static: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Check tensors against their declared shapes, dtypes and strides and return the value of every dim.

    Args:
        operands: the declaration; operands missing from `values` are skipped (outputs before allocation).
        values: tensors and scalars by name.
        static: dims that are already fixed, by the variant or by the caller.

    Raises:
        ArgumentTypeError: not a tensor, or of another dtype.
        InvalidArgumentError: rank, extent, stride or device that does not fit.
    """
    dims: dict[str, int] = dict(static or {})
    fixed_by: dict[str, str] = dict.fromkeys(dims, "the variant")
    device = None
    for spec in operands:
        if spec.kind == "scalar" or spec.name not in values:
            continue
        tensor = values[spec.name]
        if not hasattr(tensor, "data_ptr"):
            raise ArgumentTypeError(
                spec.name,
                expected=f"a {spec.dtype} tensor",
                got=type(tensor).__name__,
                fix="pass a torch.Tensor",
            )
        if tensor.dtype != spec.torch_dtype:
            raise ArgumentTypeError(
                spec.name,
                expected=f"dtype {spec.torch_dtype}",
                got=str(tensor.dtype),
                fix=f"convert it with .to({spec.torch_dtype})",
            )
        if tensor.dim() != len(spec.shape):
            raise InvalidArgumentError(
                spec.name,
                expected=f"{len(spec.shape)} dimensions {_spell(spec.shape)}",
                got=f"shape {tuple(tensor.shape)}",
                fix="reshape it with .view(...)",
            )
        for extent, actual in zip(spec.shape, tensor.shape, strict=True):
            wanted = extent if isinstance(extent, int) else dims.setdefault(extent, actual)
            if isinstance(extent, str):
                fixed_by.setdefault(extent, spec.name)
            if wanted != actual:
                origin = f" ({extent} comes from {fixed_by[extent]})" if isinstance(extent, str) else ""
                raise InvalidArgumentError(
                    spec.name,
                    expected=f"shape {_spell(spec.shape)} with {extent} = {wanted}{origin}",
                    got=f"shape {tuple(tensor.shape)}",
                    fix="make the operands agree",
                )
        _bind_strides(spec, tensor, dims)
        if device is None:
            device, first = tensor.device, spec.name
        elif tensor.device != device:
            raise InvalidArgumentError(
                spec.name,
                expected=f"device {device} like {first}",
                got=str(tensor.device),
                fix=f"move it with .to('{device}')",
            )
    return dims


def _bind_strides(spec: Operand, tensor: torch.Tensor, dims: dict[str, int]) -> None:
    if spec.row_stride is None:
        if not tensor.is_contiguous():
            raise InvalidArgumentError(
                spec.name,
                expected="a contiguous tensor",
                got=f"strides {tensor.stride()}",
                fix="call .contiguous()",
            )
        return
    inner = tensor[0] if tensor.shape[0] else tensor
    if tensor.shape[0] and not inner.is_contiguous():
        raise InvalidArgumentError(
            spec.name,
            expected="rows that are contiguous (only axis 0 may be strided)",
            got=f"strides {tensor.stride()}",
            fix="call .contiguous()",
        )
    stride = tensor.stride(0)
    if (stride * tensor.element_size()) % 16 or tensor.data_ptr() % 16:
        raise InvalidArgumentError(
            spec.name,
            expected="rows aligned to 16 bytes",
            got=f"a row stride of {stride * tensor.element_size()} bytes at address offset {tensor.data_ptr() % 16}",
            fix="use a cache whose rows start on 16-byte boundaries",
        )
    dims[spec.row_stride] = stride


def _spell(shape: tuple[str | int, ...]) -> str:
    return "[" + ", ".join(str(extent) for extent in shape) + "]"
