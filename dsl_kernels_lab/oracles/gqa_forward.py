"""How outputs of `gqa_forward` are judged: drawn inputs, the reference, tolerances, workloads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from dsl_kernels.kernels.gqa_forward.problem import DTYPES, FORMS, PROBLEM
from dsl_kernels.problems.base import Comparison

from . import Oracle, Workload

# Limits of the relative error of `out`. The kernels round the weights before the second product, and the
# result after it. Rounding to p significant bits moves a vector of many magnitudes by 0.196 * 2^(1 - p) of
# its norm (the root mean square of a uniform error of one unit, with mantissas spread by their logarithm):
# 1.9e-4 in float16 (p = 11) and 1.53e-3 in bfloat16 (p = 8). The two roundings are independent: 2.7e-4 and
# 2.2e-3. The limits leave as much room above both.
LIMITS = {"fp16": 5e-4, "bf16": 4e-3}
# A row has few elements, so the errors of rows spread around that of the whole.
ROW_LIMIT = 4
# The reference of a larger problem covers some heads only.
REFERENCE_PRODUCTS = 1 << 30
SAMPLED_HEADS = 4


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    p, dtype = workload.params, FORMS[workload.form][0].torch_dtype

    def normal(sequence: int, heads: int, scale: float = 1.0) -> torch.Tensor:
        shape = (p["b"], sequence, heads, p["dim"])
        drawn = torch.randn(shape, generator=generator, dtype=torch.float32, device=generator.device)
        return (drawn * scale).to(dtype)

    return {
        "q": normal(p["sq"], p["heads"], p.get("q_scale", 1.0)),
        "k": normal(p["skv"], p["kv_heads"]),
        "v": normal(p["skv"], p["kv_heads"]),
        "sm_scale": p["dim"] ** -0.5,
        "causal": p.get("causal", 0),
    }


def sampled(b: int, heads: int, sq: int, skv: int) -> list[tuple[int, int]]:
    """The (sequence, head) pairs that the reference covers: all of a small problem, some of a large one."""
    pairs = [(i, h) for i in range(b) for h in range(heads)]
    if len(pairs) * sq * skv <= REFERENCE_PRODUCTS:
        return pairs
    last = len(pairs) - 1
    return [pairs[round(i * last / (SAMPLED_HEADS - 1))] for i in range(SAMPLED_HEADS)]


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sm_scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Out and lse of one head, in the dtype of its operands: ([sq, dim], [sq])."""
    scores = (q @ k.T) * sm_scale
    if causal:
        sq, skv = scores.shape
        scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(skv - sq + 1), -math.inf)
    lse = scores.logsumexp(dim=1)
    return torch.exp(scores.sub_(lse[:, None])) @ v, lse


def _each(inputs: Mapping[str, Any]) -> Iterator[tuple[tuple[int, int], tuple[torch.Tensor, torch.Tensor]]]:
    q, k, v = (inputs[name] for name in "qkv")
    b, sq, heads, _ = q.shape
    for i, h in sampled(b, heads, sq, k.shape[1]):
        j = h * k.shape[2] // heads
        rows, keys, values = (x.double() for x in (q[i, :, h], k[i, :, j], v[i, :, j]))
        yield (i, h), attend(rows, keys, values, inputs["sm_scale"], bool(inputs["causal"]))


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Float64 out and lse; NaN in the heads of a large problem that are not sampled."""
    q = inputs["q"]
    b, sq, heads, dim = q.shape
    out = torch.full((b, sq, heads, dim), math.nan, dtype=torch.float64, device=q.device)
    lse = torch.full((b, heads, sq), math.nan, dtype=torch.float64, device=q.device)
    for (i, h), (rows, sums) in _each(inputs):
        out[i, :, h], lse[i, h] = rows, sums
    return {"out": out, "lse": lse}


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Limit the relative error of out and of its worst row, and the error of lse, over the sampled heads.

    All elements must be finite.
    """
    result, limit = Comparison(), LIMITS[form]
    known = ~expected["lse"].isnan()
    wanted, got = expected["out"].transpose(1, 2)[known], outputs["out"].transpose(1, 2)[known].double()
    error = (got - wanted).norm(dim=1)
    result.require("out relative error", float(error.norm() / wanted.norm()), limit)
    result.require(
        "out relative error of a row", float((error / wanted.norm(dim=1)).max()), ROW_LIMIT * limit
    )
    lse = expected["lse"][known]
    off = (outputs["lse"][known].double() - lse).abs() / lse.abs().clamp(min=1)
    result.require("lse error", float(off.max()), 1e-4)
    for name in ("out", "lse"):
        result.demand(f"{name} is finite", bool(outputs[name].isfinite().all()))
    return result


def seen(dims: Mapping[str, int]) -> float:
    """The pairs of a query and a key that it sees, per head."""
    sq, skv = dims["sq"], dims["skv"]
    return sq * (skv - (sq - 1) / 2) if dims.get("causal") else float(sq * skv)


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Two products of 2 * dim per pair of a query and a key that it sees."""
    return {DTYPES[form]: 4.0 * dims["dim"] * dims["b"] * dims["heads"] * seen(dims)}


def _workloads(form: str, dim: int) -> Iterator[Workload]:
    def of(
        tier: str, name: str, b: int, sq: int, skv: int, heads: int, kv_heads: int, **extra: Any
    ) -> Workload:
        params = {"b": b, "sq": sq, "skv": skv, "heads": heads, "kv_heads": kv_heads, "dim": dim, **extra}
        return Workload(f"{name}_{form}_d{dim}", tier, form, params)

    yield of("tiny", "tiny", 1, 64, 160, 1, 1)
    yield of("tiny", "tiny_causal", 1, 150, 150, 2, 1, causal=1)
    yield of("edge", "one_token", 2, 1, 1, 3, 1)
    yield of("edge", "decode_causal", 2, 1, 129, 4, 2, causal=1)
    yield of("edge", "ragged", 2, 200, 257, 3, 1)
    yield of("edge", "ragged_causal", 1, 257, 257, 4, 2, causal=1)
    yield of("edge", "more_keys_causal", 1, 130, 300, 2, 2, causal=1)
    yield of("edge", "huge_scores", 1, 128, 384, 2, 1, q_scale=40.0)
    yield of("edge", "huge_scores_causal", 1, 150, 150, 1, 1, q_scale=40.0, causal=1)
    yield of("real", "s4096", 4, 4096, 4096, 64, 8)
    yield of("real", "s4096_causal", 4, 4096, 4096, 64, 8, causal=1)


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=tuple(w for form in FORMS for dim in (128, 64) for w in _workloads(form, dim)),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
    units=lambda form, dims: ("queries", dims["b"] * dims["sq"]),
)
