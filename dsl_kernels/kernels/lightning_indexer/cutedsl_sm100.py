"""Leaf maths of the indexer on tcgen05: a tile of 128 keys on M, query heads on N, one key a thread in the epilogue.

The epilogue bounds this kernel when a key tile is scored against many queries. A (key, head) pair costs a relu and a
multiply-add. Multiply-adds go in packed pairs. The relu is `max`, which the ALU does at half the rate of the FMA pipe;
for a third of the pairs it is `x + |x|`, twice the relu, on the FMA pipe. Issue slots a pair fall from 2 to 1.5 and
neither pipe holds the other up.
"""

import cutlass.cute as cute
from cutlass import Float32
from cutlass._mlir.dialects import math as mlir_math

from ...device.cutedsl.fragment_sm100 import read_tensor

ON_FMA_PIPE = 3
"""Every how many pairs of heads the relu is an addition."""


def read_scores(dots, tmem, first, heads, thread):
    """The accumulators of this thread's key from column `first` on, `heads` at a time, or a power of two that divides them."""
    step = heads & -heads
    for column in range(0, cute.size(dots), step):
        own = cute.make_tensor(dots.iterator + column, cute.make_layout(step))
        read_tensor(own, tmem + (first + column), thread)
    cute.arch.fence_view_async_tmem_load()


def weigh_one(logit, dots, query, weight, fresh):
    """logit = sum_h weight[h] * max(dots[query, h], 0), for one query of a product; added unless the logit is `fresh`."""
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
