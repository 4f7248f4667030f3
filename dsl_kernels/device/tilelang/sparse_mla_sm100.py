"""Leaf maths of sparse attention for tcgen05: tokens on M, heads on N, accumulators in tensor memory.

A key tile is 64 tokens, cut into units of 128 columns. An M=64 accumulator sits in lanes 0-15 of each warp's 32 lanes;
read as 16x256b it gives thread t of warp w the tokens 16w + t/4 (+ 8) and the heads 2 * (t % 4) + {0, 1} of every group
of eight. Threads address their own values, in that order:

    value 4 * g + 2 * half + e  ->  token 16 * w + t / 4 + 8 * half,  head 8 * g + 2 * (t % 4) + e
    column 2 * g + e            ->  that head

Exponents are base 2: logits carry log2(e).
"""

from __future__ import annotations

import tilelang.language as T

from .sparse_mla import FP8_SOURCE, LOG2E, bit, sink_share

THREADS = 128

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_shared_memory_reuse": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.enable_fast_math": True,
}

TOKEN_WORDS = 44
"""32-bit words that a thread holds of an fp8 token: 16 bytes of each 64-dim panel, two pieces of rope, four scales."""

SOURCE = (
    FP8_SOURCE
    + r"""
namespace dk {
__device__ __forceinline__ void load16(unsigned* words, const unsigned char* bytes, bool valid) {
  const uint4 zero = make_uint4(0, 0, 0, 0);
  *reinterpret_cast<uint4*>(words) = valid ? __ldg(reinterpret_cast<const uint4*>(bytes)) : zero;
}
}  // namespace dk
"""
)


@T.macro
def load_block(target, slot, q, row, head0, heads, block, rows, columns, thread):
    """A block of heads of one query; the rows behind them, up to `rows`, become zero."""
    for i in T.serial(rows * columns // 8 // THREADS):
        at = (i * THREADS + thread) // (columns // 8)
        first = (i * THREADS + thread) % (columns // 8) * 8
        if at < block:
            for v in T.vectorized(8):
                target[slot, at, first + v] = q[row, head0 + at, first + v]
        else:
            for v in T.vectorized(8):
                target[slot, at, first + v] = T.bfloat16(0)


@T.macro
def spread_ids(rows, low, high, in_low, in_high, thread):
    """rows[r] = the id of token 8 * r + thread / 16, or -1 where it names no cache row."""
    for r in T.unroll(8):
        token = 8 * r + thread // 16
        found = T.shfl_sync(T.if_then_else(r < 4, low, high), token % 32)
        rows[r] = T.if_then_else(bit(in_low, in_high, token), found, -1)


@T.macro
def spread_pairs(rows, low, high, in_low, in_high, thread):
    """rows[i] = the id of token 32 * i + thread / 4, or -1 where it names no cache row: four threads a token."""
    for i in T.unroll(2):
        found = T.shfl_sync(T.if_then_else(i < 1, low, high), thread // 4)
        rows[i] = T.if_then_else(bit(in_low, in_high, 32 * i + thread // 4), found, -1)


@T.macro
def read_rows(rows, indices, topk, row, turn, turns, split, splits, lane):
    """rows[j] = the id of token 4 * (lane % 16) + j of the tile at `turn`; unchanged past the last turn."""
    if turn < turns:
        for j in T.vectorized(4):
            rows[j] = indices[row, (split + turn * splits) * 64 + lane % 16 * 4 + j]


@T.macro
def gather_columns(target, slot, cache, first, columns, rows, thread):
    """16-byte cp.async of 64 rows x 128 columns, 16 a row, or of 64 columns by the lower eight threads of every sixteen."""
    if thread % 16 < columns // 8:
        for r in T.unroll(8):
            T.ptx_cp_async(
                T.access_ptr(target[slot, 8 * r + thread // 16, thread % (columns // 8) * 8], "w", 8),
                T.access_ptr(
                    cache[T.cast(T.max(rows[r], 0), "int64"), first + thread % (columns // 8) * 8], "r", 8
                ),
                8,
                rows[r] >= 0,
            )


@T.macro
def load_pieces(words, at, cache, rows, offset, pieces, thread):
    """Read `pieces` times 16 bytes, 64 apart, of this thread's two tokens; zeros for a row of -1."""
    for i in T.unroll(2):
        for piece in T.unroll(pieces):
            T.call_extern(
                "handle",
                "dk::load16",
                T.address_of(words[i * TOKEN_WORDS + at + 4 * piece]),
                T.address_of(
                    cache[T.cast(T.max(rows[i], 0), "int64"), offset + piece * 64 + thread % 4 * 16]
                ),
                rows[i] >= 0,
            )


@T.macro
def load_unit(words, unit, kv_cache, rows, thread):
    """Read this thread's part of a unit of two tokens."""
    load_pieces(words, unit * 8, kv_cache, rows, unit * 128, 2, thread)


@T.macro
def load_rest(words, kv_cache, rows, thread):
    """Read this thread's rope columns of two tokens, and their scales."""
    load_pieces(words, 32, kv_cache, rows, 528, 2, thread)
    for i in T.unroll(2):
        T.call_extern(
            "handle",
            "dk::load16",
            T.address_of(words[i * TOKEN_WORDS + 40]),
            T.address_of(kv_cache[T.cast(T.max(rows[i], 0), "int64"), 512]),
            rows[i] >= 0,
        )


@T.macro
def dequantise_unit(target, slot, words, unit, thread):
    """Write this thread's part of a 128-column unit of two tokens as bf16."""
    for i in T.unroll(2):
        for piece in T.unroll(2):
            T.call_extern(
                "handle",
                "dk::dequantise16",
                T.address_of(target[slot, 32 * i + thread // 4, piece * 64 + thread % 4 * 16]),
                T.address_of(target[slot, 32 * i + thread // 4, piece * 64 + thread % 4 * 16 + 8]),
                T.address_of(words[i * TOKEN_WORDS + 8 * unit + 4 * piece]),
                T.address_of(words[i * TOKEN_WORDS + 40 + unit]),
            )


@T.macro
def store_rope(target, slot, words, thread):
    """Write this thread's rope columns of two tokens."""
    for i in T.unroll(2):
        for piece in T.unroll(2):
            T.call_extern(
                "handle",
                "dk::store16",
                T.address_of(target[slot, 32 * i + thread // 4, piece * 32 + thread % 4 * 8]),
                T.address_of(words[i * TOKEN_WORDS + 32 + 4 * piece]),
            )


@T.macro
def read_scores(scores, accumulators, slot, thread):
    """This thread's scores from tensor memory; their arrival is waited for later."""
    T.call_extern(
        "handle",
        f"tl::tcgen05_ld_16dp256bNx<{scores.shape[0] // 4}, false>",
        accumulators[32 * (thread // 32), slot * (scores.shape[0] * 2)],
        0,
        T.address_of(scores[0]),
    )


@T.macro
def mask_scores(scores, low, high, sm_scale, thread):
    """Scale the logits to base 2 and put -inf where the token has no valid id."""
    for half in T.unroll(2):
        inside = bit(low, high, 16 * (thread // 32) + thread % 32 // 4 + 8 * half)
        for column in T.unroll(scores.shape[0] // 2):
            at = column // 2 * 4 + half * 2 + column % 2
            scores[at] = T.if_then_else(inside, scores[at] * (sm_scale * LOG2E), -T.infinity("float32"))


@T.macro
def column_maxima(risen, scores, thread):
    """Maxima of this thread's columns over the 16 tokens of its warp."""
    for column in T.unroll(risen.shape[0]):
        risen[column] = T.max(scores[column // 2 * 4 + column % 2], scores[column // 2 * 4 + 2 + column % 2])
        for step in T.unroll(3):
            risen[column] = T.max(risen[column], T.shfl_xor(risen[column], 4 << step))


@T.macro
def column_sums(risen, sums, thread):
    """Sums of this thread's columns over the tokens of its warp."""
    for column in T.unroll(sums.shape[0]):
        risen[column] = sums[column]
        for step in T.unroll(3):
            risen[column] = risen[column] + T.shfl_xor(risen[column], 4 << step)


def own_head(column, thread):
    """The head of a thread's column."""
    return column // 2 * 8 + thread % 4 * 2 + column % 2


@T.macro
def share_columns(red, slot, values, thread):
    """Leave one value a column and warp for the other warps."""
    if thread % 32 < 4:
        for column in T.unroll(values.shape[0]):
            red[slot, thread // 32, own_head(column, thread)] = values[column]


@T.macro
def join_maxima(top, red, slot, thread):
    """The maxima of the columns over the four warps."""
    for column in T.unroll(top.shape[0]):
        h = own_head(column, thread)
        top[column] = T.max(T.max(red[slot, 0, h], red[slot, 1, h]), T.max(red[slot, 2, h], red[slot, 3, h]))


@T.macro
def join_sums(top, red, slot, thread):
    """The sums of the columns over the four warps."""
    for column in T.unroll(top.shape[0]):
        h = own_head(column, thread)
        top[column] = (red[slot, 0, h] + red[slot, 1, h]) + (red[slot, 2, h] + red[slot, 3, h])


def _any_grown(top, peak, limit):
    grown = top[0] > peak[0] + float(limit)
    for column in range(1, int(peak.shape[0])):
        grown = grown | (top[column] > peak[column] + float(limit))
    return T.any_sync(grown) != 0


@T.macro
def outgrown(grown: T.Ref, top, peak, limit):
    """Whether the maximum of some head rose more than `limit` powers of two above its reference; alike in every warp."""
    # Assigning a T.Ref parameter stores into the caller's variable.
    grown = _any_grown(top, peak, limit)  # noqa: F841


@T.macro
def raise_reference(peak, top, sums, stat, thread):
    """Move the reference up to the maximum: rescale the running sums, and leave each head's factor for O."""
    for column in T.unroll(peak.shape[0]):
        top[column] = T.max(top[column], peak[column])
        peak[column] = T.exp2(peak[column] - top[column])
        sums[column] = sums[column] * peak[column]
    if thread < 4:
        for column in T.unroll(peak.shape[0]):
            stat[own_head(column, thread)] = peak[column]
    for column in T.unroll(peak.shape[0]):
        peak[column] = top[column]


@T.macro
def rescale_output(acc, slot, held, stat, heads, thread):
    """O^T times each head's factor, some columns of the four accumulators at a time."""
    width = held.shape[1]
    for part in T.unroll(acc.shape[2] // width):
        T.copy(acc[slot, :, part * width : part * width + width], held)
        for d, h in T.Parallel(held.shape[0], width):
            held[d, h] = held[d, h] * stat[part % (heads // width) * width + h]
        T.copy(held, acc[slot, :, part * width : part * width + width])


@T.macro
def weigh_tokens(scores, sums, peak):
    """P = exp2(S - reference) in place of S, and the running sums of this thread's own weights."""
    for i in T.unroll(scores.shape[0]):
        scores[i] = T.exp2(scores[i] - peak[i // 4 * 2 + i % 2])
        sums[i // 4 * 2 + i % 2] = sums[i // 4 * 2 + i % 2] + scores[i]


@T.macro
def store_weights(target, slot, weights, heads, thread):
    """Write P as bf16, tokens by heads."""
    for g in T.unroll(heads // 8):
        for half in T.unroll(2):
            token = 16 * (thread // 32) + thread % 32 // 4 + 8 * half
            for e in T.vectorized(2):
                target[slot, token, 8 * g + thread % 4 * 2 + e] = T.cast(
                    weights[4 * g + 2 * half + e], "bfloat16"
                )


@T.macro
def finish_columns(
    total, peak, stat, attn_sink, lse, lse_partial, row, head0, heads, block, splits, split, alone, lse_scale, thread
):  # fmt: skip
    """From sums and reference: the factor that normalises O^T, and the lse of a lone split or of a partial."""
    if thread < 4:
        for column in T.unroll(total.shape[0]):
            h = own_head(column, thread)
            lse2 = T.if_then_else(
                total[column] > 0.0, T.log2(total[column]) + peak[column], -T.infinity("float32")
            )
            inverse = T.if_then_else(total[column] > 0.0, 1.0 / total[column], 0.0)
            if h < block:
                if alone:
                    stat[h] = inverse * sink_share(lse2, attn_sink[head0 + h])
                    lse[row, head0 + h] = lse2 * lse_scale
                else:
                    stat[h] = inverse
                    lse_partial[row, split, head0 + h] = lse2


@T.macro
def write_output(
    acc, slot, held, stat, out, o_partial, row, head0, heads, block, splits, split, alone, some, thread
):
    """O^T times each head's factor to the output (a lone split) or to this split's partial.

    Without `some` live tile there is no O: a lone split writes zeros, and a partial of one is never read.
    """
    width = held.shape[1]
    parts = acc.shape[2] // 4 // width
    for step in T.unroll(4 * parts):
        c, first = step // parts, step % parts * width
        if some:
            T.copy(acc[slot, :, step * width : step * width + width], held)
        else:
            T.fill(held, 0)
        if alone:
            for d, h in T.Parallel(held.shape[0], T.min(block, width)):
                out[row, head0 + first + h, c * 128 + d] = T.cast(held[d, h] * stat[first + h], "bfloat16")
        elif some:
            for d, h in T.Parallel(held.shape[0], T.min(block, width)):
                o_partial[row, split, head0 + first + h, c * 128 + d] = held[d, h] * stat[first + h]


@T.macro
def merge_columns(
    o_partial, lse_partial, attn_sink, out, lse, row, head0, heads, block, splits, lse_scale, first, columns, thread, threads
):  # fmt: skip
    """The weighted sum of the splits for `columns` latent dims from `first` on, four dims of one head a thread and turn.

    Eight splits at a time are in flight, joined by an online softmax over their lse. A split of weight 0 is not looked
    at; a row without ids gives 0 and -inf.
    """
    part = T.alloc_local((8, 4), "float32")
    weight = T.alloc_local((8,), "float32")
    merged = T.alloc_local((4,), "float32")
    peak = T.alloc_var("float32")
    risen = T.alloc_var("float32")
    total = T.alloc_var("float32")
    for turn in T.serial(T.ceildiv(block * columns // 4, threads)):
        item = turn * threads + thread
        if item < block * columns // 4:
            h = head0 + item // (columns // 4)
            d = first + item % (columns // 4) * 4
            peak = -T.infinity("float32")
            total = 0.0
            for v in T.unroll(4):
                merged[v] = 0.0
            for batch in T.serial(T.ceildiv(splits, 8)):
                for i in T.unroll(8):
                    weight[i] = -T.infinity("float32")
                    if batch * 8 + i < splits:
                        weight[i] = lse_partial[row, batch * 8 + i, h]
                        for v in T.vectorized(4):
                            part[i, v] = o_partial[row, batch * 8 + i, h, d + v]
                risen = peak
                for i in T.unroll(8):
                    risen = T.max(risen, weight[i])
                if risen > -T.infinity("float32"):
                    peak = T.exp2(peak - risen)
                    total = total * peak
                    for v in T.unroll(4):
                        merged[v] = merged[v] * peak
                    for i in T.unroll(8):
                        if weight[i] > -T.infinity("float32"):
                            weight[i] = T.exp2(weight[i] - risen)
                            total = total + weight[i]
                            for v in T.unroll(4):
                                merged[v] = merged[v] + weight[i] * part[i, v]
                    peak = risen
            lse2 = T.if_then_else(total > 0.0, T.log2(total) + peak, -T.infinity("float32"))
            share = T.if_then_else(total > 0.0, sink_share(lse2, attn_sink[h]) / total, 0.0)
            for v in T.vectorized(4):
                out[row, h, d + v] = T.cast(merged[v] * share, "bfloat16")
            if d == 0:
                lse[row, h] = lse2 * lse_scale
