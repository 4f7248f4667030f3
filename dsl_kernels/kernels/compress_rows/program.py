"""Compressing rows as a tile program: a CTA has a row, a thread four channels. CTAs are independent."""

from __future__ import annotations

from types import SimpleNamespace

from ... import problems
from ...arch import ArchSpec
from ...problems.layouts import LATENT_DIM, V4_GROUP
from ...tile.frontend import Float32, Int32, Names, after_previous_kernel, recorded
from ...tile.lang import START, Body, Buffer, Knob, Role, Schedule, Space
from ...tile.leaf_text import WARP
from ...tile.program import TileProgram
from ...tile.text import Global, Recorder, View, dim
from . import leaves as leaf
from .problem import DIMS

KNOBS = (Knob("dim", "d", (DIMS,), "channels per row: 512 for attention's cache, 128 for the indexer's"),)


class Kernel(Names):
    """Operands, sizes, scalars and buffers, by name."""

    kv: Global
    scores: Global
    ape: Global
    weight: Global
    windows: Global
    positions: Global
    cos_sin: Global
    row_slots: Global
    cache: Global
    ratio: Int32
    span: Int32
    page_size: Int32
    eps: Float32
    held: View
    sums: View
    powers: View


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    threads = k.dim // leaf.EACH
    powers = (
        Buffer("powers", Space.SHARED, (k.dim // V4_GROUP,), "int32", doc="the scale of each 64 channels"),
    )
    return Schedule(
        roles=(Role("compress", threads // WARP, doc="four channels per thread"),),
        buffers=(
            Buffer("sums", Space.SHARED, (threads // WARP,), "float32", doc="sum of each warp's squares"),
            *(powers if k.dim == LATENT_DIM else ()),
            Buffer(
                "held", Space.REGISTER, (threads, leaf.EACH), "float32", role="compress",
                per_thread=leaf.EACH, private=True,
            ),
        ),
        pipelines=(),
        mmas=(),
        grid=(dim("rows"),),
        axes=("row",),
        named_barriers={"compress": ("compress",)},
    )  # fmt: skip


@recorded
def _compress(m: Recorder) -> None:
    s = Kernel(m)
    row = m.block(0)
    threads = m.k.dim // leaf.EACH
    leaf.weigh_window(m, s.held, s.kv, s.scores, s.ape, s.windows, row, s.ratio, s.span, m.k.dim)
    leaf.sum_squares(m, s.sums, s.held)
    m.meet("compress")
    leaf.norm_and_turn(m, s.held, s.sums, s.weight, s.cos_sin, s.positions, row, s.eps, m.k.dim)
    if m.k.dim == LATENT_DIM:
        leaf.write_row(m, s.cache, s.powers, s.held, s.row_slots, row, s.page_size, threads)
        m.meet("compress")
        leaf.write_powers(m, s.cache, s.powers, s.row_slots, row, s.page_size)
    else:
        leaf.write_index_row(m, s.cache, s.held, s.row_slots, row, s.page_size, threads)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: after_previous_kernel, "compress": _compress}


PROGRAM = TileProgram(
    op="compress_rows",
    problem=problems.get("compress_rows"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
)
