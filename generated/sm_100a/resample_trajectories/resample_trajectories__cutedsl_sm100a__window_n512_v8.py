"""resample_trajectories__cutedsl_sm100a__window_n512_v8

Generated from dsl_kernels/programs/resample_trajectories.py and the leaves in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: search=window, targets=512, vector=8.

roles
  sample     threads 0..511  a target a thread, then pieces of rows
buffers
  times      8192 float32, shared
  bounds     32 float32, shared
  place      512 int32, shared
  weight     512 float32, shared
totals: 512 threads, 36992 of 232448 bytes of shared memory, grid (b, ceildiv(m, 512))
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from dsl_kernels.device.cutedsl import resample_trajectories as leaf
from dsl_kernels.runtime.artifact import Launch, Operand

TARGETS = 512  # targets a CTA, one a thread
VECTOR = 8  # elements of a row that a thread moves at once
STAGED = 8192


LAUNCH = Launch(
    operands=(
        Operand("data", "tensor", "bfloat16", ("b", "n", "d")),
        Operand("src_times", "tensor", "float32", ("b", "n")),
        Operand("tgt_times", "tensor", "float32", ("b", "m")),
        Operand("out", "tensor", "bfloat16", ("b", "m", "d"), written=True),
    ),
    grid=("b", "ceildiv(m, 512)", "1"),
    block=512,
    cluster=(1, 1, 1),
)


@cute.struct
class Shared:
    times: cute.struct.Align[cute.struct.MemRange[Float32, STAGED], 128]
    bounds: cute.struct.Align[cute.struct.MemRange[Float32, 2 * (TARGETS // 32)], 128]
    place: cute.struct.Align[cute.struct.MemRange[Int32, TARGETS], 128]
    weight: cute.struct.Align[cute.struct.MemRange[Float32, TARGETS], 128]


@cute.jit
def sample(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, n: Int32,
    d: Int32, m: Int32, times: cute.Pointer, bounds: cute.Pointer, place: cute.Pointer, weight: cute.Pointer,
    row: Int32, tile: Int32, thread: Int32, warp: Int32, lane: Int32
):
    """A target a thread, then pieces of rows."""
    worker = thread
    first = tile * TARGETS
    t = Float32(0.0)
    # The target time of each thread; NaN past the last target.
    t = leaf.read_target(tgt_times, row, m, first, worker, TARGETS)
    # The least and the largest target of each warp; NaN does not count.
    leaf.bound_warps(bounds, t, warp, TARGETS // 32, lane)
    cute.arch.sync_threads()
    window = Int32(0)
    count = Int32(0)
    # The rows whose times decide all of the CTA's targets: at least two.
    window, count = leaf.find_window(bounds, TARGETS // 32, src_times, row, n, lane)
    if count <= STAGED:
        # `count` times of a trajectory from row `first` on into shared memory.
        leaf.stage_times(times, src_times, row, n, window, count, worker, TARGETS)
        cute.arch.sync_threads()
        # The upper row of each thread's target and its weight, from staged times of rows from `first` on.
        leaf.place_staged(place, weight, times, window, count, t, worker)
    else:
        # The upper row of each thread's target and its weight, from the times in global memory.
        leaf.place_in_global(place, weight, src_times, row, n, t, worker)
    cute.arch.sync_threads()
    # The targets' rows: the weighted mean of two rows, or one of them as it is.
    leaf.blend(out, data, row, n, m, d, first, place, weight, TARGETS, VECTOR, worker, TARGETS)


@cute.kernel
def resample_trajectories__cutedsl_sm100a__window_n512_v8(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, b: Int32,
    n: Int32, d: Int32, m: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    times = shared.times.data_ptr()
    bounds = shared.bounds.data_ptr()
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
        data, src_times, tgt_times, out, n, d, m, times, bounds, place, weight, row, tile, thread, warp, lane
    )


@cute.jit
def program(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, b: Int32,
    n: Int32, d: Int32, m: Int32
):
    kernel = resample_trajectories__cutedsl_sm100a__window_n512_v8(
        data, src_times, tgt_times, out, b, n, d, m
    )
    kernel.launch(
        grid=(1, 1, 1), block=(512, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=2,
        preferred_smem_carveout=100
    )
