"""Leaf maths of a selection whose first digits scoring has counted."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from .topk_selector import BINS, scan


@cute.jit
def fetch_counts(mine, counts, row, thread):
    """Each thread takes its bins of what scoring has counted of a row; the counts are zeros from then on."""
    share = cutlass.const_expr(cute.size(mine))
    place = (counts + (row.to(Int64) * BINS + thread * share)).align(4 * share)
    own = cute.make_tensor(place, cute.make_layout(share))
    cute.autovec_copy(own, mine)
    zero = cute.make_rmem_tensor(cute.make_layout(share), Int32)
    zero.fill(0)
    cute.autovec_copy(zero, own)


@cute.jit
def sum_taken(mine, sums, warp, lane):
    """Each thread's warp's sum up to and with its bins; `sums` get the warps' totals."""
    own = mine[0]
    for i in cutlass.range_constexpr(1, cute.size(mine)):
        own = own + mine[i]
    through = scan(own)
    if lane == 31:
        sums[warp] = through
    return through
