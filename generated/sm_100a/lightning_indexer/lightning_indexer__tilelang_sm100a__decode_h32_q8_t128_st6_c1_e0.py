"""lightning_indexer__tilelang_sm100a__decode_h32_q8_t128_st6_c1_e0

Generated from dsl_kernels/programs/lightning_indexer.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=32, queries=8, tile=128, stages=6, resident=1, evict=0.

roles
  score_0    threads 0..127  epilogue of products i with i % 2 == 0
  score_1    threads 128..255  epilogue of products i with i % 2 == 1
  load       threads 256..287  block table, key pages, queries
  mma        threads 288..319  issues every tcgen05.mma and commit
buffers
  keys       6 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 6 stages of 128 float32, shared
  queries    256x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 256 float32, shared
  scores_0   2 stages of 128x128 float32, tensor memory
  scores_1   2 stages of 128x128 float32, tensor memory
  dots_0     128x128 float32, registers of score_0
  weight_0   32 float32, registers of score_0
  scale_0    128 float32, registers of score_0
  logit_0    128 float32, registers of score_0
  dots_1     128x128 float32, registers of score_1
  weight_1   32 float32, registers of score_1
  scale_1    128 float32, registers of score_1
  logit_1    128 float32, registers of score_1
  length_0   8 int32, registers of score_0
  length_1   8 int32, registers of score_1
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
  queries: load (bulk) ==[queries head_weights: 1-slot ring]==> mma (tcgen05), score_0 (threads), score_1 (threads)
    full  x1, 33792 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
      score_1: wait full
    empty x9: load wait empty
      mma: commit -> empty
      score_0: one lane a warp, arrive empty
      score_1: one lane a warp, arrive empty
  scores_0: mma (tcgen05) ==[scores_0: 2-slot ring]==> score_0 (tmem)
    full  x1: mma commit -> full
      score_0: wait full, fence after
    empty x4: mma wait empty, fence after
      score_0: wait::ld, fence before, one lane a warp, arrive empty
  scores_1: mma (tcgen05) ==[scores_1: 2-slot ring]==> score_1 (tmem)
    full  x1: mma commit -> full
      score_1: wait full, fence after
    empty x4: mma wait empty, fence after
      score_1: wait::ld, fence before, one lane a warp, arrive empty
totals: 320 threads, 135344 of 232448 bytes of shared memory, 512 of 512 tensor-memory columns, grid (148)
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
    def lightning_indexer__tilelang_sm100a__decode_h32_q8_t128_st6_c1_e0(
        q: T.Tensor((b, next_n, 32, 128,), "float8_e4m3fn"),
        k_cache: T.Tensor((pages, 8448,), "uint8"),
        weights: T.Tensor((b, next_n, 32,), "float32"),
        seq_lens: T.Tensor((b, next_n,), "int32"),
        block_table: T.Tensor((b, max_pages,), "int32"),
        logits: T.Tensor((b, next_n, stride,), "float32"),
        skip_below: T.int32,
    ):
        with T.Kernel(148, threads=320) as cta:
            query_map_rows = T.view(q, (b * next_n * 32, 128), "float8_e4m3")
            weights_words = T.view(weights, (b * next_n, 32), "float32")
            key_map_rows = T.view(k_cache, (pages * 66, 128), "float8_e4m3")
            k_cache_words = T.view(k_cache, (pages, 2112), "float32")
            keys = T.alloc_shared((6, 128, 128), "float8_e4m3")
            key_scales = T.alloc_shared((6, 128), "float32")
            queries = T.alloc_shared((1, 256, 128), "float8_e4m3")
            head_weights = T.alloc_shared((1, 256), "float32")
            scores_0 = T.alloc_tmem((2, 128, 128), "float32")
            scores_1 = T.alloc_tmem((2, 128, 128), "float32")
            keys_full = T.alloc_barrier([1] * 6)
            keys_empty = T.alloc_barrier([9] * 6)
            queries_full = T.alloc_barrier([1] * 1)
            queries_empty = T.alloc_barrier([9] * 1)
            scores_0_full = T.alloc_barrier([1] * 2)
            scores_0_empty = T.alloc_barrier([4] * 2)
            scores_1_full = T.alloc_barrier([1] * 2)
            scores_1_empty = T.alloc_barrier([4] * 2)

            thread = T.get_thread_binding()
            lane = thread % 32
            seq = T.alloc_var("int32", init=0)
            tile = T.alloc_var("int32", init=0)
            step = T.alloc_var("int32", init=1)
            need = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            turn = T.alloc_var("int32", init=-1)
            fresh = T.alloc_var("bool", init=False)
            leaf.place_when_even(seq, tile, step, b, cta, 148)
            entry = T.alloc_var("int32", init=0)
            ahead = T.alloc_var("int32", init=0)
            if (thread >= 256) & (thread < 288):
                # Garbage past a length: nothing follows an entry before the length is known.
                row = T.min(seq, b - 1)
                leaf.table_entries(entry, block_table, max_pages, row, tile, step, 2, max_pages - 1, lane)
                leaf.table_entries(ahead, block_table, max_pages, row, tile + 16 * step, step, 2, max_pages - 1, lane)
            leaf.keys_to_score(need, seq_lens, b, next_n, skip_below, lane)
            leaf.find_share(seq, tile, need, turns, step, seq_lens, b, next_n, skip_below, 128, cta, 148, lane)
            if thread < 128:
                # score_0: epilogue of products i with i % 2 == 0
                dots_0 = T.alloc_fragment((128, 128), "float32")
                weight_0 = T.alloc_fragment((32,), "float32")
                scale_0 = T.alloc_fragment((128,), "float32")
                logit_0 = T.alloc_fragment((128,), "float32")
                length_0 = T.alloc_local((1,), "int32")
                worker = thread
                use = T.alloc_var("int32", init=0)
                for it in T.serial(turns):
                    leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, 128)
                    if fresh:
                        if it > 0:
                            T.sync_warp()
                            if T.shuffle_elect(32):
                                T.mbarrier_arrive(queries_empty[0])
                        turn = turn + 1
                        T.mbarrier_wait_parity(queries_full[0], turn & 1)
                        leaf_sm100.read_query_lengths(length_0, seq_lens, seq, 0, 8, next_n, skip_below, worker)
                    T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                    leaf.read_scales(scale_0, key_scales, it % 6, 0, 1, worker)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_empty[it % 6])
                    for product in T.serial(0, leaf.ceildiv(next_n, 4), 2):
                        T.mbarrier_wait_parity(scores_0_full[use % 2], (use // 2) & 1)
                        T.tcgen05_after_thread_sync()
                        leaf.read_scores(dots_0, scores_0, use % 2, 0, 32, worker)
                        T.call_extern("handle", "tl::fence_view_async_tmem_load")
                        T.tcgen05_before_thread_sync()
                        T.sync_warp()
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(scores_0_empty[use % 2])
                        use = use + 1
                        leaf.read_weights(weight_0, head_weights, 0, product * 4 * 32, 1, worker)
                        leaf.weigh_one(logit_0, dots_0, 0, weight_0, worker)
                        leaf_sm100.store_query(logits, logit_0, scale_0, length_0, seq, product * 4, next_n, stride, tile * 128, worker)
                        leaf.read_weights(weight_0, head_weights, 0, (product * 4 + 1) * 32, 1, worker)
                        leaf.weigh_one(logit_0, dots_0, 1, weight_0, worker)
                        leaf_sm100.store_query(logits, logit_0, scale_0, length_0, seq, product * 4 + 1, next_n, stride, tile * 128, worker)
                        leaf.read_weights(weight_0, head_weights, 0, (product * 4 + 2) * 32, 1, worker)
                        leaf.weigh_one(logit_0, dots_0, 2, weight_0, worker)
                        leaf_sm100.store_query(logits, logit_0, scale_0, length_0, seq, product * 4 + 2, next_n, stride, tile * 128, worker)
                        leaf.read_weights(weight_0, head_weights, 0, (product * 4 + 3) * 32, 1, worker)
                        leaf.weigh_one(logit_0, dots_0, 3, weight_0, worker)
                        leaf_sm100.store_query(logits, logit_0, scale_0, length_0, seq, product * 4 + 3, next_n, stride, tile * 128, worker)
                    tile = tile + step
            elif thread < 256:
                # score_1: epilogue of products i with i % 2 == 1
                dots_1 = T.alloc_fragment((128, 128), "float32")
                weight_1 = T.alloc_fragment((32,), "float32")
                scale_1 = T.alloc_fragment((128,), "float32")
                logit_1 = T.alloc_fragment((128,), "float32")
                length_1 = T.alloc_local((1,), "int32")
                worker = thread - 128
                use = T.alloc_var("int32", init=0)
                for it in T.serial(turns):
                    leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, 128)
                    if fresh:
                        if it > 0:
                            T.sync_warp()
                            if T.shuffle_elect(32):
                                T.mbarrier_arrive(queries_empty[0])
                        turn = turn + 1
                        T.mbarrier_wait_parity(queries_full[0], turn & 1)
                        leaf_sm100.read_query_lengths(length_1, seq_lens, seq, 0, 8, next_n, skip_below, worker)
                    T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                    leaf.read_scales(scale_1, key_scales, it % 6, 0, 1, worker)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_empty[it % 6])
                    for product in T.serial(1, leaf.ceildiv(next_n, 4), 2):
                        T.mbarrier_wait_parity(scores_1_full[use % 2], (use // 2) & 1)
                        T.tcgen05_after_thread_sync()
                        leaf.read_scores(dots_1, scores_1, use % 2, 0, 32, worker)
                        T.call_extern("handle", "tl::fence_view_async_tmem_load")
                        T.tcgen05_before_thread_sync()
                        T.sync_warp()
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(scores_1_empty[use % 2])
                        use = use + 1
                        leaf.read_weights(weight_1, head_weights, 0, product * 4 * 32, 1, worker)
                        leaf.weigh_one(logit_1, dots_1, 0, weight_1, worker)
                        leaf_sm100.store_query(logits, logit_1, scale_1, length_1, seq, product * 4, next_n, stride, tile * 128, worker)
                        leaf.read_weights(weight_1, head_weights, 0, (product * 4 + 1) * 32, 1, worker)
                        leaf.weigh_one(logit_1, dots_1, 1, weight_1, worker)
                        leaf_sm100.store_query(logits, logit_1, scale_1, length_1, seq, product * 4 + 1, next_n, stride, tile * 128, worker)
                        leaf.read_weights(weight_1, head_weights, 0, (product * 4 + 2) * 32, 1, worker)
                        leaf.weigh_one(logit_1, dots_1, 2, weight_1, worker)
                        leaf_sm100.store_query(logits, logit_1, scale_1, length_1, seq, product * 4 + 2, next_n, stride, tile * 128, worker)
                        leaf.read_weights(weight_1, head_weights, 0, (product * 4 + 3) * 32, 1, worker)
                        leaf.weigh_one(logit_1, dots_1, 3, weight_1, worker)
                        leaf_sm100.store_query(logits, logit_1, scale_1, length_1, seq, product * 4 + 3, next_n, stride, tile * 128, worker)
                    tile = tile + step
            elif thread < 288:
                # load: block table, key pages, queries
                held = T.alloc_var("int32", init=0)
                page = T.alloc_var("int32", init=0)
                for it in T.serial(turns):
                    leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, 128)
                    last = leaf.ceildiv(need, 64) - 1
                    if fresh:
                        turn = turn + 1
                        held = 0
                        if step == 1:
                            leaf.table_entries(entry, block_table, max_pages, seq, tile, 1, 2, last, lane)
                            leaf.table_entries(ahead, block_table, max_pages, seq, tile + 16, 1, 2, last, lane)
                        # The last product of an odd count scores its last query twice.
                        count = leaf.ceildiv(next_n, 4) * 4
                        T.mbarrier_wait_parity(queries_empty[0], (turn & 1) ^ 1)
                        for i in T.serial(count):
                            query = seq * next_n + T.min(i, next_n - 1)
                            T.tma_copy(query_map_rows[query * 32 : query * 32 + 32, 0 : 128], queries[0, i * 32 : i * 32 + 32, :], barrier=queries_full[0])
                            T.tma_copy(weights_words[query, 0:32], head_weights[0, i * 32 : i * 32 + 32], barrier=queries_full[0])
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(queries_full[0])
                    if held == 16:
                        held = 0
                        entry = ahead
                        leaf.table_entries(ahead, block_table, max_pages, seq, tile + 16 * step, step, 2, last, lane)
                    T.mbarrier_wait_parity(keys_empty[it % 6], ((it // 6) & 1) ^ 1)
                    for p in T.unroll(2):
                        leaf.entry_of(page, entry, held * 2 + T.min(p, last - tile * 2))
                        T.tma_copy(key_map_rows[page * 66 : page * 66 + 64, 0 : 128], keys[it % 6, p * 64 : p * 64 + 64, :], barrier=keys_full[it % 6])
                        T.tma_copy(k_cache_words[page, 2048:2112], key_scales[it % 6, p * 64 : p * 64 + 64], barrier=keys_full[it % 6])
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_full[it % 6])
                    held = held + 1
                    tile = tile + step
            else:
                # mma: issues every tcgen05.mma and commit
                fill_0 = T.alloc_var("int32", init=0)
                fill_1 = T.alloc_var("int32", init=0)
                for it in T.serial(turns):
                    leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, 128)
                    if fresh:
                        if it > 0:
                            T.tcgen05_mma_arrive(queries_empty[0])
                        turn = turn + 1
                        T.mbarrier_wait_parity(queries_full[0], turn & 1)
                        T.tcgen05_after_thread_sync()
                    T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                    T.tcgen05_after_thread_sync()
                    products = leaf.ceildiv(next_n, 4)
                    for i in T.serial(0, products, 2):
                        if i < products:
                            T.mbarrier_wait_parity(scores_0_empty[fill_0 % 2], ((fill_0 // 2) & 1) ^ 1)
                            T.tcgen05_after_thread_sync()
                            # S[keys, heads] = K Q^T
                            T.tcgen05_gemm(keys[it % 6, :, :], queries[0, i * 128 : i * 128 + 128, :], scores_0[fill_0 % 2, :, :], transpose_B=True, clear_accum=True, mbar=None)
                            T.tcgen05_mma_arrive(scores_0_full[fill_0 % 2])
                            fill_0 = fill_0 + 1
                        if i + 1 < products:
                            T.mbarrier_wait_parity(scores_1_empty[fill_1 % 2], ((fill_1 // 2) & 1) ^ 1)
                            T.tcgen05_after_thread_sync()
                            # S[keys, heads] = K Q^T
                            T.tcgen05_gemm(keys[it % 6, :, :], queries[0, (i + 1) * 128 : (i + 1) * 128 + 128, :], scores_1[fill_1 % 2, :, :], transpose_B=True, clear_accum=True, mbar=None)
                            T.tcgen05_mma_arrive(scores_1_full[fill_1 % 2])
                            fill_1 = fill_1 + 1
                    T.tcgen05_mma_arrive(keys_empty[it % 6])
                    tile = tile + step
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return lightning_indexer__tilelang_sm100a__decode_h32_q8_t128_st6_c1_e0
