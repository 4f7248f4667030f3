"""The source texts that this process loaded and that enter a kernel, even if the files have changed since.

An artifact is filed under the hash of its sources, and a process may have loaded them long before it
compiles. The generated module, the device helpers and the backends therefore go through a loader that records
the hash of the bytes it compiles. DSLs that ask for a function's source get the same text.
"""

from __future__ import annotations

import importlib.util
import linecache
import os
import sys
from functools import lru_cache
from hashlib import sha256
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .._discover import module_names

# A copy of the package has another name.
_ROOT = __name__.partition(".")[0]
_BACKENDS = Path(__file__).resolve().parents[1] / "backends"
# Keyed by real path: a file may also be imported through a link.
_loaded: dict[str, str] = {}


@lru_cache(maxsize=1024)
def is_helper(place: tuple[str, ...], dsl: str | None = None) -> bool:
    """Whether the module at this place in the package is written in a DSL, so that its text enters kernels.

    Leaves' meanings in torch and leaf texts do not count: a generated module already contains the texts it
    uses.
    """
    dsls = [dsl] if dsl else [name for name in module_names([str(_BACKENDS)]) if name != "base"]
    match place:
        case ("device", folder, *_):
            return folder in dsls
        case ("kernels", _, part):
            return any(part == name or part.startswith(f"{name}_") for name in dsls)
    return False


def _place(name: str) -> tuple[str, ...]:
    """A module's path inside the package, as a tuple; empty for a module outside."""
    root, *place = name.split(".")
    return tuple(place) if root == _ROOT else ()


def digest(path: Path) -> str:
    """Hex SHA-256 of the text that this process loaded from `path`, or of the file if it loaded none.

    Raises:
        FileNotFoundError: this process loaded nothing from `path`, and there is no such file.
    """
    return _loaded.get(os.path.realpath(path)) or digest_on_disk(path)


def digest_on_disk(path: Path) -> str:
    """Hex SHA-256 of the file as it is now."""
    return sha256(path.read_bytes()).hexdigest()


def load(name: str, path: Path) -> ModuleType:
    """Import the file at `path` under `name`, afresh, with helpers that match their files.

    Raises:
        ImportError: `path` is not a Python file. Whatever else the module raises passes through.
    """
    _forget_stale_helpers()
    _loaded.pop(os.path.realpath(path), None)
    spec = importlib.util.spec_from_file_location(name, path, loader=_Loader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _forget_stale_helpers() -> None:
    """Drop all device helpers from `sys.modules` if any file has changed or the text loaded is unknown."""
    # Other threads import meanwhile: a copy of the dictionary is made at once, a loop over it is not.
    helpers = {name: module for name, module in sys.modules.copy().items() if is_helper(_place(name))}
    files = [Path(file) for module in helpers.values() if (file := getattr(module, "__file__", None))]
    if any(_loaded.get(os.path.realpath(file)) != digest_on_disk(file) for file in files):
        for name in helpers:
            sys.modules.pop(name, None)


class _Loader(SourceFileLoader):
    """Compiles the file's bytes, never cached bytecode, and records their hash."""

    def get_code(self, fullname: str) -> CodeType:
        content = self.get_data(self.path)
        _loaded[os.path.realpath(self.path)] = sha256(content).hexdigest()
        text = importlib.util.decode_source(content)
        # Without a modification time, `linecache.checkcache` keeps this text for tracebacks and DSLs.
        linecache.cache[self.path] = (len(text), None, text.splitlines(keepends=True), self.path)
        code: CodeType = self.source_to_code(content, self.path)
        return code


class _Finder:
    """Makes `_Loader` load helpers and backends."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not is_helper(place := _place(name)) and place[:1] != ("backends",):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


sys.meta_path.insert(0, _Finder)
