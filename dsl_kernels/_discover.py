"""Discovery by directory: a module's file name is its registration."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from typing import Any

from .arguments import require_known


def module_names(path: Iterable[str]) -> list[str]:
    """Sorted names of the public modules in a package."""
    return sorted(info.name for info in pkgutil.iter_modules(path) if not info.name.startswith("_"))


def discover(package: str, name: str, names: Callable[[], list[str]], kind: str, attribute: str) -> Any:
    """`<package>.<name>.<attribute>`.

    Raises:
        ArgumentTypeError: `name` is no string.
        UnknownNameError: `name` is not among `names()`, which is asked only for what is not imported yet.
    """
    module = sys.modules.get(f"{package}.{name}") if isinstance(name, str) else None
    if module is None or not hasattr(module, attribute):
        require_known(kind, name, names(), kind)
        module = importlib.import_module(f"{package}.{name}")
    return getattr(module, attribute)
