"""compress_rows__tilelang_sm90a__d512

Generated from dsl_kernels/kernels/compress_rows and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: dim=512.

roles
  compress   threads 0..127  four channels per thread
buffers
  sums       4 float32, shared
  powers     8 int32, shared
  held       128x4 float32, registers of compress
  named barrier compress: compress
totals: 128 threads, 48 of 232448 bytes of shared memory, grid (rows)
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import floats, scalars, warps
from dsl_kernels.kernels.compress_rows import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

DIM = 512  # channels per row: 512 for attention's cache, 128 for the indexer's
COMPRESS_BARRIER = 1
COMPRESS_THREADS = 128


@T.macro
def weigh_window(held, kv, scores, ape, windows, row, ratio, span, thread):
    """Compute, for each channel of the thread, the mean of a row's window by an online softmax."""
    value = T.alloc_local((16,), "uint32")
    score = T.alloc_local((16,), "uint32")
    bias = T.alloc_local((16,), "uint32")
    peak = T.alloc_local((4,), "float32")
    total = T.alloc_local((4,), "float32")
    tokens = T.alloc_local((4,), "int32")
    for i in T.unroll(4):
        peak[i] = -3e+38
        total[i] = 0.0
        held[i] = 0.0
    for first in T.unroll(0, span, 4, unroll_factor=1):
        for u in T.unroll(4):
            tokens[u] = warps.load_or(windows[row, (first + u)], first + u < span, -1)
        for u in T.unroll(4):
            section = T.truncdiv(first + u, ratio)
            channel = section * DIM + thread * 4
            there = tokens[u] >= 0
            token = T.max(tokens[u], 0)
            warps.load_vector(value, u * 4, 4, kv[token, channel], there)
            warps.load_vector(score, u * 4, 4, scores[token, channel], there)
            place = first + u - section * ratio
            warps.load_vector(bias, u * 4, 4, ape[place, channel], there)
        for u in T.unroll(4):
            if tokens[u] >= 0:
                for i in T.unroll(4):
                    x = (
                        scalars.float_of(score[u * 4 + i]) + scalars.float_of(bias[u * 4 + i])
                    ) * 1.4426950408889634
                    top = T.max(peak[i], x)
                    before = warps.exp2(peak[i] - top)
                    own = warps.exp2(x - top)
                    total[i] = total[i] * before + own
                    held[i] = held[i] * before + own * scalars.float_of(value[u * 4 + i])
                    peak[i] = top
    for i in T.unroll(4):
        held[i] = floats.divide(held[i], total[i])


@T.macro
def sum_squares(sums, held, warp, lane):
    """Sum the squares of each warp's channels."""
    total = T.alloc_var("float32", init=0.0)
    for i in T.unroll(4):
        total = total + held[i] * held[i]
    total = floats.sum_of_lanes(total)
    if lane == 0:
        sums[warp] = total


@T.macro
def norm_and_turn(held, sums, weight, cos_sin, positions, row, eps, thread):
    """Divide the row by its root mean square, multiply by the weight, and rotate pairs of its last dims."""
    total = T.alloc_var("float32", init=0.0)
    for w in T.unroll(DIM // 128):
        total = total + sums[w]
    scale = floats.rsqrt(total * 0.001953125 + eps)
    factor = T.alloc_local((4,), "float32")
    for part in T.vectorized(4):
        factor[part] = weight[(thread) * 4 + part]
    for i in T.unroll(4):
        held[i] = held[i] * scale * factor[i]
    first = thread * 4 - (DIM - 64)
    if first >= 0:
        for pair in T.unroll(2):
            cos = cos_sin[T.max(positions[row], 0), T.truncdiv(first, 2) + pair]
            sin = cos_sin[T.max(positions[row], 0), 32 + T.truncdiv(first, 2) + pair]
            even = held[2 * pair] * cos - held[2 * pair + 1] * sin
            odd = held[2 * pair] * sin + held[2 * pair + 1] * cos
            held[2 * pair] = even
            held[2 * pair + 1] = odd


@T.macro
def write_row(cache, powers, held, slots, row, page_size, thread):
    """Write a row of 512 channels: e4m3 over a power of two per 64 channels, the last 64 channels in bf16.

    `powers` gets the powers, for `write_powers`.
    """
    words = T.alloc_local((2,), "uint32")
    words[0] = scalars.pair_of(held[0], held[1])
    held[0] = scalars.float_of(words[0] << T.uint32(16))
    held[1] = scalars.float_of(words[0] & T.uint32(4294901760))
    words[1] = scalars.pair_of(held[2], held[3])
    held[2] = scalars.float_of(words[1] << T.uint32(16))
    held[3] = scalars.float_of(words[1] & T.uint32(4294901760))
    most = floats.max_of_lanes(
        T.max(
            T.max(
                T.max(T.max(0.0001, T.max(held[0], 0 - held[0])), T.max(held[1], 0 - held[1])),
                T.max(held[2], 0 - held[2])
            ),
            T.max(held[3], 0 - held[3])
        ),
        16
    )
    least_power = scalars.bits_of(floats.divide(most, 448.0))
    power = T.cast((least_power + T.uint32(8388607) >> T.uint32(23)), "int32")
    code = T.if_then_else(
        floats.is_nan(held[0] * scalars.float_of(T.cast((254 - power << 23), "uint32"))), T.uint32(127),
        T.if_then_else(
            warps.below(
                T.min(
                    scalars.bits_of(
                        held[0] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                    ) & T.uint32(2147483647),
                    T.uint32(1138753536)
                ),
                T.uint32(1015021568)
            ),
            scalars.bits_of(
                scalars.float_of(
                    T.min(
                        scalars.bits_of(
                            held[0] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                        ) & T.uint32(2147483647),
                        T.uint32(1138753536)
                    )
                ) + 16384.0
            ) - T.uint32(1182793728),
            (
                T.min(
                    scalars.bits_of(
                        held[0] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                    ) & T.uint32(2147483647),
                    T.uint32(1138753536)
                ) + T.uint32(524287) + (
                    T.min(
                        scalars.bits_of(
                            held[0] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                        ) & T.uint32(2147483647),
                        T.uint32(1138753536)
                    ) >> T.uint32(20) & T.uint32(1)
                ) >> T.uint32(20)
            ) - T.uint32(960)
        )
    ) | scalars.bits_of(
        held[0] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
    ) >> T.uint32(24) & T.uint32(128) | (
        T.if_then_else(
            floats.is_nan(held[1] * scalars.float_of(T.cast((254 - power << 23), "uint32"))), T.uint32(127),
            T.if_then_else(
                warps.below(
                    T.min(
                        scalars.bits_of(
                            held[1] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                        ) & T.uint32(2147483647),
                        T.uint32(1138753536)
                    ),
                    T.uint32(1015021568)
                ),
                scalars.bits_of(
                    scalars.float_of(
                        T.min(
                            scalars.bits_of(
                                held[1] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                            ) & T.uint32(2147483647),
                            T.uint32(1138753536)
                        )
                    ) + 16384.0
                ) - T.uint32(1182793728),
                (
                    T.min(
                        scalars.bits_of(
                            held[1] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                        ) & T.uint32(2147483647),
                        T.uint32(1138753536)
                    ) + T.uint32(524287) + (
                        T.min(
                            scalars.bits_of(
                                held[1] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                            ) & T.uint32(2147483647),
                            T.uint32(1138753536)
                        ) >> T.uint32(20) & T.uint32(1)
                    ) >> T.uint32(20)
                ) - T.uint32(960)
            )
        ) | scalars.bits_of(
            held[1] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
        ) >> T.uint32(24) & T.uint32(128)
    ) << T.uint32(8) | (
        T.if_then_else(
            floats.is_nan(held[2] * scalars.float_of(T.cast((254 - power << 23), "uint32"))), T.uint32(127),
            T.if_then_else(
                warps.below(
                    T.min(
                        scalars.bits_of(
                            held[2] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                        ) & T.uint32(2147483647),
                        T.uint32(1138753536)
                    ),
                    T.uint32(1015021568)
                ),
                scalars.bits_of(
                    scalars.float_of(
                        T.min(
                            scalars.bits_of(
                                held[2] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                            ) & T.uint32(2147483647),
                            T.uint32(1138753536)
                        )
                    ) + 16384.0
                ) - T.uint32(1182793728),
                (
                    T.min(
                        scalars.bits_of(
                            held[2] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                        ) & T.uint32(2147483647),
                        T.uint32(1138753536)
                    ) + T.uint32(524287) + (
                        T.min(
                            scalars.bits_of(
                                held[2] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                            ) & T.uint32(2147483647),
                            T.uint32(1138753536)
                        ) >> T.uint32(20) & T.uint32(1)
                    ) >> T.uint32(20)
                ) - T.uint32(960)
            )
        ) | scalars.bits_of(
            held[2] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
        ) >> T.uint32(24) & T.uint32(128)
    ) << T.uint32(16) | (
        T.if_then_else(
            floats.is_nan(held[3] * scalars.float_of(T.cast((254 - power << 23), "uint32"))), T.uint32(127),
            T.if_then_else(
                warps.below(
                    T.min(
                        scalars.bits_of(
                            held[3] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                        ) & T.uint32(2147483647),
                        T.uint32(1138753536)
                    ),
                    T.uint32(1015021568)
                ),
                scalars.bits_of(
                    scalars.float_of(
                        T.min(
                            scalars.bits_of(
                                held[3] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                            ) & T.uint32(2147483647),
                            T.uint32(1138753536)
                        )
                    ) + 16384.0
                ) - T.uint32(1182793728),
                (
                    T.min(
                        scalars.bits_of(
                            held[3] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                        ) & T.uint32(2147483647),
                        T.uint32(1138753536)
                    ) + T.uint32(524287) + (
                        T.min(
                            scalars.bits_of(
                                held[3] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
                            ) & T.uint32(2147483647),
                            T.uint32(1138753536)
                        ) >> T.uint32(20) & T.uint32(1)
                    ) >> T.uint32(20)
                ) - T.uint32(960)
            )
        ) | scalars.bits_of(
            held[3] * scalars.float_of(T.cast((254 - power << 23), "uint32"))
        ) >> T.uint32(24) & T.uint32(128)
    ) << T.uint32(24)
    group = T.truncdiv(thread, 16)
    if T.truncmod(thread, 16) == 0:
        powers[group] = T.if_then_else(group < 7, power, 0)
    slot = slots[row]
    if slot >= 0:
        page = T.truncdiv(slot, page_size)
        rope = thread - 112
        if rope < 0:
            cache[page, (slot - page * page_size) * 144 + thread] = T.cast(code, "int32")
        else:
            for pair in T.unroll(2):
                cache[page, (slot - page * page_size) * 144 + 112 + 2 * rope + pair] = T.cast(
                    words[pair], "int32"
                )


@T.macro
def write_powers(cache, powers, slots, row, page_size, thread):
    """Write the scales of a row of 512 channels: a byte per 64 channels, then a byte of 0."""
    slot = slots[row]
    if (slot >= 0) & (thread < 2):
        page = T.truncdiv(slot, page_size)
        place = slot - page * page_size
        four = thread * 4
        low = powers[four] | powers[four + 1] << 8
        cache[
            page, page_size * 144 + place * 2 + thread
        ] = low | powers[four + 2] << 16 | powers[four + 3] << 24


@T.macro
def compress(
    kv, scores, ape, weight, windows, positions, cos_sin, row_slots, eps, page_size, cache, ratio, span, sums,
    powers, row, thread, warp, lane
):
    """Four channels per thread."""
    held = T.alloc_local((4,), "float32")
    worker = thread
    weigh_window(held, kv, scores, ape, windows, row, ratio, span, worker)
    sum_squares(sums, held, warp, lane)
    T.sync_threads(COMPRESS_BARRIER, COMPRESS_THREADS)
    norm_and_turn(held, sums, weight, cos_sin, positions, row, eps, worker)
    write_row(cache, powers, held, row_slots, row, page_size, worker)
    T.sync_threads(COMPRESS_BARRIER, COMPRESS_THREADS)
    write_powers(cache, powers, row_slots, row, page_size, worker)


def program():
    tokens = T.dynamic("tokens")
    width = T.dynamic("width")
    kv_stride = T.dynamic("kv_stride")
    scores_stride = T.dynamic("scores_stride")
    ratio = T.dynamic("ratio")
    ape_stride = T.dynamic("ape_stride")
    rows = T.dynamic("rows")
    span = T.dynamic("span")
    windows_stride = T.dynamic("windows_stride")
    angles = T.dynamic("angles")
    turned = T.dynamic("turned")
    pages = T.dynamic("pages")
    page_words = T.dynamic("page_words")
    cache_stride = T.dynamic("cache_stride")

    @T.prim_func
    def compress_rows__tilelang_sm90a__d512(
        kv: T.StridedTensor((tokens, width), (kv_stride, 1), "float32"),
        scores: T.StridedTensor((tokens, width), (scores_stride, 1), "float32"),
        ape: T.StridedTensor((ratio, width), (ape_stride, 1), "float32"),
        weight: T.Tensor((512,), "float32"),
        windows: T.StridedTensor((rows, span), (windows_stride, 1), "int32"),
        positions: T.Tensor((rows,), "int32"),
        cos_sin: T.Tensor((angles, turned), "float32"),
        row_slots: T.Tensor((rows,), "int32"),
        eps: T.float32,
        page_size: T.int32,
        cache: T.StridedTensor((pages, page_words), (cache_stride, 1), "int32"),
    ):
        with T.Kernel(rows, threads=128) as row:
            T.import_source(warps.SOURCE + floats.SOURCE + scalars.SOURCE)
            sums = T.alloc_shared((DIM // 4 // 32,), "float32")
            powers = T.alloc_shared((DIM // 64,), "int32")

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32
            # A launch of TileLang starts when the kernel before it has ended.
            compress(
                kv, scores, ape, weight, windows, positions, cos_sin, row_slots, eps, page_size, cache, ratio,
                span, sums, powers, row, thread, warp, lane
            )

    return compress_rows__tilelang_sm90a__d512
