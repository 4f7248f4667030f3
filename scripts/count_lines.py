"""Lines that people wrote for each operation: its declaration, the bodies of its roles, and its leaves: in torch, by their text, in each DSL.

    python scripts/count_lines.py

Operations that have variants are counted: one that is not finished has none. Blank lines and comments count; generated modules, tests and reference implementations do not. A policy stands beside the sum:
no kernel is made from it.
"""

from __future__ import annotations

import ast
import sys
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
"""A column of leaves, and the files of an operation that it counts."""
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
"""What the definition of a function or class says if it is part of a body."""


def length(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in paths)


def bodies(source: str) -> int:
    """Lines of a program's functions that speak to the recorder, and of the classes of what they share."""
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
    """One row an operation, then what every operation uses: COLUMNS."""
    found: list[tuple[str | int, ...]] = []
    for op in sorted({v.op for v in variants.variants()}):
        sources = [path.read_text() for path in kernels.files(op, "program")]
        body = sum(map(bodies, sources))
        folder = KERNELS / op
        leaves = [
            length([*folder.glob(f"{part}*.py"), *folder.glob(f"{part}/*.py")]) for part in SPELLINGS.values()
        ]
        templates = length(TEMPLATES.glob(f"*/{op}*"))
        parts = (sum(len(source.splitlines()) for source in sources) - body, body, *leaves, templates)
        found.append((op, *parts, sum(parts), length([*folder.glob("policy.py"), *folder.glob("costs.py")])))
    common = [length((DEVICE / name).glob("*.py")) for name in SPELLINGS]
    parts = (0, 0, *common, length(TEMPLATES.glob("*/_*")))
    return [*found, (SHARED, *parts, sum(parts), 0)]


def main() -> int:
    table = [COLUMNS, *rows()]
    widths = [max(len(str(row[i])) for row in table) for i in range(len(COLUMNS))]
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
