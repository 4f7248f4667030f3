"""Copies by the copy engine that `T.tma_copy` does not offer: rows of a tensor by number."""

import tilelang.language as T
from tvm import tirx

PANEL = 64
"""bf16 columns of one row of a 128-byte-swizzled panel."""


def row_map(operand, columns, rows, row_bytes):
    """Tensor map of a bf16 matrix for rows by number: boxes of one row by one panel."""
    bfloat16, no_interleave, swizzle_128b, promote_l2_128b, zero_fill = 9, 0, 3, 2, 0
    return T.create_tma_descriptor(
        bfloat16, 2, operand.data, columns, rows, 2, T.cast(row_bytes, "int64"), PANEL, 1, 1, 1, no_interleave, swizzle_128b,
        promote_l2_128b, zero_fill,
    )  # fmt: skip


@T.macro
def load_rows(tensor_map, rows, column, target, slot, full, lane):
    """Copy the columns from `column` on of 64 rows, as many as the target has, four rows by one panel an instruction.

    The first sixteen lanes issue; each holds the numbers of its four rows first. A number outside the tensor gives zeros.
    They complete on full[slot], where their bytes are announced: an arrival follows the copies.
    """
    if lane == 0:
        T.mbarrier_expect_tx(full[slot], target.shape[1] * target.shape[2] * 2)
    T.sync_warp()
    if lane < 16:
        for panel in T.unroll(target.shape[2] // PANEL):
            # The copy engine swizzles: the address wanted is the row's unswizzled start, where column 8 * (row % 8) lies.
            T.call_intrin(
                "handle",
                tirx.op.Op.get("tl.tma_load_gather4"),
                tensor_map,
                full[slot],
                T.access_ptr(target[slot, 4 * lane, panel * PANEL + lane % 2 * 32], "w", 256),
                column + panel * PANEL,
                rows[0],
                rows[1],
                rows[2],
                rows[3],
                0,
            )
