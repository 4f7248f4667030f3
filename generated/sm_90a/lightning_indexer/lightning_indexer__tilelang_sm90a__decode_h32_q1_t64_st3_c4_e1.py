"""lightning_indexer__tilelang_sm90a__decode_h32_q1_t64_st3_c4_e1

Generated from dsl_kernels/programs/lightning_indexer.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=32, queries=1, tile=64, stages=3, resident=4, evict=1.

roles
  score      threads 0..127  products and epilogue, 64 keys a warpgroup
  load       threads 128..159  block table, key pages, queries
buffers
  keys       3 stages of 64x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 3 stages of 64 float32, shared
  queries    2 stages of 32x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 2 stages of 32 float32, shared
  acc        64x32 float32, registers of score
  weight     1x32 float32, registers of score
  scale      64 float32, registers of score
  logit      64x1 float32, registers of score
  length     1 int32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 3-slot ring]==> score (wgmma)
    full  x1, 8448 bytes: load arrive + expect bytes
      score: wait full
    empty x4: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: 2-slot ring]==> score (wgmma)
    full  x1, 4224 bytes: load arrive + expect bytes
      score: wait full
    empty x4: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
totals: 160 threads, 33872 of 232448 bytes of shared memory, grid (528)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import grid
from dsl_kernels.device.tilelang import lightning_indexer as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS


def program():
    b = T.dynamic("b")
    next_n = T.dynamic("next_n")
    pages = T.dynamic("pages")
    max_pages = T.dynamic("max_pages")
    stride = T.dynamic("stride")

    @T.prim_func
    def lightning_indexer__tilelang_sm90a__decode_h32_q1_t64_st3_c4_e1(
        q: T.Tensor((b, next_n, 32, 128,), "float8_e4m3fn"),
        k_cache: T.Tensor((pages, 8448,), "uint8"),
        weights: T.Tensor((b, next_n, 32,), "float32"),
        seq_lens: T.Tensor((b, next_n,), "int32"),
        block_table: T.Tensor((b, max_pages,), "int32"),
        logits: T.Tensor((b, next_n, stride,), "float32"),
        skip_below: T.int32,
    ):
        with T.Kernel(528, threads=160) as cta:
            T.annotate_min_blocks_per_sm(4)
            query_map_rows = T.view(q, (b * next_n * 32, 128), "float8_e4m3")
            weights_words = T.view(weights, (b * next_n, 32), "float32")
            key_map_rows = T.view(k_cache, (pages * 66, 128), "float8_e4m3")
            k_cache_words = T.view(k_cache, (pages, 2112), "float32")
            keys = T.alloc_shared((3, 64, 128), "float8_e4m3")
            key_scales = T.alloc_shared((3, 64), "float32")
            queries = T.alloc_shared((2, 32, 128), "float8_e4m3")
            head_weights = T.alloc_shared((2, 32), "float32")
            keys_full = T.alloc_barrier([1] * 3)
            keys_empty = T.alloc_barrier([4] * 3)
            queries_full = T.alloc_barrier([1] * 2)
            queries_empty = T.alloc_barrier([4] * 2)

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
            leaf.place_when_even(seq, tile, step, b, cta, 528)
            entry = T.alloc_var("int32", init=0)
            ahead = T.alloc_var("int32", init=0)
            if (thread >= 128) & (thread < 160):
                # Garbage past a length: nothing follows an entry before the length is known.
                row = T.min(seq, b - 1)
                leaf.table_entries(entry, block_table, max_pages, row, tile, step, 1, max_pages - 1, lane)
                leaf.table_entries(ahead, block_table, max_pages, row, tile + 32 * step, step, 1, max_pages - 1, lane)
            leaf.lengths_to_score(need, early_length, b, skip_below, lane)
            leaf.find_share(seq, tile, need, turns, step, seq_lens, b, 1, skip_below, 64, cta, 528, lane)
            if thread < 128:
                # score: products and epilogue, 64 keys a warpgroup
                acc = T.alloc_fragment((64, 32), "float32")
                weight = T.alloc_fragment((1, 32), "float32")
                scale = T.alloc_fragment((64,), "float32")
                logit = T.alloc_fragment((64, 1), "float32")
                length = T.alloc_fragment((1,), "int32")
                worker = thread
                for it in T.serial(turns):
                    leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, 64)
                    if fresh:
                        if it > 0:
                            T.wait_wgmma(0)
                            T.sync_warp()
                            if T.shuffle_elect(32):
                                T.mbarrier_arrive(queries_empty[turn % 2])
                        turn = turn + 1
                        T.mbarrier_wait_parity(queries_full[turn % 2], (turn // 2) & 1)
                        leaf.read_weights(weight, head_weights, turn % 2, 0, 1, worker)
                    T.mbarrier_wait_parity(keys_full[it % 3], (it // 3) & 1)
                    # S[keys, heads] = K Q^T
                    T.wgmma_gemm(keys[it % 3, :, :], queries[turn % 2, :, :], acc, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                    leaf.read_scales(scale, key_scales, it % 3, 0, 1, worker)
                    T.wait_wgmma(0)
                    T.warpgroup_fence_operand(acc, num_regs=16)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_empty[it % 3])
                    leaf.weigh(logit, acc, weight, 1, worker)
                    leaf.one_length(length, need)
                    leaf.store_logits(logits, logit, scale, length, seq, 0, 1, 1, stride, tile * 64, worker)
                    tile = tile + step
            else:
                # load: block table, key pages, queries
                held = T.alloc_var("int32", init=0)
                page = T.alloc_var("int32", init=0)
                for it in T.serial(turns):
                    leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, 64)
                    last = leaf.ceildiv(need, 64) - 1
                    if fresh:
                        turn = turn + 1
                        held = 0
                        if step == 1:
                            leaf.table_entries(entry, block_table, max_pages, seq, tile, 1, 1, last, lane)
                            leaf.table_entries(ahead, block_table, max_pages, seq, tile + 32, 1, 1, last, lane)
                        T.mbarrier_wait_parity(queries_empty[turn % 2], ((turn // 2) & 1) ^ 1)
                        for i in T.serial(1):
                            T.tma_copy(query_map_rows[seq * 32 : seq * 32 + 32, 0 : 128], queries[turn % 2, :, :], barrier=queries_full[turn % 2])
                            T.tma_copy(weights_words[seq, 0:32], head_weights[turn % 2, :], barrier=queries_full[turn % 2])
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(queries_full[turn % 2])
                    if held == 32:
                        held = 0
                        entry = ahead
                        leaf.table_entries(ahead, block_table, max_pages, seq, tile + 32 * step, step, 1, last, lane)
                    T.mbarrier_wait_parity(keys_empty[it % 3], ((it // 3) & 1) ^ 1)
                    for p in T.unroll(1):
                        leaf.entry_of(page, entry, held + T.min(p, last - tile))
                        T.tma_copy(key_map_rows[page * 66 : page * 66 + 64, 0 : 128], keys[it % 3, :, :], barrier=keys_full[it % 3], eviction_policy="evict_first")
                        T.tma_copy(k_cache_words[page, 2048:2112], key_scales[it % 3, :], barrier=keys_full[it % 3])
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_full[it % 3])
                    held = held + 1
                    tile = tile + step

    return lightning_indexer__tilelang_sm90a__decode_h32_q1_t64_st3_c4_e1
