"""Meeting of CTAs through global memory."""

import tilelang.language as T


@T.macro
def take_ticket(last: T.Ref, flag, counter, index, total, barrier, threads, thread):
    """True in the last of `total` arrivals, which sees what all of them wrote and resets the counter."""
    T.sync_threads(barrier, threads)
    if thread == 0:
        flag[0] = T.atomic_add(counter[index], 1, memory_order="acq_rel", return_prev=True)
        if flag[0] == total - 1:
            counter[index] = 0
    T.sync_threads(barrier, threads)
    last = flag[0] == total - 1  # noqa: F841
