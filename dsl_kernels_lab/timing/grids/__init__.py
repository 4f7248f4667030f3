"""Measuring grids: the points of each operation, their inputs on the GPU, their times, and the tuned table.

The problem defines the points. A module here with the operation's name can define how inputs are drawn on the
GPU, the ceiling, and the launches that tuning tries; without one, inputs are drawn as for a workload.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dsl_kernels import executors, measured, ops, registry, variants
from dsl_kernels._discover import discover, module_names
from dsl_kernels.arguments import checked, is_path, require_known, require_range, shown
from dsl_kernels.errors import (
    ArtifactError,
    CacheError,
    DslKernelError,
    InvalidArgumentError,
    WrongResultError,
)
from dsl_kernels.problems.base import GRIDS, Comparison
from dsl_kernels.runtime.storage import read_file, write_atomically
from dsl_kernels.variants import Variant

from ... import oracles
from ...arguments import as_json, require_device
from ...oracles import Workload
from ...verification import trial
from .. import bench, measure

Calls = Callable[[str | None, Mapping[str, int] | None], list[bench.Call]]


@checked
@dataclass(frozen=True)
class Point:
    """A point of a grid: an operation, a form and sizes."""

    op: str
    form: str
    params: Mapping[str, Any]

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.params.items())

    @property
    def name(self) -> str:
        """Form and sizes: `--point` searches in it, and records are found by it."""
        return f"{self.form} {self.label}"


@dataclass(frozen=True)
class Sample:
    """Some rows of the first turn, to compare with the reference.

    Attributes:
        given: the inputs of these rows, as the problem takes them.
        outputs: the whole outputs of the first turn, which a check poisons first.
        got: gives the kernel's results for these rows.
    """

    given: Mapping[str, Any]
    outputs: tuple[torch.Tensor, ...]
    got: Callable[[], dict[str, torch.Tensor]]


@dataclass
class Fixture:
    """A point on the GPU.

    Attributes:
        calls: (variant, launch dims), None for the registry's choice -> the turns of the rotation.
        dims: the dims of the call.
        bytes: bytes of the operands.
        flops: FLOPs by unit.
        ceiling: fetches the bytes that a kernel must fetch; None where nothing does.
        baseline: the inputs of each turn as the Triton baseline takes them; empty where it does not apply.
        time_baseline: gives the baseline's figures, and appends to notes.
        sample: gives the rows that `check_variant` compares.
    """

    calls: Calls
    dims: dict[str, int]
    bytes: float
    flops: dict[str, float]
    ceiling: measure.Ceiling | None = None
    baseline: list[dict[str, Any]] = field(default_factory=list)
    time_baseline: Callable[[list[str]], dict[str, Any] | None] | None = None
    sample: Callable[[], Sample] | None = None
    _expected: tuple[Sample, dict[str, torch.Tensor]] | None = field(default=None, repr=False)

    def expected(self, point: Point) -> tuple[Sample, dict[str, torch.Tensor]] | None:
        """The sample and the reference's results for it, computed once."""
        if self._expected is None and self.sample is not None:
            sample = self.sample()
            self._expected = sample, oracles.get(point.op).reference(point.form, sample.given)
        return self._expected


@dataclass(frozen=True)
class Grid:
    """What a module here defines for its operation.

    Attributes:
        prepare: (point, seed) -> the inputs on the GPU.
        launches: (point, the launch rule's choice, knobs of a variant) -> other launch dims that tuning
            tries.
        step: (point, seed) -> what the operation adds to a decode step of these sizes; None where there is no
            such step.
        usual: form -> the sizes to use where none are given; by default those of the middle core point of the
            form.
        reads: (point, knobs of a variant) -> what a kernel has to read, as fields of `profile.Workload`; by
            default each of the problem's bytes once.
    """

    prepare: Callable[[Point, int], Fixture]
    launches: Callable[[Point, Mapping[str, int], Mapping[str, Any]], list[dict[str, int]]] | None = None
    step: Callable[[Point, int], dict[str, Any] | None] | None = None
    usual: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    reads: Callable[[Point, Mapping[str, Any]], dict[str, Any]] | None = None


def _grid(op: str) -> Grid:
    if op not in module_names(__path__):
        return Grid(_drawn)
    grid: Grid = discover(__name__, op, lambda: module_names(__path__), "grid", "GRID")
    return grid


@checked
def points(op: str, grid: str) -> list[Point]:
    """The points of an operation's grid.

    Raises:
        UnknownNameError: no such operation or grid.
    """
    require_known("operation", op, oracles.names(), "operation")
    require_known("grid", grid, GRIDS, "grid")
    return [Point(op, form, params) for form, params in oracles.get(op).grid(grid)]


@checked
def usual(op: str, form: str | None = None) -> Point:
    """A point of ordinary sizes, for an operation without given sizes.

    Args:
        op: The operation.
        form: The form; by default that of the first core point.

    Raises:
        UnknownNameError: no such operation, or the operation has no such form.
    """
    core = points(op, "core")
    form = core[0].form if form is None else form
    require_known("form", form, list(oracles.get(op).forms), f"form of {op}")
    given = _grid(op).usual.get(form)
    if given is not None:
        return Point(op, form, dict(given))
    mine = [point for point in core if point.form == form] or points(op, "serving")
    return Point(op, form, dict(mine[len(mine) // 2].params))


@checked
def reads(point: Point, variant: str = "") -> dict[str, Any]:
    """What a kernel has to read at a point, computed without a GPU, as fields of `profile.Workload`."""
    grid = _grid(point.op)
    if grid.reads is None:
        return {"unique_bytes": float(oracles.get(point.op).bytes(point.form, point.params))}
    return grid.reads(point, variants.get(variant).knobs if "__" in variant else {})


# Seconds after which the wide grid starts no further point, by default.
WIDE_SECONDS = 300.0


def spread(points: Sequence[Point]) -> list[Point]:
    """The points in a fixed random order, so that the first few of them cover the whole grid."""
    return random.Random(0).sample(points, len(points))


@checked
def prepare(point: Point, seed: int = 0) -> Fixture:
    """Draw the inputs of a point on the GPU.

    Raises:
        ExecutorUnavailableError: there is no GPU.
        UnknownNameError: no such operation.
    """
    require_device("device", measure.DEVICE)
    require_range("seed", seed, 0, 2**62)
    require_known("operation", point.op, oracles.names(), "operation")
    return _grid(point.op).prepare(point, seed)


def _drawn(point: Point, seed: int) -> Fixture:
    """The inputs of a workload of these sizes, one copy per turn of the rotation."""
    oracle, workload = oracles.get(point.op), Workload(point.label, "real", point.form, point.params)
    inputs = trial.draw(point.op, workload, seed)
    dims = trial.dims_of(point.op, workload, inputs)
    static = {name: value for name, value in inputs.items() if isinstance(value, int)}
    device = torch.device(measure.DEVICE)
    sets = []
    for _ in range(bench.turns(oracle.bytes(point.form, dims))):
        operands: dict[str, Any] = {
            spec.name: None for spec in oracle.operands(point.form) if spec.kind == "in"
        }
        operands.update(trial.to_device(inputs, measure.DEVICE))
        for spec in oracle.operands(point.form):
            if spec.kind == "out":
                operands[spec.name] = trial.poison(spec, dims, device)
        sets.append(operands)

    def calls(variant: str | None, launch: Mapping[str, int] | None) -> list[bench.Call]:
        def call(operands: dict[str, Any]) -> None:
            ops._base.run(point.op, point.form, dict(operands), static=static, variant=variant, launch=launch)

        return [partial(call, operands) for operands in sets]

    fixture = facts(point, calls, dims)
    given = {spec.name: sets[0][spec.name] for spec in oracle.operands(point.form) if spec.name in inputs}
    outs = {s.name: sets[0][s.name] for s in oracle.operands(point.form) if s.kind == "out"}
    fixture.sample = lambda: Sample({**static, **given}, tuple(outs.values()), lambda: outs)
    return fixture


def facts(
    point: Point, calls: Calls, dims: dict[str, int], ceiling: measure.Ceiling | None = None
) -> Fixture:
    """A fixture with the bytes and FLOPs of its dims."""
    oracle = oracles.get(point.op)
    return Fixture(calls, dims, oracle.bytes(point.form, dims), oracle.flops(point.form, dims), ceiling)


@checked
def call_of(point: Point, fixture: Fixture) -> registry.Call:
    """The registry's call for a point on the current GPU."""
    dims = {name: value for name, value in fixture.dims.items() if name != "max_len"}
    return registry.Call.on(executors.gpu_at_hand(torch.cuda.current_device()), point.op, point.form, dims)


# Longer calls are those of prompts, which run back to back: their sustained time is measured too.
SUSTAINED_FROM_US = 300.0


@checked
def check_variant(
    point: Point, fixture: Fixture, variant: str | None = None, launch: Mapping[str, int] | None = None
) -> Comparison | None:
    """Run the first turn once and compare some rows with the reference; None where the grid has no sample.

    Raises:
        WrongResultError: the results differ.
    """
    pair = fixture.expected(point)
    if pair is None:
        return None
    sample, expected = pair
    for tensor in sample.outputs:
        tensor.fill_(float("nan") if tensor.dtype.is_floating_point else -77)
    fixture.calls(variant, launch)[0]()
    if torch.device(measure.DEVICE).type == "cuda":
        torch.cuda.synchronize()
    here = next(iter(expected.values())).device
    given, got = (
        {name: value.to(here) if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        for values in (sample.given, sample.got())
    )
    comparison = oracles.get(point.op).compare(point.form, given, got, expected)
    if not comparison.ok:
        raise WrongResultError(
            f"{variant or 'the selected variant'} at {point.op} {point.name}",
            expected="the reference's result",
            got="; ".join(comparison.failures),
            fix="report it: no time of it is recorded",
        )
    return comparison


@checked
def time_point(
    point: Point,
    fixture: Fixture,
    *,
    baseline: bool = True,
    tuned: Mapping[str, Any] | None = None,
    check: bool = True,
) -> dict[str, Any]:
    """Measure a record: time, rates, clocks, and the ratios to the ceiling and to the Triton baseline.

    Args:
        point: The point.
        fixture: Its inputs.
        baseline: Time the Triton baseline too.
        tuned: An entry of `tune_point` whose winner to time; by default the registry's selection.
        check: Compare some rows with the reference first.

    Raises:
        WrongResultError: the results differ.
    """
    selection = registry.select(call_of(point, fixture), tuned["variant"] if tuned else None)
    launch = {**selection.launch, **(tuned["launch"] if tuned else {})}
    # Pass only the entry's launch dims: the launch rule's own dims are no arguments of a call.
    asked = (tuned["variant"], tuned["launch"]) if tuned else (None, None)
    compared = check_variant(point, fixture, *asked) if check else None
    calls = fixture.calls(*asked)
    before = bench.clocks()
    timing = bench.graph_time(calls)
    record: dict[str, Any] = {
        "op": point.op,
        "form": point.form,
        **point.params,
        "point": point.name,
        "variant": selection.variant.id,
        "rule": SWEPT if tuned else selection.rule,
        "launch": launch,
        **timing.to_dict(),
        "gbps": fixture.bytes / timing.us / 1e3,
        "tflops": {unit: count / timing.us / 1e6 for unit, count in fixture.flops.items()},
        "per_second": per_second(point.op, point.form, fixture.dims, timing.us),
        "clocks": {"before": before, "after": bench.clocks()},
        "sustained": bench.sustained(calls) if timing.us >= SUSTAINED_FROM_US else None,
        "checked": compared is not None,
        "notes": [],
    }
    if fixture.ceiling:
        record["ceiling_us"] = measure.time_ceiling(fixture.ceiling, record)
        record["ratio"] = timing.us / record["ceiling_us"] if record["ceiling_us"] else None
    if baseline and fixture.time_baseline is not None:
        figures = fixture.time_baseline(record["notes"])
        record["triton_us"] = figures["us"] if figures else None
    return record


def per_second(op: str, form: str, dims: Mapping[str, int], us: float) -> dict[str, float]:
    """Unit -> units per second of a call that takes `us`; empty for a problem without a unit."""
    units = oracles.get(op).units
    if units is None:
        return {}
    name, count = units(form, dims)
    return {name: count / us * 1e6}


# The fields of a record that are not sizes of its point.
FIGURES = {
    "op", "form", "point", "variant", "rule", "launch", "us", "low", "high", "calls", "replays", "gbps",
    "tflops", "clocks", "per_second", "sustained", "checked", "notes", "ceiling_us", "ratio", "triton_us",
    "step", "regret", "own", "environment",
}  # fmt: skip


def sizes_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a record's point."""
    return {name: value for name, value in record.items() if name not in FIGURES}


SWEPT = "fastest of a sweep"
# How to describe where selection is judged, by whether the GPU's own tables were used.
JUDGED = {True: "where nothing was tuned", False: "without a table of this GPU's own"}


def record_key(record: Mapping[str, Any], environment: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key of a record: the kind of measurement, its point, and the GPU and commit that were measured."""
    if record.get("regret"):
        mode = "regret" if record.get("own", True) else "sibling"
    else:
        mode = "tune" if record.get("rule") == SWEPT else "time"
    place = (environment.get("gpu"), environment.get("commit"), environment.get("dsl_kernels"))
    return mode, record.get("op"), record.get("point"), *place


@checked
def runnable(point: Point, fixture: Fixture) -> list[Variant]:
    """The generated variants that accept a point."""
    call = call_of(point, fixture)
    return [v for v in variants.variants(point.op) if registry.refusal(call, v) is None]


@dataclass(frozen=True)
class Timed:
    """A variant's time with launch dims; `launch` is empty for those of its launch rule."""

    variant: str
    launch: dict[str, int]
    us: float


@checked
def time_variant(point: Point, fixture: Fixture, variant: Variant) -> Iterator[Timed]:
    """Time a variant at a point, with its launch rule's dims and with those of the grid that it accepts.

    Each is checked first.

    Raises:
        WrongResultError: the variant's outputs differ from the reference.
        DslKernelError: the variant cannot be loaded or launched.
    """
    launches, call = _grid(point.op).launches, call_of(point, fixture)
    peak = call.row.tensor_tflops
    products = sum(count / peak[unit] / 1e6 for unit, count in fixture.flops.items() if unit in peak)
    default = registry.explain(call, variant.id, predict=False).selection
    others = launches(point, default.launch, variant.knobs) if launches and default else []
    for launch in ({}, *others):
        if registry.refusal(replace(call, dims={**call.dims, **launch}), variant):
            continue
        check_variant(point, fixture, variant.id, launch)
        calls = fixture.calls(variant.id, launch)
        yield Timed(variant.id, launch, bench.settled(calls, products, replays=15))


@checked
def time_all(
    point: Point, fixture: Fixture, chosen: Iterable[Variant], failed: list[str] | None = None
) -> list[Timed]:
    """Time variants; `failed` gets a line for each that could not be loaded or launched, or is wrong."""
    times: list[Timed] = []
    for variant in chosen:
        mine: list[Timed] = []
        try:
            mine.extend(time_variant(point, fixture, variant))
        except WrongResultError as error:
            mine = []
            _note(failed, error)
        except DslKernelError as error:
            _note(failed, error)
        times += mine
    return times


def _note(failed: list[str] | None, error: DslKernelError) -> None:
    if failed is not None:
        failed.append(str(error))


@checked
def entry_of(point: Point, fixture: Fixture, times: Sequence[Timed]) -> dict[str, Any] | None:
    """The tuned entry from times: the fastest variant with its launch dims, and the best time of each one."""
    best: dict[str, Timed] = {}
    for timed in times:
        if timed.variant not in best or timed.us < best[timed.variant].us:
            best[timed.variant] = timed
    if not best:
        return None
    winner = min(best.values(), key=lambda timed: timed.us)
    return {
        "op": point.op,
        "form": point.form,
        "bucket": registry.deciding(call_of(point, fixture)),
        "variant": winner.variant,
        "launch": winner.launch,
        "us": {name: round(timed.us, 3) for name, timed in sorted(best.items())},
    }


@checked
def tune_point(point: Point, fixture: Fixture, failed: list[str] | None = None) -> dict[str, Any] | None:
    """The tuned entry of a point, from the times of all generated variants that accept it, or None.

    Args:
        point: The point.
        fixture: Its inputs.
        failed: Gets a line for each variant that could not be loaded or launched, or is wrong.
    """
    return entry_of(point, fixture, time_all(point, fixture, runnable(point, fixture), failed))


@checked
def is_tuned(point: Point, fixture: Fixture) -> bool:
    """Whether a tuned table of this GPU has an entry for exactly these sizes."""
    return registry.explain(call_of(point, fixture), predict=False).tuned is not None


@checked
def regret_point(
    point: Point, fixture: Fixture, failed: list[str] | None = None, *, own: bool = True
) -> dict[str, Any] | None:
    """What selection loses at a point, against the fastest of all generated variants.

    None where the selected variant has no time.

    Args:
        point: The point.
        fixture: Its inputs.
        failed: Gets a line for each variant that could not be loaded or launched, or is wrong.
        own: False judges the selection of a GPU without tables of its own.
    """
    selection = registry.select(replace(call_of(point, fixture), own=own))
    times = time_all(point, fixture, runnable(point, fixture), failed)
    # The selected variant with the selection's launch dims, or with the launch rule's.
    mine = [
        timed
        for timed in times
        if timed.variant == selection.variant.id and timed.launch.items() <= selection.launch.items()
    ]
    if not mine:
        return None
    us = max(mine, key=lambda timed: len(timed.launch)).us
    best = min(times, key=lambda timed: timed.us)
    return {
        "op": point.op,
        "form": point.form,
        **point.params,
        "point": point.name,
        "variant": selection.variant.id,
        "rule": selection.rule,
        "launch": dict(selection.launch),
        "own": own,
        "us": us,
        "regret": {
            "best": best.variant,
            "launch": best.launch,
            "us": best.us,
            "lost": us / best.us - 1,
            "variants": len({timed.variant for timed in times}),
        },
        "clocks": {"after": bench.clocks()},
        "notes": [],
    }


@checked
def step_point(point: Point, seed: int = 0) -> dict[str, Any] | None:
    """What a point's operation adds to a decode step of its sizes; None where there is no such step."""
    step = _grid(point.op).step
    return step(point, seed) if step is not None else None


@checked
def bucket_of(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key of a tuned entry: operation, form and the deciding sizes.

    Raises:
        InvalidArgumentError: the entry lacks a field.
    """
    if not {"op", "form", "bucket"} <= set(entry) or not isinstance(entry["bucket"], Mapping):
        raise InvalidArgumentError(
            "entry",
            expected="op, form and a bucket of sizes",
            got=", ".join(map(shown, entry)),
            fix="see tune_point",
        )
    return measured.point_of(entry)


@checked
def write_tuned(
    gpu: str, entries: list[dict[str, Any]], environment: Mapping[str, Any], folder: Path | None = None
) -> Path:
    """Merge entries into the GPU's table: a new entry replaces that of the same operation, form and bucket.

    Raises:
        InvalidArgumentError: the GPU's name has no letter, or an entry lacks a field.
        ArtifactError: the present table is damaged.
        CacheError: the table cannot be written.
    """
    path = (folder or measured.TUNED) / f"{measured.slug(gpu)}.json"
    if not measured.slug(gpu) or not is_path(str(path)):
        raise InvalidArgumentError(
            "gpu", expected="a name with a letter, as files have", got=shown(gpu), fix="pass 'NVIDIA H200'"
        )
    try:
        kept = json.loads(read_file(path).decode())["entries"] if path.exists() else []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            str(path), expected="a tuned table", got=str(error), fix="restore or delete it"
        ) from None
    merged = {bucket_of(entry): entry for entry in [*kept, *entries]}
    content = {
        "schema": measured.TUNED_SCHEMA,
        "metadata": dict(environment),
        "entries": [merged[k] for k in sorted(merged)],
    }
    text = as_json("entries", content, indent=1, sort_keys=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, f"{text}\n".encode())
    except OSError as error:
        raise CacheError(
            str(path), expected="a file that can be written", got=str(error), fix="pass another folder"
        ) from None
    registry.clear()
    return path
