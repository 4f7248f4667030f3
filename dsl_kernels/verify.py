"""Does a variant match the reference: the workloads of its problem, through the public ops, on one executor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from . import ops, problems
from .errors import NoVariantError
from .problems.base import Comparison, Workload
from .step_check import compare
from .variants import Variant

Outputs = dict[str, torch.Tensor]


@dataclass
class Result:
    """One variant on one workload: the comparison, or why the variant does not take it."""

    variant: str
    workload: str
    executor: str
    comparison: Comparison | None = None
    refused: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return self.comparison is None or self.comparison.ok


def _indexer(form: str, given: Mapping[str, Any], options: dict[str, Any]) -> Outputs:
    if form == "prefill":
        flat = [given[name] for name in ("q", "k", "k_scales", "weights", "k_start", "k_end")]
        return {"logits": ops.lightning_indexer_prefill(*flat, skip_below=given["skip_below"], **options)}
    paged = [given[name] for name in ("q", "k_cache", "weights", "seq_lens", "block_table")]
    return {"logits": ops.lightning_indexer(*paged, skip_below=given["skip_below"], **options)}


def _selector(form: str, given: Mapping[str, Any], options: dict[str, Any]) -> Outputs:
    page = given["page_size"]
    indices = ops.topk_selector(
        given["logits"], given["row_ends"], given["k"], row_starts=given["row_starts"], next_n=given["next_n"],
        block_table=given["block_table"] if page else None, page_size=page or 64, **options,
    )  # fmt: skip
    return {"indices": indices}


def _attention(form: str, given: Mapping[str, Any], options: dict[str, Any]) -> Outputs:
    cache, rope = (given["kv_cache"], None) if form == "fp8" else (given["ckv"], given["kpe"])
    if form == "bf16" and cache.stride(0) != cache.shape[1]:
        # The two operands are views of one 576-wide row.
        cache, rope = cache.as_strided((cache.shape[0], cache.stride(0)), (cache.stride(0), 1)), None
    out, lse = ops.sparse_mla(
        given["q_nope"], given["q_pe"], cache, given["indices"], kpe=rope, sm_scale=given["sm_scale"],
        attn_sink=given["attn_sink"], lse_base="e" if math.isclose(given["lse_scale"], math.log(2)) else "2", **options,
    )  # fmt: skip
    return {"out": out, "lse": lse}


CALLS: dict[str, Callable[[str, Mapping[str, Any], dict[str, Any]], Outputs]] = {
    "lightning_indexer": _indexer,
    "topk_selector": _selector,
    "sparse_mla": _attention,
}


def workloads(variant: Variant, tiers: Iterable[str]) -> list[Workload]:
    """The workloads of a variant's op in these tiers, with the heads and the cache format that it was built for.

    So each edge case is tried on every variant; those that become equal are tried once.
    """
    wanted = set(tiers)
    found: dict[tuple[str, str], Workload] = {}
    for workload in problems.get(variant.op).workloads:
        if workload.tier not in wanted:
            continue
        params = dict(workload.params)
        if "heads" in params and "heads" in variant.knobs:
            params["heads"] = variant.knobs["heads"]
        form = variant.knobs.get("kv", workload.form)
        found.setdefault((form, repr(sorted(params.items()))), replace(workload, form=form, params=params))
    return list(found.values())


def verify(
    variant: Variant,
    executor: str,
    *,
    tiers: Iterable[str] = ("tiny", "edge"),
    repeats: int = 1,
    seed: int = 0,
) -> Iterator[Result]:
    """Run a variant on every workload of its op and compare; with repeats, demand the same bits every time."""
    for workload in workloads(variant, tiers):
        yield run_workload(variant, workload, executor, repeats=repeats, seed=seed)


def run_workload(
    variant: Variant, workload: Workload, executor: str, *, repeats: int = 1, seed: int = 0
) -> Result:
    """One variant on one workload."""
    problem = problems.get(variant.op)
    device = "cuda" if executor == "cuda" else "cpu"
    drawn = problem.make(workload, torch.Generator().manual_seed(seed))
    given = {name: _placed(value, device) for name, value in drawn.items()}
    options = {
        "executor": executor,
        "variant": variant.id,
        "arch": None if executor == "cuda" else variant.arch,
    }
    result = Result(variant.id, workload.name, executor)
    try:
        outputs = CALLS[variant.op](workload.form, given, options)
    except NoVariantError as error:
        result.refused = error.got
        return result
    result.comparison = compare(variant.op, workload.form, given, outputs)
    for _ in range(repeats - 1):
        again = CALLS[variant.op](workload.form, given, options)
        moved = compare(variant.op, workload.form, given, again)
        same = moved.figures == result.comparison.figures and all(
            _same_bits(outputs[name], again[name]) for name in outputs if name != "logits"
        )
        if not same:
            result.comparison.demand("repeats give the same bits", False)
            break
    return result


def _placed(value: Any, device: str) -> Any:
    """A tensor on the device, its strides kept: a cache that is a slice of wider rows stays one."""
    if not isinstance(value, torch.Tensor) or device == "cpu":
        return value
    if value.is_contiguous():
        return value.to(device)
    whole = value._base if value._base is not None else value
    return whole.to(device).as_strided(value.shape, value.stride(), value.storage_offset())


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)))
