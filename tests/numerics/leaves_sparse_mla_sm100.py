"""Cases of the leaves of sparse attention on Blackwell."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, alike, case, straight
from leaves_sparse_mla import APPROXIMATE, HEADS, INF, _bits, _ids, _low_high, _tokens, neighbours

from dsl_kernels.device.text import sparse_mla_sm100 as text
from dsl_kernels.device.torch import sparse_mla_sm100 as mla_sm100
from dsl_kernels.tile.lang import Mma

BF16 = 2.0**-7


def _own(p: Probe, title: str, value: torch.Tensor | None, each: int = HEADS // 4, **kind: Any) -> Any:
    """What every thread has for itself."""
    return p.registers(title, (128, each), value, places=straight(128, each), private=True, **kind)


def _scores(p: Probe, value: torch.Tensor | None = None, **kind: Any) -> Any:
    return _own(p, "scores", p.normal(128, HEADS // 2) if value is None else value, HEADS // 2, **kind)


def _red(p: Probe, value: torch.Tensor | None = None, **kind: Any) -> Any:
    return p.shared("red", (HEADS, 4), value, slot=True, **kind)


@case(text.load_block, block=(8, 16))
def load_block(p: Probe, block: int) -> None:
    p.threads = 128
    p.call(
        p.shared("target", (HEADS, 128), dtype="bfloat16", swizzle=128, out=True, slot=True),
        p.operand("q", p.normal(2, 32, 128).bfloat16()),
        p.dim("row", 1),
        p.dim("head0", 16),
        32,
        block,
        HEADS,
        128,
        p.thread,
    )


@case(text.spread_ids, each=(2, 8))
def spread_ids(p: Probe, each: int) -> None:
    p.threads = 128
    ids = _ids(p, 40)
    rows = _own(p, "rows", None, each, dtype="int32")
    p.call(rows, *_low_high(p, ids), *_bits(p, (ids >= 0) & (ids < 40)), p.thread)


@case(mla_sm100.read_rows, turn=(2, 3))
def read_rows(p: Probe, turn: int) -> None:
    # Every lane of CuTe DSL has all ids, one of TileLang those of the copies that it issues.
    places = alike(32, 64) if p.cute else torch.arange(32).view(-1, 1) % 16 * 4 + torch.arange(4)
    p.call(
        p.registers("rows", (64,), p.integers(0, 99, 64), dtype="int32", places=places, private=True),
        p.operand("indices", p.integers(-1, 999, 3, 512)),
        p.dim("topk", 512),
        p.dim("row", 1),
        p.dim("turn", turn),
        p.dim("turns", 3),
        p.dim("split", 1),
        p.dim("splits", 3),
        p.lane,
    )


def _rows(p: Probe, each: int) -> Any:
    """The rows of every `64 / each`-th token, from that of the thread on; some name none."""
    ids = p.integers(0, 40, 64)
    ids[::5] = -1
    first = torch.arange(128).view(-1, 1) // (2 * each)
    return _own(p, "rows", ids[first + torch.arange(each) * (64 // each)], each, dtype="int32", out=False)


@case(text.gather_columns, columns=(64, 128))
def gather_columns(p: Probe, columns: int) -> None:
    p.threads, p.lands = 128, "cp_async"
    p.call(
        p.shared("target", (64, columns), dtype="bfloat16", swizzle=128, out=True, slot=True),
        p.operand("cache", p.normal(40, 264).bfloat16()[:, :256], pitch="cache_stride"),
        p.dim("first", 128),
        columns,
        _rows(p, 8),
        p.thread,
    )


def _token_words(p: Probe, value: torch.Tensor, **kind: Any) -> Any:
    """A thread's quarter of two tokens: 16 bytes of each 64-dim panel, two pieces of rope, the four scales."""
    thread, i = torch.arange(128).view(-1, 1, 1, 1), torch.arange(2).view(1, -1, 1, 1)
    piece, word = torch.arange(11).view(1, 1, -1, 1), torch.arange(4).view(1, 1, 1, -1)
    byte = torch.where(piece < 8, piece * 64, 528 + (piece - 8) * 64) + thread % 4 * 16
    byte = torch.where(piece == 10, 512, byte) + 4 * word
    words = value.contiguous().view(torch.int32)[32 * i + thread // 4, byte // 4]
    return _own(p, "words", words.view(128, 88).long() & 0xFFFFFFFF, 88, dtype="uint32", **kind)


@case(text.load_unit, unit=(0, 3))
def load_unit(p: Probe, unit: int) -> None:
    p.threads = 128
    words = _token_words(p, _tokens(p, 64))
    rows = _rows(p, 2)
    p.call(words, unit, p.operand("kv_cache", _tokens(p, 40)), rows, p.thread)


@case(text.load_rest)
def load_rest(p: Probe) -> None:
    p.threads = 128
    words = _token_words(p, _tokens(p, 64))
    rows = _rows(p, 2)
    p.call(words, p.operand("kv_cache", _tokens(p, 40)), rows, p.thread)


@case(text.dequantise_unit, unit=(0, 2))
def dequantise_unit(p: Probe, unit: int) -> None:
    p.threads = 128
    neighbours(p)
    target = p.shared("target", (64, 128), dtype="bfloat16", swizzle=128, out=True, slot=True)
    p.call(target, _token_words(p, _tokens(p, 64), out=False), unit, p.thread)


@case(text.store_rope)
def store_rope(p: Probe) -> None:
    p.threads = 128
    target = p.shared("target", (64, 64), dtype="bfloat16", swizzle=128, out=True, slot=True)
    p.call(target, _token_words(p, _tokens(p, 64), out=False), p.thread)


@case(mla_sm100.read_scores)
def read_scores(p: Probe) -> None:
    p.threads = 128
    scores = _own(p, "scores", None, HEADS // 2)
    if not p.cute:
        # TileLang gives accumulators of 64 rows their place only where a product is declared.
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
    p.call(grown, _own(p, "top", None), _own(p, "peak", peak, out=False), _red(p, red), 8, p.thread)


@case(text.raise_reference)
def raise_reference(p: Probe) -> None:
    p.threads, p.relative = 128, APPROXIMATE
    peak = p.normal(128, HEADS // 4)
    peak[::3] = -INF
    p.call(
        _own(p, "peak", peak), _own(p, "top", p.normal(128, HEADS // 4), out=False), _own(p, "sums", p.uniform(128, HEADS // 4)),
        p.shared("stat_s", (HEADS,), out=True), p.thread,
    )  # fmt: skip


@case(text.weigh_tokens)
def weigh_tokens(p: Probe) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    scores = p.normal(128, HEADS // 2)
    scores[::7] = -INF
    peak = _own(p, "peak", p.normal(128, HEADS // 4), out=False)
    p.call(_scores(p, scores), _own(p, "sums", p.uniform(128, HEADS // 4)), peak)


@case(text.store_tokens)
def store_tokens(p: Probe) -> None:
    p.threads = 128
    target = p.shared("p_s", (64, HEADS), dtype="bfloat16", swizzle=32, out=True, slot=True)
    p.call(target, _scores(p, out=False), p.thread)


def _operand_of(
    p: Probe, title: str, split: int | None, *shape: int, dtype: torch.dtype = torch.float32
) -> Any:
    """What a row has once, or each of three splits, and nothing was written to."""
    splits = () if split is None else (3,)
    return p.operand(title, torch.full((2, *splits, *shape), -77.0).to(dtype), out=True)


@case(text.finish_columns, split=(None, 2), block=(8, 16))
def finish_columns(p: Probe, split: int | None, block: int) -> None:
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
        p.scalar("lse_scale", 0.7),
        p.thread,
    )


def _held(p: Probe, value: torch.Tensor | None = None, out: bool = False) -> Any:
    return _own(p, "held", value, 16, out=out)


@case(mla_sm100.load_columns)
def load_columns(p: Probe) -> None:
    p.threads = 128
    p.call(_held(p, out=True), p.tensor("o_t", (128, 64), p.normal(128, 64)), p.dim("column", 32), p.thread)


@case(mla_sm100.store_columns)
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
        p.thread,
    )


@case(text.write_output, split=(None, 2), some=(False, True), block=(8, 16))
def write_output(p: Probe, split: int | None, some: bool, block: int) -> None:
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
        p.thread,
    )


@case(text.merge_heads, splits=(3, 11))
def merge_heads(p: Probe, splits: int) -> None:
    p.threads, p.relative, p.absolute = 128, BF16, 1e-6
    lses = p.normal(2, splits, 32)
    lses[:, 1], lses[:, :, 20] = -INF, -INF
    p.call(
        p.dim("row", 1),
        p.dim("head0", 16),
        p.operand("o_partial", p.normal(2, splits, 32, 512)),
        p.operand("lse_partial", lses),
        p.operand("attn_sink", p.normal(32)),
        p.operand("out", torch.full((2, 32, 512), -77.0).bfloat16(), out=True),
        p.operand("lse", torch.full((2, 32), -77.0), out=True),
        32,
        HEADS,
        p.dim("splits", splits),
        p.dim("split", 2),
        p.scalar("lse_scale", 0.7),
        p.thread,
    )
