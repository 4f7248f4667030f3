"""CTAs wait for one another through global memory."""

import cutlass.cute as cute
from cutlass import Int32


@cute.jit
def count_in(counter: cute.Pointer, thread: Int32):
    """Count this CTA in; its threads have met after their writes, which the count publishes."""
    if thread == 0:
        cute.arch.atomic_add(counter, Int32(1), sem="release", scope="gpu")


@cute.jit
def await_count(counter: cute.Pointer, total: Int32, thread: Int32):
    """Wait until `total` CTAs are counted in, and see their writes."""
    if thread == 0:
        seen = Int32(0)
        while seen < total:
            seen = cute.arch.load(counter, Int32, sem="acquire", scope="gpu")


@cute.jit
def count_out(counter: cute.Pointer, total: Int32, thread: Int32):
    """Count this CTA out; the last of `total` resets the counter."""
    if thread == 0:
        before = cute.arch.atomic_add(counter, Int32(1), sem="relaxed", scope="gpu")
        if before == total * 2 - 1:
            counter.store(Int32(0))


@cute.jit
def take_ticket(flag: cute.Pointer, counter: cute.Pointer, total: Int32, thread: Int32):
    """Write into `flag` how many came before; the last of `total` sees all writes and resets the counter."""
    if thread == 0:
        before = cute.arch.atomic_add(counter, Int32(1), sem="acq_rel", scope="gpu")
        flag.store(before)
        if before == total - 1:
            counter.store(Int32(0))
