"""Functions of float32 for leaf texts: roots, quotients, and reductions over lanes.

What each means is in dsl_kernels/device/torch/floats.py.
"""

import tilelang.language as T

# CUDA functions, as each step over the lanes would print its operand's expression twice.
SOURCE = r"""
namespace floats {
template <int LANES> __device__ __forceinline__ float sum_of_lanes(float value) {
#pragma unroll
  for (int bits = LANES / 2; bits; bits /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, bits);
  return value;
}
template <int LANES> __device__ __forceinline__ float max_of_lanes(float value) {
#pragma unroll
  for (int bits = LANES / 2; bits; bits /= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, bits));
  return value;
}
}  // namespace floats
"""


def _one(name, *arguments):
    given = (T.float32(x) if isinstance(x, (int, float)) else x for x in arguments)
    return T.call_extern("float32", name, *given)


def sqrt(x):
    return _one("__fsqrt_rn", x)


def rsqrt(x):
    return _one("rsqrtf", x)


def divide(a, b):
    return _one("__fdiv_rn", a, b)


def is_nan(x):
    return T.isnan(x)


def sum_of_lanes(value, lanes=32):
    return _one(f"floats::sum_of_lanes<{lanes}>", value)


def max_of_lanes(value, lanes=32):
    return _one(f"floats::max_of_lanes<{lanes}>", value)
