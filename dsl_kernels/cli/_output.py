"""What several commands share: consoles, tables, JSON and common options."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import measured, variants
from ..arch import get_arch
from ..arguments import require_known, shown
from ..errors import InvalidArgumentError, UnknownNameError, did_you_mean
from ..variants import Variant

Op = Annotated[str | None, typer.Option(help="Only this operation.")]
Backend = Annotated[str | None, typer.Option(help="Only this backend.")]
Arch = Annotated[str | None, typer.Option(help="Only this architecture (sm_90a, sm_100a).")]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        help="Size as name=value, by the operands' dims or the names of points; "
        "repeat it, or separate with commas.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

# A column that may wrap keeps at least this many characters.
FOLD_WIDTH = 24
# Width of a table that goes to a file or a pipe, for which rich would assume 80 columns.
PIPE_WIDTH = 200


def console() -> Any:
    """Standard output, as wide as the terminal; without a terminal wide enough that tables do not wrap."""
    return _console(stderr=False)


def error_console() -> Any:
    """Standard error, for errors, notes and progress."""
    return _console(stderr=True)


def _console(stderr: bool) -> Any:
    from rich.console import Console

    result = Console(stderr=stderr, emoji=False)
    if not result.is_terminal and "COLUMNS" not in os.environ:
        result = Console(stderr=stderr, emoji=False, width=PIPE_WIDTH)
    return result


def say(text: str, style: str | None = None, *, error: bool = False, wrap: bool = False) -> None:
    """Print text as it is, brackets included, on standard output or error; only with `wrap` by the width."""
    where = error_console() if error else console()
    where.print(text, style=style, markup=False, soft_wrap=not wrap)


def table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Iterable[Any]],
    *,
    right: Iterable[str] = (),
    fold: Iterable[str] = (),
) -> Any:
    """A rich table. Columns in `right` are right-aligned; only those in `fold` may wrap."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    result = Table(
        title=title or None, title_justify="left", title_style="bold", highlight=False, box=SIMPLE_HEAD
    )
    right, fold = set(right), set(fold)
    for name in columns:
        result.add_column(
            name, justify="right" if name in right else "left", no_wrap=name not in fold, overflow="fold"
        )
    for row in rows:
        result.add_row(*(cell(value) for value in row))
    return result


def show(result: Any) -> None:
    """Print a table on standard output; ids and numbers stay whole even if the terminal is too narrow."""
    from rich.cells import cell_len
    from rich.text import Text

    def wanted(column: Any) -> int:
        longest = max(cell_len(Text.from_markup(str(text)).plain) for text in (column.header, *column.cells))
        return longest if column.no_wrap else min(longest, FOLD_WIDTH)

    needed = 2 + sum(wanted(column) + 2 for column in result.columns) + len(result.columns)
    where = console()
    if needed > where.width:
        where.width = needed
    where.print(result)


def cell(value: Any) -> str:
    """A value as a table shows it: brackets escaped, None as a dash."""
    from rich.markup import escape

    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return figure(value)
    if isinstance(value, Mapping):
        return escape(" ".join(f"{k}={v}" for k, v in value.items())) or "-"
    return escape(str(value))


def figure(value: float | None) -> str:
    """A number with three significant digits, or a dash."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def size_text(count: int) -> str:
    """A number of bytes in a readable unit."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def print_json(data: Any) -> None:
    """Print JSON on standard output; paths become strings, and infinities and NaN become null."""
    typer.echo(json.dumps(_plain(data), indent=1))


def _plain(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple | set):
        return [_plain(value) for value in data]
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Path):
        return str(data)
    return data


def progress(disable: bool = False) -> Any:
    """A progress display on standard error; silent if standard error is not a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    where = error_console()
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=where,
        transient=True,
        disable=disable or not where.is_terminal,
    )


def narrowed(op: str | None, backend: str | None, arch: str | None) -> dict[str, str | None]:
    """The filters in the form that `variants.variants` takes, after checking their spelling.

    Raises:
        UnknownNameError, UnsupportedArchError: a filter that cannot match anything.
    """
    from .. import backends, problems

    for kind, value, known in (("operation", op, problems.names()), ("backend", backend, backends.names())):
        if value is not None:
            require_known(kind, value, known, kind)
    return {"op": op, "backend": backend, "arch": get_arch(arch).name if arch else None}


def variant(name: str) -> Variant:
    """The variant with that id.

    Raises:
        UnknownNameError: there is none; the error lists ids that contain what was typed, or resemble it.
    """
    ids = variants.ids(variants.variants())
    if name in ids:
        return variants.get(name)
    if (added := measured.added_variants().get(name)) is not None:
        return added
    near = (
        [known for known in ids if all(part in known for part in name.split("_") if part)]
        if len(name) > 2
        else []
    )
    hint = f"did you mean {', '.join(near[:4])}?" if near else did_you_mean(name, ids)
    raise UnknownNameError(
        "variant",
        expected="a generated variant",
        got=shown(name),
        fix=f"{hint} `python -m dsl_kernels list` prints them all",
    )


def sizes_of(items: Iterable[str]) -> dict[str, list[Any]]:
    """Sizes from `name=value/value` items; commas separate several in one item.

    A value is a number, or a word that says how inputs are drawn.

    Raises:
        InvalidArgumentError: an item of another form.
    """
    sizes: dict[str, list[Any]] = {}
    for part in (part.strip() for item in items for part in item.split(",")):
        name, _, values = part.partition("=")
        texts = values.split("/")
        if not name.isidentifier() or not all(re.fullmatch(r"[0-9]{1,12}|[a-z_]+", text) for text in texts):
            raise InvalidArgumentError(
                "--dim",
                expected="name=integer, or name=word of how inputs are drawn",
                got=shown(part),
                fix="write, for example, --dim t=16,heads=16",
            )
        sizes[name] = [int(text) if text.isdigit() else text for text in texts]
    return sizes


def dims_of(items: Iterable[str]) -> dict[str, Any]:
    """`sizes_of`, with a single value for each name.

    Raises:
        InvalidArgumentError: an item of another form, or with several values.
    """
    sizes = sizes_of(items)
    if several := next((name for name, values in sizes.items() if len(values) > 1), None):
        raise InvalidArgumentError(
            "--dim",
            expected=f"one value of {several}",
            got="/".join(map(str, sizes[several])),
            fix="give one; `tune` and `bench` take several",
        )
    return {name: values[0] for name, values in sizes.items()}
