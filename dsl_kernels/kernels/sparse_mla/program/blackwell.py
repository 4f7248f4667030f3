"""Sparse MLA on Blackwell with heads on N: tcgen05, and accumulators in tensor memory.

Threads gather the rows, or TMA does. A CTA has one query and block of heads. Or (`goes_on`) the CTA takes a
share of the tiles of all queries and goes on from query to query. Its rings and their phases then go on too:
the CTA's live tiles number the uses of `kv`, `pe`, `s`, `p` and `o`, and its queries number those of `q`. The
parity of use `i` is that of `i // slots`.

| ring | filled by | read by | full counts | empty counts |
|---|---|---|---|---|
| q | softmax: cp.async | mma | 128, a thread each | commit, after the query's last scores |
| kv, pe | producer | mma | 128, a thread each | commit, after the values, or the rope dims' scores |
| s | mma | softmax | commit | 4 |
| p | softmax | mma | 4 | commit; gives back o |
| o | mma | softmax | commit | - (full of p) |

When a CTA goes on to the next query:

- `q` is filled before the epilogue of the current query;
- `kv` and `pe` are filled as slots become free;
- the first scores arrive in `s` while O is written;
- `p` is filled after O is written;
- the first product does not accumulate into `o`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from ....abi import TensorMap
from ....arch import ArchSpec
from ....tile.channel import Filling
from ....tile.frontend import Boolean, Int32, inline, named, recorded, rolled, unrolled
from ....tile.lang import START, Body, Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Size, Space
from ....tile.text import Expr, Global, Recorder, Rows, Value, View, dim, text_of
from ..leaves import blackwell as leaf_sm100
from ..leaves import gather as leaf_gather
from ..leaves import softmax as leaf_softmax
from ..leaves.blackwell import UNIT_WORDS, V4_WORDS, V41_WORDS
from ..leaves.gather import ROPE_AT, ROPE_WORD, TOKEN_WORDS
from ..leaves.gather_pages import Pages
from .common import (
    LATENT_DIM,
    RESCALE_LOG2,
    ROPE_DIM,
    Scopes,
    Walk,
    goes_on,
    head_block,
    head_blocks,
    heads_of_call,
    lacks_registers,
    merge_splits,
    padded_heads,
    queries,
    queries_of,
    rope_dims,
    rope_rows,
    start,
    unpacked,
)
from .shares import TilesInTurn, each_query, has_next, merge_parts, next_row, write_part
from .shares import start as start_share

# tcgen05 with M = 128 takes N in steps of 16, so eight heads are padded to 16.
BLACKWELL_MIN_N = Size(16, "PADDED_HEADS")
# The ring on Blackwell holds quarter tiles: 64 tokens x 128 of the 512 latent dims.
UNIT = Size(128, "UNIT")
UNITS = Size(LATENT_DIM // UNIT, "UNITS")
# Copies of a query whose addresses a thread computes together if it lacks registers.
COPIES = 8
# The leaves that load scales and units of tokens, and that write units.
TOKEN_LEAVES: dict[str, tuple[Callable[..., None], ...]] = {
    "fp8": (leaf_sm100.load_scales, leaf_sm100.load_words, leaf_sm100.write_unit),
    "v4": (leaf_sm100.load_v4_scales, leaf_sm100.load_v4_unit, leaf_sm100.write_v4_unit),
    "v41": (leaf_sm100.load_v41_scales, leaf_sm100.load_v41_unit, leaf_sm100.write_v41_unit),
}


def row_map(operand: str, columns: int) -> TensorMap:
    """A tensor map to gather rows: gather4 takes boxes of one row by one 128-byte panel."""
    return TensorMap(
        f"{operand}_map",
        operand,
        "BFLOAT16",
        global_dims=(text_of(columns), text_of(dim("n"))),
        global_strides=(text_of(dim(f"{operand}_stride") * 2),),
        box=(64, 1),
        element_strides=(1, 1),
        swizzle="128B",
        l2_promotion="L2_128B",
    )


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    hb = head_block(k)
    n = max(hb, BLACKWELL_MIN_N)
    rope = rope_dims(k)
    shared, tensor = Space.SHARED, Space.TENSOR
    small = Size(2 if n <= 32 else 1, "TILE_STAGES")
    unit_bytes = k.tile * UNIT * 2
    others = n * 2 * (LATENT_DIM + rope) + small * (k.tile * rope * 2 + k.tile * n * 2) + 40 * n + 4096
    units = Size(min(11, (arch.smem_per_cta - others) // unit_bytes), "UNIT_STAGES")
    bulk, walks = k.gather == "gather4", goes_on(k)

    rows = Buffer.own(
        "rows", "producer", k.tile, "int32", 32, "ids of the rows to copy, the same in all lanes"
    )
    each = {"v4": V4_WORDS, "v41": V41_WORDS}.get(k.kv, TOKEN_WORDS)
    words = Buffer.own("words", "producer", 2 * each, "uint32", doc="tokens in flight")
    coming = Buffer.own(
        "coming", "producer", 4 if k.kv == "v4" else 8, "uint32", doc="scales of the next tokens"
    )
    rope_reader = (Reader("mma", Engine.TCGEN05),)
    fill = Engine.BULK if bulk else Engine.THREADS if unpacked(k) else Engine.CP_ASYNC
    return Schedule(
        roles=(
            Role("softmax", 4, doc="queries, online softmax, lazy rescale, epilogue, merge"),
            Role("producer", 1 if bulk else 4, doc="selected rows into the rings"),
            Role("mma", 1, doc="issues every tcgen05.mma and commit"),
        ),
        buffers=(
            *queries(n, LATENT_DIM, rope),
            Buffer(
                "kv_s", shared, (k.tile, UNIT), "bfloat16", units, swizzle=128,
                doc="read K-major for scores, MN-major for values",
            ),
            *rope_rows("pe_s", k.tile, rope, small),
            Buffer("p_s", shared, (k.tile, n), "bfloat16", small, swizzle=min(128, 2 * n)),
            Buffer(
                "red_s", shared, (n, 4), "float32", 2, doc="maxima, then sums, across warps, by tile parity"
            ),
            Buffer("stat_s", shared, (n,), "float32", doc="rescale factors, then 1 / sum"),
            *(() if walks else (Buffer("last_s", shared, (1,), "int32"),)),
            Buffer("o_t", tensor, (UNIT, UNITS * n), "float32", doc="four 128-row accumulators side by side"),
            Buffer("s_t", tensor, (k.tile, n), "float32", 2),
            Buffer.own("scores", "softmax", n // 2),
            Buffer.own("sums", "softmax", n // 4, doc="of the thread's tokens"),
            *(Buffer.own(text, "softmax", n // 4) for text in ("top", "peak")),
            Buffer.own("held", "softmax", 16, doc="columns of O^T that are rescaled or stored"),
            *((rows,) if bulk else (words, coming) if unpacked(k) else ()),
        ),
        pipelines=(
            Pipeline(
                "q", ("q_s", "qpe_s") if rope else ("q_s",), "softmax", Engine.CP_ASYNC,
                (Reader("mma", Engine.TCGEN05),), rounds="loop" if walks else "once",
            ),
            Pipeline(
                "kv", ("kv_s",), "producer", fill, (Reader("mma", Engine.TCGEN05),), units,
                doc="four units per tile; each is read twice",
            ),
            *((Pipeline("pe", ("pe_s",), "producer", fill, rope_reader, small),) if rope else ()),
            Pipeline("s", ("s_t",), "mma", Engine.TCGEN05, (Reader("softmax", Engine.TMEM),), 2),
            Pipeline(
                "p", ("p_s",), "softmax", Engine.THREADS, (Reader("mma", Engine.TCGEN05),), small,
                doc="also gives back o",
            ),
            Pipeline(
                "o", ("o_t",), "mma", Engine.TCGEN05, (Reader("softmax", Engine.TMEM),), returned_by="p",
                accumulates=True,
            ),
        ),
        mmas=(
            Mma(
                "qk_nope", "tcgen05", "mma", k.tile, n, UNIT, "bfloat16", a="kv_s", b="q_s", acc="s_t",
                doc="S^T += K Q^T, a unit of the dims",
            ),
            *(
                (
                    Mma(
                        "qk_pe", "tcgen05", "mma", k.tile, n, ROPE_DIM, "bfloat16", a="pe_s", b="qpe_s",
                        acc="s_t", doc="the rope dims",
                    ),
                )
                if rope
                else ()
            ),
            Mma(
                "pv", "tcgen05", "mma", UNIT, n, k.tile, "bfloat16", a_major="mn", b_major="mn", a="kv_s",
                b="p_s", acc="o_t", doc="O^T += K^T P^T, a unit of the dims",
            ),
        ),
        grid=(dim("ctas") * head_blocks(k),) if walks else (dim("t") * head_blocks(k), dim("splits")),
        axes=("cta",) if walks else ("bx", "split"),
        named_barriers={"softmax": ("softmax",)},
        constants={"head_block": hb, "n": n, "units": UNITS, "rope": rope, **({"unit": 1} if walks else {})},
        maps=(row_map("ckv", LATENT_DIM), *((row_map("kpe", rope),) if rope else ())) if bulk else (),
        min_ctas_per_sm=1,
        resident=dim("splits") - 1 if walks else dim("all_resident"),
    )  # fmt: skip


def _number_of_query(walk: Walk | TilesInTurn) -> Value:
    """How many queries this CTA has finished."""
    return walk.done if isinstance(walk, TilesInTurn) else 0


def _at_queries(walk: Walk | TilesInTurn, at_query: Callable[[], None]) -> None:
    """Call `at_query` for the CTA's query, or for each one that it goes on to."""
    if isinstance(walk, TilesInTurn):
        each_query(walk.m, walk, at_query)
    else:
        at_query()


@recorded
def _first_use(walk: Walk | TilesInTurn) -> Value:
    """The number of the query's first live tile."""
    if isinstance(walk, TilesInTurn):
        begin: Int32 = walk.it
        return begin
    return 0


@recorded
def _is_over(walk: Walk | TilesInTurn, turn: Value) -> Value:
    """Whether a turn comes after the last tile of all that the CTA has."""
    past = inline(turn == walk.turns)
    return past & (not has_next(walk)) if isinstance(walk, TilesInTurn) else past


@recorded
def _gather_rows(m: Recorder, walk: Walk | TilesInTurn) -> None:
    """Gather bf16 rows. A tile is four units of 128 latent dims, and one of rope dims if there are any.

    Each thread copies 16 bytes at a time, or TMA copies rows by number.
    """
    bulk = m.k.gather == "gather4"

    def fill(slot: Filling, rows: Global, first: Value, columns: int) -> None:
        if bulk:
            m.bulk(slot.view(), Rows(f"{rows.name}_map", walk.rows, first), slot)
        else:
            leaf_gather.copy_rows(m, slot.view(), rows, first, columns, walk.now_low, walk.now_high, walk.n)
        slot.commit()

    def gather() -> None:
        for turn in range(walk.turns):
            walk.enter(turn, keep_rows=True)
            if walk.live:
                if bulk:
                    leaf_sm100.spread_ids(m, walk.rows, low=walk.now_low, high=walk.now_high)
                for c in rolled(UNITS):
                    fill(walk.kv.producer.acquire(walk.it * UNITS + c), walk.ckv, c * UNIT, UNIT)
                if m.c.rope:
                    fill(walk.pe.producer.acquire(walk.it), walk.kpe, 0, ROPE_DIM)
                walk.it += 1

    _at_queries(walk, gather)


@recorded
def _gather_tokens(m: Recorder, walk: Walk | TilesInTurn) -> None:
    """Gather fp8 tokens. A tile waits in registers, and each written unit makes room for the next tile's.

    The scales are loaded first because the first unit needs them. In a CTA that goes on, a query's last tile
    waits for the first tile of the next query. The last unit of DeepSeek-V4's tokens is half fp8 values and
    half rope dims, which are copied as they are.
    """
    load_scales, load_unit, write_unit = TOKEN_LEAVES.get(m.k.kv, TOKEN_LEAVES["fp8"])

    def load(leaf: Callable[..., None], *target: View | Value, pages: Pages | None) -> None:
        ids = (walk.now_low, walk.now_high)
        if not isinstance(walk, Scopes):
            leaf(m, *target, walk.kv_cache, *ids, walk.n)
        elif walk.now_extra:
            leaf(m, *target, walk.extra_kv_pages, *ids, pages)
        else:
            leaf(m, *target, walk.kv_pages, *ids, pages)

    def load_words(at: int | Expr, first: int | Expr) -> None:
        ids = (walk.now_low, walk.now_high)
        leaf_sm100.load_words(m, walk.words, at, walk.kv_cache, first, *ids, walk.n)

    def gather() -> None:
        for turn in range(walk.turns + 1):
            walk.enter(turn, keep_rows=True)
            if walk.live or _is_over(walk, turn):
                pages = walk.pages_of_tile() if isinstance(walk, Scopes) else None
                load(load_scales, walk.coming, pages=pages)
                for c in range(UNITS) if pages else unrolled(UNITS):
                    if walk.it > 0:
                        kv = walk.kv.producer.acquire((walk.it - 1) * UNITS + c)
                        write_unit(m, kv.kv_s, walk.words, unit=c)
                        kv.commit()
                    if pages:
                        load(load_unit, walk.words, c, pages=pages)
                    else:
                        load_words(c * UNIT_WORDS, c * UNIT)
                if m.c.rope:
                    if walk.it > 0:
                        pe = walk.pe.producer.acquire(walk.it - 1)
                        write_unit(m, pe.pe_s, walk.words, unit=UNITS)
                        pe.commit()
                    load_words(ROPE_WORD, ROPE_AT)
                leaf_sm100.take_scales(m, walk.words, walk.coming)
                walk.it += 1

    _at_queries(walk, gather)


@recorded
def _issue(m: Recorder, walk: Walk | TilesInTurn) -> None:
    """Issue the products: the scores of tile i + 1 before the values of tile i, so softmax never idles."""
    n = m.c.n

    def attend() -> None:
        q = walk.q.reader.wait(_number_of_query(walk))
        begin = inline(_first_use(walk))
        for turn in range(walk.turns + 1):
            walk.enter(turn)
            late = walk.it > begin
            done = named("before" if goes_on(m.k) else "done", walk.it - 1)
            if walk.live:
                s = walk.s.producer.acquire(walk.it)
                for c in rolled(UNITS):
                    kv = walk.kv.reader.wait(walk.it * UNITS + c)
                    m.multiply("qk_nope", s.view(), kv.kv_s, q.q_s.columns(c * UNIT, UNIT), accumulate=c > 0)
                if m.c.rope:
                    pe = walk.pe.reader.wait(walk.it)
                    m.multiply("qk_pe", s.view(), pe.pe_s, q.qpe_s, accumulate=True)
                    pe.release()
                s.commit()
                walk.it += 1
            if goes_on(m.k) and turn == walk.turns:
                q.release()
            m.comment("A tile's values come after the next tile's scores, so softmax never idles.")
            if late and (walk.live or turn == walk.turns):
                p = walk.p.reader.wait(done)
                o = walk.o.producer.acquire(done)
                for c in rolled(UNITS):
                    kv = walk.kv.reader.slot(done * UNITS + c)
                    m.multiply("pv", o.o_t.columns(c * n, n), kv.kv_s, p.p_s, accumulate=done > begin)
                    kv.release()
                p.release()
                o.commit()

    _at_queries(walk, attend)


@recorded
def _copy_queries(walk: Walk | TilesInTurn, row: Value, use: Value) -> None:
    """Start the copies of a query's block of heads."""
    m, q = walk.m, walk.q.producer.acquire(use)
    for target, q_of, width in zip(q.views(), queries_of(walk), (LATENT_DIM, ROPE_DIM), strict=False):
        leaf_sm100.copy_block(
            m,
            target,
            q_of,
            row,
            walk.head0,
            m.c.head_block,
            columns=width,
            heads=heads_of_call(m),
            at_once=COPIES if lacks_registers(m.k) else None,
        )
    q.commit()


@recorded
def _softmax(m: Recorder, walk: Walk | TilesInTurn) -> None:
    """Copy the queries, then replace S by P, tile by tile.

    O stays in tensor memory and is rescaled only when a maximum has risen.
    """

    def attend() -> None:
        if isinstance(walk, TilesInTurn):
            if walk.done == 0:
                _copy_queries(walk, walk.row, 0)
        else:
            _copy_queries(walk, walk.row, 0)
        begin = inline(_first_use(walk))
        m.fill(walk.sums, 0.0)
        m.fill(walk.peak, -math.inf)
        grown: Boolean = False
        for turn in range(walk.turns):
            walk.enter(turn)
            if walk.live:
                maxima = walk.red_s.stage(walk.it)
                s = walk.s.reader.wait(walk.it)
                leaf_sm100.read_accumulator(m, walk.scores, s.view(), m.thread)
                s.release()
                leaf_softmax.mask_scores(
                    m, walk.scores, low=walk.in_low, high=walk.in_high, sm_scale=walk.sm_scale,
                )  # fmt: skip
                leaf_softmax.leave_maxima(m, maxima, walk.scores)
                m.meet("softmax")
                leaf_sm100.take_maxima(m, grown, walk.top, walk.peak, red=maxima, rise=RESCALE_LOG2)
                if grown:
                    leaf_sm100.raise_reference(m, walk.peak, walk.top, walk.sums, walk.stat_s)
                    m.meet("softmax")
                    if walk.it > begin:
                        o = walk.o.reader.wait(walk.it - 1)
                        leaf_sm100.rescale_output(m, o.o_t, held=walk.held, stat_s=walk.stat_s, padded=m.c.n)
                        o.release()
                p = walk.p.producer.acquire(walk.it)
                leaf_sm100.weigh_tokens(m, walk.scores, walk.sums, walk.peak)
                leaf_softmax.store_weights(m, p.p_s, walk.scores)
                m.comment(
                    "If O was not rescaled, wait for it here: a parity tells only adjacent phases apart."
                )
                if walk.it > begin and not grown:
                    walk.o.reader.wait(walk.it - 1).release()
                p.commit()
                walk.it += 1
        _leave_output(walk, begin)

    _at_queries(walk, attend)
    if isinstance(walk, TilesInTurn):
        merge_parts(walk, "softmax", partial(merge_heads, walk))


@recorded
def _leave_output(walk: Walk | TilesInTurn, begin: Value) -> None:
    """Normalise O and write it with its lse, as the result or as a split's part; then merge this CTA's share.

    A CTA that goes on first starts the copies of its next query, and merges only after it has written all of
    its parts.
    """
    m, row, head0 = walk.m, walk.row, walk.head0
    if isinstance(walk, TilesInTurn) and has_next(walk):
        _copy_queries(walk, next_row(walk), walk.done + 1)
    totals, last = walk.red_s.stage(walk.it), walk.o.reader.slot(walk.it - 1)
    leaf_softmax.leave_sums(m, totals, walk.sums)
    m.meet("softmax")
    if walk.it > begin:
        walk.o.reader.wait(walk.it - 1)

    def write(to: Global, lses: Global, split: Value | None) -> None:
        leaf_sm100.finish_columns(
            m, totals, lses, row, head0, split, walk.top, walk.peak, walk.stat_s, walk.attn_sink,
            padded_heads(m.k), m.c.head_block, walk.splits, walk.lse_scale, walk.empty_lse, heads_of_call(m),
        )  # fmt: skip
        m.meet("softmax")
        leaf_sm100.write_output(
            m, to, last.o_t, row, head0, split, some=walk.it > begin, held=walk.held,
            stat_s=walk.stat_s, padded=padded_heads(m.k), head_block=m.c.head_block, splits=walk.splits,
            heads=heads_of_call(m),
        )  # fmt: skip

    if isinstance(walk, TilesInTurn):
        write_part(walk, write)
        if walk.it > begin:
            last.release()
    elif walk.splits == 1:
        write(walk.out, walk.lse, None)
    else:
        write(walk.o_partial, walk.lse_partial, walk.split)
        merge_splits(walk, "softmax", lambda *share: merge_heads(walk, row, *share))


@recorded
def merge_heads(walk: Any, row: Value, share: Value, shares: Value) -> None:
    """Join the parts of a query for a share of the heads. If the CTA goes on, each part has one share."""
    m = walk.m
    # With more heads at a time ptxas spills in the loop over tiles.
    together = 1 if m.k.terms or (unpacked(m.k) and m.c.head_block == 32) else 4
    leaf_sm100.merge_heads(
        m, row, walk.head0, share, shares, walk.o_partial, walk.lse_partial, walk.attn_sink, walk.out,
        walk.lse, padded_heads(m.k), m.c.head_block, together, walk.splits, walk.lse_scale, walk.empty_lse,
        heads_of_call(m), shares if goes_on(m.k) else None,
    )  # fmt: skip


def bodies(k: SimpleNamespace) -> dict[str, Body]:
    gather = _gather_tokens if unpacked(k) else _gather_rows
    return {
        START: start_share if goes_on(k) else start,
        "softmax": _softmax,
        "producer": gather,
        "mma": _issue,
    }
