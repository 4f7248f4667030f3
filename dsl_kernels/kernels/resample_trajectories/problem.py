"""Resampling of trajectories: a target time gets the linear interpolation of the two rows around it.

A trajectory is `n` rows of `d` bf16 values at ascending fp32 times. A target between two times gets the
weighted mean of their rows, computed in fp32 and rounded once. A target outside the trajectory gets its first
or last row, bit for bit. A target that equals a time gets the row of that time, bit for bit. Of equal times
the last counts, so two equal times at the very end give the row before the last. A NaN target gives a row of
NaN. Times must ascend and be finite. Other times take undefined rows of the same trajectory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ..._torch import torch
from ...problems.base import OperandSpec, Problem, Values


def _not_ascending(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    times = o["src_times"]
    wrong = ~times.isfinite()
    wrong[:, 1:] |= ~(times[:, 1:] >= times[:, :-1])
    return wrong


def _too_far(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    times = o["src_times"]
    return ~(times - times[:, :1]).isfinite() & times.isfinite()


OPERANDS = (
    OperandSpec("data", ("b", "n", "d"), "bfloat16", doc="rows of the trajectories", requires=("n >= 2",)),
    OperandSpec(
        "src_times",
        ("b", "n"),
        "float32",
        align=4,
        doc="times of the rows",
        values=(
            Values("finite and ascending along a trajectory", _not_ascending),
            Values("less than the largest float32 apart", _too_far),
        ),
    ),
    OperandSpec("tgt_times", ("b", "m"), "float32", align=4, doc="times to sample at, in any order"),
    OperandSpec("out", ("b", "m", "d"), "bfloat16", "out", doc="a row per target time"),
)


def rows_read(n: int, m: int) -> float:
    """The expected number of distinct rows, of `n`, around `m` evenly drawn targets.

    Neighbours share rows.
    """
    return n * (1.0 - (1.0 - 2.0 / n) ** m)


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Each row around a target once, each target's sector of times (at most all times), every result once."""
    b, n, m, d = (dims[name] for name in ("b", "n", "m", "d"))
    return b * (4.0 * (min(8 * m, n) + m) + 2.0 * d * (rows_read(n, m) + m))


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Trajectories of 4096 rows of 32 at 1024 times.

    The grid "serving" adds other orders of targets, widths and lengths. The grid "wide" combines many sizes.
    """
    if grid == "wide":
        for b, n, m, d in product((1, 3, 16, 37, 64, 200, 512), (1024, 4096), (1024, 8192), (32, 64)):
            yield "default", {"b": b, "n": n, "m": m, "d": d}
        return
    for b in {"core": (64, 512), "serving": (1, 16, 64, 512), "contest": (64,), "smoke": (1,)}[grid]:
        yield "default", {"b": b, "n": 4096, "m": 1024, "d": 32}
    if grid == "serving":
        yield "default", {"b": 64, "n": 4096, "m": 1024, "d": 32, "targets": "mixed"}
        yield "default", {"b": 64, "n": 4096, "m": 1024, "d": 64}
        yield "default", {"b": 64, "n": 4096, "m": 1024, "d": 5}
        yield "default", {"b": 16, "n": 1024, "m": 8192, "d": 32}
        yield "default", {"b": 2, "n": 1 << 20, "m": 1 << 18, "d": 32}
        yield "default", {"b": 2, "n": 1 << 20, "m": 4096, "d": 32, "targets": "mixed"}


PROBLEM = Problem(
    op="resample_trajectories",
    doc=__doc__,
    forms={"default": OPERANDS},
    bytes=moved_bytes,
    points=points,
)
