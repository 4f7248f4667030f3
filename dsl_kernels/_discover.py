"""Discovery by directory: a module's file name is its registration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any

from .errors import UnknownNameError, did_you_mean


def module_names(path: Iterable[str]) -> list[str]:
    """Sorted names of the public modules in a package."""
    return sorted(info.name for info in pkgutil.iter_modules(path) if not info.name.startswith("_"))


def discover(package: str, name: str, known: list[str], kind: str, attribute: str) -> Any:
    """`<package>.<name>.<attribute>`.

    Raises:
        UnknownNameError: `name` is not among `known`.
    """
    if name not in known:
        raise UnknownNameError(
            f"{kind} {name!r}", expected=f"a known {kind}", got=repr(name), fix=did_you_mean(name, known)
        )
    return getattr(importlib.import_module(f"{package}.{name}"), attribute)
