"""Folders that the library writes to and loads from: who must own them, and how content appears in them.

What is loaded from a cache runs on this machine, so a folder is trusted only if nobody but this user and root
could have put something there. Content appears under its name complete or not at all: its writer makes it in
a working folder next to it and locks that folder, so that the next writer can tell what a killed process left
from what is in use.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from dsl_kernels.errors import ArtifactError, CacheError

T = TypeVar("T")

WORKING = ".staging-"
# Without locks in the file system, a working folder counts as abandoned from this age on.
LEFTOVER_SECONDS = 24 * 3600
# The mode bits that a trusted file or folder does not have.
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# Every file that the library reads is far smaller: kernels have some MiB, tables less.
MAX_FILE_BYTES = 1 << 28


def distrust(path: Path) -> str | None:
    """Why `path` must not be loaded; None if only this user and root could have written it.

    Only `path` itself is examined, after following symbolic links. A path that does not exist is trusted.
    """
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & OTHERS_WRITE:
        return f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def require_trusted(*paths: Path) -> None:
    """Refuse to load from places that other users could have written to.

    Raises:
        CacheError: code CACHE_UNTRUSTED; a path belongs to another user than this one and root, or others may
            write to it.
    """
    for path in paths:
        try:
            reason = distrust(path)
        except OSError as error:
            reason = error.strerror or str(error)
        if reason is not None:
            raise CacheError(
                str(path),
                expected=f"a place that belongs to user {os.geteuid()} or root "
                "and that nobody else may write to",
                got=reason,
                fix=f"if you trust what lies there, `chown -R {os.geteuid()}` and `chmod -R go-w` it; "
                "otherwise set DSL_KERNELS_CACHE_DIR to a folder of your own",
                code="CACHE_UNTRUSTED",
            )


def read_record(path: Path, schema: int, made: Callable[[Any], T], *, expected: str, fix: str) -> T:
    """What `made` makes of a JSON file with this `"schema"`.

    Raises:
        ArtifactError: the file is damaged or of another schema, or lacks what `made` looks for.
    """
    try:
        content = json.loads(read_file(path).decode())
        if content["schema"] != schema:
            raise ValueError(f"schema {content['schema']}, not {schema}")
        return made(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise ArtifactError(str(path), expected=expected, got=got, fix=fix) from error


def read_file(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    This never blocks on something else that somebody put in the file's place: a pipe without a writer, a
    device, an endless file.

    Raises:
        OSError: there is no such file, or it cannot be read, is not a regular file, or is larger.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = file.read(limit + 1) if status.st_size <= limit else b""
    if status.st_size > limit or len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return content


@contextlib.contextmanager
def writable(place: Path, fix: str) -> Iterator[None]:
    """Turn the operating system's refusals (read-only, full, no permission) into a `CacheError`."""
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        raise CacheError(
            str(error.filename or place),
            expected="a folder that can be written",
            got=error.strerror or str(error),
            fix=fix,
        ) from error


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents, none of them writable by others whatever the umask."""
    missing = [path, *path.parents]
    for folder in reversed([folder for folder in missing if not folder.is_dir()]):
        folder.mkdir(mode=0o755, exist_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the content of `path`, durably; a concurrent reader sees the old or the new content.

    Raises:
        OSError: it cannot be written; the old content stays.
    """
    pattern = f".{path.name}.{{}}.partial"
    _remove_abandoned(path.parent.glob(pattern.format("*").replace("[", "[[]")))
    descriptor = None
    while descriptor is None:
        partial = path.with_name(pattern.format(secrets.token_hex(4)))
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        descriptor = _claim(partial, os.O_WRONLY)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
            os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_flushed(path: Path, content: bytes) -> None:
    """Write a new file, not writable by others whatever the umask, and wait until it is on disk."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def working_folder(parent: Path, name: str) -> Iterator[Path]:
    """A fresh folder in `parent` for making `name`; rename what is finished out of it.

    The folder is locked until the block or the process ends, and deleted at the end of the block.
    """
    descriptor = None
    while descriptor is None:
        folder = Path(tempfile.mkdtemp(prefix=f"{WORKING}{name}-", dir=parent))
        descriptor = _claim(folder, os.O_RDONLY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def sweep(parent: Path, name: str = "") -> None:
    """Remove the working folders in `parent` whose process is gone; only those for `name`, if given."""
    prefix = f"{WORKING}{name}-" if name else WORKING
    _remove_abandoned(path for path in parent.iterdir() if path.name.startswith(prefix))


def _claim(path: Path, flags: int) -> int | None:
    """Open a new file or folder and lock it as in use; None if a sweep removed it before the lock was taken.

    On a file system without locks, `_abandoned` goes by age.
    """
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    if path.exists():
        return descriptor
    os.close(descriptor)
    return None


def _remove_abandoned(paths: Iterable[Path]) -> None:
    """Remove the files and folders that no living process has locked."""
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                if _abandoned(descriptor):
                    if path.is_dir():
                        shutil.rmtree(path, ignore_errors=True)
                    else:
                        path.unlink()
            finally:
                os.close(descriptor)


def _abandoned(descriptor: int) -> bool:
    """Whether no living process has it locked; if so, this call locks it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        return time.time() - os.fstat(descriptor).st_mtime > LEFTOVER_SECONDS
    return True
