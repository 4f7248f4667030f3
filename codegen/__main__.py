"""`python -m codegen`: generate, check, list and scaffold kernels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from dsl_kernels import env
from dsl_kernels.cli import _output
from dsl_kernels.cli._output import Arch, Backend, Op
from dsl_kernels.errors import DslKernelError
from dsl_kernels.tile.lang import COARSE, SUMS, TRACE

from .emit import GENERATED, emit
from .sweep import ROOT, Filter, Sweep, backends, instance_of, sweep

DOCUMENTS = ROOT / "scripts" / "update_docs.py"
"""Brings generated parts of the documents in step with the committed set; only a checkout has it."""

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)

Name = Annotated[str | None, typer.Option("--filter", help="Regular expression searched in the variant id.")]
Level = Annotated[
    int, typer.Option(min=0, help="Sweep level; 0 is the committed set, higher ones go to the cache.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _progress(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip


def output_folder(level: int, out: Path | None) -> Path:
    """generated/ for the committed set, a folder in the cache for a wider sweep."""
    if out is not None:
        return out
    if level == 0:
        return GENERATED
    from dsl_kernels.runtime.cache import cache_root

    return cache_root() / "generated" / f"level{level}"


@app.command()
def generate(
    op: Op = None,
    backend: Backend = None,
    arch: Arch = None,
    name: Name = None,
    level: Level = 0,
    out: Annotated[Path | None, typer.Option(help="Write here instead.")] = None,
    compile: Annotated[bool, typer.Option(help="Compile what was generated.")] = True,
    as_json: Json = False,
) -> None:
    """Sweep, check, render into generated/, compile every variant, and print one table.

    In a checkout this also renews the generated parts of the documents and the clock's walks of changed
    variants.
    """
    console = Console(stderr=True)
    only = Filter(op, backend, arch, name)
    swept = sweep(level, only)
    root = output_folder(level, out)
    with _progress(console) as progress:
        task = progress.add_task("render", total=len(swept.kept))
        emission = emit(
            swept.kept,
            root,
            only=only,
            progress=lambda c: progress.update(task, advance=1, description=f"render {c.id}"),
        )
    compiled: dict[str, Any] = {}
    if compile:
        compiled = _compile(swept, root, console)
    documents = _documents(console) if root == GENERATED else []
    if root == GENERATED:
        _walks(console)
    rows = _rows(swept, compiled)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "rows": rows,
                    "written": emission.written,
                    "removed": emission.removed,
                    "foreign": emission.foreign,
                    "documents": documents,
                },
                indent=1,
            )
        )
    else:
        _show(rows, with_compile=compile)
        counts = {name: len(getattr(emission, name)) for name in ("written", "removed", "unchanged")}
        Console().print(f"{root.name}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
        if documents:
            Console().print(f"documents: {', '.join(documents)} brought up to date", soft_wrap=True)
        if emission.foreign:
            Console(stderr=True).print(
                f"left alone, as no manifest lists them: {', '.join(emission.foreign[:4])}"
                f"{' ...' if len(emission.foreign) > 4 else ''}; move them away",
                soft_wrap=True,
            )
    failures = {variant: outcome for variant, outcome in compiled.items() if outcome.error is not None}
    for variant, outcome in failures.items():
        Console(stderr=True).print(f"[red]{variant}[/]: {outcome.error}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)


def _documents(console: Console) -> list[str]:
    """Bring a checkout's documents in step with its committed set; returns the paths that changed."""
    if not DOCUMENTS.exists():
        return []
    done = _follow(console, [str(DOCUMENTS)], "documents are", "make docs")
    return [line.removeprefix("wrote: ") for line in done.splitlines()]


def _walks(console: Console) -> None:
    """Record the clock's walks of variants that changed."""
    _follow(console, ["-m", "codegen", "walks"], "the clock's walks are", "python -m codegen walks")


def _follow(console: Console, command: list[str], what: str, again: str) -> str:
    """Run a command that follows the committed set, and return what it prints.

    It needs a process of its own, as this one has already read the set as it was before.
    """
    kept = {name: value for name, value in os.environ.items() if name != env.GENERATED_DIR.name}
    done = subprocess.run([sys.executable, *command], env=kept, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        console.print(f"{what} as they were ({reason}); run `{again}`", soft_wrap=True, markup=False)
    return done.stdout


def _compile(swept: Sweep, root: Path, console: Console) -> dict[str, Any]:
    from dsl_kernels.runtime.pool import compile_all
    from dsl_kernels.variants import Variant

    from .emit import relative_path

    variants = [
        Variant(
            id=c.id,
            op=c.program.op,
            backend=c.backend,
            arch=c.arch.name,
            knobs=c.knobs,
            path=root / relative_path(c),
        )
        for c in swept.kept
    ]
    outcomes = {}
    with _progress(console) as progress:
        task = progress.add_task("compile", total=len(variants))
        for outcome in compile_all(variants):
            outcomes[outcome.variant] = outcome
            progress.update(task, advance=1, description=f"compile {outcome.variant}")
    return outcomes


def _rows(swept: Sweep, compiled: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per (op, backend, arch)."""
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}

    def row(instance: Any) -> dict[str, Any]:
        key = (instance.program.op, instance.backend, instance.arch.name)
        return rows.setdefault(
            key,
            {
                "op": key[0],
                "backend": key[1],
                "arch": key[2],
                "kept": 0,
                "refused": Counter(),
                "compile_seconds": 0.0,
                "cache_hits": 0,
                "failed": 0,
            },
        )

    for instance in swept.kept:
        entry = row(instance)
        entry["kept"] += 1
        outcome = compiled.get(instance.id)
        if outcome is not None:
            entry["compile_seconds"] += outcome.seconds
            entry["cache_hits"] += outcome.cached
            entry["failed"] += outcome.error is not None
    for instance, violations in swept.refused:
        row(instance)["refused"][violations[0].code] += 1
    return [{**value, "refused": dict(value["refused"])} for _, value in sorted(rows.items())]


def _show(rows: list[dict[str, Any]], with_compile: bool) -> None:
    columns = ["op", "backend", "arch", "kept", "refused by"]
    if with_compile:
        columns += ["compile s", "cache hits", "failed"]
    cells = []
    for row in rows:
        refused = ", ".join(f"{code} x{count}" for code, count in row["refused"].items()) or "-"
        line = [row["op"], row["backend"], row["arch"], row["kept"], refused]
        if with_compile:
            line += [f"{row['compile_seconds']:.1f}", row["cache_hits"], row["failed"]]
        cells.append(line)
    right = ("kept", "compile s", "cache hits", "failed")
    _output.show(_output.table("variants", columns, cells, right=right, fold=("refused by",)))


@app.command()
def check(as_json: Json = False) -> None:
    """Fail with the list of files in generated/ that differ from what the declarations and templates give."""
    emission = emit(sweep().kept, dry_run=True)
    if as_json:
        typer.echo(json.dumps({"drifted": emission.drifted}))
    elif emission.drifted:
        Console(stderr=True).print(
            "generated/ is out of step; run `make generate`, and move away what it does not list:\n  "
            + "\n  ".join(emission.drifted)
        )
    else:
        Console().print(f"generated/ is in step: {len(emission.unchanged)} files")
    if emission.drifted:
        raise typer.Exit(1)


@app.command()
def walks(arch: Arch = None, as_json: Json = False) -> None:
    """Record the clock's walks of the variants that it ranks, skipping modules that did not change."""
    from dsl_kernels.clock import cached

    from .walks import record

    done = []
    with _progress(Console(stderr=True)) as progress:
        task = progress.add_task("walk", total=None)
        for name in [arch] if arch else cached.RANKED:
            done += record(name, lambda v: progress.update(task, advance=1, description=f"walk {v}"))
    if as_json:
        typer.echo(json.dumps({"walked": done}))
    else:
        Console().print(f"walked: {len(done)} variants")


@app.command("list")
def list_instances(
    op: Op = None,
    backend: Backend = None,
    arch: Arch = None,
    name: Name = None,
    level: Level = 0,
    as_json: Json = False,
) -> None:
    """List the instances of a sweep level, kept and refused, without writing anything."""
    swept = sweep(level, Filter(op, backend, arch, name))
    refused = [{"id": c.id, "violations": [vars(v) for v in violations]} for c, violations in swept.refused]
    if as_json:
        typer.echo(json.dumps({"kept": [c.id for c in swept.kept], "refused": refused}, indent=1))
        return
    cells = [[instance.id, "kept", "", "", ""] for instance in swept.kept]
    for instance, violations in swept.refused:
        cells += [[instance.id, v.code, v.figure, v.limit, v.fix] for v in violations]
    columns = ("variant", "verdict", "figure", "limit", "fix")
    _output.show(_output.table("", columns, cells, fold=("figure", "limit", "fix")))


@app.command()
def probe(
    name: Annotated[str, typer.Argument(metavar="VARIANT", help="Variant id.")],
    trace: Annotated[
        bool, typer.Option("--trace", help="Keep the last regions one by one, not sums.")
    ] = False,
    coarse: Annotated[
        bool, typer.Option("--coarse", help="Sum the waits, and everything else as one region.")
    ] = False,
    off: Annotated[
        bool, typer.Option("--off", help="Render without probes, for the changes of --knob.")
    ] = False,
    knob: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Change a knob, to a value for measurement only too."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Add it to the generated set in this folder, instead of a set of its own in the cache."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Render a variant with probes, for `python -m dsl_kernels profile regions`."""
    from dsl_kernels.runtime.cache import cache_root

    changed = {
        key: int(value) if value.isdecimal() else value
        for key, _, value in (one.partition("=") for one in knob or ())
    }
    instance = instance_of(
        _output.variant(name), 0 if off else TRACE if trace else COARSE if coarse else SUMS, **changed
    )
    root = out or cache_root() / "generated" / "probes" / instance.id
    emit([instance], root, only=Filter(name=f"^{instance.id}$"))
    if as_json:
        typer.echo(json.dumps({"folder": str(root), "variant": instance.id}))
    else:
        Console().print(f"{root}: {instance.id}", soft_wrap=True, markup=False)


@app.command()
def new(op: Annotated[str, typer.Argument(help="Name of the operation, in snake_case.")]) -> None:
    """Scaffold an operation: problem, program, leaves and tests, which fail until it is written."""
    from .scaffold import scaffold

    for path in scaffold(op):
        Console().print(f"wrote {path}")


@app.command("try")
def try_sketches(
    file: Annotated[
        Path, typer.Argument(help="A Python file that defines sketches, such as one of examples/.")
    ],
    on: Annotated[
        str,
        typer.Option(help="Where to run: interpreter, emulator or cuda; print shows the module instead."),
    ] = "interpreter",
    backend: Annotated[str, typer.Option(help="The DSL that prints and compiles the kernels.")] = "cutedsl",
    schedules: Annotated[int, typer.Option(min=1, help="How many interleavings the emulator tries.")] = 6,
) -> None:
    """Run the sketches of a file, kernels that belong to no operation, and compare them with torch."""
    import ptx_emulator as emulator
    from dsl_kernels import executors
    from dsl_kernels.arguments import require_known

    from .sketch import sketches

    require_known("--on", on, [*executors.EXECUTORS, "print"], "place")
    require_known("--backend", backend, backends(), "backend")
    wrong = 0
    for sketch in sketches(file):
        if on == "print":
            typer.echo(sketch.source(backend))
            continue
        tried: list[Any] = [executors.get(on)]
        if on == "emulator":
            tried = [executors.Emulator(one, strict=True) for one in emulator.interleavings(schedules)]
        device = "cuda" if on == "cuda" else "cpu"
        results = [sketch.run(executor, backend, device=device) for executor in tried]
        worst = {name: max(result.figures[name] for result in results) for name in results[0].figures}
        summary = ", ".join(
            f"{name} {figure:.2g} of {results[0].limits[name]:.0e}" for name, figure in worst.items()
        )
        failed = sum(not result.ok for result in results)
        wrong += failed
        verdict = f"[red]{failed} of {len(results)} runs are wrong[/]" if failed else "right"
        Console().print(f"{sketch.name}, {sketch.arch}, {on}: {verdict}, {summary}", soft_wrap=True)
    if wrong:
        raise typer.Exit(1)


def main() -> None:
    try:
        app()
    except DslKernelError as error:
        Console(stderr=True).print(str(error), style="red", soft_wrap=True, markup=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
