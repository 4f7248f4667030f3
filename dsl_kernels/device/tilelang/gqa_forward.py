"""Leaves of grouped-query attention in TileLang, on the scores of 64 rows as a warpgroup's product leaves them.

A thread holds two rows, eight apart, and of each two neighbouring columns in eight; four lanes share a row. Element-wise
leaves are written over the tile, row i being row `i // 8 % 2` of its thread. What a thread finds over its own elements,
without an exchange between lanes, is CUDA: TileLang's reductions end in one.

A macro's parameter renames the runtime size that it is given, so sizes keep the names that the kernel gives them.
"""

import math

import tilelang.language as T

LN2 = math.log(2)

# Barriers are the declared ones: TileLang adds none of its own.
PASS_CONFIGS = {
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.disable_loop_unswitching": True,
    "tl.enable_fast_math": True,
}

SOURCE = r"""
namespace gqa {
// Over N of a thread's values; four independent chains hide the latency of each step.
template <int N, typename T, typename Get, typename Combine>
__device__ __forceinline__ T reduced(Get get, Combine combine) {
  T part[4];
#pragma unroll
  for (int i = 0; i < N; ++i) part[i % 4] = i < 4 ? T(get(i)) : combine(part[i % 4], T(get(i)));
  return combine(combine(part[0], part[1]), combine(part[2], part[3]));
}
template <int N, typename Get> __device__ __forceinline__ float sum(Get get) {
  return reduced<N, float>(get, [](float a, float b) { return a + b; });
}
template <int N, typename Get> __device__ __forceinline__ float most(Get get) {
  return reduced<N, float>(get, [](float a, float b) { return fmaxf(a, b); });
}
// The largest as integers, of which three are compared at once.
template <int N, typename Get> __device__ __forceinline__ int most_bits(Get get) {
  return reduced<N, int>([&](int i) { return __float_as_int(get(i)); }, [](int a, int b) { return max(a, b); });
}
// Of a thread's N elements those in its row `r`, and all of them where it has one row.
struct Row {
  const float* values;
  int r;
  __device__ __forceinline__ float operator()(int i) const { return values[i / 2 * 4 + 2 * r + i % 2]; }
};
struct All {
  const float* values;
  __device__ __forceinline__ float operator()(int i) const { return values[i]; }
};
template <int N> __device__ __forceinline__ float row_sum(const float* values, int r) { return sum<N / 2>(Row{values, r}); }
template <int N> __device__ __forceinline__ float row_max(const float* values, int r) { return most<N / 2>(Row{values, r}); }
template <int N> __device__ __forceinline__ int row_max_bits(const float* values, int r) { return most_bits<N / 2>(Row{values, r}); }
template <int N> __device__ __forceinline__ float all_sum(const float* values) { return sum<N>(All{values}); }
template <int N> __device__ __forceinline__ float all_max(const float* values) { return most<N>(All{values}); }
template <int N> __device__ __forceinline__ int all_max_bits(const float* values) { return most_bits<N>(All{values}); }
// 64 rows of N * 4 16-bit elements into panels of `rows` rows with the 128-byte swizzle. `thread` is new to the compiler
// each time: else it keeps all places in registers through the loops in front.
template <int N> __device__ __forceinline__ void stage_rows(void* target, int rows, const void* source, int thread) {
  asm volatile("" : "+r"(thread));
  const unsigned* words = static_cast<const unsigned*>(source);
  unsigned at = thread / 32 * 16 + thread % 16, first = static_cast<unsigned>(__cvta_generic_to_shared(target));
#pragma unroll
  for (int i = 0; i < N / 4; ++i) {
    unsigned piece = i * 2 + thread % 32 / 16;
    unsigned to = first + piece / 8 * (rows * 128) + at * 128 + (piece % 8 ^ at % 8) * 16;
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
        ::"r"(to), "r"(words[4 * i]), "r"(words[4 * i + 1]), "r"(words[4 * i + 2]), "r"(words[4 * i + 3]) : "memory");
  }
}
}  // namespace gqa
"""


def ceildiv(count, size):
    """Both positive or zero; unsigned, which costs no sign fix-up."""
    return T.cast((T.cast(count, "uint32") + (size - 1)) // T.cast(size, "uint32"), "int32")


def _of_row(kind, values, r):
    """Over this thread's elements of its row `r`."""
    size = values.shape[0] * values.shape[1] // 128
    dtype = "int32" if kind == "row_max_bits" else "float32"
    return T.call_extern(dtype, f"gqa::{kind}<{size}>", values.data, r)


def _own(rows, i):
    """What a thread has of row `i` of the tile."""
    return T.if_then_else(i // 8 % 2 == 0, rows[0], rows[1])


def finite(risen):
    """What scores are compared with; any number for a row that has seen no key."""
    return T.if_then_else(risen == -T.infinity("float32"), 0.0, risen)


@T.macro
def _risen(target, scores, top):
    """Maxima of the rows, over their four lanes and what they were."""
    for r in T.unroll(2):
        target[r] = _of_row("row_max", scores, r)
        for step in T.unroll(2):
            target[r] = T.max(target[r], T.shfl_xor(target[r], 1 << step))
        target[r] = T.max(target[r], top[r])


@T.macro
def _weigh(scores, top, total, scale, unseen):
    """Scores to weights, and these to each thread's sums."""
    shift = T.alloc_local((2,), "float32")
    for r in T.unroll(2):
        shift[r] = (finite(top[r]) if unseen else top[r]) * scale
    for i, j in T.Parallel(scores.shape[0], scores.shape[1]):
        scores[i, j] = T.exp2(scores[i, j] * scale - _own(shift, i))
    for r in T.unroll(2):
        total[r] = total[r] + _of_row("row_sum", scores, r)


@T.macro
def hide_keys(scores, row, key, skv, shift, thread):
    """-inf where there is no such key, or the row does not see it."""
    for i, j in T.Parallel(scores.shape[0], scores.shape[1]):
        scores[i, j] = T.if_then_else(
            key + j > T.min(skv - 1, row + i + shift), -T.infinity("float32"), scores[i, j]
        )


@T.macro
def online_softmax(scores, top, total, factor, scale, unseen, thread):
    """Scores to weights, with the running maximum and sum of each row; the sum is this thread's own."""
    risen = T.alloc_local((2,), "float32")
    _risen(risen, scores, top)
    for r in T.unroll(2):
        factor[r] = T.exp2((top[r] - (finite(risen[r]) if unseen else risen[r])) * scale)
        total[r] = total[r] * factor[r]
        top[r] = risen[r]
    _weigh(scores, top, total, scale, unseen)


def _grown(scores, limit, bits):
    """Whether a score of this thread reaches the limit of its row."""
    if bits:
        return (_of_row("row_max_bits", scores, 0) >= T.reinterpret(limit[0], "int32")) | (
            _of_row("row_max_bits", scores, 1) >= T.reinterpret(limit[1], "int32")
        )
    return (
        (_of_row("row_max", scores, 0) >= limit[0])
        | (_of_row("row_max", scores, 1) >= limit[1])
        | (limit[0] <= 0.0)
        | (limit[1] <= 0.0)
    )


@T.macro
def online_softmax_lazily(scores, top, total, factor, limit, scale, rise, unseen, bits, thread):
    """As `online_softmax`, but the rows of a warp keep their maxima until a score exceeds one by `rise` powers of two.

    Negative numbers compare the other way round as integers, which is why a limit below zero is -0.0, the least of all.
    """
    T.fill(factor, 1.0)
    if T.any_sync(_grown(scores, limit, bits)) != 0:
        risen = T.alloc_local((2,), "float32")
        _risen(risen, scores, top)
        for r in T.unroll(2):
            factor[r] = T.exp2((top[r] - finite(risen[r])) * scale)
            total[r] = total[r] * factor[r]
            top[r] = risen[r]
            limit[r] = risen[r] + rise / scale
            limit[r] = T.if_then_else(limit[r] > 0.0, limit[r], -0.0)
    _weigh(scores, top, total, scale, unseen)


@T.macro
def rescale_rows(acc, factor, thread):
    """Each row times its factor, in place; left alone where the factors of a warp's rows are 1."""
    if T.any_sync((factor[0] != 1.0) | (factor[1] != 1.0)) != 0:
        for i, j in T.Parallel(acc.shape[0], acc.shape[1]):
            acc[i, j] = acc[i, j] * _own(factor, i)


@T.macro
def divide_by_total(acc, top, total, scale, thread):
    """The rows of the accumulator divided by their sums; `top` becomes the natural logarithm of sum exp."""
    whole = T.alloc_local((2,), "float32")
    for r in T.unroll(2):
        whole[r] = total[r]
        for step in T.unroll(2):
            whole[r] = whole[r] + T.shfl_xor(whole[r], 1 << step)
        top[r] = (top[r] * scale + T.log2(whole[r])) * LN2
        whole[r] = 1.0 / whole[r]
    for i, j in T.Parallel(acc.shape[0], acc.shape[1]):
        acc[i, j] = acc[i, j] * _own(whole, i)


@T.macro
def store_lse(lse, values, batch, head, heads, row, sq, thread):
    """One value a row, as far as there are rows."""
    if thread % 4 == 0:
        for r in T.unroll(2):
            own = row + thread // 32 * 16 + thread % 32 // 4 + 8 * r
            if own < sq:
                lse[batch, head, own] = values[r]


@T.macro
def stage_rows(target, row, rows, source, thread):
    """A 16-bit fragment into rows `row` on of a shared tile of `rows` rows with the 128-byte swizzle."""
    T.call_extern(
        "handle",
        f"gqa::stage_rows<{source.shape[1] // 4}>",
        T.address_of(target[row, 0]),
        rows,
        source.data,
        thread,
    )
