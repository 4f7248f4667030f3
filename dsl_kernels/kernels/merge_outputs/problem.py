"""Partial outputs of attention over shards of the keys, merged into attention over all keys.

Each rank gives out and lse of its own keys. A rank without keys gives (0, -inf). The merge weighs parts in
fp32 in the order of ranks, and rounds once. The sink joins the denominator of out here, once, and does not
join the lse. Parts are gathered in one tensor, or
each is in the memory of its rank: then the operands are this rank's part and the distances to the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...problems.base import OperandSpec, Problem, axis_strides
from ...problems.layouts import LATENT_DIM
from ...problems.peers import DISTANCES, of_one_rank

GATHERED = (
    OperandSpec(
        "outs",
        ("ranks", "rows", "heads", LATENT_DIM),
        "bfloat16",
        strides=axis_strides("outs", "rth"),
        doc="outputs of the ranks",
    ),
    OperandSpec(
        "lses",
        ("ranks", "rows", "heads"),
        "float32",
        strides=axis_strides("lses", "rt"),
        align=4,
        doc="base-2 log-sum-exp of the scores of each rank's keys; -inf where it has none",
    ),
)
ON_RANKS = (
    of_one_rank(GATHERED[0], "outputs of this rank, as every rank has them"),
    of_one_rank(
        GATHERED[1],
        "base-2 log-sum-exp of the scores of this rank's keys, -inf without keys, as every rank has it",
    ),
    DISTANCES,
)
COMMON = (
    OperandSpec(
        "attn_sink",
        ("heads",),
        "float32",
        align=4,
        doc="natural-log logit that joins the denominator of out; -inf: none",
        default=-math.inf,
    ),
    OperandSpec("lse_scale", (), "float32", "scalar", doc="factor of lse: 1 for base 2, ln 2 for base e"),
    OperandSpec("out", ("rows", "heads", LATENT_DIM), "bfloat16", "out", doc="attention over all keys"),
    OperandSpec(
        "lse", ("rows", "heads"), "float32", "out", align=4,
        doc="log-sum-exp of all keys, without the sink; -inf without keys",
    ),
)  # fmt: skip
FORMS = {"default": (*GATHERED, *COMMON), "peers": (*ON_RANKS, *COMMON)}


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Every part once in, and the result once out."""
    return dims["rows"] * dims["heads"] * (2.0 * LATENT_DIM + 4.0) * (dims["ranks"] + 1)


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Steps and a prompt of a few ranks, on every grid."""
    for form, ranks, rows, heads in (
        ("default", 2, 1, 16), ("default", 2, 64, 128), ("default", 8, 64, 16), ("default", 2, 4096, 16),
        ("peers", 2, 1, 16), ("peers", 8, 64, 16),
    ):  # fmt: skip
        yield form, {"ranks": ranks, "rows": rows, "heads": heads}


PROBLEM = Problem(
    op="merge_outputs",
    doc=__doc__,
    forms=FORMS,
    bytes=moved_bytes,
    points=points,
)
