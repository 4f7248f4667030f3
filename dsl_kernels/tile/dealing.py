"""How a launch deals out work over a GPU: units of rows to CTAs, or parts of a row to clusters of CTAs.

A row has some units, which CTAs take one after another. Every function gives the numbers of a launch plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..arch import GpuSpec


class Spread(NamedTuple):
    """When the CTAs of a launch read faster because they are spread over the SMs.

    The CTAs of a launch that begins early take SMs as these fall free. If there are fewer CTAs than SMs, some
    pairs of SMs (TPCs) get two CTAs and others none, and the two CTAs of a pair share its path to the L2.
    CTAs that start after the previous kernel are spread over the pairs.

    Attributes:
        least: units of a CTA from which the spread outweighs the early start.
        most: the share of the SMs that is taken at most.
    """

    least: int
    most: float

    def helps(self, ctas: int, units: int, gpu: GpuSpec) -> bool:
        """Whether a launch of `ctas` CTAs, which share out `units`, gains by it."""
        return units / max(1, ctas) >= self.least and gpu.sms / 2 < ctas < self.most * gpu.sms


@dataclass(frozen=True)
class UnitCosts:
    """What a kernel that walks over units was measured to take beside them, in units.

    Attributes:
        row: what a row costs a CTA.
        next_row: the same for a CTA's second row, if what it reads is in flight before the first row ends.
        merge: the least cost of joining the parts of a row.
        spread: what a row of one CTA gains where its CTAs are spread over the SMs.
        spread_to: the share of the SMs up to which they are.
    """

    row: float
    next_row: float
    merge: float
    spread: float = 0.0
    spread_to: float = 1.0


def share_units(
    rows: int, blocks: int, units: int, splits: int | None, gpu: GpuSpec, costs: UnitCosts, *, walk: bool
) -> tuple[int, int]:
    """How many CTAs share out the rows, and how many parts a row has.

    The CTAs take equal parts of each row, or each SM has one CTA whose units go on into the next row.

    Args:
        rows: how many rows there are.
        blocks: launches of that many CTAs run side by side, as blocks of heads do.
        units: units of a row.
        splits: parts of a row that the caller fixed, or None.
        walk: whether a CTA takes whole rows one after another, with the next row's reads in flight before the
            current row ends.
    """
    sms = max(1, gpu.sms // blocks)

    def merging(parts: int, ctas: int) -> float:
        """Units of a merge. Each CTA reads as much as it wrote, and a merge of more CTAs takes longer."""
        return costs.merge * (1 + blocks * ctas / gpu.sms) if parts > 1 else 0.0

    def even(parts: int) -> tuple[float, int, int]:
        rounds = -(-rows * parts // sms)
        ctas = -(-rows // rounds) if walk and parts == 1 else rows * parts
        spread = walk and blocks == parts == 1 and sms / 2 < rows < costs.spread_to * sms
        each = -(-units // parts) + costs.row - spread * costs.spread
        return rounds * each + merging(parts, rows * parts), ctas, parts

    def on_and_on(share: int) -> tuple[float, int, int]:
        ctas = -(-rows * units // share)
        share = -(-rows * units // ctas)
        parts = 1 if share % units == 0 else (units - 2) // share + 2
        more = -(-share // units) + (parts > 1) - 1
        each = costs.next_row if walk and share < units else costs.row
        return share + costs.row + more * each + merging(parts, ctas if walk else 2 * ctas), ctas, parts

    if splits is not None:
        deals = [even(splits)]
    else:
        deals = [even(parts) for parts in range(1, max(1, min(units, sms // rows)) + 1)]
        # If every SM has many rows, the last round weighs little.
        deals += [on_and_on(-(-rows * units // sms))] if rows <= 4 * sms else []
    _, ctas, parts = min(deals)
    return ctas, parts


def share_out(rows: int, units: int, ctas: int, splits: int) -> tuple[int, int, int, int]:
    """Which units are a CTA's, if `share_units` gave so many CTAs and parts of a row.

    Whole rows go round the CTAs, as the first rows of a prompt have fewer units that count than its last
    ones. Parts are consecutive, `splits` of each row or regardless of rows.

    Returns:
        `LaunchPlan`'s `share`, `reach`, `span` and `row_step`: a row is numbered with `span` units, CTA `i`
        has those from `i * share` on, up to `reach` later, and goes on `row_step` rows at a time.
    """
    if splits == 1:
        return units, rows * units, units, ctas
    even = ctas == rows * splits
    share = -(-units // splits) if even else -(-rows * units // ctas)
    return share, share, share * splits if even else units, 1


def even_splits(units: int, cluster: int, rows: int, most: int, gpu: GpuSpec) -> int:
    """Parts of each of `rows` rows, in at most `most` whole clusters that all run at once.

    Among the numbers with the same longest part it is the smallest, which has the least to merge.
    """
    room = min(gpu.sms, gpu.slots_in_clusters(cluster)) // (rows * cluster)
    clusters = max(1, min(units // cluster, room, most))
    turns = -(-units // (cluster * clusters))
    return cluster * -(-units // (cluster * turns))


def parts_at_once(most: int) -> int:
    """How many parts a row has whose CTAs wait for one another: a power of two, if as many run at once."""
    return 1 << (max(1, most).bit_length() - 1)


def merge_us(parts: int, cluster: int, bytes_each: float, gpu: GpuSpec) -> float:
    """Microseconds in which clusters that hold `parts` parts of a row join them; fitted to one H200.

    The CTAs of a cluster meet at its barrier. The cluster that arrives last shares out the reading of all
    parts, of `bytes_each` bytes. A CTA alone merges a share of them, and reads as much as it wrote.
    """
    read = (parts if cluster > 1 else 1) * (bytes_each / cluster) / (gpu.l2_gbps * 1e3 / gpu.sms)
    merge = 1.0 + read if parts > 1 else 0.0
    return merge + (1.0 + 0.05 * cluster if cluster > 1 else 0.0)
