"""resample_trajectories__tilelang_sm100a__global_n128_v1

Generated from dsl_kernels/programs/resample_trajectories.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: search=global, targets=128, vector=1.

roles
  sample     threads 0..127  a target a thread, then pieces of rows
buffers
  place      128 int32, shared
  weight     128 float32, shared
totals: 128 threads, 1024 of 232448 bytes of shared memory, grid ((m + 127) // 128, b)
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
    def resample_trajectories__tilelang_sm100a__global_n128_v1(
        data: T.Tensor((b, n, d,), "bfloat16"),
        src_times: T.Tensor((b, n,), "float32"),
        tgt_times: T.Tensor((b, m,), "float32"),
        out: T.Tensor((b, m, d,), "bfloat16"),
    ):
        with T.Kernel((m + 127) // 128, b, threads=128) as (tile, row):
            place = T.alloc_shared((128,), "int32")
            weight = T.alloc_shared((128,), "float32")

            thread = T.get_thread_binding()
            lane = thread % 32

            # sample: a target a thread, then pieces of rows
            worker = thread
            first = tile * 128
            t = T.alloc_var("float32", init=0.0)
            leaf.read_target(t, tgt_times, row, m, first, worker, 128)
            leaf.place_in_global(place, weight, src_times, row, n, t, worker)
            T.sync_threads()
            leaf.blend(out, data, row, n, m, d, first, place, weight, 128, 1, worker, 128)

    return resample_trajectories__tilelang_sm100a__global_n128_v1
