"""Leaf maths of the indexer on tcgen05: a tile of 128 keys on M, query heads on N, one key a thread in the epilogue.

The epilogue bounds this kernel when a key tile is scored against many queries. A (key, head) pair costs a relu and a
multiply-add. Multiply-adds go in packed pairs. The relu is `max`, which the ALU does at half the rate of the FMA pipe;
for a third of the pairs it is `x + |x|`, twice the relu, on the FMA pipe. Issue slots a pair fall from 2 to 1.5 and
neither pipe holds the other up.
"""

import cutlass.cute as cute
from cutlass import Float32
from cutlass._mlir.dialects import math as mlir_math
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.utils import blackwell_helpers

from .lightning_indexer import FP8

KEYS = 128
DIM = 128
MMA_K = 32
LANE_STRIDE = 1 << 16
ON_FMA_PIPE = 3
"""Every how many pairs of heads the relu is an addition."""


def key_operand(pointer, columns, stages):
    """Descriptors of `stages` key tiles for products of `columns` columns: (_, _, step of K, tile)."""
    mma = _product(columns)
    layout = blackwell_helpers.make_smem_layout_a(mma, (KEYS, columns, DIM), FP8, stages)
    return mma.make_fragment_A(_swizzled(pointer, layout))


def query_operand(pointer, columns, stages):
    """Descriptors of the query heads of `stages` products: (_, _, step of K, product)."""
    mma = _product(columns)
    layout = blackwell_helpers.make_smem_layout_b(mma, (KEYS, columns, DIM), FP8, stages)
    return mma.make_fragment_B(_swizzled(pointer, layout))


def multiply(keys, queries, tmem, columns):
    """Issue S[128 keys, columns] = K Q^T into tensor memory at `tmem`; a whole warp calls it, commit afterwards."""
    mma = _product(columns)
    scores = cute.make_tensor(tmem, mma.make_fragment_C(mma.partition_shape_C((KEYS, columns))).layout)
    for step in range(DIM // MMA_K):
        mma.set(tcgen05.Field.ACCUMULATE, step > 0)
        cute.gemm(mma, scores, keys[None, None, step], queries[None, None, step], scores)


def _product(columns):
    """The MMA of one product; made anew where it is issued, because it carries its accumulate flag."""
    op = tcgen05.MmaF8F6F4Op(
        FP8, FP8, Float32, (KEYS, columns, MMA_K), tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM,
        OperandMajorMode.K, OperandMajorMode.K,
    )  # fmt: skip
    return cute.make_tiled_mma(op)


def _swizzled(pointer, layout):
    return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, FP8), layout.outer)


def read_scores(tmem, key, queries, heads):
    """The accumulators of this thread's key: one register tensor of `heads` a query. Not yet waited for."""
    layout = cute.make_layout((KEYS, heads), stride=(LANE_STRIDE, 1))
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(heads)), Float32)
    copy = tcgen05.make_tmem_copy(atom, cute.make_tensor(tmem, layout))
    mine = copy.get_slice(key)
    shape = mine.partition_D(cute.make_identity_tensor((KEYS, heads))).shape
    found = []
    for query in range(queries):
        scores = cute.make_rmem_tensor(shape, Float32)
        cute.copy(copy, mine.partition_S(cute.make_tensor(tmem + query * heads, layout)), scores)
        found.append(scores)
    return found


def read_weights(pointer, heads, into):
    """Copy the weights of one query from shared memory to registers, four at a time."""
    cute.autovec_copy(cute.make_tensor(pointer.align(16), cute.make_layout(heads)), into)


def weighted_relu_sum(scores, weights, heads):
    """sum_h weights[h] * max(scores[h], 0)."""
    once, twice = [(Float32(0.0), Float32(0.0))] * 2, [(Float32(0.0), Float32(0.0))] * 2
    for pair in range(heads // 2):
        x = (scores[2 * pair], scores[2 * pair + 1])
        w = (weights[2 * pair], weights[2 * pair + 1])
        chain = pair % 2
        if pair % ON_FMA_PIPE == ON_FMA_PIPE - 1:
            doubled = tuple(v + _absolute(v) for v in x)
            twice[chain] = cute.arch.fma_packed_f32x2(doubled, w, twice[chain])
        else:
            positive = tuple(cute.arch.fmax(v, 0.0) for v in x)
            once[chain] = cute.arch.fma_packed_f32x2(positive, w, once[chain])
    once, twice = cute.arch.add_packed_f32x2(*once), cute.arch.add_packed_f32x2(*twice)
    return once[0] + once[1] + 0.5 * (twice[0] + twice[1])


def _absolute(x):
    return Float32(mlir_math.absf(x.ir_value()))
