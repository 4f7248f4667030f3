"""Hopper's warpgroup MMA: operands in swizzled shared memory, accumulators in registers, products issued in groups."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

TYPES = {
    "float8_e4m3": cutlass.Float8E4M3FN,
    "bfloat16": cutlass.BFloat16,
    "float16": cutlass.Float16,
}
MAJORS = {"k": OperandMajorMode.K, "mn": OperandMajorMode.MN}
# One instruction multiplies 32 bytes along K.
K_BYTES = 32


class Product:
    """acc[m, n] (+)= A B^T over K, declared once: m rows of A a warpgroup, n rows of B."""

    def __init__(self, dtype, m, n, k, a_major, b_major):
        self.dtype, self.m, self.n, self.k = TYPES[dtype], m, n, k
        self.a_major, self.b_major = a_major, b_major
        self.step = K_BYTES * 8 // self.dtype.width

    def mma(self):
        """Made anew where it is issued, because it carries its accumulate flag."""
        shape = (self.m, self.n, self.step)
        source, majors = warpgroup.OperandSource.SMEM, (MAJORS[self.a_major], MAJORS[self.b_major])
        if self.dtype.width == 8:
            op = warpgroup.MmaF8Op(self.dtype, self.dtype, Float32, shape, source, *majors)
        else:
            op = warpgroup.MmaF16BF16Op(self.dtype, Float32, shape, source, *majors)
        return cute.make_tiled_mma(op)

    def operand_a(self, pointer, tiles):
        """Descriptors of `tiles` tiles of m rows: (_, _, step of K, tile)."""
        mma = self.mma()
        return mma.make_fragment_A(mma.get_slice(0).partition_A(self._tiles(pointer, self.m, tiles)))

    def operand_b(self, pointer, tiles):
        """Descriptors of `tiles` tiles of n rows: (_, _, step of K, tile)."""
        mma = self.mma()
        return mma.make_fragment_B(mma.get_slice(0).partition_B(self._tiles(pointer, self.n, tiles)))

    def accumulators(self):
        """Registers of one product: ((column of a pair, row of two, pair), 1, 1)."""
        return cute.make_rmem_tensor(self.mma().partition_shape_C((self.m, self.n)), Float32)

    def multiply(self, a, b, acc, accumulate):
        """Issue one product of a group; a whole warpgroup calls it, and waits for the group before it reads `acc`."""
        mma = self.mma()
        for step in range(self.k // self.step):
            mma.set(warpgroup.Field.ACCUMULATE, accumulate or step > 0)
            cute.gemm(mma, acc, a[None, None, step], b[None, None, step], acc)

    def _tiles(self, pointer, rows, tiles):
        """`tiles` tiles of rows with the 128-byte swizzle of the copies that write them."""
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, self.dtype)
        layout = cute.tile_to_shape(atom, (rows, self.k, tiles), (0, 1, 2))
        return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, self.dtype), layout.outer)
