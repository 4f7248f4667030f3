"""lightning_indexer__tilelang_sm100a__prefill_h32_q8_t128_st6_c1_e0

Generated from dsl_kernels/programs/lightning_indexer.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=prefill, heads=32, queries=8, tile=128, stages=6, resident=1, evict=0.

  load            mma             score_0         score_1
  warp 8          warp 9          warps 0..3      warps 4..7
  |===== keys ===>|               |               |   keys key_scales, ring of 6; bulk -> tcgen05
  |============= keys ===========>|               |   keys key_scales, ring of 6; bulk -> threads
  |===================== keys ===================>|   keys key_scales, ring of 6; bulk -> threads
  |=== queries ==>|               |               |   queries head_weights, once; bulk -> tcgen05
  |=========== queries ==========>|               |   queries head_weights, once; bulk -> threads
  |=================== queries ==================>|   queries head_weights, once; bulk -> threads
  |               |==== scores ==>|               |   scores, ring of 2; tcgen05 -> tmem
  |               |============ scores ==========>|   scores, ring of 2; tcgen05 -> tmem

roles
  score_0    threads 0..127  epilogue of half 0 of the rows
  score_1    threads 128..255  epilogue of half 1 of the rows
  load       threads 256..287  key tiles, queries
  mma        threads 288..319  issues every tcgen05.mma and commit
buffers
  keys       6 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 6 stages of 128 float32, shared
  queries    256x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 256 float32, shared
  scores     2 stages of 128x256 float32, tensor memory
  dots_0     128x128 float32, registers of score_0
  weight_0   32 float32, registers of score_0
  scale_0    128 float32, registers of score_0
  logit_0    128 float32, registers of score_0
  dots_1     128x128 float32, registers of score_1
  weight_1   32 float32, registers of score_1
  scale_1    128 float32, registers of score_1
  logit_1    128 float32, registers of score_1
  begin_0    4 int32, registers of score_0
  begin_1    4 int32, registers of score_1
  size_0     4 int32, registers of score_0
  size_1     4 int32, registers of score_1
pipelines
  keys: load (bulk) ==[keys key_scales: 6-slot ring]==> mma (tcgen05), score_0 (threads), score_1 (threads)
    full  x1, 16896 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
      score_1: wait full
    empty x9: load wait empty
      mma: commit -> empty
      score_0: one lane a warp, arrive empty
      score_1: one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: once]==> mma (tcgen05), score_0 (threads), score_1 (threads)
    full  x1, 33792 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
      score_1: wait full
  scores: mma (tcgen05) ==[scores: 2-slot ring]==> score_0 (tmem), score_1 (tmem)
    full  x1: mma commit -> full
      score_0: wait full, fence after
      score_1: wait full, fence after
    empty x8: mma wait empty, fence after
      score_0: wait::ld, fence before, one lane a warp, arrive empty
      score_1: wait::ld, fence before, one lane a warp, arrive empty
totals: 320 threads, 135304 of 232448 bytes of shared memory, 512 of 512 tensor-memory columns, grid (ceildiv(s, 8), splits)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import lightning_indexer as leaf
from dsl_kernels.device.tilelang import lightning_indexer_sm100 as leaf_sm100

PASS_CONFIGS = leaf.PASS_CONFIGS

HEADS = 32  # index heads
QUERIES = 8  # decode: most queries a sequence; prefill: query rows a CTA
TILE = 128  # keys a tile
STAGES = 6  # key tiles in flight
ROWS_PER_GROUP = 4
INDEX_DIM = 128
COLUMNS = 256

@T.macro
def score_0(
    k_start, k_end, logits, skip_below, s, skv, stride, key_scales, head_weights, scores, keys_full,
    keys_empty, queries_full, scores_full, scores_empty, row: T.Ref, first: T.Ref, turns: T.Ref, thread
):
    """Epilogue of half 0 of the rows."""
    dots_0 = T.alloc_fragment((128, ROWS_PER_GROUP * HEADS), "float32")
    weight_0 = T.alloc_fragment((HEADS,), "float32")
    scale_0 = T.alloc_fragment((128,), "float32")
    logit_0 = T.alloc_fragment((128,), "float32")
    begin_0 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    size_0 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    worker = thread
    # First keys and sizes of the windows of the rows from `row` on.
    leaf_sm100.read_windows(begin_0, size_0, k_start, k_end, row, ROWS_PER_GROUP, s, skv, skip_below, worker)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        # Scales of the keys of one product, from key `first` of the tile on.
        leaf.read_scales(scale_0, key_scales, it % STAGES, 0, 1, worker)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        T.mbarrier_wait_parity(scores_full[it % 2], (it // 2) & 1)
        T.tcgen05_after_thread_sync()
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf.read_scores(dots_0, scores, it % 2, 0, HEADS, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(scores_empty[it % 2])
        # Weights of the heads of one product, from the `first` of its slot on.
        leaf.read_weights(weight_0, head_weights, 0, 0, 1, worker)
        # logit[key] = sum_h weight[h] * max(dots[key, query, h], 0), for one query of a product.
        leaf.weigh_one(logit_0, dots_0, 0, weight_0, worker)
        # Logits of row `row`, number `j` of the group, and the keys from `key` on: those in its window.
        leaf_sm100.store_row(
            logits, logit_0, scale_0, begin_0, size_0, 0, row, stride, (first + it) * TILE, worker
        )
        leaf.read_weights(weight_0, head_weights, 0, HEADS, 1, worker)
        leaf.weigh_one(logit_0, dots_0, 1, weight_0, worker)
        leaf_sm100.store_row(
            logits, logit_0, scale_0, begin_0, size_0, 1, row + 1, stride, (first + it) * TILE, worker
        )
        leaf.read_weights(weight_0, head_weights, 0, 2 * HEADS, 1, worker)
        leaf.weigh_one(logit_0, dots_0, 2, weight_0, worker)
        leaf_sm100.store_row(
            logits, logit_0, scale_0, begin_0, size_0, 2, row + 2, stride, (first + it) * TILE, worker
        )
        leaf.read_weights(weight_0, head_weights, 0, 3 * HEADS, 1, worker)
        leaf.weigh_one(logit_0, dots_0, 3, weight_0, worker)
        leaf_sm100.store_row(
            logits, logit_0, scale_0, begin_0, size_0, 3, row + 3, stride, (first + it) * TILE, worker
        )


@T.macro
def score_1(
    k_start, k_end, logits, skip_below, s, skv, stride, key_scales, head_weights, scores, keys_full,
    keys_empty, queries_full, scores_full, scores_empty, row: T.Ref, first: T.Ref, turns: T.Ref, thread
):
    """Epilogue of half 1 of the rows."""
    dots_1 = T.alloc_fragment((128, ROWS_PER_GROUP * HEADS), "float32")
    weight_1 = T.alloc_fragment((HEADS,), "float32")
    scale_1 = T.alloc_fragment((128,), "float32")
    logit_1 = T.alloc_fragment((128,), "float32")
    begin_1 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    size_1 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    worker = thread - 128
    # First keys and sizes of the windows of the rows from `row` on.
    leaf_sm100.read_windows(
        begin_1, size_1, k_start, k_end, row + ROWS_PER_GROUP, ROWS_PER_GROUP, s, skv, skip_below, worker
    )
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        # Scales of the keys of one product, from key `first` of the tile on.
        leaf.read_scales(scale_1, key_scales, it % STAGES, 0, 1, worker)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        T.mbarrier_wait_parity(scores_full[it % 2], (it // 2) & 1)
        T.tcgen05_after_thread_sync()
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf.read_scores(dots_1, scores, it % 2, ROWS_PER_GROUP * HEADS, HEADS, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(scores_empty[it % 2])
        # Weights of the heads of one product, from the `first` of its slot on.
        leaf.read_weights(weight_1, head_weights, 0, ROWS_PER_GROUP * HEADS, 1, worker)
        # logit[key] = sum_h weight[h] * max(dots[key, query, h], 0), for one query of a product.
        leaf.weigh_one(logit_1, dots_1, 0, weight_1, worker)
        # Logits of row `row`, number `j` of the group, and the keys from `key` on: those in its window.
        leaf_sm100.store_row(
            logits, logit_1, scale_1, begin_1, size_1, 0, row + ROWS_PER_GROUP, stride, (first + it) * TILE,
            worker
        )
        leaf.read_weights(weight_1, head_weights, 0, (ROWS_PER_GROUP + 1) * HEADS, 1, worker)
        leaf.weigh_one(logit_1, dots_1, 1, weight_1, worker)
        leaf_sm100.store_row(
            logits, logit_1, scale_1, begin_1, size_1, 1, row + ROWS_PER_GROUP + 1, stride,
            (first + it) * TILE, worker
        )
        leaf.read_weights(weight_1, head_weights, 0, (ROWS_PER_GROUP + 2) * HEADS, 1, worker)
        leaf.weigh_one(logit_1, dots_1, 2, weight_1, worker)
        leaf_sm100.store_row(
            logits, logit_1, scale_1, begin_1, size_1, 2, row + ROWS_PER_GROUP + 2, stride,
            (first + it) * TILE, worker
        )
        leaf.read_weights(weight_1, head_weights, 0, (ROWS_PER_GROUP + 3) * HEADS, 1, worker)
        leaf.weigh_one(logit_1, dots_1, 3, weight_1, worker)
        leaf_sm100.store_row(
            logits, logit_1, scale_1, begin_1, size_1, 3, row + ROWS_PER_GROUP + 3, stride,
            (first + it) * TILE, worker
        )


@T.macro
def load(
    query_map_rows, weight_map_rows, key_map_rows, scale_map_rows, keys, key_scales, queries, head_weights,
    keys_full, keys_empty, queries_full, row: T.Ref, first: T.Ref, turns: T.Ref
):
    """Key tiles, queries."""
    query = row * HEADS
    if turns > 0:
        # queries: filled once, so its slot is free
        T.tma_copy(
            query_map_rows[query : query + 256, 0 : INDEX_DIM], queries[0, :, :], barrier=queries_full[0]
        )
        T.tma_copy(weight_map_rows[0, query : query + 256], head_weights[0, :], barrier=queries_full[0])
        if T.shuffle_elect(32):
            T.mbarrier_arrive(queries_full[0])
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_empty[it % STAGES], ((it // STAGES) & 1) ^ 1)
        key = (first + it) * TILE
        T.tma_copy(
            key_map_rows[key : key + TILE, 0 : INDEX_DIM], keys[it % STAGES, :, :],
            barrier=keys_full[it % STAGES]
        )
        T.tma_copy(
            scale_map_rows[0, key : key + TILE], key_scales[it % STAGES, :], barrier=keys_full[it % STAGES]
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_full[it % STAGES])


@T.macro
def mma(keys, queries, scores, keys_full, keys_empty, queries_full, scores_full, scores_empty, turns: T.Ref):
    """Issues every tcgen05.mma and commit."""
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
        T.tcgen05_after_thread_sync()
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        T.tcgen05_after_thread_sync()
        T.mbarrier_wait_parity(scores_empty[it % 2], ((it // 2) & 1) ^ 1)
        T.tcgen05_after_thread_sync()
        # S[keys, heads] = K Q^T
        T.tcgen05_gemm(
            keys[it % STAGES, :, :], queries[0, :, :], scores[it % 2, :, :], transpose_B=True,
            clear_accum=True, mbar=None
        )
        T.tcgen05_mma_arrive(scores_full[it % 2])
        T.tcgen05_mma_arrive(keys_empty[it % STAGES])


def program():
    s = T.dynamic("s")
    skv = T.dynamic("skv")
    stride = T.dynamic("stride")

    @T.prim_func
    def lightning_indexer__tilelang_sm100a__prefill_h32_q8_t128_st6_c1_e0(
        q: T.Tensor((s, 32, 128), "float8_e4m3fn"),
        k: T.Tensor((skv, 128), "float8_e4m3fn"),
        k_scales: T.Tensor((skv,), "float32"),
        weights: T.Tensor((s, 32), "float32"),
        k_start: T.Tensor((s,), "int32"),
        k_end: T.Tensor((s,), "int32"),
        logits: T.Tensor((s, stride), "float32"),
        skip_below: T.int32,
        splits: T.int32,
    ):
        with T.Kernel(T.ceildiv(s, 8), splits, threads=320) as (block, split):
            query_map_rows = T.view(q, (s * 32, 128), "float8_e4m3")
            weight_map_rows = T.view(weights, (1, s * 32), "float32", strides=(4, 1))
            key_map_rows = T.view(k, (skv, 128), "float8_e4m3")
            scale_map_rows = T.view(k_scales, (1, skv), "float32", strides=(4, 1))
            keys = T.alloc_shared((STAGES, TILE, INDEX_DIM), "float8_e4m3")
            key_scales = T.alloc_shared((STAGES, TILE), "float32")
            queries = T.alloc_shared((1, QUERIES * HEADS, INDEX_DIM), "float8_e4m3")
            head_weights = T.alloc_shared((1, QUERIES * HEADS), "float32")
            scores = T.alloc_tmem((2, 128, COLUMNS), "float32")
            keys_full = T.alloc_barrier([1] * STAGES)
            keys_empty = T.alloc_barrier([9] * STAGES)
            queries_full = T.alloc_barrier([1] * 1)
            scores_full = T.alloc_barrier([1] * 2)
            scores_empty = T.alloc_barrier([8] * 2)

            thread = T.get_thread_binding()
            row = T.alloc_var("int32", init=0)
            first = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            # Later rows see more keys in a causal prefill: the longest blocks start first.
            row = (leaf.ceildiv(s, QUERIES) - 1 - block) * QUERIES
            # First key tile and tile count of a split over the union of the windows of a block of rows.
            leaf.find_tiles(
                first, turns, k_start, k_end, row, QUERIES, s, skv, skip_below, TILE, split, splits
            )
            if thread < 128:
                score_0(
                    k_start, k_end, logits, skip_below, s, skv, stride, key_scales, head_weights, scores,
                    keys_full, keys_empty, queries_full, scores_full, scores_empty, row, first, turns, thread
                )
            elif thread < 256:
                score_1(
                    k_start, k_end, logits, skip_below, s, skv, stride, key_scales, head_weights, scores,
                    keys_full, keys_empty, queries_full, scores_full, scores_empty, row, first, turns, thread
                )
            elif thread < 288:
                load(
                    query_map_rows, weight_map_rows, key_map_rows, scale_map_rows, keys, key_scales, queries,
                    head_weights, keys_full, keys_empty, queries_full, row, first, turns
                )
            else:
                mma(
                    keys, queries, scores, keys_full, keys_empty, queries_full, scores_full, scores_empty,
                    turns
                )
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return lightning_indexer__tilelang_sm100a__prefill_h32_q8_t128_st6_c1_e0
