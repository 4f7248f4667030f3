"""What breaks resampling's texts: times and targets, structures, and why some mutants are no bug."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from body_mutants import Only, Structure, workload

from dsl_kernels_lab.oracles import Workload


# Targets at and outside the times, equal times, unsorted targets, rows of infinities; widths that a vector
# does not divide.
def _resampled(d: int, *more: Workload) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    def of(name: str, b: int, n: int, m: int, **how: Any) -> Workload:
        return workload(f"{name}_d{d}", "default", b=b, n=n, m=m, d=d, **how)

    workloads = (
        of("distinct_sorted", 3, 1100, 150),
        of("distinct_mixed", 2, 777, 131, targets="mixed"),
        of("distinct_hostile", 2, 300, 290, targets="hostile", rows="specials"),
        of("distinct_repeated", 3, 260, 150, times="repeated", targets="hostile"),
        of("distinct_few", 2, 2, 5),
        *more,
    )
    return tuple((workload, {}) for workload in workloads)


# Targets so far apart that the times between them are not staged.
FAR = workload("distinct_far", "default", b=2, n=12007, m=70, d=40, targets="mixed")

STRUCTURES = (
    Structure("resampling from global memory", "resample_trajectories__cutedsl_sm90a__global_n128_v1",
              _resampled(5)),
    Structure("resampling by a merge", "resample_trajectories__cutedsl_sm90a__merge_n128_v8", _resampled(40)),
    Structure("resampling of staged times", "resample_trajectories__cutedsl_sm90a__staged_n128_v8",
              _resampled(40)),
    Structure("resampling by a warp", "resample_trajectories__cutedsl_sm90a__warp_n128_v8", _resampled(40)),
    Structure("resampling of a window", "resample_trajectories__cutedsl_sm90a__window_n128_v8",
              _resampled(40, FAR)),
)  # fmt: skip

RESAMPLING = (
    "resampling from global memory",
    "resampling by a merge",
    "resampling of staged times",
    "resampling by a warp",
    "resampling of a window",
)
NO_RINGS = Only(
    "no pipeline has barriers, and nothing waits for their standing", dict.fromkeys(RESAMPLING, (1,))
)
# Mutants that may survive, and why their kernel computes the same.
EXPLAINED: dict[str, str | Only] = {
    "start: drop barriersstand": NO_RINGS,
    "start: twice barriersstand": NO_RINGS,
    "left and targets of blend": "it takes the lesser of the two",
}
