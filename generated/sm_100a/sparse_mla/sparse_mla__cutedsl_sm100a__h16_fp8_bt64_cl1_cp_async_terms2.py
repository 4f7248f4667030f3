"""sparse_mla__cutedsl_sm100a__h16_fp8_bt64_cl1_cp_async_terms2

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
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
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

from dsl_kernels.device.cutedsl import floats, fragment_sm100, grid, scalars, tcgen05, terms, warps
from dsl_kernels.runtime.artifact import Launch, Operand

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

QK = tcgen05.Product("float8_e4m3", TILE, COLUMNS, GROUP, "k", "k")
QK_PE = tcgen05.Product("bfloat16", TILE, HEADS, ROPE_DIM, "k", "k")
PV = tcgen05.Product("float8_e4m3", GROUP, COLUMNS, TILE, "mn", "mn")

LAUNCH = Launch(
    operands=(
        Operand(
            "q_nope", "tensor", "bfloat16", ("t", "16", "512"),
            strides=("q_nope_stride_t", "q_nope_stride_h", "1")
        ),
        Operand(
            "q_pe", "tensor", "bfloat16", ("t", "16", "64"), strides=("q_pe_stride_t", "q_pe_stride_h", "1")
        ),
        Operand("kv_cache", "tensor", "uint8", ("n", "656"), strides=("kv_cache_stride", "1")),
        Operand("indices", "tensor", "int32", ("t", "topk"), strides=("indices_stride", "1")),
        Operand("topk_length", "tensor", "int32", ("t",)),
        Operand("attn_sink", "tensor", "float32", ("16",)),
        Operand(
            "out", "tensor", "bfloat16", ("t", "16", "512"), strides=("out_stride_t", "out_stride_h", "1"),
            written=True
        ),
        Operand("lse", "tensor", "float32", ("t", "16"), strides=("lse_stride", "1"), written=True),
        Operand("o_partial", "tensor", "float32", ("t", "splits", "16", "512"), written=True),
        Operand("lse_partial", "tensor", "float32", ("t", "splits", "16"), written=True),
        Operand("arrivals", "tensor", "int32", ("counters",), written=True),
        Operand("sm_scale", "scalar", "float32"),
        Operand("lse_scale", "scalar", "float32"),
        Operand("empty_lse", "scalar", "float32"),
        Operand("has_lengths", "scalar", "int32"),
        Operand("cached", "scalar", "int32"),
        Operand("page_inverse", "scalar", "int32"),
        Operand("page_shift", "scalar", "int32"),
        Operand("page_gap", "scalar", "int32"),
        Operand("ctas", "scalar", "int32"),
        Operand("share", "scalar", "int32"),
        Operand("reach", "scalar", "int32"),
        Operand("span", "scalar", "int32"),
        Operand("row_step", "scalar", "int32"),
    ),
    grid=("ctas", "1", "1"),
    block=288,
    cluster=(1, 1, 1),
    resident="splits - 1",
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, COLUMNS * LATENT_DIM], 1024]
    qpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, HEADS * ROPE_DIM], 1024]
    unit_s: cute.struct.Align[cute.struct.MemRange[Float32, HEADS * GROUPS], 128]
    kv_s: cute.struct.Align[cute.struct.MemRange[cutlass.Float8E4M3FN, TILES * TILE * LATENT_DIM], 1024]
    pe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILES * TILE * ROPE_DIM], 1024]
    scale_s: cute.struct.Align[cute.struct.MemRange[Float32, TILES * TILE * GROUPS], 128]
    p_s: cute.struct.Align[
        cute.struct.MemRange[cutlass.Float8E4M3FN, TILE_STAGES * TILE * (GROUPS * COLUMNS)], 1024
    ]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, 2 * HEADS * 4], 128]
    stat_s: cute.struct.Align[cute.struct.MemRange[Float32, HEADS + GROUPS], 128]
    q_full: cute.struct.MemRange[Int64, 1]
    q_empty: cute.struct.MemRange[Int64, 1]
    kv_full: cute.struct.MemRange[Int64, TILES]
    kv_empty: cute.struct.MemRange[Int64, TILES]
    s_full: cute.struct.MemRange[Int64, TILE_STAGES]
    s_empty: cute.struct.MemRange[Int64, TILE_STAGES]
    p_full: cute.struct.MemRange[Int64, TILE_STAGES]
    p_empty: cute.struct.MemRange[Int64, TILE_STAGES]
    o_full: cute.struct.MemRange[Int64, 1]
    tmem: Int32


@cute.jit
def read_ids(indices, indices_stride_0, row, tile, end, lane):
    """Read ids `lane` and `lane` + 32 of a tile of a query; -1 replaces the ids from number `end` on."""
    ids = indices + Int64(row) * indices_stride_0
    first = tile * 64 + lane
    low = warps.load_or(ids + first, first < end, -1)
    high = warps.load_or(ids + (first + 32), first + 32 < end, -1)
    return low, high


@cute.jit
def split_queries(
    target, units, rope, q, q_stride_0, q_stride_1, q_pe, q_pe_stride_0, q_pe_stride_1, row, thread
):
    """Write a block of heads of one query: two terms of the latent dims with their units, the rope dims.

    Eight lanes have a group of a head. The target's padding becomes zero.
    """
    words = cute.make_rmem_tensor(COLUMNS // 2 // 4 * 8, cutlass.Uint32)
    values = cute.make_rmem_tensor(16, Float32)
    beside = cute.make_rmem_tensor(4, cutlass.Uint32)
    # All reads come before the first write: a compiler moves no read past a write.
    for i in cutlass.range_constexpr(COLUMNS // 2 // 4):
        item = i * 16 + thread // 8
        of_head = q + Int64(row) * q_stride_0 + Int64(item // 4) * q_stride_1 + item % 4 * 128
        warps.load_vector(words, i * 8, 4, of_head + thread % 8 * 16, item // 4 < HEADS)
        warps.load_vector(words, i * 8 + 4, 4, of_head + (thread % 8 * 16 + 8), item // 4 < HEADS)
    of_rope = q_pe + Int64(row) * q_pe_stride_0 + Int64(thread // 8) * q_pe_stride_1
    warps.load_vector(beside, 0, 4, of_rope + thread % 8 * 8, thread // 8 < HEADS)
    warps.store_vector(
        beside, 0, warps.piece(rope, 8, thread // 8, thread % 8 * 8, (HEADS, ROPE_DIM), 128).iterator
    )
    for i in cutlass.range_constexpr(COLUMNS // 2 // 4):
        item = i * 16 + thread // 8
        most = Float32(0.0)
        for w in cutlass.range_constexpr(8):
            values[2 * w] = scalars.float_of(words[i * 8 + w] << 16)
            values[2 * w + 1] = scalars.float_of(words[i * 8 + w] & cutlass.Uint32(4294901760))
        for v in cutlass.range_constexpr(16):
            most = cute.arch.fmax(most, cute.arch.fmax(values[v], 0 - values[v]))
        unit = cute.arch.fmax(
            scalars.float_of(scalars.bits_of(floats.max_of_lanes(most, 8)) + 8388607 & 2139095040),
            7.888609052210118e-31
        )
        factor = scalars.float_of(2130706432 - scalars.bits_of(unit)) * 256.0
        for v in cutlass.range_constexpr(16):
            values[v] = values[v] * factor
        for quad in cutlass.range_constexpr(4):
            terms.store_terms(
                warps.piece(
                    target, 4, item // 4, item % 4 * 128 + thread % 8 * 16 + quad * 4, (COLUMNS, LATENT_DIM),
                    128
                ).iterator,
                warps.piece(
                    target, 4, COLUMNS // 2 + item // 4, item % 4 * 128 + thread % 8 * 16 + quad * 4,
                    (COLUMNS, LATENT_DIM), 128
                ).iterator,
                values, quad * 4
            )
        if thread % 8 == 0:
            units[item // 4 * GROUPS + item % 4] = unit * 0.00390625


@cute.jit
def vote(low, high, cached):
    """The valid ids of a tile as two words of bits, and whether any id is valid.

    Every warp of every role gets the same result.
    """
    in_low = warps.ballot((low >= 0) & (low < cached))
    in_high = warps.ballot((high >= 0) & (high < cached))
    live = in_low | in_high != 0
    return in_low, in_high, live


@cute.jit
def take_scales(scales, units, lift, of_tile, thread, lane):
    """Read the scales of the thread's two tokens, and raise the units to those of the whole tile.

    `lift` is by what the sums of each group must be multiplied: 1 if its unit did not rise.
    """
    two = cute.make_rmem_tensor(8, Float32)
    cute.autovec_copy(warps.piece(of_tile, 4, thread // 32 * 16 + lane // 4, 0, (TILE, GROUPS), 0), scales)
    cute.autovec_copy(warps.piece(of_tile, 4, lane, 0, (TILE, GROUPS), 0), two)
    cute.autovec_copy(
        warps.piece(of_tile, 4, thread // 32 * 16 + lane // 4 + 8, 0, (TILE, GROUPS), 0),
        warps.few(scales, 4, 4)
    )
    cute.autovec_copy(warps.piece(of_tile, 4, 32 + lane, 0, (TILE, GROUPS), 0), warps.few(two, 4, 4))
    for g in cutlass.range_constexpr(4):
        most = cute.arch.fmax(cute.arch.fmax(two[g], 0 - two[g]), cute.arch.fmax(two[4 + g], 0 - two[4 + g]))
        unit = cute.arch.fmax(
            cute.arch.fmax(
                scalars.float_of(warps.warp_most(scalars.bits_of(most)) + 8388607 & 2139095040),
                7.888609052210118e-31
            ),
            units[g]
        )
        lift[g] = units[g] * scalars.float_of(2130706432 - scalars.bits_of(unit))
        units[g] = unit


@cute.jit
def find_risen(lift):
    """Whether the unit of a group rose."""
    below = Boolean(False)
    for g in cutlass.range_constexpr(4):
        below = below | (lift[g] < 1.0)
    risen = warps.any_lane(below)
    return risen


@cute.jit
def join_partial_scores(scores, partial, scales, units, thread):
    """Add the partial scores of both terms of each group, scaled, to those of the rope dims."""
    four = cute.make_rmem_tensor(4, Float32)
    for column in cutlass.range_constexpr(HEADS // 2 // 2):
        cute.autovec_copy(
            warps.piece(units, 4, column // 2 * 8 + thread % 4 * 2 + column % 2, 0, (HEADS, GROUPS), 0), four
        )
        scores[
            column // 2 * 4 + column % 2
        ] = scores[
            column // 2 * 4 + column % 2
        ] + (
            partial[
                column // 2 * 4 + column % 2
            ] + partial[HEADS // 2 + (column // 2 * 4 + column % 2)] * 0.0625
        ) * (four[0] * scales[0])
        scores[
            column // 2 * 4 + column % 2
        ] = scores[
            column // 2 * 4 + column % 2
        ] + (
            partial[
                2 * (HEADS // 2) + (column // 2 * 4 + column % 2)
            ] + partial[3 * (HEADS // 2) + (column // 2 * 4 + column % 2)] * 0.0625
        ) * (four[1] * scales[1])
        scores[
            column // 2 * 4 + column % 2
        ] = scores[
            column // 2 * 4 + column % 2
        ] + (
            partial[
                4 * (HEADS // 2) + (column // 2 * 4 + column % 2)
            ] + partial[5 * (HEADS // 2) + (column // 2 * 4 + column % 2)] * 0.0625
        ) * (four[2] * scales[2])
        scores[
            column // 2 * 4 + column % 2
        ] = scores[
            column // 2 * 4 + column % 2
        ] + (
            partial[
                6 * (HEADS // 2) + (column // 2 * 4 + column % 2)
            ] + partial[7 * (HEADS // 2) + (column // 2 * 4 + column % 2)] * 0.0625
        ) * (four[3] * scales[3])
        scores[
            column // 2 * 4 + column % 2 + 2
        ] = scores[
            column // 2 * 4 + column % 2 + 2
        ] + (
            partial[
                column // 2 * 4 + column % 2 + 2
            ] + partial[HEADS // 2 + (column // 2 * 4 + column % 2 + 2)] * 0.0625
        ) * (four[0] * scales[4])
        scores[
            column // 2 * 4 + column % 2 + 2
        ] = scores[
            column // 2 * 4 + column % 2 + 2
        ] + (
            partial[
                2 * (HEADS // 2) + (column // 2 * 4 + column % 2 + 2)
            ] + partial[3 * (HEADS // 2) + (column // 2 * 4 + column % 2 + 2)] * 0.0625
        ) * (four[1] * scales[5])
        scores[
            column // 2 * 4 + column % 2 + 2
        ] = scores[
            column // 2 * 4 + column % 2 + 2
        ] + (
            partial[
                4 * (HEADS // 2) + (column // 2 * 4 + column % 2 + 2)
            ] + partial[5 * (HEADS // 2) + (column // 2 * 4 + column % 2 + 2)] * 0.0625
        ) * (four[2] * scales[6])
        scores[
            column // 2 * 4 + column % 2 + 2
        ] = scores[
            column // 2 * 4 + column % 2 + 2
        ] + (
            partial[
                6 * (HEADS // 2) + (column // 2 * 4 + column % 2 + 2)
            ] + partial[7 * (HEADS // 2) + (column // 2 * 4 + column % 2 + 2)] * 0.0625
        ) * (four[3] * scales[7])


@cute.jit
def mask_scores(scores, low, high, sm_scale, thread):
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf.

    `low` has a bit for each of the first 32 tokens, `high` for each of the next 32.
    """
    own = cutlass.select_(thread < 64, low, high) >> (thread // 32 % 2 * 16 + thread % 32 // 4)
    scale = sm_scale * LOG2_E
    valid_0 = own & 1 != 0
    for group in cutlass.range_constexpr(HEADS // 2 // 4):
        scores[group * 4] = cutlass.select_(valid_0, scores[group * 4] * scale, -Float32.inf)
        scores[group * 4 + 1] = cutlass.select_(valid_0, scores[group * 4 + 1] * scale, -Float32.inf)
    valid_1 = own >> 8 & 1 != 0
    for group in cutlass.range_constexpr(HEADS // 2 // 4):
        scores[group * 4 + 2] = cutlass.select_(valid_1, scores[group * 4 + 2] * scale, -Float32.inf)
        scores[group * 4 + 1 + 2] = cutlass.select_(valid_1, scores[group * 4 + 1 + 2] * scale, -Float32.inf)


@cute.jit
def leave_maxima(red, scores, thread):
    """Leave the maximum of each head over the 16 tokens of each warp for the other warps."""
    risen = cute.make_rmem_tensor(HEADS // 2 // 2, Float32)
    for group in cutlass.range_constexpr(HEADS // 2 // 4):
        own = cute.arch.fmax(scores[group * 4], scores[group * 4 + 2])
        over_4 = cute.arch.fmax(own, warps.exchange(own, 4))
        over_8 = cute.arch.fmax(over_4, warps.exchange(over_4, 8))
        over_16 = cute.arch.fmax(over_8, warps.exchange(over_8, 16))
        risen[group * 2] = over_16
        own = cute.arch.fmax(scores[group * 4 + 1], scores[group * 4 + 1 + 2])
        over_4 = cute.arch.fmax(own, warps.exchange(own, 4))
        over_8 = cute.arch.fmax(over_4, warps.exchange(over_4, 8))
        over_16 = cute.arch.fmax(over_8, warps.exchange(over_8, 16))
        risen[group * 2 + 1] = over_16
    if thread % 32 < 4:
        for column in cutlass.range_constexpr(HEADS // 2 // 2):
            red[(column // 2 * 8 + thread % 4 * 2 + column % 2) * 4 + thread // 32] = risen[column]


@cute.jit
def join_maxima(top, red, thread):
    """Compute the maxima of the heads over the four warps."""
    four = cute.make_rmem_tensor(4, Float32)
    for column in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.piece(red, 4, column // 2 * 8 + thread % 4 * 2 + column % 2, 0, (HEADS, 4), 0), four
        )
        top[column] = cute.arch.fmax(cute.arch.fmax(four[0], four[1]), cute.arch.fmax(four[2], four[3]))


@cute.jit
def take_maxima(top, peak, red, thread):
    """Compute the maxima of the heads over the four warps.

    `grown` tells whether one rose more than `rise` powers of two above its reference. It is the same in
    every warp.
    """
    join_maxima(top, red, thread)
    above = Boolean(False)
    for column in cutlass.range_constexpr(HEADS // 4):
        above = above | (top[column] > peak[column] + 2.0)
    grown = warps.any_lane(above)
    return grown


@cute.jit
def raise_reference(peak, top, sums, stat_s, thread):
    """Raise the reference to the maximum: rescale the running sums, and leave each head's factor for O."""
    for column in cutlass.range_constexpr(HEADS // 4):
        highest = cute.arch.fmax(top[column], peak[column])
        factor = warps.exp2(peak[column] - highest)
        sums[column] = sums[column] * factor
        peak[column] = highest
        if thread < 4:
            stat_s[column // 2 * 8 + thread % 4 * 2 + column % 2] = factor


@cute.jit
def leave_group_factors_lift(stat_s, factors, thread):
    """Leave a factor of each group, times `by`, after those of the heads."""
    if thread == 0:
        for g in cutlass.range_constexpr(4):
            stat_s[HEADS + GROUPS - 4 + g] = factors[g]


@cute.jit
def rescale_terms(acc, held, stat_s, thread):
    """Multiply O^T of both terms by each head's factor and each group's."""
    factors = cute.make_rmem_tensor(COLUMNS // 2, Float32)
    for quad in cutlass.range_constexpr(COLUMNS // 2 // 4):
        cute.autovec_copy(warps.group(stat_s, 4, quad), warps.few(factors, quad * 4, 4))
    for g in cutlass.range(4, unroll=1):
        of_group = stat_s[COLUMNS // 2 + g]
        fragment_sm100.load_columns(held, acc, g * COLUMNS, thread)
        for i in cutlass.range_constexpr(COLUMNS // 2):
            factor = factors[i % 4 // 2 * 8 + i // 4 * 2 + i % 2] * of_group
            held[i] = held[i] * factor
            held[COLUMNS // 2 + i] = held[COLUMNS // 2 + i] * factor
        fragment_sm100.store_columns(held, acc, g * COLUMNS, thread)


@cute.jit
def weigh_tokens(scores, sums, peak):
    """Replace S by P = exp2(S - reference), and add P to this thread's running sums."""
    for i in cutlass.range_constexpr(HEADS // 2):
        scores[i] = warps.exp2(scores[i] - peak[i // 4 * 2 + i % 2])
        sums[i // 4 * 2 + i % 2] = sums[i // 4 * 2 + i % 2] + scores[i]


@cute.jit
def store_weights_in_terms(target, scores, scales, units, thread, lane):
    """Write P times the scales of each group's values as two terms. A thread's heads are side by side."""
    four = cute.make_rmem_tensor(4, Float32)
    for g in cutlass.range_constexpr(4):
        factor = scalars.float_of(2130706432 - scalars.bits_of(units[g])) * 64.0
        own_0 = scales[g] * factor
        four[0] = scores[0] * own_0
        four[1] = scores[1] * own_0
        four[2] = scores[4] * own_0
        four[3] = scores[5] * own_0
        terms.store_terms(
            warps.piece(
                target, 4, thread // 32 * 16 + lane // 4, g * (2 * (HEADS // 2 * 2)) + thread % 4 * 4,
                (TILE, GROUPS * COLUMNS), 32
            ).iterator,
            warps.piece(
                target, 4, thread // 32 * 16 + lane // 4,
                g * (2 * (HEADS // 2 * 2)) + HEADS // 2 * 2 + thread % 4 * 4, (TILE, GROUPS * COLUMNS), 32
            ).iterator,
            four, 0
        )
        own_1 = scales[4 + g] * factor
        four[0] = scores[2] * own_1
        four[1] = scores[3] * own_1
        four[2] = scores[6] * own_1
        four[3] = scores[7] * own_1
        terms.store_terms(
            warps.piece(
                target, 4, thread // 32 * 16 + lane // 4 + 8, g * (2 * (HEADS // 2 * 2)) + thread % 4 * 4,
                (TILE, GROUPS * COLUMNS), 32
            ).iterator,
            warps.piece(
                target, 4, thread // 32 * 16 + lane // 4 + 8,
                g * (2 * (HEADS // 2 * 2)) + HEADS // 2 * 2 + thread % 4 * 4, (TILE, GROUPS * COLUMNS), 32
            ).iterator,
            four, 0
        )


@cute.jit
def leave_sums(red, sums, thread):
    """Leave the sum of each head over the tokens of each warp for the other warps."""
    whole = cute.make_rmem_tensor(HEADS // 4, Float32)
    for column in cutlass.range_constexpr(HEADS // 4):
        own = sums[column]
        over_4 = own + warps.exchange(own, 4)
        over_8 = over_4 + warps.exchange(over_4, 8)
        over_16 = over_8 + warps.exchange(over_8, 16)
        whole[column] = over_16
    if thread % 32 < 4:
        for column in cutlass.range_constexpr(HEADS // 4):
            red[(column // 2 * 8 + thread % 4 * 2 + column % 2) * 4 + thread // 32] = whole[column]


@cute.jit
def join_sums(top, red, thread):
    """Compute the sums of the heads over the four warps."""
    four = cute.make_rmem_tensor(4, Float32)
    for column in cutlass.range_constexpr(HEADS // 4):
        cute.autovec_copy(
            warps.piece(red, 4, column // 2 * 8 + thread % 4 * 2 + column % 2, 0, (HEADS, 4), 0), four
        )
        top[column] = four[0] + four[1] + (four[2] + four[3])


@cute.jit
def finish_columns_split(red, lses, row, split, top, peak, stat_s, splits, thread):
    """Write the lse of each head, and compute the factor that normalises its O^T, from sums and reference.

    If the row is not split, the factor includes the sink.
    """
    of_heads = lses + Int64(row * splits + split) * HEADS
    join_sums(top, red, thread)
    if thread < 4:
        for column in cutlass.range_constexpr(HEADS // 4):
            head = column // 2 * 8 + thread % 4 * 2 + column % 2
            lse2 = cutlass.select_(top[column] > 0.0, warps.log2(top[column]) + peak[column], -Float32.inf)
            if head < HEADS:
                stat_s[head] = cutlass.select_(top[column] > 0.0, warps.rcp_approx(top[column]), 0.0)
                of_heads[head] = lse2


@cute.jit
def leave_group_factors_units(stat_s, factors, thread):
    """Leave a factor of each group, times `by`, after those of the heads."""
    if thread == 0:
        for g in cutlass.range_constexpr(4):
            stat_s[HEADS + GROUPS - 4 + g] = factors[g] * 0.015625


@cute.jit
def write_terms_split(to, acc, row, split, some, held, stat_s, splits, thread):
    """Write O^T of both terms times each head's factor and each group's, into the row or a split's part.

    Without `some` live tile it writes zeros.
    """
    factors = cute.make_rmem_tensor(COLUMNS // 2, Float32)
    for quad in cutlass.range_constexpr(COLUMNS // 2 // 4):
        cute.autovec_copy(warps.group(stat_s, 4, quad), warps.few(factors, quad * 4, 4))
    of_head_0 = to + Int64((row * splits + split) * HEADS) * 512 + thread
    of_head_1 = to + Int64((row * splits + split) * HEADS + 1) * 512 + thread
    of_head_2 = to + Int64((row * splits + split) * HEADS + 8) * 512 + thread
    of_head_3 = to + Int64((row * splits + split) * HEADS + 9) * 512 + thread
    of_head_4 = to + Int64((row * splits + split) * HEADS + 2) * 512 + thread
    of_head_5 = to + Int64((row * splits + split) * HEADS + 3) * 512 + thread
    of_head_6 = to + Int64((row * splits + split) * HEADS + 10) * 512 + thread
    of_head_7 = to + Int64((row * splits + split) * HEADS + 11) * 512 + thread
    of_head_8 = to + Int64((row * splits + split) * HEADS + 4) * 512 + thread
    of_head_9 = to + Int64((row * splits + split) * HEADS + 5) * 512 + thread
    of_head_10 = to + Int64((row * splits + split) * HEADS + 12) * 512 + thread
    of_head_11 = to + Int64((row * splits + split) * HEADS + 13) * 512 + thread
    of_head_12 = to + Int64((row * splits + split) * HEADS + 6) * 512 + thread
    of_head_13 = to + Int64((row * splits + split) * HEADS + 7) * 512 + thread
    of_head_14 = to + Int64((row * splits + split) * HEADS + 14) * 512 + thread
    of_head_15 = to + Int64((row * splits + split) * HEADS + 15) * 512 + thread
    for g in cutlass.range(4, unroll=1):
        of_group = stat_s[COLUMNS // 2 + g]
        if some:
            fragment_sm100.load_columns(held, acc, g * COLUMNS, thread)
        else:
            for i in cutlass.range_constexpr(COLUMNS):
                held[i] = Float32(0.0)
        of_head_0[g * 128] = ((held[0] + held[COLUMNS // 2] * 0.0625) * (factors[0] * of_group)).to(Float32)
        of_head_1[g * 128] = ((held[1] + held[COLUMNS // 2 + 1] * 0.0625) * (factors[1] * of_group)).to(
            Float32
        )
        of_head_2[g * 128] = ((held[2] + held[COLUMNS // 2 + 2] * 0.0625) * (factors[8] * of_group)).to(
            Float32
        )
        of_head_3[g * 128] = ((held[3] + held[COLUMNS // 2 + 3] * 0.0625) * (factors[9] * of_group)).to(
            Float32
        )
        of_head_4[g * 128] = ((held[4] + held[COLUMNS // 2 + 4] * 0.0625) * (factors[2] * of_group)).to(
            Float32
        )
        of_head_5[g * 128] = ((held[5] + held[COLUMNS // 2 + 5] * 0.0625) * (factors[3] * of_group)).to(
            Float32
        )
        of_head_6[g * 128] = ((held[6] + held[COLUMNS // 2 + 6] * 0.0625) * (factors[10] * of_group)).to(
            Float32
        )
        of_head_7[g * 128] = ((held[7] + held[COLUMNS // 2 + 7] * 0.0625) * (factors[11] * of_group)).to(
            Float32
        )
        of_head_8[g * 128] = ((held[8] + held[COLUMNS // 2 + 8] * 0.0625) * (factors[4] * of_group)).to(
            Float32
        )
        of_head_9[g * 128] = ((held[9] + held[COLUMNS // 2 + 9] * 0.0625) * (factors[5] * of_group)).to(
            Float32
        )
        of_head_10[g * 128] = ((held[10] + held[COLUMNS // 2 + 10] * 0.0625) * (factors[12] * of_group)).to(
            Float32
        )
        of_head_11[g * 128] = ((held[11] + held[COLUMNS // 2 + 11] * 0.0625) * (factors[13] * of_group)).to(
            Float32
        )
        of_head_12[g * 128] = ((held[12] + held[COLUMNS // 2 + 12] * 0.0625) * (factors[6] * of_group)).to(
            Float32
        )
        of_head_13[g * 128] = ((held[13] + held[COLUMNS // 2 + 13] * 0.0625) * (factors[7] * of_group)).to(
            Float32
        )
        of_head_14[g * 128] = ((held[14] + held[COLUMNS // 2 + 14] * 0.0625) * (factors[14] * of_group)).to(
            Float32
        )
        of_head_15[g * 128] = ((held[15] + held[COLUMNS // 2 + 15] * 0.0625) * (factors[15] * of_group)).to(
            Float32
        )


@cute.jit
def finish_columns(red, lses, lses_stride_0, row, top, peak, stat_s, attn_sink, lse_scale, empty_lse, thread):
    """Write the lse of each head, and compute the factor that normalises its O^T, from sums and reference.

    If the row is not split, the factor includes the sink.
    """
    of_heads = lses + Int64(row) * lses_stride_0
    join_sums(top, red, thread)
    if thread < 4:
        for column in cutlass.range_constexpr(HEADS // 4):
            head = column // 2 * 8 + thread % 4 * 2 + column % 2
            lse2 = cutlass.select_(top[column] > 0.0, warps.log2(top[column]) + peak[column], -Float32.inf)
            if head < HEADS:
                stat_s[head] = cutlass.select_(
                    top[column] > 0.0, warps.rcp_approx(top[column]), 0.0
                ) * cutlass.select_(
                    lse2 > -Float32.inf, warps.rcp_approx(warps.exp2(attn_sink[head] * LOG2_E - lse2) + 1.0),
                    0.0
                )
                of_heads[head] = cutlass.select_(lse2 > -Float32.inf, lse2 * lse_scale, empty_lse)


@cute.jit
def write_terms(to, to_stride_0, to_stride_1, acc, row, some, held, stat_s, thread):
    """Write O^T of both terms times each head's factor and each group's, into the row or a split's part.

    Without `some` live tile it writes zeros.
    """
    factors = cute.make_rmem_tensor(COLUMNS // 2, Float32)
    for quad in cutlass.range_constexpr(COLUMNS // 2 // 4):
        cute.autovec_copy(warps.group(stat_s, 4, quad), warps.few(factors, quad * 4, 4))
    of_head_0 = to + Int64(row) * to_stride_0 + Int64(0) * to_stride_1 + thread
    of_head_1 = to + Int64(row) * to_stride_0 + Int64(1) * to_stride_1 + thread
    of_head_2 = to + Int64(row) * to_stride_0 + Int64(8) * to_stride_1 + thread
    of_head_3 = to + Int64(row) * to_stride_0 + Int64(9) * to_stride_1 + thread
    of_head_4 = to + Int64(row) * to_stride_0 + Int64(2) * to_stride_1 + thread
    of_head_5 = to + Int64(row) * to_stride_0 + Int64(3) * to_stride_1 + thread
    of_head_6 = to + Int64(row) * to_stride_0 + Int64(10) * to_stride_1 + thread
    of_head_7 = to + Int64(row) * to_stride_0 + Int64(11) * to_stride_1 + thread
    of_head_8 = to + Int64(row) * to_stride_0 + Int64(4) * to_stride_1 + thread
    of_head_9 = to + Int64(row) * to_stride_0 + Int64(5) * to_stride_1 + thread
    of_head_10 = to + Int64(row) * to_stride_0 + Int64(12) * to_stride_1 + thread
    of_head_11 = to + Int64(row) * to_stride_0 + Int64(13) * to_stride_1 + thread
    of_head_12 = to + Int64(row) * to_stride_0 + Int64(6) * to_stride_1 + thread
    of_head_13 = to + Int64(row) * to_stride_0 + Int64(7) * to_stride_1 + thread
    of_head_14 = to + Int64(row) * to_stride_0 + Int64(14) * to_stride_1 + thread
    of_head_15 = to + Int64(row) * to_stride_0 + Int64(15) * to_stride_1 + thread
    for g in cutlass.range(4, unroll=1):
        of_group = stat_s[COLUMNS // 2 + g]
        if some:
            fragment_sm100.load_columns(held, acc, g * COLUMNS, thread)
        else:
            for i in cutlass.range_constexpr(COLUMNS):
                held[i] = Float32(0.0)
        of_head_0[g * 128] = ((held[0] + held[COLUMNS // 2] * 0.0625) * (factors[0] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_1[g * 128] = ((held[1] + held[COLUMNS // 2 + 1] * 0.0625) * (factors[1] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_2[g * 128] = ((held[2] + held[COLUMNS // 2 + 2] * 0.0625) * (factors[8] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_3[g * 128] = ((held[3] + held[COLUMNS // 2 + 3] * 0.0625) * (factors[9] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_4[g * 128] = ((held[4] + held[COLUMNS // 2 + 4] * 0.0625) * (factors[2] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_5[g * 128] = ((held[5] + held[COLUMNS // 2 + 5] * 0.0625) * (factors[3] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_6[g * 128] = ((held[6] + held[COLUMNS // 2 + 6] * 0.0625) * (factors[10] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_7[g * 128] = ((held[7] + held[COLUMNS // 2 + 7] * 0.0625) * (factors[11] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_8[g * 128] = ((held[8] + held[COLUMNS // 2 + 8] * 0.0625) * (factors[4] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_9[g * 128] = ((held[9] + held[COLUMNS // 2 + 9] * 0.0625) * (factors[5] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_10[g * 128] = ((held[10] + held[COLUMNS // 2 + 10] * 0.0625) * (factors[12] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_11[g * 128] = ((held[11] + held[COLUMNS // 2 + 11] * 0.0625) * (factors[13] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_12[g * 128] = ((held[12] + held[COLUMNS // 2 + 12] * 0.0625) * (factors[6] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_13[g * 128] = ((held[13] + held[COLUMNS // 2 + 13] * 0.0625) * (factors[7] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_14[g * 128] = ((held[14] + held[COLUMNS // 2 + 14] * 0.0625) * (factors[14] * of_group)).to(
            cutlass.BFloat16
        )
        of_head_15[g * 128] = ((held[15] + held[COLUMNS // 2 + 15] * 0.0625) * (factors[15] * of_group)).to(
            cutlass.BFloat16
        )


@cute.jit
def merge_heads(
    row, share, shares, o_partial, lse_partial, attn_sink, out, out_stride_0, out_stride_1, lse, lse_stride_0,
    splits, lse_scale, empty_lse, parts, thread
):
    """Write the weighted sum of the splits for a share of the heads, with four dims per thread.

    Heads are joined `together` at a time. A row without ids gives 0 and `empty_lse`.
    """
    own = (HEADS - share + shares - 1) // shares
    for turn in cutlass.range(own, unroll=1):
        top = cute.make_rmem_tensor(1, Float32)
        total = cute.make_rmem_tensor(1, Float32)
        kept = cute.make_rmem_tensor(1, Float32)
        merged = cute.make_rmem_tensor(4, Float32)
        four = cute.make_rmem_tensor(4, Float32)
        weights = cute.make_rmem_tensor(8, Float32)
        for column in cutlass.range_constexpr(1):
            top[column] = Float32(-Float32.inf)
            total[column] = Float32(0.0)
        for i in cutlass.range_constexpr(4):
            merged[i] = Float32(0.0)
        for first in cutlass.range(0, parts, 8, unroll=1):
            for p in cutlass.range_constexpr(8):
                lses = lse_partial + Int64(row * splits + cutlass.min(first + p, parts - 1)) * HEADS
                for column in cutlass.range_constexpr(1):
                    weights[p + column] = cutlass.select_(
                        first + p < parts, lses[share + cutlass.min(turn + column, own - 1) * shares],
                        -Float32.inf
                    )
            for column in cutlass.range_constexpr(1):
                peak = Float32(top[column])
                for at in cutlass.range_constexpr(column, 8):
                    peak = cute.arch.fmax(peak, weights[at])
                # The weight of an empty part is 0, even if all parts are empty.
                base = cutlass.select_(peak > -Float32.inf, peak, 0.0)
                kept[column] = warps.exp2(top[column] - base)
                top[column] = peak
                total[column] = total[column] * kept[column]
                for at in cutlass.range_constexpr(column, 8):
                    weights[at] = warps.exp2(weights[at] - base)
                    total[column] = total[column] + weights[at]
            for i in cutlass.range_constexpr(4):
                merged[i] = merged[i] * kept[i // 4]
            for p in cutlass.range_constexpr(8):
                for u in cutlass.range_constexpr(1):
                    partial = o_partial + Int64(
                        (row * splits + cutlass.min(first + p, parts - 1)) * HEADS + (
                            share + cutlass.min(turn + u, own - 1) * shares
                        )
                    ) * 512
                    cute.autovec_copy(warps.group(partial, 4, thread), four)
                    for e in cutlass.range_constexpr(4):
                        merged[u * 4 + e] = merged[u * 4 + e] + four[e] * weights[p + (u * 4 + e) // 4]
        for column in cutlass.range_constexpr(1):
            if turn + column < own:
                head = share + cutlass.min(turn + column, own - 1) * shares
                joined = cutlass.select_(
                    total[column] > 0.0, warps.log2(total[column]) + top[column], -Float32.inf
                )
                scale = cutlass.select_(
                    total[column] > 0.0, warps.rcp_approx(total[column]), 0.0
                ) * cutlass.select_(
                    joined > -Float32.inf,
                    warps.rcp_approx(warps.exp2(attn_sink[head] * LOG2_E - joined) + 1.0), 0.0
                )
                to = out + Int64(row) * out_stride_0 + Int64(head) * out_stride_1 + thread * 4
                warps.store_pair(to, merged[column * 4] * scale, merged[column * 4 + 1] * scale)
                warps.store_pair(to + 2, merged[column * 4 + 2] * scale, merged[column * 4 + 2 + 1] * scale)
                if thread == 0:
                    of_row = lse + Int64(row) * lse_stride_0
                    of_row[head] = cutlass.select_(joined > -Float32.inf, joined * lse_scale, empty_lse)


@cute.jit
def find_rows(low, high, cached, page_inverse, page_shift, page_gap):
    """The rows of the cache that a lane's two ids of a tile name.

    Without the branch ptxas moves the arithmetic across other code, and kernels of 16 heads were 2 to 3
    % slower.
    """
    low_row = low
    high_row = high
    if page_gap != 0:
        low_page = warps.mul_hi(
            low.to(cutlass.Uint32) << 2, page_inverse.to(cutlass.Uint32)
        ).to(Int32) >> page_shift
        low_row = cutlass.select_((low >= 0) & (low < cached), low + low_page * page_gap, -1)
        high_page = warps.mul_hi(
            high.to(cutlass.Uint32) << 2, page_inverse.to(cutlass.Uint32)
        ).to(Int32) >> page_shift
        high_row = cutlass.select_((high >= 0) & (high < cached), high + high_page * page_gap, -1)
    return low_row, high_row


@cute.jit
def copy_stored(kv, pe, scales, kv_cache, kv_cache_stride_0, low, high, n, thread):
    """Start the copies of a tile's tokens as they are stored, with eight threads per token.

    A token becomes zeros if its id names no row.
    """
    own = kv_cache + thread % 8 * 16
    row = thread // 8
    token_0 = warps.shuffle(low, row % 32)
    inside_0 = (token_0 >= 0) & (token_0 < n)
    bytes_0 = own + Int64(token_0) * kv_cache_stride_0
    warps.copy16(
        warps.piece(kv, 16, row, thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_0, inside_0
    )
    warps.copy16(
        warps.piece(kv, 16, row, 128 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_0 + 128,
        inside_0
    )
    warps.copy16(
        warps.piece(kv, 16, row, 256 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_0 + 256,
        inside_0
    )
    warps.copy16(
        warps.piece(kv, 16, row, 384 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_0 + 384,
        inside_0
    )
    warps.copy16(
        warps.piece(pe, 8, row, thread % 8 * 8, (TILE, ROPE_DIM), 128).iterator, bytes_0 + 528, inside_0
    )
    if thread % 8 == 0:
        warps.copy16(warps.piece(scales, 4, row, 0, (TILE, GROUPS), 0).iterator, bytes_0 + 512, inside_0)
    row = 16 + thread // 8
    token_1 = warps.shuffle(low, row % 32)
    inside_1 = (token_1 >= 0) & (token_1 < n)
    bytes_1 = own + Int64(token_1) * kv_cache_stride_0
    warps.copy16(
        warps.piece(kv, 16, row, thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_1, inside_1
    )
    warps.copy16(
        warps.piece(kv, 16, row, 128 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_1 + 128,
        inside_1
    )
    warps.copy16(
        warps.piece(kv, 16, row, 256 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_1 + 256,
        inside_1
    )
    warps.copy16(
        warps.piece(kv, 16, row, 384 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_1 + 384,
        inside_1
    )
    warps.copy16(
        warps.piece(pe, 8, row, thread % 8 * 8, (TILE, ROPE_DIM), 128).iterator, bytes_1 + 528, inside_1
    )
    if thread % 8 == 0:
        warps.copy16(warps.piece(scales, 4, row, 0, (TILE, GROUPS), 0).iterator, bytes_1 + 512, inside_1)
    row = 32 + thread // 8
    token_2 = warps.shuffle(high, row % 32)
    inside_2 = (token_2 >= 0) & (token_2 < n)
    bytes_2 = own + Int64(token_2) * kv_cache_stride_0
    warps.copy16(
        warps.piece(kv, 16, row, thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_2, inside_2
    )
    warps.copy16(
        warps.piece(kv, 16, row, 128 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_2 + 128,
        inside_2
    )
    warps.copy16(
        warps.piece(kv, 16, row, 256 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_2 + 256,
        inside_2
    )
    warps.copy16(
        warps.piece(kv, 16, row, 384 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_2 + 384,
        inside_2
    )
    warps.copy16(
        warps.piece(pe, 8, row, thread % 8 * 8, (TILE, ROPE_DIM), 128).iterator, bytes_2 + 528, inside_2
    )
    if thread % 8 == 0:
        warps.copy16(warps.piece(scales, 4, row, 0, (TILE, GROUPS), 0).iterator, bytes_2 + 512, inside_2)
    row = 48 + thread // 8
    token_3 = warps.shuffle(high, row % 32)
    inside_3 = (token_3 >= 0) & (token_3 < n)
    bytes_3 = own + Int64(token_3) * kv_cache_stride_0
    warps.copy16(
        warps.piece(kv, 16, row, thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_3, inside_3
    )
    warps.copy16(
        warps.piece(kv, 16, row, 128 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_3 + 128,
        inside_3
    )
    warps.copy16(
        warps.piece(kv, 16, row, 256 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_3 + 256,
        inside_3
    )
    warps.copy16(
        warps.piece(kv, 16, row, 384 + thread % 8 * 16, (TILE, LATENT_DIM), 128).iterator, bytes_3 + 384,
        inside_3
    )
    warps.copy16(
        warps.piece(pe, 8, row, thread % 8 * 8, (TILE, ROPE_DIM), 128).iterator, bytes_3 + 528, inside_3
    )
    if thread % 8 == 0:
        warps.copy16(warps.piece(scales, 4, row, 0, (TILE, GROUPS), 0).iterator, bytes_3 + 512, inside_3)


@cute.jit
def softmax(
    q_nope: cute.Pointer, q_pe: cute.Pointer, indices: cute.Pointer, topk_length: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32,
    empty_lse: Float32, has_lengths: Int32, cached: Int32, share: Int32, reach: Int32, span: Int32,
    row_step: Int32, t: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32,
    q_pe_stride_h: Int32, topk: Int32, indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32,
    lse_stride: Int32, splits: Int32, q_s: cute.Pointer, qpe_s: cute.Pointer, unit_s: cute.Pointer,
    scale_s: cute.Pointer, p_s: cute.Pointer, red_s: cute.Pointer, stat_s: cute.Pointer, tmem: cute.Pointer,
    q_full: cute.Pointer, q_empty: cute.Pointer, kv_full: cute.Pointer, kv_empty: cute.Pointer,
    s_full: cute.Pointer, s_empty: cute.Pointer, p_full: cute.Pointer, p_empty: cute.Pointer,
    o_full: cute.Pointer, cta: Int32, done: Int32, it: Int32, low: Int32, high: Int32, in_low: Int32,
    in_high: Int32, live: Boolean, thread: Int32, lane: Int32
):
    """Terms of the queries and of P, online softmax, epilogue, merge."""
    partial = cute.make_rmem_tensor(GROUPS * HEADS, Float32)
    scores = cute.make_rmem_tensor(HEADS // 2, Float32)
    sums = cute.make_rmem_tensor(HEADS // 4, Float32)
    top = cute.make_rmem_tensor(HEADS // 4, Float32)
    peak = cute.make_rmem_tensor(HEADS // 4, Float32)
    held = cute.make_rmem_tensor(COLUMNS, Float32)
    scales = cute.make_rmem_tensor(2 * GROUPS, Float32)
    units = cute.make_rmem_tensor(GROUPS, Float32)
    lift = cute.make_rmem_tensor(GROUPS, Float32)
    worker = thread
    unit = Int32(cta * share)
    end = cta * share + reach
    while unit < end:
        row = unit // span
        first = unit - row * span
        turns = cutlass.min(end - unit, scalars.ceildiv(topk, TILE) - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * TILE, counted)
            low, high = read_ids(indices, indices_stride, row, first, stop, lane)
            if done == 0:
                cute.arch.mbarrier_wait(q_empty, (0 & 1) ^ 1)
                split_queries(
                    q_s, unit_s, qpe_s, q_nope, q_nope_stride_t, q_nope_stride_h, q_pe, q_pe_stride_t,
                    q_pe_stride_h, row, worker
                )
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(q_full)
                # The units of later queries are written before the epilogue's meetings.
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
            begin = it
            sums.fill(0.0)
            peak.fill(-Float32.inf)
            units.fill(7.888609052210118e-31)
            grown = Boolean(False)
            risen = Boolean(False)
            for turn in cutlass.range(turns, unroll=1):
                in_low, in_high, live = vote(low, high, cached)
                low, high = read_ids(indices, indices_stride, row, first + (turn + 1), stop, lane)
                if live:
                    cute.arch.mbarrier_wait(s_full + it % TILE_STAGES, (it // TILE_STAGES) & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # What a thread has of an accumulator of 64 rows, as wgmma leaves it, from tensor memory;
                    # waited for at the release.
                    fragment_sm100.read_accumulator(
                        partial, tmem + (GROUPS * COLUMNS + it % TILE_STAGES * (GROUPS * COLUMNS)), worker
                    )
                    fragment_sm100.read_accumulator(
                        scores,
                        tmem + (GROUPS * COLUMNS + GROUPS * COLUMNS * TILE_STAGES + it % TILE_STAGES * HEADS),
                        worker
                    )
                    cute.arch.fence_view_async_tmem_load()
                    nvvm.tcgen05_fence("before_thread_sync")
                    cute.arch.sync_warp()
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive(s_empty + it % TILE_STAGES)
                    cute.arch.mbarrier_wait(kv_full + it % TILES, (it // TILES) & 1)
                    take_scales(scales, units, lift, scale_s + it % TILES * (TILE * GROUPS), worker, lane)
                    cute.arch.sync_warp()
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive(kv_empty + it % TILES)
                    risen = find_risen(lift)
                    join_partial_scores(scores, partial, scales, unit_s, worker)
                    mask_scores(scores, in_low, in_high, sm_scale, worker)
                    leave_maxima(red_s + it % 2 * (HEADS * 4), scores, worker)
                    cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                    grown = take_maxima(top, peak, red_s + it % 2 * (HEADS * 4), worker)
                    grown = grown | risen
                    if grown:
                        raise_reference(peak, top, sums, stat_s, worker)
                        leave_group_factors_lift(stat_s, lift, worker)
                        cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                        if it > begin:
                            cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                            nvvm.tcgen05_fence("after_thread_sync")
                            rescale_terms(tmem, held, stat_s, worker)
                            # o: p also gives its slot back
                    cute.arch.mbarrier_wait(p_empty + it % TILE_STAGES, ((it // TILE_STAGES) & 1) ^ 1)
                    weigh_tokens(scores, sums, peak)
                    store_weights_in_terms(
                        p_s + it % TILE_STAGES * (TILE * (GROUPS * COLUMNS)), scores, scales, units, worker,
                        lane
                    )
                    # If O was not rescaled, wait for it here: a parity tells only adjacent phases apart.
                    if (it > begin) & (grown == False):
                        cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                        nvvm.tcgen05_fence("after_thread_sync")
                        # o: p also gives its slot back
                    cute.arch.fence_proxy("async.shared", space="cta")
                    cute.arch.fence_view_async_tmem_load()
                    cute.arch.fence_view_async_tmem_store()
                    nvvm.tcgen05_fence("before_thread_sync")
                    cute.arch.sync_warp()
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive(p_full + it % TILE_STAGES)
                    it = it + 1
            if ((row + row_step) * span < end) & (row + row_step < t):
                cute.arch.mbarrier_wait(q_empty, ((done + 1) & 1) ^ 1)
                split_queries(
                    q_s, unit_s, qpe_s, q_nope, q_nope_stride_t, q_nope_stride_h, q_pe, q_pe_stride_t,
                    q_pe_stride_h, row + row_step, worker
                )
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(q_full)
            leave_sums(red_s + it % 2 * (HEADS * 4), sums, worker)
            cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
            if it > begin:
                cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                nvvm.tcgen05_fence("after_thread_sync")
            from_cta = row * span // share
            parts = (row * span + scalars.ceildiv(topk, TILE) - 1) // share - from_cta + 1
            if parts > 1:
                finish_columns_split(
                    red_s + it % 2 * (HEADS * 4), lse_partial, row, cta - from_cta, top, peak, stat_s, splits,
                    worker
                )
                leave_group_factors_units(stat_s, units, worker)
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                write_terms_split(
                    o_partial, tmem, row, cta - from_cta, it > begin, held, stat_s, splits, worker
                )
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                grid.count_in(arrivals + row + cta % 1, worker)
            else:
                finish_columns(
                    red_s + it % 2 * (HEADS * 4), lse, lse_stride, row, top, peak, stat_s, attn_sink,
                    lse_scale, empty_lse, worker
                )
                leave_group_factors_units(stat_s, units, worker)
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                write_terms(out, out_stride_t, out_stride_h, tmem, row, it > begin, held, stat_s, worker)
            if it > begin:
                # o: p also gives its slot back
                pass
            done = done + 1
        unit = (row + row_step) * span
    if splits > 1:
        unit = cta * share
        while unit < end:
            row = unit // span
            from_cta = row * span // share
            parts = (row * span + scalars.ceildiv(topk, TILE) - 1) // share - from_cta + 1
            if (row < t) & (unit - row * span < scalars.ceildiv(topk, TILE)) & (parts > 1):
                grid.await_count(arrivals + row + cta % 1, parts, worker)
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                merge_heads(
                    row, cta - from_cta, parts, o_partial, lse_partial, attn_sink, out, out_stride_t,
                    out_stride_h, lse, lse_stride, splits, lse_scale, empty_lse, parts, worker
                )
                grid.count_out(arrivals + row + cta % 1, parts, worker)
            unit = row * span + span


@cute.jit
def producer(
    kv_cache: cute.Pointer, indices: cute.Pointer, topk_length: cute.Pointer, has_lengths: Int32,
    cached: Int32, page_inverse: Int32, page_shift: Int32, page_gap: Int32, share: Int32, reach: Int32,
    span: Int32, row_step: Int32, t: Int32, n: Int32, kv_cache_stride: Int32, topk: Int32,
    indices_stride: Int32, kv_s: cute.Pointer, pe_s: cute.Pointer, scale_s: cute.Pointer,
    kv_full: cute.Pointer, kv_empty: cute.Pointer, cta: Int32, done: Int32, it: Int32, low: Int32,
    high: Int32, in_low: Int32, in_high: Int32, live: Boolean, thread: Int32, lane: Int32
):
    """Selected tokens into the ring."""
    worker = thread % 128
    unit = Int32(cta * share)
    end = cta * share + reach
    while unit < end:
        row = unit // span
        first = unit - row * span
        turns = cutlass.min(end - unit, scalars.ceildiv(topk, TILE) - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * TILE, counted)
            low, high = read_ids(indices, indices_stride, row, first, stop, lane)
            for turn in cutlass.range(turns, unroll=1):
                in_low, in_high, live = vote(low, high, cached)
                now_low, now_high = find_rows(low, high, cached, page_inverse, page_shift, page_gap)
                low, high = read_ids(indices, indices_stride, row, first + (turn + 1), stop, lane)
                if live:
                    cute.arch.mbarrier_wait(kv_empty + it % TILES, ((it // TILES) & 1) ^ 1)
                    copy_stored(
                        kv_s + it % TILES * (TILE * LATENT_DIM), pe_s + it % TILES * (TILE * ROPE_DIM),
                        scale_s + it % TILES * (TILE * GROUPS), kv_cache, kv_cache_stride, now_low, now_high,
                        n, worker
                    )
                    cute.arch.cp_async_mbarrier_arrive_noinc(kv_full + it % TILES)
                    it = it + 1
            done = done + 1
        unit = (row + row_step) * span


@cute.jit
def mma(
    indices: cute.Pointer, topk_length: cute.Pointer, has_lengths: Int32, cached: Int32, share: Int32,
    reach: Int32, span: Int32, row_step: Int32, t: Int32, topk: Int32, indices_stride: Int32,
    q_s: cute.Pointer, qpe_s: cute.Pointer, kv_s: cute.Pointer, pe_s: cute.Pointer, p_s: cute.Pointer,
    tmem: cute.Pointer, q_full: cute.Pointer, q_empty: cute.Pointer, kv_full: cute.Pointer,
    kv_empty: cute.Pointer, s_full: cute.Pointer, s_empty: cute.Pointer, p_full: cute.Pointer,
    p_empty: cute.Pointer, o_full: cute.Pointer, cta: Int32, done: Int32, it: Int32, low: Int32, high: Int32,
    in_low: Int32, in_high: Int32, live: Boolean, lane: Int32
):
    """Issues every tcgen05.mma and commit."""
    qk_a = QK.operand_a(kv_s, TILE, LATENT_DIM, TILES, 128)
    qk_b = QK.operand_b(q_s, COLUMNS, LATENT_DIM, 1, 128)
    qk_pe_a = QK_PE.operand_a(pe_s, TILE, ROPE_DIM, TILES, 128)
    qk_pe_b = QK_PE.operand_b(qpe_s, HEADS, ROPE_DIM, 1, 128)
    pv_a = PV.operand_a(kv_s, TILE, LATENT_DIM, TILES, 128)
    pv_b = PV.operand_b(p_s, TILE, GROUPS * COLUMNS, TILE_STAGES, 32)
    unit = Int32(cta * share)
    end = cta * share + reach
    while unit < end:
        row = unit // span
        first = unit - row * span
        turns = cutlass.min(end - unit, scalars.ceildiv(topk, TILE) - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * TILE, counted)
            low, high = read_ids(indices, indices_stride, row, first, stop, lane)
            cute.arch.mbarrier_wait(q_full, done & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            begin = it
            for turn in cutlass.range(turns + 1, unroll=1):
                in_low, in_high, live = vote(low, high, cached)
                low, high = read_ids(indices, indices_stride, row, first + (turn + 1), stop, lane)
                late = it > begin
                before = it - 1
                if live:
                    cute.arch.mbarrier_wait(s_empty + it % TILE_STAGES, ((it // TILE_STAGES) & 1) ^ 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    cute.arch.mbarrier_wait(kv_full + it % TILES, (it // TILES) & 1)
                    cute.arch.fence_proxy("async.shared", space="cta")
                    nvvm.tcgen05_fence("after_thread_sync")
                    for g in cutlass.range(GROUPS, unroll=1):
                        # S^T = K Q^T, a group of the dims
                        QK.multiply(
                            qk_a[None, None, None, it % TILES * (LATENT_DIM // GROUP) + g],
                            qk_b[None, None, None, g],
                            tmem + (GROUPS * COLUMNS + it % TILE_STAGES * (GROUPS * COLUMNS) + g * COLUMNS),
                            False
                        )
                    # the rope dims
                    QK_PE.multiply(
                        qk_pe_a[None, None, None, it % TILES], qk_pe_b[None, None, None, 0],
                        tmem + (GROUPS * COLUMNS + GROUPS * COLUMNS * TILE_STAGES + it % TILE_STAGES * HEADS),
                        False
                    )
                    with cute.arch.elect_one():
                        tcgen05.commit(s_full + it % TILE_STAGES)
                    it = it + 1
                if turn == turns:
                    with cute.arch.elect_one():
                        tcgen05.commit(q_empty)
                if late & (live | (turn == turns)):
                    cute.arch.mbarrier_wait(p_full + before % TILE_STAGES, (before // TILE_STAGES) & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # o: p also gives its slot back
                    for g in cutlass.range(GROUPS, unroll=1):
                        # O^T += V^T P^T, a group of the dims
                        PV.multiply(
                            pv_a[None, None, None, before % TILES * (LATENT_DIM // GROUP) + g],
                            pv_b[None, None, None, before % TILE_STAGES * (GROUPS * COLUMNS // COLUMNS) + g],
                            tmem + g * COLUMNS, before > begin
                        )
                    with cute.arch.elect_one():
                        tcgen05.commit(kv_empty + before % TILES)
                    with cute.arch.elect_one():
                        tcgen05.commit(p_empty + before % TILE_STAGES)
                    with cute.arch.elect_one():
                        tcgen05.commit(o_full)
            done = done + 1
        unit = (row + row_step) * span


@cute.kernel
def sparse_mla__cutedsl_sm100a__h16_fp8_bt64_cl1_cp_async_terms2(
    q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32,
    lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_gap: Int32, ctas: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32,
    t: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32, q_pe_stride_h: Int32,
    n: Int32, kv_cache_stride: Int32, topk: Int32, indices_stride: Int32, out_stride_t: Int32,
    out_stride_h: Int32, lse_stride: Int32, splits: Int32, counters: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    qpe_s = shared.qpe_s.data_ptr()
    unit_s = shared.unit_s.data_ptr()
    kv_s = shared.kv_s.data_ptr()
    pe_s = shared.pe_s.data_ptr()
    scale_s = shared.scale_s.data_ptr()
    p_s = shared.p_s.data_ptr()
    red_s = shared.red_s.data_ptr()
    stat_s = shared.stat_s.data_ptr()
    q_full = shared.q_full.data_ptr()
    q_empty = shared.q_empty.data_ptr()
    kv_full = shared.kv_full.data_ptr()
    kv_empty = shared.kv_empty.data_ptr()
    s_full = shared.s_full.data_ptr()
    s_empty = shared.s_empty.data_ptr()
    p_full = shared.p_full.data_ptr()
    p_empty = shared.p_empty.data_ptr()
    o_full = shared.o_full.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    cta, _, _ = cute.arch.block_idx()
    done = Int32(0)
    it = Int32(0)
    low = Int32(0)
    high = Int32(0)
    in_low = Int32(0)
    in_high = Int32(0)
    live = Boolean(False)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_full + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(q_empty + i, 1)
            for i in cutlass.range_constexpr(TILES):
                cute.arch.mbarrier_init(kv_full + i, 128)
            for i in cutlass.range_constexpr(TILES):
                cute.arch.mbarrier_init(kv_empty + i, 5)
            for i in cutlass.range_constexpr(TILE_STAGES):
                cute.arch.mbarrier_init(s_full + i, 1)
            for i in cutlass.range_constexpr(TILE_STAGES):
                cute.arch.mbarrier_init(s_empty + i, 4)
            for i in cutlass.range_constexpr(TILE_STAGES):
                cute.arch.mbarrier_init(p_full + i, 4)
            for i in cutlass.range_constexpr(TILE_STAGES):
                cute.arch.mbarrier_init(p_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(o_full + i, 1)
            cute.arch.mbarrier_init_fence()
    if warp == 1:
        cute.arch.alloc_tmem(512, shared.tmem)
        cute.arch.relinquish_tmem_alloc_permit()
        nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, shared.tmem)
    if warp < 4:
        softmax(
            q_nope, q_pe, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals,
            sm_scale, lse_scale, empty_lse, has_lengths, cached, share, reach, span, row_step, t,
            q_nope_stride_t, q_nope_stride_h, q_pe_stride_t, q_pe_stride_h, topk, indices_stride,
            out_stride_t, out_stride_h, lse_stride, splits, q_s, qpe_s, unit_s, scale_s, p_s, red_s, stat_s,
            tmem, q_full, q_empty, kv_full, kv_empty, s_full, s_empty, p_full, p_empty, o_full, cta, done, it,
            low, high, in_low, in_high, live, thread, lane
        )
    elif warp < 8:
        producer(
            kv_cache, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap, share,
            reach, span, row_step, t, n, kv_cache_stride, topk, indices_stride, kv_s, pe_s, scale_s, kv_full,
            kv_empty, cta, done, it, low, high, in_low, in_high, live, thread, lane
        )
    else:
        mma(
            indices, topk_length, has_lengths, cached, share, reach, span, row_step, t, topk, indices_stride,
            q_s, qpe_s, kv_s, pe_s, p_s, tmem, q_full, q_empty, kv_full, kv_empty, s_full, s_empty, p_full,
            p_empty, o_full, cta, done, it, low, high, in_low, in_high, live, lane
        )
    # Tensor memory goes back only when no role can touch it any more.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if thread // 32 == 1:
        cute.arch.dealloc_tmem(tmem, 512)


@cute.jit
def program(
    q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32,
    lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_gap: Int32, ctas: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32,
    t: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32, q_pe_stride_h: Int32,
    n: Int32, kv_cache_stride: Int32, topk: Int32, indices_stride: Int32, out_stride_t: Int32,
    out_stride_h: Int32, lse_stride: Int32, splits: Int32, counters: Int32
):
    kernel = sparse_mla__cutedsl_sm100a__h16_fp8_bt64_cl1_cp_async_terms2(
        q_nope, q_pe, kv_cache, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals,
        sm_scale, lse_scale, empty_lse, has_lengths, cached, page_inverse, page_shift, page_gap, ctas, share,
        reach, span, row_step, t, q_nope_stride_t, q_nope_stride_h, q_pe_stride_t, q_pe_stride_h, n,
        kv_cache_stride, topk, indices_stride, out_stride_t, out_stride_h, lse_stride, splits, counters
    )
    kernel.launch(grid=(1, 1, 1), block=(288, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1)
