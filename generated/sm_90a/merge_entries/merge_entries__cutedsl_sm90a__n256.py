"""merge_entries__cutedsl_sm90a__n256

Generated from dsl_kernels/kernels/merge_entries and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: threads=256.

roles
  place      threads 0..255  an entry per thread
buffers
totals: 256 threads, 0 of 232448 bytes of shared memory, grid (rows, ceildiv(ranks * k, 256))
"""
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from dsl_kernels.device.cutedsl import warps
from dsl_kernels.runtime.artifact import Launch, Operand

THREADS = 256  # entries per CTA, one per thread


LAUNCH = Launch(
    operands=(
        Operand("rank_entries", "tensor", "int32", ("ranks", "planes", "rows", "k")),
        Operand("interleave", "scalar", "int32"),
        Operand("rank_stride", "scalar", "int32"),
        Operand("ordered_scores", "tensor", "int32", ("rows", "columns"), written=True),
        Operand("ordered_ids", "tensor", "int32", ("rows", "columns"), written=True),
    ),
    grid=("rows", "ceildiv(ranks * k, 256)", "1"),
    block=256,
    cluster=(1, 1, 1),
)


@cute.jit
def place_entry(scores, ids, entries, row, first, ranks, planes, rows, k, interleave, rank_stride, thread):
    """Copy entry number `first` + thread, of the entries of all ranks in turn, to its place.

    Let token t of rank r be in run number n of its rank. Before this token another rank has its first n
    runs, and one run more if that rank comes before r.
    """
    number = first + thread
    rank = number // k
    at = number - rank * k
    if rank < ranks:
        own_tokens = entries + Int64((rank * planes + (planes - 1)) * rows + row) * k
        token = own_tokens[at]
        if token >= 0:
            run = token // interleave
            place = Int32(at)
            for other in cutlass.range(ranks, unroll=1):
                if other != rank:
                    tokens = entries + Int64((other * planes + (planes - 1)) * rows + row) * k
                    runs = Int32(run)
                    if other < rank:
                        runs = runs + 1
                    found = Int32(0)
                    step = Int32(1 << (31 - warps.clz(k)))
                    while step > 0:
                        if found + step <= k:
                            if tokens[found + step - 1].to(cutlass.Uint32) < (runs * interleave).to(
                                cutlass.Uint32
                            ):
                                found = found + step
                        step = step >> 1
                    place = place + found
            named = Int32(run * (ranks - 1) * interleave + rank * interleave + token)
            if planes > 2:
                names = entries + Int64((rank * planes + 1) * rows + row) * k
                named = names[at] + rank * rank_stride
            own_scores = entries + Int64(rank * planes * rows + row) * k
            ordered = scores + Int64(row) * (ranks * k)
            ordered[place] = own_scores[at]
            ordered_ids = ids + Int64(row) * (ranks * k)
            ordered_ids[place] = named


@cute.jit
def place(
    rank_entries: cute.Pointer, interleave: Int32, rank_stride: Int32, ordered_scores: cute.Pointer,
    ordered_ids: cute.Pointer, ranks: Int32, planes: Int32, rows: Int32, k: Int32, row: Int32, tile: Int32,
    thread: Int32
):
    """An entry per thread."""
    worker = thread
    place_entry(
        ordered_scores, ordered_ids, rank_entries, row, tile * THREADS, ranks, planes, rows, k, interleave,
        rank_stride, worker
    )


@cute.kernel
def merge_entries__cutedsl_sm90a__n256(
    rank_entries: cute.Pointer, interleave: Int32, rank_stride: Int32, ordered_scores: cute.Pointer,
    ordered_ids: cute.Pointer, ranks: Int32, planes: Int32, rows: Int32, k: Int32, columns: Int32
):
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    row, tile, _ = cute.arch.block_idx()
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    place(
        rank_entries, interleave, rank_stride, ordered_scores, ordered_ids, ranks, planes, rows, k, row, tile,
        thread
    )


@cute.jit
def program(
    rank_entries: cute.Pointer, interleave: Int32, rank_stride: Int32, ordered_scores: cute.Pointer,
    ordered_ids: cute.Pointer, ranks: Int32, planes: Int32, rows: Int32, k: Int32, columns: Int32
):
    kernel = merge_entries__cutedsl_sm90a__n256(
        rank_entries, interleave, rank_stride, ordered_scores, ordered_ids, ranks, planes, rows, k, columns
    )
    kernel.launch(grid=(1, 1, 1), block=(256, 1, 1), cluster=(1, 1, 1))
