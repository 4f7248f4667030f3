"""Discovery by directory: a module's file name is its registration."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from .arguments import require_known
from .errors import DeclarationError, DslKernelError, did_you_mean

_ROOTS = (Path(__file__).resolve().parent,)
"""Packages whose modules are ours, beside the one that is looked into: errors in them name their line."""


def module_names(path: Iterable[str]) -> list[str]:
    """Sorted names of the public modules in a package."""
    return sorted(info.name for info in pkgutil.iter_modules(path) if not info.name.startswith("_"))


def package_names(path: Iterable[str], part: str) -> list[str]:
    """Sorted names of the public packages in a package that contain a module, or a package, called `part`."""
    inner = (info for info in pkgutil.iter_modules(path) if info.ispkg and not info.name.startswith("_"))
    places = ((info.name, Path(getattr(info.module_finder, "path", ""), info.name, part)) for info in inner)
    return sorted(name for name, at in places if at.with_suffix(".py").is_file() or at.is_dir())


def module_files(path: Iterable[str], name: str) -> list[Path]:
    """The source files of a public module of a package, sorted: its own, or all if it is a package itself.

    Raises:
        FileNotFoundError: there is no such module.
    """
    for folder in map(Path, path):
        if (file := folder / f"{name}.py").exists():
            return [file]
        if (inner := folder / name).is_dir():
            return sorted(inner.glob("*.py"))
    raise FileNotFoundError(f"{name}.py")


class _Later:
    def __init__(self, name: str, into: dict[str, Any]) -> None:
        vars(self).update(_name=name, _into=into)

    def _module(self) -> Any:
        module = importlib.import_module(self._name)
        ours = [each for key, each in list(sys.modules.items()) if key.startswith(f"{__package__}.") and each]
        for names in (self._into, *map(vars, ours)):
            for key in [key for key, value in list(names.items()) if value is self]:
                names[key] = module
        return module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module(), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._module(), name)


def later(name: str, into: dict[str, Any]) -> Any:
    """A stand-in that imports a module at its first use, as torch takes seconds to import.

    Args:
        into: the globals of the caller, in which the module then replaces the stand-in, as in the globals of
            this package's modules that import it from there. For type checkers the caller imports the module
            under TYPE_CHECKING.
    """
    return _Later(name, into)


def discover(
    package: str, name: str, names: Callable[[], list[str]], kind: str, attribute: str, part: str = ""
) -> Any:
    """`<package>.<name>.<attribute>`, or `<package>.<name>.<part>.<attribute>`.

    Raises:
        ArgumentTypeError: `name` is no string.
        UnknownNameError: `name` is not among `names()`, which is only called for a module not imported yet.
        DeclarationError: the module, or one of ours that it imports, uses a name that does not exist.
    """
    place = f"{package}.{name}.{part}".rstrip(".")
    module = sys.modules.get(place) if isinstance(name, str) else None
    if module is None or not hasattr(module, attribute):
        require_known(kind, name, names(), kind)
        try:
            module = importlib.import_module(place)
            return getattr(module, attribute)
        except (ImportError, NameError, AttributeError) as error:
            if (refused := _unknown(error, f"{kind} {name}", package)) is None:
                raise
            raise refused from error
    return getattr(module, attribute)


def _unknown(
    error: ImportError | NameError | AttributeError, who: str, package: str
) -> DslKernelError | None:
    """The error, with its line, for an unknown name in a module of ours; None for others' errors.

    A package that is not installed is not ours.
    """
    asked, owner = error.name or "", getattr(error, "obj", None)
    if isinstance(error, ImportError):
        owner = sys.modules.get(asked) if asked.startswith(__package__) else None
        quoted = re.match(r"cannot import name '(\w+)'", str(error))
        if owner is None or quoted is None:
            return None
        asked = quoted[1]
    line = traceback.extract_tb(error.__traceback__)[-1]
    top = getattr(sys.modules[package.partition(".")[0]], "__file__", None)
    roots = (*_ROOTS, Path(top).resolve().parent) if top else _ROOTS
    root = next((root for root in roots if Path(line.filename).is_relative_to(root)), None)
    if root is None:
        return None
    known = [text for text in dir(owner) if not text.startswith("_")] if owner is not None else []
    refused = DeclarationError(
        who,
        expected=f"a name of {owner.__name__}" if isinstance(owner, ModuleType) else "a name that is defined",
        got=asked,
        fix=did_you_mean(asked, known) if known else "import it, or correct the name",
    )
    return refused.at(f"{Path(line.filename).relative_to(root.parent).as_posix()}:{line.lineno}: {line.line}")
