"""lightning_indexer__tilelang_sm90a__decode_h32_q16_t256_st4_c1_e0

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=32, queries=16, tile=256, stages=4, resident=1, evict=0.

  load            score
  warps 16..19    warps 0..15
  |===== keys ===>|   keys key_scales, ring of 4; bulk -> wgmma
  |=== queries ==>|   queries head_weights; bulk -> wgmma

roles
  score      threads 0..511, 104 registers  products and epilogue, 64 keys a warpgroup
  load       threads 512..639, 64 registers  block table, key pages, queries
buffers
  keys       4 stages of 256x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 4 stages of 256 float32, shared
  queries    512x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 512 float32, shared
  acc        256x128 float32, registers of score
  weight     512x32 float32, registers of score
  scale      512x2 float32, registers of score
  logit      512x2 float32, registers of score
  length     512x1 int32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 4-slot ring]==> score (wgmma)
    full  x1, 33792 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: 1-slot ring]==> score (wgmma)
    full  x1, 67584 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
totals: 640 threads, 202832 of 232448 bytes of shared memory, grid (ctas)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout

from dsl_kernels.device.tilelang import warps, wgmma
from dsl_kernels.kernels.lightning_indexer import tilelang as leaf
from dsl_kernels.kernels.lightning_indexer import tilelang_sm90 as leaf_sm90

PASS_CONFIGS = leaf.PASS_CONFIGS

HEADS = 32  # index heads
QUERIES = 16  # decode: most queries per sequence; prefill: query rows per CTA
TILE = 256  # keys per tile
STAGES = 4  # key tiles in flight
TILE_PAGES = 4
INDEX_DIM = 128
ROWS_PER_PRODUCT = 4
COLUMNS = 128
PAGE = 64
SCALE_WORD = 2048


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
def read_scales(scale, key_scales, key_scales_slot, thread):
    """Read the scales of this thread's keys of one product, from key `first` of the tile on."""
    scale[0] = key_scales[
        key_scales_slot, T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4) + 0
    ]
    scale[1] = key_scales[
        key_scales_slot, T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4) + 8
    ]


@T.macro
def read_query_lengths(length, seq_lens, seq, query, next_n, skip_below, thread):
    """Read the keys to score of this thread's query: 0 past next_n and for a row that is taken whole."""
    own = query + T.truncmod(thread, 4)
    found = T.alloc_var("int32", init=0)
    if own < next_n:
        found = seq_lens[seq, own]
        if found <= skip_below:
            found = 0
    length[0] = found


@T.macro
def read_weights(weight, head_weights, head_weights_slot, first, thread):
    """Read this thread's weights, query by query and two at a time, from `first` of the slot on."""
    for pair in T.unroll(HEADS // 8):
        for part in T.vectorized(2):
            weight[pair * 2 + part] = head_weights[
                head_weights_slot, (T.truncdiv(first, 2) + pair * 4 + T.truncmod(thread, 4)) * 2 + part
            ]
    for pair in T.unroll(HEADS // 8):
        for part in T.vectorized(2):
            weight[HEADS // 4 + pair * 2 + part] = head_weights[
                head_weights_slot,
                (T.truncdiv(first, 2) + HEADS // 2 + pair * 4 + T.truncmod(thread, 4)) * 2 + part
            ]
    for pair in T.unroll(HEADS // 8):
        for part in T.vectorized(2):
            weight[2 * (HEADS // 4) + pair * 2 + part] = head_weights[
                head_weights_slot,
                (T.truncdiv(first, 2) + 2 * (HEADS // 2) + pair * 4 + T.truncmod(thread, 4)) * 2 + part
            ]
    for pair in T.unroll(HEADS // 8):
        for part in T.vectorized(2):
            weight[3 * (HEADS // 4) + pair * 2 + part] = head_weights[
                head_weights_slot,
                (T.truncdiv(first, 2) + 3 * (HEADS // 2) + pair * 4 + T.truncmod(thread, 4)) * 2 + part
            ]


@T.macro
def weigh(logit, acc, weight, thread):
    """logit = sum_h weight[query, h] * max(acc[key, query, h], 0), for a product's queries and a quad's
    keys.

    Each of the quad's four lanes keeps its share of the logits.
    """
    odd = T.truncmod(thread, 2) == 1
    upper = T.truncmod(T.truncdiv(thread, 2), 2) == 1
    total_0_0 = T.alloc_var("float32", init=0.0)
    for pair in T.unroll(HEADS // 8):
        total_0_0 = total_0_0 + T.max(acc[pair * 4], 0.0) * weight[pair * 2]
        total_0_0 = total_0_0 + T.max(acc[pair * 4 + 1], 0.0) * weight[pair * 2 + 1]
    total_0_1 = T.alloc_var("float32", init=0.0)
    for pair in T.unroll(HEADS // 8):
        total_0_1 = total_0_1 + T.max(acc[(HEADS // 8 + pair) * 4], 0.0) * weight[(HEADS // 8 + pair) * 2]
        total_0_1 = total_0_1 + T.max(acc[(HEADS // 8 + pair) * 4 + 1], 0.0) * weight[
            (HEADS // 8 + pair) * 2 + 1
        ]
    total_0_2 = T.alloc_var("float32", init=0.0)
    for pair in T.unroll(HEADS // 8):
        total_0_2 = total_0_2 + T.max(acc[(2 * (HEADS // 8) + pair) * 4], 0.0) * weight[
            (2 * (HEADS // 8) + pair) * 2
        ]
        total_0_2 = total_0_2 + T.max(acc[(2 * (HEADS // 8) + pair) * 4 + 1], 0.0) * weight[
            (2 * (HEADS // 8) + pair) * 2 + 1
        ]
    total_0_3 = T.alloc_var("float32", init=0.0)
    for pair in T.unroll(HEADS // 8):
        total_0_3 = total_0_3 + T.max(acc[(3 * (HEADS // 8) + pair) * 4], 0.0) * weight[
            (3 * (HEADS // 8) + pair) * 2
        ]
        total_0_3 = total_0_3 + T.max(acc[(3 * (HEADS // 8) + pair) * 4 + 1], 0.0) * weight[
            (3 * (HEADS // 8) + pair) * 2 + 1
        ]
    total_1_0 = T.alloc_var("float32", init=0.0)
    for pair in T.unroll(HEADS // 8):
        total_1_0 = total_1_0 + T.max(acc[pair * 4 + 2], 0.0) * weight[pair * 2]
        total_1_0 = total_1_0 + T.max(acc[pair * 4 + 3], 0.0) * weight[pair * 2 + 1]
    total_1_1 = T.alloc_var("float32", init=0.0)
    for pair in T.unroll(HEADS // 8):
        total_1_1 = total_1_1 + T.max(acc[(HEADS // 8 + pair) * 4 + 2], 0.0) * weight[(HEADS // 8 + pair) * 2]
        total_1_1 = total_1_1 + T.max(acc[(HEADS // 8 + pair) * 4 + 3], 0.0) * weight[
            (HEADS // 8 + pair) * 2 + 1
        ]
    total_1_2 = T.alloc_var("float32", init=0.0)
    for pair in T.unroll(HEADS // 8):
        total_1_2 = total_1_2 + T.max(acc[(2 * (HEADS // 8) + pair) * 4 + 2], 0.0) * weight[
            (2 * (HEADS // 8) + pair) * 2
        ]
        total_1_2 = total_1_2 + T.max(acc[(2 * (HEADS // 8) + pair) * 4 + 3], 0.0) * weight[
            (2 * (HEADS // 8) + pair) * 2 + 1
        ]
    total_1_3 = T.alloc_var("float32", init=0.0)
    for pair in T.unroll(HEADS // 8):
        total_1_3 = total_1_3 + T.max(acc[(3 * (HEADS // 8) + pair) * 4 + 2], 0.0) * weight[
            (3 * (HEADS // 8) + pair) * 2
        ]
        total_1_3 = total_1_3 + T.max(acc[(3 * (HEADS // 8) + pair) * 4 + 3], 0.0) * weight[
            (3 * (HEADS // 8) + pair) * 2 + 1
        ]
    low_0 = T.if_then_else(odd, total_0_1, total_0_0) + warps.exchange(
        T.if_then_else(odd, total_0_0, total_0_1), 1
    )
    high_0 = T.if_then_else(odd, total_0_3, total_0_2) + warps.exchange(
        T.if_then_else(odd, total_0_2, total_0_3), 1
    )
    logit[0] = T.if_then_else(upper, high_0, low_0) + warps.exchange(T.if_then_else(upper, low_0, high_0), 2)
    low_1 = T.if_then_else(odd, total_1_1, total_1_0) + warps.exchange(
        T.if_then_else(odd, total_1_0, total_1_1), 1
    )
    high_1 = T.if_then_else(odd, total_1_3, total_1_2) + warps.exchange(
        T.if_then_else(odd, total_1_2, total_1_3), 1
    )
    logit[1] = T.if_then_else(upper, high_1, low_1) + warps.exchange(T.if_then_else(upper, low_1, high_1), 2)


@T.macro
def store_logits(logits, logit, scale, length, seq, query, key, thread):
    """Store this thread's logits of a product, times the scales, for the keys that its query has."""
    at = key + (T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4))
    leaf_sm90.store_where(
        logits[seq, query + T.truncmod(thread, 4), at + 0], logit[0] * scale[0], at < length[0]
    )
    leaf_sm90.store_where(
        logits[seq, query + T.truncmod(thread, 4), at + 8 + 0], logit[1] * scale[1], at + 8 < length[0]
    )


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
def score(
    seq_lens, logits, skip_below, b, next_n, keys, key_scales, queries, head_weights, keys_full, keys_empty,
    queries_full, queries_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref, turn: T.Ref,
    fresh: T.Ref, thread, warp
):
    """Products and epilogue, 64 keys a warpgroup."""
    acc = T.alloc_local((64,), "float32")
    weight = T.alloc_local((ROWS_PER_PRODUCT * HEADS // 4,), "float32")
    scale = T.alloc_local((ROWS_PER_PRODUCT // 2,), "float32")
    logit = T.alloc_local((ROWS_PER_PRODUCT // 2,), "float32")
    length = T.alloc_local((1,), "int32")
    worker = thread
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, next_n, skip_below, TILE)
        if fresh:
            if it > 0:
                T.wait_wgmma(0)
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(queries_empty[0])
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[0], turn & 1)
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        read_scales(scale, key_scales, it % STAGES, worker)
        for product in T.serial(leaf.ceildiv(next_n, ROWS_PER_PRODUCT)):
            # S[keys, heads] = K Q^T
            T.warpgroup_fence_operand(acc, num_regs=64)
            T.warpgroup_arrive()
            wgmma.multiply(
                acc, wgmma.operand(keys, it % STAGES, (warp // 4) * 64, 0, "k", 128, "float8_e4m3"),
                wgmma.operand(queries, 0, product * COLUMNS, 0, "k", 128, "float8_e4m3"),
                TILE // (TILE // 16 // 4), COLUMNS, INDEX_DIM, "float8_e4m3", True
            )
            T.warpgroup_commit_batch()
            T.warpgroup_fence_operand(acc, num_regs=64)
            read_query_lengths(length, seq_lens, seq, product * ROWS_PER_PRODUCT, next_n, skip_below, worker)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(acc, num_regs=64)
            read_weights(weight, head_weights, 0, product * COLUMNS, worker)
            weigh(logit, acc, weight, worker)
            store_logits(logits, logit, scale, length, seq, product * ROWS_PER_PRODUCT, tile * TILE, worker)
        T.wait_wgmma(0)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        tile = tile + step


@T.macro
def load(
    seq_lens, block_table, skip_below, b, next_n, k_cache_stride, query_map_rows, weights_words, key_map_rows,
    k_cache_words, keys, key_scales, queries, head_weights, keys_full, keys_empty, queries_full,
    queries_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref, turn: T.Ref, fresh: T.Ref,
    entry: T.Ref, ahead: T.Ref, lane
):
    """Block table, key pages, queries."""
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
                table_entries_step_1(entry, block_table, seq, tile, last, lane)
                table_entries_step_1(ahead, block_table, seq, tile + 8, last, lane)
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
                    weights_words[seq, query, 0 : HEADS], head_weights[0, i * HEADS : i * HEADS + HEADS],
                    barrier=queries_full[0]
                )
            if T.shuffle_elect(32):
                T.mbarrier_arrive(queries_full[0])
        if held == 8:
            held = 0
            entry = ahead
            table_entries(ahead, block_table, seq, tile + 8 * step, step, last, lane)
        T.mbarrier_wait_parity(keys_empty[it % STAGES], ((it // STAGES) & 1) ^ 1)
        for p in T.unroll(TILE_PAGES):
            entry_of(page, entry, held * TILE_PAGES + T.min(p, last - tile * TILE_PAGES))
            T.tma_copy(
                key_map_rows[
                    page * T.truncdiv(
                        k_cache_stride, INDEX_DIM
                    ) : page * T.truncdiv(k_cache_stride, INDEX_DIM) + PAGE,
                    0 : INDEX_DIM
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


def program():
    b = T.dynamic("b")
    next_n = T.dynamic("next_n")
    q_stride_b = T.dynamic("q_stride_b")
    q_stride_n = T.dynamic("q_stride_n")
    q_stride_h = T.dynamic("q_stride_h")
    pages = T.dynamic("pages")
    k_cache_stride = T.dynamic("k_cache_stride")
    weights_stride_b = T.dynamic("weights_stride_b")
    weights_stride_n = T.dynamic("weights_stride_n")
    seq_lens_stride = T.dynamic("seq_lens_stride")
    max_pages = T.dynamic("max_pages")
    block_table_stride = T.dynamic("block_table_stride")
    stride = T.dynamic("stride")
    logits_stride_b = T.dynamic("logits_stride_b")
    logits_stride_n = T.dynamic("logits_stride_n")

    @T.prim_func
    def lightning_indexer__tilelang_sm90a__decode_h32_q16_t256_st4_c1_e0(
        q: T.StridedTensor((b, next_n, 32, 128), (q_stride_b, q_stride_n, q_stride_h, 1), "float8_e4m3fn"),
        k_cache: T.StridedTensor((pages, 8448), (k_cache_stride, 1), "uint8"),
        weights: T.StridedTensor((b, next_n, 32), (weights_stride_b, weights_stride_n, 1), "float32"),
        seq_lens: T.StridedTensor((b, next_n), (seq_lens_stride, 1), "int32"),
        block_table: T.StridedTensor((b, max_pages), (block_table_stride, 1), "int32"),
        logits: T.StridedTensor((b, next_n, stride), (logits_stride_b, logits_stride_n, 1), "float32"),
        skip_below: T.int32,
        ctas: T.int32,
    ):
        with T.Kernel(ctas, threads=640) as cta:
            query_map_rows = T.view(
                q, (b, next_n, 32, 128), "float8_e4m3",
                strides=((q_stride_b) // 1, (q_stride_n) // 1, (q_stride_h) // 1, 1)
            )
            weights_words = T.view(
                weights, (b, next_n, 32), "float32", strides=(weights_stride_b, weights_stride_n, 1)
            )
            key_map_rows = T.StridedTensor(
                ((pages - 1) * (k_cache_stride // 128) + 66, 128), ((128) // 1, 1), "float8_e4m3",
                data=k_cache.data
            )
            k_cache_words = T.view(k_cache, (pages, 2112), "float32", strides=(k_cache_stride // 4, 1))
            T.import_source(leaf_sm90.SOURCE + wgmma.SOURCE + warps.SOURCE)
            keys = T.alloc_shared((STAGES, TILE, INDEX_DIM), "float8_e4m3")
            key_scales = T.alloc_shared((STAGES, TILE), "float32")
            queries = T.alloc_shared((1, QUERIES * HEADS, INDEX_DIM), "float8_e4m3")
            head_weights = T.alloc_shared((1, QUERIES * HEADS), "float32")
            T.annotate_layout({b: make_full_bank_swizzled_layout(b) for b in (keys, queries)})
            keys_full = T.alloc_barrier([1] * STAGES)
            keys_empty = T.alloc_barrier([TILE // 16] * STAGES)
            queries_full = T.alloc_barrier([1])
            queries_empty = T.alloc_barrier([TILE // 16])

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32
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
                table_entries(entry, block_table, row, tile, step, max_pages - 1, lane)
                table_entries(ahead, block_table, row, tile + 8 * step, step, max_pages - 1, lane)
            # The longest prefix that a query of each lane's sequence has to score; 0 past the batch.
            leaf.keys_to_score(need, seq_lens, b, next_n, skip_below, lane)
            # Which key tiles a CTA scores: `turns` tiles from `tile` of sequence `seq` on, `step` apart.
            leaf.find_share(
                seq, tile, need, turns, step, seq_lens, b, next_n, skip_below, TILE, cta, ctas, lane
            )
            if thread < 512:
                T.set_max_nreg(104, 1)
                score(
                    seq_lens, logits, skip_below, b, next_n, keys, key_scales, queries, head_weights,
                    keys_full, keys_empty, queries_full, queries_empty, seq, tile, step, need, turns, turn,
                    fresh, thread, warp
                )
            else:
                T.set_max_nreg(64, 0)
                if thread < 544:
                    load(
                        seq_lens, block_table, skip_below, b, next_n, k_cache_stride, query_map_rows,
                        weights_words, key_map_rows, k_cache_words, keys, key_scales, queries, head_weights,
                        keys_full, keys_empty, queries_full, queries_empty, seq, tile, step, need, turns,
                        turn, fresh, entry, ahead, lane
                    )

    return lightning_indexer__tilelang_sm90a__decode_h32_q16_t256_st4_c1_e0
