"""sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl1_hb64

Generated from templates/cutedsl/sparse_mla.sm_90a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/sparse_mla.py, not this file. Knobs: heads=64, kv=bf16, tile=64, stages=2, cluster=1, block=64.

roles
  attend     threads 0..255, 216 registers  queries, both products, softmax, merge, output
  gather     threads 256..383, 72 registers  selected rows into the ring
buffers
  q_s        64x512 bfloat16, shared, 128-byte swizzle
  qpe_s      64x64 bfloat16, shared, 128-byte swizzle
  ckv_s      2 stages of 64x512 bfloat16, shared, 128-byte swizzle
  kpe_s      2 stages of 64x64 bfloat16, shared, 128-byte swizzle
  p_s        64x64 bfloat16, shared, 128-byte swizzle
  red_s      2x64 float32, shared
  last_s     1 int32, shared
  scores     64x64 float32, registers of attend
  acc        64x512 float32, registers of attend
pipelines
  kv: gather (cp_async) ==[ckv_s kpe_s: 2-slot ring]==> attend (wgmma)
    full  x128: gather hardware arrives per thread
      attend: wait full, fence.proxy.async
    empty x256: gather wait empty
      attend: wgmma wait, arrive empty
  named barrier attend: attend
totals: 384 threads, 229924 of 232448 bytes of shared memory, grid (t * 1, splits)
"""
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from dsl_kernels.device.cutedsl import sparse_mla as leaf
from dsl_kernels.device.cutedsl import sparse_mla_wide as wide
from dsl_kernels.runtime.artifact import Launch, Operand

LAUNCH = Launch(
    operands=(
        Operand("q_nope", "tensor", "bfloat16", ('t', '64', '512')),
        Operand("q_pe", "tensor", "bfloat16", ('t', '64', '64')),
        Operand("ckv", "tensor", "bfloat16", ('n', '512'), strides=('ckv_stride', '1')),
        Operand("kpe", "tensor", "bfloat16", ('n', '64'), strides=('kpe_stride', '1')),
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
    grid=('t * 1', 'splits', '1'),
    block=384,
    cluster=(1, 1, 1),
)


@cute.kernel
def sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl1_hb64(q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: cutlass.Float32, lse_scale: cutlass.Float32, t: cutlass.Int32, n: cutlass.Int32, ckv_stride: cutlass.Int32, kpe_stride: cutlass.Int32, topk: cutlass.Int32, splits: cutlass.Int32, arrival_slots: cutlass.Int32):
    smem = cutlass.memory.SmemAllocator()
    q_s = smem.allocate_array(BFloat16, 32768, byte_alignment=1024)
    ckv_s = smem.allocate_array(BFloat16, 65536, byte_alignment=1024)
    kpe_s = smem.allocate_array(BFloat16, 8192, byte_alignment=1024)
    qpe_s = smem.allocate_array(BFloat16, 4096, byte_alignment=1024)
    p_s = smem.allocate_array(BFloat16, 4096, byte_alignment=1024)
    red_s = smem.allocate_array(Float32, 128, byte_alignment=16)
    last_s = smem.allocate_array(Int32, 1)
    kv_full = smem.allocate_array(Int64, 2)
    kv_empty = smem.allocate_array(Int64, 2)

    thread, _, _ = cute.arch.thread_idx()
    bx, split, _ = cute.arch.block_idx()
    lane = thread % 32
    row = bx
    head0 = 0
    turns = (topk // 64 - split + splits - 1) // splits
    if thread == 0:
        for i in cutlass.range_constexpr(2):
            cute.arch.mbarrier_init(kv_full + i, 128)
        for i in cutlass.range_constexpr(2):
            cute.arch.mbarrier_init(kv_empty + i, 256)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    # So far nothing of the kernel before this one was needed.
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    row_ids = cute.make_tensor(indices + Int64(row) * Int64(topk), cute.make_layout(topk))
    # Both roles count the live tiles on their own reading of the ids, one turn ahead.
    low, high = leaf.read_ids(row_ids, Int32(0), turns, split, splits, lane)

    group = cute.arch.make_warp_uniform(thread // 128) % 2
    local = thread % 128
    scores_mma, values_mma = wide.products()
    queries, keys = wide.score_operands(scores_mma, ckv_s, q_s, 512, 2, group, local)
    rope_queries, rope_keys = wide.score_operands(scores_mma, kpe_s, qpe_s, 64, 2, group, local)
    weights, values = wide.value_operands(values_mma, ckv_s, p_s, 512, 2, group, local)
    scores = cute.make_rmem_tensor(scores_mma.partition_shape_C((64, 32)), Float32)
    acc = cute.make_rmem_tensor(values_mma.partition_shape_C((64, 256)), Float32)
    sums = cute.make_rmem_tensor((2,), Float32)
    peak = cute.make_rmem_tensor((2,), Float32)
    red = cute.make_tensor(red_s, cute.make_layout((2, 64), stride=(64, 1)))
    it = Int32(0)
    last = Boolean(False)

    if thread < 256:
        cute.arch.setmaxregister_increase(216)
        first = Int64(row) * 64 + head0
        wide.load_queries(q_s.toint(), q_nope.toint() + first * 1024, 1024, thread)
        wide.load_queries(qpe_s.toint(), q_pe.toint() + first * 128, 128, thread)
        sinks = cute.make_rmem_tensor((2,), Float32)
        wide.load_sinks(sinks, attn_sink + head0, local)
        cute.arch.fence_view_async_shared()
        cute.arch.barrier(barrier_id=1, number_of_threads=256)
        acc.fill(0.0)
        sums.fill(0.0)
        peak.fill(-Float32.inf)
        for turn in cutlass.range(turns, unroll=1):
            in_low, in_high = leaf.vote(low, high, n)
            low, high = leaf.read_ids(row_ids, turn + 1, turns, split, splits, lane)
            if (in_low | in_high) != 0:
                slot = it % 2
                cute.arch.mbarrier_wait(kv_full + it % 2, (it // 2) & 1)
                cute.arch.fence_proxy("async.shared", space="cta")
                warpgroup.fence()
                wide.multiply(scores_mma, scores, queries, keys[None, None, None, slot], False)
                wide.multiply(scores_mma, scores, rope_queries, rope_keys[None, None, None, slot], True)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                wide.mask_scores(scores, in_low, in_high, sm_scale * leaf.LOG2E, group, local)
                rows = wide.row_maxima(scores)
                wide.share_rows(rows, red, group, local, True)
                cute.arch.barrier(barrier_id=1, number_of_threads=256)
                wide.softmax(scores, sums, acc, peak, rows, red, group, local)
                wide.store_weights(p_s.toint(), scores, group, local)
                cute.arch.fence_view_async_shared()
                cute.arch.barrier(barrier_id=1, number_of_threads=256)
                warpgroup.fence()
                wide.multiply(values_mma, acc, weights, values[None, None, None, slot], True)
                warpgroup.commit_group()
                warpgroup.wait_group(0)
                cute.arch.mbarrier_arrive(kv_empty + it % 2)
                it += 1
        rows = cute.make_rmem_tensor((2,), Float32)
        leaf.move(rows, sums)
        wide.share_rows(rows, red, group, local, False)
        cute.arch.barrier(barrier_id=1, number_of_threads=256)
        wide.normalise(acc, sums, peak, rows, red, group, local)
        # Partials keep the order in which the threads hold O.
        mine = Int64(row) * splits + split
        room = mine * 32768 + head0 * 512 + group * 16384 + local * 4
        if splits > 1:
            wide.leave_part(acc, sums, o_partial, lse_partial, room, mine * 64 + head0, group, local)
            last = wide.take_ticket(last_s, arrivals + bx, splits, 1, thread)
            if last:
                wide.merge_parts(
                    acc, sums, o_partial, lse_partial, room - split * 32768, (mine - split) * 64 + head0,
                    32768, 64, splits, local,
                )
        else:
            last = Boolean(True)
        if last:
            wide.store_result(out, lse, acc, sums, sinks, first, ckv_s.toint(), group, lse_scale, local)
    else:
        cute.arch.setmaxregister_decrease(72)
        worker = thread - 256
        for turn in cutlass.range(turns, unroll=1):
            in_low, in_high = leaf.vote(low, high, n)
            now_low, now_high = low, high
            low, high = leaf.read_ids(row_ids, turn + 1, turns, split, splits, lane)
            if (in_low | in_high) != 0:
                slot = it % 2
                cute.arch.mbarrier_wait(kv_empty + it % 2, ((it // 2) & 1) ^ 1)
                leaf.copy_rows(ckv_s.toint() + slot * 65536, ckv.toint(), Int64(ckv_stride) * 2, 1024, now_low, now_high, n, worker)
                leaf.copy_rows(kpe_s.toint() + slot * 8192, kpe.toint(), Int64(kpe_stride) * 2, 128, now_low, now_high, n, worker)
                cute.arch.cp_async_mbarrier_arrive_noinc(kv_full + it % 2)
                it += 1


@cute.jit
def program(q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: cutlass.Float32, lse_scale: cutlass.Float32, t: cutlass.Int32, n: cutlass.Int32, ckv_stride: cutlass.Int32, kpe_stride: cutlass.Int32, topk: cutlass.Int32, splits: cutlass.Int32, arrival_slots: cutlass.Int32):
    sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl1_hb64(q_nope, q_pe, ckv, kpe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale, t, n, ckv_stride, kpe_stride, topk, splits, arrival_slots).launch(grid=(1, 1, 1), block=(384, 1, 1), cluster=(1, 1, 1))
