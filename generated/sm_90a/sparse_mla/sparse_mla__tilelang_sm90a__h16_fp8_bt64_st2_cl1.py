"""sparse_mla__tilelang_sm90a__h16_fp8_bt64_st2_cl1

Generated from templates/tilelang/sparse_mla.sm_90a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/sparse_mla.py, not this file. Knobs: heads=16, kv=fp8, tile=64, stages=2, cluster=1.

roles
  attend     threads 0..127  queries, both products, softmax, merge, output
  gather     threads 128..255  selected rows into the ring
buffers
  q_s        16x512 bfloat16, shared, 128-byte swizzle
  qpe_s      16x64 bfloat16, shared, 128-byte swizzle
  ckv_s      2 stages of 64x512 bfloat16, shared, 128-byte swizzle
  kpe_s      2 stages of 64x64 bfloat16, shared, 128-byte swizzle
  p_s        64x16 bfloat16, shared, 32-byte swizzle
  red_s      4x16 float32, shared
  last_s     1 int32, shared
  scores     64x16 float32, registers of attend
  sums       64x16 float32, registers of attend
  acc        512x16 float32, registers of attend
pipelines
  kv: gather (threads) ==[ckv_s kpe_s: 2-slot ring]==> attend (wgmma)
    full  x128: gather fence.proxy.async, arrive full
      attend: wait full
    empty x128: gather wait empty
      attend: wgmma wait, arrive empty
  named barrier attend: attend
totals: 256 threads, 168228 of 232448 bytes of shared memory, grid (t * 1, splits)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import sparse_mla as leaf

# Barriers are the declared ones: TileLang adds none of its own.
PASS_CONFIGS = {"tl.disable_thread_storage_sync": True, "tl.disable_warp_specialized": True, "tl.enable_fast_math": True}


def program():
    t = T.dynamic("t")
    n = T.dynamic("n")
    topk = T.dynamic("topk")
    splits = T.dynamic("splits")
    arrival_slots = T.dynamic("arrival_slots")

    @T.prim_func
    def sparse_mla__tilelang_sm90a__h16_fp8_bt64_st2_cl1(
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
        with T.Kernel(t, splits, threads=256) as (bx, split):
            T.import_source(leaf.FP8_SOURCE)
            q_s = T.alloc_shared((16, 512), "bfloat16")
            qpe_s = T.alloc_shared((16, 64), "bfloat16")
            ckv_s = T.alloc_shared((2, 64, 512), "bfloat16")
            kpe_s = T.alloc_shared((2, 64, 64), "bfloat16")
            p_s = T.alloc_shared((64, 16), "bfloat16")
            red_s = T.alloc_shared((4, 16), "float32")
            last_s = T.alloc_shared((1,), "int32", scope="shared")
            kv_full = T.alloc_barrier([128] * 2)
            kv_empty = T.alloc_barrier([128] * 2)
            acc_s = T.alloc_fragment((64, 16), "float32")
            acc_l = T.alloc_fragment((64, 16), "float32")
            acc_o = T.alloc_fragment((512, 16), "float32")
            s_by_warp = T.reshape(acc_s, (4, 16, 16))
            l_by_warp = T.reshape(acc_l, (4, 16, 16))
            by_warp = T.alloc_fragment((4, 16), "float32")
            m_old = T.alloc_fragment((16,), "float32")
            m_new = T.alloc_fragment((16,), "float32")
            total = T.alloc_fragment((16,), "float32")
            inverse = T.alloc_fragment((16,), "float32")
            lse2 = T.alloc_fragment((16,), "float32")
            ids = T.alloc_fragment((64,), "int32")

            thread = T.get_thread_binding()
            lane = thread % 32
            row = bx
            head0 = 0
            turns = T.truncdiv(topk // 64 - split + splits - 1, splits)
            # Both roles count the live tiles on their own reading of the ids.
            it = T.alloc_var("int32", init=0)
            now = T.alloc_local((2,), "int32")
            ahead = T.alloc_local((2,), "int32")
            leaf.read_ids(ahead, indices, row, 0, turns, split, splits, lane)

            if thread < 128:
                T.copy(q_nope[row, head0 : head0 + 16, :], q_s)
                T.copy(q_pe[row, head0 : head0 + 16, :], qpe_s)
                T.fill(acc_o, 0)
                T.fill(acc_l, 0)
                T.fill(m_old, -T.infinity("float32"))
                T.fence_proxy_async()
                T.sync_threads(1, 128)
                for turn in T.serial(turns):
                    base = (split + turn * splits) * 64
                    for v in T.unroll(2):
                        now[v] = ahead[v]
                    leaf.read_ids(ahead, indices, row, turn + 1, turns, split, splits, lane)
                    if leaf.live(now, n):
                        for j in T.Parallel(64):
                            ids[j] = indices[row, base + j]
                        T.mbarrier_wait_parity(kv_full[it % 2], (it // 2) & 1)
                        T.wgmma_gemm(ckv_s[it % 2, :, :], q_s, acc_s, transpose_B=True, clear_accum=True)
                        T.wgmma_gemm(kpe_s[it % 2, :, :], qpe_s, acc_s, transpose_B=True)
                        T.wait_wgmma(0)
                        leaf.mask_logits(acc_s, ids, n, sm_scale * leaf.LOG2E)
                        leaf.raise_maximum(s_by_warp, by_warp, red_s, m_old, m_new, 1, 128)
                        leaf.online_softmax(acc_s, acc_l, acc_o, m_old, m_new)
                        T.copy(acc_s, p_s)
                        T.fence_proxy_async()
                        T.sync_threads(1, 128)
                        T.wgmma_gemm(ckv_s[it % 2, :, :], p_s, acc_o, transpose_A=True)
                        T.wait_wgmma(0)
                        T.mbarrier_arrive(kv_empty[it % 2])
                        it += 1
                leaf.sum_columns(l_by_warp, by_warp, red_s, total, 1, 128)
                leaf.normalise(total, m_old, inverse, lse2)
                if splits == 1:
                    leaf.write_outputs(acc_o, inverse, lse2, attn_sink, out, lse, row, head0, lse_scale)
                else:
                    leaf.write_partial(acc_o, inverse, lse2, o_partial, lse_partial, row, split, head0)
                    leaf.take_ticket(last_s, arrivals, bx, splits, thread, 1, 128)
                    if last_s[0] == splits - 1:
                        leaf.merge_splits(o_partial, lse_partial, attn_sink, out, lse, row, head0, splits, lse_scale, 0, 2, 8, 2, thread, 128)
            else:
                words = T.alloc_local((88,), "uint32")
                held = T.alloc_var("bool", init=False)
                wanted = T.alloc_var("bool", init=False)
                for turn in T.serial(turns + 1):
                    for v in T.unroll(2):
                        now[v] = ahead[v]
                    leaf.read_ids(ahead, indices, row, turn + 1, turns, split, splits, lane)
                    wanted = leaf.live(now, n)
                    if wanted | (turn == turns):
                        # Each half of the tile in registers is replaced by the next tile's as soon as it is written.
                        if held:
                            T.mbarrier_wait_parity(kv_empty[it % 2], ((it // 2) & 1) ^ 1)
                        for batch in T.unroll(2):
                            if held:
                                leaf.store_tokens(ckv_s, kpe_s, it % 2, words, batch, batch, thread - 128)
                            if wanted:
                                leaf.load_tokens(words, batch, kv_cache, indices, row, (split + turn * splits) * 64, batch, n, thread - 128)
                        if held:
                            T.fence_proxy_async()
                            T.mbarrier_arrive(kv_full[it % 2])
                            it += 1
                        held = wanted

    return sparse_mla__tilelang_sm90a__h16_fp8_bt64_st2_cl1
