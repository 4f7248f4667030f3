"""The points that a command names by sizes, or by a grid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dsl_kernels.cli import _output as out
from dsl_kernels.errors import InvalidArgumentError

from . import _options as options

if TYPE_CHECKING:
    from ..timing.grids import Point


def points_of(op: str, form: str | None, grid: str | None, point: str, dim: Iterable[str]) -> list[Point]:
    """The points that `--dim` names, or those of a grid whose form and sizes match a regular expression.

    Raises:
        InvalidArgumentError: both sizes and a grid, or neither.
    """
    from ..timing import grids, search

    dim = list(dim)
    if dim and grid is None and not point:
        return search.named_points(op, form, out.sizes_of(dim))
    if grid is None or dim:
        usual = ",".join(f"{name}={value}" for name, value in grids.usual(op, form).params.items())
        raise InvalidArgumentError(
            "what to time",
            expected="sizes (--dim), or a grid (--grid) with or without --point",
            got="both" if dim else "none",
            fix=f"for example --dim {usual}, or --grid core",
        )
    wanted = options.pattern("--point", point)
    return [at for at in grids.points(op, grid) if form in (None, at.form) and wanted.search(at.name)]


def no_points(grid: str | None, point: str) -> InvalidArgumentError:
    """The error for a grid without any point that was asked for."""
    return InvalidArgumentError(
        "--point",
        expected=f"a form or sizes of the grid {grid}",
        got=repr(point),
        fix="look at `bench` without it",
    )
