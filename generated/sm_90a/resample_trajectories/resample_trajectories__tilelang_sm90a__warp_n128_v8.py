"""resample_trajectories__tilelang_sm90a__warp_n128_v8

Generated from dsl_kernels/programs/resample_trajectories.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: search=warp, targets=128, vector=8.

roles
  sample     threads 0..127  a target a thread, then pieces of rows
buffers
  times      8192 float32, shared
  place      128 int32, shared
  weight     128 float32, shared
totals: 128 threads, 33792 of 232448 bytes of shared memory, grid (b, ceildiv(m, 128))
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import resample_trajectories as leaf
from dsl_kernels.device.tilelang import symbols

PASS_CONFIGS = leaf.PASS_CONFIGS

TARGETS = 128  # targets a CTA, one a thread
VECTOR = 8  # elements of a row that a thread moves at once
STAGED = 8192

@T.macro
def sample(data, src_times, tgt_times, out, n, d, m, times, place, weight, row, tile, thread, lane):
    """A target a thread, then pieces of rows."""
    worker = thread
    first = tile * TARGETS
    t = T.alloc_var("float32", init=0.0)
    # The target time of each thread; NaN past the last target.
    leaf.read_target(t, tgt_times, row, m, first, worker, TARGETS)
    # `count` times of a trajectory from row `first` on into shared memory.
    leaf.stage_times(times, src_times, row, n, 0, n, worker, TARGETS)
    T.sync_threads()
    # The upper row of each thread's target and its weight, by all lanes of a warp: 32 times a round, a target
    # after the other.
    leaf.place_by_warp(place, weight, times, n, t, worker, lane)
    T.sync_threads()
    # The targets' rows: the weighted mean of two rows, or one of them as it is.
    leaf.blend(out, data, row, n, m, d, first, place, weight, TARGETS, VECTOR, worker, TARGETS)


def program():
    b = T.dynamic("b")
    n = T.dynamic("n")
    d = T.dynamic("d")
    m = T.dynamic("m")

    @T.prim_func
    def resample_trajectories__tilelang_sm90a__warp_n128_v8(
        data: T.Tensor((b, n, d), "bfloat16"),
        src_times: T.Tensor((b, n), "float32"),
        tgt_times: T.Tensor((b, m), "float32"),
        out: T.Tensor((b, m, d), "bfloat16"),
    ):
        with T.Kernel(b, T.ceildiv(m, 128), threads=128) as (row, tile):
            T.annotate_min_blocks_per_sm(6)
            T.import_source(leaf.SOURCE)
            times = T.alloc_shared((STAGED,), "float32")
            place = T.alloc_shared((TARGETS,), "int32")
            weight = T.alloc_shared((TARGETS,), "float32")

            thread = T.get_thread_binding()
            lane = thread % 32

            sample(data, src_times, tgt_times, out, n, d, m, times, place, weight, row, tile, thread, lane)

    return symbols.named(resample_trajectories__tilelang_sm90a__warp_n128_v8, n=n)
