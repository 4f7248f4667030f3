"""Meeting of CTAs through global memory."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32


@cute.jit
def take_ticket(
    flag: cute.Pointer, counter: cute.Pointer, total: Int32, barrier: cutlass.Constexpr, threads: cutlass.Constexpr, thread: Int32
):
    """True in the last of `total` arrivals, which sees what all of them wrote and resets the counter."""
    cute.arch.barrier(barrier_id=barrier, number_of_threads=threads)
    if thread == 0:
        before = cute.arch.atomic_add(counter, Int32(1), sem="acq_rel", scope="gpu")
        flag.store(before)
        if before == total - 1:
            counter.store(Int32(0))
    cute.arch.barrier(barrier_id=barrier, number_of_threads=threads)
    return flag.load() == total - 1
