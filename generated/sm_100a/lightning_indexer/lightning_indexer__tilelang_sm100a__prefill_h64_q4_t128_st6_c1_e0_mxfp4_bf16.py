"""lightning_indexer__tilelang_sm100a__prefill_h64_q4_t128_st6_c1_e0_mxfp4_bf16

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=prefill, heads=64, queries=4, tile=128, stages=6, resident=1, evict=0, kind=mxfp4_bf16.

  load                  mma                   place                 score_0               score_1               score_2               score_3
  warp 16               warp 18               warp 17               warps 0..3            warps 4..7            warps 8..11           warps 12..15
  |======== keys ======>|                     |                     |                     |                     |                     |   keys key_scales, ring of 6; bulk -> tcgen05
  |=================== keys =================>|                     |                     |                     |                     |   keys key_scales, ring of 6; bulk -> threads
  |====== queries =====>|                     |                     |                     |                     |                     |   queries query_scales head_weights, once; bulk -> tcgen05
  |================= queries ================>|                     |                     |                     |                     |   queries query_scales head_weights, once; bulk -> threads
  |============================ queries ===========================>|                     |                     |                     |   queries query_scales head_weights, once; bulk -> threads
  |======================================= queries ======================================>|                     |                     |   queries query_scales head_weights, once; bulk -> threads
  |================================================== queries =================================================>|                     |   queries query_scales head_weights, once; bulk -> threads
  |============================================================= queries ============================================================>|   queries query_scales head_weights, once; bulk -> threads
  |                     |<=== key_factors ====|                     |                     |                     |                     |   key_factors, ring of 4; threads -> tcgen05
  |                     |<== query_factors ===|                     |                     |                     |                     |   query_factors, ring of 2; threads -> tcgen05
  |                     |================= scores_0 ===============>|                     |                     |                     |   scores_0; tcgen05 -> tmem
  |                     |============================ scores_0 ==========================>|                     |                     |   scores_0; tcgen05 -> tmem
  |                     |======================================= scores_1 =====================================>|                     |   scores_1; tcgen05 -> tmem
  |                     |================================================== scores_1 ================================================>|   scores_1; tcgen05 -> tmem

roles
  score_0    threads 0..127  epilogue of products i with i % 2 == 0, part 0 of 2
  score_1    threads 128..255  epilogue of products i with i % 2 == 0, part 1 of 2
  score_2    threads 256..383  epilogue of products i with i % 2 == 1, part 0 of 2
  score_3    threads 384..511  epilogue of products i with i % 2 == 1, part 1 of 2
  load       threads 512..543  key tiles, queries
  place      threads 544..575  scales, as copies to tensor memory read them
  mma        threads 576..607  issues every tcgen05.cp, tcgen05.mma and commit
buffers
  keys       6 stages of 128x64 float4_e2m1x2, shared, 64-byte swizzle
  key_scales 6 stages of 128 int32, shared
  queries    256x64 float4_e2m1x2, shared, 64-byte swizzle
  query_scales 256 int32, shared
  head_weights 256 float32, shared
  key_factors 4 stages of 32x4 int32, shared
  query_factors 2 stages of 32x4 int32, shared
  by_key     128x16 uint8, tensor memory
  by_query_0 128x16 uint8, tensor memory
  by_query_1 128x16 uint8, tensor memory
  scores_0   128x128 float32, tensor memory
  scores_1   128x128 float32, tensor memory
  dots_0     128x64 float32, registers of score_0
  weight_0   128x32 float32, registers of score_0
  logit_0    128x1 float32, registers of score_0
  begin_0    128x1 int32, registers of score_0
  size_0     128x1 int32, registers of score_0
  dots_1     128x64 float32, registers of score_1
  weight_1   128x32 float32, registers of score_1
  logit_1    128x1 float32, registers of score_1
  begin_1    128x1 int32, registers of score_1
  size_1     128x1 int32, registers of score_1
  dots_2     128x64 float32, registers of score_2
  weight_2   128x32 float32, registers of score_2
  logit_2    128x1 float32, registers of score_2
  begin_2    128x1 int32, registers of score_2
  size_2     128x1 int32, registers of score_2
  dots_3     128x64 float32, registers of score_3
  weight_3   128x32 float32, registers of score_3
  logit_3    128x1 float32, registers of score_3
  begin_3    128x1 int32, registers of score_3
  size_3     128x1 int32, registers of score_3
pipelines
  keys: load (bulk) ==[keys key_scales: 6-slot ring]==> mma (tcgen05), place (threads)
    full  x1, 8704 bytes: load arrive + expect bytes
      mma: wait full, fence after
      place: wait full
    empty x2: load wait empty
      mma: commit -> empty
      place: one lane a warp, arrive empty
  queries: load (bulk) ==[queries query_scales head_weights: once]==> mma (tcgen05), place (threads), score_0 (threads), score_1 (threads), score_2 (threads), score_3 (threads)
    full  x1, 18432 bytes: load arrive + expect bytes
      mma: wait full, fence after
      place: wait full
      score_0: wait full
      score_1: wait full
      score_2: wait full
      score_3: wait full
  key_factors: place (threads) ==[key_factors: 4-slot ring]==> mma (tcgen05)
    full  x1: place fence.proxy.async, one lane a warp, arrive full
      mma: wait full, fence after
    empty x1: place wait empty
      mma: commit -> empty
  query_factors: place (threads) ==[query_factors: 2-slot ring]==> mma (tcgen05)
    full  x1: place fence.proxy.async, one lane a warp, arrive full
      mma: wait full, fence after
    empty x1: place wait empty
      mma: commit -> empty
  scores_0: mma (tcgen05) ==[scores_0: 1-slot ring]==> score_0 (tmem), score_1 (tmem)
    full  x1: mma commit -> full
      score_0: wait full, fence after
      score_1: wait full, fence after
    empty x8: mma wait empty, fence after
      score_0: wait::ld, fence before, one lane a warp, arrive empty
      score_1: wait::ld, fence before, one lane a warp, arrive empty
  scores_1: mma (tcgen05) ==[scores_1: 1-slot ring]==> score_2 (tmem), score_3 (tmem)
    full  x1: mma commit -> full
      score_2: wait full, fence after
      score_3: wait full, fence after
    empty x8: mma wait empty, fence after
      score_2: wait::ld, fence before, one lane a warp, arrive empty
      score_3: wait::ld, fence before, one lane a warp, arrive empty
totals: 608 threads, 73960 of 232448 bytes of shared memory, 268 of 512 tensor-memory columns, grid (ceildiv(s, 4), splits)
"""
import tilelang.language as T
from tilelang.layout import make_half_bank_swizzled_layout

from dsl_kernels.device.tilelang import boxes, tcgen05, tcgen05_pairs, warps
from dsl_kernels.kernels.lightning_indexer import tilelang as leaf
from dsl_kernels.kernels.lightning_indexer import tilelang_sm100 as leaf_sm100

PASS_CONFIGS = leaf.PASS_CONFIGS

HEADS = 64  # index heads
QUERIES = 4  # decode: most queries per sequence; prefill: query rows per CTA
TILE = 128  # keys per tile
STAGES = 6  # key tiles in flight
KEY_BYTES = 64
COLUMNS = 128
ROWS_PER_PRODUCT = 2


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
    for i in T.unroll(1):
        last_row = T.min(row + i, s - 1)
        first_key = T.max(k_start[last_row], 0)
        end_key = T.min(k_end[last_row], skv)
        end_to_score = T.if_then_else((row + i < s) & (end_key - first_key > skip_below), end_key, 0)
        begin[i] = first_key
        size[i] = T.max(end_to_score - first_key, 0)


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
def store_row(logits, logit, begin, size, row, key, compressed, thread):
    """Store the logit of this thread's key and row `row`, the `j`-th of its group, if the row has the key."""
    place = key + thread - begin[0]
    # One comparison is enough: unsigned, a key before the window is also far past its end.
    if warps.below(T.cast(place, "uint32"), T.cast(size[0], "uint32")):
        logits[row, place + begin[0] * (1 - compressed)] = logit[0]


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
            weight[4 * quad + part] = head_weights[
                head_weights_slot, (ROWS_PER_PRODUCT * HEADS // 4 + quad) * 4 + part
            ]


@T.macro
def load_weights_first_160(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[
                head_weights_slot, ((ROWS_PER_PRODUCT * HEADS + 32) // 4 + quad) * 4 + part
            ]


@T.macro
def load_weights_first_192(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[
                head_weights_slot, ((ROWS_PER_PRODUCT + 1) * HEADS // 4 + quad) * 4 + part
            ]


@T.macro
def load_weights_first_224(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[
                head_weights_slot, (((ROWS_PER_PRODUCT + 1) * HEADS + 32) // 4 + quad) * 4 + part
            ]


@T.macro
def place_factors_from(factors, factors_slot, scales, scales_slot, first, lane):
    """Like `place_factors`, of the 128 rows from `first` on."""
    for column in T.unroll(4):
        factors[factors_slot, lane, column] = scales[scales_slot, first + column * 32 + lane]


@T.macro
def place_factors(factors, factors_slot, scales, scales_slot, lane):
    """Scales of rows r, r + 32, ... side by side in row r, as copies to tensor memory read them.

    Of fewer than 128 rows the scales come again: products do not look at them.
    """
    for column in T.unroll(4):
        factors[factors_slot, lane, column] = scales[scales_slot, T.truncmod(column * 32, TILE) + lane]


@T.macro
def score_0(
    k_start, k_end, logits, skip_below, compressed, s, skv, head_weights, scores_0, queries_full,
    scores_0_full, scores_0_empty, row: T.Ref, first: T.Ref, turns: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 0, part 0 of 2."""
    dots_0 = T.alloc_local((HEADS,), "float32")
    weight_0 = T.alloc_local((32,), "float32")
    logit_0 = T.alloc_local((1,), "float32")
    begin_0 = T.alloc_local((1,), "int32")
    size_0 = T.alloc_local((1,), "int32")
    worker = thread
    use = T.alloc_var("int32", init=0)
    load_windows(begin_0, size_0, k_start, k_end, row, s, skv, skip_below)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
    for it in T.serial(turns):
        T.mbarrier_wait_parity(scores_0_full[0], use & 1)
        T.tcgen05_after_thread_sync()
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_0, scores_0, 0, 0, HEADS, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(scores_0_empty[0])
        use = use + 1
        load_weights_first_0(weight_0, head_weights, 0)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
        load_weights_first_32(weight_0, head_weights, 0)
        leaf_sm100.weigh_one(logit_0, dots_0, 1, weight_0, False)
        store_row(logits, logit_0, begin_0, size_0, row, (first + it) * TILE, compressed, worker)


@T.macro
def score_1(
    k_start, k_end, logits, skip_below, compressed, s, skv, head_weights, scores_0, queries_full,
    scores_0_full, scores_0_empty, row: T.Ref, first: T.Ref, turns: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 0, part 1 of 2."""
    dots_1 = T.alloc_local((HEADS,), "float32")
    weight_1 = T.alloc_local((32,), "float32")
    logit_1 = T.alloc_local((1,), "float32")
    begin_1 = T.alloc_local((1,), "int32")
    size_1 = T.alloc_local((1,), "int32")
    worker = thread - 128
    use = T.alloc_var("int32", init=0)
    load_windows(begin_1, size_1, k_start, k_end, row + 1, s, skv, skip_below)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
    for it in T.serial(turns):
        T.mbarrier_wait_parity(scores_0_full[0], use & 1)
        T.tcgen05_after_thread_sync()
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_1, scores_0, 0, HEADS, HEADS, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(scores_0_empty[0])
        use = use + 1
        load_weights_first_64(weight_1, head_weights, 0)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
        load_weights_first_96(weight_1, head_weights, 0)
        leaf_sm100.weigh_one(logit_1, dots_1, 1, weight_1, False)
        store_row(logits, logit_1, begin_1, size_1, row + 1, (first + it) * TILE, compressed, worker)


@T.macro
def score_2(
    k_start, k_end, logits, skip_below, compressed, s, skv, head_weights, scores_1, queries_full,
    scores_1_full, scores_1_empty, row: T.Ref, first: T.Ref, turns: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 1, part 0 of 2."""
    dots_2 = T.alloc_local((HEADS,), "float32")
    weight_2 = T.alloc_local((32,), "float32")
    logit_2 = T.alloc_local((1,), "float32")
    begin_2 = T.alloc_local((1,), "int32")
    size_2 = T.alloc_local((1,), "int32")
    worker = thread - 256
    use = T.alloc_var("int32", init=0)
    load_windows(begin_2, size_2, k_start, k_end, row + 2, s, skv, skip_below)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
    for it in T.serial(turns):
        T.mbarrier_wait_parity(scores_1_full[0], use & 1)
        T.tcgen05_after_thread_sync()
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_2, scores_1, 0, 0, HEADS, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(scores_1_empty[0])
        use = use + 1
        load_weights_first_128(weight_2, head_weights, 0)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_2, dots_2, 0, weight_2, True)
        load_weights_first_160(weight_2, head_weights, 0)
        leaf_sm100.weigh_one(logit_2, dots_2, 1, weight_2, False)
        store_row(
            logits, logit_2, begin_2, size_2, row + ROWS_PER_PRODUCT, (first + it) * TILE, compressed, worker
        )


@T.macro
def score_3(
    k_start, k_end, logits, skip_below, compressed, s, skv, head_weights, scores_1, queries_full,
    scores_1_full, scores_1_empty, row: T.Ref, first: T.Ref, turns: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 1, part 1 of 2."""
    dots_3 = T.alloc_local((HEADS,), "float32")
    weight_3 = T.alloc_local((32,), "float32")
    logit_3 = T.alloc_local((1,), "float32")
    begin_3 = T.alloc_local((1,), "int32")
    size_3 = T.alloc_local((1,), "int32")
    worker = thread - 384
    use = T.alloc_var("int32", init=0)
    load_windows(begin_3, size_3, k_start, k_end, row + 3, s, skv, skip_below)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
    for it in T.serial(turns):
        T.mbarrier_wait_parity(scores_1_full[0], use & 1)
        T.tcgen05_after_thread_sync()
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_3, scores_1, 0, HEADS, HEADS, worker)
        T.call_extern("handle", "tl::fence_view_async_tmem_load")
        T.tcgen05_before_thread_sync()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(scores_1_empty[0])
        use = use + 1
        load_weights_first_192(weight_3, head_weights, 0)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_3, dots_3, 0, weight_3, True)
        load_weights_first_224(weight_3, head_weights, 0)
        leaf_sm100.weigh_one(logit_3, dots_3, 1, weight_3, False)
        store_row(
            logits, logit_3, begin_3, size_3, row + (ROWS_PER_PRODUCT + 1), (first + it) * TILE, compressed,
            worker
        )


@T.macro
def load(
    q, s, index_heads, q_stride_s, q_stride_h, factor_map_rows, weight_map_rows, key_map_rows, scale_map_rows,
    keys, key_scales, queries, query_scales, head_weights, keys_full, keys_empty, queries_full, row: T.Ref,
    first: T.Ref, turns: T.Ref
):
    """Key tiles, queries."""
    if turns > 0:
        # queries: filled once, so its slot is free
        boxes.fold_box(
            boxes.box_map(q, "UINT8", (64, index_heads, s,), (q_stride_h, q_stride_s,), (64, 64, 4), "64B"),
            "UINT8", queries, 0, queries_full, 0, (row, 0, 0)
        )
        for i in T.serial(QUERIES):
            T.tma_copy(
                factor_map_rows[row + i : row + i + 1, 0 : HEADS],
                query_scales[0, i * HEADS : i * HEADS + HEADS], barrier=queries_full[0]
            )
            T.tma_copy(
                weight_map_rows[row + i : row + i + 1, 0 : HEADS],
                head_weights[0, i * HEADS : i * HEADS + HEADS], barrier=queries_full[0]
            )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(queries_full[0])
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_empty[it % STAGES], ((it // STAGES) & 1) ^ 1)
        key = (first + it) * TILE
        T.tma_copy(
            key_map_rows[key : key + TILE, 0 : KEY_BYTES], keys[it % STAGES, :, :],
            barrier=keys_full[it % STAGES]
        )
        T.tma_copy(
            scale_map_rows[0, key : key + TILE], key_scales[it % STAGES, :], barrier=keys_full[it % STAGES]
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_full[it % STAGES])


@T.macro
def place(
    key_scales, query_scales, key_factors, query_factors, keys_full, keys_empty, queries_full,
    key_factors_full, key_factors_empty, query_factors_full, query_factors_empty, turns: T.Ref, lane
):
    """Scales, as copies to tensor memory read them."""
    fill = T.alloc_var("int32", init=0)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
        for product in T.serial(2):
            T.mbarrier_wait_parity(query_factors_empty[fill % 2], ((fill // 2) & 1) ^ 1)
            place_factors_from(
                query_factors, fill % 2, query_scales, 0, product * (ROWS_PER_PRODUCT * HEADS), lane
            )
            T.fence_proxy_async()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(query_factors_full[fill % 2])
            fill = fill + 1
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        T.mbarrier_wait_parity(key_factors_empty[it % 4], ((it // 4) & 1) ^ 1)
        place_factors(key_factors, it % 4, key_scales, it % STAGES, lane)
        T.fence_proxy_async()
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(key_factors_full[it % 4])
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])


@T.macro
def mma(
    keys, queries, key_factors, query_factors, by_key, by_query_0, by_query_1, scores_0, scores_1, keys_full,
    keys_empty, queries_full, key_factors_full, key_factors_empty, query_factors_full, query_factors_empty,
    scores_0_full, scores_0_empty, scores_1_full, scores_1_empty, turns: T.Ref
):
    """Issues every tcgen05.cp, tcgen05.mma and commit."""
    taken = T.alloc_var("int32", init=0)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
        T.tcgen05_after_thread_sync()
        T.mbarrier_wait_parity(query_factors_full[taken % 2], (taken // 2) & 1)
        T.tcgen05_after_thread_sync()
        tcgen05.copy_factors(by_query_0, 0, query_factors, taken % 2)
        T.tcgen05_mma_arrive(query_factors_empty[taken % 2])
        taken = taken + 1
        T.mbarrier_wait_parity(query_factors_full[taken % 2], (taken // 2) & 1)
        T.tcgen05_after_thread_sync()
        tcgen05.copy_factors(by_query_1, 0, query_factors, taken % 2)
        T.tcgen05_mma_arrive(query_factors_empty[taken % 2])
        taken = taken + 1
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        T.tcgen05_after_thread_sync()
        T.mbarrier_wait_parity(key_factors_full[it % 4], (it // 4) & 1)
        T.tcgen05_after_thread_sync()
        tcgen05.copy_factors(by_key, 0, key_factors, it % 4)
        T.mbarrier_wait_parity(scores_0_empty[0], (it & 1) ^ 1)
        T.tcgen05_after_thread_sync()
        # S[keys, heads] = K Q^T, scaled by blocks of 32
        tcgen05_pairs.multiply_pairs(
            keys, it % STAGES, queries, 0, scores_0, 0, by_key, by_query_0, COLUMNS, True
        )
        T.tcgen05_mma_arrive(scores_0_full[0])
        T.mbarrier_wait_parity(scores_1_empty[0], (it & 1) ^ 1)
        T.tcgen05_after_thread_sync()
        # S[keys, heads] = K Q^T, scaled by blocks of 32
        tcgen05_pairs.multiply_pairs(
            keys, it % STAGES, queries, 0, scores_1, 0, by_key, by_query_1, COLUMNS, True,
            first=ROWS_PER_PRODUCT * HEADS
        )
        T.tcgen05_mma_arrive(scores_1_full[0])
        T.tcgen05_mma_arrive(key_factors_empty[it % 4])
        T.tcgen05_mma_arrive(keys_empty[it % STAGES])


def program():
    s = T.dynamic("s")
    index_heads = T.dynamic("index_heads")
    q_stride_s = T.dynamic("q_stride_s")
    q_stride_h = T.dynamic("q_stride_h")
    q_scales_stride = T.dynamic("q_scales_stride")
    skv = T.dynamic("skv")
    k_stride = T.dynamic("k_stride")
    weights_stride = T.dynamic("weights_stride")
    stride = T.dynamic("stride")
    logits_stride = T.dynamic("logits_stride")

    @T.prim_func
    def lightning_indexer__tilelang_sm100a__prefill_h64_q4_t128_st6_c1_e0_mxfp4_bf16(
        q: T.StridedTensor((s, index_heads, 64), (q_stride_s, q_stride_h, 1), "uint8"),
        q_scales: T.StridedTensor((s, index_heads), (q_scales_stride, 1), "int32"),
        k: T.StridedTensor((skv, 64), (k_stride, 1), "uint8"),
        k_scales: T.Tensor((skv,), "int32"),
        weights: T.StridedTensor((s, index_heads), (weights_stride, 1), "float32"),
        k_start: T.Tensor((s,), "int32"),
        k_end: T.Tensor((s,), "int32"),
        logits: T.StridedTensor((s, stride), (logits_stride, 1), "bfloat16"),
        skip_below: T.int32,
        compressed: T.int32,
        splits: T.int32,
    ):
        with T.Kernel(T.ceildiv(s, 4), splits, threads=608) as (block, split):
            factor_map_rows = T.view(q_scales, (s, index_heads), "int32", strides=(q_scales_stride, 1))
            weight_map_rows = T.view(weights, (s, index_heads), "float32", strides=(weights_stride, 1))
            key_map_rows = T.view(k, (skv, 64), "uint8", strides=((k_stride) // 1, 1))
            scale_map_rows = T.view(k_scales, (1, skv), "int32", strides=(4, 1))
            T.import_source(leaf_sm100.SOURCE + warps.SOURCE + tcgen05.SOURCE + tcgen05_pairs.SOURCE)
            keys = T.alloc_shared((STAGES, TILE, KEY_BYTES), "uint8")
            key_scales = T.alloc_shared((STAGES, TILE), "int32")
            queries = T.alloc_shared((1, QUERIES * HEADS, KEY_BYTES), "uint8")
            query_scales = T.alloc_shared((1, QUERIES * HEADS), "int32")
            head_weights = T.alloc_shared((1, QUERIES * HEADS), "float32")
            key_factors = T.alloc_shared((4, 32, 4), "int32")
            query_factors = T.alloc_shared((2, 32, 4), "int32")
            by_key = T.alloc_tmem((128, 4), "float32")
            by_query_0 = T.alloc_tmem((128, 4), "float32")
            by_query_1 = T.alloc_tmem((128, 4), "float32")
            scores_0 = T.alloc_tmem((128, COLUMNS), "float32")
            scores_1 = T.alloc_tmem((128, COLUMNS), "float32")
            T.annotate_layout({b: make_half_bank_swizzled_layout(b) for b in (keys, queries)})
            keys_full = T.alloc_barrier([1] * STAGES)
            keys_empty = T.alloc_barrier([2] * STAGES)
            queries_full = T.alloc_barrier([1])
            key_factors_full = T.alloc_barrier([1] * 4)
            key_factors_empty = T.alloc_barrier([1] * 4)
            query_factors_full = T.alloc_barrier([1] * 2)
            query_factors_empty = T.alloc_barrier([1] * 2)
            scores_0_full = T.alloc_barrier([1])
            scores_0_empty = T.alloc_barrier([8])
            scores_1_full = T.alloc_barrier([1])
            scores_1_empty = T.alloc_barrier([8])

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
                    k_start, k_end, logits, skip_below, compressed, s, skv, head_weights, scores_0,
                    queries_full, scores_0_full, scores_0_empty, row, first, turns, thread
                )
            elif thread < 256:
                score_1(
                    k_start, k_end, logits, skip_below, compressed, s, skv, head_weights, scores_0,
                    queries_full, scores_0_full, scores_0_empty, row, first, turns, thread
                )
            elif thread < 384:
                score_2(
                    k_start, k_end, logits, skip_below, compressed, s, skv, head_weights, scores_1,
                    queries_full, scores_1_full, scores_1_empty, row, first, turns, thread
                )
            elif thread < 512:
                score_3(
                    k_start, k_end, logits, skip_below, compressed, s, skv, head_weights, scores_1,
                    queries_full, scores_1_full, scores_1_empty, row, first, turns, thread
                )
            elif thread < 544:
                load(
                    q, s, index_heads, q_stride_s, q_stride_h, factor_map_rows, weight_map_rows, key_map_rows,
                    scale_map_rows, keys, key_scales, queries, query_scales, head_weights, keys_full,
                    keys_empty, queries_full, row, first, turns
                )
            elif thread < 576:
                place(
                    key_scales, query_scales, key_factors, query_factors, keys_full, keys_empty, queries_full,
                    key_factors_full, key_factors_empty, query_factors_full, query_factors_empty, turns, lane
                )
            else:
                mma(
                    keys, queries, key_factors, query_factors, by_key, by_query_0, by_query_1, scores_0,
                    scores_1, keys_full, keys_empty, queries_full, key_factors_full, key_factors_empty,
                    query_factors_full, query_factors_empty, scores_0_full, scores_0_empty, scores_1_full,
                    scores_1_empty, turns
                )
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return lightning_indexer__tilelang_sm100a__prefill_h64_q4_t128_st6_c1_e0_mxfp4_bf16
