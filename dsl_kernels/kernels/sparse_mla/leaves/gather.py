"""Leaves that read ids of sparse MLA on Hopper, gather the rows of these ids and copy queries, by their text.

A tile has TILE tokens. A lane has two of the tile's ids: `low` among the first 32, `high` among the next 32.
"""

from __future__ import annotations

from ....device.torch import warps
from ....problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM
from ....tile.counting import longest, moves
from ....tile.frontend import inline, named, recorded, rolled, unrolled
from ....tile.kinds import (
    BFloat16,
    Boolean,
    Global,
    Int32,
    LeafRecorder,
    Registers,
    Sender,
    Sets,
    Shared,
    Uint8,
    Uint32,
)
from ....tile.lang import Size
from ....tile.leaf_text import WARP, by_text
from ....tile.text import ceildiv, minimum, select

TILE, THREADS = 64, 128
HEADS = Size(64, "HEADS_OF_SIDE")
"""Heads of a side, if heads are on M."""


@longest(lambda tile, end: (0, 0) if tile * TILE < end else (-1, -1))
@by_text
def read_ids(
    m: LeafRecorder, low: Sets[Int32], high: Sets[Int32], indices: Global[Int32], row: Int32, tile: Int32,
    end: Int32,
) -> None:  # fmt: skip
    """Read ids `lane` and `lane` + 32 of a tile of a query; -1 replaces the ids from number `end` on."""
    ids = indices.row("ids", row)
    first = tile * TILE + m.lane
    low = warps.load_or(ids.at(first), first < end, -1)
    high = warps.load_or(ids.at(first + WARP), first + WARP < end, -1)


def _valid(token, n):
    """Whether `token` is the number of one of `n` rows or tokens; -1 is padding."""
    return (token >= 0) & (token < n)


@longest(lambda low: (low, low, low >= 0))
@by_text
def vote(
    m: LeafRecorder, in_low: Sets[Int32], in_high: Sets[Int32], live: Sets[Boolean], low: Int32, high: Int32,
    cached: Int32,
) -> None:  # fmt: skip
    """The valid ids of a tile as two words of bits, and whether any id is valid.

    Every warp of every role gets the same result.
    """
    in_low = warps.ballot(_valid(low, cached))
    in_high = warps.ballot(_valid(high, cached))
    live = (in_low | in_high) != 0


def page_of(id, page_inverse, page_shift):
    """The page of an id below 2^30, as `kernels.sparse_mla.forms.page_of` computes it."""
    return warps.mul_hi(id.to("uint32") << 2, page_inverse.to("uint32")).to("int32") >> page_shift


@recorded
def _row_of(m, id, cached, page_inverse, page_shift, page_gap, which=""):
    """The row of the cache that an id names, with `page_gap` rows between pages; -1 if it names no token."""
    page = named(f"{which}page", page_of(id, page_inverse, page_shift))
    return select(_valid(id, cached), id + page * page_gap, -1)


@longest(lambda id: (id,))
@by_text
def find_row(
    m: LeafRecorder, row: Sets[Int32], id: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_gap: Int32,
) -> None:  # fmt: skip
    """The row of the cache that an id names, if it names a token. `find_rows` says what the branch is for."""
    row = id
    if page_gap != 0:
        row = _row_of(m, id, cached, page_inverse, page_shift, page_gap)


@longest(lambda low, high: (low, high))
@by_text
def find_rows(
    m: LeafRecorder, low_row: Sets[Int32], high_row: Sets[Int32], low: Int32, high: Int32, cached: Int32,
    page_inverse: Int32, page_shift: Int32, page_gap: Int32,
) -> None:  # fmt: skip
    """The rows of the cache that a lane's two ids of a tile name.

    Without the branch ptxas moves the arithmetic across other code, and kernels of 16 heads were 2 to 3 %
    slower.
    """
    low_row = low
    high_row = high
    if page_gap != 0:
        low_row = _row_of(m, low, cached, page_inverse, page_shift, page_gap, "low_")
        high_row = _row_of(m, high, cached, page_inverse, page_shift, page_gap, "high_")


@recorded
def cache_row(m, ids, holder, n, which=""):
    """The id of lane `holder`, which is a cache row, and whether it is one of `n` rows.

    The id stays as it is where it names no row: nothing reads there. A choice before the address would cost
    the product of row and stride in 64 bits.
    """
    token = named(f"token{which}", warps.shuffle(ids, holder))
    inside = named(f"inside{which}", _valid(token, n))
    return token, inside


def heads_of_block(block, head0, heads):
    """How many heads a block has from `head0` on: what it has room for, but no more than the query has left.

    `heads` is None if all blocks are full.
    """
    return block if heads is None else minimum(block, heads - head0)


def is_head(head, heads):
    """Whether a head is one of a query's `heads`. `heads` is None if all blocks are full."""
    return True if heads is None else head < heads


@moves(loaded=lambda target, rope_target: target + (rope_target or 0))
@by_text
def load_queries(
    m: LeafRecorder, target: Shared[BFloat16], rope_target: Shared[BFloat16] | None, q: Global[BFloat16],
    q_rope: Global[BFloat16] | None, row: Int32, head0: Int32, head_block: int, part: Int32, columns: int,
    rope_columns: int, heads: Int32 | None,
) -> None:  # fmt: skip
    """Copy part `part` of a block of heads of one query: `columns` columns of `q`, `rope_columns` of
    `q_rope`.
    """
    parts = [(target, q, columns)]
    if rope_target is not None and q_rope is not None:
        parts.append((rope_target, q_rope, rope_columns))
    rounds = [ceildiv(head_block * width // 8, THREADS) for _, _, width in parts]
    held, some_heads = m.local("held", sum(rounds) * 4, "uint32"), heads_of_block(head_block, head0, heads)
    m.comment("All reads come before the first write: a compiler moves no read past a write.")
    for number, (_, source, width) in enumerate(parts):
        pieces, at = width // 8, sum(rounds[:number])
        for i in unrolled(rounds[number]):
            item = i * THREADS + m.thread
            of_head = source.row("of_head", (row, head0 + item // pieces), first=part * width)
            some = inline(item < some_heads * pieces)
            m.do(warps.load_vector(held, (at + i) * 4, 4, of_head.at(item % pieces * 8), some))
    for number, (to, _, width) in enumerate(parts):
        pieces, at = width // 8, sum(rounds[:number])
        for i in unrolled(rounds[number]):
            item = i * THREADS + m.thread
            if item < head_block * pieces:
                m.do(
                    warps.store_vector(held, (at + i) * 4, to.group_at(item // pieces, item % pieces * 8, 8))
                )


@moves(loaded=lambda target: target)
@by_text
def copy_query_rows(
    m: LeafRecorder, target: Shared[BFloat16], q: Global[BFloat16], row: Int32, head0: Int32, columns: int,
    heads: Int32 | None,
) -> None:  # fmt: skip
    """Start the copies of a block of 64 heads of one query."""
    pieces = columns // 8
    for i in rolled(HEADS * pieces // THREADS, at_once=8):
        own, piece = m.thread // pieces + i * (THREADS // pieces), m.thread % pieces
        of_head = q.row("of_head", (row, head0 + own))
        some = inline(is_head(head0 + own, heads))
        m.do(warps.copy16(target.group_at(own, piece * 8, 8), of_head.at(piece * 8), some))


@moves(loaded=lambda target: target)
@by_text
def copy_rows(
    m: LeafRecorder, target: Shared[BFloat16], cache: Global[BFloat16], first: Int32, columns: int,
    low: Int32, high: Int32, n: Int32,
) -> None:  # fmt: skip
    """Start the copies of `columns` columns of a tile's rows, from `first` on; zeros if an id names no row.

    Consecutive threads copy consecutive pieces of a panel of 128 bytes or less.
    """
    lanes = min(columns // 8, 8)
    at_once, piece = THREADS // lanes, m.thread % lanes
    for begin in range(0, TILE, at_once):
        row = m.thread // lanes + begin
        ids = inline(
            low if begin + at_once <= WARP else high if begin >= WARP else select(row < WARP, low, high)
        )
        token = warps.shuffle(ids, row % WARP)
        for c in unrolled(columns // (lanes * 8)):
            to = inline(target.group_at(row, (c * lanes + piece) * 8, 8))
            m.do(warps.copy_row16(to, cache, first + piece * 8, token, c * (lanes * 8), n))


# Half a tile of 656-byte tokens in registers. Four lanes hold a token. Each lane has 16 fp8 values of each
# panel of 64, two pieces of rope, and one of the token's four scales, from which the other lanes read it. If
# two CTAs share out the half, each CTA has half of the panels, and the rope of four of the eight tokens that
# a warp unpacks, in eight lanes per token.

ROPE_WORD, SCALE_WORD, TOKEN_WORDS = 32, 40, 44
SCALES_AT, ROPE_AT = 512, 528


@by_text
def fetch_half(
    m: LeafRecorder, kv_cache: Global[Uint8], rank: Int32, shares: int, ids: Int32, n: Int32,
) -> None:  # fmt: skip
    """Prefetch this CTA's share of the tokens of half a tile into the L2, a line at a time."""
    lanes = 4 * shares
    token = warps.shuffle(ids, m.thread // lanes + rank * (WARP // shares))
    line = inline(m.thread % lanes * 128)
    inside = _valid(token, n)
    of_token = kv_cache.row("of_token", token, first=line)
    for more in range(0, FP8_TOKEN_BYTES, lanes * 128):
        m.do(warps.prefetch(of_token.at(more), inside & (line + more < FP8_TOKEN_BYTES)))


@moves(loaded=lambda ids, shares: WARP * (FP8_TOKEN_BYTES // shares) if ids >= 0 else 0)
@by_text
def load_half(
    m: LeafRecorder, words: Registers[Uint32], kv_cache: Global[Uint8], rank: Int32, shares: int, ids: Int32,
    n: Int32,
) -> None:  # fmt: skip
    """Read this CTA's share of half a tile into registers."""
    _half(m, words, kv_cache, rank, shares, ids, n)


@moves(loaded=lambda ids, shares: WARP * (FP8_TOKEN_BYTES // shares) if ids >= 0 else 0)
@by_text
def renew_half(
    m: LeafRecorder, words: Registers[Uint32], ckv: Shared[BFloat16], kpe: Shared[BFloat16], to_ckv: Sender,
    to_kpe: Sender, kv_cache: Global[Uint8], rank: Int32, shares: int, ids: Int32, n: Int32,
) -> None:  # fmt: skip
    """Write this CTA's share of the half tile as bf16 rows. As words become free, read the share of `ids`.

    Then send the written rows to the other CTA.
    """
    first = inline(m.thread & WARP - 4)
    scales = [
        named(f"scale_{i}", warps.shuffle(words[SCALE_WORD // shares], first + i)) for i in range(4 // shares)
    ]

    def send():
        if shares == 1:
            return
        m.comment("A warp has eight rows of each panel: 1 KB of consecutive memory.")
        m.do(warps.show_copies())
        own = inline((m.thread >> 5) * 8)
        m.do(warps.send_rows(kpe.group_at(own + rank * 4, 0, 8), to_kpe, rank ^ 1, 4, 1, WARP))
        m.do(warps.send_rows(ckv.group_at(own, 0, 8), to_ckv, rank ^ 1, 8, 4, WARP))

    def write(at, row, column):
        if at >= ROPE_WORD // shares:
            m.do(warps.store_vector(words, at, kpe.group_at(row, column, 8)))
        else:
            halves = (ckv.group_at(row, column + e, 8) for e in (0, 8))
            m.do(warps.store_fp8(*halves, words, at, scales[at // 8]))

    _half(m, words, kv_cache, rank, shares, ids, n, write, send)


def nothing(*_):
    """Do nothing, in place of a function that writes or sends: the words hold nothing yet."""


@recorded
def read_words(m, words, at, count, place, wanted):
    """Read `count` words at `place` into the thread's words from number `at` on.

    ptxas moves no code across the warp's barrier. Without it, ptxas would put all loads after the last
    arithmetic.
    """
    m.do(warps.load_vector(words, at, count, place, wanted))
    m.do(warps.sync_warp())


@recorded
def _half(m, words, kv_cache, rank, shares, ids, n, write=nothing, send=nothing):
    """Read a share of half a tile, 16 bytes at a time.

    Each read comes after `write` has freed its words, and `send` after all writes.
    """
    panels, lanes, lane = 8 // shares, 4 * shares, m.thread & 3
    row = m.thread >> 2
    place, inside = cache_row(m, ids, row, n)
    own, of_rope, rope_inside = row, place, inside
    if shares > 1:
        own = (m.thread >> 5) * 8 + rank * 4 + (m.thread >> 3 & 3)
        of_rope, rope_inside = cache_row(m, ids, own, n, "_of_rope")
    token = kv_cache.row("bytes", place, first=lane * 16 + rank * (panels * 64))
    rope = kv_cache.row("rope", of_rope, first=(m.thread & lanes - 1) * 16)
    for u in range(2 // shares):
        at = ROPE_WORD // shares + u * 4
        write(at, own, u * 32 + (m.thread & lanes - 1) * 8)
        read_words(m, words, at, 4, rope.at(ROPE_AT + u * 64), rope_inside)
    for panel in range(panels):
        write(panel * 4, row, panel * 64 + lane * 16)
        read_words(m, words, panel * 4, 4, token.at(panel * 64), inside)
    send()
    m.comment("After all uses of the previous scale, so this one can take its register.")
    scale = inline((lane & panels // 2 - 1) * 4 + rank * (panels * 2) - lane * 16 - rank * (panels * 64))
    m.do(warps.load_vector(words, SCALE_WORD // shares, 1, token.at(SCALES_AT + scale), inside))


@recorded
def _tokens(m, words, kv_cache, which, dims, low, high, n, write=nothing):
    """Read a quarter of slice `which` of two tokens, 16 bytes at a time, and its scales.

    Each read comes after `write` has freed its words. Four threads share a row and the next four the next
    row, so their stores go to distinct banks.
    """
    panels, groups, lane = int(dims) // 64, int(dims) // 128, m.thread & 3
    # From the lane's own bytes on: there are no registers for a second address. The product of row and stride
    # is added to them in one instruction.
    own = kv_cache.part("own", lane * 16)
    for half, ids in enumerate((low, high)):
        place, inside = cache_row(m, ids, m.thread >> 2 & WARP - 1, n)
        token = own.row("bytes", place)
        first, scales = half * (panels + 1) * 4, (panels + 1) * 8 + half * groups
        for panel in unrolled(panels):
            at = inline(first + panel * 4)
            write(half, panel, at, words[scales + panel // 2])
            read_words(m, words, at, 4, token.at(which * dims + panel * 64), inside)
        rope, rope_at = (half * (panels + 1) + panels) * 4, (_rope_piece(lane, panels) - lane) * 16
        write(half, None, rope, None)
        read_words(m, words, rope, 4, token.at(ROPE_AT + which * (dims // 4) + rope_at), inside)
        read_words(m, words, scales, groups, token.at(SCALES_AT + which * (groups * 4) - lane * 16), inside)


def _rope_piece(lane, panels):
    """Which 16 bytes of a slice's rope dims a lane moves. If there are only two, two lanes move the same."""
    return lane & panels - 1


@recorded
def _copy_values(m, raw, scales, kv_cache, ids, n, beside=nothing):
    """Start the copies of half a tile's fp8 values and scales, with eight threads per token.

    `beside` starts the copies of a token's other bytes.
    """
    lane = inline(m.thread & 7)
    own = kv_cache.part("own", lane * 16)
    for r in unrolled(2):
        row = r * (WARP // 2) + (m.thread >> 3)
        place, inside = cache_row(m, ids, row, n)
        token = own.row("bytes", place)
        for panel in unrolled(4):
            m.do(warps.copy16(raw.group_at(row, panel * 32 + lane * 4, 4), token.at(panel * 128), inside))
        beside(row, lane, token, inside)
        if lane == 0:
            m.do(warps.copy16(scales.group_at(row, 0, 4), token.at(SCALES_AT), inside))


@moves(loaded=lambda raw, scales: raw + scales)
@by_text
def copy_nope8_tokens(
    m: LeafRecorder, raw: Shared[Int32], scales: Shared[Int32], kv_cache: Global[Uint8], ids: Int32, n: Int32,
) -> None:  # fmt: skip
    """Start the copies of half a tile's 528-byte tokens as they are, with eight threads per token.

    A token becomes zeros if its id names no row.
    """
    _copy_values(m, raw, scales, kv_cache, ids, n)


@moves(loaded=lambda raw, raw_pe, scales: raw + raw_pe + scales)
@by_text
def copy_tokens(
    m: LeafRecorder, raw: Shared[Int32], raw_pe: Shared[BFloat16], scales: Shared[Int32],
    kv_cache: Global[Uint8], ids: Int32, n: Int32,
) -> None:  # fmt: skip
    """Start the copies of half a tile's 656-byte tokens as they are, with eight threads per token.

    A token becomes zeros if its id names no row.
    """

    def beside(row, lane, token, inside):
        m.do(warps.copy16(raw_pe.group_at(row, lane * 8, 8), token.at(ROPE_AT), inside))

    _copy_values(m, raw, scales, kv_cache, ids, n, beside)


@recorded
def take_staged(m, raw, scales, half, title, count, raw_pe=None):
    """Read a thread's piece of a staged token.

    `title` and `count` are the name and the number of the words of scales.

    Returns:
        The row in the tile, the number of the piece, its words, the scales, and the rope dims if any.
    """
    pair = inline(m.thread >> 4)
    piece = m.thread & 3 | (m.thread >> 1 & 4)
    own = (pair & 12) * 2 + (pair & 3 ^ (m.thread >> 2 & 1) * 5)
    row = half * WARP + own
    words, factors = m.local("words", 16), m.local(title, count)
    beside = None if raw_pe is None else m.local("beside", 8, "bfloat16")
    scales.read(factors, (own, 0))
    m.comment("All reads come before the first write: a compiler moves no read past a write.")
    for panel in unrolled(4):
        raw.read(words.group(panel * 4, 4), (own, panel * 32 + piece * 4))
    if raw_pe is not None:
        raw_pe.read(beside, (own, piece * 8))
    return row, piece, words, factors, beside


@recorded
def _unpack_values(m, ckv, raw, scales, half, raw_pe=None, kpe=None):
    """Write staged fp8 values as bf16 rows. Copy their rope dims as they are, if there are any."""
    row, piece, words, factors, beside = take_staged(m, raw, scales, half, "factors", 4, raw_pe)
    for panel in unrolled(4):
        halves = (ckv.group_at(row, panel * 128 + piece * 16 + e, 8) for e in (0, 8))
        m.do(warps.store_fp8(*halves, words, panel * 4, factors[panel]))
    if raw_pe is not None:
        kpe.write(beside, (row, piece * 8))


@by_text
def unpack_nope8_tokens(
    m: LeafRecorder, ckv: Shared[BFloat16], raw: Shared[Int32], scales: Shared[Int32], half: int,
) -> None:  # fmt: skip
    """Write half a tile of staged tokens as bf16 rows as `unpack_tokens` does, each value rounded once."""
    _unpack_values(m, ckv, raw, scales, half)


@by_text
def unpack_tokens(
    m: LeafRecorder, ckv: Shared[BFloat16], kpe: Shared[BFloat16], raw: Shared[Int32],
    raw_pe: Shared[BFloat16], scales: Shared[Int32], half: int,
) -> None:  # fmt: skip
    """Write half a tile of staged tokens as bf16 rows, each value rounded once, with eight threads per token.

    `half` is 0 or 1. Of eight lanes, four have pieces of one row and four have pieces of the row whose number
    differs in bits 0 and 2. Their reads then go to distinct banks, and so do their writes.
    """
    _unpack_values(m, ckv, raw, scales, half, raw_pe, kpe)


@moves(loaded=lambda low, dims: TILE * (FP8_TOKEN_BYTES * dims // LATENT_DIM) if low >= 0 else 0)
@by_text
def load_tokens(
    m: LeafRecorder, words: Registers[Uint32], kv_cache: Global[Uint8], which: Int32, dims: int, low: Int32,
    high: Int32, n: Int32,
) -> None:  # fmt: skip
    """Read slice `which` of a tile's 656-byte tokens into registers: `dims` latent dims and its rope dims.

    A token becomes zeros if its id names no row.
    """
    _tokens(m, words, kv_cache, which, dims, low, high, n)


@moves(loaded=lambda low, dims: TILE * (FP8_TOKEN_BYTES * dims // LATENT_DIM) if low >= 0 else 0)
@by_text
def renew_tokens(
    m: LeafRecorder, words: Registers[Uint32], target: Shared[BFloat16], rope: Shared[BFloat16],
    kv_cache: Global[Uint8], which: Int32, dims: int, low: Int32, high: Int32, n: Int32,
) -> None:  # fmt: skip
    """Write the words as bf16 rows. As words become free, read other tokens as `load_tokens` does."""
    lane = inline(m.thread & 3)

    def write(half, panel, at, scale):
        row = inline(half * WARP + (m.thread >> 2))
        if panel is None:
            m.do(warps.store_vector(words, at, rope.group_at(row, _rope_piece(lane, int(dims) // 64) * 8, 8)))
        else:
            halves = (target.group_at(row, panel * 64 + lane * 16 + e, 8) for e in (0, 8))
            m.do(warps.store_fp8(*halves, words, at, scale))

    _tokens(m, words, kv_cache, which, dims, low, high, n, write)
