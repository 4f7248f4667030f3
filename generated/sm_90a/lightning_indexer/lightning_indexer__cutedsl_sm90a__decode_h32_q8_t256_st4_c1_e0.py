"""lightning_indexer__cutedsl_sm90a__decode_h32_q8_t256_st4_c1_e0

Generated from dsl_kernels/programs/lightning_indexer.py and the leaves in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: mode=decode, heads=32, queries=8, tile=256, stages=4, resident=1, evict=0.

roles
  score      threads 0..511, 104 registers  products and epilogue, 64 keys a warpgroup
  load       threads 512..639, 64 registers  block table, key pages, queries
buffers
  keys       4 stages of 256x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 4 stages of 256 float32, shared
  queries    256x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 256 float32, shared
  acc        256x128 float32, registers of score
  weight     4x32 float32, registers of score
  scale      256 float32, registers of score
  logit      256x4 float32, registers of score
  length     4 int32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 4-slot ring]==> score (wgmma)
    full  x1, 33792 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: 1-slot ring]==> score (wgmma)
    full  x1, 33792 bytes: load arrive + expect bytes
      score: wait full
    empty x16: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
totals: 640 threads, 169040 of 232448 bytes of shared memory, grid (132)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup

from dsl_kernels.device.cutedsl import bulk, grid, wgmma
from dsl_kernels.device.cutedsl import lightning_indexer_sm90 as leaf_sm90
from dsl_kernels.device.cutedsl import lightning_indexer as leaf
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

SCORE = wgmma.Product("float8_e4m3", 64, 128, 128, "k", "k")

LAUNCH = Launch(
    operands=(
        Operand("q", "tensor", "float8_e4m3fn", ('b', 'next_n', '32', '128')),
        Operand("k_cache", "tensor", "uint8", ('pages', '8448')),
        Operand("weights", "tensor", "float32", ('b', 'next_n', '32')),
        Operand("seq_lens", "tensor", "int32", ('b', 'next_n')),
        Operand("block_table", "tensor", "int32", ('b', 'max_pages')),
        Operand("logits", "tensor", "float32", ('b', 'next_n', 'stride'), written=True),
        Operand("skip_below", "scalar", "int32"),
    ),
    grid=('132', '1', '1'),
    block=640,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "query_map", "q", "UINT8", global_dims=('128', 'b * next_n * 32'), global_strides=('128',),
            box=(128, 32), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "key_map", "k_cache", "UINT8", global_dims=('128', 'pages * 66'), global_strides=('128',),
            box=(128, 64), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
    ),
)


@cute.struct
class Shared:
    keys: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, 131072], 1024]
    key_scales: cute.struct.Align[cute.struct.MemRange[Float32, 1024], 128]
    queries: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, 32768], 1024]
    head_weights: cute.struct.Align[cute.struct.MemRange[Float32, 256], 128]
    keys_full: cute.struct.MemRange[Int64, 4]
    keys_empty: cute.struct.MemRange[Int64, 4]
    queries_full: cute.struct.MemRange[Int64, 1]
    queries_empty: cute.struct.MemRange[Int64, 1]


@cute.kernel
def lightning_indexer__cutedsl_sm90a__decode_h32_q8_t256_st4_c1_e0(
    query_map: cute.CopyAtom, query_map_coords: cute.Tensor, key_map: cute.CopyAtom,
    key_map_coords: cute.Tensor, q: cute.Pointer, k_cache: cute.Pointer, weights: cute.Pointer,
    seq_lens: cute.Pointer, block_table: cute.Pointer, logits: cute.Pointer, skip_below: cutlass.Int32,
    b: cutlass.Int32, next_n: cutlass.Int32, pages: cutlass.Int32, max_pages: cutlass.Int32,
    stride: cutlass.Int32
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
    seq = Int32(0)
    tile = Int32(0)
    step = Int32(1)
    need = Int32(0)
    turns = Int32(0)
    turn = Int32(-1)
    fresh = Boolean(False)
    seq, tile, step = leaf.place_when_even(b, cta, 132)
    entry = Int32(0)
    ahead = Int32(0)
    if warp == 16:
        # Garbage past a length: nothing follows an entry before the length is known.
        row = cutlass.min(seq, b - 1)
        entry = leaf.table_entries(block_table, max_pages, row, tile, step, 4, max_pages - 1, lane)
        ahead = leaf.table_entries(block_table, max_pages, row, tile + 8 * step, step, 4, max_pages - 1, lane)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(4):
                cute.arch.mbarrier_init(keys_full + i, 1)
            for i in cutlass.range_constexpr(4):
                cute.arch.mbarrier_init(keys_empty + i, 16)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(queries_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(queries_empty + i, 16)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(query_map)
        cpasync.prefetch_descriptor(key_map)
    cute.arch.sync_threads()
    need = leaf.keys_to_score(seq_lens, b, next_n, skip_below, lane)
    seq, tile, need, turns, step = leaf.find_share(seq, tile, need, step, seq_lens, b, next_n, skip_below, 256, cta, 132, lane)
    if warp < 16:
        # score: products and epilogue, 64 keys a warpgroup
        cute.arch.setmaxregister_increase(104)
        score_a = SCORE.operand_a(keys, 256, 128, 4, 128)
        score_b = SCORE.operand_b(queries, 256, 128, 1, 128)
        acc = SCORE.accumulators()
        weight = cute.make_rmem_tensor(32, Float32)
        weight.fill(0)
        scale = cute.make_rmem_tensor(2, Float32)
        scale.fill(0)
        logit = cute.make_rmem_tensor(2, Float32)
        logit.fill(0)
        length = cute.make_rmem_tensor(1, Int32)
        length.fill(0)
        worker = thread
        for it in cutlass.range(turns, unroll=1):
            fresh, seq, tile, need = leaf.next_tile(it, seq, tile, need, seq_lens, b, next_n, skip_below, 256)
            if fresh:
                if it > 0:
                    warpgroup.wait_group(0)
                    cute.arch.sync_warp()
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive(queries_empty)
                turn = turn + 1
                cute.arch.mbarrier_wait(queries_full, turn & 1)
            cute.arch.mbarrier_wait(keys_full + it % 4, (it // 4) & 1)
            leaf_sm90.read_scales(scale, key_scales + it % 4 * 256, 0, 4, worker)
            for product in cutlass.range(leaf.ceildiv(next_n, 4), unroll=1):
                # S[keys, heads] = K Q^T
                warpgroup.fence()
                SCORE.multiply(score_a[None, None, None, it % 4, warp // 4, 0], score_b[None, None, None, 0, product, 0], acc, False)
                warpgroup.commit_group()
                leaf_sm90.read_query_lengths(length, seq_lens, seq, product * 4, 4, next_n, skip_below, worker)
                warpgroup.wait_group(0)
                leaf_sm90.read_weights(weight, head_weights, product * 128, 4, worker)
                leaf_sm90.weigh(logit, acc, weight, 4, worker)
                leaf_sm90.store_logits(logits, logit, scale, length, seq, product * 4, 4, next_n, stride, tile * 256, worker)
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(keys_empty + it % 4)
            tile = tile + step
    else:
        # load: block table, key pages, queries
        cute.arch.setmaxregister_decrease(64)
        if warp == 16:
            held = Int32(0)
            page = Int32(0)
            for it in cutlass.range(turns, unroll=1):
                fresh, seq, tile, need = leaf.next_tile(it, seq, tile, need, seq_lens, b, next_n, skip_below, 256)
                last = leaf.ceildiv(need, 64) - 1
                if fresh:
                    turn = turn + 1
                    held = Int32(0)
                    if step == 1:
                        entry = leaf.table_entries(block_table, max_pages, seq, tile, 1, 4, last, lane)
                        ahead = leaf.table_entries(block_table, max_pages, seq, tile + 8, 1, 4, last, lane)
                    # The last product of an odd count scores its last query twice.
                    count = leaf.ceildiv(next_n, 4) * 4
                    cute.arch.mbarrier_wait(queries_empty, (turn & 1) ^ 1)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(queries_full, count * 4224)
                    for i in cutlass.range(count, unroll=1):
                        query = seq * next_n + cutlass.min(i, next_n - 1)
                        bulk.load_box(query_map, query_map_coords, (query * 32, 0), (32, 128), queries + i * 32 * 128, queries_full)
                        with cute.arch.elect_one():
                            bulk.load_span(weights, Float32, query, 32, 0, 32, head_weights + i * 32, queries_full)
                if held == 8:
                    held = Int32(0)
                    entry = ahead
                    ahead = leaf.table_entries(block_table, max_pages, seq, tile + 8 * step, step, 4, last, lane)
                cute.arch.mbarrier_wait(keys_empty + it % 4, ((it // 4) & 1) ^ 1)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(keys_full + it % 4, 33792)
                for p in cutlass.range_constexpr(4):
                    page = leaf.entry_of(entry, held * 4 + cutlass.min(p, last - tile * 4))
                    bulk.load_box(key_map, key_map_coords, (page * 66, 0), (64, 128), keys + (it % 4 * 32768 + p * 64 * 128), keys_full + it % 4)
                    with cute.arch.elect_one():
                        bulk.load_span(k_cache, Float32, page, 2112, 2048, 64, key_scales + (it % 4 * 256 + p * 64), keys_full + it % 4)
                held = held + 1
                tile = tile + step


@cute.jit
def program(
    q: cute.Pointer, k_cache: cute.Pointer, weights: cute.Pointer, seq_lens: cute.Pointer,
    block_table: cute.Pointer, logits: cute.Pointer, skip_below: cutlass.Int32, b: cutlass.Int32,
    next_n: cutlass.Int32, pages: cutlass.Int32, max_pages: cutlass.Int32, stride: cutlass.Int32
):
    query_map, query_map_coords = bulk.box_map(q, cutlass.Float8E4M3FN, (32, 128), True)
    key_map, key_map_coords = bulk.box_map(k_cache, cutlass.Float8E4M3FN, (64, 128), True)
    lightning_indexer__cutedsl_sm90a__decode_h32_q8_t256_st4_c1_e0(
        query_map, query_map_coords, key_map, key_map_coords, q, k_cache, weights, seq_lens, block_table,
        logits, skip_below, b, next_n, pages, max_pages, stride
    ).launch(
        grid=(1, 1, 1), block=(640, 1, 1), cluster=(1, 1, 1)
    )
