"""What a plugin takes over: functions of an engine, found by name, held to the parameters that the plugin was written for."""

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
        path: its module and name, with dots.
        parameters: the names that it takes, in their order: a function that takes others means something else, or gets
            arguments that ours would not know. None: it need only be there.
    """

    path: str
    parameters: tuple[str, ...] | None = None

    def mismatch(self) -> str | None:
        """Why the engine does not fit, or None."""
        try:
            found = _resolved(self.path)
            if self.parameters is None:
                return None
            held = tuple(name for name in inspect.signature(found).parameters if name != "self")
        except Exception as error:
            return f"{self.path}: {type(error).__name__}: {error}"
        if held != self.parameters:
            return f"{self.path} takes ({', '.join(held)}), not ({', '.join(self.parameters)})"
        return None


def _resolved(path: str) -> Any:
    """What a path names.

    Raises:
        ImportError: a module of it does not import, as it says itself.
        AttributeError: a module lacks the name.
    """
    try:
        return pkgutil.resolve_name(path)
    except AttributeError:
        # `resolve_name` takes a module that does not import for a name that its package lacks.
        parts = path.split(".")
        for end in range(len(parts) - 1, 0, -1):
            name = ".".join(parts[:end])
            if name in sys.modules or importlib.util.find_spec(name) is not None:
                importlib.import_module(name)
                break
        raise


def mismatch(seams: tuple[Seam, ...]) -> str | None:
    """The first reason of several seams why an engine does not fit, or None."""
    return next((reason for seam in seams if (reason := seam.mismatch()) is not None), None)


@lru_cache(maxsize=1)
def hopper_or_no_gpu() -> bool:
    """Whether calls are served at all. It asks the driver, so it is asked at the first call, not as an engine starts."""
    return not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] == 9


@dataclass
class Taken:
    """One of our functions in the place of an engine's, which still serves what ours refuses.

    A layout that was refused once goes to the engine's function at once from then on: a refusal costs as much as a small
    kernel. Ops refuse before they launch anything.

    Attributes:
        what: names it in the log.
        ours: our function, called with the arguments of the engine's.
        log: of the engine.
        refused: layouts of tensors that ours does not take.
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
        """A function to put in the place of an engine's."""
        return lambda *args, **kwargs: self(theirs, *args, **kwargs)


def _layout(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a refusal depends on: types, strides, sizes but for the first, and what is no tensor but of its type."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append((value.dtype, value.shape[1:], value.stride(), value.data_ptr() % 16))
        elif isinstance(value, tuple):
            found.append(_layout(value))
        else:
            found.append(value if isinstance(value, bool | str | torch.dtype | None) else type(value))
    return tuple(found)
