"""Blackwell's MMA by two CTAs with A from tensor memory: 16-bit elements, two a column.

A row takes one lane or, of 64 rows, two lanes.
"""

from cutlass.cute.nvgpu import tcgen05 as nvgpu

from . import tcgen05_pair, tcgen05_tensor


class Product(tcgen05_tensor.Product, tcgen05_pair.Product):
    """acc[m, n] (+)= A B^T over K: m rows of A and n rows of B over both CTAs."""

    OPERANDS = (nvgpu.CtaGroup.TWO, nvgpu.OperandSource.TMEM)
