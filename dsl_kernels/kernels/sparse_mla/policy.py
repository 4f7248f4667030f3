"""Committed variants of sparse MLA, what a call launches, and measured costs (docs/log/attention.md)."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...arch import ArchSpec, GpuSpec
from ...tile.dealing import Spread, UnitCosts, even_splits, merge_us, parts_at_once, share_units
from ...tile.lang import LaunchPlan, Policy, has_values
from . import forms, program
from .program import common

FIXED = ("bf16", "nope", "fp8", "v4")
# Values of knobs: each row is some of the committed variants.
HOPPER = ("kv", "heads", "tile", "stages", "block", "slices", "cluster", "exchange"), (
    # Whole rows. With more than 32 heads, the blocks of a query read the same rows.
    (("bf16", "fp8", "v4"), (8, 16, 32), 64, 2, 0, 1, (1, 2), 1),
    ("nope", (8, 16, 32), 64, 2, 0, 1, 1, 1),
    (FIXED, (64, 128), 64, 2, 0, 1, 2, 1),
    # Slices of the dims. With two stages, two CTAs fit on an SM.
    (("bf16", "fp8", "v4"), (8, 16), 64, (2, 3), 0, 2, 2, 1),
    ("bf16", (32, 64, 128), 64, (2, 3), 16, 2, 2, 1),
    (("fp8", "v4"), 32, 64, 3, (0, 16), 2, 2, 1),
    (("fp8", "v4"), (64, 128), 64, 3, (16, 32), 2, 2, 1),
    ("nope", (8, 16), 64, 3, 0, 2, 2, 1),
    ("nope", 32, 64, 3, 16, 2, 2, 1),
    # Heads on M.
    (FIXED, (64, 128), 64, 2, 64, 1, 1, 1),
    (("fp8", "v4"), 128, 64, 2, 64, 1, 1, 2),
    ((*FIXED, "nope8", "v41"), "any", 64, 2, 16, 1, 1, 1),
    ((*FIXED, "v41"), "any", 64, 2, 16, 2, 2, 1),
    ((*FIXED, "v41"), "any", 64, 2, 64, 1, 1, 1),
)  # fmt: skip
BLACKWELL = ("kv", "heads", "tile", "block", "cluster", "gather", "terms"), (
    (FIXED, (8, 16, 32, 64, 128), 64, 0, 1, "cp_async", 0),
    ("bf16", (16, 128), 64, 0, 1, "gather4", 0),
    ("bf16", 128, 128, 0, 1, "gather4", 0),
    ("bf16", 64, 64, 64, 1, "gather4", 0),
    # Products take fp8 tokens as stored: tensor memory has room for the partial scores of 16 heads.
    ("fp8", 16, 64, 0, 1, "cp_async", 2),
    # DeepSeek-V4's kernels with blocks of 64 heads would spill as TileLang spells them.
    ((*FIXED, "nope8", "v41"), "any", 64, 16, 1, "cp_async", 0),
    (("bf16", "nope", "fp8"), "any", 64, 64, 1, "cp_async", 0),
)  # fmt: skip
MOST_SPLITS = 8  # of whole rows: shares of a row are pieces of 64 dims
# When CTAs gather better spread over the SMs than begun early; False: heads on N, True: heads on M.
SPREAD = {False: Spread(8, 0.95), True: Spread(16, 0.85)}
UNIT_COSTS = UnitCosts(row=3.5, next_row=2.0, merge=2.1, spread=1.0, spread_to=SPREAD[True].most)


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    """Whether a variant is committed; on higher levels all kernels for a fixed number of heads are."""
    knobs, rows = BLACKWELL if arch.tmem_columns else HOPPER
    widened = level > 0 and k.heads != "any" and program.exists(k, arch)
    return widened or any(has_values(k, knobs, row) for row in rows)


def launch(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> LaunchPlan:
    """Enough parts of each query to give every SM a CTA: whole clusters, or as many as the caller fixed."""
    blocks, tiles = max(1, common.blocks_of(k, dims)), max(1, common.tiles_of(k, dims))
    splits, ctas, t = dims.get("splits"), None, max(1, dims["t"])
    if common.shares_out(k):
        walk, free = common.has_pairs(k) or common.goes_on(k), gpu.with_sms(common.slots(k, gpu))
        units = common.units_of(k, tiles)
        dealt = share_units(t, blocks // t, units, splits, free, UNIT_COSTS, walk=walk)
        ctas, splits = dims.get("ctas", dealt[0]), dealt[1]
    elif common.slices_of(k) > 1:
        room = common.slots(k, gpu) // (blocks * k.slices)
        splits = splits or k.slices * parts_at_once(min(tiles, room, common.merged_rows(k)))
    elif gpu.arch.tmem_columns:
        splits = splits or max(1, min(tiles, gpu.sms // blocks))
    else:
        most = MOST_SPLITS if k.cluster == 1 else tiles
        splits = splits or even_splits(tiles, k.cluster, blocks, most, gpu)
    all_ctas = blocks * splits if ctas is None else blocks // t * ctas
    late = common.gathers_alone(k, dims) and SPREAD[common.heads_on_m(k)].helps(all_ctas, t * tiles, gpu)
    return program.planned(k, dims, gpu, splits, ctas, early=not late)


def overhead(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> float:
    """Microseconds of a launch beside its CTAs' counts. If CTAs wait for one another, each merges a share."""
    slices, blocks, tiles = common.slices_of(k), common.blocks_of(k, dims), common.tiles_of(k, dims)
    parts, ctas = dims["splits"] // k.cluster, blocks * dims["splits"]
    part = common.head_block(k) * common.LATENT_DIM * 4 if slices == 1 else 0
    us = merge_us(parts, k.cluster, part, gpu)
    if slices > 1:
        # Two stages and two CTAs per SM win if blocks of heads that read the same rows fill the SMs.
        us += 0.5 if (blocks > dims["t"] and ctas > gpu.sms) != (k.stages == 2) else 0.0
        # 2.5 us at 64 queries for the partial scores of 32 tiles.
        us += 0.08 * tiles * slices / dims["splits"] if common.head_block(k) == 32 else 0.0
        # An SM begins its second CTA after its first one: 1.1 us per tile, at each of 8 to 64 queries.
        us += 1.1 * tiles / parts / 2 if common.sliced_ctas_per_sm(k) == 1 and ctas > gpu.sms else 0.0
    if common.heads_on_m(k) and common.unpacked(k) and k.exchange < blocks // max(1, dims["t"]):
        # 0.25 us per tile are saved if each CTA of a query unpacks half of the tile.
        us += 0.25 * dims["t"] * tiles / dims["ctas"]
    # Plain copies go first until the gathers are timed on a B200: the counts cannot tell the two apart.
    return us + (0.1 if getattr(k, "gather", "") == "gather4" else 0.0)


POLICY = Policy(forms.bucket, forms.resized, launch=launch, overhead=overhead, useful=useful)
