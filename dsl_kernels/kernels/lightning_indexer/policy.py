"""The variants of scoring that are committed, what a call launches, and how variants rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...arch import ArchSpec, GpuSpec
from ...tile.lang import LaunchPlan, Policy
from .._rows import resized
from .problem import PAGE, parts_of
from .program.common import (
    BLACKWELL_N,
    HOPPER_N,
    SPLITS,
    START_TILES,
    hopper_groups,
    of_four_bits,
    rows_of_product,
)

# Models so far have these numbers of heads. For them, decode has a specialised kernel for one query.
USUAL_HEADS = (32, 64)
# A prefill CTA of Blackwell scores at most so many rows, four for each of its groups.
BLACKWELL_ROWS = 16


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    """Prefill fills its N; on Blackwell a tile is 128 keys; level 0 keeps one shape per kernel."""
    usual = k.heads in USUAL_HEADS
    if k.kind != "plain" and not usual:
        return False
    if k.kind == "blocks" and (k.mode != "decode" or k.queries != 1 or k.evict):
        return False
    # Of several queries, two accumulators have 128 heads each.
    if of_four_bits(k) and (not arch.tmem_columns or k.evict or 1 < k.queries < BLACKWELL_N // k.heads):
        return False
    if arch.tmem_columns:
        if k.tile != 128 or k.resident != 1:
            return False
        if k.mode == "prefill":
            most = min(BLACKWELL_ROWS, BLACKWELL_N // k.heads)
            return not k.evict and k.queries <= most < 2 * k.queries and (level > 0 or k.stages == 6)
        more = ((16, 8, 0),) if of_four_bits(k) else ((8, 6, 0), (16, 4, 0))
        shapes = ((1, 8, 0), *more) if usual else ((8, 6, 0),)
        return level > 0 or (k.queries, k.stages, k.evict) in _kept(k, shapes)
    if k.mode == "prefill":
        groups, block = hopper_groups(k)
        fits = (
            k.tile % block == 0
            and k.queries == rows_of_product(k, HOPPER_N) * groups
            and k.resident == 1
            and not k.evict
        )
        # With four queries of 32 heads per product, the addresses of two blocks of keys find no registers.
        return fits and (
            level > 0 or (groups, k.tile, k.stages) == ((4, 128, 4) if k.heads == 64 else (4, 64, 6))
        )
    # A decode of one query reads its keys once, so evicting them from the L2 first costs nothing at any size.
    one, several = (1, 64, 3, 4, 1), (8, 256, 4, 1, 0)
    # Sixteen queries of 64 heads leave shared memory for two tiles.
    most = (16, 256, 2 if k.heads == 64 else 4, 1, 0)
    kept = (one, several, most) if usual else (several,)
    return level > 0 or (k.queries, k.tile, k.stages, k.resident, k.evict) in _kept(k, kept)


def _kept(k: SimpleNamespace, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The decode shapes that a kind keeps, of `shapes` in the order of their queries.

    Copies of blocks set no L2 eviction policy.
    """
    one = ((*shapes[0][:-1], 0),)
    return {"blocks": one, "any": shapes[-1:], "any_bf16": shapes[-1:]}.get(k.kind, shapes)


def overhead(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> float:
    """A cost for the shared memory that unused query slots take from the key ring."""
    return 0.05 * (k.queries - dims["next_n"]) if k.mode != "prefill" else 0.0


def launch(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> LaunchPlan:
    """The CTAs of a decode, or the splits of a prefill.

    Decode launches as many CTAs as the SMs hold. Prefill splits the keys of a block so that the waves of
    CTAs, one CTA per SM, take the least time.
    """
    if k.mode != "prefill":
        return LaunchPlan(ctas=gpu.sms * k.resident)
    blocks, tiles = max(1, -(-dims["s"] // k.queries)), -(-dims["skv"] // k.tile)

    def taken(splits: int) -> float:
        return -(-blocks * splits // gpu.sms) * (tiles / splits + START_TILES)

    return LaunchPlan(splits=min(range(1, gpu.sms // blocks + SPLITS), key=taken))


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Decode: sequences, queries per sequence and the greatest possible length; prefill: rows and keys."""
    mode, _ = parts_of(form)
    heads = {name: dims[name] for name in ("heads", "index_heads", "index_dim") if name in dims}
    if mode == "prefill":
        return {"s": dims["s"], "skv": dims["skv"], **heads}
    longest = dims["max_pages"] * dims.get("block_size", dims.get("page_size", PAGE))
    return {"b": dims["b"], "next_n": dims["next_n"], "max_len": longest, **heads}


POLICY = Policy(bucket=bucket, resized=resized, launch=launch, overhead=overhead, useful=useful)
