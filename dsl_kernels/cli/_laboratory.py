"""What an installed laboratory adds: its commands, and records that commands of the library show.

A package announces itself by an entry point of the group `dsl_kernels.commands`. As here, each public module
of the package is a group of commands: it holds a typer app named `app`. The package's `OFFERED` says which of
its modules commands of the library may use, by a name for each.
"""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from importlib import metadata
from types import ModuleType
from typing import Any

from .. import __version__
from ..errors import ToolchainError

GROUP = "dsl_kernels.commands"
DISTRIBUTION = "dsl-kernels-lab"
PACKAGE = "dsl_kernels_lab"
COMMANDS = ("bench", "case", "emulate", "export-kernel", "profile", "run", "solutions", "tune", "verify")
"""The laboratory's commands: without it, each is refused with what to install."""


def packages() -> tuple[ModuleType, ...]:
    """The packages of commands that are installed, or that lie beside the library in a checkout."""
    return _imported()[0]


@cache
def _imported() -> tuple[tuple[ModuleType, ...], str]:
    """The packages, and why one that is announced is not among them."""
    names = sorted({point.value for point in metadata.entry_points(group=GROUP)})
    # An environment that was made before the laboratory was a package has no entry point of it.
    if not any(name.split(".")[0] == PACKAGE for name in names) and importlib.util.find_spec(PACKAGE):
        names.append(f"{PACKAGE}.cli")
    packages, problem = [], ""
    for name in names:
        try:
            packages.append(importlib.import_module(name))
        except ImportError as error:
            problem = f"{name} cannot be imported: {error}"
    return tuple(packages), problem


def offered(name: str) -> Any:
    """The module that a laboratory offers under a name; None without a laboratory."""
    for package in packages():
        if (module := getattr(package, "OFFERED", {}).get(name)) is not None:
            return importlib.import_module(module)
    return None


def missing(what: str) -> ToolchainError:
    """The error for a command or option that needs a laboratory, where there is none."""
    return ToolchainError(
        what,
        expected=f"the distribution {DISTRIBUTION}, which has it",
        got=_imported()[1] or "not installed",
        fix=f"`pip install {DISTRIBUTION}=={__version__}`, or in a checkout `make setup`",
    )
