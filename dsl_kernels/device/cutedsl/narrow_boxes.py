"""Boxes of tensor maps with rows of 64 bytes, in the 64-byte swizzle: operands of 4-bit products.

Boxes and coordinates are given outermost first, as in `boxes`, of which this is the narrow half.
"""

import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from .boxes import APART
from .bulk import MANY


def box_map(pointer, dtype, box):
    """Tensor-copy atom and coordinates over a nominal tensor; the runtime encodes the real one."""
    inner, shape, strides = tuple(reversed(box)), [], [1]
    for extent in inner:
        shape.append(max(extent, 2))
        strides.append(strides[-1] * shape[-1] + APART)
    nominal = cute.make_layout((*shape[:-1], MANY), stride=tuple(strides[:-1]))
    tensor = cute.make_tensor(cute.recast_ptr(pointer, dtype=dtype), nominal)
    return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), tensor, _tile(inner), inner)


def load_box(atom, coords, at, box, to, barrier):
    """Copy the box at coordinates `at` to shared memory at `to`; completes on `barrier` by bytes.

    The atom elects a lane by itself: a whole warp calls this.
    """
    rank, inner = len(at), tuple(reversed(box))
    layout = _tile(inner)
    tile = cute.make_tensor(cute.recast_ptr(to, layout.inner), layout.outer)
    place = cute.local_tile(cute.domain_offset(tuple(reversed(at)), coords), inner, (0,) * rank)
    tile, place = cute.group_modes(tile, 0, rank), cute.group_modes(place, 0, rank)
    tile, place = cpasync.tma_partition(atom, 0, cute.make_layout(1), tile, place)
    cute.copy(atom, place, tile, tma_bar_ptr=barrier)


def _tile(inner):
    """A box in shared memory, innermost axis first: of each 512 bytes the swizzle exchanges pieces of 16."""
    return cute.make_composed_layout(cute.make_swizzle(2, 4, 3), 0, cute.make_layout(inner))
