"""lightning_indexer__tilelang_sm100a__decode_h32_q1_t128_st8_c1_e0_mxfp4_bf16

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=32, queries=1, tile=128, stages=8, resident=1, evict=0, kind=mxfp4_bf16.

  load                  mma                   place                 score_0               score_1
  warp 8                warp 10               warp 9                warps 0..3            warps 4..7
  |======== keys ======>|                     |                     |                     |   keys key_scales, ring of 8; bulk -> tcgen05
  |=================== keys =================>|                     |                     |   keys key_scales, ring of 8; bulk -> threads
  |====== queries =====>|                     |                     |                     |   queries query_scales head_weights, ring of 2; bulk -> tcgen05
  |================= queries ================>|                     |                     |   queries query_scales head_weights, ring of 2; bulk -> threads
  |============================ queries ===========================>|                     |   queries query_scales head_weights, ring of 2; bulk -> threads
  |======================================= queries ======================================>|   queries query_scales head_weights, ring of 2; bulk -> threads
  |                     |<=== key_factors ====|                     |                     |   key_factors, ring of 4; threads -> tcgen05
  |                     |<== query_factors ===|                     |                     |   query_factors, ring of 2; threads -> tcgen05
  |                     |================= scores_0 ===============>|                     |   scores_0, ring of 2; tcgen05 -> tmem
  |                     |============================ scores_1 ==========================>|   scores_1, ring of 2; tcgen05 -> tmem

roles
  score_0    threads 0..127  epilogue of tiles i with i % 2 == 0
  score_1    threads 128..255  epilogue of tiles i with i % 2 == 1
  load       threads 256..287  block table, key pages, queries
  place      threads 288..319  scales, as copies to tensor memory read them
  mma        threads 320..351  issues every tcgen05.cp, tcgen05.mma and commit
buffers
  keys       8 stages of 128x64 float4_e2m1x2, shared, 64-byte swizzle
  key_scales 8 stages of 128 int32, shared
  queries    2 stages of 32x64 float4_e2m1x2, shared, 64-byte swizzle
  query_scales 2 stages of 32 int32, shared
  head_weights 2 stages of 32 float32, shared
  key_factors 4 stages of 32x4 int32, shared
  query_factors 2 stages of 32x4 int32, shared
  by_key     128x16 uint8, tensor memory
  by_query   128x16 uint8, tensor memory
  scores_0   2 stages of 128x32 float32, tensor memory
  scores_1   2 stages of 128x32 float32, tensor memory
  dots_0     128x32 float32, registers of score_0
  weight_0   128x32 float32, registers of score_0
  logit_0    128x1 float32, registers of score_0
  length_0   128x1 int32, registers of score_0
  dots_1     128x32 float32, registers of score_1
  weight_1   128x32 float32, registers of score_1
  logit_1    128x1 float32, registers of score_1
  length_1   128x1 int32, registers of score_1
pipelines
  keys: load (bulk) ==[keys key_scales: 8-slot ring]==> mma (tcgen05), place (threads)
    full  x1, 8704 bytes: load arrive + expect bytes
      mma: wait full, fence after
      place: wait full
    empty x2: load wait empty
      mma: commit -> empty
      place: one lane a warp, arrive empty
  queries: load (bulk) ==[queries query_scales head_weights: 2-slot ring]==> mma (tcgen05), place (threads), score_0 (threads), score_1 (threads)
    full  x1, 2304 bytes: load arrive + expect bytes
      mma: wait full, fence after
      place: wait full
      score_0: wait full
      score_1: wait full
    empty x10: load wait empty
      mma: commit -> empty
      place: one lane a warp, arrive empty
      score_0: one lane a warp, arrive empty
      score_1: one lane a warp, arrive empty
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
  scores_0: mma (tcgen05) ==[scores_0: 2-slot ring]==> score_0 (tmem)
    full  x1: mma commit -> full
      score_0: wait full, fence after
    empty x4: mma wait empty, fence after
      score_0: wait::ld, fence before, one lane a warp, arrive empty
  scores_1: mma (tcgen05) ==[scores_1: 2-slot ring]==> score_1 (tmem)
    full  x1: mma commit -> full
      score_1: wait full, fence after
    empty x4: mma wait empty, fence after
      score_1: wait::ld, fence before, one lane a warp, arrive empty
totals: 352 threads, 77632 of 232448 bytes of shared memory, 136 of 512 tensor-memory columns, grid (ctas)
"""
import tilelang.language as T
from tilelang.layout import make_half_bank_swizzled_layout

from dsl_kernels.device.tilelang import tcgen05, tcgen05_pairs, warps
from dsl_kernels.kernels.lightning_indexer import tilelang as leaf
from dsl_kernels.kernels.lightning_indexer import tilelang_sm100 as leaf_sm100

PASS_CONFIGS = leaf.PASS_CONFIGS

HEADS = 32  # index heads
TILE = 128  # keys per tile
STAGES = 8  # key tiles in flight
TILE_PAGES = 2
KEY_BYTES = 64
PAGE = 64
SCALE_WORD = 1024


@T.macro
def read_lengths(length: T.Ref, seq_lens, b, lane):
    """Read the lengths of the first 32 sequences, one per lane. Lanes past the batch read the last length."""
    length = seq_lens[T.min(lane, b - 1), 0]


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
def lengths_to_score(need: T.Ref, length, b, skip_below, lane):
    """The number of keys to score of each lane's sequence, from its length."""
    known = leaf.shuffle_length(length, lane)
    need = T.if_then_else((lane < b) & (known > skip_below), known, 0)


@T.macro
def load_weights(weight, head_weights, head_weights_slot):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in T.unroll(HEADS // 4):
        for part in T.vectorized(4):
            weight[4 * quad + part] = head_weights[head_weights_slot, (quad) * 4 + part]


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
def store_scores(logits, logit, length, seq, key, thread):
    """The logit of this thread's key, if the row has that key."""
    at = key + thread
    if at < warps.shuffle(length[0], 0):
        logits[seq, 0, at] = logit[0]


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
def place_factors_query_factors(factors, factors_slot, scales, scales_slot, lane):
    """Scales of rows r, r + 32, ... side by side in row r, as copies to tensor memory read them.

    Of fewer than 128 rows the scales come again: products do not look at them.
    """
    for column in T.unroll(4):
        factors[factors_slot, lane, column] = scales[scales_slot, T.truncmod(column * 32, HEADS) + lane]


@T.macro
def place_factors_key_factors(factors, factors_slot, scales, scales_slot, lane):
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
    """Epilogue of tiles i with i % 2 == 0."""
    dots_0 = T.alloc_local((HEADS,), "float32")
    weight_0 = T.alloc_local((HEADS,), "float32")
    logit_0 = T.alloc_local((1,), "float32")
    length_0 = T.alloc_local((1,), "int32")
    worker = thread
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, TILE)
        if fresh:
            if it > 0:
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(queries_empty[turn % 2])
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[turn % 2], (turn // 2) & 1)
            load_weights(weight_0, head_weights, turn % 2)
            load_lengths(length_0, seq_lens, seq, next_n, skip_below, worker)
        if T.truncmod(it, 2) == 0:
            T.mbarrier_wait_parity(scores_0_full[T.truncdiv(it, 2) % 2], (T.truncdiv(it, 2) // 2) & 1)
            T.tcgen05_after_thread_sync()
            # Accumulators of a product in tensor memory, from column `first` on.
            leaf_sm100.read_scores(dots_0, scores_0, T.truncdiv(it, 2) % 2, 0, HEADS, worker)
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(scores_0_empty[T.truncdiv(it, 2) % 2])
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
            store_scores(logits, logit_0, length_0, seq, tile * TILE, worker)
        tile = tile + step


@T.macro
def score_1(
    seq_lens, logits, skip_below, b, next_n, head_weights, scores_1, queries_full, queries_empty,
    scores_1_full, scores_1_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref,
    turn: T.Ref, fresh: T.Ref, thread
):
    """Epilogue of tiles i with i % 2 == 1."""
    dots_1 = T.alloc_local((HEADS,), "float32")
    weight_1 = T.alloc_local((HEADS,), "float32")
    logit_1 = T.alloc_local((1,), "float32")
    length_1 = T.alloc_local((1,), "int32")
    worker = thread - 128
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, TILE)
        if fresh:
            if it > 0:
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(queries_empty[turn % 2])
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[turn % 2], (turn // 2) & 1)
            load_weights(weight_1, head_weights, turn % 2)
            load_lengths(length_1, seq_lens, seq, next_n, skip_below, worker)
        if T.truncmod(it, 2) == 1:
            T.mbarrier_wait_parity(scores_1_full[T.truncdiv(it, 2) % 2], (T.truncdiv(it, 2) // 2) & 1)
            T.tcgen05_after_thread_sync()
            # Accumulators of a product in tensor memory, from column `first` on.
            leaf_sm100.read_scores(dots_1, scores_1, T.truncdiv(it, 2) % 2, 0, HEADS, worker)
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.tcgen05_before_thread_sync()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(scores_1_empty[T.truncdiv(it, 2) % 2])
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
            store_scores(logits, logit_1, length_1, seq, tile * TILE, worker)
        tile = tile + step


@T.macro
def load(
    seq_lens, block_table, skip_below, sharing, b, k_cache_stride, query_map_rows, factor_map_rows,
    weight_map_rows, key_map_rows, k_cache_words, keys, key_scales, queries, query_scales, head_weights,
    keys_full, keys_empty, queries_full, queries_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref,
    turns: T.Ref, turn: T.Ref, fresh: T.Ref, entry: T.Ref, ahead: T.Ref, lane
):
    """Block table, key pages, queries."""
    held = T.alloc_var("int32", init=0)
    page = T.alloc_var("int32", init=0)
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, TILE)
        last = leaf.ceildiv(need, PAGE) - 1
        if fresh:
            turn = turn + 1
            held = 0
            if step == 1:
                table_entries_step_1(entry, block_table, T.truncdiv(seq, sharing), tile, last, lane)
                table_entries_step_1(ahead, block_table, T.truncdiv(seq, sharing), tile + 16, last, lane)
            T.mbarrier_wait_parity(queries_empty[turn % 2], ((turn // 2) & 1) ^ 1)
            T.tma_copy(
                query_map_rows[seq : seq + 1, 0 : 1, 0 : HEADS, 0 : KEY_BYTES], queries[turn % 2, :, :],
                barrier=queries_full[turn % 2]
            )
            T.tma_copy(
                factor_map_rows[seq : seq + 1, 0 : HEADS], query_scales[turn % 2, :],
                barrier=queries_full[turn % 2]
            )
            T.tma_copy(
                weight_map_rows[seq : seq + 1, 0 : 1, 0 : HEADS], head_weights[turn % 2, :],
                barrier=queries_full[turn % 2]
            )
            if T.shuffle_elect(32):
                T.mbarrier_arrive(queries_full[turn % 2])
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
    seq_lens, skip_below, b, key_scales, query_scales, key_factors, query_factors, keys_full, keys_empty,
    queries_full, queries_empty, key_factors_full, key_factors_empty, query_factors_full, query_factors_empty,
    seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref, turn: T.Ref, fresh: T.Ref, lane
):
    """Scales, as copies to tensor memory read them."""
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, TILE)
        if fresh:
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[turn % 2], (turn // 2) & 1)
            T.mbarrier_wait_parity(query_factors_empty[turn % 2], ((turn // 2) & 1) ^ 1)
            place_factors_query_factors(query_factors, turn % 2, query_scales, turn % 2, lane)
            T.fence_proxy_async()
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(query_factors_full[turn % 2])
            T.sync_warp()
            if T.shuffle_elect(32):
                T.mbarrier_arrive(queries_empty[turn % 2])
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        T.mbarrier_wait_parity(key_factors_empty[it % 4], ((it // 4) & 1) ^ 1)
        place_factors_key_factors(key_factors, it % 4, key_scales, it % STAGES, lane)
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
    seq_lens, skip_below, b, keys, queries, key_factors, query_factors, by_key, by_query, scores_0, scores_1,
    keys_full, keys_empty, queries_full, queries_empty, key_factors_full, key_factors_empty,
    query_factors_full, query_factors_empty, scores_0_full, scores_0_empty, scores_1_full, scores_1_empty,
    seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref, turn: T.Ref, fresh: T.Ref
):
    """Issues every tcgen05.cp, tcgen05.mma and commit."""
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, TILE)
        if fresh:
            if it > 0:
                T.tcgen05_mma_arrive(queries_empty[turn % 2])
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[turn % 2], (turn // 2) & 1)
            T.tcgen05_after_thread_sync()
            T.mbarrier_wait_parity(query_factors_full[turn % 2], (turn // 2) & 1)
            T.tcgen05_after_thread_sync()
            tcgen05.copy_factors(by_query, 0, query_factors, turn % 2)
            T.tcgen05_mma_arrive(query_factors_empty[turn % 2])
        if T.truncmod(it, 2) == 0:
            T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
            T.tcgen05_after_thread_sync()
            T.mbarrier_wait_parity(key_factors_full[it % 4], (it // 4) & 1)
            T.tcgen05_after_thread_sync()
            tcgen05.copy_factors(by_key, 0, key_factors, it % 4)
            T.mbarrier_wait_parity(scores_0_empty[T.truncdiv(it, 2) % 2], ((T.truncdiv(it, 2) // 2) & 1) ^ 1)
            T.tcgen05_after_thread_sync()
            # S[keys, heads] = K Q^T, scaled by blocks of 32
            tcgen05_pairs.multiply_pairs(
                keys, it % STAGES, queries, turn % 2, scores_0, T.truncdiv(it, 2) % 2, by_key, by_query,
                HEADS, True
            )
            T.tcgen05_mma_arrive(scores_0_full[T.truncdiv(it, 2) % 2])
            T.tcgen05_mma_arrive(key_factors_empty[it % 4])
            T.tcgen05_mma_arrive(keys_empty[it % STAGES])
        else:
            T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
            T.tcgen05_after_thread_sync()
            T.mbarrier_wait_parity(key_factors_full[it % 4], (it // 4) & 1)
            T.tcgen05_after_thread_sync()
            tcgen05.copy_factors(by_key, 0, key_factors, it % 4)
            T.mbarrier_wait_parity(scores_1_empty[T.truncdiv(it, 2) % 2], ((T.truncdiv(it, 2) // 2) & 1) ^ 1)
            T.tcgen05_after_thread_sync()
            # S[keys, heads] = K Q^T, scaled by blocks of 32
            tcgen05_pairs.multiply_pairs(
                keys, it % STAGES, queries, turn % 2, scores_1, T.truncdiv(it, 2) % 2, by_key, by_query,
                HEADS, True
            )
            T.tcgen05_mma_arrive(scores_1_full[T.truncdiv(it, 2) % 2])
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
    def lightning_indexer__tilelang_sm100a__decode_h32_q1_t128_st8_c1_e0_mxfp4_bf16(
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
        with T.Kernel(ctas, threads=352) as cta:
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
            queries = T.alloc_shared((2, HEADS, KEY_BYTES), "uint8")
            query_scales = T.alloc_shared((2, HEADS), "int32")
            head_weights = T.alloc_shared((2, HEADS), "float32")
            key_factors = T.alloc_shared((4, 32, 4), "int32")
            query_factors = T.alloc_shared((2, 32, 4), "int32")
            by_key = T.alloc_tmem((128, 4), "float32")
            by_query = T.alloc_tmem((128, 4), "float32")
            scores_0 = T.alloc_tmem((128, 2 * HEADS), "float32")
            scores_1 = T.alloc_tmem((128, 2 * HEADS), "float32")
            T.annotate_layout({b: make_half_bank_swizzled_layout(b) for b in (keys, queries)})
            keys_full = T.alloc_barrier([1] * STAGES)
            keys_empty = T.alloc_barrier([2] * STAGES)
            queries_full = T.alloc_barrier([1] * 2)
            queries_empty = T.alloc_barrier([10] * 2)
            key_factors_full = T.alloc_barrier([1] * 4)
            key_factors_empty = T.alloc_barrier([1] * 4)
            query_factors_full = T.alloc_barrier([1] * 2)
            query_factors_empty = T.alloc_barrier([1] * 2)
            scores_0_full = T.alloc_barrier([1] * 2)
            scores_0_empty = T.alloc_barrier([4] * 2)
            scores_1_full = T.alloc_barrier([1] * 2)
            scores_1_empty = T.alloc_barrier([4] * 2)

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
            early_length = T.alloc_var("int32", init=0)
            read_lengths(early_length, seq_lens, b, lane)
            entry = T.alloc_var("int32", init=0)
            ahead = T.alloc_var("int32", init=0)
            if (thread >= 256) & (thread < 288):
                # Entries past a length are garbage: no copy uses an entry before the length is known.
                row = T.min(seq, b - 1)
                table_entries(entry, block_table, T.truncdiv(row, sharing), tile, step, max_pages - 1, lane)
                table_entries(
                    ahead, block_table, T.truncdiv(row, sharing), tile + 16 * step, step, max_pages - 1, lane
                )
            lengths_to_score(need, early_length, b, skip_below, lane)
            # Which key tiles a CTA scores: `turns` tiles from `tile` of sequence `seq` on, `step` apart.
            leaf.find_share(seq, tile, need, turns, step, seq_lens, b, 1, skip_below, TILE, cta, ctas, lane)
            if thread < 128:
                score_0(
                    seq_lens, logits, skip_below, b, next_n, head_weights, scores_0, queries_full,
                    queries_empty, scores_0_full, scores_0_empty, seq, tile, step, need, turns, turn, fresh,
                    thread
                )
            elif thread < 256:
                score_1(
                    seq_lens, logits, skip_below, b, next_n, head_weights, scores_1, queries_full,
                    queries_empty, scores_1_full, scores_1_empty, seq, tile, step, need, turns, turn, fresh,
                    thread
                )
            elif thread < 288:
                load(
                    seq_lens, block_table, skip_below, sharing, b, k_cache_stride, query_map_rows,
                    factor_map_rows, weight_map_rows, key_map_rows, k_cache_words, keys, key_scales, queries,
                    query_scales, head_weights, keys_full, keys_empty, queries_full, queries_empty, seq, tile,
                    step, need, turns, turn, fresh, entry, ahead, lane
                )
            elif thread < 320:
                place(
                    seq_lens, skip_below, b, key_scales, query_scales, key_factors, query_factors, keys_full,
                    keys_empty, queries_full, queries_empty, key_factors_full, key_factors_empty,
                    query_factors_full, query_factors_empty, seq, tile, step, need, turns, turn, fresh, lane
                )
            else:
                mma(
                    seq_lens, skip_below, b, keys, queries, key_factors, query_factors, by_key, by_query,
                    scores_0, scores_1, keys_full, keys_empty, queries_full, queries_empty, key_factors_full,
                    key_factors_empty, query_factors_full, query_factors_empty, scores_0_full, scores_0_empty,
                    scores_1_full, scores_1_empty, seq, tile, step, need, turns, turn, fresh
                )
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return lightning_indexer__tilelang_sm100a__decode_h32_q1_t128_st8_c1_e0_mxfp4_bf16
