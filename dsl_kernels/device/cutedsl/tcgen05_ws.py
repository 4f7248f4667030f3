"""Blackwell's MMA of 32, 64 or 128 rows that take all lanes of tensor memory (`.ws`): CuTe DSL has no atom for it."""

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from . import tcgen05

# Operands of kind::f16; what else there is are 8-bit floats of kind::f8f6f4.
KINDS = {"float16": ("f16", 0), "bfloat16": ("f16", 1), "float8_e4m3": ("f8f6f4", 0)}
PANEL_BYTES = 128


@dsl_user_op
def _issue(kind, tmem, a, b, shape, accumulate, *, loc=None, ip=None):
    text = (
        "{ .reg .pred p;\nsetp.ne.u32 p, $4, 0;\n"
        f"tcgen05.mma.ws.cta_group::1.kind::{kind} [$0], $1, $2, $3, p; }}"
    )
    values = [value.ir_value(loc=loc, ip=ip) for value in (tmem, a, b, shape, accumulate)]
    llvm.inline_asm(None, values, text, "r,l,l,r,r,~{memory}", has_side_effects=True, loc=loc, ip=ip)


class Product(tcgen05.Product):
    """acc (+)= A B^T over K, declared once: m rows of A, n rows of B, both K-major in panels of 128 bytes."""

    def __init__(self, dtype, m, n, k, a_major, b_major):
        super().__init__(dtype, m, n, k, a_major, b_major)
        self.kind, form = KINDS[dtype]
        self.shape = 1 << 4 | form << 7 | form << 10 | n // 8 << 17 | m // 16 << 24

    def operand_a(self, pointer, rows, columns, stages, swizzle):
        """Where the steps of K of a buffer of `stages` stages begin: (_, _, step of K, tile)."""
        return self._steps(pointer, self.m, stages * rows * columns)

    def operand_b(self, pointer, rows, columns, stages, swizzle):
        """Where the steps of K of a buffer of `stages` stages begin: (_, _, step of K, tile)."""
        return self._steps(pointer, self.n, stages * rows * columns)

    def _steps(self, pointer, rows, elements):
        panel = PANEL_BYTES * 8 // self.dtype.width
        each = panel // self.step
        steps = (each, max(1, self.k // panel))
        layout = cute.make_layout(
            (1, 1, steps, elements // (rows * self.k)),
            stride=(0, 0, (self.step, rows * panel), rows * self.k),
        )
        return cute.make_tensor(pointer, layout)

    def _descriptor(self, tensor, step):
        address = tensor[None, None, step].iterator.toint()
        return Int64(address >> 4) | Int64(1 << 16 | 64 << 32 | 1 << 46 | 2 << 61)

    def multiply(self, a, b, tmem, accumulate):
        """Issue one product into tensor memory at `tmem`; a whole warp calls it, commit afterwards."""
        with cute.arch.elect_one():
            for step in range(self.k // self.step):
                adds = Int32(1) if step else Int32(accumulate)
                _issue(
                    self.kind,
                    Int32(tmem.toint()),
                    self._descriptor(a, step),
                    self._descriptor(b, step),
                    Int32(self.shape),
                    adds,
                )
