"""Copies by the copy engine into shared memory: boxes of tensor maps, rows of them by number, spans of consecutive elements."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu import cpasync

MANY = 1 << 30
"""Extent of a tensor whose real extent the runtime knows: tensor maps are encoded there."""

QUAD = 4
"""Rows of one copy by number."""

EVICT_FIRST = 0x12F0000000000000
"""Cache policy of a copy: the line leaves the L2 first."""


def box_map(pointer, dtype, box, swizzled):
    """Tensor-copy atom and coordinates for boxes of a row-major tensor whose rows are as long as the box's."""
    shape = (MANY, *box[1:])
    source = cute.make_tensor(cute.recast_ptr(pointer, dtype=dtype), _row_major(shape))
    return cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), source, _box_layout(box, swizzled), box
    )


def load_box(atom, coords, at, box, to, barrier, evict_first=False):
    """Copy the box at coordinates `at` (outermost first) to shared memory at `to`; completes on `barrier` by bytes.

    The atom elects a lane by itself: a whole warp calls this. Rows of 128 bytes carry the 128-byte swizzle that the
    tensor cores read; vectors lie as they are.
    """
    rank = len(at)
    layout = _box_layout(box, rank > 1)
    if rank > 1:
        slot = cute.make_tensor(cute.recast_ptr(to, layout.inner), layout.outer)
    else:
        slot = cute.make_tensor(to, layout)
    source = cute.local_tile(cute.domain_offset(at, coords), box, (0,) * rank)
    slot, source = cute.group_modes(slot, 0, rank), cute.group_modes(source, 0, rank)
    slot, source = cpasync.tma_partition(atom, 0, cute.make_layout(1), slot, source)
    policy = Int64(EVICT_FIRST) if evict_first else None
    cute.copy(atom, source, slot, tma_bar_ptr=barrier, cache_policy=policy)


def row_map(pointer, dtype, columns, panel):
    """Tensor-copy atom and coordinates for rows of `columns` elements by number: four rows by one swizzled panel a copy."""
    nominal = cute.make_layout((MANY, columns), stride=(columns, 1))
    numbers = cute.make_tensor(
        cute.recast_ptr(pointer, dtype=Int32), cute.make_layout((MANY, columns), stride=(1, 0))
    )
    return cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensor2DGather4G2SOp(),
        cute.make_tensor(cute.recast_ptr(pointer, dtype=dtype), nominal),
        _box_layout((QUAD, panel), True),
        (QUAD, panel),
        gmem_coord_tensor=numbers,
    )


@cute.jit
def load_rows(
    atom: cute.CopyAtom, coords: cute.Tensor, rows: cute.Tensor, column: Int32, columns: cutlass.Constexpr, to: cute.Pointer,
    barrier: cute.Pointer,
):  # fmt: skip
    """Copy `columns` elements from `column` on of the rows that `rows` numbers, alike in all lanes; a whole warp calls it.

    They lie in panels of 128 bytes a row, swizzled. A number outside the tensor gives zeros.
    """
    count, width = cutlass.const_expr(cute.size(rows)), cute.size(coords, mode=[1])
    panel = cutlass.const_expr(128 * 8 // to.dtype.width)
    numbers = cute.make_tensor(rows.iterator, cute.make_layout((count, width), stride=(1, 0)))
    source = cute.zipped_divide(cute.local_tile(coords, (count, width), (0, 0)), (QUAD, panel))
    chosen = cute.zipped_divide(numbers, (QUAD, panel))
    pointer = cute.recast_ptr(to, cute.make_swizzle(3, 4, 3), to.dtype)
    for at in cutlass.range_constexpr(columns // panel):
        for quad in cutlass.range_constexpr(count // QUAD):
            target = cute.make_tensor(pointer + (at * count + QUAD * quad) * panel, _row_major((QUAD, panel)))
            slot, data, index = cpasync.tma_partition(
                atom, 0, cute.make_layout(1), cute.group_modes(target, 0, 2), [source, chosen]
            )
            place = (quad, column // panel + at)
            cute.copy(atom, [data[None, place], index[None, place]], slot, tma_bar_ptr=barrier)


def load_span(operand, dtype, row, pitch, column, count, to, barrier):
    """Copy `count` elements from `column` of row `row` of rows of `pitch`, 16-byte aligned on both sides; one lane issues it."""
    source = cute.recast_ptr(operand, dtype=dtype) + (Int64(row) * pitch + column)
    atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), dtype, num_bits_per_copy=dtype.width * count)
    layout = cute.make_layout(count)
    cute.copy(atom, cute.make_tensor(source, layout), cute.make_tensor(to, layout), mbar_ptr=barrier)


def _box_layout(box, swizzled):
    if swizzled:
        return cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, _row_major(box))
    return _row_major(box)


def _row_major(shape):
    return cute.make_ordered_layout(tuple(shape), order=tuple(reversed(range(len(shape)))))
