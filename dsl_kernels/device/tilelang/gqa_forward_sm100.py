"""Leaves of grouped-query attention on Blackwell in TileLang: thread t holds row t of 128, as tensor memory does."""

import tilelang.language as T

from .gqa_forward import LN2, finite


def _of_all(kind, values):
    """Over this thread's row."""
    dtype = "int32" if kind == "max_bits" else "float32"
    return T.call_extern(dtype, f"gqa::all_{kind}<{values.shape[1]}>", values.data)


def _grown(scores, limit, bits):
    """Whether a score of this thread reaches the limit of its row."""
    if bits:
        return _of_all("max_bits", scores) >= T.reinterpret(limit[0], "int32")
    return (_of_all("max", scores) >= limit[0]) | (limit[0] <= 0.0)


@T.macro
def online_softmax_lazily(scores, top, total, factor, limit, scale, rise, unseen, bits, thread):
    """Scores to weights; the rows of a warp keep their maxima until a score exceeds one by `rise` powers of two."""
    risen = T.alloc_var("float32", init=0.0)
    shift = T.alloc_var("float32", init=0.0)
    factor[0] = 1.0
    if T.any_sync(_grown(scores, limit, bits)) != 0:
        risen = T.max(_of_all("max", scores), top[0])
        factor[0] = T.exp2((top[0] - finite(risen)) * scale)
        total[0] = total[0] * factor[0]
        top[0] = risen
        limit[0] = risen + rise / scale
        limit[0] = T.if_then_else(limit[0] > 0.0, limit[0], -0.0)
    shift = (finite(top[0]) if unseen else top[0]) * scale
    for i, j in T.Parallel(scores.shape[0], scores.shape[1]):
        scores[i, j] = T.exp2(scores[i, j] * scale - shift)
    total[0] = total[0] + _of_all("sum", scores)


@T.macro
def rescale_output(acc, slot, columns, factor, part, thread):
    """Each row of the result times its factor, some columns at a time; left alone where a warp's factors are 1."""
    if T.any_sync(factor[0] != 1.0) != 0:
        for step in T.unroll(columns // part.shape[1]):
            own = acc[slot, :, step * part.shape[1] : step * part.shape[1] + part.shape[1]]
            T.copy(own, part)
            for i, j in T.Parallel(part.shape[0], part.shape[1]):
                part[i, j] = part[i, j] * factor[0]
            T.copy(part, own)


@T.macro
def finish_rows(top, total, scale, thread):
    """`top` becomes the natural logarithm of sum exp, `total` its own inverse."""
    top[0] = (top[0] * scale + T.log2(total[0])) * LN2
    total[0] = 1.0 / total[0]


@T.macro
def store_lse(lse, values, batch, head, heads, row, sq, thread):
    """One value a row, as far as there are rows."""
    if row + thread < sq:
        lse[batch, head, row + thread] = values[0]


@T.macro
def stage_output(target, acc, slot, columns, inverse, part, rounded, thread):
    """The result's rows times `inverse`, in 16 bits, into a shared tile with the 128-byte swizzle, some columns at a time."""
    for step in T.unroll(columns // part.shape[1]):
        T.copy(acc[slot, :, step * part.shape[1] : step * part.shape[1] + part.shape[1]], part)
        for i, j in T.Parallel(part.shape[0], part.shape[1]):
            part[i, j] = part[i, j] * inverse[0]
        T.copy(part, rounded)
        T.copy(rounded, target[:, step * part.shape[1] : step * part.shape[1] + part.shape[1]])
