"""sparse_mla__tilelang_sm100a__h128_bf16_bt64_cl1_cp_async

Generated from dsl_kernels/programs/sparse_mla and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: heads=128, kv=bf16, tile=64, cluster=1, gather=cp_async.

  producer     mma          softmax
  warps 4..7   warp 8       warps 0..3
  |            |<=== q =====|   q_s qpe_s, once; threads -> tcgen05
  |==== kv ===>|            |   kv_s, ring of 8; cp_async -> tcgen05
  |==== pe ===>|            |   pe_s; cp_async -> tcgen05
  |            |==== s ====>|   s_t, ring of 2; tcgen05 -> tmem
  |            |<=== p =====|   p_s; threads -> tcgen05
  |            |==== o ====>|   o_t; tcgen05 -> tmem

roles
  softmax    threads 0..127  queries, online softmax, lazy rescale, epilogue, merge
  producer   threads 128..255  selected rows into the rings
  mma        threads 256..287  issues every tcgen05.mma and commit
buffers
  q_s        64x512 bfloat16, shared, 128-byte swizzle
  qpe_s      64x64 bfloat16, shared, 128-byte swizzle
  kv_s       8 stages of 64x128 bfloat16, shared, 128-byte swizzle
  pe_s       64x64 bfloat16, shared, 128-byte swizzle
  p_s        64x64 bfloat16, shared, 128-byte swizzle
  red_s      2 stages of 64x4 float32, shared
  stat_s     64 float32, shared
  last_s     1 int32, shared
  o_t        128x256 float32, tensor memory
  s_t        2 stages of 64x64 float32, tensor memory
  scores     128x32 float32, registers of softmax
  sums       128x16 float32, registers of softmax
  top        128x16 float32, registers of softmax
  peak       128x16 float32, registers of softmax
  held       128x16 float32, registers of softmax
  rows       128x8 int32, registers of producer
pipelines
  q: softmax (threads) ==[q_s qpe_s: once]==> mma (tcgen05)
    full  x128: softmax fence.proxy.async, arrive full
      mma: wait full, fence after
  kv: producer (cp_async) ==[kv_s: 8-slot ring]==> mma (tcgen05)
    full  x128: producer hardware arrives per thread
      mma: wait full, fence.proxy.async, fence after
    empty x1: producer wait empty
      mma: commit -> empty
  pe: producer (cp_async) ==[pe_s: 1-slot ring]==> mma (tcgen05)
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
totals: 288 threads, 223700 of 232448 bytes of shared memory, 384 of 512 tensor-memory columns, grid (t * 2, splits)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout

from dsl_kernels.device.tilelang import grid, tcgen05, warps
from dsl_kernels.device.tilelang import sparse_mla_sm100 as leaf_sm100

PASS_CONFIGS = leaf_sm100.PASS_CONFIGS

HEADS = 128  # query heads
TILE = 64  # tokens a tile
CLUSTER = 1  # splits of a row that meet as a cluster and share out the merge
HEAD_BLOCK = 64
UNIT_STAGES = 8
TILE_STAGES = 1
LATENT_DIM = 512
ROPE_DIM = 64
UNITS = 4
SOFTMAX_BARRIER = 1
SOFTMAX_THREADS = 128
UNIT = 128


@T.macro
def read_ids(low: T.Ref, high: T.Ref, indices, topk, row, turns, split, splits, lane):
    """Ids `lane` and `lane` + 32 of the tile at `turn`; none past the last turn."""
    low = -1
    high = -1
    if turns > 0:
        first = split * 64 + lane
        low = indices[row, first]
        high = indices[row, first + 32]


@T.macro
def load_block(target, target_slot, q, row, head0, thread):
    """A block of heads of one query; the rows behind them, up to `padded`, become zero."""
    held = T.alloc_local((8,), "bfloat16")
    for i in T.unroll(0, HEAD_BLOCK * (LATENT_DIM // 8) // 128, 1, unroll_factor=8):
        item = i * 128 + thread
        head = T.truncdiv(item, LATENT_DIM // 8)
        piece = T.truncmod(item, LATENT_DIM // 8)
        for v in T.unroll(8):
            held[v] = 0.0
        if head < HEAD_BLOCK:
            for part in T.vectorized(8):
                held[part] = q[row, head0 + head, (piece) * 8 + part]
        for part in T.vectorized(8):
            target[target_slot, head, piece * 8 + part] = held[part]


@T.macro
def load_block_2(target, target_slot, q, row, head0, thread):
    """A block of heads of one query; the rows behind them, up to `padded`, become zero."""
    held = T.alloc_local((8,), "bfloat16")
    for i in T.unroll(0, HEAD_BLOCK * (ROPE_DIM // 8) // 128, 1, unroll_factor=8):
        item = i * 128 + thread
        head = T.truncdiv(item, ROPE_DIM // 8)
        piece = T.truncmod(item, ROPE_DIM // 8)
        for v in T.unroll(8):
            held[v] = 0.0
        if head < HEAD_BLOCK:
            for part in T.vectorized(8):
                held[part] = q[row, head0 + head, (piece) * 8 + part]
        for part in T.vectorized(8):
            target[target_slot, head, piece * 8 + part] = held[part]


@T.macro
def vote(in_low: T.Ref, in_high: T.Ref, live: T.Ref, low, high, n):
    """The valid ids of a tile as two words of bits, and whether there is one; the same in every warp of
    every role.
    """
    in_low = warps.ballot((low >= 0) & (low < n))
    in_high = warps.ballot((high >= 0) & (high < n))
    live = in_low | in_high != 0


@T.macro
def read_ids_2(low: T.Ref, high: T.Ref, indices, topk, row, turn, turns, split, splits, lane):
    """Ids `lane` and `lane` + 32 of the tile at `turn`; none past the last turn."""
    low = -1
    high = -1
    if turn < turns:
        first = (split + turn * splits) * 64 + lane
        low = indices[row, first]
        high = indices[row, first + 32]


@T.macro
def mask_scores(scores, low, high, sm_scale, thread):
    """Scale the logits to base 2 and put -inf where the token, of the first 32 or of the next, has no
    valid id.
    """
    own = T.if_then_else(thread < 64, low, high) >> (
        T.truncmod(T.truncdiv(thread, 32), 2) * 16 + T.truncdiv(T.truncmod(thread, 32), 4)
    )
    scale = sm_scale * 1.4426950408889634
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
def take_maxima(grown: T.Ref, top, peak, red, red_slot, thread):
    """The maxima of the heads over the four warps.

    `grown` tells whether one rose more than `rise` powers of two above its reference; alike in every
    warp.
    """
    above = T.alloc_var("bool", init=False)
    four = T.alloc_local((4,), "float32")
    for column in T.unroll(HEAD_BLOCK // 4):
        for part in T.vectorized(4):
            four[part] = red[
                red_slot, T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2),
                0 + part
            ]
        top[column] = T.max(T.max(four[0], four[1]), T.max(four[2], four[3]))
        above = above | (top[column] > peak[column] + 8.0)
    grown = warps.any_lane(above)


@T.macro
def raise_reference(peak, top, sums, stat_s, thread):
    """Move the reference up to the maximum: rescale the running sums, and leave each head's factor for O."""
    for column in T.unroll(HEAD_BLOCK // 4):
        highest = T.max(top[column], peak[column])
        factor = warps.exp2(peak[column] - highest)
        sums[column] = sums[column] * factor
        peak[column] = highest
        if thread < 4:
            stat_s[T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)] = factor


@T.macro
def rescale_output(acc, acc_slot, held, stat_s, thread):
    """O^T times each head's factor, some columns of the four accumulators at a time."""
    for step in T.unroll(0, 4 * (HEAD_BLOCK // 16), 1, unroll_factor=1):
        factors = T.alloc_local((16,), "float32")
        for quad in T.unroll(4):
            for part in T.vectorized(4):
                factors[quad * 4 + part] = stat_s[
                    (T.truncdiv(T.truncmod(step, HEAD_BLOCK // 16) * 16, 4) + quad) * 4 + part
                ]
        # This thread's lane of columns `column` on of tensor memory, once they are here.
        leaf_sm100.load_columns(held, acc, acc_slot, step * 16, thread)
        for i in T.unroll(16):
            held[i] = held[i] * factors[i]
        # The reverse of `load_columns`; not waited for.
        leaf_sm100.store_columns(held, acc, acc_slot, step * 16, thread)


@T.macro
def weigh_tokens(scores, sums, peak):
    """P = exp2(S - reference) in place of S, and the running sums of this thread's own weights."""
    for i in T.unroll(HEAD_BLOCK // 2):
        scores[i] = warps.exp2(scores[i] - peak[T.truncdiv(i, 4) * 2 + T.truncmod(i, 2)])
        sums[
            T.truncdiv(i, 4) * 2 + T.truncmod(i, 2)
        ] = sums[T.truncdiv(i, 4) * 2 + T.truncmod(i, 2)] + scores[i]


@T.macro
def store_tokens(target, target_slot, scores, thread):
    """Write P as bf16, tokens by heads."""
    two = T.alloc_local((2,), "bfloat16")
    for pair in T.unroll(HEAD_BLOCK // 2 // 2):
        two[0] = T.cast(scores[2 * pair], "bfloat16")
        two[1] = T.cast(scores[2 * pair + 1], "bfloat16")
        for part in T.vectorized(2):
            target[
                target_slot,
                T.truncdiv(thread, 32) * 16 + T.truncdiv(T.truncmod(thread, 32), 4) + T.truncmod(pair, 2) * 8,
                T.truncdiv(pair, 2) * 8 + T.truncmod(thread, 4) * 2 + part
            ] = two[part]


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
def finish_columns(
    red, red_slot, peak, stat_s, attn_sink, lse, lse_partial, row, head0, splits, split, alone, lse_scale,
    thread
):
    """From sums and reference: the factor that normalises O^T, and the lse of a lone split or of a
    partial.
    """
    four = T.alloc_local((4,), "float32")
    if thread < 4:
        for column in T.unroll(HEAD_BLOCK // 4):
            head = T.truncdiv(column, 2) * 8 + T.truncmod(thread, 4) * 2 + T.truncmod(column, 2)
            for part in T.vectorized(4):
                four[part] = red[red_slot, head, 0 + part]
            total = four[0] + four[1] + (four[2] + four[3])
            lse2 = T.if_then_else(total > 0.0, warps.log2(total) + peak[column], -T.infinity("float32"))
            inverse = T.if_then_else(total > 0.0, warps.rcp_approx(total), 0.0)
            if head < HEAD_BLOCK:
                if alone:
                    stat_s[head] = inverse * T.if_then_else(
                        lse2 > -T.infinity("float32"),
                        warps.rcp_approx(
                            warps.exp2(attn_sink[head0 + head] * 1.4426950408889634 - lse2) + 1.0
                        ),
                        0.0
                    )
                    lse[row, head0 + head] = lse2 * lse_scale
                else:
                    stat_s[head] = inverse
                    lse_partial[row, split, head0 + head] = lse2


@T.macro
def write_output(acc, acc_slot, held, stat_s, out, o_partial, row, head0, splits, split, alone, some, thread):
    """O^T times each head's factor to the output (a lone split) or to this split's partial.

    Without `some` live tile there is no O: a lone split writes zeros, and a partial of one is never
    read.
    """
    for step in T.unroll(0, 16, 1, unroll_factor=1):
        first = T.truncmod(step, 4) * 16
        factors = T.alloc_local((16,), "float32")
        for quad in T.unroll(4):
            for part in T.vectorized(4):
                factors[quad * 4 + part] = stat_s[(T.truncdiv(first, 4) + quad) * 4 + part]
        if some:
            # This thread's lane of columns `column` on of tensor memory, once they are here.
            leaf_sm100.load_columns(held, acc, acc_slot, step * 16, thread)
        else:
            for i in T.unroll(16):
                held[i] = 0.0
        d = T.truncdiv(step, 4) * 128 + thread
        if alone:
            for i in T.unroll(16):
                out[row, head0 + first + i, d] = T.cast((held[i] * factors[i]), "bfloat16")
        else:
            if some:
                for i in T.unroll(16):
                    o_partial[row, split, head0 + first + i, d] = held[i] * factors[i]


@T.macro
def merge_columns(o_partial, lse_partial, attn_sink, out, lse, row, head0, splits, lse_scale, thread):
    """The weighted sum of the splits for `columns` latent dims from `first` on, four dims of one head a
    thread and turn.

    Eight splits at a time are in flight, joined by an online softmax over their lse. A split of weight
    0 is not looked at; a row without ids gives 0 and -inf.
    """
    parts = T.alloc_local((32,), "float32")
    weights = T.alloc_local((8,), "float32")
    merged = T.alloc_local((4,), "float32")
    rounded = T.alloc_local((4,), "bfloat16")
    for item in T.unroll(thread, HEAD_BLOCK * (LATENT_DIM // 4), SOFTMAX_THREADS, unroll_factor=1):
        head = head0 + T.truncdiv(item, LATENT_DIM // 4)
        quad = T.truncmod(item, LATENT_DIM // 4)
        peak = T.alloc_var("float32", init=-T.infinity("float32"))
        total = T.alloc_var("float32", init=0.0)
        for v in T.unroll(4):
            merged[v] = 0.0
        for batch in T.unroll(0, T.truncdiv(splits + 8 - 1, 8), 1, unroll_factor=1):
            for i in T.unroll(8):
                split = batch * 8 + i
                weights[i] = -T.infinity("float32")
                if split < splits:
                    weights[i] = lse_partial[row, split, head]
                    for part in T.vectorized(4):
                        parts[4 * i + part] = o_partial[row, split, head, (quad) * 4 + part]
            risen = T.alloc_var("float32", init=peak)
            for i in T.unroll(8):
                risen = T.max(risen, weights[i])
            if risen > -T.infinity("float32"):
                factor = warps.exp2(peak - risen)
                total = total * factor
                for v in T.unroll(4):
                    merged[v] = merged[v] * factor
                for i in T.unroll(8):
                    if weights[i] > -T.infinity("float32"):
                        share = warps.exp2(weights[i] - risen)
                        total = total + share
                        for v in T.unroll(4):
                            merged[v] = merged[v] + share * parts[4 * i + v]
                peak = risen
        lse2 = T.if_then_else(total > 0.0, warps.log2(total) + peak, -T.infinity("float32"))
        scale = T.if_then_else(
            total > 0.0,
            T.if_then_else(
                lse2 > -T.infinity("float32"),
                warps.rcp_approx(warps.exp2(attn_sink[head] * 1.4426950408889634 - lse2) + 1.0), 0.0
            ) * warps.rcp_approx(total),
            0.0
        )
        for v in T.unroll(4):
            rounded[v] = T.cast((merged[v] * scale), "bfloat16")
        for part in T.vectorized(4):
            out[row, head, (quad) * 4 + part] = rounded[part]
        if quad == 0:
            lse[row, head] = lse2 * lse_scale


@T.macro
def spread_ids(rows, low, high, in_low, in_high, thread):
    """The rows that a thread copies pieces of: every `64 / count`-th token's from its own on; -1 where an
    id names none.
    """
    place = T.truncdiv(thread, 16)
    found = warps.shuffle(low, place)
    rows[0] = T.if_then_else(in_low >> place & 1 != 0, found, -1)
    place = T.truncdiv(thread, 16) + 8
    found = warps.shuffle(low, place)
    rows[1] = T.if_then_else(in_low >> place & 1 != 0, found, -1)
    place = T.truncdiv(thread, 16) + 16
    found = warps.shuffle(low, place)
    rows[2] = T.if_then_else(in_low >> place & 1 != 0, found, -1)
    place = T.truncdiv(thread, 16) + 24
    found = warps.shuffle(low, place)
    rows[3] = T.if_then_else(in_low >> place & 1 != 0, found, -1)
    place = T.truncdiv(thread, 16)
    found = warps.shuffle(high, place)
    rows[4] = T.if_then_else(in_high >> place & 1 != 0, found, -1)
    place = T.truncdiv(thread, 16) + 8
    found = warps.shuffle(high, place)
    rows[5] = T.if_then_else(in_high >> place & 1 != 0, found, -1)
    place = T.truncdiv(thread, 16) + 16
    found = warps.shuffle(high, place)
    rows[6] = T.if_then_else(in_high >> place & 1 != 0, found, -1)
    place = T.truncdiv(thread, 16) + 24
    found = warps.shuffle(high, place)
    rows[7] = T.if_then_else(in_high >> place & 1 != 0, found, -1)


@T.macro
def gather_columns(target, target_slot, cache, first, rows, thread):
    """Start the copies of columns `first` on of a tile's rows, 16 lanes a row; a row of -1 is not read and
    becomes zero.
    """
    piece = T.truncmod(thread, 16)
    if piece < UNIT // 8:
        for r in T.unroll(8):
            warps.copy16(
                target[target_slot, T.truncdiv(thread, 16) + r * 8, piece * 8],
                cache[T.max(rows[r], 0), first + piece * 8 + 0], rows[r] >= 0
            )


@T.macro
def gather_columns_2(target, target_slot, cache, rows, thread):
    """Start the copies of columns `first` on of a tile's rows, 16 lanes a row; a row of -1 is not read and
    becomes zero.
    """
    piece = T.truncmod(thread, 16)
    if piece < ROPE_DIM // 8:
        for r in T.unroll(8):
            warps.copy16(
                target[target_slot, T.truncdiv(thread, 16) + r * 8, piece * 8],
                cache[T.max(rows[r], 0), piece * 8 + 0], rows[r] >= 0
            )


@T.macro
def softmax(
    q_nope, q_pe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale, n,
    topk, splits, q_s, qpe_s, p_s, red_s, stat_s, last_s, o_t, s_t, q_full, s_full, s_empty, p_full, p_empty,
    o_full, bx, split, row, head0, turns, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref,
    live: T.Ref, thread, lane
):
    """Queries, online softmax, lazy rescale, epilogue, merge."""
    scores = T.alloc_local((HEAD_BLOCK // 2,), "float32")
    sums = T.alloc_local((HEAD_BLOCK // 4,), "float32")
    top = T.alloc_local((HEAD_BLOCK // 4,), "float32")
    peak = T.alloc_local((HEAD_BLOCK // 4,), "float32")
    held = T.alloc_local((16,), "float32")
    worker = thread
    # q: filled once, so its slot is free
    load_block(q_s, 0, q_nope, row, head0, worker)
    load_block_2(qpe_s, 0, q_pe, row, head0, worker)
    T.fence_proxy_async()
    T.mbarrier_arrive(q_full[0])
    T.fill(sums, 0.0)
    T.fill(peak, -T.infinity("float32"))
    grown = T.alloc_var("bool", init=False)
    for turn in T.serial(turns):
        vote(in_low, in_high, live, low, high, n)
        read_ids_2(low, high, indices, topk, row, turn + 1, turns, split, splits, lane)
        if live:
            T.mbarrier_wait_parity(s_full[it % 2], (it // 2) & 1)
            T.tcgen05_after_thread_sync()
            # A tile's scores from tensor memory. Not yet waited for.
            leaf_sm100.read_scores(scores, s_t, it % 2, worker)
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
                if it > 0:
                    T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                    T.tcgen05_after_thread_sync()
                    rescale_output(o_t, 0, held, stat_s, worker)
                    # o: p also gives its slot back
            T.mbarrier_wait_parity(p_empty[0], (it & 1) ^ 1)
            weigh_tokens(scores, sums, peak)
            store_tokens(p_s, 0, scores, worker)
            # Where O was not rescaled it is waited for here: a parity can only tell one phase from the next.
            if (it > 0) & (grown == False):
                T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                T.tcgen05_after_thread_sync()
                # o: p also gives its slot back
            T.fence_proxy_async()
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.call_extern("handle", "tl::fence_view_async_tmem_store")
            T.tcgen05_before_thread_sync()
            T.mbarrier_arrive(p_full[0])
            it = it + 1
    leave_sums(red_s, it % 2, sums, worker)
    T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
    alone = splits == 1
    finish_columns(
        red_s, it % 2, peak, stat_s, attn_sink, lse, lse_partial, row, head0, splits, split, alone, lse_scale,
        worker
    )
    T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
    if it > 0:
        T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
        T.tcgen05_after_thread_sync()
    write_output(o_t, 0, held, stat_s, out, o_partial, row, head0, splits, split, alone, it > 0, worker)
    last = T.alloc_var("bool", init=False)
    if splits > CLUSTER:
        T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
        grid.take_ticket(last_s, arrivals, bx, splits, worker)
        T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
        last = last_s[0] == splits - 1
    if last:
        merge_columns(o_partial, lse_partial, attn_sink, out, lse, row, head0, splits, lse_scale, worker)


@T.macro
def producer(
    ckv, kpe, indices, n, topk, splits, kv_s, pe_s, kv_full, kv_empty, pe_full, pe_empty, split, row, turns,
    it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref, live: T.Ref, thread, lane
):
    """Selected rows into the rings."""
    rows = T.alloc_local((8,), "int32")
    worker = thread - 128
    for turn in T.serial(turns):
        vote(in_low, in_high, live, low, high, n)
        now_low = low
        now_high = high
        read_ids_2(low, high, indices, topk, row, turn + 1, turns, split, splits, lane)
        if live:
            spread_ids(rows, now_low, now_high, in_low, in_high, worker)
            for c in T.serial(UNITS):
                T.mbarrier_wait_parity(
                    kv_empty[(it * UNITS + c) % UNIT_STAGES], (((it * UNITS + c) // UNIT_STAGES) & 1) ^ 1
                )
                gather_columns(kv_s, (it * UNITS + c) % UNIT_STAGES, ckv, c * UNIT, rows, worker)
                T.cp_async_barrier_noinc(kv_full[(it * UNITS + c) % UNIT_STAGES])
            T.mbarrier_wait_parity(pe_empty[0], (it & 1) ^ 1)
            gather_columns_2(pe_s, 0, kpe, rows, worker)
            T.cp_async_barrier_noinc(pe_full[0])
            it = it + 1


@T.macro
def mma(
    indices, n, topk, splits, q_s, qpe_s, kv_s, pe_s, p_s, o_t, s_t, q_full, kv_full, kv_empty, pe_full,
    pe_empty, s_full, s_empty, p_full, p_empty, o_full, split, row, turns, it: T.Ref, low: T.Ref, high: T.Ref,
    in_low: T.Ref, in_high: T.Ref, live: T.Ref, lane
):
    """Issues every tcgen05.mma and commit."""
    T.mbarrier_wait_parity(q_full[0], 0)
    T.tcgen05_after_thread_sync()
    for turn in T.serial(turns + 1):
        vote(in_low, in_high, live, low, high, n)
        read_ids_2(low, high, indices, topk, row, turn + 1, turns, split, splits, lane)
        late = it > 0
        done = it - 1
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
                    kv_s, (it * UNITS + c) % UNIT_STAGES, 0, q_s, 0, c * UNIT, s_t, it % 2, HEAD_BLOCK, UNIT,
                    (c > 0) == False
                )
            T.mbarrier_wait_parity(pe_full[0], it & 1)
            T.fence_proxy_async()
            T.tcgen05_after_thread_sync()
            # the rope dims
            tcgen05.multiply_m64(pe_s, 0, 0, qpe_s, 0, 0, s_t, it % 2, HEAD_BLOCK, ROPE_DIM, False)
            T.tcgen05_mma_arrive(pe_empty[0])
            T.tcgen05_mma_arrive(s_full[it % 2])
            it = it + 1
        # The values of a tile follow the scores of the next one, so that softmax never idles.
        if late & (live | (turn == turns)):
            T.mbarrier_wait_parity(p_full[0], done & 1)
            T.tcgen05_after_thread_sync()
            # o: p also gives its slot back
            for c in T.serial(UNITS):
                # O^T += K^T P^T, a unit of the dims
                T.tcgen05_gemm(
                    kv_s[(done * UNITS + c) % UNIT_STAGES, :, :], p_s[0, :, :],
                    o_t[0, :, c * HEAD_BLOCK : c * HEAD_BLOCK + HEAD_BLOCK], transpose_A=True,
                    clear_accum=(done > 0) == False, mbar=None
                )
                T.tcgen05_mma_arrive(kv_empty[(done * UNITS + c) % UNIT_STAGES])
            T.tcgen05_mma_arrive(p_empty[0])
            T.tcgen05_mma_arrive(o_full[0])


def program():
    t = T.dynamic("t")
    n = T.dynamic("n")
    ckv_stride = T.dynamic("ckv_stride")
    kpe_stride = T.dynamic("kpe_stride")
    topk = T.dynamic("topk")
    splits = T.dynamic("splits")
    arrival_slots = T.dynamic("arrival_slots")

    @T.prim_func
    def sparse_mla__tilelang_sm100a__h128_bf16_bt64_cl1_cp_async(
        q_nope: T.Tensor((t, 128, 512), "bfloat16"),
        q_pe: T.Tensor((t, 128, 64), "bfloat16"),
        ckv: T.StridedTensor((n, 512), (ckv_stride, 1), "bfloat16"),
        kpe: T.StridedTensor((n, 64), (kpe_stride, 1), "bfloat16"),
        indices: T.Tensor((t, topk), "int32"),
        attn_sink: T.Tensor((128,), "float32"),
        out: T.Tensor((t, 128, 512), "bfloat16"),
        lse: T.Tensor((t, 128), "float32"),
        o_partial: T.Tensor((t, splits, 128, 512), "float32"),
        lse_partial: T.Tensor((t, splits, 128), "float32"),
        arrivals: T.Tensor((arrival_slots,), "int32"),
        sm_scale: T.float32,
        lse_scale: T.float32,
    ):
        with T.Kernel(t * 2, splits, threads=288) as (bx, split):
            T.import_source(leaf_sm100.SOURCE + warps.SOURCE)
            q_s = T.alloc_shared((1, HEAD_BLOCK, LATENT_DIM), "bfloat16")
            qpe_s = T.alloc_shared((1, HEAD_BLOCK, ROPE_DIM), "bfloat16")
            kv_s = T.alloc_shared((UNIT_STAGES, TILE, UNIT), "bfloat16")
            pe_s = T.alloc_shared((TILE_STAGES, TILE, ROPE_DIM), "bfloat16")
            p_s = T.alloc_shared((TILE_STAGES, TILE, HEAD_BLOCK), "bfloat16")
            red_s = T.alloc_shared((2, HEAD_BLOCK, 4), "float32")
            stat_s = T.alloc_shared((HEAD_BLOCK,), "float32")
            last_s = T.alloc_shared((1,), "int32")
            o_t = T.alloc_tmem((1, UNIT, UNITS * HEAD_BLOCK), "float32")
            s_t = T.alloc_tmem((128, 4 * HEAD_BLOCK), "float32")
            T.annotate_layout({b: make_full_bank_swizzled_layout(b) for b in (kv_s, pe_s, q_s, qpe_s)})
            q_full = T.alloc_barrier([128] * 1)
            kv_full = T.alloc_barrier([128] * UNIT_STAGES)
            kv_empty = T.alloc_barrier([1] * UNIT_STAGES)
            pe_full = T.alloc_barrier([128] * TILE_STAGES)
            pe_empty = T.alloc_barrier([1] * TILE_STAGES)
            s_full = T.alloc_barrier([1] * 2)
            s_empty = T.alloc_barrier([128] * 2)
            p_full = T.alloc_barrier([128] * TILE_STAGES)
            p_empty = T.alloc_barrier([1] * TILE_STAGES)
            o_full = T.alloc_barrier([1] * 1)

            thread = T.get_thread_binding()
            lane = thread % 32
            row = bx // (HEADS // HEAD_BLOCK)
            head0 = bx % (HEADS // HEAD_BLOCK) * HEAD_BLOCK
            turns = T.truncdiv(T.truncdiv(topk, TILE) - split + splits - 1, splits)
            it = T.alloc_var("int32", init=0)
            low = T.alloc_var("int32", init=0)
            high = T.alloc_var("int32", init=0)
            in_low = T.alloc_var("int32", init=0)
            in_high = T.alloc_var("int32", init=0)
            live = T.alloc_var("bool", init=False)
            read_ids(low, high, indices, topk, row, turns, split, splits, lane)
            if thread < 128:
                softmax(
                    q_nope, q_pe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale,
                    lse_scale, n, topk, splits, q_s, qpe_s, p_s, red_s, stat_s, last_s, o_t, s_t, q_full,
                    s_full, s_empty, p_full, p_empty, o_full, bx, split, row, head0, turns, it, low, high,
                    in_low, in_high, live, thread, lane
                )
            elif thread < 256:
                producer(
                    ckv, kpe, indices, n, topk, splits, kv_s, pe_s, kv_full, kv_empty, pe_full, pe_empty,
                    split, row, turns, it, low, high, in_low, in_high, live, thread, lane
                )
            else:
                mma(
                    indices, n, topk, splits, q_s, qpe_s, kv_s, pe_s, p_s, o_t, s_t, q_full, kv_full,
                    kv_empty, pe_full, pe_empty, s_full, s_empty, p_full, p_empty, o_full, split, row, turns,
                    it, low, high, in_low, in_high, live, lane
                )
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return sparse_mla__tilelang_sm100a__h128_bf16_bt64_cl1_cp_async
