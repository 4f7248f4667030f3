"""Sparse MLA as a tile program: tokens on M, heads on N. The gathered latent tile is both key and value.

    S[tokens, heads] = K Q^T,   P = online softmax over tokens,   O[512, heads] += K^T P

A CTA has one query, one block of at most 64 heads and one split of the id row (tiles split, split + splits,
...). Each role reads the ids itself and skips tiles without a valid id. Splits meet in global memory, so the
operation is one launch. If the CTAs of a row may wait for one another, each merges a share. Otherwise the
last CTA to arrive merges.

With 64 heads on M the products are transposed. A CTA then takes whole queries in turn with the
other CTAs, or consecutive tiles of one query or of several.

Each structure has a module with its schedules and the bodies of its roles: `blackwell`, `lone`, `pair`,
`terms`, `on_n`, `on_m`. The bodies' walks over tiles are in `common` and `shares`. This module has the knobs
and what they need of a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from .... import problems
from ....arch import RESERVED_SMEM, ArchSpec, GpuSpec
from ....problems.base import OperandSpec
from ....tile.dealing import share_out
from ....tile.expressions import size_at
from ....tile.lang import Body, Guard, Knob, LaunchPlan, Schedule, built_for
from ....tile.program import TileProgram
from ..forms import SLICES
from . import blackwell, lone, on_m, on_n, pair, terms
from .common import (
    LATENT_DIM,
    blocks_of,
    goes_on,
    head_block,
    heads_on_m,
    is_lone,
    merged_rows,
    padded_heads,
    shares_out,
    sliced_ctas_per_sm,
    slices_of,
    tiles_of,
    units_of,
    unpacked,
)

HEADS = (8, 16, 32, 64, 128)
"""Numbers of heads that have kernels of their own."""
OF_ANY_HEADS = ("nope8", "v41")
"""Formats of a cache whose kernels all take any number of heads."""
# Kernels for any other number of heads have blocks of heads, and the last block may have fewer. On Blackwell
# a block of 0 is at most 64 heads, and kernels for any number of heads have the heads on N.
KNOBS = (
    Knob("heads", "h", ((*HEADS, "any"),), "query heads"),
    Knob(
        "kv", "", (("bf16", "nope", "fp8", "nope8", "v4", "v41"),),
        "cache format: bf16 rows with or without separate rope dims, or fp8 tokens (656 or 528 bytes, or "
        "DeepSeek-V4's) that are dequantised as they are gathered",
    ),
    Knob("tile", "bt", ((64, 128),), "tokens per tile"),
    Knob("stages", "st", ((2, 3, 4),), "gathered tiles in flight", ("sm_90a",)),
    Knob(
        "cluster", "cl", ((1, 2, 4, 8, 16),), "splits of a row that form a cluster and share out the merge"
    ),
    Knob(
        "slices", "sl", (SLICES,), "CTAs of a cluster that share out the dims and add their partial scores",
        ("sm_90a",), 1,
    ),
    Knob(
        "block", "hb", ((0, 16, 32, 64),),
        "heads of a CTA; 0: all, at most 32; 64: 64 heads on M instead of N", plain=0,
    ),
    Knob(
        "exchange", "ex", ((1, 2),),
        "CTAs of a query; each unpacks a share of its tokens and sends it to the others", ("sm_90a",), 1,
    ),
    Knob(
        "gather", "", (("cp_async", "gather4"),), "row gather: 16-byte copies by a warpgroup, or TMA gather4",
        ("sm_100a",),
    ),
    Knob(
        "terms", "terms", ((0, 2),),
        "e4m3 terms of the queries and of P, in products that take fp8 tokens as stored; 0: the tokens are "
        "dequantised", ("sm_100a",), 0,
    ),
)  # fmt: skip


def _structure(k: SimpleNamespace, arch: ArchSpec) -> Any:
    """The module of a kernel's structure."""
    if arch.tmem_columns:
        if getattr(k, "terms", 0):
            return terms
        return pair if k.tile == 128 else lone if is_lone(k) else blackwell
    return on_m if heads_on_m(k) else on_n


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    schedule: Schedule = _structure(k, arch).declare(k, arch)
    if slices_of(k) == 1:
        return schedule
    # Registers for as many CTAs per SM as fit into shared memory. By default CuTe DSL's compiler leaves
    # registers for more CTAs, and a merge then has few loads in flight.
    resident = arch.smem_per_sm // (schedule.smem_bytes() + RESERVED_SMEM)
    # But with all registers for one CTA per SM, the compiler would unpack an fp8 tile whole before the first
    # store.
    return schedule if unpacked(k) and resident == 1 else replace(schedule, min_ctas_per_sm=resident)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    roles: dict[str, Body] = _structure(k, arch).bodies(k)
    return roles


def exists(k: SimpleNamespace, arch: ArchSpec) -> bool:
    """Whether there is a kernel of these knobs.

    On Blackwell, tiles of 128 tokens belong to a pair of CTAs with 128 heads, and there are no clusters: all
    CTAs of a row merge. TMA gathers bf16 rows only, as threads unpack fp8 tokens. On Hopper a CTA has whole
    rows, heads on M, or slices that CTAs send to one another asynchronously.
    """
    if k.heads == "any" or k.kv in OF_ANY_HEADS:
        return bool(k.heads == "any")
    if arch.tmem_columns:
        if k.block or k.tile == 128:
            on_m = is_lone(k) or (k.heads == k.tile and not k.block)
            return bool(on_m and (k.kv, k.gather, k.cluster) == ("bf16", "gather4", 1))
        return k.cluster == 1 and (k.gather == "cp_async" or not unpacked(k))
    if k.tile != 64:
        return False
    if k.block == 64:
        shared = k.exchange == 1 or (unpacked(k) and k.heads // k.block == k.exchange)
        return (k.stages, k.slices, k.cluster) == (2, 1, 1) and k.heads >= 64 and shared
    if k.slices == 1:
        return (k.block, k.stages, k.exchange) == (0, 2, 1)
    # A slice of two panels of DeepSeek-V4's tokens would have only half a word of scales.
    fits = k.block < k.heads and (k.block or k.heads <= 32) and not (k.kv == "v4" and k.slices == 4)
    return bool(fits and (k.exchange, k.cluster) == (1, k.slices))


def planned(
    k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec, splits: int, ctas: int | None, *, early: bool
) -> LaunchPlan:
    """The launch plan of so many splits: what follows for the extents of `scratch`, and whether CTAs wait."""
    blocks = max(1, blocks_of(k, dims))
    padded = size_at(padded_heads(k), dims) if k.heads == "any" else None
    plan = LaunchPlan(ctas=ctas, splits=splits, padded_heads=padded, early=early)
    if slices_of(k) > 1:
        words = merged_rows(k) * (128 + head_block(k))
        # An extent of 0 would leave the inboxes without an address.
        return replace(plan, inbox_words=blocks * splits * words if splits > k.slices else 1)
    if shares_out(k):
        units = units_of(k, max(1, tiles_of(k, dims)))
        share, reach, span, row_step = share_out(max(1, dims["t"]), units, ctas or 1, splits)
        return replace(plan, counters=blocks, share=share, reach=reach, span=span, row_step=row_step)
    together = 1 < splits <= gpu.sms // blocks if k.cluster == 1 else None
    return replace(plan, counters=blocks * k.cluster, all_resident=together)


def _some_tile(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    k = SimpleNamespace(**knobs)
    return "topk = 0 leaves no tile to deal out" if shares_out(k) and tiles_of(k, call) == 0 else None


def _splits(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    """Why the caller's `splits` do not fit: they must be whole clusters, at most one per tile and slice."""
    splits, cluster = call.get("splits"), knobs.get("cluster", 1)
    if splits is None:
        return None
    if splits % cluster:
        return f"splits = {splits} is no multiple of the cluster of {cluster}"
    most = max(cluster, tiles_of(SimpleNamespace(**knobs), call) * knobs.get("slices", 1))
    if splits > most:
        return f"splits = {splits} exceeds {most}, one a tile and slice"
    k = SimpleNamespace(**knobs)
    sliced = slices_of(k) > 1
    if splits == cluster or not (sliced or shares_out(k)):
        return None
    if sliced and merged_rows(k) % (splits // cluster):
        return f"splits = {splits} in clusters of {cluster} share out no {merged_rows(k)} rows evenly"
    ctas, slots = blocks_of(k, call) * splits, call["sms"] * (sliced_ctas_per_sm(k) if sliced else 1)
    if ctas > slots:
        return (
            f"splits = {splits} of {call['t']} queries are {ctas} CTAs that wait for one another, "
            f"where {slots} run at once"
        )
    return None


def _heads(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    """Why a variant does not take the call's heads.

    Kernels for any number of heads take the calls that no kernel for a fixed number of heads takes.
    """
    heads, built = call.get("heads"), knobs.get("heads")
    if heads is None or built in (None, heads):
        return None
    if built != "any":
        return f"heads = {heads}, built for {built}"
    own = heads in HEADS and knobs.get("kv") not in OF_ANY_HEADS
    return f"heads = {heads} have kernels of their own" if own and _dealt_out(knobs, call) else None


def _dealt_out(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> bool:
    """Whether kernels for a fixed number of heads take a call.

    Kernels that go on from query to query take no call without tiles, and none with splits that cannot run at
    once.
    """
    own = {**knobs, "heads": call["heads"], "block": 0}
    return not goes_on(SimpleNamespace(**own)) or not (_some_tile(own, call) or _splits(own, call))


def scratch(k: SimpleNamespace) -> tuple[OperandSpec, ...]:
    """Memory through which the CTAs of a query join their parts.

    If CTAs share out the dims, each CTA has an inbox. Otherwise the parts are in global memory.
    """
    if slices_of(k) > 1:
        return (
            OperandSpec(
                "inboxes", ("inbox_words",), "int32", "workspace", zeroed=True,
                doc="parts of O with their lses, for each CTA",
            ),
            OperandSpec("splits", (), "int32", "scalar", doc="CTAs of a query and block of heads"),
        )  # fmt: skip
    heads = "padded_heads" if k.heads == "any" else "heads"
    merging = (
        OperandSpec("o_partial", ("t", "splits", heads, LATENT_DIM), "float32", "workspace"),
        OperandSpec("lse_partial", ("t", "splits", heads), "float32", "workspace", doc="base 2"),
        OperandSpec(
            "arrivals", ("counters",), "int32", "workspace", zeroed=True, doc="how many splits have arrived"
        ),
    )  # fmt: skip
    if shares_out(k):
        return (
            *merging,
            OperandSpec("ctas", (), "int32", "scalar", doc="CTAs per block of heads"),
            OperandSpec("share", (), "int32", "scalar", doc="units between two CTAs' first ones"),
            OperandSpec("reach", (), "int32", "scalar", doc="units from a CTA's first one to its end"),
            OperandSpec("span", (), "int32", "scalar", doc="units that a query is numbered with"),
            OperandSpec("row_step", (), "int32", "scalar", doc="queries from one of a CTA to its next one"),
        )
    if k.cluster > 1:
        return merging
    return (*merging, OperandSpec("all_resident", (), "int32", "scalar", doc="1: all CTAs run at once"))


PROGRAM = TileProgram(
    op="sparse_mla",
    problem=problems.get("sparse_mla"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    scratch=scratch,
    guards=(
        Guard("heads", _heads),
        built_for("kv", "form"),
        Guard("topk", _some_tile),
        Guard("splits", _splits),
    ),
)
