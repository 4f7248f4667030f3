"""window_ids__cutedsl_sm100a__n128

Generated from dsl_kernels/kernels/window_ids and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: threads=128.

roles
  place      threads 0..127  an id per thread
buffers
totals: 128 threads, 0 of 232448 bytes of shared memory, grid (rows, ceildiv(window, 128))
"""
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from dsl_kernels.runtime.artifact import Launch, Operand

THREADS = 128  # ids per CTA, one per thread


LAUNCH = Launch(
    operands=(
        Operand("seq_lens", "tensor", "int32", ("b", "next_n")),
        Operand("window_table", "tensor", "int32", ("b", "max_pages"), strides=("window_table_stride", "1")),
        Operand("page_size", "scalar", "int32"),
        Operand(
            "indices", "tensor", "int32", ("rows", "window"), strides=("indices_stride", "1"), written=True
        ),
    ),
    grid=("rows", "ceildiv(window, 128)", "1"),
    block=128,
    cluster=(1, 1, 1),
)


@cute.jit
def place_id(
    indices, indices_stride_0, seq_lens, window_table, window_table_stride_0, row, first, next_n, max_pages,
    page_size, window, thread
):
    """Write id number `first` + thread of a query's window; -1 past the window's tokens."""
    number = first + thread
    if number < window:
        sequence = row // next_n
        lengths = seq_lens + Int64(sequence) * next_n
        length = lengths[row - sequence * next_n]
        end = cutlass.min(cutlass.max(length, 0), max_pages * page_size)
        at = cutlass.max(end - window, 0) + number
        found = Int32(-1)
        if at < end:
            column = at // page_size
            pages = window_table + Int64(sequence) * window_table_stride_0
            found = pages[column] * page_size + (at - column * page_size)
        of_query = indices + Int64(row) * indices_stride_0
        of_query[number] = found


@cute.jit
def place(
    seq_lens: cute.Pointer, window_table: cute.Pointer, page_size: Int32, indices: cute.Pointer,
    next_n: Int32, max_pages: Int32, window_table_stride: Int32, window: Int32, indices_stride: Int32,
    row: Int32, tile: Int32, thread: Int32
):
    """An id per thread."""
    worker = thread
    place_id(
        indices, indices_stride, seq_lens, window_table, window_table_stride, row, tile * THREADS, next_n,
        max_pages, page_size, window, worker
    )


@cute.kernel
def window_ids__cutedsl_sm100a__n128(
    seq_lens: cute.Pointer, window_table: cute.Pointer, page_size: Int32, indices: cute.Pointer, b: Int32,
    next_n: Int32, max_pages: Int32, window_table_stride: Int32, rows: Int32, window: Int32,
    indices_stride: Int32
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
        seq_lens, window_table, page_size, indices, next_n, max_pages, window_table_stride, window,
        indices_stride, row, tile, thread
    )


@cute.jit
def program(
    seq_lens: cute.Pointer, window_table: cute.Pointer, page_size: Int32, indices: cute.Pointer, b: Int32,
    next_n: Int32, max_pages: Int32, window_table_stride: Int32, rows: Int32, window: Int32,
    indices_stride: Int32
):
    kernel = window_ids__cutedsl_sm100a__n128(
        seq_lens, window_table, page_size, indices, b, next_n, max_pages, window_table_stride, rows, window,
        indices_stride
    )
    kernel.launch(grid=(1, 1, 1), block=(128, 1, 1), cluster=(1, 1, 1))
