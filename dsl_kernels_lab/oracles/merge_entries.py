"""How outputs of `merge_entries` are judged: drawn inputs, the reference, tolerances, workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dsl_kernels.kernels.merge_entries.problem import ID, MOST_INTERLEAVE, PROBLEM, SCORE, TOKEN
from dsl_kernels.problems.base import Comparison
from dsl_kernels.problems.peers import PEER_DISTANCES

from . import Oracle, Workload, real
from ._peers import dealt, gathered


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    """Draw rows of different lengths.

    The last of several rows is empty, and a rank has no token of the first row.
    """
    p, device = workload.params, generator.device
    ranks, rows, k, interleave = p["ranks"], p["rows"], p["k"], p["interleave"]
    entries = torch.full((ranks, p["planes"], rows, k), -1, dtype=torch.int32, device=device)
    for row in range(rows):
        for rank in range(ranks):
            count = (
                0
                if row == rows - 1 > 0 or (row, rank) == (0, ranks - 1)
                else max(k - (row + rank) * k // 5, 0)
            )
            tokens = torch.randperm(4 * k, generator=generator, device=device)[:count].sort().values
            entries[rank, TOKEN, row, :count] = tokens.int()
    bits = torch.randint(
        -(2**31), 2**31 - 1, (ranks, rows, k), generator=generator, dtype=torch.int64, device=device
    )
    entries[:, SCORE] = bits.int()
    if p["planes"] == 3:
        entries[:, ID] = torch.randint(
            1000, (ranks, rows, k), generator=generator, dtype=torch.int64, device=device
        ).int()
    given: dict[str, Any] = {"rank_entries": entries}
    if workload.form == "peers":
        own, distances = dealt(entries.view(ranks, -1).view(torch.uint8), ranks // 2, generator)
        given = {"rank_entries": own.view(torch.int32).view(entries.shape[1:]), PEER_DISTANCES: distances}
    return {**given, "interleave": interleave, "rank_stride": 1000}


def positions(tokens: torch.Tensor, interleave: int, rank: int, ranks: int) -> torch.Tensor:
    """Positions in the whole context of a rank's tokens. Tokens are numbered from 0."""
    runs = tokens.div(interleave, rounding_mode="floor")
    return (runs * ranks + rank) * interleave + tokens - runs * interleave


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """All entries of a row, sorted by position, then -1."""
    entries, interleave = gathered(inputs, "rank_entries").long(), int(inputs["interleave"])
    ranks, planes, rows, k = entries.shape
    scores = torch.full((rows, ranks * k), -1, dtype=torch.int32, device=entries.device)
    ids = scores.clone()
    for row in range(rows):
        entries_of_ranks = []
        for rank in range(ranks):
            tokens = entries[rank, TOKEN, row]
            there = tokens >= 0
            where = positions(tokens[there], interleave, rank, ranks)
            named = where
            if planes == 3:
                named = entries[rank, ID, row][there] + rank * int(inputs["rank_stride"])
            entries_of_ranks.append(torch.stack((where, entries[rank, SCORE, row][there], named)))
        every = torch.cat(entries_of_ranks, dim=1)
        every = every[:, every[0].argsort()]
        scores[row, : every.shape[1]], ids[row, : every.shape[1]] = every[1].int(), every[2].int()
    return {"ordered_scores": scores, "ordered_ids": ids}


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Require equality at every entry, without a tolerance."""
    result = Comparison()
    counts = (gathered(inputs, "rank_entries")[:, TOKEN] >= 0).sum(dim=(0, 2))
    there = torch.arange(expected["ordered_ids"].shape[1], device=counts.device) < counts[:, None]
    for name, wanted in expected.items():
        wrong = int(((outputs[name] != wanted) & there).sum())
        result.demand(f"{name} equal those of a sort", wrong == 0, f"{wrong} differ")
    return result


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """A comparison for each search step in each other rank's list."""
    halvings = dims["k"].bit_length() * (dims["ranks"] - 1)
    return {"int32": float(dims["ranks"] * dims["rows"] * dims["k"] * halvings)}


def _case(name: str, tier: str, ranks: int, rows: int, k: int, planes: int, interleave: int) -> Workload:
    sizes = {"ranks": ranks, "rows": rows, "k": k, "planes": planes, "interleave": interleave}
    return Workload(name, tier, "peers" if name.startswith("peers") else "default", sizes)


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=(
        _case("tiny", "tiny", 2, 2, 70, 3, 64),
        _case("tiny_positions", "tiny", 3, 2, 33, 2, 1),
        _case("one_rank", "edge", 1, 3, 40, 3, 64),
        _case("one_entry", "edge", 4, 5, 1, 3, 1),
        _case("contiguous", "edge", 3, 4, 300, 2, MOST_INTERLEAVE),
        _case("odd_runs", "edge", 5, 6, 257, 3, 7),
        _case("peers_of_a_host", "edge", 8, 2, 30, 3, 64),
        _case("peers_many_entries", "edge", 7, 2, 2000, 3, 5),
        *real(PROBLEM, "real_one", "real_many", "real_ranks", "real_prompt", "peers_one", "peers_ranks"),
    ),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
    units=lambda form, dims: ("rows", dims["rows"]),
    forms_share_workloads=lambda form, other: True,
)
