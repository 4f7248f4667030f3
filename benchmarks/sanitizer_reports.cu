// What compute-sanitizer says of patterns that attention with 64 heads on M uses and that PTX allows.
//
//     nvcc -arch=sm_90a -o reports benchmarks/sanitizer_reports.cu
//     compute-sanitizer --tool racecheck ./reports every    # each lane arrives: nothing reported
//     compute-sanitizer --tool racecheck ./reports one      # one lane arrives behind bar.warp.sync: a hazard
//     compute-sanitizer --tool synccheck ./reports meet     # two roles at one named barrier: divergent threads
//     compute-sanitizer --tool synccheck ./reports meet-unaligned    # the same with barrier.sync
//
// Each run prints what the kernel left in memory: the patterns do what they should.

#include <cstdio>
#include <cstring>
#include <cuda_runtime.h>

constexpr int ROLE = 128;

__device__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

// The first warp writes, all its lanes meet, and either all or one of them arrive; the second waits and reads.
__global__ void hand_over(int* out, bool every_lane) {
  __shared__ int data[32];
  __shared__ unsigned long long barrier;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(every_lane ? 32 : 1)
                 : "memory");
  __syncthreads();
  if (threadIdx.x < 32) {
    data[lane] = lane;
    __syncwarp();
    if (every_lane || lane == 0)
      asm volatile("{ .reg .b64 s; mbarrier.arrive.shared::cta.b64 s, [%0]; }" ::"r"(shared_address(&barrier))
                   : "memory");
  } else {
    unsigned done = 0;
    while (!done)
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done) : "r"(shared_address(&barrier)) : "memory");
    out[lane] = data[31 - lane];
  }
}

template <bool ALIGNED> __device__ void meet_here() {
  if (ALIGNED) asm volatile("bar.sync 1, 256;" ::: "memory");
  else asm volatile("barrier.sync 1, 256;" ::: "memory");
}

// Two of four roles meet, each from its own place of the program, and read what the other wrote.
template <bool ALIGNED> __global__ void meet(int* out) {
  __shared__ int data[2 * ROLE];
  const int at = threadIdx.x;
  if (at < ROLE) {
    data[at] = at;
    meet_here<ALIGNED>();
    out[at] = data[at + ROLE];
  } else if (at < 2 * ROLE) {
    data[at] = -at;
    meet_here<ALIGNED>();
    out[at] = data[at - ROLE];
  }
}

int main(int count, char** arguments) {
  const char* pattern = count > 1 ? arguments[1] : "";
  int* out;
  cudaMallocManaged(&out, 2 * ROLE * sizeof(int));
  if (!strcmp(pattern, "every")) hand_over<<<1, 64>>>(out, true);
  else if (!strcmp(pattern, "one")) hand_over<<<1, 64>>>(out, false);
  else if (!strcmp(pattern, "meet")) meet<true><<<1, 4 * ROLE>>>(out);
  else if (!strcmp(pattern, "meet-unaligned")) meet<false><<<1, 4 * ROLE>>>(out);
  else return printf("say every, one, meet or meet-unaligned\n"), 2;
  const cudaError_t status = cudaDeviceSynchronize();
  printf("%s: %s, out[0] = %d, out[1] = %d\n", pattern, cudaGetErrorString(status), out[0], out[1]);
  return status != cudaSuccess;
}
