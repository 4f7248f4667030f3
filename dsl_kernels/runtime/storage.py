"""Folders that the library writes and loads from: whom they must belong to, and how content appears in them.

What is loaded from a cache runs on this machine, so a folder counts as trusted only if nobody but its user and root
could have put something there. Whatever is written appears under its name whole or not at all: it is made in a working
folder beside its place, which its writer holds locked, so that the next writer can tell a working folder that a killed
process left from one in use.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from dsl_kernels.errors import CacheError

WORKING = ".staging-"
# Age from which a working folder counts as left behind where the file system cannot say whether it is locked.
LEFTOVER_SECONDS = 24 * 3600
# What nobody but the owner may do with a trusted folder or file: write.
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
# No file that the library reads comes near this: kernels have some MiB, tables less.
MAX_FILE_BYTES = 1 << 28


def distrust(path: Path) -> str | None:
    """Why what lies at `path` must not be loaded; None if it belongs to this user or root and nobody else may write.

    Only `path` itself is looked at, through symbolic links. A path that does not exist is trusted.
    """
    try:
        held = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if held.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {held.st_uid}"
    if held.st_mode & OTHERS_WRITE:
        return f"others may write to it (mode {stat.S_IMODE(held.st_mode):04o})"
    return None


def require_trusted(*paths: Path) -> None:
    """Refuse to load from places that others could have written to.

    Raises:
        CacheError: code CACHE_UNTRUSTED; a path belongs to neither this user nor root, or others may write to it.
    """
    for path in paths:
        try:
            reason = distrust(path)
        except OSError as error:
            reason = error.strerror or str(error)
        if reason is not None:
            raise CacheError(
                str(path),
                expected=f"a place that belongs to user {os.geteuid()} or root and that nobody else may write to",
                got=reason,
                fix=f"if you trust what lies there, `chown -R {os.geteuid()}` and `chmod -R go-w` it; "
                "otherwise set DSL_KERNELS_CACHE_DIR to a folder of your own",
                code="CACHE_UNTRUSTED",
            )


def read_file(path: Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """The content of a regular file of at most `limit` bytes.

    What lies in the place of a file that somebody else may have put there is never waited for: a pipe without a writer,
    a device, a file without an end.

    Raises:
        OSError: there is no such file, it cannot be read, is no regular file, or is larger.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        held = os.fstat(file.fileno())
        if stat.S_ISDIR(held.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(held.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = file.read(limit + 1) if held.st_size <= limit else b""
    if held.st_size > limit or len(content) > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", str(path))
    return content


def make_folder(path: Path) -> None:
    """Make a folder and what is missing above it, none of them writable by others whatever the umask."""
    missing = [path, *path.parents]
    for folder in reversed([folder for folder in missing if not folder.is_dir()]):
        folder.mkdir(mode=0o755, exist_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Give `path` new content, on disk; whoever reads it meanwhile sees the old or the new one.

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
    """Write a new file and wait until it is on disk."""
    with path.open("wb") as file:
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
    """A fresh folder in `parent` for making `name`, gone when the block ends; what is finished is renamed out of it.

    It is locked as long as the block and the process last.
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
    """Remove the working folders in `parent` (for making `name` alone, if given) whose process is gone."""
    prefix = f"{WORKING}{name}-" if name else WORKING
    _remove_abandoned(path for path in parent.iterdir() if path.name.startswith(prefix))


def _claim(path: Path, flags: int) -> int | None:
    """Open a file or folder just made and mark it as in use; None if a sweep took it for a leftover before that.

    File systems without locks go by age.
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
    """Remove those files and folders that no living process holds locked."""
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
    """Whether no living process holds it; locked from here on if so."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        return time.time() - os.fstat(descriptor).st_mtime > LEFTOVER_SECONDS
    return True
