"""CuTe DSL's functions for the indexer's leaves on tcgen05.

A tile of 128 keys is on M, query heads are on N, and a thread of the epilogue has one key.

The epilogue bounds this kernel when a key tile is scored against many queries. A (key, head) pair costs a
relu and a multiply-add. Multiply-adds are packed in pairs. Two thirds of the pairs compute the relu as `max`,
which the ALU does at half the rate of the FMA pipe. A third of the pairs compute `x + |x|`, twice the relu,
on the FMA pipe. So a pair takes 1.5 issue slots instead of 2, and neither pipe stalls the other.
"""

import cutlass.cute as cute
from cutlass import Float32
from cutlass._mlir.dialects import math as mlir_math

from ...device.cutedsl.fragment_sm100 import read_tensor

ON_FMA_PIPE = 3
"""One of so many pairs of heads computes its relu as an addition."""


def read_scores(dots, tmem, first, heads, thread):
    """Read the accumulators of this thread's key from column `first` on.

    A load takes `heads` columns, or the greatest power of two that divides them.
    """
    step = heads & -heads
    for column in range(0, cute.size(dots), step):
        own = cute.make_tensor(dots.iterator + column, cute.make_layout(step))
        read_tensor(own, tmem + (first + column), thread)
    cute.arch.fence_view_async_tmem_load()


def weigh_one(logit, dots, query, weight, fresh):
    """logit = sum_h weight[h] * max(dots[query, h], 0), for one query of a product.

    The sum is added to the logit, or replaces it where the logit is `fresh`.
    """
    heads = cute.size(weight)
    sums = _weighted_relu_sum([dots[query * heads + h] for h in range(heads)], weight, heads)
    logit[0] = sums if fresh else logit[0] + sums


def _weighted_relu_sum(scores, weights, heads):
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
