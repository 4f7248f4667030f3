"""Attention on Blackwell: two sides of 128 rows in tensor memory, and one warp that issues all products."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

from ....device.torch import fragment
from ....tile.channel import Reading
from ....tile.frontend import Int32, inline, recorded
from ....tile.lang import LOG2_E, START, Body, Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule
from ....tile.text import Recorder, Value, ceildiv, maximum, minimum
from ..leaves import blackwell as leaf_sm100
from ..leaves import common as leaf
from ..problem import DTYPES
from .common import (
    HELD,
    LANES,
    RESCALE_LOG2,
    SIDES,
    TENSOR,
    Work,
    load,
    place_head,
    place_item,
    schedule,
    shared,
    start,
    store_rows,
)


def declare(k: SimpleNamespace) -> Schedule:
    """Two warpgroups have 128 rows each in tensor memory: scores, then weights, and the result."""
    dtype = DTYPES[k.dtype]
    mma = (Reader("mma", Engine.TCGEN05),)

    def registers(text: str, side: int, columns: int, of: str = "float32", doc: str = "") -> Buffer:
        """Registers of a thread, which has one row."""
        return Buffer.own(f"{text}_{side}", f"soften_{side}", columns, of, LANES, doc)

    def of_side(side: int) -> tuple[Buffer, ...]:
        return (
            shared(k, f"o_s_{side}", LANES),
            Buffer(f"s_t_{side}", TENSOR, (LANES, k.tile), "float32"),
            Buffer(f"p_t_{side}", TENSOR, (LANES, k.tile), dtype),
            Buffer(f"o_t_{side}", TENSOR, (LANES, k.dim), "float32"),
            registers("scores", side, k.tile),
            registers("weights", side, k.tile, dtype),
            registers("part", side, HELD),
            registers("rounded", side, HELD, dtype),
            registers("top", side, 1, doc="running maximum of a row's scores"),
            registers("total", side, 1, doc="running sum of a row's weights"),
            registers("factor", side, 1, doc="factor on earlier weights of a row"),
            registers("limit", side, 1, doc="the score from which a row's maximum rises"),
        )

    def pipelines(side: int) -> tuple[Pipeline, ...]:
        role = f"soften_{side}"
        reader = (Reader(role, Engine.TMEM, "warp"),)
        s, p, o = (f"{text}_{side}" for text in "spo")
        return (
            Pipeline(s, (f"s_t_{side}",), "mma", Engine.TCGEN05, reader),
            Pipeline(
                p, (f"p_t_{side}",), role, Engine.TMEM, mma, fill_arrive="warp", doc=f"also returns {o}"
            ),
            Pipeline(o, (f"o_t_{side}",), "mma", Engine.TCGEN05, reader, returned_by=p, accumulates=True),
        )

    def products(side: int) -> tuple[Mma, ...]:
        return (
            Mma(
                f"qk_{side}",
                "tcgen05",
                "mma",
                LANES,
                k.tile,
                k.dim,
                dtype,
                a="q_s",
                b="k_s",
                acc=f"s_t_{side}",
                doc="S = Q K^T",
            ),
            Mma(
                f"pv_{side}",
                "tcgen05",
                "mma",
                LANES,
                k.dim,
                k.tile,
                dtype,
                b_major="mn",
                a_space=TENSOR,
                a=f"p_t_{side}",
                b="v_s",
                acc=f"o_t_{side}",
                doc="O += P V",
            ),
        )

    return schedule(
        k, LANES, len(SIDES), mma,
        roles=(
            *(
                Role(f"soften_{side}", 4, doc=f"softmax and epilogue of the {text} 128 rows")
                for side, text in zip(SIDES, ("first", "last"), strict=True)
            ),
            Role("load", 1, doc="queries, keys and values"),
            Role("mma", 1, doc="issues every tcgen05.mma and commit"),
        ),
        buffers=tuple(buffer for side in SIDES for buffer in of_side(side)),
        pipelines=tuple(pipeline for side in SIDES for pipeline in pipelines(side)),
        mmas=tuple(product for side in SIDES for product in products(side)),
        named_barriers={f"staged_{side}": (f"soften_{side}",) for side in SIDES},
    )  # fmt: skip


@recorded
def _issue(m: Recorder, s: Work) -> None:
    """Issue the scores of the next tile before the second product of this tile, one side after the other.

    The first side skips the tiles whose keys none of its rows sees. These tiles come first.
    """
    groups = len(SIDES)
    done: Int32 = 0
    own_done: Int32 = 0
    for item in range(s.items):
        place_item(s, item)
        others: Int32 = s.tiles - ceildiv(minimum(s.skv, s.seen + LANES), m.k.tile)

        def use(side: int, i: Value) -> Value:
            return own_done + (i - others) if side == 0 else done + i

        def score(side: int, i: Value, keys: Reading) -> None:
            scores = m.channel(f"s_{side}").producer.acquire(use(side, i))
            m.multiply(f"qk_{side}", scores.view(), s.q.reader.slot(item * groups + side).q_s, keys.k_s)
            scores.commit()

        def weigh(side: int, i: Value, values: Reading) -> None:
            p, o = (
                m.channel(f"p_{side}").reader.wait(use(side, i)),
                m.channel(f"o_{side}").producer.acquire(use(side, i)),
            )
            later = inline(i > (others if side == 0 else 0))
            m.multiply(f"pv_{side}", o.view(), p.view(), values.v_s, accumulate=later)
            p.release()
            o.commit()

        first_keys = s.k.reader.wait(done)
        for side in SIDES:
            s.q.reader.wait(item * groups + side)
        if others == 0:
            score(0, 0, first_keys)
        score(1, 0, first_keys)
        first_keys.release()
        for i in range(1, s.tiles):
            keys = s.k.reader.wait(done + i)
            if i >= others:
                score(0, i, keys)
            values = s.v.reader.wait(done + (i - 1))
            if i > others:
                weigh(0, i - 1, values)
            score(1, i, keys)
            keys.release()
            weigh(1, i - 1, values)
            values.release()
        for side in SIDES:
            s.q.reader.slot(item * groups + side).release()
        last_values = s.v.reader.wait(done + (s.tiles - 1))
        for side in SIDES:
            weigh(side, s.tiles - 1, last_values)
        last_values.release()
        done += s.tiles
        own_done += s.tiles - others


@recorded
def _softmax(m: Recorder, s: Work, side: int) -> None:
    """Compute the weights of a tile while the scores of the next tile are in flight.

    The result stays in tensor memory. Where a maximum rises, the result is rescaled before the weights are
    handed on. Tiles are those that the rows of this side see.
    """
    scores, weights, part, rounded, top, total, factor, limit = (
        m.buffer(f"{text}_{side}")
        for text in ("scores", "weights", "part", "rounded", "top", "total", "factor", "limit")
    )
    scale = s.sm_scale * LOG2_E
    done: Int32 = 0
    first_row = side * LANES
    for item in range(s.items):
        place_item(s, item, first_row + LANES)
        place_head(s)
        own_row = s.row + first_row

        def step(i: Value, hidden: bool, first: bool) -> None:
            handed = m.channel(f"s_{side}").reader.wait(done + i)
            fragment.read_tensor(m, scores, handed.view(), m.thread)
            handed.release()
            if hidden:
                key = inline((s.tiles - 1 - i) * m.k.tile)
                leaf.hide_keys(m, scores, own_row, key, s.skv, s.shift, 1)
            rows = (scores, top, total, factor, limit)
            leaf.online_softmax_lazily(m, *rows, scale, RESCALE_LOG2, hidden, m.k.lazy == 2)
            fragment.round_to(m, weights, scores)
            p = m.channel(f"p_{side}").producer.acquire(done + i)
            fragment.write_tensor(m, p.view(), weights, m.thread)
            if not first:
                o = m.channel(f"o_{side}").reader.wait(done + (i - 1))
                leaf_sm100.rescale_output(m, o.view(), m.k.dim, factor, part)
                o.release()
            p.commit()

        m.fill(top, -math.inf)
        m.fill(total, 0.0)
        m.fill(limit, -0.0)
        step(0, True, True)
        # The last tiles come first. Some row does not see these whole.
        whole = inline(minimum(s.skv, s.seen + (first_row + 1)) // m.k.tile)
        masked: Int32 = maximum(1, s.tiles - whole)
        for i in range(1, masked):
            step(i, True, False)
        for i in range(masked, s.tiles):
            step(i, False, False)
        leaf_sm100.finish_rows(m, top, total, scale)
        leaf.store_lse(m, s.lse, top, s.batch, s.head, s.heads, own_row, s.sq)
        m.await_stores(barrier=f"staged_{side}")
        o_s = m.buffer(f"o_s_{side}")
        o = m.channel(f"o_{side}").reader.wait(done + (s.tiles - 1))
        leaf_sm100.stage_output(m, o_s, o.view(), m.k.dim, total, part, rounded)
        o.release()
        store_rows(s, f"staged_{side}", o_s, own_row)
        done += s.tiles
    m.await_stores()


def bodies() -> dict[str, Body]:
    softmax = {f"soften_{side}": partial(_softmax, side=side) for side in SIDES}
    return {START: start, "load": load, "mma": _issue, **softmax}
