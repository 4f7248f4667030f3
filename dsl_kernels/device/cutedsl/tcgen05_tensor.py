"""Blackwell's MMA with A from tensor memory: 16-bit elements, two a column, a row a lane."""

import cutlass.cute as cute
from cutlass.cute.nvgpu import tcgen05 as nvgpu
from cutlass.utils import blackwell_helpers

from . import tcgen05


class Product(tcgen05.Product):
    """acc[m, n] (+)= A B^T over K: m lanes of A, n rows of B."""

    OPERANDS = (nvgpu.CtaGroup.ONE, nvgpu.OperandSource.TMEM)

    def mma(self):
        """A new MMA for each product that is issued, as an MMA carries its accumulate flag."""
        majors = (tcgen05.MAJORS["k"], tcgen05.MAJORS[self.b_major])
        op = nvgpu.MmaF16BF16Op(self.dtype, self.sums, (self.m, self.n, self.step), *self.OPERANDS, *majors)
        return cute.make_tiled_mma(op)

    def multiply(self, a, b, tmem, accumulate):
        """Issue one product of `a` in tensor memory into `tmem`; a whole warp calls it, commit afterwards."""
        mma = self.mma()
        tiles = blackwell_helpers.make_smem_layout_a(mma, (self.m, self.n, self.k), self.dtype, 1)
        # A fragment in tensor memory begins at its first column, wherever its tensor is.
        layout = mma.make_fragment_A(cute.make_tensor(a, tiles.outer))[None, None, None, 0].layout
        super().multiply(cute.make_tensor(cute.recast_ptr(a, dtype=self.dtype), layout), b, tmem, accumulate)
