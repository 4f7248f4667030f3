"""Sparse MLA on Blackwell over fp8 tokens as they are stored: nothing is dequantised.

    S^T[tokens, 2 heads] = K Q^T for each group of 128 dims,   O^T[group, 2 heads] += V^T P^T

Products of keys and of values are `kind::f8f6f4`. Queries and P are two e4m3 terms each, side by side on N.
The scales of a token are applied to four partial scores and to four sets of P. The rope dims are bf16.

A P far below its maximum has few bits in e4m3, so O lags by no more than `RISE` powers of two: docs/clock.md
has the errors on 13 distributions.

A CTA takes a share of the tiles of all queries, as `blackwell` describes it, and its rings go on likewise:

| ring | filled by | read by | full counts | empty counts |
|---|---|---|---|---|
| q | softmax: threads | mma | 4, a warp each | commit, after the query's last scores |
| kv | producer: cp.async | mma, softmax | 128 | commit, after the values; 4, after the scales |
| s | mma | softmax | commit | 4 |
| p | softmax | mma | 4 | commit; gives back o |
| o | mma | softmax | commit | - (full of p) |
"""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace

from ....arch import ArchSpec
from ....tile.frontend import Boolean, named, recorded, rolled
from ....tile.lang import START, Body, Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Size, Space
from ....tile.text import Global, Recorder, Value, dim
from ..leaves import blackwell as leaf_sm100
from ..leaves import softmax as leaf_softmax
from ..leaves import terms as leaf
from .blackwell import BLACKWELL_MIN_N, merge_heads
from .common import LATENT_DIM, ROPE_DIM, head_block, head_blocks, padded_heads
from .shares import TilesInTurn, each_query, has_next, merge_parts, next_row, write_part
from .shares import start as start_share

E4M3 = "float8_e4m3"
GROUP = Size(leaf.GROUP, "GROUP")
GROUPS = Size(LATENT_DIM // GROUP, "GROUPS")
TILES = Size(4, "TILES")
"""Tiles in shared memory: two whose values are still needed, two on their way."""


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    n = max(head_block(k), BLACKWELL_MIN_N)
    both, small = Size(n * 2, "COLUMNS"), Size(2, "TILE_STAGES")
    shared, tensor = Space.SHARED, Space.TENSOR
    issuer = Reader("mma", Engine.TCGEN05)
    own = {
        "partial": GROUPS * n, "scores": n // 2, "sums": n // 4, "top": n // 4, "peak": n // 4, "held": both,
        "scales": 2 * GROUPS, "units": GROUPS, "lift": GROUPS,
    }  # fmt: skip
    return Schedule(
        roles=(
            Role("softmax", 4, doc="terms of the queries and of P, online softmax, epilogue, merge"),
            Role("producer", 4, doc="selected tokens into the ring"),
            Role("mma", 1, doc="issues every tcgen05.mma and commit"),
        ),
        buffers=(
            Buffer("q_s", shared, (both, LATENT_DIM), E4M3, swizzle=128, doc="first terms, then second ones"),
            Buffer("qpe_s", shared, (n, ROPE_DIM), "bfloat16", swizzle=128),
            Buffer("unit_s", shared, (n, GROUPS), "float32", doc="units of the queries' groups"),
            Buffer(
                "kv_s", shared, (k.tile, LATENT_DIM), E4M3, TILES, swizzle=128,
                doc="read K-major for scores, MN-major for values",
            ),
            Buffer("pe_s", shared, (k.tile, ROPE_DIM), "bfloat16", TILES, swizzle=128),
            Buffer("scale_s", shared, (k.tile, GROUPS), "float32", TILES),
            Buffer("p_s", shared, (k.tile, GROUPS * both), E4M3, small, swizzle=int(both)),
            Buffer(
                "red_s", shared, (n, 4), "float32", 2, doc="maxima, then sums, across warps, by tile parity"
            ),
            Buffer(
                "stat_s", shared, (n + GROUPS,), "float32",
                doc="rescale factors, then 1 / sum; then units' ratios, then units",
            ),
            Buffer("o_t", tensor, (GROUP, GROUPS * both), "float32", doc="of each group, O^T of both terms"),
            Buffer("s_t", tensor, (k.tile, GROUPS * both), "float32", small, doc="partial scores"),
            Buffer("r_t", tensor, (k.tile, n), "float32", small, doc="scores of the rope dims"),
            *(Buffer.own(name, "softmax", each) for name, each in own.items()),
        ),
        pipelines=(
            Pipeline(
                "q", ("q_s", "qpe_s"), "softmax", Engine.THREADS, (issuer,), fill_arrive="warp",
            ),
            Pipeline(
                "kv", ("kv_s", "pe_s", "scale_s"), "producer", Engine.CP_ASYNC,
                (issuer, Reader("softmax", Engine.THREADS, "warp")), TILES,
            ),
            Pipeline(
                "s", ("s_t", "r_t"), "mma", Engine.TCGEN05, (Reader("softmax", Engine.TMEM, "warp"),), small
            ),
            Pipeline(
                "p", ("p_s",), "softmax", Engine.THREADS, (issuer,), small, fill_arrive="warp",
                doc="also gives back o",
            ),
            Pipeline(
                "o", ("o_t",), "mma", Engine.TCGEN05, (Reader("softmax", Engine.TMEM),), returned_by="p",
                accumulates=True,
            ),
        ),
        mmas=(
            Mma(
                "qk", "tcgen05", "mma", k.tile, both, GROUP, E4M3, a="kv_s", b="q_s", acc="s_t",
                doc="S^T = K Q^T, a group of the dims",
            ),
            Mma(
                "qk_pe", "tcgen05", "mma", k.tile, n, ROPE_DIM, "bfloat16", a="pe_s", b="qpe_s", acc="r_t",
                doc="the rope dims",
            ),
            Mma(
                "pv", "tcgen05", "mma", GROUP, both, k.tile, E4M3, a_major="mn", b_major="mn", a="kv_s",
                b="p_s", acc="o_t", doc="O^T += V^T P^T, a group of the dims",
            ),
        ),
        grid=(dim("ctas") * head_blocks(k),),
        axes=("cta",),
        named_barriers={"softmax": ("softmax",)},
        constants={"head_block": head_block(k), "n": n, "both": both, "unit": 1},
        min_ctas_per_sm=1,
        resident=dim("splits") - 1,
    )  # fmt: skip


@recorded
def _gather(m: Recorder, walk: TilesInTurn) -> None:
    """Copy whole tokens into the ring, as they are stored."""

    def gather() -> None:
        for turn in range(walk.turns):
            walk.enter(turn, keep_rows=True)
            if walk.live:
                kv = walk.kv.producer.acquire(walk.it)
                leaf.copy_stored(
                    m, kv.kv_s, kv.pe_s, kv.scale_s, walk.kv_cache, walk.now_low, walk.now_high, walk.n
                )
                kv.commit()
                walk.it += 1

    each_query(m, walk, gather)


@recorded
def _issue(m: Recorder, walk: TilesInTurn) -> None:
    """Issue the products: the scores of tile i + 1 before the values of tile i, so softmax never idles."""
    both = m.c.both

    def attend() -> None:
        q = walk.q.reader.wait(walk.done)
        begin = walk.it
        for turn in range(walk.turns + 1):
            walk.enter(turn)
            late = walk.it > begin
            done = named("before", walk.it - 1)
            if walk.live:
                s = walk.s.producer.acquire(walk.it)
                kv = walk.kv.reader.wait(walk.it)
                for g in rolled(GROUPS):
                    keys, queries = kv.kv_s.columns(g * GROUP, GROUP), q.q_s.columns(g * GROUP, GROUP)
                    m.multiply("qk", s.s_t.columns(g * both, both), keys, queries)
                m.multiply("qk_pe", s.r_t, kv.pe_s, q.qpe_s)
                s.commit()
                walk.it += 1
            if turn == walk.turns:
                q.release()
            if late and (walk.live or turn == walk.turns):
                p = walk.p.reader.wait(done)
                o = walk.o.producer.acquire(done)
                last = walk.kv.reader.slot(done)
                for g in rolled(GROUPS):
                    values, weights = last.kv_s.columns(g * GROUP, GROUP), p.p_s.columns(g * both, both)
                    m.multiply("pv", o.o_t.columns(g * both, both), values, weights, accumulate=done > begin)
                last.release()
                p.release()
                o.commit()

    each_query(m, walk, attend)


@recorded
def _split_queries(walk: TilesInTurn, row: Value, use: Value) -> None:
    """Write the terms of a query's block of heads."""
    m, q = walk.m, walk.q.producer.acquire(use)
    leaf.split_queries(
        m, q.q_s, walk.unit_s, q.qpe_s, walk.q_nope, walk.q_pe, row, walk.head0, m.c.head_block
    )
    q.commit()


@recorded
def _softmax(m: Recorder, walk: TilesInTurn) -> None:
    """Split the queries, then replace S by P, tile by tile. O stays in tensor memory."""

    def attend() -> None:
        if walk.done == 0:
            _split_queries(walk, walk.row, 0)
            m.comment("The units of later queries are written before the epilogue's meetings.")
            m.meet("softmax")
        begin = walk.it
        m.fill(walk.sums, 0.0)
        m.fill(walk.peak, -math.inf)
        m.fill(walk.units, leaf.LEAST)
        grown: Boolean = False
        risen: Boolean = False
        for turn in range(walk.turns):
            walk.enter(turn)
            if walk.live:
                maxima = walk.red_s.stage(walk.it)
                s = walk.s.reader.wait(walk.it)
                leaf_sm100.read_accumulator(m, walk.partial, s.s_t, m.thread)
                leaf_sm100.read_accumulator(m, walk.scores, s.r_t, m.thread)
                s.release()
                kv = walk.kv.reader.wait(walk.it)
                leaf.take_scales(m, walk.scales, walk.units, walk.lift, kv.scale_s)
                kv.release()
                leaf.find_risen(m, risen, walk.lift)
                leaf.join_partial_scores(m, walk.scores, walk.partial, walk.scales, walk.unit_s)
                leaf_softmax.mask_scores(
                    m, walk.scores, low=walk.in_low, high=walk.in_high, sm_scale=walk.sm_scale
                )
                leaf_softmax.leave_maxima(m, maxima, walk.scores)
                m.meet("softmax")
                leaf_sm100.take_maxima(m, grown, walk.top, walk.peak, red=maxima, rise=leaf.RISE)
                grown = grown | risen
                if grown:
                    leaf_sm100.raise_reference(m, walk.peak, walk.top, walk.sums, walk.stat_s)
                    leaf.leave_group_factors(m, walk.stat_s, walk.lift, 1.0)
                    m.meet("softmax")
                    if walk.it > begin:
                        o = walk.o.reader.wait(walk.it - 1)
                        leaf.rescale_terms(m, o.o_t, walk.held, walk.stat_s)
                        o.release()
                p = walk.p.producer.acquire(walk.it)
                leaf_sm100.weigh_tokens(m, walk.scores, walk.sums, walk.peak)
                leaf.store_weights_in_terms(m, p.p_s, walk.scores, walk.scales, walk.units)
                m.comment(
                    "If O was not rescaled, wait for it here: a parity tells only adjacent phases apart."
                )
                if walk.it > begin and not grown:
                    walk.o.reader.wait(walk.it - 1).release()
                p.commit()
                walk.it += 1
        _leave_output(walk, begin)

    each_query(m, walk, attend)
    merge_parts(walk, "softmax", partial(merge_heads, walk))


@recorded
def _leave_output(walk: TilesInTurn, begin: Value) -> None:
    """Normalise O and write it with its lse, as the result or as a split's part.

    The next query's terms are written first.
    """
    m, row = walk.m, walk.row
    if has_next(walk):
        _split_queries(walk, next_row(walk), walk.done + 1)
    totals, last = walk.red_s.stage(walk.it), walk.o.reader.slot(walk.it - 1)
    leaf_softmax.leave_sums(m, totals, walk.sums)
    m.meet("softmax")
    if walk.it > begin:
        walk.o.reader.wait(walk.it - 1)

    def write(to: Global, lses: Global, split: Value | None) -> None:
        leaf_sm100.finish_columns(
            m, totals, lses, row, walk.head0, split, walk.top, walk.peak, walk.stat_s, walk.attn_sink,
            padded_heads(m.k), m.c.head_block, walk.splits, walk.lse_scale, walk.empty_lse, None,
        )  # fmt: skip
        leaf.leave_group_factors(m, walk.stat_s, walk.units, 1 / leaf.LARGEST_WEIGHT)
        m.meet("softmax")
        leaf.write_terms(
            m, to, last.o_t, row, walk.head0, split, walk.it > begin, walk.held, walk.stat_s,
            padded_heads(m.k), m.c.head_block, walk.splits,
        )  # fmt: skip

    write_part(walk, write)
    if walk.it > begin:
        last.release()


def bodies(k: SimpleNamespace) -> dict[str, Body]:
    return {START: start_share, "softmax": _softmax, "producer": _gather, "mma": _issue}
