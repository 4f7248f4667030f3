"""resample_trajectories__tilelang_sm100a__merge_n128_v8

Generated from dsl_kernels/kernels/resample_trajectories and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: search=merge, targets=128, vector=8.

roles
  sample     threads 0..127  a target per thread, then pieces of rows
buffers
  times      1024 float32, shared
  bounds     8 float32, shared
  marks      128 float32, shared
  rows       16384 bfloat16, shared
  place      128 int32, shared
  weight     128 float32, shared
totals: 128 threads, 38432 of 232448 bytes of shared memory, grid (b, ceildiv(m, 128))
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import floats, scalars, warps
from dsl_kernels.kernels.resample_trajectories import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

TARGETS = 128  # targets per CTA, one per thread
VECTOR = 8  # elements of a row that a thread moves at once
STRETCH = 1024
STRETCH_ELEMENTS = 16384


@T.macro
def read_target(t: T.Ref, tgt_times, row, first, left, thread):
    """Read the target time of each thread, from target `first` of `total` on; NaN past the `left` targets."""
    t = T.float32(float("nan"))
    if thread < left:
        t = tgt_times[row, first + thread]


@T.macro
def bound_warps(bounds, t, warp, lane):
    """Find the least and the largest target of each warp; NaN does not count."""
    least = 0 - floats.max_of_lanes(0 - t)
    largest = floats.max_of_lanes(t)
    if lane == 0:
        bounds[warp] = T.if_then_else(floats.is_nan(least), T.infinity("float32"), least)
        bounds[TARGETS // 32 + warp] = T.if_then_else(floats.is_nan(largest), -T.infinity("float32"), largest)


@T.macro
def keep_targets(marks, t, thread):
    """Store every thread's target for all threads."""
    marks[thread] = t


@T.macro
def see_order(ascend: T.Ref, marks, left, lane):
    """Find whether the tile's `left` targets ascend; NaN does not."""
    wrong = T.alloc_var("bool", init=False)
    for i in T.unroll(0, TARGETS, 32):
        at = i + lane
        if at < left:
            wrong = wrong | (floats.is_nan(marks[at]) | (marks[at] < marks[T.max(at - 1, 0)]))
    ascend = warps.any_lane(wrong) == False


@T.macro
def find_window(first: T.Ref, count: T.Ref, bounds, src_times, row, n, lane):
    """Find the rows whose times decide all targets of the CTA: at least two rows."""
    least = 0 - floats.max_of_lanes(0 - bounds[T.truncmod(lane, TARGETS // 32)])
    largest = floats.max_of_lanes(bounds[TARGETS // 32 + T.truncmod(lane, TARGETS // 32)])
    t = T.if_then_else(lane < 16, least, largest)
    begin = T.alloc_var("int32", init=0)
    end = T.alloc_var("int32", init=n)
    while warps.any_lane(begin < end):
        step = T.max(T.truncdiv(end - begin + 15, 16), 1)
        at = begin + (T.truncmod(lane, 16) + 1) * step - 1
        below = T.alloc_var("bool", init=False)
        if at < end:
            below = src_times[row, at] <= t
        votes = warps.ballot(below)
        passed = warps.popc(votes >> (lane & 16) & 65535)
        end = T.min(begin + (passed + 1) * step - 1, end)
        begin = begin + passed * step
    found = begin
    low = warps.shuffle(found, 0)
    high = warps.shuffle(found, 16)
    first = T.min(T.max(low - 1, 0), n - 2)
    count = T.max(T.min(high + 1, n) - first, 2)


@T.macro
def stage_times(times, src_times, row, first, count, thread):
    """Copy `count` times of a trajectory from row `first` on into shared memory."""
    held = T.alloc_local((4096 // TARGETS,), "float32")
    whole = T.truncdiv(count, 4096 // TARGETS * TARGETS) * (4096 // TARGETS * TARGETS)
    for base in T.unroll(thread, whole, 4096 // TARGETS * TARGETS, unroll_factor=1):
        for i in T.unroll(4096 // TARGETS):
            held[i] = src_times[row, first + base + i * TARGETS]
        for i in T.unroll(4096 // TARGETS):
            times[base + i * TARGETS] = held[i]
    for base in T.unroll(whole + thread, count, 4 * TARGETS, unroll_factor=1):
        for i in T.unroll(4):
            if base + i * TARGETS < count:
                held[i] = src_times[row, first + base + i * TARGETS]
        for i in T.unroll(4):
            if base + i * TARGETS < count:
                times[base + i * TARGETS] = held[i]


@T.macro
def stage_stretch(rows, data, row, d, first, count, thread):
    """Copy `count` rows of a trajectory from row `first` on into shared memory, one after the other."""
    held = T.alloc_local((8 * (VECTOR // 2),), "uint32")
    pieces = T.alloc_var("int32", init=T.truncdiv(count * d, VECTOR))
    for base in T.unroll(thread, pieces, 8 * TARGETS, unroll_factor=1):
        for i in T.unroll(8):
            if base + i * TARGETS < pieces:
                scalars.load_piece(
                    held, i * (VECTOR // 2), VECTOR, data[row, first, (base + i * TARGETS) * VECTOR]
                )
        for i in T.unroll(8):
            if base + i * TARGETS < pieces:
                scalars.store_piece(held, i * (VECTOR // 2), VECTOR, rows[(base + i * TARGETS) * VECTOR])


@T.macro
def pass_targets(upto: T.Ref, marks, left, times, rows, last, lane):
    """Count the ascending targets that staged and earlier rows decide: all targets, at the last rows."""
    passed = T.alloc_var("int32", init=0)
    end = times[rows - 1]
    for i in T.unroll(0, TARGETS, 32):
        decided = T.alloc_var("bool", init=False)
        if i + lane < left:
            decided = last | (marks[i + lane] < end)
        passed = passed + warps.popc(warps.ballot(decided))
    upto = passed


@T.macro
def place_staged(place, weight, times, count, t, thread):
    """Find the upper row of each thread's target, and its weight, in staged times of rows from `first` on."""
    found = T.alloc_var("int32", init=0)
    step = T.alloc_var("int32", init=1 << (31 - warps.clz(count)))
    while step > 0:
        if found + step <= count:
            if times[found + step - 1] <= t:
                found = found + step
        step = step >> 1
    at = T.min(T.max(found, 1), count - 1)
    low = times[at - 1]
    high = times[at]
    share = T.alloc_var("float32", init=0.0)
    if high > low:
        share = T.min(T.max(floats.divide(t - low, high - low), 0.0), 1.0)
    place[thread] = at
    weight[thread] = T.if_then_else(floats.is_nan(t), t, share)


@T.macro
def blend_staged(out, rows, row, d, first, done, upto, place, weight, thread):
    """Blend the targets from `done` to `upto`, whose rows are staged."""
    low = T.alloc_local((4 * (VECTOR // 2),), "uint32")
    high = T.alloc_local((4 * (VECTOR // 2),), "uint32")
    width = T.alloc_var("int32", init=T.truncdiv(d, VECTOR))
    step = T.alloc_var("int32", init=T.truncdiv(TARGETS, width))
    rest = T.alloc_var("int32", init=TARGETS - step * width)
    own = T.alloc_var("int32", init=T.truncdiv(thread, width))
    column = T.alloc_var("int32", init=thread - own * width)
    own = own + done
    while own < upto:
        ahead = T.alloc_var("int32", init=own)
        ahead_column = T.alloc_var("int32", init=column)
        for i in T.unroll(4):
            if ahead < upto:
                upper = place[ahead]
                scalars.load_piece(
                    low, i * (VECTOR // 2), VECTOR, rows[(upper - 1) * d + ahead_column * VECTOR]
                )
                scalars.load_piece(high, i * (VECTOR // 2), VECTOR, rows[upper * d + ahead_column * VECTOR])
            ahead = ahead + step
            ahead_column = ahead_column + rest
            if ahead_column >= width:
                ahead = ahead + 1
                ahead_column = ahead_column - width
        for i in T.unroll(4):
            if own < upto:
                share = weight[own]
                for j in T.unroll(VECTOR // 2):
                    lower = low[i * (VECTOR // 2) + j]
                    upper = high[i * (VECTOR // 2) + j]
                    below_0 = scalars.float_of(lower << T.uint32(16))
                    above_0 = scalars.float_of(upper << T.uint32(16))
                    below_1 = scalars.float_of(lower & T.uint32(4294901760))
                    above_1 = scalars.float_of(upper & T.uint32(4294901760))
                    mean = scalars.pair_of(
                        below_0 * (1.0 - share) + above_0 * share, below_1 * (1.0 - share) + above_1 * share
                    )
                    upwards = T.if_then_else(share >= 1.0, upper, mean)
                    high[i * (VECTOR // 2) + j] = T.if_then_else(share <= 0.0, lower, upwards)
                scalars.store_piece(high, i * (VECTOR // 2), VECTOR, out[row, first + own, column * VECTOR])
            own = own + step
            column = column + rest
            if column >= width:
                own = own + 1
                column = column - width


@T.macro
def place_in_global(place, weight, src_times, row, n, t, thread):
    """Find the upper row of each thread's target, and its weight, in times in global memory."""
    found = T.alloc_var("int32", init=0)
    step = T.alloc_var("int32", init=1 << (31 - warps.clz(n)))
    while step > 0:
        if found + step <= n:
            if src_times[row, found + step - 1] <= t:
                found = found + step
        step = step >> 1
    at = T.min(T.max(found, 1), n - 1)
    low = src_times[row, at - 1]
    high = src_times[row, at]
    share = T.alloc_var("float32", init=0.0)
    if high > low:
        share = T.min(T.max(floats.divide(t - low, high - low), 0.0), 1.0)
    place[thread] = at
    weight[thread] = T.if_then_else(floats.is_nan(t), t, share)


@T.macro
def blend(out, data, row, d, first, left, place, weight, thread):
    """Write the rows of targets: the weighted mean of two rows, or one of the two as it is."""
    end = T.min(TARGETS, left)
    low = T.alloc_local((4 * (VECTOR // 2),), "uint32")
    high = T.alloc_local((4 * (VECTOR // 2),), "uint32")
    width = T.alloc_var("int32", init=T.truncdiv(d, VECTOR))
    step = T.alloc_var("int32", init=T.truncdiv(TARGETS, width))
    rest = T.alloc_var("int32", init=TARGETS - step * width)
    own = T.alloc_var("int32", init=T.truncdiv(thread, width))
    column = T.alloc_var("int32", init=thread - own * width)
    own = own
    while own < end:
        ahead = T.alloc_var("int32", init=own)
        ahead_column = T.alloc_var("int32", init=column)
        for i in T.unroll(4):
            if ahead < end:
                upper = place[ahead]
                scalars.load_piece(
                    low, i * (VECTOR // 2), VECTOR, data[row, upper - 1, ahead_column * VECTOR]
                )
                scalars.load_piece(high, i * (VECTOR // 2), VECTOR, data[row, upper, ahead_column * VECTOR])
            ahead = ahead + step
            ahead_column = ahead_column + rest
            if ahead_column >= width:
                ahead = ahead + 1
                ahead_column = ahead_column - width
        for i in T.unroll(4):
            if own < end:
                share = weight[own]
                for j in T.unroll(VECTOR // 2):
                    lower = low[i * (VECTOR // 2) + j]
                    upper = high[i * (VECTOR // 2) + j]
                    below_0 = scalars.float_of(lower << T.uint32(16))
                    above_0 = scalars.float_of(upper << T.uint32(16))
                    below_1 = scalars.float_of(lower & T.uint32(4294901760))
                    above_1 = scalars.float_of(upper & T.uint32(4294901760))
                    mean = scalars.pair_of(
                        below_0 * (1.0 - share) + above_0 * share, below_1 * (1.0 - share) + above_1 * share
                    )
                    upwards = T.if_then_else(share >= 1.0, upper, mean)
                    high[i * (VECTOR // 2) + j] = T.if_then_else(share <= 0.0, lower, upwards)
                scalars.store_piece(high, i * (VECTOR // 2), VECTOR, out[row, first + own, column * VECTOR])
            own = own + step
            column = column + rest
            if column >= width:
                own = own + 1
                column = column - width


@T.macro
def sample(
    data, src_times, tgt_times, out, n, d, m, times, bounds, marks, rows, place, weight, row, tile, thread,
    warp, lane
):
    """A target per thread, then pieces of rows."""
    worker = thread
    first = tile * TARGETS
    left = m - first
    t = T.alloc_var("float32", init=0.0)
    read_target(t, tgt_times, row, first, left, worker)
    bound_warps(bounds, t, warp, lane)
    keep_targets(marks, t, worker)
    T.sync_threads()
    ascend = T.alloc_var("bool", init=False)
    see_order(ascend, marks, left, lane)
    if ascend:
        window = T.alloc_var("int32", init=0)
        count = T.alloc_var("int32", init=0)
        find_window(window, count, bounds, src_times, row, n, lane)
        steps = T.min(STRETCH, T.truncdiv(STRETCH_ELEMENTS, d)) - 1
        done = T.alloc_var("int32", init=0)
        upto = T.alloc_var("int32", init=0)
        for stretch in T.serial(T.truncdiv(count - 2 + steps, steps)):
            begin = window + stretch * steps
            held = T.min(steps + 1, count - stretch * steps)
            T.sync_threads()
            stage_times(times, src_times, row, begin, held, worker)
            stage_stretch(rows, data, row, d, begin, held, worker)
            T.sync_threads()
            pass_targets(upto, marks, left, times, held, begin + held == window + count, lane)
            place_staged(place, weight, times, held, t, worker)
            T.sync_threads()
            blend_staged(out, rows, row, d, first, done, upto, place, weight, worker)
            done = upto
    else:
        place_in_global(place, weight, src_times, row, n, t, worker)
        T.sync_threads()
        blend(out, data, row, d, first, left, place, weight, worker)


def program():
    b = T.dynamic("b")
    n = T.dynamic("n")
    d = T.dynamic("d")
    m = T.dynamic("m")

    @T.prim_func
    def resample_trajectories__tilelang_sm100a__merge_n128_v8(
        data: T.Tensor((b, n, d), "bfloat16"),
        src_times: T.Tensor((b, n), "float32"),
        tgt_times: T.Tensor((b, m), "float32"),
        out: T.Tensor((b, m, d), "bfloat16"),
    ):
        with T.Kernel(b, T.ceildiv(m, 128), threads=128) as (row, tile):
            T.annotate_min_blocks_per_sm(4)
            T.import_source(warps.SOURCE + floats.SOURCE + scalars.SOURCE)
            times = T.alloc_shared((STRETCH,), "float32")
            bounds = T.alloc_shared((2 * (TARGETS // 32),), "float32")
            marks = T.alloc_shared((TARGETS,), "float32")
            rows = T.alloc_shared((STRETCH_ELEMENTS,), "bfloat16")
            place = T.alloc_shared((TARGETS,), "int32")
            weight = T.alloc_shared((TARGETS,), "float32")

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32

            sample(
                data, src_times, tgt_times, out, n, d, m, times, bounds, marks, rows, place, weight, row,
                tile, thread, warp, lane
            )

    return resample_trajectories__tilelang_sm100a__merge_n128_v8
