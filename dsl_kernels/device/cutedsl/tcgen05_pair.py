"""Blackwell's MMA by two CTAs: each has half of the rows of A, B and the result; the first issues it."""

import cutlass.cute as cute
from cutlass.cute.nvgpu import tcgen05 as nvgpu

from . import tcgen05


def first_cta():
    """Whether this is the CTA that issues the products of its pair."""
    return cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster()) == 0


def commit(barrier):
    """Arrive at a barrier of both CTAs when the products issued so far are done; one lane calls it."""
    nvgpu.commit(barrier, 3, nvgpu.CtaGroup.TWO)


class Product(tcgen05.Product):
    """acc[m, n] (+)= A B^T over K: m rows of A and n rows of B over both CTAs."""

    def mma(self):
        """A new MMA for each product that is issued, as an MMA carries its accumulate flag."""
        where = (nvgpu.CtaGroup.TWO, nvgpu.OperandSource.SMEM)
        majors = (tcgen05.MAJORS[self.a_major], tcgen05.MAJORS[self.b_major])
        op = nvgpu.MmaF16BF16Op(self.dtype, self.sums, (self.m, self.n, self.step), *where, *majors)
        return cute.make_tiled_mma(op)

    def operand_a(self, pointer, rows, columns, stages, swizzle):
        """Descriptors of this CTA's half of the rows: (_, _, step of K, tile)."""
        return super().operand_a(pointer, 2 * rows, columns, stages, swizzle)

    def operand_b(self, pointer, rows, columns, stages, swizzle):
        """Descriptors of this CTA's half of the rows: (_, _, step of K, tile)."""
        return super().operand_b(pointer, 2 * rows, columns, stages, swizzle)
