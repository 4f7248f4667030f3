"""Prefill scoring: blocks of queries over their windows of keys."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from ....abi import TensorMap
from ....arch import ArchSpec
from ....tile.frontend import Int32, State, inline, recorded, rolled
from ....tile.lang import START, Body, Buffer, Engine, Pipeline, Reader, Role, Schedule, Size
from ....tile.text import Box, Recorder, ceildiv, dim, minimum
from .. import functions as leaf
from ..leaves import blackwell as sm100
from ..leaves import hopper as sm90
from ..leaves import walk
from .common import (
    INDEX_DIM,
    TENSOR,
    WEIGHTS,
    Kernel,
    blackwell_registers,
    columns,
    few,
    hopper_groups,
    hopper_registers,
    input_buffers,
    inputs,
    of_any,
    rows_map,
    score_product,
    vector_map,
    weigh_row,
    weight_pitch,
    weights_map,
    weights_of,
)

# Blackwell's scoring groups: four warps per scheduler, so that some weigh while others wait for scores.
GROUPS = 4


def _maps(k: SimpleNamespace) -> tuple[TensorMap, ...]:
    heads, dim = ("index_heads", "index_dim") if of_any(k) else (str(k.heads), "128")
    return (
        rows_map("query_map", "q", (heads, "s"), ("q_stride_h", "q_stride_s"), (k.heads, k.queries), dim),
        rows_map("key_map", "k", ("skv",), ("k_stride",), (k.tile,), dim),
        vector_map("scale_map", "k_scales", "skv", k.tile),
        *((weights_map("s", k),) if of_any(k) else ()),
    )


def hopper(k: SimpleNamespace) -> Schedule:
    groups, block = hopper_groups(k)
    each = Size(k.queries // groups, "ROWS_PER_PRODUCT")
    readers = (Reader("score", Engine.WGMMA, "warp"),)
    # Idle copy warps hand registers over, except for few heads, where a thread has enough.
    score_registers, load_warps, load_registers = (None, 1, None) if few(k) else (112, 4, 24)
    return Schedule(
        roles=(
            Role(
                "score",
                block // 16,
                score_registers,
                f"products and epilogue, {each} query rows per replica",
                replicas=groups,
            ),
            Role("load", load_warps, load_registers, "key tiles, queries", active=1),
        ),
        buffers=(
            *input_buffers(k, 1),
            *hopper_registers(k, block, each, "begin", "size"),
        ),
        pipelines=inputs(k, readers, rounds="once"),
        mmas=(score_product("wgmma", "score", block, columns(k, each), "acc"),),
        grid=(ceildiv(dim("s"), k.queries), dim("splits")),
        axes=("block", "split"),
        constants={"rows_per_product": each, "block": block},
        maps=_maps(k),
    )


def blackwell(k: SimpleNamespace) -> Schedule:
    groups = GROUPS
    rows = Size(k.queries // groups, "ROWS_PER_GROUP")
    scorers = tuple(f"score_{g}" for g in range(groups))
    readers = (Reader("mma", Engine.TCGEN05), *(Reader(role, Engine.THREADS, "warp") for role in scorers))
    return Schedule(
        roles=(
            *(Role(role, 4, doc=f"epilogue of quarter {g} of the rows") for g, role in enumerate(scorers)),
            Role("load", 1, doc="key tiles, queries"),
            Role("mma", 1, doc="issues every tcgen05.mma and commit"),
        ),
        buffers=(
            *input_buffers(k, 1),
            Buffer("scores", TENSOR, (128, columns(k, k.queries)), "float32", 2),
            *(
                b
                for role in scorers
                for b in blackwell_registers(role, k.heads, min(WEIGHTS, k.heads), begin=rows, size=rows)
            ),
        ),
        pipelines=(
            *inputs(k, readers, rounds="once"),
            Pipeline(
                "scores",
                ("scores",),
                "mma",
                Engine.TCGEN05,
                tuple(Reader(r, Engine.TMEM, "warp") for r in scorers),
                2,
            ),
        ),
        mmas=(score_product("tcgen05", "mma", k.tile, columns(k, k.queries), "scores"),),
        grid=(ceildiv(dim("s"), k.queries), dim("splits")),
        axes=("block", "split"),
        constants={"groups": groups, "rows_per_group": rows, "rows_per_product": k.queries},
        maps=_maps(k),
    )


class Block(State, Kernel):
    """A block of query rows of a prefill from `row` on, and `turns` key tiles from `first` on."""

    row: Int32
    first: Int32
    turns: Int32


@recorded
def _start(m: Recorder) -> Block:
    s = Block(m, row=0, first=0, turns=0)
    m.comment("Later rows see more keys in a causal prefill: the longest blocks start first.")
    s.row = (ceildiv(s.s, m.k.queries) - 1 - m.block(0)) * m.k.queries
    walk.find_tiles(
        m, s.first, s.turns, s.k_start, s.k_end, s.row, rows=m.k.queries, s=s.s,
        skv=s.skv, skip_below=s.skip_below, keys=m.k.tile, split=m.block(1), splits=s.splits,
    )  # fmt: skip
    m.barriers_stand()
    return s


@recorded
def _load(m: Recorder, s: Block) -> None:
    k, heads = m.k, m.k.heads
    if s.turns > 0:
        # The weights of few heads have gaps between them, which no copy fills.
        copied = {"bytes": k.queries * (heads * (INDEX_DIM + 4))} if few(k) else {}
        queries = s.queries.producer.acquire(0, **copied)
        m.bulk(queries.queries, Box("query_map", (s.row, 0, 0)), queries)
        for i in rolled(k.queries):
            slot = queries.head_weights.part(i * weight_pitch(k), heads)
            if of_any(k):
                m.bulk(slot, Box("weight_map", (s.row + i, 0)), queries)
            else:
                m.comment("No score of a row past the last one is stored.")
                query = minimum(s.row + i, s.s - 1)
                weights = s.weights.span((query,), heads)
                m.bulk(slot, weights, queries)
        queries.commit()
    for it in range(s.turns):
        keys = s.keys.producer.acquire(it)
        key = (s.first + it) * k.tile
        m.bulk(keys.keys, Box("key_map", (key, 0)), keys)
        m.bulk(keys.key_scales, Box("scale_map", (key,)), keys)
        keys.commit()


@recorded
def _score(m: Recorder, s: Block) -> None:
    """Hopper: each replica scores its own rows against every key tile."""
    each, n, block = m.c.rows_per_product, columns(m.k, m.c.rows_per_product), m.c.block
    acc, queries = s.acc, s.queries.reader.slot(0)
    own = s.row + m.replica * each
    sm90.read_windows(
        m, s.begin, s.size, s.k_start, s.k_end, row=own, each=each, s=s.s, skv=s.skv, skip_below=s.skip_below,
    )  # fmt: skip
    if s.turns > 0:
        s.queries.reader.wait(0)
        sm90.read_weights(
            m, s.weight, queries.head_weights, first=m.replica * weights_of(m.k, each), each=each,
            heads=m.k.heads, pitch=weight_pitch(m.k),
        )  # fmt: skip
    for it in range(s.turns):
        keys = s.keys.reader.wait(it)
        for at in range(0, m.k.tile, block):
            m.multiply("score", acc, keys.keys.part(at, block), queries.queries.part(m.replica * n, n))
            if each > 2:
                m.comment("Two scales per lane are two registers too many while the product runs.")
                m.await_products()
            sm90.read_scales(m, s.scale, keys.key_scales, first=at, each=each, apart=None)
            if at + block < m.k.tile:
                m.await_products()
            else:
                keys.release()
            sm90.weigh(m, s.logit, s.acc, s.weight, each, m.k.heads)
            sm90.store_window(
                m, s.logits, s.logit, s.scale, s.begin, s.size, row=own, each=each,
                key=(s.first + it) * m.k.tile + at,
                compressed=s.compressed if of_any(m.k) else None,
            )  # fmt: skip


@recorded
def _issue(m: Recorder, s: Block) -> None:
    """Blackwell's MMA warp: one accumulator per tile."""
    queries = s.queries.reader.slot(0)
    if s.turns > 0:
        s.queries.reader.wait(0)
    for it in range(s.turns):
        keys = s.keys.reader.wait(it)
        out = s.scores.producer.acquire(it)
        m.multiply("score", out.view(), keys.keys, queries.queries)
        out.commit()
        keys.release()


@recorded
def _epilogue(m: Recorder, s: Block, g: int) -> None:
    """Blackwell: the scores of one quarter of the block's rows, one key per thread."""
    heads, each = m.k.heads, m.c.rows_per_group
    dots, weight, scale, logit, begin, size = (
        m.buffer(f"{x}_{g}") for x in ("dots", "weight", "scale", "logit", "begin", "size")
    )
    queries = s.queries.reader.slot(0)
    own = inline(s.row + g * each)
    sm100.load_windows(m, begin, size, s.k_start, s.k_end, row=own, s=s.s, skv=s.skv, skip_below=s.skip_below)
    if s.turns > 0:
        s.queries.reader.wait(0)
    for it in range(s.turns):
        keys = s.keys.reader.wait(it)
        sm100.load_scale(m, scale, keys.key_scales, apart=None)
        keys.release()
        scores = s.scores.reader.wait(it)
        for j in range(each):
            first = (g * each + j) * heads
            leaf.read_scores(m, dots, scores.view(), first, m.k.heads, m.thread)
            if j + 1 == each:
                scores.release()
            weigh_row(m, logit, dots, weight, queries.head_weights, (g * each + j) * weight_pitch(m.k))
            sm100.store_row(
                m, s.logits, logit, scale, begin, size, j, row=own + j, key=(s.first + it) * m.k.tile,
                compressed=s.compressed if of_any(m.k) else None,
            )  # fmt: skip


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    if not arch.tmem_columns:
        return {START: _start, "load": _load, "score": _score}
    scorers = {f"score_{g}": partial(_epilogue, g=g) for g in range(GROUPS)}
    return {START: _start, "load": _load, "mma": _issue, **scorers}
