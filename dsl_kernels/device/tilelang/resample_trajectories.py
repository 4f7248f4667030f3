"""Leaf maths of trajectory resampling in TileLang.

What each leaf means is in dsl_kernels/device/torch/resample_trajectories.py.
"""

import tilelang.language as T

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
}

PIECES = 4
"""Pieces of rows that a thread has on their way at once."""
AHEAD = 4096
"""Times that a CTA has on their way at once, no more than 32 a thread."""

SOURCE = r"""
namespace dk {
// N values of two bytes at their natural alignment. TileLang vectorises no copy whose address depends on a size.
template <int N> struct Piece;
template <> struct Piece<1> { using Word = unsigned short; };
template <> struct Piece<8> { using Word = uint4; };
template <int N> __device__ __forceinline__ void copy_piece(void* to, const void* from) {
  *static_cast<typename Piece<N>::Word*>(to) = *static_cast<const typename Piece<N>::Word*>(from);
}
// The other way: the words of an array in registers would be stored one by one.
template <int N> __device__ __forceinline__ void store_piece(void* to, const void* from);
template <> __device__ __forceinline__ void store_piece<1>(void* to, const void* from) { copy_piece<1>(to, from); }
template <> __device__ __forceinline__ void store_piece<8>(void* to, const void* from) {
  const unsigned* words = static_cast<const unsigned*>(from);
  __stwb(static_cast<uint4*>(to), make_uint4(words[0], words[1], words[2], words[3]));
}
}  // namespace dk
"""

# Assigning a T.Ref parameter stores into the caller's variable.
# ruff: noqa: F841


@T.macro
def read_target(t: T.Ref, tgt_times, row, m, first, thread, targets):
    """The target time of each thread; NaN past the last target."""
    t = T.if_then_else(first + thread < m, tgt_times[row, first + thread], T.float32(float("nan")))


@T.macro
def stage_times(times, src_times, row, n, first, count, thread, threads):
    """`count` times of a trajectory from row `first` on into shared memory."""
    each = min(AHEAD // threads, 32)
    held = T.alloc_local((each,), "float32")
    turns = T.alloc_var("int32", init=0)
    turns = T.truncdiv(count, each * threads)
    for turn in T.unroll(turns, unroll_factor=1):
        for i in T.unroll(each):
            held[i] = src_times[row, first + (turn * each + i) * threads + thread]
        for i in T.unroll(each):
            times[(turn * each + i) * threads + thread] = held[i]
    for i in T.unroll(T.ceildiv(count - turns * each * threads, threads), unroll_factor=8):
        if (turns * each + i) * threads + thread < count:
            times[(turns * each + i) * threads + thread] = src_times[
                row, first + (turns * each + i) * threads + thread
            ]


class Row:
    """The times of one trajectory in global memory, to be indexed like staged ones."""

    def __init__(self, src_times, row):
        self.times, self.row = src_times, row

    def __getitem__(self, at):
        return self.times[self.row, at]


def clz(word):
    return T.call_extern("int32", "__clz", word)


def popc(word):
    return T.call_extern("int32", "__popc", word)


@T.macro
def find_place(place, weight, times, first, count, t, thread):
    """Find a target among `count` ascending times; every lane makes as many steps."""
    found = T.alloc_var("int32", init=0)
    step = T.alloc_var("int32", init=0)
    step = T.shift_left(1, 31 - clz(count))
    while step > 0:
        if found + step <= count:  # noqa: SIM102 (read only then)
            if times[found + step - 1] <= t:
                found = found + step
        step = step >> 1
    keep(place, weight, times, first, count, found, t, thread)


@T.macro
def keep(place, weight, times, first, count, upper, t, thread):
    """Keep the upper row of a target and its share; a NaN target's share is NaN."""
    share = T.alloc_var("float32", init=0.0)
    at = T.alloc_var("int32", init=0)
    at = T.min(T.max(upper, 1), count - 1)
    low = times[at - 1]
    high = times[at]
    if high > low:
        share = T.min(T.max((t - low) / (high - low), 0.0), 1.0)
    place[thread] = first + at
    weight[thread] = T.if_then_else(T.isnan(t), t, share)


@T.macro
def place_staged(place, weight, times, first, count, t, thread):
    """The upper row of each thread's target and its weight, from staged times of rows from `first` on."""
    find_place(place, weight, times, first, count, t, thread)


@T.macro
def place_in_global(place, weight, src_times, row, n, t, thread):
    """The upper row of each thread's target and its weight, from the times in global memory."""
    # A variable: a macro's parameter that is bound to a size renames it.
    count = T.alloc_var("int32", init=0)
    count = n
    find_place(place, weight, Row(src_times, row), 0, count, t, thread)


@T.macro
def find_by_warp(found: T.Ref, times, count, t, lane):
    """How many of the first `count` ascending times are at most `t`, by all lanes: each round looks at 32 times."""
    begin = T.alloc_var("int32", init=0)
    end = T.alloc_var("int32", init=0)
    step = T.alloc_var("int32", init=0)
    passed = T.alloc_var("int32", init=0)
    below = T.alloc_var("bool", init=False)
    begin = 0
    end = count
    while begin < end:
        step = T.truncdiv(end - begin + 31, 32)
        below = False
        if begin + (lane + 1) * step - 1 < end:
            below = times[begin + (lane + 1) * step - 1] <= t
        passed = popc(T.ballot(below))
        end = T.min(begin + (passed + 1) * step - 1, end)
        begin = begin + passed * step
    found = begin


@T.macro
def place_by_warp(place, weight, times, count, t, thread, lane):
    """The upper row of each thread's target and its weight, by all lanes of a warp: 32 times a round, a target after the other."""
    upper = T.alloc_var("int32", init=0)
    found = T.alloc_var("int32", init=0)
    for i in T.unroll(32, unroll_factor=1):
        find_by_warp(found, times, count, T.shfl_sync(t, i), lane)
        if lane == i:
            upper = found
    keep(place, weight, times, 0, count, upper, t, thread)


@T.macro
def bound_warps(bounds, t, warp, warps, lane):
    """The least and the largest target of each warp; NaN does not count."""
    least = T.warp_reduce_min(T.if_then_else(T.isnan(t), T.infinity("float32"), t))
    largest = T.warp_reduce_max(T.if_then_else(T.isnan(t), -T.infinity("float32"), t))
    if lane == 0:
        bounds[warp] = least
        bounds[warps + warp] = largest


@T.macro
def find_window(first: T.Ref, count: T.Ref, bounds, warps, src_times, row, n, lane):
    """The rows whose times decide all of the CTA's targets: at least two."""
    # find_by_warp of both at once: a half of the warp each, so that their reads wait together.
    least = T.warp_reduce_min(bounds[lane % warps])
    largest = T.warp_reduce_max(bounds[warps + lane % warps])
    t = T.alloc_var("float32", init=0.0)
    begin = T.alloc_var("int32", init=0)
    end = T.alloc_var("int32", init=0)
    step = T.alloc_var("int32", init=0)
    passed = T.alloc_var("int32", init=0)
    below = T.alloc_var("bool", init=False)
    t = T.if_then_else(lane < 16, least, largest)
    begin = 0
    end = n
    while T.any_sync(begin < end) != 0:
        step = T.max(T.truncdiv(end - begin + 15, 16), 1)
        below = False
        if begin + (lane % 16 + 1) * step - 1 < end:
            below = src_times[row, begin + (lane % 16 + 1) * step - 1] <= t
        passed = popc(T.cast(T.ballot(below), "uint32") >> T.cast(lane & 16, "uint32") & T.uint32(0xFFFF))
        end = T.min(begin + (passed + 1) * step - 1, end)
        begin = begin + passed * step
    end = T.shfl_sync(begin, 16)
    begin = T.shfl_sync(begin, 0)
    first = T.min(T.max(begin - 1, 0), n - 2)
    count = T.max(T.min(end + 1, n) - first, 2)


def copy_piece(vector, to, source):
    return T.call_extern("handle", f"dk::copy_piece<{vector}>", T.address_of(to), T.address_of(source))


def store_piece(vector, to, source):
    return T.call_extern("handle", f"dk::store_piece<{vector}>", T.address_of(to), T.address_of(source))


@T.macro
def blend(out, data, row, n, m, d, first, place, weight, targets, vector, thread, threads):
    """The targets' rows: the weighted mean of two rows, or one of them as it is."""
    low = T.alloc_local((PIECES * vector,), "bfloat16")
    high = T.alloc_local((PIECES * vector,), "bfloat16")
    mixed = T.alloc_local((vector,), "bfloat16")
    # Variables: TileLang would make an argument of the kernel out of the quotient, and divide anew at each use.
    width = T.alloc_var("int32", init=0)
    own = T.alloc_var("int32", init=0)
    at = T.alloc_var("int32", init=0)
    share = T.alloc_var("float32", init=0.0)
    width = T.truncdiv(d, vector)
    pieces = T.min(targets, m - first) * width
    for turn in T.unroll(T.ceildiv(pieces, PIECES * threads), unroll_factor=1):
        for i in T.unroll(PIECES):
            piece = (turn * PIECES + i) * threads + thread
            if piece < pieces:
                own = T.truncdiv(piece, width)
                at = place[own]
                copy_piece(vector, low[i * vector], data[row, at - 1, (piece - own * width) * vector])
                copy_piece(vector, high[i * vector], data[row, at, (piece - own * width) * vector])
        for i in T.unroll(PIECES):
            piece = (turn * PIECES + i) * threads + thread
            if piece < pieces:
                own = T.truncdiv(piece, width)
                share = weight[own]
                for j in T.unroll(vector):
                    a = T.cast(low[i * vector + j], "float32")
                    b = T.cast(high[i * vector + j], "float32")
                    mean = a * (1.0 - share) + b * share
                    mixed[j] = T.cast(T.Select(share <= 0.0, a, T.Select(share >= 1.0, b, mean)), "bfloat16")
                store_piece(vector, out[row, first + own, (piece - own * width) * vector], mixed[0])
