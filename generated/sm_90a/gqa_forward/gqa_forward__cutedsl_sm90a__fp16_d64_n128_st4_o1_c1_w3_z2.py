"""gqa_forward__cutedsl_sm90a__fp16_d64_n128_st4_o1_c1_w3_z2

Generated from dsl_kernels/kernels/gqa_forward and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: dtype=fp16, dim=64, tile=128, stages=4, order=1, cluster=1, groups=3, lazy=2.

  load           attend
  warps 12..15   warps 0..11
  |===== q =====>|   q_s; bulk -> wgmma
  |===== k =====>|   k_s, ring of 4; bulk -> wgmma
  |===== v =====>|   v_s, ring of 4; bulk -> wgmma

roles
  attend     threads 0..383, 160 registers  64 rows each: products, softmax, epilogue
  load       threads 384..511, 32 registers  queries, keys and values
buffers
  q_s        192x64 float16, shared, 128-byte swizzle
  k_s        4 stages of 128x64 float16, shared, 128-byte swizzle
  v_s        4 stages of 128x64 float16, shared, 128-byte swizzle
  o_s        192x64 float16, shared, 128-byte swizzle
  scores     64x128 float32, registers of attend
  weights    64x128 float16, registers of attend
  acc        64x64 float32, registers of attend
  top        64 float32, registers of attend
  total      128x2 float32, registers of attend
  factor     64 float32, registers of attend
  limit      64 float32, registers of attend
pipelines
  q: load (bulk) ==[q_s: 1-slot ring]==> attend (wgmma)
    full  x1, 24576 bytes: load arrive + expect bytes
      attend: wait full
    empty x12: load wait empty
      attend: wgmma wait, one lane a warp, arrive empty
  k: load (bulk) ==[k_s: 4-slot ring]==> attend (wgmma)
    full  x1, 16384 bytes: load arrive + expect bytes
      attend: wait full
    empty x12: load wait empty
      attend: wgmma wait, one lane a warp, arrive empty
  v: load (bulk) ==[v_s: 4-slot ring]==> attend (wgmma)
    full  x1, 16384 bytes: load arrive + expect bytes
      attend: wait full
    empty x12: load wait empty
      attend: wgmma wait, one lane a warp, arrive empty
  in turn issue: attend -> attend 1 -> attend 2 -> ...
  named barrier staged: attend
totals: 512 threads, 180368 of 232448 bytes of shared memory, grid (ctas, 1)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from dsl_kernels.device.cutedsl import boxes, fragment, scalars, warps, wgmma, wgmma_register
from dsl_kernels.kernels.gqa_forward import cutedsl as leaf
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

DIM = 64  # elements of a head
TILE = 128  # keys per tile
STAGES = 4  # tiles of keys, and of values, in flight
GROUPS = 3  # warpgroups of 64 query rows each
ROWS = 192
LOG2_E = 1.4426950408889634
GROUP_ROWS = 64
RESCALE_LOG2 = 8
LN_2 = 0.6931471805599453
STAGED_BARRIER = 1
ATTEND_THREADS = 384
PANEL = 64

QK = wgmma.Product("float16", GROUP_ROWS, TILE, DIM, "k", "k")
PV = wgmma_register.Product("float16", GROUP_ROWS, DIM, TILE, "k", "mn")

LAUNCH = Launch(
    operands=(
        Operand(
            "q", "tensor", "float16", ("b", "sq", "heads", "64"),
            strides=("q_stride_b", "q_stride_s", "q_stride_h", "1")
        ),
        Operand(
            "k", "tensor", "float16", ("b", "skv", "kv_heads", "64"),
            strides=("k_stride_b", "k_stride_s", "k_stride_h", "1")
        ),
        Operand(
            "v", "tensor", "float16", ("b", "skv", "kv_heads", "64"),
            strides=("v_stride_b", "v_stride_s", "v_stride_h", "1")
        ),
        Operand("out", "tensor", "float16", ("b", "sq", "heads", "64"), written=True),
        Operand("lse", "tensor", "float32", ("b", "heads", "sq"), written=True),
        Operand("sm_scale", "scalar", "float32"),
        Operand("causal", "scalar", "int32"),
        Operand("ctas", "scalar", "int32"),
        Operand("abreast", "scalar", "int32"),
    ),
    grid=("ctas", "1", "1"),
    block=512,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "q_map", "q", "FLOAT16", global_dims=("64", "sq", "heads", "b"), global_strides=(
                "q_stride_s * 2", "q_stride_h * 2", "q_stride_b * 2"
            ),
            box=(PANEL, ROWS, 1, 1), element_strides=(1, 1, 1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "k_map", "k", "FLOAT16", global_dims=("64", "skv", "kv_heads", "b"), global_strides=(
                "k_stride_s * 2", "k_stride_h * 2", "k_stride_b * 2"
            ),
            box=(PANEL, TILE, 1, 1), element_strides=(1, 1, 1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "v_map", "v", "FLOAT16", global_dims=("64", "skv", "kv_heads", "b"), global_strides=(
                "v_stride_s * 2", "v_stride_h * 2", "v_stride_b * 2"
            ),
            box=(PANEL, TILE, 1, 1), element_strides=(1, 1, 1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "out_map", "out", "FLOAT16", global_dims=("64", "sq", "heads", "b"), global_strides=(
                "heads * 64 * 2", "64 * 2", "sq * heads * 64 * 2"
            ),
            box=(PANEL, GROUP_ROWS, 1, 1), element_strides=(1, 1, 1, 1),
            swizzle="128B", l2_promotion="L2_128B",
        ),
    ),
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, ROWS * DIM], 1024]
    k_s: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, STAGES * TILE * DIM], 1024]
    v_s: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, STAGES * TILE * DIM], 1024]
    o_s: cute.struct.Align[cute.struct.MemRange[cutlass.Float16, ROWS * DIM], 1024]
    q_full: cute.struct.MemRange[Int64, 1]
    q_empty: cute.struct.MemRange[Int64, 1]
    k_full: cute.struct.MemRange[Int64, STAGES]
    k_empty: cute.struct.MemRange[Int64, STAGES]
    v_full: cute.struct.MemRange[Int64, STAGES]
    v_empty: cute.struct.MemRange[Int64, STAGES]


@cute.jit
def hide_keys(scores, row, key, skv, shift, thread):
    """Set scores to -inf where there is no such key, or the row does not see it.

    Rows begin with `row`, keys with `key`, and a thread has `rows` rows. A row sees the keys up to its
    own number plus `shift`.
    """
    first = key + thread % 4 * 2
    last_0 = cutlass.min(skv - 1, row + (thread // 32 * 16 + thread % 32 // 4) + shift) - first
    for j in cutlass.range_constexpr(GROUP_ROWS * TILE // 128 // 4):
        scores[j * 4] = cutlass.select_(j * 8 > last_0, -Float32.inf, scores[j * 4])
        scores[j * 4 + 1] = cutlass.select_(j * 8 + 1 > last_0, -Float32.inf, scores[j * 4 + 1])
    last_1 = cutlass.min(skv - 1, row + (thread // 32 * 16 + thread % 32 // 4 + 8) + shift) - first
    for j in cutlass.range_constexpr(GROUP_ROWS * TILE // 128 // 4):
        scores[j * 4 + 2] = cutlass.select_(j * 8 > last_1, -Float32.inf, scores[j * 4 + 2])
        scores[j * 4 + 3] = cutlass.select_(j * 8 + 1 > last_1, -Float32.inf, scores[j * 4 + 3])


@cute.jit
def online_softmax_lazily_unseen(scores, top, total, factor, limit, scale):
    """Like `online_softmax`, but `top` stays where no score of a warp exceeds it by `rise` powers of two.

    Factors are then 1, and weights reach 2^rise. `limit` is the score from which `top` rises. Where
    that score is negative, `limit` is -0.0, and `top` always rises.
    """
    factor[0] = Float32(1.0)
    factor[1] = Float32(1.0)
    if warps.any_lane(
        (fragment.row_most_bits(scores, 0) >= scalars.bits_of(limit[0]).to(Int32)) | (
            fragment.row_most_bits(scores, 1) >= scalars.bits_of(limit[1]).to(Int32)
        )
    ):
        risen_0 = cute.arch.fmax(top[0], fragment.quad_most(fragment.row_most(scores, 0)))
        factor[0] = warps.exp2((top[0] - cutlass.select_(risen_0 == -Float32.inf, 0.0, risen_0)) * scale)
        total[0] = total[0] * factor[0]
        top[0] = risen_0
        above_0 = risen_0 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[0] = cutlass.select_(above_0 > 0.0, above_0, -0.0)
        risen_1 = cute.arch.fmax(top[1], fragment.quad_most(fragment.row_most(scores, 1)))
        factor[1] = warps.exp2((top[1] - cutlass.select_(risen_1 == -Float32.inf, 0.0, risen_1)) * scale)
        total[1] = total[1] * factor[1]
        top[1] = risen_1
        above_1 = risen_1 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[1] = cutlass.select_(above_1 > 0.0, above_1, -0.0)
    shift_0 = cutlass.select_(top[0] == -Float32.inf, 0.0, top[0]) * scale
    for j in cutlass.range_constexpr(GROUP_ROWS * TILE // 128 // 4):
        fragment.scale_pair(scores, j * 4, scale, shift_0)
        scores[j * 4] = warps.exp2(scores[j * 4])
        scores[j * 4 + 1] = warps.exp2(scores[j * 4 + 1])
    total[0] = total[0] + fragment.row_sum(scores, 0)
    shift_1 = cutlass.select_(top[1] == -Float32.inf, 0.0, top[1]) * scale
    for j in cutlass.range_constexpr(GROUP_ROWS * TILE // 128 // 4):
        fragment.scale_pair(scores, j * 4 + 2, scale, shift_1)
        scores[j * 4 + 2] = warps.exp2(scores[j * 4 + 2])
        scores[j * 4 + 2 + 1] = warps.exp2(scores[j * 4 + 2 + 1])
    total[1] = total[1] + fragment.row_sum(scores, 1)


@cute.jit
def finish_weights():
    """Have the weights computed before the wait for a product that runs meanwhile."""
    leaf.keep_order()


@cute.jit
def rescale_rows(acc, factor):
    """Each row times its factor, in place; left alone where the factors of a warp's rows are 1."""
    if warps.any_lane((factor[0] != 1.0) | (factor[1] != 1.0)):
        for j in cutlass.range_constexpr(GROUP_ROWS * DIM // 128 // 4):
            acc[j * 4] = acc[j * 4] * factor[0]
            acc[j * 4 + 1] = acc[j * 4 + 1] * factor[0]
        for j in cutlass.range_constexpr(GROUP_ROWS * DIM // 128 // 4):
            acc[j * 4 + 2] = acc[j * 4 + 2] * factor[1]
            acc[j * 4 + 3] = acc[j * 4 + 3] * factor[1]


@cute.jit
def online_softmax_lazily(scores, top, total, factor, limit, scale):
    """Like `online_softmax`, but `top` stays where no score of a warp exceeds it by `rise` powers of two.

    Factors are then 1, and weights reach 2^rise. `limit` is the score from which `top` rises. Where
    that score is negative, `limit` is -0.0, and `top` always rises.
    """
    factor[0] = Float32(1.0)
    factor[1] = Float32(1.0)
    if warps.any_lane(
        (fragment.row_most_bits(scores, 0) >= scalars.bits_of(limit[0]).to(Int32)) | (
            fragment.row_most_bits(scores, 1) >= scalars.bits_of(limit[1]).to(Int32)
        )
    ):
        risen_0 = cute.arch.fmax(top[0], fragment.quad_most(fragment.row_most(scores, 0)))
        factor[0] = warps.exp2((top[0] - cutlass.select_(risen_0 == -Float32.inf, 0.0, risen_0)) * scale)
        total[0] = total[0] * factor[0]
        top[0] = risen_0
        above_0 = risen_0 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[0] = cutlass.select_(above_0 > 0.0, above_0, -0.0)
        risen_1 = cute.arch.fmax(top[1], fragment.quad_most(fragment.row_most(scores, 1)))
        factor[1] = warps.exp2((top[1] - cutlass.select_(risen_1 == -Float32.inf, 0.0, risen_1)) * scale)
        total[1] = total[1] * factor[1]
        top[1] = risen_1
        above_1 = risen_1 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[1] = cutlass.select_(above_1 > 0.0, above_1, -0.0)
    shift_0 = top[0] * scale
    for j in cutlass.range_constexpr(GROUP_ROWS * TILE // 128 // 4):
        fragment.scale_pair(scores, j * 4, scale, shift_0)
        scores[j * 4] = warps.exp2(scores[j * 4])
        scores[j * 4 + 1] = warps.exp2(scores[j * 4 + 1])
    total[0] = total[0] + fragment.row_sum(scores, 0)
    shift_1 = top[1] * scale
    for j in cutlass.range_constexpr(GROUP_ROWS * TILE // 128 // 4):
        fragment.scale_pair(scores, j * 4 + 2, scale, shift_1)
        scores[j * 4 + 2] = warps.exp2(scores[j * 4 + 2])
        scores[j * 4 + 2 + 1] = warps.exp2(scores[j * 4 + 2 + 1])
    total[1] = total[1] + fragment.row_sum(scores, 1)


@cute.jit
def divide_by_total(acc, top, total, scale):
    """Divide rows of the accumulator by their sums, and turn `top` into the natural logarithm of sum exp."""
    whole_0 = fragment.quad_sum(total[0])
    top[0] = (top[0] * scale + warps.log2(whole_0)) * LN_2
    inverse_0 = warps.rcp_approx(whole_0)
    for j in cutlass.range_constexpr(GROUP_ROWS * DIM // 128 // 4):
        acc[j * 4] = acc[j * 4] * inverse_0
        acc[j * 4 + 1] = acc[j * 4 + 1] * inverse_0
    whole_1 = fragment.quad_sum(total[1])
    top[1] = (top[1] * scale + warps.log2(whole_1)) * LN_2
    inverse_1 = warps.rcp_approx(whole_1)
    for j in cutlass.range_constexpr(GROUP_ROWS * DIM // 128 // 4):
        acc[j * 4 + 2] = acc[j * 4 + 2] * inverse_1
        acc[j * 4 + 3] = acc[j * 4 + 3] * inverse_1


@cute.jit
def store_lse(lse, values, batch, head, heads, row, sq, thread):
    """Store one value per row to lse[batch, head, row ...], for the rows that exist."""
    if thread % 4 == 0:
        own_0 = row + (thread // 32 * 16 + thread % 32 // 4)
        if own_0 < sq:
            of_head_0 = lse + Int64(batch * heads + head) * sq
            of_head_0[own_0] = values[0]
        own_1 = row + (thread // 32 * 16 + thread % 32 // 4 + 8)
        if own_1 < sq:
            of_head_1 = lse + Int64(batch * heads + head) * sq
            of_head_1[own_1] = values[1]


@cute.jit
def stage_result(target, row, acc, thread):
    """Stage the accumulator, rounded to 16 bits, in a shared tile from row `row` on."""
    thread = scalars.anew(thread)
    for pair in cutlass.range_constexpr(GROUP_ROWS * DIM // 128 // 8):
        warps.store_matrices(
            warps.piece(
                target, 8, row + thread // 32 * 16 + thread % 16, pair * 16 + thread % 32 // 16 * 8,
                (ROWS, DIM), 128
            ).iterator,
            acc, pair * 8, 4
        )


@cute.jit
def attend(
    out_map: cute.CopyAtom, out_map_coords: cute.Tensor, lse: cute.Pointer, sm_scale: Float32, ctas: Int32,
    abreast: Int32, sq: Int32, heads: Int32, skv: Int32, q_s: cute.Pointer, k_s: cute.Pointer,
    v_s: cute.Pointer, o_s: cute.Pointer, q_full: cute.Pointer, q_empty: cute.Pointer, k_full: cute.Pointer,
    k_empty: cute.Pointer, v_full: cute.Pointer, v_empty: cute.Pointer, cta: Int32, blocks: Int32,
    bundles: Int32, items: Int32, shift: Int32, thread: Int32, warp: Int32
):
    """64 rows each: products, softmax, epilogue."""
    qk_a = QK.operand_a(q_s, ROWS, DIM, 1, 128)
    qk_b = QK.operand_b(k_s, TILE, DIM, STAGES, 128)
    pv_b = PV.operand_b(v_s, TILE, DIM, STAGES, 128)
    scores = QK.accumulators()
    weights = cute.make_rmem_tensor(64, cutlass.Float16)
    acc = PV.accumulators()
    top = cute.make_rmem_tensor(2, Float32)
    total = cute.make_rmem_tensor(2, Float32)
    factor = cute.make_rmem_tensor(2, Float32)
    limit = cute.make_rmem_tensor(2, Float32)
    replica = warp // 4
    worker = thread % 128
    if replica == 2:
        cute.arch.barrier_arrive(barrier_id=(replica + 1) % 3 + (1 + GROUPS), number_of_threads=256)
    scale = sm_scale * LOG2_E
    done = Int32(0)
    for item in cutlass.range(items, unroll=1):
        number = Int32(cta + item % 2 * (ctas - 1 - 2 * cta) + item * ctas)
        first = Int32(number // (abreast * blocks) * abreast)
        within = Int32(number - first * blocks)
        width = Int32(cutlass.min(abreast, bundles - first))
        row = Int32((blocks - 1 - within // width) * ROWS)
        tiles = Int32(leaf.ceildiv(cutlass.min(skv, row + shift + ROWS), TILE))
        pair = Int32(first + within % width)
        batch = pair // heads
        head = pair - batch * heads
        own_row = row + replica * GROUP_ROWS
        others = Int32(
            tiles - leaf.ceildiv(cutlass.min(skv, row + shift + (replica * GROUP_ROWS + GROUP_ROWS)), TILE)
        )
        acc.fill(0.0)
        top.fill(-Float32.inf)
        total.fill(0.0)
        limit.fill(-0.0)
        cute.arch.mbarrier_wait(q_full, item & 1)
        for i in cutlass.range(others, unroll=1):
            cute.arch.barrier(barrier_id=replica + (1 + GROUPS), number_of_threads=256)
            cute.arch.barrier_arrive(barrier_id=(replica + 1) % 3 + (1 + GROUPS), number_of_threads=256)
            cute.arch.mbarrier_wait(k_full + (done + i) % STAGES, ((done + i) // STAGES) & 1)
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(k_empty + (done + i) % STAGES)
            cute.arch.mbarrier_wait(v_full + (done + i) % STAGES, ((done + i) // STAGES) & 1)
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(v_empty + (done + i) % STAGES)
        cute.arch.mbarrier_wait(k_full + (done + others) % STAGES, ((done + others) // STAGES) & 1)
        # S = Q K^T
        warpgroup.fence()
        QK.multiply(
            qk_a[None, None, None, 0, replica, 0], qk_b[None, None, None, (done + others) % STAGES, 0, 0],
            scores, False
        )
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(k_empty + (done + others) % STAGES)
        hide_keys(scores, own_row, (tiles - 1 - others) * TILE, skv, shift, worker)
        online_softmax_lazily_unseen(scores, top, total, factor, limit, scale)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment.round_to(weights, scores)
        masked = Int32(
            cutlass.max(
                others + 1, tiles - cutlass.min(skv, row + shift + (replica * GROUP_ROWS + 1)) // TILE
            )
        )
        for i in cutlass.range(others + 1, masked, 1, unroll=1):
            cute.arch.barrier(barrier_id=replica + (1 + GROUPS), number_of_threads=256)
            cute.arch.mbarrier_wait(k_full + (done + i) % STAGES, ((done + i) // STAGES) & 1)
            # S = Q K^T
            warpgroup.fence()
            QK.multiply(
                qk_a[None, None, None, 0, replica, 0], qk_b[None, None, None, (done + i) % STAGES, 0, 0],
                scores, False
            )
            warpgroup.commit_group()
            cute.arch.mbarrier_wait(v_full + (done + (i - 1)) % STAGES, ((done + (i - 1)) // STAGES) & 1)
            # O += P V
            warpgroup.fence()
            PV.multiply(weights, pv_b[None, None, None, (done + (i - 1)) % STAGES, 0, 0], acc, True)
            warpgroup.commit_group()
            cute.arch.barrier_arrive(barrier_id=(replica + 1) % 3 + (1 + GROUPS), number_of_threads=256)
            warpgroup.wait_group(1)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(k_empty + (done + i) % STAGES)
            hide_keys(scores, own_row, (tiles - 1 - i) * TILE, skv, shift, worker)
            online_softmax_lazily_unseen(scores, top, total, factor, limit, scale)
            finish_weights()
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(v_empty + (done + (i - 1)) % STAGES)
            fragment.round_to(weights, scores)
            rescale_rows(acc, factor)
        for i in cutlass.range(masked, tiles, 1, unroll=1):
            cute.arch.barrier(barrier_id=replica + (1 + GROUPS), number_of_threads=256)
            cute.arch.mbarrier_wait(k_full + (done + i) % STAGES, ((done + i) // STAGES) & 1)
            # S = Q K^T
            warpgroup.fence()
            QK.multiply(
                qk_a[None, None, None, 0, replica, 0], qk_b[None, None, None, (done + i) % STAGES, 0, 0],
                scores, False
            )
            warpgroup.commit_group()
            cute.arch.mbarrier_wait(v_full + (done + (i - 1)) % STAGES, ((done + (i - 1)) // STAGES) & 1)
            # O += P V
            warpgroup.fence()
            PV.multiply(weights, pv_b[None, None, None, (done + (i - 1)) % STAGES, 0, 0], acc, True)
            warpgroup.commit_group()
            cute.arch.barrier_arrive(barrier_id=(replica + 1) % 3 + (1 + GROUPS), number_of_threads=256)
            warpgroup.wait_group(1)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(k_empty + (done + i) % STAGES)
            online_softmax_lazily(scores, top, total, factor, limit, scale)
            finish_weights()
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(v_empty + (done + (i - 1)) % STAGES)
            fragment.round_to(weights, scores)
            rescale_rows(acc, factor)
        cute.arch.mbarrier_wait(v_full + (done + (tiles - 1)) % STAGES, ((done + (tiles - 1)) // STAGES) & 1)
        # O += P V
        warpgroup.fence()
        PV.multiply(weights, pv_b[None, None, None, (done + (tiles - 1)) % STAGES, 0, 0], acc, True)
        warpgroup.commit_group()
        warpgroup.wait_group(1)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(q_empty)
        warpgroup.wait_group(0)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(v_empty + (done + (tiles - 1)) % STAGES)
        divide_by_total(acc, top, total, scale)
        store_lse(lse, top, batch, head, heads, own_row, sq, worker)
        if warp == replica * (384 // GROUPS // 32):
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.barrier(barrier_id=replica + STAGED_BARRIER, number_of_threads=ATTEND_THREADS // GROUPS)
        stage_result(o_s, replica * GROUP_ROWS, acc, worker)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier(barrier_id=replica + STAGED_BARRIER, number_of_threads=ATTEND_THREADS // GROUPS)
        if warp == replica * (384 // GROUPS // 32):
            boxes.store_box(
                out_map, out_map_coords, (batch, head, own_row, 0), (1, 1, GROUP_ROWS, PANEL),
                o_s + replica * GROUP_ROWS * 64
            )
            cute.arch.cp_async_bulk_commit_group()
        done = done + tiles
    if warp == replica * (384 // GROUPS // 32):
        cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def load(
    q_map: cute.CopyAtom, q_map_coords: cute.Tensor, k_map: cute.CopyAtom, k_map_coords: cute.Tensor,
    v_map: cute.CopyAtom, v_map_coords: cute.Tensor, ctas: Int32, abreast: Int32, heads: Int32, skv: Int32,
    kv_heads: Int32, q_s: cute.Pointer, k_s: cute.Pointer, v_s: cute.Pointer, q_full: cute.Pointer,
    q_empty: cute.Pointer, k_full: cute.Pointer, k_empty: cute.Pointer, v_full: cute.Pointer,
    v_empty: cute.Pointer, cta: Int32, blocks: Int32, bundles: Int32, items: Int32, shift: Int32
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
        pair = Int32(first + within % width)
        batch = pair // heads
        head = pair - batch * heads
        kv_head = head * kv_heads // heads
        cute.arch.mbarrier_wait(k_empty + done % STAGES, ((done // STAGES) & 1) ^ 1)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(k_full + done % STAGES, TILE * DIM * 2)
        boxes.load_box(
            k_map, k_map_coords, (batch, kv_head, (tiles - 1) * TILE, 0), (1, 1, TILE, PANEL),
            k_s + done % STAGES * (TILE * DIM), k_full + done % STAGES
        )
        cute.arch.mbarrier_wait(q_empty, (item & 1) ^ 1)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(q_full, ROWS * DIM * 2)
        boxes.load_box(q_map, q_map_coords, (batch, head, row, 0), (1, 1, ROWS, PANEL), q_s, q_full)
        for i in cutlass.range(1, tiles, 1, unroll=1):
            cute.arch.mbarrier_wait(k_empty + (done + i) % STAGES, (((done + i) // STAGES) & 1) ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(k_full + (done + i) % STAGES, TILE * DIM * 2)
            boxes.load_box(
                k_map, k_map_coords, (batch, kv_head, (tiles - 1 - i) * TILE, 0), (1, 1, TILE, PANEL),
                k_s + (done + i) % STAGES * (TILE * DIM), k_full + (done + i) % STAGES
            )
            cute.arch.mbarrier_wait(
                v_empty + (done + (i - 1)) % STAGES, (((done + (i - 1)) // STAGES) & 1) ^ 1
            )
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(v_full + (done + (i - 1)) % STAGES, TILE * DIM * 2)
            boxes.load_box(
                v_map, v_map_coords, (batch, kv_head, (tiles - 1 - (i - 1)) * TILE, 0), (1, 1, TILE, PANEL),
                v_s + (done + (i - 1)) % STAGES * (TILE * DIM), v_full + (done + (i - 1)) % STAGES
            )
        cute.arch.mbarrier_wait(
            v_empty + (done + (tiles - 1)) % STAGES, (((done + (tiles - 1)) // STAGES) & 1) ^ 1
        )
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(v_full + (done + (tiles - 1)) % STAGES, TILE * DIM * 2)
        boxes.load_box(
            v_map, v_map_coords, (batch, kv_head, (tiles - 1 - (tiles - 1)) * TILE, 0), (1, 1, TILE, PANEL),
            v_s + (done + (tiles - 1)) % STAGES * (TILE * DIM), v_full + (done + (tiles - 1)) % STAGES
        )
        done = done + tiles


@cute.kernel
def gqa_forward__cutedsl_sm90a__fp16_d64_n128_st4_o1_c1_w3_z2(
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
    o_s = shared.o_s.data_ptr()
    q_full = shared.q_full.data_ptr()
    q_empty = shared.q_empty.data_ptr()
    k_full = shared.k_full.data_ptr()
    k_empty = shared.k_empty.data_ptr()
    v_full = shared.v_full.data_ptr()
    v_empty = shared.v_empty.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    cta, rank, _ = cute.arch.block_idx()
    blocks = leaf.ceildiv(sq, ROWS)
    bundles = b * heads
    all_items = blocks * bundles
    items = Int32(leaf.ceildiv(all_items - (cta + all_items // ctas % 2 * (ctas - 1 - 2 * cta)), ctas))
    shift = Int32(skv - causal * sq)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_empty + i, GROUPS * 4)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(k_full + i, 1)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(k_empty + i, GROUPS * 4)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(v_full + i, 1)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(v_empty + i, GROUPS * 4)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(q_map)
        cpasync.prefetch_descriptor(k_map)
        cpasync.prefetch_descriptor(v_map)
        cpasync.prefetch_descriptor(out_map)
    cute.arch.sync_threads()
    if warp < 12:
        cute.arch.setmaxregister_increase(160)
        attend(
            out_map, out_map_coords, lse, sm_scale, ctas, abreast, sq, heads, skv, q_s, k_s, v_s, o_s, q_full,
            q_empty, k_full, k_empty, v_full, v_empty, cta, blocks, bundles, items, shift, thread, warp
        )
    else:
        cute.arch.setmaxregister_decrease(32)
        if warp == 12:
            load(
                q_map, q_map_coords, k_map, k_map_coords, v_map, v_map_coords, ctas, abreast, heads, skv,
                kv_heads, q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, cta, blocks,
                bundles, items, shift
            )


@cute.jit
def program(
    q: cute.Pointer, k: cute.Pointer, v: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    sm_scale: Float32, causal: Int32, ctas: Int32, abreast: Int32, b: Int32, sq: Int32, heads: Int32,
    q_stride_b: Int32, q_stride_s: Int32, q_stride_h: Int32, skv: Int32, kv_heads: Int32, k_stride_b: Int32,
    k_stride_s: Int32, k_stride_h: Int32, v_stride_b: Int32, v_stride_s: Int32, v_stride_h: Int32
):
    q_map, q_map_coords = boxes.strided_map(q, cutlass.Float16, (1, 1, ROWS, PANEL), True)
    k_map, k_map_coords = boxes.strided_map(k, cutlass.Float16, (1, 1, TILE, PANEL), True)
    v_map, v_map_coords = boxes.strided_map(v, cutlass.Float16, (1, 1, TILE, PANEL), True)
    out_map, out_map_coords = boxes.store_map(out, cutlass.Float16, (1, 1, GROUP_ROWS, PANEL), True)
    kernel = gqa_forward__cutedsl_sm90a__fp16_d64_n128_st4_o1_c1_w3_z2(
        q_map, q_map_coords, k_map, k_map_coords, v_map, v_map_coords, out_map, out_map_coords, q, k, v, out,
        lse, sm_scale, causal, ctas, abreast, b, sq, heads, q_stride_b, q_stride_s, q_stride_h, skv, kv_heads,
        k_stride_b, k_stride_s, k_stride_h, v_stride_b, v_stride_s, v_stride_h
    )
    kernel.launch(grid=(1, 1, 1), block=(512, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1)
