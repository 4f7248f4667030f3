"""Hopper's warpgroup MMA: operands in swizzled shared memory, sums in registers, products in groups."""

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


ATOMS = {
    ("k", 128): warpgroup.SmemLayoutAtomKind.K_SW128,
    ("k", 64): warpgroup.SmemLayoutAtomKind.K_SW64,
    ("k", 32): warpgroup.SmemLayoutAtomKind.K_SW32,
    ("mn", 128): warpgroup.SmemLayoutAtomKind.MN_SW128,
    ("mn", 64): warpgroup.SmemLayoutAtomKind.MN_SW64,
    ("mn", 32): warpgroup.SmemLayoutAtomKind.MN_SW32,
}


class Product:
    """acc[m, n] (+)= A B^T over K by one warpgroup: `issued` of the n columns an instruction."""

    def __init__(self, dtype, m, n, k, a_major, b_major, issued=None):
        self.dtype, self.m, self.n, self.k = TYPES[dtype], m, n, k
        self.a_major, self.b_major, self.issued = a_major, b_major, issued or n
        self.step = K_BYTES * 8 // self.dtype.width

    def mma(self):
        """A new MMA for each product that is issued, as an MMA carries its accumulate flag."""
        shape = (64, self.issued, self.step)
        source, majors = warpgroup.OperandSource.SMEM, (MAJORS[self.a_major], MAJORS[self.b_major])
        if self.dtype.width == 8:
            op = warpgroup.MmaF8Op(self.dtype, self.dtype, Float32, shape, source, *majors)
        else:
            op = warpgroup.MmaF16BF16Op(self.dtype, Float32, shape, source, *majors)
        return cute.make_tiled_mma(op)

    def operand_a(self, pointer, rows, columns, stages, swizzle):
        """Descriptors of stages of [rows, columns]: (_, _, step of K, stage, tile of m, tile of k)."""
        mma = self.mma()
        tiles = self._tiles(pointer, rows, columns, stages, swizzle, self.a_major, self.m)
        return mma.make_fragment_A(mma.get_slice(0).partition_A(tiles))

    def operand_b(self, pointer, rows, columns, stages, swizzle):
        """Descriptors of stages of [rows, columns]: (_, _, step of K, stage, tile of n, tile of k)."""
        mma = self.mma()
        tiles = self._tiles(pointer, rows, columns, stages, swizzle, self.b_major, self.n)
        return mma.make_fragment_B(mma.get_slice(0).partition_B(tiles))

    def accumulators(self):
        """Registers of one product."""
        return cute.make_rmem_tensor(self.mma().partition_shape_C((self.m, self.n)), Float32)

    def multiply(self, a, b, acc, accumulate):
        """Issue one product of a group; a whole warpgroup calls it, and awaits the group to read `acc`."""
        mma = self.mma()
        mma.set(warpgroup.Field.ACCUMULATE, accumulate)
        for step in range(self.k // self.step):
            cute.gemm(mma, acc, a[None, None, step], b[None, None, step], acc)
            mma.set(warpgroup.Field.ACCUMULATE, True)

    def _tiles(self, pointer, rows, columns, stages, swizzle, major, tile):
        """The buffer in tiles of `tile` by k. Read along M or N, the same bytes are [columns, rows]."""
        shape, order = (
            ((rows, columns, stages), (0, 1, 2)) if major == "k" else ((columns, rows, stages), (1, 0, 2))
        )
        atom = warpgroup.make_smem_layout_atom(ATOMS[major, swizzle], self.dtype)
        layout = cute.tile_to_shape(atom, shape, order)
        whole = cute.make_tensor(cute.recast_ptr(pointer, layout.inner, self.dtype), layout.outer)
        return cute.local_tile(whole, (tile, self.k, stages), (None, None, 0))
