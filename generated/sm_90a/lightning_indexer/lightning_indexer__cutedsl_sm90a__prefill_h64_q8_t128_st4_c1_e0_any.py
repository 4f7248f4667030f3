"""lightning_indexer__cutedsl_sm90a__prefill_h64_q8_t128_st4_c1_e0_any

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: mode=prefill, heads=64, queries=8, tile=128, stages=4, resident=1, evict=0, kind=any.

  load            score
  warps 16..19    warps 0..15
  |===== keys ===>|   keys key_scales, ring of 4; bulk -> wgmma
  |=== queries ==>|   queries head_weights, once; bulk -> wgmma

roles
  score      threads 0..511, 112 registers  products and epilogue, 2 query rows per replica
  load       threads 512..639, 24 registers  key tiles, queries
buffers
  keys       4 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 4 stages of 128 float32, shared
  queries    512x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 512 float32, shared
  acc        64x128 float32, registers of score
  weight     128x32 float32, registers of score
  scale      128x1 float32, registers of score
  logit      128x1 float32, registers of score
  begin      128x1 int32, registers of score
  size       128x1 int32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 4-slot ring]==> score (wgmma)
    full  x1, 16896 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: once]==> score (wgmma)
    full  x1, 67584 bytes: load arrive + expect bytes
      score: wait full
totals: 640 threads, 135240 of 232448 bytes of shared memory, grid (ceildiv(s, 8), splits)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from dsl_kernels.device.cutedsl import boxes, bulk, warps, wgmma
from dsl_kernels.kernels.lightning_indexer import cutedsl as leaf
from dsl_kernels.kernels.lightning_indexer import cutedsl_sm90 as leaf_sm90
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

HEADS = 64  # index heads
QUERIES = 8  # decode: most queries per sequence; prefill: query rows per CTA
TILE = 128  # keys per tile
STAGES = 4  # key tiles in flight
BLOCK = 64
ROWS_PER_PRODUCT = 2
INDEX_DIM = 128
COLUMNS = 128

SCORE = wgmma.Product("float8_e4m3", BLOCK, COLUMNS, INDEX_DIM, "k", "k")

LAUNCH = Launch(
    operands=(
        Operand(
            "q", "tensor", "float8_e4m3fn", ("s", "index_heads", "index_dim"),
            strides=("q_stride_s", "q_stride_h", "1")
        ),
        Operand("k", "tensor", "float8_e4m3fn", ("skv", "index_dim"), strides=("k_stride", "1")),
        Operand("k_scales", "tensor", "float32", ("skv",)),
        Operand("weights", "tensor", "float32", ("s", "index_heads"), strides=("weights_stride", "1")),
        Operand("k_start", "tensor", "int32", ("s",)),
        Operand("k_end", "tensor", "int32", ("s",)),
        Operand("logits", "tensor", "float32", ("s", "stride"), strides=("logits_stride", "1"), written=True),
        Operand("skip_below", "scalar", "int32"),
        Operand("compressed", "scalar", "int32"),
        Operand("splits", "scalar", "int32"),
    ),
    grid=("ceildiv(s, 8)", "splits", "1"),
    block=640,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "query_map", "q", "UINT8", global_dims=("index_dim", "index_heads", "s"), global_strides=(
                "q_stride_h", "q_stride_s"
            ),
            box=(INDEX_DIM, HEADS, QUERIES), element_strides=(1, 1, 1),
            swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "key_map", "k", "UINT8", global_dims=("index_dim", "skv"), global_strides=("k_stride",),
            box=(INDEX_DIM, TILE), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "scale_map", "k_scales", "FLOAT32", global_dims=("skv",), global_strides=(),
            box=(TILE,), element_strides=(1,), swizzle="NONE", l2_promotion="NONE",
        ),
        TensorMap(
            "weight_map", "weights", "FLOAT32", global_dims=("index_heads", "s"), global_strides=(
                "weights_stride * 4",
            ),
            box=(HEADS, 1), element_strides=(1, 1), swizzle="NONE", l2_promotion="NONE",
        ),
    ),
)


@cute.struct
class Shared:
    keys: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, STAGES * TILE * INDEX_DIM], 1024]
    key_scales: cute.struct.Align[cute.struct.MemRange[Float32, STAGES * TILE], 128]
    queries: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, QUERIES * HEADS * INDEX_DIM], 1024]
    head_weights: cute.struct.Align[cute.struct.MemRange[Float32, QUERIES * HEADS], 128]
    keys_full: cute.struct.MemRange[Int64, STAGES]
    keys_empty: cute.struct.MemRange[Int64, STAGES]
    queries_full: cute.struct.MemRange[Int64, 1]


@cute.jit
def find_tiles(k_start, k_end, row, s, skv, skip_below, split, splits, lane):
    """The first key tile and the tile count of a split.

    Splits share the union of the windows of a block of rows. Each lane reads the window of one row.
    """
    last_row = cutlass.min(row + lane % QUERIES, s - 1)
    first_key = cutlass.max(k_start[last_row], 0)
    end_key = cutlass.min(k_end[last_row], skv)
    end_to_score = cutlass.select_(
        (row + lane % QUERIES < s) & (end_key - first_key > skip_below), end_key, 0
    )
    # The lowest key is found as a maximum, of the distances from LAST_KEY: a warp has no minimum.
    low = 2147483647 - warps.warp_max(cutlass.select_(end_to_score > first_key, 2147483647 - first_key, 0))
    high = warps.warp_max(cutlass.select_(end_to_score > first_key, end_to_score, 0))
    lowest = Int32(0)
    tiles = Int32(0)
    if high > 0:
        lowest = (low.to(cutlass.Uint32) // TILE).to(Int32)
        tiles = leaf.ceildiv(high, TILE) - lowest
    first = lowest + leaf.share_begin(tiles, split, splits)
    turns = leaf.share_size(tiles, split, splits)
    return first, turns


@cute.jit
def read_windows(begin, size, k_start, k_end, row, s, skv, skip_below, thread):
    """Read the first key and the size of the window of this thread's row."""
    last_row = cutlass.min(row + thread // 2 % 2, s - 1)
    first_key = cutlass.max(k_start[last_row], 0)
    end_key = cutlass.min(k_end[last_row], skv)
    end_to_score = cutlass.select_(
        (row + thread // 2 % 2 < s) & (end_key - first_key > skip_below), end_key, 0
    )
    begin[0] = first_key
    size[0] = cutlass.max(end_to_score - first_key, 0)


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
def read_scales_first_0(scale, key_scales, thread):
    """Read the scales of this thread's keys of one product, from key `first` of the tile on."""
    own = key_scales + (thread // 32 * 16 + (thread % 32 // 4 + 8 * (thread % 32 % 2)))
    scale[0] = own[0]


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
def store_window(logits, logits_stride_0, logit, scale, begin, size, row, key, compressed, thread):
    """Store this thread's logits of a product, times the scales, for the keys in its row's window."""
    # The part of the address that is the same for all products comes first, so it is computed once.
    to = logits + Int64(row + thread // 2 % 2) * logits_stride_0 + (
        thread // 32 * 16 + (thread % 32 // 4 + 8 * (thread % 32 % 2)) - begin[0] * compressed
    )
    there = to + key
    place = key - (begin[0] - (thread // 32 * 16 + (thread % 32 // 4 + 8 * (thread % 32 % 2))))
    leaf_sm90.store_where(there, logit[0] * scale[0], place.to(cutlass.Uint32) < size[0].to(cutlass.Uint32))


@cute.jit
def read_scales_first_64(scale, key_scales, thread):
    """Read the scales of this thread's keys of one product, from key `first` of the tile on."""
    own = key_scales + (64 + (thread // 32 * 16 + (thread % 32 // 4 + 8 * (thread % 32 % 2))))
    scale[0] = own[0]


@cute.jit
def score(
    k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, compressed: Int32,
    s: Int32, skv: Int32, logits_stride: Int32, keys: cute.Pointer, key_scales: cute.Pointer,
    queries: cute.Pointer, head_weights: cute.Pointer, keys_full: cute.Pointer, keys_empty: cute.Pointer,
    queries_full: cute.Pointer, row: Int32, first: Int32, turns: Int32, thread: Int32, warp: Int32
):
    """Products and epilogue, 2 query rows per replica."""
    score_a = SCORE.operand_a(keys, TILE, INDEX_DIM, STAGES, 128)
    score_b = SCORE.operand_b(queries, QUERIES * HEADS, INDEX_DIM, 1, 128)
    acc = SCORE.accumulators()
    weight = cute.make_rmem_tensor(ROWS_PER_PRODUCT * HEADS // 4, Float32)
    scale = cute.make_rmem_tensor(1, Float32)
    logit = cute.make_rmem_tensor(1, Float32)
    begin = cute.make_rmem_tensor(1, Int32)
    size = cute.make_rmem_tensor(1, Int32)
    replica = warp // 4
    worker = thread % 128
    own = row + replica * ROWS_PER_PRODUCT
    read_windows(begin, size, k_start, k_end, own, s, skv, skip_below, worker)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
        read_weights(weight, head_weights, replica * COLUMNS, worker)
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        # S[keys, heads] = K Q^T
        warpgroup.fence()
        SCORE.multiply(
            score_a[None, None, None, it % STAGES, 0, 0], score_b[None, None, None, 0, replica, 0], acc,
            False
        )
        warpgroup.commit_group()
        read_scales_first_0(scale, key_scales + it % STAGES * TILE, worker)
        warpgroup.wait_group(0)
        weigh(logit, acc, weight, worker)
        store_window(
            logits, logits_stride, logit, scale, begin, size, own, (first + it) * TILE, compressed, worker
        )
        # S[keys, heads] = K Q^T
        warpgroup.fence()
        SCORE.multiply(
            score_a[None, None, None, it % STAGES, 1, 0], score_b[None, None, None, 0, replica, 0], acc,
            False
        )
        warpgroup.commit_group()
        read_scales_first_64(scale, key_scales + it % STAGES * TILE, worker)
        warpgroup.wait_group(0)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(keys_empty + it % STAGES)
        weigh(logit, acc, weight, worker)
        store_window(
            logits, logits_stride, logit, scale, begin, size, own, (first + it) * TILE + 64, compressed,
            worker
        )


@cute.jit
def load(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, key_map: cute.CopyAtom,
    key_map_coords: cute.Tensor, scale_map: cute.CopyAtom, scale_map_coords: cute.Tensor,
    weight_map: cute.CopyAtom, weight_map_coords: cute.Tensor, keys: cute.Pointer, key_scales: cute.Pointer,
    queries: cute.Pointer, head_weights: cute.Pointer, keys_full: cute.Pointer, keys_empty: cute.Pointer,
    queries_full: cute.Pointer, row: Int32, first: Int32, turns: Int32
):
    """Key tiles, queries."""
    if turns > 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(
                queries_full, QUERIES * HEADS * INDEX_DIM + QUERIES * HEADS * 4
            )
        boxes.load_box(
            query_map, query_map_coords, (row, 0, 0), (QUERIES, HEADS, INDEX_DIM), queries, queries_full
        )
        for i in cutlass.range(QUERIES, unroll=1):
            bulk.load_box(
                weight_map, weight_map_coords, (row + i, 0), (1, HEADS), head_weights + i * HEADS,
                queries_full, swizzled=False
            )
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(keys_empty + it % STAGES, ((it // STAGES) & 1) ^ 1)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(keys_full + it % STAGES, TILE * INDEX_DIM + TILE * 4)
        key = (first + it) * TILE
        bulk.load_box(
            key_map, key_map_coords, (key, 0), (TILE, INDEX_DIM), keys + it % STAGES * (TILE * INDEX_DIM),
            keys_full + it % STAGES
        )
        bulk.load_box(
            scale_map, scale_map_coords, (key,), (TILE,), key_scales + it % STAGES * TILE,
            keys_full + it % STAGES
        )


@cute.kernel
def lightning_indexer__cutedsl_sm90a__prefill_h64_q8_t128_st4_c1_e0_any(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, key_map: cute.CopyAtom,
    key_map_coords: cute.Tensor, scale_map: cute.CopyAtom, scale_map_coords: cute.Tensor,
    weight_map: cute.CopyAtom, weight_map_coords: cute.Tensor, q: cute.Pointer, k: cute.Pointer,
    k_scales: cute.Pointer, weights: cute.Pointer, k_start: cute.Pointer, k_end: cute.Pointer,
    logits: cute.Pointer, skip_below: Int32, compressed: Int32, splits: Int32, s: Int32, index_heads: Int32,
    index_dim: Int32, q_stride_s: Int32, q_stride_h: Int32, skv: Int32, k_stride: Int32,
    weights_stride: Int32, stride: Int32, logits_stride: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    keys = shared.keys.data_ptr()
    key_scales = shared.key_scales.data_ptr()
    queries = shared.queries.data_ptr()
    head_weights = shared.head_weights.data_ptr()
    keys_full = shared.keys_full.data_ptr()
    keys_empty = shared.keys_empty.data_ptr()
    queries_full = shared.queries_full.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    block, split, _ = cute.arch.block_idx()
    row = Int32(0)
    first = Int32(0)
    turns = Int32(0)
    # Later rows see more keys in a causal prefill: the longest blocks start first.
    row = (leaf.ceildiv(s, QUERIES) - 1 - block) * QUERIES
    first, turns = find_tiles(k_start, k_end, row, s, skv, skip_below, split, splits, lane)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(keys_full + i, 1)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(keys_empty + i, 4 * (BLOCK // 16))
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(queries_full + i, 1)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(query_map)
        cpasync.prefetch_descriptor(key_map)
        cpasync.prefetch_descriptor(scale_map)
        cpasync.prefetch_descriptor(weight_map)
    cute.arch.sync_threads()
    if warp < 16:
        cute.arch.setmaxregister_increase(112)
        score(
            k_start, k_end, logits, skip_below, compressed, s, skv, logits_stride, keys, key_scales, queries,
            head_weights, keys_full, keys_empty, queries_full, row, first, turns, thread, warp
        )
    else:
        cute.arch.setmaxregister_decrease(24)
        if warp == 16:
            load(
                query_map, query_map_coords, key_map, key_map_coords, scale_map, scale_map_coords, weight_map,
                weight_map_coords, keys, key_scales, queries, head_weights, keys_full, keys_empty,
                queries_full, row, first, turns
            )


@cute.jit
def program(
    q: cute.Pointer, k: cute.Pointer, k_scales: cute.Pointer, weights: cute.Pointer, k_start: cute.Pointer,
    k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, compressed: Int32, splits: Int32, s: Int32,
    index_heads: Int32, index_dim: Int32, q_stride_s: Int32, q_stride_h: Int32, skv: Int32, k_stride: Int32,
    weights_stride: Int32, stride: Int32, logits_stride: Int32
):
    query_map, query_map_coords = boxes.strided_map(
        q, cutlass.Float8E4M3FN, (QUERIES, HEADS, INDEX_DIM), True
    )
    key_map, key_map_coords = bulk.box_map(k, cutlass.Float8E4M3FN, (TILE, INDEX_DIM), True)
    scale_map, scale_map_coords = bulk.box_map(k_scales, Float32, (TILE,), False)
    weight_map, weight_map_coords = bulk.box_map(weights, Float32, (1, HEADS), False)
    kernel = lightning_indexer__cutedsl_sm90a__prefill_h64_q8_t128_st4_c1_e0_any(
        query_map, query_map_coords, key_map, key_map_coords, scale_map, scale_map_coords, weight_map,
        weight_map_coords, q, k, k_scales, weights, k_start, k_end, logits, skip_below, compressed, splits, s,
        index_heads, index_dim, q_stride_s, q_stride_h, skv, k_stride, weights_stride, stride, logits_stride
    )
    kernel.launch(grid=(1, 1, 1), block=(640, 1, 1), cluster=(1, 1, 1))
