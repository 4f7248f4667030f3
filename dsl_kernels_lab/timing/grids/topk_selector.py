"""Selection on the GPU: rows of scores, a few of which are drawn; the others are shifted copies.

Calls are like those of the two steps: few rows, as in a decode step, go through a block table; more rows
select positions from column 0. Forms with options also write the scores of the ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from dsl_kernels import ops
from dsl_kernels.dtypes import DTYPES, DType
from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels.kernels.topk_selector.problem import FORMS, OPTIONS
from dsl_kernels_lab.steps import check as sampling
from dsl_kernels_lab.steps.drawing import part_of

from ...oracles.topk_selector import draw, options_of
from .. import bench, calibrate, measure
from . import Fixture, Grid, Point, Sample, facts

DECODE_ROWS = 512
"""The most rows of a decode step."""
# How many rows a check compares.
SAMPLED = 4


def _score(point: Point) -> DType:
    return DTYPES[FORMS[point.form]]


def _prepare(point: Point, seed: int) -> Fixture:
    p = point.params
    rows, length, k = p["rows"], p["len"], p["k"]
    generator = torch.Generator().manual_seed(seed)
    sets = min(16, bench.turns(rows * length * float(_score(point).bytes)))
    few = draw(p.get("scores", "normal"), min(rows, 64), length, generator).to(
        measure.DEVICE, _score(point).torch
    )
    logits = []
    for turn in range(sets):
        picked = torch.arange(rows, device=few.device) % len(few)
        logits.append(few[picked].roll(turn * 977 + 1, dims=1).contiguous())
    ends = torch.full((rows,), length, dtype=torch.int32, device=measure.DEVICE)
    out = torch.empty(rows, k, dtype=torch.int32, device=measure.DEVICE)
    options: dict[str, Any] = {}
    beside: dict[str, Any] = {}
    if point.form in OPTIONS.values():
        options = options_of({"k": k, "values": True}, rows, ends[:1])
        beside["values"] = torch.empty(rows, k, dtype=few.dtype, device=measure.DEVICE)
    paged = rows <= DECODE_ROWS
    pages = -(-length // PAGE) if paged else 1
    dims = {
        "rows": rows,
        "stride": length,
        "b": rows if paged else 1,
        "max_pages": pages,
        "k": k,
        "next_n": 1,
        "page_size": PAGE if paged else 0,
        "max_len": length,
        **{name: size for name, size in options.items() if isinstance(size, int)},
    }
    order = torch.randperm(sets * rows * pages, device=measure.DEVICE, dtype=torch.int32)
    tables = [part_of(order, turn, rows * pages).view(rows, pages) for turn in range(sets)]

    def calls(variant: str | None, launch: Mapping[str, int] | None) -> list[bench.Call]:
        call = partial(ops.topk_selector, row_ends=ends, k=k, out=out, variant=variant, **beside)
        if not paged:
            return [partial(call, scores, absolute=True) for scores in logits]
        return [
            partial(call, scores, block_table=table, page_size=PAGE)
            for scores, table in zip(logits, tables, strict=True)
        ]

    fixture = facts(point, calls, dims, lambda setting: [partial(calibrate.read, s, setting) for s in logits])

    def sample() -> Sample:
        picked = sampling._spread(rows, SAMPLED).to(out.device)
        given = {
            "logits": logits[0][picked],
            "row_starts": torch.zeros_like(ends[picked]),
            "row_ends": ends[picked],
            "block_table": tables[0][picked] if paged else ends.new_zeros(1, 1),
            "next_n": 1,
            "page_size": PAGE if paged else 0,
            "absolute": int(not paged),
            "k": k,
            **options,
        }
        outputs = {"indices": out, **beside}
        return Sample(
            given, (*outputs.values(),), lambda: {name: output[picked] for name, output in outputs.items()}
        )

    fixture.sample = sample
    return fixture


def _reads(point: Point, knobs: Mapping[str, Any]) -> dict[str, Any]:
    read = point.params["rows"] * point.params["len"] * float(_score(point).bytes)
    return {"read_bytes": read, "unique_bytes": read}


GRID = Grid(_prepare, usual={form: {"rows": 16, "len": 32768, "k": 2048} for form in FORMS}, reads=_reads)
