"""Cases of the leaves of sparse attention on Blackwell."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, case, spread, straight
from leaves_sparse_mla import (
    APPROXIMATE,
    HEADS,
    INF,
    _tokens,
    low_high,
    lse_scalars,
    neighbours,
    of_call,
    outputs,
    tile_ids,
)
from leaves_sparse_mla_v4 import v4_pages

from dsl_kernels.kernels.sparse_mla.forms import v4_pages_of
from dsl_kernels.kernels.sparse_mla.leaves import blackwell as text
from dsl_kernels.tile.lang import Mma

BF16 = 2.0**-7


def _own(p: Probe, title: str, value: torch.Tensor | None, each: int = HEADS // 4, **kind: Any) -> Any:
    """Private values of every thread."""
    return p.registers(title, (128, each), value, places=straight(128, each), private=True, **kind)


def _scores(p: Probe, value: torch.Tensor | None = None, **kind: Any) -> Any:
    return _own(p, "scores", p.normal(128, HEADS // 2) if value is None else value, HEADS // 2, **kind)


def _red(p: Probe, value: torch.Tensor | None = None, **kind: Any) -> Any:
    return p.shared("red", (HEADS, 4), value, slot=True, **kind)


@case(text.copy_block, block=(8, 16), few=(False, True), at_once=(None, 2))
def copy_block(p: Probe, block: int, few: bool, at_once: int | None) -> None:
    p.threads, p.lands = 128, "cp_async"
    p.call(
        p.shared("target", (HEADS, 128), dtype="bfloat16", swizzle=128, out=True, slot=True),
        spread(p, "q", p.normal(2, 32, 128).bfloat16()),
        p.dim("row", 1),
        p.dim("head0", 16),
        block,
        128,
        of_call(p, few, 21),
        at_once,
    )


@case(text.spread_ids)
def spread_ids(p: Probe) -> None:
    rows = p.registers("rows", (32, 64), None, dtype="int32", places=straight(32, 64), private=True)
    p.call(rows, *low_high(p, tile_ids(p, 40)))


def _token_words(p: Probe, value: torch.Tensor, **kind: Any) -> Any:
    """A thread's quarter of two tokens: 16 bytes of each 64-dim panel, two pieces of rope,
    the four scales."""
    thread, i = torch.arange(128).view(-1, 1, 1, 1), torch.arange(2).view(1, -1, 1, 1)
    piece, word = torch.arange(11).view(1, 1, -1, 1), torch.arange(4).view(1, 1, 1, -1)
    byte = torch.where(piece < 8, piece * 64, 528 + (piece - 8) * 64) + thread % 4 * 16
    byte = torch.where(piece == 10, 512, byte) + 4 * word
    words = value.contiguous().view(torch.int32)[32 * i + thread // 4, byte // 4]
    return _own(p, "words", words.view(128, 88).long() & 0xFFFFFFFF, 88, dtype="uint32", **kind)


def _coming(p: Probe, each: int, **kind: Any) -> Any:
    """Scales of two tokens, all of them different."""
    return _own(p, "coming", torch.arange(128 * each).view(128, each) * 7 + 3, each, dtype="uint32", **kind)


@case(text.load_words, part=((0, 0), (24, 384), (32, 528)))
def load_words(p: Probe, part: tuple[int, int]) -> None:
    p.threads = 128
    at, first = part
    words = _token_words(p, _tokens(p, 64))
    cache = spread(p, "kv_cache", _tokens(p, 40))
    p.call(words, at, cache, first, *low_high(p, tile_ids(p, 40)), p.dim("n", 40))


@case(text.load_scales)
def load_scales(p: Probe) -> None:
    p.threads = 128
    cache = spread(p, "kv_cache", _tokens(p, 40))
    p.call(_coming(p, 8), cache, *low_high(p, tile_ids(p, 40)), p.dim("n", 40))


@case(text.take_scales, v4=(False, True))
def take_scales(p: Probe, v4: bool) -> None:
    p.threads = 128
    words = _v4_words(p) if v4 else _token_words(p, _tokens(p, 64))
    p.call(words, _coming(p, 4 if v4 else 8, out=False))


@case(text.write_unit, unit=(0, 2, 4))
def write_unit(p: Probe, unit: int) -> None:
    p.threads = 128
    neighbours(p)
    columns = 128 if unit < 4 else 64
    target = p.shared("target", (64, columns), dtype="bfloat16", swizzle=128, out=True, slot=True)
    p.call(target, _token_words(p, _tokens(p, 64), out=False), unit)


def _v4_words(p: Probe, **kind: Any) -> Any:
    """A thread's quarter of two tokens of a page of 64: 16 bytes per 64 dims, rope's twice as wide,
    and all scales."""
    page = v4_pages(p, 1, 64)[0]
    thread, i = torch.arange(128).view(-1, 1, 1, 1), torch.arange(2).view(1, -1, 1, 1)
    piece, word = torch.arange(9).view(1, 1, -1, 1), torch.arange(4).view(1, 1, 1, -1)
    token = 32 * i + thread // 4
    rows, scales = page[: 64 * 576].view(torch.int32).view(64, 144), page[64 * 576 :].view(torch.int32)
    values = rows[token, (piece * 64 + thread % 4 * 16) // 4 + word].view(128, 2, 36)
    each = torch.cat([values, scales.view(64, 2)[token.view(128, 2)]], dim=2)
    return _own(p, "words", each.view(128, 76).long() & 0xFFFFFFFF, 76, dtype="uint32", **kind)


@case(text.load_v4_unit, unit=(0, 3), size=(1, 8))
def load_v4_unit(p: Probe, unit: int, size: int) -> None:
    p.threads = 128
    pages = v4_pages(p, 40 // size, size)
    # Pages begin at multiples of 16 bytes.
    pages = spread(p, "kv_pages", pages, gap=16 + -pages.shape[1] % 16)
    scalars = (p.dim(name, value) for name, value in v4_pages_of("", 40, size).items())
    p.call(_v4_words(p), unit, pages, *low_high(p, tile_ids(p, 40)), *scalars)


@case(text.load_v4_scales, size=(1, 8))
def load_v4_scales(p: Probe, size: int) -> None:
    p.threads = 128
    pages = v4_pages(p, 40 // size, size)
    pages = spread(p, "kv_pages", pages, gap=16 + -pages.shape[1] % 16)
    scalars = (p.dim(name, value) for name, value in v4_pages_of("", 40, size).items())
    p.call(_coming(p, 4), pages, *low_high(p, tile_ids(p, 40)), *scalars)


@case(text.write_v4_unit, unit=(0, 2, 3))
def write_v4_unit(p: Probe, unit: int) -> None:
    p.threads = 128
    neighbours(p)
    target = p.shared("target", (64, 128), dtype="bfloat16", swizzle=128, out=True, slot=True)
    p.call(target, _v4_words(p, out=False), unit)


@case(text.read_accumulator)
def read_accumulator(p: Probe) -> None:
    p.threads = 128
    scores = _own(p, "scores", None, HEADS // 2)
    if not p.cute:
        # TileLang lays out accumulators of 64 rows only if a product is declared.
        p.shared("a_s", (64, 64), dtype="bfloat16", swizzle=128)
        p.shared("b_s", (HEADS, 64), dtype="bfloat16", swizzle=128)
        p.mmas = (Mma("qk", "tcgen05", "probe", 64, HEADS, 64, "bfloat16", a="a_s", b="b_s", acc="s_t"),)
    p.call(scores, p.tensor("s_t", (64, HEADS), p.normal(64, HEADS)), p.thread)


@case(text.take_maxima, rise=(8.0, 8.5))
def take_maxima(p: Probe, rise: float) -> None:
    p.threads = 128
    red = p.normal(HEADS, 4)
    red[13] = rise
    peak = torch.zeros(128, HEADS // 4)
    grown = p.var("grown", None, dtype="bool", out=True)
    p.call(grown, _own(p, "top", None), _own(p, "peak", peak, out=False), _red(p, red), 8)


@case(text.raise_reference)
def raise_reference(p: Probe) -> None:
    p.threads, p.relative = 128, APPROXIMATE
    peak = p.normal(128, HEADS // 4)
    peak[::3] = -INF
    p.call(
        _own(p, "peak", peak), _own(p, "top", p.normal(128, HEADS // 4), out=False),
        _own(p, "sums", p.uniform(128, HEADS // 4)),
        p.shared("stat_s", (HEADS,), out=True),
    )  # fmt: skip


@case(text.weigh_tokens)
def weigh_tokens(p: Probe) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    scores = p.normal(128, HEADS // 2)
    scores[::7] = -INF
    peak = _own(p, "peak", p.normal(128, HEADS // 4), out=False)
    p.call(_scores(p, scores), _own(p, "sums", p.uniform(128, HEADS // 4)), peak)


def _operand_of(
    p: Probe, title: str, split: int | None, *shape: int, dtype: torch.dtype = torch.float32
) -> Any:
    """One value per row, at any strides, or one for each of three splits, before anything was written."""
    if split is None:
        return spread(p, title, torch.full((2, *shape), -77.0).to(dtype), out=True)
    return p.operand(title, torch.full((2, 3, *shape), -77.0).to(dtype), out=True)


@case(text.finish_columns, split=(None, 2), block=(8, 16), few=(False, True))
def finish_columns(p: Probe, split: int | None, block: int, few: bool) -> None:
    p.threads, p.relative, p.absolute = 128, 1e-5, 1e-6
    sums = p.uniform(HEADS, 4)
    sums[5] = 0
    p.call(
        _red(p, sums),
        _operand_of(p, "lses", split, 32),
        p.dim("row", 1),
        p.dim("head0", 16),
        split if split is None else p.dim("split", split),
        _own(p, "top", None),
        _own(p, "peak", p.normal(128, HEADS // 4), out=False),
        p.shared("stat_s", (HEADS,), p.normal(HEADS), out=True),
        p.operand("attn_sink", p.normal(32)),
        32,
        block,
        p.dim("splits", 3),
        *lse_scalars(p),
        of_call(p, few, 21),
    )


def _held(p: Probe, value: torch.Tensor | None = None, out: bool = False) -> Any:
    return _own(p, "held", value, 16, out=out)


@case(text.load_columns)
def load_columns(p: Probe) -> None:
    p.threads = 128
    p.call(_held(p, out=True), p.tensor("o_t", (128, 64), p.normal(128, 64)), p.dim("column", 32))


@case(text.store_columns)
def store_columns(p: Probe) -> None:
    p.threads = 128
    target = p.tensor("o_t", (128, 64), p.normal(128, 64), out=True)
    p.call(_held(p, p.normal(128, 16)), target, p.dim("column", 32), p.thread)


@case(text.rescale_output, heads=(16, 32))
def rescale_output(p: Probe, heads: int) -> None:
    p.threads = 128
    p.call(
        p.tensor("o_t", (128, 4 * heads), p.normal(128, 4 * heads), out=True),
        _held(p),
        p.shared("stat_s", (heads,), p.normal(heads)),
        heads,
    )


@case(text.write_output, split=(None, 2), some=(False, True), block=(8, 16), few=(False, True))
def write_output(p: Probe, split: int | None, some: bool, block: int, few: bool) -> None:
    p.threads = 128
    p.call(
        _operand_of(p, "to", split, 32, 512, dtype=torch.bfloat16 if split is None else torch.float32),
        p.tensor("o_t", (128, 4 * HEADS), p.normal(128, 4 * HEADS)),
        p.dim("row", 1),
        p.dim("head0", 16),
        split if split is None else p.dim("split", split),
        p.var("some", some, dtype="bool"),
        _held(p),
        p.shared("stat_s", (HEADS,), p.normal(HEADS)),
        32,
        block,
        p.dim("splits", 3),
        of_call(p, few, 21),
    )


@case(
    text.merge_heads, splits=(3, 11), alone=(False, True), few=(False, True), fewer=(False, True),
    together=(1, 4),
)  # fmt: skip
def merge_heads(p: Probe, splits: int, alone: bool, few: bool, fewer: bool, together: int) -> None:
    p.threads, p.relative, p.absolute = 128, BF16, 1e-6
    lses = p.normal(2, splits, 32)
    lses[:, 1], lses[:, :, 20] = -INF, -INF
    p.call(
        p.dim("row", 1),
        p.dim("head0", 16),
        p.dim("share", 0 if alone else 2),
        p.dim("shares", 1 if alone else splits),
        p.operand("o_partial", p.normal(2, splits, 32, 512)),
        p.operand("lse_partial", lses),
        p.operand("attn_sink", p.normal(32)),
        *outputs(p, 32),
        32,
        HEADS,
        together,
        p.dim("splits", splits),
        *lse_scalars(p),
        of_call(p, few, 21),
        p.dim("parts", splits - 1) if fewer else None,
    )
