"""lightning_indexer__cutedsl_sm100a__prefill_h64_q4_t128_st6_c1_e0_mxfp4_bf16

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: mode=prefill, heads=64, queries=4, tile=128, stages=6, resident=1, evict=0, kind=mxfp4_bf16.

  load                  mma                   place                 score_0               score_1               score_2               score_3
  warp 16               warp 18               warp 17               warps 0..3            warps 4..7            warps 8..11           warps 12..15
  |======== keys ======>|                     |                     |                     |                     |                     |   keys key_scales, ring of 6; bulk -> tcgen05
  |=================== keys =================>|                     |                     |                     |                     |   keys key_scales, ring of 6; bulk -> threads
  |====== queries =====>|                     |                     |                     |                     |                     |   queries query_scales head_weights, once; bulk -> tcgen05
  |================= queries ================>|                     |                     |                     |                     |   queries query_scales head_weights, once; bulk -> threads
  |============================ queries ===========================>|                     |                     |                     |   queries query_scales head_weights, once; bulk -> threads
  |======================================= queries ======================================>|                     |                     |   queries query_scales head_weights, once; bulk -> threads
  |================================================== queries =================================================>|                     |   queries query_scales head_weights, once; bulk -> threads
  |============================================================= queries ============================================================>|   queries query_scales head_weights, once; bulk -> threads
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
  keys       6 stages of 128x64 float4_e2m1x2, shared, 64-byte swizzle
  key_scales 6 stages of 128 int32, shared
  queries    256x64 float4_e2m1x2, shared, 64-byte swizzle
  query_scales 256 int32, shared
  head_weights 256 float32, shared
  key_factors 4 stages of 32x4 int32, shared
  query_factors 2 stages of 32x4 int32, shared
  by_key     128x16 uint8, tensor memory
  by_query_0 128x16 uint8, tensor memory
  by_query_1 128x16 uint8, tensor memory
  scores_0   128x128 float32, tensor memory
  scores_1   128x128 float32, tensor memory
  dots_0     128x64 float32, registers of score_0
  weight_0   128x32 float32, registers of score_0
  logit_0    128x1 float32, registers of score_0
  begin_0    128x1 int32, registers of score_0
  size_0     128x1 int32, registers of score_0
  dots_1     128x64 float32, registers of score_1
  weight_1   128x32 float32, registers of score_1
  logit_1    128x1 float32, registers of score_1
  begin_1    128x1 int32, registers of score_1
  size_1     128x1 int32, registers of score_1
  dots_2     128x64 float32, registers of score_2
  weight_2   128x32 float32, registers of score_2
  logit_2    128x1 float32, registers of score_2
  begin_2    128x1 int32, registers of score_2
  size_2     128x1 int32, registers of score_2
  dots_3     128x64 float32, registers of score_3
  weight_3   128x32 float32, registers of score_3
  logit_3    128x1 float32, registers of score_3
  begin_3    128x1 int32, registers of score_3
  size_3     128x1 int32, registers of score_3
pipelines
  keys: load (bulk) ==[keys key_scales: 6-slot ring]==> mma (tcgen05), place (threads)
    full  x1, 8704 bytes: load arrive + expect bytes
      mma: wait full, fence after
      place: wait full
    empty x2: load wait empty
      mma: commit -> empty
      place: one lane a warp, arrive empty
  queries: load (bulk) ==[queries query_scales head_weights: once]==> mma (tcgen05), place (threads), score_0 (threads), score_1 (threads), score_2 (threads), score_3 (threads)
    full  x1, 18432 bytes: load arrive + expect bytes
      mma: wait full, fence after
      place: wait full
      score_0: wait full
      score_1: wait full
      score_2: wait full
      score_3: wait full
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
totals: 608 threads, 73960 of 232448 bytes of shared memory, 268 of 512 tensor-memory columns, grid (ceildiv(s, 4), splits)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

from dsl_kernels.device.cutedsl import bulk, narrow_boxes, tcgen05, tcgen05_copy, tcgen05_scaled, warps
from dsl_kernels.kernels.lightning_indexer import cutedsl as leaf
from dsl_kernels.kernels.lightning_indexer import cutedsl_sm100 as leaf_sm100
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

HEADS = 64  # index heads
QUERIES = 4  # decode: most queries per sequence; prefill: query rows per CTA
TILE = 128  # keys per tile
STAGES = 6  # key tiles in flight
KEY_BYTES = 64
COLUMNS = 128
ROWS_PER_PRODUCT = 2
INDEX_DIM = 128

SCORE_0 = tcgen05_scaled.Product("float4_e2m1x2", TILE, COLUMNS, INDEX_DIM, "k", "k")
SCORE_1 = tcgen05_scaled.Product("float4_e2m1x2", TILE, COLUMNS, INDEX_DIM, "k", "k")

LAUNCH = Launch(
    operands=(
        Operand(
            "q", "tensor", "uint8", ("s", "index_heads", "64"), strides=("q_stride_s", "q_stride_h", "1")
        ),
        Operand("q_scales", "tensor", "int32", ("s", "index_heads"), strides=("q_scales_stride", "1")),
        Operand("k", "tensor", "uint8", ("skv", "64"), strides=("k_stride", "1")),
        Operand("k_scales", "tensor", "int32", ("skv",)),
        Operand("weights", "tensor", "float32", ("s", "index_heads"), strides=("weights_stride", "1")),
        Operand("k_start", "tensor", "int32", ("s",)),
        Operand("k_end", "tensor", "int32", ("s",)),
        Operand(
            "logits", "tensor", "bfloat16", ("s", "stride"), strides=("logits_stride", "1"), written=True
        ),
        Operand("skip_below", "scalar", "int32"),
        Operand("compressed", "scalar", "int32"),
        Operand("splits", "scalar", "int32"),
    ),
    grid=("ceildiv(s, 4)", "splits", "1"),
    block=608,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "query_map", "q", "UINT8", global_dims=("64", "index_heads", "s"), global_strides=(
                "q_stride_h", "q_stride_s"
            ),
            box=(KEY_BYTES, HEADS, QUERIES), element_strides=(1, 1, 1), swizzle="64B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "weight_map", "weights", "FLOAT32", global_dims=("index_heads", "s"), global_strides=(
                "weights_stride * 4",
            ),
            box=(HEADS, 1), element_strides=(1, 1), swizzle="NONE", l2_promotion="NONE",
        ),
        TensorMap(
            "factor_map", "q_scales", "INT32", global_dims=("index_heads", "s"), global_strides=(
                "q_scales_stride * 4",
            ),
            box=(HEADS, 1), element_strides=(1, 1), swizzle="NONE", l2_promotion="NONE",
        ),
        TensorMap(
            "key_map", "k", "UINT8", global_dims=("64", "skv"), global_strides=("k_stride",),
            box=(KEY_BYTES, TILE), element_strides=(1, 1), swizzle="64B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "scale_map", "k_scales", "INT32", global_dims=("skv",), global_strides=(),
            box=(TILE,), element_strides=(1,), swizzle="NONE", l2_promotion="NONE",
        ),
    ),
)


@cute.struct
class Shared:
    keys: cute.struct.Align[cute.struct.MemRange[cutlass.Uint8, STAGES * TILE * KEY_BYTES], 1024]
    key_scales: cute.struct.Align[cute.struct.MemRange[Int32, STAGES * TILE], 128]
    queries: cute.struct.Align[cute.struct.MemRange[cutlass.Uint8, QUERIES * HEADS * KEY_BYTES], 1024]
    query_scales: cute.struct.Align[cute.struct.MemRange[Int32, QUERIES * HEADS], 128]
    head_weights: cute.struct.Align[cute.struct.MemRange[Float32, QUERIES * HEADS], 128]
    key_factors: cute.struct.Align[cute.struct.MemRange[Int32, 4 * 32 * 4], 128]
    query_factors: cute.struct.Align[cute.struct.MemRange[Int32, 2 * 32 * 4], 128]
    keys_full: cute.struct.MemRange[Int64, STAGES]
    keys_empty: cute.struct.MemRange[Int64, STAGES]
    queries_full: cute.struct.MemRange[Int64, 1]
    key_factors_full: cute.struct.MemRange[Int64, 4]
    key_factors_empty: cute.struct.MemRange[Int64, 4]
    query_factors_full: cute.struct.MemRange[Int64, 2]
    query_factors_empty: cute.struct.MemRange[Int64, 2]
    scores_0_full: cute.struct.MemRange[Int64, 1]
    scores_0_empty: cute.struct.MemRange[Int64, 1]
    scores_1_full: cute.struct.MemRange[Int64, 1]
    scores_1_empty: cute.struct.MemRange[Int64, 1]
    tmem: Int32


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
def load_windows(begin, size, k_start, k_end, row, s, skv, skip_below):
    """Read the first keys and sizes of the windows of the rows from `row` on."""
    for i in cutlass.range_constexpr(1):
        last_row = cutlass.min(row + i, s - 1)
        first_key = cutlass.max(k_start[last_row], 0)
        end_key = cutlass.min(k_end[last_row], skv)
        end_to_score = cutlass.select_((row + i < s) & (end_key - first_key > skip_below), end_key, 0)
        begin[i] = first_key
        size[i] = cutlass.max(end_to_score - first_key, 0)


@cute.jit
def load_weights_first_0(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(8):
        cute.autovec_copy(warps.group(head_weights, 4, quad), warps.few(weight, 4 * quad, 4))


@cute.jit
def load_weights_first_32(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(8):
        cute.autovec_copy(warps.group(head_weights, 4, 8 + quad), warps.few(weight, 4 * quad, 4))


@cute.jit
def store_row(logits, logits_stride_0, logit, begin, size, row, key, compressed, thread):
    """Store the logit of this thread's key and row `row`, the `j`-th of its group, if the row has the key."""
    place = key + thread - begin[0]
    # One comparison is enough: unsigned, a key before the window is also far past its end.
    if place.to(cutlass.Uint32) < size[0].to(cutlass.Uint32):
        row_of_key = logits + Int64(row) * logits_stride_0
        row_of_key[place + begin[0] * (1 - compressed)] = logit[0]


@cute.jit
def load_weights_first_64(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(8):
        cute.autovec_copy(warps.group(head_weights, 4, HEADS // 4 + quad), warps.few(weight, 4 * quad, 4))


@cute.jit
def load_weights_first_96(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(8):
        cute.autovec_copy(
            warps.group(head_weights, 4, (HEADS + 32) // 4 + quad), warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_128(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(8):
        cute.autovec_copy(
            warps.group(head_weights, 4, ROWS_PER_PRODUCT * HEADS // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_160(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(8):
        cute.autovec_copy(
            warps.group(head_weights, 4, (ROWS_PER_PRODUCT * HEADS + 32) // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_192(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(8):
        cute.autovec_copy(
            warps.group(head_weights, 4, (ROWS_PER_PRODUCT + 1) * HEADS // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_224(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(8):
        cute.autovec_copy(
            warps.group(head_weights, 4, ((ROWS_PER_PRODUCT + 1) * HEADS + 32) // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def place_factors_from(factors, scales, first, lane):
    """Like `place_factors`, of the 128 rows from `first` on."""
    for column in cutlass.range_constexpr(4):
        factors[lane * 4 + column] = scales[first + column * 32 + lane]


@cute.jit
def place_factors(factors, scales, lane):
    """Scales of rows r, r + 32, ... side by side in row r, as copies to tensor memory read them.

    Of fewer than 128 rows the scales come again: products do not look at them.
    """
    for column in cutlass.range_constexpr(4):
        factors[lane * 4 + column] = scales[column * 32 % TILE + lane]


@cute.jit
def score_0(
    k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, compressed: Int32,
    s: Int32, skv: Int32, logits_stride: Int32, head_weights: cute.Pointer, tmem: cute.Pointer,
    queries_full: cute.Pointer, scores_0_full: cute.Pointer, scores_0_empty: cute.Pointer, row: Int32,
    first: Int32, turns: Int32, thread: Int32
):
    """Epilogue of products i with i % 2 == 0, part 0 of 2."""
    dots_0 = cute.make_rmem_tensor(HEADS, Float32)
    weight_0 = cute.make_rmem_tensor(32, Float32)
    logit_0 = cute.make_rmem_tensor(1, Float32)
    begin_0 = cute.make_rmem_tensor(1, Int32)
    size_0 = cute.make_rmem_tensor(1, Int32)
    worker = thread
    use = Int32(0)
    load_windows(begin_0, size_0, k_start, k_end, row, s, skv, skip_below)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(scores_0_full, use & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_0, tmem + 12, 0, HEADS, worker)
        cute.arch.fence_view_async_tmem_load()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(scores_0_empty)
        use = use + 1
        load_weights_first_0(weight_0, head_weights)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
        load_weights_first_32(weight_0, head_weights)
        leaf_sm100.weigh_one(logit_0, dots_0, 1, weight_0, False)
        store_row(
            logits, logits_stride, logit_0, begin_0, size_0, row, (first + it) * TILE, compressed, worker
        )


@cute.jit
def score_1(
    k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, compressed: Int32,
    s: Int32, skv: Int32, logits_stride: Int32, head_weights: cute.Pointer, tmem: cute.Pointer,
    queries_full: cute.Pointer, scores_0_full: cute.Pointer, scores_0_empty: cute.Pointer, row: Int32,
    first: Int32, turns: Int32, thread: Int32
):
    """Epilogue of products i with i % 2 == 0, part 1 of 2."""
    dots_1 = cute.make_rmem_tensor(HEADS, Float32)
    weight_1 = cute.make_rmem_tensor(32, Float32)
    logit_1 = cute.make_rmem_tensor(1, Float32)
    begin_1 = cute.make_rmem_tensor(1, Int32)
    size_1 = cute.make_rmem_tensor(1, Int32)
    worker = thread % 128
    use = Int32(0)
    load_windows(begin_1, size_1, k_start, k_end, row + 1, s, skv, skip_below)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(scores_0_full, use & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_1, tmem + 12, HEADS, HEADS, worker)
        cute.arch.fence_view_async_tmem_load()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(scores_0_empty)
        use = use + 1
        load_weights_first_64(weight_1, head_weights)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
        load_weights_first_96(weight_1, head_weights)
        leaf_sm100.weigh_one(logit_1, dots_1, 1, weight_1, False)
        store_row(
            logits, logits_stride, logit_1, begin_1, size_1, row + 1, (first + it) * TILE, compressed, worker
        )


@cute.jit
def score_2(
    k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, compressed: Int32,
    s: Int32, skv: Int32, logits_stride: Int32, head_weights: cute.Pointer, tmem: cute.Pointer,
    queries_full: cute.Pointer, scores_1_full: cute.Pointer, scores_1_empty: cute.Pointer, row: Int32,
    first: Int32, turns: Int32, thread: Int32
):
    """Epilogue of products i with i % 2 == 1, part 0 of 2."""
    dots_2 = cute.make_rmem_tensor(HEADS, Float32)
    weight_2 = cute.make_rmem_tensor(32, Float32)
    logit_2 = cute.make_rmem_tensor(1, Float32)
    begin_2 = cute.make_rmem_tensor(1, Int32)
    size_2 = cute.make_rmem_tensor(1, Int32)
    worker = thread % 128
    use = Int32(0)
    load_windows(begin_2, size_2, k_start, k_end, row + 2, s, skv, skip_below)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(scores_1_full, use & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_2, tmem + (12 + COLUMNS), 0, HEADS, worker)
        cute.arch.fence_view_async_tmem_load()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(scores_1_empty)
        use = use + 1
        load_weights_first_128(weight_2, head_weights)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_2, dots_2, 0, weight_2, True)
        load_weights_first_160(weight_2, head_weights)
        leaf_sm100.weigh_one(logit_2, dots_2, 1, weight_2, False)
        store_row(
            logits, logits_stride, logit_2, begin_2, size_2, row + ROWS_PER_PRODUCT, (first + it) * TILE,
            compressed, worker
        )


@cute.jit
def score_3(
    k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, compressed: Int32,
    s: Int32, skv: Int32, logits_stride: Int32, head_weights: cute.Pointer, tmem: cute.Pointer,
    queries_full: cute.Pointer, scores_1_full: cute.Pointer, scores_1_empty: cute.Pointer, row: Int32,
    first: Int32, turns: Int32, thread: Int32
):
    """Epilogue of products i with i % 2 == 1, part 1 of 2."""
    dots_3 = cute.make_rmem_tensor(HEADS, Float32)
    weight_3 = cute.make_rmem_tensor(32, Float32)
    logit_3 = cute.make_rmem_tensor(1, Float32)
    begin_3 = cute.make_rmem_tensor(1, Int32)
    size_3 = cute.make_rmem_tensor(1, Int32)
    worker = thread % 128
    use = Int32(0)
    load_windows(begin_3, size_3, k_start, k_end, row + 3, s, skv, skip_below)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(scores_1_full, use & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_3, tmem + (12 + COLUMNS), HEADS, HEADS, worker)
        cute.arch.fence_view_async_tmem_load()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(scores_1_empty)
        use = use + 1
        load_weights_first_192(weight_3, head_weights)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_3, dots_3, 0, weight_3, True)
        load_weights_first_224(weight_3, head_weights)
        leaf_sm100.weigh_one(logit_3, dots_3, 1, weight_3, False)
        store_row(
            logits, logits_stride, logit_3, begin_3, size_3, row + (ROWS_PER_PRODUCT + 1),
            (first + it) * TILE, compressed, worker
        )


@cute.jit
def load(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, weight_map: cute.CopyAtom,
    weight_map_coords: cute.Tensor, factor_map: cute.CopyAtom, factor_map_coords: cute.Tensor,
    key_map: cute.CopyAtom, key_map_coords: cute.Tensor, scale_map: cute.CopyAtom,
    scale_map_coords: cute.Tensor, keys: cute.Pointer, key_scales: cute.Pointer, queries: cute.Pointer,
    query_scales: cute.Pointer, head_weights: cute.Pointer, keys_full: cute.Pointer, keys_empty: cute.Pointer,
    queries_full: cute.Pointer, row: Int32, first: Int32, turns: Int32
):
    """Key tiles, queries."""
    if turns > 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(
                queries_full, QUERIES * HEADS * KEY_BYTES + QUERIES * HEADS * 4 + QUERIES * HEADS * 4
            )
        narrow_boxes.load_box(
            query_map, query_map_coords, (row, 0, 0), (QUERIES, HEADS, KEY_BYTES), queries, queries_full
        )
        for i in cutlass.range(QUERIES, unroll=1):
            bulk.load_box(
                factor_map, factor_map_coords, (row + i, 0), (1, HEADS), query_scales + i * HEADS,
                queries_full, swizzled=False
            )
            bulk.load_box(
                weight_map, weight_map_coords, (row + i, 0), (1, HEADS), head_weights + i * HEADS,
                queries_full, swizzled=False
            )
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(keys_empty + it % STAGES, ((it // STAGES) & 1) ^ 1)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(keys_full + it % STAGES, TILE * KEY_BYTES + TILE * 4)
        key = (first + it) * TILE
        narrow_boxes.load_box(
            key_map, key_map_coords, (key, 0), (TILE, KEY_BYTES), keys + it % STAGES * (TILE * KEY_BYTES),
            keys_full + it % STAGES
        )
        bulk.load_box(
            scale_map, scale_map_coords, (key,), (TILE,), key_scales + it % STAGES * TILE,
            keys_full + it % STAGES
        )


@cute.jit
def place(
    key_scales: cute.Pointer, query_scales: cute.Pointer, key_factors: cute.Pointer,
    query_factors: cute.Pointer, keys_full: cute.Pointer, keys_empty: cute.Pointer,
    queries_full: cute.Pointer, key_factors_full: cute.Pointer, key_factors_empty: cute.Pointer,
    query_factors_full: cute.Pointer, query_factors_empty: cute.Pointer, turns: Int32, lane: Int32
):
    """Scales, as copies to tensor memory read them."""
    fill = Int32(0)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
        for product in cutlass.range(2, unroll=1):
            cute.arch.mbarrier_wait(query_factors_empty + fill % 2, ((fill // 2) & 1) ^ 1)
            place_factors_from(
                query_factors + fill % 2 * 128, query_scales, product * (ROWS_PER_PRODUCT * HEADS), lane
            )
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(query_factors_full + fill % 2)
            fill = fill + 1
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        cute.arch.mbarrier_wait(key_factors_empty + it % 4, ((it // 4) & 1) ^ 1)
        place_factors(key_factors + it % 4 * 128, key_scales + it % STAGES * TILE, lane)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(key_factors_full + it % 4)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(keys_empty + it % STAGES)


@cute.jit
def mma(
    keys: cute.Pointer, queries: cute.Pointer, key_factors: cute.Pointer, query_factors: cute.Pointer,
    tmem: cute.Pointer, keys_full: cute.Pointer, keys_empty: cute.Pointer, queries_full: cute.Pointer,
    key_factors_full: cute.Pointer, key_factors_empty: cute.Pointer, query_factors_full: cute.Pointer,
    query_factors_empty: cute.Pointer, scores_0_full: cute.Pointer, scores_0_empty: cute.Pointer,
    scores_1_full: cute.Pointer, scores_1_empty: cute.Pointer, turns: Int32
):
    """Issues every tcgen05.cp, tcgen05.mma and commit."""
    score_0_a = SCORE_0.operand_a(keys, TILE, KEY_BYTES, STAGES, 64)
    score_0_b = SCORE_0.operand_b(queries, QUERIES * HEADS, KEY_BYTES, 1, 64)
    score_1_a = SCORE_1.operand_a(keys, TILE, KEY_BYTES, STAGES, 64)
    score_1_b = SCORE_1.operand_b(queries, QUERIES * HEADS, KEY_BYTES, 1, 64)
    taken = Int32(0)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
        nvvm.tcgen05_fence("after_thread_sync")
        cute.arch.mbarrier_wait(query_factors_full + taken % 2, (taken // 2) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        tcgen05_copy.copy_factors(tmem + 4, query_factors + taken % 2 * 128)
        with cute.arch.elect_one():
            tcgen05.commit(query_factors_empty + taken % 2)
        taken = taken + 1
        cute.arch.mbarrier_wait(query_factors_full + taken % 2, (taken // 2) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        tcgen05_copy.copy_factors(tmem + 8, query_factors + taken % 2 * 128)
        with cute.arch.elect_one():
            tcgen05.commit(query_factors_empty + taken % 2)
        taken = taken + 1
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        cute.arch.mbarrier_wait(key_factors_full + it % 4, (it // 4) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        tcgen05_copy.copy_factors(tmem, key_factors + it % 4 * 128)
        cute.arch.mbarrier_wait(scores_0_empty, (it & 1) ^ 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # S[keys, heads] = K Q^T, scaled by blocks of 32
        SCORE_0.multiply(
            score_0_a[None, None, None, it % STAGES], score_0_b[None, None, None, 0], tmem + 12, False, tmem,
            tmem + 4
        )
        with cute.arch.elect_one():
            tcgen05.commit(scores_0_full)
        cute.arch.mbarrier_wait(scores_1_empty, (it & 1) ^ 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # S[keys, heads] = K Q^T, scaled by blocks of 32
        SCORE_1.multiply(
            score_1_a[None, None, None, it % STAGES], score_1_b[None, None, None, 1], tmem + (12 + COLUMNS),
            False, tmem, tmem + 8
        )
        with cute.arch.elect_one():
            tcgen05.commit(scores_1_full)
        with cute.arch.elect_one():
            tcgen05.commit(key_factors_empty + it % 4)
        with cute.arch.elect_one():
            tcgen05.commit(keys_empty + it % STAGES)


@cute.kernel
def lightning_indexer__cutedsl_sm100a__prefill_h64_q4_t128_st6_c1_e0_mxfp4_bf16(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, weight_map: cute.CopyAtom,
    weight_map_coords: cute.Tensor, factor_map: cute.CopyAtom, factor_map_coords: cute.Tensor,
    key_map: cute.CopyAtom, key_map_coords: cute.Tensor, scale_map: cute.CopyAtom,
    scale_map_coords: cute.Tensor, q: cute.Pointer, q_scales: cute.Pointer, k: cute.Pointer,
    k_scales: cute.Pointer, weights: cute.Pointer, k_start: cute.Pointer, k_end: cute.Pointer,
    logits: cute.Pointer, skip_below: Int32, compressed: Int32, splits: Int32, s: Int32, index_heads: Int32,
    q_stride_s: Int32, q_stride_h: Int32, q_scales_stride: Int32, skv: Int32, k_stride: Int32,
    weights_stride: Int32, stride: Int32, logits_stride: Int32
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
                cute.arch.mbarrier_init(keys_empty + i, 2)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(queries_full + i, 1)
            for i in cutlass.range_constexpr(4):
                cute.arch.mbarrier_init(key_factors_full + i, 1)
            for i in cutlass.range_constexpr(4):
                cute.arch.mbarrier_init(key_factors_empty + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(query_factors_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(query_factors_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(scores_0_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(scores_0_empty + i, 8)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(scores_1_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(scores_1_empty + i, 8)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(query_map)
        cpasync.prefetch_descriptor(weight_map)
        cpasync.prefetch_descriptor(factor_map)
        cpasync.prefetch_descriptor(key_map)
        cpasync.prefetch_descriptor(scale_map)
    if warp == 1:
        cute.arch.alloc_tmem(512, shared.tmem)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, shared.tmem)
    if warp < 4:
        score_0(
            k_start, k_end, logits, skip_below, compressed, s, skv, logits_stride, head_weights, tmem,
            queries_full, scores_0_full, scores_0_empty, row, first, turns, thread
        )
    elif warp < 8:
        score_1(
            k_start, k_end, logits, skip_below, compressed, s, skv, logits_stride, head_weights, tmem,
            queries_full, scores_0_full, scores_0_empty, row, first, turns, thread
        )
    elif warp < 12:
        score_2(
            k_start, k_end, logits, skip_below, compressed, s, skv, logits_stride, head_weights, tmem,
            queries_full, scores_1_full, scores_1_empty, row, first, turns, thread
        )
    elif warp < 16:
        score_3(
            k_start, k_end, logits, skip_below, compressed, s, skv, logits_stride, head_weights, tmem,
            queries_full, scores_1_full, scores_1_empty, row, first, turns, thread
        )
    elif warp < 17:
        load(
            query_map, query_map_coords, weight_map, weight_map_coords, factor_map, factor_map_coords,
            key_map, key_map_coords, scale_map, scale_map_coords, keys, key_scales, queries, query_scales,
            head_weights, keys_full, keys_empty, queries_full, row, first, turns
        )
    elif warp < 18:
        place(
            key_scales, query_scales, key_factors, query_factors, keys_full, keys_empty, queries_full,
            key_factors_full, key_factors_empty, query_factors_full, query_factors_empty, turns, lane
        )
    else:
        mma(
            keys, queries, key_factors, query_factors, tmem, keys_full, keys_empty, queries_full,
            key_factors_full, key_factors_empty, query_factors_full, query_factors_empty, scores_0_full,
            scores_0_empty, scores_1_full, scores_1_empty, turns
        )
    # Tensor memory goes back only when no role can touch it any more.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if thread // 32 == 1:
        cute.arch.dealloc_tmem(tmem, 512)


@cute.jit
def program(
    q: cute.Pointer, q_scales: cute.Pointer, k: cute.Pointer, k_scales: cute.Pointer, weights: cute.Pointer,
    k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, compressed: Int32,
    splits: Int32, s: Int32, index_heads: Int32, q_stride_s: Int32, q_stride_h: Int32, q_scales_stride: Int32,
    skv: Int32, k_stride: Int32, weights_stride: Int32, stride: Int32, logits_stride: Int32
):
    query_map, query_map_coords = narrow_boxes.box_map(q, cutlass.Uint8, (QUERIES, HEADS, KEY_BYTES))
    weight_map, weight_map_coords = bulk.box_map(weights, Float32, (1, HEADS), False)
    factor_map, factor_map_coords = bulk.box_map(q_scales, Int32, (1, HEADS), False)
    key_map, key_map_coords = narrow_boxes.box_map(k, cutlass.Uint8, (TILE, KEY_BYTES))
    scale_map, scale_map_coords = bulk.box_map(k_scales, Int32, (TILE,), False)
    kernel = lightning_indexer__cutedsl_sm100a__prefill_h64_q4_t128_st6_c1_e0_mxfp4_bf16(
        query_map, query_map_coords, weight_map, weight_map_coords, factor_map, factor_map_coords, key_map,
        key_map_coords, scale_map, scale_map_coords, q, q_scales, k, k_scales, weights, k_start, k_end,
        logits, skip_below, compressed, splits, s, index_heads, q_stride_s, q_stride_h, q_scales_stride, skv,
        k_stride, weights_stride, stride, logits_stride
    )
    kernel.launch(grid=(1, 1, 1), block=(608, 1, 1), cluster=(1, 1, 1))
