"""sparse_mla__cutedsl_sm90a__h64_fp8_bt64_st2_cl16_sl2_hb16

Generated from templates/cutedsl/sparse_mla.sm_90a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/sparse_mla.py, not this file. Knobs: heads=64, kv=fp8, tile=64, stages=2, cluster=16, slices=2, block=16.

roles
  attend     threads 0..127  queries, both products, softmax, merge, output
  gather     threads 128..255  selected rows into the ring
buffers
  q_s        16x256 bfloat16, shared, 128-byte swizzle
  qpe_s      16x32 bfloat16, shared, 64-byte swizzle
  ckv_s      2 stages of 64x256 bfloat16, shared, 128-byte swizzle
  kpe_s      2 stages of 64x32 bfloat16, shared, 64-byte swizzle
  p_s        64x16 bfloat16, shared, 32-byte swizzle
  x_s        2 stages of 1x2x128x4 float32, shared
  o_s        8x128x6 float32, shared
  red_s      4x16 float32, shared
  last_s     1 int32, shared
  scores     64x16 float32, registers of attend
  acc        256x16 float32, registers of attend
pipelines
  kv: gather (threads) ==[ckv_s kpe_s: 2-slot ring]==> attend (wgmma)
    full  x128: gather fence.proxy.async, arrive full
      attend: wait full
    empty x128: gather wait empty
      attend: wgmma wait, arrive empty
  x: attend (peers) ==[x_s: 2-slot ring]==> attend (threads)
    full  x1, 4096 bytes: attend arrive + expect bytes
      attend: wait full
  o: attend (peers) ==[o_s: once]==> attend (threads)
    full  x1, 24576 bytes: attend arrive + expect bytes
      attend: wait full
  named barrier attend: attend
totals: 256 threads, 118076 of 232448 bytes of shared memory, grid (t * 4, 16, splits // 16)
"""
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from dsl_kernels.device.cutedsl import sparse_mla as leaf
from dsl_kernels.runtime.artifact import Launch, Operand

LAUNCH = Launch(
    operands=(
        Operand("q_nope", "tensor", "bfloat16", ('t', '64', '512')),
        Operand("q_pe", "tensor", "bfloat16", ('t', '64', '64')),
        Operand("kv_cache", "tensor", "uint8", ('n', '656')),
        Operand("indices", "tensor", "int32", ('t', 'topk')),
        Operand("attn_sink", "tensor", "float32", ('64',)),
        Operand("out", "tensor", "bfloat16", ('t', '64', '512'), written=True),
        Operand("lse", "tensor", "float32", ('t', '64'), written=True),
        Operand("o_partial", "tensor", "float32", ('t', 'splits', '64', '512'), written=True),
        Operand("lse_partial", "tensor", "float32", ('t', 'splits', '64'), written=True),
        Operand("arrivals", "tensor", "int32", ('arrival_slots',), written=True),
        Operand("sm_scale", "scalar", "float32"),
        Operand("lse_scale", "scalar", "float32"),
    ),
    grid=('t * 4', '16', 'splits // 16'),
    block=256,
    cluster=(1, 16, 1),
)


@cute.kernel
def sparse_mla__cutedsl_sm90a__h64_fp8_bt64_st2_cl16_sl2_hb16(q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: cutlass.Float32, lse_scale: cutlass.Float32, t: cutlass.Int32, n: cutlass.Int32, topk: cutlass.Int32, splits: cutlass.Int32, arrival_slots: cutlass.Int32):
    smem = cutlass.memory.SmemAllocator()
    q_s = smem.allocate_array(BFloat16, 4096, byte_alignment=1024)
    ckv_s = smem.allocate_array(BFloat16, 32768, byte_alignment=1024)
    kpe_s = smem.allocate_array(BFloat16, 4096, byte_alignment=1024)
    qpe_s = smem.allocate_array(BFloat16, 512, byte_alignment=1024)
    p_s = smem.allocate_array(BFloat16, 1024, byte_alignment=1024)
    x_s = smem.allocate_array(Float32, 2048, byte_alignment=16)
    o_s = smem.allocate_array(Float32, 6144, byte_alignment=16)
    red_s = smem.allocate_array(Float32, 64, byte_alignment=16)
    last_s = smem.allocate_array(Int32, 1)
    kv_full = smem.allocate_array(Int64, 2)
    kv_empty = smem.allocate_array(Int64, 2)
    x_full = smem.allocate_array(Int64, 2)
    o_full = smem.allocate_array(Int64, 1)

    thread, _, _ = cute.arch.thread_idx()
    bx, rank, part = cute.arch.block_idx()
    lane = thread % 32
    row = bx // 4
    head0 = bx % 4 * 16
    # The CTAs of a slice group have consecutive ranks and walk the same tiles.
    which = rank % 2
    split = part * 8 + rank // 2
    splits_of_row = splits // 2
    turns = (topk // 64 - split + splits_of_row - 1) // splits_of_row
    if thread == 0:
        for i in cutlass.range_constexpr(2):
            cute.arch.mbarrier_init(kv_full + i, 128)
        for i in cutlass.range_constexpr(2):
            cute.arch.mbarrier_init(kv_empty + i, 128)
        for i in cutlass.range_constexpr(2):
            cute.arch.mbarrier_init(x_full + i, 1)
        for i in cutlass.range_constexpr(1):
            cute.arch.mbarrier_init(o_full + i, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(o_full, 24576)
    cute.arch.sync_threads()
    # The other CTAs' barriers must stand before anything is sent to them.
    cute.arch.cluster_arrive_relaxed()
    # So far nothing of the kernel before this one was needed.
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    row_ids = cute.make_tensor(indices + Int64(row) * Int64(topk), cute.make_layout(topk))
    # Both roles count the live tiles on their own reading of the ids, one turn ahead.
    low, high = leaf.read_ids(row_ids, Int32(0), turns, split, splits_of_row, lane)

    scores_mma, values_mma = leaf.products(16)
    keys, queries = leaf.score_operands(scores_mma, ckv_s, q_s, 256, 16, 2, thread)
    rope_keys, rope_queries = leaf.score_operands(scores_mma, kpe_s, qpe_s, 32, 16, 2, thread)
    values, weights = leaf.value_operands(values_mma, ckv_s, p_s, 256, 16, 2, thread)
    scores = cute.make_rmem_tensor(scores_mma.partition_shape_C((64, 16)), Float32)
    acc = cute.make_rmem_tensor(values_mma.partition_shape_C((256, 16)), Float32)
    sums = cute.make_rmem_tensor((4,), Float32)
    peak = cute.make_rmem_tensor((4,), Float32)
    red = cute.make_tensor(red_s, cute.make_layout((4, 16), stride=(16, 1)))
    it = Int32(0)
    last = Boolean(False)

    if thread < 128:
        first = Int64(row) * 64 + head0
        share = rank // 2 * 1
        sinks = leaf.load_sinks(attn_sink, head0, share, 1, 16, thread)
        leaf.load_queries(q_s.toint(), q_nope.toint() + first * 1024 + which * 512, Int64(1024), 16, 512, thread)
        leaf.load_queries(qpe_s.toint(), q_pe.toint() + first * 128 + which * 64, Int64(128), 16, 64, thread)
        cute.arch.fence_view_async_shared()
        cute.arch.barrier(barrier_id=1, number_of_threads=128)
        acc.fill(0.0)
        sums.fill(0.0)
        peak.fill(-Float32.inf)
        cute.arch.cluster_wait()
        for turn in cutlass.range(turns, unroll=1):
            in_low, in_high = leaf.vote(low, high, n)
            low, high = leaf.read_ids(row_ids, turn + 1, turns, split, splits_of_row, lane)
            if (in_low | in_high) != 0:
                slot = it % 2
                cute.arch.mbarrier_wait(kv_full + it % 2, (it // 2) & 1)
                warpgroup.fence()
                leaf.multiply(scores_mma, scores, keys[None, None, None, slot], queries, False)
                leaf.multiply(scores_mma, scores, rope_keys[None, None, None, slot], rope_queries, True)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                use = it % 2
                if thread == 0:
                    cute.arch.mbarrier_arrive_and_expect_tx(x_full + it % 2, 4096)
                leaf.send_scores(scores, x_s.toint() + use * 4096, (x_full + it % 2).toint(), rank, 2, thread)
                cute.arch.mbarrier_wait(x_full + it % 2, (it // 2) & 1)
                leaf.add_scores(scores, x_s + use * 1024, 2, thread)
                leaf.mask_scores(scores, in_low, in_high, sm_scale * leaf.LOG2E, thread)
                leaf.online_softmax(scores, sums, acc, peak, red, 1, thread)
                leaf.store_weights(p_s.toint(), scores, 16, thread)
                cute.arch.fence_view_async_shared()
                cute.arch.barrier(barrier_id=1, number_of_threads=128)
                warpgroup.fence()
                leaf.multiply(values_mma, acc, values[None, None, None, slot], weights, True)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                cute.arch.mbarrier_arrive(kv_empty + it % 2)
                it += 1
        leaf.normalise(acc, sums, peak, red, 1, thread)
        # The CTAs that hold this slice trade quads of O, so that each merges its share of them.
        leaf.send_parts(acc, sums, 16, o_s.toint(), o_full.toint(), rank, 2, 8, thread)
        cute.arch.mbarrier_wait(o_full, 0)
        merged, merged_lses = leaf.merge_sent(o_s.toint(), 1, 8, thread)
        # Partials keep the order in which the threads hold O: [quad, thread, 2 dims x 2 heads].
        clusters = splits // 16
        mine = Int64(row) * splits + part * 16 + rank
        room = mine * 32768 + head0 * 512 + thread * 4
        if clusters > 1:
            leaf.leave_part(merged, merged_lses, o_partial, lse_partial, room, mine * 64 + head0, share, 16, thread)
            last = leaf.take_ticket(last_s, arrivals + (bx * 16 + rank), clusters, 1, thread)
        else:
            last = Boolean(True)
        if last:
            quads = cute.make_rmem_tensor((4,), Float32)
            lses = cute.make_rmem_tensor((2,), Float32)
            leaf.move(quads, merged)
            leaf.move(lses, merged_lses)
            if clusters > 1:
                leaf.merge_parts(
                    quads, lses, o_partial, lse_partial, room - part * 524288, (mine - part * 16) * 64 + head0,
                    524288, 1024, share, 16, clusters, thread,
                )
            leaf.store_result(out, lse, quads, lses, sinks, first, share, which, 256, 16, lse_scale, thread)
    else:
        worker = thread - 128
        # A tile waits in registers while the next one is read.
        held = cute.make_rmem_tensor((44,), Int32)
        words = cute.make_rmem_tensor((44,), Int32)
        holds = Boolean(False)
        for turn in cutlass.range(turns + 1, unroll=1):
            in_low, in_high = leaf.vote(low, high, n)
            now_low, now_high = low, high
            low, high = leaf.read_ids(row_ids, turn + 1, turns, split, splits_of_row, lane)
            wanted = (in_low | in_high) != 0
            if wanted | (turn == turns):
                if wanted:
                    leaf.load_tokens(words, kv_cache.toint(), which, 256, now_low, now_high, n, worker)
                if holds:
                    slot = it % 2
                    cute.arch.mbarrier_wait(kv_empty + it % 2, ((it // 2) & 1) ^ 1)
                    leaf.store_tokens(held, ckv_s.toint() + slot * 32768, kpe_s.toint() + slot * 4096, 256, worker)
                    cute.arch.fence_proxy("async.shared", space="cta")
                    cute.arch.mbarrier_arrive(kv_full + it % 2)
                    it += 1
                leaf.move(held, words)
                holds = wanted
        cute.arch.cluster_wait()


@cute.jit
def program(q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: cutlass.Float32, lse_scale: cutlass.Float32, t: cutlass.Int32, n: cutlass.Int32, topk: cutlass.Int32, splits: cutlass.Int32, arrival_slots: cutlass.Int32):
    sparse_mla__cutedsl_sm90a__h64_fp8_bt64_st2_cl16_sl2_hb16(q_nope, q_pe, kv_cache, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale, t, n, topk, splits, arrival_slots).launch(grid=(1, 1, 1), block=(256, 1, 1), cluster=(1, 16, 1))
