// Micro-benchmarks of one SM and of the whole GPU: what an instruction, a hand-over, a fetch and a launch take.
//
//   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -o clock_rates clock_rates.cu
//   nvcc -O3 -std=c++17 -gencode=arch=compute_100a,code=sm_100a -DBLACKWELL -o clock_rates clock_rates.cu
//   ./clock_rates --list                # the names of the items
//   ./clock_rates [--quick] [ITEM ...]  # a line of JSON for each figure; all items by default
//
// `clock_rates.py` builds and runs it, and says what each figure is. An item that fails prints its error and ends the
// program, because a fault leaves no usable context behind: whoever runs it starts it again with the items left.

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "clock_device.cuh"

constexpr int SHARED = 200 << 10;
constexpr u64 REGION = 64ull << 20;  // what the fetches of one SM choose their addresses from
constexpr u64 LARGE = 4ull << 30;    // read by all SMs: far more than L2 holds

// ---------------------------------------------------------------- products

#ifdef BLACKWELL
#include "clock_tcgen05.cuh"
#else

// A K-major tile with rows of 128 bytes in the 128-byte swizzle.
__device__ __forceinline__ u64 descriptor(const void* tile) {
  return (u64)(shared_address(tile) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

#define TEN(t) "d" t "0,d" t "1,d" t "2,d" t "3,d" t "4,d" t "5,d" t "6,d" t "7,d" t "8,d" t "9"
#define D8 "d0,d1,d2,d3"
#define D16 D8 ",d4,d5,d6,d7"
#define D32 TEN("") ",d10,d11,d12,d13,d14,d15"
#define D64 TEN("") "," TEN("1") "," TEN("2") ",d30,d31"
#define D80 TEN("") "," TEN("1") "," TEN("2") "," TEN("3")
#define D128 D80 "," TEN("4") "," TEN("5") ",d60,d61,d62,d63"
#define D160 D80 "," TEN("4") "," TEN("5") "," TEN("6") "," TEN("7")
#define D256 D160 "," TEN("8") "," TEN("9") "," TEN("10") "," TEN("11") ",d120,d121,d122,d123,d124,d125,d126,d127"

#define BF16(n) "m64n" #n "k16.f32.bf16.bf16"
#define E4M3(n) "m64n" #n "k32.f32.e4m3.e4m3"
#define FROM_SHARED "%4"
#define FROM_REGISTERS "{%6, %7, %8, %9}"
#define PRODUCT(shape, d, a, modes) "wgmma.mma_async.sync.aligned." shape " {" d "}, " a ", %5, p, 1, 1" modes ";\n"
#define TIMES4(x) x x x x
#define TIMES16(x) TIMES4(x) TIMES4(x) TIMES4(x) TIMES4(x)

// Turns of the products, a group a turn, with at most `ahead` earlier groups still in flight; all of it in PTX, so
// that the sums stay in their registers. A is the tile `apart`; where that is the same for all, ptxas keeps descriptors in
// uniform registers, and the loop holds nothing else.
#define WGMMA_LOOP(name, fp8, apart, first, body, ahead)                                                    \
  __global__ void __launch_bounds__(256) name(Span* spans, int turns) {                                     \
    extern __shared__ __align__(1024) char shared[];                                                        \
    fill_operands<fp8>(shared, 192 << 10);                                                                  \
    const u64 a = descriptor(shared + (128 << 10) + (apart) * (32 << 10)), b = descriptor(shared);          \
    const u32* mine = (const u32*)shared + threadIdx.x * 4;                                                 \
    u64 begin, end;                                                                                         \
    u32 sum;                                                                                                \
    const u64 ns = nanoseconds();                                                                           \
    asm volatile(                                                                                           \
        "{ .reg .f32 d<128>;\n.reg .pred p, more;\n.reg .u32 left;\n.reg .u64 a, b;\n"                      \
        "mov.u64 a, %4;\nmov.u64 b, %5;\nsetp.ne.u32 p, 0, 0;\n"                                            \
        "wgmma.fence.sync.aligned;\n" first                                                                 \
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"                              \
        "setp.eq.u32 p, 0, 0;\nmov.u32 left, %3;\nbar.sync 0;\nmov.u64 %0, %%clock64;\n"                    \
        "turn:\nwgmma.fence.sync.aligned;\n" body                                                           \
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned " #ahead ";\n"                     \
        "sub.u32 left, left, 1;\nsetp.ne.u32 more, left, 0;\n@more bra turn;\n"                             \
        "wgmma.wait_group.sync.aligned 0;\nmov.u64 %1, %%clock64;\nmov.b32 %2, d0; }"                       \
        : "=l"(begin), "=l"(end), "=r"(sum)                                                                 \
        : "r"(turns), "l"(a), "l"(b), "r"(mine[0]), "r"(mine[1]), "r"(mine[2]), "r"(mine[3])                \
        : "memory");                                                                                        \
    if (sum == 0x7fc12345u) begin = 0; /* never so: the sums are used */                                    \
    tell(spans, begin, end, nanoseconds() - ns);                                                            \
  }

#define WGMMA_RATES(n)                                                                                        \
  WGMMA_LOOP(bf16_n##n##_shared, false, 0, PRODUCT(BF16(n), D##n, FROM_SHARED, ", 0, 0"),                        \
             TIMES16(PRODUCT(BF16(n), D##n, FROM_SHARED, ", 0, 0")), 1)                                       \
  WGMMA_LOOP(bf16_n##n##_registers, false, 0, PRODUCT(BF16(n), D##n, FROM_REGISTERS, ", 0"),                     \
             TIMES16(PRODUCT(BF16(n), D##n, FROM_REGISTERS, ", 0")), 1)                                       \
  WGMMA_LOOP(e4m3_n##n##_shared, true, 0, PRODUCT(E4M3(n), D##n, FROM_SHARED, ""),                               \
             TIMES16(PRODUCT(E4M3(n), D##n, FROM_SHARED, "")), 1)                                             \
  WGMMA_LOOP(e4m3_n##n##_registers, true, 0, PRODUCT(E4M3(n), D##n, FROM_REGISTERS, ""),                         \
             TIMES16(PRODUCT(E4M3(n), D##n, FROM_REGISTERS, "")), 1)
#define WGMMA_LONE(n)                                                                                       \
  WGMMA_LOOP(bf16_n##n##_lone, false, 0, PRODUCT(BF16(n), D##n, FROM_SHARED, ", 0, 0"),                          \
             PRODUCT(BF16(n), D##n, FROM_SHARED, ", 0, 0"), 0)                                              \
  WGMMA_LOOP(e4m3_n##n##_lone, true, 0, PRODUCT(E4M3(n), D##n, FROM_SHARED, ""),                                 \
             PRODUCT(E4M3(n), D##n, FROM_SHARED, ""), 0)
#define EACH_N(X) X(8) X(16) X(32) X(64) X(80) X(128) X(160) X(256)
#define EACH_LONE_N(X) X(16) X(64) X(256)
EACH_N(WGMMA_RATES)
EACH_LONE_N(WGMMA_LONE)

// For power: 16 products over four tiles of up to 256 rows of B and of 64 rows of A, four steps of 32 bytes each. A may
// come from four registers, whose order changes from product to product.
#define AT(a_at, b_at, a_text, d, shape, modes)            \
  "add.u64 a, %4, " #a_at ";\nadd.u64 b, %5, " #b_at ";\n" \
  "wgmma.mma_async.sync.aligned." shape " {" d "}, " a_text ", b, p, 1, 1" modes ";\n"
#define TILE(a0, a1, a2, a3, b0, b1, b2, b3, each)                                                     \
  each(a0, b0, "{%6, %7, %8, %9}") each(a1, b1, "{%7, %8, %9, %6}") each(a2, b2, "{%8, %9, %6, %7}") \
  each(a3, b3, "{%9, %6, %7, %8}")
#define FOUR_TILES(each)                                       \
  TILE(0, 2, 4, 6, 0, 2, 4, 6, each)                           \
  TILE(512, 514, 516, 518, 2048, 2050, 2052, 2054, each)       \
  TILE(1024, 1026, 1028, 1030, 4096, 4098, 4100, 4102, each)   \
  TILE(1536, 1538, 1540, 1542, 6144, 6146, 6148, 6150, each)
#define OF_BF16(a_at, b_at, registers) AT(a_at, b_at, "a", D256, BF16(256), ", 0, 0")
#define OF_E4M3(a_at, b_at, registers) AT(a_at, b_at, "a", D256, E4M3(256), "")
#define OF_N64(a_at, b_at, registers) AT(a_at, b_at, "a", D64, BF16(64), ", 0, 0")
#define OF_REGISTERS(a_at, b_at, registers) AT(a_at, b_at, registers, D256, BF16(256), ", 0")
#define WGMMA_LOAD(name, fp8, each) \
  WGMMA_LOOP(name, fp8, threadIdx.x / 128, each(0, 0, FROM_REGISTERS), FOUR_TILES(each), 1)
WGMMA_LOAD(load_bf16, false, OF_BF16)
WGMMA_LOAD(load_e4m3, true, OF_E4M3)
WGMMA_LOAD(load_bf16_n64, false, OF_N64)
WGMMA_LOAD(load_bf16_registers, false, OF_REGISTERS)
#endif

// ---------------------------------------------------------------- units

// What a register of a chain begins with: a number, or the address in shared memory whose word is that address again.
enum class Start { NUMBER, WORD, VECTOR };

// Instructions that take a register to its next value. %1 and %2 differ from step to step, or ptxas would fold steps
// into one (as it would a reciprocal's reciprocal, which thus comes with an addition); %3 to %6 are always the same.
#define UNIT(name, start, text)                                                                  \
  struct name {                                                                                  \
    static constexpr Start START = Start::start;                                                 \
    static __device__ __forceinline__ void step(u32& x, u32 b, u32 c, const u32 (&same)[4]) {     \
      asm volatile("{ .reg .b32 t, u, v;\n.reg .b16 l, h;\n.reg .pred p;\n" text " }"            \
                   : "+r"(x)                                                                     \
                   : "r"(b), "r"(c), "r"(same[0]), "r"(same[1]), "r"(same[2]), "r"(same[3])      \
                   : "memory");                                                                  \
    }                                                                                            \
  };
namespace units {  // libm has an ffma and an fadd of its own
UNIT(ffma, NUMBER, "fma.rn.f32 %0, %0, %1, %2;")
UNIT(fadd, NUMBER, "add.rn.f32 %0, %0, %1;")
UNIT(iadd3, NUMBER, "add.u32 %0, %0, %1;\nadd.u32 %0, %0, %2;")
UNIT(lop3, NUMBER, "lop3.b32 %0, %0, %1, %2, 0xe8;")
UNIT(imad, NUMBER, "mad.lo.u32 %0, %0, %1, %2;")
UNIT(mufu_ex2, NUMBER, "ex2.approx.ftz.f32 %0, %0;")
UNIT(mufu_rcp, NUMBER, "rcp.approx.ftz.f32 %0, %0;\nadd.rn.f32 %0, %0, %1;")
UNIT(fmnmx, NUMBER, "max.f32 %0, %0, %1;")
UNIT(vimnmx3, NUMBER, "max.s32 %0, %0, %1;\nmax.s32 %0, %0, %2;")
UNIT(weight, NUMBER, "fma.rn.f32 t, %0, %1, %2;\nex2.approx.ftz.f32 t, t;\nadd.rn.f32 %0, %0, t;")
UNIT(f2fp_bf16x2, NUMBER, "cvt.rn.bf16x2.f32 %0, %0, %1;")
UNIT(cvt_e4m3x2, NUMBER, "cvt.u16.u32 l, %0;\ncvt.rn.f16x2.e4m3x2 %0, l;")
UNIT(hfma2, NUMBER, "fma.rn.f16x2 %0, %0, %1, %2;")
UNIT(shfl_bfly, NUMBER, "shfl.sync.bfly.b32 %0, %0, 1, 0x1f, 0xffffffff;")
UNIT(vote, NUMBER, "setp.ne.u32 p, %0, %1;\nvote.sync.ballot.b32 %0, p, 0xffffffff;")
UNIT(redux, NUMBER, "redux.sync.add.u32 %0, %0, 0xffffffff;")
UNIT(lds_32, WORD, "ld.volatile.shared.b32 %0, [%0];")
UNIT(lds_128, VECTOR, "ld.volatile.shared.v4.b32 {%0, t, u, v}, [%0];")
UNIT(ldmatrix_x4, VECTOR, "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, t, u, v}, [%0];")
UNIT(atoms_add, WORD, "atom.shared.add.u32 %0, [%0], %1;")
UNIT(sts_128, VECTOR, "st.volatile.shared.v4.b32 [%0], {%3, %4, %5, %6};")
UNIT(stmatrix_x4, VECTOR, "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%3, %4, %5, %6};")
}  // namespace units

constexpr int STEPS = 128;

// Turns of 128 instructions a warp, in so many independent chains.
template <class Unit, int CHAINS>
__global__ void __launch_bounds__(512) unit(Span* spans, int turns, u32 seed, u32 stride) {
  extern __shared__ __align__(1024) char shared[];
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 size = Unit::START == Start::WORD ? 4 : 16;
  u32 x[CHAINS], b[9], same[4];
#pragma unroll
  for (int c = 0; c < CHAINS; c++) {
    char* chain = shared + (warp * CHAINS + c) * 512;
    x[c] = Unit::START == Start::NUMBER ? seed + threadIdx.x + c * stride : shared_address(chain) + lane * size;
    // A lane finds its own address: ldmatrix in word `lane` of the first eight rows, the others in their own word.
    if (Unit::START != Start::NUMBER) {
      const bool packed = std::is_same<Unit, units::ldmatrix_x4>::value;
      for (u32 word = lane; word < 128; word += 32) ((u32*)chain)[word] = hash(c << 7 | word);
      __syncwarp();
      *(u32*)(chain + lane * (packed ? 4 : size)) = x[c];
    }
  }
#pragma unroll
  for (int i = 0; i < 9; i++) b[i] = seed + (hash(i) & stride);
#pragma unroll
  for (int i = 0; i < 4; i++) same[i] = seed + threadIdx.x * i;
  __syncthreads();
  const u64 ns = nanoseconds(), begin = clocks();
  for (int turn = 0; turn < turns; turn++) {
#pragma unroll
    for (int i = 0; i < STEPS; i++) Unit::step(x[i % CHAINS], b[i / CHAINS % 8], b[i / CHAINS % 8 + 1], same);
  }
  u32 sum = 0;
#pragma unroll
  for (int c = 0; c < CHAINS; c++) sum += x[c];
  // The clock is read after the last result: the sum, which is never this, decides about it.
  if (sum == 0x12345679u) spans[0].ns = sum;
  const u64 end = clocks();
  tell(spans, begin, end, nanoseconds() - ns);
}

// ---------------------------------------------------------------- hand-overs

// Two warps wait for each other in turn.
__global__ void mbarrier_round_trips(Span* spans, int turns) {
  __shared__ u64 barriers[2];
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x < 2) init_barrier(&barriers[threadIdx.x], 1);
  barriers_visible();
  __syncthreads();
  const u64 ns = nanoseconds(), begin = clocks();
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    if (warp == 1) wait(&barriers[1], turn & 1);
    __syncwarp();
    if (lane == 0) arrive(&barriers[1 - warp]);
    if (warp == 0) wait(&barriers[0], turn & 1);
  }
  tell(spans, begin, clocks(), nanoseconds() - ns);
}

// Waits for a phase that is complete.
__global__ void passed_waits(Span* spans, int turns) {
  __shared__ u64 barrier;
  init_barrier(&barrier, 1);
  barriers_visible();
  arrive(&barrier);
  const u64 ns = nanoseconds(), begin = clocks();
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++)
#pragma unroll
    for (int i = 0; i < 16; i++) wait(&barrier, 0);
  tell(spans, begin, clocks(), nanoseconds() - ns);
}

__global__ void block_barriers(Span* spans, int turns) {
  __syncthreads();
  const u64 ns = nanoseconds(), begin = clocks();
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++)
#pragma unroll
    for (int i = 0; i < 16; i++) asm volatile("bar.sync 0;" ::: "memory");
  tell(spans, begin, clocks(), nanoseconds() - ns);
}

template <bool ORDERED>
__global__ void cluster_barriers(Span* spans, int turns) {
  cluster_meets();
  const u64 ns = nanoseconds(), begin = clocks();
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    if (ORDERED) cluster_meets();
    else asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  }
  tell(spans, begin, clocks(), nanoseconds() - ns);
}

// The two CTAs of a cluster send each other a word in turn, each with the barrier that the other waits on.
__global__ void remote_stores(Span* spans, int turns) {
  __shared__ u64 barrier;
  __shared__ u32 word;
  u32 rank, there, their_barrier;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(&word)), "r"(1 - rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(their_barrier) : "r"(shared_address(&barrier)), "r"(1 - rank));
  const bool first = threadIdx.x == 0;
  if (first) init_barrier(&barrier, 1), barriers_visible(), expect(&barrier, 4);
  cluster_meets();
  const u64 ns = nanoseconds(), begin = clocks();
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    for (u32 part = 0; part < 2; part++) {
      if (part == rank && first) {
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
                     "r"(turn), "r"(their_barrier)
                     : "memory");
      } else if (part != rank) {
        wait(&barrier, turn & 1);
        if (first) expect(&barrier, 4);
      }
      __syncwarp();
    }
  }
  const u64 end = clocks();
  cluster_meets();
  tell(spans, begin, end, nanoseconds() - ns);
}

// Two CTAs that fill an SM each raise a flag in turn, 128 bytes apart.
__global__ void global_flags(Span* spans, int turns, u32* flags) {
  u32* mine = flags + blockIdx.x * 32;
  const u32* theirs = flags + (1 - blockIdx.x) * 32;
  const u64 ns = nanoseconds(), begin = clocks();
#pragma unroll 1
  for (u32 turn = 1; turn <= turns; turn++) {
    for (u32 part = 0; part < 2; part++) {
      if (part == blockIdx.x) {
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(mine), "r"(turn) : "memory");
      } else {
        u32 seen;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(theirs) : "memory");
        while (seen != turn);
      }
    }
  }
  tell(spans, begin, clocks(), nanoseconds() - ns);
}

// ---------------------------------------------------------------- memory

enum class Way { LOAD, COPY_16, BULK, BOX };

__device__ __forceinline__ void bulk(u32 to, const char* from, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// One fetch after another by one thread, at scattered multiples of `bytes`, each waited for. The first pass is not
// timed: over the same addresses where they shall come from L2, else over a few others.
template <Way WAY>
__global__ void fetch(Span* spans, int turns, const char* base, u32 bytes, int from_l2,
                      const __grid_constant__ CUtensorMap map) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ u64 barrier;
  if (threadIdx.x != 0) return;
  const u32 to = shared_address(shared), places = REGION / bytes;  // a power of two
  init_barrier(&barrier, 1);
  barriers_visible();
  u32 parity = 0;
  u64 got = 0, begin = 0, ns = 0;
#pragma unroll 1  // one code for both passes: the first also fetches the instructions
  for (int pass = 0; pass < 2; pass++) {
    const int first = pass == 0 && !from_l2 ? turns : 0, count = pass == 0 && !from_l2 ? 64 : turns;
    ns = nanoseconds(), begin = clocks();
#pragma unroll 1
    for (int i = first; i < first + count; i++) {
      const u32 place = (u32)i * 2654435761u & (places - 1);
      const char* from = base + (u64)place * bytes;
      if (WAY == Way::LOAD) {
        // Memory holds zeros; only the card knows that the next address does not depend on them.
        asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(got) : "l"(from + got) : "memory");
      } else if (WAY == Way::COPY_16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\ncp.async.commit_group;\ncp.async.wait_group 0;" ::"r"(to),
                     "l"(from)
                     : "memory");
      } else {
        expect(&barrier, bytes);
        if (WAY == Way::BULK) {
          bulk(to, from, bytes, &barrier);
        } else {
          asm volatile(
              "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
              "l"(&map), "r"(place % 8 * 64), "r"(place / 8 * 64), "r"(shared_address(&barrier))
              : "memory");
        }
        wait(&barrier, parity);
        parity ^= 1;
      }
    }
    if (got == 1) spans[0].ns = got;
  }
  tell(spans, begin, clocks(), nanoseconds() - ns);
}

// Streams of one SM or of all: block after block of memory, `window` bytes again and again. As above, a first pass is
// not timed; it is the whole window where that shall come from L2.
struct Stream {
  const char* base;
  u64 window;
  int from_l2;

  __device__ __forceinline__ int first(int pass, int turns) const { return pass == 0 && !from_l2 ? turns : 0; }
  __device__ __forceinline__ int count(int pass, int turns, u32 chunk) const {
    return pass == 0 ? (from_l2 ? (int)(window / ((u64)chunk * gridDim.x)) + 1 : 16) : turns;
  }
  __device__ __forceinline__ const char* at(int turn, u32 chunk) const {
    return base + (((u64)turn * gridDim.x + blockIdx.x) * chunk & (window - 1));
  }
};

// Groups of 2 KB by 128 threads, so many in flight.
template <int GROUPS>
__global__ void __launch_bounds__(128) copy_stream(Span* spans, int turns, Stream stream) {
  extern __shared__ __align__(1024) char shared[];
  const u32 to = shared_address(shared) + threadIdx.x * 16;
  u64 begin = 0, ns = 0;
#pragma unroll 1  // one code for both passes: the first also fetches the instructions
  for (int pass = 0; pass < 2; pass++) {
    const int first = stream.first(pass, turns), last = first + stream.count(pass, turns, 2048);
    __syncthreads();
    ns = nanoseconds(), begin = clocks();
#pragma unroll 1
    for (int turn = first; turn < last; turn++) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\ncp.async.commit_group;\ncp.async.wait_group %2;" ::"r"(
                       to + turn % GROUPS * 2048),
                   "l"(stream.at(turn, 2048) + threadIdx.x * 16), "n"(GROUPS - 1)
                   : "memory");
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
  tell(spans, begin, clocks(), nanoseconds() - ns);
}

// Copies of 8 KB by one thread, `depth` in flight.
__global__ void bulk_stream(Span* spans, int turns, Stream stream, int depth) {
  extern __shared__ __align__(1024) char shared[];
  __shared__ u64 barriers[8];
  constexpr u32 BYTES = 8 << 10;
  if (threadIdx.x != 0) return;
  for (int i = 0; i < depth; i++) init_barrier(&barriers[i], 1);
  barriers_visible();
  u32 parities = 0;
  u64 begin = 0, ns = 0;
#pragma unroll 1  // one code for both passes: the first also fetches the instructions
  for (int pass = 0; pass < 2; pass++) {
    const int first = stream.first(pass, turns), last = first + stream.count(pass, turns, BYTES);
    ns = nanoseconds(), begin = clocks();
    // `slot` goes round; a copy is waited for where its slot is taken again.
#pragma unroll 1
    for (int turn = first, slot = 0; turn < last + depth; turn++, slot = slot + 1 == depth ? 0 : slot + 1) {
      if (turn >= first + depth) {
        wait(&barriers[slot], parities >> slot & 1);
        parities ^= 1u << slot;
      }
      if (turn < last) {
        expect(&barriers[slot], BYTES);
        bulk(shared_address(shared) + slot * BYTES, stream.at(turn, BYTES), BYTES, &barriers[slot]);
      }
    }
  }
  tell(spans, begin, clocks(), nanoseconds() - ns);
}

// Words of which half of the digits are ones.
__global__ void scatter_digits(u32* words, u64 count) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) words[i] = hash(i);
}

// 1024 threads, each with so many loads of 16 bytes at once.
template <int LOADS>
__global__ void __launch_bounds__(1024) load_stream(Span* spans, int turns, Stream stream) {
  constexpr u32 CHUNK = LOADS * 16 << 10;
  u64 begin = 0, ns = 0;
  u32 sum = 0;
#pragma unroll 1  // one code for both passes: the first also fetches the instructions
  for (int pass = 0; pass < 2; pass++) {
    const int first = stream.first(pass, turns), last = first + stream.count(pass, turns, CHUNK);
    __syncthreads();
    ns = nanoseconds(), begin = clocks();
#pragma unroll 1
    for (int turn = first; turn < last; turn++) {
      u32 x[LOADS][4];
#pragma unroll
      for (int i = 0; i < LOADS; i++)
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x[i][0]), "=r"(x[i][1]), "=r"(x[i][2]), "=r"(x[i][3])
                     : "l"(stream.at(turn, CHUNK) + (i * 1024 + threadIdx.x) * 16)
                     : "memory");
#pragma unroll
      for (int i = 0; i < LOADS; i++) sum += x[i][0] ^ x[i][1] ^ x[i][2] ^ x[i][3];
    }
    if (sum == 1) spans[0].ns = sum;
  }
  tell(spans, begin, clocks(), nanoseconds() - ns);
}

// ---------------------------------------------------------------- launches and idle clocks

__global__ void empty() {}

__global__ void empty_dependent() { asm volatile("griddepcontrol.launch_dependents;\ngriddepcontrol.wait;" ::: "memory"); }

__global__ void spin(Span* spans, int milliseconds) {
  const u64 ns = nanoseconds(), begin = clocks();
  while (nanoseconds() - ns < milliseconds * 1000000ull) __nanosleep(1000);
  tell(spans, begin, clocks(), nanoseconds() - ns);
}

// ---------------------------------------------------------------- on the host

bool quick = false;

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

void say(const std::string& name, double value, const char* unit) {
  printf("{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", name.c_str(), value, unit);
  fflush(stdout);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The median of what `once` gives, after a first call that only warms up.
double repeated(const std::function<double()>& once) {
  once();
  std::vector<double> values;
  for (int i = 0; i < (quick ? 1 : 7); i++) values.push_back(once());
  return median(values);
}

struct Card {
  int sms;
  Span* spans;
  char* large;
  u32* flags;

  Card() {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0));
    sms = properties.multiProcessorCount;
    check(cudaMalloc(&spans, 64 * sizeof(Span)));
    check(cudaMalloc(&large, LARGE));
    check(cudaMemset(large, 0, LARGE));
    check(cudaMalloc(&flags, 4096));
  }
};

const Card& card() {
  static const Card held;
  return held;
}

struct Shape {
  int grid = 1, block = 32, cluster = 1;
  bool dependent = false;
  cudaStream_t stream = 0;
};

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const Shape& shape, Arguments... arguments) {
  const int shared = (void*)kernel == (void*)empty || (void*)kernel == (void*)empty_dependent ? 0 : SHARED;
  if (shared) check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {(unsigned)shape.cluster, 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(shape.grid);
  config.blockDim = dim3(shape.block);
  config.dynamicSmemBytes = shared;
  config.stream = shape.stream;
  config.attrs = attributes;
  config.numAttrs = shape.dependent ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

// Writes more than L2 holds, away from what the fetches of one SM read. Reads in its place left what had been fetched
// before where it was: fetches "from HBM" then took as long as those from L2.
void flush() { check(cudaMemset(card().large + (1ull << 30), 0, 256 << 20)); }

// Of the warps of block 0: clocks from the first that begins to the last that ends.
double elapsed(int warps) {
  Span spans[32];
  check(cudaDeviceSynchronize());
  check(cudaMemcpy(spans, card().spans, warps * sizeof(Span), cudaMemcpyDeviceToHost));
  u64 begin = spans[0].begin, end = spans[0].end;
  for (int i = 1; i < warps; i++) begin = std::min(begin, spans[i].begin), end = std::max(end, spans[i].end);
  return (double)(end - begin);
}

// The SM's clock over the last launch.
double megahertz() {
  Span span;
  check(cudaMemcpy(&span, card().spans, sizeof(Span), cudaMemcpyDeviceToHost));
  return 1e3 * (double)(span.end - span.begin) / (double)span.ns;
}

struct Item {
  std::string name;
  std::function<void(const std::string&)> measure;
};

std::vector<Item> items;

#ifdef BLACKWELL
// What a product is, as an instruction of tcgen05 has it: sums of float32, and both operands K-major.
u32 shape_of(Kind kind, int m, int n) {
  const u32 dtype = kind == Kind::F16 ? 1 : 0;  // bf16 of kind::f16, e4m3 of kind::f8f6f4
  return 1u << 4 | dtype << 7 | dtype << 10 | (u32)(n / 8) << 17 | (u32)(m / 16) << 24;
}

template <Kind KIND, Form FORM, int ACCUMULATORS = 1, bool LONE = false>
void add_products(const char* form, int m, int n) {
  const std::string name = std::string("tcgen05_") + (KIND == Kind::F16 ? "bf16" : "e4m3") + "_m" + std::to_string(m) +
                           "_n" + std::to_string(n) + "_" + form;
  items.push_back({name, [=](const std::string& item) {
                     const int turns = LONE ? 256 : 64;
                     say(item, repeated([&] {
                           launch(products<KIND, FORM, ACCUMULATORS, LONE>, {1, 128}, card().spans, turns,
                                  shape_of(KIND, m, n), ACCUMULATORS > 1 ? 240u : 0u, (float*)card().flags);
                           return elapsed(1) / (turns * (LONE ? 1 : PER_TURN));
                         }),
                         LONE ? "clk" : "clk/instr");
                   }});
}

template <Kind KIND>
void add_kind() {
  for (int n : {16, 32, 64, 128, 240}) {
    add_products<KIND, Form::SHARED>("shared", 128, n);
    add_products<KIND, Form::SHARED>("shared", 64, n);
    add_products<KIND, Form::SHARED, 2>("two", 128, n);
    add_products<KIND, Form::SHARED, 2>("two", 64, n);
    add_products<KIND, Form::TENSOR>("tensor", 128, n);
  }
  for (int n : {64, 128, 256})
    for (int m : {32, 64, 128}) add_products<KIND, Form::WS>("ws", m, n);
  for (int n : {16, 64, 128}) add_products<KIND, Form::SHARED, 1, true>("lone", 128, n);
}

template <Move MOVE>
void add_columns(const std::string& name, int warps) {
  items.push_back({name, [=](const std::string& item) {
                     const int turns = 64;
                     const bool one = MOVE == Move::ONE;
                     const double clk = repeated([&] {
                       launch(columns<MOVE>, {1, 32 * warps}, card().spans, turns, card().flags);
                       return elapsed(warps) / turns;
                     });
                     say(item, one ? clk / 16 : COLUMNS * (warps / 4) / clk, one ? "clk" : "columns/clk");
                   }});
}

void add_tensor_cores() {
  add_kind<Kind::F16>();
  add_kind<Kind::F8F6F4>();
  for (int warps : {4, 8, 16}) add_columns<Move::LOAD>("tcgen05_ld_" + std::to_string(warps) + "warps", warps);
  add_columns<Move::STORE>("tcgen05_st_4warps", 4);
  add_columns<Move::ONE>("tcgen05_ld_latency", 4);
}
#else
using WgmmaKernel = void (*)(Span*, int);

void add_wgmma(const std::string& name, WgmmaKernel kernel) {
  for (int groups : {1, 2})
    items.push_back({"wgmma_" + name + (groups == 2 ? "_two" : ""), [=](const std::string& item) {
                       const int turns = 64;
                       say(item, repeated([&] {
                             launch(kernel, {1, 128 * groups}, card().spans, turns);
                             return elapsed(4 * groups) / (16.0 * turns * groups);
                           }),
                           "clk/instr");
                     }});
}

void add_lone_wgmma(const std::string& name, WgmmaKernel kernel) {
  items.push_back({"wgmma_" + name, [=](const std::string& item) {
                     const int turns = 256;
                     say(item, repeated([&] {
                           launch(kernel, {1, 128}, card().spans, turns);
                           return elapsed(4) / turns;
                         }),
                         "clk");
                   }});
}

void add_tensor_cores() {
#define ADD_RATES(n)                                          \
  add_wgmma("bf16_n" #n "_shared", bf16_n##n##_shared);       \
  add_wgmma("bf16_n" #n "_registers", bf16_n##n##_registers); \
  add_wgmma("e4m3_n" #n "_shared", e4m3_n##n##_shared);       \
  add_wgmma("e4m3_n" #n "_registers", e4m3_n##n##_registers);
#define ADD_LONE(n)                                      \
  add_lone_wgmma("bf16_n" #n "_lone", bf16_n##n##_lone); \
  add_lone_wgmma("e4m3_n" #n "_lone", e4m3_n##n##_lone);
  EACH_N(ADD_RATES)
  EACH_LONE_N(ADD_LONE)
}
#endif

using UnitKernel = void (*)(Span*, int, u32, u32);

template <class Unit>
void add_unit(const std::string& name) {
  // Numbers near 1; what ATOMS adds is zero, so that the addresses stay.
  const bool number = Unit::START == Start::NUMBER;
  const u32 seed = number ? 0x3f800000u : 0, stride = number ? 0xffffu : 0;
  constexpr int CHAINS = Unit::START == Start::VECTOR ? 8 : 16;
  const auto clk = [=](UnitKernel kernel, int warps) {
    return repeated([&] {
      launch(kernel, {1, 32 * warps}, card().spans, 64, seed, stride);
      return elapsed(warps) / (64.0 * STEPS);
    });
  };
  for (int warps : {1, 4, 16})
    items.push_back({"unit_" + name + "_" + std::to_string(warps) + "warps", [=](const std::string& item) {
                       say(item, warps / clk(unit<Unit, CHAINS>, warps), "instr/clk");
                     }});
  if (std::is_same<Unit, units::sts_128>::value || std::is_same<Unit, units::stmatrix_x4>::value) return;
  items.push_back({"unit_" + name + "_latency",
                   [=](const std::string& item) { say(item, clk(unit<Unit, 1>, 1), "clk"); }});
}

using PlainKernel = void (*)(Span*, int);

// A kernel of turns, with so many of what is told in a turn.
void add_hand_over(const std::string& name, PlainKernel kernel, const Shape& shape, int each) {
  items.push_back({name, [=](const std::string& item) {
                     const int turns = 512;
                     say(item, repeated([&] {
                           launch(kernel, shape, card().spans, turns);
                           return elapsed(1) / (turns * each);
                         }),
                         "clk");
                   }});
}

void add_hand_overs() {
  add_hand_over("hand_mbarrier", mbarrier_round_trips, {1, 64}, 2);
  add_hand_over("hand_passed", passed_waits, {1, 1}, 16);
  for (int warps : {2, 4, 8, 16})
    add_hand_over("hand_bar_sync_" + std::to_string(warps) + "warps", block_barriers, {1, 32 * warps}, 16);
  for (int ctas : {2, 8}) {
    const std::string name = "hand_cluster_barrier_" + std::to_string(ctas) + "ctas";
    add_hand_over(name, cluster_barriers<true>, {ctas, 128, ctas}, 1);
    add_hand_over(name + "_relaxed", cluster_barriers<false>, {ctas, 128, ctas}, 1);
  }
  add_hand_over("hand_st_async", remote_stores, {2, 32, 2}, 2);
  items.push_back({"hand_global_flag", [](const std::string& item) {
                     const int turns = 512;
                     say(item, repeated([&] {
                           check(cudaMemset(card().flags, 0, 256));
                           launch(global_flags, {2, 1}, card().spans, turns, card().flags);
                           return elapsed(1) / (2 * turns);
                         }),
                         "clk");
                   }});
}

// Rows of 1 KB over what the fetches of one SM read; a box is 64 rows of 128 bytes.
CUtensorMap rows_map() {
  CUtensorMap map;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
  if (result != cudaDriverEntryPointSuccess) throw std::runtime_error("the driver has no cuTensorMapEncodeTiled");
  const cuuint64_t sizes[] = {512, REGION / 1024}, pitches[] = {1024};
  const cuuint32_t box[] = {64, 64}, steps[] = {1, 1};
  const CUresult done = ((decltype(&cuTensorMapEncodeTiled))found)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, card().large, sizes, pitches, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (done != CUDA_SUCCESS) throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(done));
  return map;
}

template <Way WAY>
void add_fetch(const std::string& name, u32 bytes) {
  for (int from_l2 : {1, 0})
    items.push_back({"fetch_" + name + (from_l2 ? "_l2" : "_hbm"), [=](const std::string& item) {
                       const int turns = 256;
                       const CUtensorMap map = rows_map();
                       say(item, repeated([&] {
                             flush();
                             launch(fetch<WAY>, {}, card().spans, turns, card().large, bytes, from_l2, map);
                             return elapsed(1) / turns;
                           }),
                           "clk");
                     }});
}

// A stream by one SM: 4 MB that stay in L2, or 8 MB that nothing has read since the flush.
template <class... Rest>
void add_stream(const std::string& name, void (*kernel)(Span*, int, Stream, Rest...), int block, u32 chunk,
                Rest... rest) {
  for (int from_l2 : {1, 0})
    items.push_back({"stream_" + name + (from_l2 ? "_l2" : "_hbm"), [=](const std::string& item) {
                       const int turns = (8 << 20) / chunk;
                       const Stream stream{card().large, from_l2 ? 4ull << 20 : REGION, from_l2};
                       say(item, repeated([&] {
                             flush();
                             launch(kernel, {1, block}, card().spans, turns, stream, rest...);
                             return (double)turns * chunk / elapsed((block + 31) / 32);
                           }),
                           "B/clk");
                     }});
}

float milliseconds(const std::function<void()>& work) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  check(cudaEventRecord(begin));
  work();
  check(cudaEventRecord(end));
  check(cudaEventSynchronize(end));
  float value;
  check(cudaEventElapsedTime(&value, begin, end));
  return value;
}

constexpr u32 ALL_CHUNK = 4 * 16 << 10;

// Turns of all SMs that read so many bytes together, and what they read indeed.
int all_turns(double bytes) { return (int)(bytes / ALL_CHUNK / card().sms); }

void add_all_sms(const std::string& name, u64 window, double bytes) {
  items.push_back({name, [=](const std::string& item) {
                     const int turns = all_turns(bytes);
                     const Stream stream{card().large, window, false};
                     const double read = (double)ALL_CHUNK * card().sms;
                     double per_clk = 0;
                     const double rate = repeated([&] {
                       const float ms = milliseconds([&] {
                         launch(load_stream<4>, {card().sms, 1024}, card().spans, turns, stream);
                       });
                       per_clk = read * turns / elapsed(32);
                       return read * (turns + 16) / ms / 1e6;
                     });
                     say(item + "_gbs", rate, "GB/s");
                     say(item + "_clk", per_clk, "B/clk");
                   }});
}

void add_graph(const std::string& name, bool dependent, bool full) {
  items.push_back({name, [=](const std::string& item) {
                     const int grid = full ? card().sms : 1;
                     cudaStream_t stream;
                     cudaGraph_t graph;
                     cudaGraphExec_t ready;
                     check(cudaStreamCreate(&stream));
                     check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
                     const Shape shape{grid, 128, 1, dependent, stream};
                     for (int i = 0; i < 100; i++) launch(dependent ? empty_dependent : empty, shape);
                     check(cudaStreamEndCapture(stream, &graph));
                     check(cudaGraphInstantiate(&ready, graph, 0));
                     say(item, repeated([&] {
                           return milliseconds([&] {
                                    for (int i = 0; i < 10; i++) check(cudaGraphLaunch(ready, 0));
                                  }) /
                                  10 / 100 * 1e3;
                         }),
                         "us");
                   }});
}

// What the driver says of clock and power, through NVML where it is found.
struct Sensors {
  void* device = nullptr;
  int (*clock)(void*, int, unsigned*) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;

  Sensors() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) throw std::runtime_error("libnvidia-ml.so.1 is not found");
    char bus[32];
    check(cudaDeviceGetPCIBusId(bus, sizeof bus, 0));
    const auto begin = (int (*)())dlsym(library, "nvmlInit_v2");
    const auto find = (int (*)(const char*, void**))dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    clock = (decltype(clock))dlsym(library, "nvmlDeviceGetClockInfo");
    power = (decltype(power))dlsym(library, "nvmlDeviceGetPowerUsage");
    if (!begin || !find || !clock || !power || begin() || find(bus, &device))
      throw std::runtime_error("NVML does not find the GPU");
  }
};

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Runs `work` for seconds, two launches ahead; of the second half: MHz and watts as sensed, the clock as counted by an
// SM, and the rate at which launches end, times `each`.
void sustained(const std::string& item, const std::function<void()>& work, double each, const char* unit) {
  const double seconds = quick ? 0.5 : 3.0;
  const Sensors sensors;
  std::vector<double> clocks, watts;
  cudaEvent_t events[2];
  for (auto& event : events) check(cudaEventCreate(&event));
  const auto begin = Clock::now();
  double half = 0, last = 0;
  int ended = 0;
  for (int i = 0; last < seconds; i++) {
    if (work) {
      work();
      check(cudaEventRecord(events[i % 2]));
      if (i == 0) continue;
      check(cudaEventSynchronize(events[(i - 1) % 2]));
    } else {
      usleep(50000);
    }
    last = since(begin);
    if (last < seconds / 2) {
      half = last;
      continue;
    }
    unsigned clock, power;
    if (sensors.clock(sensors.device, 1, &clock) == 0) clocks.push_back(clock);
    if (sensors.power(sensors.device, &power) == 0) watts.push_back(power / 1e3);
    ended++;
  }
  check(cudaDeviceSynchronize());
  if (!clocks.empty()) say(item + "_nvml_mhz", median(clocks), "MHz");
  if (!watts.empty()) say(item + "_watts", median(watts), "W");
  if (work) say(item + "_mhz", megahertz(), "MHz");
  if (each > 0) say(item + "_" + (strcmp(unit, "GB/s") ? "tflops" : "gbs"), each * ended / (last - half), unit);
}

// What keeps the GPU busy; and what a launch of it moves or computes, in the unit of its rate.
struct Load {
  std::function<void()> once;
  double each = 0;
  const char* unit = "";
};

void add_load(const std::string& name, const std::function<Load()>& load) {
  items.push_back({name, [=](const std::string& item) {
                     const Load of = load();
                     sustained(item, of.once, of.each, of.unit);
                   }});
}

// Products of one of so many SMs, m64n256 of two warpgroups on Hopper and m128n240 of one warp on Blackwell.
void add_load_of_products(const std::string& name, bool fp8, int of = 1) {
  add_load(name, [=]() -> Load {
    const int sms = card().sms / of, turns = 8000;
#ifdef BLACKWELL
    const int m = 128, n = 240, groups = 1;
    const auto kernel =
        fp8 ? products<Kind::F8F6F4, Form::SHARED, 2, false> : products<Kind::F16, Form::SHARED, 2, false>;
    const u32 shape = shape_of(fp8 ? Kind::F8F6F4 : Kind::F16, m, n);
    const auto once = [=] { launch(kernel, {sms, 128}, card().spans, turns, shape, 240u, (float*)card().flags); };
#else
    const int m = 64, n = 256, groups = 2;
    const auto once = [=] { launch(fp8 ? load_e4m3 : load_bf16, {sms, 256}, card().spans, turns); };
#endif
    return {once, 16.0 * turns * groups * sms * 2 * m * n * (fp8 ? 32 : 16) / 1e12, "TFLOP/s"};
  });
}

void add_load_of_memory(const std::string& name, u64 window) {
  add_load(name, [=]() -> Load {
    const int turns = all_turns(64e9);
    const Stream stream{card().large, window, false};
    launch(scatter_digits, {card().sms * 2, 1024}, (u32*)card().large, LARGE / 4);
    return {[=] { launch(load_stream<4>, {card().sms, 1024}, card().spans, turns, stream); },
            (double)ALL_CHUNK * card().sms * (turns + 16) / 1e9, "GB/s"};
  });
}

// Numbers of all digits from -1 to -3/4, so that FFMA neither grows nor comes to rest: power depends on the data.
template <class Unit>
void add_load_of_unit(const std::string& name) {
  constexpr int CHAINS = Unit::START == Start::VECTOR ? 8 : 16;
  const bool number = Unit::START == Start::NUMBER;
  const u32 seed = number ? 0xbf400000u : 0, stride = number ? 0x3fffffu : 0;
  add_load(name, [=]() -> Load {
    return {[=] { launch(unit<Unit, CHAINS>, {card().sms, 512}, card().spans, 10000, seed, stride); }};
  });
}

void add_loads() {
  add_load("load_idle", []() -> Load { return {}; });
  add_load("load_spin", []() -> Load { return {[] { launch(spin, {}, card().spans, 20); }}; });
  add_load_of_memory("load_hbm", LARGE);
  add_load_of_memory("load_l2", 16ull << 20);
  add_load_of_products("load_bf16", false);
  add_load_of_products("load_e4m3", true);
  add_load_of_products("load_bf16_half", false, 2);
  add_load_of_products("load_bf16_third", false, 3);
#ifndef BLACKWELL
  add_load("load_bf16_n64", []() -> Load {
    return {[] { launch(load_bf16_n64, {card().sms, 256}, card().spans, 32000); }};
  });
  add_load("load_bf16_registers", []() -> Load {
    return {[] { launch(load_bf16_registers, {card().sms, 256}, card().spans, 8000); }};
  });
#endif
  add_load_of_unit<units::ffma>("load_ffma");
  add_load_of_unit<units::lop3>("load_lop3");
  add_load_of_unit<units::mufu_ex2>("load_mufu_ex2");
  add_load_of_unit<units::lds_128>("load_lds_128");
}

void add_all() {
  // The loads come first: after other work the card would not be idle.
  add_loads();
  add_tensor_cores();
#define ADD_UNIT(name) add_unit<units::name>(#name);
  ADD_UNIT(ffma) ADD_UNIT(fadd) ADD_UNIT(iadd3) ADD_UNIT(lop3) ADD_UNIT(imad) ADD_UNIT(mufu_ex2) ADD_UNIT(mufu_rcp)
  ADD_UNIT(fmnmx) ADD_UNIT(vimnmx3) ADD_UNIT(weight) ADD_UNIT(f2fp_bf16x2) ADD_UNIT(cvt_e4m3x2) ADD_UNIT(hfma2)
  ADD_UNIT(shfl_bfly) ADD_UNIT(vote)
  ADD_UNIT(redux) ADD_UNIT(lds_32) ADD_UNIT(lds_128) ADD_UNIT(ldmatrix_x4) ADD_UNIT(atoms_add) ADD_UNIT(sts_128)
  ADD_UNIT(stmatrix_x4)
  add_hand_overs();
  add_fetch<Way::LOAD>("ld_global", 128);
  add_fetch<Way::COPY_16>("cp_async", 128);
  for (u32 kb : {1, 8, 32}) add_fetch<Way::BULK>("bulk_" + std::to_string(kb) + "k", kb << 10);
  add_fetch<Way::BOX>("tma_box_64x128", 8 << 10);
  add_stream("cp_async_4k", copy_stream<2>, 128, 2048);
  add_stream("cp_async_8k", copy_stream<4>, 128, 2048);
  add_stream("cp_async_16k", copy_stream<8>, 128, 2048);
  add_stream("cp_async_32k", copy_stream<16>, 128, 2048);
  add_stream("cp_async_64k", copy_stream<32>, 128, 2048);
  for (int depth : {1, 2, 4, 8}) add_stream("bulk_8k_x" + std::to_string(depth), bulk_stream, 32, 8 << 10, depth);
  add_stream("ld_v4_16k", load_stream<1>, 1024, 16 << 10);
  add_stream("ld_v4_64k", load_stream<4>, 1024, 64 << 10);
  add_all_sms("all_l2", 16ull << 20, 2e9);
  add_all_sms("all_hbm", LARGE, 4e9);
  for (bool full : {false, true})
    for (bool dependent : {false, true})
      add_graph(std::string("graph_empty") + (full ? "_all_sms" : "_one_cta") + (dependent ? "_dependent" : ""),
                dependent, full);
}

int main(int count, char** arguments) {
  add_all();
  std::vector<std::string> wanted;
  for (int i = 1; i < count; i++) {
    if (!strcmp(arguments[i], "--list")) {
      for (const Item& item : items) printf("%s\n", item.name.c_str());
      return 0;
    }
    if (!strcmp(arguments[i], "--quick")) quick = true;
    else wanted.push_back(arguments[i]);
  }
  for (const Item& item : items) {
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), item.name) == wanted.end()) continue;
    try {
      item.measure(item.name);
      check(cudaDeviceSynchronize());
      printf("{\"done\": \"%s\"}\n", item.name.c_str());
      fflush(stdout);
    } catch (const std::exception& error) {
      printf("{\"failed\": \"%s\", \"error\": \"%s\"}\n", item.name.c_str(), error.what());
      return 1;
    }
  }
  return 0;
}
