"""The excerpts of docs/bodies.md and docs/printed_kernel.md, which read one kernel: attention on Blackwell,
where one warp issues all products.

docs/bodies.md shows the body of that warp, and explains every name in it: definitions of the operation as
excerpts, names of the tile language in a table.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from dsl_kernels import variants

ROOT = Path(__file__).resolve().parent.parent
OP, ARCH = "gqa_forward", "sm_100a"
KNOBS = {"dtype": "bf16", "dim": 128, "cluster": 1}
BODY = ("dsl_kernels.kernels.gqa_forward.program.blackwell", "_issue")
NAMES = (
    "dsl_kernels.kernels.gqa_forward.program.common",
    "GROUP_ROWS", "LANES", "SIDES", "Kernel", "Work", "group_rows", "query_rows", "start", "_turned",
    "place_item",
)  # fmt: skip
# Meanings of tile-language names whose objects have no docstring of their own.
MEANINGS = {
    "Float32": "in `Kernel` a scalar of the call; of a variable its dtype",
    "Int32": "in `Kernel` a size or an integer of the call; of a variable its dtype",
    "Value": "the type of a number of Python or of the kernel",
    "SimpleNamespace": "Python's: the knobs, `k.tile`",
    "Any": "Python's: any type",
}


def variant(backend: str = "tilelang") -> variants.Variant:
    """The generated variant that the page shows, in one DSL."""
    candidates = variants.variants(OP, backend=backend, arch=ARCH)
    return next(v for v in candidates if KNOBS.items() <= dict(v.knobs).items())


def excerpt(path: Path, *names: str) -> str:
    """Functions, classes and constants of a file, in its order, with decorators and constants' comments."""
    text = path.read_text()
    lines, shown, last = text.splitlines(), "", None
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            title, first = node.name, min((d.lineno for d in node.decorator_list), default=node.lineno)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            title, first = node.targets[0].id, node.lineno
            while lines[first - 2].startswith("#"):
                first -= 1
        else:
            continue
        if title in names:
            between = "\n" if isinstance(node, ast.Assign) and isinstance(last, ast.Assign) else "\n\n\n"
            shown += (between if shown else "") + "\n".join(lines[first - 1 : node.end_lineno])
            last = node
    return shown


def _module(name: str) -> ModuleType:
    return importlib.import_module(name)


def _file(name: str) -> Path:
    return Path(inspect.getfile(_module(name)))


def body() -> str:
    """The body that the page reads."""
    return excerpt(_file(BODY[0]), BODY[1])


def definitions() -> str:
    """The operation's definitions of names in the body, and of names in those definitions."""
    return excerpt(_file(NAMES[0]), *NAMES[1:])


def free(source: str) -> list[str]:
    """Names that code reads but does not bind, in alphabetical order and without builtins."""
    nodes = list(ast.walk(ast.parse(source)))
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return sorted(read - bound - set(dir(builtins)))


def vocabulary() -> Iterator[tuple[str, str, str]]:
    """Each name of the tile language in the body and in its definitions: (name, module, meaning).

    Raises:
        LookupError: a name has no docstring and is not in `MEANINGS`.
    """
    for name in free(f"{definitions()}\n\n\n{body()}"):
        value = next(vars(m)[name] for m in map(_module, (BODY[0], NAMES[0])) if name in vars(m))
        # MEANINGS first: the docstring of an alias is that of the object it stands for.
        meaning = MEANINGS.get(name) or _first_sentence(value)
        if not meaning:
            raise LookupError(f"scripts/walkthrough.py: say in MEANINGS what {name} is")
        yield f"`{name}`", f"`{_home(name)}`", meaning


def _first_sentence(value: Any) -> str:
    return (inspect.getdoc(value) or "").split("\n")[0].rstrip(":")


def _home(name: str) -> str:
    """The module from which a name is imported: one of the tile language, or of Python."""
    for node in ast.walk(ast.parse(_file(BODY[0]).read_text() + _file(NAMES[0]).read_text())):
        if (
            isinstance(node, ast.ImportFrom)
            and any(alias.name == name for alias in node.names)
            and node.module
        ):
            module = node.module
            return module.removeprefix("dsl_kernels.")
    raise LookupError(name)


def loop(backend: str) -> str:
    """The loop over tiles of the warp that issues products, in the generated module of one DSL."""
    source = variant(backend).source
    tree = ast.parse(source)
    role = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "mma")
    tiles = next(n for n in ast.walk(role) if isinstance(n, ast.For) and getattr(n.target, "id", "") == "i")
    lines = source.splitlines()[tiles.lineno - 1 : tiles.end_lineno]
    return "\n".join(line[tiles.col_offset :] for line in lines)
