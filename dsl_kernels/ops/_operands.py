"""What every call checks of its operands, and the facts that a prepared launch depends on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import problems
from ..arguments import finite, integer
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..problems.base import OperandSpec
from ._dispatch import Unaddressed

_warned: set[str] = set()


@lru_cache(maxsize=64)
def identity(
    op: str, form: str
) -> Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], torch.device, tuple[int, ...] | None]]:
    """Make a function from operands of a form to the facts that a prepared launch depends on.

    The facts are each tensor's shape, dtype, device, strides (or whether it is contiguous) and address modulo
    16 bytes. The function returns the facts, the first tensor's device, and all addresses if the caller gave
    an output, else None. The function's code names each operand, as every call runs it, and a loop over the
    declaration would take microseconds.
    """
    specs = [s for s in problems.get(op).operands(form) if s.kind in ("in", "out")]
    lines, parts = _checked_scalars(problems.get(op).operands(form)), [repr(op), repr(form)]
    for i, spec in enumerate(specs):
        layout = "is_contiguous()" if spec.layout is None else "stride()"
        facts = f"t{i}.shape, t{i}.dtype, t{i}.get_device(), t{i}.{layout}"
        lines.append(f"t{i} = o[{spec.name!r}]")
        if spec.optional:
            lines += [f"if t{i} is None:", f"    p{i} = 0; f{i} = None", "else:"]
            lines.append(f"    p{i} = t{i}.data_ptr() or absent({spec.label!r}, t{i}); f{i} = ({facts})")
            parts.append(f"f{i}")
        else:
            lines.append(f"p{i} = t{i}.data_ptr() or absent({spec.label!r}, t{i})")
            parts.append(facts)
    each = ", ".join(f"p{i} & 15" for i in range(len(specs)))
    lines.append(f"low = ({' | '.join(f'p{i}' for i in range(len(specs)))}) & 15")
    given = " or ".join(f"p{i}" for i, spec in enumerate(specs) if spec.kind == "out")
    places = "".join(f"p{i}, " for i in range(len(specs)))
    learnt = [
        f"t{i}.requires_grad"
        for i, s in enumerate(specs)
        if s.kind == "in" and not s.optional and s.torch_dtype.is_floating_point
    ]
    lines += [f"if grad_enabled() and ({' or '.join(learnt)}):", f"    warn_once({op!r})"] if learnt else []
    lines += ["if forward_ad._current_level >= 0:", "    refuse_tangents(specs, o)"]
    lines.append(f"return ({', '.join(parts)}, low and ({each})), t0.device, ({places}) if {given} else None")
    scope: dict[str, Any] = {
        "grad_enabled": torch.is_grad_enabled, "warn_once": _warn_of_no_backward, "integer": integer,
        "finite": finite, "absent": _absent, "forward_ad": forward_ad, "specs": specs,
        "refuse_tangents": _refuse_tangents, "inf": math.inf,
    }  # fmt: skip
    exec("def identity(o):\n" + "\n".join(f"    {line}" for line in lines), scope)
    compiled: Callable[[Mapping[str, Any]], Any] = scope["identity"]
    return compiled


def _checked_scalars(specs: tuple[OperandSpec, ...]) -> list[str]:
    """Statements that convert or refuse a caller's scalars; one of the right type and range costs no call."""
    lines = []
    for spec in specs:
        operand = f"o[{spec.name!r}]"
        if spec.limits is None:
            continue
        low, high = spec.limits
        if not spec.torch_dtype.is_floating_point:
            lines += [
                f"v = {operand}",
                f"if type(v) is not int or not {low} <= v <= {high}:",
                f"    {operand} = integer({spec.label!r}, v, {low}, {high})",
            ]
        else:
            # An infinity minus itself is NaN, so this refuses infinities and NaN.
            lines += [
                f"v = {operand}",
                f"if type(v) is not float or v - v != 0.0 or not {low} <= v <= {high}:",
                f"    {operand} = finite({spec.label!r}, v, {low}, {high})",
            ]
    return lines


def _warn_of_no_backward(op: str) -> None:
    if op not in _warned:
        _warned.add(op)
        warnings.warn(
            f"dsl_kernels.{op}: an input requires a gradient, but the op has no backward: its outputs "
            "have none. Call the op under torch.no_grad() to say that no gradient is wanted",
            stacklevel=5,
        )


def _refuse_tangents(specs: Iterable[OperandSpec], operands: Mapping[str, Any]) -> None:
    """Refuse tensors with a derivative in forward mode, which an op would drop silently.

    Raises:
        InvalidArgumentError: a tensor has such a derivative.
    """
    for spec in specs:
        tensor = operands[spec.name]
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise InvalidArgumentError(
                spec.label,
                expected="a tensor without a tangent, as the op has no derivative",
                got="a dual tensor of torch.autograd.forward_ad",
                fix="pass forward_ad.unpack_dual(tensor).primal",
            )


def _absent(name: str, tensor: torch.Tensor) -> int:
    """The address, 0, of a tensor without elements.

    Raises:
        Unaddressed: the tensor has elements, but no memory.
    """
    # Tensors of other devices may have no address; another check refuses their device.
    if tensor.numel() and tensor.device.type in ("cpu", "cuda"):
        raise Unaddressed(
            name,
            expected="a tensor in memory",
            got=f"{tensor.numel()} elements at address 0 ({type(tensor).__name__})",
            fix="pass plain torch tensors",
        )
    return 0


def require_names(executor: Any, variant: Any, arch: Any) -> None:
    """Require that each of these arguments is a string or None.

    Raises:
        ArgumentTypeError: names the argument that is not.
    """
    for name, value in (("executor", executor), ("variant", variant), ("arch", arch)):
        if value is not None and not isinstance(value, str):
            raise ArgumentTypeError(
                name, expected="a name or None", got=type(value).__name__, fix="pass a string"
            )
