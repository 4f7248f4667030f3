"""Texts of the leaves of resampling: a thread places one target, then all threads blend pieces of rows.

A piece is 1 or 8 neighbouring elements of a row. A thread holds it in words.
"""

from __future__ import annotations

import math

from ...device.torch.floats import divide, is_nan, max_of_lanes
from ...device.torch.scalars import bits_of, float_of, half_of, load_piece, pair_of, store_piece
from ...device.torch.warps import any_lane, ballot, clz, popc, shuffle
from ...tile.frontend import named, recorded, rolled, unrolled
from ...tile.kinds import (
    BFloat16,
    Boolean,
    Changes,
    Float32,
    Global,
    Int32,
    LeafRecorder,
    Sets,
    Shared,
    Writes,
)
from ...tile.leaf_text import WARP, by_text
from ...tile.text import maximum, minimum, select

PIECES = 4
"""Pieces of rows, or last times, that a thread has in flight at once."""
STAGED_PIECES = 8
"""Pieces of rows that a thread has in flight to shared memory at once."""
AHEAD = 4096
"""Times that a CTA has in flight at once, at most 32 per thread."""
HALF = WARP // 2


@by_text
def read_target(
    m: LeafRecorder, t: Sets[Float32], tgt_times: Global[Float32], row: Int32, total: Int32, first: Int32,
    left: Int32,
) -> None:  # fmt: skip
    """Read the target time of each thread, from target `first` of `total` on; NaN past the `left` targets."""
    t = math.nan
    if m.thread < left:
        t = tgt_times.row("times", row, total, first)[m.thread]


@by_text
def stage_times(
    m: LeafRecorder, times: Shared[Float32], src_times: Global[Float32], row: Int32, n: Int32, first: Int32,
    count: Int32, threads: int,
) -> None:  # fmt: skip
    """Copy `count` times of a trajectory from row `first` on into shared memory."""
    source, each = src_times.row("source", row, n, first), min(AHEAD // threads, 32)
    held = m.local("held", each, "float32")
    whole = count // (each * threads) * (each * threads)
    for base in rolled(m.thread, whole, each * threads):
        for i in unrolled(each):
            held[i] = source[base + i * threads]
        for i in unrolled(each):
            times[base + i * threads] = held[i]
    for base in rolled(whole + m.thread, count, PIECES * threads):
        for i in unrolled(PIECES):
            if base + i * threads < count:
                held[i] = source[base + i * threads]
        for i in unrolled(PIECES):
            if base + i * threads < count:
                times[base + i * threads] = held[i]


@recorded
def _upper_bound(m, times, count, t):
    """How many of the first `count` ascending times are at most `t`.

    All lanes make the same number of steps.
    """
    found: Int32 = 0
    step: Int32 = 1 << (31 - clz(count))
    while step > 0:
        if found + step <= count:  # noqa: SIM102 (read only then)
            if times[found + step - 1] <= t:
                found += step
        step = step >> 1
    return found


@recorded
def _keep(m, place, weight, times, first, count, upper, t):
    """Store the upper row of a target and the share of that row. A NaN target has a NaN share."""
    at = minimum(maximum(upper, 1), count - 1)
    low = times[at - 1]
    high = times[at]
    share: Float32 = 0.0
    if high > low:
        share = minimum(maximum(divide(t - low, high - low), 0.0), 1.0)
    place[m.thread] = first + at
    weight[m.thread] = select(is_nan(t), t, share)


@by_text
def place_staged(
    m: LeafRecorder, place: Shared[Int32], weight: Shared[Float32], times: Shared[Float32], first: Int32,
    count: Int32, t: Float32,
) -> None:  # fmt: skip
    """Find the upper row of each thread's target, and its weight, in staged times of rows from `first` on."""
    _keep(m, place, weight, times, first, count, _upper_bound(m, times, count, t), t)


@by_text
def place_in_global(
    m: LeafRecorder, place: Shared[Int32], weight: Shared[Float32], src_times: Global[Float32], row: Int32,
    n: Int32, t: Float32,
) -> None:  # fmt: skip
    """Find the upper row of each thread's target, and its weight, in times in global memory."""
    times = src_times.row("times", row, n)
    _keep(m, place, weight, times, 0, n, _upper_bound(m, times, n, t), t)


@recorded
def _upper_bound_by_lanes(m, times, count, t, lanes):
    """`_upper_bound` of a target that `lanes` neighbouring lanes share.

    In a round each lane reads one time.
    """
    begin: Int32 = 0
    end: Int32 = count
    while begin < end if lanes == WARP else any_lane(begin < end):
        step = maximum((end - begin + (lanes - 1)) // lanes, 1)
        at = begin + (m.lane % lanes + 1) * step - 1
        below: Boolean = False
        if at < end:
            below = times[at] <= t
        votes = ballot(below)
        passed = popc(votes if lanes == WARP else (votes >> (m.lane & lanes)) & ((1 << lanes) - 1))
        end = minimum(begin + (passed + 1) * step - 1, end)
        begin += passed * step
    return begin


@by_text
def place_by_warp(
    m: LeafRecorder, place: Shared[Int32], weight: Shared[Float32], times: Shared[Float32], count: Int32,
    t: Float32,
) -> None:  # fmt: skip
    """Find the upper row of each thread's target, and its weight, with all lanes of a warp.

    The warp takes one target after the other, and a round reads 32 times.
    """
    upper: Int32 = 0
    for i in rolled(WARP):
        target = float_of(shuffle(bits_of(t), i))
        found = _upper_bound_by_lanes(m, times, count, target, WARP)
        if m.lane == i:
            upper = found
    _keep(m, place, weight, times, 0, count, upper, t)


@by_text
def bound_warps(m: LeafRecorder, bounds: Shared[Float32], t: Float32, warps: int) -> None:
    """Find the least and the largest target of each warp; NaN does not count."""
    least = -max_of_lanes(-t)
    largest = max_of_lanes(t)
    if m.lane == 0:
        bounds[m.warp] = select(is_nan(least), math.inf, least)
        bounds[warps + m.warp] = select(is_nan(largest), -math.inf, largest)


@by_text
def find_window(
    m: LeafRecorder, first: Sets[Int32], count: Sets[Int32], bounds: Shared[Float32], warps: int,
    src_times: Global[Float32], row: Int32, n: Int32,
) -> None:  # fmt: skip
    """Find the rows whose times decide all targets of the CTA: at least two rows."""
    least = -max_of_lanes(-bounds[m.lane % warps])
    largest = max_of_lanes(bounds[warps + m.lane % warps])
    # Each half of the warp looks for one of the two, so that their reads wait together.
    t = select(m.lane < HALF, least, largest)
    found = _upper_bound_by_lanes(m, src_times.row("times", row, n), n, t, HALF)
    low = shuffle(found, 0)
    high = shuffle(found, HALF)
    first = minimum(maximum(low - 1, 0), n - 2)
    count = maximum(minimum(high + 1, n) - first, 2)


@by_text
def keep_targets(m: LeafRecorder, marks: Shared[Float32], t: Float32) -> None:
    """Store every thread's target for all threads."""
    marks[m.thread] = t


@by_text
def see_order(
    m: LeafRecorder, ascend: Sets[Boolean], marks: Shared[Float32], left: Int32, targets: int
) -> None:
    """Find whether the tile's `left` targets ascend; NaN does not."""
    wrong: Boolean = False
    for i in unrolled(0, targets, WARP):
        at = i + m.lane
        if at < left:
            # Two tests: compilers may turn "not at least the one before" into "below it", which is false for
            # NaN.
            wrong |= is_nan(marks[at]) | (marks[at] < marks[maximum(at - 1, 0)])
    ascend = ~any_lane(wrong)


@by_text
def stage_stretch(
    m: LeafRecorder, rows: Shared[BFloat16], data: Global[BFloat16], row: Int32, n: Int32, d: Int32,
    first: Int32, count: Int32, vector: int, threads: int,
) -> None:  # fmt: skip
    """Copy `count` rows of a trajectory from row `first` on into shared memory, one after the other."""
    source, words = data.row("source", (row, first), (n, d)), _words(vector)
    held = m.local("held", STAGED_PIECES * words, "uint32")
    pieces: Int32 = count * d // vector
    for base in rolled(m.thread, pieces, STAGED_PIECES * threads):
        for i in unrolled(STAGED_PIECES):
            if base + i * threads < pieces:
                m.do(load_piece(held, i * words, vector, source.at((base + i * threads) * vector)))
        for i in unrolled(STAGED_PIECES):
            if base + i * threads < pieces:
                m.do(store_piece(held, i * words, vector, rows.at((base + i * threads) * vector)))


@by_text
def pass_targets(
    m: LeafRecorder, upto: Sets[Int32], marks: Shared[Float32], left: Int32, times: Shared[Float32],
    rows: Int32, last: Boolean, targets: int,
) -> None:  # fmt: skip
    """Count the ascending targets that staged and earlier rows decide: all targets, at the last rows."""
    passed: Int32 = 0
    end = times[rows - 1]
    for i in unrolled(0, targets, WARP):
        decided: Boolean = False
        if i + m.lane < left:
            decided = last | (marks[i + m.lane] < end)
        passed += popc(ballot(decided))
    upto = passed


@by_text
def blend_staged(
    m: LeafRecorder, out: Writes[Global[BFloat16]], rows: Shared[BFloat16], row: Int32, total: Int32,
    d: Int32, first: Int32, done: Int32, upto: Int32, place: Shared[Int32], weight: Shared[Float32],
    vector: int, threads: int,
) -> None:  # fmt: skip
    """Blend the targets from `done` to `upto`, whose rows are staged."""

    def row_of(title, upper):
        return rows.part(title, upper * d)

    _blend(m, out, row_of, row, total, d, first, done, upto, place, weight, vector, threads)


@by_text
def blend(
    m: LeafRecorder, out: Writes[Global[BFloat16]], data: Global[BFloat16], row: Int32, n: Int32,
    total: Int32, d: Int32, first: Int32, left: Int32, place: Shared[Int32], weight: Shared[Float32],
    targets: int, vector: int, threads: int,
) -> None:  # fmt: skip
    """Write the rows of targets: the weighted mean of two rows, or one of the two as it is."""

    def row_of(title, upper):
        return data.row(title, (row, upper), (n, d))

    end = minimum(targets, left)
    _blend(m, out, row_of, row, total, d, first, 0, end, place, weight, vector, threads)


@recorded
def _blend(m, out, row_of, row, total, d, first, begin, end, place, weight, vector, threads):
    """Blend the targets from `begin` to `end`, a piece per thread and turn. `row_of` gives a row."""
    words = _words(vector)
    low, high = (m.local(title, PIECES * words, "uint32") for title in ("low", "high"))
    width: Int32 = d // vector
    step: Int32 = threads // width
    rest: Int32 = threads - step * width
    own: Int32 = m.thread // width
    column: Int32 = m.thread - own * width
    own += begin
    while own < end:
        ahead: Int32 = own
        ahead_column: Int32 = column
        for i in unrolled(PIECES):
            if ahead < end:
                upper = place[ahead]
                m.do(
                    load_piece(
                        low, i * words, vector, row_of("lower_row", upper - 1).at(ahead_column * vector)
                    )
                )
                m.do(
                    load_piece(high, i * words, vector, row_of("upper_row", upper).at(ahead_column * vector))
                )
            _onwards(m, ahead, ahead_column, step, rest, width)
        for i in unrolled(PIECES):
            if own < end:
                share = weight[own]
                for j in unrolled(words):
                    lower = low[i * words + j]
                    upper = high[i * words + j]
                    mean = _mean(m, lower, upper, share, vector)
                    upwards = select(share >= 1.0, upper, mean)
                    high[i * words + j] = select(share <= 0.0, lower, upwards)
                to = out.row("to", (row, first + own), (total, d))
                m.do(store_piece(high, i * words, vector, to.at(column * vector)))
            _onwards(m, own, column, step, rest, width)


def _words(vector):
    """Words per piece."""
    return max(vector // 2, 1)


@recorded
def _onwards(m, row: Changes[Int32], column: Changes[Int32], step, rest, width):
    """Move the row and column on by `step * width + rest` pieces."""
    row += step
    column += rest
    if column >= width:
        row += 1
        column -= width


@recorded
def _mean(m, low, high, share, vector):
    """The weighted mean of two words of bf16."""
    means = []
    for e in range(min(vector, 2)):
        below = named(f"below_{e}", half_of(low, e == 1))
        above = named(f"above_{e}", half_of(high, e == 1))
        means.append(below * (1.0 - share) + above * share)
    return pair_of(means[0], means[-1])
