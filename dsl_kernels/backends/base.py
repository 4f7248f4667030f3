"""The interface of a backend: a DSL turns a generated module into PTX, a cubin and a launch description."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Protocol

from packaging.version import Version

from dsl_kernels.env import cache_root
from dsl_kernels.errors import CacheError, CompileError, ToolchainError
from dsl_kernels.runtime import sources, storage, toolkit
from dsl_kernels.runtime.artifact import Artifact

_PACKAGE = Path(__file__).resolve().parent.parent
# An exported copy of the package has another name.
_ROOT = __name__.partition(".")[0]

# Imports are found without parsing the file, as cache keys are computed on every first load.
_FROM = re.compile(r"^[ \t]*from[ \t]+([.\w]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n;]+)", re.MULTILINE)
_IMPORT = re.compile(r"^[ \t]*import[ \t]+([^\n;]+)", re.MULTILINE)


# Variables that change CuTe DSL's code. Not in its backend: that text is in every key, which would change.
_CUTE = (
    "ARCH", "AUTO_M2S", "COMPILER_BACKEND", "COMPILER_OPT", "DEBUG", "DRYRUN", "ENABLE_ASSERTIONS",
    "ENABLE_PYIR", "ENABLE_TVM_FFI", "LINEINFO", "LOC_TRACEBACKS", "TOLERATE_M2M", "WARNINGS_AS_ERRORS",
)  # fmt: skip


def place_cache(variable: str, folder: str) -> None:
    """Put a DSL's own cache below our root, unless the user has set it; before the DSL is imported."""
    if variable not in os.environ:
        # The DSL would make the root by the umask, perhaps so that others may write to it.
        with contextlib.suppress(OSError):
            storage.make_folder(cache_root() / folder)
        os.environ[variable] = str(cache_root() / folder)


def settings(backend: str) -> dict[str, str]:
    """What changes a DSL's code beside versions, if it is not as usual; part of the key of an artifact."""
    if backend != "cutedsl":
        return {}
    found = {name: os.environ.get(name) for name in map("CUTE_DSL_{}".format, _CUTE)}
    # The usual libraries are those of CUDA 12; if there are both, CuTe DSL takes these.
    found["CUDA 13"] = toolkit.version("nvidia-cutlass-dsl-libs-cu13")
    return {name: value for name, value in found.items() if value}


class Backend(Protocol):
    """Lowers and compiles the generated modules of one DSL, on a machine that may have no GPU."""

    name: str

    def versions(self) -> dict[str, str]:
        """Versions that an artifact depends on (the DSL, the vendor's compiler); part of its cache key.

        Raises:
            ToolchainError: something is missing on this machine, so nothing can be compiled.
        """
        ...

    def load(self) -> object:
        """Import the DSL.

        Raises:
            ToolchainError: the DSL is not installed, or cannot be imported.
        """
        ...

    def sources(self, path: Path) -> list[Path]:
        """Files of this package whose text becomes part of the module's kernel; part of the cache key."""
        ...

    def flags(self, arch: str, *, lineinfo: bool = True) -> list[str]:
        """Compiler flags that change the result, without paths; part of the cache key."""
        ...

    def compile_module(self, path: Path, arch: str, out_dir: Path, *, lineinfo: bool = True) -> Artifact:
        """Compile `path` and write kernel.ptx, kernel.cubin, meta.json and build.json into `out_dir`."""
        ...


def installed(distribution: str, oldest: str, fix: str) -> str:
    """The version of an installed distribution.

    Raises:
        ToolchainError: it is not installed, or older than `oldest`, the first version that compiles the
            modules.
    """
    expected = f"{distribution} {oldest} or newer"
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise ToolchainError(distribution, expected=expected, got="not installed", fix=fix) from None
    if Version(version) < Version(oldest):
        raise ToolchainError(
            distribution,
            expected=expected,
            got=version,
            fix=f"{fix}, or use a bundle or another DSL's variants",
        )
    return version


def imported_helpers(path: Path, backend: str) -> list[Path]:
    """The helpers of a DSL that a module imports, also indirectly, and all helpers that are not Python.

    Helpers are in `device/<dsl>` and, of one operation, in `kernels/<op>/<dsl>*.py`. A change to one of them
    recompiles the variants that use it, and no others.
    """
    folder = _PACKAGE / "device" / backend
    helpers: set[Path] = {p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    pending = [path]
    while pending:
        current = pending.pop()
        for parts in _imports(current):
            target = _PACKAGE.joinpath(*parts)
            if not sources.is_helper(parts, backend):
                continue
            for candidate in (target.with_suffix(".py"), target / "__init__.py"):
                if candidate.is_file() and candidate not in helpers:
                    helpers.add(candidate)
                    pending.append(candidate)
    return sorted(helpers)


def _imports(path: Path) -> set[tuple[str, ...]]:
    """Modules of the package that a file may import; an imported function among them is harmless."""
    try:
        text = re.sub(r"#[^\n]*", "", path.read_text())
    except OSError:
        return set()
    # A generated module imports by absolute names, wherever its file is.
    folder = path.parent.relative_to(_PACKAGE).parts if path.is_relative_to(_PACKAGE) else ()
    folder = folder if folder[:1] in (("device",), ("kernels",)) else ()
    names = {
        name.split()[0] for match in _IMPORT.finditer(text) for name in match[1].split(",") if name.strip()
    }
    for module, imported in _FROM.findall(text):
        base = module.lstrip(".")
        if up := len(module) - len(base):
            base = ".".join([_ROOT, *folder[: len(folder) - up + 1], *filter(None, [base])])
        names.add(base)
        names.update(f"{base}.{name.split()[0]}" for name in imported.strip("()").split(",") if name.strip())
    return {tuple(name.split(".")[1:]) for name in names if name.startswith(f"{_ROOT}.")}


def load_module(path: Path) -> ModuleType:
    """Import a generated module by path; DSLs read the program's source back, so it must be a real file."""
    if not path.is_file():
        raise CompileError(
            str(path), expected="a generated module", got="no such file", fix="run `make generate`"
        )
    with refused(path.stem, "importing the module"):
        return sources.load(f"{_ROOT}.generated.{path.stem}", path)


@contextlib.contextmanager
def timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Measure how long the block takes, into `seconds[step]`."""
    start = time.perf_counter()
    yield
    seconds[step] = round(time.perf_counter() - start, 3)


@contextlib.contextmanager
def refused(subject: str, step: str) -> Iterator[None]:
    """Turn whatever a DSL raises into a `CompileError` with the end of its message."""
    try:
        yield
    except (CacheError, CompileError, ToolchainError):
        raise
    except Exception as error:
        detail = str(error).strip()
        machine = toolkit.of_the_machine(error)
        raise CompileError(
            subject,
            expected=f"{step} to accept it",
            got=f"{type(error).__name__}: {detail[-1500:]}",
            fix=toolkit.CHECK_MACHINE if machine else "correct the template",
            code=toolkit.UNFINISHED if machine else None,
        ) from error
