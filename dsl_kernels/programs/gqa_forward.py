"""Grouped-query attention, forward, as a tile program: query rows on M, keys on N.

    S[rows, keys] = Q K^T;   P = exp2(scale * (S - top)) in 16 bits;   O[rows, dim] += P V

A CTA takes a block of query rows of one head. One warp copies: the queries once, keys and values through a ring each.
Tiles go from the last key to the first. So the first tiles are those that only the later rows of the block see, which a
warpgroup without such rows skips; then come the masked tiles, then those that all rows see whole.

On Hopper two or three warpgroups have 64 rows each and run one text, with scores and result in registers. Each issues
the scores of the next tile, then the second product of this one, and works out the next weights while that runs; with
`order` they take turns at issuing, so that one multiplies while the other is at its softmax.

On Blackwell a block has two sides of 128 rows, each with a warpgroup for its softmax; scores, weights and result lie in
tensor memory. One warp issues all products: while a side is at its softmax, those of the other run.

Work items are (head, block of rows). Heads that share keys are adjacent, and blocks of a causal call come heaviest first.
Each round of `ctas` items gives a CTA one, in alternating direction; it copies the next item's tiles during its epilogue.
The CTAs of a cluster take the same block of heads that share keys: each copies its part of every tile for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from .. import problems
from ..abi import TensorMap
from ..arch import ArchSpec
from ..device.torch import fragment
from ..device.torch import gqa_forward as leaf
from ..device.torch import gqa_forward_sm100 as leaf_sm100
from ..problems.gqa_forward import DTYPES
from ..tile.frontend import Int32, State, inline, recorded
from ..tile.lang import (
    START,
    Body,
    Buffer,
    Engine,
    Guard,
    Knob,
    Mma,
    Pipeline,
    Reader,
    Role,
    Schedule,
    Size,
    Space,
    Turn,
)
from ..tile.program import TileProgram
from ..tile.text import Box, Recorder, Slot, Value, View, ceildiv, maximum, minimum

SHARED, REGISTER, TENSOR = Space.SHARED, Space.REGISTER, Space.TENSOR
GROUP_ROWS = Size(64, "GROUP_ROWS")
# On Blackwell a warpgroup has a row a lane of tensor memory.
LANES = Size(128, "GROUP_ROWS")
SIDES = (0, 1)
# Columns of the result that it has in registers at once.
HELD = Size(32, "HELD")
# Registers of a thread by the number of warpgroups that attend: of those, and of the one that loads.
REGISTERS = {1: (232, 40), 2: (232, 40), 3: (160, 32)}
# Columns of one copy: 128 bytes, what a swizzled row of shared memory has.
PANEL = Size(64, "PANEL")
# A maximum rises when a score exceeds it by this many powers of two; float16 holds weights up to 2^15.
RESCALE_LOG2 = Size(8, "RESCALE_LOG2")
LOG2E = math.log2(math.e)

KNOBS = (
    Knob("dtype", "", ((*DTYPES,),), "dtype of queries, keys, values and output"),
    Knob("dim", "d", ((128, 64),), "elements of a head"),
    Knob("tile", "n", ((128, 160, 80, 64), (96,)), "keys a tile"),
    Knob("stages", "st", ((2, 4, 3),), "tiles of keys, and of values, in flight"),
    Knob("order", "o", ((0, 1),), "the warpgroups take turns at issuing products", archs=("sm_90a",)),
    Knob("cluster", "c", ((1, 2),), "CTAs that share tiles of keys and values"),
    Knob("groups", "w", ((2, 3), (1,)), "warpgroups of 64 query rows each", archs=("sm_90a",), plain=2),
    Knob(
        "lazy",
        "z",
        ((0, 1, 2),),
        "maxima rise only when they must; 2: found by the bits of the scores",
        plain=0,
    ),
    Knob(
        "ablation",
        "",
        (("none",), ("nosoftmax", "nooverlap")),
        "for measurement only: weights are the scores; each product is awaited before the softmax",
        archs=("sm_90a",),
        plain="none",
    ),
)


def measures(knobs: Mapping[str, Any]) -> str | None:
    """Why a schedule only measures others, or None where it is one to call."""
    if knobs.get("groups") == 1:
        return "one warpgroup a CTA, to measure what two do to each other"
    if knobs.get("ablation", "none") != "none":
        return f"ablation {knobs['ablation']}, to measure the others: call `none`"
    return None


def group_rows(k: SimpleNamespace) -> Size:
    """Query rows of a warpgroup."""
    return GROUP_ROWS if hasattr(k, "groups") else LANES


def query_rows(k: SimpleNamespace) -> Size:
    """Query rows of a CTA."""
    return Size(group_rows(k) * getattr(k, "groups", len(SIDES)), "ROWS")


def _map(operand: str, rows: int, k: SimpleNamespace) -> TensorMap:
    """Boxes of `rows` steps of one head, a panel of its elements wide; zeros past the end of the sequence."""
    steps, heads = ("sq", "heads") if operand in ("q", "out") else ("skv", "kv_heads")
    strides = tuple(f"{operand}_stride_{axis} * 2" for axis in "shb")
    if operand == "out":
        strides = (f"heads * {k.dim} * 2", f"{k.dim} * 2", f"sq * heads * {k.dim} * 2")
    return TensorMap(
        f"{operand}_map", operand, DTYPES[k.dtype].upper(), (str(k.dim), steps, heads, "b"), strides, (PANEL, rows, 1, 1),
        (1,) * 4, swizzle="128B", l2_promotion="L2_128B",
    )  # fmt: skip


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return _blackwell(k) if arch.tmem_columns else _hopper(k)


def _hopper(k: SimpleNamespace) -> Schedule:
    dtype, soft = DTYPES[k.dtype], k.ablation != "nosoftmax"
    reader = (Reader("attend", Engine.WGMMA, "warp"),)

    def shared(text: str, rows: int, stages: int = 1) -> Buffer:
        return Buffer(text, SHARED, (rows, k.dim), dtype, stages, swizzle=128)

    def rows(text: str, doc: str) -> Buffer:
        return Buffer(
            text, REGISTER, (GROUP_ROWS,), "float32", role="attend", per_thread=2, private=True, doc=doc
        )

    def held(text: str, columns: int, of: str) -> Buffer:
        return Buffer(text, REGISTER, (GROUP_ROWS, columns), of, role="attend")

    return Schedule(
        roles=(
            Role("attend", 4, registers=REGISTERS[k.groups][0], doc="64 rows each: products, softmax, epilogue", replicas=k.groups),
            Role("load", 4, registers=REGISTERS[k.groups][1], doc="queries, keys and values", active=1),
        ),
        buffers=(
            shared("q_s", query_rows(k)),
            shared("k_s", k.tile, k.stages),
            shared("v_s", k.tile, k.stages),
            shared("o_s", query_rows(k)),
            held("scores", k.tile, "float32"),
            held("weights", k.tile, dtype),
            held("acc", k.dim, "float32"),
            held("rounded", k.dim, dtype),
            rows("top", "running maximum of a row's scores"),
            rows("total", "running sum of a row's weights"),
            *((rows("factor", "what earlier weights of a row shrink by"),) if soft else ()),
            *((rows("limit", "the score from which on a row's maximum rises"),) if soft and k.lazy else ()),
        ),
        pipelines=(
            Pipeline("q", ("q_s",), "load", Engine.BULK, reader),
            Pipeline("k", ("k_s",), "load", Engine.BULK, reader, k.stages, multicast=k.cluster > 1),
            Pipeline("v", ("v_s",), "load", Engine.BULK, reader, k.stages, multicast=k.cluster > 1),
        ),
        mmas=(
            Mma("qk", "wgmma", "attend", GROUP_ROWS, k.tile, k.dim, dtype, a="q_s", b="k_s", acc="scores", doc="S = Q K^T"),
            Mma(
                "pv", "wgmma", "attend", GROUP_ROWS, k.dim, k.tile, dtype, b_major="mn", a_space=REGISTER, a="weights", b="v_s",
                acc="acc", doc="O += P V",
            ),
        ),
        grid=("ctas", str(k.cluster)),
        axes=("cta", "rank"),
        cluster=(1, k.cluster, 1),
        group=(1,) if k.cluster > 1 else (),
        named_barriers={"staged": ("attend",)},
        apart=("staged",),
        turns=(Turn("issue", ("attend",)),) if k.order else (),
        maps=(
            _map("q", query_rows(k), k), _map("k", k.tile // k.cluster, k), _map("v", k.tile // k.cluster, k), _map("out", GROUP_ROWS, k),
        ),
        min_ctas_per_sm=1,
    )  # fmt: skip


def _blackwell(k: SimpleNamespace) -> Schedule:
    """Two warpgroups with 128 rows each in tensor memory: scores, then their weights, and the result."""
    dtype = DTYPES[k.dtype]
    mma = (Reader("mma", Engine.TCGEN05),)

    def shared(text: str, rows: int, stages: int = 1) -> Buffer:
        return Buffer(text, SHARED, (rows, k.dim), dtype, stages, swizzle=128)

    def held(text: str, side: int, columns: int, of: str = "float32") -> Buffer:
        return Buffer(f"{text}_{side}", REGISTER, (LANES, columns), of, role=f"soften_{side}")

    def rows(text: str, side: int, doc: str) -> Buffer:
        return Buffer(
            f"{text}_{side}",
            REGISTER,
            (LANES,),
            "float32",
            role=f"soften_{side}",
            per_thread=1,
            private=True,
            doc=doc,
        )

    def of_side(side: int) -> tuple[Buffer, ...]:
        return (
            shared(f"o_s_{side}", LANES),
            Buffer(f"s_t_{side}", TENSOR, (LANES, k.tile), "float32"),
            Buffer(f"p_t_{side}", TENSOR, (LANES, k.tile), dtype),
            Buffer(f"o_t_{side}", TENSOR, (LANES, k.dim), "float32"),
            held("scores", side, k.tile),
            held("weights", side, k.tile, dtype),
            held("part", side, HELD),
            held("rounded", side, HELD, dtype),
            rows("top", side, "running maximum of a row's scores"),
            rows("total", side, "running sum of a row's weights"),
            rows("factor", side, "what earlier weights of a row shrink by"),
            rows("limit", side, "the score from which on a row's maximum rises"),
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

    return Schedule(
        roles=(
            *(Role(f"soften_{side}", 4, doc=f"softmax and epilogue of the {text} 128 rows") for side, text in zip(SIDES, ("first", "last"), strict=True)),
            Role("load", 1, doc="queries, keys and values"),
            Role("mma", 1, doc="issues every tcgen05.mma and commit"),
        ),
        buffers=(
            shared("q_s", LANES, len(SIDES)),
            shared("k_s", k.tile, k.stages),
            shared("v_s", k.tile, k.stages),
            *(buffer for side in SIDES for buffer in of_side(side)),
        ),
        pipelines=(
            Pipeline("q", ("q_s",), "load", Engine.BULK, mma, len(SIDES)),
            Pipeline("k", ("k_s",), "load", Engine.BULK, mma, k.stages, multicast=k.cluster > 1),
            Pipeline("v", ("v_s",), "load", Engine.BULK, mma, k.stages, multicast=k.cluster > 1),
            *(pipeline for side in SIDES for pipeline in pipelines(side)),
        ),
        mmas=tuple(product for side in SIDES for product in products(side)),
        grid=("ctas", str(k.cluster)),
        axes=("cta", "rank"),
        cluster=(1, k.cluster, 1),
        group=(1,) if k.cluster > 1 else (),
        named_barriers={f"staged_{side}": (f"soften_{side}",) for side in SIDES},
        maps=(
            _map("q", LANES, k), _map("k", k.tile // k.cluster, k), _map("v", k.tile // k.cluster, k), _map("out", LANES, k),
        ),
        min_ctas_per_sm=1,
    )  # fmt: skip


class Work(State):
    """What a role knows of its CTA's work items, and of the one that it is at."""

    blocks: Value
    bundles: Value
    all_items: Value
    items: Int32
    shift: Int32
    # The item that the role is at. A bundle has a head for each CTA of the cluster. Rows begin at `row`, which sees keys
    # 0 to `seen`, and its rows see keys of the first `tiles` tiles.
    bundle: Value
    row: Int32
    seen: Value
    tiles: Int32
    batch: Value
    head: Value


@recorded
def _start(m: Recorder) -> Work:
    """What every thread does first: the barriers, and this CTA's number of items."""
    s = Work(m)
    s.blocks = ceildiv(m.dim("sq"), query_rows(m.k))
    s.bundles = m.dim("b") * m.dim("heads") // m.k.cluster
    s.all_items = s.blocks * s.bundles
    s.items = ceildiv(s.all_items - _turned(m, s.all_items // m.dim("ctas")), m.dim("ctas"))
    s.shift = m.dim("skv") - m.dim("causal") * m.dim("sq")
    m.barriers_stand()
    return s


@recorded
def _turned(m: Recorder, item: Any) -> Any:
    """This CTA's place in a round of items: rounds alternate in direction, so that no CTA always has the heavier one."""
    return m.block(0) + item % 2 * (m.dim("ctas") - 1 - 2 * m.block(0))


@recorded
def _place(s: Work, item: Value, rows: int | None = None) -> None:
    """Where the item lies, and how many tiles of keys its first `rows` rows see, by default all of its rows.

    `abreast` heads (one a CTA of the cluster) are worked on side by side, the last block of rows of each first.
    """
    m, abreast = s.m, s.m.dim("abreast")
    number: Int32 = _turned(m, item) + item * m.dim("ctas")
    first: Int32 = number // (abreast * s.blocks) * abreast
    within: Int32 = number - first * s.blocks
    width: Int32 = minimum(abreast, s.bundles - first)
    s.bundle = inline(first + within % width)
    s.row = (s.blocks - 1 - within // width) * query_rows(m.k)
    s.seen = inline(s.row + s.shift)
    s.tiles = ceildiv(minimum(m.dim("skv"), s.seen + (rows or query_rows(m.k))), m.k.tile)


@recorded
def _head(s: Work) -> None:
    """The sequence and the head of an item."""
    m, cluster = s.m, s.m.k.cluster
    pair: Int32 = s.bundle * cluster + m.block(1) if cluster > 1 else s.bundle
    s.batch = pair // m.dim("heads")
    s.head = pair - s.batch * m.dim("heads")


def _panels(m: Recorder) -> range:
    return range(0, m.k.dim, PANEL)


@recorded
def _load(m: Recorder, s: Work) -> None:
    """Queries, and tiles of keys and values from the last to the first; `done` tiles belong to earlier items."""
    done: Int32 = 0
    for item in range(s.items):
        _place(s, item)
        _head(s)
        kv_head = s.head * m.dim("kv_heads") // m.dim("heads")

        def copy(slot: Slot, operand: str, rows: int, *place: Value, shared: bool) -> None:
            """`rows` rows of one head at `place`; a part of them by each CTA of the cluster where all take them."""
            share = rows // m.k.cluster if shared else rows
            part = inline(m.block(1) * share if share < rows else 0)
            batch, head, row = place
            for column in _panels(m):
                box = Box(f"{operand}_map", (batch, head, row + part, column))
                view = slot.view().part(part, share).columns(column, PANEL)
                m.bulk(view, box, slot, multicast=share < rows)
            m.commit(slot)

        def copy_tile(operand: str, i: Value) -> None:
            slot = m.acquire(operand, done + i)
            copy(slot, operand, m.k.tile, s.batch, kv_head, (s.tiles - 1 - i) * m.k.tile, shared=True)

        copy_tile("k", 0)
        queries = m.schedule.buffer("q_s")
        for part in range(queries.stages):
            rows = queries.shape[0]
            slot = m.acquire("q", item * queries.stages + part)
            copy(slot, "q", rows, s.batch, s.head, s.row + part * rows, shared=False)
        for i in range(1, s.tiles):
            copy_tile("k", i)
            copy_tile("v", i - 1)
        copy_tile("v", s.tiles - 1)
        done += s.tiles


@recorded
def _attend(m: Recorder, s: Work) -> None:
    """A warpgroup of Hopper: its 64 rows' scores, softmax and result, all in registers."""
    scores, weights, acc = m.buffer("scores"), m.buffer("weights"), m.buffer("acc")
    top, total, soft = m.buffer("top"), m.buffer("total"), m.k.ablation != "nosoftmax"
    scale = m.scalar("sm_scale") * LOG2E
    first_row = inline(m.replica * GROUP_ROWS if m.k.groups > 1 else 0)
    done: Int32 = 0
    for item in range(s.items):
        _place(s, item)
        _head(s)
        own_row = s.row + first_row
        # Its rows see fewer keys than those of the warpgroups after it: the tiles of the others come first.
        others: Int32 = s.tiles - ceildiv(minimum(m.dim("skv"), s.seen + (first_row + GROUP_ROWS)), m.k.tile)

        def score(i: Value) -> Slot:
            slot = m.wait("k", done + i)
            m.multiply("qk", scores, m.slot("q", item).q_s.part(first_row, GROUP_ROWS), slot.k_s)
            return slot

        def weigh(i: Value) -> Slot:
            slot = m.wait("v", done + i)
            m.multiply("pv", acc, weights, slot.v_s, accumulate=True)
            return slot

        def softmax(i: Value, hidden: bool) -> None:
            if not soft:
                return
            if hidden:
                key = inline((s.tiles - 1 - i) * m.k.tile)
                leaf.hide_keys(m, scores, own_row, key, m.dim("skv"), s.shift, m.thread)
            rows = (scores, top, total, m.buffer("factor"))
            if m.k.lazy:
                limit, bits = m.buffer("limit"), m.k.lazy == 2
                leaf.online_softmax_lazily(m, *rows, limit, scale, RESCALE_LOG2, hidden, bits, m.thread)
            else:
                leaf.online_softmax(m, *rows, scale, hidden, m.thread)

        def step(i: Value, hidden: bool) -> None:
            """The scores of tile i and its weights, while the second product of the tile before runs."""
            if m.k.order:
                m.take_turn("issue")
            keys = score(i)
            values = weigh(i - 1)
            if m.k.order:
                m.pass_turn("issue")
            m.release(keys, pending=1)
            if m.k.ablation == "nooverlap":
                m.release(values)
            softmax(i, hidden)
            if m.k.ablation != "nooverlap":
                m.release(values)
            fragment.round_to(m, weights, scores)
            if soft:
                leaf.rescale_rows(m, acc, m.buffer("factor"), m.thread)

        m.fill(acc, 0.0)
        m.fill(top, -math.inf)
        m.fill(total, 0.0)
        if soft and m.k.lazy:
            m.fill(m.buffer("limit"), -0.0)
        q = m.wait("q", item)
        for i in range(others):
            if m.k.order:
                m.take_turn("issue")
                m.pass_turn("issue")
            m.release(m.wait("k", done + i))
            m.release(m.wait("v", done + i))
        m.release(score(others))
        softmax(others, True)
        fragment.round_to(m, weights, scores)
        # The last tiles come first: those that some row does not see whole.
        whole = inline(minimum(m.dim("skv"), s.seen + (first_row + 1)) // m.k.tile)
        masked: Int32 = maximum(others + 1, s.tiles - whole)
        for i in range(others + 1, masked):
            step(i, True)
        for i in range(masked, s.tiles):
            step(i, False)
        values = weigh(s.tiles - 1)
        m.release(q, pending=1)
        m.release(values)
        leaf.divide_by_total(m, acc, top, total, scale, m.thread)
        leaf.store_lse(
            m, m.operand("lse"), top, s.batch, s.head, m.dim("heads"), own_row, m.dim("sq"), m.thread
        )
        fragment.round_to(m, m.buffer("rounded"), acc)
        m.await_stores(barrier="staged")
        o_s = m.buffer("o_s")
        fragment.stage_rows(m, o_s, first_row, query_rows(m.k), m.buffer("rounded"), m.thread)
        _store(s, "staged", o_s.part(first_row, GROUP_ROWS), own_row)
        done += s.tiles
    m.await_stores()


@recorded
def _store(s: Work, barrier: str, staged: View, row: Value) -> None:
    """What a warpgroup has staged, to the output from `row` on."""
    boxes = [(column, Box("out_map", (s.batch, s.head, row, column))) for column in _panels(s.m)]
    s.m.store(barrier, *((box, staged.columns(column, PANEL)) for column, box in boxes))


@recorded
def _issue(m: Recorder, s: Work) -> None:
    """Scores of the next tile before the second product of this one, of one side after the other.

    The first side leaves out the tiles whose keys none of its rows sees: they come first.
    """
    groups = len(SIDES)
    done: Int32 = 0
    own_done: Int32 = 0
    for item in range(s.items):
        _place(s, item)
        others: Int32 = s.tiles - ceildiv(minimum(m.dim("skv"), s.seen + LANES), m.k.tile)

        def use(side: int, i: Value) -> Value:
            return own_done + (i - others) if side == 0 else done + i

        def score(side: int, i: Value, keys: Slot) -> None:
            scores = m.acquire(f"s_{side}", use(side, i))
            m.multiply(f"qk_{side}", scores.view(), m.slot("q", item * groups + side).q_s, keys.k_s)
            m.commit(scores)

        def weigh(side: int, i: Value, values: Slot) -> None:
            p, o = m.wait(f"p_{side}", use(side, i)), m.acquire(f"o_{side}", use(side, i))
            later = inline(i > (others if side == 0 else 0))
            m.multiply(f"pv_{side}", o.view(), p.view(), values.v_s, accumulate=later)
            m.release(p)
            m.commit(o)

        first_keys = m.wait("k", done)
        for side in SIDES:
            m.wait("q", item * groups + side)
        if others == 0:
            score(0, 0, first_keys)
        score(1, 0, first_keys)
        m.release(first_keys)
        for i in range(1, s.tiles):
            keys = m.wait("k", done + i)
            if i >= others:
                score(0, i, keys)
            values = m.wait("v", done + (i - 1))
            if i > others:
                weigh(0, i - 1, values)
            score(1, i, keys)
            m.release(keys)
            weigh(1, i - 1, values)
            m.release(values)
        for side in SIDES:
            m.release(m.slot("q", item * groups + side))
        last_values = m.wait("v", done + (s.tiles - 1))
        for side in SIDES:
            weigh(side, s.tiles - 1, last_values)
        m.release(last_values)
        done += s.tiles
        own_done += s.tiles - others


@recorded
def _softmax(m: Recorder, s: Work, side: int) -> None:
    """The weights of a tile while the scores of the next one are in flight; the result stays in tensor memory.

    Tiles are those that its rows see. Where a maximum rises it is rescaled, before the weights are handed on.
    """
    scores, weights, part, rounded, top, total, factor, limit = (
        m.buffer(f"{text}_{side}")
        for text in ("scores", "weights", "part", "rounded", "top", "total", "factor", "limit")
    )
    scale = m.scalar("sm_scale") * LOG2E
    done: Int32 = 0
    first_row = side * LANES
    for item in range(s.items):
        _place(s, item, first_row + LANES)
        _head(s)
        own_row = s.row + first_row

        def step(i: Value, hidden: bool, first: bool) -> None:
            handed = m.wait(f"s_{side}", done + i)
            fragment.read_tensor(m, scores, handed.view(), m.thread)
            m.release(handed)
            if hidden:
                key = inline((s.tiles - 1 - i) * m.k.tile)
                leaf.hide_keys(m, scores, own_row, key, m.dim("skv"), s.shift, m.thread)
            rows = (scores, top, total, factor, limit)
            leaf.online_softmax_lazily(m, *rows, scale, RESCALE_LOG2, hidden, m.k.lazy == 2, m.thread)
            fragment.round_to(m, weights, scores)
            p = m.acquire(f"p_{side}", done + i)
            fragment.write_tensor(m, p.view(), weights, m.thread)
            if not first:
                o = m.wait(f"o_{side}", done + (i - 1))
                leaf_sm100.rescale_output(m, o.view(), m.k.dim, factor, part, m.thread)
                m.release(o)
            m.commit(p)

        m.fill(top, -math.inf)
        m.fill(total, 0.0)
        m.fill(limit, -0.0)
        step(0, True, True)
        # The last tiles come first: those that some row does not see whole.
        whole = inline(minimum(m.dim("skv"), s.seen + (first_row + 1)) // m.k.tile)
        masked: Int32 = maximum(1, s.tiles - whole)
        for i in range(1, masked):
            step(i, True, False)
        for i in range(masked, s.tiles):
            step(i, False, False)
        leaf_sm100.finish_rows(m, top, total, scale, m.thread)
        leaf.store_lse(
            m, m.operand("lse"), top, s.batch, s.head, m.dim("heads"), own_row, m.dim("sq"), m.thread
        )
        m.await_stores(barrier=f"staged_{side}")
        o_s = m.buffer(f"o_s_{side}")
        o = m.wait(f"o_{side}", done + (s.tiles - 1))
        leaf_sm100.stage_output(m, o_s, o.view(), m.k.dim, total, part, rounded, m.thread)
        m.release(o)
        _store(s, f"staged_{side}", o_s, own_row)
        done += s.tiles
    m.await_stores()


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    if arch.tmem_columns:
        return {
            START: _start,
            "load": _load,
            "mma": _issue,
            **{f"soften_{side}": partial(_softmax, side=side) for side in SIDES},
        }
    return {START: _start, "load": _load, "attend": _attend}


def _form(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return None if knobs["dtype"] == call["form"] else f"dtype {call['form']}, built for {knobs['dtype']}"


def _dim(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return None if knobs["dim"] == call["dim"] else f"dim = {call['dim']}, built for {knobs['dim']}"


def _shared(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    group = call["heads"] // max(1, call["kv_heads"])
    if group % knobs["cluster"] == 0:
        return None
    return f"{group} query heads a key head, built for clusters of {knobs['cluster']} that share one"


def _measured(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return measures(knobs)


PROGRAM = TileProgram(
    op="gqa_forward",
    problem=problems.get("gqa_forward"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    guards=(
        Guard("dtype", _form),
        Guard("dim", _dim),
        Guard("heads", _shared),
        Guard("measurement", _measured),
    ),
)
