"""Cases of the lightning indexer's leaves on Blackwell, where each thread has one key."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, case, spread, straight
from leaves_lightning_indexer import _windows

from dsl_kernels.kernels.lightning_indexer import functions as indexer
from dsl_kernels.kernels.lightning_indexer.leaves import blackwell as text


def _own(p: Probe, title: str, value: torch.Tensor | None, each: int = 1, **kind: Any) -> Any:
    """Private values of every thread."""
    p.threads = 128
    return p.registers(title, (128, each), value, places=straight(128, each), private=True, **kind)


def _given(p: Probe, title: str, each: int = 1) -> Any:
    return _own(p, title, p.normal(128, each), each, out=False)


def _integers(p: Probe, title: str, values: list[int] | None, each: int = 1, **kind: Any) -> Any:
    """Equal in all threads, or one value per lane."""
    value = None if values is None else torch.tensor(values, dtype=torch.int32)
    if value is not None:
        value = value.repeat(128, 1) if each > 1 else value.repeat(128 // len(values)).view(128, 1)
    return _own(p, title, value, each, dtype="int32", **kind)


@case(text.load_weights)
def load_weights(p: Probe) -> None:
    p.call(_own(p, "weight", None, 32), p.shared("head_weights", (128,), p.normal(128), slot=True), 64)


@case(text.load_scale, apart=(None, 32))
def load_scale(p: Probe, apart: int | None) -> None:
    size = 128 if apart is None else 8 * apart
    p.call(_own(p, "scale", None), p.shared("key_scales", (size,), p.normal(size), slot=True), apart)


@case(text.load_block_scale)
def load_block_scale(p: Probe) -> None:
    p.call(_own(p, "scale", None), p.shared("key_scales", (512,), p.normal(512), slot=True), 32)


@case(text.load_lengths)
def load_lengths(p: Probe) -> None:
    lens = spread(p, "seq_lens", p.integers(0, 99, 6, 5))
    sizes = (p.dim("seq", 4), p.dim("next_n", 5), p.dim("skip_below", 40))
    p.call(_integers(p, "length", None), lens, *sizes)


@case(text.load_windows)
def load_windows(p: Probe) -> None:
    windows = (_integers(p, text, None, 4) for text in ("begin", "size"))
    sizes = (p.dim("row", 19), p.dim("s", 21), p.dim("skv", 300), p.dim("skip_below", 40))
    p.call(*windows, *_windows(p), *sizes)


@case(indexer.read_scores, count=(24, 32))
def read_scores(p: Probe, count: int) -> None:
    dots = _own(p, "dots", None, count)
    p.call(
        dots, p.tensor("scores", (128, 64), p.normal(128, 64)), count, min(count, 16 + count % 16), p.thread
    )


@case(indexer.weigh_one, fresh=(True, False), heads=(8, 24, 32))
def weigh_one(p: Probe, fresh: bool, heads: int) -> None:
    p.relative, p.absolute = 1e-5, 1e-5
    logit = _own(p, "logit", p.normal(128, 1))
    p.call(logit, _given(p, "dots", 2 * heads), 1, _given(p, "weight", heads), fresh)


SCORES = (torch.float32, torch.bfloat16)


def _logits(p: Probe, *shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return spread(p, "logits", torch.full((*shape, 260), -77.0, dtype=dtype), out=True)


@case(text.store_query, query=(1, 3), dtype=SCORES)
def store_query(p: Probe, query: int, dtype: torch.dtype) -> None:
    lengths = _integers(p, "length", [0, 170, 300, 0] * 8, out=False)
    sizes = (
        p.dim("seq", 2),
        p.dim("query", query),
        p.dim("next_n", 3),
        p.dim("key", 128),
    )
    p.call(_logits(p, 3, 3, dtype=dtype), _given(p, "logit"), _given(p, "scale"), lengths, *sizes)


@case(text.store_maxima, length=(128, 170, 255, 300))
def store_maxima(p: Probe, length: int) -> None:
    lengths = _integers(p, "length", [length, *[0] * 31], out=False)
    maxima = spread(p, "maxima", torch.full((3, 33), -77.0), out=True)
    p.call(maxima, _given(p, "logit"), _given(p, "scale"), lengths, p.dim("row", 2), p.dim("key", 128))


@case(text.store_row, compressed=(None, 0, 1))
def store_row(p: Probe, compressed: int | None) -> None:
    windows = (
        _integers(p, text, value, 2, out=False) for text, value in (("begin", [0, 140]), ("size", [260, 70]))
    )
    sizes = (p.dim("row", 5), p.dim("key", 128))
    column = None if compressed is None else p.dim("compressed", compressed)
    dtype = SCORES[compressed is not None]
    p.call(_logits(p, 9, dtype=dtype), _given(p, "logit"), _given(p, "scale"), *windows, 1, *sizes, column)
