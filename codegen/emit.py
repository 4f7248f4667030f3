"""Write, compare and clean the generated set: one module a variant and a manifest that lists them all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsl_kernels.tile.plan import barrier_plan

from .render import render
from .sweep import Candidate, Filter

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "generated"
MANIFEST = "manifest.json"
SCHEMA = 1


@dataclass
class Emission:
    """What a run did to the output folder; paths are relative to it."""

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def drifted(self) -> list[str]:
        return sorted([*self.written, *self.removed])


def relative_path(candidate: Candidate) -> str:
    return f"{candidate.arch.name}/{candidate.program.op}/{candidate.id}.py"


def entry(candidate: Candidate, text: str) -> dict[str, Any]:
    """The manifest's record of one variant."""
    schedule = candidate.program.schedule(candidate.knobs, candidate.arch)
    return {
        "id": candidate.id,
        "op": candidate.program.op,
        "backend": candidate.backend,
        "arch": candidate.arch.name,
        "knobs": candidate.knobs,
        "file": relative_path(candidate),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "declared": {
            "threads": schedule.threads,
            "smem_bytes": schedule.smem_bytes() + barrier_plan(schedule).smem_bytes,
            "tmem_columns": schedule.tmem_columns(),
            "mma": sorted({mma.unit for mma in schedule.mmas}),
        },
    }


def _render_all(
    candidates: Iterable[Candidate], progress: Callable[[Candidate], None] | None
) -> dict[str, str]:
    texts: dict[str, str] = {}
    records = []
    for candidate in candidates:
        if progress is not None:
            progress(candidate)
        text = render(candidate)
        texts[relative_path(candidate)] = text
        records.append(entry(candidate, text))
    texts[MANIFEST] = json.dumps({"schema": SCHEMA, "variants": records}, indent=1, sort_keys=True) + "\n"
    return texts


def emit(
    candidates: Iterable[Candidate],
    root: Path = GENERATED,
    *,
    only: Filter = Filter(),
    dry_run: bool = False,
    progress: Callable[[Candidate], None] | None = None,
) -> Emission:
    """Render every candidate below `root`, touching only files whose content changes.

    Args:
        only: the filter that `candidates` passed; files and manifest records outside it are kept as they are, those
            inside it that no candidate makes any more are removed.
        dry_run: compare only.
        progress: called before each variant is rendered.
    """
    texts = _render_all(candidates, progress)
    outside = _outside(root, only)
    if outside:
        texts[MANIFEST] = _merged(outside, texts[MANIFEST])
    kept = {record["file"] for record in outside}
    result = Emission()
    for relative, text in sorted(texts.items()):
        path = root / relative
        if path.exists() and path.read_text() == text:
            result.unchanged.append(relative)
            continue
        result.written.append(relative)
        if not dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        if relative not in texts and relative not in kept:
            result.removed.append(relative)
            if not dry_run:
                path.unlink()
    return result


def _outside(root: Path, only: Filter) -> list[dict[str, Any]]:
    """Manifest records that a filtered run must leave alone."""
    path = root / MANIFEST
    if only == Filter() or not path.exists():
        return []
    records = json.loads(path.read_text())["variants"]
    return [
        r for r in records if not (only.accepts(r["op"], r["backend"], r["arch"]) and only.matches(r["id"]))
    ]


def _merged(outside: list[dict[str, Any]], fresh: str) -> str:
    new = json.loads(fresh)
    new["variants"] = sorted([*outside, *new["variants"]], key=lambda record: (record["arch"], record["id"]))
    return json.dumps(new, indent=1, sort_keys=True) + "\n"
