"""lightning_indexer__tilelang_sm100a__decode_h64_q16_t128_st8_c1_e0_mxfp4_bf16

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=64, queries=16, tile=128, stages=8, resident=1, evict=0, kind=mxfp4_bf16.

  load                  mma                   place                 score_0               score_1               score_2               score_3
  warp 16               warp 18               warp 17               warps 0..3            warps 4..7            warps 8..11           warps 12..15
  |======== keys ======>|                     |                     |                     |                     |                     |   keys key_scales, ring of 8; bulk -> tcgen05
  |=================== keys =================>|                     |                     |                     |                     |   keys key_scales, ring of 8; bulk -> threads
  |====== queries =====>|                     |                     |                     |                     |                     |   queries query_scales head_weights; bulk -> tcgen05
  |================= queries ================>|                     |                     |                     |                     |   queries query_scales head_weights; bulk -> threads
  |============================ queries ===========================>|                     |                     |                     |   queries query_scales head_weights; bulk -> threads
  |======================================= queries ======================================>|                     |                     |   queries query_scales head_weights; bulk -> threads
  |================================================== queries =================================================>|                     |   queries query_scales head_weights; bulk -> threads
  |============================================================= queries ============================================================>|   queries query_scales head_weights; bulk -> threads
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
  keys       8 stages of 128x64 float4_e2m1x2, shared, 64-byte swizzle
  key_scales 8 stages of 128 int32, shared
  queries    1024x64 float4_e2m1x2, shared, 64-byte swizzle
  query_scales 1024 int32, shared
  head_weights 1024 float32, shared
  key_factors 4 stages of 32x4 int32, shared
  query_factors 2 stages of 32x4 int32, shared
  by_key     128x16 uint8, tensor memory
  by_query_0 128x16 uint8, tensor memory
  by_query_1 128x16 uint8, tensor memory
  by_query_2 128x16 uint8, tensor memory
  by_query_3 128x16 uint8, tensor memory
  by_query_4 128x16 uint8, tensor memory
  by_query_5 128x16 uint8, tensor memory
  by_query_6 128x16 uint8, tensor memory
  by_query_7 128x16 uint8, tensor memory
  scores_0   128x128 float32, tensor memory
  scores_1   128x128 float32, tensor memory
  dots_0     128x64 float32, registers of score_0
  weight_0   128x32 float32, registers of score_0
  logit_0    128x1 float32, registers of score_0
  length_0   128x1 int32, registers of score_0
  dots_1     128x64 float32, registers of score_1
  weight_1   128x32 float32, registers of score_1
  logit_1    128x1 float32, registers of score_1
  length_1   128x1 int32, registers of score_1
  dots_2     128x64 float32, registers of score_2
  weight_2   128x32 float32, registers of score_2
  logit_2    128x1 float32, registers of score_2
  length_2   128x1 int32, registers of score_2
  dots_3     128x64 float32, registers of score_3
  weight_3   128x32 float32, registers of score_3
  logit_3    128x1 float32, registers of score_3
  length_3   128x1 int32, registers of score_3
pipelines
  keys: load (bulk) ==[keys key_scales: 8-slot ring]==> mma (tcgen05), place (threads)
    full  x1, 8704 bytes: load arrive + expect bytes
      mma: wait full, fence after
      place: wait full
    empty x2: load wait empty
      mma: commit -> empty
      place: one lane a warp, arrive empty
  queries: load (bulk) ==[queries query_scales head_weights: 1-slot ring]==> mma (tcgen05), place (threads), score_0 (threads), score_1 (threads), score_2 (threads), score_3 (threads)
    full  x1, 73728 bytes: load arrive + expect bytes
      mma: wait full, fence after
      place: wait full
      score_0: wait full
      score_1: wait full
      score_2: wait full
      score_3: wait full
    empty x18: load wait empty
      mma: commit -> empty
      place: one lane a warp, arrive empty
      score_0: one lane a warp, arrive empty
      score_1: one lane a warp, arrive empty
      score_2: one lane a warp, arrive empty
      score_3: one lane a warp, arrive empty
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
totals: 608 threads, 146704 of 232448 bytes of shared memory, 292 of 512 tensor-memory columns, grid (ctas)
"""
import tilelang.language as T
from tilelang.layout import make_half_bank_swizzled_layout

from dsl_kernels.device.tilelang import tcgen05, tcgen05_pairs, warps
from dsl_kernels.kernels.lightning_indexer import tilelang as leaf
from dsl_kernels.kernels.lightning_indexer import tilelang_sm100 as leaf_sm100

PASS_CONFIGS = leaf.PASS_CONFIGS

HEADS = 64  # index heads
QUERIES = 16  # decode: most queries per sequence; prefill: query rows per CTA
TILE = 128  # keys per tile
STAGES = 8  # key tiles in flight
TILE_PAGES = 2
KEY_BYTES = 64
ROWS_PER_PRODUCT = 2
COLUMNS = 128
PAGE = 64
SCALE_WORD = 1024


@T.macro
def table_entries(entry: T.Ref, block_table, row, first, step, last, lane):
    """Read a page-table entry of row `row` per lane, for 32 / pages tiles from `first` on, `step` apart.

    A lane whose entry is past `last` reads entry `last`.
    """
    entry = block_table[
        row,
        T.min((first + T.truncdiv(lane, TILE_PAGES) * step) * TILE_PAGES + T.truncmod(lane, TILE_PAGES), last)
    ]


@T.macro
def load_lengths(length, seq_lens, seq, next_n, skip_below, thread):
    """Lane i reads the keys to score of query i: 0 past next_n and for a row that selection takes whole."""
    query = T.truncmod(thread, 32)
    length[0] = 0
    if query < next_n:
        found = seq_lens[seq, query]
        if found > skip_below:
            length[0] = found


@T.macro
def load_weights(weight, head_weights, head_weights_slot, first):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[
                head_weights_slot, (T.truncdiv(first, 4) + quad) * 4 + part
            ]


@T.macro
def store_query(logits, logit, length, seq, query, key, thread):
    """Store the logit of this thread's key and a query, if the query has the key."""
    at = key + thread
    if at < warps.shuffle(length[0], query):
        logits[seq, query, at] = logit[0]


@T.macro
def table_entries_step_1(entry: T.Ref, block_table, row, first, last, lane):
    """Read a page-table entry of row `row` per lane, for 32 / pages tiles from `first` on, `step` apart.

    A lane whose entry is past `last` reads entry `last`.
    """
    entry = block_table[
        row, T.min((first + T.truncdiv(lane, TILE_PAGES)) * TILE_PAGES + T.truncmod(lane, TILE_PAGES), last)
    ]


@T.macro
def entry_of(page: T.Ref, entry, place):
    """The entry that lane `place` holds."""
    page = warps.shuffle(entry, place)


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
    seq_lens, logits, skip_below, b, next_n, head_weights, scores_0, queries_full, queries_empty,
    scores_0_full, scores_0_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref,
    turn: T.Ref, fresh: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 0, part 0 of 2."""
    dots_0 = T.alloc_local((HEADS,), "float32")
    weight_0 = T.alloc_local((32,), "float32")
    logit_0 = T.alloc_local((1,), "float32")
    length_0 = T.alloc_local((1,), "int32")
    worker = thread
    use = T.alloc_var("int32", init=0)
    before = T.alloc_var("int32", init=0)
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, TILE)
        if fresh:
            if it > 0:
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(queries_empty[0])
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[0], turn & 1)
            load_lengths(length_0, seq_lens, seq, next_n, skip_below, worker)
        for product in T.serial(T.truncmod(before, 2), leaf.ceildiv(next_n, ROWS_PER_PRODUCT), 2):
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
            load_weights(weight_0, head_weights, 0, product * ROWS_PER_PRODUCT * HEADS)
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
            load_weights(weight_0, head_weights, 0, product * ROWS_PER_PRODUCT * HEADS + 32)
            leaf_sm100.weigh_one(logit_0, dots_0, 1, weight_0, False)
            store_query(logits, logit_0, length_0, seq, product * ROWS_PER_PRODUCT, tile * TILE, worker)
        before = before + leaf.ceildiv(next_n, ROWS_PER_PRODUCT)
        tile = tile + step


@T.macro
def score_1(
    seq_lens, logits, skip_below, b, next_n, head_weights, scores_0, queries_full, queries_empty,
    scores_0_full, scores_0_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref,
    turn: T.Ref, fresh: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 0, part 1 of 2."""
    dots_1 = T.alloc_local((HEADS,), "float32")
    weight_1 = T.alloc_local((32,), "float32")
    logit_1 = T.alloc_local((1,), "float32")
    length_1 = T.alloc_local((1,), "int32")
    worker = thread - 128
    use = T.alloc_var("int32", init=0)
    before = T.alloc_var("int32", init=0)
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, TILE)
        if fresh:
            if it > 0:
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(queries_empty[0])
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[0], turn & 1)
            load_lengths(length_1, seq_lens, seq, next_n, skip_below, worker)
        for product in T.serial(T.truncmod(before, 2), leaf.ceildiv(next_n, ROWS_PER_PRODUCT), 2):
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
            load_weights(weight_1, head_weights, 0, (product * ROWS_PER_PRODUCT + 1) * HEADS)
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
            load_weights(weight_1, head_weights, 0, (product * ROWS_PER_PRODUCT + 1) * HEADS + 32)
            leaf_sm100.weigh_one(logit_1, dots_1, 1, weight_1, False)
            store_query(logits, logit_1, length_1, seq, product * ROWS_PER_PRODUCT + 1, tile * TILE, worker)
        before = before + leaf.ceildiv(next_n, ROWS_PER_PRODUCT)
        tile = tile + step


@T.macro
def score_2(
    seq_lens, logits, skip_below, b, next_n, head_weights, scores_1, queries_full, queries_empty,
    scores_1_full, scores_1_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref,
    turn: T.Ref, fresh: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 1, part 0 of 2."""
    dots_2 = T.alloc_local((HEADS,), "float32")
    weight_2 = T.alloc_local((32,), "float32")
    logit_2 = T.alloc_local((1,), "float32")
    length_2 = T.alloc_local((1,), "int32")
    worker = thread - 256
    use = T.alloc_var("int32", init=0)
    before = T.alloc_var("int32", init=0)
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, TILE)
        if fresh:
            if it > 0:
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(queries_empty[0])
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[0], turn & 1)
            load_lengths(length_2, seq_lens, seq, next_n, skip_below, worker)
        for product in T.serial(T.truncmod(before + 1, 2), leaf.ceildiv(next_n, ROWS_PER_PRODUCT), 2):
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
            load_weights(weight_2, head_weights, 0, product * ROWS_PER_PRODUCT * HEADS)
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_2, dots_2, 0, weight_2, True)
            load_weights(weight_2, head_weights, 0, product * ROWS_PER_PRODUCT * HEADS + 32)
            leaf_sm100.weigh_one(logit_2, dots_2, 1, weight_2, False)
            store_query(logits, logit_2, length_2, seq, product * ROWS_PER_PRODUCT, tile * TILE, worker)
        before = before + leaf.ceildiv(next_n, ROWS_PER_PRODUCT)
        tile = tile + step


@T.macro
def score_3(
    seq_lens, logits, skip_below, b, next_n, head_weights, scores_1, queries_full, queries_empty,
    scores_1_full, scores_1_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref,
    turn: T.Ref, fresh: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 1, part 1 of 2."""
    dots_3 = T.alloc_local((HEADS,), "float32")
    weight_3 = T.alloc_local((32,), "float32")
    logit_3 = T.alloc_local((1,), "float32")
    length_3 = T.alloc_local((1,), "int32")
    worker = thread - 384
    use = T.alloc_var("int32", init=0)
    before = T.alloc_var("int32", init=0)
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, TILE)
        if fresh:
            if it > 0:
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(queries_empty[0])
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[0], turn & 1)
            load_lengths(length_3, seq_lens, seq, next_n, skip_below, worker)
        for product in T.serial(T.truncmod(before + 1, 2), leaf.ceildiv(next_n, ROWS_PER_PRODUCT), 2):
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
            load_weights(weight_3, head_weights, 0, (product * ROWS_PER_PRODUCT + 1) * HEADS)
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_3, dots_3, 0, weight_3, True)
            load_weights(weight_3, head_weights, 0, (product * ROWS_PER_PRODUCT + 1) * HEADS + 32)
            leaf_sm100.weigh_one(logit_3, dots_3, 1, weight_3, False)
            store_query(logits, logit_3, length_3, seq, product * ROWS_PER_PRODUCT + 1, tile * TILE, worker)
        before = before + leaf.ceildiv(next_n, ROWS_PER_PRODUCT)
        tile = tile + step


@T.macro
def load(
    seq_lens, block_table, skip_below, sharing, b, next_n, k_cache_stride, query_map_rows, factor_map_rows,
    weight_map_rows, key_map_rows, k_cache_words, keys, key_scales, queries, query_scales, head_weights,
    keys_full, keys_empty, queries_full, queries_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref,
    turns: T.Ref, turn: T.Ref, fresh: T.Ref, entry: T.Ref, ahead: T.Ref, lane
):
    """Key tiles, queries."""
    held = T.alloc_var("int32", init=0)
    page = T.alloc_var("int32", init=0)
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, TILE)
        last = leaf.ceildiv(need, PAGE) - 1
        if fresh:
            turn = turn + 1
            held = 0
            if step == 1:
                table_entries_step_1(entry, block_table, T.truncdiv(seq, sharing), tile, last, lane)
                table_entries_step_1(ahead, block_table, T.truncdiv(seq, sharing), tile + 16, last, lane)
            T.mbarrier_wait_parity(queries_empty[0], (turn & 1) ^ 1)
            for i in T.serial(leaf.ceildiv(next_n, ROWS_PER_PRODUCT) * ROWS_PER_PRODUCT):
                at = T.min(i, next_n - 1)
                T.tma_copy(
                    query_map_rows[seq : seq + 1, at : at + 1, 0 : HEADS, 0 : KEY_BYTES],
                    queries[0, i * HEADS : i * HEADS + HEADS, :], barrier=queries_full[0]
                )
                T.tma_copy(
                    factor_map_rows[seq * next_n + at : seq * next_n + at + 1, 0 : HEADS],
                    query_scales[0, i * HEADS : i * HEADS + HEADS], barrier=queries_full[0]
                )
                T.tma_copy(
                    weight_map_rows[seq : seq + 1, at : at + 1, 0 : HEADS],
                    head_weights[0, i * HEADS : i * HEADS + HEADS], barrier=queries_full[0]
                )
            if T.shuffle_elect(32):
                T.mbarrier_arrive(queries_full[0])
        if held == 16:
            held = 0
            entry = ahead
            table_entries(ahead, block_table, T.truncdiv(seq, sharing), tile + 16 * step, step, last, lane)
        T.mbarrier_wait_parity(keys_empty[it % STAGES], ((it // STAGES) & 1) ^ 1)
        for p in T.unroll(TILE_PAGES):
            entry_of(page, entry, held * TILE_PAGES + T.min(p, last - tile * TILE_PAGES))
            T.tma_copy(
                key_map_rows[
                    page * T.truncdiv(
                        k_cache_stride, KEY_BYTES
                    ) : page * T.truncdiv(k_cache_stride, KEY_BYTES) + PAGE,
                    0 : KEY_BYTES
                ],
                keys[it % STAGES, p * PAGE : p * PAGE + PAGE, :], barrier=keys_full[it % STAGES]
            )
            T.tma_copy(
                k_cache_words[page, SCALE_WORD : SCALE_WORD + PAGE],
                key_scales[it % STAGES, p * PAGE : p * PAGE + PAGE], barrier=keys_full[it % STAGES]
            )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_full[it % STAGES])
        held = held + 1
        tile = tile + step


@T.macro
def place(
    seq_lens, skip_below, b, next_n, key_scales, query_scales, key_factors, query_factors, keys_full,
    keys_empty, queries_full, queries_empty, key_factors_full, key_factors_empty, query_factors_full,
    query_factors_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref, turn: T.Ref,
    fresh: T.Ref, lane
):
    """Scales, as copies to tensor memory read them."""
    fill = T.alloc_var("int32", init=0)
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, TILE)
        if fresh:
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[0], turn & 1)
            for product in T.serial(leaf.ceildiv(next_n, ROWS_PER_PRODUCT)):
                T.mbarrier_wait_parity(query_factors_empty[fill % 2], ((fill // 2) & 1) ^ 1)
                place_factors_from(
                    query_factors, fill % 2, query_scales, 0, product * (ROWS_PER_PRODUCT * HEADS), lane
                )
                T.fence_proxy_async()
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(query_factors_full[fill % 2])
                fill = fill + 1
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(queries_empty[0])
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
        tile = tile + step


@T.macro
def mma(
    seq_lens, skip_below, b, next_n, keys, queries, key_factors, query_factors, by_key, by_query_0,
    by_query_1, by_query_2, by_query_3, by_query_4, by_query_5, by_query_6, by_query_7, scores_0, scores_1,
    keys_full, keys_empty, queries_full, queries_empty, key_factors_full, key_factors_empty,
    query_factors_full, query_factors_empty, scores_0_full, scores_0_empty, scores_1_full, scores_1_empty,
    seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref, turn: T.Ref, fresh: T.Ref
):
    """Issues every tcgen05.cp, tcgen05.mma and commit."""
    taken = T.alloc_var("int32", init=0)
    issued = T.alloc_var("int32", init=0)
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, TILE)
        if fresh:
            if it > 0:
                T.tcgen05_mma_arrive(queries_empty[0])
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[0], turn & 1)
            T.tcgen05_after_thread_sync()
            if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 0:
                T.mbarrier_wait_parity(query_factors_full[taken % 2], (taken // 2) & 1)
                T.tcgen05_after_thread_sync()
                tcgen05.copy_factors(by_query_0, 0, query_factors, taken % 2)
                T.tcgen05_mma_arrive(query_factors_empty[taken % 2])
                taken = taken + 1
            if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 1:
                T.mbarrier_wait_parity(query_factors_full[taken % 2], (taken // 2) & 1)
                T.tcgen05_after_thread_sync()
                tcgen05.copy_factors(by_query_1, 0, query_factors, taken % 2)
                T.tcgen05_mma_arrive(query_factors_empty[taken % 2])
                taken = taken + 1
            if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 2:
                T.mbarrier_wait_parity(query_factors_full[taken % 2], (taken // 2) & 1)
                T.tcgen05_after_thread_sync()
                tcgen05.copy_factors(by_query_2, 0, query_factors, taken % 2)
                T.tcgen05_mma_arrive(query_factors_empty[taken % 2])
                taken = taken + 1
            if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 3:
                T.mbarrier_wait_parity(query_factors_full[taken % 2], (taken // 2) & 1)
                T.tcgen05_after_thread_sync()
                tcgen05.copy_factors(by_query_3, 0, query_factors, taken % 2)
                T.tcgen05_mma_arrive(query_factors_empty[taken % 2])
                taken = taken + 1
            if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 4:
                T.mbarrier_wait_parity(query_factors_full[taken % 2], (taken // 2) & 1)
                T.tcgen05_after_thread_sync()
                tcgen05.copy_factors(by_query_4, 0, query_factors, taken % 2)
                T.tcgen05_mma_arrive(query_factors_empty[taken % 2])
                taken = taken + 1
            if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 5:
                T.mbarrier_wait_parity(query_factors_full[taken % 2], (taken // 2) & 1)
                T.tcgen05_after_thread_sync()
                tcgen05.copy_factors(by_query_5, 0, query_factors, taken % 2)
                T.tcgen05_mma_arrive(query_factors_empty[taken % 2])
                taken = taken + 1
            if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 6:
                T.mbarrier_wait_parity(query_factors_full[taken % 2], (taken // 2) & 1)
                T.tcgen05_after_thread_sync()
                tcgen05.copy_factors(by_query_6, 0, query_factors, taken % 2)
                T.tcgen05_mma_arrive(query_factors_empty[taken % 2])
                taken = taken + 1
            if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 7:
                T.mbarrier_wait_parity(query_factors_full[taken % 2], (taken // 2) & 1)
                T.tcgen05_after_thread_sync()
                tcgen05.copy_factors(by_query_7, 0, query_factors, taken % 2)
                T.tcgen05_mma_arrive(query_factors_empty[taken % 2])
                taken = taken + 1
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        T.tcgen05_after_thread_sync()
        T.mbarrier_wait_parity(key_factors_full[it % 4], (it // 4) & 1)
        T.tcgen05_after_thread_sync()
        tcgen05.copy_factors(by_key, 0, key_factors, it % 4)
        if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 0:
            if T.truncmod(issued, 2) == 0:
                T.mbarrier_wait_parity(scores_0_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_0, 0, by_key, by_query_0, COLUMNS, True
                )
                T.tcgen05_mma_arrive(scores_0_full[0])
            else:
                T.mbarrier_wait_parity(scores_1_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_1, 0, by_key, by_query_0, COLUMNS, True
                )
                T.tcgen05_mma_arrive(scores_1_full[0])
            issued = issued + 1
        if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 1:
            if T.truncmod(issued, 2) == 0:
                T.mbarrier_wait_parity(scores_0_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_0, 0, by_key, by_query_1, COLUMNS, True,
                    first=ROWS_PER_PRODUCT * HEADS
                )
                T.tcgen05_mma_arrive(scores_0_full[0])
            else:
                T.mbarrier_wait_parity(scores_1_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_1, 0, by_key, by_query_1, COLUMNS, True,
                    first=ROWS_PER_PRODUCT * HEADS
                )
                T.tcgen05_mma_arrive(scores_1_full[0])
            issued = issued + 1
        if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 2:
            if T.truncmod(issued, 2) == 0:
                T.mbarrier_wait_parity(scores_0_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_0, 0, by_key, by_query_2, COLUMNS, True,
                    first=2 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_0_full[0])
            else:
                T.mbarrier_wait_parity(scores_1_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_1, 0, by_key, by_query_2, COLUMNS, True,
                    first=2 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_1_full[0])
            issued = issued + 1
        if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 3:
            if T.truncmod(issued, 2) == 0:
                T.mbarrier_wait_parity(scores_0_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_0, 0, by_key, by_query_3, COLUMNS, True,
                    first=3 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_0_full[0])
            else:
                T.mbarrier_wait_parity(scores_1_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_1, 0, by_key, by_query_3, COLUMNS, True,
                    first=3 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_1_full[0])
            issued = issued + 1
        if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 4:
            if T.truncmod(issued, 2) == 0:
                T.mbarrier_wait_parity(scores_0_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_0, 0, by_key, by_query_4, COLUMNS, True,
                    first=4 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_0_full[0])
            else:
                T.mbarrier_wait_parity(scores_1_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_1, 0, by_key, by_query_4, COLUMNS, True,
                    first=4 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_1_full[0])
            issued = issued + 1
        if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 5:
            if T.truncmod(issued, 2) == 0:
                T.mbarrier_wait_parity(scores_0_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_0, 0, by_key, by_query_5, COLUMNS, True,
                    first=5 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_0_full[0])
            else:
                T.mbarrier_wait_parity(scores_1_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_1, 0, by_key, by_query_5, COLUMNS, True,
                    first=5 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_1_full[0])
            issued = issued + 1
        if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 6:
            if T.truncmod(issued, 2) == 0:
                T.mbarrier_wait_parity(scores_0_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_0, 0, by_key, by_query_6, COLUMNS, True,
                    first=6 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_0_full[0])
            else:
                T.mbarrier_wait_parity(scores_1_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_1, 0, by_key, by_query_6, COLUMNS, True,
                    first=6 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_1_full[0])
            issued = issued + 1
        if leaf.ceildiv(next_n, ROWS_PER_PRODUCT) > 7:
            if T.truncmod(issued, 2) == 0:
                T.mbarrier_wait_parity(scores_0_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_0, 0, by_key, by_query_7, COLUMNS, True,
                    first=7 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_0_full[0])
            else:
                T.mbarrier_wait_parity(scores_1_empty[0], (T.truncdiv(issued, 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T, scaled by blocks of 32
                tcgen05_pairs.multiply_pairs(
                    keys, it % STAGES, queries, 0, scores_1, 0, by_key, by_query_7, COLUMNS, True,
                    first=7 * (ROWS_PER_PRODUCT * HEADS)
                )
                T.tcgen05_mma_arrive(scores_1_full[0])
            issued = issued + 1
        T.tcgen05_mma_arrive(key_factors_empty[it % 4])
        T.tcgen05_mma_arrive(keys_empty[it % STAGES])
        tile = tile + step


def program():
    b = T.dynamic("b")
    next_n = T.dynamic("next_n")
    index_heads = T.dynamic("index_heads")
    q_stride_b = T.dynamic("q_stride_b")
    q_stride_n = T.dynamic("q_stride_n")
    q_stride_h = T.dynamic("q_stride_h")
    rows = T.dynamic("rows")
    q_scales_stride = T.dynamic("q_scales_stride")
    pages = T.dynamic("pages")
    k_cache_stride = T.dynamic("k_cache_stride")
    weights_stride_b = T.dynamic("weights_stride_b")
    weights_stride_n = T.dynamic("weights_stride_n")
    seq_lens_stride = T.dynamic("seq_lens_stride")
    lines = T.dynamic("lines")
    max_pages = T.dynamic("max_pages")
    block_table_stride = T.dynamic("block_table_stride")
    stride = T.dynamic("stride")
    logits_stride_b = T.dynamic("logits_stride_b")
    logits_stride_n = T.dynamic("logits_stride_n")

    @T.prim_func
    def lightning_indexer__tilelang_sm100a__decode_h64_q16_t128_st8_c1_e0_mxfp4_bf16(
        q: T.StridedTensor((b, next_n, index_heads, 64), (q_stride_b, q_stride_n, q_stride_h, 1), "uint8"),
        q_scales: T.StridedTensor((rows, index_heads), (q_scales_stride, 1), "int32"),
        k_cache: T.StridedTensor((pages, 4352), (k_cache_stride, 1), "uint8"),
        weights: T.StridedTensor(
            (b, next_n, index_heads), (weights_stride_b, weights_stride_n, 1), "float32"
        ),
        seq_lens: T.StridedTensor((b, next_n), (seq_lens_stride, 1), "int32"),
        block_table: T.StridedTensor((lines, max_pages), (block_table_stride, 1), "int32"),
        logits: T.StridedTensor((b, next_n, stride), (logits_stride_b, logits_stride_n, 1), "bfloat16"),
        skip_below: T.int32,
        sharing: T.int32,
        ctas: T.int32,
    ):
        with T.Kernel(ctas, threads=608) as cta:
            query_map_rows = T.view(
                q, (b, next_n, index_heads, 64), "uint8",
                strides=((q_stride_b) // 1, (q_stride_n) // 1, (q_stride_h) // 1, 1)
            )
            factor_map_rows = T.view(q_scales, (rows, index_heads), "int32", strides=(q_scales_stride, 1))
            weight_map_rows = T.view(
                weights, (b, next_n, index_heads), "float32", strides=(weights_stride_b, weights_stride_n, 1)
            )
            key_map_rows = T.StridedTensor(
                ((pages - 1) * (k_cache_stride // 64) + 68, 64), ((64) // 1, 1), "uint8", data=k_cache.data
            )
            k_cache_words = T.view(k_cache, (pages, 1088), "int32", strides=(k_cache_stride // 4, 1))
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
            by_query_2 = T.alloc_tmem((128, 4), "float32")
            by_query_3 = T.alloc_tmem((128, 4), "float32")
            by_query_4 = T.alloc_tmem((128, 4), "float32")
            by_query_5 = T.alloc_tmem((128, 4), "float32")
            by_query_6 = T.alloc_tmem((128, 4), "float32")
            by_query_7 = T.alloc_tmem((128, 4), "float32")
            scores_0 = T.alloc_tmem((128, COLUMNS), "float32")
            scores_1 = T.alloc_tmem((128, COLUMNS), "float32")
            T.annotate_layout({b: make_half_bank_swizzled_layout(b) for b in (keys, queries)})
            keys_full = T.alloc_barrier([1] * STAGES)
            keys_empty = T.alloc_barrier([2] * STAGES)
            queries_full = T.alloc_barrier([1])
            queries_empty = T.alloc_barrier([18])
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
            seq = T.alloc_var("int32", init=0)
            tile = T.alloc_var("int32", init=0)
            step = T.alloc_var("int32", init=1)
            need = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            turn = T.alloc_var("int32", init=-1)
            fresh = T.alloc_var("bool", init=False)
            # Where a CTA starts in an even split: a sequence has `step` CTAs, and these take its tiles in
            # turn.
            leaf.place_when_even(seq, tile, step, b, cta, ctas)
            # A launch of TileLang starts when the kernel before it has ended.
            entry = T.alloc_var("int32", init=0)
            ahead = T.alloc_var("int32", init=0)
            if (thread >= 512) & (thread < 544):
                # Entries past a length are garbage: no copy uses an entry before the length is known.
                row = T.min(seq, b - 1)
                table_entries(entry, block_table, T.truncdiv(row, sharing), tile, step, max_pages - 1, lane)
                table_entries(
                    ahead, block_table, T.truncdiv(row, sharing), tile + 16 * step, step, max_pages - 1, lane
                )
            # The longest prefix that a query of each lane's sequence has to score; 0 past the batch.
            leaf.keys_to_score(need, seq_lens, b, next_n, skip_below, lane)
            # Which key tiles a CTA scores: `turns` tiles from `tile` of sequence `seq` on, `step` apart.
            leaf.find_share(
                seq, tile, need, turns, step, seq_lens, b, next_n, skip_below, TILE, cta, ctas, lane
            )
            if thread < 128:
                score_0(
                    seq_lens, logits, skip_below, b, next_n, head_weights, scores_0, queries_full,
                    queries_empty, scores_0_full, scores_0_empty, seq, tile, step, need, turns, turn, fresh,
                    thread
                )
            elif thread < 256:
                score_1(
                    seq_lens, logits, skip_below, b, next_n, head_weights, scores_0, queries_full,
                    queries_empty, scores_0_full, scores_0_empty, seq, tile, step, need, turns, turn, fresh,
                    thread
                )
            elif thread < 384:
                score_2(
                    seq_lens, logits, skip_below, b, next_n, head_weights, scores_1, queries_full,
                    queries_empty, scores_1_full, scores_1_empty, seq, tile, step, need, turns, turn, fresh,
                    thread
                )
            elif thread < 512:
                score_3(
                    seq_lens, logits, skip_below, b, next_n, head_weights, scores_1, queries_full,
                    queries_empty, scores_1_full, scores_1_empty, seq, tile, step, need, turns, turn, fresh,
                    thread
                )
            elif thread < 544:
                load(
                    seq_lens, block_table, skip_below, sharing, b, next_n, k_cache_stride, query_map_rows,
                    factor_map_rows, weight_map_rows, key_map_rows, k_cache_words, keys, key_scales, queries,
                    query_scales, head_weights, keys_full, keys_empty, queries_full, queries_empty, seq, tile,
                    step, need, turns, turn, fresh, entry, ahead, lane
                )
            elif thread < 576:
                place(
                    seq_lens, skip_below, b, next_n, key_scales, query_scales, key_factors, query_factors,
                    keys_full, keys_empty, queries_full, queries_empty, key_factors_full, key_factors_empty,
                    query_factors_full, query_factors_empty, seq, tile, step, need, turns, turn, fresh, lane
                )
            else:
                mma(
                    seq_lens, skip_below, b, next_n, keys, queries, key_factors, query_factors, by_key,
                    by_query_0, by_query_1, by_query_2, by_query_3, by_query_4, by_query_5, by_query_6,
                    by_query_7, scores_0, scores_1, keys_full, keys_empty, queries_full, queries_empty,
                    key_factors_full, key_factors_empty, query_factors_full, query_factors_empty,
                    scores_0_full, scores_0_empty, scores_1_full, scores_1_empty, seq, tile, step, need,
                    turns, turn, fresh
                )
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return lightning_indexer__tilelang_sm100a__decode_h64_q16_t128_st8_c1_e0_mxfp4_bf16
