"""Building the compiled core once per source and compiler, into the project's cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import filelock

from ..errors import CacheError
from ..runtime.cache import cache_root
from ..runtime.storage import distrust, make_folder, require_trusted
from .errors import BuildError

SOURCES = Path(__file__).parent / "core"
# -ffp-contract=off and -frounding-math: results must not depend on what the host compiler fuses or folds.
FLAGS = (
    "-O2",
    "-ftree-vectorize",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-frounding-math",
    "-w",
)
COMPILE_SECONDS = 600  # a compile that takes longer hangs


def compiler() -> str:
    """The C++ compiler: ``CXX``, else g++, c++ or clang++ from the path."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError("no C++17 compiler was found")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the compiler; what it wrote is in the result, failed or not."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS
        )
    except OSError as e:
        raise BuildError(f"{command[0]} cannot be run: {e}") from e
    except subprocess.TimeoutExpired as e:
        raise BuildError(f"{command[0]} took longer than {COMPILE_SECONDS} s") from e


def _fingerprint(cxx: str) -> str:
    h = hashlib.sha256(" ".join(FLAGS).encode())
    version = _run([cxx, "--version"])
    if version.returncode:
        raise BuildError(f"{cxx} --version failed: {version.stderr[-1000:]}")
    h.update(version.stdout.encode())
    for p in sorted(SOURCES.iterdir()):
        if p.suffix in (".cpp", ".hpp", ".h"):
            h.update(p.name.encode() + b"\0" + p.read_bytes())
    return h.hexdigest()[:24]


def library_path() -> Path:
    """The built library; compiled now if the cache has none that may be trusted.

    One process builds while others wait for it, and the file appears complete, by a rename.

    Raises:
        BuildError: no compiler, a compile that failed, or a cache folder that cannot be written.
        CacheError: a cache folder that others may write to.
    """
    cxx = compiler()
    root = cache_root()
    folder = root / "emulator"
    target = folder / f"core-{_fingerprint(cxx)}.so"
    try:
        make_folder(folder)
        require_trusted(root, folder)
        if _usable(target):
            return target
        with filelock.FileLock(target.with_suffix(".lock"), timeout=COMPILE_SECONDS, mode=0o600):
            if not _usable(target):
                _build(cxx, target)
    except filelock.Timeout as e:
        raise BuildError(
            f"another process has held {e.lock_file} for {COMPILE_SECONDS} s",
            fix="end that process, or set DSL_KERNELS_CACHE_DIR to another folder",
        ) from e
    except CacheError:
        raise
    except OSError as e:
        raise BuildError(
            f"the cache folder {folder} cannot be used: {e}",
            fix="free space or correct its permissions, or set DSL_KERNELS_CACHE_DIR",
        ) from e
    return target


def _usable(target: Path) -> bool:
    return target.is_file() and distrust(target) is None


def _build(cxx: str, target: Path) -> None:
    fd, name = tempfile.mkstemp(suffix=".so", dir=target.parent)  # for the user alone
    os.close(fd)
    try:
        done = _run([cxx, *FLAGS, "-o", name, *map(str, sorted(SOURCES.glob("*.cpp")))])
        if done.returncode:
            raise BuildError(f"{cxx} failed:\n{done.stderr[-4000:]}")
        os.chmod(name, 0o700)
        os.replace(name, target)
    finally:
        if os.path.exists(name):
            os.unlink(name)


@functools.cache
def load() -> ctypes.CDLL:
    """The compiled core, loaded once per process.

    Raises:
        BuildError: no compiler, a compile that failed, or a core that does not load.
        CacheError: a cache folder that others may write to.
    """
    path = library_path()
    try:
        lib = ctypes.CDLL(str(path))
    except OSError as e:
        raise BuildError(f"{path} cannot be loaded: {e}", fix=f"remove {path}, and it is built again") from e
    p, n = ctypes.c_void_p, ctypes.c_int64
    lib.emu_launch.argtypes = [p, n, p, n, p, n, p, n, p, n, p, n, p, n, p, n]
    lib.emu_launch.restype = p
    lib.emu_free.argtypes = [p]
    lib.emu_free.restype = None
    lib.emu_row_sizes.argtypes = [ctypes.c_int]
    lib.emu_row_sizes.restype = n
    return lib
