"""A DSL without a compiler: its modules are Python, in which a CTA is a function and a role a generator."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from dsl_kernels.errors import CompileError
from dsl_kernels.expr import evaluate

from .base import imported_helpers, load_module


class ToyBackend:
    """The `Backend` of the test DSL, and an executor of its modules."""

    name = "toy"

    def versions(self) -> dict[str, str]:
        return {"toy": "1.0"}

    def load(self) -> object:
        return load_module

    def sources(self, path: Path) -> list[Path]:
        return [*imported_helpers(path, self.name), Path(__file__)]

    def flags(self, arch: str, *, lineinfo: bool = True) -> list[str]:
        return []

    def compile_module(self, path: Path, arch: str, out_dir: Path, *, lineinfo: bool = True) -> NoReturn:
        raise CompileError(
            path.stem, expected="a DSL with a compiler", got=self.name, fix="run the module as it is"
        )

    def prepare(self, variant: Any, device: int | None = None) -> Any:
        module = load_module(variant.path)
        cta = getattr(module, variant.id)

        def launch(operands: Mapping[str, Any], dims: Mapping[str, int], stream: int = 0) -> None:
            arguments = {name: {**dims, **operands}[name] for name in module.PARAMETERS}
            for block in product(*(range(evaluate(extent, dims)) for extent in module.GRID)):
                module.machine.run(cta(*block, **arguments))

        return launch


BACKEND = ToyBackend()
