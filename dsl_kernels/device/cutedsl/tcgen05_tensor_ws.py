"""Blackwell's MMA of 64 rows by `.ws` with A from tensor memory: 16-bit elements, each row in two lanes."""

from cutlass import Int32

from . import tcgen05_ws


class Product(tcgen05_ws.Product):
    """acc (+)= A B^T over K: 64 rows of A, of which lanes 64 to 127 have a copy, and n rows of B."""

    IN_TENSOR = True

    def _a(self, a, step):
        return Int32(a.toint()) + step * (self.step * self.dtype.width // 32)
