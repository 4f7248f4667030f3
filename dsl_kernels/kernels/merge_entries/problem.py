"""Entries that ranks selected from their shards, in the order of their positions in the whole context.

The ranks take runs of `interleave` positions in turn: token t of rank r has position
(t // interleave * ranks + r) * interleave + t % interleave. Each rank lists its entries by ascending token,
then -1 where it has fewer. The place of an entry is the number of entries at lower positions. Selection among
the ordered scores then breaks ties by position, as on one GPU. Lists are gathered in one tensor, or each is
in the memory of its rank: then the operands are this rank's list and the distances to the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..._torch import torch
from ...arguments import INT32_MAX
from ...problems.base import OperandSpec, Problem, Values
from ...problems.peers import DISTANCES, of_one_rank

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


GATHERED = (
    OperandSpec(
        "rank_entries",
        ("ranks", "planes", "rows", "k"),
        "int32",
        align=4,
        doc="of each rank: bits of the scores, with three planes ids in its cache, "
        "and numbers of tokens in its shard, -1 for none",
        requires=("planes == 2 or planes == 3",),
        values=(Values("tokens ascend, then -1", _not_ascending),),
    ),
)
ON_RANKS = (
    of_one_rank(
        GATHERED[0],
        "of this rank, as every rank has them: bits of the scores, with three planes ids in its cache, "
        "and numbers of tokens in its shard, -1 for none",
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


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Each entry once in, and its score and id once out."""
    return 4.0 * dims["ranks"] * dims["rows"] * dims["k"] * (dims["planes"] + 2)


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Steps and a prompt of a few ranks, on every grid."""
    for form, ranks, rows, planes in (
        ("default", 2, 1, 3), ("default", 2, 64, 3), ("default", 8, 16, 3), ("default", 2, 4096, 2),
        ("peers", 2, 1, 3), ("peers", 8, 16, 3),
    ):  # fmt: skip
        yield form, {"ranks": ranks, "rows": rows, "k": 2048, "planes": planes, "interleave": 64}


PROBLEM = Problem(
    op="merge_entries",
    doc=__doc__,
    forms=FORMS,
    bytes=moved_bytes,
    points=points,
)
