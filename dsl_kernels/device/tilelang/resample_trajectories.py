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
STAGED_PIECES = 8
"""Pieces of rows on their way into shared memory at once, of a thread."""
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
    """The times or rows of one trajectory in global memory, to be indexed like staged times."""

    def __init__(self, held, row):
        self.held, self.row = held, row

    def __getitem__(self, at):
        return self.held[(self.row, *at) if isinstance(at, tuple) else (self.row, at)]


class Staged:
    """Staged rows of `d` elements, to be indexed by row and column."""

    def __init__(self, rows, d):
        self.rows, self.d = rows, d

    def __getitem__(self, at):
        return self.rows[at[0] * self.d + at[1]]


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
def keep_targets(marks, t, thread):
    """Every thread's target where all threads see it."""
    marks[thread] = t


@T.macro
def see_order(ascend: T.Ref, marks, left, lane, targets):
    """Whether the tile's targets, those before the last, ascend; NaN does not."""
    wrong = T.alloc_var("bool", init=False)
    wrong = False
    for i in T.unroll(targets // 32):
        # Not "unless at least the one before it": TVM takes what is NaN to be at least itself.
        if i * 32 + lane < left:  # noqa: SIM102 (read only then)
            if T.isnan(marks[i * 32 + lane]) or marks[i * 32 + lane] < marks[T.max(i * 32 + lane - 1, 0)]:
                wrong = True
    ascend = T.any_sync(wrong) == 0


@T.macro
def stage_rows(rows, data, row, n, d, first, count, vector, thread, threads):
    """`count` rows of a trajectory from row `first` on into shared memory, one behind the other."""
    # Whole words: the elements of an array in registers would be stored one by one.
    held = T.alloc_local((STAGED_PIECES,), "uint16" if vector == 1 else "uint32x4")
    pieces = T.alloc_var("int32", init=0)
    pieces = T.truncdiv(count * d, vector)
    for turn in T.unroll(T.ceildiv(pieces, STAGED_PIECES * threads), unroll_factor=1):
        for i in T.unroll(STAGED_PIECES):
            piece = (turn * STAGED_PIECES + i) * threads + thread
            if piece < pieces:
                copy_piece(vector, held[i], data[row, first, piece * vector])
        for i in T.unroll(STAGED_PIECES):
            piece = (turn * STAGED_PIECES + i) * threads + thread
            if piece < pieces:
                copy_piece(vector, rows[piece * vector], held[i])


@T.macro
def pass_targets(upto: T.Ref, marks, left, times, rows, last, lane, targets):
    """How many of the ascending targets the staged rows and those before them decide: all, at the last rows."""
    passed = T.alloc_var("int32", init=0)
    decided = T.alloc_var("bool", init=False)
    passed = 0
    for i in T.unroll(targets // 32):
        decided = False
        if i * 32 + lane < left:
            decided = last or marks[i * 32 + lane] < times[rows - 1]
        passed = passed + popc(T.ballot(decided))
    upto = passed


@T.macro
def blend_staged(out, rows, row, m, d, first, done, upto, place, weight, vector, thread, threads):
    """blend of the targets from `done` to `upto`, whose rows are staged."""
    mix(out, Staged(rows, d), row, d, first, done, upto, place, weight, vector, thread, threads)


@T.macro
def blend(out, data, row, n, m, d, first, place, weight, targets, vector, thread, threads):
    """The targets' rows: the weighted mean of two rows, or one of them as it is."""
    mix(
        out,
        Row(data, row),
        row,
        d,
        first,
        0,
        T.min(targets, m - first),
        place,
        weight,
        vector,
        thread,
        threads,
    )


@T.macro
def mix(out, rows, row, d, first, begin, end, place, weight, vector, thread, threads):
    """The targets from `begin` to `end`."""
    low = T.alloc_local((PIECES * vector,), "bfloat16")
    high = T.alloc_local((PIECES * vector,), "bfloat16")
    mixed = T.alloc_local((vector,), "bfloat16")
    # Variables: TileLang would make an argument of the kernel out of a quotient, and divide anew at each use.
    width = T.alloc_var("int32", init=0)
    step = T.alloc_var("int32", init=0)
    rest = T.alloc_var("int32", init=0)
    own = T.alloc_var("int32", init=0)
    column = T.alloc_var("int32", init=0)
    ahead = T.alloc_var("int32", init=0)
    ahead_column = T.alloc_var("int32", init=0)
    at = T.alloc_var("int32", init=0)
    share = T.alloc_var("float32", init=0.0)
    width = T.truncdiv(d, vector)
    step = T.truncdiv(threads, width)
    rest = threads - step * width
    own = T.truncdiv(thread, width)
    column = thread - own * width
    own = begin + own
    while own < end:
        ahead = own
        ahead_column = column
        for i in T.unroll(PIECES):
            if ahead < end:
                at = place[ahead]
                copy_piece(vector, low[i * vector], rows[at - 1, ahead_column * vector])
                copy_piece(vector, high[i * vector], rows[at, ahead_column * vector])
            onwards(ahead, ahead_column, step, rest, width)
        for i in T.unroll(PIECES):
            if own < end:
                share = weight[own]
                for j in T.unroll(vector):
                    a = T.cast(low[i * vector + j], "float32")
                    b = T.cast(high[i * vector + j], "float32")
                    mean = a * (1.0 - share) + b * share
                    mixed[j] = T.cast(T.Select(share <= 0.0, a, T.Select(share >= 1.0, b, mean)), "bfloat16")
                store_piece(vector, out[row, first + own, column * vector], mixed[0])
            onwards(own, column, step, rest, width)


@T.macro
def onwards(row: T.Ref, column: T.Ref, step, rest, width):
    """The row and column of the piece that lies `step * width + rest` pieces behind this one."""
    row = row + step
    column = column + rest
    if column >= width:
        row = row + 1
        column = column - width
