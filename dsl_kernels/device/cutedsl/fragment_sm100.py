"""Leaves for every operation in CuTe DSL, on fragments of 128 rows from tensor memory: thread t has row t."""

import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cute.nvgpu import tcgen05

from . import fragment
from .fragment import flat, higher, reduced

round_to = fragment.round_to
pack_to = fragment.pack_to

LANES = 128
LANE_STRIDE = 1 << 16
"""Address step between lanes of tensor memory."""


def row_most(registers):
    return reduced(flat(registers), cute.arch.fmax)


def row_most_bits(registers):
    return reduced(flat(registers), higher)


def row_sum(registers):
    """Two partial sums side by side, by packed additions of two floats."""
    values = flat(registers)
    pairs = [(values[i], values[i + 1]) for i in range(0, cute.size(values), 2)]
    first, second = reduced(pairs, cute.arch.add_packed_f32x2)
    return first + second


def scale_pair(registers, first, factor, less):
    pair = (registers[first], registers[first + 1])
    registers[first], registers[first + 1] = cute.arch.fma_packed_f32x2(
        pair, (factor, factor), (-less, -less)
    )


def _columns(tmem, count):
    return cute.make_tensor(tmem, cute.make_layout((LANES, count), stride=(LANE_STRIDE, 1)))


def read_tensor(target, source, thread):
    """Load a fragment, a row a thread, from tensor memory; the release waits for it."""
    count = cute.size(target)
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(count)), Float32)
    copy = tcgen05.make_tmem_copy(atom, _columns(source, count)).get_slice(thread)
    shape = copy.partition_D(cute.make_identity_tensor((LANES, count))).shape
    cute.copy(
        copy,
        copy.partition_S(_columns(source, count)),
        cute.make_tensor(target.iterator, cute.make_layout(shape)),
    )


def read_sums(target, source, thread):
    """Load 16-bit sums, a column each, a row a thread, two a register; the release waits for them."""
    count = cute.size(target)
    atom = cute.make_copy_atom(
        tcgen05.Ld32x32bOp(tcgen05.Repetition(count // 2), tcgen05.Pack.PACK_16b_IN_32b), target.element_type
    )
    columns = cute.make_tensor(
        cute.recast_ptr(source, dtype=target.element_type),
        cute.make_layout((LANES, count), stride=(2 * LANE_STRIDE, 2)),
    )
    copy = tcgen05.make_tmem_copy(atom, columns).get_slice(thread)
    shape = copy.partition_D(cute.make_identity_tensor((LANES, count))).shape
    cute.copy(copy, copy.partition_S(columns), cute.make_tensor(target.iterator, cute.make_layout(shape)))


def write_tensor(target, source, thread):
    """Store a 16-bit fragment, a row a thread, to tensor memory; the commit waits for it."""
    write_words(target, cute.recast_tensor(flat(source), Float32), thread)


def write_words(target, words, thread):
    """Store a vector of this thread's words as its row of tensor memory."""
    count = cute.size(words)
    atom = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(count)), Float32)
    copy = tcgen05.make_tmem_copy(atom, _columns(target, count)).get_slice(thread)
    shape = copy.partition_S(cute.make_identity_tensor((LANES, count))).shape
    cute.copy(
        copy,
        cute.make_tensor(words.iterator, cute.make_layout(shape)),
        copy.partition_D(_columns(target, count)),
    )


def read_accumulator(target, source, thread):
    """Load a thread's elements of a 64-row accumulator in wgmma's layout; the release waits for them.

    Lanes 0-15 of each warp's 32 have sixteen rows.
    """
    columns = 2 * cute.size(target)
    lanes = cute.make_layout(((16, 4), columns), stride=((LANE_STRIDE, 32 * LANE_STRIDE), 1))
    words = cute.make_ptr(Float32, source.toint(), cute.AddressSpace.tmem, assumed_align=64)
    whole = cute.make_tensor(words, lanes)
    atom = cute.make_copy_atom(tcgen05.Ld16x256bOp(tcgen05.Repetition(columns // 8)), Float32)
    load = tcgen05.make_tmem_copy(atom, whole).get_slice(thread)
    own = cute.make_tensor(target.iterator, load.partition_D(whole).layout.shape)
    cute.copy(load, load.partition_S(whole), own)


def load_columns(held, source, column, thread):
    """Load columns of each thread's row of tensor memory, and wait for them.

    `column` is a multiple of the number of registers.
    """
    read_tensor(held, source + _multiple(column, held), thread)
    cute.arch.fence_view_async_tmem_load()


def store_columns(held, target, column, thread):
    """The reverse of `load_columns`, without a wait."""
    write_words(target + _multiple(column, held), held, thread)


def _multiple(column, held):
    """Tell the compiler that a column is a multiple of the number of registers."""
    return column if isinstance(column, int) else cute.assume(column, divby=cute.size(held))


def _row(rows, source, combine):
    values = flat(source)
    total = values[0]
    for i in range(1, cute.size(values)):
        total = combine(total, values[i])
    rows[0] = total


def row_maxima(rows, source, thread):
    """The maximum of each row."""
    _row(rows, source, cute.arch.fmax)


def row_sums(rows, source, thread):
    """The sum of each row."""
    _row(rows, source, lambda a, b: a + b)


def exp2_below(source, rows, thread):
    """exp2(element - its row's value) in place."""
    values = flat(source)
    for i in range(cute.size(values)):
        values[i] = cute.arch.exp2(values[i] - rows[0])


def scale_rows(source, rows, thread):
    """Multiply each row by its value, in place."""
    values = flat(source)
    values.store(values.load() * rows[0])


def divide_rows(source, rows, thread):
    """Divide each row by its value, in place."""
    values = flat(source)
    values.store(values.load() * (1.0 / rows[0]))


def stage_rows(target, row, rows, source, thread):
    """Store a 16-bit fragment to a shared tile of `rows` rows, 128-byte swizzled, from row `row` on."""
    words, at = cute.recast_tensor(flat(source), Int32), row + thread
    for piece in range(cute.size(words) // 4):
        # Panels of eight 16-byte pieces a row; the swizzle permutes the pieces of a row by its number.
        place = piece // 8 * (rows * 64) + at * 64 + ((piece % 8) ^ (at % 8)) * 8
        to = cute.recast_tensor(cute.make_tensor((target + place).align(16), cute.make_layout(8)), Int32)
        cute.autovec_copy(cute.make_tensor(words.iterator + 4 * piece, cute.make_layout(4)), to)


def _place(out, pitch, row, column, thread):
    return (out + (Int64(row + thread) * pitch + column)).align(16)


def read_rows(target, x, pitch, row, column, thread):
    """Load a float32 fragment from a matrix in global or shared memory with rows of `pitch` elements."""
    own = cute.make_layout(cute.size(target))
    cute.autovec_copy(cute.make_tensor(_place(x, pitch, row, column, thread), own), flat(target))


def add_rows(out, pitch, row, column, source, thread):
    """Add a float32 fragment to a matrix in global memory, atomically for each element."""
    values, place = flat(source), _place(out, pitch, row, column, thread)
    for i in range(cute.size(values)):
        fragment.add(place + i, values[i])


def write_rows(out, pitch, row, column, source, thread):
    """Store a float32 fragment to a matrix in global or shared memory with rows of `pitch` elements."""
    own = cute.make_layout(cute.size(source))
    cute.autovec_copy(flat(source), cute.make_tensor(_place(out, pitch, row, column, thread), own))
