"""gqa_forward__cutedsl_sm90a__bf16_d128_n160_st2_o1_c1

Generated from dsl_kernels/programs/gqa_forward.py and the leaves in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: dtype=bf16, dim=128, tile=160, stages=2, order=1, cluster=1.

roles
  attend     threads 0..255, 240 registers  64 rows each: products, softmax, epilogue
  load       threads 256..383, 24 registers  queries, keys and values
buffers
  q_s        128x128 bfloat16, shared, 128-byte swizzle
  k_s        2 stages of 160x128 bfloat16, shared, 128-byte swizzle
  v_s        2 stages of 160x128 bfloat16, shared, 128-byte swizzle
  o_s        128x128 bfloat16, shared, 128-byte swizzle
  scores     64x160 float32, registers of attend
  weights    64x160 bfloat16, registers of attend
  acc        64x128 float32, registers of attend
  rounded    64x128 bfloat16, registers of attend
  top        64 float32, registers of attend
  total      64 float32, registers of attend
  factor     64 float32, registers of attend
pipelines
  q: load (bulk) ==[q_s: 1-slot ring]==> attend (wgmma)
    full  x1, 32768 bytes: load arrive + expect bytes
      attend: wait full
    empty x8: load wait empty
      attend: wgmma wait, one lane a warp, arrive empty
  k: load (bulk) ==[k_s: 2-slot ring]==> attend (wgmma)
    full  x1, 40960 bytes: load arrive + expect bytes
      attend: wait full
    empty x8: load wait empty
      attend: wgmma wait, one lane a warp, arrive empty
  v: load (bulk) ==[v_s: 2-slot ring]==> attend (wgmma)
    full  x1, 40960 bytes: load arrive + expect bytes
      attend: wait full
    empty x8: load wait empty
      attend: wgmma wait, one lane a warp, arrive empty
  in turn issue: attend -> attend 1 -> ...
  named barrier staged: attend
totals: 384 threads, 229456 of 232448 bytes of shared memory, grid (ctas, 1)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from dsl_kernels.device.cutedsl import boxes, bulk, grid, wgmma, wgmma_register
from dsl_kernels.device.cutedsl import gqa_forward as leaf
from dsl_kernels.device.cutedsl import fragment
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

QK = wgmma.Product("bfloat16", 64, 160, 128, "k", "k")
PV = wgmma_register.Product("bfloat16", 64, 128, 160, "k", "mn")

LAUNCH = Launch(
    operands=(
        Operand("q", "tensor", "bfloat16", ('b', 'sq', 'heads', '128'), strides=('q_stride_b', 'q_stride_s', 'q_stride_h', '1')),
        Operand("k", "tensor", "bfloat16", ('b', 'skv', 'kv_heads', '128'), strides=('k_stride_b', 'k_stride_s', 'k_stride_h', '1')),
        Operand("v", "tensor", "bfloat16", ('b', 'skv', 'kv_heads', '128'), strides=('v_stride_b', 'v_stride_s', 'v_stride_h', '1')),
        Operand("out", "tensor", "bfloat16", ('b', 'sq', 'heads', '128'), written=True),
        Operand("lse", "tensor", "float32", ('b', 'heads', 'sq'), written=True),
        Operand("sm_scale", "scalar", "float32"),
        Operand("causal", "scalar", "int32"),
        Operand("ctas", "scalar", "int32"),
        Operand("abreast", "scalar", "int32"),
    ),
    grid=('ctas', '1', '1'),
    block=384,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "q_map", "q", "BFLOAT16", global_dims=('128', 'sq', 'heads', 'b'), global_strides=('q_stride_s * 2', 'q_stride_h * 2', 'q_stride_b * 2'),
            box=(64, 128, 1, 1), element_strides=(1, 1, 1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "k_map", "k", "BFLOAT16", global_dims=('128', 'skv', 'kv_heads', 'b'), global_strides=('k_stride_s * 2', 'k_stride_h * 2', 'k_stride_b * 2'),
            box=(64, 160, 1, 1), element_strides=(1, 1, 1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "v_map", "v", "BFLOAT16", global_dims=('128', 'skv', 'kv_heads', 'b'), global_strides=('v_stride_s * 2', 'v_stride_h * 2', 'v_stride_b * 2'),
            box=(64, 160, 1, 1), element_strides=(1, 1, 1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "out_map", "out", "BFLOAT16", global_dims=('128', 'sq', 'heads', 'b'), global_strides=('heads * 256', '256', 'sq * heads * 256'),
            box=(64, 64, 1, 1), element_strides=(1, 1, 1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
    ),
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 16384], 1024]
    k_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 40960], 1024]
    v_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 40960], 1024]
    o_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, 16384], 1024]
    q_full: cute.struct.MemRange[Int64, 1]
    q_empty: cute.struct.MemRange[Int64, 1]
    k_full: cute.struct.MemRange[Int64, 2]
    k_empty: cute.struct.MemRange[Int64, 2]
    v_full: cute.struct.MemRange[Int64, 2]
    v_empty: cute.struct.MemRange[Int64, 2]


@cute.kernel
def gqa_forward__cutedsl_sm90a__bf16_d128_n160_st2_o1_c1(
    q_map: cute.CopyAtom, q_map_coords: cute.Tensor, k_map: cute.CopyAtom, k_map_coords: cute.Tensor,
    v_map: cute.CopyAtom, v_map_coords: cute.Tensor, out_map: cute.CopyAtom, out_map_coords: cute.Tensor,
    q: cute.Pointer, k: cute.Pointer, v: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    sm_scale: cutlass.Float32, causal: cutlass.Int32, ctas: cutlass.Int32, abreast: cutlass.Int32,
    b: cutlass.Int32, sq: cutlass.Int32, heads: cutlass.Int32, q_stride_b: cutlass.Int32,
    q_stride_s: cutlass.Int32, q_stride_h: cutlass.Int32, skv: cutlass.Int32, kv_heads: cutlass.Int32,
    k_stride_b: cutlass.Int32, k_stride_s: cutlass.Int32, k_stride_h: cutlass.Int32,
    v_stride_b: cutlass.Int32, v_stride_s: cutlass.Int32, v_stride_h: cutlass.Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    k_s = shared.k_s.data_ptr()
    v_s = shared.v_s.data_ptr()
    o_s = shared.o_s.data_ptr()
    q_full = shared.q_full.data_ptr()
    q_empty = shared.q_empty.data_ptr()
    k_full = shared.k_full.data_ptr()
    k_empty = shared.k_empty.data_ptr()
    v_full = shared.v_full.data_ptr()
    v_empty = shared.v_empty.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    cta, rank, _ = cute.arch.block_idx()
    blocks = leaf.ceildiv(sq, 128)
    bundles = b * heads
    items = leaf.ceildiv(blocks * bundles - cta, ctas)
    shift = skv - causal * sq
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_empty + i, 8)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(k_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(k_empty + i, 8)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(v_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(v_empty + i, 8)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(q_map)
        cpasync.prefetch_descriptor(k_map)
        cpasync.prefetch_descriptor(v_map)
        cpasync.prefetch_descriptor(out_map)
    cute.arch.sync_threads()
    if warp < 8:
        # attend: 64 rows each: products, softmax, epilogue
        cute.arch.setmaxregister_increase(240)
        qk_a = QK.operand_a(q_s, 128, 128, 1, 128)
        qk_b = QK.operand_b(k_s, 160, 128, 2, 128)
        pv_b = PV.operand_b(v_s, 160, 128, 2, 128)
        scores = QK.accumulators()
        weights = cute.make_rmem_tensor(128, cutlass.BFloat16)
        weights.fill(0)
        acc = PV.accumulators()
        rounded = cute.make_rmem_tensor(64, cutlass.BFloat16)
        rounded.fill(0)
        top = cute.make_rmem_tensor(2, Float32)
        total = cute.make_rmem_tensor(2, Float32)
        factor = cute.make_rmem_tensor(2, Float32)
        replica = warp // 4
        worker = thread - replica * 128
        if replica == 1:
            cute.arch.barrier_arrive(barrier_id=(replica + 1) % 2 + 3, number_of_threads=256)
        scale = sm_scale * 1.4426950408889634
        done = Int32(0)
        for item in cutlass.range(items, unroll=1):
            number = cta + item * ctas
            first = number // (abreast * blocks) * abreast
            within = number - first * blocks
            width = cutlass.min(abreast, bundles - first)
            bundle = first + within % width
            pair = bundle
            batch = pair // heads
            head = pair - batch * heads
            row = (blocks - 1 - within // width) * 128
            tiles = leaf.ceildiv(cutlass.min(skv, row + shift + 128), 160)
            whole = cutlass.min(skv, row + shift + 1) // 160
            own_row = row + replica * 64
            acc.fill(0.0)
            top.fill(-Float32.inf)
            total.fill(0.0)
            cute.arch.mbarrier_wait(q_full, item & 1)
            cute.arch.mbarrier_wait(k_full + done % 2, (done // 2) & 1)
            # S = Q K^T
            warpgroup.fence()
            QK.multiply(qk_a[None, None, None, 0, replica, 0], qk_b[None, None, None, done % 2, 0, 0], scores, False)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(k_empty + done % 2)
            leaf.hide_keys(scores, own_row, (tiles - 1) * 160, skv, shift, worker)
            leaf.online_softmax(scores, top, total, factor, scale, True, worker)
            fragment.round_to(weights, scores)
            masked = cutlass.max(1, tiles - whole)
            for i in cutlass.range(1, masked, 1, unroll=1):
                cute.arch.barrier(barrier_id=replica + 3, number_of_threads=256)
                cute.arch.mbarrier_wait(k_full + (done + i) % 2, ((done + i) // 2) & 1)
                # S = Q K^T
                warpgroup.fence()
                QK.multiply(qk_a[None, None, None, 0, replica, 0], qk_b[None, None, None, (done + i) % 2, 0, 0], scores, False)
                warpgroup.commit_group()
                cute.arch.mbarrier_wait(v_full + (done + (i - 1)) % 2, ((done + (i - 1)) // 2) & 1)
                # O += P V
                warpgroup.fence()
                PV.multiply(weights, pv_b[None, None, None, (done + (i - 1)) % 2, 0, 0], acc, True)
                warpgroup.commit_group()
                cute.arch.barrier_arrive(barrier_id=(replica + 1) % 2 + 3, number_of_threads=256)
                warpgroup.wait_group(1)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(k_empty + (done + i) % 2)
                leaf.hide_keys(scores, own_row, (tiles - 1 - i) * 160, skv, shift, worker)
                leaf.online_softmax(scores, top, total, factor, scale, True, worker)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(v_empty + (done + (i - 1)) % 2)
                fragment.round_to(weights, scores)
                fragment.scale_rows(acc, factor, worker)
            for i in cutlass.range(masked, tiles, 1, unroll=1):
                cute.arch.barrier(barrier_id=replica + 3, number_of_threads=256)
                cute.arch.mbarrier_wait(k_full + (done + i) % 2, ((done + i) // 2) & 1)
                # S = Q K^T
                warpgroup.fence()
                QK.multiply(qk_a[None, None, None, 0, replica, 0], qk_b[None, None, None, (done + i) % 2, 0, 0], scores, False)
                warpgroup.commit_group()
                cute.arch.mbarrier_wait(v_full + (done + (i - 1)) % 2, ((done + (i - 1)) // 2) & 1)
                # O += P V
                warpgroup.fence()
                PV.multiply(weights, pv_b[None, None, None, (done + (i - 1)) % 2, 0, 0], acc, True)
                warpgroup.commit_group()
                cute.arch.barrier_arrive(barrier_id=(replica + 1) % 2 + 3, number_of_threads=256)
                warpgroup.wait_group(1)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(k_empty + (done + i) % 2)
                leaf.online_softmax(scores, top, total, factor, scale, False, worker)
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(v_empty + (done + (i - 1)) % 2)
                fragment.round_to(weights, scores)
                fragment.scale_rows(acc, factor, worker)
            cute.arch.mbarrier_wait(v_full + (done + (tiles - 1)) % 2, ((done + (tiles - 1)) // 2) & 1)
            # O += P V
            warpgroup.fence()
            PV.multiply(weights, pv_b[None, None, None, (done + (tiles - 1)) % 2, 0, 0], acc, True)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(q_empty)
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(v_empty + (done + (tiles - 1)) % 2)
            leaf.divide_by_total(acc, top, total, scale, worker)
            leaf.store_lse(lse, top, batch, head, heads, own_row, sq, worker)
            fragment.round_to(rounded, acc)
            if warp == replica * 4:
                cute.arch.cp_async_bulk_wait_group(0, read=True)
            cute.arch.barrier(barrier_id=replica + 1, number_of_threads=128)
            fragment.stage_rows(o_s, replica * 64, 128, rounded, worker)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=replica + 1, number_of_threads=128)
            if warp == replica * 4:
                boxes.store_box(out_map, out_map_coords, (batch, head, own_row, 0), (1, 1, 64, 64), o_s + replica * 64 * 64)
                boxes.store_box(out_map, out_map_coords, (batch, head, own_row, 64), (1, 1, 64, 64), o_s + (8192 + replica * 64 * 64))
                cute.arch.cp_async_bulk_commit_group()
            done = done + tiles
        if warp == replica * 4:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
    else:
        # load: queries, keys and values
        cute.arch.setmaxregister_decrease(24)
        if warp == 8:
            done = Int32(0)
            for item in cutlass.range(items, unroll=1):
                number = cta + item * ctas
                first = number // (abreast * blocks) * abreast
                within = number - first * blocks
                width = cutlass.min(abreast, bundles - first)
                bundle = first + within % width
                pair = bundle
                batch = pair // heads
                head = pair - batch * heads
                row = (blocks - 1 - within // width) * 128
                tiles = leaf.ceildiv(cutlass.min(skv, row + shift + 128), 160)
                whole = cutlass.min(skv, row + shift + 1) // 160
                kv_head = head * kv_heads // heads
                cute.arch.mbarrier_wait(k_empty + done % 2, ((done // 2) & 1) ^ 1)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(k_full + done % 2, 40960)
                boxes.load_box(k_map, k_map_coords, (batch, kv_head, (tiles - 1) * 160, 0), (1, 1, 160, 64), k_s + done % 2 * 20480, k_full + done % 2)
                boxes.load_box(k_map, k_map_coords, (batch, kv_head, (tiles - 1) * 160, 64), (1, 1, 160, 64), k_s + (done % 2 * 20480 + 10240), k_full + done % 2)
                cute.arch.mbarrier_wait(q_empty, (item & 1) ^ 1)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(q_full, 32768)
                boxes.load_box(q_map, q_map_coords, (batch, head, row, 0), (1, 1, 128, 64), q_s, q_full)
                boxes.load_box(q_map, q_map_coords, (batch, head, row, 64), (1, 1, 128, 64), q_s + 8192, q_full)
                for i in cutlass.range(1, tiles, 1, unroll=1):
                    cute.arch.mbarrier_wait(k_empty + (done + i) % 2, (((done + i) // 2) & 1) ^ 1)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(k_full + (done + i) % 2, 40960)
                    boxes.load_box(k_map, k_map_coords, (batch, kv_head, (tiles - 1 - i) * 160, 0), (1, 1, 160, 64), k_s + (done + i) % 2 * 20480, k_full + (done + i) % 2)
                    boxes.load_box(k_map, k_map_coords, (batch, kv_head, (tiles - 1 - i) * 160, 64), (1, 1, 160, 64), k_s + ((done + i) % 2 * 20480 + 10240), k_full + (done + i) % 2)
                    cute.arch.mbarrier_wait(v_empty + (done + (i - 1)) % 2, (((done + (i - 1)) // 2) & 1) ^ 1)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(v_full + (done + (i - 1)) % 2, 40960)
                    boxes.load_box(v_map, v_map_coords, (batch, kv_head, (tiles - 1 - (i - 1)) * 160, 0), (1, 1, 160, 64), v_s + (done + (i - 1)) % 2 * 20480, v_full + (done + (i - 1)) % 2)
                    boxes.load_box(v_map, v_map_coords, (batch, kv_head, (tiles - 1 - (i - 1)) * 160, 64), (1, 1, 160, 64), v_s + ((done + (i - 1)) % 2 * 20480 + 10240), v_full + (done + (i - 1)) % 2)
                cute.arch.mbarrier_wait(v_empty + (done + (tiles - 1)) % 2, (((done + (tiles - 1)) // 2) & 1) ^ 1)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(v_full + (done + (tiles - 1)) % 2, 40960)
                boxes.load_box(v_map, v_map_coords, (batch, kv_head, (tiles - 1 - (tiles - 1)) * 160, 0), (1, 1, 160, 64), v_s + (done + (tiles - 1)) % 2 * 20480, v_full + (done + (tiles - 1)) % 2)
                boxes.load_box(v_map, v_map_coords, (batch, kv_head, (tiles - 1 - (tiles - 1)) * 160, 64), (1, 1, 160, 64), v_s + ((done + (tiles - 1)) % 2 * 20480 + 10240), v_full + (done + (tiles - 1)) % 2)
                done = done + tiles


@cute.jit
def program(
    q: cute.Pointer, k: cute.Pointer, v: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    sm_scale: cutlass.Float32, causal: cutlass.Int32, ctas: cutlass.Int32, abreast: cutlass.Int32,
    b: cutlass.Int32, sq: cutlass.Int32, heads: cutlass.Int32, q_stride_b: cutlass.Int32,
    q_stride_s: cutlass.Int32, q_stride_h: cutlass.Int32, skv: cutlass.Int32, kv_heads: cutlass.Int32,
    k_stride_b: cutlass.Int32, k_stride_s: cutlass.Int32, k_stride_h: cutlass.Int32,
    v_stride_b: cutlass.Int32, v_stride_s: cutlass.Int32, v_stride_h: cutlass.Int32
):
    q_map, q_map_coords = boxes.strided_map(q, cutlass.BFloat16, (1, 1, 128, 64), True)
    k_map, k_map_coords = boxes.strided_map(k, cutlass.BFloat16, (1, 1, 160, 64), True)
    v_map, v_map_coords = boxes.strided_map(v, cutlass.BFloat16, (1, 1, 160, 64), True)
    out_map, out_map_coords = boxes.store_map(out, cutlass.BFloat16, (1, 1, 64, 64), True)
    gqa_forward__cutedsl_sm90a__bf16_d128_n160_st2_o1_c1(
        q_map, q_map_coords, k_map, k_map_coords, v_map, v_map_coords, out_map, out_map_coords, q, k, v, out,
        lse, sm_scale, causal, ctas, abreast, b, sq, heads, q_stride_b, q_stride_s, q_stride_h, skv, kv_heads,
        k_stride_b, k_stride_s, k_stride_h, v_stride_b, v_stride_s, v_stride_h
    ).launch(
        grid=(1, 1, 1), block=(384, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1
    )
