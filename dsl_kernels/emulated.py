"""The emulator's errors where the library runs it: each stays what it is, and is a `DslKernelError` too."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import DslKernelError


@contextmanager
def library_errors() -> Iterator[None]:
    """Within it, what catches a `DslKernelError` catches what the emulator raises. Loads no emulator."""
    try:
        yield
    except Exception as error:
        package = sys.modules.get("ptx_emulator")
        if package is not None and isinstance(error, package.PtxEmulatorError):
            as_library_error(error)
        raise


def as_library_error(error: Any) -> Any:
    """An error of the emulator itself, which is a `DslKernelError` from here on."""
    if not isinstance(error, DslKernelError):
        kind: Any = type(error)
        error.__class__ = _both(kind)
    return error


@functools.cache
def _both(kind: type[Exception]) -> Any:
    """The class of an emulator's error that is a library's error too."""
    own = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": _reduced}
    return type(kind.__name__, (kind, DslKernelError), own)


def _reduced(error: Exception) -> tuple[Any, ...]:
    """Pickle as the emulator's error, which becomes the library's where it is read."""
    kind: Any = type(error).__bases__[0]
    plain = kind.__new__(kind, *error.args)
    plain.__dict__.update(vars(error))
    return as_library_error, (plain,)
