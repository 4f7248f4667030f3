"""lightning_indexer__tilelang_sm100a__decode_h64_q8_t128_st6_c1_e0

Generated from templates/tilelang/lightning_indexer.sm_100a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/lightning_indexer.py, not this file. Knobs: mode=decode, heads=64, queries=8, tile=128, stages=6, resident=1, evict=0.

roles
  score_0    threads 0..127  epilogue of products i with i % 2 == 0
  score_1    threads 128..255  epilogue of products i with i % 2 == 1
  load       threads 256..287  block table, key pages, queries
  mma        threads 288..319  issues every tcgen05.mma and commit
buffers
  keys       6 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 6 stages of 128 float32, shared
  queries    512x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 512 float32, shared
  scores_0   2 stages of 128x128 float32, tensor memory
  scores_1   2 stages of 128x128 float32, tensor memory
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
    full  x1, 67584 bytes: load arrive + expect bytes
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
totals: 320 threads, 169136 of 232448 bytes of shared memory, 512 of 512 tensor-memory columns, grid (148)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import lightning_indexer as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS


def program():
    b = T.dynamic("b")
    next_n = T.dynamic("next_n")
    pages = T.dynamic("pages")
    max_pages = T.dynamic("max_pages")
    stride = T.dynamic("stride")

    @T.prim_func
    def lightning_indexer__tilelang_sm100a__decode_h64_q8_t128_st6_c1_e0(
        q: T.Tensor((b, next_n, 64, 128), "float8_e4m3fn"),
        k_cache: T.Tensor((pages, 8448), "uint8"),
        weights: T.Tensor((b, next_n, 64), "float32"),
        seq_lens: T.Tensor((b, next_n), "int32"),
        block_table: T.Tensor((b, max_pages), "int32"),
        logits: T.Tensor((b, next_n, stride), "float32"),
        skip_below: T.int32,
    ):
        with T.Kernel(148, threads=320) as cta:
            page_rows = T.view(k_cache, (pages, 66, 128), "float8_e4m3fn")
            page_words = T.view(k_cache, (pages, 2112), "float32")
            keys = T.alloc_shared((6, 128, 128), "float8_e4m3fn")
            key_scales = T.alloc_shared((6, 128), "float32")
            queries = T.alloc_shared((1, 512, 128), "float8_e4m3fn")
            head_weights = T.alloc_shared((1, 512), "float32")
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
            need = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            fresh = T.alloc_var("bool", init=False)
            turn = T.alloc_var("int32", init=-1)
            leaf.find_share(seq, tile, need, turns, seq_lens, b, next_n, skip_below, 128, cta, 148)
            if turns > 0:
                if thread < 128:
                    dots_0 = T.alloc_fragment((128, 64), "float32")
                    weight_0 = T.alloc_fragment((64,), "float32")
                    scale_0 = T.alloc_fragment((128,), "float32")
                    logit_0 = T.alloc_fragment((128,), "float32")
                    partial_0 = T.alloc_reducer((128,), "float32", op="sum")
                    length = T.alloc_var("int32", init=0)
                    use_0 = T.alloc_var("int32", init=0)
                    for it in T.serial(turns):
                        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, 128)
                        if fresh:
                            if it > 0:
                                T.sync_warp()
                                if T.shuffle_elect(32):
                                    T.mbarrier_arrive(queries_empty[0])
                            turn = turn + 1
                            T.mbarrier_wait_parity(queries_full[0], turn & 1)
                        T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                        T.copy(key_scales[it % 6, :], scale_0)
                        T.sync_warp()
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(keys_empty[it % 6])
                        for i in T.serial(T.truncdiv(next_n + 3, 4)):
                            T.mbarrier_wait_parity(scores_0_full[use_0 % 2], (use_0 // 2) & 1)
                            T.tcgen05_after_thread_sync()
                            for j in T.unroll(2):
                                T.copy(scores_0[use_0 % 2, :, j * 64 : j * 64 + 64], dots_0)
                                if j == 1:
                                    T.call_extern("handle", "tl::fence_view_async_tmem_load")
                                    T.tcgen05_before_thread_sync()
                                    T.sync_warp()
                                    if T.shuffle_elect(32):
                                        T.mbarrier_arrive(scores_0_empty[use_0 % 2])
                                T.copy(head_weights[0, ((i * 2 + 0) * 2 + j) * 64 : ((i * 2 + 0) * 2 + j) * 64 + 64], weight_0)
                                T.reducer_init(partial_0)
                                for r, h in T.Parallel(128, 64):
                                    T.reducer_update(partial_0[r], leaf.weighted_relu(dots_0[r, h], weight_0[h]))
                                T.finalize_reducer(partial_0, logit_0)
                                length = leaf.length_to_score(seq_lens, seq, (i * 2 + 0) * 2 + j, next_n, skip_below)
                                for r in T.Parallel(128):
                                    if tile * 128 + r < length:
                                        logits[seq, (i * 2 + 0) * 2 + j, tile * 128 + r] = logit_0[r] * scale_0[r]
                            use_0 = use_0 + 1
                        tile = tile + 1
                elif thread < 256:
                    dots_1 = T.alloc_fragment((128, 64), "float32")
                    weight_1 = T.alloc_fragment((64,), "float32")
                    scale_1 = T.alloc_fragment((128,), "float32")
                    logit_1 = T.alloc_fragment((128,), "float32")
                    partial_1 = T.alloc_reducer((128,), "float32", op="sum")
                    length = T.alloc_var("int32", init=0)
                    use_1 = T.alloc_var("int32", init=0)
                    for it in T.serial(turns):
                        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, 128)
                        if fresh:
                            if it > 0:
                                T.sync_warp()
                                if T.shuffle_elect(32):
                                    T.mbarrier_arrive(queries_empty[0])
                            turn = turn + 1
                            T.mbarrier_wait_parity(queries_full[0], turn & 1)
                        T.mbarrier_wait_parity(keys_full[it % 6], (it // 6) & 1)
                        T.copy(key_scales[it % 6, :], scale_1)
                        T.sync_warp()
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(keys_empty[it % 6])
                        for i in T.serial(T.truncdiv(next_n + 1, 4)):
                            T.mbarrier_wait_parity(scores_1_full[use_1 % 2], (use_1 // 2) & 1)
                            T.tcgen05_after_thread_sync()
                            for j in T.unroll(2):
                                T.copy(scores_1[use_1 % 2, :, j * 64 : j * 64 + 64], dots_1)
                                if j == 1:
                                    T.call_extern("handle", "tl::fence_view_async_tmem_load")
                                    T.tcgen05_before_thread_sync()
                                    T.sync_warp()
                                    if T.shuffle_elect(32):
                                        T.mbarrier_arrive(scores_1_empty[use_1 % 2])
                                T.copy(head_weights[0, ((i * 2 + 1) * 2 + j) * 64 : ((i * 2 + 1) * 2 + j) * 64 + 64], weight_1)
                                T.reducer_init(partial_1)
                                for r, h in T.Parallel(128, 64):
                                    T.reducer_update(partial_1[r], leaf.weighted_relu(dots_1[r, h], weight_1[h]))
                                T.finalize_reducer(partial_1, logit_1)
                                length = leaf.length_to_score(seq_lens, seq, (i * 2 + 1) * 2 + j, next_n, skip_below)
                                for r in T.Parallel(128):
                                    if tile * 128 + r < length:
                                        logits[seq, (i * 2 + 1) * 2 + j, tile * 128 + r] = logit_1[r] * scale_1[r]
                            use_1 = use_1 + 1
                        tile = tile + 1
                elif thread < 288:
                    if thread >= 256:
                        table_at = T.alloc_var("int32", init=0)
                        entry = T.alloc_var("int32", init=0)
                        ahead = T.alloc_var("int32", init=0)
                        page = T.alloc_local((2,), "int32")
                        for it in T.serial(turns):
                            leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, 128)
                            if fresh:
                                turn = turn + 1
                                # A lane holds one of the next 32 table entries, and one of the 32 after them.
                                table_at = tile * 2
                                entry = block_table[seq, T.min(table_at + lane, (need - 1) // 64)]
                                ahead = block_table[seq, T.min(table_at + 32 + lane, (need - 1) // 64)]
                                T.mbarrier_wait_parity(queries_empty[0], (turn & 1) ^ 1)
                                for i in T.serial(T.ceildiv(next_n, 2) * 2):
                                    T.tma_copy(
                                        q[seq, T.min(i, next_n - 1), 0:64, 0:128],
                                        queries[0, i * 64 : i * 64 + 64, :],
                                        barrier=queries_full[0],
                                    )
                                    T.tma_copy(
                                        weights[seq, T.min(i, next_n - 1), 0:64],
                                        head_weights[0, i * 64 : i * 64 + 64],
                                        barrier=queries_full[0],
                                    )
                                if T.shuffle_elect(32):
                                    T.mbarrier_arrive(queries_full[0])
                            if tile * 2 >= table_at + 32:
                                table_at = table_at + 32
                                entry = ahead
                                ahead = block_table[seq, T.min(table_at + 32 + lane, (need - 1) // 64)]
                            for p in T.unroll(2):
                                page[p] = T.shfl_sync(entry, tile * 2 + p - table_at)
                            T.mbarrier_wait_parity(keys_empty[it % 6], ((it // 6) & 1) ^ 1)
                            for p in T.unroll(2):
                                T.tma_copy(
                                    page_rows[page[p], 0:64, 0:128],
                                    keys[it % 6, p * 64 : p * 64 + 64, :],
                                    barrier=keys_full[it % 6],
                                )
                                T.tma_copy(
                                    page_words[page[p], 2048:2112],
                                    key_scales[it % 6, p * 64 : p * 64 + 64],
                                    barrier=keys_full[it % 6],
                                )
                            if T.shuffle_elect(32):
                                T.mbarrier_arrive(keys_full[it % 6])
                            tile = tile + 1
                else:
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
                        for i in T.serial(T.ceildiv(next_n, 4)):
                            if (i * 2 + 0) * 2 < next_n:
                                T.mbarrier_wait_parity(scores_0_empty[fill_0 % 2], ((fill_0 // 2) & 1) ^ 1)
                                T.tcgen05_after_thread_sync()
                                T.tcgen05_gemm(
                                    keys[it % 6, :, :],
                                    queries[0, (i * 2 + 0) * 128 : (i * 2 + 0) * 128 + 128, :],
                                    scores_0[fill_0 % 2, :, :],
                                    transpose_B=True,
                                    clear_accum=True,
                                    mbar=None,
                                )
                                T.tcgen05_mma_arrive(scores_0_full[fill_0 % 2])
                                fill_0 = fill_0 + 1
                            if (i * 2 + 1) * 2 < next_n:
                                T.mbarrier_wait_parity(scores_1_empty[fill_1 % 2], ((fill_1 // 2) & 1) ^ 1)
                                T.tcgen05_after_thread_sync()
                                T.tcgen05_gemm(
                                    keys[it % 6, :, :],
                                    queries[0, (i * 2 + 1) * 128 : (i * 2 + 1) * 128 + 128, :],
                                    scores_1[fill_1 % 2, :, :],
                                    transpose_B=True,
                                    clear_accum=True,
                                    mbar=None,
                                )
                                T.tcgen05_mma_arrive(scores_1_full[fill_1 % 2])
                                fill_1 = fill_1 + 1
                        T.tcgen05_mma_arrive(keys_empty[it % 6])
                        tile = tile + 1
            # Tensor memory is freed behind this barrier.
            T.sync_threads()

    return lightning_indexer__tilelang_sm100a__decode_h64_q8_t128_st6_c1_e0
