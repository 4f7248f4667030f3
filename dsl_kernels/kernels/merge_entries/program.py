"""Merging entries as a tile program: a thread finds the place of an entry in every other rank's list.

Lists ascend, so binary search finds the entries of another rank that come before: eleven reads for a list of
2048. The first reads of neighbouring threads are the same. Nothing is sorted.

With gathered lists no CTA waits for another. With lists in the memory of the ranks, a cluster reads the lists
of one row: each entry once, with all loads in flight together. Every CTA gets the tokens, and its threads
search the lists in shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ... import problems
from ...arch import ArchSpec
from ...tile.frontend import Int32, Names, after_previous_kernel, recorded
from ...tile.lang import START, Body, Buffer, Guard, Knob, Role, Schedule, Size, Space
from ...tile.program import TileProgram
from ...tile.text import Global, Recorder, View, ceildiv, dim
from . import leaves as leaf
from .problem import MOST_LISTED

TILES = 65535
"""CTAs along the second axis of a grid."""

CTAS = Size(8, "CTAS")
"""CTAs of a cluster, which reads the lists of one row from the ranks."""

KNOBS = (
    Knob("threads", "n", ((256, 512), (128,)), "entries per CTA, one per thread"),
    Knob(
        "lists", "", (("gathered", "peers"),),
        "the place of lists: gathered in one tensor, or each on its rank", plain="gathered",
    ),
)  # fmt: skip


class Kernel(Names):
    """Operands and sizes, by name."""

    rank_entries: Global
    ordered_scores: Global
    ordered_ids: Global
    ranks: Int32
    planes: Int32
    rows: Int32
    k: Int32
    interleave: Int32
    rank_stride: Int32


class PeerKernel(Kernel):
    """The names of `Kernel`, the distances of ranks, and the buffers of a thread and of a CTA."""

    peer_distances: Global
    lists: View
    tokens: View
    scores: View
    names: View


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    if k.lists == "peers":
        return _clustered(k)
    return Schedule(
        roles=(Role("place", k.threads // 32, doc="an entry per thread"),),
        buffers=(),
        pipelines=(),
        mmas=(),
        grid=(dim("rows"), ceildiv(dim("ranks") * dim("k"), k.threads)),
        axes=("row", "tile"),
    )


def _clustered(k: SimpleNamespace) -> Schedule:
    each = Size(MOST_LISTED // (CTAS * k.threads), "EACH")

    def own(name: str, doc: str) -> Buffer:
        return Buffer(
            name, Space.REGISTER, (k.threads, each), "int32", role="place", per_thread=each, private=True,
            doc=doc
        )  # fmt: skip

    return Schedule(
        roles=(Role("place", k.threads // 32, doc="some entries per thread"),),
        buffers=(
            Buffer(
                "lists", Space.SHARED, (Size(MOST_LISTED, "LISTED"),), "int32",
                doc="tokens of all ranks' entries"
            ),
            own("tokens", "tokens of a thread's entries"),
            own("scores", "score bits of a thread's entries"),
            own("names", "ids of a thread's entries in the rank's cache"),
        ),
        pipelines=(),
        mmas=(),
        grid=(dim("rows"), CTAS),
        axes=("row", "rank_in_cluster"),
        cluster=(1, CTAS, 1),
        group=(1,),
    )  # fmt: skip


@recorded
def _place(m: Recorder) -> None:
    s = Kernel(m)
    leaf.place_entry(
        m, s.ordered_scores, s.ordered_ids, s.rank_entries, m.block(0), m.block(1) * m.k.threads, s.ranks,
        s.planes, s.rows, s.k, s.interleave, s.rank_stride, m.k.threads,
    )  # fmt: skip


@recorded
def _place_peers(m: Recorder) -> None:
    s = PeerKernel(m)
    step = CTAS * m.k.threads
    first = m.block(1) * m.k.threads
    m.comment("A CTA may store to another only after that CTA has started.")
    m.cluster_arrive(relaxed=True)
    leaf.read_peers(
        m, s.tokens, s.scores, s.names, s.rank_entries, s.peer_distances, m.block(0), first, step, s.ranks,
        s.planes, s.rows, s.k,
    )  # fmt: skip
    m.cluster_wait()
    leaf.share_tokens(m, m.cluster("lists"), s.tokens, first, step, s.ranks * s.k, CTAS)
    m.comment("The last use of another CTA's memory comes before this barrier.")
    m.cluster_arrive()
    m.cluster_wait()
    leaf.place_read(
        m, s.ordered_scores, s.ordered_ids, s.lists, s.tokens, s.scores, s.names, m.block(0), first, step,
        s.ranks, s.planes, s.k, s.interleave, s.rank_stride,
    )  # fmt: skip


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: after_previous_kernel, "place": _place if k.lists == "gathered" else _place_peers}


def _tiles(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    most = MOST_LISTED if knobs["lists"] == "peers" else TILES * knobs["threads"]
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
