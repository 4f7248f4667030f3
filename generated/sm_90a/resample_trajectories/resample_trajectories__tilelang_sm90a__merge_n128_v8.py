"""resample_trajectories__tilelang_sm90a__merge_n128_v8

Generated from dsl_kernels/programs/resample_trajectories.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
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
import tilelang.language as T

from dsl_kernels.device.tilelang import resample_trajectories as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

TARGETS = 128  # targets a CTA, one a thread
VECTOR = 8  # elements of a row that a thread moves at once
STRETCH = 1024
STRETCH_ELEMENTS = 16384

@T.macro
def sample(
    data, src_times, tgt_times, out, n, d, m, times, bounds, marks, rows, place, weight, row, tile, thread,
    warp, lane
):
    """A target a thread, then pieces of rows."""
    worker = thread
    first = tile * TARGETS
    t = T.alloc_var("float32", init=0.0)
    # The target time of each thread; NaN past the last target.
    leaf.read_target(t, tgt_times, row, m, first, worker, TARGETS)
    left = m - first
    # The least and the largest target of each warp; NaN does not count.
    leaf.bound_warps(bounds, t, warp, TARGETS // 32, lane)
    # Every thread's target where all threads see it.
    leaf.keep_targets(marks, t, worker)
    T.sync_threads()
    ascend = T.alloc_var("bool", init=False)
    # Whether the tile's targets, those before the last, ascend; NaN does not.
    leaf.see_order(ascend, marks, left, lane, TARGETS)
    if ascend:
        window = T.alloc_var("int32", init=0)
        count = T.alloc_var("int32", init=0)
        # The rows whose times decide all of the CTA's targets: at least two.
        leaf.find_window(window, count, bounds, TARGETS // 32, src_times, row, n, lane)
        steps = T.min(STRETCH, T.truncdiv(STRETCH_ELEMENTS, d)) - 1
        done = T.alloc_var("int32", init=0)
        upto = T.alloc_var("int32", init=0)
        for stretch in T.serial(T.truncdiv(count - 2 + steps, steps)):
            begin = window + stretch * steps
            held = T.min(steps + 1, count - stretch * steps)
            T.sync_threads()
            # `count` times of a trajectory from row `first` on into shared memory.
            leaf.stage_times(times, src_times, row, n, begin, held, worker, TARGETS)
            # `count` rows of a trajectory from row `first` on into shared memory, one behind the other.
            leaf.stage_rows(rows, data, row, n, d, begin, held, VECTOR, worker, TARGETS)
            T.sync_threads()
            # How many of the ascending targets the staged rows and those before them decide: all, at the last
            # rows.
            leaf.pass_targets(upto, marks, left, times, held, begin + held == window + count, lane, TARGETS)
            # The upper row of each thread's target and its weight, from staged times of rows from `first` on.
            leaf.place_staged(place, weight, times, 0, held, t, worker)
            T.sync_threads()
            # blend of the targets from `done` to `upto`, whose rows are staged.
            leaf.blend_staged(out, rows, row, m, d, first, done, upto, place, weight, VECTOR, worker, TARGETS)
            done = upto
    else:
        # The upper row of each thread's target and its weight, from the times in global memory.
        leaf.place_in_global(place, weight, src_times, row, n, t, worker)
        T.sync_threads()
        # The targets' rows: the weighted mean of two rows, or one of them as it is.
        leaf.blend(out, data, row, n, m, d, first, place, weight, TARGETS, VECTOR, worker, TARGETS)


def program():
    b = T.dynamic("b")
    n = T.dynamic("n")
    d = T.dynamic("d")
    m = T.dynamic("m")

    @T.prim_func
    def resample_trajectories__tilelang_sm90a__merge_n128_v8(
        data: T.Tensor((b, n, d), "bfloat16"),
        src_times: T.Tensor((b, n), "float32"),
        tgt_times: T.Tensor((b, m), "float32"),
        out: T.Tensor((b, m, d), "bfloat16"),
    ):
        with T.Kernel(b, T.ceildiv(m, 128), threads=128) as (row, tile):
            T.annotate_min_blocks_per_sm(4)
            T.import_source(leaf.SOURCE)
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

    return resample_trajectories__tilelang_sm90a__merge_n128_v8
