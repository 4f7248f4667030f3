"""topk_selector__cutedsl_sm100a__g16_t512_r16_c1

Generated from dsl_kernels/programs/topk_selector.py and the leaves in dsl_kernels/device/cutedsl by `make generate`:
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
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64

from dsl_kernels.device.cutedsl import topk_selector as leaf
from dsl_kernels.runtime.artifact import Launch, Operand

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


LAUNCH = Launch(
    operands=(
        Operand("logits", "tensor", "float32", ("rows", "stride")),
        Operand("row_starts", "tensor", "int32", ("rows",)),
        Operand("row_ends", "tensor", "int32", ("rows",)),
        Operand("block_table", "tensor", "int32", ("b", "max_pages")),
        Operand("next_n", "scalar", "int32"),
        Operand("page_size", "scalar", "int32"),
        Operand("indices", "tensor", "int32", ("rows", "k"), written=True),
    ),
    grid=("rows", "16", "1"),
    block=512,
    cluster=(1, 16, 1),
)


@cute.struct
class Shared:
    hist: cute.struct.Align[cute.struct.MemRange[Int32, 2 * BINS], 128]
    entries: cute.struct.Align[cute.struct.MemRange[Int64, LISTED + RANKED], 128]
    above: cute.struct.Align[cute.struct.MemRange[Int32, SPAN // WORD], 128]
    equal: cute.struct.Align[cute.struct.MemRange[Int32, SPAN // WORD], 128]
    coarse: cute.struct.Align[cute.struct.MemRange[Int32, 2 * GROUP * COARSE], 128]
    pages: cute.struct.Align[cute.struct.MemRange[Int32, THREADS], 128]
    sums: cute.struct.Align[cute.struct.MemRange[Int32, 32], 128]
    counts: cute.struct.Align[cute.struct.MemRange[Int32, 32], 128]
    state: cute.struct.Align[cute.struct.MemRange[Int32, 8], 128]
    counters: cute.struct.Align[cute.struct.MemRange[Int32, 8], 128]


@cute.jit
def select(
    logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer,
    next_n: Int32, page_size: Int32, indices: cute.Pointer, stride: Int32, max_pages: Int32, k: Int32,
    hist: cute.Pointer, entries: cute.Pointer, above: cute.Pointer, equal: cute.Pointer, coarse: cute.Pointer,
    pages: cute.Pointer, sums: cute.Pointer, counts: cute.Pointer, state: cute.Pointer,
    counters: cute.Pointer, row: Int32, rank: Int32, owner: Int32, thread: Int32, warp: Int32, lane: Int32
):
    """Every warp owns a run of words of 32 columns."""
    keys = cute.make_rmem_tensor(KEEP, cutlass.Uint32)
    digits = cute.make_rmem_tensor(KEEP // 2, cutlass.Uint32)
    mine = cute.make_rmem_tensor(BINS // THREADS, Int32)
    worker = thread
    # Zero `count` words of shared memory.
    leaf.clear(hist, 0, 2 * BINS, worker, THREADS)
    leaf.clear(counters, 0, 8, worker, THREADS)
    cute.arch.cluster_arrive_relaxed()
    inverse = cutlass.Uint32(0)
    line = Int32(0)
    # (2**32 - 1) // page_size and the row's line of the page table; zeros where there are no pages.
    inverse, line = leaf.page_row(row, next_n, page_size)
    cute.arch.griddepcontrol_wait()
    # load_words of a row of at most `columns`; of a longer one nothing is read.
    leaf.load_ahead(keys, logits, row, stride, owner * BATCH, HELD, lane)
    start = Int32(0)
    last = Int32(0)
    # The columns of a row, [start, last).
    start, last = leaf.read_bounds(row_starts, row_ends, row, stride)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.sync_threads()
    if last - start <= k:
        # A row of at most `k` scores: every position, then -1, without a look at the scores; the CTAs take
        # slots in turn.
        leaf.take_all(
            indices, row, k, last - start, rank, GROUP, block_table, max_pages, line, page_size, inverse,
            worker, THREADS
        )
        cute.arch.cluster_wait()
    else:
        origin = Int32(0)
        run = Int32(KEEP)
        if stride > HELD:
            # Where the warps' runs of words begin, and how long each is, in a row that the registers do not
            # hold.
            origin, run = leaf.share_row(origin, run, start, last, WARPS * GROUP)
        batches = leaf.ceildiv(run, KEEP)
        base = origin + owner * run * WORD
        limit = Int32(0)
        lo = Int32(0)
        hi = Int32(0)
        # Where a warp's columns end, and those of the row among them, [lo, hi).
        limit, lo, hi = leaf.bound_warp(base, run, start, last, stride)
        # The page-table entries that this CTA may need, one a thread: on their way while the keys are
        # counted.
        first_page = Int32(0)
        near = Boolean(False)
        entry = Int32(0)
        # The page-table entries of the columns [first, first + columns), one a thread from `first_page` on.
        first_page, near, entry = leaf.fetch_pages(
            origin + rank * (run * (WORD * WARPS)), run * (WORD * WARPS), start, last, block_table, max_pages,
            line, page_size, inverse, worker, THREADS
        )
        end = cutlass.Uint32(0)
        span = cutlass.Uint32(0)
        need = Int32(k)
        inside = Int32(0)
        lower = Int32(0)
        within = Int32(0)
        rounds = Int32(0)
        through = Int32(0)
        for step in cutlass.range(batches, unroll=1):
            column = base + step * BATCH
            if (step > 0) | (stride > HELD):
                # Bit patterns of each warp's columns from `column` on; one at or past `limit` is not read and
                # gives 0.
                leaf.load_words(keys, logits, row, stride, column, limit, lane)
            # Turn loaded bit patterns into keys in place, and pair up their first digits.
            leaf.make_keys(keys, digits, column, lo, hi, lane)
            # Count the first digits of the batches that have columns of the row.
            leaf.count_first(hist, digits, column, lo, hi)
        cute.arch.sync_threads()
        # A peer's shared memory may be written only once the peer runs.
        cute.arch.cluster_wait()
        # Send every CTA of the group the sums of this one's coarse bins.
        leaf.send_sums(coarse, 0, hist, 0, GROUP, rank, warp, WARPS, lane)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        # One warp finds the coarse bin and then, in all CTAs' counts of it, the bin with the `need`-th key
        # from the top.
        leaf.pick_bin_of_group(
            state, hist, 0, coarse, 0, need, lower, end, span, True, GROUP, rank, warp, lane
        )
        cute.arch.sync_threads()
        # The undecided range as the last round left it, and what CTAs of lower rank have above it and in it.
        end, span, need, inside, lower, within = leaf.read_group_state(state)
        rounds = rounds + 1
        # By now the entries have come.
        if page_size > 0:
            # The threads' page-table entries, for all threads.
            leaf.keep_entry(pages, entry, worker)
        # More digits over the row while the undecided keys are too many to list.
        while (inside > LISTED) & (span != 0):
            for step in cutlass.range(batches, unroll=1):
                if batches > 1:
                    column = base + step * BATCH
                    leaf.load_words(keys, logits, row, stride, column, limit, lane)
                    # Turn loaded bit patterns into keys in place; columns outside [lo, hi) get key 0.
                    leaf.make_keys_again(keys, column, lo, hi, lane)
                # Count the next digit of the undecided keys of a batch; the bins are those from `first` on.
                leaf.count_keys(hist, (rounds & 1) * BINS, keys, end, span)
            cute.arch.sync_threads()
            leaf.send_sums(
                coarse, (rounds & 1) * (GROUP * COARSE), hist, (rounds & 1) * BINS, GROUP, rank, warp, WARPS,
                lane
            )
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            # Now every peer has read the counts of the round before.
            leaf.clear(hist, (rounds + 1 & 1) * BINS, BINS, worker, THREADS)
            leaf.pick_bin_of_group(
                state, hist, (rounds & 1) * BINS, coarse, (rounds & 1) * (GROUP * COARSE), need, lower, end,
                span, False, GROUP, rank, warp, lane
            )
            cute.arch.sync_threads()
            end, span, need, inside, lower, within = leaf.read_group_state(state)
            rounds = rounds + 1
        words = batches * KEEP
        # One pass marks what is above the range and lists what is in it, for all CTAs; the last batch is
        # still held.
        listing = (inside > 0) & (inside <= LISTED)
        count = Int32(0)
        for step in cutlass.range(batches, unroll=1):
            batch = batches - 1 - step
            if step > 0:
                column = base + batch * BATCH
                leaf.load_words(keys, logits, row, stride, column, limit, lane)
                leaf.make_keys_again(keys, column, lo, hi, lane)
            # Mark a batch's keys above the range; list those in it from entry `first` on, or mark these too.
            count = leaf.collect(
                count, keys, above, equal, (warp * batches + batch) * KEEP, counters, entries, within, end,
                span, listing, owner, batch * BATCH, lane
            )
        # The keys above the range of each warp, for all threads.
        leaf.keep_count(counts, count, warp, lane)
        cute.arch.sync_threads()
        # The last use of a peer's memory: nothing after this barrier reads or writes one.
        # Copy this CTA's part of the list to the same place in every peer.
        leaf.send_entries(entries, within, counters, GROUP, rank, warp, WARPS, lane)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        first = warp * words
        ties = Int32(cutlass.max(need - within, 0))
        skip = Int32(lower + cutlass.min(within, need))
        if listing:
            ranked = Int32(0)
            if inside > RANKED:
                total = Int32(inside)
                while (inside > RANKED) & (span != 0):
                    # Count the next digit of the undecided ones of the first `total` list entries.
                    leaf.count_listed(hist, (rounds & 1) * BINS, entries, total, end, span, worker, THREADS)
                    leaf.clear(hist, (rounds + 1 & 1) * BINS, BINS, worker, THREADS)
                    cute.arch.sync_threads()
                    # Each thread takes its bins; `through` is its warp's sum up to and with them, and `sums`
                    # get the warps' totals.
                    through = leaf.sum_bins(mine, hist, (rounds & 1) * BINS, sums, worker, warp, lane)
                    cute.arch.sync_threads()
                    # The thread that has the `need`-th key from the top narrows the range to its bin, for all
                    # threads in `state`.
                    leaf.pick_bin(state, mine, through, sums, need, end, span, False, worker, warp, lane)
                    cute.arch.sync_threads()
                    # End, span, keys needed and keys inside of the undecided range, as the last round left
                    # them.
                    end, span, need, inside = leaf.read_state(state)
                    rounds = rounds + 1
                if inside > RANKED:
                    # Zero the warps' words of a bitmap.
                    leaf.clear_run(equal, first, words, lane)
                    cute.arch.sync_threads()
                # After the rounds over the list: mark entries above the range; keep those in it from `target`
                # on where at most `ranked` are left to rank, else mark them as equal.
                leaf.sift(
                    entries, total, LISTED, above, equal, counts, counters, end, span, inside, RANKED, rank,
                    WARPS, words, worker, THREADS
                )
                ranked = Int32(LISTED)
                cute.arch.sync_threads()
            if inside <= RANKED:
                # Mark the `need` largest of at most 64 entries; of equal keys the lower position has the
                # larger entry.
                leaf.rank_entries(
                    entries, ranked, inside, need, above, counts, counters, rank, WARPS, words, warp, lane
                )
            cute.arch.sync_threads()
            # Columns marked as equal that this CTA may still take, and columns that lower ranks select, after
            # the list.
            ties, skip = leaf.read_marked(counters, need, inside, lower, RANKED)
        if ties > 0:
            # Columns of each warp that are marked as equal.
            leaf.count_equal(equal, sums, first, words, warp, lane)
            cute.arch.sync_threads()
            # Select the first `take` columns marked as equal, in order of position.
            leaf.take_ties(above, equal, counts, sums, ties, first, words, warp, lane)
            cute.arch.sync_threads()
        slot = Int32(0)
        # Slot of each warp's first column: behind lower ranks' and lower warps'.
        slot = leaf.first_slot(counts, skip, warp, lane)
        if k * DENSE < last - start:
            # Write the ids of each warp's marked columns, ascending, from `slot` on: for bitmaps with few
            # marks.
            leaf.emit_sparse(
                slot, indices, row, k, above, first, words, base - start, block_table, max_pages, line,
                page_size, inverse, pages, first_page, near, lane
            )
        else:
            for batch in cutlass.range(batches, unroll=1):
                # Write the ids of a batch's marked columns, ascending, from `slot` on; the slot moves behind
                # them.
                slot = leaf.emit(
                    slot, indices, row, k, above, (warp * batches + batch) * KEEP, KEEP,
                    base + batch * BATCH - start, block_table, max_pages, line, page_size, inverse, pages,
                    first_page, near, lane
                )


@cute.kernel
def topk_selector__cutedsl_sm100a__g16_t512_r16_c1(
    logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer,
    next_n: Int32, page_size: Int32, indices: cute.Pointer, rows: Int32, stride: Int32, b: Int32,
    max_pages: Int32, k: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    hist = shared.hist.data_ptr()
    entries = shared.entries.data_ptr()
    above = shared.above.data_ptr()
    equal = shared.equal.data_ptr()
    coarse = shared.coarse.data_ptr()
    pages = shared.pages.data_ptr()
    sums = shared.sums.data_ptr()
    counts = shared.counts.data_ptr()
    state = shared.state.data_ptr()
    counters = shared.counters.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    row, rank, _ = cute.arch.block_idx()
    owner = rank * WARPS + warp
    select(
        logits, row_starts, row_ends, block_table, next_n, page_size, indices, stride, max_pages, k, hist,
        entries, above, equal, coarse, pages, sums, counts, state, counters, row, rank, owner, thread, warp,
        lane
    )


@cute.jit
def program(
    logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer,
    next_n: Int32, page_size: Int32, indices: cute.Pointer, rows: Int32, stride: Int32, b: Int32,
    max_pages: Int32, k: Int32
):
    kernel = topk_selector__cutedsl_sm100a__g16_t512_r16_c1(
        logits, row_starts, row_ends, block_table, next_n, page_size, indices, rows, stride, b, max_pages, k
    )
    kernel.launch(grid=(1, 1, 1), block=(512, 1, 1), cluster=(1, 16, 1), min_blocks_per_mp=1)
