"""topk_selector__tilelang_sm100a__g1_t512_r8_c1_opt1

Generated from dsl_kernels/kernels/topk_selector and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: group=1, threads=512, keep=8, resident=1, options=1.

roles
  select     threads 0..511  every warp owns a run of words of 32 columns
buffers
  hist       4096 int32, shared
  entries    2112 int64, shared
  above      2560 int32, shared
  equal      2560 int32, shared
  pages      512 int32, shared
  sums       32 int32, shared
  state      8 int32, shared
  counters   8 int32, shared
  keys       512x8 uint32, registers of select
  digits     512x4 uint32, registers of select
  mine       512x4 int32, registers of select
totals: 512 threads, 56000 of 232448 bytes of shared memory, grid (rows, 1)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import scalars, warps
from dsl_kernels.kernels.topk_selector import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

THREADS = 512  # threads per CTA
KEEP = 8  # keys that a thread keeps in registers; every pass reads longer rows again
QUAD = 4
BINS = 2048
HELD = 4096
WORD = 32
BATCH = 256
WARPS = 16
SIGN = -2147483648
LAST_LANE = 31
LISTED = 2048
OFFSET_BITS = 22
SPAN = 81920
RANKED = 64
MANY = 384
DENSE = 8


@T.macro
def clear_count_4096(words, thread):
    """Zero `count` words of shared memory, with stores of 16 bytes."""
    zero = T.alloc_local((QUAD,), "int32")
    zero[0] = 0
    zero[1] = 0
    zero[2] = 0
    zero[3] = 0
    for i in T.unroll(2):
        for part in T.vectorized(QUAD):
            words[(i * THREADS + thread) * QUAD + part] = zero[part]


@T.macro
def clear_count_8(words, thread):
    """Zero `count` words of shared memory, with stores of 16 bytes."""
    zero = T.alloc_local((QUAD,), "int32")
    zero[0] = 0
    zero[1] = 0
    zero[2] = 0
    zero[3] = 0
    if thread < 2:
        for part in T.vectorized(QUAD):
            words[(thread) * QUAD + part] = zero[part]


@T.macro
def page_row(inverse: T.Ref, line: T.Ref, row, next_n, page_size):
    """Set (2**32 - 1) // page_size and the row's line of the page table; zeros where there are no pages."""
    inverse = 0
    line = 0
    if page_size > 0:
        inverse = T.truncdiv(T.uint32(4294967295), T.cast(page_size, "uint32"))
        line = T.cast(T.truncdiv(T.cast(row, "uint32"), T.cast(next_n, "uint32")), "int32")


@T.macro
def load_words(bits, logits, row, column, limit, lane):
    """Load the bit patterns of each warp's columns from `column` on.

    A column at or past `limit` gives 0, unread.
    """
    own = column + lane
    left = limit - own
    for j in T.unroll(KEEP):
        bits[j] = scalars.load_below(logits[row, own + WORD * j], WORD * j, left)


@T.macro
def take_all_indices(indices, row, k, length, first, block_table, line, page_size, inverse, thread):
    """Write a row of at most `k` scores without reading them: every position from `first` on, then -1.

    The CTAs take slots in turn.
    """
    for slot in T.unroll(thread, k, THREADS, unroll_factor=1):
        id = T.alloc_var("int32", init=-1)
        if slot < length:
            id = first + slot
            if page_size > 0:
                page_position = id
                page_or_less = T.cast(warps.mul_hi(T.cast(page_position, "uint32"), inverse), "int32")
                page_rest = page_position - page_or_less * page_size
                page = T.if_then_else(page_rest >= page_size, page_or_less + 1, page_or_less)
                entry = T.alloc_var("int32", init=0)
                entry = block_table[line, page]
                id = entry * page_size + T.if_then_else(
                    page_rest >= page_size, page_rest - page_size, page_rest
                )
        indices[row, slot] = id


@T.macro
def take_all_positions(indices, row, k, length, first, thread):
    """Write a row of at most `k` scores without reading them: every position from `first` on, then -1.

    The CTAs take slots in turn.
    """
    for slot in T.unroll(thread, k, THREADS, unroll_factor=1):
        id = T.alloc_var("int32", init=-1)
        if slot < length:
            id = first + slot
        indices[row, slot] = id


@T.macro
def copy_all(values, logits, row, k, start, last, thread):
    """Write the scores of a row of at most `k` scores, then -inf. The CTAs take slots in turn."""
    own = T.alloc_var("int32", init=scalars.anew(row))
    nothing = T.alloc_var("uint32", init=4286578688)
    for slot in T.unroll(thread, k, THREADS, unroll_factor=1):
        score = T.alloc_var("float32", init=scalars.float_of(nothing))
        if slot < last - start:
            score = T.cast(logits[own, start + slot], "float32")
        values[own, slot] = score


@T.macro
def keep_row(state, line, shift, thread):
    """Store the row's page-table line and the shift from columns to positions, to free registers."""
    if thread == 0:
        state[6] = line
        state[7] = shift


@T.macro
def fetch_pages(
    first_page: T.Ref, entry: T.Ref, first, columns, start, last, block_table, line, page_size, inverse,
    thread
):
    """Fetch the page-table entries of columns [first, first + columns), one per thread from `first_page`
    on.

    `first_page` is -1 where there are more entries than threads.
    """
    first_page = 0
    entry = 0
    if page_size > 0:
        begin_position = T.max(first - start, 0)
        begin_or_less = T.cast(warps.mul_hi(T.cast(begin_position, "uint32"), inverse), "int32")
        begin_rest = begin_position - begin_or_less * page_size
        begin = T.if_then_else(begin_rest >= page_size, begin_or_less + 1, begin_or_less)
        first_page = begin
        end_position = T.max(T.min(last, first + columns) - 1 - start, 0)
        end_or_less = T.cast(warps.mul_hi(T.cast(end_position, "uint32"), inverse), "int32")
        end_rest = end_position - end_or_less * page_size
        end = T.if_then_else(end_rest >= page_size, end_or_less + 1, end_or_less)
        final = end - first_page
        if thread <= final:
            entry = block_table[line, first_page + thread]
        if final >= THREADS:
            first_page = -1


@T.macro
def make_keys_digits(bits, digits, column, lo, hi, lane):
    """Turn loaded bit patterns into keys in place, and pair up the first digits of keys if `digits` is
    given.

    Columns outside [lo, hi) get key 0 and the last bin, which no score has.
    """
    for j in T.unroll(KEEP // 2):
        low = scalars.bits_of(scalars.add_rn(scalars.float_of(bits[2 * j]), 0.0))
        high = scalars.bits_of(scalars.add_rn(scalars.float_of(bits[2 * j + 1]), 0.0))
        same = T.cast(low, "int32")
        bits[2 * j] = T.cast((same ^ (same >> 31 | SIGN)), "uint32")
        same = T.cast(high, "int32")
        bits[2 * j + 1] = T.cast((same ^ (same >> 31 | SIGN)), "uint32")
        pair = scalars.halves(scalars.float_of(low), scalars.float_of(high))
        digits[j] = pair ^ (~scalars.permute_bytes(pair, pair, 48025) & T.uint32(2147450879))
    if (column < lo) | (column + WORD * KEEP > hi):
        own = column + lane
        for j in T.unroll(KEEP // 2):
            if (own + 2 * WORD * j < lo) | (own + 2 * WORD * j >= hi):
                bits[2 * j] = 0
                digits[j] = digits[j] | T.uint32(65535)
            if (own + (2 * WORD * j + WORD) < lo) | (own + (2 * WORD * j + WORD) >= hi):
                bits[2 * j + 1] = 0
                digits[j] = digits[j] | T.uint32(4294901760)


@T.macro
def count_first(hist, digits, column, lo, hi):
    """Count the first digits of a batch that has columns of the row."""
    if (column < hi) & (column + 2 * WORD * (KEEP // 2) > lo):
        for j in T.unroll(KEEP // 2):
            warps.atomic_add(hist[T.cast((digits[j] >> T.uint32(5) & T.uint32(BINS - 1)), "int32")], 1)
            warps.atomic_add(hist[T.cast((digits[j] >> T.uint32(21)), "int32")], 1)


@T.macro
def sum_bins_first_0(mine, through: T.Ref, hist, sums, thread, warp, lane):
    """Each thread reads its bins.

    `through` is the warp's sum up to these bins, and `sums` gets each warp's total.
    """
    for part in T.vectorized(BINS // THREADS):
        mine[part] = hist[(thread) * BINS // THREADS + part]
    through = warps.scan(mine[0] + mine[1] + mine[2] + mine[3])
    if lane == LAST_LANE:
        sums[warp] = through


@T.macro
def pick_bin_half(state, mine, through, sums, need, thread, warp, lane):
    """The thread with the `need`-th key from the top writes the range of that key's bin to `state`.

    `half`: the bins are those of the first digit.
    """
    own = mine[0] + mine[1] + mine[2] + mine[3]
    other = T.alloc_var("int32", init=0)
    if lane < warp:
        other = sums[lane]
    left = need - (through - own + warps.warp_sum(other))
    if (left > 0) & (left <= own):
        digit = T.alloc_var("int32", init=thread * (BINS // THREADS))
        inside = T.alloc_var("int32", init=mine[0])
        before = T.alloc_var("int32", init=0)
        if mine[0] < left:
            digit = thread * (BINS // THREADS) + 1
            inside = mine[1]
            before = mine[0]
        upto_2 = mine[0] + mine[1]
        if upto_2 < left:
            digit = thread * (BINS // THREADS) + 2
            inside = mine[2]
            before = upto_2
        upto_3 = upto_2 + mine[2]
        if upto_3 < left:
            digit = thread * (BINS // THREADS) + 3
            inside = mine[3]
            before = upto_3
        wanted = T.alloc_var("int32", init=left - before)
        top = T.alloc_var("uint32", init=4294967295)
        if digit > 0:
            upper_bin = BINS - digit - BINS // 2
            upper_sign = T.cast((upper_bin >> 31), "uint32")
            top = (
                scalars.bits_of(scalars.float_of_half(T.max(upper_bin, 0 - upper_bin) << 5)) ^ upper_sign
            ) - upper_sign + T.uint32(2147483648) - T.uint32(1)
        lower_bin = BINS - 1 - digit - BINS // 2
        lower_sign = T.cast((lower_bin >> 31), "uint32")
        width = T.alloc_var(
            "uint32",
            init=top - (
                (
                    scalars.bits_of(scalars.float_of_half(T.max(lower_bin, 0 - lower_bin) << 5)) ^ lower_sign
                ) - lower_sign + T.uint32(2147483648)
            )
        )
        if wanted == inside:
            top = top - width - T.uint32(1)
            width = 0
            wanted = 0
            inside = 0
        words = T.alloc_local((4,), "int32")
        words[0] = T.cast(top, "int32")
        words[1] = T.cast(width, "int32")
        words[2] = wanted
        words[3] = inside
        for part in T.vectorized(4):
            state[(0) * 4 + part] = words[part]


@T.macro
def read_state(end: T.Ref, span: T.Ref, need: T.Ref, inside: T.Ref, state):
    """Read the undecided range of the last round: end, span, keys needed of it and keys in it."""
    words = T.alloc_local((4,), "int32")
    for part in T.vectorized(4):
        words[part] = state[(0) * 4 + part]
    end = T.cast(words[0], "uint32")
    span = T.cast(words[1], "uint32")
    need = T.cast(words[2], "int32")
    inside = T.cast(words[3], "int32")


@T.macro
def keep_entry(pages, entry, thread):
    """Share the threads' page-table entries with all threads."""
    pages[thread] = entry


@T.macro
def make_keys(bits, column, lo, hi, lane):
    """Turn loaded bit patterns into keys in place, and pair up the first digits of keys if `digits` is
    given.

    Columns outside [lo, hi) get key 0 and the last bin, which no score has.
    """
    for j in T.unroll(KEEP // 2):
        low = scalars.bits_of(scalars.add_rn(scalars.float_of(bits[2 * j]), 0.0))
        high = scalars.bits_of(scalars.add_rn(scalars.float_of(bits[2 * j + 1]), 0.0))
        same = T.cast(low, "int32")
        bits[2 * j] = T.cast((same ^ (same >> 31 | SIGN)), "uint32")
        same = T.cast(high, "int32")
        bits[2 * j + 1] = T.cast((same ^ (same >> 31 | SIGN)), "uint32")
    if (column < lo) | (column + WORD * KEEP > hi):
        own = column + lane
        for j in T.unroll(KEEP // 2):
            if (own + 2 * WORD * j < lo) | (own + 2 * WORD * j >= hi):
                bits[2 * j] = 0
            if (own + (2 * WORD * j + WORD) < lo) | (own + (2 * WORD * j + WORD) >= hi):
                bits[2 * j + 1] = 0


@T.macro
def count_keys(hist, first, bits, end, span):
    """Count the next digit of the undecided keys of a batch, in the bins from `first` on."""
    shift = T.cast(T.max(32 - warps.clz(span) - 11, 0), "uint32")
    for j in T.unroll(KEEP):
        below = end - bits[j]
        warps.count_where(hist[first + T.cast((below >> shift), "int32")], warps.at_most(below, span))


@T.macro
def clear_count_2048(words, first, thread):
    """Zero `count` words of shared memory, with stores of 16 bytes."""
    zero = T.alloc_local((QUAD,), "int32")
    zero[0] = 0
    zero[1] = 0
    zero[2] = 0
    zero[3] = 0
    for i in T.unroll(1):
        for part in T.vectorized(QUAD):
            words[(T.truncdiv(first, QUAD) + i * THREADS + thread) * QUAD + part] = zero[part]


@T.macro
def sum_bins(mine, through: T.Ref, hist, first, sums, thread, warp, lane):
    """Each thread reads its bins.

    `through` is the warp's sum up to these bins, and `sums` gets each warp's total.
    """
    for part in T.vectorized(BINS // THREADS):
        mine[part] = hist[(T.truncdiv(first, BINS // THREADS) + thread) * BINS // THREADS + part]
    through = warps.scan(mine[0] + mine[1] + mine[2] + mine[3])
    if lane == LAST_LANE:
        sums[warp] = through


@T.macro
def pick_bin(state, mine, through, sums, need, end, span, thread, warp, lane):
    """The thread with the `need`-th key from the top writes the range of that key's bin to `state`.

    `half`: the bins are those of the first digit.
    """
    own = mine[0] + mine[1] + mine[2] + mine[3]
    other = T.alloc_var("int32", init=0)
    if lane < warp:
        other = sums[lane]
    left = need - (through - own + warps.warp_sum(other))
    if (left > 0) & (left <= own):
        digit = T.alloc_var("int32", init=thread * (BINS // THREADS))
        inside = T.alloc_var("int32", init=mine[0])
        before = T.alloc_var("int32", init=0)
        if mine[0] < left:
            digit = thread * (BINS // THREADS) + 1
            inside = mine[1]
            before = mine[0]
        upto_2 = mine[0] + mine[1]
        if upto_2 < left:
            digit = thread * (BINS // THREADS) + 2
            inside = mine[2]
            before = upto_2
        upto_3 = upto_2 + mine[2]
        if upto_3 < left:
            digit = thread * (BINS // THREADS) + 3
            inside = mine[3]
            before = upto_3
        wanted = T.alloc_var("int32", init=left - before)
        shift = T.cast(T.max(32 - warps.clz(span) - 11, 0), "uint32")
        below = T.cast(digit, "uint32") << shift
        top = T.alloc_var("uint32", init=end - below)
        width = T.alloc_var("uint32", init=T.min(span - below, (T.uint32(1) << shift) - T.uint32(1)))
        if wanted == inside:
            top = top - width - T.uint32(1)
            width = 0
            wanted = 0
            inside = 0
        words = T.alloc_local((4,), "int32")
        words[0] = T.cast(top, "int32")
        words[1] = T.cast(width, "int32")
        words[2] = wanted
        words[3] = inside
        for part in T.vectorized(4):
            state[(0) * 4 + part] = words[part]


@T.macro
def collect(bits, above, equal, word, counters, entries, first, end, span, listing, owner, offset, lane):
    """Mark a batch's keys above the range, in words of the bitmap from `word` on. List the keys in the
    range.

    The list begins with entry `first`. A warp takes its entries with one atomic. Without `listing`,
    keys in the range are marked in `equal`.
    """
    words = T.alloc_local((KEEP,), "int32")
    for j in T.unroll(KEEP):
        words[j] = warps.ballot(warps.below(end, bits[j]))
    if lane == 0:
        for j in T.unroll(KEEP):
            above[word + j] = words[j]
    if listing:
        left = T.alloc_var("int32", init=0)
        for j in T.unroll(KEEP):
            left = left | T.if_then_else(warps.at_most(end - bits[j], span), 1 << j, 0)
        if warps.any_lane(left != 0):
            slot = T.alloc_var("int32", init=warps.scan(warps.popc(left)))
            room = T.alloc_var("int32", init=0)
            if lane == LAST_LANE:
                room = warps.fetch_add(counters[0], slot)
            slot = slot + warps.shuffle(room, LAST_LANE)
            place = T.alloc_var("int32", init=~(owner << OFFSET_BITS | offset + lane))
            for j in T.unroll(KEEP):
                if warps.at_most(end - bits[j], span):
                    slot = slot - 1
                    entries[first + slot] = warps.make_pair(bits[j], place - WORD * j)
    else:
        words = T.alloc_local((KEEP,), "int32")
        for j in T.unroll(KEEP):
            words[j] = warps.ballot(warps.at_most(end - bits[j], span))
        if lane == 0:
            for j in T.unroll(KEEP):
                equal[word + j] = words[j]


@T.macro
def bound_listed(entries, total, counters, end, span, thread, lane):
    """Note the largest and the smallest undecided key of the first `total` list entries."""
    largest = T.alloc_var("uint32", init=0)
    under = T.alloc_var("uint32", init=0)
    for i in T.unroll(thread, total, THREADS, unroll_factor=1):
        key = T.cast(warps.pair_high(entries[i]), "uint32")
        if warps.at_most(end - key, span):
            largest = T.max(largest, key)
            under = T.max(under, ~key)
    upper = warps.warp_most(largest)
    lower = warps.warp_most(under)
    if lane == 0:
        warps.raise_to(counters[5], upper)
        warps.raise_to(counters[6], lower)


@T.macro
def read_bounded(end: T.Ref, span: T.Ref, counters):
    """Narrow the range to the undecided keys, from the smallest to the largest.

    It is one key where all are equal.
    """
    bottom = T.max(end - span, ~T.cast(counters[6], "uint32"))
    end = T.min(end, T.cast(counters[5], "uint32"))
    span = end - bottom


@T.macro
def count_listed(hist, first, entries, total, end, span, thread):
    """Count the next digit of the undecided keys among the first `total` list entries."""
    shift = T.cast(T.max(32 - warps.clz(span) - 11, 0), "uint32")
    for i in T.unroll(thread, total, THREADS, unroll_factor=1):
        below = end - T.cast(warps.pair_high(entries[i]), "uint32")
        warps.count_where(hist[first + T.cast((below >> shift), "int32")], warps.at_most(below, span))


@T.macro
def clear_count_2560(words, thread):
    """Zero `count` words of shared memory, with stores of 16 bytes."""
    zero = T.alloc_local((QUAD,), "int32")
    zero[0] = 0
    zero[1] = 0
    zero[2] = 0
    zero[3] = 0
    for i in T.unroll(1):
        for part in T.vectorized(QUAD):
            words[(i * THREADS + thread) * QUAD + part] = zero[part]
    if thread < 128:
        for part in T.vectorized(QUAD):
            words[(THREADS + thread) * QUAD + part] = zero[part]


@T.macro
def sift(entries, total, above, equal, counters, end, span, inside, words, thread):
    """After the rounds over the list, mark entries above the range.

    If at most `ranked` entries are in the range, copy these to the list from `target` on. Otherwise
    mark them as equal.
    """
    for i in T.unroll(thread, total, THREADS, unroll_factor=1):
        entry = entries[i]
        key = T.cast(warps.pair_high(entry), "uint32")
        if warps.below(end, key):
            place = ~warps.pair_low(entry)
            offset = place & 4194303
            owner = place >> OFFSET_BITS
            if owner < 0:
                warps.atomic_add(counters[2], 1)
            if (owner >= 0) & (owner < WARPS):
                warps.set_bits(above[(owner * words + (offset >> 5))], 1 << (offset & 31))
        if (warps.at_most(end - key, span)) & (inside > 0):
            if inside > RANKED:
                place = ~warps.pair_low(entry)
                offset = place & 4194303
                owner = place >> OFFSET_BITS
                if owner < 0:
                    warps.atomic_add(counters[3], 1)
                if (owner >= 0) & (owner < WARPS):
                    warps.set_bits(equal[(owner * words + (offset >> 5))], 1 << (offset & 31))
            else:
                slot = T.alloc_var("int32", init=0)
                slot = warps.fetch_add(counters[1], 1)
                entries[LISTED + slot] = entry


@T.macro
def rank_entries(entries, first, count, need, above, counters, words, ties_higher, warp, lane):
    """Mark the `need` largest of at most 64 entries.

    A warp ranks an entry, and each lane compares it with two others.
    """
    low = T.alloc_var("int64", init=0)
    high = T.alloc_var("int64", init=0)
    if lane < count:
        low = warps.make_pair(
            T.cast(warps.pair_high(entries[first + lane]), "uint32"),
            warps.pair_low(entries[first + lane]) ^ 0 - ties_higher
        )
    if lane + WORD < count:
        high = warps.make_pair(
            T.cast(warps.pair_high(entries[first + (lane + WORD)]), "uint32"),
            warps.pair_low(entries[first + (lane + WORD)]) ^ 0 - ties_higher
        )
    for i in T.unroll(warp, count, WARPS, unroll_factor=1):
        entry = entries[first + i]
        ahead = warps.popc(
            warps.ballot(
                warps.unsigned_above(
                    low,
                    warps.make_pair(
                        T.cast(warps.pair_high(entry), "uint32"), warps.pair_low(entry) ^ 0 - ties_higher
                    )
                )
            )
        ) + warps.popc(
            warps.ballot(
                warps.unsigned_above(
                    high,
                    warps.make_pair(
                        T.cast(warps.pair_high(entry), "uint32"), warps.pair_low(entry) ^ 0 - ties_higher
                    )
                )
            )
        )
        if (ahead < need) & (lane == 0):
            place = ~warps.pair_low(entry)
            offset = place & 4194303
            owner = place >> OFFSET_BITS
            if owner < 0:
                warps.atomic_add(counters[2], 1)
            if (owner >= 0) & (owner < WARPS):
                warps.set_bits(above[(owner * words + (offset >> 5))], 1 << (offset & 31))


@T.macro
def count_marks(before: T.Ref, bitmap, sums, first, words, warp, lane):
    """Count each warp's marked columns in `sums`. `before` counts those of lower lanes.

    A lane has consecutive words.
    """
    own = T.alloc_var("int32", init=0)
    each = leaf.ceildiv(words, WORD)
    begin = lane * each
    final = T.min(begin + each, words)
    for i in T.unroll(begin, final, 1, unroll_factor=1):
        own = own + warps.popc(bitmap[first + i])
    through = warps.scan(own)
    if lane == LAST_LANE:
        sums[warp] = through
    before = through - own


@T.macro
def take_last_ties(before, above, equal, sums, take, rest, first, words, warp, lane):
    """Select the last `take` of the `rest` columns marked as equal in this CTA and higher ranks."""
    each = leaf.ceildiv(words, WORD)
    begin = lane * each
    final = T.min(begin + each, words)
    other = T.alloc_var("int32", init=0)
    if lane < warp:
        other = sums[lane]
    left = T.alloc_var("int32", init=rest - take - warps.warp_sum(other) - before)
    for i in T.unroll(begin, final, 1, unroll_factor=1):
        word = T.alloc_var("int32", init=equal[first + i])
        found = warps.popc(word)
        for _ in T.unroll(0, T.min(left, found), 1, unroll_factor=1):
            word = word & word - 1
        above[first + i] = above[first + i] | word
        left = left - found


@T.macro
def take_ties(before, above, equal, sums, take, first, words, warp, lane):
    """Select the first `take` columns marked as equal, in order of position."""
    each = leaf.ceildiv(words, WORD)
    begin = lane * each
    final = T.min(begin + each, words)
    other = T.alloc_var("int32", init=0)
    if lane < warp:
        other = sums[lane]
    left = T.alloc_var("int32", init=take - warps.warp_sum(other) - before)
    for i in T.unroll(begin, final, 1, unroll_factor=1):
        word = T.alloc_var("int32", init=equal[first + i])
        found = warps.popc(word)
        if left > 0:
            for bit in T.unroll(left, found, 1, unroll_factor=1):
                word = word ^ 1 << (LAST_LANE - warps.clz(word))
            above[first + i] = above[first + i] | word
        left = left - found


@T.macro
def place_marks(placed, before, sums, above, first, words, position, dense, warp, lane):
    """Write the positions of each warp's marked columns, ascending, after those of lower warps and lanes.

    A warp goes through `dense` bitmaps, with at most one word per lane, a word at a time. `dense` is 0
    where bitmaps never are dense.
    """
    other = T.alloc_var("int32", init=0)
    if lane < warp:
        other = sums[lane]
    place = T.alloc_var("int32", init=before + warps.warp_sum(other))
    if dense:
        below = (1 << lane) - 1
        marks = T.alloc_local((KEEP,), "int32")
        for base in T.unroll(0, words, KEEP, unroll_factor=1):
            for j in T.unroll(KEEP):
                marks[j] = above[first + (base + j)]
            for j in T.unroll(KEEP):
                slot = warps.shuffle(place, base + j) + warps.popc(marks[j] & below)
                if marks[j] >> lane & 1 != 0:
                    placed[slot] = position + (base + j) * WORD + lane
    else:
        each = leaf.ceildiv(words, WORD)
        begin = lane * each
        final = T.min(begin + each, words)
        for i in T.unroll(begin, final, 1, unroll_factor=1):
            word = T.alloc_var("int32", init=above[first + i])
            while word != 0:
                lowest = word & 0 - word
                number = LAST_LANE - warps.clz(lowest)
                placed[place] = position + i * WORD + number
                place = place + 1
                word = word ^ lowest


@T.macro
def write_ids(
    indices, row, k, skip, placed, block_table, line, page_size, inverse, pages, first_page, thread
):
    """Write the ids of this CTA's positions from slot `skip` on.

    In a group, `sums` gives the number of positions; a lone CTA has `k`. `pages` holds the page-table
    entries from `first_page` on, unless `first_page` is -1.
    """
    for slot in T.unroll(thread, k, THREADS, unroll_factor=4):
        id = T.alloc_var("int32", init=0)
        id = placed[slot]
        if page_size > 0:
            page_position = id
            page_or_less = T.cast(warps.mul_hi(T.cast(page_position, "uint32"), inverse), "int32")
            page_rest = page_position - page_or_less * page_size
            page = T.if_then_else(page_rest >= page_size, page_or_less + 1, page_or_less)
            entry = T.alloc_var("int32", init=0)
            if first_page >= 0:
                entry = pages[page - first_page]
            else:
                entry = block_table[line, page]
            id = entry * page_size + T.if_then_else(page_rest >= page_size, page_rest - page_size, page_rest)
        indices[row, skip + slot] = id


@T.macro
def write_positions(positions, row, k, skip, placed, thread):
    """Write this CTA's positions, in the slots of `write_ids`."""
    for slot in T.unroll(thread, k, THREADS, unroll_factor=1):
        positions[scalars.anew(row), skip + slot] = placed[slot]


@T.macro
def write_values(values, logits, row, k, skip, placed, first, thread):
    """Write the scores of this CTA's positions, in the slots of `write_ids`. Position 0 is column `first`."""
    own = T.alloc_var("int32", init=scalars.anew(row))
    for slot in T.unroll(thread, k, THREADS, unroll_factor=1):
        score = T.alloc_var("float32", init=T.cast(logits[own, first + placed[slot]], "float32"))
        values[own, skip + slot] = score


@T.macro
def select(
    logits, row_starts, row_ends, block_table, next_n, page_size, absolute, indices, row_to_sequence, offsets,
    ties_higher, has_sequences, has_offsets, has_values, has_positions, values, positions, stride, k, hist,
    entries, above, equal, pages, sums, state, counters, row, owner, thread, warp, lane
):
    """Every warp owns a run of words of 32 columns."""
    keys = T.alloc_local((KEEP,), "uint32")
    digits = T.alloc_local((KEEP // 2,), "uint32")
    mine = T.alloc_local((BINS // THREADS,), "int32")
    worker = thread
    clear_count_4096(hist, worker)
    clear_count_8(counters, worker)
    inverse = T.alloc_var("uint32", init=0)
    line = T.alloc_var("int32", init=0)
    page_row(inverse, line, row, next_n, page_size)
    # A launch of TileLang starts when the kernel before it has ended.
    fits = T.alloc_var("int32", init=0)
    if stride <= HELD:
        fits = stride
    load_words(keys, logits, row, owner * BATCH, fits, lane)
    start = T.max(row_starts[row], 0)
    last = T.min(row_ends[row], stride)
    if has_sequences != 0:
        line = row_to_sequence[row]
    number = T.alloc_var("int32", init=start * absolute)
    if has_offsets != 0:
        number = number + offsets[row]
    T.sync_threads()
    if last - start <= k:
        take_all_indices(indices, row, k, last - start, number, block_table, line, page_size, inverse, worker)
        if has_positions != 0:
            take_all_positions(positions, row, k, last - start, number, worker)
        if has_values != 0:
            copy_all(values, logits, row, k, start, last, worker)
    else:
        keep_row(state, line, number - start, worker)
        origin = T.alloc_var("int32", init=0)
        run = T.alloc_var("int32", init=KEEP)
        if stride > HELD:
            origin = start >> 5 << 5
            run = leaf.ceildiv(last - origin, WORD * WARPS)
        batches = leaf.ceildiv(run, KEEP)
        words = batches * KEEP
        base = origin + owner * run * WORD
        hi = T.min(last, base + run * WORD)
        # The page-table entries for this CTA, one per thread, are in flight while it counts keys.
        first_page = T.alloc_var("int32", init=0)
        entry = T.alloc_var("int32", init=0)
        fetch_pages(
            first_page, entry, origin, run * (WORD * WARPS), start, last, block_table, line, page_size,
            inverse, worker
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
                load_words(keys, logits, row, column, hi, lane)
            make_keys_digits(keys, digits, column, start, hi, lane)
            count_first(hist, digits, column, start, hi)
        T.sync_threads()
        sum_bins_first_0(mine, through, hist, sums, worker, warp, lane)
        T.sync_threads()
        pick_bin_half(state, mine, through, sums, need, worker, warp, lane)
        T.sync_threads()
        read_state(end, span, need, inside, state)
        rounds = rounds + 1
        # By now the page-table entries have arrived.
        if page_size > 0:
            keep_entry(pages, entry, worker)
        # Count more digits over the row while the undecided keys are too many to list.
        while (inside > LISTED) & (span != 0):
            for step in T.serial(batches):
                if batches > 1:
                    column = base + step * BATCH
                    load_words(keys, logits, row, column, hi, lane)
                    make_keys(keys, column, start, hi, lane)
                count_keys(hist, (rounds & 1) * BINS, keys, end, span)
            clear_count_2048(hist, (rounds + 1 & 1) * BINS, worker)
            T.sync_threads()
            sum_bins(mine, through, hist, (rounds & 1) * BINS, sums, worker, warp, lane)
            T.sync_threads()
            pick_bin(state, mine, through, sums, need, end, span, worker, warp, lane)
            T.sync_threads()
            read_state(end, span, need, inside, state)
            rounds = rounds + 1
        # One pass marks keys above the range and lists keys in it; registers hold the last batch.
        listing = (inside > 0) & (inside <= LISTED)
        for step in T.serial(batches):
            batch = batches - 1 - step
            if step > 0:
                column = base + batch * BATCH
                load_words(keys, logits, row, column, hi, lane)
                make_keys(keys, column, start, hi, lane)
            collect(
                keys, above, equal, (warp * batches + batch) * KEEP, counters, entries, within, end, span,
                listing, owner, batch * BATCH, lane
            )
        T.sync_threads()
        first = warp * words
        ties = T.alloc_var("int32", init=T.max(need - within * (1 - ties_higher), 0))
        taken = T.alloc_var("int32", init=T.min(within, need))
        if ties_higher != 0:
            taken = T.max(within - (inside - need), 0)
        skip = T.alloc_var("int32", init=lower + taken)
        rest = T.alloc_var("int32", init=inside - within)
        if listing:
            ranked = T.alloc_var("int32", init=0)
            if inside > RANKED:
                total = T.alloc_var("int32", init=inside)
                if inside > MANY:
                    bound_listed(entries, total, counters, end, span, worker, lane)
                    T.sync_threads()
                    read_bounded(end, span, counters)
                while (inside > RANKED) & (span != 0):
                    count_listed(hist, (rounds & 1) * BINS, entries, total, end, span, worker)
                    clear_count_2048(hist, (rounds + 1 & 1) * BINS, worker)
                    T.sync_threads()
                    sum_bins(mine, through, hist, (rounds & 1) * BINS, sums, worker, warp, lane)
                    T.sync_threads()
                    pick_bin(state, mine, through, sums, need, end, span, worker, warp, lane)
                    T.sync_threads()
                    read_state(end, span, need, inside, state)
                    if inside > RANKED:
                        bound_listed(entries, total, counters, end, span, worker, lane)
                        T.sync_threads()
                        read_bounded(end, span, counters)
                    rounds = rounds + 1
                if inside > RANKED:
                    clear_count_2560(equal, worker)
                    T.sync_threads()
                sift(entries, total, above, equal, counters, end, span, inside, words, worker)
                ranked = LISTED
                T.sync_threads()
            if inside <= RANKED:
                rank_entries(entries, ranked, inside, need, above, counters, words, ties_higher, warp, lane)
            T.sync_threads()
            # Lower ranks also select keys of the list, and take equal keys.
            lower_equal = counters[3]
            ties = 0
            if inside > RANKED:
                ties = T.max(need - lower_equal * (1 - ties_higher), 0)
                rest = inside - lower_equal
            taken = T.alloc_var("int32", init=T.min(lower_equal, need))
            if ties_higher != 0:
                taken = T.max(lower_equal - (inside - need), 0)
            skip = lower + counters[2] + taken
        before = T.alloc_var("int32", init=0)
        if ties > 0:
            count_marks(before, equal, sums, first, words, warp, lane)
            T.sync_threads()
            if ties_higher != 0:
                take_last_ties(before, above, equal, sums, ties, rest, first, words, warp, lane)
            else:
                take_ties(before, above, equal, sums, ties, first, words, warp, lane)
            T.sync_threads()
        count_marks(before, above, sums, first, words, warp, lane)
        T.sync_threads()
        position = base + state[7]
        dense = (last - start <= k * DENSE) & (words <= WORD)
        place_marks(hist, before, sums, above, first, words, position, dense, warp, lane)
        T.sync_threads()
        write_ids(
            indices, row, k, skip, hist, block_table, state[6], page_size, inverse, pages, first_page, worker
        )
        if has_positions != 0:
            write_positions(positions, row, k, skip, hist, worker)
        if has_values != 0:
            write_values(values, logits, row, k, skip, hist, 0 - state[7], worker)


def program():
    rows = T.dynamic("rows")
    stride = T.dynamic("stride")
    logits_stride = T.dynamic("logits_stride")
    b = T.dynamic("b")
    max_pages = T.dynamic("max_pages")
    block_table_stride = T.dynamic("block_table_stride")
    k = T.dynamic("k")
    indices_stride = T.dynamic("indices_stride")
    mapped_rows = T.dynamic("mapped_rows")
    offset_rows = T.dynamic("offset_rows")
    value_rows = T.dynamic("value_rows")
    value_columns = T.dynamic("value_columns")
    values_stride = T.dynamic("values_stride")
    position_rows = T.dynamic("position_rows")
    position_columns = T.dynamic("position_columns")
    positions_stride = T.dynamic("positions_stride")

    @T.prim_func
    def topk_selector__tilelang_sm100a__g1_t512_r8_c1_opt1(
        logits: T.StridedTensor((rows, stride), (logits_stride, 1), "float32"),
        row_starts: T.Tensor((rows,), "int32"),
        row_ends: T.Tensor((rows,), "int32"),
        block_table: T.StridedTensor((b, max_pages), (block_table_stride, 1), "int32"),
        next_n: T.int32,
        page_size: T.int32,
        absolute: T.int32,
        indices: T.StridedTensor((rows, k), (indices_stride, 1), "int32"),
        row_to_sequence: T.Tensor((mapped_rows,), "int32"),
        offsets: T.Tensor((offset_rows,), "int32"),
        ties_higher: T.int32,
        has_sequences: T.int32,
        has_offsets: T.int32,
        has_values: T.int32,
        has_positions: T.int32,
        values: T.StridedTensor((value_rows, value_columns), (values_stride, 1), "float32"),
        positions: T.StridedTensor((position_rows, position_columns), (positions_stride, 1), "int32"),
    ):
        with T.Kernel(rows, 1, threads=512) as (row, rank):
            T.annotate_min_blocks_per_sm(2)
            T.import_source(warps.SOURCE + scalars.SOURCE)
            hist = T.alloc_shared((2 * BINS,), "int32")
            entries = T.alloc_shared((LISTED + RANKED,), "int64")
            above = T.alloc_shared((SPAN // WORD,), "int32")
            equal = T.alloc_shared((SPAN // WORD,), "int32")
            pages = T.alloc_shared((THREADS,), "int32")
            sums = T.alloc_shared((32,), "int32")
            state = T.alloc_shared((8,), "int32")
            counters = T.alloc_shared((8,), "int32")

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32
            owner = warp
            select(
                logits, row_starts, row_ends, block_table, next_n, page_size, absolute, indices,
                row_to_sequence, offsets, ties_higher, has_sequences, has_offsets, has_values, has_positions,
                values, positions, stride, k, hist, entries, above, equal, pages, sums, state, counters, row,
                owner, thread, warp, lane
            )

    return topk_selector__tilelang_sm100a__g1_t512_r8_c1_opt1
