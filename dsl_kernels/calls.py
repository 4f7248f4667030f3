"""Calls as variant selection sees them, and the sizes that decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import policies, programs
from .arch import GpuSpec, gpu_row
from .arguments import checked, require_range
from .errors import InvalidArgumentError


@checked
@dataclass(frozen=True)
class Call:
    """What selection depends on: the operation, its form, the architecture, the GPU and the runtime dims.

    Attributes:
        form: variant of the problem ("decode", "prefill", "bf16", "fp8", "default").
        dims: runtime dims by name, as `problems.binding.bind` computes them.
        gpu: the name of the tuned table and the rates, e.g. "NVIDIA H200"; "" uses no table, and the rates of
            the architecture's reference GPU.
        sms: SMs of the GPU; 0 means those of its row.
        own: False selects as if the GPU had no tuned tables of its own.
    """

    op: str
    form: str
    arch: str
    dims: Mapping[str, int]
    gpu: str = ""
    backend: str | None = None
    sms: int = 0
    own: bool = True

    def __post_init__(self) -> None:
        for name, value in self.dims.items():
            require_range(name, value, 0, 2**63 - 1)
        require_range("sms", self.sms, 0, 2**16)

    @classmethod
    def on(
        cls, gpu: GpuSpec, op: str, form: str, dims: Mapping[str, int], backend: str | None = None
    ) -> Call:
        """A call that runs on this GPU."""
        return cls(op, form, gpu.arch.name, dims, gpu.device, backend, gpu.sms)

    @property
    def row(self) -> GpuSpec:
        """The row of the GPU, for launch dims and predictions."""
        return gpu_row(self.arch, self.gpu, self.sms)

    @property
    def key(self) -> tuple[Any, ...]:
        on = (self.arch, self.gpu, self.sms, self.own)
        return (self.op, self.form, on, self.backend, tuple(self.dims.items()))


@checked
def bucket(call: Call) -> dict[str, int]:
    """The sizes that decide, rounded up to powers of two; 0 stays 0."""
    return {name: value and 1 << (value - 1).bit_length() for name, value in deciding(call).items()}


@checked
def deciding(call: Call) -> dict[str, int]:
    """The sizes that decide, unrounded: they name a tuned point."""
    program = programs.get(call.op)
    program.problem.operands(call.form)
    try:
        return dict(policies.get(call.op).bucket(call.form, call.dims))
    except KeyError as error:
        raise InvalidArgumentError(
            "dims",
            expected=f"every size of {call.op} {call.form}",
            got=f"no {error.args[0]}",
            fix="pass the dims that problems.binding.bind finds",
        ) from None


def assumed(call: Call, sizes: Mapping[str, int]) -> dict[str, int]:
    """Dims for a model: the call's own with the sizes of a bucket in their place, derived dims included."""
    return policies.get(call.op).resized(call.dims, sizes)
