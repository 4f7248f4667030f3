"""Sparse MLA as a tile program: tokens on M, heads on N, the gathered latent tile read as key and as value.

    S[tokens, heads] = K Q^T,   P = online softmax over tokens,   O[512, heads] += K^T P

A CTA owns one query, one block of at most 64 heads and one split of the id row (tiles split, split + splits, ...).
Tiles without a valid id are skipped by every role on its own reading of the ids. Splits meet in global memory: the
last to arrive merges them, so the operation is one launch.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from .. import problems
from ..arch import ArchSpec
from ..device.torch import sparse_mla as leaf
from ..problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM, ROPE_DIM, unpack_fp8_tokens
from ..runtime.artifact import TensorMap
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
    Space,
    TileProgram,
)
from ..tile.machine import Machine, Slot
from ..tile.text import Expr, Recorder, Value, name

LOG2E = math.log2(math.e)
MAX_HEAD_BLOCK = 64

# Cluster sizes of the committed Hopper variants, by cache format and heads.
CLUSTERS: dict[str, dict[int, tuple[int, ...]]] = {
    "bf16": {8: (1, 2, 16), 16: (1, 2, 8, 16), 32: (1, 2, 16), 64: (1, 2, 16), 128: (1, 2, 8)},
    "fp8": {8: (2, 16), 16: (1, 2, 16), 32: (2, 16), 64: (2, 16), 128: (1, 2, 8)},
}
# (block, slices, cluster, stages) of the committed Hopper variants whose CTAs share out the dims.
SLICED: dict[str, dict[int, tuple[tuple[int, int, int, int], ...]]] = {
    "bf16": {
        8: ((0, 2, 8, 2), (0, 2, 2, 2)),
        16: ((0, 2, 16, 2), (0, 2, 2, 2)),
        32: ((0, 2, 16, 2), (16, 2, 16, 2)),
        64: ((16, 2, 16, 2),),
        128: ((16, 2, 16, 2),),
    },
    "fp8": {
        8: ((0, 2, 8, 2), (0, 2, 2, 2)),
        16: ((0, 2, 16, 2), (0, 2, 2, 2)),
        32: ((16, 2, 16, 2),),
        64: ((16, 2, 16, 2),),
        128: ((16, 2, 16, 2),),
    },
}  # fmt: skip
# Share of the SMs that CTAs in clusters of a size can hold at once on an H200: a cluster lies within one GPC, and at
# one CTA an SM some SMs of each are left over (128 CTAs in clusters of 4, 8 or 16 measured as two waves).
RESIDENT = {1: 1.0, 2: 1.0, 4: 0.9, 8: 0.84, 16: 0.72}
# Without a cluster one CTA merges a row alone: more splits cost more than they save.
LONE_SPLITS = 8

# tcgen05 with M = 128 takes N in steps of 16: eight heads are padded.
BLACKWELL_MIN_N = 16
# The ring on Blackwell holds quarter tiles: 64 tokens x 128 of the 512 latent dims.
UNIT = 128
UNITS = LATENT_DIM // UNIT
# The running maximum is raised only when it grew by this many powers of two, so most tiles need no rescaling.
RESCALE_LOG2 = 8
SLICES = (1, 2, 4)

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
    """Pairs of small tiles are made for large batches: two CTAs an SM hide each other's exchange."""
    return 2 if k.cluster == k.slices and (k.block or head_block(k.heads)) <= 16 else 1


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


def _sliced(k: SimpleNamespace) -> Schedule:
    """Hopper, each CTA of a slice group with its part of the dims: no accumulator crosses between them."""
    hb, slices, parts = k.block or head_block(k.heads), k.slices, k.cluster // k.slices
    dims, rope = LATENT_DIM // slices, ROPE_DIM // slices
    shared, registers = Space.SHARED, Space.REGISTER
    # A thread's share of O: quads of two dims by two heads, and the lse of the two heads.
    quads = dims // 64 * (hb // 8)
    own = quads // parts
    token_words = tuple(
        Buffer(name, registers, (k.tile, (dims + rope) // 2), "int32", role="gather", per_thread=dims * 11 // 64, doc=doc)
        for name, doc in (("words", "tokens on their way"), ("held", "tokens of the tile before"))
        if k.kv == "fp8"
    )
    merge_buffers = (
        Buffer("o_s", shared, (quads, 128, 6), "float32", doc="normalised parts of O and their lse"),
    )
    merge_pipes = (
        Pipeline("o", ("o_s",), "attend", Engine.PEERS, (Reader("attend", Engine.THREADS),), rounds="once"),
    )
    return Schedule(
        roles=(
            Role("attend", 4, doc="queries, both products, softmax, merge, output"),
            Role("gather", 4, doc="selected rows into the ring"),
        ),
        buffers=(
            Buffer("q_s", shared, (hb, dims), "bfloat16", swizzle=128),
            Buffer("qpe_s", shared, (hb, rope), "bfloat16", swizzle=2 * rope),
            Buffer("ckv_s", shared, (k.tile, dims), "bfloat16", k.stages, swizzle=128, doc="read K-major for scores, MN-major for values"),
            Buffer("kpe_s", shared, (k.tile, rope), "bfloat16", k.stages, swizzle=2 * rope),
            Buffer("p_s", shared, (k.tile, hb) if hb > 8 else (hb, k.tile), "bfloat16", swizzle=min(128, 2 * hb) if hb > 8 else 128),
            Buffer("x_s", shared, (slices - 1, hb // 8, 128, 4), "float32", 2, doc="partial scores of the other slices"),
            *(merge_buffers if parts > 1 else ()),
            Buffer("red_s", shared, (4, hb), "float32", doc="maxima, then sums, across warps"),
            Buffer("last_s", shared, (1,), "int32"),
            Buffer("scores", registers, (k.tile, hb), "float32", role="attend"),
            Buffer("acc", registers, (dims, hb), "float32", role="attend"),
            Buffer("sums", registers, (4, hb), "float32", role="attend", per_thread=hb // 4, doc="of each warp's tokens"),
            Buffer("risen", registers, (4, hb), "float32", role="attend", per_thread=hb // 4),
            *(Buffer(name, registers, (hb,), "float32", role="attend", per_thread=hb // 4) for name in ("top", "peak")),
            Buffer("quads", registers, (own, 64, 8), "float32", role="attend", per_thread=4 * own),
            Buffer("lses", registers, (own, 8), "float32", role="attend", per_thread=2 * own),
            Buffer("sinks", registers, (hb,), "float32", role="attend", per_thread=2 * min(own, hb // 8)),
            *token_words,
        ),
        pipelines=(
            Pipeline(
                "kv", ("ckv_s", "kpe_s"), "gather", Engine.CP_ASYNC if k.kv == "bf16" else Engine.THREADS,
                (Reader("attend", Engine.WGMMA),), k.stages, doc="live tiles of the split",
            ),
            Pipeline("x", ("x_s",), "attend", Engine.PEERS, (Reader("attend", Engine.THREADS),), 2, doc="partial scores"),
            *(merge_pipes if parts > 1 else ()),
        ),
        mmas=_products(k.tile, hb, dims, rope),
        grid=(f"t * {k.heads // hb}", str(k.cluster), f"splits // {k.cluster}"),
        axes=("bx", "rank", "part"),
        cluster=(1, k.cluster, 1),
        group=(1,),
        named_barriers={"attend": ("attend",)},
        constants={"head_block": hb, "head_blocks": k.heads // hb, "dims": dims, "rope": rope, "parts": parts, "own": own},
        ctas_per_sm=_sliced_ctas_per_sm(k),
    )  # fmt: skip


def _wide(k: SimpleNamespace) -> Schedule:
    """Hopper, 64 heads on M: two warpgroups take half of the tokens each for S, and half of the dims each for O."""
    hb = k.block
    shared, registers = Space.SHARED, Space.REGISTER
    return Schedule(
        roles=(
            Role("attend", 8, 216, "queries, both products, softmax, merge, output"),
            Role("gather", 4, 72, "selected rows into the ring"),
        ),
        buffers=(
            Buffer("q_s", shared, (hb, LATENT_DIM), "bfloat16", swizzle=128),
            Buffer("qpe_s", shared, (hb, ROPE_DIM), "bfloat16", swizzle=128),
            Buffer("ckv_s", shared, (k.tile, LATENT_DIM), "bfloat16", k.stages, swizzle=128, doc="read K-major for scores, MN-major for values"),
            Buffer("kpe_s", shared, (k.tile, ROPE_DIM), "bfloat16", k.stages, swizzle=128),
            Buffer("p_s", shared, (hb, k.tile), "bfloat16", swizzle=128),
            Buffer("red_s", shared, (2, hb), "float32", doc="maxima, then sums, across warpgroups"),
            Buffer("last_s", shared, (1,), "int32"),
            Buffer("scores", registers, (hb, k.tile), "float32", role="attend"),
            Buffer("acc", registers, (hb, LATENT_DIM), "float32", role="attend"),
            *(Buffer(name, registers, (2, hb), "float32", role="attend", per_thread=2) for name in ("sums", "rows")),
            *(Buffer(name, registers, (hb,), "float32", role="attend", per_thread=2) for name in ("peak", "sinks")),
        ),
        pipelines=(
            Pipeline("kv", ("ckv_s", "kpe_s"), "gather", Engine.CP_ASYNC, (Reader("attend", Engine.WGMMA),), k.stages, doc="live tiles of the split"),
        ),
        mmas=(
            Mma("qk_nope", "wgmma", "attend", hb, k.tile, LATENT_DIM, "bfloat16", a="q_s", b="ckv_s", acc="scores", shared_out="n", doc="S = Q K^T"),
            Mma("qk_pe", "wgmma", "attend", hb, k.tile, ROPE_DIM, "bfloat16", a="qpe_s", b="kpe_s", acc="scores", shared_out="n"),
            Mma(
                "pv", "wgmma", "attend", hb, LATENT_DIM, k.tile, "bfloat16", b_major="mn", a="p_s", b="ckv_s", acc="acc", shared_out="n",
                doc="O += P K",
            ),
        ),
        grid=(f"t * {k.heads // hb}", "splits"),
        axes=("bx", "split"),
        named_barriers={"attend": ("attend",)},
        constants={"head_block": hb, "head_blocks": k.heads // hb},
    )  # fmt: skip


def _hopper(k: SimpleNamespace) -> Schedule:
    if k.block == 64:
        return _wide(k)
    if k.slices > 1:
        return _sliced(k)
    hb = head_block(k.heads)
    groups = 1 if hb <= 32 else 2
    # setmaxnreg deals out what the launch took: 384 threads get 168 registers each.
    budgets = (None, None) if groups == 1 else (216, 72) if k.kv == "bf16" else (208, 88)
    batch = 2 if groups == 1 else 1
    token_words = tuple(
        Buffer("words", Space.REGISTER, (batch, 32, 288), "uint32", role="gather", per_thread=44 * batch, private=True, doc="tokens on their way")
        for _ in range(k.kv == "fp8")
    )
    attend = Role("attend", 4 * groups, budgets[0], "queries, both products, softmax, merge, output")
    gather = Role("gather", 4, budgets[1], "selected rows into the ring")
    shared, registers = Space.SHARED, Space.REGISTER
    return Schedule(
        roles=(attend, gather),
        buffers=(
            Buffer("q_s", shared, (hb, LATENT_DIM), "bfloat16", swizzle=128),
            Buffer("qpe_s", shared, (hb, ROPE_DIM), "bfloat16", swizzle=128),
            Buffer("ckv_s", shared, (k.tile, LATENT_DIM), "bfloat16", k.stages, swizzle=128, doc="read K-major for scores, MN-major for values"),
            Buffer("kpe_s", shared, (k.tile, ROPE_DIM), "bfloat16", k.stages, swizzle=128),
            Buffer("p_s", shared, (k.tile, hb) if hb > 8 else (hb, k.tile), "bfloat16", swizzle=min(128, 2 * hb) if hb > 8 else 128),
            Buffer("red_s", shared, (4, hb), "float32", doc="maxima, then sums, across warps"),
            Buffer("last_s", shared, (1,), "int32"),
            Buffer("scores", registers, (k.tile, hb), "float32", role="attend"),
            Buffer("sums", registers, (k.tile, hb), "float32", role="attend"),
            Buffer("acc", registers, (LATENT_DIM, hb), "float32", role="attend"),
            Buffer("risen", registers, (4, hb), "float32", role="attend", per_thread=hb // 4),
            *(Buffer(name, registers, (hb,), "float32", role="attend", per_thread=hb // 4) for name in ("top", "peak")),
            *token_words,
        ),
        pipelines=(
            Pipeline(
                "kv", ("ckv_s", "kpe_s"), "gather", Engine.CP_ASYNC if k.kv == "bf16" else Engine.THREADS,
                (Reader("attend", Engine.WGMMA),), k.stages, doc="live tiles of the split",
            ),
        ),
        mmas=_products(k.tile, hb, LATENT_DIM, ROPE_DIM, "m" if groups == 1 else "n"),
        grid=(f"t * {k.heads // hb}", "splits") if k.cluster == 1 else (f"t * {k.heads // hb}", str(k.cluster), f"splits // {k.cluster}"),
        axes=("bx", "split") if k.cluster == 1 else ("bx", "rank", "part"),
        cluster=(1, k.cluster, 1),
        group=(1,) if k.cluster > 1 else (),
        named_barriers={"attend": ("attend",)},
        constants={
            "head_block": hb, "head_blocks": k.heads // hb, "groups": groups,
            "batch": batch,
        },
    )  # fmt: skip


def _blackwell(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    hb = head_block(k.heads)
    n = max(hb, BLACKWELL_MIN_N)
    shared, tensor = Space.SHARED, Space.TENSOR
    small = 2 if n <= 32 else 1
    unit_bytes = k.tile * UNIT * 2
    others = (
        n * 2 * (LATENT_DIM + ROPE_DIM) + small * (k.tile * ROPE_DIM * 2 + k.tile * n * 2) + 40 * n + 4096
    )
    units = min(11, (arch.smem_per_cta - others) // unit_bytes)
    bulk = k.gather == "gather4"
    fill = Engine.BULK if bulk else Engine.CP_ASYNC if k.kv == "bf16" else Engine.THREADS
    return Schedule(
        roles=(
            Role("softmax", 4, doc="queries, online softmax, lazy rescale, epilogue, merge"),
            Role("producer", 1 if bulk else 4, doc="selected rows into the rings"),
            Role("mma", 1, doc="issues every tcgen05.mma and commit"),
        ),
        buffers=(
            Buffer("q_s", shared, (n, LATENT_DIM), "bfloat16", swizzle=128),
            Buffer("qpe_s", shared, (n, ROPE_DIM), "bfloat16", swizzle=128),
            Buffer("kv_s", shared, (k.tile, UNIT), "bfloat16", units, swizzle=128, doc="read K-major for scores, MN-major for values"),
            Buffer("pe_s", shared, (k.tile, ROPE_DIM), "bfloat16", small, swizzle=128),
            Buffer("p_s", shared, (k.tile, n), "bfloat16", small, swizzle=min(128, 2 * n)),
            Buffer("red_s", shared, (2, 4, n), "float32", doc="maxima across warps, by tile parity"),
            Buffer("stat_s", shared, (n,), "float32", doc="rescale factors, then 1 / sum"),
            Buffer("last_s", shared, (1,), "int32"),
            Buffer("s_t", tensor, (64, n), "float32", 2),
            Buffer("o_t", tensor, (128, UNITS * n), "float32", doc="four 128-row accumulators side by side"),
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
            Mma("qk_nope", "tcgen05", "mma", k.tile, n, UNIT, "bfloat16"),
            Mma("qk_pe", "tcgen05", "mma", k.tile, n, ROPE_DIM, "bfloat16"),
            Mma("pv", "tcgen05", "mma", UNIT, n, k.tile, "bfloat16", a_major="mn", b_major="mn"),
        ),
        grid=(f"t * {k.heads // hb}", "splits") if k.cluster == 1 else (f"t * {k.heads // hb}", str(k.cluster), f"splits // {k.cluster}"),
        cluster=(1, k.cluster, 1),
        group=(1,) if k.cluster > 1 else (),
        named_barriers={"softmax": ("softmax",)},
        constants={"head_block": hb, "head_blocks": k.heads // hb, "n": n, "unit": UNIT, "units": UNITS, "rescale_log2": RESCALE_LOG2},
        maps=(_row_map("ckv", LATENT_DIM), _row_map("kpe", ROPE_DIM)) if bulk else (),
    )  # fmt: skip


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return _hopper(k) if arch.tmem_columns == 0 else _blackwell(k, arch)


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
        return cls(row, head0, name("split"), m.dim("splits") if whole else name("splits_of_row"), name("turns"))


def _start(m: Recorder) -> None:
    """Hopper: where this CTA is, its first ids, and nothing that a kernel before this one has written."""
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
    m.depend()
    walk = _Walk.named(m)
    leaf.read_ids(
        m, low, high, m.operand("indices"), m.dim("topk"), walk.row, 0, walk.turns, walk.split, walk.splits, m.lane
    )


def _live_tiles(m: Recorder, *, more: int = 0) -> Iterator[Expr]:
    """Turns of the walk; ids are read one turn ahead, and `in_low`, `in_high`, `live` tell which are valid."""
    walk, low, high = _Walk.named(m), name("low"), name("high")
    for turn in m.loop("turn", walk.turns + more):
        leaf.vote(m, name("in_low"), name("in_high"), name("live", "bool"), low, high, m.dim("n"))
        if m.role == "gather":
            m.let("now_low", low)
            m.let("now_high", high)
        leaf.read_ids(
            m, low, high, m.operand("indices"), m.dim("topk"), walk.row, turn + 1, walk.turns, walk.split, walk.splits, m.lane
        )
        yield turn


def _slices(m: Recorder) -> int:
    """CTAs that share out the dims of one split."""
    return getattr(m.k, "slices", 1)


def _gather(m: Recorder) -> None:
    slices, it, live = _slices(m), name("it"), name("live", "bool")
    dims, rope = LATENT_DIM // slices, ROPE_DIM // slices
    which: Value = name("which") if slices > 1 else 0
    low, high = name("now_low"), name("now_high")
    if m.k.kv == "fp8" and slices == 1:
        _gather_halves(m)
    elif m.k.kv == "bf16":
        for _ in _live_tiles(m):
            with m.when(live):
                kv = m.acquire("kv", it)
                for target, cache, columns in ((kv.ckv_s, "ckv", dims), (kv.kpe_s, "kpe", rope)):
                    leaf.copy_rows(m, target, m.operand(cache, f"{cache}_stride"), which * columns, columns, low, high, m.dim("n"), m.thread)
                m.commit(kv)
                m.set(it, it + 1)
    else:
        m.comment("A tile waits in registers while the next one is read.")
        words, held, holds = m.buffer("words"), m.buffer("held"), m.var("holds", False, "bool")
        for turn in _live_tiles(m, more=1):
            with m.when(live | turn.equals(name("turns"))):
                with m.when(live):
                    leaf.load_tokens(m, words, m.operand("kv_cache"), which, dims, low, high, m.dim("n"), m.thread)
                with m.when(holds):
                    kv = m.acquire("kv", it)
                    leaf.store_tokens(m, held, kv.ckv_s, kv.kpe_s, dims, m.thread)
                    m.commit(kv)
                    m.set(it, it + 1)
                leaf.move(m, held, words)
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
                for half in range(2):
                    leaf.load_half(m, words, 0, cache, half, low, high, n, m.thread)
                    leaf.store_half(m, words, 0, kv.ckv_s, kv.kpe_s, half, m.thread)
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


def _attend_whole(m: Recorder) -> None:
    """Heads on N, the whole row: splits meet in scratch memory, those of a cluster by its barrier."""
    k, c, walk, it, thread = m.k, m.c, _Walk.named(m), name("it"), m.thread
    hb, splits, threads = c.head_block, m.dim("splits"), m.schedule.role("attend").threads
    scores, acc, sums, risen, top, peak, red = (
        m.buffer(text) for text in ("scores", "acc", "sums", "risen", "top", "peak", "red_s")
    )
    for target, q, width in (("q_s", "q_nope", LATENT_DIM), ("qpe_s", "q_pe", ROPE_DIM)):
        leaf.load_queries(m, m.buffer(target), m.operand(q), walk.row, walk.head0, k.heads, hb, width, 0, width, thread)
    m.publish("attend", "q_s", "qpe_s")
    m.fill(acc, 0.0)
    m.fill(sums, 0.0)
    m.fill(peak, -math.inf)
    for _ in _live_tiles(m):
        with m.when(name("live", "bool")):
            kv = m.wait("kv", it)
            nope = m.multiply("qk_nope", scores, kv.ckv_s, m.buffer("q_s"))
            m.multiply("qk_pe", scores, kv.kpe_s, m.buffer("qpe_s"), accumulate=True, before=nope)
            m.await_products()
            leaf.mask_scores(m, scores, name("in_low"), name("in_high"), m.scalar("sm_scale"), thread)
            _softmax_of_tile(m, hb)
            m.multiply("pv", acc, kv.ckv_s, m.buffer("p_s"), accumulate=True)
            m.release(kv)
            m.set(it, it + 1)
    _total(m)
    scratch = (m.operand("o_partial"), m.operand("lse_partial"))
    result = (m.operand("attn_sink"), m.operand("out"), m.operand("lse"))

    def merge(rank: Value, count: int) -> None:
        leaf.merge_splits(
            m, *scratch, *result, walk.row, walk.head0, hb, k.heads, splits, m.scalar("lse_scale"), rank * count, count, thread, threads
        )

    last = m.var("last", True, "bool")
    if k.cluster > 1:
        m.comment("The cluster meets once its partials are written; each CTA then merges its share of the row.")
        leaf.write_partial(m, acc, top, *scratch, walk.row, splits, walk.split, walk.head0, k.heads, thread)
        m.cluster_arrive()
        m.cluster_wait()
        with m.when(splits > k.cluster):
            m.take_ticket(last, "last_s", "arrivals", m.block(0) * k.cluster + m.block(1), splits // k.cluster, "attend")
        with m.when(last):
            merge(m.block(1), hb * 128 // k.cluster)
        return
    with m.when(splits.equals(1)):
        leaf.write_outputs(m, acc, top, *result, walk.row, walk.head0, k.heads, m.scalar("lse_scale"), thread)
    with m.otherwise():
        leaf.write_partial(m, acc, top, *scratch, walk.row, splits, walk.split, walk.head0, k.heads, thread)
        m.take_ticket(last, "last_s", "arrivals", m.block(0), splits, "attend")
        with m.when(last):
            merge(0, hb * 128)


def _softmax_of_tile(m: Recorder, hb: int) -> None:
    """From masked scores to P in shared memory: the maxima of the columns cross the warps, the sums do not."""
    scores, acc, sums, risen, top, peak, red = (
        m.buffer(text) for text in ("scores", "acc", "sums", "risen", "top", "peak", "red_s")
    )
    leaf.column_maxima(m, risen, scores, m.thread)
    leaf.share_columns(m, red, risen, m.thread)
    m.meet("attend")
    leaf.join_maxima(m, top, red, m.thread)
    leaf.online_softmax(m, scores, sums, acc, peak, top)
    leaf.store_weights(m, m.buffer("p_s"), scores, hb, m.thread)
    m.publish("attend", "p_s")


def _total(m: Recorder) -> None:
    """O normalised, and its lse in `top`."""
    acc, sums, risen, top, peak, red = (m.buffer(text) for text in ("acc", "sums", "risen", "top", "peak", "red_s"))
    leaf.column_sums(m, risen, sums, m.thread)
    leaf.share_columns(m, red, risen, m.thread)
    m.meet("attend")
    leaf.join_sums(m, top, red, m.thread)
    leaf.normalise(m, acc, top, peak)


def _attend(m: Recorder) -> None:
    """Heads on N: one warpgroup multiplies, keeps the softmax and merges; slices add their partial scores."""
    k, c, walk, it = m.k, m.c, _Walk.named(m), name("it")
    hb, dims, rope, slices, thread, n = c.head_block, c.dims, c.rope, k.slices, m.thread, m.dim("n")
    scores, acc, sums, top, peak, quads, lses, sinks = (
        m.buffer(text) for text in ("scores", "acc", "sums", "top", "peak", "quads", "lses", "sinks")
    )
    which, rank, low, high = name("which"), m.block(1), name("in_low"), name("in_high")
    share = m.let("share", rank // slices * c.own)
    if c.parts > 1:
        parts = m.slot("o", 0)
        m.commit(parts)
    leaf.load_sinks(m, sinks, m.operand("attn_sink"), walk.head0, hb, share, thread)
    leaf.load_queries(m, m.buffer("q_s"), m.operand("q_nope"), walk.row, walk.head0, k.heads, hb, LATENT_DIM, which * dims, dims, thread)
    leaf.load_queries(m, m.buffer("qpe_s"), m.operand("q_pe"), walk.row, walk.head0, k.heads, hb, ROPE_DIM, which * rope, rope, thread)
    m.publish("attend", "q_s", "qpe_s")
    m.fill(acc, 0.0)
    m.fill(sums, 0.0)
    m.fill(peak, -math.inf)
    m.cluster_wait()
    for _ in _live_tiles(m):
        with m.when(name("live", "bool")):
            kv = m.wait("kv", it)
            nope = m.multiply("qk_nope", scores, kv.ckv_s, m.buffer("q_s"))
            m.multiply("qk_pe", scores, kv.kpe_s, m.buffer("qpe_s"), accumulate=True, before=nope)
            m.await_products()
            x = m.slot("x", it)
            m.commit(x)
            leaf.send_scores(m, scores, m.sender(x.x_s, x), rank, slices, thread)
            m.wait("x", it)
            leaf.add_scores(m, scores, x.x_s, slices, thread)
            leaf.mask_scores(m, scores, low, high, m.scalar("sm_scale"), thread)
            _softmax_of_tile(m, hb)
            m.multiply("pv", acc, kv.ckv_s, m.buffer("p_s"), accumulate=True)
            m.release(kv)
            m.set(it, it + 1)
    _total(m)
    if c.parts > 1:
        m.comment("The CTAs that hold this slice trade quads of O, so that each merges its share of them.")
        leaf.send_parts(m, acc, top, m.sender(parts.o_s, parts), rank, slices, c.parts, hb, thread)
        m.wait("o", 0)
        leaf.merge_sent(m, quads, lses, parts.o_s, c.parts, thread)
    else:
        leaf.unmerged(m, quads, lses, acc, top, hb)
    clusters = m.let("clusters", m.dim("splits") // k.cluster)
    last = m.var("last", True, "bool")
    scratch = (m.operand("o_partial"), m.operand("lse_partial"))
    with m.when(clusters > 1):
        leaf.leave_part(m, quads, lses, *scratch, walk.row, m.dim("splits"), m.block(2) * k.cluster + rank, walk.head0, share, k.heads, hb, thread)
        m.take_ticket(last, "last_s", "arrivals", m.block(0) * k.cluster + rank, clusters, "attend")
    with m.when(last):
        with m.when(clusters > 1):
            leaf.merge_parts(m, quads, lses, *scratch, walk.row, m.dim("splits"), rank, k.cluster, clusters, walk.head0, share, k.heads, hb, thread)
        leaf.store_result(
            m, m.operand("out"), m.operand("lse"), quads, lses, sinks, walk.row, walk.head0, k.heads, share, which, dims, hb,
            m.scalar("lse_scale"), thread,
        )


def _attend_wide(m: Recorder) -> None:
    """Heads on M: each of two warpgroups multiplies half of the tokens, then half of the dims."""
    k, walk, it, thread = m.k, _Walk.named(m), name("it"), m.thread
    scores, acc, sums, rows, peak, sinks, red = (
        m.buffer(text) for text in ("scores", "acc", "sums", "rows", "peak", "sinks", "red_s")
    )
    leaf.load_query_rows(m, m.buffer("q_s"), m.operand("q_nope"), walk.row, walk.head0, k.heads, LATENT_DIM, thread)
    leaf.load_query_rows(m, m.buffer("qpe_s"), m.operand("q_pe"), walk.row, walk.head0, k.heads, ROPE_DIM, thread)
    leaf.load_row_sinks(m, sinks, m.operand("attn_sink"), walk.head0, thread)
    m.publish("attend", "q_s", "qpe_s")
    m.fill(acc, 0.0)
    m.fill(sums, 0.0)
    m.fill(peak, -math.inf)
    for _ in _live_tiles(m):
        with m.when(name("live", "bool")):
            kv = m.wait("kv", it)
            nope = m.multiply("qk_nope", scores, m.buffer("q_s"), kv.ckv_s)
            m.multiply("qk_pe", scores, m.buffer("qpe_s"), kv.kpe_s, accumulate=True, before=nope)
            m.await_products()
            leaf.mask_columns(m, scores, name("in_low"), name("in_high"), m.scalar("sm_scale"), thread)
            leaf.row_maxima(m, rows, scores)
            leaf.share_maxima(m, rows, red, thread)
            m.meet("attend")
            leaf.softmax_rows(m, scores, sums, acc, peak, rows, red, thread)
            leaf.store_rows(m, m.buffer("p_s"), scores, thread)
            m.publish("attend", "p_s")
            m.multiply("pv", acc, m.buffer("p_s"), kv.ckv_s, accumulate=True)
            m.release(kv)
            m.set(it, it + 1)
    leaf.share_sums(m, rows, sums, red, thread)
    m.meet("attend")
    leaf.normalise_rows(m, acc, sums, peak, rows, red, thread)
    last, splits = m.var("last", True, "bool"), m.dim("splits")
    scratch = (m.operand("o_partial"), m.operand("lse_partial"))
    with m.when(splits > 1):
        leaf.leave_rows(m, acc, sums, *scratch, walk.row, splits, walk.split, walk.head0, k.heads, thread)
        m.take_ticket(last, "last_s", "arrivals", m.block(0), splits, "attend")
    with m.when(last):
        with m.when(splits > 1):
            leaf.merge_rows(m, acc, sums, *scratch, walk.row, splits, walk.head0, k.heads, thread)
        leaf.store_result_rows(
            m, m.operand("out"), m.operand("lse"), acc, sums, sinks, walk.row, walk.head0, k.heads, m.slot("kv", 0).ckv_s,
            m.scalar("lse_scale"), thread,
        )


def _place(m: Machine) -> tuple[int, int, int]:
    """(query, first head, split) of this CTA."""
    blocks, hb = m.schedule.constants["head_blocks"], m.schedule.constants["head_block"]
    split = m.block[1] if len(m.block) == 2 else m.block[2] * m.k.cluster + m.block[1]
    return m.block[0] // blocks, (m.block[0] % blocks) * hb, split // _old_slices(m)


def _old_slices(m: Machine) -> int:
    """CTAs that share out the dims of one split; a split's CTAs have consecutive ranks."""
    return getattr(m.k, "slices", 1)


def _old_live_tiles(m: Machine) -> Iterator[torch.Tensor]:
    """The ids of each tile of this split that has a valid one; every role walks the same tiles."""
    query, _, split = _place(m)
    tiles, splits = m.dim("topk") // m.k.tile, m.dim("splits") // _old_slices(m)
    for turn in m.loop(-(-(tiles - split) // splits)):
        tile = split + turn * splits
        ids = m.operand("indices")[query, tile * m.k.tile : (tile + 1) * m.k.tile]
        ids = torch.where(ids < m.dim("n"), ids, -1)
        if m.taken((ids >= 0).any()):
            yield ids


def _dims(m: Machine) -> tuple[slice, slice]:
    """The latent and rope dims of this CTA."""
    slices = _old_slices(m)
    which, dims, rope = m.block[1] % slices, LATENT_DIM // slices, ROPE_DIM // slices
    return slice(which * dims, (which + 1) * dims), slice(which * rope, (which + 1) * rope)


def _rows(m: Machine, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bf16 latent and rope rows of a tile's ids, this CTA's dims of them; padding gives zero rows."""
    if _old_slices(m) > 1:
        return _sliced_rows(m, ids)
    if m.k.kv == "fp8":
        tokens = m.zeros(m.k.tile, FP8_TOKEN_BYTES, dtype=torch.uint8)
        m.gather(tokens, m.operand("kv_cache"), ids)
        latent, rope = unpack_fp8_tokens(tokens)
        return latent.bfloat16(), rope
    latent = m.zeros(m.k.tile, LATENT_DIM, dtype=torch.bfloat16)
    rope = m.zeros(m.k.tile, ROPE_DIM, dtype=torch.bfloat16)
    m.gather(latent, m.operand("ckv"), ids)
    m.gather(rope, m.operand("kpe"), ids)
    return latent, rope


def _sliced_rows(m: Machine, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    nope, pe = _dims(m)
    if m.k.kv == "fp8":
        tokens = m.zeros(m.k.tile, FP8_TOKEN_BYTES // _old_slices(m), dtype=torch.uint8)
        cache = m.operand("kv_cache")
        m.gather(tokens, cache[:, : tokens.shape[1]], ids)
        latent, rope = unpack_fp8_tokens(cache[ids.clamp(min=0).long()])
        mask = (ids >= 0)[:, None]
        return (latent[:, nope] * mask).bfloat16(), rope[:, pe] * mask
    latent = m.zeros(m.k.tile, nope.stop - nope.start, dtype=torch.bfloat16)
    rope = m.zeros(m.k.tile, pe.stop - pe.start, dtype=torch.bfloat16)
    m.gather(latent, m.operand("ckv")[:, nope], ids)
    m.gather(rope, m.operand("kpe")[:, pe], ids)
    return latent, rope


def _old_gather(m: Machine) -> Generator[Any, None, None]:
    for ids in _old_live_tiles(m):
        slot = yield from m.acquire("kv")
        latent, rope = _rows(m, ids)
        slot.ckv_s.copy_(latent)
        slot.kpe_s.copy_(rope)
        m.commit(slot)


def _gather_units(m: Machine) -> Generator[Any, None, None]:
    for ids in _old_live_tiles(m):
        latent, rope = _rows(m, ids)
        for unit in range(UNITS):
            slot = yield from m.acquire("kv")
            slot.kv_s.copy_(latent[:, unit * UNIT : (unit + 1) * UNIT])
            m.commit(slot)
        slot = yield from m.acquire("pe")
        slot.pe_s.copy_(rope)
        m.commit(slot)


def _issue(m: Machine) -> Generator[Any, None, None]:
    """The MMA warp: scores of tile i + 1 are issued before the values of tile i, so that softmax never idles."""
    q = yield from m.wait("q")
    n = m.schedule.constants["n"]
    held: list[list[Slot]] = []

    def scores() -> Generator[Any, None, None]:
        out = yield from m.acquire("s")
        units = []
        for unit in range(UNITS):
            slot = yield from m.wait("kv")
            part = m.mma(
                "qk_nope", slot.kv_s, q.q_s[:, unit * UNIT : (unit + 1) * UNIT].T, out.s_t if unit else None
            )
            out.s_t.copy_(part)
            units.append(slot)
        pe = yield from m.wait("pe")
        out.s_t.copy_(m.mma("qk_pe", pe.pe_s, q.qpe_s.T, out.s_t))
        m.release(pe)
        m.commit(out)
        held.append(units)

    def values(first: bool) -> Generator[Any, None, None]:
        p = yield from m.wait("p")
        o = yield from m.acquire("o")
        for unit, slot in enumerate(held.pop(0)):
            columns = slice(unit * n, (unit + 1) * n)
            o.o_t[:, columns] = m.mma("pv", slot.kv_s.T, p.p_s, None if first else o.o_t[:, columns])
            m.release(slot)
        m.release(p)
        m.commit(o)

    issued = 0
    for _ in _old_live_tiles(m):
        yield from scores()
        if issued:
            yield from values(first=issued == 1)
        issued += 1
    if issued:
        yield from values(first=issued == 1)


def _softmax(m: Machine) -> Generator[Any, None, None]:
    query, head, _ = _place(m)
    hb, n = m.schedule.constants["head_block"], m.schedule.constants["n"]
    q = yield from m.acquire("q")
    for target, name in ((q.q_s, "q_nope"), (q.qpe_s, "q_pe")):
        target.zero_()
        m.load(target[:hb], m.operand(name)[query, head : head + hb])
    m.commit(q)
    scale = m.scalar("sm_scale") * LOG2E
    highest, total = m.full((n,), -math.inf), m.zeros(n)
    tiles = 0
    for ids in _old_live_tiles(m):
        slot = yield from m.wait("s")
        scores = torch.where((ids >= 0)[:, None], slot.s_t * scale, -math.inf)
        m.release(slot)
        risen = torch.maximum(highest, scores.amax(dim=0))
        risen = torch.where(risen - highest > RESCALE_LOG2, risen, highest)
        decay = torch.exp2(highest - risen)
        highest = risen
        weights = torch.exp2(scores - highest)
        total = total * decay + weights.sum(dim=0)
        if tiles:
            o = yield from m.wait("o")
            o.o_t.mul_(decay.repeat(UNITS))
            m.release(o)
        p = yield from m.acquire("p")
        m.store(p.p_s, weights)
        m.commit(p)
        tiles += 1
    acc = m.zeros(LATENT_DIM, n)
    if tiles:
        o = yield from m.wait("o")
        acc = o.o_t.view(UNIT, UNITS, n).transpose(0, 1).reshape(LATENT_DIM, n)
        m.release(o)
    lse = torch.where(total > 0, torch.log2(total) + highest, -math.inf)
    out = (acc / torch.where(total > 0, total, 1.0)).T
    if m.k.cluster > 1:
        yield from _finish_cluster(m, out[:hb], lse[:hb])
    else:
        _finish(m, out[:hb], lse[:hb])


def _old_attend(m: Machine) -> Generator[Any, None, None]:
    query, head, _ = _place(m)
    hb, slices = m.schedule.constants["head_block"], _old_slices(m)
    q, q_pe, p = m.buffer("q_s"), m.buffer("qpe_s"), m.buffer("p_s")
    nope, pe = _dims(m)
    m.load(q, m.operand("q_nope")[query, head : head + hb, nope])
    m.load(q_pe, m.operand("q_pe")[query, head : head + hb, pe])
    scale = m.scalar("sm_scale") * LOG2E
    highest, total, acc = m.full((hb,), -math.inf), m.zeros(hb), m.zeros(q.shape[1], hb)
    for ids in _old_live_tiles(m):
        slot = yield from m.wait("kv")
        scores = m.mma("qk_pe", slot.kpe_s, q_pe.T, m.mma("qk_nope", slot.ckv_s, q.T))
        if slices > 1:
            others = [m.rank() ^ d for d in range(1, slices)]
            got = yield from m.exchange("x", dict.fromkeys(others, scores))
            scores = scores + got[others[0]] + sum(got[rank] for rank in others[1:])
        scores = torch.where((ids >= 0)[:, None], scores * scale, -math.inf)
        risen = torch.maximum(highest, scores.amax(dim=0))
        decay, weights = torch.exp2(highest - risen), torch.exp2(scores - risen)
        highest, total = risen, total * decay + weights.sum(dim=0)
        m.store(p, weights if hb > 8 else weights.T)
        acc = m.mma("pv", slot.ckv_s.T, p if hb > 8 else p.T, acc * decay)
        m.release(slot)
    lse = torch.where(total > 0, torch.log2(total) + highest, -math.inf)
    out = (acc / torch.where(total > 0, total, 1.0)).T
    if slices > 1:
        yield from _finish_slices(m, out, lse)
    elif m.k.cluster > 1:
        yield from _finish_cluster(m, out, lse)
    else:
        _finish(m, out, lse)


def _old_attend_wide(m: Machine) -> Generator[Any, None, None]:
    """As `_attend`, with the heads on M."""
    query, head, _ = _place(m)
    hb = m.schedule.constants["head_block"]
    q, q_pe, p = m.buffer("q_s"), m.buffer("qpe_s"), m.buffer("p_s")
    m.load(q, m.operand("q_nope")[query, head : head + hb])
    m.load(q_pe, m.operand("q_pe")[query, head : head + hb])
    scale = m.scalar("sm_scale") * LOG2E
    highest, total, acc = m.full((hb,), -math.inf), m.zeros(hb), m.zeros(hb, LATENT_DIM)
    for ids in _old_live_tiles(m):
        slot = yield from m.wait("kv")
        scores = m.mma("qk_pe", q_pe, slot.kpe_s.T, m.mma("qk_nope", q, slot.ckv_s.T))
        scores = torch.where((ids >= 0)[None, :], scores * scale, -math.inf)
        risen = torch.maximum(highest, scores.amax(dim=1))
        decay, weights = torch.exp2(highest - risen), torch.exp2(scores - risen[:, None])
        highest, total = risen, total * decay + weights.sum(dim=1)
        m.store(p, weights)
        acc = m.mma("pv", p, slot.ckv_s, acc * decay[:, None])
        m.release(slot)
    lse = torch.where(total > 0, torch.log2(total) + highest, -math.inf)
    _finish(m, acc / torch.where(total > 0, total, 1.0)[:, None], lse)


def _finish_slices(m: Machine, out: torch.Tensor, lse: torch.Tensor) -> Generator[Any, None, None]:
    """The CTAs of a cluster that hold one slice trade shares of it, then the clusters of the row meet in memory.

    A share is a run of the slice's [64 dims, 8 heads] quads; partials of O keep the order that the threads hold.
    """
    query, head, _ = _place(m)
    slices, cluster, splits = m.k.slices, m.k.cluster, m.dim("splits")
    parts, own, hb = m.schedule.constants["parts"], m.schedule.constants["own"], out.shape[0]
    rank, columns = m.rank(), _dims(m)[0]
    quads = out.view(hb // 8, 8, -1, 64).permute(2, 0, 3, 1).reshape(-1, 64, 8)
    pairs = lse.view(1, hb // 8, 8).expand(quads.shape[0] // (hb // 8), -1, -1).reshape(-1, 8)
    which = rank // slices
    mine = slice(which * own, (which + 1) * own)
    values, lses = quads[mine], pairs[mine]
    if parts > 1:
        shares = {
            rank % slices + s * slices: torch.cat(
                [quads[s * own : (s + 1) * own], pairs[s * own : (s + 1) * own, None]], 1
            )
            for s in range(parts)
        }
        got = yield from m.exchange("o", shares)
        both = torch.stack([got[source] for source in sorted(shares)])
        values, lses = _join(both[:, :, :64], both[:, :, 64])
    if splits > cluster:
        part = m.block[2]
        at = part * cluster + rank
        room = m.operand("o_partial")[query, at].reshape(-1)[head * LATENT_DIM :][: values.numel()]
        m.store(room.reshape(values.shape), values)
        heads_of = [(which * own + u) % (hb // 8) for u in range(own)]
        for u, j in enumerate(heads_of):
            m.store(m.operand("lse_partial")[query, at, head + 8 * j : head + 8 * j + 8], lses[u])
        if not m.arrive_last("arrivals", m.block[0] * cluster + rank, splits // cluster):
            return
        ranks = range(rank, splits, cluster)
        every = torch.stack(
            [
                m.operand("o_partial")[query, r]
                .reshape(-1)[head * LATENT_DIM :][: values.numel()]
                .reshape(values.shape)
                for r in ranks
            ]
        )
        every_lse = torch.stack(
            [
                torch.stack(
                    [m.operand("lse_partial")[query, r, head + 8 * j : head + 8 * j + 8] for j in heads_of]
                )
                for r in ranks
            ]
        )
        values, lses = _join(every, every_lse)
    for u in range(own):
        quad = which * own + u
        j, panel = quad % (hb // 8), quad // (hb // 8)
        start = columns.start + panel * 64
        _write(
            m, query, slice(head + 8 * j, head + 8 * j + 8), slice(start, start + 64), values[u].T, lses[u]
        )


def _join(values: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Join normalised parts [parts, quads, 64, 8] by their base-2 lse [parts, quads, 8]."""
    lse = torch.logsumexp(lses.double() * math.log(2), dim=0).float() * LOG2E
    share = torch.where(lses > -math.inf, torch.exp2(lses - lse), 0.0)[:, :, None]
    return torch.where(share > 0, share * values, 0.0).sum(dim=0), lse


def _finish(m: Machine, out: torch.Tensor, lse: torch.Tensor) -> None:
    """Write the result of a lone split, or leave a partial and let the last split to arrive merge them all."""
    query, head, _ = _place(m)
    heads = slice(head, head + out.shape[0])
    splits = m.dim("splits")
    if splits > 1:
        _leave_partial(m, out, lse)
        if not m.arrive_last("arrivals", m.block[0], splits):
            return
        out, lse = _merge(m.operand("lse_partial")[query, :, heads], m.operand("o_partial")[query, :, heads])
    _write(m, query, heads, slice(0, LATENT_DIM), out, lse)


def _finish_cluster(m: Machine, out: torch.Tensor, lse: torch.Tensor) -> Generator[Any, None, None]:
    """The splits of a cluster meet, then each of its CTAs merges a share of the row's latent dims."""
    query, head, _ = _place(m)
    heads, splits, cluster = slice(head, head + out.shape[0]), m.dim("splits"), m.k.cluster
    rank = m.block[1]
    _leave_partial(m, out, lse)
    yield from m.group_sync()
    if splits > cluster and not m.arrive_last("arrivals", m.block[0] * cluster + rank, splits // cluster):
        return
    columns = slice(rank * LATENT_DIM // cluster, (rank + 1) * LATENT_DIM // cluster)
    merged, total = _merge(
        m.operand("lse_partial")[query, :, heads], m.operand("o_partial")[query, :, heads, columns]
    )
    _write(m, query, heads, columns, merged, total)


def _leave_partial(m: Machine, out: torch.Tensor, lse: torch.Tensor) -> None:
    query, head, split = _place(m)
    heads = slice(head, head + out.shape[0])
    m.store(m.operand("o_partial")[query, split, heads], out)
    m.store(m.operand("lse_partial")[query, split, heads], lse)


def _merge(partial_lse: torch.Tensor, partial_out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Join normalised outputs of splits. An empty split has lse = -inf: weight 0, and its output is not looked at."""
    lse = torch.logsumexp(partial_lse.double() * math.log(2), dim=0).float() * LOG2E
    share = torch.where(partial_lse > -math.inf, torch.exp2(partial_lse - lse), 0.0)[..., None]
    return torch.where(share > 0, share * partial_out, 0.0).sum(dim=0), lse


def _write(
    m: Machine, query: int, heads: slice, columns: slice, out: torch.Tensor, lse: torch.Tensor
) -> None:
    """The result of a query's heads in some of the latent dims; the first slice brings the lse."""
    sink = m.operand("attn_sink")[heads] * LOG2E
    share = torch.where(lse > -math.inf, 1.0 / (1.0 + torch.exp2(sink - lse)), 0.0)
    m.store(m.operand("out")[query, heads, columns], share[:, None] * out)
    if columns.start == 0:
        m.store(m.operand("lse")[query, heads], lse * m.scalar("lse_scale"))


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    if arch.tmem_columns == 0:
        attend = _attend_wide if k.block == 64 else _attend if k.slices > 1 else _attend_whole
        return {START: _start, "gather": _gather, "attend": attend}
    return {"softmax": _softmax, "producer": _gather_units, "mma": _issue}


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """Queries once, then rows, products and weights a tile of the split, and what its end writes."""
    hb, slices = schedule.constants["head_block"], getattr(k, "slices", 1)
    tiles = -(-(dims["topk"] // k.tile) // (dims["splits"] // slices))
    row = FP8_TOKEN_BYTES if k.kv == "fp8" else 2 * (LATENT_DIM + ROPE_DIM)
    # On Blackwell a product takes a quarter of the latent dims.
    units = schedule.constants.get("units", 1)
    flops = sum(mma.flops * (1 if mma.name == "qk_pe" else units) for mma in schedule.mmas)
    return Counts(
        loaded=hb * 2 * (LATENT_DIM + ROPE_DIM) // slices + tiles * k.tile * (row // slices),
        stored=tiles * schedule.buffer("p_s").stage_bytes + _written(k, schedule, dims),
        flops={"bfloat16": tiles * flops},
        steps=max(1, tiles * units),
        group_syncs=int(k.cluster > 1 and slices == 1),
    )


def _written(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> int:
    """Bytes that the end of a CTA writes: partials in float32 with their lse where splits meet, then its share of the row."""
    hb, slices = schedule.constants["head_block"], getattr(k, "slices", 1)
    if slices > 1:
        own = schedule.constants["own"]
        partial = own * 8 * (64 + 1) * 4 if dims["splits"] > k.cluster else 0
        return partial + own * 8 * 64 * 2 + min(own, hb // 8) * 8 * 4
    partial = hb * (LATENT_DIM + 1) * 4 if dims["splits"] > 1 else 0
    return partial + hb * (LATENT_DIM // k.cluster) * 2 + hb * 4


def _useful_hopper(k: SimpleNamespace, level: int, backend: str) -> bool:
    """Slices are for backends that can send asynchronously; the others meet over whole rows of two stages."""
    if backend == "tilelang":
        return (k.stages, k.slices, k.block) == (2, 1, 0) and (
            level > 0 or k.cluster in CLUSTERS[k.kv][k.heads]
        )
    if k.block == 64:
        return (k.kv, k.stages, k.slices, k.cluster) == ("bf16", 2, 1, 1) and k.heads >= 64
    hb, parts = k.block or head_block(k.heads), k.cluster // k.slices
    if k.slices == 1 or k.cluster % k.slices or hb > k.heads or k.block == k.heads:
        return False
    if LATENT_DIM // k.slices // 64 * (hb // 8) % parts:
        return False
    return level > 0 or (k.block, k.slices, k.cluster, k.stages) in SLICED[k.kv][k.heads]


def useful(k: SimpleNamespace, arch: ArchSpec, level: int, backend: str) -> bool:
    """fp8 tokens are dequantised by threads, so TMA gather4 serves bf16 only; at level 0 for 16 and 128 heads.

    On Blackwell level 0 has clusters of 8 beside none, at 16 heads.
    """
    if not arch.tmem_columns:
        return _useful_hopper(k, level, backend)
    if k.gather == "gather4" and (k.kv != "bf16" or (level == 0 and k.heads not in (16, 128))):
        return False
    return level > 0 or k.cluster == 1 or (k.cluster == 8 and k.heads == 16)


def _same(name: str, dim: str) -> Guard:
    def refuse(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
        return None if knobs[name] == call[dim] else f"{dim} = {call[dim]}, built for {knobs[name]}"

    return Guard(dim, refuse)


def _whole_tiles(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
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
    return None


def launch(k: SimpleNamespace, dims: Mapping[str, int], arch: ArchSpec) -> dict[str, int]:
    """Enough splits of the id row to give every SM a CTA: whole clusters, at most one split a tile."""
    cluster, slices = getattr(k, "cluster", 1), getattr(k, "slices", 1)
    blocks = max(1, dims["t"] * (k.heads // (getattr(k, "block", 0) or head_block(k.heads))))
    tiles = max(1, dims["topk"] // k.tile) * slices
    slots = arch.sms * (_sliced_ctas_per_sm(k) if slices > 1 else 1)
    clusters = max(1, min(tiles // cluster, slots // (blocks * cluster)))
    if not arch.tmem_columns:
        clusters = max(1, min(clusters, int(slots * RESIDENT[cluster]) // (blocks * cluster)))
        clusters = min(clusters, LONE_SPLITS) if cluster == 1 else clusters
        # Halving keeps the splits equal where the number of tiles is a power of two.
        clusters = 1 << (clusters.bit_length() - 1)
    return {"splits": cluster * clusters, "arrival_slots": blocks * cluster}


def overhead(k: SimpleNamespace, dims: Mapping[str, int], arch: ArchSpec) -> float:
    """Merging: a barrier of the cluster, then the last arriver's reading of every partial, shared by its cluster."""
    cluster = getattr(k, "cluster", 1)
    partials = dims["splits"] // cluster
    bytes_each = head_block(k.heads) * LATENT_DIM * 4 / cluster
    merge = 1.0 + partials * bytes_each / (arch.l2_gbps * 1e3 / arch.sms) if partials > 1 else 0.0
    merge += 1.0 + 0.05 * cluster if cluster > 1 else 0.0
    if not arch.tmem_columns:
        ctas = dims["t"] * (k.heads // head_block(k.heads)) * dims["splits"]
        late = math.ceil(ctas / (arch.sms * RESIDENT[cluster])) - math.ceil(ctas / arch.sms)
        merge += 8.0 * late
    # The counts cannot tell the gathers apart: until a B200 has measured them, the plain copies go first.
    return merge + (0.1 if arch.tmem_columns and k.gather == "gather4" else 0.0)


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
