"""Leaf maths of trajectory resampling, by name: what each leaf means for a CTA, in torch.

Every thread places one target: what it has for itself is a tensor over the threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..._discover import later
from ...tile.kinds import Boolean, Float32, Int32, Sets, Writes
from ...tile.leaf import GlobalTile, SharedTile
from ...tile.text import leaf

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())

PIECES = 4
"""Pieces of rows that a thread has on their way at once."""


def _place(place: Any, weight: Any, times: torch.Tensor, first: int, t: torch.Tensor) -> None:
    """The upper row of each target among rows whose times are `times`, from row `first` on, and its weight."""
    passed = torch.where(t.isnan(), 0, torch.searchsorted(times, t, right=True))
    upper = passed.clamp(1, len(times) - 1)
    low, high = times[upper - 1], times[upper]
    share = torch.where(high > low, ((t - low) / (high - low)).clamp(0.0, 1.0), 0.0)
    place[:] = (first + upper).to(torch.int32)
    weight[:] = torch.where(t.isnan(), t, share)


def _upper_bound(times: torch.Tensor, t: torch.Tensor) -> int:
    return int(torch.searchsorted(times, t.view(1), right=True))


@leaf
def read_target(
    t: Sets[Float32], tgt_times: GlobalTile, row: Int32, m: Int32, first: Int32, thread: Int32,
    targets: int,
) -> Any:  # fmt: skip
    """The target time of each thread; NaN past the last target."""
    times = torch.full((targets,), float("nan"))
    own = tgt_times[row, first : first + targets]
    times[: len(own)] = own
    return times


@leaf
def stage_times(
    times: SharedTile, src_times: GlobalTile, row: Int32, n: Int32, first: Int32, count: Int32,
    thread: Int32, threads: int,
) -> None:  # fmt: skip
    """`count` times of a trajectory from row `first` on into shared memory."""
    times[:count] = src_times[row, first : first + count]


@leaf
def place_staged(
    place: SharedTile, weight: SharedTile, times: SharedTile, first: Int32, count: Int32,
    t: Float32, thread: Int32,
) -> None:  # fmt: skip
    """The upper row of each thread's target and its weight, from staged times of rows from `first` on."""
    _place(place, weight, times[:count], first, t)


@leaf
def place_by_warp(
    place: SharedTile, weight: SharedTile, times: SharedTile, count: Int32, t: Float32,
    thread: Int32, lane: Int32,
) -> None:  # fmt: skip
    """The upper row of each thread's target and its weight, by all lanes of a warp: 32 times a round, a target after the other."""
    _place(place, weight, times[:count], 0, t)


@leaf
def place_in_global(
    place: SharedTile, weight: SharedTile, src_times: GlobalTile, row: Int32, n: Int32,
    t: Float32, thread: Int32,
) -> None:  # fmt: skip
    """The upper row of each thread's target and its weight, from the times in global memory."""
    _place(place, weight, src_times[row], 0, t)


@leaf
def bound_warps(bounds: SharedTile, t: Float32, warp: Int32, warps: int, lane: Int32) -> None:
    """The least and the largest target of each warp; NaN does not count."""
    lanes = t.view(warps, -1)
    bounds[:warps] = torch.where(lanes.isnan(), float("inf"), lanes).amin(dim=1)
    bounds[warps : 2 * warps] = torch.where(lanes.isnan(), float("-inf"), lanes).amax(dim=1)


@leaf
def find_window(
    first: Sets[Int32], count: Sets[Int32], bounds: SharedTile, warps: int, src_times: GlobalTile,
    row: Int32, n: Int32, lane: Int32,
) -> Any:  # fmt: skip
    """The rows whose times decide all of the CTA's targets: at least two."""
    least, largest = bounds[:warps].amin(), bounds[warps : 2 * warps].amax()
    begin = min(max(_upper_bound(src_times[row], least) - 1, 0), n - 2)
    end = max(min(_upper_bound(src_times[row], largest) + 1, n), begin + 2)
    return begin, end - begin


@leaf
def keep_targets(marks: SharedTile, t: Float32, thread: Int32) -> None:
    """Every thread's target where all threads see it."""
    marks[:] = t


@leaf
def see_order(ascend: Sets[Boolean], marks: SharedTile, left: Int32, lane: Int32, targets: int) -> Any:
    """Whether the tile's targets, those before the last, ascend; NaN does not."""
    own = marks[: min(left, targets)]
    return bool((own[1:] >= own[:-1]).all() & ~own.isnan().any())


@leaf
def stage_rows(
    rows: SharedTile, data: GlobalTile, row: Int32, n: Int32, d: Int32, first: Int32,
    count: Int32, vector: int, thread: Int32, threads: int,
) -> None:  # fmt: skip
    """`count` rows of a trajectory from row `first` on into shared memory, one behind the other."""
    rows[: count * d] = data[row, first : first + count].flatten()


@leaf
def pass_targets(
    upto: Sets[Int32], marks: SharedTile, left: Int32, times: SharedTile, rows: Int32,
    last: Boolean, lane: Int32, targets: int,
) -> Any:  # fmt: skip
    """How many of the ascending targets the staged rows and those before them decide: all, at the last rows."""
    own = marks[: min(left, targets)]
    return len(own) if last else int((own < times[rows - 1]).sum())


def _mix(low: torch.Tensor, high: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The weighted mean of two rows, or one of them as it is."""
    low, high = low.float(), high.float()
    mixed = low * (1.0 - share) + high * share
    return torch.where(share <= 0.0, low, torch.where(share >= 1.0, high, mixed)).bfloat16()


@leaf
def blend_staged(
    out: Writes[GlobalTile], rows: SharedTile, row: Int32, m: Int32, d: Int32, first: Int32,
    done: Int32, upto: Int32, place: SharedTile, weight: SharedTile, vector: int, thread: Int32,
    threads: int,
) -> None:  # fmt: skip
    """blend of the targets from `done` to `upto`, whose rows are staged."""
    held = rows[: len(rows) // d * d].view(-1, d)
    upper = place[done:upto].long()
    out[row, first + done : first + upto] = _mix(held[upper - 1], held[upper], weight[done:upto, None])


@leaf
def blend(
    out: Writes[GlobalTile], data: GlobalTile, row: Int32, n: Int32, m: Int32, d: Int32,
    first: Int32, place: SharedTile, weight: SharedTile, targets: int, vector: int, thread: Int32,
    threads: int,
) -> None:  # fmt: skip
    """The targets' rows: the weighted mean of two rows, or one of them as it is."""
    count = min(targets, m - first)
    upper = place[:count].long()
    out[row, first : first + count] = _mix(data[row, upper - 1], data[row, upper], weight[:count, None])
