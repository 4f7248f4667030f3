"""Meeting of CTAs: through global memory, and within a cluster."""

import tilelang.language as T

# TileLang's own cluster barriers have no memory clobber; these keep ordinary accesses on their side.
SOURCE = r"""
namespace dk {
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed;"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
}  // namespace dk
"""


@T.macro
def count_in(flag, counter, index, total, thread):
    """Leave in `flag` how many came before; the last of `total` sees what all of them wrote and resets the counter."""
    if thread == 0:
        flag[0] = T.atomic_add(counter[index], 1, memory_order="acq_rel", return_prev=True)
        if flag[0] == total - 1:
            counter[index] = 0
