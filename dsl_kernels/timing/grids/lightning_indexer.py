"""Scoring on the GPU: index caches of whole steps, pages in random order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from ... import ops
from ...dsa import check as sampling
from ...dsa.steps import StepSize, draw
from ...problems.lightning_indexer import PAGE
from .. import bench, measure
from . import Fixture, Grid, Point, Sample, facts

# Sequences, or rows of a prompt, that a check compares: each is scored in float64.
SAMPLED = 2


def _prepare(point: Point, seed: int) -> Fixture:
    p = point.params
    if point.form == "prefill":
        size = StepSize("prefill", rows=p["s"], context=p["skv"], index_heads=p["heads"])
        tensors = draw(size, device=measure.DEVICE, seed=seed)[0].tensors
        args = [
            tensors[name] for name in ("q_index", "k_index", "k_index_scales", "weights", "k_start", "k_end")
        ]
        out = torch.empty(p["s"], -(-p["skv"] // 4) * 4, dtype=torch.float32, device=measure.DEVICE)
        dims = {"s": p["s"], "heads": p["heads"], "skv": p["skv"], "stride": out.shape[1]}

        def flat(variant: str | None, launch: Mapping[str, int] | None) -> list[bench.Call]:
            return [partial(ops.lightning_indexer_prefill, *args, out=out, variant=variant)]

        fixture = facts(point, flat, dims)
        fixture.sample = partial(_rows, tensors, out)
        return fixture
    next_n = p.get("next_n", 1)
    size = StepSize(batch=p["b"], context=p["len"], index_heads=p["heads"], next_n=next_n, heads=8, topk=64)
    turns = bench.turns(p["b"] * p["len"] * 132.0)
    size = measure.pool(size, turns)
    sets = draw(size, device=measure.DEVICE, seed=seed, sets=turns, given=_no_attention_cache())
    outs = [measure.logits(inputs) for inputs in sets]
    names = ("q_index", "k_index_cache", "weights", "seq_lens", "block_table")
    dims = {
        "b": p["b"],
        "next_n": next_n,
        "heads": p["heads"],
        "pages": size.pages,
        "max_pages": size.pages_per_sequence,
        "stride": outs[0].shape[-1],
        "max_len": p["len"],
    }

    def paged(variant: str | None, launch: Mapping[str, int] | None) -> list[bench.Call]:
        return [
            partial(ops.lightning_indexer, *(s.tensors[name] for name in names), out=o, variant=variant)
            for s, o in zip(sets, outs, strict=True)
        ]

    pages = [{"pages": s.tensors["k_index_cache"].view(size.pages, -1)} for s in sets]
    ceiling = measure.gathers(pages, measure.live_pages(sets))
    fixture = facts(point, paged, dims, ceiling)
    fixture.sample = partial(_sequences, sets[0].tensors, outs[0])
    return fixture


def _rows(t: Mapping[str, torch.Tensor], out: torch.Tensor) -> Sample:
    rows = sampling._spread(len(out), SAMPLED).to(out.device)
    given = {
        "q": t["q_index"][rows], "k": t["k_index"], "k_scales": t["k_index_scales"], "weights": t["weights"][rows],
        "k_start": t["k_start"][rows], "k_end": t["k_end"][rows], "skip_below": 0,
    }  # fmt: skip
    return Sample(given, (out,), lambda: {"logits": out[rows]})


def _sequences(t: Mapping[str, torch.Tensor], out: torch.Tensor) -> Sample:
    picked = sampling._spread(len(out), SAMPLED).to(out.device)
    cache, table = sampling._pages_in_use(t["k_index_cache"], t["block_table"][picked], t["seq_lens"][picked])
    given = {
        "q": t["q_index"][picked], "k_cache": cache, "weights": t["weights"][picked],
        "seq_lens": t["seq_lens"][picked], "block_table": table, "skip_below": 0,
    }  # fmt: skip
    return Sample(given, (out,), lambda: {"logits": out[picked]})


def _no_attention_cache() -> dict[str, torch.Tensor]:
    """Stands for the attention cache where only scoring is timed."""
    return {"kv": torch.empty(1, PAGE, 576, dtype=torch.bfloat16, device=measure.DEVICE)}


USUAL = {
    "decode": {"b": 16, "len": 32768, "heads": 64, "next_n": 1},
    "prefill": {"s": 4096, "skv": 32768, "heads": 64},
}
# Bytes of a key of the index, and its scale.
TOKEN = 132


def _reads(point: Point, knobs: Mapping[str, Any]) -> dict[str, Any]:
    p = point.params
    if point.form == "prefill":
        # Keys are read again for every few rows; what must come from the DRAM is queries and keys once.
        return {"unique_bytes": float(p["skv"] * TOKEN + p["s"] * p["heads"] * 128)}
    read = float(p["b"] * p["len"] * TOKEN)
    size = StepSize(batch=p["b"], context=p["len"], index_heads=p["heads"])
    return {
        "read_bytes": read, "unique_bytes": read, "row_bytes": PAGE * TOKEN,
        "footprint_bytes": float(measure.pool(size).pages * PAGE * TOKEN), "order": "random",
    }  # fmt: skip


GRID = Grid(_prepare, usual=USUAL, reads=_reads)
