"""lightning_indexer__tilelang_sm100a__decode_h32_q1_t128_st8_c1_e0

Generated from dsl_kernels/programs/lightning_indexer.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=32, queries=1, tile=128, stages=8, resident=1, evict=0.

roles
  score_0    threads 0..127  epilogue of products i with i % 1 == 0
  load       threads 128..159  block table, key pages, queries
  mma        threads 160..191  issues every tcgen05.mma and commit
buffers
  keys       8 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 8 stages of 128 float32, shared
  queries    2 stages of 32x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 2 stages of 32 float32, shared
  scores_0   4 stages of 128x32 float32, tensor memory
  dots_0     128x32 float32, registers of score_0
  weight_0   32 float32, registers of score_0
  scale_0    128 float32, registers of score_0
  logit_0    128 float32, registers of score_0
  length_0   1 int32, registers of score_0
pipelines
  keys: load (bulk) ==[keys key_scales: 8-slot ring]==> mma (tcgen05), score_0 (threads)
    full  x1, 16896 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
    empty x5: load wait empty
      mma: commit -> empty
      score_0: one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: 2-slot ring]==> mma (tcgen05), score_0 (threads)
    full  x1, 4224 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
    empty x5: load wait empty
      mma: commit -> empty
      score_0: one lane a warp, arrive empty
  scores_0: mma (tcgen05) ==[scores_0: 4-slot ring]==> score_0 (tmem)
    full  x1: mma commit -> full
      score_0: wait full, fence after
    empty x4: mma wait empty, fence after
      score_0: wait::ld, fence before, one lane a warp, arrive empty
totals: 192 threads, 143840 of 232448 bytes of shared memory, 128 of 512 tensor-memory columns, grid (148)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import grid
from dsl_kernels.device.tilelang import lightning_indexer_sm100 as leaf_sm100
from dsl_kernels.device.tilelang import lightning_indexer as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS


def program():
    b = T.dynamic("b")
    next_n = T.dynamic("next_n")
    pages = T.dynamic("pages")
    max_pages = T.dynamic("max_pages")
    stride = T.dynamic("stride")

    @T.prim_func
    def lightning_indexer__tilelang_sm100a__decode_h32_q1_t128_st8_c1_e0(
        q: T.Tensor((b, next_n, 32, 128,), "float8_e4m3fn"),
        k_cache: T.Tensor((pages, 8448,), "uint8"),
        weights: T.Tensor((b, next_n, 32,), "float32"),
        seq_lens: T.Tensor((b, next_n,), "int32"),
        block_table: T.Tensor((b, max_pages,), "int32"),
        logits: T.Tensor((b, next_n, stride,), "float32"),
        skip_below: T.int32,
    ):
        with T.Kernel(148, threads=192) as cta:
            query_map_rows = T.view(q, (b * next_n * 32, 128), "float8_e4m3")
            weights_words = T.view(weights, (b * next_n, 32), "float32")
            key_map_rows = T.view(k_cache, (pages * 66, 128), "float8_e4m3")
            k_cache_words = T.view(k_cache, (pages, 2112), "float32")
            keys = T.alloc_shared((8, 128, 128), "float8_e4m3")
            key_scales = T.alloc_shared((8, 128), "float32")
            queries = T.alloc_shared((2, 32, 128), "float8_e4m3")
            head_weights = T.alloc_shared((2, 32), "float32")
            scores_0 = T.alloc_tmem((4, 128, 32), "float32")
            keys_full = T.alloc_barrier([1] * 8)
            keys_empty = T.alloc_barrier([5] * 8)
            queries_full = T.alloc_barrier([1] * 2)
            queries_empty = T.alloc_barrier([5] * 2)
            scores_0_full = T.alloc_barrier([1] * 4)
            scores_0_empty = T.alloc_barrier([4] * 4)

            thread = T.get_thread_binding()
            lane = thread % 32
            seq = T.alloc_var("int32", init=0)
            tile = T.alloc_var("int32", init=0)
            step = T.alloc_var("int32", init=1)
            need = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            turn = T.alloc_var("int32", init=-1)
            fresh = T.alloc_var("bool", init=False)
            early_length = T.alloc_var("int32", init=0)
            leaf.read_lengths(early_length, seq_lens, b, lane)
            leaf.place_when_even(seq, tile, step, b, cta, 148)
            entry = T.alloc_var("int32", init=0)
            ahead = T.alloc_var("int32", init=0)
            if (thread >= 128) & (thread < 160):
                # Garbage past a length: nothing follows an entry before the length is known.
                row = T.min(seq, b - 1)
                leaf.table_entries(entry, block_table, max_pages, row, tile, step, 2, max_pages - 1, lane)
                leaf.table_entries(ahead, block_table, max_pages, row, tile + 16 * step, step, 2, max_pages - 1, lane)
            leaf.lengths_to_score(need, early_length, b, skip_below, lane)
            leaf.find_share(seq, tile, need, turns, step, seq_lens, b, 1, skip_below, 128, cta, 148, lane)
            if thread < 128:
                # score_0: epilogue of products i with i % 1 == 0
                dots_0 = T.alloc_fragment((128, 32), "float32")
                weight_0 = T.alloc_fragment((32,), "float32")
                scale_0 = T.alloc_fragment((128,), "float32")
                logit_0 = T.alloc_fragment((128,), "float32")
                length_0 = T.alloc_local((1,), "int32")
                worker = thread
                use = T.alloc_var("int32", init=0)
                for it in T.serial(turns):
                    leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, 128)
                    if fresh:
                        if it > 0:
                            T.sync_warp()
                            if T.shuffle_elect(32):
                                T.mbarrier_arrive(queries_empty[turn % 2])
                        turn = turn + 1
                        T.mbarrier_wait_parity(queries_full[turn % 2], (turn // 2) & 1)
                        leaf.read_weights(weight_0, head_weights, turn % 2, 0, 1, worker)
                        leaf_sm100.read_query_lengths(length_0, seq_lens, seq, 0, 1, next_n, skip_below, worker)
                    T.mbarrier_wait_parity(keys_full[it % 8], (it // 8) & 1)
                    leaf.read_scales(scale_0, key_scales, it % 8, 0, 1, worker)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_empty[it % 8])
                    for product in T.serial(1):
                        T.mbarrier_wait_parity(scores_0_full[use % 4], (use // 4) & 1)
                        T.tcgen05_after_thread_sync()
                        leaf.read_scores(dots_0, scores_0, use % 4, 0, 32, worker)
                        T.call_extern("handle", "tl::fence_view_async_tmem_load")
                        T.tcgen05_before_thread_sync()
                        T.sync_warp()
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(scores_0_empty[use % 4])
                        use = use + 1
                        leaf.weigh_one(logit_0, dots_0, 0, weight_0, worker)
                        leaf_sm100.store_query(logits, logit_0, scale_0, length_0, seq, product, next_n, stride, tile * 128, worker)
                    tile = tile + step
            elif thread < 160:
                # load: block table, key pages, queries
                held = T.alloc_var("int32", init=0)
                page = T.alloc_var("int32", init=0)
                for it in T.serial(turns):
                    leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, 128)
                    last = leaf.ceildiv(need, 64) - 1
                    if fresh:
                        turn = turn + 1
                        held = 0
                        if step == 1:
                            leaf.table_entries(entry, block_table, max_pages, seq, tile, 1, 2, last, lane)
                            leaf.table_entries(ahead, block_table, max_pages, seq, tile + 16, 1, 2, last, lane)
                        T.mbarrier_wait_parity(queries_empty[turn % 2], ((turn // 2) & 1) ^ 1)
                        for i in T.serial(1):
                            T.tma_copy(query_map_rows[seq * 32 : seq * 32 + 32, 0 : 128], queries[turn % 2, :, :], barrier=queries_full[turn % 2])
                            T.tma_copy(weights_words[seq, 0:32], head_weights[turn % 2, :], barrier=queries_full[turn % 2])
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(queries_full[turn % 2])
                    if held == 16:
                        held = 0
                        entry = ahead
                        leaf.table_entries(ahead, block_table, max_pages, seq, tile + 16 * step, step, 2, last, lane)
                    T.mbarrier_wait_parity(keys_empty[it % 8], ((it // 8) & 1) ^ 1)
                    for p in T.unroll(2):
                        leaf.entry_of(page, entry, held * 2 + T.min(p, last - tile * 2))
                        T.tma_copy(key_map_rows[page * 66 : page * 66 + 64, 0 : 128], keys[it % 8, p * 64 : p * 64 + 64, :], barrier=keys_full[it % 8])
                        T.tma_copy(k_cache_words[page, 2048:2112], key_scales[it % 8, p * 64 : p * 64 + 64], barrier=keys_full[it % 8])
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_full[it % 8])
                    held = held + 1
                    tile = tile + step
            else:
                # mma: issues every tcgen05.mma and commit
                fill_0 = T.alloc_var("int32", init=0)
                for it in T.serial(turns):
                    leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, 128)
                    if fresh:
                        if it > 0:
                            T.tcgen05_mma_arrive(queries_empty[turn % 2])
                        turn = turn + 1
                        T.mbarrier_wait_parity(queries_full[turn % 2], (turn // 2) & 1)
                        T.tcgen05_after_thread_sync()
                    T.mbarrier_wait_parity(keys_full[it % 8], (it // 8) & 1)
                    T.tcgen05_after_thread_sync()
                    T.mbarrier_wait_parity(scores_0_empty[fill_0 % 4], ((fill_0 // 4) & 1) ^ 1)
                    T.tcgen05_after_thread_sync()
                    # S[keys, heads] = K Q^T
                    T.tcgen05_gemm(keys[it % 8, :, :], queries[turn % 2, :, :], scores_0[fill_0 % 4, :, :], transpose_B=True, clear_accum=True, mbar=None)
                    T.tcgen05_mma_arrive(scores_0_full[fill_0 % 4])
                    fill_0 = fill_0 + 1
                    T.tcgen05_mma_arrive(keys_empty[it % 8])
                    tile = tile + step
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return lightning_indexer__tilelang_sm100a__decode_h32_q1_t128_st8_c1_e0
