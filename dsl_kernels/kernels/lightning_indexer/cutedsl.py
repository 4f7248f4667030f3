"""Functions of the FP8 lightning indexer's leaves: how key tiles are dealt to CTAs."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Uint32


def ceildiv(count, size):
    """Both positive or zero; unsigned, which costs no sign fix-up."""
    return Int32((Uint32(count) + Uint32(size - 1)) // Uint32(size))


def share_begin(total, part, parts):
    """First unit of share `part` when `total` units are dealt to `parts` shares, sizes within one."""
    return part * Int32(Uint32(total) // parts) + cutlass.min(part, Int32(Uint32(total) % parts))


def share_size(total, part, parts):
    """Units in share `part`."""
    return Int32(Uint32(total) // parts) + Int32(part < Int32(Uint32(total) % parts))


def quotient(count, size):
    """Of a count below 2**21, in floats: exact, in four instructions and a reciprocal."""
    return Int32((Float32(count) + 0.5) * cute.arch.rcp_approx(Float32(size)))


def shuffle_length(length, lane):
    """ptxas moves a comparison of the length, and the wait for it, in front of the other loads; it moves no shuffle."""
    return cute.arch.shuffle_sync(length, lane)
