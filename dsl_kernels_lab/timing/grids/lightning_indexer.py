"""Scoring on the GPU: index caches of whole steps, pages in random order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from dsl_kernels import ops
from dsl_kernels.kernels.lightning_indexer import mxfp4, problem
from dsl_kernels.kernels.lightning_indexer.problem import PAGE, parts_of
from dsl_kernels.problems.binding import bind
from dsl_kernels_lab.steps import StepSize, draw
from dsl_kernels_lab.steps import check as sampling

from ...oracles import Workload
from ...oracles.lightning_indexer import make
from .. import bench, measure
from . import Fixture, Grid, Point, Sample, facts

# How many sequences, or rows of a prompt, a check compares; few, because the reference works in float64.
SAMPLED = 2


def _prepare(point: Point, seed: int) -> Fixture:
    p = point.params
    if parts_of(point.form)[1] != "plain":
        return _prepare_any(point, seed)
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


def _prepare_any(point: Point, seed: int) -> Fixture:
    """Inputs drawn by the problem, for each turn its own."""
    p, (mode, kind) = dict(point.params), parts_of(point.form)
    generator = torch.Generator(measure.DEVICE).manual_seed(seed)
    score = getattr(torch, problem.SCORES[kind])
    keys = p["skv"] if mode == "prefill" else p["b"] * p["len"]
    turns = 1 if mode == "prefill" else bench.turns(keys * float(_token(kind, p)))
    page = p.get("page_size", PAGE)
    if mode == "decode":
        p["pages"] = p["b"] * -(-p["len"] // page)
    sets = [make(Workload("point", "real", point.form, p), generator) for _ in range(turns)]
    shape: tuple[int, ...]
    if mode == "prefill":
        shape = (p["s"], -(-p["skv"] // 4) * 4)
    else:
        unit = p.get("block_size") or page
        shape = (p["b"], p.get("next_n", 1), sets[0]["block_table"].shape[1] * unit)
    outs = [{"logits": torch.empty(shape, dtype=score, device=measure.DEVICE)} for _ in sets]
    if sets[0].get("has_maxima"):
        most = (*shape[:-1], -(-shape[-1] // problem.BLOCK))
        outs = [outputs | {"maxima": torch.empty(most, device=measure.DEVICE)} for outputs in outs]
    op = ops.lightning_indexer_prefill if mode == "prefill" else ops.lightning_indexer
    bound = bind(problem.FORMS[point.form], sets[0] | _by_rows(outs[0]), _scalars(sets[0]))
    dims = {name: size for name, size in bound.dims.items() if not name.endswith("_stride")}
    if mode == "decode":
        dims["max_len"] = p["len"]

    def calls(variant: str | None, launch: Mapping[str, int] | None) -> list[bench.Call]:
        return [partial(op, **_as_called(s, o), variant=variant) for s, o in zip(sets, outs, strict=True)]

    ceiling = None
    if mode == "decode":
        per_page = page // unit
        pages = [{"pages": s["k_cache"].unflatten(1, (per_page, -1)).flatten(0, 1)} for s in sets]
        live = [s["block_table"][:, : -(-p["len"] // unit)].contiguous() for s in sets]
        ceiling = measure.gathers(pages, live)
    fixture = facts(point, calls, dims, ceiling)
    fixture.sample = partial(_few, mode, sets[0], outs[0])
    return fixture


def _scalars(drawn: Mapping[str, Any]) -> dict[str, int]:
    return {name: value for name, value in drawn.items() if isinstance(value, int)}


def _by_rows(outs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Outputs in the problem's shapes: one line of maxima per row."""
    return {name: out.flatten(0, 1) if name == "maxima" else out for name, out in outs.items()}


def _as_called(drawn: Mapping[str, Any], outs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The op's arguments for a form's inputs and outputs."""
    out = {"out": outs["logits"]}
    if "q_scales" in drawn and "k_cache" in drawn:
        return {n: value for n, value in drawn.items() if n != "sharing"} | out | {"scale_format": "mxfp4"}
    if "mx" in drawn:
        implied = ("sharing", "mx", "has_maxima", "maxima_rows", "maxima_columns")
        given = {name: value for name, value in drawn.items() if name not in implied}
        scales = "mx" if drawn["mx"] else "float32"
        return given | out | {"scale_format": scales, "maxima": outs.get("maxima")}
    return {name: bool(value) if name == "compressed" else value for name, value in drawn.items()} | out


def _few(mode: str, drawn: Mapping[str, Any], outs: Mapping[str, torch.Tensor]) -> Sample:
    out = outs["logits"]
    picked = sampling._spread(len(out), SAMPLED).to(out.device)
    of_rows = {"prefill": ("q", "weights", "k_start", "k_end"), "decode": ("q", "seq_lens", "block_table")}[
        mode
    ]
    if "q_scales" in drawn:
        of_rows = (*of_rows, "weights", *(("q_scales",) if mode == "prefill" else ()))
    given = {name: value[picked] if name in of_rows else value for name, value in drawn.items()}
    if mode == "decode":
        name = "q_scales" if "q_scales" in drawn else "weights"
        given[name] = drawn[name].unflatten(0, drawn["seq_lens"].shape)[picked].flatten(0, 1)
    return Sample(
        given, (*outs.values(),), lambda: _by_rows({name: out[picked] for name, out in outs.items()})
    )


def _rows(t: Mapping[str, torch.Tensor], out: torch.Tensor) -> Sample:
    rows = sampling._spread(len(out), SAMPLED).to(out.device)
    given = {
        "q": t["q_index"][rows],
        "k": t["k_index"],
        "k_scales": t["k_index_scales"],
        "weights": t["weights"][rows],
        "k_start": t["k_start"][rows],
        "k_end": t["k_end"][rows],
        "skip_below": 0,
    }
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
    """A placeholder for the attention cache, where only scoring is timed."""
    return {"kv": torch.empty(1, PAGE, 576, dtype=torch.bfloat16, device=measure.DEVICE)}


USUAL = {
    "decode": {"b": 16, "len": 32768, "heads": 64, "next_n": 1},
    "prefill": {"s": 4096, "skv": 32768, "heads": 64},
    **{
        problem.form_of("decode", kind): {
            "b": 16,
            "len": 32768,
            "index_heads": 64,
            "index_dim": dim,
            "page_size": PAGE,
        }
        for kind, dim in (("any", 64), ("any_bf16", 128), ("blocks", 128))
    },
    **{
        problem.form_of(mode, kind): {**sizes, "index_heads": 64}
        for kind in problem.FOUR_BITS
        for mode, sizes in (("decode", {"b": 16, "len": 32768}), ("prefill", {"s": 4096, "skv": 32768}))
    },
    **{
        problem.form_of("prefill", kind): {"s": 4096, "skv": 32768, "index_heads": 64, "index_dim": dim}
        for kind, dim in (("any", 64), ("any_bf16", 128))
    },
}
# Bytes of an index key with its scale.
TOKEN = 132


def _token(kind: str, p: Mapping[str, Any]) -> int:
    """Bytes of a key with its scales, by the kind of form and the sizes of a point."""
    if kind in problem.FOUR_BITS:
        return mxfp4.TOKEN_BYTES
    return TOKEN if kind == "plain" else int(p["index_dim"]) + 4


def _reads(point: Point, knobs: Mapping[str, Any]) -> dict[str, Any]:
    p, (mode, kind) = point.params, parts_of(point.form)
    token = _token(kind, p)
    if mode == "prefill":
        # Keys are read again for every few rows, but only queries and keys once must come from HBM.
        heads = p["heads" if kind == "plain" else "index_heads"]
        return {"unique_bytes": float(p["skv"] * token + p["s"] * heads * (token - 4))}
    read = float(p["b"] * p["len"] * token)
    if kind != "plain":
        page = p.get("page_size", PAGE)
        pages = p["b"] * -(-p["len"] // page)
        return {
            "read_bytes": read,
            "unique_bytes": read,
            "row_bytes": (p.get("block_size") or page) * token,
            "footprint_bytes": float(pages * page * token),
            "order": "random",
        }
    size = StepSize(batch=p["b"], context=p["len"], index_heads=p["heads"])
    return {
        "read_bytes": read, "unique_bytes": read, "row_bytes": PAGE * TOKEN,
        "footprint_bytes": float(measure.pool(size).pages * PAGE * TOKEN), "order": "random",
    }  # fmt: skip


GRID = Grid(_prepare, usual=USUAL, reads=_reads)
