"""Sparse MLA on Hopper with 64 heads on M.

Two warpgroups attend, each with half of the dims of O. CTAs walk from query to query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from ....arch import ArchSpec
from ....device.torch import fragment
from ....tile.channel import Reading
from ....tile.frontend import inline, recorded
from ....tile.lang import START, Body, Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Size, Space
from ....tile.text import Recorder, Slot, Value, View, dim
from ..leaves import gather as leaf_gather
from ..leaves import gather_pages as leaf_pages
from ..leaves import results as leaf
from ..leaves import softmax as leaf_softmax
from .common import (
    LATENT_DIM,
    RESCALE_LOG2,
    ROPE_DIM,
    at_cache,
    head_blocks,
    heads_of_call,
    padded_heads,
    queries,
    queries_of,
    rope_dims,
    rope_rows,
    unpacked,
)
from .shares import Pairs, Tiles, Units, each_query, merge_parts, parts_of_query, start

# The leaves that fetch, load and renew half a tile of fp8 tokens.
HALF_LEAVES: dict[str, tuple[Callable[..., None], ...]] = {
    "fp8": (leaf_gather.fetch_half, leaf_gather.load_half, leaf_gather.renew_half),
    "v4": (leaf_pages.fetch_v4_half, leaf_pages.load_v4_half, leaf_pages.renew_v4_half),
    "v41": (leaf_pages.fetch_v41_half, leaf_pages.load_v41_half, leaf_pages.renew_v41_half),
}
# The two warpgroups that attend. Each has half of the dims of O.
HALF = Size(LATENT_DIM // 2, "HALF")
SIDES = ("left", "right")


@dataclass(frozen=True)
class _Side:
    """One of the two warpgroups that attend to `heads` heads on M. Its name ends its buffers' names."""

    name: str
    heads: int

    def of(self, text: str) -> str:
        return f"{text}_{self.name}"

    def rows(
        self, text: str, count: int, columns: int, doc: str = "", *, stages: int = 1, swizzle: int = 128
    ) -> Buffer:
        """A tile in shared memory."""
        return Buffer(
            self.of(text), Space.SHARED, (count, columns), "bfloat16", stages, swizzle=swizzle, doc=doc
        )

    def peaks(self) -> Buffer:
        return Buffer(
            self.of("peak_s"), Space.SHARED, (self.heads,), "float32", doc="the maxima that P is relative to"
        )

    def registers(self, tokens: int, *, weights: bool = False) -> Iterator[Buffer]:
        """Tiles as products leave and take them, and values of a thread's two heads. Sums are private."""
        tiles = {"scores": tokens, **({"weights": tokens} if weights else {}), "acc": HALF}
        for text, columns in tiles.items():
            dtype = "bfloat16" if text == "weights" else "float32"
            yield Buffer(self.of(text), Space.REGISTER, (self.heads, columns), dtype, role=self.name)
        docs = {"sums": "of its own tokens", "factor": "what earlier weights shrink by"}
        for text in ("sums", "peak", "factor", "sinks"):
            own = text == "sums"
            yield Buffer(
                self.of(text), Space.REGISTER, (128, 2) if own else (self.heads,), "float32", role=self.name,
                per_thread=2, private=own, doc=docs.get(text, ""),
            )  # fmt: skip

    def scores(self, text: str, tokens: int, depth: int, queries: str, keys: str, doc: str = "") -> Mma:
        return Mma(
            self.of(text), "wgmma", self.name, self.heads, tokens, depth, "bfloat16", a=queries, b=keys,
            acc=self.of("scores"), doc=doc,
        )  # fmt: skip

    def values(self, text: str, tokens: int, weights: str, rows: str, whose: str, **kind: Any) -> Mma:
        """The product that adds some tokens to this side's half of O."""
        return Mma(
            self.of(text), "wgmma", self.name, self.heads, HALF, tokens, "bfloat16", b_major="mn", a=weights,
            b=rows, acc=self.of("acc"), doc=f"O += P K, of {whose} tokens", **kind,
        )  # fmt: skip

    def reader(self) -> Reader:
        return Reader(self.name, Engine.WGMMA, "warp")


def _sides(k: SimpleNamespace) -> tuple[tuple[_Side, _Side], tuple[_Side, _Side]]:
    """For each of the two sides: the side, and the other side."""
    left, right = (_Side(name, k.block) for name in SIDES)
    return (left, right), (right, left)


def _wide(k: SimpleNamespace) -> Schedule:
    """Hopper, 64 heads on M, fp8 tokens.

    Two warpgroups attend. Each scores half of a tile's tokens and has half of the dims of O. A CTA takes
    `share` consecutive tiles, of one query or of several. Two warpgroups unpack tokens, each half of a tile:
    one alone would take longer than both products. The CTAs of a query may form a cluster. Each then unpacks
    its share of every half and sends it to the others.
    """
    hb, tokens, sides = k.block, k.tile // 2, _sides(k)
    shared, rope = Space.SHARED, rope_dims(k)
    readers = tuple(side.reader() for side, _ in sides)

    def of_side(side: _Side) -> tuple[Buffer, ...]:
        gather, each = side.of("gather"), leaf_gather.SCALE_WORD // k.exchange + 1
        if pages := leaf_pages.PAGES.get(k.kv):
            # V4.1's modules spell the number of dims by its name, V4's do not.
            dims = LATENT_DIM if k.kv == "v41" else leaf_pages.LATENT_DIM
            each = pages.words(dims, 1, k.exchange)
        doc = "half a tile; read K-major for scores, MN-major for values"
        return (
            side.rows("ckv_s", tokens, LATENT_DIM, doc, stages=k.stages),
            *rope_rows(side.of("kpe_s"), tokens, rope, k.stages),
            side.rows("p_s", hb, tokens, swizzle=64),
            side.peaks(),
            *side.registers(tokens),
            Buffer.own(side.of("words"), gather, each, "uint32", doc="tokens in flight"),
        )  # fmt: skip

    def products(side: _Side, other: _Side) -> tuple[Mma, ...]:
        return (
            side.scores("qk_nope", tokens, LATENT_DIM, "q_s", side.of("ckv_s"), "S = Q K^T"),
            *(side.scores("qk_pe", tokens, rope, "qpe_s", side.of("kpe_s")) for _ in range(bool(rope))),
            side.values("pv", tokens, side.of("p_s"), side.of("ckv_s"), "its own"),
            side.values("pv_other", tokens, other.of("p_s"), other.of("ckv_s"), "the other's"),
        )

    def pipelines(side: _Side) -> tuple[Pipeline, ...]:
        rows = tuple(side.of(text) for text in ("ckv_s", *(("kpe_s",) if rope else ())))
        weights = (side.of("p_s"), side.of("peak_s"))
        doc = "its halves of live tiles of the split"
        return (
            Pipeline(
                side.of("kv"),
                rows,
                side.of("gather"),
                Engine.THREADS,
                readers,
                k.stages,
                fill_arrive="thread" if k.exchange == 1 else "warp",
                multicast=k.exchange > 1,
                doc=doc,
            ),
            Pipeline(side.of("p"), weights, side.name, Engine.THREADS, readers, fill_arrive="warp"),
        )

    return Schedule(
        roles=(
            *(
                Role(side, 4, 176, f"scores of the {text} half of each tile, and that half of the dims")
                for side, text in zip(SIDES, ("first", "second"), strict=True)
            ),
            *(Role(f"gather_{side}", 4, 80, "selected rows into the rings") for side in SIDES),
        ),
        buffers=(
            *queries(hb, LATENT_DIM, rope),
            Buffer("red_s", shared, (2, hb), "float32", doc="sums of each side"),
            *(buffer for side, _ in sides for buffer in of_side(side)),
        ),
        pipelines=(
            Pipeline("q", ("q_s", "qpe_s") if rope else ("q_s",), "gather_left", Engine.CP_ASYNC, readers),
            *(pipeline for side, _ in sides for pipeline in pipelines(side)),
        ),
        mmas=tuple(product for both in sides for product in products(*both)),
        grid=(dim("ctas") * head_blocks(k),) if k.exchange == 1 else (dim("ctas"), k.exchange),
        axes=("cta",) if k.exchange == 1 else ("cta", "rank"),
        cluster=(1, k.exchange, 1),
        group=(1,) if k.exchange > 1 else (),
        named_barriers={"attend": SIDES},
        constants={"head_block": hb, "half": HALF, "unit": 1},
        resident=dim("splits") - 1,
    )  # fmt: skip


def _paired(k: SimpleNamespace) -> Schedule:
    """Hopper, 64 heads on M, bf16 rows.

    Each of two warpgroups scores one tile of a pair and adds both tiles to its half of O. A CTA takes `share`
    consecutive pairs, of one query or of several. A tile's columns are in two parts. The near part has the
    dims of the tile's own side. The gatherer gets each part back after the part's last product. P overwrites
    the tile's rope dims, which are dead after the scores. Without rope dims P has a buffer of its own.
    """
    hb, tile, sides, shared = k.block, k.tile, _sides(k), Space.SHARED
    rope, weights_s = rope_dims(k), "rope_s" if rope_dims(k) else "p_s"
    readers = tuple(side.reader() for side, _ in sides)

    def of_side(side: _Side) -> tuple[Buffer, ...]:
        near = "this side's dims of a tile; read K-major for scores, MN-major for values"
        return (
            side.rows("near_s", tile, HALF, near),
            side.rows("far_s", tile, HALF, "the other side's"),
            side.rows(weights_s, tile, ROPE_DIM, "then P, heads by tokens")
            if rope
            else side.rows(weights_s, hb, tile, "heads by tokens"),
            side.rows("out_s", hb, 32, "rows of O before they are stored", swizzle=64),
            *side.registers(tile, weights=True),
        )

    def products(side: _Side, other: _Side) -> tuple[Mma, ...]:
        return (
            side.scores("qk_near", tile, HALF, "q_s", side.of("near_s"), "S = Q K^T"),
            side.scores("qk_far", tile, HALF, "q_s", side.of("far_s")),
            *(side.scores("qk_rope", tile, rope, "qpe_s", side.of(weights_s)) for _ in range(bool(rope))),
            side.values("pv", tile, side.of("weights"), side.of("near_s"), "its own", a_space=Space.REGISTER),
            side.values("pv_other", tile, other.of(weights_s), other.of("far_s"), "the other's"),
        )

    def pipelines(side: _Side, other: _Side) -> tuple[Pipeline, ...]:
        near, copies, threads = (side.of("near_s"),), Engine.CP_ASYNC, Engine.THREADS
        # P is in the same pipeline as its peaks, unless P overwrites the rope dims in their slot.
        weights = (side.of(weights_s),)
        far = (side.of("far_s"), *(weights if rope else ()))
        peaks = (*(() if rope else weights), side.of("peak_s"))
        return (
            Pipeline(side.of("near"), near, "gather", copies, (side.reader(),), doc="live pairs"),
            Pipeline(side.of("far"), far, "gather", copies, readers),
            Pipeline(side.of("p"), peaks, side.name, threads, (other.reader(),), fill_arrive="warp"),
        )

    return Schedule(
        roles=(
            *(
                Role(side, 4, 208, f"scores of the {text} tile of each pair, and that half of the dims")
                for side, text in zip(SIDES, ("first", "second"), strict=True)
            ),
            Role("gather", 4, 88, "selected rows, a pair of tiles at a time"),
        ),
        buffers=(
            *queries(hb, LATENT_DIM, rope),
            *(buffer for side, _ in sides for buffer in of_side(side)),
            *(side.peaks() for side, _ in sides),
            Buffer("red_s", shared, (2, hb), "float32", doc="sums of each side"),
        ),
        pipelines=(
            Pipeline("q", ("q_s", "qpe_s") if rope else ("q_s",), "gather", Engine.CP_ASYNC, readers),
            *(pipeline for both in sides for pipeline in pipelines(*both)),
        ),
        mmas=tuple(product for both in sides for product in products(*both)),
        grid=(dim("ctas") * head_blocks(k),),
        axes=("cta",),
        named_barriers={"attend": SIDES, **{side: (side,) for side in SIDES if rope}},
        constants={"head_block": hb, "half": HALF, "unit": 2},
        resident=dim("splits") - 1,
    )  # fmt: skip


@recorded
def _copy_queries(m: Recorder, walk: Units) -> None:
    q = walk.q.producer.acquire(walk.done)
    for target, q_of, columns in zip(q.views(), queries_of(walk), (LATENT_DIM, ROPE_DIM), strict=False):
        leaf_gather.copy_query_rows(m, target, q_of, walk.row, walk.head0, columns, heads_of_call(m))
    q.commit()


def _rows_of(kv: Slot, side: int) -> View:
    """The latent dims of a half tile: keys and values."""
    return getattr(kv, f"ckv_s_{SIDES[side]}")


@recorded
def _gather_side(m: Recorder, walk: Tiles, side: int) -> None:
    """Unpack half of each tile; the first side also copies the queries.

    As the words of a half are written, the next half's words arrive.
    """
    own, shares = SIDES[side], m.k.exchange
    rank: Value = m.block(1) if shares > 1 else 0
    words, ids = m.buffer(f"words_{own}"), (walk.low, walk.high)[side]
    fetch_half, load_half, renew_half = HALF_LEAVES[m.k.kv]
    walk.turn = 0
    walk.now = 0

    def fetch() -> None:
        at_cache(
            walk, lambda cache, place: fetch_half(m, cache, rank, shares, ids, place), ahead=True
        )  # fmt: skip

    def gather() -> None:
        walk.next_live(ids)
        if side == 0:
            _copy_queries(m, walk)
        at_cache(walk, lambda cache, place: load_half(m, words, cache, rank, shares, walk.now, place))
        while walk.live:
            walk.next_live(ids)
            if shares > 1:
                # The fetch needs the ids. A wait for them after the loads of tokens would wait for those
                # loads too.
                fetch()
            kv = m.channel(f"kv_{own}").producer.acquire(walk.it)
            part = _rows_of(kv, side).columns(rank * (LATENT_DIM // shares), LATENT_DIM // shares)
            parts = (part, getattr(kv, f"kpe_s_{own}")) if rope_dims(m.k) else (part,)
            sent = (*parts, *(m.sender(rows, kv) for rows in parts))
            at_cache(
                walk, lambda cache, place: renew_half(m, words, *sent, cache, rank, shares, walk.now, place)
            )
            kv.commit()
            if shares == 1:
                m.comment("By now the ids of the unit after the next one have arrived.")
                fetch()
            walk.it += 1

    each_query(m, walk, gather)


@recorded
def _gather_pairs(m: Recorder, walk: Pairs) -> None:
    """Copy the queries, and pairs of tiles of bf16 rows.

    The first rows of a query are in flight before the previous query ends.
    """
    half = m.c.half

    def copy(side: int, low: Value, high: Value) -> None:
        own = SIDES[side]
        near = m.channel(f"near_{own}").producer.acquire(walk.it)
        leaf_gather.copy_rows(m, near.view(), walk.ckv, side * half, half, low, high, walk.n)
        near.commit()
        far = m.channel(f"far_{own}").producer.acquire(walk.it)
        leaf_gather.copy_rows(
            m, getattr(far, f"far_s_{own}"), walk.ckv, (1 - side) * half, half, low, high, walk.n
        )
        if rope_dims(m.k):
            leaf_gather.copy_rows(m, getattr(far, f"rope_s_{own}"), walk.kpe, 0, ROPE_DIM, low, high, walk.n)
        far.commit()

    def gather() -> None:
        if walk.done == 0:
            _copy_queries(m, walk)
        for turn in range(walk.turns):
            walk.vote()
            left, right = walk.left.cache_rows("_left"), walk.right.cache_rows("_right")
            walk.read_ids(turn + 1)
            if walk.live:
                copy(0, *left)
                copy(1, *right)
                walk.it += 1
            if walk.done > 0 and turn == 0:
                _copy_queries(m, walk)

    each_query(m, walk, gather)


def _of_side(m: Recorder, side: int, *texts: str) -> Iterator[View]:
    """Registers of a side."""
    return (m.buffer(f"{text}_{SIDES[side]}") for text in texts)


@recorded
def _release(m: Recorder, *slots: Reading) -> None:
    for slot in slots:
        slot.release()


@recorded
def _attend_queries(
    m: Recorder, walk: Units, side: int, attend: Callable[[Reading], None], scratch: View | None = None
) -> None:
    """For each query of which this CTA has units: `attend(q)`, then the result from both sides' sums and O.

    The result passes through `scratch`, or through the memory of the query itself if `scratch` is None.
    """
    acc, sums, peak, factor, sinks = _of_side(m, side, "acc", "sums", "peak", "factor", "sinks")

    def at_query() -> None:
        if scratch is not None:
            leaf.load_row_sinks(m, sinks, walk.attn_sink, walk.head0, heads_of_call(m))
            walk.turn = 0
        m.fill(acc, 0.0)
        m.fill(sums, 0.0)
        m.fill(peak, -math.inf)
        walk.next_live()
        q = walk.q.reader.wait(walk.done)
        attend(q)
        if scratch is not None:
            q.release()
        else:
            m.comment("Not earlier: ptxas would spill the sinks if they lived over the whole query.")
            leaf.load_row_sinks(m, sinks, walk.attn_sink, walk.head0, heads_of_call(m))
        leaf_softmax.share_sums(m, sums, walk.red_s, side)
        m.meet("attend")
        leaf_softmax.total_rows(m, sums, peak, factor, walk.red_s, side)
        _end_of_query(m, walk, scratch or q.q_s.columns(side * HALF, HALF), side)
        m.comment("Both sides have now read what the other side left for them.")
        m.meet("attend")
        if scratch is None:
            q.release()

    each_query(m, walk, at_query)
    _merge(m, walk, side)


@recorded
def _attend_half(m: Recorder, walk: Tiles, side: int) -> None:
    """Attend to unpacked tokens: score half of each tile, and add both halves to this side's dims of O."""
    own, other = SIDES[side], SIDES[1 - side]
    scores, acc, sums, peak, factor = _of_side(m, side, "scores", "acc", "sums", "peak", "factor")
    walk.turn = 0

    def add(product: str, weights: View, values: View) -> None:
        m.multiply(product, acc, weights, values.columns(side * HALF, HALF), accumulate=True)

    def join(tile: Value) -> tuple[Reading, Reading]:
        """Add the other side's half of a tile."""
        kv, p = m.channel(f"kv_{other}").reader.wait(tile), m.channel(f"p_{other}").reader.wait(tile)
        leaf_softmax.follow_peak(m, peak, sums, acc, getattr(p, f"peak_s_{other}"))
        add(f"pv_other_{own}", getattr(p, f"p_s_{other}"), _rows_of(kv, 1 - side))
        return p, kv

    def score(q: Reading, first: bool) -> None:
        """Score and add this side's half of a tile.

        The other side's half before it is added while these scores are in flight, or while the softmax works
        on them.
        """
        kv = m.channel(f"kv_{own}").reader.wait(walk.it)
        ckv = _rows_of(kv, side)
        nope = m.multiply(f"qk_nope_{own}", scores, q.q_s, ckv)
        if rope_dims(m.k):
            rope = getattr(kv, f"kpe_s_{own}")
            m.multiply(f"qk_pe_{own}", scores, q.qpe_s, rope, accumulate=True, before=nope)
        joined = () if first else join(walk.it - 1 if side == 0 else walk.it)
        m.await_products(0 if first else 1)
        valid = inline((walk.in_low, walk.in_high)[side])
        leaf_softmax.mask_columns(m, scores, valid, valid, walk.sm_scale)
        leaf_softmax.softmax_rows(m, scores, sums, peak, factor, RESCALE_LOG2)
        p = m.channel(f"p_{own}").producer.acquire(walk.it)
        weights = getattr(p, f"p_s_{own}")
        leaf_softmax.share_peak(m, getattr(p, f"peak_s_{own}"), peak)
        leaf_softmax.store_weights(m, weights, scores)
        p.commit()
        _release(m, *joined)
        leaf_softmax.rescale_rows(m, acc, factor)
        own_p = m.channel(f"p_{own}").reader.wait(walk.it)
        add(f"pv_{own}", weights, ckv)
        walk.next_live()
        _release(m, own_p, kv)
        walk.it += 1

    def attend(q: Reading) -> None:
        if side == 0:
            begin = walk.it
            if walk.live:
                score(q, first=True)
        while walk.live:
            score(q, first=False)
        if side == 0 and walk.it > begin:
            _release(m, *join(walk.it - 1))

    _attend_queries(m, walk, side, attend)


@recorded
def _attend_pair(m: Recorder, walk: Pairs, side: int) -> None:
    """Attend to bf16 rows: score one tile of each pair, and add both tiles to this side's dims of O."""
    own, other = SIDES[side], SIDES[1 - side]
    scores, weights, acc = _of_side(m, side, "scores", "weights", "acc")
    sums, peak, factor = _of_side(m, side, "sums", "peak", "factor")
    ids = (walk.left, walk.right)[side]
    walk.turn = 0

    def join() -> tuple[Reading, Reading]:
        """Add the other side's tile."""
        p, far = m.channel(f"p_{other}").reader.wait(walk.it), m.channel(f"far_{other}").reader.wait(walk.it)
        leaf_softmax.follow_peak(m, peak, sums, acc, getattr(p, f"peak_s_{other}"))
        others = getattr(far, f"rope_s_{other}") if rope_dims(m.k) else getattr(p, f"p_s_{other}")
        m.multiply(f"pv_other_{own}", acc, others, getattr(far, f"far_s_{other}"), accumulate=True)
        return p, far

    def score(q: Reading) -> None:
        """Score and add this side's tile.

        The second side adds the other side's tile while it computes its own weights. The first side adds it
        after its own tile.
        """
        near = m.channel(f"near_{own}").reader.wait(walk.it)
        rows = getattr(near, f"near_s_{own}")
        near_q, far_q = (q.q_s.columns(which * HALF, HALF) for which in (side, 1 - side))
        m.multiply(f"qk_near_{own}", scores, near_q, rows)
        far = m.channel(f"far_{own}").reader.wait(walk.it)
        far_rows = getattr(far, f"far_s_{own}")
        farther = m.multiply(f"qk_far_{own}", scores, far_q, far_rows, accumulate=True)
        if rope_dims(m.k):
            rope = getattr(far, f"rope_s_{own}")
            m.multiply(f"qk_rope_{own}", scores, q.qpe_s, rope, accumulate=True, before=farther)
        joined = join() if side else ()
        m.await_products(side)
        leaf_softmax.mask_columns(m, scores, ids.in_low, ids.in_high, walk.sm_scale)
        leaf_softmax.softmax_rows(m, scores, sums, peak, factor, RESCALE_LOG2)
        fragment.pack_to(m, weights, scores)
        p = m.channel(f"p_{own}").producer.acquire(walk.it)
        leaf_softmax.share_peak(m, getattr(p, f"peak_s_{own}"), peak)
        if rope_dims(m.k):
            m.comment("All warps have now read the tile's rope dims, which P overwrites.")
            m.meet(own)
            fragment.stage_rows(m, rope, 0, m.c.head_block, weights, m.thread)
        else:
            fragment.stage_rows(m, getattr(p, f"p_s_{own}"), 0, m.c.head_block, weights, m.thread)
        p.commit()
        _release(m, *joined)
        leaf_softmax.rescale_rows(m, acc, factor)
        m.multiply(f"pv_{own}", acc, weights, rows, accumulate=True)
        walk.next_live()
        _release(m, near, far)
        if side == 0:
            _release(m, *join())
        walk.it += 1

    def attend(q: Reading) -> None:
        while walk.live:
            score(q)

    _attend_queries(m, walk, side, attend, m.buffer(f"out_s_{own}"))


@recorded
def _end_of_query(m: Recorder, walk: Units, scratch: View, side: int) -> None:
    """Store the result through `scratch`, or write this CTA's part for CTAs with the query's other parts."""
    acc, sums, factor, sinks = _of_side(m, side, "acc", "sums", "factor", "sinks")
    part, parts, counter = parts_of_query(walk, walk.row)
    if parts > 1:
        leaf_softmax.rescale_rows(m, acc, factor)
        leaf.leave_part(
            m, acc, sums, walk.row, walk.head0, side, split=part, o_partial=walk.o_partial,
            lse_partial=walk.lse_partial, splits=walk.splits, padded=padded_heads(m.k),
        )  # fmt: skip
        m.count_in("arrivals", counter, "attend")
    else:
        width = scratch.width or m.schedule.buffer(scratch.buffer).shape[1]
        leaf.store_result_rows(
            m, walk.out, walk.lse, acc, factor, lses=sums, sinks=sinks, row=walk.row, head0=walk.head0,
            scratch=scratch, width=width, lse_scale=walk.lse_scale, empty_lse=walk.empty_lse, side=side,
            heads=heads_of_call(m),
        )  # fmt: skip


@recorded
def _merge(m: Recorder, walk: Units, side: int) -> None:
    """Merge this side's half of this CTA's share of each query of which it has a part."""

    def merge(row: Value, part: Value, parts: Value) -> None:
        leaf.merge_parts(
            m, row, walk.head0, parts, part, parts, 2, 4, side, walk.out, walk.lse, walk.o_partial,
            walk.lse_partial, walk.attn_sink, walk.splits, padded_heads(m.k), walk.lse_scale, walk.empty_lse,
            heads_of_call(m),
        )  # fmt: skip

    merge_parts(walk, "attend", merge)


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return _wide(k) if unpacked(k) else _paired(k)


def bodies(k: SimpleNamespace) -> dict[str, Body]:
    attend = _attend_half if unpacked(k) else _attend_pair
    both = {role: partial(attend, side=side) for side, role in enumerate(SIDES)}
    if not unpacked(k):
        return {START: start, **both, "gather": _gather_pairs}
    apart = {f"gather_{role}": partial(_gather_side, side=side) for side, role in enumerate(SIDES)}
    return {START: start, **both, **apart}
