"""Leaves of probes in CuTe DSL: reading the clock, and what each warp keeps of it."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

# Of the clock all 64 bits are asked for: its low word alone may come through a slow path (S2UR), and a warp waits for it.
CLOCK = "{ .reg .b64 c; mov.u64 c, %clock64; cvt.u32.u64 $0, c; }"

# Number of the CTA. Read wherever it is asked for: what follows from it would be kept in registers across the kernel.
CTA = (
    "{ .reg .b32 x, y; mov.u32 x, %ctaid.z; mov.u32 y, %nctaid.y; mul.lo.u32 x, x, y; mov.u32 y, %ctaid.y; add.u32 x, x, y;"
    " mov.u32 y, %nctaid.x; mul.lo.u32 x, x, y; mov.u32 y, %ctaid.x; add.u32 $0, x, y; }"
)


@dsl_user_op
def read(text, *, loc=None, ip=None):
    """What special registers say; nothing moves across. (`inline_ptx` takes none.)"""
    found = llvm.inline_asm(T.i32(), [], text, "=r,~{memory}", has_side_effects=True, loc=loc, ip=ip)
    return Int32(found)


def read_clock():
    """The low word of this SM's clock."""
    return read(CLOCK)


@dsl_user_op
def mark_region(spent, then, lane, region, *, loc=None, ip=None):
    """Count the cycles since the mark before to `region`, whose sum lane `region % 32` keeps.

    Written out: the compiler would keep the readings of several marks and add them up later.
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
def place(probe: cute.Pointer, warps: cutlass.Constexpr, words: cutlass.Constexpr):
    """This warp's words."""
    thread, _, _ = cute.arch.thread_idx()
    x, y, z = cute.arch.block_idx()
    columns, rows, _ = cute.arch.grid_dim()
    warp = (x + columns * (y + rows * z)) * warps + thread // 32
    return probe + Int64(warp) * words


@cute.jit
def place_anew(probe: cute.Pointer, warps: cutlass.Constexpr, words: cutlass.Constexpr):
    """This warp's words, found again: in registers across the kernel they would be in the way of accumulators."""
    warp = read(CTA) * warps + read("mov.u32 $0, %tid.x;") // 32
    return probe + Int64(warp) * words


@cute.jit
def store(to: cute.Pointer, value: Int32, mine: cutlass.Boolean):
    """One word. No branch: accumulators of products in flight would be copied around it."""
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.b32 p, {$r2}, 0; @p st.global.b32 [{$r0}], {$r1}; }",
        read_only_args=[to, value, Int32(mine)],
    )


@cute.jit
def put(
    probe: cute.Pointer,
    warps: cutlass.Constexpr,
    words: cutlass.Constexpr,
    at: Int32,
    value: Int32,
    mine: cutlass.Boolean,
):
    """One word of this warp's."""
    store(place(probe, warps, words) + at, value, mine)


@cute.jit
def note_region(
    probe: cute.Pointer,
    warps: cutlass.Constexpr,
    words: cutlass.Constexpr,
    first: cutlass.Constexpr,
    ring: cutlass.Constexpr,
    count: Int32,
    then: Int32,
    lane: Int32,
    region: cutlass.Constexpr,
):
    """Note that `region` ends now, in the next place of this warp's ring."""
    now = read_clock()
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.eq.b32 p, {$r3}, 0; @p st.global.v2.b32 [{$r0}], {{$r1}, {$r2}}; }",
        read_only_args=[
            place(probe, warps, words) + (first + (count & (ring - 1)) * 2),
            Int32(region),
            now,
            lane,
        ],
    )
    return count + 1, now


@cute.jit
def enter_role(
    probe: cute.Pointer, warps: cutlass.Constexpr, words: cutlass.Constexpr, then: Int32, lane: Int32
):
    """Note when this warp's kernel began, and where."""
    put(probe, warps, words, 0, then, lane == 0)
    put(probe, warps, words, 2, cute.arch.smid(), lane == 0)


@cute.jit
def leave_role(
    probe: cute.Pointer, warps: cutlass.Constexpr, words: cutlass.Constexpr, then: Int32, lane: Int32
):
    """Note when this warp's last region ended."""
    put(probe, warps, words, 1, then, lane == 0)


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
    """Store the sums that all of this warp's lanes hold."""
    store(place_anew(probe, warps, words) + (first + lane), spent, lane >= 0)


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
    """Store the sums of the first `count` lanes; when this warp's kernel began, which its last one keeps; when it ended, and where."""
    mine = place_anew(probe, warps, words)
    store(mine + (first + lane), spent, lane < count)
    value = cutlass.select_(lane == 31, spent, cutlass.select_(lane == 30, then, cute.arch.smid()))
    store(mine + (31 - lane), value, lane >= 29)


@cute.jit
def note_time(
    probe: cute.Pointer,
    warps: cutlass.Constexpr,
    words: cutlass.Constexpr,
    at: cutlass.Constexpr,
    lane: Int32,
):
    """Store the global timer and the clock, read at one time."""
    timer = read("mov.u32 $0, %globaltimer_lo;")
    now = read_clock()
    put(probe, warps, words, at, timer, lane == 0)
    put(probe, warps, words, at + 1, now, lane == 0)


@cute.jit
def keep_marks(
    probe: cute.Pointer, warps: cutlass.Constexpr, words: cutlass.Constexpr, count: Int32, lane: Int32
):
    """Store how many marks this warp has noted."""
    put(probe, warps, words, 3, count, lane == 0)
