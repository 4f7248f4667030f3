"""Hopper's warpgroup MMA on plain registers of threads, in the order of its accumulators."""

import tilelang.language as T

SOURCE = r"""
#include <tl_templates/cuda/instruction/wgmma.h>
namespace wgmma {
constexpr auto float8_e4m3 = tl::DataType::kFloat8_e4m3;
constexpr auto bfloat16 = tl::DataType::kBFloat16;
constexpr auto float16 = tl::DataType::kFloat16;

// A matrix of so many rows in shared memory, in panels as wide as its swizzle, read along its rows (K-major) or, of 16-bit
// elements, along its columns. Offsets are in 16 bytes.
template <bool COLUMNS, int SWIZZLE, int ROWS> struct Operand {
  static constexpr int PANEL = ROWS * SWIZZLE / 16;
  uint64_t descriptor;
  // It begins so many bytes behind its buffer: a descriptor of that is alike in all threads.
  __device__ __forceinline__ Operand(void* buffer, int begin) {
    tl::GmmaDescriptor found;
    tl::initialize_wgmma_descriptor<SWIZZLE == 128 ? 1 : SWIZZLE == 64 ? 2 : 3, COLUMNS ? PANEL : 1, SWIZZLE / 2>(found, buffer);
    tl::increase_descriptor_offset<int>(found, begin);
    descriptor = uint64_t(found);
  }
  // Of a step of K, and of the 64 rows of a product from `64 * block` on. NARROW is an addition of 32 bits, as the address, in
  // the lower word, does not carry: fewer instructions in attention with A in registers, more where both are in shared memory.
  template <bool NARROW> __device__ __forceinline__ uint64_t at(int step, int block = 0) const {
    constexpr int WITHIN = SWIZZLE / 32;
    int further = COLUMNS ? step * SWIZZLE + block * PANEL
                          : step / WITHIN * PANEL + step % WITHIN * 2 + block * (64 * SWIZZLE / 16);
    if constexpr (NARROW) return descriptor & 0xFFFFFFFF00000000ull | unsigned(descriptor) + further;
    return descriptor + further;
  }
};

// acc[64 * BLOCKS, N] (+)= A B^T over K, of a group.
template <tl::DataType TYPE, int BLOCKS, int N, int K, bool A_COLUMNS, int A_SWIZZLE, int A_ROWS, bool B_COLUMNS, int B_SWIZZLE,
          int B_ROWS, bool NARROW>
__device__ __forceinline__ void multiply(float* acc, void* a, int a_begin, void* b, int b_begin, bool clear) {
  constexpr int STEPS = K * (TYPE == float8_e4m3 ? 1 : 2) / 32;
  Operand<A_COLUMNS, A_SWIZZLE, A_ROWS> from_a(a, a_begin);
  Operand<B_COLUMNS, B_SWIZZLE, B_ROWS> from_b(b, b_begin);
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block)
#pragma unroll
    for (int i = 0; i < STEPS; ++i)
      tl::wgmma_ss<TYPE, TYPE, tl::DataType::kFloat32, 64, N, K / STEPS, A_COLUMNS, B_COLUMNS, 1, 1>(
          from_a.template at<NARROW>(i, block), from_b.template at<NARROW>(i), reinterpret_cast<uint32_t*>(acc + block * (N / 2)), i > 0 || !clear);
}

// acc[64, N] (+)= A B^T over K, with A in registers.
template <tl::DataType TYPE, int N, int K, bool B_COLUMNS, int B_SWIZZLE, int B_ROWS>
__device__ __forceinline__ void multiply_registers(float* acc, const void* a, void* b, int b_begin, bool clear) {
  Operand<B_COLUMNS, B_SWIZZLE, B_ROWS> from_b(b, b_begin);
#pragma unroll
  for (int i = 0; i < K / 16; ++i)
    tl::wgmma_rs<TYPE, TYPE, tl::DataType::kFloat32, 64, N, 16, false, B_COLUMNS, 1, 1>(
        static_cast<const uint32_t*>(a) + 4 * i, from_b.template at<true>(i), reinterpret_cast<uint32_t*>(acc), i > 0 || !clear);
}
}  // namespace wgmma
"""  # noqa: E501

BYTES = {"float8_e4m3": 1, "bfloat16": 2, "float16": 2}


def operand(buffer, slot, row, column, major, swizzle, dtype):
    """An operand of `multiply`: the layout of a view of a buffer, the buffer, and the view's first byte."""
    *_, rows, columns = buffer.shape
    element = BYTES[dtype]
    begin = slot * (rows * columns * element) + row * swizzle + column * element
    return (
        f"{str(major != 'k').lower()}, {swizzle}, {rows}",
        T.address_of(buffer[(0,) * len(buffer.shape)]),
        begin,
    )


def multiply(acc, a, b, m, n, k, dtype, clear, narrow=False):
    """acc[m, n] (+)= A B^T over `k` by one warpgroup; `a` and `b` come from `operand`."""
    kind = f"{m // 64}, {n}, {k}, {a[0]}, {b[0]}, {str(narrow).lower()}"
    return T.call_extern(
        "handle",
        f"wgmma::multiply<wgmma::{dtype}, {kind}>",
        T.address_of(acc[0]),
        a[1],
        a[2],
        b[1],
        b[2],
        clear,
    )


def multiply_registers(acc, a, b, n, k, dtype, clear):
    """acc[64, n] (+)= A B^T over `k` 16-bit elements, with A in registers in the order of a product."""
    kind = f"wgmma::{dtype}, {n}, {k}, {b[0]}"
    places = T.address_of(acc[0]), T.address_of(a[0]), b[1], b[2]
    return T.call_extern("handle", f"wgmma::multiply_registers<{kind}>", *places, clear)
