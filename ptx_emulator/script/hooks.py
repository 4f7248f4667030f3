"""Temporary changes to other modules, made when they are imported and undone after the check."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

_MISSING = object()


class Patches:
    """Replaced attributes, and how to undo them."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute, or add one, until :meth:`undo`."""
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def undo(self) -> None:
        for owner, name, old in reversed(self._undo):
            if old is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, old)
        self._undo.clear()


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables while the context is open."""
    old = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: Any, after: Callable[[], None]) -> None:
        self._inner, self._after = inner, after

    def create_module(self, spec: Any) -> Any:
        return self._inner.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._inner.exec_module(module)
        self._after()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, wanted: dict[str, Callable[[], None]]) -> None:
        self._wanted = wanted

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        after = self._wanted.get(name)
        if after is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                del self._wanted[name]
                spec.loader = _Loader(spec.loader, after)
                return spec
        return None


@contextmanager
def when_imported(installers: Mapping[str, Callable[[], Any]]) -> Iterator[None]:
    """Enter each context manager when its module is loaded: now if it is already, else after its import."""
    stack = ExitStack()
    wanted: dict[str, Callable[[], None]] = {}

    def enter(install: Callable[[], Any]) -> Callable[[], None]:
        return lambda: stack.enter_context(install())

    finder = _Finder(wanted)
    try:
        for name, install in installers.items():
            if name in sys.modules:
                stack.enter_context(install())
            else:
                wanted[name] = enter(install)
        sys.meta_path.insert(0, finder)
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
        stack.close()
