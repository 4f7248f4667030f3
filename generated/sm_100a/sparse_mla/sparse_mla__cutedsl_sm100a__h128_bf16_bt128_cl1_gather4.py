"""sparse_mla__cutedsl_sm100a__h128_bf16_bt128_cl1_gather4

Generated from dsl_kernels/kernels/sparse_mla and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: heads=128, kv=bf16, tile=128, cluster=1, gather=gather4.

  keys         values       mma          softmax
  warp 4       warp 5       warp 6       warps 0..3
  |            |            |<=== qt ====|   q_t_0 q_t_1 q_t_2 q_t_3 q_t_4 q_t_5; tmem -> tcgen05
  |            |            |<=== qs ====|   q_s; threads -> tcgen05
  |=========== k ==========>|            |   k_s, ring of 13; bulk -> tcgen05
  |            |==== v ====>|            |   v_s, ring of 5; bulk -> tcgen05
  |            |            |==== s ====>|   s_t; tcgen05 -> tmem
  |            |            |<=== p =====|   p_s; threads -> tcgen05
  |            |            |==== o ====>|   o_t; tcgen05 -> tmem

roles
  softmax    threads 0..127  queries, online softmax, lazy rescale, epilogue, merge
  keys       threads 128..159  selected rows of this CTA's side, as keys
  values     threads 160..191  this CTA's half of the dims of selected rows of both sides, as values
  mma        threads 192..223  issues the products of both CTAs, in the first one
buffers
  q_s        64x192 bfloat16, shared, 128-byte swizzle
  k_s        13 stages of 64x64 bfloat16, shared, 128-byte swizzle
  v_s        5 stages of 64x128 bfloat16, shared, 128-byte swizzle
  p_s        64x128 bfloat16, shared, 128-byte swizzle
  red_s      2 stages of 128 float32, shared
  o_t        128x256 float32, tensor memory
  s_t        128x64 float32, tensor memory
  q_t_0      128x64 bfloat16, tensor memory
  q_t_1      128x64 bfloat16, tensor memory
  q_t_2      128x64 bfloat16, tensor memory
  q_t_3      128x64 bfloat16, tensor memory
  q_t_4      128x64 bfloat16, tensor memory
  q_t_5      128x64 bfloat16, tensor memory
  scores     128x64 float32, registers of softmax
  weights    128x64 bfloat16, registers of softmax
  panel_1    128x64 bfloat16, registers of softmax
  panel_2    128x64 bfloat16, registers of softmax
  panel_3    128x64 bfloat16, registers of softmax
  latent     128x64 bfloat16, registers of softmax
  rope       128x32 bfloat16, registers of softmax
  peak       128x1 float32, registers of softmax
  sums       128x1 float32, registers of softmax
  factor     128x1 float32, registers of softmax
  key_rows   32x64 int32, registers of keys
  value_rows 32x64 int32, registers of values
pipelines
  qt: softmax (tmem) ==[q_t_0 q_t_1 q_t_2 q_t_3 q_t_4 q_t_5: 1-slot ring]==> mma (tcgen05)
    full  x8: softmax wait::st, fence before, one lane a warp, arrive full in the first CTA
      mma: wait full, fence after
    empty x1: softmax wait empty, fence after
      mma: commit -> empty in both CTAs
  qs: softmax (threads) ==[q_s: 1-slot ring]==> mma (tcgen05)
    full  x8: softmax fence.proxy.async, one lane a warp, arrive full in the first CTA
      mma: wait full, fence after
    empty x1: softmax wait empty
      mma: commit -> empty in both CTAs
  k: keys (bulk) ==[k_s: 13-slot ring]==> mma (tcgen05)
    full  x1, 16384 bytes: keys the first CTA arrives + expects the bytes of both
      mma: wait full, fence after
    empty x1: keys wait empty
      mma: commit -> empty in both CTAs
  v: values (bulk) ==[v_s: 5-slot ring]==> mma (tcgen05)
    full  x1, 32768 bytes: values the first CTA arrives + expects the bytes of both
      mma: wait full, fence after
    empty x1: values wait empty
      mma: commit -> empty in both CTAs
  s: mma (tcgen05) ==[s_t: 1-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full in both CTAs
      softmax: wait full, fence after
    empty x8: mma wait empty, fence after
      softmax: wait::ld, fence before, one lane a warp, arrive empty in the first CTA
  p: softmax (threads) ==[p_s: 1-slot ring]==> mma (tcgen05)
    full  x8: softmax fence.proxy.async, wait::ld, wait::st, fence before, one lane a warp, arrive full in the first CTA
      mma: wait full, fence after
    empty x1: softmax wait empty
      mma: commit -> empty in both CTAs
  o: mma (tcgen05) ==[o_t: 1-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full in both CTAs
      softmax: wait full, fence after
  named barrier softmax: softmax
totals: 224 threads, 230760 of 232448 bytes of shared memory, 512 of 512 tensor-memory columns, grid (ctas, 2)
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
    tcgen05_pair,
    tcgen05_pair_tensor,
    warps,
)
from dsl_kernels.runtime.artifact import Launch, Operand, TensorMap

HEADS = 128  # query heads
TILE = 128  # tokens per tile
HALF = 64
KEY_STAGES = 13
VALUE_STAGES = 5
PANEL = 64
OWN_DIMS = 256
PANELS = 9
LOG2_E = 1.4426950408889634
SOFTMAX_BARRIER = 1
SOFTMAX_THREADS = 128
HEAD_BLOCK = 64
VALUE_UNITS = 4
VALUE_DIMS = 128

QK_T = tcgen05_pair_tensor.Product("bfloat16", 2 * HALF, 2 * HALF, PANEL, "k", "k")
QK_S = tcgen05_pair.Product("bfloat16", 2 * HALF, 2 * HALF, PANEL, "k", "k")
PV = tcgen05_pair.Product("bfloat16", 2 * HALF, 2 * VALUE_DIMS, HALF, "k", "mn")

LAUNCH = Launch(
    operands=(
        Operand(
            "q_nope", "tensor", "bfloat16", ("t", "128", "512"),
            strides=("q_nope_stride_t", "q_nope_stride_h", "1")
        ),
        Operand(
            "q_pe", "tensor", "bfloat16", ("t", "128", "64"), strides=("q_pe_stride_t", "q_pe_stride_h", "1")
        ),
        Operand("ckv", "tensor", "bfloat16", ("n", "512"), strides=("ckv_stride", "1")),
        Operand("kpe", "tensor", "bfloat16", ("n", "64"), strides=("kpe_stride", "1")),
        Operand("indices", "tensor", "int32", ("t", "topk"), strides=("indices_stride", "1")),
        Operand("topk_length", "tensor", "int32", ("t",)),
        Operand("attn_sink", "tensor", "float32", ("128",)),
        Operand(
            "out", "tensor", "bfloat16", ("t", "128", "512"), strides=("out_stride_t", "out_stride_h", "1"),
            written=True
        ),
        Operand("lse", "tensor", "float32", ("t", "128"), strides=("lse_stride", "1"), written=True),
        Operand("o_partial", "tensor", "float32", ("t", "splits", "128", "512"), written=True),
        Operand("lse_partial", "tensor", "float32", ("t", "splits", "128"), written=True),
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
    grid=("ctas", "2", "1"),
    block=224,
    cluster=(1, 2, 1),
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
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, HALF * ((PANELS - 6) * PANEL)], 1024]
    k_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, KEY_STAGES * HALF * PANEL], 1024]
    v_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, VALUE_STAGES * HALF * VALUE_DIMS], 1024]
    p_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, HALF * (2 * HALF)], 1024]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, 2 * (2 * HALF)], 128]
    qt_full: cute.struct.MemRange[Int64, 1]
    qt_empty: cute.struct.MemRange[Int64, 1]
    qs_full: cute.struct.MemRange[Int64, 1]
    qs_empty: cute.struct.MemRange[Int64, 1]
    k_full: cute.struct.MemRange[Int64, KEY_STAGES]
    k_empty: cute.struct.MemRange[Int64, KEY_STAGES]
    v_full: cute.struct.MemRange[Int64, VALUE_STAGES]
    v_empty: cute.struct.MemRange[Int64, VALUE_STAGES]
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
def take_panel_first_0(panel, q, q_stride_0, q_stride_1, row, head0, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = head0 + thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1
    for i in cutlass.range_constexpr(HALF // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_panel_first_64(panel, q, q_stride_0, q_stride_1, row, head0, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = head0 + thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1 + PANEL
    for i in cutlass.range_constexpr(PANEL // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_panel_first_128(panel, q, q_stride_0, q_stride_1, row, head0, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = head0 + thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1 + 2 * PANEL
    for i in cutlass.range_constexpr(PANEL // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_panel_first_192(panel, q, q_stride_0, q_stride_1, row, head0, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = head0 + thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1 + 3 * PANEL
    for i in cutlass.range_constexpr(PANEL // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_panel_first_256(panel, q, q_stride_0, q_stride_1, row, head0, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = head0 + thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1 + 4 * PANEL
    for i in cutlass.range_constexpr(HALF // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_panel_first_320(panel, q, q_stride_0, q_stride_1, row, head0, thread):
    """Read a panel of dims of a thread's head, from dim `first` on. Both threads of a head read it."""
    head = head0 + thread % HALF
    of_head = q + Int64(row) * q_stride_0 + Int64(head) * q_stride_1 + 5 * PANEL
    for i in cutlass.range_constexpr(PANEL // 8):
        cute.autovec_copy(warps.group(of_head, 8, i), warps.few(panel, i * 8, 8))


@cute.jit
def take_last_queries(
    latent, rope, q_nope, q_nope_stride_0, q_nope_stride_1, q_pe, q_pe_stride_0, q_pe_stride_1, row, head0,
    thread
):
    """Read a thread's part of the latent dims from `first` on, and of the rope dims, of all heads."""
    own = scalars.anew(thread)
    for i in cutlass.range_constexpr(PANEL // 8):
        item = i * 128 + own
        of_head = q_nope + Int64(row) * q_nope_stride_0 + Int64(
            head0 + item // (PANEL * 128 // HALF // 8)
        ) * q_nope_stride_1 + 6 * PANEL
        cute.autovec_copy(
            warps.group(of_head, 8, item % (PANEL * 128 // HALF // 8)), warps.few(latent, i * 8, 8)
        )
    own = scalars.anew(thread)
    for i in cutlass.range_constexpr(PANEL // 2 // 8):
        item = i * 128 + own
        of_head = q_pe + Int64(row) * q_pe_stride_0 + Int64(
            head0 + item // (PANEL // 2 * 128 // HALF // 8)
        ) * q_pe_stride_1
        cute.autovec_copy(
            warps.group(of_head, 8, item % (PANEL // 2 * 128 // HALF // 8)), warps.few(rope, i * 8, 8)
        )


@cute.jit
def leave_queries(target, latent, rope, thread):
    """Store what `take_last_queries` read of all heads in shared memory: latent dims, then rope dims."""
    for i in cutlass.range_constexpr(PANEL // 8):
        item = i * 128 + thread
        cute.autovec_copy(
            warps.few(latent, i * 8, 8),
            warps.piece(
                target, 8, item // (PANEL * 128 // HALF // 8), item % (PANEL * 128 // HALF // 8) * 8,
                (HALF, (PANELS - 6) * PANEL), 128
            )
        )
    for i in cutlass.range_constexpr(PANEL // 2 // 8):
        item = i * 128 + thread
        cute.autovec_copy(
            warps.few(rope, i * 8, 8),
            warps.piece(
                target, 8, item // (PANEL // 2 * 128 // HALF // 8),
                PANEL * 128 // HALF + item % (PANEL // 2 * 128 // HALF // 8) * 8,
                (HALF, (PANELS - 6) * PANEL), 128
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
def mask_rows(scores, left_low, left_high, right_low, right_high, sm_scale, thread):
    """Scale the logits to base 2, and set those of tokens without a valid id to -inf."""
    scale = sm_scale * LOG2_E
    low = cutlass.select_(thread < HALF, left_low, right_low)
    high = cutlass.select_(thread < HALF, left_high, right_high)
    for pair in cutlass.range_constexpr(HALF // 2):
        fragment_sm100.scale_pair(scores, pair * 2, scale, 0.0)
    for i in cutlass.range_constexpr(32):
        scores[i] = cutlass.select_(low >> i & 1 != 0, scores[i], -Float32.inf)
        scores[32 + i] = cutlass.select_(high >> i & 1 != 0, scores[32 + i], -Float32.inf)


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
    for pair in cutlass.range_constexpr(HALF // 2):
        fragment_sm100.scale_pair(scores, pair * 2, 1.0, peak[0])
    for i in cutlass.range_constexpr(HALF):
        scores[i] = warps.exp2(scores[i])
    sums[0] = sums[0] + fragment_sm100.row_sum(scores)


@cute.jit
def store_row(target, weights, thread):
    """Store a thread's weights: those of one side of its head."""
    for i in cutlass.range_constexpr(HALF // 8):
        cute.autovec_copy(
            warps.few(weights, i * 8, 8),
            warps.piece(target, 8, thread % HALF, thread // HALF * HALF + i * 8, (HALF, 2 * HALF), 128)
        )


@cute.jit
def rescale_row(acc, held, factor, thread):
    """Multiply the thread's dims of O by its head's factor. A warp whose factors are all 1 leaves O alone."""
    if warps.any_lane(factor[0] != 1.0):
        for step in cutlass.range(OWN_DIMS // HALF, unroll=1):
            fragment_sm100.load_columns(held, acc, step * HALF, thread)
            for pair in cutlass.range_constexpr(HALF // 2):
                fragment_sm100.scale_pair(held, pair * 2, factor[0], 0.0)
            fragment_sm100.store_columns(held, acc, step * HALF, thread)


@cute.jit
def leave_sum(red, sums, thread):
    """Leave the sum of the thread's side for the head's other thread."""
    red[thread] = sums[0]


@cute.jit
def finish_row_split(red, lses, row, head0, split, sums, peak, factor, splits, thread):
    """Write the head's lse, and compute the factor that normalises its O.

    If the row is not split, the factor includes the sink.
    """
    of_heads = lses + Int64(row * splits + split) * HEADS + head0
    total = sums[0] + red[thread ^ HALF]
    lse2 = cutlass.select_(total > 0.0, warps.log2(total) + peak[0], -Float32.inf)
    factor[0] = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0)
    if thread < HALF:
        of_heads[thread] = lse2


@cute.jit
def write_row_split(to, acc, row, head0, split, some, held, factor, splits, thread):
    """Write the thread's dims of O times its head's factor, into the row or into a split's part of the
    row.

    Without `some` live tile it writes zeros.
    """
    own = thread // HALF * OWN_DIMS
    of_head = to + Int64((row * splits + split) * HEADS + (head0 + thread % HALF)) * 512 + own
    for step in cutlass.range(OWN_DIMS // HALF, unroll=1):
        if some:
            fragment_sm100.load_columns(held, acc, step * HALF, thread)
        for i in cutlass.range_constexpr(HALF):
            held[i] = cutlass.select_(some, held[i] * factor[0], 0.0)
        for i in cutlass.range_constexpr(HALF // 4):
            cute.autovec_copy(warps.few(held, i * 4, 4), warps.group(of_head, 4, step * (HALF // 4) + i))


@cute.jit
def finish_row(
    red, lses, lses_stride_0, row, head0, sums, peak, factor, attn_sink, lse_scale, empty_lse, thread
):
    """Write the head's lse, and compute the factor that normalises its O.

    If the row is not split, the factor includes the sink.
    """
    of_heads = lses + Int64(row) * lses_stride_0 + head0
    total = sums[0] + red[thread ^ HALF]
    lse2 = cutlass.select_(total > 0.0, warps.log2(total) + peak[0], -Float32.inf)
    factor[0] = cutlass.select_(total > 0.0, warps.rcp_approx(total), 0.0) * cutlass.select_(
        lse2 > -Float32.inf,
        warps.rcp_approx(warps.exp2(attn_sink[head0 + thread % HALF] * LOG2_E - lse2) + 1.0), 0.0
    )
    if thread < HALF:
        of_heads[thread] = cutlass.select_(lse2 > -Float32.inf, lse2 * lse_scale, empty_lse)


@cute.jit
def write_row(to, to_stride_0, to_stride_1, acc, row, head0, some, held, rounded, factor, thread):
    """Write the thread's dims of O times its head's factor, into the row or into a split's part of the
    row.

    Without `some` live tile it writes zeros.
    """
    own = thread // HALF * OWN_DIMS
    of_head = to + Int64(row) * to_stride_0 + Int64(head0 + thread % HALF) * to_stride_1 + own
    for step in cutlass.range(OWN_DIMS // HALF, unroll=1):
        if some:
            fragment_sm100.load_columns(held, acc, step * HALF, thread)
        for i in cutlass.range_constexpr(HALF):
            held[i] = cutlass.select_(some, held[i] * factor[0], 0.0)
        # Every element in the dtype of the target, which the next product may take as its A.
        fragment_sm100.round_to(rounded, held)
        for i in cutlass.range_constexpr(HALF // 8):
            cute.autovec_copy(warps.few(rounded, i * 8, 8), warps.group(of_head, 8, step * (HALF // 8) + i))


@cute.jit
def merge_heads(
    row, head0, share, shares, o_partial, lse_partial, attn_sink, out, out_stride_0, out_stride_1, lse,
    lse_stride_0, splits, lse_scale, empty_lse, parts, thread
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
                        first + p < parts, lses[head0 + share + cutlass.min(turn + column, own - 1) * shares],
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
                            head0 + share + cutlass.min(turn + u, own - 1) * shares
                        )
                    ) * 512
                    cute.autovec_copy(warps.group(partial, 4, thread), four)
                    for e in cutlass.range_constexpr(4):
                        merged[u * 4 + e] = merged[u * 4 + e] + four[e] * weights[p * 4 + (u * 4 + e) // 4]
        for column in cutlass.range_constexpr(4):
            if turn + column < own:
                head = head0 + share + cutlass.min(turn + column, own - 1) * shares
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
    p_empty: cute.Pointer, o_full: cute.Pointer, cta: Int32, rank: Int32, head0: Int32, done: Int32,
    it: Int32, low_left: Int32, high_left: Int32, in_low_left: Int32, in_high_left: Int32, live_left: Boolean,
    low_right: Int32, high_right: Int32, in_low_right: Int32, in_high_right: Int32, live_right: Boolean,
    live: Boolean, thread: Int32, lane: Int32
):
    """Queries, online softmax, lazy rescale, epilogue, merge."""
    scores = cute.make_rmem_tensor(HALF, Float32)
    weights = cute.make_rmem_tensor(64, cutlass.BFloat16)
    panel_1 = cute.make_rmem_tensor(64, cutlass.BFloat16)
    panel_2 = cute.make_rmem_tensor(64, cutlass.BFloat16)
    panel_3 = cute.make_rmem_tensor(64, cutlass.BFloat16)
    latent = cute.make_rmem_tensor(64, cutlass.BFloat16)
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
        turns = cutlass.min(end - unit, (scalars.ceildiv(topk, TILE // 2) + 1) // 2 - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * 2 * (TILE // 2), counted)
            low_left, high_left = read_ids(indices, indices_stride, row, first * 2, stop, lane)
            low_right, high_right = read_ids(indices, indices_stride, row, first * 2 + 1, stop, lane)
            if done == 0:
                cute.arch.mbarrier_wait(qt_empty, (0 & 1) ^ 1)
                nvvm.tcgen05_fence("after_thread_sync")
                take_panel_first_0(weights, q_nope, q_nope_stride_t, q_nope_stride_h, row, head0, worker)
                take_panel_first_64(panel_1, q_nope, q_nope_stride_t, q_nope_stride_h, row, head0, worker)
                take_panel_first_128(panel_2, q_nope, q_nope_stride_t, q_nope_stride_h, row, head0, worker)
                take_panel_first_192(panel_3, q_nope, q_nope_stride_t, q_nope_stride_h, row, head0, worker)
                # A 16-bit fragment, a row a thread, into tensor memory; its arrival is waited for at the
                # commit.
                fragment_sm100.write_tensor(tmem + (OWN_DIMS + HALF), weights, worker)
                fragment_sm100.write_tensor(tmem + (OWN_DIMS + HALF + PANEL // 2), panel_1, worker)
                fragment_sm100.write_tensor(
                    tmem + (OWN_DIMS + HALF + PANEL // 2 + PANEL // 2), panel_2, worker
                )
                fragment_sm100.write_tensor(tmem + (OWN_DIMS + HALF + PANEL // 2 * 3), panel_3, worker)
                take_panel_first_256(weights, q_nope, q_nope_stride_t, q_nope_stride_h, row, head0, worker)
                take_panel_first_320(panel_1, q_nope, q_nope_stride_t, q_nope_stride_h, row, head0, worker)
                take_last_queries(
                    latent, rope, q_nope, q_nope_stride_t, q_nope_stride_h, q_pe, q_pe_stride_t,
                    q_pe_stride_h, row, head0, worker
                )
                fragment_sm100.write_tensor(tmem + (OWN_DIMS + HALF + PANEL // 2 * 4), weights, worker)
                fragment_sm100.write_tensor(tmem + (OWN_DIMS + HALF + PANEL // 2 * 5), panel_1, worker)
                cute.arch.fence_view_async_tmem_store()
                nvvm.tcgen05_fence("before_thread_sync")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(qt_full, 0)
                cute.arch.mbarrier_wait(qs_empty, (0 & 1) ^ 1)
                leave_queries(q_s, latent, rope, worker)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(qs_full, 0)
            begin = Int32(it)
            sums.fill(0.0)
            peak.fill(-Float32.inf)
            for turn in cutlass.range(turns, unroll=1):
                in_low_left, in_high_left, live_left = vote(low_left, high_left, cached)
                in_low_right, in_high_right, live_right = vote(low_right, high_right, cached)
                live = live_left | live_right
                low_left, high_left = read_ids(
                    indices, indices_stride, row, (first + (turn + 1)) * 2, stop, lane
                )
                low_right, high_right = read_ids(
                    indices, indices_stride, row, (first + (turn + 1)) * 2 + 1, stop, lane
                )
                if live:
                    cute.arch.mbarrier_wait(s_full, it & 1)
                    nvvm.tcgen05_fence("after_thread_sync")
                    # A fragment, a row a thread, from tensor memory; its arrival is waited for at the
                    # release.
                    fragment_sm100.read_tensor(scores, tmem + OWN_DIMS, worker)
                    cute.arch.fence_view_async_tmem_load()
                    nvvm.tcgen05_fence("before_thread_sync")
                    cute.arch.sync_warp()
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive(s_empty, 0)
                    mask_rows(
                        scores, in_low_left, in_high_left, in_low_right, in_high_right, sm_scale, worker
                    )
                    leave_maximum(red_s + it % 2 * (2 * HALF), scores, worker)
                    cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                    take_maximum(peak, sums, factor, red_s + it % 2 * (2 * HALF), worker)
                    weigh_row(scores, sums, peak)
                    # Every element in the dtype of the target, which the next product may take as its A.
                    fragment_sm100.round_to(weights, scores)
                    cute.arch.mbarrier_wait(p_empty, (it & 1) ^ 1)
                    store_row(p_s, weights, worker)
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
                        cute.arch.mbarrier_arrive(p_full, 0)
                    it = it + 1
            if ((row + row_step) * span < end) & (row + row_step < t):
                cute.arch.mbarrier_wait(qt_empty, ((done + 1) & 1) ^ 1)
                nvvm.tcgen05_fence("after_thread_sync")
                take_panel_first_0(
                    weights, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, head0, worker
                )
                take_panel_first_64(
                    panel_1, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, head0, worker
                )
                take_panel_first_128(
                    panel_2, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, head0, worker
                )
                take_panel_first_192(
                    panel_3, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, head0, worker
                )
                fragment_sm100.write_tensor(tmem + (OWN_DIMS + HALF), weights, worker)
                fragment_sm100.write_tensor(tmem + (OWN_DIMS + HALF + PANEL // 2), panel_1, worker)
                fragment_sm100.write_tensor(
                    tmem + (OWN_DIMS + HALF + PANEL // 2 + PANEL // 2), panel_2, worker
                )
                fragment_sm100.write_tensor(tmem + (OWN_DIMS + HALF + PANEL // 2 * 3), panel_3, worker)
                take_panel_first_256(
                    weights, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, head0, worker
                )
                take_panel_first_320(
                    panel_1, q_nope, q_nope_stride_t, q_nope_stride_h, row + row_step, head0, worker
                )
                take_last_queries(
                    latent, rope, q_nope, q_nope_stride_t, q_nope_stride_h, q_pe, q_pe_stride_t,
                    q_pe_stride_h, row + row_step, head0, worker
                )
                fragment_sm100.write_tensor(tmem + (OWN_DIMS + HALF + PANEL // 2 * 4), weights, worker)
                fragment_sm100.write_tensor(tmem + (OWN_DIMS + HALF + PANEL // 2 * 5), panel_1, worker)
                cute.arch.fence_view_async_tmem_store()
                nvvm.tcgen05_fence("before_thread_sync")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(qt_full, 0)
                cute.arch.mbarrier_wait(qs_empty, ((done + 1) & 1) ^ 1)
                leave_queries(q_s, latent, rope, worker)
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(qs_full, 0)
            leave_sum(red_s + it % 2 * (2 * HALF), sums, worker)
            cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
            if it > begin:
                cute.arch.mbarrier_wait(o_full, (it - 1) & 1)
                nvvm.tcgen05_fence("after_thread_sync")
            from_cta = row * span // share
            parts = (row * span + (scalars.ceildiv(topk, TILE // 2) + 1) // 2 - 1) // share - from_cta + 1
            if parts > 1:
                finish_row_split(
                    red_s + it % 2 * (2 * HALF), lse_partial, row, head0, cta - from_cta, sums, peak, factor,
                    splits, worker
                )
                write_row_split(
                    o_partial, tmem, row, head0, cta - from_cta, it > begin, scores, factor, splits, worker
                )
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                grid.count_in(arrivals + row * (HEADS // HEAD_BLOCK) + rank, worker)
            else:
                finish_row(
                    red_s + it % 2 * (2 * HALF), lse, lse_stride, row, head0, sums, peak, factor, attn_sink,
                    lse_scale, empty_lse, worker
                )
                write_row(
                    out, out_stride_t, out_stride_h, tmem, row, head0, it > begin, scores, weights, factor,
                    worker
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
            parts = (row * span + (scalars.ceildiv(topk, TILE // 2) + 1) // 2 - 1) // share - from_cta + 1
            if (row < t) & (unit - row * span < (scalars.ceildiv(topk, TILE // 2) + 1) // 2) & (parts > 1):
                grid.await_count(arrivals + row * (HEADS // HEAD_BLOCK) + rank, parts, worker)
                cute.arch.barrier(barrier_id=SOFTMAX_BARRIER, number_of_threads=SOFTMAX_THREADS)
                merge_heads(
                    row, head0, cta - from_cta, parts, o_partial, lse_partial, attn_sink, out, out_stride_t,
                    out_stride_h, lse, lse_stride, splits, lse_scale, empty_lse, parts, worker
                )
                grid.count_out(arrivals + row * (HEADS // HEAD_BLOCK) + rank, parts, worker)
            unit = row * span + span
    cute.arch.mbarrier_wait(p_empty, (it & 1) ^ 1)
    cute.arch.mbarrier_wait(qt_empty, (done & 1) ^ 1)
    cute.arch.mbarrier_wait(qs_empty, (done & 1) ^ 1)


@cute.jit
def keys(
    ckv_map: cute.CopyAtom, kpe_map: cute.CopyAtom, indices: cute.Pointer, topk_length: cute.Pointer,
    has_lengths: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32, page_gap: Int32, share: Int32,
    reach: Int32, span: Int32, row_step: Int32, t: Int32, topk: Int32, indices_stride: Int32,
    k_s: cute.Pointer, k_full: cute.Pointer, k_empty: cute.Pointer, cta: Int32, rank: Int32, done: Int32,
    it: Int32, low_left: Int32, high_left: Int32, in_low_left: Int32, in_high_left: Int32, live_left: Boolean,
    low_right: Int32, high_right: Int32, in_low_right: Int32, in_high_right: Int32, live_right: Boolean,
    live: Boolean, lane: Int32
):
    """Selected rows of this CTA's side, as keys."""
    key_rows = cute.make_rmem_tensor(HALF, Int32)
    unit = Int32(cta * share)
    end = cta * share + reach
    while unit < end:
        row = unit // span
        first = unit - row * span
        turns = cutlass.min(end - unit, (scalars.ceildiv(topk, TILE // 2) + 1) // 2 - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * 2 * (TILE // 2), counted)
            low_left, high_left = read_ids(indices, indices_stride, row, first * 2, stop, lane)
            low_right, high_right = read_ids(indices, indices_stride, row, first * 2 + 1, stop, lane)
            for turn in cutlass.range(turns, unroll=1):
                in_low_left, in_high_left, live_left = vote(low_left, high_left, cached)
                in_low_right, in_high_right, live_right = vote(low_right, high_right, cached)
                live = live_left | live_right
                now_low_left, now_high_left = find_rows(
                    low_left, high_left, cached, page_inverse, page_shift, page_gap
                )
                left_low = now_low_left
                left_high = now_high_left
                now_low_right, now_high_right = find_rows(
                    low_right, high_right, cached, page_inverse, page_shift, page_gap
                )
                right_low = now_low_right
                right_high = now_high_right
                now_low = Int32(left_low)
                now_high = Int32(left_high)
                if rank != 0:
                    now_low = right_low
                    now_high = right_high
                low_left, high_left = read_ids(
                    indices, indices_stride, row, (first + (turn + 1)) * 2, stop, lane
                )
                low_right, high_right = read_ids(
                    indices, indices_stride, row, (first + (turn + 1)) * 2 + 1, stop, lane
                )
                if live:
                    spread_ids(key_rows, now_low, now_high)
                    for c in cutlass.range(PANELS - 1, unroll=1):
                        cute.arch.mbarrier_wait(
                            k_empty + (it * PANELS + c) % KEY_STAGES,
                            (((it * PANELS + c) // KEY_STAGES) & 1) ^ 1
                        )
                        if tcgen05_pair.first_cta():
                            with cute.arch.elect_one():
                                cute.arch.mbarrier_arrive_and_expect_tx(
                                    k_full + (it * PANELS + c) % KEY_STAGES, 2 * (HALF * PANEL * 2)
                                )
                        bulk.load_rows(
                            ckv_map, key_rows, c * PANEL, PANEL,
                            k_s + (it * PANELS + c) % KEY_STAGES * (HALF * PANEL),
                            k_full + (it * PANELS + c) % KEY_STAGES, pair=True
                        )
                    cute.arch.mbarrier_wait(
                        k_empty + (it * PANELS + (PANELS - 1)) % KEY_STAGES,
                        (((it * PANELS + (PANELS - 1)) // KEY_STAGES) & 1) ^ 1
                    )
                    if tcgen05_pair.first_cta():
                        with cute.arch.elect_one():
                            cute.arch.mbarrier_arrive_and_expect_tx(
                                k_full + (it * PANELS + (PANELS - 1)) % KEY_STAGES, 2 * (HALF * PANEL * 2)
                            )
                    bulk.load_rows(
                        kpe_map, key_rows, 0, PANEL,
                        k_s + (it * PANELS + (PANELS - 1)) % KEY_STAGES * (HALF * PANEL),
                        k_full + (it * PANELS + (PANELS - 1)) % KEY_STAGES, pair=True
                    )
                    it = it + 1
            done = done + 1
        unit = (row + row_step) * span
    cute.arch.mbarrier_wait(k_empty + it * PANELS % KEY_STAGES, ((it * PANELS // KEY_STAGES) & 1) ^ 1)
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 1) % KEY_STAGES, (((it * PANELS + 1) // KEY_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 2) % KEY_STAGES, (((it * PANELS + 2) // KEY_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 3) % KEY_STAGES, (((it * PANELS + 3) // KEY_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 4) % KEY_STAGES, (((it * PANELS + 4) // KEY_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 5) % KEY_STAGES, (((it * PANELS + 5) // KEY_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 6) % KEY_STAGES, (((it * PANELS + 6) // KEY_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 7) % KEY_STAGES, (((it * PANELS + 7) // KEY_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 8) % KEY_STAGES, (((it * PANELS + 8) // KEY_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 9) % KEY_STAGES, (((it * PANELS + 9) // KEY_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 10) % KEY_STAGES, (((it * PANELS + 10) // KEY_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 11) % KEY_STAGES, (((it * PANELS + 11) // KEY_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        k_empty + (it * PANELS + 12) % KEY_STAGES, (((it * PANELS + 12) // KEY_STAGES) & 1) ^ 1
    )


@cute.jit
def values(
    ckv_map: cute.CopyAtom, indices: cute.Pointer, topk_length: cute.Pointer, has_lengths: Int32,
    cached: Int32, page_inverse: Int32, page_shift: Int32, page_gap: Int32, share: Int32, reach: Int32,
    span: Int32, row_step: Int32, t: Int32, topk: Int32, indices_stride: Int32, v_s: cute.Pointer,
    v_full: cute.Pointer, v_empty: cute.Pointer, cta: Int32, rank: Int32, done: Int32, it: Int32,
    low_left: Int32, high_left: Int32, in_low_left: Int32, in_high_left: Int32, live_left: Boolean,
    low_right: Int32, high_right: Int32, in_low_right: Int32, in_high_right: Int32, live_right: Boolean,
    live: Boolean, lane: Int32
):
    """This CTA's half of the dims of selected rows of both sides, as values."""
    value_rows = cute.make_rmem_tensor(HALF, Int32)
    unit = Int32(cta * share)
    end = cta * share + reach
    while unit < end:
        row = unit // span
        first = unit - row * span
        turns = cutlass.min(end - unit, (scalars.ceildiv(topk, TILE // 2) + 1) // 2 - first)
        if (row < t) & (turns > 0):
            counted = Int32(topk)
            if has_lengths != 0:
                counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
            stop = cutlass.min((first + turns) * 2 * (TILE // 2), counted)
            low_left, high_left = read_ids(indices, indices_stride, row, first * 2, stop, lane)
            low_right, high_right = read_ids(indices, indices_stride, row, first * 2 + 1, stop, lane)
            for turn in cutlass.range(turns, unroll=1):
                in_low_left, in_high_left, live_left = vote(low_left, high_left, cached)
                in_low_right, in_high_right, live_right = vote(low_right, high_right, cached)
                live = live_left | live_right
                now_low_left, now_high_left = find_rows(
                    low_left, high_left, cached, page_inverse, page_shift, page_gap
                )
                left_low = now_low_left
                left_high = now_high_left
                now_low_right, now_high_right = find_rows(
                    low_right, high_right, cached, page_inverse, page_shift, page_gap
                )
                right_low = now_low_right
                right_high = now_high_right
                now_low = Int32(left_low)
                now_high = Int32(left_high)
                if rank != 0:
                    now_low = right_low
                    now_high = right_high
                low_left, high_left = read_ids(
                    indices, indices_stride, row, (first + (turn + 1)) * 2, stop, lane
                )
                low_right, high_right = read_ids(
                    indices, indices_stride, row, (first + (turn + 1)) * 2 + 1, stop, lane
                )
                if live:
                    spread_ids(value_rows, left_low, left_high)
                    cute.arch.mbarrier_wait(
                        v_empty + it * VALUE_UNITS % VALUE_STAGES,
                        ((it * VALUE_UNITS // VALUE_STAGES) & 1) ^ 1
                    )
                    if tcgen05_pair.first_cta():
                        with cute.arch.elect_one():
                            cute.arch.mbarrier_arrive_and_expect_tx(
                                v_full + it * VALUE_UNITS % VALUE_STAGES, 2 * (HALF * VALUE_DIMS * 2)
                            )
                    own_dims = rank * OWN_DIMS
                    bulk.load_rows(
                        ckv_map, value_rows, own_dims, VALUE_DIMS,
                        v_s + it * VALUE_UNITS % VALUE_STAGES * (HALF * VALUE_DIMS),
                        v_full + it * VALUE_UNITS % VALUE_STAGES, pair=True
                    )
                    cute.arch.mbarrier_wait(
                        v_empty + (it * VALUE_UNITS + 1) % VALUE_STAGES,
                        (((it * VALUE_UNITS + 1) // VALUE_STAGES) & 1) ^ 1
                    )
                    if tcgen05_pair.first_cta():
                        with cute.arch.elect_one():
                            cute.arch.mbarrier_arrive_and_expect_tx(
                                v_full + (it * VALUE_UNITS + 1) % VALUE_STAGES, 2 * (HALF * VALUE_DIMS * 2)
                            )
                    own_dims = rank * OWN_DIMS + VALUE_DIMS
                    bulk.load_rows(
                        ckv_map, value_rows, own_dims, VALUE_DIMS,
                        v_s + (it * VALUE_UNITS + 1) % VALUE_STAGES * (HALF * VALUE_DIMS),
                        v_full + (it * VALUE_UNITS + 1) % VALUE_STAGES, pair=True
                    )
                    spread_ids(value_rows, right_low, right_high)
                    cute.arch.mbarrier_wait(
                        v_empty + (it * VALUE_UNITS + 2) % VALUE_STAGES,
                        (((it * VALUE_UNITS + 2) // VALUE_STAGES) & 1) ^ 1
                    )
                    if tcgen05_pair.first_cta():
                        with cute.arch.elect_one():
                            cute.arch.mbarrier_arrive_and_expect_tx(
                                v_full + (it * VALUE_UNITS + 2) % VALUE_STAGES, 2 * (HALF * VALUE_DIMS * 2)
                            )
                    own_dims = rank * OWN_DIMS
                    bulk.load_rows(
                        ckv_map, value_rows, own_dims, VALUE_DIMS,
                        v_s + (it * VALUE_UNITS + 2) % VALUE_STAGES * (HALF * VALUE_DIMS),
                        v_full + (it * VALUE_UNITS + 2) % VALUE_STAGES, pair=True
                    )
                    cute.arch.mbarrier_wait(
                        v_empty + (it * VALUE_UNITS + 3) % VALUE_STAGES,
                        (((it * VALUE_UNITS + 3) // VALUE_STAGES) & 1) ^ 1
                    )
                    if tcgen05_pair.first_cta():
                        with cute.arch.elect_one():
                            cute.arch.mbarrier_arrive_and_expect_tx(
                                v_full + (it * VALUE_UNITS + 3) % VALUE_STAGES, 2 * (HALF * VALUE_DIMS * 2)
                            )
                    own_dims = rank * OWN_DIMS + VALUE_DIMS
                    bulk.load_rows(
                        ckv_map, value_rows, own_dims, VALUE_DIMS,
                        v_s + (it * VALUE_UNITS + 3) % VALUE_STAGES * (HALF * VALUE_DIMS),
                        v_full + (it * VALUE_UNITS + 3) % VALUE_STAGES, pair=True
                    )
                    it = it + 1
            done = done + 1
        unit = (row + row_step) * span
    cute.arch.mbarrier_wait(
        v_empty + it * VALUE_UNITS % VALUE_STAGES, ((it * VALUE_UNITS // VALUE_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        v_empty + (it * VALUE_UNITS + 1) % VALUE_STAGES, (((it * VALUE_UNITS + 1) // VALUE_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        v_empty + (it * VALUE_UNITS + 2) % VALUE_STAGES, (((it * VALUE_UNITS + 2) // VALUE_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        v_empty + (it * VALUE_UNITS + 3) % VALUE_STAGES, (((it * VALUE_UNITS + 3) // VALUE_STAGES) & 1) ^ 1
    )
    cute.arch.mbarrier_wait(
        v_empty + (it * VALUE_UNITS + 4) % VALUE_STAGES, (((it * VALUE_UNITS + 4) // VALUE_STAGES) & 1) ^ 1
    )


@cute.jit
def mma(
    indices: cute.Pointer, topk_length: cute.Pointer, has_lengths: Int32, cached: Int32, share: Int32,
    reach: Int32, span: Int32, row_step: Int32, t: Int32, topk: Int32, indices_stride: Int32,
    q_s: cute.Pointer, k_s: cute.Pointer, v_s: cute.Pointer, p_s: cute.Pointer, tmem: cute.Pointer,
    qt_full: cute.Pointer, qt_empty: cute.Pointer, qs_full: cute.Pointer, qs_empty: cute.Pointer,
    k_full: cute.Pointer, k_empty: cute.Pointer, v_full: cute.Pointer, v_empty: cute.Pointer,
    s_full: cute.Pointer, s_empty: cute.Pointer, p_full: cute.Pointer, p_empty: cute.Pointer,
    o_full: cute.Pointer, cta: Int32, rank: Int32, done: Int32, it: Int32, low_left: Int32, high_left: Int32,
    in_low_left: Int32, in_high_left: Int32, live_left: Boolean, low_right: Int32, high_right: Int32,
    in_low_right: Int32, in_high_right: Int32, live_right: Boolean, live: Boolean, lane: Int32
):
    """Issues the products of both CTAs, in the first one."""
    qk_t_b = QK_T.operand_b(k_s, HALF, PANEL, KEY_STAGES, 128)
    qk_s_a = QK_S.operand_a(q_s, HALF, (PANELS - 6) * PANEL, 1, 128)
    qk_s_b = QK_S.operand_b(k_s, HALF, PANEL, KEY_STAGES, 128)
    pv_a = PV.operand_a(p_s, HALF, 2 * HALF, 1, 128)
    pv_b = PV.operand_b(v_s, HALF, VALUE_DIMS, VALUE_STAGES, 128)
    if rank == 0:
        unit = Int32(cta * share)
        end = cta * share + reach
        while unit < end:
            row = unit // span
            first = unit - row * span
            turns = cutlass.min(end - unit, (scalars.ceildiv(topk, TILE // 2) + 1) // 2 - first)
            if (row < t) & (turns > 0):
                counted = Int32(topk)
                if has_lengths != 0:
                    counted = cutlass.max(cutlass.min(topk_length[row], topk), 0)
                stop = cutlass.min((first + turns) * 2 * (TILE // 2), counted)
                low_left, high_left = read_ids(indices, indices_stride, row, first * 2, stop, lane)
                low_right, high_right = read_ids(indices, indices_stride, row, first * 2 + 1, stop, lane)
                cute.arch.mbarrier_wait(qt_full, done & 1)
                nvvm.tcgen05_fence("after_thread_sync")
                cute.arch.mbarrier_wait(qs_full, done & 1)
                nvvm.tcgen05_fence("after_thread_sync")
                begin = Int32(it)
                for turn in cutlass.range(turns + 1, unroll=1):
                    in_low_left, in_high_left, live_left = vote(low_left, high_left, cached)
                    in_low_right, in_high_right, live_right = vote(low_right, high_right, cached)
                    live = live_left | live_right
                    low_left, high_left = read_ids(
                        indices, indices_stride, row, (first + (turn + 1)) * 2, stop, lane
                    )
                    low_right, high_right = read_ids(
                        indices, indices_stride, row, (first + (turn + 1)) * 2 + 1, stop, lane
                    )
                    late = it > begin
                    before = it - 1
                    if live:
                        cute.arch.mbarrier_wait(s_empty, (it & 1) ^ 1)
                        nvvm.tcgen05_fence("after_thread_sync")
                        cute.arch.mbarrier_wait(
                            k_full + it * PANELS % KEY_STAGES, (it * PANELS // KEY_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # S += Q K^T, a panel of the dims
                        QK_T.multiply(
                            tmem + (OWN_DIMS + HALF), qk_t_b[None, None, None, it * PANELS % KEY_STAGES],
                            tmem + OWN_DIMS, False
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(k_empty + it * PANELS % KEY_STAGES)
                        cute.arch.mbarrier_wait(
                            k_full + (it * PANELS + 1) % KEY_STAGES, ((it * PANELS + 1) // KEY_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # S += Q K^T, a panel of the dims
                        QK_T.multiply(
                            tmem + (OWN_DIMS + HALF + PANEL // 2),
                            qk_t_b[None, None, None, (it * PANELS + 1) % KEY_STAGES], tmem + OWN_DIMS, True
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(k_empty + (it * PANELS + 1) % KEY_STAGES)
                        cute.arch.mbarrier_wait(
                            k_full + (it * PANELS + 2) % KEY_STAGES, ((it * PANELS + 2) // KEY_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # S += Q K^T, a panel of the dims
                        QK_T.multiply(
                            tmem + (OWN_DIMS + HALF + PANEL // 2 + PANEL // 2),
                            qk_t_b[None, None, None, (it * PANELS + 2) % KEY_STAGES], tmem + OWN_DIMS, True
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(k_empty + (it * PANELS + 2) % KEY_STAGES)
                        cute.arch.mbarrier_wait(
                            k_full + (it * PANELS + 3) % KEY_STAGES, ((it * PANELS + 3) // KEY_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # S += Q K^T, a panel of the dims
                        QK_T.multiply(
                            tmem + (OWN_DIMS + HALF + PANEL // 2 * 3),
                            qk_t_b[None, None, None, (it * PANELS + 3) % KEY_STAGES], tmem + OWN_DIMS, True
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(k_empty + (it * PANELS + 3) % KEY_STAGES)
                        cute.arch.mbarrier_wait(
                            k_full + (it * PANELS + 4) % KEY_STAGES, ((it * PANELS + 4) // KEY_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # S += Q K^T, a panel of the dims
                        QK_T.multiply(
                            tmem + (OWN_DIMS + HALF + PANEL // 2 * 4),
                            qk_t_b[None, None, None, (it * PANELS + 4) % KEY_STAGES], tmem + OWN_DIMS, True
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(k_empty + (it * PANELS + 4) % KEY_STAGES)
                        cute.arch.mbarrier_wait(
                            k_full + (it * PANELS + 5) % KEY_STAGES, ((it * PANELS + 5) // KEY_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # S += Q K^T, a panel of the dims
                        QK_T.multiply(
                            tmem + (OWN_DIMS + HALF + PANEL // 2 * 5),
                            qk_t_b[None, None, None, (it * PANELS + 5) % KEY_STAGES], tmem + OWN_DIMS, True
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(k_empty + (it * PANELS + 5) % KEY_STAGES)
                        cute.arch.mbarrier_wait(
                            k_full + (it * PANELS + 6) % KEY_STAGES, ((it * PANELS + 6) // KEY_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # the last dims
                        QK_S.multiply(
                            qk_s_a[None, None, None, 0],
                            qk_s_b[None, None, None, (it * PANELS + 6) % KEY_STAGES], tmem + OWN_DIMS, True
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(k_empty + (it * PANELS + 6) % KEY_STAGES)
                        cute.arch.mbarrier_wait(
                            k_full + (it * PANELS + 7) % KEY_STAGES, ((it * PANELS + 7) // KEY_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # the last dims
                        QK_S.multiply(
                            qk_s_a[None, None, None, 1],
                            qk_s_b[None, None, None, (it * PANELS + 7) % KEY_STAGES], tmem + OWN_DIMS, True
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(k_empty + (it * PANELS + 7) % KEY_STAGES)
                        cute.arch.mbarrier_wait(
                            k_full + (it * PANELS + 8) % KEY_STAGES, ((it * PANELS + 8) // KEY_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # the last dims
                        QK_S.multiply(
                            qk_s_a[None, None, None, 2 * PANEL // PANEL],
                            qk_s_b[None, None, None, (it * PANELS + 8) % KEY_STAGES], tmem + OWN_DIMS, True
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(k_empty + (it * PANELS + 8) % KEY_STAGES)
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(s_full)
                        it = it + 1
                    if turn == turns:
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(qt_empty)
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(qs_empty)
                    if late & (live | (turn == turns)):
                        cute.arch.mbarrier_wait(p_full, before & 1)
                        nvvm.tcgen05_fence("after_thread_sync")
                        # o: p also gives its slot back
                        cute.arch.mbarrier_wait(
                            v_full + before * VALUE_UNITS % VALUE_STAGES,
                            (before * VALUE_UNITS // VALUE_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # O += P V, a side of the tokens, half of the dims
                        PV.multiply(
                            pv_a[None, None, None, 0],
                            pv_b[None, None, None, before * VALUE_UNITS % VALUE_STAGES], tmem, before > begin
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(v_empty + before * VALUE_UNITS % VALUE_STAGES)
                        cute.arch.mbarrier_wait(
                            v_full + (before * VALUE_UNITS + 1) % VALUE_STAGES,
                            ((before * VALUE_UNITS + 1) // VALUE_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # O += P V, a side of the tokens, half of the dims
                        PV.multiply(
                            pv_a[None, None, None, 0],
                            pv_b[None, None, None, (before * VALUE_UNITS + 1) % VALUE_STAGES],
                            tmem + VALUE_DIMS, before > begin
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(v_empty + (before * VALUE_UNITS + 1) % VALUE_STAGES)
                        cute.arch.mbarrier_wait(
                            v_full + (before * VALUE_UNITS + 2) % VALUE_STAGES,
                            ((before * VALUE_UNITS + 2) // VALUE_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # O += P V, a side of the tokens, half of the dims
                        PV.multiply(
                            pv_a[None, None, None, 1],
                            pv_b[None, None, None, (before * VALUE_UNITS + 2) % VALUE_STAGES], tmem, True
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(v_empty + (before * VALUE_UNITS + 2) % VALUE_STAGES)
                        cute.arch.mbarrier_wait(
                            v_full + (before * VALUE_UNITS + 3) % VALUE_STAGES,
                            ((before * VALUE_UNITS + 3) // VALUE_STAGES) & 1
                        )
                        nvvm.tcgen05_fence("after_thread_sync")
                        # O += P V, a side of the tokens, half of the dims
                        PV.multiply(
                            pv_a[None, None, None, 1],
                            pv_b[None, None, None, (before * VALUE_UNITS + 3) % VALUE_STAGES],
                            tmem + VALUE_DIMS, True
                        )
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(v_empty + (before * VALUE_UNITS + 3) % VALUE_STAGES)
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(p_empty)
                        with cute.arch.elect_one():
                            tcgen05_pair.commit(o_full)
                done = done + 1
            unit = (row + row_step) * span


@cute.kernel
def sparse_mla__cutedsl_sm100a__h128_bf16_bt128_cl1_gather4(
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
    k_s = shared.k_s.data_ptr()
    v_s = shared.v_s.data_ptr()
    p_s = shared.p_s.data_ptr()
    red_s = shared.red_s.data_ptr()
    qt_full = shared.qt_full.data_ptr()
    qt_empty = shared.qt_empty.data_ptr()
    qs_full = shared.qs_full.data_ptr()
    qs_empty = shared.qs_empty.data_ptr()
    k_full = shared.k_full.data_ptr()
    k_empty = shared.k_empty.data_ptr()
    v_full = shared.v_full.data_ptr()
    v_empty = shared.v_empty.data_ptr()
    s_full = shared.s_full.data_ptr()
    s_empty = shared.s_empty.data_ptr()
    p_full = shared.p_full.data_ptr()
    p_empty = shared.p_empty.data_ptr()
    o_full = shared.o_full.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    cta, rank, _ = cute.arch.block_idx()
    head0 = rank * HALF
    done = Int32(0)
    it = Int32(0)
    low_left = Int32(0)
    high_left = Int32(0)
    in_low_left = Int32(0)
    in_high_left = Int32(0)
    live_left = Boolean(False)
    low_right = Int32(0)
    high_right = Int32(0)
    in_low_right = Int32(0)
    in_high_right = Int32(0)
    live_right = Boolean(False)
    live = Boolean(False)
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    if warp == 0:
        with cute.arch.elect_one():
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(qt_full + i, 8)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(qt_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(qs_full + i, 8)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(qs_empty + i, 1)
            for i in cutlass.range_constexpr(KEY_STAGES):
                cute.arch.mbarrier_init(k_full + i, 1)
            for i in cutlass.range_constexpr(KEY_STAGES):
                cute.arch.mbarrier_init(k_empty + i, 1)
            for i in cutlass.range_constexpr(VALUE_STAGES):
                cute.arch.mbarrier_init(v_full + i, 1)
            for i in cutlass.range_constexpr(VALUE_STAGES):
                cute.arch.mbarrier_init(v_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(s_full + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(s_empty + i, 8)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_full + i, 8)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(p_empty + i, 1)
            for i in cutlass.range_constexpr(1):
                cute.arch.mbarrier_init(o_full + i, 1)
            cute.arch.mbarrier_init_fence()
        cpasync.prefetch_descriptor(ckv_map)
        cpasync.prefetch_descriptor(kpe_map)
    if warp == 1:
        cute.arch.alloc_tmem(512, shared.tmem, is_two_cta=True)
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
        nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, shared.tmem)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    if warp < 4:
        softmax(
            q_nope, q_pe, indices, topk_length, attn_sink, out, lse, o_partial, lse_partial, arrivals,
            sm_scale, lse_scale, empty_lse, has_lengths, cached, share, reach, span, row_step, t,
            q_nope_stride_t, q_nope_stride_h, q_pe_stride_t, q_pe_stride_h, topk, indices_stride,
            out_stride_t, out_stride_h, lse_stride, splits, q_s, p_s, red_s, tmem, qt_full, qt_empty, qs_full,
            qs_empty, s_full, s_empty, p_full, p_empty, o_full, cta, rank, head0, done, it, low_left,
            high_left, in_low_left, in_high_left, live_left, low_right, high_right, in_low_right,
            in_high_right, live_right, live, thread, lane
        )
    elif warp < 5:
        keys(
            ckv_map, kpe_map, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap,
            share, reach, span, row_step, t, topk, indices_stride, k_s, k_full, k_empty, cta, rank, done, it,
            low_left, high_left, in_low_left, in_high_left, live_left, low_right, high_right, in_low_right,
            in_high_right, live_right, live, lane
        )
    elif warp < 6:
        values(
            ckv_map, indices, topk_length, has_lengths, cached, page_inverse, page_shift, page_gap, share,
            reach, span, row_step, t, topk, indices_stride, v_s, v_full, v_empty, cta, rank, done, it,
            low_left, high_left, in_low_left, in_high_left, live_left, low_right, high_right, in_low_right,
            in_high_right, live_right, live, lane
        )
    else:
        mma(
            indices, topk_length, has_lengths, cached, share, reach, span, row_step, t, topk, indices_stride,
            q_s, k_s, v_s, p_s, tmem, qt_full, qt_empty, qs_full, qs_empty, k_full, k_empty, v_full, v_empty,
            s_full, s_empty, p_full, p_empty, o_full, cta, rank, done, it, low_left, high_left, in_low_left,
            in_high_left, live_left, low_right, high_right, in_low_right, in_high_right, live_right, live,
            lane
        )
    # No CTA ends while others may still send to it or arrive at its barriers.
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()

    # Tensor memory goes back only when no role can touch it any more.
    nvvm.tcgen05_fence("before_thread_sync")
    cute.arch.sync_threads()
    nvvm.tcgen05_fence("after_thread_sync")
    if thread // 32 == 1:
        cute.arch.dealloc_tmem(tmem, 512, is_two_cta=True)


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
    kernel = sparse_mla__cutedsl_sm100a__h128_bf16_bt128_cl1_gather4(
        ckv_map, ckv_map_coords, kpe_map, kpe_map_coords, q_nope, q_pe, ckv, kpe, indices, topk_length,
        attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale, empty_lse, has_lengths,
        cached, page_inverse, page_shift, page_gap, ctas, share, reach, span, row_step, t, q_nope_stride_t,
        q_nope_stride_h, q_pe_stride_t, q_pe_stride_h, n, ckv_stride, kpe_stride, topk, indices_stride,
        out_stride_t, out_stride_h, lse_stride, splits, counters
    )
    kernel.launch(grid=(1, 1, 1), block=(224, 1, 1), cluster=(1, 2, 1), min_blocks_per_mp=1)
