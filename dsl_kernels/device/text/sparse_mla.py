"""Leaves of sparse MLA on Hopper by their text: what one thread does, for every DSL and for the interpreter.

Registers are a warpgroup's share of a tile as its products leave it (dsl_kernels/tile/fragments.py), but running sums are
each thread's own until they are completed. All exponents are base 2: logits carry log2(e), and an lse is the log2 of a
sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...problems.layouts import FP8_TOKEN_BYTES
from ...tile.frontend import Float32, inline, named, recorded, rolled, unrolled
from ...tile.lang import Size
from ...tile.leaf_text import WARP, by_text
from ...tile.text import Sets, Value, Writes, ceildiv, maximum, minimum, select
from ..torch.fragment import quad_most, quad_sum, row_most, row_sum
from ..torch.warps import (
    any_lane,
    ballot,
    clz,
    copy16,
    copy_row16,
    exchange,
    exp2,
    load_vector,
    log2,
    prefetch,
    push,
    rcp_approx,
    send_fours,
    send_rows,
    show_copies,
    shuffle,
    store_fp8,
    store_matrices,
    store_pair,
    store_vector,
    sync_warp,
)

INF, LOG2E = math.inf, math.log2(math.e)
HALF_ROWS, HEADS = Size(8, "HALF_ROWS"), Size(64, "HEADS_OF_SIDE")
"""How far apart a thread's two heads are where they lie on M; heads of a side."""
TILE, THREADS = 64, 128
LATENT_DIM = Size(512, "LATENT_DIM")
FOUR = 4
"""Floats of one access to memory."""
WORD_REGISTERS = 16
"""A thread's registers of its two heads and 32 tokens."""
FOURS = 32
"""Of half of O a thread has so many fours: two heads by two dims of eight."""
FEW, FEW_REGISTERS, AT_ONCE = 4, 32, 2
"""Pieces that are joined at a time, in so many registers, and parts that are in flight together."""


def _lse(total, top):
    """log2 of a sum of weights below a maximum; -inf when it is empty."""
    return select(total > 0.0, log2(total) + top, -INF)


def _inverse(total):
    """1 / sum; 0 when it is empty."""
    return select(total > 0.0, rcp_approx(total), 0.0)


def kept_beside(lse2, sink):
    """The share of the softmax that tokens keep beside a sink logit (natural log); 1 without one, 0 if there are none."""
    return select(lse2 > -INF, rcp_approx(exp2(sink * LOG2E - lse2) + 1.0), 0.0)


@by_text
def read_ids(m, low: Sets, high: Sets, indices, topk, row, turn, turns, split, splits, lane):
    """Ids `lane` and `lane` + 32 of the tile at `turn`; none past the last turn."""
    low = -1
    high = -1
    if turn < turns:
        ids = indices.row("ids", row, topk)
        first = (split + turn * splits) * TILE + lane
        low = ids[first]
        high = ids[first + WARP]


def _valid(token, n):
    """Whether an id names one of `n` rows; -1 is padding."""
    return (token >= 0) & (token < n)


@by_text
def vote(m, in_low: Sets, in_high: Sets, live: Sets, low, high, n):
    """The valid ids of a tile as two words of bits, and whether there is one; the same in every warp of every role."""
    in_low = ballot(_valid(low, n))
    in_high = ballot(_valid(high, n))
    live = (in_low | in_high) != 0


@recorded
def cache_row(m, ids, lane, n, which=""):
    """The cache row that a lane's id names, the first one where it names none of `n`, and whether it names one."""
    token = named(f"token{which}", shuffle(ids, lane))
    inside = named(f"inside{which}", _valid(token, n))
    return select(inside, token, 0), inside


@by_text
def load_queries(m, target, q, row, head0, heads, head_block, width, first, columns, thread):
    """Columns `first` on of a block of heads of one query, whose rows are `width` long."""
    pieces, rounds = columns // 8, ceildiv(head_block * columns // 8, THREADS)
    held, most = m.local("held", rounds * 8, "bfloat16"), head_block * pieces
    of_block = q.row("of_block", (row, head0), (heads, width), first)
    m.comment("All reads before the first write, which a compiler would not move them past.")
    for i in unrolled(rounds):
        item = minimum(i * THREADS + thread, most - 1)
        of_block.part("mine", item // pieces * width).read(held.group(i * 8, 8), item % pieces)
    for i in unrolled(rounds):
        item = i * THREADS + thread
        if item < most:
            target.write(held.group(i * 8, 8), (item // pieces, item % pieces * 8))


@by_text
def copy_query_rows(m, target, q, row, head0, heads, columns, thread):
    """Start the copies of a block of 64 heads of one query."""
    of_block, pieces = q.row("of_block", row, heads * columns, head0 * columns), columns // 8
    for i in rolled(HEADS * pieces // THREADS, at_once=8):
        own, piece = thread // pieces + i * (THREADS // pieces), thread % pieces
        m.do(copy16(target.group_at(own, piece * 8, 8), of_block.at((i * THREADS + thread) * 8), True))


@by_text
def copy_rows(m, target, cache, first, columns, low, high, n, thread):
    """Start the copies of columns `first` on of a tile's rows; zeros where an id names no row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    lanes = min(columns // 8, 8)
    at_once, piece = THREADS // lanes, thread % lanes
    for begin in range(0, TILE, at_once):
        row = thread // lanes + begin
        ids = inline(
            low if begin + at_once <= WARP else high if begin >= WARP else select(row < WARP, low, high)
        )
        token = shuffle(ids, row % WARP)
        for c in unrolled(columns // (lanes * 8)):
            to = inline(target.group_at(row, (c * lanes + piece) * 8, 8))
            m.do(copy_row16(to, cache, first + piece * 8, token, c * (lanes * 8), n))


# Half a tile of 656-byte tokens in registers: a token lies in four lanes, 16 fp8 values of each panel of 64, two pieces of rope,
# and of its four scales one, which the others read from there. Where `shares` CTAs share out the half, each has so many
# of the panels, and rope of four tokens in eight, which a warp unpacks: eight lanes a token.

ROPE_WORD, SCALE_WORD, TOKEN_WORDS = 32, 40, 44
SCALES_AT, ROPE_AT = 512, 528


@by_text
def fetch_half(m, kv_cache, rank, shares, ids, n, thread):
    """Have the L2 fetch this CTA's share of the tokens of half a tile, a line at a time."""
    lanes = 4 * shares
    token = shuffle(ids, thread // lanes + rank * (WARP // shares))
    line = inline(thread % lanes * 128)
    inside = _valid(token, n)
    of_token = kv_cache.row("of_token", token, FP8_TOKEN_BYTES, line)
    for more in range(0, FP8_TOKEN_BYTES, lanes * 128):
        m.do(prefetch(of_token.at(more), inside & (line + more < FP8_TOKEN_BYTES)))


@by_text
def load_half(m, words, kv_cache, rank, shares, ids, n, thread):
    """Read this CTA's share of half a tile into registers."""
    _half(m, words, kv_cache, rank, shares, ids, n, thread)


@by_text
def renew_half(m, words, ckv, kpe, to_ckv, to_kpe, kv_cache, rank, shares, ids, n, thread):
    """Write this CTA's share of the half tile as bf16 rows and, as room is made, read the share of these ids; then send the other CTA what was written."""
    first = inline(thread & WARP - 4)
    scales = [
        named(f"scale_{i}", shuffle(words[SCALE_WORD // shares], first + i)) for i in range(4 // shares)
    ]

    def send():
        if shares == 1:
            return
        m.comment("Of each panel a warp has eight rows, 1 KB that lie together.")
        m.do(show_copies())
        own = inline((thread >> 5) * 8)
        m.do(send_rows(kpe.group_at(own + rank * 4, 0, 8), to_kpe, rank ^ 1, 4, 1, WARP))
        m.do(send_rows(ckv.group_at(own, 0, 8), to_ckv, rank ^ 1, 8, 4, WARP))

    def write(at, row, column):
        if at >= ROPE_WORD // shares:
            m.do(store_vector(words, at, kpe.group_at(row, column, 8)))
        else:
            halves = (ckv.group_at(row, column + e, 8) for e in (0, 8))
            m.do(store_fp8(*halves, words, at, scales[at // 8]))

    _half(m, words, kv_cache, rank, shares, ids, n, thread, write, send)


def _nothing(*_):
    """In place of a function that writes or sends, where the words hold nothing yet."""


@recorded
def _read_words(m, words, at, count, place, wanted):
    """Read `count` words at `place` into the thread's words from number `at` on.

    What follows the warp's barrier stays there, and ptxas does not put all of the loads after the last arithmetic.
    """
    m.do(load_vector(words, at, count, place, wanted))
    m.do(sync_warp())


@recorded
def _half(m, words, kv_cache, rank, shares, ids, n, thread, write=_nothing, send=_nothing):
    """Read a share of half a tile, 16 bytes at a time, each once `write` has made room for it; `send` once all is written."""
    panels, lanes, lane = 8 // shares, 4 * shares, thread & 3
    row = thread >> 2
    place, inside = cache_row(m, ids, row, n)
    own, of_rope, rope_inside = row, place, inside
    if shares > 1:
        own = (thread >> 5) * 8 + rank * 4 + (thread >> 3 & 3)
        of_rope, rope_inside = cache_row(m, ids, own, n, "_of_rope")
    token = kv_cache.row("bytes", place, FP8_TOKEN_BYTES, lane * 16 + rank * (panels * 64))
    rope = kv_cache.row("rope", of_rope, FP8_TOKEN_BYTES, (thread & lanes - 1) * 16)
    for u in range(2 // shares):
        at = ROPE_WORD // shares + u * 4
        write(at, own, u * 32 + (thread & lanes - 1) * 8)
        _read_words(m, words, at, 4, rope.at(ROPE_AT + u * 64), rope_inside)
    for panel in range(panels):
        write(panel * 4, row, panel * 64 + lane * 16)
        _read_words(m, words, panel * 4, 4, token.at(panel * 64), inside)
    send()
    m.comment("Behind all uses of the one before, so that it can take its register.")
    scale = inline((lane & panels // 2 - 1) * 4 + rank * (panels * 2) - lane * 16 - rank * (panels * 64))
    m.do(load_vector(words, SCALE_WORD // shares, 1, token.at(SCALES_AT + scale), inside))


@recorded
def _tokens(m, words, kv_cache, which, dims, low, high, n, thread, write=_nothing):
    """Read a quarter of slice `which` of two tokens, 16 bytes at a time, and its scales, each once `write` has made room for it.

    Four threads share a row and the next four its neighbour, so that their stores fall into distinct banks.
    """
    panels, groups, lane = int(dims) // 64, int(dims) // 128, thread & 3
    for half, ids in enumerate((low, high)):
        place, inside = cache_row(m, ids, thread >> 2 & WARP - 1, n)
        # From the lane's own bytes on: registers for another address are not to be had.
        token = kv_cache.row("bytes", place, FP8_TOKEN_BYTES, lane * 16)
        first, scales = half * (panels + 1) * 4, (panels + 1) * 8 + half * groups
        for panel in unrolled(panels):
            at = inline(first + panel * 4)
            write(half, panel, at, words[scales + panel // 2])
            _read_words(m, words, at, 4, token.at(which * dims + panel * 64), inside)
        rope, rope_at = (half * (panels + 1) + panels) * 4, (_rope_piece(lane, panels) - lane) * 16
        write(half, None, rope, None)
        _read_words(m, words, rope, 4, token.at(ROPE_AT + which * (dims // 4) + rope_at), inside)
        _read_words(m, words, scales, groups, token.at(SCALES_AT + which * (groups * 4) - lane * 16), inside)


def _rope_piece(lane, panels):
    """Which 16 bytes of a slice's rope dims a lane moves; where there are fewer than four, some are moved twice."""
    return lane & panels - 1


@by_text
def copy_tokens(m, raw, raw_pe, scales, kv_cache, ids, n, thread):
    """Start the copies of half a tile's 656-byte tokens as they are, eight threads a token; zeros where an id names no row."""
    lane = inline(thread & 7)
    for r in unrolled(2):
        row = r * (WARP // 2) + (thread >> 3)
        place, inside = cache_row(m, ids, row, n)
        token = kv_cache.row("bytes", place, FP8_TOKEN_BYTES, lane * 16)
        for panel in unrolled(4):
            m.do(copy16(raw.group_at(row, panel * 32 + lane * 4, 4), token.at(panel * 128), inside))
        m.do(copy16(raw_pe.group_at(row, lane * 8, 8), token.at(ROPE_AT), inside))
        if lane == 0:
            m.do(copy16(scales.group_at(row, 0, 4), token.at(SCALES_AT), inside))


@by_text
def unpack_tokens(m, ckv, kpe, raw, raw_pe, scales, half, thread):
    """Write staged tokens as bf16 rows, each value rounded once: eight threads a token, the first half of the tile's or the second.

    Of eight lanes four have pieces of one row and four of the row whose number differs in bits 0 and 2, so that what they
    read falls into distinct banks, and so does what they write.
    """
    pair = inline(thread >> 4)
    piece = thread & 3 | (thread >> 1 & 4)
    own = (pair & 12) * 2 + (pair & 3 ^ (thread >> 2 & 1) * 5)
    row = half * WARP + own
    words, factors, beside = m.local("words", 16), m.local("factors", 4), m.local("beside", 8, "bfloat16")
    scales.read(factors, (own, 0))
    m.comment("All reads before the first write, which a compiler would not move them past.")
    for panel in unrolled(4):
        raw.read(words.group(panel * 4, 4), (own, panel * 32 + piece * 4))
    raw_pe.read(beside, (own, piece * 8))
    for panel in unrolled(4):
        halves = (ckv.group_at(row, panel * 128 + piece * 16 + e, 8) for e in (0, 8))
        m.do(store_fp8(*halves, words, panel * 4, factors[panel]))
    kpe.write(beside, (row, piece * 8))


@by_text
def load_tokens(m, words, kv_cache, which, dims, low, high, n, thread):
    """Read slice `which`, `dims` latent dims and its rope dims, of a tile's 656-byte tokens into registers; zeros where an id names no row."""
    _tokens(m, words, kv_cache, which, dims, low, high, n, thread)


@by_text
def renew_tokens(m, words, target, rope, kv_cache, which, dims, low, high, n, thread):
    """Write what the words hold as bf16 rows and, as room is made, read other tokens as `load_tokens` does."""
    lane = inline(thread & 3)

    def write(half, panel, at, scale):
        row = inline(half * WARP + (thread >> 2))
        if panel is None:
            m.do(store_vector(words, at, rope.group_at(row, _rope_piece(lane, int(dims) // 64) * 8, 8)))
        else:
            halves = (target.group_at(row, panel * 64 + lane * 16 + e, 8) for e in (0, 8))
            m.do(store_fp8(*halves, words, at, scale))

    _tokens(m, words, kv_cache, which, dims, low, high, n, thread, write)


@by_text
def send_scores(m, scores, slots, to_slots, rank, slices, thread):
    """Send the partial scores to the same thread of every other CTA of the slice group: slot d - 1 receives from rank XOR d."""
    for d in range(1, slices):
        own = inline(slots.at((d - 1) * scores.size * THREADS + thread * FOUR))
        m.do(send_fours(own, to_slots, rank ^ d, scores, FOUR * THREADS))


@by_text
def add_scores(m, scores, received, slices, thread):
    """Add what the other CTAs sent. Pairs first, so that all of the group round alike: (0 + 1) + (2 + 3)."""
    slots = received.part("slots", thread * FOUR)
    for v in unrolled(scores.size // FOUR):
        for e in range(FOUR):
            got = [slots[(d * (scores.size // FOUR) + v) * (FOUR * THREADS) + e] for d in range(slices - 1)]
            own = inline(scores[v * FOUR + e] + got[0])
            scores[v * FOUR + e] = own + (got[1] + got[2]) if slices == 4 else own


# Heads on N: a warpgroup's columns of scores, S^T, and of O^T are heads. Of a group of eight a thread has two, alike in the eight
# lanes that differ by four.


def _columns(group):
    """Of the two columns of a thread's group of four registers: their number, and that of the first row's register.

    Of 64 rows a thread has two, and the second row's register is two further on.
    """
    return [(group * 2 + e, group * FOUR + e) for e in range(2)]


def column_head(column, thread):
    """Which head a thread's column is."""
    return column // 2 * 8 + thread % 4 * 2 + column % 2


EVERY_FOURTH = (4, 8, 16)
"""Distances between the lanes of a warp that have the same columns."""


@recorded
def over_lanes(m, value, combine, distances=EVERY_FOURTH):
    """A value of each thread combined over the lanes of its warp at these distances."""
    for distance in distances:
        value = named(f"over_{distance}", combine(value, exchange(value, distance)))
    return value


def _sum(a, b):
    return a + b


@by_text
def mask_scores(m, scores, low, high, sm_scale, thread):
    """Scale the logits to base 2 and put -inf where the token, of the first 32 or of the next, has no valid id."""
    own = select(thread < 64, low, high) >> (thread // WARP % 2 * 16 + thread % WARP // 4)
    scale = sm_scale * LOG2E
    for r in range(2):
        valid = named(f"valid_{r}", ((own >> (8 * r)) & 1) != 0)
        for group in unrolled(scores.size // FOUR):
            for _, i in _columns(group):
                scores[i + 2 * r] = select(valid, scores[i + 2 * r] * scale, -INF)


@recorded
def _leave_columns(m, red, values, thread):
    """Leave one value a column and warp for the other warps."""
    if thread % WARP < 4:
        for column in unrolled(values.size):
            red[column_head(column, thread), thread // WARP] = values[column]


@by_text
def leave_maxima(m, red, scores, thread):
    """Leave the maximum of each head over the 16 tokens of each warp for the other warps."""
    risen = m.local("risen", scores.size // 2, "float32")
    for group in unrolled(scores.size // FOUR):
        for column, i in _columns(group):
            own = maximum(scores[i], scores[i + 2])
            risen[column] = over_lanes(m, own, maximum)
    _leave_columns(m, red, risen, thread)


@recorded
def _join_warps(m, top, red, thread, combine):
    """Combine what the four warps have left of each column."""
    four = m.local("four", FOUR, "float32")
    for column in unrolled(top.size):
        red.read(four, (column_head(column, thread), 0))
        top[column] = combine(combine(four[0], four[1]), combine(four[2], four[3]))


@by_text
def join_maxima(m, top, red, thread):
    """The maxima of the heads over the four warps."""
    _join_warps(m, top, red, thread, maximum)


@by_text
def online_softmax(m, scores, sums, acc, peak, top):
    """P = exp2(S - maximum) in place of S; rescale the running sums and O to the new maximum.

    The sums stay per thread until the end: one addition an element and no exchange between threads. To rescale only where a
    maximum has grown by much takes a branch around O, and that costs more than it saves (docs/performance.md).
    """
    for group in unrolled(scores.size // FOUR):
        for column, i in _columns(group):
            risen = maximum(top[column], peak[column])
            decay = exp2(peak[column] - risen)
            peak[column] = risen
            for at in (i, i + 2):
                scores[at] = exp2(scores[at] - risen)
            sums[column] = sums[column] * decay + (scores[i] + scores[i + 2])
            _scale_column(m, acc, scores.size, i, decay)


@by_text
def leave_sums(m, red, sums, thread):
    """Leave the sum of each head over the tokens of each warp for the other warps."""
    whole = m.local("whole", sums.size, "float32")
    for column in unrolled(sums.size):
        own = sums[column]
        whole[column] = over_lanes(m, own, _sum)
    _leave_columns(m, red, whole, thread)


@by_text
def join_sums(m, top, red, thread):
    """The sums of the heads over the four warps."""
    _join_warps(m, top, red, thread, _sum)


@recorded
def _scale_column(m, acc, each, register, factor):
    """Multiply a column of O, of which every `each` registers have 64 rows, by a factor."""
    for block in unrolled(acc.size // each):
        for at in (block * each + register, block * each + register + 2):
            acc[at] = acc[at] * factor


@by_text
def store_weights(m, target, scores, thread):
    """Write P as bf16, as its product lies; eight heads on N lie along the rows."""
    first, lane = thread // WARP * 16, thread % WARP
    if target.shape[0] == 8:
        place = inline(target.group_at(lane % 8, first + lane // 8 % 2 * 8, 8))
        m.do(store_matrices(place, scores, 0, 2, True))
    else:
        for pair in unrolled(scores.size // 8):
            place = inline(target.group_at(first + lane % 16, pair * 16 + lane // 16 * 8, 8))
            m.do(store_matrices(place, scores, pair * 8, 4))


@by_text
def normalise(m, acc, top, peak):
    """O / sum in place, and the base-2 lse in place of the sums; an empty column gives 0 and -inf."""
    each = top.size * 2
    for group in unrolled(each // FOUR):
        for column, i in _columns(group):
            inverse = _inverse(top[column])
            top[column] = _lse(top[column], peak[column])
            _scale_column(m, acc, each, i, inverse)


def _own_dim(block, thread):
    """A thread's first row of a block of 64; the second is eight further on."""
    return block * 64 + (thread // WARP * 16 + thread % WARP // 4)


@by_text
def write_outputs(m, acc, top, attn_sink, out: Writes, lse: Writes, row, head0, heads, lse_scale, thread):
    """The result of a row that one CTA holds whole."""
    each = top.size * 2
    for group in unrolled(each // FOUR):
        for column, i in _columns(group):
            head = head0 + column_head(column, thread)
            to = out.row("to", (row, head), (heads, LATENT_DIM))
            kept = kept_beside(top[column], attn_sink[head])
            for block in unrolled(acc.size // each):
                for r in range(2):
                    value = inline(acc[block * each + i + 2 * r] * kept)
                    to[_own_dim(block, thread) + 8 * r] = value.to("bfloat16")
            if thread < 4:
                lse.row("of_row", row, heads)[head] = top[column] * lse_scale


# Heads on N: the CTAs that hold a slice of the dims trade rows of O^T, of 16 dims by 8 heads, with the lses of all heads
# after them. Within a row dims lie side by side for each pair of heads, so that readers' banks differ.

ROW, COLUMN = 128, 8
"""Values of a row; heads of it."""


def _share_head(thread):
    """A thread's head of those of a row that it merges, and its dim."""
    return thread >> 4, thread & 15


@by_text
def load_sinks(m, sinks, attn_sink, head0, thread):
    """The sink logits of a thread's heads, one of each row's, read long before they are wanted."""
    head, _ = _share_head(thread)
    mine = attn_sink.part("mine", head0 + head)
    for c in range(sinks.size):
        sinks[c] = mine[c * COLUMN]


@recorded
def _rows_of_parts(m, acc, lses, thread, put):
    """Hand all of a thread's part of O and lses to `put(row, place in it, floats)`."""
    four, few = m.local("four", FOUR, "float32"), m.local("few", min(FOUR, lses.size), "float32")
    place = ((thread & 3) * 8 + (thread >> 2 & 7)) * FOUR
    for u in unrolled(acc.size // FOUR):
        for e in range(FOUR):
            four[e] = acc[u * FOUR + e]
        put(u * FOUR + (thread >> 5), place, four)
    m.comment("Four threads a row: those that hold all heads' lses between them.")
    for i in unrolled(ceildiv(acc.size * 4, THREADS)):
        row = i * (THREADS // 4) + (thread >> 2)
        if row < acc.size:
            for v in range(0, lses.size, few.size):
                for e in range(few.size):
                    few[e] = lses[v + e]
                put(row, (thread & 3) * lses.size + (ROW + v), few)


@by_text
def send_parts(m, acc, lses, inbox, words, first, slices, part, parts, thread):
    """Send each CTA that holds this slice its share of O, this one included; a CTA receives so many `words`.

    A CTA's share are the rows of its number, one part behind the other; CTA `first` merges the first share, and every
    `slices`-th from there the next.
    """
    log2_each = acc.size.bit_length() - 32 + clz(parts)

    def put(row, place, floats):
        owner = row >> log2_each
        within = inline((part << log2_each) + (row & ((1 << log2_each) - 1)))
        share = inbox.row("share", first + owner * slices, words, within * (ROW + 4 * lses.size) + place)
        m.do(push(share.at(0), floats))

    _rows_of_parts(m, acc, lses, thread, put)


@by_text
def keep_parts(m, target, acc, lses, thread):
    """Leave all of O in shared memory as `send_parts` would send it, where no other CTA has a part of it."""

    def put(row, place, floats):
        target.part("to", row * (ROW + 4 * lses.size) + place).write(floats, 0)

    _rows_of_parts(m, acc, lses, thread, put)


@by_text
def merge_rows(
    m, out: Writes, lse: Writes, received, sinks, row, head0, heads, part, parts, which, dims, block, lse_scale, thread
):  # fmt: skip
    """Join the parts of this CTA's share of O, scale each head by what tokens keep beside its sink, and store it; and the lse.

    A thread has one dim of one head of a row; neighbours store a word together. The number of parts is a constant of each
    branch, so that what it reads is in flight at once.
    """
    rows, (head, dim) = dims * block // ROW, _share_head(thread)
    lses = received.part("lses", ROW + ((head >> 1) * 2 * sinks.size + (head & 1)))
    values = received.part("values", ((head >> 1) * 8 + (dim & 7)) * FOUR + (dim >> 3) * 2 + (head & 1))
    place = row * heads + head0 + head
    dim = which * dims + dim
    for count in (1 << i for i in range(rows.bit_length())):
        if parts == count:
            _merge_share(
                m, out, lse, lses, values, sinks, count, rows // count, part, place, dim, ROW + block, lse_scale
            )  # fmt: skip


def _chosen(values, number):
    """The element of an array of registers that has a number, which only the kernel knows."""
    chosen = values[0]
    for other in range(1, values.size):
        chosen = select(number == other, values[other], chosen)
    return chosen


def _others(parts):
    """The numbers of all parts but the first one; no loop where there is none."""
    return unrolled(1, parts) if parts > 1 else ()


@recorded
def _merge_share(m, out, lse, lses, values, sinks, parts, each, part, place, dim, width, lse_scale):
    """Merge `each` rows of so many parts. Four rows have the same heads, and again after all heads; and so the same weights."""
    span, four, weights = FOUR * sinks.size, min(each, FOUR), m.local("weights", parts, "float32")
    log2_span = int(span).bit_length() - 1
    for c in unrolled(min(each, span) // four):
        n = part * each + c * four
        column = n >> 2 & (sinks.size - 1)
        first = place + column * COLUMN
        for p in unrolled(parts):
            weights[p] = lses[(p * each + c * four) * width + column * 2]
        scale, joined = _weigh(m, weights, _chosen(sinks, column))
        if dim == 0 and (n & 3) == 0 and n < span:
            lse.part("of_head", first)[0] = joined * lse_scale
        to = out.row("to", first, LATENT_DIM, dim)
        for again in unrolled(max(each // span, 1)):
            for i in unrolled(four):
                at = (c * four + i + again * span) * width
                value: Float32 = values[at] * weights[0]
                for p in _others(parts):
                    value += values[p * each * width + at] * weights[p]
                value *= scale
                beside = exchange(value, 1)
                if (dim & 1) == 0:
                    own = n + i + again * span
                    m.do(store_pair(to.at((own >> log2_span) * 64 + (own & 3) * 16), value, beside))


@recorded
def _weigh(m, weights, sink):
    """Of a thread's head, from the lse of each part: its weight in place, by what their sum is scaled, and the lse of all."""
    top: Float32 = weights[0]
    for p in _others(weights.size):
        top = maximum(top, weights[p])
    m.comment("Of an empty part 0, also where all are.")
    base = select(top > -INF, top, 0.0)
    for p in unrolled(weights.size):
        weights[p] = exp2(weights[p] - base)
    total: Float32 = weights[0]
    for p in _others(weights.size):
        total += weights[p]
    joined = _lse(total, base)
    scale = _inverse(total) * kept_beside(joined, sink)
    return scale, joined


# 64 heads on M: each of two warpgroups (sides) scores half of the tokens and has half of the dims of O. A thread has two
# heads, HALF_ROWS apart, each in the four lanes of a quad.


def _row(thread):
    """The first of a thread's two heads."""
    return thread // 32 * 16 + thread % 32 // 4


def _of_head(group, r):
    """Numbers of the registers of a thread's head `r` in a group of four."""
    return [group * FOUR + (2 * r + e) for e in range(2)]


@recorded
def _scale_head(m, acc, r, factor):
    """Multiply what a thread has of its head `r` by a factor."""
    for j in unrolled(acc.size // FOUR):
        for i in _of_head(j, r):
            acc[i] = acc[i] * factor


@recorded
def _leave(m, place, rows, thread):
    """Leave one value a head, by one lane of each quad."""
    if thread % 4 == 0:
        mine = place.part("mine", _row(thread))
        for r in range(2):
            mine[HALF_ROWS * r] = rows[r]


@by_text
def load_row_sinks(m, sinks, attn_sink, head0, thread):
    """The sink logits of the heads, read long before they are wanted."""
    mine = attn_sink.part("mine", head0 + _row(thread))
    for r in range(2):
        sinks[r] = mine[HALF_ROWS * r]


@by_text
def mask_columns(m, scores, low, high, sm_scale, thread):
    """Scale the logits to base 2 and put -inf where the token, of the first 32 or of the next, has no valid id."""
    scale = sm_scale * LOG2E
    for i in unrolled(scores.size):
        scores[i] = scores[i] * scale
    if (low & high) != -1:
        for first, word in zip(range(0, scores.size, WORD_REGISTERS), (low, high), strict=False):
            bits = word >> thread % 4 * 2
            for i in unrolled(WORD_REGISTERS):
                valid = inline((bits >> (i // 4 * 8 + i % 2)) & 1)
                scores[first + i] = select(valid != 0, scores[first + i], -INF)


def _shrinking(peak, risen):
    """What is summed up below one maximum times this is below a higher one; neither may have seen a token."""
    return select(peak == risen, 1.0, exp2(peak - risen))


@by_text
def softmax_rows(m, scores, sums, peak, factor, rise, thread):
    """P = exp2(S - maximum) in place of S. A maximum rises, by `factor`, when a score of its warp's rows exceeds one by `rise`."""
    most = [named(f"most_{r}", row_most(scores, r)) for r in range(2)]
    for r in range(2):
        factor[r] = 1.0
    if any_lane((most[0] > peak[0] + rise) | (most[1] > peak[1] + rise)):
        for r in range(2):
            risen = maximum(peak[r], quad_most(most[r]))
            factor[r] = _shrinking(peak[r], risen)
            peak[r] = risen
            sums[r] = sums[r] * factor[r]
    for r in range(2):
        m.comment("No token of this half may be valid, nor one before it.")
        base = select(peak[r] == -INF, 0.0, peak[r])
        for j in unrolled(scores.size // FOUR):
            for i in _of_head(j, r):
                scores[i] = exp2(scores[i] - base)
        sums[r] = sums[r] + row_sum(scores, r)


@by_text
def rescale_rows(m, acc, factor):
    """Each row times its factor, in place; left alone where the factors of a warp's rows are 1."""
    if any_lane((factor[0] != 1.0) | (factor[1] != 1.0)):
        for r in range(2):
            _scale_head(m, acc, r, factor[r])


@by_text
def share_peak(m, target, peak, thread):
    """Leave the maxima that P is below for the other side."""
    _leave(m, target, peak, thread)


@by_text
def follow_peak(m, peak, sums, acc, other, thread):
    """Raise the maxima to those that the other side's P is below, which are no lower."""
    theirs = other.part("theirs", _row(thread))
    if any_lane((theirs[0] != peak[0]) | (theirs[HALF_ROWS] != peak[1])):
        for r in range(2):
            factor = _shrinking(peak[r], theirs[HALF_ROWS * r])
            peak[r] = theirs[HALF_ROWS * r]
            sums[r] = sums[r] * factor
            _scale_head(m, acc, r, factor)


@by_text
def share_sums(m, sums, red, side, thread):
    """Complete this side's sums and leave them for the other."""
    for r in range(2):
        sums[r] = quad_sum(sums[r])
    _leave(m, red.part("own", side * HEADS), sums, thread)


@by_text
def total_rows(m, sums, peak, factor, red, side, thread):
    """`factor`: 1 / sum of both sides, and the base-2 lse in place of the sums; an empty row gives 0 and -inf."""
    theirs = red.part("theirs", _row(thread) + (1 - side) * HEADS)
    for r in range(2):
        total = sums[r] + theirs[HALF_ROWS * r]
        factor[r] = _inverse(total)
        sums[r] = _lse(total, peak[r])


@by_text
def store_result_rows(
    m, out: Writes, lse: Writes, acc, factor, lses, sinks, row, head0, heads, scratch, width, lse_scale, side, thread
):  # fmt: skip
    """Store this side's half of O times `factor` as bf16, each head scaled by the share that tokens keep beside its sink; and the lse.

    The rows pass through shared memory, `width` dims of each at a time, so that whole sectors go out.
    """
    line = row * heads + head0
    joined = m.local("joined", 2, "float32")
    scale = [named(f"scale_{r}", factor[r] * kept_beside(lses[r], sinks[r])) for r in range(2)]
    own = thread // WARP * 16
    lane = thread % WARP
    pieces = width // 8
    eight, held = m.local("eight", 8, "float32"), m.local("held", 8, "bfloat16")
    for block in unrolled(FOURS * 8 // width):
        m.comment("A warp reads back only the rows that it wrote.")
        m.do(sync_warp())
        for pair in unrolled(pieces // 2):
            for e in range(8):
                eight[e] = acc[(block * (pieces // 2) + pair) * 8 + e] * scale[e // 2 % 2]
            place = inline(scratch.group_at(own + lane % 16, pair * 16 + lane // 16 * 8, 8))
            m.do(store_matrices(place, eight, 0, 4))
        m.do(sync_warp())
        for i in unrolled(pieces // 2):
            head = own + i * (WARP // pieces) + lane // pieces
            scratch.read(held, (head, lane % pieces * 8))
            to = out.row("to", line + head, LATENT_DIM, side * (FOURS * 8) + block * width)
            to.write(held, lane % pieces)
    if side == 0:
        for r in range(2):
            joined[r] = lses[r] * lse_scale
        _leave(m, lse.part("of_heads", line), joined, thread)


# Splits of a query that leave their parts of O in scratch memory, where their CTAs join them, a share of the dims each.

ON_N = 2
"""In place of a side: all of O, with heads on N."""


@dataclass(frozen=True)
class _Part:
    """What a thread has of O, by the leaves that join parts: the same dims of each of its heads, piece by piece.

    Register i of piece p is of the thread's head `head(column(i))` and of dim `dim(p, i)`. The lanes that have the same heads
    are `alike` apart, and `lane` is the thread's number among them; `leaves` tells whether it writes the lses of these heads.
    `first` is the number of the thread's first four among those of all threads and sides.
    """

    columns: int
    thread: Value
    first: Value

    def room(self, o_partial, place, splits, heads):
        """Where a thread leaves its fours of the part of a row, a split and the first of its heads, THREADS of them apart."""
        return o_partial.row("room", place, (splits, heads, LATENT_DIM), self.first * FOUR)


@dataclass(frozen=True)
class _HeadsOnN(_Part):
    pieces, alike = LATENT_DIM // 64, EVERY_FOURTH

    @property
    def lane(self):
        return self.thread % WARP // 4

    @property
    def leaves(self):
        return self.thread < 4

    def head(self, column):
        return column_head(column, self.thread)

    def column(self, i):
        return i // FOUR * 2 + i % 2

    def dim(self, piece, i):
        return _own_dim(piece, self.thread) + i % FOUR // 2 * 8


@dataclass(frozen=True)
class _HeadsOnM(_Part):
    side: int
    pieces, alike = FOURS, (1, 2)

    @property
    def lane(self):
        return self.thread % 4

    @property
    def leaves(self):
        return self.thread % 4 == 0

    def head(self, column):
        return _row(self.thread) + HALF_ROWS * column

    def column(self, i):
        return i // 2

    def dim(self, piece, i):
        return (self.side * FOURS + piece) * 8 + self.thread % 4 * 2 + i % 2


def _part(side, columns, thread):
    if side == ON_N:
        return _HeadsOnN(columns, thread, thread)
    return _HeadsOnM(columns, thread, thread + side * (FOURS * THREADS), side)


@by_text
def leave_part(
    m, acc, lses, row, head0, side, split, o_partial: Writes, lse_partial: Writes, splits, heads, thread
):
    """Write a split's normalised part of O, in the order of the threads, and its lses, for `merge_parts`."""
    part, four = _part(side, lses.size, thread), m.local("four", FOUR, "float32")
    room = part.room(o_partial, (row, split, head0), splits, heads)
    for u in unrolled(acc.size // FOUR):
        for e in range(FOUR):
            four[e] = acc[u * FOUR + e]
        room.write(four, u * THREADS)
    if side != 1 and part.leaves:
        of_split = lse_partial.row("of_split", (row, split), (splits, heads), head0)
        for column in unrolled(part.columns):
            of_split[part.head(column)] = lses[column]


@by_text
def merge_parts(
    m, row, head0, parts, share, shares, columns, side, out: Writes, lse: Writes, o_partial, lse_partial, attn_sink, splits, heads, lse_scale,
    thread,
):  # fmt: skip
    """Join share `share` of `shares` of the dims from all parts, scale each head by what tokens keep beside its sink, and store it; and the lse.

    An empty part has lse = -inf and weight 0; a row without ids gives 0 and -inf.
    """
    part, size = _part(side, columns, thread), 2 * columns
    base, scale, joined = (m.local(text, columns, "float32") for text in ("base", "scale", "joined"))
    own_parts = rolled(part.lane, parts, 1 << len(part.alike), at_once=AT_ONCE)

    def lses_of(p):
        return lse_partial.row("lses", (row, p), (splits, heads), head0)

    for column in unrolled(columns):
        base[column], scale[column] = -INF, 0.0
    m.comment("Each of the lanes that have the same heads looks at some parts.")
    for p in own_parts:
        lses = lses_of(p)
        for column in unrolled(columns):
            base[column] = maximum(base[column], lses[part.head(column)])
    for column in unrolled(columns):
        top = over_lanes(m, base[column], maximum, part.alike)
        base[column] = select(top > -INF, top, 0.0)
    for p in own_parts:
        lses = lses_of(p)
        for column in unrolled(columns):
            scale[column] = scale[column] + exp2(lses[part.head(column)] - base[column])
    for column in unrolled(columns):
        total = over_lanes(m, scale[column], _sum, part.alike)
        of_all = _lse(total, base[column])
        joined[column] = of_all * lse_scale
        sink = inline(attn_sink[head0 + part.head(column)])
        scale[column] = _inverse(total) * kept_beside(of_all, sink)
    if side != 1 and share == 0 and part.leaves:
        of_heads = lse.row("of_heads", row, heads, head0)
        for column in unrolled(columns):
            of_heads[part.head(column)] = joined[column]
    few, fours = min(FEW, FEW_REGISTERS // size), size // FOUR
    end = (share + 1) * part.pieces // shares
    weight = m.local("weight", columns, "float32")
    merged, four = m.local("merged", few * size, "float32"), m.local("four", FOUR, "float32")
    for piece in range(share * part.pieces // shares, end, few):
        for i in unrolled(merged.size):
            merged[i] = 0.0
        for p in rolled(parts, at_once=AT_ONCE):
            lses, room = lses_of(p), part.room(o_partial, (row, p, head0), splits, heads)
            for column in unrolled(columns):
                weight[column] = exp2(lses[part.head(column)] - base[column])
            for v in unrolled(few):
                for u in unrolled(fours):
                    room.read(four, (minimum(piece + v, end - 1) * fours + u) * THREADS)
                    for e in unrolled(FOUR):
                        i = inline(u * FOUR + e)
                        merged[v * size + i] = merged[v * size + i] + four[e] * weight[part.column(i)]
        for v in unrolled(few):
            if piece + v < end:
                for i in unrolled(0, size, 1 if side == ON_N else 2):
                    column, at = part.column(i), v * size + i
                    to = out.row(
                        "to", (row, head0 + part.head(column)), (heads, LATENT_DIM), part.dim(piece + v, i)
                    )
                    if side == ON_N:
                        to[0] = (merged[at] * scale[column]).to("bfloat16")
                    else:
                        m.do(store_pair(to.at(0), merged[at] * scale[column], merged[at + 1] * scale[column]))
