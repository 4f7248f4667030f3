"""Sparse MLA on Hopper with heads on N.

A CTA has whole rows, or the CTAs of a cluster share out the dims and add their partial scores.

If a CTA has whole rows, it copies fp8 tokens as they are, half a tile at a time, and unpacks them from shared
memory. More tokens are then in flight than a warpgroup's registers could hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace

from ....arch import ArchSpec
from ....problems import layouts
from ....tile.frontend import Boolean, recorded
from ....tile.lang import START, Body, Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Size, Space
from ....tile.text import Recorder, Value, dim
from ..leaves import gather as leaf_gather
from ..leaves import gather_pages as leaf_pages
from ..leaves import results as leaf
from ..leaves import softmax as leaf_softmax
from .common import (
    LATENT_DIM,
    ROPE_DIM,
    TwoScopes,
    Walk,
    at_cache,
    end_of_cluster,
    head_block,
    head_blocks,
    heads_of_call,
    merge_splits,
    merged_rows,
    padded_heads,
    queries,
    queries_of,
    rope_dims,
    rope_rows,
    sliced_ctas_per_sm,
    start,
    unpacked,
)

# At most so many half tiles of fp8 tokens in flight, and the bytes of barriers and small buffers beside
# tiles.
MOST_STAGED, SMALL_BYTES = 4, 512
# The leaves that load and renew a slice of tokens. These tokens are unpacked in registers.
TOKEN_LEAVES: dict[str, tuple[Callable[..., None], ...]] = {
    "fp8": (leaf_gather.load_tokens, leaf_gather.renew_tokens),
    "v4": (leaf_pages.load_v4_tokens, leaf_pages.renew_v4_tokens),
    "v41": (leaf_pages.load_v41_tokens, leaf_pages.renew_v41_tokens),
}
# The leaves that stage tokens and unpack them from there.
STAGE_LEAVES: dict[str, tuple[Callable[..., None], ...]] = {
    "fp8": (leaf_gather.copy_tokens, leaf_gather.unpack_tokens),
    "nope8": (leaf_gather.copy_nope8_tokens, leaf_gather.unpack_nope8_tokens),
    "v4": (leaf_pages.copy_v4_tokens, leaf_pages.unpack_v4_tokens),
    "v41": (leaf_pages.copy_v41_tokens, leaf_pages.unpack_v41_tokens),
}
SCALES = {
    "v4": (2, "a UE8M0 for each 64 values"),
    "v41": (4, "a UE8M0 for each 32 values"),
}
"""How many words a token's scales are, and what the scales are. Other formats have four float32 scales."""


def _roles(k: SimpleNamespace) -> tuple[Role, ...]:
    """A warpgroup that attends and one that gathers; two more unpack tokens that are staged."""
    attend, gather = "queries, both products, softmax, merge, output", "selected rows into the ring"
    if not _staged(k):
        return Role("attend", 4, doc=attend), Role("gather", 4, doc=gather)
    return (
        Role("attend", 4, 224, attend),
        Role("unpack", 8, 104, "staged tokens to bf16 rows"),
        Role("gather", 4, 80, "selected tokens as they are"),
    )


def _staged(k: SimpleNamespace) -> bool:
    """Whether tokens are staged in shared memory and unpacked from there."""
    return unpacked(k) and k.slices == 1


def _ring(k: SimpleNamespace) -> Pipeline:
    """The ring of tiles of rows. Copies fill it asynchronously, or the threads that unpack tokens do."""
    producer = "unpack" if _staged(k) else "gather"
    fill = Engine.THREADS if unpacked(k) else Engine.CP_ASYNC
    reader = Reader("attend", Engine.WGMMA)
    rows = ("ckv_s", "kpe_s") if rope_dims(k) else ("ckv_s",)
    return Pipeline("kv", rows, producer, fill, (reader,), k.stages, doc="live tiles of the split")


def _stage(
    k: SimpleNamespace, arch: ArchSpec, others: int
) -> tuple[tuple[Buffer, ...], tuple[Pipeline, ...]]:
    """The ring of half tiles of staged tokens, with as many slots as shared memory has room for.

    Args:
        others: bytes of the other buffers.
    """
    if not _staged(k):
        return (), ()
    tokens, shared = k.tile // 2, Space.SHARED
    room = arch.smem_per_cta - others - SMALL_BYTES
    stages = Size(min(MOST_STAGED, room // (tokens * layouts.FP8_TOKEN_BYTES)), "STAGED_HALVES")
    # The last dims of DeepSeek-V4's tokens are bf16, as rope dims are.
    rope = Buffer("raw_pe_s", shared, (tokens, ROPE_DIM), "bfloat16", stages, swizzle=128)
    beside = () if k.kv in ("nope8", "v41") else (rope,)
    words, doc = SCALES.get(k.kv, (4, "a float32 for each 128 values"))
    parts = ("raw_s", *(buffer.name for buffer in beside), "scale_s")
    return (
        Buffer(
            "raw_s", shared, (tokens, LATENT_DIM // 4), "int32", stages, swizzle=128,
            doc="four fp8 values in each word",
        ),
        *beside,
        Buffer("scale_s", shared, (tokens, words), "int32", stages, doc=doc),
    ), (
        Pipeline(
            "raw", parts, "gather", Engine.CP_ASYNC, (Reader("unpack", Engine.THREADS),), stages,
            doc="half tiles of tokens",
        ),
    )  # fmt: skip


def _products(tile: int, hb: int, dims: int, rope: int) -> tuple[Mma, ...]:
    """S^T = K Q^T in two parts, and O^T += K^T P^T. If there are eight heads, they are the rows of P."""
    of_rope = (
        Mma("qk_pe", "wgmma", "attend", tile, hb, rope, "bfloat16", a="kpe_s", b="qpe_s", acc="scores"),
    )
    return (
        Mma(
            "qk_nope", "wgmma", "attend", tile, hb, dims, "bfloat16", a="ckv_s", b="q_s", acc="scores",
            doc="S^T = K Q^T",
        ),
        *(of_rope if rope else ()),
        Mma(
            "pv", "wgmma", "attend", dims, hb, tile, "bfloat16", a_major="mn",
            b_major="mn" if hb > 8 else "k", a="ckv_s", b="p_s", acc="acc", doc="O^T += K^T P^T",
        ),
    )  # fmt: skip


def _exchange(k: SimpleNamespace, hb: int, dims: int) -> tuple[tuple[Buffer, ...], tuple[Pipeline, ...]]:
    """Buffers and pipelines of what CTAs send to their slice group and to the CTAs with the same slice."""
    # Parts arrive after the ring's last use, so they may take the ring's memory. The rest of shared memory is
    # then L1, and the loads of fp8 tokens go through L1.
    fits = merged_rows(k) * (128 + hb) * 4 <= k.stages * k.tile * int(dims) * 2
    reader, shared = (Reader("attend", Engine.THREADS),), Space.SHARED
    return (
        Buffer(
            "x_s", shared, (k.slices - 1, hb // 8, 128, 4), "float32", 2,
            doc="partial scores of the other slices",
        ),
        Buffer(
            "o_s", shared, (merged_rows(k), 128 + hb), "float32", alias="ckv_s" if fits else None,
            doc="normalised parts of a share of O, in rows of 16 dims by 8 heads, and their lses",
        ),
    ), (
        Pipeline("x", ("x_s",), "attend", Engine.PEERS, reader, 2, doc="partial scores"),
        Pipeline(
            "o", ("o_s",), "attend", Engine.GRID, reader, rounds="once", through="inboxes", meets="attend",
            doc="parts of O",
        ),
    )  # fmt: skip


def _registers(k: SimpleNamespace, hb: int, dims: int) -> Iterator[Buffer]:
    """Registers: a thread's part of the scores and of O, as products leave them, and values of its heads."""
    columns = Size(hb // 4, "OWN_COLUMNS")
    for text, rows, title in (("scores", k.tile, "OWN_SCORES"), ("acc", dims, "OWN_OUTPUTS")):
        yield Buffer(
            text,
            Space.REGISTER,
            (rows, hb),
            "float32",
            role="attend",
            per_thread=Size(rows * hb // 128, title),
        )
    # A thread's part of the running sums, the maxima of a tile, the maxima that P is relative to, and the
    # sinks of the rows that the thread merges.
    own = {"sums": columns, "top": columns, "peak": columns, **({"sinks": hb // 8} if k.slices > 1 else {})}
    for text, each in own.items():
        yield Buffer.own(text, "attend", each)
    if unpacked(k) and not _staged(k):
        pages = leaf_pages.PAGES.get(k.kv)
        each = pages.words(dims, 2) if pages else 8 + dims * 9 // 64
        yield Buffer.own("words", "gather", each, "uint32", doc="tokens in flight")


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    """The schedule with heads on N.

    Each CTA of a slice group has its part of the dims, so no accumulator crosses between CTAs.
    """
    hb, sliced, shared = head_block(k), k.slices > 1, Space.SHARED
    dims, rope = Size(LATENT_DIM // k.slices, "DIMS"), Size(rope_dims(k) // k.slices, "ROPE")
    weights = (k.tile, hb) if hb > 8 else (hb, k.tile)
    tiles = (
        *queries(hb, dims, rope),
        Buffer(
            "ckv_s", shared, (k.tile, dims), "bfloat16", k.stages, swizzle=128,
            doc="read K-major for scores, MN-major for values",
        ),
        *rope_rows("kpe_s", k.tile, rope, k.stages),
        Buffer("p_s", shared, weights, "bfloat16", swizzle=min(128, 2 * weights[1])),
        Buffer("red_s", shared, (hb, 4), "float32", doc="maxima, then sums, across warps"),
    )  # fmt: skip
    staged, raw = _stage(k, arch, sum(buffer.bytes for buffer in tiles))
    sent, exchange = _exchange(k, hb, dims) if sliced else ((Buffer("last_s", shared, (1,), "int32"),), ())
    blocks, splits = dim("t") * head_blocks(k), dim("splits")
    return Schedule(
        roles=_roles(k),
        buffers=(*tiles, *staged, *sent, *_registers(k, hb, dims)),
        pipelines=(*raw, _ring(k), *exchange),
        mmas=_products(k.tile, hb, dims, rope),
        grid=(blocks, splits) if k.cluster == 1 else (blocks, k.cluster, splits // k.cluster),
        axes=("bx", "split") if k.cluster == 1 else ("bx", "rank", "part"),
        cluster=(1, k.cluster, 1),
        group=(1,) if k.cluster > 1 else (),
        named_barriers={"attend": ("attend",)},
        constants={"head_block": hb, "dims": dims, "rope": rope},
        ctas_per_sm=sliced_ctas_per_sm(k) if sliced else 1,
        # Without a minimum ptxas may not know how many registers a thread begins with. It then gives no more
        # registers to the roles that need more.
        min_ctas_per_sm=int(_staged(k)),
        resident=splits // k.cluster - 1 if sliced else dim("all_resident") if k.cluster == 1 else 0,
    )  # fmt: skip


@recorded
def _gather_rows(m: Recorder, walk: Walk) -> None:
    """Copy bf16 rows into the ring."""
    for turn in range(walk.turns):
        walk.enter(turn, keep_rows=True)
        if walk.live:
            kv = walk.kv.producer.acquire(walk.it)
            parts = ((walk.ckv, m.c.dims), (walk.kpe, m.c.rope)) if m.c.rope else ((walk.ckv, m.c.dims),)
            for target, (rows, columns) in zip(kv.views(), parts, strict=True):
                ids = (walk.now_low, walk.now_high)
                leaf_gather.copy_rows(m, target, rows, walk.which * columns, columns, *ids, walk.n)
            kv.commit()
            walk.it += 1
    end_of_cluster(m)


@recorded
def _gather_tokens(m: Recorder, walk: Walk) -> None:
    """Unpack a slice of tokens in registers and write it into the ring."""
    m.comment("As the words of a tile are written, the next tile's words take their registers.")
    holds: Boolean = False
    load, renew = TOKEN_LEAVES[m.k.kv]
    for turn in range(walk.turns + 1):
        walk.enter(turn, keep_rows=True)
        if walk.live or turn == walk.turns:
            tokens = (walk.which, m.c.dims, walk.now_low, walk.now_high)
            if holds:
                kv = walk.kv.producer.acquire(walk.it)
                at_cache(walk, lambda cache, place: renew(m, walk.words, *kv.views(), cache, *tokens, place))
                kv.commit()
                walk.it += 1
            else:
                at_cache(walk, lambda cache, place: load(m, walk.words, cache, *tokens, place))
            holds = walk.live
    end_of_cluster(m)


@recorded
def _stage_tokens(m: Recorder, walk: Walk) -> None:
    """Copy whole tokens as they are, half a tile at a time. Tiles of pages are of one scope or the other."""
    copy, _ = STAGE_LEAVES[m.k.kv]
    for turn in range(walk.turns):
        walk.enter(turn, keep_rows=True)
        if walk.live:
            pages = walk.pages_of_tile() if isinstance(walk, TwoScopes) else walk.n
            for half, ids in enumerate((walk.now_low, walk.now_high)):
                raw = walk.raw.producer.acquire(walk.it * 2 + half)
                target = raw.views()
                if not isinstance(walk, TwoScopes):
                    copy(m, *target, walk.kv_cache, ids, pages)
                elif walk.now_extra:
                    copy(m, *target, walk.extra_kv_pages, ids, pages)
                else:
                    copy(m, *target, walk.kv_pages, ids, pages)
                raw.commit()
            walk.it += 1
    end_of_cluster(m)


@recorded
def _unpack(m: Recorder, walk: Walk) -> None:
    """Unpack whole fp8 tokens: each staged half tile to its place in the ring."""
    _, unpack = STAGE_LEAVES[m.k.kv]
    for turn in range(walk.turns):
        walk.enter(turn)
        if walk.live:
            kv = walk.kv.producer.acquire(walk.it)
            for half in range(2):
                raw = walk.raw.reader.wait(walk.it * 2 + half)
                unpack(m, *kv.views(), *raw.views(), half)
                raw.release()
            kv.commit()
            walk.it += 1
    end_of_cluster(m)


@recorded
def _attend_tiles(m: Recorder, walk: Walk) -> None:
    """Compute both products and the softmax, tile by tile. O ends normalised, with its lse in `top`."""
    c = m.c
    q, q_rope = queries_of(walk) if c.rope else (*queries_of(walk), None)
    leaf_gather.load_queries(
        m, walk.q_s, walk.qpe_s if c.rope else None, q, q_rope, walk.row, walk.head0, c.head_block,
        walk.which, c.dims, c.rope, heads_of_call(m),
    )  # fmt: skip
    m.publish("attend", *(("q_s", "qpe_s") if c.rope else ("q_s",)))
    m.fill(walk.acc, 0.0)
    m.fill(walk.sums, 0.0)
    m.fill(walk.peak, -math.inf)
    if m.k.slices > 1:
        m.cluster_wait()
    for turn in range(walk.turns):
        walk.enter(turn)
        if walk.live:
            kv = walk.kv.reader.wait(walk.it)
            nope = m.multiply("qk_nope", walk.scores, kv.ckv_s, walk.q_s)
            if c.rope:
                m.multiply("qk_pe", walk.scores, kv.kpe_s, walk.qpe_s, accumulate=True, before=nope)
            m.await_products()
            if m.k.slices > 1:
                _add_partial_scores(m, walk)
            leaf_softmax.mask_scores(
                m, walk.scores, low=walk.in_low, high=walk.in_high, sm_scale=walk.sm_scale,
            )  # fmt: skip
            _softmax_of_tile(m, walk)
            m.multiply("pv", walk.acc, kv.ckv_s, walk.p_s, accumulate=True)
            kv.release()
            walk.it += 1
    _normalise(m, walk)


@recorded
def _add_partial_scores(m: Recorder, walk: Walk) -> None:
    """Exchange the partial scores of a tile with the other CTAs of the slice group, and add them."""
    x = walk.x.producer.slot(walk.it)
    x.commit()
    leaf_softmax.send_scores(
        m, walk.scores, slots=walk.x_s.stage(walk.it), to_slots=m.sender(x.x_s, x), rank=m.block(1),
        slices=m.k.slices,
    )  # fmt: skip
    walk.x.reader.wait(walk.it)
    leaf_softmax.add_scores(m, walk.scores, received=x.x_s, slices=m.k.slices)


@recorded
def _softmax_of_tile(m: Recorder, walk: Walk) -> None:
    """Turn masked scores into P in shared memory. Warps exchange the columns' maxima, but not the sums."""
    leaf_softmax.leave_maxima(m, walk.red_s, walk.scores)
    m.meet("attend")
    leaf_softmax.join_maxima(m, walk.top, walk.red_s)
    leaf_softmax.online_softmax(
        m, scores=walk.scores, sums=walk.sums, acc=walk.acc, peak=walk.peak, top=walk.top,
    )  # fmt: skip
    leaf_softmax.store_weights(m, walk.p_s, walk.scores)
    m.publish("attend", "p_s")


@recorded
def _normalise(m: Recorder, walk: Walk) -> None:
    """Normalise O and leave its lse in `top`."""
    leaf_softmax.leave_sums(m, walk.red_s, walk.sums)
    m.meet("attend")
    leaf_softmax.join_sums(m, walk.top, walk.red_s)
    leaf_softmax.normalise(m, walk.acc, walk.top, walk.peak)


@recorded
def _attend_whole(m: Recorder, walk: Walk) -> None:
    """Attend over whole rows: all tiles of a query, or a split's tiles. Then merge the splits."""
    splits, row, head0 = walk.splits, walk.row, walk.head0
    columns = m.schedule.buffer("top").per_thread
    # CTAs alone share a merge, one for each part. A cluster merges all, so its CTAs have more pieces each.
    few = max(1, 32 // m.c.head_block) if m.k.cluster == 1 else min(4, 64 // m.c.head_block)

    def merge(share: Value, shares: Value) -> None:
        leaf.merge_parts(
            m, row, head0, splits, share, shares, columns, few, leaf.ON_N, walk.out, walk.lse, walk.o_partial,
            walk.lse_partial, walk.attn_sink, walk.splits, padded_heads(m.k), walk.lse_scale, walk.empty_lse,
            heads_of_call(m),
        )  # fmt: skip

    _attend_tiles(m, walk)
    if m.k.cluster == 1 and splits == 1:
        leaf.write_outputs(
            m, walk.acc, walk.top, walk.attn_sink, walk.out, walk.lse, row, head0, walk.lse_scale,
            walk.empty_lse, heads_of_call(m),
        )  # fmt: skip
    else:
        leaf.leave_part(
            m, walk.acc, lses=walk.top, row=row, head0=head0, side=leaf.ON_N, split=walk.split,
            o_partial=walk.o_partial, lse_partial=walk.lse_partial, splits=walk.splits,
            padded=padded_heads(m.k),
        )  # fmt: skip
        merge_splits(walk, "attend", merge)


@recorded
def _attend_slice(m: Recorder, walk: Walk) -> None:
    """Attend with a slice of the dims.

    The CTAs of a slice group add their partial scores. The CTAs that hold the same slice merge its rows of O.
    """
    which, part, parts = walk.which, walk.split, walk.splits_of_row
    leaf.load_sinks(m, walk.sinks, walk.attn_sink, walk.head0, heads_of_call(m))
    _attend_tiles(m, walk)
    top, kept, rows = walk.top, walk.o_s, walk.o.reader.slot(0)
    first = m.block(0) * parts * m.k.slices + which
    if parts > 1:
        m.comment("The CTAs that hold this slice send one another rows of O, and each merges a share.")
        words = m.schedule.buffer("o_s").stage_elements
        leaf.send_parts(
            m, walk.acc, lses=top, inbox=m.sender(rows.o_s, rows), words=words, first=first,
            slices=m.k.slices, part=part, parts=parts,
        )  # fmt: skip
        walk.o.reader.wait(0, at=first + part * m.k.slices)
    else:
        leaf.keep_parts(m, kept, walk.acc, lses=top)
        m.meet("attend")
    leaf.merge_rows(
        m, walk.out, walk.lse, received=kept, sinks=walk.sinks, row=walk.row, head0=walk.head0,
        part=part, parts=parts, which=which, dims=m.c.dims, block=m.c.head_block,
        lse_scale=walk.lse_scale, empty_lse=walk.empty_lse, heads=heads_of_call(m),
    )  # fmt: skip


def bodies(k: SimpleNamespace) -> dict[str, Body]:
    unpack: dict[str, Body] = {"unpack": _unpack} if _staged(k) else {}
    gather = _stage_tokens if _staged(k) else _gather_tokens if unpacked(k) else _gather_rows
    attend = _attend_slice if k.slices > 1 else _attend_whole
    return {START: start, "gather": gather, **unpack, "attend": attend}
