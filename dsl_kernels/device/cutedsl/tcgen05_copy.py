"""Copies from shared into tensor memory (tcgen05.cp), in order with the products of the same thread."""

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

LANES, PANEL_BYTES = 128, 128
# Of a row an instruction copies 32 bytes: eight columns.
STEP_BYTES, STEP_COLUMNS = 32, 8


@dsl_user_op
def _issue(shape, tmem, rows, *, loc=None, ip=None):
    values = [value.ir_value(loc=loc, ip=ip) for value in (tmem, rows)]
    text = f"tcgen05.cp.cta_group::1.{shape} [$0], $1;"
    llvm.inline_asm(None, values, text, "r,l,~{memory}", has_side_effects=True, loc=loc, ip=ip)


def copy_columns(tmem, source, depth):
    """Copy 128 rows of `depth` elements, in swizzled panels of 128 bytes, to tensor memory from `tmem` on.

    A whole warp calls it.
    """
    steps = PANEL_BYTES // STEP_BYTES
    with cute.arch.elect_one():
        for step in range(depth * source.dtype.width // 8 // STEP_BYTES):
            begin = source.toint() + step // steps * LANES * PANEL_BYTES + step % steps * STEP_BYTES
            rows = Int64(begin >> 4) | Int64(1 << 16 | 64 << 32 | 1 << 46 | 2 << 61)
            _issue("128x256b", Int32(tmem.toint()) + step * STEP_COLUMNS, rows)


def copy_factors(tmem, source):
    """32 rows of 16 bytes into four columns of each quarter of the lanes; a whole warp calls it."""
    with cute.arch.elect_one():
        rows = Int64(source.toint() >> 4) | Int64(1 << 16 | 8 << 32 | 1 << 46)
        _issue("32x128b.warpx4", Int32(tmem.toint()), rows)
