"""The lightning indexer as a tile program: keys on M, query heads on N, the head sum in the epilogue.

    S[keys, heads] = K Q^T (fp8, fp32 accumulators);   logit[key] = scale[key] * sum_h w_h * relu(S[key, h])

Decode deals the key tiles of a batch of like lengths in turn to as many CTAs a sequence, so that a CTA knows its
sequence before any length. The tiles of ragged sequences, end to end, are dealt in contiguous equal shares. Every CTA
works out from seq_lens which of the two it is and where it starts: nothing is planned on the host, and nothing depends
on who scores a tile. Prefill gives a CTA a block of query rows and re-uses each key tile for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from .. import problems
from ..abi import TensorMap
from ..arch import ArchSpec
from ..device.text import lightning_indexer as walk
from ..device.text import lightning_indexer_sm90 as said_sm90
from ..device.text import lightning_indexer_sm100 as said_sm100
from ..device.torch import lightning_indexer as leaf
from ..problems import layouts
from ..problems import lightning_indexer as problem
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
from ..tile.text import Box, Expr, Recorder, Slot, Span, Value, ceildiv, minimum, name

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


# The key tiles of a CTA in a decode: the current one, and how the walk goes on. All are variables of the kernel.
WALK = ("seq", "tile", "step", "need", "turns", "turn")
SHARE = SimpleNamespace(**{text: name(text) for text in WALK}, fresh=name("fresh", "bool"))


def _next_n(m: Recorder) -> Value:
    """Queries of a sequence; a kernel for one does not read how many there are."""
    return 1 if m.k.queries == 1 else m.dim("next_n")


def _pages_of_warp(m: Recorder) -> int:
    """Tiles whose pages the lanes of a warp hold at once, one table entry each."""
    return leaf.WARP // int(m.c.pages)


def _start_decode(m: Recorder) -> None:
    """What does not depend on a length is fetched and worked out while the lengths are on their way."""
    for variable, initial in zip(WALK, (0, 0, 1, 0, 0, -1), strict=True):
        m.var(variable, initial)
    m.var("fresh", False, "bool")
    walk.place_when_even(m, SHARE.seq, SHARE.tile, SHARE.step)
    m.barriers_stand()
    # A kernel that waits with tensor memory in hand could keep the one before it from getting its own.
    dependent = not m.arch.tmem_columns
    if dependent:
        m.depend(launch=False)
    if m.k.queries == 1:
        length = m.var("early_length")
        walk.read_lengths(m, length)
    entry, ahead = m.var("entry"), m.var("ahead")
    with m.when(m.in_role("load")):
        m.comment("Garbage past a length: nothing follows an entry before the length is known.")
        row, last = m.let("row", minimum(SHARE.seq, m.dim("b") - 1)), m.dim("max_pages") - 1
        for to, tile in ((entry, SHARE.tile), (ahead, SHARE.tile + _pages_of_warp(m) * SHARE.step)):
            walk.table_entries(m, to, row, tile, SHARE.step, last, pages=m.c.pages)
    if dependent:
        m.launch_dependents()
    if m.k.queries == 1:
        walk.lengths_to_score(m, SHARE.need, length)
    else:
        walk.keys_to_score(m, SHARE.need, m.lane)
    share = (SHARE.seq, SHARE.tile, SHARE.need, SHARE.turns, SHARE.step)
    walk.find_share(m, *share, m.k.tile, next_n=_next_n(m))


def _tiles(m: Recorder) -> Iterator[Expr]:
    """The tiles of this CTA's share, each with its running number."""
    for it in m.loop("it", SHARE.turns):
        walk.next_tile(m, SHARE.fresh, it, SHARE.seq, SHARE.tile, SHARE.need, m.k.tile, next_n=_next_n(m))
        yield it
        m.set(SHARE.tile, SHARE.tile + SHARE.step)


def _load_decode(m: Recorder) -> None:
    k, pages, heads = m.k, m.c.pages, m.k.heads
    entry, ahead, held, page = name("entry"), name("ahead"), m.var("held"), m.var("page")
    for it in _tiles(m):
        last = m.let("last", ceildiv(SHARE.need, PAGE) - 1)
        with m.when(SHARE.fresh):
            m.set(SHARE.turn, SHARE.turn + 1)
            m.set(held, 0)
            with m.when(SHARE.step == 1):
                for to, tile in ((entry, SHARE.tile), (ahead, SHARE.tile + _pages_of_warp(m))):
                    walk.table_entries(m, to, SHARE.seq, tile, 1, last, pages=pages)
            count: Value = 1
            if k.queries > 1:
                m.comment("The last product of an odd count scores its last query twice.")
                each = m.c.rows_per_product
                count = m.let("count", ceildiv(m.dim("next_n"), each) * each)
            queries = m.acquire("queries", SHARE.turn, bytes=count * (heads * (INDEX_DIM + 4)))
            for i in m.loop("i", count):
                query: Value = SHARE.seq
                if k.queries > 1:
                    query = m.let("query", SHARE.seq * m.dim("next_n") + minimum(i, m.dim("next_n") - 1))
                m.bulk(queries.queries.part(i * heads, heads), Box("query_map", (query * heads, 0)), queries)
                m.bulk(
                    queries.head_weights.part(i * heads, heads),
                    Span("weights", "float32", query, heads, 0, heads),
                    queries,
                )
            m.commit(queries)
        with m.when(held == _pages_of_warp(m)):
            m.set(held, 0)
            m.set(entry, ahead)
            tile = SHARE.tile + _pages_of_warp(m) * SHARE.step
            walk.table_entries(m, ahead, SHARE.seq, tile, SHARE.step, last, pages=m.c.pages)
        keys = m.acquire("keys", it)
        for p in m.loop("p", pages, unrolled=True):
            walk.entry_of(m, page, entry, held * pages + minimum(p, last - SHARE.tile * pages))
            m.bulk(
                keys.keys.part(p * PAGE, PAGE),
                Box("key_map", (page * PAGE_ROWS, 0)),
                keys,
                evict_first=bool(k.evict),
            )
            m.bulk(
                keys.key_scales.part(p * PAGE, PAGE),
                Span("k_cache", "float32", page, PAGE_WORDS, SCALE_WORD, PAGE),
                keys,
            )
        m.commit(keys)
        m.set(held, held + 1)


def _follow(m: Recorder, it: Expr) -> Slot:
    """At the first tile of a sequence, give its predecessor's queries back and wait for its own."""
    with m.when(it > 0):
        m.release(m.slot("queries", SHARE.turn))
    m.set(SHARE.turn, SHARE.turn + 1)
    return m.wait("queries", SHARE.turn)


def _score_decode(m: Recorder) -> None:
    """Hopper: one role multiplies and scores, `rows_per_product` queries at a time."""
    each, n = m.c.rows_per_product, _columns(m.k, m.c.rows_per_product)
    acc, queries = m.buffer("acc"), m.slot("queries", name("turn"))
    one = m.k.queries == 1
    for it in _tiles(m):
        with m.when(SHARE.fresh):
            _follow(m, it)
            if one:
                said_sm90.read_weights(m, queries.head_weights, 0, 1)
        keys = m.wait("keys", it)
        if one:
            m.multiply("score", acc, keys.keys, queries.queries)
            said_sm90.read_scales(m, keys.key_scales, 0, each)
            m.release(keys)
            said_sm90.weigh(m, each)
            said_sm90.one_length(m, SHARE.need)
            said_sm90.store_logits(m, SHARE.seq, 0, 1, SHARE.tile * m.k.tile, next_n=1)
            continue
        said_sm90.read_scales(m, keys.key_scales, 0, each)
        for product in m.loop("product", ceildiv(m.dim("next_n"), each)):
            m.multiply("score", acc, keys.keys, queries.queries.part(product * n, n))
            said_sm90.read_query_lengths(m, SHARE.seq, product * each, each)
            m.await_products()
            said_sm90.read_weights(m, queries.head_weights, product * n, each)
            said_sm90.weigh(m, each)
            key = SHARE.tile * m.k.tile
            said_sm90.store_logits(m, SHARE.seq, product * each, each, key)
        m.release(keys)


def _issue_decode(m: Recorder) -> None:
    """Blackwell's MMA warp: one accumulator a tile and product, dealt to the scoring groups in turn."""
    groups, n = m.c.groups, _columns(m.k, m.c.rows_per_product)
    fills = [m.var(f"fill_{g}") for g in range(groups)]
    queries = m.slot("queries", name("turn"))

    def issue(product: Value, g: int) -> None:
        out = m.acquire(f"scores_{g}", fills[g])
        m.multiply("score", out.view(), keys.keys, queries.queries.part(product * n, n))
        m.commit(out)
        m.set(fills[g], fills[g] + 1)

    for it in _tiles(m):
        with m.when(SHARE.fresh):
            _follow(m, it)
        keys = m.wait("keys", it)
        if m.k.queries == 1:
            issue(0, 0)
        else:
            products = m.let("products", ceildiv(m.dim("next_n"), m.c.rows_per_product))
            for i in m.loop("i", products, step=groups):
                for g in range(groups):
                    with m.when(i + g < products):
                        issue(i + g, g)
        m.release(keys)


def _epilogue_decode(g: int) -> Body:
    def body(m: Recorder) -> None:
        heads, each, one = m.k.heads, m.c.rows_per_product, m.k.queries == 1
        dots, weight, scale, logit, length = (
            m.buffer(f"{x}_{g}") for x in ("dots", "weight", "scale", "logit", "length")
        )
        queries, use = m.slot("queries", name("turn")), m.var("use")
        for it in _tiles(m):
            with m.when(SHARE.fresh):
                _follow(m, it)
                if one:
                    said_sm100.load_weights(m, weight, queries.head_weights, 0)
                said_sm100.load_lengths(m, length, SHARE.seq)
            keys = m.wait("keys", it)
            said_sm100.load_scale(m, scale, keys.key_scales)
            m.release(keys)
            count = 1 if one else ceildiv(m.dim("next_n"), each)
            for product in m.loop("product", count, begin=g, step=m.c.groups):
                scores = m.wait(f"scores_{g}", use)
                leaf.read_scores(m, dots, scores.view(), 0)
                m.release(scores)
                m.set(use, use + 1)
                for j in range(each):
                    query = product * each + j
                    if not one:
                        said_sm100.load_weights(m, weight, queries.head_weights, query * heads)
                    leaf.weigh_one(m, logit, dots, j, weight)
                    said_sm100.store_query(m, logit, scale, length, SHARE.seq, query, SHARE.tile * m.k.tile)

    return body


def _start_prefill(m: Recorder) -> None:
    row, first, turns = m.var("row"), m.var("first"), m.var("turns")
    m.comment("Later rows see more keys in a causal prefill: the longest blocks start first.")
    m.set(row, (ceildiv(m.dim("s"), m.k.queries) - 1 - m.block(0)) * m.k.queries)
    walk.find_tiles(m, first, turns, row, rows=m.k.queries, keys=m.k.tile)
    m.barriers_stand()


def _load_prefill(m: Recorder) -> None:
    k, first, turns = m.k, name("first"), name("turns")
    rows = k.queries * k.heads
    row = m.let("query", name("row") * k.heads)
    with m.when(turns > 0):
        queries = m.acquire("queries", 0)
        for part in range(0, rows, 256):
            count = min(256, rows - part)
            m.bulk(queries.queries.part(part, count), Box("query_map", (row + part, 0)), queries)
            m.bulk(queries.head_weights.part(part, count), Box("weight_map", (row + part,)), queries)
        m.commit(queries)
    for it in m.loop("it", turns):
        keys = m.acquire("keys", it)
        key = m.let("key", (first + it) * k.tile)
        m.bulk(keys.keys, Box("key_map", (key, 0)), keys)
        m.bulk(keys.key_scales, Box("scale_map", (key,)), keys)
        m.commit(keys)


def _score_prefill(m: Recorder) -> None:
    """Hopper: each replica scores its own rows against every key tile."""
    each, n, block = m.c.rows_per_product, _columns(m.k, m.c.rows_per_product), m.c.block
    acc, queries, turns = m.buffer("acc"), m.slot("queries", 0), name("turns")
    own = m.let("own", name("row") + m.replica * each)
    said_sm90.read_windows(m, own, each)
    with m.when(turns > 0):
        m.wait("queries", 0)
        said_sm90.read_weights(m, queries.head_weights, m.replica * n, each)
    for it in m.loop("it", turns):
        keys = m.wait("keys", it)
        for at in range(0, m.k.tile, block):
            m.multiply("score", acc, keys.keys.part(at, block), queries.queries.part(m.replica * n, n))
            if each > 2:
                m.comment("Two scales a lane are two registers too many while the product runs.")
                m.await_products()
            said_sm90.read_scales(m, keys.key_scales, at, each)
            if at + block < m.k.tile:
                m.await_products()
            else:
                m.release(keys)
            said_sm90.weigh(m, each)
            key = (name("first") + it) * m.k.tile + at
            said_sm90.store_window(m, own, each, key)


def _issue_prefill(m: Recorder) -> None:
    with m.when(name("turns") > 0):
        queries = m.wait("queries", 0)
    for it in m.loop("it", name("turns")):
        keys = m.wait("keys", it)
        out = m.acquire("scores", it)
        m.multiply("score", out.view(), keys.keys, queries.queries)
        m.commit(out)
        m.release(keys)


def _epilogue_prefill(g: int) -> Body:
    def body(m: Recorder) -> None:
        heads, each = m.k.heads, m.c.rows_per_group
        dots, weight, scale, logit, begin, size = (
            m.buffer(f"{x}_{g}") for x in ("dots", "weight", "scale", "logit", "begin", "size")
        )
        queries, turns, own = m.slot("queries", 0), name("turns"), name("row") + g * each
        said_sm100.load_windows(m, begin, size, own)
        with m.when(turns > 0):
            m.wait("queries", 0)
        for it in m.loop("it", turns):
            keys = m.wait("keys", it)
            said_sm100.load_scale(m, scale, keys.key_scales)
            m.release(keys)
            scores = m.wait("scores", it)
            leaf.read_scores(m, dots, scores.view(), g * each * heads)
            m.release(scores)
            for j in range(each):
                said_sm100.load_weights(m, weight, queries.head_weights, (g * each + j) * heads)
                leaf.weigh_one(m, logit, dots, j, weight)
                key = (name("first") + it) * m.k.tile
                said_sm100.store_row(m, logit, scale, begin, size, j, own + j, key)

    return body


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    if arch.tmem_columns and k.mode != "prefill":
        scorers = {f"score_{g}": _epilogue_decode(g) for g in range(_blackwell_groups(k)[0])}
        return {START: _start_decode, "load": _load_decode, "mma": _issue_decode, **scorers}
    if arch.tmem_columns:
        scorers = {f"score_{g}": _epilogue_prefill(g) for g in range(2)}
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
