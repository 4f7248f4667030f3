"""`python -m dsl_kernels`: list, inspect, compile, run and time the kernels.

Every public module here is a group of commands: it holds a typer app named `app`. Heavy imports (torch, the
DSLs) happen inside the commands that need them. An installed laboratory adds its own.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import typer
import typer.core

from .. import __version__, env
from .._discover import module_names
from ..emulated import library_errors
from ..errors import DslKernelError, InvalidArgumentError
from . import _laboratory as laboratory
from ._output import error_console


class _Group(typer.core.TyperGroup):
    """Renders typed errors on stderr and ends with status 2, without a traceback."""

    def get_command(self, ctx: Any, name: str) -> Any:
        command = super().get_command(ctx, name)
        if command is None and name in laboratory.COMMANDS:
            raise laboratory.missing(name)
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            with library_errors():
                return super().invoke(ctx)
        except DslKernelError as error:
            show_error(error)
            raise typer.Exit(2) from None
        except OSError as error:
            # An error that names no file is not the user's to fix.
            if error.filename is None:
                raise
            show_error(
                InvalidArgumentError(
                    str(error.filename),
                    expected="a file or folder that can be read and written",
                    got=str(error.strerror),
                    fix="name another path, or check its permissions",
                )
            )
            raise typer.Exit(2) from None


def show_error(error: DslKernelError) -> None:
    """Print the error's parts, one on each line."""
    console = error_console()
    console.print(
        f"error[{error.code}] {error.subject}",
        style="bold red",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    parts = {"at": error.where, "expected": error.expected, "got": error.got, "fix": error.fix}
    for name, part in parts.items():
        if part or name != "at":
            console.print(f"  {name + ':':<10}{part}", markup=False, highlight=False, soft_wrap=True)


app = typer.Typer(
    name="dsl_kernels",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Sparse-attention kernels for Hopper and Blackwell: list, inspect, compile, run and time them.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    level = env.LOG_LEVEL.get()
    if level not in logging.getLevelNamesMapping():
        raise InvalidArgumentError(
            env.LOG_LEVEL.name,
            expected="a level name",
            got=repr(level),
            fix="use DEBUG, INFO, WARNING or ERROR",
        )
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")


def _packages() -> dict[str, Any]:
    """The packages whose modules are groups of commands: this one and the laboratory's."""
    return {__name__: __path__, **{package.__name__: package.__path__ for package in laboratory.packages()}}


for _name, _package in sorted(
    (name, package) for package, path in _packages().items() for name in module_names(path)
):
    app.add_typer(importlib.import_module(f"{_package}.{_name}").app)


def main() -> None:
    """Entry point of `python -m dsl_kernels` and of the console script."""
    app()
