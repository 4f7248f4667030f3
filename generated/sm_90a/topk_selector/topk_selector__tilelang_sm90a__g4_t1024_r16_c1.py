"""topk_selector__tilelang_sm90a__g4_t1024_r16_c1

Generated from dsl_kernels/programs/topk_selector.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: group=4, threads=1024, keep=16, resident=1.

roles
  select     threads 0..1023  every warp owns a run of words of 32 columns
buffers
  hist       4096 int32, shared
  entries    2112 int64, shared
  above      2560 int32, shared
  equal      2560 int32, shared
  coarse     256 int32, shared
  stash      32768 int32, shared
  pages      1024 int32, shared
  sums       32 int32, shared
  counts     32 int32, shared
  state      8 int32, shared
  counters   8 int32, shared
  keys       1024x16 uint32, registers of select
  digits     1024x8 uint32, registers of select
  mine       1024x2 int32, registers of select
totals: 1024 threads, 190272 of 232448 bytes of shared memory, grid (rows, 4)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import grid
from dsl_kernels.device.tilelang import topk_selector as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS


def program():
    rows = T.dynamic("rows")
    stride = T.dynamic("stride")
    b = T.dynamic("b")
    max_pages = T.dynamic("max_pages")
    k = T.dynamic("k")

    @T.prim_func
    def topk_selector__tilelang_sm90a__g4_t1024_r16_c1(
        logits: T.Tensor((rows, stride,), "float32"),
        row_starts: T.Tensor((rows,), "int32"),
        row_ends: T.Tensor((rows,), "int32"),
        block_table: T.Tensor((b, max_pages,), "int32"),
        next_n: T.int32,
        page_size: T.int32,
        indices: T.Tensor((rows, k,), "int32"),
    ):
        with T.Kernel(rows, 4, threads=1024, cluster_dims=(1, 4, 1)) as (row, rank):
            T.import_source(grid.SOURCE + leaf.SOURCE)
            hist = T.alloc_shared((4096,), "int32")
            entries = T.alloc_shared((2112,), "int64")
            above = T.alloc_shared((2560,), "int32")
            equal = T.alloc_shared((2560,), "int32")
            coarse = T.alloc_shared((256,), "int32")
            stash = T.alloc_shared((32768,), "int32")
            pages = T.alloc_shared((1024,), "int32")
            sums = T.alloc_shared((32,), "int32")
            counts = T.alloc_shared((32,), "int32")
            state = T.alloc_shared((8,), "int32")
            counters = T.alloc_shared((8,), "int32")

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32
            owner = rank * 32 + warp
            # select: every warp owns a run of words of 32 columns
            keys = T.alloc_local((16,), "uint32")
            digits = T.alloc_local((8,), "uint32")
            mine = T.alloc_local((2,), "int32")
            worker = thread
            leaf.load_ahead(keys, logits, row, stride, owner * 512, 65536, lane)
            start = T.alloc_var("int32", init=0)
            last = T.alloc_var("int32", init=0)
            leaf.read_bounds(start, last, row_starts, row_ends, row, stride)
            leaf.clear(hist, 0, 4096, worker, 1024)
            leaf.clear(counters, 0, 8, worker, 1024)
            T.call_extern("handle", "dk::cluster_arrive_relaxed")
            inverse = T.alloc_var("uint32", init=0)
            line = T.alloc_var("int32", init=0)
            leaf.page_row(inverse, line, row, next_n, page_size)
            T.sync_threads()
            if last - start <= k:
                leaf.take_all(indices, row, k, last - start, rank, 4, block_table, max_pages, line, page_size, inverse, worker, 1024)
                T.call_extern("handle", "dk::cluster_wait")
            else:
                origin = T.alloc_var("int32", init=0)
                run = T.alloc_var("int32", init=16)
                if stride > 65536:
                    leaf.share_row(origin, run, start, last, 128)
                batches = leaf.ceildiv(run, 16)
                base = origin + owner * run * 32
                limit = T.alloc_var("int32", init=0)
                lo = T.alloc_var("int32", init=0)
                hi = T.alloc_var("int32", init=0)
                leaf.bound_warp(limit, lo, hi, base, run, start, last, stride)
                # The page-table entries that this CTA may need, one a thread: on their way while the keys are counted.
                first_page = T.alloc_var("int32", init=0)
                near = T.alloc_var("bool", init=False)
                entry = T.alloc_var("int32", init=0)
                leaf.fetch_pages(first_page, near, entry, origin + rank * (run * 1024), run * 1024, start, last, block_table, max_pages, line, page_size, inverse, worker, 1024)
                end = T.alloc_var("uint32", init=0)
                span = T.alloc_var("uint32", init=0)
                need = T.alloc_var("int32", init=k)
                inside = T.alloc_var("int32", init=0)
                lower = T.alloc_var("int32", init=0)
                within = T.alloc_var("int32", init=0)
                rounds = T.alloc_var("int32", init=0)
                through = T.alloc_var("int32", init=0)
                for step in T.serial(batches):
                    column = base + step * 512
                    if (step > 0) | (stride > 65536):
                        leaf.load_words(keys, logits, row, stride, column, limit, lane)
                    leaf.make_keys(keys, digits, column, lo, hi, lane)
                    leaf.count_first(hist, digits, column, lo, hi)
                    if step < T.min(2, batches - 1):
                        leaf.stash(stash, step * 16384, keys, worker, 1024)
                T.sync_threads()
                # A peer's shared memory may be written only once the peer runs.
                T.call_extern("handle", "dk::cluster_wait")
                leaf.send_sums(coarse, 0, hist, 0, 4, rank, warp, 32, lane)
                T.call_extern("handle", "dk::cluster_arrive")
                T.call_extern("handle", "dk::cluster_wait")
                leaf.pick_bin_of_group(state, hist, 0, coarse, 0, need, lower, end, span, True, 4, rank, warp, lane)
                T.sync_threads()
                leaf.read_group_state(end, span, need, inside, lower, within, state)
                rounds = rounds + 1
                # By now the entries have come.
                if page_size > 0:
                    leaf.keep_entry(pages, entry, worker)
                # More digits over the row while the undecided keys are too many to list.
                while (inside > 2048) & (span != 0):
                    for step in T.serial(batches):
                        if batches > 1:
                            column = base + step * 512
                            if step < T.min(2, batches - 1):
                                leaf.unstash(keys, stash, step * 16384, worker, 1024)
                            else:
                                leaf.load_words(keys, logits, row, stride, column, limit, lane)
                                leaf.make_keys_again(keys, column, lo, hi, lane)
                        leaf.count_keys(hist, (rounds & 1) * 2048, keys, end, span)
                    T.sync_threads()
                    leaf.send_sums(coarse, (rounds & 1) * 128, hist, (rounds & 1) * 2048, 4, rank, warp, 32, lane)
                    T.call_extern("handle", "dk::cluster_arrive")
                    T.call_extern("handle", "dk::cluster_wait")
                    # Now every peer has read the counts of the round before.
                    leaf.clear(hist, (rounds + 1 & 1) * 2048, 2048, worker, 1024)
                    leaf.pick_bin_of_group(state, hist, (rounds & 1) * 2048, coarse, (rounds & 1) * 128, need, lower, end, span, False, 4, rank, warp, lane)
                    T.sync_threads()
                    leaf.read_group_state(end, span, need, inside, lower, within, state)
                    rounds = rounds + 1
                words = batches * 16
                # One pass marks what is above the range and lists what is in it, for all CTAs; the last batch is still held.
                listing = (inside > 0) & (inside <= 2048)
                count = T.alloc_var("int32", init=0)
                for step in T.serial(batches):
                    batch = batches - 1 - step
                    if step > 0:
                        column = base + batch * 512
                        if batch < T.min(2, batches - 1):
                            leaf.unstash(keys, stash, batch * 16384, worker, 1024)
                        else:
                            leaf.load_words(keys, logits, row, stride, column, limit, lane)
                            leaf.make_keys_again(keys, column, lo, hi, lane)
                    leaf.collect(count, keys, above, equal, (warp * batches + batch) * 16, counters, entries, within, end, span, listing, owner, batch * 512, lane)
                leaf.keep_count(counts, count, warp, lane)
                T.sync_threads()
                # The last use of a peer's memory: nothing after this barrier reads or writes one.
                leaf.send_entries(entries, within, counters, 4, rank, warp, 32, lane)
                T.call_extern("handle", "dk::cluster_arrive")
                T.call_extern("handle", "dk::cluster_wait")
                first = warp * words
                ties = T.alloc_var("int32", init=T.max(need - within, 0))
                skip = T.alloc_var("int32", init=lower + T.min(within, need))
                if listing:
                    ranked = T.alloc_var("int32", init=0)
                    if inside > 64:
                        total = T.alloc_var("int32", init=inside)
                        while (inside > 64) & (span != 0):
                            leaf.count_listed(hist, (rounds & 1) * 2048, entries, total, end, span, worker, 1024)
                            leaf.clear(hist, (rounds + 1 & 1) * 2048, 2048, worker, 1024)
                            T.sync_threads()
                            leaf.sum_bins(mine, through, hist, (rounds & 1) * 2048, sums, worker, warp, lane)
                            T.sync_threads()
                            leaf.pick_bin(state, mine, through, sums, need, end, span, False, worker, warp, lane)
                            T.sync_threads()
                            leaf.read_state(end, span, need, inside, state)
                            rounds = rounds + 1
                        if inside > 64:
                            leaf.clear_run(equal, first, words, lane)
                            T.sync_threads()
                        leaf.sift(entries, total, 2048, above, equal, counts, counters, end, span, inside, 64, rank, 32, words, worker, 1024)
                        ranked = 2048
                        T.sync_threads()
                    if inside <= 64:
                        leaf.rank_entries(entries, ranked, inside, need, above, counts, counters, rank, 32, words, warp, lane)
                    T.sync_threads()
                    leaf.read_marked(ties, skip, counters, need, inside, lower, 64)
                if ties > 0:
                    leaf.count_equal(equal, sums, first, words, warp, lane)
                    T.sync_threads()
                    leaf.take_ties(above, equal, counts, sums, ties, first, words, warp, lane)
                    T.sync_threads()
                slot = T.alloc_var("int32", init=0)
                leaf.first_slot(slot, counts, skip, warp, lane)
                if k * 8 < last - start:
                    leaf.emit_sparse(slot, indices, row, k, above, first, words, base - start, block_table, max_pages, line, page_size, inverse, pages, first_page, near, lane)
                else:
                    for batch in T.serial(batches):
                        leaf.emit(slot, indices, row, k, above, (warp * batches + batch) * 16, 16, base + batch * 512 - start, block_table, max_pages, line, page_size, inverse, pages, first_page, near, lane)

    return topk_selector__tilelang_sm90a__g4_t1024_r16_c1
