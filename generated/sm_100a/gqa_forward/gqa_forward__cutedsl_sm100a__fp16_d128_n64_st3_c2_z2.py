"""gqa_forward__cutedsl_sm100a__fp16_d128_n64_st3_c2_z2

Generated from dsl_kernels/kernels/gqa_forward and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: dtype=fp16, dim=128, tile=64, stages=3, cluster=2, lazy=2.

  load         mma          soften_0     soften_1
  warp 8       warp 9       warps 0..3   warps 4..7
  |==== q ====>|            |            |   q_s, ring of 2; bulk -> tcgen05
  |==== k ====>|            |            |   k_s, ring of 3; bulk -> tcgen05
  |==== v ====>|            |            |   v_s, ring of 3; bulk -> tcgen05
  |            |=== s_0 ===>|            |   s_t_0; tcgen05 -> tmem
  |            |<== p_0 ====|            |   p_t_0; tmem -> tcgen05
  |            |=== o_0 ===>|            |   o_t_0; tcgen05 -> tmem
  |            |========== s_1 =========>|   s_t_1; tcgen05 -> tmem
  |            |<========= p_1 ==========|   p_t_1; tmem -> tcgen05
  |            |========== o_1 =========>|   o_t_1; tcgen05 -> tmem

roles
  soften_0   threads 0..127  softmax and epilogue of the first 128 rows
  soften_1   threads 128..255  softmax and epilogue of the last 128 rows
  load       threads 256..287  queries, keys and values
  mma        threads 288..319  issues every tcgen05.mma and commit
buffers
  q_s        2 stages of 128x128 float16, shared, 128-byte swizzle
  k_s        3 stages of 64x128 float16, shared, 128-byte swizzle
  v_s        3 stages of 64x128 float16, shared, 128-byte swizzle
  o_s_0      128x128 float16, shared, 128-byte swizzle
  s_t_0      128x64 float32, tensor memory
  p_t_0      128x64 float16, tensor memory
  o_t_0      128x128 float32, tensor memory
  scores_0   128x64 float32, registers of soften_0
  weights_0  128x64 float16, registers of soften_0
  part_0     128x32 float32, registers of soften_0
  rounded_0  128x32 float16, registers of soften_0
  top_0      128x1 float32, registers of soften_0
  total_0    128x1 float32, registers of soften_0
  factor_0   128x1 float32, registers of soften_0
  limit_0    128x1 float32, registers of soften_0
  o_s_1      128x128 float16, shared, 128-byte swizzle
  s_t_1      128x64 float32, tensor memory
  p_t_1      128x64 float16, tensor memory
  o_t_1      128x128 float32, tensor memory
  scores_1   128x64 float32, registers of soften_1
  weights_1  128x64 float16, registers of soften_1
  part_1     128x32 float32, registers of soften_1
  rounded_1  128x32 float16, registers of soften_1
  top_1      128x1 float32, registers of soften_1
  total_1    128x1 float32, registers of soften_1
  factor_1   128x1 float32, registers of soften_1
  limit_1    128x1 float32, registers of soften_1
pipelines
  q: load (bulk) ==[q_s: 2-slot ring]==> mma (tcgen05)
    full  x1, 32768 bytes: load arrive + expect bytes
      mma: wait full, fence after
    empty x1: load wait empty
      mma: commit -> empty
  k: load (bulk) ==[k_s: 3-slot ring]==> mma (tcgen05)
    full  x1, 16384 bytes: load arrive + expect bytes
      mma: wait full, fence after
    empty x2: load wait empty
      mma: commit -> empty in every CTA
  v: load (bulk) ==[v_s: 3-slot ring]==> mma (tcgen05)
    full  x1, 16384 bytes: load arrive + expect bytes
      mma: wait full, fence after
    empty x2: load wait empty
      mma: commit -> empty in every CTA
  s_0: mma (tcgen05) ==[s_t_0: 1-slot ring]==> soften_0 (tmem)
    full  x1: mma commit -> full
      soften_0: wait full, fence after
    empty x4: mma wait empty, fence after
      soften_0: wait::ld, fence before, one lane a warp, arrive empty
  p_0: soften_0 (tmem) ==[p_t_0: 1-slot ring]==> mma (tcgen05)
    full  x4: soften_0 wait::ld, wait::st, fence before, one lane a warp, arrive full
      mma: wait full, fence after
    empty x1: soften_0 wait empty, fence after
      mma: commit -> empty
  o_0: mma (tcgen05) ==[o_t_0: 1-slot ring]==> soften_0 (tmem)
    full  x1: mma commit -> full
      soften_0: wait full, fence after
  s_1: mma (tcgen05) ==[s_t_1: 1-slot ring]==> soften_1 (tmem)
    full  x1: mma commit -> full
      soften_1: wait full, fence after
    empty x4: mma wait empty, fence after
      soften_1: wait::ld, fence before, one lane a warp, arrive empty
  p_1: soften_1 (tmem) ==[p_t_1: 1-slot ring]==> mma (tcgen05)
    full  x4: soften_1 wait::ld, wait::st, fence before, one lane a warp, arrive full
      mma: wait full, fence after
    empty x1: soften_1 wait empty, fence after
      mma: commit -> empty
  o_1: mma (tcgen05) ==[o_t_1: 1-slot ring]==> soften_1 (tmem)
    full  x1: mma commit -> full
      soften_1: wait full, fence after
  named barrier staged_0: soften_0
  named barrier staged_1: soften_1
totals: 320 threads, 229584 of 232448 bytes of shared memory, 448 of 512 tensor-memory columns, grid (ctas, 2)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

from dsl_kernels.device.cutedsl import boxes, fragment_sm100, scalars, tcgen05, tcgen05_tensor, warps
from dsl_kernels.kernels.gqa_forward import cutedsl as leaf
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

DIM = 128  # elements of a head
TILE = 64  # keys per tile
STAGES = 3  # tiles of keys, and of values, in flight
CLUSTER = 2  # CTAs that share tiles of keys and values
ROWS = 256
LOG2_E = 1.4426950408889634
GROUP_ROWS = 128
RESCALE_LOG2 = 8
HELD = 32
LN_2 = 0.6931471805599453
STAGED_0_BARRIER = 1
SOFTEN_0_THREADS = 128
PANEL = 64
STAGED_1_BARRIER = 2
SOFTEN_1_THREADS = 128

QK_0 = tcgen05.Product("float16", GROUP_ROWS, TILE, DIM, "k", "k")
PV_0 = tcgen05_tensor.Product("float16", GROUP_ROWS, DIM, TILE, "k", "mn")
QK_1 = tcgen05.Product("float16", GROUP_ROWS, TILE, DIM, "k", "k")
PV_1 = tcgen05_tensor.Product("float16", GROUP_ROWS, DIM, TILE, "k", "mn")

LAUNCH = Launch(
    operands=(
        Operand(
            "q", "tensor", "float16", ("b", "sq", "heads", "128"),
            strides=("q_stride_b", "q_stride_s", "q_stride_h", "1")
        ),
        Operand(
            "k", "tensor", "float16", ("b", "skv", "kv_heads", "128"),
            strides=("k_stride_b", "k_stride_s", "k_stride_h", "1")
        ),
        Operand(
            "v", "tensor", "float16", ("b", "skv", "kv_heads", "128"),
            strides=("v_stride_b", "v_stride_s", "v_stride_h", "1")
        ),
        Operand("out", "tensor", "float16", ("b", "sq", "heads", "128"), written=True),
        Operand("lse", "tensor", "float32", ("b", "heads", "sq"), written=True),
        Operand("sm_scale", "scalar", "float32"),
        Operand("causal", "scalar", "int32"),
        Operand("ctas", "scalar", "int32"),
        Operand("abreast", "scalar", "int32"),
    ),
    grid=("ctas", "2", "1"),
    block=320,
    cluster=(1, 2, 1),
    tensor_maps=(
        TensorMap(
            "q_map", "q", "FLOAT16", global_dims=("128", "sq", "heads", "b"), global_strides=(
                "q_stride_s * 2", "q_stride_h * 2", "q_stride_b * 2"
            ),
            box=(PANEL, GROUP_ROWS, 1, 1), element_strides=(1, 1, 1, 1),
            swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "k_map", "k", "FLOAT16", global_dims=("128", "skv", "kv_heads", "b"), global_strides=(
                "k_stride_s * 2", "k_stride_h * 2", "k_stride_b * 2"
            ),
            box=(PANEL, TILE // CLUSTER, 1, 1), element_strides=(1, 1, 1, 1),
            swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "v_map", "v", "FLOAT16", global_dims=("128", "skv", "kv_heads", "b"), global_strides=(
                "v_stride_s * 2", "v_stride_h * 2", "v_stride_b * 2"
            ),
            box=(PANEL, TILE // CLUSTER, 1, 1), element_strides=(1, 1, 1, 1),
            swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "out_map", "out", "FLOAT16", global_dims=("128", "sq", "heads", "b"), global_strides=(
                "heads * 128 * 2", "128 * 2", "sq * heads * 128 * 2"
            ),
            box=(PANEL, GROUP_ROWS, 1, 1), element_strides=(1, 1, 1, 1),
            swizzle="128B", l2_promotion="L2_128B",
        ),
    ),
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, 2 * GROUP_ROWS * DIM], 1024]
    k_s: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, STAGES * TILE * DIM], 1024]
    v_s: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, STAGES * TILE * DIM], 1024]
    o_s_0: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, GROUP_ROWS * DIM], 1024]
    o_s_1: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, GROUP_ROWS * DIM], 1024]
    q_full: cute.struct.MemRange[Int64, 2]
    q_empty: cute.struct.MemRange[Int64, 2]
    k_full: cute.struct.MemRange[Int64, STAGES]
    k_empty: cute.struct.MemRange[Int64, STAGES]
    v_full: cute.struct.MemRange[Int64, STAGES]
    v_empty: cute.struct.MemRange[Int64, STAGES]
    s_0_full: cute.struct.MemRange[Int64, 1]
    s_0_empty: cute.struct.MemRange[Int64, 1]
    p_0_full: cute.struct.MemRange[Int64, 1]
    p_0_empty: cute.struct.MemRange[Int64, 1]
    o_0_full: cute.struct.MemRange[Int64, 1]
    s_1_full: cute.struct.MemRange[Int64, 1]
    s_1_empty: cute.struct.MemRange[Int64, 1]
    p_1_full: cute.struct.MemRange[Int64, 1]
    p_1_empty: cute.struct.MemRange[Int64, 1]
    o_1_full: cute.struct.MemRange[Int64, 1]
    tmem: Int32


@cute.jit
def hide_keys(scores, row, key, skv, shift, thread):
    """Set scores to -inf where there is no such key, or the row does not see it.

    Rows begin with `row`, keys with `key`, and a thread has `rows` rows. A row sees the keys up to its
    own number plus `shift`.
    """
    last_0 = cutlass.min(skv - 1, row + thread + shift) - key
    for j in cutlass.range_constexpr(TILE):
        scores[j] = cutlass.select_(j > last_0, -Float32.inf, scores[j])


@cute.jit
def online_softmax_lazily_unseen(scores, top, total, factor, limit, scale):
    """Like `online_softmax`, but `top` stays where no score of a warp exceeds it by `rise` powers of two.

    Factors are then 1, and weights reach 2^rise. `limit` is the score from which `top` rises. Where
    that score is negative, `limit` is -0.0, and `top` always rises.
    """
    factor[0] = Float32(1.0)
    if warps.any_lane(fragment_sm100.row_most_bits(scores) >= scalars.bits_of(limit[0]).to(Int32)):
        risen_0 = cute.arch.fmax(top[0], fragment_sm100.row_most(scores))
        factor[0] = warps.exp2((top[0] - cutlass.select_(risen_0 == -Float32.inf, 0.0, risen_0)) * scale)
        total[0] = total[0] * factor[0]
        top[0] = risen_0
        above_0 = risen_0 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[0] = cutlass.select_(above_0 > 0.0, above_0, -0.0)
    shift_0 = cutlass.select_(top[0] == -Float32.inf, 0.0, top[0]) * scale
    for j in cutlass.range_constexpr(TILE // 2):
        fragment_sm100.scale_pair(scores, j * 2, scale, shift_0)
        scores[j * 2] = warps.exp2(scores[j * 2])
        scores[j * 2 + 1] = warps.exp2(scores[j * 2 + 1])
    total[0] = total[0] + fragment_sm100.row_sum(scores)


@cute.jit
def rescale_output(acc, factor, part, thread):
    """Multiply each row of the result by its factor, unless a warp's factors are all 1."""
    if warps.any_lane(factor[0] != 1.0):
        for step in cutlass.range_constexpr(DIM // HELD):
            fragment_sm100.load_columns(part, acc, step * HELD, thread)
            for pair in cutlass.range_constexpr(HELD // 2):
                fragment_sm100.scale_pair(part, pair * 2, factor[0], 0.0)
            fragment_sm100.store_columns(part, acc, step * HELD, thread)


@cute.jit
def online_softmax_lazily(scores, top, total, factor, limit, scale):
    """Like `online_softmax`, but `top` stays where no score of a warp exceeds it by `rise` powers of two.

    Factors are then 1, and weights reach 2^rise. `limit` is the score from which `top` rises. Where
    that score is negative, `limit` is -0.0, and `top` always rises.
    """
    factor[0] = Float32(1.0)
    if warps.any_lane(fragment_sm100.row_most_bits(scores) >= scalars.bits_of(limit[0]).to(Int32)):
        risen_0 = cute.arch.fmax(top[0], fragment_sm100.row_most(scores))
        factor[0] = warps.exp2((top[0] - cutlass.select_(risen_0 == -Float32.inf, 0.0, risen_0)) * scale)
        total[0] = total[0] * factor[0]
        top[0] = risen_0
        above_0 = risen_0 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[0] = cutlass.select_(above_0 > 0.0, above_0, -0.0)
    shift_0 = top[0] * scale
    for j in cutlass.range_constexpr(TILE // 2):
        fragment_sm100.scale_pair(scores, j * 2, scale, shift_0)
        scores[j * 2] = warps.exp2(scores[j * 2])
        scores[j * 2 + 1] = warps.exp2(scores[j * 2 + 1])
    total[0] = total[0] + fragment_sm100.row_sum(scores)


@cute.jit
def finish_rows(top, total, scale):
    """Turn `top` into the natural logarithm of sum exp, and `total` into its inverse."""
    top[0] = (top[0] * scale + warps.log2(total[0])) * LN_2
    total[0] = warps.rcp_approx(total[0])


@cute.jit
def store_lse(lse, values, batch, head, heads, row, sq, thread):
    """Store one value per row to lse[batch, head, row ...], for the rows that exist."""
    own_0 = row + thread
    if own_0 < sq:
        of_head_0 = lse + Int64(batch * heads + head) * sq
        of_head_0[own_0] = values[0]


@cute.jit
def stage_output(target, acc, inverse, part, rounded, thread):
    """Stage the rows of the result times `inverse`, rounded to 16 bits, in a shared tile."""
    for step in cutlass.range_constexpr(DIM // HELD):
        fragment_sm100.load_columns(part, acc, step * HELD, thread)
        for pair in cutlass.range_constexpr(HELD // 2):
            fragment_sm100.scale_pair(part, pair * 2, inverse[0], 0.0)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment_sm100.round_to(rounded, part)
        for i in cutlass.range_constexpr(HELD // 8):
            cute.autovec_copy(
                warps.few(rounded, i * 8, 8),
                warps.piece(target, 8, thread, step * HELD + i * 8, (GROUP_ROWS, DIM), 128)
            )


@cute.jit
def soften_0(
    out_map: cute.CopyAtom, out_map_coords: cute.Tensor, lse: cute.Pointer, sm_scale: Float32, ctas: Int32,
    abreast: Int32, sq: Int32, heads: Int32, skv: Int32, o_s_0: cute.Pointer, tmem: cute.Pointer,
    s_0_full: cute.Pointer, s_0_empty: cute.Pointer, p_0_full: cute.Pointer, p_0_empty: cute.Pointer,
    o_0_full: cute.Pointer, cta: Int32, rank: Int32, blocks: Int32, bundles: Int32, items: Int32,
    shift: Int32, thread: Int32, warp: Int32
):
    """Softmax and epilogue of the first 128 rows."""
    scores_0 = cute.make_rmem_tensor(TILE, Float32)
    weights_0 = cute.make_rmem_tensor(64, cutlass.Float16)
    part_0 = cute.make_rmem_tensor(HELD, Float32)
    rounded_0 = cute.make_rmem_tensor(32, cutlass.Float16)
    top_0 = cute.make_rmem_tensor(1, Float32)
    total_0 = cute.make_rmem_tensor(1, Float32)
    factor_0 = cute.make_rmem_tensor(1, Float32)
    limit_0 = cute.make_rmem_tensor(1, Float32)
    worker = thread
    scale = sm_scale * LOG2_E
    done = Int32(0)
    for item in cutlass.range(items, unroll=1):
        number = Int32(cta + item % 2 * (ctas - 1 - 2 * cta) + item * ctas)
        first = Int32(number // (abreast * blocks) * abreast)
        within = Int32(number - first * blocks)
        width = Int32(cutlass.min(abreast, bundles - first))
        row = Int32((blocks - 1 - within // width) * ROWS)
        tiles = Int32(leaf.ceildiv(cutlass.min(skv, row + shift + GROUP_ROWS), TILE))
        pair = Int32((first + within % width) * CLUSTER + rank)
        batch = pair // heads
        head = pair - batch * heads
        own_row = row
        top_0.fill(-Float32.inf)
        total_0.fill(0.0)
        limit_0.fill(-0.0)
        cute.arch.mbarrier_wait(s_0_full, done & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # A fragment, a row a thread, from tensor memory; its arrival is waited for at the release.
        fragment_sm100.read_tensor(scores_0, tmem, worker)
        cute.arch.fence_view_async_tmem_load()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(s_0_empty)
        hide_keys(scores_0, own_row, (tiles - 1) * TILE, skv, shift, worker)
        online_softmax_lazily_unseen(scores_0, top_0, total_0, factor_0, limit_0, scale)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment_sm100.round_to(weights_0, scores_0)
        cute.arch.mbarrier_wait(p_0_empty, (done & 1) ^ 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # A 16-bit fragment, a row a thread, into tensor memory; its arrival is waited for at the commit.
        fragment_sm100.write_tensor(tmem + TILE, weights_0, worker)
        cute.arch.fence_view_async_tmem_load()
        cute.arch.fence_view_async_tmem_store()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(p_0_full)
        masked = Int32(cutlass.max(1, tiles - cutlass.min(skv, row + shift + 1) // TILE))
        for i in cutlass.range(1, masked, 1, unroll=1):
            cute.arch.mbarrier_wait(s_0_full, (done + i) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            fragment_sm100.read_tensor(scores_0, tmem, worker)
            cute.arch.fence_view_async_tmem_load()
            nvvm.tcgen05_fence("before_thread_sync")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(s_0_empty)
            hide_keys(scores_0, own_row, (tiles - 1 - i) * TILE, skv, shift, worker)
            online_softmax_lazily_unseen(scores_0, top_0, total_0, factor_0, limit_0, scale)
            fragment_sm100.round_to(weights_0, scores_0)
            cute.arch.mbarrier_wait(p_0_empty, ((done + i) & 1) ^ 1)
            nvvm.tcgen05_fence("after_thread_sync")
            fragment_sm100.write_tensor(tmem + TILE, weights_0, worker)
            cute.arch.mbarrier_wait(o_0_full, (done + (i - 1)) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            rescale_output(tmem + (TILE + TILE // 2), factor_0, part_0, worker)
            # o_0: p_0 also gives its slot back
            cute.arch.fence_view_async_tmem_load()
            cute.arch.fence_view_async_tmem_store()
            nvvm.tcgen05_fence("before_thread_sync")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(p_0_full)
        for i in cutlass.range(masked, tiles, 1, unroll=1):
            cute.arch.mbarrier_wait(s_0_full, (done + i) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            fragment_sm100.read_tensor(scores_0, tmem, worker)
            cute.arch.fence_view_async_tmem_load()
            nvvm.tcgen05_fence("before_thread_sync")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(s_0_empty)
            online_softmax_lazily(scores_0, top_0, total_0, factor_0, limit_0, scale)
            fragment_sm100.round_to(weights_0, scores_0)
            cute.arch.mbarrier_wait(p_0_empty, ((done + i) & 1) ^ 1)
            nvvm.tcgen05_fence("after_thread_sync")
            fragment_sm100.write_tensor(tmem + TILE, weights_0, worker)
            cute.arch.mbarrier_wait(o_0_full, (done + (i - 1)) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            rescale_output(tmem + (TILE + TILE // 2), factor_0, part_0, worker)
            # o_0: p_0 also gives its slot back
            cute.arch.fence_view_async_tmem_load()
            cute.arch.fence_view_async_tmem_store()
            nvvm.tcgen05_fence("before_thread_sync")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(p_0_full)
        finish_rows(top_0, total_0, scale)
        store_lse(lse, top_0, batch, head, heads, own_row, sq, worker)
        if warp == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.barrier(barrier_id=STAGED_0_BARRIER, number_of_threads=SOFTEN_0_THREADS)
        cute.arch.mbarrier_wait(o_0_full, (done + (tiles - 1)) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        stage_output(o_s_0, tmem + (TILE + TILE // 2), total_0, part_0, rounded_0, worker)
        # o_0: p_0 also gives its slot back
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier(barrier_id=STAGED_0_BARRIER, number_of_threads=SOFTEN_0_THREADS)
        if warp == 0:
            boxes.store_box(
                out_map, out_map_coords, (batch, head, own_row, 0), (1, 1, GROUP_ROWS, PANEL), o_s_0
            )
            boxes.store_box(
                out_map, out_map_coords, (batch, head, own_row, 64), (1, 1, GROUP_ROWS, PANEL),
                o_s_0 + 64 * GROUP_ROWS
            )
            cute.arch.cp_async_bulk_commit_group()
        done = done + tiles
    if warp == 0:
        cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def soften_1(
    out_map: cute.CopyAtom, out_map_coords: cute.Tensor, lse: cute.Pointer, sm_scale: Float32, ctas: Int32,
    abreast: Int32, sq: Int32, heads: Int32, skv: Int32, o_s_1: cute.Pointer, tmem: cute.Pointer,
    s_1_full: cute.Pointer, s_1_empty: cute.Pointer, p_1_full: cute.Pointer, p_1_empty: cute.Pointer,
    o_1_full: cute.Pointer, cta: Int32, rank: Int32, blocks: Int32, bundles: Int32, items: Int32,
    shift: Int32, thread: Int32, warp: Int32
):
    """Softmax and epilogue of the last 128 rows."""
    scores_1 = cute.make_rmem_tensor(TILE, Float32)
    weights_1 = cute.make_rmem_tensor(64, cutlass.Float16)
    part_1 = cute.make_rmem_tensor(HELD, Float32)
    rounded_1 = cute.make_rmem_tensor(32, cutlass.Float16)
    top_1 = cute.make_rmem_tensor(1, Float32)
    total_1 = cute.make_rmem_tensor(1, Float32)
    factor_1 = cute.make_rmem_tensor(1, Float32)
    limit_1 = cute.make_rmem_tensor(1, Float32)
    worker = thread % 128
    scale = sm_scale * LOG2_E
    done = Int32(0)
    for item in cutlass.range(items, unroll=1):
        number = Int32(cta + item % 2 * (ctas - 1 - 2 * cta) + item * ctas)
        first = Int32(number // (abreast * blocks) * abreast)
        within = Int32(number - first * blocks)
        width = Int32(cutlass.min(abreast, bundles - first))
        row = Int32((blocks - 1 - within // width) * ROWS)
        tiles = Int32(leaf.ceildiv(cutlass.min(skv, row + shift + (GROUP_ROWS + GROUP_ROWS)), TILE))
        pair = Int32((first + within % width) * CLUSTER + rank)
        batch = pair // heads
        head = pair - batch * heads
        own_row = row + GROUP_ROWS
        top_1.fill(-Float32.inf)
        total_1.fill(0.0)
        limit_1.fill(-0.0)
        cute.arch.mbarrier_wait(s_1_full, done & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # A fragment, a row a thread, from tensor memory; its arrival is waited for at the release.
        fragment_sm100.read_tensor(scores_1, tmem + (TILE + TILE // 2 + DIM), worker)
        cute.arch.fence_view_async_tmem_load()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(s_1_empty)
        hide_keys(scores_1, own_row, (tiles - 1) * TILE, skv, shift, worker)
        online_softmax_lazily_unseen(scores_1, top_1, total_1, factor_1, limit_1, scale)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment_sm100.round_to(weights_1, scores_1)
        cute.arch.mbarrier_wait(p_1_empty, (done & 1) ^ 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # A 16-bit fragment, a row a thread, into tensor memory; its arrival is waited for at the commit.
        fragment_sm100.write_tensor(tmem + (TILE + TILE // 2 + DIM + TILE), weights_1, worker)
        cute.arch.fence_view_async_tmem_load()
        cute.arch.fence_view_async_tmem_store()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(p_1_full)
        masked = Int32(cutlass.max(1, tiles - cutlass.min(skv, row + shift + (GROUP_ROWS + 1)) // TILE))
        for i in cutlass.range(1, masked, 1, unroll=1):
            cute.arch.mbarrier_wait(s_1_full, (done + i) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            fragment_sm100.read_tensor(scores_1, tmem + (TILE + TILE // 2 + DIM), worker)
            cute.arch.fence_view_async_tmem_load()
            nvvm.tcgen05_fence("before_thread_sync")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(s_1_empty)
            hide_keys(scores_1, own_row, (tiles - 1 - i) * TILE, skv, shift, worker)
            online_softmax_lazily_unseen(scores_1, top_1, total_1, factor_1, limit_1, scale)
            fragment_sm100.round_to(weights_1, scores_1)
            cute.arch.mbarrier_wait(p_1_empty, ((done + i) & 1) ^ 1)
            nvvm.tcgen05_fence("after_thread_sync")
            fragment_sm100.write_tensor(tmem + (TILE + TILE // 2 + DIM + TILE), weights_1, worker)
            cute.arch.mbarrier_wait(o_1_full, (done + (i - 1)) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            rescale_output(tmem + (TILE + TILE // 2 + DIM + TILE + TILE // 2), factor_1, part_1, worker)
            # o_1: p_1 also gives its slot back
            cute.arch.fence_view_async_tmem_load()
            cute.arch.fence_view_async_tmem_store()
            nvvm.tcgen05_fence("before_thread_sync")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(p_1_full)
        for i in cutlass.range(masked, tiles, 1, unroll=1):
            cute.arch.mbarrier_wait(s_1_full, (done + i) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            fragment_sm100.read_tensor(scores_1, tmem + (TILE + TILE // 2 + DIM), worker)
            cute.arch.fence_view_async_tmem_load()
            nvvm.tcgen05_fence("before_thread_sync")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(s_1_empty)
            online_softmax_lazily(scores_1, top_1, total_1, factor_1, limit_1, scale)
            fragment_sm100.round_to(weights_1, scores_1)
            cute.arch.mbarrier_wait(p_1_empty, ((done + i) & 1) ^ 1)
            nvvm.tcgen05_fence("after_thread_sync")
            fragment_sm100.write_tensor(tmem + (TILE + TILE // 2 + DIM + TILE), weights_1, worker)
            cute.arch.mbarrier_wait(o_1_full, (done + (i - 1)) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            rescale_output(tmem + (TILE + TILE // 2 + DIM + TILE + TILE // 2), factor_1, part_1, worker)
            # o_1: p_1 also gives its slot back
            cute.arch.fence_view_async_tmem_load()
            cute.arch.fence_view_async_tmem_store()
            nvvm.tcgen05_fence("before_thread_sync")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(p_1_full)
        finish_rows(top_1, total_1, scale)
        store_lse(lse, top_1, batch, head, heads, own_row, sq, worker)
        if warp == 4:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.barrier(barrier_id=STAGED_1_BARRIER, number_of_threads=SOFTEN_1_THREADS)
        cute.arch.mbarrier_wait(o_1_full, (done + (tiles - 1)) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        stage_output(
            o_s_1, tmem + (TILE + TILE // 2 + DIM + TILE + TILE // 2), total_1, part_1, rounded_1, worker
        )
        # o_1: p_1 also gives its slot back
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier(barrier_id=STAGED_1_BARRIER, number_of_threads=SOFTEN_1_THREADS)
        if warp == 4:
            boxes.store_box(
                out_map, out_map_coords, (batch, head, own_row, 0), (1, 1, GROUP_ROWS, PANEL), o_s_1
            )
            boxes.store_box(
                out_map, out_map_coords, (batch, head, own_row, 64), (1, 1, GROUP_ROWS, PANEL),
                o_s_1 + 64 * GROUP_ROWS
            )
            cute.arch.cp_async_bulk_commit_group()
        done = done + tiles
    if warp == 4:
        cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def load(
    q_map: cute.CopyAtom, q_map_coords: cute.Tensor, k_map: cute.CopyAtom, k_map_coords: cute.Tensor,
    v_map: cute.CopyAtom, v_map_coords: cute.Tensor, ctas: Int32, abreast: Int32, heads: Int32, skv: Int32,
    kv_heads: Int32, q_s: cute.Pointer, k_s: cute.Pointer, v_s: cute.Pointer, q_full: cute.Pointer,
    q_empty: cute.Pointer, k_full: cute.Pointer, k_empty: cute.Pointer, v_full: cute.Pointer,
    v_empty: cute.Pointer, cta: Int32, rank: Int32, blocks: Int32, bundles: Int32, items: Int32, shift: Int32
):
    """Queries, keys and values."""
    done = Int32(0)
    for item in cutlass.range(items, unroll=1):
        number = Int32(cta + item % 2 * (ctas - 1 - 2 * cta) + item * ctas)
        first = Int32(number // (abreast * blocks) * abreast)
        within = Int32(number - first * blocks)
        width = Int32(cutlass.min(abreast, bundles - first))
        row = Int32((blocks - 1 - within // width) * ROWS)
        tiles = Int32(leaf.ceildiv(cutlass.min(skv, row + shift + ROWS), TILE))
        pair = Int32((first + within % width) * CLUSTER + rank)
        batch = pair // heads
        head = pair - batch * heads
        kv_head = head * kv_heads // heads
        cute.arch.mbarrier_wait(k_empty + done % STAGES, ((done // STAGES) & 1) ^ 1)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(k_full + done % STAGES, TILE * DIM * 2)
        boxes.multicast_box(
            k_map, k_map_coords, (batch, kv_head, (tiles - 1) * TILE + rank * (TILE // CLUSTER), 0),
            (1, 1, TILE // CLUSTER, PANEL),
            k_s + (done % STAGES * (TILE * DIM) + rank * (TILE // CLUSTER) * 64), k_full + done % STAGES, 2
        )
        boxes.multicast_box(
            k_map, k_map_coords, (batch, kv_head, (tiles - 1) * TILE + rank * (TILE // CLUSTER), 64),
            (1, 1, TILE // CLUSTER, PANEL),
            k_s + (done % STAGES * (TILE * DIM) + 64 * TILE + rank * (TILE // CLUSTER) * 64),
            k_full + done % STAGES, 2
        )
        cute.arch.mbarrier_wait(q_empty + item * 2 % 2, ((item * 2 // 2) & 1) ^ 1)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(q_full + item * 2 % 2, GROUP_ROWS * DIM * 2)
        boxes.load_box(
            q_map, q_map_coords, (batch, head, row, 0), (1, 1, GROUP_ROWS, PANEL),
            q_s + item * 2 % 2 * (GROUP_ROWS * DIM), q_full + item * 2 % 2
        )
        boxes.load_box(
            q_map, q_map_coords, (batch, head, row, 64), (1, 1, GROUP_ROWS, PANEL),
            q_s + (item * 2 % 2 * (GROUP_ROWS * DIM) + 64 * GROUP_ROWS), q_full + item * 2 % 2
        )
        cute.arch.mbarrier_wait(q_empty + (item * 2 + 1) % 2, (((item * 2 + 1) // 2) & 1) ^ 1)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(q_full + (item * 2 + 1) % 2, GROUP_ROWS * DIM * 2)
        boxes.load_box(
            q_map, q_map_coords, (batch, head, row + GROUP_ROWS, 0), (1, 1, GROUP_ROWS, PANEL),
            q_s + (item * 2 + 1) % 2 * (GROUP_ROWS * DIM), q_full + (item * 2 + 1) % 2
        )
        boxes.load_box(
            q_map, q_map_coords, (batch, head, row + GROUP_ROWS, 64), (1, 1, GROUP_ROWS, PANEL),
            q_s + ((item * 2 + 1) % 2 * (GROUP_ROWS * DIM) + 64 * GROUP_ROWS), q_full + (item * 2 + 1) % 2
        )
        for i in cutlass.range(1, tiles, 1, unroll=1):
            cute.arch.mbarrier_wait(k_empty + (done + i) % STAGES, (((done + i) // STAGES) & 1) ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(k_full + (done + i) % STAGES, TILE * DIM * 2)
            boxes.multicast_box(
                k_map, k_map_coords, (batch, kv_head, (tiles - 1 - i) * TILE + rank * (TILE // CLUSTER), 0),
                (1, 1, TILE // CLUSTER, PANEL),
                k_s + ((done + i) % STAGES * (TILE * DIM) + rank * (TILE // CLUSTER) * 64),
                k_full + (done + i) % STAGES, 2
            )
            boxes.multicast_box(
                k_map, k_map_coords, (batch, kv_head, (tiles - 1 - i) * TILE + rank * (TILE // CLUSTER), 64),
                (1, 1, TILE // CLUSTER, PANEL),
                k_s + ((done + i) % STAGES * (TILE * DIM) + 64 * TILE + rank * (TILE // CLUSTER) * 64),
                k_full + (done + i) % STAGES, 2
            )
            cute.arch.mbarrier_wait(
                v_empty + (done + (i - 1)) % STAGES, (((done + (i - 1)) // STAGES) & 1) ^ 1
            )
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(v_full + (done + (i - 1)) % STAGES, TILE * DIM * 2)
            boxes.multicast_box(
                v_map, v_map_coords,
                (batch, kv_head, (tiles - 1 - (i - 1)) * TILE + rank * (TILE // CLUSTER), 0),
                (1, 1, TILE // CLUSTER, PANEL),
                v_s + ((done + (i - 1)) % STAGES * (TILE * DIM) + rank * (TILE // CLUSTER) * 64),
                v_full + (done + (i - 1)) % STAGES, 2
            )
            boxes.multicast_box(
                v_map, v_map_coords,
                (batch, kv_head, (tiles - 1 - (i - 1)) * TILE + rank * (TILE // CLUSTER), 64),
                (1, 1, TILE // CLUSTER, PANEL),
                v_s + ((done + (i - 1)) % STAGES * (TILE * DIM) + 64 * TILE + rank * (TILE // CLUSTER) * 64),
                v_full + (done + (i - 1)) % STAGES, 2
            )
        cute.arch.mbarrier_wait(
            v_empty + (done + (tiles - 1)) % STAGES, (((done + (tiles - 1)) // STAGES) & 1) ^ 1
        )
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(v_full + (done + (tiles - 1)) % STAGES, TILE * DIM * 2)
        boxes.multicast_box(
            v_map, v_map_coords,
            (batch, kv_head, (tiles - 1 - (tiles - 1)) * TILE + rank * (TILE // CLUSTER), 0),
            (1, 1, TILE // CLUSTER, PANEL),
            v_s + ((done + (tiles - 1)) % STAGES * (TILE * DIM) + rank * (TILE // CLUSTER) * 64),
            v_full + (done + (tiles - 1)) % STAGES, 2
        )
        boxes.multicast_box(
            v_map, v_map_coords,
            (batch, kv_head, (tiles - 1 - (tiles - 1)) * TILE + rank * (TILE // CLUSTER), 64),
            (1, 1, TILE // CLUSTER, PANEL),
            v_s + ((done + (tiles - 1)) % STAGES * (TILE * DIM) + 64 * TILE + rank * (TILE // CLUSTER) * 64),
            v_full + (done + (tiles - 1)) % STAGES, 2
        )
        done = done + tiles
    # A commit of a peer may arrive late: this CTA must not have ended.
    cute.arch.mbarrier_wait(k_empty + done % STAGES, ((done // STAGES) & 1) ^ 1)
    cute.arch.mbarrier_wait(k_empty + (done + 1) % STAGES, (((done + 1) // STAGES) & 1) ^ 1)
    cute.arch.mbarrier_wait(k_empty + (done + 2) % STAGES, (((done + 2) // STAGES) & 1) ^ 1)
    cute.arch.mbarrier_wait(v_empty + done % STAGES, ((done // STAGES) & 1) ^ 1)
    cute.arch.mbarrier_wait(v_empty + (done + 1) % STAGES, (((done + 1) // STAGES) & 1) ^ 1)
    cute.arch.mbarrier_wait(v_empty + (done + 2) % STAGES, (((done + 2) // STAGES) & 1) ^ 1)


@cute.jit
def mma(
    ctas: Int32, abreast: Int32, skv: Int32, q_s: cute.Pointer, k_s: cute.Pointer, v_s: cute.Pointer,
    tmem: cute.Pointer, q_full: cute.Pointer, q_empty: cute.Pointer, k_full: cute.Pointer,
    k_empty: cute.Pointer, v_full: cute.Pointer, v_empty: cute.Pointer, s_0_full: cute.Pointer,
    s_0_empty: cute.Pointer, p_0_full: cute.Pointer, p_0_empty: cute.Pointer, o_0_full: cute.Pointer,
    s_1_full: cute.Pointer, s_1_empty: cute.Pointer, p_1_full: cute.Pointer, p_1_empty: cute.Pointer,
    o_1_full: cute.Pointer, cta: Int32, blocks: Int32, bundles: Int32, items: Int32, shift: Int32
):
    """Issues every tcgen05.mma and commit."""
    qk_0_a = QK_0.operand_a(q_s, GROUP_ROWS, DIM, 2, 128)
    qk_0_b = QK_0.operand_b(k_s, TILE, DIM, STAGES, 128)
    pv_0_b = PV_0.operand_b(v_s, TILE, DIM, STAGES, 128)
    qk_1_a = QK_1.operand_a(q_s, GROUP_ROWS, DIM, 2, 128)
    qk_1_b = QK_1.operand_b(k_s, TILE, DIM, STAGES, 128)
    pv_1_b = PV_1.operand_b(v_s, TILE, DIM, STAGES, 128)
    done = Int32(0)
    own_done = Int32(0)
    for item in cutlass.range(items, unroll=1):
        number = Int32(cta + item % 2 * (ctas - 1 - 2 * cta) + item * ctas)
        first = Int32(number // (abreast * blocks) * abreast)
        within = Int32(number - first * blocks)
        width = Int32(cutlass.min(abreast, bundles - first))
        row = Int32((blocks - 1 - within // width) * ROWS)
        tiles = Int32(leaf.ceildiv(cutlass.min(skv, row + shift + ROWS), TILE))
        others = Int32(tiles - leaf.ceildiv(cutlass.min(skv, row + shift + GROUP_ROWS), TILE))
        cute.arch.mbarrier_wait(k_full + done % STAGES, (done // STAGES) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        cute.arch.mbarrier_wait(q_full + item * 2 % 2, (item * 2 // 2) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        cute.arch.mbarrier_wait(q_full + (item * 2 + 1) % 2, ((item * 2 + 1) // 2) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        if others == 0:
            cute.arch.mbarrier_wait(s_0_empty, ((own_done + (0 - others)) & 1) ^ 1)
            nvvm.tcgen05_fence("after_thread_sync")
            # S = Q K^T
            QK_0.multiply(
                qk_0_a[None, None, None, item * 2 % 2], qk_0_b[None, None, None, done % STAGES], tmem, False
            )
            with cute.arch.elect_one():
                tcgen05.commit(s_0_full)
        cute.arch.mbarrier_wait(s_1_empty, (done & 1) ^ 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # S = Q K^T
        QK_1.multiply(
            qk_1_a[None, None, None, (item * 2 + 1) % 2], qk_1_b[None, None, None, done % STAGES],
            tmem + (TILE + TILE // 2 + DIM), False
        )
        with cute.arch.elect_one():
            tcgen05.commit(s_1_full)
        with cute.arch.elect_one():
            tcgen05.commit(k_empty + done % STAGES, 3)
        for i in cutlass.range(1, tiles, 1, unroll=1):
            cute.arch.mbarrier_wait(k_full + (done + i) % STAGES, ((done + i) // STAGES) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            if i >= others:
                cute.arch.mbarrier_wait(s_0_empty, ((own_done + (i - others)) & 1) ^ 1)
                nvvm.tcgen05_fence("after_thread_sync")
                # S = Q K^T
                QK_0.multiply(
                    qk_0_a[None, None, None, item * 2 % 2], qk_0_b[None, None, None, (done + i) % STAGES],
                    tmem, False
                )
                with cute.arch.elect_one():
                    tcgen05.commit(s_0_full)
            cute.arch.mbarrier_wait(v_full + (done + (i - 1)) % STAGES, ((done + (i - 1)) // STAGES) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            if i > others:
                cute.arch.mbarrier_wait(p_0_full, (own_done + (i - 1 - others)) & 1)
                nvvm.tcgen05_fence("after_thread_sync")
                # o_0: p_0 also gives its slot back
                # O += P V
                PV_0.multiply(
                    tmem + TILE, pv_0_b[None, None, None, (done + (i - 1)) % STAGES],
                    tmem + (TILE + TILE // 2), i - 1 > others
                )
                with cute.arch.elect_one():
                    tcgen05.commit(p_0_empty)
                with cute.arch.elect_one():
                    tcgen05.commit(o_0_full)
            cute.arch.mbarrier_wait(s_1_empty, ((done + i) & 1) ^ 1)
            nvvm.tcgen05_fence("after_thread_sync")
            # S = Q K^T
            QK_1.multiply(
                qk_1_a[None, None, None, (item * 2 + 1) % 2], qk_1_b[None, None, None, (done + i) % STAGES],
                tmem + (TILE + TILE // 2 + DIM), False
            )
            with cute.arch.elect_one():
                tcgen05.commit(s_1_full)
            with cute.arch.elect_one():
                tcgen05.commit(k_empty + (done + i) % STAGES, 3)
            cute.arch.mbarrier_wait(p_1_full, (done + (i - 1)) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            # o_1: p_1 also gives its slot back
            # O += P V
            PV_1.multiply(
                tmem + (TILE + TILE // 2 + DIM + TILE), pv_1_b[None, None, None, (done + (i - 1)) % STAGES],
                tmem + (TILE + TILE // 2 + DIM + TILE + TILE // 2), i - 1 > 0
            )
            with cute.arch.elect_one():
                tcgen05.commit(p_1_empty)
            with cute.arch.elect_one():
                tcgen05.commit(o_1_full)
            with cute.arch.elect_one():
                tcgen05.commit(v_empty + (done + (i - 1)) % STAGES, 3)
        with cute.arch.elect_one():
            tcgen05.commit(q_empty + item * 2 % 2)
        with cute.arch.elect_one():
            tcgen05.commit(q_empty + (item * 2 + 1) % 2)
        cute.arch.mbarrier_wait(v_full + (done + (tiles - 1)) % STAGES, ((done + (tiles - 1)) // STAGES) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        cute.arch.mbarrier_wait(p_0_full, (own_done + (tiles - 1 - others)) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # o_0: p_0 also gives its slot back
        # O += P V
        PV_0.multiply(
            tmem + TILE, pv_0_b[None, None, None, (done + (tiles - 1)) % STAGES], tmem + (TILE + TILE // 2),
            tiles - 1 > others
        )
        with cute.arch.elect_one():
            tcgen05.commit(p_0_empty)
        with cute.arch.elect_one():
            tcgen05.commit(o_0_full)
        cute.arch.mbarrier_wait(p_1_full, (done + (tiles - 1)) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # o_1: p_1 also gives its slot back
        # O += P V
        PV_1.multiply(
            tmem + (TILE + TILE // 2 + DIM + TILE), pv_1_b[None, None, None, (done + (tiles - 1)) % STAGES],
            tmem + (TILE + TILE // 2 + DIM + TILE + TILE // 2), tiles - 1 > 0
        )
        with cute.arch.elect_one():
            tcgen05.commit(p_1_empty)
        with cute.arch.elect_one():
            tcgen05.commit(o_1_full)
        with cute.arch.elect_one():
            tcgen05.commit(v_empty + (done + (tiles - 1)) % STAGES, 3)
        done = done + tiles
        own_done = own_done + (tiles - others)


@cute.kernel
def gqa_forward__cutedsl_sm100a__fp16_d128_n64_st3_c2_z2(
    q_map: cute.CopyAtom, q_map_coords: cute.Tensor, k_map: cute.CopyAtom, k_map_coords: cute.Tensor,
    v_map: cute.CopyAtom, v_map_coords: cute.Tensor, out_map: cute.CopyAtom, out_map_coords: cute.Tensor,
    q: cute.Pointer, k: cute.Pointer, v: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    sm_scale: Float32, causal: Int32, ctas: Int32, abreast: Int32, b: Int32, sq: Int32, heads: Int32,
    q_stride_b: Int32, q_stride_s: Int32, q_stride_h: Int32, skv: Int32, kv_heads: Int32, k_stride_b: Int32,
    k_stride_s: Int32, k_stride_h: Int32, v_stride_b: Int32, v_stride_s: Int32, v_stride_h: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    k_s = shared.k_s.data_ptr()
    v_s = shared.v_s.data_ptr()
    o_s_0 = shared.o_s_0.data_ptr()
    o_s_1 = shared.o_s_1.data_ptr()
    q_full = shared.q_full.data_ptr()
    q_empty = shared.q_empty.data_ptr()
    k_full = shared.k_full.data_ptr()
    k_empty = shared.k_empty.data_ptr()
    v_full = shared.v_full.data_ptr()
    v_empty = shared.v_empty.data_ptr()
    s_0_full = shared.s_0_full.data_ptr()
    s_0_empty = shared.s_0_empty.data_ptr()
    p_0_full = shared.p_0_full.data_ptr()
    p_0_empty = shared.p_0_empty.data_ptr()
    o_0_full = shared.o_0_full.data_ptr()
    s_1_full = shared.s_1_full.data_ptr()
    s_1_empty = shared.s_1_empty.data_ptr()
    p_1_full = shared.p_1_full.data_ptr()
    p_1_empty = shared.p_1_empty.data_ptr()
    o_1_full = shared.o_1_full.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    cta, rank, _ = cute.arch.block_idx()
    blocks = leaf.ceildiv(sq, ROWS)
    bundles = b * heads // CLUSTER
    all_items = blocks * bundles
    items = Int32(leaf.ceildiv(all_items - (cta + all_items // ctas % 2 * (ctas - 1 - 2 * cta)), ctas))
    shift = Int32(skv - causal * sq)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(q_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(q_empty + i, 1)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(k_full + i, 1)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(k_empty + i, CLUSTER)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(v_full + i, 1)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(v_empty + i, CLUSTER)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(s_0_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(s_0_empty + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_0_full + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_0_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(o_0_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(s_1_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(s_1_empty + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_1_full + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_1_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(o_1_full + i, 1)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(q_map)
        cpasync.prefetch_descriptor(k_map)
        cpasync.prefetch_descriptor(v_map)
        cpasync.prefetch_descriptor(out_map)
    if warp == 1:
        cute.arch.alloc_tmem(512, shared.tmem)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, shared.tmem)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if warp < 4:
        soften_0(
            out_map, out_map_coords, lse, sm_scale, ctas, abreast, sq, heads, skv, o_s_0, tmem, s_0_full,
            s_0_empty, p_0_full, p_0_empty, o_0_full, cta, rank, blocks, bundles, items, shift, thread, warp
        )
    elif warp < 8:
        soften_1(
            out_map, out_map_coords, lse, sm_scale, ctas, abreast, sq, heads, skv, o_s_1, tmem, s_1_full,
            s_1_empty, p_1_full, p_1_empty, o_1_full, cta, rank, blocks, bundles, items, shift, thread, warp
        )
    elif warp < 9:
        load(
            q_map, q_map_coords, k_map, k_map_coords, v_map, v_map_coords, ctas, abreast, heads, skv,
            kv_heads, q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, cta, rank, blocks,
            bundles, items, shift
        )
    else:
        mma(
            ctas, abreast, skv, q_s, k_s, v_s, tmem, q_full, q_empty, k_full, k_empty, v_full, v_empty,
            s_0_full, s_0_empty, p_0_full, p_0_empty, o_0_full, s_1_full, s_1_empty, p_1_full, p_1_empty,
            o_1_full, cta, blocks, bundles, items, shift
        )
    # No CTA ends while others may still send to it or arrive at its barriers.
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()

    # Tensor memory goes back only when no role can touch it any more.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if thread // 32 == 1:
        cute.arch.dealloc_tmem(tmem, 512)


@cute.jit
def program(
    q: cute.Pointer, k: cute.Pointer, v: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    sm_scale: Float32, causal: Int32, ctas: Int32, abreast: Int32, b: Int32, sq: Int32, heads: Int32,
    q_stride_b: Int32, q_stride_s: Int32, q_stride_h: Int32, skv: Int32, kv_heads: Int32, k_stride_b: Int32,
    k_stride_s: Int32, k_stride_h: Int32, v_stride_b: Int32, v_stride_s: Int32, v_stride_h: Int32
):
    q_map, q_map_coords = boxes.strided_map(q, cutlass.Float16, (1, 1, GROUP_ROWS, PANEL), True)
    k_map, k_map_coords = boxes.multicast_map(k, cutlass.Float16, (1, 1, TILE // CLUSTER, PANEL), True)
    v_map, v_map_coords = boxes.multicast_map(v, cutlass.Float16, (1, 1, TILE // CLUSTER, PANEL), True)
    out_map, out_map_coords = boxes.store_map(out, cutlass.Float16, (1, 1, GROUP_ROWS, PANEL), True)
    kernel = gqa_forward__cutedsl_sm100a__fp16_d128_n64_st3_c2_z2(
        q_map, q_map_coords, k_map, k_map_coords, v_map, v_map_coords, out_map, out_map_coords, q, k, v, out,
        lse, sm_scale, causal, ctas, abreast, b, sq, heads, q_stride_b, q_stride_s, q_stride_h, skv, kv_heads,
        k_stride_b, k_stride_s, k_stride_h, v_stride_b, v_stride_s, v_stride_h
    )
    kernel.launch(grid=(1, 1, 1), block=(320, 1, 1), cluster=(1, 2, 1), min_blocks_per_mp=1)
