"""lightning_indexer__cutedsl_sm90a__decode_h64_q16_t256_st2_c1_e0_any_bf16

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=64, queries=16, tile=256, stages=2, resident=1, evict=0, kind=any_bf16.

  load            score
  warps 16..19    warps 0..15
  |===== keys ===>|   keys key_scales, ring of 2; bulk -> wgmma
  |=== queries ==>|   queries head_weights; bulk -> wgmma

roles
  score      threads 0..511, 104 registers  products and epilogue, 64 keys a warpgroup
  load       threads 512..639, 64 registers  block table, key pages, queries
buffers
  keys       2 stages of 256x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 2 stages of 512 float32, shared
  queries    1024x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 1024 float32, shared
  acc        256x128 float32, registers of score
  weight     512x32 float32, registers of score
  scale      512x1 float32, registers of score
  logit      512x1 float32, registers of score
  length     512x1 int32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 2-slot ring]==> score (wgmma)
    full  x1, 34816 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: 1-slot ring]==> score (wgmma)
    full  x1, 135168 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
totals: 640 threads, 204848 of 232448 bytes of shared memory, grid (ctas)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from dsl_kernels.device.cutedsl import boxes, bulk, warps, wgmma
from dsl_kernels.kernels.lightning_indexer import cutedsl as leaf
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

HEADS = 64  # index heads
QUERIES = 16  # decode: most queries per sequence; prefill: query rows per CTA
TILE = 256  # keys per tile
STAGES = 2  # key tiles in flight
TILE_GRAINS = 16
GRAIN = 16
INDEX_DIM = 128
TILE_SCALES = 512
ROWS_PER_PRODUCT = 2
COLUMNS = 128

SCORE = wgmma.Product("float8_e4m3", TILE // (TILE // 16 // 4), COLUMNS, INDEX_DIM, "k", "k")

LAUNCH = Launch(
    operands=(
        Operand(
            "q", "tensor", "float8_e4m3fn", ("b", "next_n", "index_heads", "index_dim"),
            strides=("q_stride_b", "q_stride_n", "q_stride_h", "1")
        ),
        Operand("k_cache", "tensor", "uint8", ("pages", "page_bytes"), strides=("k_cache_stride", "1")),
        Operand("weights", "tensor", "float32", ("rows", "index_heads"), strides=("weights_stride", "1")),
        Operand("seq_lens", "tensor", "int32", ("b", "next_n"), strides=("seq_lens_stride", "1")),
        Operand("block_table", "tensor", "int32", ("b", "max_pages"), strides=("block_table_stride", "1")),
        Operand(
            "logits", "tensor", "bfloat16", ("b", "next_n", "stride"),
            strides=("logits_stride_b", "logits_stride_n", "1"), written=True
        ),
        Operand("skip_below", "scalar", "int32"),
        Operand("page_size", "scalar", "int32"),
        Operand("ctas", "scalar", "int32"),
    ),
    grid=("ctas", "1", "1"),
    block=640,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "query_map", "q", "UINT8", global_dims=(
                "index_dim", "index_heads", "next_n", "b"
            ), global_strides=("q_stride_h", "q_stride_n", "q_stride_b"),
            box=(INDEX_DIM, HEADS, 1, 1), element_strides=(1, 1, 1, 1),
            swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "weight_map", "weights", "FLOAT32", global_dims=("index_heads", "rows"), global_strides=(
                "weights_stride * 4",
            ),
            box=(HEADS, 1), element_strides=(1, 1), swizzle="NONE", l2_promotion="NONE",
        ),
        TensorMap(
            "key_map", "k_cache", "UINT8", global_dims=("index_dim", "page_size", "pages"), global_strides=(
                "index_dim", "k_cache_stride"
            ),
            box=(INDEX_DIM, GRAIN, 1), element_strides=(1, 1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "scale_map", "k_cache", "FLOAT32", global_dims=("page_bytes // 4", "pages"), global_strides=(
                "k_cache_stride",
            ),
            box=(GRAIN, 1), element_strides=(1, 1), swizzle="NONE", l2_promotion="NONE",
        ),
    ),
)


@cute.struct
class Shared:
    keys: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, STAGES * TILE * INDEX_DIM], 1024]
    key_scales: cute.struct.Align[cute.struct.MemRange[Float32, STAGES * TILE_SCALES], 128]
    queries: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, QUERIES * HEADS * INDEX_DIM], 1024]
    head_weights: cute.struct.Align[cute.struct.MemRange[Float32, QUERIES * HEADS], 128]
    keys_full: cute.struct.MemRange[Int64, STAGES]
    keys_empty: cute.struct.MemRange[Int64, STAGES]
    queries_full: cute.struct.MemRange[Int64, 1]
    queries_empty: cute.struct.MemRange[Int64, 1]


@cute.jit
def place_when_even(b, cta, ctas):
    """Where a CTA starts in an even split: a sequence has `step` CTAs, and these take its tiles in turn."""
    seq = Int32(0)
    tile = cta
    step = ctas
    if b > 1:
        step = cutlass.max(leaf.quotient(ctas, b), 1)
        seq = leaf.quotient(cta, step)
        tile = cta - seq * step
    return seq, tile, step


@cute.jit
def grain_entries(block_table, block_table_stride_0, row, first, step, last, page_size, lane):
    """Like `table_entries`, read an entry per lane for 16 keys, with the place of these keys in the page.

    The entries are for 32 / grains tiles from `first` on, `step` apart. A lane past group `last` of 16
    keys reads the entry of that group.
    """
    line = row * block_table_stride_0
    token = Int32(
        cutlass.min((first + lane // TILE_GRAINS * step) * TILE_GRAINS + lane % TILE_GRAINS, last) * GRAIN
    )
    page = Int32((token.to(cutlass.Uint32) // page_size.to(cutlass.Uint32)).to(Int32))
    entry = block_table[line + page]
    place = token - page * page_size
    return entry, place


@cute.jit
def keys_to_score(seq_lens, seq_lens_stride_0, b, next_n, skip_below, sequence):
    """The longest prefix that a query of each lane's sequence has to score; 0 past the batch."""
    lengths = cutlass.min(sequence, b - 1) * seq_lens_stride_0
    most_keys = Int32(0)
    for i in cutlass.range(next_n, unroll=1):
        length = seq_lens[lengths + i]
        most_keys = cutlass.max(most_keys, cutlass.select_(length > skip_below, length, 0))
    need = cutlass.select_(sequence < b, most_keys, 0)
    return need


@cute.jit
def find_share(seq, tile, need, step, seq_lens, seq_lens_stride_0, b, next_n, skip_below, cta, ctas, lane):
    """Which key tiles a CTA scores: `turns` tiles from `tile` of sequence `seq` on, `step` apart.

    The inputs are the results of place_when_even, and in each lane that of keys_to_score for one of the
    first 32 sequences. `need` becomes that of `seq`. The split is even where it gives no CTA more tiles
    than contiguous equal shares of all tiles, end to end, would give. Otherwise the CTAs take such
    shares.
    """
    turns = Int32(0)
    if b == 1:
        need = warps.shuffle(need, 0)
        turns = leaf.share_size(leaf.ceildiv(need, TILE), cta, ctas)
    else:
        total = Int32(leaf.ceildiv(need, TILE))
        longest = Int32(total)
        for c in cutlass.range(1, leaf.ceildiv(b, 32), 1, unroll=1):
            sequence = c * 32 + lane
            lengths = cutlass.min(sequence, b - 1) * seq_lens_stride_0
            most_keys = Int32(0)
            for i in cutlass.range(next_n, unroll=1):
                length = seq_lens[lengths + i]
                most_keys = cutlass.max(most_keys, cutlass.select_(length > skip_below, length, 0))
            tiles = leaf.ceildiv(cutlass.select_(sequence < b, most_keys, 0), TILE)
            total = total + tiles
            longest = cutlass.max(longest, tiles)
        total = warps.warp_sum(total)
        longest = warps.warp_max(longest)
        if (b <= ctas) & (longest <= leaf.ceildiv(total, ctas) * step):
            if seq < 32:
                need = warps.shuffle(need, seq)
            else:
                lengths = cutlass.min(seq, b - 1) * seq_lens_stride_0
                most_keys = Int32(0)
                for i in cutlass.range(next_n, unroll=1):
                    length = seq_lens[lengths + i]
                    most_keys = cutlass.max(most_keys, cutlass.select_(length > skip_below, length, 0))
                need = cutlass.select_(seq < b, most_keys, 0)
            turns = leaf.quotient(leaf.ceildiv(need, TILE) - tile + step - 1, step)
        else:
            begin = leaf.share_begin(total, cta, ctas)
            turns = leaf.share_size(total, cta, ctas)
            step = Int32(1)
            before = Int32(0)
            batch = Int32(0)
            searching = Boolean(turns > 0)
            while searching:
                if batch > 0:
                    sequence = batch * 32 + lane
                    lengths = cutlass.min(sequence, b - 1) * seq_lens_stride_0
                    most_keys = Int32(0)
                    for i in cutlass.range(next_n, unroll=1):
                        length = seq_lens[lengths + i]
                        most_keys = cutlass.max(most_keys, cutlass.select_(length > skip_below, length, 0))
                    need = cutlass.select_(sequence < b, most_keys, 0)
                tiles = leaf.ceildiv(need, TILE)
                upto = before + warps.scan(tiles)
                hit = warps.ballot((upto > begin) & (upto - tiles <= begin))
                before = warps.shuffle(upto, 31)
                if hit != 0:
                    # Sequences are in order, so at most one lane has the first tile of this share.
                    owner = 31 - warps.clz(hit)
                    seq = batch * 32 + owner
                    tile = begin - warps.shuffle(upto - tiles, owner)
                    need = warps.shuffle(need, owner)
                    searching = Boolean(False)
                batch = batch + 1
    return seq, tile, need, turns, step


@cute.jit
def next_tile(it, seq, tile, need, seq_lens, seq_lens_stride_0, b, next_n, skip_below):
    """Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to
    score.

    `fresh` says whether the tile is the first one of its sequence in this share.
    """
    fresh = (it == 0) | (tile * TILE >= need)
    while tile * TILE >= need:
        seq = seq + 1
        tile = Int32(0)
        lengths = cutlass.min(seq, b - 1) * seq_lens_stride_0
        most_keys = Int32(0)
        for i in cutlass.range(next_n, unroll=1):
            length = seq_lens[lengths + i]
            most_keys = cutlass.max(most_keys, cutlass.select_(length > skip_below, length, 0))
        need = cutlass.select_(seq < b, most_keys, 0)
    return fresh, seq, tile, need


@cute.jit
def read_scales(scale, key_scales, thread):
    """Read the scales of this thread's keys of one product, from key `first` of the tile on."""
    own = key_scales + (thread // 32 * 32 + (thread % 32 // 4 + 8 * (thread % 32 % 2)))
    scale[0] = own[0]


@cute.jit
def read_query_lengths(length, seq_lens, seq_lens_stride_0, seq, query, next_n, skip_below, thread):
    """Read the keys to score of this thread's query: 0 past next_n and for a row that is taken whole."""
    own = query + thread // 2 % 2
    found = Int32(0)
    if own < next_n:
        lengths = seq * seq_lens_stride_0
        found = seq_lens[lengths + own]
        if found <= skip_below:
            found = Int32(0)
    length[0] = found


@cute.jit
def read_weights(weight, head_weights, first, thread):
    """Read this thread's weights, query by query and two at a time, from `first` of the slot on."""
    own = head_weights + first
    for pair in cutlass.range_constexpr(HEADS // 8):
        cute.autovec_copy(warps.group(own, 2, pair * 4 + thread % 4), warps.few(weight, pair * 2, 2))
    for pair in cutlass.range_constexpr(HEADS // 8):
        cute.autovec_copy(
            warps.group(own, 2, HEADS // 2 + pair * 4 + thread % 4),
            warps.few(weight, HEADS // 4 + pair * 2, 2)
        )


@cute.jit
def weigh(logit, acc, weight, thread):
    """logit = sum_h weight[query, h] * max(acc[key, query, h], 0), for a product's queries and a quad's
    keys.

    Each of the quad's four lanes keeps its share of the logits.
    """
    odd = thread % 2 == 1
    upper = thread // 2 % 2 == 1
    total_0_0 = Float32(0.0)
    for pair in cutlass.range_constexpr(HEADS // 8):
        total_0_0 = total_0_0 + cute.arch.fmax(acc[pair * 4], 0.0) * weight[pair * 2]
        total_0_0 = total_0_0 + cute.arch.fmax(acc[pair * 4 + 1], 0.0) * weight[pair * 2 + 1]
    total_0_1 = Float32(0.0)
    for pair in cutlass.range_constexpr(HEADS // 8):
        total_0_1 = total_0_1 + cute.arch.fmax(acc[(HEADS // 8 + pair) * 4], 0.0) * weight[
            (HEADS // 8 + pair) * 2
        ]
        total_0_1 = total_0_1 + cute.arch.fmax(acc[(HEADS // 8 + pair) * 4 + 1], 0.0) * weight[
            (HEADS // 8 + pair) * 2 + 1
        ]
    total_1_0 = Float32(0.0)
    for pair in cutlass.range_constexpr(HEADS // 8):
        total_1_0 = total_1_0 + cute.arch.fmax(acc[pair * 4 + 2], 0.0) * weight[pair * 2]
        total_1_0 = total_1_0 + cute.arch.fmax(acc[pair * 4 + 3], 0.0) * weight[pair * 2 + 1]
    total_1_1 = Float32(0.0)
    for pair in cutlass.range_constexpr(HEADS // 8):
        total_1_1 = total_1_1 + cute.arch.fmax(acc[(HEADS // 8 + pair) * 4 + 2], 0.0) * weight[
            (HEADS // 8 + pair) * 2
        ]
        total_1_1 = total_1_1 + cute.arch.fmax(acc[(HEADS // 8 + pair) * 4 + 3], 0.0) * weight[
            (HEADS // 8 + pair) * 2 + 1
        ]
    half_0 = cutlass.select_(odd, total_1_0, total_0_0) + warps.exchange(
        cutlass.select_(odd, total_0_0, total_1_0), 1
    )
    half_1 = cutlass.select_(odd, total_1_1, total_0_1) + warps.exchange(
        cutlass.select_(odd, total_0_1, total_1_1), 1
    )
    logit[0] = cutlass.select_(upper, half_1, half_0) + warps.exchange(
        cutlass.select_(upper, half_0, half_1), 2
    )


@cute.jit
def store_logits(logits, logits_stride_0, logits_stride_1, logit, scale, length, seq, query, key, thread):
    """Store this thread's logits of a product, times the scales, for the keys that its query has."""
    at = key + (thread // 32 * 16 + (thread % 32 // 4 + 8 * (thread % 32 % 2)))
    to = logits + Int64(seq) * logits_stride_0 + Int64(query + thread // 2 % 2) * logits_stride_1 + at
    if at < length[0]:
        to[0] = logit[0] * scale[0]


@cute.jit
def grain_entries_step_1(block_table, block_table_stride_0, row, first, last, page_size, lane):
    """Like `table_entries`, read an entry per lane for 16 keys, with the place of these keys in the page.

    The entries are for 32 / grains tiles from `first` on, `step` apart. A lane past group `last` of 16
    keys reads the entry of that group.
    """
    line = row * block_table_stride_0
    token = Int32(cutlass.min((first + lane // TILE_GRAINS) * TILE_GRAINS + lane % TILE_GRAINS, last) * GRAIN)
    page = Int32((token.to(cutlass.Uint32) // page_size.to(cutlass.Uint32)).to(Int32))
    entry = block_table[line + page]
    place = token - page * page_size
    return entry, place


@cute.jit
def entry_of(entry, place):
    """The entry that lane `place` holds."""
    page = warps.shuffle(entry, place)
    return page


@cute.jit
def score(
    seq_lens: cute.Pointer, logits: cute.Pointer, skip_below: Int32, b: Int32, next_n: Int32,
    seq_lens_stride: Int32, logits_stride_b: Int32, logits_stride_n: Int32, keys: cute.Pointer,
    key_scales: cute.Pointer, queries: cute.Pointer, head_weights: cute.Pointer, keys_full: cute.Pointer,
    keys_empty: cute.Pointer, queries_full: cute.Pointer, queries_empty: cute.Pointer, seq: Int32,
    tile: Int32, step: Int32, need: Int32, turns: Int32, turn: Int32, fresh: Boolean, thread: Int32,
    warp: Int32
):
    """Products and epilogue, 64 keys a warpgroup."""
    score_a = SCORE.operand_a(keys, TILE, INDEX_DIM, STAGES, 128)
    score_b = SCORE.operand_b(queries, QUERIES * HEADS, INDEX_DIM, 1, 128)
    acc = SCORE.accumulators()
    weight = cute.make_rmem_tensor(ROWS_PER_PRODUCT * HEADS // 4, Float32)
    scale = cute.make_rmem_tensor(1, Float32)
    logit = cute.make_rmem_tensor(1, Float32)
    length = cute.make_rmem_tensor(1, Int32)
    worker = thread
    for it in cutlass.range(turns, unroll=1):
        fresh, seq, tile, need = next_tile(
            it, seq, tile, need, seq_lens, seq_lens_stride, b, next_n, skip_below
        )
        if fresh:
            if it > 0:
                warpgroup.wait_group(0)
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(queries_empty)
            turn = turn + 1
            cute.arch.mbarrier_wait(queries_full, turn & 1)
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        read_scales(scale, key_scales + it % STAGES * TILE_SCALES, worker)
        for product in cutlass.range(leaf.ceildiv(next_n, ROWS_PER_PRODUCT), unroll=1):
            # S[keys, heads] = K Q^T
            warpgroup.fence()
            SCORE.multiply(
                score_a[None, None, None, it % STAGES, warp // 4, 0],
                score_b[None, None, None, 0, product, 0], acc, False
            )
            warpgroup.commit_group()
            read_query_lengths(
                length, seq_lens, seq_lens_stride, seq, product * ROWS_PER_PRODUCT, next_n, skip_below,
                worker
            )
            warpgroup.wait_group(0)
            read_weights(weight, head_weights, product * COLUMNS, worker)
            weigh(logit, acc, weight, worker)
            store_logits(
                logits, logits_stride_b, logits_stride_n, logit, scale, length, seq,
                product * ROWS_PER_PRODUCT, tile * TILE, worker
            )
        warpgroup.wait_group(0)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(keys_empty + it % STAGES)
        tile = tile + step


@cute.jit
def load(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, weight_map: cute.CopyAtom,
    weight_map_coords: cute.Tensor, key_map: cute.CopyAtom, key_map_coords: cute.Tensor,
    scale_map: cute.CopyAtom, scale_map_coords: cute.Tensor, seq_lens: cute.Pointer,
    block_table: cute.Pointer, skip_below: Int32, page_size: Int32, b: Int32, next_n: Int32, index_dim: Int32,
    seq_lens_stride: Int32, block_table_stride: Int32, keys: cute.Pointer, key_scales: cute.Pointer,
    queries: cute.Pointer, head_weights: cute.Pointer, keys_full: cute.Pointer, keys_empty: cute.Pointer,
    queries_full: cute.Pointer, queries_empty: cute.Pointer, seq: Int32, tile: Int32, step: Int32,
    need: Int32, turns: Int32, turn: Int32, fresh: Boolean, entry: Int32, ahead: Int32, place: Int32,
    place_ahead: Int32, lane: Int32
):
    """Block table, key pages, queries."""
    held = Int32(0)
    page = Int32(0)
    within = Int32(0)
    for it in cutlass.range(turns, unroll=1):
        fresh, seq, tile, need = next_tile(
            it, seq, tile, need, seq_lens, seq_lens_stride, b, next_n, skip_below
        )
        last = leaf.ceildiv(need, GRAIN) - 1
        if fresh:
            turn = turn + 1
            held = Int32(0)
            if step == 1:
                entry, place = grain_entries_step_1(
                    block_table, block_table_stride, seq, tile, last, page_size, lane
                )
                ahead, place_ahead = grain_entries_step_1(
                    block_table, block_table_stride, seq, tile + 2, last, page_size, lane
                )
            # The last product of an odd count scores its last query twice.
            count = leaf.ceildiv(next_n, ROWS_PER_PRODUCT) * ROWS_PER_PRODUCT
            cute.arch.mbarrier_wait(queries_empty, (turn & 1) ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(queries_full, count * (HEADS * (INDEX_DIM + 4)))
            for i in cutlass.range(count, unroll=1):
                query = cutlass.min(i, next_n - 1)
                boxes.load_box(
                    query_map, query_map_coords, (seq, query, 0, 0), (1, 1, HEADS, INDEX_DIM),
                    queries + i * HEADS * INDEX_DIM, queries_full
                )
                bulk.load_box(
                    weight_map, weight_map_coords, (seq * next_n + query, 0), (1, HEADS),
                    head_weights + i * HEADS, queries_full, swizzled=False
                )
        if held == 2:
            held = Int32(0)
            entry = ahead
            place = place_ahead
            ahead, place_ahead = grain_entries(
                block_table, block_table_stride, seq, tile + 2 * step, step, last, page_size, lane
            )
        cute.arch.mbarrier_wait(keys_empty + it % STAGES, ((it // STAGES) & 1) ^ 1)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(keys_full + it % STAGES, TILE * (INDEX_DIM + 4))
        for p in cutlass.range_constexpr(TILE_GRAINS):
            page = entry_of(entry, held * TILE_GRAINS + cutlass.min(p, last - tile * TILE_GRAINS))
            within = entry_of(place, held * TILE_GRAINS + cutlass.min(p, last - tile * TILE_GRAINS))
            boxes.load_box(
                key_map, key_map_coords, (page, within, 0), (1, GRAIN, INDEX_DIM),
                keys + (it % STAGES * (TILE * INDEX_DIM) + p * GRAIN * INDEX_DIM), keys_full + it % STAGES
            )
            bulk.load_box(
                scale_map, scale_map_coords, (page, page_size * index_dim // 4 + within), (1, GRAIN),
                key_scales + (it % STAGES * TILE_SCALES + p * 32), keys_full + it % STAGES, swizzled=False
            )
        held = held + 1
        tile = tile + step


@cute.kernel
def lightning_indexer__cutedsl_sm90a__decode_h64_q16_t256_st2_c1_e0_any_bf16(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, weight_map: cute.CopyAtom,
    weight_map_coords: cute.Tensor, key_map: cute.CopyAtom, key_map_coords: cute.Tensor,
    scale_map: cute.CopyAtom, scale_map_coords: cute.Tensor, q: cute.Pointer, k_cache: cute.Pointer,
    weights: cute.Pointer, seq_lens: cute.Pointer, block_table: cute.Pointer, logits: cute.Pointer,
    skip_below: Int32, page_size: Int32, ctas: Int32, b: Int32, next_n: Int32, index_heads: Int32,
    index_dim: Int32, q_stride_b: Int32, q_stride_n: Int32, q_stride_h: Int32, pages: Int32,
    page_bytes: Int32, k_cache_stride: Int32, rows: Int32, weights_stride: Int32, seq_lens_stride: Int32,
    max_pages: Int32, block_table_stride: Int32, stride: Int32, logits_stride_b: Int32,
    logits_stride_n: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    keys = shared.keys.data_ptr()
    key_scales = shared.key_scales.data_ptr()
    queries = shared.queries.data_ptr()
    head_weights = shared.head_weights.data_ptr()
    keys_full = shared.keys_full.data_ptr()
    keys_empty = shared.keys_empty.data_ptr()
    queries_full = shared.queries_full.data_ptr()
    queries_empty = shared.queries_empty.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    cta, _, _ = cute.arch.block_idx()
    need = Int32(0)
    turns = Int32(0)
    turn = Int32(-1)
    fresh = Boolean(False)
    seq, tile, step = place_when_even(b, cta, ctas)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(keys_full + i, 1)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(keys_empty + i, TILE // 16)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(queries_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(queries_empty + i, TILE // 16)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(query_map)
        cpasync.prefetch_descriptor(weight_map)
        cpasync.prefetch_descriptor(key_map)
        cpasync.prefetch_descriptor(scale_map)
    cute.arch.sync_threads()
    cute.arch.griddepcontrol_wait()
    entry = Int32(0)
    ahead = Int32(0)
    place = Int32(0)
    place_ahead = Int32(0)
    if warp == 16:
        # Entries past a length are garbage: no copy uses an entry before the length is known.
        row = cutlass.min(seq, b - 1)
        entry, place = grain_entries(
            block_table, block_table_stride, row, tile, step, max_pages * page_size // GRAIN - 1, page_size,
            lane
        )
        ahead, place_ahead = grain_entries(
            block_table, block_table_stride, row, tile + 2 * step, step, max_pages * page_size // GRAIN - 1,
            page_size, lane
        )
    cute.arch.griddepcontrol_launch_dependents()
    need = keys_to_score(seq_lens, seq_lens_stride, b, next_n, skip_below, lane)
    seq, tile, need, turns, step = find_share(
        seq, tile, need, step, seq_lens, seq_lens_stride, b, next_n, skip_below, cta, ctas, lane
    )
    if warp < 16:
        cute.arch.setmaxregister_increase(104)
        score(
            seq_lens, logits, skip_below, b, next_n, seq_lens_stride, logits_stride_b, logits_stride_n, keys,
            key_scales, queries, head_weights, keys_full, keys_empty, queries_full, queries_empty, seq, tile,
            step, need, turns, turn, fresh, thread, warp
        )
    else:
        cute.arch.setmaxregister_decrease(64)
        if warp == 16:
            load(
                query_map, query_map_coords, weight_map, weight_map_coords, key_map, key_map_coords,
                scale_map, scale_map_coords, seq_lens, block_table, skip_below, page_size, b, next_n,
                index_dim, seq_lens_stride, block_table_stride, keys, key_scales, queries, head_weights,
                keys_full, keys_empty, queries_full, queries_empty, seq, tile, step, need, turns, turn, fresh,
                entry, ahead, place, place_ahead, lane
            )


@cute.jit
def program(
    q: cute.Pointer, k_cache: cute.Pointer, weights: cute.Pointer, seq_lens: cute.Pointer,
    block_table: cute.Pointer, logits: cute.Pointer, skip_below: Int32, page_size: Int32, ctas: Int32,
    b: Int32, next_n: Int32, index_heads: Int32, index_dim: Int32, q_stride_b: Int32, q_stride_n: Int32,
    q_stride_h: Int32, pages: Int32, page_bytes: Int32, k_cache_stride: Int32, rows: Int32,
    weights_stride: Int32, seq_lens_stride: Int32, max_pages: Int32, block_table_stride: Int32, stride: Int32,
    logits_stride_b: Int32, logits_stride_n: Int32
):
    query_map, query_map_coords = boxes.strided_map(q, cutlass.Float8E4M3FN, (1, 1, HEADS, INDEX_DIM), True)
    weight_map, weight_map_coords = bulk.box_map(weights, Float32, (1, HEADS), False)
    key_map, key_map_coords = boxes.strided_map(k_cache, cutlass.Float8E4M3FN, (1, GRAIN, INDEX_DIM), True)
    scale_map, scale_map_coords = bulk.box_map(k_cache, Float32, (1, GRAIN), False)
    kernel = lightning_indexer__cutedsl_sm90a__decode_h64_q16_t256_st2_c1_e0_any_bf16(
        query_map, query_map_coords, weight_map, weight_map_coords, key_map, key_map_coords, scale_map,
        scale_map_coords, q, k_cache, weights, seq_lens, block_table, logits, skip_below, page_size, ctas, b,
        next_n, index_heads, index_dim, q_stride_b, q_stride_n, q_stride_h, pages, page_bytes, k_cache_stride,
        rows, weights_stride, seq_lens_stride, max_pages, block_table_stride, stride, logits_stride_b,
        logits_stride_n
    )
    kernel.launch(grid=(1, 1, 1), block=(640, 1, 1), cluster=(1, 1, 1))
