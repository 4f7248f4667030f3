"""Decode scoring: keys by page, for few queries of each sequence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from ....abi import TensorMap
from ....arch import ArchSpec
from ....tile.channel import Filling, Reading
from ....tile.frontend import Boolean, Int32, State, inline, named, recorded, rolled, unrolled
from ....tile.lang import START, Body, Buffer, Engine, Pipeline, Reader, Role, Schedule, Size
from ....tile.text import Box, Changes, Expr, Recorder, Span, Value, ceildiv, dim, minimum
from .. import functions as leaf
from ..leaves import blackwell as sm100
from ..leaves import hopper as sm90
from ..leaves import walk
from .common import (
    BLOCK,
    GRAIN,
    HOPPER_N,
    INDEX_DIM,
    LEAST_PITCH,
    PAGE,
    PAGE_ROWS,
    PAGE_WORDS,
    SCALE_WORD,
    TENSOR,
    WEIGHTS,
    Kernel,
    blackwell_groups,
    blackwell_registers,
    columns,
    few,
    grain,
    hopper_registers,
    input_buffers,
    inputs,
    of_any,
    of_blocks,
    of_four_bits,
    rows_map,
    rows_of_product,
    scales_apart,
    score_product,
    weigh_row,
    weight_pitch,
    weights_map,
    weights_of,
)


def _maps(k: SimpleNamespace) -> tuple[TensorMap, ...]:
    if of_any(k):
        return _maps_of_any(k)
    return (
        rows_map(
            "query_map",
            "q",
            (str(k.heads), "next_n", "b"),
            ("q_stride_h", "q_stride_n", "q_stride_b"),
            (k.heads, 1, 1),
        ),
        # The keys of a page are 64 of its 66 rows. Pages may have rows between them.
        rows_map(
            "key_map", "k_cache", (f"(pages - 1) * (k_cache_stride // 128) + {PAGE_ROWS}",), ("128",), (PAGE,)
        ),
    )


def _maps_of_any(k: SimpleNamespace) -> tuple[TensorMap, ...]:
    return (
        rows_map(
            "query_map", "q", ("index_heads", "next_n", "b"), ("q_stride_h", "q_stride_n", "q_stride_b"),
            (k.heads, 1, 1), dim="index_dim",
        ),
        weights_map("rows", k),
        rows_map(
            "key_map", "k_cache", ("page_size", "pages"), ("index_dim", "k_cache_stride"), (grain(k), 1),
            dim="index_dim",
        ),
        # The words of a page; the last words are the page's scales.
        TensorMap(
            "scale_map", "k_cache", "FLOAT32", ("page_bytes // 4", "pages"), ("k_cache_stride",),
            (grain(k), 1), (1, 1),
        ),
    )  # fmt: skip


def _copied(k: SimpleNamespace) -> Size:
    """Copies per key tile: each copies a page, or a part of a page."""
    if of_blocks(k):
        return Size(k.tile // BLOCK, "TILE_BLOCKS")
    return Size(k.tile // GRAIN, "TILE_GRAINS") if of_any(k) else Size(k.tile // PAGE, "TILE_PAGES")


def hopper(k: SimpleNamespace) -> Schedule:
    query_stages = 2 if k.queries == 1 else 1
    each = rows_of_product(k, HOPPER_N)
    # A thread with 64 accumulators and 32 weights needs registers that idle copy warps hand over; a thread
    # with one product does not. The copying warp keeps the rest: with 24 registers the walk and the pages
    # ahead of it spill, in the other role too.
    score_registers, load_warps, load_registers = (
        (None, 1, None) if k.queries == 1 or few(k) else (104, 4, 64)
    )
    score = (Reader("score", Engine.WGMMA, "warp"),)
    return Schedule(
        roles=(
            Role("score", k.tile // 16, score_registers, doc="products and epilogue, 64 keys a warpgroup"),
            Role("load", load_warps, load_registers, "block table, key pages, queries", active=1),
        ),
        buffers=(
            *input_buffers(k, query_stages),
            *hopper_registers(k, k.tile, each, "length"),
        ),
        pipelines=inputs(k, score, query_stages),
        mmas=(score_product("wgmma", "score", k.tile, columns(k, each), "acc"),),
        grid=(dim("ctas"),),
        axes=("cta",),
        constants={"pages": _copied(k), "rows_per_product": each},
        ctas_per_sm=k.resident,
        max_ctas_per_sm=k.resident,
        maps=_maps(k),
    )


def blackwell(k: SimpleNamespace) -> Schedule:
    rings, sharing, each = blackwell_groups(k)
    accumulators = 4 // rings
    query_stages = 2 if k.queries == 1 else 1
    scorers = tuple(f"score_{g}" for g in range(rings * sharing))
    readers = (Reader("mma", Engine.TCGEN05), *(Reader(role, Engine.THREADS, "warp") for role in scorers))
    weights = k.heads if k.queries == 1 else min(WEIGHTS, k.heads)
    return Schedule(
        roles=(
            *(
                Role(
                    role, 4,
                    doc=f"epilogue of products i with i % {rings} == {g // sharing}, "
                    f"part {g % sharing} of {sharing}",
                )
                for g, role in enumerate(scorers)
            ),
            Role("load", 1, doc="block table, key pages, queries"),
            Role("mma", 1, doc="issues every tcgen05.mma and commit"),
        ),
        buffers=(
            *input_buffers(k, query_stages),
            *(
                Buffer(f"scores_{r}", TENSOR, (128, columns(k, each)), "float32", accumulators)
                for r in range(rings)
            ),
            *(b for role in scorers for b in blackwell_registers(role, k.heads, weights, length=1)),
        ),
        pipelines=(
            *inputs(k, readers, query_stages),
            *(
                Pipeline(
                    f"scores_{r}", (f"scores_{r}",), "mma", Engine.TCGEN05,
                    tuple(Reader(f"score_{r * sharing + i}", Engine.TMEM, "warp") for i in range(sharing)),
                    accumulators, doc="one use per tile and product of the ring",
                )
                for r in range(rings)
            ),
        ),
        mmas=(score_product("tcgen05", "mma", k.tile, columns(k, each), "scores_0"),),
        grid=(dim("ctas"),),
        axes=("cta",),
        constants={
            "pages": _copied(k), "rings": rings, "sharing": sharing, "rows_per_product": each,
        },
        maps=_maps(k),
    )  # fmt: skip


class Share(State, Kernel):
    """The key tiles that a CTA of a decode scores, one after the other, and the current tile.

    The current tile is tile `tile` of sequence `seq`, and the next tile is `step` further. `fresh` says that
    the tile is the first one of its sequence in this share. `need` keys of the sequence have to be scored.
    The share has `turns` tiles, and its current sequence is number `turn`. Each lane of the copying role
    holds a page-table entry: `entry` for the current tiles, `ahead` for the tiles after them. With pages of
    any size a lane holds the entry of some keys, and the `place` (or `place_ahead`) of these keys in the
    page.
    """

    seq: Int32
    tile: Int32
    step: Int32
    need: Int32
    turns: Int32
    turn: Int32
    fresh: Boolean
    entry: Int32
    ahead: Int32
    place: Int32
    place_ahead: Int32


def _next_n(m: Recorder) -> Value:
    """Queries per sequence. A kernel for one query does not read their number."""
    return 1 if m.k.queries == 1 else Kernel(m).next_n


def _tiles_of_entries(m: Recorder) -> int:
    """Tiles whose table entries a warp holds at once, one entry per lane."""
    return leaf.WARP // int(m.c.pages)


def _products(m: Recorder) -> Any:
    """Products of a key tile with the queries of a sequence."""
    return ceildiv(_next_n(m), m.c.rows_per_product)


@recorded
def _start(m: Recorder) -> Share:
    """While the lengths are in flight, the CTA fetches and computes what does not depend on them."""
    s = Share(m, seq=0, tile=0, step=1, need=0, turns=0, turn=-1, fresh=False)
    walk.place_when_even(m, s.seq, s.tile, s.step, s.b, cta=m.block(0), ctas=s.ctas)
    # A kernel that waits while it holds tensor memory could keep the previous kernel from allocating its own.
    if m.arch.tmem_columns:
        m.depend(launch=False)
    m.barriers_stand()
    if not m.arch.tmem_columns:
        m.depend(launch=False)
    if m.k.queries == 1:
        early_length: Int32 = 0
        walk.read_lengths(m, early_length, s.seq_lens, s.b)
    s.entry = s.ahead = 0
    if of_any(m.k):
        s.place = s.place_ahead = 0
    if m.in_role("load"):
        m.comment("Entries past a length are garbage: no copy uses an entry before the length is known.")
        row = minimum(s.seq, s.b - 1)
        reach = inline(_reach(m, s))
        _read_entries(m, s, row, s.step, last=reach - 1)
    m.launch_dependents()
    if m.k.queries == 1:
        walk.lengths_to_score(m, s.need, early_length, s.b, s.skip_below)
    else:
        walk.keys_to_score(m, s.need, s.seq_lens, s.b, s.next_n, s.skip_below, sequence=m.lane)
    walk.find_share(
        m, s.seq, s.tile, s.need, s.turns, s.step, s.seq_lens, s.b, next_n=_next_n(m),
        skip_below=s.skip_below, keys=m.k.tile, cta=m.block(0), ctas=s.ctas,
    )  # fmt: skip
    return s


def _reach(m: Recorder, s: Share) -> Value:
    """Copies of keys that the entries of a table line name."""
    paged = s.max_pages * s.page_size // GRAIN if of_any(m.k) else s.max_pages
    return s.max_pages * s.block_size // BLOCK if of_blocks(m.k) else paged


@recorded
def _read_entries(m: Recorder, s: Share, row: Value, step: Value, last: Value) -> None:
    """Read page-table entries up to `last`, for the current tile and the tiles after it, `step` apart."""
    _read(m, s, s.entry, s.place if of_any(m.k) else None, row, s.tile, step, last)
    _read_ahead(m, s, row, step, last)


@recorded
def _read_ahead(m: Recorder, s: Share, row: Value, step: Value, last: Value) -> None:
    """Read the page-table entries of the tiles after the ones whose entries a warp holds."""
    ahead = inline(s.tile + _tiles_of_entries(m) * step)
    _read(m, s, s.ahead, s.place_ahead if of_any(m.k) else None, row, ahead, step, last)


@recorded
def _read(
    m: Recorder, s: Share, entry: Expr, place: Expr | None, row: Value, first: Value, step: Value, last: Value
) -> None:
    """Read the page-table entries of the tiles from `first` on, and where there are any the places."""
    if of_blocks(m.k):
        walk.block_entries(
            m, entry, place, s.block_table, row, first=first, step=step, blocks=m.c.pages, last=last,
            page_size=s.page_size, block_size=s.block_size, sharing=s.sharing,
        )  # fmt: skip
    elif of_any(m.k):
        walk.grain_entries(
            m, entry, place, s.block_table, row, first=first, step=step, grains=m.c.pages, last=last,
            page_size=s.page_size,
        )  # fmt: skip
    else:
        # The rows of a sequence may share a line of the table.
        line = inline(row // s.sharing if of_four_bits(m.k) else row)
        walk.table_entries(
            m, entry, s.block_table, line, first=first, step=step, pages=m.c.pages, last=last,
        )  # fmt: skip


@recorded
def _begin_tile(m: Recorder, s: Share, it: Value) -> None:
    """Make tile number `it` of the share the current one."""
    walk.next_tile(
        m, s.fresh, it, s.seq, s.tile, s.need, s.seq_lens, s.b, next_n=_next_n(m),
        skip_below=s.skip_below, keys=m.k.tile,
    )  # fmt: skip


@recorded
def load(
    m: Recorder, s: Share, copy_page: Callable[..., None], load_queries: Callable[[Recorder, Share], None]
) -> None:
    """Copy every key tile of the share, and the queries of a sequence before its first tile.

    `copy_page(m, s, keys, p, page)` copies page `p` of a tile, from the place `page` of the cache.
    """
    held: Int32 = 0
    page: Int32 = 0
    if of_any(m.k):
        within: Int32 = 0
    for it in range(s.turns):
        _begin_tile(m, s, it)
        last = ceildiv(s.need, grain(m.k) if of_any(m.k) else PAGE) - 1
        if s.fresh:
            s.turn += 1
            held = 0
            if s.step == 1:
                _read_entries(m, s, s.seq, 1, last)
            load_queries(m, s)
        if held == _tiles_of_entries(m):
            held = 0
            s.entry = s.ahead
            if of_any(m.k):
                s.place = s.place_ahead
            _read_ahead(m, s, s.seq, s.step, last)
        # Scales have gaps between them, which no copy fills.
        copied = {"bytes": m.k.tile * (INDEX_DIM + 4)} if of_any(m.k) else {}
        keys = s.keys.producer.acquire(it, **copied)
        for p in unrolled(m.c.pages):
            own = inline(held * m.c.pages + minimum(p, last - s.tile * m.c.pages))
            walk.entry_of(m, page, s.entry, own)
            if of_any(m.k):
                walk.entry_of(m, within, s.place, own)
                _copy_grain(m, s, keys, p, page, within)
            else:
                copy_page(m, s, keys, p, page)
        keys.commit()
        held += 1
        s.tile += s.step


@recorded
def _copy_page(m: Recorder, s: Share, keys: Filling, p: Value, page: Value) -> None:
    """Copy a page of keys, and the scales of these keys."""
    page_rows = inline(s.k_cache_stride // INDEX_DIM)
    m.bulk(
        keys.keys.part(p * PAGE, PAGE),
        Box("key_map", (page * page_rows, 0)),
        keys,
        evict_first=bool(m.k.evict),
    )
    m.bulk(
        keys.key_scales.part(p * PAGE, PAGE),
        s.k_cache.span((page,), PAGE_WORDS, SCALE_WORD, PAGE, "float32"),
        keys,
    )


@recorded
def _copy_grain(m: Recorder, s: Share, keys: Filling, p: Value, page: Value, within: Value) -> None:
    """Copy keys of a page from key `within` on, and their scales. The scales follow all keys of the page."""
    count = grain(m.k)
    m.bulk(keys.keys.part(p * count, count), Box("key_map", (page, within, 0)), keys)
    scale = inline(s.page_size * s.index_dim // 4 + within)
    m.bulk(keys.key_scales.part(p * LEAST_PITCH, count), Box("scale_map", (page, scale)), keys)


@recorded
def _load_queries(m: Recorder, s: Share) -> None:
    """Copy the queries of a sequence and the weights of their heads."""
    heads, each, one = m.k.heads, m.c.rows_per_product, m.k.queries == 1
    if one:
        count = 1
    else:
        m.comment("The last product of an odd count scores its last query twice.")
        count = ceildiv(s.next_n, each) * each
    queries = s.queries.producer.acquire(s.turn, bytes=count * (heads * (INDEX_DIM + 4)))
    for i in rolled(count):
        if one:
            query = inline(0)
        else:
            query = minimum(i, s.next_n - 1)
        m.bulk(queries.queries.part(i * heads, heads), Box("query_map", (s.seq, query, 0, 0)), queries)
        m.bulk(queries.head_weights.part(i * weight_pitch(m.k), heads), _weights_at(m, s, query), queries)
    queries.commit()


@recorded
def _weights_at(m: Recorder, s: Share, query: Value) -> Box | Span:
    """The place of the weights of a query of the current sequence."""
    if of_any(m.k):
        return Box("weight_map", (s.seq * _next_n(m) + query, 0))
    return s.weights.span((s.seq, query), m.k.heads)


@recorded
def _next_queries(m: Recorder, s: Share, it: Value) -> None:
    """At the first tile of a sequence, release the previous sequence's queries and wait for the new ones."""
    if it > 0:
        s.queries.reader.slot(s.turn).release()
    s.turn += 1
    s.queries.reader.wait(s.turn)


@recorded
def _score(m: Recorder, s: Share) -> None:
    """Hopper: one role multiplies and scores, `rows_per_product` queries at a time."""
    each, n = m.c.rows_per_product, columns(m.k, m.c.rows_per_product)
    acc, queries = s.acc, s.queries.reader.slot(s.turn)
    one = m.k.queries == 1
    for it in range(s.turns):
        _begin_tile(m, s, it)
        if s.fresh:
            _next_queries(m, s, it)
            if one:
                sm90.read_weights(
                    m, s.weight, queries.head_weights, first=0, each=1, heads=m.k.heads,
                    pitch=weight_pitch(m.k),
                )  # fmt: skip
        keys = s.keys.reader.wait(it)
        key = inline(s.tile * m.k.tile)
        if one:
            m.multiply("score", acc, keys.keys, queries.queries)
            if of_blocks(m.k):
                sm90.read_block_scales(m, s.scale, keys.key_scales, apart=scales_apart(m.k))
            else:
                sm90.read_scales(m, s.scale, keys.key_scales, first=0, each=each, apart=scales_apart(m.k))
            keys.release()
            sm90.weigh(m, s.logit, s.acc, s.weight, each, m.k.heads)
            sm90.one_length(m, s.length, s.need)
            if of_blocks(m.k):
                walk.decode_scales(m, s.scale, s.mx)
            sm90.store_logits(
                m, s.logits, s.logit, s.scale, s.length, s.seq, query=0, each=1, next_n=1, key=key,
            )  # fmt: skip
            if of_blocks(m.k):  # noqa: SIM102 (the inner condition is one of the kernel)
                if s.has_maxima != 0:
                    sm90.store_maxima(m, s.maxima, s.logit, s.scale, s.length, s.seq, key=key)
        else:
            sm90.read_scales(m, s.scale, keys.key_scales, first=0, each=each, apart=scales_apart(m.k))
            for product in range(_products(m)):
                m.multiply("score", acc, keys.keys, queries.queries.part(product * n, n))
                sm90.read_query_lengths(
                    m, s.length, s.seq_lens, s.seq, query=product * each, each=each,
                    next_n=s.next_n, skip_below=s.skip_below,
                )  # fmt: skip
                m.await_products()
                sm90.read_weights(
                    m, s.weight, queries.head_weights, first=product * weights_of(m.k, each), each=each,
                    heads=m.k.heads, pitch=weight_pitch(m.k),
                )  # fmt: skip
                sm90.weigh(m, s.logit, s.acc, s.weight, each, m.k.heads)
                sm90.store_logits(
                    m, s.logits, s.logit, s.scale, s.length, s.seq, query=product * each, each=each,
                    next_n=s.next_n, key=key,
                )  # fmt: skip
            keys.release()
        s.tile += s.step


@recorded
def _issue(m: Recorder, s: Share) -> None:
    """Blackwell's MMA warp: one accumulator per tile and product, from the rings in turn."""
    rings, n = m.c.rings, columns(m.k, m.c.rows_per_product)
    queries = s.queries.reader.slot(s.turn)

    def none_so_far(r: int) -> Int32:
        """How many accumulators of a ring have been filled, at first none."""
        fill: Int32 = named(f"fill_{r}", 0)
        return fill

    def issue(keys: Reading, product: Value, r: int, fill: Changes) -> None:
        out = m.channel(f"scores_{r}").producer.acquire(fill)
        m.multiply("score", out.view(), keys.keys, queries.queries.part(product * n, n))
        out.commit()
        fill += 1

    fills = [none_so_far(r) for r in range(rings)]
    for it in range(s.turns):
        _begin_tile(m, s, it)
        if s.fresh:
            _next_queries(m, s, it)
        keys = s.keys.reader.wait(it)
        if m.k.queries == 1:
            issue(keys, 0, 0, fills[0])
        else:
            products = _products(m)
            for i in range(0, products, rings):
                for r in range(rings):
                    if i + r < products:
                        issue(keys, i + r, r, fills[r])
        keys.release()
        s.tile += s.step


@recorded
def _epilogue(m: Recorder, s: Share, g: int) -> None:
    """Blackwell: the scores of a group's queries in every product of its ring, one key per thread."""
    heads, each, one = m.k.heads, m.c.rows_per_product, m.k.queries == 1
    ring, part = divmod(g, int(m.c.sharing))
    own = each // int(m.c.sharing)
    dots, weight, scale, logit, length = (
        m.buffer(f"{x}_{g}") for x in ("dots", "weight", "scale", "logit", "length")
    )
    queries = s.queries.reader.slot(s.turn)
    use: Int32 = 0
    for it in range(s.turns):
        _begin_tile(m, s, it)
        if s.fresh:
            _next_queries(m, s, it)
            if one:
                sm100.load_weights(m, weight, queries.head_weights, 0)
            sm100.load_lengths(m, length, s.seq_lens, s.seq, s.next_n, s.skip_below)
        keys = s.keys.reader.wait(it)
        if of_blocks(m.k):
            sm100.load_block_scale(m, scale, keys.key_scales, apart=scales_apart(m.k))
        else:
            sm100.load_scale(m, scale, keys.key_scales, apart=scales_apart(m.k))
        keys.release()
        if of_blocks(m.k):
            walk.decode_scales(m, scale, s.mx)
        for product in rolled(ring, _products(m), m.c.rings):
            scores = m.channel(f"scores_{ring}").reader.wait(use)
            for j in range(part * own, (part + 1) * own):
                query = inline(product * each + j)
                leaf.read_scores(m, dots, scores.view(), j * heads, m.k.heads, m.thread)
                if j + 1 == (part + 1) * own:
                    scores.release()
                    use += 1
                if one:
                    leaf.weigh_one(m, logit, dots, 0, weight, fresh=True)
                else:
                    weigh_row(m, logit, dots, weight, queries.head_weights, query * weight_pitch(m.k))
                sm100.store_query(
                    m, s.logits, logit, scale, length, s.seq, query, s.next_n, key=s.tile * m.k.tile,
                )  # fmt: skip
                if of_blocks(m.k):  # noqa: SIM102 (the inner condition is one of the kernel)
                    if s.has_maxima != 0:
                        sm100.store_maxima(m, s.maxima, logit, scale, length, s.seq, key=s.tile * m.k.tile)
        s.tile += s.step


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    copies = partial(load, copy_page=_copy_page, load_queries=_load_queries)
    if not arch.tmem_columns:
        return {START: _start, "load": copies, "score": _score}
    rings, sharing, _ = blackwell_groups(k)
    scorers = {f"score_{g}": partial(_epilogue, g=g) for g in range(rings * sharing)}
    return {START: _start, "load": copies, "mma": _issue, **scorers}
