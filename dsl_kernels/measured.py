"""Measurements: the user's tuned table and the shipped one, and estimates for calls between their points.

A tuned table has points: sizes at which variants were timed. If a GPU has none, the registry scales those of
a sibling. `python -m dsl_kernels tune` writes a table of the user's own:

    <folder>/<gpu>.json                 entries as in the shipped table; they take precedence
    <folder>/variants/manifest.json     winners that the generated set lacks, with their modules beside it
    <folder>/journal/<gpu>.jsonl        every time that a search measured, from which it can be resumed

A fault in the user's files costs a warning, which names the file and the fix, but never a call.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import env, kernels, programs, variants
from .arch import GPUS, GpuSpec, siblings
from .arguments import checked, is_path
from .errors import ArtifactError, DslKernelError
from .runtime import storage
from .variants import Variant

log = logging.getLogger(__name__)

TUNED = Path(__file__).resolve().parent / "tuned"
TUNED_SCHEMA = 1
# The schema of the user's tables.
SCHEMA = 1
MODULES = "variants"
# At most this many measured points are used for a call.
NEIGHBOURS = 8
# At this distance, in octaves, a point has the weight of the uncorrected model; weights fall with the square.
TRUST = 2.0
# Microseconds that a table may name: logarithms and ratios of these are finite.
TIMES = (1e-6, 1e12)

Entry = Mapping[str, Any]


@checked
def slug(gpu: str) -> str:
    """File stem of a GPU's tuned table."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_")


@lru_cache(maxsize=64)
def declaration(op: str) -> str:
    """Hash of the sources that declare an operation: entries measured with others do not apply."""
    digest = hashlib.sha256()
    for part in ("problem", "program"):
        for path in kernels.files(op, part):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class UserTable:
    """The user's entries for a GPU that apply, and those of their variants that the generated set lacks."""

    path: Path | None = None
    entries: tuple[Entry, ...] = ()
    variants: Mapping[str, Variant] = field(default_factory=dict)

    def added(self, op: str) -> list[Variant]:
        """The variants of an operation that the generated set lacks."""
        return [variant for variant in self.variants.values() if variant.op == op]


@checked
def user_table(gpu: str) -> UserTable:
    """The user's table of a GPU; empty if there is none, or, with a warning, if it cannot be used."""
    folder = env.tuned_root()
    if folder is None or not slug(gpu) or not is_path(str(folder / f"{slug(gpu)}.json")):
        return UserTable()
    path = folder / f"{slug(gpu)}.json"
    stamps = tuple(_stamp(at) for at in (path, folder / MODULES / variants.MANIFEST))
    return UserTable() if stamps[0] is None else _read(path, stamps, str(variants.generated_root()))


def added_variants() -> dict[str, Variant]:
    """Every variant in the user's folder that the generated set lacks, by id."""
    folder = env.tuned_root()
    added = {} if folder is None else _added(folder)
    generated = {variant.id for variant in variants.variants()} if added else ()
    return {name: variant for name, variant in added.items() if name not in generated}


def _stamp(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


@lru_cache(maxsize=8)
def _read(path: Path, stamps: tuple[int | None, ...], generated: str) -> UserTable:
    from . import __version__

    again = f"tune again with `python -m dsl_kernels tune`, or delete {path}"
    try:
        content = json.loads(storage.read_file(path).decode())
        made = content["metadata"]
        if content["schema"] != SCHEMA or made["dsl_kernels"] != __version__:
            raise ValueError(
                f"written by version {made.get('dsl_kernels')}, schema {content['schema']}; "
                f"this is {__version__}, {SCHEMA}"
            )
        if slug(made["gpu"]) != path.stem:
            raise ValueError(f"measured on {made['gpu']!r}")
        entries = [_whole(entry) for entry in content["entries"]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        cause = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        log.warning("ignoring the tuned table %s: %s; %s", path, cause, again)
        return UserTable()
    added = _added(path.parent)
    here = {variant.id for variant in variants.variants()}
    known = here | added.keys()
    kept = [e for e in entries if e["variant"] in known and _declared(e["op"]) == e["declaration"]]
    if len(kept) < len(entries):
        log.warning(
            "ignoring %d of %d entries of the tuned table %s: "
            "variants that are gone, or an older declaration; %s",
            len(entries) - len(kept),
            len(entries),
            path,
            again,
        )
    wanted = {name for e in kept for name in e["us"]} - here
    return UserTable(path, tuple(kept), {name: added[name] for name in sorted(wanted & added.keys())})


def _declared(op: str) -> str:
    try:
        return declaration(op)
    except OSError:
        return ""


def _whole(entry: Any) -> Entry:
    """An entry, checked to have every field that selection reads.

    Raises:
        ValueError: a field is missing, of the wrong kind or out of range, or a launch dim is not to be tuned.
        UnknownNameError: an entry with launch dims is of no operation.
    """
    sound = (
        isinstance(entry, dict)
        and all(isinstance(entry.get(name), str) for name in ("op", "form", "variant", "declaration"))
        and _numbers(entry.get("bucket"), int, 0, 2**63 - 1)
        and _numbers(entry.get("launch", {}), int, 1, 2**31 - 1)
        and _numbers(entry.get("us"), (int, float), *TIMES)
        and entry["variant"] in entry["us"]
        and all(name in _tuned_dims(entry["op"]) for name in entry.get("launch", {}))
    )
    if not sound:
        raise ValueError("an entry without its fields, or with values out of range")
    return dict(entry)


def _tuned_dims(op: str) -> set[str]:
    """The launch dims that may be tuned: splits, where the program says which of them fit a call."""
    return {"splits"} & {guard.name for guard in programs.get(op).guards}


def _numbers(values: Any, kind: Any, least: float, most: float) -> bool:
    return isinstance(values, dict) and all(
        isinstance(name, str) and isinstance(value, kind) and not isinstance(value, bool)
        and least <= value <= most
        for name, value in values.items()
    )  # fmt: skip


def _added(folder: Path) -> dict[str, Variant]:
    """The variants in a user's folder, by id; none, with a warning, if a module differs from the manifest."""
    root = folder / MODULES
    if _stamp(root / variants.MANIFEST) is None:
        return {}
    try:
        storage.require_trusted(folder, root, root / variants.MANIFEST)
        listed = variants.in_folder(root)
        for variant in listed:
            storage.require_trusted(variant.path.parent.parent, variant.path.parent, variant.path)
            if hashlib.sha256(storage.read_file(variant.path)).hexdigest() != variant.sha256:
                raise ValueError(f"{variant.path.name} is not what its manifest lists")
        return {variant.id: variant for variant in listed}
    except (DslKernelError, OSError, ValueError) as error:
        fix = f"tune again with `python -m dsl_kernels tune`, or delete {root}"
        warn_once(f"ignoring the tuned variants in {root}: {error}; {fix}")
        return {}


@lru_cache(maxsize=64)
def warn_once(text: str) -> None:
    log.warning("%s", text)


@lru_cache(maxsize=32)
def entries_of(path: Path) -> tuple[Entry, ...]:
    """Entries of a shipped table.

    Raises:
        ArtifactError: the file is damaged or of another schema.
    """
    return storage.read_record(
        path,
        TUNED_SCHEMA,
        lambda content: tuple(content["entries"]),
        expected="a tuned table",
        fix="restore it, or record it again with `bench --tune`",
    )


@checked
def tuned_table(gpu: str) -> tuple[Entry, ...]:
    """Entries of the shipped table of a GPU; empty if none were recorded."""
    path = TUNED / f"{slug(gpu)}.json"
    return entries_of(path) if is_path(str(path)) and path.exists() else ()


@checked
def points(gpu: GpuSpec, op: str, form: str, *, own: bool = True) -> tuple[list[Entry], GpuSpec | None]:
    """The measured points of an operation's form for a GPU, and the sibling on which they were measured.

    If the GPU has points of its own, these and None; else those of the most similar sibling that has some.

    Args:
        own: False leaves the GPU's own tables out.
    """
    if own and (measured := _points_of(gpu, op, form)):
        return measured, None
    for sibling in siblings(gpu):
        try:
            if measured := _points_of(sibling, op, form):
                return measured, sibling
        except ArtifactError as error:
            warn_once(f"ignoring the tuned table of the {sibling.name}: {error}")
    return [], None


def _points_of(gpu: GpuSpec, op: str, form: str) -> list[Entry]:
    """A GPU's own points of an operation's form; a shipped table needs the product with all its SMs."""
    rows = [row for row in GPUS.values() if row.device == gpu.device]
    shipped = tuned_table(gpu.device) if gpu in rows or not rows else ()
    entries = merged(user_table(gpu.device).entries, shipped)
    return [entry for entry in entries if entry["op"] == op and entry["form"] == form]


def merged(user: Sequence[Entry], shipped: Sequence[Entry]) -> list[Entry]:
    """The user's entries, and the shipped ones for other points."""
    taken = {point_of(entry) for entry in user}
    return [*user, *(entry for entry in shipped if point_of(entry) not in taken)]


def table_of(entry: Entry) -> str:
    """Which table an entry is from; only those that `tune` writes name the declaration that was timed."""
    return "user's tuned table" if "declaration" in entry else "tuned table"


def point_of(entry: Entry) -> tuple[Any, ...]:
    """The point of an entry: operation, form and the sizes that decide."""
    return entry["op"], entry["form"], tuple(sorted(entry["bucket"].items()))


def octaves(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, float] | None:
    """How far a is from b in each size, in octaves; None if they are not comparable.

    A size of 0 only compares with 0: it means that something is absent, not that it is small.
    """
    if a.keys() != b.keys() or any((a[name] == 0) != (b[name] == 0) for name in a):
        return None
    return {name: math.log2(a[name] / b[name]) if a[name] else 0.0 for name in a}


@dataclass(frozen=True)
class Near:
    """A measured point, and its distance from a call in each size, in octaves."""

    offsets: Mapping[str, float]
    entry: Entry

    @property
    def distance(self) -> float:
        return math.hypot(*self.offsets.values())

    def before(self, other: Near) -> bool:
        """Whether it is between the call and the other point in every size."""
        return self.offsets != other.offsets and all(
            min(0.0, far) <= self.offsets[name] <= max(0.0, far) for name, far in other.offsets.items()
        )


def near(
    entries: Iterable[Entry], op: str, form: str, sizes: Mapping[str, int], of: Iterable[str]
) -> list[Near]:
    """The measured points around a call at which some of the variants `of` were timed, the nearest first.

    A point counts if no other one is between it and the call; a point of the call's own sizes is therefore
    the only one. Any other point needs two times, as only their ratio says something.
    """
    wanted, comparable = set(of), []
    for entry in entries:
        if entry["op"] == op and entry["form"] == form:
            offsets, timed = octaves(entry["bucket"], sizes), len(wanted & entry.get("us", {}).keys())
            if offsets is not None and timed >= (2 if any(offsets.values()) else 1):
                comparable.append(Near(offsets, entry))
    around: list[Near] = []
    # A point between the call and another one is nearer, so it comes first here.
    for far in sorted(comparable, key=lambda point: point.distance):
        if len(around) == NEIGHBOURS:
            break
        if not any(point.before(far) for point in around):
            around.append(far)
    return around


def enclosed(points: Sequence[Near]) -> bool:
    """Whether there are points below and above a call in every size in which any differs from it."""
    return bool(points) and all(
        low == high == 0 or low < 0 < high
        for name in points[0].offsets
        for low, high in [
            (min(p.offsets[name] for p in points), max(p.offsets[name] for p in points)),
        ]
    )


def between(
    points: Sequence[Near],
    predicted: Mapping[str, float | None],
    predicted_at: Callable[[str, Entry], float | None],
) -> dict[str, float]:
    """Estimated microseconds of the variants that any point timed: the model, corrected by the points.

    Only times of one point are compared with each other, as measuring sessions differ: the correction of a
    variant is by how much the model misjudges it relative to the others there. Corrections are averaged with
    weights of the inverse squared distance, together with a correction of zero, so that far from all points
    the model decides. If the points enclose the call, a variant gets no better relative to the others than at
    any point, and no worse if all points timed it.
    """
    timed = [name for name in predicted if any(name in point.entry["us"] for point in points)]
    model = {name: predicted[name] for name in timed}
    at = [{name: predicted_at(name, p.entry) for name in timed if name in p.entry["us"]} for p in points]
    if any(us is None for each in (model, *at) for us in each.values()):
        # Without predictions the measured times decide alone.
        model, at = dict.fromkeys(timed, 1.0), [dict.fromkeys(each, 1.0) for each in at]
    shared = [name for name in timed if all(name in each for each in at)]
    total = dict.fromkeys(timed, 0.0)
    weights = dict.fromkeys(timed, TRUST**-2)
    lead: dict[str, list[float]] = {name: [] for name in timed}
    inside = enclosed(points)
    level = spread = 0.0
    for point, predictions in zip(points, at, strict=True):
        weight = max(point.distance, 1e-3) ** -2
        misjudged = {name: math.log(point.entry["us"][name] / us) for name, us in predictions.items() if us}
        middle = _mean(misjudged, shared or predictions)
        times = {name: math.log(point.entry["us"][name]) for name in predictions}
        centre = _mean(times, shared or predictions)
        level, spread = level + weight * middle, spread + weight
        for name, log_ratio in misjudged.items():
            total[name] += weight * (log_ratio - middle)
            weights[name] += weight
            lead[name].append(times[name] - centre)
    logs = {name: math.log(us) + total[name] / weights[name] for name, us in model.items() if us}
    if inside:
        centre = _mean({name: math.log(us) for name, us in model.items() if us}, shared or logs)
        logs = {
            name: centre
            + min(max(us - centre, min(lead[name])), max(lead[name]) if name in shared else math.inf)
            for name, us in logs.items()
        }
    return {name: math.exp(us + level / spread) for name, us in logs.items()}


def _mean(values: Mapping[str, float], of: Iterable[str]) -> float:
    names = list(of)
    return sum(values[name] for name in names) / len(names)
