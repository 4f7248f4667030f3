"""topk_selector__cutedsl_sm90a__g1_t512_r8_c1_s16

Generated from dsl_kernels/programs/topk_selector.py and the leaves in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: group=1, threads=512, keep=8, resident=1, sample=16.

roles
  select     threads 0..511  every warp owns a run of words of 32 columns
buffers
  hist       4096 int32, shared
  entries    5696 int64, shared
  above      1024 int32, shared
  equal      1024 int32, shared
  sums       32 int32, shared
  counts     32 int32, shared
  state      8 int32, shared
  counters   8 int32, shared
  keys       512x8 uint32, registers of select
  digits     512x4 uint32, registers of select
  mine       512x4 int32, registers of select
  ahead      512x8 uint32, registers of select
  few        512x4 uint32, registers of select
  few_digits 512x2 uint32, registers of select
totals: 512 threads, 70464 of 232448 bytes of shared memory, grid (rows, 1)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from dsl_kernels.device.cutedsl import topk_selector as leaf
from dsl_kernels.runtime.artifact import Launch, Operand

GROUP = 1  # CTAs a row, one cluster
THREADS = 512  # threads a CTA
KEEP = 8  # keys a thread keeps in registers; longer rows are read again in every pass
SAMPLE = 16  # words of 32 columns for each one sampled; 0: no sample
BINS = 2048
BATCH = 256
HELD = 4096
WARPS = 16
WORD = 32
FEW = 4
SPAN = 32768
SPARE = 28
BETWEEN = 32
LISTED = 5632
RANKED = 64


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
    grid=("rows", "1", "1"),
    block=512,
    cluster=(1, 1, 1),
)


@cute.struct
class Shared:
    hist: cute.struct.Align[cute.struct.MemRange[Int32, 2 * BINS], 128]
    entries: cute.struct.Align[cute.struct.MemRange[Int64, LISTED + RANKED], 128]
    above: cute.struct.Align[cute.struct.MemRange[Int32, SPAN // WORD], 128]
    equal: cute.struct.Align[cute.struct.MemRange[Int32, SPAN // WORD], 128]
    sums: cute.struct.Align[cute.struct.MemRange[Int32, 32], 128]
    counts: cute.struct.Align[cute.struct.MemRange[Int32, 32], 128]
    state: cute.struct.Align[cute.struct.MemRange[Int32, 8], 128]
    counters: cute.struct.Align[cute.struct.MemRange[Int32, 8], 128]


@cute.jit
def select(
    logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer,
    next_n: Int32, page_size: Int32, indices: cute.Pointer, stride: Int32, max_pages: Int32, k: Int32,
    hist: cute.Pointer, entries: cute.Pointer, above: cute.Pointer, equal: cute.Pointer, sums: cute.Pointer,
    counts: cute.Pointer, state: cute.Pointer, counters: cute.Pointer, row: Int32, owner: Int32,
    thread: Int32, warp: Int32, lane: Int32
):
    """Every warp owns a run of words of 32 columns."""
    keys = cute.make_rmem_tensor(KEEP, cutlass.Uint32)
    digits = cute.make_rmem_tensor(KEEP // 2, cutlass.Uint32)
    mine = cute.make_rmem_tensor(BINS // THREADS, Int32)
    ahead = cute.make_rmem_tensor(KEEP, cutlass.Uint32)
    few = cute.make_rmem_tensor(FEW, cutlass.Uint32)
    few_digits = cute.make_rmem_tensor(FEW // 2, cutlass.Uint32)
    worker = thread
    # Zero `count` words of shared memory.
    leaf.clear(hist, 0, 2 * BINS, worker, THREADS)
    leaf.clear(counters, 0, 8, worker, THREADS)
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
            indices, row, k, last - start, 0, GROUP, block_table, max_pages, line, page_size, inverse, worker,
            THREADS
        )
    else:
        origin = Int32(0)
        run = Int32(KEEP)
        if stride > HELD:
            # Where the warps' runs of words begin, and how long each is, in a row that the registers do not
            # hold.
            origin, run = leaf.share_row(origin, run, start, last, WARPS)
        batches = leaf.ceildiv(run, KEEP)
        # Runs of whole batches, so that a word of the bitmaps is one of the row.
        run = batches * KEEP
        base = origin + owner * run * WORD
        limit = Int32(0)
        lo = Int32(0)
        hi = Int32(0)
        # Where a warp's columns end, and those of the row among them, [lo, hi).
        limit, lo, hi = leaf.bound_warp(base, run, start, last, stride)
        end = cutlass.Uint32(0)
        span = cutlass.Uint32(0)
        need = Int32(k)
        inside = Int32(0)
        lower = Int32(0)
        within = Int32(0)
        rounds = Int32(0)
        through = Int32(0)
        unlisted = Boolean(True)
        if stride > HELD:
            # Bit patterns of a sample of the row, one word in `every`, never the same one of these; -inf
            # where the row has no column.
            leaf.load_sample(few, logits, row, stride, start, last, SAMPLE, warp, WARPS, lane)
            # Zero the warps' words of a bitmap.
            leaf.clear_run(above, warp * (batches * KEEP), batches * KEEP, lane)
            # Turn loaded bit patterns into keys in place, and pair up their first digits.
            leaf.make_keys(few, few_digits, warp * (FEW * WORD), 0, THREADS * FEW, lane)
            # Count the first digits of the batches that have columns of the row.
            leaf.count_first(hist, few_digits, warp * (FEW * WORD), 0, THREADS * FEW)
            need = k // SAMPLE + k // SAMPLE // 4 + SPARE
            cute.arch.sync_threads()
            # Each thread takes its bins; `through` is its warp's sum up to and with them, and `sums` get the
            # warps' totals.
            through = leaf.sum_bins(mine, hist, 0, sums, worker, warp, lane)
            cute.arch.sync_threads()
            # The thread that has the `need`-th key from the top narrows the range to its bin, for all threads
            # in `state`.
            leaf.pick_bin(state, mine, through, sums, need, end, span, True, worker, warp, lane)
            cute.arch.sync_threads()
            # End, span, keys needed and keys inside of the undecided range, as the last round left them.
            end, span, need, inside = leaf.read_state(state)
            rounds = rounds + 1
            while (inside > BETWEEN) & (span != 0):
                # Count the next digit of the undecided keys of a batch; the bins are those from `first` on.
                leaf.count_keys(hist, (rounds & 1) * BINS, few, end, span)
                leaf.clear(hist, (rounds + 1 & 1) * BINS, BINS, worker, THREADS)
                cute.arch.sync_threads()
                through = leaf.sum_bins(mine, hist, (rounds & 1) * BINS, sums, worker, warp, lane)
                cute.arch.sync_threads()
                leaf.pick_bin(state, mine, through, sums, need, end, span, False, worker, warp, lane)
                cute.arch.sync_threads()
                end, span, need, inside = leaf.read_state(state)
                rounds = rounds + 1
            bottom = cutlass.Uint32(0)
            less = Float32(0.0)
            # The threshold that a sample gives: the smallest key of a range, at least that of the smallest
            # finite score.
            bottom, less = leaf.read_bottom(end, span)
            # Two batches in turn, so that one is on its way while the other is looked at.
            listed = Int32(0)
            place = Int32(0)
            # Bit patterns of each warp's columns from `column` on, four a lane; a batch that would end past
            # the row is its last one instead.
            leaf.load_quads(keys, logits, row, stride, origin + warp * BATCH, lane)
            while (place < batches) & (listed <= LISTED):
                leaf.load_quads(
                    ahead, logits, row, stride, origin + ((place + 1) * WARPS + warp) * BATCH, lane
                )
                # List a batch of load_quads, as bit patterns: what with `less` is not negative, while there
                # is room for `room`.
                listed = leaf.list_above(
                    listed, keys, entries, counters, less, origin + (place * WARPS + warp) * BATCH, origin,
                    start, last, stride, LISTED, lane
                )
                leaf.load_quads(
                    keys, logits, row, stride, origin + ((place + 2) * WARPS + warp) * BATCH, lane
                )
                listed = leaf.list_above(
                    listed, ahead, entries, counters, less, origin + ((place + 1) * WARPS + warp) * BATCH,
                    origin, start, last, stride, LISTED, lane
                )
                place = place + 2
            need = k
            cute.arch.sync_threads()
            # Keys that were listed, or for which there was no room.
            inside = leaf.read_listed(counters)
            unlisted = (inside < need) | (inside > LISTED)
            if unlisted:
                cute.arch.sync_threads()
                rounds = Int32(0)
                leaf.clear(hist, 0, 2 * BINS, worker, THREADS)
                leaf.clear(counters, 0, 8, worker, THREADS)
                cute.arch.sync_threads()
            else:
                leaf.clear(counts, 0, 32, worker, THREADS)
                # Make the bit patterns of the first `total` list entries keys, and note the largest.
                leaf.key_entries(entries, inside, counters, worker, THREADS, lane)
                cute.arch.sync_threads()
                # The range from `bottom` to the largest key of the list.
                end, span = leaf.read_largest(counters, bottom)
        if unlisted:
            for step in cutlass.range(batches, unroll=1):
                column = base + step * BATCH
                if (step > 0) | (stride > HELD):
                    # Bit patterns of each warp's columns from `column` on; one at or past `limit` is not read
                    # and gives 0.
                    leaf.load_words(keys, logits, row, stride, column, limit, lane)
                leaf.make_keys(keys, digits, column, lo, hi, lane)
                leaf.count_first(hist, digits, column, lo, hi)
            cute.arch.sync_threads()
            through = leaf.sum_bins(mine, hist, 0, sums, worker, warp, lane)
            cute.arch.sync_threads()
            leaf.pick_bin(state, mine, through, sums, need, end, span, True, worker, warp, lane)
            cute.arch.sync_threads()
            end, span, need, inside = leaf.read_state(state)
            rounds = rounds + 1
            # More digits over the row while the undecided keys are too many to list.
            while (inside > LISTED) & (span != 0):
                for step in cutlass.range(batches, unroll=1):
                    if batches > 1:
                        column = base + step * BATCH
                        leaf.load_words(keys, logits, row, stride, column, limit, lane)
                        # Turn loaded bit patterns into keys in place; columns outside [lo, hi) get key 0.
                        leaf.make_keys_again(keys, column, lo, hi, lane)
                    leaf.count_keys(hist, (rounds & 1) * BINS, keys, end, span)
                leaf.clear(hist, (rounds + 1 & 1) * BINS, BINS, worker, THREADS)
                cute.arch.sync_threads()
                through = leaf.sum_bins(mine, hist, (rounds & 1) * BINS, sums, worker, warp, lane)
                cute.arch.sync_threads()
                leaf.pick_bin(state, mine, through, sums, need, end, span, False, worker, warp, lane)
                cute.arch.sync_threads()
                end, span, need, inside = leaf.read_state(state)
                rounds = rounds + 1
        words = batches * KEEP
        # One pass marks what is above the range and lists what is in it, for all CTAs; the last batch is
        # still held.
        listing = (inside > 0) & (inside <= LISTED)
        if unlisted:
            count = Int32(0)
            for step in cutlass.range(batches, unroll=1):
                batch = batches - 1 - step
                if step > 0:
                    column = base + batch * BATCH
                    leaf.load_words(keys, logits, row, stride, column, limit, lane)
                    leaf.make_keys_again(keys, column, lo, hi, lane)
                # Mark a batch's keys above the range; list those in it from entry `first` on, or mark these
                # too.
                count = leaf.collect(
                    count, keys, above, equal, (warp * batches + batch) * KEEP, counters, entries, within,
                    end, span, listing, owner, batch * BATCH, lane
                )
            # The keys above the range of each warp, for all threads.
            leaf.keep_count(counts, count, warp, lane)
        cute.arch.sync_threads()
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
                    through = leaf.sum_bins(mine, hist, (rounds & 1) * BINS, sums, worker, warp, lane)
                    cute.arch.sync_threads()
                    leaf.pick_bin(state, mine, through, sums, need, end, span, False, worker, warp, lane)
                    cute.arch.sync_threads()
                    end, span, need, inside = leaf.read_state(state)
                    rounds = rounds + 1
                if inside > RANKED:
                    leaf.clear_run(equal, first, words, lane)
                    cute.arch.sync_threads()
                # After the rounds over the list: mark entries above the range; keep those in it from `target`
                # on where at most `ranked` are left to rank, else mark them as equal.
                leaf.sift(
                    entries, total, LISTED, above, equal, counts, counters, end, span, inside, RANKED, 0,
                    WARPS, words, worker, THREADS
                )
                ranked = Int32(LISTED)
                cute.arch.sync_threads()
            if inside <= RANKED:
                # Mark the `need` largest of at most 64 entries; of equal keys the lower position has the
                # larger entry.
                leaf.rank_entries(
                    entries, ranked, inside, need, above, counts, counters, 0, WARPS, words, warp, lane
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
        # Count each warp's marked columns in `sums`; `slot` is those of lower lanes, which have consecutive
        # words each.
        slot = leaf.count_marks(sums, above, first, words, warp, lane)
        cute.arch.sync_threads()
        # Positions of each warp's marked columns, ascending, behind those of lower warps and, by `slot`, of
        # lower lanes.
        leaf.place_marks(hist, slot, sums, above, first, words, base - start, warp, lane)
        cute.arch.sync_threads()
        # Write the ids of `k` positions.
        leaf.write_ids(
            indices, row, k, hist, block_table, max_pages, line, page_size, inverse, worker, THREADS
        )


@cute.kernel
def topk_selector__cutedsl_sm90a__g1_t512_r8_c1_s16(
    logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer,
    next_n: Int32, page_size: Int32, indices: cute.Pointer, rows: Int32, stride: Int32, b: Int32,
    max_pages: Int32, k: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    hist = shared.hist.data_ptr()
    entries = shared.entries.data_ptr()
    above = shared.above.data_ptr()
    equal = shared.equal.data_ptr()
    sums = shared.sums.data_ptr()
    counts = shared.counts.data_ptr()
    state = shared.state.data_ptr()
    counters = shared.counters.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    row, rank, _ = cute.arch.block_idx()
    row = cute.arch.make_warp_uniform(row)
    owner = warp
    select(
        logits, row_starts, row_ends, block_table, next_n, page_size, indices, stride, max_pages, k, hist,
        entries, above, equal, sums, counts, state, counters, row, owner, thread, warp, lane
    )


@cute.jit
def program(
    logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer,
    next_n: Int32, page_size: Int32, indices: cute.Pointer, rows: Int32, stride: Int32, b: Int32,
    max_pages: Int32, k: Int32
):
    kernel = topk_selector__cutedsl_sm90a__g1_t512_r8_c1_s16(
        logits, row_starts, row_ends, block_table, next_n, page_size, indices, rows, stride, b, max_pages, k
    )
    kernel.launch(
        grid=(1, 1, 1), block=(512, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=3,
        preferred_smem_carveout=100
    )
