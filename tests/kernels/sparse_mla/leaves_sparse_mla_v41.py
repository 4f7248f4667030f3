"""Cases of the leaves that gather and unpack the tokens of DeepSeek-V4.1, interleaved and block-planar."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, case, spread, straight
from leaves_sparse_mla import (
    calling,
    halves,
    low_high,
    neighbours,
    own_words,
    ring_of_halves,
    tile_ids,
)

from dsl_kernels.kernels.sparse_mla.forms import v4_pages_of, v41_places_of
from dsl_kernels.kernels.sparse_mla.leaves import blackwell, gather_pages
from dsl_kernels.problems.layouts import pack_v41_pages, v41_parts

TOKENS, PAGE = 40, 8


def _pages(p: Probe, count: int, size: int, planar: bool) -> torch.Tensor:
    """Pages with scales of every kind: 0, which float32 has no exponent for, among them."""
    pages = pack_v41_pages(p.normal(count, size, 512), planar=planar).reshape(count, size * 528).contiguous()
    _, scales = v41_parts(pages, size, planar=planar)
    scales.copy_(p.integers(110, 130, count, size, 16, dtype=torch.uint8))
    scales[0, 0, :2] = torch.tensor([0, 1], dtype=torch.uint8)
    return pages


def _cache(p: Probe, planar: bool) -> tuple[Any, tuple[Any, ...]]:
    """Tokens in pages, and the scalars that find them."""
    scalars = v4_pages_of("", TOKENS, PAGE) | v41_places_of("", PAGE, planar=planar)
    cache = spread(p, "kv_pages", _pages(p, TOKENS // PAGE, PAGE, planar), gap=16)
    return cache, tuple(p.dim(name, value) for name, value in scalars.items())


def _staged(p: Probe, page: torch.Tensor | None = None) -> list[Any]:
    """Where half a tile of tokens is staged; read from there is an interleaved page of 32 tokens."""
    parts: tuple[torch.Tensor | None, ...] = (None, None)
    if page is not None:
        parts = v41_parts(page, 32, planar=False)
    return [
        p.shared(
            name,
            shape,
            None if part is None else part[0].contiguous().view(torch.int32),
            dtype="int32",
            swizzle=swizzle,
            slot=True,
            out=part is None,
        )
        for (name, shape, swizzle), part in zip(
            (("raw", (32, 128), 128), ("scales", (32, 4), 0)), parts, strict=True
        )
    ]


@case(gather_pages.copy_v41_tokens, planar=(False, True))
def copy_v41_tokens(p: Probe, planar: bool) -> None:
    p.threads, p.lands = 128, "cp_async"
    cache, scalars = _cache(p, planar)
    p.call(*_staged(p), cache, p.var("ids", tile_ids(p, TOKENS)[:32], each="lane"), *scalars)


@case(gather_pages.unpack_v41_tokens, half=(0, 1))
def unpack_v41_tokens(p: Probe, half: int) -> None:
    p.threads = 256
    neighbours(p)
    p.call(*halves(p, 64, "ckv"), *_staged(p, _pages(p, 1, 32, planar=False)), half)


@case(gather_pages.fetch_v41_half, shares=(1, 2))
def fetch_v41_half(p: Probe, shares: int) -> None:
    # It has no result: the emulator sees that it stays within the cache.
    p.threads, p.cluster = 128, shares
    p.var("kept", 7, out=True)
    ids = p.var("low", tile_ids(p, TOKENS)[:32], each="lane")
    cache, scalars = _cache(p, planar=shares == 2)
    p.call(cache, p.rank if shares > 1 else 0, shares, ids, *scalars)


@case(gather_pages.load_v41_half, shares=(1, 2))
def load_v41_half(p: Probe, shares: int) -> None:
    p.threads, p.cluster = 128, shares
    words = own_words(p, gather_pages.PlacedPages.words(512 // shares, 1))
    ids = p.var("ids", tile_ids(p, TOKENS)[:32], each="lane")
    cache, scalars = _cache(p, planar=shares == 2)
    p.call(words, cache, p.rank if shares > 1 else 0, shares, ids, *scalars)


@case(gather_pages.renew_v41_half, shares=(1, 2))
def renew_v41_half(p: Probe, shares: int) -> None:
    p.threads, p.cluster = 128, shares
    neighbours(p)
    words = own_words(p, gather_pages.PlacedPages.words(512 // shares, 1))
    cache, scalars = _cache(p, planar=shares == 1)
    ring_of_halves(
        p, shares, ("ckv",), gather_pages.renew_v41_half,
        lambda rows, rank, ids: (words, *rows, cache, rank, shares, ids, *scalars),
        lambda rank, ids: calling(gather_pages.load_v41_half, (words, cache, rank, shares, ids, *scalars)),
    )  # fmt: skip


@case(gather_pages.load_v41_tokens, which=(0, 1))
def load_v41_tokens(p: Probe, which: int) -> None:
    p.threads = 128
    words = own_words(p, gather_pages.PlacedPages.words(256, 2))
    cache, scalars = _cache(p, planar=which == 0)
    p.call(words, cache, p.dim("which", which), 256, *low_high(p, tile_ids(p, TOKENS)), *scalars)


@case(gather_pages.renew_v41_tokens, which=(0, 1))
def renew_v41_tokens(p: Probe, which: int) -> None:
    """What was read before, and what takes its place."""
    p.threads = 128
    neighbours(p)
    words = own_words(p, gather_pages.PlacedPages.words(256, 2))
    low, high = low_high(p, tile_ids(p, TOKENS))
    cache, scalars = _cache(p, planar=which == 1)
    rows = p.shared("target", (64, 256), dtype="bfloat16", swizzle=128, out=True, slot=True)
    part = p.dim("which", which)
    p.before = calling(gather_pages.load_v41_tokens, (words, cache, part, 256, low, high, *scalars))
    p.call(words, rows, cache, part, 256, high, low, *scalars)


def _own(p: Probe, title: str, value: torch.Tensor, **kind: Any) -> Any:
    """What every thread has for itself."""
    places = straight(*value.shape)
    return p.registers(title, value.shape, value, dtype="uint32", places=places, private=True, **kind)


def _words(p: Probe, **kind: Any) -> Any:
    """A thread's quarter of two tokens of a page of 64: 16 bytes of each 64 dims, and all scales."""
    values, scales = v41_parts(_pages(p, 1, 64, planar=False), 64, planar=False)
    thread, i = torch.arange(128).view(-1, 1, 1, 1), torch.arange(2).view(1, -1, 1, 1)
    piece, word = torch.arange(8).view(1, 1, -1, 1), torch.arange(4).view(1, 1, 1, -1)
    token = 32 * i + thread // 4
    rows = values[0].contiguous().view(torch.int32)
    of_lane = rows[token, (piece * 64 + thread % 4 * 16) // 4 + word].view(128, 2, 32)
    of_token = scales[0].contiguous().view(torch.int32)[token.view(128, 2)]
    each = torch.cat([of_lane, of_token], dim=2)
    return _own(p, "words", each.view(128, 72).long() & 0xFFFFFFFF, **kind)


@case(blackwell.load_v41_unit, unit=(0, 3), planar=(False, True))
def load_v41_unit(p: Probe, unit: int, planar: bool) -> None:
    p.threads = 128
    cache, scalars = _cache(p, planar)
    p.call(_words(p), unit, cache, *low_high(p, tile_ids(p, TOKENS)), *scalars)


@case(blackwell.load_v41_scales, planar=(False, True))
def load_v41_scales(p: Probe, planar: bool) -> None:
    p.threads = 128
    cache, scalars = _cache(p, planar)
    coming = torch.arange(128 * 8).view(128, 8) * 7 + 3
    p.call(_own(p, "coming", coming), cache, *low_high(p, tile_ids(p, TOKENS)), *scalars)


@case(blackwell.write_v41_unit, unit=(0, 2, 3))
def write_v41_unit(p: Probe, unit: int) -> None:
    p.threads = 128
    neighbours(p)
    target = p.shared("target", (64, 128), dtype="bfloat16", swizzle=128, out=True, slot=True)
    p.call(target, _words(p, out=False), unit)
