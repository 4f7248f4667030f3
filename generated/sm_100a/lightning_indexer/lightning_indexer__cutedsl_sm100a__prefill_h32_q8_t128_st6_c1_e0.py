"""lightning_indexer__cutedsl_sm100a__prefill_h32_q8_t128_st6_c1_e0

Generated from templates/cutedsl/lightning_indexer.sm_100a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/lightning_indexer.py, not this file. Knobs: mode=prefill, heads=32, queries=8, tile=128, stages=6, resident=1, evict=0.

roles
  score_0    threads 0..127  epilogue of half 0 of the rows
  score_1    threads 128..255  epilogue of half 1 of the rows
  load       threads 256..287  key tiles, queries
  mma        threads 288..319  issues every tcgen05.mma and commit
buffers
  keys       6 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 6 stages of 128 float32, shared
  queries    256x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 256 float32, shared
  scores     2 stages of 128x256 float32, tensor memory
pipelines
  keys: load (bulk) ==[keys key_scales: 6-slot ring]==> mma (tcgen05), score_0 (threads), score_1 (threads)
    full  x1, 16896 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
      score_1: wait full
    empty x9: load wait empty
      mma: commit -> empty
      score_0: one lane a warp, arrive empty
      score_1: one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: once]==> mma (tcgen05), score_0 (threads), score_1 (threads)
    full  x1, 33792 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
      score_1: wait full
  scores: mma (tcgen05) ==[scores: 2-slot ring]==> score_0 (tmem), score_1 (tmem)
    full  x1: mma commit -> full
      score_0: wait full, fence after
      score_1: wait full, fence after
    empty x8: mma wait empty, fence after
      score_0: wait::ld, fence before, one lane a warp, arrive empty
      score_1: wait::ld, fence before, one lane a warp, arrive empty
totals: 320 threads, 135304 of 232448 bytes of shared memory, 512 of 512 tensor-memory columns, grid (ceildiv(s, 8), splits)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

from dsl_kernels.device.cutedsl import lightning_indexer as leaf
from dsl_kernels.device.cutedsl import lightning_indexer_sm100 as tensor
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

LAUNCH = Launch(
    operands=(
        Operand("q", "tensor", "float8_e4m3fn", ('s', '32', '128')),
        Operand("k", "tensor", "float8_e4m3fn", ('skv', '128')),
        Operand("k_scales", "tensor", "float32", ('skv',)),
        Operand("weights", "tensor", "float32", ('s', '32')),
        Operand("k_start", "tensor", "int32", ('s',)),
        Operand("k_end", "tensor", "int32", ('s',)),
        Operand("logits", "tensor", "float32", ('s', 'stride'), written=True),
        Operand("skip_below", "scalar", "int32"),
        Operand("splits", "scalar", "int32"),
    ),
    grid=('ceildiv(s, 8)', 'splits', '1'),
    block=320,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "query_map", "q", "UINT8", global_dims=('128', 's * 32'), global_strides=('128',),
            box=(128, 256), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "weight_map", "weights", "FLOAT32", global_dims=('s * 32',), global_strides=(),
            box=(256,), element_strides=(1,), swizzle="NONE", l2_promotion="NONE",
        ),
        TensorMap(
            "key_map", "k", "UINT8", global_dims=('128', 'skv'), global_strides=('128',),
            box=(128, 128), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "scale_map", "k_scales", "FLOAT32", global_dims=('skv',), global_strides=(),
            box=(128,), element_strides=(1,), swizzle="NONE", l2_promotion="NONE",
        ),
    ),
)


@cute.struct
class Shared:
    keys: cute.struct.Align[cute.struct.MemRange[leaf.FP8, 98304], 1024]
    queries: cute.struct.Align[cute.struct.MemRange[leaf.FP8, 32768], 1024]
    key_scales: cute.struct.Align[cute.struct.MemRange[Float32, 768], 128]
    head_weights: cute.struct.Align[cute.struct.MemRange[Float32, 256], 128]
    keys_full: cute.struct.MemRange[Int64, 6]
    keys_empty: cute.struct.MemRange[Int64, 6]
    queries_full: cute.struct.MemRange[Int64, 1]
    scores_full: cute.struct.MemRange[Int64, 2]
    scores_empty: cute.struct.MemRange[Int64, 2]
    tmem: Int32


@cute.kernel
def lightning_indexer__cutedsl_sm100a__prefill_h32_q8_t128_st6_c1_e0(query_map: cute.CopyAtom, query_map_coords: cute.Tensor, weight_map: cute.CopyAtom, weight_map_coords: cute.Tensor, key_map: cute.CopyAtom, key_map_coords: cute.Tensor, scale_map: cute.CopyAtom, scale_map_coords: cute.Tensor, q: cute.Pointer, k: cute.Pointer, k_scales: cute.Pointer, weights: cute.Pointer, k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: cutlass.Int32, splits: cutlass.Int32, s: cutlass.Int32, skv: cutlass.Int32, stride: cutlass.Int32):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    keys_full = shared.keys_full.data_ptr()
    keys_empty = shared.keys_empty.data_ptr()
    queries_full = shared.queries_full.data_ptr()
    scores_full = shared.scores_full.data_ptr()
    scores_empty = shared.scores_empty.data_ptr()
    key_scales = shared.key_scales.data_ptr()
    head_weights = shared.head_weights.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    if warp == 8:
        cpasync.prefetch_descriptor(query_map)
        cpasync.prefetch_descriptor(weight_map)
        cpasync.prefetch_descriptor(key_map)
        cpasync.prefetch_descriptor(scale_map)
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(6):
                cute.arch.mbarrier_init(keys_full + i, 1)
            for i in cutlass.range_constexpr(6):
                cute.arch.mbarrier_init(keys_empty + i, 9)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(queries_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(scores_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(scores_empty + i, 8)
            cute.arch.mbarrier_init_fence()
    if warp == 9:
        cute.arch.alloc_tmem(512, shared.tmem)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence("before_thread_sync")
    block, split, _ = cute.arch.block_idx()
    begins = leaf.vector(k_start)
    ends = leaf.vector(k_end)
    # Later rows see more keys in a causal prefill: the longest blocks start first.
    row = (leaf.ceildiv(s, 8) - 1 - block) * 8
    first, turns = leaf.find_tiles(begins, ends, row, 8, s, skv, skip_below, 128, split, splits)
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, shared.tmem)
    keys = tensor.key_operand(shared.keys.data_ptr(), 256, 6)
    queries = tensor.query_operand(shared.queries.data_ptr(), 256, 1)
    if turns > 0:
        if warp < 4:
            key = thread % 128
            weight = cute.make_rmem_tensor(32, Float32)
            begin = [leaf.window_begin(begins, row + 0 + j, s) for j in range(4)]
            end = [leaf.window_end(begins, ends, row + 0 + j, s, skv, skip_below) for j in range(4)]
            at = first * 128 + key
            to = [logits + (Int64(row + 0 + j) * stride + at) for j in range(4)]
            cute.arch.mbarrier_wait(queries_full, 0)
            for it in cutlass.range(turns, unroll=1):
                cute.arch.mbarrier_wait(keys_full + it % 6, (it // 6) & 1)
                scale = (key_scales + it % 6 * 128 + key).load()
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(keys_empty + it % 6)
                cute.arch.mbarrier_wait(scores_full + it % 2, (it // 2) & 1)
                nvvm.tcgen05_fence("after_thread_sync")
                dots = tensor.read_scores(tmem + it % 2 * 256 + 0, key, 4, 32)
                cute.arch.fence_view_async_tmem_load()
                nvvm.tcgen05_fence("before_thread_sync")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(scores_empty + it % 2)
                for j in cutlass.range_constexpr(4):
                    tensor.read_weights(head_weights + (0 + j) * 32, 32, weight)
                    logit = scale * tensor.weighted_relu_sum(dots[j], weight, 32)
                    if (at >= begin[j]) & (at < end[j]):
                        to[j].store(logit)
                at = at + 128
                to = [pointer + 128 for pointer in to]
        elif warp < 8:
            key = thread % 128
            weight = cute.make_rmem_tensor(32, Float32)
            begin = [leaf.window_begin(begins, row + 4 + j, s) for j in range(4)]
            end = [leaf.window_end(begins, ends, row + 4 + j, s, skv, skip_below) for j in range(4)]
            at = first * 128 + key
            to = [logits + (Int64(row + 4 + j) * stride + at) for j in range(4)]
            cute.arch.mbarrier_wait(queries_full, 0)
            for it in cutlass.range(turns, unroll=1):
                cute.arch.mbarrier_wait(keys_full + it % 6, (it // 6) & 1)
                scale = (key_scales + it % 6 * 128 + key).load()
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(keys_empty + it % 6)
                cute.arch.mbarrier_wait(scores_full + it % 2, (it // 2) & 1)
                nvvm.tcgen05_fence("after_thread_sync")
                dots = tensor.read_scores(tmem + it % 2 * 256 + 128, key, 4, 32)
                cute.arch.fence_view_async_tmem_load()
                nvvm.tcgen05_fence("before_thread_sync")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(scores_empty + it % 2)
                for j in cutlass.range_constexpr(4):
                    tensor.read_weights(head_weights + (4 + j) * 32, 32, weight)
                    logit = scale * tensor.weighted_relu_sum(dots[j], weight, 32)
                    if (at >= begin[j]) & (at < end[j]):
                        to[j].store(logit)
                at = at + 128
                to = [pointer + 128 for pointer in to]
        elif warp == 8:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(queries_full, 33792)
            leaf.load_box(query_map, query_map_coords, (row * 32 + 0, 0), (256, 128), shared.queries.data_ptr() + 0, queries_full)
            leaf.load_box(weight_map, weight_map_coords, (row * 32 + 0,), (256,), head_weights + 0, queries_full)
            for it in cutlass.range(turns, unroll=1):
                key = (first + it) * 128
                cute.arch.mbarrier_wait(keys_empty + it % 6, ((it // 6) & 1) ^ 1)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(keys_full + it % 6, 16896)
                leaf.load_box(key_map, key_map_coords, (key, 0), (128, 128), shared.keys.data_ptr() + it % 6 * 16384, keys_full + it % 6)
                leaf.load_box(scale_map, scale_map_coords, (key,), (128,), key_scales + it % 6 * 128, keys_full + it % 6)
        else:
            cute.arch.mbarrier_wait(queries_full, 0)
            nvvm.tcgen05_fence("after_thread_sync")
            for it in cutlass.range(turns, unroll=1):
                cute.arch.mbarrier_wait(keys_full + it % 6, (it // 6) & 1)
                nvvm.tcgen05_fence("after_thread_sync")
                cute.arch.mbarrier_wait(scores_empty + it % 2, ((it // 2) & 1) ^ 1)
                nvvm.tcgen05_fence("after_thread_sync")
                tensor.multiply(
                    keys[None, None, None, it % 6],
                    queries[None, None, None, 0],
                    tmem + it % 2 * 256,
                    256,
                )
                with cute.arch.elect_one():
                    tcgen05.commit(scores_full + it % 2)
                with cute.arch.elect_one():
                    tcgen05.commit(keys_empty + it % 6)
    # Tensor memory is freed when every accumulator has been read.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if warp == 9:
        cute.arch.dealloc_tmem(tmem, 512)


@cute.jit
def program(q: cute.Pointer, k: cute.Pointer, k_scales: cute.Pointer, weights: cute.Pointer, k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: cutlass.Int32, splits: cutlass.Int32, s: cutlass.Int32, skv: cutlass.Int32, stride: cutlass.Int32):
    query_map, query_map_coords = leaf.box_map(q, leaf.FP8, (leaf.MANY, 128), (256, 128))
    weight_map, weight_map_coords = leaf.box_map(weights, Float32, (leaf.MANY,), (256,))
    key_map, key_map_coords = leaf.box_map(k, leaf.FP8, (leaf.MANY, 128), (128, 128))
    scale_map, scale_map_coords = leaf.box_map(k_scales, Float32, (leaf.MANY,), (128,))
    lightning_indexer__cutedsl_sm100a__prefill_h32_q8_t128_st6_c1_e0(query_map, query_map_coords, weight_map, weight_map_coords, key_map, key_map_coords, scale_map, scale_map_coords, q, k, k_scales, weights, k_start, k_end, logits, skip_below, splits, s, skv, stride).launch(grid=(1, 1, 1), block=(320, 1, 1), cluster=(1, 1, 1))
