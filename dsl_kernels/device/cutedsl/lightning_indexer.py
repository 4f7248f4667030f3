"""Leaf maths of the FP8 lightning indexer: how key tiles are dealt to CTAs, and windows of rows.

Lengths, tables and windows come as pointers. What a warp works out together, every lane calls.
"""

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


@cute.jit
def length_to_score(seq_lens: cute.Pointer, seq, query, next_n, skip_below):
    """Keys that one query has to score; 0 for a query past next_n and for a row that selection takes whole."""
    length = Int32(0)
    if query < next_n:
        length = seq_lens[seq * next_n + query]
        if length <= skip_below:
            length = Int32(0)
    return length


def quotient(count, size):
    """Of a count below 2**21, in floats: exact, in four instructions and a reciprocal."""
    return Int32((Float32(count) + 0.5) * cute.arch.rcp_approx(Float32(size)))


def shuffle_length(length, lane):
    """ptxas moves a comparison of the length, and the wait for it, in front of the other loads; it moves no shuffle."""
    return cute.arch.shuffle_sync(length, lane)


def window_begin(k_start, row, s):
    """First key of a row's window."""
    return cutlass.max(k_start[cutlass.min(row, s - 1)], 0)


@cute.jit
def window_end(k_start: cute.Pointer, k_end: cute.Pointer, row, s, skv, skip_below):
    """End of a row's window; 0 for a row past the last one and for a row that selection takes whole."""
    end = cutlass.min(k_end[cutlass.min(row, s - 1)], skv)
    if (row >= s) | (end - window_begin(k_start, row, s) <= skip_below):
        end = Int32(0)
    return end
