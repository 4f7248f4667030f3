"""Hopper's warpgroup MMA with A from registers: a 16-bit fragment in the order of an accumulator."""

import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.nvgpu import warpgroup

from . import wgmma


class Product(wgmma.Product):
    """acc[m, n] (+)= A B^T over K by one warpgroup."""

    def mma(self):
        """A new MMA for each product that is issued, as an MMA carries its accumulate flag."""
        source, majors = warpgroup.OperandSource.RMEM, (wgmma.MAJORS["k"], wgmma.MAJORS[self.b_major])
        return cute.make_tiled_mma(
            warpgroup.MmaF16BF16Op(self.dtype, Float32, (64, self.issued, self.step), source, *majors)
        )

    def multiply(self, a, b, acc, accumulate):
        """Issue one product of a group; the registers of `a` stay as they are until the group is done."""
        layout = cute.make_rmem_tensor(self.mma().partition_shape_A((self.m, self.k)), self.dtype).layout
        super().multiply(cute.make_tensor(a.iterator, layout), b, acc, accumulate)
