"""Scoring of several rows over keys of 4 bits (MXFP4), on Blackwell: prompts, and steps of several queries.

A product has the rows of 128 heads, and its scales have columns of tensor memory of their own. The products
of a key tile go to two accumulators in turn, and two groups share the rows of each. An accumulator is free
again as soon as its scores are in registers.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from ....tile.channel import Reading
from ....tile.frontend import Int32, inline, recorded, rolled
from ....tile.lang import START, Body, Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Size
from ....tile.text import Box, Changes, Recorder, Value, ceildiv, dim, minimum
from .. import functions as leaf
from ..leaves import blackwell as sm100
from ..leaves import mxfp4 as fours
from . import prefill
from .common import BLACKWELL_DECODE_N, INDEX_DIM, PAGE, SHARED, TENSOR, WEIGHTS, rows_of_product, weigh_row
from .decode import Share, _begin_tile, _next_queries, _start, load
from .mxfp4 import FACTOR_BYTES, FACTOR_ROWS, KEY_BYTES, PAIRS, PLACED, _copy_page, _maps

# Accumulators, and scoring groups that share one.
RINGS, SHARING = 2, 2


def _prefill(k: SimpleNamespace) -> bool:
    return bool(k.mode == "prefill")


def _products(k: SimpleNamespace) -> int:
    """Products of a key tile with as many rows as a CTA may have."""
    return int(k.queries) // int(rows_of_product(k, BLACKWELL_DECODE_N))


def _registers(k: SimpleNamespace, role: str) -> tuple[Buffer, ...]:
    """Each thread of a scoring role has a key's scores of a row, weights, the logit, and sizes of rows."""
    g, own = role.removeprefix("score_"), int(rows_of_product(k, BLACKWELL_DECODE_N)) // SHARING
    floats = {"dots": k.heads, "weight": min(WEIGHTS, k.heads), "logit": 1}
    sizes = {"begin": own, "size": own} if _prefill(k) else {"length": 1}
    return (
        *(Buffer.own(f"{text}_{g}", role, each) for text, each in floats.items()),
        *(Buffer.own(f"{text}_{g}", role, each, "int32") for text, each in sizes.items()),
    )


def blackwell(k: SimpleNamespace) -> Schedule:
    each, products = rows_of_product(k, BLACKWELL_DECODE_N), _products(k)
    n, rows = Size(each * k.heads, "COLUMNS"), k.queries * k.heads
    scorers = tuple(f"score_{g}" for g in range(RINGS * SHARING))
    issuer, placer = Reader("mma", Engine.TCGEN05), Reader("place", Engine.THREADS, "warp")
    factors, by_query = (FACTOR_ROWS, FACTOR_BYTES // 4), [f"by_query_{p}" for p in range(products)]
    return Schedule(
        roles=(
            *(
                Role(role, 4, doc=f"epilogue of products i with i % {RINGS} == {g // SHARING}, "
                     f"part {g % SHARING} of {SHARING}")
                for g, role in enumerate(scorers)
            ),
            Role("load", 1, doc="key tiles, queries"),
            Role("place", 1, doc="scales, as copies to tensor memory read them"),
            Role("mma", 1, doc="issues every tcgen05.cp, tcgen05.mma and commit"),
        ),
        buffers=(
            Buffer("keys", SHARED, (k.tile, KEY_BYTES), PAIRS, k.stages, swizzle=KEY_BYTES),
            Buffer("key_scales", SHARED, (k.tile,), "int32", k.stages),
            Buffer("queries", SHARED, (rows, KEY_BYTES), PAIRS, swizzle=KEY_BYTES),
            Buffer("query_scales", SHARED, (rows,), "int32"),
            Buffer("head_weights", SHARED, (rows,), "float32"),
            Buffer("key_factors", SHARED, factors, "int32", PLACED),
            Buffer("query_factors", SHARED, factors, "int32", RINGS),
            *(Buffer(name, TENSOR, (128, FACTOR_BYTES), "uint8") for name in ("by_key", *by_query)),
            *(Buffer(f"scores_{r}", TENSOR, (128, n), "float32") for r in range(RINGS)),
            *(b for role in scorers for b in _registers(k, role)),
        ),
        pipelines=(
            Pipeline("keys", ("keys", "key_scales"), "load", Engine.BULK, (issuer, placer), k.stages),
            Pipeline(
                "queries", ("queries", "query_scales", "head_weights"), "load", Engine.BULK,
                (issuer, placer, *(Reader(role, Engine.THREADS, "warp") for role in scorers)),
                rounds="once" if _prefill(k) else "loop",
            ),
            *(
                Pipeline(name, (name,), "place", Engine.THREADS, (issuer,), stages, fill_arrive="warp")
                for name, stages in (("key_factors", PLACED), ("query_factors", RINGS))
            ),
            *(
                Pipeline(
                    f"scores_{r}", (f"scores_{r}",), "mma", Engine.TCGEN05,
                    tuple(Reader(role, Engine.TMEM, "warp") for role in scorers[r * SHARING :][:SHARING]),
                )
                for r in range(RINGS)
            ),
        ),
        mmas=tuple(
            Mma(
                f"score_{p}", "tcgen05", "mma", k.tile, n, INDEX_DIM, PAIRS, a="keys", b="queries",
                acc=f"scores_{p % RINGS}", scales=("by_key", by_query[p]),
                doc="S[keys, heads] = K Q^T, scaled by blocks of 32",
            )
            for p in range(products)
        ),
        grid=(ceildiv(dim("s"), k.queries), dim("splits")) if _prefill(k) else (dim("ctas"),),
        axes=("block", "split") if _prefill(k) else ("cta",),
        constants={"pages": Size(k.tile // PAGE, "TILE_PAGES"), "rows_per_product": each},
        maps=_maps(k),
    )  # fmt: skip


def _count(m: Recorder, s: Any) -> Value | int:
    """Products of a key tile."""
    return _products(m.k) if _prefill(m.k) else ceildiv(s.next_n, m.c.rows_per_product)


@recorded
def _load_step(m: Recorder, s: Share) -> None:
    """Copy the rows of a sequence's queries, their scales and weights.

    The last row comes again for rows that are not there: no score of such a row is stored.
    """
    heads = m.k.heads
    count = inline(_count(m, s) * m.c.rows_per_product)
    queries = s.queries.producer.acquire(s.turn, bytes=count * (heads * (KEY_BYTES + 8)))
    for i in rolled(count):
        at = minimum(i, s.next_n - 1)
        m.bulk(queries.queries.part(i * heads, heads), Box("query_map", (s.seq, at, 0, 0)), queries)
        scales = Box("factor_map", (s.seq * s.next_n + at, 0))
        m.bulk(queries.query_scales.part(i * heads, heads), scales, queries)
        m.bulk(queries.head_weights.part(i * heads, heads), Box("weight_map", (s.seq, at, 0)), queries)
    queries.commit()


@recorded
def _load_prompt(m: Recorder, s: prefill.Block) -> None:
    if s.turns > 0:
        queries = s.queries.producer.acquire(0)
        m.bulk(queries.queries, Box("query_map", (s.row, 0, 0)), queries)
        for i in rolled(m.k.queries):
            own = inline(i * m.k.heads)
            m.bulk(queries.query_scales.part(own, m.k.heads), Box("factor_map", (s.row + i, 0)), queries)
            m.bulk(queries.head_weights.part(own, m.k.heads), Box("weight_map", (s.row + i, 0)), queries)
        queries.commit()
    for it in range(s.turns):
        keys = s.keys.producer.acquire(it)
        key = (s.first + it) * m.k.tile
        m.bulk(keys.keys, Box("key_map", (key, 0)), keys)
        m.bulk(keys.key_scales, Box("scale_map", (key,)), keys)
        keys.commit()


@recorded
def _place(m: Recorder, s: Any) -> None:
    """Lay the scales of each tile out, and those of queries before their first one."""
    each = m.c.rows_per_product * m.k.heads
    fill: Int32 = 0

    def place_queries(queries: Reading, fill: Changes) -> None:
        for product in rolled(_count(m, s)):
            placed = s.query_factors.producer.acquire(fill)
            fours.place_factors_from(m, placed.view(), queries.query_scales, first=product * each)
            placed.commit()
            fill += 1

    if _prefill(m.k) and s.turns > 0:
        place_queries(s.queries.reader.wait(0), fill)
    for it in range(s.turns):
        if not _prefill(m.k):
            _begin_tile(m, s, it)
            if s.fresh:
                s.turn += 1
                queries = s.queries.reader.wait(s.turn)
                place_queries(queries, fill)
                queries.release()
        keys = s.keys.reader.wait(it)
        factors = s.key_factors.producer.acquire(it)
        fours.place_factors(m, factors.view(), keys.key_scales)
        factors.commit()
        keys.release()
        if not _prefill(m.k):
            s.tile += s.step


@recorded
def _issue(m: Recorder, s: Any) -> None:
    """The products of each tile, into the two accumulators in turn, also from tile to tile."""
    n = inline(m.c.rows_per_product * m.k.heads)
    queries = s.queries.reader.slot(0 if _prefill(m.k) else s.turn)

    def take_factors(p: int, fill: Changes) -> None:
        placed = s.query_factors.reader.wait(fill)
        m.copy_columns(m.buffer(f"by_query_{p}"), placed.view())
        placed.release()
        fill += 1

    def issue(keys: Reading, p: int, ring: int, use: Value) -> None:
        out = m.channel(f"scores_{ring}").producer.acquire(use)
        m.multiply(f"score_{p}", out.view(), keys.keys, queries.queries.part(p * n, n))
        out.commit()

    taken: Int32 = 0
    if not _prefill(m.k):
        issued: Int32 = 0
    if _prefill(m.k) and s.turns > 0:
        s.queries.reader.wait(0)
        for p in range(_products(m.k)):
            take_factors(p, taken)
    for it in range(s.turns):
        if not _prefill(m.k):
            _begin_tile(m, s, it)
            if s.fresh:
                _next_queries(m, s, it)
                for p in range(_products(m.k)):
                    if p < _count(m, s):
                        take_factors(p, taken)
        keys = s.keys.reader.wait(it)
        factors = s.key_factors.reader.wait(it)
        m.copy_columns(s.by_key, factors.view())
        for p in range(_products(m.k)):
            if _prefill(m.k):
                issue(keys, p, p, it)
            elif p < _count(m, s):
                if issued % RINGS == 0:
                    issue(keys, p, 0, issued // RINGS)
                else:
                    issue(keys, p, 1, issued // RINGS)
                issued += 1
        factors.release()
        keys.release()
        if not _prefill(m.k):
            s.tile += s.step


@recorded
def _epilogue(m: Recorder, s: Any, g: int) -> None:
    """The scores of a group's rows in every product of its accumulator, a key a thread."""
    heads, each = m.k.heads, m.c.rows_per_product
    (ring, part), own = divmod(g, SHARING), int(each) // SHARING
    dots, weight, logit = (m.buffer(f"{x}_{g}") for x in ("dots", "weight", "logit"))
    queries = s.queries.reader.slot(0 if _prefill(m.k) else s.turn)
    use: Int32 = 0
    if not _prefill(m.k):
        before: Int32 = 0

    def score(product: Value | int, key: Value, use: Changes) -> None:
        scores = m.channel(f"scores_{ring}").reader.wait(use)
        for j in range(own):
            query = inline(product * each + part * own + j)
            leaf.read_scores(m, dots, scores.view(), (part * own + j) * heads, heads, m.thread)
            if j + 1 == own:
                scores.release()
                use += 1
            weigh_row(m, logit, dots, weight, queries.head_weights, query * heads)
            if _prefill(m.k):
                begin, size = m.buffer(f"begin_{g}"), m.buffer(f"size_{g}")
                fours.store_row(
                    m, s.logits, logit, begin, size, j, row=s.row + query, key=key, compressed=s.compressed
                )
            else:
                length = m.buffer(f"length_{g}")
                fours.store_query(m, s.logits, logit, length, s.seq, query, s.next_n, key=key)

    if _prefill(m.k):
        sm100.load_windows(
            m, m.buffer(f"begin_{g}"), m.buffer(f"size_{g}"), s.k_start, s.k_end, row=s.row + g * own,
            s=s.s, skv=s.skv, skip_below=s.skip_below,
        )  # fmt: skip
        if s.turns > 0:
            s.queries.reader.wait(0)
    for it in range(s.turns):
        if _prefill(m.k):
            score(ring, (s.first + it) * m.k.tile, use)
        else:
            _begin_tile(m, s, it)
            if s.fresh:
                _next_queries(m, s, it)
                sm100.load_lengths(m, m.buffer(f"length_{g}"), s.seq_lens, s.seq, s.next_n, s.skip_below)
            for product in rolled((before + ring) % RINGS, _count(m, s), RINGS):
                score(product, s.tile * m.k.tile, use)
            before += _count(m, s)
            s.tile += s.step


def bodies(k: SimpleNamespace) -> dict[str, Body]:
    scorers = {f"score_{g}": partial(_epilogue, g=g) for g in range(RINGS * SHARING)}
    if _prefill(k):
        return {START: prefill._start, "load": _load_prompt, "place": _place, "mma": _issue, **scorers}
    copies = partial(load, copy_page=_copy_page, load_queries=_load_step)
    return {START: _start, "load": copies, "place": _place, "mma": _issue, **scorers}
