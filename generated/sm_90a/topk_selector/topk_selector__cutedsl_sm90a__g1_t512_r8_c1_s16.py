"""topk_selector__cutedsl_sm90a__g1_t512_r8_c1_s16

Generated from dsl_kernels/kernels/topk_selector and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: group=1, threads=512, keep=8, resident=1, sample=16.

roles
  select     threads 0..511  every warp owns a run of words of 32 columns
buffers
  hist       4096 int32, shared
  entries    5696 int64, shared
  above      1024 int32, shared
  equal      1024 int32, shared
  sums       32 int32, shared
  state      8 int32, shared
  counters   8 int32, shared
  keys       512x8 uint32, registers of select
  digits     512x4 uint32, registers of select
  mine       512x4 int32, registers of select
  ahead      512x8 uint32, registers of select
  few        512x4 uint32, registers of select
  few_digits 512x2 uint32, registers of select
totals: 512 threads, 70336 of 232448 bytes of shared memory, grid (rows, 1)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64

from dsl_kernels.device.cutedsl import scalars, warps
from dsl_kernels.kernels.topk_selector import cutedsl as leaf
from dsl_kernels.runtime.artifact import Launch, Operand

THREADS = 512  # threads per CTA
KEEP = 8  # keys that a thread keeps in registers; every pass reads longer rows again
SAMPLE = 16  # one word of 32 columns in so many is sampled; 0: no sample
QUAD = 4
BINS = 2048
HELD = 4096
WORD = 32
BATCH = 256
WARPS = 16
FEW = 4
SPAN = 32768
SIGN = -2147483648
SPARE = 28
LAST_LANE = 31
BETWEEN = 88
LISTED = 5632
RANKED = 64
OFFSET_BITS = 22


LAUNCH = Launch(
    operands=(
        Operand("logits", "tensor", "float32", ("rows", "stride"), strides=("logits_stride", "1")),
        Operand("row_starts", "tensor", "int32", ("rows",)),
        Operand("row_ends", "tensor", "int32", ("rows",)),
        Operand("block_table", "tensor", "int32", ("b", "max_pages"), strides=("block_table_stride", "1")),
        Operand("next_n", "scalar", "int32"),
        Operand("page_size", "scalar", "int32"),
        Operand("absolute", "scalar", "int32"),
        Operand("indices", "tensor", "int32", ("rows", "k"), strides=("indices_stride", "1"), written=True),
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
    state: cute.struct.Align[cute.struct.MemRange[Int32, 8], 128]
    counters: cute.struct.Align[cute.struct.MemRange[Int32, 8], 128]


@cute.jit
def clear_count_4096(words, thread):
    """Zero `count` words of shared memory, with stores of 16 bytes."""
    begin = words
    zero = cute.make_rmem_tensor(QUAD, Int32)
    zero[0] = Int32(0)
    zero[1] = Int32(0)
    zero[2] = Int32(0)
    zero[3] = Int32(0)
    for i in cutlass.range_constexpr(2):
        cute.autovec_copy(zero, warps.group(begin, QUAD, i * THREADS + thread))


@cute.jit
def clear_count_8(words, thread):
    """Zero `count` words of shared memory, with stores of 16 bytes."""
    begin = words
    zero = cute.make_rmem_tensor(QUAD, Int32)
    zero[0] = Int32(0)
    zero[1] = Int32(0)
    zero[2] = Int32(0)
    zero[3] = Int32(0)
    if thread < 2:
        cute.autovec_copy(zero, warps.group(begin, QUAD, thread))


@cute.jit
def page_row(row, next_n, page_size):
    """Set (2**32 - 1) // page_size and the row's line of the page table; zeros where there are no pages."""
    inverse = cutlass.Uint32(0)
    line = Int32(0)
    if page_size > 0:
        inverse = cutlass.Uint32(4294967295) // page_size.to(cutlass.Uint32)
        line = (row.to(cutlass.Uint32) // next_n.to(cutlass.Uint32)).to(Int32)
    return inverse, line


@cute.jit
def load_words(bits, logits, logits_stride_0, row, column, limit, lane):
    """Load the bit patterns of each warp's columns from `column` on.

    A column at or past `limit` gives 0, unread.
    """
    own = column + lane
    scores = logits + Int64(row) * logits_stride_0 + own
    left = limit - own
    for j in cutlass.range_constexpr(KEEP):
        bits[j] = scalars.load_below(scores + WORD * j, WORD * j, left)


@cute.jit
def take_all(
    indices, indices_stride_0, row, k, length, first, block_table, block_table_stride_0, line, page_size,
    inverse, thread
):
    """Write a row of at most `k` scores without reading them: every position from `first` on, then -1.

    The CTAs take slots in turn.
    """
    out = indices + Int64(row) * indices_stride_0
    table = block_table + Int64(line) * block_table_stride_0
    for slot in cutlass.range(thread, k, THREADS, unroll=1):
        id = Int32(-1)
        if slot < length:
            id = first + slot
            if page_size > 0:
                page_position = id
                page_or_less = warps.mul_hi(page_position.to(cutlass.Uint32), inverse).to(Int32)
                page_rest = page_position - page_or_less * page_size
                page = cutlass.select_(page_rest >= page_size, page_or_less + 1, page_or_less)
                entry = Int32(0)
                entry = table[page]
                id = entry * page_size + cutlass.select_(
                    page_rest >= page_size, page_rest - page_size, page_rest
                )
        out[slot] = id


@cute.jit
def load_sample(bits, logits, logits_stride_0, row, start, last, warp, lane):
    """Load the bit patterns of a sample: one word in `every`, with -inf where the row has no column.

    Word j of a warp is in run `j * cta_warps + warp` of `every` words. Its place in the run changes
    from run to run.
    """
    scores = logits + Int64(row) * logits_stride_0
    for j in cutlass.range_constexpr(FEW):
        column = ((start >> 5) + ((warp + j * WARPS) * SAMPLE + (warp + 5 * j & SAMPLE - 1))) * WORD + lane
        bits[j] = scalars.load_below(scores + column, column, last)
    # A loop of its own, so that all loads are in flight together.
    for j in cutlass.range_constexpr(FEW):
        column = ((start >> 5) + ((warp + j * WARPS) * SAMPLE + (warp + 5 * j & SAMPLE - 1))) * WORD + lane
        bits[j] = cutlass.select_((column >= start) & (column < last), bits[j], cutlass.Uint32(4286578688))


@cute.jit
def clear_count_1024(words, thread):
    """Zero `count` words of shared memory, with stores of 16 bytes."""
    begin = words
    zero = cute.make_rmem_tensor(QUAD, Int32)
    zero[0] = Int32(0)
    zero[1] = Int32(0)
    zero[2] = Int32(0)
    zero[3] = Int32(0)
    if thread < 256:
        cute.autovec_copy(zero, warps.group(begin, QUAD, thread))


@cute.jit
def make_keys_few_digits(bits, digits, column, lane):
    """Turn loaded bit patterns into keys in place, and pair up the first digits of keys if `digits` is
    given.

    Columns outside [lo, hi) get key 0 and the last bin, which no score has.
    """
    for j in cutlass.range_constexpr(FEW // 2):
        low = scalars.bits_of(scalars.add_rn(scalars.float_of(bits[2 * j]), 0.0))
        high = scalars.bits_of(scalars.add_rn(scalars.float_of(bits[2 * j + 1]), 0.0))
        same = low.to(Int32)
        bits[2 * j] = (same ^ (same >> 31 | SIGN)).to(cutlass.Uint32)
        same = high.to(Int32)
        bits[2 * j + 1] = (same ^ (same >> 31 | SIGN)).to(cutlass.Uint32)
        pair = scalars.halves(scalars.float_of(low), scalars.float_of(high))
        digits[j] = pair ^ (~scalars.permute_bytes(pair, pair, 48025) & 2147450879)
    if (column < 0) | (column + WORD * FEW > THREADS * FEW):
        own = column + lane
        for j in cutlass.range_constexpr(FEW // 2):
            if (own + 2 * WORD * j < 0) | (own + 2 * WORD * j >= THREADS * FEW):
                bits[2 * j] = cutlass.Uint32(0)
                digits[j] = digits[j] | 65535
            if (own + (2 * WORD * j + WORD) < 0) | (own + (2 * WORD * j + WORD) >= THREADS * FEW):
                bits[2 * j + 1] = cutlass.Uint32(0)
                digits[j] = digits[j] | cutlass.Uint32(4294901760)


@cute.jit
def count_first_few_digits(hist, digits, column):
    """Count the first digits of a batch that has columns of the row."""
    if (column < THREADS * FEW) & (column + 2 * WORD * (FEW // 2) > 0):
        for j in cutlass.range_constexpr(FEW // 2):
            warps.atomic_add(hist + (digits[j] >> 5 & BINS - 1), 1)
            warps.atomic_add(hist + (digits[j] >> 21), 1)


@cute.jit
def sum_bins_first_0(mine, hist, sums, thread, warp, lane):
    """Each thread reads its bins.

    `through` is the warp's sum up to these bins, and `sums` gets each warp's total.
    """
    bins = hist
    cute.autovec_copy(warps.group(bins, BINS // THREADS, thread), mine)
    through = warps.scan(mine[0] + mine[1] + mine[2] + mine[3])
    if lane == LAST_LANE:
        sums[warp] = through
    return through


@cute.jit
def pick_bin_half(state, mine, through, sums, need, thread, warp, lane):
    """The thread with the `need`-th key from the top writes the range of that key's bin to `state`.

    `half`: the bins are those of the first digit.
    """
    own = mine[0] + mine[1] + mine[2] + mine[3]
    other = Int32(0)
    if lane < warp:
        other = sums[lane]
    left = need - (through - own + warps.warp_sum(other))
    if (left > 0) & (left <= own):
        digit = Int32(thread * (BINS // THREADS))
        inside = Int32(mine[0])
        before = Int32(0)
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
        wanted = Int32(left - before)
        top = cutlass.Uint32(4294967295)
        if digit > 0:
            upper_bin = BINS - digit - BINS // 2
            upper_sign = (upper_bin >> 31).to(cutlass.Uint32)
            top = (
                scalars.bits_of(
                    scalars.float_of_half(cutlass.max(upper_bin, 0 - upper_bin) << 5)
                ) ^ upper_sign
            ) - upper_sign + cutlass.Uint32(2147483648) - 1
        lower_bin = BINS - 1 - digit - BINS // 2
        lower_sign = (lower_bin >> 31).to(cutlass.Uint32)
        width = cutlass.Uint32(
            top - (
                (
                    scalars.bits_of(
                        scalars.float_of_half(cutlass.max(lower_bin, 0 - lower_bin) << 5)
                    ) ^ lower_sign
                ) - lower_sign + cutlass.Uint32(2147483648)
            )
        )
        if wanted == inside:
            top = top - width - 1
            width = cutlass.Uint32(0)
            wanted = Int32(0)
            inside = Int32(0)
        words = cute.make_rmem_tensor(4, Int32)
        words[0] = top.to(Int32)
        words[1] = width.to(Int32)
        words[2] = wanted
        words[3] = inside
        cute.autovec_copy(words, warps.group(state, 4, 0))


@cute.jit
def read_state(state):
    """Read the undecided range of the last round: end, span, keys needed of it and keys in it."""
    words = cute.make_rmem_tensor(4, Int32)
    cute.autovec_copy(warps.group(state, 4, 0), words)
    end = words[0].to(cutlass.Uint32)
    span = words[1].to(cutlass.Uint32)
    need = words[2].to(Int32)
    inside = words[3].to(Int32)
    return end, span, need, inside


@cute.jit
def count_keys_few(hist, first, bits, end, span):
    """Count the next digit of the undecided keys of a batch, in the bins from `first` on."""
    shift = cutlass.max(32 - warps.clz(span) - 11, 0).to(cutlass.Uint32)
    bins = hist + first
    for j in cutlass.range_constexpr(FEW):
        below = end - bits[j]
        warps.count_where(bins + (below >> shift), below <= span)


@cute.jit
def clear_count_2048(words, first, thread):
    """Zero `count` words of shared memory, with stores of 16 bytes."""
    begin = words + first
    zero = cute.make_rmem_tensor(QUAD, Int32)
    zero[0] = Int32(0)
    zero[1] = Int32(0)
    zero[2] = Int32(0)
    zero[3] = Int32(0)
    for i in cutlass.range_constexpr(1):
        cute.autovec_copy(zero, warps.group(begin, QUAD, i * THREADS + thread))


@cute.jit
def sum_bins(mine, hist, first, sums, thread, warp, lane):
    """Each thread reads its bins.

    `through` is the warp's sum up to these bins, and `sums` gets each warp's total.
    """
    bins = hist + first
    cute.autovec_copy(warps.group(bins, BINS // THREADS, thread), mine)
    through = warps.scan(mine[0] + mine[1] + mine[2] + mine[3])
    if lane == LAST_LANE:
        sums[warp] = through
    return through


@cute.jit
def pick_bin(state, mine, through, sums, need, end, span, thread, warp, lane):
    """The thread with the `need`-th key from the top writes the range of that key's bin to `state`.

    `half`: the bins are those of the first digit.
    """
    own = mine[0] + mine[1] + mine[2] + mine[3]
    other = Int32(0)
    if lane < warp:
        other = sums[lane]
    left = need - (through - own + warps.warp_sum(other))
    if (left > 0) & (left <= own):
        digit = Int32(thread * (BINS // THREADS))
        inside = Int32(mine[0])
        before = Int32(0)
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
        wanted = Int32(left - before)
        shift = cutlass.max(32 - warps.clz(span) - 11, 0).to(cutlass.Uint32)
        below = digit.to(cutlass.Uint32) << shift
        top = cutlass.Uint32(end - below)
        width = cutlass.Uint32(cutlass.min(span - below, (1 << shift) - 1))
        if wanted == inside:
            top = top - width - 1
            width = cutlass.Uint32(0)
            wanted = Int32(0)
            inside = Int32(0)
        words = cute.make_rmem_tensor(4, Int32)
        words[0] = top.to(Int32)
        words[1] = width.to(Int32)
        words[2] = wanted
        words[3] = inside
        cute.autovec_copy(words, warps.group(state, 4, 0))


@cute.jit
def list_row(
    keys, ahead, logits, logits_stride_0, row, stride, entries, counters, bottom, origin, start, last,
    batches, warp, lane
):
    """List the bit patterns of scores that reach `bottom`. A warp stops when `room` is full.

    Positions count from `origin`, a multiple of WORD. A warp has two batches in turn: one is in flight
    while it lists the other. A batch that would end past the row is read from the row's last full
    batch. Batches begin on a multiple of 16 bytes, so warp 0 reads up to three columns before the first
    batch, and after the last one, on their own.
    """
    listed = Int32(0)
    batch = Int32(0)
    same = bottom.to(Int32)
    less = scalars.add_rn(scalars.float_of((same ^ (~(same >> 31) & 2147483647)).to(cutlass.Uint32)), 0.0)
    whole = logits + Int64(row) * logits_stride_0
    ahead_of_all = 0 - leaf.past16(whole) & QUAD - 1
    behind_all = stride - ahead_of_all & QUAD - 1
    begin = Int32(origin + ahead_of_all)
    last_read = Int32(stride - behind_all - WORD * KEEP)
    if (warp == 0) & (ahead_of_all | behind_all != 0):
        at = cutlass.select_(lane < QUAD, origin + lane, last_read + WORD * KEEP + (lane - QUAD))
        first_edge = cutlass.select_(lane < QUAD, start, cutlass.max(start, begin))
        end = cutlass.min(last, cutlass.select_(lane < QUAD, begin, stride))
        edge = cutlass.Uint32(4286578688)
        if (at >= first_edge) & (at < end):
            row_of_edges = logits + Int64(row) * logits_stride_0
            edge = scalars.bits_of(row_of_edges[at])
        wanted = Int32(1 - (scalars.bits_of(scalars.add_rn(scalars.float_of(edge), less)) >> 31).to(Int32))
        through = warps.scan(wanted)
        room = Int32(0)
        if lane == LAST_LANE:
            room = warps.fetch_add(counters, through)
        slot = warps.shuffle(room, LAST_LANE) + through
        if (wanted != 0) & (slot <= LISTED):
            entries[slot - 1] = warps.make_pair(edge, ~(at - origin))
    scores = logits + Int64(row) * logits_stride_0 + cutlass.min(begin + warp * (WORD * KEEP), last_read)
    quad = cute.make_rmem_tensor(QUAD, Float32)
    for j in cutlass.range_constexpr(KEEP // QUAD):
        cute.autovec_copy(warps.group(scores, QUAD, WORD * j + lane), quad)
        keys[QUAD * j] = scalars.bits_of(quad[0])
        keys[QUAD * j + 1] = scalars.bits_of(quad[1])
        keys[QUAD * j + 2] = scalars.bits_of(quad[2])
        keys[QUAD * j + 3] = scalars.bits_of(quad[3])
    while (batch < batches) & (listed <= LISTED):
        scores = logits + Int64(row) * logits_stride_0 + cutlass.min(
            begin + ((batch + 1) * WARPS + warp) * (WORD * KEEP), last_read
        )
        quad = cute.make_rmem_tensor(QUAD, Float32)
        for j in cutlass.range_constexpr(KEEP // QUAD):
            cute.autovec_copy(warps.group(scores, QUAD, WORD * j + lane), quad)
            ahead[QUAD * j] = scalars.bits_of(quad[0])
            ahead[QUAD * j + 1] = scalars.bits_of(quad[1])
            ahead[QUAD * j + 2] = scalars.bits_of(quad[2])
            ahead[QUAD * j + 3] = scalars.bits_of(quad[3])
        at = cutlass.min(begin + (batch * WARPS + warp) * (WORD * KEEP), last_read)
        first = cutlass.max(start, begin + (batch * WARPS + warp) * (WORD * KEEP))
        left = Int32(0)
        own = at + QUAD * lane
        if (at < first) | (at + WORD * KEEP > last):
            for j in cutlass.range_constexpr(KEEP):
                if (own + (j + (j >> 2) * (QUAD * WORD - QUAD)) < first) | (
                    own + (j + (j >> 2) * (QUAD * WORD - QUAD)) >= last
                ):
                    keys[j] = cutlass.Uint32(4286578688)
        # A bit per score: the sign of the score minus that of `bottom`; NaN has none.
        for j in cutlass.range_constexpr(KEEP):
            left = scalars.funnel_left(
                scalars.bits_of(scalars.add_rn(scalars.float_of(keys[KEEP - 1 - j]), less)), left, 1
            )
        left = ~left & 255
        through = warps.scan(warps.popc(left))
        total = warps.shuffle(through, LAST_LANE)
        if total > 0:
            room = Int32(0)
            if lane == LAST_LANE:
                room = warps.fetch_add(counters, through)
            taken = warps.shuffle(room, LAST_LANE)
            listed = taken + total
            if listed <= LISTED:
                slot = Int32(taken + through)
                while left != 0:
                    lowest = left & 0 - left
                    number = LAST_LANE - warps.clz(lowest)
                    key = cutlass.Uint32(
                        cutlass.select_(
                            number & 4 != 0,
                            cutlass.select_(
                                number & 2 != 0, cutlass.select_(number & 1 != 0, keys[7], keys[6]),
                                cutlass.select_(number & 1 != 0, keys[5], keys[4])
                            ),
                            cutlass.select_(
                                number & 2 != 0, cutlass.select_(number & 1 != 0, keys[3], keys[2]),
                                cutlass.select_(number & 1 != 0, keys[1], keys[0])
                            )
                        )
                    )
                    slot = slot - 1
                    entries[slot] = warps.make_pair(
                        key, ~(own - origin) - (number + (number >> 2) * (QUAD * WORD - QUAD))
                    )
                    left = left ^ lowest
        scores = logits + Int64(row) * logits_stride_0 + cutlass.min(
            begin + ((batch + 2) * WARPS + warp) * (WORD * KEEP), last_read
        )
        quad = cute.make_rmem_tensor(QUAD, Float32)
        for j in cutlass.range_constexpr(KEEP // QUAD):
            cute.autovec_copy(warps.group(scores, QUAD, WORD * j + lane), quad)
            keys[QUAD * j] = scalars.bits_of(quad[0])
            keys[QUAD * j + 1] = scalars.bits_of(quad[1])
            keys[QUAD * j + 2] = scalars.bits_of(quad[2])
            keys[QUAD * j + 3] = scalars.bits_of(quad[3])
        at = cutlass.min(begin + ((batch + 1) * WARPS + warp) * (WORD * KEEP), last_read)
        first = cutlass.max(start, begin + ((batch + 1) * WARPS + warp) * (WORD * KEEP))
        left = Int32(0)
        own = at + QUAD * lane
        if (at < first) | (at + WORD * KEEP > last):
            for j in cutlass.range_constexpr(KEEP):
                if (own + (j + (j >> 2) * (QUAD * WORD - QUAD)) < first) | (
                    own + (j + (j >> 2) * (QUAD * WORD - QUAD)) >= last
                ):
                    ahead[j] = cutlass.Uint32(4286578688)
        # A bit per score: the sign of the score minus that of `bottom`; NaN has none.
        for j in cutlass.range_constexpr(KEEP):
            left = scalars.funnel_left(
                scalars.bits_of(scalars.add_rn(scalars.float_of(ahead[KEEP - 1 - j]), less)), left, 1
            )
        left = ~left & 255
        through = warps.scan(warps.popc(left))
        total = warps.shuffle(through, LAST_LANE)
        if total > 0:
            room = Int32(0)
            if lane == LAST_LANE:
                room = warps.fetch_add(counters, through)
            taken = warps.shuffle(room, LAST_LANE)
            listed = taken + total
            if listed <= LISTED:
                slot = Int32(taken + through)
                while left != 0:
                    lowest = left & 0 - left
                    number = LAST_LANE - warps.clz(lowest)
                    key = cutlass.Uint32(
                        cutlass.select_(
                            number & 4 != 0,
                            cutlass.select_(
                                number & 2 != 0, cutlass.select_(number & 1 != 0, ahead[7], ahead[6]),
                                cutlass.select_(number & 1 != 0, ahead[5], ahead[4])
                            ),
                            cutlass.select_(
                                number & 2 != 0, cutlass.select_(number & 1 != 0, ahead[3], ahead[2]),
                                cutlass.select_(number & 1 != 0, ahead[1], ahead[0])
                            )
                        )
                    )
                    slot = slot - 1
                    entries[slot] = warps.make_pair(
                        key, ~(own - origin) - (number + (number >> 2) * (QUAD * WORD - QUAD))
                    )
                    left = left ^ lowest
        batch = batch + 2


@cute.jit
def make_keys(bits, column, lo, hi, lane):
    """Turn loaded bit patterns into keys in place, and pair up the first digits of keys if `digits` is
    given.

    Columns outside [lo, hi) get key 0 and the last bin, which no score has.
    """
    for j in cutlass.range_constexpr(KEEP // 2):
        low = scalars.bits_of(scalars.add_rn(scalars.float_of(bits[2 * j]), 0.0))
        high = scalars.bits_of(scalars.add_rn(scalars.float_of(bits[2 * j + 1]), 0.0))
        same = low.to(Int32)
        bits[2 * j] = (same ^ (same >> 31 | SIGN)).to(cutlass.Uint32)
        same = high.to(Int32)
        bits[2 * j + 1] = (same ^ (same >> 31 | SIGN)).to(cutlass.Uint32)
    if (column < lo) | (column + WORD * KEEP > hi):
        own = column + lane
        for j in cutlass.range_constexpr(KEEP // 2):
            if (own + 2 * WORD * j < lo) | (own + 2 * WORD * j >= hi):
                bits[2 * j] = cutlass.Uint32(0)
            if (own + (2 * WORD * j + WORD) < lo) | (own + (2 * WORD * j + WORD) >= hi):
                bits[2 * j + 1] = cutlass.Uint32(0)


@cute.jit
def mark_equal(bits, equal, word, counters, tied, lane):
    """Mark a batch's keys that equal `tied`, from `word` of the bitmap on, and count them as kept."""
    words = cute.make_rmem_tensor(KEEP, Int32)
    own_words = equal + word
    for j in cutlass.range_constexpr(KEEP):
        words[j] = warps.ballot(bits[j] == tied)
    if lane == 0:
        for j in cutlass.range_constexpr(KEEP):
            own_words[j] = words[j]
    total = Int32(0)
    if lane == 0:
        for j in cutlass.range_constexpr(KEEP):
            total = total + warps.popc(words[j])
        warps.atomic_add(counters + 1, total)


@cute.jit
def key_entries(entries, total, counters, thread, lane):
    """Turn the bit patterns of the first `total` list entries into keys, and note the largest key."""
    largest = cutlass.Uint32(0)
    for i in cutlass.range(thread, total, THREADS, unroll=1):
        entry = entries[i]
        same = scalars.bits_of(
            scalars.add_rn(scalars.float_of(warps.pair_high(entry).to(cutlass.Uint32)), 0.0)
        ).to(Int32)
        key = (same ^ (same >> 31 | SIGN)).to(cutlass.Uint32)
        entries[i] = warps.make_pair(key, warps.pair_low(entry))
        largest = cutlass.max(largest, key)
    top = warps.warp_most(largest)
    if lane == 0:
        warps.raise_to(counters + 4, top)


@cute.jit
def sift(entries, total, above, equal, counters, end, span, inside, words, thread):
    """After the rounds over the list, mark entries above the range.

    If at most `ranked` entries are in the range, copy these to the list from `target` on. Otherwise
    mark them as equal.
    """
    for i in cutlass.range(thread, total, THREADS, unroll=1):
        entry = entries[i]
        key = warps.pair_high(entry).to(cutlass.Uint32)
        if key > end:
            place = ~warps.pair_low(entry)
            offset = place & 4194303
            owner = place >> OFFSET_BITS
            if owner < 0:
                warps.atomic_add(counters + 2, 1)
            if (owner >= 0) & (owner < WARPS):
                warps.set_bits(above + (owner * words + (offset >> 5)), 1 << (offset & 31))
        if (end - key <= span) & (inside > 0):
            if inside > RANKED:
                place = ~warps.pair_low(entry)
                offset = place & 4194303
                owner = place >> OFFSET_BITS
                if owner < 0:
                    warps.atomic_add(counters + 3, 1)
                if (owner >= 0) & (owner < WARPS):
                    warps.set_bits(equal + (owner * words + (offset >> 5)), 1 << (offset & 31))
            else:
                slot = Int32(0)
                slot = warps.fetch_add(counters + 1, 1)
                entries[LISTED + slot] = entry


@cute.jit
def make_keys_digits(bits, digits, column, lo, hi, lane):
    """Turn loaded bit patterns into keys in place, and pair up the first digits of keys if `digits` is
    given.

    Columns outside [lo, hi) get key 0 and the last bin, which no score has.
    """
    for j in cutlass.range_constexpr(KEEP // 2):
        low = scalars.bits_of(scalars.add_rn(scalars.float_of(bits[2 * j]), 0.0))
        high = scalars.bits_of(scalars.add_rn(scalars.float_of(bits[2 * j + 1]), 0.0))
        same = low.to(Int32)
        bits[2 * j] = (same ^ (same >> 31 | SIGN)).to(cutlass.Uint32)
        same = high.to(Int32)
        bits[2 * j + 1] = (same ^ (same >> 31 | SIGN)).to(cutlass.Uint32)
        pair = scalars.halves(scalars.float_of(low), scalars.float_of(high))
        digits[j] = pair ^ (~scalars.permute_bytes(pair, pair, 48025) & 2147450879)
    if (column < lo) | (column + WORD * KEEP > hi):
        own = column + lane
        for j in cutlass.range_constexpr(KEEP // 2):
            if (own + 2 * WORD * j < lo) | (own + 2 * WORD * j >= hi):
                bits[2 * j] = cutlass.Uint32(0)
                digits[j] = digits[j] | 65535
            if (own + (2 * WORD * j + WORD) < lo) | (own + (2 * WORD * j + WORD) >= hi):
                bits[2 * j + 1] = cutlass.Uint32(0)
                digits[j] = digits[j] | cutlass.Uint32(4294901760)


@cute.jit
def count_first_digits(hist, digits, column, lo, hi):
    """Count the first digits of a batch that has columns of the row."""
    if (column < hi) & (column + 2 * WORD * (KEEP // 2) > lo):
        for j in cutlass.range_constexpr(KEEP // 2):
            warps.atomic_add(hist + (digits[j] >> 5 & BINS - 1), 1)
            warps.atomic_add(hist + (digits[j] >> 21), 1)


@cute.jit
def count_keys_keys(hist, first, bits, end, span):
    """Count the next digit of the undecided keys of a batch, in the bins from `first` on."""
    shift = cutlass.max(32 - warps.clz(span) - 11, 0).to(cutlass.Uint32)
    bins = hist + first
    for j in cutlass.range_constexpr(KEEP):
        below = end - bits[j]
        warps.count_where(bins + (below >> shift), below <= span)


@cute.jit
def collect(bits, above, equal, word, counters, entries, first, end, span, listing, owner, offset, lane):
    """Mark a batch's keys above the range, in words of the bitmap from `word` on. List the keys in the
    range.

    The list begins with entry `first`. A warp takes its entries with one atomic. Without `listing`,
    keys in the range are marked in `equal`.
    """
    words = cute.make_rmem_tensor(KEEP, Int32)
    own_words = above + word
    for j in cutlass.range_constexpr(KEEP):
        words[j] = warps.ballot(bits[j] > end)
    if lane == 0:
        for j in cutlass.range_constexpr(KEEP):
            own_words[j] = words[j]
    if listing:
        left = Int32(0)
        for j in cutlass.range_constexpr(KEEP):
            left = left | cutlass.select_(end - bits[j] <= span, 1 << j, 0)
        if warps.any_lane(left != 0):
            slot = Int32(warps.scan(warps.popc(left)))
            room = Int32(0)
            if lane == LAST_LANE:
                room = warps.fetch_add(counters, slot)
            slot = slot + warps.shuffle(room, LAST_LANE)
            place = Int32(~(owner << OFFSET_BITS | offset + lane))
            listed = entries + first
            for j in cutlass.range_constexpr(KEEP):
                if end - bits[j] <= span:
                    slot = slot - 1
                    listed[slot] = warps.make_pair(bits[j], place - WORD * j)
    else:
        words = cute.make_rmem_tensor(KEEP, Int32)
        own_words = equal + word
        for j in cutlass.range_constexpr(KEEP):
            words[j] = warps.ballot(end - bits[j] <= span)
        if lane == 0:
            for j in cutlass.range_constexpr(KEEP):
                own_words[j] = words[j]


@cute.jit
def count_listed(hist, first, entries, total, end, span, thread):
    """Count the next digit of the undecided keys among the first `total` list entries."""
    shift = cutlass.max(32 - warps.clz(span) - 11, 0).to(cutlass.Uint32)
    bins = hist + first
    for i in cutlass.range(thread, total, THREADS, unroll=1):
        below = end - warps.pair_high(entries[i]).to(cutlass.Uint32)
        warps.count_where(bins + (below >> shift), below <= span)


@cute.jit
def bound_listed(entries, total, counters, end, span, thread, lane):
    """Note the largest and the smallest undecided key of the first `total` list entries."""
    largest = cutlass.Uint32(0)
    under = cutlass.Uint32(0)
    for i in cutlass.range(thread, total, THREADS, unroll=1):
        key = warps.pair_high(entries[i]).to(cutlass.Uint32)
        if end - key <= span:
            largest = cutlass.max(largest, key)
            under = cutlass.max(under, ~key)
    upper = warps.warp_most(largest)
    lower = warps.warp_most(under)
    if lane == 0:
        warps.raise_to(counters + 5, upper)
        warps.raise_to(counters + 6, lower)


@cute.jit
def read_bounded(end, span, counters):
    """Narrow the range to the undecided keys, from the smallest to the largest.

    It is one key where all are equal.
    """
    bottom = cutlass.max(end - span, ~counters[6].to(cutlass.Uint32))
    end = cutlass.min(end, counters[5].to(cutlass.Uint32))
    span = end - bottom
    return end, span


@cute.jit
def rank_entries(entries, first, count, need, above, counters, words, warp, lane):
    """Mark the `need` largest of at most 64 entries.

    A warp ranks an entry, and each lane compares it with two others.
    """
    low = Int64(0)
    high = Int64(0)
    if lane < count:
        low = entries[first + lane]
    if lane + WORD < count:
        high = entries[first + (lane + WORD)]
    for i in cutlass.range(warp, count, WARPS, unroll=1):
        entry = entries[first + i]
        ahead = warps.popc(warps.ballot(warps.unsigned_above(low, entry))) + warps.popc(
            warps.ballot(warps.unsigned_above(high, entry))
        )
        if (ahead < need) & (lane == 0):
            place = ~warps.pair_low(entry)
            offset = place & 4194303
            owner = place >> OFFSET_BITS
            if owner < 0:
                warps.atomic_add(counters + 2, 1)
            if (owner >= 0) & (owner < WARPS):
                warps.set_bits(above + (owner * words + (offset >> 5)), 1 << (offset & 31))


@cute.jit
def count_marks(bitmap, sums, first, words, warp, lane):
    """Count each warp's marked columns in `sums`. `before` counts those of lower lanes.

    A lane has consecutive words.
    """
    own = Int32(0)
    each = leaf.ceildiv(words, WORD)
    begin = lane * each
    final = cutlass.min(begin + each, words)
    for i in cutlass.range(begin, final, 1, unroll=1):
        own = own + warps.popc(bitmap[first + i])
    through = warps.scan(own)
    if lane == LAST_LANE:
        sums[warp] = through
    before = through - own
    return before


@cute.jit
def take_ties(before, above, equal, sums, take, first, words, warp, lane):
    """Select the first `take` columns marked as equal, in order of position."""
    each = leaf.ceildiv(words, WORD)
    begin = lane * each
    final = cutlass.min(begin + each, words)
    other = Int32(0)
    if lane < warp:
        other = sums[lane]
    left = Int32(take - warps.warp_sum(other) - before)
    for i in cutlass.range(begin, final, 1, unroll=1):
        word = Int32(equal[first + i])
        found = warps.popc(word)
        if left > 0:
            for bit in cutlass.range(left, found, 1, unroll=1):
                word = word ^ 1 << (LAST_LANE - warps.clz(word))
            above[first + i] = above[first + i] | word
        left = left - found


@cute.jit
def place_marks(placed, before, sums, above, first, words, position, warp, lane):
    """Write the positions of each warp's marked columns, ascending, after those of lower warps and lanes.

    A warp goes through `dense` bitmaps, with at most one word per lane, a word at a time. `dense` is 0
    where bitmaps never are dense.
    """
    other = Int32(0)
    if lane < warp:
        other = sums[lane]
    place = Int32(before + warps.warp_sum(other))
    each = leaf.ceildiv(words, WORD)
    begin = lane * each
    final = cutlass.min(begin + each, words)
    for i in cutlass.range(begin, final, 1, unroll=1):
        word = Int32(above[first + i])
        while word != 0:
            lowest = word & 0 - word
            number = LAST_LANE - warps.clz(lowest)
            placed[place] = position + i * WORD + number
            place = place + 1
            word = word ^ lowest


@cute.jit
def write_ids(
    indices, indices_stride_0, row, k, skip, placed, block_table, block_table_stride_0, line, page_size,
    inverse, thread
):
    """Write the ids of this CTA's positions from slot `skip` on.

    In a group, `sums` gives the number of positions; a lone CTA has `k`. `pages` holds the page-table
    entries from `first_page` on, unless `first_page` is -1.
    """
    out = indices + Int64(row) * indices_stride_0 + skip
    table = block_table + Int64(line) * block_table_stride_0
    for slot in cutlass.range(thread, k, THREADS, unroll=4):
        id = Int32(0)
        id = placed[slot]
        if page_size > 0:
            page_position = id
            page_or_less = warps.mul_hi(page_position.to(cutlass.Uint32), inverse).to(Int32)
            page_rest = page_position - page_or_less * page_size
            page = cutlass.select_(page_rest >= page_size, page_or_less + 1, page_or_less)
            entry = Int32(0)
            entry = table[page]
            id = entry * page_size + cutlass.select_(page_rest >= page_size, page_rest - page_size, page_rest)
        out[slot] = id


@cute.jit
def select(
    logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer,
    next_n: Int32, page_size: Int32, absolute: Int32, indices: cute.Pointer, stride: Int32,
    logits_stride: Int32, block_table_stride: Int32, k: Int32, indices_stride: Int32, hist: cute.Pointer,
    entries: cute.Pointer, above: cute.Pointer, equal: cute.Pointer, sums: cute.Pointer, state: cute.Pointer,
    counters: cute.Pointer, row: Int32, owner: Int32, thread: Int32, warp: Int32, lane: Int32
):
    """Every warp owns a run of words of 32 columns."""
    keys = cute.make_rmem_tensor(KEEP, cutlass.Uint32)
    digits = cute.make_rmem_tensor(KEEP // 2, cutlass.Uint32)
    mine = cute.make_rmem_tensor(BINS // THREADS, Int32)
    ahead = cute.make_rmem_tensor(KEEP, cutlass.Uint32)
    few = cute.make_rmem_tensor(FEW, cutlass.Uint32)
    few_digits = cute.make_rmem_tensor(FEW // 2, cutlass.Uint32)
    worker = thread
    clear_count_4096(hist, worker)
    clear_count_8(counters, worker)
    inverse, line = page_row(row, next_n, page_size)
    cute.arch.griddepcontrol_wait()
    fits = Int32(0)
    if stride <= HELD:
        fits = stride
    load_words(keys, logits, logits_stride, row, owner * BATCH, fits, lane)
    start = cutlass.max(row_starts[row], 0)
    last = cutlass.min(row_ends[row], stride)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.sync_threads()
    if last - start <= k:
        take_all(
            indices, indices_stride, row, k, last - start, start * absolute, block_table, block_table_stride,
            line, page_size, inverse, worker
        )
    else:
        origin = Int32(0)
        run = Int32(KEEP)
        if stride > HELD:
            origin = start >> 5 << 5
            run = leaf.ceildiv(last - origin, WORD * WARPS)
        batches = leaf.ceildiv(run, KEEP)
        words = batches * KEEP
        # A run has whole batches, so that a word of the bitmaps is a word of the row.
        run = words
        base = origin + owner * run * WORD
        hi = cutlass.min(last, base + run * WORD)
        end = cutlass.Uint32(0)
        span = cutlass.Uint32(0)
        need = Int32(k)
        inside = Int32(0)
        lower = Int32(0)
        within = Int32(0)
        rounds = Int32(0)
        through = Int32(0)
        unlisted = Boolean(True)
        tied = cutlass.Uint32(0)
        if stride > HELD:
            load_sample(few, logits, logits_stride, row, start, last, warp, lane)
            clear_count_1024(above, worker)
            make_keys_few_digits(few, few_digits, warp * (FEW * WORD), lane)
            count_first_few_digits(hist, few_digits, warp * (FEW * WORD))
            need = k // SAMPLE + k // SAMPLE // 4 + SPARE
            cute.arch.sync_threads()
            through = sum_bins_first_0(mine, hist, sums, worker, warp, lane)
            cute.arch.sync_threads()
            pick_bin_half(state, mine, through, sums, need, worker, warp, lane)
            cute.arch.sync_threads()
            end, span, need, inside = read_state(state)
            rounds = rounds + 1
            while (inside > BETWEEN) & (span != 0):
                count_keys_few(hist, (rounds & 1) * BINS, few, end, span)
                clear_count_2048(hist, (rounds + 1 & 1) * BINS, worker)
                cute.arch.sync_threads()
                through = sum_bins(mine, hist, (rounds & 1) * BINS, sums, worker, warp, lane)
                cute.arch.sync_threads()
                pick_bin(state, mine, through, sums, need, end, span, worker, warp, lane)
                cute.arch.sync_threads()
                end, span, need, inside = read_state(state)
                rounds = rounds + 1
            # Too many equal keys for the list: it gets the keys above, and the first equal keys are taken.
            if (inside > BETWEEN) & (span == 0) & (end < 4286578688):
                tied = end
                end = end + 1
            bottom = cutlass.Uint32(cutlass.min(cutlass.max(end - span, 8388608), 4286578688))
            list_row(
                keys, ahead, logits, logits_stride, row, stride, entries, counters, bottom, origin, start,
                last, batches, warp, lane
            )
            need = k
            if tied != 0:
                clear_count_1024(equal, worker)
            cute.arch.sync_threads()
            inside = counters[0]
            unlisted = (inside < need) | (inside > LISTED)
            if tied != 0:
                found = Int32(0)
                turn = Int32(0)
                while (turn < batches) & (inside + found < need):
                    word = (turn * WARPS + warp) * KEEP
                    column = origin + word * WORD
                    load_words(keys, logits, logits_stride, row, column, stride, lane)
                    make_keys(keys, column, start, last, lane)
                    mark_equal(keys, equal, word, counters, tied, lane)
                    cute.arch.sync_threads()
                    found = counters[1]
                    cute.arch.sync_threads()
                    turn = turn + 1
                unlisted = (inside + found < need) | (inside > LISTED)
                if unlisted | (inside >= need):
                    tied = cutlass.Uint32(0)
            if unlisted:
                cute.arch.sync_threads()
                rounds = Int32(0)
                clear_count_4096(hist, worker)
                clear_count_8(counters, worker)
                cute.arch.sync_threads()
            else:
                key_entries(entries, inside, counters, worker, lane)
                cute.arch.sync_threads()
                if tied == 0:
                    # The range begins at the threshold: a search for the smallest key takes 0.9 us more.
                    end = counters[4].to(cutlass.Uint32)
                    span = end - bottom
                else:
                    end = tied
                    span = cutlass.Uint32(0)
                    need = need - inside
                    sift(entries, inside, above, equal, counters, end, span, inside, words, worker)
                    inside = Int32(0)
        if unlisted:
            for step in cutlass.range(batches, unroll=1):
                column = base + step * BATCH
                if (step > 0) | (stride > HELD):
                    load_words(keys, logits, logits_stride, row, column, hi, lane)
                make_keys_digits(keys, digits, column, start, hi, lane)
                count_first_digits(hist, digits, column, start, hi)
            cute.arch.sync_threads()
            through = sum_bins_first_0(mine, hist, sums, worker, warp, lane)
            cute.arch.sync_threads()
            pick_bin_half(state, mine, through, sums, need, worker, warp, lane)
            cute.arch.sync_threads()
            end, span, need, inside = read_state(state)
            rounds = rounds + 1
            # Count more digits over the row while the undecided keys are too many to list.
            while (inside > LISTED) & (span != 0):
                for step in cutlass.range(batches, unroll=1):
                    if batches > 1:
                        column = base + step * BATCH
                        load_words(keys, logits, logits_stride, row, column, hi, lane)
                        make_keys(keys, column, start, hi, lane)
                    count_keys_keys(hist, (rounds & 1) * BINS, keys, end, span)
                clear_count_2048(hist, (rounds + 1 & 1) * BINS, worker)
                cute.arch.sync_threads()
                through = sum_bins(mine, hist, (rounds & 1) * BINS, sums, worker, warp, lane)
                cute.arch.sync_threads()
                pick_bin(state, mine, through, sums, need, end, span, worker, warp, lane)
                cute.arch.sync_threads()
                end, span, need, inside = read_state(state)
                rounds = rounds + 1
        # One pass marks keys above the range and lists keys in it; registers hold the last batch.
        listing = (inside > 0) & (inside <= LISTED)
        if unlisted:
            for step in cutlass.range(batches, unroll=1):
                batch = batches - 1 - step
                if step > 0:
                    column = base + batch * BATCH
                    load_words(keys, logits, logits_stride, row, column, hi, lane)
                    make_keys(keys, column, start, hi, lane)
                collect(
                    keys, above, equal, (warp * batches + batch) * KEEP, counters, entries, within, end, span,
                    listing, owner, batch * BATCH, lane
                )
        cute.arch.sync_threads()
        first = warp * words
        ties = Int32(cutlass.max(need - within, 0))
        skip = Int32(lower + cutlass.min(within, need))
        if listing:
            ranked = Int32(0)
            if inside > RANKED:
                total = Int32(inside)
                while (inside > RANKED) & (span != 0):
                    count_listed(hist, (rounds & 1) * BINS, entries, total, end, span, worker)
                    clear_count_2048(hist, (rounds + 1 & 1) * BINS, worker)
                    cute.arch.sync_threads()
                    through = sum_bins(mine, hist, (rounds & 1) * BINS, sums, worker, warp, lane)
                    cute.arch.sync_threads()
                    pick_bin(state, mine, through, sums, need, end, span, worker, warp, lane)
                    cute.arch.sync_threads()
                    end, span, need, inside = read_state(state)
                    if inside > RANKED:
                        bound_listed(entries, total, counters, end, span, worker, lane)
                        cute.arch.sync_threads()
                        end, span = read_bounded(end, span, counters)
                    rounds = rounds + 1
                if inside > RANKED:
                    clear_count_1024(equal, worker)
                    cute.arch.sync_threads()
                sift(entries, total, above, equal, counters, end, span, inside, words, worker)
                ranked = Int32(LISTED)
                cute.arch.sync_threads()
            if inside <= RANKED:
                rank_entries(entries, ranked, inside, need, above, counters, words, warp, lane)
            cute.arch.sync_threads()
            # Lower ranks also select keys of the list, and take equal keys.
            lower_equal = counters[3]
            ties = Int32(0)
            if inside > RANKED:
                ties = cutlass.max(need - lower_equal, 0)
            skip = lower + counters[2] + cutlass.min(lower_equal, need)
        before = Int32(0)
        if ties > 0:
            before = count_marks(equal, sums, first, words, warp, lane)
            cute.arch.sync_threads()
            take_ties(before, above, equal, sums, ties, first, words, warp, lane)
            cute.arch.sync_threads()
        before = count_marks(above, sums, first, words, warp, lane)
        cute.arch.sync_threads()
        position = base + start * (absolute - 1)
        place_marks(hist, before, sums, above, first, words, position, warp, lane)
        cute.arch.sync_threads()
        write_ids(
            indices, indices_stride, row, k, skip, hist, block_table, block_table_stride, line, page_size,
            inverse, worker
        )


@cute.kernel
def topk_selector__cutedsl_sm90a__g1_t512_r8_c1_s16(
    logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer,
    next_n: Int32, page_size: Int32, absolute: Int32, indices: cute.Pointer, rows: Int32, stride: Int32,
    logits_stride: Int32, b: Int32, max_pages: Int32, block_table_stride: Int32, k: Int32,
    indices_stride: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    hist = shared.hist.data_ptr()
    entries = shared.entries.data_ptr()
    above = shared.above.data_ptr()
    equal = shared.equal.data_ptr()
    sums = shared.sums.data_ptr()
    state = shared.state.data_ptr()
    counters = shared.counters.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    row, rank, _ = cute.arch.block_idx()
    row = cute.arch.make_warp_uniform(row)
    owner = warp
    select(
        logits, row_starts, row_ends, block_table, next_n, page_size, absolute, indices, stride,
        logits_stride, block_table_stride, k, indices_stride, hist, entries, above, equal, sums, state,
        counters, row, owner, thread, warp, lane
    )


@cute.jit
def program(
    logits: cute.Pointer, row_starts: cute.Pointer, row_ends: cute.Pointer, block_table: cute.Pointer,
    next_n: Int32, page_size: Int32, absolute: Int32, indices: cute.Pointer, rows: Int32, stride: Int32,
    logits_stride: Int32, b: Int32, max_pages: Int32, block_table_stride: Int32, k: Int32,
    indices_stride: Int32
):
    kernel = topk_selector__cutedsl_sm90a__g1_t512_r8_c1_s16(
        logits, row_starts, row_ends, block_table, next_n, page_size, absolute, indices, rows, stride,
        logits_stride, b, max_pages, block_table_stride, k, indices_stride
    )
    kernel.launch(
        grid=(1, 1, 1), block=(512, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=3,
        preferred_smem_carveout=100
    )
