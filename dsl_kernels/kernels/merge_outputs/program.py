"""Merging outputs as a tile program: a warp takes one head of one row, a lane takes 16 of its dims."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ... import problems
from ...arch import ArchSpec
from ...problems.peers import MOST_PEERS
from ...tile.frontend import Float32, Int32, Names, after_previous_kernel, recorded
from ...tile.lang import START, Body, Guard, Knob, Role, Schedule
from ...tile.program import TileProgram
from ...tile.text import Global, Recorder, ceildiv, dim
from . import leaves as leaf

KNOBS = (
    Knob("warps", "w", ((4,), (1, 8)), "heads per CTA, one per warp"),
    Knob(
        "parts", "", (("gathered", "peers"),),
        "the place of parts: gathered in one tensor, or each on its rank", plain="gathered",
    ),
)  # fmt: skip


class Kernel(Names):
    """Operands, sizes and scalars, by name."""

    outs: Global
    lses: Global
    attn_sink: Global
    out: Global
    lse: Global
    ranks: Int32
    rows: Int32
    heads: Int32
    lse_scale: Float32


class PeerKernel(Kernel):
    """The names of `Kernel`, and the distances of ranks."""

    peer_distances: Global


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("merge", k.warps, doc="a head of a row per warp"),),
        buffers=(),
        pipelines=(),
        mmas=(),
        grid=(ceildiv(dim("rows") * dim("heads"), k.warps),),
        axes=("tile",),
    )


@recorded
def _merge(m: Recorder) -> None:
    s = Kernel(m)
    leaf.merge_head(
        m, s.out, s.lse, s.outs, s.lses, s.attn_sink, m.block(0) * m.k.warps, s.ranks, s.rows, s.heads,
        s.lse_scale, m.k.warps,
    )  # fmt: skip


@recorded
def _merge_peers(m: Recorder) -> None:
    s = PeerKernel(m)
    leaf.merge_peers_head(
        m, s.out, s.lse, s.outs, s.lses, s.peer_distances, s.attn_sink, m.block(0) * m.k.warps, s.ranks,
        s.rows, s.heads, s.lse_scale, m.k.warps,
    )  # fmt: skip


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: after_previous_kernel, "merge": _merge if k.parts == "gathered" else _merge_peers}


def _ranks(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if knobs["parts"] == "gathered" or call["ranks"] <= MOST_PEERS:
        return None
    return f"ranks = {call['ranks']} exceeds {MOST_PEERS}"


PROGRAM = TileProgram(
    op="merge_outputs",
    problem=problems.get("merge_outputs"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    guards=(Guard("ranks", _ranks),),
)
