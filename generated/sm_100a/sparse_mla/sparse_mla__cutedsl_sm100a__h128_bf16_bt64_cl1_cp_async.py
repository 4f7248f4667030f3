"""sparse_mla__cutedsl_sm100a__h128_bf16_bt64_cl1_cp_async

Generated from templates/cutedsl/sparse_mla.sm_100a.py.j2 by `make generate`: edit the template or the
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
import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

from dsl_kernels.device.cutedsl import sparse_mla_sm100 as leaf
from dsl_kernels.runtime.artifact import Launch, Operand

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
    block=288,
    cluster=(1, 1, 1),
)


@cute.kernel
def sparse_mla__cutedsl_sm100a__h128_bf16_bt64_cl1_cp_async(q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: cutlass.Float32, lse_scale: cutlass.Float32, t: cutlass.Int32, n: cutlass.Int32, ckv_stride: cutlass.Int32, kpe_stride: cutlass.Int32, topk: cutlass.Int32, splits: cutlass.Int32, arrival_slots: cutlass.Int32):
    smem = cutlass.memory.SmemAllocator()
    q_s = smem.allocate_array(cutlass.BFloat16, 32768, byte_alignment=1024)
    qpe_s = smem.allocate_array(cutlass.BFloat16, 4096, byte_alignment=1024)
    kv_s = smem.allocate_tensor(cutlass.BFloat16, cute.make_layout((8192, 8)), 1024)
    pe_s = smem.allocate_tensor(cutlass.BFloat16, cute.make_layout((4096, 1)), 1024)
    p_s = smem.allocate_tensor(cutlass.BFloat16, cute.make_layout((4096, 1)), 1024)
    red_s = smem.allocate_tensor(cutlass.Float32, cute.make_layout((64, 4, 2), stride=(4, 1, 256)), 16)
    stat_s = smem.allocate_tensor(cutlass.Float32, cute.make_layout(64), 16)
    last_s = smem.allocate_tensor(cutlass.Int32, cute.make_layout(1), 16)
    tmem_s = smem.allocate_array(cutlass.Int32, 1)
    q_full = smem.allocate_array(cutlass.Int64, 1)
    kv_full = smem.allocate_array(cutlass.Int64, 8)
    kv_empty = smem.allocate_array(cutlass.Int64, 8)
    pe_full = smem.allocate_array(cutlass.Int64, 1)
    pe_empty = smem.allocate_array(cutlass.Int64, 1)
    s_full = smem.allocate_array(cutlass.Int64, 2)
    s_empty = smem.allocate_array(cutlass.Int64, 2)
    p_full = smem.allocate_array(cutlass.Int64, 1)
    p_empty = smem.allocate_array(cutlass.Int64, 1)
    o_full = smem.allocate_array(cutlass.Int64, 1)

    thread, _, _ = cute.arch.thread_idx()
    lane = thread % 32
    warp = cute.arch.make_warp_uniform(thread // 32)
    if warp == 4:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_full + i, 128)
            for i in cutlass.range_constexpr(8):
                cute.arch.mbarrier_init(kv_full + i, 128)
            for i in cutlass.range_constexpr(8):
                cute.arch.mbarrier_init(kv_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(pe_full + i, 128)
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
    if warp == 8:
        cute.arch.alloc_tmem(512, tmem_s)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    tmem = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, tmem_s)
    # Columns: four accumulators of O^T, then the stages of S^T.
    scores_mma = leaf.score_mma(64)
    values_mma = leaf.value_mma(64)

    bx, rank, part = cute.arch.block_idx()
    split = rank
    row = bx // 2
    head0 = bx % 2 * 64
    ids = cute.make_tensor(indices + cutlass.Int64(row) * cute.assume(topk, divby=64), cute.make_layout(topk))
    tiles = topk // 64
    turns = (tiles - split + splits - 1) // splits
    # Live tiles so far: every role counts the tiles that hold a valid id, on its own reading of the ids.
    it = cutlass.Int32(0)
    low, high = leaf.load_ids(ids, split, tiles, lane)

    if warp < 4:
        first = row * 128 + head0
        leaf.load_queries(leaf.heads_of(q_nope, first, 64, 512), q_s, 64, thread, 128)
        leaf.load_queries(leaf.heads_of(q_pe, first, 64, 64), qpe_s, 64, thread, 128)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.mbarrier_arrive(q_full)
        scores = cute.make_rmem_tensor(32, cutlass.Float32)
        peak = cute.make_rmem_tensor(16, cutlass.Float32)
        reference = cute.make_rmem_tensor(16, cutlass.Float32)
        total = cute.make_rmem_tensor(16, cutlass.Float32)
        reference.fill(-cutlass.Float32.inf)
        total.fill(0.0)
        for turn in cutlass.range(turns, unroll=1):
            lows, highs = leaf.vote(low, high, n)
            low, high = leaf.load_ids(ids, split + (turn + 1) * splits, tiles, lane)
            if (lows | highs) != 0:
                cute.arch.mbarrier_wait(s_full + it % 2, (it // 2) & 1)
                nvvm.tcgen05_fence("after_thread_sync")
                leaf.read_scores(scores, leaf.accumulator(scores_mma, 64, 64, tmem, (4 + it % 2) * 64), thread)
                cute.arch.fence_view_async_tmem_load()
                nvvm.tcgen05_fence("before_thread_sync")
                cute.arch.mbarrier_arrive(s_empty + it % 2)
                leaf.mask_scores(scores, peak, lows, highs, sm_scale * leaf.LOG2E, thread)
                leaf.share_columns(peak, red_s[None, None, it % 2], thread)
                cute.arch.barrier(barrier_id=1, number_of_threads=128)
                leaf.join_peaks(peak, red_s[None, None, it % 2], thread)
                if leaf.outgrown(peak, reference, 8):
                    leaf.raise_reference(peak, reference, total, stat_s, thread)
                    cute.arch.barrier(barrier_id=1, number_of_threads=128)
                    if it > 0:
                        cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                        nvvm.tcgen05_fence("after_thread_sync")
                        leaf.rescale_output(tmem, 4, stat_s, thread)
                cute.arch.mbarrier_wait(p_empty, (it & 1) ^ 1)
                leaf.write_weights(p_s[None, 0], scores, reference, total, thread)
                # Waited for in every tile, rescaled or not: a parity can only tell one phase from the next.
                if it > 0:
                    cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.fence_view_async_tmem_load()
                cute.arch.fence_view_async_tmem_store()
                nvvm.tcgen05_fence("before_thread_sync")
                cute.arch.mbarrier_arrive(p_full)
                it += 1
        alone = splits == 1
        sink = leaf.row_of(attn_sink, head0, 64)
        mine = (row * splits + split) * 128 + head0
        out_row = leaf.heads_of(out, first, 64, 512)
        lse_row = leaf.row_of(lse, first, 64)
        leaf.share_sums(total, red_s[None, None, it % 2], thread)
        cute.arch.barrier(barrier_id=1, number_of_threads=128)
        leaf.finish_columns(total, red_s[None, None, it % 2], reference, stat_s, lse_row, leaf.row_of(lse_partial, mine, 64), sink, alone, lse_scale, thread)
        cute.arch.barrier(barrier_id=1, number_of_threads=128)
        if it > 0:
            cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
        leaf.write_output(tmem, 4, stat_s, out_row, leaf.heads_of(o_partial, mine, 64, 512), alone, it > 0, thread)
        last = cutlass.Boolean(False)
        if splits > 1:
            last = leaf.arrive(arrivals + bx, last_s, splits // 1, thread, 1, 128)
        if last:
            parts, lses = leaf.partials(o_partial, lse_partial, row * splits * 128 + head0, 64, 128, splits)
            leaf.merge_splits(parts, lses, sink, out_row, lse_row, splits, lse_scale, 0, 512, thread, 128)
    elif warp < 8:
        worker = thread & 127
        rows = cute.make_rmem_tensor(8, cutlass.Int32)
        for turn in cutlass.range(turns, unroll=1):
            now_low, now_high = low, high
            lows, highs = leaf.vote(low, high, n)
            low, high = leaf.load_ids(ids, split + (turn + 1) * splits, tiles, lane)
            if (lows | highs) != 0:
                leaf.spread_ids(rows, now_low, now_high, lows, highs, worker)
                for c in cutlass.range(4, unroll=1):
                    cute.arch.mbarrier_wait(kv_empty + (it * 4 + c) % 8, (((it * 4 + c) // 8) & 1) ^ 1)
                    leaf.gather_unit(kv_s[None, (it * 4 + c) % 8], ckv, c * 128, ckv_stride, rows, worker)
                    cute.arch.cp_async_mbarrier_arrive_noinc(kv_full + (it * 4 + c) % 8)
                cute.arch.mbarrier_wait(pe_empty, (it & 1) ^ 1)
                leaf.gather_rope(pe_s[None, 0], kpe, kpe_stride, rows, worker)
                cute.arch.cp_async_mbarrier_arrive_noinc(pe_full)
                it += 1
    else:
        keys, queries = leaf.score_operands(scores_mma, 64, 128, kv_s, q_s, 4)
        ropes, query_ropes = leaf.score_operands(scores_mma, 64, 64, pe_s, qpe_s, 1)
        values, weights = leaf.value_operands(values_mma, 64, kv_s, p_s)
        cute.arch.mbarrier_wait(q_full, 0)
        nvvm.tcgen05_fence("after_thread_sync")
        for turn in cutlass.range(turns + 1, unroll=1):
            lows, highs = leaf.vote(low, high, n)
            low, high = leaf.load_ids(ids, split + (turn + 1) * splits, tiles, lane)
            alive = (lows | highs) != 0
            late, done = it > 0, it - 1
            if alive:
                cute.arch.mbarrier_wait(s_empty + it % 2, ((it // 2) & 1) ^ 1)
                nvvm.tcgen05_fence("after_thread_sync")
                s_t = leaf.accumulator(scores_mma, 64, 64, tmem, (4 + it % 2) * 64)
                for c in cutlass.range(4, unroll=1):
                    cute.arch.mbarrier_wait(kv_full + (it * 4 + c) % 8, ((it * 4 + c) // 8) & 1)
                    cute.arch.fence_proxy("async.shared", space="cta")
                    nvvm.tcgen05_fence("after_thread_sync")
                    leaf.issue(scores_mma, s_t, keys[None, None, None, (it * 4 + c) % 8], queries[None, None, None, c], c > 0)
                cute.arch.mbarrier_wait(pe_full, it & 1)
                cute.arch.fence_proxy("async.shared", space="cta")
                nvvm.tcgen05_fence("after_thread_sync")
                leaf.issue(scores_mma, s_t, ropes[None, None, None, 0], query_ropes[None, None, None, 0], True)
                with cute.arch.elect_one():
                    tcgen05.commit(pe_empty)
                    tcgen05.commit(s_full + it % 2)
                it += 1
            # The values of tile i are issued behind the scores of tile i + 1, so that softmax never idles.
            if late & (alive | (turn == turns)):
                cute.arch.mbarrier_wait(p_full, done & 1)
                nvvm.tcgen05_fence("after_thread_sync")
                for c in cutlass.range(4, unroll=1):
                    leaf.issue(values_mma, leaf.accumulator(values_mma, 64, 128, tmem, c * 64), values[None, None, None, (done * 4 + c) % 8], weights[None, None, None, 0], done > 0)
                    with cute.arch.elect_one():
                        tcgen05.commit(kv_empty + (done * 4 + c) % 8)
                with cute.arch.elect_one():
                    tcgen05.commit(p_empty)
                    tcgen05.commit(o_full)
    # Tensor memory goes back only when no role can touch it any more.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if warp == 8:
        cute.arch.dealloc_tmem(tmem, 512)


@cute.jit
def program(q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: cutlass.Float32, lse_scale: cutlass.Float32, t: cutlass.Int32, n: cutlass.Int32, ckv_stride: cutlass.Int32, kpe_stride: cutlass.Int32, topk: cutlass.Int32, splits: cutlass.Int32, arrival_slots: cutlass.Int32):
    sparse_mla__cutedsl_sm100a__h128_bf16_bt64_cl1_cp_async(q_nope, q_pe, ckv, kpe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale, t, n, ckv_stride, kpe_stride, topk, splits, arrival_slots).launch(grid=(1, 1, 1), block=(288, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1)
