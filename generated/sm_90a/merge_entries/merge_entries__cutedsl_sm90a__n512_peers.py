"""merge_entries__cutedsl_sm90a__n512_peers

Generated from dsl_kernels/kernels/merge_entries and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: threads=512, lists=peers.

roles
  place      threads 0..511  some entries per thread
buffers
  lists      16384 int32, shared
  tokens     512x4 int32, registers of place
  scores     512x4 int32, registers of place
  names      512x4 int32, registers of place
totals: 512 threads, 65536 of 232448 bytes of shared memory, grid (rows, 8)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from dsl_kernels.device.cutedsl import warps
from dsl_kernels.runtime.artifact import Launch, Operand

THREADS = 512  # entries per CTA, one per thread
EACH = 4
CTAS = 8
LISTED = 16384


LAUNCH = Launch(
    operands=(
        Operand("rank_entries", "tensor", "int32", ("planes", "rows", "k")),
        Operand("peer_distances", "tensor", "int64", ("ranks",)),
        Operand("interleave", "scalar", "int32"),
        Operand("rank_stride", "scalar", "int32"),
        Operand("ordered_scores", "tensor", "int32", ("rows", "columns"), written=True),
        Operand("ordered_ids", "tensor", "int32", ("rows", "columns"), written=True),
    ),
    grid=("rows", "8", "1"),
    block=512,
    cluster=(1, 8, 1),
)


@cute.struct
class Shared:
    lists: cute.struct.Align[cute.struct.MemRange[Int32, LISTED], 128]


@cute.jit
def read_peers(tokens, scores, names, entries, peer_distances, row, first, ranks, planes, rows, k, thread):
    """Read a thread's entries from the memory of ranks: number `first` + thread, and every `step` further.

    All loads are in flight together. Where there is no entry, the token is -1.
    """
    distances = cute.make_rmem_tensor(EACH, Int64)
    for i in cutlass.range_constexpr(EACH):
        distances[i] = Int64(0)
        if first + thread + i * (CTAS * THREADS) < ranks * k:
            distances[i] = peer_distances[(first + thread + i * (CTAS * THREADS)) // k]
    for i in cutlass.range_constexpr(EACH):
        number = first + thread + i * (CTAS * THREADS)
        tokens[i] = Int32(-1)
        scores[i] = Int32(0)
        names[i] = Int32(0)
        if number < ranks * k:
            theirs = entries + (distances[i] >> 2)
            at = number % k
            own_tokens = theirs + Int64((planes - 1) * rows + row) * k
            tokens[i] = own_tokens[at]
            own_scores = theirs + Int64(row) * k
            scores[i] = own_scores[at]
            if planes > 2:
                own_names = theirs + Int64(rows + row) * k
                names[i] = own_names[at]


@cute.jit
def share_tokens(lists, tokens, first, count, thread):
    """Give a thread's tokens to every CTA of the cluster.

    `count` tokens have the order of the ranks' lists.
    """
    for i in cutlass.range_constexpr(EACH):
        if first + thread + i * (CTAS * THREADS) < count:
            for cta in cutlass.range_constexpr(CTAS):
                warps.store_peer(lists + (first + thread + i * (CTAS * THREADS)), cta, tokens[i])


@cute.jit
def place_read(
    ordered_scores, ordered_ids, lists, tokens, scores, names, row, first, ranks, planes, k, interleave,
    rank_stride, thread
):
    """Write a thread's entries to their places, like `place_entry`, by the tokens of all ranks in `lists`."""
    for i in cutlass.range_constexpr(EACH):
        if tokens[i] >= 0:
            number = first + thread + i * (CTAS * THREADS)
            rank = number // k
            run = tokens[i] // interleave
            place = Int32(number - rank * k)
            for other in cutlass.range(ranks, unroll=1):
                if other != rank:
                    runs = Int32(run)
                    if other < rank:
                        runs = runs + 1
                    listed = lists + other * k
                    found = Int32(0)
                    step = Int32(1 << (31 - warps.clz(k)))
                    while step > 0:
                        if found + step <= k:
                            if listed[found + step - 1].to(cutlass.Uint32) < (runs * interleave).to(
                                cutlass.Uint32
                            ):
                                found = found + step
                        step = step >> 1
                    place = place + found
            named = Int32(run * (ranks - 1) * interleave + rank * interleave + tokens[i])
            if planes > 2:
                named = names[i] + rank * rank_stride
            to_scores = ordered_scores + Int64(row) * (ranks * k)
            to_scores[place] = scores[i]
            to_ids = ordered_ids + Int64(row) * (ranks * k)
            to_ids[place] = named


@cute.jit
def place(
    rank_entries: cute.Pointer, peer_distances: cute.Pointer, interleave: Int32, rank_stride: Int32,
    ordered_scores: cute.Pointer, ordered_ids: cute.Pointer, planes: Int32, rows: Int32, k: Int32,
    ranks: Int32, lists: cute.Pointer, row: Int32, rank_in_cluster: Int32, thread: Int32
):
    """Some entries per thread."""
    tokens = cute.make_rmem_tensor(EACH, Int32)
    scores = cute.make_rmem_tensor(EACH, Int32)
    names = cute.make_rmem_tensor(EACH, Int32)
    worker = thread
    first = rank_in_cluster * THREADS
    # A CTA may store to another only after that CTA has started.
    cute.arch.cluster_arrive_relaxed()
    read_peers(
        tokens, scores, names, rank_entries, peer_distances, row, first, ranks, planes, rows, k, worker
    )
    cute.arch.cluster_wait()
    share_tokens(lists, tokens, first, ranks * k, worker)
    # The last use of another CTA's memory comes before this barrier.
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()
    place_read(
        ordered_scores, ordered_ids, lists, tokens, scores, names, row, first, ranks, planes, k, interleave,
        rank_stride, worker
    )


@cute.kernel
def merge_entries__cutedsl_sm90a__n512_peers(
    rank_entries: cute.Pointer, peer_distances: cute.Pointer, interleave: Int32, rank_stride: Int32,
    ordered_scores: cute.Pointer, ordered_ids: cute.Pointer, planes: Int32, rows: Int32, k: Int32,
    ranks: Int32, columns: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    lists = shared.lists.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    row, rank_in_cluster, _ = cute.arch.block_idx()
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    place(
        rank_entries, peer_distances, interleave, rank_stride, ordered_scores, ordered_ids, planes, rows, k,
        ranks, lists, row, rank_in_cluster, thread
    )


@cute.jit
def program(
    rank_entries: cute.Pointer, peer_distances: cute.Pointer, interleave: Int32, rank_stride: Int32,
    ordered_scores: cute.Pointer, ordered_ids: cute.Pointer, planes: Int32, rows: Int32, k: Int32,
    ranks: Int32, columns: Int32
):
    kernel = merge_entries__cutedsl_sm90a__n512_peers(
        rank_entries, peer_distances, interleave, rank_stride, ordered_scores, ordered_ids, planes, rows, k,
        ranks, columns
    )
    kernel.launch(grid=(1, 1, 1), block=(512, 1, 1), cluster=(1, 8, 1))
