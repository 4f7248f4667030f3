"""Entries that ranks selected from their shards, in the order of their positions in the whole context.

The ranks take runs of `interleave` positions in turn: token t of rank r has position
(t // interleave * ranks + r) * interleave + t % interleave. Each rank lists its entries by ascending token,
then -1 where it has fewer. The place of an entry is the number of entries at lower positions. Selection among
the ordered scores then breaks ties by position, as on one GPU. Lists are gathered in one tensor, or each is
in the memory of its rank: then the operands are this rank's list and the distances to the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._torch import torch
from ...arguments import INT32_MAX
from ...problems.base import Comparison, OperandSpec, Problem, Values, Workload
from ...problems.peers import DISTANCES, PEER_DISTANCES, dealt, gathered

MOST_INTERLEAVE = 1 << 24
# Entries per row that a kernel reads from the memory of all ranks: 2048 of each of eight. Their tokens fill
# 64 KiB.
MOST_LISTED = 1 << 14
# Planes of entries: bits of the score, with three planes the id in the rank's cache, and last the token's
# number in the shard.
SCORE, ID, TOKEN = 0, 1, -1


def _not_ascending(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    """Tokens that do not ascend, or that come after a -1."""
    entries = o["rank_entries"]
    tokens = entries[..., TOKEN, :, :]
    wrong = torch.zeros_like(entries, dtype=torch.bool)
    wrong_tokens = wrong[..., TOKEN, :, :]
    wrong_tokens.copy_(tokens < -1)
    wrong_tokens[..., 1:] |= (tokens[..., 1:] >= 0) & (tokens[..., 1:] <= tokens[..., :-1])
    wrong_tokens[..., 1:] |= (tokens[..., 1:] >= 0) & (tokens[..., :-1] < 0)
    return wrong


def _ordered(name: str, doc: str) -> OperandSpec:
    return OperandSpec(
        name, ("rows", "columns"), "int32", "out", align=4, sizes={"columns": "ranks * k"},
        requires=("columns == ranks * k",), doc=doc,
    )  # fmt: skip


_ASCEND = (Values("tokens ascend, then -1", _not_ascending),)
_PLANES = ("planes == 2 or planes == 3",)
GATHERED = (
    OperandSpec(
        "rank_entries",
        ("ranks", "planes", "rows", "k"),
        "int32",
        align=4,
        doc="of each rank: bits of the scores, with three planes ids in its cache, "
        "and numbers of tokens in its shard, -1 for none",
        requires=_PLANES,
        values=_ASCEND,
    ),
)
ON_RANKS = (
    OperandSpec(
        "rank_entries",
        ("planes", "rows", "k"),
        "int32",
        align=4,
        peers=PEER_DISTANCES,
        doc="of this rank, as every rank has them: bits of the scores, with three planes ids in its cache, "
        "and numbers of tokens in its shard, -1 for none",
        requires=_PLANES,
        values=_ASCEND,
    ),
    DISTANCES,
)
COMMON = (
    OperandSpec(
        "interleave", (), "int32", "scalar", limits=(1, MOST_INTERLEAVE), doc="positions in a run of one rank"
    ),
    OperandSpec(
        "rank_stride",
        (),
        "int32",
        "scalar",
        limits=(0, INT32_MAX),
        doc="with three planes, the distance from the first id of a rank to that of the next",
    ),
    _ordered("ordered_scores", "bits of the scores by position; nothing is written past a row's entries"),
    _ordered(
        "ordered_ids", "with three planes id + rank * rank_stride, with two the position, in the same order"
    ),
)
FORMS = {"default": (*GATHERED, *COMMON), "peers": (*ON_RANKS, *COMMON)}


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


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Each entry once in, and its score and id once out."""
    return 4.0 * dims["ranks"] * dims["rows"] * dims["k"] * (dims["planes"] + 2)


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """A comparison for each search step in each other rank's list."""
    halvings = dims["k"].bit_length() * (dims["ranks"] - 1)
    return {"int32": float(dims["ranks"] * dims["rows"] * dims["k"] * halvings)}


def _case(name: str, tier: str, ranks: int, rows: int, k: int, planes: int, interleave: int) -> Workload:
    sizes = {"ranks": ranks, "rows": rows, "k": k, "planes": planes, "interleave": interleave}
    return Workload(name, tier, "peers" if name.startswith("peers") else "default", sizes)


PROBLEM = Problem(
    op="merge_entries",
    doc=__doc__,
    forms=FORMS,
    workloads=(
        _case("tiny", "tiny", 2, 2, 70, 3, 64),
        _case("tiny_positions", "tiny", 3, 2, 33, 2, 1),
        _case("one_rank", "edge", 1, 3, 40, 3, 64),
        _case("one_entry", "edge", 4, 5, 1, 3, 1),
        _case("contiguous", "edge", 3, 4, 300, 2, MOST_INTERLEAVE),
        _case("odd_runs", "edge", 5, 6, 257, 3, 7),
        _case("peers_of_a_host", "edge", 8, 2, 30, 3, 64),
        _case("peers_many_entries", "edge", 7, 2, 2000, 3, 5),
        _case("real_one", "real", 2, 1, 2048, 3, 64),
        _case("real_many", "real", 2, 64, 2048, 3, 64),
        _case("real_ranks", "real", 8, 16, 2048, 3, 64),
        _case("real_prompt", "real", 2, 4096, 2048, 2, 64),
        _case("peers_one", "real", 2, 1, 2048, 3, 64),
        _case("peers_ranks", "real", 8, 16, 2048, 3, 64),
    ),
    make=make,
    reference=reference,
    compare=compare,
    bytes=moved_bytes,
    flops=flops,
    units=lambda form, dims: ("rows", dims["rows"]),
    forms_share_workloads=lambda form, other: True,
)
