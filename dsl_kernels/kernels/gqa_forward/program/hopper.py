"""Attention on Hopper: two or three warpgroups of 64 rows, with scores and result in registers."""

from __future__ import annotations

import math
from types import SimpleNamespace

from ....device.torch import fragment
from ....tile.channel import Reading
from ....tile.frontend import Int32, inline, recorded
from ....tile.lang import LOG2_E, START, Body, Buffer, Engine, Mma, Reader, Role, Schedule, Turn
from ....tile.text import Recorder, Value, ceildiv, maximum, minimum
from ..leaves import common as leaf
from ..problem import DTYPES
from .common import (
    GROUP_ROWS,
    REGISTER,
    REGISTERS,
    RESCALE_LOG2,
    Work,
    load,
    place_head,
    place_item,
    query_rows,
    schedule,
    shared,
    start,
    store_rows,
)


def declare(k: SimpleNamespace) -> Schedule:
    dtype, soft = DTYPES[k.dtype], k.ablation != "nosoftmax"
    reader = (Reader("attend", Engine.WGMMA, "warp"),)

    def rows(text: str, doc: str) -> Buffer:
        return Buffer(text, REGISTER, (GROUP_ROWS,), "float32", role="attend", per_thread=2, doc=doc)

    def fragment(text: str, columns: int, of: str) -> Buffer:
        return Buffer(text, REGISTER, (GROUP_ROWS, columns), of, role="attend")

    return schedule(
        k, query_rows(k), 1, reader,
        roles=(
            Role(
                "attend", 4, registers=REGISTERS[k.groups][0],
                doc="64 rows each: products, softmax, epilogue", replicas=k.groups,
            ),
            Role("load", 4, registers=REGISTERS[k.groups][1], doc="queries, keys and values", active=1),
        ),
        buffers=(
            shared(k, "o_s", query_rows(k)),
            fragment("scores", k.tile, "float32"),
            fragment("weights", k.tile, dtype),
            fragment("acc", k.dim, "float32"),
            rows("top", "running maximum of a row's scores"),
            Buffer.own("total", "attend", 2, doc="running sum of a row's weights in a thread's columns"),
            *((rows("factor", "factor on earlier weights of a row"),) if soft else ()),
            *((rows("limit", "the score from which a row's maximum rises"),) if soft and k.lazy else ()),
        ),
        mmas=(
            Mma(
                "qk", "wgmma", "attend", GROUP_ROWS, k.tile, k.dim, dtype, a="q_s", b="k_s", acc="scores",
                doc="S = Q K^T",
            ),
            Mma(
                "pv", "wgmma", "attend", GROUP_ROWS, k.dim, k.tile, dtype, b_major="mn", a_space=REGISTER,
                a="weights", b="v_s", acc="acc", doc="O += P V",
            ),
        ),
        named_barriers={"staged": ("attend",)},
        apart=("staged",),
        turns=(Turn("issue", ("attend",)),) if k.order else (),
    )  # fmt: skip


def overlaps(k: SimpleNamespace) -> bool:
    """Whether a warpgroup's softmax runs beside its own product, too.

    Two warpgroups that take turns are faster without: each then multiplies while the other is at its softmax.
    """
    return k.ablation == "none" and (k.groups > 2 or not k.order)


def packs(k: SimpleNamespace) -> bool:
    """Whether weights are packed by inline PTX.

    CuTe DSL carries a vector of a power of two of bfloat16 around the loop whole. With three warpgroups there
    are no registers for its copy, and ptxas then waits after every product.
    """
    return k.dtype == "bf16" and k.groups > 2 and k.tile & (k.tile - 1) == 0


@recorded
def _attend(m: Recorder, s: Work) -> None:
    """Hopper: a warpgroup has the scores, softmax and result of its 64 rows, all in registers."""
    top, total, soft = s.top, s.total, m.k.ablation != "nosoftmax"
    round_weights = fragment.pack_to if packs(m.k) else fragment.round_to
    scale = s.sm_scale * LOG2_E
    first_row = inline(m.replica * GROUP_ROWS if m.k.groups > 1 else 0)
    done: Int32 = 0
    for item in range(s.items):
        place_item(s, item)
        place_head(s)
        own_row = s.row + first_row
        # The rows of a warpgroup see fewer keys than the rows of later ones. The tiles of the others come
        # first.
        others: Int32 = s.tiles - ceildiv(minimum(s.skv, s.seen + (first_row + GROUP_ROWS)), m.k.tile)

        def score(i: Value) -> Reading:
            slot = s.k.reader.wait(done + i)
            m.multiply("qk", s.scores, s.q.reader.slot(item).q_s.part(first_row, GROUP_ROWS), slot.k_s)
            return slot

        def weigh(i: Value) -> Reading:
            slot = s.v.reader.wait(done + i)
            m.multiply("pv", s.acc, s.weights, slot.v_s, accumulate=True)
            return slot

        def softmax(i: Value, hidden: bool) -> None:
            if not soft:
                return
            if hidden:
                key = inline((s.tiles - 1 - i) * m.k.tile)
                leaf.hide_keys(m, s.scores, own_row, key, s.skv, s.shift, 2)
            rows = (s.scores, top, total, s.factor)
            if m.k.lazy:
                limit, bits = s.limit, m.k.lazy == 2
                leaf.online_softmax_lazily(m, *rows, limit, scale, RESCALE_LOG2, hidden, bits)
            else:
                leaf.online_softmax(m, *rows, scale, hidden)

        def step(i: Value, hidden: bool) -> None:
            """The scores and weights of tile i, while the second product of the previous tile runs."""
            if m.k.order:
                m.take_turn("issue")
            keys = score(i)
            values = weigh(i - 1)
            if m.k.order:
                m.pass_turn("issue")
            keys.release(pending=1)
            if m.k.ablation == "nooverlap":
                values.release()
            softmax(i, hidden)
            if overlaps(m.k):
                leaf.finish_weights(m)
            if m.k.ablation != "nooverlap":
                values.release()
            round_weights(m, s.weights, s.scores)
            if soft:
                leaf.rescale_rows(m, s.acc, s.factor)

        m.fill(s.acc, 0.0)
        m.fill(top, -math.inf)
        m.fill(total, 0.0)
        if soft and m.k.lazy:
            m.fill(s.limit, -0.0)
        q = s.q.reader.wait(item)
        for i in range(others):
            if m.k.order:
                m.take_turn("issue")
                m.pass_turn("issue")
            s.k.reader.wait(done + i).release()
            s.v.reader.wait(done + i).release()
        score(others).release()
        softmax(others, True)
        round_weights(m, s.weights, s.scores)
        # The last tiles come first. Some row does not see these whole.
        whole = inline(minimum(s.skv, s.seen + (first_row + 1)) // m.k.tile)
        masked: Int32 = maximum(others + 1, s.tiles - whole)
        for i in range(others + 1, masked):
            step(i, True)
        for i in range(masked, s.tiles):
            step(i, False)
        values = weigh(s.tiles - 1)
        q.release(pending=1)
        values.release()
        leaf.divide_by_total(m, s.acc, top, total, scale)
        leaf.store_lse(m, s.lse, top, s.batch, s.head, s.heads, own_row, s.sq)
        m.await_stores(barrier="staged")
        leaf.stage_result(m, s.o_s, first_row, s.acc)
        store_rows(s, "staged", s.o_s.part(first_row, GROUP_ROWS), own_row)
        done += s.tiles
    m.await_stores()


def bodies() -> dict[str, Body]:
    return {START: start, "load": load, "attend": _attend}
