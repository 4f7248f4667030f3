"""Functions for leaf texts: powers, bits of a word, warp-wide operations, atomics, memory of other CTAs.

What each means is in dsl_kernels/device/torch/warps.py; places come as elements of a buffer.
"""

import tilelang.language as T

# A file of leaves that calls these functions puts this source before its own.
SOURCE = r"""
#ifndef WARPS_ONCE
#define WARPS_ONCE
#include <cuda_bf16.h>
#include <tl_templates/cuda/common.h>
namespace warps {
constexpr unsigned ALL = 0xFFFFFFFFu;

__device__ __forceinline__ int warp_sum(int value) { return __reduce_add_sync(ALL, value); }
__device__ __forceinline__ int warp_max(int value) { return __reduce_max_sync(ALL, value); }
__device__ __forceinline__ unsigned warp_most(unsigned value) { return __reduce_max_sync(ALL, value); }
__device__ __forceinline__ int ballot(bool yes) { return __ballot_sync(ALL, yes); }
__device__ __forceinline__ bool any_lane(bool yes) { return __any_sync(ALL, yes); }
__device__ __forceinline__ int shuffle(int value, int lane) { return __shfl_sync(ALL, value, lane); }
// By the shuffle's predicate, for which no register is compared.
__device__ __forceinline__ int scan(int value) {
  asm volatile(
      "{ .reg .pred p; .reg .b32 t; "
      "shfl.sync.up.b32 t|p, %0, 1, 0, -1; @p add.s32 %0, %0, t; shfl.sync.up.b32 t|p, %0, 2, 0, -1; @p add.s32 %0, %0, t; "
      "shfl.sync.up.b32 t|p, %0, 4, 0, -1; @p add.s32 %0, %0, t; shfl.sync.up.b32 t|p, %0, 8, 0, -1; @p add.s32 %0, %0, t; "
      "shfl.sync.up.b32 t|p, %0, 16, 0, -1; @p add.s32 %0, %0, t; }"
      : "+r"(value));
  return value;
}

__device__ __forceinline__ bool at_most(unsigned a, unsigned b) { return a <= b; }
__device__ __forceinline__ bool below(unsigned a, unsigned b) { return a < b; }
__device__ __forceinline__ bool unsigned_above(long long a, long long b) {
  return static_cast<unsigned long long>(a) > static_cast<unsigned long long>(b);
}
__device__ __forceinline__ int pair_low(long long pair) { return static_cast<int>(pair); }
__device__ __forceinline__ int pair_high(long long pair) { return static_cast<int>(pair >> 32); }
__device__ __forceinline__ long long make_pair(unsigned high, int low) {
  return static_cast<long long>(static_cast<unsigned long long>(high) << 32 | static_cast<unsigned>(low));
}
__device__ __forceinline__ void count_where(int* count, bool yes) {
  if (yes) atomicAdd(count, 1);
}
__device__ __forceinline__ void raise_to(int* word, unsigned value) {
  atomicMax(reinterpret_cast<unsigned*>(word), value);
}
__device__ __forceinline__ int load_or(const int* from, bool wanted, int otherwise) {
  int held;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, %3; @p ld.global.b32 %0, [%1]; }"
      : "=&r"(held) : "l"(from), "r"(int(wanted)), "r"(otherwise));
  return held;
}

// Where CTA `rank` of the cluster keeps what this one keeps at `own`.
__device__ __forceinline__ unsigned peer_address(const void* own, int rank) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(remote) : "r"(static_cast<unsigned>(__cvta_generic_to_shared(own))), "r"(rank));
  return remote;
}
__device__ __forceinline__ long long load_peer_pair(const void* own, int rank) {
  long long words;
  asm volatile("ld.shared::cluster.b64 %0, [%1];" : "=l"(words) : "r"(peer_address(own, rank)) : "memory");
  return words;
}
__device__ __forceinline__ void store_peer(const int* own, int rank, int value) {
  asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(peer_address(own, rank)), "r"(value) : "memory");
}
__device__ __forceinline__ void store_peer(const void* own, int rank, long long value) {
  asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(peer_address(own, rank)), "l"(value) : "memory");
}

__device__ __forceinline__ void copy16(void* to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
__device__ __forceinline__ void copy8(void* to, const void* from, bool wanted) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
      ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(wanted ? 8 : 0) : "memory");
}
// TileLang's own copy takes three times the instructions to find the address, and all rows' come before the first copy.
template <class T>
__device__ __forceinline__ void copy_row16(void* to, const T* rows, int pitch, int row, int at, int n) {
  bool inside = static_cast<unsigned>(row) < static_cast<unsigned>(n);
  unsigned chosen = inside ? row : 0, row_bytes = sizeof(T) * pitch;
  const char* from = reinterpret_cast<const char*>(rows) + static_cast<unsigned long long>(chosen) * row_bytes;
  copy16(to, from + sizeof(T) * at, inside);
}
// Without a branch: for several of the same condition the compiler would write out what lies between them more than once.
__device__ __forceinline__ void load_vector(unsigned* to, int count, const void* from, bool wanted) {
  if (count == 1)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1]; }"
        : "=r"(*to) : "l"(from), "r"(int(wanted)));
  else if (count == 2)
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; mov.b32 %0, 0; mov.b32 %1, 0; @p ld.global.nc.v2.b32 {%0, %1}, [%2]; }"
        : "=&r"(to[0]), "=&r"(to[1]) : "l"(from), "r"(int(wanted)));
  else
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
        " @p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
        : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3]) : "l"(from), "r"(int(wanted)));
}

// Two e4m3 values in the high bytes of `t`'s halves to bf16, times scale. With its exponent moved into place a value
// is short of a factor of 2^120. A scale that is no power of two comes as the sum of two bf16 numbers: one product
// in a thousand is rounded to the neighbour of the nearest bf16.
__device__ __forceinline__ unsigned scaled_pair(unsigned t, __nv_bfloat162 high, __nv_bfloat162 low) {
  unsigned bits = (t & 0x80008000u) | ((t >> 4) & 0x07f007f0u), lift = 0x7b807b80u;
  __nv_bfloat162 value = __hmul2(*reinterpret_cast<__nv_bfloat162*>(&bits), *reinterpret_cast<__nv_bfloat162*>(&lift));
  value = __hfma2(value, high, __hmul2(value, low));
  return *reinterpret_cast<unsigned*>(&value);
}

__device__ __forceinline__ void store_fp8(void* first, void* second, const void* four, unsigned scale) {
  const unsigned* words = static_cast<const unsigned*>(four);
  float factor = __uint_as_float(scale);
  __nv_bfloat16 top = __float2bfloat16_rn(factor);
  __nv_bfloat162 high = __bfloat162bfloat162(top);
  __nv_bfloat162 low = __bfloat162bfloat162(__float2bfloat16_rn(factor - __bfloat162float(top)));
  unsigned pairs[8];
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    pairs[2 * w] = scaled_pair(__byte_perm(words[w], 0, 0x1404), high, low);
    pairs[2 * w + 1] = scaled_pair(__byte_perm(words[w], 0, 0x3424), high, low);
  }
  *reinterpret_cast<uint4*>(first) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  *reinterpret_cast<uint4*>(second) = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
}

__device__ __forceinline__ void store_pair(void* to, float low, float high) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(low, high);
}

template <class T> __device__ __forceinline__ unsigned pair_of(float low, float high) {
  if constexpr (std::is_same_v<T, half_t>) {
    __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<unsigned*>(&pair);
  }
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<unsigned*>(&pair);
}

// Two matrices, or four.
template <class T> __device__ __forceinline__ void store_matrices(T* to, const float* values, int count, bool transposed) {
  unsigned words[4], at = static_cast<unsigned>(__cvta_generic_to_shared(to));
#pragma unroll
  for (int i = 0; i < count; ++i) words[i] = pair_of<T>(values[2 * i], values[2 * i + 1]);
  if (count == 4)
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
        ::"r"(at), "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(at), "r"(words[0]), "r"(words[1]) : "memory");
}

__device__ __forceinline__ void store16(void* to, const unsigned* words) {
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}
}  // namespace warps
#endif
"""  # noqa: E501


def external(dtype, name):
    """A function of `SOURCE` or of CUDA that returns a `dtype`."""
    return lambda *arguments: T.call_extern(dtype, name, *arguments)


def exp2(x):
    return T.exp2(x)


def log2(x):
    return T.log2(x)


def rcp_approx(x):
    return 1.0 / x


def exchange(value, bits):
    return T.shfl_xor(value, bits)


popc = external("int32", "__popc")
clz = external("int32", "__clz")
mul_hi = external("uint32", "__umulhi")
pair_low = external("int32", "warps::pair_low")
pair_high = external("int32", "warps::pair_high")
make_pair = external("int64", "warps::make_pair")
unsigned_above = external("bool", "warps::unsigned_above")
at_most = external("bool", "warps::at_most")
below = external("bool", "warps::below")
ballot = external("int32", "warps::ballot")
any_lane = external("bool", "warps::any_lane")
shuffle = external("int32", "warps::shuffle")
warp_sum = external("int32", "warps::warp_sum")
warp_max = external("int32", "warps::warp_max")
warp_most = external("uint32", "warps::warp_most")


def scan(value, lanes=32):
    return T.call_extern("int32", "warps::scan", value)


def atomic_add(place, value):
    return T.atomic_add(place, value)


def count_where(place, yes):
    return T.call_extern("handle", "warps::count_where", T.address_of(place), yes)


def fetch_add(place, value):
    return T.atomic_add(place, value, return_prev=True)


def set_bits(place, bits):
    return T.call_extern("handle", "atomicOr", T.address_of(place), bits)


def raise_to(place, value):
    return T.call_extern("handle", "warps::raise_to", T.address_of(place), value)


def load_peer_pair(place, rank):
    return T.call_extern("int64", "warps::load_peer_pair", T.address_of(place), rank)


def store_peer(place, rank, value):
    return T.call_extern("handle", "warps::store_peer", T.address_of(place), rank, value)


def sync_warp():
    return T.sync_warp()


def load_or(place, wanted, otherwise):
    return T.call_extern("int32", "warps::load_or", T.address_of(place), wanted, otherwise)


def copy16(to, source, wanted):
    return T.call_extern("handle", "warps::copy16", T.address_of(to), T.address_of(source), wanted)


def copy8(to, source, wanted):
    return T.call_extern("handle", "warps::copy8", T.address_of(to), T.address_of(source), wanted)


def copy_row16(to, rows, first, row, at, n):
    places = T.address_of(to), T.address_of(rows[0, first])
    return T.call_extern("handle", "warps::copy_row16", *places, rows.strides[0], row, at, n)


def load_vector(registers, first, count, place, wanted):
    return T.call_extern(
        "handle", "warps::load_vector", T.address_of(registers[first]), count, T.address_of(place), wanted
    )


def store_vector(registers, first, place):
    return T.call_extern("handle", "warps::store16", T.address_of(place), T.address_of(registers[first]))


def store_matrices(place, registers, first, count, transposed=False):
    to, held = T.address_of(place), T.address_of(registers[first])
    return T.call_extern("handle", "warps::store_matrices", to, held, count, transposed)


def store_fp8(first, second, registers, at, scale):
    places = map(T.address_of, (first, second, registers[at]))
    return T.call_extern("handle", "warps::store_fp8", *places, scale)


def store_pair(place, low, high):
    return T.call_extern("handle", "warps::store_pair", T.address_of(place), low, high)
