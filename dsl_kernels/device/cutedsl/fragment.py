"""Leaves for every operation in CuTe DSL, on fragments as a warpgroup's product of 64 rows leaves them.

Element i of a thread is in row 16 * warp + lane // 4 (+ 8 where bit 1 of i is set) and column
i // 4 * 8 + 2 * (lane % 4) + i % 2. The next product takes a 16-bit fragment of the same order as its A. A
value per row is replicated in the four lanes that share the row.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from . import warps

CHAINS = 4
"""Independent partial results of a thread's reduction: enough to hide the latency of each step."""


def flat(fragment):
    """A fragment as a vector of this thread's elements, in order."""
    return cute.make_tensor(fragment.iterator, cute.make_layout(cute.size(fragment)))


def across_quad(value, combine):
    """Combine over the four lanes that share a row."""
    for step in (1, 2):
        value = combine(value, cute.arch.shuffle_sync_bfly(value, offset=step))
    return value


def row_of(thread):
    """The first of this thread's two rows; the other is 8 below."""
    return thread // 32 * 16 + thread % 32 // 4


def reduced(values, combine):
    """Combine some values of this thread."""
    mine = [values[i] for i in range(len(values) if isinstance(values, list) else cute.size(values))]
    while len(mine) > 1:
        width = min(CHAINS, len(mine) // 2)
        mine = [combine(mine[i], mine[i + width]) for i in range(width)] + mine[2 * width :]
    return mine[0]


def row_most(registers, r):
    return reduced(_of_row(flat(registers), r), cute.arch.fmax)


def row_most_bits(registers, r):
    return reduced(_of_row(flat(registers), r), higher)


def higher(a, b):
    """The larger of two numbers, compared as integers by their bits."""
    return cutlass.max(*(x if x.dtype is Int32 else x.bitcast(Int32) for x in (a, b)))


def row_sum(registers, r):
    return reduced(_of_row(flat(registers), r), add_up)


def scale_pair(registers, first, factor, less):
    for i in (first, first + 1):
        registers[i] = registers[i] * factor - less


def quad_most(value):
    return across_quad(value, cute.arch.fmax)


def quad_sum(value):
    return across_quad(value, add_up)


def add_up(a, b):
    return a + b


def _of_row(values, r):
    return [values[i] for i in range(cute.size(values)) if i // 2 % 2 == r]


def round_to(target, source):
    """Convert every element to the target's dtype; the next product may take the target as its A."""
    values, halves = flat(source), flat(target)
    # In two parts: as one vector of a power of two, the bfloat16 values would be carried around loops whole,
    # with copies of accumulators, and ptxas would then wait after every product.
    part = cute.size(values) // 2
    for first in (0, part):
        rounded = cute.make_tensor(halves.iterator + first, cute.make_layout(part))
        rounded.store(
            cute.make_tensor(values.iterator + first, rounded.layout).load().to(target.element_type)
        )


def pack_to(target, source):
    """By inline PTX, as the compiler would move a conversion that it knows."""
    values, words = flat(source), cute.recast_tensor(flat(target), Int32)
    for i in range(cute.size(words)):
        words[i] = warps.pack(values[2 * i], values[2 * i + 1])


def _rows(rows, source, combine):
    values = flat(source)
    for r in range(2):
        mine = _of_row(values, r)
        total = mine[0]
        for value in mine[1:]:
            total = combine(total, value)
        rows[r] = across_quad(total, combine)


def row_maxima(rows, source, thread):
    """The maximum of each row."""
    _rows(rows, source, cute.arch.fmax)


def row_sums(rows, source, thread):
    """The sum of each row."""
    _rows(rows, source, add_up)


def exp2_below(source, rows, thread):
    """exp2(element - its row's value) in place."""
    values = flat(source)
    for i in range(cute.size(values)):
        values[i] = cute.arch.exp2(values[i] - rows[i // 2 % 2])


def scale_rows(source, rows, thread):
    """Multiply each row by its value, in place."""
    values = flat(source)
    for i in range(cute.size(values)):
        values[i] = values[i] * rows[i // 2 % 2]


def divide_rows(source, rows, thread):
    """Divide each row by its value, in place."""
    values, inverse = flat(source), [1.0 / rows[r] for r in range(2)]
    for i in range(cute.size(values)):
        values[i] = values[i] * inverse[i // 2 % 2]


def stage_rows(target, row, rows, source, thread):
    """Store a 16-bit fragment to a shared tile of `rows` rows, 128-byte swizzled, from row `row` on."""
    words = cute.recast_tensor(flat(source), Int32)
    at = row + thread // 32 * 16 + thread % 16
    for pair in range(cute.size(words) // 4):
        piece = pair * 2 + thread % 32 // 16
        # Panels of eight 16-byte pieces a row; the swizzle permutes the pieces of a row by its number.
        place = piece // 8 * (rows * 128) + at * 128 + ((piece % 8) ^ (at % 8)) * 16
        cute.arch.inline_ptx(
            "stmatrix.sync.aligned.m8n8.x4.shared.b16 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};",
            read_only_args=[target.toint() + place, *(words[4 * pair + i] for i in range(4))],
        )


def _pairs(out, pitch, row, column, source, thread):
    """For each two neighbouring elements of a fragment: their address, and the number of the first one."""
    first = out + Int64(row + row_of(thread)) * pitch + (column + thread % 4 * 2)
    for i in range(0, cute.size(source), 2):
        yield first + i // 2 % 2 * 8 * Int64(pitch) + i // 4 * 8, i


def read_rows(target, x, pitch, row, column, thread):
    """Load a float32 fragment from a matrix in global or shared memory with rows of `pitch` elements."""
    values = flat(target)
    for place, i in _pairs(x, pitch, row, column, values, thread):
        cute.make_tensor(values.iterator + i, cute.make_layout(2)).store(
            cute.make_tensor(place.align(8), cute.make_layout(2)).load()
        )


def write_rows(out, pitch, row, column, source, thread):
    """Store a float32 fragment to a matrix in global or shared memory with rows of `pitch` elements."""
    values = flat(source)
    for place, i in _pairs(out, pitch, row, column, values, thread):
        cute.make_tensor(place.align(8), cute.make_layout(2)).store(
            cute.make_tensor(values.iterator + i, cute.make_layout(2)).load()
        )


@cute.jit
def add(place: cute.Pointer, value: Float32):
    """Add to a number in global memory, atomically."""
    cute.arch.atomic_add(place, value, sem="relaxed", scope="gpu")


def add_rows(out, pitch, row, column, source, thread):
    """Add a float32 fragment to a matrix in global memory, atomically for each element."""
    values = flat(source)
    for place, i in _pairs(out, pitch, row, column, values, thread):
        add(place, values[i])
        add(place + 1, values[i + 1])
