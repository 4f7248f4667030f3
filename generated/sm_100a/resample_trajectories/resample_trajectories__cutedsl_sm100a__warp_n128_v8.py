"""resample_trajectories__cutedsl_sm100a__warp_n128_v8

Generated from dsl_kernels/programs/resample_trajectories.py and the leaves in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: search=warp, targets=128, vector=8.

roles
  sample     threads 0..127  a target a thread, then pieces of rows
buffers
  times      8192 float32, shared
  place      128 int32, shared
  weight     128 float32, shared
totals: 128 threads, 33792 of 232448 bytes of shared memory, grid (b, ceildiv(m, 128))
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from dsl_kernels.device.cutedsl import resample_trajectories as leaf
from dsl_kernels.runtime.artifact import Launch, Operand

TARGETS = 128  # targets a CTA, one a thread
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
def sample(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, n: Int32,
    d: Int32, m: Int32, times: cute.Pointer, place: cute.Pointer, weight: cute.Pointer, row: Int32,
    tile: Int32, thread: Int32, lane: Int32
):
    """A target a thread, then pieces of rows."""
    worker = thread
    first = tile * TARGETS
    t = Float32(0.0)
    # The target time of each thread; NaN past the last target.
    t = leaf.read_target(tgt_times, row, m, first, worker, TARGETS)
    # `count` times of a trajectory from row `first` on into shared memory.
    leaf.stage_times(times, src_times, row, n, 0, n, worker, TARGETS)
    cute.arch.sync_threads()
    # The upper row of each thread's target and its weight, by all lanes of a warp: 32 times a round, a target
    # after the other.
    leaf.place_by_warp(place, weight, times, n, t, worker, lane)
    cute.arch.sync_threads()
    # The targets' rows: the weighted mean of two rows, or one of them as it is.
    leaf.blend(out, data, row, n, m, d, first, place, weight, TARGETS, VECTOR, worker, TARGETS)


@cute.kernel
def resample_trajectories__cutedsl_sm100a__warp_n128_v8(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, b: Int32,
    n: Int32, d: Int32, m: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    times = shared.times.data_ptr()
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
    sample(data, src_times, tgt_times, out, n, d, m, times, place, weight, row, tile, thread, lane)


@cute.jit
def program(
    data: cute.Pointer, src_times: cute.Pointer, tgt_times: cute.Pointer, out: cute.Pointer, b: Int32,
    n: Int32, d: Int32, m: Int32
):
    kernel = resample_trajectories__cutedsl_sm100a__warp_n128_v8(data, src_times, tgt_times, out, b, n, d, m)
    kernel.launch(
        grid=(1, 1, 1), block=(128, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=6,
        preferred_smem_carveout=100
    )
