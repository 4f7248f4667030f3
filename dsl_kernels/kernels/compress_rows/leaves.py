"""Texts of the leaves of compressing rows: a thread has four neighbouring channels of a row."""

from __future__ import annotations

import math
from typing import Any

from ...device.torch.floats import divide, is_nan, max_of_lanes, rsqrt, sum_of_lanes
from ...device.torch.scalars import bits_of, float_of, half_of, pair_of
from ...device.torch.warps import exp2, load_or, load_vector
from ...problems.layouts import E4M3_MAX, ROPE_DIM, V4_FP8_DIMS, V4_GROUP
from ...tile.counting import moves
from ...tile.frontend import named, rolled, unrolled
from ...tile.kinds import Float32, Global, Int32, LeafRecorder, Registers, Shared, Uint32, Writes
from ...tile.leaf_text import WARP, by_text
from ...tile.text import maximum, minimum, select

EACH = 4
"""Channels per thread."""
AT_ONCE = 4
"""Tokens that a thread reads before it weighs these."""
LOG2_E = 1 / math.log(2)
# Less than any score. It is the peak before the first token of a window, so that nothing computes -inf minus
# -inf.
LOWEST = -3.0e38
# A lower bound on a group's greatest magnitude, as in the caches' quantisers.
LEAST = 1e-4
# Words per row: its values, and its scales. Scales come after all values of a page.
V4_WORDS, SCALE_WORDS = (V4_FP8_DIMS + 2 * ROPE_DIM) // 4, 2


@moves(loaded=lambda span, dim: span * (2 * 4 * dim + 4))
@by_text
def weigh_window(
    m: LeafRecorder, held: Registers[Float32], kv: Global[Float32], scores: Global[Float32],
    ape: Global[Float32], windows: Global[Int32], row: Int32, ratio: Int32, span: Int32, dim: int,
) -> None:  # fmt: skip
    """Compute, for each channel of the thread, the mean of a row's window by an online softmax."""
    line = windows.row("window", row)
    value, score, bias = (m.local(title, AT_ONCE * EACH, "uint32") for title in ("value", "score", "bias"))
    peak, total = (m.local(title, EACH, "float32") for title in ("peak", "total"))
    tokens = m.local("tokens", AT_ONCE, "int32")
    for i in unrolled(EACH):
        peak[i] = LOWEST
        total[i] = 0.0
        held[i] = 0.0
    for first in rolled(0, span, AT_ONCE):
        for u in unrolled(AT_ONCE):
            tokens[u] = load_or(line.at(first + u), first + u < span, -1)
        for u in unrolled(AT_ONCE):
            section = (first + u) // ratio
            channel = section * dim + m.thread * EACH
            there = tokens[u] >= 0
            token = maximum(tokens[u], 0)
            m.do(load_vector(value, u * EACH, EACH, kv.row("values", token).at(channel), there))
            m.do(load_vector(score, u * EACH, EACH, scores.row("weights", token).at(channel), there))
            place = first + u - section * ratio
            m.do(load_vector(bias, u * EACH, EACH, ape.row("place", place).at(channel), there))
        for u in unrolled(AT_ONCE):
            if tokens[u] >= 0:
                for i in unrolled(EACH):
                    x = (float_of(score[u * EACH + i]) + float_of(bias[u * EACH + i])) * LOG2_E
                    top = maximum(peak[i], x)
                    before = exp2(peak[i] - top)
                    own = exp2(x - top)
                    total[i] = total[i] * before + own
                    held[i] = held[i] * before + own * float_of(value[u * EACH + i])
                    peak[i] = top
    for i in unrolled(EACH):
        held[i] = divide(held[i], total[i])


@by_text
def sum_squares(m: LeafRecorder, sums: Shared[Float32], held: Registers[Float32]) -> None:
    """Sum the squares of each warp's channels."""
    total: Float32 = 0.0
    for i in unrolled(EACH):
        total += held[i] * held[i]
    total = sum_of_lanes(total)
    if m.lane == 0:
        sums[m.warp] = total


@moves(loaded=lambda dim: 4 * dim)
@by_text
def norm_and_turn(
    m: LeafRecorder, held: Registers[Float32], sums: Shared[Float32], weight: Global[Float32],
    cos_sin: Global[Float32], positions: Global[Int32], row: Int32, eps: Float32, dim: int,
) -> None:  # fmt: skip
    """Divide the row by its root mean square, multiply by the weight, and rotate pairs of its last dims."""
    total: Float32 = 0.0
    for w in unrolled(dim // (EACH * WARP)):
        total += sums[w]
    scale = rsqrt(total * (1 / dim) + eps)
    factor = m.local("factor", EACH, "float32")
    weight.read(factor, m.thread)
    for i in unrolled(EACH):
        held[i] = held[i] * scale * factor[i]
    first = named("first", m.thread * EACH - (dim - ROPE_DIM))
    if first >= 0:
        angles = cos_sin.row("angles", maximum(positions[row], 0), ROPE_DIM)
        for pair in unrolled(EACH // 2):
            cos = angles[first // 2 + pair]
            sin = angles[ROPE_DIM // 2 + first // 2 + pair]
            even = held[2 * pair] * cos - held[2 * pair + 1] * sin
            odd = held[2 * pair] * sin + held[2 * pair + 1] * cos
            held[2 * pair] = even
            held[2 * pair + 1] = odd


def _greatest(held: Registers, lanes: int) -> Float32:
    """The greatest magnitude of the channels of `lanes` neighbouring lanes, at least `LEAST`."""
    most: Float32 = LEAST
    for i in range(EACH):
        most = maximum(most, maximum(held[i], -held[i]))
    return max_of_lanes(most, lanes)


def _code(x: Float32) -> Uint32:
    """A float as e4m3, rounded to nearest, saturated."""
    bits = bits_of(x)
    size = minimum(bits & 0x7FFFFFFF, 0x43E00000)
    # Below 2^-6 the steps of e4m3 are 2^-9, the steps of floats from 2^14 on.
    small = bits_of(float_of(size) + 16384.0) - 0x46800000
    large = (size + 0x7FFFF + (size >> 20 & 1) >> 20) - 960
    return select(is_nan(x), 0x7F, select(size < 0x3C800000, small, large)) | bits >> 24 & 0x80


def _round(held: Any, words: Any) -> None:
    """Round the channels of the thread to bf16, two per word. `held` gets the rounded values."""
    for pair in range(EACH // 2):
        words[pair] = pair_of(held[2 * pair], held[2 * pair + 1])
        held[2 * pair] = half_of(words[pair], False)
        held[2 * pair + 1] = half_of(words[pair], True)


def _codes(held: Registers, scale: Float32) -> Uint32:
    """The thread's channels times `scale` as e4m3, in one word."""
    low = _code(held[0] * scale) | _code(held[1] * scale) << 8
    return low | _code(held[2] * scale) << 16 | _code(held[3] * scale) << 24


@moves(stored=lambda threads: 4 * threads + 4 * ROPE_DIM // 2)
@by_text
def write_row(
    m: LeafRecorder, cache: Writes[Global[Int32]], powers: Shared[Int32], held: Registers[Float32],
    slots: Global[Int32], row: Int32, page_size: Int32, threads: int,
) -> None:  # fmt: skip
    """Write a row of 512 channels: e4m3 over a power of two per 64 channels, the last 64 channels in bf16.

    `powers` gets the powers, for `write_powers`.
    """
    words = m.local("words", EACH // 2, "uint32")
    _round(held, words)
    most = _greatest(held, V4_GROUP // EACH)
    least_power = bits_of(divide(most, E4M3_MAX))
    power = named("power", (least_power + 0x7FFFFF >> 23).to("int32"))
    code = _codes(held, float_of((254 - power << 23).to("uint32")))
    group = m.thread // (V4_GROUP // EACH)
    if m.thread % (V4_GROUP // EACH) == 0:
        powers[group] = select(group < V4_FP8_DIMS // V4_GROUP, power, 0)
    slot = named("slot", slots[row])
    if slot >= 0:
        page = named("page", slot // page_size)
        to = cache.row("to", page, first=(slot - page * page_size) * V4_WORDS)
        rope = named("rope", m.thread - V4_FP8_DIMS // EACH)
        if rope < 0:
            to[m.thread] = code.to("int32")
        else:
            for pair in unrolled(EACH // 2):
                to[V4_FP8_DIMS // EACH + 2 * rope + pair] = words[pair].to("int32")


@moves(stored=lambda page_size: 4 * SCALE_WORDS)
@by_text
def write_powers(
    m: LeafRecorder, cache: Writes[Global[Int32]], powers: Shared[Int32], slots: Global[Int32], row: Int32,
    page_size: Int32,
) -> None:  # fmt: skip
    """Write the scales of a row of 512 channels: a byte per 64 channels, then a byte of 0."""
    slot = named("slot", slots[row])
    if slot >= 0 and m.thread < SCALE_WORDS:
        page = named("page", slot // page_size)
        place = named("place", slot - page * page_size)
        to = cache.row("to", page, first=page_size * V4_WORDS + place * SCALE_WORDS)
        four = m.thread * 4
        low = powers[four] | powers[four + 1] << 8
        to[m.thread] = low | powers[four + 2] << 16 | powers[four + 3] << 24


@moves(stored=lambda threads: 4 * threads + 4)
@by_text
def write_index_row(
    m: LeafRecorder, cache: Writes[Global[Int32]], held: Registers[Float32], slots: Global[Int32], row: Int32,
    page_size: Int32, threads: int,
) -> None:  # fmt: skip
    """Write a row of 128 channels: e4m3 over a float32 scale."""
    _round(held, m.local("words", EACH // 2, "uint32"))
    scale = named("scale", divide(_greatest(held, WARP), E4M3_MAX))
    code = _codes(held, divide(1.0, scale))
    slot = named("slot", slots[row])
    if slot >= 0:
        page = named("page", slot // page_size)
        place = named("place", slot - page * page_size)
        to = cache.row("to", page)
        to[place * threads + m.thread] = code.to("int32")
        if m.thread == 0:
            to[page_size * threads + place] = bits_of(scale).to("int32")
