"""Blackwell's MMA on e4m3 with a factor for each 32 elements of a row (mxf8f6f4), in tensor memory."""

import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from . import tcgen05_ws

# Exponents as factors (ue8m0).
UE8M0 = 1 << 23


@dsl_user_op
def _issue(tmem, a, b, shape, accumulate, by_a, by_b, *, loc=None, ip=None):
    text = (
        "{ .reg .pred p;\nsetp.ne.u32 p, $4, 0;\n"
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [$0], $1, $2, $3, [$5], [$6], p; }"
    )
    values = [value.ir_value(loc=loc, ip=ip) for value in (tmem, a, b, shape, accumulate, by_a, by_b)]
    llvm.inline_asm(None, values, text, "r,l,l,r,r,r,r,~{memory}", has_side_effects=True, loc=loc, ip=ip)


class Product(tcgen05_ws.Product):
    """acc (+)= A B^T over K = 128: 128 rows of A, n rows of B, both K-major in 128-byte panels."""

    def multiply(self, a, b, tmem, accumulate, by_a, by_b):
        """Issue one product into tensor memory at `tmem`; a whole warp calls it, commit afterwards."""
        shape = self.n // 8 << 17 | self.m // 16 << 24 | UE8M0
        columns = [Int32(place.toint()) for place in (tmem, by_a, by_b)]
        with cute.arch.elect_one():
            for step in range(self.k // self.step):
                adds = Int32(1) if step else Int32(accumulate)
                # A step's factors are byte `step` of their word; the descriptor takes its number twice.
                of_step = shape | step << 4 | step << 29
                of_step = of_step - (1 << 32) if of_step >> 31 else of_step
                operands = (self._descriptor(a, step), self._descriptor(b, step))
                _issue(columns[0], *operands, Int32(of_step), adds, *columns[1:])
