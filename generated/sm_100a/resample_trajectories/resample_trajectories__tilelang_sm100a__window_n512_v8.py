"""resample_trajectories__tilelang_sm100a__window_n512_v8

Generated from dsl_kernels/programs/resample_trajectories.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: search=window, targets=512, vector=8.

roles
  sample     threads 0..511  a target a thread, then pieces of rows
buffers
  times      8192 float32, shared
  bounds     32 float32, shared
  place      512 int32, shared
  weight     512 float32, shared
totals: 512 threads, 36992 of 232448 bytes of shared memory, grid ((m + 511) // 512, b)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import grid
from dsl_kernels.device.tilelang import resample_trajectories as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS


def program():
    b = T.dynamic("b")
    n = T.dynamic("n")
    d = T.dynamic("d")
    m = T.dynamic("m")

    @T.prim_func
    def resample_trajectories__tilelang_sm100a__window_n512_v8(
        data: T.Tensor((b, n, d,), "bfloat16"),
        src_times: T.Tensor((b, n,), "float32"),
        tgt_times: T.Tensor((b, m,), "float32"),
        out: T.Tensor((b, m, d,), "bfloat16"),
    ):
        with T.Kernel((m + 511) // 512, b, threads=512) as (tile, row):
            times = T.alloc_shared((8192,), "float32")
            bounds = T.alloc_shared((32,), "float32")
            place = T.alloc_shared((512,), "int32")
            weight = T.alloc_shared((512,), "float32")

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32

            # sample: a target a thread, then pieces of rows
            worker = thread
            first = tile * 512
            t = T.alloc_var("float32", init=0.0)
            leaf.read_target(t, tgt_times, row, m, first, worker, 512)
            leaf.bound_warps(bounds, t, warp, 16, lane)
            T.sync_threads()
            window = T.alloc_var("int32", init=0)
            count = T.alloc_var("int32", init=0)
            leaf.find_window(window, count, bounds, 16, src_times, row, n, lane)
            if count <= 8192:
                leaf.stage_times(times, src_times, row, n, window, count, worker, 512)
                T.sync_threads()
                leaf.place_staged(place, weight, times, window, count, t, worker)
            else:
                leaf.place_in_global(place, weight, src_times, row, n, t, worker)
            T.sync_threads()
            leaf.blend(out, data, row, n, m, d, first, place, weight, 512, 8, worker, 512)

    return resample_trajectories__tilelang_sm100a__window_n512_v8
