"""Leaf pieces of the exact top-k selection: key order, digit counting, bin selection, ordered output.

A score becomes a 32-bit key whose unsigned order is the order of the scores. Keys are cut into digits, the most
significant first. A round counts one digit of the still undecided keys in a shared-memory histogram and finds the
bin that holds the k-th largest key; the undecided keys are then those in `[begin, begin + span]`. Once they are few
they go to a list that later rounds count instead of the row; a bin that stays large is never listed, so no
distribution can overflow anything. After the last digit the threshold is exact to the bit. Selected columns are
marked in bitmaps, which hold them in order.
"""

from __future__ import annotations

import tilelang.language as T

COARSE = 64
"""Coarse bins of a round in a cluster: two a lane, so that one warp scans them with one shuffle scan."""

DEVICE_SOURCE = r"""
namespace dk {
__device__ __forceinline__ int warp_sum(int value) { return __reduce_add_sync(0xFFFFFFFFu, value); }

// Order of values as unsigned order. The addition turns -0.0 into +0.0 and every NaN into the largest key.
__device__ __forceinline__ unsigned order_key(unsigned bits) {
  int same = __float_as_int(__fadd_rn(__uint_as_float(bits), 0.0f));
  return static_cast<unsigned>(same) ^ (static_cast<unsigned>(same >> 31) | 0x80000000u);
}

// TileLang 0.1.15 fails to lower a branch on `a <= b` of unsigned values inside a loop.
__device__ __forceinline__ bool at_most(unsigned a, unsigned b) { return a <= b; }

// Two neighbouring 32-bit words of CTA `rank`'s shared memory, at the address where this CTA keeps its own; low first.
__device__ __forceinline__ unsigned long long peer_load2(const void* own, int rank) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(own));
  unsigned remote;
  unsigned long long words;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(words) : "r"(remote) : "memory");
  return words;
}

// TileLang's own cluster barriers have no memory clobber; these keep ordinary stores on their side.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ void set_bit(unsigned char* bitmap, int index) {
  atomicOr(reinterpret_cast<unsigned*>(bitmap) + (index >> 5), 1u << (index & 31));
}
}  // namespace dk
"""


def rolled(*extent):
    """A loop that the compiler must not unroll: short kernels pay for every instruction they fetch."""
    return T.unroll(*extent, unroll_factor=1)


def warp_sum(value):
    """Sum of an int32 over the warp, in every lane."""
    return T.call_extern("int32", "dk::warp_sum", value)


def order_key(bits):
    """Key of an fp32 bit pattern: unsigned order of keys = order of values; 0 is below every key.

    -0.0 gets the key of +0.0. Every NaN gets the largest key, as torch.topk ranks it.
    """
    return T.call_extern("uint32", "dk::order_key", bits)


def in_bin(key, begin, span):
    """Whether a key is one of `[begin, begin + span]`."""
    return T.call_extern("bool", "dk::at_most", key - begin, span)


def under_bin(key, begin, span):
    """Whether a key is below `begin + span + 1`, in the bin or under it."""
    return T.call_extern("bool", "dk::at_most", key, begin + span)


@T.macro
def set_bit(bitmap, index):
    """Set one bit of a byte bitmap, against other threads that do the same."""
    T.evaluate(T.call_extern("handle", "dk::set_bit", T.address_of(bitmap[0]), index))


@T.macro
def cluster_arrive():
    T.evaluate(T.call_extern("handle", "dk::cluster_arrive"))


@T.macro
def cluster_wait():
    T.evaluate(T.call_extern("handle", "dk::cluster_wait"))


@T.macro
def load_tile(keys, at, logits, row, column, end):
    """Issue one lane's 16-byte load of columns `[column, column + 4)`; nothing is read at or past `end`."""
    keys[at : at + 4] = T.ldg128(logits[row, column : column + 4], pred=column < end)


@T.macro
def make_keys(keys, at, column, start, end):
    """Turn four loaded bit patterns into keys, in place; columns outside the row get key 0."""
    for j in T.unroll(4):
        keys[at + j] = order_key(keys[at + j])
    if (column < start) | (column + 4 > end):
        for j in T.unroll(4):
            if (column + j < start) | (column + j >= end):
                keys[at + j] = T.uint32(0)


@T.macro
def count_digit(hist, base, key, low, begin, span):
    """Count the bits from `low` on of a key of `[begin, begin + span]`, relative to `begin`."""
    if in_bin(key, begin, span):
        T.atomic_add(hist[base + T.cast((key - begin) >> T.cast(low, "uint32"), "int32")], 1)


@T.macro
def settle_alone(state, decided, hist, base, bins, share, warp_sums, thread, warp, warps, lane):
    """Close a round where one CTA holds the whole row: every thread sums `share` bins, and one finds the bin.

    `state` gets: 0 the bin, 1 keys still needed of it, 2 keys in it; it enters with the keys needed in 1.
    """
    own = T.alloc_var("int32", init=0)
    above = T.alloc_var("int32")
    other = T.alloc_var("int32", init=0)
    bin = T.alloc_var("int32")
    T.sync_threads()
    if thread * share < bins:
        for i in T.unroll(share):
            own = own + hist[base + thread * share + i]
    above = own
    for i in T.unroll(5):
        other = T.shfl_down(above, 1 << i)
        above = above + T.if_then_else(lane + (1 << i) < 32, other, 0)
    if lane == 0:
        warp_sums[warp] = above
    T.sync_threads()
    other = 0
    if (lane < warps) & (lane > warp):
        other = warp_sums[lane]
    above = above - own + warp_sum(other)
    if (above < state[1]) & (above + own >= state[1]):
        bin = thread * share + share - 1
        other = hist[base + bin]
        for _ in rolled(share - 1):
            if above + other < state[1]:
                above = above + other
                bin = bin - 1
                other = hist[base + bin]
        decided[0] = bin
        decided[1] = state[1] - above
        decided[2] = other
        decided[3] = 0
        decided[4] = 0
    T.sync_threads()
    for i in T.unroll(5):
        state[i] = decided[i]


@T.macro
def sum_coarse(hist, coarse, base, fine, warp, warps, lane):
    """`hist[coarse + c]` = sum of the `fine` bins of coarse bin c; each warp takes every `warps`-th coarse bin."""
    part = T.alloc_var("int32")
    for i in rolled(T.ceildiv(COARSE, warps)):
        part = 0
        for e in rolled(T.ceildiv(fine, 32)):
            if e * 32 + lane < fine:
                part = part + hist[base + (i * warps + warp) * fine + e * 32 + lane]
        part = warp_sum(part)
        if lane == 0:
            hist[coarse + i * warps + warp] = part


@T.macro
def gather_pair(pair, words, at, group, rank):
    """Counts `words[at]`, `words[at + 1]` summed over the group into `pair[0:2]`, and over lower ranks into `pair[2:4]`."""
    both = T.alloc_var("uint64")
    low = T.alloc_var("int32")
    high = T.alloc_var("int32")
    for peer in T.unroll(group):
        both = T.call_extern("uint64", "dk::peer_load2", T.address_of(words[at]), peer)
        low = T.cast(both & T.uint64(0xFFFFFFFF), "int32")
        high = T.cast(both >> T.uint64(32), "int32")
        pair[0] = pair[0] + low
        pair[1] = pair[1] + high
        pair[2] = pair[2] + T.if_then_else(peer < rank, low, 0)
        pair[3] = pair[3] + T.if_then_else(peer < rank, high, 0)


@T.macro
def pick_bin(found, pair, need, lane):
    """Among 64 bins, two a lane, find the one that holds the `need`-th largest key.

    `found` gets: 0 the bin, 1 keys in higher bins, 2 keys in it, and 3, 4 the same two counts over lower ranks alone.
    """
    above = T.alloc_var("int32")
    other = T.alloc_var("int32")
    source = T.alloc_var("int32")
    upper = T.alloc_var("int32")
    # Suffix sum over lanes: keys in this lane's bins and in all higher ones, then without its own.
    above = pair[0] + pair[1]
    for i in T.unroll(5):
        other = T.shfl_down(above, 1 << i)
        above = above + T.if_then_else(lane + (1 << i) < 32, other, 0)
    above = above - pair[0] - pair[1]
    hit = (above < need) & (above + pair[0] + pair[1] >= need)
    source = 31 - T.cast(T.clz(T.cast(T.ballot(hit), "uint32")), "int32")
    upper = T.if_then_else(above + pair[1] >= need, 1, 0)
    upper = T.shfl_sync(upper, source)
    found[0] = source * 2 + upper
    found[1] = T.shfl_sync(above + T.if_then_else(upper == 1, 0, pair[1]), source)
    found[2] = T.shfl_sync(T.if_then_else(upper == 1, pair[1], pair[0]), source)
    other = T.if_then_else(lane > source, pair[2] + pair[3], 0)
    other = other + T.if_then_else((lane == source) & (upper == 0), pair[3], 0)
    found[3] = warp_sum(other)
    found[4] = T.shfl_sync(T.if_then_else(upper == 1, pair[3], pair[2]), source)


@T.macro
def select_digit(state, hist, coarse, base, fine, group, rank, lane):
    """One warp narrows `state` by one digit: 0 digit, 1 keys still needed of it, 2 keys in it, 3 and 4 lower ranks'.

    `state[1]` enters as the number of keys still needed; `state[3]` accumulates the keys above the threshold in CTAs
    of lower rank, `state[4]` is how many keys these hold in the bin.
    """
    pair = T.alloc_local((4,), "int32")
    found = T.alloc_local((5,), "int32")
    at = T.alloc_var("int32")
    bins = T.alloc_var("int32", init=COARSE)
    digit = T.alloc_var("int32", init=0)
    at = coarse
    for _ in rolled(2):
        for i in T.unroll(4):
            pair[i] = 0
        if lane * 2 < bins:
            gather_pair(pair, hist, at + lane * 2, group, rank)
        pick_bin(found, pair, state[1], lane)
        digit = digit * fine + found[0]
        at = base + found[0] * fine
        bins = fine
        state[0] = digit
        state[1] = state[1] - found[1]
        state[2] = found[2]
        state[3] = state[3] + found[3]
        state[4] = found[4]


@T.macro
def settle_group(state, decided, hist, coarse, base, fine, group, rank, warp, warps, lane):
    """Close a round of a cluster: its CTAs read each other's counts, and each narrows its own `state` by the digit."""
    T.sync_threads()
    sum_coarse(hist, coarse, base, fine, warp, warps, lane)
    cluster_arrive()
    cluster_wait()
    if warp == 0:
        select_digit(state, hist, coarse, base, fine, group, rank, lane)
        if lane == 0:
            for i in T.unroll(5):
                decided[i] = state[i]
    T.sync_threads()
    for i in T.unroll(5):
        state[i] = decided[i]


@T.macro
def collect(above, equal, listed, list_keys, list_columns, keys, at, column, begin, span, pending, lane):
    """Mark four columns of this CTA in its bitmaps, from `column` on: above the threshold's bin, and in it.

    While the bin is `pending` its keys are listed for later rounds instead, in any order.
    """
    flags = T.alloc_var("int32", init=0)
    same = T.alloc_var("int32", init=0)
    slot = T.alloc_var("int32")
    for j in T.unroll(4):
        flags = flags | T.if_then_else(under_bin(keys[at + j], begin, span), 0, 1 << j)
        same = same | T.if_then_else(in_bin(keys[at + j], begin, span), 1 << j, 0)
    if pending == 0:
        flags = flags | (same << 8)
    else:
        if same != 0:
            for j in T.unroll(4):
                if ((same >> j) & 1) == 1:
                    slot = T.atomic_add(listed[0], 1, return_prev=True)
                    list_keys[slot] = keys[at + j]
                    list_columns[slot] = column + j
    # Two lanes make a byte of each bitmap; every byte is written, so that the bitmaps need no clearing.
    slot = T.shfl_down(flags, 1)
    flags = flags | (slot << 4)
    if lane % 2 == 0:
        above[column // 8] = T.cast(flags & 255, "uint8")
        equal[column // 8] = T.cast(flags >> 8, "uint8")


@T.macro
def mark_listed(above, equal, list_keys, list_columns, listed, begin, span, thread, threads):
    """Mark the listed columns, now that the threshold is known."""
    for i in rolled(T.ceildiv(listed, threads)):
        if i * threads + thread < listed:
            if in_bin(list_keys[i * threads + thread], begin, span):
                set_bit(equal, list_columns[i * threads + thread])
            else:
                if not under_bin(list_keys[i * threads + thread], begin, span):
                    set_bit(above, list_columns[i * threads + thread])


@T.macro
def rank_listed(above, list_keys, list_columns, listed, need, thread):
    """Mark the columns of the `need` largest of a few listed keys, equal ones by position; each thread ranks one key."""
    rank = T.alloc_var("int32", init=0)
    ahead = T.alloc_var("int32")
    if thread < listed:
        for i in T.unroll(listed, unroll_factor=4):
            ahead = T.if_then_else(list_keys[i] > list_keys[thread], 1, 0)
            ahead = ahead | T.if_then_else(
                (list_keys[i] == list_keys[thread]) & (list_columns[i] < list_columns[thread]), 1, 0
            )
            rank = rank + ahead
        if rank < need:
            set_bit(above, list_columns[thread])


@T.macro
def scan_marks(before, total, above, equal, first, last, unit, warp_sums, warp, warps, lane):
    """Marked columns before this thread's units `[first, last)` of `unit` bits, and in the whole CTA; above and equal."""
    own = T.alloc_var("int32", init=0)
    sums = T.alloc_var("int32")
    other = T.alloc_var("int32")
    mask = T.alloc_var("int32", init=(1 << unit) - 1)
    # Fewer than 2048 keys lie above the threshold, and fewer than 2**18 columns in a CTA: one word holds both counts.
    for n in rolled(first, last):
        other = T.cast(
            T.popcount(T.cast((T.cast(above[n * unit // 8], "int32") >> (n * unit % 8)) & mask, "uint32")),
            "int32",
        )
        own = own + (other << 18)
        other = T.cast(
            T.popcount(T.cast((T.cast(equal[n * unit // 8], "int32") >> (n * unit % 8)) & mask, "uint32")),
            "int32",
        )
        own = own + other
    sums = own
    for i in T.unroll(5):
        other = T.shfl_up(sums, 1 << i)
        sums = sums + T.if_then_else(lane >= (1 << i), other, 0)
    if lane == 31:
        warp_sums[warp] = sums
    T.sync_threads()
    other = 0
    if lane < warps:
        other = warp_sums[lane]
    sums = sums - own + warp_sum(T.if_then_else(lane < warp, other, 0))
    other = warp_sum(other)
    before[0] = sums >> 18
    before[1] = sums & 0x3FFFF
    total[0] = other >> 18
    total[1] = other & 0x3FFFF


@T.macro
def emit(chosen, above, equal, first, last, unit, before, take, origin):
    """Write the positions of this thread's marked columns: all those above, and of the equal ones the first `take`.

    `before` are the CTA's marked columns at lower positions; a column's slot is the ones above before it plus the
    taken ones before it.
    """
    high = T.alloc_var("int32")
    same = T.alloc_var("int32")
    for n in rolled(first * unit // 4, last * unit // 4):
        high = (T.cast(above[n // 2], "int32") >> (n % 2 * 4)) & 15
        same = (T.cast(equal[n // 2], "int32") >> (n % 2 * 4)) & 15
        if (high | same) != 0:
            for j in T.unroll(4):
                if (((high >> j) & 1) == 1) | ((((same >> j) & 1) == 1) & (before[1] < take)):
                    chosen[before[0] + T.min(before[1], take)] = origin + n * 4 + j
                before[0] = before[0] + ((high >> j) & 1)
                before[1] = before[1] + ((same >> j) & 1)


@T.macro
def store_id(indices, row, slot, position, block_table, next_n, page_size):
    """Write a position, or the token id that the page table gives it where pages are used."""
    page = T.alloc_var("int32")
    if page_size > 0:
        page = T.truncdiv(position, page_size)
        indices[row, slot] = block_table[T.truncdiv(row, next_n), page] * page_size + (
            position - page * page_size
        )
    else:
        indices[row, slot] = position
