"""Records the walks by which the clock ranks variants: for each variant, launches spread over its grids."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from dsl_kernels import clock, problems, registry, variants
from dsl_kernels.arch import GPUS, GpuSpec
from dsl_kernels.clock import cached
from dsl_kernels.runtime.storage import write_atomically
from dsl_kernels.tokens import program
from dsl_kernels.variants import Variant

# At most MOST launches of a variant are walked, each at least APART octaves away from the others.
MOST, APART = 24, 0.3
GRIDS = ("core", "serving", "wide")
# Sizes that a point may omit, at the values with which its inputs are drawn.
UNSAID = {"topk": 2048}
CLOCK = Path(clock.__file__).parent
COUNTS = CLOCK.parent / "tile" / "counting.py"


def digest() -> str:
    """Hash of what a walk depends on besides its variant: the code that counts and times, and the rates."""
    sources = hashlib.sha256()
    for path in (*(CLOCK / f"{name}.py" for name in ("machine", "rates", "sm", "walk", "work")), COUNTS):
        sources.update(program(path.read_bytes()))
    for path in sorted(CLOCK.parent.glob("tuned/*_rates.json")):
        sources.update(path.read_bytes())
    return sources.hexdigest()[:16]


def calls_of(op: str, gpu: GpuSpec, grids: Sequence[str] = GRIDS) -> list[registry.Call]:
    """Every point of an operation's grids, as a call."""
    problem, calls = problems.get(op), {}
    for grid in grids:
        for form, params in problem.grid(grid):
            sizes = {name: value for name, value in params.items() if isinstance(value, int)}
            # A quarter of the pages fits in L2, where queries share rows.
            smaller = [{**sizes, "pages": sizes["pages"] // 4}] if "pages" in sizes else []
            for given in (sizes, *smaller):
                # Scalars are modes of a call: zero is the plain one, unless the point says otherwise.
                plain = {spec.name: 0 for spec in problem.operands(form) if not spec.shape}
                known = {**plain, **UNSAID, **problem.dims_of(form, given)}
                dims = {name: known.get(name, 1) for name in problem.dims(form)}
                call = registry.Call.on(gpu, op, form, dims)
                calls[call.key] = call
    return list(calls.values())


def spread(places: Mapping[Any, cached.Place]) -> list[Any]:
    """Farthest-point sampling: starting from the first place, take the one farthest from those taken."""
    left = dict(places)
    kept = [next(iter(left))]
    away = {key: math.dist(at, left[kept[0]]) for key, at in left.items()}
    while len(kept) < MOST:
        far = max(away, key=away.__getitem__)
        if away[far] < APART:
            break
        kept.append(far)
        away = {key: min(known, math.dist(left[key], left[far])) for key, known in away.items()}
    return kept


def walked(variant: Variant) -> list[list[Any]]:
    """The walks of a variant, one row each: the fields of `cached.Walked`."""
    sms = {}
    # A GPU with a note exists for predictions only.
    for gpu in (row for row in GPUS.values() if row.arch.name == variant.arch and not row.note):
        for call in calls_of(variant.op, gpu):
            if registry.refusal(call, variant) is None:
                sms[gpu.name, call.key] = clock.sm_of(call, variant)
    places = {key: cached.place(sm.share) for key, sm in sms.items()}
    rows = []
    for key in spread(places) if places else []:
        walk = sms[key].walk()
        figures = (*places[key], walk.clocks, walk.busy.get("tensor cores", 0.0), walk.drawn)
        rows.append([*(float(f"{figure:.5g}") for figure in figures), walk.bound])
    return rows


def record(arch: str, progress: Callable[[str], None] = lambda variant: None, jobs: int = 2) -> list[str]:
    """Walk the variants of an architecture whose code or clock changed since; returns their ids.

    A module whose comments alone changed keeps its walks.
    """
    path, now = cached.path_of(arch), digest()
    recorded = json.loads(path.read_text()) if path.exists() else {}
    known = recorded.get("variants", {}) if recorded.get("clock") == now else {}
    wanted = {v.id: v for op in cached.RANKED.get(arch, ()) for v in variants.variants(op, arch=arch)}
    code = {name: _code(variant) for name, variant in wanted.items()}
    # Walk a variant again if no grid called it: a grid may have gained a point that does.
    kept = {
        name: {**r, "sha256": wanted[name].sha256}
        for name, r in known.items()
        if name in wanted and r["code"] == code[name] and r["walks"]
    }
    missing = [variant for name, variant in wanted.items() if name not in kept]
    with ProcessPoolExecutor(jobs) as pool:
        for variant, rows in zip(missing, pool.map(walked, missing), strict=True):
            kept[variant.id] = {"sha256": variant.sha256, "code": code[variant.id], "walks": rows}
            progress(variant.id)
    if missing or kept != known:
        write_atomically(path, _text(arch, now, kept).encode())
    return [variant.id for variant in missing]


def _code(variant: Variant) -> str:
    """Hash of a module's code, without comments and docstrings."""
    return hashlib.sha256(program(variant.path.read_bytes())).hexdigest()[:16]


def _text(arch: str, now: str, kept: Mapping[str, Any]) -> str:
    """The file's text: one line per variant, so that a diff shows which variants changed."""
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept))
    head = {
        "schema": cached.SCHEMA,
        "model": True,
        "arch": arch,
        "clock": now,
        "command": "python -m codegen walks",
    }
    return json.dumps(head, indent=1)[:-2] + f',\n "variants": {{\n{lines}\n }}\n}}\n'
