"""sparse_mla__cutedsl_sm90a__h128_fp8_bt64_st2_cl1_hb64

Generated from dsl_kernels/programs/sparse_mla.py and the leaves in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: heads=128, kv=fp8, tile=64, stages=2, cluster=1, block=64.

  gather        attend
  warps 8..11   warps 0..7
  |===== kv ===>|   ckv_s kpe_s, ring of 2; threads -> wgmma

roles
  attend     threads 0..255, 208 registers  queries, both products, softmax, merge, output
  gather     threads 256..383, 88 registers  selected rows into the ring
buffers
  q_s        64x512 bfloat16, shared, 128-byte swizzle
  qpe_s      64x64 bfloat16, shared, 128-byte swizzle
  ckv_s      2 stages of 64x512 bfloat16, shared, 128-byte swizzle
  kpe_s      2 stages of 64x64 bfloat16, shared, 128-byte swizzle
  p_s        64x64 bfloat16, shared, 128-byte swizzle
  red_s      2x64 float32, shared
  last_s     1 int32, shared
  scores     64x64 float32, registers of attend
  acc        64x512 float32, registers of attend
  sums       2x64 float32, registers of attend
  rows       2x64 float32, registers of attend
  peak       64 float32, registers of attend
  sinks      64 float32, registers of attend
  words      1x32x288 uint32, registers of gather
pipelines
  kv: gather (threads) ==[ckv_s kpe_s: 2-slot ring]==> attend (wgmma)
    full  x128: gather fence.proxy.async, arrive full
      attend: wait full
    empty x256: gather wait empty
      attend: wgmma wait, arrive empty
  named barrier attend: attend
  named barrier gather: gather
totals: 384 threads, 229924 of 232448 bytes of shared memory, grid (t * 2, splits)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import warpgroup

from dsl_kernels.device.cutedsl import grid, wgmma
from dsl_kernels.device.cutedsl import sparse_mla as leaf
from dsl_kernels.device.cutedsl import sparse_mla_wide as leaf_wide
from dsl_kernels.runtime.artifact import Launch, Operand

HEADS = 128  # query heads
TILE = 64  # tokens a tile
STAGES = 2  # gathered tiles in flight
BLOCK = 64  # heads of a CTA; 0: all, at most 64; 64: so many, on M instead of N
LATENT_DIM = 512
ROPE_DIM = 64
ATTEND_BARRIER = 1
ATTEND_THREADS = 256
GATHER_BARRIER = 2
GATHER_THREADS = 128

QK_NOPE = wgmma.Product("bfloat16", BLOCK, TILE // 2, LATENT_DIM, "k", "k")
QK_PE = wgmma.Product("bfloat16", BLOCK, TILE // 2, ROPE_DIM, "k", "k")
PV = wgmma.Product("bfloat16", BLOCK, LATENT_DIM // 2, TILE, "k", "mn")

LAUNCH = Launch(
    operands=(
        Operand("q_nope", "tensor", "bfloat16", ("t", "128", "512")),
        Operand("q_pe", "tensor", "bfloat16", ("t", "128", "64")),
        Operand("kv_cache", "tensor", "uint8", ("n", "656")),
        Operand("indices", "tensor", "int32", ("t", "topk")),
        Operand("attn_sink", "tensor", "float32", ("128",)),
        Operand("out", "tensor", "bfloat16", ("t", "128", "512"), written=True),
        Operand("lse", "tensor", "float32", ("t", "128"), written=True),
        Operand("o_partial", "tensor", "float32", ("t", "splits", "128", "512"), written=True),
        Operand("lse_partial", "tensor", "float32", ("t", "splits", "128"), written=True),
        Operand("arrivals", "tensor", "int32", ("arrival_slots",), written=True),
        Operand("sm_scale", "scalar", "float32"),
        Operand("lse_scale", "scalar", "float32"),
    ),
    grid=("t * 2", "splits", "1"),
    block=384,
    cluster=(1, 1, 1),
)


@cute.struct
class Shared:
    q_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, BLOCK * LATENT_DIM], 1024]
    qpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, BLOCK * ROPE_DIM], 1024]
    ckv_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, STAGES * TILE * LATENT_DIM], 1024]
    kpe_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, STAGES * TILE * ROPE_DIM], 1024]
    p_s: cute.struct.Align[cute.struct.MemRange[cutlass.BFloat16, BLOCK * TILE], 1024]
    red_s: cute.struct.Align[cute.struct.MemRange[Float32, 2 * BLOCK], 128]
    last_s: cute.struct.Align[cute.struct.MemRange[Int32, 1], 128]
    kv_full: cute.struct.MemRange[Int64, STAGES]
    kv_empty: cute.struct.MemRange[Int64, STAGES]


@cute.jit
def attend(
    q_nope: cute.Pointer, q_pe: cute.Pointer, indices: cute.Pointer, attn_sink: cute.Pointer,
    out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer, lse_partial: cute.Pointer,
    arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32, n: Int32, topk: Int32, splits: Int32,
    q_s: cute.Pointer, qpe_s: cute.Pointer, ckv_s: cute.Pointer, kpe_s: cute.Pointer, p_s: cute.Pointer,
    red_s: cute.Pointer, last_s: cute.Pointer, kv_full: cute.Pointer, kv_empty: cute.Pointer, bx: Int32,
    split: Int32, row: Int32, head0: Int32, turns: Int32, it: Int32, low: Int32, high: Int32, in_low: Int32,
    in_high: Int32, live: Boolean, thread: Int32, warp: Int32, lane: Int32
):
    """Queries, both products, softmax, merge, output."""
    qk_nope_a = QK_NOPE.operand_a(q_s, BLOCK, LATENT_DIM, 1, 128)
    qk_nope_b = QK_NOPE.operand_b(ckv_s, TILE, LATENT_DIM, STAGES, 128)
    qk_pe_a = QK_PE.operand_a(qpe_s, BLOCK, ROPE_DIM, 1, 128)
    qk_pe_b = QK_PE.operand_b(kpe_s, TILE, ROPE_DIM, STAGES, 128)
    pv_a = PV.operand_a(p_s, BLOCK, TILE, 1, 128)
    pv_b = PV.operand_b(ckv_s, TILE, LATENT_DIM, STAGES, 128)
    scores = QK_NOPE.accumulators()
    acc = PV.accumulators()
    sums = cute.make_rmem_tensor(2, Float32)
    rows = cute.make_rmem_tensor(2, Float32)
    peak = cute.make_rmem_tensor(2, Float32)
    sinks = cute.make_rmem_tensor(2, Float32)
    worker = thread
    # A block of 64 heads of one query.
    leaf_wide.load_query_rows(q_s, q_nope, row, head0, HEADS, LATENT_DIM, worker)
    leaf_wide.load_query_rows(qpe_s, q_pe, row, head0, HEADS, ROPE_DIM, worker)
    # The sink logits of the heads, read long before they are wanted.
    leaf_wide.load_row_sinks(sinks, attn_sink, head0, worker)
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
    acc.fill(0.0)
    sums.fill(0.0)
    peak.fill(-Float32.inf)
    for turn in cutlass.range(turns, unroll=1):
        # The valid ids of a tile as two words of bits, and whether there is one; the same in every warp of
        # every role.
        in_low, in_high, live = leaf.vote(low, high, n)
        # Ids `lane` and `lane` + 32 of the tile at `turn`; none past the last turn.
        low, high = leaf.read_ids(indices, topk, row, turn + 1, turns, split, splits, lane)
        if live:
            cute.arch.mbarrier_wait(kv_full + it % STAGES, (it // STAGES) & 1)
            # S = Q K^T
            warpgroup.fence()
            QK_NOPE.multiply(
                qk_nope_a[None, None, None, 0, 0, 0], qk_nope_b[None, None, None, it % STAGES, warp // 4, 0],
                scores, False
            )
            QK_PE.multiply(
                qk_pe_a[None, None, None, 0, 0, 0], qk_pe_b[None, None, None, it % STAGES, warp // 4, 0],
                scores, True
            )
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            # Scale the logits to base 2 and put -inf where the token has no valid id.
            leaf_wide.mask_columns(scores, in_low, in_high, sm_scale, worker)
            # Maxima of each head over the tokens of a warpgroup.
            leaf_wide.row_maxima(rows, scores)
            # Leave the maxima of a warpgroup's half for the other.
            leaf_wide.share_maxima(rows, red_s, worker)
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
            # P = exp2(S - maximum) in place of S, with the maximum of both halves; rescale the sums and O to
            # it.
            leaf_wide.softmax_rows(scores, sums, acc, peak, rows, red_s, worker)
            # Write P as bf16, heads by tokens.
            leaf_wide.store_rows(p_s, scores, worker)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
            # O += P K
            warpgroup.fence()
            PV.multiply(
                pv_a[None, None, None, 0, 0, 0], pv_b[None, None, None, it % STAGES, warp // 4, 0], acc, True
            )
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            cute.arch.mbarrier_arrive(kv_empty + it % STAGES)
            it = it + 1
    # Leave the sums of a warpgroup's half for the other.
    leaf_wide.share_sums(rows, sums, red_s, worker)
    cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
    # O / sum in place, and the base-2 lse in place of the sums; an empty row gives 0 and -inf.
    leaf_wide.normalise_rows(acc, sums, peak, rows, red_s, worker)
    last = Boolean(True)
    if splits > 1:
        # Write a normalised O, in the order of the threads, and its lses, for `merge_rows`.
        leaf_wide.leave_rows(acc, sums, o_partial, lse_partial, row, splits, split, head0, HEADS, worker)
        cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
        grid.count_in(last_s, arrivals + bx, splits, worker)
        cute.arch.barrier(barrier_id=ATTEND_BARRIER, number_of_threads=ATTEND_THREADS)
        last = last_s.load() == splits - 1
    if last:
        if splits > 1:
            # Replace O and its lses by those of all splits.
            leaf_wide.merge_rows(acc, sums, o_partial, lse_partial, row, splits, head0, HEADS, worker)
        # Store O as bf16, each head scaled by the share that tokens keep beside its sink; and the lse.
        leaf_wide.store_result_rows(out, lse, acc, sums, sinks, row, head0, HEADS, ckv_s, lse_scale, worker)


@cute.jit
def gather(
    kv_cache: cute.Pointer, indices: cute.Pointer, n: Int32, topk: Int32, splits: Int32, ckv_s: cute.Pointer,
    kpe_s: cute.Pointer, kv_full: cute.Pointer, kv_empty: cute.Pointer, split: Int32, row: Int32,
    turns: Int32, it: Int32, low: Int32, high: Int32, in_low: Int32, in_high: Int32, live: Boolean,
    thread: Int32, lane: Int32
):
    """Selected rows into the ring."""
    words = cute.make_rmem_tensor(44, cutlass.Uint32)
    worker = thread % 128
    for turn in cutlass.range(turns, unroll=1):
        # The valid ids of a tile as two words of bits, and whether there is one; the same in every warp of
        # every role.
        in_low, in_high, live = leaf.vote(low, high, n)
        now_low = low
        now_high = high
        # Ids `lane` and `lane` + 32 of the tile at `turn`; none past the last turn.
        low, high = leaf.read_ids(indices, topk, row, turn + 1, turns, split, splits, lane)
        if live:
            cute.arch.mbarrier_wait(kv_empty + it % STAGES, ((it // STAGES) & 1) ^ 1)
            # A loop: unrolled, both halves' tokens would be in registers at once.
            for half in cutlass.range(2, unroll=1):
                if half == 1:
                    # By now the next ids are here, and its own tokens in shared memory.
                    # Have the L2 fetch the 656-byte tokens of a tile; no value follows from it.
                    leaf.fetch_ahead(kv_cache, low, high, n, worker)
                # Read tokens batch * 32 .. + 31 of the tile into the registers of place `at`.
                leaf.load_half(words, 0, kv_cache, half, now_low, now_high, n, worker)
                cute.arch.barrier(barrier_id=GATHER_BARRIER, number_of_threads=GATHER_THREADS)
                # Write what `load_half` read as bf16 rows of the tile.
                leaf.store_half(
                    words, 0, ckv_s + it % STAGES * (TILE * LATENT_DIM),
                    kpe_s + it % STAGES * (TILE * ROPE_DIM), half, worker
                )
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.mbarrier_arrive(kv_full + it % STAGES)
            it = it + 1


@cute.kernel
def sparse_mla__cutedsl_sm90a__h128_fp8_bt64_st2_cl1_hb64(
    q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32, t: Int32,
    n: Int32, topk: Int32, splits: Int32, arrival_slots: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    q_s = shared.q_s.data_ptr()
    qpe_s = shared.qpe_s.data_ptr()
    ckv_s = shared.ckv_s.data_ptr()
    kpe_s = shared.kpe_s.data_ptr()
    p_s = shared.p_s.data_ptr()
    red_s = shared.red_s.data_ptr()
    last_s = shared.last_s.data_ptr()
    kv_full = shared.kv_full.data_ptr()
    kv_empty = shared.kv_empty.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    bx, split, _ = cute.arch.block_idx()
    row = bx // (HEADS // BLOCK)
    head0 = bx % (HEADS // BLOCK) * BLOCK
    turns = (topk // TILE - split + splits - 1) // splits
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
                cute.arch.mbarrier_init(kv_empty + i, 256)
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    # Ids `lane` and `lane` + 32 of the tile at `turn`; none past the last turn.
    low, high = leaf.read_ids(indices, topk, row, 0, turns, split, splits, lane)
    if warp < 8:
        cute.arch.setmaxregister_increase(208)
        attend(
            q_nope, q_pe, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale, lse_scale,
            n, topk, splits, q_s, qpe_s, ckv_s, kpe_s, p_s, red_s, last_s, kv_full, kv_empty, bx, split, row,
            head0, turns, it, low, high, in_low, in_high, live, thread, warp, lane
        )
    else:
        cute.arch.setmaxregister_decrease(88)
        gather(
            kv_cache, indices, n, topk, splits, ckv_s, kpe_s, kv_full, kv_empty, split, row, turns, it, low,
            high, in_low, in_high, live, thread, lane
        )


@cute.jit
def program(
    q_nope: cute.Pointer, q_pe: cute.Pointer, kv_cache: cute.Pointer, indices: cute.Pointer,
    attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, o_partial: cute.Pointer,
    lse_partial: cute.Pointer, arrivals: cute.Pointer, sm_scale: Float32, lse_scale: Float32, t: Int32,
    n: Int32, topk: Int32, splits: Int32, arrival_slots: Int32
):
    kernel = sparse_mla__cutedsl_sm90a__h128_fp8_bt64_st2_cl1_hb64(
        q_nope, q_pe, kv_cache, indices, attn_sink, out, lse, o_partial, lse_partial, arrivals, sm_scale,
        lse_scale, t, n, topk, splits, arrival_slots
    )
    kernel.launch(grid=(1, 1, 1), block=(384, 1, 1), cluster=(1, 1, 1))
