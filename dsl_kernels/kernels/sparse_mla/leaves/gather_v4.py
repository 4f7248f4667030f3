"""Leaves that gather DeepSeek-V4's tokens for sparse MLA on Hopper, by their text.

A token is 584 bytes, in pages that are block-planar.
"""

from __future__ import annotations

from ....device.torch.warps import (
    copy8,
    copy16,
    load_vector,
    prefetch,
    send_rows,
    show_copies,
    store_fp8,
    store_vector,
)
from ....problems.layouts import LATENT_DIM, V4_FP8_DIMS, V4_ROW_BYTES, V4_SCALE_BYTES
from ....tile.counting import moves
from ....tile.frontend import inline, named, recorded, unrolled
from ....tile.kinds import BFloat16, Global, Int32, LeafRecorder, Registers, Sender, Shared, Uint8, Uint32
from ....tile.leaf_text import WARP, by_text
from ....tile.text import ceildiv, maximum, select
from .gather import TILE, cache_row, nothing, page_of, read_words


@recorded
def v4_token(m, ids, holder, cached, page_inverse, page_shift, page_size, which=""):
    """The page that the id of lane `holder` names, the token's number in it, and whether the id is valid.

    A valid id names one of `cached` tokens. Any other id gives the first token.
    """
    token, inside = cache_row(m, ids, holder, cached, which)
    chosen: Int32 = named(f"chosen{which}", token)
    page = named(f"page{which}", page_of(chosen, page_inverse, page_shift))
    slot = named(f"slot{which}", chosen - page * page_size)
    return page, slot, inside


@recorded
def ue8m0(m, word, byte, which):
    """The bits of the float32 that byte `byte` of a word encodes as UE8M0."""
    exponent = named(f"exponent_{which}", word.to("int32") >> byte * 8 & 255)
    # 0 encodes 2^-127, which is subnormal in float32, and 255 encodes NaN.
    factor = named(f"factor_{which}", select(exponent == 255, 0x7FC00000, maximum(exponent << 23, 0x400000)))
    return factor


# A part of 584-byte tokens in registers: `panels` panels of 64 dims. Four lanes hold a token. Each lane has
# 16 fp8 values of each panel, two pieces of the token's last panel, which is bf16, and the words of all of
# the part's scales.


def v4_words(panels: int, tokens: int) -> int:
    """Words of a thread for its share of `tokens` tokens."""
    return tokens * ((panels + 1) * 4 + ceildiv(panels, 4))


V4_PANELS = LATENT_DIM // 64


@recorded
def _v4_tokens(
    m,
    words,
    kv_pages,
    part,
    panels,
    tokens,
    cached,
    page_inverse,
    page_shift,
    page_size,
    write=nothing,
    send=nothing,
):
    """Read a lane's share of part `part` of tokens, 16 bytes at a time, then the scales.

    Each read comes after `write` has freed its words.

    Args:
        panels: how many panels of 64 dims the part has.
        tokens: for each token of a thread, the ids and the lane that holds the token's id.
        write: takes the numbers of the token and of the panel, whether the panel is the bf16 one, the panel's
            first word, and the first word of the scales.
        send: called after all writes.
    """
    lane, parts, scale_words = m.thread & 3, V4_PANELS // panels, ceildiv(panels, 4)
    has_rope = inline(part == parts - 1) if parts > 1 else True
    for number, (ids, holder) in enumerate(tokens):
        page, slot, inside = v4_token(
            m, ids, holder, cached, page_inverse, page_shift, page_size, f"_{number}"
        )
        values = kv_pages.row("values", page, first=slot * V4_ROW_BYTES + lane * 16 + part * (panels * 64))
        first, scales = number * (panels + 1) * 4, len(tokens) * (panels + 1) * 4 + number * scale_words
        for panel in range(panels):
            write(number, panel, has_rope if panel == panels - 1 else False, first + panel * 4, scales)
            read_words(m, words, first + panel * 4, 4, values.at(panel * 64), inside)
        if has_rope is not False:
            beside = inside if has_rope is True else inside & has_rope
            read_words(m, words, first + panels * 4, 4, values.at(panels * 64), beside)
        if number == len(tokens) - 1:
            send()
        m.comment("After all uses of the previous scales, to take their registers.")
        of_token = kv_pages.row(
            "of_token", page, first=page_size * V4_ROW_BYTES + slot * V4_SCALE_BYTES + part * panels
        )
        m.do(load_vector(words, scales, scale_words, of_token.at(0), inside))


@recorded
def _write_v4_panel(m, target, words, row, column, rope, at, scales, panel, which=""):
    """Write 64 dims of a row: fp8 values times their scale, or bf16 values as they are if `rope` is true.

    Args:
        at, scales: the panel's first word and the first word of the part's scales.
        panel: the number of the panel in its part.
    """
    lane = m.thread & 3

    def as_they_are():
        for piece in range(2):
            m.do(store_vector(words, at + piece * 4, target.group_at(row, column + piece * 32 + lane * 8, 8)))

    def times_scale():
        factor = ue8m0(m, words[scales + panel // 4], panel % 4, f"{which}{panel}")
        halves = (target.group_at(row, column + lane * 16 + e, 8) for e in (0, 8))
        m.do(store_fp8(*halves, words, at, factor))

    if rope:
        as_they_are()
    else:
        times_scale()


@by_text
def fetch_v4_half(
    m: LeafRecorder, kv_pages: Global[Uint8], rank: Int32, shares: int, ids: Int32, cached: Int32,
    page_inverse: Int32, page_shift: Int32, page_size: Int32,
) -> None:  # fmt: skip
    """Prefetch this CTA's share of the 584-byte tokens of half a tile into the L2.

    A token has five lines of values and one of scales.
    """
    lanes, lines = 4 * shares, ceildiv(V4_ROW_BYTES, 128)
    holder = m.thread // lanes + rank * (WARP // shares)
    page, slot, inside = v4_token(m, ids, holder, cached, page_inverse, page_shift, page_size)
    values = kv_pages.row("values", page, first=slot * V4_ROW_BYTES)
    scales = kv_pages.row("of_token", page, first=page_size * V4_ROW_BYTES + slot * V4_SCALE_BYTES)
    for begin in range(0, lines + 1, lanes):
        line = inline(m.thread % lanes + begin)
        m.do(prefetch(values.at(line * 128), inside & (line < lines)))
    m.do(prefetch(scales.at(0), inside & (m.thread % lanes == lines % lanes)))


@moves(loaded=lambda ids, shares: WARP * ((V4_ROW_BYTES + V4_SCALE_BYTES) // shares) if ids >= 0 else 0)
@by_text
def load_v4_half(
    m: LeafRecorder, words: Registers[Uint32], kv_pages: Global[Uint8], rank: Int32, shares: int, ids: Int32,
    cached: Int32, page_inverse: Int32, page_shift: Int32, page_size: Int32,
) -> None:  # fmt: skip
    """Read this CTA's share of half a tile of 584-byte tokens into registers."""
    tokens = ((ids, m.thread >> 2),)
    pages = (cached, page_inverse, page_shift, page_size)
    _v4_tokens(m, words, kv_pages, rank, V4_PANELS // shares, tokens, *pages)


@moves(loaded=lambda ids, shares: WARP * ((V4_ROW_BYTES + V4_SCALE_BYTES) // shares) if ids >= 0 else 0)
@by_text
def renew_v4_half(
    m: LeafRecorder, words: Registers[Uint32], ckv: Shared[BFloat16], to_ckv: Sender, kv_pages: Global[Uint8],
    rank: Int32, shares: int, ids: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_size: Int32,
) -> None:  # fmt: skip
    """Write this CTA's share of the half tile as bf16 rows. As words become free, read the share of `ids`.

    Then send the written rows to the other CTA.
    """
    row = m.thread >> 2

    def write(_, panel, rope, at, scales):
        _write_v4_panel(m, ckv, words, row, panel * 64, rope, at, scales, panel)

    def send():
        if shares == 1:
            return
        m.comment("A warp has eight rows of each panel: 1 KB of consecutive memory.")
        m.do(show_copies())
        m.do(send_rows(ckv.group_at((m.thread >> 5) * 8, 0, 8), to_ckv, rank ^ 1, 8, 4, WARP))

    tokens = ((ids, row),)
    pages = (cached, page_inverse, page_shift, page_size)
    _v4_tokens(m, words, kv_pages, rank, V4_PANELS // shares, tokens, *pages, write, send)


@moves(
    loaded=lambda low, dims: TILE * ((V4_ROW_BYTES + V4_SCALE_BYTES) * dims // LATENT_DIM) if low >= 0 else 0
)
@by_text
def load_v4_tokens(
    m: LeafRecorder, words: Registers[Uint32], kv_pages: Global[Uint8], which: Int32, dims: int, low: Int32,
    high: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32, page_size: Int32,
) -> None:  # fmt: skip
    """Read slice `which` of a tile's 584-byte tokens, `dims` dims, into registers.

    A token becomes zeros if its id names no row.
    """
    holder = m.thread >> 2 & WARP - 1
    pages = (cached, page_inverse, page_shift, page_size)
    _v4_tokens(m, words, kv_pages, which, int(dims) // 64, ((low, holder), (high, holder)), *pages)


@moves(
    loaded=lambda low, dims: TILE * ((V4_ROW_BYTES + V4_SCALE_BYTES) * dims // LATENT_DIM) if low >= 0 else 0
)
@by_text
def renew_v4_tokens(
    m: LeafRecorder, words: Registers[Uint32], target: Shared[BFloat16], kv_pages: Global[Uint8],
    which: Int32, dims: int, low: Int32, high: Int32, cached: Int32, page_inverse: Int32,
    page_shift: Int32, page_size: Int32,
) -> None:  # fmt: skip
    """Write the words as bf16 rows. As words become free, read other tokens as `load_v4_tokens` does."""
    holder = m.thread >> 2 & WARP - 1

    def write(half, panel, rope, at, scales):
        row = inline(half * WARP + (m.thread >> 2))
        _write_v4_panel(m, target, words, row, panel * 64, rope, at, scales, panel, f"{half}_")

    pages = (cached, page_inverse, page_shift, page_size)
    _v4_tokens(m, words, kv_pages, which, int(dims) // 64, ((low, holder), (high, holder)), *pages, write)


@moves(loaded=lambda: WARP * (V4_ROW_BYTES + V4_SCALE_BYTES))
@by_text
def copy_v4_tokens(
    m: LeafRecorder, raw: Shared[Int32], raw_pe: Shared[BFloat16], scales: Shared[Int32],
    kv_pages: Global[Uint8], ids: Int32, cached: Int32, page_inverse: Int32, page_shift: Int32,
    page_size: Int32,
) -> None:  # fmt: skip
    """Start the copies of half a tile's 584-byte tokens as they are, with eight threads per token.

    A token becomes zeros if its id names no row.
    """
    lane = inline(m.thread & 7)
    for r in unrolled(2):
        row = r * (WARP // 2) + (m.thread >> 3)
        page, slot, inside = v4_token(m, ids, row, cached, page_inverse, page_shift, page_size)
        values = kv_pages.row("values", page, first=slot * V4_ROW_BYTES + lane * 16)
        for panel in unrolled(3):
            m.do(copy16(raw.group_at(row, panel * 32 + lane * 4, 4), values.at(panel * 128), inside))
        # Half a panel of fp8 values, then the bf16 values.
        m.do(copy16(raw.group_at(row, 96 + lane * 4, 4), values.at(384), inside & (lane < 4)))
        m.do(copy16(raw_pe.group_at(row, lane * 8, 8), values.at(V4_FP8_DIMS), inside))
        if lane == 0:
            of_token = kv_pages.row("of_token", page, first=page_size * V4_ROW_BYTES + slot * V4_SCALE_BYTES)
            m.do(copy8(scales.group_at(row, 0, 2), of_token.at(0), inside))


@by_text
def unpack_v4_tokens(
    m: LeafRecorder, ckv: Shared[BFloat16], raw: Shared[Int32], raw_pe: Shared[BFloat16],
    scales: Shared[Int32], half: int,
) -> None:  # fmt: skip
    """Write staged tokens as bf16 rows as `unpack_tokens` does.

    448 dims have a UE8M0 scale for each 64 dims, and 64 dims are bf16.
    """
    pair = inline(m.thread >> 4)
    piece = m.thread & 3 | (m.thread >> 1 & 4)
    own = (pair & 12) * 2 + (pair & 3 ^ (m.thread >> 2 & 1) * 5)
    row = half * WARP + own
    words, exponents, beside = m.local("words", 16), m.local("exponents", 2), m.local("beside", 8, "bfloat16")
    scales.read(exponents, (own, 0))
    m.comment("All reads come before the first write: a compiler moves no read past a write.")
    for panel in unrolled(4):
        raw.read(words.group(panel * 4, 4), (own, panel * 32 + piece * 4))
    raw_pe.read(beside, (own, piece * 8))

    def write(panel):
        factor = ue8m0(m, exponents[panel // 2], panel % 2 * 2 + (piece >> 2), panel)
        halves = (ckv.group_at(row, panel * 128 + piece * 16 + e, 8) for e in (0, 8))
        m.do(store_fp8(*halves, words, panel * 4, factor))

    for panel in range(3):
        write(panel)
    if piece < 4:
        write(3)
    ckv.write(beside, (row, V4_FP8_DIMS + piece * 8))
