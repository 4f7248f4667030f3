// Kernels that only fetch rows, each in another way that the GPU has; the fastest one is the ceiling.
//
// The rows are those that `ids` names (-1: none), or all in order without a list. A row is first_bytes bytes
// at first + id * first_stride and second_bytes bytes (perhaps none) at second + id * second_stride. Widths
// are multiples of 16 bytes. A warp takes `group` (at most 32) rows at a time, so that even few rows are
// spread over all SMs. In a graph the kernels are programmatic dependent launches, like the kernels that they
// are compared with: each sets up while its predecessor drains.

struct Rows {
  const char* first;
  const char* second;
  const int* ids;
  long long count;
  int group, first_bytes, second_bytes;
  long long first_stride, second_stride;
};

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return (unsigned)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ int id_of(const Rows& r, long long at, int lane) {
  const bool mine = lane < r.group && at + lane < r.count;
  return mine ? (r.ids ? r.ids[at + lane] : (int)(at + lane)) : -1;
}

// Which groups of rows a warp takes. By default adjacent groups go to different SMs, so that even few rows
// use all SMs. With a `stretch` each block walks whole lists of this many rows, as kernels do whose CTAs have
// one query each. With sorted lists, all blocks then read similar rows at similar times, and find in the L2
// what another block has read.
struct Deal {
  long long count, stretch, begin, step, first, end, at;
  __device__ __forceinline__ Deal(const Rows& r, int warp, int warps, int stretch)
      : count(r.count), stretch(stretch),
        begin((stretch ? warp : (long long)warp * gridDim.x + blockIdx.x) * r.group),
        step((stretch ? warps : (long long)gridDim.x * warps) * r.group) {
    enter((long long)stretch * blockIdx.x);
  }
  __device__ __forceinline__ void enter(long long list) {
    first = list, at = list + begin, end = stretch ? min(count, list + stretch) : count;
  }
  __device__ __forceinline__ Deal next() const {
    Deal ahead = *this;
    ahead.at += step;
    if (stretch && ahead.at >= end) ahead.enter(first + stretch * gridDim.x);
    return ahead;
  }
};

// Walks the 16-byte chunks of a group of rows with stride 32: the lane's k-th chunk is chunk lane + 32 k.
struct Walk {
  int row, column, chunks, whole, rest;
  __device__ __forceinline__ Walk(int lane, int chunks)
      : row(lane / chunks), column(lane % chunks), chunks(chunks), whole(32 / chunks), rest(32 % chunks) {}
  __device__ __forceinline__ void next() {
    row += whole;
    column += rest;
    if (column >= chunks) column -= chunks, row++;
  }
};

__device__ __forceinline__ const char* chunk_at(const Rows& r, int id, int column) {
  const int byte = column * 16;
  return byte < r.first_bytes ? r.first + id * r.first_stride + byte
                              : r.second + id * r.second_stride + (byte - r.first_bytes);
}

#define ROWS_PARAMETERS                                                                               \
  const char *first, const char *second, const int *ids, long long count, int group, int first_bytes, \
      int second_bytes, long long first_stride, long long second_stride
#define FOLLOW asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory")
#define ROWS                                                                                  \
  const Rows r { first, second, ids, count, group, first_bytes, second_bytes, first_stride, second_stride }

// Bulk copies into a ring of STAGES stages; one warp per block, at most `piece` bytes per copy.
extern "C" __global__ void gather_bulk(ROWS_PARAMETERS, int piece) {
  ROWS;
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(8) unsigned long long full[STAGES];
  const int lane = threadIdx.x;
  const int row_bytes = first_bytes + second_bytes;
  const int first_pieces = (first_bytes + piece - 1) / piece;
  const int pieces = first_pieces + (second_bytes + piece - 1) / piece;
  if (lane == 0)
    for (int s = 0; s < STAGES; s++)
      asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&full[s])));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncwarp();
  FOLLOW;
  auto wait = [&](long long use) {
    const unsigned barrier = shared_address(&full[use % STAGES]), phase = (use / STAGES) & 1;
    unsigned done = 0;
    while (!done)
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                   : "=r"(done) : "r"(barrier), "r"(phase) : "memory");
  };
  const long long step = (long long)gridDim.x * group;
  long long use = 0, drained = 0, at = (long long)blockIdx.x * group;
  int id = id_of(r, at, lane);
  for (; at < count; at += step, use++) {
    const int ahead = id_of(r, at + step, lane);
    if (use >= STAGES) wait(drained++);
    const unsigned live = __popc(__ballot_sync(0xffffffffu, id >= 0));
    const unsigned barrier = shared_address(&full[use % STAGES]);
    const unsigned stage = shared_address(ring) + (unsigned)(use % STAGES) * group * row_bytes;
    if (lane == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                   ::"r"(barrier), "r"(live * row_bytes) : "memory");
    __syncwarp();
    Walk walk(lane, pieces);
    for (int k = 0; k < group * pieces; k += 32, walk.next()) {
      const int source = __shfl_sync(0xffffffffu, id, walk.row & 31);
      if (walk.row >= group || source < 0) continue;
      const bool leads = walk.column < first_pieces;
      const int offset = (leads ? walk.column : walk.column - first_pieces) * piece;
      const int bytes = min(piece, (leads ? first_bytes : second_bytes) - offset);
      const char* from = (leads ? first + source * first_stride : second + source * second_stride) + offset;
      const unsigned to = stage + walk.row * row_bytes + (leads ? 0 : first_bytes) + offset;
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                   ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
    }
    id = ahead;
  }
  while (drained < use) wait(drained++);
}

// 16-byte asynchronous copies: each warp has DEPTH groups of UNROLL chunks per lane in flight, in its own
// shared memory.
extern "C" __global__ void gather_async(ROWS_PARAMETERS, int stretch) {
  ROWS;
  extern __shared__ __align__(128) char ring[];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const int chunks = (first_bytes + second_bytes) / 16;
  const unsigned mine = shared_address(ring) + (warp * DEPTH * UNROLL * 32 + lane) * 16;
  FOLLOW;
  Deal deal(r, warp, warps, stretch);
  int id = id_of(r, deal.at, lane), slot = 0, filled = 0;
  while (deal.at < count) {
    deal = deal.next();
    const int ahead = id_of(r, deal.at, lane);
    Walk walk(lane, chunks);
    for (int k = 0; k < group * chunks; k += 32, walk.next()) {
      const int source = __shfl_sync(0xffffffffu, id, walk.row & 31);
      const unsigned to = mine + (slot * UNROLL + filled) * 32 * 16;
      if (walk.row < group && source >= 0)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     ::"r"(to), "l"(chunk_at(r, source, walk.column)) : "memory");
      if (++filled == UNROLL) {
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory");
        filled = 0;
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
      }
    }
    id = ahead;
  }
  asm volatile("cp.async.commit_group;" ::: "memory");
  asm volatile("cp.async.wait_group 0;" ::: "memory");
}

// Plain 16-byte loads, LOADS of them in flight per lane; `sink` is never written, but the compiler cannot
// know.
extern "C" __global__ void gather_loads(ROWS_PARAMETERS, int stretch, unsigned* sink) {
  ROWS;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  const int chunks = (first_bytes + second_bytes) / 16;
  FOLLOW;
  Deal deal(r, warp, warps, stretch);
  int id = id_of(r, deal.at, lane);
  unsigned mixed = 0;
  while (deal.at < count) {
    deal = deal.next();
    const int ahead = id_of(r, deal.at, lane);
    Walk walk(lane, chunks);
    for (int k = 0; k < group * chunks; k += 32 * LOADS) {
      uint4 held[LOADS];
#pragma unroll
      for (int i = 0; i < LOADS; i++, walk.next()) {
        const int source = __shfl_sync(0xffffffffu, id, walk.row & 31);
        held[i] = make_uint4(0, 0, 0, 0);
        if (walk.row < group && source >= 0)
          asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(held[i].x), "=r"(held[i].y), "=r"(held[i].z), "=r"(held[i].w)
                       : "l"(chunk_at(r, source, walk.column)));
      }
#pragma unroll
      for (int i = 0; i < LOADS; i++) mixed ^= held[i].x ^ held[i].y ^ held[i].z ^ held[i].w;
    }
    id = ahead;
  }
  if (mixed == 0x9e3779b9u && count < 0) *sink = mixed;
}
