"""The command that writes Solutions for flashinfer-bench and FlashInfer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsl_kernels.cli import _output as out

app = typer.Typer()


@app.command("solutions")
def write(
    folder: Annotated[Path, typer.Argument(help="Where `solutions/` is made.")],
    definitions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DEFINITION]...", help="Definitions; by default those of flashinfer-bench."),
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Write our ops as Solutions for flashinfer-bench's definitions, which FlashInfer's trace_apply takes."""
    from .. import solutions

    files = solutions.write_solutions(folder, tuple(definitions or solutions.PUBLISHED))
    if as_json:
        out.print_json([{"definition": file.stem, "file": file} for file in files])
        return
    out.show(out.table("", ("definition", "file"), [(file.stem, str(file)) for file in files]))
