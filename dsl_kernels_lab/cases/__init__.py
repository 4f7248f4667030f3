"""Cases: questions about GPU kernels that a reader can measure again, one module for each."""

from __future__ import annotations

from dsl_kernels._discover import discover, module_names

from .base import Case


def names() -> list[str]:
    """Every case that has a module here."""
    return [name for name in module_names(__path__) if name not in ("base", "claims")]


def get(name: str) -> Case:
    """The case of that name.

    Raises:
        UnknownNameError: no module `cases/<name>.py`.
    """
    case: Case = discover(__name__, name, names, "case", "CASE")
    return case
