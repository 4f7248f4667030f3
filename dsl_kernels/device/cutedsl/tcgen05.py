"""Blackwell's MMA: operands in swizzled shared memory, accumulators in tensor memory, issued by one warp."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.cute.nvgpu.tcgen05 import commit
from cutlass.utils import blackwell_helpers

__all__ = ["Product", "commit"]

TYPES = {
    "float8_e4m3": cutlass.Float8E4M3FN,
    "bfloat16": cutlass.BFloat16,
    "float16": cutlass.Float16,
    "float32": Float32,
}
MAJORS = {"k": OperandMajorMode.K, "mn": OperandMajorMode.MN}
# One instruction multiplies 32 bytes along K.
K_BYTES = 32


class Product:
    """acc[m, n] (+)= A B^T over K: m rows of A, n rows of B."""

    def __init__(self, dtype, m, n, k, a_major, b_major, sums="float32"):
        self.dtype, self.m, self.n, self.k = TYPES[dtype], m, n, k
        self.sums = TYPES[sums]
        self.a_major, self.b_major = a_major, b_major
        self.step = K_BYTES * 8 // self.dtype.width

    def mma(self):
        """A new MMA for each product that is issued, as an MMA carries its accumulate flag."""
        shape, majors = (self.m, self.n, self.step), (MAJORS[self.a_major], MAJORS[self.b_major])
        where = (tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM)
        if self.dtype.width == 8:
            op = tcgen05.MmaF8F6F4Op(self.dtype, self.dtype, self.sums, shape, *where, *majors)
        else:
            op = tcgen05.MmaF16BF16Op(self.dtype, self.sums, shape, *where, *majors)
        return cute.make_tiled_mma(op)

    def operand_a(self, pointer, rows, columns, stages, swizzle):
        """Descriptors of a buffer of `stages` stages of [rows, columns]: (_, _, step of K, tile)."""
        mma = self.mma()
        tiles = stages * rows * columns // (self.m * self.k)
        layout = blackwell_helpers.make_smem_layout_a(mma, (self.m, self.n, self.k), self.dtype, tiles)
        return mma.make_fragment_A(self._swizzled(pointer, layout))

    def operand_b(self, pointer, rows, columns, stages, swizzle):
        """Descriptors of a buffer of `stages` stages of [rows, columns]: (_, _, step of K, tile)."""
        mma = self.mma()
        tiles = stages * rows * columns // (self.n * self.k)
        layout = blackwell_helpers.make_smem_layout_b(mma, (self.m, self.n, self.k), self.dtype, tiles)
        return mma.make_fragment_B(self._swizzled(pointer, layout))

    def multiply(self, a, b, tmem, accumulate):
        """Issue one product into tensor memory at `tmem`; a whole warp calls it, commit afterwards."""
        mma = self.mma()
        if self.sums is not Float32:
            tmem = cute.recast_ptr(tmem, dtype=self.sums)
        acc = cute.make_tensor(tmem, mma.make_fragment_C(mma.partition_shape_C((self.m, self.n))).layout)
        for step in range(self.k // self.step):
            mma.set(tcgen05.Field.ACCUMULATE, True if step else accumulate)
            cute.gemm(mma, acc, a[None, None, step], b[None, None, step], acc)

    def _swizzled(self, pointer, layout):
        return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, self.dtype), layout.outer)
