"""Peers of scoring: DeepGEMM's logits of a paged decode step and of a prompt. Its schedule is not timed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from dsl_kernels.kernels.lightning_indexer.problem import PAGE

from ..grids import Fixture, Point
from . import Contender, Offer, apart, own_or_of_vllm

HEADS = (32, 64)
"""Numbers of index heads that DeepGEMM supports on Hopper."""
# How many rows of a prompt a check compares.
COMPARED = 16


def _deep_gemm(point: Point, fixture: Fixture, ours: Sequence[Any]) -> Contender | None:
    if point.params["heads"] not in HEADS:
        return None
    deep_gemm, release = own_or_of_vllm("deep_gemm", "vllm.third_party.deep_gemm", "deep_gemm", "deep-gemm")
    # Newer versions have one function for fp8 and fp4 queries (it takes the scales of fp4), and write each
    # row's window from column 0 on.
    newer = not hasattr(deep_gemm, "fp8_mqa_logits")
    if point.form == "prefill":
        q, k, scales, weights, start, end = ours[0].args
        if newer:
            call = partial(
                deep_gemm.fp8_fp4_mqa_logits,
                (q, None),
                (k, scales),
                weights,
                start,
                end,
                int((end - start).max()),
            )
        else:
            call = partial(deep_gemm.fp8_mqa_logits, q, (k, scales), weights, start, end, clean_logits=False)
        out = ours[0].keywords["out"]
        return Contender(release, [call], lambda: _windows_apart(call(), out, start, end, shifted=newer))
    calls = []
    for each in ours:
        q, cache, weights, lens, table = each.args
        plan = deep_gemm.get_paged_mqa_logits_metadata(lens, PAGE, deep_gemm.get_num_sms())
        operands = cache.view(torch.uint8), weights.flatten(0, 1), lens, table, plan, table.shape[1] * PAGE
        if newer:
            calls.append(partial(deep_gemm.fp8_fp4_paged_mqa_logits, (q, None), *operands))
        else:
            calls.append(partial(deep_gemm.fp8_paged_mqa_logits, q, *operands, clean_logits=False))
    length = int(ours[0].args[3].min())

    def far() -> float:
        out = ours[0].keywords["out"].flatten(0, 1)
        return apart(calls[0]()[:, :length], out[:, :length])

    return Contender(release, calls, far)


def _windows_apart(
    results: torch.Tensor, expected: torch.Tensor, start: torch.Tensor, end: torch.Tensor, shifted: bool
) -> float:
    """`apart` within the windows of some rows; `shifted`: the results of a window start at column 0."""
    rows = torch.linspace(0, len(results) - 1, min(COMPARED, len(results)), device=results.device).long()
    windows = [(int(start[row]), int(end[row])) for row in rows]
    got = [
        results[row, : to - at] if shifted else results[row, at:to]
        for row, (at, to) in zip(rows, windows, strict=True)
    ]
    wanted = [expected[row, at:to] for row, (at, to) in zip(rows, windows, strict=True)]
    return apart(torch.cat(got), torch.cat(wanted))


PEERS: dict[str, Offer] = {"DeepGEMM": _deep_gemm}
