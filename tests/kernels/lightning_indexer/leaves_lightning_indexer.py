"""Cases of the lightning indexer's leaves."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, case, spread, straight

from dsl_kernels.kernels.lightning_indexer.leaves import walk


def _lengths(p: Probe, b: int = 20, next_n: int = 3, most: int = 99, skip_below: int = 30) -> tuple[Any, ...]:
    return (
        spread(p, "seq_lens", p.integers(0, most, b, next_n)),
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
    lens = spread(p, "seq_lens", p.integers(0, 99, b, 1))
    p.call(p.var("length", None, out=True, each="lane"), lens, p.dim("b", b))


@case(walk.lengths_to_score)
def lengths_to_score(p: Probe) -> None:
    length = p.var("length", p.integers(0, 99, 32), each="lane")
    p.call(p.var("need", None, out=True, each="lane"), length, p.dim("b", 20), p.dim("skip_below", 30))


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
        *given, spread(p, "seq_lens", lens), p.dim("b", b), p.dim("next_n", next_n), p.dim("skip_below", 30),
        keys,
        p.dim("cta", cta), p.dim("ctas", ctas),
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
        p.var("fresh", None, dtype="bool", out=True), p.dim("it", it), *given, spread(p, "seq_lens", lens),
        p.dim("b", 5), p.dim("next_n", 2),
        p.dim("skip_below", 30), 64,
    )  # fmt: skip


@case(walk.table_entries)
def table_entries(p: Probe) -> None:
    table = spread(p, "block_table", p.integers(0, 999, 5, 100))
    sizes = [p.dim(text, value) for text, value in (("row", 3), ("first", 7), ("step", 3))]
    p.call(
        p.var("entry", None, out=True, each="lane"),
        table,
        *sizes,
        2,
        p.dim("last", 90),
    )


@case(walk.grain_entries, page_size=(16, 48, 256))
def grain_entries(p: Probe, page_size: int) -> None:
    table = spread(p, "block_table", p.integers(0, 999, 5, 100))
    sizes = [p.dim(text, value) for text, value in (("row", 3), ("first", 7), ("step", 3))]
    p.call(
        p.var("entry", None, out=True, each="lane"),
        p.var("place", None, out=True, each="lane"),
        table,
        *sizes,
        8,
        p.dim("last", 90),
        p.dim("page_size", page_size),
    )


@case(walk.block_entries, page_size=(24, 64), block_size=(8, 24, 64))
def block_entries(p: Probe, page_size: int, block_size: int) -> None:
    block_size = min(block_size, page_size)
    table = spread(p, "block_table", p.integers(0, 999, 3, 100))
    sizes = [p.dim(text, value) for text, value in (("row", 5), ("first", 7), ("step", 3))]
    p.call(
        p.var("entry", None, out=True, each="lane"), p.var("place", None, out=True, each="lane"), table,
        *sizes, 8,
        p.dim("last", 90), p.dim("page_size", page_size), p.dim("block_size", block_size),
        p.dim("sharing", 2),
    )  # fmt: skip


@case(walk.decode_scales, mx=(0, 1))
def decode_scales(p: Probe, mx: int) -> None:
    """Bytes from both ends of the range and between them; scales that are no powers stay unchanged."""
    p.threads = 128
    powers = torch.arange(256, dtype=torch.uint8)[torch.arange(128) * 2 + torch.arange(128) // 64]
    words = powers[:, None].expand(-1, 4).contiguous().view(torch.float32)
    given = words if mx else p.normal(128, 1)
    p.call(p.registers("scale", (128, 1), given, places=straight(128, 1), private=True), p.dim("mx", mx))


@case(walk.entry_of)
def entry_of(p: Probe) -> None:
    entry = p.var("entry", p.integers(0, 999, 32), each="lane")
    p.call(p.var("page", None, out=True), entry, p.dim("place", 19))


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
    )
