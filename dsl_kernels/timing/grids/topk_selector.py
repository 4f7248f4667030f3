"""Selection on the GPU: rows of scores, of which a few are drawn and the others are shifted copies."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch

from ... import ops
from ...problems.topk_selector import draw
from .. import bench, calibrate, measure
from . import Case, Grid, Prepared, facts


def _prepare(case: Case, seed: int) -> Prepared:
    p = case.params
    rows, length, k = p["rows"], p["len"], p["k"]
    generator = torch.Generator().manual_seed(seed)
    sets = min(16, bench.turns(rows * length * 4.0))
    few = draw(p.get("scores", "normal"), min(rows, 64), length, generator).to(measure.DEVICE)
    logits = []
    for turn in range(sets):
        picked = torch.arange(rows, device=few.device) % len(few)
        logits.append(few[picked].roll(turn * 977 + 1, dims=1).contiguous())
    ends = torch.full((rows,), length, dtype=torch.int32, device=measure.DEVICE)
    out = torch.empty(rows, k, dtype=torch.int32, device=measure.DEVICE)
    dims = {
        "rows": rows,
        "stride": length,
        "b": 1,
        "max_pages": 1,
        "k": k,
        "next_n": 1,
        "page_size": 0,
        "max_len": length,
    }

    def calls(variant: str | None, launch: Mapping[str, int] | None) -> list[bench.Call]:
        return [partial(ops.topk_selector, s, ends, k, out=out, variant=variant) for s in logits]

    return facts(case, calls, dims, lambda setting: [partial(calibrate.read, s, setting) for s in logits])


GRID = Grid(_prepare)
