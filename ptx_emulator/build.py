"""The compiled core: the package's own, else one built into the cache, once per source and compiler."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from .cache import cache_root, distrust, make_folder, require_trusted
from .errors import BuildError, CacheError

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "core"
PREBUILT = Path(__file__).parent / "_core.so"  # in the emulator's own distribution, which has no C++ sources
# -ffp-contract=off and -frounding-math: results must not depend on what the host compiler fuses or folds.
FLAGS = (
    "-O2",
    "-ftree-vectorize",
    "-std=c++17",
    "-fPIC",
    "-ffp-contract=off",
    "-frounding-math",
    "-w",
)
COMPILE_SECONDS = 600  # a compiler that takes longer is taken to hang
TELL_SECONDS = 5  # between two progress messages


def compiler() -> str:
    """The C++ compiler: ``CXX``, else g++, c++ or clang++ from the path."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and (path := shutil.which(name)):
            return path
    raise BuildError("no C++17 compiler was found")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the compiler; the result holds its output and its status, which may be a failure."""
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
    """The built library; compiled now unless the cache holds one that may be trusted.

    One process builds while the others wait. A rename puts the complete file in place.

    Raises:
        BuildError: no compiler, a compile that failed, or a cache folder that cannot be written.
        CacheError: a cache folder that others may write to.
    """
    if not any(SOURCES.glob("*.cpp")):
        raise BuildError(
            f"{PREBUILT} is missing, which came with the package", fix="install the package again"
        )
    # Only a build needs it: the emulator's own distribution, which has a compiled core, needs numpy alone.
    import filelock

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
    fd, name = tempfile.mkstemp(suffix=".so", dir=target.parent)  # mkstemp: no other user may write to it
    os.close(fd)
    try:
        with tempfile.TemporaryDirectory(dir=target.parent) as objects:
            compiled = _compile(cxx, sorted(SOURCES.glob("*.cpp")), Path(objects))
            _succeeded(cxx, _run([cxx, *FLAGS, "-shared", "-o", name, *compiled]))
        os.chmod(name, 0o700)
        os.replace(name, target)
    finally:
        if os.path.exists(name):
            os.unlink(name)


def _succeeded(cxx: str, done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise BuildError(f"{cxx} failed:\n{done.stderr[-4000:]}")


def _compile(cxx: str, sources: list[Path], objects: Path) -> list[str]:
    """Compile each source to an object file, several at once, and log the progress."""
    log.warning(
        "building the emulator's core, once for this version: %d files with %s", len(sources), Path(cxx).name
    )
    made = [objects / f"{source.stem}.o" for source in sources]
    told = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        running = [
            pool.submit(_run, [cxx, *FLAGS, "-c", "-o", str(to), str(source)])
            for source, to in zip(sources, made, strict=True)
        ]
        try:
            for count, done in enumerate(as_completed(running), 1):
                _succeeded(cxx, done.result())
                if time.monotonic() - told >= TELL_SECONDS:
                    told = time.monotonic()
                    log.warning("the emulator's core: %d of %d files compiled", count, len(sources))
        finally:
            for future in running:
                future.cancel()
    return [str(to) for to in made]


@functools.cache
def load() -> ctypes.CDLL:
    """The compiled core, loaded once per process.

    Raises:
        BuildError: no compiler, a compile that failed, or a core that does not load.
        CacheError: a cache folder that others may write to.
    """
    path = PREBUILT if PREBUILT.is_file() else library_path()
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
