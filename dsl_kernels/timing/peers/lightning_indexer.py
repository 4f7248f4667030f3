"""Scoring: DeepGEMM's logits, for a paged decode step and for a prompt. Its schedule is worked out once and not timed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...kernels.lightning_indexer.problem import PAGE
from ..grids import Fixture, Point
from . import Contender, Offer, apart, version

HEADS = (32, 64)
"""Index heads that DeepGEMM has on Hopper."""
# Rows of a prompt that a check compares.
COMPARED = 16


def _deep_gemm(point: Point, fixture: Fixture, ours: Sequence[Any]) -> Contender | None:
    if point.params["heads"] not in HEADS:
        return None
    import deep_gemm

    found = version("deep_gemm", "deep-gemm")
    if point.form == "prefill":
        q, k, scales, weights, start, end = ours[0].args
        call = partial(deep_gemm.fp8_mqa_logits, q, (k, scales), weights, start, end, clean_logits=False)
        return Contender(found, [call], lambda: _windows_apart(call(), ours[0].keywords["out"], start, end))
    calls = []
    for each in ours:
        q, cache, weights, lens, table = each.args
        plan = deep_gemm.get_paged_mqa_logits_metadata(lens, PAGE, deep_gemm.get_num_sms())
        calls.append(
            partial(
                deep_gemm.fp8_paged_mqa_logits, q, cache.view(torch.uint8), weights.flatten(0, 1), lens, table, plan,
                table.shape[1] * PAGE, clean_logits=False,
            )
        )  # fmt: skip
    length = int(ours[0].args[3].min())

    def far() -> float:
        out = ours[0].keywords["out"].flatten(0, 1)
        return apart(calls[0]()[:, :length], out[:, :length])

    return Contender(found, calls, far)


def _windows_apart(
    found: torch.Tensor, expected: torch.Tensor, start: torch.Tensor, end: torch.Tensor
) -> float:
    """The same within the windows of some rows."""
    rows = torch.linspace(0, len(found) - 1, min(COMPARED, len(found)), device=found.device).long()
    columns = torch.arange(min(found.shape[1], expected.shape[1]), device=found.device)
    inside = (columns >= start[rows, None]) & (columns < end[rows, None])
    return apart(found[rows][:, : len(columns)][inside], expected[rows][:, : len(columns)][inside])


PEERS: dict[str, Offer] = {"DeepGEMM": _deep_gemm}
