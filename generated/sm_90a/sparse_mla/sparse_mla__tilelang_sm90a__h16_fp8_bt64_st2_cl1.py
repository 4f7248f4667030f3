"""sparse_mla__tilelang_sm90a__h16_fp8_bt64_st2_cl1

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: heads=16, kv=fp8, tile=64, stages=2, cluster=1.

  gather         unpack         attend
  warps 12..15   warps 4..11    warps 0..3
  |==== raw ====>|              |   raw_s raw_pe_s scale_s, ring of 3; cp_async -> threads
  |              |===== kv ====>|   ckv_s kpe_s, ring of 2; threads -> wgmma

roles
  attend     threads 0..127, 224 registers  queries, both products, softmax, merge, output
  unpack     threads 128..383, 104 registers  staged tokens to bf16 rows
  gather     threads 384..511, 80 registers  selected tokens as they are
buffers
  q_s        16x512 bfloat16, shared, 128-byte swizzle
  qpe_s      16x64 bfloat16, shared, 128-byte swizzle
  ckv_s      2 stages of 64x512 bfloat16, shared, 128-byte swizzle
  kpe_s      2 stages of 64x64 bfloat16, shared, 128-byte swizzle
  p_s        64x16 bfloat16, shared, 32-byte swizzle
  red_s      16x4 float32, shared
  raw_s      3 stages of 32x128 int32, shared, 128-byte swizzle
  raw_pe_s   3 stages of 32x64 bfloat16, shared, 128-byte swizzle
  scale_s    3 stages of 32x4 int32, shared
  last_s     1 int32, shared
  scores     64x16 float32, registers of attend
  acc        512x16 float32, registers of attend
  sums       128x4 float32, registers of attend
  top        128x4 float32, registers of attend
  peak       128x4 float32, registers of attend
pipelines
  raw: gather (cp_async) ==[raw_s raw_pe_s scale_s: 3-slot ring]==> unpack (threads)
    full  x128: gather hardware arrives per thread
      unpack: wait full
    empty x256: gather wait empty
      unpack: arrive empty
  kv: unpack (threads) ==[ckv_s kpe_s: 2-slot ring]==> attend (wgmma)
    full  x256: unpack fence.proxy.async, arrive full
      attend: wait full
    empty x128: unpack wait empty
      attend: wgmma wait, arrive empty
  named barrier attend: attend
totals: 512 threads, 231252 of 232448 bytes of shared memory, grid (t, splits)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout, make_quarter_bank_swizzled_layout

from dsl_kernels.device.tilelang import grid, scalars, symbols, warps, wgmma
from dsl_kernels.kernels.sparse_mla import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS
# Where it is not zero, all CTAs run at once.
RESIDENT = "all_resident"

HEADS = 16  # query heads
TILE = 64  # tokens per tile
STAGES = 2  # gathered tiles in flight
STAGED_HALVES = 3
DIMS = 512
ROPE = 64
ATTEND_BARRIER = 1
ATTEND_THREADS = 128
OWN_COLUMNS = 4
LOG2_E = 1.4426950408889634
OWN_SCORES = 8
OWN_OUTPUTS = 64
LATENT_DIM = 512
ROPE_DIM = 64


@T.macro
def read_ids(low: T.Ref, high: T.Ref, indices, row, tile, end, lane):
    """Read ids `lane` and `lane` + 32 of a tile of a query; -1 replaces the ids from number `end` on."""
    first = tile * 64 + lane
    low = warps.load_or(indices[row, first], first < end, -1)
    high = warps.load_or(indices[row, (first + 32)], first + 32 < end, -1)


@T.macro
def load_queries(target, rope_target, q, q_rope, row, thread):
    """Copy part `part` of a block of heads of one query: `columns` columns of `q`, `rope_columns` of
    `q_rope`.
    """
    held = T.alloc_local((36,), "uint32")
    # All reads come before the first write: a compiler moves no read past a write.
    for i in T.unroll(8):
        item = i * 128 + thread
        warps.load_vector(
            held, i * 4, 4, q[row, T.truncdiv(item, DIMS // 8), T.truncmod(item, DIMS // 8) * 8],
            item < HEADS * (DIMS // 8)
        )
    for i in T.unroll(1):
        item = i * 128 + thread
        warps.load_vector(
            held, (8 + i) * 4, 4, q_rope[row, T.truncdiv(item, ROPE // 8), T.truncmod(item, ROPE // 8) * 8],
            item < HEADS * (ROPE // 8)
        )
    for i in T.unroll(8):
        item = i * 128 + thread
        if item < HEADS * (DIMS // 8):
            warps.store_vector(
                held, i * 4, target[T.truncdiv(item, DIMS // 8), T.truncmod(item, DIMS // 8) * 8]
            )
    for i in T.unroll(1):
        item = i * 128 + thread
        if item < HEADS * (ROPE // 8):
            warps.store_vector(
                held, (8 + i) * 4, rope_target[T.truncdiv(item, ROPE // 8), T.truncmod(item, ROPE // 8) * 8]
            )


@T.macro
def vote(in_low: T.Ref, in_high: T.Ref, live: T.Ref, low, high, cached):
    """The valid ids of a tile as two words of bits, and whether any id is valid.

    Every warp of every role gets the same result.
    """
    in_low = warps.ballot((low >= 0) & (low < cached))
    in_high = warps.ballot((high >= 0) & (high < cached))
    live = in_low | in_high != 0


@T.macro
def mask_scores(scores, low, high, sm_scale, thread):
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf.

    `low` has a bit for each of the first 32 tokens, `high` for each of the next 32.
    """
    own = T.if_then_else(thread < 64, low, high) >> (
        T.truncmod(T.truncdiv(thread, 32), 2) * 16 + T.truncdiv(T.truncmod(thread, 32), 4)
    )
    scale = sm_scale * LOG2_E
    valid_0 = own & 1 != 0
    for group in T.unroll(OWN_SCORES // 4):
        scores[group * 4] = T.if_then_else(valid_0, scores[group * 4] * scale, -T.infinity("float32"))
        scores[group * 4 + 1] = T.if_then_else(valid_0, scores[group * 4 + 1] * scale, -T.infinity("float32"))
    valid_1 = own >> 8 & 1 != 0
    for group in T.unroll(OWN_SCORES // 4):
        scores[group * 4 + 2] = T.if_then_else(valid_1, scores[group * 4 + 2] * scale, -T.infinity("float32"))
        scores[group * 4 + 1 + 2] = T.if_then_else(
            valid_1, scores[group * 4 + 1 + 2] * scale, -T.infinity("float32")
        )


@T.macro
def leave_maxima(red, scores, thread):
    """Leave the maximum of each head over the 16 tokens of each warp for the other warps."""
    risen = T.alloc_local((OWN_SCORES // 2,), "float32")
    for group in T.unroll(OWN_SCORES // 4):
        own = T.max(scores[group * 4], scores[group * 4 + 2])
        over_4 = T.max(own, warps.exchange(own, 4))
        over_8 = T.max(over_4, warps.exchange(over_4, 8))
        over_16 = T.max(over_8, warps.exchange(over_8, 16))
        risen[group * 2] = over_16
        own = T.max(scores[group * 4 + 1], scores[group * 4 + 1 + 2])
        over_4 = T.max(own, warps.exchange(own, 4))
        over_8 = T.max(over_4, warps.exchange(over_4, 8))
        over_16 = T.max(over_8, warps.exchange(over_8, 16))
        risen[group * 2 + 1] = over_16
    if T.truncmod(thread, 32) < 4:
        for column in T.unroll(OWN_SCORES // 2):
            red[
                T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2),
                T.truncdiv(thread, 32)
            ] = risen[column]


@T.macro
def join_maxima(top, red, thread):
    """Compute the maxima of the heads over the four warps."""
    four = T.alloc_local((4,), "float32")
    for column in T.unroll(OWN_COLUMNS):
        for part in T.vectorized(4):
            four[part] = red[
                T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2), 0 + part
            ]
        top[column] = T.max(T.max(four[0], four[1]), T.max(four[2], four[3]))


@T.macro
def online_softmax(scores, sums, acc, peak, top):
    """Replace S by P = exp2(S - maximum), and rescale the running sums and O to the new maximum.

    The sums stay private to each thread until the end: one addition per element, and threads exchange
    nothing. A rescale only if a maximum has risen much would need a branch around O, and that costs
    more than it saves (docs/performance.md).
    """
    for group in T.unroll(OWN_SCORES // 4):
        risen = T.max(top[group * 2], peak[group * 2])
        decay = warps.exp2(peak[group * 2] - risen)
        peak[group * 2] = risen
        scores[group * 4] = warps.exp2(scores[group * 4] - risen)
        scores[group * 4 + 2] = warps.exp2(scores[group * 4 + 2] - risen)
        sums[group * 2] = sums[group * 2] * decay + (scores[group * 4] + scores[group * 4 + 2])
        for block in T.unroll(OWN_OUTPUTS // OWN_SCORES):
            acc[block * OWN_SCORES + group * 4] = acc[block * OWN_SCORES + group * 4] * decay
            acc[block * OWN_SCORES + group * 4 + 2] = acc[block * OWN_SCORES + group * 4 + 2] * decay
        risen = T.max(top[group * 2 + 1], peak[group * 2 + 1])
        decay = warps.exp2(peak[group * 2 + 1] - risen)
        peak[group * 2 + 1] = risen
        scores[group * 4 + 1] = warps.exp2(scores[group * 4 + 1] - risen)
        scores[group * 4 + 1 + 2] = warps.exp2(scores[group * 4 + 1 + 2] - risen)
        sums[group * 2 + 1] = sums[group * 2 + 1] * decay + (
            scores[group * 4 + 1] + scores[group * 4 + 1 + 2]
        )
        for block in T.unroll(OWN_OUTPUTS // OWN_SCORES):
            acc[block * OWN_SCORES + (group * 4 + 1)] = acc[block * OWN_SCORES + (group * 4 + 1)] * decay
            acc[
                block * OWN_SCORES + (group * 4 + 1) + 2
            ] = acc[block * OWN_SCORES + (group * 4 + 1) + 2] * decay


@T.macro
def store_weights(target, scores, thread):
    """Write P as bf16 in the layout that its product reads. If there are eight heads, they are the rows."""
    for pair in T.unroll(1):
        warps.store_matrices(
            target[
                T.truncdiv(thread, 32) * 16 + T.truncmod(T.truncmod(thread, 32), 16),
                pair * 16 + T.truncdiv(T.truncmod(thread, 32), 16) * 8
            ],
            scores, pair * 8, 4
        )


@T.macro
def leave_sums(red, sums, thread):
    """Leave the sum of each head over the tokens of each warp for the other warps."""
    whole = T.alloc_local((OWN_COLUMNS,), "float32")
    for column in T.unroll(OWN_COLUMNS):
        own = sums[column]
        over_4 = own + warps.exchange(own, 4)
        over_8 = over_4 + warps.exchange(over_4, 8)
        over_16 = over_8 + warps.exchange(over_8, 16)
        whole[column] = over_16
    if T.truncmod(thread, 32) < 4:
        for column in T.unroll(OWN_COLUMNS):
            red[
                T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2),
                T.truncdiv(thread, 32)
            ] = whole[column]


@T.macro
def join_sums(top, red, thread):
    """Compute the sums of the heads over the four warps."""
    four = T.alloc_local((4,), "float32")
    for column in T.unroll(OWN_COLUMNS):
        for part in T.vectorized(4):
            four[part] = red[
                T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2), 0 + part
            ]
        top[column] = four[0] + four[1] + (four[2] + four[3])


@T.macro
def normalise(acc, top, peak):
    """Divide O by the sums, and replace the sums by the base-2 lse. An empty column gives 0 and -inf."""
    for group in T.unroll(OWN_COLUMNS // 2):
        inverse = T.if_then_else(top[group * 2] > 0.0, warps.rcp_approx(top[group * 2]), 0.0)
        top[group * 2] = T.if_then_else(
            top[group * 2] > 0.0, warps.log2(top[group * 2]) + peak[group * 2], -T.infinity("float32")
        )
        for block in T.unroll(OWN_OUTPUTS // (OWN_COLUMNS * 2)):
            acc[block * (OWN_COLUMNS * 2) + group * 4] = acc[block * (OWN_COLUMNS * 2) + group * 4] * inverse
            acc[
                block * (OWN_COLUMNS * 2) + group * 4 + 2
            ] = acc[block * (OWN_COLUMNS * 2) + group * 4 + 2] * inverse
        inverse = T.if_then_else(top[group * 2 + 1] > 0.0, warps.rcp_approx(top[group * 2 + 1]), 0.0)
        top[group * 2 + 1] = T.if_then_else(
            top[group * 2 + 1] > 0.0, warps.log2(top[group * 2 + 1]) + peak[group * 2 + 1],
            -T.infinity("float32")
        )
        for block in T.unroll(OWN_OUTPUTS // (OWN_COLUMNS * 2)):
            acc[
                block * (OWN_COLUMNS * 2) + (group * 4 + 1)
            ] = acc[block * (OWN_COLUMNS * 2) + (group * 4 + 1)] * inverse
            acc[
                block * (OWN_COLUMNS * 2) + (group * 4 + 1) + 2
            ] = acc[block * (OWN_COLUMNS * 2) + (group * 4 + 1) + 2] * inverse


@T.macro
def write_outputs(acc, top, attn_sink, out, lse, row, lse_scale, empty_lse, thread):
    """Write the result of a row that one CTA holds whole."""
    for group in T.unroll(OWN_COLUMNS // 2):
        head = T.truncdiv(group * 2, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(group * 2, 2)
        kept = T.if_then_else(
            top[group * 2] > -T.infinity("float32"),
            warps.rcp_approx(warps.exp2(attn_sink[head] * LOG2_E - top[group * 2]) + 1.0), 0.0
        )
        for block in T.unroll(OWN_OUTPUTS // (OWN_COLUMNS * 2)):
            out[
                row, head, block * 64 + (T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4))
            ] = T.cast((acc[block * (OWN_COLUMNS * 2) + group * 4] * kept), "bfloat16")
            out[
                row, head,
                block * 64 + (T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4)) + 8
            ] = T.cast((acc[block * (OWN_COLUMNS * 2) + group * 4 + 2] * kept), "bfloat16")
        if thread < 4:
            lse[row, head] = T.if_then_else(
                top[group * 2] > -T.infinity("float32"), top[group * 2] * lse_scale, empty_lse
            )
        head = T.truncdiv(group * 2 + 1, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(group * 2 + 1, 2)
        kept = T.if_then_else(
            top[group * 2 + 1] > -T.infinity("float32"),
            warps.rcp_approx(warps.exp2(attn_sink[head] * LOG2_E - top[group * 2 + 1]) + 1.0), 0.0
        )
        for block in T.unroll(OWN_OUTPUTS // (OWN_COLUMNS * 2)):
            out[
                row, head, block * 64 + (T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4))
            ] = T.cast((acc[block * (OWN_COLUMNS * 2) + (group * 4 + 1)] * kept), "bfloat16")
            out[
                row, head,
                block * 64 + (T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4)) + 8
            ] = T.cast((acc[block * (OWN_COLUMNS * 2) + (group * 4 + 1) + 2] * kept), "bfloat16")
        if thread < 4:
            lse[row, head] = T.if_then_else(
                top[group * 2 + 1] > -T.infinity("float32"), top[group * 2 + 1] * lse_scale, empty_lse
            )


@T.macro
def leave_part(acc, lses, row, split, o_partial, lse_partial, thread):
    """Write a split's normalised part of O, in the order of threads, and its lses, for `merge_parts`."""
    four = T.alloc_local((4,), "float32")
    for u in T.unroll(OWN_OUTPUTS // 4):
        four[0] = acc[u * 4]
        four[1] = acc[u * 4 + 1]
        four[2] = acc[u * 4 + 2]
        four[3] = acc[u * 4 + 3]
        for part in T.vectorized(4):
            o_partial[row, split, 0, (T.truncdiv(thread * 4, 4) + u * 128) * 4 + part] = four[part]
    if thread < 4:
        for column in T.unroll(OWN_COLUMNS):
            lse_partial[
                row, split, T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)
            ] = lses[column]


@T.macro
def merge_parts(
    row, parts, share, shares, out, lse, o_partial, lse_partial, attn_sink, lse_scale, empty_lse, thread
):
    """Join share `share` of `shares` of the dims from all parts, scale each head for its sink, and store
    it.

    It joins `few` pieces at a time. Whoever has the first piece also stores the lse. A row without ids
    gives 0 and `empty_lse`.
    """
    sinks = T.alloc_local((OWN_COLUMNS,), "float32")
    end = T.truncdiv((share + 1) * (LATENT_DIM // 64), shares)
    for column in T.unroll(OWN_COLUMNS):
        sinks[column] = attn_sink[
            T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)
        ]
    for piece in T.unroll(T.truncdiv(share * (LATENT_DIM // 64), shares), end, 32 // HEADS, unroll_factor=1):
        top = T.alloc_local((OWN_COLUMNS,), "float32")
        total = T.alloc_local((OWN_COLUMNS,), "float32")
        kept = T.alloc_local((OWN_COLUMNS,), "float32")
        merged = T.alloc_local((32 // HEADS * (2 * OWN_COLUMNS),), "float32")
        four = T.alloc_local((4,), "float32")
        weights = T.alloc_local((64 // (32 // HEADS * (2 * OWN_COLUMNS)) * OWN_COLUMNS,), "float32")
        for column in T.unroll(OWN_COLUMNS):
            top[column] = -T.infinity("float32")
            total[column] = 0.0
        for i in T.unroll(32 // HEADS * (2 * OWN_COLUMNS)):
            merged[i] = 0.0
        for first in T.unroll(0, parts, 64 // (32 // HEADS * (2 * OWN_COLUMNS)), unroll_factor=1):
            for p in T.unroll(64 // (32 // HEADS * (2 * OWN_COLUMNS))):
                for column in T.unroll(OWN_COLUMNS):
                    weights[p * OWN_COLUMNS + column] = T.if_then_else(
                        first + p < parts,
                        lse_partial[
                            row, T.min(first + p, parts - 1),
                            T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)
                        ],
                        -T.infinity("float32")
                    )
            for column in T.unroll(OWN_COLUMNS):
                peak = T.alloc_var("float32", init=top[column])
                for at in T.unroll(
                    column, 64 // (32 // HEADS * (2 * OWN_COLUMNS)) * OWN_COLUMNS, OWN_COLUMNS
                ):
                    peak = T.max(peak, weights[at])
                # The weight of an empty part is 0, even if all parts are empty.
                base = T.if_then_else(peak > -T.infinity("float32"), peak, 0.0)
                kept[column] = warps.exp2(top[column] - base)
                top[column] = peak
                total[column] = total[column] * kept[column]
                for at in T.unroll(
                    column, 64 // (32 // HEADS * (2 * OWN_COLUMNS)) * OWN_COLUMNS, OWN_COLUMNS
                ):
                    weights[at] = warps.exp2(weights[at] - base)
                    total[column] = total[column] + weights[at]
            for i in T.unroll(32 // HEADS * (2 * OWN_COLUMNS)):
                merged[i] = merged[i] * kept[
                    T.truncdiv(T.truncmod(i, 2 * OWN_COLUMNS), 4) * 2 + T.truncmod(
                        T.truncmod(i, 2 * OWN_COLUMNS), 2
                    )
                ]
            for p in T.unroll(64 // (32 // HEADS * (2 * OWN_COLUMNS))):
                for u in T.unroll(32 // HEADS * (2 * OWN_COLUMNS) // 4):
                    for part in T.vectorized(4):
                        four[part] = o_partial[
                            row, T.min(first + p, parts - 1), 0,
                            (
                                T.truncdiv(thread * 4, 4) + (
                                    T.min(
                                        piece + T.truncdiv(u, 2 * OWN_COLUMNS // 4), end - 1
                                    ) * (2 * OWN_COLUMNS // 4) + T.truncmod(u, 2 * OWN_COLUMNS // 4)
                                ) * 128
                            ) * 4 + part
                        ]
                    for e in T.unroll(4):
                        merged[u * 4 + e] = merged[u * 4 + e] + four[e] * weights[
                            p * OWN_COLUMNS + (
                                T.truncdiv(T.truncmod(u * 4 + e, 2 * OWN_COLUMNS), 4) * 2 + T.truncmod(
                                    T.truncmod(u * 4 + e, 2 * OWN_COLUMNS), 2
                                )
                            )
                        ]
        for column in T.unroll(OWN_COLUMNS):
            joined = T.if_then_else(
                total[column] > 0.0, warps.log2(total[column]) + top[column], -T.infinity("float32")
            )
            total[column] = T.if_then_else(
                total[column] > 0.0, warps.rcp_approx(total[column]), 0.0
            ) * T.if_then_else(
                joined > -T.infinity("float32"),
                warps.rcp_approx(warps.exp2(sinks[column] * LOG2_E - joined) + 1.0), 0.0
            )
            if (piece == 0) & (thread < 4):
                lse[
                    row, T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)
                ] = T.if_then_else(joined > -T.infinity("float32"), joined * lse_scale, empty_lse)
        for v in T.unroll(32 // HEADS):
            if piece + v < end:
                for i in T.unroll(2 * OWN_COLUMNS):
                    out[
                        row,
                        T.truncdiv(
                            T.truncdiv(i, 4) * 2 + T.truncmod(i, 2), 2
                        ) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(
                            T.truncdiv(i, 4) * 2 + T.truncmod(i, 2), 2
                        ),
                        (piece + v) * 64 + (
                            T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4)
                        ) + T.truncdiv(T.truncmod(i, 4), 2) * 8 + 0
                    ] = T.cast(
                        (merged[v * (2 * OWN_COLUMNS) + i] * total[T.truncdiv(i, 4) * 2 + T.truncmod(i, 2)]),
                        "bfloat16"
                    )


@T.macro
def unpack_tokens_half_0(
    ckv, ckv_slot, kpe, kpe_slot, raw, raw_slot, raw_pe, raw_pe_slot, scales, scales_slot, thread
):
    """Write half a tile of staged tokens as bf16 rows, each value rounded once, with eight threads per
    token.

    `half` is 0 or 1. Of eight lanes, four have pieces of one row and four have pieces of the row whose
    number differs in bits 0 and 2. Their reads then go to distinct banks, and so do their writes.
    """
    piece = thread & 3 | thread >> 1 & 4
    own = (thread >> 4 & 12) * 2 + (thread >> 4 & 3 ^ (thread >> 2 & 1) * 5)
    row = own
    words = T.alloc_local((16,), "int32")
    factors = T.alloc_local((4,), "int32")
    beside = T.alloc_local((8,), "bfloat16")
    for part in T.vectorized(4):
        factors[part] = scales[scales_slot, own, 0 + part]
    # All reads come before the first write: a compiler moves no read past a write.
    for panel in T.unroll(4):
        for part in T.vectorized(4):
            words[panel * 4 + part] = raw[raw_slot, own, panel * 32 + piece * 4 + part]
    for part in T.vectorized(8):
        beside[part] = raw_pe[raw_pe_slot, own, piece * 8 + part]
    for panel in T.unroll(4):
        warps.store_fp8(
            ckv[ckv_slot, row, panel * 128 + piece * 16], ckv[ckv_slot, row, panel * 128 + piece * 16 + 8],
            words, panel * 4, factors[panel]
        )
    for part in T.vectorized(8):
        kpe[kpe_slot, row, piece * 8 + part] = beside[part]


@T.macro
def unpack_tokens_half_1(
    ckv, ckv_slot, kpe, kpe_slot, raw, raw_slot, raw_pe, raw_pe_slot, scales, scales_slot, thread
):
    """Write half a tile of staged tokens as bf16 rows, each value rounded once, with eight threads per
    token.

    `half` is 0 or 1. Of eight lanes, four have pieces of one row and four have pieces of the row whose
    number differs in bits 0 and 2. Their reads then go to distinct banks, and so do their writes.
    """
    piece = thread & 3 | thread >> 1 & 4
    own = (thread >> 4 & 12) * 2 + (thread >> 4 & 3 ^ (thread >> 2 & 1) * 5)
    row = 32 + own
    words = T.alloc_local((16,), "int32")
    factors = T.alloc_local((4,), "int32")
    beside = T.alloc_local((8,), "bfloat16")
    for part in T.vectorized(4):
        factors[part] = scales[scales_slot, own, 0 + part]
    # All reads come before the first write: a compiler moves no read past a write.
    for panel in T.unroll(4):
        for part in T.vectorized(4):
            words[panel * 4 + part] = raw[raw_slot, own, panel * 32 + piece * 4 + part]
    for part in T.vectorized(8):
        beside[part] = raw_pe[raw_pe_slot, own, piece * 8 + part]
    for panel in T.unroll(4):
        warps.store_fp8(
            ckv[ckv_slot, row, panel * 128 + piece * 16], ckv[ckv_slot, row, panel * 128 + piece * 16 + 8],
            words, panel * 4, factors[panel]
        )
    for part in T.vectorized(8):
        kpe[kpe_slot, row, piece * 8 + part] = beside[part]


@T.macro
def find_rows(low_row: T.Ref, high_row: T.Ref, low, high, cached, page_inverse, page_shift, page_gap):
    """The rows of the cache that a lane's two ids of a tile name.

    Without the branch ptxas moves the arithmetic across other code, and kernels of 16 heads were 2 to 3
    % slower.
    """
    low_row = low
    high_row = high
    if page_gap != 0:
        low_page = T.cast(
            warps.mul_hi(T.cast(low, "uint32") << T.uint32(2), T.cast(page_inverse, "uint32")), "int32"
        ) >> page_shift
        low_row = T.if_then_else((low >= 0) & (low < cached), low + low_page * page_gap, -1)
        high_page = T.cast(
            warps.mul_hi(T.cast(high, "uint32") << T.uint32(2), T.cast(page_inverse, "uint32")), "int32"
        ) >> page_shift
        high_row = T.if_then_else((high >= 0) & (high < cached), high + high_page * page_gap, -1)


@T.macro
def copy_tokens(raw, raw_slot, raw_pe, raw_pe_slot, scales, scales_slot, kv_cache, ids, n, thread):
    """Start the copies of half a tile's 656-byte tokens as they are, with eight threads per token.

    A token becomes zeros if its id names no row.
    """
    for r in T.unroll(2):
        row = r * 16 + (thread >> 3)
        token = warps.shuffle(ids, row)
        inside = (token >= 0) & (token < n)
        for panel in T.unroll(4):
            warps.copy16(
                raw[raw_slot, row, panel * 32 + (thread & 7) * 4],
                kv_cache[token, (thread & 7) * 16 + panel * 128], inside
            )
        warps.copy16(
            raw_pe[raw_pe_slot, row, (thread & 7) * 8], kv_cache[token, (thread & 7) * 16 + 528], inside
        )
        if thread & 7 == 0:
            warps.copy16(scales[scales_slot, row, 0], kv_cache[token, (thread & 7) * 16 + 512], inside)


@T.macro
def attend(
    q_nope, q_pe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale,
    empty_lse, cached, all_resident, splits, q_s, qpe_s, ckv_s, kpe_s, p_s, red_s, last_s, kv_full, kv_empty,
    bx, split, end: T.Ref, turns: T.Ref, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref,
    live: T.Ref, thread, lane
):
    """Queries, both products, softmax, merge, output."""
    scores = T.alloc_local((OWN_SCORES,), "float32")
    acc = T.alloc_local((OWN_OUTPUTS,), "float32")
    sums = T.alloc_local((OWN_COLUMNS,), "float32")
    top = T.alloc_local((OWN_COLUMNS,), "float32")
    peak = T.alloc_local((OWN_COLUMNS,), "float32")
    worker = thread
    load_queries(q_s, qpe_s, q_nope, q_pe, bx, worker)
    T.fence_proxy_async()
    T.sync_threads(ATTEND_BARRIER, ATTEND_THREADS)
    T.fill(acc, 0.0)
    T.fill(sums, 0.0)
    T.fill(peak, -T.infinity("float32"))
    for turn in T.serial(turns):
        vote(in_low, in_high, live, low, high, cached)
        read_ids(low, high, indices, bx, split + (turn + 1) * splits, end, lane)
        if live:
            T.mbarrier_wait_parity(kv_full[it % STAGES], (it // STAGES) & 1)
            # S^T = K Q^T
            T.warpgroup_fence_operand(scores, num_regs=8)
            T.warpgroup_arrive()
            wgmma.multiply(
                scores, wgmma.operand(ckv_s, it % STAGES, 0, 0, "k", 128, "bfloat16"),
                wgmma.operand(q_s, 0, 0, 0, "k", 128, "bfloat16"), TILE, HEADS, DIMS, "bfloat16", True
            )
            wgmma.multiply(
                scores, wgmma.operand(kpe_s, it % STAGES, 0, 0, "k", 128, "bfloat16"),
                wgmma.operand(qpe_s, 0, 0, 0, "k", 128, "bfloat16"), TILE, HEADS, ROPE, "bfloat16", False
            )
            T.warpgroup_commit_batch()
            T.warpgroup_fence_operand(scores, num_regs=8)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(scores, num_regs=8)
            mask_scores(scores, in_low, in_high, sm_scale, worker)
            leave_maxima(red_s, scores, worker)
            T.sync_threads(ATTEND_BARRIER, ATTEND_THREADS)
            join_maxima(top, red_s, worker)
            online_softmax(scores, sums, acc, peak, top)
            store_weights(p_s, scores, worker)
            T.fence_proxy_async()
            T.sync_threads(ATTEND_BARRIER, ATTEND_THREADS)
            # O^T += K^T P^T
            T.warpgroup_fence_operand(acc, num_regs=64)
            T.warpgroup_arrive()
            wgmma.multiply(
                acc, wgmma.operand(ckv_s, it % STAGES, 0, 0, "mn", 128, "bfloat16"),
                wgmma.operand(p_s, 0, 0, 0, "mn", 32, "bfloat16"), DIMS, HEADS, TILE, "bfloat16", False
            )
            T.warpgroup_commit_batch()
            T.warpgroup_fence_operand(acc, num_regs=64)
            T.wait_wgmma(0)
            T.warpgroup_fence_operand(acc, num_regs=64)
            T.mbarrier_arrive(kv_empty[it % STAGES])
            it = it + 1
    leave_sums(red_s, sums, worker)
    T.sync_threads(ATTEND_BARRIER, ATTEND_THREADS)
    join_sums(top, red_s, worker)
    normalise(acc, top, peak)
    if splits == 1:
        write_outputs(acc, top, attn_sink, out, lse, bx, lse_scale, empty_lse, worker)
    else:
        leave_part(acc, top, bx, split, o_partial, lse_partial, worker)
        merges = T.alloc_var("bool", init=True)
        share = T.alloc_var("int32", init=split)
        shares = T.alloc_var("int32", init=splits)
        if all_resident != 0:
            T.sync_threads(ATTEND_BARRIER, ATTEND_THREADS)
            grid.count_in(arrivals, bx, worker)
            grid.await_count(arrivals, bx, splits, worker)
            T.sync_threads(ATTEND_BARRIER, ATTEND_THREADS)
        else:
            T.sync_threads(ATTEND_BARRIER, ATTEND_THREADS)
            grid.take_ticket(last_s, arrivals, bx, splits, worker)
            T.sync_threads(ATTEND_BARRIER, ATTEND_THREADS)
            merges = last_s[0] == splits - 1
            share = 0
            shares = 1
        if merges:
            merge_parts(
                bx, splits, share, shares, out, lse, o_partial, lse_partial, attn_sink, lse_scale, empty_lse,
                worker
            )
        if all_resident != 0:
            grid.count_out(arrivals, bx, splits, worker)


@T.macro
def unpack(
    indices, cached, splits, ckv_s, kpe_s, raw_s, raw_pe_s, scale_s, raw_full, raw_empty, kv_full, kv_empty,
    bx, split, end: T.Ref, turns: T.Ref, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref,
    live: T.Ref, thread, lane
):
    """Staged tokens to bf16 rows."""
    worker = thread - 128
    for turn in T.serial(turns):
        vote(in_low, in_high, live, low, high, cached)
        read_ids(low, high, indices, bx, split + (turn + 1) * splits, end, lane)
        if live:
            T.mbarrier_wait_parity(kv_empty[it % STAGES], ((it // STAGES) & 1) ^ 1)
            T.mbarrier_wait_parity(raw_full[it * 2 % STAGED_HALVES], (it * 2 // STAGED_HALVES) & 1)
            unpack_tokens_half_0(
                ckv_s, it % STAGES, kpe_s, it % STAGES, raw_s, it * 2 % STAGED_HALVES, raw_pe_s,
                it * 2 % STAGED_HALVES, scale_s, it * 2 % STAGED_HALVES, worker
            )
            T.mbarrier_arrive(raw_empty[it * 2 % STAGED_HALVES])
            T.mbarrier_wait_parity(
                raw_full[(it * 2 + 1) % STAGED_HALVES], ((it * 2 + 1) // STAGED_HALVES) & 1
            )
            unpack_tokens_half_1(
                ckv_s, it % STAGES, kpe_s, it % STAGES, raw_s, (it * 2 + 1) % STAGED_HALVES, raw_pe_s,
                (it * 2 + 1) % STAGED_HALVES, scale_s, (it * 2 + 1) % STAGED_HALVES, worker
            )
            T.mbarrier_arrive(raw_empty[(it * 2 + 1) % STAGED_HALVES])
            T.fence_proxy_async()
            T.mbarrier_arrive(kv_full[it % STAGES])
            it = it + 1


@T.macro
def gather(
    kv_cache, indices, cached, page_inverse, page_shift, page_gap, n, splits, raw_s, raw_pe_s, scale_s,
    raw_full, raw_empty, bx, split, end: T.Ref, turns: T.Ref, it: T.Ref, low: T.Ref, high: T.Ref,
    in_low: T.Ref, in_high: T.Ref, live: T.Ref, thread, lane
):
    """Selected tokens as they are."""
    worker = thread - 384
    for turn in T.serial(turns):
        vote(in_low, in_high, live, low, high, cached)
        now_low = T.alloc_var("int32", init=0)
        now_high = T.alloc_var("int32", init=0)
        find_rows(now_low, now_high, low, high, cached, page_inverse, page_shift, page_gap)
        read_ids(low, high, indices, bx, split + (turn + 1) * splits, end, lane)
        if live:
            T.mbarrier_wait_parity(raw_empty[it * 2 % STAGED_HALVES], ((it * 2 // STAGED_HALVES) & 1) ^ 1)
            copy_tokens(
                raw_s, it * 2 % STAGED_HALVES, raw_pe_s, it * 2 % STAGED_HALVES, scale_s,
                it * 2 % STAGED_HALVES, kv_cache, now_low, n, worker
            )
            T.cp_async_barrier_noinc(raw_full[it * 2 % STAGED_HALVES])
            T.mbarrier_wait_parity(
                raw_empty[(it * 2 + 1) % STAGED_HALVES], (((it * 2 + 1) // STAGED_HALVES) & 1) ^ 1
            )
            copy_tokens(
                raw_s, (it * 2 + 1) % STAGED_HALVES, raw_pe_s, (it * 2 + 1) % STAGED_HALVES, scale_s,
                (it * 2 + 1) % STAGED_HALVES, kv_cache, now_high, n, worker
            )
            T.cp_async_barrier_noinc(raw_full[(it * 2 + 1) % STAGED_HALVES])
            it = it + 1


def program():
    t = T.dynamic("t")
    q_nope_stride_t = T.dynamic("q_nope_stride_t")
    q_nope_stride_h = T.dynamic("q_nope_stride_h")
    q_pe_stride_t = T.dynamic("q_pe_stride_t")
    q_pe_stride_h = T.dynamic("q_pe_stride_h")
    n = T.dynamic("n")
    kv_cache_stride = T.dynamic("kv_cache_stride")
    topk = T.dynamic("topk")
    indices_stride = T.dynamic("indices_stride")
    out_stride_t = T.dynamic("out_stride_t")
    out_stride_h = T.dynamic("out_stride_h")
    lse_stride = T.dynamic("lse_stride")
    splits = T.dynamic("splits")
    counters = T.dynamic("counters")

    @T.prim_func
    def sparse_mla__tilelang_sm90a__h16_fp8_bt64_st2_cl1(
        q_nope: T.StridedTensor((t, 16, 512), (q_nope_stride_t, q_nope_stride_h, 1), "bfloat16"),
        q_pe: T.StridedTensor((t, 16, 64), (q_pe_stride_t, q_pe_stride_h, 1), "bfloat16"),
        kv_cache: T.StridedTensor((n, 656), (kv_cache_stride, 1), "uint8"),
        indices: T.StridedTensor((t, topk), (indices_stride, 1), "int32"),
        topk_length: T.Tensor((t,), "int32"),
        attn_sink: T.Tensor((16,), "float32"),
        out: T.StridedTensor((t, 16, 512), (out_stride_t, out_stride_h, 1), "bfloat16"),
        lse: T.StridedTensor((t, 16), (lse_stride, 1), "float32"),
        o_partial: T.Tensor((t, splits, 16, 512), "float32"),
        lse_partial: T.Tensor((t, splits, 16), "float32"),
        arrivals: T.Tensor((counters,), "int32"),
        sm_scale: T.float32,
        lse_scale: T.float32,
        empty_lse: T.float32,
        has_lengths: T.int32,
        cached: T.int32,
        page_inverse: T.int32,
        page_shift: T.int32,
        page_gap: T.int32,
        all_resident: T.int32,
    ):
        with T.Kernel(t, splits, threads=512) as (bx, split):
            T.import_source(wgmma.SOURCE + warps.SOURCE + scalars.SOURCE)
            q_s = T.alloc_shared((HEADS, DIMS), "bfloat16")
            qpe_s = T.alloc_shared((HEADS, ROPE), "bfloat16")
            ckv_s = T.alloc_shared((STAGES, TILE, DIMS), "bfloat16")
            kpe_s = T.alloc_shared((STAGES, TILE, ROPE), "bfloat16")
            p_s = T.alloc_shared((TILE, HEADS), "bfloat16")
            red_s = T.alloc_shared((HEADS, 4), "float32")
            raw_s = T.alloc_shared((STAGED_HALVES, TILE // 2, LATENT_DIM // 4), "int32")
            raw_pe_s = T.alloc_shared((STAGED_HALVES, TILE // 2, ROPE_DIM), "bfloat16")
            scale_s = T.alloc_shared((STAGED_HALVES, TILE // 2, 4), "int32")
            last_s = T.alloc_shared((1,), "int32")
            T.annotate_layout({b: make_full_bank_swizzled_layout(b) for b in (ckv_s, kpe_s, q_s, qpe_s)})
            T.annotate_layout({b: make_quarter_bank_swizzled_layout(b) for b in (p_s,)})
            raw_full = T.alloc_barrier([128] * STAGED_HALVES)
            raw_empty = T.alloc_barrier([256] * STAGED_HALVES)
            kv_full = T.alloc_barrier([256] * STAGES)
            kv_empty = T.alloc_barrier([128] * STAGES)

            thread = T.get_thread_binding()
            lane = thread % 32
            end = T.alloc_var("int32", init=topk)
            turns = T.alloc_var("int32", init=0)
            turns = T.truncdiv(scalars.ceildiv(end, TILE) - split + splits - 1, splits)
            it = T.alloc_var("int32", init=0)
            low = T.alloc_var("int32", init=0)
            high = T.alloc_var("int32", init=0)
            in_low = T.alloc_var("int32", init=0)
            in_high = T.alloc_var("int32", init=0)
            live = T.alloc_var("bool", init=False)
            # A launch of TileLang starts when the kernel before it has ended.
            if has_lengths != 0:
                end = T.max(T.min(topk_length[bx], topk), 0)
                turns = T.truncdiv(scalars.ceildiv(end, TILE) - split + splits - 1, splits)
            read_ids(low, high, indices, bx, split, end, lane)
            if thread < 128:
                T.set_max_nreg(224, 1)
                attend(
                    q_nope, q_pe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale,
                    lse_scale, empty_lse, cached, all_resident, splits, q_s, qpe_s, ckv_s, kpe_s, p_s, red_s,
                    last_s, kv_full, kv_empty, bx, split, end, turns, it, low, high, in_low, in_high, live,
                    thread, lane
                )
            elif thread < 384:
                T.set_max_nreg(104, 0)
                unpack(
                    indices, cached, splits, ckv_s, kpe_s, raw_s, raw_pe_s, scale_s, raw_full, raw_empty,
                    kv_full, kv_empty, bx, split, end, turns, it, low, high, in_low, in_high, live, thread,
                    lane
                )
            else:
                T.set_max_nreg(80, 0)
                gather(
                    kv_cache, indices, cached, page_inverse, page_shift, page_gap, n, splits, raw_s, raw_pe_s,
                    scale_s, raw_full, raw_empty, bx, split, end, turns, it, low, high, in_low, in_high, live,
                    thread, lane
                )

    return symbols.named(sparse_mla__tilelang_sm90a__h16_fp8_bt64_st2_cl1, splits=splits)
