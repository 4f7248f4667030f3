"""Cases of the lightning indexer's leaves on Hopper: the four threads of a quad share two keys."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, case, spread
from leaves_lightning_indexer import _windows
from leaves_lightning_indexer_sm100 import SCORES, _given, _integers, _logits, _own

from dsl_kernels.kernels.lightning_indexer.leaves import hopper as text

EACH = (1, 2, 4)
"""Queries per product."""
HEADS = (32, 24, 8)


def _held(each: int) -> int:
    """The number of logits, and of scales, per thread."""
    return max(1, each // 2)


@case(text.read_weights, each=EACH, heads=HEADS)
def read_weights(p: Probe, each: int, heads: int) -> None:
    p.threads, first, pitch = 128, 32 * each, 32
    weights = p.shared("head_weights", (2 * first,), p.normal(2 * first), slot=True)
    p.call(_own(p, "weight", None, heads * each // 4), weights, first, each, heads, pitch)


@case(text.read_scales, each=EACH, apart=(None, 32))
def read_scales(p: Probe, each: int, apart: int | None) -> None:
    p.threads = 128
    scales = p.shared("key_scales", (256,), p.normal(256), slot=True)
    p.call(_own(p, "scale", None, _held(each)), scales, 128 if apart is None else 0, each, apart)


@case(text.read_block_scales)
def read_block_scales(p: Probe) -> None:
    p.threads = 128
    p.call(_own(p, "scale", None), p.shared("key_scales", (512,), p.normal(512), slot=True), 32)


@case(text.weigh, each=EACH, heads=HEADS)
def weigh(p: Probe, each: int, heads: int) -> None:
    p.relative, p.absolute = 1e-5, 1e-5
    acc, weight = _given(p, "acc", heads * each // 2), _given(p, "weight", heads * each // 4)
    p.call(_own(p, "logit", None, _held(each)), acc, weight, each, heads)


@case(text.one_length)
def one_length(p: Probe) -> None:
    p.call(_integers(p, "length", None), p.dim("need", 77))


@case(text.read_query_lengths, each=(2, 4))
def read_query_lengths(p: Probe, each: int) -> None:
    lens = spread(p, "seq_lens", p.integers(0, 99, 6, 5))
    first = p.dim("query", 5 - each + each // 4)
    p.call(
        _integers(p, "length", None), lens, p.dim("seq", 4), first, each, p.dim("next_n", 5),
        p.dim("skip_below", 40)
    )  # fmt: skip


def _stored(p: Probe, each: int) -> tuple[Any, Any]:
    return _given(p, "logit", _held(each)), _given(p, "scale", _held(each))


@case(text.store_logits, each=EACH, dtype=SCORES)
def store_logits(p: Probe, each: int, dtype: torch.dtype) -> None:
    lengths = _integers(p, "length", [150, 300, 0, 131], out=False)
    sizes = (
        p.dim("seq", 2),
        p.dim("query", 1),
        each,
        p.dim("next_n", 5),
        p.dim("key", 128),
    )
    p.call(_logits(p, 3, 5, dtype=dtype), *_stored(p, each), lengths, *sizes)


@case(text.store_maxima, length=(128, 170, 191, 300))
def store_maxima(p: Probe, length: int) -> None:
    lengths = _integers(p, "length", [length], out=False)
    maxima = spread(p, "maxima", torch.full((3, 33), -77.0), out=True)
    p.call(maxima, *_stored(p, 1), lengths, p.dim("row", 2), p.dim("key", 128))


@case(text.read_windows, each=(2, 4))
def read_windows(p: Probe, each: int) -> None:
    windows = (_integers(p, text, None) for text in ("begin", "size"))
    sizes = (p.dim("s", 21), p.dim("skv", 300), p.dim("skip_below", 40))
    p.call(*windows, *_windows(p), p.dim("row", 20 - each // 2), each, *sizes)


@case(text.store_window, each=(2, 4), compressed=(None, 0, 1))
def store_window(p: Probe, each: int, compressed: int | None) -> None:
    begin, size = (
        _integers(p, text, value, out=False)
        for text, value in (("begin", [130, 100, 150, 0]), ("size", [40, 60, 100, 0]))
    )
    sizes = (p.dim("row", 3), each, p.dim("key", 128))
    column = None if compressed is None else p.dim("compressed", compressed)
    dtype = SCORES[compressed is not None]
    p.call(_logits(p, 9, dtype=dtype), *_stored(p, each), begin, size, *sizes, column)
