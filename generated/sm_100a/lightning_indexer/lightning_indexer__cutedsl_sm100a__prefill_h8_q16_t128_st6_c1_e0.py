"""lightning_indexer__cutedsl_sm100a__prefill_h8_q16_t128_st6_c1_e0

Generated from dsl_kernels/kernels/lightning_indexer and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: mode=prefill, heads=8, queries=16, tile=128, stages=6, resident=1, evict=0.

  load            mma             score_0         score_1         score_2         score_3
  warp 16         warp 17         warps 0..3      warps 4..7      warps 8..11     warps 12..15
  |===== keys ===>|               |               |               |               |   keys key_scales, ring of 6; bulk -> tcgen05
  |============= keys ===========>|               |               |               |   keys key_scales, ring of 6; bulk -> threads
  |===================== keys ===================>|               |               |   keys key_scales, ring of 6; bulk -> threads
  |============================= keys ===========================>|               |   keys key_scales, ring of 6; bulk -> threads
  |===================================== keys ===================================>|   keys key_scales, ring of 6; bulk -> threads
  |=== queries ==>|               |               |               |               |   queries head_weights, once; bulk -> tcgen05
  |=========== queries ==========>|               |               |               |   queries head_weights, once; bulk -> threads
  |=================== queries ==================>|               |               |   queries head_weights, once; bulk -> threads
  |=========================== queries ==========================>|               |   queries head_weights, once; bulk -> threads
  |=================================== queries ==================================>|   queries head_weights, once; bulk -> threads
  |               |==== scores ==>|               |               |               |   scores, ring of 2; tcgen05 -> tmem
  |               |============ scores ==========>|               |               |   scores, ring of 2; tcgen05 -> tmem
  |               |==================== scores ==================>|               |   scores, ring of 2; tcgen05 -> tmem
  |               |============================ scores ==========================>|   scores, ring of 2; tcgen05 -> tmem

roles
  score_0    threads 0..127  epilogue of quarter 0 of the rows
  score_1    threads 128..255  epilogue of quarter 1 of the rows
  score_2    threads 256..383  epilogue of quarter 2 of the rows
  score_3    threads 384..511  epilogue of quarter 3 of the rows
  load       threads 512..543  key tiles, queries
  mma        threads 544..575  issues every tcgen05.mma and commit
buffers
  keys       6 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 6 stages of 128 float32, shared
  queries    128x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 512 float32, shared
  scores     2 stages of 128x128 float32, tensor memory
  dots_0     128x8 float32, registers of score_0
  weight_0   128x8 float32, registers of score_0
  scale_0    128x1 float32, registers of score_0
  logit_0    128x1 float32, registers of score_0
  begin_0    128x4 int32, registers of score_0
  size_0     128x4 int32, registers of score_0
  dots_1     128x8 float32, registers of score_1
  weight_1   128x8 float32, registers of score_1
  scale_1    128x1 float32, registers of score_1
  logit_1    128x1 float32, registers of score_1
  begin_1    128x4 int32, registers of score_1
  size_1     128x4 int32, registers of score_1
  dots_2     128x8 float32, registers of score_2
  weight_2   128x8 float32, registers of score_2
  scale_2    128x1 float32, registers of score_2
  logit_2    128x1 float32, registers of score_2
  begin_2    128x4 int32, registers of score_2
  size_2     128x4 int32, registers of score_2
  dots_3     128x8 float32, registers of score_3
  weight_3   128x8 float32, registers of score_3
  scale_3    128x1 float32, registers of score_3
  logit_3    128x1 float32, registers of score_3
  begin_3    128x4 int32, registers of score_3
  size_3     128x4 int32, registers of score_3
pipelines
  keys: load (bulk) ==[keys key_scales: 6-slot ring]==> mma (tcgen05), score_0 (threads), score_1 (threads), score_2 (threads), score_3 (threads)
    full  x1, 16896 bytes: load arrive + expect bytes
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
  queries: load (bulk) ==[queries head_weights: once]==> mma (tcgen05), score_0 (threads), score_1 (threads), score_2 (threads), score_3 (threads)
    full  x1, 18432 bytes: load arrive + expect bytes
      mma: wait full, fence after
      score_0: wait full
      score_1: wait full
      score_2: wait full
      score_3: wait full
  scores: mma (tcgen05) ==[scores: 2-slot ring]==> score_0 (tmem), score_1 (tmem), score_2 (tmem), score_3 (tmem)
    full  x1: mma commit -> full
      score_0: wait full, fence after
      score_1: wait full, fence after
      score_2: wait full, fence after
      score_3: wait full, fence after
    empty x16: mma wait empty, fence after
      score_0: wait::ld, fence before, one lane a warp, arrive empty
      score_1: wait::ld, fence before, one lane a warp, arrive empty
      score_2: wait::ld, fence before, one lane a warp, arrive empty
      score_3: wait::ld, fence before, one lane a warp, arrive empty
totals: 576 threads, 119944 of 232448 bytes of shared memory, 256 of 512 tensor-memory columns, grid (ceildiv(s, 16), splits)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

from dsl_kernels.device.cutedsl import boxes, bulk, tcgen05, warps
from dsl_kernels.kernels.lightning_indexer import cutedsl as leaf
from dsl_kernels.kernels.lightning_indexer import cutedsl_sm100 as leaf_sm100
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

HEADS = 8  # index heads
QUERIES = 16  # decode: most queries per sequence; prefill: query rows per CTA
TILE = 128  # keys per tile
STAGES = 6  # key tiles in flight
ROWS_PER_GROUP = 4
INDEX_DIM = 128
WEIGHT_PITCH = 32
COLUMNS = 128

SCORE = tcgen05.Product("float8_e4m3", TILE, COLUMNS, INDEX_DIM, "k", "k")

LAUNCH = Launch(
    operands=(
        Operand("q", "tensor", "float8_e4m3fn", ("s", "8", "128"), strides=("q_stride_s", "q_stride_h", "1")),
        Operand("k", "tensor", "float8_e4m3fn", ("skv", "128"), strides=("k_stride", "1")),
        Operand("k_scales", "tensor", "float32", ("skv",)),
        Operand("weights", "tensor", "float32", ("s", "8"), strides=("weights_stride", "1")),
        Operand("k_start", "tensor", "int32", ("s",)),
        Operand("k_end", "tensor", "int32", ("s",)),
        Operand("logits", "tensor", "float32", ("s", "stride"), strides=("logits_stride", "1"), written=True),
        Operand("skip_below", "scalar", "int32"),
        Operand("splits", "scalar", "int32"),
    ),
    grid=("ceildiv(s, 16)", "splits", "1"),
    block=576,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "query_map", "q", "UINT8", global_dims=("128", "8", "s"), global_strides=(
                "q_stride_h", "q_stride_s"
            ),
            box=(INDEX_DIM, HEADS, QUERIES), element_strides=(1, 1, 1),
            swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "key_map", "k", "UINT8", global_dims=("128", "skv"), global_strides=("k_stride",),
            box=(INDEX_DIM, TILE), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "scale_map", "k_scales", "FLOAT32", global_dims=("skv",), global_strides=(),
            box=(TILE,), element_strides=(1,), swizzle="NONE", l2_promotion="NONE",
        ),
    ),
)


@cute.struct
class Shared:
    keys: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, STAGES * TILE * INDEX_DIM], 1024]
    key_scales: cute.struct.Align[cute.struct.MemRange[Float32, STAGES * TILE], 128]
    queries: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, QUERIES * HEADS * INDEX_DIM], 1024]
    head_weights: cute.struct.Align[cute.struct.MemRange[Float32, QUERIES * WEIGHT_PITCH], 128]
    keys_full: cute.struct.MemRange[Int64, STAGES]
    keys_empty: cute.struct.MemRange[Int64, STAGES]
    queries_full: cute.struct.MemRange[Int64, 1]
    scores_full: cute.struct.MemRange[Int64, 2]
    scores_empty: cute.struct.MemRange[Int64, 2]
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
    for i in cutlass.range_constexpr(ROWS_PER_GROUP):
        last_row = cutlass.min(row + i, s - 1)
        first_key = cutlass.max(k_start[last_row], 0)
        end_key = cutlass.min(k_end[last_row], skv)
        end_to_score = cutlass.select_((row + i < s) & (end_key - first_key > skip_below), end_key, 0)
        begin[i] = first_key
        size[i] = cutlass.max(end_to_score - first_key, 0)


@cute.jit
def load_scale(scale, key_scales, thread):
    """Read the scale of this thread's key."""
    scale[0] = key_scales[thread]


@cute.jit
def load_weights_first_0(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(warps.group(head_weights, 4, quad), warps.few(weight, 4 * quad, 4))


@cute.jit
def store_row_j_0(logits, logits_stride_0, logit, scale, begin, size, row, key, thread):
    """Store the logit of this thread's key and row `row`, times the key's scale, if the row has the key.

    `j` is the number of the row in its group.
    """
    at = key + thread
    # One comparison is enough: unsigned, a key before the window is also far past its end.
    if (at - begin[0]).to(cutlass.Uint32) < size[0].to(cutlass.Uint32):
        row_of_key = logits + Int64(row) * logits_stride_0
        row_of_key[at] = logit[0] * scale[0]


@cute.jit
def load_weights_first_32(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, WEIGHT_PITCH // 4 + quad), warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def store_row_j_1(logits, logits_stride_0, logit, scale, begin, size, row, key, thread):
    """Store the logit of this thread's key and row `row`, times the key's scale, if the row has the key.

    `j` is the number of the row in its group.
    """
    at = key + thread
    # One comparison is enough: unsigned, a key before the window is also far past its end.
    if (at - begin[1]).to(cutlass.Uint32) < size[1].to(cutlass.Uint32):
        row_of_key = logits + Int64(row) * logits_stride_0
        row_of_key[at] = logit[0] * scale[0]


@cute.jit
def load_weights_first_64(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, 2 * WEIGHT_PITCH // 4 + quad), warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def store_row_j_2(logits, logits_stride_0, logit, scale, begin, size, row, key, thread):
    """Store the logit of this thread's key and row `row`, times the key's scale, if the row has the key.

    `j` is the number of the row in its group.
    """
    at = key + thread
    # One comparison is enough: unsigned, a key before the window is also far past its end.
    if (at - begin[2]).to(cutlass.Uint32) < size[2].to(cutlass.Uint32):
        row_of_key = logits + Int64(row) * logits_stride_0
        row_of_key[at] = logit[0] * scale[0]


@cute.jit
def load_weights_first_96(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, 3 * WEIGHT_PITCH // 4 + quad), warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def store_row_j_3(logits, logits_stride_0, logit, scale, begin, size, row, key, thread):
    """Store the logit of this thread's key and row `row`, times the key's scale, if the row has the key.

    `j` is the number of the row in its group.
    """
    at = key + thread
    # One comparison is enough: unsigned, a key before the window is also far past its end.
    if (at - begin[3]).to(cutlass.Uint32) < size[3].to(cutlass.Uint32):
        row_of_key = logits + Int64(row) * logits_stride_0
        row_of_key[at] = logit[0] * scale[0]


@cute.jit
def load_weights_first_128(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, ROWS_PER_GROUP * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_160(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, (ROWS_PER_GROUP + 1) * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_192(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, (ROWS_PER_GROUP + 2) * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_224(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, (ROWS_PER_GROUP + 3) * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_256(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, 2 * ROWS_PER_GROUP * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_288(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, (2 * ROWS_PER_GROUP + 1) * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_320(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, (2 * ROWS_PER_GROUP + 2) * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_352(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, (2 * ROWS_PER_GROUP + 3) * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_384(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, 3 * ROWS_PER_GROUP * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_416(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, (3 * ROWS_PER_GROUP + 1) * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_448(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, (3 * ROWS_PER_GROUP + 2) * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def load_weights_first_480(weight, head_weights):
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.group(head_weights, 4, (3 * ROWS_PER_GROUP + 3) * WEIGHT_PITCH // 4 + quad),
            warps.few(weight, 4 * quad, 4)
        )


@cute.jit
def score_0(
    k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, s: Int32, skv: Int32,
    logits_stride: Int32, key_scales: cute.Pointer, head_weights: cute.Pointer, tmem: cute.Pointer,
    keys_full: cute.Pointer, keys_empty: cute.Pointer, queries_full: cute.Pointer, scores_full: cute.Pointer,
    scores_empty: cute.Pointer, row: Int32, first: Int32, turns: Int32, thread: Int32
):
    """Epilogue of quarter 0 of the rows."""
    dots_0 = cute.make_rmem_tensor(HEADS, Float32)
    weight_0 = cute.make_rmem_tensor(HEADS, Float32)
    scale_0 = cute.make_rmem_tensor(1, Float32)
    logit_0 = cute.make_rmem_tensor(1, Float32)
    begin_0 = cute.make_rmem_tensor(ROWS_PER_GROUP, Int32)
    size_0 = cute.make_rmem_tensor(ROWS_PER_GROUP, Int32)
    worker = thread
    load_windows(begin_0, size_0, k_start, k_end, row, s, skv, skip_below)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        load_scale(scale_0, key_scales + it % STAGES * TILE, worker)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(keys_empty + it % STAGES)
        cute.arch.mbarrier_wait(scores_full + it % 2, (it // 2) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_0, tmem + it % 2 * COLUMNS, 0, HEADS, worker)
        load_weights_first_0(weight_0, head_weights)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
        store_row_j_0(
            logits, logits_stride, logit_0, scale_0, begin_0, size_0, row, (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(dots_0, tmem + it % 2 * COLUMNS, HEADS, HEADS, worker)
        load_weights_first_32(weight_0, head_weights)
        leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
        store_row_j_1(
            logits, logits_stride, logit_0, scale_0, begin_0, size_0, row + 1, (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(dots_0, tmem + it % 2 * COLUMNS, 2 * HEADS, HEADS, worker)
        load_weights_first_64(weight_0, head_weights)
        leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
        store_row_j_2(
            logits, logits_stride, logit_0, scale_0, begin_0, size_0, row + 2, (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(dots_0, tmem + it % 2 * COLUMNS, 3 * HEADS, HEADS, worker)
        cute.arch.fence_view_async_tmem_load()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(scores_empty + it % 2)
        load_weights_first_96(weight_0, head_weights)
        leaf_sm100.weigh_one(logit_0, dots_0, 0, weight_0, True)
        store_row_j_3(
            logits, logits_stride, logit_0, scale_0, begin_0, size_0, row + 3, (first + it) * TILE, worker
        )


@cute.jit
def score_1(
    k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, s: Int32, skv: Int32,
    logits_stride: Int32, key_scales: cute.Pointer, head_weights: cute.Pointer, tmem: cute.Pointer,
    keys_full: cute.Pointer, keys_empty: cute.Pointer, queries_full: cute.Pointer, scores_full: cute.Pointer,
    scores_empty: cute.Pointer, row: Int32, first: Int32, turns: Int32, thread: Int32
):
    """Epilogue of quarter 1 of the rows."""
    dots_1 = cute.make_rmem_tensor(HEADS, Float32)
    weight_1 = cute.make_rmem_tensor(HEADS, Float32)
    scale_1 = cute.make_rmem_tensor(1, Float32)
    logit_1 = cute.make_rmem_tensor(1, Float32)
    begin_1 = cute.make_rmem_tensor(ROWS_PER_GROUP, Int32)
    size_1 = cute.make_rmem_tensor(ROWS_PER_GROUP, Int32)
    worker = thread % 128
    load_windows(begin_1, size_1, k_start, k_end, row + ROWS_PER_GROUP, s, skv, skip_below)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        load_scale(scale_1, key_scales + it % STAGES * TILE, worker)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(keys_empty + it % STAGES)
        cute.arch.mbarrier_wait(scores_full + it % 2, (it // 2) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_1, tmem + it % 2 * COLUMNS, ROWS_PER_GROUP * HEADS, HEADS, worker)
        load_weights_first_128(weight_1, head_weights)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
        store_row_j_0(
            logits, logits_stride, logit_1, scale_1, begin_1, size_1, row + ROWS_PER_GROUP,
            (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(dots_1, tmem + it % 2 * COLUMNS, (ROWS_PER_GROUP + 1) * HEADS, HEADS, worker)
        load_weights_first_160(weight_1, head_weights)
        leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
        store_row_j_1(
            logits, logits_stride, logit_1, scale_1, begin_1, size_1, row + ROWS_PER_GROUP + 1,
            (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(dots_1, tmem + it % 2 * COLUMNS, (ROWS_PER_GROUP + 2) * HEADS, HEADS, worker)
        load_weights_first_192(weight_1, head_weights)
        leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
        store_row_j_2(
            logits, logits_stride, logit_1, scale_1, begin_1, size_1, row + ROWS_PER_GROUP + 2,
            (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(dots_1, tmem + it % 2 * COLUMNS, (ROWS_PER_GROUP + 3) * HEADS, HEADS, worker)
        cute.arch.fence_view_async_tmem_load()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(scores_empty + it % 2)
        load_weights_first_224(weight_1, head_weights)
        leaf_sm100.weigh_one(logit_1, dots_1, 0, weight_1, True)
        store_row_j_3(
            logits, logits_stride, logit_1, scale_1, begin_1, size_1, row + ROWS_PER_GROUP + 3,
            (first + it) * TILE, worker
        )


@cute.jit
def score_2(
    k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, s: Int32, skv: Int32,
    logits_stride: Int32, key_scales: cute.Pointer, head_weights: cute.Pointer, tmem: cute.Pointer,
    keys_full: cute.Pointer, keys_empty: cute.Pointer, queries_full: cute.Pointer, scores_full: cute.Pointer,
    scores_empty: cute.Pointer, row: Int32, first: Int32, turns: Int32, thread: Int32
):
    """Epilogue of quarter 2 of the rows."""
    dots_2 = cute.make_rmem_tensor(HEADS, Float32)
    weight_2 = cute.make_rmem_tensor(HEADS, Float32)
    scale_2 = cute.make_rmem_tensor(1, Float32)
    logit_2 = cute.make_rmem_tensor(1, Float32)
    begin_2 = cute.make_rmem_tensor(ROWS_PER_GROUP, Int32)
    size_2 = cute.make_rmem_tensor(ROWS_PER_GROUP, Int32)
    worker = thread % 128
    load_windows(begin_2, size_2, k_start, k_end, row + 2 * ROWS_PER_GROUP, s, skv, skip_below)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        load_scale(scale_2, key_scales + it % STAGES * TILE, worker)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(keys_empty + it % STAGES)
        cute.arch.mbarrier_wait(scores_full + it % 2, (it // 2) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_2, tmem + it % 2 * COLUMNS, 2 * ROWS_PER_GROUP * HEADS, HEADS, worker)
        load_weights_first_256(weight_2, head_weights)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_2, dots_2, 0, weight_2, True)
        store_row_j_0(
            logits, logits_stride, logit_2, scale_2, begin_2, size_2, row + 2 * ROWS_PER_GROUP,
            (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(
            dots_2, tmem + it % 2 * COLUMNS, (2 * ROWS_PER_GROUP + 1) * HEADS, HEADS, worker
        )
        load_weights_first_288(weight_2, head_weights)
        leaf_sm100.weigh_one(logit_2, dots_2, 0, weight_2, True)
        store_row_j_1(
            logits, logits_stride, logit_2, scale_2, begin_2, size_2, row + 2 * ROWS_PER_GROUP + 1,
            (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(
            dots_2, tmem + it % 2 * COLUMNS, (2 * ROWS_PER_GROUP + 2) * HEADS, HEADS, worker
        )
        load_weights_first_320(weight_2, head_weights)
        leaf_sm100.weigh_one(logit_2, dots_2, 0, weight_2, True)
        store_row_j_2(
            logits, logits_stride, logit_2, scale_2, begin_2, size_2, row + 2 * ROWS_PER_GROUP + 2,
            (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(
            dots_2, tmem + it % 2 * COLUMNS, (2 * ROWS_PER_GROUP + 3) * HEADS, HEADS, worker
        )
        cute.arch.fence_view_async_tmem_load()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(scores_empty + it % 2)
        load_weights_first_352(weight_2, head_weights)
        leaf_sm100.weigh_one(logit_2, dots_2, 0, weight_2, True)
        store_row_j_3(
            logits, logits_stride, logit_2, scale_2, begin_2, size_2, row + 2 * ROWS_PER_GROUP + 3,
            (first + it) * TILE, worker
        )


@cute.jit
def score_3(
    k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, s: Int32, skv: Int32,
    logits_stride: Int32, key_scales: cute.Pointer, head_weights: cute.Pointer, tmem: cute.Pointer,
    keys_full: cute.Pointer, keys_empty: cute.Pointer, queries_full: cute.Pointer, scores_full: cute.Pointer,
    scores_empty: cute.Pointer, row: Int32, first: Int32, turns: Int32, thread: Int32
):
    """Epilogue of quarter 3 of the rows."""
    dots_3 = cute.make_rmem_tensor(HEADS, Float32)
    weight_3 = cute.make_rmem_tensor(HEADS, Float32)
    scale_3 = cute.make_rmem_tensor(1, Float32)
    logit_3 = cute.make_rmem_tensor(1, Float32)
    begin_3 = cute.make_rmem_tensor(ROWS_PER_GROUP, Int32)
    size_3 = cute.make_rmem_tensor(ROWS_PER_GROUP, Int32)
    worker = thread % 128
    load_windows(begin_3, size_3, k_start, k_end, row + 3 * ROWS_PER_GROUP, s, skv, skip_below)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        load_scale(scale_3, key_scales + it % STAGES * TILE, worker)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(keys_empty + it % STAGES)
        cute.arch.mbarrier_wait(scores_full + it % 2, (it // 2) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # Accumulators of a product in tensor memory, from column `first` on.
        leaf_sm100.read_scores(dots_3, tmem + it % 2 * COLUMNS, 3 * ROWS_PER_GROUP * HEADS, HEADS, worker)
        load_weights_first_384(weight_3, head_weights)
        # logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product.
        leaf_sm100.weigh_one(logit_3, dots_3, 0, weight_3, True)
        store_row_j_0(
            logits, logits_stride, logit_3, scale_3, begin_3, size_3, row + 3 * ROWS_PER_GROUP,
            (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(
            dots_3, tmem + it % 2 * COLUMNS, (3 * ROWS_PER_GROUP + 1) * HEADS, HEADS, worker
        )
        load_weights_first_416(weight_3, head_weights)
        leaf_sm100.weigh_one(logit_3, dots_3, 0, weight_3, True)
        store_row_j_1(
            logits, logits_stride, logit_3, scale_3, begin_3, size_3, row + 3 * ROWS_PER_GROUP + 1,
            (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(
            dots_3, tmem + it % 2 * COLUMNS, (3 * ROWS_PER_GROUP + 2) * HEADS, HEADS, worker
        )
        load_weights_first_448(weight_3, head_weights)
        leaf_sm100.weigh_one(logit_3, dots_3, 0, weight_3, True)
        store_row_j_2(
            logits, logits_stride, logit_3, scale_3, begin_3, size_3, row + 3 * ROWS_PER_GROUP + 2,
            (first + it) * TILE, worker
        )
        leaf_sm100.read_scores(
            dots_3, tmem + it % 2 * COLUMNS, (3 * ROWS_PER_GROUP + 3) * HEADS, HEADS, worker
        )
        cute.arch.fence_view_async_tmem_load()
        nvvm.tcgen05_fence("before_thread_sync")
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(scores_empty + it % 2)
        load_weights_first_480(weight_3, head_weights)
        leaf_sm100.weigh_one(logit_3, dots_3, 0, weight_3, True)
        store_row_j_3(
            logits, logits_stride, logit_3, scale_3, begin_3, size_3, row + 3 * ROWS_PER_GROUP + 3,
            (first + it) * TILE, worker
        )


@cute.jit
def load(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, key_map: cute.CopyAtom,
    key_map_coords: cute.Tensor, scale_map: cute.CopyAtom, scale_map_coords: cute.Tensor,
    weights: cute.Pointer, s: Int32, weights_stride: Int32, keys: cute.Pointer, key_scales: cute.Pointer,
    queries: cute.Pointer, head_weights: cute.Pointer, keys_full: cute.Pointer, keys_empty: cute.Pointer,
    queries_full: cute.Pointer, row: Int32, first: Int32, turns: Int32
):
    """Key tiles, queries."""
    if turns > 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(queries_full, QUERIES * (HEADS * (INDEX_DIM + 4)))
        boxes.load_box(
            query_map, query_map_coords, (row, 0, 0), (QUERIES, HEADS, INDEX_DIM), queries, queries_full
        )
        for i in cutlass.range(QUERIES, unroll=1):
            # No score of a row past the last one is stored.
            query = cutlass.min(row + i, s - 1)
            with cute.arch.elect_one():
                bulk.load_span(
                    weights, Float32, Int64(query) * weights_stride, 1, 0, HEADS,
                    head_weights + i * WEIGHT_PITCH, queries_full
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


@cute.jit
def mma(
    keys: cute.Pointer, queries: cute.Pointer, tmem: cute.Pointer, keys_full: cute.Pointer,
    keys_empty: cute.Pointer, queries_full: cute.Pointer, scores_full: cute.Pointer,
    scores_empty: cute.Pointer, turns: Int32
):
    """Issues every tcgen05.mma and commit."""
    score_a = SCORE.operand_a(keys, TILE, INDEX_DIM, STAGES, 128)
    score_b = SCORE.operand_b(queries, QUERIES * HEADS, INDEX_DIM, 1, 128)
    if turns > 0:
        cute.arch.mbarrier_wait(queries_full, 0)
        nvvm.tcgen05_fence("after_thread_sync")
    for it in cutlass.range(turns, unroll=1):
        cute.arch.mbarrier_wait(keys_full + it % STAGES, (it // STAGES) & 1)
        nvvm.tcgen05_fence("after_thread_sync")
        cute.arch.mbarrier_wait(scores_empty + it % 2, ((it // 2) & 1) ^ 1)
        nvvm.tcgen05_fence("after_thread_sync")
        # S[keys, heads] = K Q^T
        SCORE.multiply(
            score_a[None, None, None, it % STAGES], score_b[None, None, None, 0], tmem + it % 2 * COLUMNS,
            False
        )
        with cute.arch.elect_one():
            tcgen05.commit(scores_full + it % 2)
        with cute.arch.elect_one():
            tcgen05.commit(keys_empty + it % STAGES)


@cute.kernel
def lightning_indexer__cutedsl_sm100a__prefill_h8_q16_t128_st6_c1_e0(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, key_map: cute.CopyAtom,
    key_map_coords: cute.Tensor, scale_map: cute.CopyAtom, scale_map_coords: cute.Tensor, q: cute.Pointer,
    k: cute.Pointer, k_scales: cute.Pointer, weights: cute.Pointer, k_start: cute.Pointer,
    k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, splits: Int32, s: Int32, q_stride_s: Int32,
    q_stride_h: Int32, skv: Int32, k_stride: Int32, weights_stride: Int32, stride: Int32,
    logits_stride: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    keys = shared.keys.data_ptr()
    key_scales = shared.key_scales.data_ptr()
    queries = shared.queries.data_ptr()
    head_weights = shared.head_weights.data_ptr()
    keys_full = shared.keys_full.data_ptr()
    keys_empty = shared.keys_empty.data_ptr()
    queries_full = shared.queries_full.data_ptr()
    scores_full = shared.scores_full.data_ptr()
    scores_empty = shared.scores_empty.data_ptr()
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
                cute.arch.mbarrier_init(keys_empty + i, 17)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(queries_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(scores_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(scores_empty + i, 16)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(query_map)
        cpasync.prefetch_descriptor(key_map)
        cpasync.prefetch_descriptor(scale_map)
    if warp == 1:
        cute.arch.alloc_tmem(256, shared.tmem)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, shared.tmem)
    if warp < 4:
        score_0(
            k_start, k_end, logits, skip_below, s, skv, logits_stride, key_scales, head_weights, tmem,
            keys_full, keys_empty, queries_full, scores_full, scores_empty, row, first, turns, thread
        )
    elif warp < 8:
        score_1(
            k_start, k_end, logits, skip_below, s, skv, logits_stride, key_scales, head_weights, tmem,
            keys_full, keys_empty, queries_full, scores_full, scores_empty, row, first, turns, thread
        )
    elif warp < 12:
        score_2(
            k_start, k_end, logits, skip_below, s, skv, logits_stride, key_scales, head_weights, tmem,
            keys_full, keys_empty, queries_full, scores_full, scores_empty, row, first, turns, thread
        )
    elif warp < 16:
        score_3(
            k_start, k_end, logits, skip_below, s, skv, logits_stride, key_scales, head_weights, tmem,
            keys_full, keys_empty, queries_full, scores_full, scores_empty, row, first, turns, thread
        )
    elif warp < 17:
        load(
            query_map, query_map_coords, key_map, key_map_coords, scale_map, scale_map_coords, weights, s,
            weights_stride, keys, key_scales, queries, head_weights, keys_full, keys_empty, queries_full, row,
            first, turns
        )
    else:
        mma(keys, queries, tmem, keys_full, keys_empty, queries_full, scores_full, scores_empty, turns)
    # Tensor memory goes back only when no role can touch it any more.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if thread // 32 == 1:
        cute.arch.dealloc_tmem(tmem, 256)


@cute.jit
def program(
    q: cute.Pointer, k: cute.Pointer, k_scales: cute.Pointer, weights: cute.Pointer, k_start: cute.Pointer,
    k_end: cute.Pointer, logits: cute.Pointer, skip_below: Int32, splits: Int32, s: Int32, q_stride_s: Int32,
    q_stride_h: Int32, skv: Int32, k_stride: Int32, weights_stride: Int32, stride: Int32,
    logits_stride: Int32
):
    query_map, query_map_coords = boxes.strided_map(
        q, cutlass.Float8E4M3FN, (QUERIES, HEADS, INDEX_DIM), True
    )
    key_map, key_map_coords = bulk.box_map(k, cutlass.Float8E4M3FN, (TILE, INDEX_DIM), True)
    scale_map, scale_map_coords = bulk.box_map(k_scales, Float32, (TILE,), False)
    kernel = lightning_indexer__cutedsl_sm100a__prefill_h8_q16_t128_st6_c1_e0(
        query_map, query_map_coords, key_map, key_map_coords, scale_map, scale_map_coords, q, k, k_scales,
        weights, k_start, k_end, logits, skip_below, splits, s, q_stride_s, q_stride_h, skv, k_stride,
        weights_stride, stride, logits_stride
    )
    kernel.launch(grid=(1, 1, 1), block=(576, 1, 1), cluster=(1, 1, 1))
