"""The validation of a call: `bind` checks operands against their declaration, and gives the dims of the call.

`Bound.hold` checks what may still be wrong in a later call of the same shapes, dtypes and strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..arguments import checked, finite, integer, require_dense
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..expr import evaluate, names_in
from .base import UNDEFINED, OperandSpec

if TYPE_CHECKING:
    import torch

PLACES_LIMIT = 64
"""The most sets of addresses that a `Bound` remembers as apart; at one more it forgets all of them."""


@dataclass(slots=True)
class Bound:
    """Facts of operands that fit their declaration.

    Attributes:
        specs: the declaration.
        dims: the value of every dim.
        missing: the outputs and inputs that the caller left out.
        unread: whether a given input has no elements although kernels need some.
        apart: addresses of operands whose outputs overlap no other operand.
    """

    specs: tuple[OperandSpec, ...]
    dims: dict[str, int]
    missing: tuple[OperandSpec, ...]
    unread: bool
    apart: set[tuple[int, ...]] = field(default_factory=set)

    def hold(
        self, values: Mapping[str, Any], places: tuple[int, ...] | None, off_gpu: bool, every_value: bool
    ) -> None:
        """Check operands of the bound shapes for what shapes do not tell: devices, overlaps and values.

        Args:
            values: tensors and scalars by name.
            places: the address of each tensor, if the caller gave an output; else None.
            off_gpu: the first tensor is on the CPU: then all must be, and their values must be defined.
            every_value: refuse all values that break a rule; on a GPU this waits for the device.

        Raises:
            InvalidArgumentError: names the operand, what was expected and what came.
        """
        if off_gpu:
            _require_one_device(self.specs, values)
        if places is not None and places not in self.apart:
            _require_apart(self.specs, values)
            if len(self.apart) >= PLACES_LIMIT:
                self.apart.clear()
            self.apart.add(places)
        if off_gpu or every_value:
            _require_values(self.specs, values, self.dims, only_undefined=not every_value)


@checked
def bind(
    operands: tuple[OperandSpec, ...], values: Mapping[str, Any], static: Mapping[str, int] | None = None
) -> Bound:
    """Check the presence, dtype, shape, device, strides and alignment of operands, and scalars' limits.

    Args:
        operands: the declaration. Outputs, and inputs with a default, may be None or left out; this binds the
            extents that their `sizes` give all the same.
        values: tensors and scalars by name.
        static: dims that are already fixed, by the variant or by the caller.

    Raises:
        ArgumentTypeError: an operand is no dense tensor, or has another dtype.
        InvalidArgumentError: a scalar, rank, extent, stride, alignment or device does not fit.
    """
    require_given(operands, values)
    _require_one_device(operands, values)
    dims: dict[str, int] = dict(static or {})
    fixed_by: dict[str, str] = dict.fromkeys(dims, "the call")
    unread = False
    for spec in operands:
        value = values.get(spec.name)
        if spec.kind == "scalar":
            _require_scalar(spec, value)
        elif value is not None:
            _bind_shape(spec, value, dims, fixed_by)
            _bind_strides(spec, value, dims)
            _require_aligned(spec, value)
            unread |= spec.kind == "in" and not spec.may_be_empty and not value.numel()
    missing = tuple(s for s in operands if s.kind != "scalar" and values.get(s.name) is None)
    _bind_sizes(missing, dims)
    _require_sizes(operands, dims)
    return Bound(operands, dims, missing, unread)


def require_given(operands: tuple[OperandSpec, ...], values: Mapping[str, Any]) -> None:
    """Require every tensor that a declaration does not make optional, of a kind that kernels can read.

    Raises:
        ArgumentTypeError: an operand is missing, no tensor, or sparse, nested, quantised or lazily negated.
    """
    for spec in operands:
        value = values.get(spec.name)
        if spec.kind in ("in", "out") and not (value is None and spec.optional):
            require_dense(spec.label, value)


def _require_scalar(spec: OperandSpec, value: Any) -> None:
    if spec.limits is not None and value is not None:
        check: Callable[..., object] = finite if "float" in spec.torch_name else integer
        check(spec.label, value, *spec.limits)


def _require_one_device(operands: tuple[OperandSpec, ...], values: Mapping[str, Any]) -> None:
    device = None
    for spec in operands:
        tensor = None if spec.kind == "scalar" else values.get(spec.name)
        if tensor is None:
            continue
        if device is None:
            device, first = tensor.device, spec.label
        elif tensor.device != device:
            raise InvalidArgumentError(
                spec.label,
                expected=f"device {device} like {first}",
                got=str(tensor.device),
                fix=f"move it with .to('{device}')",
            )


def _bind_shape(
    spec: OperandSpec, tensor: torch.Tensor, dims: dict[str, int], fixed_by: dict[str, str]
) -> None:
    if tensor.dtype != spec.torch_dtype:
        raise ArgumentTypeError(
            spec.label,
            expected=f"dtype {spec.torch_dtype}",
            got=str(tensor.dtype),
            fix=f"convert it with .to({spec.torch_dtype})",
        )
    if tensor.dim() != len(spec.shape):
        raise InvalidArgumentError(
            spec.label,
            expected=f"{len(spec.shape)} dimensions {_spell(spec.shape)}",
            got=f"shape {tuple(tensor.shape)}",
            fix="reshape it with .view(...)",
        )
    for extent, actual in zip(spec.shape, tensor.shape, strict=True):
        wanted = extent if isinstance(extent, int) else dims.setdefault(extent, actual)
        if isinstance(extent, str):
            fixed_by.setdefault(extent, spec.label)
        if wanted != actual:
            origin = f" ({extent} comes from {fixed_by[extent]})" if isinstance(extent, str) else ""
            raise InvalidArgumentError(
                spec.label,
                expected=f"shape {_spell(spec.shape)} with {extent} = {wanted}{origin}",
                got=f"shape {tuple(tensor.shape)}",
                fix="make the operands agree",
            )


def _bind_sizes(missing: tuple[OperandSpec, ...], dims: dict[str, int]) -> None:
    """Bind extents that no given operand has, and the strides of operands that will be allocated."""
    for spec in missing:
        for extent, size in spec.sizes.items():
            if extent not in dims and names_in(size) <= dims.keys():
                dims[extent] = evaluate(size, dims)
        extents = [dims.get(extent) if isinstance(extent, str) else extent for extent in spec.shape]
        known = [extent for extent in extents if extent is not None]
        if spec.layout and len(known) == len(extents):
            named = zip(spec.layout, _dense(known), strict=True)
            dims.update({name: stride for name, stride in named if isinstance(name, str)})


def _bind_strides(spec: OperandSpec, tensor: torch.Tensor, dims: dict[str, int]) -> None:
    """Check a tensor's strides against its declaration, and bind them.

    An axis of one element counts with the stride that it would have in a dense tensor.
    """
    if spec.layout is None:
        if not tensor.is_contiguous():
            raise InvalidArgumentError(
                spec.label,
                expected="a contiguous tensor",
                got=f"strides {tensor.stride()}",
                fix="call .contiguous()",
            )
        return
    taken = [
        stride if size > 1 else dense
        for stride, size, dense in zip(tensor.stride(), tensor.shape, _dense(tensor.shape), strict=True)
    ]
    size = tensor.element_size()
    axes = enumerate(zip(spec.layout, taken, strict=True))
    # Fixed strides first, as no padding mends a wrong one.
    for axis, (wanted, stride) in sorted(axes, key=lambda item: isinstance(item[1][0], str)):
        if isinstance(wanted, int) and stride != wanted and tensor.numel():
            raise InvalidArgumentError(
                spec.label,
                expected=f"a stride of {wanted} along axis {axis}",
                got=f"strides {tensor.stride()}",
                fix="call .contiguous()",
            )
        if isinstance(wanted, str):
            if tensor.numel() and (stride <= 0 or stride * size % spec.align):
                raise InvalidArgumentError(
                    spec.label,
                    expected=f"strides that are positive multiples of {spec.align} bytes (all but the last)",
                    got=f"strides {tensor.stride()} of {size} bytes",
                    fix=f"pad the axes so that each begins on a {spec.align}-byte boundary",
                )
            dims[wanted] = stride
    if (spec.row_stride or spec.kind == "out") and not _apart(tensor.shape, taken):
        raise InvalidArgumentError(
            spec.label,
            expected="rows that do not overlap",
            got=f"shape {tuple(tensor.shape)}, strides {tensor.stride()}",
            fix="call .contiguous()",
        )


def _dense(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def _apart(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether no two elements have the same address, as each axis steps over all the finer ones."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def _require_aligned(spec: OperandSpec, tensor: torch.Tensor) -> None:
    align = max(spec.align, tensor.element_size())
    if tensor.numel() and tensor.data_ptr() % align:
        raise InvalidArgumentError(
            spec.label,
            expected=f"an address that is a multiple of {align} bytes",
            got=f"a view that begins {tensor.data_ptr() % align} bytes past one",
            fix="pass a tensor that begins on such an address: .clone() makes one",
        )


def _require_sizes(operands: tuple[OperandSpec, ...], dims: Mapping[str, int]) -> None:
    for spec in operands:
        for rule in spec.requires:
            if not names_in(rule) <= dims.keys() or evaluate(rule, dims):
                continue
            raise InvalidArgumentError(
                spec.label,
                expected=rule,
                got=", ".join(f"{name} = {dims[name]}" for name in sorted(names_in(rule))),
                fix="make the operands agree",
            )


def _require_apart(operands: tuple[OperandSpec, ...], values: Mapping[str, Any]) -> None:
    """Refuse outputs that overlap other operands.

    Raises:
        InvalidArgumentError: an output overlaps another operand in memory.
    """
    spans: list[tuple[OperandSpec, int, int]] = []
    for spec in operands:
        tensor = values.get(spec.name)
        if spec.kind not in ("in", "out") or tensor is None or not tensor.numel():
            continue
        last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        begin = tensor.data_ptr()
        spans.append((spec, begin, begin + (last + 1) * tensor.element_size()))
    for out, begin, end in spans:
        for other, first, last in spans:
            if out.kind == "out" and other is not out and begin < last and first < end:
                raise InvalidArgumentError(
                    out.label,
                    expected="memory of its own",
                    got=f"an overlap with {other.label}",
                    fix="pass another tensor, or leave it out",
                )


def require_outputs_apart(outputs: Mapping[str, torch.Tensor | None]) -> None:
    """Refuse outputs that overlap one another; for outputs of more than one declaration.

    Args:
        outputs: the outputs by their arguments' names; None for one that the caller left out.

    Raises:
        InvalidArgumentError: names the first output that overlaps another.
    """
    _require_apart(tuple(OperandSpec(name, (), "", "out") for name in outputs), outputs)


def _require_values(
    operands: tuple[OperandSpec, ...],
    values: Mapping[str, Any],
    dims: Mapping[str, int],
    *,
    only_undefined: bool = False,
) -> None:
    """Check the values of operands that have rules for them; on a GPU this waits for the device.

    Args:
        only_undefined: only look for values for which kernels are undefined.

    Raises:
        InvalidArgumentError: names the operand, the rule and the first value that breaks it.
    """
    for spec in operands:
        for rule in spec.values:
            if values.get(spec.name) is None or (only_undefined and rule.otherwise != UNDEFINED):
                continue
            wrong = rule.wrong(values, dims)
            if bool(wrong.any()):
                at = tuple(wrong.nonzero()[0].tolist())
                raise InvalidArgumentError(
                    spec.label,
                    expected=rule.allowed,
                    got=f"{values[spec.name][at].item()} at {list(at)}, "
                    f"and {int(wrong.sum()) - 1} more such values",
                    fix="correct the values"
                    + ("" if rule.otherwise == UNDEFINED else f" (kernels take them as {rule.otherwise})"),
                )


def _spell(shape: tuple[str | int, ...]) -> str:
    return "[" + ", ".join(str(extent) for extent in shape) + "]"
