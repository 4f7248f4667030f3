"""sparse_mla__tilelang_sm90a__h64_bf16_bt64_st2_cl2

Generated from templates/tilelang/sparse_mla.sm_90a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/sparse_mla.py, not this file. Knobs: heads=64, kv=bf16, tile=64, stages=2, cluster=2.

roles
  attend     threads 0..255, 216 registers  queries, both products, softmax, merge, output
  gather     threads 256..383, 72 registers  selected rows into the ring
buffers
  q_s        64x512 bfloat16, shared, 128-byte swizzle
  qpe_s      64x64 bfloat16, shared, 128-byte swizzle
  ckv_s      2 stages of 64x512 bfloat16, shared, 128-byte swizzle
  kpe_s      2 stages of 64x64 bfloat16, shared, 128-byte swizzle
  p_s        64x64 bfloat16, shared, 128-byte swizzle
  red_s      4x64 float32, shared
  last_s     1 int32, shared
  scores     64x64 float32, registers of attend
  sums       64x64 float32, registers of attend
  acc        512x64 float32, registers of attend
pipelines
  kv: gather (cp_async) ==[ckv_s kpe_s: 2-slot ring]==> attend (wgmma)
    full  x128: gather hardware arrives per thread
      attend: wait full, fence.proxy.async
    empty x256: gather wait empty
      attend: wgmma wait, arrive empty
  named barrier attend: attend
totals: 384 threads, 230436 of 232448 bytes of shared memory, grid (t * 1, 2, splits // 2)
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
    ckv_stride = T.dynamic("ckv_stride")
    kpe_stride = T.dynamic("kpe_stride")

    @T.prim_func
    def sparse_mla__tilelang_sm90a__h64_bf16_bt64_st2_cl2(
        q_nope: T.Tensor((t, 64, 512), "bfloat16"),
        q_pe: T.Tensor((t, 64, 64), "bfloat16"),
        ckv: T.StridedTensor((n, 512), (ckv_stride, 1), "bfloat16"),
        kpe: T.StridedTensor((n, 64), (kpe_stride, 1), "bfloat16"),
        indices: T.Tensor((t, topk), "int32"),
        attn_sink: T.Tensor((64,), "float32"),
        out: T.Tensor((t, 64, 512), "bfloat16"),
        lse: T.Tensor((t, 64), "float32"),
        o_partial: T.Tensor((t, splits, 64, 512), "float32"),
        lse_partial: T.Tensor((t, splits, 64), "float32"),
        arrivals: T.Tensor((arrival_slots,), "int32"),
        sm_scale: T.float32,
        lse_scale: T.float32,
    ):
        with T.Kernel(t, 2, splits // 2, threads=384, cluster_dims=(1, 2, 1)) as (bx, rank, part):
            T.import_source(leaf.CLUSTER_SOURCE)
            q_s = T.alloc_shared((64, 512), "bfloat16")
            qpe_s = T.alloc_shared((64, 64), "bfloat16")
            ckv_s = T.alloc_shared((2, 64, 512), "bfloat16")
            kpe_s = T.alloc_shared((2, 64, 64), "bfloat16")
            p_s = T.alloc_shared((64, 64), "bfloat16")
            red_s = T.alloc_shared((4, 64), "float32")
            last_s = T.alloc_shared((1,), "int32", scope="shared")
            kv_full = T.alloc_barrier([128] * 2)
            kv_empty = T.alloc_barrier([256] * 2)
            acc_s = T.alloc_fragment((64, 64), "float32")
            acc_l = T.alloc_fragment((64, 64), "float32")
            acc_o = T.alloc_fragment((512, 64), "float32")
            s_by_warp = T.reshape(acc_s, (4, 16, 64))
            l_by_warp = T.reshape(acc_l, (4, 16, 64))
            by_warp = T.alloc_fragment((4, 64), "float32")
            m_old = T.alloc_fragment((64,), "float32")
            m_new = T.alloc_fragment((64,), "float32")
            total = T.alloc_fragment((64,), "float32")
            inverse = T.alloc_fragment((64,), "float32")
            lse2 = T.alloc_fragment((64,), "float32")
            ids = T.alloc_fragment((64,), "int32")

            thread = T.get_thread_binding()
            lane = thread % 32
            row = bx
            head0 = 0
            split = part * 2 + rank
            turns = T.truncdiv(topk // 64 - split + splits - 1, splits)
            # Both roles count the live tiles on their own reading of the ids.
            it = T.alloc_var("int32", init=0)
            now = T.alloc_local((2,), "int32")
            ahead = T.alloc_local((2,), "int32")
            leaf.read_ids(ahead, indices, row, 0, turns, split, splits, lane)

            if thread < 256:
                T.set_max_nreg(216, 1)
                T.copy(q_nope[row, head0 : head0 + 64, :], q_s)
                T.copy(q_pe[row, head0 : head0 + 64, :], qpe_s)
                T.fill(acc_o, 0)
                T.fill(acc_l, 0)
                T.fill(m_old, -T.infinity("float32"))
                T.fence_proxy_async()
                T.sync_threads(1, 256)
                for turn in T.serial(turns):
                    base = (split + turn * splits) * 64
                    for v in T.unroll(2):
                        now[v] = ahead[v]
                    leaf.read_ids(ahead, indices, row, turn + 1, turns, split, splits, lane)
                    if leaf.live(now, n):
                        for j in T.Parallel(64):
                            ids[j] = indices[row, base + j]
                        T.mbarrier_wait_parity(kv_full[it % 2], (it // 2) & 1)
                        T.fence_proxy_async()
                        T.wgmma_gemm(ckv_s[it % 2, :, :], q_s, acc_s, transpose_B=True, clear_accum=True)
                        T.wgmma_gemm(kpe_s[it % 2, :, :], qpe_s, acc_s, transpose_B=True)
                        T.wait_wgmma(0)
                        leaf.mask_logits(acc_s, ids, n, sm_scale * leaf.LOG2E)
                        leaf.raise_maximum(s_by_warp, by_warp, red_s, m_old, m_new, 1, 256)
                        leaf.online_softmax(acc_s, acc_l, acc_o, m_old, m_new)
                        T.copy(acc_s, p_s)
                        T.fence_proxy_async()
                        T.sync_threads(1, 256)
                        T.wgmma_gemm(ckv_s[it % 2, :, :], p_s, acc_o, transpose_A=True, policy=T.GemmWarpPolicy.FullCol)
                        T.wait_wgmma(0)
                        T.mbarrier_arrive(kv_empty[it % 2])
                        it += 1
                leaf.sum_columns(l_by_warp, by_warp, red_s, total, 1, 256)
                leaf.normalise(total, m_old, inverse, lse2)
                # The cluster meets once its partials are written; each CTA then merges its share of the row.
                leaf.write_partial(acc_o, inverse, lse2, o_partial, lse_partial, row, split, head0)
                leaf.meet_cluster()
                last = T.alloc_var("bool", init=True)
                if splits > 2:
                    leaf.take_ticket(last_s, arrivals, bx * 2 + rank, splits // 2, thread, 1, 256)
                    last = last_s[0] == splits // 2 - 1
                if last:
                    leaf.merge_splits(o_partial, lse_partial, attn_sink, out, lse, row, head0, splits, lse_scale, rank * 4096, 4, 4, 4, thread, 256)
            else:
                T.set_max_nreg(72, 0)
                for turn in T.serial(turns):
                    base = (split + turn * splits) * 64
                    for v in T.unroll(2):
                        now[v] = ahead[v]
                    leaf.read_ids(ahead, indices, row, turn + 1, turns, split, splits, lane)
                    if leaf.live(now, n):
                        T.mbarrier_wait_parity(kv_empty[it % 2], ((it // 2) & 1) ^ 1)
                        leaf.copy_rows(ckv_s, kpe_s, it % 2, ckv, kpe, indices, row, base, n, thread - 256, 128)
                        T.cp_async_barrier_noinc(kv_full[it % 2])
                        it += 1
                leaf.meet_cluster()

    return sparse_mla__tilelang_sm90a__h64_bf16_bt64_st2_cl2
