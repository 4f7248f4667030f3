"""sparse_mla__tilelang_sm100a__h16_bf16_bt64_cl8_cp_async

Generated from dsl_kernels/programs/sparse_mla.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: heads=16, kv=bf16, tile=64, cluster=8, gather=cp_async.

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
  red_s      2 stages of 4x16 float32, shared
  stat_s     16 float32, shared
  last_s     1 int32, shared
  o_t        128x64 float32, tensor memory
  s_t        2 stages of 64x16 float32, tensor memory
  scores     64x16 float32, registers of softmax
  sums       4x16 float32, registers of softmax
  risen      4x16 float32, registers of softmax
  top        16 float32, registers of softmax
  peak       16 float32, registers of softmax
  held       128x16 float32, registers of softmax
  rows       64 int32, registers of producer
pipelines
  q: softmax (threads) ==[q_s qpe_s: once]==> mma (tcgen05)
    full  x128: softmax fence.proxy.async, arrive full
      mma: wait full, fence after
  kv: producer (cp_async) ==[kv_s: 11-slot ring]==> mma (tcgen05)
    full  x128: producer hardware arrives per thread
      mma: wait full, fence.proxy.async, fence after
    empty x1: producer wait empty
      mma: commit -> empty
  pe: producer (cp_async) ==[pe_s: 2-slot ring]==> mma (tcgen05)
    full  x128: producer hardware arrives per thread
      mma: wait full, fence.proxy.async, fence after
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
totals: 288 threads, 220004 of 232448 bytes of shared memory, 96 of 512 tensor-memory columns, grid (t * 1, 8, splits // 8)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout

from dsl_kernels.device.tilelang import grid, tcgen05
from dsl_kernels.device.tilelang import sparse_mla_sm100 as leaf_sm100
from dsl_kernels.device.tilelang import sparse_mla as leaf

PASS_CONFIGS = leaf_sm100.PASS_CONFIGS


def program():
    t = T.dynamic("t")
    n = T.dynamic("n")
    ckv_stride = T.dynamic("ckv_stride")
    kpe_stride = T.dynamic("kpe_stride")
    topk = T.dynamic("topk")
    splits = T.dynamic("splits")
    arrival_slots = T.dynamic("arrival_slots")

    @T.prim_func
    def sparse_mla__tilelang_sm100a__h16_bf16_bt64_cl8_cp_async(
        q_nope: T.Tensor((t, 16, 512,), "bfloat16"),
        q_pe: T.Tensor((t, 16, 64,), "bfloat16"),
        ckv: T.StridedTensor((n, 512,), (ckv_stride, 1), "bfloat16"),
        kpe: T.StridedTensor((n, 64,), (kpe_stride, 1), "bfloat16"),
        indices: T.Tensor((t, topk,), "int32"),
        attn_sink: T.Tensor((16,), "float32"),
        out: T.Tensor((t, 16, 512,), "bfloat16"),
        lse: T.Tensor((t, 16,), "float32"),
        o_partial: T.Tensor((t, splits, 16, 512,), "float32"),
        lse_partial: T.Tensor((t, splits, 16,), "float32"),
        arrivals: T.Tensor((arrival_slots,), "int32"),
        sm_scale: T.float32,
        lse_scale: T.float32,
    ):
        with T.Kernel(t * 1, 8, splits // 8, threads=288, cluster_dims=(1, 8, 1)) as (bx, rank, part):
            T.import_source(grid.SOURCE + leaf_sm100.SOURCE)
            q_s = T.alloc_shared((1, 16, 512), "bfloat16")
            qpe_s = T.alloc_shared((1, 16, 64), "bfloat16")
            kv_s = T.alloc_shared((11, 64, 128), "bfloat16")
            pe_s = T.alloc_shared((2, 64, 64), "bfloat16")
            p_s = T.alloc_shared((2, 64, 16), "bfloat16")
            red_s = T.alloc_shared((2, 4, 16), "float32")
            stat_s = T.alloc_shared((16,), "float32")
            last_s = T.alloc_shared((1,), "int32")
            o_t = T.alloc_tmem((1, 128, 64), "float32")
            s_t = T.alloc_tmem((128, 64), "float32")
            T.annotate_layout({b: make_full_bank_swizzled_layout(b) for b in (kv_s, pe_s, q_s, qpe_s)})
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
            split = part * 8 + rank
            splits_of_row = splits
            turns = T.truncdiv((T.truncdiv(topk, 64) - split + splits_of_row - 1), splits_of_row)
            it = T.alloc_var("int32", init=0)
            low = T.alloc_var("int32", init=0)
            high = T.alloc_var("int32", init=0)
            in_low = T.alloc_var("int32", init=0)
            in_high = T.alloc_var("int32", init=0)
            live = T.alloc_var("bool", init=False)
            leaf.read_ids(low, high, indices, topk, bx, 0, turns, split, splits_of_row, lane)
            if thread < 128:
                # softmax: queries, online softmax, lazy rescale, epilogue, merge
                scores = T.alloc_local((8,), "float32")
                sums = T.alloc_local((4,), "float32")
                risen = T.alloc_local((4,), "float32")
                top = T.alloc_local((4,), "float32")
                peak = T.alloc_local((4,), "float32")
                held = T.alloc_fragment((128, 16), "float32")
                worker = thread
                # q: filled once, so its slot is free
                leaf_sm100.load_block(q_s, 0, q_nope, bx, 0, 16, 16, 16, 512, worker)
                leaf_sm100.load_block(qpe_s, 0, q_pe, bx, 0, 16, 16, 16, 64, worker)
                T.fence_proxy_async()
                T.mbarrier_arrive(q_full[0])
                T.fill(sums, 0.0)
                T.fill(peak, -T.infinity("float32"))
                grown = T.alloc_var("bool", init=False)
                for turn in T.serial(turns):
                    leaf.vote(in_low, in_high, live, low, high, n)
                    leaf.read_ids(low, high, indices, topk, bx, turn + 1, turns, split, splits_of_row, lane)
                    if live:
                        T.mbarrier_wait_parity(s_full[it % 2], (it // 2) & 1)
                        T.tcgen05_after_thread_sync()
                        leaf_sm100.read_scores(scores, s_t, it % 2, worker)
                        T.call_extern("handle", "tl::fence_view_async_tmem_load")
                        T.tcgen05_before_thread_sync()
                        T.mbarrier_arrive(s_empty[it % 2])
                        leaf_sm100.mask_scores(scores, in_low, in_high, sm_scale, worker)
                        leaf_sm100.column_maxima(risen, scores, worker)
                        leaf_sm100.share_columns(red_s, it % 2, risen, worker)
                        T.sync_threads(1, 128)
                        leaf_sm100.join_maxima(top, red_s, it % 2, worker)
                        leaf_sm100.outgrown(grown, top, peak, 8)
                        if grown:
                            leaf_sm100.raise_reference(peak, top, sums, stat_s, worker)
                            T.sync_threads(1, 128)
                            if it > 0:
                                T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                                T.tcgen05_after_thread_sync()
                                leaf_sm100.rescale_output(o_t, 0, held, stat_s, 16, worker)
                                # o: p also gives its slot back
                        T.mbarrier_wait_parity(p_empty[it % 2], ((it // 2) & 1) ^ 1)
                        leaf_sm100.weigh_tokens(scores, sums, peak)
                        leaf_sm100.store_weights(p_s, it % 2, scores, 16, worker)
                        # Where O was not rescaled it is waited for here: a parity can only tell one phase from the next.
                        if (it > 0) & (grown == False):
                            T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                            T.tcgen05_after_thread_sync()
                            # o: p also gives its slot back
                        T.fence_proxy_async()
                        T.call_extern("handle", "tl::fence_view_async_tmem_load")
                        T.call_extern("handle", "tl::fence_view_async_tmem_store")
                        T.tcgen05_before_thread_sync()
                        T.mbarrier_arrive(p_full[it % 2])
                        it = it + 1
                leaf_sm100.column_sums(risen, sums, worker)
                leaf_sm100.share_columns(red_s, it % 2, risen, worker)
                T.sync_threads(1, 128)
                leaf_sm100.join_sums(top, red_s, it % 2, worker)
                alone = T.alloc_var("bool", init=False)
                leaf_sm100.finish_columns(top, peak, stat_s, attn_sink, lse, lse_partial, bx, 0, 16, 16, splits, split, alone, lse_scale, worker)
                T.sync_threads(1, 128)
                if it > 0:
                    T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                    T.tcgen05_after_thread_sync()
                leaf_sm100.write_output(o_t, 0, held, stat_s, out, o_partial, bx, 0, 16, 16, splits, split, alone, it > 0, worker)
                last = T.alloc_var("bool", init=True)
                # The cluster meets once its partials are written; each CTA then merges its share of the latent dims.
                T.call_extern("handle", "dk::cluster_arrive")
                T.call_extern("handle", "dk::cluster_wait")
                if splits > 8:
                    T.sync_threads(1, 128)
                    grid.count_in(last_s, arrivals, bx * 8 + rank, T.truncdiv(splits, 8), worker)
                    T.sync_threads(1, 128)
                    last = last_s[0] == T.truncdiv(splits, 8) - 1
                if last:
                    leaf_sm100.merge_columns(o_partial, lse_partial, attn_sink, out, lse, bx, 0, 16, 16, splits, lse_scale, rank * 64, 64, worker, 128)
            elif thread < 256:
                # producer: selected rows into the rings
                rows = T.alloc_local((8,), "int32")
                worker = thread - 128
                for turn in T.serial(turns):
                    leaf.vote(in_low, in_high, live, low, high, n)
                    now_low = low
                    now_high = high
                    leaf.read_ids(low, high, indices, topk, bx, turn + 1, turns, split, splits_of_row, lane)
                    if live:
                        leaf_sm100.spread_ids(rows, now_low, now_high, in_low, in_high, worker)
                        for c in T.serial(4):
                            T.mbarrier_wait_parity(kv_empty[(it * 4 + c) % 11], (((it * 4 + c) // 11) & 1) ^ 1)
                            leaf_sm100.gather_columns(kv_s, (it * 4 + c) % 11, ckv, c * 128, 128, rows, worker)
                            T.cp_async_barrier_noinc(kv_full[(it * 4 + c) % 11])
                        T.mbarrier_wait_parity(pe_empty[it % 2], ((it // 2) & 1) ^ 1)
                        leaf_sm100.gather_columns(pe_s, it % 2, kpe, 0, 64, rows, worker)
                        T.cp_async_barrier_noinc(pe_full[it % 2])
                        it = it + 1
                T.call_extern("handle", "dk::cluster_arrive")
                T.call_extern("handle", "dk::cluster_wait")
            else:
                # mma: issues every tcgen05.mma and commit
                T.mbarrier_wait_parity(q_full[0], 0)
                T.tcgen05_after_thread_sync()
                for turn in T.serial(turns + 1):
                    leaf.vote(in_low, in_high, live, low, high, n)
                    leaf.read_ids(low, high, indices, topk, bx, turn + 1, turns, split, splits_of_row, lane)
                    late = it > 0
                    done = it - 1
                    if live:
                        T.mbarrier_wait_parity(s_empty[it % 2], ((it // 2) & 1) ^ 1)
                        T.tcgen05_after_thread_sync()
                        for c in T.serial(4):
                            T.mbarrier_wait_parity(kv_full[(it * 4 + c) % 11], ((it * 4 + c) // 11) & 1)
                            T.fence_proxy_async()
                            T.tcgen05_after_thread_sync()
                            # S^T += K Q^T, a unit of the dims
                            tcgen05.multiply_m64(kv_s, (it * 4 + c) % 11, 0, q_s, 0, c * 128, s_t, it % 2, 16, 128, (c > 0) == False)
                        T.mbarrier_wait_parity(pe_full[it % 2], (it // 2) & 1)
                        T.fence_proxy_async()
                        T.tcgen05_after_thread_sync()
                        # the rope dims
                        tcgen05.multiply_m64(pe_s, it % 2, 0, qpe_s, 0, 0, s_t, it % 2, 16, 64, False)
                        T.tcgen05_mma_arrive(pe_empty[it % 2])
                        T.tcgen05_mma_arrive(s_full[it % 2])
                        it = it + 1
                    # The values of a tile follow the scores of the next one, so that softmax never idles.
                    if late & (live | (turn == turns)):
                        T.mbarrier_wait_parity(p_full[done % 2], (done // 2) & 1)
                        T.tcgen05_after_thread_sync()
                        # o: p also gives its slot back
                        for c in T.serial(4):
                            # O^T += K^T P^T, a unit of the dims
                            T.tcgen05_gemm(kv_s[(done * 4 + c) % 11, :, :], p_s[done % 2, :, :], o_t[0, :, c * 16 : c * 16 + 16], transpose_A=True, clear_accum=(done > 0) == False, mbar=None)
                            T.tcgen05_mma_arrive(kv_empty[(done * 4 + c) % 11])
                        T.tcgen05_mma_arrive(p_empty[done % 2])
                        T.tcgen05_mma_arrive(o_full[0])
                T.call_extern("handle", "dk::cluster_arrive")
                T.call_extern("handle", "dk::cluster_wait")
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return sparse_mla__tilelang_sm100a__h16_bf16_bt64_cl8_cp_async
