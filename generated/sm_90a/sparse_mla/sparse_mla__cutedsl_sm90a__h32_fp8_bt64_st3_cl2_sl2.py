"""sparse_mla__cutedsl_sm90a__h32_fp8_bt64_st3_cl2_sl2

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: heads=32, kv=fp8, tile=64, stages=3, cluster=2, slices=2.

  gather       attend
  warps 4..7   warps 0..3
  |==== kv ===>|   ckv_s kpe_s, ring of 3; threads -> wgmma
  |            |   x, between CTAs: x_s, ring of 2; peers -> threads
  |            |   o, between CTAs: o_s, once; grid -> threads

roles
  attend     threads 0..127  queries, both products, softmax, merge, output
  gather     threads 128..255  selected rows into the ring
buffers
  q_s        32x256 bfloat16, shared, 128-byte swizzle
  qpe_s      32x32 bfloat16, shared, 64-byte swizzle
  ckv_s      3 stages of 64x256 bfloat16, shared, 128-byte swizzle
  kpe_s      3 stages of 64x32 bfloat16, shared, 64-byte swizzle
  p_s        64x32 bfloat16, shared, 64-byte swizzle
  red_s      32x4 float32, shared
  x_s        2 stages of 1x4x128x4 float32, shared
  o_s        64x160 float32, shared, in the storage of ckv_s
  scores     64x32 float32, registers of attend
  acc        256x32 float32, registers of attend
  sums       128x8 float32, registers of attend
  top        128x8 float32, registers of attend
  peak       128x8 float32, registers of attend
  sinks      128x4 float32, registers of attend
  words      128x44 uint32, registers of gather
pipelines
  kv: gather (threads) ==[ckv_s kpe_s: 3-slot ring]==> attend (wgmma)
    full  x128: gather fence.proxy.async, arrive full
      attend: wait full
    empty x128: gather wait empty
      attend: wgmma wait, arrive empty
  x: attend (peers) ==[x_s: 2-slot ring]==> attend (threads)
    full  x1, 8192 bytes: attend arrive + expect bytes
      attend: wait full
  o: attend (grid) ==[o_s: once]==> attend (threads)
    words through inboxes: attend sends
      attend: look for words, leave zeros, meet
  named barrier attend: attend
totals: 256 threads, 150080 of 232448 bytes of shared memory, grid (t, 2, splits // 2)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from dsl_kernels.device.cutedsl import inbox, scalars, warps, wgmma
from dsl_kernels.runtime.artifact import Launch, Operand

HEADS = 32  # query heads
TILE = 64  # tokens per tile
STAGES = 3  # gathered tiles in flight
SLICES = 2  # CTAs of a cluster that share out the dims and add their partial scores
DIMS = 256
ROPE = 32
ATTEND_BARRIER = 1
ATTEND_THREADS = 128
OWN_COLUMNS = 8
OWN_SCORES = 16
LOG2_E = 1.4426950408889634
OWN_OUTPUTS = 64
LATENT_DIM = 512

QK_NOPE = wgmma.Product("bfloat16", TILE, HEADS, DIMS, "k", "k")
QK_PE = wgmma.Product("bfloat16", TILE, HEADS, ROPE, "k", "k")
PV = wgmma.Product("bfloat16", DIMS, HEADS, TILE, "mn", "mn")

LAUNCH = Launch(
    operands=(
        Operand(
            "q_nope", "tensor", "bfloat16", ("t", "32", "512"),
            strides=("q_nope_stride_t", "q_nope_stride_h", "1")
        ),
        Operand(
            "q_pe", "tensor", "bfloat16", ("t", "32", "64"), strides=("q_pe_stride_t", "q_pe_stride_h", "1")
        ),
        Operand("kv_cache", "tensor", "uint8", ("n", "656"), strides=("kv_cache_stride", "1")),
        Operand("indices", "tensor", "int32", ("t", "topk"), strides=("indices_stride", "1")),
        Operand("topk_length", "tensor", "int32", ("t",)),
        Operand("attn_sink", "tensor", "float32", ("32",)),
        Operand(
            "out", "tensor", "bfloat16", ("t", "32", "512"), strides=("out_stride_t", "out_stride_h", "1"),
            written=True
        ),
        Operand("lse", "tensor", "float32", ("t", "32"), strides=("lse_stride", "1"), written=True),
        Operand("inboxes", "tensor", "int32", ("inbox_words",), written=True),
        Operand("sm_scale", "scalar", "float32"),
        Operand("lse_scale", "scalar", "float32"),
        Operand("empty_lse", "scalar", "float32"),
        Operand("has_lengths", "scalar", "int32"),
        Operand("cached", "scalar", "int32"),
        Operand("page_inverse", "scalar", "int32"),
        Operand("page_shift", "scalar", "int32"),
        Operand("page_gap", "scalar", "int32"),
        Operand("splits", "scalar", "int32"),
    ),
    grid=("t", "2", "splits // 2"),
    block=256,
    cluster=(1, 2, 1),
    resident="splits // 2 - 1",
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, HEADS * DIMS], 1024]
    qpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, HEADS * ROPE], 1024]
    ckv_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, STAGES * TILE * DIMS], 1024]
    kpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, STAGES * TILE * ROPE], 1024]
    p_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE * HEADS], 1024]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, HEADS * 4], 128]
    x_s: cute.struct.Align[cute.struct.MemRange[Float32, 2 * (SLICES - 1) * (HEADS // 8) * 128 * 4], 128]
    kv_full: cute.struct.MemRange[Int64, STAGES]
    kv_empty: cute.struct.MemRange[Int64, STAGES]
    x_full: cute.struct.MemRange[Int64, 2]


@cute.jit
def read_ids(indices, indices_stride_0, row, tile, end, lane):
    """Read ids `lane` and `lane` + 32 of a tile of a query; -1 replaces the ids from number `end` on."""
    ids = indices + Int64(row) * indices_stride_0
    first = tile * 64 + lane
    low = warps.load_or(ids + first, first < end, -1)
    high = warps.load_or(ids + (first + 32), first + 32 < end, -1)
    return low, high


@cute.jit
def load_sinks(sinks, attn_sink, thread):
    """Read the sink logits of a thread's heads, one for each group of eight, long before they are needed."""
    mine = attn_sink + (thread >> 4)
    sinks[0] = mine[0]
    sinks[1] = mine[8]
    sinks[2] = mine[16]
    sinks[3] = mine[24]


@cute.jit
def load_queries(
    target, rope_target, q, q_stride_0, q_stride_1, q_rope, q_rope_stride_0, q_rope_stride_1, row, part,
    thread
):
    """Copy part `part` of a block of heads of one query: `columns` columns of `q`, `rope_columns` of
    `q_rope`.
    """
    held = cute.make_rmem_tensor(36, cutlass.Uint32)
    # All reads come before the first write: a compiler moves no read past a write.
    for i in cutlass.range_constexpr(8):
        item = i * 128 + thread
        of_head = q + Int64(row) * q_stride_0 + Int64(item // (DIMS // 8)) * q_stride_1 + part * DIMS
        warps.load_vector(held, i * 4, 4, of_head + item % (DIMS // 8) * 8, item < HEADS * (DIMS // 8))
    for i in cutlass.range_constexpr(1):
        item = i * 128 + thread
        of_head = q_rope + Int64(row) * q_rope_stride_0 + Int64(
            item // (ROPE // 8)
        ) * q_rope_stride_1 + part * ROPE
        warps.load_vector(held, (8 + i) * 4, 4, of_head + item % (ROPE // 8) * 8, item < HEADS * (ROPE // 8))
    for i in cutlass.range_constexpr(8):
        item = i * 128 + thread
        if item < HEADS * (DIMS // 8):
            warps.store_vector(
                held, i * 4,
                warps.piece(
                    target, 8, item // (DIMS // 8), item % (DIMS // 8) * 8, (HEADS, DIMS), 128
                ).iterator
            )
    for i in cutlass.range_constexpr(1):
        item = i * 128 + thread
        if item < HEADS * (ROPE // 8):
            warps.store_vector(
                held, (8 + i) * 4,
                warps.piece(
                    rope_target, 8, item // (ROPE // 8), item % (ROPE // 8) * 8, (HEADS, ROPE), 64
                ).iterator
            )


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
def send_scores(scores, slots, to_slots, rank, thread):
    """Send the partial scores to the same thread of each other CTA of the slice group.

    Slot d - 1 receives from rank XOR d.
    """
    warps.send_fours(slots + thread * 4, to_slots, rank ^ 1, scores, 512)


@cute.jit
def add_scores(scores, received, thread):
    """Add the scores of the other CTAs, pairs first: (0 + 1) + (2 + 3). All CTAs then round alike."""
    slots = received + thread * 4
    for v in cutlass.range_constexpr(OWN_SCORES // 4):
        scores[v * 4] = scores[v * 4] + slots[v * 512]
        scores[v * 4 + 1] = scores[v * 4 + 1] + slots[v * 512 + 1]
        scores[v * 4 + 2] = scores[v * 4 + 2] + slots[v * 512 + 2]
        scores[v * 4 + 3] = scores[v * 4 + 3] + slots[v * 512 + 3]


@cute.jit
def mask_scores(scores, low, high, sm_scale, thread):
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf.

    `low` has a bit for each of the first 32 tokens, `high` for each of the next 32.
    """
    own = cutlass.select_(thread < 64, low, high) >> (thread // 32 % 2 * 16 + thread % 32 // 4)
    scale = sm_scale * LOG2_E
    valid_0 = own & 1 != 0
    for group in cutlass.range_constexpr(OWN_SCORES // 4):
        scores[group * 4] = cutlass.select_(valid_0, scores[group * 4] * scale, -Float32.inf)
        scores[group * 4 + 1] = cutlass.select_(valid_0, scores[group * 4 + 1] * scale, -Float32.inf)
    valid_1 = own >> 8 & 1 != 0
    for group in cutlass.range_constexpr(OWN_SCORES // 4):
        scores[group * 4 + 2] = cutlass.select_(valid_1, scores[group * 4 + 2] * scale, -Float32.inf)
        scores[group * 4 + 1 + 2] = cutlass.select_(valid_1, scores[group * 4 + 1 + 2] * scale, -Float32.inf)


@cute.jit
def leave_maxima(red, scores, thread):
    """Leave the maximum of each head over the 16 tokens of each warp for the other warps."""
    risen = cute.make_rmem_tensor(OWN_SCORES // 2, Float32)
    for group in cutlass.range_constexpr(OWN_SCORES // 4):
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
        for column in cutlass.range_constexpr(OWN_SCORES // 2):
            red[(column // 2 * 8 + thread % 4 * 2 + column % 2) * 4 + thread // 32] = risen[column]


@cute.jit
def join_maxima(top, red, thread):
    """Compute the maxima of the heads over the four warps."""
    four = cute.make_rmem_tensor(4, Float32)
    for column in cutlass.range_constexpr(OWN_COLUMNS):
        cute.autovec_copy(
            warps.piece(red, 4, column // 2 * 8 + thread % 4 * 2 + column % 2, 0, (HEADS, 4), 0), four
        )
        top[column] = cute.arch.fmax(cute.arch.fmax(four[0], four[1]), cute.arch.fmax(four[2], four[3]))


@cute.jit
def online_softmax(scores, sums, acc, peak, top):
    """Replace S by P = exp2(S - maximum), and rescale the running sums and O to the new maximum.

    The sums stay private to each thread until the end: one addition per element, and threads exchange
    nothing. A rescale only if a maximum has risen much would need a branch around O, and that costs
    more than it saves (docs/performance.md).
    """
    for group in cutlass.range_constexpr(OWN_SCORES // 4):
        risen = cute.arch.fmax(top[group * 2], peak[group * 2])
        decay = warps.exp2(peak[group * 2] - risen)
        peak[group * 2] = risen
        scores[group * 4] = warps.exp2(scores[group * 4] - risen)
        scores[group * 4 + 2] = warps.exp2(scores[group * 4 + 2] - risen)
        sums[group * 2] = sums[group * 2] * decay + (scores[group * 4] + scores[group * 4 + 2])
        for block in cutlass.range_constexpr(OWN_OUTPUTS // OWN_SCORES):
            acc[block * OWN_SCORES + group * 4] = acc[block * OWN_SCORES + group * 4] * decay
            acc[block * OWN_SCORES + group * 4 + 2] = acc[block * OWN_SCORES + group * 4 + 2] * decay
        risen = cute.arch.fmax(top[group * 2 + 1], peak[group * 2 + 1])
        decay = warps.exp2(peak[group * 2 + 1] - risen)
        peak[group * 2 + 1] = risen
        scores[group * 4 + 1] = warps.exp2(scores[group * 4 + 1] - risen)
        scores[group * 4 + 1 + 2] = warps.exp2(scores[group * 4 + 1 + 2] - risen)
        sums[group * 2 + 1] = sums[group * 2 + 1] * decay + (
            scores[group * 4 + 1] + scores[group * 4 + 1 + 2]
        )
        for block in cutlass.range_constexpr(OWN_OUTPUTS // OWN_SCORES):
            acc[block * OWN_SCORES + (group * 4 + 1)] = acc[block * OWN_SCORES + (group * 4 + 1)] * decay
            acc[
                block * OWN_SCORES + (group * 4 + 1) + 2
            ] = acc[block * OWN_SCORES + (group * 4 + 1) + 2] * decay


@cute.jit
def store_weights(target, scores, thread):
    """Write P as bf16 in the layout that its product reads. If there are eight heads, they are the rows."""
    for pair in cutlass.range_constexpr(OWN_SCORES // 8):
        warps.store_matrices(
            warps.piece(
                target, 8, thread // 32 * 16 + thread % 32 % 16, pair * 16 + thread % 32 // 16 * 8,
                (TILE, HEADS), 64
            ).iterator,
            scores, pair * 8, 4
        )


@cute.jit
def leave_sums(red, sums, thread):
    """Leave the sum of each head over the tokens of each warp for the other warps."""
    whole = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    for column in cutlass.range_constexpr(OWN_COLUMNS):
        own = sums[column]
        over_4 = own + warps.exchange(own, 4)
        over_8 = over_4 + warps.exchange(over_4, 8)
        over_16 = over_8 + warps.exchange(over_8, 16)
        whole[column] = over_16
    if thread % 32 < 4:
        for column in cutlass.range_constexpr(OWN_COLUMNS):
            red[(column // 2 * 8 + thread % 4 * 2 + column % 2) * 4 + thread // 32] = whole[column]


@cute.jit
def join_sums(top, red, thread):
    """Compute the sums of the heads over the four warps."""
    four = cute.make_rmem_tensor(4, Float32)
    for column in cutlass.range_constexpr(OWN_COLUMNS):
        cute.autovec_copy(
            warps.piece(red, 4, column // 2 * 8 + thread % 4 * 2 + column % 2, 0, (HEADS, 4), 0), four
        )
        top[column] = four[0] + four[1] + (four[2] + four[3])


@cute.jit
def normalise(acc, top, peak):
    """Divide O by the sums, and replace the sums by the base-2 lse. An empty column gives 0 and -inf."""
    for group in cutlass.range_constexpr(OWN_COLUMNS // 2):
        inverse = cutlass.select_(top[group * 2] > 0.0, warps.rcp_approx(top[group * 2]), 0.0)
        top[group * 2] = cutlass.select_(
            top[group * 2] > 0.0, warps.log2(top[group * 2]) + peak[group * 2], -Float32.inf
        )
        for block in cutlass.range_constexpr(OWN_OUTPUTS // (OWN_COLUMNS * 2)):
            acc[block * (OWN_COLUMNS * 2) + group * 4] = acc[block * (OWN_COLUMNS * 2) + group * 4] * inverse
            acc[
                block * (OWN_COLUMNS * 2) + group * 4 + 2
            ] = acc[block * (OWN_COLUMNS * 2) + group * 4 + 2] * inverse
        inverse = cutlass.select_(top[group * 2 + 1] > 0.0, warps.rcp_approx(top[group * 2 + 1]), 0.0)
        top[group * 2 + 1] = cutlass.select_(
            top[group * 2 + 1] > 0.0, warps.log2(top[group * 2 + 1]) + peak[group * 2 + 1], -Float32.inf
        )
        for block in cutlass.range_constexpr(OWN_OUTPUTS // (OWN_COLUMNS * 2)):
            acc[
                block * (OWN_COLUMNS * 2) + (group * 4 + 1)
            ] = acc[block * (OWN_COLUMNS * 2) + (group * 4 + 1)] * inverse
            acc[
                block * (OWN_COLUMNS * 2) + (group * 4 + 1) + 2
            ] = acc[block * (OWN_COLUMNS * 2) + (group * 4 + 1) + 2] * inverse


@cute.jit
def send_parts(acc, lses, inbox, first, part, parts, thread):
    """Send each CTA that holds this slice its share of O, this CTA included. A CTA receives `words` words.

    A CTA's share is the rows of its number, one part after another. CTA `first` merges the first share,
    and each `slices`-th CTA after it merges the next.
    """
    log2_each = -25 + warps.clz(parts)
    four = cute.make_rmem_tensor(4, Float32)
    few = cute.make_rmem_tensor(4, Float32)
    place = ((thread & 3) * 8 + (thread >> 2 & 7)) * 4
    for u in cutlass.range_constexpr(OWN_OUTPUTS // 4):
        four[0] = acc[u * 4]
        four[1] = acc[u * 4 + 1]
        four[2] = acc[u * 4 + 2]
        four[3] = acc[u * 4 + 3]
        owner = u * 4 + (thread >> 5) >> log2_each
        share = inbox + Int64(first + owner * SLICES) * (
            LATENT_DIM // SLICES * HEADS // 128 * (128 + HEADS)
        ) + (
            (
                (part << log2_each) + (u * 4 + (thread >> 5) & (1 << log2_each) - 1)
            ) * (128 + 4 * OWN_COLUMNS) + place
        )
        warps.push(share, four)
    # Four threads per row write lses: these four together hold all heads' lses.
    for i in cutlass.range_constexpr(2):
        row = i * 32 + (thread >> 2)
        if row < OWN_OUTPUTS:
            few[0] = lses[0]
            few[1] = lses[1]
            few[2] = lses[2]
            few[3] = lses[3]
            owner = row >> log2_each
            share = inbox + Int64(first + owner * SLICES) * (
                LATENT_DIM // SLICES * HEADS // 128 * (128 + HEADS)
            ) + (
                ((part << log2_each) + (row & (1 << log2_each) - 1)) * (128 + 4 * OWN_COLUMNS) + (
                    (thread & 3) * OWN_COLUMNS + 128
                )
            )
            warps.push(share, few)
            few[0] = lses[4]
            few[1] = lses[5]
            few[2] = lses[6]
            few[3] = lses[7]
            owner = row >> log2_each
            share = inbox + Int64(first + owner * SLICES) * (
                LATENT_DIM // SLICES * HEADS // 128 * (128 + HEADS)
            ) + (
                ((part << log2_each) + (row & (1 << log2_each) - 1)) * (128 + 4 * OWN_COLUMNS) + (
                    (thread & 3) * OWN_COLUMNS + 132
                )
            )
            warps.push(share, few)


@cute.jit
def keep_parts(target, acc, lses, thread):
    """Write all of O to shared memory as `send_parts` would send it, if no other CTA has a part of it."""
    four = cute.make_rmem_tensor(4, Float32)
    few = cute.make_rmem_tensor(4, Float32)
    place = ((thread & 3) * 8 + (thread >> 2 & 7)) * 4
    for u in cutlass.range_constexpr(OWN_OUTPUTS // 4):
        four[0] = acc[u * 4]
        four[1] = acc[u * 4 + 1]
        four[2] = acc[u * 4 + 2]
        four[3] = acc[u * 4 + 3]
        to = target + ((u * 4 + (thread >> 5)) * (128 + 4 * OWN_COLUMNS) + place)
        cute.autovec_copy(four, warps.group(to, 4, 0))
    # Four threads per row write lses: these four together hold all heads' lses.
    for i in cutlass.range_constexpr(2):
        row = i * 32 + (thread >> 2)
        if row < OWN_OUTPUTS:
            few[0] = lses[0]
            few[1] = lses[1]
            few[2] = lses[2]
            few[3] = lses[3]
            to = target + (row * (128 + 4 * OWN_COLUMNS) + ((thread & 3) * OWN_COLUMNS + 128))
            cute.autovec_copy(few, warps.group(to, 4, 0))
            few[0] = lses[4]
            few[1] = lses[5]
            few[2] = lses[6]
            few[3] = lses[7]
            to = target + (row * (128 + 4 * OWN_COLUMNS) + ((thread & 3) * OWN_COLUMNS + 132))
            cute.autovec_copy(few, warps.group(to, 4, 0))


@cute.jit
def merge_rows(
    out, out_stride_0, out_stride_1, lse, lse_stride_0, received, sinks, row, part, parts, which, lse_scale,
    empty_lse, thread
):
    """Join the parts of this CTA's share of O, scale each head for its sink, and store O and the lse.

    A thread has one dim of one head of a row. Two neighbours store a word together. The number of parts
    is a constant in each branch, so all reads of a branch are in flight together.
    """
    lses = received + (128 + ((thread >> 4 >> 1) * 2 * (HEADS // 8) + (thread >> 4 & 1)))
    values = received + (
        ((thread >> 4 >> 1) * 8 + (thread & 15 & 7)) * 4 + ((thread & 15) >> 3) * 2 + (thread >> 4 & 1)
    )
    head = thread >> 4
    dim = which * DIMS + (thread & 15)
    if parts == 1:
        weights = cute.make_rmem_tensor(1, Float32)
        for c in cutlass.range_constexpr(4 * (HEADS // 8) // 4):
            n = part * (DIMS * HEADS // 128) + c * 4
            column = n >> 2 & HEADS // 8 - 1
            mine = head + column * 8
            for p in cutlass.range_constexpr(1):
                weights[p] = lses[(p * (DIMS * HEADS // 128) + c * 4) * (128 + HEADS) + column * 2]
            top = Float32(weights[0])
            # The weight of an empty part is 0, even if all parts are empty.
            base = cutlass.select_(top > -Float32.inf, top, 0.0)
            for p in cutlass.range_constexpr(1):
                weights[p] = warps.exp2(weights[p] - base)
            total = Float32(weights[0])
            joined = cutlass.select_(total > 0.0, warps.log2(total) + base, -Float32.inf)
            scale = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0) * cutlass.select_(
                joined > -Float32.inf,
                warps.rcp_approx(
                    warps.exp2(
                        cutlass.select_(
                            column == 3, sinks[3],
                            cutlass.select_(
                                column == 2, sinks[2], cutlass.select_(column == 1, sinks[1], sinks[0])
                            )
                        ) * LOG2_E - joined
                    ) + 1.0
                ),
                0.0
            )
            if (dim == 0) & (n & 3 == 0) & (n < 4 * (HEADS // 8)):
                of_row = lse + Int64(row) * lse_stride_0
                of_row[mine] = cutlass.select_(joined > -Float32.inf, joined * lse_scale, empty_lse)
            to = out + Int64(row) * out_stride_0 + Int64(mine) * out_stride_1 + dim
            for again in cutlass.range_constexpr(DIMS * HEADS // 128 // (4 * (HEADS // 8))):
                for i in cutlass.range_constexpr(4):
                    at = (c * 4 + i + again * (4 * (HEADS // 8))) * (128 + HEADS)
                    value = Float32(values[at] * weights[0])
                    value = value * scale
                    beside = warps.exchange(value, 1)
                    if dim & 1 == 0:
                        own = n + i + again * (4 * (HEADS // 8))
                        warps.store_pair(to + ((own >> 4) * 64 + (own & 3) * 16), value, beside)
    if parts == 2:
        weights = cute.make_rmem_tensor(2, Float32)
        for c in cutlass.range_constexpr(4 * (HEADS // 8) // 4):
            n = part * (DIMS * HEADS // 128 // 2) + c * 4
            column = n >> 2 & HEADS // 8 - 1
            mine = head + column * 8
            for p in cutlass.range_constexpr(2):
                weights[p] = lses[(p * (DIMS * HEADS // 128 // 2) + c * 4) * (128 + HEADS) + column * 2]
            top = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 2):
                top = cute.arch.fmax(top, weights[p])
            # The weight of an empty part is 0, even if all parts are empty.
            base = cutlass.select_(top > -Float32.inf, top, 0.0)
            for p in cutlass.range_constexpr(2):
                weights[p] = warps.exp2(weights[p] - base)
            total = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 2):
                total = total + weights[p]
            joined = cutlass.select_(total > 0.0, warps.log2(total) + base, -Float32.inf)
            scale = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0) * cutlass.select_(
                joined > -Float32.inf,
                warps.rcp_approx(
                    warps.exp2(
                        cutlass.select_(
                            column == 3, sinks[3],
                            cutlass.select_(
                                column == 2, sinks[2], cutlass.select_(column == 1, sinks[1], sinks[0])
                            )
                        ) * LOG2_E - joined
                    ) + 1.0
                ),
                0.0
            )
            if (dim == 0) & (n & 3 == 0) & (n < 4 * (HEADS // 8)):
                of_row = lse + Int64(row) * lse_stride_0
                of_row[mine] = cutlass.select_(joined > -Float32.inf, joined * lse_scale, empty_lse)
            to = out + Int64(row) * out_stride_0 + Int64(mine) * out_stride_1 + dim
            for again in cutlass.range_constexpr(DIMS * HEADS // 128 // 2 // (4 * (HEADS // 8))):
                for i in cutlass.range_constexpr(4):
                    at = (c * 4 + i + again * (4 * (HEADS // 8))) * (128 + HEADS)
                    value = Float32(values[at] * weights[0])
                    for p in cutlass.range_constexpr(1, 2):
                        value = value + values[p * (DIMS * HEADS // 128 // 2) * (128 + HEADS) + at] * weights[
                            p
                        ]
                    value = value * scale
                    beside = warps.exchange(value, 1)
                    if dim & 1 == 0:
                        own = n + i + again * (4 * (HEADS // 8))
                        warps.store_pair(to + ((own >> 4) * 64 + (own & 3) * 16), value, beside)
    if parts == 4:
        weights = cute.make_rmem_tensor(4, Float32)
        for c in cutlass.range_constexpr(DIMS * HEADS // 128 // 4 // 4):
            n = part * (DIMS * HEADS // 128 // 4) + c * 4
            column = n >> 2 & HEADS // 8 - 1
            mine = head + column * 8
            for p in cutlass.range_constexpr(4):
                weights[p] = lses[(p * (DIMS * HEADS // 128 // 4) + c * 4) * (128 + HEADS) + column * 2]
            top = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 4):
                top = cute.arch.fmax(top, weights[p])
            # The weight of an empty part is 0, even if all parts are empty.
            base = cutlass.select_(top > -Float32.inf, top, 0.0)
            for p in cutlass.range_constexpr(4):
                weights[p] = warps.exp2(weights[p] - base)
            total = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 4):
                total = total + weights[p]
            joined = cutlass.select_(total > 0.0, warps.log2(total) + base, -Float32.inf)
            scale = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0) * cutlass.select_(
                joined > -Float32.inf,
                warps.rcp_approx(
                    warps.exp2(
                        cutlass.select_(
                            column == 3, sinks[3],
                            cutlass.select_(
                                column == 2, sinks[2], cutlass.select_(column == 1, sinks[1], sinks[0])
                            )
                        ) * LOG2_E - joined
                    ) + 1.0
                ),
                0.0
            )
            if (dim == 0) & (n & 3 == 0) & (n < 4 * (HEADS // 8)):
                of_row = lse + Int64(row) * lse_stride_0
                of_row[mine] = cutlass.select_(joined > -Float32.inf, joined * lse_scale, empty_lse)
            to = out + Int64(row) * out_stride_0 + Int64(mine) * out_stride_1 + dim
            for again in cutlass.range_constexpr(1):
                for i in cutlass.range_constexpr(4):
                    at = (c * 4 + i + again * (4 * (HEADS // 8))) * (128 + HEADS)
                    value = Float32(values[at] * weights[0])
                    for p in cutlass.range_constexpr(1, 4):
                        value = value + values[p * (DIMS * HEADS // 128 // 4) * (128 + HEADS) + at] * weights[
                            p
                        ]
                    value = value * scale
                    beside = warps.exchange(value, 1)
                    if dim & 1 == 0:
                        own = n + i + again * (4 * (HEADS // 8))
                        warps.store_pair(to + ((own >> 4) * 64 + (own & 3) * 16), value, beside)
    if parts == 8:
        weights = cute.make_rmem_tensor(8, Float32)
        for c in cutlass.range_constexpr(DIMS * HEADS // 128 // 8 // 4):
            n = part * (DIMS * HEADS // 128 // 8) + c * 4
            column = n >> 2 & HEADS // 8 - 1
            mine = head + column * 8
            for p in cutlass.range_constexpr(8):
                weights[p] = lses[(p * (DIMS * HEADS // 128 // 8) + c * 4) * (128 + HEADS) + column * 2]
            top = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 8):
                top = cute.arch.fmax(top, weights[p])
            # The weight of an empty part is 0, even if all parts are empty.
            base = cutlass.select_(top > -Float32.inf, top, 0.0)
            for p in cutlass.range_constexpr(8):
                weights[p] = warps.exp2(weights[p] - base)
            total = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 8):
                total = total + weights[p]
            joined = cutlass.select_(total > 0.0, warps.log2(total) + base, -Float32.inf)
            scale = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0) * cutlass.select_(
                joined > -Float32.inf,
                warps.rcp_approx(
                    warps.exp2(
                        cutlass.select_(
                            column == 3, sinks[3],
                            cutlass.select_(
                                column == 2, sinks[2], cutlass.select_(column == 1, sinks[1], sinks[0])
                            )
                        ) * LOG2_E - joined
                    ) + 1.0
                ),
                0.0
            )
            if (dim == 0) & (n & 3 == 0) & (n < 4 * (HEADS // 8)):
                of_row = lse + Int64(row) * lse_stride_0
                of_row[mine] = cutlass.select_(joined > -Float32.inf, joined * lse_scale, empty_lse)
            to = out + Int64(row) * out_stride_0 + Int64(mine) * out_stride_1 + dim
            for again in cutlass.range_constexpr(1):
                for i in cutlass.range_constexpr(4):
                    at = (c * 4 + i + again * (4 * (HEADS // 8))) * (128 + HEADS)
                    value = Float32(values[at] * weights[0])
                    for p in cutlass.range_constexpr(1, 8):
                        value = value + values[p * (DIMS * HEADS // 128 // 8) * (128 + HEADS) + at] * weights[
                            p
                        ]
                    value = value * scale
                    beside = warps.exchange(value, 1)
                    if dim & 1 == 0:
                        own = n + i + again * (4 * (HEADS // 8))
                        warps.store_pair(to + ((own >> 4) * 64 + (own & 3) * 16), value, beside)
    if parts == 16:
        weights = cute.make_rmem_tensor(16, Float32)
        for c in cutlass.range_constexpr(1):
            n = part * (DIMS * HEADS // 128 // 16) + c * (DIMS * HEADS // 128 // 16)
            column = n >> 2 & HEADS // 8 - 1
            mine = head + column * 8
            for p in cutlass.range_constexpr(16):
                weights[p] = lses[
                    (
                        p * (DIMS * HEADS // 128 // 16) + c * (DIMS * HEADS // 128 // 16)
                    ) * (128 + HEADS) + column * 2
                ]
            top = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 16):
                top = cute.arch.fmax(top, weights[p])
            # The weight of an empty part is 0, even if all parts are empty.
            base = cutlass.select_(top > -Float32.inf, top, 0.0)
            for p in cutlass.range_constexpr(16):
                weights[p] = warps.exp2(weights[p] - base)
            total = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 16):
                total = total + weights[p]
            joined = cutlass.select_(total > 0.0, warps.log2(total) + base, -Float32.inf)
            scale = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0) * cutlass.select_(
                joined > -Float32.inf,
                warps.rcp_approx(
                    warps.exp2(
                        cutlass.select_(
                            column == 3, sinks[3],
                            cutlass.select_(
                                column == 2, sinks[2], cutlass.select_(column == 1, sinks[1], sinks[0])
                            )
                        ) * LOG2_E - joined
                    ) + 1.0
                ),
                0.0
            )
            if (dim == 0) & (n & 3 == 0) & (n < 4 * (HEADS // 8)):
                of_row = lse + Int64(row) * lse_stride_0
                of_row[mine] = cutlass.select_(joined > -Float32.inf, joined * lse_scale, empty_lse)
            to = out + Int64(row) * out_stride_0 + Int64(mine) * out_stride_1 + dim
            for again in cutlass.range_constexpr(1):
                for i in cutlass.range_constexpr(DIMS * HEADS // 128 // 16):
                    at = (c * (DIMS * HEADS // 128 // 16) + i + again * (4 * (HEADS // 8))) * (128 + HEADS)
                    value = Float32(values[at] * weights[0])
                    for p in cutlass.range_constexpr(1, 16):
                        value = value + values[
                            p * (DIMS * HEADS // 128 // 16) * (128 + HEADS) + at
                        ] * weights[p]
                    value = value * scale
                    beside = warps.exchange(value, 1)
                    if dim & 1 == 0:
                        own = n + i + again * (4 * (HEADS // 8))
                        warps.store_pair(to + ((own >> 4) * 64 + (own & 3) * 16), value, beside)
    if parts == 32:
        weights = cute.make_rmem_tensor(32, Float32)
        for c in cutlass.range_constexpr(1):
            n = part * (DIMS * HEADS // 128 // 32) + c * (DIMS * HEADS // 128 // 32)
            column = n >> 2 & HEADS // 8 - 1
            mine = head + column * 8
            for p in cutlass.range_constexpr(32):
                weights[p] = lses[
                    (
                        p * (DIMS * HEADS // 128 // 32) + c * (DIMS * HEADS // 128 // 32)
                    ) * (128 + HEADS) + column * 2
                ]
            top = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 32):
                top = cute.arch.fmax(top, weights[p])
            # The weight of an empty part is 0, even if all parts are empty.
            base = cutlass.select_(top > -Float32.inf, top, 0.0)
            for p in cutlass.range_constexpr(32):
                weights[p] = warps.exp2(weights[p] - base)
            total = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 32):
                total = total + weights[p]
            joined = cutlass.select_(total > 0.0, warps.log2(total) + base, -Float32.inf)
            scale = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0) * cutlass.select_(
                joined > -Float32.inf,
                warps.rcp_approx(
                    warps.exp2(
                        cutlass.select_(
                            column == 3, sinks[3],
                            cutlass.select_(
                                column == 2, sinks[2], cutlass.select_(column == 1, sinks[1], sinks[0])
                            )
                        ) * LOG2_E - joined
                    ) + 1.0
                ),
                0.0
            )
            if (dim == 0) & (n & 3 == 0) & (n < 4 * (HEADS // 8)):
                of_row = lse + Int64(row) * lse_stride_0
                of_row[mine] = cutlass.select_(joined > -Float32.inf, joined * lse_scale, empty_lse)
            to = out + Int64(row) * out_stride_0 + Int64(mine) * out_stride_1 + dim
            for again in cutlass.range_constexpr(1):
                for i in cutlass.range_constexpr(DIMS * HEADS // 128 // 32):
                    at = (c * (DIMS * HEADS // 128 // 32) + i + again * (4 * (HEADS // 8))) * (128 + HEADS)
                    value = Float32(values[at] * weights[0])
                    for p in cutlass.range_constexpr(1, 32):
                        value = value + values[
                            p * (DIMS * HEADS // 128 // 32) * (128 + HEADS) + at
                        ] * weights[p]
                    value = value * scale
                    beside = warps.exchange(value, 1)
                    if dim & 1 == 0:
                        own = n + i + again * (4 * (HEADS // 8))
                        warps.store_pair(to + ((own >> 4) * 64 + (own & 3) * 16), value, beside)
    if parts == 64:
        weights = cute.make_rmem_tensor(64, Float32)
        for c in cutlass.range_constexpr(1):
            n = part + c
            column = n >> 2 & HEADS // 8 - 1
            mine = head + column * 8
            for p in cutlass.range_constexpr(64):
                weights[p] = lses[(p + c) * (128 + HEADS) + column * 2]
            top = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 64):
                top = cute.arch.fmax(top, weights[p])
            # The weight of an empty part is 0, even if all parts are empty.
            base = cutlass.select_(top > -Float32.inf, top, 0.0)
            for p in cutlass.range_constexpr(64):
                weights[p] = warps.exp2(weights[p] - base)
            total = Float32(weights[0])
            for p in cutlass.range_constexpr(1, 64):
                total = total + weights[p]
            joined = cutlass.select_(total > 0.0, warps.log2(total) + base, -Float32.inf)
            scale = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0) * cutlass.select_(
                joined > -Float32.inf,
                warps.rcp_approx(
                    warps.exp2(
                        cutlass.select_(
                            column == 3, sinks[3],
                            cutlass.select_(
                                column == 2, sinks[2], cutlass.select_(column == 1, sinks[1], sinks[0])
                            )
                        ) * LOG2_E - joined
                    ) + 1.0
                ),
                0.0
            )
            if (dim == 0) & (n & 3 == 0) & (n < 4 * (HEADS // 8)):
                of_row = lse + Int64(row) * lse_stride_0
                of_row[mine] = cutlass.select_(joined > -Float32.inf, joined * lse_scale, empty_lse)
            to = out + Int64(row) * out_stride_0 + Int64(mine) * out_stride_1 + dim
            for again in cutlass.range_constexpr(1):
                for i in cutlass.range_constexpr(1):
                    at = (c + i + again * (4 * (HEADS // 8))) * (128 + HEADS)
                    value = Float32(values[at] * weights[0])
                    for p in cutlass.range_constexpr(1, 64):
                        value = value + values[p * (128 + HEADS) + at] * weights[p]
                    value = value * scale
                    beside = warps.exchange(value, 1)
                    if dim & 1 == 0:
                        own = n + i + again * (4 * (HEADS // 8))
                        warps.store_pair(to + ((own >> 4) * 64 + (own & 3) * 16), value, beside)


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
def renew_tokens(words, target, rope, kv_cache, kv_cache_stride_0, which, low, high, n, thread):
    """Write the words as bf16 rows. As words become free, read other tokens as `load_tokens` does."""
    own = kv_cache + (thread & 3) * 16
    token = warps.shuffle(low, thread >> 2 & 31)
    inside = (token >= 0) & (token < n)
    bytes = own + Int64(token) * kv_cache_stride_0
    for panel in cutlass.range_constexpr(4):
        warps.store_fp8(
            warps.piece(target, 8, thread >> 2, panel * 64 + (thread & 3) * 16, (TILE, DIMS), 128).iterator,
            warps.piece(
                target, 8, thread >> 2, panel * 64 + (thread & 3) * 16 + 8, (TILE, DIMS), 128
            ).iterator,
            words, panel * 4, words[40 + panel // 2]
        )
        warps.load_vector(words, panel * 4, 4, bytes + (which * DIMS + panel * 64), inside)
        warps.sync_warp()
    warps.store_vector(
        words, 16, warps.piece(rope, 8, thread >> 2, (thread & 3 & 3) * 8, (TILE, ROPE), 64).iterator
    )
    warps.load_vector(
        words, 16, 4, bytes + (528 + which * (DIMS // 4) + ((thread & 3 & 3) - (thread & 3)) * 16), inside
    )
    warps.sync_warp()
    warps.load_vector(words, 40, 2, bytes + (512 + which * 8 - (thread & 3) * 16), inside)
    warps.sync_warp()
    token = warps.shuffle(high, thread >> 2 & 31)
    inside = (token >= 0) & (token < n)
    bytes = own + Int64(token) * kv_cache_stride_0
    for panel in cutlass.range_constexpr(4):
        warps.store_fp8(
            warps.piece(
                target, 8, 32 + (thread >> 2), panel * 64 + (thread & 3) * 16, (TILE, DIMS), 128
            ).iterator,
            warps.piece(
                target, 8, 32 + (thread >> 2), panel * 64 + (thread & 3) * 16 + 8, (TILE, DIMS), 128
            ).iterator,
            words, 20 + panel * 4, words[42 + panel // 2]
        )
        warps.load_vector(words, 20 + panel * 4, 4, bytes + (which * DIMS + panel * 64), inside)
        warps.sync_warp()
    warps.store_vector(
        words, 36, warps.piece(rope, 8, 32 + (thread >> 2), (thread & 3 & 3) * 8, (TILE, ROPE), 64).iterator
    )
    warps.load_vector(
        words, 36, 4, bytes + (528 + which * (DIMS // 4) + ((thread & 3 & 3) - (thread & 3)) * 16), inside
    )
    warps.sync_warp()
    warps.load_vector(words, 42, 2, bytes + (512 + which * 8 - (thread & 3) * 16), inside)
    warps.sync_warp()


@cute.jit
def load_tokens(words, kv_cache, kv_cache_stride_0, which, low, high, n, thread):
    """Read slice `which` of a tile's 656-byte tokens into registers: `dims` latent dims and its rope dims.

    A token becomes zeros if its id names no row.
    """
    own = kv_cache + (thread & 3) * 16
    token = warps.shuffle(low, thread >> 2 & 31)
    inside = (token >= 0) & (token < n)
    bytes = own + Int64(token) * kv_cache_stride_0
    for panel in cutlass.range_constexpr(4):
        warps.load_vector(words, panel * 4, 4, bytes + (which * DIMS + panel * 64), inside)
        warps.sync_warp()
    warps.load_vector(
        words, 16, 4, bytes + (528 + which * (DIMS // 4) + ((thread & 3 & 3) - (thread & 3)) * 16), inside
    )
    warps.sync_warp()
    warps.load_vector(words, 40, 2, bytes + (512 + which * 8 - (thread & 3) * 16), inside)
    warps.sync_warp()
    token = warps.shuffle(high, thread >> 2 & 31)
    inside = (token >= 0) & (token < n)
    bytes = own + Int64(token) * kv_cache_stride_0
    for panel in cutlass.range_constexpr(4):
        warps.load_vector(words, 20 + panel * 4, 4, bytes + (which * DIMS + panel * 64), inside)
        warps.sync_warp()
    warps.load_vector(
        words, 36, 4, bytes + (528 + which * (DIMS // 4) + ((thread & 3 & 3) - (thread & 3)) * 16), inside
    )
    warps.sync_warp()
    warps.load_vector(words, 42, 2, bytes + (512 + which * 8 - (thread & 3) * 16), inside)
    warps.sync_warp()


@cute.jit
def attend(
    q_nope: cute.Pointer, q_pe: cute.Pointer, indices: cute.Pointer, attn_sink: cute.Pointer,
    out: cute.Pointer, lse: cute.Pointer, inboxes: cute.Pointer, sm_scale: Float32, lse_scale: Float32,
    empty_lse: Float32, cached: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32,
    q_pe_stride_h: Int32, indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32, lse_stride: Int32,
    q_s: cute.Pointer, qpe_s: cute.Pointer, ckv_s: cute.Pointer, kpe_s: cute.Pointer, p_s: cute.Pointer,
    red_s: cute.Pointer, x_s: cute.Pointer, o_s: cute.Pointer, kv_full: cute.Pointer, kv_empty: cute.Pointer,
    x_full: cute.Pointer, bx: Int32, rank: Int32, which: Int32, split: Int32, splits_of_row: Int32,
    end: Int32, turns: Int32, it: Int32, low: Int32, high: Int32, in_low: Int32, in_high: Int32,
    live: Boolean, thread: Int32, lane: Int32
):
    """Queries, both products, softmax, merge, output."""
    qk_nope_a = QK_NOPE.operand_a(ckv_s, TILE, DIMS, STAGES, 128)
    qk_nope_b = QK_NOPE.operand_b(q_s, HEADS, DIMS, 1, 128)
    qk_pe_a = QK_PE.operand_a(kpe_s, TILE, ROPE, STAGES, 64)
    qk_pe_b = QK_PE.operand_b(qpe_s, HEADS, ROPE, 1, 64)
    pv_a = PV.operand_a(ckv_s, TILE, DIMS, STAGES, 128)
    pv_b = PV.operand_b(p_s, TILE, HEADS, 1, 64)
    scores = QK_NOPE.accumulators()
    acc = PV.accumulators()
    sums = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    top = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    peak = cute.make_rmem_tensor(OWN_COLUMNS, Float32)
    sinks = cute.make_rmem_tensor(HEADS // 8, Float32)
    worker = thread
    load_sinks(sinks, attn_sink, worker)
    load_queries(
        q_s, qpe_s, q_nope, q_nope_stride_t, q_nope_stride_h, q_pe, q_pe_stride_t, q_pe_stride_h, bx, which,
        worker
    )
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
    acc.fill(0.0)
    sums.fill(0.0)
    peak.fill(-Float32.inf)
    cute.arch.cluster_wait()
    for turn in cutlass.range(turns, unroll=1):
        in_low, in_high, live = vote(low, high, cached)
        low, high = read_ids(indices, indices_stride, bx, split + (turn + 1) * splits_of_row, end, lane)
        if live:
            cute.arch.mbarrier_wait(kv_full + it % STAGES, (it // STAGES) & 1)
            # S^T = K Q^T
            warpgroup.fence()
            QK_NOPE.multiply(
                qk_nope_a[None, None, None, it % STAGES, 0, 0], qk_nope_b[None, None, None, 0, 0, 0], scores,
                False
            )
            QK_PE.multiply(
                qk_pe_a[None, None, None, it % STAGES, 0, 0], qk_pe_b[None, None, None, 0, 0, 0], scores,
                True
            )
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            if worker == 0:
                cute.arch.mbarrier_arrive_and_expect_tx(x_full + it % 2, HEADS // 8 * 2048)
            send_scores(scores, x_s + it % 2 * (HEADS // 8 * 512), x_full + it % 2, rank, worker)
            cute.arch.mbarrier_wait(x_full + it % 2, (it // 2) & 1)
            add_scores(scores, x_s + it % 2 * (HEADS // 8 * 512), worker)
            mask_scores(scores, in_low, in_high, sm_scale, worker)
            leave_maxima(red_s, scores, worker)
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
            join_maxima(top, red_s, worker)
            online_softmax(scores, sums, acc, peak, top)
            store_weights(p_s, scores, worker)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
            # O^T += K^T P^T
            warpgroup.fence()
            PV.multiply(pv_a[None, None, None, it % STAGES, 0, 0], pv_b[None, None, None, 0, 0, 0], acc, True)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            cute.arch.mbarrier_arrive(kv_empty + it % STAGES)
            it = it + 1
    leave_sums(red_s, sums, worker)
    cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
    join_sums(top, red_s, worker)
    normalise(acc, top, peak)
    first = bx * splits_of_row * SLICES + which
    if splits_of_row > 1:
        # The CTAs that hold this slice send one another rows of O, and each merges a share.
        send_parts(acc, top, inboxes, first, split, splits_of_row, worker)
        inbox.collect(
            o_s, inboxes + (first + split * SLICES) * (LATENT_DIM // SLICES * HEADS // 128 * (128 + HEADS)),
            LATENT_DIM // SLICES * HEADS // 128 * (128 + HEADS), worker, ATTEND_THREADS
        )
        cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
    else:
        keep_parts(o_s, acc, top, worker)
        cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
    merge_rows(
        out, out_stride_t, out_stride_h, lse, lse_stride, o_s, sinks, bx, split, splits_of_row, which,
        lse_scale, empty_lse, worker
    )


@cute.jit
def gather(
    kv_cache: cute.Pointer, indices: cute.Pointer, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_gap: Int32, n: Int32, kv_cache_stride: Int32, indices_stride: Int32, ckv_s: cute.Pointer,
    kpe_s: cute.Pointer, kv_full: cute.Pointer, kv_empty: cute.Pointer, bx: Int32, which: Int32, split: Int32,
    splits_of_row: Int32, end: Int32, turns: Int32, it: Int32, low: Int32, high: Int32, in_low: Int32,
    in_high: Int32, live: Boolean, thread: Int32, lane: Int32
):
    """Selected rows into the ring."""
    words = cute.make_rmem_tensor(8 + DIMS * 9 // 64, cutlass.Uint32)
    worker = thread % 128
    # As the words of a tile are written, the next tile's words take their registers.
    holds = Boolean(False)
    for turn in cutlass.range(turns + 1, unroll=1):
        in_low, in_high, live = vote(low, high, cached)
        now_low, now_high = find_rows(low, high, cached, page_inverse, page_shift, page_gap)
        low, high = read_ids(indices, indices_stride, bx, split + (turn + 1) * splits_of_row, end, lane)
        if live | (turn == turns):
            if holds:
                cute.arch.mbarrier_wait(kv_empty + it % STAGES, ((it // STAGES) & 1) ^ 1)
                renew_tokens(
                    words, ckv_s + it % STAGES * (TILE * DIMS), kpe_s + it % STAGES * (TILE * ROPE), kv_cache,
                    kv_cache_stride, which, now_low, now_high, n, worker
                )
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.mbarrier_arrive(kv_full + it % STAGES)
                it = it + 1
            else:
                load_tokens(words, kv_cache, kv_cache_stride, which, now_low, now_high, n, worker)
            holds = live
    cute.arch.cluster_wait()


@cute.kernel
def sparse_mla__cutedsl_sm90a__h32_fp8_bt64_st3_cl2_sl2(
    q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    inboxes: cute.Pointer, sm_scale: Float32, lse_scale: Float32, empty_lse: Float32, has_lengths: Int32,
    cached: Int32, page_inverse: Int32, page_shift: Int32, page_gap: Int32, splits: Int32, t: Int32,
    q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32, q_pe_stride_h: Int32, n: Int32,
    kv_cache_stride: Int32, topk: Int32, indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32,
    lse_stride: Int32, inbox_words: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    qpe_s = shared.qpe_s.data_ptr()
    ckv_s = shared.ckv_s.data_ptr()
    kpe_s = shared.kpe_s.data_ptr()
    p_s = shared.p_s.data_ptr()
    red_s = shared.red_s.data_ptr()
    x_s = shared.x_s.data_ptr()
    kv_full = shared.kv_full.data_ptr()
    kv_empty = shared.kv_empty.data_ptr()
    x_full = shared.x_full.data_ptr()
    o_s = cute.recast_ptr(ckv_s, dtype=Float32)
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    bx, rank, part = cute.arch.block_idx()
    # The CTAs of a slice group have consecutive ranks and walk the same tiles.
    which = rank % SLICES
    split = part + rank // SLICES
    splits_of_row = splits // SLICES
    end = Int32(topk)
    turns = Int32(0)
    turns = (scalars.ceildiv(end, TILE) - split + splits_of_row - 1) // splits_of_row
    it = Int32(0)
    low = Int32(0)
    high = Int32(0)
    in_low = Int32(0)
    in_high = Int32(0)
    live = Boolean(False)
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(kv_full + i, 128)
            for i in cutlass.range_constexpr(STAGES):
                cute.arch.mbarrier_init(kv_empty + i, 128)
            for i in cutlass.range_constexpr(2):
                cute.arch.mbarrier_init(x_full + i, 1)
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    # The other CTAs' barriers must be initialised before this CTA sends anything to them.
    cute.arch.cluster_arrive_relaxed()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    if has_lengths != 0:
        end = cutlass.max(cutlass.min(topk_length[bx], topk), 0)
        turns = (scalars.ceildiv(end, TILE) - split + splits_of_row - 1) // splits_of_row
    low, high = read_ids(indices, indices_stride, bx, split, end, lane)
    if warp < 4:
        attend(
            q_nope, q_pe, indices, attn_sink, out, lse, inboxes, sm_scale, lse_scale, empty_lse, cached,
            q_nope_stride_t, q_nope_stride_h, q_pe_stride_t, q_pe_stride_h, indices_stride, out_stride_t,
            out_stride_h, lse_stride, q_s, qpe_s, ckv_s, kpe_s, p_s, red_s, x_s, o_s, kv_full, kv_empty,
            x_full, bx, rank, which, split, splits_of_row, end, turns, it, low, high, in_low, in_high, live,
            thread, lane
        )
    else:
        gather(
            kv_cache, indices, cached, page_inverse, page_shift, page_gap, n, kv_cache_stride, indices_stride,
            ckv_s, kpe_s, kv_full, kv_empty, bx, which, split, splits_of_row, end, turns, it, low, high,
            in_low, in_high, live, thread, lane
        )


@cute.jit
def program(
    q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    inboxes: cute.Pointer, sm_scale: Float32, lse_scale: Float32, empty_lse: Float32, has_lengths: Int32,
    cached: Int32, page_inverse: Int32, page_shift: Int32, page_gap: Int32, splits: Int32, t: Int32,
    q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32, q_pe_stride_h: Int32, n: Int32,
    kv_cache_stride: Int32, topk: Int32, indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32,
    lse_stride: Int32, inbox_words: Int32
):
    kernel = sparse_mla__cutedsl_sm90a__h32_fp8_bt64_st3_cl2_sl2(
        q_nope, q_pe, kv_cache, indices, topk_length, attn_sink, out, lse, inboxes, sm_scale, lse_scale,
        empty_lse, has_lengths, cached, page_inverse, page_shift, page_gap, splits, t, q_nope_stride_t,
        q_nope_stride_h, q_pe_stride_t, q_pe_stride_h, n, kv_cache_stride, topk, indices_stride, out_stride_t,
        out_stride_h, lse_stride, inbox_words
    )
    kernel.launch(grid=(1, 1, 1), block=(256, 1, 1), cluster=(1, 2, 1))
