"""The cost model: predicts a launch's time from what its first CTA moves and computes, counted from its text.

It ranks variants that were not measured. It knows bytes, tensor-core work, waves and pipeline fill; it does
not know bank conflicts, issue limits or clocks. Wherever its times are shown they are labelled as a model's.

A prediction makes no tensor, so no setting of the process can change it or make it fail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..arch import GpuSpec
from .counting import Counted, counts_of
from .expressions import size_at
from .lang import Counts, Policy, Schedule
from .transfers import transfer_of

if TYPE_CHECKING:
    from .program import TileProgram


@dataclass(frozen=True)
class Cost:
    """Predicted time of a launch in microseconds: the latency term plus the largest of the other terms."""

    us: float
    ctas: int
    waves: float
    terms: dict[str, float]
    counts: Counts

    @property
    def bound(self) -> str:
        return max(self.terms, key=lambda name: self.terms[name])


def predict(
    program: TileProgram,
    policy: Policy,
    knobs: Mapping[str, Any],
    schedule: Schedule,
    gpu: GpuSpec,
    form: str,
    dims: Mapping[str, int],
    counted: Counted | None = None,
) -> Cost:
    """Predicted time of one launch of the program on a GPU; `schedule` is the program's at `knobs`.

    `counted` is `counts_of` the variant, which takes milliseconds to compute. A policy's own counts override
    it.

    Device-wide terms are bytes over bandwidth (least bytes from HBM, all bytes from L2) and FLOPs over the
    rate of the SMs in use. Each CTA adds the latency of filling its pipeline once and of its group barriers.
    """
    k = SimpleNamespace(**knobs)
    if policy.counts is not None:
        counts = policy.counts(k, schedule, dims)
    else:
        counts = (counted or counts_of(program, knobs, gpu.arch))(dims)
    ctas = math.prod(size_at(extent, dims) for extent in schedule.grid)
    resident = gpu.slots_in_clusters(math.prod(schedule.cluster), schedule.ctas_per_sm)
    waves = math.ceil(ctas / resident) if ctas else 0
    busy = min(1.0, ctas / gpu.sms) if ctas else 1.0
    balance = waves * resident / ctas if ctas > resident else 1.0
    traffic = ctas * (counts.loaded + counts.stored)
    terms = {
        "hbm": min(program.problem.bytes(form, dims), traffic) / (gpu.hbm_gbps * 1e3),
        "l2": traffic / (gpu.l2_gbps * 1e3 * busy),
    }
    for dtype, flops in counts.flops.items():
        terms[f"mma {dtype}"] = ctas * flops / (gpu.tensor_tflops[dtype] * 1e6 * busy) * balance
    if counts.elements:
        # An SM of an H200 compares, counts or lists 3 keys a clock, fitted to the shipped table.
        terms["histogram"] = counts.elements * waves / (3 * gpu.clock_mhz)
    stages = max((p.stages for p in schedule.pipelines if transfer_of(p).COPIES), default=1)
    rounds = 1 + max(0.0, counts.uses / stages - 1) * 0.25 + counts.group_syncs
    latency = waves * gpu.tile_latency_us * rounds + max(1, waves) * policy.overhead(k, dims, gpu)
    return Cost(
        gpu.launch_us + latency + max(terms.values()),
        ctas,
        ctas / resident,
        {**terms, "latency": latency},
        counts,
    )
