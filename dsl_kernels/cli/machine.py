"""Commands about this machine: doctor, env."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from .. import __version__, env, measured, problems, variants
from ..arch import GpuSpec, gpu_row
from ..errors import DslKernelError
from . import _laboratory as laboratory
from . import _output as out
from ._machine import gpus

app = typer.Typer()

OK, NOTE, BROKEN = "ok", "note", "broken"
# Package, needed at run time, what it is for, how to get it.
PACKAGES = (
    ("torch", True, "tensors, references, the interpreter", "`pip install torch`"),
    ("cuda-bindings", True, "kernel launches", "`pip install 'cuda-bindings>=13,<14'`"),
    ("filelock", True, "the artifact cache", "`pip install filelock`"),
    (
        "platformdirs",
        False,
        "the cache's default place",
        "`pip install platformdirs`, or set DSL_KERNELS_CACHE_DIR",
    ),
    ("safetensors", False, "workload files", "`pip install safetensors`"),
    ("jinja2", False, "generating variants", "`pip install 'dsl-kernels[dev]'`"),
    ("triton", False, "the baseline of `run` and `bench` on a GPU", "it comes with torch for CUDA"),
)


def _row(what: str, status: str, found: str, fix: str = "") -> dict[str, str]:
    return {"check": what, "status": status, "found": found, "fix": fix if status != OK else ""}


@app.command()
def doctor(as_json: out.Json = False) -> None:
    """Check what this machine has against what the library needs; status 1 if something needed is broken."""
    with out.error_console().status("checking") if not as_json else _quiet():
        rows = list(_checks())
    broken = [row for row in rows if row["status"] == BROKEN]
    if as_json:
        out.print_json({"ok": not broken, "checks": rows})
    else:
        colours = {OK: "[green]ok[/]", NOTE: "[yellow]note[/]", BROKEN: "[bold red]broken[/]"}
        table = out.table("", ("check", "status", "found", "fix"), (), fold=("found", "fix"))
        for row in rows:
            table.add_row(
                out.cell(row["check"]),
                colours[row["status"]],
                out.cell(row["found"]),
                out.cell(row["fix"]) if row["fix"] else "",
            )
        out.show(table)
        out.console().print("something needed is broken" if broken else "nothing needed is broken")
    if broken:
        raise typer.Exit(1)


class _quiet:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _checks() -> Iterator[dict[str, str]]:
    python = sys.version_info[:2]
    version = platform.python_version()
    yield _row("dsl_kernels", OK, f"{__version__} in {Path(__file__).resolve().parents[1]}")
    yield _row(
        "python",
        OK if (3, 11) <= python <= (3, 12) else NOTE,
        f"{version} on {platform.platform()}",
        "use Python 3.11 or 3.12",
    )
    yield from _environment()
    yield from _packages()
    visible = gpus()
    present = {gpu["arch"] for gpu in visible if gpu["arch"]}
    needed, generated, compiled, total = _generated(present)
    yield from generated
    yield from _toolchain(needed=compiled < total and not _no_jit())
    yield from _gpu(visible)
    yield from _laboratory(gpu=bool(visible))
    yield from _bundle(present)
    yield from _cache(compiled, total, needed)


def _laboratory(gpu: bool) -> Iterator[dict[str, str]]:
    packages = laboratory.packages()
    missing = laboratory.missing(laboratory.DISTRIBUTION)
    what = f"{missing.got} (for {', '.join(laboratory.COMMANDS)})"
    named = ", ".join(package.__name__.partition(".")[0] for package in packages)
    yield _row(laboratory.DISTRIBUTION, OK if packages else NOTE, named or what, missing.fix)
    if (profiler := laboratory.offered("profiler")) is not None:
        yield from profiler.doctor(gpu=gpu)


def _no_jit() -> bool:
    try:
        return env.DISABLE_JIT.get()
    except DslKernelError:
        return False


def _environment() -> Iterator[dict[str, str]]:
    try:
        names = [row["name"] for row in env.table() if row["set"]]
        yield _row("environment", OK, ", ".join(names) or "no DSL_KERNELS_ variable is set")
    except DslKernelError as error:
        yield _row("environment", BROKEN, f"{error.subject} = {error.got}", error.fix)
    known = {var.name for var in vars(env).values() if isinstance(var, env.EnvVar)}
    for name in sorted(os.environ):
        if name.startswith("DSL_KERNELS_") and name not in known:
            yield _row(
                "environment",
                NOTE,
                f"{name} is no variable of this project",
                "see `python -m dsl_kernels env`",
            )


def _packages() -> Iterator[dict[str, str]]:
    from .. import backends
    from ..runtime.toolkit import version

    for name, needed, purpose, fix in PACKAGES:
        installed = version(name)
        status = OK if installed else BROKEN if needed else NOTE
        yield _row(name, status, installed or f"not installed (for {purpose})", fix)
    toolchains = list(backends.toolchains())
    importable = tuple(name for name, versions in toolchains if not isinstance(versions, DslKernelError))
    unusable = _unusable(importable)
    for name, versions in toolchains:
        if isinstance(versions, DslKernelError):
            missing = f"{versions.subject}: {versions.got} (for compiling {name} variants)"
            yield _row(name, NOTE, missing, versions.fix)
            continue
        text = ", ".join(map(" ".join, versions.items())) or "needs no package"
        if name in unusable:
            yield _row(name, NOTE, f"{text}: cannot be imported: {unusable[name]}", "install it again")
        else:
            yield _row(name, OK, text)


@functools.cache
def _unusable(names: tuple[str, ...]) -> dict[str, str]:
    """The DSLs that cannot be imported, with the error; each is tried in its own process, as it may crash."""
    # Without the current folder, whose modules would hide others.
    path = f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})"
    code = f"{path}; from dsl_kernels import backends; backends.get(sys.argv[1]).load()"
    running = {
        name: subprocess.Popen(
            [sys.executable, "-Pc", code, name], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for name in names
    }
    errors = {name: process.communicate()[1].strip() for name, process in running.items()}
    return {
        name: errors[name].splitlines()[-1] if errors[name] else f"exit status {process.returncode}"
        for name, process in running.items()
        if process.returncode
    }


def _generated(present: set[str]) -> tuple[str, list[dict[str, str]], int, int]:
    """What this machine needs compiled, in words; rows about the generated set; compiled and needed variants.

    A machine with a GPU needs the variants of its architecture. A machine without one needs those of its
    bundle, or all without a bundle, because the emulator runs any.
    """
    from ..runtime import bundle, cache, store

    try:
        generated = variants.variants()
        root = variants.generated_root()
        bundled = bundle.active()
    except DslKernelError as error:
        return "", [_row("generated set", BROKEN, error.got, error.fix)], 0, 0
    altered = [
        v.id
        for v in generated
        if bundled is None or root != bundled.root
        if not v.path.is_file() or hashlib.sha256(v.path.read_bytes()).hexdigest() != v.sha256
    ]
    rows = [_row("generated set", OK, f"{len(generated)} variants as the manifest has them, in {root}")]
    if altered:
        listed = ", ".join(altered[:3]) + (" ..." if len(altered) > 3 else "")
        rows = [
            _row(
                "generated set",
                BROKEN,
                f"{len(altered)} modules differ from the manifest: {listed}",
                "run `make generate`",
            )
        ]
    archs = present or ({bundled.arch} if bundled is not None else set())
    wanted = [v for v in generated if not archs or v.arch in archs]
    missing = store.outside_bundle(wanted)
    compiled = len(wanted) - len(missing)
    for variant in missing:
        try:
            compiled += cache.lookup(variant) is not None
        except DslKernelError:
            continue
    return " and ".join(sorted(archs)) or "all architectures", rows, compiled, len(wanted)


def _toolchain(needed: bool) -> Iterator[dict[str, str]]:
    from ..runtime import toolkit

    for tool in toolkit.describe():
        status = OK if tool["ok"] == "yes" else BROKEN if needed else NOTE
        yield _row(
            tool["tool"],
            status,
            f"{tool['version']} ({tool['origin']}) {tool['path']}" if status == OK else tool["version"],
            tool["fix"],
        )


def _gpu(gpus: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    from ..runtime.toolkit import driver_version, version

    if not gpus:
        yield _row(
            "GPU",
            NOTE,
            "none: ops run on a CPU through executor='interpreter'",
            "nothing, unless this machine has a GPU: then install its driver",
        )
        return
    yield _row("driver", OK, driver_version() or "present, version unknown")
    for index, gpu in enumerate(gpus):
        described = f"{gpu['name']}, {gpu['capability']}, {gpu['sms']} SMs"
        if gpu["arch"] is None:
            fix = "kernels are generated for compute capability 9.0 and 10.0"
            yield _row(f"GPU {index}", BROKEN, f"{described}, not supported", fix)
            continue
        row = gpu_row(gpu["arch"], gpu["name"], gpu["sms"])
        note = row.note
        fix = (
            "nothing for results; for speed, `python -m dsl_kernels bench --tune` "
            "and a row in dsl_kernels/arch.py"
        )
        yield _row(
            f"GPU {index}",
            NOTE if note else OK,
            f"{described}, {gpu['arch']}" + (f"; {note}" if note else ""),
            fix,
        )
        yield _tables(f"tuned table {index}", row)
    if re.search(r"\+cpu$", version("torch") or ""):
        yield _row("torch and GPU", BROKEN, "torch is a CPU build", "install torch for CUDA")


def _tables(check: str, gpu: GpuSpec) -> dict[str, str]:
    """Whose measured points select variants on a GPU, by operation, or by form if its forms differ."""
    whose: dict[str, list[str]] = {}
    try:
        for op in problems.names():
            by_form = {form: _whose(gpu, op, form) for form in problems.get(op).forms}
            alike = len({*by_form.values()}) == 1
            for form, source in [*by_form.items()][: 1 if alike else None]:
                whose.setdefault(source, []).append(op if alike else f"{op} {form}")
    except DslKernelError as error:
        return _row(check, BROKEN, f"{error.subject}: {error.got}", error.fix)
    return _row(
        check,
        OK if whose.keys() == {"its own"} else NOTE,
        "; ".join(f"{source} for {', '.join(ops)}" for source, ops in whose.items()),
        "nothing for results; for speed, `python -m dsl_kernels tune` at your sizes, or `bench --tune`",
    )


def _whose(gpu: GpuSpec, op: str, form: str) -> str:
    entries, sibling = measured.points(gpu, op, form)
    return f"the {sibling.name}'s, with scaled times" if sibling else "its own" if entries else "none"


def _bundle(present: set[str]) -> Iterator[dict[str, str]]:
    from ..runtime import bundle

    try:
        opened = bundle.active()
        if opened is None:
            return
        wrong = [error for _, error in opened.check(variants.variants()) if error is not None]
    except DslKernelError as error:
        yield _row("bundle", BROKEN, f"{error.subject}: {error.got}", error.fix)
        return
    if present and opened.arch not in present:
        gpu = " and ".join(sorted(present))
        fix = f"use a bundle written with --arch {gpu}"
        yield _row("bundle", BROKEN, f"{opened.root} is for {opened.arch}, and the GPU here is {gpu}", fix)
    elif wrong:
        yield _row(
            "bundle", BROKEN, f"{len(wrong)} variants do not fit, first {wrong[0].subject}", wrong[0].fix
        )
    else:
        yield _row("bundle", OK, f"{opened.root}: {len(opened.entries)} variants for {opened.arch}")


def _cache(compiled: int, total: int, needed: str) -> Iterator[dict[str, str]]:
    from ..runtime import cache, storage

    fix = "set DSL_KERNELS_CACHE_DIR to a folder that can be written"
    try:
        root = cache.cache_root()
        storage.require_trusted(root, *root.glob("*"), *(root / __version__).glob("*"))
        artifacts = cache.entries()
    except (DslKernelError, ImportError, OSError) as error:
        # With a bundle, or with the interpreter, the library works without a cache.
        state = NOTE if compiled == total else BROKEN
        told = f"{error.subject}: {error.got}" if isinstance(error, DslKernelError) else str(error)
        yield _row("cache", state, told, error.fix if isinstance(error, DslKernelError) else fix)
        return
    writable = _writable(root)
    size = f"{len(artifacts)} artifacts, {out.size_text(sum(entry.bytes for entry in artifacts))}"
    state = OK if writable else NOTE if compiled == total else BROKEN
    yield _row(
        "cache",
        state,
        f"{root}: {size}{'' if writable else ', not writable'}",
        "make it writable, or set DSL_KERNELS_CACHE_DIR",
    )
    state = OK if compiled == total else BROKEN if _no_jit() else NOTE
    yield _row(
        "compiled",
        state,
        f"{compiled} of {total} variants for {needed}",
        "`python -m dsl_kernels compile --all`; otherwise the first call compiles",
    )


def _writable(root: Path) -> bool:
    place = root
    try:
        while not place.exists() and place != place.parent:
            place = place.parent
        with tempfile.TemporaryFile(dir=place):
            return True
    except OSError:
        return False


@app.command("env")
def show_env(as_json: out.Json = False) -> None:
    """Every environment variable the library reads, with its present value."""
    rows = env.table()
    if as_json:
        out.print_json({"variables": rows})
        return
    cells = [
        (r["name"], r["value"] if r["value"] not in (None, "", {}) else None, r["set"], r["doc"])
        for r in rows
    ]
    out.show(out.table("", ("variable", "value", "set", "meaning"), cells, fold=("value", "meaning")))
