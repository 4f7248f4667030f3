"""lightning_indexer__tilelang_sm90a__decode_h32_q1_t128_st5_c2_e0

Generated from templates/tilelang/lightning_indexer.sm_90a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/lightning_indexer.py, not this file. Knobs: mode=decode, heads=32, queries=1, tile=128, stages=5, resident=2, evict=0.

roles
  score      threads 0..255  products and epilogue, 64 keys a warpgroup
  load       threads 256..287  block table, key pages, queries (one warp works)
buffers
  keys       5 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 5 stages of 128 float32, shared
  queries    2 stages of 32x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 2 stages of 32 float32, shared
  acc        128x32 float32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 5-slot ring]==> score (wgmma)
    full  x1, 16896 bytes: load arrive + expect bytes
      score: wait full
    empty x8: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: 2-slot ring]==> score (wgmma)
    full  x1, 4224 bytes: load arrive + expect bytes
      score: wait full
    empty x8: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
totals: 288 threads, 93040 of 232448 bytes of shared memory, grid (264)
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
    def lightning_indexer__tilelang_sm90a__decode_h32_q1_t128_st5_c2_e0(
        q: T.Tensor((b, next_n, 32, 128), "float8_e4m3fn"),
        k_cache: T.Tensor((pages, 8448), "uint8"),
        weights: T.Tensor((b, next_n, 32), "float32"),
        seq_lens: T.Tensor((b, next_n), "int32"),
        block_table: T.Tensor((b, max_pages), "int32"),
        logits: T.Tensor((b, next_n, stride), "float32"),
        skip_below: T.int32,
    ):
        with T.Kernel(264, threads=288) as cta:
            T.annotate_min_blocks_per_sm(2)
            page_rows = T.view(k_cache, (pages, 66, 128), "float8_e4m3fn")
            page_words = T.view(k_cache, (pages, 2112), "float32")
            keys = T.alloc_shared((5, 128, 128), "float8_e4m3fn")
            key_scales = T.alloc_shared((5, 128), "float32")
            queries = T.alloc_shared((2, 32, 128), "float8_e4m3fn")
            head_weights = T.alloc_shared((2, 32), "float32")
            keys_full = T.alloc_barrier([1] * 5)
            keys_empty = T.alloc_barrier([8] * 5)
            queries_full = T.alloc_barrier([1] * 2)
            queries_empty = T.alloc_barrier([8] * 2)

            thread = T.get_thread_binding()
            lane = thread % 32
            seq = T.alloc_var("int32", init=0)
            tile = T.alloc_var("int32", init=0)
            need = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            fresh = T.alloc_var("bool", init=False)
            turn = T.alloc_var("int32", init=-1)
            leaf.find_share(seq, tile, need, turns, seq_lens, b, 1, skip_below, 128, cta, 264)
            if turns > 0:
                if thread < 256:
                    acc = T.alloc_fragment((128, 32), "float32")
                    dots = T.reshape(acc, (128, 1, 32))
                    weight = T.alloc_fragment((32,), "float32")
                    scale = T.alloc_fragment((128,), "float32")
                    length = T.alloc_var("int32", init=0)
                    partial = T.alloc_reducer((128,), "float32", op="sum")
                    logit = T.alloc_fragment((128,), "float32")
                    for it in T.serial(turns):
                        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, 128)
                        if fresh:
                            if it > 0:
                                T.wait_wgmma(0)
                                T.sync_warp()
                                if T.shuffle_elect(32):
                                    T.mbarrier_arrive(queries_empty[turn % 2])
                            turn = turn + 1
                            T.mbarrier_wait_parity(queries_full[turn % 2], (turn // 2) & 1)
                            T.copy(head_weights[turn % 2, :], weight)
                            length = leaf.length_to_score(seq_lens, seq, 0, next_n, skip_below)
                        T.mbarrier_wait_parity(keys_full[it % 5], (it // 5) & 1)
                        T.copy(key_scales[it % 5, :], scale)
                        for i in T.serial(1):
                            T.wgmma_gemm(
                                keys[it % 5, :, :],
                                queries[turn % 2, i * 32 : i * 32 + 32, :],
                                acc,
                                transpose_B=True,
                                policy=T.GemmWarpPolicy.FullRow,
                                clear_accum=True,
                            )
                            T.wait_wgmma(0)
                            T.sync_warp()
                            if T.shuffle_elect(32):
                                T.mbarrier_arrive(keys_empty[it % 5])
                            T.warpgroup_fence_operand(acc, num_regs=16)
                            for j in T.unroll(1):
                                T.reducer_init(partial)
                                for r, h in T.Parallel(128, 32):
                                    T.reducer_update(partial[r], leaf.weighted_relu(dots[r, j, h], weight[h]))
                                T.finalize_reducer(partial, logit)
                                for r in T.Parallel(128):
                                    if tile * 128 + r < length:
                                        logits[seq, i * 1 + j, tile * 128 + r] = logit[r] * scale[r]
                        tile = tile + 1
                else:
                    if thread < 288:
                        table_at = T.alloc_var("int32", init=0)
                        entry = T.alloc_var("int32", init=0)
                        ahead = T.alloc_var("int32", init=0)
                        page = T.alloc_local((2,), "int32")
                        for it in T.serial(turns):
                            leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, 128)
                            if fresh:
                                turn = turn + 1
                                # A lane holds one of the next 32 table entries, and one of the 32 after them.
                                table_at = tile * 2
                                entry = block_table[seq, T.min(table_at + lane, (need - 1) // 64)]
                                ahead = block_table[seq, T.min(table_at + 32 + lane, (need - 1) // 64)]
                                T.mbarrier_wait_parity(queries_empty[turn % 2], ((turn // 2) & 1) ^ 1)
                                for i in T.serial(1):
                                    T.tma_copy(
                                        q[seq, 0, 0:32, 0:128],
                                        queries[turn % 2, i * 32 : i * 32 + 32, :],
                                        barrier=queries_full[turn % 2],
                                    )
                                    T.tma_copy(
                                        weights[seq, 0, 0:32],
                                        head_weights[turn % 2, i * 32 : i * 32 + 32],
                                        barrier=queries_full[turn % 2],
                                    )
                                if T.shuffle_elect(32):
                                    T.mbarrier_arrive(queries_full[turn % 2])
                            if tile * 2 >= table_at + 32:
                                table_at = table_at + 32
                                entry = ahead
                                ahead = block_table[seq, T.min(table_at + 32 + lane, (need - 1) // 64)]
                            for p in T.unroll(2):
                                page[p] = T.shfl_sync(entry, tile * 2 + p - table_at)
                            T.mbarrier_wait_parity(keys_empty[it % 5], ((it // 5) & 1) ^ 1)
                            for p in T.unroll(2):
                                T.tma_copy(
                                    page_rows[page[p], 0:64, 0:128],
                                    keys[it % 5, p * 64 : p * 64 + 64, :],
                                    barrier=keys_full[it % 5],
                                )
                                T.tma_copy(
                                    page_words[page[p], 2048:2112],
                                    key_scales[it % 5, p * 64 : p * 64 + 64],
                                    barrier=keys_full[it % 5],
                                )
                            if T.shuffle_elect(32):
                                T.mbarrier_arrive(keys_full[it % 5])
                            tile = tile + 1

    return lightning_indexer__tilelang_sm90a__decode_h32_q1_t128_st5_c2_e0
