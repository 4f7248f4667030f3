"""The emulator under its former name: this is `ptx_emulator`, and its modules are that package's."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import ptx_emulator
from ptx_emulator import *  # noqa: F403
from ptx_emulator import __all__ as __all__


class _Alias(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `dsl_kernels.emulator.x` to be the module `ptx_emulator.x` itself, when it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        there = importlib.util.find_spec(name.replace(__name__, ptx_emulator.__name__, 1))
        return there and importlib.util.spec_from_loader(name, self, origin=there.name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(str(spec.origin))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # It ran under its own name; importlib gave it the alias's spec meanwhile.
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _Alias())
