"""Functions for leaf texts: floats as sums of two e4m3 terms (dsl_kernels/device/torch/terms.py)."""

import tilelang.language as T

SOURCE = r"""
namespace terms {
__device__ __forceinline__ unsigned codes(const float* x) {
  unsigned short low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(low) : "f"(x[0]), "f"(x[1]));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(high) : "f"(x[2]), "f"(x[3]));
  return low | unsigned(high) << 16;
}
__device__ __forceinline__ void take(float* x, unsigned short pair) {
  float low, high;
  asm("{ .reg .b16 a, b; .reg .b32 two; cvt.rn.f16x2.e4m3x2 two, %2; mov.b32 {a, b}, two;"
      " cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }" : "=f"(low), "=f"(high) : "h"(pair));
  x[0] = (x[0] - low) * 16.0f;
  x[1] = (x[1] - high) * 16.0f;
}
__device__ __forceinline__ void store_terms(void* first, void* second, const float* values) {
  float rest[4] = {values[0], values[1], values[2], values[3]};
  unsigned word = codes(rest);
  take(rest, word);
  take(rest + 2, word >> 16);
  *reinterpret_cast<unsigned*>(first) = word;
  *reinterpret_cast<unsigned*>(second) = codes(rest);
}
}  // namespace terms
"""


def store_terms(first, second, registers, at):
    places = map(T.address_of, (first, second, registers[at]))
    return T.call_extern("handle", "terms::store_terms", *places)
