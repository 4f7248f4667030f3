"""The common part of attention's schedules: sizes, work items, the loading role, the store of a result."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ....abi import TensorMap
from ....tile.channel import Channel, Filling
from ....tile.frontend import Float32, Int32, Names, State, inline, recorded
from ....tile.lang import Buffer, Engine, Pipeline, Reader, Schedule, Size, Space
from ....tile.text import Box, Global, Recorder, Value, View, ceildiv, dim, minimum
from ..problem import DTYPES

SHARED, REGISTER, TENSOR = Space.SHARED, Space.REGISTER, Space.TENSOR
GROUP_ROWS = Size(64, "GROUP_ROWS")
# On Blackwell a warpgroup has one row per lane of tensor memory.
LANES = Size(128, "GROUP_ROWS")
SIDES = (0, 1)
# Columns of the result that a Blackwell thread has in registers at once.
HELD = Size(32, "HELD")
# Registers per thread, by the number of attending warpgroups: of these, and of the warpgroup that loads.
REGISTERS = {1: (232, 40), 2: (232, 40), 3: (160, 32)}
# Columns per copy: 128 bytes, the width of a swizzled row of shared memory.
PANEL = Size(64, "PANEL")
# A maximum rises when a score exceeds it by this many powers of two; float16 holds weights up to 2^15.
RESCALE_LOG2 = Size(8, "RESCALE_LOG2")


class Kernel(Names):
    """Pipelines, operands, sizes, scalars and buffers of attention. Schedules differ in their buffers."""

    k: Channel
    q: Channel
    v: Channel
    lse: Global
    abreast: Int32
    b: Int32
    causal: Int32
    ctas: Int32
    heads: Int32
    kv_heads: Int32
    skv: Int32
    sq: Int32
    sm_scale: Float32
    acc: View
    factor: View
    limit: View
    o_s: View
    scores: View
    top: View
    total: View
    weights: View


def group_rows(k: SimpleNamespace) -> Size:
    """Query rows per warpgroup."""
    return GROUP_ROWS if hasattr(k, "groups") else LANES


def query_rows(k: SimpleNamespace) -> Size:
    """Query rows per CTA."""
    return Size(group_rows(k) * getattr(k, "groups", len(SIDES)), "ROWS")


def tensor_map(operand: str, rows: int, k: SimpleNamespace) -> TensorMap:
    """Boxes of `rows` steps of one head, a panel wide; zeros past the end of the sequence."""
    steps, heads = ("sq", "heads") if operand in ("q", "out") else ("skv", "kv_heads")
    strides = tuple(f"{operand}_stride_{axis} * 2" for axis in "shb")
    if operand == "out":
        strides = (f"heads * {k.dim} * 2", f"{k.dim} * 2", f"sq * heads * {k.dim} * 2")
    return TensorMap(
        f"{operand}_map", operand, DTYPES[k.dtype].upper(), (str(k.dim), steps, heads, "b"), strides,
        (PANEL, rows, 1, 1), (1,) * 4, swizzle="128B", l2_promotion="L2_128B",
    )  # fmt: skip


def shared(k: SimpleNamespace, text: str, rows: int, stages: int = 1) -> Buffer:
    """Rows of a head in shared memory."""
    return Buffer(text, SHARED, (rows, k.dim), DTYPES[k.dtype], stages, swizzle=128)


def schedule(
    k: SimpleNamespace, rows: int, copies: int, reader: tuple[Reader, ...], buffers: tuple[Buffer, ...],
    pipelines: tuple[Pipeline, ...] = (), **more: Any,
) -> Schedule:  # fmt: skip
    """The common part of both schedules: `copies` of `rows` queries, rings of keys and values, the grid."""
    tile, clustered = k.tile // k.cluster, k.cluster > 1
    return Schedule(
        buffers=(
            shared(k, "q_s", rows, copies), *(shared(k, f"{x}_s", k.tile, k.stages) for x in "kv"), *buffers,
        ),
        pipelines=(
            Pipeline("q", ("q_s",), "load", Engine.BULK, reader, copies),
            *(
                Pipeline(x, (f"{x}_s",), "load", Engine.BULK, reader, k.stages, multicast=clustered)
                for x in "kv"
            ),
            *pipelines,
        ),
        grid=(dim("ctas"), k.cluster),
        axes=("cta", "rank"),
        cluster=(1, k.cluster, 1),
        group=(1,) if clustered else (),
        maps=tuple(
            tensor_map(x, n, k) for x, n in (("q", rows), ("k", tile), ("v", tile), ("out", group_rows(k)))
        ),
        min_ctas_per_sm=1,
        **more,
    )  # fmt: skip


class Work(State, Kernel):
    """The work items of a CTA, as a role knows them, and the current item."""

    blocks: Value
    bundles: Value
    all_items: Value
    items: Int32
    shift: Int32
    # The current item. A bundle has a head for each CTA of the cluster. The item's rows begin at `row`, which
    # sees keys 0 to `seen`. The rows see keys of the first `tiles` tiles.
    bundle: Value
    row: Int32
    seen: Value
    tiles: Int32
    batch: Value
    head: Value


@recorded
def start(m: Recorder) -> Work:
    """Every thread first waits for the barriers and computes this CTA's number of items."""
    s = Work(m)
    s.blocks = ceildiv(s.sq, query_rows(m.k))
    s.bundles = s.b * s.heads // m.k.cluster
    s.all_items = s.blocks * s.bundles
    s.items = ceildiv(s.all_items - _turned(s, s.all_items // s.ctas), s.ctas)
    s.shift = s.skv - s.causal * s.sq
    m.barriers_stand()
    return s


@recorded
def _turned(s: Work, item: Any) -> Any:
    """This CTA's place in a round of items.

    Rounds alternate in direction, so that no CTA always has the heavier item.
    """
    return s.m.block(0) + item % 2 * (s.ctas - 1 - 2 * s.m.block(0))


@recorded
def place_item(s: Work, item: Value, rows: int | None = None) -> None:
    """Find the place of an item, and how many tiles of keys its first `rows` rows see (by default all rows).

    `abreast` bundles of heads are in work side by side, the last block of rows of each first. A bundle has a
    head for each CTA of the cluster.
    """
    m, abreast = s.m, s.abreast
    number: Int32 = _turned(s, item) + item * s.ctas
    first: Int32 = number // (abreast * s.blocks) * abreast
    within: Int32 = number - first * s.blocks
    width: Int32 = minimum(abreast, s.bundles - first)
    s.bundle = inline(first + within % width)
    s.row = (s.blocks - 1 - within // width) * query_rows(m.k)
    s.seen = inline(s.row + s.shift)
    s.tiles = ceildiv(minimum(s.skv, s.seen + (rows or query_rows(m.k))), m.k.tile)


@recorded
def place_head(s: Work) -> None:
    """Find the sequence and the head of an item."""
    m, cluster = s.m, s.m.k.cluster
    pair: Int32 = s.bundle * cluster + m.block(1) if cluster > 1 else s.bundle
    s.batch = pair // s.heads
    s.head = pair - s.batch * s.heads


def panels(m: Recorder) -> range:
    return range(0, m.k.dim, PANEL)


@recorded
def load(m: Recorder, s: Work) -> None:
    """Copy queries, and tiles of keys and values from the last to the first.

    `done` tiles belong to earlier items.
    """
    done: Int32 = 0
    for item in range(s.items):
        place_item(s, item)
        place_head(s)
        kv_head = s.head * s.kv_heads // s.heads

        def copy(slot: Filling, operand: str, rows: int, *place: Value, shared: bool) -> None:
            """Copy `rows` rows of one head at `place`.

            If `shared`, each CTA of the cluster copies a part for all.
            """
            share = rows // m.k.cluster if shared else rows
            part = inline(m.block(1) * share if share < rows else 0)
            batch, head, row = place
            for column in panels(m):
                box = Box(f"{operand}_map", (batch, head, row + part, column))
                view = slot.view().part(part, share).columns(column, PANEL)
                m.bulk(view, box, slot, multicast=share < rows)
            slot.commit()

        def copy_tile(operand: str, i: Value) -> None:
            slot = m.channel(operand).producer.acquire(done + i)
            copy(slot, operand, m.k.tile, s.batch, kv_head, (s.tiles - 1 - i) * m.k.tile, shared=True)

        copy_tile("k", 0)
        queries = m.schedule.buffer("q_s")
        for part in range(queries.stages):
            rows = queries.shape[0]
            slot = s.q.producer.acquire(item * queries.stages + part)
            copy(slot, "q", rows, s.batch, s.head, s.row + part * rows, shared=False)
        for i in range(1, s.tiles):
            copy_tile("k", i)
            copy_tile("v", i - 1)
        copy_tile("v", s.tiles - 1)
        done += s.tiles
    if m.arch.tmem_columns and m.k.cluster > 1:
        m.comment("A commit of a peer may arrive late: this CTA must not have ended.")
        s.k.producer.drain(done)
        s.v.producer.drain(done)


@recorded
def store_rows(s: Work, barrier: str, staged: View, row: Value) -> None:
    """Store the result that a warpgroup has staged to the output, from `row` on."""
    boxes = [(column, Box("out_map", (s.batch, s.head, row, column))) for column in panels(s.m)]
    s.m.store(barrier, *((box, staged.columns(column, PANEL)) for column, box in boxes))
