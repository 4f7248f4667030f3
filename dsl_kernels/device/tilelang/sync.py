"""Barriers with a memory clobber, which TileLang's own lack: no ordinary access moves across these."""

SOURCE = r"""
namespace sync {
__device__ __forceinline__ void take_turn(int barrier, int threads) { asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory"); }
__device__ __forceinline__ void pass_turn(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory"); }
__device__ __forceinline__ void meet_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
}  // namespace sync
"""  # noqa: E501
