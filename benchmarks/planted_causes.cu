// Sixteen kernels, each slow for one known reason, and for ten of them the same work without that reason (`_fixed`).
//
// `planted_causes.py` says how each is launched and what a diagnosis has to call it. Sizes are for a Hopper GPU.

#define KERNEL extern "C" __global__ void

__device__ __forceinline__ float4 streamed(const float4* p) {
  float4 v;
  asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}

// --- spills: 96 live values a thread, in 32 registers and in as many as they need
template <int LIVE>
__device__ __forceinline__ void many_live(const float* in, float* out, int turns) {
  float held[LIVE];
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < LIVE; i++) held[i] = in[(thread + i * 977) & 0xffff];
  for (int turn = 0; turn < turns; turn++) {
#pragma unroll
    for (int i = 0; i < LIVE; i++) held[i] = held[i] * held[(i * 7 + 3) % LIVE] + 0.5f;
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < LIVE; i++) sum += held[i];
  out[thread] = sum;
}
KERNEL __launch_bounds__(1024, 2) spills(const float* in, float* out, int turns) { many_live<96>(in, out, turns); }
KERNEL __launch_bounds__(256, 2) spills_fixed(const float* in, float* out, int turns) { many_live<96>(in, out, turns); }

// --- bank conflicts: columns of a tile of 32 words a row, and of 33
template <int PITCH>
__device__ __forceinline__ void columns(float* out, int turns) {
  __shared__ float tile[32 * PITCH];
  const int lane = threadIdx.x & 31;
  for (int i = threadIdx.x; i < 32 * PITCH; i += blockDim.x) tile[i] = (float)i;
  __syncthreads();
  float sum[4] = {0, 0, 0, 0};
  for (int turn = 0; turn < turns; turn += 4)
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] += tile[lane * PITCH + ((turn + i + (threadIdx.x >> 5)) & 31)];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum[0] + sum[1] + sum[2] + sum[3];
}
KERNEL bank_conflicts(float* out, int turns) { columns<32>(out, turns); }
KERNEL bank_conflicts_fixed(float* out, int turns) { columns<33>(out, turns); }

// --- wasted sectors: one word of each 128-byte line, and the same number of words side by side
KERNEL wasted_sectors(const float* in, float* out, long long count) {
  const long long step = (long long)gridDim.x * blockDim.x;
  float sum = 0;
#pragma unroll 4
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) sum += in[i * 32];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
KERNEL wasted_sectors_fixed(const float* in, float* out, long long count) {
  const long long step = (long long)gridDim.x * blockDim.x;
  float sum = 0;
#pragma unroll 4
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) sum += in[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// --- atomics: every element onto one word, and one addition a block
KERNEL atomics(const float* in, float* total, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) atomicAdd(total, in[i]);
}
KERNEL atomics_fixed(const float* in, float* total, int count) {
  __shared__ float part[32];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) sum += in[i];
  for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.0f;
    for (int step = 16; step; step >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) atomicAdd(total, sum);
  }
}

// --- divergence: lanes take their turn one after another, and all at once
KERNEL divergence(float* out, int turns) {
  const int lane = threadIdx.x & 31;
  float x = lane, y = 1.0f + lane;
  for (int one = 0; one < 32; one++)
    if (lane == one)
      for (int turn = 0; turn < turns; turn++) x = x * y + 0.5f, y = y * 0.99f + x;
  out[blockIdx.x * blockDim.x + threadIdx.x] = x + y;
}
KERNEL divergence_fixed(float* out, int turns) {
  const int lane = threadIdx.x & 31;
  float x = lane, y = 1.0f + lane;
  for (int turn = 0; turn < turns; turn++) x = x * y + 0.5f, y = y * 0.99f + x;
  out[blockIdx.x * blockDim.x + threadIdx.x] = x + y;
}

// --- a sum of a large array: DRAM-bound with a whole grid, too small a grid with sixteen blocks
KERNEL sum_array(const float4* in, float* out, long long count) {
  const long long step = (long long)gridDim.x * blockDim.x;
  float sum = 0;
#pragma unroll 4
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    const float4 v = streamed(in + i);
    sum += v.x + v.y + v.z + v.w;
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// --- arithmetic of two pipes in eight independent chains: issue-bound with a full card, a tail with few blocks more
KERNEL mixed_arithmetic(unsigned* out, int turns) {
  float a[8];
  unsigned b[4];
#pragma unroll
  for (int i = 0; i < 8; i++) a[i] = threadIdx.x + i;
#pragma unroll
  for (int i = 0; i < 4; i++) b[i] = threadIdx.x * 3 + i;
  for (int turn = 0; turn < turns; turn++) {
#pragma unroll
    for (int i = 0; i < 8; i++) a[i] = a[i] * 1.0001f + 0.5f;
#pragma unroll
    for (int i = 0; i < 4; i++) b[i] = (b[i] ^ 0x5bd1e995u) & (b[(i + 1) & 3] | 0x1000193u);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) sum += a[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = __float_as_uint(sum) + b[0] + b[1] + b[2] + b[3];
}

// --- barrier: one warp works while the others of the block wait, and every warp works on its share
template <bool SHARED_OUT>
__device__ __forceinline__ void rounds(float* out, int turns) {
  __shared__ float value;
  const int warps = blockDim.x / 32;
  float x = threadIdx.x;
  for (int turn = 0; turn < turns; turn++) {
    const int steps = SHARED_OUT ? 128 / warps : (threadIdx.x < 32 ? 128 : 0);
    for (int i = 0; i < steps; i++) x = x * 1.0001f + 0.5f;
    if (threadIdx.x == 0) value = x;
    __syncthreads();
    x += value;
    __syncthreads();
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}
KERNEL barrier(float* out, int turns) { rounds<false>(out, turns); }
KERNEL barrier_fixed(float* out, int turns) { rounds<true>(out, turns); }

// --- dependency chain: one accumulator, and eight
template <int CHAINS>
__device__ __forceinline__ void chain(float* out, int turns) {
  float a[CHAINS];
#pragma unroll
  for (int i = 0; i < CHAINS; i++) a[i] = threadIdx.x + i;
  for (int turn = 0; turn < turns; turn += 16 * CHAINS)
#pragma unroll
    for (int k = 0; k < 16; k++)
#pragma unroll
      for (int i = 0; i < CHAINS; i++) a[i] = a[i] * 1.0001f + 0.5f;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < CHAINS; i++) sum += a[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
KERNEL dependency_chain(float* out, int turns) { chain<1>(out, turns); }
KERNEL dependency_chain_fixed(float* out, int turns) { chain<8>(out, turns); }

// --- L2-bound: every SM reads the same few megabytes over and over, past the L1
KERNEL l2_bound(const float4* in, float* out, int count, int turns) {
  float sum = 0;
  const int step = gridDim.x * blockDim.x;
  for (int turn = 0; turn < turns; turn++)
#pragma unroll 8
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
      const float4 v = streamed(in + i);
      sum += v.x + v.y + v.z + v.w;
    }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// --- gather below its ceiling: a warp fetches one random row after another, with nothing else in flight
KERNEL gather_below_ceiling(const float4* rows, const int* ids, float* out, int count, int chunks) {
  const int lane = threadIdx.x & 31, warps = gridDim.x * blockDim.x / 32;
  float sum = 0;
  for (int at = (blockIdx.x * blockDim.x + threadIdx.x) / 32; at < count; at += warps) {
    // The next row waits for this one, as a chain of pages would.
    const long long id = ids[at] + (sum == 12345.0f);
    for (int i = lane; i < chunks; i += 32) {
      const float4 v = streamed(rows + id * chunks + i);
      sum += v.x + v.y + v.z + v.w;
    }
  }
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// --- SFU-bound: exponentials in independent chains
KERNEL sfu_bound(float* out, int turns) {
  float a[8];
#pragma unroll
  for (int i = 0; i < 8; i++) a[i] = -0.001f * (threadIdx.x + i);
  for (int turn = 0; turn < turns; turn++)
#pragma unroll
    for (int i = 0; i < 8; i++) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(a[i]));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) sum += a[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
