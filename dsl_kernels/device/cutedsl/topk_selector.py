"""Leaf maths of the exact top-k selection: keys and digits, closing a round, ranking, ordered output.

Operands and buffers come as pointers, with a place in them where a leaf works on a part. What a warp works out
together, every lane calls. What each leaf means is in dsl_kernels/device/torch/topk_selector.py.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, Uint64

BINS = 2048
"""Bins of a histogram: eleven bits a digit."""

COARSE = 32
"""Coarse bins of a round in a cluster: one a lane."""

OFFSET_BITS = 22
"""Low bits of a list entry's position: the column within its warp's run. The owning warp stands above them."""

LISTED, KEPT, LOWER_ABOVE, LOWER_EQUAL, LARGEST = 0, 1, 2, 3, 4
"""Counters: entries listed, entries kept for ranking, entries of lower ranks that are selected or may be, largest key."""

LOWEST, INFINITE = 0x00800000, 0xFF800000
"""Keys of the smallest finite score and of infinity."""

MINUS_INFINITY = 0xFF800000
"""Its bit pattern."""


def ceildiv(count, size):
    """Both positive or zero; unsigned, which costs no sign fix-up."""
    return Int32((Uint32(count) + Uint32(size - 1)) // Uint32(size))


def scan(value, lanes=32):
    """Inclusive prefix sum of an int32 over the first `lanes` lanes of a warp, a power of two; others get no meaning."""
    steps = "".join(
        f"shfl.sync.up.b32 t|p, {{$w0}}, {1 << i}, 0, -1; @p add.s32 {{$w0}}, {{$w0}}, t; "
        for i in range(lanes.bit_length() - 1)
    )
    return cute.arch.inline_ptx(
        "{ .reg .pred p; .reg .b32 t; mov.b32 {$w0}, {$r0}; " + steps + "}",
        write_only_types=[Int32],
        read_only_args=[value],
    )


def warp_sum(value):
    """Sum of an int32 over a warp, in every lane."""
    return cute.arch.warp_redux_sync(value, "add")


@cute.jit
def lower_warps(sums, warp, lane):
    """What the warps before this one have left in `sums`, added up."""
    other = Int32(0)
    if lane < warp:
        other = sums[lane]
    return warp_sum(other)


def add(place, value=1):
    """Add to a word of this CTA's shared memory, and return what it held."""
    return cute.arch.atomic_add(place, Int32(value), sem="relaxed", scope="cta")


@cute.jit
def load_words(bits, logits, row, stride, column, limit, lane):
    """Bit patterns of columns `column + 32 * j + lane`; a column at or past `limit` is not read and gives 0."""
    address = logits + row.to(Int64) * stride + (column + lane)
    left = limit - (column + lane)
    for j in cutlass.range_constexpr(cute.size(bits)):
        bits[j] = cute.arch.inline_ptx(
            f"{{ .reg .pred p; setp.gt.s32 p, {{$r1}}, {32 * j}; mov.b32 {{$w0}}, 0; "
            f"@p ld.global.b32 {{$w0}}, [{{$r0}} + {128 * j}]; }}",
            write_only_types=[Uint32],
            read_only_args=[address, left],
        )


def load_ahead(bits, logits, row, stride, column, columns, lane):
    """load_words of a row of at most `columns`; of a longer one nothing is read."""
    load_words(bits, logits, row, stride, column, cutlass.select_(stride <= columns, stride, 0), lane)


@cute.jit
def load_sample(
    bits, logits, row, stride, start, last, every: cutlass.Constexpr, warp, warps: cutlass.Constexpr, lane,
):  # fmt: skip
    """Bit patterns of a sample of the row, one word in `every`, never the same one of these; -inf where the row has no column.

    Word j of a warp is of the `j * warps + warp`-th run of `every` words.
    """
    address = logits + row.to(Int64) * stride
    for j in cutlass.range_constexpr(cute.size(bits)):
        place = (warp + j * warps) * every + ((warp + 5 * j) & (every - 1))
        column = ((start >> 5) + place) * 32 + lane
        bits[j] = cute.arch.inline_ptx(
            "{ .reg .pred p; setp.ge.s32 p, {$r1}, {$r2}; setp.lt.and.s32 p, {$r1}, {$r3}, p; "
            "mov.b32 {$w0}, 0xFF800000; @p ld.global.b32 {$w0}, [{$r0}]; }",
            write_only_types=[Uint32],
            read_only_args=[address + column, column, start, last],
        )


@cute.jit
def load_quads(bits, logits, row, stride, column, lane):
    """Bit patterns of columns `column + 128 * i + 4 * lane` and the three behind; a batch that would end past the row is
    its last one instead."""
    address = (
        logits + row.to(Int64) * stride + (cutlass.min(column, stride - 32 * cute.size(bits)) + 4 * lane)
    )
    for j in cutlass.range_constexpr(0, cute.size(bits), 4):
        bits[j], bits[j + 1], bits[j + 2], bits[j + 3] = cute.arch.inline_ptx(
            f"ld.global.v4.b32 {{{{$w0}}, {{$w1}}, {{$w2}}, {{$w3}}}}, [{{$r0}} + {128 * j}];",
            write_only_types=[Uint32] * 4,
            read_only_args=[address],
        )


def read_bottom(end, span):
    """The threshold that a sample gives: the smallest key of a range, at least that of the smallest finite score.

    Returns it, and less its score: the sum with a score is negative below. From zero, so that of zeros none is negative.
    """
    bottom = cutlass.min(cutlass.max(end - span, Uint32(LOWEST)), Uint32(INFINITE))
    score = bottom.bitcast(Int32)
    score = score ^ (~(score >> 31) | Int32(-(1 << 31)))
    return bottom, Float32(0.0) - score.bitcast(Float32)


def _score_below_bit(word, bits, less):
    """`word` moved up by a bit, which tells whether a score plus `less` is negative; of NaN it is not."""
    return cute.arch.inline_ptx(
        "{ .reg .f32 t; .reg .b32 u; add.rn.f32 t, {$r1}, {$r2}; mov.b32 u, t; shf.l.wrap.b32 {$w0}, u, {$r0}, 1; }",
        write_only_types=[Int32],
        read_only_args=[word, bits.bitcast(Float32), less],
    )


def _pick(bits, j, first, count):
    """Word `j`, of `count` from `first` on: registers have no address."""
    if count == 1:
        return bits[first]
    half = count // 2
    upper, lower = _pick(bits, j, first + half, half), _pick(bits, j, first, half)
    return Uint32(cutlass.select_((j & half) != 0, upper, lower))


@cute.jit
def list_above(
    listed, bits, entries, counters, less, column, origin, start, last, stride, room: cutlass.Constexpr, lane,
):  # fmt: skip
    """List a batch of load_quads, as bit patterns: what with `less` is not negative, while there is room for `room`.

    Positions count from `origin`. Returns how many there are, as far as this warp knows.
    """
    size = cutlass.const_expr(cute.size(bits))
    at = cutlass.min(column, stride - 32 * size)
    first = cutlass.max(start, column)
    if (at < first) | (at + 32 * size > last):
        own = at + 4 * lane
        for j in cutlass.range_constexpr(size):
            if (own + (j // 4 * 128 + j % 4) < first) | (own + (j // 4 * 128 + j % 4) >= last):
                bits[j] = Uint32(MINUS_INFINITY)
    left = Int32(0)
    for j in cutlass.range_constexpr(size):
        left = _score_below_bit(left, bits[size - 1 - j], less)
    left = ~left & ((1 << size) - 1)
    mine = cute.arch.popc(left)
    through = scan(mine)
    total = cute.arch.shuffle_sync(through, 31)
    if total > 0:
        slot = Int32(0)
        if lane == 0:
            slot = add(counters + LISTED, total)
        slot = cute.arch.shuffle_sync(slot, 0)
        listed = slot + total
        if listed <= room:
            slot += through - mine
            place = ~(at - origin + 4 * lane)
            while left != 0:
                j = cute.arch.inline_ptx(
                    "bfind.u32 {$w0}, {$r0};", write_only_types=[Int32], read_only_args=[left]
                )
                left = left ^ (Int32(1) << j)
                # 128 columns on for every four words.
                own = (place - j - (j >> 2) * 124).bitcast(Uint32)
                entries[slot] = ((_pick(bits, j, 0, size).to(Uint64) << 32) | own.to(Uint64)).to(Int64)
                slot += 1
    return listed


def read_listed(counters):
    """Keys that were listed, or for which there was no room."""
    return counters[LISTED]


@cute.jit
def key_entries(entries, total, counters, thread, threads: cutlass.Constexpr, lane):
    """Make the bit patterns of the first `total` list entries keys, and note the largest."""
    largest = Uint32(0)
    for i in cutlass.range(thread, total, threads, unroll=1):
        entry = entries[i].to(Uint64)
        key, _ = order_key(entry_key(entry))
        entries[i] = ((key.to(Uint64) << 32) | (entry & Uint64(0xFFFFFFFF))).to(Int64)
        largest = cutlass.max(largest, key)
    largest = cute.arch.inline_ptx(
        "redux.sync.max.u32 {$w0}, {$r0}, -1;", write_only_types=[Uint32], read_only_args=[largest]
    )
    if lane == 0:
        cute.arch.inline_ptx(
            "red.shared.max.u32 [{$r0}], {$r1};",
            read_only_args=[(counters + LARGEST).toint(), largest],
        )


def read_largest(counters, bottom):
    """The range from `bottom` to the largest key of the list: its end and its span."""
    largest = counters[LARGEST].bitcast(Uint32)
    return largest, largest - bottom


def read_bounds(row_starts, row_ends, row, stride):
    """The columns of a row, [start, last)."""
    return cutlass.max(row_starts[row], 0), cutlass.min(row_ends[row], stride)


@cute.jit
def page_row(row, next_n, page_size):
    """(2**32 - 1) // page_size and the row's line of the page table; zeros where there are no pages."""
    inverse, line = Uint32(0), Int32(0)
    if page_size > 0:
        inverse = Uint32(0xFFFFFFFF) // page_size.to(Uint32)
        line = (row.to(Uint32) // next_n.to(Uint32)).to(Int32)
    return inverse, line


def share_row(origin, run, start, last, warps):
    """Where the warps' runs of words begin, and how long each is, in a row that the registers do not hold."""
    origin = (start >> 5) << 5
    return origin, ceildiv(last - origin, 32 * warps)


def bound_warp(base, run, start, last, stride):
    """Where a warp's columns end, and those of the row among them, [lo, hi)."""
    limit = cutlass.min(stride, base + run * 32)
    return limit, cutlass.max(start, base), cutlass.min(last, limit)


@cute.jit
def fetch_pages(
    first, columns, start, last, block_table, max_pages, line, page_size, inverse, thread, threads: cutlass.Constexpr,
):  # fmt: skip
    """The page-table entries of the columns [first, first + columns), one a thread from `first_page` on.

    Returns (first_page, near, entry); `near` tells whether the threads hold them all.
    """
    first_page, near, entry = Int32(0), page_size > 0, Int32(0)
    if page_size > 0:
        first_page, _ = page_of(inverse, page_size, cutlass.max(first - start, 0))
        final, _ = page_of(inverse, page_size, cutlass.max(cutlass.min(last, first + columns) - 1 - start, 0))
        near = final - first_page < threads
        if thread <= final - first_page:
            entry = table_line(block_table, max_pages, line)[first_page + thread]
    return first_page, near, entry


def table_line(block_table, max_pages, line):
    """One row of the page table."""
    return block_table + line.to(Int64) * max_pages


def order_key(bits):
    """Key of an fp32 bit pattern: unsigned order of keys = order of values; 0 is below every key.

    The addition turns -0.0 into +0.0 and every NaN into the largest key, as torch.topk ranks them.
    Returns the key and the canonical bit pattern.
    """
    same = cute.arch.inline_ptx(
        "add.rn.f32 {$w0}, {$r0}, 0f00000000;",
        write_only_types=[Float32],
        read_only_args=[bits.bitcast(Float32)],
    ).bitcast(Int32)
    return (same ^ ((same >> 31) | Int32(-(1 << 31)))).bitcast(Uint32), same


def half_digits(low, high):
    """First digits of two canonical bit patterns, one in each half of a word; bits 5 to 15 are the bin, 0 the largest."""
    pair = cute.arch.inline_ptx(
        "cvt.rz.f16x2.f32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Uint32],
        read_only_args=[high.bitcast(Float32), low.bitcast(Float32)],
    )
    sign = cute.arch.prmt(pair, pair, Uint32(0xBB99))
    return pair ^ (~sign & Uint32(0x7FFF7FFF))


@cute.jit
def make_keys(bits, digits, column, lo, hi, lane):
    """Turn loaded bit patterns into keys in place, and pair up their first digits unless `digits` is None.

    Columns outside [lo, hi) get key 0 and the last bin, which no score has.
    """
    for j in cutlass.range_constexpr(0, cute.size(bits), 2):
        low_key, low = order_key(bits[j])
        high_key, high = order_key(bits[j + 1])
        bits[j], bits[j + 1] = low_key, high_key
        if cutlass.const_expr(digits is not None):
            digits[j // 2] = half_digits(low, high)
    if (column < lo) | (column + 32 * cute.size(bits) > hi):
        own = column + lane
        for j in cutlass.range_constexpr(cute.size(bits)):
            if (own + 32 * j < lo) | (own + 32 * j >= hi):
                bits[j] = Uint32(0)
                if cutlass.const_expr(digits is not None):
                    digits[j // 2] = digits[j // 2] | Uint32(0xFFFF << (16 * (j % 2)))


def make_keys_again(bits, column, lo, hi, lane):
    """Turn loaded bit patterns into keys in place; columns outside [lo, hi) get key 0."""
    make_keys(bits, None, column, lo, hi, lane)


@cute.jit
def stash(words, first, bits, thread, threads: cutlass.Constexpr):
    """Keep a batch of keys in shared memory."""
    for j in cutlass.range_constexpr(cute.size(bits)):
        words[first + (j * threads + thread)] = bits[j].bitcast(Int32)


@cute.jit
def unstash(bits, words, first, thread, threads: cutlass.Constexpr):
    """Take a batch of keys back."""
    for j in cutlass.range_constexpr(cute.size(bits)):
        bits[j] = words[first + (j * threads + thread)].bitcast(Uint32)


@cute.jit
def count_first(hist, digits, column, lo, hi):
    """Count the first digits of a batch that has columns of the row."""
    if (column < hi) & (column + 64 * cute.size(digits) > lo):
        for j in cutlass.range_constexpr(cute.size(digits)):
            add(hist + ((digits[j] >> 5) & (BINS - 1)))
            add(hist + (digits[j] >> 21))


@cute.jit
def count_keys(hist, first, bits, end, span):
    """Count the next digit of the undecided keys of a batch; the bins are those from `first` on."""
    shift = digit_shift(span)
    for j in cutlass.range_constexpr(cute.size(bits)):
        count_key(hist + first, bits[j], end, span, shift)


@cute.jit
def count_listed(hist, first, entries, total, end, span, thread, threads: cutlass.Constexpr):
    """Count the next digit of the undecided ones of the first `total` list entries."""
    shift = digit_shift(span)
    for i in cutlass.range(thread, total, threads, unroll=1):
        count_key(hist + first, entry_key(entries[i]), end, span, shift)


@cute.jit
def count_key(hist, key, end, span, shift):
    """Count the next digit of a key if it is undecided."""
    if end - key <= span:
        add(hist + ((end - key) >> shift))


def digit_shift(span):
    """Bits below the next digit of an undecided range."""
    return cutlass.max(32 - Int32(cute.arch.clz(span)) - 11, 0).to(Uint32)


@cute.jit
def _half_edge(bin):
    """Smallest key of a bin of the first round, counted from the smallest score."""
    magnitude = cutlass.max(bin - BINS // 2, BINS // 2 - bin) << 5
    bits = cute.arch.inline_ptx(
        "{ .reg .b16 h; cvt.u16.u32 h, {$r0}; cvt.f32.f16 {$w0}, h; }",
        write_only_types=[Float32],
        read_only_args=[magnitude],
    ).bitcast(Int32)
    if bin < BINS // 2:
        bits = -bits
    return (bits + Int32(-(1 << 31))).bitcast(Uint32)


@cute.jit
def narrow(digit, need, inside, end, span, half: cutlass.Constexpr):
    """The undecided range after a round: its end, span, the keys still needed of it and the keys in it.

    Where all of it is needed, nothing stays undecided and every key above the new end is selected.
    """
    if cutlass.const_expr(half):
        bin = BINS - 1 - digit
        begin = _half_edge(bin)
        end = Uint32(0xFFFFFFFF)
        if digit > 0:
            end = _half_edge(bin + 1) - 1
        span = end - begin
    else:
        shift = digit_shift(span)
        below = digit.to(Uint32) << shift
        end = end - below
        span = cutlass.min(span - below, (Uint32(1) << shift) - 1)
    if need == inside:
        end = end - span - 1
        span = Uint32(0)
        need = Int32(0)
        inside = Int32(0)
    return end, span, need, inside


@cute.jit
def clear(words, first, count: cutlass.Constexpr, thread, threads: cutlass.Constexpr):
    """Zero `count` words of shared memory, 16 bytes a store."""
    quads = cute.make_tensor(_aligned(words + first), cute.make_layout((4, count // 4)))
    zero = cute.make_rmem_tensor(cute.make_layout(4), Int32)
    zero.fill(0)
    for i in cutlass.range_constexpr((count // 4 + threads - 1) // threads):
        if cutlass.const_expr((i + 1) * threads <= count // 4):
            cute.autovec_copy(zero, quads[None, i * threads + thread])
        else:
            if i * threads + thread < count // 4:
                cute.autovec_copy(zero, quads[None, i * threads + thread])


def _aligned(words):
    """A place that is known to be a multiple of 16 bytes."""
    return words.align(16)


@cute.jit
def clear_run(bitmap, first, words, lane):
    """Zero the warp's words of a bitmap."""
    for i in cutlass.range(lane, words, 32, unroll=1):
        bitmap[first + i] = Int32(0)


@cute.jit
def write_state(state, end, span, need, inside):
    words = cute.make_rmem_tensor(cute.make_layout(4), Int32)
    words[0] = end.bitcast(Int32)
    words[1] = span.bitcast(Int32)
    words[2] = need
    words[3] = inside
    cute.autovec_copy(words, cute.make_tensor(state, cute.make_layout(4)))


@cute.jit
def read_state(state):
    """End, span, keys needed and keys inside of the undecided range, as the last round left them."""
    words = cute.make_rmem_tensor(cute.make_layout(4), Int32)
    cute.autovec_copy(cute.make_tensor(state, cute.make_layout(4)), words)
    return words[0].bitcast(Uint32), words[1].bitcast(Uint32), words[2], words[3]


@cute.jit
def read_group_state(state):
    """The undecided range as the last round left it, and what CTAs of lower rank have above it and in it."""
    end, span, need, inside = read_state(state)
    return end, span, need, inside, state[4], state[5]


@cute.jit
def sum_bins(mine, hist, first, sums, thread, warp, lane):
    """Each thread takes its bins; returns its warp's sum up to and with them. `sums` get the warps' totals."""
    share = cutlass.const_expr(cute.size(mine))
    bins = cute.make_tensor(_aligned(hist + first), cute.make_layout((share, BINS // share)))
    cute.autovec_copy(bins[None, thread], mine)
    own = mine[0]
    for i in cutlass.range_constexpr(1, share):
        own = own + mine[i]
    through = scan(own)
    if lane == 31:
        sums[warp] = through
    return through


@cute.jit
def pick_bin(
    state, mine, through, sums, need, end, span, first: cutlass.Constexpr, thread, warp, lane,
):  # fmt: skip
    """The thread that has the `need`-th key from the top narrows the range to its bin, for all threads in `state`."""
    share = cutlass.const_expr(cute.size(mine))
    partial = cute.make_rmem_tensor(cute.make_layout(share), Int32)
    partial[0] = mine[0]
    for i in cutlass.range_constexpr(1, share):
        partial[i] = partial[i - 1] + mine[i]
    own = partial[share - 1]
    left = need - (through - own + lower_warps(sums, warp, lane))
    if (left > 0) & (left <= own):
        digit = thread * share
        inside = mine[0]
        before = Int32(0)
        for i in cutlass.range_constexpr(1, share):
            if partial[i - 1] < left:
                digit = thread * share + i
                inside = mine[i]
                before = partial[i - 1]
        end, span, need, inside = narrow(digit, left - before, inside, end, span, first)
        write_state(state, end, span, need, inside)


@cute.jit
def send_sums(
    coarse, at, hist, first, group: cutlass.Constexpr, rank, warp, warps: cutlass.Constexpr, lane,
):  # fmt: skip
    """Send every CTA of the group the sums of this one's coarse bins."""
    fine = cutlass.const_expr(BINS // COARSE)
    pairs = cute.make_tensor(_aligned(hist + first), cute.make_layout((2, BINS // 2)))
    pair = cute.make_rmem_tensor(cute.make_layout(2), Int32)
    for i in cutlass.range_constexpr(COARSE // warps):
        bin = i * warps + warp
        cute.autovec_copy(pairs[None, bin * (fine // 2) + lane], pair)
        total = warp_sum(pair[0] + pair[1])
        if lane < group:
            store_peer(coarse + at + (rank * COARSE + bin), lane, total)


@cute.jit
def pick_bin_of_group(
    state, hist, bins, coarse, at, need, lower, end, span, first: cutlass.Constexpr,
    group: cutlass.Constexpr, rank, warp, lane,
):  # fmt: skip
    """One warp finds the coarse bin and then, in all CTAs' counts of it, the bin with the `need`-th key from the top.

    `state` also gets the keys above the range in CTAs of lower rank, and those in the range.
    """
    fine = cutlass.const_expr(BINS // COARSE)
    if warp == 0:
        count = Int32(0)
        under = Int32(0)
        for i in cutlass.range_constexpr(group):
            part = coarse[at + (i * COARSE + lane)]
            count += part
            if i < rank:
                under += part
        through = scan(count)
        hit = (through - count < need) & (through >= need)
        source = 31 - Int32(cute.arch.clz(cute.arch.vote_ballot_sync(hit)))
        need = need - cute.arch.shuffle_sync(through - count, source)
        part = Int32(0)
        if lane < source:
            part = under
        lower = lower + warp_sum(part)
        first_bin = source * fine + 2 * lane
        low = Int32(0)
        high = Int32(0)
        low_under = Int32(0)
        high_under = Int32(0)
        for i in cutlass.range_constexpr(group):
            first_count, second_count = load_peer_pair(hist + bins + first_bin, i)
            low += first_count
            high += second_count
            if i < rank:
                low_under += first_count
                high_under += second_count
        through = scan(low + high)
        over = through - low - high
        hit = (over < need) & (through >= need)
        source = 31 - Int32(cute.arch.clz(cute.arch.vote_ballot_sync(hit)))
        part = low_under + high_under
        if lane >= source:
            part = Int32(0)
        lower = lower + warp_sum(part)
        if hit:
            digit = first_bin
            inside = low
            within = low_under
            if over + low < need:
                over += low
                digit += 1
                inside = high
                within = high_under
                lower += low_under
            end, span, need, inside = narrow(digit, need - over, inside, end, span, first)
            if inside == 0:
                lower += within
                within = Int32(0)
            write_state(state, end, span, need, inside)
            state[4] = lower
            state[5] = within


def _peer_address(pointer, rank):
    return cute.arch.inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Int32],
        read_only_args=[pointer.toint(), rank],
    )


def store_peer(pointer, rank, value):
    """Store a word where CTA `rank` of the cluster keeps `pointer`."""
    cute.arch.inline_ptx(
        f"st.shared::cluster.b{value.width} [{{$r0}}], {{$r1}};",
        read_only_args=[_peer_address(pointer, rank), value],
    )


def load_peer_pair(pointer, rank):
    """Two neighbouring int32 from where CTA `rank` of the cluster keeps `pointer`."""
    return cute.arch.inline_ptx(
        "ld.shared::cluster.v2.b32 {{$w0}, {$w1}}, [{$r0}];",
        write_only_types=[Int32, Int32],
        read_only_args=[_peer_address(pointer, rank)],
    )


@cute.jit
def collect(
    count, bits, above, equal, word, counters, entries, first, end, span,
    listing, owner, offset, lane,
):  # fmt: skip
    """Mark a batch's keys above the range; list those in it from entry `first` on, or mark these too.

    `word` is the batch's place in the bitmaps. Returns `count` and how many keys this lane's word marks as above.
    """
    above, equal, entries = above + word, equal + word, entries + first
    size = cutlass.const_expr(cute.size(bits))
    words = cute.make_rmem_tensor(cute.make_layout(size), Int32)
    some = end - bits[0] <= span
    for j in cutlass.range_constexpr(size):
        words[j] = cute.arch.vote_ballot_sync(bits[j] > end)
        some = some | (end - bits[j] <= span)
    if lane == 0:
        cute.autovec_copy(words, cute.make_tensor(above, cute.make_layout(size)))
    if listing:
        if cute.arch.vote_any_sync(some):
            for j in cutlass.range_constexpr(size):
                same = cute.arch.vote_ballot_sync(end - bits[j] <= span)
                if same != 0:
                    slot = Int32(0)
                    if lane == 0:
                        slot = add(counters + LISTED, cute.arch.popc(same))
                    slot = cute.arch.shuffle_sync(slot, 0)
                    if (same >> lane) & 1 != 0:
                        place = (owner << OFFSET_BITS) | (offset + 32 * j + lane)
                        slot += cute.arch.popc(same & ((Int32(1) << lane) - 1))
                        entries[slot] = ((bits[j].to(Uint64) << 32) | (~place).bitcast(Uint32).to(Uint64)).to(
                            Int64
                        )
    else:
        for j in cutlass.range_constexpr(size):
            words[j] = cute.arch.vote_ballot_sync(end - bits[j] <= span)
        if lane == 0:
            cute.autovec_copy(words, cute.make_tensor(equal, cute.make_layout(size)))
    # A population count takes four times as long as an addition: one of a lane's own word, not one a word.
    cute.arch.sync_warp()
    own = Int32(0)
    if lane < size:
        own = cute.arch.popc(above[lane])
    return count + own


@cute.jit
def keep_count(counts, count, warp, lane):
    """The keys above the range of each warp, for all threads."""
    total = warp_sum(count)
    if lane == 0:
        counts[warp] = total


@cute.jit
def keep_entry(pages, entry, thread):
    """The threads' page-table entries, for all threads."""
    pages[thread] = entry


@cute.jit
def send_entries(
    entries, first, counters, group: cutlass.Constexpr, rank, warp, warps: cutlass.Constexpr, lane,
):  # fmt: skip
    """Copy this CTA's part of the list to the same place in every peer; the warps share chunks and peers."""
    count = counters[LISTED]
    entries = entries + first
    for i in cutlass.range(warp, (count + 31) // 32 * group, warps, unroll=1):
        at = i // group * 32 + lane
        to = i % group
        if (at < count) & (to != rank):
            store_peer(entries + at, to, entries[at])


@cute.jit
def mark(entry, bitmap, counts, counters, which: cutlass.Constexpr, rank, warps: cutlass.Constexpr, words):
    """Set a list entry's bit where this CTA owns it, and count it where a CTA of lower rank does."""
    place = ~(entry.to(Uint32).bitcast(Int32))
    owner = place >> OFFSET_BITS
    offset = place & ((1 << OFFSET_BITS) - 1)
    warp = owner - rank * warps
    if warp < 0:
        add(counters + which)
    if (warp >= 0) & (warp < warps):
        cute.arch.atomic_or(
            bitmap + (warp * words + (offset >> 5)), Int32(1) << (offset & 31), sem="relaxed", scope="cta"
        )
        if cutlass.const_expr(which == LOWER_ABOVE):
            add(counts + warp)


@cute.jit
def sift(
    entries, total, target: cutlass.Constexpr, above, equal, counts,
    counters, end, span, inside, ranked: cutlass.Constexpr, rank, warps: cutlass.Constexpr, words, thread,
    threads: cutlass.Constexpr,
):  # fmt: skip
    """After the rounds over the list: mark entries above the range; keep those in it from `target` on where at most
    `ranked` are left to rank, else mark them as equal."""
    for i in cutlass.range(thread, total, threads, unroll=1):
        entry = entries[i].to(Uint64)
        key = entry_key(entry)
        if key > end:
            mark(entry, above, counts, counters, LOWER_ABOVE, rank, warps, words)
        if (end - key <= span) & (inside > 0):
            if inside > ranked:
                mark(entry, equal, counts, counters, LOWER_EQUAL, rank, warps, words)
            else:
                slot = add(counters + KEPT)
                entries[target + slot] = entry.to(Int64)


@cute.jit
def rank_entries(
    entries, first, count, need, above, counts, counters, rank,
    warps: cutlass.Constexpr, words, warp, lane,
):  # fmt: skip
    """Mark the `need` largest of at most 64 entries: a warp an entry, two entries a lane to compare it with."""
    entries = entries + first
    low = Uint64(0)
    high = Uint64(0)
    if lane < count:
        low = entries[lane].to(Uint64)
    if lane + 32 < count:
        high = entries[lane + 32].to(Uint64)
    for i in cutlass.range(warp, count, warps, unroll=1):
        entry = entries[i].to(Uint64)
        ahead = cute.arch.popc(cute.arch.vote_ballot_sync(low > entry)) + cute.arch.popc(
            cute.arch.vote_ballot_sync(high > entry)
        )
        if (ahead < need) & (lane == 0):
            mark(entry, above, counts, counters, LOWER_ABOVE, rank, warps, words)


def read_marked(counters, need, inside, lower, ranked):
    """Columns marked as equal that this CTA may still take, and columns that lower ranks select, after the list."""
    above, equal = counters[LOWER_ABOVE], counters[LOWER_EQUAL]
    ties = cutlass.select_(inside > ranked, cutlass.max(need - equal, 0), Int32(0))
    return ties, lower + above + cutlass.min(equal, need)


@cute.jit
def count_equal(equal, sums, first, words, warp, lane):
    """Columns of each warp that are marked as equal."""
    found = Int32(0)
    for i in cutlass.range(lane, words, 32, unroll=1):
        found += cute.arch.popc(equal[first + i])
    keep_count(sums, found, warp, lane)


@cute.jit
def take_ties(
    above, equal, counts, sums, take, first, words, warp, lane,
):  # fmt: skip
    """Select the first `take` columns marked as equal, in order of position; a lane has consecutive words."""
    each = ceildiv(words, 32)
    end = cutlass.min(lane * each + each, words)
    own = Int32(0)
    for i in cutlass.range(lane * each, end, unroll=1):
        own += cute.arch.popc(equal[first + i])
    left = take - lower_warps(sums, warp, lane) - scan(own) + own
    added = cutlass.max(cutlass.min(left, own), 0)
    for i in cutlass.range(lane * each, end, unroll=1):
        word = equal[first + i]
        found = cute.arch.popc(word)
        if left > 0:
            for _ in cutlass.range(left, found, unroll=1):
                word = word ^ (Int32(1) << (31 - Int32(cute.arch.clz(word))))
            above[first + i] = above[first + i] | word
        left -= found
    added = warp_sum(added)
    if lane == 0:
        counts[warp] = counts[warp] + added


def first_slot(counts, skip, warp, lane):
    """Slot of this warp's first column: behind lower ranks' and lower warps'."""
    return skip + lower_warps(counts, warp, lane)


def entry_key(entry):
    """The key of a list entry; its low half is the complement of the position, so that larger entries go first."""
    return (entry.to(Uint64) >> 32).to(Uint32)


@cute.jit
def take_all(
    indices, row, k, length, rank, group: cutlass.Constexpr, block_table, max_pages, line, page_size,
    inverse, thread, threads: cutlass.Constexpr,
):  # fmt: skip
    """A row of at most `k` scores: every position, then -1, without a look at the scores; the CTAs take slots in turn."""
    out = indices + row.to(Int64) * k
    table = table_line(block_table, max_pages, line)
    for slot in cutlass.range(rank * threads + thread, k, group * threads, unroll=1):
        id = Int32(-1)
        if slot < length:
            id = slot
            if page_size > 0:
                page, offset = page_of(inverse, page_size, slot)
                id = table[page] * page_size + offset
        out[slot] = id


def page_of(inverse, page_size, position):
    """Page and offset of a position; `inverse` is (2**32 - 1) // page_size, at most one page short."""
    page = cute.arch.mul_hi(position.to(Uint32), inverse).to(Int32)
    offset = position - page * page_size
    over = offset >= page_size
    return cutlass.select_(over, page + 1, page), cutlass.select_(over, offset - page_size, offset)


def _load_marked(pointer, word, bit, state_space):
    """The int32 at a pointer where `word` has `bit`; nothing is read elsewhere."""
    return cute.arch.inline_ptx(
        "{ .reg .pred p; .reg .b32 t; and.b32 t, {$r1}, {$r2}; setp.ne.b32 p, t, 0; mov.b32 {$w0}, 0; "
        f"@p ld.{state_space}.b32 {{$w0}}, [{{$r0}}]; }}",
        write_only_types=[Int32],
        read_only_args=[pointer, word, bit],
    )


@cute.jit
def emit_sparse(
    slot, indices, row, k, above, first, count, position, block_table, max_pages, line,
    page_size, inverse, pages, first_page, near, lane,
):  # fmt: skip
    """`emit` for bitmaps with few marks: `count` words, one a lane, whose marks the lane takes one by one."""
    out = indices + row.to(Int64) * k
    table = table_line(block_table, max_pages, line)
    words = above + first
    for base in cutlass.range(0, count, 32, unroll=1):
        word = Int32(0)
        if base + lane < count:
            word = words[base + lane]
        own = cute.arch.popc(word)
        through = scan(own)
        place = slot + through - own
        while word != 0:
            lowest = word & -word
            id = position + (base + lane) * 32 + (31 - Int32(cute.arch.clz(lowest)))
            if page_size > 0:
                page, offset = page_of(inverse, page_size, id)
                entry = Int32(0)
                if near:
                    entry = pages[page - first_page]
                else:
                    entry = table[page]
                id = entry * page_size + offset
            out[place] = id
            place += 1
            word = word ^ lowest
        slot += cute.arch.shuffle_sync(through, 31)


@cute.jit
def count_marks(sums, above, first, words, warp, lane):
    """Count the warp's marked columns in `sums`; returns those of lower lanes, which have consecutive words each."""
    each = ceildiv(words, 32)
    own = Int32(0)
    for i in cutlass.range(lane * each, cutlass.min(lane * each + each, words), unroll=1):
        own += cute.arch.popc(above[first + i])
    through = scan(own)
    if lane == 31:
        sums[warp] = through
    return through - own


@cute.jit
def place_marks(placed, slot, sums, above, first, words, position, warp, lane):
    """Positions of the warp's marked columns, ascending, behind those of lower warps and, by `slot`, of lower lanes."""
    each = ceildiv(words, 32)
    place = slot + lower_warps(sums, warp, lane)
    for i in cutlass.range(lane * each, cutlass.min(lane * each + each, words), unroll=1):
        word = above[first + i]
        while word != 0:
            lowest = word & -word
            placed[place] = position + i * 32 + (31 - Int32(cute.arch.clz(lowest)))
            place += 1
            word = word ^ lowest


@cute.jit
def write_ids(
    indices, row, k, placed, block_table, max_pages, line, page_size, inverse, thread, threads: cutlass.Constexpr,
):  # fmt: skip
    """Write the ids of `k` positions."""
    out = indices + row.to(Int64) * k
    table = table_line(block_table, max_pages, line)
    for slot in cutlass.range(thread, k, threads, unroll=1):
        id = placed[slot]
        if page_size > 0:
            page, offset = page_of(inverse, page_size, id)
            id = table[page] * page_size + offset
        out[slot] = id


@cute.jit
def emit(
    slot, indices, row, k, above, word, size: cutlass.Constexpr, position, block_table,
    max_pages, line, page_size, inverse, pages, first_page, near, lane,
):  # fmt: skip
    """Write the ids of a batch's marked columns, ascending, from `slot` on; returns the slot after them.

    With `near`, `pages` holds the entries of the page table from `first_page` on.
    """
    out = indices + row.to(Int64) * k
    table = table_line(block_table, max_pages, line)
    words = above + word
    position = position + lane
    marks = cute.make_rmem_tensor(cute.make_layout(size), Int32)
    ids = cute.make_rmem_tensor(cute.make_layout(size), Int32)
    cute.autovec_copy(cute.make_tensor(words, cute.make_layout(size)), marks)
    bit = Int32(1) << lane
    for j in cutlass.range_constexpr(size):
        ids[j] = position + 32 * j
    if page_size > 0:
        offsets = cute.make_rmem_tensor(cute.make_layout(size), Int32)
        if near:
            for j in cutlass.range_constexpr(size):
                page, offsets[j] = page_of(inverse, page_size, ids[j])
                ids[j] = _load_marked(pages + (page - first_page), marks[j], bit, "shared")
        else:
            for j in cutlass.range_constexpr(size):
                page, offsets[j] = page_of(inverse, page_size, ids[j])
                ids[j] = _load_marked(table + page, marks[j], bit, "global")
        for j in cutlass.range_constexpr(size):
            ids[j] = ids[j] * page_size + offsets[j]
    # A lane counts one word; the words' first slots then go to all lanes.
    own = Int32(0)
    if lane < size:
        own = cute.arch.popc(words[lane])
    through = scan(own, size)
    first = (slot + through - own) * 4
    for j in cutlass.range_constexpr(size):
        place = cute.arch.shuffle_sync(first, j) + cute.arch.popc(marks[j] & (bit - 1)) * 4
        cute.arch.inline_ptx(
            "{ .reg .pred p; .reg .b32 t; .reg .b64 a; and.b32 t, {$r1}, {$r2}; setp.ne.b32 p, t, 0; "
            "cvt.u64.u32 a, {$r3}; add.s64 a, a, {$r0}; @p st.global.b32 [a], {$r4}; }",
            read_only_args=[out, marks[j], bit, place, ids[j]],
        )
    return slot + cute.arch.shuffle_sync(through, size - 1)
