"""merge_entries__tilelang_sm90a__n256

Generated from dsl_kernels/kernels/merge_entries and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: threads=256.

roles
  place      threads 0..255  an entry per thread
buffers
totals: 256 threads, 0 of 232448 bytes of shared memory, grid (rows, ceildiv(ranks * k, 256))
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import warps
from dsl_kernels.kernels.merge_entries import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

THREADS = 256  # entries per CTA, one per thread


@T.macro
def place_entry(scores, ids, entries, row, first, ranks, planes, k, interleave, rank_stride, thread):
    """Copy entry number `first` + thread, of the entries of all ranks in turn, to its place.

    Let token t of rank r be in run number n of its rank. Before this token another rank has its first n
    runs, and one run more if that rank comes before r.
    """
    number = first + thread
    rank = T.truncdiv(number, k)
    at = number - rank * k
    if rank < ranks:
        token = entries[rank, planes - 1, row, at]
        if token >= 0:
            run = T.truncdiv(token, interleave)
            place = T.alloc_var("int32", init=at)
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
                                T.cast(entries[other, planes - 1, row, found + step - 1], "uint32"),
                                T.cast((runs * interleave), "uint32")
                            ):
                                found = found + step
                        step = step >> 1
                    place = place + found
            named = T.alloc_var("int32", init=run * (ranks - 1) * interleave + rank * interleave + token)
            if planes > 2:
                named = entries[rank, 1, row, at] + rank * rank_stride
            scores[row, place] = entries[rank, 0, row, at]
            ids[row, place] = named


@T.macro
def place(
    rank_entries, interleave, rank_stride, ordered_scores, ordered_ids, ranks, planes, k, row, tile, thread
):
    """An entry per thread."""
    worker = thread
    place_entry(
        ordered_scores, ordered_ids, rank_entries, row, tile * THREADS, ranks, planes, k, interleave,
        rank_stride, worker
    )


def program():
    ranks = T.dynamic("ranks")
    planes = T.dynamic("planes")
    rows = T.dynamic("rows")
    k = T.dynamic("k")
    columns = T.dynamic("columns")

    @T.prim_func
    def merge_entries__tilelang_sm90a__n256(
        rank_entries: T.Tensor((ranks, planes, rows, k), "int32"),
        interleave: T.int32,
        rank_stride: T.int32,
        ordered_scores: T.Tensor((rows, columns), "int32"),
        ordered_ids: T.Tensor((rows, columns), "int32"),
    ):
        with T.Kernel(rows, T.ceildiv(ranks * k, 256), threads=256) as (row, tile):
            T.import_source(warps.SOURCE)

            thread = T.get_thread_binding()
            # A launch of TileLang starts when the kernel before it has ended.
            place(
                rank_entries, interleave, rank_stride, ordered_scores, ordered_ids, ranks, planes, k, row,
                tile, thread
            )

    return merge_entries__tilelang_sm90a__n256
