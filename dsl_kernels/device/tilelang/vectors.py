"""Vector accesses that TileLang does not make of a loop, as their address depends on a stride."""

import tilelang.language as T

SOURCE = r"""
#include <cstring>
namespace vectors {
// Eight numbers of 16 bits. By elements, nvcc keeps each of them in a register until two are packed.
template <typename T> __device__ __forceinline__ void load_halves(T* to, const void* from) {
  uint4 words = *static_cast<const uint4*>(from);
  memcpy(to, &words, sizeof(words));
}
template <typename T> __device__ __forceinline__ void store_halves(void* to, const T* from) {
  uint4 words;
  memcpy(&words, from, sizeof(words));
  *static_cast<uint4*>(to) = words;
}
}  // namespace vectors
"""


def load_halves(registers, first, place):
    return T.call_extern(
        "handle", "vectors::load_halves", T.address_of(registers[first]), T.address_of(place)
    )


def store_halves(registers, first, place):
    return T.call_extern(
        "handle", "vectors::store_halves", T.address_of(place), T.address_of(registers[first])
    )
