"""How outputs of `compress_rows` are judged: drawn inputs, the reference, tolerances, workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dsl_kernels.kernels.compress_rows.problem import PROBLEM, WORDS
from dsl_kernels.problems.base import Comparison
from dsl_kernels.problems.layouts import (
    E4M3_MAX,
    INDEX_DIM,
    LATENT_DIM,
    ROPE_DIM,
    V4_FP8_DIMS,
    V4_GROUP,
    V4_ROW_BYTES,
    pack_index_keys,
    pack_v4_pages,
)

from . import Oracle, Workload


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    """Draw windows of one sequence from its beginning on, or inside it, in slots of any order.

    The last of several rows has no slot.
    """
    p, device = workload.params, generator.device
    rows, dim, ratio, page = p["rows"], p["dim"], p["ratio"], p["page_size"]
    # A workload that is drawn at another dim also has whole parts.
    parts = max(1, p["width"] // dim)
    # The first window of a sequence lacks the tokens before the sequence.
    first = int(p.get("sequence") == "inside")
    tokens, span, width = (first + rows) * ratio, parts * ratio, parts * dim

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)

    # As in an engine's state: scores after values, token by token, and tokens in any order.
    state = normal(tokens, 2 * width)
    place = torch.randperm(tokens, generator=generator, device=device).int()
    number = torch.arange(first, first + rows, device=device, dtype=torch.int32)
    ends = (number[:, None] + 1) * ratio
    at = ends - span + torch.arange(span, device=device)
    gap = 3 if workload.tier == "edge" else 0
    windows = torch.full((rows, span + gap), tokens + 7, dtype=torch.int32, device=device)[:, :span]
    windows.copy_(torch.where(at < 0, -1, place[at.clamp(min=0)]))
    pages = -(-rows // page) + 1
    slots = torch.randperm(pages * page, generator=generator, device=device)[:rows].int()
    slots[max(1, rows - 1) :] = -1
    positions = number * ratio % p.get("angles", 4096)
    angles = torch.rand(p.get("angles", 4096), ROPE_DIM // 2, generator=generator, device=device) * 6.3
    weight = normal(dim) * 0.2 + 1.0
    # One group of zeros, and one group of tiny values.
    weight[:V4_GROUP], weight[V4_GROUP : 2 * V4_GROUP] = 0.0, 1e-6
    return {
        "kv": state[:, :width], "scores": state[:, width:], "ape": normal(ratio, width), "weight": weight,
        "windows": windows, "positions": positions, "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=1),
        "row_slots": slots, "eps": 1e-6, "page_size": page, "pages": pages, "page_words": page * WORDS[dim],
        "dim": dim,
    }  # fmt: skip


def compressed(inputs: Mapping[str, Any]) -> torch.Tensor:
    """The rows [rows, dim] in float64, before they are rounded."""
    ape, weight, windows = inputs["ape"].double(), inputs["weight"].double(), inputs["windows"].long()
    ratio, dim = len(ape), len(weight)
    rows, span = windows.shape
    part = torch.arange(span, device=windows.device) // ratio
    columns = part[:, None] * dim + torch.arange(dim, device=windows.device)
    there = (windows >= 0)[..., None]
    tokens = windows.clamp(min=0)
    given = [
        inputs[name].double()[tokens].gather(2, columns.expand(rows, -1, -1)) for name in ("kv", "scores")
    ]
    bias = ape[torch.arange(span, device=windows.device) % ratio].gather(1, columns)
    share = torch.where(there, given[1] + bias, -torch.inf).softmax(dim=1)
    values = torch.where(there, share * given[0], 0.0).sum(dim=1)
    values = values * torch.rsqrt(values.square().mean(dim=1, keepdim=True) + inputs["eps"]) * weight
    cos, sin = inputs["cos_sin"].double()[inputs["positions"].long()].chunk(2, dim=1)
    even, odd = values[:, dim - ROPE_DIM :: 2], values[:, dim - ROPE_DIM + 1 :: 2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=2).flatten(1)
    return torch.cat((values[:, : dim - ROPE_DIM], turned), dim=1)


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The rows, and their bytes [rows, bytes of a row] as the caches' own quantisers write them.

    Rows without a slot are left out.
    """
    kept = inputs["row_slots"] >= 0
    rows = compressed({**inputs, **{name: inputs[name][kept] for name in ("windows", "positions")}})
    pack = pack_v4_pages if rows.shape[1] == LATENT_DIM else pack_index_keys
    packed = pack(rows.to(torch.bfloat16)[:, None]).reshape(len(rows), 4 * WORDS[rows.shape[1]])
    return {"rows": rows, "bytes": packed.contiguous()}


def rows_of(cache: torch.Tensor, slots: torch.Tensor, page: int, dim: int) -> torch.Tensor:
    """The bytes of some slots of a cache of words: the values of each row, then its scales."""
    first = V4_ROW_BYTES if dim == LATENT_DIM else INDEX_DIM
    flat, tail = cache.contiguous().view(torch.uint8), 4 * WORDS[dim] - first
    at, place = (slots // page).long(), (slots % page).long()[:, None]
    values = flat[at].gather(1, place * first + torch.arange(first, device=slots.device))
    scales = flat[at].gather(1, page * first + place * tail + torch.arange(tail, device=slots.device))
    return torch.cat((values, scales), dim=1)


def values_of(rows: torch.Tensor, dim: int) -> torch.Tensor:
    """The values of rows in float32, from their bytes."""
    if dim == INDEX_DIM:
        scale = rows[:, INDEX_DIM:].contiguous().view(torch.float32)
        return rows[:, :INDEX_DIM].contiguous().view(torch.float8_e4m3fn).float() * scale
    codes = rows[:, :V4_FP8_DIMS].contiguous().view(torch.float8_e4m3fn).float()
    powers = torch.exp2(rows[:, V4_ROW_BYTES:-1].float() - 127)
    kept = rows[:, V4_FP8_DIMS:V4_ROW_BYTES].contiguous().view(torch.bfloat16).float()
    return torch.cat(((codes.view(len(rows), -1, V4_GROUP) * powers[..., None]).flatten(1), kept), dim=1)


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Require values within a step of the format, a relative error <= 3e-2, and at most 1e-2 other bytes."""
    result = Comparison()
    slots = inputs["row_slots"][inputs["row_slots"] >= 0]
    rows, wanted = expected["rows"], expected["bytes"]
    dim = rows.shape[1]
    got = rows_of(outputs["cache"], slots, int(inputs["page_size"]), dim)
    values = values_of(got, dim).double()
    steps = torch.full_like(rows, 2**-7)
    fine = V4_FP8_DIMS if dim == LATENT_DIM else INDEX_DIM
    steps[:, :fine] = 2**-3
    # Below 2^-6 in the format, all steps have one size.
    group = V4_GROUP if dim == LATENT_DIM else INDEX_DIM
    most = rows[:, :fine].abs().reshape(len(rows), -1, group).amax(dim=2, keepdim=True).clamp(min=1e-4)
    floor = (most * (2**-8 / E4M3_MAX)).expand(-1, -1, group).reshape(len(rows), fine)
    limit = rows.abs() * steps
    limit[:, :fine] += floor
    outside = (values - rows).abs() > limit + 1e-6 * rows.abs().amax(dim=1, keepdim=True)
    result.demand("values are within a step", not bool(outside.any()), f"{int(outside.sum())} do not")
    norm = rows.norm()
    result.require("relative error", float((values - rows).norm() / norm) if norm > 0 else 0.0, 3e-2)
    other = float((got != wanted).double().mean()) if got.numel() else 0.0
    result.require("bytes that differ", other, 1e-2)
    if dim == LATENT_DIM:
        result.demand("the byte after the scales is 0", not bool(got[:, -1].any()))
    return result


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Two exponentials, a maximum and five other operations per channel and token of a window."""
    return {"float32": 8.0 * dims["rows"] * dims["ratio"] * dims["width"]}


def _case(name: str, tier: str, rows: int, dim: int, ratio: int, parts: int, page_size: int) -> Workload:
    sizes = {"rows": rows, "dim": dim, "ratio": ratio, "width": parts * dim, "page_size": page_size}
    return Workload(name, tier, "default", sizes)


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=(
        _case("tiny", "tiny", 5, LATENT_DIM, 4, 2, 2),
        _case("tiny_index", "tiny", 5, INDEX_DIM, 4, 2, 64),
        _case("long_windows", "edge", 3, LATENT_DIM, 128, 1, 2),
        _case("odd_pages", "edge", 9, LATENT_DIM, 4, 2, 53),
        _case("one_token", "edge", 4, INDEX_DIM, 1, 1, 3),
        _case("real_prompt", "real", 1024, LATENT_DIM, 4, 2, 64),
        _case("real_prompt_index", "real", 1024, INDEX_DIM, 4, 2, 64),
        _case("real_long", "real", 32, LATENT_DIM, 128, 1, 2),
    ),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
    units=lambda form, dims: ("rows", dims["rows"]),
)
