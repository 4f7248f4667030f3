"""Each op over a measuring grid: its points, their inputs on the GPU, their times, and the tuned table.

The points are the problem's. How their inputs are drawn on the GPU, what is fetched at least and which launches tuning
tries may be said in a module here that is named after the op; without one, inputs are drawn as for a workload.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ... import executors, ops, problems, registry, variants
from ..._discover import discover, module_names
from ...arguments import as_json, checked, is_path, require_device, require_known, require_range, shown
from ...errors import ArtifactError, CacheError, DslKernelError, InvalidArgumentError
from ...problems.base import GRIDS, Workload
from ...runtime.storage import write_atomically
from ...verification import trial
from .. import bench, measure

Calls = Callable[[str | None, Mapping[str, int] | None], list[bench.Call]]


@checked
@dataclass(frozen=True)
class Point:
    """One point of a grid: an op, a form and its sizes."""

    op: str
    form: str
    params: Mapping[str, Any]

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.params.items())


@dataclass
class Fixture:
    """A point on the GPU.

    Attributes:
        calls: (variant, launch dims), each None for the registry's choice -> the turns of its rotation.
        baseline: the inputs of each turn as the Triton baseline takes them; none where it does not apply.
        time_baseline: appends to notes and gives the baseline's figures.
    """

    calls: Calls
    dims: dict[str, int]
    bytes: float
    flops: dict[str, float]
    ceiling: measure.Ceiling | None = None
    baseline: list[dict[str, Any]] = field(default_factory=list)
    time_baseline: Callable[[list[str]], dict[str, Any] | None] | None = None


@dataclass(frozen=True)
class Grid:
    """What a module here says of its op.

    Attributes:
        prepare: (point, seed) -> its inputs on the GPU.
        launches: (point, the launch rule's choice, knobs of a variant) -> other launch dims that tuning tries.
    """

    prepare: Callable[[Point, int], Fixture]
    launches: Callable[[Point, Mapping[str, int], Mapping[str, Any]], list[dict[str, int]]] | None = None


def _grid(op: str) -> Grid:
    if op not in module_names(__path__):
        return Grid(_drawn)
    found: Grid = discover(__name__, op, lambda: module_names(__path__), "grid", "GRID")
    return found


@checked
def points(op: str, grid: str) -> list[Point]:
    """The points of a grid for an op.

    Raises:
        UnknownNameError: no such operation or grid.
    """
    require_known("operation", op, problems.names(), "operation")
    require_known("grid", grid, GRIDS, "grid")
    problem = problems.get(op)
    if problem.points is not None:
        return [Point(op, form, params) for form, params in problem.points(grid)]
    real = [workload for workload in problem.workloads if workload.tier == "real"]
    return [Point(op, workload.form, dict(workload.params)) for workload in real or problem.workloads]


@checked
def prepare(point: Point, seed: int = 0) -> Fixture:
    """Draw the inputs of a point on the GPU.

    Raises:
        ExecutorUnavailableError: there is none.
    """
    require_device("device", measure.DEVICE)
    require_range("seed", seed, 0, 2**62)
    require_known("operation", point.op, problems.names(), "operation")
    return _grid(point.op).prepare(point, seed)


def _drawn(point: Point, seed: int) -> Fixture:
    """The inputs of a workload of these sizes, in as many copies as a rotation has turns."""
    problem, workload = problems.get(point.op), Workload(point.label, "real", point.form, point.params)
    inputs = trial.draw(point.op, workload, seed)
    dims = trial.dims_of(point.op, workload, inputs)
    static = {name: value for name, value in inputs.items() if isinstance(value, int)}
    device = torch.device(measure.DEVICE)
    sets = []
    for _ in range(bench.turns(problem.bytes(point.form, dims))):
        operands: dict[str, Any] = {
            spec.name: None for spec in problem.operands(point.form) if spec.kind == "in"
        }
        operands.update(trial.to_device(inputs, measure.DEVICE))
        for spec in problem.operands(point.form):
            if spec.kind == "out":
                operands[spec.name] = trial.poison(spec, dims, device)
        sets.append(operands)

    def calls(variant: str | None, launch: Mapping[str, int] | None) -> list[bench.Call]:
        def call(operands: dict[str, Any]) -> None:
            ops._base.run(point.op, point.form, dict(operands), static=static, variant=variant, launch=launch)

        return [partial(call, operands) for operands in sets]

    return facts(point, calls, dims)


def facts(
    point: Point, calls: Calls, dims: dict[str, int], ceiling: measure.Ceiling | None = None
) -> Fixture:
    """A point with the bytes and FLOPs of its dims."""
    problem = problems.get(point.op)
    return Fixture(calls, dims, problem.bytes(point.form, dims), problem.flops(point.form, dims), ceiling)


@checked
def call_of(point: Point, fixture: Fixture) -> registry.Call:
    """The registry's view of a point on the current GPU."""
    dims = {name: value for name, value in fixture.dims.items() if name != "max_len"}
    return registry.Call.on(executors.gpu_at_hand(torch.cuda.current_device()), point.op, point.form, dims)


@checked
def time_point(
    point: Point, fixture: Fixture, *, baseline: bool = True, tuned: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One record: the variant's time, rates, and its ratio to the ceiling and to the Triton baseline.

    Args:
        tuned: entry of `tune_point` whose winner is timed; by default what the registry selects.
    """
    selection = registry.select(call_of(point, fixture), tuned["variant"] if tuned else None)
    launch = {**selection.launch, **(tuned["launch"] if tuned else {})}
    timing = bench.graph_time(fixture.calls(*(tuned["variant"], launch) if tuned else (None, None)))
    record: dict[str, Any] = {
        "op": point.op,
        "form": point.form,
        **point.params,
        "variant": selection.variant.id,
        "rule": "fastest of a sweep" if tuned else selection.rule,
        "launch": launch,
        **timing.to_dict(),
        "gbps": fixture.bytes / timing.us / 1e3,
        "tflops": {unit: count / timing.us / 1e6 for unit, count in fixture.flops.items()},
        "notes": [],
    }
    if fixture.ceiling:
        record["ceiling_us"] = measure.time_ceiling(fixture.ceiling, record)
        record["ratio"] = timing.us / record["ceiling_us"] if record["ceiling_us"] else None
    if baseline and fixture.time_baseline is not None:
        found = fixture.time_baseline(record["notes"])
        record["triton_us"] = found["us"] if found else None
    return record


@checked
def tune_point(point: Point, fixture: Fixture, failed: list[str] | None = None) -> dict[str, Any] | None:
    """The tuned entry of a point: every variant that accepts it, timed; None where none could be.

    Args:
        failed: gets a line for each variant that could not be loaded or launched.
    """
    call = call_of(point, fixture)
    launches = _grid(point.op).launches
    open_variants = [v for v in variants.variants(point.op) if registry.refusal(call, v) is None]
    best: dict[str, tuple[float, dict[str, int]]] = {}
    for variant in open_variants:
        default = registry.explain(call, variant.id).selection
        others = launches(point, default.launch, variant.knobs) if launches and default else []
        for launch in ({}, *others):
            try:
                us = bench.graph_time(fixture.calls(variant.id, launch), replays=15).us
            except DslKernelError as error:
                if failed is not None:
                    failed.append(str(error))
                break
            if variant.id not in best or us < best[variant.id][0]:
                best[variant.id] = (us, launch)
    if not best:
        return None
    winner = min(best, key=lambda name: best[name][0])
    return {
        "op": point.op,
        "form": point.form,
        "bucket": registry.bucket(call),
        "variant": winner,
        "launch": best[winner][1],
        "us": {name: round(us, 3) for name, (us, _) in sorted(best.items())},
    }


@checked
def bucket_of(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a tuned entry is looked up by.

    Raises:
        InvalidArgumentError: an entry without one of its fields.
    """
    if not {"op", "form", "bucket"} <= set(entry) or not isinstance(entry["bucket"], Mapping):
        raise InvalidArgumentError(
            "entry",
            expected="op, form and a bucket of sizes",
            got=", ".join(map(shown, entry)),
            fix="see tune_point",
        )
    return entry["op"], entry["form"], tuple(sorted(entry["bucket"].items()))


@checked
def write_tuned(
    gpu: str, entries: list[dict[str, Any]], environment: Mapping[str, Any], folder: Path | None = None
) -> Path:
    """Merge entries into the GPU's table: a new entry replaces the one of the same op, form and bucket.

    Raises:
        InvalidArgumentError: a name without a letter, or an entry without one of its fields.
        ArtifactError: the table that is there is damaged.
        CacheError: it cannot be written.
    """
    path = (folder or registry.TUNED) / f"{registry.slug(gpu)}.json"
    if not registry.slug(gpu) or not is_path(str(path)):
        raise InvalidArgumentError(
            "gpu", expected="a name with a letter, as files have", got=shown(gpu), fix="pass 'NVIDIA H200'"
        )
    try:
        held = json.loads(path.read_text())["entries"] if path.exists() else []
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            str(path), expected="a tuned table", got=str(error), fix="restore or delete it"
        ) from None
    merged = {bucket_of(entry): entry for entry in [*held, *entries]}
    content = {
        "schema": registry.TUNED_SCHEMA,
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
