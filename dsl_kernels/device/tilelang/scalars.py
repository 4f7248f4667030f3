"""Functions of one thread for leaf texts: bit patterns, conversions, conditional loads.

What each means is in dsl_kernels/device/torch/scalars.py; places come as elements of a buffer.
"""

import tilelang.language as T

from .warps import external

SOURCE = r"""
#include <cuda_bf16.h>
namespace scalars {
__device__ __forceinline__ int anew(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
__device__ __forceinline__ unsigned pair_of(float low, float high) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<unsigned*>(&pair);
}
// A piece of a row at its natural alignment. TileLang vectorises no copy whose address depends on a size.
template <int COUNT> __device__ __forceinline__ void load_piece(unsigned* to, const void* from);
template <> __device__ __forceinline__ void load_piece<1>(unsigned* to, const void* from) {
  *to = *static_cast<const unsigned short*>(from);
}
template <> __device__ __forceinline__ void load_piece<8>(unsigned* to, const void* from) {
  uint4 words = *static_cast<const uint4*>(from);
  to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
}
template <int COUNT> __device__ __forceinline__ void store_piece(void* to, const unsigned* from);
template <> __device__ __forceinline__ void store_piece<1>(void* to, const unsigned* from) {
  *static_cast<unsigned short*>(to) = static_cast<unsigned short>(*from);
}
template <> __device__ __forceinline__ void store_piece<8>(void* to, const unsigned* from) {
  *static_cast<uint4*>(to) = make_uint4(from[0], from[1], from[2], from[3]);
}
__device__ __forceinline__ unsigned load_where(const float* from, bool wanted) {
  return wanted ? __ldg(reinterpret_cast<const unsigned*>(from)) : 0;
}
__device__ __forceinline__ unsigned halves(float low, float high) {
  unsigned pair;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ float float_of_half(int bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<unsigned short>(bits)));
  return value;
}
__device__ __forceinline__ unsigned permute_bytes(unsigned a, unsigned b, unsigned selector) {
  unsigned bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(a), "r"(b), "r"(selector));
  return bytes;
}
}  // namespace scalars
"""


def ceildiv(count, size):
    """The operands are not negative: C's division needs no sign fix-up."""
    return T.truncdiv(count + size - 1, size)


bits_of = external("uint32", "__float_as_uint")
float_of = external("float32", "__uint_as_float")
halves = external("uint32", "scalars::halves")
float_of_half = external("float32", "scalars::float_of_half")
anew = external("int32", "scalars::anew")
pair_of = external("uint32", "scalars::pair_of")
permute_bytes = external("uint32", "scalars::permute_bytes")
funnel_left = external("int32", "__funnelshift_l")


def add_rn(a, b):
    return T.call_extern("float32", "__fadd_rn", a, T.float32(b) if isinstance(b, float) else b)


def load_piece(registers, first, count, place):
    places = T.address_of(registers[first]), T.address_of(place)
    return T.call_extern("handle", f"scalars::load_piece<{count}>", *places)


def store_piece(registers, first, count, place):
    places = T.address_of(place), T.address_of(registers[first])
    return T.call_extern("handle", f"scalars::store_piece<{count}>", *places)


def load_below(place, column, limit):
    return T.call_extern("uint32", "scalars::load_where", T.address_of(place), column < limit)
