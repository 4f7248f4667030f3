"""The variants of grouped-query attention that are committed, what a call launches, and how variants rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...arch import ArchSpec, GpuSpec
from ...tile.lang import LaunchPlan, Policy, bucket_of
from .program import measures
from .program.common import query_rows

# (dim, tile, stages, order, cluster, groups, lazy) of the committed set: the fastest for full and for causal
# calls, the plain softmax to compare with, and for heads of 64 elements those for short and for long
# sequences. COMMITTED_ALONE: those for head counts that do not pair; ALONE (causal, full) has 192 rows, so
# that a CTA copies fewer keys a clock.
COMMITTED = (
    (128, 80, 2, 0, 2, 3, 2), (128, 160, 2, 1, 2, 2, 2), (128, 160, 2, 1, 2, 2, 0),
    (64, 128, 4, 1, 1, 2, 2), (64, 128, 4, 1, 1, 3, 2),
)  # fmt: skip
ALONE = (128, 80, 3, 1, 1, 3, 2), (128, 80, 3, 0, 1, 3, 2)
COMMITTED_ALONE = {"fp16": (*ALONE, (128, 128, 2, 0, 1, 2, 2)), "bf16": (*ALONE, (128, 160, 2, 1, 1, 2, 2))}
# (dim, tile, stages, cluster, lazy) on Blackwell. Only head counts that do not pair need a CTA alone.
COMMITTED_BLACKWELL = ((128, 64, 3, 2, 2), (128, 64, 3, 1, 2), (64, 64, 4, 1, 2))


def _items(k: SimpleNamespace, dims: Mapping[str, int]) -> int:
    """The number of work items, each for a cluster."""
    return -(-dims["sq"] // query_rows(k)) * dims["b"] * dims["heads"] // k.cluster


def launch(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> LaunchPlan:
    """One CTA per SM takes items in turn.

    A causal call works on several heads side by side: half the L2 holds the keys and values of these. Other
    calls work on one head at a time.
    """
    items, bundles = max(1, _items(k, dims)), max(1, dims["b"] * dims["heads"] // k.cluster)
    shared = max(1, dims["heads"] // max(1, dims["kv_heads"]) // k.cluster)
    cached = max(1, gpu.l2_bytes // 2 // (4 * k.dim * max(1, dims["skv"])))
    abreast = min(bundles, cached * shared) if dims.get("causal") else 1
    return LaunchPlan(ctas=min(items, gpu.sms // k.cluster), abreast=abreast)


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    if arch.tmem_columns:
        if level == 0:
            return (k.dim, k.tile, k.stages, k.cluster, k.lazy) in COMMITTED_BLACKWELL
        # A load from tensor memory takes a power of two of columns.
        return k.tile in (64, 128) and k.lazy > 0
    if measures(vars(k)) is not None:
        return False
    chosen = (k.dim, k.tile, k.stages, k.order, k.cluster, k.groups, k.lazy)
    return level > 0 or chosen in (*COMMITTED, *COMMITTED_ALONE[k.dtype])


POLICY = Policy(
    bucket=bucket_of("b", "sq", "skv", "heads", "kv_heads", "dim", "causal"),
    launch=launch,
    useful=useful,
    # 64 scores, 32 weights and 32 results a thread; eight numbers of an item then spill.
    unfit={"tilelang": ({"dim": 64, "tile": 128, "groups": 3},)},
)
