"""The functions of an engine that a plugin replaces, found by name and checked for their parameters."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import pkgutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from ..errors import DslKernelError


@dataclass(frozen=True)
class Seam:
    """A function or class of an engine.

    Attributes:
        path: its module and name, separated by dots.
        parameters: the names of its parameters, in order, separated by spaces. A function with other
            parameters means something else, or gets arguments that ours does not know. None: it only has to
            exist.
    """

    path: str
    parameters: str | None = None

    def mismatch(self) -> str | None:
        """Why the engine does not match, or None."""
        try:
            theirs = _resolved(self.path)
            if self.parameters is None:
                return None
            parameters = [name for name in inspect.signature(theirs).parameters if name != "self"]
        except Exception as error:
            return f"{self.path}: {type(error).__name__}: {error}"
        if parameters != self.parameters.split():
            return f"{self.path} takes ({', '.join(parameters)}), not ({', '.join(self.parameters.split())})"
        return None


def _resolved(path: str) -> Any:
    """The object that a path names.

    Raises:
        ImportError: a module on the path does not import; the error is the module's own.
        AttributeError: a module lacks the name.
    """
    try:
        return pkgutil.resolve_name(path)
    except AttributeError:
        # `resolve_name` reports a module that fails to import as a missing name: import it for its own error.
        parts = path.split(".")
        for end in range(len(parts) - 1, 0, -1):
            name = ".".join(parts[:end])
            if name in sys.modules or importlib.util.find_spec(name) is not None:
                importlib.import_module(name)
                break
        raise


def mismatch(seams: tuple[Seam, ...]) -> str | None:
    """The first reason why an engine does not match these seams, or None."""
    return next((reason for seam in seams if (reason := seam.mismatch()) is not None), None)


@lru_cache(maxsize=1)
def hopper_or_no_gpu() -> bool:
    """Whether calls are served at all. This asks the driver, so it waits for the first call."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] == 9


@dataclass
class Taken:
    """Our replacement of an engine's function, which still serves what ours refuses.

    A layout that ours refused once goes straight to the engine's function from then on, because a refusal
    costs as much as a small kernel. Ops refuse before they launch anything.

    Attributes:
        what: names the function in the log.
        ours: our function, called with the arguments of the engine's.
        log: the engine's log.
        refused: layouts that ours does not take.
    """

    what: str
    ours: Callable[..., Any]
    log: logging.Logger
    refused: set[tuple[Any, ...]] = field(default_factory=set)

    def __call__(self, theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        known = self.refused and _layout((*args, *kwargs.values())) in self.refused
        if known or not hopper_or_no_gpu():
            return theirs(*args, **kwargs)
        try:
            return self.ours(*args, **kwargs)
        except DslKernelError as error:
            if not self.refused:
                self.log.warning(
                    "dsl_kernels does not serve %s of this layout: %s", self.what, str(error).splitlines()[0]
                )
            self.refused.add(_layout((*args, *kwargs.values())))
            return theirs(*args, **kwargs)

    def instead_of(self, theirs: Callable[..., Any]) -> Callable[..., Any]:
        """The function to replace an engine's with."""
        return lambda *args, **kwargs: self(theirs, *args, **kwargs)


def _layout(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a refusal depends on: dtypes, strides, all sizes but the first; flags' values and other types."""
    layout: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            layout.append((value.dtype, value.shape[1:], value.stride(), value.data_ptr() % 16))
        elif isinstance(value, tuple):
            layout.append(_layout(value))
        else:
            layout.append(value if isinstance(value, bool | str | torch.dtype | None) else type(value))
    return tuple(layout)
