"""Write, compare and clean the generated set: one module per variant, and a manifest that lists them all.

The manifest decides which files of a folder are ours. A folder with files but no manifest is refused, and
only files that a manifest lists are ever deleted.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from dsl_kernels import env, programs
from dsl_kernels.errors import InvalidArgumentError
from dsl_kernels.manifest import MANIFEST, text_of
from dsl_kernels.runtime import storage
from dsl_kernels.runtime.pool import usable_cores
from dsl_kernels.tile.plan import barrier_plan

from .render import render
from .sweep import ROOT, Filter, Instance

GENERATED = ROOT / "generated"
# Starting a pool of processes takes as long as rendering this many modules.
WORTH_A_POOL = 32
# Marks a generated module as ours even if its run was killed before it wrote the manifest.
_MARK = "Generated from dsl_kernels/kernels/"


@dataclass
class Emission:
    """What a run did to the output folder; paths are relative to it.

    `foreign` modules are listed by no manifest: they stay, and the folder counts as out of step.
    """

    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)

    @property
    def drifted(self) -> list[str]:
        return sorted([*self.written, *self.removed, *self.foreign])


def relative_path(instance: Instance) -> str:
    return f"{instance.arch.name}/{instance.program.op}/{instance.id}.py"


def entry(instance: Instance, text: str) -> dict[str, Any]:
    """The manifest's record of a variant."""
    schedule = instance.program.schedule(instance.knobs, instance.arch)
    return {
        "id": instance.id,
        "op": instance.program.op,
        "backend": instance.backend,
        "arch": instance.arch.name,
        "knobs": instance.knobs,
        "file": relative_path(instance),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "declared": {
            "threads": schedule.threads,
            "smem_bytes": schedule.smem_bytes() + barrier_plan(schedule).smem_bytes,
            "tmem_columns": schedule.tmem_columns(),
            "mma": sorted({mma.unit for mma in schedule.mmas}),
        },
    }


def _rendered(instance: Instance) -> tuple[str, dict[str, Any]]:
    text = render(instance)
    return text, entry(instance, text)


@contextmanager
def _renderer(instances: list[Instance]) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map` over instances; a pool of processes if they are many and another process can load them."""
    known = (programs.get(instance.program.op) is instance.program for instance in instances)
    if len(instances) < WORTH_A_POOL or not all(known):
        yield map
        return
    # Not fork: a child would inherit the locks of the thread that draws the progress bar.
    with ProcessPoolExecutor(env.JOBS.get() or usable_cores(), multiprocessing.get_context("spawn")) as pool:
        yield partial(pool.map, chunksize=8)


def _render_all(instances: Iterable[Instance], progress: Callable[[Instance], None] | None) -> dict[str, str]:
    texts: dict[str, str] = {}
    records = []
    listed = list(instances)
    with _renderer(listed) as rendered:
        for instance, (text, record) in zip(listed, rendered(_rendered, listed), strict=True):
            if progress is not None:
                progress(instance)
            texts[relative_path(instance)] = text
            records.append(record)
    texts[MANIFEST] = text_of(records)
    return texts


def emit(
    instances: Iterable[Instance],
    root: Path = GENERATED,
    *,
    only: Filter = Filter(),
    dry_run: bool = False,
    progress: Callable[[Instance], None] | None = None,
) -> Emission:
    """Render every instance below `root`, touching only files whose content changes.

    Each file is replaced atomically, the manifest last: a run that is killed leaves the old manifest, and the
    next run completes it.

    Args:
        only: the filter that `instances` passed. Files and manifest records outside it are kept; those inside
            it that no instance produces any more are removed.
        dry_run: compare only.
        progress: called after each variant is rendered.

    Raises:
        InvalidArgumentError: `root` is not a folder, holds files but no manifest of this project, or holds a
            foreign file where a module belongs. Nothing was written or deleted.
        CacheError: `root` cannot be written.
    """
    listed = _listed(root)
    texts = _render_all(instances, progress)
    outside = [r for r in listed if only != Filter() and not only.matches_record(r)]
    if outside:
        texts[MANIFEST] = _merged(outside, texts[MANIFEST])
    kept = {record["file"] for record in outside}
    ours = {record["file"] for record in listed}
    result = Emission()
    for relative, text in sorted(texts.items()):
        present = _text(root / relative)
        (result.unchanged if present == text else result.written).append(relative)
        if present is not None and relative not in ours and relative != MANIFEST and _MARK not in present:
            raise InvalidArgumentError(
                str(root / relative),
                expected="a generated module, or nothing",
                got="a file that no manifest lists",
                fix="move it away, or write into another folder with --out",
            )
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        if relative not in texts and relative not in kept:
            (result.removed if relative in ours else result.foreign).append(relative)
    if not dry_run:
        _apply(root, texts, result)
    return result


def _apply(root: Path, texts: dict[str, str], result: Emission) -> None:
    fix = "free space there, correct its permissions, or name another folder with --out"
    with storage.writable(root, fix):
        if not (root / MANIFEST).exists():
            # Claim the folder first, so that a run killed later can be completed.
            storage.make_folder(root)
            _write(root / MANIFEST, text_of([]))
        for relative in (name for name in result.written if name != MANIFEST):
            storage.make_folder((root / relative).parent)
            _write(root / relative, texts[relative])
        for relative in result.removed:
            (root / relative).unlink(missing_ok=True)
        if MANIFEST in result.written:
            _write(root / MANIFEST, texts[MANIFEST])


def _write(path: Path, text: str) -> None:
    storage.write_atomically(path, text.encode())


def _text(path: Path) -> str | None:
    """The content of a file; None if there is no file, "" if it cannot be read."""
    try:
        return path.read_bytes().decode(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return ""


def _listed(root: Path) -> list[dict[str, Any]]:
    """Records of the manifest in `root`; none if `root` is missing or empty.

    Raises:
        InvalidArgumentError: `root` is not a folder, or holds files but no manifest of this project.
    """
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return []
    got = "a file"
    if root.is_dir():
        try:
            records: list[dict[str, Any]] = json.loads((root / MANIFEST).read_bytes())["variants"]
            if all(_confined(root, record["file"]) and set(record) >= _FILTERED for record in records):
                return records
            got = f"a {MANIFEST} that lists files elsewhere, or variants of another kind"
        except FileNotFoundError:
            got = f"other files and no {MANIFEST}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            got = f"an unreadable {MANIFEST}: {type(error).__name__}: {error}"
    raise InvalidArgumentError(
        str(root),
        expected=f"a folder that is new, empty, or holds a {MANIFEST} of generated variants",
        got=got,
        fix="choose another folder with --out; if it is a generated set, restore its manifest or delete "
        "the folder",
    )


_FILTERED = {"id", "op", "backend", "arch"}


def _confined(root: Path, file: str) -> bool:
    """Whether a manifest's entry is a module below its folder, after following symbolic links."""
    path = root / file
    return (
        path.suffix == ".py"
        and path.parent.resolve().is_relative_to(root.resolve())
        and ".." not in path.parts
    )


def _merged(outside: list[dict[str, Any]], fresh: str) -> str:
    new = json.loads(fresh)["variants"]
    return text_of(sorted([*outside, *new], key=lambda record: (record["arch"], record["id"])))
