"""Leaves of grouped-query attention on Blackwell in CuTe DSL: thread t holds row t of 128, as tensor memory does."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from .fragment import flat
from .fragment_sm100 import read_tensor, round_to, write_words
from .gqa_forward import LN2, bits_of, ceildiv, exp2, higher, reduced

__all__ = ["ceildiv"]


def hide_keys(scores, row, key, keys, shift, thread):
    """-inf where there is no such key, or the row does not see it."""
    values = flat(scores)
    last = cutlass.min(keys - 1, row + thread + shift) - key
    for i in range(cute.size(values)):
        values[i] = cutlass.select_(i > last, -Float32.inf, values[i])


def _grown(values, limit, bits):
    """Whether a score of this thread reaches the limit of its row."""
    if bits:
        return reduced(values, higher) >= bits_of(limit[0])
    return (reduced(values, cute.arch.fmax) >= limit[0]) | (limit[0] <= 0.0)


@cute.jit
def online_softmax_lazily(
    scores: cute.Tensor, top: cute.Tensor, total: cute.Tensor, factor: cute.Tensor, limit: cute.Tensor, scale: Float32,
    rise: cutlass.Constexpr, unseen: cutlass.Constexpr, bits: cutlass.Constexpr, thread: Int32,
):  # fmt: skip
    """Scores to weights; the rows of a warp keep their maxima until a score exceeds one by `rise` powers of two."""
    values = flat(scores)
    factor.fill(1.0)
    if cute.arch.vote_any_sync(_grown(values, limit, bits)):
        risen = cute.arch.fmax(top[0], reduced(values, cute.arch.fmax))
        base = cutlass.select_(risen == -Float32.inf, Float32(0.0), risen)
        factor[0] = exp2((top[0] - base) * scale)
        total[0] = total[0] * factor[0]
        top[0] = risen
        above = risen + rise * cute.arch.rcp_approx(scale)
        limit[0] = cutlass.select_(above > 0.0, above, Float32(-0.0))
    base = (
        cutlass.select_(top[0] == -Float32.inf, Float32(0.0), top[0])
        if cutlass.const_expr(unseen)
        else top[0]
    )
    shift = base * scale
    for i in cutlass.range_constexpr(cute.size(values)):
        values[i] = exp2(values[i] * scale - shift)
    total[0] = total[0] + reduced(values, lambda a, b: a + b)


@cute.jit
def rescale_output(
    acc: cute.Pointer, columns: cutlass.Constexpr, factor: cute.Tensor, part: cute.Tensor, thread: Int32
):
    """Each row of the result times its factor, some columns at a time; left alone where a warp's factors are 1."""
    values = flat(part)
    if cute.arch.vote_any_sync(factor[0] != 1.0):
        for first in cutlass.range_constexpr(0, columns, cute.size(values)):
            read_tensor(part, acc + first, thread)
            cute.arch.fence_view_async_tmem_load()
            for i in cutlass.range_constexpr(cute.size(values)):
                values[i] = values[i] * factor[0]
            write_words(acc + first, values, thread)


def finish_rows(top, total, scale, thread):
    """`top` becomes the natural logarithm of sum exp, `total` its own inverse."""
    top[0] = (top[0] * scale + cute.math.log2(total[0], fastmath=True)) * LN2
    total[0] = cute.arch.rcp_approx(total[0])


@cute.jit
def store_lse(
    lse: cute.Pointer, values: cute.Tensor, batch: Int32, head: Int32, heads: Int32, row: Int32, rows: Int32, thread: Int32
):  # fmt: skip
    """One value a row, as far as there are rows."""
    if row + thread < rows:
        place = lse + (Int64(batch * heads + head) * rows + (row + thread))
        cute.make_tensor(place, cute.make_layout(1))[0] = values[0]


def stage_output(target, acc, columns, inverse, part, rounded, thread):
    """The result's rows times `inverse`, in 16 bits, into a shared tile with the 128-byte swizzle, some columns at a time."""
    values, words = flat(part), cute.recast_tensor(flat(rounded), Int32)
    pieces = cute.size(words) // 4
    for first in range(0, columns, cute.size(values)):
        read_tensor(part, acc + first, thread)
        cute.arch.fence_view_async_tmem_load()
        for i in range(cute.size(values)):
            values[i] = values[i] * inverse[0]
        round_to(rounded, part)
        for i in range(pieces):
            # Panels of eight 16-byte pieces a row; the swizzle exchanges the pieces of a row by its number.
            piece = first // 8 + i
            place = piece // 8 * (128 * 64) + thread * 64 + ((piece % 8) ^ (thread % 8)) * 8
            to = cute.recast_tensor(cute.make_tensor((target + place).align(16), cute.make_layout(8)), Int32)
            cute.autovec_copy(cute.make_tensor(words.iterator + 4 * i, cute.make_layout(4)), to)
