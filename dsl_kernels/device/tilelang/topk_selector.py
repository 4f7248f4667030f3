"""Leaf maths of the exact top-k selection: keys and digits, closing a round, ranking, ordered output.

Shared buffers come whole, with a place in them where a leaf works on a part. What a warp works out together, every
lane calls. What each leaf means is in dsl_kernels/device/torch/topk_selector.py.
"""

from __future__ import annotations

import tilelang.language as T

from . import warps
from .warps import external

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
}

# Not the pass over a sampled row: a batch of it is 16 registers of which one is picked by a number known at run time, and
# TileLang's kernels spilled 76 to 192 words.
UNSPELLED = ("list_row",)

SOURCE = (
    warps.SOURCE
    + r"""
namespace dk {
// The bit pattern at `from`, or 0 without a read.
__device__ __forceinline__ unsigned load_bits(const float* from, bool wanted) {
  return wanted ? __ldg(reinterpret_cast<const unsigned*>(from)) : 0;
}

// The addition turns -0.0 into +0.0 and every NaN into the one above every number.
__device__ __forceinline__ unsigned canonical(unsigned bits) {
  return __float_as_uint(__fadd_rn(__uint_as_float(bits), 0.0f));
}

// First digits of two canonical bit patterns, one in each half of a word; bits 5 to 15 are the bin, 0 the largest.
__device__ __forceinline__ unsigned half_digits(unsigned low, unsigned high) {
  unsigned pair, sign;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(__uint_as_float(high)), "f"(__uint_as_float(low)));
  asm("prmt.b32 %0, %1, %1, 0xBB99;" : "=r"(sign) : "r"(pair));
  return pair ^ (~sign & 0x7FFF7FFFu);
}

// Smallest key of a bin of the first round, counted from the smallest score.
__device__ __forceinline__ unsigned half_edge(int bin) {
  unsigned short magnitude = static_cast<unsigned short>(abs(bin - 1024) << 5);
  float edge;
  asm("cvt.f32.f16 %0, %1;" : "=f"(edge) : "h"(magnitude));
  int bits = __float_as_int(edge);
  return 0x80000000u + static_cast<unsigned>(bin < 1024 ? -bits : bits);
}

}  // namespace dk
"""
)


def ceildiv(count, size):
    """Both positive or zero; C division, which costs no sign fix-up."""
    return T.truncdiv(count + size - 1, size)


canonical = external("uint32", "dk::canonical")
half_edge = external("uint32", "dk::half_edge")
half_digits = external("uint32", "dk::half_digits")


def load_below(place, column, limit):
    """The bit pattern at a place where a column lies below a limit; 0 without a read elsewhere."""
    return T.call_extern("uint32", "dk::load_bits", T.address_of(place), column < limit)
