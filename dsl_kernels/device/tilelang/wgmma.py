"""Hopper's warpgroup MMA on registers that threads hold by themselves, in the order in which a product leaves them."""

import tilelang.language as T

SOURCE = r"""
#include <tl_templates/cuda/instruction/wgmma.h>
namespace wgmma {
constexpr auto float8_e4m3 = tl::DataType::kFloat8_e4m3;
constexpr auto bfloat16 = tl::DataType::kBFloat16;
constexpr auto float16 = tl::DataType::kFloat16;

// acc[64, N] (+)= A B^T over K, of a group. Both are K-major in panels of 128 bytes of so many rows, and begin so many bytes
// behind their buffers: a descriptor of those is alike in all threads.
template <tl::DataType TYPE, int N, int K, int A_ROWS, int B_ROWS>
__device__ __forceinline__ void multiply(float* acc, void* a, int a_begin, void* b, int b_begin, bool clear) {
  constexpr int STEPS = K * (TYPE == float8_e4m3 ? 1 : 2) / 32;
  tl::GmmaDescriptor a_desc, b_desc;
  tl::initialize_wgmma_descriptor<1, 1, 64>(a_desc, a);
  tl::initialize_wgmma_descriptor<1, 1, 64>(b_desc, b);
  tl::increase_descriptor_offset<int>(a_desc, a_begin);
  tl::increase_descriptor_offset<int>(b_desc, b_begin);
#pragma unroll
  for (int i = 0; i < STEPS; ++i)
    tl::wgmma_ss<TYPE, TYPE, tl::DataType::kFloat32, 64, N, K / STEPS, false, false, 1, 1>(
        uint64_t(a_desc + (i / 4 * A_ROWS * 8 + i % 4 * 2)), uint64_t(b_desc + (i / 4 * B_ROWS * 8 + i % 4 * 2)),
        reinterpret_cast<uint32_t*>(acc), i > 0 || !clear);
}
}  // namespace wgmma
"""


def multiply(acc, a, a_slot, a_row, b, b_slot, b_row, n, k, dtype, clear):
    """Columns of 128 bytes from these rows of a stage on: those of A are of one warpgroup."""
    rows, bytes_of = (a.shape[1], b.shape[1]), 1 if dtype == "float8_e4m3" else 2
    stages = [of[1] * of[2] * bytes_of for of in (a.shape, b.shape)]
    return T.call_extern(
        "handle",
        f"wgmma::multiply<wgmma::{dtype}, {n}, {k}, {rows[0]}, {rows[1]}>",
        T.address_of(acc[0]),
        T.address_of(a[0, 0, 0]),
        a_slot * stages[0] + a_row * 128,
        T.address_of(b[0, 0, 0]),
        b_slot * stages[1] + b_row * 128,
        clear,
    )
