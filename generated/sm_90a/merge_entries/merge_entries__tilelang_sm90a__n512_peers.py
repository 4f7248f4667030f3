"""merge_entries__tilelang_sm90a__n512_peers

Generated from dsl_kernels/kernels/merge_entries and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
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
import tilelang.language as T

from dsl_kernels.device.tilelang import grid, warps
from dsl_kernels.kernels.merge_entries import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

THREADS = 512  # entries per CTA, one per thread
EACH = 4
CTAS = 8
LISTED = 16384


@T.macro
def read_peers(tokens, scores, names, entries, peer_distances, row, first, ranks, planes, k, thread):
    """Read a thread's entries from the memory of ranks: number `first` + thread, and every `step` further.

    All loads are in flight together. Where there is no entry, the token is -1.
    """
    distances = T.alloc_local((EACH,), "int64")
    for i in T.unroll(EACH):
        distances[i] = 0
        if first + thread + i * (CTAS * THREADS) < ranks * k:
            distances[i] = peer_distances[T.truncdiv(first + thread + i * (CTAS * THREADS), k)]
    for i in T.unroll(EACH):
        number = first + thread + i * (CTAS * THREADS)
        tokens[i] = -1
        scores[i] = 0
        names[i] = 0
        if number < ranks * k:
            at = T.truncmod(number, k)
            tokens[i] = entries[planes - 1, row, (distances[i] >> T.int64(2)) + at]
            scores[i] = entries[0, row, (distances[i] >> T.int64(2)) + at]
            if planes > 2:
                names[i] = entries[1, row, (distances[i] >> T.int64(2)) + at]


@T.macro
def share_tokens(lists, tokens, first, count, thread):
    """Give a thread's tokens to every CTA of the cluster.

    `count` tokens have the order of the ranks' lists.
    """
    for i in T.unroll(EACH):
        if first + thread + i * (CTAS * THREADS) < count:
            for cta in T.unroll(CTAS):
                warps.store_peer(lists[(first + thread + i * (CTAS * THREADS))], cta, tokens[i])


@T.macro
def place_read(
    ordered_scores, ordered_ids, lists, tokens, scores, names, row, first, ranks, planes, k, interleave,
    rank_stride, thread
):
    """Write a thread's entries to their places, like `place_entry`, by the tokens of all ranks in `lists`."""
    for i in T.unroll(EACH):
        if tokens[i] >= 0:
            number = first + thread + i * (CTAS * THREADS)
            rank = T.truncdiv(number, k)
            run = T.truncdiv(tokens[i], interleave)
            place = T.alloc_var("int32", init=number - rank * k)
            for other in T.unroll(0, ranks, 1, unroll_factor=1):
                if other != rank:
                    runs = T.alloc_var("int32", init=run)
                    if other < rank:
                        runs = runs + 1
                    found = T.alloc_var("int32", init=0)
                    step = T.alloc_var("int32", init=1 << (31 - warps.clz(k)))
                    while step > 0:
                        if found + step <= k:
                            if warps.below(
                                T.cast(lists[other * k + found + step - 1], "uint32"),
                                T.cast((runs * interleave), "uint32")
                            ):
                                found = found + step
                        step = step >> 1
                    place = place + found
            named = T.alloc_var("int32", init=run * (ranks - 1) * interleave + rank * interleave + tokens[i])
            if planes > 2:
                named = names[i] + rank * rank_stride
            ordered_scores[row, place] = scores[i]
            ordered_ids[row, place] = named


@T.macro
def place(
    rank_entries, peer_distances, interleave, rank_stride, ordered_scores, ordered_ids, planes, k, ranks,
    lists, row, rank_in_cluster, thread
):
    """Some entries per thread."""
    tokens = T.alloc_local((EACH,), "int32")
    scores = T.alloc_local((EACH,), "int32")
    names = T.alloc_local((EACH,), "int32")
    worker = thread
    first = rank_in_cluster * THREADS
    # A CTA may store to another only after that CTA has started.
    T.call_extern("handle", "dk::cluster_arrive_relaxed")
    read_peers(tokens, scores, names, rank_entries, peer_distances, row, first, ranks, planes, k, worker)
    T.call_extern("handle", "dk::cluster_wait")
    share_tokens(lists, tokens, first, ranks * k, worker)
    # The last use of another CTA's memory comes before this barrier.
    T.call_extern("handle", "dk::cluster_arrive")
    T.call_extern("handle", "dk::cluster_wait")
    place_read(
        ordered_scores, ordered_ids, lists, tokens, scores, names, row, first, ranks, planes, k, interleave,
        rank_stride, worker
    )


def program():
    planes = T.dynamic("planes")
    rows = T.dynamic("rows")
    k = T.dynamic("k")
    ranks = T.dynamic("ranks")
    columns = T.dynamic("columns")

    @T.prim_func
    def merge_entries__tilelang_sm90a__n512_peers(
        rank_entries: T.Tensor((planes, rows, k), "int32"),
        peer_distances: T.Tensor((ranks,), "int64"),
        interleave: T.int32,
        rank_stride: T.int32,
        ordered_scores: T.Tensor((rows, columns), "int32"),
        ordered_ids: T.Tensor((rows, columns), "int32"),
    ):
        with T.Kernel(rows, 8, threads=512, cluster_dims=(1, 8, 1)) as (row, rank_in_cluster):
            T.import_source(grid.SOURCE + warps.SOURCE)
            lists = T.alloc_shared((LISTED,), "int32")

            thread = T.get_thread_binding()
            # A launch of TileLang starts when the kernel before it has ended.
            place(
                rank_entries, peer_distances, interleave, rank_stride, ordered_scores, ordered_ids, planes, k,
                ranks, lists, row, rank_in_cluster, thread
            )

    return merge_entries__tilelang_sm90a__n512_peers
