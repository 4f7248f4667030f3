"""The search for the fastest variant at a user's shapes: swept knobs, ranked by the model, compiled, checked, timed.

The committed variants come first, as what any other has to beat. After them two lists take turns: those that the cost
model ranks best, and those one knob away from the fastest so far. Workers compile the next ones while the GPU times what
is there. Every time goes into a journal as it is taken, so a search that is cut short goes on where it stopped, and a
variant that hung or broke the process is not run again.
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

from .. import __version__, backends, env, executors, measured, policies, programs, registry, variants
from ..arch import get_arch
from ..arguments import as_json, checked
from ..errors import (
    ArtifactError,
    CacheError,
    DslKernelError,
    InvalidArgumentError,
    LaunchError,
    ToolchainError,
    WrongResultError,
)
from ..runtime import cache, pool, storage, store
from ..variants import Variant
from ..verification import trial
from . import bench, grids, measure
from .grids import Fixture, Point, Timed

log = logging.getLogger(__name__)

# Swept variants of one shape that are rendered at most.
MOST_RENDERED = 1000
# A variant that takes longer than this to be checked and timed hangs: the process ends, and the journal passes it over.
HUNG_SECONDS = 300.0
HUNG_STATUS = 75
# Variants that are timed once more at the end, in one go.
FINALISTS = 3
TIERS = ("tiny", "edge")

Progress = Callable[[str], None]


@checked
def swept(call: registry.Call, level: int) -> list[Variant]:
    """Every combination of the knobs up to a level whose guards accept a call, in every DSL; nothing is rendered yet."""
    program, arch = programs.get(call.op), get_arch(call.arch)
    knobs = [knob for knob in program.knobs if not knob.archs or arch.name in knob.archs]
    found = []
    for values in product(*(knob.values(level) for knob in knobs)):
        assigned = dict(zip((knob.name for knob in knobs), values, strict=True))
        if not policies.get(call.op).useful(SimpleNamespace(**assigned), arch, level):
            continue
        for backend in backends.names():
            name = program.variant_id(backend, arch, assigned)
            variant = Variant(name, call.op, backend, arch.name, assigned, Path())
            if registry.refusal(call, variant) is None:
                found.append(variant)
    return found


@checked
def candidates(call: registry.Call, level: int) -> list[Variant]:
    """The variants that a search may try for a call: the generated ones, and at a level above 0 those of the sweep.

    The generator checks them against the architecture and renders what holds, into the cache.

    Raises:
        ToolchainError: a level above 0, and no generator here.
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
    """The folder with these variants' modules; shapes that the same variants serve render them once."""
    source = bench.checkout()
    if source is None or importlib.util.find_spec("jinja2") is None:
        raise ToolchainError(
            "tune",
            expected="a source checkout with Jinja, whose generator renders the variants of a sweep",
            got="an installed library" if source is None else "no Jinja",
            fix="run it in a checkout after `make setup`, or pass --level 0 to search the generated variants alone",
        )
    folder = env.cache_root() / "generated" / "tune"
    argv = [
        sys.executable,
        "-m",
        "codegen",
        "generate",
        "--op",
        op,
        "--arch",
        arch,
        "--level",
        str(level),
    ]
    argv += [
        "--filter",
        f"^(?:{'|'.join(map(re.escape, names))})$",
        "--no-compile",
        "--json",
        "--out",
        str(folder),
    ]
    done = subprocess.run(argv, cwd=source, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InvalidArgumentError(
            op, expected="variants that can be rendered", got=last, fix=f"see `python -m codegen list --op {op}`"
        )  # fmt: skip
    return folder


@dataclass
class Journal:
    """Every time that searches on a GPU took, a line each; `fresh` begins without those of earlier runs."""

    path: Path
    fresh: bool = False
    held: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.fresh:
            return
        for row in bench.read_records(self.path):
            key = tuple(str(row.get(name)) for name in _KEY)
            if row.get("again"):
                self.held.pop(key, None)
            else:
                self.held[key] = row

    def row_of(self, point: Point, variant: Variant) -> dict[str, Any] | None:
        """What is known of a variant at a point; None where it was not tried, or was another text then."""
        return self.held.get(tuple(_key(point, variant)[name] for name in _KEY))

    def add(self, point: Point, variant: Variant, **found: Any) -> None:
        """Note what became of a variant.

        Raises:
            CacheError: the journal cannot be written.
        """
        row = {**_key(point, variant), **found}
        self.held[tuple(row[name] for name in _KEY)] = row
        try:
            bench.append(self.path, as_json("found", row) + "\n")
        except OSError as error:
            raise CacheError(
                str(self.path), expected="a journal that can be written", got=str(error), fix="set DSL_KERNELS_TUNED_DIR"
            ) from None  # fmt: skip


_KEY = ("op", "point", "variant", "sha256", "declaration", "version")


def _key(point: Point, variant: Variant) -> dict[str, str]:
    values = (point.op, point.name, variant.id, variant.sha256, measured.declaration(point.op), __version__)
    return dict(zip(_KEY, values, strict=True))


@dataclass
class Search:
    """One shape's search.

    Attributes:
        deadline: of `time.monotonic`; the committed variants are timed in any point.
        first: variants outside the committed set that won elsewhere, tried right after it.
        times: what was found, of this run and of the journal.
        failed: a line for each variant that could not be compiled or run, or is wrong.
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
        """Try candidates until there are none or the time is over; the tuned entry, or None where none could be timed."""
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
        """The tuned entry of the times: the winner and the generated variants, as others are not kept."""
        best = min(self.times, key=lambda timed: timed.us, default=None)
        kept = [
            timed
            for timed in self.times
            if timed.variant in generated or (best and timed.variant == best.variant)
        ]
        found = grids.entry_of(self.point, self.fixture, kept)
        return found and {**found, "declaration": measured.declaration(self.point.op)}

    def _recall(self, variant: Variant, row: Mapping[str, Any]) -> bool:
        try:
            found = [Timed(variant.id, dict(launch), float(us)) for launch, us in row["times"]]
        except (KeyError, TypeError, ValueError):
            return False
        self.times += found
        return bool(found)

    def _next(self, waiting: Sequence[Variant], known: Mapping[str, Variant]) -> list[Variant]:
        """The next to try: in turns the model's best, and its best of those one knob away from the fastest."""
        size = 2 * (self.jobs or pool.default_jobs())
        best = min(self.times, key=lambda timed: timed.us, default=None)
        fastest = known.get(best.variant) if best else None
        beside = [v for v in waiting if fastest is not None and _knobs_apart(v, fastest) <= 1]
        found: dict[str, Variant] = {}
        for near, ranked in zip([*beside, *[None] * len(waiting)], waiting, strict=False):
            for variant in filter(None, (near, ranked)):
                found.setdefault(variant.id, variant)
            if len(found) >= size:
                break
        return list(found.values())[:size]

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
        """Check a variant and time it; what it is worth, or why it is worth nothing, goes into the journal."""
        progress(variant.id)
        self.tried += 1
        self.journal.add(self.point, variant, begun=True)
        variants.lend(variant)
        try:
            with _watched(variant):
                if variant.id not in {held.id for held in variants.variants(variant.op)}:
                    verify(variant)
                found = list(grids.time_variant(self.point, self.fixture, variant))
        except (DslKernelError, RuntimeError) as error:
            self.failed.append(f"{variant.id}: {error}")
            self.journal.add(self.point, variant, failed=str(error))
            _require_context(variant, error)
            return
        except BaseException:
            # Whoever interrupts a search means no variant.
            self.journal.add(self.point, variant, again=True)
            raise
        self.times += found
        self.journal.add(self.point, variant, times=[[t.launch, t.us] for t in found])

    def _settle(self, known: Mapping[str, Variant], selected: str) -> None:
        """Time the fastest few and what is selected today once more, one after the other: clocks differ between runs."""
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
    """Knobs in which two variants differ; the DSL counts as one."""
    return (a.backend != b.backend) + sum(a.knobs.get(name) != value for name, value in b.knobs.items())


@contextlib.contextmanager
def _watched(variant: Variant) -> Iterator[None]:
    """End the process if a kernel hangs: a synchronisation that waits for it cannot be interrupted otherwise."""

    def end() -> None:
        log.error(
            "%s did not end within %g s, and the process with it: run the same command again, it goes on behind this variant",
            variant.id, HUNG_SECONDS,
        )  # fmt: skip
        os._exit(HUNG_STATUS)

    timer = threading.Timer(HUNG_SECONDS, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _require_context(variant: Variant, error: Exception) -> None:
    """Whether the GPU still answers after a failure: an illegal access destroys the context for good.

    Raises:
        LaunchError: it does not.
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
            fix="run the same command again: it goes on behind this variant; and report it",
        ) from None


@checked
def verify(variant: Variant) -> None:
    """Compare a variant with the reference on the small workloads of its problem, edge cases included.

    Raises:
        WrongResultError: one differs.
    """
    name = executors.for_device(torch.device(measure.DEVICE).type, env.EXECUTOR.get())
    launcher = executors.get(name).prepare(variant)
    once: Any = SimpleNamespace(name=name, prepare=lambda *_: launcher)
    for workload in trial.workloads(variant, *TIERS):
        example = trial.cached_example(variant.op, workload)
        found = trial.run(variant, workload, once, device=measure.DEVICE, example=example).comparison
        if not found.ok:
            raise WrongResultError(
                f"{variant.id} on {workload.name}",
                expected="the reference's result",
                got="; ".join(found.failures),
                fix="report it: no time of it is recorded",
            )


def user_folder() -> Path:
    """Where the user's tables lie.

    Raises:
        CacheError: there is no place for them.
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
    """Where the times of searches on a GPU are kept."""
    return root / "journal" / f"{measured.slug(gpu)}.jsonl"


@checked
def keep(gpu: str, entries: Sequence[Mapping[str, Any]], winners: Mapping[str, Variant]) -> Path:
    """Add entries to the user's table, and the modules of winners that the generated set lacks.

    What the table held for other points stays, as far as it can be used.

    Raises:
        CacheError: there is no place for it, or it cannot be written.
    """
    root = user_folder()
    merged = measured.merged([dict(entry) for entry in entries], measured.user_table(gpu).entries)
    held = measured.added_variants()
    generated = {variant.id for variant in variants.variants()}
    added = {e["variant"]: winners[e["variant"]] for e in entries if e["variant"] not in generated}
    path = root / f"{measured.slug(gpu)}.json"
    made = {**bench.environment(), "dsl_kernels": __version__, "gpu": gpu}
    content = {"schema": measured.SCHEMA, "metadata": made, "entries": merged}
    try:
        storage.make_folder(root)
        if added:
            _keep_modules(root / measured.MODULES, {**held, **added})
        storage.write_atomically(
            path, (as_json("entries", content, indent=1, sort_keys=True) + "\n").encode()
        )
    except OSError as error:
        raise CacheError(
            str(error.filename or path), expected="a folder that can be written", got=error.strerror or str(error),
            fix="correct its permissions, or set DSL_KERNELS_TUNED_DIR to another",
        ) from None  # fmt: skip
    registry.clear()
    return path


def _keep_modules(root: Path, held: Mapping[str, Variant]) -> None:
    """Modules first and their manifest last, so that what it lists is there."""
    records = []
    for variant in held.values():
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
                "id": variant.id, "op": variant.op, "backend": variant.backend, "arch": variant.arch,
                "knobs": dict(variant.knobs), "declared": dict(variant.declared), "file": file.as_posix(),
                "sha256": variant.sha256,
            }
        )  # fmt: skip
    manifest = {"schema": variants.SCHEMA, "variants": sorted(records, key=lambda record: str(record["id"]))}
    storage.write_atomically(
        root / variants.MANIFEST, (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    )


@checked
def named_points(op: str, form: str | None, dims: Mapping[str, Sequence[Any]]) -> list[Point]:
    """The points that sizes name: every combination of the values, and the grid's first point for what they leave out.

    Args:
        dims: sizes by the names of points or of the operands' dims (`Problem.point_of`).

    Raises:
        UnknownNameError: a size that no point of the form has.
        InvalidArgumentError: a value of another kind, or two that say different things of one size.
    """
    problem = programs.get(op).problem
    chosen = form or problem.form_of(dims)
    problem.operands(chosen)
    base = next(
        (point.params for grid in grids.GRIDS for point in grids.points(op, grid) if point.form == chosen), {}
    )
    start = Point(op, chosen, {})
    return [
        replace(start, params={**base, **problem.point_of(chosen, dict(zip(dims, values, strict=True)))})
        for values in product(*dims.values())
    ]
