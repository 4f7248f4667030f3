"""compress_rows__cutedsl_sm100a__d128

Generated from dsl_kernels/kernels/compress_rows and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: dim=128.

roles
  compress   threads 0..31  four channels per thread
buffers
  sums       1 float32, shared
  held       32x4 float32, registers of compress
  named barrier compress: compress
totals: 32 threads, 4 of 232448 bytes of shared memory, grid (rows)
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from dsl_kernels.device.cutedsl import floats, scalars, warps
from dsl_kernels.runtime.artifact import Launch, Operand

DIM = 128  # channels per row: 512 for attention's cache, 128 for the indexer's
COMPRESS_BARRIER = 1
COMPRESS_THREADS = 32


LAUNCH = Launch(
    operands=(
        Operand("kv", "tensor", "float32", ("tokens", "width"), strides=("kv_stride", "1")),
        Operand("scores", "tensor", "float32", ("tokens", "width"), strides=("scores_stride", "1")),
        Operand("ape", "tensor", "float32", ("ratio", "width"), strides=("ape_stride", "1")),
        Operand("weight", "tensor", "float32", ("128",)),
        Operand("windows", "tensor", "int32", ("rows", "span"), strides=("windows_stride", "1")),
        Operand("positions", "tensor", "int32", ("rows",)),
        Operand("cos_sin", "tensor", "float32", ("angles", "turned")),
        Operand("row_slots", "tensor", "int32", ("rows",)),
        Operand("eps", "scalar", "float32"),
        Operand("page_size", "scalar", "int32"),
        Operand(
            "cache", "tensor", "int32", ("pages", "page_words"), strides=("cache_stride", "1"), written=True
        ),
    ),
    grid=("rows", "1", "1"),
    block=32,
    cluster=(1, 1, 1),
)


@cute.struct
class Shared:
    sums: cute.struct.Align[cute.struct.MemRange[Float32, 1], 128]


@cute.jit
def weigh_window(
    held, kv, kv_stride_0, scores, scores_stride_0, ape, ape_stride_0, windows, windows_stride_0, row, ratio,
    span, thread
):
    """Compute, for each channel of the thread, the mean of a row's window by an online softmax."""
    window = windows + Int64(row) * windows_stride_0
    value = cute.make_rmem_tensor(16, cutlass.Uint32)
    score = cute.make_rmem_tensor(16, cutlass.Uint32)
    bias = cute.make_rmem_tensor(16, cutlass.Uint32)
    peak = cute.make_rmem_tensor(4, Float32)
    total = cute.make_rmem_tensor(4, Float32)
    tokens = cute.make_rmem_tensor(4, Int32)
    for i in cutlass.range_constexpr(4):
        peak[i] = Float32(-3e+38)
        total[i] = Float32(0.0)
        held[i] = Float32(0.0)
    for first in cutlass.range(0, span, 4, unroll=1):
        for u in cutlass.range_constexpr(4):
            tokens[u] = warps.load_or(window + (first + u), first + u < span, -1)
        for u in cutlass.range_constexpr(4):
            section = (first + u) // ratio
            channel = section * DIM + thread * 4
            there = tokens[u] >= 0
            token = cutlass.max(tokens[u], 0)
            values = kv + Int64(token) * kv_stride_0
            warps.load_vector(value, u * 4, 4, values + channel, there)
            weights = scores + Int64(token) * scores_stride_0
            warps.load_vector(score, u * 4, 4, weights + channel, there)
            place = first + u - section * ratio
            place = ape + Int64(place) * ape_stride_0
            warps.load_vector(bias, u * 4, 4, place + channel, there)
        for u in cutlass.range_constexpr(4):
            if tokens[u] >= 0:
                for i in cutlass.range_constexpr(4):
                    x = (
                        scalars.float_of(score[u * 4 + i]) + scalars.float_of(bias[u * 4 + i])
                    ) * 1.4426950408889634
                    top = cute.arch.fmax(peak[i], x)
                    before = warps.exp2(peak[i] - top)
                    own = warps.exp2(x - top)
                    total[i] = total[i] * before + own
                    held[i] = held[i] * before + own * scalars.float_of(value[u * 4 + i])
                    peak[i] = top
    for i in cutlass.range_constexpr(4):
        held[i] = floats.divide(held[i], total[i])


@cute.jit
def sum_squares(sums, held, warp, lane):
    """Sum the squares of each warp's channels."""
    total = Float32(0.0)
    for i in cutlass.range_constexpr(4):
        total = total + held[i] * held[i]
    total = floats.sum_of_lanes(total)
    if lane == 0:
        sums[warp] = total


@cute.jit
def norm_and_turn(held, sums, weight, cos_sin, positions, row, eps, thread):
    """Divide the row by its root mean square, multiply by the weight, and rotate pairs of its last dims."""
    total = Float32(0.0)
    for w in cutlass.range_constexpr(1):
        total = total + sums[w]
    scale = floats.rsqrt(total * 0.0078125 + eps)
    factor = cute.make_rmem_tensor(4, Float32)
    cute.autovec_copy(warps.group(weight, 4, thread), factor)
    for i in cutlass.range_constexpr(4):
        held[i] = held[i] * scale * factor[i]
    first = thread * 4 - (DIM - 64)
    if first >= 0:
        angles = cos_sin + Int64(cutlass.max(positions[row], 0)) * 64
        for pair in cutlass.range_constexpr(2):
            cos = angles[first // 2 + pair]
            sin = angles[32 + first // 2 + pair]
            even = held[2 * pair] * cos - held[2 * pair + 1] * sin
            odd = held[2 * pair] * sin + held[2 * pair + 1] * cos
            held[2 * pair] = even
            held[2 * pair + 1] = odd


@cute.jit
def write_index_row(cache, cache_stride_0, held, slots, row, page_size, thread):
    """Write a row of 128 channels: e4m3 over a float32 scale."""
    words = cute.make_rmem_tensor(2, cutlass.Uint32)
    words[0] = scalars.pair_of(held[0], held[1])
    held[0] = scalars.float_of(words[0] << 16)
    held[1] = scalars.float_of(words[0] & cutlass.Uint32(4294901760))
    words[1] = scalars.pair_of(held[2], held[3])
    held[2] = scalars.float_of(words[1] << 16)
    held[3] = scalars.float_of(words[1] & cutlass.Uint32(4294901760))
    scale = floats.divide(
        floats.max_of_lanes(
            cute.arch.fmax(
                cute.arch.fmax(
                    cute.arch.fmax(
                        cute.arch.fmax(0.0001, cute.arch.fmax(held[0], 0 - held[0])),
                        cute.arch.fmax(held[1], 0 - held[1])
                    ),
                    cute.arch.fmax(held[2], 0 - held[2])
                ),
                cute.arch.fmax(held[3], 0 - held[3])
            ),
            32
        ),
        448.0
    )
    code = cutlass.select_(
        floats.is_nan(held[0] * floats.divide(1.0, scale)), 127,
        cutlass.select_(
            cutlass.min(
                scalars.bits_of(held[0] * floats.divide(1.0, scale)) & 2147483647, 1138753536
            ) < 1015021568,
            scalars.bits_of(
                scalars.float_of(
                    cutlass.min(scalars.bits_of(held[0] * floats.divide(1.0, scale)) & 2147483647, 1138753536)
                ) + 16384.0
            ) - 1182793728,
            (
                cutlass.min(
                    scalars.bits_of(held[0] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                ) + 524287 + (
                    cutlass.min(
                        scalars.bits_of(held[0] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                    ) >> 20 & 1
                ) >> 20
            ) - 960
        )
    ) | scalars.bits_of(
        held[0] * floats.divide(1.0, scale)
    ) >> 24 & 128 | (
        cutlass.select_(
            floats.is_nan(held[1] * floats.divide(1.0, scale)), 127,
            cutlass.select_(
                cutlass.min(
                    scalars.bits_of(held[1] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                ) < 1015021568,
                scalars.bits_of(
                    scalars.float_of(
                        cutlass.min(
                            scalars.bits_of(held[1] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                        )
                    ) + 16384.0
                ) - 1182793728,
                (
                    cutlass.min(
                        scalars.bits_of(held[1] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                    ) + 524287 + (
                        cutlass.min(
                            scalars.bits_of(held[1] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                        ) >> 20 & 1
                    ) >> 20
                ) - 960
            )
        ) | scalars.bits_of(held[1] * floats.divide(1.0, scale)) >> 24 & 128
    ) << 8 | (
        cutlass.select_(
            floats.is_nan(held[2] * floats.divide(1.0, scale)), 127,
            cutlass.select_(
                cutlass.min(
                    scalars.bits_of(held[2] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                ) < 1015021568,
                scalars.bits_of(
                    scalars.float_of(
                        cutlass.min(
                            scalars.bits_of(held[2] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                        )
                    ) + 16384.0
                ) - 1182793728,
                (
                    cutlass.min(
                        scalars.bits_of(held[2] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                    ) + 524287 + (
                        cutlass.min(
                            scalars.bits_of(held[2] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                        ) >> 20 & 1
                    ) >> 20
                ) - 960
            )
        ) | scalars.bits_of(held[2] * floats.divide(1.0, scale)) >> 24 & 128
    ) << 16 | (
        cutlass.select_(
            floats.is_nan(held[3] * floats.divide(1.0, scale)), 127,
            cutlass.select_(
                cutlass.min(
                    scalars.bits_of(held[3] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                ) < 1015021568,
                scalars.bits_of(
                    scalars.float_of(
                        cutlass.min(
                            scalars.bits_of(held[3] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                        )
                    ) + 16384.0
                ) - 1182793728,
                (
                    cutlass.min(
                        scalars.bits_of(held[3] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                    ) + 524287 + (
                        cutlass.min(
                            scalars.bits_of(held[3] * floats.divide(1.0, scale)) & 2147483647, 1138753536
                        ) >> 20 & 1
                    ) >> 20
                ) - 960
            )
        ) | scalars.bits_of(held[3] * floats.divide(1.0, scale)) >> 24 & 128
    ) << 24
    slot = slots[row]
    if slot >= 0:
        page = slot // page_size
        place = slot - page * page_size
        to = cache + Int64(page) * cache_stride_0
        to[place * (DIM // 4) + thread] = code.to(Int32)
        if thread == 0:
            to[page_size * (DIM // 4) + place] = scalars.bits_of(scale).to(Int32)


@cute.jit
def compress(
    kv: cute.Pointer, scores: cute.Pointer, ape: cute.Pointer, weight: cute.Pointer, windows: cute.Pointer,
    positions: cute.Pointer, cos_sin: cute.Pointer, row_slots: cute.Pointer, eps: Float32, page_size: Int32,
    cache: cute.Pointer, kv_stride: Int32, scores_stride: Int32, ratio: Int32, ape_stride: Int32, span: Int32,
    windows_stride: Int32, cache_stride: Int32, sums: cute.Pointer, row: Int32, thread: Int32, warp: Int32,
    lane: Int32
):
    """Four channels per thread."""
    held = cute.make_rmem_tensor(4, Float32)
    worker = thread
    weigh_window(
        held, kv, kv_stride, scores, scores_stride, ape, ape_stride, windows, windows_stride, row, ratio,
        span, worker
    )
    sum_squares(sums, held, warp, lane)
    cute.arch.barrier(barrier_id=COMPRESS_BARRIER, number_of_threads=COMPRESS_THREADS)
    norm_and_turn(held, sums, weight, cos_sin, positions, row, eps, worker)
    write_index_row(cache, cache_stride, held, row_slots, row, page_size, worker)


@cute.kernel
def compress_rows__cutedsl_sm100a__d128(
    kv: cute.Pointer, scores: cute.Pointer, ape: cute.Pointer, weight: cute.Pointer, windows: cute.Pointer,
    positions: cute.Pointer, cos_sin: cute.Pointer, row_slots: cute.Pointer, eps: Float32, page_size: Int32,
    cache: cute.Pointer, tokens: Int32, width: Int32, kv_stride: Int32, scores_stride: Int32, ratio: Int32,
    ape_stride: Int32, rows: Int32, span: Int32, windows_stride: Int32, angles: Int32, turned: Int32,
    pages: Int32, page_words: Int32, cache_stride: Int32
):
    shared = cutlass.memory.SmemAllocator().allocate(Shared)
    sums = shared.sums.data_ptr()
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    row, _, _ = cute.arch.block_idx()
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    compress(
        kv, scores, ape, weight, windows, positions, cos_sin, row_slots, eps, page_size, cache, kv_stride,
        scores_stride, ratio, ape_stride, span, windows_stride, cache_stride, sums, row, thread, warp, lane
    )


@cute.jit
def program(
    kv: cute.Pointer, scores: cute.Pointer, ape: cute.Pointer, weight: cute.Pointer, windows: cute.Pointer,
    positions: cute.Pointer, cos_sin: cute.Pointer, row_slots: cute.Pointer, eps: Float32, page_size: Int32,
    cache: cute.Pointer, tokens: Int32, width: Int32, kv_stride: Int32, scores_stride: Int32, ratio: Int32,
    ape_stride: Int32, rows: Int32, span: Int32, windows_stride: Int32, angles: Int32, turned: Int32,
    pages: Int32, page_words: Int32, cache_stride: Int32
):
    kernel = compress_rows__cutedsl_sm100a__d128(
        kv, scores, ape, weight, windows, positions, cos_sin, row_slots, eps, page_size, cache, tokens, width,
        kv_stride, scores_stride, ratio, ape_stride, rows, span, windows_stride, angles, turned, pages,
        page_words, cache_stride
    )
    kernel.launch(grid=(1, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1))
