"""gqa_forward__tilelang_sm100a__bf16_d128_n64_st3_c2_z2

Generated from dsl_kernels/kernels/gqa_forward and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: dtype=bf16, dim=128, tile=64, stages=3, cluster=2, lazy=2.

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
  q_s        2 stages of 128x128 bfloat16, shared, 128-byte swizzle
  k_s        3 stages of 64x128 bfloat16, shared, 128-byte swizzle
  v_s        3 stages of 64x128 bfloat16, shared, 128-byte swizzle
  o_s_0      128x128 bfloat16, shared, 128-byte swizzle
  s_t_0      128x64 float32, tensor memory
  p_t_0      128x64 bfloat16, tensor memory
  o_t_0      128x128 float32, tensor memory
  scores_0   128x64 float32, registers of soften_0
  weights_0  128x64 bfloat16, registers of soften_0
  part_0     128x32 float32, registers of soften_0
  rounded_0  128x32 bfloat16, registers of soften_0
  top_0      128x1 float32, registers of soften_0
  total_0    128x1 float32, registers of soften_0
  factor_0   128x1 float32, registers of soften_0
  limit_0    128x1 float32, registers of soften_0
  o_s_1      128x128 bfloat16, shared, 128-byte swizzle
  s_t_1      128x64 float32, tensor memory
  p_t_1      128x64 bfloat16, tensor memory
  o_t_1      128x128 float32, tensor memory
  scores_1   128x64 float32, registers of soften_1
  weights_1  128x64 bfloat16, registers of soften_1
  part_1     128x32 float32, registers of soften_1
  rounded_1  128x32 bfloat16, registers of soften_1
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
import tilelang.language as T

from dsl_kernels.device.tilelang import boxes, fragment, scalars, sync, tcgen05, warps
from dsl_kernels.kernels.gqa_forward import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

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


@T.macro
def hide_keys(scores, row, key, skv, shift, thread):
    """Set scores to -inf where there is no such key, or the row does not see it.

    Rows begin with `row`, keys with `key`, and a thread has `rows` rows. A row sees the keys up to its
    own number plus `shift`.
    """
    last_0 = T.min(skv - 1, row + thread + shift) - key
    for j in T.unroll(TILE):
        scores[j] = T.if_then_else(j > last_0, -T.infinity("float32"), scores[j])


@T.macro
def online_softmax_lazily_unseen(scores, top, total, factor, limit, scale):
    """Like `online_softmax`, but `top` stays where no score of a warp exceeds it by `rise` powers of two.

    Factors are then 1, and weights reach 2^rise. `limit` is the score from which `top` rises. Where
    that score is negative, `limit` is -0.0, and `top` always rises.
    """
    factor[0] = 1.0
    if warps.any_lane(fragment.row_most_bits(scores) >= T.cast(scalars.bits_of(limit[0]), "int32")):
        risen_0 = T.max(top[0], fragment.row_most(scores))
        factor[0] = warps.exp2(
            (top[0] - T.if_then_else(risen_0 == -T.infinity("float32"), 0.0, risen_0)) * scale
        )
        total[0] = total[0] * factor[0]
        top[0] = risen_0
        above_0 = risen_0 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[0] = T.if_then_else(above_0 > 0.0, above_0, -0.0)
    shift_0 = T.if_then_else(top[0] == -T.infinity("float32"), 0.0, top[0]) * scale
    for j in T.unroll(TILE // 2):
        fragment.scale_pair(scores, j * 2, scale, shift_0)
        scores[j * 2] = warps.exp2(scores[j * 2])
        scores[j * 2 + 1] = warps.exp2(scores[j * 2 + 1])
    total[0] = total[0] + fragment.row_sum(scores)


@T.macro
def rescale_output(acc, acc_slot, factor, part, thread):
    """Multiply each row of the result by its factor, unless a warp's factors are all 1."""
    if warps.any_lane(factor[0] != 1.0):
        for step in T.unroll(DIM // HELD):
            fragment.load_columns(part, acc, acc_slot, step * HELD, thread)
            for pair in T.unroll(HELD // 2):
                fragment.scale_pair(part, pair * 2, factor[0], 0.0)
            fragment.store_columns(part, acc, acc_slot, step * HELD, thread)


@T.macro
def online_softmax_lazily(scores, top, total, factor, limit, scale):
    """Like `online_softmax`, but `top` stays where no score of a warp exceeds it by `rise` powers of two.

    Factors are then 1, and weights reach 2^rise. `limit` is the score from which `top` rises. Where
    that score is negative, `limit` is -0.0, and `top` always rises.
    """
    factor[0] = 1.0
    if warps.any_lane(fragment.row_most_bits(scores) >= T.cast(scalars.bits_of(limit[0]), "int32")):
        risen_0 = T.max(top[0], fragment.row_most(scores))
        factor[0] = warps.exp2(
            (top[0] - T.if_then_else(risen_0 == -T.infinity("float32"), 0.0, risen_0)) * scale
        )
        total[0] = total[0] * factor[0]
        top[0] = risen_0
        above_0 = risen_0 + RESCALE_LOG2 * warps.rcp_approx(scale)
        limit[0] = T.if_then_else(above_0 > 0.0, above_0, -0.0)
    shift_0 = top[0] * scale
    for j in T.unroll(TILE // 2):
        fragment.scale_pair(scores, j * 2, scale, shift_0)
        scores[j * 2] = warps.exp2(scores[j * 2])
        scores[j * 2 + 1] = warps.exp2(scores[j * 2 + 1])
    total[0] = total[0] + fragment.row_sum(scores)


@T.macro
def finish_rows(top, total, scale):
    """Turn `top` into the natural logarithm of sum exp, and `total` into its inverse."""
    top[0] = (top[0] * scale + warps.log2(total[0])) * LN_2
    total[0] = warps.rcp_approx(total[0])


@T.macro
def store_lse(lse, values, batch, head, row, sq, thread):
    """Store one value per row to lse[batch, head, row ...], for the rows that exist."""
    own_0 = row + thread
    if own_0 < sq:
        lse[batch, head, own_0] = values[0]


@T.macro
def stage_output(target, acc, acc_slot, inverse, part, rounded, thread):
    """Stage the rows of the result times `inverse`, rounded to 16 bits, in a shared tile."""
    for step in T.unroll(DIM // HELD):
        fragment.load_columns(part, acc, acc_slot, step * HELD, thread)
        for pair in T.unroll(HELD // 2):
            fragment.scale_pair(part, pair * 2, inverse[0], 0.0)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment.round_to(rounded, part)
        for i in T.unroll(HELD // 8):
            for part in T.vectorized(8):
                target[thread, step * HELD + i * 8 + part] = rounded[i * 8 + part]


@T.macro
def soften_0(
    lse, sm_scale, ctas, abreast, sq, heads, skv, out_map_rows, o_s_0, s_t_0, p_t_0, o_t_0, s_0_full,
    s_0_empty, p_0_full, p_0_empty, o_0_full, cta, rank, blocks, bundles, items: T.Ref, shift: T.Ref, thread
):
    """Softmax and epilogue of the first 128 rows."""
    scores_0 = T.alloc_local((TILE,), "float32")
    weights_0 = T.alloc_local((TILE,), "bfloat16")
    part_0 = T.alloc_local((HELD,), "float32")
    rounded_0 = T.alloc_local((HELD,), "bfloat16")
    top_0 = T.alloc_local((1,), "float32")
    total_0 = T.alloc_local((1,), "float32")
    factor_0 = T.alloc_local((1,), "float32")
    limit_0 = T.alloc_local((1,), "float32")
    worker = thread
    scale = sm_scale * LOG2_E
    done = T.alloc_var("int32", init=0)
    for item in T.serial(items):
        number = T.alloc_var("int32", init=cta + T.truncmod(item, 2) * (ctas - 1 - 2 * cta) + item * ctas)
        first = T.alloc_var("int32", init=T.truncdiv(number, abreast * blocks) * abreast)
        within = T.alloc_var("int32", init=number - first * blocks)
        width = T.alloc_var("int32", init=T.min(abreast, bundles - first))
        row = T.alloc_var("int32", init=(blocks - 1 - T.truncdiv(within, width)) * ROWS)
        tiles = T.alloc_var("int32", init=leaf.ceildiv(T.min(skv, row + shift + GROUP_ROWS), TILE))
        pair = T.alloc_var("int32", init=(first + T.truncmod(within, width)) * CLUSTER + rank)
        batch = T.truncdiv(pair, heads)
        head = pair - batch * heads
        own_row = row
        T.fill(top_0, -T.infinity("float32"))
        T.fill(total_0, 0.0)
        T.fill(limit_0, -0.0)
        T.mbarrier_wait_parity(s_0_full[0], done & 1)
        T.tcgen05_after_thread_sync()
        # A fragment, a row a thread, from tensor memory; its arrival is waited for at the release.
        fragment.read_tensor(scores_0, s_t_0, 0, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(s_0_empty[0])
        hide_keys(scores_0, own_row, (tiles - 1) * TILE, skv, shift, worker)
        online_softmax_lazily_unseen(scores_0, top_0, total_0, factor_0, limit_0, scale)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment.round_to(weights_0, scores_0)
        T.mbarrier_wait_parity(p_0_empty[0], (done & 1) ^ 1)
        T.tcgen05_after_thread_sync()
        # A 16-bit fragment, a row a thread, into tensor memory; its arrival is waited for at the commit.
        fragment.write_tensor(p_t_0, 0, weights_0, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.call_extern("handle", "tl::fence_view_async_tmem_store")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(p_0_full[0])
        masked = T.alloc_var("int32", init=T.max(1, tiles - T.truncdiv(T.min(skv, row + shift + 1), TILE)))
        for i in T.serial(1, masked):
            T.mbarrier_wait_parity(s_0_full[0], (done + i) & 1)
            T.tcgen05_after_thread_sync()
            fragment.read_tensor(scores_0, s_t_0, 0, worker)
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(s_0_empty[0])
            hide_keys(scores_0, own_row, (tiles - 1 - i) * TILE, skv, shift, worker)
            online_softmax_lazily_unseen(scores_0, top_0, total_0, factor_0, limit_0, scale)
            fragment.round_to(weights_0, scores_0)
            T.mbarrier_wait_parity(p_0_empty[0], ((done + i) & 1) ^ 1)
            T.tcgen05_after_thread_sync()
            fragment.write_tensor(p_t_0, 0, weights_0, worker)
            T.mbarrier_wait_parity(o_0_full[0], (done + (i - 1)) & 1)
            T.tcgen05_after_thread_sync()
            rescale_output(o_t_0, 0, factor_0, part_0, worker)
            # o_0: p_0 also gives its slot back
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.call_extern("handle", "tl::fence_view_async_tmem_store")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(p_0_full[0])
        for i in T.serial(masked, tiles):
            T.mbarrier_wait_parity(s_0_full[0], (done + i) & 1)
            T.tcgen05_after_thread_sync()
            fragment.read_tensor(scores_0, s_t_0, 0, worker)
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(s_0_empty[0])
            online_softmax_lazily(scores_0, top_0, total_0, factor_0, limit_0, scale)
            fragment.round_to(weights_0, scores_0)
            T.mbarrier_wait_parity(p_0_empty[0], ((done + i) & 1) ^ 1)
            T.tcgen05_after_thread_sync()
            fragment.write_tensor(p_t_0, 0, weights_0, worker)
            T.mbarrier_wait_parity(o_0_full[0], (done + (i - 1)) & 1)
            T.tcgen05_after_thread_sync()
            rescale_output(o_t_0, 0, factor_0, part_0, worker)
            # o_0: p_0 also gives its slot back
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.call_extern("handle", "tl::fence_view_async_tmem_store")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(p_0_full[0])
        finish_rows(top_0, total_0, scale)
        store_lse(lse, top_0, batch, head, own_row, sq, worker)
        if thread < 32:
            T.tma_store_wait(0)
        T.sync_threads(STAGED_0_BARRIER, SOFTEN_0_THREADS)
        T.mbarrier_wait_parity(o_0_full[0], (done + (tiles - 1)) & 1)
        T.tcgen05_after_thread_sync()
        stage_output(o_s_0, o_t_0, 0, total_0, part_0, rounded_0, worker)
        # o_0: p_0 also gives its slot back
        T.fence_proxy_async()
        T.sync_threads(STAGED_0_BARRIER, SOFTEN_0_THREADS)
        if thread < 32:
            T.tma_copy(
                o_s_0[:, 0 : PANEL],
                out_map_rows[batch : batch + 1, head : head + 1, own_row : own_row + GROUP_ROWS, 0 : PANEL],
                leader_scope_threads=32
            )
            T.tma_copy(
                o_s_0[:, 64 : 64 + PANEL],
                out_map_rows[
                    batch : batch + 1, head : head + 1, own_row : own_row + GROUP_ROWS, 64 : 64 + PANEL
                ],
                leader_scope_threads=32
            )
        done = done + tiles
    if thread < 32:
        T.tma_store_wait(0)


@T.macro
def soften_1(
    lse, sm_scale, ctas, abreast, sq, heads, skv, out_map_rows, o_s_1, s_t_1, p_t_1, o_t_1, s_1_full,
    s_1_empty, p_1_full, p_1_empty, o_1_full, cta, rank, blocks, bundles, items: T.Ref, shift: T.Ref, thread
):
    """Softmax and epilogue of the last 128 rows."""
    scores_1 = T.alloc_local((TILE,), "float32")
    weights_1 = T.alloc_local((TILE,), "bfloat16")
    part_1 = T.alloc_local((HELD,), "float32")
    rounded_1 = T.alloc_local((HELD,), "bfloat16")
    top_1 = T.alloc_local((1,), "float32")
    total_1 = T.alloc_local((1,), "float32")
    factor_1 = T.alloc_local((1,), "float32")
    limit_1 = T.alloc_local((1,), "float32")
    worker = thread - 128
    scale = sm_scale * LOG2_E
    done = T.alloc_var("int32", init=0)
    for item in T.serial(items):
        number = T.alloc_var("int32", init=cta + T.truncmod(item, 2) * (ctas - 1 - 2 * cta) + item * ctas)
        first = T.alloc_var("int32", init=T.truncdiv(number, abreast * blocks) * abreast)
        within = T.alloc_var("int32", init=number - first * blocks)
        width = T.alloc_var("int32", init=T.min(abreast, bundles - first))
        row = T.alloc_var("int32", init=(blocks - 1 - T.truncdiv(within, width)) * ROWS)
        tiles = T.alloc_var(
            "int32", init=leaf.ceildiv(T.min(skv, row + shift + (GROUP_ROWS + GROUP_ROWS)), TILE)
        )
        pair = T.alloc_var("int32", init=(first + T.truncmod(within, width)) * CLUSTER + rank)
        batch = T.truncdiv(pair, heads)
        head = pair - batch * heads
        own_row = row + GROUP_ROWS
        T.fill(top_1, -T.infinity("float32"))
        T.fill(total_1, 0.0)
        T.fill(limit_1, -0.0)
        T.mbarrier_wait_parity(s_1_full[0], done & 1)
        T.tcgen05_after_thread_sync()
        # A fragment, a row a thread, from tensor memory; its arrival is waited for at the release.
        fragment.read_tensor(scores_1, s_t_1, 0, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(s_1_empty[0])
        hide_keys(scores_1, own_row, (tiles - 1) * TILE, skv, shift, worker)
        online_softmax_lazily_unseen(scores_1, top_1, total_1, factor_1, limit_1, scale)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment.round_to(weights_1, scores_1)
        T.mbarrier_wait_parity(p_1_empty[0], (done & 1) ^ 1)
        T.tcgen05_after_thread_sync()
        # A 16-bit fragment, a row a thread, into tensor memory; its arrival is waited for at the commit.
        fragment.write_tensor(p_t_1, 0, weights_1, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.call_extern("handle", "tl::fence_view_async_tmem_store")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(p_1_full[0])
        masked = T.alloc_var(
            "int32", init=T.max(1, tiles - T.truncdiv(T.min(skv, row + shift + (GROUP_ROWS + 1)), TILE))
        )
        for i in T.serial(1, masked):
            T.mbarrier_wait_parity(s_1_full[0], (done + i) & 1)
            T.tcgen05_after_thread_sync()
            fragment.read_tensor(scores_1, s_t_1, 0, worker)
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(s_1_empty[0])
            hide_keys(scores_1, own_row, (tiles - 1 - i) * TILE, skv, shift, worker)
            online_softmax_lazily_unseen(scores_1, top_1, total_1, factor_1, limit_1, scale)
            fragment.round_to(weights_1, scores_1)
            T.mbarrier_wait_parity(p_1_empty[0], ((done + i) & 1) ^ 1)
            T.tcgen05_after_thread_sync()
            fragment.write_tensor(p_t_1, 0, weights_1, worker)
            T.mbarrier_wait_parity(o_1_full[0], (done + (i - 1)) & 1)
            T.tcgen05_after_thread_sync()
            rescale_output(o_t_1, 0, factor_1, part_1, worker)
            # o_1: p_1 also gives its slot back
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.call_extern("handle", "tl::fence_view_async_tmem_store")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(p_1_full[0])
        for i in T.serial(masked, tiles):
            T.mbarrier_wait_parity(s_1_full[0], (done + i) & 1)
            T.tcgen05_after_thread_sync()
            fragment.read_tensor(scores_1, s_t_1, 0, worker)
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(s_1_empty[0])
            online_softmax_lazily(scores_1, top_1, total_1, factor_1, limit_1, scale)
            fragment.round_to(weights_1, scores_1)
            T.mbarrier_wait_parity(p_1_empty[0], ((done + i) & 1) ^ 1)
            T.tcgen05_after_thread_sync()
            fragment.write_tensor(p_t_1, 0, weights_1, worker)
            T.mbarrier_wait_parity(o_1_full[0], (done + (i - 1)) & 1)
            T.tcgen05_after_thread_sync()
            rescale_output(o_t_1, 0, factor_1, part_1, worker)
            # o_1: p_1 also gives its slot back
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.call_extern("handle", "tl::fence_view_async_tmem_store")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(p_1_full[0])
        finish_rows(top_1, total_1, scale)
        store_lse(lse, top_1, batch, head, own_row, sq, worker)
        if thread < 160:
            T.tma_store_wait(0)
        T.sync_threads(STAGED_1_BARRIER, SOFTEN_1_THREADS)
        T.mbarrier_wait_parity(o_1_full[0], (done + (tiles - 1)) & 1)
        T.tcgen05_after_thread_sync()
        stage_output(o_s_1, o_t_1, 0, total_1, part_1, rounded_1, worker)
        # o_1: p_1 also gives its slot back
        T.fence_proxy_async()
        T.sync_threads(STAGED_1_BARRIER, SOFTEN_1_THREADS)
        if thread < 160:
            T.tma_copy(
                o_s_1[:, 0 : PANEL],
                out_map_rows[batch : batch + 1, head : head + 1, own_row : own_row + GROUP_ROWS, 0 : PANEL],
                leader_scope_threads=32
            )
            T.tma_copy(
                o_s_1[:, 64 : 64 + PANEL],
                out_map_rows[
                    batch : batch + 1, head : head + 1, own_row : own_row + GROUP_ROWS, 64 : 64 + PANEL
                ],
                leader_scope_threads=32
            )
        done = done + tiles
    if thread < 160:
        T.tma_store_wait(0)


@T.macro
def load(
    k, v, ctas, abreast, b, heads, skv, kv_heads, k_stride_b, k_stride_s, k_stride_h, v_stride_b, v_stride_s,
    v_stride_h, q_map_rows, q_s, k_s, v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, cta, rank,
    blocks, bundles, items: T.Ref, shift: T.Ref
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
        pair = T.alloc_var("int32", init=(first + T.truncmod(within, width)) * CLUSTER + rank)
        batch = T.truncdiv(pair, heads)
        head = pair - batch * heads
        kv_head = T.truncdiv(head * kv_heads, heads)
        T.mbarrier_wait_parity(k_empty[done % STAGES], ((done // STAGES) & 1) ^ 1)
        if T.shuffle_elect(32):
            T.mbarrier_expect_tx(k_full[done % STAGES], TILE * DIM * 2)
            T.mbarrier_arrive(k_full[done % STAGES])
        boxes.load_box(
            boxes.box_map(
                k, "BFLOAT16", (128, skv, kv_heads, b,), (k_stride_s * 2, k_stride_h * 2, k_stride_b * 2,),
                (64, 32, 1, 1), "128B"
            ),
            k_s, done % STAGES, rank * (TILE // CLUSTER), 0, k_full, done % STAGES, 2, False,
            (batch, kv_head, (tiles - 1) * TILE + rank * (TILE // CLUSTER), 0)
        )
        boxes.load_box(
            boxes.box_map(
                k, "BFLOAT16", (128, skv, kv_heads, b,), (k_stride_s * 2, k_stride_h * 2, k_stride_b * 2,),
                (64, 32, 1, 1), "128B"
            ),
            k_s, done % STAGES, rank * (TILE // CLUSTER), 64, k_full, done % STAGES, 2, False,
            (batch, kv_head, (tiles - 1) * TILE + rank * (TILE // CLUSTER), 64)
        )
        T.mbarrier_wait_parity(q_empty[item * 2 % 2], ((item * 2 // 2) & 1) ^ 1)
        T.tma_copy(
            q_map_rows[batch : batch + 1, head : head + 1, row : row + GROUP_ROWS, 0 : PANEL],
            q_s[item * 2 % 2, :, 0 : PANEL], barrier=q_full[item * 2 % 2]
        )
        T.tma_copy(
            q_map_rows[batch : batch + 1, head : head + 1, row : row + GROUP_ROWS, 64 : 64 + PANEL],
            q_s[item * 2 % 2, :, 64 : 64 + PANEL], barrier=q_full[item * 2 % 2]
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(q_full[item * 2 % 2])
        T.mbarrier_wait_parity(q_empty[(item * 2 + 1) % 2], (((item * 2 + 1) // 2) & 1) ^ 1)
        T.tma_copy(
            q_map_rows[
                batch : batch + 1, head : head + 1, row + GROUP_ROWS : row + GROUP_ROWS + GROUP_ROWS,
                0 : PANEL
            ],
            q_s[(item * 2 + 1) % 2, :, 0 : PANEL], barrier=q_full[(item * 2 + 1) % 2]
        )
        T.tma_copy(
            q_map_rows[
                batch : batch + 1, head : head + 1, row + GROUP_ROWS : row + GROUP_ROWS + GROUP_ROWS,
                64 : 64 + PANEL
            ],
            q_s[(item * 2 + 1) % 2, :, 64 : 64 + PANEL], barrier=q_full[(item * 2 + 1) % 2]
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(q_full[(item * 2 + 1) % 2])
        for i in T.serial(1, tiles):
            T.mbarrier_wait_parity(k_empty[(done + i) % STAGES], (((done + i) // STAGES) & 1) ^ 1)
            if T.shuffle_elect(32):
                T.mbarrier_expect_tx(k_full[(done + i) % STAGES], TILE * DIM * 2)
                T.mbarrier_arrive(k_full[(done + i) % STAGES])
            boxes.load_box(
                boxes.box_map(
                    k, "BFLOAT16", (128, skv, kv_heads, b,),
                    (k_stride_s * 2, k_stride_h * 2, k_stride_b * 2,), (64, 32, 1, 1), "128B"
                ),
                k_s, (done + i) % STAGES, rank * (TILE // CLUSTER), 0, k_full, (done + i) % STAGES, 2, False,
                (batch, kv_head, (tiles - 1 - i) * TILE + rank * (TILE // CLUSTER), 0)
            )
            boxes.load_box(
                boxes.box_map(
                    k, "BFLOAT16", (128, skv, kv_heads, b,),
                    (k_stride_s * 2, k_stride_h * 2, k_stride_b * 2,), (64, 32, 1, 1), "128B"
                ),
                k_s, (done + i) % STAGES, rank * (TILE // CLUSTER), 64, k_full, (done + i) % STAGES, 2, False,
                (batch, kv_head, (tiles - 1 - i) * TILE + rank * (TILE // CLUSTER), 64)
            )
            T.mbarrier_wait_parity(v_empty[(done + (i - 1)) % STAGES], (((done + (i - 1)) // STAGES) & 1) ^ 1)
            if T.shuffle_elect(32):
                T.mbarrier_expect_tx(v_full[(done + (i - 1)) % STAGES], TILE * DIM * 2)
                T.mbarrier_arrive(v_full[(done + (i - 1)) % STAGES])
            boxes.load_box(
                boxes.box_map(
                    v, "BFLOAT16", (128, skv, kv_heads, b,),
                    (v_stride_s * 2, v_stride_h * 2, v_stride_b * 2,), (64, 32, 1, 1), "128B"
                ),
                v_s, (done + (i - 1)) % STAGES, rank * (TILE // CLUSTER), 0, v_full,
                (done + (i - 1)) % STAGES, 2, False,
                (batch, kv_head, (tiles - 1 - (i - 1)) * TILE + rank * (TILE // CLUSTER), 0)
            )
            boxes.load_box(
                boxes.box_map(
                    v, "BFLOAT16", (128, skv, kv_heads, b,),
                    (v_stride_s * 2, v_stride_h * 2, v_stride_b * 2,), (64, 32, 1, 1), "128B"
                ),
                v_s, (done + (i - 1)) % STAGES, rank * (TILE // CLUSTER), 64, v_full,
                (done + (i - 1)) % STAGES, 2, False,
                (batch, kv_head, (tiles - 1 - (i - 1)) * TILE + rank * (TILE // CLUSTER), 64)
            )
        T.mbarrier_wait_parity(
            v_empty[(done + (tiles - 1)) % STAGES], (((done + (tiles - 1)) // STAGES) & 1) ^ 1
        )
        if T.shuffle_elect(32):
            T.mbarrier_expect_tx(v_full[(done + (tiles - 1)) % STAGES], TILE * DIM * 2)
            T.mbarrier_arrive(v_full[(done + (tiles - 1)) % STAGES])
        boxes.load_box(
            boxes.box_map(
                v, "BFLOAT16", (128, skv, kv_heads, b,), (v_stride_s * 2, v_stride_h * 2, v_stride_b * 2,),
                (64, 32, 1, 1), "128B"
            ),
            v_s, (done + (tiles - 1)) % STAGES, rank * (TILE // CLUSTER), 0, v_full,
            (done + (tiles - 1)) % STAGES, 2, False,
            (batch, kv_head, (tiles - 1 - (tiles - 1)) * TILE + rank * (TILE // CLUSTER), 0)
        )
        boxes.load_box(
            boxes.box_map(
                v, "BFLOAT16", (128, skv, kv_heads, b,), (v_stride_s * 2, v_stride_h * 2, v_stride_b * 2,),
                (64, 32, 1, 1), "128B"
            ),
            v_s, (done + (tiles - 1)) % STAGES, rank * (TILE // CLUSTER), 64, v_full,
            (done + (tiles - 1)) % STAGES, 2, False,
            (batch, kv_head, (tiles - 1 - (tiles - 1)) * TILE + rank * (TILE // CLUSTER), 64)
        )
        done = done + tiles
    # A commit of a peer may arrive late: this CTA must not have ended.
    T.mbarrier_wait_parity(k_empty[done % STAGES], ((done // STAGES) & 1) ^ 1)
    T.mbarrier_wait_parity(k_empty[(done + 1) % STAGES], (((done + 1) // STAGES) & 1) ^ 1)
    T.mbarrier_wait_parity(k_empty[(done + 2) % STAGES], (((done + 2) // STAGES) & 1) ^ 1)
    T.mbarrier_wait_parity(v_empty[done % STAGES], ((done // STAGES) & 1) ^ 1)
    T.mbarrier_wait_parity(v_empty[(done + 1) % STAGES], (((done + 1) // STAGES) & 1) ^ 1)
    T.mbarrier_wait_parity(v_empty[(done + 2) % STAGES], (((done + 2) // STAGES) & 1) ^ 1)


@T.macro
def mma(
    ctas, abreast, skv, q_s, k_s, v_s, s_t_0, p_t_0, o_t_0, s_t_1, p_t_1, o_t_1, q_full, q_empty, k_full,
    k_empty, v_full, v_empty, s_0_full, s_0_empty, p_0_full, p_0_empty, o_0_full, s_1_full, s_1_empty,
    p_1_full, p_1_empty, o_1_full, cta, blocks, bundles, items: T.Ref, shift: T.Ref
):
    """Issues every tcgen05.mma and commit."""
    done = T.alloc_var("int32", init=0)
    own_done = T.alloc_var("int32", init=0)
    for item in T.serial(items):
        number = T.alloc_var("int32", init=cta + T.truncmod(item, 2) * (ctas - 1 - 2 * cta) + item * ctas)
        first = T.alloc_var("int32", init=T.truncdiv(number, abreast * blocks) * abreast)
        within = T.alloc_var("int32", init=number - first * blocks)
        width = T.alloc_var("int32", init=T.min(abreast, bundles - first))
        row = T.alloc_var("int32", init=(blocks - 1 - T.truncdiv(within, width)) * ROWS)
        tiles = T.alloc_var("int32", init=leaf.ceildiv(T.min(skv, row + shift + ROWS), TILE))
        others = T.alloc_var("int32", init=tiles - leaf.ceildiv(T.min(skv, row + shift + GROUP_ROWS), TILE))
        T.mbarrier_wait_parity(k_full[done % STAGES], (done // STAGES) & 1)
        T.tcgen05_after_thread_sync()
        T.mbarrier_wait_parity(q_full[item * 2 % 2], (item * 2 // 2) & 1)
        T.tcgen05_after_thread_sync()
        T.mbarrier_wait_parity(q_full[(item * 2 + 1) % 2], ((item * 2 + 1) // 2) & 1)
        T.tcgen05_after_thread_sync()
        if others == 0:
            T.mbarrier_wait_parity(s_0_empty[0], ((own_done + (0 - others)) & 1) ^ 1)
            T.tcgen05_after_thread_sync()
            # S = Q K^T
            T.tcgen05_gemm(
                q_s[item * 2 % 2, :, :], k_s[done % STAGES, :, :], s_t_0[0, :, :], transpose_B=True,
                clear_accum=True, mbar=None
            )
            T.tcgen05_mma_arrive(s_0_full[0])
        T.mbarrier_wait_parity(s_1_empty[0], (done & 1) ^ 1)
        T.tcgen05_after_thread_sync()
        # S = Q K^T
        T.tcgen05_gemm(
            q_s[(item * 2 + 1) % 2, :, :], k_s[done % STAGES, :, :], s_t_1[0, :, :], transpose_B=True,
            clear_accum=True, mbar=None
        )
        T.tcgen05_mma_arrive(s_1_full[0])
        tcgen05.commit_in_cluster(k_empty, done % STAGES, 2)
        for i in T.serial(1, tiles):
            T.mbarrier_wait_parity(k_full[(done + i) % STAGES], ((done + i) // STAGES) & 1)
            T.tcgen05_after_thread_sync()
            if i >= others:
                T.mbarrier_wait_parity(s_0_empty[0], ((own_done + (i - others)) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S = Q K^T
                T.tcgen05_gemm(
                    q_s[item * 2 % 2, :, :], k_s[(done + i) % STAGES, :, :], s_t_0[0, :, :], transpose_B=True,
                    clear_accum=True, mbar=None
                )
                T.tcgen05_mma_arrive(s_0_full[0])
            T.mbarrier_wait_parity(v_full[(done + (i - 1)) % STAGES], ((done + (i - 1)) // STAGES) & 1)
            T.tcgen05_after_thread_sync()
            if i > others:
                T.mbarrier_wait_parity(p_0_full[0], (own_done + (i - 1 - others)) & 1)
                T.tcgen05_after_thread_sync()
                # o_0: p_0 also gives its slot back
                # O += P V
                T.tcgen05_gemm(
                    p_t_0[0, :, :], v_s[(done + (i - 1)) % STAGES, :, :], o_t_0[0, :, :],
                    clear_accum=(i - 1 > others) == False, mbar=None
                )
                T.tcgen05_mma_arrive(p_0_empty[0])
                T.tcgen05_mma_arrive(o_0_full[0])
            T.mbarrier_wait_parity(s_1_empty[0], ((done + i) & 1) ^ 1)
            T.tcgen05_after_thread_sync()
            # S = Q K^T
            T.tcgen05_gemm(
                q_s[(item * 2 + 1) % 2, :, :], k_s[(done + i) % STAGES, :, :], s_t_1[0, :, :],
                transpose_B=True, clear_accum=True, mbar=None
            )
            T.tcgen05_mma_arrive(s_1_full[0])
            tcgen05.commit_in_cluster(k_empty, (done + i) % STAGES, 2)
            T.mbarrier_wait_parity(p_1_full[0], (done + (i - 1)) & 1)
            T.tcgen05_after_thread_sync()
            # o_1: p_1 also gives its slot back
            # O += P V
            T.tcgen05_gemm(
                p_t_1[0, :, :], v_s[(done + (i - 1)) % STAGES, :, :], o_t_1[0, :, :],
                clear_accum=(i - 1 > 0) == False, mbar=None
            )
            T.tcgen05_mma_arrive(p_1_empty[0])
            T.tcgen05_mma_arrive(o_1_full[0])
            tcgen05.commit_in_cluster(v_empty, (done + (i - 1)) % STAGES, 2)
        T.tcgen05_mma_arrive(q_empty[item * 2 % 2])
        T.tcgen05_mma_arrive(q_empty[(item * 2 + 1) % 2])
        T.mbarrier_wait_parity(v_full[(done + (tiles - 1)) % STAGES], ((done + (tiles - 1)) // STAGES) & 1)
        T.tcgen05_after_thread_sync()
        T.mbarrier_wait_parity(p_0_full[0], (own_done + (tiles - 1 - others)) & 1)
        T.tcgen05_after_thread_sync()
        # o_0: p_0 also gives its slot back
        # O += P V
        T.tcgen05_gemm(
            p_t_0[0, :, :], v_s[(done + (tiles - 1)) % STAGES, :, :], o_t_0[0, :, :],
            clear_accum=(tiles - 1 > others) == False, mbar=None
        )
        T.tcgen05_mma_arrive(p_0_empty[0])
        T.tcgen05_mma_arrive(o_0_full[0])
        T.mbarrier_wait_parity(p_1_full[0], (done + (tiles - 1)) & 1)
        T.tcgen05_after_thread_sync()
        # o_1: p_1 also gives its slot back
        # O += P V
        T.tcgen05_gemm(
            p_t_1[0, :, :], v_s[(done + (tiles - 1)) % STAGES, :, :], o_t_1[0, :, :],
            clear_accum=(tiles - 1 > 0) == False, mbar=None
        )
        T.tcgen05_mma_arrive(p_1_empty[0])
        T.tcgen05_mma_arrive(o_1_full[0])
        tcgen05.commit_in_cluster(v_empty, (done + (tiles - 1)) % STAGES, 2)
        done = done + tiles
        own_done = own_done + (tiles - others)


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
    def gqa_forward__tilelang_sm100a__bf16_d128_n64_st3_c2_z2(
        q: T.StridedTensor((b, sq, heads, 128), (q_stride_b, q_stride_s, q_stride_h, 1), "bfloat16"),
        k: T.StridedTensor((b, skv, kv_heads, 128), (k_stride_b, k_stride_s, k_stride_h, 1), "bfloat16"),
        v: T.StridedTensor((b, skv, kv_heads, 128), (v_stride_b, v_stride_s, v_stride_h, 1), "bfloat16"),
        out: T.Tensor((b, sq, heads, 128), "bfloat16"),
        lse: T.Tensor((b, heads, sq), "float32"),
        sm_scale: T.float32,
        causal: T.int32,
        ctas: T.int32,
        abreast: T.int32,
    ):
        with T.Kernel(ctas, 2, threads=320, cluster_dims=(1, 2, 1)) as (cta, rank):
            q_map_rows = T.view(
                q, (b, heads, sq, 128), "bfloat16", strides=(q_stride_b, q_stride_h, q_stride_s, 1)
            )
            out_map_rows = T.view(
                out, (b, heads, sq, 128), "bfloat16", strides=(sq * heads * 128, 128, heads * 128, 1)
            )
            T.import_source(warps.SOURCE + scalars.SOURCE + fragment.SOURCE + sync.SOURCE + tcgen05.SOURCE)
            q_s = T.alloc_shared((2, GROUP_ROWS, DIM), "bfloat16")
            k_s = T.alloc_shared((STAGES, TILE, DIM), "bfloat16")
            v_s = T.alloc_shared((STAGES, TILE, DIM), "bfloat16")
            o_s_0 = T.alloc_shared((GROUP_ROWS, DIM), "bfloat16")
            o_s_1 = T.alloc_shared((GROUP_ROWS, DIM), "bfloat16")
            s_t_0 = T.alloc_tmem((1, GROUP_ROWS, TILE), "float32")
            p_t_0 = T.alloc_tmem((1, GROUP_ROWS, TILE), "bfloat16")
            o_t_0 = T.alloc_tmem((1, GROUP_ROWS, DIM), "float32")
            s_t_1 = T.alloc_tmem((2, GROUP_ROWS, TILE), "float32")
            p_t_1 = T.alloc_tmem((1, GROUP_ROWS, TILE), "bfloat16")
            o_t_1 = T.alloc_tmem((1, GROUP_ROWS, DIM), "float32")
            q_full = T.alloc_barrier([1] * 2)
            q_empty = T.alloc_barrier([1] * 2)
            k_full = T.alloc_barrier([1] * STAGES)
            k_empty = T.alloc_barrier([CLUSTER] * STAGES)
            v_full = T.alloc_barrier([1] * STAGES)
            v_empty = T.alloc_barrier([CLUSTER] * STAGES)
            s_0_full = T.alloc_barrier([1])
            s_0_empty = T.alloc_barrier([4])
            p_0_full = T.alloc_barrier([4])
            p_0_empty = T.alloc_barrier([1])
            o_0_full = T.alloc_barrier([1])
            s_1_full = T.alloc_barrier([1])
            s_1_empty = T.alloc_barrier([4])
            p_1_full = T.alloc_barrier([4])
            p_1_empty = T.alloc_barrier([1])
            o_1_full = T.alloc_barrier([1])

            thread = T.get_thread_binding()
            blocks = leaf.ceildiv(sq, ROWS)
            bundles = T.truncdiv(b * heads, CLUSTER)
            all_items = blocks * bundles
            items = T.alloc_var(
                "int32",
                init=leaf.ceildiv(
                    all_items - (cta + T.truncmod(T.truncdiv(all_items, ctas), 2) * (ctas - 1 - 2 * cta)),
                    ctas
                )
            )
            shift = T.alloc_var("int32", init=skv - causal * sq)
            T.call_extern("handle", "sync::meet_cluster")
            if thread < 128:
                soften_0(
                    lse, sm_scale, ctas, abreast, sq, heads, skv, out_map_rows, o_s_0, s_t_0, p_t_0, o_t_0,
                    s_0_full, s_0_empty, p_0_full, p_0_empty, o_0_full, cta, rank, blocks, bundles, items,
                    shift, thread
                )
            elif thread < 256:
                soften_1(
                    lse, sm_scale, ctas, abreast, sq, heads, skv, out_map_rows, o_s_1, s_t_1, p_t_1, o_t_1,
                    s_1_full, s_1_empty, p_1_full, p_1_empty, o_1_full, cta, rank, blocks, bundles, items,
                    shift, thread
                )
            elif thread < 288:
                load(
                    k, v, ctas, abreast, b, heads, skv, kv_heads, k_stride_b, k_stride_s, k_stride_h,
                    v_stride_b, v_stride_s, v_stride_h, q_map_rows, q_s, k_s, v_s, q_full, q_empty, k_full,
                    k_empty, v_full, v_empty, cta, rank, blocks, bundles, items, shift
                )
            else:
                mma(
                    ctas, abreast, skv, q_s, k_s, v_s, s_t_0, p_t_0, o_t_0, s_t_1, p_t_1, o_t_1, q_full,
                    q_empty, k_full, k_empty, v_full, v_empty, s_0_full, s_0_empty, p_0_full, p_0_empty,
                    o_0_full, s_1_full, s_1_empty, p_1_full, p_1_empty, o_1_full, cta, blocks, bundles, items,
                    shift
                )
            # No CTA ends while others may still send to it or arrive at its barriers.
            T.call_extern("handle", "sync::meet_cluster")
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return gqa_forward__tilelang_sm100a__bf16_d128_n64_st3_c2_z2
