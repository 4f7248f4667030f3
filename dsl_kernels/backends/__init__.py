"""Backends by directory: a module here named `<backend>` with a `BACKEND` object is a backend."""

from __future__ import annotations

import importlib
import pkgutil

from dsl_kernels.errors import UnknownNameError, did_you_mean

from .base import Backend


def names() -> list[str]:
    """Every backend that this folder holds, whether or not its DSL is installed."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base")


def get(name: str) -> Backend:
    """The backend called `name`. Importing it imports no DSL; using it does."""
    known = names()
    if name not in known:
        raise UnknownNameError(
            f"backend {name!r}", expected=f"one of {', '.join(known)}", got=repr(name), fix=did_you_mean(name, known)
        )
    return importlib.import_module(f"{__name__}.{name}").BACKEND
