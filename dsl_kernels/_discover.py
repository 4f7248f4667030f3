"""Discovery by directory: a module's file name is its registration."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .errors import UnknownNameError, did_you_mean


def module_names(path: Iterable[str]) -> list[str]:
    """Sorted names of the public modules in a package."""
    return sorted(info.name for info in pkgutil.iter_modules(path) if not info.name.startswith("_"))


def discover(package: str, name: str, names: Callable[[], list[str]], kind: str, attribute: str) -> Any:
    """`<package>.<name>.<attribute>`.

    Raises:
        UnknownNameError: `name` is not among `names()`, which is asked only for what is not imported yet.
    """
    module = sys.modules.get(f"{package}.{name}")
    if module is None or not hasattr(module, attribute):
        known = names()
        if name not in known:
            raise UnknownNameError(
                f"{kind} {name!r}", expected=f"a known {kind}", got=repr(name), fix=did_you_mean(name, known)
            )
        module = importlib.import_module(f"{package}.{name}")
    return getattr(module, attribute)
