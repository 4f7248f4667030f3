"""The folder of the compiled core: where it is, and who may have written to it.

What is loaded from it runs on this machine, so that it is trusted only if nobody but this user and root could
have put something there. A wheel that has the compiled core needs no folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from .errors import CacheError

VARIABLE = "DSL_KERNELS_CACHE_DIR"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_root() -> Path:
    """The folder of all caches: DSL_KERNELS_CACHE_DIR, or the user's cache folder on this platform.

    Raises:
        CacheError: code CACHE_HOME; neither exists (no home directory and no passwd entry).
    """
    import platformdirs

    text = os.environ.get(VARIABLE, "")
    # Without a home directory, newer versions of platformdirs raise RuntimeError and older ones leave the
    # tilde.
    with contextlib.suppress(RuntimeError):
        if text:
            return Path(text).expanduser().absolute()
        if (folder := platformdirs.user_cache_path("dsl_kernels", appauthor=False)).is_absolute():
            return folder
    raise CacheError(
        "the cache folder",
        expected=f"a home directory, XDG_CACHE_HOME or {VARIABLE}",
        got=f"{VARIABLE}={text}" if text else "none of them",
        fix=f"set {VARIABLE} to a folder that can be written",
        code="CACHE_HOME",
    )


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents, none of them writable by others whatever the umask."""
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.is_dir()]):
        folder.mkdir(mode=0o755, exist_ok=True)


def distrust(path: Path) -> str | None:
    """Why `path` must not be loaded; None if only this user and root could have written it."""
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {status.st_uid}"
    if status.st_mode & _OTHERS_WRITE:
        return f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    return None


def require_trusted(*paths: Path) -> None:
    """Refuse to load from folders that other users could have written to.

    Raises:
        CacheError: code CACHE_UNTRUSTED; a path belongs to another user than this one and root, or others may
            write to it.
    """
    for path in paths:
        if (reason := distrust(path)) is not None:
            raise CacheError(
                str(path),
                expected=f"a place of user {os.geteuid()} or root that nobody else may write to",
                got=reason,
                fix=f"if you trust what is in it, `chown -R {os.geteuid()}` and `chmod -R go-w` it; "
                f"otherwise set {VARIABLE} to a folder of your own",
                code="CACHE_UNTRUSTED",
            )
