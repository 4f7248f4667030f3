"""A kernel that only fetches rows of 1152 bytes, adds up their words and stores the sum, in three ways."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from dsl_kernels._discover import later
from dsl_kernels.problems.base import Comparison
from dsl_kernels.problems.layouts import LATENT_DIM, ROPE_DIM

from ._cuda import Source

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())

ROW = 2 * (LATENT_DIM + ROPE_DIM)
DEPTHS = (1, 2, 4, 8)
WARPS = (1, 2, 4, 8, 16, 32, 64)
ENGINES = ("loads", "cp_async", "bulk")
SHARED_BYTES = 220 << 10
# Registers per thread of gather_loads by depth, and of the kernels with a ring; they bound resident warps.
LOAD_REGISTERS = {1: 32, 2: 48, 4: 72, 8: 120}
RING_REGISTERS = 48

SOURCE = r"""
#define PIECES (ROW / 16)

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return (unsigned)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ unsigned words(uint4 v) { return v.x + v.y + v.z + v.w; }

__device__ __forceinline__ void store_sum(unsigned* sums, long long row, unsigned sum, int lane) {
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, step);
  if (lane == 0) sums[row] = sum;
}

// The rows of one warp, and their ids, which are loaded 32 at a time and a batch ahead.
struct Share {
  const int* ids;
  long long first, count, rows;
  int lane, now, next;

  __device__ Share(const int* ids, long long rows) : ids(ids), rows(rows), lane(threadIdx.x % 32) {
    const long long warps = (long long)gridDim.x * (blockDim.x / 32);
    const long long warp = (long long)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const long long each = (rows + warps - 1) / warps;
    first = warp * each;
    count = first < rows ? (rows - first < each ? rows - first : each) : 0;
    now = 0;
    next = load(0);
  }
  __device__ int load(long long at) const {
    return at + lane < count ? ids[first + at + lane] : 0;
  }
  // Ids must be asked for in order.
  __device__ long long id(long long at) {
    if (at % 32 == 0) {
      now = next;
      next = load(at + 32);
    }
    return __shfl_sync(0xffffffffu, now, at % 32);
  }
};

extern "C" __global__ void gather_loads(const char* cache, const int* ids, unsigned* sums, long long rows) {
  Share share(ids, rows);
  for (long long at = 0; at < share.count; at += DEPTH) {
    uint4 held[DEPTH][(PIECES + 31) / 32];
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      if (at + d >= share.count) break;
      const uint4* row = (const uint4*)(cache + share.id(at + d) * ROW);
#pragma unroll
      for (int p = 0; p < (PIECES + 31) / 32; p++)
        held[d][p] = p * 32 + share.lane < PIECES ? row[p * 32 + share.lane] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
      if (at + d >= share.count) break;
      unsigned sum = 0;
#pragma unroll
      for (int p = 0; p < (PIECES + 31) / 32; p++) sum += words(held[d][p]);
      store_sum(sums, share.first + at + d, sum, share.lane);
    }
  }
}

__device__ __forceinline__ void consume(const char* slot, unsigned* sums, long long row, int lane) {
  unsigned sum = 0;
  for (int p = lane; p < PIECES; p += 32) sum += words(((const uint4*)slot)[p]);
  store_sum(sums, row, sum, lane);
  __syncwarp();
}

extern "C" __global__ void gather_cp_async(const char* cache, const int* ids, unsigned* sums,
                                           long long rows) {
  extern __shared__ __align__(128) char ring[];
  Share share(ids, rows);
  char* own = ring + (threadIdx.x / 32) * DEPTH * ROW;
  auto fetch = [&](long long at) {
    if (at < share.count) {
      const char* row = cache + share.id(at) * ROW;
      const unsigned slot = shared_address(own + at % DEPTH * ROW);
      for (int p = share.lane; p < PIECES; p += 32)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     ::"r"(slot + p * 16), "l"(row + p * 16) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  for (int d = 0; d < DEPTH; d++) fetch(d);
  for (long long at = 0; at < share.count; at++) {
    asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory");
    __syncwarp();
    consume(own + at % DEPTH * ROW, sums, share.first + at, share.lane);
    fetch(at + DEPTH);
  }
}

extern "C" __global__ void gather_bulk(const char* cache, const int* ids, unsigned* sums, long long rows) {
  extern __shared__ __align__(128) char ring[];
  Share share(ids, rows);
  const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
  char* own = ring + warp * DEPTH * ROW;
  unsigned long long* full = (unsigned long long*)(ring + warps * DEPTH * ROW) + warp * DEPTH;
  if (share.lane == 0)
    for (int d = 0; d < DEPTH; d++)
      asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&full[d])) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncwarp();
  auto fetch = [&](long long at) {
    if (at >= share.count) return;
    const long long id = share.id(at);
    if (share.lane == 0) {
      const unsigned barrier = shared_address(&full[at % DEPTH]);
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(ROW) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                   ::"r"(shared_address(own + at % DEPTH * ROW)), "l"(cache + id * ROW), "r"(ROW),
                     "r"(barrier)
                   : "memory");
    }
  };
  for (int d = 0; d < DEPTH; d++) fetch(d);
  for (long long at = 0; at < share.count; at++) {
    const unsigned barrier = shared_address(&full[at % DEPTH]), phase = (at / DEPTH) & 1;
    unsigned done = 0;
    while (!done)
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                   : "=r"(done) : "r"(barrier), "r"(phase) : "memory");
    consume(own + at % DEPTH * ROW, sums, share.first + at, share.lane);
    fetch(at + DEPTH);
  }
}
"""


@lru_cache(maxsize=16)
def source(depth: int) -> Source:
    """The kernels with `depth` rows in flight per warp."""
    return Source(SOURCE, f"gather_depth{depth}", {"DEPTH": depth, "ROW": ROW})


@dataclass(frozen=True)
class Setting:
    """A way to fetch rows: the engine, resident warps per SM, rows in flight per warp."""

    engine: str
    warps: int
    depth: int

    @property
    def in_flight(self) -> int:
        """Bytes in flight per SM."""
        return self.warps * self.depth * ROW

    @property
    def warps_per_block(self) -> int:
        return max(1, self.warps // 4)

    @property
    def blocks_per_sm(self) -> int:
        return self.warps // self.warps_per_block

    @property
    def shared(self) -> int:
        """Dynamic shared memory of a block: the ring, and for bulk copies a barrier for each of its rows."""
        if self.engine == "loads":
            return 0
        return self.warps_per_block * self.depth * (ROW + 8 * (self.engine == "bulk"))

    @property
    def fits(self) -> bool:
        """Whether shared memory and registers allow all warps to be resident at once."""
        registers = LOAD_REGISTERS[self.depth] if self.engine == "loads" else RING_REGISTERS
        shared = self.blocks_per_sm * (self.shared + 1024)
        return self.warps * 32 * registers <= 65536 and shared <= SHARED_BYTES


def settings() -> list[Setting]:
    """Every combination that fits an SM."""
    combinations = [Setting(e, w, d) for e in ENGINES for w in WARPS for d in DEPTHS]
    return [setting for setting in combinations if setting.fits]


# Tried at every size, because the fastest setting changes with the number of rows.
CANDIDATES = tuple(
    Setting(engine, warps, depth)
    for engine in ENGINES
    for warps, depth in ((4, 4), (8, 2), (8, 4), (16, 1), (16, 2), (16, 4), (32, 1), (32, 2))
    if Setting(engine, warps, depth).fits
)


def gather(setting: Setting, cache: torch.Tensor, ids: torch.Tensor, sums: torch.Tensor) -> None:
    """sums[i] = the sum of the 32-bit words of row ids[i], modulo 2^32."""
    sms = torch.cuda.get_device_properties(cache.device).multi_processor_count
    source(setting.depth).launch(
        f"gather_{setting.engine}",
        setting.blocks_per_sm * sms,
        32 * setting.warps_per_block,
        cache,
        ids,
        sums,
        ids.numel(),
        shared=setting.shared,
    )


def word_sums(cache: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The result that `gather` must give, as int32 with the same bits; runs on any device."""
    words = cache.view(torch.int32)[ids.flatten().long()]
    total = words.long().sum(dim=1) & 0xFFFFFFFF
    return torch.where(total >= 1 << 31, total - (1 << 32), total).to(torch.int32)


def checked(setting: Setting, cache: torch.Tensor, ids: torch.Tensor, sums: torch.Tensor) -> Comparison:
    """Require every sum to equal the reference's."""
    comparison = Comparison()
    sums.zero_()
    gather(setting, cache, ids, sums)
    wrong = int((sums != word_sums(cache, ids)).sum())
    comparison.demand("row sums equal the reference", wrong == 0, f"{wrong} of {sums.numel()} rows differ")
    return comparison
