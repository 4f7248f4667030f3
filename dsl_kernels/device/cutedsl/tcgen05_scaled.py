"""Blackwell's MMA with a factor for 32 elements of a row: of e4m3 (mxf8f6f4), or of pairs of e2m1 (mxf4)."""

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from . import tcgen05_ws

# Exponents as factors (ue8m0).
UE8M0 = 1 << 23
# By dtype: the kind of product, the format in a descriptor, numbers in a byte, factors of a step.
KINDS = {
    "float8_e4m3": ("mxf8f6f4.block_scale.scale_vec::1X", 0, 1, 1),
    "float4_e2m1x2": ("mxf4.block_scale.scale_vec::2X", 1, 2, 2),
}
STEP_BYTES = 32
# Rows of 128 bytes and of 64: the swizzle as a shared-memory descriptor names it.
SWIZZLES = {128: 2, 64: 4}


@dsl_user_op
def _issue(kind, tmem, a, b, shape, accumulate, by_a, by_b, *, loc=None, ip=None):
    text = (
        "{ .reg .pred p;\nsetp.ne.u32 p, $4, 0;\n"
        f"tcgen05.mma.cta_group::1.kind::{kind} [$0], $1, $2, $3, [$5], [$6], p; }}"
    )
    values = [value.ir_value(loc=loc, ip=ip) for value in (tmem, a, b, shape, accumulate, by_a, by_b)]
    llvm.inline_asm(None, values, text, "r,l,l,r,r,r,r,~{memory}", has_side_effects=True, loc=loc, ip=ip)


class Product(tcgen05_ws.Product):
    """acc (+)= A B^T over K = 128: 128 rows of A, n rows of B, both K-major in one swizzled panel."""

    def __init__(self, dtype, m, n, k, a_major, b_major):
        self.m, self.n, self.k = m, n, k
        self.kind, form, packed, self.factors = KINDS[dtype]
        self.row = k // packed
        self.shape = form << 7 | form << 10 | n // 8 << 17 | m // 16 << 24 | UE8M0

    def operand_b(self, pointer, rows, columns, stages, swizzle):
        """Where the steps of K of a buffer of `stages` stages begin: (_, _, step of K, tile)."""
        return self._steps(pointer, self.n, stages * rows * columns)

    def multiply(self, a, b, tmem, accumulate, by_a, by_b):
        """Issue one product into tensor memory at `tmem`; a whole warp calls it, commit afterwards."""
        columns = [Int32(place.toint()) for place in (tmem, by_a, by_b)]
        with cute.arch.elect_one():
            for step in range(self.row // STEP_BYTES):
                adds = Int32(1) if step else Int32(accumulate)
                # A step's factors begin with this byte of their word; the descriptor takes its number twice.
                first = step * self.factors
                of_step = self.shape | first << 4 | first << 29
                of_step = of_step - (1 << 32) if of_step >> 31 else of_step
                operands = (self._descriptor(a, step), self._descriptor(b, step))
                _issue(self.kind, columns[0], *operands, Int32(of_step), adds, *columns[1:])

    def _steps(self, pointer, rows, elements):
        tile = rows * self.row
        layout = cute.make_layout(
            (1, 1, self.row // STEP_BYTES, elements // tile), stride=(0, 0, STEP_BYTES, tile)
        )
        return cute.make_tensor(pointer, layout)

    def _descriptor(self, tensor, step, panels=1):
        address = tensor[None, None, step].iterator.toint()
        fixed = panels << 16 | 8 * self.row // 16 << 32 | 1 << 46 | SWIZZLES[self.row] << 61
        return Int64(address >> 4) | Int64(fixed - (1 << 64) if fixed >> 63 else fixed)
