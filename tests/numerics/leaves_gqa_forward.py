"""Cases of the leaves of grouped-query attention: the scores of 64 rows in the registers of a warpgroup."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, accumulators, case, warps_and_lanes

from dsl_kernels.device.torch import gqa_forward as gqa

ROWS, KEYS = 64, 32
INF = float("inf")
SCALE = 0.125 * 1.4427
# An approximate instruction errs by a few units in the last place, and a sum of some dozen terms by as many more.
APPROXIMATE = 4e-6


def _own_rows() -> torch.Tensor:
    """The two rows of which a thread has elements."""
    warp, lane = warps_and_lanes()
    return 16 * warp + lane // 4 + 8 * torch.arange(2)


def _scores(p: Probe, value: torch.Tensor, **kind: Any) -> Any:
    return p.registers("scores", (ROWS, KEYS), value, places=accumulators(ROWS, KEYS), by_product=True, **kind)


def _rows(p: Probe, title: str, value: torch.Tensor | None = None, **kind: Any) -> Any:
    return p.registers(title, (ROWS,), value, places=_own_rows(), private=True, **kind)


def _total(p: Probe, **kind: Any) -> Any:
    return _rows(p, "total", p.uniform(128, 2), partial="sum", **kind)


@case(gqa.hide_keys, key=(0, 96, 160), shift=(0, 30))
def hide_keys(p: Probe, key: int, shift: int) -> None:
    """Tiles that all rows see whole, that the diagonal crosses, and past the last key."""
    p.threads = 128
    scores = _scores(p, p.normal(ROWS, KEYS))
    p.call(scores, p.dim("row", 100), p.dim("key", key), p.dim("skv", 173), p.dim("shift", shift), p.thread)


@case(gqa.online_softmax, unseen=(False, True))
def online_softmax(p: Probe, unseen: bool) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    scores, top = p.normal(ROWS, KEYS), p.normal(ROWS)
    top[::3] = -INF
    if unseen:
        scores[::2] = -INF
    p.call(
        _scores(p, scores), _rows(p, "top", top), _total(p), _rows(p, "factor"), p.scalar("scale", SCALE), unseen, p.thread
    )  # fmt: skip


@case(gqa.online_softmax_lazily, bits=(False, True), tops=("high", "low", "negative", "none"))
def online_softmax_lazily(p: Probe, bits: bool, tops: str) -> None:
    """No row rises; those of two warps rise; limits below zero, at which all rise; rows that have seen no key."""
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    scores, top = 8 * p.normal(ROWS, KEYS), 8 * p.uniform(ROWS)
    if tops == "low":
        scores[5, 3], scores[63, 31] = 70.0, 90.0
    elif tops == "negative":
        scores, top = scores - 400, top - 400
    elif tops == "none":
        top[:] = -INF
        scores[::2] = -INF
    above = top + 8 / SCALE
    limit = torch.where(above > 0, above, -0.0)
    p.call(
        _scores(p, scores), _rows(p, "top", top), _total(p), _rows(p, "factor"), _rows(p, "limit", limit), p.scalar("scale", SCALE),
        8, True, bits, p.thread,
    )  # fmt: skip


@case(gqa.rescale_rows, changed=(False, True))
def rescale_rows(p: Probe, changed: bool) -> None:
    p.threads = 128
    factor = torch.ones(ROWS)
    if changed:
        factor[20], factor[50] = 0.25, 0.5
    acc = p.registers("acc", (ROWS, 128), p.normal(ROWS, 128), places=accumulators(ROWS, 128), by_product=True)
    p.call(acc, _rows(p, "factor", factor, out=False), p.thread)


@case(gqa.divide_by_total)
def divide_by_total(p: Probe) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    acc = p.registers("acc", (ROWS, 128), p.normal(ROWS, 128), places=accumulators(ROWS, 128), by_product=True)
    p.call(acc, _rows(p, "top", p.normal(ROWS)), _total(p, out=False), p.scalar("scale", SCALE), p.thread)


@case(gqa.store_lse, row=(0, 64, 128))
def store_lse(p: Probe, row: int) -> None:
    """Whole, in part and past the last row."""
    p.threads = 128
    p.call(
        p.operand("lse", torch.zeros(2, 3, 100), out=True), _rows(p, "values", p.normal(ROWS), out=False), p.dim("batch", 1),
        p.dim("head", 2), p.dim("heads", 3), p.dim("row", row), p.dim("sq", 100), p.thread,
    )  # fmt: skip
