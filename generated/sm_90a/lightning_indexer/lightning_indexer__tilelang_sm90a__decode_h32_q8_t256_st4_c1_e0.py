"""lightning_indexer__tilelang_sm90a__decode_h32_q8_t256_st4_c1_e0

Generated from dsl_kernels/programs/lightning_indexer.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=32, queries=8, tile=256, stages=4, resident=1, evict=0.

roles
  score      threads 0..511, 104 registers  products and epilogue, 64 keys a warpgroup
  load       threads 512..639, 64 registers  block table, key pages, queries
buffers
  keys       4 stages of 256x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 4 stages of 256 float32, shared
  queries    256x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 256 float32, shared
  acc        256x128 float32, registers of score
  weight     4x32 float32, registers of score
  scale      256 float32, registers of score
  logit      256x4 float32, registers of score
  length     4 int32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 4-slot ring]==> score (wgmma)
    full  x1, 33792 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: 1-slot ring]==> score (wgmma)
    full  x1, 33792 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
totals: 640 threads, 169040 of 232448 bytes of shared memory, grid (132)
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
    def lightning_indexer__tilelang_sm90a__decode_h32_q8_t256_st4_c1_e0(
        q: T.Tensor((b, next_n, 32, 128,), "float8_e4m3fn"),
        k_cache: T.Tensor((pages, 8448,), "uint8"),
        weights: T.Tensor((b, next_n, 32,), "float32"),
        seq_lens: T.Tensor((b, next_n,), "int32"),
        block_table: T.Tensor((b, max_pages,), "int32"),
        logits: T.Tensor((b, next_n, stride,), "float32"),
        skip_below: T.int32,
    ):
        with T.Kernel(132, threads=640) as cta:
            query_map_rows = T.view(q, (b * next_n * 32, 128), "float8_e4m3")
            weights_words = T.view(weights, (b * next_n, 32), "float32")
            key_map_rows = T.view(k_cache, (pages * 66, 128), "float8_e4m3")
            k_cache_words = T.view(k_cache, (pages, 2112), "float32")
            keys = T.alloc_shared((4, 256, 128), "float8_e4m3")
            key_scales = T.alloc_shared((4, 256), "float32")
            queries = T.alloc_shared((1, 256, 128), "float8_e4m3")
            head_weights = T.alloc_shared((1, 256), "float32")
            keys_full = T.alloc_barrier([1] * 4)
            keys_empty = T.alloc_barrier([16] * 4)
            queries_full = T.alloc_barrier([1] * 1)
            queries_empty = T.alloc_barrier([16] * 1)

            thread = T.get_thread_binding()
            lane = thread % 32
            seq = T.alloc_var("int32", init=0)
            tile = T.alloc_var("int32", init=0)
            step = T.alloc_var("int32", init=1)
            need = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            turn = T.alloc_var("int32", init=-1)
            fresh = T.alloc_var("bool", init=False)
            leaf.place_when_even(seq, tile, step, b, cta, 132)
            entry = T.alloc_var("int32", init=0)
            ahead = T.alloc_var("int32", init=0)
            if (thread >= 512) & (thread < 544):
                # Garbage past a length: nothing follows an entry before the length is known.
                row = T.min(seq, b - 1)
                leaf.table_entries(entry, block_table, max_pages, row, tile, step, 4, max_pages - 1, lane)
                leaf.table_entries(ahead, block_table, max_pages, row, tile + 8 * step, step, 4, max_pages - 1, lane)
            leaf.keys_to_score(need, seq_lens, b, next_n, skip_below, lane)
            leaf.find_share(seq, tile, need, turns, step, seq_lens, b, next_n, skip_below, 256, cta, 132, lane)
            if thread < 512:
                # score: products and epilogue, 64 keys a warpgroup
                T.set_max_nreg(104, 1)
                acc = T.alloc_fragment((256, 128), "float32")
                weight = T.alloc_fragment((4, 32), "float32")
                scale = T.alloc_fragment((256,), "float32")
                logit = T.alloc_fragment((256, 4), "float32")
                length = T.alloc_fragment((4,), "int32")
                worker = thread
                for it in T.serial(turns):
                    leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, 256)
                    if fresh:
                        if it > 0:
                            T.wait_wgmma(0)
                            T.sync_warp()
                            if T.shuffle_elect(32):
                                T.mbarrier_arrive(queries_empty[0])
                        turn = turn + 1
                        T.mbarrier_wait_parity(queries_full[0], turn & 1)
                    T.mbarrier_wait_parity(keys_full[it % 4], (it // 4) & 1)
                    leaf.read_scales(scale, key_scales, it % 4, 0, 4, worker)
                    for product in T.serial(leaf.ceildiv(next_n, 4)):
                        # S[keys, heads] = K Q^T
                        T.wgmma_gemm(keys[it % 4, :, :], queries[0, product * 128 : product * 128 + 128, :], acc, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                        leaf.read_query_lengths(length, seq_lens, seq, product * 4, 4, next_n, skip_below, worker)
                        T.wait_wgmma(0)
                        T.warpgroup_fence_operand(acc, num_regs=64)
                        leaf.read_weights(weight, head_weights, 0, product * 128, 4, worker)
                        leaf.weigh(logit, acc, weight, 4, worker)
                        leaf.store_logits(logits, logit, scale, length, seq, product * 4, 4, next_n, stride, tile * 256, worker)
                    T.wait_wgmma(0)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(keys_empty[it % 4])
                    tile = tile + step
            else:
                # load: block table, key pages, queries
                T.set_max_nreg(64, 0)
                if thread < 544:
                    held = T.alloc_var("int32", init=0)
                    page = T.alloc_var("int32", init=0)
                    for it in T.serial(turns):
                        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, 256)
                        last = leaf.ceildiv(need, 64) - 1
                        if fresh:
                            turn = turn + 1
                            held = 0
                            if step == 1:
                                leaf.table_entries(entry, block_table, max_pages, seq, tile, 1, 4, last, lane)
                                leaf.table_entries(ahead, block_table, max_pages, seq, tile + 8, 1, 4, last, lane)
                            # The last product of an odd count scores its last query twice.
                            count = leaf.ceildiv(next_n, 4) * 4
                            T.mbarrier_wait_parity(queries_empty[0], (turn & 1) ^ 1)
                            for i in T.serial(count):
                                query = seq * next_n + T.min(i, next_n - 1)
                                T.tma_copy(query_map_rows[query * 32 : query * 32 + 32, 0 : 128], queries[0, i * 32 : i * 32 + 32, :], barrier=queries_full[0])
                                T.tma_copy(weights_words[query, 0:32], head_weights[0, i * 32 : i * 32 + 32], barrier=queries_full[0])
                            if T.shuffle_elect(32):
                                T.mbarrier_arrive(queries_full[0])
                        if held == 8:
                            held = 0
                            entry = ahead
                            leaf.table_entries(ahead, block_table, max_pages, seq, tile + 8 * step, step, 4, last, lane)
                        T.mbarrier_wait_parity(keys_empty[it % 4], ((it // 4) & 1) ^ 1)
                        for p in T.unroll(4):
                            leaf.entry_of(page, entry, held * 4 + T.min(p, last - tile * 4))
                            T.tma_copy(key_map_rows[page * 66 : page * 66 + 64, 0 : 128], keys[it % 4, p * 64 : p * 64 + 64, :], barrier=keys_full[it % 4])
                            T.tma_copy(k_cache_words[page, 2048:2112], key_scales[it % 4, p * 64 : p * 64 + 64], barrier=keys_full[it % 4])
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(keys_full[it % 4])
                        held = held + 1
                        tile = tile + step

    return lightning_indexer__tilelang_sm90a__decode_h32_q8_t256_st4_c1_e0
