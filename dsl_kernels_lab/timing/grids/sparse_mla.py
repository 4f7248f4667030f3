"""Attention on the GPU: caches of whole steps and random ids; tuning also tries other numbers of splits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from dsl_kernels import ops
from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels.kernels.sparse_mla.forms import EXTRA, PAGED, ROPELESS, split_cache, split_pages
from dsl_kernels.kernels.sparse_mla.problem import ROW_BYTES
from dsl_kernels.kernels.sparse_mla.program.common import head_block
from dsl_kernels.problems.layouts import (
    LATENT_DIM,
    NOPE8_TOKEN_BYTES,
    ROPE_DIM,
    V4_ROW_BYTES,
    V41_TOKEN_BYTES,
    pack_v4_pages,
    pack_v41_pages,
)
from dsl_kernels_lab.steps import StepInputs, StepSize, draw
from dsl_kernels_lab.steps import check as sampling
from dsl_kernels_lab.steps.drawing import part_of

from ...oracles.sparse_mla import DATASET_SM_SCALE, draw_indices
from .. import bench, measure
from . import Fixture, Grid, Point, Sample, facts

# How many queries a check compares.
SAMPLED = 4
# Tuning tries these multiples of the launch rule's number of splits.
SPLIT_FACTORS = (0.5, 1.0, 2.0)
# A query of DeepSeek-V4 reads 374 KB, so a rotation that exceeds the L2 has more turns than memory has room
# for caches. The turns share caches, and each turn has the ids of other rows, so that none finds its rows in
# the L2.
MOST_V4_TURNS = 600


def _row_bytes(form: str) -> int:
    """Bytes per row of the cache."""
    return ROW_BYTES.get(form, 2 * (LATENT_DIM + (ROPE_DIM if form == "bf16" else 0)))


def _ids_each(p: Mapping[str, Any]) -> int:
    """Ids per query, in all scopes."""
    return int(p.get("topk", 2048) + p.get("extra_topk", 0))


def _prepare(point: Point, seed: int) -> Fixture:
    if point.form in PAGED:
        return _prepare_pages(point, seed)
    p = point.params
    t, heads, n, topk = p["t"], p["heads"], p["pages"] * PAGE, p.get("topk", 2048)
    sets = bench.turns(t * topk * float(_row_bytes(point.form)))
    size = StepSize(
        batch=t,
        context=PAGE,
        heads=heads,
        kv="fp8" if point.form in ("fp8", "nope8") else "bf16",
        pages=p["pages"],
        topk=64,
    )
    index_cache = torch.empty(1, PAGE, 1, 132, dtype=torch.uint8, device=measure.DEVICE)
    steps = draw(size, device=measure.DEVICE, seed=seed, sets=sets, given={"k_index_cache": index_cache})
    drawn: Sequence[sampling.AttentionInputs] = (
        [_Ropeless(s) for s in steps] if point.form == "nope8" else steps
    )
    ids = [_ids(p.get("ids", "random"), t, topk, n, seed, turn) for turn in range(sets)]
    lse = partial(torch.empty, t, heads, dtype=torch.float32, device=measure.DEVICE)
    outs = [(torch.empty_like(s.tensors["q_nope"]), lse()) for s in drawn]
    dims = {"t": t, "heads": heads, "n": n, "topk": topk, "ckv_stride": 512, "kpe_stride": 64}
    rope = point.form not in ROPELESS

    def cache_rows(inputs: sampling.AttentionInputs) -> dict[str, torch.Tensor]:
        return {name: rows for name, rows in inputs.cache_rows().items() if rope or name != "kpe"}

    # With its own workspace a graph does not zero counters before each launch (3 us), as it would have to
    # once the many captures of a sweep have used up those that are zero already.
    workspace = ops.Workspace()

    def calls(variant: str | None, launch: Mapping[str, int] | None) -> list[bench.Call]:
        return [
            partial(
                ops.sparse_mla,
                s.tensors["q_nope"],
                s.tensors["q_pe"] if rope else None,
                s.tensors["kv"],
                i,
                kpe=s.tensors.get("kpe") if rope else None,
                sm_scale=DATASET_SM_SCALE,
                row_format=point.form,
                out=o[0],
                lse=o[1],
                variant=variant,
                splits=(launch or {}).get("splits"),
                workspace=workspace,
            )
            for s, i, o in zip(drawn, ids, outs, strict=True)
        ]

    fixture = facts(point, calls, dims, measure.gathers([cache_rows(s) for s in drawn], ids))
    fixture.sample = partial(_rows, drawn[0], ids[0], *outs[0], rope=rope)
    if point.form == "bf16":
        fixture.baseline = [
            {**s.cache_rows(), "q_nope": s.tensors["q_nope"], "q_pe": s.tensors["q_pe"], "indices": i}
            for s, i in zip(drawn, ids, strict=True)
        ]
        fixture.time_baseline = partial(measure.time_baseline, fixture.baseline, DATASET_SM_SCALE)
    return fixture


# Form -> how to pack a page, bytes per gathered row, and rows per page (with DeepSeek-V4 one of them holds
# the scales).
_PAGES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], int, int]] = {
    "v4": (pack_v4_pages, V4_ROW_BYTES, PAGE + 1),
    "v41": (pack_v41_pages, V41_TOKEN_BYTES, PAGE),
}


def _prepare_pages(point: Point, seed: int) -> Fixture:
    """DeepSeek-V4 or V4.1: as many pages of the window as of the compressed cache, in one allocation."""
    p = point.params
    pack, row_bytes, rows_of_page = _PAGES[point.form]
    token_bytes = _row_bytes(point.form)
    t, heads, pages = p["t"], p["heads"], p["pages"]
    widths, n = (p.get("topk", 128), p.get("extra_topk", 512)), p["pages"] * PAGE
    generator = torch.Generator(measure.DEVICE).manual_seed(seed)
    normal = partial(torch.randn, generator=generator, device=measure.DEVICE)

    turns = bench.turns(t * _ids_each(p) * float(token_bytes), limit=MOST_V4_TURNS)
    packed = [pack(normal(2 * pages, PAGE, LATENT_DIM)) for _ in range(min(turns, bench.MAX_TURNS))]

    def turn(number: int) -> dict[str, Any]:
        cache = packed[number % len(packed)]
        ids = [_ids(p.get("ids", "random"), t, width, n, seed + i, number) for i, width in enumerate(widths)]
        return {
            "q_nope": normal(t, heads, LATENT_DIM).bfloat16(),
            "kv": cache[:pages],
            "indices": ids[0],
            "extra_kv": cache[pages:],
            "extra_indices": ids[1],
            "out": torch.empty(t, heads, LATENT_DIM, dtype=torch.bfloat16, device=measure.DEVICE),
            "lse": torch.empty(t, heads, dtype=torch.float32, device=measure.DEVICE),
        }

    drawn = [turn(i) for i in range(turns)]
    workspace = ops.Workspace()

    def calls(variant: str | None, launch: Mapping[str, int] | None) -> list[bench.Call]:
        options = {
            "sm_scale": DATASET_SM_SCALE,
            "row_format": point.form,
            "variant": variant,
            "splits": (launch or {}).get("splits"),
            "workspace": workspace,
        }
        return [partial(ops.sparse_mla, q_pe=None, **given, **options) for given in drawn]

    def rows_of(given: Mapping[str, Any]) -> torch.Tensor:
        """The gathered rows of both scopes."""
        scopes = (given["indices"], 0), (given["extra_indices"], pages * rows_of_page)
        between = rows_of_page - PAGE
        return torch.cat([ids + ids // PAGE * between + first for ids, first in scopes], dim=1).int()

    def sample() -> Sample:
        first = drawn[0]
        rows = sampling._spread(t, SAMPLED).to(measure.DEVICE)
        scopes = {
            f"{scope}{name}": value
            for scope in ("", EXTRA)
            for name, value in {
                **split_pages("kv", point.form, first[f"{scope}kv"])[1],
                "indices": first[f"{scope}indices"][rows],
            }.items()
        }
        sink = torch.full((heads,), -math.inf, device=measure.DEVICE)
        given = {
            "q_rows": first["q_nope"][rows],
            **scopes,
            "attn_sink": sink,
            "sm_scale": DATASET_SM_SCALE,
            "lse_scale": 1.0,
        }
        outputs = {name: first[name] for name in ("out", "lse")}
        return Sample(given, (*outputs.values(),), lambda: {name: out[rows] for name, out in outputs.items()})

    row_stride = drawn[0]["kv"].stride(0)
    dims = {
        "t": t, "heads": heads, "topk": widths[0], "extra_topk": widths[1],
        **{f"{scope}pages": pages for scope in ("", EXTRA)},
        **{f"{scope}page_bytes": PAGE * token_bytes for scope in ("", EXTRA)},
        **{f"{scope}kv_pages_stride": row_stride for scope in ("", EXTRA)},
    }  # fmt: skip
    caches = [
        {"rows": given["kv"].as_strided((2 * pages * rows_of_page, row_bytes), (row_bytes, 1))}
        for given in drawn
    ]
    fixture = facts(point, calls, dims, measure.gathers(caches, [rows_of(given) for given in drawn]))
    fixture.sample = sample
    return fixture


class _Ropeless:
    """Inputs of a step over the same fp8 tokens without rope; no step has such, so `steps` draws none."""

    def __init__(self, inputs: StepInputs) -> None:
        tokens = inputs.tensors["kv"][..., :NOPE8_TOKEN_BYTES].contiguous()
        self.tensors = {**inputs.tensors, "kv": tokens}
        self.sm_scale, self.lse_base = inputs.sm_scale, inputs.lse_base

    def cache_rows(self) -> dict[str, torch.Tensor]:
        """The cache as an operand of the sparse_mla problem."""
        return {"kv_cache": split_cache(self.tensors["kv"], None)[1]["kv_cache"]}


def _rows(
    inputs: sampling.AttentionInputs, ids: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, *, rope: bool
) -> Sample:
    rows = sampling._spread(len(out), SAMPLED).to(out.device)
    given = sampling._attention(inputs, rows, ids[rows])
    if not rope:
        given["q_rows"] = given["q_nope"]
    return Sample(given, (out, lse), lambda: {"out": out[rows], "lse": lse[rows]})


def _ids(pattern: str, t: int, topk: int, n: int, seed: int, turn: int) -> torch.Tensor:
    """Ids on the GPU; with the random pattern, two turns share no rows as long as the cache has enough.

    Where the queries of a turn must share rows, each pass over the cache has its own order: with the same
    order, a query would find in the L2 what another query has just read.
    """
    if pattern == "random":
        generator = torch.Generator(measure.DEVICE).manual_seed(seed)
        shuffle = partial(torch.randperm, n, generator=generator, device=measure.DEVICE, dtype=torch.int32)
        if t * topk <= n:
            return part_of(shuffle(), turn, t * topk).view(t, topk)
        generator.manual_seed(seed + turn)
        each = n // topk
        passes = [shuffle()[: each * topk].view(each, topk) for _ in range(-(-t // each))]
        return torch.cat(passes)[:t]
    return draw_indices(pattern, t, topk, n, torch.Generator().manual_seed(seed + turn)).to(measure.DEVICE)


def _launches(point: Point, default: Mapping[str, int], knobs: Mapping[str, Any]) -> list[dict[str, int]]:
    """Numbers of splits around the launch rule's, in whole clusters."""
    cluster, splits = knobs.get("cluster", 1), default["splits"]
    limit = _ids_each(point.params) // 64 * knobs.get("slices", 1) // cluster
    near = {cluster * max(1, min(limit, round(splits * factor / cluster))) for factor in SPLIT_FACTORS}
    return [{"splits": other} for other in sorted(near - {splits})]


# The decode step in which attention is timed: its most rows, and the tokens of a sequence.
STEP_ROWS = 128
STEP_CONTEXT = 32768


def _step(point: Point, seed: int) -> dict[str, Any] | None:
    p = point.params
    if p["t"] > STEP_ROWS or "ids" in p or point.form in ROPELESS:
        return None
    size = StepSize(
        batch=p["t"], context=STEP_CONTEXT, heads=p["heads"], topk=p.get("topk", 2048),
        kv="fp8" if point.form == "fp8" else "bf16",
    )  # fmt: skip
    return {"context": STEP_CONTEXT, **measure.time_marginal(measure.step_sets(size, seed))}


def _reads(point: Point, knobs: Mapping[str, Any]) -> dict[str, Any]:
    p = point.params
    row, tokens, rows = _row_bytes(point.form), p["pages"] * PAGE, p["t"] * _ids_each(p)
    unique = tokens * (1.0 - (1.0 - 1.0 / tokens) ** rows)
    # Each block of heads is its own CTA and fetches the rows again.
    blocks = p["heads"] // head_block(SimpleNamespace(**{**knobs, "heads": p["heads"]}))
    return {
        "read_bytes": float(rows * row * blocks), "unique_bytes": unique * row, "row_bytes": row,
        "footprint_bytes": float(tokens * row), "order": "random",
    }  # fmt: skip


USUAL = {"t": 64, "heads": 16, "pages": 4096, "topk": 2048}
USUAL_V4 = {"t": 64, "heads": 16, "pages": 4096, "topk": 128, "extra_topk": 512}
GRID = Grid(
    _prepare,
    _launches,
    _step,
    {**dict.fromkeys(("bf16", "nope", "fp8", "nope8"), USUAL), **dict.fromkeys(PAGED, USUAL_V4)},
    _reads,
)
