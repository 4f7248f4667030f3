"""Walks that were done before: they rank variants where nothing was measured, and where a walk would take too long.

`python -m codegen walks` walks every committed variant of `RANKED` at launches that differ as much as those of its
problem's grids do, and writes what came out to `dsl_kernels/tuned/<architecture>_walks.json`. A launch between them takes
as long as those near it say, corrected by the rounds and the uses of a CTA, which are worked out for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ArtifactError
from ..measured import TUNED
from ..runtime.storage import read_file
from ..variants import Variant
from .rates import Rates
from .sm import Share

SCHEMA = 1
# Operations whose variants the clock ranks, by architecture: on Hopper where it loses no more than the cost model at the points
# of both tuned tables (docs/clock.md); on Blackwell, where the cost model tells few variants apart, all that it walks.
RANKED = {
    "sm_90a": ("lightning_indexer",),
    "sm_100a": ("gqa_forward", "lightning_indexer", "sparse_mla"),
}
# Walks that speak for a launch, and uses of a CTA that its begin and end take as long as: both of little weight near a walk.
NEAREST, BEGIN_USES = 4, 4.0
DISTINCT = 3.0
"""Octaves that launches with and without barriers between CTAs lie apart, as an SM with two CTAs and one do by two thirds."""

Place = tuple[float, ...]


class Walked(NamedTuple):
    """A walk that was done.

    Attributes:
        place: which launch it was of, as `place` says it.
        clocks: of the SM.
        tensor: the share of them in which the tensor cores were busy.
        bound: the unit that was busiest.
    """

    place: Place
    clocks: float
    tensor: float
    bound: str


def place(share: Share) -> Place:
    """Where a launch of a variant lies among others of it, in octaves: those that take about as long lie close."""
    counts = share.counts
    amounts = (
        math.ceil(share.rounds), counts.uses, share.byte_clocks, counts.loaded, counts.stored, share.products,
    )  # fmt: skip
    octaves = (math.log2(max(float(amount), 1e-6)) for amount in amounts)
    return (*octaves, 2 * math.log2(share.at_once), DISTINCT * bool(counts.group_syncs))


def between(walks: Iterable[Walked], share: Share) -> Walked:
    """What the walks nearest to a launch say of it.

    Raises:
        ValueError: there is none.
    """
    here = place(share)
    near = sorted((math.dist(walk.place, here), walk) for walk in walks)[:NEAREST]
    if not near:
        raise ValueError("no walk of the variant")
    weights = [max(distance, 1e-3) ** -4 for distance, _ in near]

    def mean(values: Iterable[float]) -> float:
        return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)

    clocks = mean(math.log2(walk.clocks) - _usual(walk.place) for _, walk in near) + _usual(here)
    return Walked(here, 2**clocks, mean(walk.tensor for _, walk in near), near[0][1].bound)


def _usual(at: Place) -> float:
    """Octaves of what a launch takes where each use of a CTA takes alike."""
    return at[0] + math.log2(2 ** at[1] + BEGIN_USES)


def took(arch: str, variant: str, share: Share, rates: Rates) -> tuple[float, str]:
    """Microseconds of a launch of a variant, and the unit that is busiest.

    Args:
        variant: its id.

    Raises:
        KeyError: no walk of it was recorded.
    """
    found = between(read(arch)[variant].walks, share)
    return share.time(rates, found.clocks, found.tensor)[0], found.bound


def known(variants: Iterable[Variant]) -> bool:
    """Whether each of the variants was walked as it is now."""
    tables = {variant.arch: read(variant.arch) for variant in variants}
    return all(
        variant.op in RANKED.get(variant.arch, ())
        and variant.id in (table := tables[variant.arch])
        and table[variant.id].sha256 == variant.sha256
        for variant in variants
    )


class Record(NamedTuple):
    """The walks of a variant whose module has this digest."""

    sha256: str
    walks: tuple[Walked, ...]


def path_of(arch: str) -> Path:
    """The file with the walks of an architecture's variants."""
    return TUNED / f"{arch}_walks.json"


@lru_cache(maxsize=8)
def read(arch: str) -> Mapping[str, Record]:
    """The recorded walks of an architecture, by variant; none where none were recorded.

    Raises:
        ArtifactError: the file is damaged or of another schema.
    """
    path = path_of(arch)
    if not path.exists():
        return {}
    try:
        content = json.loads(read_file(path).decode())
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, not {SCHEMA}")
        return {name: _record(record) for name, record in content["variants"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            str(path),
            expected="recorded walks",
            got=f"{type(error).__name__}: {error}",
            fix="restore it, or record it again with `python -m codegen walks`",
        ) from error


def _record(record: Mapping[str, Any]) -> Record:
    walks = tuple(
        Walked(tuple(map(float, place)), float(clocks), float(tensor), str(bound))
        for *place, clocks, tensor, bound in record["walks"]
    )
    return Record(str(record["sha256"]), walks)
