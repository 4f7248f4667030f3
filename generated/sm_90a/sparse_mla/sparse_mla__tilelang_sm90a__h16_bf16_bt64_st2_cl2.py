"""sparse_mla__tilelang_sm90a__h16_bf16_bt64_st2_cl2

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: heads=16, kv=bf16, tile=64, stages=2, cluster=2.

  gather       attend
  warps 4..7   warps 0..3
  |==== kv ===>|   ckv_s kpe_s, ring of 2; cp_async -> wgmma

roles
  attend     threads 0..127  queries, both products, softmax, merge, output
  gather     threads 128..255  selected rows into the ring
buffers
  q_s        16x512 bfloat16, shared, 128-byte swizzle
  qpe_s      16x64 bfloat16, shared, 128-byte swizzle
  ckv_s      2 stages of 64x512 bfloat16, shared, 128-byte swizzle
  kpe_s      2 stages of 64x64 bfloat16, shared, 128-byte swizzle
  p_s        64x16 bfloat16, shared, 32-byte swizzle
  red_s      16x4 float32, shared
  last_s     1 int32, shared
  scores     64x16 float32, registers of attend
  acc        512x16 float32, registers of attend
  sums       128x4 float32, registers of attend
  top        128x4 float32, registers of attend
  peak       128x4 float32, registers of attend
pipelines
  kv: gather (cp_async) ==[ckv_s kpe_s: 2-slot ring]==> attend (wgmma)
    full  x128: gather hardware arrives per thread
      attend: wait full, fence.proxy.async
    empty x128: gather wait empty
      attend: wgmma wait, arrive empty
  named barrier attend: attend
totals: 256 threads, 168228 of 232448 bytes of shared memory, grid (t, 2, splits // 2)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout, make_quarter_bank_swizzled_layout

from dsl_kernels.device.tilelang import grid, scalars, symbols, warps, wgmma
from dsl_kernels.kernels.sparse_mla import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

HEADS = 16  # query heads
TILE = 64  # tokens per tile
STAGES = 2  # gathered tiles in flight
CLUSTER = 2  # splits of a row that form a cluster and share out the merge
DIMS = 512
ROPE = 64
ATTEND_BARRIER = 1
ATTEND_THREADS = 128
OWN_COLUMNS = 4
LOG2_E = 1.4426950408889634
OWN_SCORES = 8
OWN_OUTPUTS = 64
LATENT_DIM = 512


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
def merge_parts(row, parts, share, out, lse, o_partial, lse_partial, attn_sink, lse_scale, empty_lse, thread):
    """Join share `share` of `shares` of the dims from all parts, scale each head for its sink, and store
    it.

    It joins `few` pieces at a time. Whoever has the first piece also stores the lse. A row without ids
    gives 0 and `empty_lse`.
    """
    sinks = T.alloc_local((OWN_COLUMNS,), "float32")
    end = T.truncdiv((share + 1) * (LATENT_DIM // 64), CLUSTER)
    for column in T.unroll(OWN_COLUMNS):
        sinks[column] = attn_sink[
            T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)
        ]
    for piece in T.unroll(T.truncdiv(share * (LATENT_DIM // 64), CLUSTER), end, 4, unroll_factor=1):
        top = T.alloc_local((OWN_COLUMNS,), "float32")
        total = T.alloc_local((OWN_COLUMNS,), "float32")
        kept = T.alloc_local((OWN_COLUMNS,), "float32")
        merged = T.alloc_local((4 * (2 * OWN_COLUMNS),), "float32")
        four = T.alloc_local((4,), "float32")
        weights = T.alloc_local((64 // (4 * (2 * OWN_COLUMNS)) * OWN_COLUMNS,), "float32")
        for column in T.unroll(OWN_COLUMNS):
            top[column] = -T.infinity("float32")
            total[column] = 0.0
        for i in T.unroll(4 * (2 * OWN_COLUMNS)):
            merged[i] = 0.0
        for first in T.unroll(0, parts, 64 // (4 * (2 * OWN_COLUMNS)), unroll_factor=1):
            for p in T.unroll(64 // (4 * (2 * OWN_COLUMNS))):
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
                for at in T.unroll(column, 64 // (4 * (2 * OWN_COLUMNS)) * OWN_COLUMNS, OWN_COLUMNS):
                    peak = T.max(peak, weights[at])
                # The weight of an empty part is 0, even if all parts are empty.
                base = T.if_then_else(peak > -T.infinity("float32"), peak, 0.0)
                kept[column] = warps.exp2(top[column] - base)
                top[column] = peak
                total[column] = total[column] * kept[column]
                for at in T.unroll(column, 64 // (4 * (2 * OWN_COLUMNS)) * OWN_COLUMNS, OWN_COLUMNS):
                    weights[at] = warps.exp2(weights[at] - base)
                    total[column] = total[column] + weights[at]
            for i in T.unroll(4 * (2 * OWN_COLUMNS)):
                merged[i] = merged[i] * kept[
                    T.truncdiv(T.truncmod(i, 2 * OWN_COLUMNS), 4) * 2 + T.truncmod(
                        T.truncmod(i, 2 * OWN_COLUMNS), 2
                    )
                ]
            for p in T.unroll(64 // (4 * (2 * OWN_COLUMNS))):
                for u in T.unroll(4 * (2 * OWN_COLUMNS) // 4):
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
        for v in T.unroll(4):
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
def copy_rows_ckv_s(target, target_slot, cache, low, high, n, thread):
    """Start the copies of `columns` columns of a tile's rows, from `first` on; zeros if an id names no
    row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    row = T.truncdiv(thread, 8)
    token = warps.shuffle(low, T.truncmod(row, 32))
    for c in T.unroll(DIMS // 64):
        warps.copy_row16(
            target[target_slot, row, (c * 8 + T.truncmod(thread, 8)) * 8], cache, T.truncmod(thread, 8) * 8,
            token, c * 64, n
        )
    row = T.truncdiv(thread, 8) + 16
    token = warps.shuffle(low, T.truncmod(row, 32))
    for c in T.unroll(DIMS // 64):
        warps.copy_row16(
            target[target_slot, row, (c * 8 + T.truncmod(thread, 8)) * 8], cache, T.truncmod(thread, 8) * 8,
            token, c * 64, n
        )
    row = T.truncdiv(thread, 8) + 32
    token = warps.shuffle(high, T.truncmod(row, 32))
    for c in T.unroll(DIMS // 64):
        warps.copy_row16(
            target[target_slot, row, (c * 8 + T.truncmod(thread, 8)) * 8], cache, T.truncmod(thread, 8) * 8,
            token, c * 64, n
        )
    row = T.truncdiv(thread, 8) + 48
    token = warps.shuffle(high, T.truncmod(row, 32))
    for c in T.unroll(DIMS // 64):
        warps.copy_row16(
            target[target_slot, row, (c * 8 + T.truncmod(thread, 8)) * 8], cache, T.truncmod(thread, 8) * 8,
            token, c * 64, n
        )


@T.macro
def copy_rows_kpe_s(target, target_slot, cache, low, high, n, thread):
    """Start the copies of `columns` columns of a tile's rows, from `first` on; zeros if an id names no
    row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    row = T.truncdiv(thread, ROPE // 8)
    token = warps.shuffle(low, T.truncmod(row, 32))
    for c in T.unroll(1):
        warps.copy_row16(
            target[target_slot, row, (c * (ROPE // 8) + T.truncmod(thread, ROPE // 8)) * 8], cache,
            T.truncmod(thread, ROPE // 8) * 8, token, c * (ROPE // 8 * 8), n
        )
    row = T.truncdiv(thread, ROPE // 8) + 16
    token = warps.shuffle(low, T.truncmod(row, 32))
    for c in T.unroll(1):
        warps.copy_row16(
            target[target_slot, row, (c * (ROPE // 8) + T.truncmod(thread, ROPE // 8)) * 8], cache,
            T.truncmod(thread, ROPE // 8) * 8, token, c * (ROPE // 8 * 8), n
        )
    row = T.truncdiv(thread, ROPE // 8) + 32
    token = warps.shuffle(high, T.truncmod(row, 32))
    for c in T.unroll(1):
        warps.copy_row16(
            target[target_slot, row, (c * (ROPE // 8) + T.truncmod(thread, ROPE // 8)) * 8], cache,
            T.truncmod(thread, ROPE // 8) * 8, token, c * (ROPE // 8 * 8), n
        )
    row = T.truncdiv(thread, ROPE // 8) + 48
    token = warps.shuffle(high, T.truncmod(row, 32))
    for c in T.unroll(1):
        warps.copy_row16(
            target[target_slot, row, (c * (ROPE // 8) + T.truncmod(thread, ROPE // 8)) * 8], cache,
            T.truncmod(thread, ROPE // 8) * 8, token, c * (ROPE // 8 * 8), n
        )


@T.macro
def attend(
    q_nope, q_pe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale,
    empty_lse, cached, splits, q_s, qpe_s, ckv_s, kpe_s, p_s, red_s, last_s, kv_full, kv_empty, bx, rank,
    split, splits_of_row, end: T.Ref, turns: T.Ref, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref,
    in_high: T.Ref, live: T.Ref, thread, lane
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
        read_ids(low, high, indices, bx, split + (turn + 1) * splits_of_row, end, lane)
        if live:
            T.mbarrier_wait_parity(kv_full[it % STAGES], (it // STAGES) & 1)
            T.fence_proxy_async()
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
    leave_part(acc, top, bx, split, o_partial, lse_partial, worker)
    merges = T.alloc_var("bool", init=True)
    T.call_extern("handle", "dk::cluster_arrive")
    T.call_extern("handle", "dk::cluster_wait")
    if splits > CLUSTER:
        T.sync_threads(ATTEND_BARRIER, ATTEND_THREADS)
        grid.take_ticket(last_s, arrivals, bx * CLUSTER + rank, T.truncdiv(splits, CLUSTER), worker)
        T.sync_threads(ATTEND_BARRIER, ATTEND_THREADS)
        merges = last_s[0] == T.truncdiv(splits, CLUSTER) - 1
    if merges:
        merge_parts(
            bx, splits, rank, out, lse, o_partial, lse_partial, attn_sink, lse_scale, empty_lse, worker
        )


@T.macro
def gather(
    ckv, kpe, indices, cached, page_inverse, page_shift, page_gap, n, ckv_s, kpe_s, kv_full, kv_empty, bx,
    split, splits_of_row, end: T.Ref, turns: T.Ref, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref,
    in_high: T.Ref, live: T.Ref, thread, lane
):
    """Selected rows into the ring."""
    worker = thread - 128
    for turn in T.serial(turns):
        vote(in_low, in_high, live, low, high, cached)
        now_low = T.alloc_var("int32", init=0)
        now_high = T.alloc_var("int32", init=0)
        find_rows(now_low, now_high, low, high, cached, page_inverse, page_shift, page_gap)
        read_ids(low, high, indices, bx, split + (turn + 1) * splits_of_row, end, lane)
        if live:
            T.mbarrier_wait_parity(kv_empty[it % STAGES], ((it // STAGES) & 1) ^ 1)
            copy_rows_ckv_s(ckv_s, it % STAGES, ckv, now_low, now_high, n, worker)
            copy_rows_kpe_s(kpe_s, it % STAGES, kpe, now_low, now_high, n, worker)
            T.cp_async_barrier_noinc(kv_full[it % STAGES])
            it = it + 1
    T.call_extern("handle", "dk::cluster_arrive")
    T.call_extern("handle", "dk::cluster_wait")


def program():
    t = T.dynamic("t")
    q_nope_stride_t = T.dynamic("q_nope_stride_t")
    q_nope_stride_h = T.dynamic("q_nope_stride_h")
    q_pe_stride_t = T.dynamic("q_pe_stride_t")
    q_pe_stride_h = T.dynamic("q_pe_stride_h")
    n = T.dynamic("n")
    ckv_stride = T.dynamic("ckv_stride")
    kpe_stride = T.dynamic("kpe_stride")
    topk = T.dynamic("topk")
    indices_stride = T.dynamic("indices_stride")
    out_stride_t = T.dynamic("out_stride_t")
    out_stride_h = T.dynamic("out_stride_h")
    lse_stride = T.dynamic("lse_stride")
    splits = T.dynamic("splits")
    counters = T.dynamic("counters")

    @T.prim_func
    def sparse_mla__tilelang_sm90a__h16_bf16_bt64_st2_cl2(
        q_nope: T.StridedTensor((t, 16, 512), (q_nope_stride_t, q_nope_stride_h, 1), "bfloat16"),
        q_pe: T.StridedTensor((t, 16, 64), (q_pe_stride_t, q_pe_stride_h, 1), "bfloat16"),
        ckv: T.StridedTensor((n, 512), (ckv_stride, 1), "bfloat16"),
        kpe: T.StridedTensor((n, 64), (kpe_stride, 1), "bfloat16"),
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
    ):
        with T.Kernel(t, 2, splits // 2, threads=256, cluster_dims=(1, 2, 1)) as (bx, rank, part):
            T.import_source(grid.SOURCE + wgmma.SOURCE + warps.SOURCE + scalars.SOURCE)
            q_s = T.alloc_shared((HEADS, DIMS), "bfloat16")
            qpe_s = T.alloc_shared((HEADS, ROPE), "bfloat16")
            ckv_s = T.alloc_shared((STAGES, TILE, DIMS), "bfloat16")
            kpe_s = T.alloc_shared((STAGES, TILE, ROPE), "bfloat16")
            p_s = T.alloc_shared((TILE, HEADS), "bfloat16")
            red_s = T.alloc_shared((HEADS, 4), "float32")
            last_s = T.alloc_shared((1,), "int32")
            T.annotate_layout({b: make_full_bank_swizzled_layout(b) for b in (ckv_s, kpe_s, q_s, qpe_s)})
            T.annotate_layout({b: make_quarter_bank_swizzled_layout(b) for b in (p_s,)})
            kv_full = T.alloc_barrier([128] * STAGES)
            kv_empty = T.alloc_barrier([128] * STAGES)

            thread = T.get_thread_binding()
            lane = thread % 32
            split = part * CLUSTER + rank
            splits_of_row = splits
            end = T.alloc_var("int32", init=topk)
            turns = T.alloc_var("int32", init=0)
            turns = T.truncdiv(scalars.ceildiv(end, TILE) - split + splits_of_row - 1, splits_of_row)
            it = T.alloc_var("int32", init=0)
            low = T.alloc_var("int32", init=0)
            high = T.alloc_var("int32", init=0)
            in_low = T.alloc_var("int32", init=0)
            in_high = T.alloc_var("int32", init=0)
            live = T.alloc_var("bool", init=False)
            # A launch of TileLang starts when the kernel before it has ended.
            if has_lengths != 0:
                end = T.max(T.min(topk_length[bx], topk), 0)
                turns = T.truncdiv(scalars.ceildiv(end, TILE) - split + splits_of_row - 1, splits_of_row)
            read_ids(low, high, indices, bx, split, end, lane)
            if thread < 128:
                attend(
                    q_nope, q_pe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale,
                    lse_scale, empty_lse, cached, splits, q_s, qpe_s, ckv_s, kpe_s, p_s, red_s, last_s,
                    kv_full, kv_empty, bx, rank, split, splits_of_row, end, turns, it, low, high, in_low,
                    in_high, live, thread, lane
                )
            else:
                gather(
                    ckv, kpe, indices, cached, page_inverse, page_shift, page_gap, n, ckv_s, kpe_s, kv_full,
                    kv_empty, bx, split, splits_of_row, end, turns, it, low, high, in_low, in_high, live,
                    thread, lane
                )

    return symbols.named(sparse_mla__tilelang_sm90a__h16_bf16_bt64_st2_cl2, splits=splits)
