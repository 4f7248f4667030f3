"""resample_trajectories__cutedsl_sm90a__merge_n128_v8

Generated from dsl_kernels/programs/resample_trajectories.py and the leaves in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: search=merge, targets=128, vector=8.

roles
  sample     threads 0..127  a target a thread, then pieces of rows
buffers
  times      1024 float32, shared
  bounds     8 float32, shared
  marks      128 float32, shared
  rows       16384 bfloat16, shared
  place      128 int32, shared
  weight     128 float32, shared
totals: 128 threads, 38432 of 232448 bytes of shared memory, grid (b, ceildiv(m, 128))
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from dsl_kernels.device.cutedsl import resample_trajectories as leaf
from dsl_kernels.runtime.artifact import Launch, Operand

TARGETS = 128  # targets a CTA, one a thread
VECTOR = 8  # elements of a row that a thread moves at once
STRETCH = 1024
STRETCH_ELEMENTS = 16384


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
    times: cute.struct.Align[cute.struct.MemRange[Float32, STRETCH], 128]
    bounds: cute.struct.Align[cute.struct.MemRange[Float32, 2 * (TARGETS // 32)], 128]
    marks: cute.struct.Align[cute.struct.MemRange[Float32, TARGETS], 128]
    rows: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, STRETCH_ELEMENTS], 128]
    place: cute.struct.Align[cute.struct.MemRange[Int32, TARGETS], 128]
    weight: cute.struct.Align[cute.struct.MemRange[Float32, TARGETS], 128]


@cute.jit
def sample(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, n: Int32,
    d: Int32, m: Int32, times: cute.Pointer, bounds: cute.Pointer, marks: cute.Pointer, rows: cute.Pointer,
    place: cute.Pointer, weight: cute.Pointer, row: Int32, tile: Int32, thread: Int32, warp: Int32,
    lane: Int32
):
    """A target a thread, then pieces of rows."""
    worker = thread
    first = tile * TARGETS
    t = Float32(0.0)
    # The target time of each thread; NaN past the last target.
    t = leaf.read_target(tgt_times, row, m, first, worker, TARGETS)
    left = m - first
    # The least and the largest target of each warp; NaN does not count.
    leaf.bound_warps(bounds, t, warp, TARGETS // 32, lane)
    # Every thread's target where all threads see it.
    leaf.keep_targets(marks, t, worker)
    cute.arch.sync_threads()
    ascend = Boolean(False)
    # Whether the tile's targets, those before the last, ascend; NaN does not.
    ascend = leaf.see_order(marks, left, lane, TARGETS)
    if ascend:
        window = Int32(0)
        count = Int32(0)
        # The rows whose times decide all of the CTA's targets: at least two.
        window, count = leaf.find_window(bounds, TARGETS // 32, src_times, row, n, lane)
        steps = cutlass.min(STRETCH, STRETCH_ELEMENTS // d) - 1
        done = Int32(0)
        upto = Int32(0)
        for stretch in cutlass.range((count - 2 + steps) // steps, unroll=1):
            begin = window + stretch * steps
            held = cutlass.min(steps + 1, count - stretch * steps)
            cute.arch.sync_threads()
            # `count` times of a trajectory from row `first` on into shared memory.
            leaf.stage_times(times, src_times, row, n, begin, held, worker, TARGETS)
            # `count` rows of a trajectory from row `first` on into shared memory, one behind the other.
            leaf.stage_rows(rows, data, row, n, d, begin, held, VECTOR, worker, TARGETS)
            cute.arch.sync_threads()
            # How many of the ascending targets the staged rows and those before them decide: all, at the last
            # rows.
            upto = leaf.pass_targets(marks, left, times, held, begin + held == window + count, lane, TARGETS)
            # The upper row of each thread's target and its weight, from staged times of rows from `first` on.
            leaf.place_staged(place, weight, times, 0, held, t, worker)
            cute.arch.sync_threads()
            # blend of the targets from `done` to `upto`, whose rows are staged.
            leaf.blend_staged(out, rows, row, m, d, first, done, upto, place, weight, VECTOR, worker, TARGETS)
            done = upto
    else:
        # The upper row of each thread's target and its weight, from the times in global memory.
        leaf.place_in_global(place, weight, src_times, row, n, t, worker)
        cute.arch.sync_threads()
        # The targets' rows: the weighted mean of two rows, or one of them as it is.
        leaf.blend(out, data, row, n, m, d, first, place, weight, TARGETS, VECTOR, worker, TARGETS)


@cute.kernel
def resample_trajectories__cutedsl_sm90a__merge_n128_v8(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, b: Int32,
    n: Int32, d: Int32, m: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    times = shared.times.data_ptr()
    bounds = shared.bounds.data_ptr()
    marks = shared.marks.data_ptr()
    rows = shared.rows.data_ptr()
    place = shared.place.data_ptr()
    weight = shared.weight.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    row, tile, _ = cute.arch.block_idx()
    row = cute.arch.make_warp_uniform(row)
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    sample(
        data, src_times, tgt_times, out, n, d, m, times, bounds, marks, rows, place, weight, row, tile,
        thread, warp, lane
    )


@cute.jit
def program(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, b: Int32,
    n: Int32, d: Int32, m: Int32
):
    kernel = resample_trajectories__cutedsl_sm90a__merge_n128_v8(data, src_times, tgt_times, out, b, n, d, m)
    kernel.launch(
        grid=(1, 1, 1), block=(128, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=4,
        preferred_smem_carveout=100
    )
