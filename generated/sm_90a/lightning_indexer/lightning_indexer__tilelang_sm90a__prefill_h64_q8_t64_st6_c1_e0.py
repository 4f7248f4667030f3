"""lightning_indexer__tilelang_sm90a__prefill_h64_q8_t64_st6_c1_e0

Generated from templates/tilelang/lightning_indexer.sm_90a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/lightning_indexer.py, not this file. Knobs: mode=prefill, heads=64, queries=8, tile=64, stages=6, resident=1, evict=0.

roles
  score_0    threads 0..127, 112 registers  rows 0..1
  score_1    threads 128..255, 112 registers  rows 2..3
  score_2    threads 256..383, 112 registers  rows 4..5
  score_3    threads 384..511, 112 registers  rows 6..7
  load       threads 512..639, 24 registers  key tiles, queries (one warp works)
buffers
  keys       6 stages of 64x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 6 stages of 64 float32, shared
  queries    512x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 512 float32, shared
  acc_0      64x128 float32, registers of score_0
  acc_1      64x128 float32, registers of score_1
  acc_2      64x128 float32, registers of score_2
  acc_3      64x128 float32, registers of score_3
pipelines
  keys: load (bulk) ==[keys key_scales: 6-slot ring]==> score_0 (wgmma), score_1 (wgmma), score_2 (wgmma), score_3 (wgmma)
    full  x1, 8448 bytes: load arrive + expect bytes
      score_0: wait full
      score_1: wait full
      score_2: wait full
      score_3: wait full
    empty x16: load wait empty
      score_0: wgmma wait, one lane a warp, arrive empty
      score_1: wgmma wait, one lane a warp, arrive empty
      score_2: wgmma wait, one lane a warp, arrive empty
      score_3: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: once]==> score_0 (wgmma), score_1 (wgmma), score_2 (wgmma), score_3 (wgmma)
    full  x1, 67584 bytes: load arrive + expect bytes
      score_0: wait full
      score_1: wait full
      score_2: wait full
      score_3: wait full
totals: 640 threads, 118376 of 232448 bytes of shared memory, grid (ceildiv(s, 8), splits)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import lightning_indexer as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS


def program():
    s = T.dynamic("s")
    skv = T.dynamic("skv")
    stride = T.dynamic("stride")

    @T.prim_func
    def lightning_indexer__tilelang_sm90a__prefill_h64_q8_t64_st6_c1_e0(
        q: T.Tensor((s, 64, 128), "float8_e4m3fn"),
        k: T.Tensor((skv, 128), "float8_e4m3fn"),
        k_scales: T.Tensor((skv,), "float32"),
        weights: T.Tensor((s, 64), "float32"),
        k_start: T.Tensor((s,), "int32"),
        k_end: T.Tensor((s,), "int32"),
        logits: T.Tensor((s, stride), "float32"),
        skip_below: T.int32,
        splits: T.int32,
    ):
        with T.Kernel(T.ceildiv(s, 8), splits, threads=640) as (block, split):
            q_rows = T.view(q, (s * 64, 128))
            scale_row = T.view(k_scales, (1, skv), strides=(leaf.ONE_ROW, 1))
            keys = T.alloc_shared((6, 64, 128), "float8_e4m3fn")
            key_scales = T.alloc_shared((6, 64), "float32")
            queries = T.alloc_shared((1, 512, 128), "float8_e4m3fn")
            head_weights = T.alloc_shared((1, 512), "float32")
            block_weights = T.view(head_weights, (8, 64))
            keys_full = T.alloc_barrier([1] * 6)
            keys_empty = T.alloc_barrier([16] * 6)
            queries_full = T.alloc_barrier([1] * 1)

            thread = T.get_thread_binding()
            row = T.alloc_var("int32", init=0)
            first = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            # Later rows see more keys in a causal prefill: the longest blocks start first.
            row = (T.ceildiv(s, 8) - 1 - block) * 8
            leaf.find_tiles(first, turns, k_start, k_end, row, 8, s, skv, skip_below, 64, split, splits)
            if turns > 0:
                if thread >= 512:
                    T.set_max_nreg(24, 0)
                    if thread < 544:
                        T.tma_copy(q_rows[row * 64 + 0 : row * 64 + 256, :], queries[0, 0:256, :], barrier=queries_full[0])
                        T.tma_copy(q_rows[row * 64 + 256 : row * 64 + 512, :], queries[0, 256:512, :], barrier=queries_full[0])
                        T.tma_copy(weights[row : row + 8, :], block_weights, barrier=queries_full[0])
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(queries_full[0])
                        for it in T.serial(turns):
                            T.mbarrier_wait_parity(keys_empty[it % 6], ((it // 6) & 1) ^ 1)
                            T.tma_copy(
                                k[(first + it) * 64 : (first + it) * 64 + 64, 0:128],
                                keys[it % 6, :, :],
                                barrier=keys_full[it % 6],
                            )
                            T.tma_copy(
                                scale_row[0, (first + it) * 64 : (first + it) * 64 + 64],
                                key_scales[it % 6, :],
                                barrier=keys_full[it % 6],
                            )
                            if T.shuffle_elect(32):
                                T.mbarrier_arrive(keys_full[it % 6])
                elif thread < 128:
                    T.set_max_nreg(112, 1)
                    acc_0 = T.alloc_fragment((64, 128), "float32")
                    dots_0 = T.reshape(acc_0, (64, 2, 64))
                    weight_row_0 = T.alloc_fragment((128,), "float32")
                    weight_0 = T.reshape(weight_row_0, (2, 64))
                    scale_0 = T.alloc_fragment((64,), "float32")
                    begin_0 = T.alloc_fragment((2,), "int32")
                    end_0 = T.alloc_fragment((2,), "int32")
                    partial_0 = T.alloc_reducer((64, 2), "float32", op="sum")
                    logit_0 = T.alloc_fragment((64, 2), "float32")
                    for j in T.Parallel(2):
                        begin_0[j] = leaf.window_begin(k_start, row + 0 + j, s)
                        end_0[j] = leaf.window_end(k_start, k_end, row + 0 + j, s, skv, skip_below)
                    T.mbarrier_wait_parity(queries_full[0], 0)
                    T.copy(head_weights[0, 0:128], weight_row_0)
                    for it in T.serial(turns):
                        T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                        T.wgmma_gemm(
                            keys[it % 6, :, :],
                            queries[0, 0:128, :],
                            acc_0,
                            transpose_B=True,
                            policy=T.GemmWarpPolicy.FullRow,
                            clear_accum=True,
                        )
                        T.copy(key_scales[it % 6, :], scale_0)
                        T.wait_wgmma(0)
                        T.sync_warp()
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(keys_empty[it % 6])
                        T.warpgroup_fence_operand(acc_0, num_regs=64)
                        T.reducer_init(partial_0)
                        for r, j, h in T.Parallel(64, 2, 64):
                            T.reducer_update(partial_0[r, j], leaf.weighted_relu(dots_0[r, j, h], weight_0[j, h]))
                        T.finalize_reducer(partial_0, logit_0)
                        for r, j in T.Parallel(64, 2):
                            key = (first + it) * 64 + r
                            if (key >= begin_0[j]) & (key < end_0[j]):
                                logits[row + 0 + j, key] = logit_0[r, j] * scale_0[r]
                elif thread < 256:
                    T.set_max_nreg(112, 1)
                    acc_1 = T.alloc_fragment((64, 128), "float32")
                    dots_1 = T.reshape(acc_1, (64, 2, 64))
                    weight_row_1 = T.alloc_fragment((128,), "float32")
                    weight_1 = T.reshape(weight_row_1, (2, 64))
                    scale_1 = T.alloc_fragment((64,), "float32")
                    begin_1 = T.alloc_fragment((2,), "int32")
                    end_1 = T.alloc_fragment((2,), "int32")
                    partial_1 = T.alloc_reducer((64, 2), "float32", op="sum")
                    logit_1 = T.alloc_fragment((64, 2), "float32")
                    for j in T.Parallel(2):
                        begin_1[j] = leaf.window_begin(k_start, row + 2 + j, s)
                        end_1[j] = leaf.window_end(k_start, k_end, row + 2 + j, s, skv, skip_below)
                    T.mbarrier_wait_parity(queries_full[0], 0)
                    T.copy(head_weights[0, 128:256], weight_row_1)
                    for it in T.serial(turns):
                        T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                        T.wgmma_gemm(
                            keys[it % 6, :, :],
                            queries[0, 128:256, :],
                            acc_1,
                            transpose_B=True,
                            policy=T.GemmWarpPolicy.FullRow,
                            clear_accum=True,
                        )
                        T.copy(key_scales[it % 6, :], scale_1)
                        T.wait_wgmma(0)
                        T.sync_warp()
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(keys_empty[it % 6])
                        T.warpgroup_fence_operand(acc_1, num_regs=64)
                        T.reducer_init(partial_1)
                        for r, j, h in T.Parallel(64, 2, 64):
                            T.reducer_update(partial_1[r, j], leaf.weighted_relu(dots_1[r, j, h], weight_1[j, h]))
                        T.finalize_reducer(partial_1, logit_1)
                        for r, j in T.Parallel(64, 2):
                            key = (first + it) * 64 + r
                            if (key >= begin_1[j]) & (key < end_1[j]):
                                logits[row + 2 + j, key] = logit_1[r, j] * scale_1[r]
                elif thread < 384:
                    T.set_max_nreg(112, 1)
                    acc_2 = T.alloc_fragment((64, 128), "float32")
                    dots_2 = T.reshape(acc_2, (64, 2, 64))
                    weight_row_2 = T.alloc_fragment((128,), "float32")
                    weight_2 = T.reshape(weight_row_2, (2, 64))
                    scale_2 = T.alloc_fragment((64,), "float32")
                    begin_2 = T.alloc_fragment((2,), "int32")
                    end_2 = T.alloc_fragment((2,), "int32")
                    partial_2 = T.alloc_reducer((64, 2), "float32", op="sum")
                    logit_2 = T.alloc_fragment((64, 2), "float32")
                    for j in T.Parallel(2):
                        begin_2[j] = leaf.window_begin(k_start, row + 4 + j, s)
                        end_2[j] = leaf.window_end(k_start, k_end, row + 4 + j, s, skv, skip_below)
                    T.mbarrier_wait_parity(queries_full[0], 0)
                    T.copy(head_weights[0, 256:384], weight_row_2)
                    for it in T.serial(turns):
                        T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                        T.wgmma_gemm(
                            keys[it % 6, :, :],
                            queries[0, 256:384, :],
                            acc_2,
                            transpose_B=True,
                            policy=T.GemmWarpPolicy.FullRow,
                            clear_accum=True,
                        )
                        T.copy(key_scales[it % 6, :], scale_2)
                        T.wait_wgmma(0)
                        T.sync_warp()
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(keys_empty[it % 6])
                        T.warpgroup_fence_operand(acc_2, num_regs=64)
                        T.reducer_init(partial_2)
                        for r, j, h in T.Parallel(64, 2, 64):
                            T.reducer_update(partial_2[r, j], leaf.weighted_relu(dots_2[r, j, h], weight_2[j, h]))
                        T.finalize_reducer(partial_2, logit_2)
                        for r, j in T.Parallel(64, 2):
                            key = (first + it) * 64 + r
                            if (key >= begin_2[j]) & (key < end_2[j]):
                                logits[row + 4 + j, key] = logit_2[r, j] * scale_2[r]
                else:
                    T.set_max_nreg(112, 1)
                    acc_3 = T.alloc_fragment((64, 128), "float32")
                    dots_3 = T.reshape(acc_3, (64, 2, 64))
                    weight_row_3 = T.alloc_fragment((128,), "float32")
                    weight_3 = T.reshape(weight_row_3, (2, 64))
                    scale_3 = T.alloc_fragment((64,), "float32")
                    begin_3 = T.alloc_fragment((2,), "int32")
                    end_3 = T.alloc_fragment((2,), "int32")
                    partial_3 = T.alloc_reducer((64, 2), "float32", op="sum")
                    logit_3 = T.alloc_fragment((64, 2), "float32")
                    for j in T.Parallel(2):
                        begin_3[j] = leaf.window_begin(k_start, row + 6 + j, s)
                        end_3[j] = leaf.window_end(k_start, k_end, row + 6 + j, s, skv, skip_below)
                    T.mbarrier_wait_parity(queries_full[0], 0)
                    T.copy(head_weights[0, 384:512], weight_row_3)
                    for it in T.serial(turns):
                        T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                        T.wgmma_gemm(
                            keys[it % 6, :, :],
                            queries[0, 384:512, :],
                            acc_3,
                            transpose_B=True,
                            policy=T.GemmWarpPolicy.FullRow,
                            clear_accum=True,
                        )
                        T.copy(key_scales[it % 6, :], scale_3)
                        T.wait_wgmma(0)
                        T.sync_warp()
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(keys_empty[it % 6])
                        T.warpgroup_fence_operand(acc_3, num_regs=64)
                        T.reducer_init(partial_3)
                        for r, j, h in T.Parallel(64, 2, 64):
                            T.reducer_update(partial_3[r, j], leaf.weighted_relu(dots_3[r, j, h], weight_3[j, h]))
                        T.finalize_reducer(partial_3, logit_3)
                        for r, j in T.Parallel(64, 2):
                            key = (first + it) * 64 + r
                            if (key >= begin_3[j]) & (key < end_3[j]):
                                logits[row + 6 + j, key] = logit_3[r, j] * scale_3[r]

    return lightning_indexer__tilelang_sm90a__prefill_h64_q8_t64_st6_c1_e0
