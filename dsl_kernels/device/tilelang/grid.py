"""CTAs wait for one another, through global memory or within a cluster."""

import tilelang.language as T

# TileLang's own cluster barriers have no memory clobber; no ordinary access moves across these.
SOURCE = r"""
namespace dk {
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
}  // namespace dk
"""  # noqa: E501


@T.macro
def count_in(counter, index, thread):
    """Count this CTA in; its threads have met after their writes, which the count publishes."""
    # TileLang drops the memory order of an addition without `return_prev`.
    before = T.alloc_var("int32", init=0)
    if thread == 0:
        before = T.atomic_add(counter[index], 1, memory_order="release", return_prev=True)  # noqa: F841


@T.macro
def await_count(counter, index, total, thread):
    """Wait until `total` CTAs are counted in, and see their writes."""
    seen = T.alloc_var("int32", init=0)
    if thread == 0:
        while seen < total:
            seen = T.atomic_load(counter[index], memory_order="acquire")


@T.macro
def count_out(counter, index, total, thread):
    """Count this CTA out; the last of `total` resets the counter."""
    before = T.alloc_var("int32", init=0)
    if thread == 0:
        before = T.atomic_add(counter[index], 1, memory_order="relaxed", return_prev=True)
        if before == total * 2 - 1:
            counter[index] = 0


@T.macro
def take_ticket(flag, counter, index, total, thread):
    """Write into `flag` how many came before; the last of `total` sees all writes and resets the counter."""
    if thread == 0:
        flag[0] = T.atomic_add(counter[index], 1, memory_order="acq_rel", return_prev=True)
        if flag[0] == total - 1:
            counter[index] = 0
