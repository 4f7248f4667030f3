"""lightning_indexer__cutedsl_sm90a__decode_h64_q1_t64_st3_c4_e1

Generated from templates/cutedsl/lightning_indexer.sm_90a.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/lightning_indexer.py, not this file. Knobs: mode=decode, heads=64, queries=1, tile=64, stages=3, resident=4, evict=1.

roles
  score      threads 0..127  products and epilogue, 64 keys a warpgroup
  load       threads 128..159  block table, key pages, queries (one warp works)
buffers
  keys       3 stages of 64x128 float8_e4m3, shared, 128-byte swizzle
  key_scales 3 stages of 64 float32, shared
  queries    2 stages of 64x128 float8_e4m3, shared, 128-byte swizzle
  head_weights 2 stages of 64 float32, shared
  acc        64x64 float32, registers of score
pipelines
  keys: load (bulk) ==[keys key_scales: 3-slot ring]==> score (wgmma)
    full  x1, 8448 bytes: load arrive + expect bytes
      score: wait full
    empty x4: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
  queries: load (bulk) ==[queries head_weights: 2-slot ring]==> score (wgmma)
    full  x1, 8448 bytes: load arrive + expect bytes
      score: wait full
    empty x4: load wait empty
      score: wgmma wait, one lane a warp, arrive empty
totals: 160 threads, 42320 of 232448 bytes of shared memory, grid (528)
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
        Operand("q", "tensor", "float8_e4m3fn", ('b', 'next_n', '64', '128')),
        Operand("k_cache", "tensor", "uint8", ('pages', '8448')),
        Operand("weights", "tensor", "float32", ('b', 'next_n', '64')),
        Operand("seq_lens", "tensor", "int32", ('b', 'next_n')),
        Operand("block_table", "tensor", "int32", ('b', 'max_pages')),
        Operand("logits", "tensor", "float32", ('b', 'next_n', 'stride'), written=True),
        Operand("skip_below", "scalar", "int32"),
    ),
    grid=('528', '1', '1'),
    block=160,
    cluster=(1, 1, 1),
    tensor_maps=(
        TensorMap(
            "query_map", "q", "UINT8", global_dims=('128', 'b * next_n * 64'), global_strides=('128',),
            box=(128, 64), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "key_map", "k_cache", "UINT8", global_dims=('128', 'pages * 66'), global_strides=('128',),
            box=(128, 64), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
    ),
)


@cute.struct
class Shared:
    keys: cute.struct.Align[cute.struct.MemRange[leaf.FP8, 24576], 1024]
    queries: cute.struct.Align[cute.struct.MemRange[leaf.FP8, 16384], 1024]
    key_scales: cute.struct.Align[cute.struct.MemRange[Float32, 192], 128]
    head_weights: cute.struct.Align[cute.struct.MemRange[Float32, 128], 128]
    keys_full: cute.struct.MemRange[Int64, 3]
    keys_empty: cute.struct.MemRange[Int64, 3]
    queries_full: cute.struct.MemRange[Int64, 2]
    queries_empty: cute.struct.MemRange[Int64, 2]


@cute.kernel
def lightning_indexer__cutedsl_sm90a__decode_h64_q1_t64_st3_c4_e1(query_map: cute.CopyAtom, query_map_coords: cute.Tensor, key_map: cute.CopyAtom, key_map_coords: cute.Tensor, q: cute.Pointer, k_cache: cute.Pointer, weights: cute.Pointer, seq_lens: cute.Pointer, block_table: cute.Pointer, logits: cute.Pointer, skip_below: cutlass.Int32, b: cutlass.Int32, next_n: cutlass.Int32, pages: cutlass.Int32, max_pages: cutlass.Int32, stride: cutlass.Int32):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    keys_full = shared.keys_full.data_ptr()
    keys_empty = shared.keys_empty.data_ptr()
    queries_full = shared.queries_full.data_ptr()
    queries_empty = shared.queries_empty.data_ptr()
    key_scales = shared.key_scales.data_ptr()
    head_weights = shared.head_weights.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    cta, _, _ = cute.arch.block_idx()
    lens = leaf.vector(seq_lens)
    table = leaf.vector(block_table)
    length = lens[cutlass.min(lane, b - 1)]
    even = leaf.place_when_even(b, cta, 528)
    entry, ahead = Int32(0), Int32(0)
    if warp == 4:
        entry, ahead = leaf.guess_entries(table, b, max_pages, 1, even, lane)
    if warp == 4:
        cpasync.prefetch_descriptor(query_map)
        cpasync.prefetch_descriptor(key_map)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(3):
                cute.arch.mbarrier_init(keys_full + i, 1)
            for i in cutlass.range_constexpr(3):
                cute.arch.mbarrier_init(keys_empty + i, 4)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(queries_full + i, 1)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(queries_empty + i, 4)
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    # ptxas moves a comparison of the length, and the wait for it, in front of the other loads; it moves no shuffle.
    length = cute.arch.shuffle_sync(length, lane)
    need = length if (lane < b) & (length > skip_below) else Int32(0)
    seq, tile, need, turns, step = leaf.find_share(lens, b, 1, skip_below, 64, cta, 528, need, even)
    turn = Int32(-1)
    keys = wgmma.key_operand(shared.keys.data_ptr(), 64, 3)
    queries = wgmma.query_operand(shared.queries.data_ptr(), 64, 2)
    acc = wgmma.accumulators(64)
    weight = wgmma.head_weights(1, 64)
    # The key and query whose logits end in this lane, within the CTA's tile and the product.
    key = warp * 16 + wgmma.lane_key(lane, 1)
    mine = wgmma.lane_query(lane, 1)
    if warp < 4:
        for it in cutlass.range(turns, unroll=1):
            fresh, seq, tile, need = leaf.next_tile(it, seq, tile, need, lens, b, 1, skip_below, 64)
            if fresh:
                if it > 0:
                    warpgroup.wait_group(0)
                    cute.arch.sync_warp()
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive(queries_empty + turn % 2)
                turn = turn + 1
                cute.arch.mbarrier_wait(queries_full + turn % 2, (turn // 2) & 1)
                wgmma.read_weights(head_weights + turn % 2 * 64, 64, lane, weight)
            cute.arch.mbarrier_wait(keys_full + it % 3, (it // 3) & 1)
            block = it % 3 * 1 + warp // 4
            at = tile * 64 + key
            wgmma.multiply(keys[None, None, None, block], queries[None, None, None, turn % 2], acc, 64)
            scale = (key_scales + it % 3 * 64 + key).load()
            warpgroup.wait_group(0)
            cute.arch.sync_warp()
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive(keys_empty + it % 3)
            logit = wgmma.quad_sums(acc, weight, lane)[0]
            if (mine == 0) & (at < need):
                (logits + (Int64(seq) * stride + at)).store(logit * scale)
            tile = tile + step
    else:
        if warp == 4:
            held = Int32(0)
            for it in cutlass.range(turns, unroll=1):
                fresh, seq, tile, need = leaf.next_tile(it, seq, tile, need, lens, b, 1, skip_below, 64)
                last = leaf.ceildiv(need, 64) - 1
                if fresh:
                    turn = turn + 1
                    # A lane holds an entry of the next 32 tiles, and one of those after them.
                    held = Int32(0)
                    if step == 1:
                        entry = leaf.table_entry(table, seq * max_pages, tile, 1, 1, last, lane)
                        ahead = leaf.table_entry(table, seq * max_pages, tile + 32, 1, 1, last, lane)
                    cute.arch.mbarrier_wait(queries_empty + turn % 2, ((turn // 2) & 1) ^ 1)
                    count = 1
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(queries_full + turn % 2, count * 8448)
                    for i in cutlass.range(count, unroll=1):
                        query = seq
                        place = turn % 2 * 1 + i
                        leaf.load_box(query_map, query_map_coords, (query * 64, 0), (64, 128), shared.queries.data_ptr() + place * 8192, queries_full + turn % 2)
                        with cute.arch.elect_one():
                            leaf.bulk_floats(weights + query * 64, 64, head_weights + place * 64, queries_full + turn % 2)
                if held == 32:
                    held = Int32(0)
                    entry = ahead
                    ahead = leaf.table_entry(table, seq * max_pages, tile + 32 * step, step, 1, last, lane)
                cute.arch.mbarrier_wait(keys_empty + it % 3, ((it // 3) & 1) ^ 1)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(keys_full + it % 3, 8448)
                for p in cutlass.range_constexpr(1):
                    page = cute.arch.shuffle_sync(entry, held * 1 + cutlass.min(p, last - tile * 1))
                    place = it % 3 * 1 + p
                    leaf.load_box(key_map, key_map_coords, (page * leaf.PAGE_ROWS, 0), (64, 128), shared.keys.data_ptr() + place * 8192, keys_full + it % 3, policy=Int64(leaf.EVICT_FIRST))
                    with cute.arch.elect_one():
                        leaf.bulk_floats(leaf.page_scales(k_cache, page), 64, key_scales + place * 64, keys_full + it % 3)
                held = held + 1
                tile = tile + step


@cute.jit
def program(q: cute.Pointer, k_cache: cute.Pointer, weights: cute.Pointer, seq_lens: cute.Pointer, block_table: cute.Pointer, logits: cute.Pointer, skip_below: cutlass.Int32, b: cutlass.Int32, next_n: cutlass.Int32, pages: cutlass.Int32, max_pages: cutlass.Int32, stride: cutlass.Int32):
    query_map, query_map_coords = leaf.box_map(q, leaf.FP8, (leaf.MANY, 128), (64, 128))
    key_map, key_map_coords = leaf.box_map(k_cache, leaf.FP8, (leaf.MANY, 128), (64, 128))
    lightning_indexer__cutedsl_sm90a__decode_h64_q1_t64_st3_c4_e1(query_map, query_map_coords, key_map, key_map_coords, q, k_cache, weights, seq_lens, block_table, logits, skip_below, b, next_n, pages, max_pages, stride).launch(grid=(1, 1, 1), block=(160, 1, 1), cluster=(1, 1, 1))
