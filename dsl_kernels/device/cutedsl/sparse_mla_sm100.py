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
from cutlass.experimental.primitives import nvvm_wrapper as primitives

from . import fragment_sm100
from .sparse_mla import TILE, TOKEN_BYTES, store_weights

UNIT = 128
"""Latent dims of a unit: the M of the value product."""

PANEL = 64
"""bf16 columns of one row of a 128-byte-swizzled panel."""

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


@cute.jit
def gather_columns(
    target: cute.Pointer, cache: cute.Pointer, stride: Int32, first: Int32, columns: cutlass.Constexpr, rows: cute.Tensor, thread: Int32
):  # fmt: skip
    """16-byte cp.async of 64 rows x 128 columns, 16 a row, or of 64 columns by the lower eight threads of every sixteen."""
    piece, lane_row = thread % 16, thread // 16
    if piece < columns // 8:
        source = cache + (first + piece * 8)
        to = target + (piece // 8 * (TILE * PANEL) + lane_row * PANEL + (piece % 8 ^ lane_row) * 8)
        for r in cutlass.range_constexpr(8):
            primitives.cp_async_shared_global(
                to + 8 * r * PANEL,
                source + Int64(cutlass.max(rows[r], 0)) * stride,
                16,
                primitives.LoadCacheModifier.CG,
                cp_size=cutlass.select_(rows[r] >= 0, Int32(16), Int32(0)),
            )


def _pieces(words):
    """A thread's quarter of two fp8 tokens: (four words, piece, token).

    Pieces 0 to 7 are 16 bytes of each 64-dim panel, 8 and 9 rope, 10 the four scales.
    """
    return cute.make_tensor(words.iterator, cute.make_layout((4, 11, 2)))


@cute.jit
def _load_pieces(words: cute.Tensor, at: cutlass.Constexpr, cache: cute.Pointer, rows: cute.Tensor, offset: Int32, pieces: cutlass.Constexpr):  # fmt: skip
    """Read `pieces` times 16 bytes, 64 apart, of this thread's two tokens; zeros for a row of -1."""
    held = _pieces(words)
    for i in cutlass.range_constexpr(2):
        if rows[i] >= 0:
            start = Int64(rows[i]) * TOKEN_BYTES + offset
            source = cute.recast_ptr(cache + cute.assume(start, divby=16), dtype=cutlass.Uint32)
            for piece in cutlass.range_constexpr(pieces):
                cute.autovec_copy(
                    cute.make_tensor(source + 16 * piece, cute.make_layout(4)), held[None, at + piece, i]
                )
        else:
            for piece in cutlass.range_constexpr(pieces):
                held[None, at + piece, i].fill(cutlass.Uint32(0))


def load_unit(words, unit, kv_cache, rows, thread):
    """Read this thread's part of a unit of two tokens."""
    _load_pieces(words, 2 * unit, kv_cache, rows, unit * UNIT + thread % 4 * 16, 2)


def load_rest(words, kv_cache, rows, thread):
    """Read this thread's rope columns of two tokens, and their scales."""
    _load_pieces(words, 8, kv_cache, rows, 528 + thread % 4 * 16, 2)
    _load_pieces(words, 10, kv_cache, rows, 512, 1)


@cute.jit
def dequantise_unit(target: cute.Pointer, words: cute.Tensor, unit: cutlass.Constexpr, thread: Int32):
    """Write this thread's part of a 128-column unit of two tokens as bf16, rounded once from e4m3 times scale."""
    quarter, held_words = thread % 4, _pieces(words)
    for i in cutlass.range_constexpr(2):
        scale = cute.recast_tensor(held_words[None, 10, i], Float32)[unit]
        for panel in cutlass.range_constexpr(2):
            values = cute.recast_tensor(held_words[None, 2 * unit + panel, i], cutlass.Float8E4M3FN)
            for half in cutlass.range_constexpr(2):
                eight = cute.local_tile(values, (8,), (half,)).load().to(Float32)
                scaled = cute.make_rmem_tensor(8, Float32)
                for pair in cutlass.range_constexpr(4):
                    at = 2 * pair
                    product = cute.arch.mul_packed_f32x2((eight[at], eight[at + 1]), (scale, scale))
                    scaled[at], scaled[at + 1] = product
                held = cute.make_rmem_tensor(8, cutlass.BFloat16)
                held.store(scaled.load().to(cutlass.BFloat16))
                _store8(target, panel * TILE + 32 * i, thread // 4, 2 * quarter + half, held)


@cute.jit
def store_rope(target: cute.Pointer, words: cute.Tensor, thread: Int32):
    """Write this thread's rope columns of two tokens."""
    held_words = _pieces(words)
    for i in cutlass.range_constexpr(2):
        for piece in cutlass.range_constexpr(2):
            held = cute.recast_tensor(held_words[None, 8 + piece, i], cutlass.BFloat16)
            _store8(target, 32 * i, thread // 4, 4 * piece + thread % 4, held)


@cute.jit
def _store8(target: cute.Tensor, first: cutlass.Constexpr, row: Int32, piece: Int32, held: cute.Tensor):  # fmt: skip
    """Eight bf16 columns of row `first + row` of swizzled panels; `first` is a multiple of eight."""
    at = row * PANEL + (piece ^ row % 8) * 8
    to = target.align(128) + cute.assume(at, divby=8) + first * PANEL
    cute.autovec_copy(held, cute.make_tensor(to, cute.make_layout(8)))


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
    store_weights(target, scores, 2 * cute.size(scores), thread)


def load_columns(held, acc, column, thread):
    """This thread's lane of columns `column` on of tensor memory, once they are here."""
    fragment_sm100.read_tensor(held, acc + cute.assume(column, divby=HELD), thread)
    cute.arch.fence_view_async_tmem_load()


def store_columns(held, acc, column, thread):
    """The reverse of `load_columns`; not waited for."""
    fragment_sm100.write_words(acc + cute.assume(column, divby=HELD), held, thread)
