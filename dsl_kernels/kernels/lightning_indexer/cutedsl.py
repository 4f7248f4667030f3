"""CuTe DSL's functions for the FP8 lightning indexer's leaves: how CTAs share key tiles."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32


def ceildiv(count, size):
    """The ceiling of count / size, both not negative. Unsigned division needs no correction of signs."""
    return Int32((Uint32(count) + Uint32(size - 1)) // Uint32(size))


def share_begin(total, part, parts):
    """First unit of share `part`, of `parts` shares of `total` units whose sizes differ by at most one."""
    return part * Int32(Uint32(total) // parts) + cutlass.min(part, Int32(Uint32(total) % parts))


def share_size(total, part, parts):
    """Units in share `part`."""
    return Int32(Uint32(total) // parts) + Int32(part < Int32(Uint32(total) % parts))


def quotient(count, size):
    """The floor of count / size, for a count below 2**21.

    Floats give it exactly, in four instructions and a reciprocal.
    """
    return Int32((Float32(count) + 0.5) * cute.arch.rcp_approx(Float32(size)))


def shuffle_length(length, lane):
    """A lane's own length.

    ptxas would move a comparison of the length, and the wait for it, before the other loads. It moves no
    shuffle.
    """
    return cute.arch.shuffle_sync(length, lane)
