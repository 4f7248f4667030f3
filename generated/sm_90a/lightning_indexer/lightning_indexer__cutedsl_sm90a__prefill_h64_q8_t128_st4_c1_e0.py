"""lightning_indexer__cutedsl_sm90a__prefill_h64_q8_t128_st4_c1_e0

Generated from templates/cutedsl/lightning_indexer.sm_90a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/lightning_indexer.py, not this file. Knobs: mode=prefill, heads=64, queries=8, tile=128, stages=4, resident=1, evict=0.

roles
  score_0    threads 0..127, 112 registers  rows 0..1
  score_1    threads 128..255, 112 registers  rows 2..3
  score_2    threads 256..383, 112 registers  rows 4..5
  score_3    threads 384..511, 112 registers  rows 6..7
  load       threads 512..639, 24 registers  key tiles, queries (one warp works)
buffers
  keys       4 stages of 128x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 4 stages of 128 float32, shared
  queries    512x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 512 float32, shared
  acc_0      64x128 float32, registers of score_0
  acc_1      64x128 float32, registers of score_1
  acc_2      64x128 float32, registers of score_2
  acc_3      64x128 float32, registers of score_3
pipelines
  keys: load (bulk) ==[keys key_scales: 4-slot ring]==> score_0 (wgmma), score_1 (wgmma), score_2 (wgmma), score_3 (wgmma)
    full  x1, 16896 bytes: load arrive + expect bytes
      score_0: wait full
      score_1: wait full
      score_2: wait full
      score_3: wait full
    empty x16: load wait empty
      score_0: wgmma wait, one lane a warp, arrive empty
      score_1: wgmma wait, one lane a warp, arrive empty
      score_2: wgmma wait, one lane a warp, arrive empty
      score_3: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: once]==> score_0 (wgmma), score_1 (wgmma), score_2 (wgmma), score_3 (wgmma)
    full  x1, 67584 bytes: load arrive + expect bytes
      score_0: wait full
      score_1: wait full
      score_2: wait full
      score_3: wait full
totals: 640 threads, 135240 of 232448 bytes of shared memory, grid (ceildiv(s, 8), splits)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32
from cutlass.cute.nvgpu import cpasync, warpgroup

from dsl_kernels.device.cutedsl import lightning_indexer as leaf
from dsl_kernels.device.cutedsl import lightning_indexer_sm90 as wgmma
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

LAUNCH = Launch(
    operands=(
        Operand("q", "tensor", "float8_e4m3fn", ('s', '64', '128')),
        Operand("k", "tensor", "float8_e4m3fn", ('skv', '128')),
        Operand("k_scales", "tensor", "float32", ('skv',)),
        Operand("weights", "tensor", "float32", ('s', '64')),
        Operand("k_start", "tensor", "int32", ('s',)),
        Operand("k_end", "tensor", "int32", ('s',)),
        Operand("logits", "tensor", "float32", ('s', 'stride'), written=True),
        Operand("skip_below", "scalar", "int32"),
        Operand("splits", "scalar", "int32"),
    ),
    grid=('ceildiv(s, 8)', 'splits', '1'),
    block=640,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "query_map", "q", "UINT8", global_dims=('128', 's * 64'), global_strides=('128',),
            box=(128, 256), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "weight_map", "weights", "FLOAT32", global_dims=('s * 64',), global_strides=(),
            box=(256,), element_strides=(1,), swizzle="NONE", l2_promotion="NONE",
        ),
        TensorMap(
            "key_map", "k", "UINT8", global_dims=('128', 'skv'), global_strides=('128',),
            box=(128, 128), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "scale_map", "k_scales", "FLOAT32", global_dims=('skv',), global_strides=(),
            box=(128,), element_strides=(1,), swizzle="NONE", l2_promotion="NONE",
        ),
    ),
)


@cute.struct
class Shared:
    keys: cute.struct.Align[cute.struct.MemRange[leaf.FP8, 65536], 1024]
    queries: cute.struct.Align[cute.struct.MemRange[leaf.FP8, 65536], 1024]
    key_scales: cute.struct.Align[cute.struct.MemRange[Float32, 512], 128]
    head_weights: cute.struct.Align[cute.struct.MemRange[Float32, 512], 128]
    keys_full: cute.struct.MemRange[Int64, 4]
    keys_empty: cute.struct.MemRange[Int64, 4]
    queries_full: cute.struct.MemRange[Int64, 1]


@cute.kernel
def lightning_indexer__cutedsl_sm90a__prefill_h64_q8_t128_st4_c1_e0(query_map: cute.CopyAtom, query_map_coords: cute.Tensor, weight_map: cute.CopyAtom, weight_map_coords: cute.Tensor, key_map: cute.CopyAtom, key_map_coords: cute.Tensor, scale_map: cute.CopyAtom, scale_map_coords: cute.Tensor, q: cute.Pointer, k: cute.Pointer, k_scales: cute.Pointer, weights: cute.Pointer, k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: cutlass.Int32, splits: cutlass.Int32, s: cutlass.Int32, skv: cutlass.Int32, stride: cutlass.Int32):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    keys_full = shared.keys_full.data_ptr()
    keys_empty = shared.keys_empty.data_ptr()
    queries_full = shared.queries_full.data_ptr()
    key_scales = shared.key_scales.data_ptr()
    head_weights = shared.head_weights.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    if warp == 16:
        cpasync.prefetch_descriptor(query_map)
        cpasync.prefetch_descriptor(weight_map)
        cpasync.prefetch_descriptor(key_map)
        cpasync.prefetch_descriptor(scale_map)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(4):
                cute.arch.mbarrier_init(keys_full + i, 1)
            for i in cutlass.range_constexpr(4):
                cute.arch.mbarrier_init(keys_empty + i, 16)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(queries_full + i, 1)
            cute.arch.mbarrier_init_fence()
    block, split, _ = cute.arch.block_idx()
    begins = leaf.vector(k_start)
    ends = leaf.vector(k_end)
    # Later rows see more keys in a causal prefill: the longest blocks start first.
    row = (leaf.ceildiv(s, 8) - 1 - block) * 8
    first, turns = leaf.find_tiles(begins, ends, row, 8, s, skv, skip_below, 128, split, splits)
    cute.arch.sync_threads()
    keys = wgmma.key_operand(shared.keys.data_ptr(), 128, 8)
    queries = wgmma.query_operand(shared.queries.data_ptr(), 128, 4)
    acc = wgmma.accumulators(128)
    weight = wgmma.head_weights(2, 64)
    # The key and query whose logits end in this lane, within the CTA's tile and the product.
    key = warp % 4 * 16 + wgmma.lane_key(lane, 2)
    mine = wgmma.lane_query(lane, 2)
    if warp >= 16:
        cute.arch.setmaxregister_decrease(24)
        if (warp == 16) & (turns > 0):
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(queries_full, 67584)
            leaf.load_box(query_map, query_map_coords, (row * 64 + 0, 0), (256, 128), shared.queries.data_ptr() + 0, queries_full)
            leaf.load_box(weight_map, weight_map_coords, (row * 64 + 0,), (256,), head_weights + 0, queries_full)
            leaf.load_box(query_map, query_map_coords, (row * 64 + 256, 0), (256, 128), shared.queries.data_ptr() + 32768, queries_full)
            leaf.load_box(weight_map, weight_map_coords, (row * 64 + 256,), (256,), head_weights + 256, queries_full)
            for it in cutlass.range(turns, unroll=1):
                key = (first + it) * 128
                cute.arch.mbarrier_wait(keys_empty + it % 4, ((it // 4) & 1) ^ 1)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(keys_full + it % 4, 16896)
                leaf.load_box(key_map, key_map_coords, (key, 0), (128, 128), shared.keys.data_ptr() + it % 4 * 16384, keys_full + it % 4)
                leaf.load_box(scale_map, scale_map_coords, (key,), (128,), key_scales + it % 4 * 128, keys_full + it % 4)
    else:
        # Every group spells the same steps, so one text serves them all.
        cute.arch.setmaxregister_increase(112)
        group = warp // 4
        own = row + group * 2 + mine
        begin = leaf.window_begin(begins, own, s)
        size = cutlass.max(leaf.window_end(begins, ends, own, s, skv, skip_below) - begin, 0)
        place = first * 128 + key - begin
        to = logits + (Int64(own) * stride + first * 128 + key)
        if turns > 0:
            cute.arch.mbarrier_wait(queries_full, 0)
            wgmma.read_weights(head_weights + group * 128, 64, lane, weight)
        for it in cutlass.range(turns, unroll=1):
            cute.arch.mbarrier_wait(keys_full + it % 4, (it // 4) & 1)
            for at in cutlass.range_constexpr(0, 128, 64):
                block = it % 4 * 2 + at // 64
                wgmma.multiply(keys[None, None, None, block], queries[None, None, None, group], acc, 128)
                scale = [(key_scales + it % 4 * 128 + at + key + 8 * i).load() for i in range(1)]
                if cutlass.const_expr(at + 64 < 128):
                    warpgroup.wait_group(0)
                else:
                    warpgroup.wait_group(0)
                    cute.arch.sync_warp()
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive(keys_empty + it % 4)
                logit = wgmma.quad_sums(acc, weight, lane)
                for i in cutlass.range_constexpr(1):
                    if Uint32(place + at + 8 * i) < Uint32(size):
                        (to + it * 128 + (at + 8 * i)).store(logit[i] * scale[i])
            place = place + 128


@cute.jit
def program(q: cute.Pointer, k: cute.Pointer, k_scales: cute.Pointer, weights: cute.Pointer, k_start: cute.Pointer, k_end: cute.Pointer, logits: cute.Pointer, skip_below: cutlass.Int32, splits: cutlass.Int32, s: cutlass.Int32, skv: cutlass.Int32, stride: cutlass.Int32):
    query_map, query_map_coords = leaf.box_map(q, leaf.FP8, (leaf.MANY, 128), (256, 128))
    weight_map, weight_map_coords = leaf.box_map(weights, Float32, (leaf.MANY,), (256,))
    key_map, key_map_coords = leaf.box_map(k, leaf.FP8, (leaf.MANY, 128), (128, 128))
    scale_map, scale_map_coords = leaf.box_map(k_scales, Float32, (leaf.MANY,), (128,))
    lightning_indexer__cutedsl_sm90a__prefill_h64_q8_t128_st4_c1_e0(query_map, query_map_coords, weight_map, weight_map_coords, key_map, key_map_coords, scale_map, scale_map_coords, q, k, k_scales, weights, k_start, k_end, logits, skip_below, splits, s, skv, stride).launch(grid=(1, 1, 1), block=(640, 1, 1), cluster=(1, 1, 1))
