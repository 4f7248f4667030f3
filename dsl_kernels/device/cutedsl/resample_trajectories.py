"""Leaf maths of trajectory resampling in CuTe DSL.

Operands and buffers come as pointers. What each leaf means is in dsl_kernels/device/torch/resample_trajectories.py.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Uint16, Uint32

PIECES = 4
"""Pieces of rows, or last times, that a thread has on their way at once."""
STAGED_PIECES = 8
"""Pieces of rows on their way into shared memory at once, of a thread."""
AHEAD = 4096
"""Times that a CTA has on their way at once, no more than 32 a thread."""


def read_target(tgt_times, row, m, first, thread, targets):
    """The target time of each thread; NaN past the last target."""
    return _read_target(tgt_times + Int64(row) * m, m - first, first, thread)


@cute.jit
def _read_target(times, left, first, thread):
    t = Float32(float("nan"))
    if thread < left:
        t = times[first + thread]
    return t


@cute.jit
def stage_times(times, src_times, row, n, first, count, thread, threads: cutlass.Constexpr):
    """`count` times of a trajectory from row `first` on into shared memory."""
    source, each = src_times + (Int64(row) * n + first), min(AHEAD // threads, 32)
    held = cute.make_rmem_tensor(each, Float32)
    whole = count // (each * threads) * (each * threads)
    for base in cutlass.range(thread, whole, each * threads, unroll=1):
        for i in cutlass.range_constexpr(each):
            held[i] = source[base + i * threads]
        for i in cutlass.range_constexpr(each):
            times[base + i * threads] = held[i]
    for base in cutlass.range(whole + thread, count, PIECES * threads, unroll=1):
        for i in cutlass.range_constexpr(PIECES):
            if base + i * threads < count:
                held[i] = source[base + i * threads]
        for i in cutlass.range_constexpr(PIECES):
            if base + i * threads < count:
                times[base + i * threads] = held[i]


@cute.jit
def _upper_bound(times, count, t):
    """How many of the first `count` ascending times are at most `t`; every lane makes as many steps."""
    found, step = Int32(0), Int32(1) << (31 - Int32(cute.arch.clz(count)))
    while step > 0:
        if found + step <= count:  # noqa: SIM102 (read only then)
            if times[found + step - 1] <= t:
                found = found + step
        step = step >> 1
    return found


@cute.jit
def _place(place, weight, times, first, count, upper, t, thread):
    """Keep the upper row of a target and its share; a NaN target's share is NaN."""
    at = cutlass.min(cutlass.max(upper, 1), count - 1)
    low, high = times[at - 1], times[at]
    share = Float32(0.0)
    if high > low:
        share = (t - low) / (high - low)
        if share < 0.0:
            share = Float32(0.0)
        if share > 1.0:
            share = Float32(1.0)
    if t != t:
        share = t
    place[thread] = first + at
    weight[thread] = share


@cute.jit
def place_staged(place, weight, times, first, count, t, thread):
    """The upper row of each thread's target and its weight, from staged times of rows from `first` on."""
    _place(place, weight, times, first, count, _upper_bound(times, count, t), t, thread)


def place_in_global(place, weight, src_times, row, n, t, thread):
    """The upper row of each thread's target and its weight, from the times in global memory."""
    place_staged(place, weight, src_times + Int64(row) * n, 0, n, t, thread)


@cute.jit
def _upper_bound_by_warp(times, count, t, lane):
    """_upper_bound of one target by all lanes: each round looks at 32 times."""
    begin, end = Int32(0), count
    while begin < end:
        step = (end - begin + 31) // 32
        at = begin + (lane + 1) * step - 1
        below = Boolean(False)
        if at < end:
            below = times[at] <= t
        passed = Int32(cute.arch.popc(cute.arch.vote_ballot_sync(below)))
        end = cutlass.min(begin + (passed + 1) * step - 1, end)
        begin = begin + passed * step
    return begin


@cute.jit
def place_by_warp(place, weight, times, count, t, thread, lane):
    """The upper row of each thread's target and its weight, by all lanes of a warp: 32 times a round, a target after the other."""
    upper = Int32(0)
    for i in cutlass.range(32, unroll=1):
        found = _upper_bound_by_warp(times, count, cute.arch.shuffle_sync(t, i), lane)
        if lane == i:
            upper = found
    _place(place, weight, times, 0, count, upper, t, thread)


@cute.jit
def _extreme(value, largest: cutlass.Constexpr):
    """The least or largest value of a warp, in every lane."""
    for i in cutlass.range_constexpr(5):
        other = cute.arch.shuffle_sync_bfly(value, 1 << i)
        value = (
            cute.arch.fmax(value, other) if cutlass.const_expr(largest) else -cute.arch.fmax(-value, -other)
        )
    return value


@cute.jit
def bound_warps(bounds, t, warp, warps: cutlass.Constexpr, lane):
    """The least and the largest target of each warp; NaN does not count."""
    least = Float32(cutlass.select_(t == t, t, Float32(float("inf"))))
    largest = Float32(cutlass.select_(t == t, t, Float32(float("-inf"))))
    least, largest = _extreme(least, False), _extreme(largest, True)
    if lane == 0:
        bounds[warp] = least
        bounds[warps + warp] = largest


@cute.jit
def find_window(bounds, warps: cutlass.Constexpr, src_times, row, n, lane):
    """The rows whose times decide all of the CTA's targets: at least two."""
    times = src_times + Int64(row) * n
    least = _extreme(bounds[lane % warps], False)
    largest = _extreme(bounds[warps + lane % warps], True)
    # _upper_bound_by_warp of both at once: a half of the warp each, so that their reads wait together.
    t = Float32(cutlass.select_(lane < 16, least, largest))
    begin, end = Int32(0), n
    while cute.arch.vote_any_sync(begin < end):
        step = cutlass.max((end - begin + 15) // 16, 1)
        at = begin + (lane % 16 + 1) * step - 1
        below = Boolean(False)
        if at < end:
            below = times[at] <= t
        passed = Int32(cute.arch.popc((cute.arch.vote_ballot_sync(below) >> (lane & 16)) & 0xFFFF))
        end = cutlass.min(begin + (passed + 1) * step - 1, end)
        begin = begin + passed * step
    low, high = cute.arch.shuffle_sync(begin, 0), cute.arch.shuffle_sync(begin, 16)
    first = cutlass.min(cutlass.max(low - 1, 0), n - 2)
    return first, cutlass.max(cutlass.min(high + 1, n) - first, 2)


@cute.jit
def keep_targets(marks, t, thread):
    """Every thread's target where all threads see it."""
    marks[thread] = t


@cute.jit
def see_order(marks, left, lane, targets: cutlass.Constexpr):
    """Whether the tile's targets, those before the last, ascend; NaN does not."""
    wrong = Boolean(False)
    for i in cutlass.range_constexpr(0, targets, 32):
        if i + lane < left and not (marks[i + lane] >= marks[cutlass.max(i + lane - 1, 0)]):
            wrong = Boolean(True)
    return not cute.arch.vote_any_sync(wrong)


@cute.jit
def stage_rows(
    rows, data, row, n, d, first, count, vector: cutlass.Constexpr, thread, threads: cutlass.Constexpr
):
    """`count` rows of a trajectory from row `first` on into shared memory, one behind the other."""
    source, pieces = data + (Int64(row) * n + first) * d, count * d // vector
    held = [cute.make_rmem_tensor(vector, data.dtype) for _ in range(STAGED_PIECES)]
    for base in cutlass.range(thread, pieces, STAGED_PIECES * threads, unroll=1):
        for i in cutlass.range_constexpr(STAGED_PIECES):
            if base + i * threads < pieces:
                cute.autovec_copy(_piece(source + (base + i * threads) * vector, vector), held[i])
        for i in cutlass.range_constexpr(STAGED_PIECES):
            if base + i * threads < pieces:
                cute.autovec_copy(held[i], _piece(rows + (base + i * threads) * vector, vector))


@cute.jit
def pass_targets(marks, left, times, rows, last, lane, targets: cutlass.Constexpr):
    """How many of the ascending targets the staged rows and those before them decide: all, at the last rows."""
    upto, end = Int32(0), times[rows - 1]
    for i in cutlass.range_constexpr(0, targets, 32):
        decided = Boolean(False)
        if i + lane < left:
            decided = last or marks[i + lane] < end
        upto += Int32(cute.arch.popc(cute.arch.vote_ballot_sync(decided)))
    return upto


def blend_staged(out, rows, row, m, d, first, done, upto, place, weight, vector, thread, threads):
    """blend of the targets from `done` to `upto`, whose rows are staged."""
    _blend(out + (Int64(row) * m + first) * d, rows, d, done, upto, place, weight, vector, thread, threads)


def blend(out, data, row, n, m, d, first, place, weight, targets, vector, thread, threads):
    """The targets' rows: the weighted mean of two rows, or one of them as it is."""
    source, target = data + Int64(row) * n * d, out + (Int64(row) * m + first) * d
    _blend(target, source, d, 0, cutlass.min(targets, m - first), place, weight, vector, thread, threads)


@cute.jit
def _blend(
    target,
    source,
    d,
    begin,
    end,
    place,
    weight,
    vector: cutlass.Constexpr,
    thread,
    threads: cutlass.Constexpr,
):
    """The targets from `begin` to `end`, of rows that lie one behind the other."""
    width = d // vector
    step, rest = threads // width, threads % width
    low = [cute.make_rmem_tensor(vector, source.dtype) for _ in range(PIECES)]
    high = [cute.make_rmem_tensor(vector, source.dtype) for _ in range(PIECES)]
    own, column = begin + thread // width, thread % width
    while own < end:
        ahead, ahead_column = own, column
        for i in cutlass.range_constexpr(PIECES):
            if ahead < end:
                at = source + (Int64(place[ahead] - 1) * d + ahead_column * vector)
                cute.autovec_copy(_piece(at, vector), low[i])
                cute.autovec_copy(_piece(at + d, vector), high[i])
            ahead, ahead_column = _onwards(ahead, ahead_column, step, rest, width)
        for i in cutlass.range_constexpr(PIECES):
            if own < end:
                _mix(low[i], high[i], weight[own])
                cute.autovec_copy(high[i], _piece(target + own * d + column * vector, vector))
            own, column = _onwards(own, column, step, rest, width)


@cute.jit
def _onwards(row, column, step, rest, width):
    """The row and column of the piece that lies `step * width + rest` pieces behind this one."""
    row, column = row + step, column + rest
    if column >= width:
        row, column = row + 1, column - width
    return row, column


@cute.jit
def _mix(low, high, share):
    """The weighted mean of two pieces in place of the upper one, or one of them as it is."""
    mixed, size = cute.make_rmem_tensor(low.layout, low.element_type), cute.size(low)
    for i in cutlass.range_constexpr(size):
        a, b = low[i].to(Float32), high[i].to(Float32)
        mixed[i] = (a * (1.0 - share) + b * share).to(low.element_type)
    kind = Uint32 if size > 1 else Uint16
    below, above, between = (cute.recast_tensor(each, kind) for each in (low, high, mixed))
    for i in cutlass.range_constexpr(cute.size(above)):
        if share <= 0.0:
            above[i] = below[i]
        elif not share >= 1.0:
            above[i] = between[i]


def _piece(at, vector):
    """A piece of a row at its natural alignment."""
    return cute.make_tensor(at.align(2 * vector), cute.make_layout(vector))
