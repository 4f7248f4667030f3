"""lightning_indexer__tilelang_sm90a__decode_h64_q8_t256_st4_c1_e0

Generated from templates/tilelang/lightning_indexer.sm_90a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/lightning_indexer.py, not this file. Knobs: mode=decode, heads=64, queries=8, tile=256, stages=4, resident=1, evict=0.

roles
  score      threads 0..511, 104 registers  products and epilogue, 64 keys a warpgroup
  load       threads 512..639, 24 registers  block table, key pages, queries (one warp works)
buffers
  keys       4 stages of 256x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 4 stages of 256 float32, shared
  queries    512x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 512 float32, shared
  acc        256x128 float32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 4-slot ring]==> score (wgmma)
    full  x1, 33792 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: 1-slot ring]==> score (wgmma)
    full  x1, 67584 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
totals: 640 threads, 202832 of 232448 bytes of shared memory, grid (132)
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
    def lightning_indexer__tilelang_sm90a__decode_h64_q8_t256_st4_c1_e0(
        q: T.Tensor((b, next_n, 64, 128), "float8_e4m3fn"),
        k_cache: T.Tensor((pages, 8448), "uint8"),
        weights: T.Tensor((b, next_n, 64), "float32"),
        seq_lens: T.Tensor((b, next_n), "int32"),
        block_table: T.Tensor((b, max_pages), "int32"),
        logits: T.Tensor((b, next_n, stride), "float32"),
        skip_below: T.int32,
    ):
        with T.Kernel(132, threads=640) as cta:
            page_rows = T.view(k_cache, (pages, 66, 128), "float8_e4m3fn")
            page_words = T.view(k_cache, (pages, 2112), "float32")
            keys = T.alloc_shared((4, 256, 128), "float8_e4m3fn")
            key_scales = T.alloc_shared((4, 256), "float32")
            queries = T.alloc_shared((1, 512, 128), "float8_e4m3fn")
            head_weights = T.alloc_shared((1, 512), "float32")
            keys_full = T.alloc_barrier([1] * 4)
            keys_empty = T.alloc_barrier([16] * 4)
            queries_full = T.alloc_barrier([1] * 1)
            queries_empty = T.alloc_barrier([16] * 1)

            thread = T.get_thread_binding()
            lane = thread % 32
            seq = T.alloc_var("int32", init=0)
            tile = T.alloc_var("int32", init=0)
            need = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            fresh = T.alloc_var("bool", init=False)
            turn = T.alloc_var("int32", init=-1)
            leaf.find_share(seq, tile, need, turns, seq_lens, b, next_n, skip_below, 256, cta, 132)
            if turns > 0:
                if thread < 512:
                    T.set_max_nreg(104, 1)
                    acc = T.alloc_fragment((256, 128), "float32")
                    dots = T.reshape(acc, (256, 2, 64))
                    weight = T.alloc_fragment((64,), "float32")
                    length = T.alloc_var("int32", init=0)
                    partial = T.alloc_reducer((256,), "float32", op="sum")
                    logit = T.alloc_fragment((256,), "float32")
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
                        for i in T.serial(T.ceildiv(next_n, 2)):
                            T.wgmma_gemm(
                                keys[it % 4, :, :],
                                queries[0, i * 128 : i * 128 + 128, :],
                                acc,
                                transpose_B=True,
                                policy=T.GemmWarpPolicy.FullRow,
                                clear_accum=True,
                            )
                            T.wait_wgmma(0)
                            T.warpgroup_fence_operand(acc, num_regs=64)
                            for j in T.unroll(2):
                                T.copy(head_weights[0, (i * 2 + j) * 64 : (i * 2 + j) * 64 + 64], weight)
                                T.reducer_init(partial)
                                for r, h in T.Parallel(256, 64):
                                    T.reducer_update(partial[r], leaf.weighted_relu(dots[r, j, h], weight[h]))
                                T.finalize_reducer(partial, logit)
                                length = leaf.length_to_score(seq_lens, seq, i * 2 + j, next_n, skip_below)
                                for r in T.Parallel(256):
                                    if tile * 256 + r < length:
                                        logits[seq, i * 2 + j, tile * 256 + r] = logit[r] * key_scales[it % 4, r]
                        T.wait_wgmma(0)
                        T.sync_warp()
                        if T.shuffle_elect(32):
                            T.mbarrier_arrive(keys_empty[it % 4])
                        tile = tile + 1
                else:
                    T.set_max_nreg(24, 0)
                    if thread < 544:
                        table_at = T.alloc_var("int32", init=0)
                        entry = T.alloc_var("int32", init=0)
                        ahead = T.alloc_var("int32", init=0)
                        page = T.alloc_local((4,), "int32")
                        for it in T.serial(turns):
                            leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, 256)
                            if fresh:
                                turn = turn + 1
                                # A lane holds one of the next 32 table entries, and one of the 32 after them.
                                table_at = tile * 4
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
                            if tile * 4 >= table_at + 32:
                                table_at = table_at + 32
                                entry = ahead
                                ahead = block_table[seq, T.min(table_at + 32 + lane, (need - 1) // 64)]
                            for p in T.unroll(4):
                                page[p] = T.shfl_sync(entry, tile * 4 + p - table_at)
                            T.mbarrier_wait_parity(keys_empty[it % 4], ((it // 4) & 1) ^ 1)
                            for p in T.unroll(4):
                                T.tma_copy(
                                    page_rows[page[p], 0:64, 0:128],
                                    keys[it % 4, p * 64 : p * 64 + 64, :],
                                    barrier=keys_full[it % 4],
                                )
                                T.tma_copy(
                                    page_words[page[p], 2048:2112],
                                    key_scales[it % 4, p * 64 : p * 64 + 64],
                                    barrier=keys_full[it % 4],
                                )
                            if T.shuffle_elect(32):
                                T.mbarrier_arrive(keys_full[it % 4])
                            tile = tile + 1

    return lightning_indexer__tilelang_sm90a__decode_h64_q8_t256_st4_c1_e0
