// What the kernels of the micro-benchmarks share: clocks, barriers and operands of products.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

using u32 = uint32_t;
using u64 = uint64_t;

// Of a warp: the SM's clocks in front of and after what is timed, and the nanoseconds between.
struct Span {
  u64 begin, end, ns;
};

__device__ __forceinline__ u64 clocks() {
  u64 value;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(value)::"memory");
  return value;
}

__device__ __forceinline__ u64 nanoseconds() {
  u64 value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value)::"memory");
  return value;
}

// Block 0 tells its spans.
__device__ __forceinline__ void tell(Span* spans, u64 begin, u64 end, u64 ns) {
  if (blockIdx.x == 0 && threadIdx.x % 32 == 0) spans[threadIdx.x / 32] = {begin, end, ns};
}

__device__ __forceinline__ u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

__device__ __forceinline__ u32 hash(u32 x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

__device__ __forceinline__ void init_barrier(u64* barrier, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void barriers_visible() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
}

__device__ __forceinline__ void arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void wait(u64* barrier, u32 parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(shared_address(barrier)), "r"(parity)
      : "memory");
}

__device__ __forceinline__ void cluster_meets() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Values of a normal distribution, as kernels meet them: power depends on the data.
template <bool FP8>
__device__ void fill_operands(char* shared, u32 bytes) {
  for (u32 i = threadIdx.x; i < bytes / 2; i += blockDim.x) {
    float pair[2];
    for (u32 j = 0; j < 2; j++) {
      const u32 h = hash(2 * i + j + 0x9e3779b9u * blockIdx.x);
      pair[j] = ((float)((h & 255) + (h >> 8 & 255) + (h >> 16 & 255) + (h >> 24)) - 510.0f) / 148.0f;
    }
    if (FP8) {
      ((uint16_t*)shared)[i] = __nv_cvt_float2_to_fp8x2({pair[0], pair[1]}, __NV_SATFINITE, __NV_E4M3);
    } else {
      ((__nv_bfloat16*)shared)[i] = __float2bfloat16(pair[0]);
    }
  }
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
}
