"""How outputs of `resample_trajectories` are judged: drawn inputs, the reference, tolerances, workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dsl_kernels.kernels.resample_trajectories.problem import PROBLEM
from dsl_kernels.problems.base import Comparison

from . import Oracle, Workload

# The error that fp32 arithmetic on weights and rows may add to the final rounding, relative to the largest
# value of a trajectory.
ARITHMETIC = 2.0**-20
# Half a unit in the last place of bf16, which has eight significant bits, with room for the reference's own
# error.
ROUNDING = 2.0**-8 * 1.01


def _sorted_times(kind: str, b: int, n: int, generator: torch.Generator) -> torch.Tensor:
    device = generator.device
    steps = torch.rand(b, n, generator=generator, dtype=torch.float32, device=device) + 0.05
    if kind == "repeated":  # runs of equal times, at both ends too
        steps[torch.rand(b, n, generator=generator, dtype=torch.float32, device=device) < 0.6] = 0.0
        steps[:, :3] = 0.0
        steps[:, -2:] = 0.0
    if kind == "equal":
        steps.zero_()
    times = steps.cumsum(dim=1)
    if kind == "large":  # neighbouring floats apart
        times = (times * 8).round() * 0.5 + 2.0**23
    if kind == "small":
        times = times * 2.0**-126
    return times


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    """Draw ascending times with gaps, and targets between times, at times and outside, in order or not."""
    p, device = workload.params, generator.device
    b, n, m, d = p["b"], p["n"], p["m"], p["d"]
    src = _sorted_times(p.get("times", "spread"), b, n, generator)
    spread = torch.rand(b, m, generator=generator, dtype=torch.float32, device=device)
    low, high = src[:, :1], src[:, -1:]
    tgt = low + (spread * 1.1 - 0.05) * (high - low)
    if p.get("targets") == "hostile":
        exact = torch.randint(n, (b, m), generator=generator, device=device)
        tgt = torch.where(spread < 0.4, src.gather(1, exact), tgt)
        for share, value in ((0.45, float("nan")), (0.5, float("inf")), (0.55, float("-inf"))):
            tgt = torch.where((spread > share - 0.05) & (spread < share), value, tgt)
    elif p.get("targets", "sorted") == "sorted":
        tgt = tgt.sort(dim=1).values
    data = torch.randn(b, n, d, generator=generator, dtype=torch.float32, device=device).bfloat16()
    if p.get("rows") == "specials":
        coin = torch.rand(b, n, d, generator=generator, dtype=torch.float32, device=device)
        data[coin < 0.1] = float("inf")
        data[coin > 0.9] = float("nan")
    return {"data": data, "src_times": src, "tgt_times": tgt}


def neighbours(src_times: torch.Tensor, tgt_times: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The upper row of each target, and its weight in float64: 0 takes the lower row, 1 the upper row.

    Args:
        src_times: [b, n] float32. tgt_times: [b, m] float32.
    """
    targets = tgt_times.contiguous()
    upper = torch.searchsorted(src_times, targets, right=True).clamp(1, src_times.shape[1] - 1)
    first, last = src_times.gather(1, upper - 1).double(), src_times.gather(1, upper).double()
    weight = ((targets.double() - first) / (last - first)).clamp(0.0, 1.0)
    return upper, torch.where((last == first) & ~targets.isnan(), 0.0, weight)


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The rows in float64; a weight of 0 or 1 takes its row as it is."""
    data = inputs["data"]
    upper, weight = neighbours(inputs["src_times"], inputs["tgt_times"])

    def rows(position: torch.Tensor) -> torch.Tensor:
        return data.gather(1, position[..., None].expand(-1, -1, data.shape[2])).double()

    low, high, share = rows(upper - 1), rows(upper), weight[..., None]
    mixed = low * (1.0 - share) + high * share
    return {"out": torch.where(share == 0.0, low, torch.where(share == 1.0, high, mixed))}


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Require each element within one rounding to bf16 of the reference, with its NaN and infinities."""
    result = Comparison()
    got, wanted = outputs["out"].double(), expected["out"]
    result.demand("NaN where the reference is", torch.equal(got.isnan(), wanted.isnan()))
    result.demand("infinite where the reference is", torch.equal(got[wanted.isinf()], wanted[wanted.isinf()]))
    finite = inputs["data"].double().nan_to_num(0.0, 0.0, 0.0).abs().flatten(1)
    largest = finite.amax(dim=1)[:, None, None] if finite.numel() else 0.0
    bound = wanted.abs() * ROUNDING + largest * ARITHMETIC
    excess = ((got - wanted).abs() / bound)[wanted.isfinite()].nan_to_num(nan=0.0)
    result.require("error over its bound", float(excess.max()) if excess.numel() else 0.0, 1.0)
    return result


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Two products and a sum per element."""
    return {"float32": 3.0 * dims["b"] * dims["m"] * dims["d"]}


def _case(name: str, tier: str, b: int, n: int, m: int, d: int, **extra: Any) -> Workload:
    return Workload(name, tier, "default", {"b": b, "n": n, "m": m, "d": d, **extra})


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=(
        _case("tiny", "tiny", 2, 100, 40, 32),
        _case("two_rows", "edge", 3, 2, 5, 8),
        _case("one_target", "edge", 1, 33, 1, 64),
        _case("odd_sizes", "edge", 3, 777, 131, 40, targets="mixed"),
        _case("odd_width", "edge", 2, 65, 130, 5, targets="hostile"),
        _case("hostile", "edge", 2, 300, 300, 16, targets="hostile"),
        _case("specials", "edge", 2, 70, 90, 24, targets="hostile", rows="specials"),
        _case("repeated", "edge", 2, 260, 150, 8, times="repeated", targets="hostile"),
        _case("equal", "edge", 1, 40, 70, 8, times="equal", targets="hostile"),
        _case("large_times", "edge", 1, 500, 200, 8, times="large"),
        _case("small_times", "edge", 1, 500, 200, 8, times="small"),
        _case("long", "edge", 1, 20000, 70, 8, targets="mixed"),
        _case("sorted", "edge", 2, 1100, 150, 64),
        _case("real_b64", "real", 64, 4096, 1024, 32),
        _case("real_b512", "real", 512, 4096, 1024, 32),
        _case("real_unsorted", "real", 64, 4096, 1024, 32, targets="hostile"),
        _case("real_dense", "real", 16, 1024, 8192, 64),
        _case("real_million", "real", 2, 1 << 20, 1 << 18, 32),
        _case("real_sparse", "real", 2, 1 << 20, 4096, 32),
    ),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
    units=lambda form, dims: ("trajectories", dims["b"]),
)
