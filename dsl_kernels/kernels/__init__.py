"""The kernels, a folder each: `ls` of this folder is the table of contents.

A folder holds, by name:

    problem     operands, reference, workloads, tolerances
    program     the tile program: knobs, the schedule, a body a role; a package where structures differ much
    leaves      what one thread does, by its text; a package where there are many
    policy      which variants are committed, and how a launch is dealt out over a GPU
    op          the torch op that callers import from `dsl_kernels.ops`
    cutedsl, tilelang   what a DSL is told, and leaves that it spells itself; `_sm90` and `_sm100` for one architecture
    functions   what leaves that every DSL spells itself mean, in torch

Other modules of a folder are a part's own: `forms` and `blocks` of a problem, `costs` of a policy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .._discover import discover, module_files, package_names


def names(part: str) -> list[str]:
    """Every operation whose folder has this part."""
    return package_names(__path__, part)


def files(op: str, part: str) -> list[Path]:
    """The source files of a part of an operation, sorted.

    Raises:
        FileNotFoundError: the operation has no such part.
    """
    return module_files([str(Path(folder, op)) for folder in __path__], part)


def get(op: str, part: str, attribute: str, kind: str) -> Any:
    """What a part of an operation declares, by its name there.

    Raises:
        UnknownNameError: no operation of this name has the part; `kind` says what was asked for.
        DeclarationError: the part, or what it imports of ours, asks for a name that is not there.
    """
    return discover(__name__, op, lambda: names(part), kind, attribute, part)
