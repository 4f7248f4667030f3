"""lightning_indexer__tilelang_sm100a__prefill_h64_q4_t128_st6_c1_e0

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=prefill, heads=64, queries=4, tile=128, stages=6, resident=1, evict=0.

  load            mma             score_0         score_1         score_2         score_3
  warp 16         warp 17         warps 0..3      warps 4..7      warps 8..11     warps 12..15
  |===== keys ===>|               |               |               |               |   keys key_scales, ring of 6; bulk -> tcgen05
  |============= keys ===========>|               |               |               |   keys key_scales, ring of 6; bulk -> threads
  |===================== keys ===================>|               |               |   keys key_scales, ring of 6; bulk -> threads
  |============================= keys ===========================>|               |   keys key_scales, ring of 6; bulk -> threads
  |===================================== keys ===================================>|   keys key_scales, ring of 6; bulk -> threads
  |=== queries ==>|               |               |               |               |   queries head_weights, once; bulk -> tcgen05
  |=========== queries ==========>|               |               |               |   queries head_weights, once; bulk -> threads
  |=================== queries ==================>|               |               |   queries head_weights, once; bulk -> threads
  |=========================== queries ==========================>|               |   queries head_weights, once; bulk -> threads
  |=================================== queries ==================================>|   queries head_weights, once; bulk -> threads
  |               |==== scores ==>|               |               |               |   scores, ring of 2; tcgen05 -> tmem
  |               |============ scores ==========>|               |               |   scores, ring of 2; tcgen05 -> tmem
  |               |==================== scores ==================>|               |   scores, ring of 2; tcgen05 -> tmem
  |               |============================ scores ==========================>|   scores, ring of 2; tcgen05 -> tmem

roles
  score_0    threads 0..127  epilogue of quarter 0 of the rows
  score_1    threads 128..255  epilogue of quarter 1 of the rows
  score_2    threads 256..383  epilogue of quarter 2 of the rows
  score_3    threads 384..511  epilogue of quarter 3 of the rows
  load       threads 512..543  key tiles, queries
  mma        threads 544..575  issues every tcgen05.mma and commit
buffers
  keys       6 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 6 stages of 128 float32, shared
  queries    256x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 256 float32, shared
  scores     2 stages of 128x256 float32, tensor memory
  dots_0     128x64 float32, registers of score_0
  weight_0   128x32 float32, registers of score_0
  scale_0    128x1 float32, registers of score_0
  logit_0    128x1 float32, registers of score_0
  begin_0    128x1 int32, registers of score_0
  size_0     128x1 int32, registers of score_0
  dots_1     128x64 float32, registers of score_1
  weight_1   128x32 float32, registers of score_1
  scale_1    128x1 float32, registers of score_1
  logit_1    128x1 float32, registers of score_1
  begin_1    128x1 int32, registers of score_1
  size_1     128x1 int32, registers of score_1
  dots_2     128x64 float32, registers of score_2
  weight_2   128x32 float32, registers of score_2
  scale_2    128x1 float32, registers of score_2
  logit_2    128x1 float32, registers of score_2
  begin_2    128x1 int32, registers of score_2
  size_2     128x1 int32, registers of score_2
  dots_3     128x64 float32, registers of score_3
  weight_3   128x32 float32, registers of score_3
  scale_3    128x1 float32, registers of score_3
  logit_3    128x1 float32, registers of score_3
  begin_3    128x1 int32, registers of score_3
  size_3     128x1 int32, registers of score_3
pipelines
  keys: load (bulk) ==[keys key_scales: 6-slot ring]==> mma (tcgen05), score_0 (threads), score_1 (threads), score_2 (threads), score_3 (threads)
    full  x1, 16896 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
      score_1: wait full
      score_2: wait full
      score_3: wait full
    empty x17: load wait empty
      mma: commit -> empty
      score_0: one lane a warp, arrive empty
      score_1: one lane a warp, arrive empty
      score_2: one lane a warp, arrive empty
      score_3: one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: once]==> mma (tcgen05), score_0 (threads), score_1 (threads), score_2 (threads), score_3 (threads)
    full  x1, 33792 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
      score_1: wait full
      score_2: wait full
      score_3: wait full
  scores: mma (tcgen05) ==[scores: 2-slot ring]==> score_0 (tmem), score_1 (tmem), score_2 (tmem), score_3 (tmem)
    full  x1: mma commit -> full
      score_0: wait full, fence after
      score_1: wait full, fence after
      score_2: wait full, fence after
      score_3: wait full, fence after
    empty x16: mma wait empty, fence after
      score_0: wait::ld, fence before, one lane a warp, arrive empty
      score_1: wait::ld, fence before, one lane a warp, arrive empty
      score_2: wait::ld, fence before, one lane a warp, arrive empty
      score_3: wait::ld, fence before, one lane a warp, arrive empty
totals: 576 threads, 135304 of 232448 bytes of shared memory, 512 of 512 tensor-memory columns, grid (ceildiv(s, 4), splits)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import boxes, warps
from dsl_kernels.kernels.lightning_indexer import tilelang as leaf
from dsl_kernels.kernels.lightning_indexer import tilelang_sm100 as leaf_sm100

PASS_CONFIGS = leaf.PASS_CONFIGS

HEADS = 64  # index heads
QUERIES = 4  # decode: most queries per sequence; prefill: query rows per CTA
TILE = 128  # keys per tile
STAGES = 6  # key tiles in flight
ROWS_PER_GROUP = 1
INDEX_DIM = 128
COLUMNS = 256


@T.macro
def find_tiles(first: T.Ref, turns: T.Ref, k_start, k_end, row, s, skv, skip_below, split, splits, lane):
    """The first key tile and the tile count of a split.

    Splits share the union of the windows of a block of rows. Each lane reads the window of one row.
    """
    last_row = T.min(row + T.truncmod(lane, QUERIES), s - 1)
    first_key = T.max(k_start[last_row], 0)
    end_key = T.min(k_end[last_row], skv)
    end_to_score = T.if_then_else(
        (row + T.truncmod(lane, QUERIES) < s) & (end_key - first_key > skip_below), end_key, 0
    )
    # The lowest key is found as a maximum, of the distances from LAST_KEY: a warp has no minimum.
    low = 2147483647 - warps.warp_max(T.if_then_else(end_to_score > first_key, 2147483647 - first_key, 0))
    high = warps.warp_max(T.if_then_else(end_to_score > first_key, end_to_score, 0))
    lowest = T.alloc_var("int32", init=0)
    tiles = T.alloc_var("int32", init=0)
    if high > 0:
        lowest = T.cast(T.truncdiv(T.cast(low, "uint32"), T.uint32(TILE)), "int32")
        tiles = leaf.ceildiv(high, TILE) - lowest
    first = lowest + leaf.share_begin(tiles, split, splits)
    turns = leaf.share_size(tiles, split, splits)


@T.macro
def load_windows(begin, size, k_start, k_end, row, s, skv, skip_below):
    """Read the first keys and sizes of the windows of the rows from `row` on."""
    for i in T.unroll(ROWS_PER_GROUP):
        last_row = T.min(row + i, s - 1)
        first_key = T.max(k_start[last_row], 0)
        end_key = T.min(k_end[last_row], skv)
        end_to_score = T.if_then_else((row + i < s) & (end_key - first_key > skip_below), end_key, 0)
        begin[i] = first_key
        size[i] = T.max(end_to_score - first_key, 0)


@T.macro
def load_scale(scale, key_scales, key_scales_slot, thread):
    """Read the scale of this thread's key."""
    scale[0] = key_scales[key_scales_slot, thread]


@T.macro
def load_weights_first_0(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[head_weights_slot, (quad) * 4 + part]


@T.macro
def load_weights_first_32(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[head_weights_slot, (8 + quad) * 4 + part]


@T.macro
def store_row(logits, logit, scale, begin, size, row, key, thread):
    """Store the logit of this thread's key and row `row`, times the key's scale, if the row has the key.

    `j` is the number of the row in its group.
    """
    at = key + thread
    # One comparison is enough: unsigned, a key before the window is also far past its end.
    if warps.below(T.cast((at - begin[0]), "uint32"), T.cast(size[0], "uint32")):
        logits[row, at] = logit[0] * scale[0]


@T.macro
def load_weights_first_64(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[head_weights_slot, (HEADS // 4 + quad) * 4 + part]


@T.macro
def load_weights_first_96(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[head_weights_slot, ((HEADS + 32) // 4 + quad) * 4 + part]


@T.macro
def load_weights_first_128(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[head_weights_slot, (2 * HEADS // 4 + quad) * 4 + part]


@T.macro
def load_weights_first_160(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[
                head_weights_slot, ((2 * HEADS + 32) // 4 + quad) * 4 + part
            ]


@T.macro
def load_weights_first_192(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[head_weights_slot, (3 * HEADS // 4 + quad) * 4 + part]


@T.macro
def load_weights_first_224(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[
                head_weights_slot, ((3 * HEADS + 32) // 4 + quad) * 4 + part
            ]


@T.macro
def score_0(
    k_start, k_end, logits, skip_below, s, skv, key_scales, head_weights, scores, keys_full, keys_empty,
    queries_full, scores_full, scores_empty, row: T.Ref, first: T.Ref, turns: T.Ref, thread
):
    """Epilogue of quarter 0 of the rows."""
    dots_0 = T.alloc_local((HEADS,), "float32")
    weight_0 = T.alloc_local((32,), "float32")
    scale_0 = T.alloc_local((1,), "float32")
    logit_0 = T.alloc_local((1,), "float32")
    begin_0 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    size_0 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    worker = thread
    load_windows(begin_0, size_0, k_start, k_end, row, s, skv, skip_below)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        load_scale(scale_0, key_scales, it % STAGES, worker)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        T.mbarrier_wait_parity(scores_full[it % 2], (it // 2) & 1)
        T.tcgen05_after_thread_sync()
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_0, scores, it % 2, 0, HEADS, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(scores_empty[it % 2])
        load_weights_first_0(weight_0, head_weights, 0)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
        load_weights_first_32(weight_0, head_weights, 0)
        leaf_sm100.weigh_one(logit_0, dots_0, 1, weight_0, False)
        store_row(logits, logit_0, scale_0, begin_0, size_0, row, (first + it) * TILE, worker)


@T.macro
def score_1(
    k_start, k_end, logits, skip_below, s, skv, key_scales, head_weights, scores, keys_full, keys_empty,
    queries_full, scores_full, scores_empty, row: T.Ref, first: T.Ref, turns: T.Ref, thread
):
    """Epilogue of quarter 1 of the rows."""
    dots_1 = T.alloc_local((HEADS,), "float32")
    weight_1 = T.alloc_local((32,), "float32")
    scale_1 = T.alloc_local((1,), "float32")
    logit_1 = T.alloc_local((1,), "float32")
    begin_1 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    size_1 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    worker = thread - 128
    load_windows(begin_1, size_1, k_start, k_end, row + 1, s, skv, skip_below)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        load_scale(scale_1, key_scales, it % STAGES, worker)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        T.mbarrier_wait_parity(scores_full[it % 2], (it // 2) & 1)
        T.tcgen05_after_thread_sync()
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_1, scores, it % 2, HEADS, HEADS, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(scores_empty[it % 2])
        load_weights_first_64(weight_1, head_weights, 0)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
        load_weights_first_96(weight_1, head_weights, 0)
        leaf_sm100.weigh_one(logit_1, dots_1, 1, weight_1, False)
        store_row(logits, logit_1, scale_1, begin_1, size_1, row + 1, (first + it) * TILE, worker)


@T.macro
def score_2(
    k_start, k_end, logits, skip_below, s, skv, key_scales, head_weights, scores, keys_full, keys_empty,
    queries_full, scores_full, scores_empty, row: T.Ref, first: T.Ref, turns: T.Ref, thread
):
    """Epilogue of quarter 2 of the rows."""
    dots_2 = T.alloc_local((HEADS,), "float32")
    weight_2 = T.alloc_local((32,), "float32")
    scale_2 = T.alloc_local((1,), "float32")
    logit_2 = T.alloc_local((1,), "float32")
    begin_2 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    size_2 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    worker = thread - 256
    load_windows(begin_2, size_2, k_start, k_end, row + 2, s, skv, skip_below)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        load_scale(scale_2, key_scales, it % STAGES, worker)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        T.mbarrier_wait_parity(scores_full[it % 2], (it // 2) & 1)
        T.tcgen05_after_thread_sync()
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_2, scores, it % 2, 2 * HEADS, HEADS, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(scores_empty[it % 2])
        load_weights_first_128(weight_2, head_weights, 0)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_2, dots_2, 0, weight_2, True)
        load_weights_first_160(weight_2, head_weights, 0)
        leaf_sm100.weigh_one(logit_2, dots_2, 1, weight_2, False)
        store_row(logits, logit_2, scale_2, begin_2, size_2, row + 2, (first + it) * TILE, worker)


@T.macro
def score_3(
    k_start, k_end, logits, skip_below, s, skv, key_scales, head_weights, scores, keys_full, keys_empty,
    queries_full, scores_full, scores_empty, row: T.Ref, first: T.Ref, turns: T.Ref, thread
):
    """Epilogue of quarter 3 of the rows."""
    dots_3 = T.alloc_local((HEADS,), "float32")
    weight_3 = T.alloc_local((32,), "float32")
    scale_3 = T.alloc_local((1,), "float32")
    logit_3 = T.alloc_local((1,), "float32")
    begin_3 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    size_3 = T.alloc_local((ROWS_PER_GROUP,), "int32")
    worker = thread - 384
    load_windows(begin_3, size_3, k_start, k_end, row + 3, s, skv, skip_below)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        load_scale(scale_3, key_scales, it % STAGES, worker)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        T.mbarrier_wait_parity(scores_full[it % 2], (it // 2) & 1)
        T.tcgen05_after_thread_sync()
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_3, scores, it % 2, 3 * HEADS, HEADS, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(scores_empty[it % 2])
        load_weights_first_192(weight_3, head_weights, 0)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_3, dots_3, 0, weight_3, True)
        load_weights_first_224(weight_3, head_weights, 0)
        leaf_sm100.weigh_one(logit_3, dots_3, 1, weight_3, False)
        store_row(logits, logit_3, scale_3, begin_3, size_3, row + 3, (first + it) * TILE, worker)


@T.macro
def load(
    q, s, q_stride_s, q_stride_h, weights_words, key_map_rows, scale_map_rows, keys, key_scales, queries,
    head_weights, keys_full, keys_empty, queries_full, row: T.Ref, first: T.Ref, turns: T.Ref
):
    """Key tiles, queries."""
    if turns > 0:
        # queries: filled once, so its slot is free
        boxes.fold_box(
            boxes.box_map(q, "UINT8", (128, 64, s,), (q_stride_h, q_stride_s,), (128, 64, 4), "128B"),
            "UINT8", queries, 0, queries_full, 0, (row, 0, 0)
        )
        for i in T.serial(QUERIES):
            # No score of a row past the last one is stored.
            query = T.min(row + i, s - 1)
            T.tma_copy(
                weights_words[query, 0 : HEADS], head_weights[0, i * HEADS : i * HEADS + HEADS],
                barrier=queries_full[0]
            )
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
    q_stride_s = T.dynamic("q_stride_s")
    q_stride_h = T.dynamic("q_stride_h")
    skv = T.dynamic("skv")
    k_stride = T.dynamic("k_stride")
    weights_stride = T.dynamic("weights_stride")
    stride = T.dynamic("stride")
    logits_stride = T.dynamic("logits_stride")

    @T.prim_func
    def lightning_indexer__tilelang_sm100a__prefill_h64_q4_t128_st6_c1_e0(
        q: T.StridedTensor((s, 64, 128), (q_stride_s, q_stride_h, 1), "float8_e4m3fn"),
        k: T.StridedTensor((skv, 128), (k_stride, 1), "float8_e4m3fn"),
        k_scales: T.Tensor((skv,), "float32"),
        weights: T.StridedTensor((s, 64), (weights_stride, 1), "float32"),
        k_start: T.Tensor((s,), "int32"),
        k_end: T.Tensor((s,), "int32"),
        logits: T.StridedTensor((s, stride), (logits_stride, 1), "float32"),
        skip_below: T.int32,
        splits: T.int32,
    ):
        with T.Kernel(T.ceildiv(s, 4), splits, threads=576) as (block, split):
            weights_words = T.view(weights, (s, 64), "float32", strides=(weights_stride, 1))
            key_map_rows = T.view(k, (skv, 128), "float8_e4m3", strides=((k_stride) // 1, 1))
            scale_map_rows = T.view(k_scales, (1, skv), "float32", strides=(4, 1))
            T.import_source(leaf_sm100.SOURCE + warps.SOURCE)
            keys = T.alloc_shared((STAGES, TILE, INDEX_DIM), "float8_e4m3")
            key_scales = T.alloc_shared((STAGES, TILE), "float32")
            queries = T.alloc_shared((1, QUERIES * HEADS, INDEX_DIM), "float8_e4m3")
            head_weights = T.alloc_shared((1, QUERIES * HEADS), "float32")
            scores = T.alloc_tmem((2, 128, COLUMNS), "float32")
            keys_full = T.alloc_barrier([1] * STAGES)
            keys_empty = T.alloc_barrier([17] * STAGES)
            queries_full = T.alloc_barrier([1])
            scores_full = T.alloc_barrier([1] * 2)
            scores_empty = T.alloc_barrier([16] * 2)

            thread = T.get_thread_binding()
            lane = thread % 32
            row = T.alloc_var("int32", init=0)
            first = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            # Later rows see more keys in a causal prefill: the longest blocks start first.
            row = (leaf.ceildiv(s, QUERIES) - 1 - block) * QUERIES
            find_tiles(first, turns, k_start, k_end, row, s, skv, skip_below, split, splits, lane)
            if thread < 128:
                score_0(
                    k_start, k_end, logits, skip_below, s, skv, key_scales, head_weights, scores, keys_full,
                    keys_empty, queries_full, scores_full, scores_empty, row, first, turns, thread
                )
            elif thread < 256:
                score_1(
                    k_start, k_end, logits, skip_below, s, skv, key_scales, head_weights, scores, keys_full,
                    keys_empty, queries_full, scores_full, scores_empty, row, first, turns, thread
                )
            elif thread < 384:
                score_2(
                    k_start, k_end, logits, skip_below, s, skv, key_scales, head_weights, scores, keys_full,
                    keys_empty, queries_full, scores_full, scores_empty, row, first, turns, thread
                )
            elif thread < 512:
                score_3(
                    k_start, k_end, logits, skip_below, s, skv, key_scales, head_weights, scores, keys_full,
                    keys_empty, queries_full, scores_full, scores_empty, row, first, turns, thread
                )
            elif thread < 544:
                load(
                    q, s, q_stride_s, q_stride_h, weights_words, key_map_rows, scale_map_rows, keys,
                    key_scales, queries, head_weights, keys_full, keys_empty, queries_full, row, first, turns
                )
            else:
                mma(
                    keys, queries, scores, keys_full, keys_empty, queries_full, scores_full, scores_empty,
                    turns
                )
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return lightning_indexer__tilelang_sm100a__prefill_h64_q4_t128_st6_c1_e0
