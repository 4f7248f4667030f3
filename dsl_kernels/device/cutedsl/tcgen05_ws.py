"""Blackwell's MMA of 32, 64 or 128 rows over all lanes of tensor memory (`.ws`); CuTe DSL has no atom."""

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from . import tcgen05

# Kind of the instruction and format of its operands: kind::f16 takes 16-bit floats, kind::f8f6f4 8-bit ones.
KINDS = {"float16": ("f16", 0), "bfloat16": ("f16", 1), "float8_e4m3": ("f8f6f4", 0)}
PANEL_BYTES = 128


@dsl_user_op
def _issue(kind, tmem, a, b, shape, accumulate, in_tensor, *, loc=None, ip=None):
    place = "[$1]" if in_tensor else "$1"
    text = (
        "{ .reg .pred p;\nsetp.ne.u32 p, $4, 0;\n"
        f"tcgen05.mma.ws.cta_group::1.kind::{kind} [$0], {place}, $2, $3, p; }}"
    )
    values = [value.ir_value(loc=loc, ip=ip) for value in (tmem, a, b, shape, accumulate)]
    taken = f"r,{'r' if in_tensor else 'l'},l,r,r,~{{memory}}"
    llvm.inline_asm(None, values, text, taken, has_side_effects=True, loc=loc, ip=ip)


class Product(tcgen05.Product):
    """acc (+)= A B^T over K: m rows of A, n rows of B, A K-major and B in 128-byte panels."""

    IN_TENSOR = False

    def __init__(self, dtype, m, n, k, a_major, b_major):
        super().__init__(dtype, m, n, k, a_major, b_major)
        self.kind, form = KINDS[dtype]
        self.shape = (
            1 << 4 | form << 7 | form << 10 | int(b_major == "mn") << 16 | n // 8 << 17 | m // 16 << 24
        )

    def operand_a(self, pointer, rows, columns, stages, swizzle):
        """Where the steps of K of a buffer of `stages` stages begin: (_, _, step of K, tile)."""
        return self._steps(pointer, self.m, stages * rows * columns)

    def operand_b(self, pointer, rows, columns, stages, swizzle):
        """Where the steps of K of a buffer of `stages` stages begin: (_, _, step of K, tile)."""
        if self.b_major == "k":
            return self._steps(pointer, self.n, stages * rows * columns)
        # Rows run along K, and a step takes `self.step` rows of each panel.
        panel = PANEL_BYTES * 8 // self.dtype.width
        tiles = stages * rows * columns // (self.k * self.n)
        layout = cute.make_layout(
            (1, 1, self.k // self.step, tiles), stride=(0, 0, self.step * panel, self.k * self.n)
        )
        return cute.make_tensor(pointer, layout)

    def _steps(self, pointer, rows, elements):
        panel = PANEL_BYTES * 8 // self.dtype.width
        each = panel // self.step
        steps = (each, max(1, self.k // panel))
        layout = cute.make_layout(
            (1, 1, steps, elements // (rows * self.k)),
            stride=(0, 0, (self.step, rows * panel), rows * self.k),
        )
        return cute.make_tensor(pointer, layout)

    def _descriptor(self, tensor, step, panels=1):
        address = tensor[None, None, step].iterator.toint()
        return Int64(address >> 4) | Int64(panels << 16 | 64 << 32 | 1 << 46 | 2 << 61)

    def _a(self, a, step):
        """The place of a step of A: its descriptor in shared memory, or its first column of tensor memory."""
        return self._descriptor(a, step)

    def multiply(self, a, b, tmem, accumulate):
        """Issue one product into tensor memory at `tmem`; a whole warp calls it, commit afterwards."""
        # The panels of an MN-major B follow one another, each with `k` rows.
        panels = 1 if self.b_major == "k" else self.k * PANEL_BYTES // 16
        with cute.arch.elect_one():
            for step in range(self.k // self.step):
                adds = Int32(1) if step else Int32(accumulate)
                _issue(
                    self.kind,
                    Int32(tmem.toint()),
                    self._a(a, step),
                    self._descriptor(b, step, panels),
                    Int32(self.shape),
                    adds,
                    self.IN_TENSOR,
                )
