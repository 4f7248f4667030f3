"""Deleting what the artifact cache no longer needs, while other processes compile into it and read from it.

An artifact is deleted under its builder's lock and removed by one rename, so no process sees half of it. A
reader that looked it up just before then fails to read it and looks it up again (`store.fetch`), which
compiles it if allowed.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from dsl_kernels.arguments import checked, require_range
from dsl_kernels.errors import CacheError

from . import cache, storage


@dataclass(frozen=True)
class Pruned:
    """One artifact or leftover, why it is to be deleted, and why it was kept (empty if it was not)."""

    folder: Path
    reason: str
    bytes: int
    kept: str = ""


def last_used(folder: Path) -> float:
    """When an artifact's code was last read or written, in seconds since the epoch.

    A mount that records reads once a day, or never, makes this time too early by that much.
    """
    return max(max(s.st_atime, s.st_mtime) for s in (p.stat() for p in folder.glob("kernel.*")))


@checked
def prune(
    unused_for: float | None,
    max_bytes: int | None = None,
    wanted: Collection[Path] = (),
    *,
    dry_run: bool = False,
) -> list[Pruned]:
    """Delete artifacts by age and by size, and the leftovers of killed compiles.

    Args:
        unused_for: seconds; artifacts outside `wanted` that were not read for this long are deleted. None: no
            artifact is deleted for its age.
        max_bytes: the total size to keep; the least recently used artifacts go first, `wanted` ones last.
        wanted: folders of artifacts that are not deleted for age alone (those that the present sources look
            up).
        dry_run: only report what would be deleted.

    Returns:
        What was or would be deleted, and what was kept because it is in use.

    Raises:
        InvalidArgumentError: an age or a size that is negative or not a number.
        CacheError: a folder cannot be deleted.
    """
    for name, value in (("unused_for", unused_for), ("max_bytes", max_bytes)):
        if value is not None:
            require_range(name, value, 0, math.inf)
    now = time.time()
    entries = []
    for entry in cache.entries():
        with contextlib.suppress(OSError, ValueError):
            entries.append((entry.folder in wanted, last_used(entry.folder), entry))
    entries.sort(key=lambda item: item[:2])
    total = sum(entry.bytes for _, _, entry in entries)
    result = []
    for needed, used, entry in entries:
        if unused_for is not None and not needed and now - used >= unused_for:
            reason = f"not used for {(now - used) / 86400:.1f} days"
        elif max_bytes is not None and total > max_bytes:
            reason = "over the size"
        else:
            continue
        kept = "" if dry_run else _delete(entry.folder, used)
        result.append(Pruned(entry.folder, reason, entry.bytes, kept))
        total -= 0 if kept else entry.bytes
    return result + _leftovers(now, dry_run)


def _delete(folder: Path, used: float) -> str:
    """Delete an artifact; returns why it was kept, or an empty string."""
    with _builders_lock(folder) as locked:
        if not locked:
            return "being compiled"
        try:
            if last_used(folder) > used:
                return "used meanwhile"
            with storage.working_folder(folder.parent, folder.name) as aside:
                folder.rename(aside / folder.name)
        except (FileNotFoundError, ValueError):
            return "gone already"
        except OSError as error:
            raise _undeletable(folder, error) from None
    return ""


def _leftovers(now: float, dry_run: bool) -> list[Pruned]:
    """Delete old working folders of killed compiles and old records of failed ones."""
    result = []
    for path in sorted(cache.cache_root().glob("*/*/*")):
        hidden = path.name.startswith(storage.WORKING)
        if not hidden and not path.name.endswith(".failed.json"):
            continue
        try:
            if now - path.stat().st_mtime < storage.LEFTOVER_SECONDS:
                continue
            files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
            size = sum(p.stat().st_size for p in files)
        except OSError:
            continue
        if not dry_run:
            if path.is_file():
                path.unlink(missing_ok=True)
            else:
                shutil.rmtree(path, ignore_errors=True)
        reason = "an unfinished compile" if hidden else "a note of a failed compile"
        result.append(Pruned(path, reason, size))
    return result


@contextlib.contextmanager
def _builders_lock(folder: Path) -> Iterator[bool]:
    """Try the artifact's builder lock; yields whether it was free, and if so holds it for the block."""
    import filelock

    lock = filelock.FileLock(cache.lock_path(folder))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        yield False
        return
    except OSError as error:
        raise _undeletable(folder, error) from None
    try:
        yield True
    finally:
        lock.release()


def _undeletable(folder: Path, error: OSError) -> CacheError:
    return CacheError(
        str(folder),
        expected="a folder that can be deleted",
        got=error.strerror or str(error),
        fix="check its permissions",
    )
