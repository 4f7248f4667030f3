"""Commands that fill and empty the artifact cache: compile, warmup, cache."""

from __future__ import annotations

import shutil
from typing import Annotated, Any

import typer

from .. import variants
from ..arguments import require_range
from ..errors import CacheError, InvalidArgumentError
from . import _output as out
from ._machine import interactive

app = typer.Typer()
cache_app = typer.Typer(help="Compiled artifacts on disk: list, prune or delete them.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

Jobs = Annotated[
    int | None, typer.Option(min=1, help="Compile workers; by default as many as cores and memory allow.")
]
Retry = Annotated[bool, typer.Option("--retry", help="Compile again what is recorded as failed.")]


@app.command("compile")
def compile_variants(
    names: Annotated[list[str] | None, typer.Argument(metavar="[VARIANT]...", help="Variant ids.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every generated variant.")] = False,
    op: out.Op = None,
    backend: out.Backend = None,
    arch: out.Arch = None,
    jobs: Jobs = None,
    retry: Retry = False,
    as_json: out.Json = False,
) -> None:
    """Compile variants into the cache; needs no GPU. Ends with status 1 if any failed."""
    from ..runtime.pool import compile_all

    filters = out.narrowed(op, backend, arch)
    if not names and not everything and not any(filters.values()):
        raise InvalidArgumentError(
            "compile",
            expected="variant ids, --all or a filter",
            got="nothing",
            fix="name a variant, or pass --all, --op, --backend or --arch",
        )
    chosen = [out.variant(name) for name in names] if names else list(variants.variants(**filters))
    outcomes: list[Any] = []
    with out.progress(as_json) as bar:
        task = bar.add_task("compile", total=len(chosen))

        def started(name: str) -> None:
            bar.update(task, description=f"compile {name}")

        for outcome in compile_all(chosen, jobs=jobs, retry=retry, started=started):
            outcomes.append(outcome)
            bar.update(task, advance=1)
    rows = [
        {
            "variant": o.variant,
            "seconds": round(o.seconds, 3),
            "cached": o.cached,
            "folder": o.folder,
            "resources": vars(o.artifact.resources) if o.artifact else None,
            "error": None if o.error is None else {"code": o.error.code, "message": str(o.error)},
        }
        for o in sorted(outcomes, key=lambda o: [v.id for v in chosen].index(o.variant))
    ]
    if as_json:
        out.print_json({"outcomes": rows})
    else:
        _print_outcomes(rows)
    if any(row["error"] for row in rows):
        raise typer.Exit(1)


def _print_outcomes(rows: list[dict[str, Any]]) -> None:
    def cells(row: dict[str, Any]) -> list[Any]:
        built = row["resources"] or {}
        spills = built["spill_stores"] + built["spill_loads"] if built else None
        state = "failed" if row["error"] else "cached" if row["cached"] else "compiled"
        return [row["variant"], state, row["seconds"], built.get("registers"), spills]

    columns = ("variant", "result", "seconds", "regs", "spills")
    out.show(out.table("", columns, map(cells, rows), right=("seconds", "regs", "spills")))
    for row in rows:
        if row["error"]:
            out.say(row["error"]["message"], "red", error=True)
    counts = [sum(row["cached"] for row in rows), sum(bool(row["error"]) for row in rows)]
    out.console().print(
        f"{len(rows)} variants: {len(rows) - sum(counts)} compiled, {counts[0]} cached, {counts[1]} failed"
    )


@app.command()
def warmup(
    op: Annotated[list[str] | None, typer.Option(help="Only this operation; repeat it for several.")] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture; by default this machine's GPU.")] = None,
    jobs: Jobs = None,
    as_json: out.Json = False,
) -> None:
    """Compile everything a server of this architecture may launch; with a GPU, also load it there."""
    from ..prepare import warmup as warm

    for name in op or []:
        out.narrowed(name, None, None)
    with out.progress(as_json) as bar:
        task = bar.add_task("warm up", total=None)

        def advance(name: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=f"warm up {name}")

        warmed = warm(op or None, arch=arch, jobs=jobs, strict=False, progress=advance)
    rows = [{**vars(item), "error": str(item.error) if item.error else None} for item in warmed]
    if as_json:
        out.print_json({"warmed": rows})
    else:
        cells = [(r["variant"], r["cached"], r["seconds"], r["loaded"], r["error"]) for r in rows]
        columns = ("variant", "was cached", "seconds", "loaded", "error")
        out.show(out.table("", columns, cells, right=("seconds",), fold=("error",)))
    if any(row["error"] for row in rows):
        raise typer.Exit(1)


@cache_app.command("ls")
def cache_ls(as_json: out.Json = False) -> None:
    """What is compiled, for this and for other versions of the package."""
    from ..runtime import cache

    root, rows = cache.cache_root(), cache.entries()
    if as_json:
        out.print_json(
            {
                "root": root,
                "bytes": sum(r.bytes for r in rows),
                "entries": [
                    {
                        "variant": r.artifact.variant,
                        "arch": r.artifact.arch,
                        "version": r.version,
                        "bytes": r.bytes,
                        "folder": r.folder,
                    }
                    for r in rows
                ],
            }
        )
        return
    cells = [
        (
            r.artifact.variant,
            r.artifact.arch,
            r.version,
            out.size_text(r.bytes),
            r.folder.name.rsplit("-", 1)[-1],
        )
        for r in rows
    ]
    out.show(out.table("", ("variant", "arch", "version", "size", "key"), cells, right=("size",)))
    out.say(f"{len(rows)} artifacts, {out.size_text(sum(r.bytes for r in rows))}, in {root}")


@cache_app.command("clear")
def cache_clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: out.Json = False,
) -> None:
    """Delete the compiled artifacts; the DSLs' own caches and everything else below the root stay."""
    from ..runtime import cache

    rows = cache.entries()
    total = sum(row.bytes for row in rows)
    if rows and not yes:
        if as_json or not interactive():
            raise InvalidArgumentError(
                "cache clear",
                expected="a person to confirm, or --yes",
                got="no terminal",
                fix=f"pass --yes to delete {len(rows)} artifacts",
            )
        if not typer.confirm(
            f"Delete {len(rows)} artifacts ({out.size_text(total)}) in {cache.cache_root()}?"
        ):
            raise typer.Exit(1)
    for row in rows:
        try:
            shutil.rmtree(row.folder)
        except OSError as error:
            raise CacheError(
                str(row.folder),
                expected="a folder that can be deleted",
                got=str(error),
                fix="check its permissions",
            ) from None
    if as_json:
        out.print_json({"deleted": len(rows), "bytes": total})
    else:
        out.console().print(f"deleted {len(rows)} artifacts, {out.size_text(total)}")


@cache_app.command("prune")
def cache_prune(
    days: Annotated[
        float,
        typer.Option(min=0, help="Delete what the present sources do not use and nobody read in this time."),
    ] = 7.0,
    max_size: Annotated[
        float | None,
        typer.Option(min=0, metavar="MIB", help="Then delete the least recently used above this total."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be deleted.")] = False,
    as_json: out.Json = False,
) -> None:
    """Delete artifacts that are no longer used; safe while other processes compile and launch."""
    from ..measured import added_variants
    from ..runtime import cache
    from ..runtime.prune import prune
    from ..variants import variants

    used = [*variants(), *added_variants().values()]
    wanted = {folder for variant in used if (folder := cache.lookup(variant)) is not None}
    if max_size is not None:
        require_range("--max-size", max_size, 0, 2**40, "leave it out for no limit")
    limit = None if max_size is None else int(max_size * 2**20)
    rows = prune(days * 86400, limit, wanted, dry_run=dry_run)
    gone = [row for row in rows if not row.kept]
    left = cache.entries()
    size = sum(entry.bytes for entry in left)
    if as_json:
        listed = [{"folder": r.folder, "reason": r.reason, "bytes": r.bytes, "kept": r.kept} for r in rows]
        out.print_json({"dry_run": dry_run, "pruned": listed, "entries": len(left), "bytes": size})
        return
    cells = [(r.folder.name, r.folder.parent.name, r.reason, out.size_text(r.bytes), r.kept) for r in rows]
    if cells:
        out.show(out.table("", ("artifact", "arch", "why", "size", "kept because"), cells, right=("size",)))
    verb = "would delete" if dry_run else "deleted"
    out.say(
        f"{verb} {len(gone)} of them, {out.size_text(sum(r.bytes for r in gone))}; "
        f"the cache holds {len(left)} artifacts, {out.size_text(size)}",
        wrap=True,
    )
