"""Cases of the leaves of grouped-query attention; a warpgroup has 64 rows on Hopper, 128 on Blackwell."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, case, straight

from dsl_kernels.kernels.gqa_forward.leaves import blackwell as gqa_sm100
from dsl_kernels.kernels.gqa_forward.leaves import common as gqa
from dsl_kernels.tile.fragments import accumulators, own_rows

KEYS = 32
INF = float("inf")
SCALE = 0.125 * 1.4427
# Approximate instructions are off by a few units in the last place, and a sum of dozens of terms by about as
# many more.
APPROXIMATE = 4e-6


def _count(p: Probe) -> int:
    """Rows of a warpgroup."""
    return 128 if p.blackwell else 64


def _tile(p: Probe, title: str, value: torch.Tensor | None, columns: int, **kind: Any) -> Any:
    """A tile of a warpgroup's rows, as tensor memory or a product leaves it."""
    if p.blackwell:
        return _private(p, title, value, columns, **kind)
    return p.registers(title, (64, columns), value, places=accumulators(64, columns), **kind)


def _private(p: Probe, title: str, value: torch.Tensor | None, each: int, **kind: Any) -> Any:
    """Registers of each thread."""
    return p.registers(title, (128, each), value, places=straight(128, each), private=True, **kind)


def _scores(p: Probe, value: torch.Tensor, **kind: Any) -> Any:
    return _tile(p, "scores", value, KEYS, **kind)


def _rows(p: Probe, title: str, value: torch.Tensor | None = None, **kind: Any) -> Any:
    """A thread's row values: of the row of its lane of tensor memory, or of two rows."""
    if p.blackwell:
        return _private(p, title, None if value is None else value[:, None], 1, **kind)
    return p.registers(title, (64,), value, places=own_rows(), **kind)


def _total(p: Probe, **kind: Any) -> Any:
    """Sums of rows; on Hopper each thread has the sum over its own columns."""
    each = 1 if p.blackwell else 2
    return _private(p, "total", p.uniform(128, each), each, **kind)


@case(gqa.hide_keys, key=(0, 96, 160), shift=(0, 30))
def hide_keys(p: Probe, key: int, shift: int) -> None:
    """Tiles that all rows see completely, tiles on the diagonal, and tiles past the last key."""
    p.threads = 128
    scores = _scores(p, p.normal(_count(p), KEYS))
    p.call(
        scores,
        p.dim("row", 100),
        p.dim("key", key),
        p.dim("skv", 173),
        p.dim("shift", shift),
        1 if p.blackwell else 2,
    )


@case(gqa.online_softmax, unseen=(False, True))
def online_softmax(p: Probe, unseen: bool) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    scores, top = p.normal(_count(p), KEYS), p.normal(_count(p))
    top[::3] = -INF
    if unseen:
        scores[::2] = -INF
    p.call(
        _scores(p, scores), _rows(p, "top", top), _total(p), _rows(p, "factor"), p.scalar("scale", SCALE),
        unseen
    )  # fmt: skip


@case(gqa.online_softmax_lazily, bits=(False, True), tops=("high", "low", "negative", "none"))
def online_softmax_lazily(p: Probe, bits: bool, tops: str) -> None:
    """No maximum rises; those of two warps rise; negative limits, at which all rise;
    rows that have seen no key."""
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    scores, top = 8 * p.normal(_count(p), KEYS), 8 * p.uniform(_count(p))
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
        _scores(p, scores), _rows(p, "top", top), _total(p), _rows(p, "factor"), _rows(p, "limit", limit),
        p.scalar("scale", SCALE),
        8, True, bits,
    )  # fmt: skip


@case(gqa.rescale_rows, changed=(False, True))
def rescale_rows(p: Probe, changed: bool) -> None:
    p.threads = 128
    factor = torch.ones(_count(p))
    if changed:
        factor[20], factor[50] = 0.25, 0.5
    acc = _tile(p, "acc", p.normal(_count(p), 128), 128)
    p.call(acc, _rows(p, "factor", factor, out=False))


@case(gqa.finish_weights)
def finish_weights(p: Probe) -> None:
    """It keeps an order and changes nothing."""
    p.threads = 128
    _scores(p, p.normal(_count(p), KEYS))
    p.call()


@case(gqa.divide_by_total)
def divide_by_total(p: Probe) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    acc = _tile(p, "acc", p.normal(_count(p), 128), 128)
    p.call(acc, _rows(p, "top", p.normal(_count(p))), _total(p, out=False), p.scalar("scale", SCALE))


@case(gqa.store_lse, row=(0, 64, 128))
def store_lse(p: Probe, row: int) -> None:
    """Complete, partial, and past the last row."""
    p.threads = 128
    p.call(
        p.operand("lse", torch.zeros(2, 3, 100), out=True),
        _rows(p, "values", p.normal(_count(p)), out=False), p.dim("batch", 1),
        p.dim("head", 2), p.dim("heads", 3), p.dim("row", row), p.dim("sq", 100),
    )  # fmt: skip


@case(gqa_sm100.rescale_output, changed=(False, True), columns=(64, 128))
def rescale_output(p: Probe, changed: bool, columns: int) -> None:
    p.threads = 128
    factor = torch.ones(128)
    if changed:
        factor[20], factor[50] = 0.25, 0.5
    acc = p.tensor("acc", (128, columns), p.normal(128, columns), out=True)
    p.call(acc, columns, _rows(p, "factor", factor, out=False), _tile(p, "part", None, 32, out=False))


@case(gqa_sm100.finish_rows)
def finish_rows(p: Probe) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    p.call(_rows(p, "top", p.normal(128)), _total(p), p.scalar("scale", SCALE))


@case(gqa_sm100.stage_output, columns=(64, 128))
def stage_output(p: Probe, columns: int) -> None:
    p.threads = 128
    p.call(
        p.shared("target", (128, columns), dtype="bfloat16", swizzle=128, out=True),
        p.tensor("acc", (128, columns), p.normal(128, columns)),
        columns, _rows(p, "inverse", p.uniform(128), out=False), _tile(p, "part", None, 32, out=False),
        _tile(p, "rounded", None, 32, dtype="bfloat16", out=False),
    )  # fmt: skip


@case(gqa.stage_result, row=(0, 64))
def stage_result(p: Probe, row: int) -> None:
    """The place of a row within eight decides how its pieces are exchanged."""
    p.threads = 128
    before = torch.zeros(128, 128, dtype=torch.bfloat16)
    target = p.shared("target", (128, 128), before, dtype="bfloat16", swizzle=128, out=True)
    p.call(target, p.dim("row", row), _tile(p, "acc", p.normal(64, 128), 128, out=False))
