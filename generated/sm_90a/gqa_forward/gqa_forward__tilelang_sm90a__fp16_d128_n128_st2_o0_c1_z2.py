"""gqa_forward__tilelang_sm90a__fp16_d128_n128_st2_o0_c1_z2

Generated from dsl_kernels/programs/gqa_forward and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: dtype=fp16, dim=128, tile=128, stages=2, order=0, cluster=1, lazy=2.

  load          attend
  warps 8..11   warps 0..7
  |===== q ====>|   q_s; bulk -> wgmma
  |===== k ====>|   k_s, ring of 2; bulk -> wgmma
  |===== v ====>|   v_s, ring of 2; bulk -> wgmma

roles
  attend     threads 0..255, 232 registers  64 rows each: products, softmax, epilogue
  load       threads 256..383, 40 registers  queries, keys and values
buffers
  q_s        128x128 float16, shared, 128-byte swizzle
  k_s        2 stages of 128x128 float16, shared, 128-byte swizzle
  v_s        2 stages of 128x128 float16, shared, 128-byte swizzle
  o_s        128x128 float16, shared, 128-byte swizzle
  scores     64x128 float32, registers of attend
  weights    64x128 float16, registers of attend
  acc        64x128 float32, registers of attend
  rounded    64x128 float16, registers of attend
  top        64 float32, registers of attend
  total      64 float32, registers of attend
  factor     64 float32, registers of attend
  limit      64 float32, registers of attend
pipelines
  q: load (bulk) ==[q_s: 1-slot ring]==> attend (wgmma)
    full  x1, 32768 bytes: load arrive + expect bytes
      attend: wait full
    empty x8: load wait empty
      attend: wgmma wait, one lane a warp, arrive empty
  k: load (bulk) ==[k_s: 2-slot ring]==> attend (wgmma)
    full  x1, 32768 bytes: load arrive + expect bytes
      attend: wait full
    empty x8: load wait empty
      attend: wgmma wait, one lane a warp, arrive empty
  v: load (bulk) ==[v_s: 2-slot ring]==> attend (wgmma)
    full  x1, 32768 bytes: load arrive + expect bytes
      attend: wait full
    empty x8: load wait empty
      attend: wgmma wait, one lane a warp, arrive empty
  named barrier staged: attend
totals: 384 threads, 196688 of 232448 bytes of shared memory, grid (ctas, 1)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import fragment, symbols
from dsl_kernels.device.tilelang import gqa_forward as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

DIM = 128  # elements of a head
TILE = 128  # keys a tile
STAGES = 2  # tiles of keys, and of values, in flight
GROUPS = 2  # warpgroups of 64 query rows each
ROWS = 128
GROUP_ROWS = 64
RESCALE_LOG2 = 8
STAGED_BARRIER = 1
ATTEND_THREADS = 256
PANEL = 64

@T.macro
def attend(
    lse, sm_scale, ctas, abreast, sq, heads, skv, out_map_rows, q_s, k_s, v_s, o_s, q_full, q_empty, k_full,
    k_empty, v_full, v_empty, cta, blocks, bundles, items: T.Ref, shift: T.Ref, thread, replica
):
    """64 rows each: products, softmax, epilogue."""
    scores = T.alloc_fragment((GROUP_ROWS, TILE), "float32")
    weights = T.alloc_fragment((GROUP_ROWS, TILE), "float16")
    acc = T.alloc_fragment((GROUP_ROWS, DIM), "float32")
    rounded = T.alloc_fragment((GROUP_ROWS, DIM), "float16")
    top = T.alloc_local((2,), "float32")
    total = T.alloc_local((2,), "float32")
    factor = T.alloc_local((2,), "float32")
    limit = T.alloc_local((2,), "float32")
    worker = thread - replica * 128
    scale = sm_scale * 1.4426950408889634
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
        T.wgmma_gemm(
            q_s[0, replica * GROUP_ROWS : replica * GROUP_ROWS + GROUP_ROWS, :],
            k_s[(done + others) % STAGES, :, :], scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow,
            clear_accum=True
        )
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(scores, num_regs=64)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(k_empty[(done + others) % STAGES])
        # Scores of row `row` + i and key `key` + j: -inf where there is no such key, or the row does not see
        # it.
        leaf.hide_keys(scores, own_row, (tiles - 1 - others) * TILE, skv, shift, worker)
        # As `online_softmax`, but `top` stays where no score of a warp's rows exceeds it by `rise` powers of
        # two.
        leaf.online_softmax_lazily(scores, top, total, factor, limit, scale, RESCALE_LOG2, True, True, worker)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment.round_to(weights, scores)
        masked = T.alloc_var(
            "int32",
            init=T.max(
                others + 1, tiles - T.truncdiv(T.min(skv, row + shift + (replica * GROUP_ROWS + 1)), TILE)
            )
        )
        for i in T.serial(others + 1, masked):
            T.mbarrier_wait_parity(k_full[(done + i) % STAGES], ((done + i) // STAGES) & 1)
            # S = Q K^T
            T.wgmma_gemm(
                q_s[0, replica * GROUP_ROWS : replica * GROUP_ROWS + GROUP_ROWS, :],
                k_s[(done + i) % STAGES, :, :], scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow,
                clear_accum=True
            )
            T.mbarrier_wait_parity(v_full[(done + (i - 1)) % STAGES], ((done + (i - 1)) // STAGES) & 1)
            # O += P V
            T.wgmma_gemm(
                weights, v_s[(done + (i - 1)) % STAGES, :, :], acc, policy=T.GemmWarpPolicy.FullRow,
                clear_accum=False
            )
            T.wait_wgmma(1)
            T.warpgroup_fence_operand(scores, num_regs=64)
            T.warpgroup_fence_operand(acc, num_regs=64)
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(k_empty[(done + i) % STAGES])
            leaf.hide_keys(scores, own_row, (tiles - 1 - i) * TILE, skv, shift, worker)
            leaf.online_softmax_lazily(
                scores, top, total, factor, limit, scale, RESCALE_LOG2, True, True, worker
            )
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(acc, num_regs=64)
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(v_empty[(done + (i - 1)) % STAGES])
            fragment.round_to(weights, scores)
            # Each row times its factor, in place; left alone where the factors of a warp's rows are 1.
            leaf.rescale_rows(acc, factor, worker)
        for i in T.serial(masked, tiles):
            T.mbarrier_wait_parity(k_full[(done + i) % STAGES], ((done + i) // STAGES) & 1)
            # S = Q K^T
            T.wgmma_gemm(
                q_s[0, replica * GROUP_ROWS : replica * GROUP_ROWS + GROUP_ROWS, :],
                k_s[(done + i) % STAGES, :, :], scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow,
                clear_accum=True
            )
            T.mbarrier_wait_parity(v_full[(done + (i - 1)) % STAGES], ((done + (i - 1)) // STAGES) & 1)
            # O += P V
            T.wgmma_gemm(
                weights, v_s[(done + (i - 1)) % STAGES, :, :], acc, policy=T.GemmWarpPolicy.FullRow,
                clear_accum=False
            )
            T.wait_wgmma(1)
            T.warpgroup_fence_operand(scores, num_regs=64)
            T.warpgroup_fence_operand(acc, num_regs=64)
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(k_empty[(done + i) % STAGES])
            leaf.online_softmax_lazily(
                scores, top, total, factor, limit, scale, RESCALE_LOG2, False, True, worker
            )
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(acc, num_regs=64)
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(v_empty[(done + (i - 1)) % STAGES])
            fragment.round_to(weights, scores)
            leaf.rescale_rows(acc, factor, worker)
        T.mbarrier_wait_parity(v_full[(done + (tiles - 1)) % STAGES], ((done + (tiles - 1)) // STAGES) & 1)
        # O += P V
        T.wgmma_gemm(
            weights, v_s[(done + (tiles - 1)) % STAGES, :, :], acc, policy=T.GemmWarpPolicy.FullRow,
            clear_accum=False
        )
        T.wait_wgmma(1)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(q_empty[0])
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(acc, num_regs=64)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(v_empty[(done + (tiles - 1)) % STAGES])
        # The rows of the accumulator divided by their sums; `top` becomes the natural logarithm of sum exp.
        leaf.divide_by_total(acc, top, total, scale, worker)
        # One value a row to lse[batch, head, row ...], as far as there are `rows`.
        leaf.store_lse(lse, top, batch, head, heads, own_row, sq, worker)
        fragment.round_to(rounded, acc)
        if thread < replica * (256 // GROUPS) + 32:
            T.tma_store_wait(0)
        T.sync_threads(replica + STAGED_BARRIER, ATTEND_THREADS // GROUPS)
        # A 16-bit fragment into rows `row` on of a shared tile of `rows` rows with the 128-byte swizzle.
        leaf.stage_rows(o_s, replica * GROUP_ROWS, ROWS, rounded, worker)
        T.fence_proxy_async()
        T.sync_threads(replica + STAGED_BARRIER, ATTEND_THREADS // GROUPS)
        if thread < replica * (256 // GROUPS) + 32:
            T.tma_copy(
                o_s[replica * GROUP_ROWS : replica * GROUP_ROWS + GROUP_ROWS, 0 : PANEL],
                out_map_rows[batch : batch + 1, head : head + 1, own_row : own_row + GROUP_ROWS, 0 : PANEL],
                leader_scope_threads=32
            )
            T.tma_copy(
                o_s[replica * GROUP_ROWS : replica * GROUP_ROWS + GROUP_ROWS, 64 : 64 + PANEL],
                out_map_rows[
                    batch : batch + 1, head : head + 1, own_row : own_row + GROUP_ROWS, 64 : 64 + PANEL
                ],
                leader_scope_threads=32
            )
        done = done + tiles
    if thread < replica * (256 // GROUPS) + 32:
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
        T.tma_copy(
            k_map_rows[
                batch : batch + 1, kv_head : kv_head + 1, (tiles - 1) * TILE : (tiles - 1) * TILE + TILE,
                64 : 64 + PANEL
            ],
            k_s[done % STAGES, :, 64 : 64 + PANEL], barrier=k_full[done % STAGES]
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(k_full[done % STAGES])
        T.mbarrier_wait_parity(q_empty[0], (item & 1) ^ 1)
        T.tma_copy(
            q_map_rows[batch : batch + 1, head : head + 1, row : row + ROWS, 0 : PANEL], q_s[0, :, 0 : PANEL],
            barrier=q_full[0]
        )
        T.tma_copy(
            q_map_rows[batch : batch + 1, head : head + 1, row : row + ROWS, 64 : 64 + PANEL],
            q_s[0, :, 64 : 64 + PANEL], barrier=q_full[0]
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
            T.tma_copy(
                k_map_rows[
                    batch : batch + 1, kv_head : kv_head + 1,
                    (tiles - 1 - i) * TILE : (tiles - 1 - i) * TILE + TILE, 64 : 64 + PANEL
                ],
                k_s[(done + i) % STAGES, :, 64 : 64 + PANEL], barrier=k_full[(done + i) % STAGES]
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
            T.tma_copy(
                v_map_rows[
                    batch : batch + 1, kv_head : kv_head + 1,
                    (tiles - 1 - (i - 1)) * TILE : (tiles - 1 - (i - 1)) * TILE + TILE, 64 : 64 + PANEL
                ],
                v_s[(done + (i - 1)) % STAGES, :, 64 : 64 + PANEL], barrier=v_full[(done + (i - 1)) % STAGES]
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
        T.tma_copy(
            v_map_rows[
                batch : batch + 1, kv_head : kv_head + 1,
                (tiles - 1 - (tiles - 1)) * TILE : (tiles - 1 - (tiles - 1)) * TILE + TILE, 64 : 64 + PANEL
            ],
            v_s[(done + (tiles - 1)) % STAGES, :, 64 : 64 + PANEL],
            barrier=v_full[(done + (tiles - 1)) % STAGES]
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
    def gqa_forward__tilelang_sm90a__fp16_d128_n128_st2_o0_c1_z2(
        q: T.StridedTensor((b, sq, heads, 128), (q_stride_b, q_stride_s, q_stride_h, 1), "float16"),
        k: T.StridedTensor((b, skv, kv_heads, 128), (k_stride_b, k_stride_s, k_stride_h, 1), "float16"),
        v: T.StridedTensor((b, skv, kv_heads, 128), (v_stride_b, v_stride_s, v_stride_h, 1), "float16"),
        out: T.Tensor((b, sq, heads, 128), "float16"),
        lse: T.Tensor((b, heads, sq), "float32"),
        sm_scale: T.float32,
        causal: T.int32,
        ctas: T.int32,
        abreast: T.int32,
    ):
        with T.Kernel(ctas, 1, threads=384) as (cta, rank):
            k_map_rows = T.view(
                k, (b, kv_heads, skv, 128), "float16", strides=(k_stride_b, k_stride_h, k_stride_s, 1)
            )
            q_map_rows = T.view(
                q, (b, heads, sq, 128), "float16", strides=(q_stride_b, q_stride_h, q_stride_s, 1)
            )
            v_map_rows = T.view(
                v, (b, kv_heads, skv, 128), "float16", strides=(v_stride_b, v_stride_h, v_stride_s, 1)
            )
            out_map_rows = T.view(
                out, (b, heads, sq, 128), "float16", strides=(sq * heads * 128, 128, heads * 128, 1)
            )
            T.import_source(leaf.SOURCE)
            q_s = T.alloc_shared((1, ROWS, DIM), "float16")
            k_s = T.alloc_shared((STAGES, TILE, DIM), "float16")
            v_s = T.alloc_shared((STAGES, TILE, DIM), "float16")
            o_s = T.alloc_shared((ROWS, DIM), "float16")
            q_full = T.alloc_barrier([1] * 1)
            q_empty = T.alloc_barrier([GROUPS * 4] * 1)
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
                T.set_max_nreg(232, 1)
                attend(
                    lse, sm_scale, ctas, abreast, sq, heads, skv, out_map_rows, q_s, k_s, v_s, o_s, q_full,
                    q_empty, k_full, k_empty, v_full, v_empty, cta, blocks, bundles, items, shift, thread, 0
                )
            elif thread < 256:
                T.set_max_nreg(232, 1)
                attend(
                    lse, sm_scale, ctas, abreast, sq, heads, skv, out_map_rows, q_s, k_s, v_s, o_s, q_full,
                    q_empty, k_full, k_empty, v_full, v_empty, cta, blocks, bundles, items, shift, thread, 1
                )
            else:
                T.set_max_nreg(40, 0)
                if thread < 288:
                    load(
                        ctas, abreast, heads, skv, kv_heads, k_map_rows, q_map_rows, v_map_rows, q_s, k_s,
                        v_s, q_full, q_empty, k_full, k_empty, v_full, v_empty, cta, blocks, bundles, items,
                        shift
                    )

    return symbols.named(gqa_forward__tilelang_sm90a__fp16_d128_n128_st2_o0_c1_z2, skv=skv, sq=sq)
