"""TileLang's functions for the indexer's leaves on wgmma."""

import tilelang.language as T

from ...device.tilelang import warps

SOURCE = (
    warps.SOURCE
    + r"""
namespace dk {
__device__ __forceinline__ void store_where(float* row, int column, float value, bool wanted) {
  if (wanted) row[column] = value;
}
}  // namespace dk
"""
)


def store_where(place, value, wanted):
    """Store a float where a condition holds.

    The row's address is an argument of its own: with the column in it, each product would compute all of it
    anew, in 64 bits.
    """
    *row, column = place.indices
    return T.call_extern(
        "handle", "dk::store_where", T.address_of(place.buffer[(*row, 0)]), column, value, wanted
    )
