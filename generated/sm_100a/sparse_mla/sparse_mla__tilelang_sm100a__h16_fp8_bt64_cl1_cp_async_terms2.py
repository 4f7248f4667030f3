"""sparse_mla__tilelang_sm100a__h16_fp8_bt64_cl1_cp_async_terms2

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: heads=16, kv=fp8, tile=64, cluster=1, gather=cp_async, terms=2.

  producer     mma          softmax
  warps 4..7   warp 8       warps 0..3
  |            |<=== q =====|   q_s qpe_s; threads -> tcgen05
  |==== kv ===>|            |   kv_s pe_s scale_s, ring of 4; cp_async -> tcgen05
  |=========== kv =========>|   kv_s pe_s scale_s, ring of 4; cp_async -> threads
  |            |==== s ====>|   s_t r_t, ring of 2; tcgen05 -> tmem
  |            |<=== p =====|   p_s, ring of 2; threads -> tcgen05
  |            |==== o ====>|   o_t; tcgen05 -> tmem

roles
  softmax    threads 0..127  terms of the queries and of P, online softmax, epilogue, merge
  producer   threads 128..255  selected tokens into the ring
  mma        threads 256..287  issues every tcgen05.mma and commit
buffers
  q_s        32x512 float8_e4m3, shared, 128-byte swizzle
  qpe_s      16x64 bfloat16, shared, 128-byte swizzle
  unit_s     16x4 float32, shared
  kv_s       4 stages of 64x512 float8_e4m3, shared, 128-byte swizzle
  pe_s       4 stages of 64x64 bfloat16, shared, 128-byte swizzle
  scale_s    4 stages of 64x4 float32, shared
  p_s        2 stages of 64x128 float8_e4m3, shared, 32-byte swizzle
  red_s      2 stages of 16x4 float32, shared
  stat_s     20 float32, shared
  o_t        128x128 float32, tensor memory
  s_t        2 stages of 64x128 float32, tensor memory
  r_t        2 stages of 64x16 float32, tensor memory
  partial    128x64 float32, registers of softmax
  scores     128x8 float32, registers of softmax
  sums       128x4 float32, registers of softmax
  top        128x4 float32, registers of softmax
  peak       128x4 float32, registers of softmax
  held       128x32 float32, registers of softmax
  scales     128x8 float32, registers of softmax
  units      128x4 float32, registers of softmax
  lift       128x4 float32, registers of softmax
pipelines
  q: softmax (threads) ==[q_s qpe_s: 1-slot ring]==> mma (tcgen05)
    full  x4: softmax fence.proxy.async, one lane a warp, arrive full
      mma: wait full, fence after
    empty x1: softmax wait empty
      mma: commit -> empty
  kv: producer (cp_async) ==[kv_s pe_s scale_s: 4-slot ring]==> mma (tcgen05), softmax (threads)
    full  x128: producer hardware arrives per thread
      mma: wait full, fence.proxy.async, fence after
      softmax: wait full
    empty x5: producer wait empty
      mma: commit -> empty
      softmax: one lane a warp, arrive empty
  s: mma (tcgen05) ==[s_t r_t: 2-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
    empty x4: mma wait empty, fence after
      softmax: wait::ld, fence before, one lane a warp, arrive empty
  p: softmax (threads) ==[p_s: 2-slot ring]==> mma (tcgen05)
    full  x4: softmax fence.proxy.async, wait::ld, wait::st, fence before, one lane a warp, arrive full
      mma: wait full, fence after
    empty x1: softmax wait empty
      mma: commit -> empty
  o: mma (tcgen05) ==[o_t: 1-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
  named barrier softmax: softmax
totals: 288 threads, 203752 of 232448 bytes of shared memory, 416 of 512 tensor-memory columns, grid (ctas)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout, make_quarter_bank_swizzled_layout

from dsl_kernels.device.tilelang import floats, fragment, grid, scalars, tcgen05, tcgen05_bytes, terms, warps
from dsl_kernels.kernels.sparse_mla import tilelang_sm100 as leaf_sm100

PASS_CONFIGS = leaf_sm100.PASS_CONFIGS
# Where it is not zero, all CTAs run at once.
RESIDENT = "splits - 1"

HEADS = 16  # query heads
TILE = 64  # tokens per tile
TILES = 4
TILE_STAGES = 2
COLUMNS = 32
ROPE_DIM = 64
LATENT_DIM = 512
GROUPS = 4
SOFTMAX_BARRIER = 1
SOFTMAX_THREADS = 128
LOG2_E = 1.4426950408889634
GROUP = 128


@T.macro
def read_ids(low: T.Ref, high: T.Ref, indices, row, tile, end, lane):
    """Read ids `lane` and `lane` + 32 of a tile of a query; -1 replaces the ids from number `end` on."""
    first = tile * 64 + lane
    low = warps.load_or(indices[row, first], first < end, -1)
    high = warps.load_or(indices[row, (first + 32)], first + 32 < end, -1)


@T.macro
def split_queries(target, target_slot, units, rope, rope_slot, q, q_pe, row, thread):
    """Write a block of heads of one query: two terms of the latent dims with their units, the rope dims.

    Eight lanes have a group of a head. The target's padding becomes zero.
    """
    words = T.alloc_local((COLUMNS // 2 // 4 * 8,), "uint32")
    values = T.alloc_local((16,), "float32")
    beside = T.alloc_local((4,), "uint32")
    # All reads come before the first write: a compiler moves no read past a write.
    for i in T.unroll(COLUMNS // 2 // 4):
        item = i * 16 + T.truncdiv(thread, 8)
        warps.load_vector(
            words, i * 8, 4,
            q[row, T.truncdiv(item, 4), T.truncmod(item, 4) * 128 + T.truncmod(thread, 8) * 16],
            T.truncdiv(item, 4) < HEADS
        )
        warps.load_vector(
            words, i * 8 + 4, 4,
            q[row, T.truncdiv(item, 4), T.truncmod(item, 4) * 128 + (T.truncmod(thread, 8) * 16 + 8)],
            T.truncdiv(item, 4) < HEADS
        )
    warps.load_vector(
        beside, 0, 4, q_pe[row, T.truncdiv(thread, 8), T.truncmod(thread, 8) * 8],
        T.truncdiv(thread, 8) < HEADS
    )
    warps.store_vector(beside, 0, rope[rope_slot, T.truncdiv(thread, 8), T.truncmod(thread, 8) * 8])
    for i in T.unroll(COLUMNS // 2 // 4):
        item = i * 16 + T.truncdiv(thread, 8)
        most = T.alloc_var("float32", init=0.0)
        for w in T.unroll(8):
            values[2 * w] = scalars.float_of(words[i * 8 + w] << T.uint32(16))
            values[2 * w + 1] = scalars.float_of(words[i * 8 + w] & T.uint32(4294901760))
        for v in T.unroll(16):
            most = T.max(most, T.max(values[v], 0 - values[v]))
        unit = T.max(
            scalars.float_of(
                scalars.bits_of(floats.max_of_lanes(most, 8)) + T.uint32(8388607) & T.uint32(2139095040)
            ),
            7.888609052210118e-31
        )
        factor = scalars.float_of(T.uint32(2130706432) - scalars.bits_of(unit)) * 256.0
        for v in T.unroll(16):
            values[v] = values[v] * factor
        for quad in T.unroll(4):
            terms.store_terms(
                target[
                    target_slot, T.truncdiv(item, 4),
                    T.truncmod(item, 4) * 128 + T.truncmod(thread, 8) * 16 + quad * 4
                ],
                target[
                    target_slot, COLUMNS // 2 + T.truncdiv(item, 4),
                    T.truncmod(item, 4) * 128 + T.truncmod(thread, 8) * 16 + quad * 4
                ],
                values, quad * 4
            )
        if T.truncmod(thread, 8) == 0:
            units[T.truncdiv(item, 4), T.truncmod(item, 4)] = unit * 0.00390625


@T.macro
def vote(in_low: T.Ref, in_high: T.Ref, live: T.Ref, low, high, cached):
    """The valid ids of a tile as two words of bits, and whether any id is valid.

    Every warp of every role gets the same result.
    """
    in_low = warps.ballot((low >= 0) & (low < cached))
    in_high = warps.ballot((high >= 0) & (high < cached))
    live = in_low | in_high != 0


@T.macro
def take_scales(scales, units, lift, of_tile, of_tile_slot, thread, lane):
    """Read the scales of the thread's two tokens, and raise the units to those of the whole tile.

    `lift` is by what the sums of each group must be multiplied: 1 if its unit did not rise.
    """
    two = T.alloc_local((8,), "float32")
    for part in T.vectorized(4):
        scales[part] = of_tile[of_tile_slot, T.truncdiv(thread, 32) * 16 + T.truncdiv(lane, 4), 0 + part]
    for part in T.vectorized(4):
        two[part] = of_tile[of_tile_slot, lane, 0 + part]
    for part in T.vectorized(4):
        scales[4 + part] = of_tile[
            of_tile_slot, T.truncdiv(thread, 32) * 16 + T.truncdiv(lane, 4) + 8, 0 + part
        ]
    for part in T.vectorized(4):
        two[4 + part] = of_tile[of_tile_slot, 32 + lane, 0 + part]
    for g in T.unroll(4):
        most = T.max(T.max(two[g], 0 - two[g]), T.max(two[4 + g], 0 - two[4 + g]))
        unit = T.max(
            T.max(
                scalars.float_of(
                    warps.warp_most(scalars.bits_of(most)) + T.uint32(8388607) & T.uint32(2139095040)
                ),
                7.888609052210118e-31
            ),
            units[g]
        )
        lift[g] = units[g] * scalars.float_of(T.uint32(2130706432) - scalars.bits_of(unit))
        units[g] = unit


@T.macro
def find_risen(risen: T.Ref, lift):
    """Whether the unit of a group rose."""
    below = T.alloc_var("bool", init=False)
    for g in T.unroll(4):
        below = below | (lift[g] < 1.0)
    risen = warps.any_lane(below)


@T.macro
def join_partial_scores(scores, partial, scales, units, thread):
    """Add the partial scores of both terms of each group, scaled, to those of the rope dims."""
    four = T.alloc_local((4,), "float32")
    for column in T.unroll(HEADS // 2 // 2):
        for part in T.vectorized(4):
            four[part] = units[
                T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2), 0 + part
            ]
        scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2)
        ] = scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2)
        ] + (
            partial[
                T.truncdiv(column, 2) * 4 + T.truncmod(column, 2)
            ] + partial[HEADS // 2 + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2))] * 0.0625
        ) * (four[0] * scales[0])
        scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2)
        ] = scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2)
        ] + (
            partial[
                2 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2))
            ] + partial[3 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2))] * 0.0625
        ) * (four[1] * scales[1])
        scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2)
        ] = scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2)
        ] + (
            partial[
                4 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2))
            ] + partial[5 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2))] * 0.0625
        ) * (four[2] * scales[2])
        scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2)
        ] = scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2)
        ] + (
            partial[
                6 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2))
            ] + partial[7 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2))] * 0.0625
        ) * (four[3] * scales[3])
        scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2
        ] = scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2
        ] + (
            partial[
                T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2
            ] + partial[HEADS // 2 + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2)] * 0.0625
        ) * (four[0] * scales[4])
        scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2
        ] = scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2
        ] + (
            partial[
                2 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2)
            ] + partial[3 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2)] * 0.0625
        ) * (four[1] * scales[5])
        scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2
        ] = scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2
        ] + (
            partial[
                4 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2)
            ] + partial[5 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2)] * 0.0625
        ) * (four[2] * scales[6])
        scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2
        ] = scores[
            T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2
        ] + (
            partial[
                6 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2)
            ] + partial[7 * (HEADS // 2) + (T.truncdiv(column, 2) * 4 + T.truncmod(column, 2) + 2)] * 0.0625
        ) * (four[3] * scales[7])


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
    for group in T.unroll(HEADS // 2 // 4):
        scores[group * 4] = T.if_then_else(valid_0, scores[group * 4] * scale, -T.infinity("float32"))
        scores[group * 4 + 1] = T.if_then_else(valid_0, scores[group * 4 + 1] * scale, -T.infinity("float32"))
    valid_1 = own >> 8 & 1 != 0
    for group in T.unroll(HEADS // 2 // 4):
        scores[group * 4 + 2] = T.if_then_else(valid_1, scores[group * 4 + 2] * scale, -T.infinity("float32"))
        scores[group * 4 + 1 + 2] = T.if_then_else(
            valid_1, scores[group * 4 + 1 + 2] * scale, -T.infinity("float32")
        )


@T.macro
def leave_maxima(red, red_slot, scores, thread):
    """Leave the maximum of each head over the 16 tokens of each warp for the other warps."""
    risen = T.alloc_local((HEADS // 2 // 2,), "float32")
    for group in T.unroll(HEADS // 2 // 4):
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
        for column in T.unroll(HEADS // 2 // 2):
            red[
                red_slot, T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2),
                T.truncdiv(thread, 32)
            ] = risen[column]


@T.macro
def join_maxima(top, red, red_slot, thread):
    """Compute the maxima of the heads over the four warps."""
    four = T.alloc_local((4,), "float32")
    for column in T.unroll(HEADS // 4):
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
    for column in T.unroll(HEADS // 4):
        above = above | (top[column] > peak[column] + 2.0)
    grown = warps.any_lane(above)


@T.macro
def raise_reference(peak, top, sums, stat_s, thread):
    """Raise the reference to the maximum: rescale the running sums, and leave each head's factor for O."""
    for column in T.unroll(HEADS // 4):
        highest = T.max(top[column], peak[column])
        factor = warps.exp2(peak[column] - highest)
        sums[column] = sums[column] * factor
        peak[column] = highest
        if thread < 4:
            stat_s[T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)] = factor


@T.macro
def leave_group_factors_lift(stat_s, factors, thread):
    """Leave a factor of each group, times `by`, after those of the heads."""
    if thread == 0:
        for g in T.unroll(4):
            stat_s[HEADS + GROUPS - 4 + g] = factors[g]


@T.macro
def rescale_terms(acc, acc_slot, held, stat_s, thread):
    """Multiply O^T of both terms by each head's factor and each group's."""
    factors = T.alloc_local((COLUMNS // 2,), "float32")
    for quad in T.unroll(COLUMNS // 2 // 4):
        for part in T.vectorized(4):
            factors[quad * 4 + part] = stat_s[(quad) * 4 + part]
    for g in T.unroll(0, 4, 1, unroll_factor=1):
        of_group = stat_s[COLUMNS // 2 + g]
        fragment.load_columns(held, acc, acc_slot, g * COLUMNS, thread)
        for i in T.unroll(COLUMNS // 2):
            factor = factors[
                T.truncdiv(T.truncmod(i, 4), 2) * 8 + T.truncdiv(i, 4) * 2 + T.truncmod(i, 2)
            ] * of_group
            held[i] = held[i] * factor
            held[COLUMNS // 2 + i] = held[COLUMNS // 2 + i] * factor
        fragment.store_columns(held, acc, acc_slot, g * COLUMNS, thread)


@T.macro
def weigh_tokens(scores, sums, peak):
    """Replace S by P = exp2(S - reference), and add P to this thread's running sums."""
    for i in T.unroll(HEADS // 2):
        scores[i] = warps.exp2(scores[i] - peak[T.truncdiv(i, 4) * 2 + T.truncmod(i, 2)])
        sums[
            T.truncdiv(i, 4) * 2 + T.truncmod(i, 2)
        ] = sums[T.truncdiv(i, 4) * 2 + T.truncmod(i, 2)] + scores[i]


@T.macro
def store_weights_in_terms(target, target_slot, scores, scales, units, thread, lane):
    """Write P times the scales of each group's values as two terms. A thread's heads are side by side."""
    four = T.alloc_local((4,), "float32")
    for g in T.unroll(4):
        factor = scalars.float_of(T.uint32(2130706432) - scalars.bits_of(units[g])) * 64.0
        own_0 = scales[g] * factor
        four[0] = scores[0] * own_0
        four[1] = scores[1] * own_0
        four[2] = scores[4] * own_0
        four[3] = scores[5] * own_0
        terms.store_terms(
            target[
                target_slot, T.truncdiv(thread, 32) * 16 + T.truncdiv(lane, 4),
                g * (2 * (HEADS // 2 * 2)) + T.truncmod(thread, 4) * 4
            ],
            target[
                target_slot, T.truncdiv(thread, 32) * 16 + T.truncdiv(lane, 4),
                g * (2 * (HEADS // 2 * 2)) + HEADS // 2 * 2 + T.truncmod(thread, 4) * 4
            ],
            four, 0
        )
        own_1 = scales[4 + g] * factor
        four[0] = scores[2] * own_1
        four[1] = scores[3] * own_1
        four[2] = scores[6] * own_1
        four[3] = scores[7] * own_1
        terms.store_terms(
            target[
                target_slot, T.truncdiv(thread, 32) * 16 + T.truncdiv(lane, 4) + 8,
                g * (2 * (HEADS // 2 * 2)) + T.truncmod(thread, 4) * 4
            ],
            target[
                target_slot, T.truncdiv(thread, 32) * 16 + T.truncdiv(lane, 4) + 8,
                g * (2 * (HEADS // 2 * 2)) + HEADS // 2 * 2 + T.truncmod(thread, 4) * 4
            ],
            four, 0
        )


@T.macro
def leave_sums(red, red_slot, sums, thread):
    """Leave the sum of each head over the tokens of each warp for the other warps."""
    whole = T.alloc_local((HEADS // 4,), "float32")
    for column in T.unroll(HEADS // 4):
        own = sums[column]
        over_4 = own + warps.exchange(own, 4)
        over_8 = over_4 + warps.exchange(over_4, 8)
        over_16 = over_8 + warps.exchange(over_8, 16)
        whole[column] = over_16
    if T.truncmod(thread, 32) < 4:
        for column in T.unroll(HEADS // 4):
            red[
                red_slot, T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2),
                T.truncdiv(thread, 32)
            ] = whole[column]


@T.macro
def join_sums(top, red, red_slot, thread):
    """Compute the sums of the heads over the four warps."""
    four = T.alloc_local((4,), "float32")
    for column in T.unroll(HEADS // 4):
        for part in T.vectorized(4):
            four[part] = red[
                red_slot, T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2),
                0 + part
            ]
        top[column] = four[0] + four[1] + (four[2] + four[3])


@T.macro
def finish_columns_split(red, red_slot, lses, row, split, top, peak, stat_s, thread):
    """Write the lse of each head, and compute the factor that normalises its O^T, from sums and reference.

    If the row is not split, the factor includes the sink.
    """
    join_sums(top, red, red_slot, thread)
    if thread < 4:
        for column in T.unroll(HEADS // 4):
            head = T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)
            lse2 = T.if_then_else(
                top[column] > 0.0, warps.log2(top[column]) + peak[column], -T.infinity("float32")
            )
            if head < HEADS:
                stat_s[head] = T.if_then_else(top[column] > 0.0, warps.rcp_approx(top[column]), 0.0)
                lses[row, split, head] = lse2


@T.macro
def leave_group_factors_units(stat_s, factors, thread):
    """Leave a factor of each group, times `by`, after those of the heads."""
    if thread == 0:
        for g in T.unroll(4):
            stat_s[HEADS + GROUPS - 4 + g] = factors[g] * 0.015625


@T.macro
def write_terms_split(to, acc, acc_slot, row, split, some, held, stat_s, thread):
    """Write O^T of both terms times each head's factor and each group's, into the row or a split's part.

    Without `some` live tile it writes zeros.
    """
    factors = T.alloc_local((COLUMNS // 2,), "float32")
    for quad in T.unroll(COLUMNS // 2 // 4):
        for part in T.vectorized(4):
            factors[quad * 4 + part] = stat_s[(quad) * 4 + part]
    for g in T.unroll(0, 4, 1, unroll_factor=1):
        of_group = stat_s[COLUMNS // 2 + g]
        if some:
            fragment.load_columns(held, acc, acc_slot, g * COLUMNS, thread)
        else:
            for i in T.unroll(COLUMNS):
                held[i] = 0.0
        to[row, split, 0, thread + g * 128] = T.cast(
            ((held[0] + held[COLUMNS // 2] * 0.0625) * (factors[0] * of_group)), "float32"
        )
        to[row, split, 1, thread + g * 128] = T.cast(
            ((held[1] + held[COLUMNS // 2 + 1] * 0.0625) * (factors[1] * of_group)), "float32"
        )
        to[row, split, 8, thread + g * 128] = T.cast(
            ((held[2] + held[COLUMNS // 2 + 2] * 0.0625) * (factors[8] * of_group)), "float32"
        )
        to[row, split, 9, thread + g * 128] = T.cast(
            ((held[3] + held[COLUMNS // 2 + 3] * 0.0625) * (factors[9] * of_group)), "float32"
        )
        to[row, split, 2, thread + g * 128] = T.cast(
            ((held[4] + held[COLUMNS // 2 + 4] * 0.0625) * (factors[2] * of_group)), "float32"
        )
        to[row, split, 3, thread + g * 128] = T.cast(
            ((held[5] + held[COLUMNS // 2 + 5] * 0.0625) * (factors[3] * of_group)), "float32"
        )
        to[row, split, 10, thread + g * 128] = T.cast(
            ((held[6] + held[COLUMNS // 2 + 6] * 0.0625) * (factors[10] * of_group)), "float32"
        )
        to[row, split, 11, thread + g * 128] = T.cast(
            ((held[7] + held[COLUMNS // 2 + 7] * 0.0625) * (factors[11] * of_group)), "float32"
        )
        to[row, split, 4, thread + g * 128] = T.cast(
            ((held[8] + held[COLUMNS // 2 + 8] * 0.0625) * (factors[4] * of_group)), "float32"
        )
        to[row, split, 5, thread + g * 128] = T.cast(
            ((held[9] + held[COLUMNS // 2 + 9] * 0.0625) * (factors[5] * of_group)), "float32"
        )
        to[row, split, 12, thread + g * 128] = T.cast(
            ((held[10] + held[COLUMNS // 2 + 10] * 0.0625) * (factors[12] * of_group)), "float32"
        )
        to[row, split, 13, thread + g * 128] = T.cast(
            ((held[11] + held[COLUMNS // 2 + 11] * 0.0625) * (factors[13] * of_group)), "float32"
        )
        to[row, split, 6, thread + g * 128] = T.cast(
            ((held[12] + held[COLUMNS // 2 + 12] * 0.0625) * (factors[6] * of_group)), "float32"
        )
        to[row, split, 7, thread + g * 128] = T.cast(
            ((held[13] + held[COLUMNS // 2 + 13] * 0.0625) * (factors[7] * of_group)), "float32"
        )
        to[row, split, 14, thread + g * 128] = T.cast(
            ((held[14] + held[COLUMNS // 2 + 14] * 0.0625) * (factors[14] * of_group)), "float32"
        )
        to[row, split, 15, thread + g * 128] = T.cast(
            ((held[15] + held[COLUMNS // 2 + 15] * 0.0625) * (factors[15] * of_group)), "float32"
        )


@T.macro
def finish_columns(red, red_slot, lses, row, top, peak, stat_s, attn_sink, lse_scale, empty_lse, thread):
    """Write the lse of each head, and compute the factor that normalises its O^T, from sums and reference.

    If the row is not split, the factor includes the sink.
    """
    join_sums(top, red, red_slot, thread)
    if thread < 4:
        for column in T.unroll(HEADS // 4):
            head = T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)
            lse2 = T.if_then_else(
                top[column] > 0.0, warps.log2(top[column]) + peak[column], -T.infinity("float32")
            )
            if head < HEADS:
                stat_s[head] = T.if_then_else(
                    top[column] > 0.0, warps.rcp_approx(top[column]), 0.0
                ) * T.if_then_else(
                    lse2 > -T.infinity("float32"),
                    warps.rcp_approx(warps.exp2(attn_sink[head] * LOG2_E - lse2) + 1.0), 0.0
                )
                lses[row, head] = T.if_then_else(lse2 > -T.infinity("float32"), lse2 * lse_scale, empty_lse)


@T.macro
def write_terms(to, acc, acc_slot, row, some, held, stat_s, thread):
    """Write O^T of both terms times each head's factor and each group's, into the row or a split's part.

    Without `some` live tile it writes zeros.
    """
    factors = T.alloc_local((COLUMNS // 2,), "float32")
    for quad in T.unroll(COLUMNS // 2 // 4):
        for part in T.vectorized(4):
            factors[quad * 4 + part] = stat_s[(quad) * 4 + part]
    for g in T.unroll(0, 4, 1, unroll_factor=1):
        of_group = stat_s[COLUMNS // 2 + g]
        if some:
            fragment.load_columns(held, acc, acc_slot, g * COLUMNS, thread)
        else:
            for i in T.unroll(COLUMNS):
                held[i] = 0.0
        to[row, 0, thread + g * 128] = T.cast(
            ((held[0] + held[COLUMNS // 2] * 0.0625) * (factors[0] * of_group)), "bfloat16"
        )
        to[row, 1, thread + g * 128] = T.cast(
            ((held[1] + held[COLUMNS // 2 + 1] * 0.0625) * (factors[1] * of_group)), "bfloat16"
        )
        to[row, 8, thread + g * 128] = T.cast(
            ((held[2] + held[COLUMNS // 2 + 2] * 0.0625) * (factors[8] * of_group)), "bfloat16"
        )
        to[row, 9, thread + g * 128] = T.cast(
            ((held[3] + held[COLUMNS // 2 + 3] * 0.0625) * (factors[9] * of_group)), "bfloat16"
        )
        to[row, 2, thread + g * 128] = T.cast(
            ((held[4] + held[COLUMNS // 2 + 4] * 0.0625) * (factors[2] * of_group)), "bfloat16"
        )
        to[row, 3, thread + g * 128] = T.cast(
            ((held[5] + held[COLUMNS // 2 + 5] * 0.0625) * (factors[3] * of_group)), "bfloat16"
        )
        to[row, 10, thread + g * 128] = T.cast(
            ((held[6] + held[COLUMNS // 2 + 6] * 0.0625) * (factors[10] * of_group)), "bfloat16"
        )
        to[row, 11, thread + g * 128] = T.cast(
            ((held[7] + held[COLUMNS // 2 + 7] * 0.0625) * (factors[11] * of_group)), "bfloat16"
        )
        to[row, 4, thread + g * 128] = T.cast(
            ((held[8] + held[COLUMNS // 2 + 8] * 0.0625) * (factors[4] * of_group)), "bfloat16"
        )
        to[row, 5, thread + g * 128] = T.cast(
            ((held[9] + held[COLUMNS // 2 + 9] * 0.0625) * (factors[5] * of_group)), "bfloat16"
        )
        to[row, 12, thread + g * 128] = T.cast(
            ((held[10] + held[COLUMNS // 2 + 10] * 0.0625) * (factors[12] * of_group)), "bfloat16"
        )
        to[row, 13, thread + g * 128] = T.cast(
            ((held[11] + held[COLUMNS // 2 + 11] * 0.0625) * (factors[13] * of_group)), "bfloat16"
        )
        to[row, 6, thread + g * 128] = T.cast(
            ((held[12] + held[COLUMNS // 2 + 12] * 0.0625) * (factors[6] * of_group)), "bfloat16"
        )
        to[row, 7, thread + g * 128] = T.cast(
            ((held[13] + held[COLUMNS // 2 + 13] * 0.0625) * (factors[7] * of_group)), "bfloat16"
        )
        to[row, 14, thread + g * 128] = T.cast(
            ((held[14] + held[COLUMNS // 2 + 14] * 0.0625) * (factors[14] * of_group)), "bfloat16"
        )
        to[row, 15, thread + g * 128] = T.cast(
            ((held[15] + held[COLUMNS // 2 + 15] * 0.0625) * (factors[15] * of_group)), "bfloat16"
        )


@T.macro
def merge_heads(
    row, share, shares, o_partial, lse_partial, attn_sink, out, lse, lse_scale, empty_lse, parts, thread
):
    """Write the weighted sum of the splits for a share of the heads, with four dims per thread.

    Heads are joined `together` at a time. A row without ids gives 0 and `empty_lse`.
    """
    own = T.truncdiv(HEADS - share + shares - 1, shares)
    for turn in T.unroll(0, own, 1, unroll_factor=1):
        top = T.alloc_local((1,), "float32")
        total = T.alloc_local((1,), "float32")
        kept = T.alloc_local((1,), "float32")
        merged = T.alloc_local((4,), "float32")
        four = T.alloc_local((4,), "float32")
        weights = T.alloc_local((8,), "float32")
        for column in T.unroll(1):
            top[column] = -T.infinity("float32")
            total[column] = 0.0
        for i in T.unroll(4):
            merged[i] = 0.0
        for first in T.unroll(0, parts, 8, unroll_factor=1):
            for p in T.unroll(8):
                for column in T.unroll(1):
                    weights[p + column] = T.if_then_else(
                        first + p < parts,
                        lse_partial[
                            row, T.min(first + p, parts - 1), share + T.min(turn + column, own - 1) * shares
                        ],
                        -T.infinity("float32")
                    )
            for column in T.unroll(1):
                peak = T.alloc_var("float32", init=top[column])
                for at in T.unroll(column, 8):
                    peak = T.max(peak, weights[at])
                # The weight of an empty part is 0, even if all parts are empty.
                base = T.if_then_else(peak > -T.infinity("float32"), peak, 0.0)
                kept[column] = warps.exp2(top[column] - base)
                top[column] = peak
                total[column] = total[column] * kept[column]
                for at in T.unroll(column, 8):
                    weights[at] = warps.exp2(weights[at] - base)
                    total[column] = total[column] + weights[at]
            for i in T.unroll(4):
                merged[i] = merged[i] * kept[T.truncdiv(i, 4)]
            for p in T.unroll(8):
                for u in T.unroll(1):
                    for part in T.vectorized(4):
                        four[part] = o_partial[
                            row, T.min(first + p, parts - 1), share + T.min(turn + u, own - 1) * shares,
                            (thread) * 4 + part
                        ]
                    for e in T.unroll(4):
                        merged[u * 4 + e] = merged[u * 4 + e] + four[e] * weights[
                            p + T.truncdiv(u * 4 + e, 4)
                        ]
        for column in T.unroll(1):
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
def copy_stored(kv, kv_slot, pe, pe_slot, scales, scales_slot, kv_cache, low, high, n, thread):
    """Start the copies of a tile's tokens as they are stored, with eight threads per token.

    A token becomes zeros if its id names no row.
    """
    row = T.truncdiv(thread, 8)
    token_0 = warps.shuffle(low, T.truncmod(row, 32))
    inside_0 = (token_0 >= 0) & (token_0 < n)
    warps.copy16(
        kv[kv_slot, row, T.truncmod(thread, 8) * 16], kv_cache[token_0, T.truncmod(thread, 8) * 16 + 0],
        inside_0
    )
    warps.copy16(
        kv[kv_slot, row, 128 + T.truncmod(thread, 8) * 16],
        kv_cache[token_0, T.truncmod(thread, 8) * 16 + 128], inside_0
    )
    warps.copy16(
        kv[kv_slot, row, 256 + T.truncmod(thread, 8) * 16],
        kv_cache[token_0, T.truncmod(thread, 8) * 16 + 256], inside_0
    )
    warps.copy16(
        kv[kv_slot, row, 384 + T.truncmod(thread, 8) * 16],
        kv_cache[token_0, T.truncmod(thread, 8) * 16 + 384], inside_0
    )
    warps.copy16(
        pe[pe_slot, row, T.truncmod(thread, 8) * 8], kv_cache[token_0, T.truncmod(thread, 8) * 16 + 528],
        inside_0
    )
    if T.truncmod(thread, 8) == 0:
        warps.copy16(
            scales[scales_slot, row, 0], kv_cache[token_0, T.truncmod(thread, 8) * 16 + 512], inside_0
        )
    row = 16 + T.truncdiv(thread, 8)
    token_1 = warps.shuffle(low, T.truncmod(row, 32))
    inside_1 = (token_1 >= 0) & (token_1 < n)
    warps.copy16(
        kv[kv_slot, row, T.truncmod(thread, 8) * 16], kv_cache[token_1, T.truncmod(thread, 8) * 16 + 0],
        inside_1
    )
    warps.copy16(
        kv[kv_slot, row, 128 + T.truncmod(thread, 8) * 16],
        kv_cache[token_1, T.truncmod(thread, 8) * 16 + 128], inside_1
    )
    warps.copy16(
        kv[kv_slot, row, 256 + T.truncmod(thread, 8) * 16],
        kv_cache[token_1, T.truncmod(thread, 8) * 16 + 256], inside_1
    )
    warps.copy16(
        kv[kv_slot, row, 384 + T.truncmod(thread, 8) * 16],
        kv_cache[token_1, T.truncmod(thread, 8) * 16 + 384], inside_1
    )
    warps.copy16(
        pe[pe_slot, row, T.truncmod(thread, 8) * 8], kv_cache[token_1, T.truncmod(thread, 8) * 16 + 528],
        inside_1
    )
    if T.truncmod(thread, 8) == 0:
        warps.copy16(
            scales[scales_slot, row, 0], kv_cache[token_1, T.truncmod(thread, 8) * 16 + 512], inside_1
        )
    row = 32 + T.truncdiv(thread, 8)
    token_2 = warps.shuffle(high, T.truncmod(row, 32))
    inside_2 = (token_2 >= 0) & (token_2 < n)
    warps.copy16(
        kv[kv_slot, row, T.truncmod(thread, 8) * 16], kv_cache[token_2, T.truncmod(thread, 8) * 16 + 0],
        inside_2
    )
    warps.copy16(
        kv[kv_slot, row, 128 + T.truncmod(thread, 8) * 16],
        kv_cache[token_2, T.truncmod(thread, 8) * 16 + 128], inside_2
    )
    warps.copy16(
        kv[kv_slot, row, 256 + T.truncmod(thread, 8) * 16],
        kv_cache[token_2, T.truncmod(thread, 8) * 16 + 256], inside_2
    )
    warps.copy16(
        kv[kv_slot, row, 384 + T.truncmod(thread, 8) * 16],
        kv_cache[token_2, T.truncmod(thread, 8) * 16 + 384], inside_2
    )
    warps.copy16(
        pe[pe_slot, row, T.truncmod(thread, 8) * 8], kv_cache[token_2, T.truncmod(thread, 8) * 16 + 528],
        inside_2
    )
    if T.truncmod(thread, 8) == 0:
        warps.copy16(
            scales[scales_slot, row, 0], kv_cache[token_2, T.truncmod(thread, 8) * 16 + 512], inside_2
        )
    row = 48 + T.truncdiv(thread, 8)
    token_3 = warps.shuffle(high, T.truncmod(row, 32))
    inside_3 = (token_3 >= 0) & (token_3 < n)
    warps.copy16(
        kv[kv_slot, row, T.truncmod(thread, 8) * 16], kv_cache[token_3, T.truncmod(thread, 8) * 16 + 0],
        inside_3
    )
    warps.copy16(
        kv[kv_slot, row, 128 + T.truncmod(thread, 8) * 16],
        kv_cache[token_3, T.truncmod(thread, 8) * 16 + 128], inside_3
    )
    warps.copy16(
        kv[kv_slot, row, 256 + T.truncmod(thread, 8) * 16],
        kv_cache[token_3, T.truncmod(thread, 8) * 16 + 256], inside_3
    )
    warps.copy16(
        kv[kv_slot, row, 384 + T.truncmod(thread, 8) * 16],
        kv_cache[token_3, T.truncmod(thread, 8) * 16 + 384], inside_3
    )
    warps.copy16(
        pe[pe_slot, row, T.truncmod(thread, 8) * 8], kv_cache[token_3, T.truncmod(thread, 8) * 16 + 528],
        inside_3
    )
    if T.truncmod(thread, 8) == 0:
        warps.copy16(
            scales[scales_slot, row, 0], kv_cache[token_3, T.truncmod(thread, 8) * 16 + 512], inside_3
        )


@T.macro
def softmax(
    q_nope, q_pe, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale,
    lse_scale, empty_lse, has_lengths, cached, share, reach, span, row_step, t, topk, splits, q_s, qpe_s,
    unit_s, scale_s, p_s, red_s, stat_s, o_t, s_t, r_t, q_full, q_empty, kv_full, kv_empty, s_full, s_empty,
    p_full, p_empty, o_full, cta, done: T.Ref, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref,
    in_high: T.Ref, live: T.Ref, thread, lane
):
    """Terms of the queries and of P, online softmax, epilogue, merge."""
    partial = T.alloc_local((GROUPS * HEADS,), "float32")
    scores = T.alloc_local((HEADS // 2,), "float32")
    sums = T.alloc_local((HEADS // 4,), "float32")
    top = T.alloc_local((HEADS // 4,), "float32")
    peak = T.alloc_local((HEADS // 4,), "float32")
    held = T.alloc_local((COLUMNS,), "float32")
    scales = T.alloc_local((2 * GROUPS,), "float32")
    units = T.alloc_local((GROUPS,), "float32")
    lift = T.alloc_local((GROUPS,), "float32")
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
                T.mbarrier_wait_parity(q_empty[0], (0 & 1) ^ 1)
                split_queries(q_s, 0, unit_s, qpe_s, 0, q_nope, q_pe, row, worker)
                T.fence_proxy_async()
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(q_full[0])
                # The units of later queries are written before the epilogue's meetings.
                T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
            begin = it
            T.fill(sums, 0.0)
            T.fill(peak, -T.infinity("float32"))
            T.fill(units, 7.888609052210118e-31)
            grown = T.alloc_var("bool", init=False)
            risen = T.alloc_var("bool", init=False)
            for turn in T.serial(turns):
                vote(in_low, in_high, live, low, high, cached)
                read_ids(low, high, indices, row, first + (turn + 1), stop, lane)
                if live:
                    T.mbarrier_wait_parity(s_full[it % TILE_STAGES], (it // TILE_STAGES) & 1)
                    T.tcgen05_after_thread_sync()
                    # What a thread has of an accumulator of 64 rows, as wgmma leaves it, from tensor memory;
                    # waited for at the release.
                    fragment.read_accumulator(partial, s_t, it % TILE_STAGES, worker)
                    fragment.read_accumulator(scores, r_t, it % TILE_STAGES, worker)
                    T.call_extern("handle", "tl::fence_view_async_tmem_load")
                    T.tcgen05_before_thread_sync()
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(s_empty[it % TILE_STAGES])
                    T.mbarrier_wait_parity(kv_full[it % TILES], (it // TILES) & 1)
                    take_scales(scales, units, lift, scale_s, it % TILES, worker, lane)
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(kv_empty[it % TILES])
                    find_risen(risen, lift)
                    join_partial_scores(scores, partial, scales, unit_s, worker)
                    mask_scores(scores, in_low, in_high, sm_scale, worker)
                    leave_maxima(red_s, it % 2, scores, worker)
                    T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                    take_maxima(grown, top, peak, red_s, it % 2, worker)
                    grown = grown | risen
                    if grown:
                        raise_reference(peak, top, sums, stat_s, worker)
                        leave_group_factors_lift(stat_s, lift, worker)
                        T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                        if it > begin:
                            T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                            T.tcgen05_after_thread_sync()
                            rescale_terms(o_t, 0, held, stat_s, worker)
                            # o: p also gives its slot back
                    T.mbarrier_wait_parity(p_empty[it % TILE_STAGES], ((it // TILE_STAGES) & 1) ^ 1)
                    weigh_tokens(scores, sums, peak)
                    store_weights_in_terms(p_s, it % TILE_STAGES, scores, scales, units, worker, lane)
                    # If O was not rescaled, wait for it here: a parity tells only adjacent phases apart.
                    if (it > begin) & (grown == False):
                        T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                        T.tcgen05_after_thread_sync()
                        # o: p also gives its slot back
                    T.fence_proxy_async()
                    T.call_extern("handle", "tl::fence_view_async_tmem_load")
                    T.call_extern("handle", "tl::fence_view_async_tmem_store")
                    T.tcgen05_before_thread_sync()
                    T.sync_warp()
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(p_full[it % TILE_STAGES])
                    it = it + 1
            if ((row + row_step) * span < end) & (row + row_step < t):
                T.mbarrier_wait_parity(q_empty[0], ((done + 1) & 1) ^ 1)
                split_queries(q_s, 0, unit_s, qpe_s, 0, q_nope, q_pe, row + row_step, worker)
                T.fence_proxy_async()
                T.sync_warp()
                if T.shuffle_elect(32):
                    T.mbarrier_arrive(q_full[0])
            leave_sums(red_s, it % 2, sums, worker)
            T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
            if it > begin:
                T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                T.tcgen05_after_thread_sync()
            from_cta = T.truncdiv(row * span, share)
            parts = T.truncdiv(row * span + scalars.ceildiv(topk, TILE) - 1, share) - from_cta + 1
            if parts > 1:
                finish_columns_split(
                    red_s, it % 2, lse_partial, row, cta - from_cta, top, peak, stat_s, worker
                )
                leave_group_factors_units(stat_s, units, worker)
                T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                write_terms_split(o_partial, o_t, 0, row, cta - from_cta, it > begin, held, stat_s, worker)
                T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                grid.count_in(arrivals, row + cta % 1, worker)
            else:
                finish_columns(
                    red_s, it % 2, lse, row, top, peak, stat_s, attn_sink, lse_scale, empty_lse, worker
                )
                leave_group_factors_units(stat_s, units, worker)
                T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                write_terms(out, o_t, 0, row, it > begin, held, stat_s, worker)
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
def producer(
    kv_cache, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap, share, reach,
    span, row_step, t, n, topk, kv_s, pe_s, scale_s, kv_full, kv_empty, cta, done: T.Ref, it: T.Ref,
    low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref, live: T.Ref, thread, lane
):
    """Selected tokens into the ring."""
    worker = thread - 128
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
                    T.mbarrier_wait_parity(kv_empty[it % TILES], ((it // TILES) & 1) ^ 1)
                    copy_stored(
                        kv_s, it % TILES, pe_s, it % TILES, scale_s, it % TILES, kv_cache, now_low, now_high,
                        n, worker
                    )
                    T.cp_async_barrier_noinc(kv_full[it % TILES])
                    it = it + 1
            done = done + 1
        unit = (row + row_step) * span


@T.macro
def mma(
    indices, topk_length, has_lengths, cached, share, reach, span, row_step, t, topk, q_s, qpe_s, kv_s, pe_s,
    p_s, o_t, s_t, r_t, q_full, q_empty, kv_full, kv_empty, s_full, s_empty, p_full, p_empty, o_full, cta,
    done: T.Ref, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref, live: T.Ref, lane
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
            T.mbarrier_wait_parity(q_full[0], done & 1)
            T.tcgen05_after_thread_sync()
            begin = it
            for turn in T.serial(turns + 1):
                vote(in_low, in_high, live, low, high, cached)
                read_ids(low, high, indices, row, first + (turn + 1), stop, lane)
                late = it > begin
                before = it - 1
                if live:
                    T.mbarrier_wait_parity(s_empty[it % TILE_STAGES], ((it // TILE_STAGES) & 1) ^ 1)
                    T.tcgen05_after_thread_sync()
                    T.mbarrier_wait_parity(kv_full[it % TILES], (it // TILES) & 1)
                    T.fence_proxy_async()
                    T.tcgen05_after_thread_sync()
                    for g in T.serial(GROUPS):
                        # S^T = K Q^T, a group of the dims
                        tcgen05_bytes.multiply_bytes(
                            kv_s, it % TILES, g * GROUP, 128, "k", q_s, 0, g * GROUP, 128, "k", s_t,
                            (it % TILE_STAGES) * 128 + g * COLUMNS, TILE, COLUMNS, GROUP, True
                        )
                    # the rope dims
                    tcgen05.multiply_m64(
                        pe_s, it % TILES, 0, qpe_s, 0, 0, r_t, it % TILE_STAGES, HEADS, ROPE_DIM, True
                    )
                    T.tcgen05_mma_arrive(s_full[it % TILE_STAGES])
                    it = it + 1
                if turn == turns:
                    T.tcgen05_mma_arrive(q_empty[0])
                if late & (live | (turn == turns)):
                    T.mbarrier_wait_parity(p_full[before % TILE_STAGES], (before // TILE_STAGES) & 1)
                    T.tcgen05_after_thread_sync()
                    # o: p also gives its slot back
                    for g in T.serial(GROUPS):
                        # O^T += V^T P^T, a group of the dims
                        tcgen05_bytes.multiply_bytes(
                            kv_s, before % TILES, g * GROUP, 128, "mn", p_s, before % TILE_STAGES,
                            g * COLUMNS, 32, "mn", o_t, (0) * 128 + g * COLUMNS, GROUP, COLUMNS, TILE,
                            (before > begin) == False
                        )
                    T.tcgen05_mma_arrive(kv_empty[before % TILES])
                    T.tcgen05_mma_arrive(p_empty[before % TILE_STAGES])
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
    kv_cache_stride = T.dynamic("kv_cache_stride")
    topk = T.dynamic("topk")
    indices_stride = T.dynamic("indices_stride")
    out_stride_t = T.dynamic("out_stride_t")
    out_stride_h = T.dynamic("out_stride_h")
    lse_stride = T.dynamic("lse_stride")
    splits = T.dynamic("splits")
    counters = T.dynamic("counters")

    @T.prim_func
    def sparse_mla__tilelang_sm100a__h16_fp8_bt64_cl1_cp_async_terms2(
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
        ctas: T.int32,
        share: T.int32,
        reach: T.int32,
        span: T.int32,
        row_step: T.int32,
    ):
        with T.Kernel(ctas, threads=288) as cta:
            T.import_source(
                leaf_sm100.SOURCE + warps.SOURCE + floats.SOURCE + scalars.SOURCE + terms.SOURCE
                + fragment.SOURCE
            )
            q_s = T.alloc_shared((1, COLUMNS, LATENT_DIM), "float8_e4m3")
            qpe_s = T.alloc_shared((1, HEADS, ROPE_DIM), "bfloat16")
            unit_s = T.alloc_shared((HEADS, GROUPS), "float32")
            kv_s = T.alloc_shared((TILES, TILE, LATENT_DIM), "float8_e4m3")
            pe_s = T.alloc_shared((TILES, TILE, ROPE_DIM), "bfloat16")
            scale_s = T.alloc_shared((TILES, TILE, GROUPS), "float32")
            p_s = T.alloc_shared((TILE_STAGES, TILE, GROUPS * COLUMNS), "float8_e4m3")
            red_s = T.alloc_shared((2, HEADS, 4), "float32")
            stat_s = T.alloc_shared((HEADS + GROUPS,), "float32")
            o_t = T.alloc_tmem((128, GROUPS * COLUMNS), "float32")
            s_t = T.alloc_tmem((128, TILE_STAGES * (GROUPS * COLUMNS)), "float32")
            r_t = T.alloc_tmem((128, 8 * HEADS), "float32")
            T.annotate_layout({b: make_full_bank_swizzled_layout(b) for b in (kv_s, pe_s, q_s, qpe_s)})
            T.annotate_layout({b: make_quarter_bank_swizzled_layout(b) for b in (p_s,)})
            q_full = T.alloc_barrier([4])
            q_empty = T.alloc_barrier([1])
            kv_full = T.alloc_barrier([128] * TILES)
            kv_empty = T.alloc_barrier([5] * TILES)
            s_full = T.alloc_barrier([1] * TILE_STAGES)
            s_empty = T.alloc_barrier([4] * TILE_STAGES)
            p_full = T.alloc_barrier([4] * TILE_STAGES)
            p_empty = T.alloc_barrier([1] * TILE_STAGES)
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
                    topk, splits, q_s, qpe_s, unit_s, scale_s, p_s, red_s, stat_s, o_t, s_t, r_t, q_full,
                    q_empty, kv_full, kv_empty, s_full, s_empty, p_full, p_empty, o_full, cta, done, it, low,
                    high, in_low, in_high, live, thread, lane
                )
            elif thread < 256:
                producer(
                    kv_cache, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap,
                    share, reach, span, row_step, t, n, topk, kv_s, pe_s, scale_s, kv_full, kv_empty, cta,
                    done, it, low, high, in_low, in_high, live, thread, lane
                )
            else:
                mma(
                    indices, topk_length, has_lengths, cached, share, reach, span, row_step, t, topk, q_s,
                    qpe_s, kv_s, pe_s, p_s, o_t, s_t, r_t, q_full, q_empty, kv_full, kv_empty, s_full,
                    s_empty, p_full, p_empty, o_full, cta, done, it, low, high, in_low, in_high, live, lane
                )
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return sparse_mla__tilelang_sm100a__h16_fp8_bt64_cl1_cp_async_terms2
