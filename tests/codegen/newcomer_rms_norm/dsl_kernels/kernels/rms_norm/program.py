"""RMSNorm as a tile program: one warp loads a CTA's rows into a ring, four warps normalise them."""

from __future__ import annotations

from types import SimpleNamespace

from ... import problems
from ...arch import ArchSpec
from ...problems.base import OperandSpec
from ...tile.channel import Channel
from ...tile.frontend import Float32, Int32, Names, State, recorded
from ...tile.lang import START, Body, Buffer, Engine, Knob, Pipeline, Reader, Role, Schedule, Space
from ...tile.program import TileProgram
from ...tile.text import Global, Recorder, Value, View, ceildiv, dim
from . import leaves as leaf

KNOBS = (
    Knob("dim", "d", ((1024,), (2048, 4096)), "elements of a row"),
    Knob("stages", "st", ((2,), (3, 4)), "rows in flight"),
)


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    def own(title: str) -> Buffer:
        """Private registers for each thread's columns."""
        each = k.dim // leaf.THREADS
        shape = (leaf.THREADS, each)
        return Buffer(
            title, Space.REGISTER, shape, "float32", role="normalise", per_thread=each, private=True
        )

    return Schedule(
        roles=(
            Role("normalise", leaf.WARPS, doc="sum of squares, result"),
            Role("load", 1, doc="rows into the ring"),
        ),
        buffers=(
            Buffer("row_s", Space.SHARED, (k.dim,), "bfloat16", k.stages),
            Buffer("sum_s", Space.SHARED, (leaf.WARPS,), "float32", 2, doc="sum of each warp, by row parity"),
            own("held"),
            own("factors"),
        ),
        pipelines=(
            Pipeline("ring", ("row_s",), "load", Engine.BULK, (Reader("normalise", Engine.THREADS),),
                     k.stages),
        ),
        mmas=(),
        grid=(dim("ctas"),),
        axes=("cta",),
        named_barriers={"normalise": ("normalise",)},
    )  # fmt: skip


class Kernel(Names):
    """Pipelines, operands, sizes, scalars and buffers by name."""

    ring: Channel
    x: Global
    weight: Global
    y: Global
    rows: Int32
    ctas: Int32
    eps: Float32
    held: View
    factors: View
    sum_s: View


class Rows(State, Kernel):
    """The rows of this CTA: the one of its own number, and every `ctas`th row after it."""

    count: Value


@recorded
def _start(m: Recorder) -> Rows:
    """What every thread does first. The returned state is passed to every role."""
    s = Rows(m)
    s.count = ceildiv(s.rows - m.block(0), s.ctas)
    m.barriers_stand()
    return s


@recorded
def _load(m: Recorder, s: Rows) -> None:
    """Copy one row into each slot."""
    for it in range(s.count):
        slot = s.ring.producer.acquire(it)
        m.bulk(slot.row_s, s.x.span(m.block(0) + it * s.ctas, m.k.dim), slot)
        slot.commit()


@recorded
def _normalise(m: Recorder, s: Rows) -> None:
    """One meeting per row suffices: warps that are ahead write the next row's sums to the other place."""
    held, factors = s.held, s.factors
    leaf.read_weight(m, factors, s.weight)
    for it in range(s.count):
        slot = s.ring.reader.wait(it)
        leaf.read_row(m, held, slot.row_s)
        slot.release()
        sums = s.sum_s.stage(it)
        leaf.sum_squares(m, sums, held)
        m.meet("normalise")
        leaf.write_row(m, s.y, m.block(0) + it * s.ctas, held, factors, sums, s.eps)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: _start, "normalise": _normalise, "load": _load}


PROGRAM = TileProgram(
    op="rms_norm",
    problem=problems.get("rms_norm"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    scratch=(OperandSpec("ctas", (), "int32", "scalar", doc="CTAs that take rows in turn"),),
)
