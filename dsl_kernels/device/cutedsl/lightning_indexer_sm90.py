"""Leaf maths of the indexer on wgmma: 64 keys a warpgroup on M, query heads on N, the head sum in registers.

A thread of a warpgroup holds two keys (rows r and r + 8 of its warp's 16, r = lane // 4) and a quarter of the heads of
each: the four lanes of a quad complete one another. A relu and a multiply-add a (key, head) pair bound the epilogue, so
everything else is kept short: the quad's sum ends with one logit a lane instead of the same logits in all four.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from .lightning_indexer import FP8

KEYS = 64
DIM = 128
MMA_K = 32


def key_operand(pointer, columns, blocks):
    """Descriptors of `blocks` blocks of 64 keys for products of `columns` columns: (_, _, step of K, block)."""
    mma = _product(columns)
    return mma.make_fragment_A(mma.get_slice(0).partition_A(_swizzled(pointer, KEYS, blocks)))


def query_operand(pointer, columns, products):
    """Descriptors of the query heads of `products` products: (_, _, step of K, product)."""
    mma = _product(columns)
    return mma.make_fragment_B(mma.get_slice(0).partition_B(_swizzled(pointer, columns, products)))


def accumulators(columns):
    """Registers of one product: ((column of a pair, row of two, pair), 1, 1)."""
    return cute.make_rmem_tensor(_product(columns).partition_shape_C((KEYS, columns)), Float32)


def multiply(keys, queries, acc, columns):
    """Issue and commit acc[64 keys, columns] = K Q^T; a whole warpgroup calls it and waits before it reads `acc`."""
    mma = _product(columns)
    warpgroup.fence()
    for step in range(DIM // MMA_K):
        mma.set(warpgroup.Field.ACCUMULATE, step > 0)
        cute.gemm(mma, acc, keys[None, None, step], queries[None, None, step], acc)
    warpgroup.commit_group()


def _product(columns):
    """The MMA of one product; made anew where it is issued, because it carries its accumulate flag."""
    op = warpgroup.MmaF8Op(
        FP8, FP8, Float32, (KEYS, columns, MMA_K), warpgroup.OperandSource.SMEM, OperandMajorMode.K, OperandMajorMode.K
    )  # fmt: skip
    return cute.make_tiled_mma(op)


def _swizzled(pointer, rows, blocks):
    """`blocks` blocks of rows of 128 fp8 with the swizzle of the tensor copies that write them."""
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, FP8)
    layout = cute.tile_to_shape(atom, (rows, DIM, blocks), (0, 1, 2))
    return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, FP8), layout.outer)


def head_weights(queries, heads):
    """Registers for this thread's weights of each query of a product: (column of a pair, pair)."""
    weights = [cute.make_rmem_tensor((2, heads // 8), Float32) for _ in range(queries)]
    for each in weights:
        each.fill(0.0)
    return weights


def read_weights(pointer, heads, lane, into):
    """Copy this thread's weights of one query after the other from shared memory, two at a time."""
    mine = cute.make_layout((2, heads // 8), stride=(1, 8))
    for query, weights in enumerate(into):
        cute.autovec_copy(
            cute.make_tensor((pointer + query * heads + 2 * (lane % 4)).align(8), mine), weights
        )


def lane_key(lane, queries):
    """The first key of a warp's 16 whose logit `quad_sums` leaves in this lane; with four queries, 8 on is another."""
    return lane // 4 if queries == 4 else lane // 4 + 8 * (lane % 2)


def lane_query(lane, queries):
    """The query of a product whose logits `quad_sums` leaves in this lane."""
    return lane % 4 if queries == 4 else lane // 2 % 2


def head_sum(acc, weights, row, query):
    """This thread's part of sum_h w_h * relu(s_h) for its key `row` (0 or 1) and one query of the product."""
    pairs = weights.shape[1]
    total = Float32(0.0)
    for pair in range(pairs):
        for column in range(2):
            score = acc[(column, row, query * pairs + pair), 0, 0]
            total = total + cute.arch.fmax(score, 0.0) * weights[column, pair]
    return total


def quad_sums(acc, weights, lane):
    """The sums of a product's queries and this quad's two keys, dealt to its four lanes: see lane_key and lane_query.

    One query: even lanes get the first key's, odd lanes the second's. Two: lanes 2 and 3 have the second query's. Four:
    every lane gets one query's, of both keys.
    """
    sums = [[head_sum(acc, weights[query], row, query) for row in range(2)] for query in range(len(weights))]
    if len(sums) == 1:
        own = _exchange(sums[0][0], sums[0][1], lane, 1)
        return [own + cute.arch.shuffle_sync_bfly(own, 2)]
    if len(sums) == 2:
        return [_exchange(*(_exchange(first, second, lane, 1) for first, second in sums), lane, 2)]
    by_key = list(zip(*sums, strict=True))
    return [_exchange(_exchange(a, b, lane, 1), _exchange(c, d, lane, 1), lane, 2) for a, b, c, d in by_key]


@cute.jit
def _exchange(first, second, lane, distance: cutlass.Constexpr):
    """Add two values over pairs of lanes: the lane whose bit `distance` is clear gets `first`'s sum."""
    upper = lane // distance % 2 == 1
    own = second if upper else first
    return own + cute.arch.shuffle_sync_bfly(first if upper else second, distance)
