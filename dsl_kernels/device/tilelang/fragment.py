"""Leaves for every operation in TileLang: tiles of registers are fragments, dealt to threads as their product asks."""

import tilelang.language as T

from .tcgen05 import move_columns

# Barriers are the declared ones: TileLang adds none of its own.
PASS_CONFIGS = {
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.disable_loop_unswitching": True,
}


@T.macro
def round_to(target, source):
    """Every element in the dtype of the target, which the next product may take as its A."""
    T.copy(source, target)


# Nothing moves a conversion here.
pack_to = round_to


@T.macro
def row_maxima(rows, source, thread):
    """The maximum of each row."""
    T.reduce_max(source, rows, dim=1)


@T.macro
def row_sums(rows, source, thread):
    """The sum of each row."""
    T.reduce_sum(source, rows, dim=1)


@T.macro
def exp2_below(source, rows, thread):
    """exp2(element - its row's value) in place."""
    for i, j in T.Parallel(source.shape[0], source.shape[1]):
        source[i, j] = T.exp2(source[i, j] - rows[i])


@T.macro
def scale_rows(source, rows, thread):
    """Each row times its value, in place."""
    for i, j in T.Parallel(source.shape[0], source.shape[1]):
        source[i, j] = source[i, j] * rows[i]


@T.macro
def divide_rows(source, rows, thread):
    """Each row divided by its value, in place."""
    for i, j in T.Parallel(source.shape[0], source.shape[1]):
        source[i, j] = source[i, j] / rows[i]


@T.macro
def read_tensor(target, source, slot, thread):
    """A fragment, a row a thread, from tensor memory; its arrival is waited for at the release."""
    T.copy(source[slot, :, :], target)


@T.macro
def write_tensor(target, slot, source, thread):
    """A 16-bit fragment, a row a thread, into tensor memory; its arrival is waited for at the commit."""
    T.copy(source, target[slot, :, :])


@T.macro
def read_accumulator(target, source, slot, thread):
    """What a thread has of an accumulator of 64 rows, as wgmma leaves it, from tensor memory; waited for at the release.

    Lanes 0-15 of each warp's 32 hold sixteen rows.
    """
    T.call_extern(
        "handle",
        f"tl::tcgen05_ld_16dp256bNx<{target.shape[0] // 4}, false>",
        source[32 * (thread // 32), slot * (target.shape[0] * 2)],
        0,
        T.address_of(target[0]),
    )


@T.macro
def load_columns(held, source, slot, column, thread):
    """Columns of each thread's row of tensor memory from a multiple of as many on, once they are here."""
    move_columns("ld", held, source, slot, column, thread)


@T.macro
def store_columns(held, target, slot, column, thread):
    """The reverse of `load_columns`, and it waits."""
    move_columns("st", held, target, slot, column, thread)


@T.macro
def stage_rows(target, row, rows, source, thread):
    """A 16-bit fragment into rows `row` on of a shared tile of `rows` rows with the 128-byte swizzle."""
    T.copy(source, target[row : row + source.shape[0], :])


@T.macro
def read_rows(target, x, pitch, row, column, thread):
    """A float32 fragment from a matrix in global or shared memory whose rows are `pitch` elements long."""
    for i, j in T.Parallel(target.shape[0], target.shape[1]):
        target[i, j] = x[row + i, column + j]


@T.macro
def write_rows(out, pitch, row, column, source, thread):
    """A float32 fragment into a matrix in global or shared memory whose rows are `pitch` elements long."""
    for i, j in T.Parallel(source.shape[0], source.shape[1]):
        out[row + i, column + j] = source[i, j]


@T.macro
def add_rows(out, pitch, row, column, source, thread):
    """A float32 fragment added to a matrix in global memory, element by element and atomically."""
    for i, j in T.Parallel(source.shape[0], source.shape[1]):
        T.atomic_add(out[row + i, column + j], source[i, j])
