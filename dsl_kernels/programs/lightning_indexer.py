"""The lightning indexer as a tile program: keys on M, query heads on N, the head sum in the epilogue.

    S[keys, heads] = K Q^T (fp8, fp32 accumulators);   logit[key] = scale[key] * sum_h w_h * relu(S[key, h])

Decode deals the key tiles of a batch of like lengths in turn to as many CTAs a sequence, so that a CTA knows its
sequence before any length. The tiles of ragged sequences, end to end, are dealt in contiguous equal shares. Every CTA
works out from seq_lens which of the two it is and where it starts: nothing is planned on the host, and nothing depends
on who scores a tile. Prefill gives a CTA a block of query rows and re-uses each key tile for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from .. import problems
from ..abi import TensorMap
from ..arch import ArchSpec
from ..device.text import lightning_indexer as walk
from ..device.text import lightning_indexer_sm90 as sm90
from ..device.text import lightning_indexer_sm100 as sm100
from ..device.torch import lightning_indexer as leaf
from ..problems import layouts
from ..problems import lightning_indexer as problem
from ..tile.frontend import Boolean, Int32, State, inline, named, recorded, rolled, unrolled
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
)
from ..tile.program import TileProgram
from ..tile.text import Box, Changes, Recorder, Slot, Span, Value, ceildiv, minimum

# A page of the cache holds 64 rows of 128 e4m3 and then 64 fp32 scales: 66 rows of 128 bytes, or so many words.
INDEX_DIM, PAGE = Size(layouts.INDEX_DIM, "INDEX_DIM"), Size(problem.PAGE, "PAGE")
PAGE_ROWS = Size(PAGE + 2, "PAGE_ROWS")
PAGE_WORDS = Size(PAGE_ROWS * INDEX_DIM // 4, "PAGE_WORDS")
SCALE_WORD = Size(PAGE * INDEX_DIM // 4, "SCALE_WORD")

SHARED, TENSOR, REGISTER = Space.SHARED, Space.TENSOR, Space.REGISTER
FP8 = "float8_e4m3"
# N of one product. Hopper: 128, 2 query rows of 64 heads or 4 of 32, and four consumer warpgroups in all.
# Blackwell prefill: 256, half of it a scoring group. Blackwell decode of several queries: 128. A product of 128 keys
# reads (128 + N) * 128 bytes of shared memory at 128 bytes a cycle and multiplies for 2 N cycles: below N = 128 the
# reads take longer. Four accumulators of 128 columns fill the tensor memory.
HOPPER_N = 128
HOPPER_WARPGROUPS = 4
BLACKWELL_N = 256
BLACKWELL_DECODE_N = 128

# What a CTA of a prefill takes to begin, in key tiles; how many more splits of a block are weighed than fill the SMs once.
START_TILES, SPLITS = 2, 8

KNOBS = (
    Knob(
        "mode",
        "",
        (("decode", "prefill"),),
        "paged decode; flat keys with a window per row",
    ),
    Knob("heads", "h", ((64, 32),), "index heads"),
    Knob("queries", "q", ((1, 4, 8, 16), (2,)), "decode: most queries a sequence; prefill: query rows a CTA"),
    Knob("tile", "t", ((64, 128, 256),), "keys a tile"),
    Knob("stages", "st", ((2, 3, 4, 5, 6, 8), (11,)), "key tiles in flight"),
    Knob("resident", "c", ((1, 2, 4), (3,)), "CTAs an SM"),
    Knob("evict", "e", ((0, 1),), "keys leave the L2 first"),
)


def _columns(k: SimpleNamespace, rows: int) -> Size:
    """Columns of a product: the heads of so many query rows."""
    return Size(rows * k.heads, "COLUMNS")


def _decode_buffers(k: SimpleNamespace, query_stages: int) -> tuple[Buffer, ...]:
    return (
        Buffer("keys", SHARED, (k.tile, INDEX_DIM), FP8, k.stages, swizzle=128),
        Buffer("key_scales", SHARED, (k.tile,), "float32", k.stages),
        Buffer("queries", SHARED, (k.queries * k.heads, INDEX_DIM), FP8, query_stages, swizzle=128),
        Buffer("head_weights", SHARED, (k.queries * k.heads,), "float32", query_stages),
    )


def _inputs(
    k: SimpleNamespace, readers: tuple[Reader, ...], query_stages: int = 1, rounds: str = "loop"
) -> tuple[Pipeline, ...]:
    """Key tiles, and the queries that score them: one use of these a sequence of a decode, one in all of a prefill."""
    return (
        Pipeline("keys", ("keys", "key_scales"), "load", Engine.BULK, readers, k.stages),
        Pipeline("queries", ("queries", "head_weights"), "load", Engine.BULK, readers, query_stages, rounds),
    )


def _rows_map(name: str, operand: str, rows: str, box: int) -> TensorMap:
    """Boxes of `box` rows of 128 bytes; the keys of a page are 64 of its 66 such rows."""
    return TensorMap(
        name, operand, "UINT8", ("128", rows), ("128",), (INDEX_DIM, box), (1, 1),
        swizzle="128B", l2_promotion="L2_128B",
    )  # fmt: skip


def _vector_map(name: str, operand: str, count: str, box: int) -> TensorMap:
    """Boxes of `box` floats; zeros past the end."""
    return TensorMap(name, operand, "FLOAT32", (count,), (), (box,), (1,))


def _decode_maps(k: SimpleNamespace) -> tuple[TensorMap, ...]:
    return (
        _rows_map("query_map", "q", f"b * next_n * {k.heads}", k.heads),
        _rows_map("key_map", "k_cache", f"pages * {PAGE + 2}", PAGE),
    )


def _prefill_maps(k: SimpleNamespace) -> tuple[TensorMap, ...]:
    return (
        _rows_map("query_map", "q", f"s * {k.heads}", min(256, k.queries * k.heads)),
        _vector_map("weight_map", "weights", f"s * {k.heads}", min(256, k.queries * k.heads)),
        _rows_map("key_map", "k", "skv", k.tile),
        _vector_map("scale_map", "k_scales", "skv", k.tile),
    )


def _product(unit: str, role: str, m: int, n: int, acc: str) -> Mma:
    """S = K Q^T of a tile."""
    return Mma(
        "score",
        unit,
        role,
        m,
        n,
        INDEX_DIM,
        FP8,
        a="keys",
        b="queries",
        acc=acc,
        doc="S[keys, heads] = K Q^T",
    )


def _hopper_registers(k: SimpleNamespace, keys: int, each: int, *more: str) -> tuple[Buffer, ...]:
    """What the threads of a scoring role hold, and `more` int32. The four lanes of a quad end with one logit each, or two."""
    logits = max(1, each // 2)
    held = (
        ("weight", each * k.heads // 4, "float32"),
        ("scale", logits, "float32"),
        ("logit", logits, "float32"),
        *((text, 1, "int32") for text in more),
    )
    return (
        Buffer("acc", REGISTER, (keys, _columns(k, each)), "float32", role="score"),
        *(Buffer(text, REGISTER, (2 * keys, count), dtype, role="score", per_thread=count, private=True) for text, count, dtype in held),
    )  # fmt: skip


def _hopper_decode(k: SimpleNamespace) -> Schedule:
    query_stages = 2 if k.queries == 1 else 1
    each = Size(min(k.queries, HOPPER_N // k.heads), "ROWS_PER_PRODUCT")
    # 64 accumulators and 32 weights a thread need registers that idle copy warps hand over; one product does not. The
    # copying warp keeps what that leaves: with 24 the walk and the pages ahead of it spill, in the other role too.
    score_registers, load_warps, load_registers = (None, 1, None) if k.queries == 1 else (104, 4, 64)
    score = (Reader("score", Engine.WGMMA, "warp"),)
    return Schedule(
        roles=(
            Role("score", k.tile // 16, score_registers, doc="products and epilogue, 64 keys a warpgroup"),
            Role("load", load_warps, load_registers, "block table, key pages, queries", active=1),
        ),
        buffers=(
            *_decode_buffers(k, query_stages),
            *_hopper_registers(k, k.tile, each, "length"),
        ),
        pipelines=_inputs(k, score, query_stages),
        mmas=(_product("wgmma", "score", k.tile, _columns(k, each), "acc"),),
        grid=("ctas",),
        axes=("cta",),
        constants={"pages": Size(k.tile // PAGE, "TILE_PAGES"), "rows_per_product": each},
        ctas_per_sm=k.resident,
        max_ctas_per_sm=k.resident,
        maps=_decode_maps(k),
    )


def hopper_groups(k: SimpleNamespace) -> tuple[int, int]:
    """Prefill's scoring groups, each with its own query rows, all reading the same key tile; keys of one product."""
    groups = min(HOPPER_WARPGROUPS, max(1, k.queries * k.heads // HOPPER_N))
    return groups, Size(HOPPER_WARPGROUPS // groups * 64, "BLOCK")


def _hopper_prefill(k: SimpleNamespace) -> Schedule:
    groups, block = hopper_groups(k)
    each = Size(k.queries // groups, "ROWS_PER_PRODUCT")
    readers = (Reader("score", Engine.WGMMA, "warp"),)
    return Schedule(
        roles=(
            Role(
                "score",
                block // 16,
                112,
                f"products and epilogue, {each} query rows a replica",
                replicas=groups,
            ),
            Role("load", 4, 24, "key tiles, queries", active=1),
        ),
        buffers=(
            *_decode_buffers(k, 1),
            *_hopper_registers(k, block, each, "begin", "size"),
        ),
        pipelines=_inputs(k, readers, rounds="once"),
        mmas=(_product("wgmma", "score", block, _columns(k, each), "acc"),),
        grid=(f"ceildiv(s, {k.queries})", "splits"),
        axes=("block", "split"),
        constants={"rows_per_product": each, "block": block},
        maps=_prefill_maps(k),
    )


def _blackwell_groups(k: SimpleNamespace) -> tuple[int, int]:
    """Scoring groups of a decode and the queries of one product; where one product holds them all, one group."""
    each = Size(min(k.queries, BLACKWELL_DECODE_N // k.heads), "ROWS_PER_PRODUCT")
    return (1 if each == k.queries else 2), each


def _blackwell_registers(k: SimpleNamespace, role: str, columns: int, **more: int) -> tuple[Buffer, ...]:
    """What each thread of a scoring role has: one key, `columns` of its scores, the weights of one query, and `more` int32."""
    g = role.removeprefix("score_")
    floats = {"dots": columns, "weight": k.heads, "scale": 1, "logit": 1}
    return tuple(
        Buffer(f"{text}_{g}", REGISTER, (128, each), dtype, role=role, per_thread=each, private=True)
        for dtype, held in (("float32", floats), ("int32", more))
        for text, each in held.items()
    )


def _blackwell_decode(k: SimpleNamespace) -> Schedule:
    groups, each = _blackwell_groups(k)
    accumulators = 4 // groups
    query_stages = 2 if k.queries == 1 else 1
    scorers = tuple(f"score_{g}" for g in range(groups))
    readers = (Reader("mma", Engine.TCGEN05), *(Reader(role, Engine.THREADS, "warp") for role in scorers))
    return Schedule(
        roles=(
            *(Role(role, 4, doc=f"epilogue of products i with i % {groups} == {g}") for g, role in enumerate(scorers)),
            Role("load", 1, doc="block table, key pages, queries"),
            Role("mma", 1, doc="issues every tcgen05.mma and commit"),
        ),
        buffers=(
            *_decode_buffers(k, query_stages),
            *(Buffer(f"scores_{g}", TENSOR, (128, _columns(k, each)), "float32", accumulators) for g in range(groups)),
            *(b for role in scorers for b in _blackwell_registers(k, role, _columns(k, each), length=1)),
        ),
        pipelines=(
            *_inputs(k, readers, query_stages),
            *(
                Pipeline(
                    f"scores_{g}", (f"scores_{g}",), "mma", Engine.TCGEN05,
                    (Reader(f"score_{g}", Engine.TMEM, "warp"),), accumulators, doc="one use a tile and product of the group",
                )
                for g in range(groups)
            ),
        ),
        mmas=(_product("tcgen05", "mma", k.tile, _columns(k, each), "scores_0"),),
        grid=("ctas",),
        axes=("cta",),
        constants={"pages": Size(k.tile // PAGE, "TILE_PAGES"), "groups": groups, "rows_per_product": each},
        maps=_decode_maps(k),
    )  # fmt: skip


def _blackwell_prefill(k: SimpleNamespace) -> Schedule:
    groups = 2
    rows = Size(k.queries // groups, "ROWS_PER_GROUP")
    scorers = tuple(f"score_{g}" for g in range(groups))
    readers = (Reader("mma", Engine.TCGEN05), *(Reader(role, Engine.THREADS, "warp") for role in scorers))
    return Schedule(
        roles=(
            *(Role(role, 4, doc=f"epilogue of half {g} of the rows") for g, role in enumerate(scorers)),
            Role("load", 1, doc="key tiles, queries"),
            Role("mma", 1, doc="issues every tcgen05.mma and commit"),
        ),
        buffers=(
            *_decode_buffers(k, 1),
            Buffer("scores", TENSOR, (128, _columns(k, k.queries)), "float32", 2),
            *(
                b
                for role in scorers
                for b in _blackwell_registers(k, role, rows * k.heads, begin=rows, size=rows)
            ),
        ),
        pipelines=(
            *_inputs(k, readers, rounds="once"),
            Pipeline(
                "scores",
                ("scores",),
                "mma",
                Engine.TCGEN05,
                tuple(Reader(r, Engine.TMEM, "warp") for r in scorers),
                2,
            ),
        ),
        mmas=(_product("tcgen05", "mma", k.tile, _columns(k, k.queries), "scores"),),
        grid=(f"ceildiv(s, {k.queries})", "splits"),
        axes=("block", "split"),
        constants={"groups": groups, "rows_per_group": rows, "rows_per_product": k.queries},
        maps=_prefill_maps(k),
    )


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    if arch.tmem_columns:
        return _blackwell_prefill(k) if k.mode == "prefill" else _blackwell_decode(k)
    return _hopper_prefill(k) if k.mode == "prefill" else _hopper_decode(k)


class Share(State):
    """The key tiles that a CTA of a decode scores, one after the other, and where it stands.

    Tile `tile` of sequence `seq` is the current one, `fresh` where it is the share's first one of the sequence; the
    next one is `step` further. `need` keys of the sequence have to be scored. There are `turns` tiles in all, and
    sequence number `turn` of the share is the current one. The copying role holds page-table entries, one a lane:
    `entry` of the tiles now, `ahead` of those after them.
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


def _next_n(m: Recorder) -> Value:
    """Queries of a sequence; a kernel for one does not read how many there are."""
    return 1 if m.k.queries == 1 else m.dim("next_n")


def _tiles_of_entries(m: Recorder) -> int:
    """Tiles whose pages the lanes of a warp hold at once, one table entry each."""
    return leaf.WARP // int(m.c.pages)


def _products(m: Recorder) -> Any:
    """Products of a key tile with the queries of a sequence."""
    return ceildiv(_next_n(m), m.c.rows_per_product)


@recorded
def _start_decode(m: Recorder) -> Share:
    """What does not depend on a length is fetched and worked out while the lengths are in flight."""
    s = Share(m, seq=0, tile=0, step=1, need=0, turns=0, turn=-1, fresh=False)
    walk.place_when_even(m, s.seq, s.tile, s.step)
    m.barriers_stand()
    # A kernel that waits with tensor memory in hand could keep the one before it from getting its own.
    dependent = not m.arch.tmem_columns
    if dependent:
        m.depend(launch=False)
    if m.k.queries == 1:
        early_length: Int32 = 0
        walk.read_lengths(m, early_length)
    s.entry = s.ahead = 0
    if m.in_role("load"):
        m.comment("Garbage past a length: nothing follows an entry before the length is known.")
        row = minimum(s.seq, m.dim("b") - 1)
        _read_entries(m, s, row, s.step, last=m.dim("max_pages") - 1)
    if dependent:
        m.launch_dependents()
    if m.k.queries == 1:
        walk.lengths_to_score(m, s.need, early_length)
    else:
        walk.keys_to_score(m, s.need, sequence=m.lane)
    walk.find_share(m, s.seq, s.tile, s.need, s.turns, s.step, keys=m.k.tile, next_n=_next_n(m))
    return s


@recorded
def _read_entries(m: Recorder, s: Share, row: Value, step: Value, last: Value) -> None:
    """The page-table entries of the current tile and those after it, `step` apart, up to entry `last` of a row."""
    ahead = inline(s.tile + _tiles_of_entries(m) * step)
    walk.table_entries(m, s.entry, row, first=s.tile, step=step, pages=m.c.pages, last=last)
    walk.table_entries(m, s.ahead, row, first=ahead, step=step, pages=m.c.pages, last=last)


@recorded
def _begin_tile(m: Recorder, s: Share, it: Value) -> None:
    """Make tile number `it` of the share the current one."""
    walk.next_tile(m, s.fresh, it, s.seq, s.tile, s.need, keys=m.k.tile, next_n=_next_n(m))


@recorded
def _load_decode(m: Recorder, s: Share) -> None:
    """Copies every key tile of the share, and the queries of a sequence before its first one."""
    pages = m.c.pages
    held: Int32 = 0
    page: Int32 = 0
    for it in range(s.turns):
        _begin_tile(m, s, it)
        last = ceildiv(s.need, PAGE) - 1
        if s.fresh:
            s.turn += 1
            held = 0
            if s.step == 1:
                _read_entries(m, s, s.seq, 1, last)
            _load_queries(m, s)
        if held == _tiles_of_entries(m):
            held = 0
            s.entry = s.ahead
            ahead = inline(s.tile + _tiles_of_entries(m) * s.step)
            walk.table_entries(m, s.ahead, s.seq, first=ahead, step=s.step, pages=pages, last=last)
        keys = m.acquire("keys", it)
        for p in unrolled(pages):
            walk.entry_of(m, page, s.entry, held * pages + minimum(p, last - s.tile * pages))
            m.bulk(
                keys.keys.part(p * PAGE, PAGE),
                Box("key_map", (page * PAGE_ROWS, 0)),
                keys,
                evict_first=bool(m.k.evict),
            )
            m.bulk(
                keys.key_scales.part(p * PAGE, PAGE),
                Span("k_cache", "float32", page, PAGE_WORDS, SCALE_WORD, PAGE),
                keys,
            )
        m.commit(keys)
        held += 1
        s.tile += s.step


@recorded
def _load_queries(m: Recorder, s: Share) -> None:
    """Copies the queries of a sequence and the weights of their heads."""
    heads, each, one = m.k.heads, m.c.rows_per_product, m.k.queries == 1
    if one:
        count = 1
    else:
        m.comment("The last product of an odd count scores its last query twice.")
        count = ceildiv(m.dim("next_n"), each) * each
    queries = m.acquire("queries", s.turn, bytes=count * (heads * (INDEX_DIM + 4)))
    for i in rolled(count):
        if one:
            query = inline(s.seq)
        else:
            query = s.seq * m.dim("next_n") + minimum(i, m.dim("next_n") - 1)
        m.bulk(queries.queries.part(i * heads, heads), Box("query_map", (query * heads, 0)), queries)
        weights = Span("weights", "float32", query, heads, 0, heads)
        m.bulk(queries.head_weights.part(i * heads, heads), weights, queries)
    m.commit(queries)


@recorded
def _next_queries(m: Recorder, s: Share, it: Value) -> None:
    """At the first tile of a sequence, give its predecessor's queries back and wait for its own."""
    if it > 0:
        m.release(m.slot("queries", s.turn))
    s.turn += 1
    m.wait("queries", s.turn)


@recorded
def _score_decode(m: Recorder, s: Share) -> None:
    """Hopper: one role multiplies and scores, `rows_per_product` queries at a time."""
    each, n = m.c.rows_per_product, _columns(m.k, m.c.rows_per_product)
    acc, queries = m.buffer("acc"), m.slot("queries", s.turn)
    one = m.k.queries == 1
    for it in range(s.turns):
        _begin_tile(m, s, it)
        if s.fresh:
            _next_queries(m, s, it)
            if one:
                sm90.read_weights(m, queries.head_weights, 0, 1)
        keys = m.wait("keys", it)
        key = inline(s.tile * m.k.tile)
        if one:
            m.multiply("score", acc, keys.keys, queries.queries)
            sm90.read_scales(m, keys.key_scales, 0, each)
            m.release(keys)
            sm90.weigh(m, each)
            sm90.one_length(m, s.need)
            sm90.store_logits(m, s.seq, 0, 1, key, next_n=1)
        else:
            sm90.read_scales(m, keys.key_scales, 0, each)
            for product in range(_products(m)):
                m.multiply("score", acc, keys.keys, queries.queries.part(product * n, n))
                sm90.read_query_lengths(m, s.seq, product * each, each)
                m.await_products()
                sm90.read_weights(m, queries.head_weights, product * n, each)
                sm90.weigh(m, each)
                sm90.store_logits(m, s.seq, product * each, each, key)
            m.release(keys)
        s.tile += s.step


@recorded
def _issue_decode(m: Recorder, s: Share) -> None:
    """Blackwell's MMA warp: one accumulator a tile and product, dealt to the scoring groups in turn."""
    groups, n = m.c.groups, _columns(m.k, m.c.rows_per_product)
    queries = m.slot("queries", s.turn)

    def none_so_far(g: int) -> Int32:
        """How many accumulators of a group have been filled."""
        fill: Int32 = named(f"fill_{g}", 0)
        return fill

    def issue(keys: Slot, product: Value, g: int, fill: Changes) -> None:
        out = m.acquire(f"scores_{g}", fill)
        m.multiply("score", out.view(), keys.keys, queries.queries.part(product * n, n))
        m.commit(out)
        fill += 1

    fills = [none_so_far(g) for g in range(groups)]
    for it in range(s.turns):
        _begin_tile(m, s, it)
        if s.fresh:
            _next_queries(m, s, it)
        keys = m.wait("keys", it)
        if m.k.queries == 1:
            issue(keys, 0, 0, fills[0])
        else:
            products = _products(m)
            for i in range(0, products, groups):
                for g in range(groups):
                    if i + g < products:
                        issue(keys, i + g, g, fills[g])
        m.release(keys)
        s.tile += s.step


@recorded
def _epilogue_decode(m: Recorder, s: Share, g: int) -> None:
    """Blackwell: the scores of every `groups`-th product from `g` on, a key a thread."""
    heads, each, one = m.k.heads, m.c.rows_per_product, m.k.queries == 1
    dots, weight, scale, logit, length = (
        m.buffer(f"{x}_{g}") for x in ("dots", "weight", "scale", "logit", "length")
    )
    queries = m.slot("queries", s.turn)
    use: Int32 = 0
    for it in range(s.turns):
        _begin_tile(m, s, it)
        if s.fresh:
            _next_queries(m, s, it)
            if one:
                sm100.load_weights(m, weight, queries.head_weights, 0)
            sm100.load_lengths(m, length, s.seq)
        keys = m.wait("keys", it)
        sm100.load_scale(m, scale, keys.key_scales)
        m.release(keys)
        for product in rolled(g, _products(m), m.c.groups):
            scores = m.wait(f"scores_{g}", use)
            leaf.read_scores(m, dots, scores.view(), 0)
            m.release(scores)
            use += 1
            for j in range(each):
                query = inline(product * each + j)
                if not one:
                    sm100.load_weights(m, weight, queries.head_weights, query * heads)
                leaf.weigh_one(m, logit, dots, j, weight)
                sm100.store_query(m, logit, scale, length, s.seq, query, s.tile * m.k.tile)
        s.tile += s.step


class Block(State):
    """A block of query rows of a prefill, from `row` on, and its split's `turns` key tiles from tile `first` on."""

    row: Int32
    first: Int32
    turns: Int32


@recorded
def _start_prefill(m: Recorder) -> Block:
    s = Block(m, row=0, first=0, turns=0)
    m.comment("Later rows see more keys in a causal prefill: the longest blocks start first.")
    s.row = (ceildiv(m.dim("s"), m.k.queries) - 1 - m.block(0)) * m.k.queries
    walk.find_tiles(m, s.first, s.turns, s.row, rows=m.k.queries, keys=m.k.tile)
    m.barriers_stand()
    return s


@recorded
def _load_prefill(m: Recorder, s: Block) -> None:
    k, rows = m.k, m.k.queries * m.k.heads
    query = s.row * k.heads
    if s.turns > 0:
        queries = m.acquire("queries", 0)
        for part in range(0, rows, 256):
            count = min(256, rows - part)
            m.bulk(queries.queries.part(part, count), Box("query_map", (query + part, 0)), queries)
            m.bulk(queries.head_weights.part(part, count), Box("weight_map", (query + part,)), queries)
        m.commit(queries)
    for it in range(s.turns):
        keys = m.acquire("keys", it)
        key = (s.first + it) * k.tile
        m.bulk(keys.keys, Box("key_map", (key, 0)), keys)
        m.bulk(keys.key_scales, Box("scale_map", (key,)), keys)
        m.commit(keys)


@recorded
def _score_prefill(m: Recorder, s: Block) -> None:
    """Hopper: each replica scores its own rows against every key tile."""
    each, n, block = m.c.rows_per_product, _columns(m.k, m.c.rows_per_product), m.c.block
    acc, queries = m.buffer("acc"), m.slot("queries", 0)
    own = s.row + m.replica * each
    sm90.read_windows(m, own, each)
    if s.turns > 0:
        m.wait("queries", 0)
        sm90.read_weights(m, queries.head_weights, m.replica * n, each)
    for it in range(s.turns):
        keys = m.wait("keys", it)
        for at in range(0, m.k.tile, block):
            m.multiply("score", acc, keys.keys.part(at, block), queries.queries.part(m.replica * n, n))
            if each > 2:
                m.comment("Two scales a lane are two registers too many while the product runs.")
                m.await_products()
            sm90.read_scales(m, keys.key_scales, at, each)
            if at + block < m.k.tile:
                m.await_products()
            else:
                m.release(keys)
            sm90.weigh(m, each)
            sm90.store_window(m, own, each, (s.first + it) * m.k.tile + at)


@recorded
def _issue_prefill(m: Recorder, s: Block) -> None:
    """Blackwell's MMA warp: one accumulator a tile."""
    queries = m.slot("queries", 0)
    if s.turns > 0:
        m.wait("queries", 0)
    for it in range(s.turns):
        keys = m.wait("keys", it)
        out = m.acquire("scores", it)
        m.multiply("score", out.view(), keys.keys, queries.queries)
        m.commit(out)
        m.release(keys)


@recorded
def _epilogue_prefill(m: Recorder, s: Block, g: int) -> None:
    """Blackwell: the scores of one half of the block's rows, a key a thread."""
    heads, each = m.k.heads, m.c.rows_per_group
    dots, weight, scale, logit, begin, size = (
        m.buffer(f"{x}_{g}") for x in ("dots", "weight", "scale", "logit", "begin", "size")
    )
    queries = m.slot("queries", 0)
    own = inline(s.row + g * each)
    sm100.load_windows(m, begin, size, own)
    if s.turns > 0:
        m.wait("queries", 0)
    for it in range(s.turns):
        keys = m.wait("keys", it)
        sm100.load_scale(m, scale, keys.key_scales)
        m.release(keys)
        scores = m.wait("scores", it)
        leaf.read_scores(m, dots, scores.view(), g * each * heads)
        m.release(scores)
        for j in range(each):
            sm100.load_weights(m, weight, queries.head_weights, (g * each + j) * heads)
            leaf.weigh_one(m, logit, dots, j, weight)
            sm100.store_row(m, logit, scale, begin, size, j, own + j, (s.first + it) * m.k.tile)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    if arch.tmem_columns and k.mode != "prefill":
        scorers = {f"score_{g}": partial(_epilogue_decode, g=g) for g in range(_blackwell_groups(k)[0])}
        return {START: _start_decode, "load": _load_decode, "mma": _issue_decode, **scorers}
    if arch.tmem_columns:
        scorers = {f"score_{g}": partial(_epilogue_prefill, g=g) for g in range(2)}
        return {START: _start_prefill, "load": _load_prefill, "mma": _issue_prefill, **scorers}
    if k.mode != "prefill":
        return {START: _start_decode, "load": _load_decode, "score": _score_decode}
    return {START: _start_prefill, "load": _load_prefill, "score": _score_prefill}


def _heads(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return None if knobs["heads"] == call["heads"] else f"heads = {call['heads']}, built for {knobs['heads']}"


def _mode(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return None if knobs["mode"] == call["form"] else f"form {call['form']}, built for {knobs['mode']}"


def _queries(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if knobs["mode"] == "prefill" or call["next_n"] <= knobs["queries"]:
        return None
    return f"next_n = {call['next_n']}, built for at most {knobs['queries']} queries a sequence"


PROGRAM = TileProgram(
    op="lightning_indexer",
    problem=problems.get("lightning_indexer"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    guards=(Guard("form", _mode), Guard("heads", _heads), Guard("next_n", _queries)),
)
