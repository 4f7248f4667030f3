"""Row softmax as a tile program: one warp loads rows into a ring, four warps turn them into weights."""

from __future__ import annotations

from types import SimpleNamespace

from ... import problems
from ...arch import ArchSpec
from ...tile.channel import Channel
from ...tile.frontend import Int32, Names, State, recorded
from ...tile.lang import START, Body, Buffer, Engine, Knob, Pipeline, Reader, Role, Schedule, Space
from ...tile.program import TileProgram
from ...tile.text import Global, Recorder, Value, View, minimum
from . import leaves as leaf

KNOBS = (
    Knob("columns", "n", ((1024,), (2048, 4096)), "columns of a row"),
    Knob("stages", "st", ((2,), (3,)), "rows in flight"),
)
ROWS = 4
"""Rows per CTA."""


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    each = k.columns // leaf.THREADS
    return Schedule(
        roles=(
            Role("weigh", leaf.WARPS, doc="maximum, exponentials, sum, result"),
            Role("load", 1, doc="rows into the ring"),
        ),
        buffers=(
            Buffer("row_s", Space.SHARED, (k.columns,), "float32", k.stages),
            Buffer("peak_s", Space.SHARED, (leaf.WARPS,), "float32", doc="maximum of each warp"),
            Buffer("sum_s", Space.SHARED, (leaf.WARPS,), "float32", doc="sum of each warp"),
            Buffer(
                "held", Space.REGISTER, (leaf.THREADS, each), "float32", role="weigh", per_thread=each,
                private=True
            ),
        ),
        pipelines=(
            Pipeline("ring", ("row_s",), "load", Engine.BULK, (Reader("weigh", Engine.THREADS),), k.stages),
        ),
        mmas=(),
        grid=(f"ceildiv(rows, {ROWS})",),
        axes=("block",),
        named_barriers={"weigh": ("weigh",)},
    )  # fmt: skip


class Kernel(Names):
    """Pipelines, operands, sizes and buffers by name."""

    ring: Channel
    x: Global
    y: Global
    rows: Int32
    held: View
    peak_s: View
    sum_s: View


class Rows(State, Kernel):
    """The rows of this CTA."""

    first: Value
    count: Value


@recorded
def _start(m: Recorder) -> Rows:
    """What every thread does first. The returned state is passed to every role."""
    s = Rows(m)
    s.first = m.block(0) * ROWS
    s.count = minimum(s.rows - s.first, ROWS)
    m.barriers_stand()
    return s


@recorded
def _load(m: Recorder, s: Rows) -> None:
    """Copy one row into each slot."""
    for it in range(s.count):
        slot = s.ring.producer.acquire(it)
        m.bulk(slot.row_s, s.x.span(s.first + it, m.k.columns), slot)
        slot.commit()


@recorded
def _weigh(m: Recorder, s: Rows) -> None:
    """The warps meet twice per row: after the maxima, and after the sums."""
    held, peaks, sums = s.held, s.peak_s, s.sum_s
    for it in range(s.count):
        slot = s.ring.reader.wait(it)
        leaf.read_row(m, held, slot.row_s)
        slot.release()
        leaf.share_maximum(m, peaks, held)
        m.meet("weigh")
        leaf.exponentials(m, held, sums, peaks)
        m.meet("weigh")
        leaf.write_row(m, s.y, s.first + it, held, sums)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: _start, "weigh": _weigh, "load": _load}


PROGRAM = TileProgram(
    op="row_softmax",
    problem=problems.get("row_softmax"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
)
