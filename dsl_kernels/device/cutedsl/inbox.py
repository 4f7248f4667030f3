"""Words that CTAs of a grid send to one another through global memory.

The memory is zero between launches, and a word has arrived when it is not zero. So there is no flag, no fence
and no counter, and a word takes one store and one load. A zero is sent as -0.0.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

MINUS_ZERO = "0f80000000"


def push(to: Int64, values):
    """Send two or four floats to an address aligned to their size."""
    count = len(values)
    words = [
        cute.arch.inline_ptx(
            "{ .reg .pred p; setp.eq.f32 p, {$r0}, 0f00000000; selp.f32 {$w0}, "
            + MINUS_ZERO
            + ", {$r0}, p; }",
            write_only_types=[Float32],
            read_only_args=[value],
        )
        for value in values
    ]
    listed = ", ".join(f"{{$r{i + 1}}}" for i in range(count))
    cute.arch.inline_ptx(
        f"st.relaxed.gpu.global.v{count}.f32 [{{$r0}}], {{{listed}}};", read_only_args=[to, *words]
    )


def _look(at: Int64, words):
    """Four words of global memory as they are now; `words` if all of these have arrived already."""
    return cute.arch.inline_ptx(
        "{ .reg .pred p; setp.eq.b32 p, {$r1}, 0; setp.eq.or.b32 p, {$r2}, 0, p; "
        "setp.eq.or.b32 p, {$r3}, 0, p; setp.eq.or.b32 p, {$r4}, 0, p; "
        "mov.b32 {$w0}, {$r1}; mov.b32 {$w1}, {$r2}; mov.b32 {$w2}, {$r3}; mov.b32 {$w3}, {$r4}; "
        "@p ld.relaxed.gpu.global.v4.b32 {{$w0}, {$w1}, {$w2}, {$w3}}, [{$r0}]; }",
        write_only_types=[Int32] * 4,
        read_only_args=[at, *words],
    )


@cute.jit
def collect(
    to: cute.Pointer,
    words: cute.Pointer,
    count: cutlass.Constexpr,
    thread: Int32,
    threads: cutlass.Constexpr,
):
    """Wait until `count` words have arrived, move them into shared memory, and leave zeros in their place."""
    rounds = cutlass.const_expr((count // 4 + threads - 1) // threads)
    # In the last round only this many threads have words to wait for.
    last = cutlass.const_expr(count // 4 - (rounds - 1) * threads)
    got = cute.make_rmem_tensor((rounds, 4), Int32)
    got.fill(0)
    base, target = words.toint() + Int64(thread * 16), to.toint() + thread * 16
    if thread >= last:
        for e in cutlass.range_constexpr(4):
            got[rounds - 1, e] = 1
    missing = Int32(1)
    while missing != 0:
        missing = Int32(0)
        for i in cutlass.range_constexpr(rounds):
            four = _look(base + i * (threads * 16), [got[i, e] for e in range(4)])
            for e in cutlass.range_constexpr(4):
                got[i, e] = four[e]
        for i in cutlass.range_constexpr(rounds):
            for e in cutlass.range_constexpr(4):
                missing = missing | Int32(got[i, e] == 0)
    for i in cutlass.range_constexpr(rounds):
        if (thread < last) | (i < rounds - 1):
            _keep(target + i * (threads * 16), base + i * (threads * 16), [got[i, e] for e in range(4)])


def _keep(to, at, words):
    """Store four words that have arrived, and zeros in their place."""
    cute.arch.inline_ptx(
        "st.shared.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};", read_only_args=[to, *words]
    )
    cute.arch.inline_ptx(
        "{ .reg .b32 z; mov.b32 z, 0; st.relaxed.gpu.global.v4.b32 [{$r0}], {z, z, z, z}; }",
        read_only_args=[at],
    )
