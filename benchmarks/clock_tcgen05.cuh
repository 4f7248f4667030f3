// Micro-benchmarks of Blackwell's tensor cores and tensor memory; `clock_rates.cu` includes it where BLACKWELL is defined.
//
// Nobody has run these on a B200 yet. tests/emulator/test_clock_tcgen05.py holds their results to what the products are.

#pragma once

#include "clock_device.cuh"

enum class Kind { F16, F8F6F4 };
// How products are issued: A from shared memory or tensor memory, or from shared memory by `.ws`.
enum class Form { SHARED, TENSOR, WS };

constexpr int COLUMNS = 512, PER_TURN = 16;
// Where A stands in tensor memory: behind two accumulators of 240 columns.
constexpr u32 A_COLUMN = 480;

// All threads, with what they did to tensor memory.
__device__ __forceinline__ void tensor_meets() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  __syncthreads();
  asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

__device__ __forceinline__ u32 allocate(u32* place) {
  if (threadIdx.x < 32) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;\n"
                 "tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::"r"(shared_address(place)),
                 "n"(COLUMNS)
                 : "memory");
  }
  tensor_meets();
  return *place;
}

__device__ __forceinline__ void deallocate(u32 columns) {
  tensor_meets();
  if (threadIdx.x < 32)
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(columns), "n"(COLUMNS) : "memory");
}

// One lane of a warp that is here as a whole.
__device__ __forceinline__ bool elected() {
  u32 one;
  asm volatile("{ .reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p; }" : "=r"(one));
  return one;
}

// A K-major tile with rows of 128 bytes in the 128-byte swizzle, as tcgen05 has it described.
__device__ __forceinline__ u64 tile_of(const void* tile) {
  return (u64)(shared_address(tile) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 46 | 2ull << 61;
}

template <Kind KIND, Form FORM>
__device__ __forceinline__ void product(u32 sums, u64 a, u32 a_tensor, u64 b, u32 shape, u32 adds) {
#define ISSUE(kind, ws, a_text, end)                                                                            \
  asm volatile("{ .reg .pred p;\nsetp.ne.u32 p, %5, 0;\ntcgen05.mma" ws ".cta_group::1.kind::" kind " [%0], " a_text \
               ", %3, %4, p" end "; }" ::"r"(sums), "l"(a), "r"(a_tensor), "l"(b), "r"(shape), "r"(adds)            \
               : "memory")
  if constexpr (KIND == Kind::F16 && FORM == Form::SHARED) ISSUE("f16", "", "%1", "");
  if constexpr (KIND == Kind::F16 && FORM == Form::TENSOR) ISSUE("f16", "", "[%2]", "");
  if constexpr (KIND == Kind::F16 && FORM == Form::WS) ISSUE("f16", ".ws", "%1", "");
  if constexpr (KIND == Kind::F8F6F4 && FORM == Form::SHARED) ISSUE("f8f6f4", "", "%1", "");
  if constexpr (KIND == Kind::F8F6F4 && FORM == Form::TENSOR) ISSUE("f8f6f4", "", "[%2]", "");
  if constexpr (KIND == Kind::F8F6F4 && FORM == Form::WS) ISSUE("f8f6f4", ".ws", "%1", "");
#undef ISSUE
}

__device__ __forceinline__ void commit(u64* barrier) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(
                   shared_address(barrier))
               : "memory");
}

#define EACH(c, x)                                                                                         \
  c(x[0]), c(x[1]), c(x[2]), c(x[3]), c(x[4]), c(x[5]), c(x[6]), c(x[7]), c(x[8]), c(x[9]), c(x[10]),      \
      c(x[11]), c(x[12]), c(x[13]), c(x[14]), c(x[15]), c(x[16]), c(x[17]), c(x[18]), c(x[19]),            \
      c(x[20]), c(x[21]), c(x[22]), c(x[23]), c(x[24]), c(x[25]), c(x[26]), c(x[27]), c(x[28]),            \
      c(x[29]), c(x[30]), c(x[31])
#define LIST                                                                                                         \
  "{%1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, "  \
  "%25, %26, %27, %28, %29, %30, %31, %32}"

__device__ __forceinline__ void store_columns(u32 at, const u32 (&x)[32]) {
#define IN(value) "r"(value)
  asm volatile("tcgen05.st.sync.aligned.32x32b.x32.b32 [%0], " LIST ";" ::"r"(at), EACH(IN, x) : "memory");
#undef IN
}

__device__ __forceinline__ void load_columns(u32 (&x)[32], u32 at) {
#define OUT(value) "=r"(value)
  asm volatile(
      "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
      "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
      : EACH(OUT, x)
      : "r"(at)
      : "memory");
#undef OUT
}

// Products by one thread over the four steps of 32 bytes of a tile again and again, 16 a turn: all on one accumulator, or
// in turn on two that are `apart` columns from each other. LONE: one product a turn, committed and waited for. `result`
// gets the first column of the first accumulator, so that the sums can be checked. Four warps.
template <Kind KIND, Form FORM, int ACCUMULATORS, bool LONE>
__global__ void __launch_bounds__(128) products(Span* spans, int turns, u32 shape, u32 apart, float* result) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ u64 barrier;
  __shared__ u32 place;
  if (threadIdx.x == 0) init_barrier(&barrier, 1), barriers_visible();
  fill_operands<KIND == Kind::F8F6F4>(shared, 192 << 10);
  const u32 tensor = allocate(&place), lanes = tensor + (threadIdx.x / 32 * 32 << 16);
  const u64 a = tile_of(shared + (128 << 10)), b = tile_of(shared);
  // 32 columns hold a row of A, 128 bytes, which are swizzled in shared memory.
  u32 x[32];
  const u32* row = (const u32*)(shared + (128 << 10) + threadIdx.x * 128);
#pragma unroll
  for (u32 i = 0; i < 32; i++) x[i] = row[(i / 4 ^ threadIdx.x % 8) * 4 + i % 4];
  store_columns(lanes + A_COLUMN, x);
  // Products of 64 rows leave some lanes of `result` as they are here.
  const u32 none[32] = {};
  store_columns(lanes, none);
  asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
  tensor_meets();
  const u64 ns = nanoseconds();
  if (threadIdx.x < 32) {
    const bool issues = elected();
    if (issues) {
      for (u32 i = 0; i < ACCUMULATORS; i++)
        product<KIND, FORM>(tensor + i * apart, a, tensor + A_COLUMN, b, shape, 0);
      commit(&barrier);
    }
    __syncwarp();
    wait(&barrier, 0);
    const u64 begin = clocks();
    if (LONE) {
#pragma unroll 1
      for (int turn = 0; turn < turns; turn++) {
        if (issues) {
          product<KIND, FORM>(tensor, a, tensor + A_COLUMN, b, shape, 1);
          commit(&barrier);
        }
        __syncwarp();
        wait(&barrier, turn + 1 & 1);
      }
    } else {
      if (issues) {
#pragma unroll 1
        for (int turn = 0; turn < turns; turn++) {
#pragma unroll
          for (int i = 0; i < PER_TURN; i++) {
            const u32 step = i / ACCUMULATORS % 4;
            product<KIND, FORM>(tensor + i % ACCUMULATORS * apart, a + step * 2, tensor + A_COLUMN + step * 8,
                                b + step * 2, shape, 1);
          }
        }
        commit(&barrier);
      }
      __syncwarp();
      wait(&barrier, 1);
    }
    tell(spans, begin, clocks(), nanoseconds() - ns);
  }
  tensor_meets();
  float first;
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];\ntcgen05.wait::ld.sync.aligned;"
               : "=f"(first)
               : "r"(lanes)
               : "memory");
  if (blockIdx.x == 0) result[threadIdx.x] = first;
  deallocate(tensor);
}

enum class Move { LOAD, STORE, ONE };

// A turn goes over all columns of a warp's lanes, 32 at a time and two such on their way: LOAD or STORE. ONE: 16 times
// one column, each waited for. `sums` gets what each thread saw in the first of its columns, added up. Blocks of four warps
// or more; of STORE four, as warps with the same lanes would write over each other.
template <Move MOVE>
__global__ void __launch_bounds__(512) columns(Span* spans, int turns, u32* sums) {
  __shared__ u32 place;
  const u32 tensor = allocate(&place), lanes = tensor + (threadIdx.x / 32 % 4 * 32 << 16);
  u32 x[32], sum = 0;
#pragma unroll
  for (u32 i = 0; i < 32; i++) x[i] = threadIdx.x % 128 + i;
  if (threadIdx.x < 128) {
    for (u32 at = 0; at < COLUMNS; at += 32) store_columns(lanes + at, x);
    asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
  }
  tensor_meets();
  const u64 ns = nanoseconds(), begin = clocks();
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
#pragma unroll
    for (u32 at = 0; at < COLUMNS; at += MOVE == Move::ONE ? 32 : 64) {
      if (MOVE == Move::STORE) {
        store_columns(lanes + at, x);
        store_columns(lanes + at + 32, x);
        asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory");
      } else if (MOVE == Move::LOAD) {
        u32 y[32];
        load_columns(x, lanes + at);
        load_columns(y, lanes + at + 32);
        asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
        sum += x[0] + y[0];
        // Never so: all registers have a use, or ptxas would give one load's to the next before they are read.
        if (x[0] == 0x7fc12345u)
          for (int i = 0; i < 32; i++) sums[i] = x[i], sums[32 + i] = y[i];
      } else {
        u32 one;
        asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];\ntcgen05.wait::ld.sync.aligned;"
                     : "=r"(one)
                     : "r"(lanes + at)
                     : "memory");
        sum += one;
      }
    }
  }
  tell(spans, begin, clocks(), nanoseconds() - ns);
  if (MOVE == Move::STORE)
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%0}, [%1];\ntcgen05.wait::ld.sync.aligned;"
                 : "=r"(sum)
                 : "r"(lanes)
                 : "memory");
  if (blockIdx.x == 0) sums[threadIdx.x] = sum;
  deallocate(tensor);
}
