"""gqa_forward__tilelang_sm90a__fp16_d64_n128_st4_o1_c1_w3_z2

Generated from dsl_kernels/kernels/gqa_forward and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
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
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout

from dsl_kernels.device.tilelang import fragment, scalars, sync, warps, wgmma
from dsl_kernels.kernels.gqa_forward import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

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


@T.macro
def hide_keys(scores, row, key, skv, shift, thread):
    """Set scores to -inf where there is no such key, or the row does not see it.

    Rows begin with `row`, keys with `key`, and a thread has `rows` rows. A row sees the keys up to its
    own number plus `shift`.
    """
    first = key + T.truncmod(thread, 4) * 2
    last_0 = T.min(
        skv - 1, row + (T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4)) + shift
    ) - first
    for j in T.unroll(GROUP_ROWS * TILE // 128 // 4):
        scores[j * 4] = T.if_then_else(j * 8 > last_0, -T.infinity("float32"), scores[j * 4])
        scores[j * 4 + 1] = T.if_then_else(j * 8 + 1 > last_0, -T.infinity("float32"), scores[j * 4 + 1])
    last_1 = T.min(
        skv - 1, row + (T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4) + 8) + shift
    ) - first
    for j in T.unroll(GROUP_ROWS * TILE // 128 // 4):
        scores[j * 4 + 2] = T.if_then_else(j * 8 > last_1, -T.infinity("float32"), scores[j * 4 + 2])
        scores[j * 4 + 3] = T.if_then_else(j * 8 + 1 > last_1, -T.infinity("float32"), scores[j * 4 + 3])


@T.macro
def online_softmax_lazily_unseen(scores, top, total, factor, limit, scale):
    """Like `online_softmax`, but `top` stays where no score of a warp exceeds it by `rise` powers of two.

    Factors are then 1, and weights reach 2^rise. `limit` is the score from which `top` rises. Where
    that score is negative, `limit` is -0.0, and `top` always rises.
    """
    factor[0] = 1.0
    factor[1] = 1.0
    if warps.any_lane(
        (fragment.row_most_bits(scores, 0) >= T.cast(scalars.bits_of(limit[0]), "int32")) | (
            fragment.row_most_bits(scores, 1) >= T.cast(scalars.bits_of(limit[1]), "int32")
        )
    ):
        risen_0 = T.max(top[0], fragment.quad_most(fragment.row_most(scores, 0)))
        factor[0] = warps.exp2(
            (top[0] - T.if_then_else(risen_0 == -T.infinity("float32"), 0.0, risen_0)) * scale
        )
        total[0] = total[0] * factor[0]
        top[0] = risen_0
        above_0 = risen_0 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[0] = T.if_then_else(above_0 > 0.0, above_0, -0.0)
        risen_1 = T.max(top[1], fragment.quad_most(fragment.row_most(scores, 1)))
        factor[1] = warps.exp2(
            (top[1] - T.if_then_else(risen_1 == -T.infinity("float32"), 0.0, risen_1)) * scale
        )
        total[1] = total[1] * factor[1]
        top[1] = risen_1
        above_1 = risen_1 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[1] = T.if_then_else(above_1 > 0.0, above_1, -0.0)
    shift_0 = T.if_then_else(top[0] == -T.infinity("float32"), 0.0, top[0]) * scale
    for j in T.unroll(GROUP_ROWS * TILE // 128 // 4):
        fragment.scale_pair(scores, j * 4, scale, shift_0)
        scores[j * 4] = warps.exp2(scores[j * 4])
        scores[j * 4 + 1] = warps.exp2(scores[j * 4 + 1])
    total[0] = total[0] + fragment.row_sum(scores, 0)
    shift_1 = T.if_then_else(top[1] == -T.infinity("float32"), 0.0, top[1]) * scale
    for j in T.unroll(GROUP_ROWS * TILE // 128 // 4):
        fragment.scale_pair(scores, j * 4 + 2, scale, shift_1)
        scores[j * 4 + 2] = warps.exp2(scores[j * 4 + 2])
        scores[j * 4 + 2 + 1] = warps.exp2(scores[j * 4 + 2 + 1])
    total[1] = total[1] + fragment.row_sum(scores, 1)


@T.macro
def finish_weights():
    """Have the weights computed before the wait for a product that runs meanwhile."""
    leaf.keep_order()


@T.macro
def rescale_rows(acc, factor):
    """Each row times its factor, in place; left alone where the factors of a warp's rows are 1."""
    if warps.any_lane((factor[0] != 1.0) | (factor[1] != 1.0)):
        for j in T.unroll(GROUP_ROWS * DIM // 128 // 4):
            acc[j * 4] = acc[j * 4] * factor[0]
            acc[j * 4 + 1] = acc[j * 4 + 1] * factor[0]
        for j in T.unroll(GROUP_ROWS * DIM // 128 // 4):
            acc[j * 4 + 2] = acc[j * 4 + 2] * factor[1]
            acc[j * 4 + 3] = acc[j * 4 + 3] * factor[1]


@T.macro
def online_softmax_lazily(scores, top, total, factor, limit, scale):
    """Like `online_softmax`, but `top` stays where no score of a warp exceeds it by `rise` powers of two.

    Factors are then 1, and weights reach 2^rise. `limit` is the score from which `top` rises. Where
    that score is negative, `limit` is -0.0, and `top` always rises.
    """
    factor[0] = 1.0
    factor[1] = 1.0
    if warps.any_lane(
        (fragment.row_most_bits(scores, 0) >= T.cast(scalars.bits_of(limit[0]), "int32")) | (
            fragment.row_most_bits(scores, 1) >= T.cast(scalars.bits_of(limit[1]), "int32")
        )
    ):
        risen_0 = T.max(top[0], fragment.quad_most(fragment.row_most(scores, 0)))
        factor[0] = warps.exp2(
            (top[0] - T.if_then_else(risen_0 == -T.infinity("float32"), 0.0, risen_0)) * scale
        )
        total[0] = total[0] * factor[0]
        top[0] = risen_0
        above_0 = risen_0 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[0] = T.if_then_else(above_0 > 0.0, above_0, -0.0)
        risen_1 = T.max(top[1], fragment.quad_most(fragment.row_most(scores, 1)))
        factor[1] = warps.exp2(
            (top[1] - T.if_then_else(risen_1 == -T.infinity("float32"), 0.0, risen_1)) * scale
        )
        total[1] = total[1] * factor[1]
        top[1] = risen_1
        above_1 = risen_1 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[1] = T.if_then_else(above_1 > 0.0, above_1, -0.0)
    shift_0 = top[0] * scale
    for j in T.unroll(GROUP_ROWS * TILE // 128 // 4):
        fragment.scale_pair(scores, j * 4, scale, shift_0)
        scores[j * 4] = warps.exp2(scores[j * 4])
        scores[j * 4 + 1] = warps.exp2(scores[j * 4 + 1])
    total[0] = total[0] + fragment.row_sum(scores, 0)
    shift_1 = top[1] * scale
    for j in T.unroll(GROUP_ROWS * TILE // 128 // 4):
        fragment.scale_pair(scores, j * 4 + 2, scale, shift_1)
        scores[j * 4 + 2] = warps.exp2(scores[j * 4 + 2])
        scores[j * 4 + 2 + 1] = warps.exp2(scores[j * 4 + 2 + 1])
    total[1] = total[1] + fragment.row_sum(scores, 1)


@T.macro
def divide_by_total(acc, top, total, scale):
    """Divide rows of the accumulator by their sums, and turn `top` into the natural logarithm of sum exp."""
    whole_0 = fragment.quad_sum(total[0])
    top[0] = (top[0] * scale + warps.log2(whole_0)) * LN_2
    inverse_0 = warps.rcp_approx(whole_0)
    for j in T.unroll(GROUP_ROWS * DIM // 128 // 4):
        acc[j * 4] = acc[j * 4] * inverse_0
        acc[j * 4 + 1] = acc[j * 4 + 1] * inverse_0
    whole_1 = fragment.quad_sum(total[1])
    top[1] = (top[1] * scale + warps.log2(whole_1)) * LN_2
    inverse_1 = warps.rcp_approx(whole_1)
    for j in T.unroll(GROUP_ROWS * DIM // 128 // 4):
        acc[j * 4 + 2] = acc[j * 4 + 2] * inverse_1
        acc[j * 4 + 3] = acc[j * 4 + 3] * inverse_1


@T.macro
def store_lse(lse, values, batch, head, row, sq, thread):
    """Store one value per row to lse[batch, head, row ...], for the rows that exist."""
    if T.truncmod(thread, 4) == 0:
        own_0 = row + (T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4))
        if own_0 < sq:
            lse[batch, head, own_0] = values[0]
        own_1 = row + (T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4) + 8)
        if own_1 < sq:
            lse[batch, head, own_1] = values[1]


@T.macro
def stage_result(target, row, acc, thread):
    """Stage the accumulator, rounded to 16 bits, in a shared tile from row `row` on."""
    thread = scalars.anew(thread)
    for pair in T.unroll(GROUP_ROWS * DIM // 128 // 8):
        warps.store_matrices(
            target[
                row + T.truncdiv(thread, 32) * 16 + T.truncmod(thread, 16),
                pair * 16 + T.truncdiv(T.truncmod(thread, 32), 16) * 8
            ],
            acc, pair * 8, 4
        )


@T.macro
def attend(
    lse, sm_scale, ctas, abreast, sq, heads, skv, out_map_rows, q_s, k_s, v_s, o_s, q_full, q_empty, k_full,
    k_empty, v_full, v_empty, cta, blocks, bundles, items: T.Ref, shift: T.Ref, thread, replica
):
    """64 rows each: products, softmax, epilogue."""
    scores = T.alloc_local((64,), "float32")
    weights = T.alloc_local((64,), "float16")
    acc = T.alloc_local((32,), "float32")
    top = T.alloc_local((2,), "float32")
    total = T.alloc_local((2,), "float32")
    factor = T.alloc_local((2,), "float32")
    limit = T.alloc_local((2,), "float32")
    worker = thread - replica * 128
    if replica == 2:
        T.call_extern("handle", "sync::pass_turn", T.truncmod(replica + 1, 3) + (1 + GROUPS), 256)
    scale = sm_scale * LOG2_E
    done = T.alloc_var("int32", init=0)
    for item in T.serial(items):
        number = T.alloc_var("int32", init=cta + T.truncmod(item, 2) * (ctas - 1 - 2 * cta) + item * ctas)
        first = T.alloc_var("int32", init=T.truncdiv(number, abreast * blocks) * abreast)
        within = T.alloc_var("int32", init=number - first * blocks)
        width = T.alloc_var("int32", init=T.min(abreast, bundles - first))
        row = T.alloc_var("int32", init=(blocks - 1 - T.truncdiv(within, width)) * ROWS)
        tiles = T.alloc_var("int32", init=leaf.ceildiv(T.min(skv, row + shift + ROWS), TILE))
        pair = T.alloc_var("int32", init=first + T.truncmod(within, width))
        batch = T.truncdiv(pair, heads)
        head = pair - batch * heads
        own_row = row + replica * GROUP_ROWS
        others = T.alloc_var(
            "int32",
            init=tiles - leaf.ceildiv(T.min(skv, row + shift + (replica * GROUP_ROWS + GROUP_ROWS)), TILE)
        )
        T.fill(acc, 0.0)
        T.fill(top, -T.infinity("float32"))
        T.fill(total, 0.0)
        T.fill(limit, -0.0)
        T.mbarrier_wait_parity(q_full[0], item & 1)
        for i in T.serial(others):
            T.call_extern("handle", "sync::take_turn", replica + (1 + GROUPS), 256)
            T.call_extern("handle", "sync::pass_turn", T.truncmod(replica + 1, 3) + (1 + GROUPS), 256)
            T.mbarrier_wait_parity(k_full[(done + i) % STAGES], ((done + i) // STAGES) & 1)
            T.wait_wgmma(0)
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(k_empty[(done + i) % STAGES])
            T.mbarrier_wait_parity(v_full[(done + i) % STAGES], ((done + i) // STAGES) & 1)
            T.wait_wgmma(0)
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(v_empty[(done + i) % STAGES])
        T.mbarrier_wait_parity(k_full[(done + others) % STAGES], ((done + others) // STAGES) & 1)
        # S = Q K^T
        T.warpgroup_fence_operand(scores, num_regs=64)
        T.warpgroup_arrive()
        wgmma.multiply(
            scores, wgmma.operand(q_s, 0, replica * GROUP_ROWS, 0, "k", 128, "float16"),
            wgmma.operand(k_s, (done + others) % STAGES, 0, 0, "k", 128, "float16"), GROUP_ROWS, TILE, DIM,
            "float16", True, narrow=True
        )
        T.warpgroup_commit_batch()
        T.warpgroup_fence_operand(scores, num_regs=64)
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(scores, num_regs=64)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(k_empty[(done + others) % STAGES])
        hide_keys(scores, own_row, (tiles - 1 - others) * TILE, skv, shift, worker)
        online_softmax_lazily_unseen(scores, top, total, factor, limit, scale)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment.round_to(weights, scores)
        masked = T.alloc_var(
            "int32",
            init=T.max(
                others + 1, tiles - T.truncdiv(T.min(skv, row + shift + (replica * GROUP_ROWS + 1)), TILE)
            )
        )
        for i in T.serial(others + 1, masked):
            T.call_extern("handle", "sync::take_turn", replica + (1 + GROUPS), 256)
            T.mbarrier_wait_parity(k_full[(done + i) % STAGES], ((done + i) // STAGES) & 1)
            # S = Q K^T
            T.warpgroup_fence_operand(scores, num_regs=64)
            T.warpgroup_arrive()
            wgmma.multiply(
                scores, wgmma.operand(q_s, 0, replica * GROUP_ROWS, 0, "k", 128, "float16"),
                wgmma.operand(k_s, (done + i) % STAGES, 0, 0, "k", 128, "float16"), GROUP_ROWS, TILE, DIM,
                "float16", True, narrow=True
            )
            T.warpgroup_commit_batch()
            T.warpgroup_fence_operand(scores, num_regs=64)
            T.mbarrier_wait_parity(v_full[(done + (i - 1)) % STAGES], ((done + (i - 1)) // STAGES) & 1)
            # O += P V
            T.warpgroup_fence_operand(weights, num_regs=32)
            T.warpgroup_fence_operand(acc, num_regs=32)
            T.warpgroup_arrive()
            wgmma.multiply_registers(
                acc, weights, wgmma.operand(v_s, (done + (i - 1)) % STAGES, 0, 0, "mn", 128, "float16"), DIM,
                TILE, "float16", False
            )
            T.warpgroup_commit_batch()
            T.warpgroup_fence_operand(acc, num_regs=32)
            T.warpgroup_fence_operand(weights, num_regs=32)
            T.call_extern("handle", "sync::pass_turn", T.truncmod(replica + 1, 3) + (1 + GROUPS), 256)
            T.wait_wgmma(1)
            T.warpgroup_fence_operand(scores, num_regs=64)
            T.warpgroup_fence_operand(acc, num_regs=32)
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(k_empty[(done + i) % STAGES])
            hide_keys(scores, own_row, (tiles - 1 - i) * TILE, skv, shift, worker)
            online_softmax_lazily_unseen(scores, top, total, factor, limit, scale)
            finish_weights()
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(acc, num_regs=32)
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(v_empty[(done + (i - 1)) % STAGES])
            fragment.round_to(weights, scores)
            rescale_rows(acc, factor)
        for i in T.serial(masked, tiles):
            T.call_extern("handle", "sync::take_turn", replica + (1 + GROUPS), 256)
            T.mbarrier_wait_parity(k_full[(done + i) % STAGES], ((done + i) // STAGES) & 1)
            # S = Q K^T
            T.warpgroup_fence_operand(scores, num_regs=64)
            T.warpgroup_arrive()
            wgmma.multiply(
                scores, wgmma.operand(q_s, 0, replica * GROUP_ROWS, 0, "k", 128, "float16"),
                wgmma.operand(k_s, (done + i) % STAGES, 0, 0, "k", 128, "float16"), GROUP_ROWS, TILE, DIM,
                "float16", True, narrow=True
            )
            T.warpgroup_commit_batch()
            T.warpgroup_fence_operand(scores, num_regs=64)
            T.mbarrier_wait_parity(v_full[(done + (i - 1)) % STAGES], ((done + (i - 1)) // STAGES) & 1)
            # O += P V
            T.warpgroup_fence_operand(weights, num_regs=32)
            T.warpgroup_fence_operand(acc, num_regs=32)
            T.warpgroup_arrive()
            wgmma.multiply_registers(
                acc, weights, wgmma.operand(v_s, (done + (i - 1)) % STAGES, 0, 0, "mn", 128, "float16"), DIM,
                TILE, "float16", False
            )
            T.warpgroup_commit_batch()
            T.warpgroup_fence_operand(acc, num_regs=32)
            T.warpgroup_fence_operand(weights, num_regs=32)
            T.call_extern("handle", "sync::pass_turn", T.truncmod(replica + 1, 3) + (1 + GROUPS), 256)
            T.wait_wgmma(1)
            T.warpgroup_fence_operand(scores, num_regs=64)
            T.warpgroup_fence_operand(acc, num_regs=32)
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(k_empty[(done + i) % STAGES])
            online_softmax_lazily(scores, top, total, factor, limit, scale)
            finish_weights()
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(acc, num_regs=32)
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(v_empty[(done + (i - 1)) % STAGES])
            fragment.round_to(weights, scores)
            rescale_rows(acc, factor)
        T.mbarrier_wait_parity(v_full[(done + (tiles - 1)) % STAGES], ((done + (tiles - 1)) // STAGES) & 1)
        # O += P V
        T.warpgroup_fence_operand(weights, num_regs=32)
        T.warpgroup_fence_operand(acc, num_regs=32)
        T.warpgroup_arrive()
        wgmma.multiply_registers(
            acc, weights, wgmma.operand(v_s, (done + (tiles - 1)) % STAGES, 0, 0, "mn", 128, "float16"), DIM,
            TILE, "float16", False
        )
        T.warpgroup_commit_batch()
        T.warpgroup_fence_operand(acc, num_regs=32)
        T.warpgroup_fence_operand(weights, num_regs=32)
        T.wait_wgmma(1)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(q_empty[0])
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(acc, num_regs=32)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(v_empty[(done + (tiles - 1)) % STAGES])
        divide_by_total(acc, top, total, scale)
        store_lse(lse, top, batch, head, own_row, sq, worker)
        if thread < replica * (384 // GROUPS) + 32:
            T.tma_store_wait(0)
        T.sync_threads(replica + STAGED_BARRIER, ATTEND_THREADS // GROUPS)
        stage_result(o_s, replica * GROUP_ROWS, acc, worker)
        T.fence_proxy_async()
        T.sync_threads(replica + STAGED_BARRIER, ATTEND_THREADS // GROUPS)
        if thread < replica * (384 // GROUPS) + 32:
            T.tma_copy(
                o_s[replica * GROUP_ROWS : replica * GROUP_ROWS + GROUP_ROWS, 0 : PANEL],
                out_map_rows[batch : batch + 1, head : head + 1, own_row : own_row + GROUP_ROWS, 0 : PANEL],
                leader_scope_threads=32
            )
        done = done + tiles
    if thread < replica * (384 // GROUPS) + 32:
        T.tma_store_wait(0)


@T.macro
def load(
    ctas, abreast, heads, skv, kv_heads, k_map_rows, q_map_rows, v_map_rows, q_s, k_s, v_s, q_full, q_empty,
    k_full, k_empty, v_full, v_empty, cta, blocks, bundles, items: T.Ref, shift: T.Ref
):
    """Queries, keys and values."""
    done = T.alloc_var("int32", init=0)
    for item in T.serial(items):
        number = T.alloc_var("int32", init=cta + T.truncmod(item, 2) * (ctas - 1 - 2 * cta) + item * ctas)
        first = T.alloc_var("int32", init=T.truncdiv(number, abreast * blocks) * abreast)
        within = T.alloc_var("int32", init=number - first * blocks)
        width = T.alloc_var("int32", init=T.min(abreast, bundles - first))
        row = T.alloc_var("int32", init=(blocks - 1 - T.truncdiv(within, width)) * ROWS)
        tiles = T.alloc_var("int32", init=leaf.ceildiv(T.min(skv, row + shift + ROWS), TILE))
        pair = T.alloc_var("int32", init=first + T.truncmod(within, width))
        batch = T.truncdiv(pair, heads)
        head = pair - batch * heads
        kv_head = T.truncdiv(head * kv_heads, heads)
        T.mbarrier_wait_parity(k_empty[done % STAGES], ((done // STAGES) & 1) ^ 1)
        T.tma_copy(
            k_map_rows[
                batch : batch + 1, kv_head : kv_head + 1, (tiles - 1) * TILE : (tiles - 1) * TILE + TILE,
                0 : PANEL
            ],
            k_s[done % STAGES, :, 0 : PANEL], barrier=k_full[done % STAGES]
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(k_full[done % STAGES])
        T.mbarrier_wait_parity(q_empty[0], (item & 1) ^ 1)
        T.tma_copy(
            q_map_rows[batch : batch + 1, head : head + 1, row : row + ROWS, 0 : PANEL], q_s[0, :, 0 : PANEL],
            barrier=q_full[0]
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(q_full[0])
        for i in T.serial(1, tiles):
            T.mbarrier_wait_parity(k_empty[(done + i) % STAGES], (((done + i) // STAGES) & 1) ^ 1)
            T.tma_copy(
                k_map_rows[
                    batch : batch + 1, kv_head : kv_head + 1,
                    (tiles - 1 - i) * TILE : (tiles - 1 - i) * TILE + TILE, 0 : PANEL
                ],
                k_s[(done + i) % STAGES, :, 0 : PANEL], barrier=k_full[(done + i) % STAGES]
            )
            if T.shuffle_elect(32):
                T.mbarrier_arrive(k_full[(done + i) % STAGES])
            T.mbarrier_wait_parity(v_empty[(done + (i - 1)) % STAGES], (((done + (i - 1)) // STAGES) & 1) ^ 1)
            T.tma_copy(
                v_map_rows[
                    batch : batch + 1, kv_head : kv_head + 1,
                    (tiles - 1 - (i - 1)) * TILE : (tiles - 1 - (i - 1)) * TILE + TILE, 0 : PANEL
                ],
                v_s[(done + (i - 1)) % STAGES, :, 0 : PANEL], barrier=v_full[(done + (i - 1)) % STAGES]
            )
            if T.shuffle_elect(32):
                T.mbarrier_arrive(v_full[(done + (i - 1)) % STAGES])
        T.mbarrier_wait_parity(
            v_empty[(done + (tiles - 1)) % STAGES], (((done + (tiles - 1)) // STAGES) & 1) ^ 1
        )
        T.tma_copy(
            v_map_rows[
                batch : batch + 1, kv_head : kv_head + 1,
                (tiles - 1 - (tiles - 1)) * TILE : (tiles - 1 - (tiles - 1)) * TILE + TILE, 0 : PANEL
            ],
            v_s[(done + (tiles - 1)) % STAGES, :, 0 : PANEL], barrier=v_full[(done + (tiles - 1)) % STAGES]
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(v_full[(done + (tiles - 1)) % STAGES])
        done = done + tiles


def program():
    b = T.dynamic("b")
    sq = T.dynamic("sq")
    heads = T.dynamic("heads")
    q_stride_b = T.dynamic("q_stride_b")
    q_stride_s = T.dynamic("q_stride_s")
    q_stride_h = T.dynamic("q_stride_h")
    skv = T.dynamic("skv")
    kv_heads = T.dynamic("kv_heads")
    k_stride_b = T.dynamic("k_stride_b")
    k_stride_s = T.dynamic("k_stride_s")
    k_stride_h = T.dynamic("k_stride_h")
    v_stride_b = T.dynamic("v_stride_b")
    v_stride_s = T.dynamic("v_stride_s")
    v_stride_h = T.dynamic("v_stride_h")

    @T.prim_func
    def gqa_forward__tilelang_sm90a__fp16_d64_n128_st4_o1_c1_w3_z2(
        q: T.StridedTensor((b, sq, heads, 64), (q_stride_b, q_stride_s, q_stride_h, 1), "float16"),
        k: T.StridedTensor((b, skv, kv_heads, 64), (k_stride_b, k_stride_s, k_stride_h, 1), "float16"),
        v: T.StridedTensor((b, skv, kv_heads, 64), (v_stride_b, v_stride_s, v_stride_h, 1), "float16"),
        out: T.Tensor((b, sq, heads, 64), "float16"),
        lse: T.Tensor((b, heads, sq), "float32"),
        sm_scale: T.float32,
        causal: T.int32,
        ctas: T.int32,
        abreast: T.int32,
    ):
        with T.Kernel(ctas, 1, threads=512) as (cta, rank):
            k_map_rows = T.view(
                k, (b, kv_heads, skv, 64), "float16", strides=(k_stride_b, k_stride_h, k_stride_s, 1)
            )
            q_map_rows = T.view(
                q, (b, heads, sq, 64), "float16", strides=(q_stride_b, q_stride_h, q_stride_s, 1)
            )
            v_map_rows = T.view(
                v, (b, kv_heads, skv, 64), "float16", strides=(v_stride_b, v_stride_h, v_stride_s, 1)
            )
            out_map_rows = T.view(
                out, (b, heads, sq, 64), "float16", strides=(sq * heads * 64, 64, heads * 64, 1)
            )
            T.import_source(wgmma.SOURCE + warps.SOURCE + scalars.SOURCE + fragment.SOURCE + sync.SOURCE)
            q_s = T.alloc_shared((1, ROWS, DIM), "float16")
            k_s = T.alloc_shared((STAGES, TILE, DIM), "float16")
            v_s = T.alloc_shared((STAGES, TILE, DIM), "float16")
            o_s = T.alloc_shared((ROWS, DIM), "float16")
            T.annotate_layout({b: make_full_bank_swizzled_layout(b) for b in (q_s, k_s, v_s)})
            q_full = T.alloc_barrier([1])
            q_empty = T.alloc_barrier([GROUPS * 4])
            k_full = T.alloc_barrier([1] * STAGES)
            k_empty = T.alloc_barrier([GROUPS * 4] * STAGES)
            v_full = T.alloc_barrier([1] * STAGES)
            v_empty = T.alloc_barrier([GROUPS * 4] * STAGES)

            thread = T.get_thread_binding()
            blocks = leaf.ceildiv(sq, ROWS)
            bundles = b * heads
            all_items = blocks * bundles
            items = T.alloc_var(
                "int32",
                init=leaf.ceildiv(
                    all_items - (cta + T.truncmod(T.truncdiv(all_items, ctas), 2) * (ctas - 1 - 2 * cta)),
                    ctas
                )
            )
            shift = T.alloc_var("int32", init=skv - causal * sq)
            if thread < 128:
                T.set_max_nreg(160, 1)
                attend(
                    lse, sm_scale, ctas, abreast, sq, heads, skv, out_map_rows, q_s, k_s, v_s, o_s, q_full,
                    q_empty, k_full, k_empty, v_full, v_empty, cta, blocks, bundles, items, shift, thread, 0
                )
            elif thread < 256:
                T.set_max_nreg(160, 1)
                attend(
                    lse, sm_scale, ctas, abreast, sq, heads, skv, out_map_rows, q_s, k_s, v_s, o_s, q_full,
                    q_empty, k_full, k_empty, v_full, v_empty, cta, blocks, bundles, items, shift, thread, 1
                )
            elif thread < 384:
                T.set_max_nreg(160, 1)
                attend(
                    lse, sm_scale, ctas, abreast, sq, heads, skv, out_map_rows, q_s, k_s, v_s, o_s, q_full,
                    q_empty, k_full, k_empty, v_full, v_empty, cta, blocks, bundles, items, shift, thread, 2
                )
            else:
                T.set_max_nreg(32, 0)
                if thread < 416:
                    load(
                        ctas, abreast, heads, skv, kv_heads, k_map_rows, q_map_rows, v_map_rows, q_s, k_s,
                        v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, cta, blocks, bundles, items,
                        shift
                    )

    return gqa_forward__tilelang_sm90a__fp16_d64_n128_st4_o1_c1_w3_z2
