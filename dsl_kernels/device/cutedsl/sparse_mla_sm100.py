"""Leaf maths of sparse attention for tcgen05 in CuTe DSL: tokens on M, heads on N, accumulators in tensor memory.

A key tile is 64 tokens, cut into units of 128 columns. One unit is read twice: K-major as 64 tokens by 128 columns
for S^T = K Q^T, and MN-major as 128 latent dims by 64 tokens for O^T = K^T P^T. With a 128-byte swizzle both layouts
are the same bytes: two panels of 64 rows by 64 columns.

An M=64 accumulator sits in lanes 0-15 of each warp's 32 lanes. Read as 16x256b it gives a thread the values that it
would have of a Hopper accumulator of that shape.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import tcgen05

from . import fragment_sm100, warps

TILE = 64
LANE_STRIDE = 1 << 16
"""A lane up in a tensor-memory address."""

HELD = 16
"""Columns of O^T that a thread holds at a time."""


@cute.jit
def read_rows(
    rows: cute.Tensor, indices: cute.Pointer, topk: Int32, row: Int32, turn: Int32, turns: Int32, split: Int32, splits: Int32, lane: Int32
):  # fmt: skip
    """All 64 ids of the tile at `turn` in every lane; unchanged past the last turn."""
    if turn < turns:
        first = Int64(row) * topk + (split + turn * splits) * TILE
        source = cute.make_tensor((indices + first).align(16), cute.make_layout((4, TILE // 4)))
        for quad in cutlass.range_constexpr(TILE // 4):
            cute.autovec_copy(source[None, quad], cute.local_tile(rows, (4,), (quad,)))


def store_fp8(first, second, words, at, scale):
    """Two values at a time, by the multiplication of pairs."""
    values = cute.recast_tensor(warps.few(words, at, 4), cutlass.Float8E4M3FN)
    factor = scale.bitcast(Float32)
    for half, place in enumerate((first, second)):
        eight = cute.local_tile(values, (8,), (half,)).load().to(Float32)
        scaled = cute.make_rmem_tensor(8, Float32)
        for i in range(0, 8, 2):
            scaled[i], scaled[i + 1] = cute.arch.mul_packed_f32x2((eight[i], eight[i + 1]), (factor, factor))
        held = cute.make_rmem_tensor(8, cutlass.BFloat16)
        held.store(scaled.load().to(cutlass.BFloat16))
        cute.autovec_copy(held, cute.make_tensor(place, cute.make_layout(8)))


def _aligned(pointer):
    """A pointer into tensor memory at which rows of sixteen columns or more begin."""
    return cute.make_ptr(Float32, pointer.toint(), cute.AddressSpace.tmem, assumed_align=4 * HELD)


@cute.jit
def read_scores(scores: cute.Tensor, accumulators: cute.Pointer, thread: Int32):
    """This thread's scores of an accumulator of 64 lanes from tensor memory; their arrival is waited for later."""
    heads = cutlass.const_expr(cute.size(scores) * 2)
    # Lanes 0-15 of each warp hold sixteen tokens.
    lanes = cute.make_layout(((16, 4), heads), stride=((LANE_STRIDE, 32 * LANE_STRIDE), 1))
    source = cute.make_tensor(_aligned(accumulators), lanes)
    atom = cute.make_copy_atom(tcgen05.Ld16x256bOp(tcgen05.Repetition(heads // 8)), Float32)
    load = tcgen05.make_tmem_copy(atom, source).get_slice(thread)
    own = cute.make_tensor(scores.iterator, load.partition_D(source).layout.shape)
    cute.copy(load, load.partition_S(source), own)


def store_tokens(target, scores, thread):
    """By stmatrix."""
    first, lane, heads = thread // 32 * 16, thread % 32, 2 * cute.size(scores)
    if heads == 8:
        rows = warps.piece(target, 8, lane % 8, first + lane // 8 % 2 * 8, (8, TILE), 128)
        warps.store_matrices(rows.iterator, scores, 0, 2, True)
    for pair in range(heads // 16):
        at = first + lane % 16, pair * 16 + lane // 16 * 8
        rows = warps.piece(target, 8, *at, (TILE, heads), min(128, 2 * heads))
        warps.store_matrices(rows.iterator, scores, pair * 8, 4)


def load_columns(held, acc, column, thread):
    """This thread's lane of columns `column` on of tensor memory, once they are here."""
    fragment_sm100.read_tensor(held, acc + cute.assume(column, divby=HELD), thread)
    cute.arch.fence_view_async_tmem_load()


def store_columns(held, acc, column, thread):
    """The reverse of `load_columns`; not waited for."""
    fragment_sm100.write_words(acc + cute.assume(column, divby=HELD), held, thread)
