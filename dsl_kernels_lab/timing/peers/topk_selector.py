"""Peers of selection: the top-k of vLLM, SGLang and FlashInfer, and torch's.

benchmarks/topk_exactness.py calls the engines. They give positions. In a decode step ours gives global token
ids, which is more work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from dsl_kernels.errors import ToolchainError

from .. import measure
from ..grids import Fixture, Point
from . import Contender, Offer

ENGINES = (
    "vllm cooperative_topk",
    "vllm persistent_topk",
    "vllm top_k_per_row_decode",
    "vllm DeepSelect",
    "sglang fast_topk_v2",
    "flashinfer top_k_ragged_transform",
)
# How many rows' selected scores a check compares.
COMPARED = 8


def _wrong(ids: torch.Tensor, scores: torch.Tensor, k: int) -> float:
    """The fraction of the checked rows whose selected scores are not the k largest."""
    rows = torch.linspace(0, len(scores) - 1, min(COMPARED, len(scores)), device=scores.device).long()
    given = ids[rows].long()
    if bool((given < 0).any() or (given >= scores.shape[1]).any()):
        return 1.0
    got = scores[rows].gather(1, given).sort(dim=1, descending=True).values
    return float((got != scores[rows].topk(k, dim=1).values).any(dim=1).double().mean())


def _engine(name: str, point: Point, fixture: Fixture, ours: Sequence[Any]) -> Contender | None:
    module = measure.of_benchmarks("topk_exactness")
    if module is None:
        raise ToolchainError(
            "benchmarks/topk_exactness.py",
            expected="a checkout",
            got="an installed library",
            fix="run it in a checkout",
        )
    try:
        release, select = module.ENGINES[name](None)
    except module.AbsentError as error:
        raise ImportError(str(error)) from None
    k, lengths = point.params["k"], ours[0].keywords["row_ends"]
    scores = [call.args[0] for call in ours]
    calls = [partial(select, each, lengths, k) for each in scores]
    return Contender(release, calls, lambda: _wrong(calls[0](), scores[0], k))


def _torch(point: Point, fixture: Fixture, ours: Sequence[Any]) -> Contender:
    k, scores = point.params["k"], [call.args[0] for call in ours]
    calls = [partial(torch.topk, each, k, dim=1, sorted=False) for each in scores]
    return Contender(torch.__version__, calls, lambda: _wrong(calls[0]().indices, scores[0], k))


PEERS: dict[str, Offer] = {**{name: partial(_engine, name) for name in ENGINES}, "torch.topk": _torch}
