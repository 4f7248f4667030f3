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

from ..runtime.cache import cache_root
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


def compiler() -> str:
    """The C++ compiler: ``CXX``, else g++, c++ or clang++ from the path."""
    for name in (os.environ.get("CXX"), "g++", "c++", "clang++"):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError("the emulator needs a C++17 compiler: install g++, or set CXX")


def _fingerprint(cxx: str) -> str:
    h = hashlib.sha256(" ".join(FLAGS).encode())
    try:
        h.update(subprocess.run([cxx, "--version"], capture_output=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError) as e:
        raise BuildError(f"{cxx} --version failed: {e}") from e
    for p in sorted(SOURCES.iterdir()):
        if p.suffix in (".cpp", ".hpp", ".h"):
            h.update(p.name.encode() + b"\0" + p.read_bytes())
    return h.hexdigest()[:24]


def library_path() -> Path:
    """The built library; compiled now if it is not in the cache. Published with an atomic rename."""
    cxx = compiler()
    folder = cache_root() / "emulator"
    target = folder / f"core-{_fingerprint(cxx)}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(suffix=".so", dir=folder)
    except OSError as e:
        raise BuildError(f"cannot write to the cache folder {folder}: {e}; set DSL_KERNELS_CACHE_DIR") from e
    os.close(fd)
    try:
        done = subprocess.run(
            [cxx, *FLAGS, "-o", name, *map(str, sorted(SOURCES.glob("*.cpp")))],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise BuildError(f"{cxx} failed to build the emulator's core:\n{done.stderr[-4000:]}")
        os.replace(name, target)
    finally:
        if os.path.exists(name):
            os.unlink(name)
    return target


@functools.cache
def load() -> ctypes.CDLL:
    """The compiled core, loaded once per process."""
    lib = ctypes.CDLL(str(library_path()))
    p, n = ctypes.c_void_p, ctypes.c_int64
    lib.emu_launch.argtypes = [p, n, p, n, p, p, p, n, p, n, p, n, p, n]
    lib.emu_launch.restype = p
    lib.emu_free.argtypes = [p]
    lib.emu_free.restype = None
    lib.emu_row_sizes.argtypes = [ctypes.c_int]
    lib.emu_row_sizes.restype = n
    return lib
