"""resample_trajectories__tilelang_sm90a__staged_n128_v1

Generated from dsl_kernels/kernels/resample_trajectories and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: search=staged, targets=128, vector=1.

roles
  sample     threads 0..127  a target per thread, then pieces of rows
buffers
  times      8192 float32, shared
  place      128 int32, shared
  weight     128 float32, shared
totals: 128 threads, 33792 of 232448 bytes of shared memory, grid (b, ceildiv(m, 128))
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import floats, scalars, warps
from dsl_kernels.kernels.resample_trajectories import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

TARGETS = 128  # targets per CTA, one per thread
VECTOR = 1  # elements of a row that a thread moves at once
STAGED = 8192


@T.macro
def read_target(t: T.Ref, tgt_times, row, first, left, thread):
    """Read the target time of each thread, from target `first` of `total` on; NaN past the `left` targets."""
    t = T.float32(float("nan"))
    if thread < left:
        t = tgt_times[row, first + thread]


@T.macro
def stage_times(times, src_times, row, count, thread):
    """Copy `count` times of a trajectory from row `first` on into shared memory."""
    held = T.alloc_local((4096 // TARGETS,), "float32")
    whole = T.truncdiv(count, 4096 // TARGETS * TARGETS) * (4096 // TARGETS * TARGETS)
    for base in T.unroll(thread, whole, 4096 // TARGETS * TARGETS, unroll_factor=1):
        for i in T.unroll(4096 // TARGETS):
            held[i] = src_times[row, base + i * TARGETS]
        for i in T.unroll(4096 // TARGETS):
            times[base + i * TARGETS] = held[i]
    for base in T.unroll(whole + thread, count, 4 * TARGETS, unroll_factor=1):
        for i in T.unroll(4):
            if base + i * TARGETS < count:
                held[i] = src_times[row, base + i * TARGETS]
        for i in T.unroll(4):
            if base + i * TARGETS < count:
                times[base + i * TARGETS] = held[i]


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
def blend(out, data, row, d, first, left, place, weight, thread):
    """Write the rows of targets: the weighted mean of two rows, or one of the two as it is."""
    end = T.min(TARGETS, left)
    low = T.alloc_local((4,), "uint32")
    high = T.alloc_local((4,), "uint32")
    width = T.alloc_var("int32", init=d)
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
                scalars.load_piece(low, i, VECTOR, data[row, upper - 1, ahead_column])
                scalars.load_piece(high, i, VECTOR, data[row, upper, ahead_column])
            ahead = ahead + step
            ahead_column = ahead_column + rest
            if ahead_column >= width:
                ahead = ahead + 1
                ahead_column = ahead_column - width
        for i in T.unroll(4):
            if own < end:
                share = weight[own]
                for j in T.unroll(1):
                    lower = low[i + j]
                    upper = high[i + j]
                    below_0 = scalars.float_of(lower << T.uint32(16))
                    above_0 = scalars.float_of(upper << T.uint32(16))
                    mean = scalars.pair_of(
                        below_0 * (1.0 - share) + above_0 * share, below_0 * (1.0 - share) + above_0 * share
                    )
                    upwards = T.if_then_else(share >= 1.0, upper, mean)
                    high[i + j] = T.if_then_else(share <= 0.0, lower, upwards)
                scalars.store_piece(high, i, VECTOR, out[row, first + own, column])
            own = own + step
            column = column + rest
            if column >= width:
                own = own + 1
                column = column - width


@T.macro
def sample(data, src_times, tgt_times, out, n, d, m, times, place, weight, row, tile, thread):
    """A target per thread, then pieces of rows."""
    worker = thread
    first = tile * TARGETS
    left = m - first
    t = T.alloc_var("float32", init=0.0)
    read_target(t, tgt_times, row, first, left, worker)
    count = T.alloc_var("int32", init=n)
    stage_times(times, src_times, row, count, worker)
    T.sync_threads()
    place_staged(place, weight, times, count, t, worker)
    T.sync_threads()
    blend(out, data, row, d, first, left, place, weight, worker)


def program():
    b = T.dynamic("b")
    n = T.dynamic("n")
    d = T.dynamic("d")
    m = T.dynamic("m")

    @T.prim_func
    def resample_trajectories__tilelang_sm90a__staged_n128_v1(
        data: T.Tensor((b, n, d), "bfloat16"),
        src_times: T.Tensor((b, n), "float32"),
        tgt_times: T.Tensor((b, m), "float32"),
        out: T.Tensor((b, m, d), "bfloat16"),
    ):
        with T.Kernel(b, T.ceildiv(m, 128), threads=128) as (row, tile):
            T.annotate_min_blocks_per_sm(6)
            T.import_source(warps.SOURCE + floats.SOURCE + scalars.SOURCE)
            times = T.alloc_shared((STAGED,), "float32")
            place = T.alloc_shared((TARGETS,), "int32")
            weight = T.alloc_shared((TARGETS,), "float32")

            thread = T.get_thread_binding()

            sample(data, src_times, tgt_times, out, n, d, m, times, place, weight, row, tile, thread)

    return resample_trajectories__tilelang_sm90a__staged_n128_v1
