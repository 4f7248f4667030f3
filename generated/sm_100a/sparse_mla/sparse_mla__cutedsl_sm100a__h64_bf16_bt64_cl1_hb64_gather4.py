"""sparse_mla__cutedsl_sm100a__h64_bf16_bt64_cl1_hb64_gather4

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
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
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import cpasync
from cutlass.experimental.primitives import nvvm_wrapper as nvvm

from dsl_kernels.device.cutedsl import (
    bulk,
    fragment_sm100,
    grid,
    scalars,
    tcgen05,
    tcgen05_tensor_ws,
    tcgen05_ws,
    warps,
)
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

HEADS = 64  # query heads
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

QK_FRONT = tcgen05_tensor_ws.Product("bfloat16", HALF, TILE, PANEL, "k", "k")
QK_BACK = tcgen05_tensor_ws.Product("bfloat16", HALF, TILE, PANEL, "k", "k")
QK_LAST = tcgen05_ws.Product("bfloat16", HALF, TILE, PANEL, "k", "k")
QK_PE = tcgen05_ws.Product("bfloat16", HALF, TILE, PANEL, "k", "k")
PV_FRONT = tcgen05_ws.Product("bfloat16", HALF, UNIT, TILE, "k", "mn")
PV_BACK = tcgen05_ws.Product("bfloat16", HALF, UNIT, TILE, "k", "mn")

LAUNCH = Launch(
    operands=(
        Operand(
            "q_nope", "tensor", "bfloat16", ("t", "64", "512"),
            strides=("q_nope_stride_t", "q_nope_stride_h", "1")
        ),
        Operand(
            "q_pe", "tensor", "bfloat16", ("t", "64", "64"), strides=("q_pe_stride_t", "q_pe_stride_h", "1")
        ),
        Operand("ckv", "tensor", "bfloat16", ("n", "512"), strides=("ckv_stride", "1")),
        Operand("kpe", "tensor", "bfloat16", ("n", "64"), strides=("kpe_stride", "1")),
        Operand("indices", "tensor", "int32", ("t", "topk"), strides=("indices_stride", "1")),
        Operand("topk_length", "tensor", "int32", ("t",)),
        Operand("attn_sink", "tensor", "float32", ("64",)),
        Operand(
            "out", "tensor", "bfloat16", ("t", "64", "512"), strides=("out_stride_t", "out_stride_h", "1"),
            written=True
        ),
        Operand("lse", "tensor", "float32", ("t", "64"), strides=("lse_stride", "1"), written=True),
        Operand("o_partial", "tensor", "float32", ("t", "splits", "64", "512"), written=True),
        Operand("lse_partial", "tensor", "float32", ("t", "splits", "64"), written=True),
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
    block=224,
    cluster=(1, 1, 1),
    resident="splits - 1",
    tensor_maps=(
        TensorMap(
            "ckv_map", "ckv", "BFLOAT16", global_dims=("512", "n"), global_strides=("ckv_stride * 2",),
            box=(64, 1), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
        TensorMap(
            "kpe_map", "kpe", "BFLOAT16", global_dims=("64", "n"), global_strides=("kpe_stride * 2",),
            box=(64, 1), element_strides=(1, 1), swizzle="128B", l2_promotion="L2_128B",
        ),
    ),
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, HALF * (2 * PANEL)], 1024]
    front_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, SIDE_STAGES * TILE * UNIT], 1024]
    back_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, SIDE_STAGES * TILE * UNIT], 1024]
    pe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, TILE * ROPE_DIM], 1024]
    p_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, HALF * TILE], 1024]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, 2 * (2 * HALF)], 128]
    qt_full: cute.struct.MemRange[Int64, 1]
    qt_empty: cute.struct.MemRange[Int64, 1]
    qs_full: cute.struct.MemRange[Int64, 1]
    qs_empty: cute.struct.MemRange[Int64, 1]
    front_full: cute.struct.MemRange[Int64, SIDE_STAGES]
    front_empty: cute.struct.MemRange[Int64, SIDE_STAGES]
    back_full: cute.struct.MemRange[Int64, SIDE_STAGES]
    back_empty: cute.struct.MemRange[Int64, SIDE_STAGES]
    pe_full: cute.struct.MemRange[Int64, 1]
    pe_empty: cute.struct.MemRange[Int64, 1]
    s_full: cute.struct.MemRange[Int64, 1]
    s_empty: cute.struct.MemRange[Int64, 1]
    p_full: cute.struct.MemRange[Int64, 1]
    p_empty: cute.struct.MemRange[Int64, 1]
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
def take_panel_first_0(panel, q, q_stride_0, q_stride_1, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1
    for i in cutlass.range_constexpr(PANEL // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_panel_first_64(panel, q, q_stride_0, q_stride_1, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1 + PANEL
    for i in cutlass.range_constexpr(PANEL // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_panel_first_128(panel, q, q_stride_0, q_stride_1, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1 + 2 * PANEL
    for i in cutlass.range_constexpr(PANEL // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_panel_first_192(panel, q, q_stride_0, q_stride_1, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1 + 3 * PANEL
    for i in cutlass.range_constexpr(PANEL // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_panel_first_256(panel, q, q_stride_0, q_stride_1, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1 + 4 * PANEL
    for i in cutlass.range_constexpr(PANEL // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_panel_first_320(panel, q, q_stride_0, q_stride_1, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1 + 5 * PANEL
    for i in cutlass.range_constexpr(PANEL // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_panel_first_384(panel, q, q_stride_0, q_stride_1, row, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1 + 6 * PANEL
    for i in cutlass.range_constexpr(PANEL // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_last_queries(
    latent, rope, q_nope, q_nope_stride_0, q_nope_stride_1, q_pe, q_pe_stride_0, q_pe_stride_1, row, thread
):
    """Read a thread's part of the latent dims from `first` on, and of the rope dims, of all heads."""
    own = scalars.anew(thread)
    for i in cutlass.range_constexpr(PANEL // 2 // 8):
        item = i * 128 + own
        of_head = q_nope + Int64(row) * q_nope_stride_0 + Int64(
            item // (PANEL // 2 * 128 // HALF // 8)
        ) * q_nope_stride_1 + 7 * PANEL
        cute.autovec_copy(
            warps.group(of_head, 8, item % (PANEL // 2 * 128 // HALF // 8)), warps.few(latent, i * 8, 8)
        )
    own = scalars.anew(thread)
    for i in cutlass.range_constexpr(PANEL // 2 // 8):
        item = i * 128 + own
        of_head = q_pe + Int64(row) * q_pe_stride_0 + Int64(
            item // (PANEL // 2 * 128 // HALF // 8)
        ) * q_pe_stride_1
        cute.autovec_copy(
            warps.group(of_head, 8, item % (PANEL // 2 * 128 // HALF // 8)), warps.few(rope, i * 8, 8)
        )


@cute.jit
def leave_queries(target, latent, rope, thread):
    """Store what `take_last_queries` read of all heads in shared memory: latent dims, then rope dims."""
    for i in cutlass.range_constexpr(PANEL // 2 // 8):
        item = i * 128 + thread
        cute.autovec_copy(
            warps.few(latent, i * 8, 8),
            warps.piece(
                target, 8, item // (PANEL // 2 * 128 // HALF // 8),
                item % (PANEL // 2 * 128 // HALF // 8) * 8, (HALF, 2 * PANEL), 128
            )
        )
    for i in cutlass.range_constexpr(PANEL // 2 // 8):
        item = i * 128 + thread
        cute.autovec_copy(
            warps.few(rope, i * 8, 8),
            warps.piece(
                target, 8, item // (PANEL // 2 * 128 // HALF // 8),
                PANEL // 2 * 128 // HALF + item % (PANEL // 2 * 128 // HALF // 8) * 8, (HALF, 2 * PANEL), 128
            )
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
def mask_half(scores, low, high, sm_scale, thread):
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf."""
    scale = sm_scale * LOG2_E
    valid = cutlass.select_(thread < HALF, low, high)
    for pair in cutlass.range_constexpr(TILE // 2 // 2):
        fragment_sm100.scale_pair(scores, pair * 2, scale, 0.0)
    for i in cutlass.range_constexpr(TILE // 2):
        scores[i] = cutlass.select_(valid >> i & 1 != 0, scores[i], -Float32.inf)


@cute.jit
def leave_maximum(red, scores, thread):
    """Leave the maximum of the thread's side for the head's other thread."""
    red[thread] = fragment_sm100.row_most(scores)


@cute.jit
def take_maximum(peak, sums, factor, red, thread):
    """Raise the reference to the maximum of both sides, if a head of the warp rose enough.

    Enough is more than `rise` powers of two above the reference. Both threads of a head are in warps
    with the same heads, so both decide alike.
    """
    highest = cute.arch.fmax(red[thread], red[thread ^ HALF])
    factor[0] = Float32(1.0)
    if warps.any_lane(highest > peak[0] + 8.0):
        raised = cute.arch.fmax(highest, peak[0])
        factor[0] = warps.exp2(peak[0] - raised)
        sums[0] = sums[0] * factor[0]
        peak[0] = raised


@cute.jit
def weigh_row(scores, sums, peak):
    """Replace S by P = exp2(S - reference), and add P to the running sum of the thread's side."""
    for pair in cutlass.range_constexpr(TILE // 2 // 2):
        fragment_sm100.scale_pair(scores, pair * 2, 1.0, peak[0])
    for i in cutlass.range_constexpr(TILE // 2):
        scores[i] = warps.exp2(scores[i])
    sums[0] = sums[0] + fragment_sm100.row_sum(scores)


@cute.jit
def store_half(target, weights, thread):
    """Store a thread's weights: those of half of its head's tokens."""
    for i in cutlass.range_constexpr(TILE // 2 // 8):
        cute.autovec_copy(
            warps.few(weights, i * 8, 8),
            warps.piece(target, 8, thread % HALF, thread // HALF * (TILE // 2) + i * 8, (HALF, TILE), 128)
        )


@cute.jit
def rescale_row(acc, held, factor, thread):
    """Multiply the thread's dims of O by its head's factor. A warp whose factors are all 1 leaves O alone."""
    if warps.any_lane(factor[0] != 1.0):
        for step in cutlass.range(OWN_DIMS // (TILE // 2), unroll=1):
            fragment_sm100.load_columns(held, acc, step * (TILE // 2), thread)
            for pair in cutlass.range_constexpr(TILE // 2 // 2):
                fragment_sm100.scale_pair(held, pair * 2, factor[0], 0.0)
            fragment_sm100.store_columns(held, acc, step * (TILE // 2), thread)


@cute.jit
def leave_sum(red, sums, thread):
    """Leave the sum of the thread's side for the head's other thread."""
    red[thread] = sums[0]


@cute.jit
def finish_row_split(red, lses, row, split, sums, peak, factor, splits, thread):
    """Write the head's lse, and compute the factor that normalises its O.

    If the row is not split, the factor includes the sink.
    """
    of_heads = lses + Int64(row * splits + split) * HEADS
    total = sums[0] + red[thread ^ HALF]
    lse2 = cutlass.select_(total > 0.0, warps.log2(total) + peak[0], -Float32.inf)
    factor[0] = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0)
    if thread < HALF:
        of_heads[thread] = lse2


@cute.jit
def write_units_split(to, acc, row, split, some, held, factor, splits, thread):
    """Write the thread's dims of O times its head's factor, into the row or into a split's part of the
    row.

    Without `some` live tile it writes zeros.
    """
    own = thread // HALF * UNIT_COLUMNS
    of_head = to + Int64((row * splits + split) * HEADS + thread % HALF) * 512 + own
    for step in cutlass.range(OWN_DIMS // (TILE // 2), unroll=1):
        first = step // (
            UNIT_COLUMNS // (TILE // 2)
        ) * (2 * UNIT_COLUMNS) + step % (UNIT_COLUMNS // (TILE // 2)) * (TILE // 2)
        if some:
            fragment_sm100.load_columns(held, acc, step * (TILE // 2), thread)
        for i in cutlass.range_constexpr(TILE // 2):
            held[i] = cutlass.select_(some, held[i] * factor[0], 0.0)
        for i in cutlass.range_constexpr(TILE // 2 // 4):
            cute.autovec_copy(warps.few(held, i * 4, 4), warps.group(of_head, 4, first // 4 + i))


@cute.jit
def finish_row(red, lses, lses_stride_0, row, sums, peak, factor, attn_sink, lse_scale, empty_lse, thread):
    """Write the head's lse, and compute the factor that normalises its O.

    If the row is not split, the factor includes the sink.
    """
    of_heads = lses + Int64(row) * lses_stride_0
    total = sums[0] + red[thread ^ HALF]
    lse2 = cutlass.select_(total > 0.0, warps.log2(total) + peak[0], -Float32.inf)
    factor[0] = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0) * cutlass.select_(
        lse2 > -Float32.inf, warps.rcp_approx(warps.exp2(attn_sink[thread % HALF] * LOG2_E - lse2) + 1.0),
        0.0
    )
    if thread < HALF:
        of_heads[thread] = cutlass.select_(lse2 > -Float32.inf, lse2 * lse_scale, empty_lse)


@cute.jit
def write_units(to, to_stride_0, to_stride_1, acc, row, some, held, rounded, factor, thread):
    """Write the thread's dims of O times its head's factor, into the row or into a split's part of the
    row.

    Without `some` live tile it writes zeros.
    """
    own = thread // HALF * UNIT_COLUMNS
    of_head = to + Int64(row) * to_stride_0 + Int64(thread % HALF) * to_stride_1 + own
    for step in cutlass.range(OWN_DIMS // (TILE // 2), unroll=1):
        first = step // (
            UNIT_COLUMNS // (TILE // 2)
        ) * (2 * UNIT_COLUMNS) + step % (UNIT_COLUMNS // (TILE // 2)) * (TILE // 2)
        if some:
            fragment_sm100.load_columns(held, acc, step * (TILE // 2), thread)
        for i in cutlass.range_constexpr(TILE // 2):
            held[i] = cutlass.select_(some, held[i] * factor[0], 0.0)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment_sm100.round_to(rounded, held)
        for i in cutlass.range_constexpr(TILE // 2 // 8):
            cute.autovec_copy(warps.few(rounded, i * 8, 8), warps.group(of_head, 8, first // 8 + i))


@cute.jit
def merge_heads(
    row, share, shares, o_partial, lse_partial, attn_sink, out, out_stride_0, out_stride_1, lse, lse_stride_0,
    splits, lse_scale, empty_lse, parts, thread
):
    """Write the weighted sum of the splits for a share of the heads, with four dims per thread.

    Heads are joined `together` at a time. A row without ids gives 0 and `empty_lse`.
    """
    own = (HALF - share + shares - 1) // shares
    for turn in cutlass.range(0, own, 4, unroll=1):
        top = cute.make_rmem_tensor(4, Float32)
        total = cute.make_rmem_tensor(4, Float32)
        kept = cute.make_rmem_tensor(4, Float32)
        merged = cute.make_rmem_tensor(16, Float32)
        four = cute.make_rmem_tensor(4, Float32)
        weights = cute.make_rmem_tensor(8, Float32)
        for column in cutlass.range_constexpr(4):
            top[column] = Float32(-Float32.inf)
            total[column] = Float32(0.0)
        for i in cutlass.range_constexpr(16):
            merged[i] = Float32(0.0)
        for first in cutlass.range(0, parts, 2, unroll=1):
            for p in cutlass.range_constexpr(2):
                lses = lse_partial + Int64(row * splits + cutlass.min(first + p, parts - 1)) * HEADS
                for column in cutlass.range_constexpr(4):
                    weights[p * 4 + column] = cutlass.select_(
                        first + p < parts, lses[share + cutlass.min(turn + column, own - 1) * shares],
                        -Float32.inf
                    )
            for column in cutlass.range_constexpr(4):
                peak = Float32(top[column])
                for at in cutlass.range_constexpr(column, 8, 4):
                    peak = cute.arch.fmax(peak, weights[at])
                # The weight of an empty part is 0, even if all parts are empty.
                base = cutlass.select_(peak > -Float32.inf, peak, 0.0)
                kept[column] = warps.exp2(top[column] - base)
                top[column] = peak
                total[column] = total[column] * kept[column]
                for at in cutlass.range_constexpr(column, 8, 4):
                    weights[at] = warps.exp2(weights[at] - base)
                    total[column] = total[column] + weights[at]
            for i in cutlass.range_constexpr(16):
                merged[i] = merged[i] * kept[i // 4]
            for p in cutlass.range_constexpr(2):
                for u in cutlass.range_constexpr(4):
                    partial = o_partial + Int64(
                        (row * splits + cutlass.min(first + p, parts - 1)) * HEADS + (
                            share + cutlass.min(turn + u, own - 1) * shares
                        )
                    ) * 512
                    cute.autovec_copy(warps.group(partial, 4, thread), four)
                    for e in cutlass.range_constexpr(4):
                        merged[u * 4 + e] = merged[u * 4 + e] + four[e] * weights[p * 4 + (u * 4 + e) // 4]
        for column in cutlass.range_constexpr(4):
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


@cute.jit
def softmax(
    q_nope: cute.Pointer, q_pe: cute.Pointer, indices: cute.Pointer, topk_length: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32,
    empty_lse: Float32, has_lengths: Int32, cached: Int32, share: Int32, reach: Int32, span: Int32,
    row_step: Int32, t: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32,
    q_pe_stride_h: Int32, topk: Int32, indices_stride: Int32, out_stride_t: Int32, out_stride_h: Int32,
    lse_stride: Int32, splits: Int32, q_s: cute.Pointer, p_s: cute.Pointer, red_s: cute.Pointer,
    tmem: cute.Pointer, qt_full: cute.Pointer, qt_empty: cute.Pointer, qs_full: cute.Pointer,
    qs_empty: cute.Pointer, s_full: cute.Pointer, s_empty: cute.Pointer, p_full: cute.Pointer,
    p_empty: cute.Pointer, o_full: cute.Pointer, cta: Int32, done: Int32, it: Int32, low: Int32, high: Int32,
    in_low: Int32, in_high: Int32, live: Boolean, thread: Int32, lane: Int32
):
    """Queries, online softmax, lazy rescale, epilogue, merge."""
    scores = cute.make_rmem_tensor(TILE // 2, Float32)
    weights = cute.make_rmem_tensor(32, cutlass.BFloat16)
    panel_0 = cute.make_rmem_tensor(64, cutlass.BFloat16)
    panel_1 = cute.make_rmem_tensor(64, cutlass.BFloat16)
    panel_2 = cute.make_rmem_tensor(64, cutlass.BFloat16)
    panel_3 = cute.make_rmem_tensor(64, cutlass.BFloat16)
    panel_4 = cute.make_rmem_tensor(64, cutlass.BFloat16)
    latent = cute.make_rmem_tensor(32, cutlass.BFloat16)
    rope = cute.make_rmem_tensor(32, cutlass.BFloat16)
    peak = cute.make_rmem_tensor(1, Float32)
    sums = cute.make_rmem_tensor(1, Float32)
    factor = cute.make_rmem_tensor(1, Float32)
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
                cute.arch.mbarrier_wait(qt_empty, (0 & 1) ^ 1)
                nvvm.tcgen05_fence("after_thread_sync")
                take_panel_first_0(panel_0, q_nope, q_nope_stride_t, q_nope_stride_h, row, worker)
                take_panel_first_64(panel_1, q_nope, q_nope_stride_t, q_nope_stride_h, row, worker)
                take_panel_first_128(panel_2, q_nope, q_nope_stride_t, q_nope_stride_h, row, worker)
                take_panel_first_192(panel_3, q_nope, q_nope_stride_t, q_nope_stride_h, row, worker)
                take_panel_first_256(panel_4, q_nope, q_nope_stride_t, q_nope_stride_h, row, worker)
                # A 16-bit fragment, a row a thread, into tensor memory; its arrival is waited for at the
                # commit.
                fragment_sm100.write_tensor(tmem + (OWN_COLUMNS + TILE // 2), panel_0, worker)
                fragment_sm100.write_tensor(tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2), panel_1, worker)
                fragment_sm100.write_tensor(
                    tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 + PANEL // 2), panel_2, worker
                )
                fragment_sm100.write_tensor(
                    tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 3), panel_3, worker
                )
                fragment_sm100.write_tensor(
                    tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 4), panel_4, worker
                )
                take_panel_first_320(panel_0, q_nope, q_nope_stride_t, q_nope_stride_h, row, worker)
                take_panel_first_384(panel_1, q_nope, q_nope_stride_t, q_nope_stride_h, row, worker)
                take_last_queries(
                    latent, rope, q_nope, q_nope_stride_t, q_nope_stride_h, q_pe, q_pe_stride_t,
                    q_pe_stride_h, row, worker
                )
                fragment_sm100.write_tensor(
                    tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 5), panel_0, worker
                )
                fragment_sm100.write_tensor(
                    tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 6), panel_1, worker
                )
                cute.arch.fence_view_async_tmem_store()
                nvvm.tcgen05_fence("before_thread_sync")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(qt_full)
                cute.arch.mbarrier_wait(qs_empty, (0 & 1) ^ 1)
                leave_queries(q_s, latent, rope, worker)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(qs_full)
            begin = Int32(it)
            sums.fill(0.0)
            peak.fill(-Float32.inf)
            for turn in cutlass.range(turns, unroll=1):
                in_low, in_high, live = vote(low, high, cached)
                low, high = read_ids(indices, indices_stride, row, first + (turn + 1), stop, lane)
                if live:
                    cute.arch.mbarrier_wait(s_full, it & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # A fragment, a row a thread, from tensor memory; its arrival is waited for at the
                    # release.
                    fragment_sm100.read_tensor(scores, tmem + OWN_COLUMNS, worker)
                    cute.arch.fence_view_async_tmem_load()
                    nvvm.tcgen05_fence("before_thread_sync")
                    cute.arch.sync_warp()
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive(s_empty)
                    mask_half(scores, in_low, in_high, sm_scale, worker)
                    leave_maximum(red_s + it % 2 * (2 * HALF), scores, worker)
                    cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                    take_maximum(peak, sums, factor, red_s + it % 2 * (2 * HALF), worker)
                    weigh_row(scores, sums, peak)
                    # Every element in the dtype of the target, which the next product may take as its A.
                    fragment_sm100.round_to(weights, scores)
                    cute.arch.mbarrier_wait(p_empty, (it & 1) ^ 1)
                    store_half(p_s, weights, worker)
                    if it > begin:
                        cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                        nvvm.tcgen05_fence("after_thread_sync")
                        rescale_row(tmem, scores, factor, worker)
                        # o: p also gives its slot back
                    cute.arch.fence_proxy("async.shared", space="cta")
                    cute.arch.fence_view_async_tmem_load()
                    cute.arch.fence_view_async_tmem_store()
                    nvvm.tcgen05_fence("before_thread_sync")
                    cute.arch.sync_warp()
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive(p_full)
                    it = it + 1
            if ((row + row_step) * span < end) & (row + row_step < t):
                cute.arch.mbarrier_wait(qt_empty, ((done + 1) & 1) ^ 1)
                nvvm.tcgen05_fence("after_thread_sync")
                take_panel_first_0(panel_0, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, worker)
                take_panel_first_64(panel_1, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, worker)
                take_panel_first_128(
                    panel_2, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, worker
                )
                take_panel_first_192(
                    panel_3, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, worker
                )
                take_panel_first_256(
                    panel_4, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, worker
                )
                fragment_sm100.write_tensor(tmem + (OWN_COLUMNS + TILE // 2), panel_0, worker)
                fragment_sm100.write_tensor(tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2), panel_1, worker)
                fragment_sm100.write_tensor(
                    tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 + PANEL // 2), panel_2, worker
                )
                fragment_sm100.write_tensor(
                    tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 3), panel_3, worker
                )
                fragment_sm100.write_tensor(
                    tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 4), panel_4, worker
                )
                take_panel_first_320(
                    panel_0, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, worker
                )
                take_panel_first_384(
                    panel_1, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, worker
                )
                take_last_queries(
                    latent, rope, q_nope, q_nope_stride_t, q_nope_stride_h, q_pe, q_pe_stride_t,
                    q_pe_stride_h, row + row_step, worker
                )
                fragment_sm100.write_tensor(
                    tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 5), panel_0, worker
                )
                fragment_sm100.write_tensor(
                    tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 6), panel_1, worker
                )
                cute.arch.fence_view_async_tmem_store()
                nvvm.tcgen05_fence("before_thread_sync")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(qt_full)
                cute.arch.mbarrier_wait(qs_empty, ((done + 1) & 1) ^ 1)
                leave_queries(q_s, latent, rope, worker)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(qs_full)
            leave_sum(red_s + it % 2 * (2 * HALF), sums, worker)
            cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
            if it > begin:
                cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                nvvm.tcgen05_fence("after_thread_sync")
            from_cta = row * span // share
            parts = (row * span + scalars.ceildiv(topk, TILE) - 1) // share - from_cta + 1
            if parts > 1:
                finish_row_split(
                    red_s + it % 2 * (2 * HALF), lse_partial, row, cta - from_cta, sums, peak, factor, splits,
                    worker
                )
                write_units_split(
                    o_partial, tmem, row, cta - from_cta, it > begin, scores, factor, splits, worker
                )
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                grid.count_in(arrivals + row + cta % 1, worker)
            else:
                finish_row(
                    red_s + it % 2 * (2 * HALF), lse, lse_stride, row, sums, peak, factor, attn_sink,
                    lse_scale, empty_lse, worker
                )
                write_units(
                    out, out_stride_t, out_stride_h, tmem, row, it > begin, scores, weights, factor, worker
                )
            # All threads must read the sums before the next tile's maxima overwrite them.
            cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
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
def front(
    ckv_map: cute.CopyAtom, indices: cute.Pointer, topk_length: cute.Pointer, has_lengths: Int32,
    cached: Int32, page_inverse: Int32, page_shift: Int32, page_gap: Int32, share: Int32, reach: Int32,
    span: Int32, row_step: Int32, t: Int32, topk: Int32, indices_stride: Int32, front_s: cute.Pointer,
    front_full: cute.Pointer, front_empty: cute.Pointer, cta: Int32, done: Int32, it: Int32, low: Int32,
    high: Int32, in_low: Int32, in_high: Int32, live: Boolean, lane: Int32
):
    """The first half of the latent dims of selected rows."""
    rows_front = cute.make_rmem_tensor(TILE, Int32)
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
                    spread_ids(rows_front, now_low, now_high)
                    cute.arch.mbarrier_wait(
                        front_empty + it * (UNITS // 2) % SIDE_STAGES,
                        ((it * (UNITS // 2) // SIDE_STAGES) & 1) ^ 1
                    )
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(
                            front_full + it * (UNITS // 2) % SIDE_STAGES, TILE * UNIT * 2
                        )
                    bulk.load_rows(
                        ckv_map, rows_front, 0, UNIT,
                        front_s + it * (UNITS // 2) % SIDE_STAGES * (TILE * UNIT),
                        front_full + it * (UNITS // 2) % SIDE_STAGES
                    )
                    cute.arch.mbarrier_wait(
                        front_empty + (it * (UNITS // 2) + 1) % SIDE_STAGES,
                        (((it * (UNITS // 2) + 1) // SIDE_STAGES) & 1) ^ 1
                    )
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(
                            front_full + (it * (UNITS // 2) + 1) % SIDE_STAGES, TILE * UNIT * 2
                        )
                    bulk.load_rows(
                        ckv_map, rows_front, UNIT, UNIT,
                        front_s + (it * (UNITS // 2) + 1) % SIDE_STAGES * (TILE * UNIT),
                        front_full + (it * (UNITS // 2) + 1) % SIDE_STAGES
                    )
                    it = it + 1
            done = done + 1
        unit = (row + row_step) * span


@cute.jit
def back(
    ckv_map: cute.CopyAtom, kpe_map: cute.CopyAtom, indices: cute.Pointer, topk_length: cute.Pointer,
    has_lengths: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32, page_gap: Int32, share: Int32,
    reach: Int32, span: Int32, row_step: Int32, t: Int32, topk: Int32, indices_stride: Int32,
    back_s: cute.Pointer, pe_s: cute.Pointer, back_full: cute.Pointer, back_empty: cute.Pointer,
    pe_full: cute.Pointer, pe_empty: cute.Pointer, cta: Int32, done: Int32, it: Int32, low: Int32,
    high: Int32, in_low: Int32, in_high: Int32, live: Boolean, lane: Int32
):
    """The other half, and the rope dims."""
    rows_back = cute.make_rmem_tensor(TILE, Int32)
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
                    spread_ids(rows_back, now_low, now_high)
                    cute.arch.mbarrier_wait(
                        back_empty + it * (UNITS // 2) % SIDE_STAGES,
                        ((it * (UNITS // 2) // SIDE_STAGES) & 1) ^ 1
                    )
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(
                            back_full + it * (UNITS // 2) % SIDE_STAGES, TILE * UNIT * 2
                        )
                    bulk.load_rows(
                        ckv_map, rows_back, UNITS // 2 * UNIT, UNIT,
                        back_s + it * (UNITS // 2) % SIDE_STAGES * (TILE * UNIT),
                        back_full + it * (UNITS // 2) % SIDE_STAGES
                    )
                    cute.arch.mbarrier_wait(
                        back_empty + (it * (UNITS // 2) + 1) % SIDE_STAGES,
                        (((it * (UNITS // 2) + 1) // SIDE_STAGES) & 1) ^ 1
                    )
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(
                            back_full + (it * (UNITS // 2) + 1) % SIDE_STAGES, TILE * UNIT * 2
                        )
                    bulk.load_rows(
                        ckv_map, rows_back, (UNITS // 2 + 1) * UNIT, UNIT,
                        back_s + (it * (UNITS // 2) + 1) % SIDE_STAGES * (TILE * UNIT),
                        back_full + (it * (UNITS // 2) + 1) % SIDE_STAGES
                    )
                    cute.arch.mbarrier_wait(pe_empty, (it & 1) ^ 1)
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(pe_full, TILE * ROPE_DIM * 2)
                    bulk.load_rows(kpe_map, rows_back, 0, ROPE_DIM, pe_s, pe_full)
                    it = it + 1
            done = done + 1
        unit = (row + row_step) * span


@cute.jit
def mma(
    indices: cute.Pointer, topk_length: cute.Pointer, has_lengths: Int32, cached: Int32, share: Int32,
    reach: Int32, span: Int32, row_step: Int32, t: Int32, topk: Int32, indices_stride: Int32,
    q_s: cute.Pointer, front_s: cute.Pointer, back_s: cute.Pointer, pe_s: cute.Pointer, p_s: cute.Pointer,
    tmem: cute.Pointer, qt_full: cute.Pointer, qt_empty: cute.Pointer, qs_full: cute.Pointer,
    qs_empty: cute.Pointer, front_full: cute.Pointer, front_empty: cute.Pointer, back_full: cute.Pointer,
    back_empty: cute.Pointer, pe_full: cute.Pointer, pe_empty: cute.Pointer, s_full: cute.Pointer,
    s_empty: cute.Pointer, p_full: cute.Pointer, p_empty: cute.Pointer, o_full: cute.Pointer, cta: Int32,
    done: Int32, it: Int32, low: Int32, high: Int32, in_low: Int32, in_high: Int32, live: Boolean,
    lane: Int32
):
    """Issues every tcgen05.mma and commit."""
    qk_front_b = QK_FRONT.operand_b(front_s, TILE, UNIT, SIDE_STAGES, 128)
    qk_back_b = QK_BACK.operand_b(back_s, TILE, UNIT, SIDE_STAGES, 128)
    qk_last_a = QK_LAST.operand_a(q_s, HALF, 2 * PANEL, 1, 128)
    qk_last_b = QK_LAST.operand_b(back_s, TILE, UNIT, SIDE_STAGES, 128)
    qk_pe_a = QK_PE.operand_a(q_s, HALF, 2 * PANEL, 1, 128)
    qk_pe_b = QK_PE.operand_b(pe_s, TILE, ROPE_DIM, 1, 128)
    pv_front_a = PV_FRONT.operand_a(p_s, HALF, TILE, 1, 128)
    pv_front_b = PV_FRONT.operand_b(front_s, TILE, UNIT, SIDE_STAGES, 128)
    pv_back_a = PV_BACK.operand_a(p_s, HALF, TILE, 1, 128)
    pv_back_b = PV_BACK.operand_b(back_s, TILE, UNIT, SIDE_STAGES, 128)
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
            cute.arch.mbarrier_wait(qt_full, done & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            cute.arch.mbarrier_wait(qs_full, done & 1)
            nvvm.tcgen05_fence("after_thread_sync")
            begin = Int32(it)
            for turn in cutlass.range(turns + 1, unroll=1):
                in_low, in_high, live = vote(low, high, cached)
                low, high = read_ids(indices, indices_stride, row, first + (turn + 1), stop, lane)
                late = it > begin
                before = it - 1
                if live:
                    cute.arch.mbarrier_wait(s_empty, (it & 1) ^ 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    use = it * (UNITS // 2)
                    cute.arch.mbarrier_wait(front_full + use % SIDE_STAGES, (use // SIDE_STAGES) & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # S += Q K^T, a panel of the dims
                    QK_FRONT.multiply(
                        tmem + (OWN_COLUMNS + TILE // 2),
                        qk_front_b[None, None, None, use % SIDE_STAGES * (UNIT // PANEL)], tmem + OWN_COLUMNS,
                        False
                    )
                    use = it * (UNITS // 2)
                    # S += Q K^T, a panel of the dims
                    QK_FRONT.multiply(
                        tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2),
                        qk_front_b[None, None, None, use % SIDE_STAGES * (UNIT // PANEL) + 1],
                        tmem + OWN_COLUMNS, True
                    )
                    use = it * (UNITS // 2) + 1
                    cute.arch.mbarrier_wait(front_full + use % SIDE_STAGES, (use // SIDE_STAGES) & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # S += Q K^T, a panel of the dims
                    QK_FRONT.multiply(
                        tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 + PANEL // 2),
                        qk_front_b[None, None, None, use % SIDE_STAGES * (UNIT // PANEL)], tmem + OWN_COLUMNS,
                        True
                    )
                    use = it * (UNITS // 2) + 1
                    # S += Q K^T, a panel of the dims
                    QK_FRONT.multiply(
                        tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 3),
                        qk_front_b[None, None, None, use % SIDE_STAGES * (UNIT // PANEL) + 1],
                        tmem + OWN_COLUMNS, True
                    )
                    use = it * (UNITS // 2)
                    cute.arch.mbarrier_wait(back_full + use % SIDE_STAGES, (use // SIDE_STAGES) & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    QK_BACK.multiply(
                        tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 4),
                        qk_back_b[None, None, None, use % SIDE_STAGES * (UNIT // PANEL)], tmem + OWN_COLUMNS,
                        True
                    )
                    use = it * (UNITS // 2)
                    QK_BACK.multiply(
                        tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 5),
                        qk_back_b[None, None, None, use % SIDE_STAGES * (UNIT // PANEL) + 1],
                        tmem + OWN_COLUMNS, True
                    )
                    use = it * (UNITS // 2) + 1
                    cute.arch.mbarrier_wait(back_full + use % SIDE_STAGES, (use // SIDE_STAGES) & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    QK_BACK.multiply(
                        tmem + (OWN_COLUMNS + TILE // 2 + PANEL // 2 * 6),
                        qk_back_b[None, None, None, use % SIDE_STAGES * (UNIT // PANEL)], tmem + OWN_COLUMNS,
                        True
                    )
                    use = it * (UNITS // 2) + 1
                    # the last latent dims
                    QK_LAST.multiply(
                        qk_last_a[None, None, None, 0],
                        qk_last_b[None, None, None, use % SIDE_STAGES * (UNIT // PANEL) + 1],
                        tmem + OWN_COLUMNS, True
                    )
                    cute.arch.mbarrier_wait(pe_full, it & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # the rope dims
                    QK_PE.multiply(
                        qk_pe_a[None, None, None, 1], qk_pe_b[None, None, None, 0], tmem + OWN_COLUMNS, True
                    )
                    with cute.arch.elect_one():
                        tcgen05.commit(pe_empty)
                    with cute.arch.elect_one():
                        tcgen05.commit(s_full)
                    it = it + 1
                if turn == turns:
                    with cute.arch.elect_one():
                        tcgen05.commit(qt_empty)
                    with cute.arch.elect_one():
                        tcgen05.commit(qs_empty)
                if late & (live | (turn == turns)):
                    cute.arch.mbarrier_wait(p_full, before & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # o: p also gives its slot back
                    # O += P V, a unit of the dims
                    PV_FRONT.multiply(
                        pv_front_a[None, None, None, 0],
                        pv_front_b[None, None, None, before * (UNITS // 2) % SIDE_STAGES], tmem,
                        before > begin
                    )
                    with cute.arch.elect_one():
                        tcgen05.commit(front_empty + before * (UNITS // 2) % SIDE_STAGES)
                    # O += P V, a unit of the dims
                    PV_FRONT.multiply(
                        pv_front_a[None, None, None, 0],
                        pv_front_b[None, None, None, (before * (UNITS // 2) + 1) % SIDE_STAGES],
                        tmem + UNIT_COLUMNS, before > begin
                    )
                    with cute.arch.elect_one():
                        tcgen05.commit(front_empty + (before * (UNITS // 2) + 1) % SIDE_STAGES)
                    # O += P V, a unit of the dims
                    PV_BACK.multiply(
                        pv_back_a[None, None, None, 0],
                        pv_back_b[None, None, None, before * (UNITS // 2) % SIDE_STAGES],
                        tmem + 2 * UNIT_COLUMNS, before > begin
                    )
                    with cute.arch.elect_one():
                        tcgen05.commit(back_empty + before * (UNITS // 2) % SIDE_STAGES)
                    # O += P V, a unit of the dims
                    PV_BACK.multiply(
                        pv_back_a[None, None, None, 0],
                        pv_back_b[None, None, None, (before * (UNITS // 2) + 1) % SIDE_STAGES],
                        tmem + 3 * UNIT_COLUMNS, before > begin
                    )
                    with cute.arch.elect_one():
                        tcgen05.commit(back_empty + (before * (UNITS // 2) + 1) % SIDE_STAGES)
                    with cute.arch.elect_one():
                        tcgen05.commit(p_empty)
                    with cute.arch.elect_one():
                        tcgen05.commit(o_full)
            done = done + 1
        unit = (row + row_step) * span


@cute.kernel
def sparse_mla__cutedsl_sm100a__h64_bf16_bt64_cl1_hb64_gather4(
    ckv_map: cute.CopyAtom, ckv_map_coords: cute.Tensor, kpe_map: cute.CopyAtom, kpe_map_coords: cute.Tensor,
    q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32,
    lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_gap: Int32, ctas: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32,
    t: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32, q_pe_stride_h: Int32,
    n: Int32, ckv_stride: Int32, kpe_stride: Int32, topk: Int32, indices_stride: Int32, out_stride_t: Int32,
    out_stride_h: Int32, lse_stride: Int32, splits: Int32, counters: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    front_s = shared.front_s.data_ptr()
    back_s = shared.back_s.data_ptr()
    pe_s = shared.pe_s.data_ptr()
    p_s = shared.p_s.data_ptr()
    red_s = shared.red_s.data_ptr()
    qt_full = shared.qt_full.data_ptr()
    qt_empty = shared.qt_empty.data_ptr()
    qs_full = shared.qs_full.data_ptr()
    qs_empty = shared.qs_empty.data_ptr()
    front_full = shared.front_full.data_ptr()
    front_empty = shared.front_empty.data_ptr()
    back_full = shared.back_full.data_ptr()
    back_empty = shared.back_empty.data_ptr()
    pe_full = shared.pe_full.data_ptr()
    pe_empty = shared.pe_empty.data_ptr()
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
                cute.arch.mbarrier_init(qt_full + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(qt_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(qs_full + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(qs_empty + i, 1)
            for i in cutlass.range_constexpr(SIDE_STAGES):
                cute.arch.mbarrier_init(front_full + i, 1)
            for i in cutlass.range_constexpr(SIDE_STAGES):
                cute.arch.mbarrier_init(front_empty + i, 1)
            for i in cutlass.range_constexpr(SIDE_STAGES):
                cute.arch.mbarrier_init(back_full + i, 1)
            for i in cutlass.range_constexpr(SIDE_STAGES):
                cute.arch.mbarrier_init(back_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(pe_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(pe_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(s_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(s_empty + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_full + i, 4)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(o_full + i, 1)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(ckv_map)
        cpasync.prefetch_descriptor(kpe_map)
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
            out_stride_t, out_stride_h, lse_stride, splits, q_s, p_s, red_s, tmem, qt_full, qt_empty, qs_full,
            qs_empty, s_full, s_empty, p_full, p_empty, o_full, cta, done, it, low, high, in_low, in_high,
            live, thread, lane
        )
    elif warp < 5:
        front(
            ckv_map, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap, share,
            reach, span, row_step, t, topk, indices_stride, front_s, front_full, front_empty, cta, done, it,
            low, high, in_low, in_high, live, lane
        )
    elif warp < 6:
        back(
            ckv_map, kpe_map, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap,
            share, reach, span, row_step, t, topk, indices_stride, back_s, pe_s, back_full, back_empty,
            pe_full, pe_empty, cta, done, it, low, high, in_low, in_high, live, lane
        )
    else:
        mma(
            indices, topk_length, has_lengths, cached, share, reach, span, row_step, t, topk, indices_stride,
            q_s, front_s, back_s, pe_s, p_s, tmem, qt_full, qt_empty, qs_full, qs_empty, front_full,
            front_empty, back_full, back_empty, pe_full, pe_empty, s_full, s_empty, p_full, p_empty, o_full,
            cta, done, it, low, high, in_low, in_high, live, lane
        )
    # Tensor memory goes back only when no role can touch it any more.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if thread // 32 == 1:
        cute.arch.dealloc_tmem(tmem, 512)


@cute.jit
def program(
    q_nope: cute.Pointer, q_pe: cute.Pointer, ckv: cute.Pointer, kpe: cute.Pointer, indices: cute.Pointer,
    topk_length: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer,
    o_partial: cute.Pointer, lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32,
    lse_scale: Float32, empty_lse: Float32, has_lengths: Int32, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_gap: Int32, ctas: Int32, share: Int32, reach: Int32, span: Int32, row_step: Int32,
    t: Int32, q_nope_stride_t: Int32, q_nope_stride_h: Int32, q_pe_stride_t: Int32, q_pe_stride_h: Int32,
    n: Int32, ckv_stride: Int32, kpe_stride: Int32, topk: Int32, indices_stride: Int32, out_stride_t: Int32,
    out_stride_h: Int32, lse_stride: Int32, splits: Int32, counters: Int32
):
    ckv_map, ckv_map_coords = bulk.row_map(ckv, cutlass.BFloat16, 512, 64)
    kpe_map, kpe_map_coords = bulk.row_map(kpe, cutlass.BFloat16, 64, 64)
    kernel = sparse_mla__cutedsl_sm100a__h64_bf16_bt64_cl1_hb64_gather4(
        ckv_map, ckv_map_coords, kpe_map, kpe_map_coords, q_nope, q_pe, ckv, kpe, indices, topk_length,
        attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale, empty_lse, has_lengths,
        cached, page_inverse, page_shift, page_gap, ctas, share, reach, span, row_step, t, q_nope_stride_t,
        q_nope_stride_h, q_pe_stride_t, q_pe_stride_h, n, ckv_stride, kpe_stride, topk, indices_stride,
        out_stride_t, out_stride_h, lse_stride, splits, counters
    )
    kernel.launch(grid=(1, 1, 1), block=(224, 1, 1), cluster=(1, 1, 1), min_blocks_per_mp=1)
