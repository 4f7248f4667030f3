"""Leaves of grouped-query attention in CuTe DSL, on the scores of 64 rows as a warpgroup's product leaves them.

A thread holds two rows, eight apart, and of each two neighbouring columns in eight; four lanes share a row.
"""

import math

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32

from .fragment import across_quad, flat, reduced, row_of

LN2 = math.log(2)


def ceildiv(count, size):
    """Both positive or zero; unsigned, which costs no sign fix-up."""
    return Int32((Uint32(count) + Uint32(size - 1)) // Uint32(size))


def exp2(x):
    """2 to the x, by the special-function unit."""
    return cute.math.exp2(x, fastmath=True)


def _reduce(values, r, combine):
    """Over this thread's elements of its row `r`."""
    return reduced([values[i] for i in range(cute.size(values)) if i // 2 % 2 == r], combine)


def hide_keys(scores, row, key, keys, shift, thread):
    """-inf where there is no such key, or the row does not see it."""
    values = flat(scores)
    first = key + thread % 4 * 2
    for r in range(2):
        last = cutlass.min(keys - 1, row + row_of(thread) + 8 * r + shift) - first
        for i in range(cute.size(values)):
            if i // 2 % 2 == r:
                values[i] = cutlass.select_(i // 4 * 8 + i % 2 > last, -Float32.inf, values[i])


def online_softmax(scores, top, total, factor, scale, unseen, thread):
    """Scores to weights, with the running maximum and sum of each row; the sum is this thread's own."""
    values = flat(scores)
    for r in range(2):
        risen = cute.arch.fmax(top[r], across_quad(_reduce(values, r, cute.arch.fmax), cute.arch.fmax))
        base = cutlass.select_(risen == -Float32.inf, Float32(0.0), risen) if unseen else risen
        shift = base * scale
        factor[r] = exp2(top[r] * scale - shift)
        for i in range(cute.size(values)):
            if i // 2 % 2 == r:
                values[i] = exp2(values[i] * scale - shift)
        total[r] = total[r] * factor[r] + _reduce(values, r, lambda a, b: a + b)
        top[r] = risen


def _grown(values, limit, bits):
    """Whether a score of this thread reaches the limit of its row; by their bits, three integers are compared at once."""
    if bits:
        most = [_reduce(values, r, higher) for r in range(2)]
        return (most[0] >= limit[0].bitcast(Int32)) | (most[1] >= limit[1].bitcast(Int32))
    most = [_reduce(values, r, cute.arch.fmax) for r in range(2)]
    return (most[0] >= limit[0]) | (most[1] >= limit[1]) | (limit[0] <= 0.0) | (limit[1] <= 0.0)


def higher(a, b):
    return cutlass.max(bits_of(a), bits_of(b))


def bits_of(x):
    return x if x.dtype is Int32 else x.bitcast(Int32)


@cute.jit
def online_softmax_lazily(
    scores: cute.Tensor, top: cute.Tensor, total: cute.Tensor, factor: cute.Tensor, limit: cute.Tensor, scale: Float32,
    rise: cutlass.Constexpr, unseen: cutlass.Constexpr, bits: cutlass.Constexpr, thread: Int32,
):  # fmt: skip
    """As `online_softmax`, but the rows of a warp keep their maxima until a score exceeds one by `rise` powers of two.

    Negative numbers compare the other way round as integers, which is why a limit below zero is -0.0, the least of all.
    """
    values = flat(scores)
    factor.fill(1.0)
    if cute.arch.vote_any_sync(_grown(values, limit, bits)):
        for r in cutlass.range_constexpr(2):
            risen = cute.arch.fmax(top[r], across_quad(_reduce(values, r, cute.arch.fmax), cute.arch.fmax))
            base = cutlass.select_(risen == -Float32.inf, Float32(0.0), risen)
            factor[r] = exp2((top[r] - base) * scale)
            total[r] = total[r] * factor[r]
            top[r] = risen
            above = risen + rise * cute.arch.rcp_approx(scale)
            limit[r] = cutlass.select_(above > 0.0, above, Float32(-0.0))
    for r in cutlass.range_constexpr(2):
        base = (
            cutlass.select_(top[r] == -Float32.inf, Float32(0.0), top[r])
            if cutlass.const_expr(unseen)
            else top[r]
        )
        shift = base * scale
        for i in cutlass.range_constexpr(cute.size(values)):
            if cutlass.const_expr(i // 2 % 2 == r):
                values[i] = exp2(values[i] * scale - shift)
        total[r] = total[r] + _reduce(values, r, lambda a, b: a + b)


@cute.jit
def rescale_rows(acc: cute.Tensor, factor: cute.Tensor, thread: Int32):
    """Each row times its factor, in place; left alone where the factors of a warp's rows are 1."""
    values = flat(acc)
    if cute.arch.vote_any_sync((factor[0] != 1.0) | (factor[1] != 1.0)):
        for i in cutlass.range_constexpr(cute.size(values)):
            values[i] = values[i] * factor[i // 2 % 2]


def divide_by_total(acc, top, total, scale, thread):
    """The rows of the accumulator divided by their sums; `top` becomes the natural logarithm of sum exp."""
    values, inverse = flat(acc), []
    for r in range(2):
        whole = across_quad(total[r], lambda a, b: a + b)
        inverse.append(cute.arch.rcp_approx(whole))
        top[r] = (top[r] * scale + cute.math.log2(whole, fastmath=True)) * LN2
    for i in range(cute.size(values)):
        values[i] = values[i] * inverse[i // 2 % 2]


@cute.jit
def store_lse(
    lse: cute.Pointer, values: cute.Tensor, batch: Int32, head: Int32, heads: Int32, row: Int32, rows: Int32, thread: Int32
):  # fmt: skip
    """One value a row, as far as there are rows."""
    if thread % 4 == 0:
        for r in cutlass.range_constexpr(2):
            own = row + row_of(thread) + 8 * r
            if own < rows:
                place = lse + (Int64(batch * heads + head) * rows + own)
                cute.make_tensor(place, cute.make_layout(1))[0] = values[r]
