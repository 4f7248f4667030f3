"""Products of numbers of 4 bits, two in a byte, with a factor for each 32 of a row (mxf4)."""

import tilelang.language as T

SOURCE = r"""
namespace tcgen05 {
template <class A, class B>
__device__ __forceinline__ void multiply_pairs(unsigned sums, const A& a, const B& b, unsigned by_a,
                                               unsigned by_b, int step, unsigned shape, int adds) {
  if (cute::elect_one_sync())
    asm volatile("{ .reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::mxf4.block_scale.scale_vec::2X"
                 " [%0], %1, %2, %3, [%5], [%6], p; }"
                 :: "r"(sums), "l"(uint64_t(a + 32 * step)), "l"(uint64_t(b + 32 * step)),
                    "r"(shape | step << 5 | step << 30), "r"(step ? 1 : adds), "r"(by_a), "r"(by_b)
                 : "memory");
}
}  // namespace tcgen05
"""

SWIZZLE_64B = 4
"""Layout field of a tcgen05 shared-memory descriptor."""

GROUP_ROWS_16B = 512 // 16
"""Descriptor stride, in 16-byte steps, between groups of eight 64-byte rows."""

UE8M0, E2M1, STEPS = 1 << 23, 1 << 7 | 1 << 10, 2
"""Fields of an instruction descriptor, of factors and of both operands; steps of 64 of K."""


@T.macro
def multiply_pairs(a, a_slot, b, b_slot, acc, acc_slot, by_a, by_b, n, clear, first=0):
    """acc (+)= a b^T of 128 rows by n, K = 128 of e2m1, with a factor for each 32 in `by_a` and `by_b`.

    B is the rows from `first` on, a multiple of 8.
    """
    a_desc = T.alloc_tcgen05_smem_desc()
    b_desc = T.alloc_tcgen05_smem_desc()
    T.initialize_tcgen05_descriptor(
        a_desc, T.access_ptr(a[a_slot, 0, 0], "r"), 1, GROUP_ROWS_16B, 0, False, SWIZZLE_64B
    )
    T.initialize_tcgen05_descriptor(
        b_desc, T.access_ptr(b[b_slot, first, 0], "r"), 1, GROUP_ROWS_16B, 0, False, SWIZZLE_64B
    )
    for step in T.unroll(STEPS):
        T.call_extern(
            "handle",
            "tcgen05::multiply_pairs",
            acc[0, acc_slot * n],
            a_desc.data,
            b_desc.data,
            by_a[0, 0],
            by_b[0, 0],
            step,
            UE8M0 | E2M1 | n // 8 << 17 | 128 // 16 << 24,
            T.Select(clear, 0, 1),
        )
