"""A clock for kernels: it walks a kernel's text and gives every step a time, on one SM (docs/clock.md).

`predict` tells how long a call of a variant takes and what it waits for. Every figure is a model's.
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
    """The operations that the clock can walk: a call's sizes alone decide their trip counts."""
    return [op for op in programs.names() if policies.get(op).counts is None]


def predict(call: Call, variant: Variant, rates: Rates | None = None) -> Prediction:
    """Predict a launch of a variant on the call's GPU, with every row as long as the call allows.

    Args:
        call: The operation, its sizes and the GPU.
        variant: The variant to launch.
        rates: The rates of the SM's units; by default those of the GPU.

    Raises:
        InvalidArgumentError: data decide the trip counts of the operation's loops.
        ScheduleError: roles wait for something that never happens.
    """
    if call.op not in walked():
        raise InvalidArgumentError(
            "op",
            expected=", ".join(walked()),
            got=f"{call.op}, where data decide how often loops turn",
            fix="run `python -m dsl_kernels explain`, which has the cost model's time",
        )
    return sm_of(call, variant, rates).walk()


def sm_of(call: Call, variant: Variant, rates: Rates | None = None, kept: bool = False) -> Sm:
    """One SM with its share of a launch, ready to be walked; `kept` records the walk for `clock.path`."""
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
    """The dims that a variant's launch rule gives a call of these sizes, and the share of one SM."""
    dims = {**sizes, **policies.get(op).launch(SimpleNamespace(**knobs), sizes, gpu).dims}
    least = _from_memory(programs.get(op).problem, form, dims, gpu)
    return dims, Share.of(schedule, gpu, rates, dims, counted(dims), least)


# The fraction of the L2 that keeps data until it is read again: 83 of a B200's 126 MB (TileSight, arXiv
# 2607.22432).
L2_KEPT = 0.66


def _from_memory(problem: Problem, form: str, dims: Mapping[str, int], gpu: GpuSpec) -> float:
    """Bytes of a call that come from HBM rather than from the L2.

    All rows of the outputs share an input that has none of the outputs' sizes. Such an input is read from HBM
    once, and each further read fetches the part that the L2 does not keep. A size of 1 may stand for a size
    that the caller did not state: then no input counts as shared.
    """
    moved, specs = problem.bytes(form, dims), problem.operands(form)
    of_rows = {extent for spec in specs if spec.kind == "out" for extent in spec.shape if extent in dims}
    shared = rest = 0.0
    for spec in specs:
        named = {extent for extent in spec.shape if isinstance(extent, str)}
        size = DTYPES[spec.dtype].bytes * math.prod(
            dims[extent] if isinstance(extent, str) else extent for extent in spec.shape
        )
        if spec.kind == "in" and named and not named & of_rows:
            if any(dims[name] == 1 for name in named):
                return moved
            shared += size
        else:
            rest += size
    again = max(0.0, 1 - L2_KEPT * gpu.l2_bytes / shared) if shared else 1.0
    return min(moved, rest + shared + again * max(0.0, moved - rest - shared))


@lru_cache(maxsize=256)
def _read(
    op: str, arch_name: str, knobs: tuple[tuple[str, Any], ...], backend: str
) -> tuple[Kernel, Counted]:
    """A variant's kernel and its counts, built once for any number of predictions."""
    program, values, arch = programs.get(op), dict(knobs), get_arch(arch_name)
    schedule = program.declare(SimpleNamespace(**values), arch)
    longest = {spec.name: spec.longest for spec in program.declared_operands(values)}
    kernel = Kernel(schedule, program.recorded(values, arch, schedule), longest, backend)
    return kernel, counts_of(program, values, arch)
