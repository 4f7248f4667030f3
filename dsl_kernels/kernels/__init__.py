"""The kernels, one folder each.

A folder holds, by name:

    problem     operands, and the sizes that are timed
    program     the tile program: knobs, the schedule, a body per role; a package where structures differ much
    leaves      the steps of one thread, by their text; a package where there are many
    policy      the variants that are committed, and the launch plan of a call
    op          the torch op that callers import from `dsl_kernels.ops`
    cutedsl, tilelang   settings of a DSL, and leaves that it spells itself; `_sm90` and `_sm100` for one
    architecture functions   the meaning in torch of leaves that every DSL spells itself

Other modules of a folder, `forms` and `blocks`, belong to a problem.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._discover import discover, module_files, package_names


def names(part: str) -> list[str]:
    """The operations whose folders have this part."""
    return package_names(__path__, part)


def files(op: str, part: str) -> list[Path]:
    """The source files of a part of an operation, sorted.

    Raises:
        FileNotFoundError: the operation has no such part.
    """
    return module_files([str(Path(folder, op)) for folder in __path__], part)


def get(op: str, part: str, attribute: str, kind: str) -> Any:
    """The object that a part of an operation declares under the name `attribute`.

    Raises:
        UnknownNameError: no operation of this name has the part. The text names it by `kind`.
        DeclarationError: the part, or a module of ours that it imports, asks for a name that does not exist.
    """
    return discover(__name__, op, lambda: names(part), kind, attribute, part)
