"""Leaves for every operation in TileLang: tiles of registers are fragments, in their product's layout."""

import tilelang.language as T

from . import warps
from .tcgen05 import move_columns

# TileLang adds no barriers to the declared ones.
PASS_CONFIGS = {
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.disable_loop_unswitching": True,
}


SOURCE = (
    warps.SOURCE
    + r"""
#ifndef ROWS_ONCE
#define ROWS_ONCE
#include <tl_templates/cuda/copy_sm100.h>
namespace rows {
// Over N of a thread's values; four independent chains hide the latency of each step.
template <int N, typename T, typename Get, typename Combine>
__device__ __forceinline__ T reduced(Get get, Combine combine) {
  T part[4];
#pragma unroll
  for (int i = 0; i < N; ++i) part[i % 4] = i < 4 ? T(get(i)) : combine(part[i % 4], T(get(i)));
  return combine(combine(part[0], part[1]), combine(part[2], part[3]));
}
// Of a thread's N registers those of its row `r`, and all of them where it has one row.
template <int N, bool ALL> struct Row {
  static constexpr int SIZE = ALL ? N : N / 2;
  const float* values;
  int r;
  __device__ __forceinline__ float operator()(int i) const { return values[ALL ? i : i / 2 * 4 + 2 * r + i % 2]; }
};
__device__ __forceinline__ float both(unsigned long long pair) {
  return __uint_as_float(unsigned(pair)) + __uint_as_float(unsigned(pair >> 32));
}
template <int N, bool ALL> __device__ __forceinline__ float row_sum(const float* values, int r) {
#if __CUDA_ARCH__ >= 1000
  // Two sums side by side, two floats an addition.
  if constexpr (ALL && N % 2 == 0)
    return both(reduced<N / 2, unsigned long long>(
        [&](int i) {
          unsigned long long pair;
          asm("mov.b64 %0, {%1, %2};" : "=l"(pair) : "f"(values[2 * i]), "f"(values[2 * i + 1]));
          return pair;
        },
        [](unsigned long long a, unsigned long long b) {
          asm("add.rn.f32x2 %0, %0, %1;" : "+l"(a) : "l"(b));
          return a;
        }));
#endif
  return reduced<Row<N, ALL>::SIZE, float>(Row<N, ALL>{values, r}, [](float a, float b) { return a + b; });
}
template <int N, bool ALL> __device__ __forceinline__ float row_most(const float* values, int r) {
  return reduced<Row<N, ALL>::SIZE, float>(Row<N, ALL>{values, r}, [](float a, float b) { return fmaxf(a, b); });
}
// As integers three are compared at once.
template <int N, bool ALL> __device__ __forceinline__ int row_most_bits(const float* values, int r) {
  Row<N, ALL> row{values, r};
  return reduced<Row<N, ALL>::SIZE, int>([&](int i) { return __float_as_int(row(i)); }, [](int a, int b) { return max(a, b); });
}
template <class Combine> __device__ __forceinline__ float over_quad(float value, Combine combine) {
  value = combine(value, __shfl_xor_sync(warps::ALL, value, 1));
  return combine(value, __shfl_xor_sync(warps::ALL, value, 2));
}
__device__ __forceinline__ float quad_most(float value) {
  return over_quad(value, [](float a, float b) { return fmaxf(a, b); });
}
__device__ __forceinline__ float quad_sum(float value) {
  return over_quad(value, [](float a, float b) { return a + b; });
}
__device__ __forceinline__ void scale_pair(float* values, float factor, float less) {
#if __CUDA_ARCH__ >= 1000
  asm("{ .reg .b64 pair, by, minus; mov.b64 pair, {%0, %1}; mov.b64 by, {%2, %2}; mov.b64 minus, {%3, %3}; "
      "fma.rn.f32x2 pair, pair, by, minus; mov.b64 {%0, %1}, pair; }"
      : "+f"(values[0]), "+f"(values[1]) : "f"(factor), "f"(-less));
#else
  values[0] = values[0] * factor - less, values[1] = values[1] * factor - less;
#endif
}
template <int N, class T> __device__ __forceinline__ void round_to(T* target, const float* source) {
  unsigned* words = reinterpret_cast<unsigned*>(target);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) words[i] = warps::pair_of<T>(source[2 * i], source[2 * i + 1]);
}
}  // namespace rows
#endif
"""  # noqa: E501
)


def _of_row(function, dtype="float32"):
    def reduced(registers, r=None):
        kind = f"{registers.shape[0]}, {str(r is None).lower()}"
        return T.call_extern(dtype, f"rows::{function}<{kind}>", T.address_of(registers[0]), r or 0)

    return reduced


row_most = _of_row("row_most")
row_most_bits = _of_row("row_most_bits", "int32")
row_sum = _of_row("row_sum")


def scale_pair(registers, first, factor, less):
    return T.call_extern("handle", "rows::scale_pair", T.address_of(registers[first]), factor, less)


quad_most = warps.external("float32", "rows::quad_most")
quad_sum = warps.external("float32", "rows::quad_sum")


def round_to(target, source):
    """Convert every element to the target's dtype; the next product may take the target as its A."""
    if len(target.shape) > 1:
        return T.copy(source, target)
    kind = f"rows::round_to<{target.shape[0]}>"
    return T.call_extern("handle", kind, T.address_of(target[0]), T.address_of(source[0]))


# The same: nvcc does not move the conversion.
pack_to = round_to


@T.macro
def row_maxima(rows, source, thread):
    """The maximum of each row."""
    T.reduce_max(source, rows, dim=1)


@T.macro
def row_sums(rows, source, thread):
    """The sum of each row."""
    T.reduce_sum(source, rows, dim=1)


@T.macro
def exp2_below(source, rows, thread):
    """exp2(element - its row's value) in place."""
    for i, j in T.Parallel(source.shape[0], source.shape[1]):
        source[i, j] = T.exp2(source[i, j] - rows[i])


@T.macro
def scale_rows(source, rows, thread):
    """Multiply each row by its value, in place."""
    for i, j in T.Parallel(source.shape[0], source.shape[1]):
        source[i, j] = source[i, j] * rows[i]


@T.macro
def divide_rows(source, rows, thread):
    """Divide each row by its value, in place."""
    for i, j in T.Parallel(source.shape[0], source.shape[1]):
        source[i, j] = source[i, j] / rows[i]


def read_tensor(target, source, slot, thread):
    """Load a fragment, a row a thread, from tensor memory; the release waits for it."""
    if len(target.shape) > 1:
        return T.copy(source[slot, :, :], target)
    return move_columns("ld", target, source, slot, 0, thread)


@T.macro
def read_sums(target, source, slot, thread):
    """Load 16-bit sums, a column each, a row a thread, two a register; the release waits for them."""
    columns = target.shape[len(target.shape) - 1]
    T.call_extern(
        "handle",
        f"tl::tcgen05_ld_32dp32bNx<{columns // 2}, true>",
        source[32 * (thread // 32), slot * columns],
        0,
        T.address_of(target[0, 0] if len(target.shape) > 1 else target[0]),
    )


def write_tensor(target, slot, source, thread):
    """Store a 16-bit fragment, a row a thread, to tensor memory; the commit waits for it."""
    if len(source.shape) > 1:
        return T.copy(source, target[slot, :, :])
    return move_columns("st", source, target, slot, 0, thread)


@T.macro
def read_accumulator(target, source, slot, thread):
    """Load a thread's elements of a 64-row accumulator in wgmma's layout; the release waits for them.

    Lanes 0-15 of each warp's 32 have sixteen rows.
    """
    T.call_extern(
        "handle",
        f"tl::tcgen05_ld_16dp256bNx<{target.shape[0] // 4}, false>",
        source[32 * (thread // 32), slot * (target.shape[0] * 2)],
        0,
        T.address_of(target[0]),
    )


@T.macro
def load_columns(held, source, slot, column, thread):
    """Load columns of each thread's row of tensor memory, and wait for them.

    `column` is a multiple of the number of registers.
    """
    move_columns("ld", held, source, slot, column, thread)


@T.macro
def store_columns(held, target, slot, column, thread):
    """The reverse of `load_columns`, with a wait."""
    move_columns("st", held, target, slot, column, thread)


@T.macro
def stage_rows(target, row, rows, source, thread):
    """Store a 16-bit fragment to a shared tile of `rows` rows, 128-byte swizzled, from row `row` on."""
    T.copy(source, target[row : row + source.shape[0], :])


@T.macro
def read_rows(target, x, pitch, row, column, thread):
    """Load a float32 fragment from a matrix in global or shared memory with rows of `pitch` elements."""
    for i, j in T.Parallel(target.shape[0], target.shape[1]):
        target[i, j] = x[row + i, column + j]


@T.macro
def write_rows(out, pitch, row, column, source, thread):
    """Store a float32 fragment to a matrix in global or shared memory with rows of `pitch` elements."""
    for i, j in T.Parallel(source.shape[0], source.shape[1]):
        out[row + i, column + j] = source[i, j]


@T.macro
def add_rows(out, pitch, row, column, source, thread):
    """Add a float32 fragment to a matrix in global memory, atomically for each element."""
    for i, j in T.Parallel(source.shape[0], source.shape[1]):
        T.atomic_add(out[row + i, column + j], source[i, j])
