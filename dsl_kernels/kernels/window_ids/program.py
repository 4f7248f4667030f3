"""Ids of a window as a tile program: a thread writes an id, and no CTA waits for another."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ... import problems
from ...arch import ArchSpec
from ...tile.frontend import Int32, Names, after_previous_kernel, recorded
from ...tile.lang import START, Body, Guard, Knob, Role, Schedule
from ...tile.program import TileProgram
from ...tile.text import Global, Recorder, ceildiv, dim
from . import leaves as leaf

TILES = 65535
"""CTAs along the second axis of a grid."""

KNOBS = (Knob("threads", "n", ((128,), (256,)), "ids per CTA, one per thread"),)


class Kernel(Names):
    """Operands and sizes, by name."""

    seq_lens: Global
    window_table: Global
    indices: Global
    next_n: Int32
    max_pages: Int32
    page_size: Int32
    window: Int32


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("place", k.threads // 32, doc="an id per thread"),),
        buffers=(),
        pipelines=(),
        mmas=(),
        grid=(dim("rows"), ceildiv(dim("window"), k.threads)),
        axes=("row", "tile"),
    )


@recorded
def _place(m: Recorder) -> None:
    s = Kernel(m)
    leaf.place_id(
        m, s.indices, s.seq_lens, s.window_table, m.block(0), m.block(1) * m.k.threads, s.next_n, s.max_pages,
        s.page_size, s.window, m.k.threads,
    )  # fmt: skip


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: after_previous_kernel, "place": _place}


def _tiles(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    most = TILES * knobs["threads"]
    return None if call["window"] <= most else f"window = {call['window']} exceeds {most}"


PROGRAM = TileProgram(
    op="window_ids",
    problem=problems.get("window_ids"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    guards=(Guard("window", _tiles),),
)
