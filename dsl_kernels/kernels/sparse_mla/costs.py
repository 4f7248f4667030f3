"""Measured costs of sparse MLA.

The counts of a CTA do not show some of these costs. A launch deals out work by the others.
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

# In units (docs/log/attention.md). `SEGMENT_UNITS`: what a query costs a CTA beside its units. `NEXT_UNITS`:
# the same for a CTA's second query, of which the CTA has a part, if the query's rows are already in flight.
# `MERGE_UNITS`: the least cost of joining parts.
SEGMENT_UNITS, NEXT_UNITS, MERGE_UNITS = 3.5, 2.0, 2.1
# The CTAs of a launch that begins early take SMs as these fall free. If there are fewer CTAs than SMs, some
# pairs of SMs (TPCs) get two CTAs and others none, and the two CTAs of a pair share its path to the L2. CTAs
# that start after the previous kernel are spread over the pairs. The spread outweighs the early start from so
# many tiles per CTA, while at most this share of the SMs is taken; False: heads on N, True: heads on M
# (docs/log/attention.md).
SPREAD = {False: (8, 0.95), True: (16, 0.85)}
# The spread is worth so many units to a query of one CTA with 64 heads on M.
SPREAD_UNITS = 1.0


def begins_early(k: SimpleNamespace, dims: Mapping[str, int], ctas: int, gpu: GpuSpec) -> bool:
    """Whether a launch of `ctas` CTAs may begin before the previous kernel ends.

    A launch whose CTAs gather better when they are spread over the SMs (`SPREAD`) waits.
    """
    least, most = SPREAD[heads_on_m(k)]
    gathers = not unpacked(k) and blocks_of(k, dims) == dims["t"]
    tiles = dims["t"] * tiles_of(k, dims) / max(1, ctas)
    return not (gathers and tiles >= least and gpu.sms / 2 < ctas < most * gpu.sms)


def shares(
    t: int, blocks: int, units: int, splits: int | None, gpu: GpuSpec, *, walk: bool
) -> tuple[int, int]:
    """How many CTAs a block of heads has, and how many parts a query has.

    The CTAs take equal parts of each query, or each SM has one CTA whose units go on into the next query.

    Args:
        t: queries.
        blocks: blocks of heads of a query.
        units: units of a query.
        splits: parts of a query that the caller fixed, or None.
        walk: whether a CTA takes whole queries one after another. The rows of the next query are then in
            flight before the current query ends.
    """
    sms = max(1, gpu.sms // blocks)

    def merging(parts: int, ctas: int) -> float:
        """Units of a merge. Each CTA reads as much as it wrote, and a merge of more CTAs takes longer."""
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
        # If every SM has many queries, the last round weighs little.
        found += [on_and_on(-(-t * units // sms))] if t <= 4 * sms else []
    _, ctas, parts = min(found)
    return ctas, parts


def overhead(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> float:
    """What a launch costs beside its CTAs' counts, in microseconds: mostly the merge.

    The CTAs of a cluster meet at its barrier. The cluster that arrives last shares out the reading of all
    partial results. If CTAs wait for one another, each merges a share instead and reads as much as it wrote
    or was sent.
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
        # Measured: two stages and two CTAs per SM win if blocks of heads fill the SMs with CTAs that read the
        # same rows. Otherwise three stages and one CTA per SM win.
        all_ctas = blocks_of(k, dims) * dims["splits"]
        shared = blocks_of(k, dims) > dims["t"] and all_ctas > gpu.sms
        merge += 0.5 if shared != (k.stages == 2) else 0.0
        if head_block(k) == 32:
            # Measured: 2.5 us at 64 queries for the partial scores of 32 tiles.
            merge += 0.08 * tiles_of(k, dims) * slices / dims["splits"]
        if sliced_ctas_per_sm(k) == 1 and all_ctas > gpu.sms:
            # An SM begins its second CTA after its first one: 1.1 us per tile, at each of 8 to 64 queries.
            merge += 1.1 * tiles_of(k, dims) / partials / 2
    if heads_on_m(k) and unpacked(k) and k.exchange < blocks_of(k, dims) // max(1, dims["t"]):
        # Measured: 0.25 us per tile are saved if each CTA of a query unpacks half of the tile.
        ctas = dims["ctas"]
        merge += 0.25 * dims["t"] * tiles_of(k, dims) / ctas
    # The counts cannot tell the two gathers apart. Plain copies go first until the gathers are timed on a
    # B200.
    return merge + (0.1 if gpu.arch.tmem_columns and k.gather == "gather4" else 0.0)
