"""What was measured of sparse MLA: costs that the counts of a CTA do not show, and those by which a launch deals out work.

docs/log/attention.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...arch import GpuSpec
from .program.common import (
    LATENT_DIM,
    blocks_of,
    head_block,
    heads_on_m,
    sliced_ctas_per_sm,
    tiles_of,
    unpacked,
)

# What a query costs a CTA beside its units, what a second one of which it has a part does where its rows are on their way by
# then, and what joining parts costs at least, in units (docs/log/attention.md).
SEGMENT_UNITS, NEXT_UNITS, MERGE_UNITS = 3.5, 2.0, 2.1
# CTAs of a launch that begins early take SMs as these fall free: where there are fewer than SMs, some pairs of SMs (TPCs) have
# two and others none, and the two share a way to the L2. Behind the kernel in front they are spread over the pairs. From so many
# tiles a CTA that outweighs the early start, while at most this much of the SMs is taken: heads on N, on M (docs/log/attention.md).
# With 64 heads on M that is worth so many units to a query of one CTA.
SPREAD = {False: (8, 0.95), True: (16, 0.85)}
SPREAD_UNITS = 1.0


def begins_early(k: SimpleNamespace, dims: Mapping[str, int], ctas: int, gpu: GpuSpec) -> bool:
    """Whether a launch of so many CTAs may begin before the kernel in front of it ends: not where that spreads the gather (`SPREAD`)."""
    least, most = SPREAD[heads_on_m(k)]
    gathers = not unpacked(k) and blocks_of(k, dims) == dims["t"]
    tiles = dims["t"] * tiles_of(k, dims) / max(1, ctas)
    return not (gathers and tiles >= least and gpu.sms / 2 < ctas < most * gpu.sms)


def shares(
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
            merge += 0.08 * tiles_of(k, dims) * slices / dims["splits"]
        if sliced_ctas_per_sm(k) == 1 and all_ctas > gpu.sms:
            # An SM begins its second CTA when it is done with the first: 1.1 us a tile at each of 8 to 64 queries.
            merge += 1.1 * tiles_of(k, dims) / partials / 2
    if heads_on_m(k) and unpacked(k) and k.exchange < blocks_of(k, dims) // max(1, dims["t"]):
        # Measured: 0.25 us a tile are saved where each CTA of a query unpacks half of it.
        ctas = dims["ctas"]
        merge += 0.25 * dims["t"] * tiles_of(k, dims) / ctas
    # The counts cannot tell the gathers apart: until a B200 has measured them, the plain copies go first.
    return merge + (0.1 if gpu.arch.tmem_columns and k.gather == "gather4" else 0.0)
