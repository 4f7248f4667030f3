"""Copies by the copy engine into shared memory: boxes of tensor maps and spans of consecutive elements."""

import cutlass.cute as cute
from cutlass import Int64
from cutlass.cute.nvgpu import cpasync

MANY = 1 << 30
"""Extent of a tensor whose real extent the runtime knows: tensor maps are encoded there."""

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
