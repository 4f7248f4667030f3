"""sparse_mla__cutedsl_sm100a__h128_bf16_bt64_cl1_gather4

Generated from dsl_kernels/programs/sparse_mla.py and the leaves in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: heads=128, kv=bf16, tile=64, cluster=1, gather=gather4.

roles
  softmax    threads 0..127  queries, online softmax, lazy rescale, epilogue, merge
  producer   threads 128..159  selected rows into the rings
  mma        threads 160..191  issues every tcgen05.mma and commit
buffers
  q_s        64x512 bfloat16, shared, 128-byte swizzle
  qpe_s      64x64 bfloat16, shared, 128-byte swizzle
  kv_s       8 stages of 64x128 bfloat16, shared, 128-byte swizzle
  pe_s       64x64 bfloat16, shared, 128-byte swizzle
  p_s        64x64 bfloat16, shared, 128-byte swizzle
  red_s      2 stages of 4x64 float32, shared
  stat_s     64 float32, shared
  last_s     1 int32, shared
  o_t        128x256 float32, tensor memory
  s_t        2 stages of 64x64 float32, tensor memory
  scores     64x64 float32, registers of softmax
  sums       4x64 float32, registers of softmax
  risen      4x64 float32, registers of softmax
  top        64 float32, registers of softmax
  peak       64 float32, registers of softmax
  held       128x16 float32, registers of softmax
  rows       64 int32, registers of producer
pipelines
  q: softmax (threads) ==[q_s qpe_s: once]==> mma (tcgen05)
    full  x128: softmax fence.proxy.async, arrive full
      mma: wait full, fence after
  kv: producer (bulk) ==[kv_s: 8-slot ring]==> mma (tcgen05)
    full  x1, 16384 bytes: producer arrive + expect bytes
      mma: wait full, fence after
    empty x1: producer wait empty
      mma: commit -> empty
  pe: producer (bulk) ==[pe_s: 1-slot ring]==> mma (tcgen05)
    full  x1, 8192 bytes: producer arrive + expect bytes
      mma: wait full, fence after
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
totals: 192 threads, 223700 of 232448 bytes of shared memory, 384 of 512 tensor-memory columns, grid (t * 2, splits)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

from dsl_kernels.device.cutedsl import bulk, grid, tcgen05
from dsl_kernels.device.cutedsl import sparse_mla_sm100 as leaf_sm100
from dsl_kernels.device.cutedsl import sparse_mla as leaf
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

QK_NOPE = tcgen05.Product("bfloat16", 64, 64, 128, "k", "k")
QK_PE = tcgen05.Product("bfloat16", 64, 64, 64, "k", "k")
PV = tcgen05.Product("bfloat16", 128, 64, 64, "mn", "mn")

LAUNCH = Launch(
    operands=(
        Operand("q_nope", "tensor", "bfloat16", ('t', '128', '512')),
        Operand("q_pe", "tensor", "bfloat16", ('t', '128', '64')),
        Operand("ckv", "tensor", "bfloat16", ('n', '512'), strides=('ckv_stride', '1')),
        Operand("kpe", "tensor", "bfloat16", ('n', '64'), strides=('kpe_stride', '1')),
        Operand("indices", "tensor", "int32", ('t', 'topk')),
        Operand("attn_sink", "tensor", "float32", ('128',)),
        Operand("out", "tensor", "bfloat16", ('t', '128', '512'), written=True),
        Operand("lse", "tensor", "float32", ('t', '128'), written=True),
        Operand("o_partial", "tensor", "float32", ('t', 'splits', '128', '512'), written=True),
        Operand("lse_partial", "tensor", "float32", ('t', 'splits', '128'), written=True),
        Operand("arrivals", "tensor", "int32", ('arrival_slots',), written=True),
        Operand("sm_scale", "scalar", "float32"),
        Operand("lse_scale", "scalar", "float32"),
    ),
    grid=('t * 2', 'splits', '1'),
    block=192,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "ckv_map", "ckv", "BFLOAT16", global_dims=('512', 'n'), global_strides=('ckv_stride * 2',),
            box=(64, 1), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "kpe_map", "kpe", "BFLOAT16", global_dims=('64', 'n'), global_strides=('kpe_stride * 2',),
            box=(64, 1), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
    ),
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 32768], 1024]
    qpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 4096], 1024]
    kv_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 65536], 1024]
    pe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 4096], 1024]
    p_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 4096], 1024]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, 512], 128]
    stat_s: cute.struct.Align[cute.struct.MemRange[Float32, 64], 128]
    last_s: cute.struct.Align[cute.struct.MemRange[Int32, 1], 128]
    q_full: cute.struct.MemRange[Int64, 1]
    kv_full: cute.struct.MemRange[Int64, 8]
    kv_empty: cute.struct.MemRange[Int64, 8]
    pe_full: cute.struct.MemRange[Int64, 1]
    pe_empty: cute.struct.MemRange[Int64, 1]
    s_full: cute.struct.MemRange[Int64, 2]
    s_empty: cute.struct.MemRange[Int64, 2]
    p_full: cute.struct.MemRange[Int64, 1]
    p_empty: cute.struct.MemRange[Int64, 1]
    o_full: cute.struct.MemRange[Int64, 1]
    tmem: Int32


@cute.kernel
def sparse_mla__cutedsl_sm100a__h128_bf16_bt64_cl1_gather4(
    ckv_map: cute.CopyAtom, ckv_map_coords: cute.Tensor, kpe_map: cute.CopyAtom, kpe_map_coords: cute.Tensor,
    q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: cutlass.Float32, lse_scale: cutlass.Float32,
    t: cutlass.Int32, n: cutlass.Int32, ckv_stride: cutlass.Int32, kpe_stride: cutlass.Int32,
    topk: cutlass.Int32, splits: cutlass.Int32, arrival_slots: cutlass.Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    qpe_s = shared.qpe_s.data_ptr()
    kv_s = shared.kv_s.data_ptr()
    pe_s = shared.pe_s.data_ptr()
    p_s = shared.p_s.data_ptr()
    red_s = shared.red_s.data_ptr()
    stat_s = shared.stat_s.data_ptr()
    last_s = shared.last_s.data_ptr()
    q_full = shared.q_full.data_ptr()
    kv_full = shared.kv_full.data_ptr()
    kv_empty = shared.kv_empty.data_ptr()
    pe_full = shared.pe_full.data_ptr()
    pe_empty = shared.pe_empty.data_ptr()
    s_full = shared.s_full.data_ptr()
    s_empty = shared.s_empty.data_ptr()
    p_full = shared.p_full.data_ptr()
    p_empty = shared.p_empty.data_ptr()
    o_full = shared.o_full.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    bx, split, _ = cute.arch.block_idx()
    row = bx // 2
    head0 = bx % 2 * 64
    turns = (topk // 64 - split + splits - 1) // splits
    it = Int32(0)
    low = Int32(0)
    high = Int32(0)
    in_low = Int32(0)
    in_high = Int32(0)
    live = Boolean(False)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_full + i, 128)
            for i in cutlass.range_constexpr(8):
                cute.arch.mbarrier_init(kv_full + i, 1)
            for i in cutlass.range_constexpr(8):
                cute.arch.mbarrier_init(kv_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(pe_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(pe_empty + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(s_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(s_empty + i, 128)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_full + i, 128)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(o_full + i, 1)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(ckv_map)
        cpasync.prefetch_descriptor(kpe_map)
    if warp == 1:
        cute.arch.alloc_tmem(512, shared.tmem)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, shared.tmem)
    low, high = leaf.read_ids(indices, topk, row, 0, turns, split, splits, lane)
    if warp < 4:
        # softmax: queries, online softmax, lazy rescale, epilogue, merge
        scores = cute.make_rmem_tensor(32, Float32)
        sums = cute.make_rmem_tensor(16, Float32)
        risen = cute.make_rmem_tensor(16, Float32)
        top = cute.make_rmem_tensor(16, Float32)
        peak = cute.make_rmem_tensor(16, Float32)
        held = cute.make_rmem_tensor(16, Float32)
        held.fill(0)
        worker = thread
        # q: filled once, so its slot is free
        leaf_sm100.load_block(q_s, q_nope, row, head0, 128, 64, 64, 512, worker)
        leaf_sm100.load_block(qpe_s, q_pe, row, head0, 128, 64, 64, 64, worker)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.mbarrier_arrive(q_full)
        sums.fill(0.0)
        peak.fill(-Float32.inf)
        grown = Boolean(False)
        for turn in cutlass.range(turns, unroll=1):
            in_low, in_high, live = leaf.vote(low, high, n)
            low, high = leaf.read_ids(indices, topk, row, turn + 1, turns, split, splits, lane)
            if live:
                cute.arch.mbarrier_wait(s_full + it % 2, (it // 2) & 1)
                nvvm.tcgen05_fence("after_thread_sync")
                leaf_sm100.read_scores(scores, tmem + 256 + it % 2 * 64, worker)
                cute.arch.fence_view_async_tmem_load()
                nvvm.tcgen05_fence("before_thread_sync")
                cute.arch.mbarrier_arrive(s_empty + it % 2)
                leaf.mask_scores(scores, in_low, in_high, sm_scale, worker)
                leaf.column_maxima(risen, scores, worker)
                leaf_sm100.share_columns(red_s + it % 2 * 256, risen, worker)
                cute.arch.barrier(barrier_id=1, number_of_threads=128)
                leaf_sm100.join_maxima(top, red_s + it % 2 * 256, worker)
                grown = leaf_sm100.outgrown(top, peak, 8)
                if grown:
                    leaf_sm100.raise_reference(peak, top, sums, stat_s, worker)
                    cute.arch.barrier(barrier_id=1, number_of_threads=128)
                    if it > 0:
                        cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                        nvvm.tcgen05_fence("after_thread_sync")
                        leaf_sm100.rescale_output(tmem + 0 + 0 * 256, held, stat_s, 64, worker)
                        # o: p also gives its slot back
                cute.arch.mbarrier_wait(p_empty, (it & 1) ^ 1)
                leaf_sm100.weigh_tokens(scores, sums, peak)
                leaf.store_weights(p_s, scores, 64, worker)
                # Where O was not rescaled it is waited for here: a parity can only tell one phase from the next.
                if (it > 0) & (grown == False):
                    cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # o: p also gives its slot back
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.fence_view_async_tmem_load()
                cute.arch.fence_view_async_tmem_store()
                nvvm.tcgen05_fence("before_thread_sync")
                cute.arch.mbarrier_arrive(p_full)
                it = it + 1
        leaf.column_sums(risen, sums, worker)
        leaf_sm100.share_columns(red_s + it % 2 * 256, risen, worker)
        cute.arch.barrier(barrier_id=1, number_of_threads=128)
        leaf_sm100.join_sums(top, red_s + it % 2 * 256, worker)
        alone = splits == 1
        leaf_sm100.finish_columns(top, peak, stat_s, attn_sink, lse, lse_partial, row, head0, 128, 64, splits, split, alone, lse_scale, worker)
        cute.arch.barrier(barrier_id=1, number_of_threads=128)
        if it > 0:
            cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
        leaf_sm100.write_output(tmem + 0 + 0 * 256, held, stat_s, out, o_partial, row, head0, 128, 64, splits, split, alone, it > 0, worker)
        last = Boolean(False)
        if splits > 1:
            cute.arch.barrier(barrier_id=1, number_of_threads=128)
            grid.count_in(last_s, arrivals + bx, splits, worker)
            cute.arch.barrier(barrier_id=1, number_of_threads=128)
            last = last_s.load() == splits - 1
        if last:
            leaf_sm100.merge_columns(o_partial, lse_partial, attn_sink, out, lse, row, head0, 128, 64, splits, lse_scale, 0, 512, worker, 128)
    elif warp < 5:
        # producer: selected rows into the rings
        rows = cute.make_rmem_tensor(64, Int32)
        leaf_sm100.read_rows(rows, indices, topk, row, 0, turns, split, splits, lane)
        for turn in cutlass.range(turns, unroll=1):
            in_low, in_high, live = leaf.vote(low, high, n)
            low, high = leaf.read_ids(indices, topk, row, turn + 1, turns, split, splits, lane)
            if live:
                for c in cutlass.range(4, unroll=1):
                    cute.arch.mbarrier_wait(kv_empty + (it * 4 + c) % 8, (((it * 4 + c) // 8) & 1) ^ 1)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(kv_full + (it * 4 + c) % 8, 16384)
                    bulk.load_rows(ckv_map, ckv_map_coords, rows, c * 128, 128, kv_s + (it * 4 + c) % 8 * 8192, kv_full + (it * 4 + c) % 8)
                cute.arch.mbarrier_wait(pe_empty, (it & 1) ^ 1)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(pe_full, 8192)
                bulk.load_rows(kpe_map, kpe_map_coords, rows, 0, 64, pe_s, pe_full)
                it = it + 1
            leaf_sm100.read_rows(rows, indices, topk, row, turn + 1, turns, split, splits, lane)
    else:
        # mma: issues every tcgen05.mma and commit
        qk_nope_a = QK_NOPE.operand_a(kv_s, 64, 128, 8, 128)
        qk_nope_b = QK_NOPE.operand_b(q_s, 64, 512, 1, 128)
        qk_pe_a = QK_PE.operand_a(pe_s, 64, 64, 1, 128)
        qk_pe_b = QK_PE.operand_b(qpe_s, 64, 64, 1, 128)
        pv_a = PV.operand_a(kv_s, 64, 128, 8, 128)
        pv_b = PV.operand_b(p_s, 64, 64, 1, 128)
        cute.arch.mbarrier_wait(q_full, 0)
        nvvm.tcgen05_fence("after_thread_sync")
        for turn in cutlass.range(turns + 1, unroll=1):
            in_low, in_high, live = leaf.vote(low, high, n)
            low, high = leaf.read_ids(indices, topk, row, turn + 1, turns, split, splits, lane)
            late = it > 0
            done = it - 1
            if live:
                cute.arch.mbarrier_wait(s_empty + it % 2, ((it // 2) & 1) ^ 1)
                nvvm.tcgen05_fence("after_thread_sync")
                for c in cutlass.range(4, unroll=1):
                    cute.arch.mbarrier_wait(kv_full + (it * 4 + c) % 8, ((it * 4 + c) // 8) & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # S^T += K Q^T, a unit of the dims
                    QK_NOPE.multiply(qk_nope_a[None, None, None, (it * 4 + c) % 8], qk_nope_b[None, None, None, c], tmem + 256 + it % 2 * 64, c > 0)
                cute.arch.mbarrier_wait(pe_full, it & 1)
                nvvm.tcgen05_fence("after_thread_sync")
                # the rope dims
                QK_PE.multiply(qk_pe_a[None, None, None, 0], qk_pe_b[None, None, None, 0], tmem + 256 + it % 2 * 64, True)
                with cute.arch.elect_one():
                    tcgen05.commit(pe_empty)
                with cute.arch.elect_one():
                    tcgen05.commit(s_full + it % 2)
                it = it + 1
            # The values of a tile follow the scores of the next one, so that softmax never idles.
            if late & (live | (turn == turns)):
                cute.arch.mbarrier_wait(p_full, done & 1)
                nvvm.tcgen05_fence("after_thread_sync")
                # o: p also gives its slot back
                for c in cutlass.range(4, unroll=1):
                    # O^T += K^T P^T, a unit of the dims
                    PV.multiply(pv_a[None, None, None, (done * 4 + c) % 8], pv_b[None, None, None, 0], tmem + 0 + 0 * 256 + c * 64, done > 0)
                    with cute.arch.elect_one():
                        tcgen05.commit(kv_empty + (done * 4 + c) % 8)
                with cute.arch.elect_one():
                    tcgen05.commit(p_empty)
                with cute.arch.elect_one():
                    tcgen05.commit(o_full)
    # Tensor memory goes back only when no role can touch it any more.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if thread // 32 == 1:
        cute.arch.dealloc_tmem(tmem, 512)


@cute.jit
def program(
    q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: cutlass.Float32, lse_scale: cutlass.Float32,
    t: cutlass.Int32, n: cutlass.Int32, ckv_stride: cutlass.Int32, kpe_stride: cutlass.Int32,
    topk: cutlass.Int32, splits: cutlass.Int32, arrival_slots: cutlass.Int32
):
    ckv_map, ckv_map_coords = bulk.row_map(ckv, cutlass.BFloat16, 512, 64)
    kpe_map, kpe_map_coords = bulk.row_map(kpe, cutlass.BFloat16, 64, 64)
    sparse_mla__cutedsl_sm100a__h128_bf16_bt64_cl1_gather4(
        ckv_map, ckv_map_coords, kpe_map, kpe_map_coords, q_nope, q_pe, ckv, kpe, indices, attn_sink, out,
        lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale, t, n, ckv_stride, kpe_stride, topk,
        splits, arrival_slots
    ).launch(
        grid=(1, 1, 1), block=(192, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1
    )
