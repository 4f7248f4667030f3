"""topk_selector__cutedsl_sm100a__g2_t1024_r16_c1

Generated from dsl_kernels/programs/topk_selector.py and the leaves in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: group=2, threads=1024, keep=16, resident=1.

roles
  select     threads 0..1023  every warp owns a run of words of 32 columns
buffers
  hist       4096 int32, shared
  entries    2112 int64, shared
  above      2560 int32, shared
  equal      2560 int32, shared
  coarse     128 int32, shared
  stash      32768 int32, shared
  pages      1024 int32, shared
  sums       32 int32, shared
  counts     32 int32, shared
  state      8 int32, shared
  counters   8 int32, shared
  keys       1024x16 uint32, registers of select
  digits     1024x8 uint32, registers of select
  mine       1024x2 int32, registers of select
totals: 1024 threads, 189760 of 232448 bytes of shared memory, grid (rows, 2)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from dsl_kernels.device.cutedsl import topk_selector as leaf
from dsl_kernels.runtime.artifact import Launch, Operand


LAUNCH = Launch(
    operands=(
        Operand("logits", "tensor", "float32", ('rows', 'stride')),
        Operand("row_starts", "tensor", "int32", ('rows',)),
        Operand("row_ends", "tensor", "int32", ('rows',)),
        Operand("block_table", "tensor", "int32", ('b', 'max_pages')),
        Operand("next_n", "scalar", "int32"),
        Operand("page_size", "scalar", "int32"),
        Operand("indices", "tensor", "int32", ('rows', 'k'), written=True),
    ),
    grid=('rows', '2', '1'),
    block=1024,
    cluster=(1, 2, 1),
)


@cute.struct
class Shared:
    hist: cute.struct.Align[cute.struct.MemRange[Int32, 4096], 128]
    entries: cute.struct.Align[cute.struct.MemRange[Int64, 2112], 128]
    above: cute.struct.Align[cute.struct.MemRange[Int32, 2560], 128]
    equal: cute.struct.Align[cute.struct.MemRange[Int32, 2560], 128]
    coarse: cute.struct.Align[cute.struct.MemRange[Int32, 128], 128]
    stash: cute.struct.Align[cute.struct.MemRange[Int32, 32768], 128]
    pages: cute.struct.Align[cute.struct.MemRange[Int32, 1024], 128]
    sums: cute.struct.Align[cute.struct.MemRange[Int32, 32], 128]
    counts: cute.struct.Align[cute.struct.MemRange[Int32, 32], 128]
    state: cute.struct.Align[cute.struct.MemRange[Int32, 8], 128]
    counters: cute.struct.Align[cute.struct.MemRange[Int32, 8], 128]


@cute.kernel
def topk_selector__cutedsl_sm100a__g2_t1024_r16_c1(
    logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer,
    next_n: cutlass.Int32, page_size: cutlass.Int32, indices: cute.Pointer, rows: cutlass.Int32,
    stride: cutlass.Int32, b: cutlass.Int32, max_pages: cutlass.Int32, k: cutlass.Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    hist = shared.hist.data_ptr()
    entries = shared.entries.data_ptr()
    above = shared.above.data_ptr()
    equal = shared.equal.data_ptr()
    coarse = shared.coarse.data_ptr()
    stash = shared.stash.data_ptr()
    pages = shared.pages.data_ptr()
    sums = shared.sums.data_ptr()
    counts = shared.counts.data_ptr()
    state = shared.state.data_ptr()
    counters = shared.counters.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    row, rank, _ = cute.arch.block_idx()
    owner = rank * 32 + warp
    # select: every warp owns a run of words of 32 columns
    keys = cute.make_rmem_tensor(16, cutlass.Uint32)
    digits = cute.make_rmem_tensor(8, cutlass.Uint32)
    mine = cute.make_rmem_tensor(2, Int32)
    worker = thread
    leaf.load_ahead(keys, logits, row, stride, owner * 512, 32768, lane)
    start = Int32(0)
    last = Int32(0)
    start, last = leaf.read_bounds(row_starts, row_ends, row, stride)
    leaf.clear(hist, 0, 4096, worker, 1024)
    leaf.clear(counters, 0, 8, worker, 1024)
    cute.arch.cluster_arrive_relaxed()
    inverse = cutlass.Uint32(0)
    line = Int32(0)
    inverse, line = leaf.page_row(row, next_n, page_size)
    cute.arch.sync_threads()
    if last - start <= k:
        leaf.take_all(indices, row, k, last - start, rank, 2, block_table, max_pages, line, page_size, inverse, worker, 1024)
        cute.arch.cluster_wait()
    else:
        origin = Int32(0)
        run = Int32(16)
        if stride > 32768:
            origin, run = leaf.share_row(origin, run, start, last, 64)
        batches = leaf.ceildiv(run, 16)
        base = origin + owner * run * 32
        limit = Int32(0)
        lo = Int32(0)
        hi = Int32(0)
        limit, lo, hi = leaf.bound_warp(base, run, start, last, stride)
        # The page-table entries that this CTA may need, one a thread: on their way while the keys are counted.
        first_page = Int32(0)
        near = Boolean(False)
        entry = Int32(0)
        first_page, near, entry = leaf.fetch_pages(origin + rank * (run * 1024), run * 1024, start, last, block_table, max_pages, line, page_size, inverse, worker, 1024)
        end = cutlass.Uint32(0)
        span = cutlass.Uint32(0)
        need = Int32(k)
        inside = Int32(0)
        lower = Int32(0)
        within = Int32(0)
        rounds = Int32(0)
        through = Int32(0)
        for step in cutlass.range(batches, unroll=1):
            column = base + step * 512
            if (step > 0) | (stride > 32768):
                leaf.load_words(keys, logits, row, stride, column, limit, lane)
            leaf.make_keys(keys, digits, column, lo, hi, lane)
            leaf.count_first(hist, digits, column, lo, hi)
            if step < cutlass.min(2, batches - 1):
                leaf.stash(stash, step * 16384, keys, worker, 1024)
        cute.arch.sync_threads()
        # A peer's shared memory may be written only once the peer runs.
        cute.arch.cluster_wait()
        leaf.send_sums(coarse, 0, hist, 0, 2, rank, warp, 32, lane)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        leaf.pick_bin_of_group(state, hist, 0, coarse, 0, need, lower, end, span, True, 2, rank, warp, lane)
        cute.arch.sync_threads()
        end, span, need, inside, lower, within = leaf.read_group_state(state)
        rounds = rounds + 1
        # By now the entries have come.
        if page_size > 0:
            leaf.keep_entry(pages, entry, worker)
        # More digits over the row while the undecided keys are too many to list.
        while (inside > 2048) & (span != 0):
            for step in cutlass.range(batches, unroll=1):
                if batches > 1:
                    column = base + step * 512
                    if step < cutlass.min(2, batches - 1):
                        leaf.unstash(keys, stash, step * 16384, worker, 1024)
                    else:
                        leaf.load_words(keys, logits, row, stride, column, limit, lane)
                        leaf.make_keys_again(keys, column, lo, hi, lane)
                leaf.count_keys(hist, (rounds & 1) * 2048, keys, end, span)
            cute.arch.sync_threads()
            leaf.send_sums(coarse, (rounds & 1) * 64, hist, (rounds & 1) * 2048, 2, rank, warp, 32, lane)
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            # Now every peer has read the counts of the round before.
            leaf.clear(hist, (rounds + 1 & 1) * 2048, 2048, worker, 1024)
            leaf.pick_bin_of_group(state, hist, (rounds & 1) * 2048, coarse, (rounds & 1) * 64, need, lower, end, span, False, 2, rank, warp, lane)
            cute.arch.sync_threads()
            end, span, need, inside, lower, within = leaf.read_group_state(state)
            rounds = rounds + 1
        words = batches * 16
        # One pass marks what is above the range and lists what is in it, for all CTAs; the last batch is still held.
        listing = (inside > 0) & (inside <= 2048)
        count = Int32(0)
        for step in cutlass.range(batches, unroll=1):
            batch = batches - 1 - step
            if step > 0:
                column = base + batch * 512
                if batch < cutlass.min(2, batches - 1):
                    leaf.unstash(keys, stash, batch * 16384, worker, 1024)
                else:
                    leaf.load_words(keys, logits, row, stride, column, limit, lane)
                    leaf.make_keys_again(keys, column, lo, hi, lane)
            count = leaf.collect(count, keys, above, equal, (warp * batches + batch) * 16, counters, entries, within, end, span, listing, owner, batch * 512, lane)
        leaf.keep_count(counts, count, warp, lane)
        cute.arch.sync_threads()
        # The last use of a peer's memory: nothing after this barrier reads or writes one.
        leaf.send_entries(entries, within, counters, 2, rank, warp, 32, lane)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        first = warp * words
        ties = Int32(cutlass.max(need - within, 0))
        skip = Int32(lower + cutlass.min(within, need))
        if listing:
            ranked = Int32(0)
            if inside > 64:
                total = Int32(inside)
                while (inside > 64) & (span != 0):
                    leaf.count_listed(hist, (rounds & 1) * 2048, entries, total, end, span, worker, 1024)
                    leaf.clear(hist, (rounds + 1 & 1) * 2048, 2048, worker, 1024)
                    cute.arch.sync_threads()
                    through = leaf.sum_bins(mine, hist, (rounds & 1) * 2048, sums, worker, warp, lane)
                    cute.arch.sync_threads()
                    leaf.pick_bin(state, mine, through, sums, need, end, span, False, worker, warp, lane)
                    cute.arch.sync_threads()
                    end, span, need, inside = leaf.read_state(state)
                    rounds = rounds + 1
                if inside > 64:
                    leaf.clear_run(equal, first, words, lane)
                    cute.arch.sync_threads()
                leaf.sift(entries, total, 2048, above, equal, counts, counters, end, span, inside, 64, rank, 32, words, worker, 1024)
                ranked = Int32(2048)
                cute.arch.sync_threads()
            if inside <= 64:
                leaf.rank_entries(entries, ranked, inside, need, above, counts, counters, rank, 32, words, warp, lane)
            cute.arch.sync_threads()
            ties, skip = leaf.read_marked(counters, need, inside, lower, 64)
        if ties > 0:
            leaf.count_equal(equal, sums, first, words, warp, lane)
            cute.arch.sync_threads()
            leaf.take_ties(above, equal, counts, sums, ties, first, words, warp, lane)
            cute.arch.sync_threads()
        slot = Int32(0)
        slot = leaf.first_slot(counts, skip, warp, lane)
        if k * 8 < last - start:
            leaf.emit_sparse(slot, indices, row, k, above, first, words, base - start, block_table, max_pages, line, page_size, inverse, pages, first_page, near, lane)
        else:
            for batch in cutlass.range(batches, unroll=1):
                slot = leaf.emit(slot, indices, row, k, above, (warp * batches + batch) * 16, 16, base + batch * 512 - start, block_table, max_pages, line, page_size, inverse, pages, first_page, near, lane)


@cute.jit
def program(
    logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer,
    next_n: cutlass.Int32, page_size: cutlass.Int32, indices: cute.Pointer, rows: cutlass.Int32,
    stride: cutlass.Int32, b: cutlass.Int32, max_pages: cutlass.Int32, k: cutlass.Int32
):
    topk_selector__cutedsl_sm100a__g2_t1024_r16_c1(
        logits, row_starts, row_ends, block_table, next_n, page_size, indices, rows, stride, b, max_pages, k
    ).launch(
        grid=(1, 1, 1), block=(1024, 1, 1), cluster=(1, 2, 1), min_blocks_per_mp=1
    )
