"""Sparse MLA as a tile program: tokens on M, heads on N, the gathered latent tile read as key and as value.

    S[tokens, heads] = K Q^T,   P = online softmax over tokens,   O[512, heads] += K^T P

A CTA owns one query, one block of at most 64 heads and one split of the id row (tiles split, split + splits, ...).
Tiles without a valid id are skipped by every role on its own reading of the ids. Splits meet in global memory: the
last to arrive merges them, or where CTAs share out the dims of a row each merges a share, so the operation is one
launch. With 64 heads on M (Hopper) the products are the other way round, and a CTA takes consecutive tiles, of one query
or of several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from .. import problems
from ..arch import ArchSpec, GpuSpec
from ..device.text import sparse_mla as said
from ..device.text import sparse_mla_sm100 as said_sm100
from ..device.torch import fragment
from ..device.torch import sparse_mla as leaf
from ..device.torch import sparse_mla_sm100 as leaf_sm100
from ..problems import layouts
from ..problems.layouts import FP8_TOKEN_BYTES
from ..runtime.artifact import TensorMap
from ..runtime.toolkit import RESERVED_SMEM
from ..tile.lang import (
    START,
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
    Size,
    Space,
    TileProgram,
)
from ..tile.text import Expr, Recorder, Rows, Slot, Value, View, minimum, name

LOG2E = math.log2(math.e)
LATENT_DIM, ROPE_DIM = Size(layouts.LATENT_DIM, "LATENT_DIM"), Size(layouts.ROPE_DIM, "ROPE_DIM")
MAX_HEAD_BLOCK = Size(64, "HEAD_BLOCK")

# Cluster sizes of the committed Hopper variants, by cache format and heads.
CLUSTERS: dict[str, dict[int, tuple[int, ...]]] = {
    "bf16": {8: (1, 2, 16), 16: (1, 2, 8, 16), 32: (1, 2, 16), 64: (1, 2, 16), 128: (1, 2, 8)},
    "fp8": {8: (2, 16), 16: (1, 2, 16), 32: (2, 16), 64: (2, 16), 128: (1, 2, 8)},
}
# (block, stages) of the committed Hopper variants whose CTAs share out the dims: two stages let an SM hold two CTAs.
SLICED: dict[str, dict[int, tuple[tuple[int, int], ...]]] = {
    "bf16": {8: ((0, 2), (0, 3)), 16: ((0, 2), (0, 3)), 32: ((16, 2), (16, 3)), 64: ((16, 2), (16, 3)), 128: ((16, 2), (16, 3))},
    "fp8": {8: ((0, 2), (0, 3)), 16: ((0, 2), (0, 3)), 32: ((0, 3), (16, 3)), 64: ((16, 3), (32, 3)), 128: ((16, 3), (32, 3))},
}  # fmt: skip
# Share of the SMs that CTAs in clusters of a size can hold at once on an H200: a cluster lies within one GPC, and at
# one CTA an SM some SMs of each are left over (128 CTAs in clusters of 4, 8 or 16 measured as two waves).
RESIDENT = {1: 1.0, 2: 1.0, 4: 0.9, 8: 0.84, 16: 0.72}
# What a query costs a CTA beside its units, what a second one of which it has a part does where its rows are on their way by
# then, and what merging a part costs at least, in units (docs/performance.md).
SEGMENT_UNITS, NEXT_UNITS, MERGE_UNITS = 3.5, 2.0, 0.5
# Without a cluster one CTA merges a row alone: more splits cost more than they save.
LONE_SPLITS = 8

# tcgen05 with M = 128 takes N in steps of 16: eight heads are padded.
BLACKWELL_MIN_N = Size(16, "PADDED_HEADS")
# The ring on Blackwell holds quarter tiles: 64 tokens x 128 of the 512 latent dims.
UNIT = Size(128, "UNIT")
UNITS = Size(LATENT_DIM // UNIT, "UNITS")
# The running maximum is raised only when it grew by this many powers of two, so most tiles need no rescaling.
RESCALE_LOG2 = Size(8, "RESCALE_LOG2")
SLICES = (1, 2, 4)
# The two warpgroups that attend where heads lie on M, each with half of the dims of O.
HALF = Size(LATENT_DIM // 2, "HALF")
SIDES = ("left", "right")

KNOBS = (
    Knob("heads", "h", ((8, 16, 32, 64, 128),), "query heads"),
    Knob(
        "kv",
        "",
        (("bf16", "fp8"),),
        "cache format: bf16 rows, or 656-byte fp8 tokens dequantised on the way in",
    ),
    Knob("tile", "bt", ((64,),), "tokens a tile"),
    Knob("stages", "st", ((2, 3, 4),), "gathered tiles in flight", archs=("sm_90a",)),
    Knob(
        "cluster",
        "cl",
        ((1, 2, 4, 8, 16),),
        "splits of a row that meet as a cluster and share out the merge",
    ),
    Knob(
        "slices",
        "sl",
        (SLICES,),
        "CTAs of a cluster that share out the dims of the row and add their partial scores",
        archs=("sm_90a",),
        plain=1,
    ),
    Knob(
        "block",
        "hb",
        ((0, 16, 32, 64),),
        "heads of a CTA; 0: all, at most 64; 64: so many, on M instead of N",
        archs=("sm_90a",),
        plain=0,
    ),
    Knob(
        "exchange",
        "ex",
        ((1, 2),),
        "CTAs of a query that unpack a share of its tokens each and send it to the others",
        archs=("sm_90a",),
        plain=1,
    ),
    Knob(
        "gather",
        "",
        (("cp_async", "gather4"),),
        "row gather: 16-byte copies by a warpgroup, or TMA gather4",
        archs=("sm_100a",),
    ),
)


def head_block(heads: int) -> int:
    """Heads of one CTA."""
    return min(heads, MAX_HEAD_BLOCK)


def _row_map(operand: str, columns: int) -> TensorMap:
    """Gathers rows: gather4 takes boxes of one row by one 128-byte panel."""
    return TensorMap(
        f"{operand}_map",
        operand,
        "BFLOAT16",
        global_dims=(str(columns), "n"),
        global_strides=(f"{operand}_stride * 2",),
        box=(64, 1),
        element_strides=(1, 1),
        swizzle="128B",
        l2_promotion="L2_128B",
    )


def _sliced_ctas_per_sm(k: SimpleNamespace) -> int:
    """Two CTAs of small tiles hide each other's exchange."""
    return 2 if k.stages == 2 and (k.block or head_block(k.heads)) <= 16 else 1


def _merged_rows(k: SimpleNamespace) -> int:
    """Rows of 16 dims by 8 heads that a slice of O has: what CTAs send one another, and into how many shares it falls apart."""
    return LATENT_DIM // k.slices * (k.block or head_block(k.heads)) // 128


def _products(tile: int, hb: int, dims: int, rope: int, shared_out: str = "m") -> tuple[Mma, ...]:
    """S^T = K Q^T in two parts, and O^T += K^T P^T; eight heads lie along the rows of P."""
    return (
        Mma("qk_nope", "wgmma", "attend", tile, hb, dims, "bfloat16", a="ckv_s", b="q_s", acc="scores", shared_out=shared_out, doc="S^T = K Q^T"),
        Mma("qk_pe", "wgmma", "attend", tile, hb, rope, "bfloat16", a="kpe_s", b="qpe_s", acc="scores", shared_out=shared_out),
        Mma(
            "pv", "wgmma", "attend", dims, hb, tile, "bfloat16", a_major="mn", b_major="mn" if hb > 8 else "k",
            a="ckv_s", b="p_s", acc="acc", shared_out=shared_out, doc="O^T += K^T P^T",
        ),
    )  # fmt: skip


def _one_group() -> tuple[Role, ...]:
    """A warpgroup that attends and one that gathers."""
    return (
        Role("attend", 4, doc="queries, both products, softmax, merge, output"),
        Role("gather", 4, doc="selected rows into the ring"),
    )


def _two_groups(k: SimpleNamespace) -> tuple[Role, ...]:
    """Two warpgroups that attend. setmaxnreg deals out what the launch took: 384 threads get 168 registers each."""
    attend, gather = (216, 72) if k.kv == "bf16" else (208, 88)
    return (
        Role("attend", 8, attend, "queries, both products, softmax, merge, output"),
        Role("gather", 4, gather, "selected rows into the ring"),
    )


def _half_tiles(k: SimpleNamespace, batch: int) -> tuple[Buffer, ...]:
    """Registers for `batch` halves of a tile of fp8 tokens, where a thread unpacks them."""
    if k.kv == "bf16":
        return ()
    shape, doc = (batch, 32, 288), "tokens on their way"
    return (
        Buffer("words", Space.REGISTER, shape, "uint32", role="gather", per_thread=44 * batch, private=True, doc=doc),
    )  # fmt: skip


def _filled(k: SimpleNamespace) -> Engine:
    """Rows are copied asynchronously as they are, or written by the threads that unpack them."""
    return Engine.CP_ASYNC if k.kv == "bf16" else Engine.THREADS


def _ring(k: SimpleNamespace) -> Pipeline:
    """Tiles of rows."""
    reader = Reader("attend", Engine.WGMMA)
    return Pipeline(
        "kv", ("ckv_s", "kpe_s"), "gather", _filled(k), (reader,), k.stages, doc="live tiles of the split"
    )


def _queries(hb: int, dims: int, rope: int) -> tuple[Buffer, Buffer]:
    """A block of heads of one query."""
    return (
        Buffer("q_s", Space.SHARED, (hb, dims), "bfloat16", swizzle=128),
        Buffer("qpe_s", Space.SHARED, (hb, rope), "bfloat16", swizzle=min(128, 2 * rope)),
    )


def _on_n(
    k: SimpleNamespace, hb: int, dims: int, rope: int, sums: int
) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
    """Heads on N: the tiles in shared memory that products read, and what threads have of the scores, of O and of each head.

    The running sums of a head are so many: one a warp, or one a token.
    """
    shared, weights = Space.SHARED, (k.tile, hb) if hb > 8 else (hb, k.tile)
    tiles = (
        *_queries(hb, dims, rope),
        Buffer(
            "ckv_s",
            shared,
            (k.tile, dims),
            "bfloat16",
            k.stages,
            swizzle=128,
            doc="read K-major for scores, MN-major for values",
        ),
        Buffer("kpe_s", shared, (k.tile, rope), "bfloat16", k.stages, swizzle=min(128, 2 * rope)),
        Buffer("p_s", shared, weights, "bfloat16", swizzle=min(128, 2 * weights[1])),
    )
    of_tiles = (
        ("scores", (k.tile, hb), ""),
        ("acc", (dims, hb), ""),
        ("sums", (sums, hb), "of each warp's tokens" if sums == 4 else ""),
    )
    of_heads = (("risen", (4, hb), ""), ("top", (hb,), ""), ("peak", (hb,), ""))
    return tiles, tuple(
        Buffer(text, Space.REGISTER, shape, "float32", role="attend", per_thread=hb // 4 if shape in ((4, hb), (hb,)) else None, doc=doc)
        for text, shape, doc in (*of_tiles, *of_heads)
    )  # fmt: skip


def _sliced(k: SimpleNamespace) -> Schedule:
    """Hopper, each CTA of a slice group with its part of the dims: no accumulator crosses between them."""
    hb, slices = k.block or head_block(k.heads), k.slices
    dims, rope = Size(LATENT_DIM // slices, "DIMS"), Size(ROPE_DIM // slices, "ROPE")
    shared, registers = Space.SHARED, Space.REGISTER
    tiles, held = _on_n(k, hb, dims, rope, 4)
    # Parts come when the ring is done with; what that leaves is L1, which the loads of fp8 tokens go through.
    fits = _merged_rows(k) * (128 + hb) * 4 <= k.stages * k.tile * int(dims) * 2
    words = Buffer("words", registers, (k.tile, (dims + rope) // 2), "int32", role="gather", per_thread=8 + dims * 9 // 64, doc="tokens on their way")  # fmt: skip
    return Schedule(
        roles=_one_group(),
        buffers=(
            *tiles,
            Buffer("x_s", shared, (slices - 1, hb // 8, 128, 4), "float32", 2, doc="partial scores of the other slices"),
            Buffer("o_s", shared, (_merged_rows(k), 128 + hb), "float32", alias="ckv_s" if fits else None, doc="normalised parts of a share of O, 16 dims by 8 heads a row, and their lses"),
            Buffer("red_s", shared, (4, hb), "float32", doc="maxima, then sums, across warps"),
            *held,
            Buffer("sinks", registers, (128, hb // 8), "float32", role="attend", per_thread=hb // 8, private=True),
            *((words,) if k.kv == "fp8" else ()),
        ),
        pipelines=(
            _ring(k),
            Pipeline("x", ("x_s",), "attend", Engine.PEERS, (Reader("attend", Engine.THREADS),), 2, doc="partial scores"),
            Pipeline(
                "o", ("o_s",), "attend", Engine.GRID, (Reader("attend", Engine.THREADS),), rounds="once", through="arrivals", meets="attend",
                doc="parts of O",
            ),
        ),
        mmas=_products(k.tile, hb, dims, rope),
        grid=(f"t * {k.heads // hb}", str(k.cluster), f"splits // {k.cluster}"),
        axes=("bx", "rank", "part"),
        cluster=(1, k.cluster, 1),
        group=(1,),
        named_barriers={"attend": ("attend",)},
        constants={"head_block": hb, "head_blocks": k.heads // hb, "dims": dims, "rope": rope},
        ctas_per_sm=_sliced_ctas_per_sm(k),
        resident=f"splits // {k.cluster} - 1",
    )  # fmt: skip


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
        gather, doc = side.of("gather"), "half a tile; read K-major for scores, MN-major for values"
        return (
            side.rows("ckv_s", tokens, LATENT_DIM, doc, stages=k.stages),
            side.rows("kpe_s", tokens, ROPE_DIM, stages=k.stages),
            side.rows("p_s", hb, tokens, swizzle=64),
            side.peaks(),
            *side.registers(tokens),
            Buffer(
                side.of("words"), registers, (1, tokens, 288 // k.exchange), "uint32", role=gather, per_thread=44 if k.exchange == 1 else 24,
                private=True, doc="tokens on their way",
            ),
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
            *_queries(hb, LATENT_DIM, ROPE_DIM),
            Buffer("red_s", shared, (2, hb), "float32", doc="sums of each side"),
            Buffer("last_s", shared, (1,), "int32"),
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
            *_queries(hb, LATENT_DIM, ROPE_DIM),
            *(buffer for side, _ in sides for buffer in of_side(side)),
            *(side.peaks() for side, _ in sides),
            Buffer("red_s", shared, (2, hb), "float32", doc="sums of each side"),
            Buffer("last_s", shared, (1,), "int32"),
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
    )  # fmt: skip


def _hopper(k: SimpleNamespace) -> Schedule:
    if k.block == 64:
        return _paired(k) if k.kv == "bf16" else _wide(k)
    if k.slices > 1:
        return _sliced(k)
    hb = head_block(k.heads)
    groups = 1 if hb <= 32 else 2
    batch = 2 if groups == 1 else 1
    tiles, held = _on_n(k, hb, LATENT_DIM, ROPE_DIM, k.tile)
    return Schedule(
        roles=_one_group() if groups == 1 else _two_groups(k),
        buffers=(
            *tiles,
            Buffer("red_s", Space.SHARED, (4, hb), "float32", doc="maxima, then sums, across warps"),
            Buffer("last_s", Space.SHARED, (1,), "int32"),
            *held,
            *_half_tiles(k, batch),
        ),
        pipelines=(_ring(k),),
        mmas=_products(k.tile, hb, LATENT_DIM, ROPE_DIM, "m" if groups == 1 else "n"),
        grid=(f"t * {k.heads // hb}", "splits") if k.cluster == 1 else (f"t * {k.heads // hb}", str(k.cluster), f"splits // {k.cluster}"),
        axes=("bx", "split") if k.cluster == 1 else ("bx", "rank", "part"),
        cluster=(1, k.cluster, 1),
        group=(1,) if k.cluster > 1 else (),
        named_barriers={"attend": ("attend",)},
        constants={
            "head_block": hb, "head_blocks": k.heads // hb, "dims": LATENT_DIM, "rope": ROPE_DIM, "groups": groups,
            "batch": batch,
        },
    )  # fmt: skip


def _blackwell(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    hb = head_block(k.heads)
    n = max(hb, BLACKWELL_MIN_N)
    shared, tensor, registers = Space.SHARED, Space.TENSOR, Space.REGISTER
    small = Size(2 if n <= 32 else 1, "TILE_STAGES")
    unit_bytes = k.tile * UNIT * 2
    others = (
        n * 2 * (LATENT_DIM + ROPE_DIM) + small * (k.tile * ROPE_DIM * 2 + k.tile * n * 2) + 40 * n + 4096
    )
    units = Size(min(11, (arch.smem_per_cta - others) // unit_bytes), "UNIT_STAGES")
    bulk = k.gather == "gather4"
    # A lane that issues copies has all ids of a tile, a thread that copies those of its own tokens.
    rows = k.tile if bulk else 8 if k.kv == "bf16" else 2

    def own(
        text: str, each: int, dtype: str, role: str, doc: str = "", whole: tuple[int, ...] = ()
    ) -> Buffer:
        """Registers that a thread has for itself; of what is `whole` to the interpreter each has a part."""
        return Buffer(
            text, registers, whole or (128, each), dtype, role=role, per_thread=each, private=True, doc=doc
        )

    words = own("words", 88, "uint32", "producer", "tokens on their way", (k.tile, FP8_TOKEN_BYTES // 4))
    fill = Engine.BULK if bulk else Engine.CP_ASYNC if k.kv == "bf16" else Engine.THREADS
    return Schedule(
        roles=(
            Role("softmax", 4, doc="queries, online softmax, lazy rescale, epilogue, merge"),
            Role("producer", 1 if bulk else 4, doc="selected rows into the rings"),
            Role("mma", 1, doc="issues every tcgen05.mma and commit"),
        ),
        buffers=(
            *_queries(n, LATENT_DIM, ROPE_DIM),
            Buffer("kv_s", shared, (k.tile, UNIT), "bfloat16", units, swizzle=128, doc="read K-major for scores, MN-major for values"),
            Buffer("pe_s", shared, (k.tile, ROPE_DIM), "bfloat16", small, swizzle=128),
            Buffer("p_s", shared, (k.tile, n), "bfloat16", small, swizzle=min(128, 2 * n)),
            Buffer("red_s", shared, (n, 4), "float32", 2, doc="maxima, then sums, across warps, by tile parity"),
            Buffer("stat_s", shared, (n,), "float32", doc="rescale factors, then 1 / sum"),
            Buffer("last_s", shared, (1,), "int32"),
            Buffer("o_t", tensor, (UNIT, UNITS * n), "float32", doc="four 128-row accumulators side by side"),
            Buffer("s_t", tensor, (k.tile, n), "float32", 2),
            own("scores", n // 2, "float32", "softmax"),
            own("sums", n // 4, "float32", "softmax", "of its tokens"),
            *(own(text, n // 4, "float32", "softmax") for text in ("top", "peak")),
            own("held", 16, "float32", "softmax", "columns of O^T on their way through"),
            own("rows", rows, "int32", "producer", "ids of the rows to copy", (rows,) if bulk else ()),
            *((words,) if k.kv == "fp8" else ()),
        ),
        pipelines=(
            Pipeline("q", ("q_s", "qpe_s"), "softmax", Engine.THREADS, (Reader("mma", Engine.TCGEN05),), rounds="once"),
            Pipeline("kv", ("kv_s",), "producer", fill, (Reader("mma", Engine.TCGEN05),), units, doc="four units a tile; each is read twice"),
            Pipeline("pe", ("pe_s",), "producer", fill, (Reader("mma", Engine.TCGEN05),), small),
            Pipeline("s", ("s_t",), "mma", Engine.TCGEN05, (Reader("softmax", Engine.TMEM),), 2),
            Pipeline("p", ("p_s",), "softmax", Engine.THREADS, (Reader("mma", Engine.TCGEN05),), small, doc="also returns o"),
            Pipeline("o", ("o_t",), "mma", Engine.TCGEN05, (Reader("softmax", Engine.TMEM),), returned_by="p", accumulates=True),
        ),
        mmas=(
            Mma("qk_nope", "tcgen05", "mma", k.tile, n, UNIT, "bfloat16", a="kv_s", b="q_s", acc="s_t", doc="S^T += K Q^T, a unit of the dims"),
            Mma("qk_pe", "tcgen05", "mma", k.tile, n, ROPE_DIM, "bfloat16", a="pe_s", b="qpe_s", acc="s_t", doc="the rope dims"),
            Mma(
                "pv", "tcgen05", "mma", UNIT, n, k.tile, "bfloat16", a_major="mn", b_major="mn", a="kv_s", b="p_s", acc="o_t",
                doc="O^T += K^T P^T, a unit of the dims",
            ),
        ),
        grid=(f"t * {k.heads // hb}", "splits") if k.cluster == 1 else (f"t * {k.heads // hb}", str(k.cluster), f"splits // {k.cluster}"),
        axes=("bx", "split") if k.cluster == 1 else ("bx", "rank", "part"),
        cluster=(1, k.cluster, 1),
        group=(1,) if k.cluster > 1 else (),
        named_barriers={"softmax": ("softmax",)},
        constants={"head_block": hb, "head_blocks": k.heads // hb, "n": n, "units": UNITS},
        maps=(_row_map("ckv", LATENT_DIM), _row_map("kpe", ROPE_DIM)) if bulk else (),
        min_ctas_per_sm=1,
    )  # fmt: skip


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    if arch.tmem_columns:
        return _blackwell(k, arch)
    schedule = _hopper(k)
    if k.slices == 1:
        return schedule
    # Registers for as many CTAs as shared memory lets in: left to itself, CuTe DSL's compiler saves them for more, and a
    # merge then has few loads in flight.
    resident = arch.smem_per_sm // (schedule.smem_bytes() + RESERVED_SMEM)
    # With a lone CTA's registers, though, it would unpack all of an fp8 tile before it stored any.
    return schedule if k.kv == "fp8" and resident == 1 else replace(schedule, min_ctas_per_sm=resident)


@dataclass(frozen=True)
class _Walk:
    """This CTA's query, heads and tiles: every role walks the tiles that hold a valid id, on its own reading of the ids."""

    row: Value
    head0: Value
    split: Value
    splits: Value
    turns: Value

    @classmethod
    def named(cls, m: Recorder) -> _Walk:
        """As the kernel's start has named them."""
        blocks = m.c.head_blocks
        row = name("row") if blocks > 1 else m.block(0)
        head0: Value = name("head0") if blocks > 1 else 0
        whole = len(m.schedule.axes) == 2
        return cls(
            row, head0, name("split"), m.dim("splits") if whole else name("splits_of_row"), name("turns")
        )


def _units(m: Recorder) -> Value:
    """What is dealt out of a query: tiles, or pairs of them."""
    tiles = m.dim("topk") // m.k.tile
    return (tiles + 1) // 2 if m.c.unit == 2 else tiles


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
    with m.when(ctas.equals(t * splits).equals(False)):
        m.set(span, units)
        m.set(share, (t * units + ctas - 1) // ctas)
        with m.when(splits.equals(1)):
            m.set(share, (t + ctas - 1) // ctas * units)
    m.var("unit", _which(m)[0] * share)
    m.let("end", name("unit") + share)


def _which(m: Recorder) -> tuple[Value, Value]:
    """Heads on M: which of those with other units a CTA is, and its block of heads, by which the CTAs of a cluster differ."""
    blocks = m.c.head_blocks
    if m.schedule.cluster_ctas > 1:
        return m.block(0), m.block(1)
    return m.block(0) // blocks if blocks > 1 else m.block(0), m.block(0) % blocks


def _segments(m: Recorder) -> Iterator[_Walk]:
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
            walk, some = _Walk(row, head0, first, 1, turns), turns > 0
        else:
            turn = name("turn")
            m.set(turn, first)
            turns = m.let("turns", minimum(end - row * span, _units(m)))
            walk, some = _Walk(row, head0, 0, 1, turns), turn < turns
        with m.when((row < t) & some):
            if m.c.unit == 2:
                m.let("tiles", minimum(turns * 2, m.dim("topk") // m.k.tile - first * 2))
                _read_pair(m, walk, 0)
            else:
                said.read_ids(m, name("low"), name("high"), row, turn, turns, split=0, splits=1)
            yield walk
            m.set(name("done"), name("done") + 1)
        m.set(unit, row * span + span)


def _read_pair(m: Recorder, walk: _Walk, turn: Value) -> None:
    """The ids of a pair of tiles."""
    for number, side in enumerate(SIDES):
        low, high = name(f"low_{side}"), name(f"high_{side}")
        tile = turn * 2 + number
        said.read_ids(m, low, high, walk.row, tile, name("tiles"), split=walk.split * 2, splits=1)


def _vote_pair(m: Recorder) -> None:
    """Which ids of a pair are valid, and `live`, whether one is."""
    for side in SIDES:
        in_low, in_high, low, high = (name(f"{text}_{side}") for text in ("in_low", "in_high", "low", "high"))
        leaf.vote(m, in_low, in_high, name(f"live_{side}", "bool"), low, high)
    m.set(name("live", "bool"), name("live_left", "bool") | name("live_right", "bool"))


def _start(m: Recorder) -> None:
    """Where this CTA is and its first ids; on Hopper before that nothing that a kernel before this one has written."""
    blocks, hb, slices = m.c.head_blocks, m.c.head_block, _slices(m)
    if blocks > 1:
        m.let("row", m.block(0) // blocks)
        m.let("head0", m.block(0) % blocks * hb)
    splits: Value = m.dim("splits")
    if len(m.schedule.axes) == 3:
        if slices > 1:
            m.comment("The CTAs of a slice group have consecutive ranks and walk the same tiles.")
            m.let("which", m.block(1) % slices)
        m.let("split", m.block(2) * (m.k.cluster // slices) + m.block(1) // slices)
        splits = m.let("splits_of_row", m.dim("splits") // slices)
    m.let("turns", (m.dim("topk") // m.k.tile - name("split") + splits - 1) // splits)
    m.var("it")
    low, high = m.var("low"), m.var("high")
    for text in ("in_low", "in_high"):
        m.var(text)
    m.var("live", False, "bool")
    m.barriers_stand()
    if slices > 1:
        m.comment("The other CTAs' barriers must stand before anything is sent to them.")
        m.cluster_arrive(relaxed=True)
    if not m.arch.tmem_columns:
        m.depend()
    walk = _Walk.named(m)
    said.read_ids(m, low, high, walk.row, 0, walk.turns, split=walk.split, splits=walk.splits)


def _live_tiles(m: Recorder, walk: _Walk | None = None, *, more: int = 0) -> Iterator[Expr]:
    """Turns of the walk; ids are read one turn ahead, and `in_low`, `in_high`, `live` tell which are valid."""
    walk, low, high = walk or _Walk.named(m), name("low"), name("high")
    for turn in m.loop("turn", walk.turns + more):
        leaf.vote(m, name("in_low"), name("in_high"), name("live", "bool"), low, high)
        if str(m.role).startswith(("gather", "producer")) and not m.schedule.maps:
            m.let("now_low", low)
            m.let("now_high", high)
        said.read_ids(m, low, high, walk.row, turn + 1, walk.turns, split=walk.split, splits=walk.splits)
        yield turn


def _until_live(m: Recorder, walk: _Walk, turn: Expr) -> Iterator[None]:
    """Turns up to the next tile with a valid id: `live` says whether there is one. Ids are read one turn ahead."""
    low, high, live = name("low"), name("high"), name("live", "bool")
    m.set(live, False)
    for _ in m.repeat(live.equals(False) & (turn < walk.turns)):
        leaf.vote(m, name("in_low"), name("in_high"), live, low, high)
        yield
        m.set(turn, turn + 1)
        said.read_ids(m, low, high, walk.row, turn, walk.turns, split=walk.split, splits=walk.splits)


def _slices(m: Recorder) -> int:
    """CTAs that share out the dims of one split."""
    return getattr(m.k, "slices", 1)


def _gather(m: Recorder) -> None:
    slices, it, live = _slices(m), name("it"), name("live", "bool")
    dims, rope = m.c.dims, m.c.rope
    which: Value = name("which") if slices > 1 else 0
    low, high = name("now_low"), name("now_high")
    if m.k.kv == "fp8" and slices == 1:
        _gather_halves(m)
    elif m.k.kv == "bf16":
        for _ in _live_tiles(m):
            with m.when(live):
                kv = m.acquire("kv", it)
                for target, cache, columns in ((kv.ckv_s, "ckv", dims), (kv.kpe_s, "kpe", rope)):
                    leaf.copy_rows(
                        m, target, m.operand(cache, f"{cache}_stride"), which * columns, columns, low, high
                    )
                m.commit(kv)
                m.set(it, it + 1)
    else:
        m.comment("As the words of a tile are written, those of the next one take their place.")
        words, holds = m.buffer("words"), m.var("holds", False, "bool")
        for turn in _live_tiles(m, more=1):
            with m.when(live | turn.equals(name("turns"))):
                with m.when(holds):
                    kv = m.acquire("kv", it)
                    leaf.renew_tokens(m, words, kv.ckv_s, kv.kpe_s, which, dims, low, high)
                    m.commit(kv)
                    m.set(it, it + 1)
                with m.otherwise():
                    leaf.load_tokens(m, words, which, dims, low, high)
                m.set(holds, live)
    if m.k.cluster > 1:
        if slices == 1:
            m.cluster_arrive()
        m.cluster_wait()


def _gather_halves(m: Recorder) -> None:
    """fp8 tokens of whole rows, half a tile at a time: with room for two, the next tile's replaces what was just written."""
    it, live, low, high = name("it"), name("live", "bool"), name("now_low"), name("now_high")
    words, cache, n = m.buffer("words"), m.operand("kv_cache"), m.dim("n")
    if m.c.batch == 1:
        for _ in _live_tiles(m):
            with m.when(live):
                kv = m.acquire("kv", it)
                m.comment("A loop: unrolled, both halves' tokens would be in registers at once.")
                for which in m.loop("half", 2):
                    leaf.load_half(m, words, 0, cache, which, low, high, n, m.thread)
                    leaf.store_half(m, words, 0, kv.ckv_s, kv.kpe_s, which, m.thread)
                m.commit(kv)
                m.set(it, it + 1)
        return
    holds = m.var("holds", False, "bool")
    for turn in _live_tiles(m, more=1):
        with m.when(live | turn.equals(name("turns"))):
            with m.when(holds):
                kv = m.acquire("kv", it)
            for half in range(2):
                with m.when(holds):
                    leaf.store_half(m, words, half, kv.ckv_s, kv.kpe_s, half, m.thread)
                with m.when(live):
                    leaf.load_half(m, words, half, cache, half, low, high, n, m.thread)
            with m.when(holds):
                m.commit(kv)
                m.set(it, it + 1)
            m.set(holds, live)


def _copy_queries(m: Recorder, walk: _Walk) -> None:
    q = m.acquire("q", name("done"))
    for target, operand, columns in ((q.q_s, "q_nope", LATENT_DIM), (q.qpe_s, "q_pe", ROPE_DIM)):
        leaf.copy_query_rows(m, target, m.operand(operand), walk.row, walk.head0, columns)
    m.commit(q)


def _gather_side(m: Recorder, side: int) -> None:
    """Heads on M, fp8: the queries, by the first side, and half of each tile. As its words are written, the next one's take their place."""
    own, shared = SIDES[side], m.k.exchange > 1
    it, words, turn, now = name("it"), m.buffer(f"words_{own}"), m.var("turn"), m.var("now")
    ids = (name("low"), name("high"))[side]

    def walk_on(walk: _Walk) -> None:
        """To the next tile with a valid id, and its ids; behind the last one they name no row."""
        m.set(now, ids)
        for _ in _until_live(m, walk, turn):
            m.set(now, ids)

    for walk in _segments(m):
        walk_on(walk)
        if side == 0:
            _copy_queries(m, walk)
        if shared:
            leaf.load_share(m, words, m.block(1), now)
        else:
            leaf.load_half(m, words, 0, 0, now, now)
        for _ in m.repeat(name("live", "bool")):
            walk_on(walk)
            if shared:
                # Behind the loads of tokens, to wait for ids would be to wait for those as well.
                leaf.fetch_share(m, m.block(1), ids)
            kv = m.acquire(f"kv_{own}", it)
            ckv, kpe = _rows_of(kv, side)
            if shared:
                leaf.renew_share(m, words, ckv, kpe, m.sender(ckv, kv), m.sender(kpe, kv), m.block(1), now)
            else:
                leaf.renew_half(m, words, ckv, kpe, now)
            m.commit(kv)
            if not shared:
                m.comment("By now the ids behind the next ones are here.")
                leaf.fetch_half(m, ids)
            m.set(it, it + 1)


def _gather_pairs(m: Recorder) -> None:
    """Heads on M, bf16: the queries, and pairs of tiles. The first rows of a query are on their way before the last one is done."""
    it, done, half = name("it"), name("done"), m.c.half
    ckv, kpe = m.operand("ckv", "ckv_stride"), m.operand("kpe", "kpe_stride")

    def copy(side: int) -> None:
        text = SIDES[side]
        ids = (name(f"now_low_{text}"), name(f"now_high_{text}"))
        near = m.acquire(f"near_{text}", it)
        leaf.copy_rows(m, near.view(), ckv, side * half, half, *ids)
        m.commit(near)
        far = m.acquire(f"far_{text}", it)
        leaf.copy_rows(m, getattr(far, f"far_s_{text}"), ckv, (1 - side) * half, half, *ids)
        leaf.copy_rows(m, getattr(far, f"rope_s_{text}"), kpe, 0, ROPE_DIM, *ids)
        m.commit(far)

    for walk in _segments(m):
        with m.when(done.equals(0)):
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
            with m.when((done > 0) & turn.equals(0)):
                _copy_queries(m, walk)


def _rows_of(kv: Slot, side: int) -> tuple[View, View]:
    """The latent and the rope dims of a half tile."""
    return getattr(kv, f"ckv_s_{SIDES[side]}"), getattr(kv, f"kpe_s_{SIDES[side]}")


def _attend_tiles(m: Recorder, which: Value = 0) -> Iterator[Slot]:
    """Heads on N: O and its lse. What is yielded in between is each live tile's scores, not yet scaled."""
    c, walk, it = m.c, _Walk.named(m), name("it")
    scores, acc, sums, peak = (m.buffer(text) for text in ("scores", "acc", "sums", "peak"))
    parts = (("q_s", "q_nope", LATENT_DIM, c.dims), ("qpe_s", "q_pe", ROPE_DIM, c.rope))
    for target, q, width, columns in parts:
        place = (walk.row, walk.head0, c.head_block, width, which * columns, columns)
        leaf.load_queries(m, m.buffer(target), m.operand(q), *place)
    m.publish("attend", "q_s", "qpe_s")
    m.fill(acc, 0.0)
    m.fill(sums, 0.0)
    m.fill(peak, -math.inf)
    if m.k.slices > 1:
        m.cluster_wait()
    for _ in _live_tiles(m):
        with m.when(name("live", "bool")):
            kv = m.wait("kv", it)
            nope = m.multiply("qk_nope", scores, kv.ckv_s, m.buffer("q_s"))
            m.multiply("qk_pe", scores, kv.kpe_s, m.buffer("qpe_s"), accumulate=True, before=nope)
            m.await_products()
            yield kv
            leaf.mask_scores(m, scores, name("in_low"), name("in_high"))
            _softmax_of_tile(m, c.head_block)
            m.multiply("pv", acc, kv.ckv_s, m.buffer("p_s"), accumulate=True)
            m.release(kv)
            m.set(it, it + 1)
    _total(m)


def _attend_whole(m: Recorder) -> None:
    """Heads on N, the whole row: splits meet in scratch memory, those of a cluster by its barrier."""
    k, walk, splits = m.k, _Walk.named(m), m.dim("splits")
    hb, threads = m.c.head_block, m.schedule.role("attend").threads
    acc, top = m.buffer("acc"), m.buffer("top")
    for _ in _attend_tiles(m):
        pass

    def merge(rank: Value, count: int) -> None:
        leaf.merge_splits(m, walk.row, walk.head0, hb, rank * count, count, threads)

    last = m.var("last", True, "bool")
    if k.cluster > 1:
        m.comment(
            "The cluster meets once its partials are written; each CTA then merges its share of the row."
        )
        leaf.write_partial(m, acc, top, walk.row, walk.split, walk.head0)
        m.cluster_arrive()
        m.cluster_wait()
        with m.when(splits > k.cluster):
            m.take_ticket(
                last, "last_s", "arrivals", m.block(0) * k.cluster + m.block(1), splits // k.cluster, "attend"
            )
        with m.when(last):
            merge(m.block(1), hb * 128 // k.cluster)
        return
    with m.when(splits.equals(1)):
        leaf.write_outputs(m, acc, top, walk.row, walk.head0)
    with m.otherwise():
        leaf.write_partial(m, acc, top, walk.row, walk.split, walk.head0)
        m.take_ticket(last, "last_s", "arrivals", m.block(0), splits, "attend")
        with m.when(last):
            merge(0, hb * 128)


def _softmax_of_tile(m: Recorder, hb: int) -> None:
    """From masked scores to P in shared memory: the maxima of the columns cross the warps, the sums do not."""
    scores, acc, sums, risen, top, peak, red = (
        m.buffer(text) for text in ("scores", "acc", "sums", "risen", "top", "peak", "red_s")
    )
    leaf.column_maxima(m, risen, scores)
    leaf.share_columns(m, red, risen)
    m.meet("attend")
    leaf.join_maxima(m, top, red)
    leaf.online_softmax(m, scores, sums, acc, peak, top)
    leaf.store_weights(m, m.buffer("p_s"), scores, hb, m.thread)
    m.publish("attend", "p_s")


def _total(m: Recorder) -> None:
    """O normalised, and its lse in `top`."""
    acc, sums, risen, top, peak, red = (
        m.buffer(text) for text in ("acc", "sums", "risen", "top", "peak", "red_s")
    )
    leaf.column_sums(m, risen, sums)
    leaf.share_columns(m, red, risen)
    m.meet("attend")
    leaf.join_sums(m, top, red)
    leaf.normalise(m, acc, top, peak)


def _attend(m: Recorder) -> None:
    """Heads on N: one warpgroup multiplies, keeps the softmax and merges; slices add their partial scores."""
    walk, it, slices = _Walk.named(m), name("it"), m.k.slices
    scores, top = m.buffer("scores"), m.buffer("top")
    which, part, parts = name("which"), walk.split, walk.splits
    said.load_sinks(m, walk.head0)
    for _ in _attend_tiles(m, which):
        x = m.slot("x", it)
        m.commit(x)
        leaf.send_scores(m, scores, m.sender(x.x_s, x), m.block(1), slices)
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
    said.merge_parts(m, m.buffer("o_s"), walk.row, walk.head0, parts, which, **share)


def _of_side(m: Recorder, side: int, *texts: str) -> Iterator[View]:
    """Registers of a side."""
    return (m.buffer(f"{text}_{SIDES[side]}") for text in texts)


def _release(m: Recorder, *slots: Slot) -> None:
    for slot in slots:
        m.release(slot)


def _attend_queries(
    m: Recorder, side: int, walk_on: Callable[[_Walk], None], scratch: View | None = None
) -> Iterator[tuple[_Walk, Slot]]:
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


def _attend_half(m: Recorder, side: int) -> None:
    """Heads on M, fp8: half of each tile is scored here and half by the other warpgroup, and each adds both to its half of the dims."""
    it, own, other = name("it"), SIDES[side], SIDES[1 - side]
    scores, acc, sums, peak, factor = _of_side(m, side, "scores", "acc", "sums", "peak", "factor")
    live, turn = name("live", "bool"), m.var("turn")

    def walk_on(walk: _Walk) -> None:
        for _ in _until_live(m, walk, turn):
            pass

    def add(product: str, weights: View, values: View) -> None:
        m.multiply(product, acc, weights, values.columns(side * HALF, HALF), accumulate=True)

    def join(tile: Value) -> tuple[Slot, Slot]:
        """Add the other's half of a tile."""
        kv, p = m.wait(f"kv_{other}", tile), m.wait(f"p_{other}", tile)
        said.follow_peak(m, peak, sums, acc, getattr(p, f"peak_s_{other}"))
        add(f"pv_other_{own}", getattr(p, f"p_s_{other}"), _rows_of(kv, 1 - side)[0])
        return p, kv

    def score(walk: _Walk, q: Slot, first: bool) -> None:
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
        leaf.store_rows(m, weights, scores)
        m.commit(p)
        _release(m, *joined)
        leaf.rescale_rows(m, acc, factor)
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

    def walk_on(walk: _Walk) -> None:
        """To the next pair with a valid id; `live` says whether there is one."""
        m.set(live, False)
        for _ in m.repeat(live.equals(False) & (turn < walk.turns)):
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

    def attend(walk: _Walk, q: Slot) -> None:
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
        leaf.pack_rows(m, weights, scores)
        p = m.acquire(f"p_{own}", it)
        said.share_peak(m, getattr(p, f"peak_s_{own}"), peak)
        m.comment("All of the tile's rope dims are read.")
        m.meet(own)
        fragment.stage_rows(m, rope, 0, m.c.head_block, weights, m.thread)
        m.commit(p)
        _release(m, *joined)
        leaf.rescale_rows(m, acc, factor)
        m.multiply(f"pv_{own}", acc, weights, rows, accumulate=True)
        walk_on(walk)
        _release(m, near, far)
        if side == 0:
            _release(m, *join())
        m.set(it, it + 1)

    for walk, q in _attend_queries(m, side, walk_on, m.buffer(f"out_s_{own}")):
        for _ in m.repeat(live):
            attend(walk, q)


def _end_of_segment(m: Recorder, walk: _Walk, scratch: View, side: int) -> None:
    """Heads on M: the result, or a part of it, which the last CTA to come merges with the others'. It passes through `scratch`."""
    own, share, span = SIDES[side], name("share"), name("span")
    acc, factor, sums, sinks = (m.buffer(f"{text}_{own}") for text in ("acc", "factor", "sums", "sinks"))
    last, blocks = m.var("last", True, "bool"), m.c.head_blocks
    which, block = _which(m)
    from_cta = m.let("from_cta", walk.row * span // share)
    parts = m.let("parts", (walk.row * span + _units(m) - 1) // share - from_cta + 1)
    with m.when(parts > 1):
        part = which - from_cta
        said.leave_rows(m, acc, factor, sums, walk.row, part, walk.head0, side)
        m.take_ticket(last, "last_s", "arrivals", walk.row * blocks + block, parts, "attend")
    with m.when(last):
        with m.when(parts > 1):
            said.merge_rows(m, acc, factor, sums, walk.row, parts, walk.head0, side)
        width = scratch.width or m.schedule.buffer(scratch.buffer).shape[1]
        leaf.store_result_rows(m, acc, factor, sums, sinks, walk.row, walk.head0, scratch, width, side)


def _gather_units(m: Recorder) -> None:
    """Blackwell, 16-byte copies: a tile is four units of 128 latent dims and one of rope."""
    it, rows = name("it"), m.buffer("rows")
    for _ in _live_tiles(m):
        with m.when(name("live", "bool")):
            said_sm100.spread_ids(m, name("now_low"), name("now_high"), name("in_low"), name("in_high"))
            for c in m.loop("c", UNITS):
                kv = m.acquire("kv", it * UNITS + c)
                leaf_sm100.gather_columns(m, kv.kv_s, m.operand("ckv", "ckv_stride"), c * UNIT, UNIT, rows)
                m.commit(kv)
            pe = m.acquire("pe", it)
            leaf_sm100.gather_columns(m, pe.pe_s, m.operand("kpe", "kpe_stride"), 0, ROPE_DIM, rows)
            m.commit(pe)
            m.set(it, it + 1)
    _end_of_cluster(m)


def _gather_rows(m: Recorder) -> None:
    """Blackwell, gather4: the copy engine takes rows by their number; an id that names none gives zeros."""
    it, rows, walk = name("it"), m.buffer("rows"), _Walk.named(m)

    def read(turn: Value) -> None:
        leaf_sm100.read_rows(m, rows, walk.row, turn, walk.turns, walk.split, splits=walk.splits)

    read(0)
    for turn in _live_tiles(m):
        with m.when(name("live", "bool")):
            for c in m.loop("c", UNITS):
                kv = m.acquire("kv", it * UNITS + c)
                m.bulk(kv.kv_s, Rows("ckv_map", rows, c * UNIT), kv)
                m.commit(kv)
            pe = m.acquire("pe", it)
            m.bulk(pe.pe_s, Rows("kpe_map", rows, 0), pe)
            m.commit(pe)
            m.set(it, it + 1)
        read(turn + 1)
    _end_of_cluster(m)


def _gather_tokens(m: Recorder) -> None:
    """Blackwell, fp8 tokens: a tile waits in registers, and each unit makes room for the next tile's once the unit behind it is written."""
    it, rows, words, cache, thread = (
        name("it"),
        m.buffer("rows"),
        m.buffer("words"),
        m.operand("kv_cache"),
        m.thread,
    )
    for turn in _live_tiles(m, more=1):
        with m.when(name("live", "bool") | turn.equals(name("turns"))):
            said_sm100.spread_ids(m, name("now_low"), name("now_high"), name("in_low"), name("in_high"))
            for c in range(UNITS):
                with m.when(it > 0):
                    kv = m.acquire("kv", (it - 1) * UNITS + c)
                    leaf_sm100.dequantise_unit(m, kv.kv_s, words, c)
                    m.commit(kv)
                if c:
                    leaf_sm100.load_unit(m, words, c - 1, cache, rows, thread)
            leaf_sm100.load_unit(m, words, UNITS - 1, cache, rows, thread)
            with m.when(it > 0):
                pe = m.acquire("pe", it - 1)
                leaf_sm100.store_rope(m, pe.pe_s, words)
                m.commit(pe)
            leaf_sm100.load_rest(m, words, cache, rows, thread)
            m.set(it, it + 1)
    _end_of_cluster(m)


def _end_of_cluster(m: Recorder) -> None:
    """The roles that do not merge come to the cluster's meeting all the same."""
    if m.k.cluster > 1:
        m.cluster_arrive()
        m.cluster_wait()


def _issue(m: Recorder) -> None:
    """The MMA warp: scores of tile i + 1 are issued before the values of tile i, so that softmax never idles."""
    it, live, n = name("it"), name("live", "bool"), m.c.n
    q = m.wait("q", 0)
    for turn in _live_tiles(m, more=1):
        m.let("late", it > 0)
        done = m.let("done", it - 1)
        with m.when(live):
            s = m.acquire("s", it)
            for c in m.loop("c", UNITS):
                kv = m.wait("kv", it * UNITS + c)
                m.multiply("qk_nope", s.view(), kv.kv_s, q.q_s.columns(c * UNIT, UNIT), accumulate=c > 0)
            pe = m.wait("pe", it)
            m.multiply("qk_pe", s.view(), pe.pe_s, q.qpe_s, accumulate=True)
            m.release(pe)
            m.commit(s)
            m.set(it, it + 1)
        m.comment("The values of a tile follow the scores of the next one, so that softmax never idles.")
        with m.when(name("late", "bool") & (live | turn.equals(name("turns")))):
            p = m.wait("p", done)
            o = m.acquire("o", done)
            for c in m.loop("c", UNITS):
                kv = m.slot("kv", done * UNITS + c)
                m.multiply("pv", o.o_t.columns(c * n, n), kv.kv_s, p.p_s, accumulate=done > 0)
                m.release(kv)
            m.release(p)
            m.commit(o)
    _end_of_cluster(m)


def _softmax(m: Recorder) -> None:
    """Blackwell: queries, then tile by tile P in place of S; O stays in tensor memory and is rescaled only when a maximum has grown."""
    k, c, walk, it = m.k, m.c, _Walk.named(m), name("it")
    splits, place = m.dim("splits"), (walk.row, walk.head0)
    scores, sums, peak = (m.buffer(text) for text in ("scores", "sums", "peak"))
    q = m.acquire("q", 0)
    for target, operand, width in ((q.q_s, "q_nope", LATENT_DIM), (q.qpe_s, "q_pe", ROPE_DIM)):
        said_sm100.load_block(m, target, m.operand(operand), *place, c.n, width)
    m.commit(q)
    m.fill(sums, 0.0)
    m.fill(peak, -math.inf)
    grown = m.var("grown", False, "bool")
    for _ in _live_tiles(m):
        with m.when(name("live", "bool")):
            red = m.buffer("red_s", it)
            s = m.wait("s", it)
            leaf_sm100.read_scores(m, scores, s.view())
            m.release(s)
            said_sm100.mask_tokens(m, name("in_low"), name("in_high"))
            said_sm100.leave_maxima(m, red)
            m.meet("softmax")
            said_sm100.take_maxima(m, grown, red, RESCALE_LOG2)
            with m.when(grown):
                said_sm100.raise_reference(m)
                m.meet("softmax")
                with m.when(it > 0):
                    o = m.wait("o", it - 1)
                    said_sm100.rescale_output(m, o.o_t, c.n)
                    m.release(o)
            p = m.acquire("p", it)
            said_sm100.weigh_tokens(m)
            said_sm100.store_tokens(m, p.p_s)
            m.comment(
                "Where O was not rescaled it is waited for here: a parity can only tell one phase from the next."
            )
            with m.when((it > 0) & grown.equals(False)):
                m.release(m.wait("o", it - 1))
            m.commit(p)
            m.set(it, it + 1)
    red = m.buffer("red_s", it)
    said_sm100.leave_sums(m, red)
    m.meet("softmax")
    alone: Value = m.let("alone", splits.equals(1)) if k.cluster == 1 else m.var("alone", False, "bool")
    said_sm100.finish_columns(m, red, *place, alone, split=walk.split)
    m.meet("softmax")
    o = m.slot("o", it - 1)
    with m.when(it > 0):
        m.wait("o", it - 1)
    said_sm100.write_output(m, o.o_t, *place, alone, it > 0, split=walk.split)
    last = m.var("last", k.cluster > 1, "bool")
    if k.cluster > 1:
        m.comment(
            "The cluster meets once its partials are written; each CTA then merges its share of the latent dims."
        )
        _end_of_cluster(m)
    rank: Value = m.block(1) if k.cluster > 1 else 0
    with m.when(splits > k.cluster):
        m.take_ticket(
            last, "last_s", "arrivals", m.block(0) * k.cluster + rank, splits // k.cluster, "softmax"
        )
    with m.when(last):
        columns = LATENT_DIM // k.cluster
        threads = m.schedule.role("softmax").threads
        said_sm100.merge_columns(m, *place, rank * columns, columns, threads=threads)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    if arch.tmem_columns == 0:
        if k.block == 64:
            attend = _attend_pair if k.kv == "bf16" else _attend_half
            both = {role: partial(attend, side=side) for side, role in enumerate(SIDES)}
            if k.kv == "bf16":
                return {START: _start_of_share, **both, "gather": _gather_pairs}
            apart = {f"gather_{role}": partial(_gather_side, side=side) for side, role in enumerate(SIDES)}
            return {START: _start_of_share, **both, **apart}
        return {START: _start, "gather": _gather, "attend": _attend if k.slices > 1 else _attend_whole}
    producer = _gather_rows if k.gather == "gather4" else _gather_units if k.kv == "bf16" else _gather_tokens
    return {START: _start, "softmax": _softmax, "producer": producer, "mma": _issue}


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """Queries once, then rows, products and weights a tile of the split, and what its end writes."""
    hb, slices = schedule.constants["head_block"], getattr(k, "slices", 1)
    turns, unit = -(-(dims["topk"] // k.tile) // (dims["splits"] // slices)), 1
    if "unit" in schedule.constants:
        t, unit = dims["t"], schedule.constants["unit"]
        ctas = dims["arrival_slots"] // schedule.constants["head_blocks"] - t
        of_query = -(-(dims["topk"] // k.tile) // unit)
        turns = -(-t // ctas) * of_query if dims["splits"] == 1 else -(-t * of_query // ctas)
    tiles, shares = turns * unit, slices * getattr(k, "exchange", 1)
    row = FP8_TOKEN_BYTES if k.kv == "fp8" else 2 * (LATENT_DIM + ROPE_DIM)
    # On Blackwell a product takes a quarter of the latent dims.
    units = schedule.constants.get("units", 1)
    flops = sum(mma.flops * (1 if mma.name == "qk_pe" else units) for mma in schedule.mmas)
    weights = k.tile * schedule.constants.get("n", hb) * 2
    return Counts(
        loaded=hb * 2 * (LATENT_DIM + ROPE_DIM) // slices + tiles * k.tile * (row // shares),
        stored=tiles * weights + _written(k, schedule, dims),
        flops={"bfloat16": turns * flops},
        uses=max(1, turns * units),
        group_syncs=int(k.cluster > 1 and slices == 1),
    )


def _written(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> int:
    """Bytes that the end of a CTA writes: partials in float32 with their lse where splits meet, then its share of the row."""
    hb, slices = schedule.constants["head_block"], getattr(k, "slices", 1)
    if slices > 1:
        rows, parts = _merged_rows(k), dims["splits"] // slices
        sent = rows * (128 + hb) * 4 if parts > 1 else 0
        return sent + rows // parts * 128 * 2 + hb * 4
    partial = hb * (LATENT_DIM + 1) * 4 if dims["splits"] > 1 else 0
    return partial + hb * (LATENT_DIM // k.cluster) * 2 + hb * 4


def _useful_hopper(k: SimpleNamespace, level: int) -> bool:
    """Whole rows of two stages, heads on M, or slices, which send to one another asynchronously."""
    if k.slices == 1 and k.block == 0:
        return k.stages == 2 and k.exchange == 1 and (level > 0 or k.cluster in CLUSTERS[k.kv][k.heads])
    if k.block == 64:
        shared = k.kv == "fp8" and k.heads // k.block == k.exchange
        return (k.stages, k.slices, k.cluster) == (2, 1, 1) and k.heads >= 64 and (k.exchange == 1 or shared)
    if k.slices == 1 or k.exchange > 1 or k.cluster != k.slices or k.block >= k.heads:
        return False
    return level > 0 or (k.slices == 2 and (k.block, k.stages) in SLICED[k.kv][k.heads])


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    """fp8 tokens are dequantised by threads, so TMA gather4 serves bf16 only; at level 0 for 16 and 128 heads.

    On Blackwell level 0 has clusters of 8 beside none, at 16 heads.
    """
    if not arch.tmem_columns:
        return _useful_hopper(k, level)
    if k.gather == "gather4" and (k.kv != "bf16" or (level == 0 and k.heads not in (16, 128))):
        return False
    return level > 0 or k.cluster == 1 or (k.cluster == 8 and k.heads == 16)


def _same(name: str, dim: str) -> Guard:
    def refuse(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
        return None if knobs[name] == call[dim] else f"{dim} = {call[dim]}, built for {knobs[name]}"

    return Guard(dim, refuse)


def _whole_tiles(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if knobs.get("block") == 64 and call["topk"] == 0:
        return "topk = 0 leaves no tile to deal out"
    return (
        None
        if call["topk"] % knobs["tile"] == 0
        else f"topk = {call['topk']} is no multiple of the tile of {knobs['tile']}"
    )


def _splits(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    """Splits that the caller fixed: whole clusters, at most one a tile and slice."""
    splits, cluster = call.get("splits"), knobs.get("cluster", 1)
    if splits is None:
        return None
    if splits % cluster:
        return f"splits = {splits} is no multiple of the cluster of {cluster}"
    most = max(cluster, call["topk"] // knobs["tile"] * knobs.get("slices", 1))
    if splits > most:
        return f"splits = {splits} exceeds {most}, one a tile and slice"
    k = SimpleNamespace(**knobs)
    if getattr(k, "slices", 1) > 1 and splits > cluster:
        if _merged_rows(k) % (splits // cluster):
            return f"splits = {splits} in clusters of {cluster} share out no {_merged_rows(k)} rows evenly"
        ctas, slots = _blocks(k, call) * splits, call["sms"] * _sliced_ctas_per_sm(k)
        if ctas > slots:
            return f"splits = {splits} of {call['t']} queries are {ctas} CTAs that wait for one another, where {slots} run at once"
    return None


def _blocks(k: SimpleNamespace, dims: Mapping[str, int]) -> int:
    """Pairs of a query and a block of heads."""
    return dims["t"] * (k.heads // (getattr(k, "block", 0) or head_block(k.heads)))


def launch(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> dict[str, int]:
    """Enough splits of the id row to give every SM a CTA: whole clusters, at most one split a tile."""
    cluster, slices = getattr(k, "cluster", 1), getattr(k, "slices", 1)
    blocks = max(1, _blocks(k, dims))
    tiles = max(1, dims["topk"] // k.tile) * slices
    if getattr(k, "block", 0) == 64:
        pairs = k.kv == "bf16"
        units = -(-tiles // 2) if pairs else tiles
        return _shares(max(1, dims["t"]), k.heads // k.block, units, dims.get("splits"), gpu, walk=pairs)
    slots = gpu.sms * (_sliced_ctas_per_sm(k) if slices > 1 else 1)
    if slices > 1:
        # Parts of a query meet at once: all CTAs must run at once, or each query has one.
        parts = max(1, min(tiles // slices, slots // (blocks * slices), _merged_rows(k)))
        splits = dims.get("splits") or slices << (parts.bit_length() - 1)
        words = _merged_rows(k) * (128 + (k.block or head_block(k.heads)))
        return {"splits": splits, "arrival_slots": blocks * splits * words if splits > slices else 1}
    clusters = max(1, min(tiles // cluster, slots // (blocks * cluster)))
    if not gpu.arch.tmem_columns:
        clusters = max(1, min(clusters, int(slots * RESIDENT[cluster]) // (blocks * cluster)))
        clusters = min(clusters, LONE_SPLITS) if cluster == 1 else clusters
        # Halving keeps the splits equal where the number of tiles is a power of two.
        clusters = 1 << (clusters.bit_length() - 1)
    return {"splits": cluster * clusters, "arrival_slots": blocks * cluster}


def _shares(
    t: int, blocks: int, units: int, splits: int | None, gpu: GpuSpec, *, walk: bool
) -> dict[str, int]:
    """How many CTAs there are: for equal parts of each query, or one for each SM, whose units go on into the next query.

    Those that `walk` take whole queries one after the other: the rows of the next one are on their way before one ends.
    """
    sms = max(1, gpu.sms // blocks)

    def merging(parts: int, ctas: int) -> float:
        """The more partials are on their way, the longer each takes."""
        return MERGE_UNITS * parts * (1 + blocks * ctas / gpu.sms) if parts > 1 else 0.0

    def even(parts: int) -> tuple[float, int, int]:
        rounds = -(-t * parts // sms)
        ctas = -(-t // rounds) if walk and parts == 1 else t * parts
        return rounds * (-(-units // parts) + SEGMENT_UNITS) + merging(parts, t * parts), ctas, parts

    def on_and_on(share: int) -> tuple[float, int, int]:
        ctas = -(-t * units // share)
        share = -(-t * units // ctas)
        parts = 1 if share % units == 0 else (units - 2) // share + 2
        more = -(-share // units) + (parts > 1) - 1
        each = NEXT_UNITS if walk and share < units else SEGMENT_UNITS
        return share + SEGMENT_UNITS + more * each + merging(parts, 2 * ctas), ctas, parts

    if splits is not None:
        found = [even(splits)]
    else:
        found = [even(parts) for parts in range(1, min(units, LONE_SPLITS) + 1)]
        # Where every SM has many queries, the last round weighs little.
        found += [on_and_on(-(-t * units // sms))] if t <= 4 * sms else []
    _, ctas, parts = min(found)
    return {"splits": parts, "arrival_slots": blocks * (t + ctas)}


def overhead(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> float:
    """Merging: a barrier of the cluster, then the last arriver's reading of every partial, shared by its cluster.

    Where slices send one another their parts, every CTA merges a share: a store and a load, however many parts there are.
    """
    cluster = getattr(k, "cluster", 1)
    partials = dims["splits"] // cluster
    bytes_each = head_block(k.heads) * LATENT_DIM * 4 / cluster
    merge = 1.0 if partials > 1 else 0.0
    if partials > 1 and getattr(k, "slices", 1) == 1:
        merge += partials * bytes_each / (gpu.l2_gbps * 1e3 / gpu.sms)
    merge += 1.0 + 0.05 * cluster if cluster > 1 else 0.0
    if not gpu.arch.tmem_columns:
        ctas = dims["t"] * (k.heads // head_block(k.heads)) * dims["splits"]
        waves = max(1, math.ceil(ctas / gpu.sms))
        late = math.ceil(ctas / (gpu.sms * RESIDENT[cluster])) - waves
        # Of each wave, as all else here.
        merge += 8.0 * late / waves
        if getattr(k, "slices", 1) > 1:
            # Measured: two stages and two CTAs an SM win where blocks of heads fill the SMs with CTAs that want the same
            # rows, three stages and one elsewhere.
            all_ctas = _blocks(k, dims) * dims["splits"]
            shared = _blocks(k, dims) > dims["t"] and all_ctas > gpu.sms
            merge += 0.5 if shared != (k.stages == 2) else 0.0
            if _sliced_ctas_per_sm(k) == 1 and all_ctas > gpu.sms:
                # An SM begins its second CTA when it is done with the first: 1.1 us a tile at each of 8 to 64 queries.
                merge += 1.1 * (dims["topk"] // k.tile) / partials / 2
    if getattr(k, "block", 0) == 64 and k.kv == "fp8" and k.exchange < k.heads // k.block:
        # Measured: 0.25 us a tile are saved where each CTA of a query unpacks half of it.
        ctas = dims["arrival_slots"] // (k.heads // k.block) - dims["t"]
        merge += 0.25 * dims["t"] * (dims["topk"] // k.tile) / ctas
    # The counts cannot tell the gathers apart: until a B200 has measured them, the plain copies go first.
    return merge + (0.1 if gpu.arch.tmem_columns and k.gather == "gather4" else 0.0)


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Queries, heads and selected tokens."""
    return {"t": dims["t"], "heads": dims["heads"], "topk": dims["topk"]}


PROGRAM = TileProgram(
    op="sparse_mla",
    problem=problems.get("sparse_mla"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    bucket=bucket,
    counts=counts,
    guards=(
        _same("heads", "heads"),
        _same("kv", "form"),
        Guard("topk", _whole_tiles),
        Guard("splits", _splits),
    ),
    launch=launch,
    overhead=overhead,
    useful=useful,
)
