"""Leaves of probes in TileLang: reading the clock, and what each warp keeps of it."""

import tilelang.language as T

# Nothing moves across a reading of the clock, and clocks wrap. Stores are no branches: accumulators of products in flight
# would be copied around them.
SOURCE = r"""
namespace probes {
// Of all 64 bits: the low word alone may come through a slow path (S2UR), and a warp waits for it.
__device__ __forceinline__ int clock() { long long now; asm volatile("mov.u64 %0, %%clock64;" : "=l"(now) :: "memory"); return int(now); }
// Written out: the compiler would keep the readings of several marks and add them up later.
__device__ __forceinline__ int sum(int spent, int now, int then, int lane, int region) {
  asm volatile("{ .reg .pred p; .reg .b32 d; setp.eq.s32 p, %3, %4; sub.s32 d, %1, %2; @p add.s32 %0, %0, d; }"
               : "+r"(spent) : "r"(now), "r"(then), "r"(lane), "r"(region));
  return spent;
}
__device__ __forceinline__ int* place(int* probe, int warps, int words) {
  unsigned cta = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  return probe + (size_t(cta) * warps + threadIdx.x / 32) * words;
}
// Found again: in registers across the kernel it would be in the way of accumulators.
__device__ __forceinline__ int* place_anew(int* probe, int warps, int words) {
  unsigned cta, thread;
  asm volatile("{ .reg .b32 x, y; mov.u32 x, %%ctaid.z; mov.u32 y, %%nctaid.y; mul.lo.u32 x, x, y; mov.u32 y, %%ctaid.y; add.u32 x, x, y;"
               " mov.u32 y, %%nctaid.x; mul.lo.u32 x, x, y; mov.u32 y, %%ctaid.x; add.u32 %0, x, y; mov.u32 %1, %%tid.x; }" : "=r"(cta), "=r"(thread));
  return probe + (size_t(cta) * warps + thread / 32) * words;
}
__device__ __forceinline__ void store(int* to, int value, bool mine) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p st.global.b32 [%0], %1; }" :: "l"(to), "r"(value), "r"(int(mine)) : "memory");
}
__device__ __forceinline__ void put(int* probe, int warps, int words, int at, int value, bool mine) {
  store(place(probe, warps, words) + at, value, mine);
}
__device__ __forceinline__ void put_sm(int* probe, int warps, int words, int at, bool mine) {
  int sm;
  asm("mov.u32 %0, %%smid;" : "=r"(sm));
  put(probe, warps, words, at, sm, mine);
}
__device__ __forceinline__ int begin(int spent, int then, int lane) { return lane == 31 ? then : spent; }
__device__ __forceinline__ void keep(int* probe, int warps, int words, int at, int spent) {
  store(place_anew(probe, warps, words) + at, spent, true);
}
__device__ __forceinline__ void end(int* probe, int warps, int words, int first, int count, int spent, int then, int lane) {
  int* mine = place_anew(probe, warps, words);
  int sm;
  asm("mov.u32 %0, %%smid;" : "=r"(sm));
  store(mine + first + lane, spent, lane < count);
  store(mine + 31 - lane, lane == 31 ? spent : lane == 30 ? then : sm, lane >= 29);
}
__device__ __forceinline__ void note(int* probe, int warps, int words, int at, int region, int now, bool mine) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; @p st.global.v2.b32 [%0], {%1, %2}; }"
               :: "l"(place(probe, warps, words) + at), "r"(region), "r"(now), "r"(int(mine)) : "memory");
}
__device__ __forceinline__ void put_time(int* probe, int warps, int words, int at, bool mine) {
  int timer;
  asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(timer) :: "memory");
  int now = clock();
  put(probe, warps, words, at, timer, mine);
  put(probe, warps, words, at + 1, now, mine);
}
}  // namespace probes
"""


# Assigning a T.Ref parameter stores into the caller's variable.
@T.macro
def read_clock(now: T.Ref):
    """The low word of this SM's clock."""
    now = T.call_extern("int32", "probes::clock")  # noqa: F841


@T.macro
def mark_region(spent: T.Ref, then: T.Ref, lane, region):
    """Count the cycles since the mark before to `region`, whose sum lane `region % 32` keeps."""
    now = T.alloc_var("int32", init=0)
    now = T.call_extern("int32", "probes::clock")
    spent = T.call_extern("int32", "probes::sum", spent, now, then, lane, region % 32)
    then = now


@T.macro
def note_region(probe, warps, words, first, ring, count: T.Ref, then: T.Ref, lane, region):
    """Note that `region` ends now, in the next place of this warp's ring."""
    then = T.call_extern("int32", "probes::clock")
    at = first + (count & (ring - 1)) * 2
    T.call_extern("handle", "probes::note", T.address_of(probe[0]), warps, words, at, region, then, lane == 0)
    count = count + 1


@T.macro
def enter_role(probe, warps, words, then, lane):
    """Note when this warp's kernel began, and where."""
    T.call_extern("handle", "probes::put", T.address_of(probe[0]), warps, words, 0, then, lane == 0)
    T.call_extern("handle", "probes::put_sm", T.address_of(probe[0]), warps, words, 2, lane == 0)


@T.macro
def leave_role(probe, warps, words, then, lane):
    """Note when this warp's last region ended."""
    T.call_extern("handle", "probes::put", T.address_of(probe[0]), warps, words, 1, then, lane == 0)


@T.macro
def begin_sums(spent: T.Ref, then, lane):
    """Keep in the last lane when this warp's kernel began."""
    spent = T.call_extern("int32", "probes::begin", spent, then, lane)


@T.macro
def keep_sums(probe, warps, words, first, spent, lane):
    """Store the sums that all of this warp's lanes hold."""
    T.call_extern("handle", "probes::keep", T.address_of(probe[0]), warps, words, first + lane, spent)


@T.macro
def end_sums(probe, warps, words, first, count, spent, then, lane):
    """Store the sums of the first `count` lanes; when this warp's kernel began, which its last one keeps; when it ended, and where."""
    T.call_extern(
        "handle", "probes::end", T.address_of(probe[0]), warps, words, first, count, spent, then, lane
    )


@T.macro
def note_time(probe, warps, words, at, lane):
    """Store the global timer and the clock, read at one time."""
    T.call_extern("handle", "probes::put_time", T.address_of(probe[0]), warps, words, at, lane == 0)


@T.macro
def keep_marks(probe, warps, words, count, lane):
    """Store how many marks this warp has noted."""
    T.call_extern("handle", "probes::put", T.address_of(probe[0]), warps, words, 3, count, lane == 0)
