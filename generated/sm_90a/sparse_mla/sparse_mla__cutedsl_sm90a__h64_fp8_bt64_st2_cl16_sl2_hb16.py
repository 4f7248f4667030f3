"""sparse_mla__cutedsl_sm90a__h64_fp8_bt64_st2_cl16_sl2_hb16

Generated from dsl_kernels/programs/sparse_mla.py and the leaves in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: heads=64, kv=fp8, tile=64, stages=2, cluster=16, slices=2, block=16.

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
  sums       4x16 float32, registers of attend
  risen      4x16 float32, registers of attend
  top        16 float32, registers of attend
  peak       16 float32, registers of attend
  quads      1x64x8 float32, registers of attend
  lses       1x8 float32, registers of attend
  sinks      16 float32, registers of attend
  words      64x144 int32, registers of gather
  held       64x144 int32, registers of gather
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
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from dsl_kernels.device.cutedsl import bulk, grid, wgmma
from dsl_kernels.device.cutedsl import sparse_mla as leaf
from dsl_kernels.runtime.artifact import Launch, Operand

QK_NOPE = wgmma.Product("bfloat16", 64, 16, 256, "k", "k")
QK_PE = wgmma.Product("bfloat16", 64, 16, 32, "k", "k")
PV = wgmma.Product("bfloat16", 256, 16, 64, "mn", "mn")

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


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 4096], 1024]
    qpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 512], 1024]
    ckv_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 32768], 1024]
    kpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 4096], 1024]
    p_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 1024], 1024]
    x_s: cute.struct.Align[cute.struct.MemRange[Float32, 2048], 128]
    o_s: cute.struct.Align[cute.struct.MemRange[Float32, 6144], 128]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, 64], 128]
    last_s: cute.struct.Align[cute.struct.MemRange[Int32, 1], 128]
    kv_full: cute.struct.MemRange[Int64, 2]
    kv_empty: cute.struct.MemRange[Int64, 2]
    x_full: cute.struct.MemRange[Int64, 2]
    o_full: cute.struct.MemRange[Int64, 1]


@cute.kernel
def sparse_mla__cutedsl_sm90a__h64_fp8_bt64_st2_cl16_sl2_hb16(
    q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: cutlass.Float32, lse_scale: cutlass.Float32,
    t: cutlass.Int32, n: cutlass.Int32, topk: cutlass.Int32, splits: cutlass.Int32,
    arrival_slots: cutlass.Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    qpe_s = shared.qpe_s.data_ptr()
    ckv_s = shared.ckv_s.data_ptr()
    kpe_s = shared.kpe_s.data_ptr()
    p_s = shared.p_s.data_ptr()
    x_s = shared.x_s.data_ptr()
    o_s = shared.o_s.data_ptr()
    red_s = shared.red_s.data_ptr()
    last_s = shared.last_s.data_ptr()
    kv_full = shared.kv_full.data_ptr()
    kv_empty = shared.kv_empty.data_ptr()
    x_full = shared.x_full.data_ptr()
    o_full = shared.o_full.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    bx, rank, part = cute.arch.block_idx()
    row = bx // 4
    head0 = bx % 4 * 16
    # The CTAs of a slice group have consecutive ranks and walk the same tiles.
    which = rank % 2
    split = part * 8 + rank // 2
    splits_of_row = splits // 2
    turns = (topk // 64 - split + splits_of_row - 1) // splits_of_row
    it = Int32(0)
    low = Int32(0)
    high = Int32(0)
    in_low = Int32(0)
    in_high = Int32(0)
    live = Boolean(False)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(kv_full + i, 128)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(kv_empty + i, 128)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(x_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(o_full + i, 1)
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    # The other CTAs' barriers must stand before anything is sent to them.
    cute.arch.cluster_arrive_relaxed()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    low, high = leaf.read_ids(indices, topk, row, 0, turns, split, splits_of_row, lane)
    if warp < 4:
        # attend: queries, both products, softmax, merge, output
        qk_nope_a = QK_NOPE.operand_a(ckv_s, 64, 256, 2, 128)
        qk_nope_b = QK_NOPE.operand_b(q_s, 16, 256, 1, 128)
        qk_pe_a = QK_PE.operand_a(kpe_s, 64, 32, 2, 64)
        qk_pe_b = QK_PE.operand_b(qpe_s, 16, 32, 1, 64)
        pv_a = PV.operand_a(ckv_s, 64, 256, 2, 128)
        pv_b = PV.operand_b(p_s, 64, 16, 1, 32)
        scores = QK_NOPE.accumulators()
        acc = PV.accumulators()
        sums = cute.make_rmem_tensor(4, Float32)
        sums.fill(0)
        risen = cute.make_rmem_tensor(4, Float32)
        risen.fill(0)
        top = cute.make_rmem_tensor(4, Float32)
        top.fill(0)
        peak = cute.make_rmem_tensor(4, Float32)
        peak.fill(0)
        quads = cute.make_rmem_tensor(4, Float32)
        quads.fill(0)
        lses = cute.make_rmem_tensor(2, Float32)
        lses.fill(0)
        sinks = cute.make_rmem_tensor(2, Float32)
        sinks.fill(0)
        worker = thread
        share = rank // 2
        if worker == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(o_full, 24576)
        leaf.load_sinks(sinks, attn_sink, head0, 16, share, worker)
        leaf.load_queries(q_s, q_nope, row, head0, 64, 16, 512, which * 256, 256, worker)
        leaf.load_queries(qpe_s, q_pe, row, head0, 64, 16, 64, which * 32, 32, worker)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier(barrier_id=1, number_of_threads=128)
        acc.fill(0.0)
        sums.fill(0.0)
        peak.fill(-Float32.inf)
        cute.arch.cluster_wait()
        for turn in cutlass.range(turns, unroll=1):
            in_low, in_high, live = leaf.vote(low, high, n)
            low, high = leaf.read_ids(indices, topk, row, turn + 1, turns, split, splits_of_row, lane)
            if live:
                cute.arch.mbarrier_wait(kv_full + it % 2, (it // 2) & 1)
                # S^T = K Q^T
                warpgroup.fence()
                QK_NOPE.multiply(qk_nope_a[None, None, None, it % 2, 0, 0], qk_nope_b[None, None, None, 0, 0, 0], scores, False)
                QK_PE.multiply(qk_pe_a[None, None, None, it % 2, 0, 0], qk_pe_b[None, None, None, 0, 0, 0], scores, True)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                if worker == 0:
                    cute.arch.mbarrier_arrive_and_expect_tx(x_full + it % 2, 4096)
                leaf.send_scores(scores, x_s + it % 2 * 1024, x_full + it % 2, rank, 2, worker)
                cute.arch.mbarrier_wait(x_full + it % 2, (it // 2) & 1)
                leaf.add_scores(scores, x_s + it % 2 * 1024, 2, worker)
                leaf.mask_scores(scores, in_low, in_high, sm_scale, worker)
                leaf.column_maxima(risen, scores, worker)
                leaf.share_columns(red_s, risen, worker)
                cute.arch.barrier(barrier_id=1, number_of_threads=128)
                leaf.join_maxima(top, red_s, worker)
                leaf.online_softmax(scores, sums, acc, peak, top)
                leaf.store_weights(p_s, scores, 16, worker)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.barrier(barrier_id=1, number_of_threads=128)
                # O^T += K^T P^T
                warpgroup.fence()
                PV.multiply(pv_a[None, None, None, it % 2, 0, 0], pv_b[None, None, None, 0, 0, 0], acc, True)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                cute.arch.mbarrier_arrive(kv_empty + it % 2)
                it = it + 1
        leaf.column_sums(risen, sums, worker)
        leaf.share_columns(red_s, risen, worker)
        cute.arch.barrier(barrier_id=1, number_of_threads=128)
        leaf.join_sums(top, red_s, worker)
        leaf.normalise(acc, top, peak)
        # The CTAs that hold this slice trade quads of O, so that each merges its share of them.
        leaf.send_parts(acc, top, o_s, o_full, rank, 2, 8, 16, worker)
        cute.arch.mbarrier_wait(o_full, 0)
        leaf.merge_sent(quads, lses, o_s, 8, worker)
        clusters = splits // 16
        last = Boolean(True)
        if clusters > 1:
            leaf.leave_part(quads, lses, o_partial, lse_partial, row, splits, part * 16 + rank, head0, share, 64, 16, worker)
            cute.arch.barrier(barrier_id=1, number_of_threads=128)
            grid.count_in(last_s, arrivals + bx * 16 + rank, clusters, worker)
            cute.arch.barrier(barrier_id=1, number_of_threads=128)
            last = last_s.load() == clusters - 1
        if last:
            if clusters > 1:
                leaf.merge_parts(quads, lses, o_partial, lse_partial, row, splits, rank, 16, clusters, head0, share, 64, 16, worker)
            leaf.store_result(out, lse, quads, lses, sinks, row, head0, 64, share, which, 256, 16, lse_scale, worker)
    else:
        # gather: selected rows into the ring
        words = cute.make_rmem_tensor(44, Int32)
        words.fill(0)
        held = cute.make_rmem_tensor(44, Int32)
        held.fill(0)
        worker = thread % 128
        # A tile waits in registers while the next one is read.
        holds = Boolean(False)
        for turn in cutlass.range(turns + 1, unroll=1):
            in_low, in_high, live = leaf.vote(low, high, n)
            now_low = low
            now_high = high
            low, high = leaf.read_ids(indices, topk, row, turn + 1, turns, split, splits_of_row, lane)
            if live | (turn == turns):
                if live:
                    leaf.load_tokens(words, kv_cache, which, 256, now_low, now_high, n, worker)
                if holds:
                    cute.arch.mbarrier_wait(kv_empty + it % 2, ((it // 2) & 1) ^ 1)
                    leaf.store_tokens(held, ckv_s + it % 2 * 16384, kpe_s + it % 2 * 2048, 256, worker)
                    cute.arch.fence_proxy("async.shared", space="cta")
                    cute.arch.mbarrier_arrive(kv_full + it % 2)
                    it = it + 1
                leaf.move(held, words)
                holds = live
        cute.arch.cluster_wait()


@cute.jit
def program(
    q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: cutlass.Float32, lse_scale: cutlass.Float32,
    t: cutlass.Int32, n: cutlass.Int32, topk: cutlass.Int32, splits: cutlass.Int32,
    arrival_slots: cutlass.Int32
):
    sparse_mla__cutedsl_sm90a__h64_fp8_bt64_st2_cl16_sl2_hb16(
        q_nope, q_pe, kv_cache, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale,
        lse_scale, t, n, topk, splits, arrival_slots
    ).launch(
        grid=(1, 1, 1), block=(256, 1, 1), cluster=(1, 16, 1), min_blocks_per_mp=1
    )
