"""Sparse MLA of 128 heads on Blackwell as a pair of CTAs, with heads on M.

    S[heads, tokens] = Q K^T,   P = online softmax over tokens,   O[heads, 512] += P V

The schedule is that of FlashMLA's kernel for 128 heads. Both CTAs take part in a product (cta_group 2,
M = 128). Each CTA has 64 heads, 64 of a tile's 128 tokens as keys, and half of the latent dims of all 128
tokens as values.

Counted per tile and CTA:

- gather: 139 KB (73.7 of keys, 65.5 of values), which an SM takes in 3002 clocks at 46 bytes a clock, the
  L2's rate on Hopper;
- tensor cores: 2176 clocks (1152 of scores, 1024 of values);
- port of shared memory, at 128 bytes a clock: 2752 clocks (queries 192, keys 576, weights 256, values 512;
  1088 written by copies, 128 by threads);
- exponentials: 512 clocks;
- tensor memory: each lane reads 64 columns.

An operand of both CTAs must have the same address in both. A token's keys are in one CTA only, so its values
are gathered again.

Tensor memory has 512 columns: 256 of O, 64 of S, and 192 of two thirds of the queries. Shared memory, 225 KB,
has 13 panels of keys (104), 5 units of values (80), the other queries (24), P (16), and 1 of the rest.

| ring | filled by | read by | slots, uses a tile | full counts | empty counts |
|---|---|---|---|---|---|
| qt, qs | softmax: tensor, shared memory | mma | 1, one a query | 8, the warps of both | commit |
| k | keys: gather4, 64 of 576 dims | mma | 13, 9 | bytes of both | commit |
| v | values: gather4, 64 tokens by 128 dims | mma | 5, 4 | bytes of both | commit |
| s | mma | softmax | 1, 1 | commit | 8 |
| p | softmax | mma | 1, 1 | 8 | commit; gives back o |
| o | mma | softmax | 1, 1 | commit | - |

Each commit arrives in both CTAs. `qt` and `qs` are given back after the query's last scores.

The first CTA's warp issues all products: the scores of a tile before the values of the previous tile. The
first CTA has the full barriers at which both CTAs arrive, and the empty barriers of the rings that products
fill. The pair takes a share of the tiles of all queries. Uses are numbered on from query to query. The parity
of use `i` is that of `i // slots`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from ....arch import ArchSpec
from ....device.torch import fragment
from ....tile.channel import Channel, Reading
from ....tile.frontend import Int32, Names, named, recorded, rolled
from ....tile.lang import START, Body, Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Size, Space
from ....tile.text import Global, Recorder, Rows, Value, View, dim
from ..leaves import blackwell as leaf_sm100
from ..leaves import pair as leaf
from ..leaves.pair import HALF, OWN_DIMS
from .blackwell import merge_heads, row_map
from .common import LATENT_DIM, RESCALE_LOG2, ROPE_DIM
from .shares import Pairs, each_query, has_next, merge_parts, next_row, place_of_cta, start, write_part

# Keys and queries have panels of 64 of the 576 dims. The queries' first `IN_TENSOR` panels are in tensor
# memory, and the others in shared memory.
PANEL, PANELS = Size(64, "PANEL"), Size(9, "PANELS")
IN_TENSOR = 6
# Values have units of 64 tokens and 128 dims.
VALUE_DIMS = Size(128, "VALUE_DIMS")
VALUE_UNITS = Size(4, "VALUE_UNITS")
KEY_STAGES, VALUE_STAGES = Size(13, "KEY_STAGES"), Size(5, "VALUE_STAGES")


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    shared, tensor = Space.SHARED, Space.TENSOR
    mma, softmax = (Reader("mma", Engine.TCGEN05),), (Reader("softmax", Engine.TMEM, "warp"),)
    panels = tuple(f"q_t_{i}" for i in range(IN_TENSOR))

    def of_pair(name: str, m: int, n: int, k: int, **rest: str | Space) -> Mma:
        return Mma(name, "tcgen05", "mma", m, n, k, "bfloat16", cta_group=2, **rest)  # type: ignore[arg-type]

    return Schedule(
        roles=(
            Role("softmax", 4, doc="queries, online softmax, lazy rescale, epilogue, merge"),
            Role("keys", 1, doc="selected rows of this CTA's side, as keys"),
            Role("values", 1, doc="this CTA's half of the dims of selected rows of both sides, as values"),
            Role("mma", 1, doc="issues the products of both CTAs, in the first one"),
        ),
        buffers=(
            Buffer(
                "q_s", shared, (HALF, (PANELS - IN_TENSOR) * PANEL), "bfloat16", swizzle=128,
                doc="the last 128 latent dims, and the rope dims",
            ),
            Buffer("k_s", shared, (HALF, PANEL), "bfloat16", KEY_STAGES, swizzle=128),
            Buffer("v_s", shared, (HALF, VALUE_DIMS), "bfloat16", VALUE_STAGES, swizzle=128),
            Buffer("p_s", shared, (HALF, 2 * HALF), "bfloat16", swizzle=128),
            Buffer(
                "red_s", shared, (2 * HALF,), "float32", 2,
                doc="maxima, then sums, of either side, by tile parity",
            ),
            Buffer("o_t", tensor, (2 * HALF, OWN_DIMS), "float32"),
            Buffer("s_t", tensor, (2 * HALF, HALF), "float32"),
            *(Buffer(panel, tensor, (2 * HALF, PANEL), "bfloat16") for panel in panels),
            Buffer.own("scores", "softmax", HALF, doc="then columns of O that are rescaled or stored"),
            Buffer.own("weights", "softmax", HALF, "bfloat16", doc="queries, P, then O"),
            *(
                Buffer.own(text, "softmax", PANEL, "bfloat16", doc="queries")
                for text in ("panel_1", "panel_2", "panel_3", "latent")
            ),
            Buffer.own("rope", "softmax", PANEL // 2, "bfloat16", doc="queries"),
            *(Buffer.own(text, "softmax", 1) for text in ("peak", "sums", "factor")),
            Buffer.own("key_rows", "keys", HALF, "int32", 32, "rows of a side, the same in all lanes"),
            Buffer.own("value_rows", "values", HALF, "int32", 32, "rows of a side, the same in all lanes"),
        ),
        pipelines=(
            Pipeline("qt", panels, "softmax", Engine.TMEM, mma, fill_arrive="warp", pair=True),
            Pipeline("qs", ("q_s",), "softmax", Engine.THREADS, mma, fill_arrive="warp", pair=True),
            Pipeline(
                "k", ("k_s",), "keys", Engine.BULK, mma, KEY_STAGES, pair=True,
                doc="a panel of dims in each slot",
            ),
            Pipeline(
                "v", ("v_s",), "values", Engine.BULK, mma, VALUE_STAGES, pair=True, doc="four units per tile"
            ),
            Pipeline("s", ("s_t",), "mma", Engine.TCGEN05, softmax, pair=True),
            Pipeline(
                "p", ("p_s",), "softmax", Engine.THREADS, mma, fill_arrive="warp", pair=True,
                doc="also gives back o",
            ),
            Pipeline(
                "o", ("o_t",), "mma", Engine.TCGEN05, softmax, returned_by="p", accumulates=True, pair=True
            ),
        ),
        mmas=(
            of_pair(
                "qk_t", 2 * HALF, 2 * HALF, PANEL, a_space=tensor, a=panels[0], b="k_s", acc="s_t",
                doc="S += Q K^T, a panel of the dims",
            ),
            of_pair("qk_s", 2 * HALF, 2 * HALF, PANEL, a="q_s", b="k_s", acc="s_t", doc="the last dims"),
            of_pair(
                "pv", 2 * HALF, 2 * VALUE_DIMS, HALF, b_major="mn", a="p_s", b="v_s", acc="o_t",
                doc="O += P V, a side of the tokens, half of the dims",
            ),
        ),
        grid=(dim("ctas"), 2),
        cluster=(1, 2, 1),
        group=(1,),
        axes=("cta", "rank"),
        named_barriers={"softmax": ("softmax",)},
        constants={"head_block": HALF, "unit": 2},
        maps=(row_map("ckv", LATENT_DIM), row_map("kpe", ROPE_DIM)),
        min_ctas_per_sm=1,
        resident=dim("splits") - 1,
    )  # fmt: skip


class OfPair(Names):
    """Names that only a kernel of a pair of CTAs has."""

    k: Channel
    v: Channel
    qt: Channel
    qs: Channel
    factor: View
    key_rows: View
    latent: View
    panel_1: View
    panel_2: View
    panel_3: View
    rope: View
    value_rows: View
    weights: View


class Sides(Pairs, OfPair):
    """A walk over tiles of two sides of 64 tokens.

    Attributes:
        now_low, now_high: in a role that gathers, the current tile's cache rows of this CTA's side.
        left_low, left_high, right_low, right_high: the current tile's cache rows of both sides.
    """

    now_low: Value
    now_high: Value
    left_low: Value
    left_high: Value
    right_low: Value
    right_high: Value

    @property
    def rank(self) -> Value:
        """The number of this CTA's side."""
        return place_of_cta(self.m)[1]

    @recorded
    def enter(self, turn: Value, *, keep_rows: bool = False) -> None:
        """Go to the tile of a turn; `live` then says whether the tile has a valid id.

        The ids of the next tile are read meanwhile.

        Args:
            keep_rows: keep the cache rows of both sides.
        """
        self.vote()
        if keep_rows:
            self.left_low, self.left_high = self.left.cache_rows("_left")
            self.right_low, self.right_high = self.right.cache_rows("_right")
            low: Int32 = named("now_low", self.left_low)
            high: Int32 = named("now_high", self.left_high)
            if self.rank != 0:
                low = self.right_low
                high = self.right_high
            self.now_low, self.now_high = low, high
        self.read_ids(turn + 1)

    def take_queries(self, row: Value, use: Value) -> None:
        panels = (self.weights, self.panel_1, self.panel_2, self.panel_3)
        take_queries(self, row, use, panels, IN_TENSOR)

    @recorded
    def mask(self) -> None:
        """Scale the logits, and mask tokens without a valid id."""
        left, right = self.left, self.right
        leaf.mask_rows(
            self.m, self.scores, left.in_low, left.in_high, right.in_low, right.in_high, self.sm_scale,
        )  # fmt: skip

    def store_weights(self, target: View) -> None:
        """Store the weights of a thread's tokens."""
        leaf.store_row(self.m, target, self.weights)

    def write_output(self, to: Global, sums: View, split: Value | None, some: Value) -> None:
        """Write a thread's part of O, divided by its sum."""
        leaf.write_row(
            self.m, to, sums, self.row, self.head0, split, some=some, held=self.scores, rounded=self.weights,
            factor=self.factor, heads=self.m.k.heads, splits=self.splits,
        )  # fmt: skip


@recorded
def _gather_keys(m: Recorder, walk: Sides) -> None:
    """Gather all dims of the rows of this CTA's side, a panel at a time."""

    def fill(use: Value, rows: Global, first: Value) -> None:
        k = walk.k.producer.acquire(use)
        m.bulk(k.view(), Rows(f"{rows.name}_map", walk.key_rows, first), k)
        k.commit()

    def gather() -> None:
        for turn in range(walk.turns):
            walk.enter(turn, keep_rows=True)
            if walk.live:
                leaf_sm100.spread_ids(m, walk.key_rows, low=walk.now_low, high=walk.now_high)
                for c in rolled(PANELS - 1):
                    fill(walk.it * PANELS + c, walk.ckv, c * PANEL)
                fill(walk.it * PANELS + (PANELS - 1), walk.kpe, 0)
                walk.it += 1

    each_query(m, walk, gather)
    walk.k.producer.drain(walk.it * PANELS)


@recorded
def _gather_values(m: Recorder, walk: Sides) -> None:
    """Gather this CTA's half of the dims of the rows of both sides, in two units per side."""

    def gather() -> None:
        for turn in range(walk.turns):
            walk.enter(turn, keep_rows=True)
            if walk.live:
                for side, ids in enumerate(
                    ((walk.left_low, walk.left_high), (walk.right_low, walk.right_high))
                ):
                    leaf_sm100.spread_ids(m, walk.value_rows, *ids)
                    for c in range(VALUE_UNITS // 2):
                        v = walk.v.producer.acquire(walk.it * VALUE_UNITS + (side * 2 + c))
                        own_dims = walk.rank * OWN_DIMS + c * VALUE_DIMS
                        m.bulk(v.view(), Rows(f"{walk.ckv.name}_map", walk.value_rows, own_dims), v)
                        v.commit()
                walk.it += 1

    each_query(m, walk, gather)
    walk.v.producer.drain(walk.it * VALUE_UNITS)


@recorded
def issue(
    m: Recorder, walk: Any, score: Callable[[View, Reading, View], None], weigh: Callable[..., None]
) -> None:
    """Issue the products: the scores of tile i + 1 before the values of tile i, so softmax never idles.

    Args:
        score: `score(s, q_t, q_s)` issues the scores of the current tile. It takes the accumulator and the
            queries in tensor memory and in shared memory.
        weigh: `weigh(o, p, use, later)` adds the values of a tile. It takes the accumulator, the weights, the
            number of the tile, and whether the tile is not the query's first.
    """

    def attend() -> None:
        q_t = walk.qt.reader.wait(walk.done)
        q_s = walk.qs.reader.wait(walk.done)
        begin: Int32 = walk.it
        for turn in range(walk.turns + 1):
            walk.enter(turn)
            late = walk.it > begin
            before = walk.it - 1
            if walk.live:
                s = walk.s.producer.acquire(walk.it)
                score(s.view(), q_t, q_s.q_s)
                s.commit()
                walk.it += 1
            if turn == walk.turns:
                q_t.release()
                q_s.release()
            if late and (walk.live or turn == walk.turns):
                p = walk.p.reader.wait(before)
                o = walk.o.producer.acquire(before)
                weigh(o.o_t, p.p_s, before, before > begin)
                p.release()
                o.commit()

    each_query(m, walk, attend)


@recorded
def _issue(m: Recorder, walk: Sides) -> None:
    """Issue the products in the first CTA only: a panel of keys, or a unit of a side's values, at a time."""

    def score(s: View, q_t: Reading, q_s: View) -> None:
        for c in range(PANELS):
            k = walk.k.reader.wait(walk.it * PANELS + c)
            if c < IN_TENSOR:
                m.multiply("qk_t", s, getattr(q_t, f"q_t_{c}"), k.view(), accumulate=c > 0)
            else:
                panel = q_s.columns((c - IN_TENSOR) * PANEL, PANEL)
                m.multiply("qk_s", s, panel, k.view(), accumulate=True)
            k.release()

    def weigh(o: View, p: View, use: Value, later: Value) -> None:
        for side in range(2):
            for c in range(VALUE_UNITS // 2):
                v = walk.v.reader.wait(use * VALUE_UNITS + (side * 2 + c))
                dims = o.columns(c * VALUE_DIMS, VALUE_DIMS)
                weights = p.columns(side * HALF, HALF)
                m.multiply("pv", dims, weights, v.view(), accumulate=later if side == 0 else True)
                v.release()

    if walk.rank == 0:
        issue(m, walk, score, weigh)


@recorded
def take_queries(walk: Any, row: Value, use: Value, panels: Sequence[View], in_tensor: int) -> None:
    """Copy a query through registers in two batches. All reads of a batch are in flight together.

    Args:
        walk: has the registers `latent` and `rope` for the dims that shared memory holds.
        use: the number of the query.
        panels: registers of a panel each. They take the first panels, and then the others.
        in_tensor: how many panels tensor memory holds.
    """
    m, q_t = walk.m, walk.qt.producer.acquire(use)
    for begin in (0, len(panels)):
        held = panels[: in_tensor - begin]
        for i, panel in enumerate(held):
            leaf.take_panel(m, panel, walk.q_nope, row, walk.head0, (begin + i) * PANEL)
        if begin:
            leaf.take_last_queries(
                m, walk.latent, walk.rope, walk.q_nope, walk.q_pe, row, walk.head0, in_tensor * PANEL
            )
        for i, panel in enumerate(held):
            fragment.write_tensor(m, getattr(q_t, f"q_t_{begin + i}"), panel, m.thread)
    q_t.commit()
    q_s = walk.qs.producer.acquire(use)
    leaf.leave_queries(m, q_s.view(), walk.latent, walk.rope)
    q_s.commit()


@recorded
def softmax(m: Recorder, walk: Any) -> None:
    """Copy the queries, then turn S into P, tile by tile.

    O stays in tensor memory and is rescaled only when a maximum has risen. The methods of `walk` take the
    queries, mask, store the weights and write the output: they know how the heads are spread over the lanes.
    """

    def attend() -> None:
        if walk.done == 0:
            walk.take_queries(walk.row, 0)
        begin: Int32 = walk.it
        m.fill(walk.sums, 0.0)
        m.fill(walk.peak, -math.inf)
        for turn in range(walk.turns):
            walk.enter(turn)
            if walk.live:
                maxima = walk.red_s.stage(walk.it)
                s = walk.s.reader.wait(walk.it)
                fragment.read_tensor(m, walk.scores, s.view(), m.thread)
                s.release()
                walk.mask()
                leaf.leave_maximum(m, maxima, walk.scores)
                m.meet("softmax")
                leaf.take_maximum(m, walk.peak, walk.sums, walk.factor, maxima, RESCALE_LOG2)
                leaf.weigh_row(m, walk.scores, walk.sums, walk.peak)
                fragment.round_to(m, walk.weights, walk.scores)
                p = walk.p.producer.acquire(walk.it)
                walk.store_weights(p.p_s)
                if walk.it > begin:
                    o = walk.o.reader.wait(walk.it - 1)
                    leaf.rescale_row(m, o.o_t, walk.scores, walk.factor)
                    o.release()
                p.commit()
                walk.it += 1
        _leave_output(walk, begin)

    each_query(m, walk, attend)
    merge_parts(walk, "softmax", partial(merge_heads, walk))


@recorded
def _leave_output(walk: Any, begin: Value) -> None:
    """Fetch the next query, then normalise O and write it with its lse, as the result or as a part of it."""
    m, row, head0 = walk.m, walk.row, walk.head0
    if has_next(walk):
        walk.take_queries(next_row(walk), walk.done + 1)
    totals, last = walk.red_s.stage(walk.it), walk.o.reader.slot(walk.it - 1)
    leaf.leave_sum(m, totals, walk.sums)
    m.meet("softmax")
    if walk.it > begin:
        walk.o.reader.wait(walk.it - 1)

    def write(to: Global, lses: Global, split: Value | None) -> None:
        leaf.finish_row(
            m, totals, lses, row, head0, split, walk.sums, walk.peak, walk.factor, walk.attn_sink, m.k.heads,
            walk.splits, walk.lse_scale, walk.empty_lse,
        )  # fmt: skip
        walk.write_output(to, last.o_t, split, walk.it > begin)

    write_part(walk, write)
    m.comment("All threads must read the sums before the next tile's maxima overwrite them.")
    m.meet("softmax")
    if walk.it > begin:
        last.release()


@recorded
def _softmax(m: Recorder, walk: Sides) -> None:
    """As `softmax`. Then wait for the commits of the other CTA that arrive at this CTA's barriers.

    This CTA must not end earlier.
    """
    softmax(m, walk)
    walk.p.producer.drain(walk.it)
    walk.qt.producer.drain(walk.done)
    walk.qs.producer.drain(walk.done)


def bodies(k: SimpleNamespace) -> dict[str, Body]:
    return {
        START: partial(start, of=Sides),
        "softmax": _softmax,
        "keys": _gather_keys,
        "values": _gather_values,
        "mma": _issue,
    }
