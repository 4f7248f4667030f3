"""Functions for leaf texts: powers, bits of a word, warp-wide operations, atomics, memory of other CTAs.

What each means is in dsl_kernels/device/torch/warps.py; places come as pointers.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64, Uint32, Uint64

from . import inbox

MANY = 1 << 20


def group(place, size, number):
    """Group `number` of aligned groups of `size` consecutive elements, from an address on."""
    aligned = place.align(size * place.dtype.width // 8)
    return cute.make_tensor(aligned, cute.make_layout((size, MANY)))[None, number]


def piece(place, size, row, column, shape, swizzle):
    """`size` elements of a row of a matrix in shared memory, from a column on that is a multiple of `size`.

    A swizzle splits the columns into panels of `swizzle` bytes, and permutes the 16-byte pieces of a panel's
    row by the row's number.
    """
    rows, columns = shape
    unit = 128 // place.dtype.width
    panel = swizzle * 8 // place.dtype.width or columns
    at = row * panel + column % panel
    if swizzle:
        exchanged = column % panel // unit ^ row * swizzle // 128 % (swizzle // 16)
        at = row * panel + exchanged * unit + column % unit
    to = place.align(max(swizzle * 8, size * place.dtype.width // 8)) + cute.assume(
        column // panel * (rows * panel) + at, divby=size
    )
    return cute.make_tensor(to, cute.make_layout(size))


def few(registers, first, size):
    """`size` registers from `first` on."""
    return cute.make_tensor(registers.iterator + first, cute.make_layout(size))


def exp2(x):
    return cute.math.exp2(x, fastmath=True)


def log2(x):
    return cute.math.log2(x, fastmath=True)


def rcp_approx(x):
    return cute.arch.rcp_approx(x)


def exchange(value, bits):
    return cute.arch.shuffle_sync_bfly(value, bits)


def popc(word):
    return cute.arch.popc(word)


def clz(word):
    return Int32(cute.arch.clz(word))


def mul_hi(a, b):
    return cute.arch.mul_hi(a, b)


def pair_low(pair):
    return pair.to(Int32)


def pair_high(pair):
    return (pair.to(Uint64) >> 32).to(Int32)


def make_pair(high, low):
    return ((high.to(Uint64) << 32) | low.bitcast(Uint32).to(Uint64)).to(Int64)


def unsigned_above(a, b):
    return a.to(Uint64) > b.to(Uint64)


def ballot(condition):
    return cute.arch.vote_ballot_sync(condition)


def any_lane(condition):
    return cute.arch.vote_any_sync(condition)


def shuffle(value, lane):
    return cute.arch.shuffle_sync(value, lane)


def scan(value, lanes=32):
    """Inclusive prefix sum of an int32 over the first `lanes` lanes, a power of two; undefined in others."""
    steps = "".join(
        f"shfl.sync.up.b32 t|p, {{$w0}}, {1 << i}, 0, -1; @p add.s32 {{$w0}}, {{$w0}}, t; "
        for i in range(lanes.bit_length() - 1)
    )
    return cute.arch.inline_ptx(
        "{ .reg .pred p; .reg .b32 t; mov.b32 {$w0}, {$r0}; " + steps + "}",
        write_only_types=[Int32],
        read_only_args=[value],
    )


def warp_sum(value):
    return cute.arch.warp_redux_sync(value, "add")


def warp_max(value):
    return cute.arch.warp_redux_sync(value, "max")


def warp_most(value):
    return cute.arch.inline_ptx(
        "redux.sync.max.u32 {$w0}, {$r0}, -1;", write_only_types=[Uint32], read_only_args=[value]
    )


def atomic_add(place, value):
    return cute.arch.atomic_add(place, Int32(value), sem="relaxed", scope="cta")


fetch_add = atomic_add


def count_where(place, yes):
    """A predicated addition: with a branch for each, several additions could not be in flight."""
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.s32 p, {$r1}, 0; @p red.shared.add.u32 [{$r0}], 1; }",
        read_only_args=[place.toint(), Int32(yes)],
    )


def set_bits(place, bits):
    return cute.arch.atomic_or(place, bits, sem="relaxed", scope="cta")


def raise_to(place, value):
    cute.arch.inline_ptx("red.shared.max.u32 [{$r0}], {$r1};", read_only_args=[place.toint(), value])


def _peer_address(place, rank):
    return _peer(place.toint(), rank)


def _peer(address, rank):
    return cute.arch.inline_ptx(
        "mapa.shared::cluster.u32 {$w0}, {$r0}, {$r1};",
        write_only_types=[Int32],
        read_only_args=[address, rank],
    )


def store_peer(place, rank, value):
    cute.arch.inline_ptx(
        f"st.shared::cluster.b{value.width} [{{$r0}}], {{$r1}};",
        read_only_args=[_peer_address(place, rank), value],
    )


def load_peer_pair(place, rank):
    return cute.arch.inline_ptx(
        "ld.shared::cluster.b64 {$w0}, [{$r0}];",
        write_only_types=[Int64],
        read_only_args=[_peer_address(place, rank)],
    )


def sync_warp():
    cute.arch.sync_warp()


def load_or(place, wanted, otherwise):
    """A predicated load: with a branch for each, several loads could not be in flight."""
    return cute.arch.inline_ptx(
        f"{{ .reg .pred p; setp.ne.b32 p, {{$r1}}, 0; mov.b32 {{$w0}}, {otherwise}; @p ld.global.b32 {{$w0}}, [{{$r0}}]; }}",  # noqa: E501
        write_only_types=[Int32],
        read_only_args=[place, Int32(wanted)],
    )


def read_where(words, at, count, address, wanted):
    """Load one, two or four words into registers from `at` on; zeros, without a read, if not wanted.

    There is no select after the load, as it would wait for it. Loads do not move across a barrier, except for
    those of a single word.
    """
    names = [f"{{$w{i}}}" for i in range(count)]
    zeros = "".join(f"mov.b32 {name}, 0; " for name in names)
    vector = f"L1::no_allocate.v{count}.b32 {{{', '.join(names)}}}"
    got = cute.arch.inline_ptx(
        f"{{ .reg .pred p; setp.ne.b32 p, {{$r1}}, 0; {zeros}"
        f"@p ld.global.{'nc.b32 ' + names[0] if count == 1 else vector}, [{{$r0}}]; }}",
        write_only_types=[Int32] * count,
        read_only_args=[address, Int32(wanted)],
    )
    for i in range(count):
        words[at + i] = words.element_type(got if count == 1 else got[i])


def write16(to, words):
    cute.arch.inline_ptx(
        "st.shared.v4.b32 [{$r0}], {{$r1}, {$r2}, {$r3}, {$r4}};", read_only_args=[to, *words]
    )


def prefetch(place, wanted):
    cute.arch.inline_ptx(
        "{ .reg .pred p; setp.ne.b32 p, {$r1}, 0; @p prefetch.global.L2 [{$r0}]; }",
        read_only_args=[place.toint(), Int32(wanted)],
    )


def load_vector(registers, first, count, place, wanted):
    read_where(registers, first, count, place.toint(), wanted)


def store_vector(registers, first, place):
    write16(place.toint(), [Int32(registers[first + i]) for i in range(4)])


def copy16(to, source, wanted):
    start_copy16(to.toint(), source.toint(), wanted)


def copy8(to, source, wanted):
    size = Int32(cutlass.select_(wanted, Int32(8), Int32(0)))
    cute.arch.inline_ptx(
        "cp.async.ca.shared.global [{$r0}], [{$r1}], 8, {$r2};",
        read_only_args=[to.toint(), source.toint(), size],
    )


def copy_row16(to, rows, pitch, first, row, at, n):
    width, inside = rows.dtype.width // 8, (row >= 0) & (row < n)
    base, row_bytes = rows.toint() + Int64(first * width), Int64(pitch) * width
    source = base + Int64(cutlass.select_(inside, row, Int32(0))) * row_bytes
    start_copy16(to.toint(), source + at * width, inside)


def start_copy16(to, source, wanted):
    """`copy16` by addresses."""
    size = Int32(16) if wanted is True else Int32(cutlass.select_(wanted, Int32(16), Int32(0)))
    cute.arch.inline_ptx(
        "cp.async.cg.shared.global [{$r0}], [{$r1}], 16, {$r2};",
        read_only_args=[to, source, size],
    )


def pack(low, high, to="bf16"):
    """Two floats as bf16, or f16, in one word."""
    return cute.arch.inline_ptx(
        f"cvt.rn.{to}x2.f32 {{$w0}}, {{$r1}}, {{$r0}};", write_only_types=[Int32], read_only_args=[low, high]
    )


def scaled_pairs(word, scale):
    """Four e4m3 values to bf16, times a float32 scale: via float16, which is exact, and float32."""
    return [
        cute.arch.inline_ptx(
            f"{{ .reg .b16 low, high, a, b; .reg .b32 two; .reg .f32 x, y; mov.b32 {{{halves}}}, {{$r0}};"
            " cvt.rn.f16x2.e4m3x2 two, low; mov.b32 {a, b}, two; cvt.f32.f16 x, a; cvt.f32.f16 y, b;"
            " mul.f32 x, x, {$r1}; mul.f32 y, y, {$r1}; cvt.rn.bf16x2.f32 {$w0}, y, x; }",
            write_only_types=[Int32],
            read_only_args=[word, scale],
        )
        for halves in ("low, high", "high, low")
    ]


def store_fp8(first, second, registers, at, scale):
    write_fp8((first.toint(), second.toint()), [Int32(registers[at + i]) for i in range(4)], Int32(scale))


def write_fp8(places, four, scale_bits):
    """Store four words of fp8 values times their scale to two addresses in shared memory."""
    scale = cute.arch.inline_ptx(
        "mov.b32 {$w0}, {$r0};", write_only_types=[Float32], read_only_args=[scale_bits]
    )
    pairs = [pair for word in four for pair in scaled_pairs(word, scale)]
    for half, to in enumerate(places):
        write16(to, pairs[4 * half : 4 * half + 4])


def store_matrices(place, registers, first, count, transposed=False):
    to = "f16" if place.dtype is cutlass.Float16 else "bf16"
    words = [pack(registers[first + 2 * i], registers[first + 2 * i + 1], to) for i in range(count)]
    listed = ", ".join(f"{{$r{i + 1}}}" for i in range(count))
    cute.arch.inline_ptx(
        f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16 [{{$r0}}], {{{listed}}};",
        read_only_args=[place.toint(), *words],
    )


def send_fours(place, full, rank, registers, step):
    to, there = _peer_address(place, rank), _peer_address(full, rank)
    for i in range(0, cute.size(registers), 4):
        cute.arch.inline_ptx(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [{$r0}], {{$r2}, {$r3}, {$r4}, {$r5}}, [{$r1}];",  # noqa: E501
            read_only_args=[to + i * step, there, *(registers[i + e] for e in range(4))],
        )


@cute.jit
def send_rows(
    place: cute.Pointer,
    full: cute.Pointer,
    rank: Int32,
    rows: cutlass.Constexpr,
    panels: cutlass.Constexpr,
    tall: cutlass.Constexpr,
):
    with cute.arch.elect_one():
        # A swizzle may have moved the first element within its row.
        own = place.toint() & -128
        to, there = _peer(own, rank), _peer_address(full, rank)
        for panel in cutlass.range_constexpr(panels):
            cute.arch.inline_ptx(
                "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [{$r0}], [{$r1}], {$r2}, [{$r3}];",  # noqa: E501
                read_only_args=[
                    to + panel * (tall * 128),
                    own + panel * (tall * 128),
                    Int32(rows * 128),
                    there,
                ],
            )


def show_copies():
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_warp()


def push(place, values):
    inbox.push(place.toint(), [values[i] for i in range(cute.size(values))])


def store_pair(place, low, high):
    cute.arch.inline_ptx("st.global.b32 [{$r0}], {$r1};", read_only_args=[place.toint(), pack(low, high)])
