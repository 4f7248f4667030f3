"""topk_selector__tilelang_sm90a__g16_t512_r16_c1

Generated from dsl_kernels/programs/topk_selector.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: group=16, threads=512, keep=16, resident=1.

roles
  select     threads 0..511  every warp owns a run of words of 32 columns
buffers
  hist       4096 int32, shared
  entries    2112 int64, shared
  above      2560 int32, shared
  equal      2560 int32, shared
  coarse     1024 int32, shared
  pages      512 int32, shared
  sums       32 int32, shared
  counts     32 int32, shared
  state      8 int32, shared
  counters   8 int32, shared
  keys       512x16 uint32, registers of select
  digits     512x8 uint32, registers of select
  mine       512x4 int32, registers of select
totals: 512 threads, 60224 of 232448 bytes of shared memory, grid (rows, 16)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import grid
from dsl_kernels.device.tilelang import topk_selector as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

GROUP = 16  # CTAs a row, one cluster
THREADS = 512  # threads a CTA
KEEP = 16  # keys a thread keeps in registers; longer rows are read again in every pass
WARPS = 16
BINS = 2048
BATCH = 512
HELD = 131072
WORD = 32
COARSE = 32
LISTED = 2048
SPAN = 81920
RANKED = 64
DENSE = 8

@T.macro
def select(
    logits, row_starts, row_ends, block_table, next_n, page_size, indices, stride, max_pages, k, hist,
    entries, above, equal, coarse, pages, sums, counts, state, counters, row, rank, owner, thread, warp, lane
):
    """Every warp owns a run of words of 32 columns."""
    keys = T.alloc_local((KEEP,), "uint32")
    digits = T.alloc_local((KEEP // 2,), "uint32")
    mine = T.alloc_local((BINS // THREADS,), "int32")
    worker = thread
    # Zero `count` words of shared memory.
    leaf.clear(hist, 0, 2 * BINS, worker, THREADS)
    leaf.clear(counters, 0, 8, worker, THREADS)
    T.call_extern("handle", "dk::cluster_arrive_relaxed")
    inverse = T.alloc_var("uint32", init=0)
    line = T.alloc_var("int32", init=0)
    # (2**32 - 1) // page_size and the row's line of the page table; zeros where there are no pages.
    leaf.page_row(inverse, line, row, next_n, page_size)
    # A launch of TileLang starts when the kernel before it has ended.
    # load_words of a row of at most `columns`; of a longer one nothing is read.
    leaf.load_ahead(keys, logits, row, stride, owner * BATCH, HELD, lane)
    start = T.alloc_var("int32", init=0)
    last = T.alloc_var("int32", init=0)
    # The columns of a row, [start, last).
    leaf.read_bounds(start, last, row_starts, row_ends, row, stride)
    T.sync_threads()
    if last - start <= k:
        # A row of at most `k` scores: every position, then -1, without a look at the scores; the CTAs take
        # slots in turn.
        leaf.take_all(
            indices, row, k, last - start, rank, GROUP, block_table, max_pages, line, page_size, inverse,
            worker, THREADS
        )
        T.call_extern("handle", "dk::cluster_wait")
    else:
        origin = T.alloc_var("int32", init=0)
        run = T.alloc_var("int32", init=KEEP)
        if stride > HELD:
            # Where the warps' runs of words begin, and how long each is, in a row that the registers do not
            # hold.
            leaf.share_row(origin, run, start, last, WARPS * GROUP)
        batches = leaf.ceildiv(run, KEEP)
        base = origin + owner * run * WORD
        limit = T.alloc_var("int32", init=0)
        lo = T.alloc_var("int32", init=0)
        hi = T.alloc_var("int32", init=0)
        # Where a warp's columns end, and those of the row among them, [lo, hi).
        leaf.bound_warp(limit, lo, hi, base, run, start, last, stride)
        # The page-table entries that this CTA may need, one a thread: on their way while the keys are
        # counted.
        first_page = T.alloc_var("int32", init=0)
        near = T.alloc_var("bool", init=False)
        entry = T.alloc_var("int32", init=0)
        # The page-table entries of the columns [first, first + columns), one a thread from `first_page` on.
        leaf.fetch_pages(
            first_page, near, entry, origin + rank * (run * (WORD * WARPS)), run * (WORD * WARPS), start,
            last, block_table, max_pages, line, page_size, inverse, worker, THREADS
        )
        end = T.alloc_var("uint32", init=0)
        span = T.alloc_var("uint32", init=0)
        need = T.alloc_var("int32", init=k)
        inside = T.alloc_var("int32", init=0)
        lower = T.alloc_var("int32", init=0)
        within = T.alloc_var("int32", init=0)
        rounds = T.alloc_var("int32", init=0)
        through = T.alloc_var("int32", init=0)
        for step in T.serial(batches):
            column = base + step * BATCH
            if (step > 0) | (stride > HELD):
                # Bit patterns of each warp's columns from `column` on; one at or past `limit` is not read and
                # gives 0.
                leaf.load_words(keys, logits, row, stride, column, limit, lane)
            # Turn loaded bit patterns into keys in place, and pair up their first digits.
            leaf.make_keys(keys, digits, column, lo, hi, lane)
            # Count the first digits of the batches that have columns of the row.
            leaf.count_first(hist, digits, column, lo, hi)
        T.sync_threads()
        # A peer's shared memory may be written only once the peer runs.
        T.call_extern("handle", "dk::cluster_wait")
        # Send every CTA of the group the sums of this one's coarse bins.
        leaf.send_sums(coarse, 0, hist, 0, GROUP, rank, warp, WARPS, lane)
        T.call_extern("handle", "dk::cluster_arrive")
        T.call_extern("handle", "dk::cluster_wait")
        # One warp finds the coarse bin and then, in all CTAs' counts of it, the bin with the `need`-th key
        # from the top.
        leaf.pick_bin_of_group(
            state, hist, 0, coarse, 0, need, lower, end, span, True, GROUP, rank, warp, lane
        )
        T.sync_threads()
        # The undecided range as the last round left it, and what CTAs of lower rank have above it and in it.
        leaf.read_group_state(end, span, need, inside, lower, within, state)
        rounds = rounds + 1
        # By now the entries have come.
        if page_size > 0:
            # The threads' page-table entries, for all threads.
            leaf.keep_entry(pages, entry, worker)
        # More digits over the row while the undecided keys are too many to list.
        while (inside > LISTED) & (span != 0):
            for step in T.serial(batches):
                if batches > 1:
                    column = base + step * BATCH
                    leaf.load_words(keys, logits, row, stride, column, limit, lane)
                    # Turn loaded bit patterns into keys in place; columns outside [lo, hi) get key 0.
                    leaf.make_keys_again(keys, column, lo, hi, lane)
                # Count the next digit of the undecided keys of a batch; the bins are those from `first` on.
                leaf.count_keys(hist, (rounds & 1) * BINS, keys, end, span)
            T.sync_threads()
            leaf.send_sums(
                coarse, (rounds & 1) * (GROUP * COARSE), hist, (rounds & 1) * BINS, GROUP, rank, warp, WARPS,
                lane
            )
            T.call_extern("handle", "dk::cluster_arrive")
            T.call_extern("handle", "dk::cluster_wait")
            # Now every peer has read the counts of the round before.
            leaf.clear(hist, (rounds + 1 & 1) * BINS, BINS, worker, THREADS)
            leaf.pick_bin_of_group(
                state, hist, (rounds & 1) * BINS, coarse, (rounds & 1) * (GROUP * COARSE), need, lower, end,
                span, False, GROUP, rank, warp, lane
            )
            T.sync_threads()
            leaf.read_group_state(end, span, need, inside, lower, within, state)
            rounds = rounds + 1
        words = batches * KEEP
        # One pass marks what is above the range and lists what is in it, for all CTAs; the last batch is
        # still held.
        listing = (inside > 0) & (inside <= LISTED)
        count = T.alloc_var("int32", init=0)
        for step in T.serial(batches):
            batch = batches - 1 - step
            if step > 0:
                column = base + batch * BATCH
                leaf.load_words(keys, logits, row, stride, column, limit, lane)
                leaf.make_keys_again(keys, column, lo, hi, lane)
            # Mark a batch's keys above the range; list those in it from entry `first` on, or mark these too.
            leaf.collect(
                count, keys, above, equal, (warp * batches + batch) * KEEP, counters, entries, within, end,
                span, listing, owner, batch * BATCH, lane
            )
        # The keys above the range of each warp, for all threads.
        leaf.keep_count(counts, count, warp, lane)
        T.sync_threads()
        # The last use of a peer's memory: nothing after this barrier reads or writes one.
        # Copy this CTA's part of the list to the same place in every peer.
        leaf.send_entries(entries, within, counters, GROUP, rank, warp, WARPS, lane)
        T.call_extern("handle", "dk::cluster_arrive")
        T.call_extern("handle", "dk::cluster_wait")
        first = warp * words
        ties = T.alloc_var("int32", init=T.max(need - within, 0))
        skip = T.alloc_var("int32", init=lower + T.min(within, need))
        if listing:
            ranked = T.alloc_var("int32", init=0)
            if inside > RANKED:
                total = T.alloc_var("int32", init=inside)
                while (inside > RANKED) & (span != 0):
                    # Count the next digit of the undecided ones of the first `total` list entries.
                    leaf.count_listed(hist, (rounds & 1) * BINS, entries, total, end, span, worker, THREADS)
                    leaf.clear(hist, (rounds + 1 & 1) * BINS, BINS, worker, THREADS)
                    T.sync_threads()
                    # Each thread takes its bins; `through` is its warp's sum up to and with them, and `sums`
                    # get the warps' totals.
                    leaf.sum_bins(mine, through, hist, (rounds & 1) * BINS, sums, worker, warp, lane)
                    T.sync_threads()
                    # The thread that has the `need`-th key from the top narrows the range to its bin, for all
                    # threads in `state`.
                    leaf.pick_bin(state, mine, through, sums, need, end, span, False, worker, warp, lane)
                    T.sync_threads()
                    # End, span, keys needed and keys inside of the undecided range, as the last round left
                    # them.
                    leaf.read_state(end, span, need, inside, state)
                    rounds = rounds + 1
                if inside > RANKED:
                    # Zero the warps' words of a bitmap.
                    leaf.clear_run(equal, first, words, lane)
                    T.sync_threads()
                # After the rounds over the list: mark entries above the range; keep those in it from `target`
                # on where at most `ranked` are left to rank, else mark them as equal.
                leaf.sift(
                    entries, total, LISTED, above, equal, counts, counters, end, span, inside, RANKED, rank,
                    WARPS, words, worker, THREADS
                )
                ranked = LISTED
                T.sync_threads()
            if inside <= RANKED:
                # Mark the `need` largest of at most 64 entries; of equal keys the lower position has the
                # larger entry.
                leaf.rank_entries(
                    entries, ranked, inside, need, above, counts, counters, rank, WARPS, words, warp, lane
                )
            T.sync_threads()
            # Columns marked as equal that this CTA may still take, and columns that lower ranks select, after
            # the list.
            leaf.read_marked(ties, skip, counters, need, inside, lower, RANKED)
        if ties > 0:
            # Columns of each warp that are marked as equal.
            leaf.count_equal(equal, sums, first, words, warp, lane)
            T.sync_threads()
            # Select the first `take` columns marked as equal, in order of position.
            leaf.take_ties(above, equal, counts, sums, ties, first, words, warp, lane)
            T.sync_threads()
        slot = T.alloc_var("int32", init=0)
        # Slot of each warp's first column: behind lower ranks' and lower warps'.
        leaf.first_slot(slot, counts, skip, warp, lane)
        if k * DENSE < last - start:
            # Write the ids of each warp's marked columns, ascending, from `slot` on: for bitmaps with few
            # marks.
            leaf.emit_sparse(
                slot, indices, row, k, above, first, words, base - start, block_table, max_pages, line,
                page_size, inverse, pages, first_page, near, lane
            )
        else:
            for batch in T.serial(batches):
                # Write the ids of a batch's marked columns, ascending, from `slot` on; the slot moves behind
                # them.
                leaf.emit(
                    slot, indices, row, k, above, (warp * batches + batch) * KEEP, KEEP,
                    base + batch * BATCH - start, block_table, max_pages, line, page_size, inverse, pages,
                    first_page, near, lane
                )


def program():
    rows = T.dynamic("rows")
    stride = T.dynamic("stride")
    b = T.dynamic("b")
    max_pages = T.dynamic("max_pages")
    k = T.dynamic("k")

    @T.prim_func
    def topk_selector__tilelang_sm90a__g16_t512_r16_c1(
        logits: T.Tensor((rows, stride), "float32"),
        row_starts: T.Tensor((rows,), "int32"),
        row_ends: T.Tensor((rows,), "int32"),
        block_table: T.Tensor((b, max_pages), "int32"),
        next_n: T.int32,
        page_size: T.int32,
        indices: T.Tensor((rows, k), "int32"),
    ):
        with T.Kernel(rows, 16, threads=512, cluster_dims=(1, 16, 1)) as (row, rank):
            T.import_source(grid.SOURCE + leaf.SOURCE)
            hist = T.alloc_shared((2 * BINS,), "int32")
            entries = T.alloc_shared((LISTED + RANKED,), "int64")
            above = T.alloc_shared((SPAN // WORD,), "int32")
            equal = T.alloc_shared((SPAN // WORD,), "int32")
            coarse = T.alloc_shared((2 * GROUP * COARSE,), "int32")
            pages = T.alloc_shared((THREADS,), "int32")
            sums = T.alloc_shared((32,), "int32")
            counts = T.alloc_shared((32,), "int32")
            state = T.alloc_shared((8,), "int32")
            counters = T.alloc_shared((8,), "int32")

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32
            owner = rank * WARPS + warp
            select(
                logits, row_starts, row_ends, block_table, next_n, page_size, indices, stride, max_pages, k,
                hist, entries, above, equal, coarse, pages, sums, counts, state, counters, row, rank, owner,
                thread, warp, lane
            )

    return topk_selector__tilelang_sm90a__g16_t512_r16_c1
