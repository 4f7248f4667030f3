"""Leaf maths of the exact top-k selection: keys and digits, closing a round, ranking, ordered output.

Shared buffers come whole, with a place in them where a leaf works on a part. What a warp works out together, every
lane calls. What each leaf means is in dsl_kernels/device/torch/topk_selector.py.
"""

from __future__ import annotations

import tilelang.language as T

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
}

# Not the pass over a sampled row: a batch of it is 16 registers of which one is picked by a number known at run time, and
# TileLang's kernels spilled 76 to 192 words.
UNSPELLED = ("load_quads",)

BINS = 2048
"""Bins of a histogram: eleven bits a digit."""

COARSE = 32
"""Coarse bins of a round in a cluster: one a lane."""

OFFSET_BITS = 22
"""Low bits of a list entry's position: the column within its warp's run. The owning warp stands above them."""

LISTED, KEPT, LOWER_ABOVE, LOWER_EQUAL = 0, 1, 2, 3
"""Counters: entries listed, entries kept for ranking, entries of lower ranks that are selected or may be."""

SOURCE = r"""
namespace dk {
constexpr unsigned ALL = 0xFFFFFFFFu;

__device__ __forceinline__ int warp_sum(int value) { return __reduce_add_sync(ALL, value); }
__device__ __forceinline__ unsigned ballot(bool yes) { return __ballot_sync(ALL, yes); }
__device__ __forceinline__ int shuffle(int value, int lane) { return __shfl_sync(ALL, value, lane); }

// Inclusive prefix sum over a warp.
__device__ __forceinline__ int scan(int value) {
  int lane = threadIdx.x % 32;
  for (int d = 1; d < 32; d *= 2) {
    int other = __shfl_up_sync(ALL, value, d);
    value += lane >= d ? other : 0;
  }
  return value;
}

// TileLang 0.1.15 fails to lower a branch on an order of unsigned values inside a loop.
__device__ __forceinline__ bool at_most(unsigned a, unsigned b) { return a <= b; }
__device__ __forceinline__ bool entry_before(long long a, long long b) {
  return static_cast<unsigned long long>(a) > static_cast<unsigned long long>(b);
}

// The bit pattern at `from`, or 0 without a read.
__device__ __forceinline__ unsigned load_bits(const float* from, bool wanted) {
  return wanted ? __ldg(reinterpret_cast<const unsigned*>(from)) : 0;
}

// The addition turns -0.0 into +0.0 and every NaN into the one above every number.
__device__ __forceinline__ float canonical(unsigned bits) { return __fadd_rn(__uint_as_float(bits), 0.0f); }
__device__ __forceinline__ unsigned order_key(unsigned bits) {
  int same = __float_as_int(canonical(bits));
  return static_cast<unsigned>(same) ^ (static_cast<unsigned>(same >> 31) | 0x80000000u);
}

// First digits of two bit patterns, one in each half of a word; bits 5 to 15 are the bin, 0 the largest.
__device__ __forceinline__ unsigned half_digits(unsigned low, unsigned high) {
  unsigned pair, sign;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(canonical(high)), "f"(canonical(low)));
  asm("prmt.b32 %0, %1, %1, 0xBB99;" : "=r"(sign) : "r"(pair));
  return pair ^ (~sign & 0x7FFF7FFFu);
}

// Smallest key of a bin of the first round, counted from the smallest score.
__device__ __forceinline__ unsigned half_edge(int bin) {
  unsigned short magnitude = static_cast<unsigned short>(abs(bin - 1024) << 5);
  float edge;
  asm("cvt.f32.f16 %0, %1;" : "=f"(edge) : "h"(magnitude));
  int bits = __float_as_int(edge);
  return 0x80000000u + static_cast<unsigned>(bin < 1024 ? -bits : bits);
}

// Bits below the next digit of an undecided range.
__device__ __forceinline__ unsigned digit_shift(unsigned span) { return max(32 - __clz(span) - 11, 0); }

// `inverse` is (2**32 - 1) / size, at most one page short.
__device__ __forceinline__ int page_of(unsigned inverse, int size, int position) {
  int page = __umulhi(position, inverse);
  return position - page * size >= size ? page + 1 : page;
}

__device__ __forceinline__ long long entry(unsigned key, int place) {
  return static_cast<long long>(static_cast<unsigned long long>(key) << 32 | static_cast<unsigned>(~place));
}
__device__ __forceinline__ unsigned entry_key(long long entry) {
  return static_cast<unsigned>(static_cast<unsigned long long>(entry) >> 32);
}
__device__ __forceinline__ int entry_place(long long entry) { return ~static_cast<int>(entry); }

__device__ __forceinline__ void set_bit(int* words, int bit) { atomicOr(words + (bit >> 5), 1 << (bit & 31)); }

// Where CTA `rank` of the cluster keeps what this one keeps at `own`.
__device__ __forceinline__ unsigned peer_address(const void* own, int rank) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(rank));
  return remote;
}
__device__ __forceinline__ unsigned long long peer_load(const void* own, int rank) {
  unsigned long long words;
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(words) : "r"(peer_address(own, rank)) : "memory");
  return words;
}
__device__ __forceinline__ void peer_store(const int* own, int rank, int value) {
  asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(peer_address(own, rank)), "r"(value) : "memory");
}
__device__ __forceinline__ void peer_store(const void* own, int rank, long long value) {
  asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(peer_address(own, rank)), "l"(value) : "memory");
}
}  // namespace dk
"""


def rolled(*extent):
    """A loop that the compiler must not unroll: short kernels pay for every instruction they fetch."""
    return T.unroll(*extent, unroll_factor=1)


def ceildiv(count, size):
    """Both positive or zero; C division, which costs no sign fix-up."""
    return T.truncdiv(count + size - 1, size)


def external(dtype, name):
    """A function of SOURCE, or of CUDA, that gives a `dtype`."""
    return lambda *arguments: T.call_extern(dtype, name, *arguments)


warp_sum = external("int32", "dk::warp_sum")
ballot = external("uint32", "dk::ballot")
shuffle = external("int32", "dk::shuffle")
scan = external("int32", "dk::scan")
popc = external("int32", "__popc")
clz = external("int32", "__clz")
ffs = external("int32", "__ffs")
at_most = external("bool", "dk::at_most")
digit_shift = external("uint32", "dk::digit_shift")
half_edge = external("uint32", "dk::half_edge")
half_digits = external("uint32", "dk::half_digits")
order_key = external("uint32", "dk::order_key")
load_bits = external("uint32", "dk::load_bits")
make_entry = external("int64", "dk::entry")
entry_key = external("uint32", "dk::entry_key")
entry_place = external("int32", "dk::entry_place")
entry_before = external("bool", "dk::entry_before")
page_of = external("int32", "dk::page_of")
set_bit = external("handle", "dk::set_bit")
peer_load = external("uint64", "dk::peer_load")
peer_store = external("handle", "dk::peer_store")


def zeros(count):
    """So many int32 variables."""
    return tuple(T.alloc_var("int32", init=0) for _ in range(count))


def bits_below(lane):
    """A bit for every lower lane."""
    return (T.uint32(1) << T.cast(lane, "uint32")) - T.uint32(1)


def key_over(key, end):
    """Whether a key lies above the end of a range."""
    return at_most(end, key) & (key != end)


@T.macro
def load_words(bits, logits, row, stride, column, limit, lane):
    """Bit patterns of columns `column + 32 * j + lane`; a column at or past `limit` is not read and gives 0."""
    for j in T.unroll(bits.shape[0]):
        own = column + lane + 32 * j
        bits[j] = load_bits(T.address_of(logits[row, own]), own < limit)


@T.macro
def load_ahead(bits, logits, row, stride, column, columns, lane):
    """load_words of a row of at most `columns`; of a longer one nothing is read."""
    load_words(bits, logits, row, stride, column, T.if_then_else(stride <= columns, stride, 0), lane)


# Assigning a T.Ref parameter stores into the caller's variable.
# ruff: noqa: F841


@T.macro
def read_bounds(start: T.Ref, last: T.Ref, row_starts, row_ends, row, stride):
    """The columns of a row, [start, last)."""
    start = T.max(row_starts[row], 0)
    last = T.min(row_ends[row], stride)


@T.macro
def clear(words, first, count, thread, threads):
    """Zero `count` words of shared memory, 16 bytes a store."""
    # Unrolled, it cost the smallest kernel a register, which it spilled.
    for i in rolled(T.ceildiv(count // 4, threads)):
        if i * threads + thread < count // 4:
            for j in T.vectorized(4):
                # A multiple of four that TileLang can see.
                words[(T.truncdiv(first, 4) + i * threads + thread) * 4 + j] = 0


@T.macro
def clear_run(bitmap, first, words, lane):
    """Zero the warp's words of a bitmap."""
    for i in rolled(ceildiv(words, 32)):
        if i * 32 + lane < words:
            bitmap[first + i * 32 + lane] = 0


@T.macro
def page_row(inverse: T.Ref, line: T.Ref, row, next_n, page_size):
    """(2**32 - 1) // page_size and the row's line of the page table; zeros where there are no pages."""
    if page_size > 0:
        inverse = T.truncdiv(T.uint32(0xFFFFFFFF), T.cast(page_size, "uint32"))
        line = T.truncdiv(row, next_n)
    else:
        inverse = T.uint32(0)
        line = 0


@T.macro
def share_row(origin: T.Ref, run: T.Ref, start, last, warps):
    """Where the warps' runs of words begin, and how long each is, in a row that the registers do not hold."""
    origin = (start >> 5) << 5
    run = ceildiv(last - origin, 32 * warps)


@T.macro
def bound_warp(limit: T.Ref, lo: T.Ref, hi: T.Ref, base, run, start, last, stride):
    """Where a warp's columns end, and those of the row among them, [lo, hi)."""
    limit = T.min(stride, base + run * 32)
    lo = T.max(start, base)
    hi = T.min(last, limit)


@T.macro
def fetch_pages(
    first_page: T.Ref, near: T.Ref, entry: T.Ref, first, columns, start, last, block_table, max_pages, line, page_size, inverse,
    thread, threads,
):  # fmt: skip
    """The page-table entries of the columns [first, first + columns), one a thread from `first_page` on.

    `near` tells whether the threads hold them all.
    """
    final = T.alloc_var("int32", init=0)
    first_page = 0
    near = False
    entry = 0
    if page_size > 0:
        first_page = page_of(inverse, page_size, T.max(first - start, 0))
        final = page_of(inverse, page_size, T.max(T.min(last, first + columns) - 1 - start, 0))
        near = final - first_page < threads
        if thread <= final - first_page:
            entry = block_table[line, first_page + thread]


@T.macro
def take_all(
    indices, row, k, length, rank, group, block_table, max_pages, line, page_size, inverse, thread, threads
):
    """A row of at most `k` scores: every position, then -1, without a look at the scores; the CTAs take slots in turn."""
    page = T.alloc_var("int32", init=0)
    for i in rolled(ceildiv(k, group * threads)):
        slot = (i * group + rank) * threads + thread
        if slot < k:
            if slot < length:
                if page_size > 0:
                    page = page_of(inverse, page_size, slot)
                    indices[row, slot] = block_table[line, page] * page_size + (slot - page * page_size)
                else:
                    indices[row, slot] = slot
            else:
                indices[row, slot] = -1


@T.macro
def make_keys(bits, digits, column, lo, hi, lane):
    """Turn loaded bit patterns into keys in place, and pair up their first digits.

    Columns outside [lo, hi) get key 0 and the last bin, which no score has.
    """
    for j in T.unroll(digits.shape[0]):
        digits[j] = half_digits(bits[2 * j], bits[2 * j + 1])
        if (column < lo) | (column + 64 * digits.shape[0] > hi):
            if (column + lane + 64 * j < lo) | (column + lane + 64 * j >= hi):
                digits[j] = digits[j] | T.uint32(0xFFFF)
            if (column + lane + 64 * j + 32 < lo) | (column + lane + 64 * j + 32 >= hi):
                digits[j] = digits[j] | T.uint32(0xFFFF0000)
    make_keys_again(bits, column, lo, hi, lane)


@T.macro
def make_keys_again(bits, column, lo, hi, lane):
    """Turn loaded bit patterns into keys in place; columns outside [lo, hi) get key 0."""
    for j in T.unroll(bits.shape[0]):
        bits[j] = order_key(bits[j])
    if (column < lo) | (column + 32 * bits.shape[0] > hi):
        for j in T.unroll(bits.shape[0]):
            if (column + lane + 32 * j < lo) | (column + lane + 32 * j >= hi):
                bits[j] = T.uint32(0)


@T.macro
def stash(words, first, bits, thread, threads):
    """Keep a batch of keys in shared memory."""
    for j in T.unroll(bits.shape[0]):
        words[first + j * threads + thread] = T.cast(bits[j], "int32")


@T.macro
def unstash(bits, words, first, thread, threads):
    """Take a batch of keys back."""
    for j in T.unroll(bits.shape[0]):
        bits[j] = T.cast(words[first + j * threads + thread], "uint32")


@T.macro
def count_first(hist, digits, column, lo, hi):
    """Count the first digits of a batch that has columns of the row."""
    if (column < hi) & (column + 64 * digits.shape[0] > lo):
        for j in T.unroll(digits.shape[0]):
            T.atomic_add(hist[T.cast((digits[j] >> T.uint32(5)) & T.uint32(BINS - 1), "int32")], 1)
            T.atomic_add(hist[T.cast(digits[j] >> T.uint32(21), "int32")], 1)


@T.macro
def count_key(hist, first, key, end, span):
    """Count the next digit of a key if it is undecided."""
    if at_most(end - key, span):
        T.atomic_add(hist[first + T.cast((end - key) >> digit_shift(span), "int32")], 1)


@T.macro
def count_keys(hist, first, bits, end, span):
    """Count the next digit of the undecided keys of a batch; the bins are those from `first` on."""
    for j in T.unroll(bits.shape[0]):
        count_key(hist, first, bits[j], end, span)


@T.macro
def count_listed(hist, first, entries, total, end, span, thread, threads):
    """Count the next digit of the undecided ones of the first `total` list entries."""
    for i in rolled(ceildiv(total, threads)):
        if i * threads + thread < total:
            count_key(hist, first, entry_key(entries[i * threads + thread]), end, span)


def narrowed(digit, end, span, first):
    """End and span of a bin of the undecided range."""
    if first:
        top = T.if_then_else(digit > 0, half_edge(BINS - digit) - T.uint32(1), T.uint32(0xFFFFFFFF))
        return top, top - half_edge(BINS - 1 - digit)
    below = T.cast(digit, "uint32") << digit_shift(span)
    return end - below, T.min(span - below, (T.uint32(1) << digit_shift(span)) - T.uint32(1))


@T.macro
def narrow(state, digit, need, inside, end, span, first):
    """Leave the undecided range after a round in `state`: its end, span, the keys still needed of it, those in it.

    Where all of it is needed, nothing stays undecided and every key above the new end is selected.
    """
    top, width = narrowed(digit, end, span, first)
    if need == inside:
        state[0] = T.cast(top - width - T.uint32(1), "int32")
        state[1] = 0
        state[2] = 0
        state[3] = 0
    else:
        state[0] = T.cast(top, "int32")
        state[1] = T.cast(width, "int32")
        state[2] = need
        state[3] = inside


@T.macro
def read_state(end: T.Ref, span: T.Ref, need: T.Ref, inside: T.Ref, state):
    """End, span, keys needed and keys inside of the undecided range, as the last round left them."""
    end = T.cast(state[0], "uint32")
    span = T.cast(state[1], "uint32")
    need = state[2]
    inside = state[3]


@T.macro
def read_group_state(end: T.Ref, span: T.Ref, need: T.Ref, inside: T.Ref, lower: T.Ref, within: T.Ref, state):
    """The undecided range as the last round left it, and what CTAs of lower rank have above it and in it."""
    read_state(end, span, need, inside, state)
    lower = state[4]
    within = state[5]


@T.macro
def sum_bins(mine, through: T.Ref, hist, first, sums, thread, warp, lane):
    """Each thread takes its bins; `through` is its warp's sum up to and with them, and `sums` get the warps' totals."""
    own = T.alloc_var("int32", init=0)
    for i in T.vectorized(mine.shape[0]):
        mine[i] = hist[(T.truncdiv(first, mine.shape[0]) + thread) * mine.shape[0] + i]
    for i in T.unroll(mine.shape[0]):
        own = own + mine[i]
    through = scan(own)
    if lane == 31:
        sums[warp] = through


@T.macro
def pick_bin(state, mine, through, sums, need, end, span, first, thread, warp, lane):
    """The thread that has the `need`-th key from the top narrows the range to its bin, for all threads in `state`."""
    own, other, left, digit = zeros(4)
    for i in T.unroll(mine.shape[0]):
        own = own + mine[i]
    if lane < warp:
        other = sums[lane]
    left = need - (through - own + warp_sum(other))
    if (left > 0) & (left <= own):
        other = mine[0]
        for i in T.unroll(1, mine.shape[0]):
            if (digit == i - 1) & (left > other):
                left = left - other
                other = mine[i]
                digit = i
        narrow(state, thread * mine.shape[0] + digit, left, other, end, span, first)


@T.macro
def send_sums(coarse, at, hist, first, group, rank, warp, warps, lane):
    """Send every CTA of the group the sums of this one's coarse bins."""
    total = T.alloc_var("int32", init=0)
    for i in T.unroll(COARSE // warps):
        total = warp_sum(
            hist[first + (i * warps + warp) * (BINS // COARSE) + lane]
            + hist[first + (i * warps + warp) * (BINS // COARSE) + 32 + lane]
        )
        if lane < group:
            peer_store(T.address_of(coarse[at + rank * COARSE + i * warps + warp]), lane, total)


@T.macro
def pick_bin_of_group(state, hist, bins, coarse, at, need, lower, end, span, first, group, rank, warp, lane):
    """One warp finds the coarse bin and then, in all CTAs' counts of it, the bin with the `need`-th key from the top.

    `state` also gets the keys above the range in CTAs of lower rank, and those in the range.
    """
    if warp == 0:
        count, under, through, source = zeros(4)
        left = T.alloc_var("int32", init=need)
        before = T.alloc_var("int32", init=lower)
        for i in T.unroll(group):
            count = count + coarse[at + i * COARSE + lane]
            under = under + T.if_then_else(i < rank, coarse[at + i * COARSE + lane], 0)
        through = scan(count)
        source = first_lane(ballot((through - count < left) & (through >= left)))
        left = left - shuffle(through - count, source)
        before = before + warp_sum(T.if_then_else(lane < source, under, 0))
        low, high, low_under, high_under = zeros(4)
        both = T.alloc_var("uint64", init=0)
        digit = T.alloc_var("int32", init=0)
        digit = source * (BINS // COARSE) + 2 * lane
        for i in T.unroll(group):
            both = peer_load(T.address_of(hist[bins + digit]), i)
            low = low + T.cast(both & T.uint64(0xFFFFFFFF), "int32")
            high = high + T.cast(both >> T.uint64(32), "int32")
            if i < rank:
                low_under = low_under + T.cast(both & T.uint64(0xFFFFFFFF), "int32")
                high_under = high_under + T.cast(both >> T.uint64(32), "int32")
        through = scan(low + high)
        count = through - low - high
        source = first_lane(ballot((count < left) & (through >= left)))
        before = before + warp_sum(T.if_then_else(lane < source, low_under + high_under, 0))
        if lane == source:
            if count + low < left:
                count = count + low
                digit = digit + 1
                low = high
                before = before + low_under
                low_under = high_under
            narrow(state, digit, left - count, low, end, span, first)
            state[4] = before + T.if_then_else(left - count == low, low_under, 0)
            state[5] = T.if_then_else(left - count == low, 0, low_under)


def first_lane(lanes):
    """The only lane of a ballot."""
    return 31 - clz(lanes)


@T.macro
def collect(
    count: T.Ref, bits, above, equal, word, counters, entries, first, end, span, listing, owner, offset, lane
):
    """Mark a batch's keys above the range; list those in it from entry `first` on, or mark these too.

    `word` is the batch's place in the bitmaps. To `count` is added how many keys this lane's word marks as above.
    """
    own = T.alloc_var("uint32", init=0)
    same = T.alloc_var("uint32", init=0)
    slot = T.alloc_var("int32", init=0)
    for j in T.unroll(bits.shape[0]):
        same = ballot(key_over(bits[j], end))
        own = T.if_then_else(lane == j, same, own)
    if lane < bits.shape[0]:
        above[word + lane] = T.cast(own, "int32")
    count = count + popc(own)
    if listing:
        for j in T.unroll(bits.shape[0]):
            same = ballot(at_most(end - bits[j], span))
            if same != T.uint32(0):
                if lane == 0:
                    slot = T.atomic_add(counters[LISTED], popc(same), return_prev=True)
                slot = shuffle(slot, 0)
                if at_most(end - bits[j], span):
                    entries[first + slot + popc(same & bits_below(lane))] = make_entry(
                        bits[j], (owner << OFFSET_BITS) | (offset + 32 * j + lane)
                    )
    else:
        for j in T.unroll(bits.shape[0]):
            same = ballot(at_most(end - bits[j], span))
            own = T.if_then_else(lane == j, same, own)
        if lane < bits.shape[0]:
            equal[word + lane] = T.cast(own, "int32")


@T.macro
def keep_count(counts, count, warp, lane):
    """The keys above the range of each warp, for all threads."""
    total = T.alloc_var("int32", init=0)
    total = warp_sum(count)
    if lane == 0:
        counts[warp] = total


@T.macro
def keep_entry(pages, entry, thread):
    """The threads' page-table entries, for all threads."""
    pages[thread] = entry


@T.macro
def send_entries(entries, first, counters, group, rank, warp, warps, lane):
    """Copy this CTA's part of the list to the same place in every peer; the warps share chunks and peers."""
    at, to = zeros(2)
    for i in rolled(ceildiv(ceildiv(counters[LISTED], 32) * group, warps)):
        at = T.truncdiv(i * warps + warp, group) * 32 + lane
        to = T.truncmod(i * warps + warp, group)
        if (at < counters[LISTED]) & (to != rank):
            peer_store(T.address_of(entries[first + at]), to, entries[first + at])


@T.macro
def mark(entry, bitmap, counts, counters, which, rank, warps, words):
    """Set a list entry's bit where this CTA owns it, and count it where a CTA of lower rank does."""
    place, owner = zeros(2)
    place = entry_place(entry)
    owner = (place >> OFFSET_BITS) - rank * warps
    if owner < 0:
        T.atomic_add(counters[which], 1)
    if (owner >= 0) & (owner < warps):
        set_bit(T.address_of(bitmap[0]), owner * words * 32 + (place & ((1 << OFFSET_BITS) - 1)))
        if which == LOWER_ABOVE:
            T.atomic_add(counts[owner], 1)


@T.macro
def sift(
    entries, total, target, above, equal, counts, counters, end, span, inside, ranked, rank, warps, words, thread, threads,
):  # fmt: skip
    """After the rounds over the list: mark entries above the range; keep those in it from `target` on where at most
    `ranked` are left to rank, else mark them as equal."""
    entry = T.alloc_var("int64", init=0)
    slot = T.alloc_var("int32", init=0)
    for i in rolled(ceildiv(total, threads)):
        if i * threads + thread < total:
            entry = entries[i * threads + thread]
            if key_over(entry_key(entry), end):
                mark(entry, above, counts, counters, LOWER_ABOVE, rank, warps, words)
            if at_most(end - entry_key(entry), span) & (inside > 0):
                if inside > ranked:
                    mark(entry, equal, counts, counters, LOWER_EQUAL, rank, warps, words)
                else:
                    slot = T.atomic_add(counters[KEPT], 1, return_prev=True)
                    entries[target + slot] = entry


@T.macro
def rank_entries(entries, first, count, need, above, counts, counters, rank, warps, words, warp, lane):
    """Mark the `need` largest of at most 64 entries: a warp an entry, two entries a lane to compare it with."""
    low = T.alloc_var("int64", init=0)
    high = T.alloc_var("int64", init=0)
    entry = T.alloc_var("int64", init=0)
    ahead = T.alloc_var("int32", init=0)
    if lane < count:
        low = entries[first + lane]
    if lane + 32 < count:
        high = entries[first + lane + 32]
    for i in rolled(ceildiv(count, warps)):
        if i * warps + warp < count:
            entry = entries[first + i * warps + warp]
            ahead = popc(ballot(entry_before(low, entry)))
            ahead = ahead + popc(ballot(entry_before(high, entry)))
            if (ahead < need) & (lane == 0):
                mark(entry, above, counts, counters, LOWER_ABOVE, rank, warps, words)


@T.macro
def read_marked(ties: T.Ref, skip: T.Ref, counters, need, inside, lower, ranked):
    """Columns marked as equal that this CTA may still take, and columns that lower ranks select, after the list."""
    ties = T.if_then_else(inside > ranked, T.max(need - counters[LOWER_EQUAL], 0), 0)
    skip = lower + counters[LOWER_ABOVE] + T.min(counters[LOWER_EQUAL], need)


@T.macro
def count_equal(equal, sums, first, words, warp, lane):
    """Columns of each warp that are marked as equal."""
    found = T.alloc_var("int32", init=0)
    for i in rolled(ceildiv(words, 32)):
        if i * 32 + lane < words:
            found = found + popc(equal[first + i * 32 + lane])
    found = warp_sum(found)
    if lane == 0:
        sums[warp] = found


@T.macro
def take_ties(above, equal, counts, sums, take, first, words, warp, lane):
    """Select the first `take` columns marked as equal, in order of position; a lane has consecutive words."""
    left, added, own, at = zeros(4)
    word = T.alloc_var("uint32", init=0)
    for i in rolled(ceildiv(words, 32)):
        if lane * ceildiv(words, 32) + i < words:
            own = own + popc(equal[first + lane * ceildiv(words, 32) + i])
    if lane < warp:
        left = sums[lane]
    left = take - warp_sum(left) - scan(own) + own
    added = warp_sum(T.max(T.min(left, own), 0))
    for i in rolled(ceildiv(words, 32)):
        at = lane * ceildiv(words, 32) + i
        if (at < words) & (left > 0):
            word = T.cast(equal[first + at], "uint32")
            own = popc(word)
            while popc(word) > left:
                word = word ^ (T.uint32(1) << T.cast(31 - clz(T.cast(word, "int32")), "uint32"))
            above[first + at] = above[first + at] | T.cast(word, "int32")
            left = left - own
    if lane == 0:
        counts[warp] = counts[warp] + added


@T.macro
def first_slot(slot: T.Ref, counts, skip, warp, lane):
    """Slot of this warp's first column: behind lower ranks' and lower warps'."""
    before = T.alloc_var("int32", init=0)
    if lane < warp:
        before = counts[lane]
    slot = skip + warp_sum(before)


@T.macro
def store_id(indices, row, slot, position, block_table, line, page_size, inverse, pages, first_page, near):
    """Write a position, or the token that the page table gives it where pages are used."""
    page = T.alloc_var("int32", init=0)
    if page_size > 0:
        page = page_of(inverse, page_size, position)
        if near:
            indices[row, slot] = pages[page - first_page] * page_size + (position - page * page_size)
        else:
            indices[row, slot] = block_table[line, page] * page_size + (position - page * page_size)
    else:
        indices[row, slot] = position


@T.macro
def emit_sparse(
    slot, indices, row, k, above, first, words, position, block_table, max_pages, line, page_size, inverse, pages, first_page, near,
    lane,
):  # fmt: skip
    """`emit` for bitmaps with few marks: a word a lane, whose marks the lane takes one by one."""
    at = T.alloc_var("int32", init=slot)
    word = T.alloc_var("uint32", init=0)
    place, through = zeros(2)
    for i in rolled(ceildiv(words, 32)):
        word = T.uint32(0)
        if i * 32 + lane < words:
            word = T.cast(above[first + i * 32 + lane], "uint32")
        through = scan(popc(word))
        place = at + through - popc(word)
        while word != T.uint32(0):
            store_id(
                indices, row, place, position + (i * 32 + lane) * 32 + ffs(T.cast(word, "int32")) - 1,
                block_table, line, page_size, inverse, pages, first_page, near,
            )  # fmt: skip
            place = place + 1
            word = word & (word - T.uint32(1))
        at = at + shuffle(through, 31)


@T.macro
def emit(
    slot: T.Ref, indices, row, k, above, word, size, position, block_table, max_pages, line, page_size, inverse, pages, first_page,
    near, lane,
):  # fmt: skip
    """Write the ids of a batch's marked columns, ascending, from `slot` on; the slot moves behind them.

    With `near`, `pages` holds the entries of the page table from `first_page` on.
    """
    own, through, first = zeros(3)
    # A lane counts one word; the words' first slots then go to all lanes.
    if lane < size:
        own = popc(above[word + lane])
    through = scan(own)
    for j in T.unroll(size):
        first = slot + shuffle(through - own, j)
        marks = T.cast(above[word + j], "uint32")
        if ((marks >> T.cast(lane, "uint32")) & T.uint32(1)) != T.uint32(0):
            store_id(
                indices, row, first + popc(marks & bits_below(lane)), position + 32 * j + lane, block_table, line, page_size,
                inverse, pages, first_page, near,
            )  # fmt: skip
    slot = slot + shuffle(through, 31)
