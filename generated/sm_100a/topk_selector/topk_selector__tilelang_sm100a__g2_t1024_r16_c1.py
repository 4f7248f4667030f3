"""topk_selector__tilelang_sm100a__g2_t1024_r16_c1

Generated from dsl_kernels/kernels/topk_selector and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
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
  state      8 int32, shared
  counters   8 int32, shared
  keys       1024x16 uint32, registers of select
  digits     1024x8 uint32, registers of select
  mine       1024x2 int32, registers of select
totals: 1024 threads, 189632 of 232448 bytes of shared memory, grid (rows, 2)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import grid, scalars, symbols, warps
from dsl_kernels.kernels.topk_selector import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

GROUP = 2  # CTAs per row, one cluster
THREADS = 1024  # threads per CTA
KEEP = 16  # keys that a thread keeps in registers; every pass reads longer rows again
WARPS = 32
QUAD = 4
BINS = 2048
HELD = 32768
WORD = 32
BATCH = 512
SIGN = -2147483648
CLOSE = 67108864
STASHED = 2
COARSE = 32
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
    for i in T.unroll(1):
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
def load_few(few: T.Ref, logits, row, stride, lane):
    """Load the bit patterns of 32 columns, one per lane, in four places of the row.

    The row's bounds do not count.
    """
    column = (lane >> 3) * (stride >> 5 << 3) + (lane & 7)
    few = scalars.load_below(logits[row, column], column, stride)


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
def take_all(indices, row, k, length, first, rank, block_table, line, page_size, inverse, thread):
    """Write a row of at most `k` scores without reading them: every position from `first` on, then -1.

    The CTAs take slots in turn.
    """
    for slot in T.unroll(rank * THREADS + thread, k, GROUP * THREADS, unroll_factor=1):
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
def guess_digits(near: T.Ref, grain: T.Ref, few):
    """Where 32 scores of a row are close together, set `near`, the key where first digits begin.

    Otherwise `near` is 0. The first digit is the distance below `near`, from bit `grain` on. `near` is
    as far above the largest of the 32 keys as that key is above the smallest, and one above it if all
    are equal.
    """
    same = T.cast(scalars.bits_of(scalars.add_rn(scalars.float_of(few), 0.0)), "int32")
    key = T.cast((same ^ (same >> 31 | SIGN)), "uint32")
    highest = warps.warp_most(key)
    spread = highest - ~warps.warp_most(~key)
    near = 0
    if warps.below(spread, T.uint32(CLOSE)):
        near = highest + T.min(T.max(spread, T.uint32(1)), ~highest)
    grain = T.cast(T.max(32 - warps.clz(T.uint32(2) * spread) - 11, 0), "uint32")


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
def count_near(hist, bits, near, grain, column, lo, hi):
    """Count the first digits, from `near` down, of a batch of keys that has columns of the row.

    Columns outside the row go to the last bin, as in make_keys.
    """
    if (column < hi) & (column + WORD * KEEP > lo):
        for j in T.unroll(KEEP):
            below = near - T.min(near, bits[j]) >> grain
            warps.atomic_add(
                hist[
                    T.cast(
                        T.if_then_else(
                            bits[j] != T.uint32(0), T.min(below, T.uint32(BINS - 2)), T.uint32(BINS - 1)
                        ),
                        "int32"
                    )
                ],
                1
            )


@T.macro
def stash_keys(bits, stash, number, thread):
    """Keep a batch of keys in shared memory, or take it `back`."""
    for j in T.unroll(KEEP):
        stash[number * (KEEP * THREADS) + j * THREADS + thread] = T.cast(bits[j], "int32")


@T.macro
def send_sums_at_0(peers, hist, rank, warp, lane):
    """Send the sums of this CTA's coarse bins to every CTA of the group."""
    pair = T.alloc_local((2,), "int32")
    for i in T.unroll(1):
        for part in T.vectorized(2):
            pair[part] = hist[((i * WARPS + warp) * (BINS // COARSE // 2) + lane) * 2 + part]
        total = warps.warp_sum(pair[0] + pair[1])
        if lane < GROUP:
            warps.store_peer(peers[(rank * COARSE + (i * WARPS + warp))], lane, total)


@T.macro
def pick_bin_of_group_half(state, peers, coarse, need, lower, near, grain, rank, warp, lane):
    """One warp finds the coarse bin with the `need`-th key, and in the counts of all CTAs that key's bin.

    `state` also gets the number of keys above the range, and in it, in CTAs of lower rank. `half` is as
    in pick_bin; if `near` is not 0, the first digits are those of count_near.
    """
    if warp == 0:
        count = T.alloc_var("int32", init=0)
        under = T.alloc_var("int32", init=0)
        for i in T.unroll(GROUP):
            part = coarse[i * COARSE + lane]
            count = count + part
            if i < rank:
                under = under + part
        through_coarse_bin = warps.scan(count)
        over_coarse_bin = through_coarse_bin - count
        hit_coarse_bin = (over_coarse_bin < need) & (through_coarse_bin >= need)
        coarse_bin = LAST_LANE - warps.clz(warps.ballot(hit_coarse_bin))
        left = need - warps.shuffle(over_coarse_bin, coarse_bin)
        less = T.alloc_var("int32", init=lower + warps.warp_sum(T.if_then_else(lane < coarse_bin, under, 0)))
        first_bin = coarse_bin * (BINS // COARSE) + 2 * lane
        both = T.alloc_var("int64", init=0)
        both_under = T.alloc_var("int64", init=0)
        for i in T.unroll(GROUP):
            pair = warps.load_peer_pair(peers[first_bin], i)
            both = both + pair
            if i < rank:
                both_under = both_under + pair
        low = warps.pair_low(both)
        high = warps.pair_high(both)
        high_under = warps.pair_high(both_under)
        through_bin = warps.scan(low + high)
        over_bin = through_bin - (low + high)
        hit_bin = (over_bin < left) & (through_bin >= left)
        bin = LAST_LANE - warps.clz(warps.ballot(hit_bin))
        less = less + warps.warp_sum(T.if_then_else(lane < bin, warps.pair_low(both_under) + high_under, 0))
        if hit_bin:
            wanted = T.alloc_var("int32", init=left - over_bin)
            digit = T.alloc_var("int32", init=first_bin)
            inside = T.alloc_var("int32", init=low)
            before = T.alloc_var("int32", init=0)
            if low < wanted:
                digit = first_bin + 1
                inside = high
                before = low
            within = T.alloc_var("int32", init=warps.pair_low(both_under))
            if digit > first_bin:
                within = high_under
                less = less + warps.pair_low(both_under)
            wanted = wanted - before
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
                        scalars.bits_of(
                            scalars.float_of_half(T.max(lower_bin, 0 - lower_bin) << 5)
                        ) ^ lower_sign
                    ) - lower_sign + T.uint32(2147483648)
                )
            )
            if near != T.uint32(0):
                number = T.alloc_var("uint32", init=T.cast(digit, "uint32"))
                bottom = T.alloc_var("uint32", init=1)
                if digit < BINS - 2:
                    bottom = near - T.min(
                        (number << grain) + ((T.uint32(1) << grain) - T.uint32(1)), near - T.uint32(1)
                    )
                top = 4294967295
                if digit > 0:
                    top = near - (number << grain)
                width = top - bottom
            if wanted == inside:
                top = top - width - T.uint32(1)
                width = 0
                wanted = 0
                inside = 0
            if inside == 0:
                less = less + within
                within = 0
            words = T.alloc_local((4,), "int32")
            words[0] = T.cast(top, "int32")
            words[1] = T.cast(width, "int32")
            words[2] = wanted
            words[3] = inside
            for part in T.vectorized(4):
                state[(0) * 4 + part] = words[part]
            state[4] = less
            state[5] = within


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
def stash_keys_back(bits, stash, number, thread):
    """Keep a batch of keys in shared memory, or take it `back`."""
    for j in T.unroll(KEEP):
        bits[j] = T.cast(stash[number * (KEEP * THREADS) + j * THREADS + thread], "uint32")


@T.macro
def count_keys(hist, first, bits, end, span):
    """Count the next digit of the undecided keys of a batch, in the bins from `first` on."""
    shift = T.cast(T.max(32 - warps.clz(span) - 11, 0), "uint32")
    for j in T.unroll(KEEP):
        below = end - bits[j]
        warps.count_where(hist[first + T.cast((below >> shift), "int32")], warps.at_most(below, span))


@T.macro
def send_sums(peers, at, hist, first, rank, warp, lane):
    """Send the sums of this CTA's coarse bins to every CTA of the group."""
    pair = T.alloc_local((2,), "int32")
    for i in T.unroll(1):
        for part in T.vectorized(2):
            pair[part] = hist[
                (T.truncdiv(first, 2) + (i * WARPS + warp) * (BINS // COARSE // 2) + lane) * 2 + part
            ]
        total = warps.warp_sum(pair[0] + pair[1])
        if lane < GROUP:
            warps.store_peer(peers[(at + (rank * COARSE + (i * WARPS + warp)))], lane, total)


@T.macro
def clear_count_2048(words, first, thread):
    """Zero `count` words of shared memory, with stores of 16 bytes."""
    zero = T.alloc_local((QUAD,), "int32")
    zero[0] = 0
    zero[1] = 0
    zero[2] = 0
    zero[3] = 0
    if thread < 512:
        for part in T.vectorized(QUAD):
            words[(T.truncdiv(first, QUAD) + thread) * QUAD + part] = zero[part]


@T.macro
def pick_bin_of_group(state, peers, bins, coarse, at, need, lower, end, span, rank, warp, lane):
    """One warp finds the coarse bin with the `need`-th key, and in the counts of all CTAs that key's bin.

    `state` also gets the number of keys above the range, and in it, in CTAs of lower rank. `half` is as
    in pick_bin; if `near` is not 0, the first digits are those of count_near.
    """
    if warp == 0:
        count = T.alloc_var("int32", init=0)
        under = T.alloc_var("int32", init=0)
        for i in T.unroll(GROUP):
            part = coarse[at + (i * COARSE + lane)]
            count = count + part
            if i < rank:
                under = under + part
        through_coarse_bin = warps.scan(count)
        over_coarse_bin = through_coarse_bin - count
        hit_coarse_bin = (over_coarse_bin < need) & (through_coarse_bin >= need)
        coarse_bin = LAST_LANE - warps.clz(warps.ballot(hit_coarse_bin))
        left = need - warps.shuffle(over_coarse_bin, coarse_bin)
        less = T.alloc_var("int32", init=lower + warps.warp_sum(T.if_then_else(lane < coarse_bin, under, 0)))
        first_bin = coarse_bin * (BINS // COARSE) + 2 * lane
        both = T.alloc_var("int64", init=0)
        both_under = T.alloc_var("int64", init=0)
        for i in T.unroll(GROUP):
            pair = warps.load_peer_pair(peers[(bins + first_bin)], i)
            both = both + pair
            if i < rank:
                both_under = both_under + pair
        low = warps.pair_low(both)
        high = warps.pair_high(both)
        high_under = warps.pair_high(both_under)
        through_bin = warps.scan(low + high)
        over_bin = through_bin - (low + high)
        hit_bin = (over_bin < left) & (through_bin >= left)
        bin = LAST_LANE - warps.clz(warps.ballot(hit_bin))
        less = less + warps.warp_sum(T.if_then_else(lane < bin, warps.pair_low(both_under) + high_under, 0))
        if hit_bin:
            wanted = T.alloc_var("int32", init=left - over_bin)
            digit = T.alloc_var("int32", init=first_bin)
            inside = T.alloc_var("int32", init=low)
            before = T.alloc_var("int32", init=0)
            if low < wanted:
                digit = first_bin + 1
                inside = high
                before = low
            within = T.alloc_var("int32", init=warps.pair_low(both_under))
            if digit > first_bin:
                within = high_under
                less = less + warps.pair_low(both_under)
            wanted = wanted - before
            shift = T.cast(T.max(32 - warps.clz(span) - 11, 0), "uint32")
            below = T.cast(digit, "uint32") << shift
            top = T.alloc_var("uint32", init=end - below)
            width = T.alloc_var("uint32", init=T.min(span - below, (T.uint32(1) << shift) - T.uint32(1)))
            if wanted == inside:
                top = top - width - T.uint32(1)
                width = 0
                wanted = 0
                inside = 0
            if inside == 0:
                less = less + within
                within = 0
            words = T.alloc_local((4,), "int32")
            words[0] = T.cast(top, "int32")
            words[1] = T.cast(width, "int32")
            words[2] = wanted
            words[3] = inside
            for part in T.vectorized(4):
                state[(0) * 4 + part] = words[part]
            state[4] = less
            state[5] = within


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
def send_entries(peers, entries, first, counters, rank, warp, lane):
    """Copy this CTA's part of the list to the same place in every peer. The warps share chunks and peers."""
    count = counters[0]
    for i in T.unroll(warp, leaf.ceildiv(count, WORD) * GROUP, WARPS, unroll_factor=1):
        at = T.truncdiv(i, GROUP) * WORD + lane
        to = T.truncmod(i, GROUP)
        if (at < count) & (to != rank):
            warps.store_peer(peers[(first + at)], to, entries[first + at])


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
def sum_bins(mine, through: T.Ref, hist, first, sums, thread, warp, lane):
    """Each thread reads its bins.

    `through` is the warp's sum up to these bins, and `sums` gets each warp's total.
    """
    for part in T.vectorized(BINS // THREADS):
        mine[part] = hist[(T.truncdiv(first, BINS // THREADS) + thread) * BINS // THREADS + part]
    through = warps.scan(mine[0] + mine[1])
    if lane == LAST_LANE:
        sums[warp] = through


@T.macro
def pick_bin(state, mine, through, sums, need, end, span, thread, warp, lane):
    """The thread with the `need`-th key from the top writes the range of that key's bin to `state`.

    `half`: the bins are those of the first digit.
    """
    own = mine[0] + mine[1]
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
def clear_count_2560(words, thread):
    """Zero `count` words of shared memory, with stores of 16 bytes."""
    zero = T.alloc_local((QUAD,), "int32")
    zero[0] = 0
    zero[1] = 0
    zero[2] = 0
    zero[3] = 0
    if thread < 640:
        for part in T.vectorized(QUAD):
            words[(thread) * QUAD + part] = zero[part]


@T.macro
def sift(entries, total, above, equal, counters, end, span, inside, rank, words, thread):
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
            owner = (place >> OFFSET_BITS) - rank * WARPS
            if owner < 0:
                warps.atomic_add(counters[2], 1)
            if (owner >= 0) & (owner < WARPS):
                warps.set_bits(above[(owner * words + (offset >> 5))], 1 << (offset & 31))
        if (warps.at_most(end - key, span)) & (inside > 0):
            if inside > RANKED:
                place = ~warps.pair_low(entry)
                offset = place & 4194303
                owner = (place >> OFFSET_BITS) - rank * WARPS
                if owner < 0:
                    warps.atomic_add(counters[3], 1)
                if (owner >= 0) & (owner < WARPS):
                    warps.set_bits(equal[(owner * words + (offset >> 5))], 1 << (offset & 31))
            else:
                slot = T.alloc_var("int32", init=0)
                slot = warps.fetch_add(counters[1], 1)
                entries[LISTED + slot] = entry


@T.macro
def rank_entries(entries, first, count, need, above, counters, rank, words, warp, lane):
    """Mark the `need` largest of at most 64 entries.

    A warp ranks an entry, and each lane compares it with two others.
    """
    low = T.alloc_var("int64", init=0)
    high = T.alloc_var("int64", init=0)
    if lane < count:
        low = entries[first + lane]
    if lane + WORD < count:
        high = entries[first + (lane + WORD)]
    for i in T.unroll(warp, count, WARPS, unroll_factor=1):
        entry = entries[first + i]
        ahead = warps.popc(warps.ballot(warps.unsigned_above(low, entry))) + warps.popc(
            warps.ballot(warps.unsigned_above(high, entry))
        )
        if (ahead < need) & (lane == 0):
            place = ~warps.pair_low(entry)
            offset = place & 4194303
            owner = (place >> OFFSET_BITS) - rank * WARPS
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
    indices, row, skip, sums, placed, block_table, line, page_size, inverse, pages, first_page, thread, lane
):
    """Write the ids of this CTA's positions from slot `skip` on.

    In a group, `sums` gives the number of positions; a lone CTA has `k`. `pages` holds the page-table
    entries from `first_page` on, unless `first_page` is -1.
    """
    other = T.alloc_var("int32", init=0)
    if lane < WARPS:
        other = sums[lane]
    total = warps.warp_sum(other)
    for slot in T.unroll(thread, total, THREADS, unroll_factor=4):
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
def select(
    logits, row_starts, row_ends, block_table, next_n, page_size, absolute, indices, stride, k, hist, entries,
    above, equal, coarse, stash, pages, sums, state, counters, row, rank, owner, thread, warp, lane
):
    """Every warp owns a run of words of 32 columns."""
    keys = T.alloc_local((KEEP,), "uint32")
    digits = T.alloc_local((KEEP // 2,), "uint32")
    mine = T.alloc_local((BINS // THREADS,), "int32")
    worker = thread
    clear_count_4096(hist, worker)
    clear_count_8(counters, worker)
    T.call_extern("handle", "dk::cluster_arrive_relaxed")
    inverse = T.alloc_var("uint32", init=0)
    line = T.alloc_var("int32", init=0)
    page_row(inverse, line, row, next_n, page_size)
    # A launch of TileLang starts when the kernel before it has ended.
    few = T.alloc_var("uint32", init=0)
    load_few(few, logits, row, stride, lane)
    if stride <= HELD:
        load_words(keys, logits, row, owner * BATCH, stride, lane)
    start = T.max(row_starts[row], 0)
    last = T.min(row_ends[row], stride)
    T.sync_threads()
    if last - start <= k:
        take_all(
            indices, row, k, last - start, start * absolute, rank, block_table, line, page_size, inverse,
            worker
        )
        T.call_extern("handle", "dk::cluster_wait")
    else:
        origin = T.alloc_var("int32", init=0)
        run = T.alloc_var("int32", init=KEEP)
        if stride > HELD:
            origin = start >> 5 << 5
            run = leaf.ceildiv(last - origin, WORD * WARPS * GROUP)
        batches = leaf.ceildiv(run, KEEP)
        words = batches * KEEP
        base = origin + owner * run * WORD
        hi = T.min(last, base + run * WORD)
        # The page-table entries for this CTA, one per thread, are in flight while it counts keys.
        first_page = T.alloc_var("int32", init=0)
        entry = T.alloc_var("int32", init=0)
        fetch_pages(
            first_page, entry, origin + rank * (run * (WORD * WARPS)), run * (WORD * WARPS), start, last,
            block_table, line, page_size, inverse, worker
        )
        end = T.alloc_var("uint32", init=0)
        span = T.alloc_var("uint32", init=0)
        need = T.alloc_var("int32", init=k)
        inside = T.alloc_var("int32", init=0)
        lower = T.alloc_var("int32", init=0)
        within = T.alloc_var("int32", init=0)
        rounds = T.alloc_var("int32", init=0)
        through = T.alloc_var("int32", init=0)
        near_key = T.alloc_var("uint32", init=0)
        grain = T.alloc_var("uint32", init=0)
        for step in T.serial(batches):
            column = base + step * BATCH
            if (step > 0) | (stride > HELD):
                load_words(keys, logits, row, column, hi, lane)
            if step == 0:
                guess_digits(near_key, grain, few)
            if near_key == 0:
                make_keys_digits(keys, digits, column, start, hi, lane)
                count_first(hist, digits, column, start, hi)
            else:
                make_keys(keys, column, start, hi, lane)
                count_near(hist, keys, near_key, grain, column, start, hi)
            if step < T.min(STASHED, batches - 1):
                stash_keys(keys, stash, step, worker)
        T.sync_threads()
        # A CTA may write a peer's shared memory only after the peer has started.
        T.call_extern("handle", "dk::cluster_wait")
        send_sums_at_0(coarse, hist, rank, warp, lane)
        T.call_extern("handle", "dk::cluster_arrive")
        T.call_extern("handle", "dk::cluster_wait")
        pick_bin_of_group_half(state, hist, coarse, need, lower, near_key, grain, rank, warp, lane)
        T.sync_threads()
        read_state(end, span, need, inside, state)
        lower = state[4]
        within = state[5]
        rounds = rounds + 1
        # By now the page-table entries have arrived.
        if page_size > 0:
            keep_entry(pages, entry, worker)
        # Count more digits over the row while the undecided keys are too many to list.
        while (inside > LISTED) & (span != 0):
            for step in T.serial(batches):
                if batches > 1:
                    column = base + step * BATCH
                    if step < T.min(STASHED, batches - 1):
                        stash_keys_back(keys, stash, step, worker)
                    else:
                        load_words(keys, logits, row, column, hi, lane)
                        make_keys(keys, column, start, hi, lane)
                count_keys(hist, (rounds & 1) * BINS, keys, end, span)
            T.sync_threads()
            send_sums(coarse, (rounds & 1) * (GROUP * COARSE), hist, (rounds & 1) * BINS, rank, warp, lane)
            T.call_extern("handle", "dk::cluster_arrive")
            T.call_extern("handle", "dk::cluster_wait")
            # Now every peer has read the counts of the previous round.
            clear_count_2048(hist, (rounds + 1 & 1) * BINS, worker)
            pick_bin_of_group(
                state, hist, (rounds & 1) * BINS, coarse, (rounds & 1) * (GROUP * COARSE), need, lower, end,
                span, rank, warp, lane
            )
            T.sync_threads()
            read_state(end, span, need, inside, state)
            lower = state[4]
            within = state[5]
            rounds = rounds + 1
        # One pass marks keys above the range and lists keys in it; registers hold the last batch.
        listing = (inside > 0) & (inside <= LISTED)
        for step in T.serial(batches):
            batch = batches - 1 - step
            if step > 0:
                column = base + batch * BATCH
                if batch < T.min(STASHED, batches - 1):
                    stash_keys_back(keys, stash, batch, worker)
                else:
                    load_words(keys, logits, row, column, hi, lane)
                    make_keys(keys, column, start, hi, lane)
            collect(
                keys, above, equal, (warp * batches + batch) * KEEP, counters, entries, within, end, span,
                listing, owner, batch * BATCH, lane
            )
        T.sync_threads()
        # The last use of a peer's memory: no access to it follows this barrier.
        send_entries(entries, entries, within, counters, rank, warp, lane)
        T.call_extern("handle", "dk::cluster_arrive")
        T.call_extern("handle", "dk::cluster_wait")
        first = warp * words
        ties = T.alloc_var("int32", init=T.max(need - within, 0))
        skip = T.alloc_var("int32", init=lower + T.min(within, need))
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
                sift(entries, total, above, equal, counters, end, span, inside, rank, words, worker)
                ranked = LISTED
                T.sync_threads()
            if inside <= RANKED:
                rank_entries(entries, ranked, inside, need, above, counters, rank, words, warp, lane)
            T.sync_threads()
            # Lower ranks also select keys of the list, and take equal keys.
            lower_equal = counters[3]
            ties = 0
            if inside > RANKED:
                ties = T.max(need - lower_equal, 0)
            skip = lower + counters[2] + T.min(lower_equal, need)
        before = T.alloc_var("int32", init=0)
        if ties > 0:
            count_marks(before, equal, sums, first, words, warp, lane)
            T.sync_threads()
            take_ties(before, above, equal, sums, ties, first, words, warp, lane)
            T.sync_threads()
        count_marks(before, above, sums, first, words, warp, lane)
        T.sync_threads()
        position = base + start * (absolute - 1)
        dense = (last - start <= k * DENSE) & (words <= WORD)
        place_marks(hist, before, sums, above, first, words, position, dense, warp, lane)
        T.sync_threads()
        write_ids(
            indices, row, skip, sums, hist, block_table, line, page_size, inverse, pages, first_page, worker,
            lane
        )


def program():
    rows = T.dynamic("rows")
    stride = T.dynamic("stride")
    logits_stride = T.dynamic("logits_stride")
    b = T.dynamic("b")
    max_pages = T.dynamic("max_pages")
    block_table_stride = T.dynamic("block_table_stride")
    k = T.dynamic("k")
    indices_stride = T.dynamic("indices_stride")

    @T.prim_func
    def topk_selector__tilelang_sm100a__g2_t1024_r16_c1(
        logits: T.StridedTensor((rows, stride), (logits_stride, 1), "float32"),
        row_starts: T.Tensor((rows,), "int32"),
        row_ends: T.Tensor((rows,), "int32"),
        block_table: T.StridedTensor((b, max_pages), (block_table_stride, 1), "int32"),
        next_n: T.int32,
        page_size: T.int32,
        absolute: T.int32,
        indices: T.StridedTensor((rows, k), (indices_stride, 1), "int32"),
    ):
        with T.Kernel(rows, 2, threads=1024, cluster_dims=(1, 2, 1)) as (row, rank):
            T.import_source(grid.SOURCE + warps.SOURCE + scalars.SOURCE)
            hist = T.alloc_shared((2 * BINS,), "int32")
            entries = T.alloc_shared((LISTED + RANKED,), "int64")
            above = T.alloc_shared((SPAN // WORD,), "int32")
            equal = T.alloc_shared((SPAN // WORD,), "int32")
            coarse = T.alloc_shared((2 * GROUP * COARSE,), "int32")
            stash = T.alloc_shared((STASHED * THREADS * KEEP,), "int32")
            pages = T.alloc_shared((THREADS,), "int32")
            sums = T.alloc_shared((32,), "int32")
            state = T.alloc_shared((8,), "int32")
            counters = T.alloc_shared((8,), "int32")

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32
            owner = rank * WARPS + warp
            select(
                logits, row_starts, row_ends, block_table, next_n, page_size, absolute, indices, stride, k,
                hist, entries, above, equal, coarse, stash, pages, sums, state, counters, row, rank, owner,
                thread, warp, lane
            )

    return symbols.named(topk_selector__tilelang_sm100a__g2_t1024_r16_c1, stride=stride)
