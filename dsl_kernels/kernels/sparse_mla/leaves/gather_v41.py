"""Leaves that gather DeepSeek-V4.1's tokens for sparse MLA on Hopper, by their text.

A token is 512 e4m3 values and 16 UE8M0 scales. A page holds its tokens interleaved or block-planar. Three
numbers say which: the bytes from one token's values to the next one's (`token_bytes`), the byte of a page
where its scales begin (`scales_at`), and the bytes from one token's scales to the next one's (`scale_bytes`).
"""

from __future__ import annotations

from ....device.torch.warps import (
    copy16,
    load_vector,
    prefetch,
    send_rows,
    show_copies,
    store_fp8,
)
from ....problems.layouts import LATENT_DIM, V41_SCALE_BYTES, V41_TOKEN_BYTES
from ....tile.counting import moves
from ....tile.frontend import inline, recorded, unrolled
from ....tile.kinds import BFloat16, Global, Int32, LeafRecorder, Registers, Sender, Shared, Uint8, Uint32
from ....tile.leaf_text import WARP, by_text
from ....tile.text import ceildiv
from .gather import TILE, nothing, read_words
from .gather_v4 import ue8m0, v4_token

GROUP_DIMS = 128
"""Dims of a group. The four scales of a group are one word."""


def words_of(dims: int, tokens: int) -> int:
    """Words of a thread for `dims` dims of `tokens` tokens.

    Four lanes hold a token, and each of them has all of its scales.
    """
    return tokens * (dims // 16 + dims // GROUP_DIMS)


@recorded
def values_of(m, kv_pages, page, slot, token_bytes, first):
    """A token's values from byte `first` on."""
    return kv_pages.row("values", page, first=slot * token_bytes + first)


@recorded
def scales_of(m, kv_pages, page, slot, scales_at, scale_bytes, first=0):
    """A token's scales from byte `first` on."""
    return kv_pages.row("of_token", page, first=scales_at + slot * scale_bytes + first)


@recorded
def turn_scales(m, words, first, count, lane):
    """Shift the scale of a lane's 16 dims of each 64 to the low byte of each half of a word.

    A shift at each use would need a register for its count.
    """
    for i in range(count):
        words[first + i] = words[first + i] >> (lane >> 1) * 8


@recorded
def store_piece(m, target, row, column, words, at, scales, lane, which):
    """Write 16 values of a token as bf16, each rounded once from e4m3 times its scale.

    Args:
        column: the first column of the piece's 64 dims; lane `lane` has 16 of them.
        at: the first of the piece's four words.
        scales: the number of the word with the scales of the piece's 128 dims, as `turn_scales` leaves them.
    """
    factor = ue8m0(m, words[scales], column // 64 % 2 * 2, which)
    halves = (target.group_at(row, column + lane * 16 + e, 8) for e in (0, 8))
    m.do(store_fp8(*halves, words, at, factor))


@recorded
def _v41_tokens(
    m,
    words,
    kv_pages,
    part,
    dims,
    tokens,
    cached,
    page_inverse,
    page_shift,
    page_size,
    token_bytes,
    scales_at,
    scale_bytes,
    write=nothing,
    send=nothing,
):
    """Read a lane's share of part `part` of tokens, 16 bytes at a time, then the scales.

    Each read comes after `write` has freed its words.

    Args:
        dims: the dims of the part.
        tokens: for each token of a thread, the ids and the lane that holds the token's id.
        write: takes the numbers of the token and of the panel of 64 dims, the panel's first word, and the
            first word of the token's scales.
        send: called after all writes.
    """
    lane, panels, scale_words = m.thread & 3, dims // 64, dims // GROUP_DIMS
    for number, (ids, holder) in enumerate(tokens):
        page, slot, inside = v4_token(
            m, ids, holder, cached, page_inverse, page_shift, page_size, f"_{number}"
        )
        values = values_of(m, kv_pages, page, slot, token_bytes, lane * 16 + part * dims)
        first, scales = number * panels * 4, len(tokens) * panels * 4 + number * scale_words
        for panel in range(panels):
            write(number, panel, first + panel * 4, scales)
            read_words(m, words, first + panel * 4, 4, values.at(panel * 64), inside)
        if number == len(tokens) - 1:
            send()
        m.comment(
            "After all uses of the previous scales, to take their registers. The place is computed again."
        )
        page, slot, inside = v4_token(
            m, ids, holder, cached, page_inverse, page_shift, page_size, f"_of_scales_{number}"
        )
        of_token = scales_of(m, kv_pages, page, slot, scales_at, scale_bytes, part * (dims // 32))
        m.do(load_vector(words, scales, scale_words, of_token.at(0), inside))


@by_text
def fetch_v41_half(
    m: LeafRecorder, kv_pages: Global[Uint8], rank: Int32, shares: int, ids: Int32, cached: Int32,
    page_inverse: Int32, page_shift: Int32, page_size: Int32, token_bytes: Int32, scales_at: Int32,
    scale_bytes: Int32,
) -> None:  # fmt: skip
    """Prefetch this CTA's share of the tokens of half a tile into the L2: values and scales."""
    lanes, lines = 4 * shares, ceildiv(V41_TOKEN_BYTES, 128)
    holder = m.thread // lanes + rank * (WARP // shares)
    page, slot, inside = v4_token(m, ids, holder, cached, page_inverse, page_shift, page_size)
    values = values_of(m, kv_pages, page, slot, token_bytes, 0)
    scales = scales_of(m, kv_pages, page, slot, scales_at, scale_bytes)
    for begin in range(0, lines, lanes):
        line = inline(m.thread % lanes + begin)
        m.do(prefetch(values.at(line * 128), inside & (line < LATENT_DIM // 128)))
    m.do(prefetch(scales.at(0), inside & (m.thread % lanes == 0)))


@moves(loaded=lambda ids, shares: WARP * (V41_TOKEN_BYTES // shares) if ids >= 0 else 0)
@by_text
def load_v41_half(
    m: LeafRecorder, words: Registers[Uint32], kv_pages: Global[Uint8], rank: Int32, shares: int, ids: Int32,
    cached: Int32, page_inverse: Int32, page_shift: Int32, page_size: Int32, token_bytes: Int32,
    scales_at: Int32, scale_bytes: Int32,
) -> None:  # fmt: skip
    """Read this CTA's share of half a tile of tokens into registers."""
    tokens = ((ids, m.thread >> 2),)
    pages = (cached, page_inverse, page_shift, page_size, token_bytes, scales_at, scale_bytes)
    _v41_tokens(m, words, kv_pages, rank, LATENT_DIM // shares, tokens, *pages)


@moves(loaded=lambda ids, shares: WARP * (V41_TOKEN_BYTES // shares) if ids >= 0 else 0)
@by_text
def renew_v41_half(
    m: LeafRecorder, words: Registers[Uint32], ckv: Shared[BFloat16], to_ckv: Sender, kv_pages: Global[Uint8],
    rank: Int32, shares: int, ids: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_size: Int32, token_bytes: Int32, scales_at: Int32, scale_bytes: Int32,
) -> None:  # fmt: skip
    """Write this CTA's share of the half tile as bf16 rows. As words become free, read the share of `ids`.

    Then send the written rows to the other CTA.
    """
    row, lane = m.thread >> 2, m.thread & 3

    def write(_, panel, at, scales):
        store_piece(m, ckv, row, panel * 64, words, at, scales + panel // 2, lane, panel)

    def send():
        if shares == 1:
            return
        m.comment("A warp has eight rows of each panel: 1 KB of consecutive memory.")
        m.do(show_copies())
        m.do(send_rows(ckv.group_at((m.thread >> 5) * 8, 0, 8), to_ckv, rank ^ 1, 8, 4, WARP))

    turn_scales(m, words, LATENT_DIM // shares // 16, LATENT_DIM // shares // GROUP_DIMS, lane)
    pages = (cached, page_inverse, page_shift, page_size, token_bytes, scales_at, scale_bytes)
    _v41_tokens(m, words, kv_pages, rank, LATENT_DIM // shares, ((ids, row),), *pages, write, send)


@moves(loaded=lambda low, dims: TILE * (V41_TOKEN_BYTES * dims // LATENT_DIM) if low >= 0 else 0)
@by_text
def load_v41_tokens(
    m: LeafRecorder, words: Registers[Uint32], kv_pages: Global[Uint8], which: Int32, dims: int, low: Int32,
    high: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32, page_size: Int32, token_bytes: Int32,
    scales_at: Int32, scale_bytes: Int32,
) -> None:  # fmt: skip
    """Read slice `which` of a tile's tokens, `dims` dims, into registers; zeros if an id names no row."""
    holder = m.thread >> 2 & WARP - 1
    pages = (cached, page_inverse, page_shift, page_size, token_bytes, scales_at, scale_bytes)
    _v41_tokens(m, words, kv_pages, which, int(dims), ((low, holder), (high, holder)), *pages)


@moves(loaded=lambda low, dims: TILE * (V41_TOKEN_BYTES * dims // LATENT_DIM) if low >= 0 else 0)
@by_text
def renew_v41_tokens(
    m: LeafRecorder, words: Registers[Uint32], target: Shared[BFloat16], kv_pages: Global[Uint8],
    which: Int32, dims: int, low: Int32, high: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_size: Int32, token_bytes: Int32, scales_at: Int32, scale_bytes: Int32,
) -> None:  # fmt: skip
    """Write the words as bf16 rows. As words become free, read other tokens as `load_v41_tokens` does."""
    holder, lane = m.thread >> 2 & WARP - 1, m.thread & 3

    def write(half, panel, at, scales):
        row = inline(half * WARP + (m.thread >> 2))
        store_piece(m, target, row, panel * 64, words, at, scales + panel // 2, lane, f"{half}_{panel}")

    turn_scales(m, words, int(dims) // 8, int(dims) // GROUP_DIMS * 2, lane)
    pages = (cached, page_inverse, page_shift, page_size, token_bytes, scales_at, scale_bytes)
    _v41_tokens(m, words, kv_pages, which, int(dims), ((low, holder), (high, holder)), *pages, write)


@moves(loaded=lambda raw, scales: raw + scales)
@by_text
def copy_v41_tokens(
    m: LeafRecorder, raw: Shared[Int32], scales: Shared[Int32], kv_pages: Global[Uint8], ids: Int32,
    cached: Int32, page_inverse: Int32, page_shift: Int32, page_size: Int32, token_bytes: Int32,
    scales_at: Int32, scale_bytes: Int32,
) -> None:  # fmt: skip
    """Start the copies of half a tile's tokens as they are, with eight threads per token.

    A token becomes zeros if its id names no row.
    """
    lane = inline(m.thread & 7)
    for r in unrolled(2):
        row = r * (WARP // 2) + (m.thread >> 3)
        page, slot, inside = v4_token(m, ids, row, cached, page_inverse, page_shift, page_size)
        values = values_of(m, kv_pages, page, slot, token_bytes, lane * 16)
        for panel in unrolled(4):
            m.do(copy16(raw.group_at(row, panel * 32 + lane * 4, 4), values.at(panel * 128), inside))
        if lane == 0:
            of_token = scales_of(m, kv_pages, page, slot, scales_at, scale_bytes)
            m.do(copy16(scales.group_at(row, 0, 4), of_token.at(0), inside))


@by_text
def unpack_v41_tokens(
    m: LeafRecorder, ckv: Shared[BFloat16], raw: Shared[Int32], scales: Shared[Int32], half: int,
) -> None:  # fmt: skip
    """Write staged tokens as bf16 rows as `unpack_tokens` does, with a UE8M0 scale for each 32 dims."""
    pair = inline(m.thread >> 4)
    piece = m.thread & 3 | (m.thread >> 1 & 4)
    own = (pair & 12) * 2 + (pair & 3 ^ (m.thread >> 2 & 1) * 5)
    row = half * WARP + own
    words, exponents = m.local("words", 16), m.local("exponents", V41_SCALE_BYTES // 4)
    scales.read(exponents, (own, 0))
    m.comment("All reads come before the first write: a compiler moves no read past a write.")
    for panel in unrolled(4):
        raw.read(words.group(panel * 4, 4), (own, panel * 32 + piece * 4))
    for panel in range(4):
        factor = ue8m0(m, exponents[panel], piece >> 1, panel)
        halves = (ckv.group_at(row, panel * 128 + piece * 16 + e, 8) for e in (0, 8))
        m.do(store_fp8(*halves, words, panel * 4, factor))
