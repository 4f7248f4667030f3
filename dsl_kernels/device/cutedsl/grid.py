"""Meeting of CTAs through global memory."""

import cutlass.cute as cute
from cutlass import Int32


@cute.jit
def count_in(counter: cute.Pointer, thread: Int32):
    """Count this CTA, behind what its threads wrote before they met."""
    if thread == 0:
        cute.arch.atomic_add(counter, Int32(1), sem="release", scope="gpu")


@cute.jit
def await_count(counter: cute.Pointer, total: Int32, thread: Int32):
    """Until `total` CTAs are counted, whose writes are then seen."""
    if thread == 0:
        seen = Int32(0)
        while seen < total:
            seen = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")


@cute.jit
def count_out(counter: cute.Pointer, total: Int32, thread: Int32):
    """Count this CTA once more; behind the last of `total` the counter is zero again."""
    if thread == 0:
        before = cute.arch.atomic_add(counter, Int32(1), sem="relaxed", scope="gpu")
        if before == total * 2 - 1:
            counter.store(Int32(0))


@cute.jit
def take_ticket(flag: cute.Pointer, counter: cute.Pointer, total: Int32, thread: Int32):
    """Leave in `flag` how many came before; the last of `total` sees what all of them wrote and resets the counter."""
    if thread == 0:
        before = cute.arch.atomic_add(counter, Int32(1), sem="acq_rel", scope="gpu")
        flag.store(before)
        if before == total - 1:
            counter.store(Int32(0))
