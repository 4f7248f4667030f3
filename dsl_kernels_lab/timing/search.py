"""The search for the fastest variant at a user's shapes: sweep, rank by the model, compile, check, time.

The committed variants come first: the others have to beat them. Then two lists alternate: the variants that
the cost model ranks best, and those that differ by one knob from the fastest so far. Workers compile the next
variants while the GPU times those that are ready. Every time is written to a journal at once. An interrupted
search continues from the journal, and a variant that hung or killed the process is not run again.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from dsl_kernels import (
    __version__,
    backends,
    env,
    executors,
    measured,
    policies,
    programs,
    registry,
    variants,
)
from dsl_kernels.arch import get_arch
from dsl_kernels.arguments import checked
from dsl_kernels.errors import (
    ArtifactError,
    CacheError,
    DslKernelError,
    InvalidArgumentError,
    LaunchError,
    ToolchainError,
    WrongResultError,
)
from dsl_kernels.runtime import cache, pool, storage, store
from dsl_kernels.variants import Variant

from .. import oracles
from ..arguments import as_json
from ..verification import trial
from . import bench, grids, measure
from .grids import Fixture, Point, Timed

log = logging.getLogger(__name__)

# The most swept variants of one shape that are rendered.
MOST_RENDERED = 1000
# A variant that takes longer to check and time has hung: the process ends, and the next run skips the
# variant.
HUNG_SECONDS = 300.0
HUNG_STATUS = 75
# How many of the fastest variants are timed once more at the end.
FINALISTS = 3
TIERS = ("tiny", "edge")

Progress = Callable[[str], None]


@checked
def swept(call: registry.Call, level: int) -> list[Variant]:
    """Every combination of knobs up to a level, in every DSL, that accepts a call; not rendered yet."""
    program, arch = programs.get(call.op), get_arch(call.arch)
    knobs = [knob for knob in program.knobs if not knob.archs or arch.name in knob.archs]
    accepted = []
    for values in product(*(knob.values(level) for knob in knobs)):
        assigned = dict(zip((knob.name for knob in knobs), values, strict=True))
        if not policies.get(call.op).useful(SimpleNamespace(**assigned), arch, level):
            continue
        for backend in backends.names():
            name = program.variant_id(backend, arch, assigned)
            variant = Variant(name, call.op, backend, arch.name, assigned, Path())
            if registry.refusal(call, variant) is None:
                accepted.append(variant)
    return accepted


@checked
def candidates(call: registry.Call, level: int) -> list[Variant]:
    """The variants that a search may try for a call: the generated ones and, above level 0, the swept ones.

    The generator checks swept variants against the architecture and renders the valid ones into the cache.

    Raises:
        ToolchainError: the level is above 0, and there is no generator here.
        InvalidArgumentError: the generator failed.
    """
    known = {v.id: v for v in variants.variants(call.op) if registry.refusal(call, v) is None}
    if level == 0:
        return list(known.values())
    wanted = {variant.id for variant in swept(call, level)} - known.keys()
    if wanted:
        rendered = variants.in_folder(
            _rendered(call.op, call.arch, level, tuple(sorted(wanted)[:MOST_RENDERED]))
        )
        known |= {variant.id: variant for variant in rendered if variant.id in wanted}
    return list(known.values())


@lru_cache(maxsize=8)
def _rendered(op: str, arch: str, level: int, names: tuple[str, ...]) -> Path:
    """Render variants, once for all shapes that have the same ones; gives the folder with their modules."""
    source = bench.checkout()
    if source is None or importlib.util.find_spec("jinja2") is None:
        raise ToolchainError(
            "tune",
            expected="a source checkout with Jinja, whose generator renders the variants of a sweep",
            got="an installed library" if source is None else "no Jinja",
            fix="run it in a checkout after `make setup`, "
            "or pass --level 0 to search the generated variants alone",
        )
    folder = env.cache_root() / "generated" / "tune"
    pattern = f"^(?:{'|'.join(map(re.escape, names))})$"
    which = ["--op", op, "--arch", arch, "--level", str(level), "--filter", pattern]
    argv = [
        sys.executable,
        "-m",
        "codegen",
        "generate",
        *which,
        "--no-compile",
        "--json",
        "--out",
        str(folder),
    ]
    done = subprocess.run(argv, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InvalidArgumentError(
            op,
            expected="variants that can be rendered",
            got=last,
            fix=f"see `python -m codegen list --op {op}`",
        )
    return folder


@dataclass
class Journal:
    """All times that searches measured on a GPU, one line each; `fresh` ignores those of earlier runs."""

    path: Path
    fresh: bool = False
    rows: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.fresh:
            return
        for row in bench.read_records(self.path):
            key = tuple(str(row.get(name)) for name in _KEY)
            if row.get("again"):
                self.rows.pop(key, None)
            else:
                self.rows[key] = row

    def row_of(self, point: Point, variant: Variant) -> dict[str, Any] | None:
        """The journal's row of a variant at a point; None where it was not tried, or has changed since."""
        return self.rows.get(tuple(_key(point, variant)[name] for name in _KEY))

    def add(self, point: Point, variant: Variant, **outcome: Any) -> None:
        """Record the outcome of a variant.

        Raises:
            CacheError: the journal cannot be written.
        """
        row = {**_key(point, variant), **outcome}
        self.rows[tuple(row[name] for name in _KEY)] = row
        try:
            bench.append(self.path, as_json("found", row) + "\n")
        except OSError as error:
            raise CacheError(
                str(self.path),
                expected="a journal that can be written",
                got=str(error),
                fix="set DSL_KERNELS_TUNED_DIR",
            ) from None


_KEY = ("op", "point", "variant", "sha256", "declaration", "version")


def _key(point: Point, variant: Variant) -> dict[str, str]:
    values = (point.op, point.name, variant.id, variant.sha256, measured.declaration(point.op), __version__)
    return dict(zip(_KEY, values, strict=True))


@dataclass
class Search:
    """The search for one shape.

    Attributes:
        deadline: its end by `time.monotonic`; the committed variants are timed in any case.
        first: ids outside the committed set that won elsewhere, tried together with it.
        times: the times of this run and of the journal.
        failed: a line for each variant that could not be compiled or run, or is wrong.
        tried: how many variants this run has tried.
    """

    point: Point
    fixture: Fixture
    journal: Journal
    deadline: float
    jobs: int | None = None
    first: Sequence[str] = ()
    times: list[Timed] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    tried: int = 0

    def run(self, known: Sequence[Variant], progress: Progress = lambda text: None) -> dict[str, Any] | None:
        """Try candidates until none are left or the time is over.

        Gives the tuned entry, or None where no variant could be timed.
        """
        call = grids.call_of(self.point, self.fixture)
        generated = {variant.id for variant in variants.variants(self.point.op)}
        model = {v.id: registry.predicted_us(call, v) for v in known}
        order = sorted(known, key=lambda v: (math.inf if (us := model[v.id]) is None else us, v.id))
        by_id = {variant.id: variant for variant in known}
        waiting = []
        for variant in order:
            row = self.journal.row_of(self.point, variant)
            if row is None:
                waiting.append(variant)
            elif not self._recall(variant, row):
                self.failed.append(
                    f"{variant.id}: {row.get('failed') or 'did not come back from an earlier run'}"
                )
        batch = [v for v in waiting if v.id in generated or v.id in self.first]
        limit = None
        while batch:
            self._try(batch, limit, progress)
            names = {variant.id for variant in batch}
            waiting = [variant for variant in waiting if variant.id not in names]
            limit = self.deadline
            batch = self._next(waiting, by_id) if time.monotonic() < limit else []
        if self.times:
            self._settle(by_id, registry.select(call).variant.id)
        return self.entry(generated)

    def entry(self, generated: set[str]) -> dict[str, Any] | None:
        """The tuned entry: the times of the winner and of the generated variants; others are not kept."""
        best = min(self.times, key=lambda timed: timed.us, default=None)
        kept = [
            timed
            for timed in self.times
            if timed.variant in generated or (best and timed.variant == best.variant)
        ]
        entry = grids.entry_of(self.point, self.fixture, kept)
        return entry and {**entry, "declaration": measured.declaration(self.point.op)}

    def _recall(self, variant: Variant, row: Mapping[str, Any]) -> bool:
        """Take a variant's times from the journal; False where the row has none."""
        try:
            times = [Timed(variant.id, dict(launch), float(us)) for launch, us in row["times"]]
        except (KeyError, TypeError, ValueError):
            return False
        self.times += times
        return bool(times)

    def _next(self, waiting: Sequence[Variant], known: Mapping[str, Variant]) -> list[Variant]:
        """The next batch: alternately the model's best, and its best of those one knob from the fastest."""
        size = 2 * (self.jobs or pool.default_jobs())
        best = min(self.times, key=lambda timed: timed.us, default=None)
        fastest = known.get(best.variant) if best else None
        beside = [v for v in waiting if fastest is not None and _knobs_apart(v, fastest) <= 1]
        batch: dict[str, Variant] = {}
        for near, ranked in zip([*beside, *[None] * len(waiting)], waiting, strict=False):
            for variant in filter(None, (near, ranked)):
                batch.setdefault(variant.id, variant)
            if len(batch) >= size:
                break
        return list(batch.values())[:size]

    def _try(self, batch: Sequence[Variant], limit: float | None, progress: Progress) -> None:
        by_id = {variant.id: variant for variant in batch}
        missing = store.outside_bundle(batch)
        ready = [pool.Outcome(v.id, 0.0, cached=True) for v in batch if v not in missing]
        left = None if limit is None else max(10.0, limit - time.monotonic())
        seconds = float(env.COMPILE_TIMEOUT.get()) if left is None else min(left, env.COMPILE_TIMEOUT.get())
        outcomes: Any = pool.compile_all(missing, jobs=self.jobs, timeout=seconds)
        with contextlib.closing(outcomes) as compiled:
            for outcome in chain(ready, compiled):
                variant = by_id[outcome.variant]
                if outcome.error is None:
                    self._time(variant, progress)
                else:
                    self.failed.append(str(outcome.error))
                    if outcome.error.code not in cache.TRANSIENT:
                        self.journal.add(self.point, variant, failed=str(outcome.error))
                if limit is not None and time.monotonic() >= limit:
                    return

    def _time(self, variant: Variant, progress: Progress) -> None:
        """Check a variant and time it; its times, or the reason of its failure, go into the journal."""
        progress(variant.id)
        self.tried += 1
        self.journal.add(self.point, variant, begun=True)
        variants.lend(variant)
        try:
            with _watched(variant):
                if variant.id not in {known.id for known in variants.variants(variant.op)}:
                    verify(variant)
                times = list(grids.time_variant(self.point, self.fixture, variant))
        except (DslKernelError, RuntimeError) as error:
            self.failed.append(f"{variant.id}: {error}")
            self.journal.add(self.point, variant, failed=str(error))
            _require_context(variant, error)
            return
        except BaseException:
            # An interrupted search says nothing about the variant: try it again in the next run.
            self.journal.add(self.point, variant, again=True)
            raise
        self.times += times
        self.journal.add(self.point, variant, times=[[t.launch, t.us] for t in times])

    def _settle(self, known: Mapping[str, Variant], selected: str) -> None:
        """Time the fastest few and today's selection once more, back to back: clocks differ between runs."""
        best: dict[str, float] = {}
        for timed in sorted(self.times, key=lambda timed: timed.us):
            best.setdefault(timed.variant, timed.us)
        for name in dict.fromkeys([*list(best)[:FINALISTS], *([selected] if selected in best else [])]):
            variants.lend(known[name])
            again: list[Timed] = []
            try:
                with _watched(known[name]):
                    again.extend(grids.time_variant(self.point, self.fixture, known[name]))
            except (DslKernelError, RuntimeError) as error:
                again = []
                self.failed.append(f"{name}: {error}")
                _require_context(known[name], error)
            self.times = [timed for timed in self.times if timed.variant != name] + again


def _knobs_apart(a: Variant, b: Variant) -> int:
    """How many knobs differ between two variants; the DSL counts as one."""
    return (a.backend != b.backend) + sum(a.knobs.get(name) != value for name, value in b.knobs.items())


@contextlib.contextmanager
def _watched(variant: Variant) -> Iterator[None]:
    """End the process if a kernel hangs: nothing else interrupts a synchronisation that waits for it."""

    def end() -> None:
        log.error(
            "%s did not end within %g s, so the process ends: "
            "run the same command again, it skips this variant",
            variant.id,
            HUNG_SECONDS,
        )
        os._exit(HUNG_STATUS)

    timer = threading.Timer(HUNG_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _require_context(variant: Variant, error: Exception) -> None:
    """Check that the GPU still answers after a failure: an illegal access destroys the context.

    Raises:
        LaunchError: the GPU does not answer.
    """
    if measure.DEVICE == "cpu":
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        raise LaunchError(
            variant.id,
            expected="a kernel that leaves the GPU usable",
            got=str(error),
            fix="run the same command again, it skips this variant; and report it",
        ) from None


@checked
def verify(variant: Variant) -> None:
    """Compare a variant with the reference on the small workloads of its problem, including edge cases.

    Raises:
        WrongResultError: a result differs.
    """
    name = executors.for_device(torch.device(measure.DEVICE).type, env.EXECUTOR.get())
    launcher = executors.get(name).prepare(variant)
    once: Any = SimpleNamespace(name=name, prepare=lambda *_: launcher)
    for workload in trial.workloads(variant, *TIERS):
        example = trial.cached_example(variant.op, workload)
        comparison = trial.run(variant, workload, once, device=measure.DEVICE, example=example).comparison
        if not comparison.ok:
            raise WrongResultError(
                f"{variant.id} on {workload.name}",
                expected="the reference's result",
                got="; ".join(comparison.failures),
                fix="report it: no time of it is recorded",
            )


def user_folder() -> Path:
    """The folder of the user's tables.

    Raises:
        CacheError: there is no such folder.
    """
    root = env.tuned_root()
    if root is None:
        raise CacheError(
            "the user's tuned table",
            expected="a home directory or DSL_KERNELS_TUNED_DIR",
            got="neither",
            fix="set DSL_KERNELS_TUNED_DIR to a folder that can be written",
        )
    return root


def journal_path(root: Path, gpu: str) -> Path:
    """The path of the journal of searches on a GPU."""
    return root / "journal" / f"{measured.slug(gpu)}.jsonl"


@checked
def keep(gpu: str, entries: Sequence[Mapping[str, Any]], winners: Mapping[str, Variant]) -> Path:
    """Add entries to the user's table, and keep the modules of winners that the generated set lacks.

    The table's usable entries for other points stay.

    Raises:
        CacheError: there is no folder for the table, or it cannot be written.
    """
    root = user_folder()
    merged = measured.merged([dict(entry) for entry in entries], measured.user_table(gpu).entries)
    kept = measured.added_variants()
    generated = {variant.id for variant in variants.variants()}
    added = {e["variant"]: winners[e["variant"]] for e in entries if e["variant"] not in generated}
    path = root / f"{measured.slug(gpu)}.json"
    made = {**bench.environment(), "dsl_kernels": __version__, "gpu": gpu}
    content = {"schema": measured.SCHEMA, "metadata": made, "entries": merged}
    try:
        storage.make_folder(root)
        if added:
            _keep_modules(root / measured.MODULES, {**kept, **added})
        storage.write_atomically(
            path, (as_json("entries", content, indent=1, sort_keys=True) + "\n").encode()
        )
    except OSError as error:
        raise CacheError(
            str(error.filename or path),
            expected="a folder that can be written",
            got=error.strerror or str(error),
            fix="correct its permissions, or set DSL_KERNELS_TUNED_DIR to another",
        ) from None
    registry.clear()
    return path


def _keep_modules(root: Path, kept: Mapping[str, Variant]) -> None:
    """Write the modules first and their manifest last, so that everything it lists exists."""
    records = []
    for variant in kept.values():
        text = variant.path.read_bytes()
        if hashlib.sha256(text).hexdigest() != variant.sha256:
            raise ArtifactError(
                str(variant.path),
                expected="the module that was timed",
                got="another text",
                fix="run the command again",
            )
        file = Path(variant.arch, variant.op, f"{variant.id}.py")
        storage.make_folder((root / file).parent)
        if variant.path != root / file:
            storage.write_atomically(root / file, text)
        records.append(
            {
                "id": variant.id,
                "op": variant.op,
                "backend": variant.backend,
                "arch": variant.arch,
                "knobs": dict(variant.knobs),
                "declared": dict(variant.declared),
                "file": file.as_posix(),
                "sha256": variant.sha256,
            }
        )
    manifest = {"schema": variants.SCHEMA, "variants": sorted(records, key=lambda record: str(record["id"]))}
    storage.write_atomically(
        root / variants.MANIFEST, (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    )


@checked
def named_points(op: str, form: str | None, dims: Mapping[str, Sequence[Any]]) -> list[Point]:
    """The points that sizes name: every combination of values; the grid's first point gives the other sizes.

    Args:
        op: The operation.
        form: The form; by default the one that the sizes imply.
        dims: Values of sizes, by the names of points or of the operands' dims (`Oracle.point_of`).

    Raises:
        UnknownNameError: no point of the form has such a size.
        InvalidArgumentError: a value has another kind, or two values contradict each other.
    """
    oracle = oracles.get(op)
    chosen = form or oracle.form_of(dims)
    oracle.operands(chosen)
    base = next(
        (point.params for grid in grids.GRIDS for point in grids.points(op, grid) if point.form == chosen), {}
    )
    start = Point(op, chosen, {})
    return [
        replace(start, params={**base, **oracle.point_of(chosen, dict(zip(dims, values, strict=True)))})
        for values in product(*dims.values())
    ]
