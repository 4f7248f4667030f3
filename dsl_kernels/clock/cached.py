"""Recorded walks: they rank variants where nothing was measured and a walk would take too long.

`python -m codegen walks` walks every committed variant of the operations in `RANKED` at launches that span
its problem's grids, and writes the results to `dsl_kernels/tuned/<architecture>_walks.json`. The time of any
other launch is interpolated from the nearest walks, after a correction for its own rounds of CTAs and uses
per CTA.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..runtime.storage import read_record
from ..variants import Variant
from .rates import Rates
from .sm import Share

SCHEMA = 2
# Not `measured.TUNED`: whoever reads other tables keeps these records.
WALKS = Path(__file__).resolve().parents[1] / "tuned"
# Operations whose variants the clock ranks, by architecture. On Hopper: those where it loses no more than the
# cost model at the points of both tuned tables (docs/clock_accuracy.md). On Blackwell, where the cost model
# tells few variants apart: all operations that the clock walks.
RANKED = {
    "sm_90a": ("gqa_forward", "lightning_indexer"),
    "sm_100a": ("gqa_forward", "lightning_indexer", "sparse_mla"),
}
# How many walks an interpolation uses; and how many uses of its ring the prologue and epilogue of a CTA take
# as long as. Neither matters much near a walk.
NEAREST, BEGIN_USES = 4, 4.0
DISTINCT = 3.0
"""Octaves between launches with barriers between CTAs and those without (two CTAs per SM and one: 2)."""

Place = tuple[float, ...]


class Walked(NamedTuple):
    """A recorded walk.

    Attributes:
        place: coordinates of its launch, from `place`.
        clocks: clocks of the SM.
        tensor: fraction of the clocks in which the tensor cores were busy.
        drawn: what the SM's units draw, as `Rates.drawn` has it.
        bound: the busiest unit.
    """

    place: Place
    clocks: float
    tensor: float
    drawn: float
    bound: str


def place(share: Share) -> Place:
    """Coordinates of a launch of a variant, in octaves: launches of similar time are close together."""
    counts = share.counts
    rounds = math.ceil(share.rounds)
    amounts = (rounds, counts.uses, share.byte_clocks, counts.loaded, counts.stored, share.products)
    octaves = (math.log2(max(float(amount), 1e-6)) for amount in amounts)
    return (*octaves, 2 * math.log2(share.at_once), DISTINCT * bool(counts.group_syncs))


def between(walks: Iterable[Walked], share: Share) -> Walked:
    """Interpolate a launch from the walks nearest to it.

    Raises:
        ValueError: there are no walks.
    """
    here = place(share)
    near = sorted((math.dist(walk.place, here), walk) for walk in walks)[:NEAREST]
    if not near:
        raise ValueError("no walk of the variant")
    weights = [max(distance, 1e-3) ** -4 for distance, _ in near]

    def mean(values: Iterable[float]) -> float:
        return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)

    clocks = mean(math.log2(walk.clocks) - _usual(walk.place) for _, walk in near) + _usual(here)
    tensor, drawn = mean(walk.tensor for _, walk in near), mean(walk.drawn for _, walk in near)
    return Walked(here, 2**clocks, tensor, drawn, near[0][1].bound)


def _usual(at: Place) -> float:
    """The time of a launch in octaves, up to a constant, if every use of a ring takes equally long."""
    return at[0] + math.log2(2 ** at[1] + BEGIN_USES)


def took(arch: str, variant: str, share: Share, rates: Rates) -> tuple[float, str]:
    """Microseconds of a launch of a variant, and the busiest unit.

    Args:
        arch: The architecture.
        variant: The variant's id.
        share: One SM's share of the launch.
        rates: The GPU's rates.

    Raises:
        KeyError: no walk of the variant is recorded.
    """
    walk = between(read(arch)[variant].walks, share)
    return share.time(rates, walk.clocks, walk.tensor, walk.drawn)[0], walk.bound


def known(variants: Iterable[Variant]) -> bool:
    """Whether every one of the variants has recorded walks, of its module as it is now."""
    tables = {variant.arch: read(variant.arch) for variant in variants}
    return all(
        variant.op in RANKED.get(variant.arch, ())
        and variant.id in (table := tables[variant.arch])
        and table[variant.id].sha256 == variant.sha256
        for variant in variants
    )


class Record(NamedTuple):
    """The walks of a variant, and the digest of its module when it was walked."""

    sha256: str
    walks: tuple[Walked, ...]


def path_of(arch: str) -> Path:
    """The file with the walks of an architecture's variants."""
    return WALKS / f"{arch}_walks.json"


@lru_cache(maxsize=8)
def read(arch: str) -> Mapping[str, Record]:
    """The recorded walks of an architecture, by variant; empty where there is no record.

    Raises:
        ArtifactError: the file is damaged or has another schema.
    """
    path = path_of(arch)
    if not path.exists():
        return {}
    return read_record(
        path,
        SCHEMA,
        lambda content: {name: _record(record) for name, record in content["variants"].items()},
        expected="recorded walks",
        fix="restore it, or record it again with `python -m codegen walks`",
    )


def _record(record: Mapping[str, Any]) -> Record:
    walks = tuple(
        Walked(tuple(map(float, place)), float(clocks), float(tensor), float(drawn), str(bound))
        for *place, clocks, tensor, drawn, bound in record["walks"]
    )
    return Record(str(record["sha256"]), walks)
