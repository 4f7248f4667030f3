"""What this process loaded of the texts that enter a kernel, as opposed to what lies on disk by now.

An artifact is filed under the hash of its sources, and a process may have loaded them long before it compiles. So the
generated module, the device helpers and the backends are loaded through a loader that notes the hash of the very bytes
it compiles, and that gives the same text to whoever asks for the source of a function, as DSLs do.
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

# A copy of the package has a name of its own.
_ROOT = __name__.partition(".")[0]
_BACKENDS = Path(__file__).resolve().parents[1] / "backends"
# By real path: one file may be imported under a link to it.
_loaded: dict[str, str] = {}


@lru_cache(maxsize=1024)
def is_helper(place: tuple[str, ...], dsl: str | None = None) -> bool:
    """Whether a module, by its place in the package, is said in a DSL and so enters kernels.

    What leaves mean in torch, and the texts that generated modules have by then, enter none, and programs hold them.
    """
    dsls = [dsl] if dsl else [name for name in module_names([str(_BACKENDS)]) if name != "base"]
    match place:
        case ("device", folder, *_):
            return folder in dsls
        case ("kernels", _, part):
            return any(part == name or part.startswith(f"{name}_") for name in dsls)
    return False


def _place(name: str) -> tuple[str, ...]:
    """Where a module is in the package; empty outside."""
    root, *place = name.split(".")
    return tuple(place) if root == _ROOT else ()


def digest(path: Path) -> str:
    """Hex SHA-256 of the text that this process loaded from `path`, or of the file where it loaded none.

    Raises:
        FileNotFoundError: it loaded none, and there is no such file.
    """
    return _loaded.get(os.path.realpath(path)) or digest_on_disk(path)


def digest_on_disk(path: Path) -> str:
    """Hex SHA-256 of the file as it is now."""
    return sha256(path.read_bytes()).hexdigest()


def load(name: str, path: Path) -> ModuleType:
    """Import the file at `path` under `name`, anew, with helpers that are not older than their files.

    Raises:
        ImportError: it is no Python file. Whatever the module raises.
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
    """Have the device helpers imported again if the file of any has changed since, or nobody noted what was loaded."""
    held = [name for name in sys.modules if is_helper(_place(name))]
    files = [Path(file) for name in held if (file := getattr(sys.modules[name], "__file__", None))]
    if any(_loaded.get(os.path.realpath(file)) != digest_on_disk(file) for file in files):
        for name in held:
            del sys.modules[name]


class _Loader(SourceFileLoader):
    """Compiles the file's bytes, never a cached bytecode, and notes their hash."""

    def get_code(self, fullname: str) -> CodeType:
        content = self.get_data(self.path)
        _loaded[os.path.realpath(self.path)] = sha256(content).hexdigest()
        text = importlib.util.decode_source(content)
        # No time of change: `linecache.checkcache` leaves the entry alone, so tracebacks and DSLs see this text.
        linecache.cache[self.path] = (len(text), None, text.splitlines(keepends=True), self.path)
        code: CodeType = self.source_to_code(content, self.path)
        return code


class _Finder:
    """Has helpers and backends loaded by `_Loader`."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if not is_helper(place := _place(name)) and place[:1] != ("backends",):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


sys.meta_path.insert(0, _Finder)
