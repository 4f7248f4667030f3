"""Cases of the leaves of trajectory resampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from leaf_probes import Probe, case

from dsl_kernels.kernels.resample_trajectories import leaves as leaf

TARGETS, WARPS = 128, 4
INF, NAN = float("inf"), float("nan")


def _times(p: Probe, *shape: int) -> torch.Tensor:
    """Ascending, with runs of equal times, at both ends as well."""
    steps = p.uniform(*shape)
    steps[..., ::3] = 0.0
    steps[..., -2:] = 0.0
    return steps.cumsum(dim=-1)


def _targets(p: Probe, times: torch.Tensor) -> torch.Tensor:
    """One target per thread, unsorted: between times, at some, outside, infinite and NaN."""
    low, high = times.min(), times.max()
    t = low + (torch.rand(TARGETS, generator=p.generator) * 1.2 - 0.1) * (high - low)
    t[::5] = times[p.integers(0, len(times), len(t[::5])).long()]
    t[3], t[40], t[77], t[100], t[101] = INF, -INF, NAN, low, high
    return t


def _t(p: Probe, value: torch.Tensor | None, **kind: Any) -> Callable[[Any], Any]:
    """The target of each thread."""
    p.threads = TARGETS
    return p.var("t", value, dtype="float32", each="thread", **kind)


def _found(p: Probe) -> tuple[Any, Any]:
    return p.shared("place", (TARGETS,), dtype="int32", out=True), p.shared("weight", (TARGETS,), out=True)


@case(leaf.read_target, first=(0, 128))
def read_target(p: Probe, first: int) -> None:
    t, targets = _t(p, None, out=True), p.operand("tgt_times", p.normal(2, 200))
    p.call(
        t, targets, p.dim("row", 1), p.dim("total", 200), p.dim("first", first), p.dim("left", 200 - first)
    )


@case(leaf.stage_times, count=(2, 129, 4096 + 700))
def stage_times(p: Probe, count: int) -> None:
    p.threads = TARGETS
    times, source = (
        p.shared("times", (8192,), torch.zeros(8192), out=True),
        p.operand("src_times", p.normal(2, 5001)),
    )
    p.call(
        times, source, p.dim("row", 1), p.dim("n", 5001), p.dim("first", 33), p.dim("count", count), TARGETS
    )


@case(leaf.place_staged, count=(2, 3, 1000))
def place_staged(p: Probe, count: int) -> None:
    times = _times(p, count)
    t = _t(p, _targets(p, times))
    held = torch.cat([times, torch.zeros(1024 - count)])
    p.call(*_found(p), p.shared("times", (1024,), held), p.dim("first", 70), p.dim("count", count), t)


@case(leaf.place_by_warp, count=(2, 3, 1000))
def place_by_warp(p: Probe, count: int) -> None:
    times = _times(p, count)
    t = _t(p, _targets(p, times))
    held = torch.cat([times, torch.zeros(1024 - count)])
    p.call(*_found(p), p.shared("times", (1024,), held), p.dim("count", count), t)


@case(leaf.place_in_global, n=(2, 1000))
def place_in_global(p: Probe, n: int) -> None:
    times = _times(p, 2, n)
    t = _t(p, _targets(p, times[1]))
    p.call(*_found(p), p.operand("src_times", times), p.dim("row", 1), p.dim("n", n), t)


@case(leaf.bound_warps)
def bound_warps(p: Probe) -> None:
    t = p.normal(TARGETS)
    t[32:64], t[70], t[100] = NAN, NAN, INF
    target = _t(p, t)
    p.call(p.shared("bounds", (2 * WARPS,), out=True), target, WARPS)


@case(leaf.find_window, n=(2, 17, 5000), targets=("inside", "around", "none"))
def find_window(p: Probe, n: int, targets: str) -> None:
    p.threads = TARGETS
    times = _times(p, 2, n)
    middle = times[1, n // 2]
    least = {"inside": middle - 2.0, "around": -INF, "none": INF}[targets]
    largest = {"inside": middle + 3.0, "around": INF, "none": -INF}[targets]
    bounds = torch.tensor([INF] * WARPS + [-INF] * WARPS)
    bounds[1], bounds[WARPS + 2] = least, largest
    p.call(
        p.var("first", None, out=True),
        p.var("count", None, out=True),
        p.shared("bounds", (2 * WARPS,), bounds),
        WARPS,
        p.operand("src_times", times),
        p.dim("row", 1),
        p.dim("n", n),
    )


@case(leaf.keep_targets)
def keep_targets(p: Probe) -> None:
    t = _t(p, p.normal(TARGETS))
    p.call(p.shared("marks", (TARGETS,), out=True), t)


@case(leaf.see_order, order=("ascending", "equal", "one back", "nan", "nan alone", "wrong past the last"))
def see_order(p: Probe, order: str) -> None:
    p.threads, left = TARGETS, 1 if order == "nan alone" else 100
    marks = p.normal(TARGETS).sort().values
    if order == "equal":
        marks[10:80] = marks[10]
    if order == "one back":
        marks[64] = marks[20]
    if order == "nan":
        marks[97:] = NAN
    if order == "nan alone":
        marks[0] = NAN
    if order == "wrong past the last":
        marks[100:] = torch.tensor([NAN, -5.0] * 14)
    ascend = p.var("ascend", None, dtype="bool", out=True)
    p.call(ascend, p.shared("marks", (TARGETS,), marks), p.dim("left", left), TARGETS)


@case(leaf.stage_stretch, vector=(8, 1), count=(2, 200))
def stage_stretch(p: Probe, vector: int, count: int) -> None:
    p.threads, d = TARGETS, 40 if vector == 8 else 5
    rows = p.shared("rows", (8192,), torch.zeros(8192, dtype=torch.bfloat16), dtype="bfloat16", out=True)
    data = p.operand("data", p.normal(2, 260, d).bfloat16())
    sizes = (p.dim("row", 1), p.dim("n", 260), p.dim("d", d), p.dim("first", 33), p.dim("count", count))
    p.call(rows, data, *sizes, vector, TARGETS)


@case(leaf.pass_targets, left=(100, 300), last=(True, False))
def pass_targets(p: Probe, left: int, last: bool) -> None:
    p.threads = TARGETS
    marks, times = p.normal(TARGETS).sort().values, p.normal(64).sort().values
    times[49] = marks[70]
    upto, held = p.var("upto", None, out=True), p.shared("marks", (TARGETS,), marks)
    p.call(
        upto,
        held,
        p.dim("left", left),
        p.shared("times", (64,), times),
        p.dim("rows", 50),
        p.var("last", last, dtype="bool"),
        TARGETS,
    )


@case(leaf.blend_staged, vector=(8, 1), done=(0, 37))
def blend_staged(p: Probe, vector: int, done: int) -> None:
    p.threads, p.relative = TARGETS, 2.0**-8
    n, m, d = 50, 200, 40 if vector == 8 else 5
    rows = torch.zeros(4096, dtype=torch.bfloat16)
    data = p.normal(n, d).bfloat16()
    data[7], data[20] = INF, NAN
    rows[: n * d] = data.flatten()
    weight = torch.rand(TARGETS, generator=p.generator)
    weight[::4], weight[1::4], weight[2] = 0.0, 1.0, NAN
    p.call(
        p.operand("out", torch.zeros(2, m, d, dtype=torch.bfloat16), out=True),
        p.shared("rows", (4096,), rows, dtype="bfloat16"),
        p.dim("row", 1),
        p.dim("total", m),
        p.dim("d", d),
        p.dim("first", 64),
        p.var("done", done),
        p.var("upto", 101),
        p.shared("place", (TARGETS,), p.integers(1, n, TARGETS), dtype="int32"),
        p.shared("weight", (TARGETS,), weight),
        vector,
        TARGETS,
    )


@case(leaf.blend, vector=(8, 1))
def blend(p: Probe, vector: int) -> None:
    p.threads, p.relative = TARGETS, 2.0**-8
    n, m, d = 50, 200, 40 if vector == 8 else 5
    data = p.normal(2, n, d).bfloat16()
    data[:, 7], data[:, 20] = INF, NAN
    weight = torch.rand(TARGETS, generator=p.generator)
    weight[::4], weight[1::4], weight[2] = 0.0, 1.0, NAN
    p.call(
        p.operand("out", torch.zeros(2, m, d, dtype=torch.bfloat16), out=True),
        p.operand("data", data),
        p.dim("row", 1),
        p.dim("n", n),
        p.dim("total", m),
        p.dim("d", d),
        p.dim("first", TARGETS),
        p.dim("left", m - TARGETS),
        p.shared("place", (TARGETS,), p.integers(1, n, TARGETS), dtype="int32"),
        p.shared("weight", (TARGETS,), weight),
        TARGETS,
        vector,
        TARGETS,
    )
