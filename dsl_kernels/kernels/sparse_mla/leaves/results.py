"""Leaves of the results of sparse MLA on Hopper, by their text.

Splits hand one another their parts of O and their lses, and merge them. `softmax` says what registers and
exponents mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ....device.torch.warps import clz, exchange, exp2, push, store_matrices, store_pair, sync_warp
from ....tile.counting import moves
from ....tile.frontend import inline, named, recorded, unrolled
from ....tile.kinds import BFloat16, Float32, Global, Int32, LeafRecorder, Registers, Sender, Shared, Writes
from ....tile.lang import Size
from ....tile.leaf_text import WARP, by_text
from ....tile.text import Value, ceildiv, maximum, minimum, select
from .gather import THREADS, is_head
from .softmax import (
    FOUR,
    HALF_ROWS,
    INF,
    base2_lse,
    column_head,
    columns_of,
    first_head,
    inverse_sum,
    join_parts,
    kept_beside,
    leave_heads,
    said_lse,
    sink_of,
)

LATENT_DIM = Size(512, "LATENT_DIM")
FOURS = 32
"""A thread has so many fours of half of O: two heads by two dims, of every eight dims."""


def _own_dim(block, thread):
    """A thread's first row of a block of 64 dims. Its second row is eight rows after that."""
    return block * 64 + (thread // WARP * 16 + thread % WARP // 4)


def _result_bytes(acc):
    """Bytes of the result of float32 accumulators of `acc` bytes: rows in bf16, and their lses."""
    return acc // 2 + acc // LATENT_DIM


@moves(stored=_result_bytes)
@by_text
def write_outputs(
    m: LeafRecorder, acc: Registers[Float32], top: Registers[Float32], attn_sink: Global[Float32],
    out: Writes[Global[BFloat16]], lse: Writes[Global[Float32]], row: Int32, head0: Int32,
    lse_scale: Float32, empty_lse: Float32, heads: Int32 | None,
) -> None:  # fmt: skip
    """Write the result of a row that one CTA holds whole."""
    each = top.size * 2
    for group in unrolled(each // FOUR):
        for column, i in columns_of(group):
            head = head0 + column_head(column, m.thread)
            if is_head(head, heads):
                to = out.row("to", (row, head))
                kept = kept_beside(top[column], attn_sink[head])
                for block in unrolled(acc.size // each):
                    for r in range(2):
                        value = inline(acc[block * each + i + 2 * r] * kept)
                        to[_own_dim(block, m.thread) + 8 * r] = value.to("bfloat16")
                if m.thread < 4:
                    lse.row("of_row", row)[head] = said_lse(top[column], lse_scale, empty_lse)


# Heads on N: the CTAs that hold the same slice of the dims exchange rows of O^T. A row is 16 dims by 8 heads,
# and then the lses of all heads. In a row the dims of each pair of heads are consecutive, so readers use
# distinct banks.

ROW, COLUMN = 128, 8
"""Values of a row, and heads of a row."""


def _share_head(thread):
    """A thread's head and its dim in a row that it merges."""
    return thread >> 4, thread & 15


@by_text
def load_sinks(
    m: LeafRecorder, sinks: Registers[Float32], attn_sink: Global[Float32], head0: Int32, heads: Int32 | None,
) -> None:  # fmt: skip
    """Read the sink logits of a thread's heads, one for each group of eight, long before they are needed."""
    head, _ = _share_head(m.thread)
    if heads is None:
        mine = attn_sink.part("mine", head0 + head)
    for c in range(sinks.size):
        sinks[c] = mine[c * COLUMN] if heads is None else sink_of(attn_sink, head0 + head + c * COLUMN, heads)


@recorded
def _rows_of_parts(m, acc, lses, put):
    """Call `put(row, place in the row, floats)` for all of a thread's part of O and of the lses."""
    four, few = m.local("four", FOUR, "float32"), m.local("few", min(FOUR, lses.size), "float32")
    place = ((m.thread & 3) * 8 + (m.thread >> 2 & 7)) * FOUR
    for u in unrolled(acc.size // FOUR):
        for e in range(FOUR):
            four[e] = acc[u * FOUR + e]
        put(u * FOUR + (m.thread >> 5), place, four)
    m.comment("Four threads per row write lses: these four together hold all heads' lses.")
    for i in unrolled(ceildiv(acc.size * 4, THREADS)):
        row = i * (THREADS // 4) + (m.thread >> 2)
        if row < acc.size:
            for v in range(0, lses.size, few.size):
                for e in range(few.size):
                    few[e] = lses[v + e]
                put(row, (m.thread & 3) * lses.size + (ROW + v), few)


@moves(stored=lambda words: 4 * words)
@by_text
def send_parts(
    m: LeafRecorder, acc: Registers[Float32], lses: Registers[Float32], inbox: Sender, words: int,
    first: Int32, slices: int, part: Int32, parts: Int32,
) -> None:  # fmt: skip
    """Send each CTA that holds this slice its share of O, this CTA included. A CTA receives `words` words.

    A CTA's share is the rows of its number, one part after another. CTA `first` merges the first share, and
    each `slices`-th CTA after it merges the next.
    """
    log2_each = acc.size.bit_length() - 32 + clz(parts)

    def put(row, place, floats):
        owner = row >> log2_each
        within = inline((part << log2_each) + (row & ((1 << log2_each) - 1)))
        share = inbox.row("share", first + owner * slices, words, within * (ROW + 4 * lses.size) + place)
        m.do(push(share.at(0), floats))

    _rows_of_parts(m, acc, lses, put)


@by_text
def keep_parts(
    m: LeafRecorder, target: Shared[Float32], acc: Registers[Float32], lses: Registers[Float32],
) -> None:  # fmt: skip
    """Write all of O to shared memory as `send_parts` would send it, if no other CTA has a part of it."""

    def put(row, place, floats):
        target.part("to", row * (ROW + 4 * lses.size) + place).write(floats, 0)

    _rows_of_parts(m, acc, lses, put)


@moves(stored=lambda dims, block, parts: dims * block // parts * 2 + block * 4)
@by_text
def merge_rows(
    m: LeafRecorder, out: Writes[Global[BFloat16]], lse: Writes[Global[Float32]], received: Shared[Float32],
    sinks: Registers[Float32], row: Int32, head0: Int32, part: Int32, parts: Int32, which: Int32,
    dims: int, block: int, lse_scale: Float32, empty_lse: Float32, heads: Int32 | None,
) -> None:  # fmt: skip
    """Join the parts of this CTA's share of O, scale each head for its sink, and store O and the lse.

    A thread has one dim of one head of a row. Two neighbours store a word together. The number of parts is a
    constant in each branch, so all reads of a branch are in flight together.
    """
    rows, (head, dim) = dims * block // ROW, _share_head(m.thread)
    lses = received.part("lses", ROW + ((head >> 1) * 2 * sinks.size + (head & 1)))
    values = received.part("values", ((head >> 1) * 8 + (dim & 7)) * FOUR + (dim >> 3) * 2 + (head & 1))
    head = head0 + head
    dim = which * dims + dim
    for count in (1 << i for i in range(rows.bit_length())):
        if parts == count:
            _merge_share(
                m, out, lse, lses, values, sinks, count, rows // count, part, row, head, dim, ROW + block,
                lse_scale, empty_lse, heads,
            )  # fmt: skip


def _chosen(values, number):
    """The element `number` of an array of registers, if only the running kernel knows the number."""
    chosen = values[0]
    for other in range(1, values.size):
        chosen = select(number == other, values[other], chosen)
    return chosen


def _others(parts):
    """The numbers of all parts but the first; no loop if there are none."""
    return unrolled(1, parts) if parts > 1 else ()


@recorded
def _merge_share(
    m, out, lse, lses, values, sinks, parts, each, part, row, head0, dim, width, lse_scale, empty_lse, heads
):
    """Merge `each` rows of `parts` parts.

    Four consecutive rows have the same heads, and so have the four rows that are a cycle of all heads later.
    Rows with the same heads have the same weights.
    """
    span, four, weights = FOUR * sinks.size, min(each, FOUR), m.local("weights", parts, "float32")
    log2_span = int(span).bit_length() - 1
    for c in unrolled(min(each, span) // four):
        n = part * each + c * four
        column = n >> 2 & (sinks.size - 1)
        mine = head0 + column * COLUMN
        for p in unrolled(parts):
            weights[p] = lses[(p * each + c * four) * width + column * 2]
        scale, joined = _weigh(m, weights, _chosen(sinks, column))
        # Not one condition: the inner one may be a constant instead of a value of the kernel.
        if dim == 0 and (n & 3) == 0 and n < span:  # noqa: SIM102
            if is_head(mine, heads):
                lse.row("of_row", row)[mine] = said_lse(joined, lse_scale, empty_lse)
        to = out.row("to", (row, mine), first=dim)
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
                    if is_head(mine, heads):
                        m.do(store_pair(to.at((own >> log2_span) * 64 + (own & 3) * 16), value, beside))


@recorded
def _weigh(m, weights, sink):
    """Turn the lses of a thread's head, one per part, into the parts' weights.

    Returns:
        The factor of the weighted sum, and the lse of all parts.
    """
    top: Float32 = weights[0]
    for p in _others(weights.size):
        top = maximum(top, weights[p])
    m.comment("The weight of an empty part is 0, even if all parts are empty.")
    base = select(top > -INF, top, 0.0)
    for p in unrolled(weights.size):
        weights[p] = exp2(weights[p] - base)
    total: Float32 = weights[0]
    for p in _others(weights.size):
        total += weights[p]
    joined = base2_lse(total, base)
    scale = inverse_sum(total) * kept_beside(joined, sink)
    return scale, joined


# 64 heads on M: a side has half of the dims of O, and a thread has two heads, as in `softmax`.


@by_text
def load_row_sinks(
    m: LeafRecorder, sinks: Registers[Float32], attn_sink: Global[Float32], head0: Int32, heads: Int32 | None,
) -> None:  # fmt: skip
    """Read the sink logits of a thread's heads, long before they are needed."""
    if heads is None:
        mine = attn_sink.part("mine", head0 + first_head(m.thread))
    for r in range(2):
        head = inline(head0 + first_head(m.thread) + HALF_ROWS * r)
        sinks[r] = mine[HALF_ROWS * r] if heads is None else sink_of(attn_sink, head, heads)


@moves(stored=_result_bytes)
@by_text
def store_result_rows(
    m: LeafRecorder, out: Writes[Global[BFloat16]], lse: Writes[Global[Float32]], acc: Registers[Float32],
    factor: Registers[Float32], lses: Registers[Float32], sinks: Registers[Float32], row: Int32, head0: Int32,
    scratch: Shared[BFloat16], width: int, lse_scale: Float32, empty_lse: Float32, side: int,
    heads: Int32 | None,
) -> None:  # fmt: skip
    """Store this side's half of O as bf16, and the lse. O is scaled by `factor`, and each head for its sink.

    The rows pass through shared memory, `width` dims at a time, so the stores write whole sectors.
    """
    joined = m.local("joined", 2, "float32")
    scale = [named(f"scale_{r}", factor[r] * kept_beside(lses[r], sinks[r])) for r in range(2)]
    own = m.thread // WARP * 16
    lane = m.thread % WARP
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
            to = out.row("to", (row, head0 + head), first=side * (FOURS * 8) + block * width)
            if is_head(head0 + head, heads):
                to.write(held, lane % pieces)
    if side == 0:
        for r in range(2):
            joined[r] = said_lse(lses[r], lse_scale, empty_lse)
        leave_heads(
            m, lse.row("of_heads", row, first=head0), joined, None if heads is None else heads - head0
        )


# The splits of a query write their parts of O to scratch memory. Their CTAs join the parts, a share of the
# dims each.

IN_FLIGHT = 64
"""Registers into which parts are read together when they are joined."""
ON_N = 2
"""In place of a side: all of O, with heads on N."""


@dataclass(frozen=True)
class _Part:
    """A thread's part of O, for the leaves that join parts: piece by piece the same dims of each head.

    Register i of piece p has dim `dim(p, i)` of the thread's head `head(column(i))`. `leaves` tells whether
    the thread writes the lses of its heads. `first` is the number of the thread's first four, among the fours
    of all threads and sides.
    """

    columns: int
    thread: Value
    first: Value

    def room(self, o_partial, place, splits, padded):
        """Where a thread writes its fours of a part, THREADS fours apart.

        `place` is the part's row, its split and the first of its heads.
        """
        return o_partial.row("room", place, (splits, padded, LATENT_DIM), self.first * FOUR)


@dataclass(frozen=True)
class _HeadsOnN(_Part):
    pieces = LATENT_DIM // 64

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
    pieces = FOURS

    @property
    def leaves(self):
        return self.thread % 4 == 0

    def head(self, column):
        return first_head(self.thread) + HALF_ROWS * column

    def column(self, i):
        return i // 2

    def dim(self, piece, i):
        return (self.side * FOURS + piece) * 8 + self.thread % 4 * 2 + i % 2


def _merged_bytes(columns, side):
    """Bytes of whole rows in bf16 and their lses. The last CTA to arrive stores them if it merges alone."""
    heads, dims = (columns * 4, LATENT_DIM) if side == ON_N else (columns * 32, FOURS * 8)
    return heads * dims * 2 + heads * 4 * dims // LATENT_DIM


def _part(side, columns, thread):
    if side == ON_N:
        return _HeadsOnN(columns, thread, thread)
    return _HeadsOnM(columns, thread, thread + side * (FOURS * THREADS), side)


@moves(stored=lambda acc: acc + acc // LATENT_DIM)
@by_text
def leave_part(
    m: LeafRecorder, acc: Registers[Float32], lses: Registers[Float32], row: Int32, head0: Int32, side: int,
    split: Int32, o_partial: Writes[Global[Float32]], lse_partial: Writes[Global[Float32]], splits: Int32,
    padded: int | Int32,
) -> None:  # fmt: skip
    """Write a split's normalised part of O, in the order of threads, and its lses, for `merge_parts`."""
    part, four = _part(side, lses.size, m.thread), m.local("four", FOUR, "float32")
    room = part.room(o_partial, (row, split, head0), splits, padded)
    for u in unrolled(acc.size // FOUR):
        for e in range(FOUR):
            four[e] = acc[u * FOUR + e]
        room.write(four, u * THREADS)
    if side != 1 and part.leaves:
        of_split = lse_partial.row("of_split", (row, split), (splits, padded), head0)
        for column in unrolled(part.columns):
            of_split[part.head(column)] = lses[column]


@moves(stored=_merged_bytes)
@by_text
def merge_parts(
    m: LeafRecorder, row: Int32, head0: Int32, parts: Int32, share: Int32, shares: Int32, columns: int,
    few: int, side: int, out: Writes[Global[BFloat16]], lse: Writes[Global[Float32]],
    o_partial: Global[Float32], lse_partial: Global[Float32], attn_sink: Global[Float32], splits: Int32,
    padded: int | Int32, lse_scale: Float32, empty_lse: Float32, heads: Int32 | None,
) -> None:  # fmt: skip
    """Join share `share` of `shares` of the dims from all parts, scale each head for its sink, and store it.

    It joins `few` pieces at a time. Whoever has the first piece also stores the lse. A row without ids gives
    0 and `empty_lse`.
    """
    part, size = _part(side, columns, m.thread), 2 * columns
    fours, sinks = size // FOUR, m.local("sinks", columns, "float32")
    end = (share + 1) * part.pieces // shares

    def read(piece, four, p, u):
        room = part.room(o_partial, (row, p, head0), splits, padded)
        room.read(four, (minimum(piece + u // fours, end - 1) * fours + u % fours) * THREADS)

    for column in unrolled(columns):
        sinks[column] = sink_of(attn_sink, head0 + part.head(column), heads)
    for piece in range(share * part.pieces // shares, end, few):
        top, total, merged = join_parts(
            m, columns, few * size, max(1, IN_FLIGHT // (few * size)), parts,
            lambda p: lse_partial.row("lses", (row, p), (splits, padded), head0),
            part.head, partial(read, piece), lambda i: part.column(i % size),
        )  # fmt: skip
        for column in unrolled(columns):
            head = inline(head0 + part.head(column))
            joined = base2_lse(total[column], top[column])
            total[column] = inverse_sum(total[column]) * kept_beside(joined, sinks[column])
            if side != 1 and piece == 0 and part.leaves and is_head(head, heads):
                lse.row("of_row", row)[head] = said_lse(joined, lse_scale, empty_lse)
        for v in unrolled(few):
            if piece + v < end:
                for i in unrolled(0, size, 1 if side == ON_N else 2):
                    column, at = part.column(i), v * size + i
                    head = inline(head0 + part.head(column))
                    to = out.row("to", (row, head), first=part.dim(piece + v, i))
                    if is_head(head, heads):
                        if side == ON_N:
                            to[0] = (merged[at] * total[column]).to("bfloat16")
                        else:
                            factor = inline(total[column])
                            m.do(store_pair(to.at(0), merged[at] * factor, merged[at + 1] * factor))
