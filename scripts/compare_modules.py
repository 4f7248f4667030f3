"""Compare the generated modules of two checkouts: text, PTX up to renaming, registers and spills.

    python scripts/compare_modules.py A B [--only PART]

A and B are folders of checkouts, or commits of this one. Modules whose text differs are compiled on both
sides, and the differences are listed. The exit status is 0 if all PTX is equal up to renaming.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from dsl_kernels.env import GENERATED_DIR  # noqa: E402

# Runs in a checkout: compiles each variant that standard input names.
COMPILE = """
import json, sys
from dsl_kernels import variants
from dsl_kernels.runtime.pool import compile_all
found = {}
for done in compile_all([variants.get(name) for name in json.load(sys.stdin)]):
    r = done.artifact.resources if done.artifact else None
    found[done.variant] = {"error": str(done.error)} if r is None else {
        "ptx": (done.folder / "kernel.ptx").read_text(), "registers": r.registers,
        "spills": r.spill_stores + r.spill_loads}
json.dump(found, sys.stdout)
"""
NAME = re.compile(r"[%$]?[A-Za-z_$][\w$]*")
ASIDE = re.compile(r"//.*|^\s*\.(?:loc|file)\b.*", re.MULTILINE)


def without_names(ptx: str) -> str:
    """PTX whose registers, labels and symbols are numbered by first occurrence; opcodes stay."""
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        word = match[0]
        if word in SPECIAL or (word[0] not in "%$_" and "__" not in word):
            return word
        kind = word[0] if word[0] in "%$" else "_"
        return numbers.setdefault(word, f"{kind}{len(numbers)}")

    return "\n".join(
        line.strip() for line in NAME.sub(number, ASIDE.sub("", ptx)).splitlines() if line.strip()
    )


SPECIAL = frozenset(
    f"%{name}"
    for name in (
        "tid", "ntid", "ctaid", "nctaid", "laneid", "warpid", "cluster_ctaid", "cluster_nctaid",
        "cluster_ctarank",
        "clusterid", "smid", "clock", "clock64", "globaltimer", "lanemask_lt",
    )
)  # fmt: skip
"""Registers that the hardware names."""


@contextmanager
def checkout(name: str) -> Iterator[Path]:
    """The folder of a checkout: `name` itself, or a temporary work tree of a commit of this repository."""
    if Path(name).is_dir():
        yield Path(name).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        try:
            subprocess.run([*git, "add", "--detach", "-q", str(path), name], check=True, capture_output=True)
        except subprocess.CalledProcessError as error:
            raise typer.BadParameter(
                f"{name} is neither a folder nor a commit: {error.stderr.decode().strip()}"
            ) from error
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True, capture_output=True)


def modules(root: Path) -> dict[str, str]:
    """The text of each generated module of a checkout, by variant id."""
    return {path.stem: path.read_text() for path in (root / "generated").glob("sm_*/*/*__*.py")}


def compiled(root: Path, names: list[str]) -> dict[str, Any]:
    """PTX, registers and spills of variants, compiled in a checkout."""
    env = {**os.environ, "PYTHONPATH": str(root), GENERATED_DIR.name: str(root / "generated")}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        cwd=root,
        env=env,
        input=json.dumps(names),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise typer.BadParameter(
            f"{root} does not compile its variants: {done.stderr.strip().splitlines()[-1]}"
        )
    builds: dict[str, Any] = json.loads(done.stdout)
    return builds


def differences(a: Path, b: Path, only: str) -> tuple[list[tuple[str, ...]], int, int]:
    """The differences, one row per variant; the number of modules, and of those that differ in text."""
    texts = modules(a), modules(b)
    names = sorted(name for name in {*texts[0], *texts[1]} if only in name)
    rows = [
        (name, "only in " + ("A" if name in texts[0] else "B"), "", "")
        for name in names
        if not all(name in t for t in texts)
    ]
    changed = [name for name in names if all(name in t for t in texts) and texts[0][name] != texts[1][name]]
    builds = [compiled(root, changed) if changed else {} for root in (a, b)]
    for name in changed:
        one, other = (build[name] for build in builds)
        if "error" in one or "error" in other:
            rows.append((name, "does not compile", one.get("error", ""), other.get("error", "")))
        elif without_names(one["ptx"]) != without_names(other["ptx"]):
            of = (f"{x['registers']} registers, {x['spills']} bytes spilled" for x in (one, other))
            rows.append((name, "PTX", *of))
    return rows, len(names), len(changed)


def main(
    a: Annotated[str, typer.Argument(help="a checkout, or a commit")],
    b: Annotated[str, typer.Argument(help="another")],
    only: Annotated[str, typer.Option(help="variants whose id has this part")] = "",
) -> None:
    with checkout(a) as one, checkout(b) as other:
        rows, count, changed = differences(one, other, only)
    console = Console()
    if rows:
        table = Table("variant", "differs", "A", "B")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(f"{count} modules, {changed} of other text, {len(rows)} that differ in more than names")
    raise typer.Exit(1 if rows else 0)


if __name__ == "__main__":
    typer.run(main)
