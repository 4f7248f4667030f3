"""lightning_indexer__tilelang_sm100a__decode_h32_q16_t128_st4_c1_e0_any_bf16

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=32, queries=16, tile=128, stages=4, resident=1, evict=0, kind=any_bf16.

  load             mma              score_0          score_1          score_2          score_3
  warp 16          warp 17          warps 0..3       warps 4..7       warps 8..11      warps 12..15
  |===== keys ====>|                |                |                |                |   keys key_scales, ring of 4; bulk -> tcgen05
  |============== keys ============>|                |                |                |   keys key_scales, ring of 4; bulk -> threads
  |====================== keys =====================>|                |                |   keys key_scales, ring of 4; bulk -> threads
  |=============================== keys =============================>|                |   keys key_scales, ring of 4; bulk -> threads
  |======================================= keys ======================================>|   keys key_scales, ring of 4; bulk -> threads
  |=== queries ===>|                |                |                |                |   queries head_weights; bulk -> tcgen05
  |============ queries ===========>|                |                |                |   queries head_weights; bulk -> threads
  |==================== queries ====================>|                |                |   queries head_weights; bulk -> threads
  |============================= queries ============================>|                |   queries head_weights; bulk -> threads
  |===================================== queries =====================================>|   queries head_weights; bulk -> threads
  |                |=== scores_0 ==>|                |                |                |   scores_0, ring of 2; tcgen05 -> tmem
  |                |============ scores_0 ==========>|                |                |   scores_0, ring of 2; tcgen05 -> tmem
  |                |==================== scores_1 ===================>|                |   scores_1, ring of 2; tcgen05 -> tmem
  |                |============================= scores_1 ===========================>|   scores_1, ring of 2; tcgen05 -> tmem

roles
  score_0    threads 0..127  epilogue of products i with i % 2 == 0, part 0 of 2
  score_1    threads 128..255  epilogue of products i with i % 2 == 0, part 1 of 2
  score_2    threads 256..383  epilogue of products i with i % 2 == 1, part 0 of 2
  score_3    threads 384..511  epilogue of products i with i % 2 == 1, part 1 of 2
  load       threads 512..543  block table, key pages, queries
  mma        threads 544..575  issues every tcgen05.mma and commit
buffers
  keys       4 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 4 stages of 256 float32, shared
  queries    512x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 512 float32, shared
  scores_0   2 stages of 128x128 float32, tensor memory
  scores_1   2 stages of 128x128 float32, tensor memory
  dots_0     128x32 float32, registers of score_0
  weight_0   128x32 float32, registers of score_0
  scale_0    128x1 float32, registers of score_0
  logit_0    128x1 float32, registers of score_0
  length_0   128x1 int32, registers of score_0
  dots_1     128x32 float32, registers of score_1
  weight_1   128x32 float32, registers of score_1
  scale_1    128x1 float32, registers of score_1
  logit_1    128x1 float32, registers of score_1
  length_1   128x1 int32, registers of score_1
  dots_2     128x32 float32, registers of score_2
  weight_2   128x32 float32, registers of score_2
  scale_2    128x1 float32, registers of score_2
  logit_2    128x1 float32, registers of score_2
  length_2   128x1 int32, registers of score_2
  dots_3     128x32 float32, registers of score_3
  weight_3   128x32 float32, registers of score_3
  scale_3    128x1 float32, registers of score_3
  logit_3    128x1 float32, registers of score_3
  length_3   128x1 int32, registers of score_3
pipelines
  keys: load (bulk) ==[keys key_scales: 4-slot ring]==> mma (tcgen05), score_0 (threads), score_1 (threads), score_2 (threads), score_3 (threads)
    full  x1, 17408 bytes: load arrive + expect bytes
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
  queries: load (bulk) ==[queries head_weights: 1-slot ring]==> mma (tcgen05), score_0 (threads), score_1 (threads), score_2 (threads), score_3 (threads)
    full  x1, 67584 bytes: load arrive + expect bytes
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
  scores_0: mma (tcgen05) ==[scores_0: 2-slot ring]==> score_0 (tmem), score_1 (tmem)
    full  x1: mma commit -> full
      score_0: wait full, fence after
      score_1: wait full, fence after
    empty x8: mma wait empty, fence after
      score_0: wait::ld, fence before, one lane a warp, arrive empty
      score_1: wait::ld, fence before, one lane a warp, arrive empty
  scores_1: mma (tcgen05) ==[scores_1: 2-slot ring]==> score_2 (tmem), score_3 (tmem)
    full  x1: mma commit -> full
      score_2: wait full, fence after
      score_3: wait full, fence after
    empty x8: mma wait empty, fence after
      score_2: wait::ld, fence before, one lane a warp, arrive empty
      score_3: wait::ld, fence before, one lane a warp, arrive empty
totals: 576 threads, 137360 of 232448 bytes of shared memory, 512 of 512 tensor-memory columns, grid (ctas)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import warps
from dsl_kernels.kernels.lightning_indexer import tilelang as leaf
from dsl_kernels.kernels.lightning_indexer import tilelang_sm100 as leaf_sm100

PASS_CONFIGS = leaf.PASS_CONFIGS

HEADS = 32  # index heads
QUERIES = 16  # decode: most queries per sequence; prefill: query rows per CTA
TILE = 128  # keys per tile
STAGES = 4  # key tiles in flight
TILE_GRAINS = 8
GRAIN = 16
INDEX_DIM = 128
TILE_SCALES = 256
ROWS_PER_PRODUCT = 4
COLUMNS = 128


@T.macro
def grain_entries(entry: T.Ref, place: T.Ref, block_table, row, first, step, last, page_size, lane):
    """Like `table_entries`, read an entry per lane for 16 keys, with the place of these keys in the page.

    The entries are for 32 / grains tiles from `first` on, `step` apart. A lane past group `last` of 16
    keys reads the entry of that group.
    """
    token = T.alloc_var(
        "int32",
        init=T.min(
            (first + T.truncdiv(lane, TILE_GRAINS) * step) * TILE_GRAINS + T.truncmod(lane, TILE_GRAINS),
            last
        ) * GRAIN
    )
    page = T.alloc_var(
        "int32", init=T.cast(T.truncdiv(T.cast(token, "uint32"), T.cast(page_size, "uint32")), "int32")
    )
    entry = block_table[row, page]
    place = token - page * page_size


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
def load_scale(scale, key_scales, key_scales_slot, thread):
    """Read the scale of this thread's key."""
    scale[0] = key_scales[key_scales_slot, T.truncdiv(thread, GRAIN) * 32 + T.truncmod(thread, GRAIN)]


@T.macro
def load_weights(weight, head_weights, head_weights_slot, first):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(8):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[
                head_weights_slot, (T.truncdiv(first, 4) + quad) * 4 + part
            ]


@T.macro
def store_query(logits, logit, scale, length, seq, query, key, thread):
    """Store the logit of this thread's key and a query, times the key's scale, if the query has the key."""
    at = key + thread
    if at < warps.shuffle(length[0], query):
        logits[seq, query, at] = logit[0] * scale[0]


@T.macro
def grain_entries_step_1(entry: T.Ref, place: T.Ref, block_table, row, first, last, page_size, lane):
    """Like `table_entries`, read an entry per lane for 16 keys, with the place of these keys in the page.

    The entries are for 32 / grains tiles from `first` on, `step` apart. A lane past group `last` of 16
    keys reads the entry of that group.
    """
    token = T.alloc_var(
        "int32",
        init=T.min(
            (first + T.truncdiv(lane, TILE_GRAINS)) * TILE_GRAINS + T.truncmod(lane, TILE_GRAINS), last
        ) * GRAIN
    )
    page = T.alloc_var(
        "int32", init=T.cast(T.truncdiv(T.cast(token, "uint32"), T.cast(page_size, "uint32")), "int32")
    )
    entry = block_table[row, page]
    place = token - page * page_size


@T.macro
def entry_of(page: T.Ref, entry, place):
    """The entry that lane `place` holds."""
    page = warps.shuffle(entry, place)


@T.macro
def score_0(
    seq_lens, logits, skip_below, b, next_n, key_scales, head_weights, scores_0, keys_full, keys_empty,
    queries_full, queries_empty, scores_0_full, scores_0_empty, seq: T.Ref, tile: T.Ref, step: T.Ref,
    need: T.Ref, turns: T.Ref, turn: T.Ref, fresh: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 0, part 0 of 2."""
    dots_0 = T.alloc_local((HEADS,), "float32")
    weight_0 = T.alloc_local((32,), "float32")
    scale_0 = T.alloc_local((1,), "float32")
    logit_0 = T.alloc_local((1,), "float32")
    length_0 = T.alloc_local((1,), "int32")
    worker = thread
    use = T.alloc_var("int32", init=0)
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
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        load_scale(scale_0, key_scales, it % STAGES, worker)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        for product in T.serial(0, leaf.ceildiv(next_n, ROWS_PER_PRODUCT), 2):
            T.mbarrier_wait_parity(scores_0_full[use % 2], (use // 2) & 1)
            T.tcgen05_after_thread_sync()
            # Accumulators of a product in tensor memory, from column `first` on.
            leaf_sm100.read_scores(dots_0, scores_0, use % 2, 0, HEADS, worker)
            load_weights(weight_0, head_weights, 0, product * ROWS_PER_PRODUCT * HEADS)
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
            store_query(
                logits, logit_0, scale_0, length_0, seq, product * ROWS_PER_PRODUCT, tile * TILE, worker
            )
            leaf_sm100.read_scores(dots_0, scores_0, use % 2, HEADS, HEADS, worker)
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(scores_0_empty[use % 2])
            use = use + 1
            load_weights(weight_0, head_weights, 0, (product * ROWS_PER_PRODUCT + 1) * HEADS)
            leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
            store_query(
                logits, logit_0, scale_0, length_0, seq, product * ROWS_PER_PRODUCT + 1, tile * TILE, worker
            )
        tile = tile + step


@T.macro
def score_1(
    seq_lens, logits, skip_below, b, next_n, key_scales, head_weights, scores_0, keys_full, keys_empty,
    queries_full, queries_empty, scores_0_full, scores_0_empty, seq: T.Ref, tile: T.Ref, step: T.Ref,
    need: T.Ref, turns: T.Ref, turn: T.Ref, fresh: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 0, part 1 of 2."""
    dots_1 = T.alloc_local((HEADS,), "float32")
    weight_1 = T.alloc_local((32,), "float32")
    scale_1 = T.alloc_local((1,), "float32")
    logit_1 = T.alloc_local((1,), "float32")
    length_1 = T.alloc_local((1,), "int32")
    worker = thread - 128
    use = T.alloc_var("int32", init=0)
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
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        load_scale(scale_1, key_scales, it % STAGES, worker)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        for product in T.serial(0, leaf.ceildiv(next_n, ROWS_PER_PRODUCT), 2):
            T.mbarrier_wait_parity(scores_0_full[use % 2], (use // 2) & 1)
            T.tcgen05_after_thread_sync()
            # Accumulators of a product in tensor memory, from column `first` on.
            leaf_sm100.read_scores(dots_1, scores_0, use % 2, 2 * HEADS, HEADS, worker)
            load_weights(weight_1, head_weights, 0, (product * ROWS_PER_PRODUCT + 2) * HEADS)
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
            store_query(
                logits, logit_1, scale_1, length_1, seq, product * ROWS_PER_PRODUCT + 2, tile * TILE, worker
            )
            leaf_sm100.read_scores(dots_1, scores_0, use % 2, 3 * HEADS, HEADS, worker)
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(scores_0_empty[use % 2])
            use = use + 1
            load_weights(weight_1, head_weights, 0, (product * ROWS_PER_PRODUCT + 3) * HEADS)
            leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
            store_query(
                logits, logit_1, scale_1, length_1, seq, product * ROWS_PER_PRODUCT + 3, tile * TILE, worker
            )
        tile = tile + step


@T.macro
def score_2(
    seq_lens, logits, skip_below, b, next_n, key_scales, head_weights, scores_1, keys_full, keys_empty,
    queries_full, queries_empty, scores_1_full, scores_1_empty, seq: T.Ref, tile: T.Ref, step: T.Ref,
    need: T.Ref, turns: T.Ref, turn: T.Ref, fresh: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 1, part 0 of 2."""
    dots_2 = T.alloc_local((HEADS,), "float32")
    weight_2 = T.alloc_local((32,), "float32")
    scale_2 = T.alloc_local((1,), "float32")
    logit_2 = T.alloc_local((1,), "float32")
    length_2 = T.alloc_local((1,), "int32")
    worker = thread - 256
    use = T.alloc_var("int32", init=0)
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
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        load_scale(scale_2, key_scales, it % STAGES, worker)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        for product in T.serial(1, leaf.ceildiv(next_n, ROWS_PER_PRODUCT), 2):
            T.mbarrier_wait_parity(scores_1_full[use % 2], (use // 2) & 1)
            T.tcgen05_after_thread_sync()
            # Accumulators of a product in tensor memory, from column `first` on.
            leaf_sm100.read_scores(dots_2, scores_1, use % 2, 0, HEADS, worker)
            load_weights(weight_2, head_weights, 0, product * ROWS_PER_PRODUCT * HEADS)
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_2, dots_2, 0, weight_2, True)
            store_query(
                logits, logit_2, scale_2, length_2, seq, product * ROWS_PER_PRODUCT, tile * TILE, worker
            )
            leaf_sm100.read_scores(dots_2, scores_1, use % 2, HEADS, HEADS, worker)
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(scores_1_empty[use % 2])
            use = use + 1
            load_weights(weight_2, head_weights, 0, (product * ROWS_PER_PRODUCT + 1) * HEADS)
            leaf_sm100.weigh_one(logit_2, dots_2, 0, weight_2, True)
            store_query(
                logits, logit_2, scale_2, length_2, seq, product * ROWS_PER_PRODUCT + 1, tile * TILE, worker
            )
        tile = tile + step


@T.macro
def score_3(
    seq_lens, logits, skip_below, b, next_n, key_scales, head_weights, scores_1, keys_full, keys_empty,
    queries_full, queries_empty, scores_1_full, scores_1_empty, seq: T.Ref, tile: T.Ref, step: T.Ref,
    need: T.Ref, turns: T.Ref, turn: T.Ref, fresh: T.Ref, thread
):
    """Epilogue of products i with i % 2 == 1, part 1 of 2."""
    dots_3 = T.alloc_local((HEADS,), "float32")
    weight_3 = T.alloc_local((32,), "float32")
    scale_3 = T.alloc_local((1,), "float32")
    logit_3 = T.alloc_local((1,), "float32")
    length_3 = T.alloc_local((1,), "int32")
    worker = thread - 384
    use = T.alloc_var("int32", init=0)
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
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        load_scale(scale_3, key_scales, it % STAGES, worker)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        for product in T.serial(1, leaf.ceildiv(next_n, ROWS_PER_PRODUCT), 2):
            T.mbarrier_wait_parity(scores_1_full[use % 2], (use // 2) & 1)
            T.tcgen05_after_thread_sync()
            # Accumulators of a product in tensor memory, from column `first` on.
            leaf_sm100.read_scores(dots_3, scores_1, use % 2, 2 * HEADS, HEADS, worker)
            load_weights(weight_3, head_weights, 0, (product * ROWS_PER_PRODUCT + 2) * HEADS)
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_3, dots_3, 0, weight_3, True)
            store_query(
                logits, logit_3, scale_3, length_3, seq, product * ROWS_PER_PRODUCT + 2, tile * TILE, worker
            )
            leaf_sm100.read_scores(dots_3, scores_1, use % 2, 3 * HEADS, HEADS, worker)
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(scores_1_empty[use % 2])
            use = use + 1
            load_weights(weight_3, head_weights, 0, (product * ROWS_PER_PRODUCT + 3) * HEADS)
            leaf_sm100.weigh_one(logit_3, dots_3, 0, weight_3, True)
            store_query(
                logits, logit_3, scale_3, length_3, seq, product * ROWS_PER_PRODUCT + 3, tile * TILE, worker
            )
        tile = tile + step


@T.macro
def load(
    seq_lens, block_table, skip_below, page_size, b, next_n, index_dim, query_map_rows, weight_map_rows,
    key_map_rows, scale_map_rows, keys, key_scales, queries, head_weights, keys_full, keys_empty,
    queries_full, queries_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref, turn: T.Ref,
    fresh: T.Ref, entry: T.Ref, ahead: T.Ref, place: T.Ref, place_ahead: T.Ref, lane
):
    """Block table, key pages, queries."""
    held = T.alloc_var("int32", init=0)
    page = T.alloc_var("int32", init=0)
    within = T.alloc_var("int32", init=0)
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, TILE)
        last = leaf.ceildiv(need, GRAIN) - 1
        if fresh:
            turn = turn + 1
            held = 0
            if step == 1:
                grain_entries_step_1(entry, place, block_table, seq, tile, last, page_size, lane)
                grain_entries_step_1(ahead, place_ahead, block_table, seq, tile + 4, last, page_size, lane)
            # The last product of an odd count scores its last query twice.
            count = leaf.ceildiv(next_n, ROWS_PER_PRODUCT) * ROWS_PER_PRODUCT
            T.mbarrier_wait_parity(queries_empty[0], (turn & 1) ^ 1)
            for i in T.serial(count):
                query = T.min(i, next_n - 1)
                T.tma_copy(
                    query_map_rows[seq : seq + 1, query : query + 1, 0 : HEADS, 0 : INDEX_DIM],
                    queries[0, i * HEADS : i * HEADS + HEADS, :], barrier=queries_full[0]
                )
                T.tma_copy(
                    weight_map_rows[seq * next_n + query : seq * next_n + query + 1, 0 : HEADS],
                    head_weights[0, i * HEADS : i * HEADS + HEADS], barrier=queries_full[0]
                )
            if T.shuffle_elect(32):
                T.mbarrier_arrive(queries_full[0])
        if held == 4:
            held = 0
            entry = ahead
            place = place_ahead
            grain_entries(ahead, place_ahead, block_table, seq, tile + 4 * step, step, last, page_size, lane)
        T.mbarrier_wait_parity(keys_empty[it % STAGES], ((it // STAGES) & 1) ^ 1)
        for p in T.unroll(TILE_GRAINS):
            entry_of(page, entry, held * TILE_GRAINS + T.min(p, last - tile * TILE_GRAINS))
            entry_of(within, place, held * TILE_GRAINS + T.min(p, last - tile * TILE_GRAINS))
            T.tma_copy(
                key_map_rows[page : page + 1, within : within + GRAIN, 0 : INDEX_DIM],
                keys[it % STAGES, p * GRAIN : p * GRAIN + GRAIN, :], barrier=keys_full[it % STAGES]
            )
            T.tma_copy(
                scale_map_rows[
                    page : page + 1,
                    T.truncdiv(
                        page_size * index_dim, 4
                    ) + within : T.truncdiv(page_size * index_dim, 4) + within + GRAIN
                ],
                key_scales[it % STAGES, p * 32 : p * 32 + GRAIN], barrier=keys_full[it % STAGES]
            )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_full[it % STAGES])
        held = held + 1
        tile = tile + step


@T.macro
def mma(
    seq_lens, skip_below, b, next_n, keys, queries, scores_0, scores_1, keys_full, keys_empty, queries_full,
    queries_empty, scores_0_full, scores_0_empty, scores_1_full, scores_1_empty, seq: T.Ref, tile: T.Ref,
    step: T.Ref, need: T.Ref, turns: T.Ref, turn: T.Ref, fresh: T.Ref
):
    """Issues every tcgen05.mma and commit."""
    fill_0 = T.alloc_var("int32", init=0)
    fill_1 = T.alloc_var("int32", init=0)
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
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        T.tcgen05_after_thread_sync()
        products = leaf.ceildiv(next_n, ROWS_PER_PRODUCT)
        for i in T.serial(0, products, 2):
            if i < products:
                T.mbarrier_wait_parity(scores_0_empty[fill_0 % 2], ((fill_0 // 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T
                T.tcgen05_gemm(
                    keys[it % STAGES, :, :], queries[0, i * COLUMNS : i * COLUMNS + COLUMNS, :],
                    scores_0[fill_0 % 2, :, :], transpose_B=True, clear_accum=True, mbar=None
                )
                T.tcgen05_mma_arrive(scores_0_full[fill_0 % 2])
                fill_0 = fill_0 + 1
            if i + 1 < products:
                T.mbarrier_wait_parity(scores_1_empty[fill_1 % 2], ((fill_1 // 2) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                # S[keys, heads] = K Q^T
                T.tcgen05_gemm(
                    keys[it % STAGES, :, :], queries[0, (i + 1) * COLUMNS : (i + 1) * COLUMNS + COLUMNS, :],
                    scores_1[fill_1 % 2, :, :], transpose_B=True, clear_accum=True, mbar=None
                )
                T.tcgen05_mma_arrive(scores_1_full[fill_1 % 2])
                fill_1 = fill_1 + 1
        T.tcgen05_mma_arrive(keys_empty[it % STAGES])
        tile = tile + step


def program():
    b = T.dynamic("b")
    next_n = T.dynamic("next_n")
    index_heads = T.dynamic("index_heads")
    index_dim = T.dynamic("index_dim")
    q_stride_b = T.dynamic("q_stride_b")
    q_stride_n = T.dynamic("q_stride_n")
    q_stride_h = T.dynamic("q_stride_h")
    pages = T.dynamic("pages")
    page_bytes = T.dynamic("page_bytes")
    k_cache_stride = T.dynamic("k_cache_stride")
    rows = T.dynamic("rows")
    weights_stride = T.dynamic("weights_stride")
    seq_lens_stride = T.dynamic("seq_lens_stride")
    max_pages = T.dynamic("max_pages")
    block_table_stride = T.dynamic("block_table_stride")
    stride = T.dynamic("stride")
    logits_stride_b = T.dynamic("logits_stride_b")
    logits_stride_n = T.dynamic("logits_stride_n")

    @T.prim_func
    def lightning_indexer__tilelang_sm100a__decode_h32_q16_t128_st4_c1_e0_any_bf16(
        q: T.StridedTensor(
            (b, next_n, index_heads, index_dim), (q_stride_b, q_stride_n, q_stride_h, 1), "float8_e4m3fn"
        ),
        k_cache: T.StridedTensor((pages, page_bytes), (k_cache_stride, 1), "uint8"),
        weights: T.StridedTensor((rows, index_heads), (weights_stride, 1), "float32"),
        seq_lens: T.StridedTensor((b, next_n), (seq_lens_stride, 1), "int32"),
        block_table: T.StridedTensor((b, max_pages), (block_table_stride, 1), "int32"),
        logits: T.StridedTensor((b, next_n, stride), (logits_stride_b, logits_stride_n, 1), "bfloat16"),
        skip_below: T.int32,
        page_size: T.int32,
        ctas: T.int32,
    ):
        with T.Kernel(ctas, threads=576) as cta:
            query_map_rows = T.view(
                q, (b, next_n, index_heads, index_dim), "float8_e4m3",
                strides=((q_stride_b) // 1, (q_stride_n) // 1, (q_stride_h) // 1, 1)
            )
            weight_map_rows = T.view(weights, (rows, index_heads), "float32", strides=(weights_stride, 1))
            key_map_rows = T.StridedTensor(
                (pages, page_size, index_dim), ((k_cache_stride) // 1, (index_dim) // 1, 1), "float8_e4m3",
                data=k_cache.data
            )
            scale_map_rows = T.StridedTensor(
                (pages, page_bytes // 4), ((k_cache_stride) // 4, 1), "float32", data=k_cache.data
            )
            T.import_source(leaf_sm100.SOURCE + warps.SOURCE)
            keys = T.alloc_shared((STAGES, TILE, INDEX_DIM), "float8_e4m3")
            key_scales = T.alloc_shared((STAGES, TILE_SCALES), "float32")
            queries = T.alloc_shared((1, QUERIES * HEADS, INDEX_DIM), "float8_e4m3")
            head_weights = T.alloc_shared((1, QUERIES * HEADS), "float32")
            scores_0 = T.alloc_tmem((2, 128, COLUMNS), "float32")
            scores_1 = T.alloc_tmem((2, 128, COLUMNS), "float32")
            keys_full = T.alloc_barrier([1] * STAGES)
            keys_empty = T.alloc_barrier([17] * STAGES)
            queries_full = T.alloc_barrier([1])
            queries_empty = T.alloc_barrier([17])
            scores_0_full = T.alloc_barrier([1] * 2)
            scores_0_empty = T.alloc_barrier([8] * 2)
            scores_1_full = T.alloc_barrier([1] * 2)
            scores_1_empty = T.alloc_barrier([8] * 2)

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
            place = T.alloc_var("int32", init=0)
            place_ahead = T.alloc_var("int32", init=0)
            if (thread >= 512) & (thread < 544):
                # Entries past a length are garbage: no copy uses an entry before the length is known.
                row = T.min(seq, b - 1)
                grain_entries(
                    entry, place, block_table, row, tile, step, T.truncdiv(max_pages * page_size, GRAIN) - 1,
                    page_size, lane
                )
                grain_entries(
                    ahead, place_ahead, block_table, row, tile + 4 * step, step,
                    T.truncdiv(max_pages * page_size, GRAIN) - 1, page_size, lane
                )
            # The longest prefix that a query of each lane's sequence has to score; 0 past the batch.
            leaf.keys_to_score(need, seq_lens, b, next_n, skip_below, lane)
            # Which key tiles a CTA scores: `turns` tiles from `tile` of sequence `seq` on, `step` apart.
            leaf.find_share(
                seq, tile, need, turns, step, seq_lens, b, next_n, skip_below, TILE, cta, ctas, lane
            )
            if thread < 128:
                score_0(
                    seq_lens, logits, skip_below, b, next_n, key_scales, head_weights, scores_0, keys_full,
                    keys_empty, queries_full, queries_empty, scores_0_full, scores_0_empty, seq, tile, step,
                    need, turns, turn, fresh, thread
                )
            elif thread < 256:
                score_1(
                    seq_lens, logits, skip_below, b, next_n, key_scales, head_weights, scores_0, keys_full,
                    keys_empty, queries_full, queries_empty, scores_0_full, scores_0_empty, seq, tile, step,
                    need, turns, turn, fresh, thread
                )
            elif thread < 384:
                score_2(
                    seq_lens, logits, skip_below, b, next_n, key_scales, head_weights, scores_1, keys_full,
                    keys_empty, queries_full, queries_empty, scores_1_full, scores_1_empty, seq, tile, step,
                    need, turns, turn, fresh, thread
                )
            elif thread < 512:
                score_3(
                    seq_lens, logits, skip_below, b, next_n, key_scales, head_weights, scores_1, keys_full,
                    keys_empty, queries_full, queries_empty, scores_1_full, scores_1_empty, seq, tile, step,
                    need, turns, turn, fresh, thread
                )
            elif thread < 544:
                load(
                    seq_lens, block_table, skip_below, page_size, b, next_n, index_dim, query_map_rows,
                    weight_map_rows, key_map_rows, scale_map_rows, keys, key_scales, queries, head_weights,
                    keys_full, keys_empty, queries_full, queries_empty, seq, tile, step, need, turns, turn,
                    fresh, entry, ahead, place, place_ahead, lane
                )
            else:
                mma(
                    seq_lens, skip_below, b, next_n, keys, queries, scores_0, scores_1, keys_full, keys_empty,
                    queries_full, queries_empty, scores_0_full, scores_0_empty, scores_1_full, scores_1_empty,
                    seq, tile, step, need, turns, turn, fresh
                )
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return lightning_indexer__tilelang_sm100a__decode_h32_q16_t128_st4_c1_e0_any_bf16
