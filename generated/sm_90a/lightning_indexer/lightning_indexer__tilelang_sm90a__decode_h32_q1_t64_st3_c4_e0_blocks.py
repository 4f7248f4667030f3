"""lightning_indexer__tilelang_sm90a__decode_h32_q1_t64_st3_c4_e0_blocks

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=32, queries=1, tile=64, stages=3, resident=4, evict=0, kind=blocks.

  load            score
  warp 4          warps 0..3
  |===== keys ===>|   keys key_scales, ring of 3; bulk -> wgmma
  |=== queries ==>|   queries head_weights, ring of 2; bulk -> wgmma

roles
  score      threads 0..127  products and epilogue, 64 keys a warpgroup
  load       threads 128..159  block table, key pages, queries
buffers
  keys       3 stages of 64x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 3 stages of 256 float32, shared
  queries    2 stages of 32x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 2 stages of 32 float32, shared
  acc        64x32 float32, registers of score
  weight     128x8 float32, registers of score
  scale      128x1 float32, registers of score
  logit      128x1 float32, registers of score
  length     128x1 int32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 3-slot ring]==> score (wgmma)
    full  x1, 9216 bytes: load arrive + expect bytes
      score: wait full
    empty x4: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: 2-slot ring]==> score (wgmma)
    full  x1, 4224 bytes: load arrive + expect bytes
      score: wait full
    empty x4: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
totals: 160 threads, 36176 of 232448 bytes of shared memory, grid (ctas)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout

from dsl_kernels.device.tilelang import scalars, warps, wgmma
from dsl_kernels.kernels.lightning_indexer import tilelang as leaf
from dsl_kernels.kernels.lightning_indexer import tilelang_sm90 as leaf_sm90

PASS_CONFIGS = leaf.PASS_CONFIGS

HEADS = 32  # index heads
TILE = 64  # keys per tile
STAGES = 3  # key tiles in flight
TILE_BLOCKS = 8
BLOCK = 8
INDEX_DIM = 128
TILE_SCALES = 256
COLUMNS = 32


@T.macro
def read_lengths(length: T.Ref, seq_lens, b, lane):
    """Read the lengths of the first 32 sequences, one per lane. Lanes past the batch read the last length."""
    length = seq_lens[T.min(lane, b - 1), 0]


@T.macro
def block_entries(
    entry: T.Ref, place: T.Ref, block_table, row, first, step, last, page_size, block_size, sharing, lane
):
    """Like `grain_entries`, but for 8 keys per lane and a line of the table that rows share.

    An entry names a block of `block_size` keys. Blocks, which may be whole pages, are numbered across
    pages.
    """
    unit = T.alloc_var("uint32", init=T.cast(block_size, "uint32"))
    token = T.alloc_var(
        "uint32",
        init=T.cast(
            (
                T.min(
                    (first + T.truncdiv(lane, TILE_BLOCKS) * step) * TILE_BLOCKS + T.truncmod(
                        lane, TILE_BLOCKS
                    ),
                    last
                ) * BLOCK
            ),
            "uint32"
        )
    )
    at = T.alloc_var("uint32", init=T.truncdiv(token, unit))
    named_unit = T.alloc_var(
        "uint32",
        init=T.cast(
            block_table[
                T.cast(T.truncdiv(T.cast(row, "uint32"), T.cast(sharing, "uint32")), "int32"),
                T.cast(at, "int32")
            ],
            "uint32"
        )
    )
    per_page = T.alloc_var("uint32", init=T.truncdiv(T.cast(page_size, "uint32"), unit))
    page = T.alloc_var("uint32", init=T.truncdiv(named_unit, per_page))
    entry = T.cast(page, "int32")
    place = T.cast(((named_unit - page * per_page) * unit + (token - at * unit)), "int32")


@T.macro
def lengths_to_score(need: T.Ref, length, b, skip_below, lane):
    """The number of keys to score of each lane's sequence, from its length."""
    known = leaf.shuffle_length(length, lane)
    need = T.if_then_else((lane < b) & (known > skip_below), known, 0)


@T.macro
def read_weights(weight, head_weights, head_weights_slot, thread):
    """Read this thread's weights, query by query and two at a time, from `first` of the slot on."""
    for pair in T.unroll(HEADS // 8):
        for part in T.vectorized(2):
            weight[pair * 2 + part] = head_weights[
                head_weights_slot, (pair * 4 + T.truncmod(thread, 4)) * 2 + part
            ]


@T.macro
def read_block_scales(scale, key_scales, key_scales_slot, thread):
    """Read the scale of this thread's key of a product of one query.

    Copies of 8 keys are `apart` floats apart.
    """
    key = T.truncdiv(thread, 32) * 16 + (
        T.truncdiv(T.truncmod(thread, 32), 4) + 8 * T.truncmod(T.truncmod(thread, 32), 2)
    )
    scale[0] = key_scales[key_scales_slot, T.truncdiv(key, BLOCK) * 32 + T.truncmod(key, BLOCK)]


@T.macro
def weigh(logit, acc, weight, thread):
    """logit = sum_h weight[query, h] * max(acc[key, query, h], 0), for a product's queries and a quad's
    keys.

    Each of the quad's four lanes keeps its share of the logits.
    """
    odd = T.truncmod(thread, 2) == 1
    total_0_0 = T.alloc_var("float32", init=0.0)
    for pair in T.unroll(HEADS // 8):
        total_0_0 = total_0_0 + T.max(acc[pair * 4], 0.0) * weight[pair * 2]
        total_0_0 = total_0_0 + T.max(acc[pair * 4 + 1], 0.0) * weight[pair * 2 + 1]
    total_1_0 = T.alloc_var("float32", init=0.0)
    for pair in T.unroll(HEADS // 8):
        total_1_0 = total_1_0 + T.max(acc[pair * 4 + 2], 0.0) * weight[pair * 2]
        total_1_0 = total_1_0 + T.max(acc[pair * 4 + 3], 0.0) * weight[pair * 2 + 1]
    own = T.if_then_else(odd, total_1_0, total_0_0) + warps.exchange(
        T.if_then_else(odd, total_0_0, total_1_0), 1
    )
    logit[0] = own + warps.exchange(own, 2)


@T.macro
def one_length(length, need):
    """Set the length to that of the sequence's only query."""
    length[0] = need


@T.macro
def decode_scales(scale, mx):
    """Where `mx` is 1, turn a scale of four equal UE8M0 bytes into their power of two."""
    if mx != 0:
        for i in T.unroll(1):
            power = T.alloc_var("uint32", init=scalars.bits_of(scale[i]) & T.uint32(255))
            bits = T.alloc_var("uint32", init=power << T.uint32(23))
            if power == T.uint32(0):
                bits = 4194304
            if power == T.uint32(255):
                bits = 2143289344
            scale[i] = scalars.float_of(bits)


@T.macro
def store_logits(logits, logit, scale, length, seq, key, thread):
    """Store this thread's logits of a product, times the scales, for the keys that its query has."""
    at = key + (
        T.truncdiv(thread, 32) * 16 + (
            T.truncdiv(T.truncmod(thread, 32), 4) + 8 * T.truncmod(T.truncmod(thread, 32), 2)
        )
    )
    leaf_sm90.store_where(
        logits[seq, 0, at + 0], logit[0] * scale[0], (T.truncmod(thread, 4) < 2) & (at < length[0])
    )


@T.macro
def store_maxima(maxima, logit, scale, length, row, key, thread):
    """Store the greatest score of each 8 keys, from a product of one query.

    Only keys that the row has count, and NaN does not.
    """
    at = key + (
        T.truncdiv(thread, 32) * 16 + (
            T.truncdiv(T.truncmod(thread, 32), 4) + 8 * T.truncmod(T.truncmod(thread, 32), 2)
        )
    )
    nothing = T.alloc_var("uint32", init=4286578688)
    most = T.alloc_var("float32", init=scalars.float_of(nothing))
    if at < length[0]:
        most = logit[0] * scale[0]
    # The scores of a block are in every fourth lane, from lane 0 or lane 1 on.
    most = T.max(most, warps.exchange(most, 4))
    most = T.max(most, warps.exchange(most, 8))
    most = T.max(most, warps.exchange(most, 16))
    if (T.truncmod(thread, 32) < 2) & (at < length[0]):
        maxima[row, T.truncdiv(at, BLOCK)] = most


@T.macro
def block_entries_step_1(
    entry: T.Ref, place: T.Ref, block_table, row, first, last, page_size, block_size, sharing, lane
):
    """Like `grain_entries`, but for 8 keys per lane and a line of the table that rows share.

    An entry names a block of `block_size` keys. Blocks, which may be whole pages, are numbered across
    pages.
    """
    unit = T.alloc_var("uint32", init=T.cast(block_size, "uint32"))
    token = T.alloc_var(
        "uint32",
        init=T.cast(
            (
                T.min(
                    (first + T.truncdiv(lane, TILE_BLOCKS)) * TILE_BLOCKS + T.truncmod(lane, TILE_BLOCKS),
                    last
                ) * BLOCK
            ),
            "uint32"
        )
    )
    at = T.alloc_var("uint32", init=T.truncdiv(token, unit))
    named_unit = T.alloc_var(
        "uint32",
        init=T.cast(
            block_table[
                T.cast(T.truncdiv(T.cast(row, "uint32"), T.cast(sharing, "uint32")), "int32"),
                T.cast(at, "int32")
            ],
            "uint32"
        )
    )
    per_page = T.alloc_var("uint32", init=T.truncdiv(T.cast(page_size, "uint32"), unit))
    page = T.alloc_var("uint32", init=T.truncdiv(named_unit, per_page))
    entry = T.cast(page, "int32")
    place = T.cast(((named_unit - page * per_page) * unit + (token - at * unit)), "int32")


@T.macro
def entry_of(page: T.Ref, entry, place):
    """The entry that lane `place` holds."""
    page = warps.shuffle(entry, place)


@T.macro
def score(
    seq_lens, logits, skip_below, mx, has_maxima, maxima, b, keys, key_scales, queries, head_weights,
    keys_full, keys_empty, queries_full, queries_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref,
    turns: T.Ref, turn: T.Ref, fresh: T.Ref, thread
):
    """Products and epilogue, 64 keys a warpgroup."""
    acc = T.alloc_local((16,), "float32")
    weight = T.alloc_local((HEADS // 4,), "float32")
    scale = T.alloc_local((1,), "float32")
    logit = T.alloc_local((1,), "float32")
    length = T.alloc_local((1,), "int32")
    worker = thread
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, TILE)
        if fresh:
            if it > 0:
                T.wait_wgmma(0)
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(queries_empty[turn % 2])
            turn = turn + 1
            T.mbarrier_wait_parity(queries_full[turn % 2], (turn // 2) & 1)
            read_weights(weight, head_weights, turn % 2, worker)
        T.mbarrier_wait_parity(keys_full[it % STAGES], (it // STAGES) & 1)
        # S[keys, heads] = K Q^T
        T.warpgroup_fence_operand(acc, num_regs=16)
        T.warpgroup_arrive()
        wgmma.multiply(
            acc, wgmma.operand(keys, it % STAGES, 0, 0, "k", 128, "float8_e4m3"),
            wgmma.operand(queries, turn % 2, 0, 0, "k", 128, "float8_e4m3"), TILE, COLUMNS, INDEX_DIM,
            "float8_e4m3", True
        )
        T.warpgroup_commit_batch()
        T.warpgroup_fence_operand(acc, num_regs=16)
        read_block_scales(scale, key_scales, it % STAGES, worker)
        T.wait_wgmma(0)
        T.warpgroup_fence_operand(acc, num_regs=16)
        T.sync_warp()
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_empty[it % STAGES])
        weigh(logit, acc, weight, worker)
        one_length(length, need)
        decode_scales(scale, mx)
        store_logits(logits, logit, scale, length, seq, tile * TILE, worker)
        if has_maxima != 0:
            store_maxima(maxima, logit, scale, length, seq, tile * TILE, worker)
        tile = tile + step


@T.macro
def load(
    seq_lens, block_table, skip_below, page_size, block_size, sharing, b, index_dim, query_map_rows,
    weight_map_rows, key_map_rows, scale_map_rows, keys, key_scales, queries, head_weights, keys_full,
    keys_empty, queries_full, queries_empty, seq: T.Ref, tile: T.Ref, step: T.Ref, need: T.Ref, turns: T.Ref,
    turn: T.Ref, fresh: T.Ref, entry: T.Ref, ahead: T.Ref, place: T.Ref, place_ahead: T.Ref, lane
):
    """Block table, key pages, queries."""
    held = T.alloc_var("int32", init=0)
    page = T.alloc_var("int32", init=0)
    within = T.alloc_var("int32", init=0)
    for it in T.serial(turns):
        # Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
        # score.
        leaf.next_tile(fresh, it, seq, tile, need, seq_lens, b, 1, skip_below, TILE)
        last = leaf.ceildiv(need, BLOCK) - 1
        if fresh:
            turn = turn + 1
            held = 0
            if step == 1:
                block_entries_step_1(
                    entry, place, block_table, seq, tile, last, page_size, block_size, sharing, lane
                )
                block_entries_step_1(
                    ahead, place_ahead, block_table, seq, tile + 4, last, page_size, block_size, sharing,
                    lane
                )
            T.mbarrier_wait_parity(queries_empty[turn % 2], ((turn // 2) & 1) ^ 1)
            for i in T.serial(1):
                T.tma_copy(
                    query_map_rows[seq : seq + 1, 0 : 1, 0 : HEADS, 0 : INDEX_DIM], queries[turn % 2, :, :],
                    barrier=queries_full[turn % 2]
                )
                T.tma_copy(
                    weight_map_rows[seq : seq + 1, 0 : HEADS], head_weights[turn % 2, :],
                    barrier=queries_full[turn % 2]
                )
            if T.shuffle_elect(32):
                T.mbarrier_arrive(queries_full[turn % 2])
        if held == 4:
            held = 0
            entry = ahead
            place = place_ahead
            block_entries(
                ahead, place_ahead, block_table, seq, tile + 4 * step, step, last, page_size, block_size,
                sharing, lane
            )
        T.mbarrier_wait_parity(keys_empty[it % STAGES], ((it // STAGES) & 1) ^ 1)
        for p in T.unroll(TILE_BLOCKS):
            entry_of(page, entry, held * TILE_BLOCKS + T.min(p, last - tile * TILE_BLOCKS))
            entry_of(within, place, held * TILE_BLOCKS + T.min(p, last - tile * TILE_BLOCKS))
            T.tma_copy(
                key_map_rows[page : page + 1, within : within + BLOCK, 0 : INDEX_DIM],
                keys[it % STAGES, p * BLOCK : p * BLOCK + BLOCK, :], barrier=keys_full[it % STAGES]
            )
            T.tma_copy(
                scale_map_rows[
                    page : page + 1,
                    T.truncdiv(
                        page_size * index_dim, 4
                    ) + within : T.truncdiv(page_size * index_dim, 4) + within + BLOCK
                ],
                key_scales[it % STAGES, p * 32 : p * 32 + BLOCK], barrier=keys_full[it % STAGES]
            )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(keys_full[it % STAGES])
        held = held + 1
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
    lines = T.dynamic("lines")
    max_pages = T.dynamic("max_pages")
    block_table_stride = T.dynamic("block_table_stride")
    stride = T.dynamic("stride")
    logits_stride_b = T.dynamic("logits_stride_b")
    logits_stride_n = T.dynamic("logits_stride_n")
    maxima_rows = T.dynamic("maxima_rows")
    maxima_columns = T.dynamic("maxima_columns")
    maxima_stride = T.dynamic("maxima_stride")

    @T.prim_func
    def lightning_indexer__tilelang_sm90a__decode_h32_q1_t64_st3_c4_e0_blocks(
        q: T.StridedTensor(
            (b, next_n, index_heads, index_dim), (q_stride_b, q_stride_n, q_stride_h, 1), "float8_e4m3fn"
        ),
        k_cache: T.StridedTensor((pages, page_bytes), (k_cache_stride, 1), "uint8"),
        weights: T.StridedTensor((rows, index_heads), (weights_stride, 1), "float32"),
        seq_lens: T.StridedTensor((b, next_n), (seq_lens_stride, 1), "int32"),
        block_table: T.StridedTensor((lines, max_pages), (block_table_stride, 1), "int32"),
        logits: T.StridedTensor((b, next_n, stride), (logits_stride_b, logits_stride_n, 1), "float32"),
        skip_below: T.int32,
        page_size: T.int32,
        block_size: T.int32,
        sharing: T.int32,
        mx: T.int32,
        has_maxima: T.int32,
        maxima: T.StridedTensor((maxima_rows, maxima_columns), (maxima_stride, 1), "float32"),
        ctas: T.int32,
    ):
        with T.Kernel(ctas, threads=160) as cta:
            T.annotate_min_blocks_per_sm(4)
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
            T.import_source(leaf_sm90.SOURCE + wgmma.SOURCE + warps.SOURCE + scalars.SOURCE)
            keys = T.alloc_shared((STAGES, TILE, INDEX_DIM), "float8_e4m3")
            key_scales = T.alloc_shared((STAGES, TILE_SCALES), "float32")
            queries = T.alloc_shared((2, HEADS, INDEX_DIM), "float8_e4m3")
            head_weights = T.alloc_shared((2, HEADS), "float32")
            T.annotate_layout({b: make_full_bank_swizzled_layout(b) for b in (keys, queries)})
            keys_full = T.alloc_barrier([1] * STAGES)
            keys_empty = T.alloc_barrier([TILE // 16] * STAGES)
            queries_full = T.alloc_barrier([1] * 2)
            queries_empty = T.alloc_barrier([TILE // 16] * 2)

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
            place = T.alloc_var("int32", init=0)
            place_ahead = T.alloc_var("int32", init=0)
            if (thread >= 128) & (thread < 160):
                # Entries past a length are garbage: no copy uses an entry before the length is known.
                row = T.min(seq, b - 1)
                block_entries(
                    entry, place, block_table, row, tile, step, T.truncdiv(max_pages * block_size, BLOCK) - 1,
                    page_size, block_size, sharing, lane
                )
                block_entries(
                    ahead, place_ahead, block_table, row, tile + 4 * step, step,
                    T.truncdiv(max_pages * block_size, BLOCK) - 1, page_size, block_size, sharing, lane
                )
            lengths_to_score(need, early_length, b, skip_below, lane)
            # Which key tiles a CTA scores: `turns` tiles from `tile` of sequence `seq` on, `step` apart.
            leaf.find_share(seq, tile, need, turns, step, seq_lens, b, 1, skip_below, TILE, cta, ctas, lane)
            if thread < 128:
                score(
                    seq_lens, logits, skip_below, mx, has_maxima, maxima, b, keys, key_scales, queries,
                    head_weights, keys_full, keys_empty, queries_full, queries_empty, seq, tile, step, need,
                    turns, turn, fresh, thread
                )
            else:
                load(
                    seq_lens, block_table, skip_below, page_size, block_size, sharing, b, index_dim,
                    query_map_rows, weight_map_rows, key_map_rows, scale_map_rows, keys, key_scales, queries,
                    head_weights, keys_full, keys_empty, queries_full, queries_empty, seq, tile, step, need,
                    turns, turn, fresh, entry, ahead, place, place_ahead, lane
                )

    return lightning_indexer__tilelang_sm90a__decode_h32_q1_t64_st3_c4_e0_blocks
