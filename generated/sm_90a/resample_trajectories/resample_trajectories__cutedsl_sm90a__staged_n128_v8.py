"""resample_trajectories__cutedsl_sm90a__staged_n128_v8

Generated from dsl_kernels/kernels/resample_trajectories and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: search=staged, targets=128, vector=8.

roles
  sample     threads 0..127  a target per thread, then pieces of rows
buffers
  times      8192 float32, shared
  place      128 int32, shared
  weight     128 float32, shared
totals: 128 threads, 33792 of 232448 bytes of shared memory, grid (b, ceildiv(m, 128))
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from dsl_kernels.device.cutedsl import floats, scalars, warps
from dsl_kernels.runtime.artifact import Launch, Operand

TARGETS = 128  # targets per CTA, one per thread
VECTOR = 8  # elements of a row that a thread moves at once
STAGED = 8192


LAUNCH = Launch(
    operands=(
        Operand("data", "tensor", "bfloat16", ("b", "n", "d")),
        Operand("src_times", "tensor", "float32", ("b", "n")),
        Operand("tgt_times", "tensor", "float32", ("b", "m")),
        Operand("out", "tensor", "bfloat16", ("b", "m", "d"), written=True),
    ),
    grid=("b", "ceildiv(m, 128)", "1"),
    block=128,
    cluster=(1, 1, 1),
)


@cute.struct
class Shared:
    times: cute.struct.Align[cute.struct.MemRange[Float32, STAGED], 128]
    place: cute.struct.Align[cute.struct.MemRange[Int32, TARGETS], 128]
    weight: cute.struct.Align[cute.struct.MemRange[Float32, TARGETS], 128]


@cute.jit
def read_target(tgt_times, row, total, first, left, thread):
    """Read the target time of each thread, from target `first` of `total` on; NaN past the `left` targets."""
    t = Float32(Float32(float("nan")))
    if thread < left:
        times = tgt_times + Int64(row) * total + first
        t = times[thread]
    return t


@cute.jit
def stage_times(times, src_times, row, n, count, thread):
    """Copy `count` times of a trajectory from row `first` on into shared memory."""
    source = src_times + Int64(row) * n
    held = cute.make_rmem_tensor(4096 // TARGETS, Float32)
    whole = count // (4096 // TARGETS * TARGETS) * (4096 // TARGETS * TARGETS)
    for base in cutlass.range(thread, whole, 4096 // TARGETS * TARGETS, unroll=1):
        for i in cutlass.range_constexpr(4096 // TARGETS):
            held[i] = source[base + i * TARGETS]
        for i in cutlass.range_constexpr(4096 // TARGETS):
            times[base + i * TARGETS] = held[i]
    for base in cutlass.range(whole + thread, count, 4 * TARGETS, unroll=1):
        for i in cutlass.range_constexpr(4):
            if base + i * TARGETS < count:
                held[i] = source[base + i * TARGETS]
        for i in cutlass.range_constexpr(4):
            if base + i * TARGETS < count:
                times[base + i * TARGETS] = held[i]


@cute.jit
def place_staged(place, weight, times, count, t, thread):
    """Find the upper row of each thread's target, and its weight, in staged times of rows from `first` on."""
    found = Int32(0)
    step = Int32(1 << (31 - warps.clz(count)))
    while step > 0:
        if found + step <= count:
            if times[found + step - 1] <= t:
                found = found + step
        step = step >> 1
    at = cutlass.min(cutlass.max(found, 1), count - 1)
    low = times[at - 1]
    high = times[at]
    share = Float32(0.0)
    if high > low:
        share = cutlass.min(cute.arch.fmax(floats.divide(t - low, high - low), 0.0), 1.0)
    place[thread] = at
    weight[thread] = cutlass.select_(floats.is_nan(t), t, share)


@cute.jit
def blend(out, data, row, n, total, d, first, left, place, weight, thread):
    """Write the rows of targets: the weighted mean of two rows, or one of the two as it is."""
    end = cutlass.min(TARGETS, left)
    low = cute.make_rmem_tensor(4 * (VECTOR // 2), cutlass.Uint32)
    high = cute.make_rmem_tensor(4 * (VECTOR // 2), cutlass.Uint32)
    width = Int32(d // VECTOR)
    step = Int32(TARGETS // width)
    rest = Int32(TARGETS - step * width)
    own = Int32(thread // width)
    column = Int32(thread - own * width)
    own = own
    while own < end:
        ahead = Int32(own)
        ahead_column = Int32(column)
        for i in cutlass.range_constexpr(4):
            if ahead < end:
                upper = place[ahead]
                lower_row = data + Int64(row * n + (upper - 1)) * d
                scalars.load_piece(low, i * (VECTOR // 2), VECTOR, lower_row + ahead_column * VECTOR)
                upper_row = data + Int64(row * n + upper) * d
                scalars.load_piece(high, i * (VECTOR // 2), VECTOR, upper_row + ahead_column * VECTOR)
            ahead = ahead + step
            ahead_column = ahead_column + rest
            if ahead_column >= width:
                ahead = ahead + 1
                ahead_column = ahead_column - width
        for i in cutlass.range_constexpr(4):
            if own < end:
                share = weight[own]
                for j in cutlass.range_constexpr(VECTOR // 2):
                    lower = low[i * (VECTOR // 2) + j]
                    upper = high[i * (VECTOR // 2) + j]
                    below_0 = scalars.float_of(lower << 16)
                    above_0 = scalars.float_of(upper << 16)
                    below_1 = scalars.float_of(lower & cutlass.Uint32(4294901760))
                    above_1 = scalars.float_of(upper & cutlass.Uint32(4294901760))
                    mean = scalars.pair_of(
                        below_0 * (1.0 - share) + above_0 * share, below_1 * (1.0 - share) + above_1 * share
                    )
                    upwards = cutlass.select_(share >= 1.0, upper, mean)
                    high[i * (VECTOR // 2) + j] = cutlass.select_(share <= 0.0, lower, upwards)
                to = out + Int64(row * total + (first + own)) * d
                scalars.store_piece(high, i * (VECTOR // 2), VECTOR, to + column * VECTOR)
            own = own + step
            column = column + rest
            if column >= width:
                own = own + 1
                column = column - width


@cute.jit
def sample(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, n: Int32,
    d: Int32, m: Int32, times: cute.Pointer, place: cute.Pointer, weight: cute.Pointer, row: Int32,
    tile: Int32, thread: Int32
):
    """A target per thread, then pieces of rows."""
    worker = thread
    first = tile * TARGETS
    left = m - first
    t = read_target(tgt_times, row, m, first, left, worker)
    count = Int32(n)
    stage_times(times, src_times, row, n, count, worker)
    cute.arch.sync_threads()
    place_staged(place, weight, times, count, t, worker)
    cute.arch.sync_threads()
    blend(out, data, row, n, m, d, first, left, place, weight, worker)


@cute.kernel
def resample_trajectories__cutedsl_sm90a__staged_n128_v8(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, b: Int32,
    n: Int32, d: Int32, m: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    times = shared.times.data_ptr()
    place = shared.place.data_ptr()
    weight = shared.weight.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    row, tile, _ = cute.arch.block_idx()
    row = cute.arch.make_warp_uniform(row)
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    sample(data, src_times, tgt_times, out, n, d, m, times, place, weight, row, tile, thread)


@cute.jit
def program(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, b: Int32,
    n: Int32, d: Int32, m: Int32
):
    kernel = resample_trajectories__cutedsl_sm90a__staged_n128_v8(data, src_times, tgt_times, out, b, n, d, m)
    kernel.launch(
        grid=(1, 1, 1), block=(128, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=6,
        preferred_smem_carveout=100
    )
