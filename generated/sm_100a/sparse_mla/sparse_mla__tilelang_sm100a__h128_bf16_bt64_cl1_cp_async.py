"""sparse_mla__tilelang_sm100a__h128_bf16_bt64_cl1_cp_async

Generated from templates/tilelang/sparse_mla.sm_100a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/sparse_mla.py, not this file. Knobs: heads=128, kv=bf16, tile=64, cluster=1, gather=cp_async.

roles
  softmax    threads 0..127  queries, online softmax, lazy rescale, epilogue, merge
  producer   threads 128..255  selected rows into the rings
  mma        threads 256..287  issues every tcgen05.mma and commit
buffers
  q_s        64x512 bfloat16, shared, 128-byte swizzle
  qpe_s      64x64 bfloat16, shared, 128-byte swizzle
  kv_s       8 stages of 64x128 bfloat16, shared, 128-byte swizzle
  pe_s       64x64 bfloat16, shared, 128-byte swizzle
  p_s        64x64 bfloat16, shared, 128-byte swizzle
  red_s      2x4x64 float32, shared
  stat_s     64 float32, shared
  last_s     1 int32, shared
  s_t        2 stages of 64x64 float32, tensor memory
  o_t        128x256 float32, tensor memory
pipelines
  q: softmax (threads) ==[q_s qpe_s: once]==> mma (tcgen05)
    full  x128: softmax fence.proxy.async, arrive full
      mma: wait full, fence after
  kv: producer (cp_async) ==[kv_s: 8-slot ring]==> mma (tcgen05)
    full  x128: producer hardware arrives per thread
      mma: wait full, fence.proxy.async, fence after
    empty x1: producer wait empty
      mma: commit -> empty
  pe: producer (cp_async) ==[pe_s: 1-slot ring]==> mma (tcgen05)
    full  x128: producer hardware arrives per thread
      mma: wait full, fence.proxy.async, fence after
    empty x1: producer wait empty
      mma: commit -> empty
  s: mma (tcgen05) ==[s_t: 2-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
    empty x128: mma wait empty, fence after
      softmax: wait::ld, fence before, arrive empty
  p: softmax (threads) ==[p_s: 1-slot ring]==> mma (tcgen05)
    full  x128: softmax fence.proxy.async, wait::ld, wait::st, fence before, arrive full
      mma: wait full, fence after
    empty x1: softmax wait empty
      mma: commit -> empty
  o: mma (tcgen05) ==[o_t: 1-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
  named barrier softmax: softmax
totals: 288 threads, 223700 of 232448 bytes of shared memory, 384 of 512 tensor-memory columns, grid (t * 2, splits)
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
    ckv_stride = T.dynamic("ckv_stride")
    kpe_stride = T.dynamic("kpe_stride")

    @T.prim_func
    def sparse_mla__tilelang_sm100a__h128_bf16_bt64_cl1_cp_async(
        q_nope: T.Tensor((t, 128, 512), "bfloat16"),
        q_pe: T.Tensor((t, 128, 64), "bfloat16"),
        ckv: T.StridedTensor((n, 512), (ckv_stride, 1), "bfloat16"),
        kpe: T.StridedTensor((n, 64), (kpe_stride, 1), "bfloat16"),
        indices: T.Tensor((t, topk), "int32"),
        attn_sink: T.Tensor((128,), "float32"),
        out: T.Tensor((t, 128, 512), "bfloat16"),
        lse: T.Tensor((t, 128), "float32"),
        o_partial: T.Tensor((t, splits, 128, 512), "float32"),
        lse_partial: T.Tensor((t, splits, 128), "float32"),
        arrivals: T.Tensor((arrival_slots,), "int32"),
        sm_scale: T.float32,
        lse_scale: T.float32,
    ):
        with T.Kernel(t * 2, splits, threads=288) as (bx, split):
            q_s = T.alloc_shared((64, 512), "bfloat16")
            qpe_s = T.alloc_shared((64, 64), "bfloat16")
            red_s = T.alloc_shared((2, 4, 64), "float32")
            stat_s = T.alloc_shared((64,), "float32")
            last_s = T.alloc_shared((1,), "int32")
            kv_s = T.alloc_shared((8, 64, 128), "bfloat16")
            pe_s = T.alloc_shared((1, 64, 64), "bfloat16")
            p_s = T.alloc_shared((1, 64, 64), "bfloat16")
            # Accumulators 0 to 3 are O^T, the last 2 the stages of S^T: one allocation.
            tmem = T.alloc_tmem([6, 128, 64], "float32")
            T.annotate_layout({buffer: make_full_bank_swizzled_layout(buffer) for buffer in (q_s, qpe_s, kv_s, pe_s)})
            q_full = T.alloc_barrier([128] * 1)
            kv_full = T.alloc_barrier([128] * 8)
            kv_empty = T.alloc_barrier([1] * 8)
            pe_full = T.alloc_barrier([128] * 1)
            pe_empty = T.alloc_barrier([1] * 1)
            s_full = T.alloc_barrier([1] * 2)
            s_empty = T.alloc_barrier([128] * 2)
            p_full = T.alloc_barrier([128] * 1)
            p_empty = T.alloc_barrier([1] * 1)
            o_full = T.alloc_barrier([1] * 1)

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32
            row = bx // 2
            head0 = bx % 2 * 64
            tiles = topk // 64
            turns = T.alloc_var("int32", init=T.truncdiv(tiles - split + splits - 1, splits))
            # Live tiles so far: every role counts the tiles that hold a valid id, on its own reading of the ids.
            it = T.alloc_var("int32", init=0)
            ids = T.alloc_local((2,), "int32")
            ahead = T.alloc_local((2,), "int32")
            valid = T.alloc_local((2,), "uint32")
            device.load_ids(ahead, indices, row, split, tiles, lane)

            if thread < 128:
                scores = T.alloc_local((32,), "float32")
                reference = T.alloc_local((16,), "float32")
                total = T.alloc_local((16,), "float32")
                peak = T.alloc_local((16,), "float32")
                held = T.alloc_fragment((128, 16), "float32")
                device.load_queries(q_nope, q_pe, row, head0, 64, q_s, qpe_s, thread, 128)
                T.fence_proxy_async()
                T.mbarrier_arrive(q_full[0])
                for column in T.unroll(16):
                    reference[column] = -T.infinity("float32")
                    total[column] = 0.0
                for turn in T.serial(turns):
                    device.next_tile(ids, ahead, valid, indices, row, split + (turn + 1) * splits, tiles, n, lane)
                    if device.alive(valid):
                        T.mbarrier_wait_parity(s_full[it % 2], (it // 2) & 1)
                        T.tcgen05_after_thread_sync()
                        device.read_scores(scores, tmem, 4 + it % 2, warp, 64)
                        T.call_extern("handle", "tl::fence_view_async_tmem_load")
                        T.tcgen05_before_thread_sync()
                        T.mbarrier_arrive(s_empty[it % 2])
                        device.mask_scores(scores, peak, valid, sm_scale, warp, lane, 16)
                        device.share_columns(peak, red_s, it % 2, warp, lane, 16)
                        T.sync_threads(1, 128)
                        device.join_peaks(peak, red_s, it % 2, lane, 16)
                        if device.outgrown(peak, reference, 16, 8):
                            device.raise_reference(peak, reference, total, stat_s, lane, warp, 16)
                            T.sync_threads(1, 128)
                            if it > 0:
                                T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                                T.tcgen05_after_thread_sync()
                                device.rescale_output(tmem, held, stat_s, 64)
                        T.mbarrier_wait_parity(p_empty[0], (it & 1) ^ 1)
                        device.write_weights(p_s, 0, scores, reference, total, warp, lane, 16)
                        # Waited for in every tile, rescaled or not: a parity can only tell one phase from the next.
                        if it > 0:
                            T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                            T.tcgen05_after_thread_sync()
                        T.fence_proxy_async()
                        T.call_extern("handle", "tl::fence_view_async_tmem_load")
                        T.call_extern("handle", "tl::fence_view_async_tmem_store")
                        T.tcgen05_before_thread_sync()
                        T.mbarrier_arrive(p_full[0])
                        it += 1
                device.sum_rows(total, 16)
                device.share_columns(total, red_s, it % 2, warp, lane, 16)
                T.sync_threads(1, 128)
                device.join_sums(total, red_s, it % 2, lane, 16)
                device.finish_columns(total, reference, stat_s, lse, lse_partial, attn_sink, row, head0, 64, split, splits == 1, lse_scale, warp, lane, 16)
                T.sync_threads(1, 128)
                if it > 0:
                    T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                    T.tcgen05_after_thread_sync()
                device.write_output(tmem, held, stat_s, out, o_partial, row, split, splits == 1, head0, 64, 64, it)
                if splits > 1:
                    device.arrive(arrivals, bx, last_s, splits, thread, 1, 128)
                    if last_s[0] == splits - 1:
                        device.merge_splits(o_partial, lse_partial, attn_sink, out, lse, row, head0, 64, splits, lse_scale, 0, 512, thread, 128)
            elif thread < 256:
                rows = T.alloc_local((8,), "int32")
                for turn in T.serial(turns):
                    device.next_tile(ids, ahead, valid, indices, row, split + (turn + 1) * splits, tiles, n, lane)
                    if device.alive(valid):
                        device.spread_ids(rows, ids, valid, thread - 128)
                        for c in T.serial(4):
                            T.mbarrier_wait_parity(kv_empty[(it * 4 + c) % 8], (((it * 4 + c) // 8) & 1) ^ 1)
                            device.gather_unit(kv_s, (it * 4 + c) % 8, ckv, c * 128, rows, thread - 128)
                            T.cp_async_barrier_noinc(kv_full[(it * 4 + c) % 8])
                        T.mbarrier_wait_parity(pe_empty[0], (it & 1) ^ 1)
                        device.gather_rope(pe_s, 0, kpe, rows, thread - 128)
                        T.cp_async_barrier_noinc(pe_full[0])
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
                            T.mbarrier_wait_parity(kv_full[(it * 4 + c) % 8], ((it * 4 + c) // 8) & 1)
                            T.fence_proxy_async()
                            T.tcgen05_after_thread_sync()
                            device.scores_unit(kv_s, (it * 4 + c) % 8, q_s, c * 128, 8, tmem, 4 + it % 2, 64, c == 0)
                        T.mbarrier_wait_parity(pe_full[0], it & 1)
                        T.fence_proxy_async()
                        T.tcgen05_after_thread_sync()
                        device.scores_unit(pe_s, 0, qpe_s, 0, 4, tmem, 4 + it % 2, 64, False)
                        T.tcgen05_mma_arrive(pe_empty[0])
                        T.tcgen05_mma_arrive(s_full[it % 2])
                        it += 1
                    # The values of tile i are issued behind the scores of tile i + 1, so that softmax never idles.
                    if (done >= 0) & (alive | (turn == turns)):
                        T.mbarrier_wait_parity(p_full[0], done & 1)
                        T.tcgen05_after_thread_sync()
                        for c in T.unroll(4):
                            T.tcgen05_gemm(kv_s[(done * 4 + c) % 8, :, :], p_s[0, :, :], tmem[c, :, :], transpose_A=True, mbar=None, clear_accum=done == 0)
                            T.tcgen05_mma_arrive(kv_empty[(done * 4 + c) % 8])
                        T.tcgen05_mma_arrive(p_empty[0])
                        T.tcgen05_mma_arrive(o_full[0])
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return sparse_mla__tilelang_sm100a__h128_bf16_bt64_cl1_cp_async
