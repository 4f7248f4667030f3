"""Leaves that gather tokens of pages for sparse MLA on Hopper, by their text: DeepSeek-V4's and V4.1's.

A token of DeepSeek-V4 is 584 bytes, in pages that are block-planar: 448 fp8 values with a UE8M0 scale for
each 64, and 64 bf16 values. A token of V4.1 is 512 fp8 values with a UE8M0 scale for each 32, in pages that
are interleaved or block-planar.

Four lanes hold a part of a token in registers. Each lane has 16 fp8 values of each panel of 64, two pieces of
the bf16 panel, and the words of all of the part's scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ....device.torch import warps
from ....problems.layouts import (
    LATENT_DIM,
    V4_FP8_DIMS,
    V4_ROW_BYTES,
    V4_SCALE_BYTES,
    V4_TOKEN_BYTES,
    V41_SCALE_BYTES,
    V41_TOKEN_BYTES,
)
from ....tile.counting import moves
from ....tile.frontend import inline, named, recorded, unrolled
from ....tile.kinds import (
    BFloat16,
    Global,
    Int32,
    LeafRecorder,
    Record,
    Registers,
    Sender,
    Shared,
    Uint8,
    Uint32,
)
from ....tile.leaf_text import WARP, by_text
from ....tile.text import ceildiv, maximum, select
from .gather import TILE, cache_row, nothing, page_of, read_words, take_staged

PANELS = LATENT_DIM // 64


@recorded
def ue8m0(m, word, byte, which):
    """The bits of the float32 that byte `byte` of a word encodes as UE8M0."""
    exponent = named(f"exponent_{which}", word.to("int32") >> byte * 8 & 255)
    # 0 encodes 2^-127, which is subnormal in float32, and 255 encodes NaN.
    factor = named(f"factor_{which}", select(exponent == 255, 0x7FC00000, maximum(exponent << 23, 0x400000)))
    return factor


@dataclass(frozen=True)
class Pages(Record):
    """Pages of DeepSeek-V4: the number of their tokens, and what divides an id by the tokens of a page.

    Attributes:
        value_bytes: bytes of a token's values.
        scaled: panels of a word of scales.
        plain: bf16 panels after the fp8 panels.
    """

    cached: Int32
    page_inverse: Int32
    page_shift: Int32
    page_size: Int32
    value_bytes: ClassVar[int] = V4_ROW_BYTES
    scaled: ClassVar[int] = 4
    plain: ClassVar[int] = 1

    @classmethod
    def words(cls, dims: int, tokens: int, shares: int = 1) -> int:
        """Words of a thread for its share of `tokens` tokens, if so many CTAs share out `dims` dims."""
        panels = dims // 64 // shares
        return tokens * ((panels + 1) * 4 + ceildiv(panels, cls.scaled))

    def values(self, kv_pages: Any, page: Any, slot: Any, first: Any = 0, more: Any = 0) -> Any:
        """The values of a token from byte `first` + `more` on."""
        return kv_pages.row("values", page, first=slot * V4_ROW_BYTES + first + more)

    def scales(self, kv_pages: Any, page: Any, slot: Any, first: Any = 0) -> Any:
        """The scales of a token from byte `first` on."""
        begin = self.page_size * V4_ROW_BYTES + slot * V4_SCALE_BYTES
        return kv_pages.row("of_token", page, first=begin + first)


@dataclass(frozen=True)
class PlacedPages(Pages):
    """Pages of DeepSeek-V4.1, which say where their parts are.

    `token_bytes` and `scale_bytes` are the bytes from one token's values, or scales, to the next one's. The
    scales begin at byte `scales_at` of a page.
    """

    token_bytes: Int32
    scales_at: Int32
    scale_bytes: Int32
    value_bytes: ClassVar[int] = LATENT_DIM
    scaled: ClassVar[int] = 2
    plain: ClassVar[int] = 0

    @classmethod
    def words(cls, dims: int, tokens: int, shares: int = 1) -> int:
        return tokens * (dims // 16 + dims // 128)

    def values(self, kv_pages: Any, page: Any, slot: Any, first: Any = 0, more: Any = 0) -> Any:
        return kv_pages.row("values", page, first=slot * self.token_bytes + (first + more))

    def scales(self, kv_pages: Any, page: Any, slot: Any, first: Any = 0) -> Any:
        return kv_pages.row("of_token", page, first=self.scales_at + slot * self.scale_bytes + first)


PAGES: dict[str, type[Pages]] = {"v4": Pages, "v41": PlacedPages}
"""The pages of each form that has some."""


@recorded
def place_of(m, pages, ids, holder, which=""):
    """The page that the id of lane `holder` names, the token's number in it, and whether the id is valid.

    A valid id names one of `cached` tokens. Any other id gives the first token.
    """
    token, inside = cache_row(m, ids, holder, pages.cached, which)
    chosen: Int32 = named(f"chosen{which}", select(inside, token, 0))
    page = named(f"page{which}", page_of(chosen, pages.page_inverse, pages.page_shift))
    slot = named(f"slot{which}", chosen - page * pages.page_size)
    return page, slot, inside


@recorded
def turn_scales(m, words, first, count, lane):
    """Shift the scale of a lane's 16 dims of each 64 to the low byte of each half of a word of V4.1's scales.

    A shift at each use would need a register for its count.
    """
    for i in range(count):
        words[first + i] = words[first + i] >> (lane >> 1) * 8


@recorded
def store_piece(m, target, row, column, words, at, factor, lane):
    """Write a lane's 16 values of a panel as bf16, each rounded once from e4m3 times its scale.

    Args:
        column: the first column of the panel.
        at: the first of the piece's four words.
        factor: the bits of the scale.
    """
    halves = (target.group_at(row, column + lane * 16 + e, 8) for e in (0, 8))
    m.do(warps.store_fp8(*halves, words, at, factor))


@recorded
def _store_v4_panel(m, target, words, row, column, rope, at, scales, panel, which=""):
    """Write a panel of V4's tokens: fp8 values times their scale, or the bf16 values if `rope` is true.

    Args:
        at, scales: the panel's first word and the first word of the part's scales.
        panel: the number of the panel in its part.
    """
    lane = m.thread & 3

    def as_they_are():
        for piece in range(2):
            place = inline(target.group_at(row, column + piece * 32 + lane * 8, 8))
            m.do(warps.store_vector(words, at + piece * 4, place))

    def times_scale():
        factor = ue8m0(m, words[scales + panel // 4], panel % 4, f"{which}{panel}")
        store_piece(m, target, row, column, words, at, factor, lane)

    if rope:
        as_they_are()
    else:
        times_scale()


@recorded
def _store_v41_panel(m, target, words, row, column, at, scales, panel, which=""):
    """Write a panel of V4.1's tokens. `turn_scales` has left the scales as it needs them."""
    factor = ue8m0(m, words[scales + panel // 2], panel % 2 * 2, f"{which}{panel}")
    store_piece(m, target, row, column, words, at, factor, m.thread & 3)


@recorded
def _tokens(m, words, kv_pages, part, panels, tokens, pages, write=nothing, send=nothing):
    """Read a lane's share of part `part` of tokens, 16 bytes at a time, then the scales.

    Each read comes after `write` has freed its words.

    Args:
        panels: how many panels of 64 dims the part has.
        tokens: for each token of a thread, the ids and the lane that holds the token's id.
        write: takes the numbers of the token and of the panel, whether the panel is a bf16 one, the panel's
            first word, and the first word of the scales.
        send: called after all writes.
    """
    lane, parts = m.thread & 3, PANELS // panels
    each, scale_words = (panels + pages.plain) * 4, ceildiv(panels, pages.scaled)
    has_rope = inline((part == parts - 1 if parts > 1 else True) if pages.plain else False)
    for number, (ids, holder) in enumerate(tokens):
        page, slot, inside = place_of(m, pages, ids, holder, f"_{number}")
        values = pages.values(kv_pages, page, slot, lane * 16, part * (panels * 64))
        first, scales = number * each, len(tokens) * each + number * scale_words
        for panel in range(panels):
            write(number, panel, has_rope if panel == panels - 1 else False, first + panel * 4, scales)
            read_words(m, words, first + panel * 4, 4, values.at(panel * 64), inside)
        if has_rope is not False:
            beside = inside if has_rope is True else inside & has_rope
            read_words(m, words, first + panels * 4, 4, values.at(panels * 64), beside)
        if number == len(tokens) - 1:
            send()
        if pages.plain:
            m.comment("After all uses of the previous scales, to take their registers.")
        else:
            m.comment(
                "After all uses of the previous scales, to take their registers. The place is computed again."
            )
            page, slot, inside = place_of(m, pages, ids, holder, f"_of_scales_{number}")
        of_token = pages.scales(kv_pages, page, slot, part * (panels * 4 // pages.scaled))
        m.do(warps.load_vector(words, scales, scale_words, of_token.at(0), inside))


@recorded
def _send(m, ckv, to_ckv, rank, shares):
    """Send the rows that this CTA has written to the other CTA."""
    if shares == 1:
        return
    m.comment("A warp has eight rows of each panel: 1 KB of consecutive memory.")
    m.do(warps.show_copies())
    m.do(warps.send_rows(ckv.group_at((m.thread >> 5) * 8, 0, 8), to_ckv, rank ^ 1, 8, 4, WARP))


@recorded
def _fetch(m, kv_pages, rank, shares, ids, pages):
    """Prefetch this CTA's share of half a tile into the L2: lines of values, then one of scales."""
    lanes, lines = 4 * shares, ceildiv(pages.value_bytes, 128)
    holder = m.thread // lanes + rank * (WARP // shares)
    page, slot, inside = place_of(m, pages, ids, holder)
    values, scales = pages.values(kv_pages, page, slot), pages.scales(kv_pages, page, slot)
    for begin in range(0, lines + 1, lanes):
        line = inline(m.thread % lanes + begin)
        m.do(warps.prefetch(values.at(line * 128), inside & (line < lines)))
    m.do(warps.prefetch(scales.at(0), inside & (m.thread % lanes == lines % lanes)))


@by_text
def fetch_v4_half(
    m: LeafRecorder, kv_pages: Global[Uint8], rank: Int32, shares: int, ids: Int32, pages: Pages
) -> None:
    """Prefetch this CTA's share of the 584-byte tokens of half a tile into the L2.

    A token has five lines of values and one of scales.
    """
    _fetch(m, kv_pages, rank, shares, ids, pages)


@by_text
def fetch_v41_half(
    m: LeafRecorder, kv_pages: Global[Uint8], rank: Int32, shares: int, ids: Int32, pages: PlacedPages
) -> None:
    """Prefetch this CTA's share of the tokens of half a tile into the L2: values and scales."""
    _fetch(m, kv_pages, rank, shares, ids, pages)


@moves(loaded=lambda ids, shares: WARP * (V4_TOKEN_BYTES // shares) if ids >= 0 else 0)
@by_text
def load_v4_half(
    m: LeafRecorder, words: Registers[Uint32], kv_pages: Global[Uint8], rank: Int32, shares: int, ids: Int32,
    pages: Pages,
) -> None:  # fmt: skip
    """Read this CTA's share of half a tile of 584-byte tokens into registers."""
    _tokens(m, words, kv_pages, rank, PANELS // shares, ((ids, m.thread >> 2),), pages)


@moves(loaded=lambda ids, shares: WARP * (V41_TOKEN_BYTES // shares) if ids >= 0 else 0)
@by_text
def load_v41_half(
    m: LeafRecorder, words: Registers[Uint32], kv_pages: Global[Uint8], rank: Int32, shares: int, ids: Int32,
    pages: PlacedPages,
) -> None:  # fmt: skip
    """Read this CTA's share of half a tile of tokens into registers."""
    _tokens(m, words, kv_pages, rank, PANELS // shares, ((ids, m.thread >> 2),), pages)


@moves(loaded=lambda ids, shares: WARP * (V4_TOKEN_BYTES // shares) if ids >= 0 else 0)
@by_text
def renew_v4_half(
    m: LeafRecorder, words: Registers[Uint32], ckv: Shared[BFloat16], to_ckv: Sender, kv_pages: Global[Uint8],
    rank: Int32, shares: int, ids: Int32, pages: Pages,
) -> None:  # fmt: skip
    """Write this CTA's share of the half tile as bf16 rows. As words become free, read the share of `ids`.

    Then send the written rows to the other CTA.
    """
    row = m.thread >> 2

    def write(_, panel, rope, at, scales):
        _store_v4_panel(m, ckv, words, row, panel * 64, rope, at, scales, panel)

    def send():
        _send(m, ckv, to_ckv, rank, shares)

    _tokens(m, words, kv_pages, rank, PANELS // shares, ((ids, row),), pages, write, send)


@moves(loaded=lambda ids, shares: WARP * (V41_TOKEN_BYTES // shares) if ids >= 0 else 0)
@by_text
def renew_v41_half(
    m: LeafRecorder, words: Registers[Uint32], ckv: Shared[BFloat16], to_ckv: Sender, kv_pages: Global[Uint8],
    rank: Int32, shares: int, ids: Int32, pages: PlacedPages,
) -> None:  # fmt: skip
    """Write this CTA's share of the half tile as bf16 rows. As words become free, read the share of `ids`.

    Then send the written rows to the other CTA.
    """
    row, panels = m.thread >> 2, PANELS // shares

    def write(_, panel, rope, at, scales):
        _store_v41_panel(m, ckv, words, row, panel * 64, at, scales, panel)

    def send():
        _send(m, ckv, to_ckv, rank, shares)

    turn_scales(m, words, panels * 4, panels // 2, m.thread & 3)
    _tokens(m, words, kv_pages, rank, panels, ((ids, row),), pages, write, send)


@moves(loaded=lambda low, dims: TILE * (V4_TOKEN_BYTES * dims // LATENT_DIM) if low >= 0 else 0)
@by_text
def load_v4_tokens(
    m: LeafRecorder, words: Registers[Uint32], kv_pages: Global[Uint8], which: Int32, dims: int, low: Int32,
    high: Int32, pages: Pages,
) -> None:  # fmt: skip
    """Read slice `which` of a tile's 584-byte tokens, `dims` dims, into registers.

    A token becomes zeros if its id names no row.
    """
    holder = m.thread >> 2 & WARP - 1
    _tokens(m, words, kv_pages, which, int(dims) // 64, ((low, holder), (high, holder)), pages)


@moves(loaded=lambda low, dims: TILE * (V41_TOKEN_BYTES * dims // LATENT_DIM) if low >= 0 else 0)
@by_text
def load_v41_tokens(
    m: LeafRecorder, words: Registers[Uint32], kv_pages: Global[Uint8], which: Int32, dims: int, low: Int32,
    high: Int32, pages: PlacedPages,
) -> None:  # fmt: skip
    """Read slice `which` of a tile's tokens, `dims` dims, into registers; zeros if an id names no row."""
    holder = m.thread >> 2 & WARP - 1
    _tokens(m, words, kv_pages, which, int(dims) // 64, ((low, holder), (high, holder)), pages)


@moves(loaded=lambda low, dims: TILE * (V4_TOKEN_BYTES * dims // LATENT_DIM) if low >= 0 else 0)
@by_text
def renew_v4_tokens(
    m: LeafRecorder, words: Registers[Uint32], target: Shared[BFloat16], kv_pages: Global[Uint8],
    which: Int32, dims: int, low: Int32, high: Int32, pages: Pages,
) -> None:  # fmt: skip
    """Write the words as bf16 rows. As words become free, read other tokens as `load_v4_tokens` does."""
    holder = m.thread >> 2 & WARP - 1

    def write(half, panel, rope, at, scales):
        row = inline(half * WARP + (m.thread >> 2))
        _store_v4_panel(m, target, words, row, panel * 64, rope, at, scales, panel, f"{half}_")

    _tokens(m, words, kv_pages, which, int(dims) // 64, ((low, holder), (high, holder)), pages, write)


@moves(loaded=lambda low, dims: TILE * (V41_TOKEN_BYTES * dims // LATENT_DIM) if low >= 0 else 0)
@by_text
def renew_v41_tokens(
    m: LeafRecorder, words: Registers[Uint32], target: Shared[BFloat16], kv_pages: Global[Uint8],
    which: Int32, dims: int, low: Int32, high: Int32, pages: PlacedPages,
) -> None:  # fmt: skip
    """Write the words as bf16 rows. As words become free, read other tokens as `load_v41_tokens` does."""
    holder, panels = m.thread >> 2 & WARP - 1, int(dims) // 64

    def write(half, panel, rope, at, scales):
        row = inline(half * WARP + (m.thread >> 2))
        _store_v41_panel(m, target, words, row, panel * 64, at, scales, panel, f"{half}_")

    turn_scales(m, words, panels * 8, panels // 2 * 2, m.thread & 3)
    _tokens(m, words, kv_pages, which, panels, ((low, holder), (high, holder)), pages, write)


@moves(loaded=lambda: WARP * V4_TOKEN_BYTES)
@by_text
def copy_v4_tokens(
    m: LeafRecorder, raw: Shared[Int32], raw_pe: Shared[BFloat16], scales: Shared[Int32],
    kv_pages: Global[Uint8], ids: Int32, pages: Pages,
) -> None:  # fmt: skip
    """Start the copies of half a tile's 584-byte tokens as they are, with eight threads per token.

    A token becomes zeros if its id names no row.
    """
    lane = inline(m.thread & 7)
    for r in unrolled(2):
        row = r * (WARP // 2) + (m.thread >> 3)
        page, slot, inside = place_of(m, pages, ids, row)
        values = pages.values(kv_pages, page, slot, lane * 16)
        for panel in unrolled(3):
            m.do(warps.copy16(raw.group_at(row, panel * 32 + lane * 4, 4), values.at(panel * 128), inside))
        # Half a panel of fp8 values, then the bf16 values.
        m.do(warps.copy16(raw.group_at(row, 96 + lane * 4, 4), values.at(384), inside & (lane < 4)))
        m.do(warps.copy16(raw_pe.group_at(row, lane * 8, 8), values.at(V4_FP8_DIMS), inside))
        if lane == 0:
            of_token = pages.scales(kv_pages, page, slot)
            m.do(warps.copy8(scales.group_at(row, 0, 2), of_token.at(0), inside))


@moves(loaded=lambda raw, scales: raw + scales)
@by_text
def copy_v41_tokens(
    m: LeafRecorder, raw: Shared[Int32], scales: Shared[Int32], kv_pages: Global[Uint8], ids: Int32,
    pages: PlacedPages,
) -> None:  # fmt: skip
    """Start the copies of half a tile's tokens as they are, with eight threads per token.

    A token becomes zeros if its id names no row.
    """
    lane = inline(m.thread & 7)
    for r in unrolled(2):
        row = r * (WARP // 2) + (m.thread >> 3)
        page, slot, inside = place_of(m, pages, ids, row)
        values = pages.values(kv_pages, page, slot, lane * 16)
        for panel in unrolled(4):
            m.do(warps.copy16(raw.group_at(row, panel * 32 + lane * 4, 4), values.at(panel * 128), inside))
        if lane == 0:
            of_token = pages.scales(kv_pages, page, slot)
            m.do(warps.copy16(scales.group_at(row, 0, 4), of_token.at(0), inside))


@by_text
def unpack_v4_tokens(
    m: LeafRecorder, ckv: Shared[BFloat16], raw: Shared[Int32], raw_pe: Shared[BFloat16],
    scales: Shared[Int32], half: int,
) -> None:  # fmt: skip
    """Write staged tokens as bf16 rows as `unpack_tokens` does.

    448 dims have a UE8M0 scale for each 64 dims, and 64 dims are bf16.
    """
    row, piece, words, exponents, beside = take_staged(m, raw, scales, half, "exponents", 2, raw_pe)

    def write(panel):
        factor = ue8m0(m, exponents[panel // 2], panel % 2 * 2 + (piece >> 2), panel)
        store_piece(m, ckv, row, panel * 128, words, panel * 4, factor, piece)

    for panel in range(3):
        write(panel)
    if piece < 4:
        write(3)
    ckv.write(beside, (row, V4_FP8_DIMS + piece * 8))


@by_text
def unpack_v41_tokens(
    m: LeafRecorder, ckv: Shared[BFloat16], raw: Shared[Int32], scales: Shared[Int32], half: int,
) -> None:  # fmt: skip
    """Write staged tokens as bf16 rows as `unpack_tokens` does, with a UE8M0 scale for each 32 dims."""
    row, piece, words, exponents, _ = take_staged(m, raw, scales, half, "exponents", V41_SCALE_BYTES // 4)
    for panel in range(4):
        factor = ue8m0(m, exponents[panel], piece >> 1, panel)
        store_piece(m, ckv, row, panel * 128, words, panel * 4, factor, piece)
