"""Leaves of probes in CuTe DSL: reading the clock, and what each warp records of it."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

# All 64 bits of the clock are read: the low word alone may come through a slow path (S2UR), and a warp waits
# for it.
CLOCK = "{ .reg .b64 c; mov.u64 c, %clock64; cvt.u32.u64 $0, c; }"

TIMER = "mov.u32 $0, %globaltimer_lo;"

# The number of the CTA. It is read anew at each use, as it would take registers across the whole kernel.
CTA = (
    "{ .reg .b32 x, y; mov.u32 x, %ctaid.z; mov.u32 y, %nctaid.y; mul.lo.u32 x, x, y; mov.u32 y, %ctaid.y; add.u32 x, x, y;"  # noqa: E501
    " mov.u32 y, %nctaid.x; mul.lo.u32 x, x, y; mov.u32 y, %ctaid.x; add.u32 $0, x, y; }"
)


@dsl_user_op
def read(text, *, loc=None, ip=None):
    """The value of a special register, which `inline_ptx` cannot name; no access moves across the reading."""
    found = llvm.inline_asm(T.i32(), [], text, "=r,~{memory}", has_side_effects=True, loc=loc, ip=ip)
    return Int32(found)


def read_clock():
    """The low word of this SM's clock."""
    return read(CLOCK)


@dsl_user_op
def mark_region(spent, then, lane, region, *, loc=None, ip=None):
    """Add the cycles since the last mark to the sum of `region`, in lane `region % 32`.

    One block of PTX: the compiler would keep the readings of several marks and add them up later.
    """
    values = [Int32(value).ir_value(loc=loc, ip=ip) for value in (spent, then, lane)]
    add = f"setp.eq.s32 p, $4, {region % 32}; sub.s32 d, $0, $3; mov.b32 $1, $2; @p add.s32 $1, $1, d;"
    both = llvm.inline_asm(
        llvm.StructType.get_literal([T.i32(), T.i32()]),
        values,
        f"{{ .reg .pred p; .reg .b32 d; {CLOCK} {add} }}",
        "=&r,=&r,r,r,r,~{memory}",
        has_side_effects=True,
        loc=loc,
        ip=ip,
    )
    now, sum = (Int32(llvm.extractvalue(T.i32(), both, [i], loc=loc, ip=ip)) for i in (0, 1))
    return sum, now


@cute.jit
def own_words(probe: cute.Pointer, warps: cutlass.Constexpr, words: cutlass.Constexpr):
    """The address of this warp's words, computed anew: accumulators need the registers."""
    warp = read(CTA) * warps + read("mov.u32 $0, %tid.x;") // 32
    return probe + Int64(warp) * words


@cute.jit
def store(to: cute.Pointer, value: Int32, mine: cutlass.Boolean):
    """Store one word without a branch, around which accumulators of products in flight would be copied."""
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.b32 p, {$r2}, 0; @p st.global.b32 [{$r0}], {$r1}; }",
        read_only_args=[to, value, Int32(mine)],
    )


def of_lane(lane, *values):
    """The value of each of the first lanes; the others have the last."""
    *first, chosen = values
    for number, value in reversed(list(enumerate(first))):
        chosen = cutlass.select_(lane == number, value, chosen)
    return chosen


@dsl_user_op
def note_region(place, ahead, regions, region, *, loc=None, ip=None):
    """Note that `region` ends now, `ahead` words from `place`: the clock times `regions`, plus the region.

    Every lane stores it, as all of them store the same word.
    """
    text = (
        f"{{ .reg .b32 now; {CLOCK.replace('$0', 'now')} mad.lo.s32 now, now, {regions}, {region};"
        f" st.global.b32 [$0+{4 * ahead}], now; }}"
    )
    values = [Int64(place).ir_value(loc=loc, ip=ip)]
    llvm.inline_asm(None, values, text, "l,~{memory}", has_side_effects=True, loc=loc, ip=ip)


@dsl_user_op
def pass_marks(place, ring, marks, *, loc=None, ip=None):
    """The place after `marks` marks in a ring aligned to its size, so that only the low word changes."""
    text = (
        f"{{ .reg .b32 at, next, high; mov.b64 {{at, high}}, $1; add.u32 next, at, {4 * marks};"
        f" lop3.b32 at, next, at, {4 * ring - 1}, 0xE4; mov.b64 $0, {{at, high}}; }}"
    )
    values = [Int64(place).ir_value(loc=loc, ip=ip)]
    return Int64(llvm.inline_asm(T.i64(), values, text, "=l,l", has_side_effects=False, loc=loc, ip=ip))


@cute.jit
def enter_ring(
    probe: cute.Pointer,
    warps: cutlass.Constexpr,
    words: cutlass.Constexpr,
    first: cutlass.Constexpr,
    ring: cutlass.Constexpr,
    empty: cutlass.Constexpr,
    then: Int32,
    lane: Int32,
):
    """Note when and on which SM this warp's kernel began, the timer and the clock; gives a ring's address.

    The ring of `ring` words begins at a multiple of its size after the `first` words. Its last word and the
    31 words after it start as `empty`.
    """
    mine = own_words(probe, warps, words)
    timer = read(TIMER)
    store(mine + lane, of_lane(lane, then, cute.arch.smid(), timer, read_clock()), lane < 4)
    begin = mine + (first + (-(Int32(mine.toint()) + 4 * first >> 2) & (ring - 1)))
    store(begin + (ring - 1 + lane), Int32(empty), lane >= 0)
    # This adds zero, which ptxas does not know: it would keep a uniform address, and move it at each mark.
    return begin.toint() + Int64(lane * read("{ .reg .b32 x; mov.u32 x, %nctaid.z; shr.u32 $0, x, 31; }"))


@cute.jit
def leave_ring(
    probe: cute.Pointer,
    warps: cutlass.Constexpr,
    words: cutlass.Constexpr,
    ring: cutlass.Constexpr,
    place: Int64,
    lane: Int32,
):
    """Note where this warp's ring and its next word are, the global timer and the clock."""
    mine = own_words(probe, warps, words)
    at = Int32(place - mine.toint()) >> 2
    past = (Int32(place) >> 2) & (ring - 1)
    timer = read(TIMER)
    store(mine + (4 + lane), of_lane(lane, at - past, at, timer, read_clock()), lane < 4)


def begin_sums(spent, then, lane):
    """Keep in the last lane when this warp's kernel began."""
    return cutlass.select_(lane == 31, then, spent)


@cute.jit
def keep_sums(
    probe: cute.Pointer,
    warps: cutlass.Constexpr,
    words: cutlass.Constexpr,
    first: cutlass.Constexpr,
    spent: Int32,
    lane: Int32,
):
    """Store the sums of all of this warp's lanes."""
    store(own_words(probe, warps, words) + (first + lane), spent, lane >= 0)


@cute.jit
def end_sums(
    probe: cute.Pointer,
    warps: cutlass.Constexpr,
    words: cutlass.Constexpr,
    first: cutlass.Constexpr,
    count: cutlass.Constexpr,
    spent: Int32,
    then: Int32,
    lane: Int32,
):
    """Store the sums of the first `count` lanes, when this warp's kernel began and ended, and its SM."""
    mine = own_words(probe, warps, words)
    store(mine + (first + lane), spent, lane < count)
    value = cutlass.select_(lane == 31, spent, cutlass.select_(lane == 30, then, cute.arch.smid()))
    store(mine + (31 - lane), value, lane >= 29)
