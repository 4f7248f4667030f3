"""A clock for kernels: their text walked with times, one SM of a GPU at a time (docs/clock.md).

`predict` says how long a call of a variant takes and what it waits for. Everything here is a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .. import policies, programs
from ..arch import GpuSpec, get_arch
from ..calls import Call, assumed, deciding
from ..dtypes import DTYPES
from ..errors import InvalidArgumentError
from ..tile.counting import Counted, counts_of
from ..tile.lang import Schedule
from .rates import Rates, rates_of
from .sm import Kernel, Prediction, Share, Sm

if TYPE_CHECKING:
    from ..problems.base import Problem
    from ..variants import Variant

__all__ = ["Kernel", "Prediction", "Rates", "Sm", "predict", "rates_of", "share_of", "sm_of", "walked"]


def walked() -> list[str]:
    """The operations that the clock can walk: those whose loops turn as often as the sizes of a call say."""
    return [op for op in programs.names() if policies.get(op).counts is None]


def predict(call: Call, variant: Variant, rates: Rates | None = None) -> Prediction:
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
    return sm_of(call, variant, rates).walk()


def sm_of(call: Call, variant: Variant, rates: Rates | None = None, kept: bool = False) -> Sm:
    """One SM of the call's GPU with its share of a launch of a variant, before its walk, which may be kept (`clock.path`)."""
    gpu = call.row
    kernel, counted = _read(call.op, gpu.arch.name, tuple(sorted(variant.knobs.items())), variant.backend)
    sizes, rates = assumed(call, deciding(call)), rates or rates_of(gpu)
    dims, share = share_of(call.op, call.form, gpu, variant.knobs, sizes, kernel.schedule, counted, rates)
    return Sm(kernel, rates, dims, share, kept)


def share_of(
    op: str,
    form: str,
    gpu: GpuSpec,
    knobs: Mapping[str, Any],
    sizes: Mapping[str, int],
    schedule: Schedule,
    counted: Counted,
    rates: Rates,
) -> tuple[dict[str, int], Share]:
    """The dims of a launch of a variant, as its launch rule deals out a call of these sizes, and what an SM gets of it."""
    dims = {**sizes, **policies.get(op).launch(SimpleNamespace(**knobs), sizes, gpu).dims}
    least = _from_memory(programs.get(op).problem, form, dims, gpu)
    return dims, Share.of(schedule, gpu, rates, dims, counted(dims), least)


# The part of the L2 that holds what is read again: 83 of a B200's 126 MB by TileSight, arXiv 2607.22432.
L2_KEPT = 0.66


def _from_memory(problem: Problem, form: str, dims: Mapping[str, int], gpu: GpuSpec) -> float:
    """Bytes of a call that come from memory.

    An input with no size of the outputs is shared by all rows of these. Where less of it is held than is fetched, it comes
    once, and again as far as the L2 does not hold it. A size of 1 may be one that nobody said: then nothing is shared.
    """
    moved, specs = problem.bytes(form, dims), problem.operands(form)
    of_rows = {extent for spec in specs if spec.kind == "out" for extent in spec.shape if extent in dims}
    held = rest = 0.0
    for spec in specs:
        named = {extent for extent in spec.shape if isinstance(extent, str)}
        size = DTYPES[spec.dtype].bytes * math.prod(
            dims[extent] if isinstance(extent, str) else extent for extent in spec.shape
        )
        if spec.kind == "in" and named and not named & of_rows:
            if any(dims[name] == 1 for name in named):
                return moved
            held += size
        else:
            rest += size
    again = max(0.0, 1 - L2_KEPT * gpu.l2_bytes / held) if held else 1.0
    return min(moved, rest + held + again * max(0.0, moved - rest - held))


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
