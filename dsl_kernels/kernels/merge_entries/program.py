"""Ranks' entries in order as a tile program: a thread an entry, which looks for its place in every other rank's list.

Lists ascend, so the entries of another rank before one are found by halving: eleven reads for a list of 2048, of which
those of neighbouring threads are the same at first. No CTA waits for another, and nothing is sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ... import problems
from ...arch import ArchSpec
from ...tile.frontend import Int32, Names, recorded
from ...tile.lang import START, Body, Guard, Knob, Role, Schedule
from ...tile.program import TileProgram
from ...tile.text import Global, Recorder, ceildiv, dim
from . import leaves as leaf

TILES = 65535
"""CTAs along the second axis of a grid."""

KNOBS = (Knob("threads", "n", ((256,), (128, 512)), "entries a CTA, one a thread"),)


class Kernel(Names):
    """Operands and sizes by name."""

    rank_entries: Global
    ordered_scores: Global
    ordered_ids: Global
    ranks: Int32
    planes: Int32
    rows: Int32
    k: Int32
    interleave: Int32
    rank_stride: Int32


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("place", k.threads // 32, doc="an entry a thread"),),
        buffers=(),
        pipelines=(),
        mmas=(),
        grid=(dim("rows"), ceildiv(dim("ranks") * dim("k"), k.threads)),
        axes=("row", "tile"),
    )


@recorded
def _start(m: Recorder) -> None:
    m.barriers_stand()
    m.depend()


@recorded
def _place(m: Recorder) -> None:
    s = Kernel(m)
    leaf.place_entry(
        m, s.ordered_scores, s.ordered_ids, s.rank_entries, m.block(0), m.block(1) * m.k.threads, s.ranks, s.planes, s.rows, s.k,
        s.interleave, s.rank_stride, m.k.threads,
    )  # fmt: skip


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: _start, "place": _place}


def _tiles(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    most = TILES * knobs["threads"]
    if call["ranks"] * call["k"] <= most:
        return None
    return f"ranks * k = {call['ranks'] * call['k']} exceeds {most}"


PROGRAM = TileProgram(
    op="merge_entries",
    problem=problems.get("merge_entries"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    guards=(Guard("k", _tiles),),
)
