"""sparse_mla__tilelang_sm100a__h16_fp8_bt64_cl1_cp_async

Generated from templates/tilelang/sparse_mla.sm_100a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/sparse_mla.py, not this file. Knobs: heads=16, kv=fp8, tile=64, cluster=1, gather=cp_async.

roles
  softmax    threads 0..127  queries, online softmax, lazy rescale, epilogue, merge
  producer   threads 128..255  selected rows into the rings
  mma        threads 256..287  issues every tcgen05.mma and commit
buffers
  q_s        16x512 bfloat16, shared, 128-byte swizzle
  qpe_s      16x64 bfloat16, shared, 128-byte swizzle
  kv_s       11 stages of 64x128 bfloat16, shared, 128-byte swizzle
  pe_s       2 stages of 64x64 bfloat16, shared, 128-byte swizzle
  p_s        2 stages of 64x16 bfloat16, shared, 32-byte swizzle
  red_s      2x4x16 float32, shared
  stat_s     16 float32, shared
  last_s     1 int32, shared
  s_t        2 stages of 64x16 float32, tensor memory
  o_t        128x64 float32, tensor memory
pipelines
  q: softmax (threads) ==[q_s qpe_s: once]==> mma (tcgen05)
    full  x128: softmax fence.proxy.async, arrive full
      mma: wait full, fence after
  kv: producer (threads) ==[kv_s: 11-slot ring]==> mma (tcgen05)
    full  x128: producer fence.proxy.async, arrive full
      mma: wait full, fence after
    empty x1: producer wait empty
      mma: commit -> empty
  pe: producer (threads) ==[pe_s: 2-slot ring]==> mma (tcgen05)
    full  x128: producer fence.proxy.async, arrive full
      mma: wait full, fence after
    empty x1: producer wait empty
      mma: commit -> empty
  s: mma (tcgen05) ==[s_t: 2-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
    empty x128: mma wait empty, fence after
      softmax: wait::ld, fence before, arrive empty
  p: softmax (threads) ==[p_s: 2-slot ring]==> mma (tcgen05)
    full  x128: softmax fence.proxy.async, wait::ld, wait::st, fence before, arrive full
      mma: wait full, fence after
    empty x1: softmax wait empty
      mma: commit -> empty
  o: mma (tcgen05) ==[o_t: 1-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
  named barrier softmax: softmax
totals: 288 threads, 220004 of 232448 bytes of shared memory, 96 of 512 tensor-memory columns, grid (t * 1, splits)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout

from dsl_kernels.device.tilelang import sparse_mla_sm100 as device

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_shared_memory_reuse": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.enable_fast_math": True,
}


def program():
    t = T.dynamic("t")
    n = T.dynamic("n")
    topk = T.dynamic("topk")
    splits = T.dynamic("splits")
    arrival_slots = T.dynamic("arrival_slots")

    @T.prim_func
    def sparse_mla__tilelang_sm100a__h16_fp8_bt64_cl1_cp_async(
        q_nope: T.Tensor((t, 16, 512), "bfloat16"),
        q_pe: T.Tensor((t, 16, 64), "bfloat16"),
        kv_cache: T.Tensor((n, 656), "uint8"),
        indices: T.Tensor((t, topk), "int32"),
        attn_sink: T.Tensor((16,), "float32"),
        out: T.Tensor((t, 16, 512), "bfloat16"),
        lse: T.Tensor((t, 16), "float32"),
        o_partial: T.Tensor((t, splits, 16, 512), "float32"),
        lse_partial: T.Tensor((t, splits, 16), "float32"),
        arrivals: T.Tensor((arrival_slots,), "int32"),
        sm_scale: T.float32,
        lse_scale: T.float32,
    ):
        with T.Kernel(t, splits, threads=288) as (bx, split):
            T.import_source(device.DEQUANTISE_SOURCE)
            q_s = T.alloc_shared((16, 512), "bfloat16")
            qpe_s = T.alloc_shared((16, 64), "bfloat16")
            red_s = T.alloc_shared((2, 4, 16), "float32")
            stat_s = T.alloc_shared((16,), "float32")
            last_s = T.alloc_shared((1,), "int32")
            kv_s = T.alloc_shared((11, 64, 128), "bfloat16")
            pe_s = T.alloc_shared((2, 64, 64), "bfloat16")
            p_s = T.alloc_shared((2, 64, 16), "bfloat16")
            # Accumulators 0 to 3 are O^T, the last 2 the stages of S^T: one allocation.
            tmem = T.alloc_tmem([6, 128, 16], "float32")
            T.annotate_layout({buffer: make_full_bank_swizzled_layout(buffer) for buffer in (q_s, qpe_s, kv_s, pe_s)})
            q_full = T.alloc_barrier([128] * 1)
            kv_full = T.alloc_barrier([128] * 11)
            kv_empty = T.alloc_barrier([1] * 11)
            pe_full = T.alloc_barrier([128] * 2)
            pe_empty = T.alloc_barrier([1] * 2)
            s_full = T.alloc_barrier([1] * 2)
            s_empty = T.alloc_barrier([128] * 2)
            p_full = T.alloc_barrier([128] * 2)
            p_empty = T.alloc_barrier([1] * 2)
            o_full = T.alloc_barrier([1] * 1)

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32
            row = bx
            head0 = 0
            tiles = topk // 64
            turns = T.alloc_var("int32", init=T.truncdiv(tiles - split + splits - 1, splits))
            # Live tiles so far: every role counts the tiles that hold a valid id, on its own reading of the ids.
            it = T.alloc_var("int32", init=0)
            ids = T.alloc_local((2,), "int32")
            ahead = T.alloc_local((2,), "int32")
            valid = T.alloc_local((2,), "uint32")
            device.load_ids(ahead, indices, row, split, tiles, lane)

            if thread < 128:
                scores = T.alloc_local((8,), "float32")
                reference = T.alloc_local((4,), "float32")
                total = T.alloc_local((4,), "float32")
                peak = T.alloc_local((4,), "float32")
                held = T.alloc_fragment((128, 16), "float32")
                device.load_queries(q_nope, q_pe, row, head0, 16, q_s, qpe_s, thread, 128)
                T.fence_proxy_async()
                T.mbarrier_arrive(q_full[0])
                for column in T.unroll(4):
                    reference[column] = -T.infinity("float32")
                    total[column] = 0.0
                for turn in T.serial(turns):
                    device.next_tile(ids, ahead, valid, indices, row, split + (turn + 1) * splits, tiles, n, lane)
                    if device.alive(valid):
                        T.mbarrier_wait_parity(s_full[it % 2], (it // 2) & 1)
                        T.tcgen05_after_thread_sync()
                        device.read_scores(scores, tmem, 4 + it % 2, warp, 16)
                        T.call_extern("handle", "tl::fence_view_async_tmem_load")
                        T.tcgen05_before_thread_sync()
                        T.mbarrier_arrive(s_empty[it % 2])
                        device.mask_scores(scores, peak, valid, sm_scale, warp, lane, 4)
                        device.share_columns(peak, red_s, it % 2, warp, lane, 4)
                        T.sync_threads(1, 128)
                        device.join_peaks(peak, red_s, it % 2, lane, 4)
                        if device.outgrown(peak, reference, 4, 8):
                            device.raise_reference(peak, reference, total, stat_s, lane, warp, 4)
                            T.sync_threads(1, 128)
                            if it > 0:
                                T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                                T.tcgen05_after_thread_sync()
                                device.rescale_output(tmem, held, stat_s, 16)
                        T.mbarrier_wait_parity(p_empty[it % 2], ((it // 2) & 1) ^ 1)
                        device.write_weights(p_s, it % 2, scores, reference, total, warp, lane, 4)
                        # Waited for in every tile, rescaled or not: a parity can only tell one phase from the next.
                        if it > 0:
                            T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                            T.tcgen05_after_thread_sync()
                        T.fence_proxy_async()
                        T.call_extern("handle", "tl::fence_view_async_tmem_load")
                        T.call_extern("handle", "tl::fence_view_async_tmem_store")
                        T.tcgen05_before_thread_sync()
                        T.mbarrier_arrive(p_full[it % 2])
                        it += 1
                device.sum_rows(total, 4)
                device.share_columns(total, red_s, it % 2, warp, lane, 4)
                T.sync_threads(1, 128)
                device.join_sums(total, red_s, it % 2, lane, 4)
                device.finish_columns(total, reference, stat_s, lse, lse_partial, attn_sink, row, head0, 16, split, splits == 1, lse_scale, warp, lane, 4)
                T.sync_threads(1, 128)
                if it > 0:
                    T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                    T.tcgen05_after_thread_sync()
                device.write_output(tmem, held, stat_s, out, o_partial, row, split, splits == 1, head0, 16, 16, it)
                if splits > 1:
                    device.arrive(arrivals, bx, last_s, splits, thread, 1, 128)
                    if last_s[0] == splits - 1:
                        device.merge_splits(o_partial, lse_partial, attn_sink, out, lse, row, head0, 16, splits, lse_scale, 0, 512, thread, 128)
            elif thread < 256:
                rows = T.alloc_local((2,), "int32")
                words = T.alloc_local((2 * device.TOKEN_WORDS,), "uint32")
                alive = T.alloc_var("bool")
                for turn in T.serial(turns + 1):
                    device.next_tile(ids, ahead, valid, indices, row, split + (turn + 1) * splits, tiles, n, lane)
                    alive = device.alive(valid)
                    if alive | (turn == turns):
                        # Each piece of the tile in registers is replaced by the next tile's as soon as it is written.
                        device.spread_pairs(rows, ids, valid, thread - 128)
                        for c in T.unroll(4):
                            if it > 0:
                                T.mbarrier_wait_parity(kv_empty[((it - 1) * 4 + c) % 11], ((((it - 1) * 4 + c) // 11) & 1) ^ 1)
                                device.dequantise_unit(kv_s, ((it - 1) * 4 + c) % 11, words, c, thread - 128)
                                T.fence_proxy_async()
                                T.mbarrier_arrive(kv_full[((it - 1) * 4 + c) % 11])
                            device.load_pieces(words, c * 8, kv_cache, rows, c * 128, 2, thread - 128)
                        if it > 0:
                            T.mbarrier_wait_parity(pe_empty[(it - 1) % 2], (((it - 1) // 2) & 1) ^ 1)
                            device.store_rope(pe_s, (it - 1) % 2, words, thread - 128)
                            T.fence_proxy_async()
                            T.mbarrier_arrive(pe_full[(it - 1) % 2])
                        device.load_pieces(words, 32, kv_cache, rows, 528, 2, thread - 128)
                        device.load_scales(words, kv_cache, rows)
                        it += 1
            else:
                alive = T.alloc_var("bool")
                done = T.alloc_var("int32")
                T.mbarrier_wait_parity(q_full[0], 0)
                T.tcgen05_after_thread_sync()
                for turn in T.serial(turns + 1):
                    device.next_tile(ids, ahead, valid, indices, row, split + (turn + 1) * splits, tiles, n, lane)
                    alive = device.alive(valid)
                    done = it - 1
                    if alive:
                        T.mbarrier_wait_parity(s_empty[it % 2], ((it // 2) & 1) ^ 1)
                        T.tcgen05_after_thread_sync()
                        for c in T.unroll(4):
                            T.mbarrier_wait_parity(kv_full[(it * 4 + c) % 11], ((it * 4 + c) // 11) & 1)
                            T.tcgen05_after_thread_sync()
                            device.scores_unit(kv_s, (it * 4 + c) % 11, q_s, c * 128, 8, tmem, 4 + it % 2, 16, c == 0)
                        T.mbarrier_wait_parity(pe_full[it % 2], (it // 2) & 1)
                        T.tcgen05_after_thread_sync()
                        device.scores_unit(pe_s, it % 2, qpe_s, 0, 4, tmem, 4 + it % 2, 16, False)
                        T.tcgen05_mma_arrive(pe_empty[it % 2])
                        T.tcgen05_mma_arrive(s_full[it % 2])
                        it += 1
                    # The values of tile i are issued behind the scores of tile i + 1, so that softmax never idles.
                    if (done >= 0) & (alive | (turn == turns)):
                        T.mbarrier_wait_parity(p_full[done % 2], (done // 2) & 1)
                        T.tcgen05_after_thread_sync()
                        for c in T.unroll(4):
                            T.tcgen05_gemm(kv_s[(done * 4 + c) % 11, :, :], p_s[done % 2, :, :], tmem[c, :, :], transpose_A=True, mbar=None, clear_accum=done == 0)
                            T.tcgen05_mma_arrive(kv_empty[(done * 4 + c) % 11])
                        T.tcgen05_mma_arrive(p_empty[done % 2])
                        T.tcgen05_mma_arrive(o_full[0])
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return sparse_mla__tilelang_sm100a__h16_fp8_bt64_cl1_cp_async
