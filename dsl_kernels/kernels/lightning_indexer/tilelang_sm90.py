"""Functions for the indexer's leaves on wgmma."""

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
    """The row's address by itself: with the column in it, all of it would be found in 64 bits, for each product anew."""
    *row, column = place.indices
    return T.call_extern(
        "handle", "dk::store_where", T.address_of(place.buffer[(*row, 0)]), column, value, wanted
    )
