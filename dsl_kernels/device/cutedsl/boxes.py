"""Boxes of tensor maps of any rank: loaded, multicast to a cluster, or stored; and barriers of a cluster.

Boxes and coordinates are given outermost first, but tensors are built innermost first, as CuTe DSL's tensor
map keeps the tensor's order of those axes along which a box has one element. The axes along which it has more
are the inner ones.
"""

import cutlass.cute as cute
from cutlass import Int16
from cutlass.cute.nvgpu import cpasync, tcgen05

from .bulk import MANY

APART = 64
"""Padding between the rows of a nominal tensor, so that CuTe does not merge its axes into one."""


def strided_map(pointer, dtype, box, swizzled):
    """Tensor-copy atom and coordinates for boxes of a tensor with any strides."""
    return _box_map(cpasync.CopyBulkTensorTileG2SOp(), pointer, dtype, box, swizzled)


def pair_map(pointer, dtype, box, swizzled):
    """Tensor-copy atom and coordinates for boxes whose bytes count at the first of two CTAs' barrier."""
    return _box_map(cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.TWO), pointer, dtype, box, swizzled)


def multicast_map(pointer, dtype, box, swizzled):
    """Tensor-copy atom and coordinates for boxes that every CTA of a cluster receives."""
    return _box_map(cpasync.CopyBulkTensorTileG2SMulticastOp(), pointer, dtype, box, swizzled)


def store_map(pointer, dtype, box, swizzled):
    """Tensor-copy atom and coordinates for boxes that are stored to global memory."""
    return _box_map(cpasync.CopyBulkTensorTileS2GOp(), pointer, dtype, box, swizzled)


def load_box(atom, coords, at, box, to, barrier):
    """Copy the box at coordinates `at` to shared memory at `to`, swizzled; completes on `barrier` by bytes.

    The atom elects a lane itself, as the ones below do: a whole warp calls this.
    """
    tile, place = _parts(atom, coords, at, box, to)
    cute.copy(atom, place, tile, tma_bar_ptr=barrier)


def multicast_box(atom, coords, at, box, to, barrier, ctas):
    """Copy the box to the same place in each of `ctas` CTAs; completes on the `barrier` of each."""
    tile, place = _parts(atom, coords, at, box, to)
    cute.copy(atom, place, tile, tma_bar_ptr=barrier, mcast_mask=Int16(2**ctas - 1))


def store_box(atom, coords, at, box, source):
    """Store the box from shared memory at `source`; the warp that calls this commits and awaits the group."""
    cute.copy(atom, *_parts(atom, coords, at, box, source))


def arrive_in_cluster(barrier, ctas):
    """Arrive at a barrier of every CTA of the cluster."""
    for peer in range(ctas):
        cute.arch.mbarrier_arrive(barrier, peer)


def _box_map(op, pointer, dtype, box, swizzled):
    """Atom and coordinates over a nominal tensor; the runtime encodes the real extents and strides."""
    inner, shape, strides = tuple(reversed(box)), [], [1]
    for extent in inner:
        shape.append(max(extent, 2))
        strides.append(strides[-1] * shape[-1] + APART)
    nominal = cute.make_layout((*shape[:-1], MANY), stride=tuple(strides[:-1]))
    tensor = cute.make_tensor(cute.recast_ptr(pointer, dtype=dtype), nominal)
    return cpasync.make_tiled_tma_atom(op, tensor, _tile_layout(inner, swizzled), inner)


def _tile_layout(inner, swizzled):
    """A box in shared memory, innermost axis first."""
    rows = cute.make_layout(inner)
    return cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, rows) if swizzled else rows


def _parts(atom, coords, at, box, pointer):
    """(shared tile, place in the tensor) of a box, as a copy takes them."""
    rank, inner = len(at), tuple(reversed(box))
    layout = _tile_layout(inner, True)
    tile = cute.make_tensor(cute.recast_ptr(pointer, layout.inner), layout.outer)
    place = cute.local_tile(cute.domain_offset(tuple(reversed(at)), coords), inner, (0,) * rank)
    return cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, rank), cute.group_modes(place, 0, rank)
    )
