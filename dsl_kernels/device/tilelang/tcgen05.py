"""Products that `T.tcgen05_gemm` lacks: 64 rows, 16-bit sums, `.ws`. And commits to several CTAs."""

import tilelang.language as T

SOURCE = r"""
namespace tcgen05 {
__device__ __forceinline__ void commit_in_cluster(const void* barrier, int ctas) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;"
               :: "r"(unsigned(__cvta_generic_to_shared(barrier))), "h"((unsigned short)ctas) : "memory");
}
template <class Descriptor>
__device__ __forceinline__ void copy_columns(unsigned columns, const Descriptor& rows, int bytes) {
  if (cute::elect_one_sync())
    asm volatile("tcgen05.cp.cta_group::1.128x256b [%0], %1;" :: "r"(columns), "l"(uint64_t(rows + bytes)) : "memory");
}
template <class Descriptor>
__device__ __forceinline__ void copy_factors(unsigned columns, const Descriptor& rows) {
  if (cute::elect_one_sync())
    asm volatile("tcgen05.cp.cta_group::1.32x128b.warpx4 [%0], %1;" :: "r"(columns), "l"(uint64_t(rows)) : "memory");
}
template <class B>
__device__ __forceinline__ void multiply_ws(unsigned sums, unsigned a, const B& b, int bytes, unsigned shape, int adds) {
  if (cute::elect_one_sync())
    asm volatile("{ .reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
                 "tcgen05.mma.ws.cta_group::1.kind::f16 [%0], [%1], %2, %3, p; }"
                 :: "r"(sums), "r"(a), "l"(uint64_t(b + bytes)), "r"(shape), "r"(adds) : "memory");
}
template <class A, class B>
__device__ __forceinline__ void multiply_scaled(unsigned sums, const A& a, const B& b, unsigned by_a, unsigned by_b, int step, unsigned shape, int adds) {
  if (cute::elect_one_sync())
    asm volatile("{ .reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%0], %1, %2, %3, [%5], [%6], p; }"
                 :: "r"(sums), "l"(uint64_t(a + 32 * step)), "l"(uint64_t(b + 32 * step)), "r"(shape | step << 4 | step << 29),
                    "r"(step ? 1 : adds), "r"(by_a), "r"(by_b) : "memory");
}
}  // namespace tcgen05
"""  # noqa: E501

SWIZZLE_128B = 2
"""Layout field of a tcgen05 shared-memory descriptor."""

GROUP_ROWS_16B = 1024 // 16
"""Descriptor stride, in 16-byte steps, between groups of eight 128-byte rows."""


def instruction_descriptor(m: int, n: int) -> int:
    """kind::f16 descriptor of a bf16 x bf16 -> fp32 MMA with both operands K-major."""
    float32, bfloat16 = 1, 1
    return float32 << 4 | bfloat16 << 7 | bfloat16 << 10 | (n >> 3) << 17 | (m >> 4) << 24


@T.macro
def multiply_m64(a, a_slot, a_column, b, b_slot, b_column, acc, acc_slot, n, k, clear):
    """acc (+)= a b^T: 64 rows by `n`, over `k` columns from `a_column` and `b_column` on.

    `a` and `b` are swizzled panels of 64 columns. The result starts at column acc_slot * n of `acc`.
    """
    a_desc = T.alloc_tcgen05_smem_desc()
    b_desc = T.alloc_tcgen05_smem_desc()
    T.initialize_tcgen05_descriptor(
        a_desc, T.access_ptr(a[a_slot, 0, a_column], "r"), 1, GROUP_ROWS_16B, 0, False, SWIZZLE_128B
    )
    T.initialize_tcgen05_descriptor(
        b_desc, T.access_ptr(b[b_slot, 0, b_column], "r"), 1, GROUP_ROWS_16B, 0, False, SWIZZLE_128B
    )
    for step in T.unroll(k // 16):
        T.ptx_tcgen05_mma_ss(
            "bfloat16",
            a_desc.data,
            step // 4 * (64 * 128) + step % 4 * 32,
            b_desc.data,
            step // 4 * (n * 128) + step % 4 * 32,
            acc.data,
            acc_slot * n,
            instruction_descriptor(64, n),
            T.Select(step != 0, 1, T.Select(clear, 0, 1)),
            0,
            0,
            0,
            0,
            False,
            False,
        )


KINDS = {"float16": 0, "bfloat16": 1}
"""Format of an operand of kind::f16 in an instruction descriptor."""


@T.macro
def multiply_described(
    a,
    a_slot,
    a_column,
    b,
    b_slot,
    b_column,
    acc,
    acc_slot,
    acc_column,
    m,
    n,
    k,
    dtype,
    sums,
    ws,
    a_shared,
    b_major,
    clear,
):
    """As `multiply_m64`, of `m` rows and 16-bit operands; a 16-bit sum takes a column, as a 32-bit sum does.

    With `ws`, a result of fewer than 128 rows takes all lanes, `a` may be in tensor memory, and `b` may be
    MN-major.
    """
    b_desc = T.alloc_tcgen05_smem_desc()
    panels = (1, GROUP_ROWS_16B) if b_major == "k" else (k * 128 // 16, GROUP_ROWS_16B)
    T.initialize_tcgen05_descriptor(
        b_desc, T.access_ptr(b[b_slot, 0, b_column], "r"), *panels, 0, False, SWIZZLE_128B
    )
    shape = (
        int(sums == "float32") << 4
        | KINDS[dtype] << 7
        | KINDS[dtype] << 10
        | int(b_major == "mn") << 16
        | (n >> 3) << 17
        | (m >> 4) << 24
    )
    first = acc_slot * (n * m // 128 if ws else n) + acc_column
    if a_shared:
        a_desc = T.alloc_tcgen05_smem_desc()
        T.initialize_tcgen05_descriptor(
            a_desc, T.access_ptr(a[a_slot, 0, a_column], "r"), 1, GROUP_ROWS_16B, 0, False, SWIZZLE_128B
        )
    for step in T.unroll(k // 16):
        adds = T.Select(step != 0, 1, T.Select(clear, 0, 1))
        along = step // 4 * (n * 128) + step % 4 * 32 if b_major == "k" else step * (16 * 128)
        if a_shared:
            T.ptx_tcgen05_mma_ss(
                dtype, a_desc.data, step // 4 * (m * 128) + step % 4 * 32, b_desc.data, along,
                acc.data, first, shape, adds, 0, 0, 0, 0, ws, False,
            )  # fmt: skip
        else:
            # `T.ptx_tcgen05_mma_ts` has no `.ws`.
            T.call_extern(
                "handle", "tcgen05::multiply_ws", acc[0, first],
                a[0, a_slot * k + a_column + 16 * step], b_desc.data, along, shape, adds,
            )  # fmt: skip


@T.macro
def multiply_halves(
    a, a_slot, a_column, b, b_slot, b_column, acc, acc_slot, acc_column, n, k, dtype, a_shared, b_major, clear
):
    """As `multiply_m64`, of 64 rows in each of two CTAs.

    The result takes all lanes: the lower 64 have the first half of the `n` columns, the others the second
    half. `a` may be in tensor memory, where each row is in two lanes. `b` has half of the columns in each
    CTA; an MN-major `b` has `k` rows of them.
    """
    b_desc = T.alloc_tcgen05_smem_desc()
    panels = (1, GROUP_ROWS_16B) if b_major == "k" else (k * 128 // 16, GROUP_ROWS_16B)
    T.initialize_tcgen05_descriptor(
        b_desc, T.access_ptr(b[b_slot, 0, b_column], "r"), *panels, 0, False, SWIZZLE_128B
    )
    shape = (
        1 << 4
        | KINDS[dtype] << 7
        | KINDS[dtype] << 10
        | int(b_major == "mn") << 16
        | (n >> 3) << 17
        | (128 >> 4) << 24
    )
    if a_shared:
        a_desc = T.alloc_tcgen05_smem_desc()
        T.initialize_tcgen05_descriptor(
            a_desc, T.access_ptr(a[a_slot, 0, a_column], "r"), 1, GROUP_ROWS_16B, 0, False, SWIZZLE_128B
        )
    for step in T.unroll(k // 16):
        adds = T.Select(step != 0, 1, T.Select(clear, 0, 1))
        along = step // 4 * (n // 2 * 128) + step % 4 * 32 if b_major == "k" else step * (16 * 128)
        if a_shared:
            T.ptx_tcgen05_mma_ss(
                dtype, a_desc.data, step // 4 * (64 * 128) + step % 4 * 32, b_desc.data, along,
                acc.data, acc_slot * (n // 2) + acc_column, shape, adds, 0, 0, 0, 0, False, True,
            )  # fmt: skip
        else:
            T.ptx_tcgen05_mma_ts(
                dtype, a.data, (a_slot * k + a_column) // 2 + step * 8, b_desc.data, along,
                acc.data, acc_slot * (n // 2) + acc_column, shape, adds, 0, 0, 0, 0, True,
            )  # fmt: skip


@T.macro
def copy_columns(target, target_slot, source, source_slot, depth):
    """Copy 128 rows of `depth` 16-bit elements, in swizzled panels of 128 bytes, to a tensor-memory buffer.

    An instruction copies eight columns.
    """
    rows = T.alloc_tcgen05_smem_desc()
    T.initialize_tcgen05_descriptor(
        rows, T.access_ptr(source[source_slot, 0, 0], "r"), 1, GROUP_ROWS_16B, 0, False, SWIZZLE_128B
    )
    # The stages of a buffer that a product reads by descriptor are side by side.
    whole = len(target.shape) == 3
    for step in T.unroll(depth // 16):
        T.call_extern(
            "handle",
            "tcgen05::copy_columns",
            target[target_slot, 0, 16 * step] if whole else target[0, target_slot * depth + 16 * step],
            rows.data,
            step // 4 * (128 * 128) + step % 4 * 32,
        )


@T.macro
def copy_factors(target, target_slot, source, source_slot):
    """Copy 32 rows of 16 bytes to four columns of each quarter of the lanes."""
    rows = T.alloc_tcgen05_smem_desc()
    T.initialize_tcgen05_descriptor(rows, T.access_ptr(source[source_slot, 0, 0], "r"), 1, 8, 0, False, 0)
    T.call_extern("handle", "tcgen05::copy_factors", target[0, 4 * target_slot], rows.data)


@T.macro
def multiply_scaled(a, a_slot, b, b_slot, acc, acc_slot, by_a, by_b, n, clear):
    """acc (+)= a b^T: 128 rows by `n` over 128 e4m3 columns, with a factor for 32 in `by_a` and in `by_b`."""
    a_desc = T.alloc_tcgen05_smem_desc()
    b_desc = T.alloc_tcgen05_smem_desc()
    T.initialize_tcgen05_descriptor(
        a_desc, T.access_ptr(a[a_slot, 0, 0], "r"), 1, GROUP_ROWS_16B, 0, False, SWIZZLE_128B
    )
    T.initialize_tcgen05_descriptor(
        b_desc, T.access_ptr(b[b_slot, 0, 0], "r"), 1, GROUP_ROWS_16B, 0, False, SWIZZLE_128B
    )
    for step in T.unroll(4):
        T.call_extern(
            "handle",
            "tcgen05::multiply_scaled",
            acc[0, acc_slot * n],
            a_desc.data,
            b_desc.data,
            by_a[0, 0],
            by_b[0, 0],
            step,
            1 << 23 | n // 8 << 17 | 128 // 16 << 24,
            T.Select(clear, 0, 1),
        )


def move_columns(way, held, columns, slot, first, thread):
    """Load (`way` "ld") or store ("st") this thread's registers, one a column, from `first` on; it waits."""
    registers = held.shape[0] if str(held.dtype) == "float32" else held.shape[0] // 2
    lane = 32 * (thread // 32)
    # The stages of a result that a product writes by descriptor are side by side.
    whole = len(columns.shape) == 3
    return T.call_extern(
        "handle",
        f"tl::tcgen05_{way}_32dp32bNx<{registers}, false>",
        columns[slot, lane, 0] if whole else columns[lane, slot * registers],
        first,
        T.address_of(held[0]),
    )


@T.macro
def commit_in_cluster(empty, slot, ctas):
    """Arrive at a barrier of every CTA of the cluster when the products issued so far are done."""
    if T.shuffle_elect(32):
        T.call_extern("handle", "tcgen05::commit_in_cluster", T.address_of(empty[slot]), 2**ctas - 1)
