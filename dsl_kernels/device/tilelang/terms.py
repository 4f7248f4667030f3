"""Functions for leaf texts: floats as sums of two e4m3 terms (dsl_kernels/device/torch/terms.py)."""

import tilelang.language as T

SOURCE = r"""
namespace terms {
// By way of fp16, whose 11 bits are more than two terms have. 0x4C00 is 16.
__device__ __forceinline__ void store_terms(void* first, void* second, const float* x) {
  asm volatile(
      "{ .reg .b16 a, b, c, d; .reg .b32 low, high, of_low, of_high, finer, one, other;"
      " mov.b32 finer, 0x4C004C00;"
      " cvt.rn.f16x2.f32 low, %3, %2; cvt.rn.f16x2.f32 high, %5, %4;"
      " cvt.rn.satfinite.e4m3x2.f16x2 a, low; cvt.rn.satfinite.e4m3x2.f16x2 b, high;"
      " cvt.rn.f16x2.e4m3x2 of_low, a; cvt.rn.f16x2.e4m3x2 of_high, b;"
      " sub.f16x2 low, low, of_low; sub.f16x2 high, high, of_high;"
      " mul.f16x2 low, low, finer; mul.f16x2 high, high, finer;"
      " cvt.rn.satfinite.e4m3x2.f16x2 c, low; cvt.rn.satfinite.e4m3x2.f16x2 d, high;"
      " mov.b32 one, {a, b}; mov.b32 other, {c, d}; st.shared.b32 [%0], one; st.shared.b32 [%1], other; }"
      ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(first))),
        "r"(static_cast<unsigned>(__cvta_generic_to_shared(second))),
        "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3])
      : "memory");
}
}  // namespace terms
"""


def store_terms(first, second, registers, at):
    places = map(T.address_of, (first, second, registers[at]))
    return T.call_extern("handle", "terms::store_terms", *places)
