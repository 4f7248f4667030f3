"""sparse_mla__tilelang_sm100a__h64_bf16_bt64_cl1_hb64_gather4

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: heads=64, kv=bf16, tile=64, cluster=1, block=64, gather=gather4.

  front         back          mma           softmax
  warp 4        warp 5        warp 6        warps 0..3
  |             |             |<==== qt ====|   q_t_0 q_t_1 q_t_2 q_t_3 q_t_4 q_t_5 q_t_6; tmem -> tcgen05
  |             |             |<==== qs ====|   q_s; threads -> tcgen05
  |========== front =========>|             |   front_s, ring of 6; bulk -> tcgen05
  |             |==== back ==>|             |   back_s, ring of 6; bulk -> tcgen05
  |             |===== pe ===>|             |   pe_s; bulk -> tcgen05
  |             |             |===== s ====>|   s_t; tcgen05 -> tmem
  |             |             |<==== p =====|   p_s; threads -> tcgen05
  |             |             |===== o ====>|   o_t; tcgen05 -> tmem

roles
  softmax    threads 0..127  queries, online softmax, lazy rescale, epilogue, merge
  front      threads 128..159  the first half of the latent dims of selected rows
  back       threads 160..191  the other half, and the rope dims
  mma        threads 192..223  issues every tcgen05.mma and commit
buffers
  q_s        64x128 bfloat16, shared, 128-byte swizzle
  front_s    6 stages of 64x128 bfloat16, shared, 128-byte swizzle
  back_s     6 stages of 64x128 bfloat16, shared, 128-byte swizzle
  pe_s       64x64 bfloat16, shared, 128-byte swizzle
  p_s        64x64 bfloat16, shared, 128-byte swizzle
  red_s      2 stages of 128 float32, shared
  o_t        128x256 float32, tensor memory
  s_t        128x32 float32, tensor memory
  q_t_0      128x64 bfloat16, tensor memory
  q_t_1      128x64 bfloat16, tensor memory
  q_t_2      128x64 bfloat16, tensor memory
  q_t_3      128x64 bfloat16, tensor memory
  q_t_4      128x64 bfloat16, tensor memory
  q_t_5      128x64 bfloat16, tensor memory
  q_t_6      128x64 bfloat16, tensor memory
  scores     128x32 float32, registers of softmax
  weights    128x32 bfloat16, registers of softmax
  panel_0    128x64 bfloat16, registers of softmax
  panel_1    128x64 bfloat16, registers of softmax
  panel_2    128x64 bfloat16, registers of softmax
  panel_3    128x64 bfloat16, registers of softmax
  panel_4    128x64 bfloat16, registers of softmax
  latent     128x32 bfloat16, registers of softmax
  rope       128x32 bfloat16, registers of softmax
  peak       128x1 float32, registers of softmax
  sums       128x1 float32, registers of softmax
  factor     128x1 float32, registers of softmax
  rows_front 32x64 int32, registers of front
  rows_back  32x64 int32, registers of back
pipelines
  qt: softmax (tmem) ==[q_t_0 q_t_1 q_t_2 q_t_3 q_t_4 q_t_5 q_t_6: 1-slot ring]==> mma (tcgen05)
    full  x4: softmax wait::st, fence before, one lane a warp, arrive full
      mma: wait full, fence after
    empty x1: softmax wait empty, fence after
      mma: commit -> empty
  qs: softmax (threads) ==[q_s: 1-slot ring]==> mma (tcgen05)
    full  x4: softmax fence.proxy.async, one lane a warp, arrive full
      mma: wait full, fence after
    empty x1: softmax wait empty
      mma: commit -> empty
  front: front (bulk) ==[front_s: 6-slot ring]==> mma (tcgen05)
    full  x1, 16384 bytes: front arrive + expect bytes
      mma: wait full, fence after
    empty x1: front wait empty
      mma: commit -> empty
  back: back (bulk) ==[back_s: 6-slot ring]==> mma (tcgen05)
    full  x1, 16384 bytes: back arrive + expect bytes
      mma: wait full, fence after
    empty x1: back wait empty
      mma: commit -> empty
  pe: back (bulk) ==[pe_s: 1-slot ring]==> mma (tcgen05)
    full  x1, 8192 bytes: back arrive + expect bytes
      mma: wait full, fence after
    empty x1: back wait empty
      mma: commit -> empty
  s: mma (tcgen05) ==[s_t: 1-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
    empty x4: mma wait empty, fence after
      softmax: wait::ld, fence before, one lane a warp, arrive empty
  p: softmax (threads) ==[p_s: 1-slot ring]==> mma (tcgen05)
    full  x4: softmax fence.proxy.async, wait::ld, wait::st, fence before, one lane a warp, arrive full
      mma: wait full, fence after
    empty x1: softmax wait empty
      mma: commit -> empty
  o: mma (tcgen05) ==[o_t: 1-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
  named barrier softmax: softmax
totals: 224 threads, 230680 of 232448 bytes of shared memory, 512 of 512 tensor-memory columns, grid (ctas)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout

from dsl_kernels.device.tilelang import bulk, fragment, grid, scalars, tcgen05, vectors, warps
from dsl_kernels.kernels.sparse_mla import tilelang_sm100 as leaf_sm100

PASS_CONFIGS = leaf_sm100.PASS_CONFIGS
# Where it is not zero, all CTAs run at once.
RESIDENT = "splits - 1"

TILE = 64  # tokens per tile
SIDE_STAGES = 6
HALF = 64
PANEL = 64
OWN_COLUMNS = 256
LOG2_E = 1.4426950408889634
SOFTMAX_BARRIER = 1
SOFTMAX_THREADS = 128
OWN_DIMS = 256
UNIT_COLUMNS = 64
UNITS = 4
UNIT = 128
ROPE_DIM = 64


@T.macro
def read_ids(low: T.Ref, high: T.Ref, indices, row, tile, end, lane):
    """Read ids `lane` and `lane` + 32 of a tile of a query; -1 replaces the ids from number `end` on."""
    first = tile * 64 + lane
    low = warps.load_or(indices[row, first], first < end, -1)
    high = warps.load_or(indices[row, (first + 32)], first + 32 < end, -1)


@T.macro
def take_panel_first_0(panel, q, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = T.truncmod(thread, HALF)
    for i in T.unroll(PANEL // 8):
        vectors.load_halves(panel, i * 8, q[row, head, (i) * 8])


@T.macro
def take_panel_first_64(panel, q, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = T.truncmod(thread, HALF)
    for i in T.unroll(PANEL // 8):
        vectors.load_halves(panel, i * 8, q[row, head, PANEL + (i) * 8])


@T.macro
def take_panel_first_128(panel, q, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = T.truncmod(thread, HALF)
    for i in T.unroll(PANEL // 8):
        vectors.load_halves(panel, i * 8, q[row, head, 2 * PANEL + (i) * 8])


@T.macro
def take_panel_first_192(panel, q, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = T.truncmod(thread, HALF)
    for i in T.unroll(PANEL // 8):
        vectors.load_halves(panel, i * 8, q[row, head, 3 * PANEL + (i) * 8])


@T.macro
def take_panel_first_256(panel, q, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = T.truncmod(thread, HALF)
    for i in T.unroll(PANEL // 8):
        vectors.load_halves(panel, i * 8, q[row, head, 4 * PANEL + (i) * 8])


@T.macro
def take_panel_first_320(panel, q, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = T.truncmod(thread, HALF)
    for i in T.unroll(PANEL // 8):
        vectors.load_halves(panel, i * 8, q[row, head, 5 * PANEL + (i) * 8])


@T.macro
def take_panel_first_384(panel, q, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = T.truncmod(thread, HALF)
    for i in T.unroll(PANEL // 8):
        vectors.load_halves(panel, i * 8, q[row, head, 6 * PANEL + (i) * 8])


@T.macro
def take_last_queries(latent, rope, q_nope, q_pe, row, thread):
    """Read a thread's part of the latent dims from `first` on, and of the rope dims, of all heads."""
    own = scalars.anew(thread)
    for i in T.unroll(PANEL // 2 // 8):
        item = i * 128 + own
        vectors.load_halves(
            latent, i * 8,
            q_nope[
                row, T.truncdiv(item, PANEL // 2 * 128 // HALF // 8),
                7 * PANEL + (T.truncmod(item, PANEL // 2 * 128 // HALF // 8)) * 8
            ]
        )
    own = scalars.anew(thread)
    for i in T.unroll(PANEL // 2 // 8):
        item = i * 128 + own
        vectors.load_halves(
            rope, i * 8,
            q_pe[
                row, T.truncdiv(item, PANEL // 2 * 128 // HALF // 8),
                (T.truncmod(item, PANEL // 2 * 128 // HALF // 8)) * 8
            ]
        )


@T.macro
def leave_queries(target, target_slot, latent, rope, thread):
    """Store what `take_last_queries` read of all heads in shared memory: latent dims, then rope dims."""
    for i in T.unroll(PANEL // 2 // 8):
        item = i * 128 + thread
        for part in T.vectorized(8):
            target[
                target_slot, T.truncdiv(item, PANEL // 2 * 128 // HALF // 8),
                T.truncmod(item, PANEL // 2 * 128 // HALF // 8) * 8 + part
            ] = latent[i * 8 + part]
    for i in T.unroll(PANEL // 2 // 8):
        item = i * 128 + thread
        for part in T.vectorized(8):
            target[
                target_slot, T.truncdiv(item, PANEL // 2 * 128 // HALF // 8),
                PANEL // 2 * 128 // HALF + T.truncmod(item, PANEL // 2 * 128 // HALF // 8) * 8 + part
            ] = rope[i * 8 + part]


@T.macro
def vote(in_low: T.Ref, in_high: T.Ref, live: T.Ref, low, high, cached):
    """The valid ids of a tile as two words of bits, and whether any id is valid.

    Every warp of every role gets the same result.
    """
    in_low = warps.ballot((low >= 0) & (low < cached))
    in_high = warps.ballot((high >= 0) & (high < cached))
    live = in_low | in_high != 0


@T.macro
def mask_half(scores, low, high, sm_scale, thread):
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf."""
    scale = sm_scale * LOG2_E
    valid = T.if_then_else(thread < HALF, low, high)
    for pair in T.unroll(TILE // 2 // 2):
        fragment.scale_pair(scores, pair * 2, scale, 0.0)
    for i in T.unroll(TILE // 2):
        scores[i] = T.if_then_else(valid >> i & 1 != 0, scores[i], -T.infinity("float32"))


@T.macro
def leave_maximum(red, red_slot, scores, thread):
    """Leave the maximum of the thread's side for the head's other thread."""
    red[red_slot, thread] = fragment.row_most(scores)


@T.macro
def take_maximum(peak, sums, factor, red, red_slot, thread):
    """Raise the reference to the maximum of both sides, if a head of the warp rose enough.

    Enough is more than `rise` powers of two above the reference. Both threads of a head are in warps
    with the same heads, so both decide alike.
    """
    highest = T.max(red[red_slot, thread], red[red_slot, thread ^ HALF])
    factor[0] = 1.0
    if warps.any_lane(highest > peak[0] + 8.0):
        raised = T.max(highest, peak[0])
        factor[0] = warps.exp2(peak[0] - raised)
        sums[0] = sums[0] * factor[0]
        peak[0] = raised


@T.macro
def weigh_row(scores, sums, peak):
    """Replace S by P = exp2(S - reference), and add P to the running sum of the thread's side."""
    for pair in T.unroll(TILE // 2 // 2):
        fragment.scale_pair(scores, pair * 2, 1.0, peak[0])
    for i in T.unroll(TILE // 2):
        scores[i] = warps.exp2(scores[i])
    sums[0] = sums[0] + fragment.row_sum(scores)


@T.macro
def store_half(target, target_slot, weights, thread):
    """Store a thread's weights: those of half of its head's tokens."""
    for i in T.unroll(TILE // 2 // 8):
        for part in T.vectorized(8):
            target[
                target_slot, T.truncmod(thread, HALF), T.truncdiv(thread, HALF) * (TILE // 2) + i * 8 + part
            ] = weights[i * 8 + part]


@T.macro
def rescale_row(acc, acc_slot, held, factor, thread):
    """Multiply the thread's dims of O by its head's factor. A warp whose factors are all 1 leaves O alone."""
    if warps.any_lane(factor[0] != 1.0):
        for step in T.unroll(0, OWN_DIMS // (TILE // 2), 1, unroll_factor=1):
            fragment.load_columns(held, acc, acc_slot, step * (TILE // 2), thread)
            for pair in T.unroll(TILE // 2 // 2):
                fragment.scale_pair(held, pair * 2, factor[0], 0.0)
            fragment.store_columns(held, acc, acc_slot, step * (TILE // 2), thread)


@T.macro
def leave_sum(red, red_slot, sums, thread):
    """Leave the sum of the thread's side for the head's other thread."""
    red[red_slot, thread] = sums[0]


@T.macro
def finish_row_split(red, red_slot, lses, row, split, sums, peak, factor, thread):
    """Write the head's lse, and compute the factor that normalises its O.

    If the row is not split, the factor includes the sink.
    """
    total = sums[0] + red[red_slot, thread ^ HALF]
    lse2 = T.if_then_else(total > 0.0, warps.log2(total) + peak[0], -T.infinity("float32"))
    factor[0] = T.if_then_else(total > 0.0, warps.rcp_approx(total), 0.0)
    if thread < HALF:
        lses[row, split, thread] = lse2


@T.macro
def write_units_split(to, acc, acc_slot, row, split, some, held, factor, thread):
    """Write the thread's dims of O times its head's factor, into the row or into a split's part of the
    row.

    Without `some` live tile it writes zeros.
    """
    own = T.truncdiv(thread, HALF) * UNIT_COLUMNS
    for step in T.unroll(0, OWN_DIMS // (TILE // 2), 1, unroll_factor=1):
        first = T.truncdiv(
            step, UNIT_COLUMNS // (TILE // 2)
        ) * (2 * UNIT_COLUMNS) + T.truncmod(step, UNIT_COLUMNS // (TILE // 2)) * (TILE // 2)
        if some:
            fragment.load_columns(held, acc, acc_slot, step * (TILE // 2), thread)
        for i in T.unroll(TILE // 2):
            held[i] = T.if_then_else(some, held[i] * factor[0], 0.0)
        for i in T.unroll(TILE // 2 // 4):
            for part in T.vectorized(4):
                to[
                    row, split, T.truncmod(thread, HALF),
                    (T.truncdiv(own, 4) + T.truncdiv(first, 4) + i) * 4 + part
                ] = held[i * 4 + part]


@T.macro
def finish_row(red, red_slot, lses, row, sums, peak, factor, attn_sink, lse_scale, empty_lse, thread):
    """Write the head's lse, and compute the factor that normalises its O.

    If the row is not split, the factor includes the sink.
    """
    total = sums[0] + red[red_slot, thread ^ HALF]
    lse2 = T.if_then_else(total > 0.0, warps.log2(total) + peak[0], -T.infinity("float32"))
    factor[0] = T.if_then_else(total > 0.0, warps.rcp_approx(total), 0.0) * T.if_then_else(
        lse2 > -T.infinity("float32"),
        warps.rcp_approx(warps.exp2(attn_sink[T.truncmod(thread, HALF)] * LOG2_E - lse2) + 1.0), 0.0
    )
    if thread < HALF:
        lses[row, thread] = T.if_then_else(lse2 > -T.infinity("float32"), lse2 * lse_scale, empty_lse)


@T.macro
def write_units(to, acc, acc_slot, row, some, held, rounded, factor, thread):
    """Write the thread's dims of O times its head's factor, into the row or into a split's part of the
    row.

    Without `some` live tile it writes zeros.
    """
    own = T.truncdiv(thread, HALF) * UNIT_COLUMNS
    for step in T.unroll(0, OWN_DIMS // (TILE // 2), 1, unroll_factor=1):
        first = T.truncdiv(
            step, UNIT_COLUMNS // (TILE // 2)
        ) * (2 * UNIT_COLUMNS) + T.truncmod(step, UNIT_COLUMNS // (TILE // 2)) * (TILE // 2)
        if some:
            fragment.load_columns(held, acc, acc_slot, step * (TILE // 2), thread)
        for i in T.unroll(TILE // 2):
            held[i] = T.if_then_else(some, held[i] * factor[0], 0.0)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment.round_to(rounded, held)
        for i in T.unroll(TILE // 2 // 8):
            vectors.store_halves(
                rounded, i * 8, to[row, T.truncmod(thread, HALF), own + (T.truncdiv(first, 8) + i) * 8]
            )


@T.macro
def merge_heads(
    row, share, shares, o_partial, lse_partial, attn_sink, out, lse, lse_scale, empty_lse, parts, thread
):
    """Write the weighted sum of the splits for a share of the heads, with four dims per thread.

    Heads are joined `together` at a time. A row without ids gives 0 and `empty_lse`.
    """
    own = T.truncdiv(HALF - share + shares - 1, shares)
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
                            row, T.min(first + p, parts - 1), share + T.min(turn + column, own - 1) * shares
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
                            row, T.min(first + p, parts - 1), share + T.min(turn + u, own - 1) * shares,
                            (thread) * 4 + part
                        ]
                    for e in T.unroll(4):
                        merged[u * 4 + e] = merged[u * 4 + e] + four[e] * weights[
                            p * 4 + T.truncdiv(u * 4 + e, 4)
                        ]
        for column in T.unroll(4):
            if turn + column < own:
                head = share + T.min(turn + column, own - 1) * shares
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
def spread_ids(rows, low, high):
    """Give all ids of a tile to all lanes."""
    rows[0] = warps.shuffle(low, 0)
    rows[1] = warps.shuffle(low, 1)
    rows[2] = warps.shuffle(low, 2)
    rows[3] = warps.shuffle(low, 3)
    rows[4] = warps.shuffle(low, 4)
    rows[5] = warps.shuffle(low, 5)
    rows[6] = warps.shuffle(low, 6)
    rows[7] = warps.shuffle(low, 7)
    rows[8] = warps.shuffle(low, 8)
    rows[9] = warps.shuffle(low, 9)
    rows[10] = warps.shuffle(low, 10)
    rows[11] = warps.shuffle(low, 11)
    rows[12] = warps.shuffle(low, 12)
    rows[13] = warps.shuffle(low, 13)
    rows[14] = warps.shuffle(low, 14)
    rows[15] = warps.shuffle(low, 15)
    rows[16] = warps.shuffle(low, 16)
    rows[17] = warps.shuffle(low, 17)
    rows[18] = warps.shuffle(low, 18)
    rows[19] = warps.shuffle(low, 19)
    rows[20] = warps.shuffle(low, 20)
    rows[21] = warps.shuffle(low, 21)
    rows[22] = warps.shuffle(low, 22)
    rows[23] = warps.shuffle(low, 23)
    rows[24] = warps.shuffle(low, 24)
    rows[25] = warps.shuffle(low, 25)
    rows[26] = warps.shuffle(low, 26)
    rows[27] = warps.shuffle(low, 27)
    rows[28] = warps.shuffle(low, 28)
    rows[29] = warps.shuffle(low, 29)
    rows[30] = warps.shuffle(low, 30)
    rows[31] = warps.shuffle(low, 31)
    rows[32] = warps.shuffle(high, 0)
    rows[33] = warps.shuffle(high, 1)
    rows[34] = warps.shuffle(high, 2)
    rows[35] = warps.shuffle(high, 3)
    rows[36] = warps.shuffle(high, 4)
    rows[37] = warps.shuffle(high, 5)
    rows[38] = warps.shuffle(high, 6)
    rows[39] = warps.shuffle(high, 7)
    rows[40] = warps.shuffle(high, 8)
    rows[41] = warps.shuffle(high, 9)
    rows[42] = warps.shuffle(high, 10)
    rows[43] = warps.shuffle(high, 11)
    rows[44] = warps.shuffle(high, 12)
    rows[45] = warps.shuffle(high, 13)
    rows[46] = warps.shuffle(high, 14)
    rows[47] = warps.shuffle(high, 15)
    rows[48] = warps.shuffle(high, 16)
    rows[49] = warps.shuffle(high, 17)
    rows[50] = warps.shuffle(high, 18)
    rows[51] = warps.shuffle(high, 19)
    rows[52] = warps.shuffle(high, 20)
    rows[53] = warps.shuffle(high, 21)
    rows[54] = warps.shuffle(high, 22)
    rows[55] = warps.shuffle(high, 23)
    rows[56] = warps.shuffle(high, 24)
    rows[57] = warps.shuffle(high, 25)
    rows[58] = warps.shuffle(high, 26)
    rows[59] = warps.shuffle(high, 27)
    rows[60] = warps.shuffle(high, 28)
    rows[61] = warps.shuffle(high, 29)
    rows[62] = warps.shuffle(high, 30)
    rows[63] = warps.shuffle(high, 31)


@T.macro
def softmax(
    q_nope, q_pe, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale,
    lse_scale, empty_lse, has_lengths, cached, share, reach, span, row_step, t, topk, splits, q_s, p_s, red_s,
    o_t, s_t, q_t_0, q_t_1, q_t_2, q_t_3, q_t_4, q_t_5, q_t_6, qt_full, qt_empty, qs_full, qs_empty, s_full,
    s_empty, p_full, p_empty, o_full, cta, done: T.Ref, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref,
    in_high: T.Ref, live: T.Ref, thread, lane
):
    """Queries, online softmax, lazy rescale, epilogue, merge."""
    scores = T.alloc_local((TILE // 2,), "float32")
    weights = T.alloc_local((TILE // 2,), "bfloat16")
    panel_0 = T.alloc_local((PANEL,), "bfloat16")
    panel_1 = T.alloc_local((PANEL,), "bfloat16")
    panel_2 = T.alloc_local((PANEL,), "bfloat16")
    panel_3 = T.alloc_local((PANEL,), "bfloat16")
    panel_4 = T.alloc_local((PANEL,), "bfloat16")
    latent = T.alloc_local((PANEL // 2,), "bfloat16")
    rope = T.alloc_local((PANEL // 2,), "bfloat16")
    peak = T.alloc_local((1,), "float32")
    sums = T.alloc_local((1,), "float32")
    factor = T.alloc_local((1,), "float32")
    worker = thread
    unit = T.alloc_var("int32", init=cta * share)
    end = cta * share + reach
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
                T.mbarrier_wait_parity(qt_empty[0], (0 & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                take_panel_first_0(panel_0, q_nope, row, worker)
                take_panel_first_64(panel_1, q_nope, row, worker)
                take_panel_first_128(panel_2, q_nope, row, worker)
                take_panel_first_192(panel_3, q_nope, row, worker)
                take_panel_first_256(panel_4, q_nope, row, worker)
                # A 16-bit fragment, a row a thread, into tensor memory; its arrival is waited for at the
                # commit.
                fragment.write_tensor(q_t_0, 0, panel_0, worker)
                fragment.write_tensor(q_t_1, 0, panel_1, worker)
                fragment.write_tensor(q_t_2, 0, panel_2, worker)
                fragment.write_tensor(q_t_3, 0, panel_3, worker)
                fragment.write_tensor(q_t_4, 0, panel_4, worker)
                take_panel_first_320(panel_0, q_nope, row, worker)
                take_panel_first_384(panel_1, q_nope, row, worker)
                take_last_queries(latent, rope, q_nope, q_pe, row, worker)
                fragment.write_tensor(q_t_5, 0, panel_0, worker)
                fragment.write_tensor(q_t_6, 0, panel_1, worker)
                T.call_extern("handle", "tl::fence_view_async_tmem_store")
                T.tcgen05_before_thread_sync()
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(qt_full[0])
                T.mbarrier_wait_parity(qs_empty[0], (0 & 1) ^ 1)
                leave_queries(q_s, 0, latent, rope, worker)
                T.fence_proxy_async()
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(qs_full[0])
            begin = T.alloc_var("int32", init=it)
            T.fill(sums, 0.0)
            T.fill(peak, -T.infinity("float32"))
            for turn in T.serial(turns):
                vote(in_low, in_high, live, low, high, cached)
                read_ids(low, high, indices, row, first + (turn + 1), stop, lane)
                if live:
                    T.mbarrier_wait_parity(s_full[0], it & 1)
                    T.tcgen05_after_thread_sync()
                    # A fragment, a row a thread, from tensor memory; its arrival is waited for at the
                    # release.
                    fragment.read_tensor(scores, s_t, 0, worker)
                    T.call_extern("handle", "tl::fence_view_async_tmem_load")
                    T.tcgen05_before_thread_sync()
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(s_empty[0])
                    mask_half(scores, in_low, in_high, sm_scale, worker)
                    leave_maximum(red_s, it % 2, scores, worker)
                    T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                    take_maximum(peak, sums, factor, red_s, it % 2, worker)
                    weigh_row(scores, sums, peak)
                    # Every element in the dtype of the target, which the next product may take as its A.
                    fragment.round_to(weights, scores)
                    T.mbarrier_wait_parity(p_empty[0], (it & 1) ^ 1)
                    store_half(p_s, 0, weights, worker)
                    if it > begin:
                        T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                        T.tcgen05_after_thread_sync()
                        rescale_row(o_t, 0, scores, factor, worker)
                        # o: p also gives its slot back
                    T.fence_proxy_async()
                    T.call_extern("handle", "tl::fence_view_async_tmem_load")
                    T.call_extern("handle", "tl::fence_view_async_tmem_store")
                    T.tcgen05_before_thread_sync()
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(p_full[0])
                    it = it + 1
            if ((row + row_step) * span < end) & (row + row_step < t):
                T.mbarrier_wait_parity(qt_empty[0], ((done + 1) & 1) ^ 1)
                T.tcgen05_after_thread_sync()
                take_panel_first_0(panel_0, q_nope, row + row_step, worker)
                take_panel_first_64(panel_1, q_nope, row + row_step, worker)
                take_panel_first_128(panel_2, q_nope, row + row_step, worker)
                take_panel_first_192(panel_3, q_nope, row + row_step, worker)
                take_panel_first_256(panel_4, q_nope, row + row_step, worker)
                fragment.write_tensor(q_t_0, 0, panel_0, worker)
                fragment.write_tensor(q_t_1, 0, panel_1, worker)
                fragment.write_tensor(q_t_2, 0, panel_2, worker)
                fragment.write_tensor(q_t_3, 0, panel_3, worker)
                fragment.write_tensor(q_t_4, 0, panel_4, worker)
                take_panel_first_320(panel_0, q_nope, row + row_step, worker)
                take_panel_first_384(panel_1, q_nope, row + row_step, worker)
                take_last_queries(latent, rope, q_nope, q_pe, row + row_step, worker)
                fragment.write_tensor(q_t_5, 0, panel_0, worker)
                fragment.write_tensor(q_t_6, 0, panel_1, worker)
                T.call_extern("handle", "tl::fence_view_async_tmem_store")
                T.tcgen05_before_thread_sync()
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(qt_full[0])
                T.mbarrier_wait_parity(qs_empty[0], ((done + 1) & 1) ^ 1)
                leave_queries(q_s, 0, latent, rope, worker)
                T.fence_proxy_async()
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(qs_full[0])
            leave_sum(red_s, it % 2, sums, worker)
            T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
            if it > begin:
                T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                T.tcgen05_after_thread_sync()
            from_cta = T.truncdiv(row * span, share)
            parts = T.truncdiv(row * span + scalars.ceildiv(topk, TILE) - 1, share) - from_cta + 1
            if parts > 1:
                finish_row_split(red_s, it % 2, lse_partial, row, cta - from_cta, sums, peak, factor, worker)
                write_units_split(o_partial, o_t, 0, row, cta - from_cta, it > begin, scores, factor, worker)
                T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                grid.count_in(arrivals, row + cta % 1, worker)
            else:
                finish_row(
                    red_s, it % 2, lse, row, sums, peak, factor, attn_sink, lse_scale, empty_lse, worker
                )
                write_units(out, o_t, 0, row, it > begin, scores, weights, factor, worker)
            # All threads must read the sums before the next tile's maxima overwrite them.
            T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
            if it > begin:
                # o: p also gives its slot back
                pass
            done = done + 1
        unit = (row + row_step) * span
    if splits > 1:
        unit = cta * share
        while unit < end:
            row = T.truncdiv(unit, span)
            from_cta = T.truncdiv(row * span, share)
            parts = T.truncdiv(row * span + scalars.ceildiv(topk, TILE) - 1, share) - from_cta + 1
            if (row < t) & (unit - row * span < scalars.ceildiv(topk, TILE)) & (parts > 1):
                grid.await_count(arrivals, row + cta % 1, parts, worker)
                T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                merge_heads(
                    row, cta - from_cta, parts, o_partial, lse_partial, attn_sink, out, lse, lse_scale,
                    empty_lse, parts, worker
                )
                grid.count_out(arrivals, row + cta % 1, parts, worker)
            unit = row * span + span


@T.macro
def front(
    ckv, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap, share, reach, span,
    row_step, t, n, ckv_stride, topk, front_s, front_full, front_empty, cta, done: T.Ref, it: T.Ref,
    low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref, live: T.Ref, lane
):
    """The first half of the latent dims of selected rows."""
    rows_front = T.alloc_local((TILE,), "int32")
    unit = T.alloc_var("int32", init=cta * share)
    end = cta * share + reach
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
                    spread_ids(rows_front, now_low, now_high)
                    T.mbarrier_wait_parity(
                        front_empty[it * (UNITS // 2) % SIDE_STAGES],
                        ((it * (UNITS // 2) // SIDE_STAGES) & 1) ^ 1
                    )
                    bulk.load_rows(
                        bulk.row_map(ckv, 512, n, ckv_stride * 2), rows_front, 0, front_s,
                        it * (UNITS // 2) % SIDE_STAGES, front_full
                    )
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(front_full[it * (UNITS // 2) % SIDE_STAGES])
                    T.mbarrier_wait_parity(
                        front_empty[(it * (UNITS // 2) + 1) % SIDE_STAGES],
                        (((it * (UNITS // 2) + 1) // SIDE_STAGES) & 1) ^ 1
                    )
                    bulk.load_rows(
                        bulk.row_map(ckv, 512, n, ckv_stride * 2), rows_front, UNIT, front_s,
                        (it * (UNITS // 2) + 1) % SIDE_STAGES, front_full
                    )
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(front_full[(it * (UNITS // 2) + 1) % SIDE_STAGES])
                    it = it + 1
            done = done + 1
        unit = (row + row_step) * span


@T.macro
def back(
    ckv, kpe, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap, share, reach,
    span, row_step, t, n, ckv_stride, kpe_stride, topk, back_s, pe_s, back_full, back_empty, pe_full,
    pe_empty, cta, done: T.Ref, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref,
    live: T.Ref, lane
):
    """The other half, and the rope dims."""
    rows_back = T.alloc_local((TILE,), "int32")
    unit = T.alloc_var("int32", init=cta * share)
    end = cta * share + reach
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
                    spread_ids(rows_back, now_low, now_high)
                    T.mbarrier_wait_parity(
                        back_empty[it * (UNITS // 2) % SIDE_STAGES],
                        ((it * (UNITS // 2) // SIDE_STAGES) & 1) ^ 1
                    )
                    bulk.load_rows(
                        bulk.row_map(ckv, 512, n, ckv_stride * 2), rows_back, UNITS // 2 * UNIT, back_s,
                        it * (UNITS // 2) % SIDE_STAGES, back_full
                    )
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(back_full[it * (UNITS // 2) % SIDE_STAGES])
                    T.mbarrier_wait_parity(
                        back_empty[(it * (UNITS // 2) + 1) % SIDE_STAGES],
                        (((it * (UNITS // 2) + 1) // SIDE_STAGES) & 1) ^ 1
                    )
                    bulk.load_rows(
                        bulk.row_map(ckv, 512, n, ckv_stride * 2), rows_back, (UNITS // 2 + 1) * UNIT, back_s,
                        (it * (UNITS // 2) + 1) % SIDE_STAGES, back_full
                    )
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(back_full[(it * (UNITS // 2) + 1) % SIDE_STAGES])
                    T.mbarrier_wait_parity(pe_empty[0], (it & 1) ^ 1)
                    bulk.load_rows(bulk.row_map(kpe, 64, n, kpe_stride * 2), rows_back, 0, pe_s, 0, pe_full)
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(pe_full[0])
                    it = it + 1
            done = done + 1
        unit = (row + row_step) * span


@T.macro
def mma(
    indices, topk_length, has_lengths, cached, share, reach, span, row_step, t, topk, q_s, front_s, back_s,
    pe_s, p_s, o_t, s_t, q_t_0, q_t_1, q_t_2, q_t_3, q_t_4, q_t_5, q_t_6, qt_full, qt_empty, qs_full,
    qs_empty, front_full, front_empty, back_full, back_empty, pe_full, pe_empty, s_full, s_empty, p_full,
    p_empty, o_full, cta, done: T.Ref, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref,
    live: T.Ref, lane
):
    """Issues every tcgen05.mma and commit."""
    unit = T.alloc_var("int32", init=cta * share)
    end = cta * share + reach
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
            T.mbarrier_wait_parity(qt_full[0], done & 1)
            T.tcgen05_after_thread_sync()
            T.mbarrier_wait_parity(qs_full[0], done & 1)
            T.tcgen05_after_thread_sync()
            begin = T.alloc_var("int32", init=it)
            for turn in T.serial(turns + 1):
                vote(in_low, in_high, live, low, high, cached)
                read_ids(low, high, indices, row, first + (turn + 1), stop, lane)
                late = it > begin
                before = it - 1
                if live:
                    T.mbarrier_wait_parity(s_empty[0], (it & 1) ^ 1)
                    T.tcgen05_after_thread_sync()
                    use = it * (UNITS // 2)
                    T.mbarrier_wait_parity(front_full[use % SIDE_STAGES], (use // SIDE_STAGES) & 1)
                    T.tcgen05_after_thread_sync()
                    # S += Q K^T, a panel of the dims
                    tcgen05.multiply_described(
                        q_t_0, 0, 0, front_s, use % SIDE_STAGES, 0, s_t, 0, 0, HALF, TILE, PANEL, "bfloat16",
                        "float32", True, False, "k", True
                    )
                    use = it * (UNITS // 2)
                    # S += Q K^T, a panel of the dims
                    tcgen05.multiply_described(
                        q_t_1, 0, 0, front_s, use % SIDE_STAGES, PANEL, s_t, 0, 0, HALF, TILE, PANEL,
                        "bfloat16", "float32", True, False, "k", False
                    )
                    use = it * (UNITS // 2) + 1
                    T.mbarrier_wait_parity(front_full[use % SIDE_STAGES], (use // SIDE_STAGES) & 1)
                    T.tcgen05_after_thread_sync()
                    # S += Q K^T, a panel of the dims
                    tcgen05.multiply_described(
                        q_t_2, 0, 0, front_s, use % SIDE_STAGES, 0, s_t, 0, 0, HALF, TILE, PANEL, "bfloat16",
                        "float32", True, False, "k", False
                    )
                    use = it * (UNITS // 2) + 1
                    # S += Q K^T, a panel of the dims
                    tcgen05.multiply_described(
                        q_t_3, 0, 0, front_s, use % SIDE_STAGES, PANEL, s_t, 0, 0, HALF, TILE, PANEL,
                        "bfloat16", "float32", True, False, "k", False
                    )
                    use = it * (UNITS // 2)
                    T.mbarrier_wait_parity(back_full[use % SIDE_STAGES], (use // SIDE_STAGES) & 1)
                    T.tcgen05_after_thread_sync()
                    tcgen05.multiply_described(
                        q_t_4, 0, 0, back_s, use % SIDE_STAGES, 0, s_t, 0, 0, HALF, TILE, PANEL, "bfloat16",
                        "float32", True, False, "k", False
                    )
                    use = it * (UNITS // 2)
                    tcgen05.multiply_described(
                        q_t_5, 0, 0, back_s, use % SIDE_STAGES, PANEL, s_t, 0, 0, HALF, TILE, PANEL,
                        "bfloat16", "float32", True, False, "k", False
                    )
                    use = it * (UNITS // 2) + 1
                    T.mbarrier_wait_parity(back_full[use % SIDE_STAGES], (use // SIDE_STAGES) & 1)
                    T.tcgen05_after_thread_sync()
                    tcgen05.multiply_described(
                        q_t_6, 0, 0, back_s, use % SIDE_STAGES, 0, s_t, 0, 0, HALF, TILE, PANEL, "bfloat16",
                        "float32", True, False, "k", False
                    )
                    use = it * (UNITS // 2) + 1
                    # the last latent dims
                    tcgen05.multiply_described(
                        q_s, 0, 0, back_s, use % SIDE_STAGES, PANEL, s_t, 0, 0, HALF, TILE, PANEL, "bfloat16",
                        "float32", True, True, "k", False
                    )
                    T.mbarrier_wait_parity(pe_full[0], it & 1)
                    T.tcgen05_after_thread_sync()
                    # the rope dims
                    tcgen05.multiply_described(
                        q_s, 0, PANEL, pe_s, 0, 0, s_t, 0, 0, HALF, TILE, PANEL, "bfloat16", "float32", True,
                        True, "k", False
                    )
                    T.tcgen05_mma_arrive(pe_empty[0])
                    T.tcgen05_mma_arrive(s_full[0])
                    it = it + 1
                if turn == turns:
                    T.tcgen05_mma_arrive(qt_empty[0])
                    T.tcgen05_mma_arrive(qs_empty[0])
                if late & (live | (turn == turns)):
                    T.mbarrier_wait_parity(p_full[0], before & 1)
                    T.tcgen05_after_thread_sync()
                    # o: p also gives its slot back
                    # O += P V, a unit of the dims
                    tcgen05.multiply_described(
                        p_s, 0, 0, front_s, before * (UNITS // 2) % SIDE_STAGES, 0, o_t, 0, 0, HALF, UNIT,
                        TILE, "bfloat16", "float32", True, True, "mn", (before > begin) == False
                    )
                    T.tcgen05_mma_arrive(front_empty[before * (UNITS // 2) % SIDE_STAGES])
                    # O += P V, a unit of the dims
                    tcgen05.multiply_described(
                        p_s, 0, 0, front_s, (before * (UNITS // 2) + 1) % SIDE_STAGES, 0, o_t, 0,
                        UNIT_COLUMNS, HALF, UNIT, TILE, "bfloat16", "float32", True, True, "mn",
                        (before > begin) == False
                    )
                    T.tcgen05_mma_arrive(front_empty[(before * (UNITS // 2) + 1) % SIDE_STAGES])
                    # O += P V, a unit of the dims
                    tcgen05.multiply_described(
                        p_s, 0, 0, back_s, before * (UNITS // 2) % SIDE_STAGES, 0, o_t, 0, 2 * UNIT_COLUMNS,
                        HALF, UNIT, TILE, "bfloat16", "float32", True, True, "mn", (before > begin) == False
                    )
                    T.tcgen05_mma_arrive(back_empty[before * (UNITS // 2) % SIDE_STAGES])
                    # O += P V, a unit of the dims
                    tcgen05.multiply_described(
                        p_s, 0, 0, back_s, (before * (UNITS // 2) + 1) % SIDE_STAGES, 0, o_t, 0,
                        3 * UNIT_COLUMNS, HALF, UNIT, TILE, "bfloat16", "float32", True, True, "mn",
                        (before > begin) == False
                    )
                    T.tcgen05_mma_arrive(back_empty[(before * (UNITS // 2) + 1) % SIDE_STAGES])
                    T.tcgen05_mma_arrive(p_empty[0])
                    T.tcgen05_mma_arrive(o_full[0])
            done = done + 1
        unit = (row + row_step) * span


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
    def sparse_mla__tilelang_sm100a__h64_bf16_bt64_cl1_hb64_gather4(
        q_nope: T.StridedTensor((t, 64, 512), (q_nope_stride_t, q_nope_stride_h, 1), "bfloat16"),
        q_pe: T.StridedTensor((t, 64, 64), (q_pe_stride_t, q_pe_stride_h, 1), "bfloat16"),
        ckv: T.StridedTensor((n, 512), (ckv_stride, 1), "bfloat16"),
        kpe: T.StridedTensor((n, 64), (kpe_stride, 1), "bfloat16"),
        indices: T.StridedTensor((t, topk), (indices_stride, 1), "int32"),
        topk_length: T.Tensor((t,), "int32"),
        attn_sink: T.Tensor((64,), "float32"),
        out: T.StridedTensor((t, 64, 512), (out_stride_t, out_stride_h, 1), "bfloat16"),
        lse: T.StridedTensor((t, 64), (lse_stride, 1), "float32"),
        o_partial: T.Tensor((t, splits, 64, 512), "float32"),
        lse_partial: T.Tensor((t, splits, 64), "float32"),
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
        with T.Kernel(ctas, threads=224) as cta:
            T.import_source(
                leaf_sm100.SOURCE + warps.SOURCE + vectors.SOURCE + scalars.SOURCE + fragment.SOURCE
                + tcgen05.SOURCE
            )
            q_s = T.alloc_shared((1, HALF, 2 * PANEL), "bfloat16")
            front_s = T.alloc_shared((SIDE_STAGES, TILE, UNIT), "bfloat16")
            back_s = T.alloc_shared((SIDE_STAGES, TILE, UNIT), "bfloat16")
            pe_s = T.alloc_shared((1, TILE, ROPE_DIM), "bfloat16")
            p_s = T.alloc_shared((1, HALF, TILE), "bfloat16")
            red_s = T.alloc_shared((2, 2 * HALF), "float32")
            o_t = T.alloc_tmem((128, OWN_COLUMNS), "float32")
            s_t = T.alloc_tmem((128, TILE // 2), "float32")
            q_t_0 = T.alloc_tmem((128, PANEL), "bfloat16")
            q_t_1 = T.alloc_tmem((128, PANEL), "bfloat16")
            q_t_2 = T.alloc_tmem((128, PANEL), "bfloat16")
            q_t_3 = T.alloc_tmem((128, PANEL), "bfloat16")
            q_t_4 = T.alloc_tmem((128, PANEL), "bfloat16")
            q_t_5 = T.alloc_tmem((128, PANEL), "bfloat16")
            q_t_6 = T.alloc_tmem((128, PANEL), "bfloat16")
            T.annotate_layout(
                {b: make_full_bank_swizzled_layout(b) for b in (q_s, p_s, front_s, back_s, pe_s)}
            )
            qt_full = T.alloc_barrier([4])
            qt_empty = T.alloc_barrier([1])
            qs_full = T.alloc_barrier([4])
            qs_empty = T.alloc_barrier([1])
            front_full = T.alloc_barrier([1] * SIDE_STAGES)
            front_empty = T.alloc_barrier([1] * SIDE_STAGES)
            back_full = T.alloc_barrier([1] * SIDE_STAGES)
            back_empty = T.alloc_barrier([1] * SIDE_STAGES)
            pe_full = T.alloc_barrier([1])
            pe_empty = T.alloc_barrier([1])
            s_full = T.alloc_barrier([1])
            s_empty = T.alloc_barrier([4])
            p_full = T.alloc_barrier([4])
            p_empty = T.alloc_barrier([1])
            o_full = T.alloc_barrier([1])

            thread = T.get_thread_binding()
            lane = thread % 32
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
                    q_nope, q_pe, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals,
                    sm_scale, lse_scale, empty_lse, has_lengths, cached, share, reach, span, row_step, t,
                    topk, splits, q_s, p_s, red_s, o_t, s_t, q_t_0, q_t_1, q_t_2, q_t_3, q_t_4, q_t_5, q_t_6,
                    qt_full, qt_empty, qs_full, qs_empty, s_full, s_empty, p_full, p_empty, o_full, cta, done,
                    it, low, high, in_low, in_high, live, thread, lane
                )
            elif thread < 160:
                front(
                    ckv, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap, share,
                    reach, span, row_step, t, n, ckv_stride, topk, front_s, front_full, front_empty, cta,
                    done, it, low, high, in_low, in_high, live, lane
                )
            elif thread < 192:
                back(
                    ckv, kpe, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap,
                    share, reach, span, row_step, t, n, ckv_stride, kpe_stride, topk, back_s, pe_s, back_full,
                    back_empty, pe_full, pe_empty, cta, done, it, low, high, in_low, in_high, live, lane
                )
            else:
                mma(
                    indices, topk_length, has_lengths, cached, share, reach, span, row_step, t, topk, q_s,
                    front_s, back_s, pe_s, p_s, o_t, s_t, q_t_0, q_t_1, q_t_2, q_t_3, q_t_4, q_t_5, q_t_6,
                    qt_full, qt_empty, qs_full, qs_empty, front_full, front_empty, back_full, back_empty,
                    pe_full, pe_empty, s_full, s_empty, p_full, p_empty, o_full, cta, done, it, low, high,
                    in_low, in_high, live, lane
                )
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return sparse_mla__tilelang_sm100a__h64_bf16_bt64_cl1_hb64_gather4
