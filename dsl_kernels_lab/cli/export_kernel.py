"""The command that writes the library in the layout of Hugging Face `kernels`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsl_kernels.cli import _output as out

app = typer.Typer()


@app.command("export-kernel")
def write(
    folder: Annotated[Path, typer.Argument(help="Where `build/torch-cuda` is made.")],
    as_json: out.Json = False,
) -> None:
    """Write the operations as a kernel of Hugging Face `kernels`: CuTe DSL alone, with the library inside."""
    from .. import hf_kernels

    made = hf_kernels.export(folder)
    summary = {"folder": made.folder, "id": made.id, "files": made.files, "bytes": made.bytes}
    if as_json:
        out.print_json(summary)
        return
    out.show(out.table("", tuple(summary), [tuple(map(str, summary.values()))]))
