"""The lightning indexer as a tile program: keys on M, query heads on N, the head sum in the epilogue.

    S[keys, heads] = K Q^T (fp8, fp32 accumulators);   logit[key] = scale[key] * sum_h w_h * relu(S[key, h])

Decode deals the key tiles of all sequences, end to end, to the CTAs in contiguous equal shares that every CTA works out
from seq_lens itself: ragged rows need no plan from the host. CuTe DSL deals the tiles of a batch of like lengths in
turn instead, so that a CTA knows its sequence before any length; nothing depends on who scores a tile. Prefill gives a
CTA a block of query rows and re-uses each key tile for all of them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch

from .. import problems
from ..arch import ArchSpec
from ..problems.layouts import INDEX_DIM
from ..problems.lightning_indexer import PAGE
from ..runtime.artifact import TensorMap
from ..tile.lang import (
    Body,
    Buffer,
    Counts,
    Engine,
    Guard,
    Knob,
    Mma,
    Pipeline,
    Reader,
    Role,
    Schedule,
    Space,
    TileProgram,
)
from ..tile.machine import Machine, Slot

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

KNOBS = (
    Knob("mode", "", (("decode", "prefill"),), "paged decode, or flat keys with a window per row"),
    Knob("heads", "h", ((64, 32),), "index heads"),
    Knob("queries", "q", ((1, 4, 8, 16), (2,)), "decode: most queries a sequence; prefill: query rows a CTA"),
    Knob("tile", "t", ((64, 128, 256),), "keys a tile"),
    Knob("stages", "st", ((2, 3, 4, 5, 6, 8), (11,)), "key tiles in flight"),
    Knob("resident", "c", ((1, 2, 4), (3,)), "CTAs an SM"),
    Knob("evict", "e", ((0, 1),), "keys leave the L2 first"),
)


def _decode_buffers(k: SimpleNamespace, query_stages: int) -> tuple[Buffer, ...]:
    return (
        Buffer("keys", SHARED, (k.tile, INDEX_DIM), FP8, k.stages, swizzle=128),
        Buffer("key_scales", SHARED, (k.tile,), "float32", k.stages),
        Buffer("queries", SHARED, (k.queries * k.heads, INDEX_DIM), FP8, query_stages, swizzle=128),
        Buffer("head_weights", SHARED, (k.queries * k.heads,), "float32", query_stages),
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


def _hopper_decode(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    query_stages = 2 if k.queries == 1 else 1
    each = min(k.queries, HOPPER_N // k.heads)
    # Two products of 64 columns a thread need registers that idle copy warps hand over; one product does not.
    score_registers, load_warps, load_registers = (None, 1, None) if k.queries == 1 else (104, 4, 24)
    score = (Reader("score", Engine.WGMMA, "warp"),)
    return Schedule(
        roles=(
            Role("score", k.tile // 16, score_registers, doc="products and epilogue, 64 keys a warpgroup"),
            Role("load", load_warps, load_registers, doc="block table, key pages, queries (one warp works)"),
        ),
        buffers=(
            *_decode_buffers(k, query_stages),
            Buffer("acc", REGISTER, (k.tile, each * k.heads), "float32", role="score"),
        ),
        pipelines=(
            Pipeline(
                "keys",
                ("keys", "key_scales"),
                "load",
                Engine.BULK,
                score,
                k.stages,
                doc="tiles of this CTA's share",
            ),
            Pipeline(
                "queries",
                ("queries", "head_weights"),
                "load",
                Engine.BULK,
                score,
                query_stages,
                doc="one use a sequence",
            ),
        ),
        mmas=(Mma("score", "wgmma", "score", k.tile, each * k.heads, INDEX_DIM, FP8),),
        grid=(str(arch.sms * k.resident),),
        constants={"ctas": arch.sms * k.resident, "pages": k.tile // PAGE, "rows_per_product": each},
        ctas_per_sm=k.resident,
        maps=_decode_maps(k),
    )


def _hopper_groups(k: SimpleNamespace) -> tuple[int, int]:
    """Prefill's scoring groups, each with its own query rows, all reading the same key tile; keys of one product."""
    groups = min(HOPPER_WARPGROUPS, max(1, k.queries * k.heads // HOPPER_N))
    return groups, HOPPER_WARPGROUPS // groups * 64


def _hopper_prefill(k: SimpleNamespace) -> Schedule:
    groups, block = _hopper_groups(k)
    each = k.queries // groups
    readers = tuple(Reader(f"score_{g}", Engine.WGMMA, "warp") for g in range(groups))
    return Schedule(
        roles=(
            *(
                Role(f"score_{g}", block // 16, 112, f"rows {g * each}..{(g + 1) * each - 1}")
                for g in range(groups)
            ),
            Role("load", 4, 24, "key tiles, queries (one warp works)"),
        ),
        buffers=(
            *_decode_buffers(k, 1),
            *(
                Buffer(f"acc_{g}", REGISTER, (block, each * k.heads), "float32", role=f"score_{g}")
                for g in range(groups)
            ),
        ),
        pipelines=(
            Pipeline("keys", ("keys", "key_scales"), "load", Engine.BULK, readers, k.stages),
            Pipeline("queries", ("queries", "head_weights"), "load", Engine.BULK, readers, rounds="once"),
        ),
        mmas=tuple(
            Mma(f"score_{g}", "wgmma", f"score_{g}", block, each * k.heads, INDEX_DIM, FP8)
            for g in range(groups)
        ),
        grid=(f"ceildiv(s, {k.queries})", "splits"),
        constants={"groups": groups, "rows_per_product": each, "block": block},
        maps=_prefill_maps(k),
    )


def _blackwell_groups(k: SimpleNamespace) -> tuple[int, int]:
    """Scoring groups of a decode and the queries of one product; where one product holds them all, one group."""
    each = min(k.queries, BLACKWELL_DECODE_N // k.heads)
    return (1 if each == k.queries else 2), each


def _blackwell_decode(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
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
            *(Buffer(f"scores_{g}", TENSOR, (128, each * k.heads), "float32", accumulators) for g in range(groups)),
        ),
        pipelines=(
            Pipeline("keys", ("keys", "key_scales"), "load", Engine.BULK, readers, k.stages, doc="scales are read by threads"),
            Pipeline("queries", ("queries", "head_weights"), "load", Engine.BULK, readers, query_stages),
            *(
                Pipeline(
                    f"scores_{g}", (f"scores_{g}",), "mma", Engine.TCGEN05,
                    (Reader(f"score_{g}", Engine.TMEM, "warp"),), accumulators, doc="one use a tile and product of the group",
                )
                for g in range(groups)
            ),
        ),
        mmas=(Mma("score", "tcgen05", "mma", k.tile, each * k.heads, INDEX_DIM, FP8),),
        grid=(str(arch.sms),),
        constants={"ctas": arch.sms, "pages": k.tile // PAGE, "groups": groups, "rows_per_product": each},
        maps=_decode_maps(k),
    )  # fmt: skip


def _blackwell_prefill(k: SimpleNamespace) -> Schedule:
    groups = 2
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
            Buffer("scores", TENSOR, (128, k.queries * k.heads), "float32", 2),
        ),
        pipelines=(
            Pipeline("keys", ("keys", "key_scales"), "load", Engine.BULK, readers, k.stages),
            Pipeline("queries", ("queries", "head_weights"), "load", Engine.BULK, readers, rounds="once"),
            Pipeline(
                "scores",
                ("scores",),
                "mma",
                Engine.TCGEN05,
                tuple(Reader(r, Engine.TMEM, "warp") for r in scorers),
                2,
            ),
        ),
        mmas=(Mma("score", "tcgen05", "mma", k.tile, k.queries * k.heads, INDEX_DIM, FP8),),
        grid=(f"ceildiv(s, {k.queries})", "splits"),
        constants={"groups": groups, "rows_per_group": k.queries // groups, "rows_per_product": k.queries},
        maps=_prefill_maps(k),
    )


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    if arch.tmem_columns:
        return _blackwell_decode(k, arch) if k.mode == "decode" else _blackwell_prefill(k)
    return _hopper_decode(k, arch) if k.mode == "decode" else _hopper_prefill(k)


def _lengths(m: Machine, sequence: int) -> list[int]:
    """Keys to score for each query of a sequence; 0 for a row that selection takes whole."""
    lens = [m.read("seq_lens", (sequence, i), "max_len") for i in range(m.dim("next_n"))]
    return [length if length > m.dim("skip_below") else 0 for length in lens]


def _share(m: Machine) -> Iterator[tuple[int, int]]:
    """(sequence, tile) pairs of this CTA: the tiles of all sequences, end to end, in contiguous equal shares."""
    tiles = [-(-max(_lengths(m, sequence)) // m.k.tile) for sequence in range(m.dim("b"))]
    total, ctas, rank = sum(tiles), m.schedule.constants["ctas"], m.block[0]
    base, extra = divmod(total, ctas)
    first = rank * base + min(rank, extra)
    for turn in m.loop(base + (rank < extra)):
        place = first + turn
        sequence = 0
        while place >= tiles[sequence]:
            place -= tiles[sequence]
            sequence += 1
        yield sequence, place


def _load_decode(m: Machine) -> Generator[Any, None, None]:
    k, queries = m.k, m.dim("next_n")
    cache, present = m.operand("k_cache"), -1
    for sequence, tile in _share(m):
        if sequence != present:
            present = sequence
            slot = yield from m.acquire("queries")
            each = m.schedule.constants["rows_per_product"]
            for i in range(-(-queries // each) * each):
                # The last product of an odd count scores its last query twice.
                rows, query = slice(i * k.heads, (i + 1) * k.heads), min(i, queries - 1)
                m.load(slot.queries[rows], m.operand("q")[sequence, query])
                m.load(slot.head_weights[rows], m.operand("weights")[sequence, query])
            m.commit(slot)
        used = -(-max(_lengths(m, sequence)) // PAGE)
        slot = yield from m.acquire("keys")
        for i in range(k.tile // PAGE):
            # A tile past the last page loads that page again: entries past it may be garbage.
            page = m.read("block_table", (sequence, min(tile * (k.tile // PAGE) + i, used - 1)), 0)
            rows = slice(i * PAGE, (i + 1) * PAGE)
            m.load(
                slot.keys[rows],
                cache[page, : PAGE * INDEX_DIM].view(torch.float8_e4m3fn).view(PAGE, INDEX_DIM),
            )
            m.load(slot.key_scales[rows], cache[page, PAGE * INDEX_DIM :].view(torch.float32))
        m.commit(slot)


def _weigh(dots: torch.Tensor, weights: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The epilogue: relu, weighted sum over heads, times the key's scale. dots is [keys, heads]."""
    return (torch.relu(dots) * weights).sum(dim=1) * scales


def _store_decode(
    m: Machine, sequence: int, query: int, tile: int, length: int, logits: torch.Tensor
) -> None:
    first = tile * m.k.tile
    count = min(m.k.tile, length - first)
    if count > 0:
        m.store(m.operand("logits")[sequence, query, first : first + count], logits[:count])


def _follow(
    m: Machine, sequence: int, held: tuple[int, Slot] | None
) -> Generator[Any, None, tuple[int, Slot]]:
    """The queries of `sequence`: those held, or the next ones when the CTA's share has moved on to it."""
    if held is not None:
        if held[0] == sequence:
            return held
        m.release(held[1])
    slot = yield from m.wait("queries")
    return sequence, slot


def _score_decode(m: Machine) -> Generator[Any, None, None]:
    """Hopper: one role multiplies and scores, `rows_per_product` queries at a time."""
    heads, each = m.k.heads, m.schedule.constants["rows_per_product"]
    held: tuple[int, Slot] | None = None
    for sequence, tile in _share(m):
        held = yield from _follow(m, sequence, held)
        slot = yield from m.wait("keys")
        lengths = _lengths(m, sequence)
        for product in range(0, len(lengths), each):
            dots = m.mma("score", slot.keys, held[1].queries[product * heads : (product + each) * heads].T)
            for query in range(product, min(product + each, len(lengths))):
                columns = slice((query - product) * heads, (query - product + 1) * heads)
                weights = held[1].head_weights[query * heads : (query + 1) * heads]
                logits = _weigh(dots[:, columns], weights, slot.key_scales)
                _store_decode(m, sequence, query, tile, lengths[query], logits)
        m.release(slot)


def _products(m: Machine) -> range:
    """First query of each product: `rows_per_product` queries share one, and the last one may repeat a query."""
    return range(0, m.dim("next_n"), m.schedule.constants["rows_per_product"])


def _issue_decode(m: Machine) -> Generator[Any, None, None]:
    """Blackwell's MMA warp: one accumulator a tile and product, dealt to the scoring groups in turn."""
    columns, groups = m.schedule.constants["rows_per_product"] * m.k.heads, m.schedule.constants["groups"]
    held: tuple[int, Slot] | None = None
    for sequence, _ in _share(m):
        held = yield from _follow(m, sequence, held)
        slot = yield from m.wait("keys")
        for product, first in enumerate(_products(m)):
            name = f"scores_{product % groups}"
            out = yield from m.acquire(name)
            rows = slice(first * m.k.heads, first * m.k.heads + columns)
            out.views[name].copy_(m.mma("score", slot.keys, held[1].queries[rows].T))
            m.commit(out)
        m.release(slot)


def _epilogue_decode(group: int) -> Body:
    def body(m: Machine) -> Generator[Any, None, None]:
        heads, each = m.k.heads, m.schedule.constants["rows_per_product"]
        held: tuple[int, Slot] | None = None
        name = f"scores_{group}"
        for sequence, tile in _share(m):
            held = yield from _follow(m, sequence, held)
            slot = yield from m.wait("keys")
            lengths = _lengths(m, sequence)
            for first in _products(m)[group :: m.schedule.constants["groups"]]:
                scores = yield from m.wait(name)
                for query in range(first, min(first + each, len(lengths))):
                    weights = held[1].head_weights[query * heads : (query + 1) * heads]
                    dots = scores.views[name][:, (query - first) * heads : (query - first + 1) * heads]
                    logits = _weigh(dots, weights, slot.key_scales)
                    _store_decode(m, sequence, query, tile, lengths[query], logits)
                m.release(scores)
            m.release(slot)

    return body


def _windows(m: Machine) -> tuple[int, list[tuple[int, int]]]:
    """First row of this CTA's block (the longest windows first) and the window of each of its rows."""
    blocks = -(-m.dim("s") // m.k.queries)
    first = (blocks - 1 - m.block[0]) * m.k.queries
    windows = []
    for row in range(first, min(m.dim("s"), first + m.k.queries)):
        start, end = m.read("k_start", (row,), 0), m.read("k_end", (row,), "skv")
        start, end = max(0, start), min(end, m.dim("skv"))
        windows.append((start, end) if end - start > m.dim("skip_below") else (0, 0))
    return first, windows


def _key_tiles(m: Machine, windows: list[tuple[int, int]]) -> Iterator[int]:
    """First key of each tile of this split over the union of the block's windows."""
    live = [window for window in windows if window[1] > window[0]]
    if not live:
        return
    low, high = min(start for start, _ in live) // m.k.tile, -(-max(end for _, end in live) // m.k.tile)
    splits, split = m.dim("splits"), m.block[1]
    base, extra = divmod(high - low, splits)
    first = low + split * base + min(split, extra)
    for turn in m.loop(base + (split < extra)):
        yield (first + turn) * m.k.tile


def _load_prefill(m: Machine) -> Generator[Any, None, None]:
    k = m.k
    first, windows = _windows(m)
    slot = yield from m.acquire("queries")
    slot.queries.zero_()
    slot.head_weights.zero_()
    rows = len(windows)
    m.load(slot.queries[: rows * k.heads], m.operand("q")[first : first + rows].reshape(-1, INDEX_DIM))
    m.load(slot.head_weights[: rows * k.heads], m.operand("weights")[first : first + rows].reshape(-1))
    m.commit(slot)
    for key in _key_tiles(m, windows):
        slot = yield from m.acquire("keys")
        count = min(k.tile, m.dim("skv") - key)
        slot.keys.zero_()
        slot.key_scales.zero_()
        m.load(slot.keys[:count], m.operand("k")[key : key + count])
        m.load(slot.key_scales[:count], m.operand("k_scales")[key : key + count])
        m.commit(slot)


def _store_prefill(m: Machine, row: int, window: tuple[int, int], key: int, logits: torch.Tensor) -> None:
    start, end = max(window[0], key), min(window[1], key + len(logits))
    if start < end:
        m.store(m.operand("logits")[row, start:end], logits[start - key : end - key])


def _score_prefill(group: int) -> Body:
    def body(m: Machine) -> Generator[Any, None, None]:
        first, windows = _windows(m)
        heads, each = m.k.heads, m.schedule.constants["rows_per_product"]
        held = yield from m.wait("queries")
        own = slice(group * each * heads, (group + 1) * each * heads)
        block = m.schedule.constants["block"]
        for key in _key_tiles(m, windows):
            slot = yield from m.wait("keys")
            for at in range(0, m.k.tile, block):
                dots = m.mma(f"score_{group}", slot.keys[at : at + block], held.queries[own].T)
                for i in range(each):
                    row = group * each + i
                    if row < len(windows):
                        weights = held.head_weights[row * heads : (row + 1) * heads]
                        scales = slot.key_scales[at : at + block]
                        logits = _weigh(dots[:, i * heads : (i + 1) * heads], weights, scales)
                        _store_prefill(m, first + row, windows[row], key + at, logits)
            m.release(slot)

    return body


def _issue_prefill(m: Machine) -> Generator[Any, None, None]:
    _, windows = _windows(m)
    held = yield from m.wait("queries")
    for _ in _key_tiles(m, windows):
        slot = yield from m.wait("keys")
        out = yield from m.acquire("scores")
        out.scores.copy_(m.mma("score", slot.keys, held.queries.T))
        m.commit(out)
        m.release(slot)


def _epilogue_prefill(group: int) -> Body:
    def body(m: Machine) -> Generator[Any, None, None]:
        first, windows = _windows(m)
        heads, each = m.k.heads, m.schedule.constants["rows_per_group"]
        held = yield from m.wait("queries")
        for key in _key_tiles(m, windows):
            slot = yield from m.wait("keys")
            out = yield from m.wait("scores")
            for row in range(group * each, min(len(windows), (group + 1) * each)):
                columns = slice(row * heads, (row + 1) * heads)
                logits = _weigh(out.scores[:, columns], held.head_weights[columns], slot.key_scales)
                _store_prefill(m, first + row, windows[row], key, logits)
            m.release(out)
            m.release(slot)

    return body


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    decode, blackwell = k.mode == "decode", bool(arch.tmem_columns)
    if not blackwell:
        if decode:
            return {"load": _load_decode, "score": _score_decode}
        return {
            "load": _load_prefill,
            **{f"score_{g}": _score_prefill(g) for g in range(_hopper_groups(k)[0])},
        }
    if decode:
        groups = {f"score_{g}": _epilogue_decode(g) for g in range(_blackwell_groups(k)[0])}
        return {"load": _load_decode, "mma": _issue_decode, **groups}
    groups = {f"score_{g}": _epilogue_prefill(g) for g in range(2)}
    return {"load": _load_prefill, "mma": _issue_prefill, **groups}


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    return (_decode_counts if k.mode == "decode" else _prefill_counts)(k, schedule, dims)


def _decode_counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """Every role reads the lengths to find its tiles, then those of its sequence at each tile but in the MMA warp."""
    next_n, each = dims["next_n"], schedule.constants["rows_per_product"]
    length = dims["max_len"] if dims["max_len"] > dims.get("skip_below", 0) else 0
    per_sequence = -(-length // k.tile)
    tiles = -(-dims["b"] * per_sequence // schedule.constants["ctas"])
    whole, rest = divmod(tiles, max(1, per_sequence))
    products = -(-next_n // each)
    # On Blackwell the products of a tile are dealt to the scoring groups, each with its accumulators.
    accumulators = -(-products // schedule.constants["groups"]) if "groups" in schedule.constants else 1
    readers = sum(role.name != "mma" for role in schedule.roles)
    lengths = 4 * next_n * (len(schedule.roles) * dims["b"] + readers * tiles)
    queries = (whole + (rest > 0)) * products * each * k.heads * (INDEX_DIM + 4)
    keys = tiles * (k.tile // PAGE) * (4 + PAGE * (INDEX_DIM + 4))
    return Counts(
        loaded=lengths + queries + keys,
        stored=4 * next_n * (whole * length + rest * k.tile),
        flops={FP8: tiles * products * schedule.mma("score").flops},
        steps=max(1, tiles, tiles * accumulators),
    )


def _prefill_counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """The first CTA has the last rows, which may be fewer than its block; every role reads their windows."""
    rows = dims["s"] - (-(-dims["s"] // k.queries) - 1) * k.queries
    keys = dims["skv"] if dims["skv"] > dims.get("skip_below", 0) else 0
    whole_tiles = -(-keys // k.tile)
    tiles = -(-whole_tiles // dims["splits"])
    columns = min(keys, tiles * k.tile)
    products = k.tile // schedule.mmas[0].m
    return Counts(
        loaded=8 * rows * len(schedule.roles) + (rows * k.heads + columns) * (INDEX_DIM + 4),
        stored=4 * rows * columns,
        flops={FP8: tiles * products * sum(mma.flops for mma in schedule.mmas)},
        steps=max(1, tiles),
    )


def useful(k: SimpleNamespace, arch: ArchSpec, level: int, backend: str) -> bool:
    """Prefill fills its N; on Blackwell a tile is 128 keys; level 0 keeps one shape a kernel."""
    if arch.tmem_columns:
        if k.tile != 128 or k.resident != 1:
            return False
        if k.mode == "prefill":
            return not k.evict and k.queries * k.heads == BLACKWELL_N and (level > 0 or k.stages == 6)
        return level > 0 or (k.queries, k.stages, k.evict) in ((1, 8, 0), (8, 6, 0))
    if k.mode == "prefill":
        groups, block = _hopper_groups(k)
        # CuTe DSL scores a tile block by block, one wait and release for two of them; TileLang in one product.
        fits = k.tile % block == 0 if backend == "cutedsl" else k.tile == block
        fits = fits and k.queries * k.heads == HOPPER_N * groups and k.resident == 1 and not k.evict
        kept = (4, 128, 4) if backend == "cutedsl" else (4, 64, 6)
        return fits and (level > 0 or (groups, k.tile, k.stages) == kept)
    if k.queries == 16:
        return False
    # CuTe DSL's epilogue leaves room for four CTAs an SM; its keys may leave the L2 first without a loss at any size.
    one = (1, 64, 3, 4, 1) if backend == "cutedsl" else (1, 128, 5, 2, 0)
    return level > 0 or (k.queries, k.tile, k.stages, k.resident, k.evict) in (one, (8, 256, 4, 1, 0))


def _heads(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return None if knobs["heads"] == call["heads"] else f"heads = {call['heads']}, built for {knobs['heads']}"


def _mode(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    return None if knobs["mode"] == call["form"] else f"form {call['form']}, built for {knobs['mode']}"


def _queries(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if knobs["mode"] == "prefill" or call["next_n"] <= knobs["queries"]:
        return None
    return f"next_n = {call['next_n']}, built for at most {knobs['queries']} queries a sequence"


def overhead(k: SimpleNamespace, dims: Mapping[str, int], arch: ArchSpec) -> float:
    """Shared memory that unused query slots take from the key ring."""
    return 0.05 * (k.queries - dims["next_n"]) if k.mode == "decode" else 0.0


def launch(k: SimpleNamespace, dims: Mapping[str, int], arch: ArchSpec) -> dict[str, int]:
    """Prefill: enough CTAs a block of rows to give every SM one."""
    if k.mode == "decode":
        return {}
    blocks = max(1, -(-dims["s"] // k.queries))
    return {"splits": 1 if blocks >= arch.sms else -(-arch.sms // blocks)}


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Decode: sequences, queries each and the longest there can be; prefill: rows and keys."""
    if form == "prefill":
        return {"s": dims["s"], "skv": dims["skv"], "heads": dims["heads"]}
    return {
        "b": dims["b"],
        "next_n": dims["next_n"],
        "max_len": dims["max_pages"] * PAGE,
        "heads": dims["heads"],
    }


PROGRAM = TileProgram(
    op="lightning_indexer",
    problem=problems.get("lightning_indexer"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    bucket=bucket,
    counts=counts,
    guards=(Guard("form", _mode), Guard("heads", _heads), Guard("next_n", _queries)),
    launch=launch,
    overhead=overhead,
    useful=useful,
)
