"""Scoring of decode over keys of 4 bits (MXFP4), on Blackwell: the tensor cores apply the scales.

A key is 64 bytes, two numbers each, and four scales of 32 dims; so is a query's head. One warp lays the
scales out as `tcgen05.cp` reads them: word r + 32 c of a tile becomes word c of row r. Tiles go to two
scoring groups in turn.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from ....abi import TensorMap
from ....tile.channel import Filling
from ....tile.frontend import inline, recorded
from ....tile.lang import START, Body, Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Size
from ....tile.text import Box, Recorder, Value, dim
from .. import functions as leaf
from .. import mxfp4
from ..leaves import blackwell as sm100
from ..leaves import mxfp4 as fours
from .common import INDEX_DIM, PAGE, SHARED, TENSOR
from .decode import Share, _begin_tile, _next_queries, _start, load

PAIRS = "float4_e2m1x2"
# Bytes of a key's 128 numbers; words of a page, and the one with which its scales begin.
KEY_BYTES = Size(mxfp4.KEY_BYTES, "KEY_BYTES")
PAGE_WORDS = Size(mxfp4.PAGE_BYTES // 4, "PAGE_WORDS")
SCALE_WORD = Size(PAGE * KEY_BYTES // 4, "SCALE_WORD")
# Scoring groups that take the tiles in turn, accumulators of each, and slots of scales that are laid out.
GROUPS, ACCUMULATORS, PLACED = 2, 2, 4
FACTOR_ROWS, FACTOR_BYTES = 32, 16
QUERY_STAGES = 2


def _maps(k: SimpleNamespace) -> tuple[TensorMap, ...]:
    if k.mode == "prefill":
        return (
            _rows_map(
                "query_map", "q", ("index_heads", "s"), ("q_stride_h", "q_stride_s"), (k.heads, k.queries)
            ),
            _heads_map("weight_map", "weights", "FLOAT32", ("s",), k),
            _heads_map("factor_map", "q_scales", "INT32", ("s",), k),
            _rows_map("key_map", "k", ("skv",), ("k_stride",), (k.tile,)),
            TensorMap("scale_map", "k_scales", "INT32", ("skv",), (), (k.tile,), (1,)),
        )  # fmt: skip
    rows = mxfp4.PAGE_BYTES // mxfp4.KEY_BYTES
    return (
        _rows_map(
            "query_map", "q", ("index_heads", "next_n", "b"), ("q_stride_h", "q_stride_n", "q_stride_b"),
            (k.heads, 1, 1),
        ),
        _heads_map("weight_map", "weights", "FLOAT32", ("next_n", "b"), k),
        _heads_map("factor_map", "q_scales", "INT32", ("rows",), k),
        # The keys of a page are 64 of its 68 rows, and pages may have rows between them.
        _rows_map(
            "key_map", "k_cache", (f"(pages - 1) * (k_cache_stride // {mxfp4.KEY_BYTES}) + {rows}",),
            (str(mxfp4.KEY_BYTES),), (PAGE,),
        ),
    )  # fmt: skip


def _rows_map(
    name: str, operand: str, extents: tuple[str, ...], strides: tuple[str, ...], box: tuple[int, ...]
) -> TensorMap:
    """Boxes of rows of 64 bytes, innermost first."""
    return TensorMap(
        name, operand, "UINT8", (str(mxfp4.KEY_BYTES), *extents), strides, (KEY_BYTES, *box),
        (1, *(1 for _ in box)), swizzle="64B", l2_promotion="L2_128B",
    )  # fmt: skip


def _heads_map(
    name: str, operand: str, dtype: str, extents: tuple[str, ...], k: SimpleNamespace
) -> TensorMap:
    """Boxes of a word for each head of a row along `extents`; zeros for heads and rows past the last."""
    ends = ("",) if len(extents) == 1 else tuple(f"_{extent[0]}" for extent in extents)
    strides = tuple(f"{operand}_stride{end} * 4" for end in ends)
    ones = tuple(1 for _ in extents)
    return TensorMap(
        name, operand, dtype, ("index_heads", *extents), strides, (k.heads, *ones), (1, *ones)
    )  # fmt: skip


def _registers(k: SimpleNamespace, role: str) -> tuple[Buffer, ...]:
    """Each thread of a scoring role has a key's scores, a query's weights, the key's logit, a length."""
    g = role.removeprefix("score_")
    floats = {"dots": k.heads, "weight": k.heads, "logit": 1}
    return (
        *(Buffer.own(f"{text}_{g}", role, each) for text, each in floats.items()),
        Buffer.own(f"length_{g}", role, 1, "int32"),
    )


def blackwell(k: SimpleNamespace) -> Schedule:
    scorers = tuple(f"score_{g}" for g in range(GROUPS))
    issuer = (Reader("mma", Engine.TCGEN05),)
    placer = Reader("place", Engine.THREADS, "warp")
    return Schedule(
        roles=(
            *(
                Role(role, 4, doc=f"epilogue of tiles i with i % {GROUPS} == {g}")
                for g, role in enumerate(scorers)
            ),
            Role("load", 1, doc="block table, key pages, queries"),
            Role("place", 1, doc="scales, as copies to tensor memory read them"),
            Role("mma", 1, doc="issues every tcgen05.cp, tcgen05.mma and commit"),
        ),
        buffers=(
            Buffer("keys", SHARED, (k.tile, KEY_BYTES), PAIRS, k.stages, swizzle=KEY_BYTES),
            Buffer("key_scales", SHARED, (k.tile,), "int32", k.stages),
            Buffer("queries", SHARED, (k.heads, KEY_BYTES), PAIRS, QUERY_STAGES, swizzle=KEY_BYTES),
            Buffer("query_scales", SHARED, (k.heads,), "int32", QUERY_STAGES),
            Buffer("head_weights", SHARED, (k.heads,), "float32", QUERY_STAGES),
            Buffer("key_factors", SHARED, (FACTOR_ROWS, FACTOR_BYTES // 4), "int32", PLACED),
            Buffer("query_factors", SHARED, (FACTOR_ROWS, FACTOR_BYTES // 4), "int32", QUERY_STAGES),
            *(Buffer(name, TENSOR, (128, FACTOR_BYTES), "uint8") for name in ("by_key", "by_query")),
            *(Buffer(f"scores_{g}", TENSOR, (128, k.heads), "float32", ACCUMULATORS) for g in range(GROUPS)),
            *(b for role in scorers for b in _registers(k, role)),
        ),
        pipelines=(
            Pipeline("keys", ("keys", "key_scales"), "load", Engine.BULK, (*issuer, placer), k.stages),
            Pipeline(
                "queries", ("queries", "query_scales", "head_weights"), "load", Engine.BULK,
                (*issuer, placer, *(Reader(role, Engine.THREADS, "warp") for role in scorers)), QUERY_STAGES,
            ),
            Pipeline(
                "key_factors", ("key_factors",), "place", Engine.THREADS, issuer, PLACED, fill_arrive="warp",
            ),
            Pipeline(
                "query_factors", ("query_factors",), "place", Engine.THREADS, issuer, QUERY_STAGES,
                fill_arrive="warp",
            ),
            *(
                Pipeline(
                    f"scores_{g}", (f"scores_{g}",), "mma", Engine.TCGEN05,
                    (Reader(role, Engine.TMEM, "warp"),), ACCUMULATORS,
                )
                for g, role in enumerate(scorers)
            ),
        ),
        mmas=(
            Mma(
                "score", "tcgen05", "mma", k.tile, k.heads, INDEX_DIM, PAIRS, a="keys", b="queries",
                acc="scores_0", scales=("by_key", "by_query"),
                doc="S[keys, heads] = K Q^T, scaled by blocks of 32",
            ),
        ),
        grid=(dim("ctas"),),
        axes=("cta",),
        constants={"pages": Size(k.tile // PAGE, "TILE_PAGES"), "rows_per_product": 1},
        maps=_maps(k),
    )  # fmt: skip


@recorded
def _copy_page(m: Recorder, s: Share, keys: Filling, p: Value, page: Value) -> None:
    """Copies a page of keys, and the scales of these keys."""
    first = inline(page * (s.k_cache_stride // KEY_BYTES))
    m.bulk(keys.keys.part(p * PAGE, PAGE), Box("key_map", (first, 0)), keys)
    scales = inline(s.k_cache.span((page,), PAGE_WORDS, SCALE_WORD, PAGE, "int32"))
    m.bulk(keys.key_scales.part(p * PAGE, PAGE), scales, keys)


@recorded
def _load_query(m: Recorder, s: Share) -> None:
    """Copies the query of a row, its scales and the weights of its heads."""
    queries = s.queries.producer.acquire(s.turn)
    m.bulk(queries.queries, Box("query_map", (s.seq, 0, 0, 0)), queries)
    m.bulk(queries.query_scales, Box("factor_map", (s.seq, 0)), queries)
    m.bulk(queries.head_weights, Box("weight_map", (s.seq, 0, 0)), queries)
    queries.commit()


@recorded
def _place(m: Recorder, s: Share) -> None:
    """Lays the scales of each tile out, and those of a row's query before its first one."""
    for it in range(s.turns):
        _begin_tile(m, s, it)
        if s.fresh:
            s.turn += 1
            queries = s.queries.reader.wait(s.turn)
            placed = s.query_factors.producer.acquire(s.turn)
            fours.place_factors(m, placed.view(), queries.query_scales)
            placed.commit()
            queries.release()
        keys = s.keys.reader.wait(it)
        factors = s.key_factors.producer.acquire(it)
        fours.place_factors(m, factors.view(), keys.key_scales)
        factors.commit()
        keys.release()
        s.tile += s.step


@recorded
def _issue(m: Recorder, s: Share) -> None:
    """One product a tile, into the accumulators of the two groups in turn."""
    queries = s.queries.reader.slot(s.turn)

    def issue(it: Value, g: int) -> None:
        keys = s.keys.reader.wait(it)
        factors = s.key_factors.reader.wait(it)
        m.copy_columns(s.by_key, factors.view())
        out = m.channel(f"scores_{g}").producer.acquire(it // GROUPS)
        m.multiply("score", out.view(), keys.keys, queries.queries)
        out.commit()
        factors.release()
        keys.release()

    for it in range(s.turns):
        _begin_tile(m, s, it)
        if s.fresh:
            _next_queries(m, s, it)
            placed = s.query_factors.reader.wait(s.turn)
            m.copy_columns(s.by_query, placed.view())
            placed.release()
        if it % GROUPS == 0:
            issue(it, 0)
        else:
            issue(it, 1)
        s.tile += s.step


@recorded
def _epilogue(m: Recorder, s: Share, g: int) -> None:
    """The scores of every second tile, a key a thread."""
    dots, weight, logit, length = (m.buffer(f"{x}_{g}") for x in ("dots", "weight", "logit", "length"))
    queries = s.queries.reader.slot(s.turn)
    for it in range(s.turns):
        _begin_tile(m, s, it)
        if s.fresh:
            _next_queries(m, s, it)
            sm100.load_weights(m, weight, queries.head_weights, 0)
            sm100.load_lengths(m, length, s.seq_lens, s.seq, s.next_n, s.skip_below)
        if it % GROUPS == g:
            scores = m.channel(f"scores_{g}").reader.wait(it // GROUPS)
            leaf.read_scores(m, dots, scores.view(), 0, m.k.heads, m.thread)
            scores.release()
            leaf.weigh_one(m, logit, dots, 0, weight, fresh=True)
            fours.store_scores(m, s.logits, logit, length, s.seq, key=s.tile * m.k.tile)
        s.tile += s.step


def bodies(k: SimpleNamespace) -> dict[str, Body]:
    scorers = {f"score_{g}": partial(_epilogue, g=g) for g in range(GROUPS)}
    copies = partial(load, copy_page=_copy_page, load_queries=_load_query)
    return {START: _start, "load": copies, "place": _place, "mma": _issue, **scorers}
