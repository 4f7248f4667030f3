"""How outputs of `window_ids` are judged: drawn inputs, the reference, tolerances, workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dsl_kernels.kernels.window_ids.problem import PROBLEM, queries_of
from dsl_kernels.problems.base import Comparison

from . import Oracle, Workload, real


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    """Draw sequences of any length, the first empty and the second full. Each query sees one token more."""
    p, device = workload.params, generator.device
    b, next_n, pages, page = p["b"], p["next_n"], p["max_pages"], p["page_size"]
    ends = torch.randint(0, pages * page - next_n + 2, (b,), generator=generator, device=device)
    ends[:2] = torch.tensor([0, pages * page - next_n + 1], device=device)[:b]
    lens = ends[:, None] + torch.arange(next_n, device=device)
    lens[:1] = torch.where(ends[:1, None] == 0, 0, lens[:1])
    # Entries outside all windows may hold anything.
    table = torch.full((b, pages + 3), -(2**31), dtype=torch.int32, device=device)[:, :pages]
    for sequence in range(b):
        order = torch.randperm(2 * pages, generator=generator, device=device)[:pages].int()
        first = max(0, int(lens[sequence].min()) - p["window"]) // page
        table[sequence, first:] = order[first:]
    return {
        "seq_lens": lens.int(),
        "window_table": table,
        "page_size": page,
        "window": p["window"],
    }


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The ids, one query at a time."""
    lens, table = inputs["seq_lens"], inputs["window_table"]
    page, window = int(inputs["page_size"]), int(inputs["window"])
    b, next_n = lens.shape
    out = torch.full((b * next_n, window), -1, dtype=torch.int32, device=lens.device)
    for row in range(b * next_n):
        end = min(max(int(lens[row // next_n, row % next_n]), 0), table.shape[1] * page)
        at = torch.arange(max(0, end - window), end, device=lens.device)
        pages = table[row // next_n].long()[at // page]
        out[row, : len(at)] = (pages * page + at % page).int()
    return {"indices": out}


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Require equality with the reference at every id, without a tolerance."""
    result = Comparison()
    wrong = int((outputs["indices"] != expected["indices"]).sum())
    result.demand("indices equal the reference", wrong == 0, f"{wrong} differ")
    return result


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """A division, a product and a sum per id."""
    return {"int32": 3.0 * queries_of(dims) * dims["window"]}


def _case(
    name: str, tier: str, b: int, next_n: int, max_pages: int, page_size: int, window: int = 128
) -> Workload:
    sizes = {"b": b, "next_n": next_n, "max_pages": max_pages, "page_size": page_size, "window": window}
    return Workload(name, tier, "default", sizes)


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=(
        _case("tiny", "tiny", 3, 2, 4, 64),
        _case("one_token", "edge", 2, 1, 3, 1, window=1),
        _case("odd_pages", "edge", 5, 3, 7, 53, window=130),
        _case("wide_window", "edge", 3, 1, 3, 16, window=300),
        *real(PROBLEM, "real_decode", "real_drafts"),
    ),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
    units=lambda form, dims: ("queries", queries_of(dims)),
)
