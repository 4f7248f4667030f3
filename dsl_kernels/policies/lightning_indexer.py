"""Which variants of scoring are worth having, what a call launches, and how they rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ..arch import ArchSpec, GpuSpec
from ..problems.layouts import INDEX_DIM
from ..problems.lightning_indexer import PAGE
from ..programs.lightning_indexer.common import BLACKWELL_N, FP8, HOPPER_N, SPLITS, START_TILES, hopper_groups
from ..tile.lang import Counts, LaunchPlan, Policy, Schedule


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    return (_prefill_counts if k.mode == "prefill" else _decode_counts)(k, schedule, dims)


def _decode_counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """Every role reads the lengths to find its tiles, then those of its sequence at each tile but in the MMA warp."""
    next_n, each = dims["next_n"], schedule.constants["rows_per_product"]
    length = dims["max_len"] if dims["max_len"] > dims.get("skip_below", 0) else 0
    per_sequence = -(-length // k.tile)
    tiles = -(-dims["b"] * per_sequence // dims["ctas"])
    whole, rest = divmod(tiles, max(1, per_sequence))
    products = -(-next_n // each)
    # On Blackwell the products of a tile are dealt to the scoring groups, each with its accumulators.
    accumulators = -(-products // schedule.constants["groups"]) if "groups" in schedule.constants else 1
    readers = sum(role.name != "mma" for role in schedule.roles)
    lengths = 4 * next_n * (len(schedule.roles) * dims["b"] + readers * tiles)
    queries = (whole + (rest > 0)) * products * each * k.heads * (INDEX_DIM + 4)
    keys = tiles * (k.tile // PAGE) * (4 + PAGE * (INDEX_DIM + 4))
    return Counts(
        loaded=lengths + queries + keys,
        stored=4 * next_n * (whole * length + rest * k.tile),
        flops={FP8: tiles * products * schedule.mma("score").flops},
        uses=max(1, tiles, tiles * accumulators),
    )


def _prefill_counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """The first CTA has the last rows, which may be fewer than its block; every role reads their windows."""
    rows = dims["s"] - (-(-dims["s"] // k.queries) - 1) * k.queries
    keys = dims["skv"] if dims["skv"] > dims.get("skip_below", 0) else 0
    whole_tiles = -(-keys // k.tile)
    tiles = -(-whole_tiles // dims["splits"])
    columns = min(keys, tiles * k.tile)
    products = k.tile // schedule.mmas[0].m
    return Counts(
        loaded=8 * rows * sum(role.replicas for role in schedule.roles)
        + (rows * k.heads + columns) * (INDEX_DIM + 4),
        stored=4 * rows * columns,
        flops={
            FP8: tiles * products * sum(mma.flops * schedule.role(mma.role).replicas for mma in schedule.mmas)
        },
        uses=max(1, tiles),
    )


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    """Prefill fills its N; on Blackwell a tile is 128 keys; level 0 keeps one shape a kernel."""
    if arch.tmem_columns:
        if k.tile != 128 or k.resident != 1:
            return False
        if k.mode == "prefill":
            return not k.evict and k.queries * k.heads == BLACKWELL_N and (level > 0 or k.stages == 6)
        return level > 0 or (k.queries, k.stages, k.evict) in ((1, 8, 0), (8, 6, 0))
    if k.mode == "prefill":
        groups, block = hopper_groups(k)
        fits = (
            k.tile % block == 0
            and k.queries * k.heads == HOPPER_N * groups
            and k.resident == 1
            and not k.evict
        )
        # Four queries of 32 heads a product leave no registers for the addresses of two blocks of keys.
        return fits and (
            level > 0 or (groups, k.tile, k.stages) == ((4, 128, 4) if k.heads == 64 else (4, 64, 6))
        )
    if k.queries == 16:
        return False
    # Keys of a decode of one query are read once: they may leave the L2 first without a loss at any size.
    return level > 0 or (k.queries, k.tile, k.stages, k.resident, k.evict) in (
        (1, 64, 3, 4, 1),
        (8, 256, 4, 1, 0),
    )


def overhead(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> float:
    """Shared memory that unused query slots take from the key ring."""
    return 0.05 * (k.queries - dims["next_n"]) if k.mode != "prefill" else 0.0


def launch(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> LaunchPlan:
    """Decode: as many CTAs as the SMs hold. Prefill: the splits of a block's keys that make the rounds of CTAs, one an SM,
    take least."""
    if k.mode != "prefill":
        return LaunchPlan(ctas=gpu.sms * k.resident)
    blocks, tiles = max(1, -(-dims["s"] // k.queries)), -(-dims["skv"] // k.tile)

    def taken(splits: int) -> float:
        return -(-blocks * splits // gpu.sms) * (tiles / splits + START_TILES)

    return LaunchPlan(splits=min(range(1, gpu.sms // blocks + SPLITS), key=taken))


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Decode: sequences, queries each and the longest there can be; prefill: rows and keys."""
    if form == "prefill":
        return {"s": dims["s"], "skv": dims["skv"], "heads": dims["heads"]}
    return {
        "b": dims["b"],
        "next_n": dims["next_n"],
        "max_len": dims["max_pages"] * PAGE,
        "heads": dims["heads"],
    }


POLICY = Policy(bucket=bucket, counts=counts, launch=launch, overhead=overhead, useful=useful)
