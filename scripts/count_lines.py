"""Count the lines that people wrote for each operation: declaration, role bodies, and leaves by kind and DSL.

    python scripts/count_lines.py
    python scripts/count_lines.py --kinds     # and how many of them are code, signatures, docstrings, ...

Only operations with variants are counted. Blank lines and comments count; generated modules, tests and
reference implementations do not. A policy is listed beside the sum, as no kernel is made from it.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from dsl_kernels import backends, kernels, variants  # noqa: E402

DEVICE, KERNELS, TEMPLATES = (
    ROOT / name for name in ("dsl_kernels/device", "dsl_kernels/kernels", "templates")
)
SPELLINGS = {"torch": "functions", "text": "leaves", **{name: name for name in backends.names()}}
"""Columns of leaves, and the files of an operation that each column counts."""
COLUMNS = (
    "op",
    "declaration",
    "bodies",
    *(f"leaves in {name}" for name in SPELLINGS),
    "templates",
    "in all",
    "policy",
)
SHARED = "shared by all"
SPOKEN = ("m: Recorder", "@recorded", "(State", "-> Body", "[str, Body]")
"""Marks the definition of a function or class as part of a body."""


def length(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def bodies(source: str) -> int:
    """Lines of a program's functions that use the recorder, and of the classes whose state they share."""
    nodes = [n for n in ast.parse(source).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    lines = source.splitlines()
    count = 0
    for node in nodes:
        first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)]) - 1
        last = node.end_lineno or node.lineno
        if any(word in "\n".join(lines[first:last]) for word in SPOKEN):
            count += last - first
    return count


def rows() -> list[tuple[str | int, ...]]:
    """COLUMNS: one row per operation, then one for what all operations share."""
    counted: list[tuple[str | int, ...]] = []
    for op in sorted({v.op for v in variants.variants()}):
        sources = [path.read_text() for path in kernels.files(op, "program")]
        body = sum(map(bodies, sources))
        folder = KERNELS / op
        leaves = [
            length([*folder.glob(f"{part}*.py"), *folder.glob(f"{part}/*.py")]) for part in SPELLINGS.values()
        ]
        templates = length(TEMPLATES.glob(f"*/{op}*"))
        parts = (sum(len(source.splitlines()) for source in sources) - body, body, *leaves, templates)
        policy = length(folder.glob("policy.py"))
        counted.append((op, *parts, sum(parts), policy))
    common = [length((DEVICE / name).glob("*.py")) for name in SPELLINGS]
    parts = (0, 0, *common, length(TEMPLATES.glob("*/_*")))
    return [*counted, (SHARED, *parts, sum(parts), 0)]


KINDS = ("code", "signatures", "docstrings", "imports", "comments", "blank")


def kinds(source: str) -> Counter[str]:
    """How many lines of a module are of each of `KINDS`."""
    lines = source.splitlines()
    found = ["blank" if not line.strip() else "code" for line in lines]
    found = [
        "comments" if line.strip().startswith("#") else kind for line, kind in zip(lines, found, strict=True)
    ]

    def mark(first: int, last: int, kind: str) -> None:
        for i in range(first - 1, last):
            if found[i] == "code" or kind == "docstrings":
                found[i] = kind

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            mark(node.lineno, node.end_lineno or node.lineno, "imports")
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and ast.get_docstring(node) is not None
        ):
            mark(node.body[0].lineno, node.body[0].end_lineno or 0, "docstrings")
        if isinstance(node, ast.FunctionDef):
            begin = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            mark(begin, node.body[0].lineno - 1, "signatures")
    return Counter(found)


def rows_of_kinds() -> list[tuple[str | int, ...]]:
    """For each operation, its lines of each of `KINDS`, the policy's among them, and their sum."""
    counted: list[tuple[str | int, ...]] = []
    for op in sorted({v.op for v in variants.variants()}):
        folder = KERNELS / op
        paths = {*kernels.files(op, "program"), *folder.glob("policy.py")}
        for part in SPELLINGS.values():
            paths |= {*folder.glob(f"{part}*.py"), *folder.glob(f"{part}/*.py")}
        total = sum((kinds(path.read_text()) for path in paths), Counter[str]())
        counted.append((op, *(total[kind] for kind in KINDS), total.total()))
    return counted


def main() -> int:
    if sys.argv[1:] == ["--kinds"]:
        return shown([("op", *KINDS, "in all"), *rows_of_kinds()])
    return shown([COLUMNS, *rows()])


def shown(table: list[tuple[str | int, ...]]) -> int:
    """Print a table."""
    widths = [max(len(str(row[i])) for row in table) for i in range(len(table[0]))]
    for row in table:
        name, *figures = (str(cell) for cell in row)
        print(
            "  ".join(
                [name.ljust(widths[0]), *(f.rjust(w) for f, w in zip(figures, widths[1:], strict=True))]
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
