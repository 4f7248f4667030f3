"""How outputs of `topk_selector` are judged: drawn inputs, the reference, tolerances, workloads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from dsl_kernels.dtypes import DTYPES
from dsl_kernels.kernels.topk_selector.problem import FORMS, OPTIONS, PROBLEM, SCORES, lines_of
from dsl_kernels.problems.base import Comparison

from . import Oracle, Workload


def draw(kind: str, rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Draw scores [rows, columns] in fp32, of a distribution that is hard for selection kernels.

    normal; tight: shared leading bits; ties: multiples of 0.25; equal; outlier; negative; zeros: +0 and -0
    mixed;
    bucket: most scores in one histogram bin; steps: two values; levels: a tenth is just above the others, and
    the others are equal; shelf: a third is equal and below zero, with few scores above; specials: NaN and
    infinities inside; ascending; descending; blocks: one word of 32 columns in 16 is larger than the others;
    sampled: exactly the words are larger that a sample of one word in 16 reads; sampled_ties: these words
    have few values, and all other scores are close together below; thinly_sampled_ties: the same for a
    cluster's sample of one word in 64;
    thinly_sampled_few: a few equal keys of that sample are the largest, with twice as many that it does not
    read;
    masked: -inf after the first 3000 columns;
    far_below: most scores are below all numbers of fp16, in one bin.
    """
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float32, device=generator.device)
    if kind == "tight":
        return 1.0 + 1e-3 * x
    if kind == "ties":
        return (x * 4).round() / 4
    if kind == "equal":
        return torch.full_like(x, 0.5)
    if kind == "outlier":
        return torch.full_like(x, -1.0).index_fill_(
            1, torch.randint(columns, (1,), generator=generator, device=x.device), 1e30
        )
    if kind == "negative":
        return -x.abs() - 1e-3
    if kind == "zeros":
        return torch.where(x > 0, 0.0, -0.0).to(x.dtype)
    if kind == "bucket":
        return torch.where(x > 3.0, x, 1.0 + x.abs() * 1e-6)
    if kind == "steps":
        return (x > 0).float()
    if kind == "levels":
        return torch.where(x > 1.3, 1.0 + 1e-3 * x, 1.0).to(x.dtype)
    if kind == "shelf":
        return torch.where(x > 2.5, x - 2.5, torch.where(x > 0.5, -1.0, x - 2.0)).to(x.dtype)
    if kind == "specials":
        x[x > 2.5] = float("nan")
        x[x < -2.5] = float("-inf")
        x[(x > 2.2) & (x <= 2.5)] = float("inf")
        return x
    if kind in ("ascending", "descending"):
        return x.sort(dim=1, descending=kind == "descending").values
    if kind == "blocks":
        return torch.where(torch.arange(columns, device=x.device) // 32 % 16 == 5, x + 8.0, x)
    if kind in ("sampled", "sampled_ties", "thinly_sampled_ties", "thinly_sampled_few"):
        every, warps = (64, 32) if kind.startswith("thinly") else (16, 16)
        word = torch.arange(columns, device=x.device) // 32
        run, inside = word // every, word % every
        looked_at = inside == (run % warps + 5 * (run // warps)) % every
        if kind == "sampled":
            return torch.where(looked_at, x + 8.0, x)
        if kind == "thinly_sampled_few":
            lane = torch.arange(columns, device=x.device) % 32
            few = looked_at & (lane % 17 == 0) | (inside == 40) & (lane % 9 == 0)
            return torch.where(few, -1.0, -9.1 + 2e-5 * x).to(x.dtype)
        return torch.where(looked_at, -1.0 - (x.abs() * 4).round() / 4, -9.1 + 2e-5 * x)
    if kind == "far_below":
        return torch.where(x > 0.8, x, -65536.0 * (1.05 + x.abs()))
    if kind == "masked":
        x[:, 3000:] = float("-inf")
    return x


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    p = workload.params
    device = generator.device
    if {"rows", "len"} & p.keys():
        # Sizes of a point: rows of one length, from column 0.
        listed = p.get("lens", [64])
        p = {**p, "lens": [p.get("len", max(listed))] * p.get("rows", len(listed)), "starts": None}
    lens = torch.tensor(p["lens"], dtype=torch.int32, device=device)
    starts = torch.tensor(p.get("starts") or [0] * len(p["lens"]), dtype=torch.int32, device=device)
    rows, ends = len(lens), starts + lens
    stride = int(ends.max()) + p.get("tail", 37)
    if not p.get("strided"):
        stride = -(-stride // 4) * 4
    logits = draw(p.get("scores", "normal"), rows, stride, generator)
    logits = logits.to(DTYPES[FORMS[workload.form]].torch)
    columns = torch.arange(stride, device=device)
    outside = (columns >= ends[:, None]) | (columns < starts[:, None])
    if p.get("garbage", True):
        coin = torch.rand(int(outside.sum()), generator=generator, dtype=torch.float32, device=device)
        logits[outside] = torch.where(coin < 0.5, float("nan"), float("inf")).to(logits.dtype)
    # torch's vectorised loop and its scalar loop round a NaN to different 16-bit patterns: bits would depend
    # on layout.
    logits.masked_fill_(logits.isnan(), float("nan"))
    page, next_n = p.get("page_size", 0), p.get("next_n", 1)
    mapped = p.get("mapped")
    lines = torch.tensor(mapped, device=device) if mapped else torch.arange(rows, device=device) // next_n
    sequences = int(lines.max()) + 1 if rows else 0
    max_pages = -(-int(lens.max()) // page) + 1 if page else 1
    table = torch.randint(
        -(2**31), 2**31 - 1, (sequences, max_pages), generator=generator, dtype=torch.int64, device=device
    ).to(torch.int32)
    if page:
        for sequence in range(sequences):
            used = -(-max(lens[lines == sequence].tolist(), default=0) // page)
            order = torch.randperm(p.get("pages", 4096), generator=generator, device=device)
            table[sequence, :used] = order[:used].to(torch.int32)
    drawn = {
        "logits": logits,
        "row_starts": starts,
        "row_ends": ends,
        "block_table": table,
        "next_n": max(rows, 1) if mapped else next_n,
        "page_size": page,
        "absolute": p.get("absolute", 0),
        "k": p["k"],
    }
    if workload.form in OPTIONS.values():
        drawn |= options_of(p, rows, lines)
    return {**drawn, **_spread(drawn)} if p.get("strided") else drawn


def options_of(p: Mapping[str, Any], rows: int, lines: torch.Tensor) -> dict[str, Any]:
    """The operands of options, and the extents of optional outputs."""
    given = {"sequences": "mapped" in p, "offsets": "offsets" in p}
    given |= {name: bool(p.get(name)) for name in ("values", "positions")}
    extents: dict[str, int] = {}
    for one in ("value", "position"):
        extents |= dict(
            zip(
                (f"{one}_rows", f"{one}_columns"), (rows, p["k"]) if given[f"{one}s"] else (1, 1), strict=True
            )
        )
    return {
        "row_to_sequence": (lines if given["sequences"] else lines.new_zeros(1)).int(),
        "offsets": torch.tensor(p.get("offsets", [0]), dtype=torch.int32, device=lines.device),
        "ties_higher": p.get("ties_higher", 0),
        **{f"has_{name}": int(there) for name, there in given.items()},
        **extents,
    }  # fmt: skip


def _spread(drawn: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The scores and the block table as views of wider rows.

    The alignment to 16 bytes changes from row to row of scores.
    """
    spread = {}
    for name, value, gap in (("logits", math.inf, 3), ("block_table", -1, 2)):
        inner = drawn[name]
        wide = inner.new_full((inner.shape[0], inner.shape[1] + 2 * gap), value)
        spread[name] = wide[:, gap : gap + inner.shape[1]].copy_(inner)
    return spread


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Positions from a stable descending sort, in ascending order and mapped through the block table.

    With options, also the outputs that a call asks for.
    """
    logits, k = inputs["logits"], int(inputs["k"])
    rows, page = logits.shape[0], int(inputs["page_size"])
    out = torch.full((rows, k), -1, dtype=torch.int32, device=logits.device)
    raw, values = out.clone(), torch.full((rows, k), -math.inf, dtype=logits.dtype, device=logits.device)
    lines = lines_of(inputs, rows)
    for row in range(rows):
        start, end = (
            max(0, int(inputs["row_starts"][row])),
            min(logits.shape[1], int(inputs["row_ends"][row])),
        )
        count = min(k, end - start)
        if count <= 0:
            continue
        scores = logits[row, start:end].float() + 0.0
        if inputs.get("ties_higher"):
            order = end - start - 1 - torch.sort(scores.flip(0), descending=True, stable=True).indices
        else:
            order = torch.sort(scores, descending=True, stable=True).indices
        positions = order[:count].sort().values
        values[row, :count] = logits[row, start + positions]
        positions = positions + start * int(inputs["absolute"])
        if inputs.get("has_offsets"):
            positions = positions + int(inputs["offsets"][row])
        raw[row, :count] = positions.to(torch.int32)
        if page:
            table = inputs["block_table"][lines[row]]
            positions = table[positions // page].long() * page + positions % page
        out[row, :count] = positions.to(torch.int32)
    beside = {"values": values, "positions": raw}
    return {"indices": out, **{name: beside[name] for name in beside if inputs.get(f"has_{name}")}}


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Require equality with the reference at every slot, without a tolerance."""
    result = Comparison()
    for name, wanted in expected.items():
        got = outputs[name]
        unlike = (got != wanted) & ~(got.isnan() & wanted.isnan())
        wrong = unlike.any(dim=1).nonzero().flatten().tolist()
        detail = ""
        if wrong:
            row = wrong[0]
            slot = int(unlike[row].nonzero()[0])
            detail = (
                f"{len(wrong)} of {len(wanted)} rows differ; row {row} slot {slot} is "
                f"{got[row, slot].item()}, expected {wanted[row, slot].item()}"
            )
        result.demand(f"{name} equal the stable reference", not wrong, detail)
    return result


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Integer work only: one operation per score and pass."""
    return {"int32": 3.0 * dims["rows"] * dims["max_len"]}


def _rows(name: str, tier: str, lens: list[int], k: int, **extra: Any) -> Workload:
    return Workload(name, tier, "default", {"lens": lens, "k": k, **extra})


_DISTRIBUTIONS = (
    "normal",
    "tight",
    "ties",
    "equal",
    "outlier",
    "negative",
    "zeros",
    "bucket",
    "steps",
    "specials",
    "sampled",
)

_WORKLOADS = (
    _rows("tiny", "tiny", [300], 64),
    _rows("tiny_paged", "tiny", [190, 20], 32, page_size=64),
    _rows("ragged", "edge", [0, 1, 63, 64, 65, 511, 512, 513, 3000], 512),
    _rows("starts", "edge", [700, 5, 0, 900], 128, starts=[3, 0, 17, 250]),
    _rows("columns", "edge", [700, 5, 0, 900], 128, starts=[3, 1, 17, 250], absolute=1),
    *(
        _rows(
            f"strided_{kind}",
            "edge",
            [17001, 5003, 900, 0, 18002],
            500,
            starts=[0, 0, 3, 1, 32],
            strided=True,
            tail=0,
            scores=kind,
        )
        for kind in ("ascending", "descending")
    ),
    _rows("strided_paged", "edge", [998, 5001, 1000, 0, 4500], 256, page_size=64, next_n=2, strided=True),
    _rows("k1", "edge", [1000, 1, 2], 1),
    _rows("mtp3_paged", "edge", [998, 999, 1000, 0, 0, 1], 256, page_size=64, next_n=3),
    *(_rows(f"scores_{kind}", "edge", [5000, 2500], 512, scores=kind) for kind in _DISTRIBUTIONS),
    _rows("k2048", "edge", [2047, 2048, 2049, 6000], 2048),
    _rows("k4096", "edge", [4095, 4097, 9000], 4096),
    _rows("k4096_ties", "edge", [9000, 4500], 4096, scores="ties", page_size=64),
    *(
        _rows(f"real_{kind}", "real", [32768, 131072, 4096, 2049], 2048, scores=kind)
        for kind in _DISTRIBUTIONS
    ),
    _rows("real_64x128k", "real", [131072] * 64, 2048, page_size=64, pages=11923, tail=0),
    _rows("real_1m", "real", [1 << 20], 2048, scores="ties"),
)
# Workloads with options, which plain variants do not take.
_WITH_OPTIONS = (
    _rows("offsets", "edge", [700, 5, 0, 900], 128, starts=[3, 0, 17, 250], offsets=[0, -3, 9, 100000]),
    _rows("offsets_columns", "edge", [40, 900], 64, starts=[3, 5], absolute=1, offsets=[7, 70], values=1),
    _rows(
        "mapped_paged", "edge", [998, 5001, 70, 0, 1], 256, page_size=64, mapped=[2, 0, 2, 1, 0], positions=1
    ),
    _rows("values", "edge", [700, 5, 0, 3000], 128, starts=[3, 0, 17, 250], scores="specials", values=1),
    _rows("values_paged", "edge", [998, 5001, 70], 256, page_size=64, scores="zeros", values=1, positions=1),
    *(
        _rows(f"higher_{kind}", "edge", [5000, 2500, 300], k, starts=[3, 0, 7], scores=kind, ties_higher=1)
        for kind, k in (("ties", 512), ("zeros", 512), ("equal", 512), ("steps", 512), ("specials", 20))
    ),
    _rows(
        "real_options", "real", [32768, 131072, 4096, 2049], 2048, scores="ties", page_size=64, pages=2048,
        mapped=[3, 0, 1, 2], values=1, positions=1, ties_higher=1,
    ),
    _rows("real_offsets", "real", [32768, 70000], 2048, starts=[100, 7], offsets=[5, 70000], values=1),
)  # fmt: skip
# Workloads that are listed in 16 bits too. A variant for 16 bits can draw any of them.
_OF_HALVES = (
    "tiny_paged",
    "ragged",
    "strided_ascending",
    "scores_specials",
    "scores_zeros",
    "k2048",
    "real_normal",
)


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=(
        *_WORKLOADS,
        *(
            replace(w, name=f"{form}_{w.name}", form=form)
            for form in ("bf16", "fp16")
            for w in _WORKLOADS
            if w.name in _OF_HALVES
        ),
        *(replace(w, form=OPTIONS["default"]) for w in _WITH_OPTIONS),
    ),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
    units=lambda form, dims: ("rows", dims["rows"]),
    forms_share_workloads=lambda form, other: form in SCORES or other in OPTIONS.values(),
)
