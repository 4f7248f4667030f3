"""A clock for kernels: their text walked with times, one SM of a GPU at a time (docs/clock.md).

`predict` says how long a call of a variant takes and what it waits for. Everything here is a model.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .. import policies, programs, registry
from ..arch import get_arch
from ..errors import InvalidArgumentError
from ..tile.counting import Counted, counts_of
from .rates import Rates, rates_of
from .sm import Kernel, Prediction, Sm

if TYPE_CHECKING:
    from ..variants import Variant

__all__ = ["Kernel", "Prediction", "Rates", "predict", "rates_of", "walked"]


def walked() -> list[str]:
    """The operations that the clock can walk: those whose loops turn as often as the sizes of a call say."""
    return [op for op in programs.names() if policies.get(op).counts is None]


def predict(call: registry.Call, variant: Variant, rates: Rates | None = None) -> Prediction:
    """What a launch of a variant takes on the call's GPU, every row as long as the call allows.

    Args:
        rates: by default those of the GPU.

    Raises:
        InvalidArgumentError: data decide how often the loops of the operation turn.
        ScheduleError: roles wait for what never happens.
    """
    if call.op not in walked():
        raise InvalidArgumentError(
            "op", expected=", ".join(walked()), got=f"{call.op}, where data decide how often loops turn",
            fix="run `python -m dsl_kernels explain`, which has the cost model's time",
        )  # fmt: skip
    gpu, dims = call.row, registry.assumed(call, registry.deciding(call))
    dims.update(policies.get(call.op).launch(SimpleNamespace(**variant.knobs), dims, gpu).dims)
    kernel, counted = _read(call.op, gpu.arch.name, tuple(sorted(variant.knobs.items())), variant.backend)
    least = programs.get(call.op).problem.bytes(call.form, dims)
    return Sm(kernel, gpu, rates or rates_of(gpu), dims, counted(dims), least).walk()


@lru_cache(maxsize=256)
def _read(
    op: str, arch_name: str, knobs: tuple[tuple[str, Any], ...], backend: str
) -> tuple[Kernel, Counted]:
    """A variant, read once for any number of predictions."""
    program, values, arch = programs.get(op), dict(knobs), get_arch(arch_name)
    schedule = program.declare(SimpleNamespace(**values), arch)
    longest = {spec.name: spec.longest for spec in program.declared_operands(values)}
    kernel = Kernel(schedule, program.said(values, arch, schedule), longest, backend)
    return kernel, counts_of(program, values, arch)
