"""Products of e4m3 by descriptors: 64 rows or 128, either operand K-major or MN-major."""

import tilelang.language as T

STEP, PIECE = 32, 16
"""Elements of K of an instruction; bytes of a descriptor's unit."""
LAYOUTS = {32: 6, 64: 4, 128: 2}
"""The layout field of a descriptor by bytes of a swizzle."""


@T.macro
def multiply_bytes(
    a, a_slot, a_column, a_swizzle, a_major, b, b_slot, b_column, b_swizzle, b_major,
    acc, first, m, n, k, clear,
):  # fmt: skip
    """acc (+)= a b^T over `k`, from columns `a_column` and `b_column` on, into columns from `first` on.

    Both are panels as wide as their swizzle. A panel of a K-major operand has `m` or `n` rows, one of an
    MN-major operand has `k`.
    """
    a_desc = T.alloc_tcgen05_smem_desc()
    b_desc = T.alloc_tcgen05_smem_desc()
    T.initialize_tcgen05_descriptor(
        a_desc, T.access_ptr(a[a_slot, 0, a_column], "r"), 1 if a_major == "k" else k * a_swizzle // PIECE,
        8 * a_swizzle // PIECE, 0, False, LAYOUTS[a_swizzle],
    )  # fmt: skip
    T.initialize_tcgen05_descriptor(
        b_desc, T.access_ptr(b[b_slot, 0, b_column], "r"), 1 if b_major == "k" else k * b_swizzle // PIECE,
        8 * b_swizzle // PIECE, 0, False, LAYOUTS[b_swizzle],
    )  # fmt: skip
    shape = 1 << 4 | int(a_major == "mn") << 15 | int(b_major == "mn") << 16 | (n >> 3) << 17 | (m >> 4) << 24
    for step in T.unroll(k // STEP):
        at = step * STEP
        T.ptx_tcgen05_mma_ss(
            "float8_e4m3",
            a_desc.data,
            at // a_swizzle * (m * a_swizzle) + at % a_swizzle if a_major == "k" else at * a_swizzle,
            b_desc.data,
            at // b_swizzle * (n * b_swizzle) + at % b_swizzle if b_major == "k" else at * b_swizzle,
            acc.data,
            first,
            shape,
            T.Select(step != 0, 1, T.Select(clear, 0, 1)),
            0,
            0,
            0,
            0,
            False,
            False,
        )
