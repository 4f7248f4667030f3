"""Sparse MLA on Hopper with heads on N: whole rows, or CTAs that share out the dims and add their partial scores.

The fp8 tokens of whole rows are copied as they are, half a tile at a time, and unpacked from shared memory: so many more of them are
on their way than a warpgroup's registers hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace

from ...arch import ArchSpec
from ...device.text import sparse_mla as said
from ...problems import layouts
from ...tile.lang import START, Body, Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Size, Space
from ...tile.text import Recorder, Slot, Value, name
from .common import (
    LATENT_DIM,
    ROPE_DIM,
    Walk,
    end_of_cluster,
    head_block,
    joined_shares,
    live_tiles,
    merged_rows,
    queries,
    sliced_ctas_per_sm,
    slices_of,
    start,
)

# Half tiles of fp8 tokens on their way at most, and what barriers and small buffers take beside the tiles.
MOST_STAGED, SMALL_BYTES = 4, 512


def _roles(k: SimpleNamespace) -> tuple[Role, ...]:
    """A warpgroup that attends and one that gathers; whole fp8 tokens are unpacked by two more."""
    attend, gather = "queries, both products, softmax, merge, output", "selected rows into the ring"
    if not _staged(k):
        return Role("attend", 4, doc=attend), Role("gather", 4, doc=gather)
    return (
        Role("attend", 4, 224, attend),
        Role("unpack", 8, 104, "staged tokens to bf16 rows"),
        Role("gather", 4, 80, "selected tokens as they are"),
    )


def _staged(k: SimpleNamespace) -> bool:
    """Whether tokens are staged in shared memory, and unpacked from there."""
    return k.kv == "fp8" and k.slices == 1


def _ring(k: SimpleNamespace) -> Pipeline:
    """Tiles of rows: copied asynchronously as they are, or written by the threads that unpack them."""
    producer = "unpack" if _staged(k) else "gather"
    fill = Engine.CP_ASYNC if k.kv == "bf16" else Engine.THREADS
    reader = Reader("attend", Engine.WGMMA)
    return Pipeline(
        "kv", ("ckv_s", "kpe_s"), producer, fill, (reader,), k.stages, doc="live tiles of the split"
    )


def _stage(
    k: SimpleNamespace, arch: ArchSpec, others: int
) -> tuple[tuple[Buffer, ...], tuple[Pipeline, ...]]:
    """Where half tiles of tokens come in, as many as shared memory has room for beside the others."""
    if not _staged(k):
        return (), ()
    tokens, shared = k.tile // 2, Space.SHARED
    room = arch.smem_per_cta - others - SMALL_BYTES
    stages = Size(min(MOST_STAGED, room // (tokens * layouts.FP8_TOKEN_BYTES)), "STAGED_HALVES")
    return (
        Buffer("raw_s", shared, (tokens, LATENT_DIM // 4), "int32", stages, swizzle=128, doc="four fp8 values a word"),
        Buffer("raw_pe_s", shared, (tokens, ROPE_DIM), "bfloat16", stages, swizzle=128),
        Buffer("scale_s", shared, (tokens, 4), "int32", stages, doc="a float32 for each 128 values"),
    ), (
        Pipeline(
            "raw", ("raw_s", "raw_pe_s", "scale_s"), "gather", Engine.CP_ASYNC, (Reader("unpack", Engine.THREADS),), stages,
            doc="half tiles of tokens",
        ),
    )  # fmt: skip


def _products(tile: int, hb: int, dims: int, rope: int) -> tuple[Mma, ...]:
    """S^T = K Q^T in two parts, and O^T += K^T P^T; eight heads lie along the rows of P."""
    return (
        Mma("qk_nope", "wgmma", "attend", tile, hb, dims, "bfloat16", a="ckv_s", b="q_s", acc="scores", doc="S^T = K Q^T"),
        Mma("qk_pe", "wgmma", "attend", tile, hb, rope, "bfloat16", a="kpe_s", b="qpe_s", acc="scores"),
        Mma(
            "pv", "wgmma", "attend", dims, hb, tile, "bfloat16", a_major="mn", b_major="mn" if hb > 8 else "k",
            a="ckv_s", b="p_s", acc="acc", doc="O^T += K^T P^T",
        ),
    )  # fmt: skip


def _exchange(k: SimpleNamespace, hb: int, dims: int) -> tuple[tuple[Buffer, ...], tuple[Pipeline, ...]]:
    """What the CTAs of a slice group, and those that have the same slice, send one another."""
    # Parts come when the ring is done with; what that leaves is L1, which the loads of fp8 tokens go through.
    fits = merged_rows(k) * (128 + hb) * 4 <= k.stages * k.tile * int(dims) * 2
    reader, shared = (Reader("attend", Engine.THREADS),), Space.SHARED
    return (
        Buffer("x_s", shared, (k.slices - 1, hb // 8, 128, 4), "float32", 2, doc="partial scores of the other slices"),
        Buffer(
            "o_s", shared, (merged_rows(k), 128 + hb), "float32", alias="ckv_s" if fits else None,
            doc="normalised parts of a share of O, 16 dims by 8 heads a row, and their lses",
        ),
    ), (
        Pipeline("x", ("x_s",), "attend", Engine.PEERS, reader, 2, doc="partial scores"),
        Pipeline("o", ("o_s",), "attend", Engine.GRID, reader, rounds="once", through="arrivals", meets="attend", doc="parts of O"),
    )  # fmt: skip


def _held(k: SimpleNamespace, hb: int, dims: int) -> Iterator[Buffer]:
    """What threads have: of the scores and of O as products leave them; and of each head of their own."""
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
    # Their part of the running sums, the maxima of a tile, those that P is below, and the sinks of the rows that they merge.
    own = {"sums": columns, "top": columns, "peak": columns, **({"sinks": hb // 8} if k.slices > 1 else {})}
    for text, each in own.items():
        yield Buffer(
            text, Space.REGISTER, (128, each), "float32", role="attend", per_thread=each, private=True
        )
    if k.kv == "fp8" and not _staged(k):
        each = 8 + dims * 9 // 64
        yield Buffer("words", Space.REGISTER, (128, each), "uint32", role="gather", per_thread=each, private=True, doc="tokens on their way")  # fmt: skip


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    """Heads on N; each CTA of a slice group with its part of the dims, so that no accumulator crosses between them."""
    hb, sliced, shared = head_block(k), k.slices > 1, Space.SHARED
    dims, rope = Size(LATENT_DIM // k.slices, "DIMS"), Size(ROPE_DIM // k.slices, "ROPE")
    weights = (k.tile, hb) if hb > 8 else (hb, k.tile)
    tiles = (
        *queries(hb, dims, rope),
        Buffer("ckv_s", shared, (k.tile, dims), "bfloat16", k.stages, swizzle=128, doc="read K-major for scores, MN-major for values"),
        Buffer("kpe_s", shared, (k.tile, rope), "bfloat16", k.stages, swizzle=min(128, 2 * rope)),
        Buffer("p_s", shared, weights, "bfloat16", swizzle=min(128, 2 * weights[1])),
        Buffer("red_s", shared, (hb, 4), "float32", doc="maxima, then sums, across warps"),
    )  # fmt: skip
    staged, raw = _stage(k, arch, sum(buffer.bytes for buffer in tiles))
    sent, exchange = _exchange(k, hb, dims) if sliced else ((Buffer("last_s", shared, (1,), "int32"),), ())
    blocks = f"t * {k.heads // hb}"
    return Schedule(
        roles=_roles(k),
        buffers=(*tiles, *staged, *sent, *_held(k, hb, dims)),
        pipelines=(*raw, _ring(k), *exchange),
        mmas=_products(k.tile, hb, dims, rope),
        grid=(blocks, "splits") if k.cluster == 1 else (blocks, str(k.cluster), f"splits // {k.cluster}"),
        axes=("bx", "split") if k.cluster == 1 else ("bx", "rank", "part"),
        cluster=(1, k.cluster, 1),
        group=(1,) if k.cluster > 1 else (),
        named_barriers={"attend": ("attend",)},
        constants={"head_block": hb, "head_blocks": k.heads // hb, "dims": dims, "rope": rope},
        ctas_per_sm=sliced_ctas_per_sm(k) if sliced else 1,
        # Without it ptxas may not know with how many registers a thread begins, and then gives none to those that need more.
        min_ctas_per_sm=int(_staged(k)),
        resident=f"splits // {k.cluster} - 1" if sliced else f"(splits - 1) * ({blocks} + 1 - arrival_slots)" if k.cluster == 1 else "",
    )  # fmt: skip


def _gather(m: Recorder) -> None:
    slices, it, live = slices_of(m), name("it"), name("live", "bool")
    dims, rope = m.c.dims, m.c.rope
    which: Value = name("which") if slices > 1 else 0
    low, high = name("now_low"), name("now_high")
    if _staged(m.k):
        for _ in live_tiles(m):
            with m.when(live):
                for half, ids in enumerate((low, high)):
                    raw = m.acquire("raw", it * 2 + half)
                    said.copy_tokens(m, raw.raw_s, raw.raw_pe_s, raw.scale_s, ids=ids)
                    m.commit(raw)
                m.set(it, it + 1)
    elif m.k.kv == "bf16":
        for _ in live_tiles(m):
            with m.when(live):
                kv = m.acquire("kv", it)
                for target, cache, columns in ((kv.ckv_s, "ckv", dims), (kv.kpe_s, "kpe", rope)):
                    said.copy_rows(
                        m, target, m.operand(cache, f"{cache}_stride"), which * columns, columns, low, high
                    )
                m.commit(kv)
                m.set(it, it + 1)
    else:
        m.comment("As the words of a tile are written, those of the next one take their place.")
        holds = m.var("holds", False, "bool")
        for turn in live_tiles(m, more=1):
            with m.when(live | (turn == name("turns"))):
                with m.when(holds):
                    kv = m.acquire("kv", it)
                    said.renew_tokens(m, kv.ckv_s, which, rope=kv.kpe_s, low=low, high=high)
                    m.commit(kv)
                    m.set(it, it + 1)
                with m.otherwise():
                    said.load_tokens(m, which, low=low, high=high)
                m.set(holds, live)
    end_of_cluster(m)


def _unpack(m: Recorder) -> None:
    """Whole rows of fp8 tokens: each half tile from where it was staged to its place in the ring."""
    it = name("it")
    for _ in live_tiles(m):
        with m.when(name("live", "bool")):
            kv = m.acquire("kv", it)
            for half in range(2):
                raw = m.wait("raw", it * 2 + half)
                said.unpack_tokens(m, kv.ckv_s, kv.kpe_s, raw.raw_s, raw.raw_pe_s, raw.scale_s, half)
                m.release(raw)
            m.commit(kv)
            m.set(it, it + 1)
    end_of_cluster(m)


def _attend_tiles(m: Recorder, which: Value = 0) -> Iterator[Slot]:
    """Heads on N: O and its lse. What is yielded in between is each live tile's scores, not yet scaled."""
    c, walk, it = m.c, Walk.named(m), name("it")
    scores, acc, sums, peak = (m.buffer(text) for text in ("scores", "acc", "sums", "peak"))
    parts = (("q_s", "q_nope", LATENT_DIM, c.dims), ("qpe_s", "q_pe", ROPE_DIM, c.rope))
    for target, q, width, columns in parts:
        place = (walk.row, walk.head0, width, which * columns, columns)
        said.load_queries(m, m.buffer(target), m.operand(q), *place)
    m.publish("attend", "q_s", "qpe_s")
    m.fill(acc, 0.0)
    m.fill(sums, 0.0)
    m.fill(peak, -math.inf)
    if m.k.slices > 1:
        m.cluster_wait()
    for _ in live_tiles(m):
        with m.when(name("live", "bool")):
            kv = m.wait("kv", it)
            nope = m.multiply("qk_nope", scores, kv.ckv_s, m.buffer("q_s"))
            m.multiply("qk_pe", scores, kv.kpe_s, m.buffer("qpe_s"), accumulate=True, before=nope)
            m.await_products()
            yield kv
            said.mask_scores(m, name("in_low"), name("in_high"))
            _softmax_of_tile(m)
            m.multiply("pv", acc, kv.ckv_s, m.buffer("p_s"), accumulate=True)
            m.release(kv)
            m.set(it, it + 1)
    _total(m)


def _softmax_of_tile(m: Recorder) -> None:
    """From masked scores to P in shared memory: the maxima of the columns cross the warps, the sums do not."""
    red = m.buffer("red_s")
    said.leave_maxima(m, red)
    m.meet("attend")
    said.join_maxima(m, red)
    said.online_softmax(m)
    said.store_weights(m, m.buffer("p_s"))
    m.publish("attend", "p_s")


def _total(m: Recorder) -> None:
    """O normalised, and its lse in `top`."""
    red = m.buffer("red_s")
    said.leave_sums(m, red)
    m.meet("attend")
    said.join_sums(m, red)
    said.normalise(m)


def _attend_whole(m: Recorder) -> None:
    """Heads on N, the whole row, or a part of it that is joined with those of other splits."""
    walk, top = Walk.named(m), m.buffer("top")
    for _ in _attend_tiles(m):
        pass
    columns = m.schedule.buffer("top").per_thread

    def join() -> None:
        said.leave_part(m, top, walk.row, walk.head0, said.ON_N, split=walk.split)
        for share, shares in joined_shares(m, "attend"):
            said.merge_parts(m, walk.row, walk.head0, m.dim("splits"), share, shares, columns, said.ON_N)

    if m.k.cluster > 1:
        join()
        return
    with m.when(m.dim("splits") == 1):
        said.write_outputs(m, walk.row, walk.head0)
    with m.otherwise():
        join()


def _attend(m: Recorder) -> None:
    """Heads on N: one warpgroup multiplies, keeps the softmax and merges; slices add their partial scores."""
    walk, it, slices = Walk.named(m), name("it"), m.k.slices
    top = m.buffer("top")
    which, part, parts = name("which"), walk.split, walk.splits
    said.load_sinks(m, walk.head0)
    for _ in _attend_tiles(m, which):
        x = m.slot("x", it)
        m.commit(x)
        said.send_scores(m, m.buffer("x_s", it), m.sender(x.x_s, x))
        m.wait("x", it)
        said.add_scores(m, x.x_s)
    rows, first = m.slot("o", 0), m.let("first", m.block(0) * parts * slices + which)
    with m.when(parts > 1):
        m.comment("The CTAs that hold this slice trade rows of O, so that each merges its share of them.")
        words = m.schedule.buffer("o_s").stage_elements
        said.send_parts(m, top, m.sender(rows.o_s, rows), words, first, parts, part=part)
        m.wait("o", 0, at=first + part * slices)
    with m.otherwise():
        said.keep_parts(m, m.buffer("o_s"), top)
        m.meet("attend")
    share = {"part": part, "block": m.c.head_block}
    said.merge_rows(m, m.buffer("o_s"), walk.row, walk.head0, parts, which, **share)


def bodies(k: SimpleNamespace) -> dict[str, Body]:
    unpack: dict[str, Body] = {"unpack": _unpack} if _staged(k) else {}
    return {START: start, "gather": _gather, **unpack, "attend": _attend if k.slices > 1 else _attend_whole}
