"""Leaves of probes in CuTe DSL: reading the clock, and what each warp keeps of it."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op


@dsl_user_op
def special(register, *, loc=None, ip=None):
    """A special register; nothing moves across. (`inline_ptx` takes none.)"""
    read = llvm.inline_asm(
        T.i32(), [], f"mov.u32 $0, %{register};", "=r,~{memory}", has_side_effects=True, loc=loc, ip=ip
    )
    return Int32(read)


def read_clock():
    """The low word of this SM's clock."""
    return special("clock")


def mark_region(spent, then, lane, region):
    """Count the cycles since the mark before to `region`, whose sum lane `region % 32` keeps."""
    now = read_clock()
    return spent + Int32(cutlass.select_(lane == region % 32, now - then, Int32(0))), now


@cute.jit
def place(probe: cute.Pointer, warps: cutlass.Constexpr, words: cutlass.Constexpr):
    """This warp's words."""
    thread, _, _ = cute.arch.thread_idx()
    x, y, z = cute.arch.block_idx()
    columns, rows, _ = cute.arch.grid_dim()
    warp = (x + columns * (y + rows * z)) * warps + thread // 32
    return probe + Int64(warp) * words


@cute.jit
def put(
    probe: cute.Pointer,
    warps: cutlass.Constexpr,
    words: cutlass.Constexpr,
    at: Int32,
    value: Int32,
    mine: cutlass.Boolean,
):
    """One word of this warp's. No branch: accumulators of products in flight would be copied around it."""
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.b32 p, {$r2}, 0; @p st.global.b32 [{$r0}], {$r1}; }",
        read_only_args=[place(probe, warps, words) + at, value, Int32(mine)],
    )


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
        read_only_args=[place(probe, warps, words) + (first + count % ring * 2), Int32(region), now, lane],
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


@cute.jit
def keep_sums(
    probe: cute.Pointer,
    warps: cutlass.Constexpr,
    words: cutlass.Constexpr,
    first: cutlass.Constexpr,
    count: cutlass.Constexpr,
    spent: Int32,
    lane: Int32,
):
    """Store the sums that this warp's lanes hold."""
    put(probe, warps, words, first + lane, spent, lane < count)


@cute.jit
def note_time(
    probe: cute.Pointer,
    warps: cutlass.Constexpr,
    words: cutlass.Constexpr,
    at: cutlass.Constexpr,
    lane: Int32,
):
    """Store the global timer and the clock, read at one time."""
    timer = special("globaltimer_lo")
    now = read_clock()
    put(probe, warps, words, at, timer, lane == 0)
    put(probe, warps, words, at + 1, now, lane == 0)


@cute.jit
def keep_marks(
    probe: cute.Pointer, warps: cutlass.Constexpr, words: cutlass.Constexpr, count: Int32, lane: Int32
):
    """Store how many marks this warp has noted."""
    put(probe, warps, words, 3, count, lane == 0)
