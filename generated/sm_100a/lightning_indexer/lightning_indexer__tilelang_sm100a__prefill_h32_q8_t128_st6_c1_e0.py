"""lightning_indexer__tilelang_sm100a__prefill_h32_q8_t128_st6_c1_e0

Generated from dsl_kernels/programs/lightning_indexer.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=prefill, heads=32, queries=8, tile=128, stages=6, resident=1, evict=0.

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
  dots_0     128x128 float32, registers of score_0
  weight_0   32 float32, registers of score_0
  scale_0    128 float32, registers of score_0
  logit_0    128 float32, registers of score_0
  dots_1     128x128 float32, registers of score_1
  weight_1   32 float32, registers of score_1
  scale_1    128 float32, registers of score_1
  logit_1    128 float32, registers of score_1
  begin_0    4 int32, registers of score_0
  begin_1    4 int32, registers of score_1
  size_0     4 int32, registers of score_0
  size_1     4 int32, registers of score_1
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
import tilelang.language as T

from dsl_kernels.device.tilelang import grid
from dsl_kernels.device.tilelang import lightning_indexer_sm100 as leaf_sm100
from dsl_kernels.device.tilelang import lightning_indexer as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS


def program():
    s = T.dynamic("s")
    skv = T.dynamic("skv")
    stride = T.dynamic("stride")

    @T.prim_func
    def lightning_indexer__tilelang_sm100a__prefill_h32_q8_t128_st6_c1_e0(
        q: T.Tensor((s, 32, 128,), "float8_e4m3fn"),
        k: T.Tensor((skv, 128,), "float8_e4m3fn"),
        k_scales: T.Tensor((skv,), "float32"),
        weights: T.Tensor((s, 32,), "float32"),
        k_start: T.Tensor((s,), "int32"),
        k_end: T.Tensor((s,), "int32"),
        logits: T.Tensor((s, stride,), "float32"),
        skip_below: T.int32,
        splits: T.int32,
    ):
        with T.Kernel(T.ceildiv(s, 8), splits, threads=320) as (block, split):
            query_map_rows = T.view(q, (s * 32, 128), "float8_e4m3")
            weight_map_rows = T.view(weights, (1, s * 32), "float32", strides=(4, 1))
            key_map_rows = T.view(k, (skv, 128), "float8_e4m3")
            scale_map_rows = T.view(k_scales, (1, skv), "float32", strides=(4, 1))
            keys = T.alloc_shared((6, 128, 128), "float8_e4m3")
            key_scales = T.alloc_shared((6, 128), "float32")
            queries = T.alloc_shared((1, 256, 128), "float8_e4m3")
            head_weights = T.alloc_shared((1, 256), "float32")
            scores = T.alloc_tmem((2, 128, 256), "float32")
            keys_full = T.alloc_barrier([1] * 6)
            keys_empty = T.alloc_barrier([9] * 6)
            queries_full = T.alloc_barrier([1] * 1)
            scores_full = T.alloc_barrier([1] * 2)
            scores_empty = T.alloc_barrier([8] * 2)

            thread = T.get_thread_binding()
            lane = thread % 32
            row = T.alloc_var("int32", init=0)
            first = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            # Later rows see more keys in a causal prefill: the longest blocks start first.
            row = (leaf.ceildiv(s, 8) - 1 - block) * 8
            leaf.find_tiles(first, turns, k_start, k_end, row, 8, s, skv, skip_below, 128, split, splits)
            if thread < 128:
                # score_0: epilogue of half 0 of the rows
                dots_0 = T.alloc_fragment((128, 128), "float32")
                weight_0 = T.alloc_fragment((32,), "float32")
                scale_0 = T.alloc_fragment((128,), "float32")
                logit_0 = T.alloc_fragment((128,), "float32")
                begin_0 = T.alloc_local((4,), "int32")
                size_0 = T.alloc_local((4,), "int32")
                worker = thread
                leaf_sm100.read_windows(begin_0, size_0, k_start, k_end, row, 4, s, skv, skip_below, worker)
                if turns > 0:
                    T.mbarrier_wait_parity(queries_full[0], 0)
                for it in T.serial(turns):
                    T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                    leaf.read_scales(scale_0, key_scales, it % 6, 0, 1, worker)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_empty[it % 6])
                    T.mbarrier_wait_parity(scores_full[it % 2], (it // 2) & 1)
                    T.tcgen05_after_thread_sync()
                    leaf.read_scores(dots_0, scores, it % 2, 0, 32, worker)
                    T.call_extern("handle", "tl::fence_view_async_tmem_load")
                    T.tcgen05_before_thread_sync()
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(scores_empty[it % 2])
                    leaf.read_weights(weight_0, head_weights, 0, 0, 1, worker)
                    leaf.weigh_one(logit_0, dots_0, 0, weight_0, worker)
                    leaf_sm100.store_row(logits, logit_0, scale_0, begin_0, size_0, 0, row, stride, (first + it) * 128, worker)
                    leaf.read_weights(weight_0, head_weights, 0, 32, 1, worker)
                    leaf.weigh_one(logit_0, dots_0, 1, weight_0, worker)
                    leaf_sm100.store_row(logits, logit_0, scale_0, begin_0, size_0, 1, row + 1, stride, (first + it) * 128, worker)
                    leaf.read_weights(weight_0, head_weights, 0, 64, 1, worker)
                    leaf.weigh_one(logit_0, dots_0, 2, weight_0, worker)
                    leaf_sm100.store_row(logits, logit_0, scale_0, begin_0, size_0, 2, row + 2, stride, (first + it) * 128, worker)
                    leaf.read_weights(weight_0, head_weights, 0, 96, 1, worker)
                    leaf.weigh_one(logit_0, dots_0, 3, weight_0, worker)
                    leaf_sm100.store_row(logits, logit_0, scale_0, begin_0, size_0, 3, row + 3, stride, (first + it) * 128, worker)
            elif thread < 256:
                # score_1: epilogue of half 1 of the rows
                dots_1 = T.alloc_fragment((128, 128), "float32")
                weight_1 = T.alloc_fragment((32,), "float32")
                scale_1 = T.alloc_fragment((128,), "float32")
                logit_1 = T.alloc_fragment((128,), "float32")
                begin_1 = T.alloc_local((4,), "int32")
                size_1 = T.alloc_local((4,), "int32")
                worker = thread - 128
                leaf_sm100.read_windows(begin_1, size_1, k_start, k_end, row + 4, 4, s, skv, skip_below, worker)
                if turns > 0:
                    T.mbarrier_wait_parity(queries_full[0], 0)
                for it in T.serial(turns):
                    T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                    leaf.read_scales(scale_1, key_scales, it % 6, 0, 1, worker)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_empty[it % 6])
                    T.mbarrier_wait_parity(scores_full[it % 2], (it // 2) & 1)
                    T.tcgen05_after_thread_sync()
                    leaf.read_scores(dots_1, scores, it % 2, 128, 32, worker)
                    T.call_extern("handle", "tl::fence_view_async_tmem_load")
                    T.tcgen05_before_thread_sync()
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(scores_empty[it % 2])
                    leaf.read_weights(weight_1, head_weights, 0, 128, 1, worker)
                    leaf.weigh_one(logit_1, dots_1, 0, weight_1, worker)
                    leaf_sm100.store_row(logits, logit_1, scale_1, begin_1, size_1, 0, row + 4, stride, (first + it) * 128, worker)
                    leaf.read_weights(weight_1, head_weights, 0, 160, 1, worker)
                    leaf.weigh_one(logit_1, dots_1, 1, weight_1, worker)
                    leaf_sm100.store_row(logits, logit_1, scale_1, begin_1, size_1, 1, row + 4 + 1, stride, (first + it) * 128, worker)
                    leaf.read_weights(weight_1, head_weights, 0, 192, 1, worker)
                    leaf.weigh_one(logit_1, dots_1, 2, weight_1, worker)
                    leaf_sm100.store_row(logits, logit_1, scale_1, begin_1, size_1, 2, row + 4 + 2, stride, (first + it) * 128, worker)
                    leaf.read_weights(weight_1, head_weights, 0, 224, 1, worker)
                    leaf.weigh_one(logit_1, dots_1, 3, weight_1, worker)
                    leaf_sm100.store_row(logits, logit_1, scale_1, begin_1, size_1, 3, row + 4 + 3, stride, (first + it) * 128, worker)
            elif thread < 288:
                # load: key tiles, queries
                query = row * 32
                if turns > 0:
                    # queries: filled once, so its slot is free
                    T.tma_copy(query_map_rows[query : query + 256, 0 : 128], queries[0, :, :], barrier=queries_full[0])
                    T.tma_copy(weight_map_rows[0, query : query + 256], head_weights[0, :], barrier=queries_full[0])
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(queries_full[0])
                for it in T.serial(turns):
                    T.mbarrier_wait_parity(keys_empty[it % 6], ((it // 6) & 1) ^ 1)
                    key = (first + it) * 128
                    T.tma_copy(key_map_rows[key : key + 128, 0 : 128], keys[it % 6, :, :], barrier=keys_full[it % 6])
                    T.tma_copy(scale_map_rows[0, key : key + 128], key_scales[it % 6, :], barrier=keys_full[it % 6])
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_full[it % 6])
            else:
                # mma: issues every tcgen05.mma and commit
                if turns > 0:
                    T.mbarrier_wait_parity(queries_full[0], 0)
                    T.tcgen05_after_thread_sync()
                for it in T.serial(turns):
                    T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                    T.tcgen05_after_thread_sync()
                    T.mbarrier_wait_parity(scores_empty[it % 2], ((it // 2) & 1) ^ 1)
                    T.tcgen05_after_thread_sync()
                    # S[keys, heads] = K Q^T
                    T.tcgen05_gemm(keys[it % 6, :, :], queries[0, :, :], scores[it % 2, :, :], transpose_B=True, clear_accum=True, mbar=None)
                    T.tcgen05_mma_arrive(scores_full[it % 2])
                    T.tcgen05_mma_arrive(keys_empty[it % 6])
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return lightning_indexer__tilelang_sm100a__prefill_h32_q8_t128_st6_c1_e0
