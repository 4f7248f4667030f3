"""Which variants of sparse MLA are committed, and what a call launches. `costs` has the measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

from ...arch import ArchSpec, GpuSpec
from ...tile.expressions import size_at
from ...tile.lang import LaunchPlan, Policy
from .costs import begins_early, overhead, shares
from .program import OF_ANY_HEADS
from .program.common import (
    blocks_of,
    goes_on,
    head_block,
    heads_on_m,
    in_terms,
    is_lone,
    merged_rows,
    padded_heads,
    shares_out,
    sliced_ctas_per_sm,
    tiles_of,
    unpacked,
)

# Cluster sizes of the committed Hopper variants of whole rows. With more than 32 heads, the blocks of a query
# read the same rows.
CLUSTERS = {8: (1, 2), 16: (1, 2), 32: (1, 2), 64: (2,), 128: (2,)}
# (block, stages) of the committed Hopper variants whose CTAs share out the dims. With two stages, two CTAs
# fit on an SM.
SLICED: dict[str, dict[int, tuple[tuple[int, int], ...]]] = {
    "bf16": {
        8: ((0, 2), (0, 3)), 16: ((0, 2), (0, 3)), 32: ((16, 2), (16, 3)), 64: ((16, 2), (16, 3)),
        128: ((16, 2), (16, 3)),
    },
    "fp8": {
        8: ((0, 2), (0, 3)), 16: ((0, 2), (0, 3)), 32: ((0, 3), (16, 3)), 64: ((16, 3), (32, 3)),
        128: ((16, 3), (32, 3)),
    },
    "nope": {8: ((0, 3),), 16: ((0, 3),), 32: ((16, 3),), 64: (), 128: ()},
    "v4": {
        8: ((0, 2), (0, 3)), 16: ((0, 2), (0, 3)), 32: ((0, 3), (16, 3)), 64: ((16, 3), (32, 3)),
        128: ((16, 3), (32, 3)),
    },
}  # fmt: skip
# At most so many splits of whole rows: shares of a row are pieces of 64 dims.
MOST_SPLITS = 8


def _useful_hopper(k: SimpleNamespace, level: int) -> bool:
    """Whole rows in two stages, heads on M, or slices that send to one another asynchronously."""
    if k.slices == 1 and k.block == 0:
        clusters = CLUSTERS[k.heads][:1] if k.kv == "nope" else CLUSTERS[k.heads]
        return k.stages == 2 and k.exchange == 1 and (level > 0 or k.cluster in clusters)
    if k.block == 64:
        shared = unpacked(k) and k.heads // k.block == k.exchange
        return (k.stages, k.slices, k.cluster) == (2, 1, 1) and k.heads >= 64 and (k.exchange == 1 or shared)
    if (
        k.slices == 1
        or k.exchange > 1
        or k.cluster != k.slices
        or k.block >= k.heads
        or (k.block == 0 and k.heads > 32)
    ):
        return False
    if k.kv == "v4" and k.slices == 4:
        # A slice of two panels would have only half a word of scales.
        return False
    return level > 0 or (k.slices == 2 and (k.block, k.stages) in SLICED[k.kv][k.heads])


def _useful_blocks(k: SimpleNamespace, arch: ArchSpec) -> bool:
    """Which kernels for any number of heads are committed: blocks of 16 and of 64 heads.

    On Hopper they have whole rows, two slices, or heads on M. On Blackwell, "nope8", "v4" and "v41" have no
    blocks of 64 heads: DeepSeek-V4's would spill as TileLang spells them. On Hopper, "nope8" has only whole
    rows in blocks of 16 heads.
    """
    if arch.tmem_columns:
        blocks = (16,) if k.kv in ("nope8", "v4", "v41") else (16, 64)
        return k.block in blocks and (k.tile, k.cluster, k.gather) == (64, 1, "cp_async")
    shape = k.tile, k.exchange, k.stages, k.cluster, k.slices, k.block
    if k.kv == "nope8":
        return shape == (64, 1, 2, 1, 1, 16)
    return shape in ((64, 1, 2, 1, 1, 16), (64, 1, 2, 2, 2, 16), (64, 1, 2, 1, 1, 64))


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    """Which variants are committed at a level.

    Threads unpack fp8 tokens, so TMA gather4 serves bf16 rows only; at level 0 for 16 and 128 heads only.
    Tiles of 128 tokens belong to a pair of CTAs with 128 heads. On Blackwell there are no clusters: all CTAs
    of a row merge.
    """
    if in_terms(k):
        # Tensor memory has room for the partial scores of 16 heads.
        shape = (k.tile, k.block, k.cluster, k.gather)
        return k.heads == 16 and k.kv == "fp8" and shape == (64, 0, 1, "cp_async")
    if k.heads == "any":
        return _useful_blocks(k, arch)
    if k.kv in OF_ANY_HEADS:
        return False
    if arch.tmem_columns and k.block:
        return is_lone(k) and (k.kv, k.gather, k.cluster) == ("bf16", "gather4", 1)
    if not arch.tmem_columns:
        return k.tile == 64 and _useful_hopper(k, level)
    if k.tile == 128:
        return (k.heads, k.kv, k.gather, k.cluster) == (128, "bf16", "gather4", 1)
    if k.gather == "gather4" and (
        unpacked(k) or (level == 0 and (k.kv == "nope" or k.heads not in (16, 128)))
    ):
        return False
    return bool(k.cluster == 1)


def launch(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> LaunchPlan:
    """How the rows are dealt out. If a kernel takes any number of heads, also the heads its blocks hold."""
    plan = _dealt(k, dims, gpu)
    return replace(plan, padded_heads=size_at(padded_heads(k), dims)) if k.heads == "any" else plan


def _dealt(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> LaunchPlan:
    """Enough splits of the id row to give every SM a CTA.

    Splits are whole clusters, at most one per tile, or those that the caller fixed.
    """
    cluster, slices = getattr(k, "cluster", 1), getattr(k, "slices", 1)
    blocks = max(1, blocks_of(k, dims))
    tiles = max(1, tiles_of(k, dims)) * slices
    if shares_out(k):
        pairs = heads_on_m(k) and not unpacked(k)
        if k.tile == 128:
            # A pair of CTAs is a cluster.
            gpu = gpu.with_sms(gpu.slots_in_clusters(2))
        units, rows = -(-tiles // 2) if pairs else tiles, max(1, dims["t"])
        ctas, splits = shares(rows, blocks // rows, units, dims.get("splits"), gpu, walk=pairs or goes_on(k))
        if goes_on(k):
            return LaunchPlan(ctas=ctas, splits=splits, counters=blocks)
        early = begins_early(k, dims, blocks // rows * ctas, gpu)
        return LaunchPlan(ctas=ctas, splits=splits, counters=blocks, early=early)
    if slices > 1:
        slots = gpu.sms * sliced_ctas_per_sm(k)
        # Parts of a query wait for one another. So all CTAs must run at once, or each query has one part.
        parts = max(1, min(tiles // slices, slots // (blocks * slices), merged_rows(k)))
        splits = dims.get("splits") or slices << (parts.bit_length() - 1)
        words = merged_rows(k) * (128 + head_block(k))
        # An extent of 0 would leave the inboxes without an address.
        return LaunchPlan(splits=splits, inbox_words=blocks * splits * words if splits > slices else 1)
    clusters = max(1, min(tiles // cluster, gpu.sms // (blocks * cluster)))
    if gpu.arch.tmem_columns:
        splits = dims.get("splits") or max(1, min(tiles, gpu.sms // blocks))
        return LaunchPlan(splits=splits, counters=blocks, all_resident=1 < splits <= gpu.sms // blocks)
    most = MOST_SPLITS if cluster == 1 else tiles
    clusters = max(1, min(clusters, gpu.slots_in_clusters(cluster) // (blocks * cluster), most))
    # Among numbers of splits with the same longest split, take the smallest: it has the least to merge.
    turns = -(-tiles // (cluster * clusters))
    splits = dims.get("splits") or cluster * -(-tiles // (cluster * turns))
    together = 1 < splits <= gpu.sms // blocks if cluster == 1 else None
    early = begins_early(k, dims, blocks * splits, gpu)
    return LaunchPlan(splits=splits, counters=blocks * cluster, all_resident=together, early=early)


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Sizes by which calls are grouped: queries, heads, and selected tokens of all scopes."""
    return {"t": dims["t"], "heads": dims["heads"], "topk": dims["topk"] + dims.get("extra_topk", 0)}


def resized(dims: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """A call's sizes with some replaced.

    `topk` of `sizes` counts the selected tokens of all scopes. The second scope keeps as many as the call
    has, if `topk` allows.
    """
    found = {**dims, **sizes}
    if "topk" in sizes and "extra_topk" in dims:
        found["extra_topk"] = min(dims["extra_topk"], sizes["topk"])
        found["topk"] = sizes["topk"] - found["extra_topk"]
    return found


POLICY = Policy(bucket=bucket, resized=resized, launch=launch, overhead=overhead, useful=useful)
