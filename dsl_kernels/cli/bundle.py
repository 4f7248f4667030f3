"""Commands for bundles: compiled variants in a folder that loads without a DSL or a compiler."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from .. import variants
from ..arch import get_arch
from ..errors import DslKernelError, InvalidArgumentError
from ..variants import Variant
from . import _output as out
from ._machine import gpus

app = typer.Typer()
bundle_app = typer.Typer(
    help="Ahead-of-time bundles: compiled variants for a machine without a DSL.", no_args_is_help=True
)
app.add_typer(bundle_app, name="bundle")


@bundle_app.command("write")
def write_bundle(
    target: Annotated[Path, typer.Argument(help="Folder to make.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="[VARIANT]...", help="Variant ids.")] = None,
    op: out.Op = None,
    backend: out.Backend = None,
    arch: Annotated[
        str | None, typer.Option(help="Architecture (sm_90a, sm_100a); by default this machine's GPU.")
    ] = None,
    tuned: Annotated[
        str | None,
        typer.Option(metavar="GPU", help="Only what the tuned table of this GPU chooses ('NVIDIA H200')."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--filter", help="Regular expression searched in the variant id.")
    ] = None,
    ptx: Annotated[bool, typer.Option("--ptx", help="Add the PTX, which the emulator needs.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Compile workers.")] = None,
    as_json: out.Json = False,
) -> None:
    """Compile what is missing and write a bundle, by default of all its architecture's variants.

    Needs no GPU.
    """
    from ..runtime import bundle
    from ..runtime.pool import compile_all

    chosen = _chosen(names, op, backend, arch, tuned, name)
    bundle.require_free(target, replace=force)
    folders: dict[str, Path] = {}
    errors: list[DslKernelError] = []
    with out.progress(as_json) as bar:
        task = bar.add_task("compile", total=len(chosen))
        for outcome in compile_all(chosen, jobs=jobs):
            if outcome.folder is not None:
                folders[outcome.variant] = outcome.folder
            elif outcome.error is not None:
                errors.append(outcome.error)
            bar.update(task, advance=1)
    if errors:
        for error in errors[1:]:
            out.say(str(error), "red", error=True)
        raise errors[0]
    made = bundle.write(target, chosen, folders, ptx=ptx, replace=force)
    _print_bundle(made, as_json)


@bundle_app.command("check")
def check_bundle(
    path: Annotated[Path, typer.Argument(help="Folder of the bundle.")], as_json: out.Json = False
) -> None:
    """Check a bundle against this library, and each of its files against its hash.

    Also list files that its index lacks and places that others may write to. Ends with status 1 if anything
    is wrong.
    """
    from ..runtime import bundle

    opened = bundle.open_bundle(path)
    opened.manifest_folder()
    checked = list(opened.check(_known(opened.root)))
    wrong = [(name, error) for name, error in checked if error is not None]
    strays = list(opened.strays())
    if as_json:
        rows = [{"variant": name, "error": str(error) if error else None} for name, error in checked]
        out.print_json({**_summary(opened), "checked": rows, "strays": [str(error) for error in strays]})
    else:
        for error in [*(error for _, error in wrong), *strays]:
            out.say(str(error), "red", error=True)
        _print_bundle(opened, as_json=False)
        out.console().print(
            f"{len(checked) - len(wrong)} of {len(checked)} variants are whole and fit this library"
        )
    if wrong or strays:
        raise typer.Exit(1)


def _known(root: Path) -> tuple[Variant, ...]:
    """The library's variants, or those of the bundle if the library has no generated set."""
    from ..errors import ArtifactError
    from ..runtime import bundle

    try:
        return variants.variants()
    except ArtifactError:
        bundle.use(root)
        return variants.variants()


def _chosen(
    names: list[str] | None,
    op: str | None,
    backend: str | None,
    arch: str | None,
    tuned: str | None,
    name: str | None,
) -> list[Variant]:
    """The variants that pass the names and filters, all of one architecture.

    Raises:
        InvalidArgumentError: no architecture, no tuned table of that GPU, or no variant left.
    """
    from ..measured import tuned_table

    chosen = [out.variant(name) for name in names] if names else list(variants.variants())
    if tuned is not None:
        winners = {entry["variant"] for entry in tuned_table(tuned)}
        if not winners:
            raise InvalidArgumentError(
                "--tuned",
                expected="a GPU with a tuned table",
                got=repr(tuned),
                fix="give the GPU's full name, such as 'NVIDIA H200', or record it with `bench --tune`",
            )
        chosen = [v for v in chosen if v.id in winners]
    if arch is None and not names and tuned is None:
        arch = next((gpu["arch"] for gpu in gpus() if gpu["arch"]), None)
        if arch is None:
            raise InvalidArgumentError(
                "--arch",
                expected="an architecture, where there is no GPU",
                got="none",
                fix="pass --arch sm_90a",
            )
    filters = out.narrowed(op, backend, arch)
    target = get_arch(arch).name if arch is not None else None
    chosen = [
        v
        for v in chosen
        if op in (None, v.op)
        and backend in (None, v.backend)
        and target in (None, v.arch)
        and (name is None or re.search(name, v.id))
    ]
    if not chosen:
        given = {k: v for k, v in {**filters, "tuned": tuned, "filter": name}.items() if v is not None}
        raise InvalidArgumentError(
            "bundle write",
            expected="filters that leave a variant",
            got=", ".join(f"{k} {v}" for k, v in given.items()) or "no variants",
            fix="see `python -m dsl_kernels list`",
        )
    return chosen


def _summary(bundle: Any) -> dict[str, Any]:
    toolchains: dict[str, dict[str, str]] = {}
    backends: dict[str, int] = {}
    for entry in bundle.entries.values():
        toolchains.setdefault(entry.backend, {}).update(entry.toolchain)
        backends[entry.backend] = backends.get(entry.backend, 0) + 1
    size = sum(path.stat().st_size for path in bundle.root.rglob("*") if path.is_file())
    return {
        "bundle": bundle.root,
        "arch": bundle.arch,
        "library": bundle.library,
        "variants": len(bundle.entries),
        "backends": backends,
        "toolchains": toolchains,
        "bytes": size,
    }


def _print_bundle(bundle: Any, as_json: bool) -> None:
    summary = _summary(bundle)
    if as_json:
        out.print_json(summary)
        return
    rows = [(name, count, summary["toolchains"][name]) for name, count in sorted(summary["backends"].items())]
    out.show(out.table("", ("backend", "variants", "built with"), rows, right=("variants",)))
    out.say(
        f"{summary['variants']} variants for {bundle.arch}, {out.size_text(summary['bytes'])}, "
        f"dsl_kernels {bundle.library}, in {bundle.root}"
    )
