"""Trajectories at other times: which phases proposed for a slow kernel pay off, and what each waits for.

The phases are knobs of this library's program: the search in global memory, times in shared memory, 16 bytes
at a time of each row, a search by whole warps, more targets per CTA. The tensor cores have nothing to do (3
FLOP per element).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from dsl_kernels._discover import later
from dsl_kernels.problems.base import Comparison

from .. import oracles
from ..oracles import Workload
from ..timing import bench
from . import _figures
from .base import Case, CaseRows, Expectation, Launch, Record, rows_of, times

if TYPE_CHECKING:
    import torch

    from dsl_kernels import ops
else:
    torch = later("torch", globals())
    ops = later("dsl_kernels.ops", globals())

OP = "resample_trajectories"
DEVICE = "cuda"
SIZES = {"b": 64, "n": 4096, "m": 1024, "d": 32}
# The knobs of each phase, from the plain kernel to 512 targets per CTA.
RUNGS = {
    "global": "global_n128_v1",
    "shared": "staged_n128_v1",
    "vector": "staged_n128_v8",
    "warp": "warp_n128_v8",
    "wide": "staged_n512_v8",
}


def _variant(phase: str) -> str:
    return f"{OP}__cutedsl_sm90a__{RUNGS[phase]}"


def draw(b: int, seed: int, sizes: dict[str, int] = SIZES) -> dict[str, Any]:
    """Operands of `b` trajectories on the GPU, with the output poisoned."""
    workload = Workload("case", "real", "default", {**sizes, "b": b, "targets": "sorted"})
    drawn = oracles.get(OP).make(workload, torch.Generator(DEVICE).manual_seed(seed))
    out = torch.full((b, sizes["m"], sizes["d"]), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    return {**drawn, "out": out}


def _resample(inputs: dict[str, Any], phase: str) -> None:
    named = {name: inputs[name] for name in ("data", "src_times", "tgt_times", "out")}
    ops.resample_trajectories(**named, variant=_variant(phase))


def _checked(inputs: dict[str, Any], phase: str) -> Comparison:
    inputs["out"].fill_(float("nan"))
    _resample(inputs, phase)
    oracle = oracles.get(OP)
    return oracle.compare("default", inputs, {"out": inputs["out"]}, oracle.reference("default", inputs))


def by_torch(data: torch.Tensor, src_times: torch.Tensor, tgt_times: torch.Tensor) -> torch.Tensor:
    """The same resampling with torch's operators, [b, m, d]."""
    upper = torch.searchsorted(src_times, tgt_times, right=True).clamp(1, src_times.shape[1] - 1)
    first, last = src_times.gather(1, upper - 1), src_times.gather(1, upper)
    share = torch.where(last > first, ((tgt_times - first) / (last - first)).clamp(0.0, 1.0), 0.0)
    rows = upper[..., None].expand(-1, -1, data.shape[2])
    low, high = data.gather(1, rows - 1).float(), data.gather(1, rows).float()
    return torch.lerp(low, high, share[..., None]).bfloat16()


def measure(to: CaseRows) -> None:
    moved = oracles.get(OP).bytes("default", SIZES)
    sets = [draw(SIZES["b"], seed) for seed in range(bench.turns(moved))]
    eager = [partial(by_torch, *(each[name] for name in ("data", "src_times", "tgt_times"))) for each in sets]
    halves = [torch.zeros(2, int(moved) // 2, dtype=torch.uint8, device=DEVICE) for _ in sets]
    to.row(
        "copy",
        partial(times, [partial(half[0].copy_, half[1]) for half in halves], moved),
        kind="torch",
        phase="a copy of the bytes",
    )
    to.row("eager", partial(times, eager, moved), kind="torch", phase="torch, eager")
    for phase in RUNGS:
        calls = [partial(_resample, inputs, phase) for inputs in sets]
        to.row(
            phase,
            partial(times, calls, moved),
            partial(_checked, sets[0], phase),
            kind="phase",
            phase=phase,
            variant=_variant(phase),
            trajectories=SIZES["b"],
        )


def _target(phase: str) -> Launch:
    return Launch(lambda: partial(_resample, draw(SIZES["b"], 0), phase), OP)


def figure(record: Record) -> Any:
    """Time by phase, and where the warps wait."""
    drawn, (left, right) = _figures.panels(2, "64 trajectories, 4096 rows at 1024 times", record)
    rows = [*rows_of(record, "phase"), *rows_of(record, "torch")]
    _figures.bars(left, [row["phase"] for row in rows], [row["us"] for row in rows], "µs", log=True)
    _figures.stalls(right, record)
    return drawn


DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
CASE = Case(
    name="resample",
    question="Which of the proposed phases makes a resampling kernel faster, and what does it wait for then?",
    source="004",
    measure=measure,
    draw=figure,
    launches={phase: _target(phase) for phase in ("global", "shared", "vector", "warp", "wide")},
    expected=(
        Expectation("global", DRAM, "<", 20.0, "not bound by memory"),
        Expectation(
            "global", "dominant_stall", "in", ("wait",), "few warps, each behind its own last instruction"
        ),
        Expectation("warp", DRAM, "<", 20.0, "32 searches one after the other"),
        Expectation(
            "warp",
            "dominant_stall",
            "in",
            ("wait", "short_scoreboard"),
            "shuffles and votes of one search a time",
        ),
        Expectation("wide", DRAM, "<", 50.0, "at 64 trajectories latency is left, not bytes"),
        Expectation(
            "wide", "dominant_stall", "in", ("wait", "long_scoreboard"), "the times first, then the rows"
        ),
    ),
)
