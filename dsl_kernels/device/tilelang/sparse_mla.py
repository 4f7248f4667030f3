"""Leaf pieces of sparse attention on Hopper: row gathers, fp8 tokens, merging of splits.

All exponents are base 2: logits carry log2(e), and an lse is the log2 of a sum. A macro's parameter renames the runtime size
that it is given, so sizes keep the names that the kernel gives them.
"""

from __future__ import annotations

import tilelang.language as T

# TileLang has no store that completes on another CTA's barrier, which slices need; heads on M lack the leaves that move rows.
UNSPELLED = ("send_scores", "copy_query_rows")

# On Hopper threads hold tiles of registers by themselves, as products leave them.
OWN_REGISTERS = True

# Barriers are the declared ones: TileLang adds none of its own.
PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.enable_fast_math": True,
}

COPY_SOURCE = r"""
namespace dk {
// Start the copy of the 16 bytes that lie `at` elements behind `rows` in row `token`; zeros where it names none of `n`
// rows. TileLang's own copy takes three times the instructions to find the address, and all rows' come before the first
// copy of a tile. What a thread's copies of a row differ by comes last, so that it goes into the instruction.
__device__ __forceinline__ void copy16(void* to, const void* rows, int stride, int token, int at, int n) {
  bool inside = static_cast<unsigned>(token) < static_cast<unsigned>(n);
  unsigned row = inside ? token : 0, row_bytes = 2 * stride;
  const char* from = static_cast<const char*>(rows) + static_cast<unsigned long long>(row) * row_bytes + 2 * at;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
}  // namespace dk
"""

FP8_SOURCE = r"""
#include <cuda_bf16.h>
namespace dk {
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

__device__ __forceinline__ void store16(void* to, const unsigned* words) {
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}
}  // namespace dk
"""


WORDS_SOURCE = r"""
namespace dk {
__device__ __forceinline__ void copy16(void* to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(wanted ? 16 : 0) : "memory");
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
}  // namespace dk
"""

SOURCE = COPY_SOURCE + FP8_SOURCE + WORDS_SOURCE


def copy16(to, source, wanted):
    return T.call_extern("handle", "dk::copy16", T.address_of(to), T.address_of(source), wanted)


def load_vector(registers, first, count, place, wanted):
    return T.call_extern(
        "handle", "dk::load_vector", T.address_of(registers[first]), count, T.address_of(place), wanted
    )


def store_vector(registers, first, place):
    return T.call_extern("handle", "dk::store16", T.address_of(place), T.address_of(registers[first]))


def store_fp8(first, second, registers, at, scale):
    places = map(T.address_of, (first, second, registers[at]))
    return T.call_extern("handle", "dk::store_fp8", *places, scale)


def valid(token, n):
    """Whether an id names a row of the cache; -1 is padding."""
    return (token >= 0) & (token < n)


def word(bits):
    """The lanes of a warp that voted yes, as 32 bits."""
    return T.Cast("int32", T.ballot_sync(bits))


@T.macro
def vote(in_low: T.Ref, in_high: T.Ref, live: T.Ref, low, high, n):
    """The valid tokens of a tile as two words of bits, and whether there is one; the same in every warp of every role."""
    in_low = word(valid(low, n))
    in_high = word(valid(high, n))
    live = (in_low | in_high) != 0  # noqa: F841


@T.macro
def load_queries(target, q, row, head0, heads, block, width, first, columns, thread):
    """Columns `first` on of a block of heads of one query, whose rows are `width` long."""
    T.copy(q[row, head0 : head0 + block, first : first + columns], target)


@T.macro
def copy_rows(target, slot, cache, first, columns, low, high, n, thread):
    """Start the 16-byte copies of a tile's rows, eight threads a row; a masked row becomes zeros and is not read."""
    for r in T.unroll(4):
        j = r * 16 + thread // 8
        token = T.shfl_sync(low if r < 2 else high, j % 32)
        for c in T.unroll(columns // 64):
            T.call_extern(
                "handle",
                "dk::copy16",
                T.address_of(target[slot, j, c * 64 + thread % 8 * 8]),
                T.address_of(cache[0, first + thread % 8 * 8]),
                cache.strides[0],
                token,
                c * 64,
                n,
            )
