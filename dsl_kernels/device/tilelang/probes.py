"""Leaves of probes in TileLang: reading the clock, and what each warp records of it."""

import tilelang.language as T

# No access moves across a reading of the clock, and clocks wrap. Stores have no branches, around which
# accumulators of products in flight would be copied.
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
// Found again: in registers across the kernel it would be in the way of accumulators.
__device__ __forceinline__ int* own_words(int* probe, int warps, int words) {
  unsigned cta, thread;
  asm volatile("{ .reg .b32 x, y; mov.u32 x, %%ctaid.z; mov.u32 y, %%nctaid.y; mul.lo.u32 x, x, y; mov.u32 y, %%ctaid.y; add.u32 x, x, y;"
               " mov.u32 y, %%nctaid.x; mul.lo.u32 x, x, y; mov.u32 y, %%ctaid.x; add.u32 %0, x, y; mov.u32 %1, %%tid.x; }" : "=r"(cta), "=r"(thread));
  return probe + (size_t(cta) * warps + thread / 32) * words;
}
__device__ __forceinline__ void store(int* to, int value, bool mine) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p st.global.b32 [%0], %1; }" :: "l"(to), "r"(value), "r"(int(mine)) : "memory");
}
__device__ __forceinline__ int sm() { int sm; asm("mov.u32 %0, %%smid;" : "=r"(sm)); return sm; }
__device__ __forceinline__ int timer() { int now; asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now) :: "memory"); return now; }
__device__ __forceinline__ int begin(int spent, int then, int lane) { return lane == 31 ? then : spent; }
__device__ __forceinline__ void keep(int* probe, int warps, int words, int at, int spent) {
  store(own_words(probe, warps, words) + at, spent, true);
}
__device__ __forceinline__ void end(int* probe, int warps, int words, int first, int count, int spent, int then, int lane) {
  int* mine = own_words(probe, warps, words);
  store(mine + first + lane, spent, lane < count);
  store(mine + 31 - lane, lane == 31 ? spent : lane == 30 ? then : sm(), lane >= 29);
}
// No lane is chosen: they all say the same.
__device__ __forceinline__ void note(long long place, int ahead, int regions, int region) {
  asm volatile("{ .reg .b64 c; .reg .b32 now; mov.u64 c, %%clock64; cvt.u32.u64 now, c; mad.lo.s32 now, now, %1, %2; st.global.b32 [%0], now; }"
               :: "l"(place + 4 * ahead), "r"(regions), "r"(region) : "memory");
}
// A ring lies at a multiple of its size: only the low word changes.
__device__ __forceinline__ long long pass(long long place, int ring, int marks) {
  asm("{ .reg .b32 at, next, high; mov.b64 {at, high}, %0; add.u32 next, at, %1; lop3.b32 at, next, at, %2, 0xE4; mov.b64 %0, {at, high}; }"
      : "+l"(place) : "r"(4 * marks), "r"(4 * ring - 1));
  return place;
}
__device__ __forceinline__ long long enter(int* probe, int warps, int words, int first, int ring, int empty, int then, int lane) {
  int* mine = own_words(probe, warps, words);
  int at = timer(), now = clock();
  store(mine + lane, lane == 0 ? then : lane == 1 ? sm() : lane == 2 ? at : now, lane < 4);
  int* begin = mine + first;
  begin += -(unsigned(size_t(begin)) / 4) & (ring - 1);
  store(begin + ring - 1 + lane, empty, true);
  // Nothing is added, which ptxas does not know: in uniform registers an address would be moved at each mark.
  return (long long)begin + (gridDim.z >> 31) * lane;
}
__device__ __forceinline__ void leave(int* probe, int warps, int words, int ring, long long place, int lane) {
  int* mine = own_words(probe, warps, words);
  int next = int(place - (long long)mine) / 4, past = unsigned(place) / 4 & (ring - 1);
  int at = timer(), now = clock();
  store(mine + 4 + lane, lane == 0 ? next - past : lane == 1 ? next : lane == 2 ? at : now, lane < 4);
}
}  // namespace probes
"""  # noqa: E501


# Assigning a T.Ref parameter stores into the caller's variable.
@T.macro
def read_clock(now: T.Ref):
    """The low word of this SM's clock."""
    now = T.call_extern("int32", "probes::clock")  # noqa: F841


@T.macro
def mark_region(spent: T.Ref, then: T.Ref, lane, region):
    """Add the cycles since the last mark to the sum of `region`, in lane `region % 32`."""
    now = T.alloc_var("int32", init=0)
    now = T.call_extern("int32", "probes::clock")
    spent = T.call_extern("int32", "probes::sum", spent, now, then, lane, region % 32)
    then = now


@T.macro
def note_region(place, ahead, regions, region):
    """Note that `region` ends now, `ahead` words from `place`: the clock times `regions`, plus the region."""
    T.call_extern("handle", "probes::note", place, ahead, regions, region)


@T.macro
def pass_marks(place: T.Ref, ring, marks):
    """The place after `marks` marks in a ring of `ring` words, which is aligned to its size."""
    place = T.call_extern("int64", "probes::pass", place, ring, marks)


@T.macro
def enter_ring(probe, warps, words, first, ring, empty, place: T.Ref, then, lane):
    """Note when and on which SM this warp's kernel began, the timer and the clock; gives a ring's address.

    The ring of `ring` words begins at a multiple of its size after the `first` words. Its last word and the
    31 words after it start as `empty`.
    """
    place = T.call_extern(  # noqa: F841
        "int64", "probes::enter", T.address_of(probe[0]), warps, words, first, ring, empty, then, lane
    )


@T.macro
def leave_ring(probe, warps, words, ring, place, lane):
    """Note where this warp's ring and its next word are, the global timer and the clock."""
    T.call_extern("handle", "probes::leave", T.address_of(probe[0]), warps, words, ring, place, lane)


@T.macro
def begin_sums(spent: T.Ref, then, lane):
    """Keep in the last lane when this warp's kernel began."""
    spent = T.call_extern("int32", "probes::begin", spent, then, lane)


@T.macro
def keep_sums(probe, warps, words, first, spent, lane):
    """Store the sums of all of this warp's lanes."""
    T.call_extern("handle", "probes::keep", T.address_of(probe[0]), warps, words, first + lane, spent)


@T.macro
def end_sums(probe, warps, words, first, count, spent, then, lane):
    """Store the sums of the first `count` lanes, when this warp's kernel began and ended, and its SM."""
    T.call_extern(
        "handle", "probes::end", T.address_of(probe[0]), warps, words, first, count, spent, then, lane
    )
