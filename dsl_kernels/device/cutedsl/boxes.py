"""Boxes of tensor maps that the copy engine stores, or loads into every CTA of a cluster, and barriers of all of them."""

import cutlass.cute as cute
from cutlass import Int16
from cutlass.cute.nvgpu import cpasync

from .bulk import MANY

APART = 64
"""Elements between what the strides of a nominal tensor would hold: its dimensions must not be merged into one."""


def nominal(pointer, dtype, box):
    """A tensor of the box's rank; the runtime encodes tensor maps with the real extents and strides."""
    shape, stride, strides = [box[-1]], 1, [1]
    for extent in reversed(box[:-1]):
        stride = stride * shape[0] + APART
        shape.insert(0, max(extent, 2))
        strides.insert(0, stride)
    shape[0] = MANY
    return cute.make_tensor(
        cute.recast_ptr(pointer, dtype=dtype), cute.make_layout(tuple(shape), stride=tuple(strides))
    )


def tile_layout(box, swizzled):
    """A box in shared memory, row-major."""
    rows = cute.make_ordered_layout(tuple(box), order=tuple(reversed(range(len(box)))))
    return cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, rows) if swizzled else rows


def store_map(pointer, dtype, box, swizzled):
    """Tensor-copy atom and coordinates for boxes that are stored to global memory."""
    op, layout = cpasync.CopyBulkTensorTileS2GOp(), tile_layout(box, swizzled)
    return cpasync.make_tiled_tma_atom(op, nominal(pointer, dtype, box), layout, box)


def multicast_map(pointer, dtype, box, swizzled):
    """Tensor-copy atom and coordinates for boxes that every CTA of a cluster receives."""
    op, layout = cpasync.CopyBulkTensorTileG2SMulticastOp(), tile_layout(box, swizzled)
    return cpasync.make_tiled_tma_atom(op, nominal(pointer, dtype, box), layout, box)


def multicast_box(atom, coords, at, box, to, barrier, ctas):
    """Copy the box at coordinates `at` (outermost first) to shared memory at `to`, in each of `ctas` CTAs.

    It completes by bytes on each CTA's `barrier`. The atom elects a lane by itself: a whole warp calls this.
    """
    tile, place = parts(atom, coords, at, box, to)
    cute.copy(atom, place, tile, tma_bar_ptr=barrier, mcast_mask=Int16(2**ctas - 1))


def arrive_in_cluster(barrier, ctas):
    """Arrive at a barrier of every CTA of the cluster."""
    for peer in range(ctas):
        cute.arch.mbarrier_arrive(barrier, peer)


def store_box(atom, coords, at, box, source):
    """Store the box at coordinates `at` (outermost first) from shared memory at `source`, with the 128-byte swizzle.

    The atom elects a lane by itself: a whole warp calls this, and commits and awaits the group.
    """
    cute.copy(atom, *parts(atom, coords, at, box, source))


def parts(atom, coords, at, box, pointer):
    """(shared tile, place in the tensor) of a box, as a copy takes them."""
    rank, layout = len(at), tile_layout(box, True)
    tile = cute.make_tensor(cute.recast_ptr(pointer, layout.inner), layout.outer)
    place = cute.local_tile(cute.domain_offset(at, coords), box, (0,) * rank)
    return cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, rank), cute.group_modes(place, 0, rank)
    )
