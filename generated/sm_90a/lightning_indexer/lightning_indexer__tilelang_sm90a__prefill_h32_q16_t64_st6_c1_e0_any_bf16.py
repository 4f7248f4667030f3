"""lightning_indexer__tilelang_sm90a__prefill_h32_q16_t64_st6_c1_e0_any_bf16

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=prefill, heads=32, queries=16, tile=64, stages=6, resident=1, evict=0, kind=any_bf16.

  load            score
  warps 16..19    warps 0..15
  |===== keys ===>|   keys key_scales, ring of 6; bulk -> wgmma
  |=== queries ==>|   queries head_weights, once; bulk -> wgmma

roles
  score      threads 0..511, 112 registers  products and epilogue, 4 query rows per replica
  load       threads 512..639, 24 registers  key tiles, queries
buffers
  keys       6 stages of 64x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 6 stages of 64 float32, shared
  queries    512x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 512 float32, shared
  acc        64x128 float32, registers of score
  weight     128x32 float32, registers of score
  scale      128x2 float32, registers of score
  logit      128x2 float32, registers of score
  begin      128x1 int32, registers of score
  size       128x1 int32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 6-slot ring]==> score (wgmma)
    full  x1, 8448 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: once]==> score (wgmma)
    full  x1, 67584 bytes: load arrive + expect bytes
      score: wait full
totals: 640 threads, 118376 of 232448 bytes of shared memory, grid (ceildiv(s, 16), splits)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout

from dsl_kernels.device.tilelang import boxes, warps, wgmma
from dsl_kernels.kernels.lightning_indexer import tilelang as leaf
from dsl_kernels.kernels.lightning_indexer import tilelang_sm90 as leaf_sm90

PASS_CONFIGS = leaf.PASS_CONFIGS

HEADS = 32  # index heads
QUERIES = 16  # decode: most queries per sequence; prefill: query rows per CTA
TILE = 64  # keys per tile
STAGES = 6  # key tiles in flight
BLOCK = 64
ROWS_PER_PRODUCT = 4
INDEX_DIM = 128
COLUMNS = 128


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
def read_windows(begin, size, k_start, k_end, row, s, skv, skip_below, thread):
    """Read the first key and the size of the window of this thread's row."""
    last_row = T.min(row + T.truncmod(thread, 4), s - 1)
    first_key = T.max(k_start[last_row], 0)
    end_key = T.min(k_end[last_row], skv)
    end_to_score = T.if_then_else(
        (row + T.truncmod(thread, 4) < s) & (end_key - first_key > skip_below), end_key, 0
    )
    begin[0] = first_key
    size[0] = T.max(end_to_score - first_key, 0)


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
def read_scales(scale, key_scales, key_scales_slot, thread):
    """Read the scales of this thread's keys of one product, from key `first` of the tile on."""
    scale[0] = key_scales[
        key_scales_slot, T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4) + 0
    ]
    scale[1] = key_scales[
        key_scales_slot, T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4) + 8
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
def store_window(logits, logit, scale, begin, size, row, key, compressed, thread):
    """Store this thread's logits of a product, times the scales, for the keys in its row's window."""
    # The part of the address that is the same for all products comes first, so it is computed once.
    place = key - (begin[0] - (T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4)))
    if warps.below(T.cast(place, "uint32"), T.cast(size[0], "uint32")):
        logits[
            row + T.truncmod(thread, 4),
            T.truncdiv(thread, 32) * 16 + T.truncdiv(
                T.truncmod(thread, 32), 4
            ) - begin[0] * compressed + key + 0
        ] = logit[0] * scale[0]
    if warps.below(T.cast((place + 8), "uint32"), T.cast(size[0], "uint32")):
        logits[
            row + T.truncmod(thread, 4),
            T.truncdiv(thread, 32) * 16 + T.truncdiv(
                T.truncmod(thread, 32), 4
            ) - begin[0] * compressed + key + 8
        ] = logit[1] * scale[1]


@T.macro
def score(
    k_start, k_end, logits, skip_below, compressed, s, skv, keys, key_scales, queries, head_weights,
    keys_full, keys_empty, queries_full, row: T.Ref, first: T.Ref, turns: T.Ref, thread, replica
):
    """Products and epilogue, 4 query rows per replica."""
    acc = T.alloc_local((64,), "float32")
    weight = T.alloc_local((ROWS_PER_PRODUCT * HEADS // 4,), "float32")
    scale = T.alloc_local((ROWS_PER_PRODUCT // 2,), "float32")
    logit = T.alloc_local((ROWS_PER_PRODUCT // 2,), "float32")
    begin = T.alloc_local((1,), "int32")
    size = T.alloc_local((1,), "int32")
    worker = thread - replica * 128
    own = row + replica * ROWS_PER_PRODUCT
    read_windows(begin, size, k_start, k_end, own, s, skv, skip_below, worker)
    if turns > 0:
        T.mbarrier_wait_parity(queries_full[0], 0)
        read_weights(weight, head_weights, 0, replica * COLUMNS, worker)
    for it in T.serial(turns):
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        # S[keys, heads] = K Q^T
        T.warpgroup_fence_operand(acc, num_regs=64)
        T.warpgroup_arrive()
        wgmma.multiply(
            acc, wgmma.operand(keys, it % STAGES, 0, 0, "k", 128, "float8_e4m3"),
            wgmma.operand(queries, 0, replica * COLUMNS, 0, "k", 128, "float8_e4m3"), BLOCK, COLUMNS,
            INDEX_DIM, "float8_e4m3", True
        )
        T.warpgroup_commit_batch()
        T.warpgroup_fence_operand(acc, num_regs=64)
        # Two scales per lane are two registers too many while the product runs.
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(acc, num_regs=64)
        read_scales(scale, key_scales, it % STAGES, worker)
        T.wait_wgmma(0)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        weigh(logit, acc, weight, worker)
        store_window(logits, logit, scale, begin, size, own, (first + it) * TILE, compressed, worker)


@T.macro
def load(
    q, s, index_heads, index_dim, q_stride_s, q_stride_h, weight_map_rows, key_map_rows, scale_map_rows, keys,
    key_scales, queries, head_weights, keys_full, keys_empty, queries_full, row: T.Ref, first: T.Ref,
    turns: T.Ref
):
    """Key tiles, queries."""
    if turns > 0:
        # queries: filled once, so its slot is free
        boxes.fold_box(
            boxes.box_map(
                q, "UINT8", (index_dim, index_heads, s,), (q_stride_h, q_stride_s,), (128, 32, 16), "128B"
            ),
            "UINT8", queries, 0, queries_full, 0, (row, 0, 0)
        )
        for i in T.serial(QUERIES):
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
            key_map_rows[key : key + TILE, 0 : INDEX_DIM], keys[it % STAGES, :, :],
            barrier=keys_full[it % STAGES]
        )
        T.tma_copy(
            scale_map_rows[0, key : key + TILE], key_scales[it % STAGES, :], barrier=keys_full[it % STAGES]
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_full[it % STAGES])


def program():
    s = T.dynamic("s")
    index_heads = T.dynamic("index_heads")
    index_dim = T.dynamic("index_dim")
    q_stride_s = T.dynamic("q_stride_s")
    q_stride_h = T.dynamic("q_stride_h")
    skv = T.dynamic("skv")
    k_stride = T.dynamic("k_stride")
    weights_stride = T.dynamic("weights_stride")
    stride = T.dynamic("stride")
    logits_stride = T.dynamic("logits_stride")

    @T.prim_func
    def lightning_indexer__tilelang_sm90a__prefill_h32_q16_t64_st6_c1_e0_any_bf16(
        q: T.StridedTensor((s, index_heads, index_dim), (q_stride_s, q_stride_h, 1), "float8_e4m3fn"),
        k: T.StridedTensor((skv, index_dim), (k_stride, 1), "float8_e4m3fn"),
        k_scales: T.Tensor((skv,), "float32"),
        weights: T.StridedTensor((s, index_heads), (weights_stride, 1), "float32"),
        k_start: T.Tensor((s,), "int32"),
        k_end: T.Tensor((s,), "int32"),
        logits: T.StridedTensor((s, stride), (logits_stride, 1), "bfloat16"),
        skip_below: T.int32,
        compressed: T.int32,
        splits: T.int32,
    ):
        with T.Kernel(T.ceildiv(s, 16), splits, threads=640) as (block, split):
            weight_map_rows = T.view(weights, (s, index_heads), "float32", strides=(weights_stride, 1))
            key_map_rows = T.view(k, (skv, index_dim), "float8_e4m3", strides=((k_stride) // 1, 1))
            scale_map_rows = T.view(k_scales, (1, skv), "float32", strides=(4, 1))
            T.import_source(leaf_sm90.SOURCE + wgmma.SOURCE + warps.SOURCE)
            keys = T.alloc_shared((STAGES, TILE, INDEX_DIM), "float8_e4m3")
            key_scales = T.alloc_shared((STAGES, TILE), "float32")
            queries = T.alloc_shared((1, QUERIES * HEADS, INDEX_DIM), "float8_e4m3")
            head_weights = T.alloc_shared((1, QUERIES * HEADS), "float32")
            T.annotate_layout({b: make_full_bank_swizzled_layout(b) for b in (keys, queries)})
            keys_full = T.alloc_barrier([1] * STAGES)
            keys_empty = T.alloc_barrier([4 * (BLOCK // 16)] * STAGES)
            queries_full = T.alloc_barrier([1])

            thread = T.get_thread_binding()
            lane = thread % 32
            row = T.alloc_var("int32", init=0)
            first = T.alloc_var("int32", init=0)
            turns = T.alloc_var("int32", init=0)
            # Later rows see more keys in a causal prefill: the longest blocks start first.
            row = (leaf.ceildiv(s, QUERIES) - 1 - block) * QUERIES
            find_tiles(first, turns, k_start, k_end, row, s, skv, skip_below, split, splits, lane)
            if thread < 128:
                T.set_max_nreg(112, 1)
                score(
                    k_start, k_end, logits, skip_below, compressed, s, skv, keys, key_scales, queries,
                    head_weights, keys_full, keys_empty, queries_full, row, first, turns, thread, 0
                )
            elif thread < 256:
                T.set_max_nreg(112, 1)
                score(
                    k_start, k_end, logits, skip_below, compressed, s, skv, keys, key_scales, queries,
                    head_weights, keys_full, keys_empty, queries_full, row, first, turns, thread, 1
                )
            elif thread < 384:
                T.set_max_nreg(112, 1)
                score(
                    k_start, k_end, logits, skip_below, compressed, s, skv, keys, key_scales, queries,
                    head_weights, keys_full, keys_empty, queries_full, row, first, turns, thread, 2
                )
            elif thread < 512:
                T.set_max_nreg(112, 1)
                score(
                    k_start, k_end, logits, skip_below, compressed, s, skv, keys, key_scales, queries,
                    head_weights, keys_full, keys_empty, queries_full, row, first, turns, thread, 3
                )
            else:
                T.set_max_nreg(24, 0)
                if thread < 544:
                    load(
                        q, s, index_heads, index_dim, q_stride_s, q_stride_h, weight_map_rows, key_map_rows,
                        scale_map_rows, keys, key_scales, queries, head_weights, keys_full, keys_empty,
                        queries_full, row, first, turns
                    )

    return lightning_indexer__tilelang_sm90a__prefill_h32_q16_t64_st6_c1_e0_any_bf16
