"""Copies by the copy engine that `T.tma_copy` lacks: gathered rows of a tensor."""

import tilelang.language as T
from tvm import tirx

SOURCE = r"""
namespace bulk {
// Four rows of a panel, which count at the barrier of the first of two CTAs: the bit of its address that tells them apart is off.
__device__ __forceinline__ void gather_for_pair(const CUtensorMap& rows, const void* barrier, const void* to, int column, int r0, int r1, int r2, int r3) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes.cta_group::2"
               " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
               :: "r"(unsigned(__cvta_generic_to_shared(to))), "l"(&rows), "r"(column), "r"(r0), "r"(r1), "r"(r2), "r"(r3),
                  "r"(unsigned(__cvta_generic_to_shared(barrier)) & 0xFEFFFFFF) : "memory");
}
}  // namespace bulk
"""  # noqa: E501

PANEL = 64
"""bf16 columns of one row of a 128-byte-swizzled panel."""


def row_map(operand, columns, rows, row_bytes):
    """Tensor map of a bf16 matrix for gathered rows: boxes of one row by one panel."""
    bfloat16, no_interleave, swizzle_128b, promote_l2_128b, zero_fill = 9, 0, 3, 2, 0
    return T.create_tma_descriptor(
        bfloat16, 2, operand.data, columns, rows, 2, T.cast(row_bytes, "int64"), PANEL, 1, 1, 1,
        no_interleave, swizzle_128b, promote_l2_128b, zero_fill,
    )  # fmt: skip


@T.macro
def load_rows(tensor_map, rows, column, target, slot, full):
    """Fill the target's slot with gathered rows, from `column` on, by copies of four rows of a panel.

    `rows` has the numbers, the same in all lanes, and one lane issues the copies. A number outside of the
    tensor gives zeros. The copies complete on full[slot]. This announces their bytes there and does not
    arrive; the caller arrives after the copies.
    """
    if T.shuffle_elect(32):
        T.mbarrier_expect_tx(full[slot], target.shape[1] * target.shape[2] * 2)
        for panel in T.unroll(target.shape[2] // PANEL, unroll_factor=1):
            for quad in T.unroll(target.shape[1] // 4):
                # The copy engine swizzles, and takes the row's unswizzled start. TileLang swizzles addresses,
                # so this is column 8 * (row % 8).
                T.call_intrin(
                    "handle",
                    tirx.op.Op.get("tl.tma_load_gather4"),
                    tensor_map,
                    full[slot],
                    T.access_ptr(target[slot, 4 * quad, panel * PANEL + quad % 2 * 32], "w", 256),
                    column + panel * PANEL,
                    rows[4 * quad],
                    rows[4 * quad + 1],
                    rows[4 * quad + 2],
                    rows[4 * quad + 3],
                    0,
                )


@T.macro
def load_rows_of_pair(tensor_map, rows, column, target, slot, full):
    """As `load_rows`, in either of two CTAs; all bytes count at full[slot] of the first, announced there."""
    if T.shuffle_elect(32):
        for panel in T.unroll(target.shape[2] // PANEL, unroll_factor=1):
            for quad in T.unroll(target.shape[1] // 4):
                T.call_extern(
                    "handle",
                    "bulk::gather_for_pair",
                    tensor_map,
                    T.address_of(full[slot]),
                    T.access_ptr(target[slot, 4 * quad, panel * PANEL + quad % 2 * 32], "w", 256),
                    column + panel * PANEL,
                    rows[4 * quad],
                    rows[4 * quad + 1],
                    rows[4 * quad + 2],
                    rows[4 * quad + 3],
                )
