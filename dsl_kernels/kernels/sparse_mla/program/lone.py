"""Sparse MLA of 64 heads on Blackwell, with heads on M in one CTA that goes on from query to query.

    S[heads, tokens] = Q K^T,   P = online softmax over tokens,   O[heads, 512] += P V

Products have 64 rows and use `.ws`, which takes all lanes of tensor memory. The tensor cores read each
gathered unit of 64 tokens by 128 dims twice from the same place: K-major as keys, MN-major as values.

Counted per tile:

- gather: 73,728 bytes, which an SM takes in 1603 clocks at 46 bytes a clock;
- tensor cores: 816 clocks of scores (80 for each of seven panels with A in tensor memory, 128 for each of
  the two others) and 768 clocks of values;
- port of shared memory, at 128 bytes a clock: 2112 clocks (queries 128, keys 576, weights 256 and 64,
  values 512, copies 576).

Tensor memory has 512 columns: 256 of O, 32 of S, and 224 of seven of the nine panels of the queries. Shared
memory, 225 KB, has 12 units (192), which are three tiles in flight, the rope dims of one tile (8), the other
queries (16), P (8), and 1 of the rest.

| ring | filled by | read by | slots, uses | full counts | empty counts |
|---|---|---|---|---|---|
| qt, qs | softmax: tensor, shared memory | mma | 1, one a query | 4 | commit, after the query's last scores |
| front, back | gather4, half the latent dims each | mma | 6, two a tile | bytes | commit, after the values |
| pe | back: gather4 | mma | 1, one a tile | bytes | commit, after the scores |
| s | mma | softmax | 1, one a tile | commit | 4 |
| p | softmax | mma | 1, one a tile | 4 | commit; gives back o |
| o | mma | softmax | 1, one a tile | commit | - (full of p) |

Uses are numbered on from query to query. The parity of use `i` is that of `i // slots`.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from ....arch import ArchSpec
from ....tile.channel import Channel, Reading
from ....tile.frontend import Names, recorded
from ....tile.lang import START, Body, Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Size, Space
from ....tile.text import Global, Recorder, Rows, Value, View, dim
from ..leaves import blackwell as leaf_sm100
from ..leaves import pair as leaf
from ..leaves.pair import HALF
from .blackwell import UNIT, UNITS, row_map
from .common import LATENT_DIM, ROPE_DIM
from .pair import issue, softmax, take_queries
from .shares import TilesInTurn, each_query, start

# Queries and keys have nine panels of 64 dims: eight latent ones and the rope dims. The queries' first
# `IN_TENSOR` panels are in tensor memory, and the other two in shared memory.
PANEL, PANELS = Size(64, "PANEL"), 8
IN_TENSOR = 7
SIDES = ("front", "back")
SIDE_STAGES = Size(6, "SIDE_STAGES")
OWN_COLUMNS = Size(LATENT_DIM // 2, "OWN_COLUMNS")


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    shared, tensor, tokens = Space.SHARED, Space.TENSOR, k.tile
    mma, softmax = (Reader("mma", Engine.TCGEN05),), (Reader("softmax", Engine.TMEM, "warp"),)
    panels = tuple(f"q_t_{i}" for i in range(IN_TENSOR))

    def scores(name: str, keys: str, queries: str, doc: str = "") -> Mma:
        space = tensor if queries in panels else shared
        return Mma(
            name, "tcgen05", "mma", HALF, tokens, PANEL, "bfloat16", a_space=space, ws=True, a=queries,
            b=keys, acc="s_t", doc=doc,
        )  # fmt: skip

    def values(side: str) -> Mma:
        return Mma(
            f"pv_{side}", "tcgen05", "mma", HALF, UNIT, tokens, "bfloat16", ws=True, b_major="mn", a="p_s",
            b=f"{side}_s", acc="o_t", doc="O += P V, a unit of the dims",
        )  # fmt: skip

    return Schedule(
        roles=(
            Role("softmax", 4, doc="queries, online softmax, lazy rescale, epilogue, merge"),
            Role("front", 1, doc="the first half of the latent dims of selected rows"),
            Role("back", 1, doc="the other half, and the rope dims"),
            Role("mma", 1, doc="issues every tcgen05.mma and commit"),
        ),
        buffers=(
            Buffer(
                "q_s", shared, (HALF, 2 * PANEL), "bfloat16", swizzle=128,
                doc="the last 64 latent dims, and the rope dims",
            ),
            *(
                Buffer(
                    f"{side}_s", shared, (tokens, UNIT), "bfloat16", SIDE_STAGES, swizzle=128,
                    doc="read K-major for scores, MN-major for values",
                )
                for side in SIDES
            ),
            Buffer("pe_s", shared, (tokens, ROPE_DIM), "bfloat16", swizzle=128),
            Buffer("p_s", shared, (HALF, tokens), "bfloat16", swizzle=128),
            Buffer(
                "red_s", shared, (2 * HALF,), "float32", 2,
                doc="maxima, then sums, of either half of the tokens, by tile parity",
            ),
            Buffer("o_t", tensor, (2 * HALF, OWN_COLUMNS), "float32"),
            Buffer("s_t", tensor, (2 * HALF, tokens // 2), "float32"),
            *(Buffer(panel, tensor, (2 * HALF, PANEL), "bfloat16", doc="each row twice") for panel in panels),
            Buffer.own("scores", "softmax", tokens // 2, doc="then columns of O that are rescaled or stored"),
            Buffer.own("weights", "softmax", tokens // 2, "bfloat16", doc="P, then O"),
            *(Buffer.own(f"panel_{i}", "softmax", PANEL, "bfloat16", doc="queries") for i in range(5)),
            *(
                Buffer.own(text, "softmax", PANEL // 2, "bfloat16", doc="queries")
                for text in ("latent", "rope")
            ),
            *(Buffer.own(text, "softmax", 1) for text in ("peak", "sums", "factor")),
            *(
                Buffer.own(
                    f"rows_{side}", side, tokens, "int32", 32,
                    "ids of the rows to copy, the same in all lanes",
                )
                for side in SIDES
            ),
        ),
        pipelines=(
            Pipeline("qt", panels, "softmax", Engine.TMEM, mma, fill_arrive="warp"),
            Pipeline("qs", ("q_s",), "softmax", Engine.THREADS, mma, fill_arrive="warp"),
            *(
                Pipeline(
                    side, (f"{side}_s",), side, Engine.BULK, mma, SIDE_STAGES,
                    doc="two units per tile; each is read twice",
                )
                for side in SIDES
            ),
            Pipeline("pe", ("pe_s",), "back", Engine.BULK, mma),
            Pipeline("s", ("s_t",), "mma", Engine.TCGEN05, softmax),
            Pipeline(
                "p", ("p_s",), "softmax", Engine.THREADS, mma, fill_arrive="warp", doc="also gives back o"
            ),
            Pipeline("o", ("o_t",), "mma", Engine.TCGEN05, softmax, returned_by="p", accumulates=True),
        ),
        mmas=(
            scores("qk_front", "front_s", panels[0], "S += Q K^T, a panel of the dims"),
            scores("qk_back", "back_s", panels[0]),
            scores("qk_last", "back_s", "q_s", "the last latent dims"),
            scores("qk_pe", "pe_s", "q_s", "the rope dims"),
            *map(values, SIDES),
        ),
        grid=(dim("ctas"),),
        axes=("cta",),
        named_barriers={"softmax": ("softmax",)},
        constants={"head_block": HALF, "unit": 1},
        maps=(row_map("ckv", LATENT_DIM), row_map("kpe", ROPE_DIM)),
        min_ctas_per_sm=1,
        resident=dim("splits") - 1,
    )  # fmt: skip


class OfRows(Names):
    """Names that only a kernel with heads on M in one CTA has."""

    qs: Channel
    qt: Channel
    factor: View
    latent: View
    rope: View
    weights: View


class Heads(TilesInTurn, OfRows):
    """A walk of 64 heads over a share of the tiles of all queries."""

    def take_queries(self, row: Value, use: Value) -> None:
        panels = tuple(self.m.buffer(f"panel_{i}") for i in range(5))
        take_queries(self, row, use, panels, IN_TENSOR)

    def mask(self) -> None:
        """Scale the logits, and mask tokens without a valid id."""
        leaf.mask_half(self.m, self.scores, self.in_low, self.in_high, self.sm_scale)

    def store_weights(self, target: View) -> None:
        """Store the weights of a thread's tokens."""
        leaf.store_half(self.m, target, self.weights)

    def write_output(self, to: Global, sums: View, split: Value | None, some: Value) -> None:
        """Write a thread's part of O, divided by its sum."""
        leaf.write_units(
            self.m, to, sums, self.row, self.head0, split, some=some, held=self.scores, rounded=self.weights,
            factor=self.factor, heads=self.m.k.heads, splits=self.splits,
        )  # fmt: skip


@recorded
def _gather(m: Recorder, walk: Heads, side: int) -> None:
    """Gather half of the latent dims of each tile's rows. The second role also gathers the rope dims."""
    rows = m.buffer(f"rows_{SIDES[side]}")
    ring = m.channel(SIDES[side]).producer

    def gather() -> None:
        for turn in range(walk.turns):
            walk.enter(turn, keep_rows=True)
            if walk.live:
                leaf_sm100.spread_ids(m, rows, low=walk.now_low, high=walk.now_high)
                for c in range(UNITS // 2):
                    unit = ring.acquire(walk.it * (UNITS // 2) + c)
                    m.bulk(unit.view(), Rows("ckv_map", rows, (side * (UNITS // 2) + c) * UNIT), unit)
                    unit.commit()
                if side:
                    pe = walk.pe.producer.acquire(walk.it)
                    m.bulk(pe.view(), Rows("kpe_map", rows, 0), pe)
                    pe.commit()
                walk.it += 1

    each_query(m, walk, gather)


@recorded
def _issue(m: Recorder, walk: Heads) -> None:
    """Issue the products of each tile, panel by panel of the queries and unit by unit of the values."""
    each = UNITS // 2

    def score(s: View, q_t: Reading, q_s: View) -> None:
        for panel in range(PANELS):
            side, c = SIDES[panel // (2 * each)], panel // 2 % each
            ring = m.channel(side).reader
            use = walk.it * each + c
            unit = ring.slot(use) if panel % 2 else ring.wait(use)
            keys = unit.view().columns(panel % 2 * PANEL, PANEL)
            if panel < IN_TENSOR:
                m.multiply(f"qk_{side}", s, getattr(q_t, f"q_t_{panel}"), keys, accumulate=panel > 0)
            else:
                m.multiply("qk_last", s, q_s.columns(0, PANEL), keys, accumulate=True)
        pe = walk.pe.reader.wait(walk.it)
        m.multiply("qk_pe", s, q_s.columns(PANEL, PANEL), pe.pe_s, accumulate=True)
        pe.release()

    def weigh(o: View, p: View, use: Value, later: Value) -> None:
        for number in range(UNITS):
            side = SIDES[number // each]
            unit = m.channel(side).reader.slot(use * each + number % each)
            dims = o.columns(number * leaf.UNIT_COLUMNS, leaf.UNIT_COLUMNS)
            m.multiply(f"pv_{side}", dims, p, unit.view(), accumulate=later)
            unit.release()

    issue(m, walk, score, weigh)


def bodies(k: SimpleNamespace) -> dict[str, Body]:
    gathers: dict[str, Body] = {role: partial(_gather, side=side) for side, role in enumerate(SIDES)}
    return {START: partial(start, of=Heads), "softmax": softmax, **gathers, "mma": _issue}
