"""Which variants of sparse MLA are worth having, what a call launches, and how they rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ..arch import ArchSpec, GpuSpec
from ..problems.layouts import FP8_TOKEN_BYTES
from ..programs.sparse_mla.common import (
    LATENT_DIM,
    ROPE_DIM,
    blocks_of,
    head_block,
    merged_rows,
    sliced_ctas_per_sm,
)
from ..tile.lang import Counts, LaunchPlan, Policy, Schedule

# Cluster sizes of the committed Hopper variants of whole rows. More than 32 heads are blocks that read the same rows.
CLUSTERS = {8: (1, 2), 16: (1, 2), 32: (1, 2), 64: (2,), 128: (2,)}
# (block, stages) of the committed Hopper variants whose CTAs share out the dims: two stages let an SM hold two CTAs.
SLICED: dict[str, dict[int, tuple[tuple[int, int], ...]]] = {
    "bf16": {8: ((0, 2), (0, 3)), 16: ((0, 2), (0, 3)), 32: ((16, 2), (16, 3)), 64: ((16, 2), (16, 3)), 128: ((16, 2), (16, 3))},
    "fp8": {8: ((0, 2), (0, 3)), 16: ((0, 2), (0, 3)), 32: ((0, 3), (16, 3)), 64: ((16, 3), (32, 3)), 128: ((16, 3), (32, 3))},
}  # fmt: skip
# What a query costs a CTA beside its units, what a second one of which it has a part does where its rows are on their way by
# then, and what joining parts costs at least, in units (docs/performance.md).
SEGMENT_UNITS, NEXT_UNITS, MERGE_UNITS = 3.5, 2.0, 2.1
# Splits of whole rows at most: shares of a row are pieces of 64 dims.
MOST_SPLITS = 8
# CTAs of a launch that begins early take SMs as these fall free: where there are fewer than SMs, some pairs of SMs (TPCs) have
# two and others none, and the two share a way to the L2. Behind the kernel in front they are spread over the pairs. From so many
# tiles a CTA that outweighs the early start, while at most this much of the SMs is taken: heads on N, on M (docs/performance.md).
# With 64 heads on M that is worth so many units to a query of one CTA.
SPREAD = {False: (8, 0.95), True: (16, 0.85)}
SPREAD_UNITS = 1.0


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """Queries once, then rows, products and weights a tile of the split, and what its end writes."""
    hb, slices = schedule.constants["head_block"], getattr(k, "slices", 1)
    turns, unit = -(-(dims["topk"] // k.tile) // (dims["splits"] // slices)), 1
    if "unit" in schedule.constants:
        t, unit = dims["t"], schedule.constants["unit"]
        ctas = dims["ctas"]
        of_query = -(-(dims["topk"] // k.tile) // unit)
        turns = -(-t // ctas) * of_query if dims["splits"] == 1 else -(-t * of_query // ctas)
    tiles, shares = turns * unit, slices * getattr(k, "exchange", 1)
    row = FP8_TOKEN_BYTES if k.kv == "fp8" else 2 * (LATENT_DIM + ROPE_DIM)
    # On Blackwell a product takes a quarter of the latent dims.
    units = schedule.constants.get("units", 1)
    flops = sum(mma.flops * (1 if mma.name == "qk_pe" else units) for mma in schedule.mmas)
    weights = k.tile * schedule.constants.get("n", hb) * 2
    # Tokens that are staged come half a tile at a time.
    halves = 1 + any(pipeline.name == "raw" for pipeline in schedule.pipelines)
    return Counts(
        loaded=hb * 2 * (LATENT_DIM + ROPE_DIM) // slices + tiles * k.tile * (row // shares),
        stored=tiles * weights + _written(k, schedule, dims),
        flops={"bfloat16": turns * flops},
        uses=max(1, turns * units * halves),
        group_syncs=int(k.cluster > 1 and slices == 1),
    )


def _written(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> int:
    """Bytes that the end of a CTA writes: partials in float32 with their lse where splits meet, then its share of the row."""
    hb, slices = schedule.constants["head_block"], getattr(k, "slices", 1)
    if slices > 1:
        rows, parts = merged_rows(k), dims["splits"] // slices
        sent = rows * (128 + hb) * 4 if parts > 1 else 0
        return sent + rows // parts * 128 * 2 + hb * 4
    partial = hb * (LATENT_DIM + 1) * 4 if dims["splits"] > 1 else 0
    return partial + hb * (LATENT_DIM // k.cluster) * 2 + hb * 4


def _useful_hopper(k: SimpleNamespace, level: int) -> bool:
    """Whole rows of two stages, heads on M, or slices, which send to one another asynchronously."""
    if k.slices == 1 and k.block == 0:
        return k.stages == 2 and k.exchange == 1 and (level > 0 or k.cluster in CLUSTERS[k.heads])
    if k.block == 64:
        shared = k.kv == "fp8" and k.heads // k.block == k.exchange
        return (k.stages, k.slices, k.cluster) == (2, 1, 1) and k.heads >= 64 and (k.exchange == 1 or shared)
    if (
        k.slices == 1
        or k.exchange > 1
        or k.cluster != k.slices
        or k.block >= k.heads
        or (k.block == 0 and k.heads > 32)
    ):
        return False
    return level > 0 or (k.slices == 2 and (k.block, k.stages) in SLICED[k.kv][k.heads])


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    """fp8 tokens are dequantised by threads, so TMA gather4 serves bf16 only; at level 0 for 16 and 128 heads.

    On Blackwell there are no clusters: all CTAs of a row merge.
    """
    if not arch.tmem_columns:
        return _useful_hopper(k, level)
    if k.gather == "gather4" and (k.kv != "bf16" or (level == 0 and k.heads not in (16, 128))):
        return False
    return bool(k.cluster == 1)


def launch(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> LaunchPlan:
    """Enough splits of the id row to give every SM a CTA: whole clusters, at most one split a tile, and what the caller fixed."""
    cluster, slices = getattr(k, "cluster", 1), getattr(k, "slices", 1)
    blocks = max(1, blocks_of(k, dims))
    tiles = max(1, dims["topk"] // k.tile) * slices
    if getattr(k, "block", 0) == 64:
        pairs = k.kv == "bf16"
        units, rows = -(-tiles // 2) if pairs else tiles, max(1, dims["t"])
        ctas, splits = _shares(rows, k.heads // k.block, units, dims.get("splits"), gpu, walk=pairs)
        early = _begins_early(k, dims, k.heads // k.block * ctas, gpu)
        return LaunchPlan(ctas=ctas, splits=splits, counters=blocks, early=early)
    if slices > 1:
        slots = gpu.sms * sliced_ctas_per_sm(k)
        # Parts of a query meet at once: all CTAs must run at once, or each query has one.
        parts = max(1, min(tiles // slices, slots // (blocks * slices), merged_rows(k)))
        splits = dims.get("splits") or slices << (parts.bit_length() - 1)
        words = merged_rows(k) * (128 + head_block(k))
        # An extent of 0 would leave the inboxes without an address.
        return LaunchPlan(splits=splits, inbox_words=blocks * splits * words if splits > slices else 1)
    clusters = max(1, min(tiles // cluster, gpu.sms // (blocks * cluster)))
    if gpu.arch.tmem_columns:
        splits = dims.get("splits") or clusters
        return LaunchPlan(splits=splits, counters=blocks, all_resident=1 < splits <= gpu.sms // blocks)
    most = MOST_SPLITS if cluster == 1 else tiles
    clusters = max(1, min(clusters, gpu.slots_in_clusters(cluster) // (blocks * cluster), most))
    # Of those whose longest split has as few tiles, the fewest to merge.
    turns = -(-tiles // (cluster * clusters))
    splits = dims.get("splits") or cluster * -(-tiles // (cluster * turns))
    together = 1 < splits <= gpu.sms // blocks if cluster == 1 else None
    early = _begins_early(k, dims, blocks * splits, gpu)
    return LaunchPlan(splits=splits, counters=blocks * cluster, all_resident=together, early=early)


def _begins_early(k: SimpleNamespace, dims: Mapping[str, int], ctas: int, gpu: GpuSpec) -> bool:
    """Whether a launch of so many CTAs may begin before the kernel in front of it ends: not where that spreads the gather (`SPREAD`)."""
    least, most = SPREAD[k.block == 64]
    gathers = k.kv == "bf16" and blocks_of(k, dims) == dims["t"]
    tiles = dims["t"] * (dims["topk"] // k.tile) / max(1, ctas)
    return not (gathers and tiles >= least and gpu.sms / 2 < ctas < most * gpu.sms)


def _shares(
    t: int, blocks: int, units: int, splits: int | None, gpu: GpuSpec, *, walk: bool
) -> tuple[int, int]:
    """How many CTAs a block of heads has, and parts a query: for equal parts of each query, or one for each SM, whose units go on into the next query.

    Those that `walk` take whole queries one after the other: the rows of the next one are on their way before one ends.
    """
    sms = max(1, gpu.sms // blocks)

    def merging(parts: int, ctas: int) -> float:
        """Each CTA reads as much as it left, however many parts there are; the more CTAs do, the longer it takes."""
        return MERGE_UNITS * (1 + blocks * ctas / gpu.sms) if parts > 1 else 0.0

    def even(parts: int) -> tuple[float, int, int]:
        rounds = -(-t * parts // sms)
        ctas = -(-t // rounds) if walk and parts == 1 else t * parts
        spread = walk and blocks == parts == 1 and sms / 2 < t < SPREAD[True][1] * sms
        each = -(-units // parts) + SEGMENT_UNITS - spread * SPREAD_UNITS
        return rounds * each + merging(parts, t * parts), ctas, parts

    def on_and_on(share: int) -> tuple[float, int, int]:
        ctas = -(-t * units // share)
        share = -(-t * units // ctas)
        parts = 1 if share % units == 0 else (units - 2) // share + 2
        more = -(-share // units) + (parts > 1) - 1
        each = NEXT_UNITS if walk and share < units else SEGMENT_UNITS
        return share + SEGMENT_UNITS + more * each + merging(parts, ctas if walk else 2 * ctas), ctas, parts

    if splits is not None:
        found = [even(splits)]
    else:
        found = [even(parts) for parts in range(1, max(1, min(units, sms // t)) + 1)]
        # Where every SM has many queries, the last round weighs little.
        found += [on_and_on(-(-t * units // sms))] if t <= 4 * sms else []
    _, ctas, parts = min(found)
    return ctas, parts


def overhead(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> float:
    """Merging: a barrier of the cluster, then the last arriver's reading of every partial, shared by its cluster.

    Where CTAs wait for one another each merges a share instead: it reads as much as it left, or was sent.
    """
    cluster, slices = getattr(k, "cluster", 1), getattr(k, "slices", 1)
    partials = dims["splits"] // cluster
    bytes_each = head_block(k) * LATENT_DIM * 4 / cluster
    merge = 1.0 if partials > 1 else 0.0
    if partials > 1 and slices == 1:
        read = partials if cluster > 1 else 1
        merge += read * bytes_each / (gpu.l2_gbps * 1e3 / gpu.sms)
    merge += 1.0 + 0.05 * cluster if cluster > 1 else 0.0
    if slices > 1:
        # Measured: two stages and two CTAs an SM win where blocks of heads fill the SMs with CTAs that want the same
        # rows, three stages and one elsewhere.
        all_ctas = blocks_of(k, dims) * dims["splits"]
        shared = blocks_of(k, dims) > dims["t"] and all_ctas > gpu.sms
        merge += 0.5 if shared != (k.stages == 2) else 0.0
        if head_block(k) == 32:
            # Measured: 2.5 us at 64 queries for the partial scores of 32 tiles.
            merge += 0.08 * (dims["topk"] // k.tile) * slices / dims["splits"]
        if sliced_ctas_per_sm(k) == 1 and all_ctas > gpu.sms:
            # An SM begins its second CTA when it is done with the first: 1.1 us a tile at each of 8 to 64 queries.
            merge += 1.1 * (dims["topk"] // k.tile) / partials / 2
    if getattr(k, "block", 0) == 64 and k.kv == "fp8" and k.exchange < k.heads // k.block:
        # Measured: 0.25 us a tile are saved where each CTA of a query unpacks half of it.
        ctas = dims["ctas"]
        merge += 0.25 * dims["t"] * (dims["topk"] // k.tile) / ctas
    # The counts cannot tell the gathers apart: until a B200 has measured them, the plain copies go first.
    return merge + (0.1 if gpu.arch.tmem_columns and k.gather == "gather4" else 0.0)


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Queries, heads and selected tokens."""
    return {"t": dims["t"], "heads": dims["heads"], "topk": dims["topk"]}


POLICY = Policy(bucket=bucket, counts=counts, launch=launch, overhead=overhead, useful=useful)
