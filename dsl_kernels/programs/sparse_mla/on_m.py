"""Sparse MLA on Hopper with 64 heads on M: two warpgroups, each with half of the dims, and CTAs that walk from query to query."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from ...arch import ArchSpec
from ...device.text import sparse_mla as said
from ...device.torch import fragment
from ...tile.lang import START, Body, Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Size, Space
from ...tile.text import Recorder, Slot, Value, View, minimum, name
from .common import LATENT_DIM, RESCALE_LOG2, ROPE_DIM, Walk, queries, until_live

# The two warpgroups that attend where heads lie on M, each with half of the dims of O.
HALF = Size(LATENT_DIM // 2, "HALF")
SIDES = ("left", "right")


@dataclass(frozen=True)
class _Side:
    """One of the two warpgroups that attend where `heads` lie on M; what it has is called after it."""

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
            self.of("peak_s"), Space.SHARED, (self.heads,), "float32", doc="the maxima that P is below"
        )

    def registers(self, tokens: int, *, weights: bool = False) -> Iterator[Buffer]:
        """Tiles as products leave and take them, then what a thread has of its two heads; the sums are its own."""
        tiles = {"scores": tokens, **({"weights": tokens} if weights else {}), "acc": HALF}
        for text, columns in tiles.items():
            dtype = "bfloat16" if text == "weights" else "float32"
            yield Buffer(self.of(text), Space.REGISTER, (self.heads, columns), dtype, role=self.name)
        docs = {"sums": "of its own tokens", "factor": "what earlier weights shrink by"}
        for text in ("sums", "peak", "factor", "sinks"):
            own = text == "sums"
            yield Buffer(
                self.of(text), Space.REGISTER, (128, 2) if own else (self.heads,), "float32", role=self.name, per_thread=2, private=own,
                doc=docs.get(text, ""),
            )  # fmt: skip

    def scores(self, text: str, tokens: int, depth: int, queries: str, keys: str, doc: str = "") -> Mma:
        return Mma(
            self.of(text), "wgmma", self.name, self.heads, tokens, depth, "bfloat16", a=queries, b=keys, acc=self.of("scores"), doc=doc
        )  # fmt: skip

    def values(self, text: str, tokens: int, weights: str, rows: str, whose: str, **kind: Any) -> Mma:
        """Adds some tokens to this side's half of O."""
        return Mma(
            self.of(text), "wgmma", self.name, self.heads, HALF, tokens, "bfloat16", b_major="mn", a=weights, b=rows, acc=self.of("acc"),
            doc=f"O += P K, of {whose} tokens", **kind,
        )  # fmt: skip

    def reader(self) -> Reader:
        return Reader(self.name, Engine.WGMMA, "warp")


def _sides(k: SimpleNamespace) -> tuple[tuple[_Side, _Side], tuple[_Side, _Side]]:
    """Each of the two sides, and the other one."""
    left, right = (_Side(name, k.block) for name in SIDES)
    return (left, right), (right, left)


def _wide(k: SimpleNamespace) -> Schedule:
    """Hopper, 64 heads on M, fp8: two warpgroups take half of a tile's tokens each for S, and half of the dims each for O.

    A CTA takes `share` consecutive tiles of all there are, be they of one query or of several. Tokens are unpacked by a
    warpgroup a half: one alone would take longer than both products. In a cluster, of the CTAs of a query, each unpacks its
    share of every half and sends it to the others.
    """
    hb, tokens, sides = k.block, k.tile // 2, _sides(k)
    shared, registers = Space.SHARED, Space.REGISTER
    readers = tuple(side.reader() for side, _ in sides)

    def of_side(side: _Side) -> tuple[Buffer, ...]:
        gather, each = side.of("gather"), said.SCALE_WORD // k.exchange + 1
        doc = "half a tile; read K-major for scores, MN-major for values"
        return (
            side.rows("ckv_s", tokens, LATENT_DIM, doc, stages=k.stages),
            side.rows("kpe_s", tokens, ROPE_DIM, stages=k.stages),
            side.rows("p_s", hb, tokens, swizzle=64),
            side.peaks(),
            *side.registers(tokens),
            Buffer(side.of("words"), registers, (128, each), "uint32", role=gather, per_thread=each, private=True, doc="tokens on their way"),
        )  # fmt: skip

    def products(side: _Side, other: _Side) -> tuple[Mma, ...]:
        return (
            side.scores("qk_nope", tokens, LATENT_DIM, "q_s", side.of("ckv_s"), "S = Q K^T"),
            side.scores("qk_pe", tokens, ROPE_DIM, "qpe_s", side.of("kpe_s")),
            side.values("pv", tokens, side.of("p_s"), side.of("ckv_s"), "its own"),
            side.values("pv_other", tokens, other.of("p_s"), other.of("ckv_s"), "the other's"),
        )

    def pipelines(side: _Side) -> tuple[Pipeline, ...]:
        rows, weights = (side.of("ckv_s"), side.of("kpe_s")), (side.of("p_s"), side.of("peak_s"))
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
            *(Role(side, 4, 176, f"scores of the {text} half of each tile, and that half of the dims") for side, text in zip(SIDES, ("first", "second"), strict=True)),
            *(Role(f"gather_{side}", 4, 80, "selected rows into the rings") for side in SIDES),
        ),
        buffers=(
            *queries(hb, LATENT_DIM, ROPE_DIM),
            Buffer("red_s", shared, (2, hb), "float32", doc="sums of each side"),
            *(buffer for side, _ in sides for buffer in of_side(side)),
        ),
        pipelines=(
            Pipeline("q", ("q_s", "qpe_s"), "gather_left", Engine.CP_ASYNC, readers),
            *(pipeline for side, _ in sides for pipeline in pipelines(side)),
        ),
        mmas=tuple(product for both in sides for product in products(*both)),
        grid=(f"arrival_slots - t * {k.heads // hb}",) if k.exchange == 1 else (f"arrival_slots // {k.exchange} - t", str(k.exchange)),
        axes=("cta",) if k.exchange == 1 else ("cta", "rank"),
        cluster=(1, k.exchange, 1),
        group=(1,) if k.exchange > 1 else (),
        named_barriers={"attend": SIDES},
        constants={"head_block": hb, "head_blocks": k.heads // hb, "half": HALF, "unit": 1},
        resident="splits - 1",
    )  # fmt: skip


def _paired(k: SimpleNamespace) -> Schedule:
    """Hopper, 64 heads on M, bf16: two warpgroups score every other tile, and each adds both tiles of a pair to its half of O.

    A CTA takes `share` consecutive pairs of all there are, be they of one query or of several. A tile's columns lie in two
    parts, the near one in the dims of its own side: each goes back to the gatherer when its last product is done. P takes
    the place of the tile's rope dims, which are dead once it is scored.
    """
    hb, tile, sides, shared = k.block, k.tile, _sides(k), Space.SHARED
    readers = tuple(side.reader() for side, _ in sides)

    def of_side(side: _Side) -> tuple[Buffer, ...]:
        near = "this side's dims of a tile; read K-major for scores, MN-major for values"
        return (
            side.rows("near_s", tile, HALF, near),
            side.rows("far_s", tile, HALF, "the other side's"),
            side.rows("rope_s", tile, ROPE_DIM, "then P, heads by tokens"),
            side.rows("out_s", hb, 32, "rows of O on their way out", swizzle=64),
            *side.registers(tile, weights=True),
        )

    def products(side: _Side, other: _Side) -> tuple[Mma, ...]:
        return (
            side.scores("qk_near", tile, HALF, "q_s", side.of("near_s"), "S = Q K^T"),
            side.scores("qk_far", tile, HALF, "q_s", side.of("far_s")),
            side.scores("qk_rope", tile, ROPE_DIM, "qpe_s", side.of("rope_s")),
            side.values("pv", tile, side.of("weights"), side.of("near_s"), "its own", a_space=Space.REGISTER),
            side.values("pv_other", tile, other.of("rope_s"), other.of("far_s"), "the other's"),
        )

    def pipelines(side: _Side, other: _Side) -> tuple[Pipeline, ...]:
        near, far, copies = (side.of("near_s"),), (side.of("far_s"), side.of("rope_s")), Engine.CP_ASYNC
        peaks, threads = (side.of("peak_s"),), Engine.THREADS
        return (
            Pipeline(side.of("near"), near, "gather", copies, (side.reader(),), doc="live pairs"),
            Pipeline(side.of("far"), far, "gather", copies, readers),
            Pipeline(side.of("p"), peaks, side.name, threads, (other.reader(),), fill_arrive="warp"),
        )

    return Schedule(
        roles=(
            *(Role(side, 4, 208, f"scores of the {text} tile of each pair, and that half of the dims") for side, text in zip(SIDES, ("first", "second"), strict=True)),
            Role("gather", 4, 88, "selected rows, a pair of tiles at a time"),
        ),
        buffers=(
            *queries(hb, LATENT_DIM, ROPE_DIM),
            *(buffer for side, _ in sides for buffer in of_side(side)),
            *(side.peaks() for side, _ in sides),
            Buffer("red_s", shared, (2, hb), "float32", doc="sums of each side"),
        ),
        pipelines=(
            Pipeline("q", ("q_s", "qpe_s"), "gather", Engine.CP_ASYNC, readers),
            *(pipeline for both in sides for pipeline in pipelines(*both)),
        ),
        mmas=tuple(product for both in sides for product in products(*both)),
        grid=(f"arrival_slots - t * {k.heads // hb}",),
        axes=("cta",),
        named_barriers={"attend": SIDES, **{side: (side,) for side in SIDES}},
        constants={"head_block": hb, "head_blocks": k.heads // hb, "half": HALF, "unit": 2},
        resident="splits - 1",
    )  # fmt: skip


def _start_of_share(m: Recorder) -> None:
    """Heads on M: this CTA's block of heads and, while the kernel before this one ends, its share."""
    if m.c.head_blocks > 1:
        m.let("head0", _which(m)[1] * m.c.head_block)
    if not _found_late(m):
        _find_share(m)
    m.var("done")
    m.var("it")
    sides = [f"_{side}" for side in SIDES] if m.c.unit == 2 else [""]
    for side in sides:
        for text in ("low", "high", "in_low", "in_high"):
            m.var(text + side)
        if side:
            m.var(f"live{side}", False, "bool")
    m.var("live", False, "bool")
    m.barriers_stand()
    m.depend()


def _units(m: Recorder) -> Value:
    """What is dealt out of a query: tiles, or pairs of them."""
    tiles = m.dim("topk") // m.k.tile
    return (tiles + 1) // 2 if m.c.unit == 2 else tiles


def _which(m: Recorder) -> tuple[Value, Value]:
    """Heads on M: which of those with other units a CTA is, and its block of heads, by which the CTAs of a cluster differ."""
    blocks = m.c.head_blocks
    if m.schedule.cluster_ctas > 1:
        return m.block(0), m.block(1)
    return m.block(0) // blocks if blocks > 1 else m.block(0), m.block(0) % blocks


def _found_late(m: Recorder) -> bool:
    """Whether each role finds its share for itself: with fp8, ptxas spills what the start hands on."""
    return m.k.kv == "fp8"


def _find_share(m: Recorder) -> None:
    """Which of all queries' units are this CTA's, from `unit` to `end`.

    A query has `span` of them, of which those past its last are empty. CTAs side by side have the same units, each for its
    own block of heads.
    """
    blocks, t, splits = m.c.head_blocks, m.dim("t"), m.dim("splits")
    m.comment("Behind the counters that are used there is one more for each CTA: so many CTAs there are.")
    m.let("ctas", m.dim("arrival_slots") // blocks - t)
    ctas, units = name("ctas"), _units(m)
    share = m.var("share", (units + splits - 1) // splits)
    span = m.var("span", share * splits)
    m.comment("Not so many parts of each query: whole queries, or units regardless of queries.")
    with m.when(~(ctas == t * splits)):
        m.set(span, units)
        m.set(share, (t * units + ctas - 1) // ctas)
        with m.when(splits == 1):
            m.set(share, (t + ctas - 1) // ctas * units)
    m.var("unit", _which(m)[0] * share)
    m.let("end", name("unit") + share)


def _segments(m: Recorder) -> Iterator[Walk]:
    """The queries of which this CTA has units, with those units; `done` counts them. Behind the last query there is none."""
    if _found_late(m):
        _find_share(m)
    unit, end, span = name("unit"), name("end"), name("span")
    t, head0 = m.dim("t"), name("head0") if m.c.head_blocks > 1 else 0
    for _ in m.repeat(unit < end):
        row = m.let("row", unit // span)
        first: Value = unit - row * span
        if m.c.unit == 2:
            first = m.let("first", first)
            turns = m.let("turns", minimum(end - unit, _units(m) - first))
            walk, some = Walk(row, head0, first, 1, turns), turns > 0
        else:
            turn = name("turn")
            m.set(turn, first)
            turns = m.let("turns", minimum(end - row * span, _units(m)))
            walk, some = Walk(row, head0, 0, 1, turns), turn < turns
        with m.when((row < t) & some):
            if m.c.unit == 2:
                m.let("tiles", minimum(turns * 2, m.dim("topk") // m.k.tile - first * 2))
                _read_pair(m, walk, 0)
            else:
                said.read_ids(m, name("low"), name("high"), row, turn, turns, split=0, splits=1)
            yield walk
            m.set(name("done"), name("done") + 1)
        m.set(unit, row * span + span)


def _read_pair(m: Recorder, walk: Walk, turn: Value) -> None:
    """The ids of a pair of tiles."""
    for number, side in enumerate(SIDES):
        low, high = name(f"low_{side}"), name(f"high_{side}")
        tile = turn * 2 + number
        said.read_ids(m, low, high, walk.row, tile, name("tiles"), split=walk.split * 2, splits=1)


def _vote_pair(m: Recorder) -> None:
    """Which ids of a pair are valid, and `live`, whether one is."""
    for side in SIDES:
        in_low, in_high, low, high = (name(f"{text}_{side}") for text in ("in_low", "in_high", "low", "high"))
        said.vote(m, in_low, in_high, name(f"live_{side}", "bool"), low, high)
    m.set(name("live", "bool"), name("live_left", "bool") | name("live_right", "bool"))


def _copy_queries(m: Recorder, walk: Walk) -> None:
    q = m.acquire("q", name("done"))
    for target, operand, columns in ((q.q_s, "q_nope", LATENT_DIM), (q.qpe_s, "q_pe", ROPE_DIM)):
        said.copy_query_rows(m, target, m.operand(operand), walk.row, walk.head0, columns)
    m.commit(q)


def _rows_of(kv: Slot, side: int) -> tuple[View, View]:
    """The latent and the rope dims of a half tile."""
    return getattr(kv, f"ckv_s_{SIDES[side]}"), getattr(kv, f"kpe_s_{SIDES[side]}")


def _gather_side(m: Recorder, side: int) -> None:
    """Heads on M, fp8: the queries, by the first side, and half of each tile. As its words are written, the next one's take their place."""
    own, shares = SIDES[side], m.k.exchange
    rank: Value = m.block(1) if shares > 1 else 0
    it, words, turn, now = name("it"), m.buffer(f"words_{own}"), m.var("turn"), m.var("now")
    ids = (name("low"), name("high"))[side]

    def walk_on(walk: Walk) -> None:
        """To the next tile with a valid id, and its ids; behind the last one they name no row."""
        m.set(now, ids)
        for _ in until_live(m, walk, turn):
            m.set(now, ids)

    for walk in _segments(m):
        walk_on(walk)
        if side == 0:
            _copy_queries(m, walk)
        said.load_half(m, words, rank=rank, shares=shares, ids=now)
        for _ in m.repeat(name("live", "bool")):
            walk_on(walk)
            if shares > 1:
                # Behind the loads of tokens, to wait for ids would be to wait for those as well.
                said.fetch_half(m, rank=rank, shares=shares, ids=ids)
            kv = m.acquire(f"kv_{own}", it)
            ckv, kpe = _rows_of(kv, side)
            ckv = ckv.columns(rank * (LATENT_DIM // shares), LATENT_DIM // shares)
            peers = (m.sender(rows, kv) for rows in (ckv, kpe))
            said.renew_half(m, words, ckv, kpe, *peers, rank=rank, shares=shares, ids=now)
            m.commit(kv)
            if shares == 1:
                m.comment("By now the ids behind the next ones are here.")
                said.fetch_half(m, rank=rank, shares=shares, ids=ids)
            m.set(it, it + 1)


def _gather_pairs(m: Recorder) -> None:
    """Heads on M, bf16: the queries, and pairs of tiles. The first rows of a query are on their way before the last one is done."""
    it, done, half = name("it"), name("done"), m.c.half
    ckv, kpe = m.operand("ckv", "ckv_stride"), m.operand("kpe", "kpe_stride")

    def copy(side: int) -> None:
        text = SIDES[side]
        ids = (name(f"now_low_{text}"), name(f"now_high_{text}"))
        near = m.acquire(f"near_{text}", it)
        said.copy_rows(m, near.view(), ckv, side * half, half, *ids)
        m.commit(near)
        far = m.acquire(f"far_{text}", it)
        said.copy_rows(m, getattr(far, f"far_s_{text}"), ckv, (1 - side) * half, half, *ids)
        said.copy_rows(m, getattr(far, f"rope_s_{text}"), kpe, 0, ROPE_DIM, *ids)
        m.commit(far)

    for walk in _segments(m):
        with m.when(done == 0):
            _copy_queries(m, walk)
        for turn in m.loop("turn", walk.turns):
            _vote_pair(m)
            for side in SIDES:
                for text in ("low", "high"):
                    m.let(f"now_{text}_{side}", name(f"{text}_{side}"))
            _read_pair(m, walk, turn + 1)
            with m.when(name("live", "bool")):
                copy(0)
                copy(1)
                m.set(it, it + 1)
            with m.when((done > 0) & (turn == 0)):
                _copy_queries(m, walk)


def _of_side(m: Recorder, side: int, *texts: str) -> Iterator[View]:
    """Registers of a side."""
    return (m.buffer(f"{text}_{SIDES[side]}") for text in texts)


def _release(m: Recorder, *slots: Slot) -> None:
    for slot in slots:
        m.release(slot)


def _attend_queries(
    m: Recorder, side: int, walk_on: Callable[[Walk], None], scratch: View | None = None
) -> Iterator[tuple[Walk, Slot]]:
    """Heads on M: the queries of which this CTA has units. What is yielded attends; then both sides' sums and O become the result.

    That passes through `scratch`, or where there is none through the queries.
    """
    acc, sums, peak, factor, sinks = _of_side(m, side, "acc", "sums", "peak", "factor", "sinks")
    red = m.buffer("red_s")
    for walk in _segments(m):
        if scratch is not None:
            said.load_row_sinks(m, sinks, walk.head0)
            m.set(name("turn"), 0)
        m.fill(acc, 0.0)
        m.fill(sums, 0.0)
        m.fill(peak, -math.inf)
        walk_on(walk)
        q = m.wait("q", name("done"))
        yield walk, q
        if scratch is not None:
            m.release(q)
        else:
            m.comment("Not before: over the whole query they would be spilled.")
            said.load_row_sinks(m, sinks, walk.head0)
        said.share_sums(m, sums, red, side)
        m.meet("attend")
        said.total_rows(m, sums, peak, factor, red, side)
        _end_of_segment(m, walk, scratch or q.q_s.columns(side * HALF, HALF), side)
        m.comment("What the sides have left for one another is read.")
        m.meet("attend")
        if scratch is None:
            m.release(q)
    _merge(m, side)


def _attend_half(m: Recorder, side: int) -> None:
    """Heads on M, fp8: half of each tile is scored here and half by the other warpgroup, and each adds both to its half of the dims."""
    it, own, other = name("it"), SIDES[side], SIDES[1 - side]
    scores, acc, sums, peak, factor = _of_side(m, side, "scores", "acc", "sums", "peak", "factor")
    live, turn = name("live", "bool"), m.var("turn")

    def walk_on(walk: Walk) -> None:
        for _ in until_live(m, walk, turn):
            pass

    def add(product: str, weights: View, values: View) -> None:
        m.multiply(product, acc, weights, values.columns(side * HALF, HALF), accumulate=True)

    def join(tile: Value) -> tuple[Slot, Slot]:
        """Add the other's half of a tile."""
        kv, p = m.wait(f"kv_{other}", tile), m.wait(f"p_{other}", tile)
        said.follow_peak(m, peak, sums, acc, getattr(p, f"peak_s_{other}"))
        add(f"pv_other_{own}", getattr(p, f"p_s_{other}"), _rows_of(kv, 1 - side)[0])
        return p, kv

    def score(walk: Walk, q: Slot, first: bool) -> None:
        """This side's half. The other's before it is added while the scores are on their way, or the softmax works on them."""
        kv = m.wait(f"kv_{own}", it)
        ckv, kpe = _rows_of(kv, side)
        nope = m.multiply(f"qk_nope_{own}", scores, q.q_s, ckv)
        m.multiply(f"qk_pe_{own}", scores, q.qpe_s, kpe, accumulate=True, before=nope)
        joined = () if first else join(it - 1 if side == 0 else it)
        m.await_products(0 if first else 1)
        valid = name(("in_low", "in_high")[side])
        said.mask_columns(m, scores, valid, valid)
        said.softmax_rows(m, scores, sums, peak, factor, RESCALE_LOG2)
        p = m.acquire(f"p_{own}", it)
        weights = getattr(p, f"p_s_{own}")
        said.share_peak(m, getattr(p, f"peak_s_{own}"), peak)
        said.store_weights(m, weights, scores)
        m.commit(p)
        _release(m, *joined)
        said.rescale_rows(m, acc, factor)
        m.wait(f"p_{own}", it)
        add(f"pv_{own}", weights, ckv)
        walk_on(walk)
        _release(m, p, kv)
        m.set(it, it + 1)

    for walk, q in _attend_queries(m, side, walk_on):
        if side == 0:
            begin = m.let("begin", it)
            with m.when(live):
                score(walk, q, first=True)
        for _ in m.repeat(live):
            score(walk, q, first=False)
        if side == 0:
            with m.when(it > begin):
                _release(m, *join(it - 1))


def _attend_pair(m: Recorder, side: int) -> None:
    """Heads on M, bf16: one tile of each pair is scored here and one by the other warpgroup, and each adds both to its half of the dims."""
    it, own, other = name("it"), SIDES[side], SIDES[1 - side]
    scores, weights, acc, sums, peak, factor = _of_side(
        m, side, "scores", "weights", "acc", "sums", "peak", "factor"
    )
    live, turn = name("live", "bool"), m.var("turn")

    def walk_on(walk: Walk) -> None:
        """To the next pair with a valid id; `live` says whether there is one."""
        m.set(live, False)
        for _ in m.repeat(~live & (turn < walk.turns)):
            _vote_pair(m)
            m.set(turn, turn + 1)
            _read_pair(m, walk, turn)

    def join() -> tuple[Slot, Slot]:
        """Add the other's tile."""
        p, far = m.wait(f"p_{other}", it), m.wait(f"far_{other}", it)
        said.follow_peak(m, peak, sums, acc, getattr(p, f"peak_s_{other}"))
        rows = (getattr(far, f"rope_s_{other}"), getattr(far, f"far_s_{other}"))
        m.multiply(f"pv_other_{own}", acc, *rows, accumulate=True)
        return p, far

    def attend(walk: Walk, q: Slot) -> None:
        """The second side adds the other's tile while it works out its own weights, the first one behind its own tile."""
        near = m.wait(f"near_{own}", it)
        rows = getattr(near, f"near_s_{own}")
        near_q, far_q = (q.q_s.columns(which * HALF, HALF) for which in (side, 1 - side))
        m.multiply(f"qk_near_{own}", scores, near_q, rows)
        far = m.wait(f"far_{own}", it)
        far_rows, rope = getattr(far, f"far_s_{own}"), getattr(far, f"rope_s_{own}")
        farther = m.multiply(f"qk_far_{own}", scores, far_q, far_rows, accumulate=True)
        m.multiply(f"qk_rope_{own}", scores, q.qpe_s, rope, accumulate=True, before=farther)
        joined = join() if side else ()
        m.await_products(side)
        said.mask_columns(m, scores, name(f"in_low_{own}"), name(f"in_high_{own}"))
        said.softmax_rows(m, scores, sums, peak, factor, RESCALE_LOG2)
        fragment.pack_to(m, weights, scores)
        p = m.acquire(f"p_{own}", it)
        said.share_peak(m, getattr(p, f"peak_s_{own}"), peak)
        m.comment("All of the tile's rope dims are read.")
        m.meet(own)
        fragment.stage_rows(m, rope, 0, m.c.head_block, weights, m.thread)
        m.commit(p)
        _release(m, *joined)
        said.rescale_rows(m, acc, factor)
        m.multiply(f"pv_{own}", acc, weights, rows, accumulate=True)
        walk_on(walk)
        _release(m, near, far)
        if side == 0:
            _release(m, *join())
        m.set(it, it + 1)

    for walk, q in _attend_queries(m, side, walk_on, m.buffer(f"out_s_{own}")):
        for _ in m.repeat(live):
            attend(walk, q)


def _parts_of(m: Recorder, row: Value) -> tuple[Value, Value, Value]:
    """Which part of a query this CTA has, how many there are, and the number of its counter."""
    share, span = name("share"), name("span")
    which, block = _which(m)
    from_cta = m.let("from_cta", row * span // share)
    parts = m.let("parts", (row * span + _units(m) - 1) // share - from_cta + 1)
    return which - from_cta, parts, row * m.c.head_blocks + block


def _end_of_segment(m: Recorder, walk: Walk, scratch: View, side: int) -> None:
    """Heads on M: the result, which passes through `scratch`, or a part of it, left for the CTAs that have the others."""
    acc, sums, factor, sinks = _of_side(m, side, "acc", "sums", "factor", "sinks")
    part, parts, counter = _parts_of(m, walk.row)
    with m.when(parts > 1):
        said.rescale_rows(m, acc, factor)
        said.leave_part(m, acc, sums, walk.row, walk.head0, side, split=part)
        m.count_in("arrivals", counter, "attend")
    with m.otherwise():
        width = scratch.width or m.schedule.buffer(scratch.buffer).shape[1]
        said.store_result_rows(m, acc, factor, sums, sinks, walk.row, walk.head0, scratch, width, side)


def _merge(m: Recorder, side: int) -> None:
    """Heads on M: of each query that this CTA has a part of, its share of the result. By now all of its own parts are left."""
    unit, span = name("unit"), name("span")
    head0: Value = name("head0") if m.c.head_blocks > 1 else 0
    with m.when(m.dim("splits") > 1):
        m.set(unit, _which(m)[0] * name("share"))
        for _ in m.repeat(unit < name("end")):
            row = m.let("row", unit // span)
            part, parts, counter = _parts_of(m, row)
            with m.when((row < m.dim("t")) & (unit - row * span < _units(m)) & (parts > 1)):
                m.await_count("arrivals", counter, parts, "attend")
                said.merge_parts(m, row, head0, parts, part, parts, 2, side)
                m.count_out("arrivals", counter, parts, "attend")
            m.set(unit, row * span + span)


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return _paired(k) if k.kv == "bf16" else _wide(k)


def bodies(k: SimpleNamespace) -> dict[str, Body]:
    attend = _attend_pair if k.kv == "bf16" else _attend_half
    both = {role: partial(attend, side=side) for side, role in enumerate(SIDES)}
    if k.kv == "bf16":
        return {START: _start_of_share, **both, "gather": _gather_pairs}
    apart = {f"gather_{role}": partial(_gather_side, side=side) for side, role in enumerate(SIDES)}
    return {START: _start_of_share, **both, **apart}
