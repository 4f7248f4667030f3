"""lightning_indexer__cutedsl_sm100a__decode_h64_q1_t128_st8_c1_e0_mxfp4_bf16

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=64, queries=1, tile=128, stages=8, resident=1, evict=0, kind=mxfp4_bf16.

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
  queries    2 stages of 64x64 float4_e2m1x2, shared, 64-byte swizzle
  query_scales 2 stages of 64 int32, shared
  head_weights 2 stages of 64 float32, shared
  key_factors 4 stages of 32x4 int32, shared
  query_factors 2 stages of 32x4 int32, shared
  by_key     128x16 uint8, tensor memory
  by_query   128x16 uint8, tensor memory
  scores_0   2 stages of 128x64 float32, tensor memory
  scores_1   2 stages of 128x64 float32, tensor memory
  dots_0     128x64 float32, registers of score_0
  weight_0   128x64 float32, registers of score_0
  logit_0    128x1 float32, registers of score_0
  length_0   128x1 int32, registers of score_0
  dots_1     128x64 float32, registers of score_1
  weight_1   128x64 float32, registers of score_1
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
    full  x1, 4608 bytes: load arrive + expect bytes
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
totals: 352 threads, 82240 of 232448 bytes of shared memory, 264 of 512 tensor-memory columns, grid (ctas)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

from dsl_kernels.device.cutedsl import boxes, bulk, narrow_boxes, tcgen05, tcgen05_copy, tcgen05_scaled, warps
from dsl_kernels.kernels.lightning_indexer import cutedsl as leaf
from dsl_kernels.kernels.lightning_indexer import cutedsl_sm100 as leaf_sm100
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

HEADS = 64  # index heads
TILE = 128  # keys per tile
STAGES = 8  # key tiles in flight
TILE_PAGES = 2
KEY_BYTES = 64
PAGE = 64
SCALE_WORD = 1024
INDEX_DIM = 128

SCORE = tcgen05_scaled.Product("float4_e2m1x2", TILE, HEADS, INDEX_DIM, "k", "k")

LAUNCH = Launch(
    operands=(
        Operand(
            "q", "tensor", "uint8", ("b", "next_n", "index_heads", "64"),
            strides=("q_stride_b", "q_stride_n", "q_stride_h", "1")
        ),
        Operand("q_scales", "tensor", "int32", ("rows", "index_heads"), strides=("q_scales_stride", "1")),
        Operand("k_cache", "tensor", "uint8", ("pages", "4352"), strides=("k_cache_stride", "1")),
        Operand(
            "weights", "tensor", "float32", ("b", "next_n", "index_heads"),
            strides=("weights_stride_b", "weights_stride_n", "1")
        ),
        Operand("seq_lens", "tensor", "int32", ("b", "next_n"), strides=("seq_lens_stride", "1")),
        Operand(
            "block_table", "tensor", "int32", ("lines", "max_pages"), strides=("block_table_stride", "1")
        ),
        Operand(
            "logits", "tensor", "bfloat16", ("b", "next_n", "stride"),
            strides=("logits_stride_b", "logits_stride_n", "1"), written=True
        ),
        Operand("skip_below", "scalar", "int32"),
        Operand("sharing", "scalar", "int32"),
        Operand("ctas", "scalar", "int32"),
    ),
    grid=("ctas", "1", "1"),
    block=352,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "query_map", "q", "UINT8", global_dims=("64", "index_heads", "next_n", "b"), global_strides=(
                "q_stride_h", "q_stride_n", "q_stride_b"
            ),
            box=(KEY_BYTES, HEADS, 1, 1), element_strides=(1, 1, 1, 1), swizzle="64B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "weight_map", "weights", "FLOAT32", global_dims=("index_heads", "next_n", "b"), global_strides=(
                "weights_stride_n * 4", "weights_stride_b * 4"
            ),
            box=(HEADS, 1, 1), element_strides=(1, 1, 1), swizzle="NONE", l2_promotion="NONE",
        ),
        TensorMap(
            "factor_map", "q_scales", "INT32", global_dims=("index_heads", "rows"), global_strides=(
                "q_scales_stride * 4",
            ),
            box=(HEADS, 1), element_strides=(1, 1), swizzle="NONE", l2_promotion="NONE",
        ),
        TensorMap(
            "key_map", "k_cache", "UINT8", global_dims=(
                "64", "(pages - 1) * (k_cache_stride // 64) + 68"
            ), global_strides=("64",),
            box=(KEY_BYTES, PAGE), element_strides=(1, 1), swizzle="64B", l2_promotion="L2_128B",
        ),
    ),
)


@cute.struct
class Shared:
    keys: cute.struct.Align[cute.struct.MemRange[cutlass.Uint8, STAGES * TILE * KEY_BYTES], 1024]
    key_scales: cute.struct.Align[cute.struct.MemRange[Int32, STAGES * TILE], 128]
    queries: cute.struct.Align[cute.struct.MemRange[cutlass.Uint8, 2 * HEADS * KEY_BYTES], 1024]
    query_scales: cute.struct.Align[cute.struct.MemRange[Int32, 2 * HEADS], 128]
    head_weights: cute.struct.Align[cute.struct.MemRange[Float32, 2 * HEADS], 128]
    key_factors: cute.struct.Align[cute.struct.MemRange[Int32, 4 * 32 * 4], 128]
    query_factors: cute.struct.Align[cute.struct.MemRange[Int32, 2 * 32 * 4], 128]
    keys_full: cute.struct.MemRange[Int64, STAGES]
    keys_empty: cute.struct.MemRange[Int64, STAGES]
    queries_full: cute.struct.MemRange[Int64, 2]
    queries_empty: cute.struct.MemRange[Int64, 2]
    key_factors_full: cute.struct.MemRange[Int64, 4]
    key_factors_empty: cute.struct.MemRange[Int64, 4]
    query_factors_full: cute.struct.MemRange[Int64, 2]
    query_factors_empty: cute.struct.MemRange[Int64, 2]
    scores_0_full: cute.struct.MemRange[Int64, 2]
    scores_0_empty: cute.struct.MemRange[Int64, 2]
    scores_1_full: cute.struct.MemRange[Int64, 2]
    scores_1_empty: cute.struct.MemRange[Int64, 2]
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
def table_entries(block_table, block_table_stride_0, row, first, step, last, lane):
    """Read a page-table entry of row `row` per lane, for 32 / pages tiles from `first` on, `step` apart.

    A lane whose entry is past `last` reads entry `last`.
    """
    line = row * block_table_stride_0
    entry = block_table[
        line + cutlass.min((first + lane // TILE_PAGES * step) * TILE_PAGES + lane % TILE_PAGES, last)
    ]
    return entry


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
def store_scores(logits, logits_stride_0, logits_stride_1, logit, length, seq, key, thread):
    """The logit of this thread's key, if the row has that key."""
    at = key + thread
    if at < warps.shuffle(length[0], 0):
        row_of_query = logits + Int64(seq) * logits_stride_0 + Int64(0) * logits_stride_1
        row_of_query[at] = logit[0]


@cute.jit
def table_entries_step_1(block_table, block_table_stride_0, row, first, last, lane):
    """Read a page-table entry of row `row` per lane, for 32 / pages tiles from `first` on, `step` apart.

    A lane whose entry is past `last` reads entry `last`.
    """
    line = row * block_table_stride_0
    entry = block_table[
        line + cutlass.min((first + lane // TILE_PAGES) * TILE_PAGES + lane % TILE_PAGES, last)
    ]
    return entry


@cute.jit
def entry_of(entry, place):
    """The entry that lane `place` holds."""
    page = warps.shuffle(entry, place)
    return page


@cute.jit
def place_factors_query_factors(factors, scales, lane):
    """Scales of rows r, r + 32, ... side by side in row r, as copies to tensor memory read them.

    Of fewer than 128 rows the scales come again: products do not look at them.
    """
    for column in cutlass.range_constexpr(4):
        factors[lane * 4 + column] = scales[column * 32 % HEADS + lane]


@cute.jit
def place_factors_key_factors(factors, scales, lane):
    """Scales of rows r, r + 32, ... side by side in row r, as copies to tensor memory read them.

    Of fewer than 128 rows the scales come again: products do not look at them.
    """
    for column in cutlass.range_constexpr(4):
        factors[lane * 4 + column] = scales[column * 32 % TILE + lane]


@cute.jit
def score_0(
    seq_lens: cute.Pointer, logits: cute.Pointer, skip_below: Int32, b: Int32, next_n: Int32,
    seq_lens_stride: Int32, logits_stride_b: Int32, logits_stride_n: Int32, head_weights: cute.Pointer,
    tmem: cute.Pointer, queries_full: cute.Pointer, queries_empty: cute.Pointer, scores_0_full: cute.Pointer,
    scores_0_empty: cute.Pointer, seq: Int32, tile: Int32, step: Int32, need: Int32, turns: Int32,
    turn: Int32, fresh: Boolean, thread: Int32
):
    """Epilogue of tiles i with i % 2 == 0."""
    dots_0 = cute.make_rmem_tensor(HEADS, Float32)
    weight_0 = cute.make_rmem_tensor(HEADS, Float32)
    logit_0 = cute.make_rmem_tensor(1, Float32)
    length_0 = cute.make_rmem_tensor(1, Int32)
    worker = thread
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
        if it % 2 == 0:
            cute.arch.mbarrier_wait(scores_0_full + it // 2 % 2, (it // 2 // 2) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            # Accumulators of a product in tensor memory, from column `first` on.
            leaf_sm100.read_scores(dots_0, tmem + (8 + it // 2 % 2 * HEADS), 0, HEADS, worker)
            cute.arch.fence_view_async_tmem_load()
            nvvm.tcgen05_fence("before_thread_sync")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(scores_0_empty + it // 2 % 2)
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
            store_scores(
                logits, logits_stride_b, logits_stride_n, logit_0, length_0, seq, tile * TILE, worker
            )
        tile = tile + step


@cute.jit
def score_1(
    seq_lens: cute.Pointer, logits: cute.Pointer, skip_below: Int32, b: Int32, next_n: Int32,
    seq_lens_stride: Int32, logits_stride_b: Int32, logits_stride_n: Int32, head_weights: cute.Pointer,
    tmem: cute.Pointer, queries_full: cute.Pointer, queries_empty: cute.Pointer, scores_1_full: cute.Pointer,
    scores_1_empty: cute.Pointer, seq: Int32, tile: Int32, step: Int32, need: Int32, turns: Int32,
    turn: Int32, fresh: Boolean, thread: Int32
):
    """Epilogue of tiles i with i % 2 == 1."""
    dots_1 = cute.make_rmem_tensor(HEADS, Float32)
    weight_1 = cute.make_rmem_tensor(HEADS, Float32)
    logit_1 = cute.make_rmem_tensor(1, Float32)
    length_1 = cute.make_rmem_tensor(1, Int32)
    worker = thread % 128
    for it in cutlass.range(turns, unroll=1):
        fresh, seq, tile, need = next_tile(it, seq, tile, need, seq_lens, seq_lens_stride, b, skip_below)
        if fresh:
            if it > 0:
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(queries_empty + turn % 2)
            turn = turn + 1
            cute.arch.mbarrier_wait(queries_full + turn % 2, (turn // 2) & 1)
            load_weights(weight_1, head_weights + turn % 2 * HEADS)
            load_lengths(length_1, seq_lens, seq_lens_stride, seq, next_n, skip_below, worker)
        if it % 2 == 1:
            cute.arch.mbarrier_wait(scores_1_full + it // 2 % 2, (it // 2 // 2) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            # Accumulators of a product in tensor memory, from column `first` on.
            leaf_sm100.read_scores(dots_1, tmem + (8 + HEADS * 2 + it // 2 % 2 * HEADS), 0, HEADS, worker)
            cute.arch.fence_view_async_tmem_load()
            nvvm.tcgen05_fence("before_thread_sync")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(scores_1_empty + it // 2 % 2)
            # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a
            # product.
            leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
            store_scores(
                logits, logits_stride_b, logits_stride_n, logit_1, length_1, seq, tile * TILE, worker
            )
        tile = tile + step


@cute.jit
def load(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, weight_map: cute.CopyAtom,
    weight_map_coords: cute.Tensor, factor_map: cute.CopyAtom, factor_map_coords: cute.Tensor,
    key_map: cute.CopyAtom, key_map_coords: cute.Tensor, k_cache: cute.Pointer, seq_lens: cute.Pointer,
    block_table: cute.Pointer, skip_below: Int32, sharing: Int32, b: Int32, k_cache_stride: Int32,
    seq_lens_stride: Int32, block_table_stride: Int32, keys: cute.Pointer, key_scales: cute.Pointer,
    queries: cute.Pointer, query_scales: cute.Pointer, head_weights: cute.Pointer, keys_full: cute.Pointer,
    keys_empty: cute.Pointer, queries_full: cute.Pointer, queries_empty: cute.Pointer, seq: Int32,
    tile: Int32, step: Int32, need: Int32, turns: Int32, turn: Int32, fresh: Boolean, entry: Int32,
    ahead: Int32, lane: Int32
):
    """Block table, key pages, queries."""
    held = Int32(0)
    page = Int32(0)
    for it in cutlass.range(turns, unroll=1):
        fresh, seq, tile, need = next_tile(it, seq, tile, need, seq_lens, seq_lens_stride, b, skip_below)
        last = leaf.ceildiv(need, PAGE) - 1
        if fresh:
            turn = turn + 1
            held = Int32(0)
            if step == 1:
                entry = table_entries_step_1(
                    block_table, block_table_stride, seq // sharing, tile, last, lane
                )
                ahead = table_entries_step_1(
                    block_table, block_table_stride, seq // sharing, tile + 16, last, lane
                )
            cute.arch.mbarrier_wait(queries_empty + turn % 2, ((turn // 2) & 1) ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(
                    queries_full + turn % 2, HEADS * KEY_BYTES + HEADS * 4 + HEADS * 4
                )
            narrow_boxes.load_box(
                query_map, query_map_coords, (seq, 0, 0, 0), (1, 1, HEADS, KEY_BYTES),
                queries + turn % 2 * (HEADS * KEY_BYTES), queries_full + turn % 2
            )
            bulk.load_box(
                factor_map, factor_map_coords, (seq, 0), (1, HEADS), query_scales + turn % 2 * HEADS,
                queries_full + turn % 2, swizzled=False
            )
            boxes.load_box(
                weight_map, weight_map_coords, (seq, 0, 0), (1, 1, HEADS), head_weights + turn % 2 * HEADS,
                queries_full + turn % 2
            )
        if held == 16:
            held = Int32(0)
            entry = ahead
            ahead = table_entries(
                block_table, block_table_stride, seq // sharing, tile + 16 * step, step, last, lane
            )
        cute.arch.mbarrier_wait(keys_empty + it % STAGES, ((it // STAGES) & 1) ^ 1)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(keys_full + it % STAGES, TILE * KEY_BYTES + TILE * 4)
        for p in cutlass.range_constexpr(TILE_PAGES):
            page = entry_of(entry, held * TILE_PAGES + cutlass.min(p, last - tile * TILE_PAGES))
            narrow_boxes.load_box(
                key_map, key_map_coords, (page * (k_cache_stride // KEY_BYTES), 0), (PAGE, KEY_BYTES),
                keys + (it % STAGES * (TILE * KEY_BYTES) + p * PAGE * KEY_BYTES), keys_full + it % STAGES
            )
            with cute.arch.elect_one():
                bulk.load_span(
                    k_cache, Int32, Int64(page) * (k_cache_stride // 4), 1, SCALE_WORD, PAGE,
                    key_scales + (it % STAGES * TILE + p * PAGE), keys_full + it % STAGES
                )
        held = held + 1
        tile = tile + step


@cute.jit
def place(
    seq_lens: cute.Pointer, skip_below: Int32, b: Int32, seq_lens_stride: Int32, key_scales: cute.Pointer,
    query_scales: cute.Pointer, key_factors: cute.Pointer, query_factors: cute.Pointer,
    keys_full: cute.Pointer, keys_empty: cute.Pointer, queries_full: cute.Pointer,
    queries_empty: cute.Pointer, key_factors_full: cute.Pointer, key_factors_empty: cute.Pointer,
    query_factors_full: cute.Pointer, query_factors_empty: cute.Pointer, seq: Int32, tile: Int32, step: Int32,
    need: Int32, turns: Int32, turn: Int32, fresh: Boolean, lane: Int32
):
    """Scales, as copies to tensor memory read them."""
    for it in cutlass.range(turns, unroll=1):
        fresh, seq, tile, need = next_tile(it, seq, tile, need, seq_lens, seq_lens_stride, b, skip_below)
        if fresh:
            turn = turn + 1
            cute.arch.mbarrier_wait(queries_full + turn % 2, (turn // 2) & 1)
            cute.arch.mbarrier_wait(query_factors_empty + turn % 2, ((turn // 2) & 1) ^ 1)
            place_factors_query_factors(query_factors + turn % 2 * 128, query_scales + turn % 2 * HEADS, lane)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(query_factors_full + turn % 2)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(queries_empty + turn % 2)
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        cute.arch.mbarrier_wait(key_factors_empty + it % 4, ((it // 4) & 1) ^ 1)
        place_factors_key_factors(key_factors + it % 4 * 128, key_scales + it % STAGES * TILE, lane)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(key_factors_full + it % 4)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(keys_empty + it % STAGES)
        tile = tile + step


@cute.jit
def mma(
    seq_lens: cute.Pointer, skip_below: Int32, b: Int32, seq_lens_stride: Int32, keys: cute.Pointer,
    queries: cute.Pointer, key_factors: cute.Pointer, query_factors: cute.Pointer, tmem: cute.Pointer,
    keys_full: cute.Pointer, keys_empty: cute.Pointer, queries_full: cute.Pointer,
    queries_empty: cute.Pointer, key_factors_full: cute.Pointer, key_factors_empty: cute.Pointer,
    query_factors_full: cute.Pointer, query_factors_empty: cute.Pointer, scores_0_full: cute.Pointer,
    scores_0_empty: cute.Pointer, scores_1_full: cute.Pointer, scores_1_empty: cute.Pointer, seq: Int32,
    tile: Int32, step: Int32, need: Int32, turns: Int32, turn: Int32, fresh: Boolean
):
    """Issues every tcgen05.cp, tcgen05.mma and commit."""
    score_a = SCORE.operand_a(keys, TILE, KEY_BYTES, STAGES, 64)
    score_b = SCORE.operand_b(queries, HEADS, KEY_BYTES, 2, 64)
    for it in cutlass.range(turns, unroll=1):
        fresh, seq, tile, need = next_tile(it, seq, tile, need, seq_lens, seq_lens_stride, b, skip_below)
        if fresh:
            if it > 0:
                with cute.arch.elect_one():
                    tcgen05.commit(queries_empty + turn % 2)
            turn = turn + 1
            cute.arch.mbarrier_wait(queries_full + turn % 2, (turn // 2) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            cute.arch.mbarrier_wait(query_factors_full + turn % 2, (turn // 2) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            tcgen05_copy.copy_factors(tmem + 4, query_factors + turn % 2 * 128)
            with cute.arch.elect_one():
                tcgen05.commit(query_factors_empty + turn % 2)
        if it % 2 == 0:
            cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            cute.arch.mbarrier_wait(key_factors_full + it % 4, (it // 4) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            tcgen05_copy.copy_factors(tmem, key_factors + it % 4 * 128)
            cute.arch.mbarrier_wait(scores_0_empty + it // 2 % 2, ((it // 2 // 2) & 1) ^ 1)
            nvvm.tcgen05_fence("after_thread_sync")
            # S[keys, heads] = K Q^T, scaled by blocks of 32
            SCORE.multiply(
                score_a[None, None, None, it % STAGES], score_b[None, None, None, turn % 2],
                tmem + (8 + it // 2 % 2 * HEADS), False, tmem, tmem + 4
            )
            with cute.arch.elect_one():
                tcgen05.commit(scores_0_full + it // 2 % 2)
            with cute.arch.elect_one():
                tcgen05.commit(key_factors_empty + it % 4)
            with cute.arch.elect_one():
                tcgen05.commit(keys_empty + it % STAGES)
        else:
            cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            cute.arch.mbarrier_wait(key_factors_full + it % 4, (it // 4) & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            tcgen05_copy.copy_factors(tmem, key_factors + it % 4 * 128)
            cute.arch.mbarrier_wait(scores_1_empty + it // 2 % 2, ((it // 2 // 2) & 1) ^ 1)
            nvvm.tcgen05_fence("after_thread_sync")
            # S[keys, heads] = K Q^T, scaled by blocks of 32
            SCORE.multiply(
                score_a[None, None, None, it % STAGES], score_b[None, None, None, turn % 2],
                tmem + (8 + HEADS * 2 + it // 2 % 2 * HEADS), False, tmem, tmem + 4
            )
            with cute.arch.elect_one():
                tcgen05.commit(scores_1_full + it // 2 % 2)
            with cute.arch.elect_one():
                tcgen05.commit(key_factors_empty + it % 4)
            with cute.arch.elect_one():
                tcgen05.commit(keys_empty + it % STAGES)
        tile = tile + step


@cute.kernel
def lightning_indexer__cutedsl_sm100a__decode_h64_q1_t128_st8_c1_e0_mxfp4_bf16(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, weight_map: cute.CopyAtom,
    weight_map_coords: cute.Tensor, factor_map: cute.CopyAtom, factor_map_coords: cute.Tensor,
    key_map: cute.CopyAtom, key_map_coords: cute.Tensor, q: cute.Pointer, q_scales: cute.Pointer,
    k_cache: cute.Pointer, weights: cute.Pointer, seq_lens: cute.Pointer, block_table: cute.Pointer,
    logits: cute.Pointer, skip_below: Int32, sharing: Int32, ctas: Int32, b: Int32, next_n: Int32,
    index_heads: Int32, q_stride_b: Int32, q_stride_n: Int32, q_stride_h: Int32, rows: Int32,
    q_scales_stride: Int32, pages: Int32, k_cache_stride: Int32, weights_stride_b: Int32,
    weights_stride_n: Int32, seq_lens_stride: Int32, lines: Int32, max_pages: Int32,
    block_table_stride: Int32, stride: Int32, logits_stride_b: Int32, logits_stride_n: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    keys = shared.keys.data_ptr()
    key_scales = shared.key_scales.data_ptr()
    queries = shared.queries.data_ptr()
    query_scales = shared.query_scales.data_ptr()
    head_weights = shared.head_weights.data_ptr()
    key_factors = shared.key_factors.data_ptr()
    query_factors = shared.query_factors.data_ptr()
    keys_full = shared.keys_full.data_ptr()
    keys_empty = shared.keys_empty.data_ptr()
    queries_full = shared.queries_full.data_ptr()
    queries_empty = shared.queries_empty.data_ptr()
    key_factors_full = shared.key_factors_full.data_ptr()
    key_factors_empty = shared.key_factors_empty.data_ptr()
    query_factors_full = shared.query_factors_full.data_ptr()
    query_factors_empty = shared.query_factors_empty.data_ptr()
    scores_0_full = shared.scores_0_full.data_ptr()
    scores_0_empty = shared.scores_0_empty.data_ptr()
    scores_1_full = shared.scores_1_full.data_ptr()
    scores_1_empty = shared.scores_1_empty.data_ptr()
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
                cute.arch.mbarrier_init(keys_empty + i, 2)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(queries_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(queries_empty + i, 10)
            for i in cutlass.range_constexpr(4):
                cute.arch.mbarrier_init(key_factors_full + i, 1)
            for i in cutlass.range_constexpr(4):
                cute.arch.mbarrier_init(key_factors_empty + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(query_factors_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(query_factors_empty + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(scores_0_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(scores_0_empty + i, 4)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(scores_1_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(scores_1_empty + i, 4)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(query_map)
        cpasync.prefetch_descriptor(weight_map)
        cpasync.prefetch_descriptor(factor_map)
        cpasync.prefetch_descriptor(key_map)
    if warp == 1:
        cute.arch.alloc_tmem(512, shared.tmem)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, shared.tmem)
    early_length = read_lengths(seq_lens, seq_lens_stride, b, lane)
    entry = Int32(0)
    ahead = Int32(0)
    if warp == 8:
        # Entries past a length are garbage: no copy uses an entry before the length is known.
        row = cutlass.min(seq, b - 1)
        entry = table_entries(
            block_table, block_table_stride, row // sharing, tile, step, max_pages - 1, lane
        )
        ahead = table_entries(
            block_table, block_table_stride, row // sharing, tile + 16 * step, step, max_pages - 1, lane
        )
    cute.arch.griddepcontrol_launch_dependents()
    need = lengths_to_score(early_length, b, skip_below, lane)
    seq, tile, need, turns, step = find_share(
        seq, tile, need, step, seq_lens, seq_lens_stride, b, skip_below, cta, ctas, lane
    )
    if warp < 4:
        score_0(
            seq_lens, logits, skip_below, b, next_n, seq_lens_stride, logits_stride_b, logits_stride_n,
            head_weights, tmem, queries_full, queries_empty, scores_0_full, scores_0_empty, seq, tile, step,
            need, turns, turn, fresh, thread
        )
    elif warp < 8:
        score_1(
            seq_lens, logits, skip_below, b, next_n, seq_lens_stride, logits_stride_b, logits_stride_n,
            head_weights, tmem, queries_full, queries_empty, scores_1_full, scores_1_empty, seq, tile, step,
            need, turns, turn, fresh, thread
        )
    elif warp < 9:
        load(
            query_map, query_map_coords, weight_map, weight_map_coords, factor_map, factor_map_coords,
            key_map, key_map_coords, k_cache, seq_lens, block_table, skip_below, sharing, b, k_cache_stride,
            seq_lens_stride, block_table_stride, keys, key_scales, queries, query_scales, head_weights,
            keys_full, keys_empty, queries_full, queries_empty, seq, tile, step, need, turns, turn, fresh,
            entry, ahead, lane
        )
    elif warp < 10:
        place(
            seq_lens, skip_below, b, seq_lens_stride, key_scales, query_scales, key_factors, query_factors,
            keys_full, keys_empty, queries_full, queries_empty, key_factors_full, key_factors_empty,
            query_factors_full, query_factors_empty, seq, tile, step, need, turns, turn, fresh, lane
        )
    else:
        mma(
            seq_lens, skip_below, b, seq_lens_stride, keys, queries, key_factors, query_factors, tmem,
            keys_full, keys_empty, queries_full, queries_empty, key_factors_full, key_factors_empty,
            query_factors_full, query_factors_empty, scores_0_full, scores_0_empty, scores_1_full,
            scores_1_empty, seq, tile, step, need, turns, turn, fresh
        )
    # Tensor memory goes back only when no role can touch it any more.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if thread // 32 == 1:
        cute.arch.dealloc_tmem(tmem, 512)


@cute.jit
def program(
    q: cute.Pointer, q_scales: cute.Pointer, k_cache: cute.Pointer, weights: cute.Pointer,
    seq_lens: cute.Pointer, block_table: cute.Pointer, logits: cute.Pointer, skip_below: Int32,
    sharing: Int32, ctas: Int32, b: Int32, next_n: Int32, index_heads: Int32, q_stride_b: Int32,
    q_stride_n: Int32, q_stride_h: Int32, rows: Int32, q_scales_stride: Int32, pages: Int32,
    k_cache_stride: Int32, weights_stride_b: Int32, weights_stride_n: Int32, seq_lens_stride: Int32,
    lines: Int32, max_pages: Int32, block_table_stride: Int32, stride: Int32, logits_stride_b: Int32,
    logits_stride_n: Int32
):
    query_map, query_map_coords = narrow_boxes.box_map(q, cutlass.Uint8, (1, 1, HEADS, KEY_BYTES))
    weight_map, weight_map_coords = boxes.strided_map(weights, Float32, (1, 1, HEADS), False)
    factor_map, factor_map_coords = bulk.box_map(q_scales, Int32, (1, HEADS), False)
    key_map, key_map_coords = narrow_boxes.box_map(k_cache, cutlass.Uint8, (PAGE, KEY_BYTES))
    kernel = lightning_indexer__cutedsl_sm100a__decode_h64_q1_t128_st8_c1_e0_mxfp4_bf16(
        query_map, query_map_coords, weight_map, weight_map_coords, factor_map, factor_map_coords, key_map,
        key_map_coords, q, q_scales, k_cache, weights, seq_lens, block_table, logits, skip_below, sharing,
        ctas, b, next_n, index_heads, q_stride_b, q_stride_n, q_stride_h, rows, q_scales_stride, pages,
        k_cache_stride, weights_stride_b, weights_stride_n, seq_lens_stride, lines, max_pages,
        block_table_stride, stride, logits_stride_b, logits_stride_n
    )
    kernel.launch(grid=(1, 1, 1), block=(352, 1, 1), cluster=(1, 1, 1))
