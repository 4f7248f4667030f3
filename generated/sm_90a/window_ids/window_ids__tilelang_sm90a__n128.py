"""window_ids__tilelang_sm90a__n128

Generated from dsl_kernels/kernels/window_ids and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: threads=128.

roles
  place      threads 0..127  an id per thread
buffers
totals: 128 threads, 0 of 232448 bytes of shared memory, grid (rows, ceildiv(window, 128))
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import warps
from dsl_kernels.kernels.window_ids import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

THREADS = 128  # ids per CTA, one per thread


@T.macro
def place_id(indices, seq_lens, window_table, row, first, next_n, max_pages, page_size, window, thread):
    """Write id number `first` + thread of a query's window; -1 past the window's tokens."""
    number = first + thread
    if number < window:
        sequence = row // next_n
        length = seq_lens[sequence, row - sequence * next_n]
        end = T.min(T.max(length, 0), max_pages * page_size)
        at = T.max(end - window, 0) + number
        found = T.alloc_var("int32", init=-1)
        if at < end:
            column = T.truncdiv(at, page_size)
            found = window_table[sequence, column] * page_size + (at - column * page_size)
        indices[row, number] = found


@T.macro
def place(seq_lens, window_table, page_size, indices, next_n, max_pages, window, row, tile, thread):
    """An id per thread."""
    worker = thread
    place_id(
        indices, seq_lens, window_table, row, tile * THREADS, next_n, max_pages, page_size, window, worker
    )


def program():
    b = T.dynamic("b")
    next_n = T.dynamic("next_n")
    max_pages = T.dynamic("max_pages")
    window_table_stride = T.dynamic("window_table_stride")
    rows = T.dynamic("rows")
    window = T.dynamic("window")
    indices_stride = T.dynamic("indices_stride")

    @T.prim_func
    def window_ids__tilelang_sm90a__n128(
        seq_lens: T.Tensor((b, next_n), "int32"),
        window_table: T.StridedTensor((b, max_pages), (window_table_stride, 1), "int32"),
        page_size: T.int32,
        indices: T.StridedTensor((rows, window), (indices_stride, 1), "int32"),
    ):
        with T.Kernel(rows, T.ceildiv(window, 128), threads=128) as (row, tile):
            T.import_source(warps.SOURCE)

            thread = T.get_thread_binding()
            # A launch of TileLang starts when the kernel before it has ended.
            place(seq_lens, window_table, page_size, indices, next_n, max_pages, window, row, tile, thread)

    return window_ids__tilelang_sm90a__n128
