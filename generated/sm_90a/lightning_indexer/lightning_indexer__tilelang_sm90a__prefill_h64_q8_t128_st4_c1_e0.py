"""lightning_indexer__tilelang_sm90a__prefill_h64_q8_t128_st4_c1_e0

Generated from dsl_kernels/programs/lightning_indexer.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=prefill, heads=64, queries=8, tile=128, stages=4, resident=1, evict=0.

roles
  score      threads 0..511, 112 registers  2 rows each
  load       threads 512..639, 24 registers  key tiles, queries
buffers
  keys       4 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 4 stages of 128 float32, shared
  queries    512x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 512 float32, shared
  acc        64x128 float32, registers of score
  weight     2x64 float32, registers of score
  scale      64 float32, registers of score
  logit      64x2 float32, registers of score
  begin      2 int32, registers of score
  size       2 int32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 4-slot ring]==> score (wgmma)
    full  x1, 16896 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: once]==> score (wgmma)
    full  x1, 67584 bytes: load arrive + expect bytes
      score: wait full
totals: 640 threads, 135240 of 232448 bytes of shared memory, grid (ceildiv(s, 8), splits)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import grid
from dsl_kernels.device.tilelang import lightning_indexer as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS


def program():
    s = T.dynamic("s")
    skv = T.dynamic("skv")
    stride = T.dynamic("stride")

    @T.prim_func
    def lightning_indexer__tilelang_sm90a__prefill_h64_q8_t128_st4_c1_e0(
        q: T.Tensor((s, 64, 128,), "float8_e4m3fn"),
        k: T.Tensor((skv, 128,), "float8_e4m3fn"),
        k_scales: T.Tensor((skv,), "float32"),
        weights: T.Tensor((s, 64,), "float32"),
        k_start: T.Tensor((s,), "int32"),
        k_end: T.Tensor((s,), "int32"),
        logits: T.Tensor((s, stride,), "float32"),
        skip_below: T.int32,
        splits: T.int32,
    ):
        with T.Kernel(T.ceildiv(s, 8), splits, threads=640) as (block, split):
            query_map_rows = T.view(q, (s * 64, 128), "float8_e4m3")
            weight_map_rows = T.view(weights, (1, s * 64), "float32", strides=(4, 1))
            key_map_rows = T.view(k, (skv, 128), "float8_e4m3")
            scale_map_rows = T.view(k_scales, (1, skv), "float32", strides=(4, 1))
            keys = T.alloc_shared((4, 128, 128), "float8_e4m3")
            key_scales = T.alloc_shared((4, 128), "float32")
            queries = T.alloc_shared((1, 512, 128), "float8_e4m3")
            head_weights = T.alloc_shared((1, 512), "float32")
            keys_full = T.alloc_barrier([1] * 4)
            keys_empty = T.alloc_barrier([16] * 4)
            queries_full = T.alloc_barrier([1] * 1)

            thread = T.get_thread_binding()
            lane = thread % 32
            row = T.alloc_var("int32", init=0)
            first = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            # Later rows see more keys in a causal prefill: the longest blocks start first.
            row = (leaf.ceildiv(s, 8) - 1 - block) * 8
            leaf.find_tiles(first, turns, k_start, k_end, row, 8, s, skv, skip_below, 128, split, splits)
            if thread < 128:
                # score 0: 2 rows each
                T.set_max_nreg(112, 1)
                acc_0 = T.alloc_fragment((64, 128), "float32")
                weight_0 = T.alloc_fragment((2, 64), "float32")
                scale_0 = T.alloc_fragment((64,), "float32")
                logit_0 = T.alloc_fragment((64, 2), "float32")
                begin_0 = T.alloc_fragment((2,), "int32")
                size_0 = T.alloc_fragment((2,), "int32")
                worker = thread
                own = row
                leaf.read_windows(begin_0, size_0, k_start, k_end, own, 2, s, skv, skip_below, worker)
                if turns > 0:
                    T.mbarrier_wait_parity(queries_full[0], 0)
                    leaf.read_weights(weight_0, head_weights, 0, 0, 2, worker)
                for it in T.serial(turns):
                    T.mbarrier_wait_parity(keys_full[it % 4], (it // 4) & 1)
                    # S[keys, heads] = K Q^T
                    T.wgmma_gemm(keys[it % 4, 0 : 64, :], queries[0, 0 : 128, :], acc_0, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                    leaf.read_scales(scale_0, key_scales, it % 4, 0, 2, worker)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(acc_0, num_regs=64)
                    leaf.weigh(logit_0, acc_0, weight_0, 2, worker)
                    leaf.store_window(logits, logit_0, scale_0, begin_0, size_0, own, 2, stride, (first + it) * 128, worker)
                    # S[keys, heads] = K Q^T
                    T.wgmma_gemm(keys[it % 4, 64 : 128, :], queries[0, 0 : 128, :], acc_0, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                    leaf.read_scales(scale_0, key_scales, it % 4, 64, 2, worker)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(acc_0, num_regs=64)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_empty[it % 4])
                    leaf.weigh(logit_0, acc_0, weight_0, 2, worker)
                    leaf.store_window(logits, logit_0, scale_0, begin_0, size_0, own, 2, stride, (first + it) * 128 + 64, worker)
            elif thread < 256:
                # score 1: 2 rows each
                T.set_max_nreg(112, 1)
                acc_1 = T.alloc_fragment((64, 128), "float32")
                weight_1 = T.alloc_fragment((2, 64), "float32")
                scale_1 = T.alloc_fragment((64,), "float32")
                logit_1 = T.alloc_fragment((64, 2), "float32")
                begin_1 = T.alloc_fragment((2,), "int32")
                size_1 = T.alloc_fragment((2,), "int32")
                worker = thread - 128
                own = row + 2
                leaf.read_windows(begin_1, size_1, k_start, k_end, own, 2, s, skv, skip_below, worker)
                if turns > 0:
                    T.mbarrier_wait_parity(queries_full[0], 0)
                    leaf.read_weights(weight_1, head_weights, 0, 128, 2, worker)
                for it in T.serial(turns):
                    T.mbarrier_wait_parity(keys_full[it % 4], (it // 4) & 1)
                    # S[keys, heads] = K Q^T
                    T.wgmma_gemm(keys[it % 4, 0 : 64, :], queries[0, 128 : 256, :], acc_1, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                    leaf.read_scales(scale_1, key_scales, it % 4, 0, 2, worker)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(acc_1, num_regs=64)
                    leaf.weigh(logit_1, acc_1, weight_1, 2, worker)
                    leaf.store_window(logits, logit_1, scale_1, begin_1, size_1, own, 2, stride, (first + it) * 128, worker)
                    # S[keys, heads] = K Q^T
                    T.wgmma_gemm(keys[it % 4, 64 : 128, :], queries[0, 128 : 256, :], acc_1, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                    leaf.read_scales(scale_1, key_scales, it % 4, 64, 2, worker)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(acc_1, num_regs=64)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_empty[it % 4])
                    leaf.weigh(logit_1, acc_1, weight_1, 2, worker)
                    leaf.store_window(logits, logit_1, scale_1, begin_1, size_1, own, 2, stride, (first + it) * 128 + 64, worker)
            elif thread < 384:
                # score 2: 2 rows each
                T.set_max_nreg(112, 1)
                acc_2 = T.alloc_fragment((64, 128), "float32")
                weight_2 = T.alloc_fragment((2, 64), "float32")
                scale_2 = T.alloc_fragment((64,), "float32")
                logit_2 = T.alloc_fragment((64, 2), "float32")
                begin_2 = T.alloc_fragment((2,), "int32")
                size_2 = T.alloc_fragment((2,), "int32")
                worker = thread - 256
                own = row + 4
                leaf.read_windows(begin_2, size_2, k_start, k_end, own, 2, s, skv, skip_below, worker)
                if turns > 0:
                    T.mbarrier_wait_parity(queries_full[0], 0)
                    leaf.read_weights(weight_2, head_weights, 0, 256, 2, worker)
                for it in T.serial(turns):
                    T.mbarrier_wait_parity(keys_full[it % 4], (it // 4) & 1)
                    # S[keys, heads] = K Q^T
                    T.wgmma_gemm(keys[it % 4, 0 : 64, :], queries[0, 256 : 384, :], acc_2, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                    leaf.read_scales(scale_2, key_scales, it % 4, 0, 2, worker)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(acc_2, num_regs=64)
                    leaf.weigh(logit_2, acc_2, weight_2, 2, worker)
                    leaf.store_window(logits, logit_2, scale_2, begin_2, size_2, own, 2, stride, (first + it) * 128, worker)
                    # S[keys, heads] = K Q^T
                    T.wgmma_gemm(keys[it % 4, 64 : 128, :], queries[0, 256 : 384, :], acc_2, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                    leaf.read_scales(scale_2, key_scales, it % 4, 64, 2, worker)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(acc_2, num_regs=64)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_empty[it % 4])
                    leaf.weigh(logit_2, acc_2, weight_2, 2, worker)
                    leaf.store_window(logits, logit_2, scale_2, begin_2, size_2, own, 2, stride, (first + it) * 128 + 64, worker)
            elif thread < 512:
                # score 3: 2 rows each
                T.set_max_nreg(112, 1)
                acc_3 = T.alloc_fragment((64, 128), "float32")
                weight_3 = T.alloc_fragment((2, 64), "float32")
                scale_3 = T.alloc_fragment((64,), "float32")
                logit_3 = T.alloc_fragment((64, 2), "float32")
                begin_3 = T.alloc_fragment((2,), "int32")
                size_3 = T.alloc_fragment((2,), "int32")
                worker = thread - 384
                own = row + 6
                leaf.read_windows(begin_3, size_3, k_start, k_end, own, 2, s, skv, skip_below, worker)
                if turns > 0:
                    T.mbarrier_wait_parity(queries_full[0], 0)
                    leaf.read_weights(weight_3, head_weights, 0, 384, 2, worker)
                for it in T.serial(turns):
                    T.mbarrier_wait_parity(keys_full[it % 4], (it // 4) & 1)
                    # S[keys, heads] = K Q^T
                    T.wgmma_gemm(keys[it % 4, 0 : 64, :], queries[0, 384 : 512, :], acc_3, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                    leaf.read_scales(scale_3, key_scales, it % 4, 0, 2, worker)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(acc_3, num_regs=64)
                    leaf.weigh(logit_3, acc_3, weight_3, 2, worker)
                    leaf.store_window(logits, logit_3, scale_3, begin_3, size_3, own, 2, stride, (first + it) * 128, worker)
                    # S[keys, heads] = K Q^T
                    T.wgmma_gemm(keys[it % 4, 64 : 128, :], queries[0, 384 : 512, :], acc_3, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                    leaf.read_scales(scale_3, key_scales, it % 4, 64, 2, worker)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(acc_3, num_regs=64)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_empty[it % 4])
                    leaf.weigh(logit_3, acc_3, weight_3, 2, worker)
                    leaf.store_window(logits, logit_3, scale_3, begin_3, size_3, own, 2, stride, (first + it) * 128 + 64, worker)
            else:
                # load: key tiles, queries
                T.set_max_nreg(24, 0)
                if thread < 544:
                    query = row * 64
                    if turns > 0:
                        # queries: filled once, so its slot is free
                        T.tma_copy(query_map_rows[query : query + 256, 0 : 128], queries[0, 0 : 256, :], barrier=queries_full[0])
                        T.tma_copy(weight_map_rows[0, query : query + 256], head_weights[0, 0 : 256], barrier=queries_full[0])
                        T.tma_copy(query_map_rows[query + 256 : query + 256 + 256, 0 : 128], queries[0, 256 : 512, :], barrier=queries_full[0])
                        T.tma_copy(weight_map_rows[0, query + 256 : query + 256 + 256], head_weights[0, 256 : 512], barrier=queries_full[0])
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(queries_full[0])
                    for it in T.serial(turns):
                        T.mbarrier_wait_parity(keys_empty[it % 4], ((it // 4) & 1) ^ 1)
                        key = (first + it) * 128
                        T.tma_copy(key_map_rows[key : key + 128, 0 : 128], keys[it % 4, :, :], barrier=keys_full[it % 4])
                        T.tma_copy(scale_map_rows[0, key : key + 128], key_scales[it % 4, :], barrier=keys_full[it % 4])
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(keys_full[it % 4])

    return lightning_indexer__tilelang_sm90a__prefill_h64_q8_t128_st4_c1_e0
