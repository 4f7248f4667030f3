"""lightning_indexer__cutedsl_sm100a__decode_h64_q1_t128_st8_c1_e0_blocks

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=64, queries=1, tile=128, stages=8, resident=1, evict=0, kind=blocks.

  load             mma              score_0
  warp 4           warp 5           warps 0..3
  |===== keys ====>|                |   keys key_scales, ring of 8; bulk -> tcgen05
  |============== keys ============>|   keys key_scales, ring of 8; bulk -> threads
  |=== queries ===>|                |   queries head_weights, ring of 2; bulk -> tcgen05
  |============ queries ===========>|   queries head_weights, ring of 2; bulk -> threads
  |                |=== scores_0 ==>|   scores_0, ring of 4; tcgen05 -> tmem

roles
  score_0    threads 0..127  epilogue of products i with i % 1 == 0, part 0 of 1
  load       threads 128..159  block table, key pages, queries
  mma        threads 160..191  issues every tcgen05.mma and commit
buffers
  keys       8 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 8 stages of 512 float32, shared
  queries    2 stages of 64x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 2 stages of 64 float32, shared
  scores_0   4 stages of 128x64 float32, tensor memory
  dots_0     128x64 float32, registers of score_0
  weight_0   128x64 float32, registers of score_0
  scale_0    128x1 float32, registers of score_0
  logit_0    128x1 float32, registers of score_0
  length_0   128x1 int32, registers of score_0
pipelines
  keys: load (bulk) ==[keys key_scales: 8-slot ring]==> mma (tcgen05), score_0 (threads)
    full  x1, 18432 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
    empty x5: load wait empty
      mma: commit -> empty
      score_0: one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: 2-slot ring]==> mma (tcgen05), score_0 (threads)
    full  x1, 8448 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
    empty x5: load wait empty
      mma: commit -> empty
      score_0: one lane a warp, arrive empty
  scores_0: mma (tcgen05) ==[scores_0: 4-slot ring]==> score_0 (tmem)
    full  x1: mma commit -> full
      score_0: wait full, fence after
    empty x4: mma wait empty, fence after
      score_0: wait::ld, fence before, one lane a warp, arrive empty
totals: 192 threads, 164576 of 232448 bytes of shared memory, 256 of 512 tensor-memory columns, grid (ctas)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

from dsl_kernels.device.cutedsl import boxes, bulk, scalars, tcgen05, warps
from dsl_kernels.kernels.lightning_indexer import cutedsl as leaf
from dsl_kernels.kernels.lightning_indexer import cutedsl_sm100 as leaf_sm100
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

HEADS = 64  # index heads
TILE = 128  # keys per tile
STAGES = 8  # key tiles in flight
TILE_BLOCKS = 16
BLOCK = 8
INDEX_DIM = 128
TILE_SCALES = 512
COLUMNS = 64

SCORE = tcgen05.Product("float8_e4m3", TILE, COLUMNS, INDEX_DIM, "k", "k")

LAUNCH = Launch(
    operands=(
        Operand(
            "q", "tensor", "float8_e4m3fn", ("b", "next_n", "index_heads", "index_dim"),
            strides=("q_stride_b", "q_stride_n", "q_stride_h", "1")
        ),
        Operand("k_cache", "tensor", "uint8", ("pages", "page_bytes"), strides=("k_cache_stride", "1")),
        Operand("weights", "tensor", "float32", ("rows", "index_heads"), strides=("weights_stride", "1")),
        Operand("seq_lens", "tensor", "int32", ("b", "next_n"), strides=("seq_lens_stride", "1")),
        Operand(
            "block_table", "tensor", "int32", ("lines", "max_pages"), strides=("block_table_stride", "1")
        ),
        Operand(
            "logits", "tensor", "float32", ("b", "next_n", "stride"),
            strides=("logits_stride_b", "logits_stride_n", "1"), written=True
        ),
        Operand("skip_below", "scalar", "int32"),
        Operand("page_size", "scalar", "int32"),
        Operand("block_size", "scalar", "int32"),
        Operand("sharing", "scalar", "int32"),
        Operand("mx", "scalar", "int32"),
        Operand("has_maxima", "scalar", "int32"),
        Operand(
            "maxima", "tensor", "float32", ("maxima_rows", "maxima_columns"), strides=("maxima_stride", "1"),
            written=True
        ),
        Operand("ctas", "scalar", "int32"),
    ),
    grid=("ctas", "1", "1"),
    block=192,
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
            box=(INDEX_DIM, BLOCK, 1), element_strides=(1, 1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "scale_map", "k_cache", "FLOAT32", global_dims=("page_bytes // 4", "pages"), global_strides=(
                "k_cache_stride",
            ),
            box=(BLOCK, 1), element_strides=(1, 1), swizzle="NONE", l2_promotion="NONE",
        ),
    ),
)


@cute.struct
class Shared:
    keys: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, STAGES * TILE * INDEX_DIM], 1024]
    key_scales: cute.struct.Align[cute.struct.MemRange[Float32, STAGES * TILE_SCALES], 128]
    queries: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, 2 * HEADS * INDEX_DIM], 1024]
    head_weights: cute.struct.Align[cute.struct.MemRange[Float32, 2 * HEADS], 128]
    keys_full: cute.struct.MemRange[Int64, STAGES]
    keys_empty: cute.struct.MemRange[Int64, STAGES]
    queries_full: cute.struct.MemRange[Int64, 2]
    queries_empty: cute.struct.MemRange[Int64, 2]
    scores_0_full: cute.struct.MemRange[Int64, 4]
    scores_0_empty: cute.struct.MemRange[Int64, 4]
    tmem: Int32


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
def read_lengths(seq_lens, seq_lens_stride_0, b, lane):
    """Read the lengths of the first 32 sequences, one per lane. Lanes past the batch read the last length."""
    lengths = cutlass.min(lane, b - 1) * seq_lens_stride_0
    length = seq_lens[lengths + 0]
    return length


@cute.jit
def block_entries(
    block_table, block_table_stride_0, row, first, step, last, page_size, block_size, sharing, lane
):
    """Like `grain_entries`, but for 8 keys per lane and a line of the table that rows share.

    An entry names a block of `block_size` keys. Blocks, which may be whole pages, are numbered across
    pages.
    """
    line = (row.to(cutlass.Uint32) // sharing.to(cutlass.Uint32)).to(Int32) * block_table_stride_0
    unit = cutlass.Uint32(block_size.to(cutlass.Uint32))
    token = cutlass.Uint32(
        (
            cutlass.min((first + lane // TILE_BLOCKS * step) * TILE_BLOCKS + lane % TILE_BLOCKS, last) * BLOCK
        ).to(cutlass.Uint32)
    )
    at = cutlass.Uint32(token // unit)
    named_unit = cutlass.Uint32(block_table[line + at.to(Int32)].to(cutlass.Uint32))
    per_page = cutlass.Uint32(page_size.to(cutlass.Uint32) // unit)
    page = cutlass.Uint32(named_unit // per_page)
    entry = page.to(Int32)
    place = ((named_unit - page * per_page) * unit + (token - at * unit)).to(Int32)
    return entry, place


@cute.jit
def lengths_to_score(length, b, skip_below, lane):
    """The number of keys to score of each lane's sequence, from its length."""
    known = leaf.shuffle_length(length, lane)
    need = cutlass.select_((lane < b) & (known > skip_below), known, 0)
    return need


@cute.jit
def find_share(seq, tile, need, step, seq_lens, seq_lens_stride_0, b, skip_below, cta, ctas, lane):
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
            for i in cutlass.range(1, unroll=1):
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
                for i in cutlass.range(1, unroll=1):
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
                    for i in cutlass.range(1, unroll=1):
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
def next_tile(it, seq, tile, need, seq_lens, seq_lens_stride_0, b, skip_below):
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
        for i in cutlass.range(1, unroll=1):
            length = seq_lens[lengths + i]
            most_keys = cutlass.max(most_keys, cutlass.select_(length > skip_below, length, 0))
        need = cutlass.select_(seq < b, most_keys, 0)
    return fresh, seq, tile, need


@cute.jit
def load_weights(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(warps.group(head_weights, 4, quad), warps.few(weight, 4 * quad, 4))


@cute.jit
def load_lengths(length, seq_lens, seq_lens_stride_0, seq, next_n, skip_below, thread):
    """Lane i reads the keys to score of query i: 0 past next_n and for a row that selection takes whole."""
    query = thread % 32
    length[0] = Int32(0)
    if query < next_n:
        lengths = seq * seq_lens_stride_0
        found = seq_lens[lengths + query]
        if found > skip_below:
            length[0] = found


@cute.jit
def load_block_scale(scale, key_scales, thread):
    """Read the scale of this thread's key, where copies of 8 keys are `apart` floats apart."""
    scale[0] = key_scales[thread // BLOCK * 32 + thread % BLOCK]


@cute.jit
def decode_scales(scale, mx):
    """Where `mx` is 1, turn a scale of four equal UE8M0 bytes into their power of two."""
    if mx != 0:
        for i in cutlass.range_constexpr(1):
            power = cutlass.Uint32(scalars.bits_of(scale[i]) & 255)
            bits = cutlass.Uint32(power << 23)
            if power == 0:
                bits = cutlass.Uint32(4194304)
            if power == 255:
                bits = cutlass.Uint32(2143289344)
            scale[i] = scalars.float_of(bits)


@cute.jit
def store_query(logits, logits_stride_0, logits_stride_1, logit, scale, length, seq, query, key, thread):
    """Store the logit of this thread's key and a query, times the key's scale, if the query has the key."""
    at = key + thread
    if at < warps.shuffle(length[0], query):
        row_of_query = logits + Int64(seq) * logits_stride_0 + Int64(query) * logits_stride_1
        row_of_query[at] = logit[0] * scale[0]


@cute.jit
def store_maxima(maxima, maxima_stride_0, logit, scale, length, row, key, thread):
    """Store the greatest score of each 8 keys. Only keys that the row has count, and NaN does not."""
    at = key + thread
    own = Int32(warps.shuffle(length[0], 0))
    nothing = cutlass.Uint32(4286578688)
    most = Float32(scalars.float_of(nothing))
    if at < own:
        most = logit[0] * scale[0]
    most = cute.arch.fmax(most, warps.exchange(most, 1))
    most = cute.arch.fmax(most, warps.exchange(most, 2))
    most = cute.arch.fmax(most, warps.exchange(most, 4))
    if (thread % BLOCK == 0) & (at < own):
        most_of_row = maxima + Int64(row) * maxima_stride_0
        most_of_row[at // BLOCK] = most


@cute.jit
def block_entries_step_1(
    block_table, block_table_stride_0, row, first, last, page_size, block_size, sharing, lane
):
    """Like `grain_entries`, but for 8 keys per lane and a line of the table that rows share.

    An entry names a block of `block_size` keys. Blocks, which may be whole pages, are numbered across
    pages.
    """
    line = (row.to(cutlass.Uint32) // sharing.to(cutlass.Uint32)).to(Int32) * block_table_stride_0
    unit = cutlass.Uint32(block_size.to(cutlass.Uint32))
    token = cutlass.Uint32(
        (cutlass.min((first + lane // TILE_BLOCKS) * TILE_BLOCKS + lane % TILE_BLOCKS, last) * BLOCK).to(
            cutlass.Uint32
        )
    )
    at = cutlass.Uint32(token // unit)
    named_unit = cutlass.Uint32(block_table[line + at.to(Int32)].to(cutlass.Uint32))
    per_page = cutlass.Uint32(page_size.to(cutlass.Uint32) // unit)
    page = cutlass.Uint32(named_unit // per_page)
    entry = page.to(Int32)
    place = ((named_unit - page * per_page) * unit + (token - at * unit)).to(Int32)
    return entry, place


@cute.jit
def entry_of(entry, place):
    """The entry that lane `place` holds."""
    page = warps.shuffle(entry, place)
    return page


@cute.jit
def score_0(
    seq_lens: cute.Pointer, logits: cute.Pointer, skip_below: Int32, mx: Int32, has_maxima: Int32,
    maxima: cute.Pointer, b: Int32, next_n: Int32, seq_lens_stride: Int32, logits_stride_b: Int32,
    logits_stride_n: Int32, maxima_stride: Int32, key_scales: cute.Pointer, head_weights: cute.Pointer,
    tmem: cute.Pointer, keys_full: cute.Pointer, keys_empty: cute.Pointer, queries_full: cute.Pointer,
    queries_empty: cute.Pointer, scores_0_full: cute.Pointer, scores_0_empty: cute.Pointer, seq: Int32,
    tile: Int32, step: Int32, need: Int32, turns: Int32, turn: Int32, fresh: Boolean, thread: Int32
):
    """Epilogue of products i with i % 1 == 0, part 0 of 1."""
    dots_0 = cute.make_rmem_tensor(HEADS, Float32)
    weight_0 = cute.make_rmem_tensor(HEADS, Float32)
    scale_0 = cute.make_rmem_tensor(1, Float32)
    logit_0 = cute.make_rmem_tensor(1, Float32)
    length_0 = cute.make_rmem_tensor(1, Int32)
    worker = thread
    use = Int32(0)
    for it in cutlass.range(turns, unroll=1):
        fresh, seq, tile, need = next_tile(it, seq, tile, need, seq_lens, seq_lens_stride, b, skip_below)
        if fresh:
            if it > 0:
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(queries_empty + turn % 2)
            turn = turn + 1
            cute.arch.mbarrier_wait(queries_full + turn % 2, (turn // 2) & 1)
            load_weights(weight_0, head_weights + turn % 2 * HEADS)
            load_lengths(length_0, seq_lens, seq_lens_stride, seq, next_n, skip_below, worker)
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        load_block_scale(scale_0, key_scales + it % STAGES * TILE_SCALES, worker)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(keys_empty + it % STAGES)
        decode_scales(scale_0, mx)
        for product in cutlass.range(1, unroll=1):
            cute.arch.mbarrier_wait(scores_0_full + use % 4, (use // 4) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            # Accumulators of a product in tensor memory, from column `first` on.
            leaf_sm100.read_scores(dots_0, tmem + use % 4 * COLUMNS, 0, HEADS, worker)
            cute.arch.fence_view_async_tmem_load()
            nvvm.tcgen05_fence("before_thread_sync")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(scores_0_empty + use % 4)
            use = use + 1
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
            store_query(
                logits, logits_stride_b, logits_stride_n, logit_0, scale_0, length_0, seq, product,
                tile * TILE, worker
            )
            if has_maxima != 0:
                store_maxima(maxima, maxima_stride, logit_0, scale_0, length_0, seq, tile * TILE, worker)
        tile = tile + step


@cute.jit
def load(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, weight_map: cute.CopyAtom,
    weight_map_coords: cute.Tensor, key_map: cute.CopyAtom, key_map_coords: cute.Tensor,
    scale_map: cute.CopyAtom, scale_map_coords: cute.Tensor, seq_lens: cute.Pointer,
    block_table: cute.Pointer, skip_below: Int32, page_size: Int32, block_size: Int32, sharing: Int32,
    b: Int32, index_dim: Int32, seq_lens_stride: Int32, block_table_stride: Int32, keys: cute.Pointer,
    key_scales: cute.Pointer, queries: cute.Pointer, head_weights: cute.Pointer, keys_full: cute.Pointer,
    keys_empty: cute.Pointer, queries_full: cute.Pointer, queries_empty: cute.Pointer, seq: Int32,
    tile: Int32, step: Int32, need: Int32, turns: Int32, turn: Int32, fresh: Boolean, entry: Int32,
    ahead: Int32, place: Int32, place_ahead: Int32, lane: Int32
):
    """Block table, key pages, queries."""
    held = Int32(0)
    page = Int32(0)
    within = Int32(0)
    for it in cutlass.range(turns, unroll=1):
        fresh, seq, tile, need = next_tile(it, seq, tile, need, seq_lens, seq_lens_stride, b, skip_below)
        last = leaf.ceildiv(need, BLOCK) - 1
        if fresh:
            turn = turn + 1
            held = Int32(0)
            if step == 1:
                entry, place = block_entries_step_1(
                    block_table, block_table_stride, seq, tile, last, page_size, block_size, sharing, lane
                )
                ahead, place_ahead = block_entries_step_1(
                    block_table, block_table_stride, seq, tile + 2, last, page_size, block_size, sharing,
                    lane
                )
            cute.arch.mbarrier_wait(queries_empty + turn % 2, ((turn // 2) & 1) ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(queries_full + turn % 2, HEADS * (INDEX_DIM + 4))
            for i in cutlass.range(1, unroll=1):
                boxes.load_box(
                    query_map, query_map_coords, (seq, 0, 0, 0), (1, 1, HEADS, INDEX_DIM),
                    queries + (turn % 2 * (HEADS * INDEX_DIM) + i * HEADS * INDEX_DIM),
                    queries_full + turn % 2
                )
                bulk.load_box(
                    weight_map, weight_map_coords, (seq, 0), (1, HEADS),
                    head_weights + (turn % 2 * HEADS + i * HEADS), queries_full + turn % 2, swizzled=False
                )
        if held == 2:
            held = Int32(0)
            entry = ahead
            place = place_ahead
            ahead, place_ahead = block_entries(
                block_table, block_table_stride, seq, tile + 2 * step, step, last, page_size, block_size,
                sharing, lane
            )
        cute.arch.mbarrier_wait(keys_empty + it % STAGES, ((it // STAGES) & 1) ^ 1)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(keys_full + it % STAGES, TILE * (INDEX_DIM + 4))
        for p in cutlass.range_constexpr(TILE_BLOCKS):
            page = entry_of(entry, held * TILE_BLOCKS + cutlass.min(p, last - tile * TILE_BLOCKS))
            within = entry_of(place, held * TILE_BLOCKS + cutlass.min(p, last - tile * TILE_BLOCKS))
            boxes.load_box(
                key_map, key_map_coords, (page, within, 0), (1, BLOCK, INDEX_DIM),
                keys + (it % STAGES * (TILE * INDEX_DIM) + p * BLOCK * INDEX_DIM), keys_full + it % STAGES
            )
            bulk.load_box(
                scale_map, scale_map_coords, (page, page_size * index_dim // 4 + within), (1, BLOCK),
                key_scales + (it % STAGES * TILE_SCALES + p * 32), keys_full + it % STAGES, swizzled=False
            )
        held = held + 1
        tile = tile + step


@cute.jit
def mma(
    seq_lens: cute.Pointer, skip_below: Int32, b: Int32, seq_lens_stride: Int32, keys: cute.Pointer,
    queries: cute.Pointer, tmem: cute.Pointer, keys_full: cute.Pointer, keys_empty: cute.Pointer,
    queries_full: cute.Pointer, queries_empty: cute.Pointer, scores_0_full: cute.Pointer,
    scores_0_empty: cute.Pointer, seq: Int32, tile: Int32, step: Int32, need: Int32, turns: Int32,
    turn: Int32, fresh: Boolean
):
    """Issues every tcgen05.mma and commit."""
    score_a = SCORE.operand_a(keys, TILE, INDEX_DIM, STAGES, 128)
    score_b = SCORE.operand_b(queries, HEADS, INDEX_DIM, 2, 128)
    fill_0 = Int32(0)
    for it in cutlass.range(turns, unroll=1):
        fresh, seq, tile, need = next_tile(it, seq, tile, need, seq_lens, seq_lens_stride, b, skip_below)
        if fresh:
            if it > 0:
                with cute.arch.elect_one():
                    tcgen05.commit(queries_empty + turn % 2)
            turn = turn + 1
            cute.arch.mbarrier_wait(queries_full + turn % 2, (turn // 2) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        cute.arch.mbarrier_wait(scores_0_empty + fill_0 % 4, ((fill_0 // 4) & 1) ^ 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # S[keys, heads] = K Q^T
        SCORE.multiply(
            score_a[None, None, None, it % STAGES], score_b[None, None, None, turn % 2],
            tmem + fill_0 % 4 * COLUMNS, False
        )
        with cute.arch.elect_one():
            tcgen05.commit(scores_0_full + fill_0 % 4)
        fill_0 = fill_0 + 1
        with cute.arch.elect_one():
            tcgen05.commit(keys_empty + it % STAGES)
        tile = tile + step


@cute.kernel
def lightning_indexer__cutedsl_sm100a__decode_h64_q1_t128_st8_c1_e0_blocks(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, weight_map: cute.CopyAtom,
    weight_map_coords: cute.Tensor, key_map: cute.CopyAtom, key_map_coords: cute.Tensor,
    scale_map: cute.CopyAtom, scale_map_coords: cute.Tensor, q: cute.Pointer, k_cache: cute.Pointer,
    weights: cute.Pointer, seq_lens: cute.Pointer, block_table: cute.Pointer, logits: cute.Pointer,
    skip_below: Int32, page_size: Int32, block_size: Int32, sharing: Int32, mx: Int32, has_maxima: Int32,
    maxima: cute.Pointer, ctas: Int32, b: Int32, next_n: Int32, index_heads: Int32, index_dim: Int32,
    q_stride_b: Int32, q_stride_n: Int32, q_stride_h: Int32, pages: Int32, page_bytes: Int32,
    k_cache_stride: Int32, rows: Int32, weights_stride: Int32, seq_lens_stride: Int32, lines: Int32,
    max_pages: Int32, block_table_stride: Int32, stride: Int32, logits_stride_b: Int32,
    logits_stride_n: Int32, maxima_rows: Int32, maxima_columns: Int32, maxima_stride: Int32
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
    scores_0_full = shared.scores_0_full.data_ptr()
    scores_0_empty = shared.scores_0_empty.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    cta, _, _ = cute.arch.block_idx()
    need = Int32(0)
    turns = Int32(0)
    turn = Int32(-1)
    fresh = Boolean(False)
    seq, tile, step = place_when_even(b, cta, ctas)
    cute.arch.griddepcontrol_wait()
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(keys_full + i, 1)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(keys_empty + i, 5)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(queries_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(queries_empty + i, 5)
            for i in cutlass.range_constexpr(4):
                cute.arch.mbarrier_init(scores_0_full + i, 1)
            for i in cutlass.range_constexpr(4):
                cute.arch.mbarrier_init(scores_0_empty + i, 4)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(query_map)
        cpasync.prefetch_descriptor(weight_map)
        cpasync.prefetch_descriptor(key_map)
        cpasync.prefetch_descriptor(scale_map)
    if warp == 1:
        cute.arch.alloc_tmem(256, shared.tmem)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, shared.tmem)
    early_length = read_lengths(seq_lens, seq_lens_stride, b, lane)
    entry = Int32(0)
    ahead = Int32(0)
    place = Int32(0)
    place_ahead = Int32(0)
    if warp == 4:
        # Entries past a length are garbage: no copy uses an entry before the length is known.
        row = cutlass.min(seq, b - 1)
        entry, place = block_entries(
            block_table, block_table_stride, row, tile, step, max_pages * block_size // BLOCK - 1, page_size,
            block_size, sharing, lane
        )
        ahead, place_ahead = block_entries(
            block_table, block_table_stride, row, tile + 2 * step, step, max_pages * block_size // BLOCK - 1,
            page_size, block_size, sharing, lane
        )
    cute.arch.griddepcontrol_launch_dependents()
    need = lengths_to_score(early_length, b, skip_below, lane)
    seq, tile, need, turns, step = find_share(
        seq, tile, need, step, seq_lens, seq_lens_stride, b, skip_below, cta, ctas, lane
    )
    if warp < 4:
        score_0(
            seq_lens, logits, skip_below, mx, has_maxima, maxima, b, next_n, seq_lens_stride, logits_stride_b,
            logits_stride_n, maxima_stride, key_scales, head_weights, tmem, keys_full, keys_empty,
            queries_full, queries_empty, scores_0_full, scores_0_empty, seq, tile, step, need, turns, turn,
            fresh, thread
        )
    elif warp < 5:
        load(
            query_map, query_map_coords, weight_map, weight_map_coords, key_map, key_map_coords, scale_map,
            scale_map_coords, seq_lens, block_table, skip_below, page_size, block_size, sharing, b, index_dim,
            seq_lens_stride, block_table_stride, keys, key_scales, queries, head_weights, keys_full,
            keys_empty, queries_full, queries_empty, seq, tile, step, need, turns, turn, fresh, entry, ahead,
            place, place_ahead, lane
        )
    else:
        mma(
            seq_lens, skip_below, b, seq_lens_stride, keys, queries, tmem, keys_full, keys_empty,
            queries_full, queries_empty, scores_0_full, scores_0_empty, seq, tile, step, need, turns, turn,
            fresh
        )
    # Tensor memory goes back only when no role can touch it any more.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if thread // 32 == 1:
        cute.arch.dealloc_tmem(tmem, 256)


@cute.jit
def program(
    q: cute.Pointer, k_cache: cute.Pointer, weights: cute.Pointer, seq_lens: cute.Pointer,
    block_table: cute.Pointer, logits: cute.Pointer, skip_below: Int32, page_size: Int32, block_size: Int32,
    sharing: Int32, mx: Int32, has_maxima: Int32, maxima: cute.Pointer, ctas: Int32, b: Int32, next_n: Int32,
    index_heads: Int32, index_dim: Int32, q_stride_b: Int32, q_stride_n: Int32, q_stride_h: Int32,
    pages: Int32, page_bytes: Int32, k_cache_stride: Int32, rows: Int32, weights_stride: Int32,
    seq_lens_stride: Int32, lines: Int32, max_pages: Int32, block_table_stride: Int32, stride: Int32,
    logits_stride_b: Int32, logits_stride_n: Int32, maxima_rows: Int32, maxima_columns: Int32,
    maxima_stride: Int32
):
    query_map, query_map_coords = boxes.strided_map(q, cutlass.Float8E4M3FN, (1, 1, HEADS, INDEX_DIM), True)
    weight_map, weight_map_coords = bulk.box_map(weights, Float32, (1, HEADS), False)
    key_map, key_map_coords = boxes.strided_map(k_cache, cutlass.Float8E4M3FN, (1, BLOCK, INDEX_DIM), True)
    scale_map, scale_map_coords = bulk.box_map(k_cache, Float32, (1, BLOCK), False)
    kernel = lightning_indexer__cutedsl_sm100a__decode_h64_q1_t128_st8_c1_e0_blocks(
        query_map, query_map_coords, weight_map, weight_map_coords, key_map, key_map_coords, scale_map,
        scale_map_coords, q, k_cache, weights, seq_lens, block_table, logits, skip_below, page_size,
        block_size, sharing, mx, has_maxima, maxima, ctas, b, next_n, index_heads, index_dim, q_stride_b,
        q_stride_n, q_stride_h, pages, page_bytes, k_cache_stride, rows, weights_stride, seq_lens_stride,
        lines, max_pages, block_table_stride, stride, logits_stride_b, logits_stride_n, maxima_rows,
        maxima_columns, maxima_stride
    )
    kernel.launch(grid=(1, 1, 1), block=(192, 1, 1), cluster=(1, 1, 1))
