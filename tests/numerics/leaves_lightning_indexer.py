"""Cases of the lightning indexer's leaves."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, case

from dsl_kernels.device.text import lightning_indexer as walk
from dsl_kernels.device.torch import lightning_indexer as indexer
from dsl_kernels.tile.fragments import accumulators, warps_and_lanes
from dsl_kernels.tile.lang import Mma


def _lengths(p: Probe, b: int = 20, next_n: int = 3, most: int = 99, skip_below: int = 30) -> tuple[Any, ...]:
    return (
        p.operand("seq_lens", p.integers(0, most, b, next_n)),
        p.dim("b", b),
        p.dim("next_n", next_n),
        p.dim("skip_below", skip_below),
    )


@case(walk.place_when_even, b=(1, 7, 40))
def place_when_even(p: Probe, b: int) -> None:
    results = [p.var(text, None, out=True) for text in ("seq", "tile", "step")]
    p.call(*results, p.dim("b", b), p.dim("cta", 25), p.dim("ctas", 33))


@case(walk.read_lengths, b=(20, 40))
def read_lengths(p: Probe, b: int) -> None:
    lens = p.operand("seq_lens", p.integers(0, 99, b, 1))
    p.call(p.var("length", None, out=True, each="lane"), lens, p.dim("b", b), p.lane)


@case(walk.lengths_to_score)
def lengths_to_score(p: Probe) -> None:
    length = p.var("length", p.integers(0, 99, 32), each="lane")
    p.call(p.var("need", None, out=True, each="lane"), length, p.dim("b", 20), p.dim("skip_below", 30), p.lane)  # fmt: skip


@case(walk.keys_to_score)
def keys_to_score(p: Probe) -> None:
    p.call(p.var("need", None, out=True, each="lane"), *_lengths(p), p.lane)


@case(walk.find_share, deal=("lone", "even", "shares", "many"))
def find_share(p: Probe, deal: str) -> None:
    b, next_n, keys, ctas, cta = {"lone": 1, "even": 3, "shares": 13, "many": 50}[deal], 2, 64, 24, 17
    most = 4000
    lens = p.integers(most - 200 if deal == "even" else 1, most, b, next_n)
    step = max(ctas // b, 1)
    seq, tile, longest = cta // step, cta % step, torch.zeros(32, dtype=torch.int32)
    longest[:b] = torch.where(lens > 30, lens, 0).amax(dim=1)[:32]
    given = [
        p.var("seq", seq, out=True),
        p.var("tile", tile, out=True),
        p.var("need", longest, out=True, each="lane"),
        p.var("turns", None, out=True),
        p.var("step", step, out=True),
    ]
    p.call(
        *given, p.operand("seq_lens", lens), p.dim("b", b), p.dim("next_n", next_n), p.dim("skip_below", 30), keys,
        p.dim("cta", cta), p.dim("ctas", ctas), p.lane,
    )  # fmt: skip


@case(walk.next_tile, it=(0, 3), tile=(1, 2))
def next_tile(p: Probe, it: int, tile: int) -> None:
    lens = torch.tensor([[128, 70], [10, 20], [0, 29], [31, 5], [400, 3]], dtype=torch.int32)
    given = [
        p.var("seq", 0, out=True),
        p.var("tile", tile, out=True),
        p.var("need", 128, out=True),
    ]
    p.call(
        p.var("fresh", None, dtype="bool", out=True), p.dim("it", it), *given, p.operand("seq_lens", lens), p.dim("b", 5), p.dim("next_n", 2),
        p.dim("skip_below", 30), 64,
    )  # fmt: skip


@case(walk.table_entries)
def table_entries(p: Probe) -> None:
    table = p.operand("block_table", p.integers(0, 999, 5, 100))
    sizes = [
        p.dim(text, value) for text, value in (("max_pages", 100), ("row", 3), ("first", 7), ("step", 3))
    ]
    p.call(
        p.var("entry", None, out=True, each="lane"),
        table,
        *sizes,
        2,
        p.dim("last", 90),
        p.lane,
    )


@case(walk.entry_of)
def entry_of(p: Probe) -> None:
    entry = p.var("entry", p.integers(0, 999, 32), each="lane")
    p.call(p.var("page", None, out=True), entry, p.dim("place", 19))


def _of_quad(queries: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and queries of the logits that `weigh` leaves in each thread, [threads, logits]."""
    warp, lane = warps_and_lanes()
    i = torch.arange(max(1, queries // 2)).view(1, -1)
    within = lane // 4 if queries == 4 else lane // 4 + 8 * (lane % 2)
    query = {1: 0 * lane, 2: lane // 2 % 2, 4: lane % 4}[queries]
    return warp * 16 + within + 8 * i, query + 0 * i


def _weight(p: Probe, queries: int, value: torch.Tensor | None, **kind: Any) -> Any:
    """Weights of 32 heads of each query, as a product's threads have them."""
    i, lane = torch.arange(8 * queries).view(1, -1), warps_and_lanes()[1]
    places = i // 8 * 32 + i % 8 // 2 * 8 + lane % 4 * 2 + i % 2
    return p.registers("weight", (queries, 32), value, places=places, **kind)


def _scale(p: Probe, queries: int, value: torch.Tensor | None, **kind: Any) -> Any:
    return p.registers("scale", (64,), value, places=_of_quad(queries)[0], **kind)


def _logit(p: Probe, queries: int, value: torch.Tensor | None, **kind: Any) -> Any:
    key, query = _of_quad(queries)
    return p.registers("logit", (64, queries), value, places=key * queries + query, **kind)


@case(indexer.read_weights, queries=(1, 2, 4))
def read_weights(p: Probe, queries: int) -> None:
    p.threads = 128
    first = 32 * queries
    p.call(
        _weight(p, queries, None),
        p.shared("head_weights", (2 * first,), p.normal(2 * first), slot=True),
        first,
        queries,
        p.thread,
    )


@case(indexer.read_scales, queries=(1, 2, 4))
def read_scales(p: Probe, queries: int) -> None:
    p.threads = 128
    scales = p.shared("key_scales", (256,), p.normal(256), slot=True)
    p.call(_scale(p, queries, None), scales, 128, queries, p.thread)


@case(indexer.weigh, queries=(1, 2, 4))
def weigh(p: Probe, queries: int) -> None:
    p.threads, p.relative, p.absolute = 128, 1e-5, 1e-5
    n = 32 * queries
    dots = p.registers("dots", (64, n), p.normal(64, n), places=accumulators(64, n), out=False)
    if p.cute:
        # Accumulators have the layout of the product that fills them.
        p.shared("a_s", (64, 128), dtype="float8_e4m3", swizzle=128)
        p.shared("b_s", (n, 128), dtype="float8_e4m3", swizzle=128)
        p.mmas = (Mma("score", "wgmma", "probe", 64, n, 128, "float8_e4m3", a="a_s", b="b_s", acc="dots"),)
    weight = _weight(p, queries, p.normal(queries, 32), out=False)
    p.call(_logit(p, queries, None), dots, weight, queries, p.thread)


def _length(p: Probe, queries: int, value: torch.Tensor | None, **kind: Any) -> Any:
    return p.registers("length", (queries,), value, dtype="int32", places=_of_quad(queries)[1][:, :1], **kind)


@case(indexer.one_length)
def one_length(p: Probe) -> None:
    p.threads = 128
    p.call(_length(p, 1, None), p.dim("need", 77))


@case(indexer.read_query_lengths, queries=(1, 2, 4))
def read_query_lengths(p: Probe, queries: int) -> None:
    p.threads = 128
    p.call(
        _length(p, queries, None),
        p.operand("seq_lens", p.integers(0, 99, 6, 5)),
        p.dim("seq", 4),
        p.dim("query", 5 - queries + queries // 4),
        queries,
        p.dim("next_n", 5),
        p.dim("skip_below", 40),
        p.thread,
    )


@case(indexer.store_logits, queries=(1, 2, 4))
def store_logits(p: Probe, queries: int) -> None:
    p.threads = 128
    lengths = torch.tensor([150, 0, 300, 131], dtype=torch.int32)[:queries]
    p.call(
        p.operand("logits", torch.full((3, 5, 260), -77.0), out=True),
        _logit(p, queries, p.normal(64, queries), out=False),
        _scale(p, queries, p.normal(64), out=False),
        _length(p, queries, lengths, out=False),
        p.dim("seq", 2),
        p.dim("query", 1),
        queries,
        p.dim("next_n", 5),
        p.dim("stride", 260),
        p.dim("key", 128),
        p.thread,
    )


def _windows(p: Probe, rows: int = 21) -> tuple[Any, ...]:
    starts = p.integers(-3, 300, rows)
    ends = starts + p.integers(0, 200, rows)
    return p.operand("k_start", starts), p.operand("k_end", ends.int())


@case(walk.find_tiles, row=(8, 16), split=(0, 2))
def find_tiles(p: Probe, row: int, split: int) -> None:
    p.call(
        p.var("first", None, out=True),
        p.var("turns", None, out=True),
        *_windows(p),
        p.dim("row", row),
        8,
        p.dim("s", 21),
        p.dim("skv", 420),
        p.dim("skip_below", 40),
        64,
        p.dim("split", split),
        p.dim("splits", 3),
        p.lane,
    )


def _window(p: Probe, queries: int, begin: Any, size: Any, **kind: Any) -> tuple[Any, Any]:
    places = _of_quad(queries)[1][:, :1]
    return tuple(
        p.registers(text, (queries,), value, dtype="int32", places=places, **kind)
        for text, value in (("begin", begin), ("size", size))
    )


@case(indexer.read_windows, queries=(1, 2, 4))
def read_windows(p: Probe, queries: int) -> None:
    p.threads = 128
    begin, size = _window(p, queries, None, None)
    p.call(
        begin,
        size,
        *_windows(p),
        p.dim("row", 20 - queries // 2),
        queries,
        p.dim("s", 21),
        p.dim("skv", 300),
        p.dim("skip_below", 40),
        p.thread,
    )


@case(indexer.store_window, queries=(1, 2, 4))
def store_window(p: Probe, queries: int) -> None:
    p.threads = 128
    begin = torch.tensor([130, 100, 150, 0], dtype=torch.int32)[:queries]
    size = torch.tensor([40, 60, 100, 0], dtype=torch.int32)[:queries]
    p.call(
        p.operand("logits", torch.full((9, 260), -77.0), out=True),
        _logit(p, queries, p.normal(64, queries), out=False),
        _scale(p, queries, p.normal(64), out=False),
        *_window(p, queries, begin, size, out=False),
        p.dim("row", 3),
        queries,
        p.dim("stride", 260),
        p.dim("key", 128),
        p.thread,
    )
