"""Backends, found by directory: a module here with a `BACKEND` object is the backend of that name."""

from __future__ import annotations

from collections.abc import Iterator

from dsl_kernels._discover import discover, module_names
from dsl_kernels.errors import ToolchainError

from .base import Backend


def names() -> list[str]:
    """Every backend in this folder, whether or not its DSL is installed."""
    return [name for name in module_names(__path__) if name != "base"]


def get(name: str) -> Backend:
    """The backend called `name`. Importing it imports no DSL; using it does.

    Raises:
        UnknownNameError: there is no module of that name.
    """
    backend: Backend = discover(__name__, name, names, "backend", "BACKEND")
    return backend


def toolchains() -> Iterator[tuple[str, dict[str, str] | ToolchainError]]:
    """Each backend's name, with the versions of its packages, or the error that names a missing one."""
    for name in names():
        try:
            yield name, get(name).versions()
        except ToolchainError as error:
            yield name, error
