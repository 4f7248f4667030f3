"""CuTe DSL's functions for the indexer's leaves on wgmma."""

import cutlass.cute as cute
from cutlass import Int32


def store_where(place, value, wanted):
    """Store a float where a condition holds, without a branch.

    In a branch, each product would compute the address anew.
    """
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.b32 p, {$r2}, 0; @p st.global.f32 [{$r0}], {$r1}; }",
        read_only_args=[place, value, Int32(wanted)],
    )
