"""Cases of the leaves of scoring over keys of 4 bits."""

from __future__ import annotations

import torch
from leaf_probes import Probe, case
from leaves_lightning_indexer_sm100 import SCORES, _given, _integers, _logits

from dsl_kernels.kernels.lightning_indexer.leaves import mxfp4 as text


@case(text.place_factors, rows=(128, 64, 32))
def place_factors(p: Probe, rows: int) -> None:
    p.threads = 32
    words = torch.arange(rows, dtype=torch.int32) * 0x01020304
    p.call(
        p.shared("factors", (32, 4), torch.zeros(32, 4, dtype=torch.int32), slot=True, out=True),
        p.shared("scales", (rows,), words, slot=True),
    )


@case(text.place_factors_from, first=(0, 128))
def place_factors_from(p: Probe, first: int) -> None:
    p.threads = 32
    words = torch.arange(256, dtype=torch.int32) * 0x01020304
    p.call(
        p.shared("factors", (32, 4), torch.zeros(32, 4, dtype=torch.int32), slot=True, out=True),
        p.shared("scales", (256,), words, slot=True), p.dim("first", first),
    )  # fmt: skip


@case(text.store_scores, length=(128, 170, 300), dtype=SCORES)
def store_scores(p: Probe, length: int, dtype: torch.dtype) -> None:
    lengths = _integers(p, "length", [length, *[0] * 31], out=False)
    p.call(_logits(p, 3, 1, dtype=dtype), _given(p, "logit"), lengths, p.dim("seq", 2), p.dim("key", 128))


@case(text.store_query, query=(1, 3), dtype=SCORES)
def store_query(p: Probe, query: int, dtype: torch.dtype) -> None:
    lengths = _integers(p, "length", [0, 170, 300, 0] * 8, out=False)
    sizes = (p.dim("seq", 2), p.dim("query", query), p.dim("next_n", 3), p.dim("key", 128))
    p.call(_logits(p, 3, 3, dtype=dtype), _given(p, "logit"), lengths, *sizes)


@case(text.store_row, compressed=(0, 1), dtype=SCORES)
def store_row(p: Probe, compressed: int, dtype: torch.dtype) -> None:
    windows = (
        _integers(p, text, value, 2, out=False) for text, value in (("begin", [0, 140]), ("size", [260, 70]))
    )
    sizes = (p.dim("row", 5), p.dim("key", 128), p.dim("compressed", compressed))
    p.call(_logits(p, 9, dtype=dtype), _given(p, "logit"), *windows, 1, *sizes)
