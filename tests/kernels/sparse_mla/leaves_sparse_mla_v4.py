"""Cases of the leaves that gather and unpack the tokens of DeepSeek-V4 on Hopper."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, case, spread
from leaves_sparse_mla import (
    calling,
    halves,
    low_high,
    neighbours,
    own_words,
    ring_of_halves,
    tile_ids,
)

from dsl_kernels.kernels.sparse_mla import forms as problem
from dsl_kernels.kernels.sparse_mla.leaves import gather_pages
from dsl_kernels.problems.layouts import pack_v4_pages


def _v4_staged(p: Probe, pages: torch.Tensor | None = None) -> list[Any]:
    """Staging of half a tile of DeepSeek-V4's tokens; with `pages`, it holds a page of 32 tokens."""
    parts: tuple[torch.Tensor | None, ...] = (None, None, None)
    if pages is not None:
        rows = pages[0, : 32 * 576].view(32, 576)
        values = torch.cat([rows[:, :448], torch.zeros(32, 64, dtype=torch.uint8)], dim=1)
        parts = (values, rows[:, 448:], pages[0, 32 * 576 :].view(32, 8))
    kinds = {"int32": torch.int32, "bfloat16": torch.bfloat16}
    buffers = (
        ("raw", (32, 128), "int32", 128),
        ("raw_pe", (32, 64), "bfloat16", 128),
        ("scales", (32, 2), "int32", 0),
    )
    return [
        p.shared(
            text, shape, None if part is None else part.contiguous().view(kinds[dtype]), dtype=dtype,
            swizzle=swizzle, slot=True, out=part is None
        )
        for (text, shape, dtype, swizzle), part in zip(buffers, parts, strict=True)
    ]  # fmt: skip


def v4_pages(p: Probe, count: int, size: int) -> torch.Tensor:
    """Pages of DeepSeek-V4 with scales of every kind, including 0, for which float32 has no exponent."""
    pages = pack_v4_pages(p.normal(count, size, 512)).reshape(count, size * 584).contiguous()
    scales = pages[:, size * 576 :].view(count, size, 8)
    scales[..., :7] = p.integers(110, 130, count, size, 7, dtype=torch.uint8)
    scales[0, 0, :2] = torch.tensor([0, 1], dtype=torch.uint8)
    return pages


@case(gather_pages.copy_v4_tokens, size=(1, 8))
def copy_v4_tokens(p: Probe, size: int) -> None:
    p.threads, p.lands = 128, "cp_async"
    pages = v4_pages(p, 40 // size, size)
    scalars = problem.v4_pages_of("", 40, size)
    # Pages begin at multiples of 16 bytes.
    gap = 16 + -pages.shape[1] % 16
    p.call(
        *_v4_staged(p), spread(p, "kv_pages", pages, gap=gap),
        p.var("ids", tile_ids(p, 40)[:32], each="lane"),
        *(p.dim(name, value) for name, value in scalars.items()),
    )  # fmt: skip


@case(gather_pages.unpack_v4_tokens, half=(0, 1))
def unpack_v4_tokens(p: Probe, half: int) -> None:
    p.threads = 256
    neighbours(p)
    p.call(*halves(p, 64, "ckv"), *_v4_staged(p, v4_pages(p, 1, 32)), half)


def _cache(p: Probe, size: int) -> tuple[Any, tuple[Any, ...]]:
    """40 tokens in pages of `size`, and the scalars that locate them;
    pages begin at multiples of 16 bytes."""
    pages = v4_pages(p, 40 // size, size)
    scalars = problem.v4_pages_of("", 40, size)
    return spread(p, "kv_pages", pages, gap=16 + -pages.shape[1] % 16), tuple(
        p.dim(name, value) for name, value in scalars.items()
    )


@case(gather_pages.fetch_v4_half, shares=(1, 2))
def fetch_v4_half(p: Probe, shares: int) -> None:
    # It has no result: the emulator checks that it stays within the cache.
    p.threads, p.cluster = 128, shares
    p.var("kept", 7, out=True)
    ids = p.var("low", tile_ids(p, 40)[:32], each="lane")
    cache, scalars = _cache(p, 8)
    p.call(cache, p.rank if shares > 1 else 0, shares, ids, *scalars)


@case(gather_pages.load_v4_half, shares=(1, 2))
def load_v4_half(p: Probe, shares: int) -> None:
    p.threads, p.cluster = 128, shares
    words = own_words(p, gather_pages.Pages.words(512, 1, shares))
    ids = p.var("ids", tile_ids(p, 40)[:32], each="lane")
    cache, scalars = _cache(p, 8)
    p.call(words, cache, p.rank if shares > 1 else 0, shares, ids, *scalars)


@case(gather_pages.renew_v4_half, shares=(1, 2))
def renew_v4_half(p: Probe, shares: int) -> None:
    p.threads, p.cluster = 128, shares
    neighbours(p)
    words = own_words(p, gather_pages.Pages.words(512, 1, shares))
    cache, scalars = _cache(p, 8)
    ring_of_halves(
        p, shares, ("ckv",), gather_pages.renew_v4_half,
        lambda rows, rank, ids: (words, *rows, cache, rank, shares, ids, *scalars),
        lambda rank, ids: calling(gather_pages.load_v4_half, (words, cache, rank, shares, ids, *scalars)),
    )  # fmt: skip


@case(gather_pages.load_v4_tokens, which=(0, 1))
def load_v4_tokens(p: Probe, which: int) -> None:
    p.threads = 128
    words = own_words(p, gather_pages.Pages.words(256, 2))
    cache, scalars = _cache(p, 8)
    p.call(words, cache, p.dim("which", which), 256, *low_high(p, tile_ids(p, 40)), *scalars)


@case(gather_pages.renew_v4_tokens, which=(0, 1))
def renew_v4_tokens(p: Probe, which: int) -> None:
    """The words read before, and those that replace them."""
    p.threads = 128
    neighbours(p)
    words = own_words(p, gather_pages.Pages.words(256, 2))
    low, high = low_high(p, tile_ids(p, 40))
    cache, scalars = _cache(p, 8)
    rows = p.shared("target", (64, 256), dtype="bfloat16", swizzle=128, out=True, slot=True)
    part = p.dim("which", which)
    p.before = calling(gather_pages.load_v4_tokens, (words, cache, part, 256, low, high, *scalars))
    p.call(words, rows, cache, part, 256, high, low, *scalars)
