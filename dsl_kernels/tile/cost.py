"""The cost model: run a program's bodies for one CTA, count, and turn the counts into a predicted time.

It ranks variants when nothing was measured. It knows bytes, tensor-core work, waves and pipeline fill; it does not
know bank conflicts, issue limits or clocks. Its times are a model and are labelled so wherever they are shown.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from ..arch import ArchSpec
from .lang import Engine, TileProgram
from .machine import Machine, Slot, _Run, unfilled


@dataclass
class Counts:
    """What one CTA does: bytes by direction, tensor-core FLOPs by dtype, pipeline uses, group barriers."""

    loaded: float = 0.0
    stored: float = 0.0
    flops: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    uses: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    group_syncs: float = 0.0
    elements: float = 0.0


@dataclass(frozen=True)
class Cost:
    """Predicted time of a launch in microseconds and the terms it is the maximum or sum of."""

    us: float
    ctas: int
    waves: float
    terms: dict[str, float]
    counts: Counts

    @property
    def bound(self) -> str:
        return max(self.terms, key=lambda name: self.terms[name])


class Counter(Machine):
    """Counts instead of moving data; every loop runs once with a weight.

    Global operands are one row of zeros seen through zero strides, so any size costs nothing. (Meta tensors would do
    too, but their broadcasting goes through Python and imports the whole of torch.compile.)
    """

    _run: _CountingRun

    def _weight(self) -> float:
        return math.prod(self._run.weights[self.role]) if self._run.weights[self.role] else 1.0

    def read(self, name: str, index: tuple[int, ...], typical: str | int) -> int:
        self._run.counts.loaded += 4 * self._weight()
        return int(self._run.dims[typical]) if isinstance(typical, str) else typical

    def loop(self, count: int) -> Iterator[int]:
        if count <= 0:
            return
        self._run.weights[self.role].append(float(count))
        yield 0
        self._run.weights[self.role].pop()

    def taken(self, condition: bool | torch.Tensor) -> bool:
        return True if isinstance(condition, torch.Tensor) else bool(condition)

    def acquire(self, name: str) -> Generator[Any, None, Slot]:
        pipe = self.schedule.pipeline(name)
        self._run.counts.uses[name] += self._weight()
        return Slot(pipe, 0, self._views(pipe, 0))
        yield

    def commit(self, slot: Slot) -> None:
        pass

    def wait(self, name: str) -> Generator[Any, None, Slot]:
        pipe = self.schedule.pipeline(name)
        return Slot(pipe, 0, self._views(pipe, 0))
        yield

    def release(self, slot: Slot) -> None:
        pass

    def meet(self, name: str) -> Generator[Any, None, None]:
        return
        yield

    def group_sync(self) -> Generator[Any, None, None]:
        self._run.counts.group_syncs += self._weight()
        return
        yield

    def group_buffer(self, name: str) -> torch.Tensor:
        buffer = self.buffer(name)
        self._run.counts.loaded += buffer.numel() * self._run.group_size * 4 * self._weight()
        return buffer.expand(self._run.group_size, *buffer.shape)

    def exchange(
        self, name: str, parts: Mapping[int, torch.Tensor]
    ) -> Generator[Any, None, dict[int, torch.Tensor]]:
        self._run.counts.uses[name] += self._weight()
        return dict(parts)
        yield

    def number(self, value: torch.Tensor, typical: int = 0) -> int:
        return typical

    def arrive_last(self, name: str, index: int, total: int) -> bool:
        return True

    def load(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._run.counts.loaded += target.numel() * source.element_size() * self._weight()

    def gather(self, target: torch.Tensor, source: torch.Tensor, rows: torch.Tensor) -> None:
        self._run.counts.loaded += target.numel() * source.element_size() * self._weight()

    def store(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self._run.counts.stored += target.numel() * target.element_size() * self._weight()

    def mma(
        self, name: str, a: torch.Tensor, b: torch.Tensor, acc: torch.Tensor | None = None
    ) -> torch.Tensor:
        op = self.schedule.mma(name)
        self._run.counts.flops[op.dtype] += op.flops * self._weight()
        return self.zeros(op.m, op.n)

    def histogram(self, digits: torch.Tensor, valid: torch.Tensor, bins: int) -> torch.Tensor:
        self._run.counts.elements += digits.numel() * self._weight()
        return self.zeros(bins, dtype=torch.int64)

    def compact(self, target: torch.Tensor, start: int, values: torch.Tensor, keep: torch.Tensor) -> int:
        self._run.counts.elements += values.numel() * self._weight()
        self._run.counts.stored += min(values.numel(), target.numel()) * 4 * self._weight()
        return 0


class _CountingRun(_Run):
    machine = Counter
    fresh = staticmethod(unfilled)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.counts = Counts()
        self.weights: dict[str, list[float]] = defaultdict(list)


def count(
    program: TileProgram, knobs: Mapping[str, Any], arch: ArchSpec, form: str, dims: Mapping[str, int]
) -> tuple[Counts, int]:
    """What one representative CTA moves and computes, and how many CTAs there are."""
    operands: dict[str, Any] = {}
    for spec in program.problem.operands(form):
        if spec.kind == "scalar":
            operands[spec.name] = int(dims.get(spec.name, 0)) if spec.dtype == "int32" else 1.0
            continue
        shape = [extent if isinstance(extent, int) else dims[extent] for extent in spec.shape]
        row = torch.zeros(
            shape[-1:], dtype=torch.uint8 if spec.dtype.startswith("float8") else spec.torch_dtype
        )
        operands[spec.name] = row.view(spec.torch_dtype).expand(shape)
    run = _CountingRun(program, knobs, arch, operands, dims)
    for _, body in run.start(tuple(0 for _ in run.grid)):
        for _ in body:
            pass
    return run.counts, math.prod(run.grid)


def predict(
    program: TileProgram, knobs: Mapping[str, Any], arch: ArchSpec, form: str, dims: Mapping[str, int]
) -> Cost:
    """Predicted time of one launch.

    Device-wide terms are bytes over bandwidth (least bytes from HBM, all bytes from L2) and FLOPs over the rate of
    the SMs in use; each CTA adds the latency of filling its pipeline once and of its group barriers.
    """
    counts, ctas = count(program, knobs, arch, form, dims)
    schedule = program.schedule(knobs, arch)
    resident = arch.sms * schedule.ctas_per_sm
    waves = math.ceil(ctas / resident) if ctas else 0
    busy = min(1.0, ctas / arch.sms) if ctas else 1.0
    balance = waves * resident / ctas if ctas > resident else 1.0
    traffic = ctas * (counts.loaded + counts.stored)
    terms = {
        "hbm": min(program.problem.bytes(form, dims), traffic) / (arch.hbm_gbps * 1e3),
        "l2": traffic / (arch.l2_gbps * 1e3 * busy),
    }
    for dtype, flops in counts.flops.items():
        terms[f"mma {dtype}"] = ctas * flops / (arch.tensor_tflops[dtype] * 1e6 * busy) * balance
    if counts.elements:
        # Shared-memory atomics retire about one a clock and SM.
        terms["histogram"] = counts.elements * waves / 1.7e3
    stages = max(
        (p.stages for p in schedule.pipelines if p.fill in (Engine.BULK, Engine.CP_ASYNC)), default=1
    )
    steps = max(counts.uses.values(), default=1.0)
    latency = (
        waves * arch.tile_latency_us * (1 + max(0.0, steps / stages - 1) * 0.25)
        + counts.group_syncs * arch.tile_latency_us
    )
    if program.overhead is not None:
        latency += max(1, waves) * program.overhead(SimpleNamespace(**knobs), dims, arch)
    return Cost(
        arch.launch_us + latency + max(terms.values()),
        ctas,
        ctas / resident,
        {**terms, "latency": latency},
        counts,
    )
