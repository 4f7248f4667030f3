"""sparse_mla__tilelang_sm100a__h16_fp8_bt64_cl8_cp_async

Generated from dsl_kernels/programs/sparse_mla.py and the leaves in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: heads=16, kv=fp8, tile=64, cluster=8, gather=cp_async.

  producer     mma          softmax
  warps 4..7   warp 8       warps 0..3
  |            |<=== q =====|   q_s qpe_s, once; threads -> tcgen05
  |==== kv ===>|            |   kv_s, ring of 11; threads -> tcgen05
  |==== pe ===>|            |   pe_s, ring of 2; threads -> tcgen05
  |            |==== s ====>|   s_t, ring of 2; tcgen05 -> tmem
  |            |<=== p =====|   p_s, ring of 2; threads -> tcgen05
  |            |==== o ====>|   o_t; tcgen05 -> tmem

roles
  softmax    threads 0..127  queries, online softmax, lazy rescale, epilogue, merge
  producer   threads 128..255  selected rows into the rings
  mma        threads 256..287  issues every tcgen05.mma and commit
buffers
  q_s        16x512 bfloat16, shared, 128-byte swizzle
  qpe_s      16x64 bfloat16, shared, 128-byte swizzle
  kv_s       11 stages of 64x128 bfloat16, shared, 128-byte swizzle
  pe_s       2 stages of 64x64 bfloat16, shared, 128-byte swizzle
  p_s        2 stages of 64x16 bfloat16, shared, 32-byte swizzle
  red_s      2 stages of 4x16 float32, shared
  stat_s     16 float32, shared
  last_s     1 int32, shared
  o_t        128x64 float32, tensor memory
  s_t        2 stages of 64x16 float32, tensor memory
  scores     64x16 float32, registers of softmax
  sums       4x16 float32, registers of softmax
  risen      4x16 float32, registers of softmax
  top        16 float32, registers of softmax
  peak       16 float32, registers of softmax
  held       128x16 float32, registers of softmax
  rows       64 int32, registers of producer
  words      64x164 uint32, registers of producer
pipelines
  q: softmax (threads) ==[q_s qpe_s: once]==> mma (tcgen05)
    full  x128: softmax fence.proxy.async, arrive full
      mma: wait full, fence after
  kv: producer (threads) ==[kv_s: 11-slot ring]==> mma (tcgen05)
    full  x128: producer fence.proxy.async, arrive full
      mma: wait full, fence after
    empty x1: producer wait empty
      mma: commit -> empty
  pe: producer (threads) ==[pe_s: 2-slot ring]==> mma (tcgen05)
    full  x128: producer fence.proxy.async, arrive full
      mma: wait full, fence after
    empty x1: producer wait empty
      mma: commit -> empty
  s: mma (tcgen05) ==[s_t: 2-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
    empty x128: mma wait empty, fence after
      softmax: wait::ld, fence before, arrive empty
  p: softmax (threads) ==[p_s: 2-slot ring]==> mma (tcgen05)
    full  x128: softmax fence.proxy.async, wait::ld, wait::st, fence before, arrive full
      mma: wait full, fence after
    empty x1: softmax wait empty
      mma: commit -> empty
  o: mma (tcgen05) ==[o_t: 1-slot ring]==> softmax (tmem)
    full  x1: mma commit -> full
      softmax: wait full, fence after
  named barrier softmax: softmax
totals: 288 threads, 220004 of 232448 bytes of shared memory, 96 of 512 tensor-memory columns, grid (t * 1, 8, splits // 8)
"""
import tilelang.language as T
from tilelang.layout import make_full_bank_swizzled_layout

from dsl_kernels.device.tilelang import grid, tcgen05, warps
from dsl_kernels.device.tilelang import sparse_mla as leaf
from dsl_kernels.device.tilelang import sparse_mla_sm100 as leaf_sm100

PASS_CONFIGS = leaf_sm100.PASS_CONFIGS

HEADS = 16  # query heads
TILE = 64  # tokens a tile
CLUSTER = 8  # splits of a row that meet as a cluster and share out the merge
UNIT_STAGES = 11
TILE_STAGES = 2
LATENT_DIM = 512
ROPE_DIM = 64
UNITS = 4
SOFTMAX_BARRIER = 1
SOFTMAX_THREADS = 128
RESCALE_LOG2 = 8
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
def read_ids_2(low: T.Ref, high: T.Ref, indices, topk, row, turn, turns, split, splits, lane):
    """Ids `lane` and `lane` + 32 of the tile at `turn`; none past the last turn."""
    low = -1
    high = -1
    if turn < turns:
        first = (split + turn * splits) * 64 + lane
        low = indices[row, first]
        high = indices[row, first + 32]


@T.macro
def softmax(
    q_nope, q_pe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale, n,
    topk, splits, q_s, qpe_s, p_s, red_s, stat_s, last_s, o_t, s_t, q_full, s_full, s_empty, p_full, p_empty,
    o_full, bx, rank, split, splits_of_row, turns, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref,
    in_high: T.Ref, live: T.Ref, thread, lane
):
    """Queries, online softmax, lazy rescale, epilogue, merge."""
    scores = T.alloc_local((HEADS // 2,), "float32")
    sums = T.alloc_local((HEADS // 4,), "float32")
    risen = T.alloc_local((HEADS // 4,), "float32")
    top = T.alloc_local((HEADS // 4,), "float32")
    peak = T.alloc_local((HEADS // 4,), "float32")
    held = T.alloc_fragment((UNIT, 16), "float32")
    worker = thread
    # q: filled once, so its slot is free
    # A block of heads of one query; the rows behind them, up to `rows`, become zero.
    leaf_sm100.load_block(q_s, 0, q_nope, bx, 0, HEADS, HEADS, HEADS, LATENT_DIM, worker)
    leaf_sm100.load_block(qpe_s, 0, q_pe, bx, 0, HEADS, HEADS, HEADS, ROPE_DIM, worker)
    T.fence_proxy_async()
    T.mbarrier_arrive(q_full[0])
    T.fill(sums, 0.0)
    T.fill(peak, -T.infinity("float32"))
    grown = T.alloc_var("bool", init=False)
    for turn in T.serial(turns):
        # The valid ids of a tile as two words of bits, and whether there is one; the same in every warp of
        # every role.
        leaf.vote(in_low, in_high, live, low, high, n)
        read_ids_2(low, high, indices, topk, bx, turn + 1, turns, split, splits_of_row, lane)
        if live:
            T.mbarrier_wait_parity(s_full[it % 2], (it // 2) & 1)
            T.tcgen05_after_thread_sync()
            # A tile's scores from tensor memory. Not yet waited for.
            leaf_sm100.read_scores(scores, s_t, it % 2, worker)
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.tcgen05_before_thread_sync()
            T.mbarrier_arrive(s_empty[it % 2])
            # Scale the logits to base 2 and put -inf where the token has no valid id.
            leaf_sm100.mask_scores(scores, in_low, in_high, sm_scale, worker)
            # Maxima over the 16 tokens of each warp.
            leaf_sm100.column_maxima(risen, scores, worker)
            # Leave one value a column and warp for the other warps.
            leaf_sm100.share_columns(red_s, it % 2, risen, worker)
            T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
            # The maxima of the columns over the four warps.
            leaf_sm100.join_maxima(top, red_s, it % 2, worker)
            # Whether the maximum of some head rose more than `limit` powers of two above its reference; alike
            # in every warp.
            leaf_sm100.outgrown(grown, top, peak, RESCALE_LOG2)
            if grown:
                # Move the reference up to the maximum: rescale the running sums, and leave each head's factor
                # for O.
                leaf_sm100.raise_reference(peak, top, sums, stat_s, worker)
                T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
                if it > 0:
                    T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                    T.tcgen05_after_thread_sync()
                    # O^T times each head's factor, in tensor memory, some columns at a time.
                    leaf_sm100.rescale_output(o_t, 0, held, stat_s, HEADS, worker)
                    # o: p also gives its slot back
            T.mbarrier_wait_parity(p_empty[it % TILE_STAGES], ((it // TILE_STAGES) & 1) ^ 1)
            # P = exp2(S - reference) in place of S, and the running sums of this thread's own weights.
            leaf_sm100.weigh_tokens(scores, sums, peak)
            # Write P as bf16; eight heads lie along the rows.
            leaf_sm100.store_weights(p_s, it % TILE_STAGES, scores, HEADS, worker)
            # Where O was not rescaled it is waited for here: a parity can only tell one phase from the next.
            if (it > 0) & (grown == False):
                T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
                T.tcgen05_after_thread_sync()
                # o: p also gives its slot back
            T.fence_proxy_async()
            T.call_extern("handle", "tl::fence_view_async_tmem_load")
            T.call_extern("handle", "tl::fence_view_async_tmem_store")
            T.tcgen05_before_thread_sync()
            T.mbarrier_arrive(p_full[it % TILE_STAGES])
            it = it + 1
    # Sums over the tokens of each warp.
    leaf_sm100.column_sums(risen, sums, worker)
    leaf_sm100.share_columns(red_s, it % 2, risen, worker)
    T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
    # The sums of the columns over the four warps.
    leaf_sm100.join_sums(top, red_s, it % 2, worker)
    alone = T.alloc_var("bool", init=False)
    # From sums and reference: the factor that normalises O^T, and the lse of a lone split or of a partial.
    leaf_sm100.finish_columns(
        top, peak, stat_s, attn_sink, lse, lse_partial, bx, 0, HEADS, HEADS, splits, split, alone, lse_scale,
        worker
    )
    T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
    if it > 0:
        T.mbarrier_wait_parity(o_full[0], (it - 1) & 1)
        T.tcgen05_after_thread_sync()
    # O^T times each head's factor to the output (a lone split) or to this split's partial.
    leaf_sm100.write_output(
        o_t, 0, held, stat_s, out, o_partial, bx, 0, HEADS, HEADS, splits, split, alone, it > 0, worker
    )
    last = T.alloc_var("bool", init=True)
    # The cluster meets once its partials are written; each CTA then merges its share of the latent dims.
    T.call_extern("handle", "dk::cluster_arrive")
    T.call_extern("handle", "dk::cluster_wait")
    if splits > CLUSTER:
        T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
        grid.count_in(last_s, arrivals, bx * CLUSTER + rank, T.truncdiv(splits, CLUSTER), worker)
        T.sync_threads(SOFTMAX_BARRIER, SOFTMAX_THREADS)
        last = last_s[0] == T.truncdiv(splits, CLUSTER) - 1
    if last:
        # The weighted sum of the splits for `columns` latent dims from `first` on; the first dims bring the
        # lse.
        leaf_sm100.merge_columns(
            o_partial, lse_partial, attn_sink, out, lse, bx, 0, HEADS, HEADS, splits, lse_scale,
            rank * (LATENT_DIM // CLUSTER), LATENT_DIM // CLUSTER, worker, SOFTMAX_THREADS
        )


@T.macro
def producer(
    kv_cache, indices, n, topk, kv_s, pe_s, kv_full, kv_empty, pe_full, pe_empty, bx, split, splits_of_row,
    turns, it: T.Ref, low: T.Ref, high: T.Ref, in_low: T.Ref, in_high: T.Ref, live: T.Ref, thread, lane
):
    """Selected rows into the rings."""
    rows = T.alloc_local((2,), "int32")
    words = T.alloc_local((88,), "uint32")
    worker = thread - 128
    for turn in T.serial(turns + 1):
        # The valid ids of a tile as two words of bits, and whether there is one; the same in every warp of
        # every role.
        leaf.vote(in_low, in_high, live, low, high, n)
        now_low = low
        now_high = high
        read_ids_2(low, high, indices, topk, bx, turn + 1, turns, split, splits_of_row, lane)
        if live | (turn == turns):
            # As `spread_ids` where four threads share a token: two tokens a thread.
            leaf_sm100.spread_pairs(rows, now_low, now_high, in_low, in_high, worker)
            if it > 0:
                T.mbarrier_wait_parity(
                    kv_empty[(it - 1) * UNITS % UNIT_STAGES], (((it - 1) * UNITS // UNIT_STAGES) & 1) ^ 1
                )
                # Write a unit as bf16, rounded once from e4m3 times scale.
                leaf_sm100.dequantise_unit(kv_s, (it - 1) * UNITS % UNIT_STAGES, words, 0, worker)
                T.fence_proxy_async()
                T.mbarrier_arrive(kv_full[(it - 1) * UNITS % UNIT_STAGES])
            if it > 0:
                T.mbarrier_wait_parity(
                    kv_empty[((it - 1) * UNITS + 1) % UNIT_STAGES],
                    ((((it - 1) * UNITS + 1) // UNIT_STAGES) & 1) ^ 1
                )
                leaf_sm100.dequantise_unit(kv_s, ((it - 1) * UNITS + 1) % UNIT_STAGES, words, 1, worker)
                T.fence_proxy_async()
                T.mbarrier_arrive(kv_full[((it - 1) * UNITS + 1) % UNIT_STAGES])
            # Read the fp8 values of one unit of a tile's tokens into registers; zeros for a row of -1.
            leaf_sm100.load_unit(words, 0, kv_cache, rows, worker)
            if it > 0:
                T.mbarrier_wait_parity(
                    kv_empty[((it - 1) * UNITS + 2) % UNIT_STAGES],
                    ((((it - 1) * UNITS + 2) // UNIT_STAGES) & 1) ^ 1
                )
                leaf_sm100.dequantise_unit(kv_s, ((it - 1) * UNITS + 2) % UNIT_STAGES, words, 2, worker)
                T.fence_proxy_async()
                T.mbarrier_arrive(kv_full[((it - 1) * UNITS + 2) % UNIT_STAGES])
            leaf_sm100.load_unit(words, 1, kv_cache, rows, worker)
            if it > 0:
                T.mbarrier_wait_parity(
                    kv_empty[((it - 1) * UNITS + 3) % UNIT_STAGES],
                    ((((it - 1) * UNITS + 3) // UNIT_STAGES) & 1) ^ 1
                )
                leaf_sm100.dequantise_unit(kv_s, ((it - 1) * UNITS + 3) % UNIT_STAGES, words, 3, worker)
                T.fence_proxy_async()
                T.mbarrier_arrive(kv_full[((it - 1) * UNITS + 3) % UNIT_STAGES])
            leaf_sm100.load_unit(words, 2, kv_cache, rows, worker)
            leaf_sm100.load_unit(words, UNITS - 1, kv_cache, rows, worker)
            if it > 0:
                T.mbarrier_wait_parity(pe_empty[(it - 1) % TILE_STAGES], (((it - 1) // TILE_STAGES) & 1) ^ 1)
                # Write the rope columns.
                leaf_sm100.store_rope(pe_s, (it - 1) % TILE_STAGES, words, worker)
                T.fence_proxy_async()
                T.mbarrier_arrive(pe_full[(it - 1) % TILE_STAGES])
            # Read the scales and the rope columns of a tile's tokens into registers; zeros for a row of -1.
            leaf_sm100.load_rest(words, kv_cache, rows, worker)
            it = it + 1
    T.call_extern("handle", "dk::cluster_arrive")
    T.call_extern("handle", "dk::cluster_wait")


@T.macro
def mma(
    indices, n, topk, q_s, qpe_s, kv_s, pe_s, p_s, o_t, s_t, q_full, kv_full, kv_empty, pe_full, pe_empty,
    s_full, s_empty, p_full, p_empty, o_full, bx, split, splits_of_row, turns, it: T.Ref, low: T.Ref,
    high: T.Ref, in_low: T.Ref, in_high: T.Ref, live: T.Ref, lane
):
    """Issues every tcgen05.mma and commit."""
    T.mbarrier_wait_parity(q_full[0], 0)
    T.tcgen05_after_thread_sync()
    for turn in T.serial(turns + 1):
        # The valid ids of a tile as two words of bits, and whether there is one; the same in every warp of
        # every role.
        leaf.vote(in_low, in_high, live, low, high, n)
        read_ids_2(low, high, indices, topk, bx, turn + 1, turns, split, splits_of_row, lane)
        late = it > 0
        done = it - 1
        if live:
            T.mbarrier_wait_parity(s_empty[it % 2], ((it // 2) & 1) ^ 1)
            T.tcgen05_after_thread_sync()
            for c in T.serial(UNITS):
                T.mbarrier_wait_parity(
                    kv_full[(it * UNITS + c) % UNIT_STAGES], ((it * UNITS + c) // UNIT_STAGES) & 1
                )
                T.tcgen05_after_thread_sync()
                # S^T += K Q^T, a unit of the dims
                tcgen05.multiply_m64(
                    kv_s, (it * UNITS + c) % UNIT_STAGES, 0, q_s, 0, c * UNIT, s_t, it % 2, HEADS, UNIT,
                    (c > 0) == False
                )
            T.mbarrier_wait_parity(pe_full[it % TILE_STAGES], (it // TILE_STAGES) & 1)
            T.tcgen05_after_thread_sync()
            # the rope dims
            tcgen05.multiply_m64(pe_s, it % TILE_STAGES, 0, qpe_s, 0, 0, s_t, it % 2, HEADS, ROPE_DIM, False)
            T.tcgen05_mma_arrive(pe_empty[it % TILE_STAGES])
            T.tcgen05_mma_arrive(s_full[it % 2])
            it = it + 1
        # The values of a tile follow the scores of the next one, so that softmax never idles.
        if late & (live | (turn == turns)):
            T.mbarrier_wait_parity(p_full[done % TILE_STAGES], (done // TILE_STAGES) & 1)
            T.tcgen05_after_thread_sync()
            # o: p also gives its slot back
            for c in T.serial(UNITS):
                # O^T += K^T P^T, a unit of the dims
                T.tcgen05_gemm(
                    kv_s[(done * UNITS + c) % UNIT_STAGES, :, :], p_s[done % TILE_STAGES, :, :],
                    o_t[0, :, c * HEADS : c * HEADS + HEADS], transpose_A=True,
                    clear_accum=(done > 0) == False, mbar=None
                )
                T.tcgen05_mma_arrive(kv_empty[(done * UNITS + c) % UNIT_STAGES])
            T.tcgen05_mma_arrive(p_empty[done % TILE_STAGES])
            T.tcgen05_mma_arrive(o_full[0])
    T.call_extern("handle", "dk::cluster_arrive")
    T.call_extern("handle", "dk::cluster_wait")


def program():
    t = T.dynamic("t")
    n = T.dynamic("n")
    topk = T.dynamic("topk")
    splits = T.dynamic("splits")
    arrival_slots = T.dynamic("arrival_slots")

    @T.prim_func
    def sparse_mla__tilelang_sm100a__h16_fp8_bt64_cl8_cp_async(
        q_nope: T.Tensor((t, 16, 512), "bfloat16"),
        q_pe: T.Tensor((t, 16, 64), "bfloat16"),
        kv_cache: T.Tensor((n, 656), "uint8"),
        indices: T.Tensor((t, topk), "int32"),
        attn_sink: T.Tensor((16,), "float32"),
        out: T.Tensor((t, 16, 512), "bfloat16"),
        lse: T.Tensor((t, 16), "float32"),
        o_partial: T.Tensor((t, splits, 16, 512), "float32"),
        lse_partial: T.Tensor((t, splits, 16), "float32"),
        arrivals: T.Tensor((arrival_slots,), "int32"),
        sm_scale: T.float32,
        lse_scale: T.float32,
    ):
        with T.Kernel(t * 1, 8, splits // 8, threads=288, cluster_dims=(1, 8, 1)) as (bx, rank, part):
            T.import_source(grid.SOURCE + leaf_sm100.SOURCE + warps.SOURCE)
            q_s = T.alloc_shared((1, HEADS, LATENT_DIM), "bfloat16")
            qpe_s = T.alloc_shared((1, HEADS, ROPE_DIM), "bfloat16")
            kv_s = T.alloc_shared((UNIT_STAGES, TILE, UNIT), "bfloat16")
            pe_s = T.alloc_shared((TILE_STAGES, TILE, ROPE_DIM), "bfloat16")
            p_s = T.alloc_shared((TILE_STAGES, TILE, HEADS), "bfloat16")
            red_s = T.alloc_shared((2, 4, HEADS), "float32")
            stat_s = T.alloc_shared((HEADS,), "float32")
            last_s = T.alloc_shared((1,), "int32")
            o_t = T.alloc_tmem((1, UNIT, UNITS * HEADS), "float32")
            s_t = T.alloc_tmem((128, 4 * HEADS), "float32")
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
            split = part * CLUSTER + rank
            splits_of_row = splits
            turns = T.truncdiv(T.truncdiv(topk, TILE) - split + splits_of_row - 1, splits_of_row)
            it = T.alloc_var("int32", init=0)
            low = T.alloc_var("int32", init=0)
            high = T.alloc_var("int32", init=0)
            in_low = T.alloc_var("int32", init=0)
            in_high = T.alloc_var("int32", init=0)
            live = T.alloc_var("bool", init=False)
            read_ids(low, high, indices, topk, bx, turns, split, splits_of_row, lane)
            if thread < 128:
                softmax(
                    q_nope, q_pe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale,
                    lse_scale, n, topk, splits, q_s, qpe_s, p_s, red_s, stat_s, last_s, o_t, s_t, q_full,
                    s_full, s_empty, p_full, p_empty, o_full, bx, rank, split, splits_of_row, turns, it, low,
                    high, in_low, in_high, live, thread, lane
                )
            elif thread < 256:
                producer(
                    kv_cache, indices, n, topk, kv_s, pe_s, kv_full, kv_empty, pe_full, pe_empty, bx, split,
                    splits_of_row, turns, it, low, high, in_low, in_high, live, thread, lane
                )
            else:
                mma(
                    indices, n, topk, q_s, qpe_s, kv_s, pe_s, p_s, o_t, s_t, q_full, kv_full, kv_empty,
                    pe_full, pe_empty, s_full, s_empty, p_full, p_empty, o_full, bx, split, splits_of_row,
                    turns, it, low, high, in_low, in_high, live, lane
                )
            # Tensor memory goes back only when no role can touch it any more.
            T.sync_threads()

    return sparse_mla__tilelang_sm100a__h16_fp8_bt64_cl8_cp_async
