"""sparse_mla__tilelang_sm100a__h128_nope_bt64_cl1_cp_async

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: heads=128, kv=nope, tile=64, cluster=1, gather=cp_async.

  producer     mma          softmax
  warps 4..7   warp 8       warps 0..3
  |            |<=== q =====|   q_s; cp_async -> tcgen05
  |==== kv ===>|            |   kv_s, ring of 9; cp_async -> tcgen05
  |            |==== s ====>|   s_t, ring of 2; tcgen05 -> tmem
  |            |<=== p =====|   p_s; threads -> tcgen05
  |            |==== o ====>|   o_t; tcgen05 -> tmem

roles
  softmax    threads 0..127  queries, online softmax, lazy rescale, epilogue, merge
  producer   threads 128..255  selected rows into the rings
  mma        threads 256..287  issues every tcgen05.mma and commit
buffers
  q_s        64x512 bfloat16, shared, 128-byte swizzle
  kv_s       9 stages of 64x128 bfloat16, shared, 128-byte swizzle
  p_s        64x64 bfloat16, shared, 128-byte swizzle
  red_s      2 stages of 64x4 float32, shared
  stat_s     64 float32, shared
  o_t        128x256 float32, tensor memory
  s_t        2 stages of 64x64 float32, tensor memory
  scores     128x32 float32, registers of softmax
  sums       128x16 float32, registers of softmax
  top        128x16 float32, registers of softmax
  peak       128x16 float32, registers of softmax
  held       128x16 float32, registers of softmax
pipelines
  q: softmax (cp_async) ==[q_s: 1-slot ring]==> mma (tcgen05)
    full  x128: softmax hardware arrives per thread
      mma: wait full, fence.proxy.async, fence after
    empty x1: softmax wait empty
      mma: commit -> empty
  kv: producer (cp_async) ==[kv_s: 9-slot ring]==> mma (tcgen05)
    full  x128: producer hardware arrives per thread
      mma: wait full, fence.proxy.async, fence after
    empty x1: producer wait empty
      mma: commit -> empty
  s: mma (tcgen05) ==[s_t: 2-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
    empty x128: mma wait empty, fence after
      softmax: wait::ld, fence before, arrive empty
  p: softmax (threads) ==[p_s: 1-slot ring]==> mma (tcgen05)
    full  x128: softmax fence.proxy.async, wait::ld, wait::st, fence before, arrive full
      mma: wait full, fence after
    empty x1: softmax wait empty
      mma: commit -> empty
  o: mma (tcgen05) ==[o_t: 1-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
  named barrier softmax: softmax
totals: 288 threads, 223704 of 232448 bytes of shared memory, 384 of 512 tensor-memory columns, grid (ctas * 2)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout

from dsl_kernels.device.tilelang import fragment, grid, scalars, tcgen05, warps
from dsl_kernels.kernels.sparse_mla import tilelang_sm100 as leaf_sm100

PASS_CONFIGS = leaf_sm100.PASS_CONFIGS
# Where it is not zero, all CTAs run at once.
RESIDENT = "splits - 1"

HEADS = 128  # query heads
TILE = 64  # tokens per tile
HEAD_BLOCK = 64
UNIT_STAGES = 9
TILE_STAGES = 1
LATENT_DIM = 512
UNITS = 4
LOG2_E = 1.4426950408889634
SOFTMAX_BARRIER = 1
SOFTMAX_THREADS = 128
UNIT = 128


@T.macro
def read_ids(low: T.Ref, high: T.Ref, indices, row, tile, end, lane):
    """Read ids `lane` and `lane` + 32 of a tile of a query; -1 replaces the ids from number `end` on."""
    first = tile * 64 + lane
    low = warps.load_or(indices[row, first], first < end, -1)
    high = warps.load_or(indices[row, (first + 32)], first + 32 < end, -1)


@T.macro
def copy_block(target, target_slot, q, row, head0, thread):
    """Start the copies of a block of heads of one query. The target's padding becomes zero."""
    thread = scalars.anew(thread)
    for i in T.unroll(0, HEAD_BLOCK * (LATENT_DIM // 8) // 128, 1, unroll_factor=8):
        item = i * 128 + thread
        warps.copy16(
            target[target_slot, T.truncdiv(item, LATENT_DIM // 8), T.truncmod(item, LATENT_DIM // 8) * 8],
            q[row, head0 + T.truncdiv(item, LATENT_DIM // 8), T.truncmod(item, LATENT_DIM // 8) * 8],
            item < HEAD_BLOCK * (LATENT_DIM // 8)
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
    for group in T.unroll(HEAD_BLOCK // 2 // 4):
        scores[group * 4] = T.if_then_else(valid_0, scores[group * 4] * scale, -T.infinity("float32"))
        scores[group * 4 + 1] = T.if_then_else(valid_0, scores[group * 4 + 1] * scale, -T.infinity("float32"))
    valid_1 = own >> 8 & 1 != 0
    for group in T.unroll(HEAD_BLOCK // 2 // 4):
        scores[group * 4 + 2] = T.if_then_else(valid_1, scores[group * 4 + 2] * scale, -T.infinity("float32"))
        scores[group * 4 + 1 + 2] = T.if_then_else(
            valid_1, scores[group * 4 + 1 + 2] * scale, -T.infinity("float32")
        )


@T.macro
def leave_maxima(red, red_slot, scores, thread):
    """Leave the maximum of each head over the 16 tokens of each warp for the other warps."""
    risen = T.alloc_local((HEAD_BLOCK // 2 // 2,), "float32")
    for group in T.unroll(HEAD_BLOCK // 2 // 4):
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
        for column in T.unroll(HEAD_BLOCK // 2 // 2):
            red[
                red_slot, T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2),
                T.truncdiv(thread, 32)
            ] = risen[column]


@T.macro
def join_maxima(top, red, red_slot, thread):
    """Compute the maxima of the heads over the four warps."""
    four = T.alloc_local((4,), "float32")
    for column in T.unroll(HEAD_BLOCK // 4):
        for part in T.vectorized(4):
            four[part] = red[
                red_slot, T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2),
                0 + part
            ]
        top[column] = T.max(T.max(four[0], four[1]), T.max(four[2], four[3]))


@T.macro
def take_maxima(grown: T.Ref, top, peak, red, red_slot, thread):
    """Compute the maxima of the heads over the four warps.

    `grown` tells whether one rose more than `rise` powers of two above its reference. It is the same in
    every warp.
    """
    join_maxima(top, red, red_slot, thread)
    above = T.alloc_var("bool", init=False)
    for column in T.unroll(HEAD_BLOCK // 4):
        above = above | (top[column] > peak[column] + 8.0)
    grown = warps.any_lane(above)


@T.macro
def raise_reference(peak, top, sums, stat_s, thread):
    """Raise the reference to the maximum: rescale the running sums, and leave each head's factor for O."""
    for column in T.unroll(HEAD_BLOCK // 4):
        highest = T.max(top[column], peak[column])
        factor = warps.exp2(peak[column] - highest)
        sums[column] = sums[column] * factor
        peak[column] = highest
        if thread < 4:
            stat_s[T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)] = factor


@T.macro
def rescale_output(acc, acc_slot, held, stat_s, thread):
    """Multiply O^T by each head's factor."""
    for step in T.unroll(0, 16, 1, unroll_factor=1):
        first = T.truncmod(step, 4) * 16
        factors = T.alloc_local((16,), "float32")
        for quad in T.unroll(4):
            for part in T.vectorized(4):
                factors[quad * 4 + part] = stat_s[(T.truncdiv(first, 4) + quad) * 4 + part]
        fragment.load_columns(held, acc, acc_slot, step * 16, thread)
        for i in T.unroll(16):
            held[i] = held[i] * factors[i]
        fragment.store_columns(held, acc, acc_slot, step * 16, thread)


@T.macro
def weigh_tokens(scores, sums, peak):
    """Replace S by P = exp2(S - reference), and add P to this thread's running sums."""
    for i in T.unroll(HEAD_BLOCK // 2):
        scores[i] = warps.exp2(scores[i] - peak[T.truncdiv(i, 4) * 2 + T.truncmod(i, 2)])
        sums[
            T.truncdiv(i, 4) * 2 + T.truncmod(i, 2)
        ] = sums[T.truncdiv(i, 4) * 2 + T.truncmod(i, 2)] + scores[i]


@T.macro
def store_weights(target, target_slot, scores, thread):
    """Write P as bf16 in the layout that its product reads. If there are eight heads, they are the rows."""
    for pair in T.unroll(HEAD_BLOCK // 2 // 8):
        warps.store_matrices(
            target[
                target_slot, T.truncdiv(thread, 32) * 16 + T.truncmod(T.truncmod(thread, 32), 16),
                pair * 16 + T.truncdiv(T.truncmod(thread, 32), 16) * 8
            ],
            scores, pair * 8, 4
        )


@T.macro
def leave_sums(red, red_slot, sums, thread):
    """Leave the sum of each head over the tokens of each warp for the other warps."""
    whole = T.alloc_local((HEAD_BLOCK // 4,), "float32")
    for column in T.unroll(HEAD_BLOCK // 4):
        own = sums[column]
        over_4 = own + warps.exchange(own, 4)
        over_8 = over_4 + warps.exchange(over_4, 8)
        over_16 = over_8 + warps.exchange(over_8, 16)
        whole[column] = over_16
    if T.truncmod(thread, 32) < 4:
        for column in T.unroll(HEAD_BLOCK // 4):
            red[
                red_slot, T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2),
                T.truncdiv(thread, 32)
            ] = whole[column]


@T.macro
def join_sums(top, red, red_slot, thread):
    """Compute the sums of the heads over the four warps."""
    four = T.alloc_local((4,), "float32")
    for column in T.unroll(HEAD_BLOCK // 4):
        for part in T.vectorized(4):
            four[part] = red[
                red_slot, T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2),
                0 + part
            ]
        top[column] = four[0] + four[1] + (four[2] + four[3])


@T.macro
def finish_columns_split(red, red_slot, lses, row, head0, split, top, peak, stat_s, thread):
    """Write the lse of each head, and compute the factor that normalises its O^T, from sums and reference.

    If the row is not split, the factor includes the sink.
    """
    join_sums(top, red, red_slot, thread)
    if thread < 4:
        for column in T.unroll(HEAD_BLOCK // 4):
            head = T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)
            lse2 = T.if_then_else(
                top[column] > 0.0, warps.log2(top[column]) + peak[column], -T.infinity("float32")
            )
            if head < HEAD_BLOCK:
                stat_s[head] = T.if_then_else(top[column] > 0.0, warps.rcp_approx(top[column]), 0.0)
                lses[row, split, head0 + head] = lse2


@T.macro
def write_output_split(to, acc, acc_slot, row, head0, split, some, held, stat_s, thread):
    """Write O^T times each head's factor, into the row or into a split's part of the row.

    Without `some` live tile it writes zeros.
    """
    for step in T.unroll(0, 16, 1, unroll_factor=1):
        first = T.truncmod(step, 4) * 16
        factors = T.alloc_local((16,), "float32")
        for quad in T.unroll(4):
            for part in T.vectorized(4):
                factors[quad * 4 + part] = stat_s[(T.truncdiv(first, 4) + quad) * 4 + part]
        if some:
            fragment.load_columns(held, acc, acc_slot, step * 16, thread)
        d = T.truncdiv(step, 4) * 128 + thread
        for i in T.unroll(16):
            head = head0 + first + i
            to[row, split, head, d] = T.cast((factors[i] * T.if_then_else(some, held[i], 0.0)), "float32")


@T.macro
def finish_columns(
    red, red_slot, lses, row, head0, top, peak, stat_s, attn_sink, lse_scale, empty_lse, thread
):
    """Write the lse of each head, and compute the factor that normalises its O^T, from sums and reference.

    If the row is not split, the factor includes the sink.
    """
    join_sums(top, red, red_slot, thread)
    if thread < 4:
        for column in T.unroll(HEAD_BLOCK // 4):
            head = T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)
            lse2 = T.if_then_else(
                top[column] > 0.0, warps.log2(top[column]) + peak[column], -T.infinity("float32")
            )
            if head < HEAD_BLOCK:
                stat_s[head] = T.if_then_else(
                    top[column] > 0.0, warps.rcp_approx(top[column]), 0.0
                ) * T.if_then_else(
                    lse2 > -T.infinity("float32"),
                    warps.rcp_approx(warps.exp2(attn_sink[head0 + head] * LOG2_E - lse2) + 1.0), 0.0
                )
                lses[row, head0 + head] = T.if_then_else(
                    lse2 > -T.infinity("float32"), lse2 * lse_scale, empty_lse
                )


@T.macro
def write_output(to, acc, acc_slot, row, head0, some, held, stat_s, thread):
    """Write O^T times each head's factor, into the row or into a split's part of the row.

    Without `some` live tile it writes zeros.
    """
    for step in T.unroll(0, 16, 1, unroll_factor=1):
        first = T.truncmod(step, 4) * 16
        factors = T.alloc_local((16,), "float32")
        for quad in T.unroll(4):
            for part in T.vectorized(4):
                factors[quad * 4 + part] = stat_s[(T.truncdiv(first, 4) + quad) * 4 + part]
        if some:
            fragment.load_columns(held, acc, acc_slot, step * 16, thread)
        d = T.truncdiv(step, 4) * 128 + thread
        for i in T.unroll(16):
            head = head0 + first + i
            to[row, head, d] = T.cast((factors[i] * T.if_then_else(some, held[i], 0.0)), "bfloat16")


@T.macro
def merge_heads(
    row, head0, share, shares, o_partial, lse_partial, attn_sink, out, lse, lse_scale, empty_lse, parts,
    thread
):
    """Write the weighted sum of the splits for a share of the heads, with four dims per thread.

    Heads are joined `together` at a time. A row without ids gives 0 and `empty_lse`.
    """
    own = T.truncdiv(HEAD_BLOCK - share + shares - 1, shares)
    for turn in T.unroll(0, own, 4, unroll_factor=1):
        top = T.alloc_local((4,), "float32")
        total = T.alloc_local((4,), "float32")
        kept = T.alloc_local((4,), "float32")
        merged = T.alloc_local((16,), "float32")
        four = T.alloc_local((4,), "float32")
        weights = T.alloc_local((8,), "float32")
        for column in T.unroll(4):
            top[column] = -T.infinity("float32")
            total[column] = 0.0
        for i in T.unroll(16):
            merged[i] = 0.0
        for first in T.unroll(0, parts, 2, unroll_factor=1):
            for p in T.unroll(2):
                for column in T.unroll(4):
                    weights[p * 4 + column] = T.if_then_else(
                        first + p < parts,
                        lse_partial[
                            row, T.min(first + p, parts - 1),
                            head0 + share + T.min(turn + column, own - 1) * shares
                        ],
                        -T.infinity("float32")
                    )
            for column in T.unroll(4):
                peak = T.alloc_var("float32", init=top[column])
                for at in T.unroll(column, 8, 4):
                    peak = T.max(peak, weights[at])
                # The weight of an empty part is 0, even if all parts are empty.
                base = T.if_then_else(peak > -T.infinity("float32"), peak, 0.0)
                kept[column] = warps.exp2(top[column] - base)
                top[column] = peak
                total[column] = total[column] * kept[column]
                for at in T.unroll(column, 8, 4):
                    weights[at] = warps.exp2(weights[at] - base)
                    total[column] = total[column] + weights[at]
            for i in T.unroll(16):
                merged[i] = merged[i] * kept[T.truncdiv(i, 4)]
            for p in T.unroll(2):
                for u in T.unroll(4):
                    for part in T.vectorized(4):
                        four[part] = o_partial[
                            row, T.min(first + p, parts - 1),
                            head0 + share + T.min(turn + u, own - 1) * shares, (thread) * 4 + part
                        ]
                    for e in T.unroll(4):
                        merged[u * 4 + e] = merged[u * 4 + e] + four[e] * weights[
                            p * 4 + T.truncdiv(u * 4 + e, 4)
                        ]
        for column in T.unroll(4):
            if turn + column < own:
                head = head0 + share + T.min(turn + column, own - 1) * shares
                joined = T.if_then_else(
                    total[column] > 0.0, warps.log2(total[column]) + top[column], -T.infinity("float32")
                )
                scale = T.if_then_else(
                    total[column] > 0.0, warps.rcp_approx(total[column]), 0.0
                ) * T.if_then_else(
                    joined > -T.infinity("float32"),
                    warps.rcp_approx(warps.exp2(attn_sink[head] * LOG2_E - joined) + 1.0), 0.0
                )
                warps.store_pair(
                    out[row, head, thread * 4 + 0], merged[column * 4] * scale,
                    merged[column * 4 + 1] * scale
                )
                warps.store_pair(
                    out[row, head, thread * 4 + 2], merged[column * 4 + 2] * scale,
                    merged[column * 4 + 2 + 1] * scale
                )
                if thread == 0:
                    lse[row, head] = T.if_then_else(
                        joined > -T.infinity("float32"), joined * lse_scale, empty_lse
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
def copy_rows(target, target_slot, cache, first, low, high, n, thread):
    """Start the copies of `columns` columns of a tile's rows, from `first` on; zeros if an id names no
    row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    row = T.truncdiv(thread, 8)
    token = warps.shuffle(low, T.truncmod(row, 32))
    for c in T.unroll(UNIT // 64):
        warps.copy_row16(
            target[target_slot, row, (c * 8 + T.truncmod(thread, 8)) * 8], cache,
            first + T.truncmod(thread, 8) * 8, token, c * 64, n
        )
    row = T.truncdiv(thread, 8) + 16
    token = warps.shuffle(low, T.truncmod(row, 32))
    for c in T.unroll(UNIT // 64):
        warps.copy_row16(
            target[target_slot, row, (c * 8 + T.truncmod(thread, 8)) * 8], cache,
            first + T.truncmod(thread, 8) * 8, token, c * 64, n
        )
    row = T.truncdiv(thread, 8) + 32
    token = warps.shuffle(high, T.truncmod(row, 32))
    for c in T.unroll(UNIT // 64):
        warps.copy_row16(
            target[target_slot, row, (c * 8 + T.truncmod(thread, 8)) * 8], cache,
            first + T.truncmod(thread, 8) * 8, token, c * 64, n
        )
    row = T.truncdiv(thread, 8) + 48
    token = warps.shuffle(high, T.truncmod(row, 32))
    for c in T.unroll(UNIT // 64):
        warps.copy_row16(
            target[target_slot, row, (c * 8 + T.truncmod(thread, 8)) * 8], cache,
            first + T.truncmod(thread, 8) * 8, token, c * 64, n
        )


@T.macro
def softmax(
    q_rows, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale,
    empty_lse, has_lengths, cached, share, reach, span, row_step, t, topk, splits, q_s, p_s, red_s, stat_s,
    o_t, s_t, q_full, q_empty, s_full, s_empty, p_full, p_empty, o_full, cta, head0, done: T.Ref, it: T.Ref,
    low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref, live: T.Ref, thread, lane
):
    """Queries, online softmax, lazy rescale, epilogue, merge."""
    scores = T.alloc_local((HEAD_BLOCK // 2,), "float32")
    sums = T.alloc_local((HEAD_BLOCK // 4,), "float32")
    top = T.alloc_local((HEAD_BLOCK // 4,), "float32")
    peak = T.alloc_local((HEAD_BLOCK // 4,), "float32")
    held = T.alloc_local((16,), "float32")
    worker = thread
    unit = T.alloc_var("int32", init=cta // (HEADS // HEAD_BLOCK) * share)
    end = cta // (HEADS // HEAD_BLOCK) * share + reach
    while unit < end:
        row = T.truncdiv(unit, span)
        first = unit - row * span
        turns = T.min(end - unit, scalars.ceildiv(topk, TILE) - first)
        if (row < t) & (turns > 0):
            counted = T.alloc_var("int32", init=topk)
            if has_lengths != 0:
                counted = T.max(T.min(topk_length[row], topk), 0)
            stop = T.min((first + turns) * TILE, counted)
            read_ids(low, high, indices, row, first, stop, lane)
            if done == 0:
                T.mbarrier_wait_parity(q_empty[0], (0 & 1) ^ 1)
                copy_block(q_s, 0, q_rows, row, head0, worker)
                T.cp_async_barrier_noinc(q_full[0])
            begin = T.alloc_var("int32", init=it)
            T.fill(sums, 0.0)
            T.fill(peak, -T.infinity("float32"))
            grown = T.alloc_var("bool", init=False)
            for turn in T.serial(turns):
                vote(in_low, in_high, live, low, high, cached)
                read_ids(low, high, indices, row, first + (turn + 1), stop, lane)
                if live:
                    T.mbarrier_wait_parity(s_full[it % 2], (it // 2) & 1)
                    T.tcgen05_after_thread_sync()
                    # What a thread has of an accumulator of 64 rows, as wgmma leaves it, from tensor memory;
                    # waited for at the release.
                    fragment.read_accumulator(scores, s_t, it % 2, worker)
                    T.call_extern("handle", "tl::fence_view_async_tmem_load")
                    T.tcgen05_before_thread_sync()
                    T.mbarrier_arrive(s_empty[it % 2])
                    mask_scores(scores, in_low, in_high, sm_scale, worker)
                    leave_maxima(red_s, it % 2, scores, worker)
                    T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                    take_maxima(grown, top, peak, red_s, it % 2, worker)
                    if grown:
                        raise_reference(peak, top, sums, stat_s, worker)
                        T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                        if it > begin:
                            T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                            T.tcgen05_after_thread_sync()
                            rescale_output(o_t, 0, held, stat_s, worker)
                            # o: p also gives its slot back
                    T.mbarrier_wait_parity(p_empty[0], (it & 1) ^ 1)
                    weigh_tokens(scores, sums, peak)
                    store_weights(p_s, 0, scores, worker)
                    # If O was not rescaled, wait for it here: a parity tells only adjacent phases apart.
                    if (it > begin) & (grown == False):
                        T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                        T.tcgen05_after_thread_sync()
                        # o: p also gives its slot back
                    T.fence_proxy_async()
                    T.call_extern("handle", "tl::fence_view_async_tmem_load")
                    T.call_extern("handle", "tl::fence_view_async_tmem_store")
                    T.tcgen05_before_thread_sync()
                    T.mbarrier_arrive(p_full[0])
                    it = it + 1
            if ((row + row_step) * span < end) & (row + row_step < t):
                T.mbarrier_wait_parity(q_empty[0], ((done + 1) & 1) ^ 1)
                copy_block(q_s, 0, q_rows, row + row_step, head0, worker)
                T.cp_async_barrier_noinc(q_full[0])
            leave_sums(red_s, it % 2, sums, worker)
            T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
            if it > begin:
                T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                T.tcgen05_after_thread_sync()
            from_cta = T.truncdiv(row * span, share)
            parts = T.truncdiv(row * span + scalars.ceildiv(topk, TILE) - 1, share) - from_cta + 1
            if parts > 1:
                finish_columns_split(
                    red_s, it % 2, lse_partial, row, head0,
                    scalars.anew(cta // (HEADS // HEAD_BLOCK) - from_cta), top, peak, stat_s, worker
                )
                T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                write_output_split(
                    o_partial, o_t, 0, row, head0, scalars.anew(cta // (HEADS // HEAD_BLOCK) - from_cta),
                    it > begin, held, stat_s, worker
                )
                T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                grid.count_in(arrivals, row * (HEADS // HEAD_BLOCK) + cta % (HEADS // HEAD_BLOCK), worker)
            else:
                finish_columns(
                    red_s, it % 2, lse, row, head0, top, peak, stat_s, attn_sink, lse_scale, empty_lse,
                    worker
                )
                T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                write_output(out, o_t, 0, row, head0, it > begin, held, stat_s, worker)
            if it > begin:
                # o: p also gives its slot back
                pass
            done = done + 1
        unit = (row + row_step) * span
    if splits > 1:
        unit = cta // (HEADS // HEAD_BLOCK) * share
        while unit < end:
            row = T.truncdiv(unit, span)
            from_cta = T.truncdiv(row * span, share)
            parts = T.truncdiv(row * span + scalars.ceildiv(topk, TILE) - 1, share) - from_cta + 1
            if (row < t) & (unit - row * span < scalars.ceildiv(topk, TILE)) & (parts > 1):
                grid.await_count(
                    arrivals, row * (HEADS // HEAD_BLOCK) + cta % (HEADS // HEAD_BLOCK), parts, worker
                )
                T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                merge_heads(
                    row, head0, cta // (HEADS // HEAD_BLOCK) - from_cta, parts, o_partial, lse_partial,
                    attn_sink, out, lse, lse_scale, empty_lse, parts, worker
                )
                grid.count_out(
                    arrivals, row * (HEADS // HEAD_BLOCK) + cta % (HEADS // HEAD_BLOCK), parts, worker
                )
            unit = row * span + span


@T.macro
def producer(
    ckv, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap, share, reach, span,
    row_step, t, n, topk, kv_s, kv_full, kv_empty, cta, done: T.Ref, it: T.Ref, low: T.Ref, high: T.Ref,
    in_low: T.Ref, in_high: T.Ref, live: T.Ref, thread, lane
):
    """Selected rows into the rings."""
    worker = thread - 128
    unit = T.alloc_var("int32", init=cta // (HEADS // HEAD_BLOCK) * share)
    end = cta // (HEADS // HEAD_BLOCK) * share + reach
    while unit < end:
        row = T.truncdiv(unit, span)
        first = unit - row * span
        turns = T.min(end - unit, scalars.ceildiv(topk, TILE) - first)
        if (row < t) & (turns > 0):
            counted = T.alloc_var("int32", init=topk)
            if has_lengths != 0:
                counted = T.max(T.min(topk_length[row], topk), 0)
            stop = T.min((first + turns) * TILE, counted)
            read_ids(low, high, indices, row, first, stop, lane)
            for turn in T.serial(turns):
                vote(in_low, in_high, live, low, high, cached)
                now_low = T.alloc_var("int32", init=0)
                now_high = T.alloc_var("int32", init=0)
                find_rows(now_low, now_high, low, high, cached, page_inverse, page_shift, page_gap)
                read_ids(low, high, indices, row, first + (turn + 1), stop, lane)
                if live:
                    for c in T.serial(UNITS):
                        T.mbarrier_wait_parity(
                            kv_empty[(it * UNITS + c) % UNIT_STAGES],
                            (((it * UNITS + c) // UNIT_STAGES) & 1) ^ 1
                        )
                        copy_rows(
                            kv_s, (it * UNITS + c) % UNIT_STAGES, ckv, c * UNIT, now_low, now_high, n, worker
                        )
                        T.cp_async_barrier_noinc(kv_full[(it * UNITS + c) % UNIT_STAGES])
                    it = it + 1
            done = done + 1
        unit = (row + row_step) * span


@T.macro
def mma(
    indices, topk_length, has_lengths, cached, share, reach, span, row_step, t, topk, q_s, kv_s, p_s, o_t,
    s_t, q_full, q_empty, kv_full, kv_empty, s_full, s_empty, p_full, p_empty, o_full, cta, done: T.Ref,
    it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref, live: T.Ref, lane
):
    """Issues every tcgen05.mma and commit."""
    unit = T.alloc_var("int32", init=cta // (HEADS // HEAD_BLOCK) * share)
    end = cta // (HEADS // HEAD_BLOCK) * share + reach
    while unit < end:
        row = T.truncdiv(unit, span)
        first = unit - row * span
        turns = T.min(end - unit, scalars.ceildiv(topk, TILE) - first)
        if (row < t) & (turns > 0):
            counted = T.alloc_var("int32", init=topk)
            if has_lengths != 0:
                counted = T.max(T.min(topk_length[row], topk), 0)
            stop = T.min((first + turns) * TILE, counted)
            read_ids(low, high, indices, row, first, stop, lane)
            T.mbarrier_wait_parity(q_full[0], done & 1)
            T.fence_proxy_async()
            T.tcgen05_after_thread_sync()
            begin = T.alloc_var("int32", init=it)
            for turn in T.serial(turns + 1):
                vote(in_low, in_high, live, low, high, cached)
                read_ids(low, high, indices, row, first + (turn + 1), stop, lane)
                late = it > begin
                before = it - 1
                if live:
                    T.mbarrier_wait_parity(s_empty[it % 2], ((it // 2) & 1) ^ 1)
                    T.tcgen05_after_thread_sync()
                    for c in T.serial(UNITS):
                        T.mbarrier_wait_parity(
                            kv_full[(it * UNITS + c) % UNIT_STAGES], ((it * UNITS + c) // UNIT_STAGES) & 1
                        )
                        T.fence_proxy_async()
                        T.tcgen05_after_thread_sync()
                        # S^T += K Q^T, a unit of the dims
                        tcgen05.multiply_m64(
                            kv_s, (it * UNITS + c) % UNIT_STAGES, 0, q_s, 0, c * UNIT, s_t, it % 2,
                            HEAD_BLOCK, UNIT, (c > 0) == False
                        )
                    T.tcgen05_mma_arrive(s_full[it % 2])
                    it = it + 1
                if turn == turns:
                    T.tcgen05_mma_arrive(q_empty[0])
                # A tile's values come after the next tile's scores, so softmax never idles.
                if late & (live | (turn == turns)):
                    T.mbarrier_wait_parity(p_full[0], before & 1)
                    T.tcgen05_after_thread_sync()
                    # o: p also gives its slot back
                    for c in T.serial(UNITS):
                        # O^T += K^T P^T, a unit of the dims
                        T.tcgen05_gemm(
                            kv_s[(before * UNITS + c) % UNIT_STAGES, :, :], p_s[0, :, :],
                            o_t[0, :, c * HEAD_BLOCK : c * HEAD_BLOCK + HEAD_BLOCK], transpose_A=True,
                            clear_accum=(before > begin) == False, mbar=None
                        )
                        T.tcgen05_mma_arrive(kv_empty[(before * UNITS + c) % UNIT_STAGES])
                    T.tcgen05_mma_arrive(p_empty[0])
                    T.tcgen05_mma_arrive(o_full[0])
            done = done + 1
        unit = (row + row_step) * span


def program():
    t = T.dynamic("t")
    q_rows_stride_t = T.dynamic("q_rows_stride_t")
    q_rows_stride_h = T.dynamic("q_rows_stride_h")
    n = T.dynamic("n")
    ckv_stride = T.dynamic("ckv_stride")
    topk = T.dynamic("topk")
    indices_stride = T.dynamic("indices_stride")
    out_stride_t = T.dynamic("out_stride_t")
    out_stride_h = T.dynamic("out_stride_h")
    lse_stride = T.dynamic("lse_stride")
    splits = T.dynamic("splits")
    counters = T.dynamic("counters")

    @T.prim_func
    def sparse_mla__tilelang_sm100a__h128_nope_bt64_cl1_cp_async(
        q_rows: T.StridedTensor((t, 128, 512), (q_rows_stride_t, q_rows_stride_h, 1), "bfloat16"),
        ckv: T.StridedTensor((n, 512), (ckv_stride, 1), "bfloat16"),
        indices: T.StridedTensor((t, topk), (indices_stride, 1), "int32"),
        topk_length: T.Tensor((t,), "int32"),
        attn_sink: T.Tensor((128,), "float32"),
        out: T.StridedTensor((t, 128, 512), (out_stride_t, out_stride_h, 1), "bfloat16"),
        lse: T.StridedTensor((t, 128), (lse_stride, 1), "float32"),
        o_partial: T.Tensor((t, splits, 128, 512), "float32"),
        lse_partial: T.Tensor((t, splits, 128), "float32"),
        arrivals: T.Tensor((counters,), "int32"),
        sm_scale: T.float32,
        lse_scale: T.float32,
        empty_lse: T.float32,
        has_lengths: T.int32,
        cached: T.int32,
        page_inverse: T.int32,
        page_shift: T.int32,
        page_gap: T.int32,
        ctas: T.int32,
        share: T.int32,
        reach: T.int32,
        span: T.int32,
        row_step: T.int32,
    ):
        with T.Kernel(ctas * 2, threads=288) as cta:
            T.import_source(leaf_sm100.SOURCE + warps.SOURCE + scalars.SOURCE + fragment.SOURCE)
            q_s = T.alloc_shared((1, HEAD_BLOCK, LATENT_DIM), "bfloat16")
            kv_s = T.alloc_shared((UNIT_STAGES, TILE, UNIT), "bfloat16")
            p_s = T.alloc_shared((TILE_STAGES, TILE, HEAD_BLOCK), "bfloat16")
            red_s = T.alloc_shared((2, HEAD_BLOCK, 4), "float32")
            stat_s = T.alloc_shared((HEAD_BLOCK,), "float32")
            o_t = T.alloc_tmem((1, UNIT, UNITS * HEAD_BLOCK), "float32")
            s_t = T.alloc_tmem((128, 4 * HEAD_BLOCK), "float32")
            T.annotate_layout({b: make_full_bank_swizzled_layout(b) for b in (kv_s, q_s)})
            q_full = T.alloc_barrier([128])
            q_empty = T.alloc_barrier([1])
            kv_full = T.alloc_barrier([128] * UNIT_STAGES)
            kv_empty = T.alloc_barrier([1] * UNIT_STAGES)
            s_full = T.alloc_barrier([1] * 2)
            s_empty = T.alloc_barrier([128] * 2)
            p_full = T.alloc_barrier([128])
            p_empty = T.alloc_barrier([1])
            o_full = T.alloc_barrier([1])

            thread = T.get_thread_binding()
            lane = thread % 32
            head0 = cta % (HEADS // HEAD_BLOCK) * HEAD_BLOCK
            done = T.alloc_var("int32", init=0)
            it = T.alloc_var("int32", init=0)
            low = T.alloc_var("int32", init=0)
            high = T.alloc_var("int32", init=0)
            in_low = T.alloc_var("int32", init=0)
            in_high = T.alloc_var("int32", init=0)
            live = T.alloc_var("bool", init=False)
            # A launch of TileLang starts when the kernel before it has ended.
            if thread < 128:
                softmax(
                    q_rows, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals,
                    sm_scale, lse_scale, empty_lse, has_lengths, cached, share, reach, span, row_step, t,
                    topk, splits, q_s, p_s, red_s, stat_s, o_t, s_t, q_full, q_empty, s_full, s_empty, p_full,
                    p_empty, o_full, cta, head0, done, it, low, high, in_low, in_high, live, thread, lane
                )
            elif thread < 256:
                producer(
                    ckv, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap, share,
                    reach, span, row_step, t, n, topk, kv_s, kv_full, kv_empty, cta, done, it, low, high,
                    in_low, in_high, live, thread, lane
                )
            else:
                mma(
                    indices, topk_length, has_lengths, cached, share, reach, span, row_step, t, topk, q_s,
                    kv_s, p_s, o_t, s_t, q_full, q_empty, kv_full, kv_empty, s_full, s_empty, p_full, p_empty,
                    o_full, cta, done, it, low, high, in_low, in_high, live, lane
                )
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return sparse_mla__tilelang_sm100a__h128_nope_bt64_cl1_cp_async
