"""Meeting of CTAs through global memory."""

import cutlass.cute as cute
from cutlass import Int32


@cute.jit
def count_in(flag: cute.Pointer, counter: cute.Pointer, total: Int32, thread: Int32):
    """Leave in `flag` how many came before; the last of `total` sees what all of them wrote and resets the counter."""
    if thread == 0:
        before = cute.arch.atomic_add(counter, Int32(1), sem="acq_rel", scope="gpu")
        flag.store(before)
        if before == total - 1:
            counter.store(Int32(0))
