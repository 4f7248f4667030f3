"""sparse_mla__tilelang_sm90a__h8_fp8_bt64_st2_cl16

Generated from dsl_kernels/programs/sparse_mla.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: heads=8, kv=fp8, tile=64, stages=2, cluster=16.

roles
  attend     threads 0..127  queries, both products, softmax, merge, output
  gather     threads 128..255  selected rows into the ring
buffers
  q_s        8x512 bfloat16, shared, 128-byte swizzle
  qpe_s      8x64 bfloat16, shared, 128-byte swizzle
  ckv_s      2 stages of 64x512 bfloat16, shared, 128-byte swizzle
  kpe_s      2 stages of 64x64 bfloat16, shared, 128-byte swizzle
  p_s        8x64 bfloat16, shared, 128-byte swizzle
  red_s      4x8 float32, shared
  last_s     1 int32, shared
  scores     64x8 float32, registers of attend
  sums       64x8 float32, registers of attend
  acc        512x8 float32, registers of attend
  risen      4x8 float32, registers of attend
  top        8 float32, registers of attend
  peak       8 float32, registers of attend
  words      2x32x288 uint32, registers of gather
pipelines
  kv: gather (threads) ==[ckv_s kpe_s: 2-slot ring]==> attend (wgmma)
    full  x128: gather fence.proxy.async, arrive full
      attend: wait full
    empty x128: gather wait empty
      attend: wgmma wait, arrive empty
  named barrier attend: attend
totals: 256 threads, 157860 of 232448 bytes of shared memory, grid (t * 1, 16, splits // 16)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import grid
from dsl_kernels.device.tilelang import sparse_mla as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS


def program():
    t = T.dynamic("t")
    n = T.dynamic("n")
    topk = T.dynamic("topk")
    splits = T.dynamic("splits")
    arrival_slots = T.dynamic("arrival_slots")

    @T.prim_func
    def sparse_mla__tilelang_sm90a__h8_fp8_bt64_st2_cl16(
        q_nope: T.Tensor((t, 8, 512,), "bfloat16"),
        q_pe: T.Tensor((t, 8, 64,), "bfloat16"),
        kv_cache: T.Tensor((n, 656,), "uint8"),
        indices: T.Tensor((t, topk,), "int32"),
        attn_sink: T.Tensor((8,), "float32"),
        out: T.Tensor((t, 8, 512,), "bfloat16"),
        lse: T.Tensor((t, 8,), "float32"),
        o_partial: T.Tensor((t, splits, 8, 512,), "float32"),
        lse_partial: T.Tensor((t, splits, 8,), "float32"),
        arrivals: T.Tensor((arrival_slots,), "int32"),
        sm_scale: T.float32,
        lse_scale: T.float32,
    ):
        with T.Kernel(t * 1, 16, splits // 16, threads=256, cluster_dims=(1, 16, 1)) as (bx, rank, part):
            T.import_source(grid.SOURCE + leaf.SOURCE)
            q_s = T.alloc_shared((8, 512), "bfloat16")
            qpe_s = T.alloc_shared((8, 64), "bfloat16")
            ckv_s = T.alloc_shared((2, 64, 512), "bfloat16")
            kpe_s = T.alloc_shared((2, 64, 64), "bfloat16")
            p_s = T.alloc_shared((8, 64), "bfloat16")
            red_s = T.alloc_shared((4, 8), "float32")
            last_s = T.alloc_shared((1,), "int32")
            kv_full = T.alloc_barrier([128] * 2)
            kv_empty = T.alloc_barrier([128] * 2)

            thread = T.get_thread_binding()
            lane = thread % 32
            split = part * 16 + rank
            splits_of_row = splits
            turns = T.truncdiv((T.truncdiv(topk, 64) - split + splits_of_row - 1), splits_of_row)
            it = T.alloc_var("int32", init=0)
            low = T.alloc_var("int32", init=0)
            high = T.alloc_var("int32", init=0)
            in_low = T.alloc_var("int32", init=0)
            in_high = T.alloc_var("int32", init=0)
            live = T.alloc_var("bool", init=False)
            # A launch of TileLang starts when the kernel before it has ended.
            leaf.read_ids(low, high, indices, topk, bx, 0, turns, split, splits_of_row, lane)
            if thread < 128:
                # attend: queries, both products, softmax, merge, output
                scores = T.alloc_fragment((64, 8), "float32")
                sums = T.alloc_fragment((64, 8), "float32")
                acc = T.alloc_fragment((512, 8), "float32")
                risen = T.alloc_fragment((4, 8), "float32")
                top = T.alloc_fragment((8,), "float32")
                peak = T.alloc_fragment((8,), "float32")
                worker = thread
                leaf.load_queries(q_s, q_nope, bx, 0, 8, 8, 512, 0, 512, worker)
                leaf.load_queries(qpe_s, q_pe, bx, 0, 8, 8, 64, 0, 64, worker)
                T.fence_proxy_async()
                T.sync_threads(1, 128)
                T.fill(acc, 0.0)
                T.fill(sums, 0.0)
                T.fill(peak, -T.infinity("float32"))
                for turn in T.serial(turns):
                    leaf.vote(in_low, in_high, live, low, high, n)
                    leaf.read_ids(low, high, indices, topk, bx, turn + 1, turns, split, splits_of_row, lane)
                    if live:
                        T.mbarrier_wait_parity(kv_full[it % 2], (it // 2) & 1)
                        # S^T = K Q^T
                        T.wgmma_gemm(ckv_s[it % 2, :, :], q_s[:, :], scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
                        T.wgmma_gemm(kpe_s[it % 2, :, :], qpe_s[:, :], scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=False)
                        T.wait_wgmma(0)
                        T.warpgroup_fence_operand(scores, num_regs=4)
                        leaf.mask_scores(scores, in_low, in_high, sm_scale, worker)
                        leaf.column_maxima(risen, scores, worker)
                        leaf.share_columns(red_s, risen, worker)
                        T.sync_threads(1, 128)
                        leaf.join_maxima(top, red_s, worker)
                        leaf.online_softmax(scores, sums, acc, peak, top)
                        leaf.store_weights(p_s, scores, 8, worker)
                        T.fence_proxy_async()
                        T.sync_threads(1, 128)
                        # O^T += K^T P^T
                        T.wgmma_gemm(ckv_s[it % 2, :, :], p_s[:, :], acc, transpose_A=True, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=False)
                        T.wait_wgmma(0)
                        T.warpgroup_fence_operand(acc, num_regs=32)
                        T.mbarrier_arrive(kv_empty[it % 2])
                        it = it + 1
                leaf.column_sums(risen, sums, worker)
                leaf.share_columns(red_s, risen, worker)
                T.sync_threads(1, 128)
                leaf.join_sums(top, red_s, worker)
                leaf.normalise(acc, top, peak)
                last = T.alloc_var("bool", init=True)
                # The cluster meets once its partials are written; each CTA then merges its share of the row.
                leaf.write_partial(acc, top, o_partial, lse_partial, bx, splits, split, 0, 8, worker)
                T.call_extern("handle", "dk::cluster_arrive")
                T.call_extern("handle", "dk::cluster_wait")
                if splits > 16:
                    T.sync_threads(1, 128)
                    grid.count_in(last_s, arrivals, bx * 16 + rank, T.truncdiv(splits, 16), worker)
                    T.sync_threads(1, 128)
                    last = last_s[0] == T.truncdiv(splits, 16) - 1
                if last:
                    leaf.merge_splits(o_partial, lse_partial, attn_sink, out, lse, bx, 0, 8, 8, splits, lse_scale, rank * 64, 64, worker, 128)
            else:
                # gather: selected rows into the ring
                words = T.alloc_local((88,), "uint32")
                worker = thread - 128
                holds = T.alloc_var("bool", init=False)
                for turn in T.serial(turns + 1):
                    leaf.vote(in_low, in_high, live, low, high, n)
                    now_low = low
                    now_high = high
                    leaf.read_ids(low, high, indices, topk, bx, turn + 1, turns, split, splits_of_row, lane)
                    if live | (turn == turns):
                        if holds:
                            T.mbarrier_wait_parity(kv_empty[it % 2], ((it // 2) & 1) ^ 1)
                        if holds:
                            leaf.store_half(words, 0, ckv_s, it % 2, kpe_s, it % 2, 0, worker)
                        if live:
                            leaf.load_half(words, 0, kv_cache, 0, now_low, now_high, n, worker)
                        if holds:
                            leaf.store_half(words, 1, ckv_s, it % 2, kpe_s, it % 2, 1, worker)
                        if live:
                            leaf.load_half(words, 1, kv_cache, 1, now_low, now_high, n, worker)
                        if holds:
                            T.fence_proxy_async()
                            T.mbarrier_arrive(kv_full[it % 2])
                            it = it + 1
                        holds = live
                T.call_extern("handle", "dk::cluster_arrive")
                T.call_extern("handle", "dk::cluster_wait")

    return sparse_mla__tilelang_sm90a__h8_fp8_bt64_st2_cl16
