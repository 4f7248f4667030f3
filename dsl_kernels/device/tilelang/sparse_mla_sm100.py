"""Leaf pieces of sparse attention for tcgen05: tokens on M, heads on N, accumulators in tensor memory.

A key tile is 64 tokens, cut into units of 128 columns. S^T[64, heads] = K Q^T is an M=64 MMA, which TileLang's
`tcgen05_gemm` does not offer for bf16, so `scores_unit` issues it from descriptors. An M=64 accumulator sits in
lanes 0-15 of each warp's 32 lanes; read as 16x256b it gives thread t of warp w the tokens 16w + t/4 (+ 8) and the
heads 2 * (t % 4) + {0, 1} of every group of eight. Values are kept in that order:

    value 4 * g + 2 * half + e  ->  token 16 * w + t / 4 + 8 * half,  head 8 * g + 2 * (t % 4) + e
    column 2 * g + e            ->  that head

Exponents are base 2: logits carry log2(e).
"""

from __future__ import annotations

import tilelang.language as T
from tvm import tirx

from .sparse_mla import CLUSTER_SOURCE, FP8_SOURCE, LOG2E, meet_cluster, sink_share

__all__ = ["CLUSTER_SOURCE", "meet_cluster"]

TILE = 64
"""Tokens of a tile: the M of the score MMA."""

PANEL_BYTES = TILE * 128
"""One 128-byte-swizzled panel of a tile: 64 tokens by 64 bf16 columns."""

SWIZZLE_128B = 2
"""Layout field of a tcgen05 shared-memory descriptor."""

GROUP_ROWS_16B = 1024 // 16
"""Descriptor stride, in 16-byte steps, between groups of eight 128-byte rows."""


TOKEN_WORDS = 44
"""32-bit words that a thread holds of an fp8 token: 16 bytes of each 64-dim panel, two pieces of rope, four scales."""

DEQUANTISE_SOURCE = (
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


def instruction_descriptor(m: int, n: int) -> int:
    """kind::f16 descriptor of a bf16 x bf16 -> fp32 MMA with both operands K-major."""
    float32, bfloat16 = 1, 1
    return float32 << 4 | bfloat16 << 7 | bfloat16 << 10 | (n >> 3) << 17 | (m >> 4) << 24


@T.macro
def scores_unit(keys, slot, queries, column, steps, tmem, accumulator, heads, clear):
    """S^T[64, heads] (+)= keys[slot] queries[:, column : column + 16 * steps]^T; `tmem` is [accumulators, lanes, heads]."""
    a = T.alloc_tcgen05_smem_desc()
    b = T.alloc_tcgen05_smem_desc()
    T.initialize_tcgen05_descriptor(
        a, T.access_ptr(keys[slot, 0, 0], "r"), 1, GROUP_ROWS_16B, 0, False, SWIZZLE_128B
    )
    T.initialize_tcgen05_descriptor(
        b, T.access_ptr(queries[0, column], "r"), 1, GROUP_ROWS_16B, 0, False, SWIZZLE_128B
    )
    for step in T.unroll(steps):
        T.ptx_tcgen05_mma_ss(
            "bfloat16",
            a.data,
            step // 4 * PANEL_BYTES + step % 4 * 32,
            b.data,
            step // 4 * (heads * 128) + step % 4 * 32,
            tmem.data,
            accumulator * heads,
            instruction_descriptor(TILE, heads),
            T.Select(step != 0, 1, T.Select(clear, 0, 1)),
            0,
            0,
            0,
            0,
            False,
            False,
        )


@T.macro
def load_queries(q_nope, q_pe, row, head0, heads, q, qpe, thread, threads):
    """Copy a head block's queries to shared memory; rows past `heads` become zero."""
    for i in T.serial(T.ceildiv(q.shape[0] * 64, threads)):
        at = i * threads + thread
        if at // 64 < heads:
            for v in T.vectorized(8):
                q[at // 64, at % 64 * 8 + v] = q_nope[row, head0 + at // 64, at % 64 * 8 + v]
        else:
            for v in T.vectorized(8):
                q[at // 64, at % 64 * 8 + v] = T.bfloat16(0)
    for i in T.serial(T.ceildiv(qpe.shape[0] * 8, threads)):
        at = i * threads + thread
        if at // 8 < heads:
            for v in T.vectorized(8):
                qpe[at // 8, at % 8 * 8 + v] = q_pe[row, head0 + at // 8, at % 8 * 8 + v]
        elif at // 8 < qpe.shape[0]:
            for v in T.vectorized(8):
                qpe[at // 8, at % 8 * 8 + v] = T.bfloat16(0)


@T.macro
def load_ids(ids, indices, row, tile, tiles, lane):
    """Each lane's two ids of a tile: tokens `lane` and `32 + lane`; -1 past the last tile."""
    ids[0] = T.if_then_else(tile < tiles, indices[row, tile * TILE + lane], -1)
    ids[1] = T.if_then_else(tile < tiles, indices[row, tile * TILE + 32 + lane], -1)


@T.macro
def next_tile(ids, ahead, valid, indices, row, tile, tiles, n, lane):
    """Take the ids that were read ahead, start reading those of `tile`, and vote.

    valid[i]: bit `lane` tells that token 32 * i + lane names a cache row. The same in every warp of the CTA.
    """
    for i in T.unroll(2):
        ids[i] = ahead[i]
    load_ids(ahead, indices, row, tile, tiles, lane)
    for i in T.unroll(2):
        valid[i] = T.cast(T.ballot((ids[i] >= 0) & (ids[i] < n)), "uint32")


def alive(valid):
    """Whether any token of the tile names a cache row; the other tiles are skipped by every role."""
    return (valid[0] | valid[1]) != T.uint32(0)


def token_valid(valid, token):
    """Whether token `token` (0 to 63) of the tile names a cache row."""
    word = T.if_then_else(token < 32, valid[0], valid[1])
    return (word >> T.cast(token % 32, "uint32")) & T.uint32(1) != T.uint32(0)


@T.macro
def spread_ids(rows, ids, valid, thread):
    """rows[r] = the id of token 8 * r + thread / 16, or -1 where it names no cache row."""
    for r in T.unroll(8):
        token = 8 * r + thread // 16
        found = T.shfl_sync(ids[r // 4], token % 32)
        rows[r] = T.if_then_else(token_valid(valid, token), found, -1)


@T.macro
def gather_unit(keys, slot, cache, column, rows, thread):
    """16-byte cp.async of 64 rows x 128 columns by 128 threads, 16 a row; a row of -1 is filled with zeros."""
    for r in T.unroll(8):
        T.ptx_cp_async(
            T.access_ptr(keys[slot, 8 * r + thread // 16, thread % 16 * 8], "w", 8),
            T.access_ptr(cache[T.cast(T.max(rows[r], 0), "int64"), column + thread % 16 * 8], "r", 8),
            8,
            rows[r] >= 0,
        )


@T.macro
def gather_rope(keys, slot, cache, rows, thread):
    """As `gather_unit` for the 64 rope columns: the lower eight threads of every sixteen copy."""
    if thread % 16 < 8:
        for r in T.unroll(8):
            T.ptx_cp_async(
                T.access_ptr(keys[slot, 8 * r + thread // 16, thread % 8 * 8], "w", 8),
                T.access_ptr(cache[T.cast(T.max(rows[r], 0), "int64"), thread % 8 * 8], "r", 8),
                8,
                rows[r] >= 0,
            )


@T.macro
def read_scores(scores, tmem, accumulator, warp, heads):
    """Load this thread's 2 * heads / 4 scores from tensor memory, completion included."""
    T.call_extern(
        "handle",
        f"tl::tcgen05_ld_16dp256bNx<{heads // 8}, false>",
        tmem[accumulator, 32 * warp, 0],
        0,
        T.address_of(scores[0]),
    )


@T.macro
def mask_scores(scores, peak, valid, sm_scale, warp, lane, columns):
    """Scale the scores to base 2, put -inf where the token is padding, and take each column's maximum over the warp's 16 tokens."""
    scale = sm_scale * LOG2E
    for half in T.unroll(2):
        inside = token_valid(valid, 16 * warp + lane // 4 + 8 * half)
        for column in T.unroll(columns):
            at = column // 2 * 4 + half * 2 + column % 2
            scores[at] = T.if_then_else(inside, scores[at] * scale, -T.infinity("float32"))
    for column in T.unroll(columns):
        peak[column] = T.max(scores[column // 2 * 4 + column % 2], scores[column // 2 * 4 + 2 + column % 2])
        for step in T.unroll(3):
            peak[column] = T.max(peak[column], T.shfl_xor(peak[column], 4 << step))


@T.macro
def share_columns(values, red, at, warp, lane, columns):
    """Publish one value a column and warp: red[at, warp, head]."""
    if lane < 4:
        for column in T.unroll(columns):
            red[at, warp, column // 2 * 8 + lane * 2 + column % 2] = values[column]


def own_head(column, lane):
    """The head of a thread's column."""
    return column // 2 * 8 + lane % 4 * 2 + column % 2


@T.macro
def join_peaks(peak, red, at, lane, columns):
    """peak = the column maximum over the four warps."""
    for column in T.unroll(columns):
        h = own_head(column, lane)
        peak[column] = T.max(T.max(red[at, 0, h], red[at, 1, h]), T.max(red[at, 2, h], red[at, 3, h]))


@T.macro
def join_sums(total, red, at, lane, columns):
    """total = the column sum over the four warps."""
    for column in T.unroll(columns):
        h = own_head(column, lane)
        total[column] = (red[at, 0, h] + red[at, 1, h]) + (red[at, 2, h] + red[at, 3, h])


def outgrown(peak, reference, columns, limit):
    """Whether any head of the tile rose more than `limit` powers of two above its reference; the same in every warp."""
    grown = peak[0] > reference[0] + float(limit)
    for column in range(1, columns):
        grown = grown | (peak[column] > reference[column] + float(limit))
    return T.any_sync(grown) != 0


@T.macro
def raise_reference(peak, reference, total, stat, lane, warp, columns):
    """Move the reference maximum up to the peak: rescale the running sums and publish each head's factor for O."""
    for column in T.unroll(columns):
        peak[column] = T.max(peak[column], reference[column])
        reference[column] = T.exp2(reference[column] - peak[column])
        total[column] = total[column] * reference[column]
    if (warp == 0) & (lane < 4):
        for column in T.unroll(columns):
            stat[own_head(column, lane)] = reference[column]
    for column in T.unroll(columns):
        reference[column] = peak[column]


@T.macro
def rescale_output(tmem, held, stat, heads):
    """O^T *= stat[head], some heads at a time; `tmem` holds the four accumulators of 128 latent dims first."""
    for c in T.unroll(4):
        for part in T.unroll(heads // held.shape[1]):
            first = part * held.shape[1]
            T.copy(tmem[c, :, first : first + held.shape[1]], held)
            for d, h in T.Parallel(held.shape[0], held.shape[1]):
                held[d, h] = held[d, h] * stat[first + h]
            T.copy(held, tmem[c, :, first : first + held.shape[1]])


@T.macro
def write_weights(p, slot, scores, reference, total, warp, lane, columns):
    """P = exp2(S - reference) as bf16 into shared memory, and the fp32 sums of this thread's own weights."""
    for g in T.unroll(columns // 2):
        for half in T.unroll(2):
            for e in T.vectorized(2):
                weight = T.exp2(scores[4 * g + 2 * half + e] - reference[2 * g + e])
                total[2 * g + e] = total[2 * g + e] + weight
                p[slot, 16 * warp + lane // 4 + 8 * half, 8 * g + lane % 4 * 2 + e] = T.cast(
                    weight, "bfloat16"
                )


@T.macro
def sum_rows(total, columns):
    """Each column's sum over the 16 tokens of a warp."""
    for column in T.unroll(columns):
        for step in T.unroll(3):
            total[column] = total[column] + T.shfl_xor(total[column], 4 << step)


@T.macro
def finish_columns(
    total,
    reference,
    stat,
    lse,
    lse_partial,
    attn_sink,
    row,
    head0,
    heads,
    split,
    alone,
    lse_scale,
    warp,
    lane,
    columns,
):
    """From sum and reference: the factor that normalises O^T (stat) and the lse of a lone split or of a partial."""
    if (warp == 0) & (lane < 4):
        for column in T.unroll(columns):
            h = own_head(column, lane)
            lse2 = T.if_then_else(
                total[column] > 0.0, T.log2(total[column]) + reference[column], -T.infinity("float32")
            )
            inverse = T.if_then_else(total[column] > 0.0, 1.0 / total[column], 0.0)
            if h < heads:
                if alone:
                    stat[h] = inverse * sink_share(lse2, attn_sink[head0 + h])
                    lse[row, head0 + h] = lse2 * lse_scale
                else:
                    stat[h] = inverse
                    lse_partial[row, split, head0 + h] = lse2


@T.macro
def write_output(tmem, held, stat, out, o_partial, row, split, alone, head0, heads, pad, live):
    """O^T times stat[head] to `out` (a lone split) or to this split's partial; zeros where no tile was live."""
    width = T.min(heads, held.shape[1])
    for c in T.unroll(4):
        for part in T.unroll(pad // held.shape[1]):
            first = part * held.shape[1]
            if live > 0:
                T.copy(tmem[c, :, first : first + held.shape[1]], held)
            else:
                T.fill(held, 0)
            if alone:
                for d, h in T.Parallel(held.shape[0], width):
                    out[row, head0 + first + h, c * 128 + d] = T.cast(
                        held[d, h] * stat[first + h], "bfloat16"
                    )
            elif live > 0:
                for d, h in T.Parallel(held.shape[0], width):
                    o_partial[row, split, head0 + first + h, c * 128 + d] = held[d, h] * stat[first + h]


@T.macro
def arrive(arrivals, slot, last, splits, thread, barrier, threads):
    """Count this CTA in; last[0] = splits - 1 in the CTA that came last, which then sees all partials.

    That CTA also puts the counter back to zero.
    """
    T.sync_threads(barrier, threads)
    if thread == 0:
        T.call_extern("handle", "__threadfence")
        last[0] = T.atomic_add(arrivals[slot], 1, memory_order="acq_rel", return_prev=True)
        T.call_extern("handle", "__threadfence")
        if last[0] == splits - 1:
            arrivals[slot] = 0
    T.sync_threads(barrier, threads)


@T.macro
def merge_splits(
    o_partial,
    lse_partial,
    attn_sink,
    out,
    lse,
    row,
    head0,
    heads,
    splits,
    lse_scale,
    first,
    columns,
    thread,
    threads,
):
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
    for turn in T.serial(T.ceildiv(heads * columns // 4, threads)):
        item = turn * threads + thread
        if item < heads * columns // 4:
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


def row_map(cache, columns, rows, row_stride):
    """Tensor map for gather4: boxes of one row by 64 columns (one 128-byte-swizzled panel row) of a bf16 matrix."""
    bfloat16, no_interleave, swizzle_128b, promote_l2_128b, zero_fill = 9, 0, 3, 2, 0
    return T.create_tma_descriptor(
        bfloat16,
        2,
        cache.data,
        columns,
        rows,
        2,
        T.cast(row_stride, "int64") * 2,
        64,
        1,
        1,
        1,
        no_interleave,
        swizzle_128b,
        promote_l2_128b,
        zero_fill,
    )


@T.macro
def spread_quads(rows, ids, valid, lane):
    """rows[j] = the id of token 4 * (lane % 16) + j, or -1 where it names no cache row."""
    for j in T.unroll(4):
        token = lane % 16 * 4 + j
        low = T.shfl_sync(ids[0], token % 32)
        high = T.shfl_sync(ids[1], token % 32)
        rows[j] = T.if_then_else(token_valid(valid, token), T.if_then_else(token < 32, low, high), -1)


@T.macro
def gather4(keys, slot, tensor_map, column, panels, rows, full, lane):
    """TMA gather4 by sixteen lanes, four rows each and one 64-column panel a call; a row of -1 is out of bounds: zeros.

    The copies complete on full[slot].
    """
    if lane < 16:
        for panel in T.unroll(panels):
            # The copy engine swizzles: the address wanted is the row's unswizzled start, where column 8 * (row % 8) lies.
            T.call_intrin(
                "handle",
                tirx.op.Op.get("tl.tma_load_gather4"),
                tensor_map,
                full[slot],
                T.access_ptr(keys[slot, 4 * lane, panel * 64 + lane % 2 * 32], "w", 256),
                column + panel * 64,
                rows[0],
                rows[1],
                rows[2],
                rows[3],
                0,
            )


@T.macro
def spread_pairs(rows, ids, valid, thread):
    """rows[i] = the id of token 32 * i + thread / 4, or -1 where it names no cache row: four threads a token."""
    for i in T.unroll(2):
        found = T.shfl_sync(ids[i], thread // 4)
        rows[i] = T.if_then_else(token_valid(valid, 32 * i + thread // 4), found, -1)


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
def load_scales(words, cache, rows):
    """Read the four scales of this thread's two tokens; zeros for a row of -1."""
    for i in T.unroll(2):
        T.call_extern(
            "handle",
            "dk::load16",
            T.address_of(words[i * TOKEN_WORDS + 40]),
            T.address_of(cache[T.cast(T.max(rows[i], 0), "int64"), 512]),
            rows[i] >= 0,
        )


@T.macro
def dequantise_unit(keys, slot, words, unit, thread):
    """Write this thread's part of a 128-column unit of two tokens as bf16."""
    for i in T.unroll(2):
        for piece in T.unroll(2):
            T.call_extern(
                "handle",
                "dk::dequantise16",
                T.address_of(keys[slot, 32 * i + thread // 4, piece * 64 + thread % 4 * 16]),
                T.address_of(keys[slot, 32 * i + thread // 4, piece * 64 + thread % 4 * 16 + 8]),
                T.address_of(words[i * TOKEN_WORDS + 8 * unit + 4 * piece]),
                T.address_of(words[i * TOKEN_WORDS + 40 + unit]),
            )


@T.macro
def store_rope(keys, slot, words, thread):
    """Write this thread's rope columns of two tokens."""
    for i in T.unroll(2):
        for piece in T.unroll(2):
            T.call_extern(
                "handle",
                "dk::store16",
                T.address_of(keys[slot, 32 * i + thread // 4, piece * 32 + thread % 4 * 8]),
                T.address_of(words[i * TOKEN_WORDS + 32 + 4 * piece]),
            )
