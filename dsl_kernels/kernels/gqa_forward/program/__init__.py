"""Grouped-query attention, forward, as a tile program: query rows on M, keys on N.

    S[rows, keys] = Q K^T;   P = exp2(scale * (S - top)) in 16 bits;   O[rows, dim] += P V

A CTA takes a block of query rows of one head. One warp copies the queries once, and keys and values through a
ring each. Tiles go from the last key to the first. So the first tiles are those that only the later rows of
the block see. A warpgroup without such rows skips these. Then come the masked tiles, then the tiles that all
rows see whole.

On Hopper two or three warpgroups have 64 rows each and run one text, with scores and result in registers.
Each issues the scores of the next tile, then the second product of this tile, and computes the next weights
while that product runs. With `order` the warpgroups take turns at issuing: one multiplies while another is at
its softmax.

On Blackwell a block has two sides of 128 rows, each with a warpgroup for its softmax. Scores, weights and
result are in tensor memory. One warp issues all products: while one side is at its softmax, the products of
the other side run.

Work items are (head, block of rows). Heads that share keys are adjacent, and a causal call takes the heaviest
blocks first. Each round of `ctas` items gives a CTA one item, and rounds alternate in direction. A CTA copies
the next item's tiles during its epilogue. The CTAs of a cluster take the same block of heads that share keys,
and each copies its part of every tile for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from .... import problems
from ....arch import ArchSpec
from ....problems.base import OperandSpec
from ....tile.lang import Body, Guard, Knob, Schedule, built_for
from ....tile.program import TileProgram
from ..problem import DTYPES
from . import blackwell, hopper

KNOBS = (
    Knob("dtype", "", ((*DTYPES,),), "dtype of queries, keys, values and output"),
    Knob("dim", "d", ((128, 64),), "elements of a head"),
    Knob("tile", "n", ((128, 160, 80, 64), (96,)), "keys per tile"),
    Knob("stages", "st", ((2, 4, 3),), "tiles of keys, and of values, in flight"),
    Knob("order", "o", ((0, 1),), "1: the warpgroups take turns at issuing products", archs=("sm_90a",)),
    Knob("cluster", "c", ((1, 2),), "CTAs that share tiles of keys and values"),
    Knob("groups", "w", ((2, 3), (1,)), "warpgroups of 64 query rows each", archs=("sm_90a",), plain=2),
    Knob(
        "lazy",
        "z",
        ((0, 1, 2),),
        "0: maxima rise with every greater score; 1: only when they must; 2: the same, by the bits of scores",
        plain=0,
    ),
    Knob(
        "ablation",
        "",
        (("none",), ("nosoftmax", "nooverlap")),
        "for measurement only; nosoftmax: weights are the scores; "
        "nooverlap: each product ends before the softmax",
        archs=("sm_90a",),
        plain="none",
    ),
)


def measures(knobs: Mapping[str, Any]) -> str | None:
    """Why a schedule serves measurements only, or None where calls may use it."""
    if knobs.get("groups") == 1:
        return "one warpgroup per CTA, to measure how two affect each other"
    if knobs.get("ablation", "none") != "none":
        return f"ablation {knobs['ablation']}, for measurements only: call `none`"
    return None


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return (blackwell if arch.tmem_columns else hopper).declare(k)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return (blackwell if arch.tmem_columns else hopper).bodies()


def _shared(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    group = call["heads"] // max(1, call["kv_heads"])
    if group % knobs["cluster"] == 0:
        return None
    return f"{group} query heads per key head, built for clusters of {knobs['cluster']} that share one"


PROGRAM = TileProgram(
    op="gqa_forward",
    problem=problems.get("gqa_forward"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    scratch=(
        OperandSpec("ctas", (), "int32", "scalar", doc="clusters that share the work items"),
        OperandSpec("abreast", (), "int32", "scalar", doc="query heads in work side by side"),
    ),
    guards=(
        built_for("dim"),
        Guard("heads", _shared),
        Guard("measurement", lambda knobs, call: measures(knobs)),
    ),
)
