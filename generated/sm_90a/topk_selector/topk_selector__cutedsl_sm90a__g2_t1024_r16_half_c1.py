"""topk_selector__cutedsl_sm90a__g2_t1024_r16_half_c1

Generated from templates/cutedsl/topk_selector.py.j2 by `make generate`: edit the template or the
declaration dsl_kernels/programs/topk_selector.py, not this file. Knobs: group=2, threads=1024, keep=16, digit=half, resident=1.

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
totals: 1024 threads, 189760 of 232448 bytes of shared memory, grid (rows, 2)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64, Uint32

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


@cute.kernel
def topk_selector__cutedsl_sm90a__g2_t1024_r16_half_c1(logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer, next_n: cutlass.Int32, page_size: cutlass.Int32, indices: cute.Pointer, rows: cutlass.Int32, stride: cutlass.Int32, b: cutlass.Int32, max_pages: cutlass.Int32, k: cutlass.Int32):
    thread, _, _ = cute.arch.thread_idx()
    row, rank, _ = cute.arch.block_idx()
    lane = thread & 31
    warp = cute.arch.make_warp_uniform(thread >> 5)
    smem = cutlass.memory.SmemAllocator()
    hist = smem.allocate_array(Int32, 4096, byte_alignment=16)
    entries = smem.allocate_array(Int64, 2112, byte_alignment=16)
    above = smem.allocate_array(Int32, 2560, byte_alignment=16)
    equal = smem.allocate_array(Int32, 2560, byte_alignment=16)
    coarse = smem.allocate_array(Int32, 128, byte_alignment=16)
    stash = smem.allocate_array(Int32, 32768, byte_alignment=16)
    pages = smem.allocate_array(Int32, 1024, byte_alignment=16)
    sums = smem.allocate_array(Int32, 32, byte_alignment=16)
    counts = smem.allocate_array(Int32, 32, byte_alignment=16)
    state = smem.allocate_array(Int32, 8, byte_alignment=16)
    counters = smem.allocate_array(Int32, 8, byte_alignment=16)
    bits = cute.make_rmem_tensor(cute.make_layout(16), Uint32)
    digits = cute.make_rmem_tensor(cute.make_layout(8), Uint32)
    scores = logits + row.to(Int64) * stride
    out = indices + row.to(Int64) * k

    # Each warp owns a run of neighbouring words of 32 columns and takes them in batches of 16, a column a lane.
    # A row that the group's registers can hold is laid out by its stride, so that its loads wait for nothing.
    owner = rank * 32 + warp
    held = stride <= 32768
    leaf.load_words(bits, scores, owner * 512 + lane, cutlass.select_(held, stride, 0))
    start = cutlass.max(row_starts[row], 0)
    last = cutlass.min(row_ends[row], stride)
    leaf.clear(hist, 4096, thread, 1024)
    if thread < 8:
        counters[thread] = Int32(0)
    cute.arch.cluster_arrive_relaxed()
    inverse = Uint32(0)
    line = Int64(0)
    if page_size > 0:
        inverse = Uint32(0xFFFFFFFF) // page_size.to(Uint32)
        line = (row.to(Uint32) // next_n.to(Uint32)).to(Int64) * max_pages
    table = block_table + line
    cute.arch.sync_threads()
    if last - start <= k:
        leaf.take_all(out, k, last - start, rank * 1024 + thread, 2048, table, page_size, inverse)
        cute.arch.cluster_wait()
    else:
        origin = Int32(0)
        run = Int32(16)
        if not held:
            origin = (start >> 5) << 5
            run = ((last - origin).to(Uint32) + 2047) // 2048
            run = run.to(Int32)
        batches = (run.to(Uint32) + 15) // 16
        batches = batches.to(Int32)
        base = origin + owner * run * 32
        limit = cutlass.min(stride, base + run * 32)
        lo = cutlass.max(start, base)
        hi = cutlass.min(last, limit)
        # The page-table entries that this CTA may need, one a thread: on their way while the keys are counted.
        first_page = Int32(0)
        near = page_size > 0
        entry = Int32(0)
        if page_size > 0:
            first = origin + rank * run * 1024
            first_page, _ = leaf.page_of(inverse, page_size, cutlass.max(first - start, 0))
            final, _ = leaf.page_of(inverse, page_size, cutlass.max(cutlass.min(last, first + run * 1024) - 1 - start, 0))
            near = final - first_page < 1024
            if thread <= final - first_page:
                entry = table[first_page + thread]
        for step in cutlass.range(batches, unroll=1):
            column = base + step * 512
            if (step > 0) | (not held):
                leaf.load_words(bits, scores, column + lane, limit)
            leaf.make_keys(bits, digits, column + lane, column, column + 512, lo, hi)
            if (column < hi) & (column + 512 > lo):
                leaf.count_first(hist, digits)
            if step < cutlass.min(2, batches - 1):
                leaf.stash(bits, stash + step * 16384, thread, 1024)
        leaf.settle_group(
            hist, hist, coarse, state, k, Int32(0), Uint32(0), Uint32(0), True, 2, rank, warp, 32, lane
        )
        end, span, need, inside = leaf.read_state(state)

        # More digits over the row while the undecided keys are too many to list.
        rounds = Int32(1)
        while (inside > 2048) & (span != 0):
            bins = hist + (rounds & 1) * leaf.BINS
            shift = leaf.digit_shift(span)
            for step in cutlass.range(batches, unroll=1):
                if batches > 1:
                    column = base + step * 512
                    if step < cutlass.min(2, batches - 1):
                        leaf.unstash(bits, stash + step * 16384, thread, 1024)
                    else:
                        leaf.load_words(bits, scores, column + lane, limit)
                        leaf.make_keys(bits, None, column + lane, column, column + 512, lo, hi)
                for j in cutlass.range_constexpr(16):
                    leaf.count_key(bins, bits[j], end, span, shift)
            leaf.settle_group(
                bins, hist + ((rounds + 1) & 1) * leaf.BINS, coarse + (rounds & 1) * 64, state, need, state[4], end, span, False, 2,
                rank, warp, 32, lane,
            )
            end, span, need, inside = leaf.read_state(state)
            rounds += 1
        # Keys of lower ranks above the range, and in it.
        lower = state[4]
        lower_in = state[5]

        # One pass marks what is above the range and lists what is in it, for all CTAs; the last batch is still held.
        listing = (inside > 0) & (inside <= 2048)
        count = Int32(0)
        for step in cutlass.range(batches, unroll=1):
            batch = batches - 1 - step
            if step > 0:
                column = base + batch * 512
                if batch < cutlass.min(2, batches - 1):
                    leaf.unstash(bits, stash + batch * 16384, thread, 1024)
                else:
                    leaf.load_words(bits, scores, column + lane, limit)
                    leaf.make_keys(bits, None, column + lane, column, column + 512, lo, hi)
            word = (warp * batches + batch) * 16
            count += leaf.collect(
                bits, above + word, equal + word, counters, entries + lower_in, end, span, listing, owner,
                batch * 512, lane,
            )
        count = leaf.warp_sum(count)
        if lane == 0:
            counts[warp] = count
        if page_size > 0:
            pages[thread] = entry
        cute.arch.sync_threads()
        # The last use of a peer's memory: nothing after this barrier reads or writes one.
        leaf.send_entries(entries + lower_in, counters[0], 2, rank, warp, 32, lane)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

        ties = cutlass.max(need - lower_in, 0)
        skip = lower + cutlass.min(lower_in, need)
        if listing:
            ranked = Int32(0)
            if inside > 64:
                total = inside
                while (inside > 64) & (span != 0):
                    bins = hist + (rounds & 1) * leaf.BINS
                    shift = leaf.digit_shift(span)
                    for i in cutlass.range(thread, total, 1024, unroll=1):
                        leaf.count_key(bins, leaf.entry_key(entries[i]), end, span, shift)
                    leaf.clear(hist + ((rounds + 1) & 1) * leaf.BINS, leaf.BINS, thread, 1024)
                    leaf.settle(bins, sums, state, need, end, span, False, thread, warp, 1024, lane)
                    end, span, need, inside = leaf.read_state(state)
                    rounds += 1
                if inside > 64:
                    for i in cutlass.range(lane, batches * 16, 32, unroll=1):
                        equal[warp * batches * 16 + i] = Int32(0)
                    cute.arch.sync_threads()
                for i in cutlass.range(thread, total, 1024, unroll=1):
                    leaf.sift(
                        entries, i, 2048, above, equal, counts, counters, end, span, inside, 64, rank, 32,
                        batches * 16,
                    )
                ranked = Int32(2048)
                cute.arch.sync_threads()
            if inside <= 64:
                leaf.rank_entries(
                    entries + ranked, inside, need, above, counts, counters, rank, 32, batches * 16, warp, lane
                )
            cute.arch.sync_threads()
            ties = Int32(0)
            if inside > 64:
                ties = cutlass.max(need - counters[leaf.LOWER_EQUAL], 0)
            skip = lower + counters[leaf.LOWER_ABOVE] + cutlass.min(counters[leaf.LOWER_EQUAL], need)
        if ties > 0:
            leaf.take_ties(
                above, equal, counts, sums, ties, warp * batches * 16, batches * 16, warp, 32, lane
            )
        before = Int32(0)
        if lane < warp:
            before = counts[lane]
        slot = skip + leaf.warp_sum(before)
        if k * 8 < last - start:
            leaf.emit_sparse(
                out, slot, above + warp * batches * 16, batches * 16, base - start, lane, table, page_size, inverse,
                pages, first_page, near,
            )
        else:
            for batch in cutlass.range(batches, unroll=1):
                slot = leaf.emit(
                    out, slot, above + (warp * batches + batch) * 16, base + batch * 512 - start + lane, lane,
                    table, page_size, inverse, pages, first_page, near, 16,
                )


@cute.jit
def program(logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer, next_n: cutlass.Int32, page_size: cutlass.Int32, indices: cute.Pointer, rows: cutlass.Int32, stride: cutlass.Int32, b: cutlass.Int32, max_pages: cutlass.Int32, k: cutlass.Int32):
    topk_selector__cutedsl_sm90a__g2_t1024_r16_half_c1(logits, row_starts, row_ends, block_table, next_n, page_size, indices, rows, stride, b, max_pages, k).launch(grid=(1, 1, 1), block=(1024, 1, 1), cluster=(1, 2, 1))
